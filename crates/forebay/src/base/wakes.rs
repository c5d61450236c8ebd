//! Wake-ups that wait until a lock is released.
//!
//! A waker runs code of the program, which may re-enter the engine. The reactor therefore wakes through [`wake`]: where the thread
//! holds a lock, under [`collect`], the waker is added to a list and woken after the lock's release.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::task::Waker;

use crate::base::sync::AtomicWaker;

thread_local! {
    /// The list of the innermost [`collect`] on this thread; null outside.
    static LIST: Cell<*mut Vec<Waker>> = const { Cell::new(ptr::null_mut()) };
}

/// Wakes now, or after the lock that this thread holds.
#[inline]
pub(crate) fn wake(waker: Waker) {
    let list = LIST.get();
    if list.is_null() {
        return waker.wake();
    }
    if crate::_is_broken!(WokenUnderLock) {
        return waker.wake();
    }
    // SAFETY: `collect` set the pointer to a list on its own stack frame, which is below this one, and nothing else uses the list
    // until it has put the former pointer back.
    unsafe { (*list).push(waker) };
}

/// Does the same with each. A waker that panics must not keep the others waiting.
pub(crate) fn wake_each(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        let _ = catch_unwind(AssertUnwindSafe(|| wake(waker)));
    }
}

/// Returns whether this thread is inside of a lock.
#[cfg(any(feature = "_sim", all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
#[inline]
pub(crate) fn is_collecting() -> bool {
    LIST.try_with(|list| !list.get().is_null()).unwrap_or(false)
}

/// Wakes the registered waker, if any, as [`wake`] does.
#[inline]
pub(crate) fn wake_registered(waker: &AtomicWaker) {
    if let Some(waker) = waker.take() {
        wake(waker);
    }
}

/// Runs `run`, which may hold a lock, and puts the wakers of its wake-ups onto `list`.
#[cfg(any(
    all(test, not(forebay_loom)),
    feature = "_sim",
    all(feature = "tokio", target_os = "linux", not(forebay_no_uring))
))]
pub(crate) fn collect<T>(list: &mut Vec<Waker>, run: impl FnOnce() -> T) -> T {
    /// Puts the former list back, also after a panic.
    struct Former(*mut Vec<Waker>);

    impl Drop for Former {
        fn drop(&mut self) {
            LIST.set(self.0);
        }
    }
    let _former = Former(LIST.replace(list));
    run()
}

/// Wakes all and empties the list. A panic of one does not affect the others; returns whether one panicked.
#[cfg(any(
    all(test, not(forebay_loom)),
    feature = "_sim",
    all(feature = "tokio", target_os = "linux", not(forebay_no_uring))
))]
pub(crate) fn wake_all(list: &mut Vec<Waker>) -> bool {
    let mut panicked = false;
    for waker in list.drain(..) {
        panicked |= catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err();
    }
    panicked
}

#[cfg(all(test, not(forebay_loom)))]
pub(crate) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// Counts its wake-ups.
    pub(crate) struct Count(pub(crate) AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("in a waker");
        }
    }

    #[test]
    fn wake_ups_inside_come_after_it_and_nested_lists_are_apart() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let woken = || count.0.load(Ordering::Relaxed);
        let (mut outer, mut inner) = (Vec::new(), Vec::new());
        collect(&mut outer, || {
            wake(count.clone().into());
            collect(&mut inner, || wake(count.clone().into()));
            wake(count.clone().into());
        });
        assert_eq!((woken(), outer.len(), inner.len()), (0, 2, 1));
        assert!(!wake_all(&mut outer) && outer.is_empty());
        assert_eq!(woken(), 2);
        wake(count.clone().into());
        assert_eq!(woken(), 3);
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_waiting() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let mut list = vec![Waker::from(Arc::new(Panics)), count.clone().into()];
        assert!(wake_all(&mut list));
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        wake_each([Waker::from(Arc::new(Panics)), count.clone().into()]);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        // A panic inside leaves no list behind.
        let result = catch_unwind(AssertUnwindSafe(|| collect(&mut list, || panic!("inside"))));
        assert!(result.is_err());
        wake(count.clone().into());
        assert_eq!(count.0.load(Ordering::Relaxed), 3);
    }
}
