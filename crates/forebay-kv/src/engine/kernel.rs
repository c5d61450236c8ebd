//! Table descents inside the kernel, for threads that wait for their gets.
//!
//! Such a thread has nothing better to do, so it enters the kernel itself. The program there reads from the
//! first inner node that is not in memory down to the leaf, and the system call returns with the leaf. No
//! shard is woken, and the thread needs no wake-up. The lookups of a `multi_get` descend together, each in
//! its own table. A session with the kernel belongs to one thread, and keeps no table open.
//!
//! Nodes that the kernel reads are not inserted into the cache: it does not return inner nodes, and a leaf is no hotter than its
//! parent. So a node from which two recent descents started is read the ordinary way, which caches it. The kernel is left with
//! nodes that are seldom requested.
//!
//! The kernel's result is never final: [`Lookup::take_leaf`] checks the leaf. The ordinary walk, which checks every node, decides
//! every other case.

mod choice;
mod session;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Instant;

use forebay::{Class, File};
use forebay_cache::Doorkeeper;
use forebay_kernel::{Descent, TABLE_KEY_BYTES_MAX};

use self::choice::{Choice, Kind};
use self::session::Sessions;
use super::shared::StoreCore;
use super::stats::KernelStats;
use crate::error::Result;
use crate::node::{Child, LEAF, UNIT};
use crate::options::{KernelWalk, Options};
use crate::table::{AtLeaf, Hit, Lookup, OpenTables, walk_all};

/// A lookup's result; `None` if the block was evicted or found no memory.
type Answer = Option<Option<Hit>>;

/// The result of a batch of descents.
struct Batch<T> {
    decided: Vec<(T, Answer)>,
    /// Lookups that the ordinary walk has to continue.
    undecided: Vec<(T, Lookup)>,
    /// The session was open before.
    is_warm: bool,
}

/// A store's walks inside the kernel.
pub(crate) struct KernelWalks {
    wanted: KernelWalk,
    /// The ways of lone gets and of batches, where the store chooses.
    gets: Choice,
    batches: Choice,
    sessions: Sessions,
    /// The nodes from which recent descents started: of lone gets, and of batches. `None` only in tests.
    begun: Option<Doorkeeper>,
    begun_together: Option<Doorkeeper>,
    walks: AtomicU64,
    fell_back: AtomicU64,
}

/// The next step of a lone lookup.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// In the kernel.
    is_inside: bool,
    /// The start time, if the lookup is timed.
    begun: Option<Instant>,
}

impl KernelWalks {
    pub(crate) fn new(options: &Options, cache_bytes: u64) -> KernelWalks {
        let is_test = options.kernel_walk_again;
        KernelWalks {
            wanted: options.kernel_walk,
            gets: Choice::new(Kind::Get),
            batches: Choice::new(Kind::Batch),
            sessions: Sessions::new(options.kernel_walk, is_test),
            begun: (!is_test).then(|| begun(cache_bytes, CACHE_PART)),
            begun_together: (!is_test).then(|| begun(cache_bytes, CACHE_PART_TOGETHER)),
            walks: AtomicU64::new(0),
            fell_back: AtomicU64::new(0),
        }
    }

    /// Returns whether the kernel could serve this lookup, whether or not it does: it needs an inner node that need not be cached,
    /// by the descents that `begun` remembers.
    fn suits(lookup: &Lookup, begun: Option<&Doorkeeper>) -> bool {
        let is_known = |child: Child| {
            let (table, position) = (lookup.table().id().into(), child.position.into());
            begun.is_some_and(|begun| begun.note(table, position))
        };
        matches!(start(lookup), Some((child, level)) if level != LEAF && !is_known(child))
    }

    /// Returns whether a lookup that lacks only its leaf joins others in the kernel: a read there costs less than one more message
    /// to a shard. A leaf that was read lately is read the ordinary way, so that the cache keeps it.
    fn rides(&self, lookup: &Lookup) -> bool {
        let is_known = |leaf: Child| self.begun.is_some() && lookup.note_leaf(leaf);
        matches!(start(lookup), Some((child, LEAF)) if !is_known(child))
    }

    /// Chooses the way of `lookups` that suit the kernel, for a thread that waits for them. Returns whether it is the kernel, and
    /// whether their time counts.
    fn choose(&self, choice: &Choice, lookups: u32) -> (bool, bool) {
        match self.wanted {
            KernelWalk::Never => (false, false),
            KernelWalk::Always => (true, false),
            KernelWalk::WhereCheaper if self.sessions.is_refused() => (false, false),
            KernelWalk::WhereCheaper => {
                let wants = choice.turn_is_inside();
                let may = self.sessions.may_enter(lookups, choice.is_kernel());
                // A thread that may not use the way whose turn it is yields no sample of that way.
                (wants && may, !wants || may)
            }
        }
    }

    /// Chooses the way of a lone lookup, for a thread that waits for it.
    pub(crate) fn plan(&self, lookup: &Lookup) -> Plan {
        if self.wanted == KernelWalk::Never || !KernelWalks::suits(lookup, self.begun.as_ref()) {
            return Plan::ORDINARY;
        }
        let (is_inside, counts) = self.choose(&self.gets, 1);
        Plan { is_inside, begun: counts.then(Instant::now) }
    }

    /// Walks to the leaf in the table's open file and searches it, while the calling thread waits in the kernel. Returns `None` if
    /// the ordinary walk has to continue from the lookup's present position.
    pub(crate) fn descend(
        &self,
        shared: &StoreCore,
        lookup: &mut Lookup,
        file: &File,
        plan: &mut Plan,
    ) -> Option<Option<Hit>> {
        let descent = descent_of(lookup).filter(|_| plan.is_inside)?;
        let mut at_leaf = AtLeaf::Undecided;
        let starts = [(file, descent)];
        let is_warm = self.sessions.run(shared, starts, |_, page| at_leaf = lookup.take_leaf(page));
        plan.begun = plan.begun.filter(|_| is_warm);
        self.count(at_leaf)
    }

    /// Counts the time of a lone lookup, now that its table was searched.
    pub(crate) fn took(&self, plan: Plan) {
        if let Some(begun) = plan.begun {
            self.gets.note(plan.is_inside, begun.elapsed(), 1);
        }
    }

    fn count(&self, at_leaf: AtLeaf) -> Option<Option<Hit>> {
        let (count, found) = match at_leaf {
            AtLeaf::Done(found) => (&self.walks, Some(found)),
            AtLeaf::GoesOn => (&self.walks, None),
            AtLeaf::Undecided => (&self.fell_back, None),
        };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Runs lookups in any tables to their ends as [`walk_all`] does, for a thread that waits for them. Lookups that suit the
    /// kernel descend there together, joined by those that lack only their leaf, while the shards read what the others need.
    ///
    /// # Errors
    /// As [`walk_all`].
    pub(crate) async fn walk_all<'k, T>(
        &self,
        shared: &StoreCore,
        lookups: Vec<(T, Lookup)>,
        files: &OpenTables,
        class: Class,
        key: impl Fn(&T) -> &'k [u8],
    ) -> Result<Vec<(T, Answer)>> {
        if self.wanted == KernelWalk::Never {
            return walk_all(lookups, files, class, key).await;
        }
        let count = lookups.len() as u32;
        let (mut inside, mut others): (Vec<_>, Vec<_>) = lookups
            .into_iter()
            .partition(|(_, lookup)| KernelWalks::suits(lookup, self.begun_together.as_ref()));
        let suited = inside.len() as u32;
        let (is_inside, counts) =
            if suited > 0 { self.choose(&self.batches, suited) } else { (false, false) };
        // Where most lookups use the same way in any case, the time says little about the kernel.
        let mut begun = (counts && suited * 2 >= count).then(Instant::now);
        let found = if is_inside {
            let (riding, others): (Vec<_>, Vec<_>) =
                others.into_iter().partition(|(_, lookup)| self.rides(lookup));
            inside.extend(riding);
            let mut others = pin!(walk_all(others, files, class, &key));
            // The shards start now.
            let early = poll_fn(|context| Poll::Ready(polled(others.as_mut().poll(context)))).await;
            let Batch { mut decided, undecided, is_warm } = self.descend_all(shared, inside, files);
            begun = begun.filter(|_| is_warm);
            let undecided = pin!(walk_all(undecided, files, class, &key));
            let (others, undecided) = both(others, early, undecided).await;
            decided.extend(others?);
            decided.extend(undecided?);
            decided
        } else {
            others.extend(inside);
            walk_all(others, files, class, key).await?
        };
        if let Some(begun) = begun {
            self.batches.note(is_inside, begun.elapsed(), count);
        }
        Ok(found)
    }

    /// Walks lookups to their leaves together, while the calling thread waits in the kernel.
    fn descend_all<T>(
        &self,
        shared: &StoreCore,
        mut lookups: Vec<(T, Lookup)>,
        files: &OpenTables,
    ) -> Batch<T> {
        let opened: Vec<&File> = lookups
            .iter()
            .filter_map(|(_, lookup)| files.get(&lookup.table().id()))
            .map(|file| &**file)
            .collect();
        let descents: Vec<Descent> = lookups.iter().filter_map(|(_, lookup)| descent_of(lookup)).collect();
        let mut leaves: Vec<AtLeaf> = lookups.iter().map(|_| AtLeaf::Undecided).collect();
        let mut is_warm = true;
        // All of them suited the kernel, so each has a descent; and its table is open.
        if descents.len() == lookups.len() && opened.len() == lookups.len() {
            let starts = opened.into_iter().zip(descents);
            is_warm = self.sessions.run(shared, starts, |number, page| {
                if let (Some((_, lookup)), Some(leaf)) = (lookups.get_mut(number), leaves.get_mut(number)) {
                    *leaf = lookup.take_leaf(page);
                }
            });
        }
        let mut batch = Batch { decided: Vec::with_capacity(lookups.len()), undecided: Vec::new(), is_warm };
        for ((name, lookup), leaf) in lookups.into_iter().zip(leaves) {
            match self.count(leaf) {
                Some(found) => batch.decided.push((name, Some(found))),
                None => batch.undecided.push((name, lookup)),
            }
        }
        batch
    }

    /// Returns the counters of walks.
    pub(crate) fn stats(&self) -> KernelStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let is_chosen = |choice: &Choice| match self.wanted {
            KernelWalk::Never => false,
            _ if self.sessions.is_refused() => false,
            KernelWalk::Always => true,
            KernelWalk::WhereCheaper => choice.is_kernel(),
        };
        KernelStats {
            walks: count(&self.walks),
            fell_back: count(&self.fell_back),
            refused: self.sessions.why_refused(),
            gets: is_chosen(&self.gets),
            multi_gets: is_chosen(&self.batches),
        }
    }
}

impl Plan {
    const ORDINARY: Plan = Plan { is_inside: false, begun: None };
}

/// Returns the node from which the kernel can continue a lookup, with its level.
fn start(lookup: &Lookup) -> Option<(Child, u8)> {
    let (child, level, key) = lookup.descent()?;
    (key.len() <= TABLE_KEY_BYTES_MAX).then_some((child, level))
}

/// The descent that a lookup needs next.
fn descent_of(lookup: &Lookup) -> Option<Descent> {
    let (child, level, key) = lookup.descent()?;
    Some(Descent { table: lookup.table().number(), position: child.position, level, key: key.to_vec() })
}

fn polled<T>(poll: Poll<T>) -> Option<T> {
    match poll {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Waits for both futures. The first is not polled again if it has ended already.
async fn both<A, B>(
    mut first: Pin<&mut impl Future<Output = A>>,
    mut ended: Option<A>,
    mut second: Pin<&mut impl Future<Output = B>>,
) -> (A, B) {
    let mut other = None;
    poll_fn(|context| {
        if ended.is_none() {
            ended = polled(first.as_mut().poll(context));
        }
        if other.is_none() {
            other = polled(second.as_mut().poll(context));
        }
        match (ended.take(), other.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (first, second) => {
                (ended, other) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}

/// The range for the number of descents that are remembered.
const DESCENTS: std::ops::RangeInclusive<u64> = 64..=8192;

/// Number of cached nodes for each remembered lone descent: leaves fill half of the cache, and a node that is requested again later
/// than that would no longer be cached.
const CACHE_PART: u64 = 4;

/// The same for the descents of batches. A node that a batch reads in the kernel costs less than one that it reads in a shard, so
/// more of them are left to the kernel. With half of theirs, lone gets of equally likely keys needed 1.08 times the instructions of
/// the ordinary way.
const CACHE_PART_TOGETHER: u64 = 16;

/// Returns an empty record of the nodes from which recent descents started, for a cache of `cache_bytes`.
fn begun(cache_bytes: u64, part: u64) -> Doorkeeper {
    let nodes = cache_bytes / UNIT as u64;
    Doorkeeper::new((nodes / part).clamp(*DESCENTS.start(), *DESCENTS.end()))
}
