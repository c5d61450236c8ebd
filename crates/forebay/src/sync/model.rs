//! Models of what [`crate::sync`] names, for loom, and ways to break them on purpose.
//!
//! What loom does not know is put together here from what it knows:
//! - *SeqCst accesses.* Loom treats them as acquire and release. Here each is also a SeqCst fence, before a load, after a
//!   store, around a read-modify-write: a little more than the language promises, and what processors do. Fences that the
//!   code itself states are as they are, and so are all weaker orderings.
//! - *Loads.* Loom looks for another order only where an access meets the last one of the same place, so a thread's own
//!   load hides an earlier load of another thread from the store that follows. Here loads meet each other, too.
//! - *Relaxed stores to flags.* Loom does not know that a read-modify-write comes right after what it read: it may put a
//!   plain store of another thread between the two, and then tell of a flag that nobody could see. So these are swaps.
//! - *Queues.* The ones of crossbeam are tested there; what is checked here is the protocol around them. The model is a
//!   bounded ring of numbered places with the orderings that crossbeam's has, without the fences above, because a
//!   stronger queue would hide a fence that the protocol lacks.
//! - *AtomicWaker.* A lock around a waker, which orders `register` and `wake` as the real one promises.
//!
//! A test that passes proves little as long as one does not know that it can fail. So every property has a twin that
//! must fail, in which [`breaking`] takes away what the property rests on.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Wake, Waker};

pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

use atomic::Ordering;

/// What a twin takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Fences do nothing.
    Fences,
    /// SeqCst accesses are no more than acquire and release.
    SeqCst,
    /// Nothing is released: every store is relaxed.
    Release,
}

thread_local! {
    // Loom runs all threads of a model on the thread of the test.
    static BROKEN: Cell<&'static [Broken]> = const { Cell::new(&[]) };
}

fn is_broken(what: Broken) -> bool {
    BROKEN.get().contains(&what)
}

/// Explores `body` with at most three preemptions, or `LOOM_MAX_PREEMPTIONS`.
pub(crate) fn check(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.max_branches = builder.max_branches.max(10_000);
    builder.check(body);
}

/// As [`check`] without something that the property needs; the caller expects a panic.
pub(crate) fn breaking(what: &'static [Broken], body: impl Fn() + Sync + Send + 'static) {
    struct Mended;
    impl Drop for Mended {
        fn drop(&mut self) {
            BROKEN.set(&[]);
        }
    }
    let _mended = Mended;
    BROKEN.set(what);
    check(body);
}

/// A bell as a waker: what a thread sleeps on that waits for a future.
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

/// As std's; every access counts as a write, and loom fails when two are not ordered.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(loom::cell::UnsafeCell::new(value))
    }

    /// The pointer is used at once, before anything that loom could switch at.
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

    pub(crate) fn wake(&self) {
        if let Ok(Some(waker)) = self.0.lock().map(|mut known| known.take()) {
            waker.wake();
        }
    }
}

/// What each load of one place changes, so that loom explores both orders of any two.
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

/// A number of a queue, with loom's orderings as they are.
struct Index(loom::sync::atomic::AtomicUsize, Looks);

impl Index {
    fn new(value: usize) -> Index {
        Index(loom::sync::atomic::AtomicUsize::new(value), Looks::new())
    }

    fn load(&self, order: Ordering) -> usize {
        self.1.look();
        self.0.load(order)
    }

    fn advance(&self, from: usize) -> Result<usize, usize> {
        self.0.compare_exchange(from, from + 1, Ordering::AcqRel, Ordering::Relaxed)
    }
}

/// A bounded ring: place `n` may be written in lap `n / capacity` when its stamp says `2n`, and read at `2n + 1`.
pub(crate) struct ArrayQueue<T> {
    head: Index,
    tail: Index,
    // The values themselves are behind ordinary locks that nobody ever waits for: loom switches at its own types only.
    places: Box<[(Index, std::sync::Mutex<Option<T>>)]>,
}

impl<T> ArrayQueue<T> {
    pub(crate) fn new(capacity: usize) -> ArrayQueue<T> {
        let place = |number| (Index::new(2 * number), std::sync::Mutex::new(None));
        ArrayQueue { head: Index::new(0), tail: Index::new(0), places: (0..capacity).map(place).collect() }
    }

    pub(crate) fn push(&self, value: T) -> Result<(), T> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            let (stamp, place) = &self.places[tail % self.places.len()];
            let seen = stamp.load(Ordering::Acquire);
            if seen == 2 * tail {
                match self.tail.advance(tail) {
                    Ok(_) => {
                        *place.lock().unwrap() = Some(value);
                        stamp.0.store(2 * tail + 1, Ordering::Release);
                        return Ok(());
                    }
                    Err(now) => tail = now,
                }
            } else {
                // A place of the lap before: full, unless somebody is just taking it.
                loom::sync::atomic::fence(Ordering::SeqCst);
                if self.head.load(Ordering::Relaxed) + self.places.len() == tail {
                    return Err(value);
                }
                loom::thread::yield_now();
                tail = self.tail.load(Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let (stamp, place) = &self.places[head % self.places.len()];
            if stamp.load(Ordering::Acquire) == 2 * head + 1 {
                match self.head.advance(head) {
                    Ok(_) => {
                        let value = place.lock().unwrap().take();
                        stamp.0.store(2 * (head + self.places.len()), Ordering::Release);
                        return value;
                    }
                    Err(now) => head = now,
                }
            } else {
                // Empty, unless somebody is just filling the place.
                loom::sync::atomic::fence(Ordering::SeqCst);
                if self.tail.load(Ordering::Relaxed) == head {
                    return None;
                }
                loom::thread::yield_now();
                head = self.head.load(Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::Acquire);
        self.tail.load(Ordering::Acquire) == head
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }
}

/// The unbounded queue, of which the models only ask whether it is empty.
pub(crate) struct SegQueue<T> {
    pushed: loom::sync::atomic::AtomicUsize,
    values: std::sync::Mutex<VecDeque<T>>,
}

impl<T> SegQueue<T> {
    pub(crate) fn new() -> SegQueue<T> {
        SegQueue { pushed: loom::sync::atomic::AtomicUsize::new(0), values: std::sync::Mutex::default() }
    }

    pub(crate) fn push(&self, value: T) {
        self.values.lock().unwrap().push_back(value);
        self.pushed.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let value = self.values.lock().unwrap().pop_front()?;
        self.pushed.fetch_sub(1, Ordering::AcqRel);
        Some(value)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pushed.load(Ordering::Acquire) == 0
    }
}

/// As `std::sync::atomic`.
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::Ordering;

    use super::{Broken, Looks, is_broken};
    use loom::sync::atomic as real;

    #[track_caller]
    pub(crate) fn fence(order: Ordering) {
        if !is_broken(Broken::Fences) {
            real::fence(order);
        }
    }

    /// Around an access: the fence that loom's SeqCst lacks.
    fn fence_of(order: Ordering) {
        if order == Ordering::SeqCst && !is_broken(Broken::SeqCst) {
            real::fence(Ordering::SeqCst);
        }
    }

    /// The part of an ordering that a load has, a store has, or both, as far as it is not taken away.
    fn loads(order: Ordering) -> Ordering {
        match order {
            Ordering::SeqCst | Ordering::AcqRel => Ordering::Acquire,
            order => order,
        }
    }

    fn stores(order: Ordering) -> Ordering {
        match order {
            Ordering::SeqCst | Ordering::AcqRel | Ordering::Release if !is_broken(Broken::Release) => {
                Ordering::Release
            }
            _ => Ordering::Relaxed,
        }
    }

    fn changes(order: Ordering) -> Ordering {
        match (loads(order), stores(order)) {
            (Ordering::Acquire, Ordering::Release) => Ordering::AcqRel,
            (Ordering::Acquire, _) if order != Ordering::Release => Ordering::Acquire,
            (_, stores) => stores,
        }
    }

    macro_rules! atomics {
        ($($name:ident [$($generic:ident)?] $value:ty, flag: $flag:literal, { $($change:ident)* };)*) => {$(
            #[derive(Debug)]
            pub(crate) struct $name $(<$generic>)? (real::$name $(<$generic>)?, Looks);

            #[allow(dead_code, reason = "each type has all of them, as in std")]
            impl $(<$generic>)? $name $(<$generic>)? {
                pub(crate) fn new(value: $value) -> Self {
                    Self(real::$name::new(value), Looks::new())
                }

                #[track_caller]
                pub(crate) fn load(&self, order: Ordering) -> $value {
                    fence_of(order);
                    self.1.look();
                    self.0.load(loads(order))
                }

                #[track_caller]
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    if $flag && order == Ordering::Relaxed {
                        self.0.swap(value, order);
                    } else {
                        self.0.store(value, stores(order));
                    }
                    fence_of(order);
                }

                pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                    fence_of(order);
                    let before = self.0.swap(value, changes(order));
                    fence_of(order);
                    before
                }

                pub(crate) fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    fence_of(success);
                    let result = self.0.compare_exchange(current, new, changes(success), loads(failure));
                    fence_of(success);
                    result
                }

                /// Never fails for no reason: that would only be another turn of the caller's loop.
                pub(crate) fn compare_exchange_weak(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.compare_exchange(current, new, success, failure)
                }

                $(pub(crate) fn $change(&self, operand: $value, order: Ordering) -> $value {
                    fence_of(order);
                    let before = self.0.$change(operand, changes(order));
                    fence_of(order);
                    before
                })*
            }
        )*};
    }

    atomics! {
        AtomicBool [] bool, flag: true, { fetch_or fetch_and };
        AtomicU8 [] u8, flag: false, { fetch_or fetch_and fetch_add fetch_sub };
        AtomicU16 [] u16, flag: false, { fetch_or fetch_and fetch_add fetch_sub };
        AtomicU32 [] u32, flag: false, { fetch_or fetch_and fetch_add fetch_sub };
        AtomicU64 [] u64, flag: false, { fetch_or fetch_and fetch_add fetch_sub };
        AtomicUsize [] usize, flag: false, { fetch_or fetch_and fetch_add fetch_sub };
        AtomicPtr [T] *mut T, flag: false, {};
    }
}
