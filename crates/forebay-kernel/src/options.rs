//! What can be chosen, and what is told afterwards.

use std::fmt;

use crate::layout;

/// Where walks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EngineKind {
    /// The module `forebay_walk`, below the file system: kernel 6.12 or later, files on ext4 and XFS, block devices.
    Module,
    /// io_uring's own loop, with the step as a BPF program in it: kernel 7.1 or later.
    BpfLoop,
    /// Forebay's reactor, where reads complete ([`File::walk`](forebay::File::walk)): everywhere.
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

/// How walks are to run; see [`KernelWalk::open_with`](crate::KernelWalk::open_with).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// This engine, or an error. Default: the best one that works.
    pub only: Option<EngineKind>,
    /// Walks in the kernel at once, 1 to 64; more wait. Each takes 512 bytes and its program's pages of locked memory.
    /// Default: 32.
    pub depth: u32,
    /// Hops after which a walk fails; its first page is the first hop, and a fan-out counts once. Default: 64.
    pub hops_max: u32,
    /// Polls the device instead of waiting for its interrupts, where the module runs walks and the device has queues for
    /// it: more walks a second, and a processor that does nothing else while walks are under way. Default: no.
    pub polled: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { only: None, depth: 32, hops_max: layout::HOPS_MAX as u32, polled: false }
    }
}

/// What became of walks; see [`KernelWalk::stats`](crate::KernelWalk::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelStats {
    /// Walks that were begun.
    pub walks: u64,
    /// Of these, walks that ran in the reactor although a better engine had been chosen: because that broke, or because the
    /// module could not read a page that the file has (bytes that were added since, a page in two pieces).
    pub fell_back: u64,
    /// System calls that ran walks in the kernel.
    pub enters: u64,
    /// Times that the program of io_uring's loop ran in there; the module does not count.
    pub steps: u64,
}
