//! A core that is broken on purpose, to show that the tests catch the faults that they are for.
//!
//! The switch belongs to the calling thread. A simulated world runs on one thread and so is broken as a
//! whole; a real engine's shards are never touched.

use std::cell::Cell;

/// The kinds of breakage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Breakage {
    /// Memory is returned at once when the future of an operation in flight is dropped.
    BufferFreedAtDrop,
    /// Like `BufferFreedAtDrop`, for reads of a walk that its step gave up.
    AbandonedReadFreed,
    /// A key finds its slot even when the slot is used for something else now.
    NoGenerationCheck,
    /// A read that the device did only in part counts as whole.
    ShortReadIsSuccess,
    /// A sync, and that of a durable write, completes without having been requested.
    IgnoredFlush,
    /// A combine's barrier does nothing.
    BarrierIgnored,
    /// A page that was written in part is written with zeros in the other part.
    EdgeNotRead,
    /// Where pieces of a collective write overlap the lowest rank wins.
    LowestRankWins,
    /// A full inbox that has room again wakes one sender a turn, and expects that one to send.
    OneSenderWoken,
}

thread_local! {
    static ON: Cell<Option<Breakage>> = const { Cell::new(None) };
}

/// Runs `f` with this thread's simulated cores broken.
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
