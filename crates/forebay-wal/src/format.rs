//! The bytes of a group: what stands where, how a group is sealed and how it is judged when it is read back.
//!
//! `docs/wal-format.md` has the drawing and the reasons. Everything here is pure: no I/O, no panic on any
//! bytes.

use crc_fast::{CrcAlgorithm, Digest};

mod end;
pub(crate) mod header;
#[cfg(test)]
mod tests;

pub(crate) use end::{EndRecord, SLOT_BYTES, SLOTS, Slot};
pub(crate) use header::{Epochs, Flags, Header, Kind, Position};

/// The first bytes of every group.
pub(crate) const MAGIC: [u8; 6] = *b"FBYWAL";
/// The version that this crate writes, and the only one that it reads.
pub(crate) const VERSION: u16 = 1;
/// Groups start at multiples of it and are multiples of it, in bytes.
pub(crate) const GRAIN: u32 = 4096;
/// The largest write unit that a group is padded to, in bytes.
pub(crate) const UNIT_MAX: u32 = 64 << 10;
/// Bytes of a group's header.
pub(crate) const HEADER_BYTES: usize = 192;
/// Bytes before each record: its length.
pub(crate) const RECORD_HEADER_BYTES: usize = 4;
/// The most bytes of records, with their lengths, that a group may have.
pub(crate) const PAYLOAD_MAX: usize = (1 << 31) - UNIT_MAX as usize - HEADER_BYTES;

/// What stands at a place where a group could begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A group, whole, that was written to this very place. The caller compares the log's id.
    Valid(Header),
    /// A group, whole, that was written to another place: what a recycled segment held before.
    Stale(Header),
    /// The beginning of a group that is not whole, or whose fields contradict each other.
    Torn {
        /// What is wrong with it.
        why: &'static str,
    },
    /// A group, whole, of another version of the format.
    Version(u16),
    /// No group begins here.
    Nothing,
}

/// The file name of the segment `generation`.
pub(crate) fn segment_name(generation: u64) -> String {
    format!("{generation:016x}.wal")
}

/// The generation that a file name stands for, if it is a segment's.
pub(crate) fn segment_generation(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".wal")?;
    let generation = u64::from_str_radix(digits, 16).ok()?;
    (segment_name(generation) == name).then_some(generation)
}

/// The bytes on disk of a group with `payload_len` bytes of records (at most [`PAYLOAD_MAX`]; more is
/// answered with the most) in units of `unit` bytes: header, records and zeros up to the next multiple.
pub(crate) fn group_bytes(payload_len: usize, unit: u32) -> u32 {
    let unit = unit.clamp(GRAIN, UNIT_MAX);
    let bytes = HEADER_BYTES + payload_len.min(PAYLOAD_MAX);
    (bytes as u32).next_multiple_of(unit)
}

/// Writes `header` into the first [`HEADER_BYTES`] of `group`, with its checksum, and answers the checksum,
/// which is the next group's `previous`. The records and the zeros behind them are in place already;
/// `group.len()` becomes the header's `total_len` whatever stands there. A slice shorter than a header is
/// left alone and answered with 0.
pub(crate) fn seal(header: &Header, group: &mut [u8]) -> u32 {
    let total = group.len() as u32;
    let Some(head) = group.first_chunk_mut::<HEADER_BYTES>() else { return 0 };
    Header { total_len: total, ..*header }.write(head);
    let crc = checksum(group, 0);
    group[8..12].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Judges the bytes at `offset` of the segment `generation`; `bytes` reach from there to the segment's end,
/// and what lies behind its end counts as zeros; so does padding. Costs one pass over the group where the magic
/// number stands, two where it is damaged, else nothing.
pub(crate) fn parse(bytes: &[u8], generation: u64, offset: u64) -> Parsed {
    if bytes.len() < MAGIC.len() || bytes[..MAGIC.len()] != MAGIC {
        return Parsed::Nothing;
    }
    let mut head = [0; HEADER_BYTES];
    let have = bytes.len().min(HEADER_BYTES);
    head[..have].copy_from_slice(&bytes[..have]);
    let (header, version) = (Header::read(&head), header::version(&head));
    let (total, payload) = (header.total_len as usize, header.payload_len as usize);
    if total < HEADER_BYTES
        || !total.is_multiple_of(GRAIN as usize)
        || total > PAYLOAD_MAX + UNIT_MAX as usize
    {
        return Parsed::Torn { why: "the group's length cannot be right" };
    }
    // Bounds the zeros that stand for what lies behind the segment's end.
    if total > bytes.len().saturating_add(UNIT_MAX as usize) {
        return Parsed::Torn { why: "the group reaches past the end of its segment" };
    }
    let have = bytes.len().min(total);
    // Padding says nothing: what it was is known, so bytes that changed there take no record.
    let used = (HEADER_BYTES + payload).min(have);
    let is_whole = |used: usize| checksum(&bytes[..used], total - used) == header.crc;
    if !is_whole(have) && !is_whole(used) {
        return Parsed::Torn { why: "the group's checksum is wrong" };
    }
    // The checksum covers the version, so this is a version that somebody wrote and not a flipped bit.
    if version != VERSION {
        return Parsed::Version(version);
    }
    if !header.consistent() || HEADER_BYTES + payload > total {
        return Parsed::Torn { why: "the group's fields contradict each other" };
    }
    // Only padding may lie behind the segment's end: whoever reads the records later reads no further than
    // it.
    let Some(payload) = bytes.get(HEADER_BYTES..HEADER_BYTES + payload) else {
        return Parsed::Torn { why: "the group reaches past the end of its segment" };
    };
    let mut all = records(payload);
    if all.by_ref().count() != header.record_count as usize || !all.rest.is_empty() {
        return Parsed::Torn { why: "the group's records do not add up" };
    }
    match header.position() == (Position { generation, offset }) {
        true => Parsed::Valid(header),
        false => Parsed::Stale(header),
    }
}

/// How long the group is that seems to begin here; `None` where none does, or too few bytes are known to say.
pub(crate) fn claimed_bytes(bytes: &[u8]) -> Option<u64> {
    let head = bytes.get(..16).filter(|head| head.starts_with(&MAGIC))?;
    head.last_chunk().map(|total| u64::from(u32::from_le_bytes(*total)))
}

/// The records of a group, in order, from the bytes after its header (`payload_len` of them). Ends early
/// where the bytes are not records.
pub(crate) fn records(payload: &[u8]) -> Records<'_> {
    Records { rest: payload }
}

/// See [`records`].
#[derive(Clone, Debug)]
pub(crate) struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Records<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.rest.split_first_chunk::<RECORD_HEADER_BYTES>()?;
        let (record, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.rest = rest;
        Some(record)
    }
}

/// CRC-32C of a group, without the four bytes in which it stands, with `zeros` more bytes of zeros behind it.
fn checksum(group: &[u8], zeros: usize) -> u32 {
    const ZEROS: [u8; GRAIN as usize] = [0; GRAIN as usize];
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&group[..8.min(group.len())]);
    digest.update(group.get(12..).unwrap_or(&[]));
    // A segment that ends within the first 12 bytes: the zeros that belong to the checksum's place do not
    // count.
    let mut left = zeros - zeros.min(12usize.saturating_sub(group.len().max(8)));
    while left > 0 {
        let part = left.min(ZEROS.len());
        digest.update(&ZEROS[..part]);
        left -= part;
    }
    digest.finalize() as u32
}
