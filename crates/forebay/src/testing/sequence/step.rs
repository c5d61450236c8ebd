//! The steps of a sequence: what a program may do with a few files.

use std::ops::Range;

use crate::io::mode::Mode;
use crate::io::op::Durability;

/// Handles that a sequence may have open at once.
pub const HANDLES: u8 = 4;
/// Names that a sequence gives to files: `a`, `b`, ...
pub const NAMES: u8 = 4;

/// One thing that a program does. Handles and names are numbers below [`HANDLES`] and [`NAMES`]; a step on a handle
/// that is not open is skipped. [`Display`](std::fmt::Display) writes a step as one line that
/// [`FromStr`](std::str::FromStr) reads back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "fields are what their names say; lengths, offsets and ranges are in bytes")]
pub enum Step {
    /// Opens a name; a handle that is open is closed before.
    Open { handle: u8, name: u8, access: Access, mode: Mode },
    /// Closes a handle and waits for the end of what was dropped on it.
    Close { handle: u8 },
    /// One operation, awaited.
    Do { op: Op, place: Place },
    /// One operation whose future is polled a few times and then dropped.
    Drop { op: Op, place: Place, polls: u8 },
    /// Several operations at once, all awaited.
    Join { ops: Vec<Op> },
    /// Reads a range from front to back.
    Scan { handle: u8, range: Range<u64>, buffer: u32, depth: u8 },
    /// Writes pieces of these sizes one behind the other from `offset` on, then closes the append.
    Append { handle: u8, offset: u64, sizes: Vec<u32>, pattern: u16, durability: Durability },
    /// Sets the length.
    Truncate { handle: u8, len: u64 },
    /// Reserves space, and lengthens the file to the range's end.
    Allocate { handle: u8, range: Range<u64> },
    /// Makes a range read as zeros.
    PunchHole { handle: u8, range: Range<u64> },
    /// Copies a range of one file into another, or within one.
    CopyRange { from: u8, range: Range<u64>, to: u8, offset: u64 },
    /// Gives a file another name, replacing what had it.
    Rename { from: u8, to: u8 },
    /// Gives a file a second name.
    HardLink { from: u8, to: u8 },
    /// Takes a name away.
    Remove { name: u8 },
    /// Makes all names durable.
    SyncDir,
    /// Looks at an open file.
    Metadata { handle: u8 },
    /// Lists the directory.
    List,
    /// Fills a block of I/O memory and keeps it: nobody else may write there.
    Keep { len: u32, pattern: u16 },
}

/// An operation on the bytes of an open file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "fields are what their names say; lengths, offsets and ranges are in bytes")]
pub enum Op {
    /// Exactly the range, or the end of the file as an error.
    Read { handle: u8, range: Range<u64> },
    /// What the file has of the range.
    ReadUpTo { handle: u8, range: Range<u64> },
    /// Into memory of the program's own.
    ReadInto { handle: u8, offset: u64, len: u32 },
    /// Many ranges at once.
    ReadMany { handle: u8, ranges: Vec<Range<u64>> },
    /// Bytes that `pattern` and their place determine.
    Write { handle: u8, offset: u64, len: u32, pattern: u16, durability: Durability },
    /// Makes what was written durable.
    Sync { handle: u8, durability: Durability },
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// What exists, to read only.
    Read,
    /// What exists, to read and write.
    Write,
    /// Made when there is none.
    Create,
    /// Must not exist.
    CreateNew,
    /// Made when there is none, emptied when there is one.
    Truncate,
}

/// Where an operation's future is polled. "Here" is wherever the sequence runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// Here.
    Here,
    /// In a task on a shard.
    Shard(u8),
    /// So many times here, then on that shard.
    ToShard(u8, u8),
    /// So many times on that shard, then here.
    FromShard(u8, u8),
}

impl Op {
    /// The handle it is on.
    pub fn handle(&self) -> u8 {
        match self {
            Op::Read { handle, .. }
            | Op::ReadUpTo { handle, .. }
            | Op::ReadInto { handle, .. }
            | Op::ReadMany { handle, .. }
            | Op::Write { handle, .. }
            | Op::Sync { handle, .. } => *handle,
        }
    }

    pub(super) fn is_write(&self) -> bool {
        matches!(self, Op::Write { .. })
    }
}

/// The byte that a write with `pattern` puts at `offset`, for `len` bytes. No two places or patterns are alike for long.
pub(super) fn pattern_bytes(pattern: u16, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    let skip = (offset % 8) as usize;
    let mut word = offset / 8;
    while bytes.len() < len + skip {
        let mixed = (word + 1 + (u64::from(pattern) << 40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        bytes.extend_from_slice(&(mixed ^ (mixed >> 29)).to_le_bytes());
        word += 1;
    }
    bytes.truncate(len + skip);
    bytes.drain(..skip);
    bytes
}
