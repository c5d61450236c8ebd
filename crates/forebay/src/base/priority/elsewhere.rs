//! The counterpart of the module `kernel` for systems other than Linux, where no thread is urgent.

use std::io;

pub(super) struct PromptThread {
    pub(super) heavier: Option<i32>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Before {}

impl Before {
    pub(crate) fn of_thread() -> Option<Before> {
        None
    }

    pub(crate) fn restore(self) {}
}

pub(super) fn real_time() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn prompt() -> io::Result<PromptThread> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Does nothing: a nice value belongs to a whole process there.
pub(super) fn lower_nice(_nice: i32) {}
