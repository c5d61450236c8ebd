//! Run queues: one per class, served in proportion to the classes' shares.

use std::collections::VecDeque;

use super::Runnable;
use crate::base::class::{CLASSES_MAX, Class, ClassTable};

/// Ready tasks, with one queue per class.
pub(super) struct Queues {
    ready: [VecDeque<Runnable>; CLASSES_MAX],
    /// Virtual time of each class. The class that lags most is next.
    pass: [u64; CLASSES_MAX],
    /// The largest virtual time at which a class was served.
    served: u64,
    /// One bit per class with ready tasks.
    nonempty: u16,
}

impl Queues {
    pub(super) fn new() -> Queues {
        Queues {
            ready: [const { VecDeque::new() }; CLASSES_MAX],
            pass: [0; CLASSES_MAX],
            served: 0,
            nonempty: 0,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.nonempty == 0
    }

    #[inline]
    pub(super) fn push(&mut self, runnable: Runnable) {
        let class = runnable.metadata().class.0 as usize % CLASSES_MAX;
        debug_assert_eq!(
            self.nonempty & (1 << class) != 0,
            !self.ready[class].is_empty(),
            "a class's bit is set while tasks of it are ready"
        );
        if self.nonempty & (1 << class) == 0 {
            // A class that was idle does not catch up on the share that it did not request.
            self.pass[class] = self.pass[class].max(self.served);
            self.nonempty |= 1 << class;
        }
        self.ready[class].push_back(runnable);
    }

    /// Dequeues the next task by stride scheduling (Waldspurger 1995), with a poll as the unit.
    #[inline]
    pub(super) fn pop(&mut self, classes: &ClassTable) -> Option<Runnable> {
        let class = match self.nonempty {
            0 => return None,
            one if one & (one - 1) == 0 => one.trailing_zeros() as usize,
            _ => (0..CLASSES_MAX)
                .filter(|class| self.nonempty & (1 << class) != 0)
                .min_by_key(|&class| self.pass[class])?,
        };
        self.served = self.served.max(self.pass[class]);
        if self.nonempty & (self.nonempty - 1) != 0 {
            self.pass[class] += (1 << 20) / u64::from(classes.shares(Class(class as u8)).max(1));
        }
        let runnable = self.ready[class].pop_front();
        debug_assert!(runnable.is_some(), "a class's bit is set while tasks of it are ready");
        if self.ready[class].is_empty() {
            self.nonempty &= !(1 << class);
        }
        runnable
    }
}
