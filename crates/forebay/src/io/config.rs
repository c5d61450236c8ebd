//! The settings that a program may choose when it starts an engine.

use std::sync::Arc;
use std::time::Duration;

use crate::base::health::Degradation;
use crate::base::priority::Priority;
use crate::device::calibration::Calibration;
use crate::io::host::Host;
use crate::io::placement::Placement;

/// The driver through which an engine submits requests to devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverChoice {
    /// io_uring, and threads where the kernel refuses it (reported in
    /// [`Engine::health`](crate::Engine::health)).
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// A pool of threads that call pread and pwrite. Workers of a Tokio runtime use native AIO then (feature `tokio`, Linux); see
    /// [`Config::worker_rings`].
    Threads,
}

/// Whether the workers of a Tokio runtime get their own rings; see [`Config::worker_rings`](crate::Config::worker_rings).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorkerRings {
    /// Rings where the engine has the default priority and the runtime has an I/O driver (`enable_io`, `enable_all`,
    /// `#[tokio::main]`). The rings are those of io_uring or, where the shards have no rings, contexts of native AIO. A program
    /// built with `panic = "abort"` cannot detect the I/O driver, and gets no rings.
    #[default]
    Auto,
    /// As `Auto`, and every runtime is assumed to have an I/O driver. Without one, the first operation from it panics.
    ///
    /// In a simulated world (crate `forebay-sim`) tasks outside of shards get up to three rings, and the seed decides who visits them when.
    Always,
    /// No rings: shards carry out the operations of tasks.
    Off,
}

/// Whether the shards poll for completions instead of waiting for interrupts; see
/// [`Config::polling`](crate::Config::polling).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Polling {
    /// Interrupts: an idle processor stays idle. The default.
    #[default]
    Off,
    /// A shard with polled requests in flight polls for their completions without pause (`IORING_SETUP_IOPOLL`): the lowest
    /// latency, at the cost of a dedicated processor.
    On,
    /// As [`On`](Polling::On), but before the kernel first polls for a request it sleeps for half of the time of the fastest one so
    /// far (`IORING_SETUP_HYBRID_IOPOLL`). At depth 1 half of the processor is free for other threads. The shard does nothing else
    /// during that sleep, once for each request: not for deep queues. NVMe commands are polled for as with `On`. Before Linux 6.13
    /// everything is, and [`Engine::health`](crate::Engine::health) has an entry `HYBRID_IOPOLL`.
    Hybrid,
}

type EventHandler = Arc<dyn Fn(&Degradation) + Send + Sync>;

/// The most shards of an engine.
const SHARDS_MAX: usize = 64;
/// The limit for requests that an inbox holds: it is an array, and an engine has up to 64.
const INBOX_DEPTH_MAX: usize = 65_536;
/// Descriptors that an engine, its rings and a runtime have for themselves, or a few more.
const DESCRIPTORS_OWN: usize = 32;
/// I/O memory at the start of an engine in a simulated world, where nothing grows in the background.
#[cfg(feature = "_sim")]
const WORLD_ARENA_BYTES: usize = 1 << 20;

/// The settings of an engine. Every setting has a default that suits a program with a few files.
///
/// ```
/// use forebay::{Config, DriverChoice, Engine};
/// # fn main() -> forebay::Result<()> {
/// let config = Config::new()
///     .shards(1)
///     .driver(DriverChoice::Auto)
///     .arena_bytes(16 << 20)
///     .on_event(|degradation| eprintln!("storage: {degradation}"));
/// let engine = Engine::start(config)?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "give it to Engine::start"]
pub struct Config {
    pub(crate) shards: Option<usize>,
    pub(crate) driver: DriverChoice,
    /// `None`: mapped when first needed.
    pub(crate) arena_bytes: Option<usize>,
    pub(crate) arena_bytes_max: Option<usize>,
    pub(crate) overflow_bytes_max: Option<usize>,
    pub(crate) descriptors_max: Option<usize>,
    pub(crate) queue_depth: u32,
    pub(crate) inbox_depth: usize,
    pub(crate) shutdown_deadline: Duration,
    /// `None` for the default policy.
    pub(crate) spin: Option<Duration>,
    pub(crate) priority: Priority,
    pub(crate) placement: Placement,
    pub(crate) polling: Polling,
    pub(crate) worker_rings: WorkerRings,
    pub(crate) wait_calls: bool,
    pub(crate) stall_after: Duration,
    pub(crate) calibrations: Vec<Calibration>,
    pub(crate) on_event: Option<EventHandler>,
}

impl Config {
    /// Returns the default settings.
    pub fn new() -> Config {
        Config {
            shards: None,
            driver: DriverChoice::Auto,
            arena_bytes: None,
            arena_bytes_max: None,
            overflow_bytes_max: None,
            descriptors_max: None,
            queue_depth: 256,
            inbox_depth: 4096,
            shutdown_deadline: Duration::from_secs(5),
            spin: None,
            priority: Priority::Default,
            placement: Placement::Unpinned,
            polling: Polling::Off,
            worker_rings: WorkerRings::Auto,
            wait_calls: true,
            stall_after: Duration::from_millis(10),
            calibrations: Vec::new(),
            on_event: None,
        }
    }

    /// Sets the number of shards (threads with their own ring), 1 to 64. Default: one up to four CPUs, then one per four.
    pub fn shards(mut self, shards: usize) -> Config {
        self.shards = Some(shards);
        self
    }

    /// Sets the driver. Default: [`DriverChoice::Auto`].
    pub fn driver(mut self, driver: DriverChoice) -> Config {
        self.driver = driver;
        self
    }

    /// Sets the I/O memory that exists from the start, in bytes; never more than a quarter of the memory that this process may use.
    /// Default: 0. The first operation then maps 2 MiB, one huge page, and the arena grows by such steps, ahead of need where it
    /// can. A step takes 0.3 ms, and milliseconds on a virtual machine whose host has the memory elsewhere: with this setting
    /// [`Engine::start`](crate::Engine::start) takes that time instead of an operation.
    ///
    /// I/O memory is registered with the rings, which counts against `RLIMIT_MEMLOCK` for processes without `CAP_IPC_LOCK`. The
    /// engines of a process register half of that limit at most, which leaves the rest to the user's other rings. Memory beyond
    /// that stays unregistered, which is slower; [`Engine::health`](crate::Engine::health) reports it. With a limit of 0 some
    /// kernels refuse the ring itself, and the engine runs on the threads driver.
    pub fn arena_bytes(mut self, bytes: usize) -> Config {
        self.arena_bytes = Some(bytes);
        self
    }

    /// Sets the most I/O memory, in bytes; the arena grows to it in steps when blocks are held. Ordinary memory in which
    /// `forebay-kv` caches blocks counts towards it. The memory that this process may use is an upper limit. Default: a quarter
    /// of it, at most 1 GiB.
    ///
    /// With less than 128 KiB, or 0, reads have ordinary memory instead ([`overflow_bytes_max`](Config::overflow_bytes_max)), which is
    /// slower; [`Engine::health`](crate::Engine::health) says so. With neither the engine does not start.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // At most 64 MiB of I/O memory, and 16 MiB of ordinary memory beside it.
    /// let config = Config::new().arena_bytes_max(64 << 20).overflow_bytes_max(16 << 20);
    /// let engine = Engine::start(config)?;
    /// # Ok(()) }
    /// ```
    pub fn arena_bytes_max(mut self, bytes: usize) -> Config {
        self.arena_bytes_max = Some(bytes);
        self
    }

    /// Sets the limit for ordinary memory that reads may use while the program holds the whole arena, in bytes. It is slower, and
    /// counted in [`Stats`](crate::Stats). Beyond it reads fail with
    /// [`ErrorKind::ArenaExhausted`](crate::ErrorKind::ArenaExhausted). Default: 64 MiB, at most an eighth of the memory that this
    /// process may use. Reads of more than a quarter of the arena [allocate separately](crate::File::read).
    pub fn overflow_bytes_max(mut self, bytes: usize) -> Config {
        self.overflow_bytes_max = Some(bytes);
        self
    }

    /// Sets the most descriptors of files that libraries on the engine keep open for later use: an object store, the tables of a
    /// key-value store. Beyond it the least recently used idle file is closed, and reopened when it is needed. Files that the
    /// program opened itself do not count. Default: half of the descriptors beyond the first 32 that the process may have when the
    /// engine starts (the soft limit of `RLIMIT_NOFILE`, `ulimit -n`), at least 4 and at most 16,384; of 1,024 that is 496.
    ///
    /// When the process, or the system, has no descriptor left (`EMFILE`, `ENFILE`), such files are closed as well, regardless of
    /// this limit, and the call that needs a descriptor is repeated.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // A server that needs most of its descriptors for connections.
    /// let engine = Engine::start(Config::new().descriptors_max(64))?;
    /// # Ok(()) }
    /// ```
    pub fn descriptors_max(mut self, descriptors: usize) -> Config {
        self.descriptors_max = Some(descriptors);
        self
    }

    /// Sets the maximum number of operations that one shard has in flight at the device, 1 to 4,096; the rest waits in the shard.
    /// Default: 256.
    pub fn queue_depth(mut self, operations: u32) -> Config {
        self.queue_depth = operations;
        self
    }

    /// Sets how many requests from other threads a shard's inbox holds, 1 to 65,536; when it is full, callers
    /// wait. Its memory, 32 bytes for each, is allocated for the first request. Default: 4,096. Starts of tasks
    /// ([`Engine::spawn_on_shard`](crate::Engine::spawn_on_shard)) never wait and are not limited.
    pub fn inbox_depth(mut self, requests: usize) -> Config {
        self.inbox_depth = requests;
        self
    }

    /// Sets how long closing waits for operations that the device has not finished; the rest is leaked,
    /// memory and file, because the device may still write there. Default: 5 s.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let engine = Engine::start(Config::new().shutdown_deadline(Duration::from_secs(1)))?;
    /// let report = engine.close().wait()?; // after at most a second
    /// # Ok(()) }
    /// ```
    pub fn shutdown_deadline(mut self, deadline: Duration) -> Config {
        self.shutdown_deadline = deadline;
        self
    }

    /// Sets how long a shard with little in flight polls for completions and messages before it sleeps.
    /// Polling costs processor time and saves wake-ups. It stops by itself while it brings no gain, and is
    /// off on one CPU and where [`Priority::RealTime`] was requested. Zero turns it off.
    ///
    /// Default: 30 us for messages when nothing is in flight and the device's last completion was within 20 us, so that a program
    /// that makes one request after the other finds the shard awake; else nothing.
    pub fn spin(mut self, spin: Duration) -> Config {
        self.spin = Some(spin);
        self
    }

    /// Sets the priority of the shards' threads in the kernel's scheduler. Default: [`Priority::Default`], as
    /// the thread that starts the engine. [`Health::priority`](crate::Health::priority) reports the priority
    /// that was granted.
    ///
    /// The threads that carry out a shard's I/O have the same priority: the kernel's workers of its ring, and the I/O threads
    /// without a ring. Those that open, rename and so on do not. A thread that a task on a shard starts inherits it.
    pub fn priority(mut self, priority: Priority) -> Config {
        self.priority = priority;
        self
    }

    /// Sets the processors on which the shards run, each on one of them. Default: [`Placement::Unpinned`].
    /// [`Health::processors`](crate::Health::processors) has each shard's.
    ///
    /// Shards are spread over the memory nodes in turn, and use one hardware thread of each core before any second one; shards
    /// beyond the number of processors share. Without [`shards`](Config::shards) the default is one up to seven of these
    /// processors, then one per four. The I/O memory, ring and tables of a shard are allocated on the memory node of its
    /// processor, as far as the node has memory.
    ///
    /// Threads of the engine that carry out blocking calls run wherever the process may, as do the kernel's workers of a ring: they
    /// copy and wait for long, and would hold up the shard on its only processor. The workers of a runtime are the program's: see
    /// [`Engine::pin_worker`](crate::Engine::pin_worker). A thread that a task on a shard starts inherits the shard's processor.
    /// Linux only.
    ///
    /// Where it gains and how to measure that is in the guide
    /// [Tuning](https://github.com/forebay-rs/forebay/blob/main/docs/tuning.md#memory-nodes).
    ///
    /// ```no_run
    /// # use forebay::{Config, Engine, Placement};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::start(Config::new().shards(2).placement(Placement::Node(1)))?;
    /// println!("{}", engine.health()); // such as: 2 shards on uring, processors 8 9, ...
    /// # Ok(()) }
    /// ```
    pub fn placement(mut self, placement: Placement) -> Config {
        self.placement = placement;
        self
    }

    /// Sets whether reads and writes of direct files on devices with poll queues are polled for. Default:
    /// [`Polling::Off`].
    ///
    /// A shard then has a second ring for them, made when it first works with such a file. While any of them is in flight the shard
    /// does not sleep. It uses a whole processor, and saves an interrupt and a wake-up per read. With nothing in flight it sleeps
    /// as usual. Syncs, files through the page cache, and files on devices without poll queues take the ordinary path at the same
    /// time. A request larger than the device's limit is split into parts, and a request of more than 16 parts takes the ordinary
    /// path. Worth it for small reads on fast devices, on machines with a processor to spare.
    /// [`ShardStats::polls_empty`](crate::ShardStats::polls_empty) shows the cost.
    ///
    /// Not with [`Priority::RealTime`], nor where io_uring is not used: [`Engine::health`](crate::Engine::health) reports that, and
    /// devices without poll queues (on NVMe the kernel's parameter `nvme.poll_queues` sets them up). A polled request cannot be
    /// cancelled: it ends when the device has done it.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Polling};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::start(Config::new().polling(Polling::On))?;
    /// println!("{:?}", engine.health().degraded); // names devices without poll queues once files are open
    /// # Ok(()) }
    /// ```
    pub fn polling(mut self, polling: Polling) -> Config {
        self.polling = polling;
        self
    }

    /// Sets the time after which a task that holds its shard in one poll is listed in
    /// [`Stats::stalls`](crate::Stats::stalls). Every operation of the shard waits meanwhile; such code
    /// should await [`yield_if_needed`](crate::shard::yield_if_needed), or run elsewhere. Time that the
    /// system gave to other threads counts as well. Default: 10 ms. Where the processor has no steady counter
    /// nothing is timed. Where the task stood: [`Stall::back_trace`](crate::Stall::back_trace).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// let engine = Engine::start(Config::new().stall_after(Duration::from_millis(2)))?;
    /// for stall in engine.stats().wait()?.stalls {
    ///     println!("{} held a shard for {} ns", stall.task, stall.longest_ns);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn stall_after(mut self, bound: Duration) -> Config {
        self.stall_after = bound;
        self
    }

    /// Sets a function to call with every degradation when it is noticed. It runs on the thread that noticed
    /// it, perhaps a shard's, and must not block.
    pub fn on_event(mut self, handler: impl Fn(&Degradation) + Send + Sync + 'static) -> Config {
        self.on_event = Some(Arc::new(handler));
        self
    }

    /// Sets whether the workers of a Tokio runtime get their own rings (feature `tokio`, Linux). Default: [`WorkerRings::Auto`].
    ///
    /// With them, an operation of a task is submitted to the device from the worker's thread, and an immediate completion is ready
    /// in the first poll. Where io_uring is refused they use native AIO for direct reads and overwrites, and a pool of threads for
    /// the rest; [`Health::worker_rings`](crate::Health::worker_rings) says which. See the guide [Paths of
    /// reads](https://github.com/forebay-rs/forebay/blob/main/docs/modes.md#paths-of-reads).
    pub fn worker_rings(mut self, rings: WorkerRings) -> Config {
        self.worker_rings = rings;
        self
    }

    /// Sets whether a thread that waits for one operation with `.wait()` makes the system call itself. Default: true.
    ///
    /// It saves two changes of threads for each operation. An operation is still sent to its file's shard where the shard decides
    /// on its submission: while operations of several classes wait for the device, for a class with caps, for more than 64 KiB, for
    /// polled files and NVMe namespaces, when I/O memory is short, and with a [`priority`](Config::priority) other than the
    /// default. See the guide [Paths of reads](https://github.com/forebay-rs/forebay/blob/main/docs/modes.md#paths-of-reads).
    ///
    /// With `false` a shard carries out each operation, which can cancel it at the engine's end and limits how many are in flight
    /// ([`queue_depth`](Config::queue_depth)).
    pub fn wait_calls(mut self, allowed: bool) -> Config {
        self.wait_calls = allowed;
        self
    }

    /// Adds the measured figures of one of the devices; may be given for several devices. When classes compete for a device that it
    /// [fits](Calibration::fits), they start with its figures for the requests in flight and for the cost of writes, instead of
    /// measuring both. Default: none.
    ///
    /// If calibrations are given and none fits a device that files are opened on, [`Engine::health`](crate::Engine::health)
    /// reports that, and the device works as without calibration. [`DeviceStats::calibrated`](crate::DeviceStats::calibrated)
    /// shows whether a device has one.
    ///
    /// ```
    /// # use forebay::{Calibration, Config, Engine, device::Device};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // Of `forebay calibrate`, or measured by the program itself.
    /// let mut calibration = Calibration::new(&Device::of_path(".")?);
    /// calibration.knee_depth = 16;
    /// let engine = Engine::start(Config::new().calibration(calibration))?;
    /// # Ok(()) }
    /// ```
    pub fn calibration(mut self, calibration: Calibration) -> Config {
        self.calibrations.push(calibration);
        self
    }

    /// Returns settings for a simulated world: they do not depend on the machine, which a seed could not repeat, and they need
    /// little set-up.
    #[cfg(feature = "_sim")]
    pub(crate) fn for_world(mut self) -> Config {
        self.shards = self.shards.or(Some(2));
        // The world's threads are steps of one thread, whose priority and processor are the program's own choice.
        self.priority = Priority::Default;
        self.placement = Placement::Unpinned;
        let bytes = *self.arena_bytes.get_or_insert(WORLD_ARENA_BYTES);
        self.arena_bytes_max = self.arena_bytes_max.or(Some(bytes.max(64 << 20)));
        self
    }

    /// Returns how long to poll before sleeping, in nanoseconds: while nothing is in flight, and while
    /// something is.
    pub(crate) fn spin_ns(&self, host: Host) -> (u64, u64) {
        match self.spin {
            // In real time the threads that would make the awaited progress do not get this processor during
            // the poll.
            _ if host.processors == 1 || self.is_real_time() => (0, 0),
            None => (30_000, 0),
            Some(spin) => {
                let ns = u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX);
                (ns, ns)
            }
        }
    }

    pub(crate) fn stall_ns(&self) -> u64 {
        u64::try_from(self.stall_after.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns whether real time was requested. It decides which rules the shards follow, whether real time
    /// was granted or not.
    pub(crate) fn is_real_time(&self) -> bool {
        self.priority == Priority::RealTime
    }

    /// Returns the number of shards to start: the setting, or one up to four CPUs that this process may use,
    /// then one per four, at most [`SHARDS_MAX`].
    pub(crate) fn shard_count(&self, host: Host) -> usize {
        self.shards.unwrap_or_else(|| (host.processors / 4).clamp(1, SHARDS_MAX))
    }

    /// Returns a description of the first invalid setting, if any.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if self.shards.is_some_and(|shards| shards == 0 || shards > SHARDS_MAX) {
            return Some("shards must be between 1 and 64");
        }
        if self.queue_depth == 0 || self.queue_depth > 4096 {
            return Some("queue_depth must be between 1 and 4,096");
        }
        if self.inbox_depth == 0 || self.inbox_depth > INBOX_DEPTH_MAX {
            return Some("inbox_depth must be between 1 and 65,536");
        }
        if self.arena_bytes_max.is_some_and(|max| max < self.arena_bytes.unwrap_or(0)) {
            return Some("arena_bytes_max must not be below arena_bytes");
        }
        if self.placement == Placement::Processors(Vec::new()) {
            return Some("placement must name a processor");
        }
        let is_nothing = |bytes: Option<usize>| bytes.is_some_and(|bytes| bytes < 4096);
        if is_nothing(self.arena_bytes_max) && is_nothing(self.overflow_bytes_max) {
            return Some(
                "arena_bytes_max and overflow_bytes_max leave no memory for a read; raise one of them",
            );
        }
        self.calibrations.iter().find_map(Calibration::fault)
    }

    /// Returns the limit of overflow memory.
    pub(crate) fn overflow_limit(&self, host: Host) -> usize {
        self.overflow_bytes_max.unwrap_or_else(|| (64 << 20).min(host.memory_bytes / 8))
    }

    /// Returns the limit for descriptors of files that are kept open.
    pub(crate) fn descriptor_limit(&self, host: Host) -> usize {
        self.descriptors_max
            .unwrap_or_else(|| (host.descriptors.saturating_sub(DESCRIPTORS_OWN) / 2).clamp(4, 16_384))
    }

    /// Returns the arena's bytes at the start and at most, given the memory that this process may use. A
    /// quarter of it limits the start and the default maximum, all of it a maximum that was set.
    pub(crate) fn arena_limits(&self, host: Host) -> (usize, usize) {
        let (all, start) = (host.memory_bytes, self.arena_bytes.unwrap_or(0));
        let quarter = all / 4;
        let usual = || quarter.min(1 << 30).max(start.min(quarter));
        let max = self.arena_bytes_max.map_or_else(usual, |max| max.min(all));
        (start.min(quarter).min(max), max)
    }
}

impl Default for Config {
    fn default() -> Config {
        Config::new()
    }
}

crate::_debug_parts!(
    Config, |config|
    shards: config.shards,
    driver: config.driver,
    arena_bytes: config.arena_bytes,
    arena_bytes_max: config.arena_bytes_max,
    overflow_bytes_max: config.overflow_bytes_max,
    descriptors_max: config.descriptors_max,
    queue_depth: config.queue_depth,
    inbox_depth: config.inbox_depth,
    shutdown_deadline: config.shutdown_deadline,
    spin: config.spin,
    priority: config.priority,
    placement: config.placement,
    polling: config.polling,
    stall_after: config.stall_after
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_settings_that_cannot_work() {
        assert!(Config::new().fault().is_none());
        assert!(Config::new().shards(0).fault().is_some());
        assert!(Config::new().queue_depth(0).fault().is_some());
        assert!(Config::new().inbox_depth(0).fault().is_some());
        assert!(Config::new().arena_bytes(2).arena_bytes_max(1).fault().is_some());
        assert!(Config::new().placement(Placement::Processors(Vec::new())).fault().is_some());
        assert!(Config::new().arena_bytes_max(1 << 20).fault().is_none(), "there is none at the start");
        assert!(Config::new().arena_bytes_max(0).fault().is_none(), "ordinary memory");
        assert!(Config::new().arena_bytes_max(0).overflow_bytes_max(0).fault().is_some());
    }

    #[test]
    fn numbers_follow_the_processors_the_memory_and_the_descriptors() {
        let host = |processors, memory_bytes| Host { processors, memory_bytes, descriptors: 1024 };
        let shards = |processors| Config::new().shard_count(host(processors, 1 << 30));
        assert_eq!([1, 3, 4, 7, 8, 64, 256, 1024].map(shards), [1, 1, 1, 1, 2, 16, 64, 64]);
        let container = host(1, 512 << 20);
        assert_eq!(Config::new().arena_limits(container), (0, 128 << 20));
        assert_eq!(Config::new().arena_bytes(256 << 20).arena_limits(container), (128 << 20, 128 << 20));
        assert_eq!(Config::new().arena_limits(host(64, 256 << 30)), (0, 1 << 30));
        assert_eq!(Config::new().spin_ns(container), (0, 0), "a spin would keep the only processor");
        assert_eq!(Config::new().spin_ns(host(2, 1 << 30)), (30_000, 0));
        let kept = |descriptors| Config::new().descriptor_limit(Host { descriptors, ..container });
        assert_eq!([0, 64, 256, 1024, 1 << 20, usize::MAX].map(kept), [4, 16, 112, 496, 16_384, 16_384]);
        assert_eq!(Config::new().descriptors_max(7).descriptor_limit(container), 7);
    }
}
