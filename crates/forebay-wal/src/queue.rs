//! What waits to be written: groups that callers fill on their own threads, and who waits for what.
//!
//! Everything here happens under one lock that is held for a copy of a record at most. Nobody is woken under
//! it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use forebay::Engine;

use crate::error::{Error, ErrorKind, Result};
use crate::format::{HEADER_BYTES, Kind};
use crate::lost::Lost;
use crate::segment::Index;
use crate::stats::Stats;
use crate::wait::wake_all;
use line::Line;

mod end;
mod group;
mod line;
mod push;

pub(crate) use group::{Group, framed_bytes, own_buffer};
pub(crate) use push::Change;

/// Sizes that do not change while a log is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The longest record.
    pub(crate) record_bytes: usize,
    /// The most bytes of framed records in a group: a segment has to hold it.
    pub(crate) framed_bytes: usize,
    /// A group gets no further records beyond this length.
    pub(crate) group_bytes: usize,
    /// Bytes of framed records that may wait.
    pub(crate) pending_bytes: usize,
    /// What places and lengths of groups are multiples of.
    pub(crate) unit: u32,
}

/// What all handles of a log and its task share.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) limits: Limits,
    /// The newest group that is durable.
    done: AtomicU64,
    /// The newest record that is durable.
    durable_lsn: AtomicU64,
    /// What goes on in the background had better end.
    pub(crate) stop: AtomicBool,
    /// There is no space for the next segment; [`State`] has the error.
    short: AtomicBool,
    /// Bytes that the segment has left behind its last group.
    pub(crate) left: AtomicU64,
    /// The log's reserve is there, or is being made.
    pub(crate) reserved: AtomicBool,
    /// Where the log's task runs.
    shard: usize,
    state: Mutex<State>,
}

/// The queue and what goes with it.
pub(crate) struct State {
    /// Groups to be written, oldest first; the last one may still grow.
    groups: VecDeque<Group>,
    /// Groups whose memory can be used again.
    free: Vec<Group>,
    /// The number of the group that was taken last, and who waits for it.
    flying: (u64, Vec<Waker>),
    next_group: u64,
    pub(crate) next_lsn: u64,
    /// The first record once everything in the queue is done.
    pub(crate) first_lsn: u64,
    /// What an earlier salvage gave up, once everything in the queue is done.
    holes: Vec<Lost>,
    /// Bytes of framed records that are not durable.
    pending: usize,
    /// Appends that wait for room.
    line: Line,
    /// Wakers of waits for room without a place in that line; all are woken when there may be some.
    watchers: Vec<Waker>,
    /// The log's task, when it waits for work.
    writer: Option<Waker>,
    failed: Option<Error>,
    closing: bool,
    ended: bool,
    /// What ended the log's task, when that was not its own end.
    cut_short: Option<Error>,
    /// Why the next segment cannot be made at present.
    no_space: Option<Error>,
    ends: Vec<Waker>,
    pub(crate) index: Index,
    pub(crate) stats: Stats,
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    group: u64,
    /// Where the waker is in the group's list, once it is.
    slot: Option<usize>,
}

/// What the log's task does next.
pub(crate) enum Work {
    Group(Group),
    /// It looks for space again.
    Space,
    /// Nothing is left, and nothing will come.
    End,
}

/// Groups that are kept for use again: one fills while the other is being written.
const FREE_GROUPS_MAX: usize = 2;

impl Shared {
    pub(crate) fn new(engine: Engine, shard: usize, limits: Limits, index: Index, next_lsn: u64) -> Shared {
        Shared {
            engine,
            shard,
            limits,
            done: AtomicU64::new(0),
            durable_lsn: AtomicU64::new(index.durable_lsn()),
            stop: AtomicBool::new(false),
            short: AtomicBool::new(false),
            left: AtomicU64::new(0),
            reserved: AtomicBool::new(false),
            state: Mutex::new(State {
                groups: VecDeque::new(),
                free: Vec::new(),
                flying: (0, Vec::new()),
                next_group: 1,
                next_lsn,
                first_lsn: index.first_lsn(),
                holes: index.holes().to_vec(),
                pending: 0,
                line: Line::default(),
                watchers: Vec::new(),
                writer: None,
                failed: None,
                closing: false,
                ended: false,
                cut_short: None,
                no_space: None,
                ends: Vec::new(),
                index,
                stats: Stats::new(),
            }),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was done while opening counts.
    pub(crate) fn settle(&self, next_lsn: u64) {
        let mut state = self.lock();
        state.next_lsn = next_lsn;
        state.first_lsn = state.index.first_lsn();
        state.holes = state.index.holes().to_vec();
        self.durable_lsn.store(state.index.durable_lsn(), Ordering::Release);
    }

    /// Whether these records can be in a group.
    pub(crate) fn check_size(&self, records: &[&[u8]]) -> Result<()> {
        let limit = self.limits.record_bytes;
        if let Some(long) = records.iter().find(|record| record.len() > limit) {
            let text = format!("a record of {} bytes; the most is {limit}", long.len());
            return Err(Error::new(ErrorKind::TooLarge { limit }, text));
        }
        let (framed, limit) = (framed_bytes(records), self.limits.framed_bytes);
        if framed > limit || u32::try_from(records.len()).is_err() {
            let text = format!("a batch of {framed} bytes with framing; the most is {limit}");
            return Err(Error::new(ErrorKind::TooLarge { limit }, text));
        }
        if records.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "a batch without records"));
        }
        Ok(())
    }

    pub(crate) fn durable_lsn(&self) -> u64 {
        self.durable_lsn.load(Ordering::Acquire)
    }

    /// Whether there is no space for the next segment at present.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    /// Bytes that the segment has left behind its last group and the records that wait.
    pub(crate) fn segment_left(&self) -> u64 {
        let pending = self.lock().pending as u64;
        self.left.load(Ordering::Acquire).saturating_sub(pending)
    }

    /// Why, if so.
    pub(crate) fn no_space(&self) -> Option<Error> {
        self.is_short().then(|| self.lock().no_space.clone()).flatten()
    }

    /// Takes note of what became of the next segment. The log's task is woken to try again in time.
    pub(crate) fn note_space<T>(&self, made: &Result<T>) {
        let no_space = made.as_ref().err().filter(|error| *error.kind() == ErrorKind::NoSpace);
        if no_space.is_none() && !self.is_short() {
            return;
        }
        let writer = {
            let mut state = self.lock();
            state.no_space = no_space.cloned();
            self.short.store(no_space.is_some(), Ordering::Release);
            state.writer.take()
        };
        wake_all(writer);
    }

    pub(crate) fn stats(&self) -> Stats {
        let state = self.lock();
        let mut stats = state.stats.clone();
        stats.pending_bytes = state.pending;
        stats.poisoned = state.failed.is_some();
        stats
    }

    /// Returns the next group for the log's task, which is woken when there is one. `patience_ns` becomes the time at
    /// which it has to [pass](Self::pass) appends that were called and not polled, if there are any.
    pub(crate) fn poll_work(&self, waker: &Waker, patience_ns: &mut Option<u64>) -> Poll<Work> {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(mut group) = state.groups.pop_front() {
            state.flying.0 = group.number;
            // The list that comes back is empty and keeps its memory.
            std::mem::swap(&mut state.flying.1, &mut group.wakers);
            return Poll::Ready(Work::Group(group));
        }
        if state.closing {
            return Poll::Ready(Work::End);
        }
        match &mut state.writer {
            Some(known) if known.will_wake(waker) => {}
            other => *other = Some(waker.clone()),
        }
        *patience_ns = state.line.deadline_ns();
        Poll::Pending
    }

    /// Lets others pass the appends that were called and not polled in time.
    pub(crate) fn pass(&self) {
        let mut woken = Vec::new();
        {
            let mut state = self.lock();
            let state = &mut *state;
            state.line.call(&self.limits, state.pending, self.engine.now_ns(), &mut woken);
            woken.append(&mut state.watchers);
        }
        wake_all(woken);
    }

    /// The group taken last, with so many bytes of framed records, is durable: `update` changes the index,
    /// then who waits for it is woken. `woken` is memory for their wakers and is left empty.
    pub(crate) fn complete(
        &self,
        mut group: Group,
        framed: usize,
        woken: &mut Vec<Waker>,
        update: impl FnOnce(&mut State),
    ) {
        let watchers = {
            let mut state = self.lock();
            let state = &mut *state;
            state.pending = state.pending.saturating_sub(framed);
            update(state);
            self.durable_lsn.store(state.index.durable_lsn(), Ordering::Release);
            self.done.store(group.number, Ordering::Release);
            std::mem::swap(&mut state.flying.1, woken);
            let is_usual = group.buffer.capacity() <= self.limits.group_bytes.next_power_of_two();
            if state.free.len() < FREE_GROUPS_MAX && is_usual && group.buffer.capacity() > 0 {
                group.clear();
                state.free.push(group);
            }
            if !state.line.is_empty() {
                state.line.call(&self.limits, state.pending, self.engine.now_ns(), woken);
            }
            std::mem::take(&mut state.watchers)
        };
        wake_all(woken.drain(..).chain(watchers));
    }

    /// Is the group of this ticket durable?
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
        match ticket.slot.and_then(|slot| wakers.get_mut(slot)) {
            Some(known) => known.clone_from(waker),
            None => {
                ticket.slot = Some(wakers.len());
                wakers.push(waker.clone());
            }
        }
        Poll::Pending
    }
}

impl State {
    /// Whether the log takes anything more.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None if self.closing => Err(self.closed()),
            None => Ok(()),
        }
    }

    /// The answer of a log that is closed.
    fn closed(&self) -> Error {
        self.cut_short.clone().unwrap_or_else(closed)
    }

    fn wakers_of(&mut self, number: u64) -> Option<&mut Vec<Waker>> {
        if number == self.flying.0 {
            return Some(&mut self.flying.1);
        }
        let first = self.groups.front()?.number;
        let index = usize::try_from(number.checked_sub(first)?).ok()?;
        self.groups.get_mut(index).map(|group| &mut group.wakers)
    }

    /// Starts a group at the end of the queue.
    fn begin_group(&mut self, mut group: Group, kind: Kind, argument: u64) -> &mut Group {
        (group.kind, group.argument) = (kind, argument);
        group.number = self.next_group;
        group.first_lsn = self.next_lsn;
        self.next_group += 1;
        self.groups.push_back(group);
        // Just pushed; the queue is never empty here.
        let last = self.groups.len() - 1;
        &mut self.groups[last]
    }

    /// What to wait for so that everything queued so far is durable.
    fn ticket_for_all(&self) -> Ticket {
        Ticket { group: self.next_group - 1, slot: None }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the log was closed")
}

/// Whether records of so many framed bytes get a group of their own.
fn is_large(limits: &Limits, framed: usize) -> bool {
    HEADER_BYTES.saturating_add(framed) > limits.group_bytes
}
