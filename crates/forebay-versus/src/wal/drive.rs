//! The writers: each appends one record after the other, and waits until it is durable, for as long as the window is open.

use std::future::Future;
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::WalJob;
use super::record::Record;
use crate::meter::{LocalMeter, Window};
use crate::sample::Sample;

/// One writer's access to a log.
pub(crate) trait Append: Send + 'static {
    /// Completes when the record is durable.
    fn append(&mut self, record: &[u8]) -> impl Future<Output = Result<()>> + Send;
}

/// One writer's access to a log, for a thread that waits.
pub(crate) trait AppendAndWait: Send + 'static {
    /// Returns when the record is durable.
    fn append_and_wait(&mut self, record: &[u8]) -> Result<()>;
}

/// Measures writers that are tasks of the multi-threaded Tokio runtime, which has a worker per core.
pub(crate) fn from_tokio<A: Append>(job: &WalJob, writers: Vec<A>) -> Result<Sample> {
    let runtime = Builder::new_multi_thread().build()?;
    let window = Window::start(job.warm_up, job.measure);
    let meters = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for (number, mut writer) in writers.into_iter().enumerate() {
            let (mut meter, mut record) = (window.meter(), Record::of(number, job.record_bytes));
            tasks.spawn(async move {
                let mut began = meter.begin();
                loop {
                    writer.append(record.next()).await?;
                    match meter.finish(began) {
                        Some(now) => began = now,
                        None => return anyhow::Ok(meter),
                    }
                }
            });
        }
        tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()
    })?;
    Ok(window.sample(meters))
}

/// Measures writers that are plain threads.
pub(crate) fn from_threads<A: AppendAndWait>(job: &WalJob, writers: Vec<A>) -> Result<Sample> {
    let window = Window::start(job.warm_up, job.measure);
    let meters = std::thread::scope(|scope| {
        let threads: Vec<_> = writers
            .into_iter()
            .enumerate()
            .map(|(number, mut writer)| {
                let (mut meter, mut record) = (window.meter(), Record::of(number, job.record_bytes));
                scope.spawn(move || {
                    let mut began = meter.begin();
                    loop {
                        writer.append_and_wait(record.next())?;
                        match meter.finish(began) {
                            Some(now) => began = now,
                            None => return anyhow::Ok(meter),
                        }
                    }
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().map_err(|_| anyhow!("a writer's thread panicked"))?
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    Ok(window.sample(meters))
}

/// Measures writers that are tasks of the shard whose thread this is.
pub(crate) async fn on_shard<A: Append>(job: &WalJob, writers: Vec<A>) -> Result<Sample> {
    let window = Window::start(job.warm_up, job.measure);
    let meter = LocalMeter::new(&window);
    let tasks: Vec<_> = writers
        .into_iter()
        .enumerate()
        .map(|(number, mut writer)| {
            let (meter, mut record) = (meter.clone(), Record::of(number, job.record_bytes));
            ::forebay::shard::spawn(async move {
                let mut began = meter.begin();
                loop {
                    writer.append(record.next()).await?;
                    match meter.finish(began) {
                        Some(now) => began = now,
                        None => return anyhow::Ok(()),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task?.await??;
    }
    Ok(meter.sample(&window))
}

/// Work that is done again and again on a thread of its own until it is dropped.
#[derive(Debug)]
pub(crate) struct Upkeep {
    end: Option<std::sync::mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<Result<()>>>,
}

impl Upkeep {
    /// Does `work` every `pause`.
    pub(crate) fn every(pause: Duration, mut work: impl FnMut() -> Result<()> + Send + 'static) -> Self {
        let (end, ended) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
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
    pub(crate) fn finish(mut self) -> Result<()> {
        self.end = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().map_err(|_| anyhow!("the upkeep of a log panicked"))?
    }
}
