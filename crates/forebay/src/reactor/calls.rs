//! Operations that a thread in `.wait()` carries out itself, by a blocking system call.
//!
//! Such a thread can do nothing else until its operation has ended. Sent to a shard, the operation would cost two changes of
//! threads more, which is most of the time of a fast device and as much processor time as the read itself.
//!
//! An operation is still sent to its home shard if the shard decides on its submission or on its source:
//! - its class has caps, or it is larger than a piece (a durable write may be longer: its flush occupies the device anyway);
//! - another class uses the device at the time, and operations wait for room or for their turn, or it is not a read
//!   ([`DeviceQueues::admit_call`](crate::reactor::scheduler::DeviceQueues::admit_call));
//! - its file has polled completions or is an NVMe namespace;
//! - no I/O memory is free: the shard has the queue for it;
//! - a write passes RLIMIT_FSIZE: the kernel would send SIGXFSZ to this thread, and that ends a program by default.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::base::class::Class;
use crate::base::here;
use crate::base::priority::Priority;
use crate::base::size_limit::is_within_size_limit;
use crate::driver::threads::transfer;
use crate::driver::{FileRegistration, IoRequest, Route};
use crate::io::config::Config;
use crate::io::host::Host;
use crate::io::op::{
    Durability, OpBuffer, OpFailure, OpKey, OpKind, OpRequest, OpResult, RETRIES_MAX, read_goes_on,
    write_goes_on,
};
use crate::io::stats::{EndedOp, FileReport, WalkStats};
use crate::memory::arena::{Aside, Buffer};
use crate::reactor::account::file_table::NO_FILE;
use crate::reactor::account::{Account, AccountReport};
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::open_file::FileCore;
use crate::reactor::scheduler::{PIECE_BYTES, Request};

/// The most stripes: accounts that are kept apart so that threads on several processors do not wait for each other.
const STRIPES_MAX: usize = 8;
/// The pause between two looks for calls that have not returned at the engine's end.
const PAUSE: Duration = Duration::from_micros(100);

/// The calls of an engine's waiting threads.
pub(crate) struct Calls {
    /// The number of the first stripe's account.
    first: usize,
    /// Empty where no thread may make calls.
    stripes: Box<[CachePadded<Mutex<Stripe>>]>,
    /// Calls that did not return in time were reported.
    reported: AtomicBool,
}

/// State that the threads of a stripe share. Its lock is held while a call starts and while it ends, and not in between.
struct Stripe {
    account: Account,
    /// Calls that have ended.
    calls: u64,
    /// I/O memory that was used lately. `None` before the first call, and after the engine's end.
    cache: Option<Cell<Aside>>,
}

// SAFETY: the cache is used by the thread that holds the stripe's lock only, which orders one such thread after the other. All the rest is
// Send.
unsafe impl Send for Stripe {}

/// Returns memory for a read of the stripe that has this `cache`, of the account with this number.
fn memory(
    engine: &EngineShared,
    cache: &mut Option<Cell<Aside>>,
    number: usize,
    bytes: u32,
) -> Option<Buffer> {
    let is_first = cache.is_none();
    Aside::with(cache.get_or_insert(Cell::new(Aside::NOTHING)), || {
        if is_first {
            engine.arena.install(number);
        }
        engine.arena.alloc_local(bytes as usize).ok()
    })
}

/// A call of a thread, from its start to its end.
struct Call<'c> {
    core: &'c Arc<FileCore>,
    stripe: usize,
    class: Class,
    request: Request,
    /// The charge for it in competition with other classes, 0 if it is not counted.
    charge: u32,
    /// The file's entry in the account's table, for whose uses the file's close and the engine's end wait.
    file: u32,
    /// The start of a call that is timed.
    began: Option<Instant>,
    /// The operation, at the end of a call that was made.
    ended: Option<EndedOp>,
}

impl Call<'_> {
    /// Starts the call: admits it, and assigns memory and the file. `None` if it has to be sent to the file's home shard.
    fn begin(&mut self, buffer: &mut OpBuffer) -> Option<Result<(), OpFailure>> {
        let Call { core, request, .. } = *self;
        let engine = core.engine();
        let entered = {
            let Stripe { account, cache, .. } = &mut *engine.calls.lock(self.stripe);
            // Under the lock, which the engine's end takes as well: that finds the call, or this finds the end.
            if let Some(failure) = engine.failure() {
                return Some(Err(failure));
            }
            self.charge = account.queues.admit_call(core.device_index(), request, engine)?;
            if matches!(buffer, OpBuffer::Late) {
                // An earlier read waits in its shard's queue.
                if engine.arena.is_awaited() {
                    return None;
                }
                let memory = memory(engine, cache, account.number, request.bytes)?;
                buffer.move_from(&mut OpBuffer::Buffer(memory));
            }
            let entered = account.files.enter(core, |_, _, _| FileRegistration::default());
            entered.map(|file| (self.file, self.began) = (file, account.begin().then(Instant::now)))
        };
        Some(entered.map_err(|error| error.refuse(core)))
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let Call { core, class, file, charge, .. } = *self;
        if file == NO_FILE && charge == 0 {
            return;
        }
        let device_ns = self.began.map(|began| u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let (engine, device) = (core.engine(), core.device_index());
        let (unused, wake) = {
            let Stripe { account, calls, .. } = &mut *engine.calls.lock(self.stripe);
            let is_unused = match self.ended {
                None => account.leave(file),
                Some(op) => {
                    *calls += 1;
                    account.end(file, class, device, op)
                }
            };
            if let Some(device_ns) = device_ns {
                let flow = account.flows.of(class.0, device);
                flow.queued_ns.record(0);
                flow.device_ns.record(device_ns);
                flow.handed_over_ns.record(0);
            }
            let unused = is_unused.then(|| account.files.remove(file, |_, _| ())).flatten();
            let wake =
                if charge == 0 { 0 } else { account.queues.end_call(device, self.request, charge, engine) };
            (unused, wake)
        };
        if wake != 0 {
            engine.wake_shards(wake);
        }
        if let Some(file) = unused {
            file.entry_gone();
        }
    }
}

impl Calls {
    /// Returns the number of stripes of an engine with these settings: 0 where no thread may make calls. `is_real` is false in a
    /// simulated world, where no thread waits.
    pub(crate) fn stripes_of(config: &Config, host: Host, is_real: bool) -> usize {
        let allowed = is_real && config.wait_calls && config.priority == Priority::Default;
        if allowed { host.processors.min(STRIPES_MAX) } else { 0 }
    }

    /// Makes `stripes` stripes. `first` is the number of the first one's account.
    pub(crate) fn new(stripes: usize, first: usize) -> Calls {
        let stripe = |number| Stripe { account: Account::new(number), calls: 0, cache: None };
        let stripes = (first..first + stripes).map(|number| CachePadded::new(Mutex::new(stripe(number))));
        Calls { first, stripes: stripes.collect(), reported: AtomicBool::new(false) }
    }

    pub(crate) fn stripes(&self) -> usize {
        self.stripes.len()
    }

    /// Returns whether waiting threads may make calls at all.
    pub(crate) fn are_allowed(&self) -> bool {
        !self.stripes.is_empty()
    }

    /// Returns the number of this thread's stripe.
    fn stripe(&self) -> usize {
        here::thread_number() % self.stripes.len()
    }

    fn lock(&self, stripe: usize) -> MutexGuard<'_, Stripe> {
        self.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn locked(&self) -> impl Iterator<Item = MutexGuard<'_, Stripe>> {
        (0..self.stripes.len()).map(|stripe| self.lock(stripe))
    }

    pub(crate) fn count(&self) -> u64 {
        self.locked().map(|stripe| stripe.calls).sum()
    }

    /// Returns the counters of the stripes.
    pub(crate) fn reports(&self) -> Vec<AccountReport> {
        self.locked().map(|stripe| stripe.account.report()).collect()
    }

    /// Returns the counters of the stripes' files.
    pub(crate) fn report_files(&self) -> Vec<FileReport> {
        self.locked().flat_map(|stripe| stripe.account.files.report()).collect()
    }

    /// Adds a walk that a thread carried out itself.
    pub(crate) fn count_walk(&self, counts: &WalkStats) {
        self.lock(self.stripe()).account.walks.merge(counts);
    }

    /// Gives the memory in the stripes' caches to all.
    pub(crate) fn release_memory(&self, engine: &EngineShared) {
        for stripe in self.locked() {
            if let Some(cache) = &stripe.cache {
                Aside::with(cache, || engine.arena.empty_cache());
            }
        }
    }

    /// Closes a file's entry in the table of the stripe with this account, which may still be in use.
    pub(crate) fn close_file(&self, account: usize, core: &FileCore) {
        let unused = {
            let files = &mut self.lock(account - self.first).account.files;
            // The place of a removed entry may belong to another file.
            let file = core.table_index(account);
            if files.close(file) { files.remove(file, |_, _| ()) } else { None }
        };
        if let Some(file) = unused {
            file.entry_gone();
        }
    }

    /// Waits at the engine's end until all calls have returned, those of the pool as well, or for `limit`. Returns the number of
    /// waiting threads' calls that have not, and the names of the pool's, once.
    pub(crate) fn drain(&self, engine: &EngineShared, limit: Duration) -> (usize, Vec<&'static str>) {
        #[cfg(feature = "_sim")]
        if let Some(world) = &engine.world {
            return (0, world.end_calls(Arc::as_ptr(&engine.in_flight) as usize, limit));
        }
        let began = Instant::now();
        loop {
            // A call that starts after this finds that the engine closes.
            let running = self.locked().map(|stripe| stripe.account.files.uses()).sum();
            if running == 0 && engine.in_flight.count() == 0 {
                for cache in self.locked().filter_map(|mut stripe| stripe.cache.take()) {
                    Aside::with(&cache, || engine.arena.uninstall());
                }
                return (0, Vec::new());
            }
            if began.elapsed() >= limit {
                let is_told = self.reported.swap(true, Ordering::AcqRel);
                let calls = engine.pool.abandon();
                return if is_told { (0, Vec::new()) } else { (running, calls) };
            }
            // A call's return is not signalled: the end of an engine is not worth it.
            thread::park_timeout(PAUSE);
        }
    }
}

/// Carries out an operation on this thread, which waits for it. `None` if it has to be sent to its file's home shard.
///
/// The memory of the result lies in the request.
pub(crate) fn run(core: &Arc<FileCore>, request: &mut OpRequest) -> Option<OpResult> {
    let class = request.class.or_of_task();
    let is_flush = request.kind == OpKind::Write && request.durability != Durability::None;
    let is_long = (request.len > PIECE_BYTES && !is_flush) || matches!(request.buffer, OpBuffer::LateApart);
    if is_long || !suits(core, class) {
        return None;
    }
    if request.kind == OpKind::Write && !is_within_size_limit(request.end()) {
        return None;
    }
    request.class = class;
    let mut call = Call {
        core,
        stripe: core.engine().calls.stripe(),
        class,
        request: Request { class: class.index(), kind: request.kind, bytes: request.len },
        charge: 0,
        file: NO_FILE,
        began: None,
        ended: None,
    };
    if let Err(failure) = call.begin(&mut request.buffer)? {
        return Some(Err(failure));
    }
    let result = perform(core, request);
    call.ended = Some(ended(request, result));
    Some(result)
}

/// Returns whether a thread may carry out operations of this class on this file itself, as far as that can be said without its stripe.
pub(crate) fn suits(core: &FileCore, class: Class) -> bool {
    let engine = core.engine();
    engine.calls.are_allowed()
        && core.route() == Route::Ordinary
        // The home shard reports its loss; a file without it would be half alive.
        && engine.inboxes[core.home()].failure().is_none()
        && !engine.classes.is_capped(class)
        && core.scheduler().is_none_or(|device| device.takes_calls(class.index()))
}

/// Makes the system calls of an operation until it has ended.
fn perform(core: &FileCore, request: &OpRequest) -> OpResult {
    let mut done = 0;
    let mut retries: u8 = 0;
    let mut view = loading_view(core, request);
    loop {
        let sync = request.durability.sync_kind().filter(|_| request.kind == OpKind::Write);
        let call = IoRequest {
            // No driver sees it.
            key: OpKey { index: 0, generation: 0 },
            kind: request.kind,
            fd: view.unwrap_or_else(|| core.raw_fd()),
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
            if view.take().is_some() {
                // The page cache may lack memory for what the device has: all of it again, past the page cache.
                done = 0;
                continue;
            }
            if matches!(-result, libc::EAGAIN | libc::EINTR) && retries < RETRIES_MAX {
                retries += 1;
                continue;
            }
            let failure = OpFailure::of_result(result, request.kind, request.end());
            let is_refused = failure.refuses_transfer(request.kind) && core.may_refuse_direct();
            if is_refused && retries < RETRIES_MAX {
                // Once: a second refusal has another reason.
                retries = RETRIES_MAX;
                core.leave_direct();
                continue;
            }
            return Err(failure);
        };
        let goes_on = match request.kind {
            OpKind::Nop | OpKind::Command | OpKind::SyncData | OpKind::SyncAll => false,
            OpKind::Read => {
                done = request.len.min(done + moved);
                read_goes_on(request.len, done, moved, || core.alignment().read_offset)
            }
            // With its sync: zero stands for all bytes.
            OpKind::Write if sync.is_some() && moved == 0 => return Ok(request.len),
            OpKind::Write => {
                done += moved;
                write_goes_on(request.len, done, moved)?
            }
        };
        if !goes_on {
            return Ok(done);
        }
    }
}

/// Returns the descriptor by which a read loads the page cache; `None` for a read that bypasses it, which then counts as a miss,
/// and for other operations.
fn loading_view(core: &FileCore, request: &OpRequest) -> Option<RawFd> {
    if request.kind != OpKind::Read || !core.may_load() || !request.buffer.may_load() {
        return None;
    }
    let range = request.offset..request.end();
    let view = core.loading_view(&range);
    if view.is_none() {
        core.note_miss(&range);
    }
    view
}

/// Returns an operation that has ended, for the account.
fn ended(request: &OpRequest, result: OpResult) -> EndedOp {
    // As a shard counts a durable write: as one whose second half is a sync.
    let sync = request.durability.sync_kind().filter(|_| request.kind == OpKind::Write);
    EndedOp {
        kind: sync.unwrap_or(request.kind),
        bytes: result.unwrap_or_default(),
        asked: request.asked,
        has_failed: result.is_err(),
        after_write: sync.is_some(),
    }
}
