//! The code of a storage thread: event loop, op table, executor, a scheduler per device, and stall profiler.

pub(crate) mod class_scope;
pub(crate) mod devices;
pub(crate) mod engine_shared;
pub(crate) mod open_file;
pub(crate) mod ranges;
pub(crate) mod read_many;
pub(crate) mod scheduler;
pub mod shard;
pub(crate) mod stall_profiler;
pub(crate) mod walk;
#[cfg(feature = "sim")]
pub(crate) mod world;
