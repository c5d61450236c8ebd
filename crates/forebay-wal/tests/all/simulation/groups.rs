//! Reads the log's bytes by the format's page alone, because the crate's own parser is under test.

use std::collections::BTreeMap;
use std::ops::Range;

use crc_fast::CrcAlgorithm;

/// Alignment of every place where a group may start.
pub(crate) const GRAIN: usize = 4096;
/// Lengths of the header, in version 1 and now.
const HEADERS: [usize; 2] = [192, 256];

/// A group that is intact at its place.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) generation: u64,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) reopens: bool,
    pub(crate) lsns: Range<u64>,
    /// The position where the log was cut, if the group is the first of a segment after an open.
    pub(crate) cut: (u64, u64),
}

impl Group {
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.generation, self.offset)
    }

    pub(crate) fn file(&self) -> String {
        file_name(self.generation)
    }
}

pub(crate) fn file_name(generation: u64) -> String {
    format!("{generation:016x}.wal")
}

/// Returns the generation in a segment's name.
pub(crate) fn generation(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".wal").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

/// Returns all intact groups that count, in order, without those that a later opening declared dead.
pub(crate) fn live(files: &BTreeMap<String, Vec<u8>>) -> Vec<Group> {
    let mut groups = Vec::new();
    for (name, bytes) in files {
        let Some(generation) = generation(name) else { continue };
        let mut at = 0;
        while at < bytes.len() {
            match group(bytes, at, generation) {
                Some(group) => {
                    at += group.len;
                    groups.push(group);
                }
                None => at += GRAIN,
            }
        }
    }
    let openings: Vec<Group> = groups.iter().filter(|group| group.reopens).cloned().collect();
    groups.retain(|group| {
        !openings.iter().any(|opening| group.place() >= opening.cut && group.place() < opening.place())
    });
    groups.sort_by_key(Group::place);
    groups
}

fn group(bytes: &[u8], at: usize, generation: u64) -> Option<Group> {
    let u32_at =
        |place: usize| Some(u32::from_le_bytes(bytes.get(at + place..at + place + 4)?.try_into().ok()?));
    let u64_at =
        |place: usize| Some(u64::from_le_bytes(bytes.get(at + place..at + place + 8)?.try_into().ok()?));
    let len = u32_at(12)? as usize;
    let header = HEADERS[usize::from(*bytes.get(at + 6)? != 1)];
    let sane = len >= header && len.is_multiple_of(GRAIN);
    if !bytes[at..].starts_with(b"FBYWAL") || !sane {
        return None;
    }
    // Bytes after records and values, in the file or not, count as the zeros that were there.
    let values = if header == HEADERS[0] { 0 } else { u32_at(208)? as usize };
    let used = (header + u32_at(68)? as usize + values).min(len);
    let mut covered = vec![0; len - 4];
    covered[..8].copy_from_slice(&bytes[at..at + 8]);
    let there = &bytes[at + 12..bytes.len().min(at + used)];
    covered[8..8 + there.len()].copy_from_slice(there);
    let checksum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, &covered) as u32;
    let here = u64_at(32)? == generation && u64_at(40)? == at as u64 && u32_at(8)? == checksum;
    let lsns = u64_at(56)?..u64_at(56)? + u64::from(u32_at(64)?);
    here.then_some(Group {
        generation,
        offset: at as u64,
        len,
        reopens: bytes[at + 77] & 1 == 1,
        lsns,
        cut: (u64_at(120)?, u64_at(128)?),
    })
}
