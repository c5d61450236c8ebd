//! State shared by tables: the cache of their blocks, the budget for pinned memory, and the list of files
//! to remove.

use std::hash::{BuildHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use forebay::Block;
use quick_cache::sync::{Cache as Blocks, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use crate::error::Error;
use crate::value::HeldBytes;

/// The cache's own memory for each block, approximate, in bytes.
const OVERHEAD_BYTES: u64 = 160;
/// The minimum that the cache evicts when the engine has no I/O memory left, in bytes.
const GIVEN_BYTES: u64 = 1 << 20;
/// Bytes per part of the cache. Each part has its own lock.
const PART_BYTES: u64 = 1 << 20;
const PARTS_MAX: u64 = 32;

/// The blocks of all tables in memory. Pinned blocks are only counted here; the others come and go.
pub(crate) struct Cache {
    blocks: Blocks<At, Block, ByMemory, Mix, DefaultLifecycle<At, Block>>,
    /// The limit for the bytes of both kinds together.
    bytes_max: u64,
    pinned_bytes_max: u64,
    pinned: Mutex<PinnedBytes>,
    hits: AtomicU64,
    misses: AtomicU64,
    held: Arc<HeldBytes>,
    removals: Removals,
}

/// The key of a block: its table, and its first byte in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At {
    table: u32,
    offset: u64,
}

/// Figures of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheStats {
    /// The limit in bytes, pinned ones included.
    pub(crate) bytes_max: u64,
    pub(crate) pinned: PinnedBytes,
    /// Bytes of blocks that come and go, with the cache's own memory for them.
    pub(crate) block_bytes: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

/// Pinned bytes by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PinnedBytes([u64; 4]);

/// The purpose of pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinning {
    TopLevels,
    Filters,
    /// Metadata of open tables.
    Tables,
    /// Lent to the share for memory that the program holds.
    Lent,
}

impl PinnedBytes {
    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn of(&self, what: Pinning) -> u64 {
        self.0[what as usize]
    }
}

/// Pinned bytes. Dropping it unpins them.
pub(crate) struct Pin {
    cache: Arc<Cache>,
    what: Pinning,
    bytes: u64,
}

impl Cache {
    /// Returns a cache of `bytes_max` bytes, of which `pinned_bytes_max` may be pinned.
    pub(crate) fn new(bytes_max: u64, pinned_bytes_max: u64) -> Arc<Cache> {
        let parts = (bytes_max / PART_BYTES).clamp(1, PARTS_MAX).next_power_of_two();
        let mut options = OptionsBuilder::new();
        options
            .shards(parts as usize)
            .estimated_items_capacity((bytes_max / 4096).max(1) as usize)
            .weight_capacity(bytes_max);
        let blocks = match options.build() {
            Ok(options) => Blocks::with_options(options, ByMemory, Mix, DefaultLifecycle::default()),
            // Cannot happen: all required settings are set.
            Err(_) => Blocks::with(1, bytes_max, ByMemory, Mix, DefaultLifecycle::default()),
        };
        Arc::new(Cache {
            blocks,
            bytes_max,
            pinned_bytes_max: pinned_bytes_max.min(bytes_max),
            pinned: Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            held: Arc::default(),
            removals: Removals::default(),
        })
    }

    /// Returns the block of a table that begins at `offset`. Blocks in the cache were checked before.
    pub(crate) fn get(&self, table: u32, offset: u64) -> Option<Block> {
        let found = self.blocks.get(&At { table, offset });
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Like [`get`](Self::get), for callers that only check whether the block is there.
    pub(crate) fn peek(&self, table: u32, offset: u64) -> Option<Block> {
        self.blocks.get(&At { table, offset })
    }

    /// Inserts a checked block. A block that keeps much more memory than its length is left out.
    pub(crate) fn insert(&self, table: u32, offset: u64, block: &Block) {
        if block.pinned_bytes() <= 2 * block.len() {
            self.blocks.insert(At { table, offset }, block.clone());
        }
    }

    /// Pins `bytes` of memory for long use, if the limit allows it. Blocks that come and go have that much
    /// less room.
    pub(crate) fn pin(self: &Arc<Self>, what: Pinning, bytes: u64) -> Option<Pin> {
        self.take(what, bytes, self.pinned_bytes_max).then(|| Pin { cache: self.clone(), what, bytes })
    }

    /// Like [`pin`](Self::pin), for memory that is indispensable: never fails.
    pub(crate) fn must_pin(self: &Arc<Self>, what: Pinning, bytes: u64) -> Pin {
        self.take(what, bytes, u64::MAX);
        Pin { cache: self.clone(), what, bytes }
    }

    fn take(&self, what: Pinning, bytes: u64, pinned_bytes_max: u64) -> bool {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        match pinned.sum().checked_add(bytes).filter(|all| *all <= pinned_bytes_max) {
            Some(all) => {
                pinned.0[what as usize] += bytes;
                self.blocks.set_capacity(self.bytes_max.saturating_sub(all));
                true
            }
            None => false,
        }
    }

    /// Evicts all blocks that come and go.
    pub(crate) fn clear(&self) {
        self.blocks.clear();
    }

    /// Evicts an eighth of the blocks that come and go if `error` reports that the engine has no I/O memory
    /// left. Returns whether another attempt is worthwhile.
    pub(crate) fn gives_way(&self, error: &Error) -> bool {
        let is_exhausted =
            error.core().is_some_and(|core| matches!(core.kind(), forebay::ErrorKind::ArenaExhausted { .. }));
        if !is_exhausted {
            return false;
        }
        let pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let weight = self.blocks.weight();
        match weight {
            0 => return false,
            _ if weight < GIVEN_BYTES => self.blocks.clear(),
            _ => {
                self.blocks.set_capacity(weight - (weight / 8).max(GIVEN_BYTES));
                self.blocks.set_capacity(self.bytes_max.saturating_sub(pinned.sum()));
            }
        }
        true
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
        CacheStats {
            bytes_max: self.bytes_max,
            pinned: *self.pinned.lock().unwrap_or_else(PoisonError::into_inner),
            block_bytes: self.blocks.weight(),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        }
    }
}

impl Pin {
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Pins `bytes` more and returns true, or changes nothing and returns false.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let is_given = self.cache.take(self.what, bytes, self.cache.pinned_bytes_max);
        self.bytes += if is_given { bytes } else { 0 };
        is_given
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let cache = &self.cache;
        let mut pinned = cache.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = &mut pinned.0[self.what as usize];
        debug_assert!(*bytes >= self.bytes, "what is pinned is counted until it goes");
        *bytes = bytes.saturating_sub(self.bytes);
        cache.blocks.set_capacity(cache.bytes_max.saturating_sub(pinned.sum()));
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pin").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Files of retired tables that are no longer in use. The last owner to drop a table must not wait for the
/// file system, so a task of the store empties this list.
#[derive(Default)]
pub(crate) struct Removals {
    files: Mutex<Vec<PathBuf>>,
    bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Removals {
    /// Removes and returns all files on the list.
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
        self.files.lock().unwrap_or_else(PoisonError::into_inner).push(file);
        if let Some(bell) = self.bell.get() {
            bell();
        }
    }
}

/// Weighs blocks by the memory that they keep from other use.
#[derive(Clone, Debug)]
struct ByMemory;

impl Weighter<At, Block> for ByMemory {
    fn weight(&self, _: &At, block: &Block) -> u64 {
        block.pinned_bytes() as u64 + OVERHEAD_BYTES
    }
}

/// A hasher that is the same in every process, so that a simulated run repeats itself. The keys here are
/// numbers of the store's own.
#[derive(Clone, Debug)]
struct Mix;

struct Mixer(u64);

impl BuildHasher for Mix {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer(0)
    }
}

impl Hash for At {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.offset ^ u64::from(self.table).rotate_left(40));
    }
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        // The finalizer of MurmurHash3: every bit of the word changes half of the bits.
        let mut x = self.0 ^ word;
        x = (x ^ (x >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        x = (x ^ (x >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
        self.0 = x ^ (x >> 33);
    }
}
