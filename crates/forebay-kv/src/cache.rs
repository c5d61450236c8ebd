//! State shared by tables: the cache of their blocks, the budget for pinned memory, and the list of files
//! to remove.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use forebay::{Block, Engine};
use forebay_cache::BlockCache;

use crate::error::Error;
use crate::value::HeldBytes;

/// Number of reads of tables between two checks of the free memory.
const LOOK_EVERY: u64 = 1024;

/// Memory that a block in memory of its exact length needs in addition.
const RECORD_BYTES: u64 = 160;
/// Values up to this length are cached however small the cache is.
const VALUE_BYTES_MIN: u64 = 64 << 10;

/// The blocks of all tables in memory. Pinned blocks are only counted here; the others are evictable.
pub(crate) struct Cache {
    blocks: Arc<BlockCache>,
    /// The limit for the bytes of both kinds together.
    bytes_max: u64,
    /// The limit for pinned bytes, without those lent to the program.
    pinned_bytes_max: u64,
    /// The limit for both.
    lasting_bytes_max: u64,
    pinned: Mutex<PinnedMemory>,
    /// Number of reads of tables.
    reads: AtomicU64,
    held: Arc<HeldBytes>,
    removals: Removals,
}

/// Figures of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheStats {
    /// The limit in bytes, including pinned blocks.
    pub(crate) bytes_max: u64,
    pub(crate) pinned: PinnedBytes,
    /// Bytes of evictable blocks, including the cache's memory to track them.
    pub(crate) block_bytes: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) insertions: u64,
    pub(crate) refusals: u64,
    pub(crate) evictions: u64,
}

/// Pinned memory, and which of it may be released.
#[derive(Default)]
struct PinnedMemory {
    bytes: PinnedBytes,
    /// The filters of the last level, the latest last.
    last_filters: Vec<LastFilter>,
}

/// A filter that its owner gives back when the memory is needed.
struct LastFilter {
    owner: Weak<dyn FilterOwner>,
    bytes: u64,
}

/// The owner of a filter of the last level.
pub(crate) trait FilterOwner: Send + Sync {
    /// Gives the filter back, with its pin.
    fn give_back(&self);
}

/// Pinned bytes by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PinnedBytes([u64; 6]);

/// The purpose of pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinPurpose {
    TopLevels,
    Filters,
    /// Metadata of keyspaces and tables.
    Tables,
    /// Lent to the share for memory that the program holds.
    Lent,
    /// Filters of the last level, which give way to all others.
    LastFilters,
    /// No memory, but a table with an inner level that did not fit.
    LeftOut,
}

/// Filters of the last level use at most this part of the memory that nothing else pins: gets of existing keys gain nothing from
/// them, and evictable blocks have the rest.
const LAST_FILTERS_PART: u64 = 4;
/// The part of the cache that is reserved for evictable blocks.
const BLOCKS_PART: u64 = 16;

impl PinnedBytes {
    pub(crate) fn sum(&self) -> u64 {
        self.lasting() + self.of(PinPurpose::LastFilters)
    }

    /// Returns the bytes that do not give way.
    fn lasting(&self) -> u64 {
        self.0[..PinPurpose::LastFilters as usize].iter().sum()
    }

    /// Returns the bytes of the store's own that do not give way.
    fn own(&self) -> u64 {
        self.lasting() - self.of(PinPurpose::Lent)
    }

    pub(crate) fn of(&self, what: PinPurpose) -> u64 {
        self.0[what as usize]
    }
}

impl PinnedMemory {
    /// Removes filters from the list, the latest first, until those of the last level use at most `most` bytes.
    fn surplus(&mut self, most: u64) -> Vec<Weak<dyn FilterOwner>> {
        let mut surplus = Vec::new();
        if self.bytes.of(PinPurpose::LastFilters) > most {
            self.last_filters.retain(|filter| filter.owner.strong_count() > 0);
            let mut left: u64 = self.last_filters.iter().map(|filter| filter.bytes).sum();
            while left > most
                && let Some(filter) = self.last_filters.pop()
            {
                left -= filter.bytes;
                surplus.push(filter.owner);
            }
        }
        surplus
    }
}

/// Pinned bytes. Dropping it unpins them.
pub(crate) struct Pin {
    cache: Arc<Cache>,
    what: PinPurpose,
    bytes: u64,
}

/// Returns the memory of a copy in a buffer of the engine.
fn buffer_memory(len: usize) -> u64 {
    (len as u64).next_power_of_two().max(4096)
}

/// Returns the memory of a block in the cache: memory of its length, unless a buffer of the engine is little longer.
fn memory_of(len: usize) -> u64 {
    let (exact, buffer) = (len as u64 + RECORD_BYTES, buffer_memory(len));
    if exact + exact / 8 <= buffer { exact } else { buffer }
}

/// Returns a copy of a block for the cache.
fn copy_of(engine: &Engine, block: &[u8]) -> Option<Block> {
    let is_exact = memory_of(block.len()) < buffer_memory(block.len());
    let exact = if is_exact { forebay::internal::exact_copy(engine, block) } else { None };
    exact.or_else(|| engine.block_from(block).ok().map(forebay::BlockMut::freeze))
}

/// Returns the most bytes of a cache of `bytes_max` bytes that may be pinned.
pub(crate) fn lasting_max(bytes_max: u64) -> u64 {
    bytes_max / BLOCKS_PART * (BLOCKS_PART - 1)
}

impl Cache {
    /// Returns a cache of `bytes_max` bytes, of which `pinned_bytes_max` may be pinned in addition to loans to the program.
    pub(crate) fn new(bytes_max: u64, pinned_bytes_max: u64) -> Arc<Cache> {
        let blocks = Arc::new(BlockCache::new(bytes_max));
        Arc::new(Cache {
            held: HeldBytes::lending_to(&blocks),
            blocks,
            bytes_max,
            pinned_bytes_max: pinned_bytes_max.min(bytes_max),
            lasting_bytes_max: pinned_bytes_max.clamp(lasting_max(bytes_max), bytes_max),
            pinned: Mutex::default(),
            reads: AtomicU64::new(0),
            removals: Removals::default(),
        })
    }

    /// Returns the block of a table at `offset`. Blocks in the cache were checked before.
    pub(crate) fn get(&self, table: u32, offset: u64) -> Option<Block> {
        self.blocks.get(u64::from(table), offset)
    }

    /// Like [`get`](Self::get), but counts no miss: for callers that look again before they read.
    pub(crate) fn get_if_there(&self, table: u32, offset: u64) -> Option<Block> {
        self.blocks.get_if_there(u64::from(table), offset)
    }

    /// Like [`get`](Self::get), for callers that only check whether the block is there.
    pub(crate) fn peek(&self, table: u32, offset: u64) -> Option<Block> {
        self.blocks.peek(u64::from(table), offset)
    }

    /// Inserts a checked block. A block that keeps much more memory than its length is left out.
    pub(crate) fn insert(&self, table: u32, offset: u64, block: &Block) {
        self.blocks.insert(u64::from(table), offset, block);
    }

    /// Inserts a checked block while memory is free. A full cache keeps only blocks that are read again: those that were offered
    /// before, not long ago. Where it wants a block that was read with others, or is little longer than a power of two, it keeps a
    /// copy: the block keeps twice its memory or more.
    pub(crate) fn offer(&self, engine: &Engine, table: u32, offset: u64, block: &Block) {
        let memory = memory_of(block.len());
        if block.pinned_bytes() as u64 <= memory {
            return self.offer_as_is(table, offset, block);
        }
        if self.blocks.has_room(memory) || self.blocks.note(u64::from(table), offset) {
            self.offer_as_is(table, offset, copy_of(engine, block).as_ref().unwrap_or(block));
        }
    }

    fn offer_as_is(&self, table: u32, offset: u64, block: &Block) {
        if !self.blocks.fill(u64::from(table), offset, block) {
            self.blocks.offer(u64::from(table), offset, block);
        }
    }

    /// Inserts a copy of a part of a table that was just written, while memory is free: it evicts no other block.
    pub(crate) fn fill(&self, engine: &Engine, table: u32, offset: u64, bytes: &[u8]) {
        if self.blocks.has_room(memory_of(bytes.len()))
            && let Some(block) = copy_of(engine, bytes)
        {
            self.blocks.fill(u64::from(table), offset, &block);
        }
    }

    /// Returns the length above which a value is not cached.
    pub(crate) fn value_bytes_max(&self) -> u32 {
        u32::try_from(self.blocks.block_bytes_max().max(VALUE_BYTES_MIN)).unwrap_or(u32::MAX)
    }

    /// Removes a block of a table that is being deleted, and leaves its memory to the next [`fill`](Self::fill).
    pub(crate) fn give_up(&self, table: u32, offset: u64) {
        self.blocks.give_up(u64::from(table), offset);
    }

    /// Notes a read of a block that bypassed the cache. Returns whether the block is worth its memory by now, so that an
    /// [`offer`](Self::offer) of it would insert it.
    #[cfg(all(feature = "kernel", target_os = "linux"))]
    pub(crate) fn note(&self, table: u32, offset: u64) -> bool {
        self.blocks.note(u64::from(table), offset)
    }

    /// Counts reads of tables. Returns whether it is time to check the free memory: a check takes locks.
    pub(crate) fn is_look_due(&self, reads: u64) -> bool {
        let before = self.reads.fetch_add(reads, Ordering::Relaxed);
        before == 0 || before / LOOK_EVERY != (before + reads) / LOOK_EVERY
    }

    /// Finds out how much memory is free for blocks that are read once.
    pub(crate) fn look_for_room(&self) {
        self.blocks.look_for_room();
    }

    /// Lends the cache up to `bytes` bytes beyond its limit for evictable blocks.
    pub(crate) fn lend(&self, bytes: u64) {
        self.blocks.lend(bytes);
    }

    /// Takes back a step of its loan, for which a block is evicted. Returns the bytes; 0 if nothing is lent.
    pub(crate) fn take_back(&self) -> u64 {
        self.blocks.take_back()
    }

    /// Returns whether it was lent anything.
    pub(crate) fn is_lent(&self) -> bool {
        self.blocks.lent_bytes() > 0
    }

    /// Returns the bytes that it was lent of the share for memory that the program holds, and of that of memtables.
    pub(crate) fn lent_bytes(&self) -> (u64, u64) {
        self.held.lent_bytes(&self.blocks)
    }

    /// Returns the limit in bytes, including pinned blocks.
    #[cfg(all(feature = "kernel", target_os = "linux"))]
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Pins `bytes` of memory for long use, if the limit allows it. Evictable blocks lose that much memory, and filters of the last
    /// level are released for it.
    pub(crate) fn pin(self: &Arc<Self>, what: PinPurpose, bytes: u64) -> Option<Pin> {
        self.take(what, bytes, false).then(|| Pin { cache: self.clone(), what, bytes })
    }

    /// Like [`pin`](Self::pin), for memory that is indispensable: never fails.
    pub(crate) fn must_pin(self: &Arc<Self>, what: PinPurpose, bytes: u64) -> Pin {
        self.take(what, bytes, true);
        Pin { cache: self.clone(), what, bytes }
    }

    /// Notes that `owner` keeps a filter of the last level with `bytes` of pinned memory. Returns false if the memory is
    /// needed by now: then the owner has to give it back.
    pub(crate) fn keep_last_filter(&self, owner: Weak<dyn FilterOwner>, bytes: u64) -> bool {
        let mut pinned = self.lock_pinned();
        if pinned.bytes.of(PinPurpose::LastFilters) > self.last_filters_max(&pinned.bytes) {
            return false;
        }
        let filters = &mut pinned.last_filters;
        if filters.len() == filters.capacity() {
            filters.retain(|filter| filter.owner.strong_count() > 0);
        }
        filters.push(LastFilter { owner, bytes });
        true
    }

    /// Returns the most bytes that filters of the last level may use in addition to memory pinned for other purposes: 0 while an
    /// inner level of a table is not pinned for lack of memory.
    fn last_filters_max(&self, pinned: &PinnedBytes) -> u64 {
        if pinned.of(PinPurpose::LeftOut) > 0 {
            return 0;
        }
        let lasting = pinned.lasting();
        let most = self.bytes_max.saturating_sub(lasting) / LAST_FILTERS_PART;
        let limits = [(self.pinned_bytes_max, pinned.own()), (self.lasting_bytes_max, lasting)];
        limits.into_iter().fold(most, |most, (all, used)| most.min(all.saturating_sub(used)))
    }

    /// Returns whether this many more bytes may be pinned.
    fn fits(&self, pinned: &PinnedBytes, what: PinPurpose, bytes: u64) -> bool {
        let all = pinned.lasting().saturating_add(bytes);
        match what {
            PinPurpose::LastFilters => pinned.of(what).saturating_add(bytes) <= self.last_filters_max(pinned),
            PinPurpose::Lent => all <= self.lasting_bytes_max,
            // The size of the present metadata is also reserved for the metadata of new tables, which must fit.
            _ => {
                pinned.own().saturating_add(bytes) <= self.pinned_bytes_max
                    && all.saturating_add(pinned.of(PinPurpose::Tables)) <= self.lasting_bytes_max
            }
        }
    }

    fn take(&self, what: PinPurpose, bytes: u64, is_needed: bool) -> bool {
        let surplus = {
            let mut pinned = self.lock_pinned();
            if !is_needed && !self.fits(&pinned.bytes, what, bytes) {
                return false;
            }
            pinned.bytes.0[what as usize] += bytes;
            let last_filters_max = self.last_filters_max(&pinned.bytes);
            self.blocks.set_bytes_max(self.bytes_max.saturating_sub(pinned.bytes.sum()));
            pinned.surplus(last_filters_max)
        };
        // Outside of the lock, which the pin of each filter acquires.
        surplus.iter().filter_map(Weak::upgrade).for_each(|owner| owner.give_back());
        true
    }

    fn lock_pinned(&self) -> MutexGuard<'_, PinnedMemory> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evicts all evictable blocks.
    pub(crate) fn clear(&self) {
        self.blocks.clear();
    }

    /// Evicts an eighth of the evictable blocks if `error` reports that the engine is out of I/O memory. Returns whether another
    /// attempt is worthwhile.
    pub(crate) fn gives_way(&self, error: &Error) -> bool {
        error.cause().is_some_and(|core| self.blocks.give_way(core))
    }

    /// Returns the counter of memory that the program holds of tables and memtables.
    pub(crate) fn held(&self) -> &Arc<HeldBytes> {
        &self.held
    }

    /// Returns the list of files of retired tables.
    pub(crate) fn removals(&self) -> &Removals {
        &self.removals
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let blocks = self.blocks.stats();
        CacheStats {
            bytes_max: self.bytes_max,
            pinned: self.lock_pinned().bytes,
            block_bytes: blocks.bytes,
            hits: blocks.hits,
            misses: blocks.misses,
            insertions: blocks.insertions,
            refusals: blocks.refusals,
            evictions: blocks.evictions,
        }
    }
}

impl Pin {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Pins `bytes` more and returns true, or changes nothing and returns false.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let is_given = self.cache.take(self.what, bytes, false);
        self.bytes += if is_given { bytes } else { 0 };
        is_given
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let cache = &self.cache;
        let mut pinned = cache.lock_pinned();
        let bytes = &mut pinned.bytes.0[self.what as usize];
        debug_assert!(*bytes >= self.bytes, "what is pinned is counted until it goes");
        *bytes = bytes.saturating_sub(self.bytes);
        cache.blocks.set_bytes_max(cache.bytes_max.saturating_sub(pinned.bytes.sum()));
    }
}

forebay::_debug_parts!(Pin, |pin| bytes: pin.bytes);

forebay::_debug_parts!(Cache, |cache| stats: cache.stats());

/// Files of retired tables that are no longer in use. The last owner to drop a table must not wait for the file system, so a task
/// of the store deletes these files.
#[derive(Default)]
pub(crate) struct Removals {
    files: Mutex<Vec<PathBuf>>,
    /// Files that were added and are not removed yet, in the list or handed out.
    pending: AtomicUsize,
    bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Removals {
    /// Returns whether every file that was added has been removed.
    pub(crate) fn is_done(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// Notes that `files` of the handed-out files were removed.
    pub(crate) fn removed(&self, files: usize) {
        let before = self.pending.fetch_sub(files, Ordering::AcqRel);
        debug_assert!(before >= files, "files are removed once");
    }

    /// Empties the list; the caller removes them and calls [`removed`](Self::removed).
    pub(crate) fn take(&self) -> Vec<PathBuf> {
        std::mem::take(&mut *self.files.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets a function that is called, on any thread, when a file is added to the list. Only the first call
    /// counts.
    pub(crate) fn on_push(&self, bell: impl Fn() + Send + Sync + 'static) {
        // A second bell is ignored.
        let _ = self.bell.set(Box::new(bell));
    }

    pub(crate) fn push(&self, file: PathBuf) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        self.files.lock().unwrap_or_else(PoisonError::into_inner).push(file);
        if let Some(bell) = self.bell.get() {
            bell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    struct Owner(Mutex<Option<Pin>>);

    impl FilterOwner for Owner {
        fn give_back(&self) {
            drop(self.0.lock().unwrap().take());
        }
    }

    /// Keeps a filter of this many bytes, if the cache grants them.
    fn keep(cache: &Arc<Cache>, bytes: u64) -> Option<Arc<Owner>> {
        let pin = cache.pin(PinPurpose::LastFilters, bytes)?;
        let owner = Arc::new(Owner(Mutex::new(Some(pin))));
        let weak: Weak<Owner> = Arc::downgrade(&owner);
        assert!(cache.keep_last_filter(weak, bytes));
        Some(owner)
    }

    /// Regression: a limit for pinned bytes limited loans to the program, too.
    #[test]
    fn what_is_lent_has_a_limit_apart_from_what_is_pinned() {
        let cache = Cache::new(64 * MIB, 8 * MIB);
        let lent = cache.pin(PinPurpose::Lent, 40 * MIB).unwrap();
        let levels = cache.pin(PinPurpose::TopLevels, 8 * MIB).unwrap();
        assert!(cache.pin(PinPurpose::Filters, 1).is_none());
        assert!(cache.pin(PinPurpose::Lent, 12 * MIB + 1).is_none(), "a sixteenth is for blocks");
        let more = cache.pin(PinPurpose::Lent, 12 * MIB);
        assert!(more.is_some());
        drop((levels, lent));
        assert!(cache.pin(PinPurpose::Filters, 8 * MIB).is_some());
    }

    /// Metadata of tables must have their memory, so filters leave free as much again.
    #[test]
    fn what_may_be_left_out_leaves_room_for_what_may_not() {
        let cache = Cache::new(64 * MIB, 60 * MIB);
        let tables = cache.must_pin(PinPurpose::Tables, 20 * MIB);
        assert!(cache.pin(PinPurpose::Filters, 20 * MIB + 1).is_none());
        let filters = cache.pin(PinPurpose::Filters, 20 * MIB).unwrap();
        let more = cache.must_pin(PinPurpose::Tables, 20 * MIB);
        assert_eq!(cache.stats().pinned.sum(), 60 * MIB);
        drop((tables, filters, more));
        assert_eq!(cache.stats().pinned.sum(), 0);
    }

    #[test]
    fn filters_of_the_last_level_take_a_quarter_of_the_rest_and_give_way() {
        let cache = Cache::new(64 * MIB, 60 * MIB);
        let kept = || cache.stats().pinned.of(PinPurpose::LastFilters) / MIB;
        let owners: Vec<_> = std::iter::from_fn(|| keep(&cache, 2 * MIB)).collect();
        assert_eq!((owners.len(), kept()), (8, 16));
        let levels = cache.pin(PinPurpose::TopLevels, 24 * MIB).unwrap();
        assert_eq!(kept(), 10, "a quarter of the 40 MiB that are left");
        let is_kept = |owner: &Arc<Owner>| owner.0.lock().unwrap().is_some();
        assert_eq!(owners.iter().filter(|owner| is_kept(owner)).count(), 5);
        assert!(is_kept(&owners[0]), "the latest one goes first");
        // All that may be pinned.
        let filters = cache.pin(PinPurpose::Filters, 36 * MIB).unwrap();
        assert_eq!(kept(), 0);
        assert!(cache.pin(PinPurpose::TopLevels, 1).is_none() && keep(&cache, 1).is_none());
        drop(filters);
        let left_out = cache.must_pin(PinPurpose::LeftOut, 1);
        assert!(keep(&cache, MIB).is_none(), "an inner level found no room");
        drop(left_out);
        let again = keep(&cache, 10 * MIB);
        assert!(again.is_some() && keep(&cache, 1).is_none());
        drop(cache.must_pin(PinPurpose::LeftOut, 1));
        assert_eq!(kept(), 0);
        drop((levels, owners, again));
        assert_eq!(cache.stats().pinned.sum(), 0);
    }
}
