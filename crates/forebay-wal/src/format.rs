//! The bytes of a group: their layout, how a group is sealed, and how it is judged when read back.
//!
//! `FORMAT.md` has the drawing and the reasons. All code here is pure: no I/O, and no panic on any
//! bytes.

use crc_fast::{CrcAlgorithm, Digest};

use crate::values::is_table;

mod end_record;
pub(crate) mod header;
#[cfg(test)]
mod tests;

pub(crate) use end_record::{EndRecord, SLOT_BYTES, SLOTS, Slot};
pub(crate) use header::{Epochs, Flags, Header, Kind, Position};

/// The first bytes of every group.
pub(crate) const MAGIC: [u8; 6] = *b"FBYWAL";
/// The version that this crate writes. It reads all versions from 1 on.
pub(crate) const VERSION: u16 = 2;
/// Alignment of groups in bytes: each offset and length is a multiple of it.
pub(crate) const GRAIN: u32 = 4096;
/// The largest write unit that a group is padded to, in bytes.
pub(crate) const UNIT_MAX: u32 = 64 << 10;
/// Length of a group's header, in bytes.
pub(crate) const HEADER_BYTES: usize = 256;
/// Length of a group's header in version 1, in bytes.
pub(crate) const HEADER_V1_BYTES: usize = 192;
/// Bytes before each record, which hold its length.
pub(crate) const RECORD_HEADER_BYTES: usize = 4;
/// Maximum bytes of records and values in a group, including their length fields.
pub(crate) const PAYLOAD_MAX: usize = (1 << 31) - UNIT_MAX as usize - HEADER_BYTES;

/// The content of a place where a group could start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A whole group that was written to this very place. The caller compares the log's id.
    Valid(Header),
    /// A whole group that was written to another place: older content of a recycled segment.
    Stale(Header),
    /// The start of a group that is incomplete or damaged, or whose fields contradict each other.
    Torn {
        /// The reason.
        why: &'static str,
    },
    /// A whole group of another version of the format.
    Version(u16),
    /// No group starts here.
    Nothing,
}

/// Returns the file name of the segment `generation`.
pub(crate) fn segment_name(generation: u64) -> String {
    format!("{generation:016x}.wal")
}

/// Returns the generation in a file name, if it is a segment's name.
pub(crate) fn segment_generation(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".wal")?;
    let generation = u64::from_str_radix(digits, 16).ok()?;
    (segment_name(generation) == name).then_some(generation)
}

/// Returns the bytes on disk of a group with `payload_len` bytes of records and values: header, records, values, and
/// zeros up to the next multiple of `unit` bytes. Caps `payload_len` at [`PAYLOAD_MAX`].
pub(crate) fn group_bytes(payload_len: usize, unit: u32) -> u32 {
    let unit = unit.clamp(GRAIN, UNIT_MAX);
    let bytes = HEADER_BYTES + payload_len.min(PAYLOAD_MAX);
    (bytes as u32).next_multiple_of(unit)
}

/// Writes `header` with its checksum into the first [`HEADER_BYTES`] of `group`. Returns the checksum, which becomes the next
/// group's `previous`. The records and the zeros after them are in place already. The header's `total_len` becomes `group.len()`,
/// and its version this one, regardless of their values. A slice shorter than a header is left unchanged, and the function returns
/// 0.
pub(crate) fn seal(header: &Header, group: &mut [u8]) -> u32 {
    let total = group.len() as u32;
    let Some(head) = group.first_chunk_mut::<HEADER_BYTES>() else { return 0 };
    let header = Header { total_len: total, version: VERSION, crc: 0, ..*header };
    header.write(head);
    debug_assert_eq!(Header::read(head), header, "a header is read back as it was written");
    let crc = checksum(group, 0);
    group[8..12].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Judges the bytes at `offset` of the segment `generation`. `bytes` reach from there to the segment's end.
/// Bytes past that end count as zeros, and so does padding. Costs one pass over the group if the magic number
/// is there, two if the group is damaged, else nothing.
pub(crate) fn parse(bytes: &[u8], generation: u64, offset: u64) -> Content {
    if bytes.len() < MAGIC.len() || bytes[..MAGIC.len()] != MAGIC {
        return Content::Nothing;
    }
    let mut head = [0; HEADER_BYTES];
    let have = bytes.len().min(HEADER_BYTES);
    head[..have].copy_from_slice(&bytes[..have]);
    let header = Header::read(&head);
    let total = header.total_len as usize;
    let used = header.values_range().end;
    if total < HEADER_BYTES
        || !total.is_multiple_of(GRAIN as usize)
        || total > PAYLOAD_MAX + UNIT_MAX as usize
    {
        return Content::Torn { why: "the group's length is invalid" };
    }
    // Limits the number of zeros that stand for bytes past the segment's end.
    if total > bytes.len().saturating_add(UNIT_MAX as usize) {
        return Content::Torn { why: "the group reaches past the end of its segment" };
    }
    let have = bytes.len().min(total);
    // Padding carries no information, as its content is known. So changed bytes there invalidate no record.
    let written = used.min(have);
    let is_whole = |used: usize| checksum(&bytes[..used], total - used) == header.crc;
    if !is_whole(have) && !is_whole(written) {
        return Content::Torn { why: "the group's checksum is wrong" };
    }
    // The checksum covers the version, so a program wrote this version; it is not a flipped bit.
    if !(1..=VERSION).contains(&header.version) || header::is_from_the_future(&head) {
        return Content::Version(header.version);
    }
    if !header.consistent() || used > total {
        return Content::Torn { why: "the group's fields contradict each other" };
    }
    // Only padding may lie past the segment's end: later reads of the records stop there.
    let (Some(payload), Some(table)) = (bytes.get(header.payload_range()), bytes.get(header.values_range()))
    else {
        return Content::Torn { why: "the group reaches past the end of its segment" };
    };
    if header.values_len > 0 && !is_table(table) {
        return Content::Torn { why: "the group's values do not add up" };
    }
    let mut all = records(payload);
    if all.by_ref().count() != header.record_count as usize || !all.rest.is_empty() {
        return Content::Torn { why: "the group's records do not add up" };
    }
    if header.position() == (Position { generation, offset }) {
        Content::Valid(header)
    } else {
        Content::Stale(header)
    }
}

/// Returns the sentence about a group, or a record of the end, that this program does not know.
pub(crate) fn unknown_version(found: u16) -> String {
    if (1..=VERSION).contains(&found) {
        return format!(
            "format version {found} with fields that this program does not know, such as the number of one of several \
             logs; open the log with the program that wrote it"
        );
    }
    format!(
        "format version {found}; this program knows versions 1 to {VERSION}, so open the log with a later program"
    )
}

/// Returns the length of the group that seems to start here; `None` if no group does, or if too few bytes are available to decide.
pub(crate) fn claimed_bytes(bytes: &[u8]) -> Option<u64> {
    let head = bytes.get(..16).filter(|head| head.starts_with(&MAGIC))?;
    head.last_chunk().map(|total| u64::from(u32::from_le_bytes(*total)))
}

/// Returns the records of a group, in order, from the bytes after its header (`payload_len` of them). Stops early at malformed
/// bytes.
pub(crate) fn records(payload: &[u8]) -> Records<'_> {
    Records { rest: payload }
}

/// Iterator over the records of a group; see [`records`].
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

/// Returns the CRC-32C of a group followed by `zeros` zero bytes, without the four bytes of the checksum
/// itself.
fn checksum(group: &[u8], zeros: usize) -> u32 {
    const ZEROS: [u8; GRAIN as usize] = [0; GRAIN as usize];
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&group[..8.min(group.len())]);
    digest.update(group.get(12..).unwrap_or(&[]));
    // The segment may end within the first 12 bytes. Zeros in the checksum's own place do not count.
    let mut left = zeros - zeros.min(12usize.saturating_sub(group.len().max(8)));
    while left > 0 {
        let part = left.min(ZEROS.len());
        digest.update(&ZEROS[..part]);
        left -= part;
    }
    digest.finalize() as u32
}
