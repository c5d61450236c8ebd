//! A file with its cached pages.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::{Block, File, ScanBuilder};

use crate::blocks::At;
use crate::cache::Core;
use crate::read::{Read, ReadMany, from_memory};
use crate::write::{Write, Writes};

/// A file of an engine, read through a [`Cache`](crate::Cache). A handle; clones are cheap and share the pages.
///
/// Pages are right as long as the file is changed through [`write`](CachedFile::write) alone. After any other change
/// (through [`file`](CachedFile::file), by another program, a truncation) call [`invalidate`](CachedFile::invalidate).
///
/// | task | method |
/// |---|---|
/// | read a range, from memory or from the device | [`read`](CachedFile::read), [`read_up_to`](CachedFile::read_up_to) |
/// | read a range only if it is in memory | [`get`](CachedFile::get) |
/// | read many ranges | [`read_many`](CachedFile::read_many), [`Cache::read_many`](crate::Cache::read_many) |
/// | read from front to back, past the cache | [`scan`](CachedFile::scan) |
/// | write | [`write`](CachedFile::write), [`write_block`](CachedFile::write_block) |
/// | forget pages | [`invalidate`](CachedFile::invalidate) |
#[derive(Clone)]
pub struct CachedFile {
    shared: Arc<FileState>,
}

/// The state of a file that handles and reads share.
pub(crate) struct FileState {
    core: Arc<Core>,
    /// The file's number in the cache.
    id: u64,
    file: File,
    pub(crate) writes: Writes,
    /// One more than the highest page that was ever in the cache.
    pages_seen: AtomicU64,
    /// One more than the number of the short page at the end of the file, if it is cached; otherwise 0. No other short page is
    /// cached.
    short_page: AtomicU64,
}

impl CachedFile {
    pub(crate) fn new(shared: Arc<FileState>) -> CachedFile {
        CachedFile { shared }
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<FileState> {
        &self.shared
    }

    /// Returns a read of exactly the bytes of `range`: any offset, and up to 1 GiB.
    ///
    /// Pages in memory cost about 100 ns, on the caller's thread, without a system call. A range within one page shares the
    /// page's memory; a range over several pages is copied into a new block, unless a single read fetched all of it. Missing
    /// pages are read with one request for all that follow each other, up to 256 KiB; a page that another task is reading already
    /// is not read twice. After 64 hits a future returns `Pending` once, so that a task whose reads all hit does not hold its
    /// thread.
    ///
    /// A block pins its page's memory for as long as the program has it, also when the page is evicted. Dropping the future cancels
    /// the read unless others wait for it.
    ///
    /// # Errors
    /// Those of [`File::read`]. Errors are not cached.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # use forebay_cache::{Cache, CacheOptions};
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// # let cache = Cache::new(&engine, CacheOptions::new().bytes_max(16 << 20))?;
    /// let file = cache.open("Cargo.toml", Open::read()).wait()?;
    /// assert_eq!(&file.read(1..8).wait()?[..], b"package");
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn read(&self, range: Range<u64>) -> Read<'_> {
        Read::new(self, range, true)
    }

    /// Like [`read`](Self::read), but only up to the end of the file: the result may be shorter than `range`, or empty.
    ///
    /// # Errors
    /// Those of [`File::read_up_to`].
    #[inline]
    pub fn read_up_to(&self, range: Range<u64>) -> Read<'_> {
        Read::new(self, range, false)
    }

    /// Returns exactly the bytes of `range` if all its pages are in memory, and counts hits and misses. Takes about
    /// 70 ns; makes no system call. Never waits; a range over several pages is copied.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # use forebay_cache::{Cache, CacheOptions};
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// # let cache = Cache::new(&engine, CacheOptions::new().bytes_max(16 << 20))?;
    /// let file = cache.open("Cargo.toml", Open::read()).wait()?;
    /// assert_eq!(file.get(1..8), None);
    /// file.read(0..9).wait()?;
    /// assert_eq!(file.get(1..8).as_deref(), Some(&b"package"[..]));
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn get(&self, range: Range<u64>) -> Option<Block> {
        from_memory(&self.shared, range)
    }

    /// Returns a read of many ranges of the file, all in flight concurrently; see [`Cache::read_many`](crate::Cache::read_many).
    pub fn read_many(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> ReadMany {
        ReadMany::new(self.shared.core(), ranges.into_iter().map(|range| (self.shared.clone(), range)))
    }

    /// Returns a builder for a scan of the file, past the cache: it neither uses nor admits pages. It is
    /// [`File::scan`], with its read-ahead.
    pub fn scan(&self) -> ScanBuilder {
        self.shared.file.scan()
    }

    /// Returns a write of a copy of `data` at `offset`: to the device first, then to those pages that are in memory.
    ///
    /// While it is in flight, its range is not cached: reads get the device's current contents. A read that starts after the write
    /// has completed returns the written bytes. Pages that were not cached before are not inserted. After an error the range's
    /// pages are not cached. A write in flight continues when its future is dropped. For durability follow it with [`File::sync`]
    /// of [`file`](Self::file).
    ///
    /// # Errors
    /// Those of [`File::write`]: on a direct file offset and length must be multiples of
    /// [`Alignment::offset`](forebay::Alignment::offset).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # use forebay_cache::{Cache, CacheOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let cache = Cache::new(&engine, CacheOptions::new().bytes_max(16 << 20))?;
    /// let file = cache.open(dir.path().join("data"), Open::create()).wait()?;
    /// file.write(0, vec![7; 4096]).wait()?;
    /// assert_eq!(&file.read(10..12).wait()?[..], [7, 7]);
    /// file.write(0, vec![8; 4096]).wait()?;
    /// assert_eq!(file.get(10..12).as_deref(), Some(&[8, 8][..])); // the page was in memory and still is
    /// # Ok(()) }
    /// ```
    pub fn write(&self, offset: u64, data: impl AsRef<[u8]>) -> Write {
        Write::copied(&self.shared, offset, data.as_ref())
    }

    /// As [`write`](Self::write), of a block, without a copy.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn write_block(&self, offset: u64, data: Block) -> Write {
        Write::new(&self.shared, offset, Ok(data))
    }

    /// Removes all pages that overlap `range`: `..` for the whole file is `0..u64::MAX`. Reads in flight do not insert their
    /// pages; later reads are read from the device. A long range costs a pass over all pages of the cache.
    pub fn invalidate(&self, range: Range<u64>) {
        self.shared.invalidate(range);
    }

    /// Returns the underlying file, for calls that do not use the cache: its length, syncs, attributes.
    pub fn file(&self) -> &File {
        &self.shared.file
    }
}

impl FileState {
    pub(crate) fn new(core: Arc<Core>, id: u64, file: File) -> FileState {
        let writes = Writes::default();
        FileState { core, id, file, writes, pages_seen: AtomicU64::new(0), short_page: AtomicU64::new(0) }
    }

    #[inline]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    #[inline]
    pub(crate) fn page_bytes(&self) -> u64 {
        self.core.page_bytes
    }

    pub(crate) fn at(&self, page: u64) -> At {
        At { owner: self.id, offset: page * self.page_bytes() }
    }

    /// Returns the count of starts and ends of writes.
    pub(crate) fn epoch(&self) -> u64 {
        self.writes.epoch()
    }

    /// Puts a page into the cache that a read brought, unless a write makes it doubtful. The caller holds the lock of
    /// the page's table, in which it found the read.
    pub(crate) fn admit(&self, page: u64, block: &Block, epoch: u64) {
        let is_short = (block.len() as u64) < self.page_bytes();
        if is_short {
            // Before the check for writes: a write that starts after it finds the page's number here.
            let before = self.short_page.swap(page + 1, Ordering::SeqCst);
            if let Some(old) = before.checked_sub(1).filter(|old| *old != page) {
                // The file ended there before it was changed elsewhere. Only one page's number is known here.
                drop(self.core.blocks.remove(self.id, old * self.page_bytes()));
            }
            if !self.writes.is_quiet_since(epoch) {
                return;
            }
        } else if self.writes.is_writing(page) {
            return;
        }
        self.put(page, block);
        if is_short && self.short_page.load(Ordering::SeqCst) != page + 1 {
            // Another short page was found at the same time, and a write would remove that one alone.
            drop(self.core.blocks.remove(self.id, page * self.page_bytes()));
        }
    }

    pub(crate) fn put(&self, page: u64, block: &Block) {
        self.pages_seen.fetch_max(page + 1, Ordering::Relaxed);
        self.core.blocks.insert(self.id, page * self.page_bytes(), block);
    }

    /// Removes the page at the end of the file, which a write may have made longer.
    pub(crate) fn sweep_short_page(&self) {
        if let Some(page) = self.short_page.swap(0, Ordering::SeqCst).checked_sub(1) {
            drop(self.core.flights.sweep(self, page));
        }
    }

    fn invalidate(&self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (first, last) = (range.start / self.page_bytes(), (range.end - 1) / self.page_bytes());
        self.writes.doubt(first, last);
        if last - first < self.core.blocks.len().max(64) {
            (first..=last).for_each(|page| drop(self.core.flights.sweep(self, page)));
        } else {
            let offsets = first * self.page_bytes()..range.end;
            self.core.flights.sweep_range(self, offsets);
        }
    }
}

impl Drop for FileState {
    fn drop(&mut self) {
        let mut files = self.core.lock_files();
        // Another file may have the entry since the last handle was dropped.
        if files.get(&self.file.id()).is_some_and(|file| file.strong_count() == 0) {
            files.remove(&self.file.id());
        }
        drop(files);
        let pages = self.pages_seen.load(Ordering::Relaxed);
        if pages <= self.core.blocks.len().max(64) {
            (0..pages).for_each(|page| drop(self.core.blocks.remove(self.id, page * self.page_bytes())));
        } else {
            self.core.blocks.remove_range(self.id, 0..u64::MAX);
        }
    }
}

forebay::_debug_parts!(CachedFile, |cached_file| file: cached_file.shared.file);
