//! A group, which becomes one write.

use std::sync::Arc;
use std::task::Waker;

use forebay::{Block, BlockMut, Engine};

use crate::batch::Entries;
use crate::format::{HEADER_BYTES, Kind, Position, group_bytes};
use crate::values::Values;

/// Records, or a change of the log, that become durable in one write.
pub(crate) struct Group {
    /// Number of the group, counted since the log was opened.
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) argument: u64,
    /// This is the first group after an open. Then, and in a gap, `cut` is the end of the good groups before
    /// it.
    pub(crate) reopen: bool,
    pub(crate) cut: Position,
    /// The position at which the log continues after a gap.
    pub(crate) resume: Position,
    /// The LSN of the first record; without records, of the next one.
    pub(crate) first_lsn: u64,
    pub(crate) count: u32,
    /// Calls whose records these are, without those that are deferred.
    pub(crate) appends: u32,
    /// The values from this group on, if they change.
    pub(crate) values: Option<Arc<Values>>,
    /// The log's first record from this group on, if that changes.
    pub(crate) retain: Option<u64>,
    /// Once the group is durable, the log's end is recorded outside of the segments.
    pub(crate) record_end: bool,
    /// No one waits for its records, so they are not a reason to write it. A group behind it is.
    pub(crate) is_deferred: bool,
    /// Space for the header, then records. Unallocated in a group without records.
    pub(crate) buffer: BlockMut,
    /// Arrival of the first record that is not deferred, on the engine's clock.
    pub(crate) began_ns: Option<u64>,
    pub(crate) wakers: Vec<Waker>,
}

/// Initial memory of a group; it grows by doubling.
const INITIAL_BYTES: usize = 32 << 10;

impl Group {
    pub(crate) fn new() -> Group {
        Group {
            number: 0,
            kind: Kind::Records,
            argument: 0,
            reopen: false,
            cut: Position::default(),
            resume: Position::default(),
            first_lsn: 0,
            count: 0,
            appends: 0,
            values: None,
            retain: None,
            record_end: false,
            is_deferred: false,
            buffer: BlockMut::default(),
            began_ns: None,
            wakers: Vec::new(),
        }
    }

    /// Returns the bytes of the records with their framing.
    pub(crate) fn framed_bytes(&self) -> usize {
        self.buffer.len().saturating_sub(HEADER_BYTES)
    }

    /// Returns the bytes of the records with their framing, and of the values.
    pub(crate) fn content_bytes(&self) -> usize {
        self.framed_bytes() + self.values.as_ref().map_or(0, |values| values.bytes())
    }

    /// Empties the group and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.buffer.truncate(0);
        (self.kind, self.argument, self.count) = (Kind::Records, 0, 0);
        (self.values, self.retain, self.record_end, self.began_ns) = (None, None, false, None);
        (self.appends, self.is_deferred) = (0, false);
        self.wakers.clear();
    }

    /// Reserves memory for `framed` more bytes of records.
    pub(crate) fn reserve(&mut self, engine: &Engine, framed: usize) -> forebay::Result<()> {
        let needed = self.buffer.len().max(HEADER_BYTES) + framed;
        if needed > self.buffer.capacity() {
            let mut larger = engine.block(needed.next_power_of_two().max(INITIAL_BYTES))?;
            larger.truncate(0);
            larger.extend_from_slice(&self.buffer)?;
            self.buffer = larger;
        }
        if self.buffer.is_empty() { self.buffer.resize(HEADER_BYTES) } else { Ok(()) }
    }
}

/// Returns memory of exactly the size of these records, with the records in it.
pub(crate) fn own_buffer(engine: &Engine, entries: &Entries<'_>, unit: u32) -> forebay::Result<BlockMut> {
    let mut buffer = engine.block(group_bytes(entries.framed_bytes, unit) as usize)?;
    buffer.truncate(0);
    buffer.resize(HEADER_BYTES)?;
    entries.extend(&mut buffer)?;
    debug_assert_eq!(
        buffer.len(),
        HEADER_BYTES + entries.framed_bytes,
        "a record takes as many bytes as were counted for it"
    );
    Ok(buffer)
}

/// Returns the memory of a block whose write has completed, to be filled again.
pub(crate) fn emptied(block: Block) -> BlockMut {
    // Once the block is dropped, the empty slice is the only owner of the memory, unless records of it are still read or
    // stay in memory. Nothing is moved to its front.
    let empty = block.slice(..0);
    drop(block);
    empty.and_then(|empty| empty.try_into_mut().ok()).unwrap_or_default()
}
