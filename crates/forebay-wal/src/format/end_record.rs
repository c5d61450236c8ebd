//! A record of the log's end, outside of its segments: one slot of the file `wal.end`.
//!
//! The record is a fact of the past: everything before a position was durable, and so was the state of the
//! log there. Facts do not become wrong. An older one is only weaker, so one of two slots may be lost.

use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest};

use super::header::{Epochs, Flags, Header, Kind, Position};
use super::{UNIT_MAX, VERSION};
use crate::values::Stamp;

/// The first bytes of a slot.
const MAGIC: [u8; 6] = *b"FBYEND";
/// Bytes written per slot; the rest of its stretch is left alone.
pub(crate) const SLOT_BYTES: usize = 4096;
/// Offsets of the slots. They are a write unit apart, so that no device tears both.
pub(crate) const SLOTS: [u64; 2] = [0, UNIT_MAX as u64];
/// Length of the fields of version 1, in bytes. The checksum of every version covers as many, so that each version
/// recognises a record of any other.
const FIRST_BYTES: usize = 128;
/// The fields added by version 2, followed by a separate checksum.
const ADDED: Range<usize> = FIRST_BYTES..144;
/// Length of all fields, in bytes.
const FIELDS_BYTES: usize = ADDED.end + 4;

/// The log's end, with the values that its next group would have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndRecord {
    pub(crate) log_id: u128,
    /// Everything before this position was durable.
    pub(crate) position: Position,
    pub(crate) epochs: Epochs,
    pub(crate) next_lsn: u64,
    pub(crate) first_retained: u64,
    pub(crate) start_generation: u64,
    /// The checksum of the last group.
    pub(crate) previous: u32,
    /// The table of values there.
    pub(crate) values: Stamp,
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A whole record and its number; the record with the highest number counts.
    Whole(u64, EndRecord),
    /// A whole record that this version does not know.
    Version(u16),
    Damaged,
}

impl EndRecord {
    pub(crate) fn slot(&self, number: u64) -> [u8; SLOT_BYTES] {
        let mut slot = [0; SLOT_BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            slot[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&[0; 8]);
        put(&self.log_id.to_le_bytes());
        put(&number.to_le_bytes());
        put(&self.position.generation.to_le_bytes());
        put(&self.position.offset.to_le_bytes());
        put(&self.epochs.number.to_le_bytes());
        self.epochs.firsts.iter().for_each(|first| put(&first.to_le_bytes()));
        put(&self.next_lsn.to_le_bytes());
        put(&self.first_retained.to_le_bytes());
        put(&self.start_generation.to_le_bytes());
        put(&self.previous.to_le_bytes());
        // Reserved for the number of a log, as in a group.
        put(&[0; 4]);
        put(&self.values.epoch.to_le_bytes());
        put(&self.values.count.to_le_bytes());
        debug_assert_eq!(at, ADDED.end);
        let crc = checksum(&[&slot[ADDED]]);
        slot[ADDED.end..FIELDS_BYTES].copy_from_slice(&crc.to_le_bytes());
        let crc = checksum(&[&slot[..8], &slot[12..FIRST_BYTES]]);
        slot[8..12].copy_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(
            EndRecord::parse(&slot),
            Slot::Whole(number, *self),
            "a record of the end is read back as it was written"
        );
        slot
    }

    /// Judges the bytes of a slot.
    pub(crate) fn parse(slot: &[u8]) -> Slot {
        let Some(fields) = slot.first_chunk::<FIELDS_BYTES>() else { return Slot::Damaged };
        let u32_at =
            |at: usize| u32::from_le_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if fields[..6] != MAGIC || u32_at(8) != checksum(&[&fields[..8], &fields[12..FIRST_BYTES]]) {
            return Slot::Damaged;
        }
        let version = u16::from_le_bytes([fields[6], fields[7]]);
        // Other than 0 is the number of one of several logs.
        if !(1..=VERSION).contains(&version) || u32_at(124) != 0 {
            return Slot::Version(version);
        }
        if version > 1 && u32_at(ADDED.end) != checksum(&[&fields[ADDED]]) {
            return Slot::Damaged;
        }
        let record = EndRecord {
            log_id: u128::from(u64_at(16)) | u128::from(u64_at(24)) << 64,
            position: Position { generation: u64_at(40), offset: u64_at(48) },
            epochs: Epochs { number: u64_at(56), firsts: [64, 72, 80, 88].map(u64_at) },
            next_lsn: u64_at(96),
            first_retained: u64_at(104),
            start_generation: u64_at(112),
            previous: u32_at(120),
            values: match version {
                1 => Stamp::default(),
                _ => Stamp { epoch: u64_at(128), count: u64_at(136) },
            },
        };
        if record.consistent() { Slot::Whole(u64_at(32), record) } else { Slot::Damaged }
    }

    /// Returns whether the fields agree with each other.
    fn consistent(&self) -> bool {
        self.first_retained <= self.next_lsn && self.start_generation <= self.position.generation
    }

    /// Returns the record as a group of length 0 at the log's end, so that recovery judges it as it judges
    /// groups.
    pub(crate) fn as_group(&self) -> Header {
        Header {
            version: VERSION,
            crc: self.previous,
            total_len: 0,
            log_id: self.log_id,
            generation: self.position.generation,
            offset: self.position.offset,
            epochs: self.epochs,
            first_lsn: self.next_lsn,
            record_count: 0,
            payload_len: 0,
            values_len: 0,
            values: self.values,
            previous: self.previous,
            kind: Kind::Mark,
            flags: Flags::default(),
            watermark: self.position,
            first_retained: self.first_retained,
            base_lsn: self.next_lsn,
            argument: 0,
            cut: Position::default(),
            resume: Position::default(),
            start_generation: self.start_generation,
        }
    }
}

/// Returns the CRC-32C of these bytes together.
fn checksum(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}
