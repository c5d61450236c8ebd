//! The shares of a device that each class received, and the tasks that held a shard.

use std::sync::Arc;

/// The part of a shared device that a class received; see [`ClassSpec`](crate::ClassSpec).
///
/// The cost of an operation is its bytes and 8 KiB for the operation itself, and for a write
/// [`DeviceStats::write_cost`] times that. Both counts below cover only the time in which the device was
/// contended. The waiting times of its operations and the device's times are in
/// [`FlowStats`](crate::FlowStats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClassStats {
    /// The class's name.
    pub class: String,
    /// The physical device's name.
    pub device: String,
    /// Operations that exceeded the budget and waited in the class's queue.
    pub queued: u64,
    /// Cost of the operations that the class received.
    pub received: u64,
    /// Cost that its shares entitle it to, out of everything that the device gave while the class waited or
    /// received.
    pub due: u64,
    /// Nanoseconds during which it had operations waiting on a shard but no operation at the device; several shards add up.
    pub starved_ns: u64,
}

/// A physical device as the scheduler sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceStats {
    /// The device's name.
    pub device: String,
    /// The most that classes competing for it may have in flight together, as found so far: bytes, and 8 KiB
    /// for each operation.
    pub budget_bytes: u64,
    /// The cost of a write in the device's time, relative to a read of the same size, as found so far: 0.25
    /// to 16.
    pub write_cost: f64,
    /// Whether both started with a [`Calibration`](crate::Calibration).
    pub calibrated: bool,
}

/// A task, or several of one type, that held a shard for long.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stall {
    /// The type of the task's future, which names the place in the source where it was written.
    pub task: &'static str,
    /// Polls that were too long.
    pub polls: u64,
    /// The time of the longest of them, in nanoseconds.
    pub longest_ns: u64,
    /// The task's stack in the longest of those polls that was sampled, with the feature `backtrace` on Linux
    /// (x86_64, aarch64). It has one line a frame, `function (file:line)`, the innermost first, down to the
    /// task's own future: at most 128 frames, and those that were inlined there. `None` without the feature,
    /// and until some milliseconds after the poll.
    ///
    /// A poll of twice [`Config::stall_after`](crate::Config::stall_after) is sampled while it runs, and so are some shorter polls.
    /// With the feature `tracing` an event is emitted immediately, also for a task that never yields its shard. A thread of each
    /// engine, `forebay-watch`, checks the shards every half of that time (1 ms at least, 1 s at most), and once a second after one
    /// second without polls. It interrupts a shard's thread by SIGURG, once for such a poll. Calls that the system does not restart
    /// (poll(2), nanosleep(2)) then end early there.
    ///
    /// A program that handles, ignores or blocks SIGURG when the engine starts keeps it so, and an entry `back-traces` of
    /// [`Engine::health`](crate::Engine::health) reports that. Otherwise the handler stays after the engine's end, and does
    /// nothing. Memory: 256 KiB a shard from its first sample on, and a copy of the unwind information of the loaded code. Turning
    /// addresses into lines reads the program's debug information, on the watcher's thread. The first time that takes up to a
    /// second for large debug information.
    pub back_trace: Option<Arc<str>>,
}
