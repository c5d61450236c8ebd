//! One mapped stretch of I/O memory and the headers of its buffers.

use std::alloc::{self, Layout};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::header::Header;
use super::{ArenaCore, BUFFER_BYTES_MIN};

/// The size of a huge page. Regions are aligned to it, and populated in steps of it.
pub(super) const HUGE_BYTES: usize = 2 << 20;

/// A region: one mapping, one registered buffer. It lives on the heap behind a raw pointer. After the arena
/// was closed, the thread that returns its last buffer frees it.
///
/// **Fork**: the mapping is not inherited (MADV_DONTFORK), so a child process must not touch a block's bytes.
/// Its headers are ordinary memory, so dropping an inherited block there is harmless.
pub(super) struct Region {
    start: NonNull<u8>,
    bytes: usize,
    index: u16,
    huge: bool,
    /// The process that mapped it: in a forked child another mapping may lie at these addresses.
    process: u32,
    headers: NonNull<Header>,
    /// Unused while the arena is open. After that the number of buffers still out, see [`Region::close`].
    outstanding: AtomicI64,
    shared: Arc<ArenaCore>,
}

// SAFETY: a region is immutable except its atomics; the memory it points to belongs to the owners of its buffers.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps and populates a region of `bytes` (a multiple of the page size).
    pub(super) fn map(shared: &Arc<ArenaCore>, index: u16, bytes: usize) -> io::Result<NonNull<Region>> {
        let layout = headers_layout(bytes)?;
        let start = memory::map(bytes)?;
        let huge = match memory::advise_and_populate(start, bytes) {
            Ok(huge) => huge,
            Err(error) => {
                // SAFETY: mapped above, and no other code has its address.
                unsafe { memory::unmap(start, bytes) };
                return Err(error);
            }
        };
        // SAFETY: the layout's size is not zero, as `bytes` is at least a page.
        let Some(headers) = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }) else {
            // SAFETY: mapped above with this length, and no part of it was handed out.
            unsafe { memory::unmap(start, bytes) };
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let region = Region {
            start,
            bytes,
            index,
            huge,
            process: std::process::id(),
            headers: headers.cast(),
            outstanding: AtomicI64::new(0),
            shared: Arc::clone(shared),
        };
        shared.bytes_mapped.fetch_add(bytes, Ordering::Relaxed);
        Ok(NonNull::from(Box::leak(Box::new(region))))
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn pages(&self) -> u32 {
        (self.bytes / BUFFER_BYTES_MIN) as u32
    }

    pub(super) fn index(&self) -> u16 {
        self.index
    }

    /// Returns whether huge pages were requested and not refused; the kernel may still have used small pages.
    pub(super) fn huge(&self) -> bool {
        self.huge
    }

    pub(super) fn shared(&self) -> &Arc<ArenaCore> {
        &self.shared
    }

    pub(super) fn page_start(&self, page: u32) -> NonNull<u8> {
        debug_assert!(page < self.pages());
        // SAFETY: pages below `pages()` lie inside the mapping.
        unsafe { self.start.add(page as usize * BUFFER_BYTES_MIN) }
    }

    pub(super) fn header(&self, page: u32) -> NonNull<Header> {
        debug_assert!(page < self.pages());
        // SAFETY: each page has a header.
        unsafe { self.headers.add(page as usize) }
    }

    /// Starts counting the `live` buffers of this region that are still out when the arena is closed. Buffers returned after the
    /// close count down from zero into the negative until this adds `live`. From then on the sum is the number of buffers out, and
    /// exactly one side sees it become zero and unmaps.
    ///
    /// # Safety
    /// Called once, by the closing arena, after which it does not use the region any more.
    pub(super) unsafe fn close(this: NonNull<Region>, live: i64) {
        debug_assert!(live >= 0, "no more buffers came back than were out");
        // SAFETY: the region is live: only this call or a count-down after it frees it. AcqRel: the side that frees it sees every
        // access to the buffers before their return.
        unsafe {
            if this.as_ref().outstanding.fetch_add(live, Ordering::AcqRel) + live == 0 {
                Region::free(this);
            }
        }
    }

    /// Counts a buffer that was returned after the arena was closed.
    ///
    /// # Safety
    /// The caller passes the ownership of the buffer, and uses neither it nor the region afterwards.
    pub(super) unsafe fn count_down(this: NonNull<Region>) {
        // SAFETY: our buffer is counted in `live`, or will be, so the region is not freed before this subtraction.
        unsafe {
            if this.as_ref().outstanding.fetch_sub(1, Ordering::AcqRel) == 1 {
                Region::free(this);
            }
        }
    }

    /// # Safety
    /// No buffer of the region is out and the arena has no pointer to it any more.
    pub(super) unsafe fn free(this: NonNull<Region>) {
        // SAFETY: made by `Box::leak` in `map`, and the caller is the last that has the pointer.
        let region = unsafe { Box::from_raw(this.as_ptr()) };
        debug_assert_eq!(region.outstanding.load(Ordering::Relaxed), 0, "no buffer of a freed region is out");
        if region.process == std::process::id() {
            // SAFETY: mapped by `map` in this process with this length, and no longer used.
            unsafe { memory::unmap(region.start, region.bytes) };
        }
        if let Ok(layout) = headers_layout(region.bytes) {
            // SAFETY: allocated in `map` with this layout.
            unsafe { alloc::dealloc(region.headers.as_ptr().cast(), layout) };
        }
        region.shared.bytes_mapped.fetch_sub(region.bytes, Ordering::Relaxed);
    }
}

/// Returns whether the kernel accepts a request for huge pages. Maps addresses without memory.
pub(super) fn are_huge_pages_granted() -> bool {
    let Ok(start) = memory::map(HUGE_BYTES) else { return false };
    let granted = memory::advise(start, HUGE_BYTES);
    // SAFETY: mapped above with this length, and never used.
    unsafe { memory::unmap(start, HUGE_BYTES) };
    granted.unwrap_or(false)
}

fn headers_layout(bytes: usize) -> io::Result<Layout> {
    Layout::array::<Header>(bytes / BUFFER_BYTES_MIN).map_err(|_| io::ErrorKind::OutOfMemory.into())
}

/// Requests huge pages for memory that was just allocated; without any, small pages will do.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) fn advise_huge(start: NonNull<u8>, bytes: usize) {
    // SAFETY: whole pages of the caller's memory, whose contents the advice does not change; it stays when the memory is freed.
    let _ = unsafe {
        rustix::mm::madvise(
            start.as_ptr().cast(),
            bytes / HUGE_BYTES * HUGE_BYTES,
            rustix::mm::Advice::LinuxHugepage,
        )
    };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) fn advise_huge(_: NonNull<u8>, _: usize) {}

/// Makes `bytes` bytes of memory that was just allocated present in huge pages. Returns whether they are present, in pages of any
/// size.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) fn populate_huge(start: NonNull<u8>, bytes: usize) -> bool {
    use rustix::mm::{Advice, madvise};
    let advise = |advice| {
        // SAFETY: memory of the caller, whose contents neither advice changes; the advice stays when the memory is freed.
        unsafe { madvise(start.as_ptr().cast(), bytes, advice).is_ok() }
    };
    advise(Advice::LinuxHugepage) && advise(Advice::LinuxPopulateWrite)
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) fn populate_huge(_: NonNull<u8>, _: usize) -> bool {
    false
}

/// The calls to the operating system.
#[cfg(not(miri))]
mod memory {
    use super::{BUFFER_BYTES_MIN, HUGE_BYTES};
    use rustix::mm::{self, Advice, MapFlags, ProtFlags};
    use std::io;
    use std::ptr::{self, NonNull};

    /// Maps anonymous memory aligned to a huge page, with a margin that is trimmed afterwards.
    pub(super) fn map(bytes: usize) -> io::Result<NonNull<u8>> {
        let padded = bytes.checked_add(HUGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists.
        let mapping = unsafe { mm::mmap_anonymous(ptr::null_mut(), padded, access, MapFlags::PRIVATE)? };
        let mapping = mapping.cast::<u8>();
        let before = mapping.align_offset(HUGE_BYTES);
        let after = HUGE_BYTES - before;
        // SAFETY: both trimmed parts and the result lie inside the new mapping, which no other code has.
        unsafe {
            let start = mapping.add(before);
            // A part that cannot be trimmed stays reserved without ever being touched.
            if before > 0 {
                let _ = mm::munmap(mapping.cast(), before);
            }
            if after > 0 {
                let _ = mm::munmap(start.add(bytes).cast(), after);
            }
            NonNull::new(start).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
        }
    }

    /// Keeps the memory out of forked children and requests huge pages. Returns whether they were granted, as far as that can be
    /// determined.
    pub(super) fn advise(start: NonNull<u8>, bytes: usize) -> io::Result<bool> {
        let advise = |advice| {
            // SAFETY: the range is a mapping of ours with no contents yet, and no advice used here changes
            // contents.
            unsafe { mm::madvise(start.as_ptr().cast(), bytes, advice) }
        };
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            // Without it a fork while the device writes could give parent and child different pages.
            advise(Advice::LinuxDontFork)?;
            Ok(bytes >= HUGE_BYTES && advise(Advice::LinuxHugepage).is_ok() && !huge_pages_off())
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        {
            let _ = advise(Advice::WillNeed);
            Ok(false)
        }
    }

    /// As [`advise`], and makes the memory present, in steps, so that the address space is not locked for long.
    pub(super) fn advise_and_populate(start: NonNull<u8>, bytes: usize) -> io::Result<bool> {
        let huge = advise(start, bytes)?;
        let mut done = 0;
        while done < bytes {
            let step = HUGE_BYTES.min(bytes - done);
            // SAFETY: `done + step` is at most `bytes`.
            populate(unsafe { start.add(done) }, step)?;
            done += step;
        }
        Ok(huge)
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn huge_pages_off() -> bool {
        std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
            .is_ok_and(|modes| modes.contains("[never]"))
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn populate(start: NonNull<u8>, bytes: usize) -> io::Result<()> {
        use rustix::io::Errno;
        loop {
            // SAFETY: ours, as in `advise_and_populate`; it only makes pages present.
            match unsafe { mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) } {
                Ok(()) => return Ok(()),
                Err(Errno::INTR | Errno::AGAIN) => {}
                // Real shortage: touching the pages would end the process instead of this call.
                Err(error @ (Errno::NOMEM | Errno::FAULT | Errno::HWPOISON)) => return Err(error.into()),
                Err(_) => {
                    touch(start, bytes);
                    return Ok(());
                }
            }
        }
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn populate(start: NonNull<u8>, bytes: usize) -> io::Result<()> {
        touch(start, bytes);
        Ok(())
    }

    fn touch(start: NonNull<u8>, bytes: usize) {
        for offset in (0..bytes).step_by(BUFFER_BYTES_MIN) {
            // SAFETY: inside a mapping that no other code has yet; fresh memory is zero, so zero changes
            // nothing.
            unsafe { start.add(offset).write_volatile(0) };
        }
    }

    /// # Safety
    /// The range was mapped by `map` with this length and is no longer used.
    pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise. A refusal leaves the memory mapped, which is a leak and nothing worse.
        let _ = unsafe { mm::munmap(start.as_ptr().cast(), bytes) };
    }
}

/// The interpreter has no huge pages; ordinary zeroed memory shows the same aliasing.
#[cfg(miri)]
mod memory {
    use super::HUGE_BYTES;
    use std::alloc::{self, Layout};
    use std::io;
    use std::ptr::NonNull;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, HUGE_BYTES).unwrap_or(Layout::new::<u8>())
    }

    pub(super) fn map(bytes: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: regions are never empty.
        NonNull::new(unsafe { alloc::alloc_zeroed(layout(bytes)) })
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn advise(_start: NonNull<u8>, _bytes: usize) -> io::Result<bool> {
        Ok(false)
    }

    pub(super) fn advise_and_populate(_start: NonNull<u8>, _bytes: usize) -> io::Result<bool> {
        Ok(false)
    }

    /// # Safety
    /// As for the real one.
    pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: allocated by `map` with the same layout.
        unsafe { alloc::dealloc(start.as_ptr(), layout(bytes)) };
    }
}
