//! The records that are still in memory: queued, being written, or written last.

use std::collections::VecDeque;
use std::ops::Range;
use std::task::{Poll, Waker};

use forebay::{Block, BlockMut};

use super::{Group, Queue, QueueState};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{HEADER_BYTES, Kind, RECORD_HEADER_BYTES, records};
use crate::lsn::Lsn;
use crate::wait::wake_all;

/// Maximum bytes that are copied from a queued group under the lock, unless a single record is longer.
const COPY_BYTES: usize = 64 << 10;

/// Records side by side, each with its length before it.
#[derive(Debug)]
pub(crate) struct Piece {
    /// The number of the first one.
    pub(crate) first: u64,
    pub(crate) framed: Block,
    /// The numbers of those that are wanted.
    pub(crate) take: Range<u64>,
}

/// Where the next records of a read are.
#[derive(Debug)]
pub(crate) enum RecordSource {
    /// They are in memory.
    Memory(Piece),
    /// They are in the segments, up to this number.
    Segments(u64),
    /// No records are kept.
    None,
}

/// The group that is being written.
#[derive(Debug, Default)]
pub(super) struct InFlightGroup {
    pub(super) number: u64,
    pub(super) wakers: Vec<Waker>,
    kind: Option<Kind>,
    argument: u64,
    first: u64,
    count: u64,
    /// The records, once the group has its header.
    framed: Option<Block>,
}

impl InFlightGroup {
    /// Notes the group that is dequeued.
    pub(super) fn take(&mut self, group: &mut Group) {
        debug_assert!(self.wakers.is_empty(), "the waiters of the group before were woken");
        self.number = group.number;
        // The list swapped in is empty and keeps its memory.
        std::mem::swap(&mut self.wakers, &mut group.wakers);
        (self.kind, self.argument) = (Some(group.kind), group.argument);
        (self.first, self.count, self.framed) = (group.first_lsn, u64::from(group.count), None);
    }

    /// Forgets the group, which is durable or has failed.
    pub(super) fn end(&mut self) {
        (self.kind, self.count, self.framed) = (None, 0, None);
    }
}

/// The records written last, as far as they are kept in memory.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// In the order of their numbers, without a gap to the group that is written next.
    groups: VecDeque<RecentGroup>,
    /// Bytes of memory that they keep from other use.
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct RecentGroup {
    first: u64,
    count: u64,
    framed: Block,
}

impl Recent {
    pub(super) fn new(bytes_max: usize) -> Recent {
        Recent { bytes_max, ..Recent::default() }
    }

    /// Adds the records of a durable group, or nothing for a group that is too long: then all groups before it are dropped. Returns
    /// the evicted records of one group, for their memory.
    fn push(&mut self, first: u64, count: u64, framed: Option<Block>) -> Option<Block> {
        let mut gone = None;
        match framed {
            Some(framed) => {
                self.bytes += framed.pinned_bytes();
                self.groups.push_back(RecentGroup { first, count, framed });
            }
            None => self.clear(),
        }
        while self.bytes > self.bytes_max
            && let Some(kept) = self.groups.pop_front()
        {
            self.bytes -= kept.framed.pinned_bytes();
            gone = Some(kept.framed);
        }
        gone
    }

    /// Removes the records from `next` on.
    fn cut(&mut self, next: u64) {
        while self.groups.back().is_some_and(|kept| kept.first >= next)
            && let Some(kept) = self.groups.pop_back()
        {
            self.bytes -= kept.framed.pinned_bytes();
        }
        if let Some(last) = self.groups.back_mut() {
            last.count = last.count.min(next - last.first);
        }
    }

    pub(super) fn clear(&mut self) {
        self.groups.clear();
        self.bytes = 0;
    }
}

/// The place where the last read from a queued group ended: sequential reads do not start at the group's first record each time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hint {
    /// The group's number.
    group: u64,
    lsn: u64,
    offset: usize,
}

impl Queue {
    /// Makes the records of the group that is being written readable, if it is from the queue.
    pub(crate) fn publish(&self, group: &Block, framed: usize) {
        let readers = {
            let mut state = self.lock();
            if state.in_flight.kind.is_none() {
                return;
            }
            state.in_flight.framed = group.slice(HEADER_BYTES..HEADER_BYTES + framed);
            std::mem::take(&mut state.readers)
        };
        wake_all(readers);
    }

    /// Finds the records from `lsn` on, before `end`. Waits while their group gets its header, which needs no operation of a
    /// device.
    pub(crate) fn poll_find(
        &self,
        lsn: u64,
        end: u64,
        bytes: usize,
        waker: &Waker,
    ) -> Poll<Result<RecordSource>> {
        let mut state = self.lock();
        let state = &mut *state;
        let first = state.first_lsn;
        if lsn < first {
            let kind =
                ErrorKind::OutOfRange { first: Lsn(first), last: Lsn(state.next_lsn.saturating_sub(1)) };
            let text = format!("record {lsn} was removed: the log begins with record {first}");
            return Poll::Ready(Err(Error::new(kind, text)));
        }
        if lsn >= end.min(state.next_lsn) {
            return Poll::Ready(Ok(RecordSource::None));
        }
        // From the newest on: what a queued truncation removes is not there any more.
        let mut limit = u64::MAX;
        for (at, group) in state.groups.iter().enumerate().rev() {
            let (records, below) =
                visible(group.kind, group.argument, group.first_lsn, group.count.into(), limit);
            if records.contains(&lsn) {
                let take = lsn..records.end.min(end);
                return Poll::Ready(state.copy(self, at, take, bytes).map(RecordSource::Memory));
            }
            limit = below;
        }
        let InFlightGroup { kind, argument, first, count, ref framed, .. } = state.in_flight;
        if let Some(kind) = kind {
            let (records, below) = visible(kind, argument, first, count, limit);
            if records.contains(&lsn) {
                let Some(framed) = framed else {
                    if !state.readers.iter().any(|known| known.will_wake(waker)) {
                        state.readers.push(waker.clone());
                    }
                    return Poll::Pending;
                };
                let take = lsn..records.end.min(end);
                return Poll::Ready(Ok(RecordSource::Memory(Piece { first, framed: framed.clone(), take })));
            }
            limit = below;
        }
        let after = state.recent.groups.partition_point(|kept| kept.first <= lsn);
        if let Some(kept) = after.checked_sub(1).and_then(|at| state.recent.groups.get(at)) {
            let records = kept.first..(kept.first + kept.count).min(limit);
            if records.contains(&lsn) {
                let (first, framed) = (kept.first, kept.framed.clone());
                return Poll::Ready(Ok(RecordSource::Memory(Piece {
                    first,
                    framed,
                    take: lsn..records.end.min(end),
                })));
            }
        }
        let kept = state.recent.groups.front().map_or(u64::MAX, |kept| kept.first);
        let until = state.index.next_lsn().min(limit).min(end);
        if lsn < until {
            let until = if kept > lsn { until.min(kept) } else { until };
            return Poll::Ready(Ok(RecordSource::Segments(until)));
        }
        // Records that were queued and not written, because the log failed.
        let error = state.failed.clone().unwrap_or_else(|| state.closed());
        Poll::Ready(Err(error))
    }

    /// Returns how often records were removed from the log's end, or all of them.
    pub(crate) fn cuts(&self) -> u64 {
        self.lock().cuts
    }
}

/// Returns the records of a group that are still there where all after it leave those before `limit`, and the limit for
/// the groups before it.
fn visible(kind: Kind, argument: u64, first: u64, count: u64, limit: u64) -> (Range<u64>, u64) {
    match kind {
        Kind::Records if count > 0 => (first..(first + count).min(limit), limit.min(first)),
        Kind::Truncate => (0..0, limit.min(argument.saturating_add(1))),
        Kind::Reset => (0..0, 0),
        _ => (0..0, limit),
    }
}

impl QueueState {
    /// Keeps the records of a durable group in memory, and applies what it removes. Returns the records that they replace.
    pub(super) fn keep(&mut self, group: &Group, kept: Option<Block>) -> Option<Block> {
        self.in_flight.end();
        match group.kind {
            Kind::Truncate => self.recent.cut(group.argument.saturating_add(1)),
            Kind::Reset => self.recent.clear(),
            _ if group.count > 0 => {
                return self.recent.push(group.first_lsn, u64::from(group.count), kept);
            }
            _ => {}
        }
        None
    }

    /// Copies records of a group in the queue.
    fn copy(&mut self, shared: &Queue, at: usize, take: Range<u64>, bytes: usize) -> Result<Piece> {
        let group = &self.groups[at];
        let framed = group.buffer.get(HEADER_BYTES..).unwrap_or_default();
        let Hint { lsn: mut first, mut offset, .. } = match self.hint {
            known if known.group == group.number && known.lsn <= take.start => known,
            _ => Hint { group: group.number, lsn: group.first_lsn, offset: 0 },
        };
        let mut all = records(framed.get(offset..).unwrap_or_default());
        while first < take.start
            && let Some(record) = all.next()
        {
            offset += RECORD_HEADER_BYTES + record.len();
            first += 1;
        }
        // As many as are wanted, and one at least.
        let (mut count, mut length, mut sum) = (0, 0, 0);
        for record in all {
            let after = length + RECORD_HEADER_BYTES + record.len();
            sum += record.len();
            if count > 0 && (after > COPY_BYTES || sum > bytes || first + count >= take.end) {
                break;
            }
            (count, length) = (count + 1, after);
        }
        let mut copy: BlockMut = shared.engine.block(length)?;
        copy.copy_from_slice(&framed[offset..offset + length]);
        self.hint = Hint { group: group.number, lsn: first + count, offset: offset + length };
        let take = first..(first + count).min(take.end);
        Ok(Piece { first, framed: copy.freeze(), take })
    }
}
