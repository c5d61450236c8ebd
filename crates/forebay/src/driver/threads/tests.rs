//! Tests through the same calls that a shard makes.

mod waits;

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::*;
use crate::driver::Driver;
use crate::io::op::{Flush, OpKind};

/// Longer than any test, so that a hang fails and shows its place.
const HANGS: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);

fn key(index: u32) -> OpKey {
    OpKey { index, generation: 1 }
}

fn request(index: u32, kind: OpKind, fd: RawFd, memory: &mut [u8], offset: u64) -> IoRequest {
    IoRequest {
        key: key(index),
        kind,
        fd,
        fixed_file: None,
        memory: NonNull::new(memory.as_mut_ptr()),
        region: None,
        len: memory.len() as u32,
        offset,
        rw_flags: 0,
        route: 0,
        sync: None,
        flush: Flush::Queued,
    }
}

fn nop(index: u32) -> IoRequest {
    request(index, OpKind::Nop, -1, &mut [], 0)
}

fn driver(depth: u32) -> Driver {
    Driver::Threads(ThreadsDriver::new(depth).unwrap())
}

fn one_thread(depth: u32) -> Driver {
    Driver::Threads(ThreadsDriver::with_threads(depth, 1, workers::spawn))
}

fn inside(driver: &mut Driver) -> &mut ThreadsDriver {
    match driver {
        Driver::Threads(threads) => threads,
        #[allow(unreachable_patterns, reason = "other drivers exist on some systems only")]
        _ => panic!("these tests make drivers of threads only"),
    }
}

fn submit(driver: &mut Driver, request: &IoRequest) {
    // SAFETY: every test keeps memory and file until it has seen the completion or the end of the threads.
    unsafe { driver.submit(request) }.unwrap();
}

fn complete(driver: &mut Driver, wait: Wait) -> Vec<(u32, i32)> {
    let mut seen = Vec::new();
    // An error reports new degradations; the completions are still reported.
    let _ = driver.complete(wait, |key, result| seen.push((key.index, result)));
    seen.sort_unstable();
    seen
}

/// Waits until `count` completions were reported.
fn finish(driver: &mut Driver, count: usize) -> Vec<(u32, i32)> {
    let mut seen = Vec::new();
    let began = Instant::now();
    while seen.len() < count {
        assert!(began.elapsed() < HANGS, "{} of {count} completions came", seen.len());
        let missing = (count - seen.len()) as u32;
        seen.extend(complete(
            driver,
            Wait::For { completions: missing, patience: None, limit: Some(HANGS), in_flight: 0 },
        ));
    }
    seen.sort_unstable();
    seen
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < HANGS, "{what} did not come");
        std::thread::yield_now();
    }
}

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// Builds a read that hangs until the pipe has bytes. for preadv2(2) the offset -1 is the file's own position, and a flag makes the
/// driver use that call.
#[cfg(target_os = "linux")]
fn hanging(index: u32, pipe: &std::io::PipeReader, memory: &mut [u8]) -> IoRequest {
    let read = request(index, OpKind::Read, pipe.as_raw_fd(), memory, u64::MAX);
    IoRequest { rw_flags: libc::RWF_DSYNC, ..read }
}

#[test]
fn what_is_written_is_read_back_and_synced() {
    let mut driver = driver(32);
    let file = file_of(b"");
    let mut written: Vec<Vec<u8>> = (0..16u8).map(|at| vec![at + 1; 4096]).collect();
    for (at, bytes) in written.iter_mut().enumerate() {
        submit(&mut driver, &request(at as u32, OpKind::Write, file.as_raw_fd(), bytes, at as u64 * 4096));
    }
    assert_eq!(finish(&mut driver, 16), (0..16).map(|at| (at, 4096)).collect::<Vec<_>>());
    submit(&mut driver, &request(16, OpKind::SyncData, file.as_raw_fd(), &mut [], 0));
    submit(&mut driver, &request(17, OpKind::SyncAll, file.as_raw_fd(), &mut [], 0));
    submit(&mut driver, &nop(18));
    assert_eq!(finish(&mut driver, 3), [(16, 0), (17, 0), (18, 0)]);
    let mut read = vec![vec![0u8; 4096]; 16];
    for (at, bytes) in read.iter_mut().enumerate() {
        submit(&mut driver, &request(at as u32, OpKind::Read, file.as_raw_fd(), bytes, at as u64 * 4096));
    }
    assert_eq!(finish(&mut driver, 16).len(), 16);
    assert_eq!(read, written);
    assert!(driver.enters() > 0);
    assert!(driver.degradations().is_empty());
}

#[test]
fn the_end_of_the_file_is_a_short_read() {
    let mut driver = driver(4);
    let file = file_of(&[7; 100]);
    let (mut across, mut behind) = ([0; 64], [0; 64]);
    submit(&mut driver, &request(0, OpKind::Read, file.as_raw_fd(), &mut across, 80));
    submit(&mut driver, &request(1, OpKind::Read, file.as_raw_fd(), &mut behind, 200));
    assert_eq!(finish(&mut driver, 2), [(0, 20), (1, 0)]);
    assert_eq!((&across[..20], &across[20..]), (&[7; 20][..], &[0; 44][..]));
}

#[test]
fn errors_are_reported_as_the_kernel_tells_them() {
    let mut driver = driver(8);
    let file = file_of(b"x");
    let mut memory = [0; 8];
    for (index, kind) in
        [OpKind::Read, OpKind::Write, OpKind::SyncData, OpKind::SyncAll].into_iter().enumerate()
    {
        submit(&mut driver, &request(index as u32, kind, -1, &mut memory, 0));
        assert_eq!(finish(&mut driver, 1), [(index as u32, -libc::EBADF)]);
    }
    submit(&mut driver, &request(4, OpKind::Read, file.as_raw_fd(), &mut memory, u64::MAX));
    submit(&mut driver, &IoRequest { memory: None, ..nop(5) });
    let without_memory = request(6, OpKind::Read, file.as_raw_fd(), &mut [], 0);
    submit(&mut driver, &IoRequest { memory: None, ..without_memory });
    assert_eq!(finish(&mut driver, 3), [(4, -libc::EINVAL), (5, 0), (6, -libc::EFAULT)]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_refused_cache_flag_costs_nothing_but_the_flag() {
    const RWF_DONTCACHE: i32 = 0x80;
    let mut driver = driver(4);
    // tmpfs refuses the flag where the kernel supports it.
    let memory_file = tempfile::tempfile_in("/dev/shm").ok();
    for file in [Some(tempfile::tempfile().unwrap()), memory_file].into_iter().flatten() {
        let (mut written, mut read) = ([9u8; 8192], [0u8; 8192]);
        let write = request(0, OpKind::Write, file.as_raw_fd(), &mut written, 0);
        submit(&mut driver, &IoRequest { rw_flags: RWF_DONTCACHE, ..write });
        assert_eq!(finish(&mut driver, 1), [(0, 8192)]);
        let again = request(1, OpKind::Read, file.as_raw_fd(), &mut read, 0);
        submit(&mut driver, &IoRequest { rw_flags: RWF_DONTCACHE, ..again });
        assert_eq!(finish(&mut driver, 1), [(1, 8192)]);
        assert_eq!(read, written);
        let flags = RWF_DONTCACHE | libc::RWF_DSYNC;
        submit(&mut driver, &IoRequest { rw_flags: flags, ..write });
        assert_eq!(finish(&mut driver, 1), [(0, 8192)]);
        // An unknown flag is an error, not a silent plain read.
        submit(&mut driver, &IoRequest { rw_flags: 1 << 30, ..again });
        assert!(matches!(finish(&mut driver, 1)[..], [(1, result)] if result < 0));
    }
}

#[test]
fn never_more_than_the_depth() {
    let mut driver = driver(3);
    (0..3).for_each(|index| submit(&mut driver, &nop(index)));
    // SAFETY: a nop names no memory and no file.
    assert_eq!(unsafe { driver.submit(&nop(3)) }, Err(QueueFull));
    assert_eq!(finish(&mut driver, 3).len(), 3);
    submit(&mut driver, &nop(3));
    assert_eq!(finish(&mut driver, 1), [(3, 0)]);
}

#[test]
fn a_request_that_was_not_handed_over_is_cancelled_without_a_thread() {
    let mut driver = driver(4);
    submit(&mut driver, &nop(1));
    driver.cancel(key(1));
    driver.cancel(key(2));
    assert!(driver.has_completions());
    assert_eq!(complete(&mut driver, Wait::Poll), [(1, -libc::ECANCELED)]);
    assert!(!driver.has_completions());
    assert_eq!(inside(&mut driver).workers.counts().threads, 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_queued_request_is_cancelled_and_a_running_one_completes() {
    let mut driver = one_thread(4);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (mut first, mut second) = ([0; 4], [0; 4]);
    submit(&mut driver, &hanging(1, &reader, &mut first));
    submit(&mut driver, &hanging(2, &reader, &mut second));
    assert!(complete(&mut driver, Wait::Poll).is_empty());
    until("the first read's start", || inside(&mut driver).workers.counts().queued == 1);
    driver.cancel(key(2));
    driver.cancel(key(1));
    assert_eq!(finish(&mut driver, 1), [(2, -libc::ECANCELED)]);
    assert!(complete(&mut driver, Wait::Poll).is_empty());
    writer.write_all(b"abcd").unwrap();
    assert_eq!(finish(&mut driver, 1), [(1, 4)]);
    assert_eq!((&first, &second), (b"abcd", &[0; 4]));
}

#[test]
fn a_steady_flow_needs_no_further_memory() {
    let mut driver = driver(8);
    let rooms = |driver: &mut Driver| {
        let inside = inside(driver);
        (inside.buffered.capacity(), inside.taken.capacity(), inside.workers.counts().room)
    };
    let before = rooms(&mut driver);
    for _ in 0..500 {
        (0..8).for_each(|index| submit(&mut driver, &nop(index)));
        assert_eq!(finish(&mut driver, 8).len(), 8);
        assert_eq!(rooms(&mut driver), before);
    }
    assert!(inside(&mut driver).workers.counts().threads <= 8);
}

#[test]
fn no_thread_at_all_fails_the_requests_and_says_so_once() {
    let refuse: Spawn = |_| Err(io::Error::from_raw_os_error(libc::EAGAIN));
    let mut driver = Driver::Threads(ThreadsDriver::with_threads(4, 4, refuse));
    for _ in 0..2 {
        submit(&mut driver, &nop(1));
        submit(&mut driver, &nop(2));
        assert_eq!(finish(&mut driver, 2), [(1, -libc::EAGAIN), (2, -libc::EAGAIN)]);
    }
    let degraded = driver.degradations();
    assert_eq!(degraded.len(), 1);
    assert_eq!(degraded[0].what, "I/O threads");
    assert_eq!(inside(&mut driver).workers.counts().threads, 0);
}

#[test]
fn fewer_threads_than_wanted_still_serve_all() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static FIRST: AtomicBool = AtomicBool::new(true);
    let one_only: Spawn = |workers| {
        if FIRST.swap(false, Ordering::SeqCst) {
            workers::spawn(workers)
        } else {
            Err(io::Error::from_raw_os_error(libc::EAGAIN))
        }
    };
    let mut driver = Driver::Threads(ThreadsDriver::with_threads(32, 32, one_only));
    (0..32).for_each(|index| submit(&mut driver, &nop(index)));
    assert_eq!(finish(&mut driver, 32), (0..32).map(|index| (index, 0)).collect::<Vec<_>>());
    assert_eq!(inside(&mut driver).workers.counts().threads, 1);
}

#[cfg(target_os = "linux")]
#[test]
fn dropping_waits_for_nobody_and_touches_nothing_new() {
    let mut driver = one_thread(4);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (mut running, mut queued, mut buffered) = ([0; 4], [0; 4], [0; 4]);
    submit(&mut driver, &hanging(1, &reader, &mut running));
    submit(&mut driver, &hanging(2, &reader, &mut queued));
    assert!(complete(&mut driver, Wait::Poll).is_empty());
    until("the first read's start", || inside(&mut driver).workers.counts().queued == 1);
    submit(&mut driver, &hanging(3, &reader, &mut buffered));
    let threads = Arc::downgrade(&inside(&mut driver).workers);
    drop(driver);
    assert_eq!(threads.strong_count(), 1, "the thread hangs in its read");
    writer.write_all(b"abcdefghijkl").unwrap();
    until("the thread's end", || threads.strong_count() == 0);
    assert_eq!((&running, &queued, &buffered), (b"abcd", &[0; 4], &[0; 4]));
}

#[test]
fn threads_end_with_the_driver() {
    let mut driver = driver(8);
    (0..8).for_each(|index| submit(&mut driver, &nop(index)));
    assert_eq!(finish(&mut driver, 8).len(), 8);
    let threads = Arc::downgrade(&inside(&mut driver).workers);
    drop(driver);
    until("the threads' end", || threads.strong_count() == 0);
}

#[test]
fn a_busy_driver_loses_nothing() {
    let mut driver = driver(128);
    let file = file_of(&(0..=255u8).cycle().take(1 << 16).collect::<Vec<_>>());
    let mut memory = vec![[0u8; 16]; 128];
    let (mut begun, mut ended, mut flying) = (0u64, 0u64, [false; 128]);
    let offset_of = |count: u64| count * 4099 % ((1 << 16) - 16);
    let mut offsets = [0; 128];
    while ended < 20_000 {
        for index in 0..128 {
            if !flying[index] && begun < 20_000 {
                offsets[index] = offset_of(begun);
                let memory = &mut memory[index];
                submit(
                    &mut driver,
                    &request(index as u32, OpKind::Read, file.as_raw_fd(), memory, offsets[index]),
                );
                flying[index] = true;
                begun += 1;
            }
        }
        let wait = Wait::For {
            completions: 8,
            patience: Some(Duration::from_micros(50)),
            limit: Some(HANGS),
            in_flight: 0,
        };
        for (index, result) in complete(&mut driver, wait) {
            let index = index as usize;
            assert!(flying[index], "reported twice");
            assert_eq!(result, 16);
            assert!(memory[index].iter().zip(offsets[index]..).all(|(&byte, at)| byte == at as u8));
            flying[index] = false;
            ended += 1;
        }
    }
}
