//! What is on its way: reads, writes and syncs with what will become of them, and calls with the syncs in
//! them.

use std::collections::VecDeque;
use std::path::PathBuf;

use super::SimIo;
use super::rules::Struck;
use crate::driver::meta::MetaRequest;

#[derive(Debug)]
pub(super) enum Flight {
    Io(Box<IoFlight>),
    Meta(Box<MetaFlight>),
}

/// How a read, write or sync will end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// As it should, apart from what struck it.
    Effect,
    /// With an error, without having reached the disk.
    Refused(i32),
    /// With an error, after it may have had its effect in part.
    Broken(i32),
}

#[derive(Debug)]
pub(super) struct IoFlight {
    pub(super) io: SimIo,
    /// Where the file is; `None` when it never gets there.
    pub(super) disk: Option<usize>,
    pub(super) inode: u64,
    pub(super) direct: bool,
    /// Bytes that may be moved.
    pub(super) len: u32,
    /// When the disk begins with it.
    pub(super) start_ns: u64,
    /// A sync covers changes with smaller numbers.
    pub(super) barrier: u64,
    pub(super) end: End,
    pub(super) struck: Struck,
    /// Its place among events; `None`: never.
    pub(super) event: Option<(u64, u64)>,
}

/// One directory that a call syncs after what it did.
#[derive(Debug)]
pub(super) struct DirSync {
    pub(super) disk: usize,
    pub(super) dir: u64,
    /// The path in the error, when the sync fails.
    pub(super) path: PathBuf,
    /// The directory's own path, for rules.
    pub(super) at: PathBuf,
    /// Whether a name was changed before.
    pub(super) changed: bool,
}

#[derive(Debug)]
pub(super) struct MetaFlight {
    pub(super) request: MetaRequest,
    /// Whether it did what it is for, and has only syncs before it.
    pub(super) acted: bool,
    pub(super) syncs: VecDeque<DirSync>,
    /// Of the sync that is under way.
    pub(super) barrier: u64,
    pub(super) struck: Struck,
}
