//! State shared by an engine's handles, files and shards.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::base::class::{Class, ClassTable};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::fork::Origin;
use crate::base::health::Degradation;
use crate::base::in_flight::{InFlight, Stays};
use crate::base::pending::Pending;
use crate::base::priority::Priorities;
use crate::device::Device;
use crate::driver::meta::{self, Descriptor, DescriptorOwner, MetaReply, MetaRequest};
use crate::driver::pool::Pool;
use crate::io::config::Config;
use crate::io::host::descriptor_limit;
use crate::io::mode::Mode;
use crate::io::op::OpFailure;
use crate::io::placement::Seats;
use crate::io::stats::MemoryStats;
use crate::memory::arena::{AllocError, Arena};
use crate::memory::block::BlockMut;
use crate::reactor::calls::Calls;
use crate::reactor::devices::Devices;
use crate::reactor::idle_files::IdleFiles;
use crate::reactor::page_cache::PageCaches;
use crate::reactor::releases::Releases;
use crate::reactor::scheduler::DeviceScheduler;
use crate::reactor::shard;
use crate::reactor::shard::clock::Clock;
use crate::reactor::shard::inbox::Inbox;
use crate::reactor::stall_profiler::StallProfiler;
use crate::reactor::visited::VisitedShards;
#[cfg(feature = "_sim")]
use crate::reactor::world::{MachineCall, World};

/// The number of the device of files whose own could not be found. No file system has it.
const UNKNOWN_DEVICE: u64 = u64::MAX;

/// An object that is notified of an engine's end.
pub(crate) trait AtEnd: Send + Sync {
    /// Called once the engine has ended, on any thread; must not block.
    fn ring(&self);
}

/// State shared by an engine's handles, files and shards.
pub struct EngineShared {
    /// The inboxes of the shards with a thread.
    pub(crate) inboxes: Arc<[Arc<Inbox>]>,
    pub(crate) visited: VisitedShards,
    pub(crate) calls: Calls,
    pub(crate) arena: Arena,
    /// Bytes of the arena promised to [`MemoryReservation`](crate::MemoryReservation)s.
    pub(crate) reserved: AtomicU64,
    pub(crate) classes: ClassTable,
    pub(crate) config: Config,
    /// The processors of the shards' threads.
    pub(crate) seats: Seats,
    /// The priority of each shard's thread.
    pub(crate) granted: Priorities,
    /// Nanoseconds for which a shard checks for news before it sleeps: while nothing is in flight, and while
    /// something is.
    pub(crate) spin_ns: (u64, u64),
    pub(crate) pool: Pool,
    /// The calls of the pool, or of a world.
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) releases: Arc<Releases>,
    pub(crate) driver: OnceLock<&'static str>,
    pub(crate) degraded: Mutex<Vec<Degradation>>,
    pub(crate) devices: Mutex<Devices>,
    /// The counters of files that try the page cache.
    pub(crate) page_caches: Mutex<PageCaches>,
    /// The files that may be closed when descriptors run short.
    pub(crate) idle_files: Arc<IdleFiles>,
    pub(crate) closing: AtomicBool,
    pub(crate) origin: Origin,
    /// The simulated machine that this engine runs on, if any.
    #[cfg(feature = "_sim")]
    pub(crate) world: Option<Arc<dyn World>>,
    pub(crate) shards_left: AtomicUsize,
    /// Watches for tasks that hold a shard.
    pub(crate) watch: StallProfiler,
    /// Servers that report on this engine and are notified of its end.
    pub(crate) servers: Mutex<Vec<Weak<dyn AtEnd>>>,
}

crate::_debug_parts!(EngineShared);

impl EngineShared {
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        self.failure().map_or(Ok(()), |failure| Err(failure.into_error(operation, None)))
    }

    /// Returns an error when this engine has no shard of this number.
    pub(crate) fn check_shard(&self, operation: &'static str, shard: usize) -> Result<()> {
        let shards = self.inboxes.len();
        if shard < shards {
            return Ok(());
        }
        let note = format!(
            "there is no shard {shard}: this engine has {shards}, counted from 0; see Config::shards"
        );
        Err(Error::invalid(operation, note))
    }

    /// Returns the inboxes of all shards, of those without a thread as well.
    pub(crate) fn all_inboxes(&self) -> impl Iterator<Item = &Arc<Inbox>> {
        self.inboxes.iter().chain(self.visited.inboxes())
    }

    /// Returns the inboxes of the shards whose counters make up the statistics: all but lost rings, whose operations are sent
    /// elsewhere since.
    pub(crate) fn reporting_inboxes(&self) -> impl Iterator<Item = &Arc<Inbox>> {
        let shards = self.inboxes.len();
        self.all_inboxes().filter(move |inbox| inbox.index < shards || inbox.failure().is_none())
    }

    /// Returns the inbox of a shard by its number.
    pub(crate) fn inbox(&self, index: usize) -> Option<&Arc<Inbox>> {
        self.inboxes.get(index).or_else(|| self.visited.inbox(index))
    }

    /// Returns the most shards that the engine will have, those without a thread included.
    pub(crate) fn shards_max(&self) -> usize {
        self.inboxes.len() + self.visited.places()
    }

    /// Returns the most accounts that the engine will have: those of the shards, and of the stripes of waiting threads.
    pub(crate) fn accounts_max(&self) -> usize {
        self.shards_max() + self.calls.stripes()
    }

    /// Wakes the shards that wait for released room, one bit each.
    #[cold]
    pub(crate) fn wake_shards(&self, mask: u64) {
        let woken = self.all_inboxes().filter(|inbox| mask & (1 << inbox.index) != 0);
        woken.for_each(|inbox| inbox.kick());
    }

    /// Tells devices and shards that a class's caps are others now: a shard may sleep until the old cap lets an operation start.
    pub(crate) fn change_caps(&self, class: Class, before: [u64; 4], caps: [u64; 4]) {
        if before == caps || self.failure().is_some() {
            return;
        }
        let now_ns = self.now_ns();
        let devices = self.lock_devices().schedulers();
        devices.iter().for_each(|device| device.change_caps(class.index(), before, caps, now_ns));
        self.all_inboxes().for_each(|inbox| inbox.kick());
    }

    /// Returns whether the engine belongs to a process that this one was forked from.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Returns the reason why this engine accepts no requests here, if any.
    #[inline]
    pub(crate) fn failure(&self) -> Option<OpFailure> {
        if self.is_forked() {
            return Some(OpFailure::Forked);
        }
        #[cfg(feature = "_sim")]
        if self.world.as_ref().is_some_and(|world| !world.is_here()) {
            return Some(OpFailure::OutsideWorld);
        }
        self.closing.load(Ordering::Relaxed).then_some(OpFailure::EngineClosed)
    }

    /// Returns whether the engine runs on a simulated machine.
    #[inline]
    pub(crate) fn is_simulated(&self) -> bool {
        #[cfg(feature = "_sim")]
        return self.world.is_some();
        #[cfg(not(feature = "_sim"))]
        false
    }

    /// Returns the clock that the engine's shards use.
    #[inline]
    pub(crate) fn clock(&self) -> Clock {
        #[cfg(feature = "_sim")]
        if self.world.is_some() {
            return Clock::simulated();
        }
        Clock::system()
    }

    /// Returns the time on that clock, in nanoseconds.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        let clock = self.clock();
        clock.ns(clock.now())
    }

    /// Returns whether an open file or directory has no name any more.
    pub(crate) fn is_removed(&self, operation: &'static str, fd: &Descriptor) -> Result<bool> {
        self.check(operation)?;
        match fd {
            Descriptor::Os(fd) => crate::driver::meta::is_removed(fd.as_fd())
                .map_err(|errno| Error::os(operation, errno.raw_os_error())),
            #[cfg(feature = "_sim")]
            Descriptor::Sim(file) => {
                let removed = self.world.as_ref().and_then(|world| world.is_removed(file.number));
                removed.ok_or_else(|| Error::os(operation, libc::EIO))
            }
        }
    }

    /// Counts a call in the engine and in the open files and directories that it names.
    ///
    /// # Errors
    /// When one of them was closed.
    pub(crate) fn enter(
        &self,
        operation: &'static str,
        owners: [Option<&dyn DescriptorOwner>; 2],
    ) -> Result<Stays> {
        let [first, second] = owners;
        let first = first.map_or(Ok(None), |owner| owner.enter(operation))?;
        let second = second.map_or(Ok(None), |owner| owner.enter(operation))?;
        let engine = self.in_flight.enter();
        self.check(operation)?;
        if crate::_is_broken!(DroppedCallsStayQueued) {
            return Ok(Stays::default());
        }
        Ok([first, second, Some(engine)])
    }

    /// Runs `call` on a thread of the pool, as one in flight of `owner`.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        owner: Option<&dyn DescriptorOwner>,
        call: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        match self.enter(operation, [owner, None]) {
            Ok(stays) => self.pool.run(operation, stays, call),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    /// Executes `request` on the pool or on the simulated machine. `finish` makes the result from the reply,
    /// on the thread that has it.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        request: MetaRequest,
        finish: impl FnOnce(Result<MetaReply>) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let operation = request.operation();
        let owners = request.owners().map(|owner| owner.map(|owner| &**owner as &dyn DescriptorOwner));
        let stays = match self.enter(operation, owners) {
            Ok(stays) => stays,
            Err(error) => return Pending::ready(finish(Err(error))),
        };
        let room = self.descriptor_room();
        #[cfg(feature = "_sim")]
        if let Some(world) = &self.world {
            let (sender, pending) = crate::base::pending::call(operation, stays);
            let engine = Arc::as_ptr(&self.in_flight) as usize;
            let call = MachineCall::new(engine, world, &request, room, finish, sender);
            return match world.ask(request, call) {
                Some(number) => pending.queued_in(world.clone(), number),
                None => pending,
            };
        }
        self.pool
            .run(operation, stays, move || finish(room.make_for(|| crate::driver::meta::execute(&request))))
    }

    /// Returns what finds descriptors for calls of this engine.
    pub(crate) fn descriptor_room(&self) -> DescriptorRoom {
        DescriptorRoom::new(&self.inboxes, &self.idle_files)
    }

    /// Executes `request`; `answer` extracts the result from the reply.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        request: MetaRequest,
        answer: impl FnOnce(MetaReply) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        let operation = request.operation();
        self.call(request, move |reply| answer(reply?).ok_or_else(|| misfit(operation)))
    }

    /// As [`ask`](Self::ask), with errors that name the file.
    pub(crate) fn ask_of<T: Send + 'static>(
        &self,
        file: &Arc<crate::reactor::open_file::FileCore>,
        request: MetaRequest,
        answer: impl FnOnce(MetaReply) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        let operation = request.operation();
        let file = file.clone();
        self.call(request, move |reply| {
            let reply = reply.map_err(|error| file.describe(error))?;
            answer(reply).ok_or_else(|| misfit(operation))
        })
    }

    /// Returns a buffer for the calling thread: from its shard's cache, or from the shared memory.
    pub(crate) fn buffer(&self, operation: &'static str, len: usize) -> Result<crate::memory::arena::Buffer> {
        // The child of a fork does not inherit I/O memory: it would get addresses where nothing is mapped.
        if self.is_forked() {
            return Err(OpFailure::Forked.into_error(operation, None));
        }
        let alloc = || match shard::current() {
            Some(_) => self.arena.alloc_local(len),
            None => self.arena.alloc_shared(len),
        };
        let buffer = if len > self.arena.short_bytes_max() {
            self.arena.alloc_long(len)
        } else {
            alloc().or_else(|_| {
                self.release_memory();
                alloc().or_else(|_| self.arena.alloc_overflow(len))
            })
        };
        buffer.map_err(|error| match error {
            AllocError::NoMemory { .. } => self.exhausted(operation),
            AllocError::TooLarge => OpFailure::TooLarge.into_error(operation, None),
        })
    }

    /// Makes the memory available that lies unused in caches of rings and waiting threads.
    #[cold]
    pub(crate) fn release_memory(&self) {
        self.visited.release_memory(self);
        self.calls.release_memory(self);
    }

    /// Returns the error for exhausted I/O memory, with a note if the system refused more.
    #[cold]
    pub(crate) fn exhausted(&self, operation: &'static str) -> Error {
        // Counted now, not at the failure: the figure is only for the message.
        let counts = self.arena.counts();
        let error =
            Error::new(ErrorKind::ArenaExhausted { held: counts.bytes_held_in_all() as u64 }, operation);
        let Some(refusal) = self.arena.refusal() else { return error };
        self.degrade_once(
            "I/O memory",
            &format!("the system gave no more: {refusal}"),
            "free memory, or raise what this process may use (ulimit -v, memory.max of the control group)",
        );
        error.with_note(format!(", and the system gave no more: {refusal}"))
    }

    /// Returns zeroed I/O memory.
    pub(crate) fn block(&self, operation: &'static str, len: usize) -> Result<BlockMut> {
        let buffer = self.buffer(operation, len)?;
        // SAFETY: no byte is claimed to be filled, so every byte that becomes visible is zeroed first.
        Ok(unsafe { buffer.into_block_mut(len, 0) })
    }

    /// Returns I/O memory with a copy of `data`.
    pub(crate) fn block_from(&self, operation: &'static str, data: &[u8]) -> Result<BlockMut> {
        let buffer = self.buffer(operation, data.len())?;
        // SAFETY: the buffer has at least `data.len()` bytes, is ours alone, and is filled that far before it
        // becomes visible as a block.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.as_ptr(), data.len());
            Ok(buffer.into_block_mut(data.len(), data.len()))
        }
    }

    /// Returns the shard that is home to the fewest files.
    pub(crate) fn least_loaded(&self) -> usize {
        let load = |inbox: &Arc<Inbox>| inbox.files.load(Ordering::Relaxed);
        self.inboxes.iter().enumerate().min_by_key(|(_, inbox)| load(inbox)).map_or(0, |(index, _)| index)
    }

    /// Returns the number under which a file's device is counted, and the device.
    pub(crate) fn device_of(&self, fd: BorrowedFd<'_>, number: u64) -> (u16, Arc<Device>) {
        if let Some(known) = self.lock_devices().find(number) {
            return known;
        }
        // Read from sysfs outside the lock: it needs some system calls.
        let (number, device) = match self.inspect_device(fd) {
            // It is unknown for this file alone: the next one may find a descriptor.
            Err(error) if error.is_out_of_descriptors() => (UNKNOWN_DEVICE, Device::default()),
            found => (number, found.unwrap_or_default()),
        };
        let device = Arc::new(device);
        self.report_uncalibrated(&device);
        self.lock_devices().add(number, device, &self.config, self.accounts_max())
    }

    /// Returns the device of an open file. Idle files are closed where that needs a descriptor.
    fn inspect_device(&self, fd: BorrowedFd<'_>) -> Result<Device> {
        let mut room = self.descriptor_room();
        loop {
            match Device::of_fd(fd) {
                Err(error) if error.is_out_of_descriptors() && room.may_have_more() => room.wait(),
                found => return found,
            }
        }
    }

    /// Returns whether direct requests of a file work, for which the kernel reports no alignment. One read of a block finds out. Where it
    /// worked for one file of a device, others are not tried: a file that is an exception shows at its first operation, as one does that
    /// cannot be tried ([`FileCore::leave_direct`](crate::reactor::open_file::FileCore::leave_direct)).
    pub(crate) fn takes_direct(&self, device: u16, fd: BorrowedFd<'_>) -> bool {
        if self.lock_devices().takes_direct(device) {
            return true;
        }
        let takes = meta::takes_direct(fd);
        if takes == Some(true) {
            self.lock_devices().note_direct(device);
        }
        takes != Some(false)
    }

    /// Reports that files of this mode use the page cache.
    pub(crate) fn report_no_direct(&self, mode: Mode, why: &str) {
        let what = if mode == Mode::Adaptive { "adaptive: direct I/O" } else { "direct I/O" };
        let why = format!("{why}; reads go through the page cache");
        self.degrade_once(what, &why, "use ext4, XFS or another file system with direct I/O");
    }

    /// Reports a degradation if calibrations were given, but not for this device.
    fn report_uncalibrated(&self, device: &Device) {
        let given = &self.config.calibrations;
        let (name, model, _) = device.scheduled();
        // A file system in memory has no device to calibrate.
        let has_disk = device.physical().next().is_some() || self.is_simulated();
        if given.is_empty() || !has_disk || given.iter().any(|calibration| calibration.fits(device)) {
            return;
        }
        let model = model.map_or_else(String::new, |model| format!(" ({model})"));
        let known: Vec<&str> = given.iter().map(|calibration| calibration.device.as_str()).collect();
        self.degrade_once(
            &format!("calibration of {name}"),
            &format!("none that was given is of {name}{model}, only of {}", known.join(", ")),
            "run forebay calibrate on it",
        );
    }

    /// Returns the scheduler of a device by its number; `None` for operations without a file.
    #[cold]
    pub(crate) fn scheduler_of(&self, device: u16) -> Option<Arc<DeviceScheduler>> {
        self.lock_devices().scheduler(device)
    }

    /// As [`device_of`](Self::device_of), for a device that is known already.
    #[cfg(any(feature = "_sim", target_os = "linux"))]
    pub(crate) fn device_known(&self, number: u64, device: Arc<Device>) -> (u16, Arc<Device>) {
        self.report_uncalibrated(&device);
        self.lock_devices().add(number, device, &self.config, self.accounts_max())
    }

    pub(crate) fn lock_devices(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_page_caches(&self) -> MutexGuard<'_, PageCaches> {
        self.page_caches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_degraded(&self) -> MutexGuard<'_, Vec<Degradation>> {
        self.degraded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a degradation and notifies the program, unless the same mechanism is on the list already.
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
            // The handler is the program's code: its panic must not end a shard.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| handler(&degradation)));
        }
    }

    /// Records why the shards are not on the processors that were wanted, if they are not.
    pub(crate) fn tell_unpinned(&self) {
        if let Some(Degradation { what, why, remedy }) = self.seats.degradation() {
            self.degrade_once(what, why, remedy);
        }
    }

    pub(crate) fn memory(&self) -> MemoryStats {
        let counts = self.arena.counts();
        MemoryStats {
            arena_bytes: counts.bytes_mapped as u64,
            arena_bytes_max: counts.bytes_mapped_max as u64,
            held_bytes: (counts.bytes_held + counts.exact_bytes) as u64,
            overflow_bytes: counts.overflow_bytes as u64,
            overflow_allocations: counts.overflow_allocations,
            result_bytes: (counts.result_bytes + counts.long_bytes) as u64,
            leaked_lends: self.releases.leaked(),
        }
    }

    /// Requests the end of every shard, once.
    pub fn begin_close(&self) {
        if self.closing.swap(true, Ordering::SeqCst) {
            return;
        }
        self.pool.close();
        #[cfg(feature = "_sim")]
        if let Some(world) = &self.world {
            world.refuse(Arc::as_ptr(&self.in_flight) as usize);
        }
        for inbox in self.inboxes.iter() {
            inbox.end();
        }
        let servers = std::mem::take(&mut *self.servers.lock().unwrap_or_else(PoisonError::into_inner));
        servers.iter().filter_map(Weak::upgrade).for_each(|bell| bell.ring());
    }

    /// Records that a shard's thread has ended; the last one closes the arena, whose blocks stay valid.
    pub(crate) fn shard_ended(&self) {
        if self.shards_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Not marked as closing: handles of an engine whose shards died report that loss, and may still
            // close the engine.
            self.arena.close();
            self.watch.end();
            // The calls in flight were waited for until the deadline; nothing starts any more.
            drop(self.pool.abandon());
        }
    }
}

/// Finds descriptors for a call when the process has used all of them: files that are kept for later use are closed, and those that
/// the program has dropped are closed by the shards.
pub(crate) struct DescriptorRoom {
    inboxes: Arc<[Arc<Inbox>]>,
    idle_files: Arc<IdleFiles>,
    has_waited: bool,
}

impl DescriptorRoom {
    fn new(inboxes: &Arc<[Arc<Inbox>]>, idle_files: &Arc<IdleFiles>) -> DescriptorRoom {
        DescriptorRoom { inboxes: inboxes.clone(), idle_files: idle_files.clone(), has_waited: false }
    }

    /// Makes the call, and repeats it while it lacks a descriptor and one may have become free. A call without a descriptor has had
    /// no effect. On a thread of the pool: it waits for shards.
    fn make_for<T>(mut self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match call() {
                Err(error) if error.is_out_of_descriptors() => {
                    if !self.may_have_more() {
                        return Err(DescriptorRoom::explain(error));
                    }
                    self.wait();
                }
                result => return result,
            }
        }
    }

    /// Has idle files closed. Returns whether it makes sense to call again: some were closed, or it is the first time, when the shards may
    /// still have files that the program has dropped.
    pub(crate) fn may_have_more(&mut self) -> bool {
        self.idle_files.give_way() || !std::mem::replace(&mut self.has_waited, true)
    }

    /// Waits until the shards have released dropped files. Not on a shard's thread.
    pub(crate) fn wait(&self) {
        shard::wait_for_a_turn(&self.inboxes);
    }

    /// Returns the error of a call without a free descriptor, with the limit.
    pub(crate) fn explain(error: Error) -> Error {
        if error.has_note() {
            return error;
        }
        let whose = match error.raw_os_error() {
            Some(libc::EMFILE) => {
                format!("the process may have {} files open (RLIMIT_NOFILE)", descriptor_limit())
            }
            _ => "the system has as many files open as it may (fs.file-max)".to_string(),
        };
        error.with_note(format!("{whose}, and none of those kept for later use is idle"))
    }
}

fn misfit(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, operation).with_note("the result does not fit the call")
}
