//! Callers put records and changes of the log into the queue.

use std::task::{Poll, Waker};

use forebay::BlockMut;

use super::group::{self, Group, extend};
use super::{Limits, Shared, State, Ticket, is_large};
use crate::error::{Error, ErrorKind, Result};
use crate::format::Kind;
use crate::lsn::Lsn;
use crate::wait::wake_all;

mod attempt;

/// A change of the log that is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Records before this one may go.
    TruncateBefore(u64),
    /// Records after this one go.
    TruncateAfter(u64),
    /// All records go; the next is this one.
    ResetTo(u64),
}

impl Shared {
    /// Queues records, all in one group and numbered in a row, when it is their turn and there is room.
    /// Answers what to wait for, and the first one's number.
    ///
    /// `place` is the caller's place among those who wait for room, kept until the records are in or it
    /// [leaves](Self::leave).
    pub(crate) fn poll_push(
        &self,
        records: &[&[u8]],
        place: &mut Option<u64>,
        waker: &Waker,
    ) -> Poll<Result<(Ticket, u64)>> {
        let framed = group::framed_bytes(records);
        let large = is_large(&self.limits, framed);
        {
            let mut state = self.lock();
            let state = &mut *state;
            if let Err(error) = state.check() {
                return Poll::Ready(Err(error));
            }
            if !state.is_turn(&self.limits, framed, *place) {
                state.wait_for_room(place, waker);
                return Poll::Pending;
            }
            if !large && let Err(error) = state.make_group(self, framed) {
                let exhausted = matches!(error.kind(), forebay::ErrorKind::ArenaExhausted { .. });
                if !exhausted || state.pending == 0 {
                    return Poll::Ready(Err(error.into()));
                }
                // The group that is being written will give its memory back.
                state.wait_for_room(place, waker);
                return Poll::Pending;
            }
            state.pending += framed;
            state.leave(place);
            if !large {
                let pushed = state.push(records);
                let wakers = [state.writer.take(), state.next_in_line()];
                return self.answer(pushed, wakers);
            }
        }
        // Its room is reserved; so long a copy is made without the lock.
        let buffer = group::own_buffer(&self.engine, records, framed, self.limits.unit);
        let mut state = self.lock();
        let pushed = match buffer {
            Ok(buffer) => state.check().map(|()| state.push_own(buffer, records.len(), self.engine.now_ns())),
            Err(error) => Err(error.into()),
        };
        if pushed.is_err() {
            state.pending = state.pending.saturating_sub(framed);
        }
        let wakers = [state.writer.take(), state.next_in_line()];
        drop(state);
        self.answer(pushed, wakers)
    }

    /// Wakes, without the lock, and answers.
    fn answer<T>(&self, pushed: Result<T>, wakers: [Option<Waker>; 2]) -> Poll<Result<T>> {
        wake_all(wakers.into_iter().flatten());
        Poll::Ready(pushed)
    }

    /// Gives up a place among those who wait for room.
    pub(crate) fn leave(&self, place: &mut Option<u64>) {
        if place.is_some() {
            let (next, watchers) = {
                let mut state = self.lock();
                state.leave(place);
                (state.next_in_line(), std::mem::take(&mut state.watchers))
            };
            wake_all(next.into_iter().chain(watchers));
        }
    }

    /// What to wait for so that everything queued before is durable.
    pub(crate) fn ticket_for_all(&self) -> Result<Ticket> {
        let state = self.lock();
        match &state.failed {
            Some(error) => Err(error.clone()),
            None => Ok(state.ticket_for_all()),
        }
    }

    /// Queues a change behind everything queued before.
    pub(crate) fn push_change(&self, change: Change) -> Result<Ticket> {
        let (ticket, writer) = {
            let mut state = self.lock();
            state.change(change)?;
            (state.ticket_for_all(), state.writer.take())
        };
        wake_all(writer);
        Ok(ticket)
    }
}

impl State {
    fn change(&mut self, change: Change) -> Result<()> {
        let state = self;
        state.check()?;
        let (first, next) = (state.first_lsn, state.next_lsn);
        let out_of_range = |text: &str| {
            let (first, last) = (Lsn(first), Lsn(next.saturating_sub(1)));
            Err(Error::new(ErrorKind::OutOfRange { first, last }, text))
        };
        match change {
            Change::TruncateBefore(lsn) if lsn > next => {
                return out_of_range("records to drop are not there yet");
            }
            Change::TruncateAfter(lsn) if lsn >= next => {
                return out_of_range("the last record to keep is not there");
            }
            Change::TruncateAfter(lsn) if lsn.saturating_add(1) < first => {
                return out_of_range("the last record to keep was removed before");
            }
            Change::ResetTo(lsn) if lsn == 0 || lsn == u64::MAX => {
                return Err(Error::new(ErrorKind::InvalidInput, "records are numbered from 1"));
            }
            Change::TruncateBefore(lsn) if lsn <= first => {}
            Change::TruncateBefore(lsn) => {
                state.first_lsn = lsn;
                let group = match state.groups.back() {
                    Some(_) => state.groups.len() - 1,
                    None => {
                        state.begin_group(Group::new(), Kind::Mark, 0);
                        0
                    }
                };
                state.groups[group].retain = Some(lsn);
            }
            Change::TruncateAfter(lsn) => {
                state.begin_group(Group::new(), Kind::Truncate, lsn);
                state.next_lsn = lsn + 1;
            }
            Change::ResetTo(lsn) => {
                state.begin_group(Group::new(), Kind::Reset, lsn).retain = Some(lsn);
                (state.first_lsn, state.next_lsn) = (lsn, lsn);
            }
        }
        Ok(())
    }

    fn is_turn(&self, limits: &Limits, framed: usize, place: Option<u64>) -> bool {
        let first = self.room.front().map(|&(first, _)| first);
        (first.is_none() || first == place) && self.has_room(limits, framed)
    }

    /// Something always fits when nothing waits.
    fn has_room(&self, limits: &Limits, framed: usize) -> bool {
        self.pending == 0 || self.pending.saturating_add(framed) <= limits.pending_bytes
    }

    fn wait_for_room(&mut self, place: &mut Option<u64>, waker: &Waker) {
        let known = place.and_then(|place| self.room.iter_mut().find(|(known, _)| *known == place));
        match known {
            Some((_, known)) => known.clone_from(waker),
            None => {
                self.stats.full_waits += 1;
                *place = Some(self.next_place);
                self.room.push_back((self.next_place, waker.clone()));
                self.next_place += 1;
            }
        }
    }

    fn leave(&mut self, place: &mut Option<u64>) {
        if let Some(place) = place.take() {
            self.room.retain(|&(known, _)| known != place);
        }
    }

    /// Whoever is first now may find room as well; it looks for itself.
    fn next_in_line(&self) -> Option<Waker> {
        self.room_waker()
    }

    /// Makes sure that the queue's last group takes `framed` more bytes of records.
    fn make_group(&mut self, shared: &Shared, framed: usize) -> forebay::Result<()> {
        let limit = shared.limits.group_bytes;
        if let Some(last) = self.groups.back_mut()
            && last.kind == Kind::Records
            && last.buffer.len() + framed <= limit
            && last.count < u32::MAX / 2
        {
            return last.reserve(&shared.engine, framed);
        }
        let mut group = self.free.pop().unwrap_or_else(Group::new);
        let reserved = group.reserve(&shared.engine, framed);
        match reserved {
            Ok(()) => {
                group.began_ns = Some(shared.engine.now_ns());
                self.begin_group(group, Kind::Records, 0);
            }
            Err(_) => self.free.push(group),
        }
        reserved
    }

    /// Into the last group, which has room.
    fn push(&mut self, records: &[&[u8]]) -> Result<(Ticket, u64)> {
        let first = self.next_lsn;
        let Some(group) = self.groups.back_mut() else {
            return Err(Error::new(ErrorKind::InvalidInput, "no group was begun"));
        };
        extend(&mut group.buffer, records)?;
        group.count += records.len() as u32;
        self.next_lsn += records.len() as u64;
        Ok((self.ticket_for_all(), first))
    }

    fn push_own(&mut self, buffer: BlockMut, count: usize, now_ns: u64) -> (Ticket, u64) {
        let first = self.next_lsn;
        let group = self.begin_group(Group::new(), Kind::Records, 0);
        group.buffer = buffer;
        group.count = count as u32;
        group.began_ns = Some(now_ns);
        self.next_lsn += count as u64;
        (self.ticket_for_all(), first)
    }
}
