//! Strided pieces of many participants, written together: each participant hands its pieces over, and few
//! tasks write contiguous parts of the file in large aligned writes.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;

use bytes::Bytes;

use crate::ops::coalesce::{CoalesceStats, Shape};
use crate::{Class, Durability, ErrorKind, File, Result, Waitable, shard};

#[path = "collective/aggregate.rs"]
mod aggregate;
#[path = "collective/plan.rs"]
mod plan;
#[path = "collective/shared.rs"]
mod shared;

use aggregate::Aggregate;
use shared::CollectiveCore;

impl File {
    /// Returns a builder for a collective, in which several participants write their pieces of this file
    /// together, in large writes.
    ///
    /// ```
    /// # use forebay::{Config, Durability, Engine, Open};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).await?;
    /// let mut tasks = Vec::new();
    /// for mut part in file.collective(4).start() {
    ///     tasks.push(tokio::spawn(async move {
    ///         let rank = part.rank() as u64;
    ///         let pieces = vec![(rank * 100, vec![rank as u8; 100].into())];
    ///         part.write(pieces, Durability::Data).await // returns when all four have called
    ///     }));
    /// }
    /// for task in tasks {
    ///     task.await??;
    /// }
    /// assert_eq!(file.read(299..301).await?[..], [2, 3]);
    /// # Ok(()) }
    /// ```
    pub fn collective(&self, participants: usize) -> CollectiveBuilder {
        CollectiveBuilder::new(self.clone(), participants)
    }
}

const MEMORY_DEFAULT: u64 = 16 << 20;
const REQUEST_DEFAULT: u64 = 1 << 20;
const REQUEST_MAX: u64 = 64 << 20;
const DEPTH_DEFAULT: usize = 16;
const DEPTH_MAX: usize = 1024;
const PARTICIPANTS_MAX: usize = 1 << 16;

/// Settings of a collective, in which several participants write one file; see [`File::collective`].
///
/// A number outside of its setting's range counts as the nearest one in it.
#[derive(Clone, Debug)]
#[must_use = "a collective begins with start()"]
pub struct CollectiveBuilder {
    file: File,
    participants: usize,
    aggregators: usize,
    memory: u64,
    request: u64,
    depth: usize,
    class: Option<Class>,
}

impl CollectiveBuilder {
    pub(crate) fn new(file: File, participants: usize) -> CollectiveBuilder {
        CollectiveBuilder {
            participants: participants.clamp(1, PARTICIPANTS_MAX),
            aggregators: file.internals().shard_count(),
            file,
            memory: MEMORY_DEFAULT,
            request: REQUEST_DEFAULT,
            depth: DEPTH_DEFAULT,
            class: None,
        }
    }

    /// Sets the number of tasks that write, each a contiguous part of the file on a shard of its own: 1 to
    /// the number of shards, which is the default.
    pub fn aggregators(mut self, tasks: usize) -> CollectiveBuilder {
        self.aggregators = tasks.clamp(1, self.file.internals().shard_count());
        self
    }

    /// Sets the most bytes of I/O memory to use, divided between the aggregators. Default: 16 MiB. The pieces
    /// themselves stay in the participants' memory, and each costs 24 bytes of heap while it is written.
    pub fn memory(mut self, bytes: usize) -> CollectiveBuilder {
        self.memory = bytes as u64;
        self
    }

    /// Sets the most bytes of one write, 4 KiB to 64 MiB, rounded down to a power of two and to an
    /// aggregator's memory. Default: 1 MiB.
    pub fn request(mut self, bytes: usize) -> CollectiveBuilder {
        self.request = (bytes as u64).min(REQUEST_MAX);
        self
    }

    /// Sets the most writes in flight of each aggregator, 1 to 1,024. Default: 16.
    pub fn depth(mut self, writes: usize) -> CollectiveBuilder {
        self.depth = writes.clamp(1, DEPTH_MAX);
        self
    }

    /// Sets the class of the I/O. Default: that of the task that calls `start`,
    /// [`Class::DEFAULT`] outside of shards.
    pub fn class(mut self, class: Class) -> CollectiveBuilder {
        self.class = Some(class);
        self
    }

    /// Returns a handle for each participant, by rank, with the aggregators' tasks started.
    pub fn start(self) -> Vec<Collective> {
        let class = self.class.unwrap_or_else(shard::class);
        let memory = self.memory / self.aggregators as u64;
        let shape = Shape::unkept(&self.file.alignment(), memory, self.request, self.depth);
        let shared = Arc::new(CollectiveCore::new(shape, self.participants, self.aggregators));
        for index in 0..self.aggregators {
            // Made here, so that a task which cannot be spawned ends the collective as well.
            let aggregate = Aggregate::new(shared.clone(), self.file.clone(), class, index);
            self.file.internals().spawn(index, class, move || aggregate.run());
        }
        let handle = |rank| Collective { rank, file: self.file.clone(), shared: shared.clone(), given: None };
        (0..self.participants).map(handle).collect()
    }
}

/// One participant's part in writing a file together; the participants may be tasks, threads, or tasks on
/// shards.
///
/// Where each of many has small pieces that lie between the pieces of others (the columns of a matrix, the
/// records of a time step), none of them alone can write much at once. All of them call
/// [`write`](Collective::write). When the last one has called, the file's range is divided into as many
/// contiguous parts as there are aggregators. Each aggregator copies the bytes of its part from all
/// participants' pieces and writes them in large aligned writes, several in flight. (MPI calls this two-phase
/// I/O, or collective buffering.)
///
/// ```
/// # use forebay::{Config, Durability, Engine, Open};
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let engine = Engine::start(Config::default())?;
/// let file = engine.open(dir.path().join("matrix"), Open::create()).wait()?;
/// let threads: Vec<_> = file.collective(3).start().into_iter().map(|mut part| {
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
/// **Overlaps.** Where pieces overlap the one of the highest rank is seen, and among those of one participant
/// the one that comes last in its list. The order of the calls has no influence.
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
/// **Dropping** the future of a write does not take the pieces back: the others can still complete it, and
/// this participant's next write first waits for that.
#[must_use = "the others wait for this participant, or end when it is dropped"]
pub struct Collective {
    rank: usize,
    file: File,
    shared: Arc<CollectiveCore>,
    /// The round of this participant's last deposit, until its end was seen.
    given: Option<u64>,
}

impl Collective {
    /// Gives this participant's pieces (offset and bytes, any sizes, in any order, or none). Waits until all
    /// participants have called and all pieces are in the file, synced with the strongest of the
    /// participants' durabilities. Every participant must call it the same number of times.
    ///
    /// The pieces are not copied here, and are dropped when the write completes. Making [`Bytes`] of a `Vec`
    /// or a [`Block`](crate::Block) copies nothing either.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) when a participant is gone;
    /// [`ErrorKind::ArenaExhausted`](crate::ErrorKind::ArenaExhausted) when others hold all I/O memory;
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) past 2^63 bytes, the one error that ends
    /// nothing; the device's, or the first error of the collective.
    pub fn write(
        &mut self,
        pieces: Vec<(u64, Bytes)>,
        durability: Durability,
    ) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("collective", async move {
            for (offset, bytes) in &pieces {
                let end = offset.checked_add(bytes.len() as u64 + 2 * REQUEST_MAX);
                if end.is_none_or(|end| end > i64::MAX as u64) {
                    let note = format!("offset {offset} is beyond what a file can have");
                    let internals = self.file.internals();
                    return Err(internals.error("collective", ErrorKind::InvalidInput, None, Some(note)));
                }
            }
            if self.given.is_some() {
                self.over().await?;
            }
            self.given = Some(self.shared.deposit(&self.file, self.rank, pieces, durability)?);
            self.over().await
        })
    }

    async fn over(&mut self) -> Result<()> {
        let Some(round) = self.given else { return Ok(()) };
        poll_fn(|context| self.shared.poll_over(context, &self.file, round)).await?;
        self.given = None;
        Ok(())
    }

    /// Returns this participant's number, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of participants.
    pub fn participants(&self) -> usize {
        self.shared.participants
    }

    /// Returns the file, for all other calls.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the bytes that all participants gave and the requests sent to the device for them so far.
    pub fn stats(&self) -> CoalesceStats {
        self.shared.lock().stats
    }
}

impl Drop for Collective {
    fn drop(&mut self) {
        // A child of fork(2) has no tasks, and the lock may stay held there for ever.
        if !self.file.internals().is_forked() {
            self.shared.leave(&self.file, self.rank);
        }
    }
}

impl fmt::Debug for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collective")
            .field("file", &self.file)
            .field("rank", &self.rank)
            .field("participants", &self.participants())
            .finish_non_exhaustive()
    }
}
