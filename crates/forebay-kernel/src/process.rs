//! Values that belong to one process: a forked child has copies of its parent's handles, and neither the memory, nor the threads, nor a
//! say in the rings and sessions behind them.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Words for a call that only the parent can make.
pub(crate) const FORKED: &str = "this process was forked from the one that opened the walks";

/// Forks between this process and the first that asked.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// Returns the calling process. Its children are known from then on, if they are made by fork(3).
    pub(crate) fn here() -> Process {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // SAFETY: the handler adds to an atomic number, which a forked child may do. Without memory for it, no child is known.
            unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        Process(FORKS.load(Ordering::Relaxed))
    }

    /// Returns how many forks made it, from the first process that asked on.
    pub(crate) fn forks(self) -> u32 {
        self.0
    }

    /// Returns whether the calling process is another one. Costs a load.
    #[inline]
    pub(crate) fn is_elsewhere(self) -> bool {
        FORKS.load(Ordering::Relaxed) != self.0
    }
}

/// A value that is dropped in the process that made it and in no other: its destructor would unmap memory that a child never had,
/// or end its parent's walks. A child's copies of descriptors stay open for as long as the child runs.
#[derive(Debug)]
pub(crate) struct Own<T> {
    process: Process,
    value: ManuallyDrop<T>,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Own<T> {
        Own { process: Process::here(), value: ManuallyDrop::new(value) }
    }

    /// Returns whether the calling process is a forked child, which must not use the value.
    #[inline]
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.process.is_elsewhere()
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Own<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if !self.is_elsewhere() {
            // SAFETY: nothing uses the value afterwards, and it is dropped nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
