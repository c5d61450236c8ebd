//! What happened in a world, as one number: equal digests mean equal runs.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::source::Source;

/// The subject of a note. The numbers are part of digests, so they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum What {
    /// A task of the program was polled: task, place.
    Polled = 1,
    /// A shard had its turn: shard.
    Turn = 2,
    /// The clock moved: nanoseconds.
    Clock = 3,
    /// An operation ended: id, kind, file, offset, length, result.
    Done = 4,
    /// A call about files ended: id, operation, errno.
    Meta = 5,
    /// A fault struck: kind, operation.
    Fault = 6,
    /// A power cut: fates that were decided.
    PowerCut = 7,
    Reboot = 8,
    /// The program noted something, or drew a number.
    Program = 9,
    /// A power cut decided about a sector or a name.
    Kept = 10,
    /// A node other than the first lost its power: node.
    NodeCut = 11,
    /// A message was sent: both addresses, length.
    Sent = 12,
    /// A message arrived: number of its copy, time, messages with the same outcome so far.
    Arrived = 13,
}

/// A running digest. Its input is numbers and bytes that the seed decides: no addresses, no real time.
#[derive(Debug, Default)]
pub(crate) struct History {
    digest: u64,
}

impl History {
    pub(crate) fn note(&mut self, what: What, words: &[u64]) {
        debug_assert!(words.len() < 15);
        let mut bytes = [0u8; 128];
        bytes[..8].copy_from_slice(&(what as u64).to_le_bytes());
        let mut len = 8;
        for word in words.iter().take(15) {
            bytes[len..len + 8].copy_from_slice(&word.to_le_bytes());
            len += 8;
        }
        self.digest = xxh3_64_with_seed(&bytes[..len], self.digest);
    }

    /// Bytes that the program got to see.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.digest = xxh3_64_with_seed(&xxh3_64(bytes).to_le_bytes(), self.digest);
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }
}

/// What decides and what remembers: handed through a world together.
#[derive(Debug)]
pub(crate) struct Fate {
    pub(crate) source: Source,
    pub(crate) history: History,
}

impl Fate {
    pub(crate) fn new(source: Source) -> Fate {
        Fate { source, history: History::default() }
    }
}
