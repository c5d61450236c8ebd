//! The settings of walks, and their counters.

use std::fmt;
use std::time::Duration;

use crate::layout;

/// The engine that runs the walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EngineKind {
    /// The module `forebay_walk`, below the file system: kernel 6.12 or later, files on ext4 and XFS, block devices.
    Module,
    /// io_uring's own loop, with the step as a BPF program in it: kernel 7.1 or later.
    BpfLoop,
    /// Forebay's reactor, with the step where reads complete ([`File::walk`](forebay::File::walk)):
    /// everywhere.
    Reactor,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            EngineKind::Module => "the module",
            EngineKind::BpfLoop => "the BPF loop",
            EngineKind::Reactor => "the reactor",
        })
    }
}

/// The settings of walks; see [`KernelWalk::open_with`](crate::KernelWalk::open_with).
///
/// ```
/// use forebay_kernel::{EngineKind, Options};
///
/// let options = Options::new().only(EngineKind::Module).depth(8);
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "give it to KernelWalk::open_with or LocalWalk::open_with"]
pub struct Options {
    pub(crate) only: Option<EngineKind>,
    pub(crate) depth: u32,
    pub(crate) hops_max: u32,
    pub(crate) polled: bool,
    pub(crate) spin: Duration,
}

impl Options {
    /// Returns the default settings.
    pub fn new() -> Options {
        Options {
            only: None,
            depth: 32,
            hops_max: layout::HOPS_MAX as u32,
            polled: false,
            spin: Duration::ZERO,
        }
    }

    /// Sets the one engine to use: opening fails where it is not possible. Default: the best engine that works.
    pub fn only(mut self, kind: EngineKind) -> Options {
        self.only = Some(kind);
        self
    }

    /// Sets the maximum walks in the kernel, 1 to 64; more wait. Each uses 512 bytes and its program's pages of locked memory.
    /// Default: 32.
    pub fn depth(mut self, walks: u32) -> Options {
        self.depth = walks;
        self
    }

    /// Sets the hops after which a walk fails; its first page is the first hop, and a fan-out counts once. Default: 64.
    pub fn hops_max(mut self, hops: u32) -> Options {
        self.hops_max = hops;
        self
    }

    /// Sets whether to poll the device instead of waiting for its interrupts, where the module runs walks and the device
    /// has queues for it. This gives more walks a second, and occupies a processor for as long as walks are in flight.
    /// Default: no.
    pub fn polled(mut self, polled: bool) -> Options {
        self.polled = polled;
        self
    }

    /// Sets the longest time that the thread spins in the kernel for the next read of a walk, where the module runs walks
    /// and waits for interrupts: up to 200 us, in steps of 1 ns. Default: zero, never.
    ///
    /// A thread that spins need not be woken for each read. That makes a walk on a fast device shorter, and occupies the thread's
    /// processor for as long as its reads last. It spins only while it is the only thread that can run on its processor, and seldom
    /// where the device is slower. For a [`LocalWalk`](crate::LocalWalk); walks of a [`KernelWalk`](crate::KernelWalk) do not spin.
    pub fn spin(mut self, time: Duration) -> Options {
        self.spin = time;
        self
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

/// Counters of walks; see [`KernelWalk::stats`](crate::KernelWalk::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelStats {
    /// Walks that were started.
    pub walks: u64,
    /// Walks, of these, that ran in the reactor although a better engine had been chosen. Either that engine
    /// broke, or the module could not read a page that the file has (bytes that were added since, a page in
    /// two pieces).
    pub fell_back: u64,
    /// System calls that ran walks in the kernel; 0 where a shard's ring has them, whose calls serve all of its work.
    pub enters: u64,
    /// Walks that the module ran as commands on a shard's ring.
    pub commands: u64,
    /// Runs of the program in io_uring's loop; the module does not count its runs.
    pub steps: u64,
}
