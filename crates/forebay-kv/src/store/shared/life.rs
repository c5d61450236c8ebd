//! Failure and closing of a store, and its background tasks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;

impl Shared {
    /// Makes the store read-only with its first failure, and returns that failure.
    pub(crate) fn fail(&self, error: &Error) -> Error {
        let first = {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert_with(|| error.read_only()).clone()
        };
        self.is_failed.store(true, Ordering::Release);
        self.notify_all();
        first
    }

    /// Returns an error unless the store takes writes.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_failed.load(Ordering::Acquire)
            && let Some(error) = &*self.failed.lock().unwrap_or_else(PoisonError::into_inner)
        {
            return Err(error.clone());
        }
        self.check_open()
    }

    /// Returns an error once the store was closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closing.load(Ordering::Acquire) {
            Err(Error::new(ErrorKind::Closed, "the store was closed"))
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(crate) fn has_failed(&self) -> Option<Error> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn begin_close(&self) {
        self.closing.store(true, Ordering::Release);
        self.notify_all();
    }

    pub(in crate::store) fn set_ended(&self) {
        // Handles may outlive the store, and another store may be opened in its place.
        self.cache.clear();
        self.budget.release();
        self.ended.store(true, Ordering::Release);
        self.closing.store(true, Ordering::Release);
        self.notify_all();
    }

    pub(in crate::store) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(in crate::store) fn notify_all(&self) {
        [&self.work, &self.space, &self.changed, &self.end, &self.full.bell]
            .into_iter()
            .for_each(Event::notify);
        self.throttle.notify();
        self.gate.notify_all();
    }

    /// Counts a background task until the returned guard is dropped; closing waits for it. Such a task checks
    /// [`is_closing`](Self::is_closing) at least every few milliseconds.
    pub(crate) fn begin_task(self: &Arc<Self>) -> Task {
        self.tasks.fetch_add(1, Ordering::AcqRel);
        Task(self.clone())
    }

    /// Waits until no background task is left.
    pub(in crate::store) async fn tasks_end(&self) {
        self.end.until(|| (self.tasks.load(Ordering::Acquire) == 0).then_some(())).await;
    }
}

/// A background task, counted as long as it runs.
pub(crate) struct Task(Arc<Shared>);

impl Drop for Task {
    fn drop(&mut self) {
        let before = self.0.tasks.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a task is counted until it ends");
        self.0.end.notify();
    }
}
