//! Adjacent pages on their way to the device as one large write each: the common part of
//! [`WriteCombiner`](crate::WriteCombiner) and [`Collective`](crate::Collective).
//!
//! ```text
//!   begin(range, edges) --> edges are read --> Source::gather copies into a buffer --> write --> Source::written
//! ```

use std::mem;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use forebay::internal::{ErrorExt, FileInternals};
use forebay::{Class, Durability, Error, ErrorKind, File, Result};

mod runs;

pub(crate) use runs::{Edges, Runs, Source};

/// The smallest page: the unit that file systems and devices write without reading first.
const PAGE_BYTES: u64 = 4096;
/// The most memory in flight, unless one request needs more. Devices gain nothing from more.
const IN_FLIGHT_BYTES: u64 = 8 << 20;
/// The fewest pages that memory is divided into.
const PAGES_MIN: u64 = 16;

/// Sizes that follow from the device's alignment and the memory allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Writes start at multiples of this, and pages not written whole are read in this unit.
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
    pub(crate) fn of(file: &File, memory: u64, request: u64, depth: usize) -> Shape {
        let alignment = file.alignment();
        Shape::new(alignment.offset, alignment.read_offset, memory, request, depth)
    }

    pub(crate) fn new(grain: u32, read_grain: u32, memory: u64, request: u64, depth: usize) -> Shape {
        let grain = u64::from(grain.max(1));
        let page = PAGE_BYTES.max(grain).max(u64::from(read_grain));
        let memory = memory.max(PAGES_MIN * page);
        // A buffer's size is the next power of two, so a request is a power of two itself.
        let quarter = (memory / 4).max(page);
        let request = request.clamp(page, quarter.max(page));
        let request = if request.is_power_of_two() { request } else { request.next_power_of_two() / 2 };
        let in_flight = quarter.min(IN_FLIGHT_BYTES.max(request));
        Shape { page, grain, request, depth, in_flight, waiting: memory - in_flight - request }
    }

    /// Returns the part of `range` for one write: it ends at a multiple of the request's size.
    pub(crate) fn first_request(&self, range: Range<u64>) -> Range<u64> {
        let end = (range.start / self.request + 1) * self.request;
        range.start..end.min(range.end)
    }
}

/// The bytes accepted, and the requests sent to the device for them; see [`WriteCombiner::stats`](crate::WriteCombiner::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteStats {
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

impl WriteStats {
    /// Adds the requests of one of several writers.
    pub(crate) fn add_requests(&mut self, of: &WriteStats) {
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
    /// The end of the furthest padding, if any.
    pub(crate) padded: Option<u64>,
}

impl Tail {
    /// Notes a write at `start` with valid bytes until `valid`; returns its required length.
    pub(crate) fn extend(&mut self, start: u64, valid: u64, grain: u64) -> u64 {
        self.end = self.end.max(valid);
        let padded = valid.next_multiple_of(grain);
        if padded > self.end {
            self.padded = Some(self.padded.map_or(padded, |before| before.max(padded)));
        }
        padded - start
    }

    /// Removes the padding, then syncs. Nothing may be in flight.
    pub(crate) async fn settle<S>(&mut self, core: &WriterCore<S>, durability: Durability) -> Result<()> {
        let file = &core.file;
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
            durability => file.sync(durability).class(core.class).await,
        }
    }
}

/// The part of a writer that its handles and tasks share.
pub(crate) struct WriterCore<S> {
    pub(crate) file: File,
    pub(crate) class: Class,
    pub(crate) shape: Shape,
    operation: &'static str,
    state: Mutex<S>,
}

impl<S> WriterCore<S> {
    /// Returns the core of a writer whose errors name `operation`.
    pub(crate) fn new(
        operation: &'static str,
        file: &File,
        class: Class,
        shape: Shape,
        state: S,
    ) -> Arc<WriterCore<S>> {
        Arc::new(WriterCore { file: file.clone(), class, shape, operation, state: Mutex::new(state) })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the locked state; `None` in a child of fork(2), where a thread of the parent may hold the lock forever.
    pub(crate) fn lock_here(&self) -> Option<MutexGuard<'_, S>> {
        (!FileInternals::of(&self.file).is_forked()).then(|| self.lock())
    }

    /// Returns the locked state, or an error where the engine accepts no calls from here.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, S>> {
        // Before the lock, which a thread of the parent may have held at the fork.
        FileInternals::of(&self.file).check(self.operation)?;
        Ok(self.lock())
    }

    /// Changes the state, then wakes the waiters that are returned.
    pub(crate) fn change(&self, change: impl FnOnce(&mut S) -> Waiters) {
        let waiters = change(&mut self.lock());
        waiters.wake();
    }

    pub(crate) fn error(&self, kind: ErrorKind) -> Error {
        FileInternals::of(&self.file).error(self.operation, kind)
    }

    /// Returns the error of handles whose task has ended.
    pub(crate) fn task_ended(&self) -> Error {
        let failure = FileInternals::of(&self.file).check(self.operation).err();
        failure.unwrap_or_else(|| self.error(ErrorKind::TaskCancelled))
    }

    /// Checks that a file can have this many bytes there, and the request that they end in.
    pub(crate) fn check_place(&self, offset: u64, len: usize) -> Result<()> {
        let end = offset.checked_add(len as u64 + 2 * self.shape.request);
        if end.is_some_and(|end| end <= i64::MAX as u64) {
            return Ok(());
        }
        let note = format!("offset {offset} is beyond what a file can have");
        Err(self.error(ErrorKind::InvalidInput).with_note(note))
    }
}

/// The error that ended a writer for all its callers.
#[derive(Default)]
pub(crate) struct FirstError {
    writer: &'static str,
    error: Option<Error>,
    is_reported: bool,
}

impl FirstError {
    pub(crate) fn new(writer: &'static str) -> FirstError {
        FirstError { writer, ..FirstError::default() }
    }

    /// Stores the first error; the others follow from it.
    pub(crate) fn set(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.error.is_some()
    }

    /// Returns the error to the first call, and to later calls that the writer had failed before.
    pub(crate) fn check(&mut self) -> Result<()> {
        let Some(error) = &self.error else { return Ok(()) };
        if mem::replace(&mut self.is_reported, true) {
            return Err(error.clone().with_note(format!("{} had failed before", self.writer)));
        }
        Err(error.clone())
    }
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
        for waker in self.0 {
            // One that panics must not keep the others waiting.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// Returns the stronger of two durabilities.
pub(crate) fn stronger(one: Durability, other: Durability) -> Durability {
    let ranks = [Durability::None, Durability::Data, Durability::All];
    let rank = |durability| ranks.iter().position(|known| *known == durability);
    if rank(other) > rank(one) { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_fit_into_their_memory() {
        for offset in [1, 512, 4096, 16_384] {
            for memory in [0, 4096, 100_000, 1 << 20, (1 << 20) + 4097, 1 << 30] {
                for request in [1, 4096, 47_008, 512 << 10, 64 << 20] {
                    let shape = Shape::new(offset, offset, memory, request, 8);
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
        let shape = Shape::new(512, 512, 1 << 20, 64 << 10, 8);
        assert_eq!(shape.first_request(4096..200_000), 4096..65_536);
        assert_eq!(shape.first_request(65_536..70_000), 65_536..70_000);
        assert_eq!(shape.first_request(131_072..1 << 20), 131_072..196_608);
    }
}
