//! The gate: the FIFO queue in which writers wait for memory. It admits writers at the pace at which the running flush frees
//! memory.
//!
//! Without pacing, writers would fill all memtables as fast as they can and then stall for the rest of the flush. Here the bytes
//! that may be in use grow with the flush's progress. They grow from slightly more than the bytes in use at its start to the whole
//! limit at its end. So a writer that is faster than the flush is held to the flush's speed, a few records at a time, and a slower
//! writer notices nothing.
//!
//! Writers queue only while memory is short. Once no flush remains all writers may continue: the first in the queue may be a future
//! that its program has stopped polling.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::is_broken;

/// Divisor for the memory that is free at the start of a flush: writers may use the quotient immediately.
const AT_ONCE: u64 = 4;
/// Interval at which the next writer checks again while a table is made durable and opened: those steps
/// report no progress.
const TICK: Duration = Duration::from_millis(1);
/// The fraction of a flush in which it writes entries, assumed until one was measured.
const BODY: f64 = 0.75;
/// The least fraction assumed for either of the two phases.
const PART_MIN: f64 = 0.05;
/// The progress of the end phase, as a fraction, once it has lasted as long as in the previous flush. If it lasts longer, its
/// progress approaches 1: writers are slowed, but still not stopped.
const EASED: f64 = 0.8;

/// The line of waiting writers, and the progress of the flush.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    /// Number of places in the line.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct GateState {
    line: VecDeque<(u64, Option<Waker>)>,
    next_place: u64,
    flush: Option<Flush>,
    /// Durations of the last flush: of writing entries, and of the steps after it.
    body_ns: u64,
    end_ns: u64,
}

/// A flush that is running or about to start.
#[derive(Clone, Copy, Debug)]
struct Flush {
    /// Bytes in use when it became the next flush.
    used: u64,
    entries: u64,
    written: u64,
    began_ns: u64,
    /// The time at which all entries were written.
    ending_ns: Option<u64>,
}

/// A place in the line, held until it is dropped.
#[derive(Debug)]
pub(crate) struct GatePosition<'a> {
    gate: &'a Gate,
    number: u64,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a writer may try: it is first in the line, or the line is empty.
    pub(crate) fn is_turn(&self, place: Option<&GatePosition<'_>>) -> bool {
        match place {
            None => self.waiting.load(Ordering::Acquire) == 0,
            Some(place) => self.lock().line.front().is_some_and(|(first, _)| *first == place.number),
        }
    }

    /// Returns a place at the end of the line.
    pub(crate) fn join(&self) -> GatePosition<'_> {
        let mut state = self.lock();
        let number = state.next_place;
        state.next_place += 1;
        debug_assert!(state.line.back().is_none_or(|(last, _)| *last < number), "writers wait in order");
        state.line.push_back((number, None));
        self.waiting.store(state.line.len(), Ordering::Release);
        GatePosition { gate: self, number }
    }

    /// Wakes the first in the line, which checks again.
    pub(crate) fn notify(&self) {
        if self.waiting.load(Ordering::Acquire) > 0 {
            let first = self.lock().line.front_mut().and_then(|(_, waker)| waker.take());
            first.into_iter().for_each(Waker::wake);
        }
    }

    /// Wakes all in the line, which check again: the memory suffices for all of them.
    pub(crate) fn notify_all(&self) {
        let mut wakers = Vec::new();
        wakers.extend(self.lock().line.iter_mut().filter_map(|(_, waker)| waker.take()));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Sets the next flush, of this many entries; `used` are the bytes in use now.
    pub(crate) fn begin(&self, used: u64, entries: usize, now_ns: u64) {
        let entries = entries.max(1) as u64;
        self.lock().flush = Some(Flush { used, entries, written: 0, began_ns: now_ns, ending_ns: None });
    }

    /// Marks the start of the flush's work.
    pub(crate) fn start(&self, now_ns: u64) {
        if let Some(flush) = &mut self.lock().flush {
            (flush.began_ns, flush.written, flush.ending_ns) = (now_ns, 0, None);
        }
    }

    /// Adds this many keys to those that the flush has written.
    pub(crate) fn advance(&self, keys: usize) {
        if let Some(flush) = &mut self.lock().flush {
            flush.written += keys as u64;
        }
        self.notify();
    }

    /// Marks the end of writing entries. The keys written may be fewer than the entries, since a key may have
    /// several. The steps that follow report no progress.
    pub(crate) fn all_written(&self, now_ns: u64) {
        if let Some(flush) = &mut self.lock().flush {
            flush.ending_ns = Some(now_ns);
        }
        self.notify();
    }

    /// Marks the end of the flush and records the durations of its two phases.
    pub(crate) fn end(&self, now_ns: u64) {
        let mut state = self.lock();
        if let Some(flush) = state.flush.take()
            && let Some(ending_ns) = flush.ending_ns
        {
            state.body_ns = ending_ns.saturating_sub(flush.began_ns);
            state.end_ns = now_ns.saturating_sub(ending_ns);
        }
    }

    /// Returns the bytes that may be in use now, at most `limit`.
    pub(crate) fn allowed(&self, limit: u64, now_ns: u64) -> u64 {
        let state = self.lock();
        let Some(flush) = state.flush.filter(|_| !is_broken!(WritersNotPaced)) else { return limit };
        let free = limit.saturating_sub(flush.used);
        let paced = free - free / AT_ONCE;
        let allowed =
            flush.used.min(limit) + free / AT_ONCE + (paced as f64 * state.part(&flush, now_ns)) as u64;
        debug_assert!(allowed <= limit, "no flush allows more than the memtables' share");
        allowed
    }

    /// Runs a flush, on a shard, and returns its result. Meanwhile it wakes the first in the line at
    /// intervals.
    pub(crate) async fn watch<T>(&self, flush: impl Future<Output = T>) -> T {
        let (mut flush, mut tick) = (pin!(flush), None);
        poll_fn(|context| {
            loop {
                if let Poll::Ready(answer) = flush.as_mut().poll(context) {
                    return Poll::Ready(answer);
                }
                let sleep = tick.get_or_insert_with(|| forebay::shard::sleep(TICK));
                if Pin::new(sleep).poll(context).is_pending() {
                    return Poll::Pending;
                }
                tick = None;
                self.notify();
            }
        })
        .await
    }
}

impl GateState {
    /// Returns the index of a place in the line, in which numbers ascend: ten thousand writers may wait.
    fn index_of(&self, number: u64) -> Option<usize> {
        self.line.binary_search_by_key(&number, |(number, _)| *number).ok()
    }

    /// Returns how much of a flush is done, from 0 to 1.
    fn part(&self, flush: &Flush, now_ns: u64) -> f64 {
        let both = self.body_ns + self.end_ns;
        let body = if both == 0 { BODY } else { self.body_ns as f64 / both as f64 };
        let body = body.clamp(PART_MIN, 1.0 - PART_MIN);
        let Some(ending_ns) = flush.ending_ns else {
            return body * (flush.written as f64 / flush.entries as f64).min(1.0);
        };
        let usual_ns = match both {
            0 => ending_ns.saturating_sub(flush.began_ns) / 3,
            _ => self.end_ns,
        };
        let passed = now_ns.saturating_sub(ending_ns) as f64 / usual_ns.max(1) as f64;
        let eased = if passed < 1.0 { EASED * passed } else { 1.0 - (1.0 - EASED) / passed };
        body + (1.0 - body) * eased
    }
}

impl GatePosition<'_> {
    /// Waits until `check` returns a value, and returns that. `check` gets whether this is the first place in
    /// the line. It is called again after each [`notify`](Gate::notify), once the place is the first, and after
    /// each [`notify_all`](Gate::notify_all).
    pub(crate) async fn until<T>(&self, mut check: impl FnMut(bool) -> Option<T>) -> T {
        poll_fn(|context| {
            let is_first = {
                let mut state = self.gate.lock();
                let index = state.index_of(self.number);
                if let Some((_, waker)) = index.and_then(|index| state.line.get_mut(index)) {
                    *waker = Some(context.waker().clone());
                }
                index == Some(0)
            };
            // A change before the waker was stored is seen here; a later change wakes.
            check(is_first).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Drop for GatePosition<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.gate.lock();
            if let Some(index) = state.index_of(self.number) {
                state.line.remove(index);
            }
            self.gate.waiting.store(state.line.len(), Ordering::Release);
        }
        self.gate.notify();
    }
}
