//! The queue of a log: groups that callers fill on their own threads, and the waiters of each.
//!
//! All of this happens under one lock, held for a copy of a record at most. No waker is called under it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Poll, Waker};

use forebay::{Block, Engine};

use crate::batch::Entries;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{HEADER_BYTES, Kind, group_bytes};
use crate::loss::Loss;
use crate::lsn::Lsn;
use crate::segment::{Index, Pace};
use crate::stats::Stats;
use crate::values::{COUNT_BYTES, Values};
use crate::wait::wake_all;
use line::Line;
use memory::{Hint, InFlightGroup, Recent};
use watch::{RoomWatch, Watch};

mod duty;
mod end;
mod group;
mod line;
mod memory;
mod push;
mod watch;

pub(crate) use duty::{Duty, Server};
pub(crate) use group::{Group, emptied, own_buffer};
pub(crate) use memory::{Piece, RecordSource};
pub(crate) use push::Change;

/// Limits that do not change while a log is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum length of a record.
    pub(crate) record_bytes: usize,
    /// Maximum bytes of framed records and values in a group: the group must fit into a segment.
    pub(crate) framed_bytes: usize,
    /// Maximum length of the table of values.
    pub(crate) values_bytes: usize,
    /// Bytes of written records that stay in memory.
    pub(crate) recent_bytes: usize,
    /// A group accepts no further record that would make it longer than this.
    pub(crate) group_bytes: usize,
    /// Maximum bytes of framed records that may be pending.
    pub(crate) pending_bytes: usize,
    /// Alignment of the offsets and lengths of groups.
    pub(crate) unit: u32,
}

/// State shared by all handles of a log and its task.
pub(crate) struct Queue {
    pub(crate) engine: Engine,
    pub(crate) limits: Limits,
    /// The newest durable group.
    done: AtomicU64,
    /// The number after the newest durable record.
    durable_next: AtomicU64,
    /// When zeros are due.
    pub(crate) pace: Pace,
    /// The next segment, or the log's reserve, does not fit on the disk; [`QueueState`] has the errors.
    short: AtomicBool,
    /// Bytes left in the segment after its last group.
    pub(crate) left: AtomicU64,
    /// Bytes of the segment made ahead; 0 without one.
    pub(crate) ahead: AtomicU64,
    /// Bytes of the log's reserve; 0 without one.
    pub(crate) reserve: AtomicU64,
    /// The log's reserve exists or is being created.
    pub(crate) reserved: AtomicBool,
    /// All bytes that the log has written.
    written_bytes: Arc<AtomicU64>,
    /// The shard of the log's task.
    shard: usize,
    /// Set where threads that wait may write by themselves.
    server: OnceLock<Weak<dyn Server>>,
    state: Mutex<QueueState>,
}

/// The queue and the state that belongs to it.
pub(crate) struct QueueState {
    /// Groups to be written, oldest first; the last one may still grow.
    groups: VecDeque<Group>,
    /// Groups whose memory can be reused.
    free: Vec<Group>,
    /// The group that was dequeued last, with its waiters.
    in_flight: InFlightGroup,
    /// Records written before that.
    recent: Recent,
    hint: Hint,
    /// Wakers of reads that wait for the header of the group that was dequeued last.
    readers: Vec<Waker>,
    next_group: u64,
    pub(crate) next_lsn: u64,
    /// Counts the removals of records at the log's end, queued or done.
    cuts: u64,
    /// The values once everything in the queue is done.
    values: Arc<Values>,
    durable_values: Arc<Values>,
    queued_watch: Watch,
    durable_watch: Watch,
    /// The first record once everything in the queue is done.
    pub(crate) first_lsn: u64,
    /// Losses accepted by an earlier salvage, as of when everything in the queue is done.
    holes: Vec<Loss>,
    /// Bytes of framed records that are not durable.
    pending: usize,
    /// Appends that wait for room.
    line: Line,
    /// Waits for room without a place in that line.
    watchers: RoomWatch,
    /// No I/O memory was left for a record while others were pending, of which no write has ended since.
    lacks_memory: bool,
    /// Waker of the log's task, while it waits for work; see [`duty`].
    writer: Option<Waker>,
    /// The last groups that had one append each, without one that had more.
    lone_groups: u8,
    failed: Option<Error>,
    closing: bool,
    /// The log has no writer, and accepts no changes.
    pub(crate) is_read_only: bool,
    /// The engine has ended, so the log's thread is to end immediately.
    engine_ended: bool,
    ended: bool,
    /// The error that ended the log's task, if the task did not end by itself.
    cut_short: Option<Error>,
    /// The reason why the next segment cannot be made at present.
    no_space: Option<Error>,
    /// The reason for a missing reserve, if that is a lack of space.
    no_reserve: Option<Error>,
    ends: Vec<Waker>,
    pub(crate) index: Index,
    pub(crate) stats: Stats,
}

/// Identifies the group that a caller waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    group: u64,
    /// Index of the waker in the group's list, once it is there. Not a whole word, so that an append's future is small.
    slot: Option<u32>,
}

/// The next work of the log's task.
pub(crate) enum Work {
    Group(Group),
    /// The next group does not fit into the rest of the segment.
    Roll,
    /// The task tries again to make the next segment.
    Space,
    /// No work is left or to be expected.
    End,
}

/// The longest records of a group that are copied to stay in memory, in bytes; longer groups pin the memory from which they were
/// written.
pub(crate) const COPY_BYTES_MAX: usize = 16 << 10;

/// Maximum number of groups kept for reuse: one fills while the other is being written.
const FREE_GROUPS_MAX: usize = 2;

impl Queue {
    pub(crate) fn new(
        engine: Engine,
        shard: usize,
        limits: Limits,
        index: Index,
        next_lsn: u64,
        values: Arc<Values>,
        written_bytes: Arc<AtomicU64>,
    ) -> Queue {
        Queue {
            engine,
            shard,
            server: OnceLock::new(),
            limits,
            done: AtomicU64::new(0),
            durable_next: AtomicU64::new(index.next_lsn()),
            pace: Pace::new(),
            short: AtomicBool::new(false),
            left: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            reserve: AtomicU64::new(0),
            reserved: AtomicBool::new(false),
            written_bytes,
            state: Mutex::new(QueueState {
                groups: VecDeque::new(),
                free: Vec::new(),
                in_flight: InFlightGroup::default(),
                recent: Recent::new(limits.recent_bytes),
                hint: Hint::default(),
                readers: Vec::new(),
                next_group: 1,
                next_lsn,
                cuts: 0,
                durable_values: values.clone(),
                values,
                queued_watch: Watch::default(),
                durable_watch: Watch::default(),
                first_lsn: index.first_lsn(),
                holes: index.holes().to_vec(),
                pending: 0,
                line: Line::default(),
                watchers: RoomWatch::default(),
                lacks_memory: false,
                writer: None,
                lone_groups: 0,
                failed: None,
                closing: false,
                is_read_only: false,
                engine_ended: false,
                ended: false,
                cut_short: None,
                no_space: None,
                no_reserve: None,
                ends: Vec::new(),
                index,
                stats: Stats::new(),
            }),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adopts the state that the open produced.
    pub(crate) fn settle(&self, next_lsn: u64) {
        let mut state = self.lock();
        state.next_lsn = next_lsn;
        state.first_lsn = state.index.first_lsn();
        state.holes = state.index.holes().to_vec();
        self.durable_next.store(state.index.next_lsn(), Ordering::Release);
    }

    /// Checks that a batch fits into a group.
    pub(crate) fn check_size(&self, entries: &Entries<'_>) -> Result<()> {
        let limit = self.limits.record_bytes;
        if entries.longest > limit {
            let text = format!(
                "a record of {} bytes; the most is {limit}: raise record_bytes_max, within a segment's length",
                entries.longest
            );
            return Err(Error::new(ErrorKind::TooLarge { limit }, text));
        }
        let (framed, limit) = (entries.framed_bytes, self.limits.framed_bytes - COUNT_BYTES);
        if framed > limit || u32::try_from(entries.count).is_err() {
            let text = format!(
                "a batch of {framed} bytes with framing; the most is {limit}: use smaller batches or longer segments"
            );
            return Err(Error::new(ErrorKind::TooLarge { limit }, text));
        }
        if entries.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "a batch without records and values"));
        }
        Ok(())
    }

    /// Returns the number after the newest durable record.
    pub(crate) fn durable_next(&self) -> u64 {
        self.durable_next.load(Ordering::Acquire)
    }

    pub(crate) fn durable_values(&self) -> Arc<Values> {
        self.lock().durable_values.clone()
    }

    /// Returns whether the disk lacks space for the next segment, or for the reserve, at present.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    /// Returns the bytes left in the segment, or in the next segment made ahead, without the pending records. The two are not added
    /// up: the end of a segment that a group does not fit into stays unused.
    pub(crate) fn segment_left(&self) -> u64 {
        let pending = self.lock().pending as u64;
        let most = self.left.load(Ordering::Acquire).max(self.ahead.load(Ordering::Acquire));
        most.saturating_sub(pending)
    }

    /// Returns the bytes of the log's reserve, or the reason why it does not fit.
    pub(crate) fn reserve_bytes(&self) -> Result<u64> {
        let lack = self.is_short().then(|| self.lock().no_reserve.clone()).flatten();
        lack.map_or_else(|| Ok(self.reserve.load(Ordering::Acquire)), Err)
    }

    /// Returns the reason why the next segment cannot be made at present, if so.
    pub(crate) fn no_space(&self) -> Option<Error> {
        self.is_short().then(|| self.lock().no_space.clone()).flatten()
    }

    /// Records whether space and a descriptor were available for the next segment. Wakes the log's task, so that it tries again in
    /// time.
    pub(crate) fn note_space<T>(&self, made: &Result<T>) {
        self.note(|state| &mut state.no_space, made.as_ref().err().filter(|error| error.is_shortage()));
    }

    /// Records whether space was available for the log's reserve. Wakes the log's task, so that it tries again in time.
    pub(crate) fn note_reserve<T>(&self, made: &Result<T>) {
        let is_space = |error: &&Error| error.kind() == ErrorKind::NoSpace;
        self.note(|state| &mut state.no_reserve, made.as_ref().err().filter(is_space));
    }

    fn note(&self, place: impl FnOnce(&mut QueueState) -> &mut Option<Error>, lack: Option<&Error>) {
        if lack.is_none() && !self.is_short() {
            return;
        }
        let writer = {
            let mut locked = self.lock();
            let state = &mut *locked;
            *place(state) = lack.cloned();
            let is_short = state.no_space.is_some() || state.no_reserve.is_some();
            self.short.store(is_short, Ordering::Release);
            state.writer.take()
        };
        wake_all(writer);
    }

    pub(crate) fn stats(&self) -> Stats {
        let state = self.lock();
        let mut stats = state.stats.clone();
        stats.pending_bytes = state.pending;
        stats.written_bytes = self.written_bytes.load(Ordering::Relaxed);
        stats
    }

    /// Returns the next group for the log's task, which is woken for it. Sets `patience_ns` to the time at which the task must
    /// [pass](Self::pass) appends that were called and not polled, if any. A group stays in the queue, where its records can be
    /// read and more can be added, until the segment has `room` bytes for it, and a group of deferred records alone until it has a
    /// reason to be written.
    pub(crate) fn poll_work(
        &self,
        room: u64,
        waker: &Waker,
        patience_ns: &mut Option<u64>,
    ) -> Poll<Result<Work>> {
        let mut state = self.lock();
        let state = &mut *state;
        if state.engine_ended {
            return Poll::Ready(Err(Error::new(ErrorKind::Closed, "the engine has ended")));
        }
        if let Some(work) = state.next_group(&self.limits, room) {
            return Poll::Ready(Ok(work));
        }
        if state.closing {
            return Poll::Ready(Ok(Work::End));
        }
        match &mut state.writer {
            Some(known) if known.will_wake(waker) => {}
            other => *other = Some(waker.clone()),
        }
        *patience_ns = state.line.deadline_ns();
        Poll::Pending
    }

    /// Returns the next group for a thread in `.wait()` that writes it; `None` at the log's end, which is left to the log's thread.
    pub(crate) fn group_here(&self, room: u64) -> Option<Work> {
        let mut state = self.lock();
        if state.engine_ended || state.closing {
            return None;
        }
        let state = &mut *state;
        let work = state.next_group(&self.limits, room);
        state.stats.groups_in_wait += u64::from(matches!(work, Some(Work::Group(_))));
        work
    }

    /// Lets other appends pass those that were called and not polled in time.
    pub(crate) fn pass(&self) {
        let mut woken = Vec::new();
        {
            let mut state = self.lock();
            let state = &mut *state;
            state.line.call(&self.limits, state.pending, self.engine.now_ns(), &mut woken);
            woken.extend(state.watchers.clear());
        }
        wake_all(woken);
    }

    /// Completes the group dequeued last, which is durable, lies in `block` and has `framed` bytes of framed records: `update`
    /// changes the index, then the waiters are woken. `woken` is memory for their wakers and is left empty. `kept` are its records,
    /// if they stay in memory. Returns the memory of the short records that they replace.
    pub(crate) fn complete(
        &self,
        mut group: Group,
        block: Block,
        framed: usize,
        kept: Option<Block>,
        woken: &mut Vec<Waker>,
        update: impl FnOnce(&mut QueueState),
    ) -> Option<Block> {
        let (watchers, reached, gone) = {
            let mut state = self.lock();
            let state = &mut *state;
            debug_assert!(
                state.pending >= framed || state.failed.is_some(),
                "pending are the bytes of all groups that are not durable"
            );
            debug_assert_eq!(
                group.number,
                self.done.load(Ordering::Relaxed) + 1,
                "groups become durable in the order of their numbers"
            );
            debug_assert!(woken.is_empty(), "the list swapped in is empty");
            state.pending = state.pending.saturating_sub(framed);
            state.lacks_memory = false;
            update(state);
            self.durable_next.store(state.index.next_lsn(), Ordering::Release);
            self.done.store(group.number, Ordering::Release);
            std::mem::swap(&mut state.in_flight.wakers, woken);
            let mut gone = state.keep(&group, kept);
            if let Some(values) = group.values.take() {
                state.durable_values = values;
            }
            let reached = state.durable_watch.reached(state.index.next_lsn());
            // Only now: until the index had the records, they could be read from there.
            group.buffer = emptied(block);
            if let Some(long) = gone.take_if(|gone| gone.pinned_bytes() > COPY_BYTES_MAX) {
                // The group's memory stays with its records; that of older records replaces it.
                let memory = emptied(long);
                if group.buffer.capacity() == 0 {
                    group.buffer = memory;
                }
            }
            let is_usual = group.buffer.capacity() <= self.limits.group_bytes.next_power_of_two();
            if state.free.len() < FREE_GROUPS_MAX && is_usual && group.buffer.capacity() > 0 {
                group.clear();
                state.free.push(group);
            }
            if !state.line.is_empty() {
                state.line.call(&self.limits, state.pending, self.engine.now_ns(), woken);
            }
            debug_assert!(
                state.line.is_kept(state.pending),
                "a waiter that is neither called nor passed waits for bytes, or for one that is called"
            );
            (state.watchers.fitting(&self.limits, state.pending), reached, gone)
        };
        wake_all(woken.drain(..).chain(watchers).chain(reached));
        gone
    }

    /// Completes once record `lsn` can be read: once it is queued, or durable. `id` is the waiter's number.
    pub(crate) fn poll_reached(
        &self,
        lsn: u64,
        is_durable: bool,
        id: &mut Option<u64>,
        waker: &Waker,
    ) -> Poll<Result<()>> {
        let mut locked = self.lock();
        let state = &mut *locked;
        let (first, next) = if is_durable {
            (state.index.first_lsn(), state.index.next_lsn())
        } else {
            (state.first_lsn, state.next_lsn)
        };
        if lsn < first {
            let kind = ErrorKind::OutOfRange { first: Lsn(first), last: Lsn(next.saturating_sub(1)) };
            let text = format!("record {lsn} was removed: the log begins with record {first}");
            return Poll::Ready(Err(Error::new(kind, text)));
        }
        if lsn < next {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = &state.failed {
            return Poll::Ready(Err(error.clone()));
        }
        // A queued record of a closing log still becomes durable.
        if state.ended || (state.closing && lsn >= state.next_lsn) {
            return Poll::Ready(Err(state.closed()));
        }
        let watch = if is_durable { &mut state.durable_watch } else { &mut state.queued_watch };
        watch.wait(lsn, id, waker);
        let is_in_last = |last: &Group| last.first_lsn <= lsn && lsn < state.next_lsn;
        let writer = if is_durable && state.groups.back().is_some_and(is_in_last) {
            state.end_deferral()
        } else {
            None
        };
        drop(locked);
        wake_all(writer);
        Poll::Pending
    }

    /// Forgets a waiter for a record.
    pub(crate) fn leave_watch(&self, lsn: u64, is_durable: bool, id: u64) {
        let mut state = self.lock();
        let state = &mut *state;
        if is_durable { &mut state.durable_watch } else { &mut state.queued_watch }.leave(lsn, id);
    }

    /// Completes once the group of this ticket is durable.
    pub(crate) fn poll_done(&self, ticket: &mut Ticket, waker: &Waker) -> Poll<Result<()>> {
        if self.done.load(Ordering::Acquire) >= ticket.group {
            return Poll::Ready(Ok(()));
        }
        let mut state = self.lock();
        if self.done.load(Ordering::Acquire) >= ticket.group {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = &state.failed {
            return Poll::Ready(Err(error.clone()));
        }
        if state.ended {
            return Poll::Ready(Err(state.closed()));
        }
        let Some(wakers) = state.wakers_of(ticket.group) else {
            return Poll::Ready(Err(Error::new(ErrorKind::InvalidInput, "nothing is being waited for")));
        };
        match ticket.slot.and_then(|slot| wakers.get_mut(slot as usize)) {
            Some(known) => known.clone_from(waker),
            None => {
                ticket.slot = u32::try_from(wakers.len()).ok();
                wakers.push(waker.clone());
            }
        }
        let writer = if ticket.group + 1 == state.next_group { state.end_deferral() } else { None };
        drop(state);
        wake_all(writer);
        Poll::Pending
    }
}

impl QueueState {
    /// Checks that the log still accepts calls.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None if self.closing => Err(self.closed()),
            None if self.is_read_only => Err(read_only()),
            None => Ok(()),
        }
    }

    /// Dequeues the next group that is due, if it fits into the `room` of the segment.
    fn next_group(&mut self, limits: &Limits, room: u64) -> Option<Work> {
        if !self.closing && self.is_all_deferred() {
            return None;
        }
        let front = self.groups.front()?;
        if u64::from(group_bytes(front.content_bytes(), limits.unit)) > room {
            return Some(Work::Roll);
        }
        let mut group = self.groups.pop_front()?;
        debug_assert_eq!(
            group.number,
            self.in_flight.number + 1,
            "groups are written in the order of their numbers"
        );
        self.note_appends(group.appends);
        self.in_flight.take(&mut group);
        Some(Work::Group(group))
    }

    /// Returns the error for calls on a closed log.
    fn closed(&self) -> Error {
        self.cut_short.clone().unwrap_or_else(closed)
    }

    fn wakers_of(&mut self, number: u64) -> Option<&mut Vec<Waker>> {
        if number == self.in_flight.number {
            return Some(&mut self.in_flight.wakers);
        }
        let first = self.groups.front()?.number;
        let index = usize::try_from(number.checked_sub(first)?).ok()?;
        self.groups.get_mut(index).map(|group| &mut group.wakers)
    }

    /// Returns whether the queue has records, and no reason to write them.
    fn is_all_deferred(&self) -> bool {
        self.groups.len() == 1 && self.groups.front().is_some_and(|only| only.is_deferred)
    }

    /// Starts a group at the end of the queue.
    fn begin_group(&mut self, mut group: Group, kind: Kind, argument: u64) -> &mut Group {
        (group.kind, group.argument) = (kind, argument);
        group.number = self.next_group;
        group.first_lsn = self.next_lsn;
        debug_assert!(
            self.groups.back().is_none_or(|last| {
                last.number + 1 == self.next_group
                    && (last.kind != Kind::Records || last.first_lsn + u64::from(last.count) == self.next_lsn)
            }),
            "groups are numbered without gaps, and so are their records"
        );
        self.next_group += 1;
        self.groups.push_back(group);
        // Just pushed, so the queue is not empty here.
        let last = self.groups.len() - 1;
        &mut self.groups[last]
    }

    /// Returns a ticket that completes once everything queued so far is durable.
    fn ticket_for_all(&self) -> Ticket {
        Ticket { group: self.next_group - 1, slot: None }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the log was closed")
}

fn read_only() -> Error {
    let text = "the log was opened to be read only; open it without Options::read_only to change it";
    Error::new(ErrorKind::InvalidInput, text)
}

/// Returns whether records of this length with framing get a separate group.
fn is_large(limits: &Limits, framed: usize) -> bool {
    HEADER_BYTES.saturating_add(framed) > limits.group_bytes
}
