//! Everything in flight: reads, writes and syncs with their decided fates, and calls with the syncs that they
//! contain.

use std::collections::VecDeque;
use std::path::PathBuf;

use forebay::internal::MetaRequest;

use super::SimIo;
use super::rules::Struck;

#[derive(Debug)]
pub(super) enum Flight {
    Io(Box<IoFlight>),
    Meta(Box<MetaFlight>),
}

/// The way in which a read, write or sync will end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With its normal effect, apart from the faults that struck it.
    Effect,
    /// With an error, without having reached the disk.
    Refused(i32),
    /// With an error, after it may have had its effect in part.
    Broken(i32),
}

#[derive(Debug)]
pub(super) struct IoFlight {
    pub(super) io: SimIo,
    /// The disk of the file; `None` when the operation never gets there.
    pub(super) disk: Option<usize>,
    pub(super) inode: u64,
    pub(super) direct: bool,
    /// Bytes that may be moved.
    pub(super) len: u32,
    /// The time at which the disk starts the operation.
    pub(super) start_ns: u64,
    /// A sync covers changes with smaller numbers.
    pub(super) barrier: u64,
    pub(super) end: End,
    pub(super) struck: Struck,
    /// Its place among the events; `None` for an operation that never completes.
    pub(super) event: Option<(u64, u64)>,
}

/// A directory that a call syncs after its change.
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
    /// Whether the call has made its change, so that only its syncs are left.
    pub(super) acted: bool,
    pub(super) syncs: VecDeque<DirSync>,
    /// The barrier of the sync that is under way.
    pub(super) barrier: u64,
    pub(super) struck: Struck,
}
