//! Commands to a descriptor of the program's own, as `IORING_OP_URING_CMD` carries them.

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::base::error::Result;

/// A command: its descriptor and its part of a submission.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    any(not(target_os = "linux"), forebay_no_uring),
    expect(dead_code, reason = "only a ring reads the fields")
)]
pub struct CommandEntry {
    pub(crate) fd: RawFd,
    pub(crate) operation: u32,
    pub(crate) bytes: [u8; 16],
}

impl CommandEntry {
    /// Returns the command for the driver behind `fd`: the operation is a number of that driver's, and `bytes` are its own part
    /// of the submission.
    pub fn new(fd: RawFd, operation: u32, bytes: [u8; 16]) -> CommandEntry {
        CommandEntry { fd, operation, bytes }
    }
}

/// The owner of commands, and of all that the kernel uses for them; for `forebay-kernel` alone.
///
/// Each command has a number, which its owner chose. The shard keeps the owner until the kernel has ended the command.
#[doc(hidden)]
pub trait Commands: Send + Sync + 'static {
    /// Returns what to submit. Called on the shard inside of its work: it must not call the engine.
    fn entry(&self, number: u32) -> CommandEntry;

    /// Called on the shard, after [`CommandShard::call`](crate::CommandShard::call).
    fn called(self: Arc<Self>);

    /// Called instead: the shard has ended, and calls it no more. May be called on any thread.
    fn refused(&self);

    /// The command with this number has ended, with the driver's result; or it never started, for the reason in the error. Called
    /// on the shard, once for each command.
    fn ended(self: Arc<Self>, number: u32, result: Result<u32>);

    /// Called instead: the shard's end has not waited for the command any longer. The owner is never freed.
    fn lost(&self, number: u32);
}

impl std::fmt::Debug for dyn Commands {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Commands")
    }
}
