//! The duty to write the queue. It is tied to the waker of the log's thread: the caller that removes the waker from the queue wakes
//! the thread. A thread in `.wait()` whose appends are alone writes its group itself instead, which saves two changes of threads:
//! on a fast device a good part of the time of the write. It writes one group, so appends of that time wait for one system call at
//! most, and then returns the duty. A task never does this: it would block its runtime.

use std::sync::Weak;
use std::task::Waker;

use super::{Queue, QueueState};

/// The number of successive groups with one append each after which appends count as alone.
const ALONE_AFTER: u8 = 2;

/// Writes groups on threads that wait for them.
pub(crate) trait Server: Send + Sync {
    /// Writes one group on the calling thread, if one is due. Returns whether the log's thread has to be woken.
    fn write_group(&self) -> bool;
}

/// The duty, or `None`. A dropped duty wakes the log's thread.
#[derive(Default)]
pub(crate) struct Duty(Option<Waker>);

impl Drop for Duty {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            thread.wake();
        }
    }
}

impl Queue {
    /// Lets threads that wait write by themselves from now on.
    pub(crate) fn serve_by(&self, server: Weak<dyn Server>) {
        // A log has one thread.
        let _ = self.server.set(server);
    }

    /// Does the duty, if any, on the calling thread, which can do nothing else before its group is durable.
    pub(crate) fn write_here(&self, duty: &mut Duty) {
        if duty.0.is_none() {
            return;
        }
        let server = self.server.get().and_then(Weak::upgrade);
        // After a panic the duty is still there, and its drop wakes the log's thread.
        let is_thread_wanted = server.is_none_or(|server| server.write_group());
        let mut state = self.lock();
        if !is_thread_wanted && !self.is_short() && state.is_quiet() && state.writer.is_none() {
            state.writer = duty.0.take();
        }
        drop(state);
        drop(std::mem::take(duty));
    }
}

impl QueueState {
    /// Takes the waker of the log's thread, which has work now, and returns it unless `theirs` accepts the duty.
    pub(super) fn writer_for(&mut self, shared: &Queue, theirs: Option<&mut Duty>) -> Option<Waker> {
        if self.is_all_deferred() {
            return None;
        }
        let writer = self.writer.take();
        let is_alone = || self.lone_groups >= ALONE_AFTER && self.groups.len() == 1 && self.line.is_empty();
        match theirs {
            Some(duty) if shared.server.get().is_some() && !shared.is_short() && is_alone() => {
                duty.0 = writer;
                None
            }
            _ => writer,
        }
    }

    /// Counts successive groups with one append each.
    pub(super) fn note_appends(&mut self, appends: u32) {
        match appends {
            0 => {}
            1 => self.lone_groups = self.lone_groups.saturating_add(1),
            _ => self.lone_groups = 0,
        }
    }

    /// Returns whether the log's thread has nothing to do but to wait for the end of a quiet period.
    fn is_quiet(&self) -> bool {
        let is_empty = self.groups.is_empty() || self.is_all_deferred();
        is_empty && self.line.is_empty() && !self.closing && !self.engine_ended && self.failed.is_none()
    }
}
