//! Models of the types in [`crate::base::sync`], for loom, and ways to break them on purpose.
//!
//! The parts that loom lacks are composed here from those that it has:
//! - *SeqCst accesses.* Loom treats them as acquire and release. Here a fence follows each store and read-modify-write, a little
//!   more than the language promises and processors do. Loads have no fence before them, which would stand in for one that the code
//!   lacks. Fences that the code itself states are unchanged, and so are all weaker orderings.
//! - *Loads.* Loom explores another order only where an access meets the last one of the same place, so a
//!   thread's own load hides an earlier load of another thread from the store that follows. Here loads meet
//!   each other, too.
//! - *Relaxed stores to flags.* Loom does not model that a read-modify-write directly follows the value it read. It may put a plain
//!   store of another thread between the two, and then report a flag that no thread could see. So these are swaps.
//! - *Queues.* Crossbeam tests its queues; the tests here check the protocol around them. The model is a bounded ring of numbered
//!   places with the orderings that crossbeam's has. Only the pop has the fence above: one after a push would hide that the
//!   protocol needs its own.
//! - *AtomicWaker.* A lock around a waker, which orders `register` and `wake` as the real one promises.
//!
//! A test that passes proves little until it is known that it can fail. So properties that rest on an ordering have a twin that
//! must fail, in which [`breaking`] removes that ordering.

pub(crate) mod atomic;
mod queues;

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Wake, Waker};

pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use queues::{ArrayQueue, SegQueue};

use atomic::Ordering;

/// A guarantee that a twin removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarantee {
    /// Fences do nothing.
    Fences,
    /// SeqCst accesses are only acquire and release.
    SeqCst,
    /// Nothing is released: every store is relaxed.
    Release,
}

thread_local! {
    // Loom runs all threads of a model on the thread of the test.
    static BROKEN: Cell<&'static [Guarantee]> = const { Cell::new(&[]) };
}

fn is_broken(what: Guarantee) -> bool {
    BROKEN.get().contains(&what)
}

/// Explores `body` with at most three preemptions, or `LOOM_MAX_PREEMPTIONS`.
pub(crate) fn check(body: impl Fn() + Sync + Send + 'static) {
    check_less(0, body);
}

/// Does the same as [`check`] with one preemption less, for a body that would take minutes otherwise.
pub(crate) fn check_large(body: impl Fn() + Sync + Send + 'static) {
    check_less(1, body);
}

fn check_less(fewer: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3).saturating_sub(fewer));
    builder.max_branches = builder.max_branches.max(10_000);
    builder.check(body);
}

/// Does the same as [`check`] without something that the property needs; the caller expects a panic.
pub(crate) fn breaking(what: &'static [Guarantee], body: impl Fn() + Sync + Send + 'static) {
    struct Repair;
    impl Drop for Repair {
        fn drop(&mut self) {
            BROKEN.set(&[]);
        }
    }
    let _repair = Repair;
    BROKEN.set(what);
    check(body);
}

/// A bell in the form of a waker, on which a thread sleeps that waits for a future.
#[derive(Debug, Default)]
pub(crate) struct Bell(loom::sync::Notify);

impl Bell {
    pub(crate) fn wait(&self) {
        self.0.wait();
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// A cell like std's. Every access counts as a write, and loom fails when two are not ordered.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(loom::cell::UnsafeCell::new(value))
    }

    /// Returns the pointer, which is used immediately, before any point at which loom could switch threads.
    #[track_caller]
    pub(crate) fn get(&self) -> *mut T {
        self.0.with_mut(|value| value)
    }
}

#[derive(Debug)]
pub(crate) struct AtomicWaker(Mutex<Option<Waker>>);

impl AtomicWaker {
    pub(crate) fn new() -> AtomicWaker {
        AtomicWaker(Mutex::new(None))
    }

    pub(crate) fn register(&self, waker: &Waker) {
        let old = self.0.lock().map(|mut known| known.replace(waker.clone()));
        drop(old);
    }

    pub(crate) fn take(&self) -> Option<Waker> {
        self.0.lock().ok().and_then(|mut known| known.take())
    }
}

/// A counter that each load of one place changes, so that loom explores both orders of any two.
#[derive(Debug)]
struct Looks(loom::sync::atomic::AtomicUsize);

impl Looks {
    fn new() -> Looks {
        Looks(loom::sync::atomic::AtomicUsize::new(0))
    }

    fn look(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
