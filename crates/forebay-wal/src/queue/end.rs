//! The end of a log: closed, failed, or stopped with its engine.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use forebay::Class;

use super::{Queue, closed};
use crate::error::{Error, ErrorKind, Result};
use crate::wait::wake_all;

impl Queue {
    /// Closes the log to new calls. Queued groups are written, then the task ends.
    pub(crate) fn begin_close(&self) {
        let wakers: Vec<Waker> = {
            let mut state = self.lock();
            let state = &mut *state;
            state.closing = true;
            // Waiters for room find the log closed.
            let watchers = state.watchers.clear();
            let room = state.line.clear().chain(watchers);
            // Those that wait for records which are queued wait again.
            let followers = state.queued_watch.clear().chain(state.durable_watch.clear());
            state.writer.take().into_iter().chain(room).chain(followers).collect()
        };
        wake_all(wakers);
    }

    /// Ends the log with its engine: no call is accepted any more, and the log's own thread writes nothing more.
    pub(crate) fn engine_ends(&self) {
        if self.lock().ended {
            return;
        }
        let why = self.why_cut_short();
        {
            let mut state = self.lock();
            state.engine_ended = true;
            state.cut_short.get_or_insert(why);
        }
        self.begin_close();
    }

    /// Fails all waiters and every later call with this error.
    pub(crate) fn fail(&self, error: &Error) {
        self.pace.stop();
        let wakers = {
            let mut state = self.lock();
            let state = &mut *state;
            if state.failed.is_none() {
                state.failed = Some(error.poisoned());
            }
            let mut wakers = std::mem::take(&mut state.in_flight.wakers);
            state.in_flight.end();
            for group in &mut state.groups {
                wakers.append(&mut group.wakers);
            }
            state.groups.clear();
            state.free.clear();
            state.pending = 0;
            wakers.extend(state.line.clear());
            wakers.extend(state.watchers.clear());
            wakers.append(&mut state.readers);
            wakers.extend(state.queued_watch.clear());
            wakers.extend(state.durable_watch.clear());
            wakers
        };
        wake_all(wakers);
    }

    /// Ends the log, once its task has ended and released its locks. A task that did not end in order (its
    /// engine ended, or it panicked) leaves no waiter blocked and no file locked. Nothing can be read any
    /// more then, either.
    pub(crate) fn end(&self, orderly: bool) {
        self.pace.stop();
        if self.lock().ended {
            return;
        }
        let cut_short = (!orderly).then(|| self.why_cut_short());
        let (unfinished, segments, room) = {
            let mut state = self.lock();
            if std::mem::replace(&mut state.ended, true) {
                return;
            }
            state.closing = true;
            state.cut_short.clone_from(&cut_short);
            let unfinished = self.done.load(Ordering::Acquire) + 1 < state.next_group;
            let segments = if orderly { Vec::new() } else { state.index.release() };
            state.recent.clear();
            (unfinished && state.failed.is_none(), segments, state.line.clear())
        };
        drop(segments);
        if unfinished {
            self.fail(&cut_short.unwrap_or_else(closed));
        }
        let (ends, followers) = {
            let mut state = self.lock();
            let followers = state.queued_watch.clear().chain(state.durable_watch.clear());
            (std::mem::take(&mut state.ends), followers)
        };
        wake_all(room.chain(ends).chain(followers));
    }

    /// Returns the error that ended the task early. The engine has it, and returns it for a task that it
    /// refuses to start.
    fn why_cut_short(&self) -> Error {
        let probe = pin!(self.engine.spawn_on_shard(self.shard, Class::DEFAULT, || async {}));
        match probe.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) => error.into(),
            _ => Error::new(ErrorKind::Closed, "the log's task panicked"),
        }
    }

    /// Completes once the task has ended.
    pub(crate) fn poll_end(&self, waker: &Waker) -> Poll<Result<()>> {
        let mut state = self.lock();
        if !state.ended {
            if !state.ends.iter().any(|known| known.will_wake(waker)) {
                state.ends.push(waker.clone());
            }
            return Poll::Pending;
        }
        Poll::Ready(state.failed.clone().map_or(Ok(()), Err))
    }
}
