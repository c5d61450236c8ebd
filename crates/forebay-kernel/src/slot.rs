//! A walk's slot in the shared memory, with the same layout for all engines inside the kernel.

use std::io;

use crate::error::Error;
use crate::layout as at;
use crate::memory::Memory;
use crate::program::Scratch;

/// The end of a walk: its slot and its outcome.
#[derive(Debug)]
pub(crate) struct WalkEnd {
    pub(crate) slot: u32,
    /// The scratch that its step left, or the error.
    pub(crate) outcome: Result<Scratch, Error>,
}

impl WalkEnd {
    /// Returns whether the module had no step for the walk.
    pub(crate) fn is_detached(&self) -> bool {
        matches!(&self.outcome, Err(Error::Elsewhere { source, .. }) if source.raw_os_error() == Some(libc::ENODEV))
    }
}

/// Returns the offset of the slot.
pub(crate) fn place(slot: u32) -> usize {
    at::SLOTS_AT + slot as usize * at::SLOT_BYTES
}

/// Writes a walk's arguments into its slot.
pub(crate) fn fill(memory: &Memory, number: u32, root: u64, scratch: &Scratch, hops_max: u32) {
    let slot = place(number);
    memory.set_u32(slot + at::SLOT_HOPS_MAX, hops_max);
    memory.set_u64(slot + at::SLOT_AT, root);
    memory.copy_in(slot + at::SLOT_SCRATCH, scratch.bytes());
}

/// Reads an ended walk's result, or its error, out of its slot.
pub(crate) fn ended(memory: &Memory, number: u32) -> WalkEnd {
    let slot = place(number);
    let code = memory.u32(slot + at::SLOT_CODE);
    let offset = memory.u64(slot + at::SLOT_FAILED_AT);
    let hop = memory.u32(slot + at::SLOT_HOPS);
    let source = || io::Error::from_raw_os_error(code as i32);
    let outcome = match memory.u32(slot + at::SLOT_STATE) as usize {
        at::STATE_DONE => {
            let mut scratch = Scratch::new();
            memory.copy_out(slot + at::SLOT_SCRATCH, scratch.bytes_mut());
            Ok(scratch)
        }
        at::STATE_FAILED => Err(Error::Failed { offset, code }),
        at::STATE_IO => Err(Error::Io { offset, hop, source: source() }),
        at::STATE_SHORT => Err(Error::UnexpectedEof { offset, got: code.into() }),
        at::STATE_HOPS => Err(Error::TooManyHops { limit: code }),
        at::STATE_ELSEWHERE => Err(Error::Elsewhere { offset, source: source() }),
        _ => Err(Error::BadAnswer { offset }),
    };
    WalkEnd { slot: number, outcome }
}

/// Returns the end of a walk that the module did not start or did not continue.
pub(crate) fn refused(memory: &Memory, number: u32, errno: i32) -> WalkEnd {
    let offset = memory.u64(place(number) + at::SLOT_AT);
    let source = io::Error::from_raw_os_error(errno);
    WalkEnd { slot: number, outcome: Err(Error::Elsewhere { offset, source }) }
}
