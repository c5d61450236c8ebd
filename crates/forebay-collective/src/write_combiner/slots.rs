//! The memory of pages: pieces of I/O memory cut into slots.

use forebay::BlockMut;

/// The most bytes allocated at a time.
const SLAB_BYTES: usize = 256 << 10;

/// Slots for pages, allocated a slab at a time up to a limit, and all released when unused.
#[derive(Default)]
pub(super) struct Slots {
    page: usize,
    slabs_max: usize,
    /// The number of slabs possible at the moment; less than `slabs_max` while memory is short.
    slabs_now: usize,
    per_slab: usize,
    slabs: Vec<BlockMut>,
    free: Vec<u32>,
    /// Slots from here on were never used.
    fresh: u32,
    used: usize,
}

impl Slots {
    /// Makes slots for as many pages as fit into `bytes`, at least one.
    pub(super) fn new(page: usize, bytes: u64) -> Slots {
        let pages = ((bytes / page as u64) as usize).max(1);
        // A slab's buffer has a power of two; small memories are cut finer, so that little of them is lost.
        let per_slab = (SLAB_BYTES / page).min((pages / 4).max(1)).max(1);
        let per_slab = if per_slab.is_power_of_two() { per_slab } else { per_slab.next_power_of_two() / 2 };
        let slabs_max = (pages / per_slab).min(u32::MAX as usize / per_slab);
        Slots { page, slabs_max, slabs_now: slabs_max, per_slab, ..Slots::default() }
    }

    /// Returns the bytes of a slab.
    pub(super) fn slab_bytes(&self) -> usize {
        self.per_slab * self.page
    }

    /// Returns the number of further pages that can be used, including memory not allocated yet.
    pub(super) fn room(&self) -> usize {
        self.slabs_now * self.per_slab - self.used
    }

    pub(super) fn pages_max(&self) -> usize {
        self.slabs_max * self.per_slab
    }

    /// Returns the bytes of memory allocated.
    pub(super) fn held_bytes(&self) -> usize {
        self.slabs.len() * self.slab_bytes()
    }

    /// Returns whether all allocated slots are used, and more may be allocated.
    pub(super) fn wants_slab(&self) -> bool {
        self.free.is_empty() && self.is_worn() && self.slabs.len() < self.slabs_now
    }

    /// Adds an empty block of [`slab_bytes`](Self::slab_bytes), unless it is not wanted any more.
    pub(super) fn add_slab(&mut self, slab: BlockMut) {
        if self.wants_slab() && slab.capacity() >= self.slab_bytes() {
            self.slabs.push(slab);
            self.free.reserve(self.slabs.len() * self.per_slab - self.free.len());
        }
    }

    /// Limits the slots to those allocated, until all of them are released; returns whether any are allocated.
    pub(super) fn limit(&mut self) -> bool {
        let some = !self.slabs.is_empty();
        if some {
            self.slabs_now = self.slabs.len();
        }
        some
    }

    fn is_worn(&self) -> bool {
        self.fresh as usize == self.slabs.len() * self.per_slab
    }

    /// Allocates a slot with arbitrary bytes, and returns its number; `None` when no slot is free.
    pub(super) fn take(&mut self) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.is_worn() => return None,
            None => {
                let slot = self.fresh;
                let len = (slot as usize % self.per_slab + 1) * self.page;
                let grown = self.slabs.get_mut(slot as usize / self.per_slab)?.resize(len);
                grown.ok()?;
                self.fresh += 1;
                slot
            }
        };
        self.used += 1;
        debug_assert_eq!(self.free.len() + self.used, self.fresh as usize, "a slot is used or free");
        Some(slot)
    }

    pub(super) fn give(&mut self, slot: u32) {
        debug_assert!(self.used > 0 && slot < self.fresh, "only a slot that was taken comes back");
        self.used -= 1;
        if self.used > 0 {
            return self.free.push(slot);
        }
        let Slots { page, slabs_max, per_slab, .. } = *self;
        *self = Slots { page, slabs_max, slabs_now: slabs_max, per_slab, ..Slots::default() };
    }

    pub(super) fn bytes(&self, slot: u32) -> &[u8] {
        let at = slot as usize % self.per_slab * self.page;
        &self.slabs[slot as usize / self.per_slab][at..at + self.page]
    }

    pub(super) fn bytes_mut(&mut self, slot: u32) -> &mut [u8] {
        let at = slot as usize % self.per_slab * self.page;
        &mut self.slabs[slot as usize / self.per_slab][at..at + self.page]
    }
}
