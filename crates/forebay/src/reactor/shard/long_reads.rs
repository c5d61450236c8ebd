//! Long reads of a shard, which allocate ordinary memory at their turn (`memory/arena/line.rs`).
//!
//! They allocate before their device admits them: so those that wait keep their order, and need no second admission.

use crate::io::op::{OpBuffer, OpFailure};
use crate::memory::arena::{Arena, Ticket};
use crate::reactor::shard::Shard;
use crate::reactor::shard::ops::Ops;
use crate::reactor::shard::optable::{Continuation, Slot};

impl Shard {
    /// Returns the number of operations that only a later look can help: a place in the line is called when it is its turn.
    #[inline]
    pub(super) fn waiting_uncalled(&self) -> u32 {
        self.waiting() - self.ops.with(|ops| ops.lined.len()) as u32
    }

    /// Gives a long read its memory. Returns false if it has to wait in the line; it is there then.
    #[cold]
    pub(super) fn begin_long(&self, ops: &mut Ops, index: u32) -> Result<bool, OpFailure> {
        let mut ticket = None;
        // Earlier reads on this shard have tickets already, so it gets one behind them.
        if self.take_long(ops, index, &mut ticket)? {
            return Ok(true);
        }
        self.counters.memory_waits.set(self.counters.memory_waits.get() + 1);
        ops.lined.extend(ticket.map(|ticket| (index, ticket)));
        Ok(false)
    }

    fn take_long(&self, ops: &mut Ops, index: u32, ticket: &mut Option<Ticket>) -> Result<bool, OpFailure> {
        let slot = ops.table.slot(index);
        let Some(under_way) = self.engine.arena.enter_line(self.index(), slot.len as usize, ticket) else {
            return Ok(false);
        };
        let buffer = self.engine.arena.alloc_long(slot.len as usize)?;
        slot.buffer = OpBuffer::Buffer(buffer);
        slot.has_allowance = true;
        under_way.keep();
        Ok(true)
    }

    /// Allocates memory for the long reads in the line whose turn it is, and lets them be submitted. Returns a read that failed.
    #[cold]
    pub(super) fn serve_line(&self, ops: &mut Ops) -> Option<(u32, OpFailure)> {
        while let Some((index, ticket)) = ops.lined.pop_front() {
            if matches!(ops.table.slot(index).continuation, Continuation::Orphan) {
                return Some((index, OpFailure::Errno(libc::ECANCELED)));
            }
            let mut ticket = Some(ticket);
            match self.take_long(ops, index, &mut ticket) {
                Ok(true) => ops.staged.push_back(index),
                Ok(false) => {
                    ops.lined.extend(ticket.map(|ticket| (index, ticket)));
                    ops.lined.rotate_right(1);
                    break;
                }
                Err(failure) => return Some((index, failure)),
            }
        }
        None
    }
}

/// Gives a long read's part of the line's allowance back: its memory is the program's from now on.
#[cold]
pub(super) fn end_long(arena: &Arena, slot: &mut Slot) {
    slot.has_allowance = false;
    arena.leave_line(slot.len as usize);
}
