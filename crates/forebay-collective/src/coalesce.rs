//! Adjacent pages on their way to the device as one large write each: the common part of
//! [`write_combiner`](crate::ops::write_combiner) and [`collective`](crate::ops::collective).
//!
//! ```text
//!   begin(range, edges) --> edges are read --> Source::gather copies into a buffer --> write --> Source::written
//! ```

use std::mem;
use std::ops::Range;
use std::task::Waker;

use crate::{Alignment, Class, Durability, Error, ErrorKind, File, FileInternals, Result};

#[path = "coalesce/runs.rs"]
mod runs;

pub(crate) use runs::{Edges, RunBytes, Runs, Source};

/// The smallest page: the unit that file systems and devices write without reading first.
const PAGE_BYTES: u64 = 4096;
/// The most memory in flight, unless one request needs more. Devices gain nothing from more, however much
/// there is.
const IN_FLIGHT_BYTES: u64 = 8 << 20;
/// The fewest pages that memory is divided into.
const PAGES_MIN: u64 = 16;

/// Sizes that follow from the device's alignment and the memory allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Writes begin at multiples of this, and pages not written whole are read in this unit.
    pub(crate) page: u64,
    /// The unit that the end of the file is padded to.
    pub(crate) grain: u64,
    /// Bytes of the largest write; a multiple of `page`.
    pub(crate) request: u64,
    /// Writes in flight at most.
    pub(crate) depth: usize,
    /// Bytes of buffers in flight at most.
    pub(crate) in_flight: u64,
    /// The rest of the memory, for pages that wait; one request is kept apart.
    pub(crate) waiting: u64,
}

impl Shape {
    pub(crate) fn new(alignment: &Alignment, memory: u64, request: u64, depth: usize) -> Shape {
        let grain = u64::from(alignment.offset.max(1));
        let page = PAGE_BYTES.max(grain).max(u64::from(alignment.read_offset));
        let memory = memory.max(PAGES_MIN * page);
        // A buffer's size is the next power of two, so a request is a power of two itself.
        let quarter = (memory / 4).max(page);
        let request = request.clamp(page, quarter.max(page));
        let request = if request.is_power_of_two() { request } else { request.next_power_of_two() / 2 };
        let in_flight = quarter.min(IN_FLIGHT_BYTES.max(request));
        Shape { page, grain, request, depth, in_flight, waiting: memory - in_flight - request }
    }

    /// Returns a shape as [`new`](Self::new) does, for a user that keeps no pages: all of the memory may be
    /// in flight.
    pub(crate) fn unkept(alignment: &Alignment, memory: u64, request: u64, depth: usize) -> Shape {
        Shape::new(alignment, memory.saturating_mul(4), request, depth)
    }

    /// Returns the part of `range` that one write may have: it ends at a multiple of the request's size.
    pub(crate) fn first_request(&self, range: Range<u64>) -> Range<u64> {
        let end = (range.start / self.request + 1) * self.request;
        range.start..end.min(range.end)
    }
}

/// The bytes taken, and the requests sent to the device for them; see
/// [`WriteCombiner::stats`](crate::WriteCombiner::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoalesceStats {
    /// Bytes written by the program.
    pub taken_bytes: u64,
    /// Writes sent to the device.
    pub write_requests: u64,
    /// Bytes of those writes, padding and bytes that were in the file included.
    pub written_bytes: u64,
    /// Reads of pages that were written in part.
    pub read_requests: u64,
    /// Bytes of those reads.
    pub read_bytes: u64,
    /// Syncs sent to the device.
    pub syncs: u64,
}

impl CoalesceStats {
    /// Returns the bytes of a write, on average; 0 before the first.
    pub fn mean_request_bytes(&self) -> u64 {
        self.written_bytes.checked_div(self.write_requests).unwrap_or(0)
    }

    /// Adds the requests of one of several writers.
    pub(crate) fn add_requests(&mut self, of: &CoalesceStats) {
        self.write_requests += of.write_requests;
        self.written_bytes += of.written_bytes;
        self.read_requests += of.read_requests;
        self.read_bytes += of.read_bytes;
    }
}

/// The file's end, and the end of our padding behind it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tail {
    /// Behind the last byte that was written or was there before.
    pub(crate) end: u64,
    /// The end of the furthest padding, if there is any.
    pub(crate) padded: Option<u64>,
}

impl Tail {
    /// Notes a write that begins at `start` and has valid bytes until `valid`; returns the length that it
    /// must have.
    pub(crate) fn extend(&mut self, start: u64, valid: u64, grain: u64) -> u64 {
        self.end = self.end.max(valid);
        let padded = valid.next_multiple_of(grain);
        if padded > self.end {
            self.padded = Some(self.padded.map_or(padded, |before| before.max(padded)));
        }
        padded - start
    }

    /// Takes the padding off, then syncs. Nothing may be in flight.
    pub(crate) async fn settle(&mut self, file: &File, class: Class, durability: Durability) -> Result<()> {
        if let Some(padded) = self.padded.take()
            && padded > self.end
            // Another length means that another writer has extended or cut the file: the end is not ours any
            // more.
            && file.len().await? == padded
        {
            file.truncate(self.end).await?;
        }
        match durability {
            Durability::None => Ok(()),
            durability => file.sync(durability).class(class).await,
        }
    }
}

/// The error that ended a writer for all its callers.
#[derive(Default)]
pub(crate) struct FirstError {
    error: Option<Error>,
    is_reported: bool,
}

impl FirstError {
    /// Stores the first error; the others follow from it.
    pub(crate) fn set(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.error.is_some()
    }

    /// Returns the error to the call that comes first, and to the others that `writer` had it before.
    pub(crate) fn check(&mut self, writer: &str) -> Result<()> {
        let Some(error) = &self.error else { return Ok(()) };
        if mem::replace(&mut self.is_reported, true) {
            return Err(FileInternals::error_again(error, format!("{writer} had failed before")));
        }
        Err(error.clone())
    }
}

/// Returns the error of a writer whose task has ended before all its handles.
pub(crate) fn task_ended(file: &File, operation: &'static str) -> Error {
    let internals = file.internals();
    let cancelled = || internals.error(operation, ErrorKind::TaskCancelled, None, None);
    internals.check(operation).err().unwrap_or_else(cancelled)
}

/// Wakers of the tasks that wait for one condition.
#[derive(Default)]
pub(crate) struct Waiters(Vec<Waker>);

impl Waiters {
    pub(crate) fn add(&mut self, waker: &Waker) {
        if !self.0.iter().any(|known| known.will_wake(waker)) {
            self.0.push(waker.clone());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns these and the others, to be woken without the lock.
    pub(crate) fn take_with(&mut self, others: &mut Waiters) -> Waiters {
        let mut all = mem::take(self);
        all.0.append(&mut others.0);
        all
    }

    pub(crate) fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

/// Returns the stronger of two durabilities.
pub(crate) fn stronger(one: Durability, other: Durability) -> Durability {
    let rank = |durability| match durability {
        Durability::None => 0,
        Durability::Data => 1,
        Durability::All => 2,
    };
    if rank(other) > rank(one) { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aligned(offset: u32) -> Alignment {
        Alignment { memory: 4096, offset, read_offset: offset, reported: true, direct: true }
    }

    #[test]
    fn shapes_fit_into_their_memory() {
        for offset in [1, 512, 4096, 16_384] {
            let alignment = aligned(offset);
            for memory in [0, 4096, 100_000, 1 << 20, (1 << 20) + 4097, 1 << 30] {
                for request in [1, 4096, 47_008, 512 << 10, 64 << 20] {
                    let shape = Shape::new(&alignment, memory, request, 8);
                    let all = shape.in_flight + shape.waiting + shape.request;
                    assert!(all <= memory.max(16 * shape.page), "{shape:?} of {memory}");
                    assert!(
                        shape.request <= shape.in_flight && shape.request.is_multiple_of(shape.page),
                        "{shape:?}"
                    );
                    assert!(
                        shape.waiting >= 8 * shape.page && shape.page.is_multiple_of(shape.grain),
                        "{shape:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn requests_end_at_multiples_of_their_size() {
        let shape = Shape::new(&aligned(512), 1 << 20, 64 << 10, 8);
        assert_eq!(shape.first_request(4096..200_000), 4096..65_536);
        assert_eq!(shape.first_request(65_536..70_000), 65_536..70_000);
        assert_eq!(shape.first_request(131_072..1 << 20), 131_072..196_608);
    }
}
