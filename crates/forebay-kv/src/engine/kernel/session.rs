//! The threads' sessions with the kernel.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use forebay::File;
use forebay_kernel::{Descent, EngineKind, LocalWalk, TableDescent};

use crate::cache::{Cache, Pin, PinPurpose};
use crate::engine::shared::StoreCore;
use crate::options::KernelWalk;

/// Maximum descents of one thread in flight.
const BATCH_DEPTH: u32 = 16;

/// Lookups that suit the kernel after which a thread may have a session, where the store chooses. Opening a session costs as many
/// instructions as some thousand lookups, because the verifier looks at the program.
const EARNED: u32 = 1 << 15;

/// All sessions together use at most the cache's memory divided by this.
const CACHE_SHARE: u64 = 4;

/// Sessions that are opened for trials, while the ordinary way is chosen.
const TRIAL_SESSIONS: usize = 2;

/// The remedy reported where kernel walks are not available.
const REMEDY: &str = "see `forebay doctor` and docs/kernel-walks.md, or leave Options::kernel_walk off";

/// A store's part in the sessions of all threads.
pub(super) struct Sessions {
    /// Identifies the store in the threads' sessions.
    number: u64,
    /// The program demanded the kernel, so that its lack is a degradation.
    is_demanded: bool,
    /// See [`EARNED`].
    earned: u32,
    /// Why a thread has no session: the first reason.
    why: OnceLock<String>,
    /// No thread of the process had one when one could not be opened.
    is_refused: AtomicBool,
    /// The memory of threads' sessions, pinned while the sessions live.
    open: Mutex<Vec<(Weak<Life>, Pin)>>,
}

/// The session of a thread, if it has one.
struct Mine {
    session: Option<Session>,
    refusal: Option<Refusal>,
    /// Lookups that could have used the kernel.
    earned: u32,
}

/// A session that a thread could not open: it does not try again, for any store.
struct Refusal {
    depth: u32,
    why: String,
}

struct Session {
    walk: LocalWalk<TableDescent>,
    depth: u32,
    process: u32,
    /// Dropped with the session.
    life: Arc<Life>,
    /// The stores that count the session's memory.
    known: Vec<u64>,
}

/// Sessions of all threads, of all stores.
static LIVING: AtomicUsize = AtomicUsize::new(0);

/// Lives as long as a session.
struct Life;

impl Life {
    fn begin() -> Arc<Life> {
        LIVING.fetch_add(1, Ordering::Relaxed);
        Arc::new(Life)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        LIVING.fetch_sub(1, Ordering::Relaxed);
    }
}

thread_local! {
    static MINE: RefCell<Mine> = const { RefCell::new(Mine { session: None, refusal: None, earned: 0 }) };
}

/// Returns the depth of a session for this many descents.
fn depth_of(descents: usize) -> u32 {
    if descents > 1 { BATCH_DEPTH } else { 1 }
}

/// Returns a session's memory: the slots and pages that it shares with the kernel, the ring, and the program.
fn session_bytes(depth: u32) -> u64 {
    if depth > 1 { 128 << 10 } else { 64 << 10 }
}

impl Sessions {
    pub(super) fn new(wanted: KernelWalk, is_test: bool) -> Sessions {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Sessions {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            is_demanded: wanted == KernelWalk::Always,
            earned: if is_test { 0 } else { EARNED },
            why: OnceLock::new(),
            is_refused: AtomicBool::new(false),
            open: Mutex::default(),
        }
    }

    /// Returns whether no thread of this store tries to have a session.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Returns why a thread has no session.
    pub(super) fn why_refused(&self) -> Option<String> {
        self.why.get().cloned()
    }

    /// Returns whether the calling thread may use the kernel for this many lookups, in a store that chooses: it has a session, or
    /// enough of its lookups have waited to earn one.
    pub(super) fn may_enter(&self, lookups: u32, is_chosen: bool) -> bool {
        let may = MINE.try_with(|mine| {
            let Ok(mut mine) = mine.try_borrow_mut() else { return false };
            let depth = depth_of(lookups as usize);
            mine.earned = mine.earned.saturating_add(lookups);
            if mine.has_session(depth) {
                return true;
            }
            if let Some(why) = mine.why_refused(depth) {
                if self.why.get().is_none() {
                    self.note_refused(&mine, why);
                }
                return false;
            }
            mine.session.is_some()
                || mine.earned >= self.earned && (is_chosen || self.living().len() < TRIAL_SESSIONS)
        });
        may.unwrap_or(false)
    }

    /// Runs descents on the thread's session, which is opened first if needed; passes each leaf with its descent's index to `each`.
    /// A descent that fails decides nothing. Returns whether all ran on a session that was open before.
    pub(super) fn run<'f>(
        &self,
        shared: &StoreCore,
        starts: impl IntoIterator<Item = (&'f File, Descent), IntoIter: ExactSizeIterator>,
        each: impl FnMut(usize, &[u8]),
    ) -> bool {
        let starts = starts.into_iter();
        if self.is_refused() {
            return false;
        }
        let ran = MINE.try_with(|mine| {
            let Ok(mut mine) = mine.try_borrow_mut() else { return false };
            // A forked child has its parent's session but none of its memory, and opens its own. It ends nothing of its parent's,
            // whichever call created it: the walk itself knows only of fork(3).
            if mine.session.as_ref().is_some_and(|session| session.process != std::process::id()) {
                std::mem::forget(mine.session.take());
            }
            self.run_on(&mut mine, shared, starts, each).unwrap_or_else(|error| {
                self.refuse(&mine, shared, &error.to_string());
                false
            })
        });
        ran.unwrap_or(false)
    }

    fn run_on<'f>(
        &self,
        mine: &mut Mine,
        shared: &StoreCore,
        mut starts: impl ExactSizeIterator<Item = (&'f File, Descent)>,
        mut each: impl FnMut(usize, &[u8]),
    ) -> forebay_kernel::Result<bool> {
        let depth = depth_of(starts.len());
        let Some(first) = starts.next() else { return Ok(true) };
        let mut is_warm = true;
        if !mine.has_session(depth) {
            if let Some(why) = mine.why_refused(depth) {
                if self.why.get().is_none() {
                    self.refuse(mine, shared, why);
                }
                return Ok(false);
            }
            if !self.has_room(depth, &shared.cache) {
                return Ok(false);
            }
            is_warm = false;
            let opened = Session::open(first.0, depth);
            // A session for lone gets works on without memory for a batch session.
            if let Err(error) = &opened {
                mine.refusal = Some(Refusal { depth, why: error.to_string() });
            }
            mine.session = Some(opened?);
        }
        let Some(session) = &mut mine.session else { return Ok(false) };
        if !session.known.contains(&self.number) {
            if !self.has_room(session.depth, &shared.cache) {
                return Ok(false);
            }
            session.known.push(self.number);
            self.count(session, &shared.cache);
        }
        let all = std::iter::once(first).chain(starts);
        let ran = session.walk.run_on(all, |finished, page| {
            if finished.result.is_ok() {
                each(finished.number as usize, page);
            }
        });
        if ran.is_err() {
            mine.session = None;
        }
        ran.map(|()| is_warm)
    }

    /// Notes that a thread lacks a session, also if it was refused to another store before. A program that
    /// demanded the kernel finds it in the engine's health.
    fn refuse(&self, mine: &Mine, shared: &StoreCore, why: &str) {
        if self.note_refused(mine, why) && self.is_demanded {
            shared.engine.add_degradation("kernel walks", why, REMEDY);
        }
    }

    /// Notes that a thread lacks a session. Other threads keep theirs; after a failure without any session no thread tries again.
    /// Returns whether this reason is the first; later reasons are dropped.
    fn note_refused(&self, mine: &Mine, why: &str) -> bool {
        if mine.session.is_none() && LIVING.load(Ordering::Relaxed) == 0 {
            self.is_refused.store(true, Ordering::Relaxed);
        }
        self.why.set(why.to_owned()).is_ok()
    }

    /// Returns whether the budget allows one more session: hundreds of threads, such as those of a pool for blocking calls, must
    /// not use up the whole cache. The other threads read the ordinary way.
    fn has_room(&self, depth: u32, cache: &Cache) -> bool {
        let all: u64 = self.living().iter().map(|(_, pin)| pin.bytes()).sum();
        all + session_bytes(depth) <= cache.bytes_max() / CACHE_SHARE
    }

    /// Counts a session within the budget, and drops those of threads that have ended.
    fn count(&self, session: &Session, cache: &Arc<Cache>) {
        let pin = cache.must_pin(PinPurpose::Tables, session_bytes(session.depth));
        self.living().push((Arc::downgrade(&session.life), pin));
    }

    /// Returns the sessions of threads that have not ended.
    fn living(&self) -> MutexGuard<'_, Vec<(Weak<Life>, Pin)>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(life, _)| life.strong_count() > 0);
        open
    }
}

impl Mine {
    fn has_session(&self, depth: u32) -> bool {
        self.session.as_ref().is_some_and(|session| session.depth >= depth)
    }

    /// Returns why a session of this depth is not tried again.
    fn why_refused(&self, depth: u32) -> Option<&str> {
        self.refusal.as_ref().filter(|refusal| depth >= refusal.depth).map(|refusal| refusal.why.as_str())
    }
}

impl Session {
    fn open(file: &File, depth: u32) -> forebay_kernel::Result<Session> {
        // Not the module: it would pin each table and keep compaction from removing it.
        let choice = forebay_kernel::Options::new().only(EngineKind::BpfLoop).depth(depth);
        let mut walk = LocalWalk::open_with(file, TableDescent, choice)?;
        // Each descent has its own file. A table that compaction removes must not stay on disk because of the session.
        walk.let_go()?;
        Ok(Session { walk, depth, process: std::process::id(), life: Life::begin(), known: Vec::new() })
    }
}
