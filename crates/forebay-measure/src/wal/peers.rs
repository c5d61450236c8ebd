//! The rows without a log: the usual ways of programs today.

use std::io::SeekFrom;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Context as _;
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;

use super::appender::{Appender, Appending};
use super::file::PeerFile;
use super::job::{Load, WalRow, WalWork};
use super::stamp::stamped;

/// Opens a fresh file and returns the row's appender.
///
/// # Errors
/// The file cannot be created, or a thread cannot be started.
pub(super) fn open(directory: &Path, work: &WalWork) -> anyhow::Result<Arc<dyn Appender>> {
    let file = Arc::new(PeerFile::create(directory, work.file_bytes, work.record_bytes, work.seed)?);
    Ok(match work.row {
        WalRow::StdInTask => Arc::new(InTask(file)),
        WalRow::SpawnBlocking => Arc::new(Blocking(file)),
        WalRow::StdThread => Arc::new(OneThread::start(file)?),
        WalRow::OwnRuntime => {
            let runtime = super::load::runtime(work.workers, false, Load::None)?;
            let inner = Arc::new(TokioFs::open(file, work.workload.lanes())?);
            Arc::new(OwnRuntime {
                inner,
                handle: runtime.handle().clone(),
                runtime: Mutex::new(Some(runtime)),
            })
        }
        _ => Arc::new(OnThisRuntime(Arc::new(TokioFs::open(file, work.workload.lanes())?))),
    })
}

/// `std-in-task`.
struct InTask(Arc<PeerFile>);

impl Appender for InTask {
    fn append(&self, _lane: usize) -> Appending {
        let file = Arc::clone(&self.0);
        Box::pin(async move {
            file.append()?;
            Ok(Instant::now())
        })
    }

    fn begins_anywhere(&self) -> bool {
        false
    }

    fn close(&self, appends: u64) -> anyhow::Result<()> {
        self.0.check(appends)
    }
}

/// `spawn-blocking`.
struct Blocking(Arc<PeerFile>);

impl Appender for Blocking {
    fn append(&self, _lane: usize) -> Appending {
        let file = Arc::clone(&self.0);
        Box::pin(async move {
            let appended = tokio::task::spawn_blocking(move || file.append().map(|()| Instant::now()));
            Ok(appended.await??)
        })
    }

    fn close(&self, appends: u64) -> anyhow::Result<()> {
        self.0.check(appends)
    }
}

/// A request to the thread of `std-thread`: the channel for its reply.
type Request = oneshot::Sender<std::io::Result<Instant>>;

/// `std-thread`.
struct OneThread {
    file: Arc<PeerFile>,
    requests: Mutex<Option<Sender<Request>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Maximum records of one write.
const TOGETHER_MAX: usize = 1024;

impl OneThread {
    fn start(file: Arc<PeerFile>) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let written = Arc::clone(&file);
        let thread = std::thread::Builder::new()
            .name("append".to_owned())
            .spawn(move || commit_groups(&written, &receiver))?;
        Ok(Self { file, requests: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }
}

fn commit_groups(file: &PeerFile, requests: &Receiver<Request>) {
    let (mut group, mut memory) = (Vec::new(), Vec::new());
    while let Ok(first) = requests.recv() {
        group.push(first);
        group.extend(requests.try_iter().take(TOGETHER_MAX - 1));
        let written = file.append_together(group.len() as u64, &mut memory);
        let now = Instant::now();
        for request in group.drain(..) {
            let reply = written.as_ref().map(|()| now).map_err(|error| std::io::Error::from(error.kind()));
            // A requester that no longer waits needs no reply.
            let _ = request.send(reply);
        }
    }
}

impl Appender for OneThread {
    fn append(&self, _lane: usize) -> Appending {
        let sender = self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async move {
            let (request, reply) = oneshot::channel();
            sender.context("the row was closed")?.send(request).ok().context("the appending thread ended")?;
            Ok(reply.await.context("the appending thread ended")??)
        })
    }

    fn close(&self, appends: u64) -> anyhow::Result<()> {
        drop(self.requests.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            thread.join().ok().context("the appending thread panicked")?;
        }
        self.file.check(appends)
    }
}

/// Writes one after the other through one handle, and flushes in parallel through one handle for each
/// lane: tokio's handle holds a lock while it flushes.
struct TokioFs {
    file: Arc<PeerFile>,
    write: tokio::sync::Mutex<tokio::fs::File>,
    flush: Vec<tokio::fs::File>,
}

impl TokioFs {
    fn open(file: Arc<PeerFile>, lanes: usize) -> std::io::Result<Self> {
        let write = tokio::sync::Mutex::new(tokio::fs::File::from_std(file.handle()?));
        let flush = (0..lanes)
            .map(|_| file.handle().map(tokio::fs::File::from_std))
            .collect::<std::io::Result<Vec<_>>>()?;
        Ok(Self { file, write, flush })
    }

    async fn append(&self, lane: usize) -> anyhow::Result<Instant> {
        {
            let mut handle = self.write.lock().await;
            let number = self.file.take_number();
            if self.file.offset(number) == 0 {
                handle.seek(SeekFrom::Start(0)).await?;
            }
            handle.write_all(&self.file.record(number)).await?;
            // The write may still be in progress until then.
            handle.flush().await?;
        }
        let (flushed, at) = stamped(self.flush[lane].sync_data()).await;
        flushed?;
        Ok(at)
    }
}

/// `tokio-fs`.
struct OnThisRuntime(Arc<TokioFs>);

impl Appender for OnThisRuntime {
    fn append(&self, lane: usize) -> Appending {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { inner.append(lane).await })
    }

    fn close(&self, appends: u64) -> anyhow::Result<()> {
        self.0.file.check(appends)
    }
}

/// `own-runtime`.
struct OwnRuntime {
    inner: Arc<TokioFs>,
    handle: Handle,
    runtime: Mutex<Option<Runtime>>,
}

impl Appender for OwnRuntime {
    fn append(&self, lane: usize) -> Appending {
        let (inner, handle) = (Arc::clone(&self.inner), self.handle.clone());
        Box::pin(async move { handle.spawn(async move { inner.append(lane).await }).await? })
    }

    fn close(&self, appends: u64) -> anyhow::Result<()> {
        drop(self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.inner.file.check(appends)
    }
}
