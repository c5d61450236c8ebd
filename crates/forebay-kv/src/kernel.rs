//! Table descents inside the kernel, for threads that wait for their gets.
//!
//! Such a thread has nothing better to do, so it enters the kernel itself: the program there reads from the first inner node
//! that is not in memory down to the leaf, and the system call returns with that. No shard is woken, and nobody wakes the
//! thread. A session with the kernel belongs to one thread, and serves one table at a time.
//!
//! What the kernel reads does not come into the cache: it keeps the inner nodes to itself, and a leaf is no hotter than the
//! node above it. So a node at which two descents of late begin is read in the ordinary way ([`Seen`]), which puts it there, and
//! the kernel is left with those that are seldom asked for.
//!
//! What the kernel finds is never the last word: [`Lookup::take_leaf`] checks the leaf, and the ordinary walk, which checks
//! every node, decides all that this one cannot.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use forebay_kernel::{Descent, EngineKind, LocalWalk, TABLE_KEY_BYTES_MAX, TableDescent};

use crate::cache::{Cache, Pin, Pinning};
use crate::node::UNIT;
use crate::options::Options;
use crate::store::shared::Shared;
use crate::table::{AtLeaf, Found, Lookup};

mod seen;

use seen::Seen;

/// A session's memory: the slots and pages that it shares with the kernel, the ring, the program.
const SESSION_BYTES: u64 = 64 << 10;

/// What helps where there are none.
const REMEDY: &str = "see `forebay doctor` and docs/kernel-walks.md, or leave Options::kernel_walk off";

/// A store's walks inside the kernel.
pub(crate) struct KernelWalks {
    is_wanted: bool,
    /// Tells the store from others, for the threads' sessions.
    number: u64,
    /// Why there are none.
    refused: OnceLock<String>,
    /// `None`: only in tests.
    seen: Option<Seen>,
    /// The memory of threads' sessions, for as long as these live.
    sessions: Mutex<Vec<(Weak<()>, Pin)>>,
    walks: AtomicU64,
    fell_back: AtomicU64,
}

/// What a thread has.
struct Mine {
    walk: LocalWalk<TableDescent>,
    process: u32,
    /// Gone with the session.
    life: Arc<()>,
    /// The stores that count its memory.
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
            seen: (!options.kernel_walk_again).then(|| Seen::new(cache_bytes / UNIT as u64)),
            sessions: Mutex::default(),
            walks: AtomicU64::new(0),
            fell_back: AtomicU64::new(0),
        }
    }

    /// Walks to the leaf and looks into it, while the calling thread waits in the kernel. `None`: the ordinary walk goes
    /// on from where the lookup is now.
    pub(crate) fn descend(&self, shared: &Shared, lookup: &mut Lookup) -> Option<Option<Found>> {
        if !self.is_wanted {
            return None;
        }
        let (child, level, key) = lookup.descent()?;
        let is_hot = self.seen.as_ref().is_some_and(|seen| seen.again(lookup.table().id(), child.position));
        if is_hot || key.len() > TABLE_KEY_BYTES_MAX {
            return None;
        }
        let descent =
            Descent { table: lookup.table().id(), position: child.position, level, key: key.to_vec() };
        let at_leaf = self.at_leaf(shared, lookup, &descent);
        let (count, found) = match at_leaf {
            AtLeaf::Answer(found) => (&self.walks, Some(found)),
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
            // A forked child has its parent's session and none of its memory, so not even its end.
            if mine.as_ref().is_some_and(|mine| mine.process != std::process::id()) {
                std::mem::forget(mine.take());
            }
            self.walk(&mut mine, &shared.cache, lookup, descent).unwrap_or_else(|error| {
                *mine = None;
                // The first reason stays.
                if self.refused.set(error.to_string()).is_ok() {
                    shared.engine.add_degradation("kernel walks", &error.to_string(), REMEDY);
                }
                AtLeaf::Undecided
            })
        });
        walked.unwrap_or(AtLeaf::Undecided)
    }

    /// One walk on the thread's session, which is opened if there is none yet. An error is the session's, and the end of
    /// it; a walk that fails decides nothing.
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
                // Not the module, which would pin each table, and keep compaction from removing it.
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
        // A table that compaction removes while this thread is elsewhere must not stay on the disk for that.
        mine.walk.let_go()?;
        Ok(at_leaf)
    }

    /// Counts a session within the budget, and no longer those of threads that have ended.
    fn count(&self, life: &Arc<()>, cache: &Arc<Cache>) {
        let pin = cache.must_pin(Pinning::Tables, SESSION_BYTES);
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|(life, _)| life.strong_count() > 0);
        sessions.push((Arc::downgrade(life), pin));
    }

    /// Walks, those that fell back, and why there are none.
    pub(crate) fn stats(&self) -> (u64, u64, Option<String>) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.walks), count(&self.fell_back), self.refused.get().cloned())
    }
}
