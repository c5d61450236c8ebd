//! Keys and values, and the callers of stores whose calls block: threads, and tasks of Tokio that send each get to a thread.

use std::os::unix::fs::MetadataExt as _;

use forebay_report::result::targets::quantile;
use tokio::runtime::Builder;

use super::{BATCH, BUSY_GETS, BUSY_WRITERS, IN_FLIGHT, LOADED, PUT_BYTES, THREADS};
use crate::prelude::*;

/// Writes in random order, and reads of them.
struct RandomLoad {
    value_bytes: usize,
    /// Entries of a durable batch.
    batch: usize,
    /// How often each key is written.
    rounds: u64,
    /// Entries of a short scan, in addition to full scans.
    scan: usize,
}
const SHORT: RandomLoad = RandomLoad { value_bytes: 200, batch: BATCH, rounds: 1, scan: 100 };
const LARGE: RandomLoad = RandomLoad { value_bytes: 48_000, batch: 4, rounds: 3, scan: 100 };
/// Two, so that also the longest values of a sweep fit into a record of a small store's log.
const SWEEP: RandomLoad = RandomLoad { value_bytes: 0, batch: 2, rounds: 1, scan: 10 };
/// A prime above the numbers of keys here: its multiples, modulo their number, are each of them once, in no order.
const STRIDE: u64 = 2_654_435_761;
/// Bytes of a key.
const KEY_BYTES: usize = 16;
/// Bytes of a value that is loaded.
pub(super) const VALUE_BYTES: usize = 1000;
/// Bytes of a key and its value; amplification is measured against that.
pub(super) const ENTRY_BYTES: u64 = (KEY_BYTES + VALUE_BYTES) as u64;
const POOL_BYTES: usize = 64 << 10;
/// Entries of one transaction of a load, where a store loads by transactions.
pub(super) const LOAD_ENTRIES: u64 = 20_000;
/// Streams of random numbers above this number are the writers'.
const WRITERS_STREAM: usize = 1 << 20;
/// The timer that runs during gets from Tokio, and the time it is watched before the first get.
const TICK: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(300);

/// The receiver of the entries of a scan.
pub(super) type See<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// A store whose calls block.
pub(super) trait Peer: Send + Sync {
    /// Loads the keys with the numbers from 0 to `keys` in their order, the fastest way it has; durable when
    /// it returns.
    fn load(&self, keys: u64, values: &Values) -> Result<()>;
    /// Passes the newest value of a key to `see`, in place if the store allows it. A key that is missing is
    /// an error.
    fn get(&self, key: &Key, see: impl FnOnce(&[u8]) -> Result<()>) -> Result<()>;
    /// Puts entries, all or nothing; durable when it returns.
    fn put(&self, entries: &[(Key, Vec<u8>)]) -> Result<()>;
    /// Passes up to `count` entries from a key on, in order, to `see`.
    fn scan(&self, from: &Key, count: usize, see: See<'_>) -> Result<()>;
    /// Waits until the store has no work left that it does by itself.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
    /// Closes the store, where dropping it is not enough.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// Measures a peer, which `open` opens or makes in an empty folder.
pub(super) fn sample<P: Peer + 'static>(
    work: &Work,
    open: impl FnOnce(&Work) -> Result<P>,
) -> Result<Outcome> {
    if work.workload == "load" {
        return load(work, || {
            let store = open(work)?;
            store.load(work.keys, &Values::new())?;
            store.close()
        });
    }
    let store = &Arc::new(open(work)?);
    let outcome = match work.workload.as_str() {
        "one" => gets(work, store, 1),
        "many" | "small" => gets(work, store, THREADS),
        "tokio" => {
            let values = Arc::new(Values::new());
            from_tokio(work, |_| {
                let (store, values) = (Arc::clone(store), Arc::clone(&values));
                move |number| {
                    let (store, values) = (Arc::clone(&store), Arc::clone(&values));
                    let got = tokio::task::spawn_blocking(move || get_one(&*store, &values, number));
                    async move { got.await? }
                }
            })
        }
        "busy" => busy(work, || gets(work, store, BUSY_GETS), |entries| store.put(entries)),
        "puts" => puts(work, &**store),
        "random" => random(work, store, &SHORT),
        "large" => random(work, store, &LARGE),
        "sweep" => random(work, store, &RandomLoad { value_bytes: work.record_bytes, ..SWEEP }),
        other => bail!("there is no workload {other} here"),
    }?;
    store.close()?;
    Ok(outcome)
}

/// Measures a load as a whole, from opening to closing, and its files on the disk.
pub(super) fn load(work: &Work, load: impl FnOnce() -> Result<()>) -> Result<Outcome> {
    rustix::fs::sync();
    let (used, begun) = (Usage::now(), Instant::now());
    load()?;
    let (seconds, of_load) = (begun.elapsed().as_secs_f64(), Usage::now().since(&used));
    rustix::fs::sync();
    let written = Usage::now().since(&used).0[usage::WRITTEN_BYTES];
    let (keys, data_bytes) = (work.keys as f64, (work.keys * ENTRY_BYTES) as f64);
    let sectors: u64 = files_below(&work.path)?.iter().map(|(_, metadata)| metadata.blocks()).sum();
    let mut outcome = Outcome::lasting(seconds)
        .figure("iops", keys / seconds)
        .figure("ios", keys)
        .figure("space", (sectors * 512) as f64 / data_bytes)
        .figure("write_amplification", written / data_bytes);
    of_load.add_to(&mut outcome, work.keys);
    std::fs::File::create(work.path.join(LOADED))?;
    Ok(outcome)
}

/// Returns the files below a folder.
pub(super) fn files_below(dir: &Path) -> Result<Vec<(PathBuf, std::fs::Metadata)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("looking into {}", dir.display()))? {
        let entry = entry?;
        let (path, metadata) = (entry.path(), entry.metadata()?);
        if metadata.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push((path, metadata));
        }
    }
    Ok(files)
}

fn get_one(store: &impl Peer, values: &Values, number: u64) -> Result<()> {
    store.get(&key(number), |value| values.check(number, value, VALUE_BYTES))
}

/// Measures threads that each get and check one key of a random number after the other.
fn gets(work: &Work, store: &Arc<impl Peer>, count: usize) -> Result<Outcome> {
    let values = &Values::new();
    let lanes = (0..count).map(|i| {
        let mut rng = work.rng(i);
        move || get_one(&**store, values, rng.below(work.keys))
    });
    threads(work, lanes)
}

/// Measures gets from tasks of the multi-threaded runtime, which has a worker per core, together with a task that wakes every
/// millisecond. `make` creates a task's function that gets the key of a number.
pub(super) fn from_tokio<G, F>(work: &Work, make: impl Fn(usize) -> G) -> Result<Outcome>
where
    G: FnMut(u64) -> F + Send + 'static,
    F: Future<Output = Result<()>> + Send + 'static,
{
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let idle_us = runtime.block_on(async { watch_timer(tokio::time::sleep(IDLE)).await.1 });
    let window = work.window();
    let tasks = (0..IN_FLIGHT).map(|i| {
        let (mut get, meter, mut rng, keys) = (make(i), window.meter(), work.rng(i), work.keys);
        async move {
            while_open!(meter, get(rng.below(keys)).await?);
            Ok(meter)
        }
    });
    let (meters, late_us) = runtime.block_on(async {
        let tasks: tokio::task::JoinSet<Result<Meter>> = tasks.collect();
        watch_timer(tasks.join_all()).await
    });
    let p99 = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        quantile(&times, 0.99).unwrap_or(f64::NAN)
    };
    let (idle, late) = (p99(idle_us), p99(late_us));
    Ok(window
        .outcome(meters.into_iter().collect::<Result<Vec<_>>>()?)
        .figure("timer_idle_late_p99_us", idle)
        .figure("timer_late_p99_us", late)
        .figure("timer_later_p99_us", late - idle))
}

/// Runs `work` together with a task that repeatedly sleeps for a millisecond; returns how late each of its wake-ups was, in
/// microseconds.
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
        let mut rng = work.rng(WRITERS_STREAM + writer);
        let mut entries = vec![(Key::default(), vec![0; VALUE_BYTES]); BATCH];
        while !over.load(Ordering::Relaxed) {
            for (key, value) in &mut entries {
                let number = rng.below(work.keys);
                *key = self::key(number);
                values.write(number, value);
            }
            put(&entries)?;
            written.fetch_add(BATCH as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    let begun = Instant::now();
    let outcome = std::thread::scope(|scope| {
        let overwrite = &overwrite;
        let writers =
            scope.spawn(move || on_threads((0..BUSY_WRITERS).map(|writer| move || overwrite(writer))));
        let outcome = gets();
        over.store(true, Ordering::Relaxed);
        writers.join().map_err(|_| anyhow!("a thread panicked"))??;
        outcome
    })?;
    let of = |outcome: &Outcome, name| outcome.figures.get(name).unwrap_or(f64::NAN);
    let (p99, idle_p99) = (of(&outcome, "p99_us"), of(&idle, "p99_us"));
    let puts = written.load(Ordering::Relaxed) as f64;
    Ok(outcome
        .figure("puts_per_s", puts / begun.elapsed().as_secs_f64())
        .figure("idle_p99_us", idle_p99)
        .figure("p99_to_idle", p99 / idle_p99)
        .figure("idle_gets_per_s", of(&idle, "iops")))
}

/// Measures a load in random order: durable batches of keys by two writers, each key once a round; then the wait until the store is
/// idle; and then gets and scans. The device's bytes count from the start to the end of that wait.
fn random(work: &Work, store: &Arc<impl Peer>, load: &RandomLoad) -> Result<Outcome> {
    let bytes = load.value_bytes;
    rustix::fs::sync();
    let (used, begun, values) = (Usage::now(), Instant::now(), &Values::up_to(bytes));
    let write = |writer: usize| {
        let mut times_us = Vec::new();
        let mut entries = Vec::with_capacity(load.batch);
        let writes = work.keys * load.rounds;
        for place in (writer as u64..writes).step_by(BUSY_WRITERS) {
            // Each round has another order.
            let number = (place % work.keys * STRIDE + place / work.keys * (STRIDE / 7)) % work.keys;
            let mut value = vec![0; bytes];
            values.write(number, &mut value);
            entries.push((key(number), value));
            if entries.len() == load.batch || place + BUSY_WRITERS as u64 >= writes {
                let begun = Instant::now();
                store.put(&entries)?;
                times_us.push(begun.elapsed().as_secs_f64() * 1e6);
                entries.clear();
            }
        }
        Ok(times_us)
    };
    let write = &write;
    let mut times_us = on_threads((0..BUSY_WRITERS).map(|writer| move || write(writer)))?.concat();
    let seconds = begun.elapsed().as_secs_f64();
    store.settle()?;
    let settled_s = begun.elapsed().as_secs_f64() - seconds;
    rustix::fs::sync();
    let of_load = Usage::now().since(&used);
    let data_bytes = (work.keys * (KEY_BYTES + bytes) as u64) as f64;
    let sectors: u64 = files_below(&work.path)?.iter().map(|(_, metadata)| metadata.blocks()).sum();
    times_us.sort_by(f64::total_cmp);

    let gets = {
        let lanes = (0..THREADS).map(|i| {
            let mut rng = work.rng(i);
            move || {
                let number = rng.below(work.keys);
                store.get(&key(number), |value| values.check(number, value, bytes))
            }
        });
        threads(work, lanes)?
    };
    let mut rng = work.rng(WRITERS_STREAM);
    let (mut scans, begun) = (0_u32, Instant::now());
    while begun.elapsed().as_secs_f64() < work.seconds {
        let mut number = rng.below(work.keys - load.scan as u64);
        store.scan(&key(number), load.scan, &mut |_, value| {
            values.check(number, value, bytes)?;
            number += 1;
            Ok(())
        })?;
        scans += 1;
    }
    let scans_per_s = f64::from(scans) / begun.elapsed().as_secs_f64();
    let (mut number, begun) = (0, Instant::now());
    store.scan(&key(0), usize::MAX, &mut |_, value| {
        values.check(number, value, bytes)?;
        number += 1;
        Ok(())
    })?;
    ensure!(number == work.keys, "a scan of all keys gave {number} of {}", work.keys);
    let get = |name| gets.figures.get(name);
    let mut outcome = Outcome::lasting(seconds)
        .figure("iops", (work.keys * load.rounds) as f64 / seconds)
        .figure("ios", (work.keys * load.rounds) as f64)
        .figure("batch_p99_us", quantile(&times_us, 0.99))
        .figure("batch_max_us", times_us.last().copied())
        .figure("settle_s", settled_s)
        .figure("gets_after_per_s", get("iops"))
        .figure("gets_after_p99_us", get("p99_us"))
        .figure("scans_per_s", scans_per_s)
        .figure("scan_keys_per_s", work.keys as f64 / begun.elapsed().as_secs_f64())
        .figure("space", (sectors * 512) as f64 / data_bytes)
        .figure("write_amplification", of_load.0[usage::WRITTEN_BYTES] / (data_bytes * load.rounds as f64));
    of_load.add_to(&mut outcome, work.keys * load.rounds);
    Ok(outcome)
}

/// Measures durable puts of random keys, one at a time per writer; the writers are threads.
fn puts(work: &Work, store: &impl Peer) -> Result<Outcome> {
    let values = &Values::new();
    let lanes = (0..IN_FLIGHT).map(|writer| {
        let (mut rng, mut entry) = (work.rng(writer), [(Key::default(), vec![0; PUT_BYTES])]);
        move || {
            let number = rng.next_u64();
            entry[0].0 = key(number);
            values.write(number, &mut entry[0].1);
            store.put(&entry)
        }
    });
    threads(work, lanes)
}

/// A key.
pub(super) type Key = [u8; KEY_BYTES];

/// Returns the key of this number: the number (big-endian, so keys lie in its order) and eight bytes that
/// follow from it.
pub(super) fn key(number: u64) -> Key {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[8..].copy_from_slice(&files::word(number).to_be_bytes());
    key
}

/// The source of values. Making one costs a copy, so that a load measures the store.
pub(super) struct Values {
    pool: Vec<u8>,
}

impl Values {
    /// Returns a pool filled with bytes that do not compress.
    pub(super) fn new() -> Self {
        Self::up_to(POOL_BYTES / 2)
    }

    /// Returns a pool for values of up to `bytes` bytes.
    pub(super) fn up_to(bytes: usize) -> Self {
        let mut pool = vec![0; POOL_BYTES.max((2 * bytes).next_multiple_of(8))];
        files::fill(&mut pool, 0);
        Self { pool }
    }

    /// Writes the value of a key's number into `value`, which has at least eight bytes.
    #[inline]
    pub(super) fn write(&self, number: u64, value: &mut [u8]) {
        let start = self.start(number, value.len());
        value.copy_from_slice(&self.pool[start..start + value.len()]);
        value[..8].copy_from_slice(&number.to_le_bytes());
    }

    /// Checks both ends of a value that a store returned.
    #[inline]
    pub(super) fn check(&self, number: u64, value: &[u8], bytes: usize) -> Result<()> {
        let length = value.len();
        ensure!(length == bytes, "the value of key {number} has {length} bytes, not {bytes}");
        let start = self.start(number, length);
        let same = value[..8] == number.to_le_bytes()
            && value[length - 8..] == self.pool[start + length - 8..start + length];
        ensure!(same, "the store gave out another value than that of key {number}");
        Ok(())
    }

    fn start(&self, number: u64, length: usize) -> usize {
        (files::word(number) % (self.pool.len() - length) as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lie_in_the_order_of_their_numbers_and_values_are_known_again() {
        let values = Values::new();
        for number in [0, 1, 255, 256, 4_000_000] {
            assert!(key(number) < key(number + 1));
            let mut value = [0; VALUE_BYTES];
            values.write(number, &mut value);
            values.check(number, &value, VALUE_BYTES).unwrap();
            values.check(number + 1, &value, VALUE_BYTES).unwrap_err();
            value[VALUE_BYTES - 1] ^= 1;
            values.check(number, &value, VALUE_BYTES).unwrap_err();
            values.check(number, &value[1..], VALUE_BYTES).unwrap_err();
        }
    }
}
