//! Table descents inside the kernel, for threads that wait for their gets.
//!
//! Such a thread has nothing better to do, so it enters the kernel itself. The program there reads from the
//! first inner node that is not in memory down to the leaf, and the system call returns with the leaf. No
//! shard is woken, and the thread needs no wake-up. A session with the kernel belongs to one thread and
//! serves one table at a time.
//!
//! Nodes that the kernel reads do not come into the cache: it does not return inner nodes, and a leaf is no
//! hotter than the node above it. So a node at which two recent descents began is read in the ordinary way,
//! which puts it into the cache. The kernel is left with nodes that are seldom requested.
//!
//! The kernel's result is never final: [`Lookup::take_leaf`] checks the leaf. The ordinary walk, which
//! checks every node, decides everything that this one cannot.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use forebay_cache::Doorkeeper;
use forebay_kernel::{Descent, EngineKind, LocalWalk, TABLE_KEY_BYTES_MAX, TableDescent};

use crate::cache::{Cache, Pin, Pinning};
use crate::node::UNIT;
use crate::options::Options;
use crate::store::shared::Shared;
use crate::table::{AtLeaf, Found, Lookup};

/// A session's memory: the slots and pages that it shares with the kernel, the ring, and the program.
const SESSION_BYTES: u64 = 64 << 10;

/// The remedy reported where kernel walks are not available.
const REMEDY: &str = "see `forebay doctor` and docs/kernel-walks.md, or leave Options::kernel_walk off";

/// A store's walks inside the kernel.
pub(crate) struct KernelWalks {
    is_wanted: bool,
    /// Identifies the store in the threads' sessions.
    number: u64,
    /// Why there are no kernel walks.
    refused: OnceLock<String>,
    /// The nodes at which recent descents began. `None` only in tests.
    begun: Option<Doorkeeper>,
    /// The memory of threads' sessions, pinned while the sessions live.
    sessions: Mutex<Vec<(Weak<()>, Pin)>>,
    walks: AtomicU64,
    fell_back: AtomicU64,
}

/// A thread's session.
struct Mine {
    walk: LocalWalk<TableDescent>,
    process: u32,
    /// Dropped with the session.
    life: Arc<()>,
    /// The stores that count the session's memory.
    known: Vec<u64>,
}

thread_local! {
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
}

impl KernelWalks {
    pub(crate) fn new(options: &Options, cache_bytes: u64) -> KernelWalks {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        KernelWalks {
            is_wanted: options.kernel_walk,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            refused: OnceLock::new(),
            begun: (!options.kernel_walk_again).then(|| begun(cache_bytes / UNIT as u64)),
            sessions: Mutex::default(),
            walks: AtomicU64::new(0),
            fell_back: AtomicU64::new(0),
        }
    }

    /// Walks to the leaf and searches it, while the calling thread waits in the kernel. Returns `None` if
    /// the ordinary walk has to go on from the lookup's present position.
    pub(crate) fn descend(&self, shared: &Shared, lookup: &mut Lookup) -> Option<Option<Found>> {
        if !self.is_wanted {
            return None;
        }
        let (child, level, key) = lookup.descent()?;
        let again = |begun: &Doorkeeper| begun.note(lookup.table().id().into(), child.position.into());
        let is_hot = self.begun.as_ref().is_some_and(again);
        if is_hot || key.len() > TABLE_KEY_BYTES_MAX {
            return None;
        }
        let table = lookup.table().number();
        let descent = Descent { table, position: child.position, level, key: key.to_vec() };
        let at_leaf = self.at_leaf(shared, lookup, &descent);
        let (count, found) = match at_leaf {
            AtLeaf::Pending(found) => (&self.walks, Some(found)),
            AtLeaf::GoesOn => (&self.walks, None),
            AtLeaf::Undecided => (&self.fell_back, None),
        };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    fn at_leaf(&self, shared: &Shared, lookup: &mut Lookup, descent: &Descent) -> AtLeaf {
        if self.refused.get().is_some() {
            return AtLeaf::Undecided;
        }
        let walked = MINE.try_with(|mine| {
            let Ok(mut mine) = mine.try_borrow_mut() else { return AtLeaf::Undecided };
            // A forked child has its parent's session but none of its memory, so the session must not even
            // be dropped here.
            if mine.as_ref().is_some_and(|mine| mine.process != std::process::id()) {
                std::mem::forget(mine.take());
            }
            self.walk(&mut mine, &shared.cache, lookup, descent).unwrap_or_else(|error| {
                *mine = None;
                // Only the first reason is kept.
                if self.refused.set(error.to_string()).is_ok() {
                    shared.engine.add_degradation("kernel walks", &error.to_string(), REMEDY);
                }
                AtLeaf::Undecided
            })
        });
        walked.unwrap_or(AtLeaf::Undecided)
    }

    /// Runs one walk on the thread's session, which is opened if there is none yet. An error concerns the
    /// session and ends it. A walk that fails decides nothing.
    fn walk(
        &self,
        mine: &mut Option<Mine>,
        cache: &Arc<Cache>,
        lookup: &mut Lookup,
        descent: &Descent,
    ) -> forebay_kernel::Result<AtLeaf> {
        let file = lookup.table().file();
        let mine = match mine {
            Some(mine) => {
                mine.walk.turn_to(file)?;
                mine
            }
            None => {
                // Not the module: it would pin each table and keep compaction from removing it.
                let mut choice = forebay_kernel::Options::default();
                (choice.only, choice.depth) = (Some(EngineKind::BpfLoop), 1);
                let walk = LocalWalk::open_with(file, TableDescent, choice)?;
                let process = std::process::id();
                mine.insert(Mine { walk, process, life: Arc::default(), known: Vec::new() })
            }
        };
        if !mine.known.contains(&self.number) {
            mine.known.push(self.number);
            self.count(&mine.life, cache);
        }
        let mut at_leaf = AtLeaf::Undecided;
        if mine.walk.begin(descent).is_some() {
            mine.walk.run_for_pages(1, |finished, page| {
                if finished.result.is_ok() {
                    at_leaf = lookup.take_leaf(page);
                }
            })?;
        }
        // A table that compaction removes while this thread is elsewhere must not stay on disk because of
        // the session.
        mine.walk.let_go()?;
        Ok(at_leaf)
    }

    /// Counts a session within the budget, and drops those of threads that have ended.
    fn count(&self, life: &Arc<()>, cache: &Arc<Cache>) {
        let pin = cache.must_pin(Pinning::Tables, SESSION_BYTES);
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|(life, _)| life.strong_count() > 0);
        sessions.push((Arc::downgrade(life), pin));
    }

    /// Returns the number of walks, the number that fell back, and why there are no walks.
    pub(crate) fn stats(&self) -> (u64, u64, Option<String>) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.walks), count(&self.fell_back), self.refused.get().cloned())
    }
}

/// The range for the number of descents that are remembered.
const DESCENTS: std::ops::RangeInclusive<u64> = 64..=8192;

/// Returns an empty record of the nodes at which recent descents began, of a cache of `nodes` nodes. It remembers a quarter
/// of them: half of the cache has leaves, and a node that came back later than that would no longer be there.
fn begun(nodes: u64) -> Doorkeeper {
    Doorkeeper::new((nodes / 4).clamp(*DESCENTS.start(), *DESCENTS.end()))
}
