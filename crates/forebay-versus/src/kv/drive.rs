//! Stores whose calls block, and their callers: threads, and tasks of Tokio that send each get to a thread.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_report::result::targets::quantile;
use tokio::task::JoinSet;

use super::data::{self, Key, VALUE_BYTES, Values};
use super::{BATCH, BUSY_GETS, BUSY_WRITERS, IN_FLIGHT, PUT_BYTES, THREADS, Work};
use crate::prelude::*;

/// Entries of one transaction of a load, where a store loads by transactions.
pub(super) const LOAD_ENTRIES: u64 = 20_000;
/// Streams of random numbers above this one are the writers'.
const WRITERS_STREAM: usize = 1 << 20;
/// The timer that runs beside gets from Tokio, and the time it is watched before they begin.
const TICK: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(300);

/// A store whose calls block.
pub(super) trait Peer: Send + Sync {
    /// Loads the keys with the numbers from 0 to `keys` in their order, the fastest way it has; durable when
    /// it returns.
    fn load(&self, keys: u64, values: &Values) -> Result<()>;
    /// Passes the newest value of a key to `see`, in place if the store allows it. A key that is missing is
    /// an error.
    fn get(&self, key: &Key, see: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;
    /// Puts entries, all or nothing; durable when it returns.
    fn put(&self, entries: &[(Key, Vec<u8>)]) -> Result<()>;
}

/// Measures a peer.
pub(super) fn measure(work: &Work, store: &Arc<dyn Peer>) -> Result<Outcome> {
    match work.workload.as_str() {
        "one" => gets(work, store, 1),
        "many" | "small" => gets(work, store, THREADS),
        "tokio" => gets_from_tokio(work, store),
        "busy" => busy(work, || gets(work, store, BUSY_GETS), |entries| store.put(entries)),
        "puts" => puts(work, |entries| store.put(entries)),
        other => bail!("there is no workload {other} here"),
    }
}

fn gets(work: &Work, store: &Arc<dyn Peer>, threads: usize) -> Result<Outcome> {
    let values = Values::new();
    gets_of_threads(work, threads, |number| {
        store.get(&data::key(number), &mut |value| values.check(number, value))
    })
}

/// Measures threads that each get and check one key of a random number after the other.
pub(super) fn gets_of_threads(
    work: &Work,
    threads: usize,
    get: impl Fn(u64) -> Result<()> + Sync,
) -> Result<Outcome> {
    let window = work.window();
    let meters = on_threads((0..threads).map(|i| {
        let (get, mut meter, mut rng) = (&get, window.meter(), Rng::new(work.seed, i));
        move || {
            while_open!(meter, get(rng.below(work.keys))?);
            Ok(meter)
        }
    }))?;
    Ok(window.outcome(meters))
}

/// Measures gets from Tokio, each one `spawn_blocking`.
fn gets_from_tokio(work: &Work, store: &Arc<dyn Peer>) -> Result<Outcome> {
    let values = Arc::new(Values::new());
    from_tokio(work, |i| {
        let (store, values, keys) = (Arc::clone(store), Arc::clone(&values), work.keys);
        let mut rng = Rng::new(work.seed, i);
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
pub(super) fn from_tokio<G, F>(work: &Work, make: impl Fn(usize) -> G) -> Result<Outcome>
where
    G: FnMut() -> F + Send + 'static,
    F: Future<Output = Result<()>> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let idle_us = watch_timer(tokio::time::sleep(IDLE)).await.1;
        let window = work.window();
        let mut tasks = JoinSet::new();
        for i in 0..IN_FLIGHT {
            tasks.spawn(again_and_again(make(i), window.meter()));
        }
        let (meters, late_us) = watch_timer(tasks.join_all()).await;
        let mut outcome = window.outcome(meters.into_iter().collect::<Result<Vec<_>>>()?);
        let p99 = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            quantile(&times, 0.99).unwrap_or(f64::NAN)
        };
        let (idle, late) = (p99(idle_us), p99(late_us));
        outcome
            .figures
            .set("timer_idle_late_p99_us", idle)
            .set("timer_late_p99_us", late)
            .set("timer_later_p99_us", late - idle);
        Ok(outcome)
    })
}

async fn again_and_again<F: Future<Output = Result<()>>>(
    mut get: impl FnMut() -> F,
    mut meter: Meter,
) -> Result<Meter> {
    while_open!(meter, get().await?);
    Ok(meter)
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
pub(super) fn busy(
    work: &Work,
    mut gets: impl FnMut() -> Result<Outcome>,
    put: impl Fn(&[(Key, Vec<u8>)]) -> Result<()> + Sync,
) -> Result<Outcome> {
    let idle = gets()?;
    let (over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let values = Values::new();
    let overwrite = |writer| {
        let mut rng = Rng::new(work.seed, WRITERS_STREAM + writer);
        let mut entries = vec![(Key::default(), vec![0; VALUE_BYTES]); BATCH];
        while !over.load(Ordering::Relaxed) {
            for (key, value) in &mut entries {
                let number = rng.below(work.keys);
                *key = data::key(number);
                values.write(number, value);
            }
            put(&entries)?;
            written.fetch_add(BATCH as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    let begun = Instant::now();
    let mut outcome = std::thread::scope(|scope| {
        let writers = scope.spawn(|| {
            let overwrite = &overwrite;
            on_threads((0..BUSY_WRITERS).map(|writer| move || overwrite(writer)))
        });
        let outcome = gets();
        over.store(true, Ordering::Relaxed);
        writers.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        outcome
    })?;
    let figure = |name: &str| idle.figures.get(name).unwrap_or(f64::NAN);
    let p99 = outcome.figures.get("p99_us").unwrap_or(f64::NAN);
    outcome
        .figures
        .set("puts_per_s", written.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
        .set("idle_p99_us", figure("p99_us"))
        .set("p99_to_idle", p99 / figure("p99_us"))
        .set("idle_gets_per_s", figure("iops"));
    Ok(outcome)
}

/// Measures durable puts of random keys, one at a time per writer; the writers are threads.
pub(super) fn puts(work: &Work, put: impl Fn(&[(Key, Vec<u8>)]) -> Result<()> + Sync) -> Result<Outcome> {
    let values = Values::new();
    let window = work.window();
    let meters = on_threads((0..IN_FLIGHT).map(|writer| {
        let (values, put, mut meter) = (&values, &put, window.meter());
        move || {
            let mut rng = Rng::new(work.seed, writer);
            let mut entry = [(Key::default(), vec![0; PUT_BYTES])];
            while_open!(meter, {
                let number = rng.next();
                entry[0].0 = data::key(number);
                values.write(number, &mut entry[0].1);
                put(&entry)?;
            });
            Ok(meter)
        }
    }))?;
    Ok(window.outcome(meters))
}
