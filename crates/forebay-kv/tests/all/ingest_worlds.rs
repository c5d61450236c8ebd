//! Ingests in simulated worlds: concurrent with transactions, writers, relaxed writes and writes to an unlogged keyspace, on
//! failing disks, across power cuts. Every snapshot, and every reopened store, has either all files of an ingest or no file, and
//! where a file is present nothing older is lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay::Engine;
use forebay_kv::{
    Error, ErrorKind, Isolation, Keyspace, Options, Result, Snapshot, SortedFile, SortedFileOptions, Store,
};
use forebay_sim::{self as sim, Fault, Rule, World};
use forebay_test::worlds::{self, Draw, Trouble};

/// Keys of a file that are there to be many.
const FILLERS: u64 = 40;

/// What must be there, and what may be.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Ingests, and the last one that was acknowledged.
    files: u64,
    ingested: u64,
    /// Relaxed writes, and those that returned before the start of the last acknowledged ingest.
    relaxed: u64,
    relaxed_before: u64,
    /// Writes to the unlogged keyspace, and those that returned before the start of its last acknowledged ingest.
    applied: u64,
    applied_before: u64,
    /// Puts between the keys of files, and those that were acknowledged.
    put: u64,
    puts: u64,
}

type SharedProgress = Arc<Mutex<Progress>>;

#[derive(Clone)]
struct Open {
    store: Store,
    one: Keyspace,
    two: Keyspace,
    state: Keyspace,
    done: SharedProgress,
}

fn is_failure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::ReadOnly | ErrorKind::NoSpace | ErrorKind::Closed)
}

impl Open {
    async fn open(engine: &Engine, done: &SharedProgress, memtable_bytes: u64) -> Result<Open> {
        let options =
            Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).memtable_bytes(memtable_bytes);
        let options = options.log_segment_bytes(64 << 10).store_id(0x0f0e_0b0a_0405).clock(|| 1_000);
        let store = Store::open(engine, "/disk/store", options).await?;
        let opened = async {
            let (one, two) = (store.keyspace("one").await?, store.keyspace("two").await?);
            let state = store.unlogged_keyspace("state").await?;
            Ok(Open { store: store.clone(), one, two, state, done: done.clone() })
        };
        match opened.await {
            Ok(open) => Ok(open),
            Err(error) => {
                let _ = store.close().await;
                Err(error)
            }
        }
    }

    fn done<T>(&self, with: impl FnOnce(&mut Progress) -> T) -> T {
        with(&mut self.done.lock().expect("no task has panicked"))
    }

    async fn number(&self, snapshot: &Snapshot, keyspace: &Keyspace, key: &str) -> Result<u64> {
        let found = snapshot.get(keyspace, key).await?;
        Ok(found.and_then(|value| value.first_chunk().map(|word| u64::from_le_bytes(*word))).unwrap_or(0))
    }

    /// Checks what every moment has: all of a file's keys are of the same ingest, in all keyspaces; and a copy is as new as
    /// its origin. Returns the number of the ingest.
    async fn check_moment(&self) -> Result<std::result::Result<u64, String>> {
        let snapshot = self.store.snapshot();
        let mark = self.number(&snapshot, &self.one, "mark").await?;
        for (keyspace, key) in
            [(&self.one, "from"), (&self.one, "to"), (&self.two, "mark"), (&self.two, "zz")]
        {
            let found = self.number(&snapshot, keyspace, key).await?;
            if found != mark {
                return Ok(Err(format!(
                    "{:?} {key} is of ingest {found}, and mark of {mark}",
                    keyspace.name()
                )));
            }
        }
        for number in 0..FILLERS {
            let found = self.number(&snapshot, &self.two, &format!("n {number}")).await?;
            if found != mark {
                return Ok(Err(format!("filler {number} is of ingest {found}, and mark of {mark}")));
            }
        }
        Ok(Ok(mark))
    }

    /// Checks the findings of an open, and continues from there.
    async fn check_open(&self) -> Result<std::result::Result<(), String>> {
        let mark = match self.check_moment().await? {
            Ok(mark) => mark,
            Err(text) => return Ok(Err(text)),
        };
        let snapshot = self.store.snapshot();
        let relaxed = self.number(&snapshot, &self.one, "relaxed").await?;
        let put = self.number(&snapshot, &self.one, "nn put").await?;
        let applied = self.number(&snapshot, &self.state, "applied").await?;
        let state_mark = self.number(&snapshot, &self.state, "mark").await?;
        let before = self.done(|done| *done);
        let checks = [
            (mark >= before.ingested && mark <= before.files, "an ingest"),
            (
                relaxed >= before.relaxed_before && relaxed <= before.relaxed,
                "relaxed writes older than a file",
            ),
            (put >= before.puts && put <= before.put, "puts"),
            (
                applied >= before.applied_before && applied <= before.applied,
                "unlogged writes older than a file",
            ),
            (state_mark <= before.files, "an unlogged ingest"),
        ];
        if let Some((_, what)) = checks.iter().find(|(is_right, _)| !is_right) {
            return Ok(Err(format!("{what}: {mark} {relaxed} {put} {applied} {state_mark}")));
        }
        self.done(|done| {
            (done.ingested, done.relaxed, done.relaxed_before) = (mark, relaxed, relaxed);
            (done.applied, done.applied_before, done.put, done.puts) = (applied, applied, put, put);
        });
        Ok(Ok(()))
    }

    async fn ingest(&self, engine: &Engine) -> Result<()> {
        let number = self.done(|done| {
            done.files += 1;
            done.files
        });
        let value = number.to_le_bytes();
        let paths = ["one", "two", "state"].map(|name| format!("/disk/{name} {number}"));
        for (index, path) in paths.iter().enumerate() {
            let mut file = SortedFile::create(engine, path, SortedFileOptions::new()).await?;
            match index {
                0 => {
                    for key in ["from", "mark", "to"] {
                        file.put(key, value).await?;
                    }
                }
                1 => {
                    file.put("mark", value).await?;
                    let mut fillers: Vec<_> = (0..FILLERS).map(|number| format!("n {number}")).collect();
                    fillers.sort();
                    for key in fillers {
                        file.put(key, value).await?;
                    }
                    file.put("zz", value).await?;
                }
                _ => file.put("mark", value).await?,
            }
            file.finish().await?;
        }
        let before = self.done(|done| *done);
        let has_state = sim::random(2) == 0;
        let mut files = vec![(&self.one, &paths[0]), (&self.two, &paths[1])];
        files.extend(has_state.then_some((&self.state, &paths[2])));
        self.store.ingest(files).await?;
        self.done(|done| {
            done.ingested = done.ingested.max(number);
            done.relaxed_before = before.relaxed;
            if has_state {
                done.applied_before = before.applied;
            }
        });
        Ok(())
    }

    /// Copies a key of the files to another one.
    async fn copy(&self) -> Result<()> {
        let mut transaction = self.store.transaction(Isolation::Serializable);
        if let Some(from) = transaction.get(&self.one, "from").await? {
            transaction.put(&self.one, "to", &*from)?;
        }
        match transaction.commit().await {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            done => done,
        }
    }

    /// Writes between and around the keys of the files, which are "from" to "to".
    async fn write(&self) -> Result<()> {
        let (relaxed, applied, put) = self.done(|done| (done.relaxed + 1, done.applied + 1, done.put + 1));
        match sim::random(4) {
            0 => {
                self.done(|done| done.put = put);
                self.one.put("nn put", put.to_le_bytes()).await?;
                self.done(|done| done.puts = put);
            }
            1 => {
                self.state.put("applied", applied.to_le_bytes()).await?;
                self.done(|done| done.applied = applied);
            }
            2 => self.one.put(format!("more {}", sim::random(50)), [7; 700]).await?,
            _ => {
                self.one.put("relaxed", relaxed.to_le_bytes()).relaxed().await?;
                self.done(|done| done.relaxed = relaxed);
            }
        }
        Ok(())
    }
}

/// The end of a task: its completion, a failure of the store, or a failed check.
fn judged(ended: Result<std::result::Result<(), String>>) -> std::result::Result<(), String> {
    match ended {
        Ok(judged) => judged,
        Err(error) if is_failure(&error) => Ok(()),
        Err(error) => Err(format!("{error:?}")),
    }
}

async fn rest() {
    let _ = sim::sleep(Duration::from_micros(sim::random(400))).await;
}

async fn live(
    engine: Engine,
    done: SharedProgress,
    memtable_bytes: u64,
    steps: u64,
) -> std::result::Result<(), String> {
    let open = match Open::open(&engine, &done, memtable_bytes).await {
        Err(error) if is_failure(&error) => return Ok(()),
        open => open.map_err(|error| format!("{error:?}"))?,
    };
    judged(open.check_open().await)?;
    let mut tasks = Vec::new();
    let ingester = (engine.clone(), open.clone());
    tasks.push(sim::spawn(async move {
        for _ in 0..steps {
            ingester.1.ingest(&ingester.0).await?;
            rest().await;
        }
        Ok(Ok(()))
    }));
    for _ in 0..2 {
        let open = open.clone();
        tasks.push(sim::spawn(async move {
            for _ in 0..3 * steps {
                open.copy().await?;
                rest().await;
            }
            Ok(Ok(()))
        }));
    }
    let writer = open.clone();
    tasks.push(sim::spawn(async move {
        for _ in 0..12 * steps {
            writer.write().await?;
            match sim::random(40) {
                0 => writer.store.flush().await?,
                1 => writer.store.settle().await?,
                2 => writer.store.compact().await?,
                3 => rest().await,
                _ => {}
            }
        }
        Ok(Ok(()))
    }));
    let reader = open.clone();
    tasks.push(sim::spawn(async move {
        for _ in 0..4 * steps {
            if let Err(text) = reader.check_moment().await? {
                return Ok(Err(text));
            }
            rest().await;
        }
        Ok(Ok(()))
    }));
    for task in tasks {
        judged(task.await.map_err(|error| format!("a task: {error}"))?)?;
    }
    judged(open.store.close().await.map(Ok))
}

const LIVES: u64 = 4;

fn attempt(world: &mut World, trouble: Trouble) -> std::result::Result<(), String> {
    let mut draw = Draw::new(world.seed());
    world.add_disk(worlds::disk(&mut draw));
    let done = SharedProgress::default();
    let memtable_bytes = [16 << 10, 16 << 10, 64 << 10][draw.below(3) as usize];
    for life in 0..LIVES {
        let is_last = life + 1 == LIVES;
        if !is_last {
            trouble.faults(&mut draw, 2_000, 300).into_iter().for_each(|rule| world.inject(rule));
            worlds::order_cut(world, &mut draw, 0..80_000, 500);
        }
        let (shared, steps) = (done.clone(), 1 + draw.below(8));
        let live = async move |engine| live(engine, shared, memtable_bytes, steps).await;
        worlds::live(world, !is_last, live).map_err(|text| format!("life {life}: {text}"))?;
    }
    let ended = world.run(async move |engine| match forebay_kv::verify(&engine, "/disk/store").await {
        Ok(verified) if verified.is_whole() => Ok(()),
        found => Err(format!("verified: {found:?}")),
    });
    ended.map_err(|failure| failure.to_string())?
}

#[test]
fn an_ingest_is_there_whole_or_not_at_all_across_power_cuts() {
    worlds::explore(50, |world| attempt(world, Trouble::Crashes));
}

#[test]
fn an_ingest_is_there_whole_or_not_at_all_on_failing_disks() {
    worlds::explore(50, |world| attempt(world, Trouble::Errors));
}

/// A relaxed write that has returned before the start of an ingest is as durable as the ingest: a store must not lose the older of
/// the two. The log's device is slow here, so that nothing else makes the write durable in time.
#[test]
fn an_ingest_waits_for_relaxed_writes_from_before() {
    // What is in flight when the power fails may be there or not: some seeds show nothing.
    (0..20).for_each(relaxed_before);
}

fn relaxed_before(seed: u64) {
    let mut world = World::new(seed);
    world.add_disk(forebay_sim::Profile::nand().at("/disk"));
    let cut = world.run(async move |engine| {
        let open = Open::open(&engine, &SharedProgress::default(), 64 << 10).await.expect("a store");
        let mut file =
            SortedFile::create(&engine, "/disk/file", SortedFileOptions::new()).await.expect("a file");
        file.put("mark", 1u64.to_le_bytes()).await.expect("a put");
        file.finish().await.expect("an end");
        sim::inject(Rule::new(Fault::Slow).on("/disk/store/log"));
        open.one.put("relaxed", 1u64.to_le_bytes()).relaxed().await.expect("a put");
        open.store.ingest([(&open.two, "/disk/file")]).await.expect("an ingest");
        sim::power_cut().await;
    });
    assert!(cut.expect_err("the power fails").is_power_cut());
    world.clear_faults();
    world.power_cut();
    world.reboot();
    let opened = world.run(async move |engine| {
        let open = Open::open(&engine, &SharedProgress::default(), 64 << 10).await.expect("a store");
        let snapshot = open.store.snapshot();
        let found = open.number(&snapshot, &open.two, "mark").await.expect("a get");
        (found, open.number(&snapshot, &open.one, "relaxed").await.expect("a get"))
    });
    assert_eq!(opened.expect("a life"), (1, 1));
}

/// After a crash, unlogged keyspaces are as of one moment. An ingest into one of them makes all that they had before
/// durable with it, also where it has other keys.
#[test]
fn an_ingest_takes_older_unlogged_writes_along() {
    let mut world = World::new(6);
    world.add_disk(forebay_sim::Profile::nand().at("/disk"));
    let cut = world.run(async move |engine| {
        let open = Open::open(&engine, &SharedProgress::default(), 64 << 10).await.expect("a store");
        let other = open.store.unlogged_keyspace("other").await.expect("a keyspace");
        let mut file =
            SortedFile::create(&engine, "/disk/file", SortedFileOptions::new()).await.expect("a file");
        file.put("mark", 1u64.to_le_bytes()).await.expect("a put");
        file.finish().await.expect("an end");
        open.state.put("applied", 1u64.to_le_bytes()).await.expect("a put");
        other.put("applied", 1u64.to_le_bytes()).await.expect("a put");
        open.store.ingest([(&open.state, "/disk/file")]).await.expect("an ingest");
        sim::power_cut().await;
    });
    assert!(cut.expect_err("the power fails").is_power_cut());
    world.power_cut();
    world.reboot();
    let opened = world.run(async move |engine| {
        let open = Open::open(&engine, &SharedProgress::default(), 64 << 10).await.expect("a store");
        let other = open.store.keyspace("other").await.expect("a keyspace");
        let snapshot = open.store.snapshot();
        let mut found = Vec::new();
        for (keyspace, key) in [(&open.state, "mark"), (&open.state, "applied"), (&other, "applied")] {
            found.push(open.number(&snapshot, keyspace, key).await.expect("a get"));
        }
        found
    });
    assert_eq!(opened.expect("a life"), [1, 1, 1]);
}

/// An ingest may wait for minutes before it removes a file's first name. A program that puts its next file under the
/// same name meanwhile lost that file: it was removed, and was never ingested.
#[test]
fn a_file_that_takes_the_place_of_an_ingested_one_stays() {
    let replaced = (0..20).filter(|seed| is_replaced_meanwhile(*seed)).count();
    assert!(replaced > 10, "in {replaced} of 20 worlds the file was replaced in time");
}

fn is_replaced_meanwhile(seed: u64) -> bool {
    let mut world = World::new(seed);
    world.add_disk(forebay_sim::Profile::nand().at("/disk"));
    let replaced = world.run(async move |engine| {
        let open = Open::open(&engine, &SharedProgress::default(), 64 << 10).await.expect("a store");
        for path in ["/disk/file", "/disk/next"] {
            let mut file = SortedFile::create(&engine, path, SortedFileOptions::new()).await.expect("a file");
            file.put("mark", path.as_bytes()).await.expect("a put");
            file.finish().await.expect("an end");
        }
        let replace = async {
            // The store has it under a second name from when it was checked.
            loop {
                match engine.metadata("/disk/file").await {
                    Ok(metadata) if metadata.links() == 1 => {}
                    Ok(_) => break engine.rename("/disk/next", "/disk/file").await.expect("a rename"),
                    Err(_) => return false,
                }
            }
            true
        };
        let (ingested, is_replaced) = futures::join!(open.store.ingest([(&open.two, "/disk/file")]), replace);
        let ingested = ingested.expect("an ingest");
        let found = open.two.get("mark").await.expect("a get").expect("a value");
        assert_eq!(&found[..], b"/disk/file");
        if is_replaced {
            assert!(ingested.files[0].is_left);
            let next = open.store.ingest([(&open.two, "/disk/file")]).await.expect("the next ingest");
            assert!(!next.files[0].is_left);
            let found = open.two.get("mark").await.expect("a get").expect("a value");
            assert_eq!(&found[..], b"/disk/next");
        }
        is_replaced
    });
    replaced.expect("a life")
}

/// The name of an ingested file was removed, but not durably. After a power failure it could reappear, and a program that ingests
/// each file that it finds ingested old values a second time, over newer values.
#[test]
fn the_name_of_an_ingested_file_does_not_come_back() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.add_disk(forebay_sim::Profile::nand().at("/disk"));
        let cut = world.run(async move |engine| {
            let open = Open::open(&engine, &SharedProgress::default(), 64 << 10).await.expect("a store");
            engine.create_dir("/disk/files").await.expect("a directory");
            engine.sync_dir("/disk").await.expect("a sync");
            let path = "/disk/files/file";
            let mut file = SortedFile::create(&engine, path, SortedFileOptions::new()).await.expect("a file");
            file.put("mark", 1u64.to_le_bytes()).await.expect("a put");
            file.finish().await.expect("an end");
            let ingested = open.store.ingest([(&open.two, path)]).await.expect("an ingest");
            assert!(!ingested.files[0].is_left);
            sim::power_cut().await;
        });
        assert!(cut.expect_err("the power fails").is_power_cut());
        world.power_cut();
        world.reboot();
        let found = world.run(async move |engine| engine.metadata("/disk/files/file").await.map(drop));
        let error = found.expect("a life").expect_err("there is no such file");
        assert_eq!(error.kind(), forebay::ErrorKind::NotFound, "seed {seed}");
    }
}

/// Test of the oracle: stores with a deliberate fault are caught in the worlds that CI runs.
#[cfg(feature = "_mutants")]
mod broken {
    use forebay_kv::mutants::{self, Mutant};

    use super::*;

    fn is_caught(mutant: Mutant) {
        let attempt = |world: &mut World| attempt(world, Trouble::Crashes);
        worlds::is_caught(mutant, 100, |run| mutants::with(mutant, run), attempt);
    }

    #[test]
    fn writers_between_a_file_and_its_place_are_caught() {
        is_caught(Mutant::RangesNotLocked);
    }

    #[test]
    fn files_that_are_named_one_after_the_other_are_caught() {
        is_caught(Mutant::IngestInParts);
    }
}
