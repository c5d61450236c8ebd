//! Tests through the same calls that a shard makes.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::ptr::NonNull;
use std::time::Instant;

use super::*;
use crate::driver::{Driver, Route};
use crate::io::op::Flush;

/// Longer than any test, so that a hang fails and shows its place.
const HANGS: Duration = Duration::from_secs(60);
const PAGE: usize = 4096;
const PAGES: usize = 16;

/// A page that direct I/O may use.
#[repr(align(4096))]
struct Page([u8; PAGE]);

/// A file whose pages each hold their number, opened directly.
struct Bench {
    file: File,
    named: tempfile::NamedTempFile,
}

fn bench() -> Bench {
    let program = std::env::current_exe().unwrap();
    // Next to the build, as `/tmp` is often memory.
    let mut named = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
    named.write_all(&(0..PAGES).flat_map(|number| [number as u8; PAGE]).collect::<Vec<_>>()).unwrap();
    named.as_file().sync_all().unwrap();
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_DIRECT).open(named.path()).unwrap();
    Bench { file, named }
}

/// A driver; `None` where the kernel refuses native AIO.
fn driver(depth: u32) -> Option<Driver> {
    AioDriver::for_visitors(depth).ok().map(Driver::Aio)
}

fn inside(driver: &mut Driver) -> &mut AioDriver {
    match driver {
        Driver::Aio(driver) => driver,
        _ => panic!("these tests make drivers of AIO only"),
    }
}

/// A driver with the file as its entry 0.
fn driver_with(bench: &Bench) -> Option<Driver> {
    let mut driver = driver(64)?;
    assert!(driver.register_file(0, bench.file.as_raw_fd(), Route::Ordinary).fixed);
    Some(driver)
}

fn request(index: u32, kind: OpKind, bench: &Bench, memory: &mut [u8], offset: u64) -> IoRequest {
    IoRequest {
        key: OpKey { index, generation: 1 },
        kind,
        fd: bench.file.as_raw_fd(),
        fixed_file: Some(0),
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

fn submit(driver: &mut Driver, request: &IoRequest) -> bool {
    // SAFETY: every test keeps memory and file until it has seen the completion, or passes the kernel no request.
    unsafe { driver.submit(request) }.unwrap()
}

fn complete(driver: &mut Driver, wait: Wait) -> Vec<(u32, i32)> {
    let mut seen = Vec::new();
    driver.complete(wait, |key, result| seen.push((key.index, result))).unwrap();
    seen
}

/// Waits until `count` completions were reported, and sorts them.
fn finish(driver: &mut Driver, count: usize) -> Vec<(u32, i32)> {
    let mut seen = Vec::new();
    let began = Instant::now();
    while seen.len() < count {
        assert!(began.elapsed() < HANGS, "{} of {count} completions came", seen.len());
        let missing = (count - seen.len()) as u32;
        let wait = Wait::For { completions: missing, patience: None, limit: Some(HANGS), in_flight: missing };
        seen.extend(complete(driver, wait));
    }
    seen.sort_unstable();
    seen
}

/// Reads all pages concurrently and checks their bytes. Returns how many threads were asked for.
fn read_all(driver: &mut Driver, bench: &Bench) -> u64 {
    let before = inside(driver).threads.enters();
    let mut pages: Vec<_> = (0..PAGES).map(|_| Box::new(Page([0xff; PAGE]))).collect();
    for (number, page) in pages.iter_mut().enumerate() {
        let offset = (number * PAGE) as u64;
        submit(driver, &request(number as u32, OpKind::Read, bench, &mut page.0, offset));
    }
    let expected: Vec<_> = (0..PAGES as u32).map(|number| (number, PAGE as i32)).collect();
    assert_eq!(finish(driver, PAGES), expected);
    for (number, page) in pages.iter().enumerate() {
        assert_eq!(page.0, [number as u8; PAGE]);
    }
    assert_eq!(inside(driver).flights.len(), 0);
    inside(driver).threads.enters() - before
}

/// Whether this file system serves direct reads without waiting. It is asked by another way than the driver's.
fn serves_nowait(bench: &Bench) -> bool {
    let mut page = Box::new(Page([0; PAGE]));
    let vector = libc::iovec { iov_base: page.0.as_mut_ptr().cast(), iov_len: PAGE };
    // SAFETY: one vector over a page that outlives the call; the flag is RWF_NOWAIT.
    unsafe { libc::preadv2(bench.file.as_raw_fd(), &raw const vector, 1, 0, 8) == PAGE as isize }
}

#[test]
fn direct_reads_and_overwrites_go_to_the_kernel() {
    let bench = bench();
    for knows_ring in [true, false] {
        let Some(mut driver) = driver_with(&bench) else { return };
        let context = inside(&mut driver).context.as_mut().unwrap();
        assert!(context.has_ring(), "this kernel's layout is known");
        if !knows_ring {
            context.forget_ring();
        }
        for _ in 0..100 {
            read_all(&mut driver, &bench);
        }
        // The kernel may refuse any of them, as where the device accepts no more at the moment.
        while read_all(&mut driver, &bench) > 0 && serves_nowait(&bench) {}
        // Overwrites: some may need threads, to set the file's time.
        let mut page = Box::new(Page([3; PAGE]));
        let mut overwrite = || {
            let before = inside(&mut driver).threads.enters();
            submit(&mut driver, &request(7, OpKind::Write, &bench, &mut page.0, 3 * PAGE as u64));
            assert_eq!(finish(&mut driver, 1), [(7, PAGE as i32)]);
            inside(&mut driver).threads.enters() - before
        };
        while overwrite() > 0 && serves_nowait(&bench) {}
        read_all(&mut driver, &bench);
    }
}

/// The ring of a context has a few hundred entries: it is passed many times.
#[test]
fn completions_are_found_when_the_ring_has_wrapped() {
    let bench = bench();
    let Some(mut driver) = driver_with(&bench) else { return };
    for _ in 0..200 {
        read_all(&mut driver, &bench);
    }
}

#[test]
fn everything_else_goes_to_threads() {
    let bench = bench();
    let Some(mut driver) = driver_with(&bench) else { return };
    let mut page = Box::new(Page([9; PAGE]));
    let mut odd = vec![0; 100];
    let end = (PAGES * PAGE) as u64;
    let write = request(1, OpKind::Write, &bench, &mut page.0, end);
    let unknown = IoRequest { fixed_file: None, ..request(5, OpKind::Read, &bench, &mut page.0, 0) };
    let durable =
        IoRequest { sync: Some(OpKind::SyncData), ..request(3, OpKind::Write, &bench, &mut page.0, end) };
    let cases = [
        (write, false, PAGE as i32),
        (request(2, OpKind::SyncData, &bench, &mut [], 0), false, 0),
        (durable, true, 0),
        (request(4, OpKind::Read, &bench, &mut odd, 0), false, -libc::EINVAL),
        (unknown, false, PAGE as i32),
    ];
    for (request, takes_sync, result) in cases {
        let before = inside(&mut driver).threads.enters();
        assert_eq!(submit(&mut driver, &request), takes_sync, "{request:?}");
        assert_eq!(inside(&mut driver).flights.len(), 0, "{request:?}");
        let found = finish(&mut driver, 1)[0].1;
        // Some file systems make reads that are not aligned through the page cache.
        assert!(found == result || (found > 0 && request.key.index == 4), "{found} of {request:?}");
        assert!(inside(&mut driver).threads.enters() > before, "{request:?}");
    }
    submit(&mut driver, &request(6, OpKind::Nop, &bench, &mut [], 0));
    assert_eq!(complete(&mut driver, Wait::Poll), [(6, 0)]);
}

/// A file that is not opened for direct I/O.
#[test]
fn buffered_files_go_to_threads() {
    let mut bench = bench();
    bench.file = bench.named.reopen().unwrap();
    let Some(mut driver) = driver_with(&bench) else { return };
    assert!(read_all(&mut driver, &bench) > 0);
}

/// Bytes that lie in the page cache only must be written before a direct read: io_submit(2) would wait for that.
#[test]
fn what_the_kernel_would_wait_for_goes_to_threads() {
    let bench = bench();
    let Some(mut driver) = driver_with(&bench) else { return };
    // The kernel writes dirty pages at times of its choice, and a kernel that accepts all of many reads does not wait for pages.
    let (mut turn, mut served) = (0u8, 0);
    while served < 20 {
        turn = turn.wrapping_add(1);
        bench.named.as_file().write_all_at(&[turn; PAGE], 5 * PAGE as u64).unwrap();
        let is_refused = !serves_nowait_at(&bench, 5);
        served = if is_refused { 0 } else { served + 1 };
        let mut page = Box::new(Page([0xff; PAGE]));
        let before = inside(&mut driver).threads.enters();
        submit(&mut driver, &request(1, OpKind::Read, &bench, &mut page.0, 5 * PAGE as u64));
        assert_eq!(inside(&mut driver).flights.len(), 1, "it is tried");
        assert_eq!(finish(&mut driver, 1), [(1, PAGE as i32)]);
        assert_eq!(page.0, [turn; PAGE]);
        if is_refused && inside(&mut driver).threads.enters() > before {
            return;
        }
    }
}

fn serves_nowait_at(bench: &Bench, number: i64) -> bool {
    let mut page = Box::new(Page([0; PAGE]));
    let vector = libc::iovec { iov_base: page.0.as_mut_ptr().cast(), iov_len: PAGE };
    // SAFETY: one vector over a page that outlives the call; the flag is RWF_NOWAIT.
    let read =
        unsafe { libc::preadv2(bench.file.as_raw_fd(), &raw const vector, 1, number * PAGE as i64, 8) };
    read == PAGE as isize
}

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// Counts the calls of a function that replaces io_submit(2), on this thread.
fn count_call() -> usize {
    CALLS.replace(CALLS.get() + 1)
}

#[test]
fn the_kernel_may_take_a_part_of_what_is_submitted() {
    unsafe fn few(context: &Context, blocks: &[*mut ControlBlock]) -> io::Result<usize> {
        count_call();
        // SAFETY: the caller's promise is passed on for fewer blocks.
        unsafe { context.submit(&blocks[..blocks.len().min(3)]) }
    }
    let bench = bench();
    let Some(mut driver) = driver_with(&bench) else { return };
    inside(&mut driver).submit = few;
    loop {
        CALLS.set(0);
        let threads = read_all(&mut driver, &bench);
        assert_eq!(CALLS.get(), PAGES.div_ceil(3));
        // The kernel may refuse a read for the moment.
        if threads == 0 || !serves_nowait(&bench) {
            return;
        }
    }
}

#[test]
fn what_the_kernel_does_not_take_goes_to_threads() {
    /// Accepts five, and is full then.
    unsafe fn no_room(context: &Context, blocks: &[*mut ControlBlock]) -> io::Result<usize> {
        if count_call() > 0 {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        // SAFETY: the caller's promise is passed on for fewer blocks.
        unsafe { context.submit(&blocks[..5]) }
    }
    let bench = bench();
    let Some(mut driver) = driver_with(&bench) else { return };
    inside(&mut driver).submit = no_room;
    CALLS.set(0);
    assert!(read_all(&mut driver, &bench) > 0);
    assert_eq!(CALLS.get(), 2, "the others are not offered again");
    assert!(inside(&mut driver).files.admits(&request(0, OpKind::Read, &bench, &mut Page([0; PAGE]).0, 0)));
}

#[test]
fn a_file_without_the_flag_is_not_tried_again() {
    unsafe fn unknown_flag(_: &Context, _: &[*mut ControlBlock]) -> io::Result<usize> {
        count_call();
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }
    let bench = bench();
    let Some(mut driver) = driver_with(&bench) else { return };
    inside(&mut driver).submit = unknown_flag;
    CALLS.set(0);
    assert!(read_all(&mut driver, &bench) > 0);
    assert_eq!(CALLS.get(), PAGES);
    assert!(read_all(&mut driver, &bench) > 0);
    assert_eq!(CALLS.get(), PAGES, "each request was tried again");
}

#[test]
fn a_system_without_room_for_a_context_is_told() {
    let limit = std::fs::read_to_string("/proc/sys/fs/aio-max-nr").unwrap();
    let limit: u32 = limit.trim().parse().unwrap();
    let (Some(_), Some(beyond)) = (driver(1), limit.checked_add(1)) else { return };
    let Err(refusal) = AioDriver::for_visitors(beyond) else {
        panic!("{beyond} requests are beyond {limit}")
    };
    let refused = refused(&refusal);
    assert_eq!(refused.what, "worker rings");
    assert!(refused.why.contains("io_setup"), "{refused}");
    assert!(refused.remedy.contains("fs.aio-max-nr") || beyond > 1 << 22, "{refused}");
}

/// A filter of system calls may allow a part of them.
#[test]
fn a_refusal_names_what_a_filter_must_allow() {
    let told = refused(&Refusal { call: "io_submit", error: io::Error::from_raw_os_error(libc::EPERM) });
    assert!(told.why.contains("io_submit") && told.remedy.contains("seccomp"), "{told}");
}

#[test]
fn a_driver_with_requests_in_flight_leaves_its_context() {
    /// The device never completes them, as far as the driver sees.
    unsafe fn swallow(_: &Context, blocks: &[*mut ControlBlock]) -> io::Result<usize> {
        Ok(blocks.len())
    }
    let bench = bench();
    let Some(mut driver) = driver_with(&bench) else { return };
    let id = inside(&mut driver).context.as_ref().unwrap().id();
    inside(&mut driver).submit = swallow;
    let mut page = Box::new(Page([0; PAGE]));
    submit(&mut driver, &request(1, OpKind::Read, &bench, &mut page.0, 0));
    assert_eq!(complete(&mut driver, Wait::Poll), []);
    let before = context::ENDED.get();
    drop(driver);
    assert_eq!(context::ENDED.get(), before, "its end would have waited for the device");
    assert!(context::exists(id));
    // SAFETY: the kernel has no request of it, and its ring is not read.
    unsafe { libc::syscall(libc::SYS_io_destroy, id) };
}

#[test]
fn a_drained_driver_ends_its_context_and_waits_for_nothing() {
    let bench = bench();
    let Some(mut driver) = driver_with(&bench) else { return };
    read_all(&mut driver, &bench);
    // Staged, and so not the kernel's.
    submit(&mut driver, &request(1, OpKind::Read, &bench, &mut Page([0; PAGE]).0, 0));
    let id = inside(&mut driver).context.as_ref().unwrap().id();
    let before = context::ENDED.get();
    drop(driver);
    assert_eq!(context::ENDED.get(), before + 1);
    let began = Instant::now();
    while context::exists(id) {
        assert!(began.elapsed() < HANGS, "the context stays");
        std::thread::yield_now();
    }
}

#[test]
fn a_wait_ends_with_a_completion_or_with_its_limit() {
    let bench = bench();
    let Some(mut driver) = driver_with(&bench) else { return };
    let wait = |limit| Wait::For { completions: 1, patience: None, limit: Some(limit), in_flight: 1 };
    let began = Instant::now();
    assert_eq!(complete(&mut driver, wait(Duration::from_millis(30))), []);
    assert!(began.elapsed() >= Duration::from_millis(30));
    // By the kernel and by a thread, after others whose signals were not read.
    read_all(&mut driver, &bench);
    let mut page = Box::new(Page([0; PAGE]));
    let sync = request(2, OpKind::SyncData, &bench, &mut [], 0);
    for request in [request(1, OpKind::Read, &bench, &mut page.0, 0), sync] {
        submit(&mut driver, &request);
        let began = Instant::now();
        assert_eq!(complete(&mut driver, wait(HANGS)), [(request.key.index, 0.max(request.len as i32))]);
        assert!(began.elapsed() < HANGS / 2);
        assert_eq!(complete(&mut driver, wait(Duration::from_millis(5))), [], "no completion is left");
    }
}

/// The poller of a runtime sees an edge for each completion, of either kind.
#[test]
fn each_completion_signals_the_descriptor() {
    let bench = bench();
    let Some(mut driver) = driver_with(&bench) else { return };
    let event = inside(&mut driver).descriptor().unwrap();
    let mut page = Box::new(Page([0; PAGE]));
    let sync = request(2, OpKind::SyncData, &bench, &mut [], 0);
    for request in [request(1, OpKind::Read, &bench, &mut page.0, 0), sync] {
        submit(&mut driver, &request);
        let mut seen = complete(&mut driver, Wait::Poll);
        let limit = Timespec::try_from(HANGS).unwrap();
        assert_eq!(poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&limit)).unwrap(), 1);
        rustix::io::read(&event, &mut [0u8; 8]).unwrap();
        seen.extend(complete(&mut driver, Wait::Poll));
        assert_eq!(seen.len(), 1, "the signal came with the completion");
    }
}

#[test]
fn only_what_is_not_under_way_is_cancelled() {
    let bench = bench();
    let Some(mut driver) = driver_with(&bench) else { return };
    let mut pages = [Box::new(Page([0; PAGE])), Box::new(Page([0; PAGE]))];
    let [one, other] = &mut pages;
    let staged = request(1, OpKind::Read, &bench, &mut one.0, 0);
    submit(&mut driver, &staged);
    submit(&mut driver, &request(2, OpKind::Read, &bench, &mut other.0, 0));
    driver.cancel(staged.key);
    assert_eq!(finish(&mut driver, 2), [(1, -libc::ECANCELED), (2, PAGE as i32)]);
    submit(&mut driver, &staged);
    let mut seen = complete(&mut driver, Wait::Poll);
    let is_refused = seen.is_empty() && inside(&mut driver).flights.len() == 0;
    driver.cancel(staged.key);
    if seen.is_empty() {
        seen = finish(&mut driver, 1);
    }
    // Where the kernel has refused it, it may wait for a thread.
    let is_cancelled = is_refused && seen == [(1, -libc::ECANCELED)];
    assert!(is_cancelled || seen == [(1, PAGE as i32)], "the kernel has it: {seen:?}");
}

/// A new file reuses the number of a removed entry.
#[test]
fn an_entry_is_of_the_file_that_was_added_last() {
    let bench = bench();
    let Some(mut driver) = driver_with(&bench) else { return };
    driver.unregister_file(0, 0);
    let read = request(1, OpKind::Read, &bench, &mut Page([0; PAGE]).0, 0);
    assert!(!inside(&mut driver).files.admits(&read));
    driver.register_file(0, bench.file.as_raw_fd(), Route::Ordinary);
    assert!(inside(&mut driver).files.admits(&read));
}

/// Appends are not asynchronous.
#[test]
fn only_writes_inside_of_the_file_go_to_the_kernel() {
    let bench = bench();
    let Some(mut driver) = driver_with(&bench) else { return };
    let files = &mut inside(&mut driver).files;
    let mut page = Box::new(Page([0; PAGE]));
    let inside_of_file = request(1, OpKind::Write, &bench, &mut page.0, ((PAGES - 1) * PAGE) as u64);
    assert!(files.admits(&inside_of_file));
    bench.file.set_len(PAGE as u64).unwrap();
    // The size that was seen is a hint: such a write is refused by the kernel's own check.
    assert!(files.admits(&inside_of_file));
    assert!(!files.admits(&request(1, OpKind::Write, &bench, &mut page.0, (PAGES * PAGE) as u64)));
    // The check of the file has found its end.
    assert!(!files.admits(&inside_of_file));
    bench.file.set_len((PAGES * PAGE) as u64).unwrap();
    assert!(files.admits(&inside_of_file), "the file has grown");
}
