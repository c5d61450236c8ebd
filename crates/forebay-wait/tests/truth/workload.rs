//! The workloads: small programs that find out in another way how long they waited.
//!
//! Each runs in its own process: this test program, started again with the ignored test `workload`. A thread's wait is the time
//! that passed, less the time that it ran and the time that it was runnable without a processor. The kernel counts both for each
//! thread (`schedstat`), independently of the code under test.

use std::fs::{self, File, OpenOptions};
use std::io::{PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::asleep::{self, Way};

/// Environment variables with the workload, its file, its throttled cgroup, and the place for the truth.
pub const WHAT: &str = "FOREBAY_WAIT_WORKLOAD";
pub const ON: &str = "FOREBAY_WAIT_FILE";
pub const DOOR: &str = "FOREBAY_WAIT_DOOR";
pub const TRUTH: &str = "FOREBAY_WAIT_TRUTH";

/// A workload's own record: the total wait of its threads, and its duration.
#[derive(Debug, Default, Clone, Copy)]
pub struct Truth {
    pub waited_ns: u64,
    pub passed_ns: u64,
}

pub const BLOCK: usize = 64 << 10;

/// The sleep of threads that wait for no I/O.
pub const SLEEP: Duration = Duration::from_secs(1);

/// Runs the workload that the environment names; does nothing without one.
pub fn run() {
    let Ok(what) = std::env::var(WHAT) else { return };
    let path = PathBuf::from(std::env::var_os(ON).unwrap_or_default());
    if let Some(door) = std::env::var_os(DOOR) {
        fs::write(door, std::process::id().to_string()).expect("the cgroup takes it");
    }
    others_sleep();
    let truth = match what.as_str() {
        "read" => read_alone(&path),
        "cached" => measured(|| drop(fs::read(&path).expect("it can be read"))),
        "buffered" => measured(|| buffered(&path)),
        "mmap" => measured(|| touch(&path)),
        "sendfile" => measured(|| sendfile(&path)),
        "splice" => measured(|| splice(&path)),
        "copy" => measured(|| copy_range(&path)),
        "full-pipe" => into_a_full_pipe(&path),
        "write" => measured(|| write_and_sync(&path)),
        "dsync" => measured(|| write_durably(&path)),
        "flags" => measured(|| write_with_flags(&path)),
        "ring" => measured(|| write_by_a_ring(&path)),
        "fsync" => measured(|| write_and_fsync(&path)),
        "threads" => threads(&path, 2),
        "together" => threads(&path, 16),
        "computing" => beside_computing(&path),
        "sleeping" => sleeping(),
        "children" => children(),
        "tokio" => with_tokio(&path),
        "forebay" => with_forebay(&path, 1),
        "deep" => with_forebay(&path, 8),
        "endless" => loop {
            read_to_end(&direct(&path));
        },
        "ring-passed-on" => asleep::passed_on(&path),
        "ring-socket" => asleep::for_a_socket(&path),
        "libaio" => asleep::by_libaio(&path, Way::Enter),
        "libaio-epoll" => asleep::by_libaio(&path, Way::Epoll),
        "libaio-files" => asleep::by_libaio_of_two_files(&path),
        "idle" => asleep::idle(),
        "pool" => beside_a_futex(&path),
        "workers" => with_worker_rings(&path),
        other => match asleep::way(other) {
            Some(way) => asleep::by_a_ring(&path, way),
            None => panic!("there is no workload {other}"),
        },
    };
    if let Some(place) = std::env::var_os(TRUTH) {
        // Appended: several processes of one workload may write here.
        let mut file = OpenOptions::new().append(true).create(true).open(place).expect("it can be written");
        writeln!(file, "{} {}", truth.waited_ns, truth.passed_ns).expect("it has space");
    }
}

/// Returns once all other threads of this process sleep. Story: the thread that started this one waited for a processor of a busy
/// machine during the first reads, so that the program's full wait, in which no thread may be runnable, was shorter than theirs.
fn others_sleep() {
    let own = fs::read_link("/proc/thread-self").expect("proc is there");
    let is_asleep = |task: fs::DirEntry| {
        // A thread that has ended counts as one that sleeps.
        let Ok(stat) = fs::read_to_string(task.path().join("stat")) else { return true };
        stat.rsplit(')').next().is_some_and(|fields| fields.starts_with(" S"))
    };
    loop {
        let tasks = fs::read_dir("/proc/self/task").expect("proc is there").flatten();
        if tasks.filter(|task| own.file_name() != Some(&task.file_name())).all(is_asleep) {
            return;
        }
        std::thread::yield_now();
    }
}

/// Adds up the records of a workload's processes.
pub fn truth(path: &Path) -> Truth {
    let mut truth = Truth::default();
    for line in fs::read_to_string(path).expect("the workload has told").lines() {
        let mut numbers = line.split(' ').map(|number| number.parse::<u64>().expect("a number"));
        truth.waited_ns += numbers.next().expect("the wait");
        truth.passed_ns += numbers.next().expect("the time");
    }
    truth
}

/// Returns the time that this thread ran, and that it was runnable without running.
fn scheduled() -> (u64, u64) {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel has schedstat");
    let mut numbers = text.split_whitespace().map(|number| number.parse().expect("a number"));
    (numbers.next().expect("run time"), numbers.next().expect("delay"))
}

pub fn measured(work: impl FnOnce()) -> Truth {
    let before = scheduled();
    let begun = Instant::now();
    work();
    let passed_ns = begun.elapsed().as_nanos() as u64;
    let after = scheduled();
    Truth { waited_ns: passed_ns.saturating_sub(after.0 - before.0 + after.1 - before.1), passed_ns }
}

pub fn direct(path: &Path) -> File {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).expect("direct I/O works here")
}

/// Returns memory for direct I/O, and the start of its aligned part.
pub fn aligned(bytes: usize) -> (Vec<u8>, usize) {
    let buffer = vec![0; bytes + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    (buffer, start)
}

fn read_to_end(file: &File) {
    let (mut buffer, start) = aligned(BLOCK);
    let mut place = 0;
    loop {
        match file.read_at(&mut buffer[start..start + BLOCK], place).expect("it can be read") {
            0 => break,
            bytes => place += bytes as u64,
        }
    }
}

/// Opening is not in the truth: on FUSE it waits, too.
fn read_alone(path: &Path) -> Truth {
    let file = direct(path);
    measured(|| read_to_end(&file))
}

/// Keeps this thread, and the threads that it starts, on the processor that it is on.
pub fn stay_here() {
    // SAFETY: a set of processors is plain bits, of which all 0 is a valid one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the call has no arguments and returns a number.
    let processor = unsafe { libc::sched_getcpu() };
    // SAFETY: the number is one of a processor, and so within the set.
    unsafe { libc::CPU_SET(usize::try_from(processor).expect("it is on one"), &mut set) };
    // SAFETY: the set lives through the call and has the size that is passed; 0 is this thread.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    assert_eq!(result, 0);
}

fn forget(file: &File) {
    // SAFETY: the descriptor is open; the call only advises.
    let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(result, 0);
}

fn buffered(path: &Path) {
    let mut file = File::open(path).expect("it exists");
    forget(&file);
    let mut buffer = vec![0; BLOCK];
    while file.read(&mut buffer).expect("it can be read") > 0 {}
}

/// Makes a call that moves the next bytes of the file, which is not in memory, until there are no more.
fn move_to_end(path: &Path, mut step: impl FnMut(RawFd) -> isize) {
    let file = File::open(path).expect("it exists");
    forget(&file);
    loop {
        match step(file.as_raw_fd()) {
            0 => break,
            bytes => assert!(bytes > 0, "{}", std::io::Error::last_os_error()),
        }
    }
}

fn sendfile(path: &Path) {
    let nowhere = OpenOptions::new().write(true).open("/dev/null").expect("it exists");
    move_to_end(path, |from| {
        // SAFETY: both descriptors are open, and the null pointer stands for the file's own position.
        unsafe { libc::sendfile(nowhere.as_raw_fd(), from, std::ptr::null_mut(), BLOCK) }
    });
}

fn splice_block(from: RawFd, pipe: &PipeWriter) -> isize {
    let null = std::ptr::null_mut();
    // SAFETY: both descriptors are open, and a null pointer stands for a file's own position.
    unsafe { libc::splice(from, null, pipe.as_raw_fd(), null, BLOCK, 0) }
}

fn splice(path: &Path) {
    let (mut reader, writer) = std::io::pipe().expect("pipes exist");
    let mut buffer = vec![0; BLOCK];
    move_to_end(path, |from| {
        let bytes = splice_block(from, &writer);
        reader.read_exact(&mut buffer[..bytes.max(0) as usize]).expect("the pipe has them");
        bytes
    });
}

fn copy_range(path: &Path) {
    let to = File::create(path.with_extension("copy")).expect("it can be made");
    let null = std::ptr::null_mut();
    move_to_end(path, |from| {
        // SAFETY: both descriptors are open, and a null pointer stands for a file's own position.
        unsafe { libc::copy_file_range(from, null, to.as_raw_fd(), null, BLOCK, 0) }
    });
}

/// Splices a file in memory into a pipe that is full until somebody reads.
fn into_a_full_pipe(path: &Path) -> Truth {
    drop(fs::read(path).expect("it can be read"));
    let begun = Instant::now();
    let (mut reader, writer) = std::io::pipe().expect("pipes exist");
    let file = File::open(path).expect("it exists");
    std::thread::scope(|scope| {
        scope.spawn(move || while splice_block(file.as_raw_fd(), &writer) > 0 {});
        std::thread::sleep(SLEEP);
        reader.read_to_end(&mut Vec::new()).expect("it is written");
    });
    Truth { waited_ns: 0, passed_ns: begun.elapsed().as_nanos() as u64 }
}

/// Touches every page of a map of the file, without read-ahead.
fn touch(path: &Path) {
    let file = File::open(path).expect("it exists");
    forget(&file);
    let bytes = file.metadata().expect("it is open").len() as usize;
    // SAFETY: a new shared map that nothing writes to, of a file that stays as it is; unmapped below.
    let map = unsafe {
        let map =
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::madvise(map, bytes, libc::MADV_RANDOM), 0);
        map.cast::<u8>()
    };
    let mut sum = 0_u64;
    for page in 0..bytes / 4096 {
        // SAFETY: within the map.
        sum += u64::from(unsafe { map.add(page * 4096).read_volatile() });
    }
    assert_ne!(sum, 0);
    // SAFETY: the whole map, which nothing uses any more.
    unsafe { libc::munmap(map.cast(), bytes) };
}

/// Direct writes, each followed by fdatasync.
fn write_and_sync(path: &Path) {
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .expect("direct I/O works here");
    let (buffer, start) = aligned(BLOCK);
    for block in 0..16 {
        file.write_all_at(&buffer[start..start + BLOCK], block * BLOCK as u64).expect("it has space");
        file.sync_data().expect("the disk works");
    }
}

/// Writes through the page cache that return when they are durable, because the file was opened so.
fn write_durably(path: &Path) {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(path).expect("it exists");
    for block in 0..16 {
        file.write_all_at(&[7; BLOCK], block * BLOCK as u64).expect("it has space");
    }
}

/// Makes four writes in a row, the last of which has its own flag that makes it durable.
fn write_with_flags(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).expect("it exists");
    let mut data = [7_u8; 4096];
    for flags in [0, 0, 0, libc::RWF_DSYNC] {
        let part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
        // SAFETY: the descriptor is open, and the one part is memory that lives through the call.
        let written = unsafe { libc::pwritev2(file.as_raw_fd(), &raw const part, 1, 0, flags) };
        assert_eq!(written, 4096);
    }
}

/// Runs operations one after the other by a ring: a plain write, one with the flag, one to a descriptor
/// opened for durable writes, and a read from that.
fn write_by_a_ring(path: &Path) {
    let plain = OpenOptions::new().write(true).open(path).expect("it exists");
    let mut durable = OpenOptions::new();
    let durable = durable.read(true).write(true).custom_flags(libc::O_DSYNC).open(path).expect("it exists");
    let fd = |file: &File| io_uring::types::Fd(file.as_raw_fd());
    let mut data = [7_u8; 4096];
    let memory = data.as_mut_ptr();
    let mut ring = io_uring::IoUring::new(8).expect("rings can be made");
    for entry in [
        io_uring::opcode::Write::new(fd(&plain), memory, 4096).build(),
        io_uring::opcode::Write::new(fd(&plain), memory, 4096).rw_flags(libc::RWF_DSYNC).build(),
        io_uring::opcode::Write::new(fd(&durable), memory, 4096).build(),
        io_uring::opcode::Read::new(fd(&durable), memory, 4096).build(),
    ] {
        // SAFETY: memory and descriptors live until the completion was reaped below.
        unsafe { ring.submission().push(&entry) }.expect("it has room");
        ring.submit_and_wait(1).expect("it completes");
        assert_eq!(ring.completion().next().map(|completion| completion.result()), Some(4096));
    }
}

/// Writes through the page cache, each followed by fsync: the sync waits, much of it for the journal.
fn write_and_fsync(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).expect("it exists");
    for block in 0..64 {
        file.write_all_at(&[7; 4096], block * 4096).expect("it has space");
        file.sync_all().expect("the disk works");
    }
}

/// Starts eight threads, each of which reads this many blocks.
fn threads(path: &Path, blocks: u64) -> Truth {
    let begun = Instant::now();
    let together = Barrier::new(8);
    let work = || {
        let file = direct(path);
        together.wait();
        measured(|| {
            let (mut buffer, start) = aligned(BLOCK);
            for block in 0..blocks {
                file.read_exact_at(&mut buffer[start..start + BLOCK], block * BLOCK as u64).expect("read");
            }
        })
    };
    let waited_ns = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        all.into_iter().map(|thread| thread.join().expect("it worked").waited_ns).sum()
    });
    Truth { waited_ns, passed_ns: begun.elapsed().as_nanos() as u64 }
}

/// Reads with one thread while another one computes all the time.
fn beside_computing(path: &Path) -> Truth {
    let done = AtomicBool::new(false);
    let started = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            started.store(true, Ordering::Release);
            while !done.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
        });
        while !started.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let truth = measured(|| read_to_end(&direct(path)));
        done.store(true, Ordering::Release);
        truth
    })
}

/// Starts threads that wait for time, for each other and for a pipe, but never for I/O.
fn sleeping() -> Truth {
    let begun = Instant::now();
    let (mut reader, mut writer) = std::io::pipe().expect("pipes exist");
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| std::thread::sleep(SLEEP));
        }
        scope.spawn(move || {
            let mut byte = [0];
            reader.read_exact(&mut byte).expect("it comes");
        });
        scope.spawn(move || {
            std::thread::sleep(SLEEP);
            writer.write_all(&[1]).expect("somebody reads");
        });
    });
    Truth { waited_ns: 0, passed_ns: begun.elapsed().as_nanos() as u64 }
}

/// Runs two processes, one after the other, that do `read` and write their own records.
fn children() -> Truth {
    for _ in 0..2 {
        let own = std::env::current_exe().expect("it runs");
        let status = Command::new(own)
            .args(["--exact", "workload", "--ignored"])
            .env(WHAT, "read")
            .status()
            .expect("it starts");
        assert!(status.success());
    }
    Truth::default()
}

/// Returns the time that the threads of a process ran and were runnable, added up.
pub fn scheduled_of(process: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("it is there").flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .flat_map(|text| {
            let numbers: Vec<u64> =
                text.split_whitespace().take(2).filter_map(|number| number.parse().ok()).collect();
            numbers
        })
        .sum()
}

/// Runs `work`, and counts all time in which any thread ran or was runnable as no wait: the wait is at least
/// the rest of the time.
pub fn whole_process(work: impl FnOnce()) -> Truth {
    let all = || scheduled_of(std::process::id());
    let before = all();
    let begun = Instant::now();
    work();
    let passed_ns = begun.elapsed().as_nanos() as u64;
    Truth { waited_ns: passed_ns.saturating_sub(all() - before), passed_ns }
}

fn with_tokio(path: &Path) -> Truth {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("it starts");
    forget(&File::open(path).expect("it exists"));
    whole_process(|| {
        let bytes = runtime.block_on(tokio::fs::read(path)).expect("it can be read");
        assert!(!bytes.is_empty());
    })
}

/// Reads in one thread while the other sleeps in a futex until the first ends.
fn beside_a_futex(path: &Path) -> Truth {
    std::thread::scope(|scope| scope.spawn(|| read_alone(path)).join().expect("it worked"))
}

/// Reads the whole file by tasks on a runtime whose workers have rings of their own, and sleep in epoll and in futexes.
fn with_worker_rings(path: &Path) -> Truth {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_io().build();
    let runtime = runtime.expect("it starts");
    let engine = forebay::Engine::start(forebay::Config::new()).expect("it starts");
    let bytes = fs::metadata(path).expect("it exists").len();
    let path = path.to_owned();
    let truth = runtime.block_on(async {
        let file = engine.open(&path, forebay::Open::read()).await.expect("it opens");
        let reading = tokio::spawn(async move {
            let all = || scheduled_of(std::process::id());
            let (before, begun) = (all(), Instant::now());
            for place in (0..bytes).step_by(BLOCK) {
                let block = file.read(place..place + BLOCK as u64).await.expect("it can be read");
                assert_eq!(block.len(), BLOCK);
            }
            let passed_ns = begun.elapsed().as_nanos() as u64;
            Truth { waited_ns: passed_ns.saturating_sub(all() - before), passed_ns }
        });
        reading.await.expect("it worked")
    });
    engine.close().wait().expect("it ends");
    truth
}

/// Reads the whole file with this many threads, block after block, by one engine: this many operations are in its
/// rings.
fn with_forebay(path: &Path, readers: usize) -> Truth {
    let engine = forebay::Engine::start(forebay::Config::new()).expect("it starts");
    let file = engine.open(path, forebay::Open::read()).wait().expect("it opens");
    let bytes = fs::metadata(path).expect("it exists").len();
    let read = || {
        for place in (0..bytes).step_by(BLOCK) {
            let block = file.read(place..place + BLOCK as u64).wait().expect("it can be read");
            assert_eq!(block.len(), BLOCK);
        }
    };
    let truth = whole_process(|| {
        std::thread::scope(|scope| {
            for _ in 1..readers {
                scope.spawn(read);
            }
            read();
        });
    });
    engine.close().wait().expect("it ends");
    truth
}
