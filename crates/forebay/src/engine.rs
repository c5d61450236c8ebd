//! The engine: what a program starts once, and what its files and tasks belong to.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::arena::{AllocError, Arena, ArenaConfig};
use crate::block::BlockMut;
use crate::class::{Class, ClassTable};
use crate::config::Config;
use crate::device::Device;
use crate::driver::meta::{MetaReply, MetaRequest};
use crate::driver::pool::Pool;
use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::fork::Origin;
use crate::health::{Degradation, Health};
use crate::op::OpFailure;
use crate::open::{self, Open};
use crate::pending::{self, Pending};
use crate::shard::clock::{Clock, Ticks};
use crate::shard::inbox::{Inbox, Message};
use crate::shard::{self, JoinHandle};
use crate::stats::{FlowStats, MemoryStats, Stats};

/// Threads for calls that io_uring itself would hand to kernel threads: open, rename, truncate, ...
const POOL_THREADS_MAX: usize = 4;
/// Such calls that may wait in the pool; further callers wait themselves.
const POOL_QUEUE_MAX: usize = 1024;

/// What a program starts once: the shards, their I/O memory, and the door to files. A handle; clones are cheap.
///
/// When the last handle is dropped, on whatever thread, the engine begins an orderly end without waiting for it:
/// tasks are cancelled, operations in flight drained, and files that are still held answer
/// [`ErrorKind::EngineClosed`]. [`Engine::close`] does the same and tells the outcome.
///
/// ```
/// use forebay::{Config, Engine, Open};
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("points.bin");
/// # std::fs::write(&path, vec![1u8; 100_000]).unwrap();
/// let engine = Engine::start(Config::default())?;
/// let file = engine.open(&path, Open::read()).wait()?;
/// let block = file.read(1_003..1_103).wait()?; // any offset, any length
/// assert_eq!(block.len(), 100);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Engine {
    shared: Arc<EngineShared>,
    /// Dropped with the last handle; files and shards hold `shared` only.
    guard: Arc<Guard>,
}

impl Engine {
    /// Starts the shards and maps the first I/O memory: a few milliseconds.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for settings out of range; the system's error when a thread or the memory cannot be
    /// had, or when [`DriverChoice::Uring`](crate::DriverChoice::Uring) was asked for and the kernel refuses io_uring.
    pub fn start(config: Config) -> Result<Engine> {
        if let Some(fault) = config.fault() {
            return Err(Error::invalid("start", fault));
        }
        let count = config.shard_count();
        let (bytes_initial, bytes_max) = config.arena_limits();
        let arena = Arena::new(ArenaConfig {
            bytes_initial,
            bytes_max,
            overflow_bytes_max: config.overflow_bytes_max,
            shards: count,
        })
        .map_err(|error| {
            Error::io("start", error).with_note(format!("no I/O memory ({bytes_initial} bytes)"))
        })?;
        let one_cpu = std::thread::available_parallelism().map_or(1, usize::from) == 1;
        let spin_ns = if one_cpu { 0 } else { u64::try_from(config.spin.as_nanos()).unwrap_or(u64::MAX) };
        let shared = Arc::new(EngineShared {
            inboxes: (0..count).map(|index| Arc::new(Inbox::new(index, config.inbox_depth))).collect(),
            arena,
            classes: ClassTable::new(),
            pool: Pool::new("forebay-pool", POOL_THREADS_MAX, POOL_QUEUE_MAX),
            spin_ticks: Clock::system().ticks(spin_ns),
            config,
            driver: OnceLock::new(),
            degraded: Mutex::new(Vec::new()),
            devices: Mutex::new(Devices::default()),
            page_cache_reads: AtomicU64::new(0),
            page_cache_bytes: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            origin: Origin::here(),
            shards_left: AtomicUsize::new(count),
        });
        let (senders, ends): (Vec<_>, Vec<_>) = (0..count).map(|_| pending::channel("close")).unzip();
        let weak = Arc::downgrade(&shared);
        shared.arena.set_growth_asker(Box::new(move || {
            if let Some(shared) = weak.upgrade() {
                let pool = shared.pool.clone();
                // A full or closed pool: the shard that needs the memory maps it itself.
                let _ = pool.submit(Box::new(move || shared.arena.grow_ahead()));
            }
        }));
        let guard = Arc::new(Guard { shared: shared.clone(), ends: Mutex::new(ends) });
        // On an error the guard's drop ends the shards that did start.
        let driver = shard::start_shards(&shared, senders)?;
        let first = shared.driver.set(driver);
        debug_assert!(first.is_ok());
        if !shared.arena.counts().huge {
            shared.degrade_once(
                "huge pages",
                "the kernel gave none for the I/O memory",
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; scans are up to twice as fast with them",
            );
        }
        Ok(Engine { shared, guard })
    }

    /// Opens a file as `open` says; see [`Open`].
    ///
    /// Without [`Open::buffered`] or [`Open::uncached`] it is opened for direct I/O, past the page cache.
    ///
    /// # Errors
    /// Those of open(2). A file system that cannot do direct I/O answers [`ErrorKind::Unsupported`].
    pub fn open(&self, path: impl AsRef<Path>, open: Open) -> Pending<File> {
        open::open(self, path.as_ref().to_path_buf(), open)
    }

    /// Takes over a file that was opened elsewhere. Its mode of access stays as it is: whether it is direct is read
    /// from its flags (fcntl(2)), and [`Open::uncached`] and [`Open::shard`] apply as given.
    ///
    /// # Errors
    /// The system's, when the descriptor cannot be asked.
    pub fn from_std(&self, file: std::fs::File, open: Open) -> Pending<File> {
        open::from_std(self, file, open)
    }

    /// A new file in `dir` without a name, readable and writable, that is gone when its last handle is.
    ///
    /// # Errors
    /// Those of open(2) with `O_TMPFILE`; where a file system has none, a named file is made and unlinked at once.
    pub fn temp_file(&self, dir: impl AsRef<Path>, open: Open) -> Pending<File> {
        open::temp_file(self, dir.as_ref().to_path_buf(), open)
    }

    /// I/O memory for a write or a [`File::read_into`], all zero, from the arena.
    ///
    /// # Errors
    /// [`ErrorKind::ArenaExhausted`] when blocks hold all memory, [`ErrorKind::TooLarge`] above 1 GiB.
    pub fn block(&self, len: usize) -> Result<BlockMut> {
        let buffer = self.shared.buffer("block", len)?;
        // SAFETY: nothing is claimed to be filled, so every byte that becomes visible is zeroed first.
        Ok(unsafe { buffer.into_block_mut(len, 0) })
    }

    /// I/O memory with a copy of `data`.
    ///
    /// # Errors
    /// As [`Engine::block`].
    pub fn block_from(&self, data: &[u8]) -> Result<BlockMut> {
        self.shared.block_from("block", data)
    }

    /// Number of shards.
    pub fn shard_count(&self) -> usize {
        self.shared.inboxes.len()
    }

    /// `"uring"` or `"threads"`.
    pub fn driver(&self) -> &'static str {
        self.shared.driver.get().copied().unwrap_or("threads")
    }

    /// How the engine runs, and what works worse than it could, with the remedies.
    pub fn health(&self) -> Health {
        Health {
            driver: self.driver(),
            shards: self.shard_count(),
            degraded: self.shared.lock_degraded().clone(),
        }
    }

    /// Counts and times since the start. Each shard is asked with one message; costs microseconds, not for hot loops.
    ///
    /// # Errors
    /// [`ErrorKind::EngineClosed`] and [`ErrorKind::Forked`].
    pub fn stats(&self) -> Pending<Stats> {
        if let Err(error) = self.check() {
            return Pending::ready(Err(error));
        }
        let shared = self.shared.clone();
        Pending::from_future(
            "stats",
            Box::pin(async move {
                let mut stats = Stats::default();
                let mut flows: Vec<((u8, u16), FlowStats)> = Vec::new();
                for inbox in &shared.inboxes {
                    let (answer, report) = pending::channel("stats");
                    let message = Message::Call(Box::new(move |shard| shard.tell_stats(answer)));
                    shard::send(inbox.clone(), message).await;
                    let report = report.await?;
                    stats.shards.push(report.stats);
                    for (key, flow) in report.flows {
                        match flows.iter_mut().find(|(known, _)| *known == key) {
                            Some((_, known)) => known.merge(&flow),
                            None => flows.push((key, flow)),
                        }
                    }
                }
                flows.sort_by_key(|(key, _)| *key);
                for ((class, device), mut flow) in flows {
                    flow.class = shared.classes.name(Class(class));
                    flow.device = shared.lock_devices().name(device);
                    stats.flows.push(flow);
                }
                stats.page_cache_reads = shared.page_cache_reads.load(Ordering::Relaxed);
            stats.page_cache_bytes = shared.page_cache_bytes.load(Ordering::Relaxed);
            stats.memory = shared.memory();
                Ok(stats)
            }),
        )
    }

    /// What the engine's I/O memory is doing; takes a lock that reads take only when their shard runs out.
    pub fn memory(&self) -> MemoryStats {
        self.shared.memory()
    }

    /// Runs `make`'s future as a task on a shard, next to the device: no hop for its operations. The future need not
    /// be `Send`; `make` is called on the shard.
    ///
    /// When the shard's inbox is full the task begins once the handle is awaited, and not at all if the handle is
    /// dropped before.
    ///
    /// A shard number that does not exist counts from the start again. The task is in `class`; see
    /// [`shard`](crate::shard) for what it may call.
    pub fn spawn_on_shard<F, Fut>(&self, shard: usize, class: Class, make: F) -> JoinHandle<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        if let Err(error) = self.shared.check("task") {
            return JoinHandle::failed(error);
        }
        shard::spawn_on(&self.shared.inboxes[shard % self.shared.inboxes.len()], class, make)
    }

    /// A class with that name and number of shares (1 to 10,000); asking again for a name changes its shares.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for an empty name, shares out of range, or a seventeenth class.
    pub fn class(&self, name: &str, shares: u32) -> Result<Class> {
        self.shared.classes.add(name, shares).map_err(|fault| Error::invalid("class", fault))
    }

    /// Ends the engine for all handles and files, and tells how it went: tasks are cancelled, operations that the
    /// device has are cancelled or finished, and what it does not give back within
    /// [`Config::shutdown_deadline`] is leaked.
    ///
    /// The end begins at once, also when the answer is never awaited.
    ///
    /// # Errors
    /// [`ErrorKind::EngineClosed`] when it was closed before.
    pub fn close(self) -> Pending<CloseReport> {
        if let Err(error) = self.check() {
            return Pending::ready(Err(error));
        }
        let ends = std::mem::take(&mut *self.guard.ends.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.begin_close();
        Pending::from_future(
            "close",
            Box::pin(async move {
                let mut report = CloseReport { leaked_operations: 0, lost_shards: 0 };
                for end in ends {
                    match end.await?.leaked {
                        usize::MAX => report.lost_shards += 1,
                        leaked => report.leaked_operations += leaked,
                    }
                }
                Ok(report)
            }),
        )
    }

    /// Is the engine usable from this process?
    pub(crate) fn check(&self) -> Result<()> {
        self.shared.check("engine")
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    pub(crate) fn shared(&self) -> &Arc<EngineShared> {
        &self.shared
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("driver", &self.driver())
            .field("shards", &self.shard_count())
            .finish_non_exhaustive()
    }
}

/// How an engine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// Operations that the device did not finish before the deadline; their memory and files were leaked.
    pub leaked_operations: usize,
    /// Shards whose thread had died before.
    pub lost_shards: usize,
}

/// Begins the end when the last handle goes. Never waits: it may run on a shard's own thread.
struct Guard {
    shared: Arc<EngineShared>,
    ends: Mutex<Vec<Pending<shard::Ended>>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.shared.is_forked() {
            self.shared.begin_close();
        }
    }
}

/// What handles, files and shards share.
pub(crate) struct EngineShared {
    pub(crate) inboxes: Vec<Arc<Inbox>>,
    pub(crate) arena: Arena,
    pub(crate) classes: ClassTable,
    pub(crate) config: Config,
    pub(crate) spin_ticks: Ticks,
    pool: Pool,
    driver: OnceLock<&'static str>,
    degraded: Mutex<Vec<Degradation>>,
    devices: Mutex<Devices>,
    /// Buffered reads that the page cache answered on the caller's thread, and their bytes.
    pub(crate) page_cache_reads: AtomicU64,
    pub(crate) page_cache_bytes: AtomicU64,
    closing: AtomicBool,
    origin: Origin,
    shards_left: AtomicUsize,
}

impl EngineShared {
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        self.failure().map_or(Ok(()), |failure| Err(failure.into_error(operation, None)))
    }

    /// Does the engine belong to a process that this one was forked from?
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Why nothing can be asked of this engine here, if that is so.
    #[inline]
    pub(crate) fn failure(&self) -> Option<OpFailure> {
        if self.is_forked() {
            return Some(OpFailure::Forked);
        }
        self.closing.load(Ordering::Relaxed).then_some(OpFailure::EngineClosed)
    }

    /// Has the pool carry out `request`; `answer` takes what belongs to it out of the reply.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        request: MetaRequest,
        answer: impl FnOnce(MetaReply) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        let operation = request.operation();
        if let Err(error) = self.check(operation) {
            return Pending::ready(Err(error));
        }
        self.pool.run(operation, move || {
            answer(crate::driver::meta::execute(&request)?).ok_or_else(|| misfit(operation))
        })
    }

    /// As [`ask`](Self::ask), with errors that name the file.
    pub(crate) fn ask_of<T: Send + 'static>(
        &self,
        file: &Arc<crate::file::FileCore>,
        request: MetaRequest,
        answer: impl FnOnce(MetaReply) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        let operation = request.operation();
        if let Err(error) = self.check(operation) {
            return Pending::ready(Err(file.describe(error)));
        }
        let file = file.clone();
        self.pool.run(operation, move || {
            let reply = crate::driver::meta::execute(&request).map_err(|error| file.describe(error))?;
            answer(reply).ok_or_else(|| misfit(operation))
        })
    }

    /// A buffer for the calling thread: from its shard's cache, or from the shared memory.
    pub(crate) fn buffer(&self, operation: &'static str, len: usize) -> Result<crate::arena::Buffer> {
        // The child of a fork does not inherit I/O memory: it would be handed addresses where nothing is mapped.
        if self.is_forked() {
            return Err(OpFailure::Forked.into_error(operation, None));
        }
        let buffer = match shard::current() {
            Some(_) => self.arena.alloc_local(len).or_else(|_| self.arena.alloc_overflow(len)),
            None => self.arena.alloc(len),
        };
        buffer.map_err(|error| match error {
            AllocError::NoMemory { held } => Error::new(ErrorKind::ArenaExhausted { held }, operation),
            AllocError::TooLarge => OpFailure::TooLarge.into_error(operation, None),
        })
    }

    /// I/O memory with a copy of `data`.
    pub(crate) fn block_from(&self, operation: &'static str, data: &[u8]) -> Result<BlockMut> {
        let buffer = self.buffer(operation, data.len())?;
        // SAFETY: the buffer has at least `data.len()` bytes, is ours alone, and is filled that far before anyone
        // sees it as a block.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.as_ptr(), data.len());
            Ok(buffer.into_block_mut(data.len(), data.len()))
        }
    }

    /// The shard that the fewest files call home.
    pub(crate) fn least_loaded(&self) -> usize {
        let load = |inbox: &Arc<Inbox>| inbox.files.load(Ordering::Relaxed);
        self.inboxes.iter().enumerate().min_by_key(|(_, inbox)| load(inbox)).map_or(0, |(index, _)| index)
    }

    /// The number under which a file's device is counted.
    pub(crate) fn device_of(&self, fd: BorrowedFd<'_>, number: u64) -> (u16, Arc<Device>) {
        if let Some(known) = self.lock_devices().find(number) {
            return known;
        }
        // Read from sysfs outside the lock: it takes some system calls.
        let device = Arc::new(Device::of_fd(fd).unwrap_or_default());
        self.lock_devices().add(number, device)
    }

    fn lock_devices(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_degraded(&self) -> MutexGuard<'_, Vec<Degradation>> {
        self.degraded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a degradation and tells the program, unless the same mechanism is on the list already.
    pub(crate) fn degrade_once(&self, what: &str, why: &str, remedy: &str) {
        let degradation = Degradation::new(what, why, remedy);
        {
            let mut degraded = self.lock_degraded();
            if degraded.iter().any(|known| known.what == what) {
                return;
            }
            degraded.push(degradation.clone());
        }
        #[cfg(feature = "tracing")]
        tracing::warn!(what, why, remedy, "degraded");
        if let Some(handler) = &self.config.on_event {
            // The program's code: its panic must not take a shard with it.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| handler(&degradation)));
        }
    }

    /// Bytes of I/O memory that live blocks and operations hold; for an error's text.
    pub(crate) fn held_bytes(&self) -> u64 {
        let counts = self.arena.counts();
        (counts.bytes_held + counts.overflow_bytes) as u64
    }

    fn memory(&self) -> MemoryStats {
        let counts = self.arena.counts();
        MemoryStats {
            arena_bytes: counts.bytes_mapped as u64,
            arena_bytes_max: counts.bytes_mapped_max as u64,
            held_bytes: counts.bytes_held as u64,
            overflow_bytes: counts.overflow_bytes as u64,
            overflow_allocations: counts.overflow_allocations,
        }
    }

    /// Tells every shard to end, once.
    fn begin_close(&self) {
        if self.closing.swap(true, Ordering::SeqCst) {
            return;
        }
        for inbox in &self.inboxes {
            inbox.end();
        }
    }

    /// One shard's thread is over; the last one closes the arena, whose blocks live on.
    pub(crate) fn shard_ended(&self) {
        if self.shards_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Not marked as closing: handles of an engine whose shards died are told that, and may still close it.
            self.arena.close();
            // Queued calls still run; nobody waits for the pool's threads.
            drop(self.pool.close());
        }
    }
}

/// Devices that files were opened on, numbered for the statistics; number 0 means none.
#[derive(Default)]
struct Devices {
    numbers: HashMap<u64, u16>,
    list: Vec<Arc<Device>>,
}

impl Devices {
    fn find(&self, number: u64) -> Option<(u16, Arc<Device>)> {
        let index = *self.numbers.get(&number)?;
        Some((index, self.list.get(index as usize - 1)?.clone()))
    }

    fn add(&mut self, number: u64, device: Arc<Device>) -> (u16, Arc<Device>) {
        if let Some(known) = self.find(number) {
            return known;
        }
        // More devices than numbers: the rest share the last one.
        if self.list.len() == usize::from(u16::MAX) {
            return (u16::MAX, device);
        }
        self.list.push(device.clone());
        let index = self.list.len() as u16;
        self.numbers.insert(number, index);
        (index, device)
    }

    fn name(&self, index: u16) -> String {
        match (index as usize).checked_sub(1).and_then(|at| self.list.get(at)) {
            Some(device) => device.name().to_string(),
            None => "-".to_string(),
        }
    }
}

fn misfit(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, operation).with_note("the answer does not fit the call")
}
