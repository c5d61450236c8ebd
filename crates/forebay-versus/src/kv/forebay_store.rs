//! forebay-kv: two shards; gets and puts are tasks on them, tasks of Tokio, or threads that wait.

use std::ops::ControlFlow;

use ::forebay::{Class, Config, Engine};
use forebay_kv::{Batch, Compression, Keyspace, Options, Store};
use forebay_wal::Wal;
use tokio::runtime::Builder;

use super::drive::{self, Key, Peer, See, VALUE_BYTES, Values, key};
use super::{BUSY_GETS, IN_FLIGHT, PUT_BYTES};
use crate::peers::forebay::spawn;
use crate::prelude::*;

/// At most two threads, as the others have at least.
const SHARDS: usize = 2;
const LAST: usize = SHARDS - 1;
const BOTH: &[usize] = &[0, LAST];
/// Memory that a process with an engine uses in addition to the store's budget: an eighth of its memory, but at least this much.
const BESIDE_BYTES_MIN: u64 = 14 << 20;
/// The row in which the log and compaction have the class of the gets.
const NO_CLASSES: &str = "forebay-no-classes";
/// The row in which compaction rewrites long values with their keys.
const TOGETHER: &str = "forebay-together";
/// Bytes of the log's record of a put, and of a segment of the store's log with the default memory.
const RECORD_BYTES: usize = 16 + PUT_BYTES + 16;
const SEGMENT_BYTES: u64 = 64 << 20;
/// The engine's memory for I/O that is there from the start.
const ARENA_BYTES: usize = 4 << 20;

/// Measures a row.
pub(super) fn sample(work: &Work) -> Result<Outcome> {
    let (workload, row) = (&*work.workload, &*work.row);
    if matches!(workload, "load" | "random" | "large" | "sweep")
        || matches!(row, "forebay-wait" | "forebay-threads")
    {
        return drive::sample(work, OpenStore::open);
    }
    let opened = OpenStore::open(work)?;
    let outcome = match (workload, row) {
        ("one", _) => opened.on_shards(work, &[LAST], 1),
        ("many", "forebay-shard") => opened.on_shards(work, &[0], IN_FLIGHT),
        ("many" | "small", _) | ("tokio", "forebay-native") => opened.on_shards(work, BOTH, IN_FLIGHT),
        ("tokio", _) => opened.gets_from_tokio(work),
        ("busy", _) => opened.busy(work),
        ("puts", "forebay-shard") => opened.on_shards(work, &[0], IN_FLIGHT),
        ("puts", "forebay-other") => opened.on_shards(work, &[LAST], IN_FLIGHT),
        ("puts", "forebay-tokio") => opened.puts_from_tokio(work),
        ("puts", "forebay-log") => opened.appends(work),
        ("puts", _) => opened.on_shards(work, BOTH, IN_FLIGHT),
        _ => bail!("there is no workload {workload} here"),
    }?;
    opened.close()?;
    Ok(outcome)
}

/// An open store, its engine, and the source of values.
struct OpenStore {
    engine: Engine,
    store: Store,
    keyspace: Keyspace,
    values: Arc<Values>,
}

impl Peer for OpenStore {
    /// Loads from a task on a shard.
    fn load(&self, keys: u64, _: &Values) -> Result<()> {
        let (keyspace, values) = (self.keyspace.clone(), Arc::clone(&self.values));
        let task = self.engine.spawn_on_shard(LAST, Class::DEFAULT, move || async move {
            let mut load = keyspace.loader();
            let mut value = [0; VALUE_BYTES];
            for number in 0..keys {
                values.write(number, &mut value);
                load.add(key(number), &value).await?;
            }
            load.finish().await
        });
        Ok(task.wait()??)
    }

    fn get(&self, key: &Key, see: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        see(&self.keyspace.get(key).wait()?.context("a key is missing")?)
    }

    fn put(&self, entries: &[(Key, Vec<u8>)]) -> Result<()> {
        if let [(key, value)] = entries {
            return Ok(self.keyspace.put(key, value).wait()?);
        }
        let mut batch = Batch::new();
        for (key, value) in entries {
            batch.put(&self.keyspace, key, value);
        }
        Ok(self.store.write(&batch).wait()?)
    }

    fn scan(&self, from: &Key, count: usize, see: See<'_>) -> Result<()> {
        let (mut left, mut range) = (count, self.keyspace.range(&from[..]..));
        let ended = range.visit(|key, value| {
            left -= 1;
            match see(key, value) {
                Ok(()) if left > 0 => ControlFlow::Continue(()),
                answer => ControlFlow::Break(answer),
            }
        });
        ended.wait()?.unwrap_or(Ok(()))
    }

    fn settle(&self) -> Result<()> {
        Ok(self.store.settle().wait()?)
    }

    fn close(&self) -> Result<()> {
        self.store.close().wait()?;
        self.engine.clone().close().wait()?;
        Ok(())
    }
}

impl OpenStore {
    /// Opens the store of a row, or makes it in an empty folder.
    fn open(work: &Work) -> Result<Self> {
        let memory_bytes = work.memory_bytes - (work.memory_bytes / 8).max(BESIDE_BYTES_MIN);
        let config = Config::new().shards(SHARDS).arena_bytes(ARENA_BYTES);
        let engine = Engine::start(config.arena_bytes_max(usize::try_from(memory_bytes)?))?;
        // As the other stores: values here do not compress.
        let mut options = Options::new().memory_bytes_max(memory_bytes).compression(Compression::None);
        if work.row == NO_CLASSES {
            // The class of the gets: no class is dispatched first.
            options = options.class(Class::DEFAULT).background(Class::DEFAULT);
        }
        if work.row == TOGETHER {
            options = options.separation_bytes(u32::MAX);
        }
        let store = Store::open(&engine, work.path.join("forebay"), options).wait()?;
        let keyspace = store.default_keyspace();
        Ok(Self { engine, store, keyspace, values: Arc::new(Values::new()) })
    }

    fn busy(&self, work: &Work) -> Result<Outcome> {
        let before = self.store.stats();
        let gets = || self.on_shards(work, BOTH, BUSY_GETS);
        let outcome = drive::busy(work, gets, |entries| self.put(entries))?;
        let after = self.store.stats();
        let compacted = after.compaction_written_bytes - before.compaction_written_bytes;
        Ok(outcome
            .figure("compacted_bytes", compacted as f64)
            .figure("slowed", (after.slowed - before.slowed) as f64))
    }

    /// Measures gets, or puts, of tasks on shards, `in_flight` in all.
    fn on_shards(&self, work: &Work, shards: &[usize], in_flight: usize) -> Result<Outcome> {
        let window = work.window();
        let start = |(place, &shard): (usize, &usize)| {
            let numbers = (place..in_flight).step_by(shards.len());
            let (window, keyspace, values) = (window.clone(), self.keyspace.clone(), self.values.clone());
            let (work, is_put) = (work.clone(), work.workload == "puts");
            self.engine.spawn_on_shard(shard, Class::DEFAULT, move || async move {
                let lanes = numbers.map(|number| (keyspace.clone(), values.clone(), work.rng(number)));
                let meter = local_tasks!(window, spawn, lanes, |(keyspace, values, mut rng)| {
                    if is_put {
                        let (number, mut value) = (rng.next_u64(), [0; PUT_BYTES]);
                        values.write(number, &mut value);
                        keyspace.put(key(number), value).await?;
                    } else {
                        get_one(&keyspace, &values, rng.below(work.keys)).await?;
                    }
                });
                anyhow::Ok(meter)
            })
        };
        let tasks: Vec<_> = shards.iter().enumerate().map(start).collect();
        let meters = tasks.into_iter().map(|task| task.wait()?).collect::<Result<Vec<Meter>>>()?;
        Ok(window.outcome(meters))
    }

    /// Measures puts of tasks of Tokio.
    fn puts_from_tokio(&self, work: &Work) -> Result<Outcome> {
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        let lanes =
            (0..IN_FLIGHT).map(|number| (self.keyspace.clone(), self.values.clone(), work.rng(number)));
        tokio_tasks!(work, runtime, lanes, |(keyspace, values, mut rng)| {
            let (number, mut value) = (rng.next_u64(), [0; PUT_BYTES]);
            values.write(number, &mut value);
            keyspace.put(key(number), value).await?;
        })
    }

    /// Measures appends to a separate log, of the bytes that a put appends to the store's, by tasks on a shard.
    fn appends(&self, work: &Work) -> Result<Outcome> {
        let options = forebay_wal::Options::new().segment_bytes(SEGMENT_BYTES);
        let (log, _) = Wal::open(&self.engine, work.path.join("log"), options).wait()?;
        let (window, tasks, numbers) = (work.window(), log.clone(), work.clone());
        let meter = self.engine.spawn_on_shard(LAST, Class::DEFAULT, move || async move {
            let lanes = (0..IN_FLIGHT).map(|number| (tasks.clone(), numbers.rng(number)));
            let meter = local_tasks!(window, spawn, lanes, |(log, mut rng)| {
                let mut record = [0; RECORD_BYTES];
                record[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
                log.append(&record).await?;
            });
            anyhow::Ok((window, meter))
        });
        let (window, meter) = meter.wait()??;
        log.close().wait()?;
        Ok(window.outcome([meter]))
    }

    fn gets_from_tokio(&self, work: &Work) -> Result<Outcome> {
        drive::from_tokio(work, |_| {
            let (keyspace, values) = (self.keyspace.clone(), Arc::clone(&self.values));
            move |number| {
                let (keyspace, values) = (keyspace.clone(), Arc::clone(&values));
                async move { get_one(&keyspace, &values, number).await }
            }
        })
    }
}

async fn get_one(keyspace: &Keyspace, values: &Values, number: u64) -> Result<()> {
    let value = keyspace.get(&key(number)).await?.context("a key is missing")?;
    values.check(number, &value, VALUE_BYTES)
}
