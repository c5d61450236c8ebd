//! Facts about the calling thread that every layer may query: whether it is a shard's, and which simulated
//! world runs on it.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    static ON_SHARD: Cell<bool> = const { Cell::new(false) };
    static WAITS: Cell<Waits> = const { Cell::new(Waits::No) };
    /// This thread's number plus 1; 0 before the first look.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
    /// The number of the world that runs on this thread, or 0, and its time.
    #[cfg(feature = "_sim")]
    static WORLD: Cell<u64> = const { Cell::new(0) };
    #[cfg(feature = "_sim")]
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

/// Returns whether this thread runs a shard at the moment.
#[inline]
pub(crate) fn is_on_shard() -> bool {
    ON_SHARD.get()
}

/// Sets whether this thread is a shard's. Called by the reactor.
#[inline]
pub(crate) fn set_on_shard(is_on_shard: bool) {
    ON_SHARD.set(is_on_shard);
}

/// Returns a number of the calling thread, for sharded state, in which each thread mostly changes its own part: a counter that
/// threads on several processors change costs each of them 0.1 us.
#[inline]
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if NUMBER.get() == 0 {
        NUMBER.set(NEXT.fetch_add(1, Ordering::Relaxed) + 1);
    }
    NUMBER.get()
}

/// Whether a thread is in a `.wait()`, where it can do nothing else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    No,
    /// For a future of any kind.
    ForAny,
    /// For a future that starts an operation only after the end of the previous one.
    InTurn,
}

/// Returns whether this thread is in a `.wait()`.
#[inline]
pub(crate) fn waits() -> Waits {
    WAITS.get()
}

/// Marks this thread, and returns the former mark.
pub(crate) fn set_waits(waits: Waits) -> Waits {
    WAITS.replace(waits)
}

/// Returns the number of the world that runs on this thread; 0 outside of worlds.
#[cfg(feature = "_sim")]
#[inline]
pub fn world() -> u64 {
    WORLD.get()
}

/// Returns the virtual time of this thread's world, in nanoseconds since its start.
#[cfg(feature = "_sim")]
#[inline]
pub fn now_ns() -> u64 {
    NOW_NS.get()
}

/// Sets the number of the world that starts on this thread (`number` above 0), or 0 when it ends.
#[cfg(feature = "_sim")]
pub fn set_world(number: u64, now_ns: u64) {
    WORLD.set(number);
    NOW_NS.set(now_ns);
}

/// Sets the virtual time of this thread's world. Called by the world.
#[cfg(feature = "_sim")]
pub fn set_now_ns(now_ns: u64) {
    NOW_NS.set(now_ns);
}
