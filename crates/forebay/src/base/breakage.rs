//! A core that is broken on purpose, so that the tests can be seen to catch what they are for.
//!
//! The switch belongs to the calling thread: a simulated world runs on one thread and so is broken as a whole, and a real
//! engine's shards are never touched.

use std::cell::Cell;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Breakage {
    /// Memory goes back at once when the future of an operation in flight is dropped.
    BufferFreedAtDrop,
    /// As `BufferFreedAtDrop`, for reads of a walk that its step gave up.
    AbandonedReadFreed,
    /// A key finds its slot whatever the slot is used for now.
    NoGenerationCheck,
    /// A read of which the device did a part counts as whole.
    ShortReadIsSuccess,
    /// A sync, and that of a durable write, is over without having been asked for.
    IgnoredFlush,
    /// A combine's barrier does nothing.
    BarrierIgnored,
    /// A page that was written in part is written with zeros where it was not.
    EdgeNotRead,
    /// Where pieces of a collective write overlap the lowest rank is seen.
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
