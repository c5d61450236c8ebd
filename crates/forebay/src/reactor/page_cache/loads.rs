//! The rule of adaptive files for loading the page cache: a range whose pages all missed before, while unused memory is left.
//!
//! | noun | owner | is |
//! |---|---|---|
//! | load | the slot or the thread that reads | a read through the file's view instead of past the page cache: also one request, and its pages stay |
//! | record of misses | the engine, made with its first adaptive file | the 4 KiB pages that missed, of the last 4 GiB that did; 512 KiB (`miss_record.rs`) |
//! | room | the engine | the bytes that may still be loaded: half of the headroom at the last look (`io/host/headroom.rs`) |
//! | look | a thread of the pool | reads the headroom, at most four times a second and only while reads miss; never on the thread of a read |
//!
//! Risks, and their prevention:
//! - *Eviction of the hot set of others.* Only free memory is filled. Pages of files never count as room, although the kernel calls
//!   them available.
//! - *Cyclic reads of a file larger than memory.* Pages that were loaded stay and are served; the rest misses and bypasses the page
//!   cache, as in the first pass. Where the kernel still reclaims pages for want of memory, they are read again: refaults rise, and
//!   for a while nothing is loaded.
//! - *One pass pays.* It adds to the record and loads nothing. A record of pages, not of ranges or windows: the small reads of one pass miss
//!   in the same window again and again, but not in the same page. (Reads of parts of a page load it with the second one.)
//! - *More is loaded than read.* Loads that follow each other are read ahead by the kernel, by a window of the device at most,
//!   which is charged as well, once for all of them; a lone load reads its own pages.
//! - *A write meanwhile.* The kernel drops the pages of a direct write before and after it, those that are on their way as well.
//! - *Cost on the hot path.* A served read does none of this. A miss costs two loads of the clock and of the room, and an entry of
//!   the record for each 64 KiB.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::TRY_BYTES_MAX;
use super::miss_record::{MissRecord, PAGE_BYTES, pages};
use crate::io::host::Headroom;
use crate::reactor::engine_shared::EngineShared;

/// The time between two looks.
const LOOK_NS: u64 = 250_000_000;
/// After this time without a look its numbers say little.
const STALE_NS: u64 = 1_000_000_000;
/// The most that is loaded by such numbers, until the next look has ended.
const STALE_BYTES: i64 = 16 << 20;
/// More refaults than this from one look to the next count as a rise: 256 KiB. A few occur on any machine.
const REFAULTS_MAX: u64 = 64;
/// The time without loads after a rise.
const CLOSED_NS: u64 = 5_000_000_000;
/// A page that is read again was reclaimed because memory was short if the kernel reclaimed any for that reason within this time.
/// Pages that a reclaimer takes from a machine with free memory (DAMON's, a service that writes memory.reclaim) are read again as
/// well, and are not a reason not to load.
const SHORT_NS: u64 = 60_000_000_000;
/// The time of the last look before the first look.
const NEVER: u64 = u64::MAX;

/// The loads of an engine's adaptive files.
pub(crate) struct Loads {
    /// The directory below which the system's files lie: `/`.
    root: PathBuf,
    misses: MissRecord,
    room_bytes: AtomicI64,
    /// The start of the last look, in the engine's time.
    looked_ns: AtomicU64,
    is_looking: AtomicBool,
    /// The look's own.
    refaults: Mutex<Refaults>,
}

#[derive(Default)]
struct Refaults {
    /// The count at the last look.
    count: u64,
    /// The pages that the kernel had reclaimed at the last look.
    steals: Option<u64>,
    /// The last time at which it was seen to have reclaimed pages.
    short_ns: Option<u64>,
    /// No loads before this time.
    closed_until_ns: u64,
}

/// The part of an open file that its last load was charged for: its range, and the read-ahead of the device behind that. Later
/// reads in it are free, whether they load it or find it read ahead.
#[derive(Debug, Default)]
pub(crate) struct PaidWindow(Mutex<Range<u64>>);

impl PaidWindow {
    fn lock(&self) -> MutexGuard<'_, Range<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, range: Range<u64>) {
        *self.lock() = range;
    }

    fn holds(&self, range: &Range<u64>) -> bool {
        let paid = self.lock();
        paid.start <= range.start && range.end <= paid.end
    }
}

impl Loads {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Loads {
        Loads {
            root: root.into(),
            misses: MissRecord::new(),
            room_bytes: AtomicI64::new(0),
            looked_ns: AtomicU64::new(NEVER),
            is_looking: AtomicBool::new(false),
            refaults: Mutex::default(),
        }
    }

    /// Returns whether a read that the page cache has not served should load it. `file` is a hash of the file's identity, `window` the part that the
    /// last load of the open file has paid for, `ahead` the bytes that the kernel may read ahead of this one.
    pub(super) fn admits(&self, file: u64, range: &Range<u64>, window: &PaidWindow, ahead: u64) -> bool {
        if range.is_empty() || range.end - range.start > TRY_BYTES_MAX || !self.misses.knows(file, range) {
            return false;
        }
        if window.holds(range) {
            return self.room_bytes.load(Ordering::Relaxed) > 0;
        }
        let (first, last) = pages(range).into_inner();
        let bytes = ((last - first + 1) * PAGE_BYTES + ahead) as i64;
        // Two concurrent threads may exceed the room, by a read each.
        let has_room = self.room_bytes.load(Ordering::Relaxed) >= bytes;
        if has_room {
            self.room_bytes.fetch_sub(bytes, Ordering::Relaxed);
            window.set(range.start..range.end.saturating_add(ahead));
        }
        has_room
    }

    /// Adds a read that bypassed the page cache.
    pub(super) fn note_miss(&self, file: u64, range: &Range<u64>) {
        if !range.is_empty() && range.end - range.start <= TRY_BYTES_MAX {
            self.misses.add(file, range);
        }
    }

    /// Has a thread of the pool look, if it is time.
    #[inline]
    pub(super) fn look_in_time(self: &Arc<Self>, engine: &EngineShared) {
        let now_ns = engine.now_ns();
        if self.begins_look(now_ns) {
            self.send_look(engine, now_ns);
        }
    }

    #[cold]
    fn send_look(self: &Arc<Self>, engine: &EngineShared, now_ns: u64) {
        let loads = self.clone();
        if engine.pool.submit(Box::new(move || loads.look(now_ns))).is_err() {
            self.end_look(now_ns, 0);
        }
    }

    /// Returns whether the caller has to look now.
    fn begins_look(&self, now_ns: u64) -> bool {
        let looked_ns = self.looked_ns.load(Ordering::Relaxed);
        let age_ns = if looked_ns == NEVER { NEVER } else { now_ns.saturating_sub(looked_ns) };
        if age_ns < LOOK_NS {
            return false;
        }
        if age_ns > STALE_NS && self.room_bytes.load(Ordering::Relaxed) > STALE_BYTES {
            self.room_bytes.fetch_min(STALE_BYTES, Ordering::Relaxed);
        }
        !self.is_looking.swap(true, Ordering::Acquire)
    }

    fn look(&self, now_ns: u64) {
        let room = Headroom::below(&self.root).map_or(0, |found| self.room_bytes_of(found, now_ns));
        self.end_look(now_ns, room);
    }

    fn end_look(&self, now_ns: u64, room: u64) {
        self.room_bytes.store(i64::try_from(room).unwrap_or(i64::MAX), Ordering::Relaxed);
        self.looked_ns.store(now_ns, Ordering::Relaxed);
        self.is_looking.store(false, Ordering::Release);
    }

    /// Returns the room until the next look. Half of the headroom: others may use some meanwhile, and loads in flight use more.
    fn room_bytes_of(&self, found: Headroom, now_ns: u64) -> u64 {
        let mut known = self.refaults.lock().unwrap_or_else(PoisonError::into_inner);
        let looked_ns = self.looked_ns.load(Ordering::Relaxed);
        let is_recent = looked_ns != NEVER && now_ns.saturating_sub(looked_ns) <= 2 * STALE_NS;
        if found.steals.is_none_or(|steals| known.steals.is_some_and(|before| before != steals)) {
            known.short_ns = Some(now_ns);
        }
        let is_short = known.short_ns.is_some_and(|short_ns| now_ns.saturating_sub(short_ns) <= SHORT_NS);
        if is_recent && is_short && found.refaults.saturating_sub(known.count) > REFAULTS_MAX {
            known.closed_until_ns = now_ns.saturating_add(CLOSED_NS);
        }
        (known.count, known.steals) = (found.refaults, found.steals);
        if now_ns < known.closed_until_ns { 0 } else { found.bytes / 2 }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
