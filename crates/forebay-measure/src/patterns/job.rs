//! The work of one sample of `measure patterns`, and its result.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::super::interleave::{Evidence, Way};
use super::super::pattern::SplitMix;

/// Bytes of a random piece.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Bytes of a strided record: a plausible size for a checkpoint of one variable of a simulation, and a
/// multiple of no page.
pub(super) const RECORD_BYTES: u64 = 47_008;

/// One run of one row with one pattern.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PatternsWork {
    pub(super) row: PatternRow,
    pub(super) pattern: Pattern,
    /// Bytes of all pieces together; the file is at least as long, and was written through.
    pub(super) bytes: u64,
    /// Threads that have the pieces in turn.
    pub(super) participants: usize,
    /// Memory for gathering, in bytes.
    pub(super) memory: u64,
    /// The time in seconds after which the row `o-direct` begins no more writes.
    pub(super) seconds_max: f64,
    /// The seed of places and contents.
    pub(super) seed: u64,
}

/// The pieces and their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pattern {
    /// Blocks of 4 KiB, each of a range once, in random order.
    Random,
    /// Records of 47,008 bytes, one after the other in the file. Participants have the records in turn,
    /// each in order.
    Strided,
}

impl Pattern {
    pub(super) const ALL: [Self; 2] = [Self::Random, Self::Strided];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Strided => "strided",
        }
    }

    pub(super) const fn piece_bytes(self) -> u64 {
        match self {
            Self::Random => BLOCK_BYTES,
            Self::Strided => RECORD_BYTES,
        }
    }
}

impl PatternsWork {
    /// Returns the pieces of participant number `participant`, in its order.
    pub(super) fn pieces(&self, participant: usize) -> Vec<Range<u64>> {
        let len = self.pattern.piece_bytes();
        let mut numbers: Vec<u64> = (0..self.bytes / len).collect();
        if self.pattern == Pattern::Random {
            let mut random = SplitMix::new(self.seed);
            for index in (1..numbers.len()).rev() {
                numbers.swap(index, random.below(index as u64 + 1) as usize);
            }
        }
        let mine = numbers.into_iter().skip(participant).step_by(self.participants.max(1));
        mine.map(|number| number * len..(number + 1) * len).collect()
    }
}

/// Ways to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PatternRow {
    WriteFsync,
    ODirect,
    Combine,
    Collective,
}

impl PatternRow {
    pub(super) const ALL: [Self; 4] = [Self::WriteFsync, Self::ODirect, Self::Combine, Self::Collective];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::WriteFsync => "write-fsync",
            Self::ODirect => "o-direct",
            Self::Combine => "combine",
            Self::Collective => "collective",
        }
    }

    pub(super) const fn is_forebay(self) -> bool {
        matches!(self, Self::Combine | Self::Collective)
    }
}

impl Way for PatternRow {
    fn name(&self) -> &'static str {
        (*self).name()
    }

    fn description(&self) -> &'static str {
        match self {
            Self::WriteFsync => {
                "pwrite of each piece into the page cache, which may use all memory, one fsync at the end"
            }
            Self::ODirect => {
                "pwrite with O_DIRECT of each piece, one at a time in each thread, one fdatasync at the end; a record that \
                 is not aligned is widened to whole pages, whose ends are read before, under a lock"
            }
            Self::Combine => {
                "File::write_combiner of Forebay, one for all threads, with the memory of the table, one flush at the end"
            }
            Self::Collective => {
                "File::collective of Forebay, each thread a participant, one durable write of all"
            }
        }
    }
}

/// The result that the child prints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct PatternsResult {
    /// Bytes written and durable.
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// Writes that the device completed.
    pub(super) requests: Option<u64>,
    pub(super) evidence: Evidence,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_json_are_the_names_in_the_tables() {
        for row in PatternRow::ALL {
            assert_eq!(serde_json::to_value(row).expect("plain"), row.name());
        }
        for pattern in Pattern::ALL {
            assert_eq!(serde_json::to_value(pattern).expect("plain"), pattern.name());
        }
    }

    #[test]
    fn the_participants_have_every_piece_once() {
        for pattern in Pattern::ALL {
            let work = PatternsWork {
                row: PatternRow::Combine,
                pattern,
                bytes: 4 << 20,
                participants: 3,
                memory: 0,
                seconds_max: 1.0,
                seed: 9,
            };
            let mut pieces: Vec<u64> =
                (0..3).flat_map(|mine| work.pieces(mine)).map(|piece| piece.start).collect();
            assert!(!pieces.is_sorted(), "they have them in turn");
            pieces.sort_unstable();
            let len = pattern.piece_bytes();
            assert_eq!(pieces, (0..(4 << 20) / len).map(|number| number * len).collect::<Vec<_>>());
        }
    }
}
