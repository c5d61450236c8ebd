//! A flag for work that a thread leaves behind: set while a watcher exists.

use crate::base::sync::atomic::{AtomicBool, Ordering, fence};

/// Set while a watcher exists. The watcher, or the one that [`starts`](WatchFlag::starts) requests, sees work that was noted before
/// that call.
pub(crate) struct WatchFlag(AtomicBool);

impl WatchFlag {
    #[cfg_attr(all(test, forebay_loom), allow(dead_code, reason = "models begin in the middle"))]
    pub(crate) fn new() -> WatchFlag {
        WatchFlag(AtomicBool::new(false))
    }

    /// Notes work to watch. Returns whether the caller must start the watcher.
    #[inline]
    pub(crate) fn starts(&self) -> bool {
        // Against the fence in `stops`: the watcher sees this thread's work, or this thread sees that the watcher is gone.
        fence(Ordering::SeqCst);
        !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::AcqRel)
    }

    /// Notes that the watcher, which found no work, wants to stop. Returns whether it may; `has_work` reports work that was added
    /// meanwhile.
    pub(crate) fn stops(&self, has_work: impl FnOnce() -> bool) -> bool {
        self.0.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // Work that was added meanwhile may have been left because of the flag. The thread that sets it again is the watcher.
        !has_work() || self.0.swap(true, Ordering::SeqCst)
    }
}

#[cfg(all(test, forebay_loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::sync::model::{Guarantee, breaking, check};

    /// The last visitor leaves an operation in its ring while the watcher stops.
    fn the_watcher_stops_while_work_comes() {
        let flag = Arc::new(WatchFlag(AtomicBool::new(true)));
        let load = Arc::new(AtomicBool::new(false));
        let visitor = loom::thread::spawn({
            let (flag, load) = (flag.clone(), load.clone());
            move || {
                load.store(true, Ordering::Relaxed);
                flag.starts()
            }
        });
        let stopped = flag.stops(|| load.load(Ordering::Relaxed));
        let started = visitor.join().unwrap();
        assert_eq!(u32::from(!stopped) + u32::from(started), 1, "one watcher looks after the operation");
    }

    #[test]
    fn an_operation_always_has_one_watcher() {
        check(the_watcher_stops_while_work_comes);
    }

    #[test]
    #[should_panic(expected = "one watcher")]
    fn without_its_fences_an_operation_has_no_watcher() {
        breaking(&[Guarantee::Fences, Guarantee::SeqCst], the_watcher_stops_while_work_comes);
    }
}
