//! Results side by side in ordinary memory.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::ordinary::{self, Account};
use super::region::{HUGE_BYTES, populate_huge};
use super::{Arena, ArenaCore, Buffer};
use crate::memory::block::Block;

/// Results start at multiples of this many bytes: a cache line, and the alignment of any number.
const ALIGN_BYTES: usize = 64;
/// A longer result than this part of a slab, where it does not fit behind the others, gets a separate buffer. So no larger part of
/// a slab stays empty.
const EMPTY_PART: usize = 8;
/// Up to this many short results share a slab: each keeps that many times its own length.
const SHORT_RESULTS: usize = 4;
/// From this many bytes on a batch's slabs are huge pages, where that pays. Memory that is touched for the first time is most of
/// the cost of a result that is kept: 0.45 ms a MiB in pages of 4 KiB, 0.1 to 0.15 ms in huge pages. But a virtual machine whose
/// host has to find them needs 2.3 ms, which is known only afterwards.
const HUGE_FROM_BYTES: usize = 4 << 20;
/// A huge page that took longer cost more than small pages.
const HUGE_LIMIT: Duration = Duration::from_micros(800);
/// The number of slabs after such a page that are made of small pages.
const HUGE_PAUSE: u32 = 512;

/// The number of next slabs that are made of small pages; of all batches, because the memory is the machine's.
static PAUSE: AtomicU32 = AtomicU32::new(0);

/// Places the results of one batch in *slabs*: buffers of ordinary memory, each for results that follow one another.
///
/// A slab is freed with its last result: a result keeps at most a slab from other use, or its own length, if that is more.
///
/// Results that are long for these slabs but still short have slabs that grow with their number, to `SHORT_RESULTS` times the
/// length of each.
pub(crate) struct Packer {
    shared: Arc<ArenaCore>,
    slab_bytes: usize,
    short_bytes_max: usize,
    /// Whether slabs may become huge pages, and the bytes of slabs so far.
    may_be_huge: bool,
    packed_bytes: usize,
    slab: Option<Slab>,
    short_slab: Option<Slab>,
    /// Whether the next result lies in the slab of short results.
    is_short: bool,
    /// The buffer that the next result has alone.
    own: Option<Buffer>,
}

/// The slab that is being filled.
struct Slab {
    /// Keeps the slab; has no bytes itself.
    keeper: Block,
    start: NonNull<u8>,
    bytes: usize,
    used: usize,
}

impl Slab {
    /// Returns a slab in a buffer that is the caller's alone.
    fn new(buffer: Buffer) -> Option<Slab> {
        let (start, bytes) = (NonNull::new(buffer.as_ptr())?, buffer.capacity());
        // SAFETY: no bytes, of a buffer that is ours alone.
        let keeper = unsafe { buffer.into_block(0, 0) };
        Some(Slab { keeper, start, bytes, used: 0 })
    }

    /// Returns the place of the next result, if it fits.
    fn place(&self, len: usize) -> Option<NonNull<u8>> {
        // SAFETY: below the slab's length.
        (self.used + len <= self.bytes).then(|| unsafe { self.start.add(self.used) })
    }
}

// SAFETY: `start` points into the buffer that `keeper` owns a count of, and is used through `&mut self` only.
unsafe impl Send for Packer {}
// SAFETY: as above: no method reads or writes the memory through `&self`.
unsafe impl Sync for Packer {}

impl Packer {
    /// Returns a packer that fills slabs of `slab_bytes`; with `may_be_huge`, for results that are likely to be dropped together,
    /// of 2 MiB for many. Results of up to `short_bytes_max` that are long for the slabs count as short.
    pub(crate) fn new(arena: &Arena, slab_bytes: usize, short_bytes_max: usize, may_be_huge: bool) -> Packer {
        Packer {
            shared: Arc::clone(&arena.0.0),
            slab_bytes,
            short_bytes_max,
            may_be_huge,
            packed_bytes: 0,
            slab: None,
            short_slab: None,
            is_short: false,
            own: None,
        }
    }

    /// Returns the place of a result of up to `len` bytes (at least one); `None` where the system has no memory. It stays the
    /// same until [`commit`](Self::commit).
    pub(crate) fn reserve(&mut self, len: usize) -> Option<NonNull<u8>> {
        self.own = None;
        let is_long = len > self.slab_bytes / EMPTY_PART;
        self.is_short = is_long && len <= self.short_bytes_max;
        if self.is_short {
            return self.reserve_short(len);
        }
        if let Some(place) = self.slab.as_ref().and_then(|slab| slab.place(len)) {
            return Some(place);
        }
        let huge = if self.is_huge_time(len) { self.huge_slab() } else { None };
        let buffer = match huge {
            Some(huge) => huge,
            None if is_long => return self.reserve_own(len),
            None => self.buffer(self.slab_bytes)?,
        };
        let slab = self.slab.insert(Slab::new(buffer)?);
        Some(slab.start)
    }

    /// As [`reserve`](Self::reserve), of a short result. A slab with more space than that part is left to longer results.
    fn reserve_short(&mut self, len: usize) -> Option<NonNull<u8>> {
        let aligned = len.next_multiple_of(ALIGN_BYTES);
        let bytes_max = SHORT_RESULTS * aligned;
        let bytes = self.short_slab.as_ref().map_or(0, |slab| slab.bytes);
        if bytes > bytes_max {
            return self.reserve_own(len);
        }
        if let Some(place) = self.short_slab.as_ref().and_then(|slab| slab.place(len)) {
            return Some(place);
        }
        let buffer = self.buffer((2 * bytes).clamp(aligned, bytes_max))?;
        let slab = self.short_slab.insert(Slab::new(buffer)?);
        Some(slab.start)
    }

    fn reserve_own(&mut self, len: usize) -> Option<NonNull<u8>> {
        let buffer = self.buffer(len)?;
        NonNull::new(self.own.insert(buffer).as_ptr())
    }

    fn buffer(&mut self, bytes: usize) -> Option<Buffer> {
        let buffer = ordinary::allocate_exact(bytes, ALIGN_BYTES, self.account(), false)?;
        self.packed_bytes += buffer.capacity();
        Some(buffer)
    }

    fn account(&self) -> Account {
        Account::Result(Arc::clone(&self.shared))
    }

    /// Returns whether the next slab, which starts with a result of `len` bytes, should be a huge page.
    fn is_huge_time(&self, len: usize) -> bool {
        if !self.may_be_huge || self.packed_bytes < HUGE_FROM_BYTES || len > HUGE_BYTES / EMPTY_PART {
            return false;
        }
        let pause = PAUSE.load(Ordering::Relaxed);
        if pause > 0 {
            // Lost counts of other threads do not matter.
            PAUSE.store(pause - 1, Ordering::Relaxed);
        }
        pause == 0
    }

    fn huge_slab(&mut self) -> Option<Buffer> {
        let buffer = ordinary::allocate_exact(HUGE_BYTES, HUGE_BYTES, self.account(), false)?;
        let begun = Instant::now();
        let is_there = populate_huge(NonNull::new(buffer.as_ptr())?, HUGE_BYTES);
        if !is_there || begun.elapsed() > HUGE_LIMIT {
            PAUSE.store(HUGE_PAUSE, Ordering::Relaxed);
        }
        self.packed_bytes += buffer.capacity();
        Some(buffer)
    }

    /// Returns the first `len` bytes of the place that the last [`reserve`](Self::reserve) returned, as a block.
    ///
    /// # Safety
    /// The last call was a reserve of at least `len` bytes, and these bytes are initialised.
    pub(crate) unsafe fn commit(&mut self, len: usize) -> Block {
        let slab = if self.is_short { &mut self.short_slab } else { &mut self.slab };
        match (self.own.take(), slab) {
            // SAFETY: the caller's promise; the buffer has the reserved length.
            (Some(own), _) => unsafe { own.into_block(0, len) },
            (None, Some(slab)) => {
                debug_assert!(slab.used + len <= slab.bytes, "a result lies in its slab");
                // SAFETY: below the slab's length; the bytes are initialised, and are handed out once, as `used` moves behind
                // them.
                let block = unsafe { slab.keeper.sibling(slab.start.add(slab.used), len) };
                slab.used = (slab.used + len).next_multiple_of(ALIGN_BYTES);
                block
            }
            (None, None) => Block::default(),
        }
    }

    /// Returns a copy of `bytes`; `None` where the system has no memory.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Option<Block> {
        if bytes.is_empty() {
            return Some(Block::default());
        }
        let place = self.reserve(bytes.len())?;
        // SAFETY: reserved for that many bytes, which no block shows yet; the copy initialises them.
        unsafe {
            place.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            Some(self.commit(bytes.len()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::arena::{ArenaConfig, Nodes};

    fn arena() -> Arena {
        let config = ArenaConfig {
            bytes_initial: 4096,
            first_region_bytes: usize::MAX,
            bytes_max: 4096,
            overflow_bytes_max: 0,
            long_bytes_max: 0,
            shards: 1,
        };
        Arena::new(config, Nodes::default()).unwrap()
    }

    #[test]
    fn short_results_share_slabs_and_long_ones_have_buffers_of_their_own() {
        let arena = arena();
        let mut packer = Packer::new(&arena, 1024, 0, false);
        let sizes = [100, 1, 63, 700, 200, 1, 5000, 128, 1024];
        let blocks: Vec<Block> = sizes
            .iter()
            .enumerate()
            .map(|(number, &len)| packer.copy(&vec![number as u8; len]).unwrap())
            .collect();
        for (number, (block, len)) in blocks.iter().zip(sizes).enumerate() {
            assert!(block.len() == len && block.iter().all(|byte| *byte == number as u8), "{number}");
            assert!(block.as_ptr().addr().is_multiple_of(ALIGN_BYTES));
        }
        let pinned: Vec<usize> = blocks.iter().map(Block::pinned_bytes).collect();
        // 200 and 1,024 do not fit behind the others and are above an eighth of a slab.
        assert_eq!(pinned, [1024, 1024, 1024, 1024, 200, 1024, 5000, 1024, 1024]);
        assert_eq!(arena.counts().result_bytes, 1024 + 200 + 5000 + 1024 + 1024);
        drop(packer);
        drop(blocks);
        assert_eq!(arena.counts().result_bytes, 0, "all slabs are freed");
    }

    #[test]
    #[cfg(not(miri))]
    fn many_results_lie_in_huge_pages_or_small_ones_and_are_all_freed() {
        let arena = arena();
        for pause in [0, 5] {
            PAUSE.store(pause, Ordering::Relaxed);
            let mut packer = Packer::new(&arena, 64 << 10, 0, true);
            let copy = |number: usize| packer.copy(&vec![number as u8; 3000 + number]).unwrap();
            let blocks: Vec<Block> = (0..4000).map(copy).collect();
            for (number, block) in blocks.iter().enumerate() {
                assert!(block.len() == 3000 + number && block.iter().all(|byte| *byte == number as u8));
            }
            assert!(blocks[0].pinned_bytes() <= 64 << 10, "the first ones do not keep much");
            drop((packer, blocks));
            assert_eq!(arena.counts().result_bytes, 0);
        }
    }

    /// Each of 2,048 had a separate allocation, and a batch of them from the page cache took 1.3 times as long as plain reads.
    #[test]
    #[cfg(not(miri))]
    fn four_short_results_share_an_allocation_and_keep_four_times_their_length() {
        let arena = arena();
        let mut packer = Packer::new(&arena, 1024, 8192, false);
        let (mut allocations, mut all_bytes) = (0, 0);
        let mut copy = |len: usize, byte: u8| {
            let block = packer.copy(&vec![byte; len]).unwrap();
            assert!(block.len() == len && block.iter().all(|found| *found == byte));
            let now = arena.counts().result_bytes;
            allocations += usize::from(now != all_bytes);
            all_bytes = now;
            block
        };
        let blocks: Vec<Block> = (0..2048).map(|number| copy(4096, number as u8)).collect();
        assert_eq!(blocks[0].pinned_bytes(), 4096, "one alone takes no more than its length");
        assert!(blocks.iter().all(|block| block.pinned_bytes() <= 4 * 4096));
        // A shorter one leaves their slab to them, and those of other kinds are as before.
        let others = [copy(500, 1), copy(100, 2), copy(8193, 3), copy(8192, 4)];
        assert_eq!(others.each_ref().map(|block| block.pinned_bytes()), [500, 1024, 8193, 4 * 4096]);
        assert_eq!(allocations, 2 + 2045_usize.div_ceil(4) + 3);
        for (number, block) in blocks.iter().enumerate() {
            assert!(block.iter().all(|byte| *byte == number as u8), "{number}");
        }
        drop((packer, blocks, others));
        assert_eq!(arena.counts().result_bytes, 0);
    }

    #[test]
    fn a_slab_lives_as_long_as_its_last_result() {
        let arena = arena();
        let mut packer = Packer::new(&arena, 1024, 0, false);
        let (first, second) = (packer.copy(b"first").unwrap(), packer.copy(b"second").unwrap());
        drop((packer, first));
        assert_eq!(arena.counts().result_bytes, 1024);
        drop(arena);
        assert_eq!(&second[..], b"second", "also after the arena");
    }

    #[test]
    fn a_reserve_without_a_commit_costs_nothing() {
        let arena = arena();
        let mut packer = Packer::new(&arena, 1024, 0, false);
        let place = packer.reserve(100).unwrap();
        assert_eq!(packer.reserve(60).unwrap(), place);
        packer.reserve(4000).unwrap();
        assert_eq!(packer.reserve(60).unwrap(), place);
        assert_eq!(arena.counts().result_bytes, 1024, "the long one was freed");
        assert!(packer.copy(b"").unwrap().is_empty());
    }
}
