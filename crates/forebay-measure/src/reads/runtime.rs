//! The rows from tasks of a Tokio runtime.

use std::fs::File;
use std::io::SeekFrom;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::super::aligned::AlignedBuffer;
use super::super::job::Job;
use super::arrivals::{minimise_timer_slack, sleep_until};
use super::job::{ReadWork, Way};
use super::lane::{Lane, Tally};
use super::pacer::{Pacer, Scheduled};
use super::shards;
use super::threads::open_direct;

/// The data common to all readers of a sample.
pub(super) type Shared = Arc<(Job, ReadWork)>;

/// A runtime with the sample's readers in it.
#[derive(Debug)]
pub(super) struct Readers {
    runtime: Runtime,
    tasks: Vec<JoinHandle<anyhow::Result<Tally>>>,
}

impl Readers {
    /// Starts the readers of a closed loop; `forebay` is the file of `forebay-tokio`.
    ///
    /// # Errors
    /// Fails without a runtime or a file.
    pub(super) fn start(
        shared: &Shared,
        forebay: Option<&forebay::File>,
        pacer: &Arc<Pacer>,
    ) -> anyhow::Result<Self> {
        let (job, work) = &**shared;
        let runtime = Builder::new_multi_thread()
            .worker_threads(work.workers)
            .max_blocking_threads(work.readers.max(1) + 1)
            .build()?;
        let direct = Arc::new(open_direct(&job.path)?);
        let mut tasks = Vec::with_capacity(work.readers);
        for lane in 0..work.readers {
            let (shared, pacer) = (Arc::clone(shared), Arc::clone(pacer));
            tasks.push(match (work.way, forebay) {
                (_, Some(file)) => runtime.spawn(shards::read(shared, file.clone(), lane, pacer)),
                (Way::TokioFs, _) => runtime.spawn(tokio_fs(shared, File::open(&job.path)?, lane, pacer)),
                _ => runtime.spawn(spawn_blocking(shared, Arc::clone(&direct), lane, pacer)),
            });
        }
        Ok(Self { runtime, tasks })
    }

    /// Waits until all readers have ended, and returns the sum of their results.
    ///
    /// # Errors
    /// Fails with the errors of the readers.
    pub(super) fn join(self) -> anyhow::Result<Tally> {
        let Self { runtime, tasks } = self;
        runtime.block_on(async move {
            let mut all = Tally::new()?;
            for task in tasks {
                all.add(&task.await.context("a reading task panicked")??)?;
            }
            anyhow::Ok(all)
        })
    }
}

/// Runs a reader of `tokio-fs`, which has a file of its own.
async fn tokio_fs(shared: Shared, file: File, lane: usize, pacer: Arc<Pacer>) -> anyhow::Result<Tally> {
    let (job, work) = &*shared;
    let mut lane = Lane::new(job, work, lane, &pacer)?;
    let mut file = tokio::fs::File::from_std(file);
    // Otherwise it reads more than the block, or a larger block in pieces.
    file.set_max_buf_size(work.block_bytes as usize);
    let mut block = vec![0; work.block_bytes as usize];
    while let Some(scheduled) = pacer.next_read() {
        let (offset, begun) = (lane.offset(), Instant::now());
        file.seek(SeekFrom::Start(offset)).await?;
        file.read_exact(&mut block).await?;
        lane.ended(scheduled, begun, offset, &block)?;
    }
    Ok(lane.end())
}

/// Runs a reader of `spawn-blocking`: the buffer goes to the blocking thread and comes back.
async fn spawn_blocking(
    shared: Shared,
    file: Arc<File>,
    lane: usize,
    pacer: Arc<Pacer>,
) -> anyhow::Result<Tally> {
    let (job, work) = &*shared;
    let mut lane = Lane::new(job, work, lane, &pacer)?;
    let mut buffer = AlignedBuffer::new(work.block_bytes as usize);
    while let Some(scheduled) = pacer.next_read() {
        let (offset, begun) = (lane.offset(), Instant::now());
        let file = Arc::clone(&file);
        let reading = tokio::task::spawn_blocking(move || {
            let result = file.read_exact_at(buffer.bytes_mut(), offset);
            (result, buffer)
        });
        let (result, back) = reading.await.context("a read panicked")?;
        buffer = back;
        result?;
        lane.ended(scheduled, begun, offset, buffer.bytes())?;
    }
    Ok(lane.end())
}

/// Many tasks of an open loop record into few lanes.
const LANES: usize = 8;

/// Runs `forebay-tokio` in an open loop. The calling thread stands for the network, and begins a task for
/// each read when it is due. No more than the sample's readers are in flight. The others wait for their
/// turn in the order of their arrival, and that wait is in their latency.
///
/// # Errors
/// Fails when a read failed, or returned data other than those written.
pub(super) fn serve(shared: &Shared, file: &forebay::File, pacer: &Arc<Pacer>) -> anyhow::Result<Tally> {
    let (job, work) = &**shared;
    let runtime = Builder::new_multi_thread().worker_threads(work.workers).build()?;
    let lanes = (0..LANES)
        .map(|lane| Ok(Mutex::new(Lane::new(job, work, lane, pacer)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let lanes = Arc::new(lanes);
    let tasks = begin_all(runtime.handle(), work, file, pacer, &lanes);
    runtime.block_on(async {
        for task in tasks {
            task.await.context("a reading task panicked")??;
        }
        anyhow::Ok(())
    })?;
    drop(runtime);
    let lanes = Arc::try_unwrap(lanes).map_err(|_| anyhow::anyhow!("a reading task outlived its runtime"))?;
    Tally::sum(
        lanes.into_iter().map(|lane| Ok(lane.into_inner().unwrap_or_else(PoisonError::into_inner).end())),
    )
}

fn begin_all(
    handle: &Handle,
    work: &ReadWork,
    file: &forebay::File,
    pacer: &Arc<Pacer>,
    lanes: &Arc<Vec<Mutex<Lane>>>,
) -> Vec<JoinHandle<anyhow::Result<()>>> {
    let permits = Arc::new(Semaphore::new(work.readers));
    let (mut tasks, block_bytes) = (Vec::new(), work.block_bytes);
    minimise_timer_slack();
    while let Some(scheduled) = pacer.next_read() {
        if let Some(due) = scheduled.due {
            sleep_until(due);
        }
        let (file, pacer, lanes, permits) =
            (file.clone(), Arc::clone(pacer), Arc::clone(lanes), Arc::clone(&permits));
        let lane = tasks.len() % LANES;
        tasks.push(
            handle.spawn(
                async move { one(&file, scheduled, block_bytes, &pacer, &lanes[lane], &permits).await },
            ),
        );
    }
    tasks
}

async fn one(
    file: &forebay::File,
    scheduled: Scheduled,
    block_bytes: u64,
    pacer: &Pacer,
    lane: &Mutex<Lane>,
    permits: &Semaphore,
) -> anyhow::Result<()> {
    let _permit = permits.acquire().await?;
    let locked = || lane.lock().unwrap_or_else(PoisonError::into_inner);
    if pacer.gave_up() {
        locked().gave_up(scheduled);
        return Ok(());
    }
    let (offset, begun) = (locked().offset(), Instant::now());
    let block = file.read(offset..offset + block_bytes).await?;
    locked().ended(scheduled, begun, offset, &block)
}
