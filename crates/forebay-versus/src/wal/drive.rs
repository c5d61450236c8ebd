//! The writers: each appends one record after the other, and waits until it is durable, for as long as the window is open.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::Builder;

use super::Work;
use super::record::Record;
use crate::prelude::*;

/// A log.
pub(super) trait Log: Sized {
    /// One writer's access to it.
    type Writer;

    /// Returns the writer of this number.
    fn writer(&self, number: usize) -> Self::Writer;

    /// Ends the log, when its writers have ended, and adds its counts.
    fn finish(self, work: &Work, outcome: Outcome) -> Result<Outcome>;
}

/// A writer that is a task.
pub(super) trait Append: Send + 'static {
    /// Completes when the record is durable.
    fn append(&mut self, record: &[u8]) -> impl Future<Output = Result<()>> + Send;
}

/// A writer that is a thread, which waits.
pub(super) trait AppendAndWait: Send + 'static {
    /// Returns when the record is durable.
    fn append_and_wait(&mut self, record: &[u8]) -> Result<()>;
}

/// Measures writers that are tasks of the multi-threaded Tokio runtime, which has a worker per core.
pub(super) fn from_tokio<L: Log<Writer: Append>>(work: &Work, log: L) -> Result<Outcome> {
    let runtime = Builder::new_multi_thread().build()?;
    let window = work.window();
    let writers = (0..work.writers).map(|number| {
        let (mut writer, mut meter) = (log.writer(number), window.meter());
        let mut record = Record::of(number, work.record_bytes);
        async move {
            while_open!(meter, writer.append(record.next()).await?);
            Ok(meter)
        }
    });
    let meters = on_tokio(&runtime, writers)?;
    log.finish(work, window.outcome(meters))
}

/// Measures writers that are plain threads.
pub(super) fn from_threads<L: Log<Writer: AppendAndWait>>(work: &Work, log: L) -> Result<Outcome> {
    let outcome = threads(work, (0..work.writers).map(|number| log.writer(number)))?;
    log.finish(work, outcome)
}

/// Measures writers that are plain threads, and nothing else.
pub(super) fn threads<W: AppendAndWait>(work: &Work, writers: impl Iterator<Item = W>) -> Result<Outcome> {
    let writers: Vec<W> = writers.collect();
    let window = work.window();
    let meters = on_threads(writers.into_iter().enumerate().map(|(number, mut writer)| {
        let (mut meter, mut record) = (window.meter(), Record::of(number, work.record_bytes));
        move || {
            while_open!(meter, writer.append_and_wait(record.next())?);
            Ok(meter)
        }
    }))?;
    Ok(window.outcome(meters))
}

/// Measures writers that are tasks of the shard whose thread this is.
pub(super) async fn on_shard<W: Append>(work: &Work, writers: Vec<W>) -> Result<Outcome> {
    let meter = LocalMeter::new(&work.window());
    let start = |(number, mut writer): (usize, W)| {
        let (meter, mut record) = (meter.clone(), Record::of(number, work.record_bytes));
        ::forebay::shard::spawn(async move {
            while_open!(meter, writer.append(record.next()).await?);
            anyhow::Ok(())
        })
    };
    let tasks: Vec<_> = writers.into_iter().enumerate().map(start).collect();
    for task in tasks {
        task?.await??;
    }
    Ok(meter.outcome())
}

/// Work that is done again and again on a thread of its own until it is dropped.
#[derive(Debug)]
pub(super) struct Upkeep {
    end: Option<std::sync::mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<Result<()>>>,
}

impl Upkeep {
    /// Does nothing.
    pub(super) const fn none() -> Self {
        Self { end: None, thread: None }
    }

    /// Does `work` every `pause`.
    pub(super) fn every(pause: Duration, mut work: impl FnMut() -> Result<()> + Send + 'static) -> Self {
        let (end, ended) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            while ended.recv_timeout(pause) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                work()?;
            }
            Ok(())
        });
        Self { end: Some(end), thread: Some(thread) }
    }

    /// Ends the work.
    ///
    /// # Errors
    /// The error of the work.
    pub(super) fn finish(mut self) -> Result<()> {
        self.end = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().map_err(|_| anyhow!("the upkeep of a log panicked"))?
    }
}

/// Runs a future on this thread, which sleeps in between.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static WAKER: Waker = Waker::from(Arc::new(Unpark(thread::current())));
    }
    let mut future = pin!(future);
    WAKER.with(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    })
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}
