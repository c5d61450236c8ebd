//! The costs of gets in a store that is larger than its cache: processor time, device reads, and memory that
//! is touched for the first time.
//!
//! Run with `cargo run --release -p forebay-kv --features forebay/tokio --example get_costs -- [WAY...]`. A way names a caller and
//! the number of gets in flight: `wait-1`, `wait-32`, `tokio-1`, `tokio-32`, `shard-1`, `shard-32`; by default all of these run in
//! turn. The environment changes the sizes: `GETS` (60,000), `KEYS` (2,000,000), `MEMORY_MIB` (64), `SPAN` (default: all keys; gets
//! request the first `SPAN` keys), and `PUTS` (0; threads that put concurrently; the figures include their work). The store is
//! created once in the current directory and kept as `get-costs-KEYS`, so that a second run starts immediately.
//!
//! Each way opens the store with an empty cache, and prints three parts of its gets: the first tenth, the
//! rest of the first half, and the second half.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay::{Class, Config, Engine};
use forebay_kv::{Keyspace, Options, Store};

const VALUE_BYTES: usize = 200;
const WAYS: [&str; 6] = ["wait-1", "wait-32", "tokio-1", "tokio-32", "shard-1", "shard-32"];

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

struct Sizes {
    keys: u64,
    span: u64,
    gets: u64,
    memory: u64,
    puts: u64,
}

fn main() -> Result<()> {
    let number = |name: &str, usual: u64| -> Result<u64> {
        Ok(std::env::var(name).map_or(Ok(usual), |text| text.parse())?)
    };
    let keys = number("KEYS", 2_000_000)?.max(1);
    let sizes = Sizes {
        keys,
        span: number("SPAN", keys)?.clamp(1, keys),
        gets: number("GETS", 60_000)?,
        memory: number("MEMORY_MIB", 64)? << 20,
        puts: number("PUTS", 0)?,
    };
    let dir = format!("get-costs-{keys}");
    load(Path::new(&dir), &sizes)?;
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    let ways = if chosen.is_empty() { WAYS.map(String::from).to_vec() } else { chosen };
    println!(
        "{:10}{:>9}{:>10}{:>9}{:>9}{:>10}{:>12}",
        "way", "gets", "CPU us", "reads", "enters", "touched", "blocks"
    );
    for way in ways {
        let (caller, count) = way.split_once('-').ok_or("a way is a caller and a number")?;
        run(Path::new(&dir), &sizes, caller, count.parse()?, &way)?;
    }
    Ok(())
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

/// Creates the store if it does not exist, with all data in tables of the last level.
fn load(dir: &Path, sizes: &Sizes) -> Result<()> {
    if dir.exists() {
        return Ok(());
    }
    let engine = Engine::start(Config::new())?;
    let store = Store::open(&engine, dir, Options::new().memory_bytes_max(sizes.memory)).wait()?;
    let value = [7; VALUE_BYTES];
    store.default_keyspace().bulk_load((0..sizes.keys).map(|number| (key(number), value))).wait()?;
    store.close().wait()?;
    engine.close().wait()?;
    Ok(())
}

/// Random numbers, each requested once: a counter that is mixed.
fn mix(number: u64) -> u64 {
    let x = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 32)
}

/// What is counted before and after a part.
struct Counts {
    cpu_ns: u64,
    reads: u64,
    enters: u64,
    touched: u64,
}

fn counts(engine: &Engine) -> Result<Counts> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let stats = engine.stats().wait()?;
    let rings = stats.shards.iter().chain(&stats.worker_rings);
    Ok(Counts {
        cpu_ns: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64,
        reads: stats.flows.iter().map(|flow| flow.reads).sum(),
        enters: rings.map(|shard| shard.enters + shard.kicks).sum::<u64>() + stats.wait_calls,
        touched: stats.memory.arena_bytes,
    })
}

fn run(dir: &Path, sizes: &Sizes, caller: &str, in_flight: u64, way: &str) -> Result<()> {
    let engine = Engine::start(Config::new().shards(1))?;
    let store = Store::open(&engine, dir, Options::new().memory_bytes_max(sizes.memory)).wait()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (others, over) = (store.keyspace("others").wait()?, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let put = || -> Result<()> {
            for number in (0..1000).cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                others.put(key(number), [7; VALUE_BYTES]).wait()?;
            }
            Ok(())
        };
        let writers: Vec<_> = (0..sizes.puts).map(|_| scope.spawn(put)).collect();
        let measured = parts(sizes, caller, in_flight, way, &engine, &store, &runtime);
        over.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().map_err(|_| "a writer panicked")??;
        }
        measured
    })?;
    drop(runtime);
    drop(others);
    store.close().wait()?;
    engine.close().wait()?;
    Ok(())
}

/// Measures the parts of a way.
fn parts(
    sizes: &Sizes,
    caller: &str,
    in_flight: u64,
    way: &str,
    engine: &Engine,
    store: &Store,
    runtime: &tokio::runtime::Runtime,
) -> Result<()> {
    let keyspace = store.default_keyspace();
    let parts = [sizes.gets / 10, sizes.gets / 2 - sizes.gets / 10, sizes.gets - sizes.gets / 2];
    let mut first = 0;
    for part in parts {
        let before = counts(engine)?;
        let numbers = Arc::new(Numbers { next: AtomicU64::new(first), end: first + part, span: sizes.span });
        first += part;
        match caller {
            "wait" => of_threads(&keyspace, &numbers, in_flight)?,
            "tokio" => runtime.block_on(of_tokio(&keyspace, &numbers, in_flight))?,
            "shard" => of_shard(engine, &keyspace, &numbers, in_flight)?,
            _ => return Err("a caller is wait, tokio or shard".into()),
        }
        let after = counts(engine)?;
        let each = |before: u64, after: u64| (after - before) as f64 / part.max(1) as f64;
        println!(
            "{way:10}{part:>9}{:>10.1}{:>9.2}{:>9.2}{:>6} MiB{:>8} KiB",
            each(before.cpu_ns, after.cpu_ns) / 1000.0,
            each(before.reads, after.reads),
            each(before.enters, after.enters),
            (after.touched - before.touched) >> 20,
            store.stats().memory.blocks >> 10,
        );
    }
    Ok(())
}

/// The numbers of the keys that a part requests.
struct Numbers {
    next: AtomicU64,
    end: u64,
    span: u64,
}

impl Numbers {
    fn next(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.end).then(|| mix(number) % self.span)
    }
}

fn of_threads(keyspace: &Keyspace, numbers: &Numbers, threads: u64) -> Result<()> {
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            while let Some(number) = numbers.next() {
                keyspace.get(&key(number)).wait()?.ok_or("a key is missing")?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

async fn of_task(keyspace: Keyspace, numbers: Arc<Numbers>) -> Result<()> {
    while let Some(number) = numbers.next() {
        keyspace.get(&key(number)).await?.ok_or("a key is missing")?;
    }
    Ok(())
}

async fn of_tokio(keyspace: &Keyspace, numbers: &Arc<Numbers>, tasks: u64) -> Result<()> {
    let task = |_| tokio::spawn(of_task(keyspace.clone(), numbers.clone()));
    for task in (0..tasks).map(task).collect::<Vec<_>>() {
        task.await??;
    }
    Ok(())
}

fn of_shard(engine: &Engine, keyspace: &Keyspace, numbers: &Arc<Numbers>, tasks: u64) -> Result<()> {
    let task = |_| {
        let (keyspace, numbers) = (keyspace.clone(), numbers.clone());
        engine.spawn_on_shard(0, Class::DEFAULT, move || of_task(keyspace, numbers))
    };
    (0..tasks).map(task).collect::<Vec<_>>().into_iter().try_for_each(|task| task.wait()?)
}
