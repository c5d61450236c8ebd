//! forebay-kv: two shards; gets and puts are tasks on them, tasks of Tokio, or threads that wait.

use std::sync::Arc;

use ::forebay::{Class, Config, Engine, shard};
use forebay_kv::{Batch, Keyspace, Options, Store};

use super::data::{self, Key, VALUE_BYTES, Values};
use super::{BUSY_GETS, IN_FLIGHT, PUT_BYTES, THREADS, Work, drive};
use crate::prelude::*;

/// At most two threads, as the others have at least.
const SHARDS: usize = 2;
/// Memory that a process with an engine takes beside the store's budget: an eighth of its memory, but at
/// least this much.
const BESIDE_BYTES_MIN: u64 = 14 << 20;
/// The row in which the log and compaction have the class of the gets.
const NO_CLASSES: &str = "forebay-no-classes";
/// The row of threads in `.wait()`.
const WAIT: &str = "forebay-wait";
/// The engine's memory for I/O that is there from the start.
const ARENA_BYTES: usize = 4 << 20;

/// An open store, its engine, and the source of values.
pub(super) struct Opened {
    engine: Engine,
    store: Store,
    keyspace: Keyspace,
    values: Arc<Values>,
}

impl Opened {
    /// Opens the store of a row, or makes it in an empty folder.
    pub(super) fn open(work: &Work) -> Result<Self> {
        let memory_bytes = work.memory_bytes - (work.memory_bytes / 8).max(BESIDE_BYTES_MIN);
        let config = Config::default().shards(SHARDS).arena_bytes(ARENA_BYTES);
        let engine = Engine::start(config.arena_bytes_max(usize::try_from(memory_bytes)?))?;
        let mut options = Options::new().memory(memory_bytes);
        if work.row == NO_CLASSES {
            // The class of the gets: none is dispatched first.
            options = options.class(Class::DEFAULT).background(Class::DEFAULT);
        }
        let store = Store::open(&engine, work.dir.join("forebay"), options).wait()?;
        let keyspace = store.default_keyspace();
        Ok(Self { engine, store, keyspace, values: Arc::new(Values::new()) })
    }

    /// Loads the keys with the numbers from 0 to `keys`, from a task on a shard; durable when it returns.
    pub(super) fn load(&self, keys: u64) -> Result<()> {
        let (keyspace, values) = (self.keyspace.clone(), Arc::clone(&self.values));
        let task = self.engine.spawn_on_shard(SHARDS - 1, Class::DEFAULT, move || async move {
            let mut load = keyspace.loader();
            let mut value = [0; VALUE_BYTES];
            for number in 0..keys {
                values.write(number, &mut value);
                load.add(data::key(number), &value).await?;
            }
            load.finish().await
        });
        Ok(task.wait()??)
    }

    /// Measures a row.
    pub(super) fn measure(&self, work: &Work) -> Result<Outcome> {
        let all: Vec<usize> = (0..SHARDS).collect();
        match (work.workload.as_str(), work.row.as_str()) {
            ("one", "forebay") => self.gets(work, &[SHARDS - 1], 1),
            ("one", WAIT) => self.gets_of_threads(work, 1),
            ("many", WAIT) => self.gets_of_threads(work, THREADS),
            ("many", "forebay-shard") => self.gets(work, &all[..1], IN_FLIGHT),
            ("many" | "small", "forebay") | ("tokio", "forebay-native") => self.gets(work, &all, IN_FLIGHT),
            ("tokio", "forebay") => self.gets_from_tokio(work),
            ("busy", "forebay" | NO_CLASSES) => {
                let before = self.store.stats();
                let gets = || self.gets(work, &all, BUSY_GETS);
                let mut outcome = drive::busy(work, gets, |entries| self.put(entries))?;
                let after = self.store.stats();
                let compacted = after.compaction_written_bytes - before.compaction_written_bytes;
                outcome
                    .figures
                    .set("compacted_bytes", compacted as f64)
                    .set("slowed", (after.slowed - before.slowed) as f64);
                Ok(outcome)
            }
            ("puts", "forebay") => self.puts(work, &all),
            ("puts", "forebay-threads") => drive::puts(work, |entries| {
                let (key, value) = &entries[0];
                Ok(self.keyspace.put(key, value).wait()?)
            }),
            (_, row) => bail!("there is no row {row} here"),
        }
    }

    /// Closes store and engine.
    pub(super) fn close(self) -> Result<()> {
        self.store.close().wait()?;
        drop((self.keyspace, self.store));
        self.engine.close().wait()?;
        Ok(())
    }

    fn put(&self, entries: &[(Key, Vec<u8>)]) -> Result<()> {
        let mut batch = Batch::new();
        for (key, value) in entries {
            batch.put(&self.keyspace, key, value);
        }
        Ok(self.store.write(&batch).wait()?)
    }

    /// Runs tasks on shards, `in_flight` in all; `run` is the work of a task.
    fn on_shards<F>(
        &self,
        work: &Work,
        shards: &[usize],
        in_flight: usize,
        run: impl Fn(Caller) -> F + Clone + Send + 'static,
    ) -> Result<Outcome>
    where
        F: Future<Output = Result<()>> + 'static,
    {
        let window = work.window();
        let start = |(place, &shard): (usize, &usize)| {
            let numbers = (0..in_flight).filter(move |number| number % shards.len() == place);
            let numbers: Vec<usize> = numbers.collect();
            let (window, run) = (Arc::clone(&window), run.clone());
            let (keyspace, values) = (self.keyspace.clone(), Arc::clone(&self.values));
            let (seed, keys) = (work.seed, work.keys);
            self.engine.spawn_on_shard(shard, Class::DEFAULT, move || async move {
                let meter = LocalMeter::new(&window);
                let start = |number| {
                    let (keyspace, values) = (keyspace.clone(), Arc::clone(&values));
                    let rng = Rng::new(seed, number);
                    shard::spawn(run(Caller { keyspace, values, meter: meter.clone(), keys, rng }))
                };
                let tasks: Vec<_> = numbers.into_iter().map(start).collect();
                for task in tasks {
                    task?.await??;
                }
                anyhow::Ok(meter.take())
            })
        };
        let tasks: Vec<_> = shards.iter().enumerate().map(start).collect();
        let meters = tasks.into_iter().map(|task| task.wait()?).collect::<Result<Vec<Meter>>>()?;
        Ok(window.outcome(meters))
    }

    fn gets(&self, work: &Work, shards: &[usize], in_flight: usize) -> Result<Outcome> {
        self.on_shards(work, shards, in_flight, async |mut caller: Caller| {
            let Caller { keyspace, values, meter, keys, rng } = &mut caller;
            while_open!(meter, get_one(keyspace, values, rng.below(*keys)).await?);
            Ok(())
        })
    }

    fn puts(&self, work: &Work, shards: &[usize]) -> Result<Outcome> {
        self.on_shards(work, shards, IN_FLIGHT, async |mut caller: Caller| {
            let mut value = [0; PUT_BYTES];
            while_open!(caller.meter, {
                let number = caller.rng.next();
                caller.values.write(number, &mut value);
                caller.keyspace.put(data::key(number), value).await?;
            });
            Ok(())
        })
    }

    /// Threads that each wait for one get after the other.
    fn gets_of_threads(&self, work: &Work, threads: usize) -> Result<Outcome> {
        drive::gets_of_threads(work, threads, |number| {
            let key = data::key(number);
            let value = self.keyspace.get(&key).wait()?.context("a key is missing")?;
            self.values.check(number, &value)
        })
    }

    fn gets_from_tokio(&self, work: &Work) -> Result<Outcome> {
        drive::from_tokio(work, |i| {
            let (keyspace, values) = (self.keyspace.clone(), Arc::clone(&self.values));
            let (mut rng, keys) = (Rng::new(work.seed, i), work.keys);
            move || {
                let (keyspace, values, number) = (keyspace.clone(), Arc::clone(&values), rng.below(keys));
                async move { get_one(&keyspace, &values, number).await }
            }
        })
    }
}

/// Parts that a task on a shard begins with.
struct Caller {
    keyspace: Keyspace,
    values: Arc<Values>,
    meter: LocalMeter,
    keys: u64,
    rng: Rng,
}

async fn get_one(keyspace: &Keyspace, values: &Values, number: u64) -> Result<()> {
    let key = data::key(number);
    let value = keyspace.get(&key).await?.context("a key is missing")?;
    values.check(number, &value)
}
