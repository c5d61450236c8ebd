//! What `forebay-sim` and `forebay-conformance` need of the inside. They are released with this crate: nothing here is stable.
//!
//! A world sets itself as its thread's ([`set_current_world`]); an engine that starts there takes the world's trait object, and neither
//! knows more of the other than is here.

use std::any::Any;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::base::error::{Error, ErrorKind, Result};
use crate::device::{Alignment, Device};
use crate::handle::engine::Engine;
use crate::handle::open::Open;
use crate::io::config::Config;
use crate::io::host::Host;
use crate::io::metadata::{DirEntry, FileKind, Metadata};

pub use crate::base::error::panic_words;
pub use crate::base::pending::{Pending, Sender, Turns, channel};
pub use crate::driver::IoRequest;
pub use crate::driver::meta::{At, Descriptor, DescriptorOwner, FdOwner, MetaReply, MetaRequest, OpenHow};
pub use crate::driver::sim::{SimFile, SimMachine, SimWake, Transfer};
pub use crate::io::metadata::SimMetadata;
pub use crate::io::op::{OpKey, OpKind};
pub use crate::reactor::engine_shared::EngineShared;
pub use crate::reactor::shard::ending::EndReport;
pub use crate::reactor::stepped::{ShardSleep, SteppedShard};
pub use crate::reactor::visited::{InterruptedVisit, VisitedShard};
pub use crate::reactor::world::{MachineCall, World, set_current as set_current_world};

/// The world that runs on the calling thread, by its number, and its time.
pub mod here {
    pub use crate::base::here::{now_ns, set_now_ns, set_world, world};
}

/// The making of [`Error`]s, with the texts and fields of the core's own.
pub trait ErrorExt: Sized {
    /// Returns an error of this kind.
    fn new(kind: ErrorKind, operation: &'static str) -> Self;

    /// Returns an error of the operating system for its number (positive).
    fn os(operation: &'static str, errno: i32) -> Self;

    /// Returns an error of the operating system.
    fn io(operation: &'static str, cause: std::io::Error) -> Self;

    /// Returns the error of a caught panic, with the panic's message.
    fn panicked(operation: &'static str, payload: &(dyn Any + Send)) -> Self;

    /// Returns an error about an argument.
    fn invalid(operation: &'static str, note: impl Into<String>) -> Self;

    /// Returns the error with the path of its file.
    fn with_path(self, path: impl Into<PathBuf>) -> Self;

    /// Returns the error with its range of the file, in bytes.
    fn with_range(self, offset: u64, len: u64) -> Self;

    /// Returns the error with a note for people.
    fn with_note(self, note: impl Into<String>) -> Self;
}

impl ErrorExt for Error {
    fn new(kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, operation)
    }

    fn os(operation: &'static str, errno: i32) -> Error {
        Error::os(operation, errno)
    }

    fn io(operation: &'static str, cause: std::io::Error) -> Error {
        Error::io(operation, cause)
    }

    fn panicked(operation: &'static str, payload: &(dyn Any + Send)) -> Error {
        Error::panicked(operation, payload)
    }

    fn invalid(operation: &'static str, note: impl Into<String>) -> Error {
        Error::invalid(operation, note)
    }

    fn with_path(self, path: impl Into<PathBuf>) -> Error {
        Error::with_path(self, path)
    }

    fn with_range(self, offset: u64, len: u64) -> Error {
        Error::with_range(self, offset, len)
    }

    fn with_note(self, note: impl Into<String>) -> Error {
        Error::with_note(self, note)
    }
}

/// Returns a [`Pending`] whose result is known already.
pub fn ready<T>(result: Result<T>) -> Pending<T> {
    Pending::ready(result)
}

/// Returns whether the options request write access.
pub fn is_writable(open: &Open) -> bool {
    open.is_writable()
}

/// Returns the alignment of a simulated file that is opened for direct I/O: of memory, and of offset and length. `None`: it is opened
/// through the page cache.
pub fn alignment(direct: Option<(u32, u32)>) -> Alignment {
    direct.map_or(Alignment::BUFFERED, |(memory, offset)| Alignment {
        memory,
        offset,
        read_offset: offset,
        reported: true,
        direct: true,
    })
}

/// Returns a simulated disk of that name.
pub fn device(name: &str) -> Device {
    Device::simulated(name)
}

/// Returns an entry of a simulated directory.
pub fn dir_entry(name: OsString, kind: FileKind) -> DirEntry {
    DirEntry::new(name, kind)
}

/// Returns the metadata that a simulated machine has for a file; its clock began at the Unix epoch.
pub fn metadata(file: SimMetadata) -> Metadata {
    Metadata::simulated(file)
}

/// Runs `run` as on a thread without a shard.
pub fn as_no_shard<T>(run: impl FnOnce() -> T) -> T {
    crate::reactor::shard::as_no_shard(run)
}

/// Returns how often, over all devices of an engine, leases were taken, refused and given back, and shards woken because room came back.
pub fn lease_writes(engine: &Engine) -> [u64; 4] {
    let schedulers = engine.shared().lock_devices().schedulers();
    schedulers
        .iter()
        .map(|device| device.lease_writes())
        .fold([0; 4], |sums, counts| std::array::from_fn(|at| sums[at] + counts[at]))
}

/// Starts an engine as [`Engine::start`] does on a machine of that many processors (at least 1), whatever this one has: with as many
/// shards, places for rings of runtimes and caches of waiting threads. The memory is this machine's.
///
/// # Errors
/// Those of [`Engine::start`].
pub fn start_on_processors(processors: usize, config: Config) -> Result<Engine> {
    Engine::start_on(config, Host { processors: processors.max(1), ..Host::here() })
}
