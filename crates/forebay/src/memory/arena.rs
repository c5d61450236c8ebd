//! The memory that I/O happens in: huge-page regions cut into power-of-two buffers, with a cache for each shard.
//!
//! ```text
//!   shard's cache (no lock, LIFO)  <-- own return stack (foreign drops)  <-- central (lock; buddy system per region)
//!                                                                        <-- growth (a new region)  <-- overflow
//! ```
//! Every buffer has a *home*: the return stack it goes to when it is dropped on a thread without a cache of this
//! arena. A drop never allocates, locks or waits. Regions stay mapped until the arena is closed; after that each is
//! unmapped by whoever returns its last buffer, and one with a leaked buffer is leaked whole: a device that still
//! writes into it writes into nobody else's memory.
//!
//! **Fork**: regions are not inherited (MADV_DONTFORK). A child must not touch the bytes of an inherited block;
//! dropping one is harmless.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

mod buddy;
mod buffer;
mod cache;
mod central;
mod header;
mod overflow;
mod region;
mod returns;
mod shared;

pub(crate) use buffer::Buffer;
#[cfg(feature = "sim")]
pub(crate) use cache::Aside;
use header::{HOME_NOBODY, class_of};
pub(crate) use header::{Header, region_index, release};
use shared::Shared;

/// The smallest buffer. I/O memory is never aligned below the page size: a kernel here corrupts memory at the 512
/// bytes that it advertises. Where pages are larger, so is the smallest buffer.
pub(crate) const BUFFER_BYTES_MIN: usize = 4096;

/// The largest single buffer; also the most that one region has, because the kernel registers no larger buffer.
pub(crate) const BUFFER_BYTES_MAX: usize = 1 << 30;

/// How much memory an arena may have, in bytes; each is rounded to whole pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaConfig {
    /// Mapped at once.
    pub(crate) bytes_initial: usize,
    /// The first region is no larger, so that it can be registered where locked memory is limited.
    pub(crate) first_region_bytes: usize,
    /// Never more than this is mapped. 0 makes an arena of overflow memory only.
    pub(crate) bytes_max: usize,
    /// Never more than this of ordinary memory beside it.
    pub(crate) overflow_bytes_max: usize,
    /// Shards are numbered below this.
    pub(crate) shards: usize,
}

/// Why there is no buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocError {
    /// Everything is held: `held` bytes by live buffers, overflow included.
    NoMemory { held: u64 },
    /// More than [`BUFFER_BYTES_MAX`].
    TooLarge,
}

/// What an arena has and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArenaCounts {
    /// Bytes of all regions, closed ones with live blocks included.
    pub(crate) bytes_mapped: usize,
    /// The limit of `bytes_mapped`.
    pub(crate) bytes_mapped_max: usize,
    /// Bytes of region buffers outside free lists, caches and return stacks. Buffers on their way between these while
    /// it is counted may be missed or counted twice. 0 once the arena is closed.
    pub(crate) bytes_held: usize,
    /// Bytes of live overflow buffers.
    pub(crate) overflow_bytes: usize,
    /// Overflow buffers ever handed out.
    pub(crate) overflow_allocations: u64,
    /// Whether huge pages were asked for and not refused.
    pub(crate) huge: bool,
}

/// A handle of an arena; the last one dropped closes it.
#[derive(Clone)]
pub(crate) struct Arena(Arc<Handle>);

/// Apart from `Shared`, which regions keep alive: so that the last handle can be told from the last block.
struct Handle(Arc<Shared>);

impl Arena {
    /// Maps and populates the first `bytes_initial`. Without huge pages it goes on with small ones.
    pub(crate) fn new(config: ArenaConfig) -> io::Result<Arena> {
        Ok(Arena(Arc::new(Handle(Shared::new(config)?))))
    }

    /// A buffer of at least `len` bytes, for any thread: from the shared free memory (a lock), else a new region,
    /// else overflow memory. Its home is nobody's.
    pub(crate) fn alloc(&self, len: usize) -> Result<Buffer, AllocError> {
        let class = self.class(len)?;
        match self.0.0.alloc_shared(class, None) {
            Some(header) => Ok(buffer(header)),
            None => self.alloc_overflow(len),
        }
    }

    /// A buffer from this shard's cache, else from what came back to it, from the shared free memory, or from a new
    /// region; never overflow memory. On a thread without a cache it is [`Arena::alloc`] without overflow.
    #[inline]
    pub(crate) fn alloc_local(&self, len: usize) -> Result<Buffer, AllocError> {
        let class = self.class(len)?;
        let shared = &self.0.0;
        let header = cache::with(Arc::as_ptr(shared), |cache| match cache {
            Some(cache) => cache.pop(class).or_else(|| shared.alloc_shared(class, Some(cache))),
            None => shared.alloc_shared(class, None),
        });
        header.map(buffer).ok_or_else(|| shared.no_memory())
    }

    /// Ordinary aligned memory, counted against `overflow_bytes_max`; not registered anywhere.
    #[cold]
    pub(crate) fn alloc_overflow(&self, len: usize) -> Result<Buffer, AllocError> {
        let class = self.class(len)?;
        overflow::allocate(&self.0.0, class).ok_or_else(|| self.0.0.no_memory())
    }

    fn class(&self, len: usize) -> Result<usize, AllocError> {
        class_of(len, self.0.0.class_min).ok_or(AllocError::TooLarge)
    }

    /// Makes the calling thread the shard's: it gets the shard's cache, and what others drop comes back to it.
    /// Ignored when there is no such shard or it has a cache already. A thread may have several (a simulator's has); the newest counts.
    pub(crate) fn install(&self, shard: usize) {
        self.0.0.install(shard);
    }

    /// Undoes the newest [`Arena::install`] of this thread: the cache goes back to all, and so does what still comes
    /// back later.
    pub(crate) fn uninstall(&self) {
        self.0.0.uninstall();
    }

    /// How many regions there are; only grows, so a shard that remembers the number sees cheaply (one load) that it
    /// has new ones to register. 0 after `close`.
    pub(crate) fn regions(&self) -> usize {
        self.0.0.regions()
    }

    /// Start and length in bytes of a region, for registering it.
    pub(crate) fn region(&self, index: usize) -> Option<(*mut u8, usize)> {
        self.0.0.region(index)
    }

    /// What to call when memory came back after [`Arena::wait_for_memory`], on whatever thread returned it; so it must
    /// neither block nor panic. Only a shard's first waker counts. It lives as long as the arena's last block: it must
    /// not own an `Arena` (use `Weak`), which would then never be closed.
    pub(crate) fn set_memory_waker(&self, shard: usize, waker: Box<dyn Fn() + Send + Sync>) {
        self.0.0.waiting.set_waker(shard, waker);
    }

    /// Says whether this shard waits for memory. After saying so it must try to allocate once more, and only sleep if
    /// that fails too; then no return is missed: either that attempt sees the buffer or its return sees the flag (see
    /// `ReturnStack::push`). The flag is cleared by the wake-up. Buffers that idle in other shards' caches do not
    /// count; so a shard waits only while operations of its own are in flight.
    pub(crate) fn wait_for_memory(&self, shard: usize, waits: bool) {
        self.0.0.waiting.set(shard, waits);
    }

    /// What to call, on a shard's thread, when memory becomes scarce; it has [`Arena::grow_ahead`] called elsewhere. As
    /// with [`Arena::set_memory_waker`] it must not own an `Arena`. Only the first counts.
    pub(crate) fn set_growth_asker(&self, ask: Box<dyn Fn() + Send + Sync>) {
        self.0.0.set_growth_asker(ask);
    }

    /// Maps and populates one more region if memory is scarce: milliseconds, so not for a shard's thread.
    pub(crate) fn grow_ahead(&self) {
        self.0.0.grow_ahead();
    }

    /// Why the system gave no memory when the arena would have grown the last time, if it did not.
    pub(crate) fn refusal(&self) -> Option<io::Error> {
        let errno = self.0.0.refusal.load(std::sync::atomic::Ordering::Relaxed);
        (errno != 0).then(|| io::Error::from_raw_os_error(errno))
    }

    /// Takes the lock and empties the return stacks: for statistics, not for every operation.
    pub(crate) fn counts(&self) -> ArenaCounts {
        self.0.0.counts()
    }

    /// Hands nothing out of regions any more and unmaps those without live buffers; the others are unmapped by their
    /// last buffer's return. Shards should have uninstalled: what a cache keeps counts as live until then. The last
    /// handle's drop does it too; a second time does nothing.
    pub(crate) fn close(&self) {
        self.0.0.close();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A thread of the parent's may have held the lock at the fork, and the regions are not this process's.
        if self.0.origin.is_elsewhere() {
            return;
        }
        self.0.close();
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("regions", &self.regions()).finish_non_exhaustive()
    }
}

/// A buffer from where `header` came from, if there is room without overflow memory; for copies of blocks.
///
/// # Safety
/// `header` belongs to a live buffer.
pub(crate) unsafe fn alloc_beside(header: NonNull<Header>, len: usize) -> Option<Buffer> {
    // SAFETY: a live buffer keeps its region or overflow record, and both keep `Shared`.
    let shared = unsafe {
        match header.as_ref().region() {
            Some(region) => &*std::ptr::from_ref(region.as_ref().shared()),
            None => overflow::shared(header),
        }
    };
    let class = class_of(len, shared.class_min)?;
    cache::with(Arc::as_ptr(shared), |cache| {
        cache.and_then(|cache| cache.pop(class)).or_else(|| shared.alloc_shared(class, cache))
    })
    .map(buffer)
}

/// The bytes a buffer for `len` would have where `header` came from; `None` when it cannot be one buffer.
pub(crate) fn capacity_for(len: usize) -> Option<usize> {
    let page = rustix::param::page_size();
    class_of(len, class_of(page, 0)?).map(|class| BUFFER_BYTES_MIN << class)
}

fn buffer(header: NonNull<Header>) -> Buffer {
    // SAFETY: every allocation path hands out headers of buffers that nobody else knows.
    unsafe { Buffer::from_header(header) }
}

#[cfg(test)]
mod tests;
