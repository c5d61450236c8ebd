//! Who had what of a device, and who held a shard.

use std::sync::Arc;

/// What a class had of a device that it shared; see [`ClassSpec`](crate::ClassSpec).
///
/// Costs are an operation's bytes and 8 KiB for having one, and for a write [`DeviceStats::write_cost`] times that. Both
/// count only while the device was contended. How long its operations waited, and how long the device took, is in [`FlowStats`](crate::FlowStats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClassStats {
    /// The class's name.
    pub class: String,
    /// The physical device's name.
    pub device: String,
    /// Operations that found no room and waited in the class's queue.
    pub queued: u64,
    /// What it had.
    pub received: u64,
    /// What its shares would have brought of what was given while it waited or received.
    pub due: u64,
    /// How long, in nanoseconds, it had operations waiting on a shard and none with the device; several shards add up.
    pub starved_ns: u64,
}

/// A physical device as the scheduler sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Its name.
    pub device: String,
    /// What classes that compete for it may have in flight together, as found so far: bytes, and
    /// 8 KiB for each operation.
    pub budget_bytes: u64,
    /// What a write costs of the device's time beside a read of the same size, as found so far: 0.25 to 16.
    pub write_cost: f64,
    /// Whether both began with a [`Calibration`](crate::Calibration).
    pub calibrated: bool,
}

/// A task, or several of one type, that held a shard for long.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stall {
    /// The type of the task's future: where it was written.
    pub task: &'static str,
    /// Polls that took too long.
    pub polls: u64,
    /// The longest of them.
    pub longest_ns: u64,
    /// Where the task stood in the longest of them that was looked into, with the feature `backtrace` on Linux (x86_64,
    /// aarch64): one line a frame, `function (file:line)`, the innermost first, down to the task's own future; at most 128
    /// frames, and those that were inlined there. `None` without the feature, and until some milliseconds after the poll.
    ///
    /// A poll that takes twice [`Config::stall_after`](crate::Config::stall_after), and some that take less, is looked into
    /// while it runs; with the feature `tracing` there is an event at once, also of a task that never gives its shard back.
    /// A thread of each engine, `forebay-watch`, looks at the shards every half of that time (1 ms at least, 1 s at most),
    /// and once a second after one without polls. It asks a shard's thread by SIGURG, once for such a poll; calls that the
    /// system does not start again (poll(2), nanosleep(2)) then end early there. A program that handles, ignores or blocks
    /// SIGURG when the engine starts keeps it so, and an entry `back-traces` of [`Engine::health`](crate::Engine::health)
    /// says so; otherwise the handler stays when the engine is gone, and does nothing. Memory: 256 KiB a shard from its
    /// first sample on, and a copy of what unwinding needs to know of the loaded code. Turning addresses into lines reads the
    /// program's debug information, on the watcher's thread: up to a second for the first one, if there is a lot of it.
    pub back_trace: Option<Arc<str>>,
}
