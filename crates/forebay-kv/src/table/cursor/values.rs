//! Read-ahead of values that lie outside of their leaf.
//!
//! A table has the values of a leaf right before it, one after the other, so the bytes that a cursor wants next lie together:
//! - A leaf is read with the values before it, as many as fit into one read (`Cursor::next_child`).
//! - When the first value outside of that read is needed, the values behind it in the leaf are planned with it. Values of one file
//!   with less than a page between them share a read, of at most the size of a read of leaves. A longer value is read alone.
//! - When all values of the leaf are read or being read, the next leaf is (`Cursor::begin_behind`).
//! - Ranges start small: as many bytes of values are read ahead as the range has passed, at least two pages, at most 512 KiB, which
//!   count as held by the program.
//! - Compaction reads ahead immediately, in the memory of the leaves' reads: a read of values replaces a read of leaves. Only a
//!   value longer than such a read has its own memory, and is not read ahead. (Where leaves were read without their values,
//!   because these are in other files, one read of values runs in addition.)
//! - Cached values are not read: a range looks each value up in the cache, and offers its first values to it.
//! - Each value is checked on its own. One whose read failed together with others is read alone.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use forebay::Block;

use super::{CursorHow, Direction};
use crate::node::{BlobAt, UNIT};
use crate::table::TableFile;
use crate::table::ahead::PartRead;
use crate::value::HeldShare;

/// The limit for the memory of a range's reads of values.
const RANGE_BYTES_MAX: u64 = 512 << 10;
/// The bytes of values that a range has read ahead at first.
const RANGE_BYTES_MIN: u64 = 2 * UNIT as u64;
/// What is between two values of a read, at most.
const GAP_BYTES_MAX: u64 = UNIT as u64;

/// Values of the present leaf that are being read, in the order of the cursor.
#[derive(Default)]
pub(super) struct Values {
    reads: VecDeque<ValueRead>,
    /// The number of entries of the leaf whose values are planned, if they are to be read.
    planned: usize,
    /// Bytes of the values that the cursor has read one after the other.
    passed: u64,
}

/// A read of values that lie together.
struct ValueRead {
    part: PartRead,
    /// The entry of the last of them.
    last: usize,
    /// The memory counts as held by the program if the read is a range's; `None` until its start.
    held: Option<HeldShare>,
}

/// The place of a value, and its entry in the leaf, counted in the cursor's direction.
pub(super) struct ValueAt {
    pub(super) entry: usize,
    pub(super) file: Arc<TableFile>,
    pub(super) blob: BlobAt,
}

/// Returns the bytes of the pages that a range touches.
fn pages(range: &Range<u64>) -> u64 {
    range.end.next_multiple_of(UNIT as u64) - range.start / UNIT as u64 * UNIT as u64
}

/// Returns the bytes of I/O memory that a read needs.
fn memory_bytes(range: &Range<u64>) -> u64 {
    pages(range).next_power_of_two()
}

impl ValueRead {
    /// Returns the range of this read with a value more, if they can share a read.
    fn joined(&self, value: &ValueAt, bytes_max: u64) -> Option<Range<u64>> {
        let (planned, range) = (self.part.range(), value.blob.range());
        let gap = range.start.saturating_sub(planned.end).max(planned.start.saturating_sub(range.end));
        let joined = planned.start.min(range.start)..planned.end.max(range.end);
        let fits = gap <= GAP_BYTES_MAX && pages(&joined) <= bytes_max;
        (fits && self.part.is_planned() && Arc::ptr_eq(self.part.file(), &value.file)).then_some(joined)
    }

    fn has(&self, file: &Arc<TableFile>, range: &Range<u64>) -> bool {
        let own = self.part.range();
        Arc::ptr_eq(self.part.file(), file) && own.start <= range.start && range.end <= own.end
    }
}

impl Values {
    /// Forgets the values of a leaf: the cursor moves to the next leaf.
    pub(super) fn begin_leaf(&mut self) {
        self.reads.clear();
        self.planned = 0;
    }

    /// Returns the number of reads that are planned, in flight or not yet used up.
    pub(super) fn reads(&self) -> usize {
        self.reads.len()
    }

    /// Returns whether all values of the leaf that are to be read are planned.
    pub(super) fn are_planned(&self) -> bool {
        self.planned == usize::MAX
    }

    /// Returns the bytes of the reads that are planned, in flight or not yet used up.
    pub(super) fn coming(&self) -> u64 {
        self.reads.iter().map(|read| read.part.range()).map(|range| range.end - range.start).sum()
    }

    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    /// Counts a value that the cursor has read.
    pub(super) fn pass(&mut self, blob: BlobAt) {
        self.passed += u64::from(blob.len);
    }

    /// Plans to read the value at an entry of the leaf, and values behind it if too few of them are being read.
    /// `wanted` returns the values from an entry on; `leaf_reads` is the number of reads of leaves.
    pub(super) fn plan<I: Iterator<Item = ValueAt>>(
        &mut self,
        at: (usize, BlobAt),
        how: &CursorHow,
        leaf_reads: usize,
        wanted: impl FnOnce(usize) -> I,
    ) {
        let (entry, blob) = at;
        while self.reads.front().is_some_and(|read| read.last < entry) {
            self.reads.pop_front();
        }
        let (bytes, reads_max) = (u64::from(how.read_bytes_max), how.reads_max.max(1) as usize);
        // All the leaves' reads of a range together are as long as one of its reads of values.
        let (read_bytes_max, memory_max) = if how.cache {
            (bytes * reads_max as u64, RANGE_BYTES_MAX)
        } else {
            let reads = reads_max.saturating_sub(leaf_reads).max(1);
            (bytes, bytes.next_power_of_two() * reads as u64)
        };
        let (target, low) = if how.ramp {
            let grown = self.passed.max(RANGE_BYTES_MIN);
            let target = grown.min(memory_max);
            (target, target / 3)
        } else {
            (memory_max, memory_max / 2)
        };
        let mut ahead = self.bytes_behind(blob, how.direction);
        if self.planned > entry && ahead >= low {
            return;
        }
        for value in wanted(self.planned.max(entry)) {
            let range = value.blob.range();
            let joined = self.reads.back().and_then(|read| read.joined(&value, read_bytes_max));
            if value.entry > entry {
                let is_alone = !how.cache && pages(&range) > read_bytes_max;
                ahead += u64::from(value.blob.len);
                if is_alone || ahead > target || self.memory_with(joined.as_ref(), &range) > memory_max {
                    return;
                }
            }
            self.planned = value.entry + 1;
            match (joined, self.reads.back_mut()) {
                (Some(joined), Some(read)) => {
                    read.part.set_range(joined);
                    read.last = value.entry;
                }
                _ => {
                    let part = PartRead::new(&value.file, range, how.class);
                    self.reads.push_back(ValueRead { part, last: value.entry, held: None });
                }
            }
        }
        self.planned = usize::MAX;
    }

    /// Returns the bytes that are being read behind a value.
    fn bytes_behind(&self, blob: BlobAt, direction: Direction) -> u64 {
        let mut ranges = self.reads.iter().map(|read| read.part.range());
        let Some(front) = ranges.next() else { return 0 };
        let rest = match direction {
            Direction::Forward => front.end.saturating_sub(blob.range().end),
            Direction::Backward => blob.offset.saturating_sub(front.start),
        };
        rest.min(front.end - front.start) + ranges.map(|range| range.end - range.start).sum::<u64>()
    }

    /// Returns the memory of all reads if a value's range is added, to the last read if they are joined.
    fn memory_with(&self, joined: Option<&Range<u64>>, range: &Range<u64>) -> u64 {
        let others = self.reads.len() - usize::from(joined.is_some());
        let of_others: u64 = self.reads.iter().take(others).map(|read| memory_bytes(read.part.range())).sum();
        of_others + memory_bytes(joined.unwrap_or(range))
    }

    /// Starts the planned reads.
    pub(super) async fn begin(&mut self, how: &CursorHow) {
        if !self.reads.back().is_some_and(|read| read.part.is_planned()) {
            return;
        }
        poll_fn(|context| {
            for read in &mut self.reads {
                let (held, memory) = (read.part.file().cache.held(), memory_bytes(read.part.range()));
                read.held.get_or_insert_with(|| HeldShare::new(how.cache.then_some(held), memory));
                read.part.poll(context);
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Returns the bytes of an entry's value as they are in the file, if they are among those that are read. Returns
    /// `None` also if the read failed. The caller has the memory of the last value of a read.
    pub(super) async fn take(&mut self, file: &Arc<TableFile>, at: (usize, BlobAt)) -> Option<Block> {
        let (entry, range) = (at.0, at.1.range());
        if !self.reads.front()?.has(file, &range) {
            return None;
        }
        poll_fn(|context| {
            let is_over = |reads: &VecDeque<ValueRead>| reads.front().is_none_or(|read| read.part.is_over());
            if !is_over(&self.reads) {
                self.reads.iter_mut().for_each(|read| read.part.poll(context));
            }
            if is_over(&self.reads) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let front = self.reads.front()?;
        let bytes = front.part.bytes()?.part(range);
        if front.last <= entry {
            self.reads.pop_front();
        }
        bytes
    }
}
