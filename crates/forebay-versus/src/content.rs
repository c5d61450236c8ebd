//! The bytes of every test file: a function of the offset, so that any row can check the bytes that it read
//! without a second read.

use anyhow::{Result, ensure};
use forebay_measure::SplitMix;

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

/// Sums the first word of every page of a file, whatever the order and the size of the pieces; one load a page, the same for every row.
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
            // A page's first word that is cut in two is not checked; these sizes cut none.
            sum.check(file.len() as u64).unwrap();
        }
        let mut sum = Checksum::default();
        sum.add(0, &file[..4096]);
        sum.check(file.len() as u64).unwrap_err();
        let mut sum = Checksum::default();
        sum.add(4096, &file);
        sum.check(file.len() as u64 + 4096).unwrap_err();
    }
}
