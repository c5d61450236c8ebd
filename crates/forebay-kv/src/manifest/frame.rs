//! Splits edits into records and joins them again.
//!
//! A record is version u8 (1, or 2 if the edit has long values in other files or sorted files), flags u8 (bit 0: an edit starts
//! here, bit 1: it ends here), and a part of the edit. An edit without its end was being written when the program ended, and is
//! ignored.

use std::path::Path;

use crate::error::{Error, ErrorKind};

/// Version of the records written.
const VERSION: u8 = 1;
/// Version of the records of an edit with long values in other files, or with sorted files.
const VERSION_EXTENDED: u8 = 2;
const BEGIN: u8 = 1;
const END: u8 = 2;
/// Maximum bytes of an edit in one record.
pub(super) const PART_BYTES: usize = 32 << 10;

/// Returns the records of an edit.
pub(super) fn parts(edit: &[u8], is_extended: bool) -> impl Iterator<Item = Vec<u8>> {
    let version = if is_extended { VERSION_EXTENDED } else { VERSION };
    let count = edit.len().div_ceil(PART_BYTES).max(1);
    (0..count).map(move |index| {
        let part = &edit[index * PART_BYTES..edit.len().min((index + 1) * PART_BYTES)];
        let begin = if index == 0 { BEGIN } else { 0 };
        let end = if index + 1 == count { END } else { 0 };
        let mut record = Vec::with_capacity(part.len() + 2);
        record.extend_from_slice(&[version, begin | end]);
        record.extend_from_slice(part);
        record
    })
}

/// The reason why a record is invalid.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Version(u8),
    Nonsense,
}

impl Fault {
    pub(super) fn told(self, dir: &Path, lsn: u64) -> Error {
        match self {
            Fault::Version(found) => Error::at(
                ErrorKind::Version { found: u16::from(found) },
                dir,
                format!(
                    "the manifest has version {found}; this program knows {VERSION} and {VERSION_EXTENDED}. Use the version \
                     of forebay-kv that wrote it, or a later one"
                ),
            ),
            Fault::Nonsense => {
                let text = format!("record {lsn} of the manifest makes no sense");
                Error::at(ErrorKind::Corruption, dir, text)
            }
        }
    }
}

/// Joins edits from their records, in order.
#[derive(Debug, Default)]
pub(super) struct Joiner {
    edit: Vec<u8>,
    is_open: bool,
}

impl Joiner {
    /// Adds the next record. Returns an edit once it is complete.
    pub(super) fn add(&mut self, record: &[u8]) -> Result<Option<&[u8]>, Fault> {
        let (flags, part) = match record {
            [VERSION | VERSION_EXTENDED, flags, part @ ..] if flags & !(BEGIN | END) == 0 => (*flags, part),
            [] | [VERSION | VERSION_EXTENDED, ..] => return Err(Fault::Nonsense),
            [version, ..] => return Err(Fault::Version(*version)),
        };
        if flags & BEGIN != 0 {
            self.edit.clear();
        } else if !self.is_open {
            return Err(Fault::Nonsense);
        }
        self.edit.extend_from_slice(part);
        self.is_open = flags & END == 0;
        Ok((!self.is_open).then_some(&self.edit[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_of_any_length_come_back_whole_or_not_at_all() {
        for len in [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES] {
            let edit: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let records: Vec<_> = parts(&edit, len % 2 == 0).collect();
            for whole in 0..=records.len() {
                let mut joiner = Joiner::default();
                let mut found = None;
                for record in &records[..whole] {
                    found = joiner.add(record).unwrap().map(<[u8]>::to_vec);
                }
                assert_eq!(found, (whole == records.len()).then(|| edit.clone()));
                // A new edit after an incomplete one is read on its own.
                let last = parts(b"next", false).next().unwrap();
                assert_eq!(joiner.add(&last).unwrap(), Some(&b"next"[..]));
            }
        }
    }

    #[test]
    fn other_versions_and_nonsense_are_told_apart() {
        let mut joiner = Joiner::default();
        assert_eq!(joiner.add(&[3, 3]), Err(Fault::Version(3)));
        assert_eq!(joiner.add(&[]), Err(Fault::Nonsense));
        assert_eq!(joiner.add(&[1, END]), Err(Fault::Nonsense));
    }
}
