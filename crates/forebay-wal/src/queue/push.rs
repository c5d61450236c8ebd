//! Puts callers' records and changes of the log into the queue.

use std::task::{Poll, Waker};

use forebay::BlockMut;

use super::group::{self, Group, extend};
use super::line::Asker;
use super::{QueueState, Shared, Ticket, is_large};
use crate::error::{Error, ErrorKind, Result};
use crate::format::Kind;
use crate::lost::Lost;
use crate::lsn::Lsn;
use crate::segment::cut_holes;
use crate::wait::wake_all;

/// A change of the log other than a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Allows the removal of records before this one.
    TruncateBefore(u64),
    /// Removes the records after this one.
    TruncateAfter(u64),
    /// Removes all records; the next one is this.
    ResetTo(u64),
    /// Records the log's end outside of the segments.
    RecordEnd,
}

impl Shared {
    /// Queues records, all in one group and with consecutive LSNs, when it is their turn and there is room.
    /// Returns the ticket to wait for, and the first LSN.
    ///
    /// `place` is the caller's place among the appends that wait for room. It is kept until the records are
    /// in the queue or the caller [leaves](Self::leave).
    pub(crate) fn poll_push(
        &self,
        records: &[&[u8]],
        place: &mut Option<u64>,
        waker: &Waker,
    ) -> Poll<Result<(Ticket, u64)>> {
        match self.push(records, place, Some(waker)) {
            Ok(Some(pushed)) => Poll::Ready(Ok(pushed)),
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Queues a record now; returns `None` if there is no room or if it is another append's turn.
    pub(crate) fn try_push(&self, record: &[u8]) -> Result<Option<(Ticket, u64)>> {
        let records = [record];
        self.check_size(&records)?;
        self.push(&records, &mut None, None)
    }

    /// Queues records if it is their turn; otherwise keeps `waker`, if there is one, in the line.
    fn push(
        &self,
        records: &[&[u8]],
        place: &mut Option<u64>,
        waker: Option<&Waker>,
    ) -> Result<Option<(Ticket, u64)>> {
        let framed = group::framed_bytes(records);
        let large = is_large(&self.limits, framed);
        let mut woken = Vec::new();
        {
            let mut locked = self.lock();
            let state = &mut *locked;
            state.check()?;
            state.check_numbers(records.len())?;
            let asker = if waker.is_some() { Asker::Waits(*place) } else { Asker::Tries };
            state.call(self, &mut woken);
            let mut is_turn = state.line.is_turn(&self.limits, state.pending, framed, asker);
            if is_turn
                && !large
                && let Err(error) = state.make_group(self, framed)
            {
                let exhausted = matches!(error.kind(), forebay::ErrorKind::ArenaExhausted { .. });
                if !exhausted || state.pending == 0 {
                    return Err(error.into());
                }
                // The group being written will return its memory.
                is_turn = false;
            }
            if !is_turn {
                let is_new = waker.is_none_or(|waker| state.line.wait(place, framed, waker));
                state.stats.full_waits += u64::from(is_new);
                drop(locked);
                wake_all(woken);
                return Ok(None);
            }
            state.pending += framed;
            state.line.leave(place);
            if !large {
                let pushed = state.push(records);
                let writer = state.writer.take();
                state.call(self, &mut woken);
                drop(locked);
                wake_all(writer.into_iter().chain(woken));
                return pushed.map(Some);
            }
        }
        // The room is reserved, so the copy of a long record is made without the lock.
        let buffer = group::own_buffer(&self.engine, records, framed, self.limits.unit);
        let mut locked = self.lock();
        let state = &mut *locked;
        let pushed = match buffer {
            Ok(buffer) => state
                .check()
                .and_then(|()| state.check_numbers(records.len()))
                .map(|()| state.push_own(buffer, records.len(), self.engine.now_ns())),
            Err(error) => Err(error.into()),
        };
        let writer = state.writer.take();
        if pushed.is_err() {
            state.pending = state.pending.saturating_sub(framed);
            woken.append(&mut state.watchers);
        }
        state.call(self, &mut woken);
        drop(locked);
        wake_all(writer.into_iter().chain(woken));
        pushed.map(Some)
    }

    /// Gives up a place among the appends that wait for room.
    pub(crate) fn leave(&self, place: &mut Option<u64>) {
        if place.is_some() {
            let mut woken = Vec::new();
            {
                let mut locked = self.lock();
                let state = &mut *locked;
                state.line.leave(place);
                state.call(self, &mut woken);
                woken.append(&mut state.watchers);
            }
            wake_all(woken);
        }
    }

    /// Completes if a record of `bytes` would be accepted now; otherwise keeps `waker`.
    pub(crate) fn poll_room(&self, bytes: usize, waker: &Waker) -> Poll<Result<()>> {
        let framed = bytes.saturating_add(crate::format::RECORD_HEADER_BYTES);
        let mut state = self.lock();
        if let Err(error) = state.check() {
            return Poll::Ready(Err(error));
        }
        if state.line.is_turn(&self.limits, state.pending, framed, Asker::Tries) {
            return Poll::Ready(Ok(()));
        }
        if !state.watchers.iter().any(|known| known.will_wake(waker)) {
            state.watchers.push(waker.clone());
        }
        Poll::Pending
    }

    /// Returns a ticket that completes once everything queued before is durable.
    pub(crate) fn ticket_for_all(&self) -> Result<Ticket> {
        let state = self.lock();
        match &state.failed {
            Some(error) => Err(error.clone()),
            None => Ok(state.ticket_for_all()),
        }
    }

    /// Queues a change after everything queued before.
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

impl QueueState {
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
                // Within a loss, no group in the segments is left to prove where the log begins.
                let behind = |lsn: u64, lost: &Lost| {
                    if lost.first.0 <= lsn && lsn <= lost.last.0 { lost.last.0 + 1 } else { lsn }
                };
                let lsn = state.holes.iter().fold(lsn, behind);
                state.first_lsn = lsn;
                state.last_group().retain = Some(lsn);
            }
            Change::RecordEnd => state.last_group().record_end = true,
            Change::TruncateAfter(lsn) => {
                state.begin_group(Group::new(), Kind::Truncate, lsn);
                state.next_lsn = lsn + 1;
                cut_holes(&mut state.holes, lsn + 1);
            }
            Change::ResetTo(lsn) => {
                state.begin_group(Group::new(), Kind::Reset, lsn).retain = Some(lsn);
                (state.first_lsn, state.next_lsn) = (lsn, lsn);
                state.holes.clear();
            }
        }
        debug_assert!(state.first_lsn <= state.next_lsn, "a log ends behind where it begins");
        Ok(())
    }

    /// Checks that this many LSNs are left. The highest is `u64::MAX - 1`: `u64::MAX` stands for "no end
    /// known".
    fn check_numbers(&self, count: usize) -> Result<()> {
        if u64::MAX - self.next_lsn >= count as u64 {
            return Ok(());
        }
        let text = format!(
            "the next record would be {}, and the highest number is {}: reset_to begins again with lower ones",
            self.next_lsn,
            u64::MAX - 1
        );
        Err(Error::new(ErrorKind::InvalidInput, text))
    }

    /// Returns the last group in the queue, or a new one without records if the queue is empty.
    fn last_group(&mut self) -> &mut Group {
        if self.groups.is_empty() {
            return self.begin_group(Group::new(), Kind::Mark, 0);
        }
        let last = self.groups.len() - 1;
        &mut self.groups[last]
    }

    /// Wakes appends that have their turn. Wakes the log's task with them, so that it sets a deadline for
    /// those that are not polled.
    fn call(&mut self, shared: &Shared, woken: &mut Vec<Waker>) {
        if self.line.is_empty() {
            return;
        }
        let before = woken.len();
        self.line.call(&shared.limits, self.pending, shared.engine.now_ns(), woken);
        if woken.len() > before {
            woken.extend(self.writer.take());
        }
        debug_assert!(
            self.line.is_kept(self.pending),
            "a waiter that is neither called nor passed waits for bytes, or for one that is called"
        );
    }

    /// Ensures that the queue's last group has room for `framed` more bytes of records.
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

    /// Adds records to the last group, which has room.
    fn push(&mut self, records: &[&[u8]]) -> Result<(Ticket, u64)> {
        let first = self.next_lsn;
        let Some(group) = self.groups.back_mut() else {
            return Err(Error::new(ErrorKind::InvalidInput, "no group was begun"));
        };
        debug_assert_eq!(group.first_lsn + u64::from(group.count), first, "LSNs are dense");
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
