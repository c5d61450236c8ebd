//! The state that the participants of a collective and its aggregators share.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use forebay::internal::{ErrorExt, FileInternals};
use forebay::{Durability, Error, ErrorKind, Result};

use super::plan::Deposits;
use crate::coalesce::{FirstError, Tail, Waiters, WriteStats, WriterCore, stronger};

pub(super) type CollectiveCore = WriterCore<CollectiveState>;

/// The collective's state, all of it behind one lock.
#[derive(Default)]
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
    pub(super) stats: WriteStats,
}

/// The phase of the write under way.
#[derive(Default)]
enum Phase {
    /// Some participants have not called yet.
    #[default]
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
    /// For the first only: all parts are written, so it removes padding and syncs.
    Settle(Tail, Durability),
    End,
}

impl CollectiveState {
    pub(super) fn new(participants: usize) -> CollectiveState {
        CollectiveState {
            deposits: (0..participants).map(|_| None).collect(),
            error: FirstError::new("this collective write"),
            ..CollectiveState::default()
        }
    }
}

impl CollectiveCore {
    /// Waits until `round` has completed, for a participant.
    pub(super) fn poll_over(&self, context: &mut Context<'_>, round: u64) -> Poll<Result<()>> {
        let mut state = self.enter()?;
        // A round that has completed stays so, also where something failed since.
        if state.round > round {
            return Poll::Ready(Ok(()));
        }
        state.error.check()?;
        state.waiters.add(context.waker());
        Poll::Pending
    }

    /// Stores a participant's pieces; returns the round that they are for.
    pub(super) fn deposit(
        &self,
        rank: usize,
        pieces: Vec<(u64, Bytes)>,
        durability: Durability,
    ) -> Result<u64> {
        let mut state = self.enter()?;
        state.error.check()?;
        let round = state.round;
        state.stats.taken_bytes += pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        if let Some(place) = state.deposits.get_mut(rank) {
            debug_assert!(place.is_none(), "participant {rank} gives its pieces once a round");
            *place = Some(pieces);
        }
        state.durability = stronger(state.durability, durability);
        state.arrived += 1;
        if state.arrived == state.deposits.len() {
            let deposits = state.deposits.iter_mut().map(|place| place.take().unwrap_or_default());
            state.phase = Phase::Measuring(Arc::new(deposits.collect()));
            let idle = mem::take(&mut state.idle);
            drop(state);
            idle.wake();
        }
        Ok(round)
    }

    /// Returns the next step of aggregator `index`, which has written its part of this many rounds.
    pub(super) fn poll_turn(
        &self,
        context: &mut Context<'_>,
        index: usize,
        written: u64,
    ) -> Poll<AggregatorStep> {
        let mut state = self.lock();
        if state.error.is_set() || state.gone == state.deposits.len() {
            return Poll::Ready(AggregatorStep::End);
        }
        match &state.phase {
            Phase::Measuring(_) if index == 0 => return Poll::Ready(AggregatorStep::Measure),
            Phase::Writing(deposits, length) if written == state.round => {
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
            state.busy = FileInternals::of(&self.file).shard_count();
            state.tail = Tail { end: length, padded: None };
            mem::take(&mut state.idle)
        });
    }

    /// Notes that an aggregator has written its part, with the end and padding of that part.
    pub(super) fn wrote(&self, tail: Tail, stats: WriteStats) {
        self.change(|state| {
            state.tail.end = state.tail.end.max(tail.end);
            state.tail.padded = state.tail.padded.max(tail.padded);
            state.busy -= 1;
            state.stats.add_requests(&stats);
            mem::take(&mut state.idle)
        });
    }

    /// Completes the round, and wakes the participants that wait for it.
    pub(super) fn settled(&self, durability: Durability) {
        self.change(|state| {
            debug_assert_eq!(state.busy, 0, "a round is settled once every aggregator has written");
            state.stats.syncs += u64::from(durability != Durability::None);
            state.round += 1;
            state.phase = Phase::Gathering;
            state.arrived = 0;
            state.durability = Durability::None;
            mem::take(&mut state.waiters)
        });
    }

    /// Ends the collective for all with `error`.
    pub(super) fn fail(&self, error: Error) {
        self.change(|state| {
            // Once only: no pieces are accepted after a failure, and each of many participants leaves by this
            // way.
            if !state.error.is_set() {
                state.error.set(error);
                state.deposits.iter_mut().for_each(|place| *place = None);
            }
            state.phase = Phase::Gathering;
            state.waiters.take_with(&mut state.idle)
        });
    }

    /// Ends the collective because a participant was dropped: the running round can never be complete.
    pub(super) fn leave(&self, rank: usize, participants: usize) {
        self.lock().gone += 1;
        let note = format!("participant {rank} of {participants} is gone");
        self.fail(self.error(ErrorKind::Cancelled).with_note(note));
    }
}
