//! The header of a group: 256 bytes, little endian; 192 in version 1.

use super::{HEADER_BYTES, HEADER_V1_BYTES, MAGIC};
use crate::values::Stamp;

/// A place in a log: later places are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Position {
    /// The segment's number.
    pub(crate) generation: u64,
    /// Offset in the segment, in bytes.
    pub(crate) offset: u64,
}

/// The effect of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Holds records (a REOPEN group may be empty).
    Records,
    /// Holds no records; its presence proves the durability that its watermark states.
    Mark,
    /// Removes the records after `argument`. `first_lsn` is the next LSN as it was before.
    Truncate,
    /// Removes every record; the next one is `argument`. `first_lsn` is the next LSN as it was before.
    Reset,
    /// Records that salvage accepted the damage from `cut` to `resume`: recovery skips it.
    Gap,
    /// A kind that this version does not define.
    Unknown(u8),
}

/// A group's flag bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(pub(crate) u8);

impl Flags {
    /// The first group after an open, at offset 0 of a fresh segment: everything from `cut` up to it is dead.
    pub(crate) const REOPEN: Flags = Flags(1);
    /// The segment held older groups before, so the bytes after its last group are not zeros. Set on every
    /// group of the segment.
    pub(crate) const RECYCLED: Flags = Flags(2);
    /// The group's table of values is new, or stands in no group that is kept before this one. Other groups
    /// that have the table repeat it.
    pub(crate) const SETS: Flags = Flags(4);

    /// Returns whether this is the first group after an open.
    pub(crate) fn reopen(self) -> bool {
        self.0 & Flags::REOPEN.0 != 0
    }

    /// Returns whether the segment held older groups before.
    pub(crate) fn recycled(self) -> bool {
        self.0 & Flags::RECYCLED.0 != 0
    }

    /// Returns whether the group has a table of values that no kept group before it has.
    pub(crate) fn sets(self) -> bool {
        self.0 & Flags::SETS.0 != 0
    }

    /// Returns the union of both sets of flags.
    #[must_use]
    pub(crate) fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// The log's epoch, a count of the times that records were renumbered or rewritten, with the first affected
/// LSN of each of the last four times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epochs {
    /// Raised by every truncation after an LSN, every reset and every REOPEN group.
    pub(crate) number: u64,
    /// The first LSN whose record may differ from before: for this epoch, for the previous one, and so on.
    pub(crate) firsts: [u64; 4],
}

impl Epochs {
    /// Returns the epochs of a new log, whose first record will be `first`.
    pub(crate) fn new(first: u64) -> Epochs {
        Epochs { number: 1, firsts: [first; 4] }
    }

    /// Returns the epoch after this one, in which records from `first` on are new. `first` is one past the last LSN kept for a
    /// truncation, the next LSN for a reset. The epoch of a REOPEN group is from [`Outcome`](crate::recover::Outcome).
    #[must_use]
    pub(crate) fn raised(self, first: u64) -> Epochs {
        self.raised_to(self.number.saturating_add(1), first)
    }

    /// Returns a later epoch; the epochs between are assumed to start at `first` as well.
    #[must_use]
    pub(crate) fn raised_to(self, number: u64, first: u64) -> Epochs {
        let jumps = usize::try_from(number.saturating_sub(self.number)).unwrap_or(usize::MAX);
        let older = |at: usize| at.checked_sub(jumps).map_or(first, |at| self.firsts[at]);
        Epochs { number, firsts: std::array::from_fn(older) }
    }

    /// Returns the lowest LSN whose record may differ since the epoch `older`; `None` if that epoch is too
    /// old to have an entry.
    pub(crate) fn lowest_since(self, older: u64) -> Option<u64> {
        match self.number.checked_sub(older)? {
            0 => Some(u64::MAX),
            jumps => self.firsts.get(..usize::try_from(jumps).ok()?)?.iter().copied().min(),
        }
    }
}

/// All fields of a group's header except the magic number and the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The version of the format in which the group is written; it determines the header's length.
    pub(crate) version: u16,
    /// The group's checksum; [`seal`](super::seal) computes it and ignores the value here.
    pub(crate) crc: u32,
    /// Length of the group with header and padding, in bytes; `seal` uses the slice's length.
    pub(crate) total_len: u32,
    /// The log's random number.
    pub(crate) log_id: u128,
    /// The group's segment.
    pub(crate) generation: u64,
    /// The group's offset in the segment.
    pub(crate) offset: u64,
    /// The epoch, including an increment by this group itself.
    pub(crate) epochs: Epochs,
    /// The LSN of the group's first record. Without records: the next LSN before the group's effect.
    pub(crate) first_lsn: u64,
    /// Number of records in the group.
    pub(crate) record_count: u32,
    /// Bytes of the group's records, including their length fields.
    pub(crate) payload_len: u32,
    /// Bytes of the table of values behind the records; 0 without a table.
    pub(crate) values_len: u32,
    /// The table of values that is in effect with this group, whichever group has it.
    pub(crate) values: Stamp,
    /// The checksum of the previous group in the chain; 0 for a log's very first group.
    pub(crate) previous: u32,
    pub(crate) kind: Kind,
    pub(crate) flags: Flags,
    /// Everything below was known to be durable before this group was submitted.
    pub(crate) watermark: Position,
    /// The first record in the log once this group is in effect; the next LSN if the log is empty then.
    pub(crate) first_retained: u64,
    /// The next LSN at the segment's first write.
    pub(crate) base_lsn: u64,
    /// The last LSN kept (`Truncate`), the next LSN (`Reset`), else 0.
    pub(crate) argument: u64,
    /// The position from which everything up to this group is dead (`REOPEN`); the start of the damage (`Gap`); else zeros.
    pub(crate) cut: Position,
    /// The position at which the log continues (`Gap`); else zeros.
    pub(crate) resume: Position,
    /// The oldest segment that the log needs: recovery starts at its offset 0.
    pub(crate) start_generation: u64,
}

impl Header {
    /// Returns whether this is the record of the log's end, which has length 0, and not a group.
    pub(crate) fn is_end(&self) -> bool {
        self.total_len == 0
    }

    /// Returns the position stated in the header.
    pub(crate) fn position(&self) -> Position {
        Position { generation: self.generation, offset: self.offset }
    }

    /// Returns the position after the group.
    pub(crate) fn end(&self) -> Position {
        let offset = self.offset.saturating_add(u64::from(self.total_len));
        Position { generation: self.generation, offset }
    }

    /// Returns the length of the header, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        if self.version == 1 { HEADER_V1_BYTES } else { HEADER_BYTES }
    }

    /// Returns the range of the records in the group, in bytes.
    pub(crate) fn payload_range(&self) -> std::ops::Range<usize> {
        self.bytes()..self.bytes() + self.payload_len as usize
    }

    /// Returns the range of the table of values in the group, in bytes; empty without a table.
    pub(crate) fn values_range(&self) -> std::ops::Range<usize> {
        let start = self.payload_range().end;
        start..start + self.values_len as usize
    }

    /// Returns whether records or values would be lost with this group.
    pub(crate) fn holds(&self) -> bool {
        self.record_count > 0 || self.flags.sets()
    }

    /// Returns the next LSN once the group is in effect.
    pub(crate) fn next_lsn(&self) -> u64 {
        match self.kind {
            Kind::Truncate => self.argument.saturating_add(1),
            Kind::Reset => self.argument,
            _ => self.first_lsn.saturating_add(u64::from(self.record_count)),
        }
    }

    /// Returns whether the fields are consistent; a writer of this version never writes others.
    pub(crate) fn consistent(&self) -> bool {
        let kind = match self.kind {
            Kind::Records => true,
            Kind::Mark | Kind::Reset | Kind::Gap => self.record_count == 0 && !self.flags.reopen(),
            Kind::Truncate => {
                self.record_count == 0 && !self.flags.reopen() && self.argument < self.first_lsn
            }
            Kind::Unknown(_) => false,
        };
        let reopen = !self.flags.reopen() || (self.offset == 0 && self.cut <= self.position());
        let empty = self.record_count > 0 || self.payload_len == 0;
        let gap = self.kind != Kind::Gap || (self.cut <= self.resume && self.resume < self.position());
        let table = self.values_len == 0 || self.values.is_some();
        let sets = !self.flags.sets() || (self.kind == Kind::Records && self.values_len > 0);
        let known = Flags::REOPEN.0 | Flags::RECYCLED.0 | if self.version == 1 { 0 } else { Flags::SETS.0 };
        kind && reopen
            && empty
            && gap
            && table
            && sets
            && self.flags.0 & !known == 0
            && self.watermark <= self.position()
            && self.first_retained <= self.next_lsn()
            && self.start_generation <= self.generation
            && self.first_lsn.checked_add(u64::from(self.record_count)).is_some()
    }

    /// Writes all fields except the checksum.
    pub(super) fn write(&self, to: &mut [u8; HEADER_BYTES]) {
        let mut put = Put { to, at: 0 };
        put.bytes(&MAGIC);
        put.bytes(&self.version.to_le_bytes());
        put.u32(0);
        put.u32(self.total_len);
        put.bytes(&self.log_id.to_le_bytes());
        put.u64(self.generation);
        put.u64(self.offset);
        put.u64(self.epochs.number);
        put.u64(self.first_lsn);
        put.u32(self.record_count);
        put.u32(self.payload_len);
        put.u32(self.previous);
        put.bytes(&[self.kind.number(), self.flags.0, 0, 0]);
        put.position(self.watermark);
        put.u64(self.first_retained);
        put.u64(self.base_lsn);
        put.u64(self.argument);
        put.position(self.cut);
        put.position(self.resume);
        put.u64(self.start_generation);
        self.epochs.firsts.into_iter().for_each(|first| put.u64(first));
        debug_assert_eq!(put.at, HEADER_V1_BYTES);
        put.u64(self.values.epoch);
        put.u64(self.values.count);
        put.u32(self.values_len);
        debug_assert_eq!(put.at, UNUSED_AT);
        put.to[UNUSED_AT..].fill(0);
    }

    /// Reads the fields without checking them.
    pub(super) fn read(from: &[u8; HEADER_BYTES]) -> Header {
        let version = version(from);
        let (values, values_len) = match version {
            // Records stand there.
            1 => (Stamp::default(), 0),
            _ => (Stamp { epoch: u64_at(from, 192), count: u64_at(from, 200) }, u32_at(from, 208)),
        };
        Header {
            version,
            values,
            values_len,
            crc: u32_at(from, 8),
            total_len: u32_at(from, 12),
            log_id: u128::from(u64_at(from, 16)) | u128::from(u64_at(from, 24)) << 64,
            generation: u64_at(from, 32),
            offset: u64_at(from, 40),
            epochs: Epochs {
                number: u64_at(from, 48),
                firsts: [160, 168, 176, 184].map(|at| u64_at(from, at)),
            },
            first_lsn: u64_at(from, 56),
            record_count: u32_at(from, 64),
            payload_len: u32_at(from, 68),
            previous: u32_at(from, 72),
            kind: Kind::from_number(from[76]),
            flags: Flags(from[77]),
            watermark: position_at(from, 80),
            first_retained: u64_at(from, 96),
            base_lsn: u64_at(from, 104),
            argument: u64_at(from, 112),
            cut: position_at(from, 120),
            resume: position_at(from, 136),
            start_generation: u64_at(from, 152),
        }
    }
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Kind::Records => 1,
            Kind::Mark => 2,
            Kind::Truncate => 3,
            Kind::Reset => 4,
            Kind::Gap => 5,
            Kind::Unknown(number) => number,
        }
    }

    fn from_number(number: u8) -> Kind {
        match number {
            1 => Kind::Records,
            2 => Kind::Mark,
            3 => Kind::Truncate,
            4 => Kind::Reset,
            5 => Kind::Gap,
            other => Kind::Unknown(other),
        }
    }
}

/// Offset of the fields that have no meaning yet and are 0. The first 4 bytes are reserved for the number of a log,
/// for files that hold several.
const UNUSED_AT: usize = 212;

/// Returns whether a header has values in fields that have no meaning in its version.
pub(super) fn is_from_the_future(from: &[u8; HEADER_BYTES]) -> bool {
    version(from) != 1 && from[UNUSED_AT..].iter().any(|&byte| byte != 0)
}

/// Returns the version stated in a header.
fn version(from: &[u8; HEADER_BYTES]) -> u16 {
    u16::from_le_bytes([from[6], from[7]])
}

struct Put<'a> {
    to: &'a mut [u8; HEADER_BYTES],
    at: usize,
}

impl Put<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.to[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn position(&mut self, value: Position) {
        self.u64(value.generation);
        self.u64(value.offset);
    }
}

fn u32_at(from: &[u8; HEADER_BYTES], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&from[at..at + 4]);
    u32::from_le_bytes(bytes)
}

fn u64_at(from: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&from[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn position_at(from: &[u8; HEADER_BYTES], at: usize) -> Position {
    Position { generation: u64_at(from, at), offset: u64_at(from, at + 8) }
}
