//! The YCSB workloads A, B, C and F on a store whose cache is far smaller than its index. Gets run with and
//! without walks inside the kernel. Every value read is checked.
//!
//! `kernel_gets plant DIR RECORDS` makes the store. `kernel_gets run DIR RECORDS THREADS OPERATIONS
//! REPEATS` measures: the two ways take turns, and figures are medians of the repeats with the minimum and
//! the maximum. Where the clock counts instructions (`vm/run --icount`), nanoseconds are instructions.
//! `scripts/checks/kernel-walks --bench-store` does all of it.

use std::path::Path;
use std::time::Instant;

use forebay::{Config, Engine};
use forebay_kv::{Keyspace, Options, Stats, Store};

type Pending<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Records that have all but the end of their keys in common, for example those of one account.
const GROUP: u64 = 200;
const VALUE_BYTES: usize = 400;
/// YCSB's constant for the skew: how strongly the most popular keys are preferred.
const THETA: f64 = 0.99;

fn main() -> Pending<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| -> Pending<u64> { Ok(arguments.get(at).ok_or("too few arguments")?.parse()?) };
    let dir = Path::new(arguments.get(1).ok_or("kernel_gets plant|run DIR RECORDS ...")?);
    match arguments[0].as_str() {
        "plant" => plant(dir, number(2)?),
        "run" => run(dir, number(2)?, number(3)?, number(4)?, number(5)?),
        other => Err(format!("{other} is neither plant nor run").into()),
    }
}

/// Returns options with the smallest budget, half of which is the cache. The index would fill two of it, so
/// blocks come and go.
fn options() -> Options {
    Options::new().memory(Options::MEMORY_MIN).pinned_bytes(1 << 20)
}

fn mix(seed: u64) -> u64 {
    let mut word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Returns a key of 45 bytes: an account's number in the form of a UUID, and the record's number within the
/// account, in the order of the accounts' hashes.
fn key(record: u64) -> Vec<u8> {
    let (one, other) = (mix(record / GROUP), mix(record / GROUP + (1 << 40)));
    let (head, tail) = (one >> 32, other >> 16);
    let middle = [one >> 16 & 0xffff, one & 0xffff, other & 0xffff];
    let [a, b, c] = middle;
    format!("{head:08x}-{a:04x}-{b:04x}-{c:04x}-{tail:012x}/{:08}", record % GROUP).into_bytes()
}

fn value(record: u64, version: u64) -> Vec<u8> {
    let mut bytes = [record.to_le_bytes(), version.to_le_bytes()].concat();
    bytes.resize(VALUE_BYTES, mix(record ^ version) as u8);
    bytes
}

fn check(record: u64, bytes: &[u8]) -> Pending<()> {
    let version = bytes.get(8..).and_then(|rest| rest.first_chunk()).ok_or("a value that is too short")?;
    if bytes == value(record, u64::from_le_bytes(*version)) {
        Ok(())
    } else {
        Err(format!("the value of record {record} is another one").into())
    }
}

fn plant(dir: &Path, records: u64) -> Pending<()> {
    let engine = Engine::start(Config::default())?;
    let store = Store::open(&engine, dir, options()).wait()?;
    let mut groups: Vec<u64> = (0..records / GROUP).collect();
    groups.sort_by_key(|group| mix(*group));
    let all = groups.into_iter().flat_map(|group| group * GROUP..(group + 1) * GROUP);
    store.default_keyspace().bulk_load(all.map(|record| (key(record), value(record, 0)))).wait()?;
    let stats = store.stats();
    println!("{records} records, {} MiB of tables", stats.loaded_bytes >> 20);
    Ok(store.close().wait()?)
}

/// A mix of operations. Of 1,000 operations, `gets` are gets alone and `updates` are updates alone; the
/// rest are gets followed by an update of the same record.
struct Workload {
    name: &'static str,
    gets: u64,
    updates: u64,
    is_uniform: bool,
}

const WORKLOADS: [Workload; 5] = [
    Workload { name: "C, uniform", gets: 1000, updates: 0, is_uniform: true },
    Workload { name: "C", gets: 1000, updates: 0, is_uniform: false },
    Workload { name: "B", gets: 950, updates: 50, is_uniform: false },
    Workload { name: "A", gets: 500, updates: 500, is_uniform: false },
    Workload { name: "F", gets: 500, updates: 0, is_uniform: false },
];

/// One sample.
#[derive(Clone, Copy, Default)]
struct Sample {
    /// Nanoseconds of a get: the average, and the 99th percentile.
    get: f64,
    get_p99: f64,
    operations_per_second: f64,
    /// Percentage of the gets that the kernel walked for.
    walked: f64,
}

fn run(dir: &Path, records: u64, threads: u64, operations: u64, repeats: u64) -> Pending<()> {
    let dice = Dice::new(records);
    println!("{threads} threads, {operations} operations a sample, {repeats} repeats");
    println!("| workload | kernel walk | a get, ns | p99, ns | operations/s | walked, % |");
    println!("|---|---|---|---|---|---|");
    for (workload, seed) in WORKLOADS.iter().zip(1..) {
        let mut samples = [Vec::new(), Vec::new()];
        for repeat in 0..repeats {
            // Each of the two ways goes first equally often.
            for turn in [repeat % 2, 1 - repeat % 2] {
                let seed = mix(repeat << 8 | seed);
                samples[turn as usize].push(sample(
                    dir,
                    workload,
                    &dice,
                    threads,
                    operations,
                    turn == 1,
                    seed,
                )?);
            }
        }
        for (samples, way) in samples.iter().zip(["off", "on"]) {
            let shown = |of: fn(&Sample) -> f64, digits: usize| spread(samples, of, digits);
            println!(
                "| {} | {way} | {} | {} | {} | {} |",
                workload.name,
                shown(|sample| sample.get, 0),
                shown(|sample| sample.get_p99, 0),
                shown(|sample| sample.operations_per_second, 0),
                shown(|sample| sample.walked, 0),
            );
        }
        let median = |at: usize| middle(&samples[at], |sample| sample.get).1;
        println!("{}: on takes {:.2} of off for a get", workload.name, median(1) / median(0));
    }
    Ok(())
}

fn middle(samples: &[Sample], of: fn(&Sample) -> f64) -> (f64, f64, f64) {
    let mut all: Vec<f64> = samples.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    (all[0], all[all.len() / 2], all[all.len() - 1])
}

fn spread(samples: &[Sample], of: fn(&Sample) -> f64, digits: usize) -> String {
    let (least, median, most) = middle(samples, of);
    format!("{median:.digits$} ({least:.digits$}-{most:.digits$})")
}

fn sample(
    dir: &Path,
    workload: &Workload,
    dice: &Dice,
    threads: u64,
    operations: u64,
    kernel_walk: bool,
    seed: u64,
) -> Pending<Sample> {
    let engine = Engine::start(Config::default())?;
    let store = Store::open(&engine, dir, options().kernel_walk(kernel_walk)).wait()?;
    let keyspace = store.default_keyspace();
    // The first third of the operations warms up the cache and the sessions.
    let warm = |of: u64| lane(&keyspace, workload, dice, operations / threads / 3, seed ^ of << 32);
    let timed = |of: u64| lane(&keyspace, workload, dice, operations / threads, seed ^ of << 32 ^ 1 << 60);
    let barrier = std::sync::Barrier::new(threads as usize + 1);
    let (begun, before, lanes) = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|of| {
                let (warm, timed, barrier) = (&warm, &timed, &barrier);
                scope.spawn(move || {
                    let warmed = warm(of);
                    barrier.wait();
                    // Wait here until the counts were read.
                    barrier.wait();
                    warmed.and_then(|_| timed(of))
                })
            })
            .collect();
        barrier.wait();
        let before = store.stats();
        let begun = Instant::now();
        barrier.wait();
        let lanes: Pending<Vec<Vec<u64>>> =
            handles.into_iter().map(|lane| lane.join().map_err(|_| "a thread panicked")?).collect();
        (begun, before, lanes)
    });
    let seconds = begun.elapsed().as_secs_f64();
    let mut gets: Vec<u64> = lanes?.concat();
    gets.sort_unstable();
    let after = store.stats();
    store.close().wait()?;
    if let Some(why) = after.kernel_refused {
        return Err(why.into());
    }
    let walks = |stats: &Stats| stats.kernel_walks as f64;
    let count = gets.len() as f64;
    Ok(Sample {
        get: gets.iter().sum::<u64>() as f64 / count,
        get_p99: gets[gets.len() * 99 / 100] as f64,
        operations_per_second: operations as f64 / seconds,
        walked: (walks(&after) - walks(&before)) * 100.0 / count,
    })
}

/// Runs one thread's operations. Returns the durations of its gets, in nanoseconds.
fn lane(
    keyspace: &Keyspace,
    workload: &Workload,
    dice: &Dice,
    operations: u64,
    seed: u64,
) -> Pending<Vec<u64>> {
    let mut took = Vec::with_capacity(operations as usize);
    for operation in 0..operations {
        let luck = mix(seed.wrapping_add(operation));
        let record = if workload.is_uniform { luck % dice.records } else { dice.record(luck) };
        let (key, kind) = (key(record), mix(luck) % 1000);
        let is_update = kind >= workload.gets && kind < workload.gets + workload.updates;
        if !is_update {
            let begun = Instant::now();
            let found = keyspace.get(&key).wait()?;
            took.push(begun.elapsed().as_nanos() as u64);
            check(record, &found.ok_or("a record is gone")?)?;
        }
        if is_update || kind >= workload.gets {
            keyspace.put(&key, value(record, luck)).wait()?;
        }
    }
    Ok(took)
}

/// YCSB's scrambled Zipf distribution.
struct Dice {
    records: u64,
    zeta: f64,
    eta: f64,
}

impl Dice {
    fn new(records: u64) -> Dice {
        let zeta = |upto: u64| (1..=upto).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let whole = zeta(records);
        let eta = (1.0 - (2.0 / records as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / whole);
        Dice { records, zeta: whole, eta }
    }

    fn record(&self, luck: u64) -> u64 {
        let part = (luck >> 11) as f64 / (1_u64 << 53) as f64;
        let scaled = part * self.zeta;
        let rank = if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5_f64.powf(THETA) {
            1
        } else {
            (self.records as f64 * (self.eta * part - self.eta + 1.0).powf(1.0 / (1.0 - THETA))) as u64
        };
        mix(rank ^ 0x5eed) % self.records
    }
}
