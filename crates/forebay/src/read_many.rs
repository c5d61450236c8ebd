//! Many ranges of one file as one request: sorted, merged where that pays, all in flight at once, one message and one
//! wake for the whole batch.

mod batch;
mod plan;
mod run;

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::block::Block;
use crate::class::Class;
use crate::error::{Error, Result};
use crate::file::File;
use crate::op::OpFailure;
use crate::shard::inbox::Message;
use crate::shard::{self, with_current};
use crate::wait;

pub(crate) use batch::Batch;
use plan::{Limits, Plan};
pub(crate) use run::{Batches, begin, piece_done, refuse_all, resume, retry_blocked};

/// A batch of reads; see [`File::read_many`].
///
/// Ranges may overlap, be equal, be empty and come in any order. Each has its own result: one past the end of the file
/// fails alone, and when a merged request fails it is split and repeated range by range.
///
/// Awaited, it answers all results in the order of the ranges. [`stream`](ReadMany::stream) gives them as they arrive,
/// with bounded memory: right for more than fits in [`Config::arena_bytes_max`](crate::Config::arena_bytes_max).
///
/// Costs one message to the file's shard and one wake for the whole batch; no allocation per range.
///
/// ```
/// # use forebay::{Config, Engine, Open};
/// # fn main() -> forebay::Result<()> {
/// # let engine = Engine::start(Config::default())?;
/// let file = engine.open("Cargo.toml", Open::read()).wait()?;
/// let blocks = file.read_many([1..8, 0..9, 4..4]).wait()?;
/// assert_eq!(&blocks[0].as_ref().unwrap()[..], b"package");
/// assert_eq!(&blocks[1].as_ref().unwrap()[..], b"[package]");
/// assert!(blocks[2].as_ref().unwrap().is_empty());
/// # Ok(()) }
/// ```
#[must_use = "a batch begins only when it is awaited, waited for or streamed"]
pub struct ReadMany<'f> {
    file: &'f File,
    ranges: Vec<Range<u64>>,
    limits: Limits,
    depth: u32,
    class: Option<Class>,
}

/// Requests of one batch in flight at once, unless said otherwise.
const DEPTH: u32 = 128;

impl<'f> ReadMany<'f> {
    pub(crate) fn new(file: &'f File, ranges: Vec<Range<u64>>) -> ReadMany<'f> {
        ReadMany { file, ranges, limits: Limits::default(), depth: DEPTH, class: None }
    }

    /// Ranges at most this many bytes apart are read with one request. Default: 16 KiB, which a device that moves
    /// 1 GB/s reads over faster than it answers a second request.
    pub fn merge_gap(mut self, bytes: u64) -> Self {
        self.limits.gap_bytes_max = bytes;
        self
    }

    /// The most bytes that one merged request may read in vain, between its ranges. Default: 64 KiB; 0 merges only
    /// what touches or overlaps.
    pub fn amplify_at_most(mut self, bytes: u64) -> Self {
        self.limits.waste_bytes_max = bytes;
        self
    }

    /// The most bytes of one merged request; a longer range is read alone. Default: 256 KiB.
    pub fn request_bytes_max(mut self, bytes: u64) -> Self {
        self.limits.request_bytes_max = bytes;
        self
    }

    /// Requests in flight at once, at least 1. Default: 128.
    pub fn depth(mut self, requests: u32) -> Self {
        self.depth = requests.max(1);
        self
    }

    /// Who asks; default: the class of the task that runs, [`Class::DEFAULT`] outside of shards.
    pub fn class(mut self, class: Class) -> Self {
        self.class = Some(class);
        self
    }

    /// Blocks the calling thread until all results are there.
    ///
    /// # Errors
    /// As when awaited; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(self) -> Result<Vec<Result<Block>>> {
        wait::block_on("read_many", self.into_future())
    }

    /// The results as they arrive, each with the number of its range, in no particular order. Memory held by results
    /// that were not taken is bounded by the depth.
    pub fn stream(self) -> ReadManyStream {
        let depth = self.depth;
        ReadManyStream { run: self.start(Some(depth as usize * 2)) }
    }

    fn start(self, queue: Option<usize>) -> Run {
        let class = self.class.unwrap_or_else(shard::class);
        let core = self.file.core();
        let plan = Plan::new(self.ranges, &self.limits, core.alignment().read_offset);
        Run { batch: Batch::new(core.clone(), plan, class, self.depth, queue), sent: false }
    }
}

impl fmt::Debug for ReadMany<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadMany")
            .field("file", &self.file)
            .field("ranges", &self.ranges.len())
            .finish_non_exhaustive()
    }
}

/// Awaiting fails as a whole only when the file or the engine is closed; all else is in the single results.
impl IntoFuture for ReadMany<'_> {
    type Output = Result<Vec<Result<Block>>>;
    type IntoFuture = ReadManyFuture;

    fn into_future(self) -> ReadManyFuture {
        ReadManyFuture { run: self.start(None) }
    }
}

/// The future of [`ReadMany`]. Dropping it stops the batch.
#[must_use = "futures do nothing unless awaited"]
pub struct ReadManyFuture {
    run: Run,
}

impl Future for ReadManyFuture {
    type Output = Result<Vec<Result<Block>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = std::task::ready!(self.run.send(context)) {
            return Poll::Ready(Err(error));
        }
        self.run.batch.poll_all(context.waker())
    }
}

impl fmt::Debug for ReadManyFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadManyFuture").finish_non_exhaustive()
    }
}

/// Results of a [`ReadMany`] as they arrive. Dropping it stops the batch.
#[must_use = "a batch begins only when its stream is polled"]
pub struct ReadManyStream {
    run: Run,
}

impl ReadManyStream {
    /// The next result and the number of its range; `None` when all were given.
    pub async fn next(&mut self) -> Option<(usize, Result<Block>)> {
        poll_fn(|context| self.poll_next_result(context)).await
    }

    /// As [`next`](Self::next) on a plain thread.
    ///
    /// # Errors
    /// [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn next_wait(&mut self) -> Result<Option<(usize, Result<Block>)>> {
        wait::block_on("read_many", async { Ok(self.next().await) })
    }

    fn poll_next_result(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Result<Block>)>> {
        match std::task::ready!(self.run.send(context)) {
            Err(error) => Poll::Ready(self.run.batch.refused_once().then_some((0, Err(error)))),
            Ok(()) => self.run.batch.poll_next(context.waker()),
        }
    }
}

#[cfg(feature = "stream")]
impl futures_core::Stream for ReadManyStream {
    type Item = (usize, Result<Block>);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_next_result(context)
    }
}

impl fmt::Debug for ReadManyStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadManyStream").finish_non_exhaustive()
    }
}

/// A batch and whether its shard has it.
struct Run {
    batch: Arc<Batch>,
    sent: bool,
}

impl Run {
    /// Begins the batch: at once on a shard of its engine, by one message elsewhere.
    fn send(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.sent {
            return match self.batch.file().engine().is_forked() {
                false => Poll::Ready(Ok(())),
                true => Poll::Ready(Err(OpFailure::Forked.into_error("read_many", Some(self.batch.file())))),
            };
        }
        let core = self.batch.file().clone();
        let failure = match core.is_closed() {
            true => Some(OpFailure::FileClosed),
            false => core.engine().failure(),
        };
        if let Some(failure) = failure {
            return Poll::Ready(Err(failure.into_error("read_many", Some(&core))));
        }
        self.batch.register(context.waker());
        let local = with_current(|shard| {
            let ours = Arc::ptr_eq(shard.engine(), core.engine());
            if ours {
                self.batch.set_shard(shard.index());
                begin(shard, self.batch.clone());
            }
            ours
        });
        if local != Some(true) {
            self.batch.set_shard(core.home());
            let inbox = &core.engine().inboxes[core.home()];
            if inbox.send(Message::Batch(self.batch.clone()), Some(context.waker())).is_err() {
                return Poll::Pending;
            }
        }
        self.sent = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.sent {
            self.batch.cancel();
        }
    }
}

/// The error of a range that cannot be read at all.
fn range_error(batch: &Batch, error: Error, range: &Range<u64>) -> Error {
    batch.file().describe(error).with_range(range.start, range.end.saturating_sub(range.start))
}
