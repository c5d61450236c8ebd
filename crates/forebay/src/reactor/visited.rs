//! Visited shards: shards without a thread, run by the threads that ask them.
//!
//! A task of a Tokio runtime that reads would cost two changes of threads on a file's home shard. So each worker of the runtime has
//! its own ring: a [`Shard`] like any other, with an op table, a driver, device queues and a cache of I/O memory, behind a lock.
//! Its driver is a ring of io_uring or, where the kernel refuses that, a context of native AIO (`driver/aio.rs`); both are called
//! rings here. The task enters it, stages its operation, submits it and handles completions. An operation that completes within the
//! submitting call is ready in the first poll. For the others the runtime's own poller watches the ring's descriptor
//! (`runtime.rs`).
//!
//! Rules:
//! - The lock is tried, never waited for (`base/try_lock.rs`). A task that finds it held uses the file's home shard; a notice
//!   leaves a mark, and the holder looks again before it leaves.
//! - No waker runs under the lock: wake-ups are collected (`base/wakes.rs`) and happen after it.
//! - A visited shard is never the thread's current shard: it has no tasks, and a walk's step, which does run under the lock, starts
//!   its own operations elsewhere and may not wait. A panic of a step ends only its walk.
//! - Nothing depends on a later visitor. The inbox of a visited shard wakes shard 0, which then visits (`watch.rs`). Shard 0 also
//!   looks every 10 ms at rings with operations that no thread visited meanwhile: a runtime that was dropped, or that is not driven,
//!   keeps no task waiting for ever.
//! - It ends with the last shard of the engine (`ending.rs`).

mod begin;
mod choice;
mod gathering;
#[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
mod interface;
#[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
mod runtime;
#[cfg(feature = "_sim")]
mod simulated;
mod takeover;
mod watch;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;

use atomic_waker::AtomicWaker;

use crate::base::fork::Origin;
use crate::base::priority::Priority;
use crate::base::try_lock::TryLock;
use crate::base::wakes;
use crate::base::watch_flag::WatchFlag;
use crate::driver::{Driver, WakeHandle};
use crate::io::config::{Config, WorkerRings};
use crate::io::host::Host;
use crate::memory::arena::Aside;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::shard::inbox::Inbox;
use crate::reactor::shard::{self, ExitState, Shard};

pub(crate) use begin::{OpStart, begin_batch, begin_op, begin_walks};
#[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
pub(crate) use interface::Interface;
#[cfg(feature = "_sim")]
pub use simulated::InterruptedVisit;
pub(crate) use watch::visit_all;

/// A visitor that finds more to do repeats at most this often before it leaves the rest to shard 0.
const LOOKS_MAX: u32 = 4;

/// The most visited shards of an engine.
const VISITED_MAX: usize = 16;
/// Shards and visited shards together: the schedulers' masks have a bit for each.
const SHARDS_MAX: usize = 64;
/// The most visited shards of an engine in a simulated world.
const SIMULATED_MAX: usize = 3;

thread_local! {
    /// Wakers collected by this thread's visits, kept for its capacity.
    static WOKEN: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// A shard without a thread; see the module's documentation.
pub struct VisitedShard {
    pub(crate) inbox: Arc<Inbox>,
    /// The inbox of shard 0, which visits when asked.
    bell: Arc<Inbox>,
    /// A duplicate of the ring's descriptor, or of the event descriptor that a context of AIO signals.
    #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
    descriptor: OnceLock<std::os::fd::OwnedFd>,
    engine: Weak<EngineShared>,
    lock: TryLock,
    seat: Seat,
    /// Operations that have not completed, as the last visitor left it.
    load: AtomicU32,
    /// Counts visits, so that shard 0 sees which rings no thread visits.
    visits: AtomicU64,
    /// Whether the last operation that was submitted immediately also completed immediately.
    is_inline: AtomicBool,
    /// Whether operations that would complete immediately wait for more.
    gathering: gathering::GatherController,
    /// Operations are staged, and the attendant was asked to submit them.
    flush_asked: AtomicBool,
    /// The task of the runtime that watches the ring's descriptor; in a simulated world the world's own.
    attendant: AtomicWaker,
    /// Completions waited here for shard 0: the runtime is not driven at the moment. New operations are sent elsewhere until its
    /// attendant is polled again.
    is_neglected: AtomicBool,
    /// Whether a runtime has it.
    #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
    leased: AtomicBool,
    /// The earliest time at which shard 0 will visit for an operation's turn; 0 if unset.
    timer_ns: AtomicU64,
    /// Set once the engine's end has removed the shard.
    over: AtomicBool,
    origin: Origin,
    /// The engine's end no longer waits for the visitor that is inside: the visitor ends the shard when it leaves.
    is_abandoned: AtomicBool,
}

crate::_debug_parts!(VisitedShard, |visited_shard| index: visited_shard.inbox.index);

/// The contents that the lock protects.
struct Seat {
    shard: RefCell<Option<Box<Shard>>>,
    cache: Cell<Aside>,
}

// SAFETY: everything in the seat is accessed by the lock's holder only, and the lock orders one holder after the other. The shard
// itself is bound to no thread: its driver has a ring or a context that any thread may enter, it has no tasks (whose futures need
// not be Send), and its wakers, cells and files are Send. A simulated driver is its world's thread's alone: operations on other
// threads fail before they get here, and the shard is removed at the engine's end, in the world. Its cache of memory is removed
// from the thread before the lock is released.
unsafe impl Send for Seat {}
// SAFETY: as above.
unsafe impl Sync for Seat {}

impl VisitedShard {
    /// Makes a shard over `driver` without a thread.
    fn new(engine: &Arc<EngineShared>, index: usize, driver: Driver) -> Arc<VisitedShard> {
        let inbox = Arc::new(Inbox::new(index, engine.config.inbox_depth));
        let bell = engine.inboxes[0].clone();
        let asked = bell.clone();
        let wake = WakeHandle::Call(Arc::new(move || asked.ask_visit(index)));
        // The cache belongs to the shard and not to this thread.
        let outside = Aside::NOTHING.swap();
        let shard = shard::new_shard(inbox.clone(), engine, driver, wake, engine.clock());
        let cache = outside.swap();
        Arc::new(VisitedShard {
            inbox,
            bell,
            #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
            descriptor: OnceLock::new(),
            engine: Arc::downgrade(engine),
            lock: TryLock::held(),
            seat: Seat { shard: RefCell::new(Some(shard)), cache: Cell::new(cache) },
            load: AtomicU32::new(0),
            visits: AtomicU64::new(0),
            is_inline: AtomicBool::new(true),
            gathering: gathering::GatherController::new(),
            flush_asked: AtomicBool::new(false),
            attendant: AtomicWaker::new(),
            is_neglected: AtomicBool::new(false),
            #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
            leased: AtomicBool::new(true),
            timer_ns: AtomicU64::new(0),
            over: AtomicBool::new(false),
            origin: engine.origin,
            is_abandoned: AtomicBool::new(false),
        })
    }

    #[inline]
    pub(crate) fn uid(&self) -> u32 {
        self.inbox.uid
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Handles completions and everything else that is ready, or leaves that to the thread that is inside.
    pub fn visit(&self) {
        // A runtime that continues in a forked child drives its attendants there, and the parent's ring is not inherited.
        if self.origin.is_elsewhere() {
            return;
        }
        if self.lock.try_lock_or_mark() {
            self.stay(|shard| shard.visit());
        }
    }

    /// Runs `act` inside, if no other thread is there, and then leaves the shard as a visit does. `None` if one is, or if the shard
    /// has ended.
    #[inline]
    fn enter<T>(&self, act: impl FnOnce(&Shard) -> T) -> Option<T> {
        if self.lock.try_lock_briefly() { self.stay(act) } else { None }
    }

    /// Runs `act` with the lock held, does the remaining work, releases the lock and wakes.
    #[inline]
    fn stay<T>(&self, act: impl FnOnce(&Shard) -> T) -> Option<T> {
        // A thread that ends may have lost the list already.
        let mut woken = WOKEN.try_with(RefCell::take).unwrap_or_default();
        let (result, left) = wakes::collect(&mut woken, || {
            let (result, left) = self.inside(act);
            (result, self.release(left))
        });
        self.after(left, woken);
        result
    }

    #[inline]
    fn release(&self, mut left: ExitState) -> ExitState {
        // Another thread may have requested a look and left. This one makes it once, and leaves the next one to shard 0.
        let asks_shard = left.asks_shard;
        let more = self.lock.leave(|| left = self.look_again());
        left.asks_shard |= asks_shard | more;
        left
    }

    #[cold]
    fn look_again(&self) -> ExitState {
        if self.is_abandoned.load(Ordering::Acquire) {
            self.end_late();
            return ExitState::default();
        }
        self.inside(Shard::visit).1
    }

    /// Wakes, and has done what is left for others.
    #[inline]
    fn after(&self, left: ExitState, mut woken: Vec<Waker>) {
        if !woken.is_empty() && wakes::wake_all(&mut woken) {
            self.report_waker();
        }
        let _ = WOKEN.try_with(|kept| kept.replace(woken));
        if left.staged {
            self.ask_flush();
        }
        if left.asks_shard {
            self.ask_shard();
        }
        if let Some(at_ns) = left.at_ns {
            watch::visit_at(self, at_ns);
        }
    }

    /// Runs `act` on the shard with its memory, and then the work that arrived meanwhile. The lock is held before and after.
    #[inline]
    fn inside<T>(&self, act: impl FnOnce(&Shard) -> T) -> (Option<T>, ExitState) {
        let seat = self.seat.shard.borrow();
        let Some(shard) = seat.as_deref() else { return (None, ExitState::default()) };
        let outside = self.seat.cache.replace(Aside::NOTHING).swap();
        let visit = || {
            shard.inbox().awake();
            let result = act(shard);
            let mut looks = 0;
            // A later notice finds the shard asleep and the lock held, and leaves a mark.
            while !shard.inbox().settles() {
                if looks == LOOKS_MAX {
                    return (result, ExitState { asks_shard: true, ..shard.leaving() });
                }
                looks += 1;
                shard.inbox().awake();
                shard.visit();
            }
            (result, shard.leaving())
        };
        let visited = catch_unwind(AssertUnwindSafe(visit));
        let result = match visited {
            Ok((result, left)) => {
                self.load.store(left.load, Ordering::Relaxed);
                // Only the lock's holder writes it.
                self.visits.store(self.visits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
                (Some(result), left)
            }
            Err(_) => {
                drop(seat);
                self.lose();
                (None, ExitState::default())
            }
        };
        self.seat.cache.set(outside.swap());
        result
    }

    /// Lets shard 0 visit, as long as it exists.
    fn ask_shard(&self) {
        self.bell.ask_visit(self.inbox.index);
        if self.is_abandoned.load(Ordering::Acquire) && self.lock.try_lock() {
            let mut woken = Vec::new();
            wakes::collect(&mut woken, || {
                self.end_late();
                self.lock.unlock_anyway();
            });
            // Under another ring's lock they wait for that.
            if wakes::is_collecting() {
                woken.into_iter().for_each(wakes::wake);
            } else if wakes::wake_all(&mut woken) {
                self.report_waker();
            }
        }
    }

    #[cold]
    fn report_waker(&self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.degrade_once("waker", "a waker of the program panicked", "look at the program's executor");
        }
    }

    /// Ends the shard after a panic inside. Nothing is freed that the device may use.
    #[cold]
    fn lose(&self) {
        self.over.store(true, Ordering::Release);
        let Some(shard) = self.seat.shard.take() else { return };
        let shard: &Shard = Box::leak(shard);
        shard.engine().degrade_once("worker ring", "a panic ended it; its operations failed", "report this");
        shard.end_lost();
    }

    /// Starts the visit of the attendant that submits staged operations.
    fn begin_flush(&self) {
        self.flush_asked.store(false, Ordering::Release);
        self.gathering.flush();
    }

    /// Has the attendant submit what is staged, once the tasks that are ready had their turn.
    fn ask_flush(&self) {
        if !self.flush_asked.swap(true, Ordering::AcqRel) {
            self.attendant.wake();
        }
    }

    /// Gives the memory in its cache to all, if no thread is inside.
    fn release_memory(&self, engine: &EngineShared) {
        // No visit: this may run inside another one, under whose lock nothing is woken.
        if self.lock.try_lock() {
            Aside::with(&self.seat.cache, || engine.arena.empty_cache());
            if self.lock.unlock_anyway() {
                self.ask_shard();
            }
        }
    }
}

/// The visited shards of an engine. Each is made for the first thread that needs one, and stays until the engine's end.
pub(crate) struct VisitedShards {
    /// The number of shards with a thread; the indices of visited shards follow.
    first: usize,
    places: Box<[OnceLock<Arc<VisitedShard>>]>,
    made: Mutex<ShardCount>,
    /// Whether shard 0 has the timer for its visits to rings.
    watched: WatchFlag,
    /// Shards that have not ended; the last one ends the visited shards.
    running: AtomicUsize,
    #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
    groups: runtime::Groups,
    /// Set once the engine's shards have started.
    #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
    interface: OnceLock<Interface>,
}

/// The number of visited shards.
#[derive(Default)]
struct ShardCount {
    count: usize,
    /// No more are made: the kernel refused one, or the engine ends.
    closed: bool,
    /// The number of requests until the kernel is asked again, which had no descriptor for one.
    #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
    skips: u32,
}

impl VisitedShards {
    /// Returns the places for visited shards of an engine with `shards` ordinary shards. `is_real` is false in a simulated world,
    /// which has visited shards if the program requests them.
    pub(crate) fn of(config: &Config, host: Host, shards: usize, is_real: bool) -> VisitedShards {
        let suits = config.priority == Priority::Default;
        let most = match (is_real, config.worker_rings) {
            (true, WorkerRings::Auto | WorkerRings::Always) if HAS_RUNTIME && suits => {
                // One for a processor.
                host.processors.min(VISITED_MAX)
            }
            (false, WorkerRings::Always) => SIMULATED_MAX,
            _ => 0,
        };
        VisitedShards::new(shards, most.min(SHARDS_MAX.saturating_sub(shards)))
    }

    fn new(shards: usize, count: usize) -> VisitedShards {
        VisitedShards {
            first: shards,
            places: (0..count).map(|_| OnceLock::new()).collect(),
            made: Mutex::default(),
            watched: WatchFlag::new(),
            running: AtomicUsize::new(shards),
            #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
            groups: runtime::Groups::default(),
            #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
            interface: OnceLock::new(),
        }
    }

    /// Allows rings to be made from now on.
    #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
    pub(crate) fn begin(&self, interface: Interface) {
        let first = self.interface.set(interface);
        debug_assert!(first.is_ok(), "an engine starts once");
    }

    /// Returns the name of the rings' interface; `None` without rings.
    pub(crate) fn interface(&self) -> Option<&'static str> {
        self.iter().next()?;
        #[cfg(not(all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
        return None;
        #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
        self.interface.get().map(|interface| match interface {
            Interface::Uring(_) => "uring",
            Interface::Aio => "aio",
        })
    }

    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<VisitedShard>> {
        self.places.iter().map_while(OnceLock::get)
    }

    /// Returns the inboxes of those that exist.
    pub(crate) fn inboxes(&self) -> impl Iterator<Item = &Arc<Inbox>> {
        self.iter().map(|visited| &visited.inbox)
    }

    /// Returns the inbox of one by its number among all shards.
    pub(crate) fn inbox(&self, index: usize) -> Option<&Arc<Inbox>> {
        self.by_index(index).map(|visited| &visited.inbox)
    }

    /// Returns one by its number among all shards.
    fn by_index(&self, index: usize) -> Option<&Arc<VisitedShard>> {
        self.places.get(index.checked_sub(self.first)?)?.get()
    }

    fn lock(&self) -> MutexGuard<'_, ShardCount> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the shard of the next place; `made` is the list's, under its lock. `None` without a free place.
    fn add(
        &self,
        made: &mut ShardCount,
        engine: &Arc<EngineShared>,
        driver: Driver,
    ) -> Option<Arc<VisitedShard>> {
        let place = self.places.get(made.count)?;
        let visited = VisitedShard::new(engine, self.first + made.count, driver);
        visited.inbox.about_to_sleep();
        visited.lock.unlock_anyway();
        let first = place.set(visited.clone());
        debug_assert!(first.is_ok(), "a place is filled once, under the lock");
        made.count += 1;
        Some(visited)
    }

    /// Gives the memory in the caches of idle visited shards to all.
    #[cold]
    pub(crate) fn release_memory(&self, engine: &EngineShared) {
        self.iter().for_each(|visited| visited.release_memory(engine));
    }
}

/// Whether the build supports runtimes whose workers may have rings.
const HAS_RUNTIME: bool = cfg!(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)));

#[cfg(all(test, feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
mod tests;
