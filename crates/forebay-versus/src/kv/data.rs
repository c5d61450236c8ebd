//! Keys and values: a function of the key's number, so that every row can check the values it gets.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::content::{fill, word};

/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 16;
/// Bytes of a value that is loaded.
pub(super) const VALUE_BYTES: usize = 1000;
/// Bytes of a key and its value; amplification is measured against that.
pub(super) const ENTRY_BYTES: u64 = (KEY_BYTES + VALUE_BYTES) as u64;

const POOL_BYTES: usize = 64 << 10;

/// A key.
pub(super) type Key = [u8; KEY_BYTES];

/// Returns the key of this number: the number (big-endian, so keys lie in its order) and eight bytes that
/// follow from it.
pub(super) fn key(number: u64) -> Key {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[8..].copy_from_slice(&word(number).to_be_bytes());
    key
}

/// The source of values. Making one costs a copy, so that a load measures the store.
#[derive(Debug)]
pub(super) struct Values {
    pool: Vec<u8>,
}

impl Values {
    /// Returns a pool filled with bytes that do not compress.
    pub(super) fn new() -> Self {
        let mut pool = vec![0; POOL_BYTES];
        fill(&mut pool, 0);
        Self { pool }
    }

    /// Writes the value of a key's number into `value`, which has at least eight bytes.
    #[inline]
    pub(super) fn write(&self, number: u64, value: &mut [u8]) {
        let start = Self::start(number, value.len());
        value.copy_from_slice(&self.pool[start..start + value.len()]);
        value[..8].copy_from_slice(&number.to_le_bytes());
    }

    /// Checks both ends of a value that a store returned.
    ///
    /// # Errors
    /// When it is not the value of that number.
    #[inline]
    pub(super) fn check(&self, number: u64, value: &[u8]) -> Result<()> {
        let length = value.len();
        ensure!(length == VALUE_BYTES, "the value of key {number} has {length} bytes, not {VALUE_BYTES}");
        let start = Self::start(number, length);
        let same = value[..8] == number.to_le_bytes()
            && value[length - 8..] == self.pool[start + length - 8..start + length];
        ensure!(same, "the store gave out another value than that of key {number}");
        Ok(())
    }

    fn start(number: u64, length: usize) -> usize {
        (word(number) % (POOL_BYTES - length) as u64) as usize
    }
}

/// Returns the disk space of the files below a folder, in bytes.
pub(super) fn disk_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() {
            disk_bytes(&entry.path())?
        } else {
            std::os::unix::fs::MetadataExt::blocks(&metadata) * 512
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lie_in_the_order_of_their_numbers_and_values_are_known_again() {
        let values = Values::new();
        for number in [0, 1, 255, 256, 4_000_000] {
            assert!(key(number) < key(number + 1));
            let mut value = [0; VALUE_BYTES];
            values.write(number, &mut value);
            values.check(number, &value).unwrap();
            values.check(number + 1, &value).unwrap_err();
            value[VALUE_BYTES - 1] ^= 1;
            values.check(number, &value).unwrap_err();
            values.check(number, &value[1..]).unwrap_err();
        }
    }
}
