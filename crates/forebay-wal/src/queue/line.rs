//! The line of appends that wait for room.
//!
//! A waiter is *called* (woken) once its record fits; from then on its owner must poll it. Other appends wait for it for 50 ms, so
//! that the order of arrival holds among appends that are polled. After that they pass it while they fit. So an append that is not
//! polled loses its precedence, and does not block others. An append that is polled and finds too little room again closes the line
//! behind it until it fits, and keeps its precedence for longer each time: short records do not starve long records.
//!
//! *Invariant: while a waiter is neither called nor passed, bytes are pending or another waiter is called.*
//! So the waiter is woken by a group that becomes durable, or at the deadline of the called waiter, for which
//! the log's task waits.

use std::collections::VecDeque;
use std::task::Waker;

use crate::queue::Limits;

/// The kind of an append that requests a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// It waits, at this place if it has one already.
    Waits(Option<u64>),
    /// It has no place. It yields to all waiters except those that lost their precedence.
    Tries,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaiterState {
    Waits,
    /// Woken; others wait until this time, on the engine's clock.
    Called(u64),
    /// Woken, but not polled in time.
    Passed,
}

#[derive(Debug)]
struct Waiter {
    place: u64,
    framed: usize,
    waker: Waker,
    state: WaiterState,
    /// Number of times that it was woken and found too little room.
    refusals: u32,
}

/// Time that others wait for a called waiter: longer than the scheduling delay of its thread on a busy machine.
const PATIENCE_NS: u64 = 50_000_000;
/// The time doubles with each refusal, at most this many times.
const REFUSALS_MAX: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Line {
    /// In the order of arrival.
    waiters: VecDeque<Waiter>,
    next_place: u64,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns whether records of this length may enter now; `pending` bytes wait to be written.
    pub(super) fn is_turn(&self, limits: &Limits, pending: usize, framed: usize, asker: Asker) -> bool {
        let before = match asker {
            Asker::Waits(Some(place)) => self.index_of(place),
            _ => self.waiters.len(),
        };
        fits(limits, pending, framed)
            && self.waiters.iter().take(before).all(|waiter| match waiter.state {
                WaiterState::Waits => false,
                WaiterState::Called(_) => asker == Asker::Tries && waiter.refusals == 0,
                WaiterState::Passed => true,
            })
    }

    /// Keeps a waker until the record fits. Returns whether the waiter is new.
    pub(super) fn wait(&mut self, place: &mut Option<u64>, framed: usize, waker: &Waker) -> bool {
        if let Some(known) = *place {
            let index = self.index_of(known);
            if let Some(waiter) = self.waiters.get_mut(index).filter(|waiter| waiter.place == known) {
                waiter.waker.clone_from(waker);
                waiter.refusals +=
                    u32::from(waiter.state != WaiterState::Waits && waiter.refusals < REFUSALS_MAX);
                waiter.state = WaiterState::Waits;
                return false;
            }
        }
        debug_assert!(
            self.waiters.back().is_none_or(|last| last.place < self.next_place),
            "waiters stand in the order in which they came"
        );
        *place = Some(self.next_place);
        let waiter = Waiter {
            place: self.next_place,
            framed,
            waker: waker.clone(),
            state: WaiterState::Waits,
            refusals: 0,
        };
        self.waiters.push_back(waiter);
        self.next_place += 1;
        true
    }

    /// Gives up a place.
    pub(super) fn leave(&mut self, place: &mut Option<u64>) {
        if let Some(place) = place.take() {
            let index = self.index_of(place);
            if self.waiters.get(index).is_some_and(|waiter| waiter.place == place) {
                self.waiters.remove(index);
            }
        }
    }

    /// Calls, in order, the waiters that fit into the space left by pending records and by waiters already called. Passes waiters
    /// whose time has expired. `now_ns` is the engine's time.
    pub(super) fn call(&mut self, limits: &Limits, mut pending: usize, now_ns: u64, woken: &mut Vec<Waker>) {
        for waiter in &mut self.waiters {
            match waiter.state {
                WaiterState::Called(until) if until <= now_ns => waiter.state = WaiterState::Passed,
                WaiterState::Called(_) => pending = pending.saturating_add(waiter.framed),
                WaiterState::Passed => {}
                WaiterState::Waits if fits(limits, pending, waiter.framed) => {
                    pending = pending.saturating_add(waiter.framed);
                    let patience = if forebay::_is_broken!(WokenKeepsItsTurn) {
                        u64::MAX
                    } else {
                        PATIENCE_NS << waiter.refusals
                    };
                    waiter.state = WaiterState::Called(now_ns.saturating_add(patience));
                    woken.push(waiter.waker.clone());
                }
                WaiterState::Waits => return,
            }
        }
    }

    /// Returns the earliest deadline of a called waiter.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let times = self.waiters.iter().filter_map(|waiter| match waiter.state {
            WaiterState::Called(until) => Some(until),
            _ => None,
        });
        times.min()
    }

    /// Takes all wakers, because the log ends or has failed.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.waiters).into_iter().map(|waiter| waiter.waker)
    }

    /// Returns whether this type's invariant holds.
    pub(super) fn is_kept(&self, pending: usize) -> bool {
        let is = |state: fn(&WaiterState) -> bool| self.waiters.iter().any(|waiter| state(&waiter.state));
        pending > 0
            || is(|state| matches!(state, WaiterState::Called(_)))
            || !is(|state| *state == WaiterState::Waits)
    }

    /// Returns the index of a place in the line, in which places ascend.
    fn index_of(&self, place: u64) -> usize {
        self.waiters.partition_point(|waiter| waiter.place < place)
    }
}

/// Returns whether a record fits; any record does if nothing is pending.
pub(super) fn fits(limits: &Limits, pending: usize, framed: usize) -> bool {
    pending == 0 || pending.saturating_add(framed) <= limits.pending_bytes
}
