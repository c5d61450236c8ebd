//! Memory for direct I/O: page-aligned, on hugepages or on ordinary pages, given out in pieces of one region.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// The size of a transparent hugepage, in bytes.
const HUGEPAGE_BYTES: usize = 2 << 20;

/// The kind of pages that a region requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// Transparent hugepages (`MADV_HUGEPAGE`).
    Huge,
    /// 4 KiB pages (`MADV_NOHUGEPAGE`).
    Small,
}

/// A mapped region; unmapped when its last piece is gone.
#[derive(Debug)]
struct Region {
    map: NonNull<u8>,
    map_bytes: usize,
}

// SAFETY: the region is plain memory; only the pieces give access to it, and they do not overlap.
unsafe impl Send for Region {}
// SAFETY: as above: `&Region` gives no access to the memory.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `pieces` with exactly this address and length, and no piece is left.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

/// A page-aligned piece of a region. Owned like a `Box<[u8]>`; all of its bytes are initialised (the kernel
/// maps them zeroed).
#[derive(Debug)]
pub(crate) struct Piece {
    start: NonNull<u8>,
    len: usize,
    _region: Arc<Region>,
}

// SAFETY: a piece is the only owner of its bytes, like a `Box<[u8]>`.
unsafe impl Send for Piece {}
// SAFETY: `&Piece` only allows reading its bytes.
unsafe impl Sync for Piece {}

impl Piece {
    /// Returns the beginning of the piece, for a kernel that writes to it. The pieces of one region lie one
    /// behind the other.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Deref for Piece {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised bytes as long as the region lives, and no other piece has them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Returns `count` pieces of `piece_bytes` (a multiple of 4096) from one region of its own, all pages already
/// touched.
///
/// # Errors
/// When the region cannot be mapped.
pub(crate) fn pieces(count: usize, piece_bytes: usize, kind: PageKind) -> io::Result<Vec<Piece>> {
    assert!(piece_bytes.is_multiple_of(4096), "pieces for direct I/O are whole pages");
    let bytes = (count * piece_bytes).next_multiple_of(HUGEPAGE_BYTES);
    let map_bytes = bytes + HUGEPAGE_BYTES;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing memory.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            map_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let Some(map) = NonNull::new(map.cast::<u8>()) else {
        return Err(io::Error::other("mmap returned address zero"));
    };
    let region = Arc::new(Region { map, map_bytes });
    let skip = map.as_ptr().align_offset(HUGEPAGE_BYTES);
    // SAFETY: `map_bytes` has one hugepage more than `bytes`, so the aligned start leaves room for `bytes`.
    let aligned = unsafe { map.add(skip) };
    let advice = match kind {
        PageKind::Huge => libc::MADV_HUGEPAGE,
        PageKind::Small => libc::MADV_NOHUGEPAGE,
    };
    // SAFETY: the range lies in the mapping made above. A refused advice leaves ordinary pages, which is allowed.
    unsafe { libc::madvise(aligned.as_ptr().cast(), bytes, advice) };
    for page in (0..bytes).step_by(4096) {
        // SAFETY: `page` is below `bytes`; nothing else uses the region yet. Volatile, so that the page is
        // really touched.
        unsafe { aligned.add(page).write_volatile(0) };
    }
    Ok((0..count)
        .map(|i| Piece {
            // SAFETY: `i * piece_bytes + piece_bytes <= bytes`.
            start: unsafe { aligned.add(i * piece_bytes) },
            len: piece_bytes,
            _region: Arc::clone(&region),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_do_not_overlap_and_outlive_each_other() {
        let mut all = pieces(5, 12_288, PageKind::Huge).unwrap();
        for (i, piece) in all.iter_mut().enumerate() {
            assert_eq!(piece.as_ptr().align_offset(4096), 0);
            piece.fill(i as u8 + 1);
        }
        let last = all.pop().unwrap();
        assert!(all.iter().enumerate().all(|(i, piece)| piece.iter().all(|b| *b == i as u8 + 1)));
        drop(all);
        assert!(last.iter().all(|b| *b == 5));
    }
}
