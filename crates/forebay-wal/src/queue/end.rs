//! How a log ends: closed, failed, or with its engine.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use forebay::Class;

use super::{Shared, closed};
use crate::error::{Error, ErrorKind, Result};
use crate::wait::wake_all;

impl Shared {
    /// Nothing more is taken; what is queued is written, then the task ends.
    pub(crate) fn begin_close(&self) {
        let wakers: Vec<Waker> = {
            let mut state = self.lock();
            state.closing = true;
            // Those that wait for room find the log closed.
            let watchers = std::mem::take(&mut state.watchers);
            let room = state.line.clear().chain(watchers);
            state.writer.take().into_iter().chain(room).collect()
        };
        wake_all(wakers);
    }

    /// Everything that waits, and every later call, fails with this.
    pub(crate) fn fail(&self, error: &Error) {
        self.stop.store(true, Ordering::Release);
        let wakers = {
            let mut state = self.lock();
            let state = &mut *state;
            if state.failed.is_none() {
                state.failed = Some(error.poisoned());
            }
            let mut wakers = std::mem::take(&mut state.flying.1);
            for group in &mut state.groups {
                wakers.append(&mut group.wakers);
            }
            state.groups.clear();
            state.free.clear();
            state.pending = 0;
            wakers.extend(state.line.clear());
            wakers.append(&mut state.watchers);
            wakers
        };
        wake_all(wakers);
    }

    /// The task is over and has given its locks back. One that did not come to its end (its engine ended, or
    /// it panicked) leaves nobody waiting and no file locked; then nothing can be read any more, either.
    pub(crate) fn end(&self, orderly: bool) {
        self.stop.store(true, Ordering::Release);
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
            (unfinished && state.failed.is_none(), segments, state.line.clear())
        };
        drop(segments);
        if unfinished {
            self.fail(&cut_short.unwrap_or_else(closed));
        }
        let ends = std::mem::take(&mut self.lock().ends);
        wake_all(room.chain(ends));
    }

    /// What ended the task before its time: the engine knows, and a task that it would not begin is told.
    fn why_cut_short(&self) -> Error {
        let probe = pin!(self.engine.spawn_on_shard(self.shard, Class::DEFAULT, || async {}));
        match probe.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) => error.into(),
            _ => Error::new(ErrorKind::Closed, "the log's task panicked"),
        }
    }

    /// Has the task ended?
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
