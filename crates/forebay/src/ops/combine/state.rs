//! What a combine holds: pages that wait, pages that are being written, and who waits for what.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::task::Waker;

use super::dirty::Dirty;
use super::slots::Slots;
use crate::base::error::{Error, Failure};
use crate::io::op::Durability;
use crate::memory::block::{Block, BlockMut};
use crate::ops::gather::{GatherStats, Shape, stronger};

/// Bytes copied under one hold of the lock.
const HOLD_BYTES: usize = 128 << 10;

/// Everything behind the lock.
pub(super) struct State {
    pub(super) shape: Shape,
    pub(super) slots: Slots,
    /// Room for one request, so that pages can leave also when others hold all other memory; given back with the last page.
    pub(super) spare: Option<BlockMut>,
    /// Oldest first; writes go into the last one. Nothing of one reaches the device before the one before is settled.
    pub(super) epochs: VecDeque<Epoch>,
    /// The number of the first epoch in the list.
    pub(super) oldest: u64,
    /// The first epoch is being settled: its seal cannot be changed any more.
    pub(super) settling: bool,
    /// Bytes that left the pages and are not seen to be in the file, by where they begin.
    pub(super) flying: Vec<(u64, Block)>,
    /// The file's length before the first write reached it.
    pub(super) length: Option<u64>,
    /// Behind the last byte that was ever taken.
    pub(super) end: u64,
    /// Something is in the file that no sync has covered.
    pub(super) unsynced: bool,
    /// The first error, for the call that meets it first.
    pub(super) error: Option<Error>,
    pub(super) failure: Option<Failure>,
    /// How often there was no memory for going on.
    pub(super) lacks: u64,
    /// Callers who wait for room.
    pub(super) writers: Waiters,
    /// Callers who wait for an epoch to be settled.
    pub(super) flushers: Waiters,
    /// The sweep, while it has nothing to do.
    pub(super) sweeper: Option<Waker>,
    /// No handle is left.
    pub(super) closed: bool,
    pub(super) stats: GatherStats,
}

/// What was written between two seals.
pub(super) struct Epoch {
    pub(super) pages: BTreeMap<u64, Page>,
    /// Something was written in it, which may have left already.
    touched: bool,
    /// Complete, and to be synced like this before the next one begins.
    pub(super) seal: Option<Durability>,
}

/// A page that waits, by its number in the file.
pub(super) struct Page {
    pub(super) slot: u32,
    pub(super) dirty: Dirty,
}

/// How far taking bytes came.
pub(super) enum Taken {
    Bytes(usize),
    /// A slab must be added first.
    WantsSlab,
    /// Pages must leave first.
    NoRoom,
}

impl Epoch {
    fn new() -> Epoch {
        Epoch { pages: BTreeMap::new(), touched: false, seal: None }
    }
}

impl State {
    pub(super) fn new(shape: Shape) -> State {
        State {
            slots: Slots::new(shape.page as usize, shape.waiting),
            shape,
            spare: None,
            epochs: VecDeque::from([Epoch::new()]),
            oldest: 0,
            settling: false,
            flying: Vec::new(),
            length: None,
            end: 0,
            unsynced: false,
            error: None,
            failure: None,
            lacks: 0,
            writers: Waiters::default(),
            flushers: Waiters::default(),
            sweeper: None,
            closed: false,
            stats: GatherStats::default(),
        }
    }

    /// Pages that are kept free for writers, so that they need not wait while others leave.
    pub(super) fn reserve(&self) -> usize {
        let in_flight = (self.shape.in_flight / self.shape.page) as usize;
        (self.slots.pages_max() / 16).clamp(1, in_flight.max(1))
    }

    /// Whether pages must leave though nobody asked for it.
    pub(super) fn is_tight(&self) -> bool {
        self.slots.room() < self.reserve()
    }

    /// Copies as much of `bytes` as there is room for now.
    pub(super) fn take(&mut self, offset: u64, bytes: &[u8]) -> Taken {
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
                    None if wants_slab => return Taken::WantsSlab,
                    None => return Taken::NoRoom,
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
        Taken::Bytes(taken)
    }

    /// Ends the epoch that writes go into; answers the number of the one whose settling covers all that was taken so
    /// far, or nothing when that is so already.
    pub(super) fn seal(&mut self, durability: Durability) -> Option<u64> {
        let last = self.epochs.len() - 1;
        let open = &mut self.epochs[last];
        if !open.touched {
            let settled = last == 0 && (durability == Durability::None || !self.unsynced);
            if settled && self.flying.is_empty() {
                return None;
            }
            // One that is sealed already does, as long as nobody has looked at how.
            if last > 0 && !(self.settling && last == 1) {
                let before = &mut self.epochs[last - 1];
                before.seal = Some(stronger(before.seal.unwrap_or_default(), durability));
                return Some(self.oldest + last as u64 - 1);
            }
        }
        self.epochs[last].seal = Some(durability);
        self.epochs.push_back(Epoch::new());
        Some(self.oldest + last as u64)
    }

    /// The first epoch is in the file, synced as its seal says.
    pub(super) fn settled(&mut self, durability: Durability) {
        self.settling = false;
        self.epochs.pop_front();
        self.oldest += 1;
        if durability != Durability::None {
            self.unsynced = false;
            self.stats.syncs += 1;
        }
    }

    /// The next pages of the first epoch, from page `from` on and around the end, as many as one write may have.
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
        Some(first..end)
    }

    /// The parts of a run that must be read, because their pages were not written whole and the file reaches into them.
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
        parts
    }

    /// Copies what is held of `range` to `into`, the newest last, and takes it out of `holes`.
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

    /// Bytes of I/O memory that wait for something.
    pub(super) fn held_bytes(&self) -> u64 {
        (self.slots.held_bytes() + self.spare.as_ref().map_or(0, BlockMut::capacity)) as u64
    }

    /// Ends it for all: what is held is given up.
    pub(super) fn fail(&mut self, error: Error) {
        if self.failure.is_none() {
            self.failure = Some(Failure::of(&error));
            self.error = Some(error);
        }
        self.epochs.clear();
        self.epochs.push_back(Epoch::new());
        self.flying.clear();
        self.spare = None;
        self.slots = Slots::new(self.shape.page as usize, self.shape.waiting);
    }

    /// Everybody who waits; to be woken without the lock.
    pub(super) fn take_waiters(&mut self) -> Waiters {
        let mut all = std::mem::take(&mut self.writers);
        all.0.append(&mut self.flushers.0);
        all
    }
}

/// Those who wait for something.
#[derive(Default)]
pub(super) struct Waiters(Vec<Waker>);

impl Waiters {
    pub(super) fn add(&mut self, waker: &Waker) {
        if !self.0.iter().any(|known| known.will_wake(waker)) {
            self.0.push(waker.clone());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
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
    }
}
