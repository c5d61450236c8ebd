//! Memory for direct I/O: page-aligned, on hugepages or on ordinary pages, given out in pieces of one region.

use std::io;

use memmap2::{Advice, MmapMut};

/// The size of a transparent hugepage, in bytes.
const HUGEPAGE_BYTES: usize = 2 << 20;

/// A page-aligned piece of a region. It lives as long as the process, which takes one sample.
pub(crate) type Piece = &'static mut [u8];

/// The kind of pages that a region requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// Transparent hugepages (`MADV_HUGEPAGE`).
    Huge,
    /// 4 KiB pages (`MADV_NOHUGEPAGE`).
    Small,
}

/// Returns `count` pieces of `piece_bytes` (a multiple of 4096), one behind the other in a region of their own, all pages
/// already touched.
pub(crate) fn pieces(count: usize, piece_bytes: usize, kind: PageKind) -> io::Result<Vec<Piece>> {
    assert!(piece_bytes.is_multiple_of(4096), "pieces for direct I/O are whole pages");
    let bytes = (count * piece_bytes).next_multiple_of(HUGEPAGE_BYTES);
    let map = Box::leak(Box::new(MmapMut::map_anon(bytes + HUGEPAGE_BYTES)?));
    let skip = map.as_ptr().align_offset(HUGEPAGE_BYTES);
    let advice = if kind == PageKind::Huge { Advice::HugePage } else { Advice::NoHugePage };
    // A refused advice leaves ordinary pages, which is allowed.
    _ = map.advise_range(advice, skip, bytes);
    for first in map[skip..skip + bytes].iter_mut().step_by(4096) {
        // SAFETY: a plain write to a borrowed byte. Volatile, so that the page is really touched.
        unsafe { std::ptr::from_mut(first).write_volatile(0) };
    }
    Ok(map[skip..].chunks_exact_mut(piece_bytes).take(count).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_lie_one_behind_the_other_and_do_not_overlap() {
        let mut all = pieces(5, 12_288, PageKind::Huge).unwrap();
        let start = all[0].as_ptr() as usize;
        for (i, piece) in all.iter_mut().enumerate() {
            assert_eq!(piece.as_ptr().align_offset(4096), 0);
            assert_eq!((piece.as_ptr() as usize, piece.len()), (start + i * 12_288, 12_288));
            piece.fill(i as u8 + 1);
        }
        assert!(all.iter().enumerate().all(|(i, piece)| piece.iter().all(|b| *b == i as u8 + 1)));
    }
}
