//! The cost for a disk of reads through a cache, at every length, number and size that a user may choose (forebay-test/SWEEPS.md).
//! A failure prints each point of its axis with its counts.

use std::ops::Range;
use std::sync::OnceLock;

use forebay::{Config, Engine, Open};
use forebay_cache::{Cache, CacheOptions, CachedFile};
use forebay_test::draw::bytes_of;
use forebay_test::sweep::meter::{self, Attempt, count};
use forebay_test::sweep::{Axis, BLOCK, Cost, Sweep};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const PATH: &str = "/disk/file";
/// The bytes at the front of the file; behind them it is sparse.
const LEN: u64 = 3 * MIB;
const SPARSE: u64 = 64 * MIB;
/// A place where nothing is aligned.
const ODD: u64 = 1_000;
/// Longer ranges are read past the cache.
const BYPASS: u64 = MIB;
/// The most bytes of one read of neighbouring pages, and the ranges of a batch in flight.
const RUN: u64 = 256 * KIB;
const DEPTH: u64 = 128;

static READ: Axis = Axis {
    name: "cache read",
    unit: "bytes",
    package: "forebay-cache",
    range: 1..=2 * MIB,
    crosses: &[("RUN_BYTES_MAX", 256 << 10), ("BYPASS_BYTES", 1 << 20)],
    steps: &[],
    limit: None,
};
static RANGES: Axis = Axis {
    name: "cache ranges",
    unit: "ranges",
    package: "forebay-cache",
    range: 0..=512,
    crosses: &[("DEPTH", 128)],
    steps: &[],
    limit: None,
};
static PAGE_BYTES: Axis = Axis {
    name: "cache page",
    unit: "bytes",
    package: "forebay-cache",
    range: 0..=512 * KIB,
    crosses: &[("PAGE_BYTES", 4096), ("PAGE_BYTES_MIN", 4096), ("PAGE_BYTES_MAX", 256 << 10)],
    steps: &[],
    limit: None,
};
static BYTES: Axis = Axis {
    name: "cache memory",
    unit: "bytes",
    package: "forebay-cache",
    range: 16 * KIB..=64 * MIB,
    crosses: &[("PART_BYTES", 1 << 20)],
    steps: &[],
    limit: None,
};

/// The points of an axis that are tried.
type Points = fn(&Axis) -> Vec<u64>;

/// Returns the front of the file. Made once: test builds are slow at that.
fn content() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| bytes_of(0..LEN))
}

/// Runs sweeps in a separate world, and checks their results.
fn judge(sweeps: impl AsyncFnOnce(&Engine) -> forebay::Result<Vec<Sweep<'static>>>) {
    let config = Config::new().arena_bytes_max(256 << 20);
    let ran = meter::world().config(config).run(async |engine| {
        let file = engine.open(PATH, Open::create()).await?;
        file.write(0, content().to_vec()).await?;
        file.truncate(SPARSE).await?;
        sweeps(&engine).await
    });
    let seen = ran.unwrap_or_else(|failure| panic!("{failure}")).expect("the files open");
    Sweep::judge_all(&seen);
}

/// Returns the file with its cache.
async fn opened(engine: &Engine, options: CacheOptions) -> forebay::Result<CachedFile> {
    Cache::new(engine, options)?.open(PATH, Open::read()).await
}

/// Reads a range, then once more, which is free if the cache has kept it. Returns the cost of both.
async fn read_twice(file: &CachedFile, range: Range<u64>) -> Attempt {
    let expected = &content()[range.start as usize..range.end as usize];
    let (first, cost) = count(file.read(range.clone())).await;
    let (second, again) = count(file.read(range)).await;
    if first?[..] != *expected || second?[..] != *expected {
        return Err("bytes that differ".into());
    }
    Ok(Cost {
        requests: cost.requests + again.requests,
        bytes: cost.bytes + again.bytes,
        flushes: 0,
        rounds: cost.rounds + again.rounds,
    })
}

fn lengths_and_numbers(points: Points) {
    judge(async |engine| {
        let options = CacheOptions::new().bytes_max(32 * MIB);
        let mut seen = Vec::new();

        // Past the cache each of both reads is one request.
        let ideal = |at: u64| match at {
            _ if at <= BYPASS => Cost::together((ODD + at).div_ceil(RUN), ODD + at),
            _ => Cost::together(2, 2 * (ODD + at + BLOCK)).in_rounds(2),
        };
        let attempt = async |at: u64| -> Attempt {
            let file = opened(engine, options).await?;
            read_twice(&file, ODD..ODD + at).await
        };
        seen.push(meter::sweep(&READ, points, ideal, attempt).await);

        let ideal = |at: u64| Cost::together(at, at * BLOCK).in_rounds(at.div_ceil(DEPTH));
        let attempt = async |at: u64| -> Attempt {
            let file = opened(engine, options).await?;
            // Too far apart to be read together.
            let ranges = (0..at).map(|number| number * 24 * KIB..number * 24 * KIB + 100);
            let (results, cost) = count(file.read_many(ranges)).await;
            assert_eq!(results.len() as u64, at);
            for (number, block) in (0_usize..).zip(results) {
                let (block, start) = (block?, number * 24 * 1024);
                if content().get(start..start + 100).is_some_and(|expected| block[..] != *expected) {
                    return Err("bytes that differ".into());
                }
            }
            Ok(cost)
        };
        seen.push(meter::sweep(&RANGES, points, ideal, attempt).await);
        Ok(seen)
    });
}

/// Regression: a cache that was no larger than its pages stayed empty, and read a whole page for each record.
fn sizes(points: Points) {
    judge(async |engine| {
        let mut seen = Vec::new();
        let attempt = async |at: u64| -> Attempt {
            let options = CacheOptions::new().bytes_max(8 * MIB).page_bytes(at);
            read_twice(&opened(engine, options).await?, ODD..ODD + 100).await
        };
        let ideal = |at: u64| Cost::together(1, at.clamp(4096, 256 * KIB).next_power_of_two());
        seen.push(meter::sweep(&PAGE_BYTES, points, ideal, attempt).await);

        // Pages of 256 KiB, or half of the cache.
        let attempt = async |at: u64| -> Attempt {
            let options = CacheOptions::new().bytes_max(at).page_bytes(256 * KIB);
            let file = opened(engine, options).await?;
            let cost = read_twice(&file, ODD..ODD + 100).await?;
            match cost.requests {
                1 => Ok(cost),
                requests => Err(format!("{requests} requests for one page").into()),
            }
        };
        let ideal = |at: u64| Cost::together(1, 1 << (at / 2).clamp(4096, 256 * KIB).ilog2());
        seen.push(meter::sweep(&BYTES, points, ideal, attempt).await);
        Ok(seen)
    });
}

#[test]
fn reads_of_every_length_and_number() {
    lengths_and_numbers(Axis::points);
}

#[test]
fn caches_and_pages_of_every_size() {
    sizes(Axis::points);
}

#[test]
#[ignore = "half a minute: the points between those of every gate"]
fn the_points_between() {
    lengths_and_numbers(Axis::all_points);
    sizes(Axis::all_points);
}
