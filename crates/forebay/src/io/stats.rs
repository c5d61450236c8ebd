//! The counters of a running engine, per class and device.

use std::fmt;

use hdrhistogram::Histogram;

use crate::base::priority::Priority;
use crate::io::exposition::Exposition;
use crate::io::op::OpKind;

mod classes;
mod files;

pub use classes::{ClassStats, DeviceStats, Stall};
pub use files::FileStats;
pub(crate) use files::{EndedOp, FileCounts, FileReport, FileSum, PageCacheCounts, PageCacheSum};

/// Counts and times since the engine started; see [`Engine::stats`](crate::Engine::stats).
///
/// Counts are exact. Times are those of one operation in 32 (sampled), in nanoseconds. They are kept in
/// histograms with two significant digits from 1 ns to 60 s; longer times count as 60 s.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// One entry for each class and device that was used.
    pub flows: Vec<FlowStats>,
    /// One entry for each shard.
    pub shards: Vec<ShardStats>,
    /// One entry for each ring of a Tokio runtime's worker (feature `tokio`); see [`Config::worker_rings`](crate::Config::worker_rings).
    /// Their operations are in `flows` and `classes` like those of shards.
    pub worker_rings: Vec<ShardStats>,
    /// Operations that threads in `.wait()` carried out themselves; see [`Config::wait_calls`](crate::Config::wait_calls). They are in
    /// `flows`, and in no shard's entry.
    pub wait_calls: u64,
    /// Reads of buffered and adaptive files that the page cache served on the caller's thread; they are in no flow. Each range of a
    /// batch counts, and each part of 4 MiB of a longer read.
    pub page_cache_reads: u64,
    /// Bytes of those reads.
    pub page_cache_bytes: u64,
    /// Reads that tried the page cache and missed.
    pub page_cache_misses: u64,
    /// Reads of adaptive files that did not try it: the file's hit rate was low, or the range of a batch longer than 4 MiB.
    pub page_cache_skips: u64,
    /// One entry for each class that had to share a device with others, by class and physical device.
    pub classes: Vec<ClassStats>,
    /// One entry for each physical device that files were opened on.
    pub devices: Vec<DeviceStats>,
    /// Tasks that held their shard longer than [`Config::stall_after`](crate::Config::stall_after), by their
    /// future's type.
    pub stalls: Vec<Stall>,
    /// Counts of dependent reads.
    pub walks: WalkStats,
    /// The engine's I/O memory.
    pub memory: MemoryStats,
}

impl Stats {
    /// Returns the statistics as text in OpenMetrics 1.0, which Prometheus reads; [`Exposition`](crate::Exposition) joins them with
    /// other figures.
    pub fn to_open_metrics(&self) -> String {
        let mut page = Exposition::open_metrics();
        page.stats(self);
        page.finish()
    }
}

/// Operations of one class on one device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FlowStats {
    /// The class's name.
    pub class: String,
    /// The device's name, or `"-"` for operations without a file.
    pub device: String,
    /// Reads that have ended, including failures.
    pub reads: u64,
    /// Writes that have ended, including failures.
    pub writes: u64,
    /// Syncs that have ended, those that belong to a durable write included.
    pub syncs: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Bytes that programs requested and got by reads. Bytes behind the end of a file do not count.
    pub read_bytes_asked: u64,
    /// Bytes read for them: more than requested where ranges were widened to the device's alignment or
    /// merged.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Time from the request until its submission to the device.
    pub queued_ns: Latency,
    /// Time from submission until the completion was reaped.
    pub device_ns: Latency,
    /// Time from there until the waiting future had the result, for futures on the shard.
    pub handed_over_ns: Latency,
}

/// The work of one shard's thread.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ShardStats {
    /// The priority that its thread was granted.
    pub priority: Priority,
    /// Turns of the event loop.
    pub turns: u64,
    /// System calls that entered the driver; at most one a turn.
    pub enters: u64,
    /// Wake-ups by other threads that needed a system call.
    pub kicks: u64,
    /// Waits that started by spinning.
    pub spins: u64,
    /// Waits among `spins` that a completion or message ended.
    pub spins_useful: u64,
    /// Operations in flight now.
    pub in_flight: u32,
    /// Slots of the op table in use.
    pub slots_used: u32,
    /// Slots that exist in the op table.
    pub slots: u32,
    /// Tasks that have not ended.
    pub tasks: usize,
    /// Operations that found no arena memory at their turn and waited for some.
    pub memory_waits: u64,
    /// Completions that named no slot in use; anything but zero is a bug.
    pub stray_completions: u64,
    /// Requests whose completion was polled for; see [`Config::polling`](crate::Config::polling).
    pub polled: u64,
    /// Turns in which the shard polled for them, each a system call.
    pub polls: u64,
    /// Turns among `polls` that found nothing, which is the cost of polling.
    pub polls_empty: u64,
    /// Requests for which the file system or the device refused polling; they were made in the ordinary way.
    pub polls_refused: u64,
}

/// Counts of walks; see [`Walk`](crate::Walk).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct WalkStats {
    /// Walks that started.
    pub walks: u64,
    /// Reads that followed from one another, roots included; concurrent reads count once.
    pub hops: u64,
    /// Steps that ran, which is the number of blocks that walks inspected.
    pub steps: u64,
    /// Blocks among them that the page cache delivered immediately.
    pub inline_blocks: u64,
    /// Walks whose state or result was too large for its slot and was boxed.
    pub boxed_states: u64,
    /// Wake-ups at the end of a walk, or of a batch of walks.
    pub wakes: u64,
    /// Steps of more than 20 us, by the walk's type. Where the processor has no steady counter, one step in 32 is timed.
    pub slow_steps: Vec<SlowStep>,
}

/// Walks whose steps hold up their shard.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlowStep {
    /// The walk's type.
    pub walk: &'static str,
    /// Steps of more than 20 us.
    pub steps: u64,
    /// The time of the longest of them, in nanoseconds.
    pub longest_ns: u64,
}

impl WalkStats {
    #[cold]
    pub(crate) fn add_slow(&mut self, walk: &'static str, ns: u64) {
        self.merge_slow(&SlowStep { walk, steps: 1, longest_ns: ns });
    }

    fn merge_slow(&mut self, slow: &SlowStep) {
        match self.slow_steps.iter_mut().find(|known| known.walk == slow.walk) {
            Some(known) => {
                known.steps += slow.steps;
                known.longest_ns = known.longest_ns.max(slow.longest_ns);
            }
            None => self.slow_steps.push(slow.clone()),
        }
    }

    pub(crate) fn merge(&mut self, other: &WalkStats) {
        self.walks += other.walks;
        self.hops += other.hops;
        self.steps += other.steps;
        self.inline_blocks += other.inline_blocks;
        self.boxed_states += other.boxed_states;
        self.wakes += other.wakes;
        other.slow_steps.iter().for_each(|slow| self.merge_slow(slow));
    }
}

/// The engine's I/O memory.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes of arena mapped now.
    pub arena_bytes: u64,
    /// The limit of `arena_bytes`.
    pub arena_bytes_max: u64,
    /// Bytes in buffers that live blocks and operations hold, and of blocks in ordinary memory that share the limit of `arena_bytes`.
    pub held_bytes: u64,
    /// Bytes of ordinary memory in use because the arena was empty.
    pub overflow_bytes: u64,
    /// Allocations of ordinary memory because the arena was empty.
    pub overflow_allocations: u64,
    /// Bytes of ordinary memory that hold results of batches ([`File::read_many`](crate::File::read_many)), which no setting limits, and
    /// of reads that are [long](crate::File::read) for the arena.
    pub result_bytes: u64,
    /// The number of times that memory of the program ([`IoMemory`](crate::IoMemory)) was leaked because it could not be
    /// dropped.
    pub leaked_lends: u64,
}

/// A distribution of times in nanoseconds, with two significant digits.
#[derive(Clone)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Latency {
        Latency::new()
    }
}

impl Latency {
    pub(crate) fn new() -> Latency {
        // Bounds and digits are constants that the library accepts. Should it ever reject them, an
        // auto-resizing histogram of one digit is always possible, with coarser figures.
        let histogram =
            Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2).or_else(|_| Histogram::new(1)).unwrap_or_else(
                |_| unreachable!("one significant digit is within hdrhistogram's range of 0 to 5"),
            );
        Latency(histogram)
    }

    /// Adds a time. One above 60 s counts as 60 s.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    pub(crate) fn merge(&mut self, other: &Latency) {
        let added = self.0.add(&other.0);
        debug_assert!(added.is_ok(), "both have the same bounds");
    }

    /// Returns the number of times recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the value that the share `quantile` (0.0 to 1.0) of times does not exceed; 0 when nothing was
    /// recorded.
    pub fn ns_at(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile)
    }

    /// Returns how many times are not above `ns`, with the two digits of the histogram.
    pub fn count_up_to(&self, ns: u64) -> u64 {
        self.0.count_between(0, ns)
    }

    /// Returns the arithmetic mean; 0 when nothing was recorded.
    pub fn ns_mean(&self) -> f64 {
        self.0.mean()
    }

    /// Returns the largest time; 0 when nothing was recorded.
    pub fn ns_max(&self) -> u64 {
        self.0.max()
    }
}

impl fmt::Debug for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latency")
            .field("count", &self.count())
            .field("ns_p50", &self.ns_at(0.5))
            .field("ns_p99", &self.ns_at(0.99))
            .field("ns_max", &self.ns_max())
            .finish()
    }
}

const LATENCY_NS_MAX: u64 = 60_000_000_000;

impl FlowStats {
    pub(crate) fn new(class: String, device: String) -> FlowStats {
        FlowStats {
            class,
            device,
            reads: 0,
            writes: 0,
            syncs: 0,
            failures: 0,
            read_bytes_asked: 0,
            read_bytes: 0,
            write_bytes: 0,
            queued_ns: Latency::new(),
            device_ns: Latency::new(),
            handed_over_ns: Latency::new(),
        }
    }

    /// Counts an operation that has ended.
    #[inline]
    pub(crate) fn ended(&mut self, op: EndedOp) {
        let bytes = u64::from(op.bytes);
        self.failures += u64::from(op.has_failed);
        match op.kind {
            OpKind::Read => {
                self.reads += 1;
                self.read_bytes += bytes;
                self.read_bytes_asked += u64::from(op.asked.min(op.bytes));
            }
            OpKind::Write => {
                self.writes += 1;
                self.write_bytes += bytes;
            }
            // After a write in the same operation the bytes are that write's.
            OpKind::SyncData | OpKind::SyncAll => {
                self.syncs += 1;
                self.writes += u64::from(op.after_write);
                self.write_bytes += bytes;
            }
            OpKind::Nop | OpKind::Command => {}
        }
    }

    pub(crate) fn merge(&mut self, other: &FlowStats) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.syncs += other.syncs;
        self.failures += other.failures;
        self.read_bytes_asked += other.read_bytes_asked;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.queued_ns.merge(&other.queued_ns);
        self.device_ns.merge(&other.device_ns);
        self.handed_over_ns.merge(&other.handed_over_ns);
    }
}

/// An account's counters by class and device.
pub(crate) struct Flows {
    table: Vec<((u8, u16), FlowStats)>,
    last: usize,
}

impl Flows {
    pub(crate) fn new() -> Flows {
        Flows { table: Vec::new(), last: 0 }
    }

    /// Returns the counters of a class on a device. The first use allocates, and the last used pair is found without a search.
    #[inline]
    pub(crate) fn of(&mut self, class: u8, device: u16) -> &mut FlowStats {
        if self.table.get(self.last).is_none_or(|(key, _)| *key != (class, device)) {
            self.last = self.find(class, device);
        }
        &mut self.table[self.last].1
    }

    #[cold]
    fn find(&mut self, class: u8, device: u16) -> usize {
        self.table.iter().position(|(key, _)| *key == (class, device)).unwrap_or_else(|| {
            self.table.push(((class, device), FlowStats::new(String::new(), String::new())));
            self.table.len() - 1
        })
    }

    pub(crate) fn snapshot(&self) -> Vec<((u8, u16), FlowStats)> {
        self.table.clone()
    }
}
