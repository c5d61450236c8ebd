//! The cost for a disk of operations of the core, at every length and number that a user may choose (forebay-test/SWEEPS.md). A
//! failure prints each point of its axis with its counts.

use std::iter;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use forebay::{Block, BlockMut, Class, Config, Durability, Engine, Error, File, Open, Scan, Walk};
use forebay_sim::{self as sim, World};
use forebay_test::sweep::meter::{self, Attempt, count};
use forebay_test::sweep::{Axis, BLOCK, Cost, Limit, Points, Step, Sweep};
use futures::future::{join_all, try_join_all};

use crate::common::bytes_of;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
/// The I/O memory of these engines. Reads of more than a quarter of it are long.
const ARENA: u64 = 4 * MIB;
const SMALL_ARENA: u64 = 256 * KIB;
/// The bytes at the front of the file; behind them it is sparse, and reads as zeros.
const LEN: u64 = 10 * MIB;
/// The length of the sparse file: the simulated file system ends a little behind it.
const SPARSE: u64 = 15 * TIB;
/// A place where nothing is aligned.
const ODD: u64 = 1_000;
/// The distance of ranges that are too far apart to be read together.
const APART: u64 = 24 * KIB;
/// The most bytes of one request to its own memory, and through I/O memory; the depths of a batch and of a shard.
const PART: u64 = 8 * MIB;
const BOUNCE: u64 = 256 * KIB;
const BATCH_DEPTH: u64 = 128;
const SHARD_DEPTH: u64 = 256;
const LENT_DEPTH: u64 = 8;

static READ_LENGTH: Axis = Axis {
    name: "core read length",
    unit: "bytes",
    package: "forebay",
    range: 0..=9 * MIB,
    crosses: &[
        ("BUFFER_BYTES_MIN", 4096),
        ("PIECE_BYTES", 64 << 10),
        ("SHORT_BYTES_MIN", 128 << 10),
        ("LONG_PART", 4),
        ("HUGE_FROM_BYTES", 4 << 20),
    ],
    steps: &[],
    limit: None,
};
static LENT_LENGTH: Axis = Axis {
    name: "core lent length",
    unit: "bytes",
    package: "forebay",
    range: 1..=9 * MIB,
    crosses: &[
        ("PART_BYTES", 8 << 20),
        ("BOUNCE_BYTES", 256 << 10),
        ("MIDDLE_BYTES_MIN", 16 << 10),
        ("DEPTH", 8),
    ],
    steps: &[Step {
        range: 8 * MIB + 1..=9 * MIB,
        percent: 150,
        neighbours: 300,
        reason: "what is no multiple of a block is read apart, beside the last part or after it",
    }],
    limit: None,
};
static WRITE_LENGTH: Axis = Axis {
    name: "core write length",
    unit: "bytes",
    package: "forebay",
    range: 1..=MIB,
    crosses: &[],
    steps: &[],
    limit: None,
};
static BATCH_LENGTH: Axis = Axis {
    name: "core batch length",
    unit: "bytes",
    package: "forebay",
    range: 0..=9 * MIB,
    crosses: &[("DEPTH", 8)],
    steps: &[],
    limit: None,
};
static BATCH_RANGES: Axis = Axis {
    name: "core batch ranges",
    unit: "ranges",
    package: "forebay",
    range: 0..=2048,
    crosses: &[("DEPTH", 128)],
    steps: &[],
    limit: None,
};
static BATCH_GAP: Axis = Axis {
    name: "core batch gap",
    unit: "bytes",
    package: "forebay",
    range: 0..=128 * KIB,
    crosses: &[],
    steps: &[],
    limit: None,
};
static OFFSET: Axis = Axis {
    name: "core offset",
    unit: "bytes",
    package: "forebay",
    range: 0..=SPARSE - BLOCK,
    crosses: &[],
    steps: &[],
    limit: None,
};
static DEPTH: Axis = Axis {
    name: "core depth",
    unit: "reads at once",
    package: "forebay",
    range: 1..=1024,
    crosses: &[],
    steps: &[],
    limit: None,
};
static OPEN_FILES: Axis = Axis {
    name: "core open files",
    unit: "files",
    package: "forebay",
    range: 1..=2048,
    crosses: &[],
    steps: &[],
    limit: None,
};
static SCAN_LENGTH: Axis = Axis {
    name: "core scan length",
    unit: "bytes",
    package: "forebay",
    range: 0..=2 * MIB,
    crosses: &[],
    steps: &[],
    limit: None,
};
static WHOLE_SCAN: Axis = Axis {
    name: "core whole scan",
    unit: "bytes",
    package: "forebay",
    range: 0..=9 * MIB,
    crosses: &[
        ("RAMP_BUFFER", 128 << 10),
        ("RAMP_DEPTH", 2),
        ("ADAPTIVE_BUFFER", 512 << 10),
        ("ADAPTIVE_DEPTH", 8),
    ],
    steps: &[],
    limit: None,
};
static APPEND_LENGTH: Axis = Axis {
    name: "core append length",
    unit: "bytes",
    package: "forebay",
    range: 1..=2 * MIB,
    crosses: &[],
    steps: &[],
    limit: None,
};
static SLOW_SCAN: Axis = Axis {
    name: "core slow scan",
    unit: "blocks taken later than they were read",
    package: "forebay",
    // Before that it is on its way to eight requests.
    range: 5..=300,
    crosses: &[("SLOWER_GROW", 32), ("SLOWER_SHRINK", 64)],
    steps: &[],
    limit: None,
};
static WALK_RANGES: Axis = Axis {
    name: "core walk ranges",
    unit: "ranges of a step",
    package: "forebay",
    range: 1..=33,
    crosses: &[("RANGES_MAX", 16)],
    steps: &[],
    limit: Some(Limit { most: 16, words: &["16 ranges", "in a later step"] }),
};
static ARENA_BYTES: Axis = Axis {
    name: "core arena",
    unit: "bytes",
    package: "forebay",
    range: 8 * MIB..=1024 * MIB,
    crosses: &[],
    steps: &[],
    limit: None,
};
static LONGEST_READ: Axis = Axis {
    name: "core longest read",
    unit: "bytes",
    package: "forebay",
    range: 1024 * MIB - 1..=1024 * MIB + 1,
    crosses: &[("BUFFER_BYTES_MAX", 1 << 30)],
    steps: &[],
    limit: Some(Limit { most: 1 << 30, words: &["1073741824", "read_many", "read_into"] }),
};
static OPERATIONS: Axis = Axis {
    name: "core operations",
    unit: "reads at once",
    package: "forebay",
    range: (1 << 20) - 1..=(1 << 20) + 1,
    crosses: &[("SLOTS_MAX", 1 << 20)],
    steps: &[],
    limit: None,
};
static WALKS: Axis = Axis {
    name: "core walks",
    unit: "walks at once",
    package: "forebay",
    range: (1 << 16) - 1..=(1 << 16) + 1,
    crosses: &[("WALKS_MAX", 1 << 16)],
    steps: &[],
    limit: None,
};

/// Returns the first bytes of the file. Made once: test builds are slow at that.
fn content() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| bytes_of(0..LEN))
}

fn check(found: &[u8], offset: u64, len: u64) -> Result<(), String> {
    let is_right = *found == content()[offset as usize..(offset + len) as usize];
    if is_right { Ok(()) } else { Err(format!("{} bytes that differ from what was written", found.len())) }
}

fn world(arena: u64) -> World {
    meter::world().config(Config::new().arena_bytes(arena as usize).arena_bytes_max(arena as usize))
}

/// Makes the file of these worlds.
async fn fill(engine: &Engine) -> forebay::Result<()> {
    let file = engine.open("/disk/file", Open::create()).await?;
    let mut append = file.append().request_bytes(64 << 10).depth(2).start();
    append.write(content()).await?;
    append.close().await?;
    file.truncate(SPARSE).await
}

/// Runs sweeps in a separate world, and checks their results.
fn judge(sweeps: impl AsyncFnOnce(&Engine) -> forebay::Result<Vec<Sweep<'static>>>) {
    judge_with(ARENA, sweeps);
}

fn judge_with(arena: u64, sweeps: impl AsyncFnOnce(&Engine) -> forebay::Result<Vec<Sweep<'static>>>) {
    let ran = world(arena).run(async |engine| {
        fill(&engine).await?;
        sweeps(&engine).await
    });
    let seen = ran.unwrap_or_else(|failure| panic!("{failure}")).expect("the files open");
    Sweep::judge_all(&seen);
}

fn modes() -> [Open; 3] {
    [Open::read(), Open::read().buffered(), Open::read().adaptive()]
}

/// Returns the cost of `bytes` in requests of up to `most`, `depth` in flight.
fn in_parts(bytes: u64, most: u64, depth: u64) -> Cost {
    let requests = bytes.div_ceil(most);
    Cost::together(requests, bytes).in_rounds(requests.div_ceil(depth))
}

fn read_length(points: Points) {
    // In the smaller memory reads are long from the least length on, in the other one from a quarter of it.
    for arena in [SMALL_ARENA, ARENA] {
        judge_with(arena, async |engine| {
            let mut seen = Vec::new();
            for open in modes() {
                let file = engine.open("/disk/file", open).await?;
                let ideal = |at: u64| if at == 0 { Cost::default() } else { in_parts(ODD + at, PART, 1) };
                let attempt = async |at: u64| -> Attempt {
                    let (block, cost) = count(file.read(ODD..ODD + at)).await;
                    check(&block?, ODD, at)?;
                    Ok(cost)
                };
                seen.push(meter::sweep(&READ_LENGTH, points, ideal, attempt).await);
            }
            Ok(seen)
        });
    }
}

fn lent_length(points: Points) {
    judge(async |engine| {
        let mut seen = Vec::new();
        // At offset 0 requests name the memory itself; at the odd offset all is copied through I/O memory.
        for (offset, part) in [(0, PART), (ODD, BOUNCE)] {
            let file = engine.open("/disk/file", Open::read()).await?;
            let ideal = |at: u64| in_parts(offset + at, part, LENT_DEPTH);
            let attempt = async |at: u64| -> Attempt {
                let memory = BlockMut::aligned(at as usize)?;
                let ((read, memory), cost) = count(file.read_into(offset, memory)).await;
                assert_eq!(read? as u64, at);
                check(&memory, offset, at)?;
                Ok(cost)
            };
            seen.push(meter::sweep(&LENT_LENGTH, points, ideal, attempt).await);
        }
        let file = engine.open("/disk/lent", Open::create()).await?;
        let units = |at: u64| at.next_multiple_of(BLOCK);
        let ideal = |at: u64| in_parts(units(at), PART, LENT_DEPTH);
        let attempt = async |at: u64| -> Attempt {
            let mut memory = BlockMut::aligned(units(at) as usize)?;
            memory.copy_from_slice(&content()[..units(at) as usize]);
            let ((written, _), cost) = count(file.write_from(0, memory)).await;
            written?;
            let (read, memory) = file.read_into(0, BlockMut::aligned(units(at) as usize)?).await;
            assert_eq!(read? as u64, units(at));
            check(&memory, 0, units(at))?;
            Ok(cost)
        };
        seen.push(meter::sweep(&LENT_LENGTH, points, ideal, attempt).await);
        Ok(seen)
    });
}

fn write_length(points: Points) {
    judge(async |engine| {
        let mut seen = Vec::new();
        for is_direct in [true, false] {
            let open = if is_direct { Open::create() } else { Open::create().buffered() };
            let file = engine.open("/disk/written", open).await?;
            // A direct file has whole blocks only.
            let len = |at: u64| if is_direct { at.next_multiple_of(BLOCK) } else { at };
            let ideal = |at: u64| Cost::together(1, len(at)).with_flushes(1).in_rounds(2);
            let attempt = async |at: u64| -> Attempt {
                let bytes = content()[..len(at) as usize].to_vec();
                let (written, cost) = count(file.write(0, bytes).durable(Durability::Data)).await;
                written?;
                check(&file.read(0..len(at)).await?, 0, len(at))?;
                Ok(cost)
            };
            seen.push(meter::sweep(&WRITE_LENGTH, points, ideal, attempt).await);
        }
        Ok(seen)
    });
}

fn batches(points: Points) {
    /// The bytes of each range.
    const RANGE: u64 = 512;
    /// The longest gap that is read in vain: the default.
    const GAP: u64 = 16 * KIB;
    judge(async |engine| {
        let file = engine.open("/disk/file", Open::read()).await?;
        let mut seen = Vec::new();

        let ideal =
            |at: u64| if at == 0 { Cost::default() } else { in_parts(ODD + at, ARENA / 4, LENT_DEPTH) };
        let attempt = async |at: u64| -> Attempt {
            let (blocks, cost) = count(file.read_many(iter::once(ODD..ODD + at))).await;
            for block in blocks? {
                check(&block?, ODD, at)?;
            }
            Ok(cost)
        };
        seen.push(meter::sweep(&BATCH_LENGTH, points, ideal, attempt).await);

        let ideal = |at: u64| in_parts(at * BLOCK, BLOCK, BATCH_DEPTH);
        let attempt = async |at: u64| -> Attempt {
            let ranges = (0..at).map(|number| number * APART..number * APART + RANGE);
            let (blocks, cost) = count(file.read_many(ranges)).await;
            let blocks = blocks?.into_iter().collect::<forebay::Result<Vec<_>>>()?;
            assert_eq!(blocks.len() as u64, at);
            for (number, block) in (0..LEN / APART).zip(&blocks) {
                check(block, number * APART, RANGE)?;
            }
            Ok(cost)
        };
        seen.push(meter::sweep(&BATCH_RANGES, points, ideal, attempt).await);

        let ideal = |at: u64| {
            let bytes = 2 * BLOCK + if at <= GAP { at.next_multiple_of(BLOCK) } else { 0 };
            Cost::together(if at <= GAP { 1 } else { 2 }, bytes)
        };
        let attempt = async |at: u64| -> Attempt {
            let (blocks, cost) = count(file.read_many([0..BLOCK, BLOCK + at..2 * BLOCK + at])).await;
            let blocks = blocks?.into_iter().collect::<forebay::Result<Vec<_>>>()?;
            check(&blocks[0], 0, BLOCK)?;
            check(&blocks[1], BLOCK + at, BLOCK)?;
            Ok(cost)
        };
        seen.push(meter::sweep(&BATCH_GAP, points, ideal, attempt).await);
        Ok(seen)
    });
}

fn offsets_depths_and_files(points: Points) {
    judge(async |engine| {
        let file = engine.open("/disk/file", Open::read()).await?;
        let mut seen = Vec::new();

        let ideal = |at: u64| Cost::together(1, at % BLOCK + BLOCK);
        let attempt = async |at: u64| -> Attempt {
            let (block, cost) = count(file.read(at..at + BLOCK)).await;
            let block = block?;
            if at + BLOCK <= LEN {
                check(&block, at, BLOCK)?;
            } else if at >= LEN && block.iter().any(|&byte| byte != 0) {
                return Err("bytes in a hole".into());
            }
            Ok(cost)
        };
        seen.push(meter::sweep(&OFFSET, points, ideal, attempt).await);

        let ideal = |at: u64| in_parts(at * BLOCK, BLOCK, SHARD_DEPTH);
        let attempt = async |at: u64| -> Attempt {
            let reads = (0..at).map(|number| file.read(number * BLOCK..(number + 1) * BLOCK));
            let (blocks, cost) = count(join_all(reads)).await;
            for (number, block) in (0..at).zip(blocks) {
                check(&block?, number * BLOCK, BLOCK)?;
            }
            Ok(cost)
        };
        seen.push(meter::sweep(&DEPTH, points, ideal, attempt).await);

        let attempt = async |at: u64| -> Attempt {
            let opens = (0..at).map(|_| engine.open("/disk/file", Open::read()));
            let files: Vec<File> = try_join_all(opens).await?;
            let (blocks, cost) = count(join_all(files.iter().map(|file| file.read(0..BLOCK)))).await;
            for block in blocks {
                check(&block?, 0, BLOCK)?;
            }
            Ok(cost)
        };
        seen.push(meter::sweep(&OPEN_FILES, points, ideal, attempt).await);
        Ok(seen)
    });
}

async fn scanned(mut scan: Scan) -> forebay::Result<Vec<u8>> {
    let mut found = Vec::new();
    while let Some(block) = scan.next().await {
        found.extend_from_slice(&block?);
    }
    Ok(found)
}

fn scans_and_appends(points: Points) {
    const REQUEST: u64 = 64 * KIB;
    const IN_FLIGHT: u64 = 4;
    judge(async |engine| {
        let file = engine.open("/disk/file", Open::read()).await?;
        let mut seen = Vec::new();
        let ideal = |at: u64| in_parts(at, REQUEST, IN_FLIGHT);

        let attempt = async |at: u64| -> Attempt {
            let scan = file.scan().range(0..at).request_bytes(REQUEST as usize).depth(IN_FLIGHT as usize);
            let (found, cost) = count(scanned(scan.start())).await;
            check(&found?, 0, at)?;
            Ok(cost)
        };
        seen.push(meter::sweep(&SCAN_LENGTH, points, ideal, attempt).await);

        // Its requests become longer, and more, as it is waited for.
        let adaptive = |at: u64| match at {
            0 => Cost::default(),
            _ => Cost::together(at.div_ceil(256 * KIB), at).in_rounds(2 + at / (2 * MIB)),
        };
        let attempt = async |at: u64| -> Attempt {
            let (found, cost) = count(scanned(file.scan().range(0..at).start())).await;
            check(&found?, 0, at)?;
            Ok(cost)
        };
        seen.push(meter::sweep(&WHOLE_SCAN, points, adaptive, attempt).await);

        let file = engine.open("/disk/appended", Open::create()).await?;
        let attempt = async |at: u64| -> Attempt {
            let append = file.append().request_bytes(REQUEST as usize).depth(IN_FLIGHT as usize);
            let (written, cost) = count(async {
                let mut append = append.start();
                append.write(&content()[..at as usize]).await?;
                append.close().await
            })
            .await;
            assert_eq!(written?, at);
            check(&file.read(0..at).await?, 0, at)?;
            Ok(cost)
        };
        seen.push(meter::sweep(&APPEND_LENGTH, points, ideal, attempt).await);
        Ok(seen)
    });
}

/// A consumer that takes each block when the one behind it has long been read. The costs are the requests ahead of it. Regression:
/// a scan that had reduced its depth raised it again a block later, so a slow consumer held eight blocks for ever.
fn slow_scans(points: Points) {
    // Memory for all reads of a scan in flight, and the last returned block.
    judge_with(16 * MIB, async |engine| {
        let file = engine.open("/disk/file", Open::read()).await?;
        // Eight, and behind the 64th block one less for each 33 that were there before they were asked for.
        let ideal = |at: u64| Cost {
            requests: 8_u64.saturating_sub(at.saturating_sub(32) / 33).max(2),
            ..Cost::default()
        };
        let attempt = async |at: u64| -> Attempt {
            let mut scan = file.scan().start();
            let (taken, cost) = count(async {
                for _ in 0..at {
                    drop(scan.next().await.ok_or("the file is longer")??);
                    sim::sleep(Duration::from_secs(1)).await?;
                }
                Ok::<_, Box<dyn std::error::Error>>(())
            })
            .await;
            taken?;
            Ok(Cost { requests: cost.requests - at, ..Cost::default() })
        };
        Ok(vec![meter::sweep(&SLOW_SCAN, points, ideal, attempt).await])
    });
}

/// A walk whose first step reads this many ranges concurrently. Returns whether all bytes are right.
struct Fan {
    ranges: u64,
    left: Option<u64>,
    is_right: bool,
}

impl Fan {
    fn of(ranges: u64) -> Fan {
        Fan { ranges, left: None, is_right: true }
    }
}

impl Walk for Fan {
    type Output = bool;
    type Error = Error;

    fn step(&mut self, block: &Block, at: Range<u64>) -> forebay::Step<bool, Error> {
        self.is_right &= block[..] == content()[at.start as usize..at.end as usize];
        let Some(left) = self.left else {
            self.left = Some(self.ranges);
            let ranges = (0..self.ranges).map(|number| number * APART..number * APART + 512);
            return forebay::Step::read_each(ranges);
        };
        self.left = Some(left - 1);
        if left == 1 { forebay::Step::Done(self.is_right) } else { forebay::Step::Wait }
    }
}

fn walks(points: Points) {
    judge(async |engine| {
        let file = engine.open("/disk/file", Open::read()).await?;
        let ideal = |at: u64| Cost::together(1 + at, (1 + at) * BLOCK).in_rounds(2);
        let attempt = async |at: u64| -> Attempt {
            let (walked, cost) = count(file.walk(0..512, Fan::of(at))).await;
            if walked? { Ok(cost) } else { Err("bytes that differ".into()) }
        };
        Ok(vec![meter::sweep(&WALK_RANGES, points, ideal, attempt).await])
    });
}

/// I/O memory of every size, each in a separate world: the same requests.
fn arenas(points: Points) {
    let mut sweep = Sweep::new(&ARENA_BYTES);
    for at in points(&ARENA_BYTES) {
        let attempt = async |engine: Engine| -> Attempt {
            let file = engine.open("/disk/file", Open::create()).await?;
            file.write(0, content()[..2 * MIB as usize].to_vec()).await?;
            meter::rest().await;
            let work = async {
                let long = file.read(ODD..ODD + MIB);
                let short = (0_u64..128).map(|number| file.read(number * BLOCK..(number + 1) * BLOCK));
                futures::future::join(long, join_all(short)).await
            };
            let ((long, short), cost) = count(work).await;
            check(&long?, ODD, MIB)?;
            for (number, block) in (0_u64..).zip(short) {
                check(&block?, number * BLOCK, BLOCK)?;
            }
            Ok(cost)
        };
        let config = Config::new().arena_bytes_max(at as usize);
        let outcome = match meter::world().config(config).run(attempt) {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            Err(failure) => Err(failure.to_string()),
        };
        sweep.add(at, Cost::together(129, ODD + MIB + 129 * BLOCK), outcome);
    }
    Sweep::judge_all(&[sweep]);
}

/// A gibibyte, and a million operations and 65,536 walks in flight.
fn most(points: Points) {
    let ran = meter::world().config(Config::new().shards(1)).steps_max(u64::MAX).run(
        async |engine| -> forebay::Result<_> {
            fill(&engine).await?;
            let file = engine.open("/disk/file", Open::read()).await?;
            let mut seen = Vec::new();

            let ideal = |at: u64| in_parts(at, PART, 1);
            let attempt = async |at: u64| -> Attempt {
                let (block, cost) = count(file.read(0..at)).await;
                let block = block?;
                check(&block[..LEN as usize], 0, LEN)?;
                assert!(block.len() as u64 == at && block[at as usize - 1] == 0);
                Ok(cost)
            };
            seen.push(meter::sweep(&LONGEST_READ, points, ideal, attempt).await);

            // No block is kept: they would be all of I/O memory.
            let ideal = |at: u64| in_parts(at * BLOCK, BLOCK, SHARD_DEPTH);
            let attempt = async |at: u64| -> Attempt {
                let file = file.clone();
                let reads = move || async move {
                    let read = async |number: u64| {
                        let offset = number % (LEN / BLOCK) * BLOCK;
                        file.read(offset..offset + BLOCK).await.map(drop)
                    };
                    join_all((0..at).map(read)).await.into_iter().collect::<forebay::Result<()>>()
                };
                let (done, cost) = count(engine.spawn_on_shard(0, Class::DEFAULT, reads)).await;
                done??;
                Ok(cost)
            };
            seen.push(meter::sweep(&OPERATIONS, points, ideal, attempt).await);

            let ideal = |at: u64| in_parts(2 * at * BLOCK, BLOCK, SHARD_DEPTH);
            let attempt = async |at: u64| -> Attempt {
                let file = file.clone();
                let walks = move || async move {
                    let walks = (0..at).map(|_| file.walk(0..512, Fan::of(1)));
                    join_all(walks).await.into_iter().collect::<forebay::Result<Vec<bool>>>()
                };
                let (done, cost) = count(engine.spawn_on_shard(0, Class::DEFAULT, walks)).await;
                if done??.contains(&false) { Err("bytes that differ".into()) } else { Ok(cost) }
            };
            seen.push(meter::sweep(&WALKS, points, ideal, attempt).await);
            Ok(seen)
        },
    );
    let seen = ran.unwrap_or_else(|failure| panic!("{failure}")).expect("the files open");
    Sweep::judge_all(&seen);
}

#[test]
fn reads_of_every_length() {
    read_length(Axis::points);
}

#[test]
fn lent_memory_of_every_length() {
    lent_length(Axis::points);
}

#[test]
fn writes_of_every_length() {
    write_length(Axis::points);
}

#[test]
fn batches_of_every_length_number_and_gap() {
    batches(Axis::points);
}

#[test]
fn every_offset_depth_and_number_of_files() {
    offsets_depths_and_files(Axis::points);
}

#[test]
fn scans_and_appends_of_every_length() {
    scans_and_appends(Axis::points);
}

#[test]
fn scans_of_a_slow_consumer() {
    slow_scans(Axis::points);
}

#[test]
fn walks_of_every_width() {
    walks(Axis::points);
}

#[test]
fn arenas_of_every_size() {
    arenas(Axis::points);
}

#[test]
#[ignore = "a minute and some gibibytes of memory: a million operations at once, and a block of 1 GiB"]
fn the_most_of_a_shard() {
    most(Axis::points);
}

#[test]
#[ignore = "a minute: the points between those of every gate"]
fn the_points_between() {
    let sweeps =
        [read_length, lent_length, write_length, batches, offsets_depths_and_files, scans_and_appends];
    for sweep in sweeps.into_iter().chain([slow_scans, walks, arenas]) {
        sweep(Axis::all_points);
    }
}
