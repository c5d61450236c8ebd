//! The part of the door for `forebay-sim` and `forebay-conformance`.
//!
//! A world sets itself as its thread's ([`set_current_world`]); an engine that starts there gets the world's trait object, and
//! neither knows more of the other than is here.

use std::ffi::OsString;

use crate::base::error::Result;
use crate::device::{Alignment, Device};
use crate::handle::engine::Engine;
use crate::handle::open::Open;
use crate::io::config::Config;
use crate::io::host::Host;
use crate::io::metadata::{DirEntry, FileKind, Metadata};

// A world prints the panic that ended one of its runs.
pub use crate::base::error::panic_words;
// Calls of engines and programs wait for a world's answer as they do for a pool's; the suite's cases hand results over.
pub use crate::base::pending::{Pending, Sender, Turns, channel};
// A world's machine reads requests, and completes them by key.
pub use crate::driver::IoRequest;
pub use crate::io::op::{OpKey, OpKind};
// A world's machine carries out calls on names and lengths, and returns its own descriptors.
pub use crate::driver::meta::{At, Descriptor, DescriptorOwner, FdOwner, MetaReply, MetaRequest, OpenHow};
pub use crate::io::metadata::SimMetadata;
// A world is the machine behind its shards' drivers, and has the bytes of its files.
pub use crate::driver::sim::{SimFile, SimMachine, SimWake, Transfer};
// A world keeps the engines that run in it, and says how they ended.
pub use crate::reactor::engine_shared::EngineShared;
pub use crate::reactor::shard::ending::EndReport;
// A world steps shards and visits rings, in any order.
pub use crate::reactor::stepped::{ShardSleep, SteppedShard};
pub use crate::reactor::visited::{InterruptedVisit, VisitedShard};
// An engine that starts on a world's thread finds the world, and asks it.
pub use crate::reactor::world::{MachineCall, World, set_current as set_current_world};

/// The number and the time of the world that runs on the calling thread; the world sets both.
pub mod here {
    pub use crate::base::here::{now_ns, set_now_ns, set_world, world};
}

/// Returns a [`Pending`] with a known result, for calls that a world or the suite refuses immediately.
pub fn ready<T>(result: Result<T>) -> Pending<T> {
    Pending::ready(result)
}

/// Returns whether the options request write access, which the suite asks for on a namespace as well.
pub fn is_writable(open: &Open) -> bool {
    open.is_writable()
}

/// Returns the alignment of a simulated file that is opened for direct I/O: of memory, and of offset and length. `None`: it is
/// opened through the page cache.
pub fn alignment(direct: Option<(u32, u32)>) -> Alignment {
    direct.map_or(Alignment::BUFFERED, |(memory, offset)| Alignment {
        memory,
        offset,
        read_offset: offset,
        reported: true,
        direct: true,
    })
}

/// Returns a simulated disk of that name, to which a world's files belong.
pub fn device(name: &str) -> Device {
    Device::simulated(name)
}

/// Returns an entry of a simulated directory, which a world lists.
pub fn dir_entry(name: OsString, kind: FileKind) -> DirEntry {
    DirEntry::new(name, kind)
}

/// Returns the metadata that a simulated machine has for a file; its clock starts at the Unix epoch.
pub fn metadata(file: SimMetadata) -> Metadata {
    Metadata::simulated(file)
}

/// Runs `run` as on a thread without a shard, because a world may step other shards while a shard waits for it.
pub fn as_no_shard<T>(run: impl FnOnce() -> T) -> T {
    crate::reactor::shard::as_no_shard(run)
}

/// Returns how often, over all devices of an engine, leases were taken, refused and returned, and shards woken because of released
/// room. A test of the simulator counts what shards write in common.
pub fn lease_writes(engine: &Engine) -> [u64; 4] {
    let schedulers = engine.shared().lock_devices().schedulers();
    schedulers
        .iter()
        .map(|device| device.lease_writes())
        .fold([0; 4], |sums, counts| std::array::from_fn(|at| sums[at] + counts[at]))
}

/// Starts an engine as [`Engine::start`] does on a machine of that many processors (at least 1), regardless of this machine's: with
/// as many shards, places for rings of runtimes and caches of waiting threads. The memory is this machine's. A test has the
/// footprint of a large machine.
///
/// # Errors
/// Those of [`Engine::start`].
pub fn start_on_processors(processors: usize, config: Config) -> Result<Engine> {
    Engine::start_on(config, Host { processors: processors.max(1), ..Host::here() })
}
