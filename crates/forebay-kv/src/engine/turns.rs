//! The lines in which transactions that conflicted wait for their next try.
//!
//! Each line belongs to a key (or a range) that conflicted. The oldest transaction of a line tries again. New transactions yield to
//! the line, so that each gets its turn after one conflict, however many wait. The turn ends with the commit, not once that is
//! durable: the next transaction reads what was committed, and both may be written with one flush of the log.
//!
//! The oldest of a line is *called*; from then on its owner must poll it. The others wait 50 ms for it, longer each time that it
//! conflicts in its turn. Then they *pass* it, so a transaction that is not polled, or whose body takes long, does not hold back
//! others. Numbers are given at the first conflict and kept, so transactions that meet in several lines are in the same order
//! everywhere, and no two wait for each other.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use super::shared::StoreCore;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::is_broken;

/// Time that others wait for a called transaction: longer than a busy machine needs to run its thread.
const PATIENCE_NS: u64 = 50_000_000;
/// The time doubles with each conflict in its turn, at most this many times.
const REFUSALS_MAX: u32 = 3;

/// The lines of a store.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    state: Mutex<Lines>,
    /// Number of places in all lines.
    waiting: AtomicUsize,
    /// Wakes the task that passes over late transactions.
    asked: Event,
}

#[derive(Debug)]
struct Lines {
    /// By line and number: each line has its oldest first.
    places: BTreeMap<(u64, u64), Place>,
    next: u64,
    /// The time until which the task sleeps; `u64::MAX` until it is woken.
    asleep_ns: u64,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines { places: BTreeMap::new(), next: 0, asleep_ns: u64::MAX }
    }
}

#[derive(Debug)]
struct Place {
    state: State,
    refusals: u32,
    /// The time at which it gives up, on the engine's clock.
    limit_ns: u64,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waits,
    /// It may try. Others wait until this time, on the engine's clock.
    Called(u64),
    /// It may try, and others need not wait for it.
    Passed,
    /// Its time is over.
    Late,
}

/// A conflict of a transaction.
#[derive(Debug, Default)]
pub(crate) struct Conflict {
    /// The line of the changed key or range; `None` for other conflicts.
    pub(crate) line: Option<u64>,
    pub(crate) text: String,
}

impl Conflict {
    pub(crate) fn into_error(self) -> Error {
        Error::new(ErrorKind::Conflict, self.text)
    }
}

/// A transaction's place in a line, held until it is dropped.
pub(crate) struct Turn {
    shared: Arc<StoreCore>,
    line: u64,
    number: u64,
}

impl Lines {
    fn line(&mut self, line: u64) -> impl Iterator<Item = &mut Place> {
        self.places.range_mut((line, 0)..=(line, u64::MAX)).map(|(_, place)| place)
    }

    /// Calls the oldest of a line, unless another one is called.
    fn call(&mut self, line: u64, now_ns: u64) -> Option<Waker> {
        let oldest = self.line(line).find(|place| matches!(place.state, State::Waits | State::Called(_)))?;
        if oldest.state != State::Waits {
            return None;
        }
        oldest.state = State::Called(patience_until(now_ns, oldest.refusals));
        oldest.waker.take()
    }

    /// Returns the time at which the task has work next.
    fn due_ns(&self) -> Option<u64> {
        let due = self.places.values().map(|place| match place.state {
            State::Called(until_ns) => until_ns,
            State::Waits => place.limit_ns,
            State::Passed | State::Late => u64::MAX,
        });
        due.min().filter(|due_ns| *due_ns < u64::MAX)
    }
}

fn patience_until(now_ns: u64, refusals: u32) -> u64 {
    if is_broken!(TurnKept) {
        u64::MAX
    } else {
        now_ns.saturating_add(PATIENCE_NS << refusals.min(REFUSALS_MAX))
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a transaction has to yield to others that wait in a line; `own` is its place in one, if it has one.
    pub(crate) fn must_yield(&self, line: u64, own: Option<&Turn>) -> bool {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return false;
        }
        let number = own.map_or(u64::MAX, |turn| turn.number);
        let lines = self.lock();
        let mut older = lines.places.range((line, 0)..(line, number));
        older.any(|(_, place)| matches!(place.state, State::Waits | State::Called(_)))
    }

    /// Wakes all that wait, because the store closes or has failed.
    pub(super) fn notify_all(&self) {
        let wakers: Vec<Waker> =
            self.lock().places.values_mut().filter_map(|place| place.waker.take()).collect();
        wakers.into_iter().for_each(Waker::wake);
        self.asked.notify();
    }

    /// Wakes the task if it would sleep beyond the time at which it has work.
    fn look(&self, lines: MutexGuard<'_, Lines>) {
        let is_due = lines.due_ns().is_some_and(|due_ns| due_ns < lines.asleep_ns);
        drop(lines);
        if is_due {
            self.asked.notify();
        }
    }

    /// Passes over late transactions, and ends the wait of those whose time has expired. Returns the time of its next work.
    fn pass(&self, now_ns: u64) -> Option<u64> {
        let mut woken = Vec::new();
        let due_ns = {
            let mut lines = self.lock();
            let mut passed = Vec::new();
            for ((line, _), place) in &mut lines.places {
                match place.state {
                    State::Called(until_ns) if until_ns <= now_ns => {
                        place.state = State::Passed;
                        passed.push(*line);
                    }
                    State::Waits if place.limit_ns <= now_ns => {
                        place.state = State::Late;
                        woken.extend(place.waker.take());
                    }
                    _ => {}
                }
            }
            for line in passed {
                woken.extend(lines.call(line, now_ns));
            }
            let due_ns = lines.due_ns();
            lines.asleep_ns = due_ns.unwrap_or(u64::MAX);
            due_ns
        };
        woken.into_iter().for_each(Waker::wake);
        due_ns
    }
}

impl StoreCore {
    /// Passes over late transactions until the store closes. Runs as a task of a shard.
    pub(super) async fn run_turns(&self) {
        let turns = &self.turns;
        while !self.is_closing() {
            let now_ns = self.engine.now_ns();
            let due_ns = turns.pass(now_ns);
            let is_earlier = || turns.lock().due_ns().is_some_and(|next| due_ns.is_none_or(|due| next < due));
            let mut asked = pin!(turns.asked.until(|| (self.is_closing() || is_earlier()).then_some(())));
            let mut sleep =
                due_ns.map(|due| forebay::shard::sleep(Duration::from_nanos(due.saturating_sub(now_ns))));
            let slept = poll_fn(|context| match (asked.as_mut().poll(context), &mut sleep) {
                (Poll::Ready(()), _) => Poll::Ready(Ok(())),
                (Poll::Pending, Some(sleep)) => Pin::new(sleep).poll(context),
                (Poll::Pending, None) => Poll::Pending,
            });
            if slept.await.is_err() {
                return;
            }
        }
    }
}

impl Turn {
    /// Acquires a place in a line: at its end for a first conflict, and by the age of `before` otherwise.
    pub(crate) fn join(before: Option<Turn>, shared: &Arc<StoreCore>, line: u64, limit_ns: u64) -> Turn {
        let now_ns = shared.engine.now_ns();
        let mut lines = shared.turns.lock();
        let (number, refusals) = match &before {
            Some(before) => {
                let place = lines.places.get(&(before.line, before.number));
                (before.number, place.map_or(0, |place| place.refusals + 1))
            }
            None => {
                lines.next += 1;
                (lines.next, 0)
            }
        };
        let place = Place { state: State::Waits, refusals, limit_ns, waker: None };
        lines.places.insert((line, number), place);
        shared.turns.waiting.store(lines.places.len(), Ordering::Release);
        // Only this place may be called now, and it has no waker yet.
        drop(lines.call(line, now_ns));
        shared.turns.look(lines);
        match before {
            Some(before) if before.line == line => before,
            // Drops the place in the other line.
            _ => Turn { shared: shared.clone(), line, number },
        }
    }

    /// Waits until it is called. Returns whether its time was not over before.
    ///
    /// # Errors
    /// Those of a put.
    pub(crate) async fn wait(&self) -> Result<bool> {
        poll_fn(|context| {
            let mut lines = self.shared.turns.lock();
            match lines.places.get_mut(&(self.line, self.number)) {
                Some(place) if place.state == State::Waits => {
                    place.waker = Some(context.waker().clone());
                    drop(lines);
                    // A store that failed before the waker was registered is seen here; a later failure wakes.
                    self.shared
                        .check_writable()
                        .map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending)
                }
                place => Poll::Ready(Ok(place.is_none_or(|place| place.state != State::Late))),
            }
        })
        .await
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now_ns = self.shared.engine.now_ns();
        let mut lines = self.shared.turns.lock();
        lines.places.remove(&(self.line, self.number));
        self.shared.turns.waiting.store(lines.places.len(), Ordering::Release);
        let next = lines.call(self.line, now_ns);
        self.shared.turns.look(lines);
        next.into_iter().for_each(Waker::wake);
    }
}
