//! The resources of an engine: the time of its start, threads, memory, the first read, and wake-ups without work.
//!
//! Run with `cargo run --release -p forebay --example footprint --features tokio [repeats]`; it writes 1 MiB into the current
//! folder and removes it again. Each engine is in a separate process, to measure its memory alone; the figures are medians of that
//! many processes, one without an argument, in half a minute. Memory is that which each step adds to the process; `docs/modes.md`
//! has its parts.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay::{Config, DriverChoice, Engine, File, Open};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The wait whose wake-ups are counted, after another one in which the last work ends.
const IDLE: Duration = Duration::from_millis(1_500);

/// The engines: how many shards (0: the default), the driver, and from where they are used.
const LINES: [(&str, &str, &str); 8] = [
    ("0", "auto", "wait"),
    ("1", "auto", "shards"),
    ("2", "auto", "shards"),
    ("4", "auto", "shards"),
    ("16", "auto", "shards"),
    ("1", "auto", "tokio"),
    ("1", "threads", "wait"),
    ("16", "threads", "shards"),
];

/// A child's output, and the table's columns.
const COLUMNS: [&str; 10] = [
    "start us",
    "threads",
    "resident KiB",
    "mapped MiB",
    "open us",
    "read us",
    "threads",
    "resident KiB",
    "pinned KiB",
    "wake-ups",
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [path, shards, driver, from] = &arguments[..] {
        return measure(Path::new(path), shards.parse()?, driver, from);
    }
    let repeats = arguments.first().map_or(Ok(1), |count| count.parse::<usize>())?.max(1);
    let dir = tempfile::Builder::new().prefix("forebay-footprint-").tempdir_in(".")?;
    let path = dir.path().join("data");
    fs::write(&path, vec![7; 1 << 20])?;
    println!("{:29}|{:^46}|{:^49}|", "", "after the start", "after the first reads");
    print!("{:>7} {:>8} {:>12}", "shards", "driver", "reads from");
    COLUMNS.iter().for_each(|column| print!(" {column:>12}"));
    println!();
    for (shards, driver, from) in LINES {
        if from == "tokio" && cfg!(not(feature = "tokio")) {
            continue;
        }
        let rows = (0..repeats).map(|_| child(&path, shards, driver, from)).collect::<Result<Vec<_>>>()?;
        let name = if shards == "0" { "default" } else { shards };
        print!("{name:>7} {driver:>8} {from:>12}");
        for column in 0..COLUMNS.len() {
            let mut figures: Vec<u64> = rows.iter().map(|row| row[column]).collect();
            figures.sort_unstable();
            print!(" {:>12}", figures[figures.len() / 2]);
        }
        println!();
    }
    Ok(())
}

fn child(path: &Path, shards: &str, driver: &str, from: &str) -> Result<Vec<u64>> {
    let output = Command::new(std::env::current_exe()?).arg(path).args([shards, driver, from]).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    String::from_utf8(output.stdout)?.split_whitespace().map(|figure| Ok(figure.parse()?)).collect()
}

/// Starts one engine, uses it, and prints the figures.
fn measure(path: &Path, shards: usize, driver: &str, from: &str) -> Result<()> {
    let mut config = Config::new();
    if shards > 0 {
        config = config.shards(shards);
    }
    if driver == "threads" {
        config = config.driver(DriverChoice::Threads);
    }
    let runtime = runtime(from)?;
    let before = Process::now()?;
    let begun = Instant::now();
    let engine = Engine::start(config)?;
    let start_us = begun.elapsed().as_micros();
    let started = Process::now()?;
    let begun = Instant::now();
    let file = engine.open(path, Open::read()).wait()?;
    let open_us = begun.elapsed().as_micros();
    let read_us = read(&engine, &file, from, runtime.as_ref())?.as_micros();
    let used = Process::now()?;
    wait();
    let quiet = Process::now()?;
    wait();
    let wakes = Process::now()?.switches - quiet.switches;
    println!(
        "{start_us} {} {} {} {open_us} {read_us} {} {} {} {wakes}",
        started.threads - before.threads,
        started.resident_kib.saturating_sub(before.resident_kib),
        started.mapped_kib.saturating_sub(before.mapped_kib) / 1024,
        used.threads - before.threads,
        used.resident_kib.saturating_sub(before.resident_kib),
        used.pinned_kib,
    );
    Ok(())
}

/// Reads once: from this thread, on each shard, or from a task of Tokio. Returns the time.
fn read(engine: &Engine, file: &File, from: &str, runtime: Option<&Runtime>) -> Result<Duration> {
    let begun = Instant::now();
    match (from, runtime) {
        ("shards", _) => {
            let read = |shard| {
                let file = file.clone();
                engine.spawn_on_shard(shard, forebay::Class::DEFAULT, move || async move {
                    file.read(0..4096).await.map(|block| block.len())
                })
            };
            let reads: Vec<_> = (0..engine.shard_count()).map(read).collect();
            for task in reads {
                task.wait()??;
            }
        }
        #[cfg(feature = "tokio")]
        (_, Some(runtime)) => {
            let file = file.clone();
            runtime.block_on(async { tokio::spawn(async move { file.read(0..4096).await }).await })??;
        }
        _ => drop(file.read(0..4096).wait()?),
    }
    Ok(begun.elapsed())
}

#[cfg(feature = "tokio")]
type Runtime = tokio::runtime::Runtime;
#[cfg(not(feature = "tokio"))]
enum Runtime {}

/// Starts a runtime whose threads are there before the engine, if one is asked for.
fn runtime(from: &str) -> Result<Option<Runtime>> {
    #[cfg(feature = "tokio")]
    if from == "tokio" {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async { tokio::spawn(async {}).await })?;
        return Ok(Some(runtime));
    }
    let _ = from;
    Ok(None)
}

fn wait() {
    let (_open, never) = mpsc::channel::<()>();
    let _ = never.recv_timeout(IDLE);
}

/// This process, as the kernel counts it.
struct Process {
    threads: u64,
    resident_kib: u64,
    mapped_kib: u64,
    pinned_kib: u64,
    /// How often the threads other than this one were switched to.
    switches: u64,
}

impl Process {
    fn now() -> Result<Process> {
        let status = fs::read_to_string("/proc/self/status")?;
        let mut switches = 0;
        for task in fs::read_dir("/proc/self/task")?.flatten() {
            if task.file_name().to_str() != Some(&std::process::id().to_string()) {
                // A thread may end meanwhile.
                let text = fs::read_to_string(task.path().join("status")).unwrap_or_default();
                switches += number(&text, "voluntary_ctxt_switches:");
                switches += number(&text, "nonvoluntary_ctxt_switches:");
            }
        }
        Ok(Process {
            threads: number(&status, "Threads:"),
            resident_kib: number(&status, "VmRSS:"),
            mapped_kib: number(&status, "VmSize:"),
            pinned_kib: number(&status, "VmPin:"),
            switches,
        })
    }
}

fn number(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
