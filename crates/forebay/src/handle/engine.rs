//! The engine: a program starts it once, and its files and tasks belong to it.

mod gather;
mod pin;

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::base::class::{Class, ClassSpec, ClassTable, Tenant};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::fork::Origin;
use crate::base::health::Health;
use crate::base::in_flight::{Stay, Stays};
use crate::base::pending::{self, Pending, Sender};
use crate::base::priority::Priorities;
use crate::base::wait;
use crate::driver::pool::Pool;
use crate::handle::file::File;
use crate::handle::open::{self, Open};
use crate::io::config::Config;
use crate::io::host::Host;
use crate::io::stats::{FileStats, MemoryStats, Stats};
use crate::memory::arena::{Arena, ArenaConfig};
use crate::memory::block::BlockMut;
use crate::reactor::calls::Calls;
use crate::reactor::devices::Devices;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::idle_files::IdleFiles;
use crate::reactor::releases::Releases;
use crate::reactor::shard::clock::Clock;
use crate::reactor::shard::inbox::Inbox;
use crate::reactor::shard::{self, EndReport, JoinHandle};
use crate::reactor::stall_profiler::StallProfiler;
use crate::reactor::visited::VisitedShards;

pub(crate) use gather::{gather, gather_files};

/// Threads for calls that io_uring itself would pass to kernel threads: open, rename, truncate, ...
const POOL_THREADS_MAX: usize = 4;
/// The most jobs without a caller (growth of the I/O memory) that are accepted while calls wait in the pool.
const POOL_QUEUE_MAX: usize = 1024;

/// The engine of a program: its shards, their I/O memory and its open files. A handle that is cheap to clone; one engine is
/// enough for a process.
///
/// Dropping the last handle, on any thread, starts an orderly shutdown in the background: tasks are cancelled, operations in
/// flight are drained, and operations on files that are still held fail with
/// [`ErrorKind::EngineClosed`](crate::ErrorKind::EngineClosed). [`Engine::close`] does the same and reports the outcome.
///
/// ```
/// use forebay::{Config, Engine, Open};
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("points.bin");
/// # std::fs::write(&path, vec![1u8; 100_000]).unwrap();
/// let engine = Engine::start(Config::new())?;
/// let file = engine.open(&path, Open::read()).wait()?;
/// let block = file.read(1_003..1_103).wait()?; // any offset, any length
/// assert_eq!(block.len(), 100);
/// # Ok(()) }
/// ```
///
/// | task | methods |
/// |---|---|
/// | start and end | [`start`](Engine::start), [`close`](Engine::close) |
/// | open a file | [`open`](Engine::open), [`temp_file`](Engine::temp_file), [`from_std`](Engine::from_std), [`open_nvme`](Engine::open_nvme) |
/// | memory for writes | [`block`](Engine::block), [`block_from`](Engine::block_from) |
/// | run a task next to the device | [`spawn_on_shard`](Engine::spawn_on_shard) |
/// | names and directories | [`rename`](Engine::rename), [`remove_file`](Engine::remove_file), [`create_dir_all`](Engine::create_dir_all), [`read_dir`](Engine::read_dir), [`sync_dir`](Engine::sync_dir), [`metadata`](Engine::metadata), [`open_dir`](Engine::open_dir) |
/// | share a device | [`class`](Engine::class), [`set_class`](Engine::set_class), [`tenant`](Engine::tenant) |
/// | see what it does | [`health`](Engine::health), [`stats`](Engine::stats), [`file_stats`](Engine::file_stats), [`memory`](Engine::memory), [`serve_stats`](Engine::serve_stats) |
/// | share a machine with several memory nodes | [`pin_worker`](Engine::pin_worker) |
/// | build a library on it | [`block_on`](Engine::block_on), [`block_on_in_turn`](Engine::block_on_in_turn), [`now_ns`](Engine::now_ns), [`reserve_memory`](Engine::reserve_memory), [`add_degradation`](Engine::add_degradation), [`nop`](Engine::nop) |
#[derive(Clone)]
pub struct Engine {
    shared: Arc<EngineShared>,
    /// Dropped with the last handle; files and shards hold `shared` only.
    guard: Arc<Guard>,
}

impl Engine {
    /// Starts the shards, which takes a millisecond or two, and returns the engine. I/O memory is mapped by the first operation,
    /// unless [`Config::arena_bytes`] was set. See the guide
    /// [Containers](https://github.com/forebay-rs/forebay/blob/main/docs/modes.md#containers) for the resources of an engine.
    ///
    /// # Errors
    /// Fails with [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for settings out of range. Fails with the system's
    /// error if a thread or the memory cannot be allocated, or if [`DriverChoice::Uring`](crate::DriverChoice::Uring) was
    /// requested and the kernel refuses io_uring.
    ///
    /// Inside a simulated world (crate `forebay-sim`) the engine runs on that world's machine; the settings of the driver and of
    /// spinning are ignored there.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::start(Config::new().shards(2).arena_bytes_max(256 << 20))?;
    /// for degradation in &engine.health().degraded {
    ///     eprintln!("{degradation}"); // such as io_uring refused, with the remedy
    /// }
    /// # Ok(()) }
    /// ```
    pub fn start(config: Config) -> Result<Engine> {
        #[cfg(feature = "_sim")]
        if let Some(world) = crate::reactor::world::current() {
            return Engine::start_in(config, world);
        }
        Engine::start_on(config, Host::here())
    }

    /// Starts an engine that has this much of the machine.
    pub(crate) fn start_on(config: Config, host: Host) -> Result<Engine> {
        // The rate of the processor's counter is measured during the start.
        Clock::begin();
        let (engine, ends) = Engine::build(config, host, Environment::Here)?;
        let weak = Arc::downgrade(&engine.shared);
        engine.shared.arena.set_growth_asker(Box::new(move || {
            if let Some(shared) = weak.upgrade() {
                let pool = shared.pool.clone();
                // If the pool is full or closed, the shard that needs the memory maps it itself.
                let _ = pool.submit(Box::new(move || shared.arena.grow_ahead()));
            }
        }));
        // On an error the guard's drop ends the shards that did start.
        let driver = shard::start_shards(&engine.shared, ends)?;
        let first = engine.shared.driver.set(driver);
        debug_assert!(first.is_ok());
        engine.shared.watch.start(&engine.shared);
        engine.shared.tell_unpinned();
        if !engine.shared.arena.has_huge_pages() {
            engine.shared.degrade_once(
                "huge pages",
                "the kernel gave none for the I/O memory",
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; scans are up to twice as fast with them",
            );
        }
        let most = engine.shared.arena.bytes_max();
        if most < engine.shared.arena.short_bytes_max() {
            engine.shared.degrade_once(
                "limit of I/O memory",
                &format!("{most} bytes are too few for reads; they have ordinary memory, which is slower"),
                "raise Config::arena_bytes_max to 2 MiB or more, or do not set it",
            );
        }
        Ok(engine)
    }

    /// Starts an engine whose shards `world` steps. Memory is mapped when it is needed, never in the
    /// background.
    #[cfg(feature = "_sim")]
    fn start_in(config: Config, world: Arc<dyn crate::reactor::world::World>) -> Result<Engine> {
        let (engine, ends) =
            Engine::build(config.for_world(), Host::SIMULATED, Environment::World(world.clone()))?;
        world.adopt(&engine.shared, ends);
        let first = engine.shared.driver.set("sim");
        debug_assert!(first.is_ok());
        Ok(engine)
    }

    /// Builds everything but the shards. Each shard reports its end through one of the senders.
    fn build(config: Config, host: Host, place: Environment) -> Result<(Engine, Vec<Sender<EndReport>>)> {
        if let Some(fault) = config.fault() {
            return Err(Error::invalid("start", fault));
        }
        let seats = config.placement.seats()?;
        let of_shards = Host { processors: seats.limit(host.processors), ..host };
        let count = config.shard_count(of_shards);
        let is_real = matches!(place, Environment::Here);
        let visited = VisitedShards::of(&config, host, count, is_real);
        let stripes = Calls::stripes_of(&config, host, is_real);
        let first_stripe = count + visited.places();
        let (bytes_initial, bytes_max) = config.arena_limits(host);
        let registered = match &place {
            Environment::Here => crate::driver::registered_bytes_max(),
            #[cfg(feature = "_sim")]
            Environment::World(_) => None,
        };
        let first_region_bytes = registered.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
        let arena_config = ArenaConfig {
            bytes_initial,
            first_region_bytes,
            bytes_max,
            overflow_bytes_max: config.overflow_limit(host),
            long_bytes_max: host.memory_bytes / 2,
            shards: first_stripe + stripes,
        };
        let arena = Arena::new(arena_config, seats.nodes(count)).map_err(|error| {
            Error::io("start", error).with_note(format!("no I/O memory ({bytes_initial} bytes)"))
        })?;
        #[cfg(not(feature = "_sim"))]
        let Environment::Here = place;
        let watch = StallProfiler::new(count, config.stall_after);
        let idle_files = IdleFiles::new(config.descriptor_limit(host));
        let shared = Arc::new(EngineShared {
            inboxes: (0..count)
                .map(|index| {
                    Arc::new(Inbox::new(index, config.inbox_depth).in_real_time(config.is_real_time()))
                })
                .collect(),
            visited,
            calls: Calls::new(stripes, first_stripe),
            seats,
            granted: Priorities::new(count),
            arena,
            reserved: AtomicU64::new(0),
            classes: ClassTable::new(),
            pool: Pool::new("forebay-pool", POOL_THREADS_MAX, POOL_QUEUE_MAX),
            in_flight: Arc::default(),
            releases: Releases::new(!is_real),
            spin_ns: if is_real { config.spin_ns(of_shards) } else { (0, 0) },
            config,
            driver: OnceLock::new(),
            degraded: Mutex::new(Vec::new()),
            devices: Mutex::new(Devices::default()),
            page_caches: Mutex::default(),
            idle_files,
            closing: AtomicBool::new(false),
            origin: Origin::here(),
            #[cfg(feature = "_sim")]
            world: match place {
                Environment::Here => None,
                Environment::World(world) => Some(world),
            },
            shards_left: AtomicUsize::new(count),
            watch,
            servers: Mutex::default(),
        });
        let (senders, ends): (Vec<_>, Vec<_>) =
            (0..count).map(|_| pending::call("close", Stays::default())).unzip();
        let guard = Arc::new(Guard { shared: shared.clone(), ends: Mutex::new(ends) });
        Ok((Engine { shared, guard }, senders))
    }

    /// Opens a file with the access and mode of `open` (see [`Open`]), and returns it.
    ///
    /// Without [`Open::buffered`] or [`Open::uncached`] it is opened for direct I/O, past the page cache.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of open(2), and [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a file system that
    /// cannot do direct I/O.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// let table = engine.open(dir.path().join("table"), Open::create()).wait()?; // direct, read and write
    /// let settings = engine.open("Cargo.toml", Open::read().buffered()).wait()?; // through the page cache
    /// # Ok(()) }
    /// ```
    pub fn open(&self, path: impl AsRef<Path>, open: Open) -> Pending<File> {
        open::open(self, path.as_ref().into(), open)
    }

    /// Wraps a file that was opened elsewhere. Its access mode stays: whether it is direct is read from its flags by fcntl(2),
    /// and [`Open::uncached`] and [`Open::shard`] apply as given.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for a file that was opened to append (`O_APPEND`):
    /// writes would land at its end, not at their offsets. The system's error, if the descriptor's flags
    /// cannot be read.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// let file = engine.from_std(std::fs::File::open("Cargo.toml")?, Open::read()).wait()?;
    /// assert_eq!(&file.read(1..8).wait()?[..], b"package");
    /// # Ok(()) }
    /// ```
    pub fn from_std(&self, file: std::fs::File, open: Open) -> Pending<File> {
        open::from_std(self, file, open)
    }

    /// Creates an unnamed file in `dir`, readable and writable, which is deleted when its last handle is dropped.
    ///
    /// A call that has started [may still take effect](Pending#when-it-is-dropped) after its future is dropped.
    ///
    /// # Errors
    /// Those of open(2) with `O_TMPFILE`; if the file system does not support it, a named file is made and unlinked immediately.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// let sorted = engine.temp_file(dir.path(), Open::create()).wait()?; // a run of an external sort, say
    /// sorted.write(0, vec![1; 4096]).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn temp_file(&self, dir: impl AsRef<Path>, open: Open) -> Pending<File> {
        open::temp_file(self, dir.as_ref().into(), open)
    }

    /// Returns I/O memory from the arena, all zero, for a write or a [`File::read_into`].
    ///
    /// # Errors
    /// [`ErrorKind::ArenaExhausted`](crate::ErrorKind::ArenaExhausted) when blocks hold all memory,
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) above 1 GiB.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// let mut page = engine.block(4096)?;
    /// page[..6].copy_from_slice(b"header");
    /// file.write(0, page).wait()?; // from this memory, without a copy
    /// # Ok(()) }
    /// ```
    pub fn block(&self, len: usize) -> Result<BlockMut> {
        self.shared.block("block", len)
    }

    /// Returns I/O memory with a copy of `data`.
    ///
    /// # Errors
    /// As [`Engine::block`].
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// let mut page = engine.block_from(b"header")?;
    /// page.resize(4096)?; // zeros behind it
    /// file.write(0, page).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn block_from(&self, data: &[u8]) -> Result<BlockMut> {
        self.shared.block_from("block", data)
    }

    /// Reserves `bytes` of the engine's I/O memory for a part of the program that will use them, such as a cache, until the
    /// returned reservation is dropped.
    ///
    /// A reservation allocates no memory: it keeps other callers of this method from counting on the same bytes. All
    /// reservations together are at most [`Config::arena_bytes_max`](crate::Config::arena_bytes_max).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if fewer bytes are unreserved;
    /// [`memory_unreserved`](Engine::memory_unreserved) returns their number.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// let cache = engine.reserve_memory(engine.memory_unreserved() / 2)?; // while the cache lives
    /// println!("a cache of {} bytes, {} are left", cache.bytes(), engine.memory_unreserved());
    /// # Ok(()) }
    /// ```
    pub fn reserve_memory(&self, bytes: u64) -> Result<MemoryReservation> {
        MemoryReservation::new(&self.shared, bytes)
    }

    /// Returns the number of unreserved bytes of I/O memory, the maximum for [`reserve_memory`](Engine::reserve_memory).
    pub fn memory_unreserved(&self) -> u64 {
        MemoryReservation::left(&self.shared)
    }

    /// Returns the number of shards.
    pub fn shard_count(&self) -> usize {
        self.shared.inboxes.len()
    }

    /// Returns the driver's name: `"uring"`, `"threads"`, or `"sim"` inside a simulated world.
    pub fn driver(&self) -> &'static str {
        self.shared.driver.get().copied().unwrap_or("threads")
    }

    /// Returns the engine's driver, shards and priority, and every degradation with its remedy.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// let health = engine.health();
    /// println!("{} shards on {}", health.shards, health.driver);
    /// for degradation in &health.degraded {
    ///     println!("{}: {}. Remedy: {}", degradation.what, degradation.why, degradation.remedy);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn health(&self) -> Health {
        Health {
            driver: self.driver(),
            shards: self.shard_count(),
            worker_rings: self.shared.visited.interface(),
            priority: self.shared.granted.weakest(),
            processors: self.shared.seats.processors(self.shard_count()),
            degraded: self.shared.lock_degraded().clone(),
        }
    }

    /// Adds an entry to [`health`](Self::health). A library on top of the engine calls it when one of its mechanisms does not
    /// work here. Later entries with the same `what` are ignored.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// engine.add_degradation("bloom filters", "the file was written without them", "rewrite the file");
    /// assert!(engine.health().degraded.iter().any(|degradation| degradation.what == "bloom filters"));
    /// # Ok(()) }
    /// ```
    pub fn add_degradation(&self, what: &str, why: &str, remedy: &str) {
        self.shared.degrade_once(what, why, remedy);
    }

    /// Returns counters and latencies since the start. Sends one message to each shard, which takes microseconds: not for hot
    /// loops.
    ///
    /// # Errors
    /// [`ErrorKind::EngineClosed`](crate::ErrorKind::EngineClosed) and
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).await?;
    /// # file.write(0, vec![7; 16_384]).await?;
    /// file.read(0..4096).await?;
    /// let stats = engine.stats().await?;
    /// for flow in &stats.flows {
    ///     println!("{} on {}: {} reads, p99 {} ns", flow.class, flow.device, flow.reads, flow.device_ns.ns_at(0.99));
    /// }
    /// println!("{} bytes of I/O memory held", stats.memory.held_bytes);
    /// # Ok(()) }
    /// ```
    pub fn stats(&self) -> Pending<Stats> {
        if let Err(error) = self.check() {
            return Pending::ready(Err(error));
        }
        Pending::from_future("stats", Box::pin(gather(self.shared.clone())))
    }

    /// Returns the usage of the engine's I/O memory. Takes a lock that reads take only when their shard has no buffer left.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let block = file.read(0..4096).wait()?;
    /// assert!(engine.memory().held_bytes >= 4096); // the block's
    /// # Ok(()) }
    /// ```
    pub fn memory(&self) -> MemoryStats {
        self.shared.memory()
    }

    /// Spawns `make`'s future as a task on a shard, where its operations need no hand-over between threads, and returns the
    /// task's handle. The future need not be `Send`, because `make` is called on the shard.
    ///
    /// Spawning never blocks: the task starts even if the shard's inbox is full or the returned handle is dropped.
    ///
    /// The task is in `class`; see [`shard`](crate::shard) for the calls that it may make.
    ///
    /// ```
    /// # use forebay::{Class, Config, Engine, Open};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).await?;
    /// # file.write(0, vec![7; 16_384]).await?;
    /// // Reads of a task on a shard need no hand-over between threads.
    /// let task = engine.spawn_on_shard(file.home_shard(), Class::DEFAULT, move || async move {
    ///     let mut sum = 0;
    ///     for page in 0..4 {
    ///         sum += u32::from(file.read(page * 4096..page * 4096 + 1).await?[0]);
    ///         forebay::shard::yield_if_needed().await;
    ///     }
    ///     forebay::Result::<u32>::Ok(sum)
    /// });
    /// assert_eq!(task.await??, 28);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The handle resolves with [`InvalidInput`](crate::ErrorKind::InvalidInput) for a `shard` out of range; shards are numbered
    /// from 0 to [`shard_count`](Self::shard_count) - 1.
    pub fn spawn_on_shard<F, Fut>(&self, shard: usize, class: Class, make: F) -> JoinHandle<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        match self.shared.check("task").and_then(|()| self.shared.check_shard("task", shard)) {
            Ok(()) => shard::spawn_on(&self.shared.inboxes[shard], class, make),
            Err(error) => JoinHandle::failed(error),
        }
    }

    /// Shuts the engine down for all handles and files, and returns a report. Tasks are cancelled; operations in flight are
    /// cancelled or completed. Operations that the device does not return within [`Config::shutdown_deadline`] are leaked. Calls on
    /// names, lengths and space that have started, and [detached](Pending::detach) calls, are awaited until the same deadline; the
    /// report names the rest. No operation starts after the close has completed.
    ///
    /// The shutdown starts immediately, even if the future is never awaited. A task on one of this engine's own shards that awaits
    /// it is cancelled at that point, like every other task.
    ///
    /// # Errors
    /// [`ErrorKind::EngineClosed`](crate::ErrorKind::EngineClosed) if it was closed before.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// let report = engine.close().wait()?;
    /// assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
    /// # Ok(()) }
    /// ```
    pub fn close(self) -> Pending<CloseReport> {
        if let Err(error) = self.check() {
            return Pending::ready(Err(error));
        }
        let ends = std::mem::take(&mut *self.guard.ends.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.begin_close();
        Pending::from_future(
            "close",
            Box::pin(async move {
                let mut report = CloseReport { leaked_operations: 0, lost_shards: 0, calls_left: Vec::new() };
                for end in ends {
                    let ended = end.await?;
                    match ended.leaked {
                        usize::MAX => report.lost_shards += 1,
                        leaked => report.leaked_operations += leaked,
                    }
                    report.calls_left.extend(ended.calls);
                }
                Ok(report)
            }),
        )
    }

    /// Registers a library's thread that works for this engine; for `forebay-wal` alone. A close waits for the thread as for a call
    /// of the pool, so the thread's descriptors and locks are released when the close returns.
    #[doc(hidden)]
    pub fn enter_thread(&self) -> EngineThread {
        EngineThread { _stay: self.shared.in_flight.enter() }
    }

    /// Returns an error if the engine is not usable from this process.
    pub(crate) fn check(&self) -> Result<()> {
        self.shared.check("engine")
    }

    pub(crate) fn shared(&self) -> &Arc<EngineShared> {
        &self.shared
    }
}

/// The place where an engine runs: this machine, or a simulated world.
enum Environment {
    Here,
    #[cfg(feature = "_sim")]
    World(Arc<dyn crate::reactor::world::World>),
}

crate::_debug_parts!(Engine, |engine| driver: engine.driver(), shards: engine.shard_count());

impl Engine {
    /// Returns the class `name` with `shares` shares (1 to 10,000), and creates it if it does not exist. Another call with the
    /// same name changes only the shares.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for an empty name, shares out of range, or
    /// a seventeenth class.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let queries = engine.class("queries", 800)?;
    /// let block = file.read(0..4096).class(queries).wait()?; // eight times the shares of Class::BACKGROUND
    /// # Ok(()) }
    /// ```
    pub fn class(&self, name: &str, shares: u32) -> Result<Class> {
        self.shared.classes.add(name, shares).map_err(|fault| Error::invalid("class", fault))
    }

    /// Creates the class that `spec` describes, or changes the class of that name, even while its operations wait or are in
    /// flight, and returns it. Takes a lock, which each shard takes once per change.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) as for [`class`](Engine::class), and for
    /// another engine's tenant.
    ///
    /// ```
    /// # use forebay::{ClassSpec, Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// let backup = ClassSpec::new("backup").shares(50).read_bytes_per_second_max(100 << 20);
    /// let class = engine.set_class(backup.clone())?;
    /// // At night, for operations that are waiting as well:
    /// engine.set_class(backup.read_bytes_per_second_max(0))?;
    /// # Ok(()) }
    /// ```
    pub fn set_class(&self, spec: ClassSpec) -> Result<Class> {
        let (before, caps) = (self.shared.classes.specs().0, spec.spec.caps);
        let class = self.shared.classes.set(spec).map_err(|fault| Error::invalid("class", fault))?;
        self.shared.change_caps(class, before.classes[class.index()].caps, caps);
        Ok(class)
    }

    /// Returns the tenant `name` with `shares` shares (1 to 10,000), and creates it if it does not exist. Its shares compete
    /// with those of classes without a tenant; see [`ClassSpec::tenant`]. Another call with the same name changes its shares.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for an empty name, shares out of range, or
    /// a ninth tenant.
    ///
    /// ```
    /// # use forebay::{ClassSpec, Config, Engine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// let acme = engine.tenant("acme", 300)?; // its classes share what 300 shares bring
    /// let queries = engine.set_class(ClassSpec::new("acme queries").shares(900).tenant(acme))?;
    /// let reports = engine.set_class(ClassSpec::new("acme reports").shares(100).tenant(acme))?;
    /// # Ok(()) }
    /// ```
    pub fn tenant(&self, name: &str, shares: u32) -> Result<Tenant> {
        self.shared.classes.set_tenant(name, shares).map_err(|fault| Error::invalid("tenant", fault))
    }
}

/// The report of [`Engine::close`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// Operations that the device did not finish before the deadline; their memory and files were leaked.
    pub leaked_operations: usize,
    /// Shards whose thread had ended abnormally before the close.
    pub lost_shards: usize,
    /// Method names of the calls on names, lengths and space that had not completed before the deadline: started calls may still
    /// take effect, queued [detached](Pending::detach) calls never will.
    pub calls_left: Vec<&'static str>,
}

/// Starts the end when the last handle is dropped. Never waits: it may run on a shard's own thread.
struct Guard {
    shared: Arc<EngineShared>,
    ends: Mutex<Vec<Pending<shard::EndReport>>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.shared.is_forked() {
            self.shared.begin_close();
        }
    }
}

/// A thread that works for an engine until this is dropped.
#[doc(hidden)]
pub struct EngineThread {
    _stay: Stay,
}

crate::_debug_parts!(EngineThread);

/// A reference to an engine that does not keep it running.
#[derive(Clone)]
pub(crate) struct WeakEngine {
    shared: Arc<EngineShared>,
    guard: Weak<Guard>,
}

impl Engine {
    pub(crate) fn downgrade(&self) -> WeakEngine {
        WeakEngine { shared: self.shared.clone(), guard: Arc::downgrade(&self.guard) }
    }
}

impl WeakEngine {
    pub(crate) fn shared(&self) -> &Arc<EngineShared> {
        &self.shared
    }

    /// Returns a handle, as long as the program has one.
    pub(crate) fn upgrade(&self) -> Option<Engine> {
        Some(Engine { shared: self.shared.clone(), guard: self.guard.upgrade()? })
    }
}

/// A reservation of an engine's I/O memory, released on drop; see [`Engine::reserve_memory`](crate::Engine::reserve_memory).
#[must_use = "the reservation ends when this is dropped"]
pub struct MemoryReservation {
    engine: Arc<EngineShared>,
    bytes: u64,
}

impl MemoryReservation {
    fn new(engine: &Arc<EngineShared>, bytes: u64) -> Result<MemoryReservation> {
        let most = engine.arena.counts().bytes_mapped_max as u64;
        let fits = |known: u64| known.checked_add(bytes).filter(|all| *all <= most);
        match engine.reserved.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(_) => Ok(MemoryReservation { engine: engine.clone(), bytes }),
            Err(known) => Err(Error::invalid(
                "reserve memory",
                format!(
                    "{bytes} bytes of I/O memory were asked for, and of Config::arena_bytes_max, {most} bytes, {known} \
                     are promised already: ask for less, or raise Config::arena_bytes_max"
                ),
            )),
        }
    }

    fn left(engine: &EngineShared) -> u64 {
        let most = engine.arena.counts().bytes_mapped_max as u64;
        most.saturating_sub(engine.reserved.load(Ordering::Acquire))
    }

    /// Returns the number of reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

crate::_debug_parts!(MemoryReservation, |memory_reservation| bytes: memory_reservation.bytes);

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.engine.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Engine {
    /// Runs `future` to completion on the calling thread, which sleeps while the future is pending, and returns its output: a
    /// `.wait()` for futures composed of Forebay's.
    ///
    /// Allocates one waker per thread, at its first wait. A sleep and its wake-up cost some microseconds.
    ///
    /// # Errors
    /// [`ErrorKind::WaitOnShard`] on a shard's thread and [`ErrorKind::WaitInWorld`] for a simulated world:
    /// the wait would be for work that only that shard or world can do. The future is then dropped without
    /// having been polled.
    ///
    /// ```
    /// use forebay::{Config, Engine, Open};
    /// # fn main() -> forebay::Result<()> {
    /// let engine = Engine::start(Config::new())?;
    /// let head = engine.block_on(async {
    ///     let file = engine.open("Cargo.toml", Open::read().buffered()).await?;
    ///     file.read(0..9).await
    /// })??;
    /// assert_eq!(&head[..], b"[package]");
    /// # Ok(()) }
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output> {
        // Outside its world's run, nothing would wake the future of a simulated engine.
        let simulated = self.shared.is_simulated().then_some(ErrorKind::WaitInWorld);
        match wait::refusal().or(simulated) {
            Some(kind) => Err(Error::new(kind, "block_on")),
            None => Ok(wait::block_on_any(future)),
        }
    }

    /// As [`block_on`](Self::block_on), for a future with one operation at a time. The calling thread then performs reads,
    /// writes, syncs and single walks itself, as `.wait()` on each of them does; see
    /// [`Config::wait_calls`](crate::Config::wait_calls).
    ///
    /// Concurrent operations of the future (`join`, `select`) run one after the other here, and a timeout around one takes
    /// effect only when the device has completed it.
    ///
    /// # Errors
    /// As [`block_on`](Self::block_on).
    ///
    /// ```
    /// use forebay::{Config, Engine, Open};
    /// # fn main() -> forebay::Result<()> {
    /// let engine = Engine::start(Config::new())?;
    /// let file = engine.open("Cargo.toml", Open::read().buffered()).wait()?;
    /// let first = engine.block_on_in_turn(async {
    ///     let head = file.read(0..9).await?; // pread(2) on this thread
    ///     file.read(0..u64::from(head[0] == b'[')).await
    /// })??;
    /// assert_eq!(first.len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn block_on_in_turn<F: Future>(&self, future: F) -> Result<F::Output> {
        let simulated = self.shared.is_simulated().then_some(ErrorKind::WaitInWorld);
        match wait::refusal().or(simulated) {
            Some(kind) => Err(Error::new(kind, "block_on")),
            None => Ok(wait::block_in_turn_on_any(future)),
        }
    }

    /// Returns whether a thread in [`block_on_in_turn`](Self::block_on_in_turn) or `.wait()` makes the system calls of
    /// operations itself, except those that need a shard. False in a simulated world, with
    /// [`Config::wait_calls`](crate::Config::wait_calls) off, and for shards with a raised [priority](crate::Config::priority).
    ///
    /// For libraries that choose between their own thread and a task on a shard.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> forebay::Result<()> {
    /// assert!(Engine::start(Config::new())?.makes_wait_calls());
    /// assert!(!Engine::start(Config::new().wait_calls(false))?.makes_wait_calls());
    /// # Ok(()) }
    /// ```
    pub fn makes_wait_calls(&self) -> bool {
        self.shared.calls.are_allowed()
    }

    /// Returns the time on the engine's clock, in nanoseconds since an arbitrary moment: only differences are meaningful. In a
    /// simulated world it is that world's time, the same for the same seed.
    ///
    /// Costs about 5 ns where the processor's counter can be used, else as much as an `Instant`. Two threads
    /// may read a few nanoseconds apart, so subtract with [`u64::saturating_sub`].
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let begun = engine.now_ns();
    /// file.read(0..4096).wait()?;
    /// println!("{} ns", engine.now_ns().saturating_sub(begun));
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }
}

impl Engine {
    /// Returns the counters of each open file that a shard has served, sorted by path. Each shard receives one message and
    /// copies its counters: some 100 ns for each open file on the shard, so not for hot loops.
    ///
    /// # Errors
    /// As for [`stats`](Engine::stats).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// file.read(0..4096).wait()?;
    /// for file in engine.file_stats().wait()? {
    ///     println!("{:?}", file);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn file_stats(&self) -> Pending<Vec<FileStats>> {
        if let Err(error) = self.check() {
            return Pending::ready(Err(error));
        }
        Pending::from_future("stats", Box::pin(gather_files(self.shared.clone())))
    }
}
