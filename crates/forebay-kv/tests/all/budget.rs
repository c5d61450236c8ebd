//! The memory of a process with a store stays below the store's budget, plus 16 MiB, plus the memory of an
//! engine without a store, which has no I/O memory yet.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{self, random};
use forebay::{Config, Engine};
use forebay_kv::{Batch, ErrorKind, FilterPolicy, Keyspace, Options, Snapshot, Store, Value};
use forebay_test::children::Scene;
use forebay_test::number_from;

/// Directory for the measured process; without one it only starts an engine.
const DIR: &str = "FOREBAY_KV_BUDGET_DIR";
/// The budget, in MiB.
const MEMORY: &str = "FOREBAY_KV_BUDGET_MIB";
/// Data to load, in MB. The test sets a default, which the environment overrides.
const DATA: &str = "FOREBAY_KV_BUDGET_DATA_MB";
/// Memory that the store may use beyond its budget.
const ALLOWED: u64 = 16 << 20;
const VALUE_BYTES: usize = 1000;

fn engine() -> Engine {
    Engine::start(Config::new().shards(2)).expect("an engine")
}

/// Returns a line of /proc/self/status, in bytes.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line of that name");
    let kib = line.trim_start_matches(':').trim().trim_end_matches("kB").trim();
    kib.parse::<u64>().expect("a number") << 10
}

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key ............";
    key[4..].copy_from_slice(format!("{number:012}").as_bytes());
    key
}

fn fill(value: &mut [u8], number: u64, turn: u64) {
    for (index, part) in value.chunks_mut(8).enumerate() {
        let word = random(number ^ (turn << 40) ^ ((index as u64) << 50)).to_le_bytes();
        part.copy_from_slice(&word[..part.len()]);
    }
}

/// Prints the memory that the process has used so far, and the store's own statistics.
fn tell(phase: &str, store: &Store, engine: &Engine) {
    let memory = store.stats().memory;
    let (peak, anonymous) = (status("VmHWM"), status("RssAnon"));
    let arena = engine.stats().wait().expect("stats").memory;
    println!("{phase}: peak {peak} anonymous {anonymous} {memory:?} {arena:?}");
    let pinned = memory.top_levels + memory.filters + memory.open_tables + memory.lent;
    assert_eq!(memory.pinned, pinned, "{phase}");
    let used = [memory.memtables, pinned + memory.blocks, memory.gets, memory.manifest, memory.tables];
    let shares =
        [memory.memtables_max, memory.cache_max, memory.gets_max, memory.manifest_max, memory.tables_max];
    assert!(used.iter().zip(shares).all(|(used, share)| *used <= share), "{phase}: {memory:?}");
    assert!(memory.held <= memory.held_max + memory.cache_max, "{phase}: {memory:?}");
    assert!(memory.used() <= memory.budget, "{phase}: {} of {memory:?}", memory.used());
}

/// The measured process, started by the tests below.
#[test]
#[ignore = "runs in a process of its own, which the tests below start"]
fn measured() {
    match std::env::var(DIR) {
        Ok(dir) if !dir.is_empty() => works(Path::new(&dir)),
        _ => drop(engine()),
    }
    println!("at most {}", status("VmHWM"));
}

fn works(dir: &Path) {
    let memory = number_from(MEMORY).expect("a budget") << 20;
    let keys = number_from(DATA).expect("a size") * 1_000_000 / (VALUE_BYTES as u64 + 16);
    // I/O memory that shards keep for themselves grows with the maximum of the arena.
    let config = Config::new().shards(2).arena_bytes_max(memory as usize);
    let engine = Engine::start(config).expect("an engine");
    let options = || Options::new().memory_bytes_max(memory);
    let store = Store::open(&engine, dir, options()).wait().expect("a store");
    let space = store.default_keyspace();

    let mut load = space.loader();
    let mut value = vec![0; VALUE_BYTES];
    for number in 0..keys {
        fill(&mut value, number, 0);
        load.add(key(number), &value).wait().expect("an entry");
    }
    load.finish().wait().expect("a load");
    tell("loaded", &store, &engine);

    gets(&space, keys, 8);
    tell("read", &store, &engine);

    overwrite(&store, keys / 2, keys, 1);
    tell("overwritten", &store, &engine);

    let snapshot = store.snapshot();
    overwrite(&store, keys / 4, keys, 2);
    read_snapshot(&snapshot, &space, keys);
    drop(snapshot);
    tell("with a snapshot", &store, &engine);

    std::thread::scope(|scope| {
        for backwards in [false, true] {
            let range = space.iter();
            scope.spawn(move || {
                let mut range = if backwards { range.rev() } else { range };
                let mut count = 0;
                while range.next().wait().transpose().expect("an entry").is_some() {
                    count += 1;
                }
                assert_eq!(count, keys);
            });
        }
    });
    tell("ranges", &store, &engine);

    everything_at_once(&store, &space, keys);
    tell("everything at once", &store, &engine);

    hold(&space, keys);
    tell("held", &store, &engine);

    long_values(&space, memory);
    tell("long values", &store, &engine);

    overwrite(&store, keys / 8, keys, 4);
    store.compact().wait().expect("compacted");
    store.settle().wait().expect("at rest");
    tell("compacted", &store, &engine);

    overwrite(&store, 500, keys, 5);
    store.close().wait().expect("closed");
    drop((space, store));
    let store = Store::open(&engine, dir, options()).wait().expect("a store");
    let space = store.default_keyspace();
    tell("open again", &store, &engine);
    gets(&space, keys, 8);
    tell("read again", &store, &engine);
    store.close().wait().expect("closed");
}

/// Writes batches of 100 at random keys, from 4 threads.
fn overwrite(store: &Store, count: u64, keys: u64, turn: u64) {
    let space = store.default_keyspace();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let space = &space;
            scope.spawn(move || {
                let mut value = vec![0; VALUE_BYTES];
                for first in (0..count / 4).step_by(100) {
                    let mut batch = Batch::new();
                    for index in first..first + 100 {
                        let number = random(index * 4 + thread + (turn << 40)) % keys;
                        fill(&mut value, number, turn);
                        batch.put(space, key(number), &value);
                    }
                    store.write(&batch).wait().expect("a batch");
                }
            });
        }
    });
}

/// Gets of one key and of several, with present and absent keys, from some threads.
fn gets(space: &Keyspace, keys: u64, threads: u64) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for count in 0..keys / 40 {
                    let number = random(count * threads + thread) % keys;
                    let found = space.get(&key(number)).wait().expect("an answer").expect("a value");
                    assert_eq!(found.len(), VALUE_BYTES);
                    if count % 64 == 0 {
                        let many: Vec<_> = (0..100).map(|index| key(random(number + index) % keys)).collect();
                        let found = space.multi_get(&many).wait().expect("answers");
                        assert!(found.iter().all(Option::is_some));
                    }
                }
            });
        }
    });
}

fn read_snapshot(snapshot: &Snapshot, space: &Keyspace, keys: u64) {
    for count in 0..1000 {
        let number = random(count) % keys;
        let found = snapshot.get(space, &key(number)).wait().expect("an answer").expect("a value");
        let mut value = vec![0; VALUE_BYTES];
        let is_any = (0..2).any(|turn| {
            fill(&mut value, number, turn);
            *found == *value
        });
        assert!(is_any, "what was written after the snapshot was read in it");
    }
}

/// Writers, readers and ranges at the same time.
fn everything_at_once(store: &Store, space: &Keyspace, keys: u64) {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let is_over = &is_over;
            scope.spawn(move || {
                for count in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let number = random(count * 4 + thread) % keys;
                    match thread {
                        0 => {
                            let mut range = space.range(key(number)..);
                            for _ in 0..1000 {
                                range.next().wait().transpose().expect("an entry");
                            }
                        }
                        1 => {
                            let many: Vec<_> =
                                (0..300).map(|index| key(random(number + index) % keys)).collect();
                            space.multi_get(&many).wait().expect("answers");
                        }
                        _ => drop(space.get(&key(number)).wait().expect("an answer")),
                    }
                }
            });
        }
        let _over = Over(&is_over);
        overwrite(store, keys / 2, keys, 3);
    });
}

/// Keeps values until the store refuses more; after they are dropped, the requested values can be read again.
fn hold(space: &Keyspace, keys: u64) {
    let mut held: Vec<Value> = Vec::new();
    let error = (0..keys).map(|number| space.get(&key(number)).wait()).find_map(|answer| match answer {
        Ok(value) => {
            held.extend(value);
            None
        }
        Err(error) => Some(error),
    });
    let Some(error) = error else { panic!("{} values were kept", held.len()) };
    let ErrorKind::MemoryBudget { held: bytes } = error.kind() else { panic!("{error}") };
    let sum: u64 = held.iter().map(Value::held_bytes).sum();
    assert!(bytes >= sum && sum > 0, "{bytes} bytes are held, and {sum} were counted");
    drop(held);
    assert!(space.get(&key(0)).wait().expect("memory").is_some());
}

/// Writes values of the maximum length for a record, and compacts them.
fn long_values(space: &Keyspace, memory: u64) {
    let longest = (memory / 24) as usize - 4096;
    let long = |number: u64| format!("long {number:03}");
    for number in 0..40 {
        let value = vec![number as u8; longest - number as usize * 1000];
        space.put(long(number), value).wait().expect("a value");
    }
    for number in 0..40 {
        let found = space.get(&long(number)).wait().expect("an answer").expect("a value");
        assert!(found.iter().all(|byte| *byte == number as u8));
    }
    space.compact(long(0)..long(999)).wait().expect("compacted");
    (0..40).for_each(|number| space.delete(long(number)).wait().expect("deleted"));
}

/// Runs the measured process. Returns its peak memory in bytes.
fn measure(dir: Option<&Path>, memory_mib: u64, data_mb: u64) -> u64 {
    let scene = Scene::new("budget::measured").give(DIR, dir.unwrap_or(Path::new("")));
    let scene = scene.give(MEMORY, memory_mib.to_string()).give(DATA, data_mb.to_string());
    let text = scene.run().expect("a process");
    println!("{text}");
    let peak = text.lines().find_map(|line| line.rsplit_once("at most ")?.1.parse().ok());
    peak.expect("it says how much")
}

fn stays_below(memory_mib: u64, data_mb: u64) {
    let dir = common::dir();
    let data_mb = number_from(DATA).unwrap_or(data_mb);
    let (empty, peak) = (measure(None, 0, 0), measure(Some(dir.path()), memory_mib, data_mb));
    let limit = (memory_mib << 20) + ALLOWED + empty;
    println!("{memory_mib} MiB: {peak} bytes of {limit}, of which {empty} are an empty engine's");
    assert!(peak <= limit, "{peak} bytes; {limit} are allowed, {} too many", peak - limit);
}

#[test]
#[ignore = "takes long: loads, reads and writes a store of three times its budget, in a process of its own"]
fn a_process_stays_below_a_small_budget() {
    stays_below(24, 60);
}

#[test]
#[ignore = "takes long: loads, reads and writes a store of three times its budget, in a process of its own"]
fn a_process_stays_below_a_larger_budget() {
    stays_below(64, 80);
}

fn reads(engine: &Engine) -> u64 {
    engine.stats().wait().expect("stats").flows.iter().map(|flow| flow.reads).sum()
}

/// Two levels: a table with every second key over one with other keys. Without filters of the last level a key absent from
/// both costs one read, of a leaf of that level. The upper table's filter is in memory.
#[test]
fn a_key_that_is_not_there_costs_one_read_at_most() {
    let (engine, dir) = (engine(), common::dir());
    let options = Options::new().memory_bytes_max(16 << 20).filter_policy(FilterPolicy::UpperLevels);
    let store = Store::open(&engine, dir.path(), options).wait().expect("a store");
    let space = store.default_keyspace();
    let keys = 30_000;
    space.bulk_load((0..keys).map(|number| (key(number * 3), [1; VALUE_BYTES]))).wait().expect("a load");
    let upper: Vec<_> = (0..400).map(|number| key(number * keys / 400 * 3 + 1)).collect();
    for key in &upper {
        space.put(key, [2; VALUE_BYTES]).wait().expect("a put");
    }
    store.flush().wait().expect("flushed");
    let levels = &store.stats().keyspaces[0].levels;
    let with_tables: Vec<usize> = (0..levels.len()).filter(|level| levels[*level].tables > 0).collect();
    assert_eq!(with_tables.len(), 2, "{levels:?}");

    let (before, misses) = (reads(&engine), 2_000);
    for count in 0..misses {
        let missing = key(random(count) % keys * 3 + 2);
        assert!(space.get(&missing).wait().expect("an answer").is_none());
    }
    let each = (reads(&engine) - before) as f64 / misses as f64;
    println!("{each} reads for a key that is not there");
    assert!((0.7..1.03).contains(&each), "{each} reads for a key that is not there");

    // A present key costs one read, in the upper table as well as in the lower one.
    let before = reads(&engine);
    for key in &upper {
        assert!(space.get(key).wait().expect("an answer").is_some());
    }
    assert!(reads(&engine) - before <= upper.len() as u64);
    let before = reads(&engine);
    for count in 0..misses {
        let there = key(random(count + 1_000_000) % keys * 3);
        assert!(space.get(&there).wait().expect("an answer").is_some());
    }
    let each = (reads(&engine) - before) as f64 / misses as f64;
    println!("{each} reads for a key that is there");
    assert!(each < 1.03, "{each} reads for a key that is there");
}

/// Runs something on its own thread; the test is that it returns at all.
fn answers<T: Send>(what: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (done, answer) = std::sync::mpsc::channel();
        scope.spawn(move || drop(done.send(work())));
        answer.recv_timeout(std::time::Duration::from_secs(120)).unwrap_or_else(|_| {
            // A hanging thread would keep the scope, and thus the test, forever.
            eprintln!("{what} does not answer");
            std::process::abort()
        })
    })
}

/// The program keeps values until no memory is left. Then every call that needs memory fails with the error
/// for that, and so do writes once their memtable is full. No call waits for memory that is never released.
/// Once the values are dropped, all works as before.
#[test]
fn nothing_hangs_when_all_memory_is_kept() {
    const LONG: usize = 1 << 20;
    let (engine, dir) = (engine(), common::dir());
    let store =
        Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait().expect("a store");
    let space = &store.default_keyspace();
    let keys = 24_000;
    let long = |number: u64| format!("long {number:02}");
    let long_values = (0..24).map(|number| (long(number).into_bytes(), vec![number as u8; LONG]));
    let short = (0..keys).map(|number| (key(number).to_vec(), vec![1; VALUE_BYTES]));
    space.bulk_load(short.chain(long_values)).wait().expect("a load");
    let too_long = [(b"z".to_vec(), vec![0; (2 << 20) + 1])];
    let refused = space.bulk_load(too_long).wait().expect_err("longer than compaction could read");
    assert!(matches!(refused.kind(), ErrorKind::TooLarge { .. }), "{refused}");

    let is_full = |kind: ErrorKind| matches!(kind, ErrorKind::MemoryBudget { .. });
    let held: Vec<Value> =
        (0..keys).map_while(|number| space.get(&key(number)).wait().ok().flatten()).collect();
    assert!(held.len() < keys as usize);
    let last = key(keys - 1);
    let get = answers("a get", || space.get(&last).wait().map(drop));
    let long_get = answers("a get of a long value", || space.get(&long(0)).wait().map(drop));
    let many = answers("many gets", || space.multi_get(&[last, key(keys - 900)]).wait().map(drop));
    let range = answers("a range", || space.iter().rev().next().wait().transpose().map(drop));
    let swap = answers("a swap", || space.compare_and_set(&last, None, None).wait().map(drop));
    let put =
        answers("puts", || (0..4000).try_for_each(|number| space.put(key(number), [2; VALUE_BYTES]).wait()));
    for (what, answer) in [get, long_get, many, range, swap, put].into_iter().enumerate() {
        let error = answer.expect_err("there is no memory");
        assert!(is_full(error.kind()), "{what}: {error}");
    }
    tell("all kept", &store, &engine);
    drop(held);
    answers("a put", || space.put(last, [3; VALUE_BYTES]).wait()).expect("there is memory");
    answers("a range", || space.iter().rev().next().wait().transpose()).expect("there is memory");

    // Many concurrent calls request much more memory than the budget: they wait for each other.
    std::thread::scope(|scope| {
        for thread in 0..16 {
            scope.spawn(move || {
                for number in 0..24 {
                    let wanted = (number + thread) % 24;
                    let found = answers("one of many gets", || space.get(&long(wanted)).wait());
                    match found {
                        Ok(value) => assert_eq!(*value.expect("a value"), [wanted as u8; LONG]),
                        Err(error) => assert!(is_full(error.kind()), "{error}"),
                    }
                }
            });
        }
    });
    tell("all given back", &store, &engine);
    common::nothing_is_held(&store);
    store.close().wait().expect("closed");
}

/// The counted bytes match those in use. At rest, with a memtable, pinned levels, a cache and values, the
/// engine's buffers are those of the shares kept in I/O memory.
#[test]
fn what_is_counted_is_what_the_engine_has_given() {
    let (engine, dir) = (engine(), common::dir());
    let given = || engine.stats().wait().expect("stats").memory.held_bytes;
    let store =
        Store::open(&engine, dir.path(), Options::new().memory_bytes_max(24 << 20)).wait().expect("a store");
    let space = store.default_keyspace();
    // Buffers of the logs, which are ready for later writes.
    let before = given();
    space.bulk_load((0..20_000).map(|number| (key(number), [1; VALUE_BYTES]))).wait().expect("a load");
    for number in 0..700 {
        space.put(key(number), [2; VALUE_BYTES]).wait().expect("a put");
    }
    for number in 1000..6000 {
        assert!(space.get(&key(number)).wait().expect("an answer").is_some());
    }
    let memory = store.stats().memory;
    assert_eq!(memory.held, 0);
    let blocks = memory.blocks - memory.blocks / 4256 * 160;
    let counted = memory.memtables + memory.top_levels + memory.filters + blocks;
    let given = given() - before;
    println!("{given} bytes, of which {counted} are counted: {memory:?}");
    // In addition to the shares: the log's group that is written last, and pages counted with the data that
    // they are kept for.
    assert!(
        given <= counted + (1 << 20) && counted <= given + given / 16,
        "{given} and {counted}: {memory:?}"
    );
    assert!(memory.used() <= memory.budget && memory.memtables > 700 * VALUE_BYTES as u64);
}

/// Regression: a limit for pinned memory limited loans to the program, too.
#[test]
fn what_the_program_borrows_is_not_limited_by_what_may_be_pinned() {
    let (engine, dir) = (engine(), common::dir());
    let options = Options::new().memory_bytes_max(16 << 20).pinned_bytes(0);
    let store = Store::open(&engine, dir.path(), options).wait().expect("a store");
    let space = store.default_keyspace();
    let keys = 6_000;
    space.bulk_load((0..keys).map(|number| (key(number), [1; VALUE_BYTES]))).wait().expect("a load");
    let held: Vec<Value> =
        (0..keys).map_while(|number| space.get(&key(number)).wait().ok().flatten()).collect();
    let memory = store.stats().memory;
    println!("{} values are held: {memory:?}", held.len());
    assert!(memory.lent > 0 && memory.held > 2 << 20 && memory.used() <= memory.budget, "{memory:?}");
    drop(held);
    store.close().wait().expect("closed");
}

#[test]
fn the_shares_are_told_and_add_up() {
    let (engine, dir) = (common::engine(), common::dir());
    let store =
        Store::open(&engine, dir.path(), Options::new().memory_bytes_max(40 << 20)).wait().expect("a store");
    let memory = store.stats().memory;
    let shares = [
        memory.memtables_max,
        memory.log_max,
        memory.manifest_max,
        memory.tables_max,
        memory.gets_max,
        memory.held_max,
        memory.spare_max,
        memory.cache_max,
    ];
    assert_eq!(shares.iter().sum::<u64>(), memory.budget);
    assert_eq!(memory.budget, 40 << 20);
    assert_eq!((memory.spare_max, memory.lent, memory.tables), (0, 0, 0));
    let refused =
        Store::open(&engine, dir.path(), Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN - 1))
            .wait();
    assert_eq!(refused.expect_err("too small").kind(), ErrorKind::InvalidInput);
}
