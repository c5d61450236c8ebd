//! Shows: a future of the log that is no longer polled costs only the resources it holds, and every other call proceeds. How: each
//! kind of call is kept unpolled at each of its awaits, one of each kind and many of one kind, while one of each kind runs to its
//! end. Then the kept futures are polled again on another thread, or dropped. On a real engine, whose round must end within a
//! minute, and in worlds whose seed decides which calls are kept.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay::{Config, Engine};
use forebay_sim::{Profile, World};
use forebay_test::frozen::{self, NamedCall, Scene as _};
use forebay_wal::inspect::{inspect, records, repair};
use forebay_wal::{Batch, ErrorKind, Lsn, Options, Wal};

use crate::common;

/// Length of a record: three of them fill the limit of pending bytes.
const RECORD: usize = 1000;

/// An LSN and the record's bytes.
type Record = (u64, Vec<u8>);

/// A log that fits three records, and the acknowledged records.
#[derive(Clone)]
struct Scene {
    engine: Engine,
    dir: PathBuf,
    wal: Wal,
    /// A log whose records may be removed.
    scrap: Wal,
    next: Arc<AtomicU64>,
    acknowledged: Arc<Mutex<Vec<Record>>>,
}

fn options() -> Options {
    let options = Options::new().segment_bytes(64 << 10).mark_after(Duration::from_micros(200));
    options.group_bytes_max(4096).pending_bytes_max(3 * (RECORD + 100))
}

fn text(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

impl Scene {
    async fn new(engine: Engine, dir: PathBuf) -> Result<Scene, String> {
        for name in ["log", "scrap", "idle"] {
            engine.create_dir_all(dir.join(name)).await.map_err(text)?;
        }
        let (wal, _) = Wal::open(&engine, dir.join("log"), options()).await.map_err(text)?;
        let (scrap, _) = Wal::open(&engine, dir.join("scrap"), options()).await.map_err(text)?;
        let (idle, _) = Wal::open(&engine, dir.join("idle"), options()).await.map_err(text)?;
        for number in 0..20 {
            idle.append(&common::record(number)).await.map_err(text)?;
            wal.append(b"before").await.map_err(text)?;
        }
        idle.close().await.map_err(text)?;
        Ok(Scene { engine, dir, wal, scrap, next: Arc::default(), acknowledged: Arc::default() })
    }

    /// Returns a unique record.
    fn record(&self) -> Vec<u8> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut record = number.to_le_bytes().to_vec();
        record.resize(RECORD, number as u8);
        record
    }

    fn acknowledge(&self, lsn: Lsn, record: Vec<u8>) {
        self.acknowledged.lock().unwrap().push((lsn.0, record));
    }

    /// Returns the path of a new directory.
    fn fresh(&self) -> PathBuf {
        self.dir.join(format!("fresh-{}", self.next.fetch_add(1, Ordering::Relaxed)))
    }
}

impl frozen::Scene for Scene {
    fn calls(&self) -> Vec<NamedCall> {
        let mut calls: Vec<NamedCall> = Vec::new();
        macro_rules! call {
            ($name:literal, $scene:ident => $body:block) => {{
                let $scene = self.clone();
                calls.push(($name, Box::pin(async move { $body Ok(()) })));
            }};
        }
        call!("append", scene => {
            let record = scene.record();
            scene.acknowledge(scene.wal.append(&record).await.map_err(text)?, record);
        });
        call!("append of several", scene => {
            let records = [scene.record(), scene.record()];
            let slices: Vec<&[u8]> = records.iter().map(|record| &record[..]).collect();
            let first = scene.wal.append(&slices[..]).await.map_err(text)?;
            for (lsn, record) in (first.0..).zip(records) {
                scene.acknowledge(Lsn(lsn), record);
            }
        });
        call!("queued and sync", scene => {
            let record = scene.record();
            let lsn = scene.wal.append(&record).queued().await.map_err(text)?.lsn();
            scene.wal.sync().await.map_err(text)?;
            scene.acknowledge(lsn, record);
        });
        call!("append of a long record", scene => {
            let record = vec![7; 20_000];
            scene.acknowledge(scene.wal.append(&record).await.map_err(text)?, record);
        });
        call!("sync", scene => { scene.wal.sync().await.map_err(text)?; });
        call!("try_append and room", scene => {
            let record = scene.record();
            let appended = loop {
                match scene.wal.try_append(&record).map_err(text)? {
                    Some(appended) => break appended,
                    None => scene.wal.room(record.len()).await.map_err(text)?,
                }
            };
            scene.acknowledge(appended.await.map_err(text)?, record);
        });
        call!("queued batch", scene => {
            let records = [scene.record(), scene.record()];
            let mut batch = Batch::from_iter(&records);
            batch.set("batch", b"value").map_err(text)?;
            let queued = scene.wal.append(batch).queued().await.map_err(text)?;
            let first = queued.await.map_err(text)?;
            for (lsn, record) in (first.0..).zip(records) {
                scene.acknowledge(Lsn(lsn), record);
            }
        });
        call!("set and unset", scene => {
            scene.wal.set("key", b"value").await.map_err(text)?;
            scene.wal.unset("key").await.map_err(text)?;
        });
        call!("waits, follow and read", scene => {
            let record = scene.record();
            let lsn = scene.wal.append(&record).queued().await.map_err(text)?.lsn();
            scene.wal.wait_queued(lsn).await.map_err(text)?;
            let read = scene.wal.read(lsn..=lsn, 0).await.map_err(text)?;
            let mut reader = scene.wal.read_from(lsn);
            let followed = reader.follow().await.map_err(text)?;
            scene.wal.wait_durable(lsn).await.map_err(text)?;
            if read.len() != 1 || read[0][..] != record[..] || followed[..] != record[..] {
                return Err(format!("record {lsn} is read as another one"));
            }
            scene.acknowledge(lsn, record);
        });
        call!("reader", scene => {
            let mut reader = scene.wal.read_from(Lsn(20));
            for _ in 0..6 {
                reader.next().await.transpose().map_err(text)?;
            }
        });
        call!("truncate_before", scene => {
            scene.wal.truncate_before(Lsn(10)).await.map_err(text)?;
        });
        call!("truncate_from", scene => {
            let record = scene.record();
            let lsn = scene.scrap.append(&record).await.map_err(text)?;
            match scene.scrap.truncate_from(lsn.next()).await {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), ErrorKind::OutOfRange { .. }) => {}
                Err(error) => return Err(text(error)),
            }
        });
        call!("reset_to", scene => {
            scene.scrap.append(b"scrap").await.map_err(text)?;
            scene.scrap.reset_to(Lsn(1000)).await.map_err(text)?;
        });
        call!("open and close", scene => {
            let dir = scene.fresh();
            scene.engine.create_dir_all(&dir).await.map_err(text)?;
            let (wal, _) = Wal::open(&scene.engine, &dir, options()).await.map_err(text)?;
            wal.append(b"one").await.map_err(text)?;
            wal.close().await.map_err(text)?;
        });
        call!("inspect", scene => {
            let report = inspect(&scene.engine, scene.dir.join("idle")).await.map_err(text)?;
            if !report.is_whole() {
                return Err(text(report));
            }
        });
        call!("records", scene => {
            let mut records = records(&scene.engine, scene.dir.join("idle")).await.map_err(text)?;
            let mut count = 0;
            while records.next().await.transpose().map_err(text)?.is_some() {
                count += 1;
            }
            if count != 20 {
                return Err(format!("{count} records"));
            }
        });
        call!("repair", scene => {
            repair(&scene.engine, scene.dir.join("idle"), scene.fresh()).await.map_err(text)?;
        });
        calls
    }

    fn many(&self, _name: &str) -> usize {
        8
    }

    /// Checks that the acknowledged records are there.
    async fn check(&self) -> Result<(), String> {
        self.wal.sync().await.map_err(text)?;
        let mut acknowledged = self.acknowledged.lock().unwrap().clone();
        acknowledged.sort();
        let mut reader = self.wal.read_from(self.wal.first_lsn());
        let mut expected = acknowledged.iter().peekable();
        while let Some(record) = reader.next().await.transpose().map_err(text)? {
            if let Some((_, bytes)) = expected.next_if(|(lsn, _)| *lsn == record.lsn().0)
                && bytes[..] != record[..]
            {
                return Err(format!("{:?} is another record", record.lsn()));
            }
        }
        expected.next().map_or(Ok(()), |(lsn, _)| Err(format!("the acknowledged record {lsn} is not there")))
    }
}

/// Regression: an append that had waited for room and was then kept in a `select!` held the first place in
/// the line, and every later append waited behind it forever, with nothing pending.
#[test]
fn no_call_waits_for_one_that_is_not_polled() {
    let dir = common::dir();
    let engine = Engine::start(Config::new().shards(1).inbox_depth(1).queue_depth(2)).unwrap();
    let scene = futures::executor::block_on(Scene::new(engine, dir.path().to_path_buf())).unwrap();
    frozen::rounds_of_each(&scene);
    for kind in 0..scene.calls().len() {
        for polls in [0, 1, 2] {
            frozen::round_of_many(&scene, kind, polls, polls == 2);
        }
    }
}

/// Runs a round in a world; a hang is reported as an error, after a minute of the world's time.
fn simulate(seed: u64) -> Result<(), String> {
    let config = Config::new().shards(2).inbox_depth(1 + (seed % 3) as usize).queue_depth(2);
    let run = World::new(seed)
        .disk(Profile::nand())
        .config(config)
        .run(async |engine| frozen::in_world(Scene::new(engine, PathBuf::from("/")), seed, 4).await);
    run.unwrap_or_else(|failure| Err(failure.to_string()))
}

#[test]
fn no_call_waits_for_one_that_is_not_polled_in_any_world() {
    for seed in 0..24 {
        simulate(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// Checks the test itself: a wake-up that a kept append swallows is detected.
#[cfg(feature = "_mutants")]
#[test]
fn a_wake_up_that_a_kept_append_swallows_is_caught() {
    use forebay_wal::mutants::{self, Mutant};

    for seed in [0, 3, 6] {
        let what =
            mutants::with(Mutant::WokenKeepsItsTurn, || simulate(seed)).expect_err("each seed catches it");
        println!("seed {seed}: {what}");
    }
}
