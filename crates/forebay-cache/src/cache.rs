//! The cache: its options, its figures, and the files that it knows.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use forebay::{Engine, File, MemoryReservation, Open, Result, Waitable};

use crate::blocks::{BlockCache, BlockStats};
use crate::file::{CachedFile, FileState};
use crate::flight::Flights;
use crate::read::ReadMany;

/// Settings of a [`Cache`].
///
/// ```
/// use forebay_cache::CacheOptions;
///
/// let options = CacheOptions::new().bytes_max(64 << 20).page_bytes(16 << 10);
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "give it to Cache::new"]
pub struct CacheOptions {
    bytes_max: Option<u64>,
    page_bytes: Option<u64>,
    bypass_bytes: Option<u64>,
}

/// The default size of a page.
const PAGE_BYTES: u64 = 4096;
const PAGE_BYTES_MIN: u64 = 4096;
const PAGE_BYTES_MAX: u64 = 256 << 10;
/// The default for the longest range that is cached.
const BYPASS_BYTES: u64 = 1 << 20;

impl CacheOptions {
    /// Returns the default settings.
    pub fn new() -> CacheOptions {
        CacheOptions::default()
    }

    /// Sets the limit in bytes, the map's own memory included. Default: half of [`Engine::memory_unreserved`]. The limit is
    /// reserved from the engine's I/O memory. With less than a page nothing is cached, and every read goes to the device.
    pub fn bytes_max(mut self, bytes: u64) -> Self {
        self.bytes_max = Some(bytes);
        self
    }

    /// Sets the bytes of a page, the unit of caching: a power of two from 4 KiB to 256 KiB; others are rounded up,
    /// and those longer than half of the cache are halved until it can keep one. Default: 4 KiB, right for small
    /// records at random places. Larger pages need fewer entries (160 bytes each), and suit ranges that lie together.
    pub fn page_bytes(mut self, bytes: u64) -> Self {
        self.page_bytes = Some(bytes);
        self
    }

    /// Sets the longest range that is cached; longer ranges bypass the cache. Default: 1 MiB, or a sixteenth of the cache if that
    /// is less. For tests.
    #[doc(hidden)]
    pub fn bypass_above(mut self, bytes: u64) -> Self {
        self.bypass_bytes = Some(bytes);
        self
    }
}

/// A bounded cache of pages of an engine's files. A handle; clones share the cache.
///
/// It keeps the engine: the engine ends after the last handle of the cache and of its files.
///
/// ```
/// use forebay::{Config, Engine, Open};
/// use forebay_cache::{Cache, CacheOptions};
///
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new())?;
/// let cache = Cache::new(&engine, CacheOptions::new().bytes_max(16 << 20))?;
/// let file = cache.open("Cargo.toml", Open::read()).wait()?;
/// let from_device = file.read(1..8).wait()?;
/// let from_memory = file.read(1..8).wait()?;
/// assert_eq!((&from_device[..], &from_memory[..]), (&b"package"[..], &b"package"[..]));
/// assert_eq!(cache.stats().reads, 1);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Cache {
    core: Arc<Core>,
}

/// The state that handles, files and reads share.
pub(crate) struct Core {
    pub(crate) engine: Engine,
    pub(crate) blocks: BlockCache,
    pub(crate) flights: Flights,
    pub(crate) page_bytes: u64,
    pub(crate) bypass_bytes: u64,
    /// Files by the number of the engine's.
    files: Mutex<BTreeMap<u64, Weak<FileState>>>,
    /// The number of the next file here. The engine's numbers differ from run to run of a simulated world.
    next_file: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    joined: AtomicU64,
    bypassed_bytes: AtomicU64,
    _reserved: MemoryReservation,
}

/// Figures of a [`Cache`] since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Pages in the cache; hits and misses count pages.
    pub pages: BlockStats,
    /// Reads of the device for missing pages. Neighbouring pages are one read.
    pub reads: u64,
    /// Bytes requested by these reads; fewer are read at the end of a file.
    pub read_bytes: u64,
    /// Missing pages that another task was reading already.
    pub joined: u64,
    /// Bytes of ranges that were too long for the cache.
    pub bypassed_bytes: u64,
}

impl Cache {
    /// Returns an empty cache for files of `engine`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](forebay::ErrorKind::InvalidInput) if the engine has promised too much of its I/O
    /// memory to others: raise [`Config::arena_bytes_max`](forebay::Config::arena_bytes_max) or lower
    /// [`bytes_max`](CacheOptions::bytes_max).
    pub fn new(engine: &Engine, options: CacheOptions) -> Result<Cache> {
        let bytes_max = options.bytes_max.unwrap_or_else(|| engine.memory_unreserved() / 2);
        let page_bytes = options.page_bytes.unwrap_or(PAGE_BYTES).clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX);
        // A page that does not fit would be read for each record in it, and never kept.
        let fitting = 1_u64 << (bytes_max / 2).max(PAGE_BYTES_MIN).ilog2();
        let page_bytes = page_bytes.next_power_of_two().min(fitting);
        let reserved = engine.reserve_memory(bytes_max)?;
        let core = Core {
            engine: engine.clone(),
            blocks: BlockCache::with_block_bytes(bytes_max, page_bytes),
            flights: Flights::new(),
            page_bytes,
            bypass_bytes: options
                .bypass_bytes
                .unwrap_or_else(|| BYPASS_BYTES.min(bytes_max / 16))
                .max(page_bytes),
            files: Mutex::default(),
            next_file: AtomicU64::new(1),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            joined: AtomicU64::new(0),
            bypassed_bytes: AtomicU64::new(0),
            _reserved: reserved,
        };
        Ok(Cache { core: Arc::new(core) })
    }

    /// Opens a file and returns it with this cache. Each call makes a separate file with separate pages: open a file once, and
    /// clone the handle.
    ///
    /// # Errors
    /// Those of [`Engine::open`].
    pub fn open(
        &self,
        path: impl AsRef<Path>,
        open: Open,
    ) -> Waitable<impl Future<Output = Result<CachedFile>> + Send + 'static> {
        let (cache, opening) = (self.clone(), self.core.engine.open(path, open));
        Waitable::new("open", async move { Ok(cache.file(opening.await?)) })
    }

    /// Returns a file of the engine with this cache. Handles of one opened file share their pages; the same path opened twice is
    /// two files. The pages are removed with the last handle.
    pub fn file(&self, file: File) -> CachedFile {
        let mut files = self.core.lock_files();
        if let Some(shared) = files.get(&file.id()).and_then(Weak::upgrade) {
            return CachedFile::new(shared);
        }
        let number = self.core.next_file.fetch_add(1, Ordering::Relaxed);
        let id = file.id();
        let shared = Arc::new(FileState::new(self.core.clone(), number, file));
        files.insert(id, Arc::downgrade(&shared));
        CachedFile::new(shared)
    }

    /// Returns a read of many ranges of any files of the cache, up to 1 GiB each, all in flight concurrently. Each has its own
    /// result, in the order of the ranges. Missing pages that follow each other are read together where their ranges follow each
    /// other as well, so sort them.
    ///
    /// Results keep up to 16 MiB of I/O memory, or a quarter of it if that is less. Those beyond are copied into ordinary memory, as
    /// by [`File::read_many`].
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # use forebay_cache::{Cache, CacheOptions};
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// # let cache = Cache::new(&engine, CacheOptions::new().bytes_max(16 << 20))?;
    /// let (first, second) = (cache.open("Cargo.toml", Open::read()), cache.open("README.md", Open::read()));
    /// let (first, second) = (first.wait()?, second.wait()?);
    /// let blocks = cache.read_many([(&first, 1..8), (&second, 0..9)]).wait()?;
    /// assert_eq!(blocks[0].as_ref().map(|block| block.len()).ok(), Some(7));
    /// # Ok(()) }
    /// ```
    pub fn read_many<'f>(&self, ranges: impl IntoIterator<Item = (&'f CachedFile, Range<u64>)>) -> ReadMany {
        ReadMany::new(&self.core, ranges.into_iter().map(|(file, range)| (file.shared().clone(), range)))
    }

    /// Returns the bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.core.page_bytes
    }

    /// Returns the engine of the files.
    pub fn engine(&self) -> &Engine {
        &self.core.engine
    }

    /// Removes all pages. Reads in flight continue, and their pages are inserted.
    pub fn clear(&self) {
        self.core.blocks.clear();
    }

    /// Returns the current statistics. Locks each part of the cache in turn, briefly.
    pub fn stats(&self) -> CacheStats {
        let core = &self.core;
        CacheStats {
            pages: core.blocks.stats(),
            reads: core.reads.load(Ordering::Relaxed),
            read_bytes: core.read_bytes.load(Ordering::Relaxed),
            joined: core.joined.load(Ordering::Relaxed),
            bypassed_bytes: core.bypassed_bytes.load(Ordering::Relaxed),
        }
    }
}

impl Core {
    pub(crate) fn lock_files(&self) -> MutexGuard<'_, BTreeMap<u64, Weak<FileState>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count_read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_joined(&self) {
        self.joined.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_bypassed(&self, bytes: u64) {
        self.bypassed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

forebay::_debug_parts!(Cache, |cache| stats: cache.stats());
