//! The page cache of a file: whether it has a range, and the bytes if it does, without a request to a device.
//!
//! An adaptive file has a second descriptor, without `O_DIRECT`, for these reads alone: the *view*. preadv2(2) with `RWF_NOWAIT`
//! through it waits for no device, but it may start one: up to some release after Linux 6.11 the flag implied `IOCB_NOIO`, and on
//! 6.18 a read of an uncached page starts read-ahead (12 us, and the pages are added to the page cache). So cachestat(2) checks
//! first whether all pages are cached (0.4 us), and only then they are read. After a thousand hits in a row a file's reads skip
//! that check, until one of them finds a page missing (`hit_rate.rs`). That read may load a window.
//!
//! A read that the page cache does not serve reads from the device: bypassing the page cache, or through the view, which leaves its
//! bytes there (`loads.rs`). Its request is the same in all else; `FileCore::loading_view` decides where the request is made.
//!
//! A page may carry a mark at which the read-ahead of another program's sequential stream continues. A reader of it starts that
//! read-ahead. A sequential read would hit one mark after the other and load the file, so it needs the two windows behind it to be
//! cached as well: then nothing is left to load.

mod hit_rate;
mod loads;
mod miss_record;
#[cfg(target_os = "linux")]
mod view;

#[cfg(target_os = "linux")]
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::io::stats::{PageCacheCounts, PageCacheSum};
use crate::memory::block::Block;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::open_file::FileCore;
use hit_rate::HitRate;
use loads::Loads;
pub(crate) use loads::PaidWindow;

/// The longest range that is copied by one poll: about half a millisecond. A longer lone read of an adaptive file is made in parts.
pub(crate) const TRY_BYTES_MAX: u64 = 4 << 20;
/// A read of at least this many bytes always tries: a failed attempt is a hundredth of the device's time, and a file may have few
/// such reads (a footer, a column).
const TRY_ALWAYS_BYTES: u64 = 256 << 10;
/// The part of a file for which one check costs less than a check for each read: at worst 15 ns a page.
const LOOK_BYTES_A_READ: u64 = 16 * 4096;
/// A read that starts this far behind the end of the previous read is sequential.
const GAP_BYTES: u64 = 64 << 10;
/// How far such a read looks ahead where the one before it found all: 4 us.
const AHEAD_BYTES: u64 = 1 << 20;

/// Which reads try the page cache, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tries {
    /// Every lone read of a buffered file, which fills the page cache anyway.
    All,
    /// As the hit rate says, after cachestat(2).
    Checked,
    /// As the hit rate says. The kernel is older than cachestat(2) (6.5), and its `RWF_NOWAIT` starts no reads.
    Unchecked,
}

/// The page cache's side of one open file.
pub(crate) struct PageCache {
    /// `None` where the file's own descriptor has no `O_DIRECT`.
    view: Option<OwnedFd>,
    tries: Tries,
    /// The file system refuses `RWF_NOWAIT`.
    is_off: AtomicBool,
    rate: HitRate,
    /// `None` where only the reads that always load the page cache do.
    loading: Option<FileLoads>,
    /// The longest lone read that is copied by one poll. A long read allocates in the line, on the file's shard.
    lone_bytes_max: u64,
    counts: Arc<PageCacheCounts>,
    /// The device's read-ahead.
    window_bytes: u64,
    /// The sequence of the lone reads.
    end: AtomicU64,
    known_until: AtomicU64,
}

/// A file's part in its engine's loads.
pub(crate) struct FileLoads {
    pub(crate) loads: Arc<Loads>,
    /// A hash of the file's identity: the same for each open file of it.
    pub(crate) file: u64,
    pub(crate) window: PaidWindow,
}

/// Reads that may follow one another: those of a scan, of a batch, or a file's lone reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    /// The end of the last one.
    end: u64,
    /// Pages up to here were cached at the last look.
    known_until: u64,
    /// The start of that check, in a sequence that is over before pages are evicted; `u64::MAX` in others, whose reads check
    /// individually.
    known_from: u64,
}

impl Sequence {
    /// Returns a sequence without a read.
    pub(crate) const NEW: Sequence = Sequence { end: u64::MAX, known_until: 0, known_from: u64::MAX };

    /// Returns a sequence without a read, whose reads follow directly: the result of one check holds for all.
    pub(crate) const BATCH: Sequence = Sequence { known_from: 0, ..Sequence::NEW };

    /// Returns a sequence whose first read continues at `offset`.
    pub(crate) fn at(offset: u64) -> Sequence {
        Sequence { end: offset, ..Sequence::NEW }
    }

    /// Returns whether all pages of a range were cached at a look that holds.
    #[inline]
    fn knows(&self, range: &Range<u64>) -> bool {
        self.known_from <= range.start && range.end <= self.known_until
    }

    /// Adds a read, whether it tries the page cache or not. Returns whether it is sequential to the previous read.
    #[inline]
    fn goes_on(&mut self, range: &Range<u64>) -> bool {
        let goes_on = range.start >= self.end && range.start - self.end <= GAP_BYTES;
        self.end = range.end;
        goes_on
    }
}

impl PageCache {
    pub(crate) fn new(
        view: Option<OwnedFd>,
        tries: Tries,
        window_bytes: u64,
        loading: Option<FileLoads>,
        engine: &EngineShared,
    ) -> PageCache {
        let short_bytes_max = engine.arena.short_bytes_max() as u64;
        let at_once = if tries == Tries::All { u64::MAX } else { TRY_BYTES_MAX };
        PageCache {
            view,
            tries,
            is_off: AtomicBool::new(false),
            rate: HitRate::new(),
            loading,
            lone_bytes_max: short_bytes_max.min(at_once),
            counts: Arc::default(),
            window_bytes,
            end: AtomicU64::new(Sequence::NEW.end),
            known_until: AtomicU64::new(Sequence::NEW.known_until),
        }
    }

    /// Leaves the view's descriptor to the process that opened it.
    pub(crate) fn leave_view(&mut self) {
        std::mem::forget(self.view.take());
    }

    /// Returns whether batches and scans try the page cache by themselves, on their caller's thread.
    pub(crate) fn is_adaptive(&self) -> bool {
        self.tries != Tries::All
    }

    /// Returns whether a read of `len` bytes tries the page cache; counts it if not.
    #[inline]
    fn tries(&self, len: u64) -> bool {
        if self.tries == Tries::All {
            return true;
        }
        let tries = len <= TRY_BYTES_MAX
            && !self.is_off.load(Ordering::Relaxed)
            && (len >= TRY_ALWAYS_BYTES || self.rate.tries());
        if !tries {
            self.counts.skips.fetch_add(1, Ordering::Relaxed);
        }
        tries
    }

    #[inline]
    fn miss(&self) {
        self.counts.misses.fetch_add(1, Ordering::Relaxed);
        self.rate.miss();
    }

    #[inline]
    fn hit(&self, len: u64) {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes.fetch_add(len, Ordering::Relaxed);
        if self.tries != Tries::All {
            self.rate.hit();
        }
    }

    #[cold]
    fn turn_off(&self, core: &FileCore) {
        self.is_off.store(true, Ordering::Relaxed);
        let why = "the file system has no RWF_NOWAIT; all reads go to the device";
        let remedy = "use ext4, XFS or btrfs; files on tmpfs are in memory anyway";
        core.engine().degrade_once("adaptive: page cache", why, remedy);
    }

    fn lone(&self) -> Sequence {
        let known_until = self.known_until.load(Ordering::Relaxed);
        Sequence { end: self.end.load(Ordering::Relaxed), known_until, ..Sequence::NEW }
    }

    fn set_lone(&self, sequence: Sequence) {
        self.end.store(sequence.end, Ordering::Relaxed);
        self.known_until.store(sequence.known_until, Ordering::Relaxed);
    }
}

/// An attempt whose pages were there a moment ago, or are expected to be.
pub(crate) struct Attempt<'c> {
    core: &'c FileCore,
    cache: &'c PageCache,
    fd: BorrowedFd<'c>,
    offset: u64,
    len: u64,
    has_looked: bool,
}

impl FileCore {
    /// Returns whether batches and scans of the file try the page cache.
    pub(crate) fn is_adaptive(&self) -> bool {
        self.page_cache().is_some_and(PageCache::is_adaptive)
    }

    /// Returns the sequence of `reads` reads of a batch within `span`. Where they are many for its length, one look finds out whether
    /// the page cache has all of it.
    pub(crate) fn begin_page_cache_batch(&self, span: &Range<u64>, reads: u64) -> Sequence {
        let mut sequence = Sequence::BATCH;
        let is_dense = || span.end.saturating_sub(span.start) / LOOK_BYTES_A_READ < reads;
        if let Some(cache) = self.page_cache()
            && cache.tries == Tries::Checked
            && cache.rate.is_trying()
            && !span.is_empty()
            && is_dense()
            && !self.is_closed()
        {
            let fd = cache.view.as_ref().map_or_else(|| self.fd(), std::os::fd::AsFd::as_fd);
            cache.look(fd, span, &mut sequence);
        }
        sequence
    }

    /// Returns an attempt to read a range, which is not empty, out of the page cache; `None` if that is not worth a try, or the
    /// pages are not there.
    #[inline]
    pub(crate) fn try_page_cache(&self, range: &Range<u64>, sequence: &mut Sequence) -> Option<Attempt<'_>> {
        let cache = self.page_cache()?;
        if self.is_closed() || self.engine().failure().is_some() {
            return None;
        }
        let goes_on = sequence.goes_on(range);
        let len = range.end - range.start;
        if !cache.tries(len) {
            return None;
        }
        let fd = cache.view.as_ref().map_or_else(|| self.fd(), std::os::fd::AsFd::as_fd);
        let found = match cache.tries {
            Tries::Checked => cache.look_for(fd, range, goes_on, sequence),
            Tries::All | Tries::Unchecked => Look::Unmade,
        };
        if found == Look::Missing {
            cache.miss();
            return None;
        }
        let has_looked = found == Look::Cached;
        Some(Attempt { core: self, cache, fd, offset: range.start, len, has_looked })
    }

    /// Returns whether reads from the device may load the page cache.
    pub(crate) fn may_load(&self) -> bool {
        self.alignment().direct && self.page_cache().is_some_and(|cache| cache.loading.is_some())
    }

    /// Returns the descriptor by which a read that is about to be submitted loads the page cache; `None` if it bypasses it, which
    /// [`note_miss`](Self::note_miss) records after the submission.
    pub(crate) fn loading_view(&self, range: &Range<u64>) -> Option<RawFd> {
        let cache = self.page_cache()?;
        let (loading, view) = (cache.loading.as_ref()?, cache.view.as_ref()?);
        if cache.is_off.load(Ordering::Relaxed) {
            return None;
        }
        loading.loads.look_in_time(self.engine());
        loading.loads.admits(loading.file, range, &loading.window, cache.window_bytes).then(|| {
            // The reads that follow should find it.
            cache.rate.end_pauses();
            view.as_raw_fd()
        })
    }

    /// Adds a read that bypasses the page cache.
    pub(crate) fn note_miss(&self, range: &Range<u64>) {
        if let Some(loading) = self.page_cache().and_then(|cache| cache.loading.as_ref()) {
            loading.loads.note_miss(loading.file, range);
        }
    }
}

/// The pages of a range that a read tries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Cached,
    Missing,
    /// No look was made.
    Unmade,
}

impl Attempt<'_> {
    /// Copies the bytes to `place`. Returns whether all of them were there; if not, `place` may have been written to.
    ///
    /// # Safety
    /// `place` has space for the whole range, and no other code uses it meanwhile.
    pub(crate) unsafe fn read(self, place: NonNull<u8>) -> bool {
        let cache = self.cache;
        // SAFETY: the caller's promise.
        let read = unsafe { read_now(self.fd, self.offset, place, self.len as usize) };
        // A shorter read means the end of the file, or the end of the cached bytes; the device finds out.
        if read == Ok(self.len as usize) {
            cache.hit(self.len);
            return true;
        }
        cache.miss();
        match read {
            Err(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) if cache.is_adaptive() => {
                cache.turn_off(self.core);
            }
            // The pages were there, but not their bytes: another reader loads them.
            Err(libc::EAGAIN) if self.has_looked => cache.rate.stay_away(),
            _ => {}
        }
        false
    }
}

/// Returns all bytes of a range, which is not empty, if the page cache has them: for reads one by one.
pub(crate) fn from_page_cache(core: &FileCore, range: &Range<u64>) -> Option<Block> {
    let cache = core.page_cache().filter(|cache| range.end - range.start <= cache.lone_bytes_max)?;
    let mut sequence = cache.lone();
    let attempt = core.try_page_cache(range, &mut sequence);
    if cache.is_adaptive() {
        cache.set_lone(sequence);
    }
    to_block(core, attempt?)
}

/// Returns whether a read of an adaptive file is made in parts: it is too long to be copied by one poll, and its start is in the
/// page cache.
pub(crate) fn begins_in_page_cache(core: &FileCore, range: &Range<u64>) -> bool {
    let Some(cache) = core.page_cache() else { return false };
    if !cache.is_adaptive() || range.end - range.start <= cache.lone_bytes_max {
        return false;
    }
    let mut sequence = cache.lone();
    let first = range.start..range.end.min(range.start + TRY_ALWAYS_BYTES);
    let begins = core.try_page_cache(&first, &mut sequence).is_some();
    if !begins {
        sequence.end = range.end;
        cache.set_lone(sequence);
    }
    begins
}

/// As [`from_page_cache`], into memory of the program; returns whether all bytes are there. A part that `follows` others of its
/// read is tried by itself: the bytes that they could load ahead are its own.
///
/// # Safety
/// `place` is valid for writes of the whole range, and no other code uses it meanwhile.
pub(crate) unsafe fn read_from_page_cache(
    core: &FileCore,
    range: &Range<u64>,
    follows: bool,
    place: NonNull<u8>,
) -> bool {
    let Some(cache) = core.page_cache().filter(|_| range.end - range.start <= TRY_BYTES_MAX) else {
        return false;
    };
    let mut sequence = if follows { Sequence::NEW } else { cache.lone() };
    let attempt = core.try_page_cache(range, &mut sequence);
    if cache.is_adaptive() {
        cache.set_lone(sequence);
    }
    // SAFETY: the caller's promise.
    attempt.is_some_and(|attempt| unsafe { attempt.read(place) })
}

/// As [`from_page_cache`], for a read of a `sequence` that its owner keeps.
pub(crate) fn next_from_page_cache(
    core: &FileCore,
    range: &Range<u64>,
    sequence: &mut Sequence,
) -> Option<Block> {
    to_block(core, core.try_page_cache(range, sequence)?)
}

fn to_block(core: &FileCore, attempt: Attempt<'_>) -> Option<Block> {
    let len = attempt.len as usize;
    let buffer = core.engine().buffer("read", len).ok()?;
    let place = NonNull::new(buffer.as_ptr())?;
    // SAFETY: a buffer of at least `len` bytes that is ours alone.
    let is_whole = unsafe { attempt.read(place) };
    // SAFETY: the kernel filled all `len` bytes.
    is_whole.then(|| unsafe { buffer.into_block(0, len) })
}

#[cfg(target_os = "linux")]
impl PageCache {
    /// Looks for the pages of a range; for a sequential read, including its read-ahead window.
    fn look_for(
        &self,
        fd: BorrowedFd<'_>,
        range: &Range<u64>,
        goes_on: bool,
        sequence: &mut Sequence,
    ) -> Look {
        if goes_on && range.end.saturating_add(self.window_bytes) > sequence.known_until {
            return if self.has_ahead(fd, range, sequence) { Look::Cached } else { Look::Missing };
        }
        if sequence.knows(range) {
            return Look::Cached;
        }
        if !self.rate.looks(range.end - range.start) {
            return Look::Unmade;
        }
        if view::is_cached(fd, range.start, range.end) { Look::Cached } else { Look::Missing }
    }

    /// Returns whether all pages of a range and of two windows behind it are cached.
    fn has_ahead(&self, fd: BorrowedFd<'_>, range: &Range<u64>, sequence: &mut Sequence) -> bool {
        let Ok(found) = rustix::fs::fstat(fd) else { return false };
        let file_end = u64::try_from(found.st_size).unwrap_or(0);
        let near = 2 * self.window_bytes;
        // After a check that found all pages, the next one covers more: each page is checked once then instead of three times.
        let far = if sequence.known_until > 0 { near.max(AHEAD_BYTES) } else { near };
        if sequence.known_from != u64::MAX {
            sequence.known_from = range.start;
        }
        sequence.known_until = 0;
        for ahead in [far, near] {
            let wanted = range.end.saturating_add(ahead);
            let until = wanted.min(file_end);
            // A block device has no length here: its reads are never sequential.
            if until > range.start && view::is_cached(fd, range.start, until) {
                sequence.known_until = if until < wanted { u64::MAX } else { until };
                return true;
            }
            if far == near {
                break;
            }
        }
        false
    }

    /// Looks once for all reads of a batch.
    fn look(&self, fd: BorrowedFd<'_>, span: &Range<u64>, sequence: &mut Sequence) {
        if view::is_cached(fd, span.start, span.end) {
            (sequence.known_from, sequence.known_until) = (span.start, span.end);
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl PageCache {
    fn look_for(&self, _: BorrowedFd<'_>, _: &Range<u64>, _: bool, _: &mut Sequence) -> Look {
        Look::Missing
    }

    fn look(&self, _: BorrowedFd<'_>, _: &Range<u64>, _: &mut Sequence) {}
}

#[cfg(target_os = "linux")]
use view::read_now;
#[cfg(target_os = "linux")]
pub(crate) use view::{Refusal, cached_pages, identity as file_identity, open as open_view};

/// # Safety
/// No requirement: nothing is read.
#[cfg(not(target_os = "linux"))]
unsafe fn read_now(_: BorrowedFd<'_>, _: u64, _: NonNull<u8>, _: usize) -> Result<usize, i32> {
    Err(libc::ENOSYS)
}

/// The counters of all files of an engine, including closed files.
#[derive(Default)]
pub(crate) struct PageCaches {
    open: Vec<(Weak<FileCore>, Arc<PageCacheCounts>)>,
    /// The sum of the removed files.
    gone: PageCacheSum,
    /// Made with the first adaptive file.
    loads: Option<Arc<Loads>>,
    /// The read-ahead of each device, as it was at its first adaptive file.
    #[cfg(target_os = "linux")]
    window_bytes: BTreeMap<u64, u64>,
}

impl PageCaches {
    /// Returns what decides which reads load the page cache.
    pub(crate) fn loads(&mut self) -> Arc<Loads> {
        self.loads.get_or_insert_with(|| Arc::new(Loads::new("/"))).clone()
    }

    /// Returns how far the kernel reads ahead in files of a device, by its number.
    #[cfg(target_os = "linux")]
    pub(crate) fn window_bytes(&mut self, device: u64) -> u64 {
        if let Some(known) = self.window_bytes.get(&device) {
            return *known;
        }
        let found = view::read_ahead_bytes(device);
        // Without a descriptor the next file's open looks again.
        found.map_or(view::WINDOW_BYTES_UNKNOWN, |bytes| *self.window_bytes.entry(device).or_insert(bytes))
    }

    /// Adds a file that was opened.
    pub(crate) fn add(&mut self, core: &Arc<FileCore>) {
        let Some(cache) = core.page_cache() else { return };
        if self.open.len() == self.open.capacity() {
            self.forget_gone();
        }
        self.open.push((Arc::downgrade(core), cache.counts.clone()));
    }

    fn forget_gone(&mut self) {
        let gone = &mut self.gone;
        self.open.retain(|(_, counts)| {
            // The file's own count is the other one.
            let is_open = Arc::strong_count(counts) > 1;
            if !is_open {
                gone.add(counts.load());
            }
            is_open
        });
    }

    /// Returns the sum of all files since the engine's start.
    pub(crate) fn sum(&mut self) -> PageCacheSum {
        self.forget_gone();
        let mut sum = self.gone;
        self.open.iter().for_each(|(_, counts)| sum.add(counts.load()));
        sum
    }

    /// Returns the open files with reads that tried or skipped the page cache.
    pub(crate) fn files(&self) -> Vec<Arc<FileCore>> {
        let used = self.open.iter().filter(|(_, counts)| counts.load().is_used());
        used.filter_map(|(file, _)| file.upgrade()).collect()
    }
}

impl PageCache {
    pub(crate) fn load_counts(&self) -> PageCacheSum {
        self.counts.load()
    }
}
