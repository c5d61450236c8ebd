//! The steps of a sequence: the things that a program may do with a few files.

use std::ops::Range;

use forebay::{Durability, Mode};

/// Handles that a sequence may have open at a time.
pub const HANDLES: u8 = 4;
/// Names that a sequence gives to files: `a`, `b`, ...
pub const NAMES: u8 = 4;

/// One action of a program. Handles and names are numbers below [`HANDLES`] and [`NAMES`]; a step on a handle
/// that is not open is skipped. [`Display`](std::fmt::Display) writes a step as one line that
/// [`FromStr`](std::str::FromStr) reads back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "fields are what their names say; lengths, offsets and ranges are in bytes")]
pub enum Step {
    /// Opens a name; a handle that is open is closed before.
    Open { handle: u8, name: u8, access: Access, mode: Mode },
    /// Closes a handle and waits for the end of the operations that were dropped on it.
    Close { handle: u8 },
    /// One operation, awaited.
    Do { op: Op, place: Place },
    /// One operation whose future is polled a few times and then dropped.
    Drop { op: Op, place: Place, polls: u8 },
    /// Several concurrent operations, all awaited.
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
    /// One of the four calls above, polled a few times and then dropped; its handles are closed immediately, and nothing of it may
    /// happen after that.
    Abandon { call: Box<Step>, polls: u8 },
    /// Renames a file, replacing the file that had the new name.
    Rename { from: u8, to: u8 },
    /// Gives a file a second name.
    HardLink { from: u8, to: u8 },
    /// Renames a file without a sync.
    RenameUnsynced { from: u8, to: u8 },
    /// Gives a file a second name without a sync.
    HardLinkUnsynced { from: u8, to: u8 },
    /// Removes a name.
    Remove { name: u8 },
    /// Makes all names durable.
    SyncDir,
    /// Reads the metadata of an open file.
    Metadata { handle: u8 },
    /// Lists the directory.
    List,
    /// Fills a block of I/O memory and keeps it: no other user of memory may write there.
    Keep { len: u32, pattern: u16 },
}

/// An operation on the bytes of an open file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "fields are what their names say; lengths, offsets and ranges are in bytes")]
pub enum Op {
    /// Reads exactly the range, or fails at the end of the file.
    Read { handle: u8, range: Range<u64> },
    /// Reads the part of the range that the file has.
    ReadUpTo { handle: u8, range: Range<u64> },
    /// Reads into memory of the program's own.
    ReadInto { handle: u8, offset: u64, len: u32 },
    /// Reads many ranges as a batch.
    ReadMany { handle: u8, ranges: Vec<Range<u64>> },
    /// Writes bytes that `pattern` and their place determine.
    Write { handle: u8, offset: u64, len: u32, pattern: u16, durability: Durability },
    /// Makes the file's writes durable.
    Sync { handle: u8, durability: Durability },
}

/// The way in which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Opens an existing file to read only.
    Read,
    /// Opens an existing file to read and write.
    Write,
    /// Creates the file when it does not exist.
    Create,
    /// Creates the file, which must not exist.
    CreateNew,
    /// Creates the file when it does not exist, empties it when it does.
    Truncate,
}

/// The place where an operation's future is polled. "Here" is wherever the sequence runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// Here.
    Here,
    /// In a task on a shard.
    Shard(u8),
    /// A number of polls here, then on that shard.
    ToShard(u8, u8),
    /// A number of polls on that shard, then here.
    FromShard(u8, u8),
}

impl Op {
    /// Returns the handle that the operation is on.
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

/// Returns the `len` bytes that a write with `pattern` puts at `offset`. No two places or patterns are alike
/// for long.
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
