//! A log that is broken on purpose, so that the tests can be seen to catch what they are for.
//!
//! The switch belongs to the calling thread: a simulated world runs on one thread and so is broken as a
//! whole, and the log of a real engine, whose task runs on a shard, is never touched.

use std::cell::Cell;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Breakage {
    /// Recovery takes every bad place for the log's end, whatever a later group says about it.
    WatermarkIgnored,
    /// After a write or flush that failed the writer goes on with the next group.
    PoisonIgnored,
    /// A segment is used again, or removed, once the group that gives it up is durable, without one behind
    /// that.
    SegmentGoneEarly,
    /// An append that was woken because there is room has all others wait until it comes for it.
    WokenKeepsItsTurn,
}

thread_local! {
    static ON: Cell<Option<Breakage>> = const { Cell::new(None) };
}

/// Runs `f` with this thread's simulated logs broken.
pub fn with<T>(breakage: Breakage, f: impl FnOnce() -> T) -> T {
    struct Mended(Option<Breakage>);
    impl Drop for Mended {
        fn drop(&mut self) {
            ON.set(self.0);
        }
    }
    let _mended = Mended(ON.replace(Some(breakage)));
    f()
}

impl Breakage {
    #[inline]
    pub(crate) fn is_on(self) -> bool {
        ON.try_with(Cell::get).ok().flatten() == Some(self)
    }
}
