//! One value that a signal handler fills and another thread reads, without a lock and without waiting.

use crate::base::sync::UnsafeCell;
use crate::base::sync::atomic::{AtomicU64, Ordering};

#[cfg(all(forebay_loom, test))]
mod loom_tests;

/// A place for one value, and its present owner, if any: the thread that was requested to fill it, or the reader.
///
/// A writer may be late, or never write. No thread waits for it, and a new request replaces an unserved one. While a thread writes
/// or reads the value nothing else can start. The whole protocol is one word: the number of the requested poll and one of five
/// states. Each step is one compare-and-swap from the state that it needs, so the protocol holds for any number of threads on each
/// side.
pub(crate) struct Handover<T> {
    word: AtomicU64,
    value: UnsafeCell<T>,
}

const IDLE: u64 = 0;
const ASKED: u64 = 1;
const WRITING: u64 = 2;
const WRITTEN: u64 = 3;
const READING: u64 = 4;
/// Bits of the state; the number is above them.
const STATE_BITS: u32 = 3;
const STATE: u64 = (1 << STATE_BITS) - 1;

// SAFETY: the value is accessed between a compare-and-swap to `WRITING` or `READING` and the store that
// leaves it, and only one thread at a time gets there; acquire and release of the word order the accesses of
// one before those of the next.
unsafe impl<T: Send> Sync for Handover<T> {}

impl<T> Handover<T> {
    pub(crate) fn new(value: T) -> Handover<T> {
        Handover { word: AtomicU64::new(IDLE), value: UnsafeCell::new(value) }
    }

    /// Requests the value of `number` (at most 2^61), instead of any earlier request. Returns false while a
    /// thread still writes, or while a written value has not been read.
    pub(crate) fn ask(&self, number: u64) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let free = matches!(word & STATE, IDLE | ASKED);
        // Acquire and release: the last reader's accesses happen before the next writer's.
        free && self.step(word, number << STATE_BITS | ASKED, Ordering::AcqRel)
    }

    /// Fills the value if it was requested under this number. It executes only plain loads and stores and
    /// `fill`, so it is fit for a signal handler.
    pub(crate) fn write(&self, number: u64, fill: impl FnOnce(&mut T)) -> bool {
        let number = number << STATE_BITS;
        if !self.step(number | ASKED, number | WRITING, Ordering::Acquire) {
            return false;
        }
        // SAFETY: the state is `WRITING`, and we made it so: no other thread accesses the value until we
        // leave it.
        fill(unsafe { &mut *self.value.get() });
        self.word.store(number | WRITTEN, Ordering::Release);
        true
    }

    /// Passes the value and its number to `look` if one was written. The value is then used up.
    pub(crate) fn read<R>(&self, look: impl FnOnce(u64, &T) -> R) -> Option<R> {
        let word = self.word.load(Ordering::Relaxed);
        if word & STATE != WRITTEN || !self.step(word, word & !STATE | READING, Ordering::Acquire) {
            return None;
        }
        // SAFETY: the state is `READING`, and we made it so, as above.
        let seen = look(word >> STATE_BITS, unsafe { &*self.value.get() });
        self.word.store(IDLE, Ordering::Release);
        Some(seen)
    }

    fn step(&self, from: u64, to: u64, order: Ordering) -> bool {
        self.word.compare_exchange(from, to, order, Ordering::Relaxed).is_ok()
    }
}
