//! Settings of a write combiner and of a collective.

use std::time::Duration;

use forebay::{Class, shard};

const MEMORY_BYTES_DEFAULT: u64 = 16 << 20;
const REQUEST_BYTES_MAX: u64 = 64 << 20;
const DEPTH_MAX: usize = 1024;
const DEADLINE_DEFAULT: Duration = Duration::from_secs(60);

/// The settings of a [`WriteCombiner`](crate::WriteCombiner), a [`Collective`](crate::Collective) or [`Ranks`](crate::Ranks).
///
/// A number out of range is clamped to the nearest valid number.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "give them to WriteCombiner::start, Collective::start or Ranks::meet"]
pub struct Options {
    memory_bytes: Option<u64>,
    pub(crate) request_bytes: Option<u64>,
    pub(crate) depth: Option<usize>,
    class: Option<Class>,
    deadline: Option<Duration>,
    aggregators: Option<usize>,
}

impl Options {
    /// Returns the defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// Sets the most bytes of I/O memory to use, those in flight included; at least 16 pages (64 KiB). Default: 16 MiB. The
    /// engine's own limit, [`Config::arena_bytes_max`](forebay::Config::arena_bytes_max), must allow for it.
    ///
    /// A write combiner makes longer writes with more memory, because neighbouring pages are merged only while they wait together.
    /// Up to a quarter, and at most 8 MiB, is reserved for writes in flight. In addition a page costs about 60 bytes of heap, and 512
    /// more while separate parts of it are written.
    ///
    /// A collective divides it between the shards. The pieces themselves stay in the participants' memory, and each costs 24 bytes of
    /// heap while it is written.
    ///
    /// An aggregator of ranks has windows of a quarter of it, 1 to 64 MiB, and no more than four of them at a time (ROMIO's
    /// `cb_buffer_size` is one). A piece costs about 100 bytes of heap while its window is moved. Rank 0's setting counts.
    pub fn memory_bytes_max(mut self, bytes: usize) -> Options {
        self.memory_bytes = Some(bytes as u64);
        self
    }

    /// Sets the most bytes of one write, 4 KiB to 64 MiB, rounded down to a power of two and to a quarter of a write combiner's memory,
    /// or a collective's memory for a shard. Default: 512 KiB, and 1 MiB for a collective.
    pub fn request_bytes_max(mut self, bytes: usize) -> Options {
        self.request_bytes = Some((bytes as u64).min(REQUEST_BYTES_MAX));
        self
    }

    /// Sets the most writes in flight, of a collective on each shard: 1 to 1,024. Default: 32, and 16 for a collective. The limit matters
    /// where little can be merged; large writes reach the limit on their bytes first.
    pub fn depth(mut self, writes: usize) -> Options {
        self.depth = Some(writes.clamp(1, DEPTH_MAX));
        self
    }

    /// Sets the class of the I/O. Default: that of the task that starts the writer,
    /// [`Class::DEFAULT`](forebay::Class::DEFAULT) outside of shards.
    pub fn class(mut self, class: Class) -> Options {
        self.class = Some(class);
        self
    }

    /// Sets the time limit of each step of [`Ranks`](crate::Ranks): the time between the first rank's call and the last one's, for
    /// a lock of the file, a message, a window's write or read, or a sync. A rank that is idle for this long has failed; while
    /// pieces are moved, a rank that makes all others wait for two to four deadlines, or rank 0 for eight. Use the same limit on
    /// all ranks. Default: 60 s; at least 10 ms.
    pub fn deadline(mut self, step: Duration) -> Options {
        self.deadline = Some(step);
        self
    }

    /// Sets how many ranks of each host, the lowest, become aggregators (ROMIO's `cb_config_list`; `cb_nodes` is that for all
    /// hosts). Each has its own memory and requests. More of them pay off where one processor cannot move the bytes of a host. Rank
    /// 0's setting counts. Default, and least: 1.
    pub fn aggregators(mut self, of_host: usize) -> Options {
        self.aggregators = Some(of_host);
        self
    }

    pub(crate) fn aggregators_of_host(&self) -> usize {
        self.aggregators.unwrap_or(1).max(1)
    }

    pub(crate) fn step_deadline(&self) -> Duration {
        // Longer durations would overflow the clock.
        let limits = (Duration::from_millis(10), Duration::from_secs(1 << 30));
        self.deadline.unwrap_or(DEADLINE_DEFAULT).clamp(limits.0, limits.1)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.unwrap_or(MEMORY_BYTES_DEFAULT)
    }

    pub(crate) fn class_here(&self) -> Class {
        self.class.unwrap_or_else(shard::class)
    }
}
