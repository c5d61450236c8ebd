//! Which pages of files missed the page cache lately.

use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicU64, Ordering};

/// The unit of the record, for any page size of the machine.
pub(super) const PAGE_BYTES: u64 = 4096;
/// An entry has a bit for each page of a window.
const WINDOW_PAGES: u64 = 16;
/// Entries of a set: windows of several files that fall together.
const WAYS: usize = 4;
/// Sets. The windows of one file lie in one after the other, so the record knows the last 4 GiB that missed, in 512 KiB.
const SETS: usize = 16 << 10;
const PAGE_BITS: u64 = (1 << WINDOW_PAGES) - 1;

/// The record. Threads use it concurrently and unordered: a lost update makes a page miss once more.
pub(super) struct MissRecord {
    /// Each has a part of a hash of file and window above the bits of its pages; 0 is free. The newest of a set is first.
    entries: Box<[AtomicU64]>,
}

/// Returns the numbers of the pages of a range, which is not empty.
pub(super) fn pages(range: &Range<u64>) -> RangeInclusive<u64> {
    debug_assert!(!range.is_empty(), "a read has a byte");
    range.start / PAGE_BYTES..=(range.end - 1) / PAGE_BYTES
}

/// Returns the windows of a range, each with the bits of its pages.
fn windows(range: &Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let (first, last) = pages(range).into_inner();
    (first / WINDOW_PAGES..=last / WINDOW_PAGES).map(move |window| {
        let start = window * WINDOW_PAGES;
        let (from, to) = (first.saturating_sub(start), (last - start).min(WINDOW_PAGES - 1));
        (window, (PAGE_BITS >> (WINDOW_PAGES - 1 - to)) & (PAGE_BITS << from))
    })
}

impl MissRecord {
    pub(super) fn new() -> MissRecord {
        MissRecord { entries: (0..SETS * WAYS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Returns the set of a window of a file, whose number is a hash, and the window's mark above the bits of its pages.
    fn set(&self, file: u64, window: u64) -> (&[AtomicU64], u64) {
        let set = file.wrapping_add(window) as usize % SETS * WAYS;
        let mark = (file ^ window).wrapping_mul(0x9e37_79b9_7f4a_7c15) & !PAGE_BITS;
        (&self.entries[set..set + WAYS], mark)
    }

    /// Returns whether all pages of a range missed before.
    pub(super) fn knows(&self, file: u64, range: &Range<u64>) -> bool {
        windows(range).all(|(window, bits)| {
            let (set, mark) = self.set(file, window);
            set.iter()
                .map(|entry| entry.load(Ordering::Relaxed))
                .any(|entry| entry & (!PAGE_BITS | bits) == mark | bits)
        })
    }

    /// Adds the pages of a range that missed.
    pub(super) fn add(&self, file: u64, range: &Range<u64>) {
        for (window, bits) in windows(range) {
            let (set, mark) = self.set(file, window);
            let known = set.iter().find(|entry| entry.load(Ordering::Relaxed) & !PAGE_BITS == mark);
            if let Some(known) = known {
                known.fetch_or(bits, Ordering::Relaxed);
                continue;
            }
            // The oldest is evicted.
            for way in (1..WAYS).rev() {
                set[way].store(set[way - 1].load(Ordering::Relaxed), Ordering::Relaxed);
            }
            set[0].store(mark | bits, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_range_is_known_once_all_its_pages_have_missed() {
        let record = MissRecord::new();
        assert!(!record.knows(7, &(0..1)));
        record.add(7, &(5000..5001));
        assert!(record.knows(7, &(4096..8192)) && !record.knows(7, &(4095..8192)));
        assert!(!record.knows(7, &(4096..8193)) && !record.knows(8, &(4096..8192)));
        record.add(7, &(8192..300_000));
        assert!(record.knows(7, &(4096..303_104)), "pages, over windows");
        assert!(!record.knows(7, &(4096..303_105)));
        record.add(7, &(65_536 * 40..65_536 * 42));
        assert!(record.knows(7, &(65_536 * 40..65_536 * 42)), "whole windows");
        assert!(!record.knows(7, &(65_536 * 40 - 1..65_536 * 42)));
        let end = i64::MAX as u64;
        record.add(7, &(end - 1..end));
        assert!(record.knows(7, &(end - 4095..end)));
    }

    #[test]
    fn all_of_one_file_is_known_up_to_4_gib_and_nothing_of_a_longer_one_read_in_turn() {
        let record = MissRecord::new();
        let parts = |bytes: u64| (0..bytes / MIB).map(|part| part * MIB..(part + 1) * MIB);
        parts(4096 * MIB).for_each(|part| record.add(99, &part));
        assert!(parts(4096 * MIB).all(|part| record.knows(99, &part)));
        let mut known = 0;
        for part in parts(8192 * MIB) {
            known += u32::from(record.knows(5, &part));
            record.add(5, &part);
        }
        assert_eq!(known, 0);
        assert!(!record.knows(5, &(0..1)) && record.knows(5, &(8191 * MIB..8192 * MIB)));
    }

    /// Windows of one set must not evict each other: each forgotten window is read from the device once more.
    #[test]
    fn a_thousand_files_of_1_mib_are_known() {
        let record = MissRecord::new();
        let hash = |number: u64| number.wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(29);
        (0..1000).for_each(|number| record.add(hash(number), &(0..MIB)));
        let known = (0..1000).filter(|number| record.knows(hash(*number), &(0..MIB))).count();
        assert!(known > 960, "{known}");
    }
}
