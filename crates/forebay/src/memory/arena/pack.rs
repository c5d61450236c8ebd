//! Results side by side in ordinary memory.

use std::ptr::NonNull;
use std::sync::Arc;

use super::ordinary::{self, Counted};
use super::{Arena, Buffer, Shared};
use crate::memory::block::Block;

/// Results start at multiples of this many bytes: a cache line, and the alignment of any number.
const ALIGN_BYTES: usize = 64;
/// A longer result than this part of a slab, where it does not fit behind the others, gets a buffer of its own. So no larger
/// part of a slab stays empty.
const EMPTY_PART: usize = 8;

/// Places the results of one batch in *slabs*: buffers of ordinary memory, each for results that follow one another.
///
/// A slab is freed with its last result: a result keeps at most a slab from other use, or its own length, if that is more.
pub(crate) struct Packer {
    shared: Arc<Shared>,
    slab_bytes: usize,
    slab: Option<Slab>,
    /// The buffer that the next result has alone.
    own: Option<Buffer>,
}

/// The slab that is being filled.
struct Slab {
    /// Keeps the slab; has no bytes itself.
    keeper: Block,
    start: NonNull<u8>,
    used: usize,
}

// SAFETY: `start` points into the buffer that `keeper` owns a count of, and is used through `&mut self` only.
unsafe impl Send for Packer {}

impl Packer {
    /// Returns a packer that fills slabs of `slab_bytes`.
    pub(crate) fn new(arena: &Arena, slab_bytes: usize) -> Packer {
        Packer { shared: Arc::clone(&arena.0.0), slab_bytes, slab: None, own: None }
    }

    /// Returns the place of a result of up to `len` bytes (at least one); `None` where the system has no memory. It stays the
    /// same until [`commit`](Self::commit).
    pub(crate) fn reserve(&mut self, len: usize) -> Option<NonNull<u8>> {
        self.own = None;
        if let Some(slab) = self.slab.as_ref().filter(|slab| slab.used + len <= self.slab_bytes) {
            // SAFETY: below the slab's length.
            return Some(unsafe { slab.start.add(slab.used) });
        }
        let alone = len > self.slab_bytes / EMPTY_PART;
        let bytes = if alone { len } else { self.slab_bytes };
        let counted = Counted::Result(Arc::clone(&self.shared));
        let buffer = ordinary::allocate_exact(bytes, ALIGN_BYTES, counted, false)?;
        let start = NonNull::new(buffer.as_ptr())?;
        if alone {
            self.own = Some(buffer);
        } else {
            // SAFETY: no bytes, of a buffer that is ours alone.
            let keeper = unsafe { buffer.into_block(0, 0) };
            self.slab = Some(Slab { keeper, start, used: 0 });
        }
        Some(start)
    }

    /// Returns the first `len` bytes of the place that the last [`reserve`](Self::reserve) returned, as a block.
    ///
    /// # Safety
    /// A reserve of at least `len` bytes came before, and these bytes are initialised.
    pub(crate) unsafe fn commit(&mut self, len: usize) -> Block {
        match (self.own.take(), &mut self.slab) {
            // SAFETY: the caller's promise; the buffer has the reserved length.
            (Some(own), _) => unsafe { own.into_block(0, len) },
            (None, Some(slab)) => {
                debug_assert!(slab.used + len <= self.slab_bytes, "a result lies in its slab");
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
    use crate::memory::arena::ArenaConfig;

    fn arena() -> Arena {
        let config = ArenaConfig {
            bytes_initial: 4096,
            first_region_bytes: usize::MAX,
            bytes_max: 4096,
            overflow_bytes_max: 0,
            shards: 1,
        };
        Arena::new(config).unwrap()
    }

    #[test]
    fn short_results_share_slabs_and_long_ones_have_buffers_of_their_own() {
        let arena = arena();
        let mut packer = Packer::new(&arena, 1024);
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
    fn a_slab_lives_as_long_as_its_last_result() {
        let arena = arena();
        let mut packer = Packer::new(&arena, 1024);
        let (first, second) = (packer.copy(b"first").unwrap(), packer.copy(b"second").unwrap());
        drop((packer, first));
        assert_eq!(arena.counts().result_bytes, 1024);
        drop(arena);
        assert_eq!(&second[..], b"second", "also after the arena");
    }

    #[test]
    fn a_reserve_without_a_commit_costs_nothing() {
        let arena = arena();
        let mut packer = Packer::new(&arena, 1024);
        let place = packer.reserve(100).unwrap();
        assert_eq!(packer.reserve(60).unwrap(), place);
        packer.reserve(4000).unwrap();
        assert_eq!(packer.reserve(60).unwrap(), place);
        assert_eq!(arena.counts().result_bytes, 1024, "the long one was freed");
        assert!(packer.copy(b"").unwrap().is_empty());
    }
}
