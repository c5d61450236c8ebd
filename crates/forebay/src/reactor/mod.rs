//! What runs on a storage thread: the event loop, the op table, the executor, the scheduler of each device, the stall profiler.

pub(crate) mod class_scope;
pub(crate) mod devices;
pub(crate) mod engine_shared;
pub(crate) mod open_file;
pub(crate) mod ranges;
pub(crate) mod read_many;
pub(crate) mod scheduler;
pub mod shard;
pub(crate) mod walk;
pub(crate) mod watch;
#[cfg(feature = "sim")]
pub(crate) mod world;
