//! The records: bytes that do not compress, each one different, which can be distinguished from any others.

use anyhow::{Result, ensure};

use crate::content::word;

/// The shortest record: its number and its writer's.
pub(super) const BYTES_MIN: usize = 16;
/// The longest one that every row takes.
pub(super) const BYTES_MAX: usize = 16 << 10;

/// A writer's record: its number (from 1), the writer, and filling that follows from the writer. One buffer
/// for all records of a writer: making a record costs a store.
#[derive(Debug)]
pub(super) struct Record {
    bytes: Vec<u8>,
    number: u64,
}

impl Record {
    /// Returns the records of `writer`, with `bytes` bytes each.
    pub(super) fn of(writer: usize, bytes: usize) -> Self {
        Self { bytes: content(writer as u64, bytes), number: 0 }
    }

    /// Returns the next record.
    #[inline]
    pub(super) fn next(&mut self) -> &[u8] {
        self.number += 1;
        self.bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        &self.bytes
    }
}

/// Returns the number of a record.
pub(super) fn number(record: &[u8]) -> u64 {
    u64_at(record, 0)
}

/// Checks that the bytes a log returned are one of the records.
///
/// # Errors
/// When they are none.
pub(super) fn check(found: &[u8], bytes: usize) -> Result<()> {
    ensure!(found.len() == bytes, "the log gave back {} bytes, not {bytes}", found.len());
    let same = content(u64_at(found, 8), bytes)[8..] == found[8..];
    ensure!(same && number(found) > 0, "the log gave back other bytes than were appended");
    Ok(())
}

fn content(writer: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64).map(|at| match at {
        0 => 0,
        1 => writer,
        at => word((writer << 32) + at),
    });
    let mut content: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    content.truncate(bytes);
    content
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_known_again_and_a_damaged_one_is_not() {
        let mut records = Record::of(7, 100);
        records.next();
        let mut second = records.next().to_vec();
        check(&second, 100).unwrap();
        assert_eq!(number(&second), 2);
        check(&second, 99).unwrap_err();
        second[99] ^= 1;
        check(&second, 100).unwrap_err();
        check(&[0; 100], 100).unwrap_err();
    }
}
