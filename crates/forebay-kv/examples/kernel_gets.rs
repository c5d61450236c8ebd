//! The YCSB workloads A, B, C and F on a store whose cache is far smaller than its index, and workload C with
//! equally likely keys as `multi_get` of 16 and 32 keys, as lone gets of 32 threads, and as short ranges.
//! They run with and without walks inside the kernel, or with the store's own choice. Every value read is
//! checked.
//!
//! `kernel_gets plant DIR RECORDS` makes the store. `kernel_gets run DIR RECORDS THREADS OPERATIONS REPEATS [PART OF A NAME]`
//! measures: the ways alternate, and figures are medians of the repeats with the minimum and the maximum. Where the clock counts
//! instructions (`vm/run --icount`), nanoseconds are instructions. `scripts/checks/kernel-walks --bench-store` does all of it.

use std::path::Path;
use std::time::Instant;

use forebay::{Config, Engine};
use forebay_kv::{KernelWalk, Keyspace, Options, Stats, Store};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Records that have all but the end of their keys in common, for example those of one account.
const GROUP: u64 = 200;
const VALUE_BYTES: usize = 400;
/// YCSB's constant for the skew: how strongly the most popular keys are preferred.
const THETA: f64 = 0.99;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| -> Outcome<u64> { Ok(arguments.get(at).ok_or("too few arguments")?.parse()?) };
    let dir = Path::new(arguments.get(1).ok_or("kernel_gets plant|run DIR RECORDS ...")?);
    match arguments[0].as_str() {
        "plant" => plant(dir, number(2)?),
        "run" => {
            let only = arguments.get(6).map_or("", String::as_str);
            run(dir, number(2)?, number(3)?, number(4)?, number(5)?, only)
        }
        other => Err(format!("{other} is neither plant nor run").into()),
    }
}

/// Returns options with the smallest budget, half of which is the cache. The index is twice the cache, so blocks are evicted and
/// read again.
fn options() -> Options {
    Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).pinned_bytes(1 << 20)
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

fn check(record: u64, bytes: &[u8]) -> Outcome<()> {
    let version = bytes.get(8..).and_then(|rest| rest.first_chunk()).ok_or("a value that is too short")?;
    if bytes == value(record, u64::from_le_bytes(*version)) {
        Ok(())
    } else {
        Err(format!("the value of record {record} is another one").into())
    }
}

fn plant(dir: &Path, records: u64) -> Outcome<()> {
    let engine = Engine::start(Config::new())?;
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
    shape: Shape,
}

/// How gets are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// One by one.
    Lone,
    /// As `multi_get` of this many keys.
    Many(u64),
    /// One by one, by this many threads.
    Threads(u64),
    /// The first entries from a key on, this many.
    Range(usize),
}

const C: Workload = Workload { name: "C", gets: 1000, updates: 0, is_uniform: false, shape: Shape::Lone };

const fn uniform(name: &'static str, shape: Shape) -> Workload {
    Workload { name, gets: 1000, updates: 0, is_uniform: true, shape }
}

const WORKLOADS: [Workload; 12] = [
    uniform("C, uniform", Shape::Lone),
    C,
    Workload { name: "B", gets: 950, updates: 50, ..C },
    Workload { name: "A", gets: 500, updates: 500, ..C },
    Workload { name: "F", gets: 500, ..C },
    uniform("multi_get of 16, uniform", Shape::Many(16)),
    Workload { name: "multi_get of 16", shape: Shape::Many(16), ..C },
    uniform("multi_get of 32, uniform", Shape::Many(32)),
    Workload { name: "multi_get of 32", shape: Shape::Many(32), ..C },
    uniform("32 threads, uniform", Shape::Threads(32)),
    uniform("range of 1", Shape::Range(1)),
    uniform("range of 10", Shape::Range(10)),
];

/// The ways that alternate. Ranges are not walked in the kernel: they are measured with inner nodes on the device and in memory:
/// the cost of a descent.
fn ways(shape: Shape) -> [(&'static str, Options); 3] {
    match shape {
        Shape::Range(_) => {
            let small = options();
            [
                ("nodes read", small.clone()),
                ("nodes in memory", Options::new().memory_bytes_max(64 << 20)),
                ("again", small),
            ]
        }
        _ => [
            ("off", options()),
            ("on", options().kernel_walk(KernelWalk::Always)),
            ("automatic", options().kernel_walk(KernelWalk::WhereCheaper)),
        ],
    }
}

/// One sample.
#[derive(Clone, Copy, Default)]
struct Sample {
    /// Nanoseconds of a get, and of a call's 99th percentile. Of a `multi_get` those of a key, of threads those
    /// in which one of their gets completes.
    get: f64,
    get_p99: f64,
    operations_per_second: f64,
    /// Percentage of the gets that the kernel walked for.
    walked: f64,
}

fn run(dir: &Path, records: u64, threads: u64, operations: u64, repeats: u64, only: &str) -> Outcome<()> {
    let dice = Dice::new(records);
    println!("{threads} threads, {operations} operations a sample, {repeats} repeats");
    println!("| workload | kernel walk | a get, ns | p99, ns | operations/s | walked, % |");
    println!("|---|---|---|---|---|---|");
    for (workload, seed) in WORKLOADS.iter().zip(1..) {
        if !workload.name.contains(only) {
            continue;
        }
        let ways = ways(workload.shape);
        let mut samples = [Vec::new(), Vec::new(), Vec::new()];
        let of = if let Shape::Threads(of) = workload.shape { of } else { threads };
        for repeat in 0..repeats {
            // Each way runs first equally often.
            for turn in (0..3).map(|turn| (turn + repeat as usize) % 3) {
                let (options, seed) = (ways[turn].1.clone(), mix(repeat << 8 | seed));
                samples[turn].push(sample(dir, options, workload, &dice, of, operations, seed)?);
            }
        }
        for (samples, (way, _)) in samples.iter().zip(&ways) {
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
        let [_, (one, _), (other, _)] = &ways;
        let (one_of, other_of) = (median(1) / median(0), median(2) / median(0));
        println!("{}: {one} takes {one_of:.2} of {}, {other} {other_of:.2}", workload.name, ways[0].0);
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
    options: Options,
    workload: &Workload,
    dice: &Dice,
    threads: u64,
    operations: u64,
    seed: u64,
) -> Outcome<Sample> {
    let engine = Engine::start(Config::new())?;
    let store = Store::open(&engine, dir, options).wait()?;
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
        let lanes: Outcome<Vec<Vec<u64>>> =
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
    let calls = gets.len() as f64;
    let count = if let Shape::Many(keys) = workload.shape { calls * keys as f64 } else { calls };
    let get = match workload.shape {
        Shape::Threads(_) => seconds * 1e9 / count,
        _ => gets.iter().sum::<u64>() as f64 / count,
    };
    Ok(Sample {
        get,
        get_p99: gets[gets.len() * 99 / 100] as f64,
        operations_per_second: calls / seconds,
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
) -> Outcome<Vec<u64>> {
    let mut took = Vec::with_capacity(operations as usize);
    let record_of = |luck: u64| if workload.is_uniform { luck % dice.records } else { dice.record(luck) };
    if let Shape::Many(keys) = workload.shape {
        for call in 0..operations / keys {
            let records: Vec<u64> =
                (0..keys).map(|at| record_of(mix(seed.wrapping_add(call * keys + at)))).collect();
            let keys: Vec<Vec<u8>> = records.iter().map(|record| key(*record)).collect();
            let begun = Instant::now();
            let found = keyspace.multi_get(&keys).wait()?;
            took.push(begun.elapsed().as_nanos() as u64);
            for (record, value) in records.into_iter().zip(found) {
                check(record, &value.ok_or("a record is gone")?)?;
            }
        }
        return Ok(took);
    }
    if let Shape::Range(entries) = workload.shape {
        for call in 0..operations / 4 {
            let record = record_of(mix(seed.wrapping_add(call)));
            let first = key(record);
            let begun = Instant::now();
            let mut range = keyspace.range(&first[..]..);
            for at in 0..entries {
                let Some(entry) = range.next().wait() else { break };
                let (found, value) = entry?;
                if at == 0 && found != first {
                    return Err("a range begins at another key".into());
                }
                drop(value);
            }
            took.push(begun.elapsed().as_nanos() as u64);
        }
        return Ok(took);
    }
    for operation in 0..operations {
        let luck = mix(seed.wrapping_add(operation));
        let record = record_of(luck);
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
