//! The part of a batch from the page cache: copied on the caller's thread, directly into result memory, before the rest is planned
//! and sent to its shard.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Ask;
use crate::base::error::{Error, Result};
use crate::io::op::OpFailure;
use crate::memory::arena::Packer;
use crate::memory::block::Block;
use crate::memory::lent::LentMemory;
use crate::reactor::open_file::FileCore;
use crate::reactor::page_cache::{Sequence, TRY_BYTES_MAX};
use crate::reactor::read_many::packer;

/// The bytes that one poll copies before it yields to the runtime: about 0.3 ms.
const POLL_BYTES: u64 = 2 << 20;
/// The time of an attempt, as bytes: a few tenths of a microsecond.
const ATTEMPT_BYTES: u64 = 4096;
/// Batches of fewer ranges look for each range: they are not worth the memory for spans.
const LOOK_RANGES_MIN: usize = 8;
/// The time of a range that does not try, as bytes.
const SKIP_BYTES: u64 = 64;

/// A batch on its way through the page cache.
pub(super) struct CachedBatch {
    ask: Ask,
    /// The next range to try.
    next: u32,
    /// Ranges that the device has to read, in their order.
    missed: Vec<u32>,
    packer: Packer,
    /// For each file, where its last range ended.
    sequences: Box<[Sequence]>,
}

impl CachedBatch {
    /// Returns the batch if any of its files is adaptive; otherwise returns it.
    pub(super) fn of(ask: Ask, streams: bool) -> Result<Box<CachedBatch>, Ask> {
        // A batch without ranges has its failures, too.
        let tries = ask.ranges.len() > 0 && ask.files.iter().any(|core| core.is_adaptive());
        let Some(first) = ask.files.first().filter(|_| tries) else { return Err(ask) };
        Ok(Box::new(CachedBatch {
            next: 0,
            missed: Vec::new(),
            packer: packer(first.engine(), streams, ask.detached),
            sequences: sequences(&ask),
            ask,
        }))
    }

    /// Restarts at the first range.
    pub(super) fn again(mut self: Box<Self>) -> Box<CachedBatch> {
        self.next = 0;
        self.missed.clear();
        self
    }

    pub(super) fn ask(&self) -> &Ask {
        &self.ask
    }

    /// Returns the next range that the page cache has, `None` after the last one. Pending when this poll has copied enough: the
    /// task is woken immediately.
    pub(super) fn poll_hit(
        &mut self,
        spent_bytes: &mut u64,
        context: &mut Context<'_>,
    ) -> Poll<Option<(u32, Block)>> {
        while (self.next as usize) < self.ask.ranges.len() {
            if *spent_bytes >= POLL_BYTES {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let number = self.next;
            self.next += 1;
            match self.try_one(number, spent_bytes) {
                Some(block) => return Poll::Ready(Some((number, block))),
                None => self.missed.push(number),
            }
        }
        Poll::Ready(None)
    }

    fn try_one(&mut self, number: u32, spent_bytes: &mut u64) -> Option<Block> {
        *spent_bytes += SKIP_BYTES;
        // The plan knows the errors of the others.
        let range = tryable(&self.ask, number)?;
        let len = range.end - range.start;
        let file = self.ask.ranges.file(number) as usize;
        let attempt = self.ask.files[file].try_page_cache(range, &mut self.sequences[file])?;
        debug_assert!(len <= TRY_BYTES_MAX);
        *spent_bytes += ATTEMPT_BYTES + len;
        let place: NonNull<u8> = self.packer.reserve(len as usize)?;
        // SAFETY: reserved for that many bytes, which no block shows yet.
        let is_whole = unsafe { attempt.read(place) };
        // SAFETY: the kernel filled all of them.
        is_whole.then(|| unsafe { self.packer.commit(len as usize) })
    }

    /// Returns what is left for the device, and the numbers of its ranges in the whole batch.
    pub(super) fn into_rest(self) -> (Ask, Vec<u32>) {
        let CachedBatch { mut ask, next, missed, .. } = self;
        debug_assert_eq!(next as usize, ask.ranges.len(), "every range was looked at");
        if missed.len() < ask.ranges.len() {
            ask.ranges = ask.ranges.pick(&missed);
        }
        (ask, missed)
    }
}

/// A batch into the program's memory on its way through the page cache, from where ranges are copied into their places.
pub(super) struct CachedBatchInto {
    ask: Ask,
    memory: LentMemory,
    /// The place of each range in the memory.
    starts: Vec<u64>,
    next: u32,
    missed: Vec<u32>,
    /// For each file, where its last range ended; empty where no file is adaptive.
    sequences: Box<[Sequence]>,
}

impl CachedBatchInto {
    /// Lays the ranges side by side into `memory`, which has `bytes` bytes.
    ///
    /// # Errors
    /// When they do not fit.
    pub(super) fn new(ask: Ask, memory: LentMemory, bytes: usize) -> Result<Box<CachedBatchInto>> {
        let mut end = 0u64;
        let mut starts = Vec::with_capacity(ask.ranges.len());
        for number in 0..ask.ranges.len() as u32 {
            let range = ask.ranges.get(number);
            starts.push(end);
            end = end.saturating_add(range.end.saturating_sub(range.start));
        }
        if end > bytes as u64 {
            let text = format!("the ranges do not fit into {bytes} bytes of memory");
            return Err(Error::invalid("read_many", text));
        }
        let is_any_adaptive = ask.files.iter().any(|core| core.is_adaptive());
        let sequences = if is_any_adaptive { sequences(&ask) } else { Box::default() };
        Ok(Box::new(CachedBatchInto { ask, memory, starts, next: 0, missed: Vec::new(), sequences }))
    }

    /// Copies the ranges that the page cache has. Pending when this poll has copied enough: the task is woken immediately.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut spent_bytes = 0;
        while !self.sequences.is_empty() && (self.next as usize) < self.ask.ranges.len() {
            if spent_bytes >= POLL_BYTES {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let number = self.next;
            self.next += 1;
            if !self.try_one(number, &mut spent_bytes) {
                self.missed.push(number);
            }
        }
        Poll::Ready(())
    }

    fn try_one(&mut self, number: u32, spent_bytes: &mut u64) -> bool {
        *spent_bytes += SKIP_BYTES;
        let Some(range) = tryable(&self.ask, number) else { return false };
        let file = self.ask.ranges.file(number) as usize;
        let Some(attempt) = self.ask.files[file].try_page_cache(range, &mut self.sequences[file]) else {
            return false;
        };
        *spent_bytes += ATTEMPT_BYTES + (range.end - range.start);
        let place = self.memory.from(self.starts[number as usize] as usize).start();
        // SAFETY: the ranges fit into the memory contiguously, and no request for it has been made yet.
        unsafe { attempt.read(place) }
    }

    /// Returns the batch of the ranges for the device, the memory, and their places in it.
    pub(super) fn into_rest(self) -> (Ask, LentMemory, Vec<u64>) {
        let CachedBatchInto { mut ask, memory, mut starts, missed, sequences, .. } = self;
        if !sequences.is_empty() && missed.len() < ask.ranges.len() {
            starts = missed.iter().map(|number| starts[*number as usize]).collect();
            if !missed.is_empty() {
                ask.ranges = ask.ranges.pick(&missed);
            }
        }
        (ask, memory, starts)
    }
}

/// Returns the sequence of each file's reads.
fn sequences(ask: &Ask) -> Box<[Sequence]> {
    if ask.ranges.len() < LOOK_RANGES_MIN {
        return vec![Sequence::BATCH; ask.files.len()].into();
    }
    let mut spans: Vec<Option<Range<u64>>> = vec![None; ask.files.len()];
    let mut reads = vec![0; ask.files.len()];
    for number in 0..ask.ranges.len() as u32 {
        let (range, file) = (ask.ranges.get(number), ask.ranges.file(number) as usize);
        let span = spans[file].get_or_insert(range.clone());
        *span = span.start.min(range.start)..span.end.max(range.end);
        reads[file] += 1;
    }
    let begin = |((core, span), reads): ((&Arc<FileCore>, Option<Range<u64>>), u64)| {
        core.begin_page_cache_batch(&span.unwrap_or_default(), reads)
    };
    ask.files.iter().zip(spans).zip(reads).map(begin).collect()
}

/// Returns a range for which the page cache may be tried: not empty, not beyond all files, and of an adaptive file.
fn tryable(ask: &Ask, number: u32) -> Option<&Range<u64>> {
    let range = ask.ranges.get(number);
    let is_valid = range.start < range.end && i64::try_from(range.end).is_ok();
    (is_valid && ask.files[ask.ranges.file(number) as usize].is_adaptive()).then_some(range)
}

/// Results that the page cache had, until those of the device are there.
pub(super) struct Hits(Vec<Option<Block>>);

impl Hits {
    pub(super) fn new(ranges: usize) -> Hits {
        let mut blocks = Vec::new();
        blocks.resize_with(ranges, || None);
        Hits(blocks)
    }

    pub(super) fn put(&mut self, number: u32, block: Block) {
        debug_assert!(self.0[number as usize].is_none(), "range {number} gets its result once");
        self.0[number as usize] = Some(block);
    }

    /// Returns all results in the order of the ranges; `rest` has those of the others in the same order.
    pub(super) fn merge(self, rest: Vec<Result<Block>>) -> Vec<Result<Block>> {
        let mut rest = rest.into_iter();
        let lost = || Err(OpFailure::Errno(libc::EIO).into_error("read_many", None));
        let merged = self.0.into_iter().map(|hit| match hit {
            Some(block) => Ok(block),
            None => rest.next().unwrap_or_else(lost),
        });
        let merged = merged.collect();
        debug_assert!(rest.next().is_none(), "every result has its range");
        merged
    }
}
