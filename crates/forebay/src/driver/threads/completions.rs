//! The queue in which threads leave results and on which the shard waits.

use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::base::fork::Origin;
use crate::base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::base::sync::{Condvar, Mutex, MutexGuard};
use crate::driver::Wait;
use crate::io::op::OpKey;

/// Results that were not returned yet, and the notification that ends a wait for them.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    state: Mutex<State>,
    news: Condvar,
    /// Length of `State::done`, for checks without the lock.
    ready: AtomicUsize,
    /// Set by [`wake`](Self::wake) and kept until a `take` consumes it, so a wake-up without a waiter is not
    /// lost.
    woken: AtomicBool,
    /// An event descriptor that each result signals, for a shard that waits for it and not here.
    event: Option<Arc<OwnedFd>>,
    origin: Origin,
}

#[derive(Debug)]
struct State {
    done: Vec<(OpKey, i32)>,
    /// The number of results at which the waiting shard wants to run; 0 while it runs, or once it was
    /// notified.
    wanted: usize,
}

impl CompletionQueue {
    pub(super) fn new(room: usize, event: Option<Arc<OwnedFd>>) -> CompletionQueue {
        CompletionQueue {
            state: Mutex::new(State { done: Vec::with_capacity(room), wanted: 0 }),
            news: Condvar::new(),
            ready: AtomicUsize::new(0),
            woken: AtomicBool::new(false),
            event,
            origin: Origin::here(),
        }
    }

    /// Ends the current wait, or the next one.
    pub(crate) fn wake(&self) {
        // In a forked child the lock may be held for ever, and no shard is to be woken.
        if self.origin.is_elsewhere() {
            return;
        }
        // A swap orders the waiter that consumes one wake after all wakes before it.
        self.woken.swap(true, Ordering::Release);
        // The waiter checks the flag with the lock held and releases the lock only when it can be notified.
        let waits = std::mem::take(&mut self.lock().wanted) > 0;
        if waits {
            self.news.notify_one();
        }
    }

    /// Stores a result: bytes, or a negative errno.
    pub(super) fn push(&self, key: OpKey, result: i32) {
        let mut state = self.lock();
        state.done.push((key, result));
        self.ready.store(state.done.len(), Ordering::Release);
        let enough = state.wanted > 0 && state.done.len() >= state.wanted;
        if enough {
            // One notification is enough: results that arrive before the waiter runs need no further call.
            state.wanted = 0;
        }
        drop(state);
        if enough {
            self.news.notify_one();
        }
        if let Some(event) = &self.event {
            // It fails only if the counter is full, and then the descriptor is readable already.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }

    /// Returns whether a result is available.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) > 0
    }

    /// Waits as `wait` specifies and moves all results into `taken`, which must be empty. Nothing is
    /// allocated: the two vectors change places.
    #[inline]
    pub(super) fn take(&self, wait: Wait, taken: &mut Vec<(OpKey, i32)>) {
        debug_assert!(taken.is_empty());
        let mut state = match wait {
            Wait::Poll => {
                // The waking thread published its news before it set the flag, and the caller checks for news
                // after this.
                if self.woken.load(Ordering::Relaxed) {
                    self.woken.swap(false, Ordering::AcqRel);
                }
                if !self.is_ready() {
                    return;
                }
                self.lock()
            }
            Wait::For { completions, patience, limit, .. } => {
                self.wait(completions as usize, patience, limit)
            }
        };
        std::mem::swap(&mut state.done, taken);
        self.ready.store(0, Ordering::Release);
    }

    fn wait(
        &self,
        completions: usize,
        patience: Option<Duration>,
        limit: Option<Duration>,
    ) -> MutexGuard<'_, State> {
        let patience = patience.filter(|_| completions > 1);
        let mut began = None;
        let mut state = self.lock();
        loop {
            let woken = self.woken.swap(false, Ordering::AcqRel);
            if woken || state.done.len() >= completions {
                break;
            }
            let mut wanted = completions;
            let mut longest = None;
            if patience.is_some() || limit.is_some() {
                let passed = began.get_or_insert_with(Instant::now).elapsed();
                if limit.is_some_and(|limit| passed >= limit) {
                    break;
                }
                longest = limit.map(|limit| limit - passed);
                match patience.map(|patience| patience.saturating_sub(passed)) {
                    Some(Duration::ZERO) => wanted = 1,
                    Some(left) => longest = Some(longest.map_or(left, |longest| longest.min(left))),
                    None => {}
                }
                if state.done.len() >= wanted {
                    break;
                }
            }
            state.wanted = wanted;
            state = match longest {
                Some(longest) => {
                    self.news.wait_timeout(state, longest).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.news.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        state.wanted = 0;
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, forebay_loom))]
mod loom_tests;
