//! Faults put into a store on purpose, to check that the tests catch them.
//!
//! The switch belongs to the calling thread. A simulated world runs on one thread and so is broken as a
//! whole. The store of a real engine, whose tasks run on a shard, is never touched.

use std::cell::Cell;

/// The fault to put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutant {
    /// The manifest names a table that was not made durable.
    TableNotSynced,
    /// Reads see writes that are not durable yet.
    VisibleBeforeDurable,
    /// The log drops its records before the manifest names the tables that contain them.
    LogCutTooSoon,
    /// A compaction drops deletions although something older lies below.
    DeletionDroppedTooSoon,
    /// A compaction removes its input tables before the manifest names its output tables.
    InputsRemovedTooSoon,
    /// Writers fill all memory at full speed and then wait for the rest of a flush.
    WritersNotPaced,
    /// A get that was woken because there is room makes all others wait until it comes for it.
    WokenKeepsItsRoom,
}

thread_local! {
    static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Runs `f` with this thread's simulated stores broken.
pub fn with<T>(mutant: Mutant, f: impl FnOnce() -> T) -> T {
    struct Mended(Option<Mutant>);
    impl Drop for Mended {
        fn drop(&mut self) {
            ON.set(self.0);
        }
    }
    let _mended = Mended(ON.replace(Some(mutant)));
    f()
}

impl Mutant {
    #[inline]
    pub(crate) fn is_on(self) -> bool {
        ON.try_with(Cell::get).ok().flatten() == Some(self)
    }
}
