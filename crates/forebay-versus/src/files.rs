//! Test files: their bytes, which are a function of the offset, so that any row can check what it read without a second
//! read; memory for direct I/O; and the page cache.

use std::io::{self, Read as _};

use forebay_measure::residency;
use memmap2::{Advice, MmapMut};

use crate::prelude::*;

/// The granularity at which [`Checksum`] checks the bytes read, in bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Returns the eight bytes at word `index` of a test file (little-endian); they pass for random, so nothing compresses them.
#[inline]
pub(crate) fn word(index: u64) -> u64 {
    SplitMix::new(index).next_u64()
}

/// Fills `memory` with the bytes that belong at `offset`; both must be multiples of eight.
pub(crate) fn fill(memory: &mut [u8], offset: u64) {
    for (i, chunk) in memory.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&word(offset / 8 + i as u64).to_le_bytes());
    }
}

/// Checks the first bytes of `got` against the content at `offset` (any offset); checks at most eight bytes.
pub(crate) fn check_start(got: &[u8], offset: u64) -> Result<()> {
    let shift = (offset % 8) as usize;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&word(offset / 8).to_le_bytes());
    bytes[8..].copy_from_slice(&word(offset / 8 + 1).to_le_bytes());
    let length = got.len().min(8);
    ensure!(
        got[..length] == bytes[shift..shift + length],
        "the bytes read at offset {offset} are not the bytes that were written there"
    );
    Ok(())
}

/// Sums the first word of every page of a file, for any order and size of the pieces; one load a page, the same for every row.
#[derive(Default)]
pub(crate) struct Checksum {
    sum: u64,
    bytes: u64,
}

impl Checksum {
    /// Adds `piece`, which was read at `offset`.
    pub(crate) fn add(&mut self, offset: u64, piece: &[u8]) {
        let mut at = offset.next_multiple_of(PAGE_BYTES) - offset;
        while at + 8 <= piece.len() as u64 {
            let start = at as usize;
            let mut first = [0; 8];
            first.copy_from_slice(&piece[start..start + 8]);
            self.sum = self.sum.wrapping_add(u64::from_le_bytes(first));
            at += PAGE_BYTES;
        }
        self.bytes += piece.len() as u64;
    }

    /// Returns the checksum of several parts of the same scan.
    pub(crate) fn of_parts(parts: impl IntoIterator<Item = Self>) -> Self {
        let add = |all: Self, part: Self| Self {
            sum: all.sum.wrapping_add(part.sum),
            bytes: all.bytes + part.bytes,
        };
        parts.into_iter().fold(Self::default(), add)
    }

    /// Fails unless exactly the `file_bytes` bytes of a test file were added.
    pub(crate) fn check(&self, file_bytes: u64) -> Result<()> {
        ensure!(self.bytes == file_bytes, "the scan saw {} bytes of a file of {file_bytes}", self.bytes);
        let mut expected = 0_u64;
        for page in 0..file_bytes / PAGE_BYTES {
            expected = expected.wrapping_add(word(page * PAGE_BYTES / 8));
        }
        ensure!(self.sum == expected, "the scan saw other bytes than those that were written");
        Ok(())
    }
}

/// Returns a random offset of a page of a file of `file_bytes` bytes.
#[inline]
pub(crate) fn page_offset(rng: &mut SplitMix, file_bytes: u64) -> u64 {
    rng.below(file_bytes / PAGE_BYTES) * PAGE_BYTES
}

/// The size of a transparent hugepage, in bytes.
const HUGEPAGE_BYTES: usize = 2 << 20;

/// A page-aligned piece of a region. It lives as long as the process, which runs one sample.
pub(crate) type Piece = &'static mut [u8];

/// The kind of pages that a region requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// Transparent hugepages (`MADV_HUGEPAGE`).
    Huge,
    /// 4 KiB pages (`MADV_NOHUGEPAGE`).
    Small,
}

/// Returns `count` pieces of `piece_bytes` (a multiple of 4096), one behind the other in a new region, all pages already touched.
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

/// Evicts the file from the page cache and checks that it is out. With `drop_caches` (root) the kernel's caches of metadata are
/// dropped too.
pub(crate) fn evict(path: &Path, drop_caches: bool) -> Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    residency::evict(&file)?;
    if drop_caches {
        std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping the kernel's caches")?;
    }
    let (share, path) = (share_of(&file)?, path.display());
    let percent = share * 100.0;
    ensure!(share < 0.01, "{percent:.0} % of {path} stay in the page cache, so nothing read from it is cold");
    Ok(())
}

/// Reads the whole file, so that it is in the page cache, and checks that it is.
pub(crate) fn load(path: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    if share_of(&file)? < 0.99 {
        let mut buffer = vec![0; 1 << 20];
        while file.read(&mut buffer)? > 0 {}
    }
    let (share, path) = (share_of(&file)?, path.display());
    let percent = share * 100.0;
    ensure!(share > 0.99, "only {percent:.0} % of {path} fit into the page cache, so it is not warm");
    Ok(())
}

/// Reads one run of 16 pages in `every` of a file that is not cached, without read-ahead, and checks that no others were loaded.
pub(crate) fn load_every(path: &Path, every: u64) -> Result<()> {
    let file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
    let mut page = [0; 4096];
    // In runs, so that ranges of a few KiB lie in one or the other part.
    const RUN: u64 = 16;
    for number in (0..file.metadata()?.len() / 4096).filter(|number| (number / RUN).is_multiple_of(every)) {
        file.read_exact_at(&mut page, number * 4096)?;
    }
    let share = share_of(&file)?;
    ensure!((share - 1.0 / every as f64).abs() < 0.02, "{share:.2} of {} are cached", path.display());
    Ok(())
}

/// Returns the share of a file's pages that are in the page cache.
pub(crate) fn share(path: &Path) -> Result<f64> {
    share_of(&File::open(path)?)
}

fn share_of(file: &File) -> Result<f64> {
    let length = file.metadata()?.len();
    Ok(residency::resident_bytes(file, length)? as f64 / length as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_accept_the_content_at_any_offset_and_refuse_a_shift() {
        let mut file = vec![0; 64];
        fill(&mut file, 0);
        for offset in 0..40 {
            check_start(&file[offset..offset + 16], offset as u64).unwrap();
            check_start(&file[offset + 1..offset + 17], offset as u64).unwrap_err();
        }
        check_start(&file[3..6], 3).unwrap();
    }

    #[test]
    fn a_checksum_is_the_same_for_pieces_of_any_size_and_notices_a_missing_one() {
        let mut file = vec![0; 8 * PAGE_BYTES as usize];
        fill(&mut file, 0);
        for piece in [512, 4096, 5000, 10_000] {
            let mut sum = Checksum::default();
            for (i, part) in file.chunks(piece).enumerate() {
                sum.add((i * piece) as u64, part);
            }
            // A page's first word that is cut in two is not checked; these sizes cut no word.
            sum.check(file.len() as u64).unwrap();
        }
        let mut sum = Checksum::default();
        sum.add(0, &file[..4096]);
        sum.check(file.len() as u64).unwrap_err();
        let mut sum = Checksum::default();
        sum.add(4096, &file);
        sum.check(file.len() as u64 + 4096).unwrap_err();
    }

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
