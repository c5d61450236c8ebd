//! The state that the participants of a collective and its aggregators share.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::plan::Deposits;
use crate::ops::coalesce::{CoalesceStats, FirstError, Shape, Tail, Waiters, stronger};
use crate::{Durability, Error, ErrorKind, File, Result};

/// The writer's name in errors.
const NAME: &str = "this collective write";

pub(super) struct CollectiveCore {
    pub(super) shape: Shape,
    /// Number of handles that give pieces.
    pub(super) participants: usize,
    /// Number of tasks that write them.
    pub(super) aggregators: usize,
    state: Mutex<CollectiveState>,
}

/// The collective's state, all of it behind one lock.
pub(super) struct CollectiveState {
    /// The number of the write under way, from 0. All earlier writes have completed.
    pub(super) round: u64,
    /// The pieces that the participants gave for it, by rank.
    deposits: Vec<Option<Vec<(u64, Bytes)>>>,
    arrived: usize,
    durability: Durability,
    phase: Phase,
    /// Aggregators that are not done with their part.
    busy: usize,
    /// The file's end and its furthest padding, over all parts.
    tail: Tail,
    error: FirstError,
    /// The number of handles that were dropped.
    gone: usize,
    /// Participants that wait for the end of a write; `idle` has the aggregators that wait for their turn.
    waiters: Waiters,
    idle: Waiters,
    pub(super) stats: CoalesceStats,
}

/// The phase of the write under way.
enum Phase {
    /// Some participants have not called yet.
    Gathering,
    /// All participants have called, and the first aggregator gets the file's length.
    Measuring(Deposits),
    /// The aggregators write their parts; the number is the offset behind the file's last byte before.
    Writing(Deposits, u64),
}

/// The next step of an aggregator.
pub(super) enum AggregatorStep {
    /// For the first only: gets the file's length.
    Measure,
    /// Writes its part, of a file of that length.
    Write(Deposits, u64),
    /// For the first only: all parts are written, so it takes padding off and syncs.
    Settle(Tail, Durability),
    End,
}

impl CollectiveCore {
    pub(super) fn new(shape: Shape, participants: usize, aggregators: usize) -> CollectiveCore {
        let state = CollectiveState {
            round: 0,
            deposits: (0..participants).map(|_| None).collect(),
            arrived: 0,
            durability: Durability::None,
            phase: Phase::Gathering,
            busy: 0,
            tail: Tail::default(),
            error: FirstError::default(),
            gone: 0,
            waiters: Waiters::default(),
            idle: Waiters::default(),
            stats: CoalesceStats::default(),
        };
        CollectiveCore { shape, participants, aggregators, state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, CollectiveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `round` has completed, for a participant.
    pub(super) fn poll_over(&self, context: &mut Context<'_>, file: &File, round: u64) -> Poll<Result<()>> {
        let mut state = self.enter(file)?;
        // A round that has completed stays so, also where something failed since.
        if state.round > round {
            return Poll::Ready(Ok(()));
        }
        state.error.check(NAME)?;
        state.waiters.add(context.waker());
        Poll::Pending
    }

    /// Stores a participant's pieces; returns the round that they are for.
    pub(super) fn deposit(
        &self,
        file: &File,
        rank: usize,
        pieces: Vec<(u64, Bytes)>,
        durability: Durability,
    ) -> Result<u64> {
        let mut state = self.enter(file)?;
        state.error.check(NAME)?;
        let round = state.round;
        state.stats.taken_bytes += pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        if let Some(place) = state.deposits.get_mut(rank) {
            debug_assert!(place.is_none(), "participant {rank} gives its pieces once a round");
            *place = Some(pieces);
        }
        state.durability = stronger(state.durability, durability);
        state.arrived += 1;
        if state.arrived == self.participants {
            let deposits = state.deposits.iter_mut().map(|place| place.take().unwrap_or_default());
            state.phase = Phase::Measuring(Arc::new(deposits.collect()));
            let idle = mem::take(&mut state.idle);
            drop(state);
            idle.wake();
        }
        Ok(round)
    }

    fn enter(&self, file: &File) -> Result<MutexGuard<'_, CollectiveState>> {
        // Before the lock, which a thread of the parent may have held at the fork.
        file.internals().check("collective")?;
        Ok(self.lock())
    }

    /// Returns the next step of aggregator `index`; `done` is the round that it has written its part of.
    pub(super) fn poll_turn(
        &self,
        context: &mut Context<'_>,
        index: usize,
        done: Option<u64>,
    ) -> Poll<AggregatorStep> {
        let mut state = self.lock();
        if state.error.is_set() || state.gone == self.participants {
            return Poll::Ready(AggregatorStep::End);
        }
        let written = done == Some(state.round);
        match &state.phase {
            Phase::Measuring(_) if index == 0 => return Poll::Ready(AggregatorStep::Measure),
            Phase::Writing(deposits, length) if !written => {
                return Poll::Ready(AggregatorStep::Write(deposits.clone(), *length));
            }
            Phase::Writing(..) if index == 0 && state.busy == 0 => {
                return Poll::Ready(AggregatorStep::Settle(state.tail, state.durability));
            }
            _ => {}
        }
        state.idle.add(context.waker());
        Poll::Pending
    }

    pub(super) fn measured(&self, length: u64) {
        self.change(|state| {
            if let Phase::Measuring(deposits) = &state.phase {
                state.phase = Phase::Writing(deposits.clone(), length);
            }
            debug_assert_eq!(state.busy, 0, "a round begins when the one before it is over");
            state.busy = self.aggregators;
            state.tail = Tail { end: length, padded: None };
        });
    }

    /// Notes that an aggregator has written its part, with the end and padding of that part.
    pub(super) fn wrote(&self, tail: Tail, stats: CoalesceStats) {
        self.change(|state| {
            state.tail.end = state.tail.end.max(tail.end);
            state.tail.padded = state.tail.padded.max(tail.padded);
            state.busy -= 1;
            state.stats.add_requests(&stats);
        });
    }

    /// Completes the round, and wakes the participants that wait for it.
    pub(super) fn settled(&self, durability: Durability) {
        let waiters = {
            let mut state = self.lock();
            debug_assert_eq!(state.busy, 0, "a round is settled once every aggregator has written");
            state.stats.syncs += u64::from(durability != Durability::None);
            state.round += 1;
            state.phase = Phase::Gathering;
            state.arrived = 0;
            state.durability = Durability::None;
            mem::take(&mut state.waiters)
        };
        waiters.wake();
    }

    /// Ends the collective for all with `error`.
    pub(super) fn fail(&self, error: Error) {
        let waiters = {
            let mut state = self.lock();
            // Once only: no pieces are accepted after a failure, and each of many participants leaves by this
            // way.
            if !state.error.is_set() {
                state.error.set(error);
                state.deposits.iter_mut().for_each(|place| *place = None);
            }
            state.phase = Phase::Gathering;
            let state = &mut *state;
            state.waiters.take_with(&mut state.idle)
        };
        waiters.wake();
    }

    /// Ends the collective because a participant is gone: the round under way can never be complete.
    pub(super) fn leave(&self, file: &File, rank: usize) {
        self.lock().gone += 1;
        let note = format!("participant {rank} of {} is gone", self.participants);
        self.fail(file.internals().error("collective", ErrorKind::Cancelled, None, Some(note)));
    }

    fn change(&self, change: impl FnOnce(&mut CollectiveState)) {
        let idle = {
            let mut state = self.lock();
            change(&mut state);
            mem::take(&mut state.idle)
        };
        idle.wake();
    }
}
