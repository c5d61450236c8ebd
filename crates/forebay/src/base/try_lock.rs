//! A lock that is tried and never waited for. A thread that finds it held leaves a mark, and the holder looks again before it
//! leaves.

use crate::base::sync::atomic::{AtomicU8, Ordering};

const FREE: u8 = 0;
const HELD: u8 = 1;
/// Held, and another thread wants the holder to look again.
const WANTED: u8 = 2;

/// Checks of a held lock, each with the processor's pause: 1 to 2 us.
const SPINS: u32 = 50;

/// The lock of a visited shard.
pub(crate) struct TryLock(AtomicU8);

impl TryLock {
    /// Returns a lock that is held by its maker.
    pub(crate) fn held() -> TryLock {
        TryLock(AtomicU8::new(HELD))
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock if it becomes free within about a microsecond, which is longer than most visits.
    #[inline]
    pub(crate) fn try_lock_briefly(&self) -> bool {
        self.try_lock() || self.spin()
    }

    #[cold]
    fn spin(&self) -> bool {
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if self.0.load(Ordering::Relaxed) == FREE && self.try_lock() {
                return true;
            }
        }
        false
    }

    /// Takes the lock if it is free, else leaves the mark: everything that the caller did before is then seen by the holder's next
    /// look.
    pub(crate) fn try_lock_or_mark(&self) -> bool {
        if crate::_is_broken!(HeldLockUnmarked) {
            return self.try_lock();
        }
        loop {
            if self.try_lock() {
                return true;
            }
            // Release: the holder's look sees what the caller did. A mark that is there already is written again for that.
            for held in [HELD, WANTED] {
                if self.0.compare_exchange(held, WANTED, Ordering::Release, Ordering::Relaxed).is_ok() {
                    return false;
                }
            }
        }
    }

    /// Releases the lock. Returns false, with the lock still held, if another thread left a mark: the holder must look again.
    #[inline]
    pub(crate) fn unlock(&self) -> bool {
        if self.0.compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed).is_ok() {
            return true;
        }
        let before = self.0.swap(HELD, Ordering::AcqRel);
        debug_assert_eq!(before, WANTED, "only the holder unlocks");
        false
    }

    /// Releases the lock, after one more `look` if another thread left a mark. Returns whether another mark was left during that
    /// look: the caller must have the next look made by another thread.
    #[inline]
    pub(crate) fn leave(&self, look: impl FnOnce()) -> bool {
        if self.unlock() {
            return false;
        }
        if crate::_is_broken!(SecondLookSkipped) {
            self.unlock_anyway();
            return false;
        }
        look();
        self.unlock_anyway()
    }

    /// Releases the lock. Returns whether another thread had left a mark, whose look the caller must have made by another thread.
    pub(crate) fn unlock_anyway(&self) -> bool {
        self.0.swap(FREE, Ordering::AcqRel) == WANTED
    }
}

#[cfg(all(test, forebay_loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::sync::UnsafeCell;
    use crate::base::sync::model::{Guarantee, breaking, check};

    /// Two visitors, each with a message: both messages are seen in either order, and the two are never inside together.
    fn nothing_is_overlooked() {
        struct Shard {
            lock: TryLock,
            inside: UnsafeCell<u32>,
            messages: [AtomicU8; 2],
        }
        // SAFETY: `inside` is accessed under the lock, which this model checks.
        unsafe impl Sync for Shard {}
        impl Shard {
            fn look(&self) {
                // SAFETY: under the lock.
                unsafe { *self.inside.get() += 1 };
                for message in &self.messages {
                    // Relaxed: what orders the two is the lock.
                    if message.load(Ordering::Relaxed) == 1 {
                        message.store(2, Ordering::Relaxed);
                    }
                }
            }

            fn visit(&self) {
                if self.lock.try_lock_or_mark() {
                    self.look();
                    while !self.lock.unlock() {
                        self.look();
                    }
                }
            }
        }
        let shard = Arc::new(Shard {
            lock: TryLock(AtomicU8::new(FREE)),
            inside: UnsafeCell::new(0),
            messages: [AtomicU8::new(0), AtomicU8::new(0)],
        });
        let other = shard.clone();
        let thread = loom::thread::spawn(move || {
            other.messages[1].store(1, Ordering::Relaxed);
            other.visit();
        });
        shard.messages[0].store(1, Ordering::Relaxed);
        shard.visit();
        thread.join().unwrap();
        for message in &shard.messages {
            assert_eq!(message.load(Ordering::Relaxed), 2, "a message was overlooked");
        }
    }

    #[test]
    fn a_message_is_seen_by_its_sender_or_by_the_holder() {
        check(nothing_is_overlooked);
    }

    #[test]
    #[should_panic]
    fn without_its_releases_the_lock_overlooks() {
        breaking(&[Guarantee::Release], nothing_is_overlooked);
    }
}
