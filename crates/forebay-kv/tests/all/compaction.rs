//! Compaction keeps the store small and quick, and has no other visible effect.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{self, dir, engine, files, key, open, options, random, value};
use forebay::{Config, Engine};
use forebay_kv::{Batch, ErrorKind, Keyspace, Stats, Store};
use forebay_sim::{self as sim, Profile, World};
use forebay_test::worlds::{self, Draw};

/// Returns the bytes of all tables.
fn bytes(stats: &Stats) -> u64 {
    stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels).map(|level| level.bytes).sum()
}

fn tables(stats: &Stats) -> usize {
    stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels).map(|level| level.tables).sum()
}

/// Returns the number of table files in the store's directory.
fn table_files(dir: &tempfile::TempDir) -> usize {
    std::fs::read_dir(dir.path().join("tables")).unwrap().count()
}

/// Writes values for keys, several in one batch; the key and the round determine a value.
fn write(store: &Store, keyspace: &Keyspace, keys: impl Iterator<Item = u64>, round: u64, len: usize) {
    let keys: Vec<u64> = keys.collect();
    for some in keys.chunks(25) {
        let mut batch = Batch::new();
        for &number in some {
            batch.put(keyspace, key(number), long(number, round, len));
        }
        store.write(&batch).wait().unwrap();
    }
}

fn long(number: u64, round: u64, len: usize) -> Vec<u8> {
    let word = random(number ^ round << 32).to_le_bytes();
    word.iter().copied().cycle().take(len).collect()
}

/// Waits for a condition: tables are removed in the background.
fn until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::yield_now();
    }
}

#[test]
fn overwritten_stores_stay_small_and_deletes_give_space_back() {
    const KEYS: u64 = 8000;
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
    for round in 0..3 {
        let keys: Vec<u64> = (0..KEYS)
            .map(|index| if round == 0 { index * 5 % KEYS } else { random(index + round * KEYS) % KEYS })
            .collect();
        newest.extend(keys.iter().map(|key| (*key, round)));
        write(&store, &keyspace, keys.into_iter(), round, 1000);
    }
    store.flush().wait().unwrap();
    store.settle().wait().unwrap();
    let stats = store.stats();
    // Space for everything when it is written once, in order.
    let other = common::dir();
    let fresh = open(&engine, &other);
    let entries = newest.iter().map(|(number, round)| (key(*number), long(*number, *round, 1000)));
    fresh.default_keyspace().bulk_load(entries).wait().unwrap();
    let amplification = bytes(&stats) as f64 / bytes(&fresh.stats()) as f64;
    println!("space {amplification:.3}, written {:.2}, {:?}", stats.write_amplification(), levels(&stats));
    // In a store as small as this one the footers of tables count, and each piece of a compaction has a footer.
    assert!(amplification <= 1.17, "{amplification}, {stats:?}");
    // Level 0 may keep tables that are together at most an eighth of the last level, and twenty in no case.
    assert!(stats.keyspaces[0].levels[0].tables < 20 && stats.pending_bytes == 0, "{stats:?}");
    assert!(stats.compaction_written_bytes < 6 * stats.flushed_bytes, "{stats:?}");
    for (number, round) in newest.iter().step_by(7) {
        let found = keyspace.get(&key(*number)).wait().unwrap();
        assert_eq!(found.as_deref(), Some(&long(*number, *round, 1000)[..]), "{number}");
    }
    // Deletions, of nine in ten and then of all.
    let before = bytes(&stats);
    for (part, limit) in [(9, before / 5), (10, 0)] {
        for first in (0..KEYS).step_by(100) {
            let mut batch = Batch::new();
            for number in (first..first + 100).filter(|number| number % 10 < part) {
                batch.delete(&keyspace, key(number));
            }
            store.write(&batch).wait().unwrap();
        }
        store.flush().wait().unwrap();
        store.settle().wait().unwrap();
        let stats = store.stats();
        assert!(bytes(&stats) <= limit, "{} of {before} bytes are left: {:?}", bytes(&stats), levels(&stats));
        until(|| table_files(&dir) == tables(&stats));
    }
    assert!(keyspace.iter().next().wait().transpose().unwrap().is_none());
    store.close().wait().unwrap();
    let store = open(&engine, &dir);
    assert_eq!((store.stats().orphans, bytes(&store.stats())), (0, 0));
}

fn levels(stats: &Stats) -> Vec<(usize, u64)> {
    stats.keyspaces[0].levels.iter().map(|level| (level.tables, level.bytes)).collect()
}

/// Ever-growing keys are written once: tables that overlap nothing only change their level.
#[test]
fn what_overlaps_nothing_is_not_written_again() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    write(&store, &keyspace, 0..3000, 0, 500);
    store.flush().wait().unwrap();
    store.compact().wait().unwrap();
    let stats = store.stats();
    assert!(stats.moved > 5 && stats.compaction_written_bytes == 0, "{stats:?}");
    let is_last_only = stats.keyspaces[0].levels.iter().take(6).all(|level| level.tables == 0);
    assert!(is_last_only && stats.keyspaces[0].levels[6].entries == 3000, "{stats:?}");
    for number in 0..3000 {
        let found = keyspace.get(&key(number)).wait().unwrap();
        assert_eq!(found.as_deref(), Some(&long(number, 0, 500)[..]));
    }
    store.close().wait().unwrap();
    open(&engine, &dir).close().wait().unwrap();
}

/// Compaction's reads and writes are in its own class, and those of the log and the flush in theirs. So the
/// class of the gets has only the gets.
#[test]
fn each_part_of_a_store_keeps_to_its_class() {
    let (engine, dir) = (engine(), dir());
    let background = engine.class("merging", 50).unwrap();
    let log = engine.class("logging", 500).unwrap();
    let options = options().class(log).background(background);
    let store = Store::open(&engine, dir.path(), options).wait().unwrap();
    let keyspace = store.default_keyspace();
    for round in 0..3 {
        write(&store, &keyspace, 0..3000, round, 500);
        store.flush().wait().unwrap();
    }
    store.compact().wait().unwrap();
    let compacted = store.stats().compaction_written_bytes;
    assert!(compacted > 1_000_000, "{compacted}");
    let of = |class: &str| {
        let flows = engine.stats().wait().unwrap().flows;
        let of_class = flows.into_iter().filter(|flow| flow.class == class && flow.device != "-");
        of_class.fold((0, 0), |sum, flow| (sum.0 + flow.read_bytes, sum.1 + flow.write_bytes))
    };
    let (read, written) = of("merging");
    assert!(written >= compacted && read >= compacted, "{read} and {written} of {compacted} bytes compacted");
    // Three times 1.5 MB into the log, and the bytes flushed.
    let (_, logged) = of("logging");
    assert!(logged >= 4_500_000, "{logged}");
    assert_eq!(of("default"), (0, 0), "nobody has asked for anything yet");
    for number in (0..3000).step_by(100) {
        assert!(keyspace.get(&key(number)).wait().unwrap().is_some());
    }
    let (_, written) = of("default");
    assert_eq!(written, 0, "gets write nothing");
    store.close().wait().unwrap();
}

/// Story: a random load of values of 1,040 bytes ran at a ninth of the rate of 1,020, because compaction read each value that does
/// not fit into a leaf on its own.
#[test]
fn compaction_reads_values_beside_leaves_together() {
    for len in [1_040, 5_000] {
        let (engine, dir) = (engine(), dir());
        let background = engine.class("merging", 50).unwrap();
        let options = options().background(background).memtable_bytes(512 << 10).log_segment_bytes(1 << 20);
        let store = Store::open(&engine, dir.path(), options).wait().unwrap();
        let (keyspace, keys) = (store.default_keyspace(), 3_000_000 / len as u64);
        for round in 0..3 {
            write(&store, &keyspace, 0..keys, round, len);
            let gone = (0..keys).filter(|number| number % 7 == round);
            let deletes = gone.fold(Batch::new(), |mut batch, number| {
                batch.delete(&keyspace, key(number));
                batch
            });
            store.write(&deletes).wait().unwrap();
        }
        store.compact().wait().unwrap();
        let (flows, compacted) = (engine.stats().wait().unwrap().flows, store.stats().compaction_read_bytes);
        let reads: u64 = flows.iter().filter(|flow| flow.class == "merging").map(|flow| flow.reads).sum();
        assert!(reads < compacted / (8 << 10), "{reads} reads of {compacted} bytes in values of {len}");
        let mut range = keyspace.iter();
        for number in (0..keys).filter(|number| number % 7 != 2) {
            let (name, found) = range.next().wait().unwrap().unwrap();
            assert!(name == key(number) && found == long(number, 2, len)[..], "{number}");
        }
        assert!(range.next().wait().is_none());
        drop(range);
        common::nothing_is_held(&store);
        store.close().wait().unwrap();
    }
}

#[test]
fn compacting_a_range_leaves_others_and_drops_what_has_expired() {
    static NOW: AtomicU64 = AtomicU64::new(1000);
    let (engine, dir) = (engine(), dir());
    let options = options().clock(|| NOW.load(Ordering::Relaxed));
    let store = Store::open(&engine, dir.path(), options).wait().unwrap();
    let (keyspace, other) = (store.default_keyspace(), store.keyspace("other").wait().unwrap());
    for first in (0..2000).step_by(50) {
        let mut batch = Batch::new();
        for number in first..first + 50 {
            batch.put_until(&keyspace, key(number), vec![1; 300], 1100).put(&other, key(number), "stays");
        }
        store.write(&batch).wait().unwrap();
    }
    store.compact().wait().unwrap();
    let entries = |place: usize| -> u64 {
        store.stats().keyspaces[place].levels.iter().map(|level| level.entries).sum()
    };
    assert_eq!((entries(0), entries(1)), (2000, 2000));
    keyspace.compact(key(0)..).wait().unwrap();
    store.settle().wait().unwrap();
    let before = store.stats().compactions;
    NOW.store(1100, Ordering::Relaxed);
    assert!(keyspace.iter().next().wait().transpose().unwrap().is_none());
    keyspace.compact(key(0)..key(500)).wait().unwrap();
    assert!(entries(0) <= 1500, "{}", entries(0));
    // Expired entries are removed without a request, and those that stay are not rewritten.
    store.settle().wait().unwrap();
    assert_eq!((entries(0), entries(1)), (0, 2000));
    let stats = store.stats();
    assert!(stats.compactions > before && stats.keyspaces[1].levels[6].entries == 2000, "{stats:?}");
}

/// Snapshots and ranges keep the tables of their time; after that nothing keeps them.
#[test]
fn tables_go_when_their_last_reader_does() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    write(&store, &keyspace, 0..1000, 0, 200);
    store.compact().wait().unwrap();
    let (snapshot, mut range) = (store.snapshot(), keyspace.iter());
    range.next().wait().transpose().unwrap();
    for round in 1..4 {
        write(&store, &keyspace, 0..1000, round, 200);
        store.compact().wait().unwrap();
    }
    assert!(table_files(&dir) > tables(&store.stats()), "{:?}", store.stats());
    for number in 0..1000 {
        let found = snapshot.get(&keyspace, &key(number)).wait().unwrap();
        assert_eq!(found.as_deref(), Some(&long(number, 0, 200)[..]));
    }
    for number in 1..1000 {
        let (found, old) = range.next().wait().transpose().unwrap().unwrap();
        assert!(found == key(number) && *old == long(number, 0, 200));
    }
    drop((snapshot, range));
    until(|| table_files(&dir) == tables(&store.stats()));
}

/// Threads write, read and walk ranges while compaction has as much work as possible.
#[test]
fn gets_and_writes_go_on_beside_compaction() {
    let (engine, dir) = (engine(), dir());
    let store = Store::open(&engine, dir.path(), options().memtable_bytes(32 << 10)).wait().unwrap();
    let keyspace = store.default_keyspace();
    write(&store, &keyspace, 0..600, 0, 300);
    let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1.. {
                write(&store, &keyspace, (0..600).map(|index| index * 7 % 600), round, 300);
                rounds.store(round, Ordering::Release);
                // A busy machine may run the thread that compacts late.
                if round > 10 && store.stats().compactions > 3 {
                    break;
                }
            }
            over.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                keyspace.compact(key(100)..=key(400)).wait().unwrap();
            }
        });
        scope.spawn(|| {
            for seed in 0.. {
                if over.load(Ordering::Acquire) {
                    break;
                }
                let (number, least) = (random(seed) % 600, rounds.load(Ordering::Acquire));
                let found = keyspace.get(&key(number)).wait().unwrap().expect("a value");
                let most = rounds.load(Ordering::Acquire) + 1;
                let round = (least..=most).find(|round| *found == long(number, *round, 300));
                assert!(round.is_some(), "{number} at {least} to {most}");
                if seed % 50 == 0 {
                    let mut range = keyspace.iter();
                    for number in 0..600 {
                        let (found, _) = range.next().wait().transpose().unwrap().unwrap();
                        assert_eq!(found, key(number));
                    }
                    assert!(range.next().wait().transpose().unwrap().is_none());
                }
            }
        });
    });
    let stats = store.stats();
    assert!(stats.failed.is_none(), "{stats:?}");
    assert!(stats.memory.memtables <= stats.memory.memtables_max, "{stats:?}");
}

/// Closing a store during compaction loses nothing and leaves no files behind.
#[test]
fn closing_ends_a_compaction_without_harm() {
    let (engine, dir) = (engine(), dir());
    for round in 0..6 {
        let store = open(&engine, &dir);
        let keyspace = store.default_keyspace();
        write(&store, &keyspace, 0..1200, round, 300);
        // The compaction may or may not have started when the store closes.
        let _ = futures::executor::block_on(async {
            let compacting = std::pin::pin!(store.compact());
            futures::poll!(compacting)
        });
        store.close().wait().unwrap();
        let answer = store.compact().wait();
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Closed);
        let store = open(&engine, &dir);
        for number in (0..1200).step_by(11) {
            let found = store.default_keyspace().get(&key(number)).wait().unwrap();
            assert_eq!(found.as_deref(), Some(&long(number, round, 300)[..]));
        }
        let stats = store.stats();
        until(|| table_files(&dir) == tables(&store.stats()));
        assert!(stats.failed.is_none() && stats.orphans == 0, "{stats:?}");
        store.close().wait().unwrap();
    }
}

/// A table that compaction cannot read makes the store read-only, and the error names the table. Reads of
/// other tables continue.
#[test]
fn a_damaged_input_is_the_first_cause_and_nothing_is_lost() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    write(&store, &keyspace, 0..100, 0, 400);
    store.flush().wait().unwrap();
    store.close().wait().unwrap();
    let tables = files(dir.path());
    let (path, mut damaged) = tables.into_iter().next_back().unwrap();
    damaged[4096 + 700] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    keyspace.put(key(0), value(0)).wait().unwrap();
    keyspace.put(key(500), value(500)).wait().unwrap();
    let before = files(dir.path());
    let error = store.compact().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    assert_eq!((error.path(), error.offset()), (Some(&*path), Some(4096)), "{error:?}");
    assert_eq!(keyspace.put("a", "b").wait().unwrap_err().kind(), ErrorKind::ReadOnly);
    for number in [0, 500] {
        assert_eq!(keyspace.get(&key(number)).wait().unwrap().as_deref(), Some(&value(number)[..]));
    }
    // The flush's table is new; compaction's partial output was removed, and the damaged table is unchanged.
    let after = files(dir.path());
    assert_eq!(after.get(&path), Some(&damaged));
    assert_eq!(after.len(), before.len() + 1, "{:?} {:?}", before.keys(), after.keys());
}

#[test]
fn a_large_compaction_is_divided_among_the_shards_but_the_logs() {
    const KEYS: u64 = 8_000;
    for shards in [1, 2, 4] {
        let engine = Engine::start(Config::new().shards(shards)).unwrap();
        let dir = dir();
        let store = Store::open(&engine, dir.path(), options()).wait().unwrap();
        let keyspace = store.default_keyspace();
        let entries = (0..KEYS).map(|number| (key(number), long(number, 0, 300)));
        keyspace.bulk_load(entries).wait().unwrap();
        write(&store, &keyspace, (0..KEYS).step_by(7), 1, 300);
        store.compact().wait().unwrap();
        let stats = store.stats();
        let divided = stats.compaction_parts > stats.compactions;
        assert_eq!(
            divided,
            shards == 4,
            "{} parts of {} with {shards} shards",
            stats.compaction_parts,
            stats.compactions
        );
        for number in (0..KEYS).step_by(3) {
            let round = u64::from(number % 7 == 0);
            let found = keyspace.get(&key(number)).wait().unwrap();
            assert_eq!(found.as_deref(), Some(&long(number, round, 300)[..]), "key {number}");
        }
        store.close().wait().unwrap();
        assert!(forebay_kv::verify(&engine, dir.path()).wait().unwrap().is_whole());
    }
}

/// The round that wrote each key last, and a round whose batch may be there.
#[derive(Clone, Default)]
struct Rounds(Arc<Mutex<RoundState>>);

/// Rounds by key; the round and the seed of a batch under way.
type RoundState = (BTreeMap<u64, u64>, Option<(u64, u64)>);

/// Lives with a compaction that was divided.
static DIVIDED: AtomicU64 = AtomicU64::new(0);
const WORLD_KEYS: u64 = 5_000;

/// Returns the keys of a round's batch.
fn of_round(seed: u64) -> impl Iterator<Item = u64> {
    (0..60).map(move |index| random(seed ^ index << 50) % WORLD_KEYS)
}

async fn live(engine: Engine, rounds: Rounds, first: u64) -> Result<(), String> {
    let fails = |error: forebay_kv::Error| format!("{error:?}");
    let options = options().memtable_bytes(24 << 10).log_segment_bytes(64 << 10).store_id(9);
    let store = Store::open(&engine, "/disk/kv", options).await.map_err(fails)?;
    let keyspace = store.default_keyspace();
    let is_loaded = keyspace.contains_key(&key(0)).await.map_err(fails)?;
    if first == 0 || !is_loaded {
        let entries = (0..WORLD_KEYS).map(|number| (key(number), long(number, 0, 220)));
        keyspace.bulk_load(entries).await.map_err(fails)?;
    }
    // A batch that was under way is there as a whole or not at all.
    let mut is_there = None;
    for number in 0..WORLD_KEYS {
        let (last, open) = {
            let rounds = rounds.0.lock().unwrap();
            (rounds.0.get(&number).copied().unwrap_or(0), rounds.1)
        };
        let found = keyspace.get(&key(number)).await.map_err(fails)?;
        let found = found.as_deref();
        match open.filter(|(_, seed)| of_round(*seed).any(|of_round| of_round == number)) {
            Some((round, _)) => {
                let is_new = found == Some(&long(number, round, 220)[..]);
                if *is_there.get_or_insert(is_new) != is_new
                    || !is_new && found != Some(&long(number, last, 220)[..])
                {
                    return Err(format!("key {number}: a batch is there in part"));
                }
            }
            None if found == Some(&long(number, last, 220)[..]) => {}
            None => return Err(format!("key {number} is not of round {last}")),
        }
    }
    {
        let mut rounds = rounds.0.lock().unwrap();
        if let Some((round, seed)) = rounds.1.take().filter(|_| is_there == Some(true)) {
            rounds.0.extend(of_round(seed).map(|number| (number, round)));
        }
    }
    for step in 0..2 + sim::random(12) {
        let (round, seed) = (1 + first * 1_000 + step, sim::random(u64::MAX));
        rounds.0.lock().unwrap().1 = Some((round, seed));
        let mut batch = Batch::new();
        for number in of_round(seed) {
            batch.put(&keyspace, key(number), long(number, round, 220));
        }
        store.write(&batch).await.map_err(fails)?;
        {
            let mut rounds = rounds.0.lock().unwrap();
            rounds.0.extend(of_round(seed).map(|number| (number, round)));
            rounds.1 = None;
        }
        if sim::random(4) == 0 {
            store.compact().await.map_err(fails)?;
        }
    }
    let stats = store.stats();
    DIVIDED.fetch_add(u64::from(stats.compaction_parts > stats.compactions), Ordering::Relaxed);
    if sim::random(2) == 0 { store.close().await.map_err(fails) } else { Ok(()) }
}

fn attempt(world: &mut World) -> Result<(), String> {
    let mut draw = Draw::new(world.seed());
    world.add_disk(worlds::disk(&mut draw));
    let rounds = Rounds::default();
    for life in 0..4 {
        worlds::silent_faults(&mut draw).into_iter().for_each(|rule| world.inject(rule));
        if life > 0 && draw.below(3) > 0 {
            world.power_cut_after(Duration::from_micros(draw.below(300_000)));
        }
        let own = rounds.clone();
        let live = async move |engine| live(engine, own, life).await;
        worlds::live(world, true, live).map_err(|text| format!("life {life}: {text}"))?;
    }
    Ok(())
}

fn explore_with(shards: usize) {
    let attempt = |world: &mut World| {
        let config = Config::new().shards(shards);
        let mut world = World::new(world.seed()).config(config);
        attempt(&mut world)
    };
    worlds::explore(15, attempt);
}

/// One shard runs a long compaction in pieces, and each replaces a part of the last level.
#[test]
fn power_cuts_between_the_pieces_of_compactions_lose_nothing() {
    explore_with(1);
}

#[test]
fn power_cuts_during_divided_compactions_lose_nothing() {
    explore_with(4);
    let is_single = worlds::is_single();
    assert!(is_single || DIVIDED.load(Ordering::Relaxed) > 10, "{DIVIDED:?} lives had divided compactions");
}

/// A last level and four tables above it that are together a twentieth as long. Once, at rest, they were merged because they were
/// four, which rewrote the last level for little: 2.02 bytes for each byte put. The rule for rest is the space: an eighth of the
/// last level. By their number they are merged from twenty on, because each is one more to search, and not with the last level:
/// they become a run above it.
#[test]
fn few_short_tables_do_not_make_a_store_at_rest_write_its_last_level_again() {
    const KEYS: u64 = 10_000;
    let (engine, dir) = (engine(), dir());
    let store = Store::open(&engine, dir.path(), options().memtable_bytes(256 << 10)).wait().unwrap();
    let keyspace = store.default_keyspace();
    keyspace.bulk_load((0..KEYS).map(|number| (key(number), long(number, 0, 500)))).wait().unwrap();
    let flushed = |round: u64, keys: u64| {
        write(&store, &keyspace, (0..keys).map(|index| random(index + round * KEYS) % KEYS), round, 500);
        store.flush().wait().unwrap();
        store.settle().wait().unwrap();
        store.stats()
    };
    let mut stats = store.stats();
    for round in 1..=4 {
        stats = flushed(round, KEYS / 80);
    }
    println!("{:.2} bytes written for each, {:?}", stats.write_amplification(), levels(&stats));
    assert_eq!((levels(&stats)[0].0, stats.compactions), (4, 0), "{stats:?}");
    // Many tables, however short they are.
    for round in 5..=20 {
        stats = flushed(round, 1);
    }
    assert_eq!((levels(&stats)[0].0, levels(&stats)[5].0, stats.compactions), (0, 1, 1), "{stats:?}");
    // With one more, more than an eighth.
    stats = flushed(21, KEYS / 10);
    assert_eq!((levels(&stats)[0].0, levels(&stats)[5].0, stats.compactions), (0, 0, 2), "{stats:?}");
    let before = bytes(&stats);
    store.compact().wait().unwrap();
    assert!(bytes(&store.stats()) <= before);
}

/// Space is measured right after a settle. Once it returned at the end of the last compaction, while the replaced files were still
/// being removed.
#[test]
fn replaced_files_are_gone_when_a_store_has_settled() {
    for seed in 0..10 {
        let mut world = World::new(seed).disk(Profile::nand().at("/disk"));
        let settled = world.run(async |engine| {
            let options = options().memtable_bytes(16 << 10).store_id(7).clock(|| 1_000);
            let store = Store::open(&engine, "/disk/store", options).await.expect("a store");
            let keyspace = store.default_keyspace();
            for round in 0..3 {
                for number in 0..150 {
                    keyspace.put(key(number), long(number, round, 700)).await.expect("a put");
                }
                store.flush().await.expect("a flush");
                store.settle().await.expect("rest");
                let files = engine.read_dir("/disk/store/tables").await.expect("files").len();
                let tables = tables(&store.stats());
                assert_eq!(files, tables, "seed {seed}, round {round}: files of {tables} tables");
            }
            assert!(store.stats().compactions > 0, "nothing was replaced");
            // A snapshot keeps its files, and no one waits for them.
            let snapshot = store.snapshot();
            store.compact().await.expect("a compaction");
            store.settle().await.expect("rest");
            drop(snapshot);
            store.close().await.expect("an end");
        });
        settled.expect("a world without faults");
    }
}

/// Story: a compaction of nearly all keys ran for as long as others wrote: new tables from above became its work as well.
#[test]
fn a_compaction_of_a_range_ends_beside_a_writer() {
    const KEYS: u64 = 3_000;
    let mut world = World::new(4).disk(Profile::nand().at("/disk"));
    let ran = world.run(async |engine| {
        let options = options().store_id(7).clock(|| 1_000);
        let store = Store::open(&engine, "/disk/store", options).await.expect("a store");
        let keyspace = store.default_keyspace();
        for first in (0..KEYS).step_by(50) {
            let mut batch = Batch::new();
            for number in first..first + 50 {
                batch.put(&keyspace, key(number * 7 % KEYS), long(number, 0, 300));
            }
            store.write(&batch).await.expect("a batch");
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let (written, ends) = (store.clone(), is_over.clone());
        let writer = sim::spawn_local(async move {
            let keyspace = written.default_keyspace();
            for turn in 0_u64.. {
                let mut batch = Batch::new();
                for place in 0..20 {
                    batch.put(&keyspace, key(random(turn << 8 | place) % KEYS), long(place, turn, 300));
                }
                written.write(&batch).await.expect("a batch");
                if ends.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        keyspace.compact(key(1)..).await.expect("a compaction");
        is_over.store(true, Ordering::Release);
        writer.await.expect("a writer");
        assert!(store.stats().compactions > 0, "nothing was in its way");
        store.close().await.expect("an end");
    });
    ran.expect("a world without faults");
}

/// Story: on a busy machine three memtables of 32 KiB had 99,840 bytes allocated, of a share of 98,304. An eighth of a memtable was
/// left for the rests of its pages, which have two pages at most.
#[test]
fn small_memtables_keep_their_share_of_the_memory() {
    let ms = Duration::from_millis(1);
    for memtable_bytes in [16 << 10, 32 << 10, 48 << 10, 100 << 10] {
        let mut world = World::new(1).disk(Profile::nand().at("/disk").latency(ms, 50 * ms, 50 * ms));
        let written = world.run(async |engine| {
            let options = options().memtable_bytes(memtable_bytes).store_id(7).clock(|| 1_000);
            let store = Store::open(&engine, "/disk/store", options).await.expect("a store");
            // No log: only flushes wait for the disk.
            let keyspace = store.unlogged_keyspace("data").await.expect("a keyspace");
            let mut share: f64 = 0.0;
            for number in 0..1_500 {
                keyspace.put(key(number), long(number, 0, 100)).await.expect("a put");
                let memory = store.stats().memory;
                assert!(memory.memtables <= memory.memtables_max, "after {number}: {memory:?}");
                share = share.max(memory.memtables as f64 / memory.memtables_max as f64);
            }
            assert!(share > 0.7, "all memtables of {memtable_bytes} were full: {share}");
            store.close().await.expect("an end");
        });
        written.expect("a world without faults");
    }
}
