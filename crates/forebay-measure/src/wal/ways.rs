//! The ways to make records durable: a destination (a file, a file for each append, the log, the store), and who waits for it.

use std::fs::{self, File, OpenOptions};
use std::future::poll_fn;
use std::io::{SeekFrom, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Context as _;
use forebay::{Durability, Engine, Flush, Open};
use forebay_kv::{Batch, Keyspace, Store};
use forebay_wal::Wal;
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::sample::Work;
use crate::backend::locked;
use crate::experiment::Way;
use crate::job::Job;
use crate::lanes::{allow_files, runtime};
use crate::pattern::Pattern;

/// A future that resolves to the time when the records were durable.
pub(super) type AppendFuture = Pin<Box<dyn Future<Output = anyhow::Result<Instant>> + Send>>;

/// A destination of appends. All calls return the time when the records were durable.
trait Target: Send + Sync {
    /// Appends while the thread waits.
    fn wait(&self) -> anyhow::Result<Instant>;

    /// Appends for `count` concurrent callers; `count` is at most [`group_max`](Self::group_max).
    fn wait_group(&self, _count: u64) -> anyhow::Result<Instant> {
        self.wait()
    }

    fn group_max(&self) -> usize {
        1
    }

    /// Returns an append that starts when it is first polled.
    fn write(self: Arc<Self>, lane: usize) -> AppendFuture;

    /// Checks that every one of the `appends` that succeeded is there.
    fn close(&self, appends: u64) -> anyhow::Result<()>;
}

/// One row: a destination, and who waits for it.
pub(super) struct Appender {
    target: Arc<dyn Target>,
    mode: Mode,
}

/// The thread or task that waits until an append is durable.
enum Mode {
    /// The task, which blocks its worker.
    InTask,
    /// A thread of the pool for blocking calls.
    SpawnBlocking,
    /// The task, which awaits it.
    Task,
    /// A task of another runtime.
    OwnRuntime(Runtime),
    /// A thread that serves all callers.
    Thread(Sender<Request>, JoinHandle<()>),
}

/// The channel for a caller's reply.
type Request = oneshot::Sender<Result<Instant, String>>;

impl Appender {
    /// Opens a fresh destination in the directory of the job. Rows that need an engine get one with one shard.
    ///
    /// # Errors
    /// Errors of the system, the engine, the log, the store.
    pub(super) fn open(job: &Job, work: &Work, way: &Way, engine: Option<&Engine>) -> anyhow::Result<Self> {
        let name = way.name.trim_start_matches("store-");
        let lanes = if matches!(name, "tokio-fs" | "own-runtime") { work.workload.lanes() } else { 0 };
        let target: Arc<dyn Target> = match engine {
            _ if work.as_published => {
                // A file for each append in flight.
                _ = allow_files(work.workload.lanes() as u64);
                Arc::new(Files::new(job, work, engine))
            }
            None => Arc::new(Places::create(job, work, lanes)?),
            Some(engine) if way.name.starts_with("store-") => Arc::new(Puts::open(job, work, engine)?),
            Some(engine) => Arc::new(Log::open(job, work, engine)?),
        };
        let mode = match name {
            "std-in-task" | "direct" => Mode::InTask,
            "spawn-blocking" => Mode::SpawnBlocking,
            "own-runtime" => Mode::OwnRuntime(runtime(work.workers, false)?),
            "std-thread" => {
                let (requests, receiver) = mpsc::channel();
                let served = Arc::clone(&target);
                let builder = std::thread::Builder::new().name("append".to_owned());
                Mode::Thread(requests, builder.spawn(move || serve(&*served, &receiver))?)
            }
            _ => Mode::Task,
        };
        Ok(Self { target, mode })
    }

    /// Returns an append, which starts when it is first polled. `lane` is the number of the appender, below
    /// [`Workload::lanes`](super::sample::Workload::lanes).
    pub(super) fn append(&self, lane: usize) -> AppendFuture {
        let target = Arc::clone(&self.target);
        match &self.mode {
            Mode::InTask => Box::pin(async move { target.wait() }),
            Mode::SpawnBlocking => {
                Box::pin(async move { tokio::task::spawn_blocking(move || target.wait()).await? })
            }
            Mode::Task => target.write(lane),
            Mode::OwnRuntime(runtime) => {
                let handle = runtime.handle().clone();
                Box::pin(async move { handle.spawn(target.write(lane)).await? })
            }
            Mode::Thread(requests, _) => {
                let requests = requests.clone();
                Box::pin(async move {
                    let (request, reply) = oneshot::channel();
                    requests.send(request).ok().context("the appending thread ended")?;
                    reply.await.context("the appending thread ended")?.map_err(anyhow::Error::msg)
                })
            }
        }
    }

    /// Returns whether the thread that has data can start the append for another task that awaits it.
    pub(super) fn begins_anywhere(&self) -> bool {
        !matches!(self.mode, Mode::InTask)
    }

    /// Ends the row, and checks that every append that succeeded is there. Not for tasks.
    ///
    /// # Errors
    /// One is missing, which makes the figures worthless.
    pub(super) fn close(self, appends: u64) -> anyhow::Result<()> {
        match self.mode {
            Mode::OwnRuntime(runtime) => drop(runtime),
            Mode::Thread(requests, thread) => {
                drop(requests);
                thread.join().ok().context("the appending thread panicked")?;
            }
            Mode::InTask | Mode::SpawnBlocking | Mode::Task => {}
        }
        self.target.close(appends)
    }
}

/// Serves everything that waits in the channel with one write and one flush, where the destination can.
fn serve(target: &dyn Target, requests: &Receiver<Request>) {
    while let Ok(first) = requests.recv() {
        let mut group = vec![first];
        group.extend(requests.try_iter().take(target.group_max() - 1));
        let written = target.wait_group(group.len() as u64).map_err(|error| format!("{error:#}"));
        for request in group {
            // A caller that no longer waits needs no reply.
            let _ = request.send(written.clone());
        }
    }
}

/// Returns `bytes` incompressible bytes.
fn contents(seed: u64, bytes: usize) -> Vec<u8> {
    let mut contents = vec![0; bytes.next_multiple_of(4096)];
    Pattern::new(seed).fill(0, &mut contents);
    contents.truncate(bytes);
    contents
}

/// A file with a fixed number of places for records, written through before, so that an append never extends it. After
/// the last place it starts again at the first, which is easier than the life of a log.
struct Places {
    file: File,
    places: u64,
    record: Vec<u8>,
    next: AtomicU64,
    /// Tokio's handle for writes.
    write: tokio::sync::Mutex<tokio::fs::File>,
    /// One of Tokio's handles for each lane, because a handle is locked while it flushes.
    flush: Vec<tokio::fs::File>,
}

impl Places {
    fn create(job: &Job, work: &Work, lanes: usize) -> anyhow::Result<Self> {
        const WRITE_BYTES: usize = 1 << 20;
        let (places, record_bytes) = (work.file_bytes / work.record_bytes as u64, work.record_bytes);
        anyhow::ensure!(record_bytes >= 8 && places >= 2, "records of {record_bytes} bytes do not fit");
        allow_files(lanes as u64)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(job.path.join("records"))?;
        let mut memory = vec![0; WRITE_BYTES];
        for offset in (0..work.file_bytes).step_by(WRITE_BYTES) {
            Pattern::new(job.seed).fill(offset, &mut memory);
            file.write_all_at(&memory, offset)?;
        }
        file.sync_all()?;
        let handle = || file.try_clone().map(tokio::fs::File::from_std);
        Ok(Self {
            places,
            record: contents(job.seed, record_bytes),
            next: AtomicU64::new(0),
            write: tokio::sync::Mutex::new(handle()?),
            flush: (0..lanes).map(|_| handle()).collect::<Result<_, _>>()?,
            file,
        })
    }

    fn offset(&self, number: u64) -> u64 {
        number % self.places * self.record.len() as u64
    }

    /// Returns record `number`: the number, then incompressible bytes.
    fn record(&self, number: u64) -> Vec<u8> {
        let mut record = self.record.clone();
        record[..8].copy_from_slice(&number.to_le_bytes());
        record
    }
}

impl Target for Places {
    fn wait(&self) -> anyhow::Result<Instant> {
        self.wait_group(1)
    }

    fn wait_group(&self, count: u64) -> anyhow::Result<Instant> {
        let mut number = self.next.fetch_add(count, Ordering::Relaxed);
        let end = number + count;
        while number < end {
            // No write crosses the end of the file.
            let until = end.min((number / self.places + 1) * self.places);
            let mut memory = Vec::with_capacity((until - number) as usize * self.record.len());
            (number..until).for_each(|number| memory.extend_from_slice(&self.record(number)));
            self.file.write_all_at(&memory, self.offset(number))?;
            number = until;
        }
        self.file.sync_data()?;
        Ok(Instant::now())
    }

    fn group_max(&self) -> usize {
        1024
    }

    fn write(self: Arc<Self>, lane: usize) -> AppendFuture {
        Box::pin(async move {
            let mut handle = self.write.lock().await;
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if self.offset(number) == 0 {
                handle.seek(SeekFrom::Start(0)).await?;
            }
            handle.write_all(&self.record(number)).await?;
            // The write may still be in progress until then.
            handle.flush().await?;
            drop(handle);
            let (flushed, at) = stamped(self.flush[lane].sync_data()).await;
            flushed?;
            Ok(at)
        })
    }

    fn close(&self, appends: u64) -> anyhow::Result<()> {
        let written = self.next.load(Ordering::Relaxed);
        anyhow::ensure!(written >= appends, "{appends} appends completed and {written} were written");
        let mut found = vec![0; self.record.len()];
        for number in written.saturating_sub(self.places)..written {
            self.file.read_exact_at(&mut found, self.offset(number))?;
            anyhow::ensure!(found == self.record(number), "record {number} is not in the file");
        }
        Ok(())
    }
}

/// A file for each append, as in the published benchmarks of asynchronous files: it is made, written, synced and removed, and
/// all of that is in the time.
struct Files {
    directory: PathBuf,
    record: Vec<u8>,
    next: AtomicU64,
    /// For the rows with Forebay, which has no log here.
    engine: Option<Engine>,
}

impl Files {
    fn new(job: &Job, work: &Work, engine: Option<&Engine>) -> Self {
        let record = contents(job.seed, work.record_bytes * work.batch_records);
        Self { directory: job.path.clone(), record, next: AtomicU64::new(0), engine: engine.cloned() }
    }

    fn path(&self) -> PathBuf {
        self.directory.join(self.next.fetch_add(1, Ordering::Relaxed).to_string())
    }
}

impl Target for Files {
    fn wait(&self) -> anyhow::Result<Instant> {
        let path = self.path();
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        file.write_all(&self.record)?;
        file.sync_data()?;
        let durable = Instant::now();
        drop(file);
        fs::remove_file(path)?;
        Ok(durable)
    }

    fn write(self: Arc<Self>, _lane: usize) -> AppendFuture {
        Box::pin(async move {
            let path = self.path();
            let durable;
            if let Some(engine) = &self.engine {
                let file = engine.open(&path, Open::create_new().buffered().permissions(0o600)).await?;
                file.write(0, &self.record[..]).await?;
                file.sync(Durability::Data).await?;
                durable = Instant::now();
                file.close().await?;
                engine.remove_file(path).await?;
            } else {
                let mut options = tokio::fs::OpenOptions::new();
                let mut file = options.write(true).create_new(true).open(&path).await?;
                file.write_all(&self.record).await?;
                // The write may still be in progress until then.
                file.flush().await?;
                file.sync_data().await?;
                durable = Instant::now();
                drop(file);
                tokio::fs::remove_file(path).await?;
            }
            Ok(durable)
        })
    }

    fn close(&self, appends: u64) -> anyhow::Result<()> {
        let made = self.next.load(Ordering::Relaxed);
        anyhow::ensure!(made >= appends, "{appends} appends completed and {made} files were made");
        let left = fs::read_dir(&self.directory)?.count();
        anyhow::ensure!(left == 0, "{left} files were not removed");
        Ok(())
    }
}

/// Forebay's log. It gives up its durable records after each MiB, so that it uses its segments again.
struct Log {
    wal: Wal,
    /// Records in the log before the sample.
    aged: u64,
    appends: AtomicU64,
    /// Appends of about a MiB.
    give_up_every: u64,
    /// The records of one append.
    records: Vec<u8>,
    record_bytes: usize,
}

impl Log {
    fn open(job: &Job, work: &Work, engine: &Engine) -> anyhow::Result<Self> {
        const GIVE_UP_BYTES: usize = 1 << 20;
        let flush = match work.log_flush.as_str() {
            "queued" => Flush::Queued,
            "blocking" => Flush::Blocking,
            _ => Flush::WhenAlone,
        };
        let options = forebay_wal::Options::new().segment_bytes(work.file_bytes).flush(flush);
        let (wal, _) = Wal::open(engine, &job.path, options).wait()?;
        let bytes = work.record_bytes * work.batch_records;
        Ok(Self {
            aged: age(&wal)?,
            wal,
            appends: AtomicU64::new(0),
            give_up_every: (GIVE_UP_BYTES / bytes).max(1) as u64,
            records: contents(job.seed, bytes),
            record_bytes: work.record_bytes,
        })
    }

    fn slices(&self) -> Vec<&[u8]> {
        self.records.chunks_exact(self.record_bytes).collect()
    }

    /// Gives up the durable records from time to time, without waiting: this is written with the next group.
    fn give_up(&self) {
        if self.appends.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.give_up_every) {
            let given_up = pin!(self.wal.truncate_before(self.wal.durable_lsn()));
            let _ = given_up.poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

/// Fills the log until it reuses segments, as one does that runs for long. Returns the number of records in it.
fn age(wal: &Wal) -> anyhow::Result<u64> {
    let record = vec![1; 64 << 10];
    let batch = [&record[..]; 8];
    while wal.stats().segments_recycled == 0 {
        wal.append(&batch).wait()?;
        wal.truncate_before(wal.durable_lsn()).wait()?;
    }
    Ok(wal.stats().records)
}

impl Target for Log {
    fn wait(&self) -> anyhow::Result<Instant> {
        self.give_up();
        self.wal.append(&self.slices()[..]).wait()?;
        Ok(Instant::now())
    }

    fn write(self: Arc<Self>, _lane: usize) -> AppendFuture {
        Box::pin(async move {
            self.give_up();
            if self.records.len() == self.record_bytes {
                let (appended, at) = stamped(self.wal.append(&self.records)).await;
                return Ok(appended.map(|_| at)?);
            }
            let (appended, at) = stamped(self.wal.append(&self.slices()[..])).await;
            Ok(appended.map(|_| at)?)
        })
    }

    fn close(&self, appends: u64) -> anyhow::Result<()> {
        self.wal.close().wait()?;
        let batch = (self.records.len() / self.record_bytes) as u64;
        let durable = self.wal.stats().records.saturating_sub(self.aged);
        anyhow::ensure!(
            durable >= appends * batch,
            "{appends} appends of {batch} completed and {durable} records are durable"
        );
        Ok(())
    }
}

/// Forebay's key-value store: each append is one atomic batch of puts.
struct Puts {
    store: Store,
    keyspace: Keyspace,
    values: Vec<u8>,
    record_bytes: usize,
    /// Batches started; each has different keys.
    begun: AtomicU64,
}

impl Puts {
    fn open(job: &Job, work: &Work, engine: &Engine) -> anyhow::Result<Self> {
        let options = forebay_kv::Options::new().log_segment_bytes(work.file_bytes);
        let store = Store::open(engine, &job.path, options).wait()?;
        Ok(Self {
            keyspace: store.default_keyspace(),
            store,
            values: contents(job.seed, work.record_bytes * work.batch_records),
            record_bytes: work.record_bytes,
            begun: AtomicU64::new(0),
        })
    }

    fn batch(&self) -> Batch {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let mut batch = Batch::new();
        for (index, value) in (0..).zip(self.values.chunks_exact(self.record_bytes)) {
            batch.put(&self.keyspace, key(number, index), value);
        }
        batch
    }
}

/// Returns the key of record `index` in batch `number`. Batches of several tasks are adjacent.
fn key(number: u64, index: u64) -> [u8; 16] {
    (u128::from(number) << 64 | u128::from(index)).to_be_bytes()
}

impl Target for Puts {
    fn wait(&self) -> anyhow::Result<Instant> {
        self.store.write(&self.batch()).wait()?;
        Ok(Instant::now())
    }

    fn write(self: Arc<Self>, _lane: usize) -> AppendFuture {
        Box::pin(async move {
            let batch = self.batch();
            let (written, at) = stamped(self.store.write(&batch)).await;
            written?;
            Ok(at)
        })
    }

    fn close(&self, appends: u64) -> anyhow::Result<()> {
        let last = (self.values.len() / self.record_bytes) as u64 - 1;
        let mut whole = 0;
        for number in 0..self.begun.load(Ordering::Relaxed) {
            whole += u64::from(self.keyspace.get(&key(number, last)).wait()?.is_some());
        }
        anyhow::ensure!(whole >= appends, "{appends} batches completed and {whole} are in the store");
        Ok(self.store.close().wait()?)
    }
}

/// A waker that records the time on the thread that wakes, then wakes the task.
#[derive(Debug)]
struct Stamp(Mutex<(Option<Instant>, Waker)>);

impl Wake for Stamp {
    fn wake(self: Arc<Self>) {
        let now = Instant::now();
        let waker = {
            let mut state = locked(&self.0);
            state.0 = Some(now);
            state.1.clone()
        };
        waker.wake();
    }
}

/// Returns the output of `future`, and the time when its waker was called for it: on the log's shard, or on the thread that
/// made the blocking call. For a future that is ready without a wake-up, this is the time at which it returned.
async fn stamped<F: Future>(future: F) -> (F::Output, Instant) {
    let stamp = Arc::new(Stamp(Mutex::new((None, Waker::noop().clone()))));
    let waker = Waker::from(Arc::clone(&stamp));
    let mut future = pin!(future);
    poll_fn(move |context| {
        // Before the poll: a wake-up after it finds the task.
        let woken = {
            let mut state = locked(&stamp.0);
            state.1.clone_from(context.waker());
            state.0.take()
        };
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        polled.map(|output| (output, woken.unwrap_or_else(Instant::now)))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::super::tests::{job, work};
    use super::*;
    use crate::cleanup::Cleanup;

    #[test]
    fn records_are_where_they_belong_also_behind_the_end() {
        let directory = Cleanup::default().temp_directory(&std::env::temp_dir(), "file").expect("writable");
        let work = Work { record_bytes: 4096, ..work() };
        let file = Places::create(&job("wal", "std-thread", directory.path(), &work), &work, 0);
        let file = file.expect("space for 1 MiB");
        file.wait().expect("it can be written");
        file.wait_group(254).expect("it can be written");
        // These are written to the last place, then to the first places.
        file.wait_group(3).expect("it can be written");
        file.close(258).expect("all are there");
        assert!(file.close(259).is_err());
        file.file.write_all_at(&[0; 8], 8192).expect("it can be written");
        assert!(file.close(258).is_err_and(|error| error.to_string().contains("record 2 ")));
    }

    #[test]
    fn the_time_is_the_wakers_not_the_polls() {
        let (sender, receiver) = oneshot::channel::<Instant>();
        let mut waiting = Box::pin(stamped(receiver));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        let before = Instant::now();
        sender.send(before).expect("it is waited for");
        let after = Instant::now();
        while after.elapsed().as_micros() < 500 {
            std::hint::spin_loop();
        }
        let Poll::Ready((output, at)) = waiting.as_mut().poll(&mut context) else { panic!("it was sent") };
        assert_eq!(output, Ok(before));
        assert!(before <= at && at <= after, "stamped when it was polled");
    }

    #[test]
    fn a_future_that_is_ready_at_once_is_stamped_with_now() {
        let before = Instant::now();
        let mut ready = Box::pin(stamped(std::future::ready(7)));
        let Poll::Ready((output, at)) = ready.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("it is ready")
        };
        assert_eq!(output, 7);
        assert!(at >= before);
    }
}
