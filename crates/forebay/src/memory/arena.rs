//! The memory for I/O: huge-page regions cut into power-of-two buffers, with a cache for each shard.
//!
//! ```text
//!   shard's cache (no lock, LIFO)  <-- own return stack (foreign drops)  <-- central (lock; buddy system per region)
//!                                                                        <-- growth (a new region)  <-- overflow
//! ```
//! Bytes that a program keeps may also lie in ordinary memory (`ordinary.rs`, `pack.rs`): results of a batch, copies, the program's
//! buffers.
//!
//! **Waiting for memory.** A read allocates at its turn.
//! - *Short* reads, of up to a quarter of the arena (and 128 KiB in any case), use a buffer of the arena. Without a free buffer
//!   they wait on their shard, but only while an operation in flight there has memory that its end frees: a write, a walk's read, a
//!   dropped read. Otherwise they use overflow memory, or fail: nothing waits for blocks that the program holds.
//! - *Long* reads, and ranges of a batch that are read in parts, use ordinary memory of their length. While in flight they share
//!   the **line**'s allowance, as much again as the arena's limit, in order of arrival (`line.rs`); a single read gets it
//!   regardless of its length. Their ends return the allowance, without the program's help. A read whose start is in the page cache
//!   allocates immediately or not at all, without the allowance: it progresses only while it is polled.
//! - Delivered blocks of long reads count in `long_bytes`. Where they hold half of the process's memory, further long reads fail.
//!
//! *Invariant: a shard, a ring or a batch sleeps for memory only while an operation in flight will release some.* Asserted in debug
//! builds before each sleep (`shard/invariants.rs`, `Arena::check_line`). A thread in `.wait()` never sleeps for memory itself: its
//! operation is sent to a shard.
//!
//! Every buffer has a *home*: the return stack that receives it when it is dropped on a thread without a
//! cache of this arena. A drop never allocates, locks or waits. Regions stay mapped until the arena is
//! closed. After that each is unmapped by the thread that returns its last buffer, and one with a leaked
//! buffer is leaked whole: a device that still writes into it cannot reach memory that was reused.
//!
//! **Nodes**: where shards are pinned, each region is of one memory node (`nodes.rs`). A shard uses memory of its own node first,
//! then lets the arena grow there, and then uses any other node's memory.
//!
//! **Fork**: regions are not inherited (MADV_DONTFORK). A child must not touch the bytes of an inherited
//! block; dropping one is harmless.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

mod buddy;
mod buffer;
mod cache;
mod central;
mod header;
mod line;
mod nodes;
mod ordinary;
mod pack;
mod region;
mod returns;
mod shared;

pub(crate) use buffer::Buffer;
pub(crate) use cache::Aside;
use header::{HOME_NOBODY, class_of};
pub(crate) use header::{Header, region_index, release};
pub(crate) use line::{Ticket, UnderWay};
pub(crate) use nodes::Nodes;
use ordinary::Account;
pub(crate) use pack::Packer;
use shared::ArenaCore;

/// The smallest buffer. I/O memory is never aligned below the page size: a kernel was seen to corrupt memory
/// at the 512-byte alignment that it advertises. Where pages are larger, so is the smallest buffer.
pub(crate) const BUFFER_BYTES_MIN: usize = 4096;

/// The largest single buffer. It is also the largest region, because the kernel registers no larger buffer.
pub(crate) const BUFFER_BYTES_MAX: usize = 1 << 30;

/// A read is long from this part of the arena on: buffers are powers of two, and two of the longest short reads always fit.
const LONG_PART: usize = 4;
/// Reads of up to this length are short however small the arena is.
const SHORT_BYTES_MIN: usize = 128 << 10;

/// The limits for an arena's memory, in bytes; each is rounded to whole pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaConfig {
    /// Bytes mapped at the start; 0 leaves even the first region to the first buffer.
    pub(crate) bytes_initial: usize,
    /// The limit for the first region, so that it can be registered where locked memory is limited.
    pub(crate) first_region_bytes: usize,
    /// The limit for mapped bytes. 0 makes an arena of overflow memory only.
    pub(crate) bytes_max: usize,
    /// The limit for ordinary memory in addition to the arena.
    pub(crate) overflow_bytes_max: usize,
    /// The bytes of long reads' blocks from which on further long reads are refused.
    pub(crate) long_bytes_max: usize,
    /// The number of shards; they are numbered from 0.
    pub(crate) shards: usize,
}

/// The reason for a failed allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocError {
    /// All memory is held: `held` bytes by live buffers, overflow and long reads included.
    NoMemory { held: u64 },
    /// The request is for more than [`BUFFER_BYTES_MAX`].
    TooLarge,
}

/// The size of an arena and the use of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArenaCounts {
    /// Bytes of all regions, including closed regions with live blocks.
    pub(crate) bytes_mapped: usize,
    pub(crate) bytes_mapped_max: usize,
    /// Bytes of region buffers outside free lists, caches and return stacks. Buffers that move between these
    /// during the count may be missed or counted twice. 0 once the arena is closed.
    pub(crate) bytes_held: usize,
    /// Bytes of live overflow buffers.
    pub(crate) overflow_bytes: usize,
    /// Overflow buffers ever handed out.
    pub(crate) overflow_allocations: u64,
    /// Bytes of ordinary memory that hold results, limited by the program only.
    pub(crate) result_bytes: usize,
    /// Bytes of ordinary memory of long reads and their blocks.
    pub(crate) long_bytes: usize,
    /// Bytes of ordinary memory that count towards `bytes_mapped_max` as the regions do.
    pub(crate) exact_bytes: usize,
    /// Whether huge pages were requested and not refused.
    pub(crate) huge: bool,
}

impl ArenaCounts {
    /// Returns the bytes that blocks and operations hold of all memory with a limit.
    pub(crate) fn bytes_held_in_all(&self) -> usize {
        self.bytes_held + self.overflow_bytes + self.long_bytes + self.exact_bytes
    }
}

/// A handle of an arena; the last one dropped closes it.
#[derive(Clone)]
pub(crate) struct Arena(Arc<Handle>);

/// Separate from `ArenaCore`, which regions keep alive, so that the last handle is distinguished from the last
/// block.
struct Handle(Arc<ArenaCore>);

impl Arena {
    /// Maps and populates the first `bytes_initial`, equally from each node. Without huge pages it uses small pages.
    pub(crate) fn new(config: ArenaConfig, nodes: Nodes) -> io::Result<Arena> {
        Ok(Arena(Arc::new(Handle(ArenaCore::new(config, nodes)?))))
    }

    /// Maps the first region if the arena is empty. If the system refuses, the first buffer tries again.
    pub(crate) fn begin(&self) {
        self.0.0.begin();
    }

    /// Returns a buffer of at least `len` bytes, for any thread: from the shared free memory (a lock), else
    /// from a new region; never overflow memory. Its home is the central stack.
    pub(crate) fn alloc_shared(&self, len: usize) -> Result<Buffer, AllocError> {
        let class = self.class(len)?;
        self.0.0.alloc_shared(class, None).map(buffer).ok_or_else(|| self.0.0.no_memory())
    }

    /// Returns a buffer as [`alloc_shared`](Self::alloc_shared), else overflow memory.
    #[cfg(test)]
    pub(crate) fn alloc(&self, len: usize) -> Result<Buffer, AllocError> {
        self.alloc_shared(len).or_else(|_| self.alloc_overflow(len))
    }

    /// Returns a buffer from this shard's cache, else from the buffers returned to it, from the shared free
    /// memory, or from a new region; never overflow memory. On a thread without a cache it is
    /// [`Arena::alloc`] without overflow.
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

    /// Returns ordinary aligned memory, counted against `overflow_bytes_max`, or as a long read's is if it is as long; it is not registered
    /// with any ring.
    #[cold]
    pub(crate) fn alloc_overflow(&self, len: usize) -> Result<Buffer, AllocError> {
        if len > self.short_bytes_max() {
            return self.alloc_long(len);
        }
        ordinary::allocate_overflow(&self.0.0, len).ok_or_else(|| self.0.0.no_memory())
    }

    /// Returns the length of the longest read with a buffer of the arena; longer reads are *long*.
    pub(crate) fn short_bytes_max(&self) -> usize {
        (self.0.0.bytes_max / LONG_PART).clamp(SHORT_BYTES_MIN, BUFFER_BYTES_MAX)
    }

    /// Returns ordinary memory of whole pages for a long read, or for memory of a program that is as long.
    #[cold]
    pub(crate) fn alloc_long(&self, len: usize) -> Result<Buffer, AllocError> {
        self.class(len)?;
        ordinary::allocate_long(&self.0.0, len).ok_or_else(|| self.0.0.no_memory())
    }

    /// Returns whether a read of `len` bytes may allocate now, on its caller's thread: a long read if it fits, with the blocks of
    /// others, into the line's allowance. So no read waits for one that its program does not poll.
    pub(crate) fn has_room_now(&self, len: usize) -> bool {
        let held = self.0.0.long_bytes.load(std::sync::atomic::Ordering::Relaxed);
        len <= self.short_bytes_max() || held == 0 || held.saturating_add(len) <= self.bytes_max()
    }

    /// Returns ordinary memory of whole pages for a result of a batch, which no setting limits.
    #[cold]
    pub(crate) fn alloc_result(&self, len: usize) -> Result<Buffer, AllocError> {
        let shared = &self.0.0;
        let bytes = shared.whole_pages(len).ok_or(AllocError::TooLarge)?;
        ordinary::allocate_exact(
            bytes,
            BUFFER_BYTES_MIN << shared.class_min,
            Account::Result(Arc::clone(shared)),
            false,
        )
        .ok_or_else(|| shared.no_memory())
    }

    /// Returns ordinary memory of exactly `len` bytes, which counts towards the arena's limit beside its regions; `None` if they leave too
    /// little of it. For caches: a region's buffer may be twice as long.
    #[cold]
    pub(crate) fn alloc_exact(&self, len: usize) -> Option<Buffer> {
        ordinary::allocate_within_limit(&self.0.0, len)
    }

    /// Reserves `bytes` of the line's allowance for an operation of this shard. If it has to wait, `ticket` becomes or stays its
    /// place in the line, and the shard is woken when it should try again.
    pub(crate) fn enter_line(
        &self,
        shard: usize,
        bytes: usize,
        ticket: &mut Option<Ticket>,
    ) -> Option<UnderWay> {
        line::enter(&self.0.0, shard, bytes, ticket)
    }

    /// Returns the bytes reserved by [`enter_line`](Self::enter_line) and [kept](UnderWay::keep) until an operation's end.
    #[cold]
    pub(crate) fn leave_line(&self, bytes: usize) {
        line::leave_kept(&self.0.0, bytes);
    }

    /// Checks, before a shard sleeps, that each of its waiters in the line waits for an operation in flight.
    #[cfg(debug_assertions)]
    pub(crate) fn check_line(&self, shard: usize) {
        self.0.0.line.check(shard);
    }

    fn class(&self, len: usize) -> Result<usize, AllocError> {
        class_of(len, self.0.0.class_min).ok_or(AllocError::TooLarge)
    }

    /// Makes the calling thread the shard's: it gets the shard's cache, and buffers that other threads drop return to it. Ignored
    /// if the shard does not exist or has a cache already. A thread may have several (a simulator's has); the newest counts.
    pub(crate) fn install(&self, shard: usize) {
        self.0.0.install(shard);
    }

    /// Undoes the newest [`Arena::install`] of this thread. The buffers of its cache, and those that are
    /// returned later, are then available to all threads.
    pub(crate) fn uninstall(&self) {
        self.0.0.uninstall();
    }

    /// Makes the buffers in the calling thread's cache available to all threads.
    pub(crate) fn empty_cache(&self) {
        self.0.0.empty_cache();
    }

    /// Returns the limit for mapped bytes.
    pub(crate) fn bytes_max(&self) -> usize {
        self.0.0.bytes_max
    }

    /// Returns the number of regions. It only grows, so a shard that remembers the number detects new regions to register with one
    /// load. 0 after `close`.
    pub(crate) fn regions(&self) -> usize {
        self.0.0.regions()
    }

    /// Returns start and length in bytes of a region, for registering it.
    pub(crate) fn region(&self, index: usize) -> Option<(*mut u8, usize)> {
        self.0.0.region(index)
    }

    /// Sets the function to call when memory was returned after [`Arena::wait_for_memory`]. It runs on the
    /// thread that returned the memory, so it must neither block nor panic. Only a shard's first waker
    /// counts. It lives as long as the arena's last block: it must not own an `Arena` (use `Weak`), which
    /// would then never be closed.
    pub(crate) fn set_memory_waker(&self, shard: usize, waker: Box<dyn Fn() + Send + Sync>) {
        self.0.0.waiting.set_waker(shard, waker);
    }

    /// Sets whether this shard waits for memory. After setting it the shard must try to allocate once more, and sleep only if that
    /// fails too. Then no return is missed: either that attempt sees the buffer or its return sees the flag (see
    /// `ReturnStack::push`). The wake-up clears the flag. Buffers that idle in other shards' caches do not count, so a shard waits
    /// only while it has operations in flight.
    pub(crate) fn wait_for_memory(&self, shard: usize, waits: bool) {
        self.0.0.waiting.set(shard, waits);
    }

    /// Returns whether a shard waits for memory.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.0.waiting.anyone()
    }

    /// Sets the function to call, on a shard's thread, when memory becomes scarce. It has
    /// [`Arena::grow_ahead`] called elsewhere. As with [`Arena::set_memory_waker`] it must not own an
    /// `Arena`. Only the first counts.
    pub(crate) fn set_growth_asker(&self, ask: Box<dyn Fn() + Send + Sync>) {
        self.0.0.set_growth_asker(ask);
    }

    /// Maps and populates regions while memory is scarce. Each needs milliseconds, so this is not for a shard's thread.
    pub(crate) fn grow_ahead(&self) {
        self.0.0.grow_ahead();
    }

    /// Returns the system's error at the last attempt of the arena to grow, if it failed.
    pub(crate) fn refusal(&self) -> Option<io::Error> {
        let errno = self.0.0.refusal.load(std::sync::atomic::Ordering::Relaxed);
        (errno != 0).then(|| io::Error::from_raw_os_error(errno))
    }

    /// Returns whether regions have huge pages, or would, as far as that can be determined.
    pub(crate) fn has_huge_pages(&self) -> bool {
        if self.regions() == 0 { region::are_huge_pages_granted() } else { self.counts().huge }
    }

    /// Returns the counts. Takes the lock and empties the return stacks: for statistics, not for every
    /// operation.
    pub(crate) fn counts(&self) -> ArenaCounts {
        self.0.0.counts()
    }

    /// Stops handing buffers out of regions and unmaps the regions without live buffers. The others are
    /// unmapped when their last buffer is returned. Shards should have uninstalled: buffers in a cache count
    /// as live until then. The last handle's drop does it too; a second time does nothing.
    pub(crate) fn close(&self) {
        self.0.0.close();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A thread of the parent may have held the lock at the fork, and the regions are not this process's.
        if self.0.origin.is_elsewhere() {
            return;
        }
        self.0.close();
    }
}

crate::_debug_parts!(Arena, |arena| regions: arena.regions());

/// Returns a buffer from the arena of `header`, if it fits without overflow memory; for copies of blocks.
///
/// # Safety
/// `header` belongs to a live buffer.
pub(crate) unsafe fn alloc_beside(header: NonNull<Header>, len: usize) -> Option<Buffer> {
    // SAFETY: a live buffer keeps its region or record, and both keep `ArenaCore`.
    let shared = unsafe {
        match header.as_ref().region() {
            Some(region) => &*std::ptr::from_ref(region.as_ref().shared()),
            None => ordinary::shared(header)?,
        }
    };
    let class = class_of(len, shared.class_min)?;
    cache::with(Arc::as_ptr(shared), |cache| {
        cache.and_then(|cache| cache.pop(class)).or_else(|| shared.alloc_shared(class, cache))
    })
    .map(buffer)
}

/// Returns ordinary memory of exactly `len` bytes that no arena counts, at a multiple of `align`: zeroed, or not initialised.
/// `None` where the system has no memory.
pub(crate) fn alloc_own(len: usize, align: usize, zeroed: bool) -> Option<Buffer> {
    ordinary::allocate_exact(len, align, Account::Own, zeroed)
}

/// Returns the capacity of a buffer for `len` bytes; `None` when no single buffer holds them.
pub(crate) fn capacity_for(len: usize) -> Option<usize> {
    let page = rustix::param::page_size();
    class_of(len, class_of(page, 0)?).map(|class| BUFFER_BYTES_MIN << class)
}

fn buffer(header: NonNull<Header>) -> Buffer {
    // SAFETY: every allocation path hands out headers of buffers that no other code has.
    unsafe { Buffer::from_header(header) }
}

#[cfg(test)]
mod tests;
