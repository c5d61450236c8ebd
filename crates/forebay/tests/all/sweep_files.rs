//! Axes that worlds lack, on real files (forebay-test/SWEEPS.md): threads, descriptors, copies, and the page cache, cold, warm and
//! half warm. The costs are the engine's own counts of requests. They expect nothing that the kernel may reclaim: warm pages are
//! locked. A failure prints each point of its axis.

use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use forebay::{Block, Config, DriverChoice, Engine, File, Open, Result};
use forebay_test::children::{Scene, limits, set_limit};
use forebay_test::sweep::{Axis, BLOCK, Cost, Step, Sweep};
use futures::future::join_all;

use crate::adaptive::{choices, cold, evict, load};
use crate::common::{bytes_of, config, dir, write_file};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// A place where nothing is aligned.
const ODD: u64 = 1_000;
/// The reads of a thread, and the length of the file that all threads read.
const READS: u64 = 8;
const LEN: u64 = 2 * MIB;
/// The length of files that are cached. Not all processes may lock more than 8 MiB.
const CACHED_LEN: u64 = 6 * MIB;
/// Reads of a file that was cold before it is loaded.
const COLD_READS: u64 = 200;

static THREADS: Axis = Axis {
    name: "core threads",
    unit: "threads that read",
    package: "forebay",
    range: 1..=64,
    crosses: &[],
    steps: &[],
    limit: None,
};
static REQUESTS: Axis = Axis {
    name: "core requests of the driver of threads",
    unit: "reads at once",
    package: "forebay",
    range: 1..=256,
    crosses: &[("THREADS_MAX", 64)],
    steps: &[],
    limit: None,
};
static OPEN_FILES: Axis = Axis {
    name: "core descriptors",
    unit: "open files",
    package: "forebay",
    range: 1..=4096,
    crosses: &[("FIXED_FILES_MAX", 1024)],
    steps: &[],
    limit: None,
};
static COPY: Axis = Axis {
    name: "core copy",
    unit: "bytes",
    package: "forebay",
    range: 0..=MIB,
    crosses: &[("BUFFER", 256 << 10)],
    steps: &[],
    limit: None,
};
static CACHED_LENGTH: Axis = Axis {
    name: "core cached read",
    unit: "bytes",
    package: "forebay",
    range: 1..=5 * MIB,
    crosses: &[("TRY_BYTES_MAX", 4 << 20)],
    steps: &[],
    limit: None,
};
static CACHED_BATCH: Axis = Axis {
    name: "core cached batch",
    unit: "bytes",
    package: "forebay",
    range: KIB..=5 * MIB,
    crosses: &[("POLL_BYTES", 2 << 20)],
    steps: &[],
    limit: None,
};
static CACHED_RANGES: Axis = Axis {
    name: "core cached ranges",
    unit: "ranges",
    package: "forebay",
    range: 1..=64,
    crosses: &[("LOOK_RANGES_MIN", 8)],
    steps: &[],
    limit: None,
};
static CACHED_GAP: Axis = Axis {
    name: "core cached gap",
    unit: "bytes between two ranges",
    package: "forebay",
    range: 0..=128 * KIB,
    crosses: &[("LOOK_BYTES_A_READ", 16 * 4096)],
    steps: &[],
    limit: None,
};
static HALF_CACHED_GAP: Axis = Axis {
    name: "core half cached gap",
    unit: "bytes between two reads whose own pages alone are cached",
    package: "forebay",
    range: 0..=128 * KIB,
    crosses: &[("GAP_BYTES", 64 << 10)],
    steps: &[Step {
        range: 0..=64 * KIB,
        percent: 150,
        neighbours: 130,
        reason: "a read that goes on could begin the read-ahead of another reader, if the pages behind it are not cached as well",
    }],
    limit: None,
};
static LOADED_LENGTH: Axis = Axis {
    name: "core read of a file that was cold",
    unit: "bytes",
    package: "forebay",
    range: 128 * KIB..=512 * KIB,
    crosses: &[("TRY_ALWAYS_BYTES", 256 << 10)],
    steps: &[Step {
        range: 128 * KIB..=256 * KIB - 1,
        percent: 150,
        neighbours: 130,
        reason: "of a file that was cold, up to 64 short reads go to the device before one looks again",
    }],
    limit: None,
};
static COLD: Axis = Axis {
    name: "core cold reads",
    unit: "reads",
    package: "forebay",
    range: 1..=1024,
    crosses: &[("FAILURES_MAX", 64), ("PAUSE_SHIFT_MAX", 6)],
    steps: &[],
    limit: None,
};

/// The points of an axis that are tried.
type Points = fn(&Axis) -> Vec<u64>;
/// The cost of a point, or its error.
type Attempt = std::result::Result<Cost, String>;

/// Returns the front of all files. Made once: test builds are slow at that.
fn content() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| bytes_of(0..CACHED_LEN))
}

fn sweep(axis: &Axis, points: Points, ideal: impl Fn(u64) -> Cost, mut attempt: impl FnMut(u64) -> Attempt) {
    let mut sweep = Sweep::new(axis);
    points(axis).into_iter().for_each(|at| sweep.add(at, ideal(at), attempt(at)));
    Sweep::judge_all(&[sweep]);
}

/// Returns the output of `work`, and the reads that the engine's devices did meanwhile.
fn count<T>(engine: &Engine, work: impl FnOnce() -> T) -> (T, Cost) {
    let sum = || {
        let stats = engine.stats().wait().expect("figures");
        stats.flows.iter().fold((0, 0), |sum, flow| (sum.0 + flow.reads, sum.1 + flow.read_bytes))
    };
    let before = sum();
    let output = work();
    let after = sum();
    (output, Cost { requests: after.0 - before.0, bytes: after.1 - before.1, ..Cost::default() })
}

/// Returns the cost of `requests` that move `bytes` in all. Real files have no rounds that could be counted.
fn of_reads(requests: u64, bytes: u64) -> Cost {
    Cost::together(requests, bytes).in_rounds(0)
}

/// Returns the cost of reads out of the page cache.
fn of_cached(_: u64) -> Cost {
    Cost::default()
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn check(range: Range<u64>, result: Result<Block>) -> std::result::Result<(), String> {
    let block = result.map_err(words)?;
    if block[..] == content()[range.start as usize..range.end as usize] {
        Ok(())
    } else {
        Err(format!("{range:?} has other bytes"))
    }
}

fn check_all(ranges: &[Range<u64>], results: Vec<Result<Block>>) -> std::result::Result<(), String> {
    ranges.iter().zip(results).try_for_each(|(range, result)| check(range.clone(), result))
}

/// Returns a block of the file that all read.
fn block(number: u64) -> Range<u64> {
    let start = number * BLOCK % LEN;
    start..start + BLOCK
}

fn threads(points: Points) {
    let (dir, engine) = (dir(), Engine::start(config()).unwrap());
    let path = dir.path().join("file");
    write_file(&path, LEN);
    for open in [Open::read(), Open::read().adaptive(), Open::read().buffered()] {
        let file = engine.open(&path, open).wait().unwrap();
        let is_direct = file.mode() == forebay::Mode::Direct;
        let read = |thread: u64| {
            let mut numbers = thread * READS..(thread + 1) * READS;
            numbers.try_for_each(|number| check(block(number), file.read(block(number)).wait()))
        };
        let attempt = |at: u64| -> Attempt {
            let (read, cost) = count(&engine, || {
                std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..at).map(|thread| scope.spawn(move || read(thread))).collect();
                    threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
                })
            });
            // Reads from the page cache are not requests.
            read.map(|()| if is_direct { cost } else { Cost::default() })
        };
        let ideal = |at: u64| of_reads(at * READS, at * READS * BLOCK);
        sweep(&THREADS, points, ideal, attempt);
    }
}

fn requests_at_once(points: Points) {
    let dir = dir();
    let config = Config::new().driver(DriverChoice::Threads).shards(1).wait_calls(false);
    let engine = Engine::start(config).unwrap();
    let path = dir.path().join("file");
    write_file(&path, LEN);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let attempt = |at: u64| -> Attempt {
        let reads = || futures::executor::block_on(join_all((0..at).map(|number| file.read(block(number)))));
        let (results, cost) = count(&engine, reads);
        check_all(&(0..at).map(block).collect::<Vec<_>>(), results)?;
        Ok(cost)
    };
    sweep(&REQUESTS, points, |at| of_reads(at, at * BLOCK), attempt);
}

/// Files that stay open, more from point to point. The newest are read.
fn open_files(points: Points) {
    /// Files that are read at each point.
    const LAST: u64 = 32;
    let enough = *OPEN_FILES.range.end() + 500;
    let (_, hard) = limits(libc::RLIMIT_NOFILE);
    if hard < enough {
        return println!("skipped: only {hard} descriptors can be had, {enough} are needed (ulimit -Hn)");
    }
    set_limit(libc::RLIMIT_NOFILE, enough);
    let (dir, engine) = (dir(), Engine::start(config().shards(1)).unwrap());
    let path = dir.path().join("file");
    write_file(&path, LEN);
    let mut files: Vec<File> = Vec::new();
    let attempt = |at: u64| -> Attempt {
        while (files.len() as u64) < at {
            files.push(engine.open(&path, Open::read()).wait().map_err(words)?);
        }
        let last = at.saturating_sub(LAST)..at;
        let read = || {
            last.clone().try_for_each(|number| {
                check(block(number), files[number as usize].read(block(number)).wait())
            })
        };
        let (read, cost) = count(&engine, read);
        read.map(|()| cost)
    };
    sweep(&OPEN_FILES, points, |at| of_reads(at.min(LAST), at.min(LAST) * BLOCK), attempt);
}

/// Copies between direct files at odd offsets, which no file system makes itself, and to another file system, if any.
fn copies(points: Points) {
    use std::os::unix::fs::FileExt;
    let (from_dir, engine) = (dir(), Engine::start(config()).unwrap());
    let from = from_dir.path().join("from");
    write_file(&from, LEN);
    let from = engine.open(&from, Open::read()).wait().unwrap();
    let other = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| dir());
    for (place, open) in [(&from_dir, Open::create()), (&other, Open::create().buffered())] {
        let path = place.path().join("to");
        let to = engine.open(&path, open).wait().unwrap();
        let attempt = |at: u64| -> Attempt {
            let copied = from.copy_range(1..1 + at, &to, 7).wait().map_err(words)?;
            let mut found = vec![0; at as usize];
            let read = std::fs::File::open(&path).and_then(|file| file.read_exact_at(&mut found, 7));
            read.map_err(words)?;
            let is_right = copied == at && found == content()[1..1 + at as usize];
            if is_right { Ok(Cost::default()) } else { Err(format!("{copied} bytes, or others")) }
        };
        sweep(&COPY, points, |_| Cost::default(), attempt);
    }
}

fn open_adaptive(engine: &Engine, path: &Path) -> std::result::Result<File, String> {
    engine.open(path, Open::read().adaptive()).wait().map_err(words)
}

/// Returns an engine whose memory is enough for a lone read of each length here.
fn engine_with_memory() -> Engine {
    Engine::start(config().arena_bytes_max(64 << 20)).unwrap()
}

/// Reads of a file that the page cache has, whole.
fn cached(points: Points) {
    let (dir, engine) = (dir(), engine_with_memory());
    let path = cold(dir.path(), CACHED_LEN);
    let Some(_loaded) = load(&path, 0..CACHED_LEN / BLOCK) else { return };
    let file = open_adaptive(&engine, &path).unwrap();
    // Without any request, not only without more than one.
    let served = |cost: Cost| match cost.requests {
        0 => Ok(cost),
        requests => Err(format!("{requests} requests for bytes in memory")),
    };

    sweep(&CACHED_LENGTH, points, of_cached, |at| {
        let (read, cost) = count(&engine, || file.read(ODD..ODD + at).wait());
        check(ODD..ODD + at, read)?;
        served(cost)
    });

    let batch = |ranges: Vec<Range<u64>>| -> Attempt {
        let (results, cost) = count(&engine, || file.read_many(ranges.clone()).wait());
        check_all(&ranges, results.map_err(words)?)?;
        served(cost)
    };
    sweep(&CACHED_BATCH, points, of_cached, |at| {
        const PIECE: u64 = 64 * KIB;
        batch((0..at.div_ceil(PIECE)).map(|n| n * PIECE..((n + 1) * PIECE).min(at)).collect())
    });
    sweep(&CACHED_RANGES, points, of_cached, |at| {
        batch((0..at).map(|number| number * 70_000..number * 70_000 + 100).collect())
    });
    sweep(&CACHED_GAP, points, of_cached, |at| {
        batch((0_u64..16).map(|number| number * (at + 100)..number * (at + 100) + 100).collect())
    });
}

/// Reads of a file of which the page cache has the pages of these reads and no other.
fn half_cached(points: Points) {
    const RANGES: u64 = 16;
    let (dir, engine) = (dir(), engine_with_memory());
    let path = cold(dir.path(), CACHED_LEN);
    let may_lock = load(&path, 0..RANGES * 2).is_some();
    if !may_lock {
        return;
    }
    let ideal = |at: u64| if at <= 64 * KIB { of_reads(RANGES, RANGES * 2 * BLOCK) } else { Cost::default() };
    sweep(&HALF_CACHED_GAP, points, ideal, |at| {
        let ranges: Vec<_> = (0..RANGES).map(|n| n * (at + 100)..n * (at + 100) + 100).collect();
        evict(&path);
        let pages = ranges.iter().flat_map(|range| range.start / BLOCK..range.end.div_ceil(BLOCK));
        let _loaded = load(&path, pages).ok_or("pages cannot be locked any more")?;
        let file = open_adaptive(&engine, &path)?;
        let read =
            || ranges.iter().try_for_each(|range| check(range.clone(), file.read(range.clone()).wait()));
        let (read, cost) = count(&engine, read);
        read.map(|()| cost)
    });
}

/// Reads of a file that the page cache has not, and of one that is loaded later.
fn cold_and_loaded(points: Points) {
    const LEN: u64 = 4 * MIB;
    let dir = dir();
    let path = cold(dir.path(), LEN);
    let read_cold = |file: &File, reads: u64| -> std::result::Result<(), String> {
        let ranges: Vec<_> = (0..reads).map(|number| number * 4_000..number * 4_000 + 100).collect();
        check_all(&ranges, file.read_many(ranges.clone()).wait().map_err(words)?)
    };

    // Its cost are attempts: the first 64, those with pauses that double, and then one in 65.
    let ideal = |at: u64| {
        let attempts = if at <= 64 { at } else { at.min(70) + (at - 64) / 65 };
        Cost { requests: attempts, ..Cost::default() }
    };
    sweep(&COLD, points, ideal, |at| {
        // An engine loads what its files have missed before.
        let engine = engine_with_memory();
        let (before, file) = (choices(&engine), open_adaptive(&engine, &path)?);
        read_cold(&file, at)?;
        let (hits, misses, skips) = choices(&engine);
        if hits != before.0 || misses + skips != before.1 + before.2 + at {
            return Err(format!("{hits} reads of a cold file served, {misses} tried, {skips} did not"));
        }
        Ok(Cost { requests: misses - before.1, ..Cost::default() })
    });

    if load(&path, 0..LEN / BLOCK).is_none() {
        return;
    }
    let ideal = |at: u64| if at < 256 * KIB { of_reads(64, 64 * (at + BLOCK)) } else { Cost::default() };
    sweep(&LOADED_LENGTH, points, ideal, |at| {
        evict(&path);
        let engine = engine_with_memory();
        let file = open_adaptive(&engine, &path)?;
        read_cold(&file, COLD_READS)?;
        let _loaded = load(&path, 0..LEN / BLOCK).ok_or("pages cannot be locked any more")?;
        let before = choices(&engine).0;
        let (read, cost) = count(&engine, || -> std::result::Result<(), String> {
            // At most the longest pause, and the one that looks.
            for _ in 0..=64 {
                check(0..at, file.read(0..at).wait())?;
                if choices(&engine).0 > before {
                    return Ok(());
                }
            }
            Err("65 reads of a file in memory went to the device".to_owned())
        });
        read.map(|()| cost)
    });
}

#[test]
fn every_number_of_threads_and_requests() {
    threads(Axis::points);
    requests_at_once(Axis::points);
}

#[test]
fn every_number_of_open_files() {
    // A separate process, which may have more descriptors.
    Scene::new("sweep_files::every_number_of_open_files").play(|| open_files(Axis::points));
}

#[test]
fn copies_of_every_length() {
    copies(Axis::points);
}

#[test]
fn cached_reads_of_every_length_number_and_gap() {
    cached(Axis::points);
}

#[test]
fn half_cached_reads_of_every_gap() {
    half_cached(Axis::points);
}

#[test]
fn every_number_of_cold_reads_and_every_length_of_later_ones() {
    cold_and_loaded(Axis::points);
}

#[test]
#[ignore = "half a minute: the points between those of every gate"]
fn the_points_between() {
    for sweep in [threads, requests_at_once, copies, cached, half_cached, cold_and_loaded] {
        sweep(Axis::all_points);
    }
}
