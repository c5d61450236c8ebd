//! Telling a forked child from its parent without a system call.

use std::sync::OnceLock;

/// True in a process that inherited its memory from the one that first asked (the engine asks when it starts).
///
/// A page marked `MADV_WIPEONFORK` (madvise(2), Linux 4.14) holds a one in the parent and reads as zero in a child.
/// Where the advice is refused the answer is always `false`.
pub(crate) fn in_child() -> bool {
    match mark() {
        // SAFETY: the page was mapped readable for the life of the process and is never unmapped.
        Some(page) => unsafe { std::ptr::read_volatile(page as *const u8) == 0 },
        None => false,
    }
}

/// The page's address; made on first use.
fn mark() -> Option<usize> {
    static PAGE: OnceLock<Option<usize>> = OnceLock::new();
    *PAGE.get_or_init(map_page)
}

#[cfg(target_os = "linux")]
fn map_page() -> Option<usize> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    let len = rustix::param::page_size();
    // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
    let page = unsafe {
        mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .ok()?;
    // SAFETY: the mapping is ours, `len` bytes long, and nobody else knows it.
    unsafe {
        if madvise(page, len, Advice::LinuxWipeOnFork).is_err() {
            let _ = rustix::mm::munmap(page, len);
            return None;
        }
        std::ptr::write_volatile(page.cast::<u8>(), 1);
    }
    Some(page as usize)
}

#[cfg(not(target_os = "linux"))]
fn map_page() -> Option<usize> {
    None
}
