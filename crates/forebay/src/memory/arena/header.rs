//! The arena's record of one buffer. It lies outside the I/O pages, so that the device never writes next to
//! it and a process can inspect it without touching I/O memory.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::region::Region;
use super::{ArenaCore, BUFFER_BYTES_MAX, BUFFER_BYTES_MIN, cache, ordinary};
use crate::base::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicUsize, Ordering};

/// The number of size classes: 4 KiB, 8 KiB, ... 1 GiB.
pub(super) const CLASSES: usize = (BUFFER_BYTES_MAX / BUFFER_BYTES_MIN).trailing_zeros() as usize + 1;

/// The home of a buffer that was not allocated for a shard: it returns to the central stack.
pub(super) const HOME_NOBODY: u16 = u16::MAX;

/// One buffer's record: reference count of its blocks, the link of the list that it is in, and its home.
///
/// It has a separate cache line, because neighbouring buffers belong to different threads. All zero is a valid header, so an array
/// of them costs memory only where buffers have been. Every field but `refs` and `next` is written by the sole owner of the buffer
/// and read by later owners, so Relaxed is enough: the hand-over orders them.
#[repr(C, align(64))]
pub(crate) struct Header {
    refs: AtomicU32,
    /// The buffer's first page within its region, in units of [`BUFFER_BYTES_MIN`].
    page: AtomicU32,
    next: AtomicPtr<Header>,
    data: AtomicPtr<u8>,
    /// The arena that it is from: compared, never followed. Null for ordinary memory.
    arena: AtomicPtr<ArenaCore>,
    /// Null for ordinary memory, whose header is the first field of a record.
    region: AtomicPtr<Region>,
    /// The length of ordinary memory; 0 in regions.
    bytes: AtomicUsize,
    home: AtomicU16,
    class: AtomicU8,
}

/// The class of ordinary memory, which is in no list.
const CLASS_NONE: u8 = u8::MAX;

/// Counts from here on are stuck for good: the buffer is leaked instead of being freed too early.
const REFS_STUCK_FROM: u32 = 1 << 31;
const REFS_STUCK: u32 = 3 << 30;

impl Header {
    /// Returns the header of a buffer of ordinary memory.
    pub(super) fn ordinary(bytes: usize, data: *mut u8) -> Header {
        Header {
            refs: AtomicU32::new(0),
            page: AtomicU32::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
            data: AtomicPtr::new(data),
            arena: AtomicPtr::new(ptr::null_mut()),
            region: AtomicPtr::new(ptr::null_mut()),
            bytes: AtomicUsize::new(bytes),
            home: AtomicU16::new(HOME_NOBODY),
            class: AtomicU8::new(CLASS_NONE),
        }
    }

    /// Describes the buffer that the central allocator just cut out of a region.
    ///
    /// # Safety
    /// The region is live.
    pub(super) unsafe fn describe(&self, region: NonNull<Region>, page: u32, class: usize) {
        self.region.store(region.as_ptr(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        let region = unsafe { region.as_ref() };
        debug_assert!(
            page.is_multiple_of(1 << class) && page + (1 << class) <= region.pages(),
            "a buffer lies within its region, at a multiple of its own length"
        );
        self.arena.store(Arc::as_ptr(region.shared()).cast_mut(), Ordering::Relaxed);
        self.data.store(region.page_start(page).as_ptr(), Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.class.store(class as u8, Ordering::Relaxed);
        self.home.store(HOME_NOBODY, Ordering::Relaxed);
    }

    pub(super) fn class(&self) -> usize {
        usize::from(self.class.load(Ordering::Relaxed))
    }

    pub(crate) fn capacity(&self) -> usize {
        match self.class.load(Ordering::Relaxed) {
            CLASS_NONE => self.bytes.load(Ordering::Relaxed),
            class => BUFFER_BYTES_MIN << class,
        }
    }

    /// Returns whether these bytes lie within the buffer.
    pub(crate) fn holds(&self, data: NonNull<u8>, len: usize) -> bool {
        let skipped = data.as_ptr().addr().checked_sub(self.data().addr());
        skipped.is_some_and(|skipped| skipped.saturating_add(len) <= self.capacity())
    }

    /// Returns the first byte of the buffer.
    pub(crate) fn data(&self) -> *mut u8 {
        self.data.load(Ordering::Relaxed)
    }

    /// Returns the arena that the buffer is from; null for ordinary memory.
    pub(super) fn arena(&self) -> *const ArenaCore {
        self.arena.load(Ordering::Relaxed)
    }

    pub(super) fn page(&self) -> u32 {
        self.page.load(Ordering::Relaxed)
    }

    pub(super) fn region(&self) -> Option<NonNull<Region>> {
        NonNull::new(self.region.load(Ordering::Relaxed))
    }

    pub(super) fn home(&self) -> u16 {
        self.home.load(Ordering::Relaxed)
    }

    pub(super) fn set_home(&self, home: u16) {
        self.home.store(home, Ordering::Relaxed);
    }

    pub(super) fn next(&self) -> *mut Header {
        self.next.load(Ordering::Relaxed)
    }

    pub(super) fn set_next(&self, next: *mut Header) {
        self.next.store(next, Ordering::Relaxed);
    }

    /// Sets the count for the buffer's first block.
    pub(crate) fn refs_start(&self) {
        self.refs.store(1, Ordering::Relaxed);
    }

    /// Counts one more block. Relaxed as in `Arc`: a cloning caller already has a reference.
    pub(crate) fn refs_add(&self) {
        let before = self.refs.fetch_add(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a block is cloned from a block");
        if before >= REFS_STUCK_FROM - 1 {
            self.refs.store(REFS_STUCK, Ordering::Relaxed);
        }
    }

    /// Returns whether the caller's block is the only one. Acquire: the reads of other owners happen before.
    pub(crate) fn refs_unique(&self) -> bool {
        self.refs.load(Ordering::Acquire) == 1
    }

    /// Counts one block less. Returns true when it was the last and the caller now owns the buffer alone.
    #[inline]
    pub(crate) fn refs_drop(&self) -> bool {
        // No other owner can join the only one in the meantime: a clone needs a block to clone from.
        if self.refs_unique() {
            return true;
        }
        let before = self.refs.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a buffer's last block is dropped once");
        match before {
            1 => true,
            before if before >= REFS_STUCK_FROM => {
                self.refs.store(REFS_STUCK, Ordering::Relaxed);
                false
            }
            _ => false,
        }
    }
}

/// Returns the smallest class whose buffers hold `len` bytes; `None` above [`BUFFER_BYTES_MAX`].
#[inline]
pub(super) fn class_of(len: usize, class_min: usize) -> Option<usize> {
    if len > BUFFER_BYTES_MAX {
        return None;
    }
    let pages = len.div_ceil(BUFFER_BYTES_MIN).max(1);
    Some((pages.next_power_of_two().trailing_zeros() as usize).max(class_min))
}

/// Returns the number of the buffer's region; `None` for ordinary memory.
///
/// # Safety
/// `header` belongs to a live buffer.
pub(crate) unsafe fn region_index(header: NonNull<Header>) -> Option<u16> {
    // SAFETY: a live buffer keeps its header and region.
    unsafe { header.as_ref().region().map(|region| region.as_ref().index()) }
}

/// Returns a buffer to this thread's cache if that serves the same arena, else to its home. Never allocates,
/// locks or waits (ordinary memory is freed).
///
/// # Safety
/// The caller owns the buffer alone and does not use it, nor its header, afterwards.
#[inline]
pub(crate) unsafe fn release(header: NonNull<Header>) {
    // SAFETY: the caller's buffer is live, so header and region are; both callees take over the ownership.
    unsafe {
        if !cache::put(header) {
            release_elsewhere(header);
        }
    }
}

/// # Safety
/// As for [`release`].
#[cold]
unsafe fn release_elsewhere(header: NonNull<Header>) {
    // SAFETY: the caller's promise; both callees take over the ownership.
    unsafe {
        match header.as_ref().region() {
            None => ordinary::free(header),
            Some(region) => give_back(header, region),
        }
    }
}

/// Pushes a buffer onto its home's return stack. When that is closed, it pushes it onto the central one. When
/// the arena is closed, it counts the region down.
///
/// # Safety
/// As for [`release`]; `region` is the buffer's.
unsafe fn give_back(header: NonNull<Header>, region: NonNull<Region>) {
    // SAFETY: until the push succeeds the buffer is ours and keeps its region alive. Once it has succeeded, another thread may
    // drain it, close the arena and free region and `ArenaCore`. So each stack is kept by a separate count (`Arc::clone`), and
    // nothing else is touched after the push.
    unsafe {
        let home = Arc::clone(region.as_ref().shared().returns_of(header.as_ref().home()));
        if home.push(header, header) {
            return;
        }
        let central = Arc::clone(region.as_ref().shared().returns_of(HOME_NOBODY));
        if central.push(header, header) {
            return;
        }
        Region::count_down(region);
    }
}

#[cfg(all(test, forebay_loom))]
mod loom_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_the_next_power_of_two() {
        for (len, class) in
            [(0, 0), (1, 0), (4096, 0), (4097, 1), (8192, 1), (8193, 2), (1 << 20, 8), (1 << 30, 18)]
        {
            assert_eq!(class_of(len, 0), Some(class), "{len}");
        }
        assert_eq!(class_of((1 << 30) + 1, 0), None);
        assert_eq!(class_of(1, 4), Some(4), "never below the page size");
        assert_eq!(CLASSES, 19);
    }

    #[test]
    fn a_count_that_overflows_sticks() {
        let header = Header::ordinary(0, ptr::null_mut());
        header.refs.store(REFS_STUCK_FROM - 1, Ordering::Relaxed);
        header.refs_add();
        assert_eq!(header.refs.load(Ordering::Relaxed), REFS_STUCK);
        assert!(!header.refs_drop());
        assert_eq!(header.refs.load(Ordering::Relaxed), REFS_STUCK);
    }
}
