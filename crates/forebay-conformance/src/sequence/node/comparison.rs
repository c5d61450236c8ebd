//! Comparison of the bytes found in a file with the content that the model allows.

use std::ops::Range;

use super::Node;
use crate::sequence::Length;
use crate::sequence::sector::{Patch, SECTOR};

/// Bytes that no order of events explains.
#[derive(Clone, Debug)]
pub(in crate::sequence) struct Wrong {
    pub(in crate::sequence) offset: u64,
    pub(in crate::sequence) expected: String,
    pub(in crate::sequence) came: String,
}

impl Node {
    /// Checks the end of a read of `range` that returned `got` bytes, or reported that the file ends after
    /// that many.
    pub(in crate::sequence) fn check_end(&mut self, range: &Range<u64>, got: u64) -> Result<(), Wrong> {
        if range.is_empty() {
            return Ok(());
        }
        let end = range.start + got;
        let possible = match got {
            _ if end == range.end => self.len.max >= end,
            0 => self.len.min <= end,
            _ => self.len.min <= end && end <= self.len.max,
        };
        if !possible {
            let expected = format!("a file of {} bytes", self.len);
            return Err(Wrong { offset: end, expected, came: format!("{got} bytes of {range:?}") });
        }
        if self.pending.is_empty() {
            match got {
                _ if end == range.end => self.len.min = self.len.min.max(end),
                0 => self.len.max = self.len.max.min(end),
                _ => self.settle_len(end),
            }
        }
        Ok(())
    }

    /// Checks the length of the file as it was seen.
    pub(in crate::sequence) fn check_len(&mut self, len: u64) -> Result<(), Wrong> {
        if len < self.len.min || len > self.len.max {
            let expected = format!("a length of {}", self.len);
            return Err(Wrong { offset: len, expected, came: len.to_string() });
        }
        if self.pending.is_empty() {
            self.settle_len(len);
        }
        Ok(())
    }

    fn settle_len(&mut self, len: u64) {
        if !self.len.is_exact() {
            self.len = Length::exactly(len);
            let end = (self.sectors.len() * SECTOR) as u64;
            self.put(&Patch::zeros(len..end));
        }
    }

    /// Checks the bytes that were read from `offset` on.
    pub(in crate::sequence) fn check(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Wrong> {
        for index in Patch::zeros(offset..offset + bytes.len() as u64).sectors() {
            let start = index * SECTOR as u64;
            let from = offset.max(start);
            let to = (offset + bytes.len() as u64).min(start + SECTOR as u64);
            let within = (from - start) as usize..(to - start) as usize;
            let found = &bytes[(from - offset) as usize..(to - offset) as usize];
            let racing = self.is_racing(index);
            let live = self.live(index);
            if !live.allows(&within, found, racing) {
                let at = live.first_difference(&within, found);
                let seen = &found[at - within.start..(at - within.start + 8).min(found.len())];
                let came = seen.iter().map(|byte| format!("{byte:02x}")).collect();
                return Err(Wrong { offset: start + at as u64, expected: live.describe(at), came });
            }
            if !racing && (index as usize) < self.sectors.len() {
                self.state(index).live.settle(&within, found);
            }
        }
        Ok(())
    }

    /// Returns the bytes of a range, if all of them are certain.
    pub(in crate::sequence) fn settled(&self, range: Range<u64>) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize + SECTOR);
        let sectors = Patch::zeros(range.clone()).sectors();
        if range.is_empty() {
            return Some(bytes);
        }
        let skip = range.start - sectors.start * SECTOR as u64;
        for index in sectors {
            bytes.extend_from_slice(self.live(index).settled()?);
        }
        bytes.truncate((skip + range.end - range.start) as usize);
        bytes.drain(..skip as usize);
        Some(bytes)
    }
}
