//! The shared-memory primitives, from one place: atomics, locks, cells and queues for the parts whose
//! protocols are model-checked.
//!
//! In every ordinary build these are the types themselves under their own names, so they cost nothing and need no further reading
//! here. In this crate's own tests under `--cfg forebay_loom` they are models that explore every interleaving and every value that
//! the memory model lets a load return; `scripts/checks/soundness loom` runs those tests. The flag has a distinct name because
//! plain `loom` would also switch other crates, some of which then need features that are not enabled.

#[cfg(all(forebay_loom, test))]
pub(crate) mod model;

#[cfg(all(forebay_loom, test))]
pub(crate) use model::{ArrayQueue, AtomicWaker, Condvar, Mutex, MutexGuard, SegQueue, UnsafeCell, atomic};

#[cfg(not(all(forebay_loom, test)))]
pub(crate) use {
    atomic_waker::AtomicWaker,
    crossbeam_queue::{ArrayQueue, SegQueue},
    std::cell::UnsafeCell,
    std::sync::{Condvar, Mutex, MutexGuard, atomic},
};
