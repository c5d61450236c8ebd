//! The same rows, counted like the published benchmarks of asynchronous files. Each append makes a
//! file, writes its record into it, syncs it and removes it again, and its time includes all of that.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Context as _;
use forebay::{Durability, Engine, Open};
use tokio::io::AsyncWriteExt as _;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::super::pattern::Pattern;
use super::appender::{Appender, Appending};
use super::job::{Load, WalRow, WalWork};
use super::log;

/// Returns the row's appender, with files in `directory`.
///
/// # Errors
/// Errors of the engine; a thread or a runtime cannot be started.
pub(super) fn open(directory: &Path, work: &WalWork) -> anyhow::Result<Arc<dyn Appender>> {
    let length = work.record_bytes * work.batch;
    let mut record = vec![0; length.next_multiple_of(4096)];
    Pattern::new(work.seed).fill(0, &mut record);
    record.truncate(length);
    let files = Arc::new(Files { directory: directory.to_owned(), record, next: AtomicU64::new(0) });
    let mut degraded = None;
    let how = match work.row {
        WalRow::StdInTask => How::InTask,
        WalRow::SpawnBlocking => How::SpawnBlocking,
        WalRow::StdThread => How::Thread(Mutex::new(Some(OneThread::start(Arc::clone(&files))?))),
        WalRow::OwnRuntime => {
            How::OwnRuntime(Mutex::new(Some(super::load::runtime(work.workers, false, Load::None)?)))
        }
        row if row.is_log() => {
            let (engine, refused) = log::start_engine(row)?;
            degraded = refused;
            How::Forebay(Mutex::new(Some(engine)))
        }
        _ => How::TokioFs,
    };
    Ok(Arc::new(Published { files, how, degraded }))
}

/// Describes the row as measured here, in one sentence.
pub(super) const fn description(row: WalRow) -> &'static str {
    match row {
        WalRow::NoAppends => row.description(),
        WalRow::StdInTask => {
            "std's open, write, fdatasync and unlink in the task itself, whose worker waits meanwhile"
        }
        WalRow::SpawnBlocking => "the same four calls in a spawn_blocking of each append",
        WalRow::StdThread => "one std thread that makes the same four calls for one append after the other",
        WalRow::OwnRuntime => "as tokio-fs, in a second Tokio runtime with as many workers",
        WalRow::Forebay => "Forebay's open, write, sync, close and remove_file, one shard, default priority",
        WalRow::ForebayPrompt => "the same with Priority::Prompt, the runtime's workers polite",
        WalRow::ForebayRealtime => "the same with Priority::RealTime",
        _ => "tokio::fs: open, write_all, sync_data and remove_file",
    }
}

/// The files of a sample, one for each append.
struct Files {
    directory: PathBuf,
    record: Vec<u8>,
    next: AtomicU64,
}

impl Files {
    fn path(&self) -> PathBuf {
        self.directory.join(self.next.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Makes one append with blocking calls. Returns the time when it was durable.
    fn append(&self) -> io::Result<Instant> {
        let path = self.path();
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        file.write_all(&self.record)?;
        file.sync_data()?;
        let durable = Instant::now();
        drop(file);
        fs::remove_file(path)?;
        Ok(durable)
    }

    async fn with_tokio(&self) -> io::Result<Instant> {
        let path = self.path();
        let mut file = tokio::fs::OpenOptions::new().write(true).create_new(true).open(&path).await?;
        file.write_all(&self.record).await?;
        // The write may still be in progress until then.
        file.flush().await?;
        file.sync_data().await?;
        let durable = Instant::now();
        drop(file);
        tokio::fs::remove_file(path).await?;
        Ok(durable)
    }

    async fn with_forebay(&self, engine: &Engine) -> forebay::Result<Instant> {
        let path = self.path();
        let file = engine.open(&path, Open::create_new().buffered().permissions(0o600)).await?;
        file.write(0, &self.record[..]).await?;
        file.sync(Durability::Data).await?;
        let durable = Instant::now();
        file.close().await?;
        engine.remove_file(path).await?;
        Ok(durable)
    }
}

/// The way in which the calls are made.
enum How {
    InTask,
    SpawnBlocking,
    Thread(Mutex<Option<OneThread>>),
    TokioFs,
    OwnRuntime(Mutex<Option<Runtime>>),
    Forebay(Mutex<Option<Engine>>),
}

struct Published {
    files: Arc<Files>,
    how: How,
    degraded: Option<String>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Appender for Published {
    fn append(&self, _lane: usize) -> Appending {
        let files = Arc::clone(&self.files);
        match &self.how {
            How::InTask => Box::pin(async move { Ok(files.append()?) }),
            How::SpawnBlocking => {
                Box::pin(async move { Ok(tokio::task::spawn_blocking(move || files.append()).await??) })
            }
            How::Thread(thread) => {
                let sender = locked(thread).as_ref().map(|thread| thread.requests.clone());
                Box::pin(async move {
                    let (request, reply) = oneshot::channel();
                    let sender = sender.context("the row was closed")?;
                    sender.send(request).ok().context("the appending thread ended")?;
                    Ok(reply.await.context("the appending thread ended")??)
                })
            }
            How::TokioFs => Box::pin(async move { Ok(files.with_tokio().await?) }),
            How::OwnRuntime(runtime) => {
                let handle = locked(runtime).as_ref().map(|runtime| runtime.handle().clone());
                Box::pin(async move {
                    let handle = handle.context("the row was closed")?;
                    Ok(handle.spawn(async move { files.with_tokio().await }).await??)
                })
            }
            How::Forebay(engine) => {
                let engine = locked(engine).clone();
                Box::pin(async move { Ok(files.with_forebay(&engine.context("the row was closed")?).await?) })
            }
        }
    }

    fn begins_anywhere(&self) -> bool {
        !matches!(self.how, How::InTask)
    }

    fn degraded(&self) -> Option<String> {
        self.degraded.clone()
    }

    fn close(&self, appends: u64) -> anyhow::Result<()> {
        match &self.how {
            How::Thread(thread) => {
                if let Some(OneThread { requests, thread }) = locked(thread).take() {
                    drop(requests);
                    thread.join().ok().context("the appending thread panicked")?;
                }
            }
            How::OwnRuntime(runtime) => drop(locked(runtime).take()),
            How::Forebay(engine) => log::close_engine(engine)?,
            _ => {}
        }
        let made = self.files.next.load(Ordering::Relaxed);
        anyhow::ensure!(made >= appends, "{appends} appends completed and {made} files were made");
        let left = fs::read_dir(&self.files.directory)?.count();
        anyhow::ensure!(left == 0, "{left} files were not removed");
        Ok(())
    }
}

/// The channel for the reply.
type Request = oneshot::Sender<io::Result<Instant>>;

/// A thread that makes the appends one after the other.
struct OneThread {
    requests: Sender<Request>,
    thread: JoinHandle<()>,
}

impl OneThread {
    fn start(files: Arc<Files>) -> io::Result<Self> {
        let (requests, receiver): (Sender<Request>, Receiver<Request>) = mpsc::channel();
        let thread = std::thread::Builder::new().name("append".to_owned()).spawn(move || {
            for request in receiver {
                // A requester that no longer waits needs no reply.
                let _ = request.send(files.append());
            }
        })?;
        Ok(Self { requests, thread })
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::{FlushChoice, Workload};
    use super::super::run::sample;
    use super::*;
    use crate::cleanup::Cleanup;

    #[test]
    fn every_row_makes_and_removes_a_file_for_each_append_beside_timers() {
        let cleanup = Cleanup::default();
        for row in WalRow::APPENDS {
            for workload in [Workload::Open { rate: 200 }, Workload::Closed { appenders: 3 }] {
                let beside = Path::new(env!("CARGO_MANIFEST_DIR"));
                let directory = cleanup.temp_directory(beside, "published").expect("writable");
                let work = WalWork {
                    row,
                    workload,
                    load: Load::Timers,
                    workers: 2,
                    seconds: 0.15,
                    record_bytes: 256,
                    batch: 1,
                    file_bytes: 1 << 20,
                    as_published: true,
                    flush: FlushChoice::default(),
                    seed: 3,
                };
                let reply = sample(directory.path(), None, &work)
                    .unwrap_or_else(|error| panic!("{row:?} {workload:?}: {error:#}"));
                let (durable, seen) = (reply.durable.expect("some"), reply.seen.expect("some"));
                // The task is notified only after the file is removed.
                assert!(durable.p50_us > 0.0 && durable.p50_us <= seen.p50_us * 1.02, "{row:?} {reply:?}");
                let late = reply.timers.expect("they were due");
                assert!(late.p50_us <= late.p99_us && late.p99_us <= late.max_us, "{row:?} {reply:?}");
                let left = fs::read_dir(directory.path()).expect("it is there").count();
                assert_eq!(left, 0, "{row:?} left files");
            }
        }
    }
}
