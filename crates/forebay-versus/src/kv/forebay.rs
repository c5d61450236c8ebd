//! forebay-kv: two shards; gets and puts are tasks on them, tasks of Tokio, or threads that wait.

use std::sync::Arc;

use ::forebay::{Class, Config, Engine, shard};
use anyhow::{Context as _, Result, bail};
use forebay_kv::{Batch, Keyspace, Options, Store};

use super::data::{self, Key, VALUE_BYTES, Values};
use super::{BUSY_GETS, IN_FLIGHT, KvJob, PUT_BYTES, THREADS, Workload, drive};
use crate::meter::{LocalMeter, Meter, Window};
use crate::rng::Rng;
use crate::sample::Sample;

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
pub(crate) struct Opened {
    engine: Engine,
    store: Store,
    keyspace: Keyspace,
    values: Arc<Values>,
}

impl Opened {
    /// Opens the store of a row, or makes it in an empty folder.
    pub(crate) fn open(job: &KvJob) -> Result<Self> {
        let memory_bytes = job.memory_bytes - (job.memory_bytes / 8).max(BESIDE_BYTES_MIN);
        let config = Config::default().shards(SHARDS).arena_bytes(ARENA_BYTES);
        let engine = Engine::start(config.arena_bytes_max(usize::try_from(memory_bytes)?))?;
        let mut options = Options::new().memory(memory_bytes);
        if job.row == NO_CLASSES {
            // The class of the gets: none is dispatched first.
            options = options.class(Class::DEFAULT).background(Class::DEFAULT);
        }
        let store = Store::open(&engine, job.dir.join("forebay"), options).wait()?;
        let keyspace = store.default_keyspace();
        Ok(Self { engine, store, keyspace, values: Arc::new(Values::new()) })
    }

    /// Loads the keys with the numbers from 0 to `keys`, from a task on a shard; durable when it returns.
    pub(crate) fn load(&self, keys: u64) -> Result<()> {
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
    pub(crate) fn measure(&self, job: &KvJob) -> Result<Sample> {
        let all: Vec<usize> = (0..SHARDS).collect();
        match (job.workload, job.row.as_str()) {
            (Workload::One, "forebay") => self.gets(job, &[SHARDS - 1], 1),
            (Workload::One, WAIT) => self.gets_of_threads(job, 1),
            (Workload::Many, WAIT) => self.gets_of_threads(job, THREADS),
            (Workload::Many, "forebay-shard") => self.gets(job, &all[..1], IN_FLIGHT),
            (Workload::Many | Workload::Small, "forebay") => self.gets(job, &all, IN_FLIGHT),
            (Workload::Tokio, "forebay-native") => self.gets(job, &all, IN_FLIGHT),
            (Workload::Tokio, "forebay") => self.gets_from_tokio(job),
            (Workload::Busy, "forebay" | NO_CLASSES) => {
                let before = self.store.stats();
                let gets = || self.gets(job, &all, BUSY_GETS);
                let mut sample = drive::busy(job, gets, |entries| self.put(entries))?;
                let after = self.store.stats();
                let compacted = after.compaction_written_bytes - before.compaction_written_bytes;
                sample.set("compacted_bytes", compacted as f64);
                sample.set("slowed", (after.slowed - before.slowed) as f64);
                Ok(sample)
            }
            (Workload::Puts, "forebay") => self.puts(job, &all),
            (Workload::Puts, "forebay-threads") => drive::puts(job, |entries| {
                let (key, value) = &entries[0];
                Ok(self.keyspace.put(key, value).wait()?)
            }),
            (_, row) => bail!("there is no row {row} here"),
        }
    }

    /// Closes store and engine.
    pub(crate) fn close(self) -> Result<()> {
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

    /// Runs tasks on shards, `in_flight` in all; `work` returns the work of the task with this number.
    fn on_shards<F>(
        &self,
        job: &KvJob,
        shards: &[usize],
        in_flight: usize,
        work: impl Fn(Caller) -> F + Clone + Send + 'static,
    ) -> Result<Sample>
    where
        F: Future<Output = Result<()>> + 'static,
    {
        let window = Window::start(job.warm_up, job.measure);
        let tasks: Vec<_> = shards
            .iter()
            .enumerate()
            .map(|(place, &shard)| {
                let numbers = (0..in_flight).filter(move |number| number % shards.len() == place);
                let numbers: Vec<usize> = numbers.collect();
                let (window, work) = (Arc::clone(&window), work.clone());
                let (keyspace, values) = (self.keyspace.clone(), Arc::clone(&self.values));
                let (seed, keys) = (job.seed, job.keys);
                self.engine.spawn_on_shard(shard, Class::DEFAULT, move || async move {
                    let meter = LocalMeter::new(&window);
                    let start = |number| {
                        let (keyspace, values, meter) =
                            (keyspace.clone(), Arc::clone(&values), meter.clone());
                        shard::spawn(work(Caller {
                            keyspace,
                            values,
                            meter,
                            keys,
                            rng: Rng::new(seed, number),
                        }))
                    };
                    let tasks: Vec<_> = numbers.into_iter().map(start).collect();
                    for task in tasks {
                        task?.await??;
                    }
                    anyhow::Ok(meter.take(&window))
                })
            })
            .collect();
        let meters = tasks.into_iter().map(|task| task.wait()?).collect::<Result<Vec<Meter>>>()?;
        Ok(window.sample(meters))
    }

    fn gets(&self, job: &KvJob, shards: &[usize], in_flight: usize) -> Result<Sample> {
        self.on_shards(job, shards, in_flight, async |mut caller: Caller| {
            let mut began = caller.meter.begin();
            loop {
                get_one(&caller.keyspace, &caller.values, caller.rng.below(caller.keys)).await?;
                match caller.meter.finish(began) {
                    Some(now) => began = now,
                    None => return Ok(()),
                }
            }
        })
    }

    fn puts(&self, job: &KvJob, shards: &[usize]) -> Result<Sample> {
        self.on_shards(job, shards, IN_FLIGHT, async |mut caller: Caller| {
            let mut value = [0; PUT_BYTES];
            let mut began = caller.meter.begin();
            loop {
                let number = caller.rng.next();
                caller.values.write(number, &mut value);
                caller.keyspace.put(data::key(number), value).await?;
                match caller.meter.finish(began) {
                    Some(now) => began = now,
                    None => return Ok(()),
                }
            }
        })
    }

    /// Threads that each wait for one get after the other.
    fn gets_of_threads(&self, job: &KvJob, threads: usize) -> Result<Sample> {
        let window = Window::start(job.warm_up, job.measure);
        let meters = std::thread::scope(|scope| {
            let gets = |thread: usize| {
                let (mut rng, mut meter) = (Rng::new(job.seed, thread), window.meter());
                scope.spawn(move || {
                    let mut began = meter.begin();
                    loop {
                        let number = rng.below(job.keys);
                        let key = data::key(number);
                        let value = self.keyspace.get(&key).wait()?.context("a key is missing")?;
                        self.values.check(number, &value)?;
                        match meter.finish(began) {
                            Some(now) => began = now,
                            None => return Ok(meter),
                        }
                    }
                })
            };
            drive::join_all((0..threads).map(gets).collect())
        })?;
        Ok(window.sample(meters))
    }

    fn gets_from_tokio(&self, job: &KvJob) -> Result<Sample> {
        drive::from_tokio(job, |i| {
            let (keyspace, values) = (self.keyspace.clone(), Arc::clone(&self.values));
            let (mut rng, keys) = (Rng::new(job.seed, i), job.keys);
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
