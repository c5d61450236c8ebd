//! What runs on a storage thread: the event loop, the op table, the executor, the scheduler of each device, the stall profiler.

pub(crate) mod scheduler;
pub mod shard;
pub(crate) mod watch;
