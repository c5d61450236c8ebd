//! The cost of blocking a worker of a runtime: a Tokio runtime with two workers reads a file in five ways next to a timer task that
//! should wake every millisecond; then reads next to tasks that compute.
//!
//! Run with `cargo run --release -p forebay --example blocking [repeats]`; it writes 256 MiB into the current folder and removes
//! them again. A repeat takes 14 seconds; the default is one. The ways are interleaved, and each figure is the median of the
//! repeats. `docs/modes.md` has figures of this program.

use std::error::Error;
use std::fs::File as StdFile;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay::{Class, Config, Durability, Engine, File, Open};
use tokio::runtime::Runtime;

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 256 * MIB;
const READ_BYTES: usize = 4096;
const WORKERS: usize = 2;
/// Tasks that read, each one read after the other.
const TASKS: u64 = 8;
const PERIOD: Duration = Duration::from_millis(1);
const MEASURED: Duration = Duration::from_secs(1);
/// The time that a computing task keeps its worker between two yields.
const COMPUTE: Duration = Duration::from_millis(10);

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A way to read from a Tokio task.
#[derive(Clone, Copy)]
enum Way {
    Nothing,
    Await,
    WaitOnWorker,
    PreadOnWorker,
    BlockInPlace,
    SpawnBlocking,
}

/// Each way, with the reads that a task makes before it yields to others.
const WAYS: [(Way, u32, &str); 8] = [
    (Way::Nothing, 1, "no reads"),
    (Way::Await, 64, "read(..).await"),
    (Way::WaitOnWorker, 1, "read(..).wait() on the worker"),
    (Way::WaitOnWorker, 64, "read(..).wait() on the worker"),
    (Way::PreadOnWorker, 1, "pread on the worker"),
    (Way::PreadOnWorker, 64, "pread on the worker"),
    (Way::BlockInPlace, 64, "block_in_place, read(..).wait()"),
    (Way::SpawnBlocking, 64, "spawn_blocking, pread"),
];

/// A place to read from, one read after the other, next to tasks that compute.
#[derive(Clone, Copy)]
enum Place {
    Task,
    BlockingPool,
    Shard,
}

const PLACES: [(Place, bool, &str); 6] = [
    (Place::Task, false, "a Tokio task, idle workers"),
    (Place::BlockingPool, false, "spawn_blocking, idle workers"),
    (Place::Shard, false, "a task on a shard, idle workers"),
    (Place::Task, true, "a Tokio task, workers compute"),
    (Place::BlockingPool, true, "spawn_blocking, workers compute"),
    (Place::Shard, true, "a task on a shard, workers compute"),
];

fn main() -> Result<()> {
    let repeats = std::env::args().nth(1).map_or(Ok(1), |count| count.parse::<usize>())?.max(1);
    let path = std::env::current_dir()?.join(format!("blocking-{}.tmp", std::process::id()));
    let engine = Engine::start(Config::new())?;
    let measured = measure(&engine, &path, repeats);
    std::fs::remove_file(&path)?;
    engine.close().wait()?;
    measured
}

fn measure(engine: &Engine, path: &std::path::Path, repeats: usize) -> Result<()> {
    let file = engine.open(path, Open::create()).wait()?;
    for at in (0..FILE_BYTES).step_by(MIB as usize) {
        file.write(at, vec![at as u8; MIB as usize]).wait()?;
    }
    file.sync(Durability::All).wait()?;
    let std_file = Arc::new(open_direct(path)?);

    let mut beside = vec![Vec::new(); WAYS.len()];
    let mut latencies = vec![Vec::new(); PLACES.len()];
    for _ in 0..repeats {
        for (index, (way, run, _)) in WAYS.iter().enumerate() {
            beside[index].push(runtime()?.block_on(timer_beside(*way, *run, &file, &std_file))?);
        }
        for (index, (place, computes, _)) in PLACES.iter().enumerate() {
            let found = runtime()?.block_on(read_latency(*place, *computes, engine, &file, &std_file))?;
            latencies[index].push(found);
        }
    }

    println!("{TASKS} tasks read {READ_BYTES} bytes each, {WORKERS} workers; a timer every {PERIOD:?}");
    println!("{:34}{:>12}{:>12}{:>12}{:>12}", "way", "reads/yield", "p50 late", "p99 late", "reads/s");
    for ((_, run, name), runs) in WAYS.iter().zip(&beside) {
        let [p50, p99, rate] = medians(runs);
        println!("{name:34}{run:>12}{:>9.2} ms{:>9.2} ms{rate:>12.0}", p50 / 1e6, p99 / 1e6);
    }
    println!("\none read at a time, beside {WORKERS} tasks that compute {COMPUTE:?} between yields");
    println!("{:38}{:>12}{:>12}{:>12}", "place", "read p50", "read p99", "reads/s");
    for ((_, _, name), runs) in PLACES.iter().zip(&latencies) {
        let [p50, p99, rate] = medians(runs);
        println!("{name:38}{:>9.2} ms{:>9.2} ms{rate:>12.0}", p50 / 1e6, p99 / 1e6);
    }
    Ok(())
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?)
}

/// Returns the timer's p50 and p99 lateness in nanoseconds, and the reads a second.
async fn timer_beside(way: Way, run: u32, file: &File, std_file: &Arc<StdFile>) -> Result<[f64; 3]> {
    let over = Arc::new(AtomicBool::new(false));
    let reads = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    // A separate task: the future of `block_on` is not on a worker.
    let timer = tokio::spawn(late_ns(begun + MEASURED));
    let mut tasks = Vec::new();
    if !matches!(way, Way::Nothing) {
        for number in 0..TASKS {
            let (file, std_file) = (file.clone(), std_file.clone());
            let (over, reads) = (over.clone(), reads.clone());
            tasks.push(tokio::spawn(async move {
                let mut places = Places::new(number);
                while !over.load(Ordering::Relaxed) {
                    for _ in 0..run {
                        read_by(way, &file, &std_file, places.next()).await?;
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                    // A wait or a pread is not an await; without this the task would never leave its worker.
                    tokio::task::yield_now().await;
                }
                Result::Ok(())
            }));
        }
    }
    let late = timer.await?;
    let rate = reads.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await??;
    }
    Ok([quantile(&late, 0.5), quantile(&late, 0.99), rate])
}

/// Returns how late each wake-up of a timer was, in nanoseconds, until `end`.
async fn late_ns(end: Instant) -> Vec<u64> {
    let mut late = Vec::new();
    while Instant::now() < end {
        let due = Instant::now() + PERIOD;
        tokio::time::sleep_until(due.into()).await;
        late.push(due.elapsed().as_nanos() as u64);
    }
    late
}

async fn read_by(way: Way, file: &File, std_file: &Arc<StdFile>, at: u64) -> Result<()> {
    let range = at..at + READ_BYTES as u64;
    match way {
        Way::Nothing => {}
        Way::Await => drop(file.read(range).await?),
        Way::WaitOnWorker => drop(file.read(range).wait()?),
        Way::PreadOnWorker => pread(std_file, at)?,
        Way::BlockInPlace => drop(tokio::task::block_in_place(|| file.read(range).wait())?),
        Way::SpawnBlocking => {
            let std_file = std_file.clone();
            tokio::task::spawn_blocking(move || pread(&std_file, at)).await??;
        }
    }
    Ok(())
}

/// Returns the p50 and p99 latency in nanoseconds of one read at a time, and the reads a second.
async fn read_latency(
    place: Place,
    computes: bool,
    engine: &Engine,
    file: &File,
    std_file: &Arc<StdFile>,
) -> Result<[f64; 3]> {
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..if computes { WORKERS } else { 0 } {
        let over = over.clone();
        tasks.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                while begun.elapsed() < COMPUTE {
                    std::hint::spin_loop();
                }
                tokio::task::yield_now().await;
            }
        }));
    }
    let begun = Instant::now();
    let end = begun + MEASURED;
    let (file, std_file) = (file.clone(), std_file.clone());
    let reader = move || async move {
        let mut places = Places::new(7);
        let mut took = Vec::new();
        while Instant::now() < end {
            let (at, read) = (places.next(), Instant::now());
            let way = if matches!(place, Place::BlockingPool) { Way::SpawnBlocking } else { Way::Await };
            read_by(way, &file, &std_file, at).await?;
            took.push(read.elapsed().as_nanos() as u64);
        }
        Result::Ok(took)
    };
    let took = match place {
        Place::Shard => engine.spawn_on_shard(0, Class::DEFAULT, reader).await??,
        Place::Task | Place::BlockingPool => tokio::spawn(reader()).await??,
    };
    let rate = took.len() as f64 / begun.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await?;
    }
    Ok([quantile(&took, 0.5), quantile(&took, 0.99), rate])
}

/// Opens a file past the page cache, where the system can.
fn open_direct(path: &std::path::Path) -> Result<StdFile> {
    let mut options = StdFile::options();
    options.read(true);
    #[cfg(target_os = "linux")]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_DIRECT);
    Ok(options.open(path)?)
}

/// Reads a page into memory at an address that direct I/O accepts.
fn pread(file: &StdFile, at: u64) -> Result<()> {
    let mut memory = vec![0; 2 * READ_BYTES];
    let start = memory.as_ptr().align_offset(READ_BYTES);
    let page = memory.get_mut(start..start + READ_BYTES).ok_or("no aligned memory")?;
    std::os::unix::fs::FileExt::read_exact_at(file, page, at)?;
    Ok(())
}

/// Offsets of pages in a random order that is the same in every run.
struct Places(u64);

impl Places {
    fn new(seed: u64) -> Places {
        Places(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (FILE_BYTES / READ_BYTES as u64) * READ_BYTES as u64
    }
}

fn quantile(values: &[u64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted
        .get(((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1)))
        .map_or(0.0, |&ns| ns as f64)
}

fn medians(runs: &[[f64; 3]]) -> [f64; 3] {
    [0, 1, 2].map(|column| {
        let mut values: Vec<f64> = runs.iter().map(|run| run[column]).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    })
}
