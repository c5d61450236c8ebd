//! The state of a write combiner: the pages that wait, the pages being written, and the tasks that wait for them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::task::Waker;

use forebay::{Block, BlockMut, Durability, Error};

use super::dirty::Dirty;
use super::slots::Slots;
use crate::coalesce::{FirstError, Shape, Waiters, WriteStats, stronger};

/// Bytes copied under one hold of the lock.
const HOLD_BYTES: usize = 128 << 10;

/// The write combiner's state, all of it behind one lock.
#[derive(Default)]
pub(super) struct CombinerState {
    pub(super) shape: Shape,
    pub(super) slots: Slots,
    /// Memory for one request, so that pages can leave also when others hold all other memory; released with the last page.
    pub(super) spare: Option<BlockMut>,
    /// Oldest first; writes are added to the last. No byte of an epoch reaches the device before the previous epoch is settled.
    pub(super) epochs: VecDeque<Epoch>,
    /// The number of the first epoch in the list.
    pub(super) oldest: u64,
    /// Whether the first epoch is being settled: its seal cannot be changed any more.
    pub(super) settling: bool,
    /// Bytes that left the pages and are not seen to be in the file, each with its offset.
    pub(super) flying: Vec<(u64, Block)>,
    /// The file's length before the first write reached it.
    pub(super) length: Option<u64>,
    /// The offset behind the last accepted byte.
    pub(super) end: u64,
    /// Whether the file has bytes that no sync has covered.
    pub(super) unsynced: bool,
    pub(super) error: FirstError,
    /// How often memory to continue was lacking.
    pub(super) lacks: u64,
    /// Callers that wait for memory.
    pub(super) writers: Waiters,
    /// Callers that wait for an epoch to be settled.
    pub(super) flushers: Waiters,
    /// The sweep's waker, while the sweep has nothing to do.
    pub(super) sweeper: Option<Waker>,
    /// Whether no handle is left.
    pub(super) closed: bool,
    pub(super) stats: WriteStats,
}

/// The pages written between two seals.
#[derive(Default)]
pub(super) struct Epoch {
    pub(super) pages: BTreeMap<u64, Page>,
    /// Whether a byte was written in it, which may have left already.
    touched: bool,
    /// Set when the epoch is complete: the sync that it needs before the start of the next epoch.
    pub(super) seal: Option<Durability>,
}

/// A page that waits; the key in the map is its number in the file.
pub(super) struct Page {
    pub(super) slot: u32,
    pub(super) dirty: Dirty,
}

/// The outcome of accepting bytes.
pub(super) enum Admission {
    Bytes(usize),
    /// A slab must be added first.
    WantsSlab,
    /// Pages must leave first.
    NoRoom,
}

impl CombinerState {
    pub(super) fn new(shape: Shape) -> CombinerState {
        CombinerState {
            slots: Slots::new(shape.page as usize, shape.waiting),
            shape,
            epochs: VecDeque::from([Epoch::default()]),
            error: FirstError::new("this write combiner"),
            ..CombinerState::default()
        }
    }

    /// Returns the number of pages kept free for writers, so that they need not wait while others leave.
    pub(super) fn reserve(&self) -> usize {
        let in_flight = (self.shape.in_flight / self.shape.page) as usize;
        (self.slots.pages_max() / 16).clamp(1, in_flight.max(1))
    }

    /// Returns whether pages must leave without a flush or barrier.
    pub(super) fn is_tight(&self) -> bool {
        self.slots.room() < self.reserve()
    }

    /// Copies as much of `bytes` as fits now, and returns how much, or the reason why nothing fits.
    pub(super) fn take(&mut self, offset: u64, bytes: &[u8]) -> Admission {
        let page = self.shape.page;
        let mut taken = 0;
        while taken < bytes.len().min(HOLD_BYTES) {
            let at = offset + taken as u64;
            let (number, from) = (at / page, (at % page) as usize);
            let piece = &bytes[taken..bytes.len().min(taken + page as usize - from)];
            let range = from..from + piece.len();
            let wants_slab = self.slots.wants_slab();
            let Some(open) = self.epochs.back_mut() else { break };
            let slot = match open.pages.get_mut(&number) {
                Some(known) => {
                    known.dirty.add(range.clone(), page as usize);
                    known.slot
                }
                None => match self.slots.take() {
                    Some(slot) => {
                        open.pages.insert(number, Page { slot, dirty: Dirty::new(range.clone()) });
                        slot
                    }
                    None if taken > 0 => break,
                    None if wants_slab => return Admission::WantsSlab,
                    None => return Admission::NoRoom,
                },
            };
            open.touched = true;
            if let Some(place) = self.slots.bytes_mut(slot).get_mut(range) {
                place.copy_from_slice(piece);
            }
            taken += piece.len();
        }
        self.end = self.end.max(offset + taken as u64);
        self.stats.taken_bytes += taken as u64;
        Admission::Bytes(taken)
    }

    /// Ends the epoch that writes are added to. Returns the number of the epoch whose settling covers all bytes accepted so far, or
    /// `None` when they are settled already.
    pub(super) fn seal(&mut self, durability: Durability) -> Option<u64> {
        let last = self.epochs.len() - 1;
        let open = &mut self.epochs[last];
        if !open.touched {
            let settled = last == 0 && (durability == Durability::None || !self.unsynced);
            if settled && self.flying.is_empty() {
                return None;
            }
            // A sealed epoch will do, as long as its settling has not started.
            if last > 0 && !(self.settling && last == 1) {
                let before = &mut self.epochs[last - 1];
                before.seal = Some(stronger(before.seal.unwrap_or_default(), durability));
                return Some(self.oldest + last as u64 - 1);
            }
        }
        self.epochs[last].seal = Some(durability);
        debug_assert!(self.epochs.iter().all(|epoch| epoch.seal.is_some()), "only the newest epoch is open");
        self.epochs.push_back(Epoch::default());
        Some(self.oldest + last as u64)
    }

    /// Removes the first epoch, which is in the file and synced as its seal requires.
    pub(super) fn settled(&mut self, durability: Durability) {
        self.settling = false;
        let settled = self.epochs.pop_front();
        debug_assert!(
            settled.is_some_and(|epoch| epoch.seal.is_some() && epoch.pages.is_empty())
                && self.flying.is_empty(),
            "an epoch is settled once it is sealed and all of it is in the file"
        );
        self.oldest += 1;
        if durability != Durability::None {
            self.unsynced = false;
            self.stats.syncs += 1;
        }
    }

    /// Returns the next pages of the first epoch, from page `from` on and then from the start, as many as one
    /// write may have.
    pub(super) fn pick(&self, from: u64) -> Option<Range<u64>> {
        let page = self.shape.page;
        let pages = &self.epochs.front()?.pages;
        let first = pages.range(from..).next().or_else(|| pages.iter().next());
        let first = *first?.0;
        let limit = self.shape.first_request(first * page..u64::MAX).end / page;
        let mut end = first;
        for number in pages.range(first..limit).map(|(number, _)| *number) {
            if number != end {
                break;
            }
            end += 1;
        }
        debug_assert!(first < end && (end - first) * page <= self.shape.request, "a run is one request");
        Some(first..end)
    }

    /// Returns the parts of a run that must be read, because their pages were not written whole and the file
    /// reaches into them.
    pub(super) fn incomplete(&self, run: &Range<u64>, file_end: u64) -> Vec<Range<u64>> {
        let page = self.shape.page;
        let mut parts: Vec<Range<u64>> = Vec::new();
        let Some(front) = self.epochs.front() else { return parts };
        for (&number, known) in front.pages.range(run.clone()) {
            let start = number * page;
            if known.dirty.is_whole(page as usize) || start >= file_end {
                continue;
            }
            match parts.last_mut() {
                Some(last) if last.end == start => last.end += page,
                _ => parts.push(start..start + page),
            }
        }
        debug_assert!(
            parts.windows(2).all(|pair| pair[0].end < pair[1].start),
            "incomplete parts are sorted, and apart"
        );
        parts
    }

    /// Copies the bytes held of `range` to `into`, the newest last, and removes them from `holes`.
    pub(super) fn overlay(&self, range: &Range<u64>, into: &mut [u8], holes: &mut Holes) {
        let mut lay = |start: u64, bytes: &[u8]| {
            let (from, to) = (start.max(range.start), (start + bytes.len() as u64).min(range.end));
            if from < to {
                let place = (from - range.start) as usize..(to - range.start) as usize;
                into[place].copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
                holes.fill(&(from..to));
            }
        };
        for (start, block) in &self.flying {
            lay(*start, block);
        }
        let page = self.shape.page;
        let pages = range.start / page..range.end.div_ceil(page);
        for epoch in &self.epochs {
            for (&number, known) in epoch.pages.range(pages.clone()) {
                let bytes = self.slots.bytes(known.slot);
                for dirty in known.dirty.ranges() {
                    lay(number * page + dirty.start as u64, &bytes[dirty]);
                }
            }
        }
    }

    /// Returns the bytes of I/O memory that wait for something.
    pub(super) fn held_bytes(&self) -> u64 {
        (self.slots.held_bytes() + self.spare.as_ref().map_or(0, BlockMut::capacity)) as u64
    }

    /// Ends the write combiner for all callers, and drops the bytes held.
    pub(super) fn fail(&mut self, error: Error) {
        self.error.set(error);
        self.epochs.clear();
        self.epochs.push_back(Epoch::default());
        self.flying.clear();
        self.spare = None;
        self.slots = Slots::new(self.shape.page as usize, self.shape.waiting);
    }

    /// Removes all waiters; to be woken without the lock.
    pub(super) fn take_waiters(&mut self) -> Waiters {
        self.writers.take_with(&mut self.flushers)
    }
}

/// The parts of a range that no memory has.
pub(super) struct Holes(Vec<Range<u64>>);

impl Holes {
    pub(super) fn new(range: Range<u64>) -> Holes {
        Holes(if range.is_empty() { Vec::new() } else { vec![range] })
    }

    pub(super) fn parts(&self) -> &[Range<u64>] {
        &self.0
    }

    fn fill(&mut self, with: &Range<u64>) {
        let first = self.0.partition_point(|hole| hole.end <= with.start);
        let count = self.0[first..].iter().take_while(|hole| hole.start < with.end).count();
        let met = &self.0[first..first + count];
        let (Some(head), Some(tail)) = (met.first(), met.last()) else { return };
        let kept = [head.start..with.start, with.end..tail.end];
        let kept = kept.into_iter().filter(|part| part.start < part.end);
        self.0.splice(first..first + count, kept);
        debug_assert!(
            self.0.windows(2).all(|pair| pair[0].end <= pair[1].start),
            "holes are sorted and disjoint"
        );
    }
}
