//! The workloads: one a row, on an engine with one shard.

use std::hint::black_box;
use std::ops::Range;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use forebay::{Block, Class, Config, DriverChoice, Engine, File, Open, shard};

use crate::Result;

/// Length of the test file.
pub(crate) const FILE_BYTES: u64 = 4 << 20;
const PAGE_BYTES: u64 = 4096;
/// Ranges of a batch: one page each, too far apart to be merged.
const BATCH_RANGES: u64 = 64;
const BATCH_STEP_BYTES: u64 = FILE_BYTES / BATCH_RANGES;
/// Pairs of segments in one process: N operations, then 2N.
pub(crate) const PAIRS: usize = 3;

/// One line of the table.
pub(crate) struct Row {
    /// The row's name for `--rows`.
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) driver: DriverChoice,
    workload: Workload,
    /// The thread whose instructions are counted: the shard's, or the caller's.
    pub(crate) side: Side,
    /// Operations of a segment: a multiple of 32, because one operation in 32 is timed.
    pub(crate) operations: u64,
}

/// The thread whose instructions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Shard,
    Caller,
}

#[derive(Clone, Copy)]
enum Workload {
    /// This many tasks on the shard, with one operation in flight each.
    Nop(u64),
    Read(u64),
    Write(u64),
    /// A batch of pages, from a task on the shard.
    ReadMany,
    /// A task that returns immediately, started on the shard and awaited there.
    Spawn,
    /// From a thread outside of the shards, one after the other.
    RemoteNop,
    RemoteRead,
}

const fn row(
    name: &'static str,
    what: &'static str,
    driver: DriverChoice,
    workload: Workload,
    operations: u64,
) -> Row {
    Row { name, what, driver, workload, side: Side::Shard, operations }
}

/// All rows, in the order of the table.
pub(crate) const ROWS: &[Row] = {
    use DriverChoice::{Threads, Uring};
    const {
        &[
            row("nop-1", "NOP, one task on the shard", Uring, Workload::Nop(1), 3200),
            row("nop-32", "NOP, 32 tasks on the shard", Uring, Workload::Nop(32), 9600),
            row("read-1", "4 KiB direct read, one task on the shard", Uring, Workload::Read(1), 3200),
            row("read-32", "4 KiB direct read, 32 tasks on the shard", Uring, Workload::Read(32), 9600),
            row("write-1", "4 KiB direct write, one task on the shard", Uring, Workload::Write(1), 3200),
            row("read-many-64", "batch of 64 pages, task on the shard", Uring, Workload::ReadMany, 96),
            row("spawn", "spawn and join a task on the shard", Uring, Workload::Spawn, 3200),
            row("remote-nop", "NOP from a thread, through the inbox", Uring, Workload::RemoteNop, 640),
            row(
                "remote-read",
                "4 KiB direct read from a thread, through the inbox",
                Uring,
                Workload::RemoteRead,
                1600,
            ),
            Row {
                side: Side::Caller,
                ..row(
                    "remote-read-caller",
                    "4 KiB direct read from a thread, what that thread does",
                    Uring,
                    Workload::RemoteRead,
                    640,
                )
            },
            row("threads-nop-1", "NOP, one task on the shard", Threads, Workload::Nop(1), 3200),
            row(
                "threads-read-1",
                "4 KiB direct read, one task on the shard",
                Threads,
                Workload::Read(1),
                1600,
            ),
            row(
                "threads-read-32",
                "4 KiB direct read, 32 tasks on the shard",
                Threads,
                Workload::Read(32),
                3200,
            ),
            row(
                "threads-write-1",
                "4 KiB direct write, one task on the shard",
                Threads,
                Workload::Write(1),
                1600,
            ),
        ]
    }
};

/// Callgrind is started with this function's name: it writes out the counters of the thread that enters it
/// and sets them to zero.
#[inline(never)]
fn forebay_segment_ends(operations: u64) {
    black_box(operations);
}

/// Runs the row's operations: a segment to warm up, then the pairs.
pub(crate) fn run(row: &Row, operations: u64, path: &Path) -> Result<()> {
    let config = Config::new().shards(1).driver(row.driver).spin(Duration::ZERO);
    let engine = Engine::start(config)?;
    let file = engine.open(path, Open::write()).wait()?;
    let warm_up = std::iter::once(operations);
    let pairs = [operations, operations * 2].into_iter().cycle().take(PAIRS * 2);
    let segments = warm_up.chain(pairs);
    match row.workload {
        Workload::RemoteNop | Workload::RemoteRead => {
            let woken = Arc::<Woken>::default();
            for count in segments {
                for i in 0..count {
                    match row.workload {
                        Workload::RemoteNop => wait(engine.nop(), &woken)?,
                        _ => drop(black_box(wait(file.read(page(i)).into_future(), &woken)?)),
                    }
                }
                match row.side {
                    Side::Caller => forebay_segment_ends(count),
                    Side::Shard => engine
                        .spawn_on_shard(0, Class::DEFAULT, move || async move { forebay_segment_ends(count) })
                        .wait()?,
                }
            }
        }
        workload => {
            let inner = engine.clone();
            let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
                for count in segments {
                    on_shard(&inner, &file, workload, count).await?;
                    forebay_segment_ends(count);
                }
                Ok::<(), forebay::Error>(())
            });
            task.wait()??;
        }
    }
    engine.close().wait()?;
    Ok(())
}

/// Set by the waker of an operation from outside of shards.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Waits for an operation without being woken: a thread that the shard wakes runs during the rest of the shard's turn, and chance
/// decides which of the two then frees their shared memory.
fn wait<T>(future: impl Future<Output = T>, woken: &Arc<Woken>) -> T {
    let waker = Waker::from(woken.clone());
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => forebay_caller_rests(woken),
        }
    }
}

/// Checks at intervals, and once again gives the shard time to fall asleep. Callgrind does not count the
/// instructions here. A rest that is too short makes a figure less precise, nothing else.
#[inline(never)]
fn forebay_caller_rests(woken: &Woken) {
    const REST: Duration = Duration::from_micros(200);
    while !woken.0.swap(false, Ordering::Acquire) {
        std::thread::park_timeout(REST);
    }
    std::thread::park_timeout(REST);
}

async fn on_shard(engine: &Engine, file: &File, workload: Workload, count: u64) -> forebay::Result<()> {
    match workload {
        Workload::Nop(depth) => {
            side_by_side(depth, count, async |engine: &Engine, _| engine.nop().await, engine).await
        }
        Workload::Read(depth) => {
            let read = async |file: &File, i| file.read(page(i)).await.map(|block| drop(black_box(block)));
            side_by_side(depth, count, read, file).await
        }
        Workload::Write(depth) => {
            let data = engine.block_from(&[7; PAGE_BYTES as usize])?.freeze();
            let write = async |(file, data): &(File, Block), i| file.write(page(i).start, data.clone()).await;
            side_by_side(depth, count, write, &(file.clone(), data)).await
        }
        Workload::ReadMany => {
            for _ in 0..count {
                let ranges =
                    (0..BATCH_RANGES).map(|i| i * BATCH_STEP_BYTES..i * BATCH_STEP_BYTES + PAGE_BYTES);
                for block in file.read_many(ranges).await? {
                    black_box(block?);
                }
            }
            Ok(())
        }
        Workload::Spawn => {
            for i in 0..count {
                black_box(shard::spawn(async move { i })?.await?);
            }
            Ok(())
        }
        Workload::RemoteNop | Workload::RemoteRead => Ok(()),
    }
}

/// Makes `count` operations from `depth` tasks; one task makes them itself.
async fn side_by_side<C: Clone + 'static>(
    depth: u64,
    count: u64,
    operation: impl AsyncFn(&C, u64) -> forebay::Result<()> + Copy + 'static,
    context: &C,
) -> forebay::Result<()> {
    if depth == 1 {
        return one_by_one(operation, context.clone(), 0..count, 1).await;
    }
    let tasks: Vec<_> = (0..depth)
        .map(|first| shard::spawn(one_by_one(operation, context.clone(), first..count, depth)))
        .collect();
    for task in tasks {
        task?.await??;
    }
    Ok(())
}

async fn one_by_one<C>(
    operation: impl AsyncFn(&C, u64) -> forebay::Result<()>,
    context: C,
    numbers: Range<u64>,
    step: u64,
) -> forebay::Result<()> {
    let mut i = numbers.start;
    while i < numbers.end {
        operation(&context, i).await?;
        i += step;
    }
    Ok(())
}

/// Returns the page of the `i`th operation: in order and round again, so that a run makes the same requests
/// of the device every time.
fn page(i: u64) -> Range<u64> {
    let start = i * PAGE_BYTES % FILE_BYTES;
    start..start + PAGE_BYTES
}
