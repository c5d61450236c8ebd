//! Memory for direct I/O: page-aligned, on hugepages or on ordinary pages, given out in pieces of one region.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapRaw};

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

/// A page-aligned piece of a region. Owned like a `Box<[u8]>`; all of its bytes are initialised (the kernel
/// maps them zeroed).
#[derive(Debug)]
pub(crate) struct Piece {
    start: NonNull<u8>,
    len: usize,
    /// Unmapped when its last piece is gone.
    _region: Arc<MmapRaw>,
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
    let mut map = MmapMut::map_anon(bytes + HUGEPAGE_BYTES)?;
    let skip = map.as_ptr().align_offset(HUGEPAGE_BYTES);
    let advice = match kind {
        PageKind::Huge => Advice::HugePage,
        PageKind::Small => Advice::NoHugePage,
    };
    // A refused advice leaves ordinary pages, which is allowed.
    _ = map.advise_range(advice, skip, bytes);
    for first in map[skip..skip + bytes].iter_mut().step_by(4096) {
        // SAFETY: a plain write to a borrowed byte. Volatile, so that the page is really touched.
        unsafe { std::ptr::from_mut(first).write_volatile(0) };
    }
    let region = Arc::new(MmapRaw::from(map));
    let piece = |i| {
        // SAFETY: `skip + i * piece_bytes + piece_bytes` is at most the length of the mapping.
        let start = NonNull::new(unsafe { region.as_mut_ptr().add(skip + i * piece_bytes) });
        let start = start.ok_or_else(|| io::Error::other("mmap returned address zero"))?;
        Ok(Piece { start, len: piece_bytes, _region: Arc::clone(&region) })
    };
    (0..count).map(piece).collect()
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
