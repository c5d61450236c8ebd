//! The state that all handles, shards and live buffers of an arena share.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam_utils::CachePadded;

use super::cache::{Cache, CachedCounts};
use super::central::Central;
use super::header::{Header, class_of};
use super::line::Line;
use super::nodes::Nodes;
use super::region::{HUGE_BYTES, Region};
use super::returns::{Chain, ReturnStack, WaitingShards};
use super::{AllocError, ArenaConfig, ArenaCounts, BUFFER_BYTES_MAX, BUFFER_BYTES_MIN};
use crate::base::fork::Origin;

mod growth;

/// The limit for regions. Growth has larger steps so that `bytes_max` is reached before.
const REGIONS_MAX: usize = 2048;

/// The arena behind its handles. Regions and overflow buffers keep it alive too.
pub(super) struct ArenaCore {
    pub(super) bytes_max: usize,
    pub(super) overflow_bytes_max: usize,
    pub(super) long_bytes_max: usize,
    pub(super) line: Line,
    nodes: Nodes,
    /// The size class of a page.
    pub(super) class_min: usize,
    central: Mutex<Central>,
    /// Held while a region is mapped, so that shards that only need the free pages do not wait for that.
    growth: Mutex<()>,
    /// One stack for each shard, then the central one. Each is an `Arc`, because a return must outlive
    /// `ArenaCore` by a moment (see `give_back`).
    returns: Box<[Arc<ReturnStack>]>,
    pub(super) waiting: Arc<WaitingShards>,
    /// The counts of each shard's cache.
    pub(super) cached: Box<[CachePadded<CachedCounts>]>,
    pub(super) bytes_mapped: AtomicUsize,
    pub(super) overflow_bytes: AtomicUsize,
    pub(super) overflow_allocations: AtomicU64,
    /// Bytes of ordinary memory that hold results.
    pub(super) result_bytes: AtomicUsize,
    /// Bytes of ordinary memory of long reads and their blocks.
    pub(super) long_bytes: AtomicUsize,
    /// Bytes of ordinary memory that count towards `bytes_max` beside the regions.
    pub(super) exact_bytes: AtomicUsize,
    /// Start and length of each region, complete below `table_len`; never changed afterwards.
    table: Box<[(AtomicPtr<u8>, AtomicUsize)]>,
    table_len: AtomicUsize,
    closed: AtomicBool,
    /// Requests a call of [`ArenaCore::grow_ahead`] from a thread that has time for it.
    asks_growth: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Growth was requested, and has not been done yet.
    growth_asked: AtomicBool,
    /// The reason why the system gave no memory when the arena last tried to grow; 0 when it gave it.
    pub(super) refusal: AtomicI32,
    pub(super) origin: Origin,
}

impl ArenaCore {
    pub(super) fn new(config: ArenaConfig, nodes: Nodes) -> io::Result<Arc<ArenaCore>> {
        let page = rustix::param::page_size().max(BUFFER_BYTES_MIN);
        let shards = config.shards.clamp(1, usize::from(u16::MAX) - 1);
        let waiting = Arc::new(WaitingShards::new(shards));
        let bytes_max = config.bytes_max & !(page - 1);
        let shared = Arc::new(ArenaCore {
            bytes_max,
            overflow_bytes_max: config.overflow_bytes_max,
            long_bytes_max: config.long_bytes_max,
            line: Line::new(bytes_max.max(config.overflow_bytes_max)),
            nodes,
            class_min: class_of(page, 0).unwrap_or(0),
            central: Mutex::new(Central::new()),
            growth: Mutex::new(()),
            returns: (0..=shards).map(|_| Arc::new(ReturnStack::new(Arc::clone(&waiting)))).collect(),
            waiting,
            cached: (0..shards).map(|_| CachePadded::default()).collect(),
            bytes_mapped: AtomicUsize::new(0),
            overflow_bytes: AtomicUsize::new(0),
            overflow_allocations: AtomicU64::new(0),
            result_bytes: AtomicUsize::new(0),
            long_bytes: AtomicUsize::new(0),
            exact_bytes: AtomicUsize::new(0),
            table: (0..REGIONS_MAX).map(|_| (AtomicPtr::new(ptr::null_mut()), AtomicUsize::new(0))).collect(),
            table_len: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            asks_growth: OnceLock::new(),
            growth_asked: AtomicBool::new(false),
            refusal: AtomicI32::new(0),
            origin: Origin::here(),
        });
        let mut left = config.bytes_initial.min(bytes_max).next_multiple_of(page);
        // Whole huge pages; with less the first region is not smaller.
        let first = config.first_region_bytes & !(HUGE_BYTES - 1);
        let of_node = left.div_ceil(shared.nodes.count()).next_multiple_of(HUGE_BYTES);
        let mut most = if first > 0 { first.min(BUFFER_BYTES_MAX) } else { BUFFER_BYTES_MAX };
        while left > 0 {
            let bytes = left.min(most).min(of_node);
            most = BUFFER_BYTES_MAX;
            if let Err(error) = shared.add_region(bytes, None) {
                // The regions mapped so far keep `ArenaCore` alive until they are closed.
                shared.close();
                return Err(error);
            }
            left -= bytes;
        }
        Ok(shared)
    }

    /// Returns the length of whole pages for this many bytes.
    pub(super) fn whole_pages(&self, len: usize) -> Option<usize> {
        len.max(1).checked_next_multiple_of(BUFFER_BYTES_MIN << self.class_min)
    }

    pub(super) fn shards(&self) -> usize {
        self.returns.len() - 1
    }

    /// Returns the return stack of a home. `HOME_NOBODY` maps to the central one.
    #[inline]
    pub(super) fn returns_of(&self, home: u16) -> &Arc<ReturnStack> {
        &self.returns[usize::from(home).min(self.returns.len() - 1)]
    }

    fn central_returns(&self) -> &ReturnStack {
        &self.returns[self.returns.len() - 1]
    }

    fn central(&self) -> MutexGuard<'_, Central> {
        // A panic could at most leave free pages here that stay unused.
        self.central.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates after the cache's own list was empty; `cache` is the calling shard's.
    #[cold]
    pub(super) fn alloc_shared(
        self: &Arc<Self>,
        class: usize,
        cache: Option<&Cache>,
    ) -> Option<NonNull<Header>> {
        if let Some(cache) = cache {
            self.drain_own_returns(cache);
            if let Some(header) = cache.pop(class) {
                return Some(header);
            }
        }
        let node = self.node_of(cache);
        let taken = self
            .take_central(class, cache, node)
            .or_else(|| self.grow(class, node))
            .or_else(|| node.and_then(|_| self.take_central(class, cache, None)));
        if let Some(header) = taken {
            // SAFETY: the buffer was just handed out to us.
            unsafe { header.as_ref().set_home(cache.map_or(super::HOME_NOBODY, Cache::shard)) };
            return Some(header);
        }
        None
    }

    /// Returns the node whose memory this shard uses first, if the arena has several.
    fn node_of(&self, cache: Option<&Cache>) -> Option<usize> {
        cache.and_then(|cache| self.nodes.of(cache.shard()))
    }

    /// Moves the buffers that other threads returned: as many as the limits allow into the cache, the others to the central stack.
    fn drain_own_returns(&self, cache: &Cache) {
        let mut rest: *mut Header = ptr::null_mut();
        for header in self.returns_of(cache.shard()).take_all() {
            // SAFETY: the chain owned the buffer, so we do now.
            unsafe {
                debug_assert_eq!(header.as_ref().home(), cache.shard(), "a buffer returns to its home");
                if cache.has_room(header.as_ref().class()) {
                    cache.push(header);
                } else {
                    header.as_ref().set_next(rest);
                    rest = header.as_ptr();
                }
            }
        }
        self.give_back_chain(Chain(rest));
    }

    /// Allocates a buffer from the shared free memory, of `node` if one is named.
    fn take_central(
        &self,
        class: usize,
        cache: Option<&Cache>,
        node: Option<usize>,
    ) -> Option<NonNull<Header>> {
        let mut central = self.central();
        if central.is_closed() {
            return None;
        }
        central.absorb(self.central_returns().take_all());
        let header = central.take(class, node).or_else(|| self.gather(&mut central, class, cache, node))?;
        if let Some(cache) = cache {
            for _ in 0..cache.refill_count(class) {
                match central.take(class, node) {
                    Some(more) => cache.push(more),
                    None => break,
                }
            }
        }
        let scarce = self.scarce_node(&central).is_some();
        drop(central);
        if scarce {
            self.ask_growth();
        }
        Some(header)
    }

    /// Gathers free memory that lies in shards' stacks or is scattered in small pieces, until it has a buffer: of `node` from the
    /// stacks of its own shards. The caller's cache is the last source; other calls refill it from here. It is left alone where a
    /// full arena has nothing of the node, so that each refill from another node does not empty it first.
    fn gather(
        &self,
        central: &mut Central,
        class: usize,
        cache: Option<&Cache>,
        node: Option<usize>,
    ) -> Option<NonNull<Header>> {
        for (shard, stack) in self.returns.iter().enumerate() {
            if node.is_some() && self.nodes.of(shard as u16) != node {
                continue;
            }
            let chain = stack.take_all();
            if !chain.0.is_null() {
                central.absorb(chain);
                if let Some(header) = central.take(class, node) {
                    return Some(header);
                }
            }
        }
        let cache = cache.filter(|_| node.is_none() || self.growth_bytes(class).is_some())?;
        for class in 0..super::header::CLASSES {
            central.absorb(cache.cut(class, 0));
        }
        central.take(class, node)
    }

    /// Returns a chain that the caller owns to the central stack.
    pub(super) fn give_back_chain(&self, chain: Chain) {
        let Some(first) = NonNull::new(chain.0) else { return };
        let mut last = first;
        for header in Chain(chain.0) {
            last = header;
        }
        // SAFETY: the caller's buffers, up to the last.
        if unsafe { self.central_returns().push(first, last) } {
            return;
        }
        for header in chain {
            // SAFETY: refused, so they are still ours, and each region stays until its count-down; `ArenaCore` is kept
            // by the caller's own reference.
            unsafe {
                if let Some(region) = header.as_ref().region() {
                    Region::count_down(region);
                }
            }
        }
    }

    pub(super) fn install(self: &Arc<Self>, shard: usize) {
        if shard >= self.shards() {
            debug_assert!(false, "shard {shard} of {}", self.shards());
            return;
        }
        if !Cache::install(self, shard as u16) {
            return;
        }
        let central = self.central();
        if !central.is_closed() {
            self.returns[shard].reopen();
        }
    }

    pub(super) fn uninstall(self: &Arc<Self>) {
        if let Some(shard) = Cache::remove(self) {
            self.waiting.set(usize::from(shard), false);
            self.give_back_chain(self.returns_of(shard).close());
        }
    }

    pub(super) fn empty_cache(self: &Arc<Self>) {
        super::cache::with(Arc::as_ptr(self), |cache| {
            let Some(cache) = cache else { return };
            for class in 0..super::header::CLASSES {
                self.give_back_chain(cache.cut(class, 0));
            }
        });
    }

    pub(super) fn regions(&self) -> usize {
        if self.closed.load(Ordering::Relaxed) { 0 } else { self.table_len.load(Ordering::Acquire) }
    }

    pub(super) fn region(&self, index: usize) -> Option<(*mut u8, usize)> {
        if index >= self.regions() {
            return None;
        }
        let (start, len) = self.table.get(index)?;
        Some((start.load(Ordering::Relaxed), len.load(Ordering::Relaxed)))
    }

    #[cold]
    pub(super) fn no_memory(&self) -> AllocError {
        let counts = self.counts();
        AllocError::NoMemory { held: counts.bytes_held_in_all() as u64 }
    }

    pub(super) fn counts(&self) -> ArenaCounts {
        let mut central = self.central();
        let mut bytes_held = 0;
        if !central.is_closed() {
            for stack in &self.returns {
                central.absorb(stack.take_all());
            }
            let idle = central.free_bytes() + self.cached.iter().map(|counts| counts.bytes()).sum::<usize>();
            bytes_held = self.bytes_mapped.load(Ordering::Relaxed).saturating_sub(idle);
        }
        ArenaCounts {
            bytes_mapped: self.bytes_mapped.load(Ordering::Relaxed),
            bytes_mapped_max: self.bytes_max,
            bytes_held,
            overflow_bytes: self.overflow_bytes.load(Ordering::Relaxed),
            overflow_allocations: self.overflow_allocations.load(Ordering::Relaxed),
            result_bytes: self.result_bytes.load(Ordering::Relaxed),
            long_bytes: self.long_bytes.load(Ordering::Relaxed),
            exact_bytes: self.exact_bytes.load(Ordering::Relaxed),
            huge: central.huge(),
        }
    }

    /// Returns the free bytes that every thread can have, without gathering from the shards' stacks.
    #[cfg(test)]
    pub(super) fn counts_free(&self) -> usize {
        let mut central = self.central();
        central.absorb(self.central_returns().take_all());
        central.free_bytes()
    }

    pub(super) fn close(&self) {
        let regions = {
            let mut central = self.central();
            if central.is_closed() {
                return;
            }
            self.closed.store(true, Ordering::Relaxed);
            // The central stack last: a thread that finds a shard's stack closed continues with the central one. A thread that
            // finds that closed too counts down the region, for which its buffer is still counted as live below.
            for stack in &self.returns {
                central.absorb(stack.close());
            }
            central.close()
        };
        for (region, live) in regions {
            // SAFETY: once for each, and `Central` has forgotten them. The caller's reference keeps `ArenaCore`.
            unsafe { Region::close(region, live) };
        }
    }
}
