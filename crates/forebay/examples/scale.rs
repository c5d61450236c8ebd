//! How an engine grows: random reads of 4 KiB from more and more tasks, with more and more files open, and from several engines
//! concurrently.
//!
//! Run with `cargo run --release -p forebay --example scale --features tokio [seconds]`; it writes 256 MiB into the current folder
//! and removes them again. Each line is a separate process, to measure its memory alone; `seconds` is the measured time of a line,
//! 0.3 without an argument. `docs/performance.md` has figures of this program.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use forebay::{Config, Durability, Engine, File, Open};

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 256 * MIB;
const PAGES: u64 = FILE_BYTES / 4096;
/// Tasks of the lines in which another number grows.
const TASKS: u64 = 128;
const WARM_UP: Duration = Duration::from_millis(300);

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The phases of a line, as tasks see them.
const WARMING: u8 = 0;
const MEASURING: u8 = 1;
const OVER: u8 = 2;

/// The numbers of one line.
#[derive(Clone, Copy)]
struct Cell {
    /// In each engine; 0 for the default.
    shards: usize,
    engines: usize,
    files: usize,
    tasks: u64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [path, shards, engines, files, tasks, seconds] = &arguments[..] {
        let (shards, engines) = (shards.parse()?, engines.parse()?);
        let cell = Cell { shards, engines, files: files.parse()?, tasks: tasks.parse()? };
        return measure(Path::new(path), cell, Duration::from_secs_f64(seconds.parse()?));
    }
    let seconds = arguments.first().map_or("0.3", String::as_str);
    let dir = tempfile::Builder::new().prefix("forebay-scale-").tempdir_in(".")?;
    let path = dir.path().join("data");
    write(&path)?;
    println!(" shards  engines    files    tasks     reads/s   CPU us   memory MiB");
    let one = Cell { shards: 0, engines: 1, files: 1, tasks: TASKS };
    let tasks = [1, 10, 100, 1_000, 10_000, 100_000].map(|tasks| Cell { tasks, ..one });
    let files = [1, 10, 100, 1_000, 10_000, 100_000].map(|files| Cell { files, ..one });
    let engines = [1, 2, 4, 8].map(|engines| Cell { engines, files: engines, ..one });
    let shards = [1, 8, 32, 64].map(|shards| Cell { shards, files: shards, ..one });
    for cell in tasks.into_iter().chain(files).chain(engines).chain(shards) {
        let Cell { shards, engines, files, tasks } = cell;
        let numbers = [shards as u64, engines as u64, files as u64, tasks];
        let arguments = numbers.map(|number| number.to_string());
        let status =
            Command::new(std::env::current_exe()?).arg(&path).args(arguments).arg(seconds).status()?;
        if !status.success() {
            return Err(format!("{engines} engines, {files} files, {tasks} tasks ended with {status}").into());
        }
    }
    Ok(())
}

fn write(path: &Path) -> Result<()> {
    let engine = Engine::start(Config::new())?;
    let file = engine.open(path, Open::create()).wait()?;
    for mib in 0..FILE_BYTES / MIB {
        file.write(mib * MIB, vec![mib as u8; MIB as usize]).wait()?;
    }
    Ok(file.sync(Durability::All).wait()?)
}

/// Measures one line in this process.
fn measure(path: &Path, cell: Cell, measured: Duration) -> Result<()> {
    let Cell { shards, engines, files, tasks } = cell;
    if !allows_files(files as u64 + 100 * engines as u64) {
        println!("{shards:7} {engines:8} {files:8} {tasks:8}   this system allows fewer open files");
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let config = if shards == 0 { Config::new() } else { Config::new().shards(shards) };
    let start = |_| Engine::start(config.clone());
    let engines: Vec<Engine> = (0..engines).map(start).collect::<forebay::Result<_>>()?;
    let open = |number: usize| engines[number % engines.len()].open(path, Open::read()).wait();
    let files: Vec<File> = (0..files).map(open).collect::<forebay::Result<_>>()?;
    let phase = Arc::new(AtomicU8::new(WARMING));
    let (reads, elapsed, cpu) = runtime.block_on(async {
        let mut readers = tokio::task::JoinSet::new();
        for task in 0..tasks {
            // Each task reads its own files, so that all are in use.
            let mine: Vec<File> =
                files.iter().skip(task as usize % files.len()).step_by(tasks as usize).cloned().collect();
            readers.spawn(read(mine, task, phase.clone()));
        }
        tokio::time::sleep(WARM_UP).await;
        let (began, cpu_before) = (Instant::now(), processor_time());
        phase.store(MEASURING, Ordering::Relaxed);
        tokio::time::sleep(measured).await;
        phase.store(OVER, Ordering::Relaxed);
        let (elapsed, cpu) = (began.elapsed(), processor_time() - cpu_before);
        let mut reads = 0;
        while let Some(done) = readers.join_next().await {
            reads += done??;
        }
        Result::Ok((reads, elapsed, cpu))
    })?;
    println!(
        "{:7} {:8} {:8} {tasks:8} {:11.0} {:8.2} {:12.1}",
        engines[0].shard_count(),
        engines.len(),
        files.len(),
        reads as f64 / elapsed.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / (reads as f64).max(1.0),
        peak_memory_mib()?,
    );
    Ok(())
}

/// Reads one page after the other until the line is over; returns the number of reads of the measured time.
async fn read(files: Vec<File>, seed: u64, phase: Arc<AtomicU8>) -> forebay::Result<u64> {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut reads = 0;
    for file in files.iter().cycle() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let page = random % PAGES;
        file.read(page * 4096..(page + 1) * 4096).await?;
        match phase.load(Ordering::Relaxed) {
            WARMING => {}
            MEASURING => reads += 1,
            _ => break,
        }
    }
    Ok(reads)
}

/// Raises the limit of open files if need be; returns whether it allows this many.
fn allows_files(files: u64) -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.map(|maximum| maximum.max(files));
    limit.current.is_none_or(|current| current >= files)
        || setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum }).is_ok()
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the most memory that this process had resident.
fn peak_memory_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).ok_or("no VmHWM")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
    Ok(kib / 1024.0)
}
