//! Isolation of transactions, judged by a checker of histories: over threads, and over worlds whose power fails.

use crate::common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay::Engine;
use forebay_kv::{Error, ErrorKind, Isolation, Keyspace, Options, Result, Store};
use forebay_sim::{self as sim, World};
use forebay_test::history::{Fate, Level, Operation, Transaction, check};
use forebay_test::worlds::{self, Draw};

const LISTS: u64 = 6;

/// A history that several tasks write.
#[derive(Default)]
struct Recorder {
    history: Mutex<Vec<Transaction>>,
    clock: AtomicU64,
    element: AtomicU64,
}

impl Recorder {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn history(&self) -> Vec<Transaction> {
        self.history.lock().unwrap().clone()
    }

    fn count(&self, fate: Fate) -> usize {
        self.history.lock().unwrap().iter().filter(|transaction| transaction.fate == fate).count()
    }

    /// Returns whether this many have met that the history shows something.
    fn is_enough(&self) -> bool {
        self.count(Fate::Committed) > 20 && self.count(Fate::Aborted) > 20
    }

    /// Adds a transaction whose outcome is not known yet; returns its place.
    fn begin(&self) -> usize {
        self.begin_at(self.now())
    }

    fn begin_at(&self, began: u64) -> usize {
        let mut history = self.history.lock().unwrap();
        history.push(Transaction { began, ended: u64::MAX, fate: Fate::Unknown, operations: Vec::new() });
        history.len() - 1
    }

    fn add(&self, place: usize, operation: Operation) {
        self.history.lock().unwrap()[place].operations.push(operation);
    }

    fn end(&self, place: usize, fate: Fate) {
        let ended = if fate == Fate::Unknown { u64::MAX } else { self.now() };
        let mut history = self.history.lock().unwrap();
        (history[place].ended, history[place].fate) = (ended, fate);
    }
}

fn name(list: u64) -> String {
    format!("list {list}")
}

fn elements(value: Option<&[u8]>) -> Vec<u64> {
    let words = value.unwrap_or_default().chunks_exact(8);
    words.map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Runs operations on lists that `draw` chooses in a transaction; `note` gets each. Some transactions are long: they live for
/// several flushes.
async fn operate(
    transaction: &mut forebay_kv::Transaction,
    (store, keyspace): (&Store, &Keyspace),
    recorder: &Recorder,
    draw: &impl Fn(u64) -> u64,
    note: impl Fn(Operation),
) -> Result<()> {
    let is_long = draw(5) == 0;
    for _ in 0..1 + draw(4) {
        if is_long {
            for _ in 0..draw(3) {
                store.flush().await?;
            }
            if sim::is_inside() {
                sim::sleep(Duration::from_micros(draw(5_000))).await.expect("in a world");
            }
        }
        let list = draw(LISTS);
        let key = name(list);
        let mut seen = if draw(5) == 0 {
            let mut range = transaction.prefix(keyspace, &key);
            let entry = range.next().await.transpose()?;
            elements(entry.as_ref().map(|(_, value)| &value[..]))
        } else {
            elements(transaction.get(keyspace, &key).await?.as_deref())
        };
        note(Operation::Read(list, seen.clone()));
        if draw(2) == 0 {
            let element = recorder.element.fetch_add(1, Ordering::Relaxed);
            seen.push(element);
            let value: Vec<u8> = seen.iter().flat_map(|element| element.to_le_bytes()).collect();
            transaction.put(keyspace, &key, value)?;
            note(Operation::Append(list, element));
        }
    }
    Ok(())
}

/// Runs one transaction, by itself or by a call that runs it again until it commits.
async fn transact(
    store: &Store,
    keyspace: &Keyspace,
    recorder: &Recorder,
    isolation: Isolation,
    draw: impl Fn(u64) -> u64,
) -> Result<()> {
    if draw(2) == 0 {
        return transact_again(store, keyspace, recorder, isolation, &draw).await;
    }
    let place = recorder.begin();
    let mut transaction = store.transaction(isolation);
    let note = |operation| recorder.add(place, operation);
    operate(&mut transaction, (store, keyspace), recorder, &draw, note).await?;
    match transaction.commit().await {
        Ok(()) => recorder.end(place, Fate::Committed),
        Err(error) if error.kind() == ErrorKind::Conflict => recorder.end(place, Fate::Aborted),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Each try is a transaction of the history. What it has read counts only if the call has returned: before that it need not be durable.
///
/// Regression: a try counted as started when its body was called. Its snapshot was older then, and lacked the commits of other
/// threads in between: a stale read, once in some hundred runs of a busy machine. A try starts with the call, or with the end of
/// the previous body.
async fn transact_again(
    store: &Store,
    keyspace: &Keyspace,
    recorder: &Recorder,
    isolation: Isolation,
    draw: &impl Fn(u64) -> u64,
) -> Result<()> {
    let (place, operations) = (AtomicUsize::new(usize::MAX), Mutex::new(Vec::new()));
    let began = AtomicU64::new(recorder.now());
    let call = store.transact(isolation, async |mut transaction| {
        let before = place.swap(recorder.begin_at(began.load(Ordering::Relaxed)), Ordering::Relaxed);
        if before < usize::MAX {
            recorder.end(before, Fate::Aborted);
        }
        operations.lock().unwrap().clear();
        let note = |operation: Operation| {
            if matches!(operation, Operation::Append(..)) {
                recorder.add(place.load(Ordering::Relaxed), operation.clone());
            }
            operations.lock().unwrap().push(operation);
        };
        operate(&mut transaction, (store, keyspace), recorder, draw, note).await?;
        began.store(recorder.now(), Ordering::Relaxed);
        Ok((transaction, ()))
    });
    let fate = match call.await {
        Ok(()) => Fate::Committed,
        Err(error) if error.kind() == ErrorKind::Conflict => Fate::Aborted,
        Err(error) => return Err(error),
    };
    let place = place.into_inner();
    if fate == Fate::Committed {
        recorder.history.lock().unwrap()[place].operations = operations.into_inner().unwrap();
    }
    recorder.end(place, fate);
    Ok(())
}

/// Reads all lists in one transaction.
async fn read_all(store: &Store, keyspace: &Keyspace, recorder: &Recorder) -> Result<()> {
    let place = recorder.begin();
    let transaction = store.transaction(Isolation::Snapshot);
    for list in 0..LISTS {
        let seen = transaction.get(keyspace, &name(list)).await?;
        recorder.add(place, Operation::Read(list, elements(seen.as_deref())));
    }
    transaction.commit().await?;
    recorder.end(place, Fate::Committed);
    Ok(())
}

fn level(isolation: Isolation) -> Level {
    match isolation {
        Isolation::Snapshot => Level::Snapshot,
        _ => Level::Serializable,
    }
}

fn threads_keep(isolation: Isolation) {
    const THREADS: u64 = 8;
    const TRANSACTIONS: u64 = 60;
    let (engine, dir) = (common::engine(), common::dir());
    // Small memtables: some transactions span a flush.
    let options = Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).memtable_bytes(16 << 10);
    let store = Store::open(&engine, dir.path(), options).wait().unwrap();
    let (keyspace, recorder) = (store.default_keyspace(), Recorder::default());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, keyspace, recorder, engine) = (&store, &keyspace, &recorder, &engine);
            scope.spawn(move || {
                let state = AtomicU64::new(thread << 32);
                // On a busy machine they may run one after the other: all continue until enough have met.
                let mut made = 0;
                while made < TRANSACTIONS || !recorder.is_enough() {
                    made += 1;
                    let draw = |below| common::random(state.fetch_add(1, Ordering::Relaxed)) % below;
                    let run = transact(store, keyspace, recorder, isolation, draw);
                    engine.block_on(run).expect("not on a shard").expect("the transaction");
                }
            });
        }
    });
    engine.block_on(read_all(&store, &keyspace, &recorder)).unwrap().unwrap();
    let history = recorder.history();
    check(&history, level(isolation)).unwrap_or_else(|anomaly| panic!("{anomaly}"));
    let (committed, aborted) = (recorder.count(Fate::Committed), recorder.count(Fate::Aborted));
    println!("{committed} committed, {aborted} aborted");
    store.close().wait().unwrap();
}

#[test]
fn transactions_of_threads_are_serializable() {
    threads_keep(Isolation::Serializable);
}

#[test]
fn transactions_of_threads_keep_snapshot_isolation() {
    threads_keep(Isolation::Snapshot);
}

fn is_failure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::ReadOnly | ErrorKind::NoSpace | ErrorKind::Closed)
}

/// Runs a world: transactions of several tasks over lives that end with a power cut.
fn attempt(world: &mut World, isolation: Isolation) -> std::result::Result<(), String> {
    let mut draw = Draw::new(world.seed());
    world.add_disk(worlds::disk(&mut draw));
    let recorder = std::sync::Arc::new(Recorder::default());
    const LIVES: u64 = 3;
    for life in 0..LIVES {
        let is_last = life + 1 == LIVES;
        if !is_last {
            worlds::silent_faults(&mut draw).into_iter().for_each(|rule| world.inject(rule));
            world.power_cut_after(Duration::from_micros(draw.below(80_000)));
        }
        let recorder = recorder.clone();
        let live = async move |engine| {
            live(engine, recorder, isolation, is_last).await.map_err(|error| format!("{error:?}"))
        };
        worlds::live(world, !is_last, live).map_err(|text| format!("life {life}: {text}"))?;
    }
    check(&recorder.history(), level(isolation)).map_err(|anomaly| anomaly.to_string())
}

async fn live(
    engine: Engine,
    recorder: std::sync::Arc<Recorder>,
    isolation: Isolation,
    is_last: bool,
) -> Result<()> {
    let options =
        Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).memtable_bytes(16 << 10).store_id(7);
    let store = Store::open(&engine, "/disk/store", options.clock(|| 1_000)).await?;
    let keyspace = store.default_keyspace();
    let mut tasks = Vec::new();
    for _ in 0..2 + sim::random(3) {
        let (store, keyspace, recorder) = (store.clone(), keyspace.clone(), recorder.clone());
        tasks.push(sim::spawn(async move {
            for _ in 0..1 + sim::random(12) {
                match transact(&store, &keyspace, &recorder, isolation, sim::random).await {
                    Err(error) if is_failure(&error) => return Ok(()),
                    done => done?,
                }
                if sim::random(10) == 0 {
                    match store.flush().await {
                        Err(error) if is_failure(&error) => return Ok(()),
                        done => done?,
                    }
                }
            }
            Ok::<(), Error>(())
        }));
    }
    for task in tasks {
        task.await.map_err(Error::from)??;
    }
    if is_last {
        read_all(&store, &keyspace, &recorder).await?;
    }
    store.close().await
}

#[test]
fn transactions_are_serializable_across_power_cuts() {
    worlds::explore(120, |world| attempt(world, Isolation::Serializable));
}

#[test]
fn transactions_keep_snapshot_isolation_across_power_cuts() {
    worlds::explore(60, |world| attempt(world, Isolation::Snapshot));
}

/// How the two transactions of a write skew read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    Keys,
    KeysForUpdate,
    /// Ranges without entries yet.
    Ranges,
}

/// Two transactions that each read what the other writes: write skew. The second commits after this many flushes.
async fn skew(
    store: &Store,
    isolation: Isolation,
    reads: Reads,
    flushes: usize,
) -> Result<(Vec<Transaction>, usize)> {
    let (keyspace, recorder) = (store.default_keyspace(), Recorder::default());
    let places = [recorder.begin(), recorder.begin()];
    let mut open = [store.transaction(isolation), store.transaction(isolation)];
    for (own, other) in [(0, 1), (1, 0)] {
        for list in [own, other] {
            let (transaction, key) = (&open[own], name(list as u64));
            let seen = match reads {
                Reads::Keys => elements(transaction.get(&keyspace, &key).await?.as_deref()),
                Reads::KeysForUpdate => {
                    elements(transaction.get_for_update(&keyspace, &key).await?.as_deref())
                }
                Reads::Ranges => {
                    let entry = transaction.prefix(&keyspace, &key).next().await.transpose()?;
                    elements(entry.as_ref().map(|(_, value)| &value[..]))
                }
            };
            recorder.add(places[own], Operation::Read(list as u64, seen));
        }
        open[own].put(&keyspace, name(own as u64), (own as u64).to_le_bytes())?;
        recorder.add(places[own], Operation::Append(own as u64, own as u64));
    }
    let mut conflicts = 0;
    for (transaction, place) in open.into_iter().zip(places) {
        let fate = match transaction.commit().await {
            Ok(()) => Fate::Committed,
            Err(error) if error.kind() == ErrorKind::Conflict => Fate::Aborted,
            Err(error) => return Err(error),
        };
        conflicts += usize::from(fate == Fate::Aborted);
        recorder.end(place, fate);
        for flush in 0..flushes {
            keyspace.put(format!("other {flush}"), "x").await?;
            store.flush().await?;
        }
    }
    read_all(store, &keyspace, &recorder).await?;
    Ok((recorder.history(), conflicts))
}

#[test]
fn write_skew_passes_snapshots_and_the_checker_tells_it_from_serializable() {
    let engine = common::engine();
    for (reads, flushes) in [
        (Reads::Keys, 0),
        (Reads::Keys, 3),
        (Reads::Ranges, 0),
        (Reads::Ranges, 3),
        (Reads::KeysForUpdate, 0),
        (Reads::KeysForUpdate, 3),
    ] {
        let run = |isolation| {
            let dir = common::dir();
            let store = common::open(&engine, &dir);
            let run = engine.block_on(skew(&store, isolation, reads, flushes)).unwrap().unwrap();
            store.close().wait().unwrap();
            run
        };
        let (history, conflicts) = run(Isolation::Snapshot);
        let is_protected = reads == Reads::KeysForUpdate;
        assert_eq!(conflicts, usize::from(is_protected), "{reads:?}, {flushes} flushes");
        assert_eq!(check(&history, Level::Snapshot), Ok(()));
        let found = check(&history, Level::Serializable).map_err(|anomaly| anomaly.name);
        assert_eq!(found, if is_protected { Ok(()) } else { Err("G2") }, "{reads:?}, {flushes} flushes");
        let (history, conflicts) = run(Isolation::Serializable);
        assert_eq!((conflicts, check(&history, Level::Serializable)), (1, Ok(())));
    }
}

/// Milliseconds of the world, as if they were seconds.
fn world_clock() -> u64 {
    1_000 + sim::now().as_millis() as u64
}

async fn in_world(engine: &Engine) -> Result<Store> {
    let options =
        Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).memtable_bytes(16 << 10).store_id(7);
    Store::open(engine, "/disk/store", options.clock(world_clock)).await
}

/// Checks a write skew of serializable transactions in a world.
#[cfg(feature = "_mutants")]
fn attempt_skew(world: &mut World, reads: Reads, flushes: usize) -> std::result::Result<(), String> {
    world.add_disk(worlds::ssd(world.seed()));
    let ran = world.run(async |engine| {
        let store = in_world(&engine).await?;
        let (history, _) = skew(&store, Isolation::Serializable, reads, flushes).await?;
        store.close().await?;
        Ok::<_, Error>(history)
    });
    let history = ran.map_err(|failure| failure.to_string())?.map_err(|error| error.to_string())?;
    check(&history, Level::Serializable).map_err(|anomaly| anomaly.to_string())
}

/// In tables, one with a long value, and in memory; each place with an expiry and without.
static KEYS: [&str; 6] = ["table", "table for ever", "long", "long for ever", "memory", "memory for ever"];

/// Reads all keys in all ways that a transaction and a snapshot have; returns for each way which keys were there.
async fn ways(
    transaction: &forebay_kv::Transaction,
    snapshot: &forebay_kv::Snapshot,
    keyspace: &Keyspace,
) -> Result<Vec<Vec<String>>> {
    let mut ways = vec![Vec::new(); 5];
    for key in KEYS {
        let found = [
            transaction.get(keyspace, key).await?.is_some(),
            transaction.get_for_update(keyspace, key).await?.is_some(),
            snapshot.get(keyspace, key).await?.is_some(),
        ];
        for (way, _) in found.into_iter().enumerate().filter(|(_, is_there)| *is_there) {
            ways[way].push(key.to_string());
        }
    }
    let mut range = transaction.range::<&str>(keyspace, ..);
    while let Some((key, _)) = range.next().await.transpose()? {
        ways[3].push(String::from_utf8_lossy(&key).into_owned());
    }
    let many = snapshot.multi_get(keyspace, KEYS.iter()).await?;
    let there = KEYS.iter().zip(many).filter(|(_, value)| value.is_some());
    ways[4].extend(there.map(|(key, _)| key.to_string()));
    ways.iter_mut().for_each(|way| way.sort_unstable());
    Ok(ways)
}

async fn expire(engine: Engine) -> Result<std::result::Result<(), String>> {
    let store = in_world(&engine).await?;
    let (keyspace, until) = (store.default_keyspace(), world_clock() + 500);
    for key in KEYS {
        let value = if key.starts_with("long") { vec![7; 9_000] } else { vec![7; 10] };
        if key.ends_with("for ever") {
            keyspace.put(key, value).await?;
        } else {
            keyspace.put_until(key, value, until).await?;
        }
        if key.starts_with("long") {
            store.flush().await?;
        }
    }
    let mut transaction = store.transaction(Isolation::Serializable);
    transaction.put_until(&keyspace, "own", "1", until)?;
    let snapshot = store.snapshot();
    if world_clock() >= until {
        return Ok(Err("the store took too long for this test".to_string()));
    }
    let (before, mut all) = (ways(&transaction, &snapshot, &keyspace).await?, Vec::new());
    sim::sleep(Duration::from_secs(1)).await.expect("in a world");
    all.push(ways(&transaction, &snapshot, &keyspace).await?);
    // A compaction drops what has expired, from all but the moments before.
    store.compact().await?;
    all.push(ways(&transaction, &snapshot, &keyspace).await?);
    if before[0].len() != KEYS.len() || before[3].len() != KEYS.len() + 1 {
        return Ok(Err(format!("not all are there at the beginning: {before:?}")));
    }
    for after in all {
        if after != before {
            return Ok(Err(format!("{before:?}, and later of the same moment {after:?}")));
        }
    }
    transaction.commit().await?;
    drop(snapshot);
    let (transaction, snapshot) = (store.transaction(Isolation::Snapshot), store.snapshot());
    let found = ways(&transaction, &snapshot, &keyspace).await?;
    drop((transaction, snapshot));
    store.close().await?;
    let is_over = found.iter().all(|way| way.len() == 3 && way.iter().all(|key| key.ends_with("for ever")));
    Ok(if is_over { Ok(()) } else { Err(format!("found after the end: {found:?}")) })
}

fn attempt_expiry(world: &mut World) -> std::result::Result<(), String> {
    world.add_disk(worlds::ssd(world.seed()));
    let ran = world.run(expire);
    ran.map_err(|failure| failure.to_string())?.map_err(|error| error.to_string())?
}

/// Regression: a transaction, and a snapshot, saw a value and then did not, when it expired in between. The serializable one committed.
#[test]
fn nothing_expires_within_a_moment() {
    worlds::explore(8, attempt_expiry);
}

/// Test of the oracle: transactions whose reads are not compared are caught in the worlds that CI runs.
#[cfg(feature = "_mutants")]
#[test]
fn conflicts_that_are_missed_are_caught() {
    use forebay_kv::mutants::{self, Mutant};
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        let mutant = Mutant::ConflictMissed;
        worlds::is_caught(mutant, 60, |run| mutants::with(mutant, run), |world| attempt(world, isolation));
    }
}

/// Test of the oracle: changes that a flush removed from memory, phantoms, and values that expire within a moment.
#[cfg(feature = "_mutants")]
#[test]
fn missed_changes_and_phantoms_and_expiry_outside_of_the_view_are_caught() {
    use forebay_kv::mutants::{self, Mutant};
    for (mutant, reads, flushes) in [
        (Mutant::ConflictForgotten, Reads::Keys, 3),
        (Mutant::ConflictForgotten, Reads::Ranges, 3),
        (Mutant::PhantomMissed, Reads::Ranges, 0),
        (Mutant::PhantomMissed, Reads::Ranges, 3),
    ] {
        let attempt = |world: &mut World| attempt_skew(world, reads, flushes);
        worlds::is_caught(mutant, 1, |run| mutants::with(mutant, run), attempt);
    }
    let mutant = Mutant::ExpiryOutsideView;
    worlds::is_caught(mutant, 1, |run| mutants::with(mutant, run), attempt_expiry);
    // The worlds that CI runs find a conflict that was forgotten by themselves.
    let mutant = Mutant::ConflictForgotten;
    let attempt = |world: &mut World| attempt(world, Isolation::Serializable);
    worlds::is_caught(mutant, 120, |run| mutants::with(mutant, run), attempt);
}
