//! Which ring a thread has: each worker of a Tokio runtime gets one, and the runtime's own poller watches it.
//!
//! A runtime's rings are a *group*. For each ring a task of the runtime, the *attendant*, registers the ring's descriptor with the
//! runtime's poller. It visits when the descriptor becomes readable, and submits what is staged once the tasks that are ready had
//! their turn. The drop of a runtime drops its tasks, and the drop of an attendant gives up the whole group: shard 0 takes over
//! operations in flight, and each ring is free for another runtime after the drop of its attendant. The rings are the engine's: a
//! thread knows its ring by number, so that a thread which has driven a current-thread runtime keeps neither ring nor runtime
//! alive.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::thread;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{self, Handle, RuntimeFlavor};

use super::{VisitedShard, VisitedShards};
use crate::base::health::Degradation;
use crate::io::config::WorkerRings;
use crate::reactor::engine_shared::EngineShared;

/// Requests for a ring that are refused after one for which no descriptor was free.
const SKIPS: u32 = 255;

/// The reason why a thread has no ring.
enum NoRing {
    /// None is made for it any more.
    Ever,
    /// No descriptor is free.
    Yet,
}

impl NoRing {
    fn after(error: &io::Error) -> NoRing {
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => NoRing::Yet,
            _ => NoRing::Ever,
        }
    }
}

/// The groups of an engine, one for each runtime that has used it.
#[derive(Default)]
pub(super) struct Groups(Mutex<Vec<Arc<Group>>>);

/// The rings of one runtime.
struct Group {
    /// Unique in the process.
    number: u64,
    runtime: runtime::Id,
    rings: Mutex<Vec<Option<Arc<VisitedShard>>>>,
    /// Counts the threads that were given a ring.
    threads: AtomicUsize,
    /// The runtime was dropped, or has no poller.
    given_up: AtomicBool,
}

/// A thread's ring of one engine.
struct Seat {
    /// The number of the engine's first shard, which is unique in the process.
    engine: u32,
    group: Arc<Group>,
    /// A worker of a multi-threaded runtime stays one. Any other thread may enter one runtime after another.
    is_worker: bool,
    /// The ring's number among the engine's shards; `None` if the engine has no ring left for it.
    number: Option<usize>,
    /// A thread may outlive the engine, and its seats with it: the ring is dropped with the engine.
    ring: Weak<VisitedShard>,
}

thread_local! {
    static SEATS: RefCell<Vec<Seat>> = const { RefCell::new(Vec::new()) };
    /// The group whose attendant this thread polled last: it drives that group's runtime.
    static DRIVEN: Cell<u64> = const { Cell::new(0) };
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

impl Seat {
    /// Returns whether the thread still is where it was given the ring.
    #[inline]
    fn is_valid(&self) -> bool {
        !self.group.given_up.load(Ordering::Relaxed)
            && (self.is_worker || Handle::try_current().is_ok_and(|handle| handle.id() == self.group.runtime))
    }

    /// Returns whether its ring has ended, with its engine or before.
    fn is_over(&self) -> bool {
        self.number.is_some() && self.ring.upgrade().is_none_or(|ring| ring.is_over())
    }
}

/// Runs `run` with this thread's ring. `None` outside of a runtime, in a runtime without an I/O driver, or inside of another call
/// of this function.
#[inline]
pub(super) fn with_ring<T>(
    engine: &Arc<EngineShared>,
    run: impl FnOnce(&Arc<VisitedShard>) -> T,
) -> Option<T> {
    let with_seats = |seats: &RefCell<Vec<Seat>>| {
        let mut seats = seats.try_borrow_mut().ok()?;
        let number = engine.inboxes[0].uid;
        let known = seats.iter().position(|seat| seat.engine == number && seat.is_valid());
        let at = match known {
            Some(at) => at,
            None => {
                seats.retain(|seat| !seat.group.given_up.load(Ordering::Relaxed) && !seat.is_over());
                let seat = sit(engine)?;
                seats.push(seat);
                seats.len() - 1
            }
        };
        let ring = engine.visited.by_index(seats[at].number?)?;
        (!ring.is_neglected.load(Ordering::Relaxed)).then(|| run(ring))
    };
    SEATS.try_with(with_seats).ok()?
}

/// Gives the thread a ring if it may have one.
#[cold]
fn sit(engine: &Arc<EngineShared>) -> Option<Seat> {
    let handle = Handle::try_current().ok()?;
    let is_worker = handle.runtime_flavor() != RuntimeFlavor::CurrentThread;
    // The future of `Runtime::block_on` is polled by a thread that is not a worker and may end at any time.
    if is_worker && tokio::task::try_id().is_none() {
        return None;
    }
    let workers = if is_worker { handle.metrics().num_workers() } else { 1 };
    let group = engine.visited.groups.of(handle.id(), workers);
    if group.given_up.load(Ordering::Relaxed) {
        return None;
    }
    let at = if is_worker { group.threads.fetch_add(1, Ordering::Relaxed) % workers } else { 0 };
    let ring = match group.ring(engine, &handle, at) {
        Ok(ring) => Some(ring),
        Err(NoRing::Ever) => None,
        Err(NoRing::Yet) => {
            if is_worker {
                group.threads.fetch_sub(1, Ordering::Relaxed);
            }
            return None;
        }
    };
    // Only the thread that drives a current-thread runtime polls its attendant: another one, in `Handle::block_on`, would depend on it.
    if let Some(ring) = &ring
        && !is_worker
        && DRIVEN.get() != group.number
    {
        ring.attendant.wake();
        return None;
    }
    let number = ring.as_ref().map(|ring| ring.inbox.index);
    let ring = ring.as_ref().map_or_else(Weak::new, Arc::downgrade);
    Some(Seat { engine: engine.inboxes[0].uid, group, is_worker, number, ring })
}

impl VisitedShards {
    /// Returns a shard that no runtime has, made now if need be.
    ///
    /// # Errors
    /// Those of a lack of free places, and of the kernel's refusal of a ring.
    fn lease(&self, engine: &Arc<EngineShared>) -> Result<Arc<VisitedShard>, NoRing> {
        let mut made = self.lock();
        let is_free =
            |visited: &&Arc<VisitedShard>| !visited.is_over() && !visited.leased.swap(true, Ordering::AcqRel);
        if made.closed {
            return Err(NoRing::Ever);
        }
        if made.skips > 0 {
            made.skips -= 1;
            return Err(NoRing::Yet);
        }
        if let Some(free) = self.iter().find(is_free) {
            return Ok(free.clone());
        }
        if made.count == self.places() {
            return Err(NoRing::Ever);
        }
        let interface = self.interface.get().ok_or(NoRing::Ever)?;
        let (driver, descriptor) = match interface.make(engine.config.queue_depth) {
            Ok(made) => made,
            Err((Degradation { what, why, remedy }, error)) => {
                let none = NoRing::after(&error);
                match none {
                    NoRing::Ever => made.closed = true,
                    NoRing::Yet => made.skips = SKIPS,
                }
                drop(made);
                if matches!(none, NoRing::Yet) {
                    engine.idle_files.give_way();
                }
                engine.degrade_once(&what, &why, &remedy);
                return Err(none);
            }
        };
        let visited = self.add(&mut made, engine, driver).ok_or(NoRing::Ever)?;
        let first = visited.descriptor.set(descriptor);
        debug_assert!(first.is_ok(), "a ring has one descriptor");
        Ok(visited)
    }
}

impl Groups {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Group>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a runtime's group. A runtime without a poller keeps its group, so that it is tried once.
    fn of(&self, runtime: runtime::Id, workers: usize) -> Arc<Group> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let mut groups = self.lock();
        if let Some(known) = groups.iter().find(|group| group.runtime == runtime) {
            return known.clone();
        }
        let group = Arc::new(Group {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            runtime,
            rings: Mutex::new(vec![None; workers]),
            threads: AtomicUsize::new(0),
            given_up: AtomicBool::new(false),
        });
        groups.push(group.clone());
        group
    }

    fn remove(&self, group: &Arc<Group>) {
        self.lock().retain(|known| !Arc::ptr_eq(known, group));
    }
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<Arc<VisitedShard>>>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns one of the group's rings. The first call for each leases it and starts its attendant.
    fn ring(
        self: &Arc<Self>,
        engine: &Arc<EngineShared>,
        handle: &Handle,
        at: usize,
    ) -> Result<Arc<VisitedShard>, NoRing> {
        let attendant = {
            let mut rings = self.lock();
            let place = rings.get_mut(at).ok_or(NoRing::Ever)?;
            if let Some(ring) = place {
                return Ok(ring.clone());
            }
            let ring = engine.visited.lease(engine)?;
            match watched(&ring, engine.config.worker_rings) {
                Ok(descriptor) => {
                    *place = Some(ring.clone());
                    let (group, engine) = (self.clone(), Arc::downgrade(engine));
                    Attendant { ring, group, engine, descriptor, has_yielded: false }
                }
                Err(why) => {
                    drop(rings);
                    ring.leased.store(false, Ordering::Release);
                    let none = NoRing::after(&why);
                    if matches!(none, NoRing::Yet) {
                        // The ring is free, and would be tried by each operation.
                        engine.visited.lock().skips = SKIPS;
                        engine.idle_files.give_way();
                        return Err(none);
                    }
                    self.give_up();
                    engine.degrade_once(
                        "worker rings",
                        &format!("a Tokio runtime does not watch them: {why}; its tasks' operations go through the shards"),
                        "build the runtime with enable_io or enable_all; see Config::worker_rings",
                    );
                    return Err(none);
                }
            }
        };
        let ring = attendant.ring.clone();
        // Without the lock: a runtime that shuts down drops the task immediately, which gives the group up.
        handle.spawn(attendant);
        Ok(ring)
    }

    /// Ends the attendants, which leave their rings to other runtimes. Shard 0 takes over operations in flight.
    ///
    /// An attendant may be polled on another thread meanwhile. It checks after it has left its waker: either this finds the waker,
    /// or the attendant finds the group given up.
    fn give_up(&self) {
        if !self.given_up.swap(true, Ordering::AcqRel) {
            let rings = std::mem::take(&mut *self.lock());
            rings.into_iter().flatten().for_each(|ring| ring.attendant.wake());
        }
    }
}

/// Registers a ring's descriptor with the poller of the runtime that this thread is in.
///
/// # Errors
/// The reason for the runtime's refusal, and the lack of a descriptor.
fn watched(ring: &VisitedShard, choice: WorkerRings) -> io::Result<AsyncFd<OwnedFd>> {
    let descriptor = ring.descriptor.get().ok_or_else(|| io::Error::other("the ring has no descriptor"))?;
    let descriptor = descriptor.try_clone()?;
    #[allow(deprecated, reason = "its successor came with Tokio 1.53, and the descriptor is owned")]
    let register = move || AsyncFd::with_interest(descriptor, Interest::READABLE);
    match choice {
        WorkerRings::Always => register(),
        // Tokio panics if a runtime has no I/O driver, and offers no other way to find out.
        _ if cfg!(panic = "abort") => {
            Err(io::Error::other("a panic would abort this program, so the runtime cannot be asked"))
        }
        _ => quietly(register).unwrap_or_else(|| Err(io::Error::other("it has no I/O driver"))),
    }
}

/// Runs `run`, which may panic, without a report by the panic hook. Returns `None` after a panic.
fn quietly<T>(run: impl FnOnce() -> T) -> Option<T> {
    static HOOKS: Mutex<()> = Mutex::new(());
    if thread::panicking() {
        return None;
    }
    let _alone = HOOKS.lock().unwrap_or_else(PoisonError::into_inner);
    let hook = Arc::new(panic::take_hook());
    let forwards = hook.clone();
    panic::set_hook(Box::new(move |info| {
        // Panics of other threads are reported as ever.
        if !IS_QUIET.try_with(Cell::get).unwrap_or(false) {
            forwards(info);
        }
    }));
    IS_QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    IS_QUIET.set(false);
    drop(panic::take_hook());
    match Arc::try_unwrap(hook) {
        Ok(hook) => panic::set_hook(hook),
        // Another thread panics at this moment.
        Err(hook) => panic::set_hook(Box::new(move |info| hook(info))),
    }
    result.ok()
}

/// The task of a runtime that drives one of its rings.
struct Attendant {
    ring: Arc<VisitedShard>,
    group: Arc<Group>,
    engine: Weak<EngineShared>,
    descriptor: AsyncFd<OwnedFd>,
    /// It was asked to submit, and has let the other tasks run since.
    has_yielded: bool,
}

impl Future for Attendant {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        DRIVEN.set(this.group.number);
        this.ring.attendant.register(context.waker());
        if this.group.given_up.load(Ordering::Acquire) || this.ring.is_over() {
            return Poll::Ready(());
        }
        this.ring.is_neglected.store(false, Ordering::Relaxed);
        let mut visits = false;
        loop {
            match this.descriptor.poll_read_ready(context) {
                // Cleared before the visit: what completes from here on makes the descriptor ready again.
                Poll::Ready(Ok(mut ready)) => {
                    ready.clear_ready();
                    visits = true;
                }
                // The runtime shuts down.
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        if this.ring.flush_asked.load(Ordering::Acquire) {
            if this.has_yielded {
                visits = true;
            } else {
                this.has_yielded = true;
                // The runtime's own way to yield wakes no second worker for it.
                let _ = pin!(tokio::task::yield_now()).poll(context);
            }
        }
        if visits {
            this.has_yielded = false;
            this.ring.begin_flush();
            this.ring.visit();
        }
        Poll::Pending
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        // The waker keeps the runtime's poller. Until the ring is free no other attendant leaves a waker, so no waker is lost or
        // overwritten.
        drop(self.ring.attendant.take());
        self.ring.leased.store(false, Ordering::Release);
        // At the engine's end the runtime continues, and no operations are left.
        self.group.give_up();
        if let Some(engine) = self.engine.upgrade() {
            engine.visited.groups.remove(&self.group);
        }
    }
}
