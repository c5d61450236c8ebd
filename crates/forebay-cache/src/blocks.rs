//! The bounded map of blocks below [`Cache`](crate::Cache), for libraries that read their blocks themselves.

use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use forebay::internal::thread_number;
use forebay::{Block, Error};
use quick_cache::sync::Cache as Map;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};

use crate::doorkeeper::Doorkeeper;
use crate::window::Window;

/// The map's own memory for each block, at most, in bytes: its entry, its place in the table, those of the
/// blocks that were evicted and are remembered, and the doorkeeper's. `tests/all/bound.rs` compares it with the real memory.
const OVERHEAD_BYTES: u64 = 160;
/// The minimum that [`BlockCache::give_way`] evicts, in bytes.
const GIVEN_BYTES: u64 = 1 << 20;
/// Bytes per part of the map. Each part has its own lock.
const PART_BYTES: u64 = 1 << 20;
const PARTS_MAX: u64 = 32;
/// The longest blocks that a part is to hold.
const BLOCKS_MIN: u64 = 4;
/// The part of the map that may be free when it counts as full.
const FULL_PART: u64 = 32;
/// Number of steps in which the map's limit changes.
const STEPS: u64 = 64;
/// Number of places for the counters, so that threads seldom share one.
const STRIPES: usize = 16;
/// The size that [`BlockCache::new`] counts on for a block.
const BLOCK_BYTES: u64 = 4096;

/// A bounded map of blocks by owner and offset. It evicts the least used blocks, in an order that one pass over many blocks does
/// not disturb (CLOCK-Pro, by the crate quick_cache).
///
/// The caller chooses the number of an owner: one for each file, say. A block is charged for the memory that it pins
/// ([`Block::pinned_bytes`]) and 160 bytes for its entry. The map has no global lock and draws no random numbers: in a simulated
/// world the same calls evict the same blocks.
///
/// ```
/// use forebay::{Config, Engine, Open};
/// use forebay_cache::BlockCache;
///
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new())?;
/// let file = engine.open("Cargo.toml", Open::read()).wait()?;
/// let blocks = BlockCache::new(1 << 20);
/// let block = file.read_up_to(0..4096).wait()?;
/// blocks.insert(1, 0, &block);
/// assert_eq!(blocks.get(1, 0), Some(block)); // shares the memory
/// assert_eq!(blocks.stats().hits, 1);
/// # Ok(()) }
/// ```
pub struct BlockCache {
    blocks: Map<At, Block, ByMemory, Mix, Evictions>,
    /// The limit now. Held while blocks give way, which lowers the map's own limit for a while.
    bytes_max: Mutex<u64>,
    block_bytes: u64,
    /// Made with the first offer.
    offered: OnceLock<OfferHistory>,
    /// The limit of a part when the cache was made.
    part_bytes: u64,
    /// Number of blocks that an offer is remembered for.
    remembered: u64,
    stripes: Box<[Stripe; STRIPES]>,
    fullness: Arc<Fullness>,
}

/// How full the map is.
#[derive(Debug, Default)]
struct Fullness {
    evictions: AtomicU64,
    /// Bytes that the map lacked at the last look, less what filled it since; 0 from the first eviction on.
    room: AtomicU64,
    /// Bytes still to be inserted before the limit that `give_way` lowered is raised again; 0 if it is not
    /// lowered.
    lowered: AtomicU64,
}

/// Blocks that were offered, and that are not in the map.
struct OfferHistory {
    /// Those that were offered lately.
    doorkeeper: Doorkeeper,
    /// Those that were offered last.
    window: Window,
}

/// The key of a block: its owner, and its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) owner: u64,
    pub(crate) offset: u64,
}

/// Counters of some of the threads, on separate cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    hits: AtomicU64,
    /// Hits of futures: these yield now and then.
    awaited: AtomicU64,
    misses: AtomicU64,
    insertions: AtomicU64,
    refusals: AtomicU64,
}

/// Figures of a [`BlockCache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockStats {
    /// The limit in bytes, with memory that is lent to the cache.
    pub bytes_max: u64,
    /// Bytes of the blocks, with the memory for their entries.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Lookups that found their block.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Blocks that were inserted, replacements of present blocks included.
    pub insertions: u64,
    /// Blocks that were offered and refused, because they had not been offered lately.
    pub refusals: u64,
    /// Blocks that were evicted for others, or refused because they alone exceed a part of the limit.
    pub evictions: u64,
}

impl BlockCache {
    /// Returns an empty cache of up to `bytes_max` bytes, for blocks of 4 KiB or more.
    pub fn new(bytes_max: u64) -> BlockCache {
        BlockCache::with_block_bytes(bytes_max, BLOCK_BYTES)
    }

    /// As [`new`](Self::new), for blocks of about `block_bytes`. More blocks that are smaller only make the memory of
    /// evicted blocks that are remembered too short.
    pub(crate) fn with_block_bytes(bytes_max: u64, block_bytes: u64) -> BlockCache {
        let block_bytes = block_bytes.max(512);
        let parts = (bytes_max / PART_BYTES).clamp(1, PARTS_MAX).next_power_of_two();
        let count = (bytes_max / block_bytes).max(1) as usize;
        let fullness: Arc<Fullness> = Arc::default();
        let lifecycle = Evictions(fullness.clone());
        let mut options = OptionsBuilder::new();
        options.shards(parts as usize).estimated_items_capacity(count).weight_capacity(bytes_max);
        let blocks = match options.build() {
            Ok(options) => Map::with_options(options, ByMemory, Mix, lifecycle),
            // Cannot happen: all required settings are set.
            Err(_) => Map::with(1, bytes_max, ByMemory, Mix, lifecycle),
        };
        // Tables that grow by doubling would hold twice the memory that they use. The system allocates memory when it is first
        // touched, so capacity in advance costs nothing.
        blocks.reserve((bytes_max / (block_bytes + OVERHEAD_BYTES)) as usize);
        BlockCache {
            blocks,
            bytes_max: Mutex::new(bytes_max),
            block_bytes,
            offered: OnceLock::new(),
            part_bytes: bytes_max / parts,
            remembered: count as u64,
            stripes: Box::default(),
            fullness,
        }
    }

    /// Returns the block of an owner at `offset`, and counts a hit or a miss. Takes about 50 ns; makes no system call and allocates
    /// nothing.
    #[inline]
    pub fn get(&self, owner: u64, offset: u64) -> Option<Block> {
        let found = self.get_if_there(owner, offset);
        if found.is_none() {
            self.stripe().misses.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// As [`get`](Self::get), without counting that a block is absent: for callers that look again before they read. For `forebay-kv`.
    #[doc(hidden)]
    pub fn get_if_there(&self, owner: u64, offset: u64) -> Option<Block> {
        let at = At { owner, offset };
        let found = self.blocks.get(&at).or_else(|| self.wanted_again(at))?;
        self.stripe().hits.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// Returns a block of the window, and moves it into the map unless it is in lent memory.
    fn wanted_again(&self, at: At) -> Option<Block> {
        let (block, stays) = self.offered.get()?.window.wanted(&at)?;
        if !stays {
            self.insert(at.owner, at.offset, &block);
        }
        Some(block)
    }

    /// As [`get`](Self::get), for a future: returns also whether it should yield. That is so once in `every` hits.
    #[inline]
    pub(crate) fn get_awaited(&self, owner: u64, offset: u64, every: u64) -> (Option<Block>, bool) {
        let found = self.blocks.get(&At { owner, offset });
        let stripe = self.stripe();
        if found.is_none() {
            stripe.misses.fetch_add(1, Ordering::Relaxed);
            return (None, false);
        }
        let before = stripe.awaited.fetch_add(1, Ordering::Relaxed);
        (found, (before + 1).is_multiple_of(every))
    }

    #[inline]
    fn stripe(&self) -> &Stripe {
        &self.stripes[thread_number() % STRIPES]
    }

    /// As [`get`](Self::get), without counting: for callers that only check whether the block is there. For `forebay-kv`.
    #[doc(hidden)]
    pub fn peek(&self, owner: u64, offset: u64) -> Option<Block> {
        let at = At { owner, offset };
        self.blocks.get(&at).or_else(|| self.offered.get()?.window.peek(&at))
    }

    /// Inserts a block, or replaces the present one. A block that pins much more memory than its length, such as a short slice of
    /// a long block, is not inserted.
    pub fn insert(&self, owner: u64, offset: u64, block: &Block) {
        if self.admits(block) {
            self.stripe().insertions.fetch_add(1, Ordering::Relaxed);
            self.blocks.insert(At { owner, offset }, block.clone());
            if self.fullness.lowered.load(Ordering::Relaxed) > 0 {
                self.raise(weight_of(block.pinned_bytes() as u64));
            }
        }
    }

    /// Raises a lowered limit, once as many bytes were inserted as were evicted. Raised immediately, it would change once more each
    /// time, and the next reads would find no memory again.
    #[cold]
    fn raise(&self, bytes: u64) {
        let less = |lowered: u64| (lowered > 0).then(|| lowered.saturating_sub(bytes));
        let lowered = self.fullness.lowered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if lowered.is_ok_and(|lowered| lowered <= bytes) {
            let bytes_max = self.lock();
            self.limit_map(*bytes_max);
        }
    }

    /// Inserts a block that was read if it was offered recently. Returns whether it was inserted.
    ///
    /// For readers that gain only from blocks that are read again: blocks that are read once neither evict others nor use new
    /// memory. A block that is not inserted stays in a window of up to 64 blocks, and of a 32nd of the limit; a [`get`](Self::get)
    /// of it inserts it. An offer is remembered until as many other blocks were offered as fit into the limit with which the cache
    /// was made, and for twice as many at most; so data that fit into the cache are resident after two passes. One in fifty blocks
    /// is inserted at its first offer. Takes 0.15 us without an insertion.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # use forebay_cache::BlockCache;
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open("Cargo.toml", Open::read()).wait()?;
    /// # let blocks = BlockCache::new(1 << 20);
    /// let block = file.read_up_to(0..4096).wait()?;
    /// assert!(!blocks.offer(1, 0, &block)); // the first time
    /// assert!(blocks.offer(1, 0, &block));
    /// assert_eq!(blocks.get(1, 0), Some(block));
    /// assert_eq!((blocks.stats().refusals, blocks.stats().insertions), (1, 1));
    /// # Ok(()) }
    /// ```
    ///
    /// For `forebay-kv`.
    #[doc(hidden)]
    pub fn offer(&self, owner: u64, offset: u64, block: &Block) -> bool {
        if !self.admits(block) {
            return false;
        }
        let at = At { owner, offset };
        let offered = self.offered();
        if offered.doorkeeper.note(owner, offset) {
            drop(offered.window.take(&at));
            self.insert(owner, offset, block);
            return true;
        }
        self.stripe().refusals.fetch_add(1, Ordering::Relaxed);
        for (at, block) in offered.window.push(at, block) {
            self.insert(at.owner, at.offset, &block);
            // It was wanted there, so it is in the map.
            self.blocks.get(&at);
        }
        false
    }

    /// Inserts a block that was read if it fits without an eviction. Returns whether it was inserted. The map has room if the
    /// last [`look_for_room`](Self::look_for_room) found some, until that is used up or a block is evicted, because the parts of
    /// the map fill up at different times. [`give_up`](Self::give_up) adds to it. Without room, lent memory is filled. For
    /// `forebay-kv`.
    #[doc(hidden)]
    pub fn fill(&self, owner: u64, offset: u64, block: &Block) -> bool {
        if !self.admits(block) {
            return false;
        }
        if self.takes_room(block) {
            self.insert(owner, offset, block);
            return true;
        }
        let at = At { owner, offset };
        let is_filled = self.offered.get().is_some_and(|offered| offered.window.fill(at, block));
        self.stripe().insertions.fetch_add(u64::from(is_filled), Ordering::Relaxed);
        is_filled
    }

    fn takes_room(&self, block: &Block) -> bool {
        let (room, weight) = (&self.fullness.room, weight_of(block.pinned_bytes() as u64));
        let less = |left: u64| left.checked_sub(weight);
        room.load(Ordering::Relaxed) >= weight
            && room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Returns whether the map has room for a block that pins `memory_bytes`, as [`fill`](Self::fill) counts it. For
    /// `forebay-kv`.
    #[doc(hidden)]
    pub fn has_room(&self, memory_bytes: u64) -> bool {
        self.fullness.room.load(Ordering::Relaxed) >= weight_of(memory_bytes)
    }

    /// Returns the bytes of a block above which a part of the map would hold too few of them. For `forebay-kv`.
    #[doc(hidden)]
    pub fn block_bytes_max(&self) -> u64 {
        self.part_bytes / BLOCKS_MIN
    }

    /// Removes a block that is no longer needed, and leaves its room to the next [`fill`](Self::fill). For `forebay-kv`.
    #[doc(hidden)]
    pub fn give_up(&self, owner: u64, offset: u64) {
        if let Some((_, block)) = self.blocks.remove(&At { owner, offset }) {
            self.fullness.room.fetch_add(weight_of(block.pinned_bytes() as u64), Ordering::Relaxed);
        }
    }

    /// Measures the free space of the map, for [`fill`](Self::fill). Takes each part's lock for a moment. For `forebay-kv`.
    #[doc(hidden)]
    pub fn look_for_room(&self) {
        let bytes_max = {
            let _limit = self.lock();
            self.blocks.capacity()
        };
        // The rest, with which no part can hold one more block, counts as full.
        let room = (bytes_max - bytes_max / FULL_PART).saturating_sub(self.blocks.weight());
        self.fullness.room.store(room, Ordering::Relaxed);
    }

    /// Records that a block was read, like an [`offer`](Self::offer), when the caller has no [`Block`]. Returns whether it was
    /// offered or noted recently; if so, the next offer of it inserts it. For `forebay-kv`.
    #[doc(hidden)]
    pub fn note(&self, owner: u64, offset: u64) -> bool {
        let is_wanted = self.offered().doorkeeper.note(owner, offset);
        if !is_wanted {
            self.stripe().refusals.fetch_add(1, Ordering::Relaxed);
        }
        is_wanted
    }

    /// Lends the cache up to `bytes` bytes beyond its limit, in steps of one block of the usual length, until they are withdrawn.
    /// Returns the bytes. For `forebay-kv`.
    #[doc(hidden)]
    pub fn lend(&self, bytes: u64) -> u64 {
        self.offered().window.lend(bytes)
    }

    /// Withdraws one step of lent memory. At most one block of the usual length is evicted for it. Returns the bytes, 0 if nothing
    /// is lent. For `forebay-kv`.
    #[doc(hidden)]
    pub fn take_back(&self) -> u64 {
        self.offered.get().map_or(0, |offered| offered.window.take_back())
    }

    /// Returns the bytes that are lent. For `forebay-kv`.
    #[doc(hidden)]
    pub fn lent_bytes(&self) -> u64 {
        self.offered.get().map_or(0, |offered| offered.window.lent_bytes())
    }

    fn offered(&self) -> &OfferHistory {
        if let Some(offered) = self.offered.get() {
            return offered;
        }
        // With the lock, so that no limit is set in between.
        let bytes_max = self.lock();
        let offered = self.offered.get_or_init(|| OfferHistory {
            doorkeeper: Doorkeeper::new(self.remembered),
            window: Window::new(*bytes_max, self.block_bytes),
        });
        self.limit_map(*bytes_max);
        offered
    }

    /// Changes the limit of the map, in steps: at each change every part of it forgets one of the evicted blocks that it remembers,
    /// and a part without remembered blocks keeps nothing for good that it evicts before the next get. A lowered limit has a step
    /// to spare.
    fn limit_map(&self, bytes_max: u64) {
        let (wanted, now) = (self.map_bytes_max(bytes_max), self.blocks.capacity());
        let step = wanted / STEPS;
        if wanted < now || wanted >= now + 3 * step {
            self.blocks.set_capacity(wanted - step);
        }
    }

    /// Returns the part of the limit outside of the window.
    fn map_bytes_max(&self, bytes_max: u64) -> u64 {
        match self.offered.get() {
            Some(_) => bytes_max - Window::bytes_of(bytes_max, self.block_bytes),
            None => bytes_max,
        }
    }

    /// Returns whether a block keeps little more memory than its length.
    pub(crate) fn admits(&self, block: &Block) -> bool {
        block.pinned_bytes() as u64 <= 2 * (block.len() as u64).max(self.block_bytes)
    }

    /// Removes a block and returns it.
    pub fn remove(&self, owner: u64, offset: u64) -> Option<Block> {
        let at = At { owner, offset };
        let recent = self.offered.get().and_then(|offered| offered.window.take(&at));
        self.blocks.remove(&at).map(|(_, block)| block).or(recent)
    }

    /// Removes the blocks of an owner whose offsets are in a range, in a pass over all blocks. For tests.
    #[doc(hidden)]
    pub fn remove_range(&self, owner: u64, offsets: Range<u64>) {
        let keeps = |at: &At| at.owner != owner || !offsets.contains(&at.offset);
        if let Some(offered) = self.offered.get() {
            offered.window.retain(keeps);
        }
        self.blocks.retain(|at, _| keeps(at));
    }

    /// Removes all blocks.
    pub fn clear(&self) {
        if let Some(offered) = self.offered.get() {
            offered.window.retain(|_| false);
        }
        self.blocks.clear();
    }

    /// Changes the limit; blocks beyond it are evicted immediately.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        let mut now = self.lock();
        *now = bytes_max;
        if let Some(offered) = self.offered.get() {
            offered.window.set_bytes_max(Window::bytes_of(bytes_max, self.block_bytes));
        }
        self.limit_map(bytes_max);
    }

    /// Evicts an eighth of the blocks, and at least 1 MiB, if `error` reports that the engine has no I/O memory left. The lower
    /// limit holds until as many bytes were inserted. Returns whether another attempt is worthwhile. For `forebay-kv`.
    #[doc(hidden)]
    pub fn give_way(&self, error: &Error) -> bool {
        if !error.is_out_of_memory() {
            return false;
        }
        let _limit = self.lock();
        let weight = self.blocks.weight();
        let has_given = self.offered.get().is_some_and(|offered| offered.window.give_way());
        match weight {
            0 => return has_given,
            _ if weight < 2 * GIVEN_BYTES => self.blocks.clear(),
            _ => {
                let given = (weight / 8).max(GIVEN_BYTES);
                self.blocks.set_capacity(weight - given);
                self.fullness.lowered.store(given, Ordering::Relaxed);
            }
        }
        true
    }

    /// Returns the figures now. Takes each part's lock for a moment.
    pub fn stats(&self) -> BlockStats {
        let sum = |count: fn(&Stripe) -> &AtomicU64| {
            self.stripes.iter().map(|stripe| count(stripe).load(Ordering::Relaxed)).sum::<u64>()
        };
        let (blocks, bytes) = self.offered.get().map_or((0, 0), |offered| offered.window.size());
        BlockStats {
            bytes_max: *self.lock() + self.lent_bytes(),
            bytes: self.blocks.weight() + bytes,
            blocks: self.blocks.len() as u64 + blocks,
            hits: sum(|stripe| &stripe.hits) + sum(|stripe| &stripe.awaited),
            misses: sum(|stripe| &stripe.misses),
            insertions: sum(|stripe| &stripe.insertions),
            refusals: sum(|stripe| &stripe.refusals),
            evictions: self.fullness.evictions.load(Ordering::Relaxed),
        }
    }

    /// Returns the number of blocks, without the rest of the figures.
    pub(crate) fn len(&self) -> u64 {
        self.blocks.len() as u64
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.bytes_max.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

forebay::_debug_parts!(BlockCache, |block_cache| stats: block_cache.stats());

/// Weighs blocks by the memory that they keep from other use.
#[derive(Clone, Debug)]
struct ByMemory;

impl Weighter<At, Block> for ByMemory {
    fn weight(&self, _: &At, block: &Block) -> u64 {
        weight_of(block.pinned_bytes() as u64)
    }
}

/// Returns the bytes that a block counts with, of the memory that it keeps from other use.
pub(crate) fn weight_of(pinned_bytes: u64) -> u64 {
    pinned_bytes + OVERHEAD_BYTES
}

/// Counts evictions, and drops evicted blocks after the lock.
#[derive(Clone, Debug)]
struct Evictions(Arc<Fullness>);

impl Lifecycle<At, Block> for Evictions {
    /// One insertion evicts one block in most cases; further blocks are dropped immediately.
    type RequestState = [Option<Block>; 2];

    fn before_evict(&self, _: &mut Self::RequestState, _: &At, _: &mut Block) {
        self.0.evictions.fetch_add(1, Ordering::Relaxed);
        self.0.room.store(0, Ordering::Relaxed);
    }

    fn on_evict(&self, state: &mut Self::RequestState, _: At, block: Block) {
        if let Some(place) = state.iter_mut().find(|place| place.is_none()) {
            *place = Some(block);
        }
    }
}

/// A hasher that is the same in every process, so that a simulated run repeats itself. The keys are the program's
/// own numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mix;

pub(crate) struct Mixer(u64);

impl BuildHasher for Mix {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer(0)
    }
}

/// Returns the hash of a key, of which every bit depends on every bit of the key.
pub(crate) fn hash_of(at: &At) -> u64 {
    Mix.hash_one(at)
}

impl Hash for At {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.offset ^ self.owner.rotate_left(40));
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
