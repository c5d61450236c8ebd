//! The state that all threads share behind one lock: the free pages of every region.

use std::ptr::NonNull;

use super::BUFFER_BYTES_MIN;
use super::buddy::Buddy;
use super::header::Header;
use super::region::Region;
use super::returns::Chain;

/// The regions and their free pages. Empty once the arena is closed.
pub(super) struct Central {
    spaces: Vec<Space>,
    closed: bool,
}

struct Space {
    region: NonNull<Region>,
    /// The memory node that it is of, as the arena numbers them.
    node: usize,
    buddy: Buddy,
    /// Buffers that are not in `buddy`: held, cached or on a return stack.
    live: i64,
}

impl Space {
    fn free_bytes(&self) -> usize {
        self.buddy.free_pages() as usize * BUFFER_BYTES_MIN
    }
}

// SAFETY: the pointers are to regions, which are `Send + Sync` and stay until `close` has handed them on.
unsafe impl Send for Central {}

impl Central {
    pub(super) fn new() -> Central {
        Central { spaces: Vec::new(), closed: false }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn regions(&self) -> usize {
        self.spaces.len()
    }

    /// Adds a region, whose index must be its place here.
    pub(super) fn add(&mut self, region: NonNull<Region>, node: usize) {
        // SAFETY: just mapped, and it stays until `close`.
        let (index, pages) = unsafe { (region.as_ref().index(), region.as_ref().pages()) };
        debug_assert_eq!(usize::from(index), self.spaces.len());
        debug_assert!(!self.closed, "a closed arena gets no region");
        self.spaces.push(Space { region, node, buddy: Buddy::new(pages), live: 0 });
    }

    /// Returns a buffer out of the lowest region that has one, of `node` if one is named: later regions stay empty when little is
    /// needed.
    pub(super) fn take(&mut self, class: usize, node: Option<usize>) -> Option<NonNull<Header>> {
        for space in self.spaces.iter_mut().filter(|space| node.is_none_or(|node| space.node == node)) {
            if let Some(page) = space.buddy.take(class) {
                space.live += 1;
                // SAFETY: regions stay until `close`, and the pages belong to no other owner now.
                unsafe {
                    let header = space.region.as_ref().header(page);
                    header.as_ref().describe(space.region, page, class);
                    return Some(header);
                }
            }
        }
        None
    }

    /// Returns every buffer of a chain to the free pages of its region.
    pub(super) fn absorb(&mut self, chain: Chain) {
        for header in chain {
            // SAFETY: the chain owned the buffer; no other code has it.
            let (region, page, class) = unsafe {
                let header = header.as_ref();
                (header.region(), header.page(), header.class())
            };
            // SAFETY: regions stay while one of their buffers is out, and this one is.
            let Some(index) = region.map(|region| usize::from(unsafe { region.as_ref().index() })) else {
                continue;
            };
            if let Some(space) = self.spaces.get_mut(index) {
                debug_assert!(region == Some(space.region), "a region's index is its place");
                debug_assert!(space.live > 0, "no more buffers of a region come back than are out");
                space.buddy.put(page, class);
                space.live -= 1;
            }
        }
    }

    pub(super) fn free_bytes(&self) -> usize {
        self.spaces.iter().map(Space::free_bytes).sum()
    }

    pub(super) fn free_bytes_of(&self, node: usize) -> usize {
        self.spaces.iter().filter(|space| space.node == node).map(Space::free_bytes).sum()
    }

    /// Returns whether any region has huge pages, as far as that can be determined.
    pub(super) fn huge(&self) -> bool {
        // SAFETY: regions stay until `close`.
        self.spaces.iter().any(|space| unsafe { space.region.as_ref().huge() })
    }

    /// Closes the arena's free memory, so that no more buffers are allocated. Returns each region with the number of its buffers
    /// that are still out. The caller must call [`Region::close`] on each.
    pub(super) fn close(&mut self) -> Vec<(NonNull<Region>, i64)> {
        self.closed = true;
        self.spaces.drain(..).map(|space| (space.region, space.live)).collect()
    }
}
