//! A group's header: 192 bytes, little endian.

use super::{HEADER_BYTES, MAGIC, VERSION};

/// A place in a log: later places are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Position {
    /// The segment's number.
    pub(crate) generation: u64,
    /// Bytes from the segment's beginning.
    pub(crate) offset: u64,
}

/// What a group does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Holds records (a REOPEN group may hold none).
    Records,
    /// Holds nothing; its presence proves what its watermark says.
    Mark,
    /// Removes the records after `argument`. `first_lsn` is the next LSN as it was before.
    Truncate,
    /// Removes every record; the next one is `argument`. `first_lsn` is the next LSN as it was before.
    Reset,
    /// Says that salvage accepted the damage from `cut` to `resume`: recovery steps over it.
    Gap,
    /// Not a kind of this version.
    Unknown(u8),
}

/// A group's flag bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(pub(crate) u8);

impl Flags {
    /// The first group after an open, at offset 0 of a fresh segment: what lies from `cut` up to it is dead.
    pub(crate) const REOPEN: Flags = Flags(1);
    /// The segment held older groups before: what lies behind its last group is not zeros. On every group of
    /// it.
    pub(crate) const RECYCLED: Flags = Flags(2);

    /// Whether it is the first group after an open.
    pub(crate) fn reopen(self) -> bool {
        self.0 & Flags::REOPEN.0 != 0
    }

    /// Whether its segment held older groups before.
    pub(crate) fn recycled(self) -> bool {
        self.0 & Flags::RECYCLED.0 != 0
    }

    /// Both sets of flags.
    #[must_use]
    pub(crate) fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// How often the log's records were renumbered or rewritten, and from which LSN on each of the last four
/// times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epochs {
    /// Raised by every truncation after an LSN, every reset and every REOPEN group.
    pub(crate) number: u64,
    /// The first LSN whose record may be another than before: for this epoch, for the one before, and so on.
    pub(crate) firsts: [u64; 4],
}

impl Epochs {
    /// A new log's, whose first record will be `first`.
    pub(crate) fn new(first: u64) -> Epochs {
        Epochs { number: 1, firsts: [first; 4] }
    }

    /// The epoch after this one, in which records from `first` on are new: one past the last kept for a
    /// truncation, the next LSN for a reset. A REOPEN group's comes from
    /// [`Outcome`](crate::recover::Outcome).
    #[must_use]
    pub(crate) fn raised(self, first: u64) -> Epochs {
        self.raised_to(self.number.saturating_add(1), first)
    }

    /// A later epoch; the ones between are taken to have begun at `first` as well.
    #[must_use]
    pub(crate) fn raised_to(self, number: u64, first: u64) -> Epochs {
        let jumps = usize::try_from(number.saturating_sub(self.number)).unwrap_or(usize::MAX);
        let older = |at: usize| at.checked_sub(jumps).map_or(first, |at| self.firsts[at]);
        Epochs { number, firsts: std::array::from_fn(older) }
    }

    /// The lowest LSN that may be another since the epoch `older`; `None`: too long ago to know.
    pub(crate) fn lowest_since(self, older: u64) -> Option<u64> {
        match self.number.checked_sub(older)? {
            0 => Some(u64::MAX),
            jumps => self.firsts.get(..usize::try_from(jumps).ok()?)?.iter().copied().min(),
        }
    }
}

/// Everything in a group's header but the magic number and the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The group's checksum; [`seal`](super::seal) computes it and ignores what stands here.
    pub(crate) crc: u32,
    /// Bytes of the group, with header and padding; `seal` takes the slice's length.
    pub(crate) total_len: u32,
    /// The log's random number.
    pub(crate) log_id: u128,
    /// Its segment.
    pub(crate) generation: u64,
    /// Its place in the segment.
    pub(crate) offset: u64,
    /// The epoch, this group's own raise included.
    pub(crate) epochs: Epochs,
    /// The LSN of its first record; the next LSN, before the group takes effect, if it has none.
    pub(crate) first_lsn: u64,
    /// How many records it holds.
    pub(crate) record_count: u32,
    /// Bytes of its records with their lengths.
    pub(crate) payload_len: u32,
    /// The checksum of the group before it in the chain; 0 for a log's very first.
    pub(crate) previous: u32,
    /// What it does.
    pub(crate) kind: Kind,
    /// Its flags.
    pub(crate) flags: Flags,
    /// Everything below was known to be durable before this group was submitted.
    pub(crate) watermark: Position,
    /// The first record that the log holds once this group is in effect; the next LSN if it holds none.
    pub(crate) first_retained: u64,
    /// The next LSN when the segment was begun.
    pub(crate) base_lsn: u64,
    /// The last LSN kept (`Truncate`), the next LSN (`Reset`), else 0.
    pub(crate) argument: u64,
    /// From where on everything below this group is dead (`REOPEN`); where the damage begins (`Gap`); else
    /// zeros.
    pub(crate) cut: Position,
    /// Where the log goes on (`Gap`); else zeros.
    pub(crate) resume: Position,
    /// The oldest segment that the log needs: recovery begins at its offset 0.
    pub(crate) start_generation: u64,
}

impl Header {
    /// Whether it is no group but the record of the log's end, which has no length.
    pub(crate) fn is_end(&self) -> bool {
        self.total_len == 0
    }

    /// Where the group says that it stands.
    pub(crate) fn position(&self) -> Position {
        Position { generation: self.generation, offset: self.offset }
    }

    /// The place behind it.
    pub(crate) fn end(&self) -> Position {
        let offset = self.offset.saturating_add(u64::from(self.total_len));
        Position { generation: self.generation, offset }
    }

    /// The next LSN once the group is in effect.
    pub(crate) fn next_lsn(&self) -> u64 {
        match self.kind {
            Kind::Truncate => self.argument.saturating_add(1),
            Kind::Reset => self.argument,
            _ => self.first_lsn.saturating_add(u64::from(self.record_count)),
        }
    }

    /// Whether the fields fit each other; a writer of this version never writes others.
    pub(super) fn consistent(&self) -> bool {
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
        kind && reopen
            && empty
            && gap
            && self.flags.0 & !(Flags::REOPEN.0 | Flags::RECYCLED.0) == 0
            && self.watermark <= self.position()
            && self.first_retained <= self.next_lsn()
            && self.start_generation <= self.generation
            && self.first_lsn.checked_add(u64::from(self.record_count)).is_some()
    }

    /// Writes all but the checksum.
    pub(super) fn write(&self, to: &mut [u8; HEADER_BYTES]) {
        let mut put = Put { to, at: 0 };
        put.bytes(&MAGIC);
        put.bytes(&VERSION.to_le_bytes());
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
        debug_assert_eq!(put.at, HEADER_BYTES);
    }

    /// Reads the fields, whatever they are worth.
    pub(super) fn read(from: &[u8; HEADER_BYTES]) -> Header {
        Header {
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

/// The version that a header names.
pub(super) fn version(from: &[u8; HEADER_BYTES]) -> u16 {
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
