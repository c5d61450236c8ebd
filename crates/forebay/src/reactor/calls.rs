//! Operations that a thread in `.wait()` carries out itself, by a blocking system call.
//!
//! Such a thread can do nothing else until its operation has ended. Sent to a shard, the operation would cost two changes of threads
//! more, which is most of the time that a fast device takes and as much processor time as the read itself.
//!
//! An operation goes to its home shard all the same if the shard decides when it may go or what serves it:
//! - its class has caps, or it is larger than a piece (a durable write may be longer: its flush takes the device anyway);
//! - another class uses the device at the time, and operations wait for room or for their turn, or it is no read
//!   (`scheduler/device.rs`, [`DeviceScheduler::admit_call`](crate::reactor::scheduler::DeviceScheduler::admit_call));
//! - its file has polled completions or is an NVMe namespace;
//! - no I/O memory is free: the shard has the queue for it;
//! - a write passes RLIMIT_FSIZE: the kernel would send SIGXFSZ to this thread, and that ends a program by default.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::base::class::{Class, Specs};
use crate::base::priority::Priority;
use crate::driver::threads::transfer;
use crate::driver::{IoRequest, Route};
use crate::io::config::Config;
use crate::io::host::Host;
use crate::io::op::{
    Durability, OpBuffer, OpFailure, OpKey, OpKind, OpRequest, OpResult, RETRIES_MAX,
};
use crate::io::stats::{EndedOp, FileCounts, FileReport, FlowStats, Flows, SharedFileCounts, WalkStats};
use crate::memory::arena::{Aside, Buffer};
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::open_file::FileCore;
use crate::reactor::scheduler::{CallAdmission, CallCharge, Counts, PIECE_BYTES};

/// One call in this many of a thread is timed.
const SAMPLE_EVERY: u32 = 32;
/// The most stripes: counters and free memory that are kept apart so that threads on several processors do not wait for each other.
const STRIPES_MAX: usize = 8;
/// The pause between two looks for calls that have not returned at the engine's end.
const PAUSE: Duration = Duration::from_micros(100);
/// A thread that has no stripe yet.
const NO_STRIPE: usize = usize::MAX;

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(NO_STRIPE) };
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// The calls of an engine's waiting threads.
pub(crate) struct Calls {
    /// The arena's numbers from here on are the stripes'.
    first: usize,
    /// None where no thread may make calls.
    stripes: Box<[CachePadded<Mutex<Stripe>>]>,
    /// Files with calls, for the statistics.
    files: Mutex<Vec<Weak<FileCore>>>,
    /// Calls that did not return in time were reported.
    reported: AtomicBool,
}

/// State that the threads of a stripe share.
struct Stripe {
    calls: u64,
    flows: Flows,
    walks: WalkStats,
    /// The shares received beside other classes, by class and device.
    shares: Vec<((u8, u16), Counts)>,
    /// The classes as they were at the version.
    specs: Specs,
    version: u32,
    /// I/O memory that was used lately. `None` before the first call, and after the engine's end.
    cache: Option<Aside>,
}

// SAFETY: the cache is used by the thread that holds the stripe's lock only, which orders one such thread after the other.
unsafe impl Send for Stripe {}

impl Stripe {
    fn new() -> Stripe {
        Stripe {
            calls: 0,
            flows: Flows::new(),
            walks: WalkStats::default(),
            shares: Vec::new(),
            specs: Specs::default(),
            version: 0,
            cache: None,
        }
    }

    /// Begins a call beside other classes; see [`DeviceScheduler::begin_call`](crate::reactor::scheduler::DeviceScheduler::begin_call).
    fn charge(&mut self, core: &FileCore, request: &OpRequest) -> Option<CallCharge> {
        let classes = &core.engine().classes;
        if self.version != classes.version() {
            (self.specs, self.version) = classes.specs();
        }
        let class = request.class.index();
        let charge = core.scheduler()?.begin_call(class, request.kind, request.len, &self.specs)?;
        let key = (request.class.0, core.device_index());
        let at = self.shares.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            self.shares.push((key, Counts::default()));
            self.shares.len() - 1
        });
        // Nothing waits, so what it receives is what is due to it.
        self.shares[at].1.received += charge.weight;
        self.shares[at].1.due += charge.weight;
        Some(charge)
    }

    /// Runs `act` with the stripe's cache on this thread.
    fn with_cache<T>(&mut self, act: impl FnOnce() -> T) -> T {
        let outside = self.cache.take().unwrap_or(Aside::NOTHING).swap();
        let result = act();
        self.cache = Some(outside.swap());
        result
    }
}

/// The calls on one file from the threads of one stripe.
#[derive(Default)]
pub(crate) struct FileCalls {
    running: AtomicUsize,
    /// Written with the stripe's lock held.
    counts: SharedFileCounts,
}

/// The calls on one file: an entry for each stripe.
pub(crate) type FileStripes = Box<[CachePadded<FileCalls>]>;

/// Returns the number of calls on a file that have not returned.
pub(crate) fn running(stripes: &FileStripes) -> usize {
    stripes.iter().map(|calls| calls.running.load(Ordering::SeqCst)).sum()
}

/// A call that has begun. The engine's end and the file's close wait for it.
struct RunningCall<'c> {
    core: &'c FileCore,
    calls: &'c FileCalls,
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        // SeqCst, against the close of the file: it sees that the call has returned, or this sees that it waits.
        self.calls.running.fetch_sub(1, Ordering::SeqCst);
        if self.core.is_closed() {
            self.core.wake_closers();
        }
    }
}

/// A call beside other classes. Its room goes back with it.
struct ChargedCall<'c> {
    core: &'c FileCore,
    charge: CallCharge,
}

impl Drop for ChargedCall<'_> {
    fn drop(&mut self) {
        let (engine, clock) = (self.core.engine(), self.core.engine().clock());
        let wake =
            self.core.scheduler().map_or(0, |device| device.end_call(&self.charge, clock.ns(clock.now())));
        if wake != 0 {
            engine
                .all_inboxes()
                .filter(|inbox| wake & (1 << inbox.index) != 0)
                .for_each(|inbox| inbox.kick());
        }
    }
}

impl Calls {
    /// Returns the number of stripes of an engine with these settings: none where no thread may make calls. `is_real` is false in a
    /// simulated world, where no thread waits.
    pub(crate) fn stripes(config: &Config, host: Host, is_real: bool) -> usize {
        let allowed = is_real && config.wait_calls && config.priority == Priority::Default;
        if allowed { host.processors.min(STRIPES_MAX) } else { 0 }
    }

    /// Returns whether waiting threads may make calls at all.
    pub(crate) fn are_allowed(&self) -> bool {
        !self.stripes.is_empty()
    }

    /// Makes `stripes` stripes. `first` is the arena's number of the first one.
    pub(crate) fn new(stripes: usize, first: usize) -> Calls {
        Calls {
            first,
            stripes: (0..stripes).map(|_| CachePadded::new(Mutex::new(Stripe::new()))).collect(),
            files: Mutex::default(),
            reported: AtomicBool::new(false),
        }
    }

    /// Returns the number of this thread's stripe.
    fn stripe(&self) -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        if STRIPE.get() == NO_STRIPE {
            STRIPE.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        STRIPE.get() % self.stripes.len()
    }

    fn lock(&self, stripe: usize) -> MutexGuard<'_, Stripe> {
        self.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn locked(&self) -> impl Iterator<Item = MutexGuard<'_, Stripe>> {
        (0..self.stripes.len()).map(|stripe| self.lock(stripe))
    }

    /// Returns the number of calls.
    pub(crate) fn count(&self) -> u64 {
        self.locked().map(|stripe| stripe.calls).sum()
    }

    /// Returns the counters of the calls by class and device. A pair may come several times.
    pub(crate) fn flows(&self) -> Vec<((u8, u16), FlowStats)> {
        self.locked().flat_map(|stripe| stripe.flows.snapshot()).collect()
    }

    /// Returns the shares that calls received beside other classes, by class and device. A pair may come several times.
    pub(crate) fn shares(&self) -> Vec<((u8, u16), Counts)> {
        self.locked().flat_map(|stripe| stripe.shares.clone()).collect()
    }

    /// Adds a walk that a thread carried out itself.
    pub(crate) fn count_walk(&self, counts: &WalkStats) {
        self.lock(self.stripe()).walks.merge(counts);
    }

    /// Adds the counters of such walks to `sum`.
    pub(crate) fn add_walks(&self, sum: &mut WalkStats) {
        self.locked().for_each(|stripe| sum.merge(&stripe.walks));
    }

    /// Returns memory for a read of this stripe.
    fn buffer(&self, engine: &EngineShared, stripe: usize, bytes: usize) -> Option<Buffer> {
        let mut locked = self.lock(stripe);
        let is_first = locked.cache.is_none();
        locked.with_cache(|| {
            if is_first {
                engine.arena.install(self.first + stripe);
            }
            engine.arena.alloc_local(bytes).ok()
        })
    }

    /// Gives the memory in the stripes' caches to all.
    pub(crate) fn release_memory(&self, engine: &EngineShared) {
        for mut stripe in self.locked().filter(|stripe| stripe.cache.is_some()) {
            stripe.with_cache(|| engine.arena.empty_cache());
        }
    }

    /// Returns the counters of the open files with calls.
    pub(crate) fn report_files(&self) -> Vec<FileReport> {
        let report = |core: Arc<FileCore>| {
            let counts = core.calls()?.iter().map(|calls| calls.counts.load());
            (!core.is_closed() && !core.has_no_handle()).then(|| FileReport {
                key: Arc::as_ptr(&core) as usize,
                path: core.path().to_path_buf(),
                device: core.device_index(),
                counts: counts.fold(FileCounts::default(), FileCounts::plus),
            })
        };
        self.files().filter_map(report).collect()
    }

    /// Returns the open files with calls.
    fn files(&self) -> impl Iterator<Item = Arc<FileCore>> {
        // Their last count may be dropped by the caller: not under the lock.
        let files: Vec<Arc<FileCore>> = self.lock_files().iter().filter_map(Weak::upgrade).collect();
        files.into_iter()
    }

    /// Returns the place for the calls on a file, and reports them from now on.
    #[cold]
    pub(crate) fn add_file(&self, core: &Arc<FileCore>) -> FileStripes {
        let mut files = self.lock_files();
        if files.len() == files.capacity() {
            files.retain(|file| file.strong_count() > 0);
        }
        files.push(Arc::downgrade(core));
        self.stripes.iter().map(|_| CachePadded::default()).collect()
    }

    fn lock_files(&self) -> MutexGuard<'_, Vec<Weak<FileCore>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits at the engine's end until all calls have returned, those of the pool as well, or for `limit`. Returns the number of
    /// waiting threads' calls that have not, and the names of the pool's, once.
    pub(crate) fn drain(&self, engine: &EngineShared, limit: Duration) -> (usize, Vec<&'static str>) {
        #[cfg(feature = "sim")]
        if let Some(world) = &engine.world {
            return (0, world.end_calls(Arc::as_ptr(&engine.in_flight) as usize, limit));
        }
        let began = Instant::now();
        // Against the fence in `begin`: a call that began before is counted, or it sees that the engine closes.
        fence(Ordering::SeqCst);
        loop {
            let running = self.files().filter_map(|core| core.calls().map(running)).sum();
            if running == 0 && engine.in_flight.count() == 0 {
                for mut stripe in self.locked().filter(|stripe| stripe.cache.is_some()) {
                    stripe.with_cache(|| engine.arena.uninstall());
                    stripe.cache = None;
                }
                return (0, Vec::new());
            }
            if began.elapsed() >= limit {
                let is_told = self.reported.swap(true, Ordering::AcqRel);
                let calls = engine.pool.abandon();
                return if is_told { (0, Vec::new()) } else { (running, calls) };
            }
            // Nothing reports that a call has returned: at the end of an engine none is worth it.
            thread::park_timeout(PAUSE);
        }
    }
}

/// Carries out an operation on this thread, which waits for it. `None` if it has to go to its file's home shard.
///
/// The memory of the result lies in the request.
pub(crate) fn run(core: &Arc<FileCore>, request: &mut OpRequest) -> Option<OpResult> {
    let engine = core.engine();
    let class = request.class.or_of_task();
    let is_flush = request.kind == OpKind::Write && request.durability != Durability::None;
    let is_long = request.len > PIECE_BYTES && !is_flush;
    let admission = admission(core, class);
    if admission == CallAdmission::Shard || is_long || !is_within_size_limit(request) {
        return None;
    }
    request.class = class;
    let stripe = engine.calls.stripe();
    let _charged = match admission {
        CallAdmission::Count if request.kind != OpKind::Read => return None,
        CallAdmission::Count => {
            let charge = engine.calls.lock(stripe).charge(core, request)?;
            Some(ChargedCall { core, charge })
        }
        CallAdmission::Pass | CallAdmission::Shard => None,
    };
    let running = match begin(engine, core, stripe) {
        Ok(running) => running,
        Err(failure) => return Some(Err(failure)),
    };
    if matches!(request.buffer, OpBuffer::LateApart) {
        return None;
    }
    if matches!(request.buffer, OpBuffer::Late) {
        // A read that came before waits in its shard's queue.
        if engine.arena.is_awaited() {
            return None;
        }
        let buffer = engine.calls.buffer(engine, stripe, request.len as usize)?;
        request.buffer.move_from(&mut OpBuffer::Buffer(buffer));
    }
    let sampled = CALLS.get() % SAMPLE_EVERY == SAMPLE_EVERY - 1;
    CALLS.set(CALLS.get().wrapping_add(1));
    let began = sampled.then(Instant::now);
    let result = perform(core, request);
    count(engine.calls.lock(stripe), &running, request, result, began);
    Some(result)
}

/// Returns whether a thread may carry out reads of this class on this file itself.
pub(crate) fn suits(core: &FileCore, class: Class) -> bool {
    admission(core, class) != CallAdmission::Shard
}

fn admission(core: &FileCore, class: Class) -> CallAdmission {
    let engine = core.engine();
    let is_allowed = engine.calls.are_allowed()
        && core.route() == Route::Ordinary
        // The home shard reports its loss; a file without it would be half alive.
        && engine.inboxes[core.home()].failure().is_none()
        && !engine.classes.is_capped(class);
    match core.scheduler() {
        _ if !is_allowed => CallAdmission::Shard,
        None => CallAdmission::Pass,
        Some(scheduler) => {
            let clock = engine.clock();
            scheduler.admit_call(class.index(), clock.ns(clock.now()))
        }
    }
}

/// Registers a call with its file, and so with the engine.
fn begin<'c>(
    engine: &'c EngineShared,
    core: &'c Arc<FileCore>,
    stripe: usize,
) -> Result<RunningCall<'c>, OpFailure> {
    let calls = &core.calls_of(&engine.calls)[stripe];
    calls.running.fetch_add(1, Ordering::SeqCst);
    let running = RunningCall { core, calls };
    // Against the fence in `drain`.
    fence(Ordering::SeqCst);
    match engine.failure() {
        Some(failure) => Err(failure),
        None if core.is_closed() => Err(OpFailure::FileClosed),
        None => Ok(running),
    }
}

/// Makes the system calls of an operation until it has ended.
fn perform(core: &FileCore, request: &OpRequest) -> OpResult {
    let grain = core.alignment().read_offset.max(1);
    let mut done = 0;
    let mut retries = 0;
    loop {
        let sync = request.durability.sync_kind().filter(|_| request.kind == OpKind::Write);
        let call = IoRequest {
            // No driver sees it.
            key: OpKey { index: 0, generation: 0 },
            kind: request.kind,
            fd: core.raw_fd(),
            fixed_file: None,
            memory: request.buffer.memory(done).map(|(start, _)| start),
            region: None,
            len: request.len - done,
            offset: request.offset + u64::from(done),
            rw_flags: core.rw_flags(),
            route: 0,
            sync,
            flush: request.flush.resolve(true),
        };
        // SAFETY: the request owns its memory, of `len` bytes from `done` on, and nothing else uses it before this function returns.
        // `core` keeps the descriptor open.
        let result = unsafe { transfer::run(&call) };
        let Ok(moved) = u32::try_from(result) else {
            if matches!(-result, libc::EAGAIN | libc::EINTR) && retries < RETRIES_MAX {
                retries += 1;
                continue;
            }
            return Err(OpFailure::of_result(result));
        };
        let is_over = match request.kind {
            OpKind::Nop | OpKind::Command | OpKind::SyncData | OpKind::SyncAll => true,
            // A direct read ends off the device's grain only at the end of the file.
            OpKind::Read => {
                done = request.len.min(done + moved);
                moved == 0 || done % grain != 0
            }
            // With its sync: zero stands for all bytes.
            OpKind::Write if sync.is_some() && moved == 0 => return Ok(request.len),
            // A write that makes no progress would be repeated for ever.
            OpKind::Write if moved == 0 => return Err(OpFailure::Errno(libc::EIO)),
            OpKind::Write => {
                done += moved;
                false
            }
        };
        if is_over || done >= request.len {
            return Ok(done);
        }
    }
}

/// Adds an operation that has ended to the statistics.
fn count(
    mut stripe: MutexGuard<'_, Stripe>,
    running: &RunningCall<'_>,
    request: &OpRequest,
    result: OpResult,
    began: Option<Instant>,
) {
    let device_ns = began.map(|began| u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let ended = match request.durability.sync_kind() {
        // As a shard counts it: a write whose second half is a sync.
        Some(kind) if request.kind == OpKind::Write => {
            EndedOp { kind, bytes: result.unwrap_or_default(), after_write: true }
        }
        _ => EndedOp { kind: request.kind, bytes: result.unwrap_or_default(), after_write: false },
    };
    running.calls.counts.add(ended);
    stripe.calls += 1;
    let flow = stripe.flows.of(request.class.0, running.core.device_index());
    flow.ended(ended, request.asked, result.is_err());
    if let Some(device_ns) = device_ns {
        flow.queued_ns.record(0);
        flow.device_ns.record(device_ns);
        flow.handed_over_ns.record(0);
    }
}

/// Returns whether a write stays within RLIMIT_FSIZE; true for every other operation.
fn is_within_size_limit(request: &OpRequest) -> bool {
    request.kind != OpKind::Write
        || rustix::process::getrlimit(rustix::process::Resource::Fsize)
            .current
            .is_none_or(|limit| request.offset + u64::from(request.len) <= limit)
}
