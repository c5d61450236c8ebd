//! Strided pieces of many participants, written together: each participant hands its pieces over, and few
//! tasks write contiguous parts of the file in large aligned writes.

use std::future::{Future, poll_fn};
use std::sync::Arc;

use bytes::Bytes;
use forebay::internal::FileInternals;
use forebay::{Durability, File, Result, Waitable};

use crate::coalesce::{Shape, WriteStats, WriterCore};
use crate::options::Options;

mod aggregate;
mod plan;
mod shared;

use aggregate::Aggregate;
pub(crate) use aggregate::write_part;
pub(crate) use plan::Part;
use shared::{CollectiveCore, CollectiveState};

const REQUEST_BYTES_DEFAULT: u64 = 1 << 20;
const DEPTH_DEFAULT: usize = 16;
const PARTICIPANTS_MAX: usize = 1 << 16;

/// One participant's part in writing a file together; the participants may be tasks, threads, or tasks on
/// shards.
///
/// Where each of many has small pieces that lie between the pieces of others (the columns of a matrix, the records of a time step),
/// a single participant cannot write large requests. All of them call [`write`](Collective::write). After the last call, the file's
/// range is divided into as many contiguous parts as the engine has shards. A task on each, an aggregator, copies the bytes of its
/// part from all participants' pieces and writes them in large aligned writes, several of them in flight. (MPI calls this two-phase
/// I/O, or collective buffering.)
///
/// ```
/// # use forebay::{Config, Durability, Engine, Open};
/// # use forebay_collective::{Collective, Options};
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let engine = Engine::start(Config::new())?;
/// let file = engine.open(dir.path().join("matrix"), Open::create()).wait()?;
/// let threads: Vec<_> = Collective::start(&file, 3, Options::new()).into_iter().map(|mut part| {
///     std::thread::spawn(move || {
///         // Every third record of 1,000 bytes is this participant's.
///         let rank = part.rank() as u64;
///         let records = (0..50).map(|n| ((3 * n + rank) * 1000, vec![rank as u8; 1000].into()));
///         part.write(records.collect(), Durability::Data).wait()
///     })
/// }).collect();
/// for thread in threads {
///     thread.join().unwrap()?;
/// }
/// assert_eq!(file.len().wait()?, 150_000);
/// # Ok(()) }
/// ```
///
/// **Overlaps.** Where pieces overlap the highest rank wins, and among pieces of one participant the last in its list. The order of
/// the calls has no influence.
///
/// **Holes** between pieces keep their contents in the file. Pages (4 KiB, or more where the file's alignment
/// is more) that pieces cover in part are read once. So the file must be open for reading too, and no one
/// else may write these pages or change the file's length during a write. Afterwards the file has its
/// exact length, without padding.
///
/// **Ends for all.** When a participant is dropped, or a write, read or sync fails, the collective ends for
/// all: every waiter and every later call gets the error. Nothing of a write that failed counts as written. A
/// write that was complete when a participant was dropped stays so.
///
/// **Dropping** the future of a write does not withdraw the pieces: the others can still complete it, and this participant's next
/// write first waits for that.
#[must_use = "the others wait for this participant, or end when it is dropped"]
pub struct Collective {
    rank: usize,
    participants: usize,
    core: Arc<CollectiveCore>,
    /// The round of this participant's last deposit, until its end was seen.
    given: Option<u64>,
}

impl Collective {
    /// Returns a handle for each of 1 to 65,536 participants in writing the file, by rank, with a task started on each shard.
    pub fn start(file: &File, participants: usize, options: Options) -> Vec<Collective> {
        let (class, internals) = (options.class_here(), FileInternals::of(file));
        let (participants, aggregators) = (participants.clamp(1, PARTICIPANTS_MAX), internals.shard_count());
        // All of the memory may be in flight, as no pages are kept.
        let memory = (options.memory_bytes() / aggregators as u64).saturating_mul(4);
        let request = options.request_bytes.unwrap_or(REQUEST_BYTES_DEFAULT);
        let shape = Shape::of(file, memory, request, options.depth.unwrap_or(DEPTH_DEFAULT));
        let core = WriterCore::new("collective", file, class, shape, CollectiveState::new(participants));
        for index in 0..aggregators {
            // Made here, so that a task which cannot be spawned ends the collective as well.
            let aggregate = Aggregate::new(core.clone(), index);
            internals.spawn(index, class, move || aggregate.run());
        }
        let handle = |rank| Collective { rank, participants, core: core.clone(), given: None };
        (0..participants).map(handle).collect()
    }

    /// Gives this participant's pieces (offset and bytes, any sizes, in any order, possibly empty). Waits until all participants
    /// have called and all pieces are in the file, synced with the strongest of the participants' durabilities. Every participant
    /// must call it the same number of times.
    ///
    /// The pieces are not copied here, and are dropped when the write completes. Making [`Bytes`] of a `Vec`
    /// or a [`Block`](forebay::Block) copies nothing either.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`](forebay::ErrorKind::Cancelled) when a participant was dropped;
    /// [`ErrorKind::ArenaExhausted`](forebay::ErrorKind::ArenaExhausted) when others hold all I/O memory;
    /// [`ErrorKind::InvalidInput`](forebay::ErrorKind::InvalidInput) past 2^63 bytes, the only error that does not end the
    /// collective; the device's, or the first error of the collective.
    pub fn write(
        &mut self,
        pieces: Vec<(u64, Bytes)>,
        durability: Durability,
    ) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("collective", async move {
            for (offset, bytes) in &pieces {
                self.core.check_place(*offset, bytes.len())?;
            }
            if self.given.is_some() {
                self.over().await?;
            }
            self.given = Some(self.core.deposit(self.rank, pieces, durability)?);
            self.over().await
        })
    }

    async fn over(&mut self) -> Result<()> {
        let Some(round) = self.given else { return Ok(()) };
        poll_fn(|context| self.core.poll_over(context, round)).await?;
        self.given = None;
        Ok(())
    }

    /// Returns this participant's number, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of participants.
    pub fn participants(&self) -> usize {
        self.participants
    }

    /// Returns the file, for all other calls.
    pub fn file(&self) -> &File {
        &self.core.file
    }

    /// Returns the bytes that all participants gave and the requests sent to the device for them so far. Zeros in a forked child.
    pub fn stats(&self) -> WriteStats {
        self.core.lock_here().map_or_else(WriteStats::default, |state| state.stats)
    }
}

impl Drop for Collective {
    fn drop(&mut self) {
        // A child of fork(2) has no tasks, and the lock may stay held there forever.
        if !FileInternals::of(&self.core.file).is_forked() {
            self.core.leave(self.rank, self.participants);
        }
    }
}

forebay::_debug_parts!(
    Collective, |collective|
    file: collective.file(),
    rank: collective.rank,
    participants: collective.participants()
);
