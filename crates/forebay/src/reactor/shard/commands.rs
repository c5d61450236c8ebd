//! Commands on this shard's ring: a slot each, and no file.

use std::sync::Arc;

use crate::base::class::Class;
use crate::io::command::Commands;
use crate::io::op::{OpBuffer, OpFailure, OpKey, OpKind, OpRequest};
use crate::reactor::account::file_table::NO_FILE;
use crate::reactor::shard::Shard;
use crate::reactor::shard::optable::{Continuation, Slot, SlotState};

impl Shard {
    /// Puts the command with this number of its owner into a slot; the end of this turn submits it.
    ///
    /// # Errors
    /// The engine ends, the ring does not support commands, or the op table is full.
    pub(crate) fn begin_command(&self, owner: &Arc<dyn Commands>, number: u32) -> Result<(), OpFailure> {
        // Not the engine's state alone: an operation that is staged during the shard's end would be submitted.
        let failure = self.engine.failure().or_else(|| self.inbox.failure());
        if let Some(failure) = failure {
            return Err(failure);
        }
        if !self.inbox.takes_commands() {
            return Err(OpFailure::Errno(libc::EOPNOTSUPP));
        }
        let buffer = OpBuffer::Command(owner.clone());
        let mut request = OpRequest::new(OpKind::Command, Class::DEFAULT, number.into(), 0, buffer);
        match self.stage(NO_FILE, &mut request, || Continuation::Command) {
            Some(_) => Ok(()),
            None => Err(OpFailure::Errno(libc::EAGAIN)),
        }
    }

    /// Submits a command. It passes no device's scheduler: its reads, up to a thousand of which some follow others, are the
    /// kernel's, and their time as one would say nothing about the device. Returns false if the driver is full.
    ///
    /// # Errors
    /// The driver carries out no commands.
    #[inline(never)]
    pub(super) fn submit_command(&self, index: u32, slot: &mut Slot) -> Result<bool, OpFailure> {
        // The histograms are of operations that ask the device once.
        slot.sampled = false;
        let OpBuffer::Command(owner) = &slot.buffer else { return Err(OpFailure::Errno(libc::EINVAL)) };
        let (key, entry) = (OpKey { index, generation: slot.generation }, owner.entry(slot.offset as u32));
        // SAFETY: the slot keeps the owner, and with it all that the kernel uses for the command, until `complete` has reported
        // this key, or it is leaked at the shard's end.
        match self.driver.with(|driver| unsafe { driver.submit_command(key, &entry) }) {
            Ok(true) => {
                slot.state = SlotState::InFlight;
                slot.device = 0;
                Ok(true)
            }
            Ok(false) => Err(OpFailure::Errno(libc::EOPNOTSUPP)),
            Err(_) => Ok(false),
        }
    }
}
