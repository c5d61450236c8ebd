//! Many ranges of one file as one request: sorted, merged where that pays, all in flight at once, with one
//! message and one wake-up for the whole batch.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::base::class::Class;
use crate::base::error::Result;
use crate::base::wait::{self, Waitable};
use crate::handle::file::File;
use crate::io::op::OpFailure;
use crate::memory::block::Block;
use crate::reactor::open_file::FileCore;
use crate::reactor::read_many::{Batch, Limits, Plan, begin};
use crate::reactor::shard::inbox::Message;
use crate::reactor::shard::{self, with_current};
use crate::reactor::visited;

impl File {
    /// Returns a read of many ranges in one message: sorted, merged where that pays, all in flight at once.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let blocks = file.read_many((0..4).map(|page| page * 4096..page * 4096 + 100)).wait()?;
    /// for block in blocks {
    ///     assert_eq!(block?.len(), 100); // each range has its own result
    /// }
    /// # Ok(()) }
    /// ```
    pub fn read_many(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> ReadMany {
        ReadMany::new(self, ranges.into_iter().collect())
    }
}

/// A batch of reads; see [`File::read_many`].
///
/// Ranges may overlap, be equal, be empty and come in any order. Each has its own result: one past the end of the file
/// fails alone, and when a merged request fails it is split and repeated range by range.
///
/// Awaited, it returns all results in the order of the ranges. [`stream`](ReadMany::stream) returns them as
/// they arrive, with bounded memory: right for more than fits in
/// [`Config::arena_bytes_max`](crate::Config::arena_bytes_max).
///
/// Costs one message to the file's shard and one wake-up for the whole batch; no allocation per range.
///
/// It begins when it is first polled; its methods change nothing afterwards. It borrows nothing, so it may be
/// spawned as it is. Awaiting it fails as a whole only when the file or the engine is closed; all other
/// errors are in the single results. Dropping it stops the batch.
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
pub struct ReadMany {
    state: State,
}

enum State {
    New(Ask),
    Begun(Run),
}

/// The ranges to read, and the settings.
struct Ask {
    core: Arc<FileCore>,
    ranges: Vec<Range<u64>>,
    limits: Limits,
    depth: u32,
    class: Option<Class>,
}

/// The default of requests of one batch in flight at once.
const DEPTH: u32 = 128;

impl ReadMany {
    pub(crate) fn new(file: &File, ranges: Vec<Range<u64>>) -> ReadMany {
        let core = file.core().clone();
        let limits = Limits::default();
        ReadMany { state: State::New(Ask { core, ranges, limits, depth: DEPTH, class: None }) }
    }

    /// Changes the settings of a batch that has not begun.
    fn set(mut self, change: impl FnOnce(&mut Ask)) -> ReadMany {
        if let State::New(ask) = &mut self.state {
            change(ask);
        }
        self
    }

    /// Sets the most bytes between two ranges that are read with one request. Default: 16 KiB, which a device
    /// that moves 1 GB/s reads in less time than it needs for a second request.
    pub fn merge_gap(self, bytes: u64) -> Self {
        self.set(|ask| ask.limits.gap_bytes_max = bytes)
    }

    /// Sets the most bytes that one merged request may read in vain, between its ranges. Default: 64 KiB; 0
    /// merges only ranges that touch or overlap.
    pub fn amplify_at_most(self, bytes: u64) -> Self {
        self.set(|ask| ask.limits.waste_bytes_max = bytes)
    }

    /// Sets the most bytes of one merged request; a longer range is read alone. Default: 256 KiB.
    pub fn request_bytes_max(self, bytes: u64) -> Self {
        self.set(|ask| ask.limits.request_bytes_max = bytes)
    }

    /// Sets the requests in flight at once, at least 1. Default: 128.
    pub fn depth(self, requests: u32) -> Self {
        self.set(|ask| ask.depth = requests.max(1))
    }

    /// Sets the class. Default: that of the task that begins the batch, [`Class::DEFAULT`] outside of shards.
    pub fn class(self, class: Class) -> Self {
        self.set(|ask| ask.class = Some(class))
    }

    /// Blocks the calling thread until all results are there.
    ///
    /// # Errors
    /// Those of awaiting it; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(self) -> Result<Vec<Result<Block>>> {
        wait::block_on("read_many", self)
    }

    /// Returns a stream of the results as they arrive, each with the number of its range, in no particular
    /// order. The depth bounds the memory held by results that were not taken.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).await?;
    /// # file.write(0, vec![7; 16_384]).await?;
    /// let mut results = file.read_many((0..4).map(|page| page * 4096..page * 4096 + 100)).depth(2).stream();
    /// let mut bytes = 0;
    /// while let Some((number, block)) = results.next().await {
    ///     bytes += block?.len();
    ///     assert!(number < 4);
    /// }
    /// assert_eq!(bytes, 400);
    /// # Ok(()) }
    /// ```
    pub fn stream(self) -> ReadManyStream {
        let run = match self.state {
            State::New(ask) => {
                let queue = ask.depth as usize * 2;
                ask.start(Some(queue))
            }
            State::Begun(run) => run,
        };
        ReadManyStream { run }
    }
}

impl Ask {
    /// Moves the request out: the ranges are taken, the rest is copied.
    fn take(&mut self) -> Ask {
        Ask { core: self.core.clone(), ranges: std::mem::take(&mut self.ranges), ..*self }
    }

    fn start(self, queue: Option<usize>) -> Run {
        let class = self.class.unwrap_or_else(shard::class);
        let plan = Plan::new(self.ranges, &self.limits, self.core.alignment().read_offset);
        Run { batch: Batch::new(self.core, plan, class, self.depth, queue), sent: false }
    }
}

impl Future for ReadMany {
    type Output = Result<Vec<Result<Block>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let run = loop {
            match &mut self.state {
                State::Begun(run) => break run,
                State::New(ask) => {
                    let run = ask.take().start(None);
                    self.state = State::Begun(run);
                }
            }
        };
        if let Err(error) = std::task::ready!(run.send(context)) {
            return Poll::Ready(Err(error));
        }
        run.batch.poll_all(context.waker())
    }
}

impl fmt::Debug for ReadMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (core, ranges) = match &self.state {
            State::New(ask) => (&ask.core, ask.ranges.len()),
            State::Begun(run) => (run.batch.file(), run.batch.plan.ranges.len()),
        };
        f.debug_struct("ReadMany")
            .field("path", &core.path())
            .field("ranges", &ranges)
            .finish_non_exhaustive()
    }
}

/// The results of a [`ReadMany`] as they arrive. Dropping it stops the batch.
#[must_use = "a batch begins only when its stream is polled"]
pub struct ReadManyStream {
    run: Run,
}

impl ReadManyStream {
    /// Returns the next result and the number of its range; `None` after the last one.
    #[expect(clippy::should_implement_trait, reason = "the asynchronous `next`, as that of a `Stream`")]
    pub fn next(&mut self) -> Waitable<impl Future<Output = Option<(usize, Result<Block>)>>> {
        Waitable::new("read_many", poll_fn(|context| self.poll_next_result(context)))
    }

    fn poll_next_result(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Result<Block>)>> {
        match std::task::ready!(self.run.send(context)) {
            Err(error) => Poll::Ready(self.run.batch.refused_once().then_some((0, Err(error)))),
            Ok(()) => self.run.batch.poll_next(context.waker()),
        }
    }
}

/// Gives the items of [`next`](ReadManyStream::next).
///
/// ```
/// # use forebay::{Config, Engine, Open};
/// use futures::TryStreamExt;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = Engine::start(Config::default())?;
/// let file = engine.open("Cargo.toml", Open::read()).await?;
/// let results = futures::StreamExt::map(file.read_many([0..9, 1..8]).stream(), |(_number, block)| block);
/// let bytes = results.try_fold(0, async |sum, block| Ok(sum + block.len())).await?;
/// assert_eq!(bytes, 16);
/// # Ok(()) }
/// ```
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

/// A batch, and whether it was sent to its shard.
struct Run {
    batch: Arc<Batch>,
    sent: bool,
}

impl Run {
    /// Begins the batch: at once on a shard of its engine, by one message elsewhere.
    fn send(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.sent {
            return if self.batch.file().engine().is_forked() {
                Poll::Ready(Err(OpFailure::Forked.into_error("read_many", Some(self.batch.file()))))
            } else {
                Poll::Ready(Ok(()))
            };
        }
        let core = self.batch.file().clone();
        let failure = if core.is_closed() { Some(OpFailure::FileClosed) } else { core.engine().failure() };
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
        let begun = match local {
            Some(true) => Some(Poll::Ready(())),
            _ => visited::begin_batch(core.engine(), &self.batch, context),
        };
        if begun == Some(Poll::Pending) {
            return Poll::Pending;
        }
        if begun.is_none() {
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
