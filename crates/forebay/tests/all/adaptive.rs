//! Shows: an adaptive file reads cached bytes from the page cache, and one pass leaves no page there; it stops trying on a cold
//! file and resumes on a warm file. How: real files with `O_DIRECT`, the counters, cachestat(2) for the cached pages, and known
//! bytes in every mix of cached and not cached pages. Whether a second pass loads depends on free memory: tests of the module
//! (`reactor/page_cache/loads/tests.rs`) set that.

use std::fs::File as StdFile;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{Numbers, bytes_of, config, dir, engine, write_file};
use forebay::{Block, Engine, ErrorKind, File, FileStats, Mode, Open, Result, Stats, Step, Walk};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Returns the number of a file's pages in the page cache: cachestat(2), call 451 on every common architecture.
fn pages(path: &Path, range: Range<u64>) -> u64 {
    let file = StdFile::open(path).unwrap();
    let (range, mut found) = ([range.start, range.end - range.start], [0_u64; 5]);
    // SAFETY: both arrays have the layout of the kernel's structures.
    let result = unsafe { libc::syscall(451, file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0) };
    assert_eq!(result, 0, "cachestat: {}", std::io::Error::last_os_error());
    found[0]
}

/// Drops a file from the page cache, all of it.
pub(crate) fn evict(path: &Path) {
    let file = StdFile::open(path).unwrap();
    file.sync_all().unwrap();
    let begun = Instant::now();
    loop {
        // SAFETY: advice on an open file.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        // A page that the kernel works on at this moment stays.
        match pages(path, 0..u64::MAX / 2) {
            0 => return,
            left => assert!(begun.elapsed() < Duration::from_secs(60), "{left} pages stay in the page cache"),
        }
        std::thread::yield_now();
    }
}

/// Pages that stay in the page cache: locked in a mapping of this process. The kernel may reclaim others at any time.
pub(crate) struct ResidentPages {
    start: *mut libc::c_void,
    len: usize,
}

impl Drop for ResidentPages {
    fn drop(&mut self) {
        // SAFETY: the mapping that `load` made; no reference into it exists.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// Loads pages without read-ahead, and keeps them in the page cache. `None`: this process may not lock as many.
pub(crate) fn load(path: &Path, numbers: impl IntoIterator<Item = u64>) -> Option<ResidentPages> {
    let file = StdFile::open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    // SAFETY: a new mapping of a file that keeps its length while it exists.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    let loaded = ResidentPages { start, len };
    // SAFETY: the mapping from above.
    assert_eq!(unsafe { libc::madvise(start, len, libc::MADV_RANDOM) }, 0);
    for page in numbers {
        let at = start.wrapping_byte_add((page * PAGE) as usize);
        // SAFETY: a page of that mapping.
        if unsafe { libc::mlock(at, PAGE as usize) } != 0 {
            println!("skipped: mlock: {}; raise RLIMIT_MEMLOCK (ulimit -l)", std::io::Error::last_os_error());
            return None;
        }
    }
    Some(loaded)
}

pub(crate) fn cold(dir: &Path, len: u64) -> PathBuf {
    let path = dir.join("data");
    write_file(&path, len);
    evict(&path);
    path
}

fn stats(engine: &Engine) -> Stats {
    engine.stats().wait().unwrap()
}

/// Returns hits, misses and skips so far.
pub(crate) fn choices(engine: &Engine) -> (u64, u64, u64) {
    let stats = stats(engine);
    (stats.page_cache_reads, stats.page_cache_misses, stats.page_cache_skips)
}

/// Returns the reads of devices so far.
fn device_reads(engine: &Engine) -> u64 {
    stats(engine).flows.iter().map(|flow| flow.reads).sum()
}

fn open(engine: &Engine, path: &Path) -> File {
    let file = engine.open(path, Open::read().adaptive()).wait().unwrap();
    assert_eq!(file.mode(), Mode::Adaptive);
    file
}

#[track_caller]
fn check(range: Range<u64>, result: Result<Block>) {
    let block = result.unwrap_or_else(|error| panic!("{range:?}: {error}"));
    assert!(block[..] == bytes_of(range.clone())[..], "{range:?} has other bytes");
}

/// Reads the walk's ranges one after the other, and checks them.
struct Ranges(Vec<Range<u64>>);

impl Walk for Ranges {
    type Output = ();
    type Error = forebay::Error;

    fn step(&mut self, block: &Block, range: Range<u64>) -> Step<(), forebay::Error> {
        assert!(block[..] == bytes_of(range)[..]);
        match self.0.pop() {
            Some(next) => Step::Read(next),
            None => Step::Done(()),
        }
    }
}

#[test]
fn cached_pages_serve_every_kind_of_read_without_a_request() {
    let (dir, engine) = (dir(), engine());
    let path = cold(dir.path(), MIB + 77);
    let Some(_loaded) = load(&path, 0..MIB / PAGE + 1) else { return };
    let file = open(&engine, &path);
    check(5..9000, file.read(5..9000).wait());
    check(MIB..MIB + 77, file.read_up_to(MIB..MIB + 77).wait());
    let ranges: Vec<_> = (0..500).map(|n| n * 2000 + 3..n * 2000 + 1500).collect();
    for (range, result) in ranges.iter().zip(file.read_many(ranges.clone()).wait().unwrap()) {
        check(range.clone(), result);
    }
    let mut stream = file.read_many(ranges.clone()).stream();
    let mut came = 0;
    while let Some((number, result)) = stream.next().wait() {
        check(ranges[number].clone(), result);
        came += 1;
    }
    assert_eq!(came, 500);
    let mut scan = file.scan().start();
    let mut all = Vec::new();
    while let Some(block) = scan.next().wait() {
        all.extend_from_slice(&block.unwrap());
    }
    assert!(all == bytes_of(0..MIB + 77));
    file.walk(0..100, Ranges(vec![70_000..70_100, 9..5000])).wait().unwrap();
    let stats = stats(&engine);
    assert_eq!((device_reads(&engine), stats.page_cache_misses, stats.page_cache_skips), (0, 0, 0));
    assert!(stats.page_cache_reads > 1005 && stats.page_cache_bytes > 2 * 500 * 1497 + MIB, "{stats:?}");
}

#[test]
fn one_pass_leaves_no_page_in_the_page_cache() {
    let dir = dir();
    let path = cold(dir.path(), 16 * MIB);
    let lone = |file: &File| {
        (0..300)
            .map(|n| n * 50_000..n * 50_000 + 9000)
            .for_each(|range| check(range.clone(), file.read(range).wait()));
    };
    let batch = |file: &File| {
        let ranges: Vec<_> = (0..1000).map(|n| n * 16_000..n * 16_000 + 3000).collect();
        for (range, result) in ranges.iter().zip(file.read_many(ranges.clone()).wait().unwrap()) {
            check(range.clone(), result);
        }
    };
    let scan = |file: &File| {
        let mut scan = file.scan().start();
        while let Some(block) = scan.next().wait() {
            block.unwrap();
        }
    };
    let walk = |file: &File| {
        let ranges = (1..50).map(|n| n * 99_999..n * 99_999 + 100).collect();
        file.walk(0..100, Ranges(ranges)).wait().unwrap();
    };
    type Pass<'p> = &'p dyn Fn(&File);
    let passes: [(&str, Pass<'_>); 4] =
        [("reads", &lone), ("a batch", &batch), ("a scan", &scan), ("a walk", &walk)];
    for (name, pass) in passes {
        // An engine loads what its files have missed twice.
        let engine = engine();
        pass(&open(&engine, &path));
        assert_eq!(pages(&path, 0..16 * MIB), 0, "{name}: nothing is left in the page cache");
        let (hits, misses, _) = choices(&engine);
        assert!(hits == 0 && misses > 8, "{name}: {misses}");
    }
}

#[test]
fn every_mix_of_cached_and_cold_pages_reads_the_same_bytes() {
    let (dir, engine) = (dir(), engine());
    let len = 4 * MIB + 1234;
    let path = dir.path().join("data");
    write_file(&path, len);
    for (round, share) in [1, 3, 5, 9].into_iter().enumerate() {
        evict(&path);
        let mut random = Numbers(round as u64 + 1);
        let some: Vec<_> = (0..len / PAGE + 1).filter(|_| random.below(10) < share).collect();
        let Some(_loaded) = load(&path, some) else { return };
        let file = open(&engine, &path);
        let ranges: Vec<_> = (0..2000)
            .map(|_| {
                let start = random.below(len);
                start..len.min(start + random.below(3 * PAGE))
            })
            .collect();
        let earlier = choices(&engine);
        for (range, result) in ranges.iter().zip(file.read_many(ranges.clone()).wait().unwrap()) {
            check(range.clone(), result);
        }
        let mut stream = file.read_many(ranges.clone()).depth(4).stream();
        let mut seen = vec![false; ranges.len()];
        while let Some((number, result)) = stream.next().wait() {
            assert!(!std::mem::replace(&mut seen[number], true), "each range comes once");
            check(ranges[number].clone(), result);
        }
        assert!(seen.iter().all(|seen| *seen));
        for range in ranges.iter().take(300).filter(|range| !range.is_empty()) {
            check(range.clone(), file.read(range.clone()).wait());
        }
        let mut scan = file.scan().range(100..).start();
        let mut all = Vec::new();
        while let Some(block) = scan.next().wait() {
            all.extend_from_slice(&block.unwrap());
        }
        assert!(all == bytes_of(100..len));
        let now = choices(&engine);
        assert!(
            now.0 > earlier.0 && now.1 > earlier.1,
            "some are served and some are not: {earlier:?} {now:?}"
        );
    }
}

#[test]
fn a_scan_beyond_what_another_reader_has_cached_loads_nothing() {
    let dir = dir();
    let path = cold(dir.path(), 48 * MIB);
    // A sequential reader that stopped: the mark at which its read-ahead would continue is in the page cache.
    let other = StdFile::open(&path).unwrap();
    let mut bytes = vec![0; 64 << 10];
    for part in 0..32 {
        other.read_exact_at(&mut bytes, part * (64 << 10)).unwrap();
    }
    // Its last read-ahead may still be under way.
    let last = (0..).map(|_| pages(&path, 0..48 * MIB)).scan((0, 0), |(last, same), pages| {
        *same = if pages == *last { *same + 1 } else { 0 };
        *last = pages;
        (*same < 1000).then_some(pages)
    });
    let before = last.last().unwrap();
    assert!(before * PAGE < 40 * MIB);
    for pass in 0..4 {
        // The first pass of each engine: a second one may load.
        let engine = engine();
        let file = open(&engine, &path);
        if pass % 2 == 1 {
            let ranges = (0..12_000).map(|n| n * 4000..n * 4000 + 3000);
            file.read_many(ranges).wait().unwrap().into_iter().for_each(|result| drop(result.unwrap()));
            continue;
        }
        let mut scan = file.scan().start();
        while let Some(block) = scan.next().wait() {
            block.unwrap();
        }
    }
    let after = pages(&path, 0..48 * MIB);
    // The kernel may have reclaimed some.
    assert!(after <= before, "{} pages more", after - before);
}

#[test]
fn a_cold_file_stops_trying_and_a_loaded_one_is_seen() {
    let (dir, engine) = (dir(), engine());
    const PAGES: u64 = 10_240;
    let path = cold(dir.path(), PAGES * PAGE);
    let file = open(&engine, &path);
    // Each page once: a second miss might load it.
    let mut places = (0..PAGES).map(|n| n * 7919 % PAGES * PAGE + 7).map(|start| start..start + 100);
    for batch in 0..10 {
        let some: Vec<_> = places.by_ref().take(900).collect();
        // Nothing between two ranges is read.
        file.read_many(some).gap_bytes_max(0).wait().unwrap();
        for range in places.by_ref().take(100) {
            check(range.clone(), file.read(range).wait());
        }
        assert_eq!(choices(&engine).0, 0, "batch {batch}");
    }
    let (_, misses, skips) = choices(&engine);
    assert!((100..300).contains(&misses) && misses + skips == 10_000, "{misses} of 10,000 tried");
    let Some(_loaded) = load(&path, 0..8 * MIB / PAGE) else { return };
    let mut random = Numbers(5);
    let starts: Vec<_> = (0..1000).map(|_| random.below(8 * MIB - 100)).collect();
    file.read_many(starts.into_iter().map(|start| start..start + 100)).wait().unwrap();
    let (hits, misses_now, skips_now) = choices(&engine);
    // Those that do not try may load what they had missed, and find it there.
    assert!(
        hits >= 930 && misses_now + skips_now <= misses + skips + 64,
        "{hits} hits, {misses} to {misses_now} misses, {skips} to {skips_now} skips"
    );
    // Another file has a separate record.
    let other = open(&engine, &path);
    check(7..9, other.read(7..9).wait());
    assert_eq!(choices(&engine).0, hits + 1);
    let files: Vec<FileStats> = engine.file_stats().wait().unwrap();
    let counted: u64 = files.iter().map(|file| file.page_cache_reads).sum();
    assert_eq!(counted, hits + 1, "each open file has its counters");
    assert!(files.iter().any(|file| file.page_cache_skips == skips_now && file.reads > 0));
    drop((file, other));
    assert_eq!(choices(&engine).0, hits + 1, "counters of closed files stay in the sum");
}

/// Regression: footers and columns of parquet files that had been cold were read from the device for up to 64 reads of each file
/// after they were loaded: queries over warm files started 1.9 times slower than with a plain file system.
#[test]
fn a_long_read_of_a_file_that_was_cold_is_seen_at_once() {
    let (dir, engine) = (dir(), engine());
    let path = cold(dir.path(), 8 * MIB);
    let file = open(&engine, &path);
    let short: Vec<_> = (0..2000).map(|n| n * 4000..n * 4000 + 100).collect();
    file.read_many(short.clone()).wait().unwrap();
    let Some(_loaded) = load(&path, 0..8 * MIB / PAGE) else { return };
    let (hits, reads) = (choices(&engine).0, device_reads(&engine));
    check(5000..5000 + MIB / 4, file.read(5000..5000 + MIB / 4).wait());
    assert_eq!((choices(&engine).0, device_reads(&engine)), (hits + 1, reads));
    // And it ends the pause for short reads.
    check(0..100, file.read(0..100).wait());
    assert_eq!((choices(&engine).0, device_reads(&engine)), (hits + 2, reads));
}

/// Regression: a read of one byte more than 4 MiB was read from the device though the page cache had all of it, at a seventh of the
/// rate.
#[test]
fn a_read_of_any_length_has_from_the_page_cache_the_parts_that_are_there() {
    const WARM: u64 = 5 * MIB;
    let dir = dir();
    let path = cold(dir.path(), 9 * MIB + 77);
    // With little I/O memory such reads are long, and allocate separately.
    for arena_bytes_max in [64 << 20, 4 << 20] {
        evict(&path);
        let Some(_loaded) = load(&path, 0..WARM / PAGE) else { return };
        let engine = Engine::start(config().arena_bytes_max(arena_bytes_max)).unwrap();
        let file = open(&engine, &path);
        check(3..WARM, file.read(3..WARM).wait());
        check(MIB + 3..WARM, futures::executor::block_on(file.read_up_to(MIB + 3..WARM)));
        let (read, bytes) = file.read_into(3, vec![0_u8; WARM as usize - 3]).wait();
        assert!(read.unwrap() == bytes.len() && bytes == bytes_of(3..WARM));
        assert_eq!((device_reads(&engine), choices(&engine).1), (0, 0));
        // From 4 MiB on not all is there.
        check(3..9 * MIB + 77, file.read(3..9 * MIB + 77).wait());
        let flows = stats(&engine).flows;
        let device_bytes: u64 = flows.iter().map(|flow| flow.read_bytes).sum();
        assert!((4 * MIB..=6 * MIB).contains(&device_bytes), "{device_bytes} B came from the device");
        let error = file.read(3..10 * MIB).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof { got: 9 * MIB + 74 });
    }
}

#[test]
fn dirty_pages_of_others_are_seen_and_direct_writes_are_seen_by_all() {
    let (dir, engine) = (dir(), engine());
    let path = cold(dir.path(), MIB);
    let file = engine.open(&path, Open::write().adaptive()).wait().unwrap();
    let other = StdFile::options().read(true).write(true).open(&path).unwrap();
    let mut expected = bytes_of(0..MIB);
    let mut random = Numbers(11);
    for round in 0..200_u64 {
        let page = random.below(MIB / PAGE);
        let (start, end) = ((page * PAGE) as usize, ((page + 1) * PAGE) as usize);
        let fill = round as u8;
        if round % 2 == 0 {
            // Stays dirty: nothing is synced.
            other.write_all_at(&vec![fill; PAGE as usize], page * PAGE).unwrap();
        } else {
            file.write(page * PAGE, vec![fill; PAGE as usize]).wait().unwrap();
        }
        expected[start..end].fill(fill);
        if round % 3 == 0 {
            evict(&path);
        }
        let around = page.saturating_sub(1) * PAGE + 7..((page + 2) * PAGE).min(MIB);
        let block = file.read(around.clone()).wait().unwrap();
        assert!(block[..] == expected[around.start as usize..around.end as usize], "round {round}");
        let mut bytes = vec![0; PAGE as usize];
        other.read_exact_at(&mut bytes, page * PAGE).unwrap();
        assert!(bytes == expected[start..end], "round {round}, by the other descriptor");
        let Some(_loaded) = load(&path, [page]) else { return };
        let block = file.read(page * PAGE..(page + 1) * PAGE).wait().unwrap();
        assert!(block[..] == expected[start..end], "round {round}, once it is cached");
    }
    let (hits, misses, _) = choices(&engine);
    assert!(hits > 50 && misses > 0, "{hits} {misses}");
    file.truncate(1000).wait().unwrap();
    let error = file.read(0..2000).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof { got: 1000 });
}

#[test]
fn the_end_of_the_file_and_closed_files_are_as_in_every_mode() {
    let (dir, engine) = (dir(), engine());
    let path = cold(dir.path(), 10_000);
    let Some(_loaded) = load(&path, 0..3) else { return };
    let file = open(&engine, &path);
    let end = |error: forebay::Error| error.kind();
    assert_eq!(end(file.read(9000..10_001).wait().unwrap_err()), ErrorKind::UnexpectedEof { got: 1000 });
    check(9000..10_000, file.read_up_to(9000..99_000).wait());
    assert!(file.read_up_to(20_000..20_010).wait().unwrap().is_empty());
    let backwards = Range { start: 5, end: 2 };
    let ranges = [0..10, 9990..10_010, 3..3, backwards, 9_990..10_000, 0..u64::MAX];
    let results = file.read_many(ranges.clone()).wait().unwrap();
    assert_eq!(results.len(), 6);
    for (number, (range, result)) in ranges.into_iter().zip(results).enumerate() {
        match number {
            0 | 4 => check(range, result),
            2 => assert!(result.unwrap().is_empty()),
            1 => assert_eq!(end(result.unwrap_err()), ErrorKind::UnexpectedEof { got: 10 }),
            3 => assert_eq!(end(result.unwrap_err()), ErrorKind::InvalidInput),
            _ => drop(result.unwrap_err()),
        }
    }
    let plan = file.read_many([0..10, 5000..6000]).plan().unwrap();
    assert_eq!(plan.requests.len(), 1, "the plan is that of a direct read");
    let links = || {
        let path = path.canonicalize().unwrap();
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        all.filter(|link| std::fs::read_link(link.as_ref().unwrap().path()).is_ok_and(|to| to == path))
            .count()
    };
    assert_eq!(links(), 2, "one descriptor for the device and one for the page cache");
    let (kept, batch) = (file.clone(), file.read_many(std::iter::once(0..10)));
    file.close().wait().unwrap();
    assert_eq!(kept.read(0..10).wait().unwrap_err().kind(), ErrorKind::FileClosed);
    assert_eq!(kept.read_many(std::iter::once(0..10)).wait().unwrap_err().kind(), ErrorKind::FileClosed);
    assert_eq!(batch.wait().unwrap_err().kind(), ErrorKind::FileClosed);
    drop(kept);
    stats(&engine);
    assert_eq!(links(), 0, "both are closed with the file");
}

#[test]
fn batches_of_several_files_try_each_by_its_own_memory() {
    let (dir, engine) = (dir(), engine());
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    write_file(&one, MIB);
    write_file(&two, MIB);
    evict(&one);
    evict(&two);
    let Some(_loaded) = load(&two, 0..MIB / PAGE) else { return };
    let files = [open(&engine, &one), open(&engine, &two), engine.open(&two, Open::read()).wait().unwrap()];
    let ranges: Vec<_> = (0..3000_u64).map(|n| (&files[n as usize % 3], n * 300..n * 300 + 250)).collect();
    let results = engine.read_many(ranges.clone()).wait().unwrap();
    for ((_, range), result) in ranges.into_iter().zip(results) {
        check(range, result);
    }
    let (hits, misses, skips) = choices(&engine);
    assert_eq!((hits, misses + skips), (1000, 1000), "the direct file tries nothing");
    assert!(misses < 100);
}

#[test]
fn given_files_and_unnamed_files_are_adaptive_too() {
    let (dir, engine) = (dir(), engine());
    let path = cold(dir.path(), MIB);
    let Some(_loaded) = load(&path, 0..MIB / PAGE) else { return };
    let direct = StdFile::options().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let file = engine.from_std(direct, Open::read().adaptive()).wait().unwrap();
    assert_eq!(file.mode(), Mode::Adaptive);
    check(3..5000, file.read(3..5000).wait());
    assert_eq!(choices(&engine).0, 1);
    let temp = engine.temp_file(dir.path(), Open::create().adaptive()).wait().unwrap();
    temp.write(0, vec![7; 8192]).wait().unwrap();
    assert_eq!(temp.read(100..5000).wait().unwrap()[..], [7; 4900]);
    let new = dir.path().join("new");
    let made = engine.open(&new, Open::create_new().adaptive()).wait().unwrap();
    assert!(made.alignment().direct);
    let error = engine.open(&new, Open::create_new().adaptive()).wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
    // A file that was opened to write only must not be read through another descriptor.
    let writes = StdFile::options().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let file = engine.from_std(writes, Open::write().adaptive()).wait().unwrap();
    assert_eq!(file.read(0..10).wait().unwrap_err().raw_os_error(), Some(libc::EBADF));
}

#[test]
fn a_file_system_in_memory_works() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("skipped: no /dev/shm");
        return;
    };
    let engine = engine();
    let path = dir.path().join("data");
    write_file(&path, MIB);
    let file = engine.open(&path, Open::write().adaptive()).wait().unwrap();
    for n in 0..100_u64 {
        check(n * 9000 + 1..n * 9000 + 8000, file.read(n * 9000 + 1..n * 9000 + 8000).wait());
    }
    let ranges: Vec<_> = (0..1000).map(|n| n * 1000..n * 1000 + 999).collect();
    for (range, result) in ranges.iter().zip(file.read_many(ranges.clone()).wait().unwrap()) {
        check(range.clone(), result);
    }
    file.write(0, vec![9; 4096]).wait().unwrap();
    assert_eq!(file.read(0..100).wait().unwrap()[..], [9; 100]);
    let stats = stats(&engine);
    let is_reported = engine.health().degraded.iter().any(|found| found.what == "adaptive: page cache");
    assert!(stats.page_cache_reads > 0 || (is_reported && stats.page_cache_misses == 1), "{stats:?}");
}

#[test]
fn a_polled_batch_yields_to_its_runtime() {
    use std::future::Future;
    use std::task::{Context, Waker};
    let (dir, engine) = (dir(), engine());
    let path = cold(dir.path(), 4 * MIB);
    let Some(_loaded) = load(&path, 0..4 * MIB / PAGE) else { return };
    let file = open(&engine, &path);
    let ranges: Vec<_> = (0..2000).map(|n| n * 2000..n * 2000 + 2000).collect();
    let mut batch = std::pin::pin!(file.read_many(ranges.clone()));
    let mut context = Context::from_waker(Waker::noop());
    let mut polls = 1;
    let results = loop {
        match batch.as_mut().poll(&mut context) {
            std::task::Poll::Ready(results) => break results.unwrap(),
            std::task::Poll::Pending => polls += 1,
        }
    };
    assert!((4..20).contains(&polls), "{polls} polls");
    for (range, result) in ranges.into_iter().zip(results) {
        check(range, result);
    }
    // One that was polled and becomes a stream gives each result once.
    let mut batch = Box::pin(file.read_many((0..2000).map(|n| n * 2000..n * 2000 + 2000)));
    assert!(batch.as_mut().poll(&mut context).is_pending());
    let batch = *std::pin::Pin::into_inner(batch);
    let mut stream = batch.stream();
    let mut came = 0;
    while let Some((_, result)) = stream.next().wait() {
        result.unwrap();
        came += 1;
    }
    assert_eq!(came, 2000);
    let missing = engine.open(dir.path().join("none"), Open::read().adaptive()).wait().unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn memory_of_the_programs_own_is_filled_from_the_page_cache_and_from_the_device() {
    let (engine, dir) = (engine(), dir());
    let path = cold(dir.path(), MIB);
    let Some(_loaded) = load(&path, 0..16) else { return };
    let file = open(&engine, &path);
    for (range, is_cached) in
        [(100..5_000, true), (100_000..170_001, false), (0..65_536, true), (60_000..70_000, false)]
    {
        let before = (choices(&engine).0, device_reads(&engine));
        let (bytes, vec) = file.read_into(range.start, vec![0; (range.end - range.start) as usize]).wait();
        assert_eq!(bytes.unwrap(), vec.len());
        assert!(vec == bytes_of(range.clone()), "{range:?}");
        let now = (choices(&engine).0 - before.0, device_reads(&engine) > before.1);
        assert_eq!(now, (u64::from(is_cached), !is_cached), "{range:?}");
    }
    // A batch copies cached ranges into their places and reads the others, also with an empty range and a range past the end
    // between them. From the back to the front: a sequential range checks read-ahead, too.
    let cached = [60_000..65_536, 100..5_000, 0..3];
    let cold = [200_000..200_100, 300_000..300_001];
    for (ranges, hits, reads) in [
        (cached.to_vec(), 3, false),
        (cold.to_vec(), 0, true),
        (vec![cold[0].clone(), cached[0].clone(), 9..9, cached[1].clone(), cold[1].clone()], 2, true),
    ] {
        let expected: Vec<u8> = ranges.iter().cloned().flat_map(bytes_of).collect();
        let before = (choices(&engine).0, device_reads(&engine));
        let (result, vec) = file.read_many(ranges.clone()).into_memory(vec![0; expected.len() + 3]).wait();
        result.unwrap();
        assert!(vec[..expected.len()] == expected && vec[expected.len()..] == [0; 3], "{ranges:?}");
        let now = (choices(&engine).0 - before.0, device_reads(&engine) > before.1);
        assert_eq!(now, (hits, reads), "{ranges:?}");
    }
    let (result, vec) = file.read_many([0..3, MIB - 1..MIB + 1, 5..9]).into_memory(vec![0; 9]).wait();
    assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof { got: 1 });
    assert_eq!(
        (&vec[..3], &vec[5..]),
        (&bytes_of(0..3)[..], &bytes_of(5..9)[..]),
        "the others have been read"
    );
    let (result, vec) = file.read_many([0..3, 5..9]).into_memory(vec![1; 6]).wait();
    assert_eq!(
        (result.unwrap_err().kind(), vec),
        (ErrorKind::InvalidInput, vec![1; 6]),
        "too short: untouched"
    );
}

/// A batch into memory that copies from the page cache gives its runtime a turn in between; dropped there it gives the memory up.
#[test]
fn a_batch_into_memory_yields_while_it_copies() {
    use std::future::Future;
    use std::task::{Context, Waker};
    let (dir, engine) = (dir(), engine());
    let path = cold(dir.path(), 4 * MIB);
    let Some(_loaded) = load(&path, 0..4 * MIB / PAGE) else { return };
    let file = open(&engine, &path);
    let ranges: Vec<_> = (0..2000).map(|n| n * 2000..n * 2000 + 2000).collect();
    let mut context = Context::from_waker(Waker::noop());
    let mut batch = std::pin::pin!(file.read_many(ranges.clone()).into_memory(vec![0; 4_000_000]));
    let mut polls = 1;
    let (result, vec) = loop {
        match batch.as_mut().poll(&mut context) {
            std::task::Poll::Ready(end) => break end,
            std::task::Poll::Pending => polls += 1,
        }
    };
    result.unwrap();
    assert!((4..20).contains(&polls), "{polls} polls");
    assert!(vec == bytes_of(0..4_000_000));
    let leaked = engine.memory().leaked_lends;
    let mut dropped = Box::pin(file.read_many(ranges).into_memory(vec![0; 4_000_000]));
    assert!(dropped.as_mut().poll(&mut context).is_pending());
    drop(dropped);
    assert_eq!(engine.memory().leaked_lends, leaked);
    file.close().wait().unwrap();
}
