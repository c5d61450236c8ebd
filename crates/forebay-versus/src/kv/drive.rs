//! The callers of stores whose calls block: threads, and tasks of Tokio that send each get to a thread.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use tokio::task::JoinSet;

use super::data::{self, Key, VALUE_BYTES, Values};
use super::peer::Peer;
use super::{BATCH, BUSY_GETS, BUSY_WRITERS, IN_FLIGHT, KvJob, PUT_BYTES, Workload};
use crate::meter::{Meter, Window};
use crate::rng::Rng;
use crate::sample::Sample;
use crate::statistics::quantile;

/// Streams of random numbers above this one are the writers'.
const WRITERS_STREAM: usize = 1 << 20;
/// The timer that runs beside gets from Tokio, and the time it is watched before they begin.
const TICK: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(300);

/// Returns the results of all threads, or the first failure.
pub(crate) fn join_all<T>(threads: Vec<ScopedJoinHandle<'_, Result<T>>>) -> Result<Vec<T>> {
    threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?).collect()
}

/// Measures a peer.
pub(crate) fn measure(job: &KvJob, store: &Arc<dyn Peer>) -> Result<Sample> {
    match job.workload {
        Workload::One => gets(job, store, 1),
        Workload::Many | Workload::Small => gets(job, store, super::THREADS),
        Workload::Tokio => gets_from_tokio(job, store),
        Workload::Busy => busy(job, || gets(job, store, BUSY_GETS), |entries| store.put(entries)),
        Workload::Puts => puts(job, |entries| store.put(entries)),
        Workload::Load => Err(anyhow!("a load is measured as a whole")),
    }
}

fn gets(job: &KvJob, store: &Arc<dyn Peer>, threads: usize) -> Result<Sample> {
    let values = Values::new();
    let window = Window::start(job.warm_up, job.measure);
    let meters = std::thread::scope(|scope| {
        let threads = (0..threads).map(|i| {
            let (values, mut meter) = (&values, window.meter());
            scope.spawn(move || {
                let mut rng = Rng::new(job.seed, i);
                let mut began = meter.begin();
                loop {
                    let number = rng.below(job.keys);
                    store.get(&data::key(number), &mut |value| values.check(number, value))?;
                    match meter.finish(began) {
                        Some(now) => began = now,
                        None => return Ok(meter),
                    }
                }
            })
        });
        join_all(threads.collect())
    })?;
    Ok(window.sample(meters))
}

/// Measures gets from Tokio, each one `spawn_blocking`.
fn gets_from_tokio(job: &KvJob, store: &Arc<dyn Peer>) -> Result<Sample> {
    let values = Arc::new(Values::new());
    from_tokio(job, |i| {
        let (store, values, keys) = (Arc::clone(store), Arc::clone(&values), job.keys);
        let mut rng = Rng::new(job.seed, i);
        move || {
            let (store, values, number) = (Arc::clone(&store), Arc::clone(&values), rng.below(keys));
            let got = tokio::task::spawn_blocking(move || {
                store.get(&data::key(number), &mut |value| values.check(number, value))
            });
            async move { got.await? }
        }
    })
}

/// Measures gets from tasks of the multi-threaded runtime, which has a worker per core, beside a task that
/// wakes every millisecond. `make` makes a task's way to get once.
pub(crate) fn from_tokio<G>(job: &KvJob, make: impl Fn(usize) -> G) -> Result<Sample>
where
    G: AsyncGet,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let idle_us = watch_timer(tokio::time::sleep(IDLE)).await.1;
        let window = Window::start(job.warm_up, job.measure);
        let mut tasks = JoinSet::new();
        for i in 0..IN_FLIGHT {
            tasks.spawn(again_and_again(make(i), window.meter()));
        }
        let (meters, late_us) = watch_timer(tasks.join_all()).await;
        let mut sample = window.sample(meters.into_iter().collect::<Result<Vec<_>>>()?);
        sample.set("timer_idle_late_p99_us", quantile(&idle_us, 0.99));
        sample.set("timer_late_p99_us", quantile(&late_us, 0.99));
        Ok(sample)
    })
}

/// A way to get a random key once.
pub(crate) trait AsyncGet: Send + 'static {
    /// Gets and checks one key.
    fn get(&mut self) -> impl Future<Output = Result<()>> + Send;
}

impl<F, R> AsyncGet for F
where
    F: FnMut() -> R + Send + 'static,
    R: Future<Output = Result<()>> + Send,
{
    fn get(&mut self) -> impl Future<Output = Result<()>> + Send {
        self()
    }
}

async fn again_and_again(mut gets: impl AsyncGet, mut meter: Meter) -> Result<Meter> {
    let mut began = meter.begin();
    loop {
        gets.get().await?;
        match meter.finish(began) {
            Some(now) => began = now,
            None => return Ok(meter),
        }
    }
}

/// Runs `work` beside a task that sleeps for a millisecond again and again; returns how late each of its
/// wake-ups was, in microseconds.
async fn watch_timer<T>(work: impl Future<Output = T>) -> (T, Vec<f64>) {
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let timer = tokio::spawn(async move {
        let mut late_us = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let due = Instant::now() + TICK;
            tokio::time::sleep_until(due.into()).await;
            late_us.push(due.elapsed().as_secs_f64() * 1e6);
        }
        late_us
    });
    let output = work.await;
    over.store(true, Ordering::Relaxed);
    (output, timer.await.unwrap_or_default())
}

/// Measures the gets at rest, and then the same while two threads overwrite random keys as fast as the store
/// lets them.
pub(crate) fn busy(
    job: &KvJob,
    mut gets: impl FnMut() -> Result<Sample>,
    put: impl Fn(&[(Key, Vec<u8>)]) -> Result<()> + Sync,
) -> Result<Sample> {
    let idle = gets()?;
    let (over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let values = Values::new();
    let begun = Instant::now();
    let mut sample = std::thread::scope(|scope| {
        let writers = (0..BUSY_WRITERS).map(|writer| {
            let (over, written, put, values) = (&over, &written, &put, &values);
            scope.spawn(move || {
                let mut rng = Rng::new(job.seed, WRITERS_STREAM + writer);
                let mut entries = vec![(Key::default(), vec![0; VALUE_BYTES]); BATCH];
                while !over.load(Ordering::Relaxed) {
                    for (key, value) in &mut entries {
                        let number = rng.below(job.keys);
                        *key = data::key(number);
                        values.write(number, value);
                    }
                    put(&entries)?;
                    written.fetch_add(BATCH as u64, Ordering::Relaxed);
                }
                Ok(())
            })
        });
        let writers = writers.collect();
        let sample = gets();
        over.store(true, Ordering::Relaxed);
        join_all(writers)?;
        sample
    })?;
    sample.set("puts_per_s", written.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64());
    if let (Some(p99), Some(idle_p99), Some(idle_rate)) =
        (sample.get("p99_us"), idle.get("p99_us"), idle.get("iops"))
    {
        sample.set("idle_p99_us", idle_p99);
        sample.set("p99_to_idle", p99 / idle_p99);
        sample.set("idle_gets_per_s", idle_rate);
    }
    Ok(sample)
}

/// Measures durable puts of random keys, one at a time per writer; the writers are threads.
pub(crate) fn puts(job: &KvJob, put: impl Fn(&[(Key, Vec<u8>)]) -> Result<()> + Sync) -> Result<Sample> {
    let values = Values::new();
    let window = Window::start(job.warm_up, job.measure);
    let meters = std::thread::scope(|scope| {
        let threads = (0..IN_FLIGHT).map(|writer| {
            let (values, put, mut meter) = (&values, &put, window.meter());
            scope.spawn(move || {
                let mut rng = Rng::new(job.seed, writer);
                let mut entry = [(Key::default(), vec![0; PUT_BYTES])];
                let mut began = meter.begin();
                loop {
                    let number = rng.next();
                    entry[0].0 = data::key(number);
                    values.write(number, &mut entry[0].1);
                    put(&entry)?;
                    match meter.finish(began) {
                        Some(now) => began = now,
                        None => return Ok(meter),
                    }
                }
            })
        });
        join_all(threads.collect())
    })?;
    Ok(window.sample(meters))
}
