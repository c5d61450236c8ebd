//! Dependent reads, decided where they complete: the next read of a walk is requested in completion handling,
//! and the program is woken once, at the end.
//!
//! The design:
//! 1. A walk has a slot of a separate table of its shard (`table`). Each of its up to 16 reads in flight has a slot of the op table
//!    whose `Continuation::Walk` names the walk and the place of the read in it.
//! 2. The walk's state, and later its result, is a `Job` (`state`): up to 128 bytes in the slot, otherwise in
//!    one box, behind one type either way. It is `Send`, because a batch's jobs travel to the shard and back.
//!    A job is out of its slot while its step runs, so that a step may do anything, its own future's drop
//!    included.
//! 3. A completion becomes an arrival in the shard's queue, and the queue is worked off right after the batch
//!    of completions. So no step runs inside another, however the device completes. A turn allows 256 steps
//!    and a walk 8 hops; the rest waits for the next turn, after tasks and messages.
//! 4. The reads that a step requests are staged like any operation, and submitted before tasks run if any are
//!    ready.
//! 5. A read that finds no memory waits as every late read does, and the walk with it. Reads of walks count as operations that will
//!    release memory: a block is released when its step has ended, unless the walk keeps it.
//! 6. A step's result that drops reads (`Read`, `ReadEach`, `Done`, `Fail`) orphans their slots, which keep
//!    their memory until the device is done. It also moves the walk's epoch on, so that blocks which have
//!    arrived already reach no step.
//! 7. A future on the shard names its walk by key. Polled elsewhere it sends a batch of one that takes the walk over; dropped
//!    elsewhere it sets the walk's bit in the inbox. From elsewhere walks are sent as a batch (`remote_walks`), with one message
//!    and one wake-up. Dropping the batch leaves its node for the shard.
//! 8. At a shard's end jobs fail and drop their state there; reads become orphans, and are drained or leaked
//!    as all are.
//! 9. Panics of steps and of the states' destructors are caught where they happen.

pub(crate) mod lifecycle;
pub(crate) mod many;
mod reads;
pub(crate) mod remote_walks;
pub(crate) mod state;
mod step;
pub(crate) mod table;

use std::ops::Range;

use crate::base::error::Error;
use crate::memory::block::Block;

pub(crate) use lifecycle::{arrived, as_step, describe, drop_walk_at, run, timed, turn};
pub(crate) use many::{begin_batch, refuse_all, resume};
pub(crate) use reads::{Refusal, check_request};
pub(crate) use remote_walks::Batch;
pub use step::{Ranges, Step};
pub(crate) use table::{HOPS_PER_TURN, STEPS_PER_TURN, WALKS_MAX, Walks};

/// A chain of reads of which each depends on the one before: a lookup in a tree, a list of extents, a hash
/// chain.
///
/// [`File::walk`](crate::File::walk) reads the root and passes it to [`step`](Walk::step), which returns the next read, or the
/// result. Steps run where the read completes, inside completion handling: no task is woken and no thread is
/// changed between two reads. That is the file's shard, or the [ring](crate::Config::worker_rings) of the Tokio worker whose
/// task asked, or the thread that is in the walk's `.wait()`.
///
/// # Rules for steps
/// - Short: a step delays everything else of its shard or ring. Microseconds are fine. A step of more than 20 us is counted under
///   its type's name in [`Stats::walks`](crate::Stats). Long work belongs behind the walk, in the task that awaits it.
/// - No waiting: no locks that other threads hold for long, no blocking calls. [`wait`](crate::WalkOne::wait) in a
///   step is an error.
/// - A panic is caught and is the walk's error ([`TaskPanicked`](crate::ErrorKind::TaskPanicked)).
///
/// # Cost
/// A walk on a shard allocates nothing if state and result take up to 128 bytes each and no more than 16 bytes of alignment. Larger
/// values are boxed once, and counted. The program is woken once, at the end. A walk from elsewhere costs one message and one
/// wake-up; so does a batch.
///
/// ```
/// use std::ops::Range;
/// use forebay::{Block, Config, Engine, Error, Open, Step, Walk};
///
/// /// Follows a list: eight bytes with the place of the next item, 0 at the end.
/// struct Last;
///
/// impl Walk for Last {
///     type Output = u64;
///     type Error = Error; // or your own, with `From<forebay::Error>`
///
///     fn step(&mut self, block: &Block, at: Range<u64>) -> Step<u64, Error> {
///         match block[..].try_into().map_or(0, u64::from_le_bytes) {
///             0 => Step::Done(at.start),
///             next => Step::Read(next..next + 8),
///         }
///     }
/// }
///
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let engine = Engine::start(Config::new())?;
/// let file = engine.open(dir.path().join("list"), Open::create().buffered()).wait()?;
/// for (place, next) in [(0u64, 700u64), (700, 40), (40, 0)] {
///     file.write(place, &next.to_le_bytes()[..]).wait()?;
/// }
/// assert_eq!(file.walk(0..8, Last).wait()?, 40); // in a task: file.walk(0..8, Last).await?
/// # Ok(()) }
/// ```
pub trait Walk: Send + 'static {
    /// The result of a walk that succeeds. It may hold [`Block`]s: nothing is copied then.
    type Output: Send + 'static;
    /// The error of a walk that fails. [`Step::Fail`] passes it on unchanged, and Forebay's own errors are converted where the walk
    /// is awaited. A walk without specific failures uses [`Error`].
    type Error: From<Error> + Send + 'static;

    /// Inspects a block, whose place in the file is `at`, and returns the next step. The walk may keep the
    /// block, or a [slice](Block::slice) of it, by cloning. Memory that it keeps is not free for other reads.
    fn step(&mut self, block: &Block, at: Range<u64>) -> Step<Self::Output, Self::Error>;
}
