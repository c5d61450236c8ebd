//! Growth of an arena: one region at a time, ahead of need where a thread has time for that.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::{ArenaCore, REGIONS_MAX};
use crate::memory::arena::cache;
use crate::memory::arena::central::Central;
use crate::memory::arena::header::Header;
use crate::memory::arena::region::{HUGE_BYTES, Region};
use crate::memory::arena::{BUFFER_BYTES_MAX, BUFFER_BYTES_MIN};

/// The least length of a new region: one huge page. Where new memory is slow (a virtual machine that its host gives pages one by
/// one: 2.3 ms for 1 MiB), a shard that cannot wait for the growth elsewhere blocks for only one of these.
const GROWTH_BYTES_MIN: usize = HUGE_BYTES;
/// A new region is at least the mapped bytes divided by this: 256 regions up to 512 MiB, then 128 with each
/// doubling.
const GROWTH_PART: usize = 256;
/// Limits for the free memory below which the next region is made ready. Between them the bound is the mapped bytes divided by
/// `SCARCE_PART`: an arena that has grown much is one whose cache is filling, which allocates as fast as the device delivers.
const SCARCE_BYTES_MIN: usize = 2 << 20;
const SCARCE_BYTES_MAX: usize = 16 << 20;
const SCARCE_PART: usize = 16;

impl ArenaCore {
    /// Returns the first node of which memory is scarce, if the arena may grow.
    pub(super) fn scarce_node(&self, central: &Central) -> Option<usize> {
        let mapped = self.bytes_mapped.load(Ordering::Relaxed);
        if self.bytes_left() == 0 || self.asks_growth.get().is_none() {
            return None;
        }
        let nodes = self.nodes.count();
        let bound = (mapped / nodes / SCARCE_PART).clamp(SCARCE_BYTES_MIN, SCARCE_BYTES_MAX);
        (0..nodes).find(|node| central.free_bytes_of(*node) < bound)
    }

    /// Returns how many bytes the regions may grow by.
    fn bytes_left(&self) -> usize {
        let used = self.bytes_mapped.load(Ordering::Relaxed) + self.exact_bytes.load(Ordering::Relaxed);
        self.bytes_max.saturating_sub(used) & !((BUFFER_BYTES_MIN << self.class_min) - 1)
    }

    /// Has the next region mapped and populated elsewhere, so that the shard that needs it does not wait for
    /// that.
    pub(super) fn ask_growth(&self) {
        if !self.growth_asked.swap(true, Ordering::AcqRel)
            && let Some(ask) = self.asks_growth.get()
        {
            ask();
        }
    }

    pub(in crate::memory::arena) fn set_growth_asker(&self, ask: Box<dyn Fn() + Send + Sync>) {
        let first = self.asks_growth.set(ask);
        debug_assert!(first.is_ok(), "an arena has one asker");
    }

    /// Maps regions while memory is scarce.
    pub(in crate::memory::arena) fn grow_ahead(self: &Arc<Self>) {
        loop {
            let _growing = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
            let scarce = {
                let mut central = self.central();
                central.absorb(self.central_returns().take_all());
                self.scarce_node(&central)
            };
            let (Some(_), Some(bytes)) = (scarce, self.growth_bytes(self.class_min)) else { break };
            if self.grow_by(bytes, scarce).is_err() {
                // No memory for it now: the next allocation that needs it will fail by itself.
                break;
            }
            // Waiters need not wait for the next region.
            self.waiting.wake();
        }
        self.growth_asked.store(false, Ordering::Release);
        self.waiting.wake();
    }

    pub(in crate::memory::arena) fn begin(self: &Arc<Self>) {
        let _growing = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
        if self.regions() == 0
            && let Some(bytes) = self.growth_bytes(self.class_min)
        {
            // `grow_by` keeps the reason.
            let node = cache::with(Arc::as_ptr(self), |cache| self.node_of(cache));
            let _ = self.grow_by(bytes, node);
        }
    }

    #[cold]
    pub(super) fn grow(self: &Arc<Self>, class: usize, node: Option<usize>) -> Option<NonNull<Header>> {
        self.growth_bytes(class)?;
        {
            let _growing = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
            // Another shard may have grown while we waited.
            let taken = self.central().take(class, node);
            if taken.is_some() {
                return taken;
            }
            self.grow_by(self.growth_bytes(class)?, node).ok()?;
        }
        let header = self.central().take(class, node);
        // Others may wait for the rest of the region.
        self.waiting.wake();
        header
    }

    /// Returns the length of the next region if it is to hold a buffer of this class; `None` if it does not fit.
    pub(super) fn growth_bytes(&self, class: usize) -> Option<usize> {
        let needed = BUFFER_BYTES_MIN << class;
        let mapped = self.bytes_mapped.load(Ordering::Relaxed);
        let room = self.bytes_left();
        // Larger steps for a larger arena, because a ring accepts a limited number of regions.
        let step = (mapped / GROWTH_PART)
            .max(self.bytes_max / (REGIONS_MAX / 2))
            .next_power_of_two()
            .clamp(GROWTH_BYTES_MIN, BUFFER_BYTES_MAX);
        let wanted = needed.max(step);
        let bytes = match room {
            _ if room >= wanted => wanted,
            _ if room >= HUGE_BYTES => room & !(HUGE_BYTES - 1),
            _ => room,
        };
        (bytes >= needed).then_some(bytes)
    }

    /// Does the same as `add_region`, and stores whether the system gave the memory.
    fn grow_by(self: &Arc<Self>, bytes: usize, node: Option<usize>) -> io::Result<()> {
        let grown = self.add_region(bytes, node);
        let errno = grown.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::ENOMEM));
        self.refusal.store(errno, Ordering::Relaxed);
        grown
    }

    /// Maps a region and adds it; of `node`, or of the node whose turn it is. The caller holds `growth`, or is the only one that
    /// has the arena.
    pub(super) fn add_region(self: &Arc<Self>, bytes: usize, node: Option<usize>) -> io::Result<()> {
        let index = self.table_len.load(Ordering::Relaxed);
        let Some((start, len)) = self.table.get(index) else { return Err(io::ErrorKind::OutOfMemory.into()) };
        if self.closed.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let node = node.unwrap_or_else(|| self.nodes.in_turn(index));
        let region = self.nodes.run_on(node, || Region::map(self, index as u16, bytes))?;
        debug_assert!(
            self.bytes_mapped.load(Ordering::Relaxed) <= self.bytes_max,
            "regions together are no larger than Config::arena_bytes_max"
        );
        let mut central = self.central();
        if central.is_closed() {
            // SAFETY: no buffer of it was handed out and no other code has it.
            unsafe { Region::free(region) };
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        debug_assert_eq!(central.regions(), index);
        // SAFETY: just mapped.
        let address = unsafe { region.as_ref() }.start();
        start.store(address.as_ptr(), Ordering::Relaxed);
        len.store(bytes, Ordering::Relaxed);
        central.add(region, node);
        self.table_len.store(index + 1, Ordering::Release);
        Ok(())
    }
}
