//! Puts callers' records and changes of the log into the queue.

use std::sync::Arc;
use std::task::{Poll, Waker};

use forebay::BlockMut;

use super::duty::Duty;
use super::group::{Group, own_buffer};
use super::line::Asker;
use super::{Queue, QueueState, Ticket, is_large};
use crate::batch::Entries;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{HEADER_BYTES, Kind};
use crate::loss::Loss;
use crate::lsn::Lsn;
use crate::segment::cut_holes;
use crate::values::{ValueChange, Values};
use crate::wait::wake_all;

/// A change of the log other than a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Allows the removal of records before this one.
    TruncateBefore(u64),
    /// Removes the records from this one on.
    TruncateFrom(u64),
    /// Removes all records; the next one is this.
    ResetTo(u64),
    /// Records the log's end outside of the segments.
    RecordEnd,
}

impl Queue {
    /// Queues records with consecutive LSNs and changes of values, all in one group, when it is their turn and they fit. Returns
    /// the ticket to wait for, and the first LSN.
    ///
    /// `place` is the caller's place among the appends that wait for room. It is kept until the records are
    /// in the queue or the caller [leaves](Self::leave). `duty` is of a thread in `.wait()` that
    /// [does it](Self::write_here) next.
    pub(crate) fn poll_push(
        &self,
        entries: &Entries<'_>,
        place: &mut Option<u64>,
        waker: &Waker,
        duty: Option<&mut Duty>,
    ) -> Poll<Result<(Ticket, u64)>> {
        match self.push(entries, place, Some(waker), false, duty) {
            Ok(Some(pushed)) => Poll::Ready(Ok(pushed)),
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Queues records and changes of values now, after [`check_size`](Self::check_size); returns `None` without enough room, or if
    /// it is another append's turn. Deferred records are not written without another reason.
    pub(crate) fn try_push(
        &self,
        entries: &Entries<'_>,
        is_deferred: bool,
        duty: Option<&mut Duty>,
    ) -> Result<Option<(Ticket, u64)>> {
        self.push(entries, &mut None, None, is_deferred, duty)
    }

    /// Queues records and values if it is their turn; otherwise keeps `waker`, if any, in the line.
    fn push(
        &self,
        entries: &Entries<'_>,
        place: &mut Option<u64>,
        waker: Option<&Waker>,
        is_deferred: bool,
        duty: Option<&mut Duty>,
    ) -> Result<Option<(Ticket, u64)>> {
        let framed = entries.framed_bytes;
        let large = is_large(&self.limits, framed);
        let mut woken = Vec::new();
        {
            let mut locked = self.lock();
            let state = &mut *locked;
            state.check()?;
            state.check_numbers(entries.count)?;
            let values = state.values_after(self, entries.values)?;
            let values_bytes = values.as_ref().unwrap_or(&state.values).bytes();
            if framed + values_bytes > self.limits.framed_bytes {
                return Err(self.no_room_beside_values(framed, values_bytes));
            }
            let asker = if waker.is_some() { Asker::Waits(*place) } else { Asker::Tries };
            state.call(self, &mut woken);
            // Those that wait for room wait for writes.
            let is_deferred = is_deferred && state.watchers.is_empty();
            let mut is_turn = state.line.is_turn(&self.limits, state.pending, framed, asker);
            if is_turn
                && !large
                && let Err(error) = state.make_group(self, framed, values_bytes, is_deferred)
            {
                if !error.is_out_of_memory() || state.pending == 0 {
                    return Err(error.into());
                }
                // The group being written will return its memory.
                state.lacks_memory = true;
                is_turn = false;
            }
            if !is_turn {
                let is_new = waker.is_none_or(|waker| state.line.wait(place, framed, waker));
                state.stats.full_waits += u64::from(is_new);
                // Only writes free space.
                woken.extend(state.end_deferral());
                drop(locked);
                wake_all(woken);
                return Ok(None);
            }
            state.pending += framed;
            state.line.leave(place);
            if !large {
                let pushed = state.push(entries, is_deferred);
                state.take_values(values);
                if state.queued_watch.is_reached(state.next_lsn) {
                    woken.extend(state.queued_watch.reached(state.next_lsn));
                }
                if state.durable_watch.is_reached(state.next_lsn) {
                    woken.extend(state.end_deferral());
                }
                let writer = state.writer_for(self, duty);
                state.call(self, &mut woken);
                drop(locked);
                wake_all(writer.into_iter().chain(woken));
                return pushed.map(Some);
            }
        }
        // The space is reserved, so the copy of a long record is made without the lock.
        let buffer = own_buffer(&self.engine, entries, self.limits.unit);
        let mut locked = self.lock();
        let state = &mut *locked;
        let pushed = match buffer {
            Ok(buffer) => state.check_again(self, entries).map(|values| {
                let pushed = state.push_own(buffer, entries.count, self.engine.now_ns());
                state.take_values(values);
                pushed
            }),
            Err(error) => Err(error.into()),
        };
        woken.extend(state.queued_watch.reached(state.next_lsn));
        let writer = state.writer_for(self, duty.filter(|_| pushed.is_ok()));
        if pushed.is_err() {
            state.pending = state.pending.saturating_sub(framed);
            woken.extend(state.watchers.clear());
        }
        state.call(self, &mut woken);
        drop(locked);
        wake_all(writer.into_iter().chain(woken));
        pushed.map(Some)
    }

    /// Returns the error for records that do not fit into a segment which starts with the values.
    #[cold]
    fn no_room_beside_values(&self, framed: usize, values_bytes: usize) -> Error {
        let limit = self.limits.framed_bytes.saturating_sub(values_bytes);
        let text = format!(
            "records of {framed} bytes with framing; beside the log's values the most is {limit}: use longer segments"
        );
        Error::new(ErrorKind::TooLarge { limit }, text)
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
                woken.extend(state.watchers.clear());
            }
            wake_all(woken);
        }
    }

    /// Completes if a record of `bytes` would be accepted now; otherwise keeps `waker`. `id` is the waiter's number.
    pub(crate) fn poll_room(&self, bytes: usize, id: &mut Option<u64>, waker: &Waker) -> Poll<Result<()>> {
        let framed = bytes.saturating_add(crate::format::RECORD_HEADER_BYTES);
        let mut state = self.lock();
        if let Err(error) = state.check() {
            return Poll::Ready(Err(error));
        }
        // Where memory was short another try before a write has ended would find as little.
        let lacks_memory = state.lacks_memory && state.pending > 0;
        if !lacks_memory && state.line.is_turn(&self.limits, state.pending, framed, Asker::Tries) {
            return Poll::Ready(Ok(()));
        }
        state.watchers.wait(framed, id, waker);
        let writer = state.end_deferral();
        drop(state);
        wake_all(writer);
        Poll::Pending
    }

    /// Forgets a waiter for room.
    pub(crate) fn leave_room(&self, id: u64) {
        self.lock().watchers.leave(id);
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
        let (ticket, writer, reached) = {
            let mut state = self.lock();
            let state = &mut *state;
            state.change(change)?;
            // A reset skips numbers: no record will have them.
            let reached = state.queued_watch.reached(state.next_lsn);
            let writer = state.end_deferral().or_else(|| state.writer.take());
            (state.ticket_for_all(), writer, reached)
        };
        wake_all(writer.into_iter().chain(reached));
        Ok(ticket)
    }

    /// Queues changes of values after everything queued before. They never wait for room: all that wait are one
    /// table of limited length.
    pub(crate) fn push_values(&self, changes: &[ValueChange]) -> Result<Ticket> {
        let (ticket, writer) = {
            let mut state = self.lock();
            let state = &mut *state;
            state.check()?;
            let Some(values) = state.values_after(self, changes)? else {
                return Ok(state.ticket_for_all());
            };
            state.room_for_values(self, values.bytes());
            state.take_values(Some(values));
            let writer = state.end_deferral().or_else(|| state.writer.take());
            (state.ticket_for_all(), writer)
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
        let change = match change {
            // No record before it could be kept.
            Change::TruncateFrom(0) if first == 0 => Change::ResetTo(0),
            other => other,
        };
        let out_of_range = |text: &str| {
            let (first, last) = (Lsn(first), Lsn(next.saturating_sub(1)));
            Err(Error::new(ErrorKind::OutOfRange { first, last }, text))
        };
        match change {
            Change::TruncateBefore(lsn) if lsn > next => {
                return out_of_range("records to drop are not there yet");
            }
            Change::TruncateFrom(lsn) if lsn > next => {
                return out_of_range("the last record to keep is not there");
            }
            Change::TruncateFrom(lsn) if lsn < first => {
                return out_of_range("the last record to keep was removed before");
            }
            Change::ResetTo(lsn) if lsn == u64::MAX => {
                let text = format!("the highest number of a record is {}", u64::MAX - 1);
                return Err(Error::new(ErrorKind::InvalidInput, text));
            }
            Change::TruncateBefore(lsn) if lsn <= first => {}
            Change::TruncateBefore(lsn) => {
                // Within a loss, the segments have no group that could prove where the log starts.
                let behind = |lsn: u64, lost: &Loss| {
                    if lost.first.0 <= lsn && lsn <= lost.last.0 { lost.last.0 + 1 } else { lsn }
                };
                let lsn = state.holes.iter().fold(lsn, behind);
                state.first_lsn = lsn;
                state.last_group().retain = Some(lsn);
            }
            Change::RecordEnd => state.last_group().record_end = true,
            Change::TruncateFrom(lsn) => {
                // The group names the last record that stays; without one, at 0, it is a reset.
                state.begin_group(Group::new(), Kind::Truncate, lsn.saturating_sub(1));
                state.next_lsn = lsn;
                state.cuts += 1;
                cut_holes(&mut state.holes, lsn);
            }
            Change::ResetTo(lsn) => {
                state.begin_group(Group::new(), Kind::Reset, lsn).retain = Some(lsn);
                (state.first_lsn, state.next_lsn) = (lsn, lsn);
                state.cuts += 1;
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
            "the next record would be {}, and the highest number is {}: reset_to starts again with lower numbers",
            self.next_lsn,
            u64::MAX - 1
        );
        Err(Error::new(ErrorKind::InvalidInput, text))
    }

    /// Returns the values after these changes, if any.
    #[inline]
    fn values_after(&self, shared: &Queue, changes: &[ValueChange]) -> Result<Option<Arc<Values>>> {
        if changes.is_empty() {
            return Ok(None);
        }
        Ok(Some(Arc::new(self.values.after(changes, shared.limits.values_bytes)?)))
    }

    /// Checks everything once more that may have changed while the lock was not held. Returns the new values.
    fn check_again(&self, shared: &Queue, entries: &Entries<'_>) -> Result<Option<Arc<Values>>> {
        self.check()?;
        self.check_numbers(entries.count)?;
        let values = self.values_after(shared, entries.values)?;
        let (framed, values_bytes) = (entries.framed_bytes, values.as_ref().unwrap_or(&self.values).bytes());
        if framed + values_bytes > shared.limits.framed_bytes {
            return Err(shared.no_room_beside_values(framed, values_bytes));
        }
        Ok(values)
    }

    /// Makes these the values of the last group, and of all that follow.
    #[inline]
    fn take_values(&mut self, values: Option<Arc<Values>>) {
        if let Some(values) = values {
            if let Some(group) = self.groups.back_mut() {
                debug_assert_eq!(group.kind, Kind::Records, "other groups set no values");
                group.values = Some(values.clone());
            }
            self.values = values;
        }
    }

    /// Ensures that a table of values of this length fits into the last group in the queue.
    fn room_for_values(&mut self, shared: &Queue, values_bytes: usize) {
        let fits = |last: &Group| {
            last.kind == Kind::Records && last.framed_bytes() + values_bytes <= shared.limits.framed_bytes
        };
        if !self.groups.back().is_some_and(fits) {
            let group = self.free.pop().unwrap_or_else(Group::new);
            self.begin_group(group, Kind::Records, 0);
        }
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
    fn call(&mut self, shared: &Queue, woken: &mut Vec<Waker>) {
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

    /// Ends the deferral of the last group. Returns the waker of the log's task if that has to be woken for it.
    pub(super) fn end_deferral(&mut self) -> Option<Waker> {
        let was_deferred = self.groups.back_mut().is_some_and(|last| std::mem::take(&mut last.is_deferred));
        if was_deferred { self.writer.take() } else { None }
    }

    /// Ensures that the queue's last group has room for `framed` more bytes of records, next to `values_bytes` bytes of values. The
    /// group stays deferred, or becomes so, only if these records are.
    fn make_group(
        &mut self,
        shared: &Queue,
        framed: usize,
        values_bytes: usize,
        is_deferred: bool,
    ) -> forebay::Result<()> {
        let limit = shared.limits.group_bytes.min(shared.limits.framed_bytes + HEADER_BYTES - values_bytes);
        if let Some(last) = self.groups.back_mut()
            && last.kind == Kind::Records
            && last.buffer.len().max(HEADER_BYTES) + framed <= limit
            && last.count < u32::MAX / 2
        {
            if last.began_ns.is_none() && !is_deferred {
                // A value or deferred records started it.
                last.began_ns = Some(shared.engine.now_ns());
            }
            last.reserve(&shared.engine, framed)?;
            // Only now that the records are certain to be queued, and wake the log's task.
            last.is_deferred &= is_deferred;
            return Ok(());
        }
        let mut group = self.free.pop().unwrap_or_else(Group::new);
        let reserved = group.reserve(&shared.engine, framed);
        match reserved {
            Ok(()) => {
                group.began_ns = if is_deferred { None } else { Some(shared.engine.now_ns()) };
                group.is_deferred = is_deferred;
                self.begin_group(group, Kind::Records, 0);
            }
            Err(_) => self.free.push(group),
        }
        reserved
    }

    /// Adds records to the last group, which has room.
    fn push(&mut self, entries: &Entries<'_>, is_deferred: bool) -> Result<(Ticket, u64)> {
        let first = self.next_lsn;
        let Some(group) = self.groups.back_mut() else {
            return Err(Error::new(ErrorKind::InvalidInput, "no group was begun"));
        };
        debug_assert_eq!(group.first_lsn + u64::from(group.count), first, "LSNs are dense");
        entries.extend(&mut group.buffer)?;
        group.count += entries.count as u32;
        group.appends += u32::from(!is_deferred);
        self.next_lsn += entries.count as u64;
        Ok((self.ticket_for_all(), first))
    }

    fn push_own(&mut self, buffer: BlockMut, count: usize, now_ns: u64) -> (Ticket, u64) {
        let first = self.next_lsn;
        let group = self.begin_group(Group::new(), Kind::Records, 0);
        group.buffer = buffer;
        (group.count, group.appends) = (count as u32, 1);
        group.began_ns = Some(now_ns);
        self.next_lsn += count as u64;
        (self.ticket_for_all(), first)
    }
}
