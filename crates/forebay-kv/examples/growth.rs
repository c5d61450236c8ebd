//! How a store's costs grow with its keys and keyspaces. Each line measures a new store in the current directory, which is
//! removed afterwards.
//!
//! ```text
//! cargo run --release -p forebay-kv --example growth -- keys 1 10 100       millions of keys of 16 + 200 bytes
//! cargo run --release -p forebay-kv --example growth -- keyspaces 100 1000 10000
//! cargo run --release -p forebay-kv --example growth -- writes 1.5          durable puts in random order, then three overwrites of all
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay::{Config, Engine};
use forebay_kv::{Batch, Compression, Keyspace, Options, Stats, Store};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const VALUE_BYTES: usize = 200;
const ENTRY_BYTES: u64 = 16 + VALUE_BYTES as u64;
const THREADS: u64 = 32;
/// One key of this many is overwritten.
const OVERWRITTEN: u64 = 20;
const BATCH: u64 = 100;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["keys", ref millions @ ..] if !millions.is_empty() => each(millions, keys),
        ["keyspaces", ref counts @ ..] if !counts.is_empty() => each(counts, keyspaces),
        ["writes", ref millions @ ..] if !millions.is_empty() => each(millions, writes),
        ["write-and-die", dir, bytes] => write_and_die(Path::new(dir), bytes),
        // Small enough to be run with all other examples.
        [] => each(&["0.02"], keys)
            .and_then(|()| each(&["20"], keyspaces))
            .and_then(|()| each(&["0.002"], writes)),
        _ => Err("usage: growth keys MILLIONS... | keyspaces COUNT... | writes MILLIONS...".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("growth: {error}");
            ExitCode::FAILURE
        }
    }
}

fn each(arguments: &[&str], measure: fn(f64, &Path) -> Outcome) -> Outcome {
    for argument in arguments {
        let count: f64 = argument.parse().map_err(|_| format!("{argument:?} is not a number"))?;
        let dir = Directory::new()?;
        measure(count, &dir.0)?;
    }
    Ok(())
}

/// A directory that is removed with its owner.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Outcome<Directory> {
        let dir = std::env::current_dir()?.join(format!("forebay-growth-{}", std::process::id()));
        std::fs::create_dir(&dir)?;
        Ok(Directory(dir))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[8..].copy_from_slice(&mix(number).to_le_bytes());
    key
}

fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    for (place, word) in value.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mix(number ^ (place as u64) << 40).to_le_bytes());
    }
    value
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9).wrapping_add(1);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn open(dir: &Path) -> Outcome<(Engine, Store, Duration)> {
    let engine = Engine::start(Config::new())?;
    let begun = Instant::now();
    let store = Store::open(&engine, dir, Options::new()).wait()?;
    Ok((engine, store, begun.elapsed()))
}

fn close(engine: Engine, store: &Store) -> Outcome {
    store.close().wait()?;
    engine.close().wait()?;
    Ok(())
}

fn table_bytes(stats: &Stats) -> u64 {
    stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels).map(|level| level.bytes).sum()
}

fn written_bytes(stats: &Stats) -> u64 {
    stats.log.written_bytes + stats.flushed_bytes + stats.compaction_written_bytes
}

/// Returns the value in KiB of a line of this process's status.
fn status_mib(name: &str) -> Outcome<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
    let kib: f64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

fn keys(millions: f64, dir: &Path) -> Outcome {
    let keys = (millions * 1e6) as u64;
    let (engine, store, _) = open(dir)?;
    let keyspace = store.default_keyspace();
    let begun = Instant::now();
    keyspace.bulk_load((0..keys).map(|number| (key(number), value(number)))).wait()?;
    let loaded_s = begun.elapsed().as_secs_f64();
    let stats = store.stats();
    println!("{millions} M keys of 16 + {VALUE_BYTES} bytes");
    println!(
        "  load: {:.0} k keys a second, {:.1} bytes a key",
        keys as f64 / loaded_s / 1e3,
        per(table_bytes(&stats), keys)
    );
    let pinned = stats.memory.top_levels + stats.memory.filters + stats.memory.open_tables;
    println!(
        "  memory: {:.3} bytes a key (top levels {:.3}, filters {:.3}), {:.0} MiB resident",
        per(pinned, keys),
        per(stats.memory.top_levels, keys),
        per(stats.memory.filters, keys),
        status_mib("VmRSS")?,
    );
    let (rate, reads) = gets(&store, &keyspace, keys)?;
    println!("  gets at rest: {rate:.0} k a second, {reads:.2} reads a get");

    let before = written_bytes(&store.stats());
    let begun = Instant::now();
    overwrite(&store, &keyspace, keys)?;
    let (seconds, debt) = (begun.elapsed().as_secs_f64(), store.stats());
    let (behind, behind_reads) = gets(&store, &keyspace, keys)?;
    store.flush().wait()?;
    store.settle().wait()?;
    let settled_s = begun.elapsed().as_secs_f64() - seconds;
    let stats = store.stats();
    let data = keys / OVERWRITTEN * ENTRY_BYTES;
    println!(
        "  overwriting one of {OVERWRITTEN}: {:.0} k keys a second, debt {} MiB in {} tables of level 0, gets {behind:.0} k and {behind_reads:.2} reads; settled after {settled_s:.1} s",
        (keys / OVERWRITTEN) as f64 / seconds / 1e3,
        debt.pending_bytes >> 20,
        debt.keyspaces[0].levels[0].tables,
    );
    println!(
        "  written {:.1} times, space {:.3} times",
        per(written_bytes(&stats) - before, data),
        per(table_bytes(&stats), keys * ENTRY_BYTES),
    );
    close(engine, &store)?;

    // As much in the log as fits.
    let child = std::env::current_exe()?;
    let bytes = (keys * ENTRY_BYTES / 4).min(40 << 20);
    Command::new(child).arg("write-and-die").arg(dir).arg(bytes.to_string()).status()?;
    let (engine, store, took) = open(dir)?;
    let replayed = store.recovery().replayed;
    println!(
        "  open after a kill: {:.0} ms, {replayed} records of the log, {} MiB",
        took.as_secs_f64() * 1e3,
        (replayed * BATCH * ENTRY_BYTES) >> 20
    );
    close(engine, &store)?;
    let (engine, store, took) = open(dir)?;
    println!("  open after a close: {:.0} ms", took.as_secs_f64() * 1e3);
    close(engine, &store)
}

fn per(bytes: u64, count: u64) -> f64 {
    bytes as f64 / count.max(1) as f64
}

/// Gets random keys from threads for two seconds; returns thousands a second, and the blocks read for each.
fn gets(store: &Store, keyspace: &Keyspace, keys: u64) -> Outcome<(f64, f64)> {
    let (before, begun, count) = (store.stats(), Instant::now(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let count = &count;
                scope.spawn(move || -> Outcome {
                    let mut state = thread << 32;
                    while begun.elapsed() < Duration::from_secs(2) {
                        state += 1;
                        let number = mix(state) % keys;
                        keyspace.get(&key(number)).wait()?.ok_or("a key is missing")?;
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    let count = count.into_inner();
    let reads = store.stats().cache_misses - before.cache_misses;
    Ok((count as f64 / begun.elapsed().as_secs_f64() / 1e3, per(reads, count)))
}

fn overwrite(store: &Store, keyspace: &Keyspace, keys: u64) -> Outcome {
    std::thread::scope(|scope| {
        let write = |writer: u64| {
            move || -> Outcome {
                let mut batch = Batch::new();
                for place in (writer..keys / OVERWRITTEN).step_by(2) {
                    let number = mix(place) % keys;
                    batch.put(keyspace, key(number), value(number));
                    if batch.len() as u64 == BATCH {
                        store.write(&batch).wait()?;
                        batch.clear();
                    }
                }
                Ok(store.write(&batch).wait()?)
            }
        };
        let threads = [0, 1].map(|writer| scope.spawn(write(writer)));
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

/// Puts all keys in random order from threads that wait for each, three times over again, with 64 MiB of memory.
fn writes(millions: f64, dir: &Path) -> Outcome {
    let keys = (millions * 1e6) as u64;
    let engine = Engine::start(Config::new())?;
    let options = Options::new().memory_bytes_max(64 << 20).compression(Compression::None);
    let store = Store::open(&engine, dir, options).wait()?;
    let keyspace = store.default_keyspace();
    println!("{millions} M keys of 16 + {VALUE_BYTES} bytes, 64 MiB");
    for round in 0..4 {
        let (before, begun) = (store.stats(), Instant::now());
        std::thread::scope(|scope| {
            let keyspace = &keyspace;
            let put = |thread: u64| {
                move || -> Outcome {
                    for place in (thread..keys).step_by(THREADS as usize) {
                        // All keys, each once.
                        let number = place * 2_654_435_761 % keys;
                        keyspace.put(key(number), value(number ^ round << 32)).wait()?;
                    }
                    Ok(())
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(put(thread))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
        })?;
        let (seconds, (_, reads)) = (begun.elapsed().as_secs_f64(), gets(&store, &keyspace, keys)?);
        store.settle().wait()?;
        let stats = store.stats();
        println!(
            "  {}: {:.0} k puts a second, {:.2} reads a get right behind; settled: {:.2} bytes written for each byte put, space {:.3} times",
            if round == 0 { "load" } else { "all again" },
            keys as f64 / seconds / 1e3,
            reads,
            per(stats.written_bytes - before.written_bytes, stats.put_bytes - before.put_bytes),
            per(table_bytes(&stats), keys * ENTRY_BYTES),
        );
    }
    close(engine, &store)
}

/// Fills the log, and dies without a close.
fn write_and_die(dir: &Path, bytes: &str) -> Outcome {
    let (_engine, store, _) = open(dir)?;
    let keyspace = store.default_keyspace();
    for first in (0..bytes.parse::<u64>()? / ENTRY_BYTES).step_by(BATCH as usize) {
        let mut batch = Batch::new();
        for number in first..first + BATCH {
            batch.put(&keyspace, key(number), value(number));
        }
        store.write(&batch).wait()?;
    }
    std::process::abort();
}

fn keyspaces(count: f64, dir: &Path) -> Outcome {
    let count = count as u64;
    let (engine, store, _) = open(dir)?;
    let before = status_mib("VmRSS")?;
    let begun = Instant::now();
    let mut all = Vec::new();
    for number in 0..count.saturating_sub(1) {
        all.push(store.keyspace(&format!("keyspace {number}")).wait()?);
    }
    let made_s = begun.elapsed().as_secs_f64();
    let mut batch = Batch::new();
    for keyspace in &all {
        batch.put(keyspace, "key", "value");
    }
    store.write(&batch).wait()?;
    let begun = Instant::now();
    store.flush().wait()?;
    let flushed_s = begun.elapsed().as_secs_f64();
    println!(
        "{count} keyspaces: made in {:.2} ms each; one entry each flushed in {:.2} ms each; {:.1} KiB of memory each",
        made_s * 1e3 / count as f64,
        flushed_s * 1e3 / count as f64,
        (status_mib("VmRSS")? - before) * 1024.0 / count as f64,
    );
    drop(all);
    close(engine, &store)?;
    let (engine, store, took) = open(dir)?;
    println!("  open: {:.0} ms", took.as_secs_f64() * 1e3);
    close(engine, &store)
}
