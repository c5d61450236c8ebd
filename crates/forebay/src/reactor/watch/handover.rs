//! One value that a signal handler fills and another thread reads, without a lock and without waiting.

use crate::base::sync::UnsafeCell;
use crate::base::sync::atomic::{AtomicU64, Ordering};

#[cfg(all(forebay_loom, test))]
mod loom_tests;

/// A place for one value, and whose turn it is: nobody's, the one's who was asked, or the reader's.
///
/// Whoever was asked may come late, or never: nobody waits for it, a new request takes the place of one that was not
/// answered, and while somebody writes or reads the value nothing else can begin. The whole protocol is one word, the
/// number of the poll that was asked for and one of five states, and each step is one compare-and-swap from the state that
/// it needs; so it holds however many threads take each part.
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

// SAFETY: the value is touched between a compare-and-swap to `WRITING` or `READING` and the store that leaves it, and only
// one thread at a time gets there; acquire and release of the word order what one does before what the next sees.
unsafe impl<T: Send> Sync for Handover<T> {}

impl<T> Handover<T> {
    pub(crate) fn new(value: T) -> Handover<T> {
        Handover { word: AtomicU64::new(IDLE), value: UnsafeCell::new(value) }
    }

    /// Asks for the value of `number` (at most 2^61), instead of whatever was asked before. False: somebody still writes, or what
    /// was written has not been read.
    pub(crate) fn ask(&self, number: u64) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let free = matches!(word & STATE, IDLE | ASKED);
        // Acquire and release: what the last reader did is before what the next writer does.
        free && self.step(word, number << STATE_BITS | ASKED, Ordering::AcqRel)
    }

    /// Fills the value if it was asked for under this number. Only plain loads and stores and what `fill` does: fit for a
    /// signal handler.
    pub(crate) fn write(&self, number: u64, fill: impl FnOnce(&mut T)) -> bool {
        let number = number << STATE_BITS;
        if !self.step(number | ASKED, number | WRITING, Ordering::Acquire) {
            return false;
        }
        // SAFETY: the state is `WRITING`, and we made it so: nobody else touches the value until we leave it.
        fill(unsafe { &mut *self.value.get() });
        self.word.store(number | WRITTEN, Ordering::Release);
        true
    }

    /// Shows the value and its number if one was written, which then is over.
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
