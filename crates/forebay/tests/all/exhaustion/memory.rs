//! Out of memory, of each kind: locked, the arena's, the address space's, the control group's.

use std::future::IntoFuture as _;
use std::path::{Path, PathBuf};

use forebay::{Class, Config, DriverChoice, Durability, Engine, ErrorKind, File, Open};
use forebay_test::children::{limits, set_limit};
use futures::future::join_all;

use super::child::{given, is_child, is_root, of_group, scene, scene_of};
use super::scenery::{Holdings, close, everything_works, names, tells};
use crate::common::{bytes_of, config, dir};

const KIB: u64 = 1024;
const MIB: u64 = 1 << 20;

/// Checks an engine under a limit of locked memory: registered memory counts against RLIMIT_MEMLOCK, and on
/// some kernels the rings do as well.
fn with_locked_memory(bytes: libc::rlim_t) {
    let (enough, dir) = (limits(libc::RLIMIT_MEMLOCK).1, dir());
    become_another_user(dir.path());
    let before = Holdings::now();
    set_limit(libc::RLIMIT_MEMLOCK, bytes);
    let engine = Engine::start(config()).unwrap();
    everything_works(&engine, dir.path());
    if !is_threads() {
        tells(&engine, &["registered buffers", "io_uring"], "RLIMIT_MEMLOCK");
    }
    close(engine);
    // An io_uring engine that is requested by name works, or the error names the limit to raise.
    match Engine::start(config().driver(DriverChoice::Uring)) {
        Ok(engine) => {
            everything_works(&engine, dir.path());
            close(engine);
        }
        Err(error) => names(&error, &["start", "io_uring", "RLIMIT_MEMLOCK"]),
    }
    before.is_all_again();
    if enough < 4 << 20 {
        return println!("skipped: more than {enough} bytes of locked memory are not to be had here");
    }
    set_limit(libc::RLIMIT_MEMLOCK, enough);
    let engine = Engine::start(config().arena_bytes(MIB as usize).arena_bytes_max(MIB as usize)).unwrap();
    everything_works(&engine, dir.path());
    let told = engine.health().degraded;
    assert!(!told.iter().any(|known| known.remedy.contains("RLIMIT_MEMLOCK")), "{told:?}");
    close(engine);
}

#[test]
fn locked_memory_of_64_kib() {
    scene("memory::locked_memory_of_64_kib", || with_locked_memory(64 << 10));
}

#[test]
fn locked_memory_of_nothing() {
    scene("memory::locked_memory_of_nothing", || with_locked_memory(0));
}

/// Regression: a user whose locked memory is limited could open a session of `forebay-kernel` before the
/// engine's first read and never after it, with ENOMEM. The engine had registered its 8 MiB, which left
/// nothing, and health did not mention it. So half of a limit stays free, and health reports the part that is
/// not registered for that reason.
#[test]
fn half_of_the_locked_memory_is_left_for_other_rings() {
    scene("memory::half_of_the_locked_memory_is_left_for_other_rings", || {
        // Where rings count as well they fit in addition to the 8 MiB.
        const LIMIT: u64 = 9 << 20;
        if is_threads() {
            return println!("skipped: the threads driver registers nothing");
        }
        let dir = dir();
        become_another_user(dir.path());
        set_limit(libc::RLIMIT_MEMLOCK, LIMIT);
        if limits(libc::RLIMIT_MEMLOCK).0 != LIMIT {
            return println!("skipped: 9 MiB of locked memory are not to be had here");
        }
        let engine = Engine::start(config().driver(DriverChoice::Uring)).unwrap();
        everything_works(&engine, dir.path());
        // A quarter of the limit, as a session of walks may use it.
        let mut memory = vec![1_u8; 2 << 20];
        let other = io_uring::IoUring::new(8).unwrap();
        let buffer = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        // SAFETY: the memory outlives the ring, which has nothing in flight.
        let registered = unsafe { other.submitter().register_buffers(&[buffer]) };
        registered.unwrap_or_else(|error| panic!("{error}; {:?}", engine.health().degraded));
        // 4 MiB of the 8 are registered, and health reports the others.
        tells(&engine, &["registered buffers"], "RLIMIT_MEMLOCK");
        let told = engine.health().degraded;
        let told = told.iter().find(|known| known.what == "registered buffers").unwrap();
        assert!(told.why.contains("4194304 of 4718592 bytes are registered"), "{told}");
        drop(other);
        close(engine);
        // The share is free again: an engine that fits into it is not degraded.
        let engine = Engine::start(config().arena_bytes(MIB as usize).arena_bytes_max(MIB as usize)).unwrap();
        everything_works(&engine, dir.path());
        let told = engine.health().degraded;
        assert!(!told.iter().any(|known| known.remedy.contains("RLIMIT_MEMLOCK")), "{told:?}");
        close(engine);
    });
}

fn is_threads() -> bool {
    format!("{:?}", config()) == format!("{:?}", config().driver(DriverChoice::Threads))
}

/// Makes this process, if it is root, run as a user without other processes: locked memory is counted for a
/// user, and other tests run. `dir` becomes that user's.
fn become_another_user(dir: &Path) {
    if is_root() {
        let user = 1_500_000_000 + std::process::id();
        std::os::unix::fs::chown(dir, Some(user), Some(user)).unwrap();
        // SAFETY: a system call with plain numbers; libc changes all threads.
        let changed = unsafe { libc::setresuid(user, user, user) };
        assert_eq!(changed, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Returns the settings of an engine with 4 MiB of I/O memory and not a byte more.
fn tight() -> Config {
    config().shards(1).arena_bytes(4 << 20).arena_bytes_max(4 << 20).overflow_bytes_max(0)
}

#[test]
fn the_program_holds_every_block() {
    scene("memory::the_program_holds_every_block", || {
        let (engine, dir) = (Engine::start(tight()).unwrap(), dir());
        let file = engine.open(dir.path().join("file"), Open::create_new()).wait().unwrap();
        file.write(0, bytes_of(0..MIB)).wait().unwrap();
        let mut held = Vec::new();
        let error = loop {
            match engine.block_from(&bytes_of(0..64 * KIB)) {
                Ok(block) => held.push(block),
                Err(error) => break error,
            }
            assert!(held.len() <= 64, "4 MiB have room for 64 of them");
        };
        assert_eq!(error.kind(), ErrorKind::ArenaExhausted { held: 4 << 20 });
        names(&error, &["block", "4194304 bytes", "drop blocks", "Config::arena_bytes_max"]);
        // Every operation that needs memory fails with that error, and names the file.
        let path = file.path().to_str().unwrap();
        for error in [
            file.read(0..100).wait().unwrap_err(),
            file.read_many(std::iter::once(0..100))
                .wait()
                .map_or_else(|error| error, |blocks| blocks.into_iter().next().unwrap().unwrap_err()),
            file.scan().start().next().wait().transpose().unwrap_err(),
            file.write(MIB, &[1u8; 4096]).wait().unwrap_err(),
            file.append().at(MIB).start().write(b"x").wait().unwrap_err(),
        ] {
            assert!(matches!(error.kind(), ErrorKind::ArenaExhausted { .. }), "{error}");
            names(&error, &["live blocks hold", "drop blocks"]);
            names(&error, &[path]);
        }
        // Operations that need no memory work, and blocks in the program's hands can be written.
        file.sync(Durability::Data).wait().unwrap();
        file.write(MIB, held.pop().unwrap()).wait().unwrap();
        assert_eq!(&file.read(MIB + 10..MIB + 100).wait().unwrap()[..], &bytes_of(10..100)[..]);
        drop(held);
        assert_eq!(&file.read(100..MIB).wait().unwrap()[..], &bytes_of(100..MIB)[..]);
        everything_works(&engine, dir.path());
        assert_eq!(engine.memory().held_bytes, 0);
        drop(file);
        close(engine);
    });
}

/// Memory of writes is released without the program's help, so reads wait for it.
///
/// Regression: while a durable write was being synced, its memory did not count as about to be released, and
/// reads that could have waited for it failed with `ArenaExhausted`.
#[test]
fn reads_wait_for_memory_that_comes_back() {
    scene("memory::reads_wait_for_memory_that_comes_back", || {
        let (engine, dir) = (Engine::start(tight()).unwrap(), dir());
        let file = engine.open(dir.path().join("file"), Open::create_new()).wait().unwrap();
        file.write(0, bytes_of(0..MIB)).wait().unwrap();
        // On the shard: elsewhere a write's memory is released only once its future is polled, so by the
        // program.
        let (inner, shared) = (engine.clone(), file.clone());
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            for durability in [Durability::None, Durability::Data, Durability::All] {
                for round in 0..20 {
                    writes_and_reads(&inner, &shared, durability, round).await;
                }
            }
        });
        task.wait().unwrap();
        assert!(engine.stats().wait().unwrap().shards[0].memory_waits > 0, "nobody had to wait");
        assert_eq!(engine.memory().held_bytes, 0);
        drop(file);
        close(engine);
    });
}

/// Runs writes that use all the memory, and reads at the same time.
async fn writes_and_reads(engine: &Engine, file: &File, durability: Durability, round: u64) {
    let mut writes = Vec::new();
    while let Ok(block) = engine.block_from(&bytes_of(0..512 * KIB)) {
        let offset = MIB + writes.len() as u64 * 512 * KIB;
        writes.push(file.write(offset, block).durable(durability).into_future());
    }
    assert!(writes.len() >= 4, "{:?}", engine.memory());
    let reads = (0..64u64).map(|n| async move {
        let start = (n * 8191 + round) % (MIB - 5000);
        // One read after the other: some coincide with the sync of a write.
        for more in 0..4 {
            let range = start + more..start + more + 3000;
            let block = file.read(range.clone()).await.unwrap();
            assert!(block[..] == bytes_of(range)[..]);
        }
    });
    let (written, _) = futures::future::join(join_all(writes), join_all(reads)).await;
    written.into_iter().for_each(|written| written.unwrap());
}

/// The system gives no more memory: the arena stays as it is, and the error reports that this is not the
/// arena's limit.
#[test]
fn the_arena_cannot_grow() {
    scene("memory::the_arena_cannot_grow", || {
        let config = || config().arena_bytes(8 << 20).arena_bytes_max(256 << 20).overflow_bytes_max(8 << 20);
        let (engine, dir) = (Engine::start(config()).unwrap(), dir());
        everything_works(&engine, dir.path());
        let file = engine.open(dir.path().join("file"), Open::create_new()).wait().unwrap();
        file.write(0, bytes_of(0..MIB)).wait().unwrap();
        let before = Holdings::now();
        let (unlimited, _) = limits(libc::RLIMIT_AS);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let now_kib = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let now_kib: u64 = now_kib.trim().trim_end_matches(" kB").parse().unwrap();
        // Less than the arena's next step, which is 8 MiB.
        set_limit(libc::RLIMIT_AS, now_kib * KIB + 6 * MIB);
        let mut held = Vec::new();
        let error = loop {
            match file.read(0..MIB).wait() {
                Ok(block) => held.push(block),
                Err(error) => break error,
            }
            assert!(held.len() < 64, "{:?}", engine.memory());
        };
        let refused = Engine::start(config()).map(drop);
        set_limit(libc::RLIMIT_AS, unlimited);
        assert!(matches!(error.kind(), ErrorKind::ArenaExhausted { .. }), "{error}");
        names(&error, &["read", file.path().to_str().unwrap(), "live blocks hold"]);
        tells(&engine, &["I/O memory"], "ulimit -v");
        let refused = refused.unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOMEM));
        names(&refused, &["start", "I/O memory", "8388608 bytes", "ulimit -v", "Config::arena_bytes"]);
        for block in &held {
            assert!(block[..] == bytes_of(0..MIB)[..]);
        }
        // Now it can grow.
        for _ in 0..64 {
            held.push(file.read(0..MIB).wait().unwrap());
        }
        assert!(engine.memory().arena_bytes > 8 << 20);
        drop(held);
        before.is_all_again();
        drop(file);
        close(engine);
    });
}

/// A control group for memory, removed with this value.
struct Group(PathBuf);

impl Group {
    /// Makes a child of this process's group with that limit. The error is the reason for a failure.
    fn make(bytes: u64) -> Result<Group, String> {
        let own = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let name = format!("forebay-test-{}-{bytes}", std::process::id());
        let mut why = "no group for memory here".to_string();
        for line in own.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, group) = (fields.next().unwrap_or(""), fields.next().unwrap_or("/"));
            let (root, file) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
                }
                _ => continue,
            };
            let group = Group(Path::new(root).join(group.trim_start_matches('/')).join(&name));
            let made = std::fs::create_dir(&group.0)
                .and_then(|()| std::fs::write(group.0.join(file), bytes.to_string()));
            match made {
                Ok(()) => return Ok(group),
                Err(error) => why = format!("{}: {error}", group.0.display()),
            }
        }
        Err(why)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel frees the memory charged to the group a moment after its last process.
        while let Err(error) = std::fs::remove_dir(&self.0)
            && error.kind() == std::io::ErrorKind::ResourceBusy
        {
            std::thread::yield_now();
        }
    }
}

const GROUP_BYTES: u64 = 128 << 20;

#[test]
fn a_control_group_of_128_mib() {
    const NAME: &str = "memory::a_control_group_of_128_mib";
    if is_child(NAME) {
        return scene_of(NAME).play(|| {
            let dir = given("FOREBAY_EXHAUSTION_DIR");
            let engine = Engine::start(config()).unwrap();
            let memory = engine.memory();
            assert!(memory.arena_bytes_max <= GROUP_BYTES / 4, "{memory:?}");
            everything_works(&engine, &dir);
            // A file larger than the group may have in memory.
            let (path, len) = (dir.join("large"), 2 * GROUP_BYTES);
            let file = engine.open(&path, Open::create_new()).wait().unwrap();
            let mut append = file.append().start();
            for n in 0..len / MIB {
                append.write(&bytes_of(n * MIB..(n + 1) * MIB)).wait().unwrap();
            }
            append.close().wait().unwrap();
            drop(file);
            for open in [Open::read(), Open::read().buffered(), Open::read().uncached()] {
                let file = engine.open(&path, open).wait().unwrap();
                let mut scan = file.scan().start();
                let mut at = 0;
                while let Some(block) = scan.next().wait().transpose().unwrap() {
                    // The rest of each page is compared in the scan's own tests.
                    let end = at + block.len() as u64;
                    assert!(block[..100] == bytes_of(at..at + 100)[..], "at {at}");
                    assert!(block[block.len() - 100..] == bytes_of(end - 100..end)[..], "before {end}");
                    at = end;
                }
                assert_eq!(at, len);
            }
            // All blocks that the arena may have, all held: still an error and not the kernel's out-of-memory
            // killer.
            let mut held = Vec::new();
            while let Ok(block) = engine.block(1 << 20) {
                held.push(block);
            }
            assert!(engine.memory().arena_bytes <= GROUP_BYTES / 4);
            drop(held);
            everything_works(&engine, &dir);
            close(engine);
        });
    }
    play_in_group(NAME, GROUP_BYTES);
}

/// Plays a scene in a control group with that limit.
fn play_in_group(name: &str, bytes: u64) {
    let group = match Group::make(bytes) {
        Ok(group) => group,
        Err(why) if is_root() => return println!("skipped: no control group can be made: {why}"),
        Err(_) => return println!("skipped: a control group needs root"),
    };
    let dir = dir();
    let scene = scene_of(name).give("FOREBAY_EXHAUSTION_DIR", dir.path());
    scene.without(vec![of_group(&group.0)]).play(|| ());
}

/// Regression: eight threads that read 33 MiB each waited for ever in a container of 160 MiB, whose engine has 40 MiB of I/O
/// memory. The reads share the container's memory: one after the other, with memory of their length.
#[test]
fn threads_read_33_mib_in_a_control_group_of_160_mib() {
    const NAME: &str = "memory::threads_read_33_mib_in_a_control_group_of_160_mib";
    const LEN: u64 = 33 * MIB;
    if !is_child(NAME) {
        return play_in_group(NAME, 160 << 20);
    }
    scene_of(NAME).play(|| {
        let engine = Engine::start(config()).unwrap();
        assert_eq!(engine.memory().arena_bytes_max, 40 << 20);
        let path = given("FOREBAY_EXHAUSTION_DIR").join("file");
        let file = engine.open(&path, Open::create_new()).wait().unwrap();
        let mut append = file.append().start();
        (0..48).for_each(|n| append.write(&bytes_of(n * MIB..(n + 1) * MIB)).wait().unwrap());
        append.close().wait().unwrap();
        let read = |number: u64| match file.read(number * 4096..number * 4096 + LEN).wait() {
            Ok(block) => {
                let (first, last) = (number * 4096, number * 4096 + LEN);
                assert_eq!(block.len() as u64, LEN);
                assert!(block[..4096] == bytes_of(first..first + 4096)[..]);
                assert!(block[block.len() - 4096..] == bytes_of(last - 4096..last)[..]);
                true
            }
            // Threads that do not drop their blocks for a while hold half of the group's memory.
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::ArenaExhausted { held } if held >= 80 << 20),
                    "{error}"
                );
                false
            }
        };
        let read_all = || (0..6).filter(|number| read(*number)).count();
        let whole: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(read_all)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(whole >= 8, "{whole} reads of 48 got their bytes");
        drop(file);
        close(engine);
    });
}
