//! Accounts of operations: counters, files and shares, the same for shards, worker rings and waiting threads.
//!
//! - An *account* has a number, a table of files, a share of each device, and counters: by class and device, by file, and of walks.
//! - A shard owns one, with or without a thread (worker rings), in a `LocalCell`: unlocked, only its thread or its visitor is there.
//! - A *stripe* of waiting threads owns one, in a mutex (`calls.rs`): locked while an operation starts and while it ends, and not
//!   during its system call.
//! - Numbers are assigned to the shards, then the worker rings, then the stripes. By them an account knows its place in a file's
//!   list of entries, its line in a device's scheduler, and its cache of I/O memory.
//! - At the start the device's share admits the operation (`DeviceQueues`), and the file's entry counts a use (`FileTable::enter`).
//! - At the end [`Account::end`] counts it by class, device and file, and releases the use; the share releases its charge.
//! - A file's close waits for its entries, and each of them for its uses. A shard gets a notice; a stripe is locked by the closer.
//! - The engine's end waits for the slots of its shards, and for the uses in its stripes.
//! - Statistics are an [`AccountReport`] and a list of files: shards send them when asked, those of stripes are read under the lock.
//! - Common to all accounts are the device's scheduler (`DeviceScheduler`) and the file's count of entries (`InFlight`): atomics.

pub(crate) mod file_table;

use crate::base::class::Class;
use crate::io::stats::{EndedOp, FlowStats, Flows, WalkStats};
use crate::reactor::scheduler::{Counts, DeviceQueues};
use file_table::{FileTable, NO_FILE};

/// One operation in this many is timed.
const SAMPLE_EVERY: u32 = 32;
/// Walk types with slow steps that are counted without an allocation; any further type costs one. A step is slow whenever its thread is
/// preempted, and counting it must not allocate on the path.
const SLOW_TYPES: usize = 16;

/// The account of a shard, or of some waiting threads; see the module's documentation.
pub(crate) struct Account {
    /// Its number among all accounts of the engine.
    pub(crate) number: usize,
    pub(crate) files: FileTable,
    /// Its share of each device.
    pub(crate) queues: DeviceQueues,
    pub(crate) flows: Flows,
    pub(crate) walks: WalkStats,
    /// Operations that have started.
    begun: u32,
}

/// An account's part of [`Stats`](crate::Stats).
pub(crate) struct AccountReport {
    /// By class and device.
    pub(crate) flows: Vec<((u8, u16), FlowStats)>,
    pub(crate) walks: WalkStats,
    /// The shares received in competition with other classes, by the physical device's name and the class.
    pub(crate) shares: Vec<(String, usize, Counts)>,
}

impl Account {
    pub(crate) fn new(number: usize) -> Account {
        Account {
            number,
            files: FileTable::new(number),
            queues: DeviceQueues::new(number),
            flows: Flows::new(),
            walks: WalkStats { slow_steps: Vec::with_capacity(SLOW_TYPES), ..WalkStats::default() },
            begun: 0,
        }
    }

    /// Counts an operation that starts. Returns whether its times are added to the histograms.
    #[inline]
    pub(crate) fn begin(&mut self) -> bool {
        self.begun = self.begun.wrapping_add(1);
        self.begun.is_multiple_of(SAMPLE_EVERY)
    }

    /// Counts an operation that has ended, and releases its use of the file's entry. Returns true if the entry must be removed now.
    // Always: it is small, and its argument would be passed through memory.
    #[inline(always)]
    pub(crate) fn end(&mut self, file: u32, class: Class, device: u16, op: EndedOp) -> bool {
        self.flows.of(class.0, device).ended(op);
        file != NO_FILE && self.files.leave_after(file, op)
    }

    /// Returns the use of an operation that has not started. Returns true if the entry must be removed now.
    pub(crate) fn leave(&mut self, file: u32) -> bool {
        file != NO_FILE && self.files.leave(file)
    }

    pub(crate) fn report(&self) -> AccountReport {
        AccountReport {
            flows: self.flows.snapshot(),
            walks: self.walks.clone(),
            shares: self.queues.counts(),
        }
    }
}
