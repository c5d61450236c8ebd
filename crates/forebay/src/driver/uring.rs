//! The io_uring driver: one ring per shard, used by the shard's thread only.
//!
//! Settings are tried, never inferred from a kernel version, and each has a fallback: `SINGLE_ISSUER`,
//! `DEFER_TASKRUN`, `COOP_TASKRUN`, a registered ring descriptor, a sparse table of registered files,
//! registered arena regions (cloned from a keeper ring that pins them once), `min_wait`, `NO_IOWAIT`.
//!
//! A second ring, made for the first file that requests it, serves reads and writes with polled completions.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};

use crate::base::health::Degradation;
use crate::driver::{FileRegistration, IoRequest, PollCounts, QueueFull, Route, Wait, WakeHandle};
use crate::io::command::CommandEntry;
use crate::io::config::Polling;
use crate::io::op::OpKey;
use crate::io::op::{Flush, OpKind};

mod blocking;
mod enter;
mod entry;
mod keeper;
pub(crate) mod memlock;
mod nvme_ring;
mod polled;
mod routes;
mod setup;
mod splits;
mod tables;
mod wake;

use enter::Door;
use entry::UseFile;
pub(crate) use keeper::Keeper;
use routes::Routes;
use tables::Tables;
pub(crate) use wake::UringWake;

/// Capacity of a ring's table of registered files; a common kernel refused 65,536, and 1,024 work everywhere
/// tried.
pub(crate) const FIXED_FILES_MAX: u32 = 1024;
/// Capacity of a ring's table of arena regions, more than an arena of 30 GiB has; later regions stay
/// unregistered.
const REGIONS_MAX: u32 = 1024;

/// `user_data` of completions that belong to no slot. Slot generations start at one, so no key is this large
/// with an index this large.
const WAKE_DATA: u64 = u64::MAX;
const CANCEL_DATA: u64 = u64::MAX - 1;

/// A ring, and the settings that were found to work on it.
pub(crate) struct UringDriver {
    ring: IoUring,
    keeper: Arc<Keeper>,
    wake: Arc<UringWake>,
    door: Door,
    tables: Tables,
    /// Files with a route other than this ring, and the rings that serve them.
    routes: Routes,
    wake_read: Option<Box<u64>>,
    /// Completions of requests that the shard's thread executed itself.
    made: Vec<(OpKey, i32)>,
    depth: u32,
    /// The polling mode of the rings with polled completions.
    polling: Polling,
    takes_commands: bool,
    enters: u64,
    degraded: Vec<Degradation>,
}

impl UringDriver {
    /// Creates a ring for `depth` requests on the calling thread, which must be the shard's. The error is the
    /// kernel's refusal of the plainest ring.
    pub(crate) fn new(depth: u32, polling: Polling, keeper: Arc<Keeper>) -> io::Result<UringDriver> {
        let mut degraded = Vec::new();
        let ring: IoUring = setup::build_ring(depth, false, |degradation| degraded.push(degradation))?;
        // All that `build_ring` has to report is that the kernel refused DEFER_TASKRUN.
        let is_deferred = degraded.is_empty();
        let mut door = Door::of(&ring);
        if let Err(error) = door.register() {
            degraded.push(setup::refused("registered ring descriptor", &error, "use Linux 5.18 or later"));
        }
        let mut driver = UringDriver::over(ring, door, depth, polling, keeper, degraded)?;
        driver.takes_commands = is_deferred;
        driver.arm_wake();
        Ok(driver)
    }

    /// Creates a ring for `depth` requests that any thread may enter, one at a time. No thread waits in it, so it has no wake-up.
    ///
    /// A completion is posted by the thread that submitted its request, when that enters the kernel the next time or is interrupted
    /// for it.
    #[cfg(feature = "tokio")]
    pub(crate) fn for_visitors(depth: u32, keeper: Arc<Keeper>) -> io::Result<UringDriver> {
        let ring = setup::build_shared_ring(depth)?;
        // By its descriptor: a registered index is of one thread's table.
        let door = Door::of(&ring);
        UringDriver::over(ring, door, depth, Polling::Off, keeper, Vec::new())
    }

    fn over(
        ring: IoUring,
        door: Door,
        depth: u32,
        polling: Polling,
        keeper: Arc<Keeper>,
        mut degraded: Vec<Degradation>,
    ) -> io::Result<UringDriver> {
        let tables = Tables::register(&ring.submitter(), |what, error, remedy| {
            degraded.push(setup::refused(what, &error, remedy));
        });
        Ok(UringDriver {
            wake: UringWake::new(ring.as_raw_fd())?,
            wake_read: None,
            made: Vec::new(),
            routes: Routes::default(),
            keeper,
            door,
            tables,
            ring,
            depth,
            polling,
            takes_commands: false,
            enters: 0,
            degraded,
        })
    }

    /// Returns the ring's descriptor, which is readable while completions are available.
    #[cfg(feature = "tokio")]
    pub(crate) fn descriptor(&self) -> io::Result<std::os::fd::OwnedFd> {
        // SAFETY: the ring is open for as long as the borrow lasts.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }.try_clone_to_owned()
    }

    /// # Safety
    /// The memory and the file that the entry names must stay valid until its completion.
    #[inline(always)]
    unsafe fn push(&mut self, entry: &Entry) -> Result<(), QueueFull> {
        // SAFETY: the caller keeps the entry's memory and file valid; `&mut self` makes this the only user of
        // the queue.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| QueueFull)
    }

    /// A sync is not linked to its write. Linking saved one enter of two and no time (two cores, idle and busy, 1 to 32 in flight).
    /// A kernel short of memory may also accept only the first half of a pair, whose success is then never reported.
    ///
    /// # Safety
    /// As [`Driver::submit`](crate::driver::Driver::submit).
    #[inline]
    pub(crate) unsafe fn submit(&mut self, request: &IoRequest) -> Result<bool, QueueFull> {
        // SAFETY: the caller keeps memory and file until the completion.
        if request.route != 0 && unsafe { self.submit_routed(request) }? {
            return Ok(false);
        }
        if request.flush == Flush::Blocking && request.sync.is_some() {
            // SAFETY: the caller keeps memory and file until the completion.
            unsafe { self.make(request) };
            return Ok(true);
        }
        let fixed = self.tables.region_of(request);
        // SAFETY: the caller keeps memory and file until the completion.
        unsafe {
            match request.fixed_file {
                Some(index) => self.push_for(request, types::Fixed(index), fixed),
                None => self.push_for(request, types::Fd(request.fd), fixed),
            }
        }
        .map(|()| false)
    }

    /// Each kind is built and pushed in its own arm: an entry that is put together in one place and moved
    /// from another costs 5 ns more, because the processor cannot forward the small stores to the wide loads
    /// of the move.
    ///
    /// # Safety
    /// As [`Driver::submit`](crate::driver::Driver::submit).
    #[inline(always)]
    unsafe fn push_for(
        &mut self,
        request: &IoRequest,
        file: impl UseFile,
        fixed: Option<u16>,
    ) -> Result<(), QueueFull> {
        let memory = request.memory.map_or(std::ptr::null_mut(), |memory| memory.as_ptr());
        let data = request.key.to_user_data();
        debug_assert!(data < CANCEL_DATA, "no slot's key is taken for the ring's own requests");
        debug_assert_eq!(
            memory.is_null(),
            !matches!(request.kind, OpKind::Read | OpKind::Write),
            "requests that transfer bytes have memory, and no others"
        );
        // SAFETY: the caller keeps memory and file until the completion.
        unsafe {
            match (request.kind, fixed) {
                (OpKind::Nop, _) => self.push(&opcode::Nop::new().build().user_data(data)),
                (OpKind::Read, Some(region)) => {
                    self.push(&file.read_fixed(memory, request, region).user_data(data))
                }
                (OpKind::Read, None) => self.push(&file.read(memory, request).user_data(data)),
                (OpKind::Write, Some(region)) => {
                    self.push(&file.write_fixed(memory, request, region).user_data(data))
                }
                (OpKind::Write, None) => self.push(&file.write(memory, request).user_data(data)),
                (OpKind::SyncData, _) => self.push(&file.sync(types::FsyncFlags::DATASYNC).user_data(data)),
                (OpKind::SyncAll, _) => self.push(&file.sync(types::FsyncFlags::empty()).user_data(data)),
                // Commands have a separate path; this one has no entry.
                (OpKind::Command, _) => {
                    self.made.push((request.key, -libc::EOPNOTSUPP));
                    Ok(())
                }
            }
        }
    }

    /// # Safety
    /// As [`Driver::submit_command`](crate::driver::Driver::submit_command).
    pub(crate) unsafe fn submit_command(
        &mut self,
        key: OpKey,
        entry: &CommandEntry,
    ) -> Result<(), QueueFull> {
        let command = opcode::UringCmd16::new(types::Fd(entry.fd), entry.operation).cmd(entry.bytes);
        // SAFETY: the caller keeps the descriptor, and all memory of the command, until the completion.
        unsafe { self.push(&command.build().user_data(key.to_user_data())) }
    }

    pub(crate) fn takes_commands(&self) -> bool {
        self.takes_commands
    }

    /// A command that its driver cannot cancel runs to its own end.
    pub(crate) fn cancel(&mut self, key: OpKey) {
        let entry = opcode::AsyncCancel::new(key.to_user_data()).build().user_data(CANCEL_DATA);
        // SAFETY: the entry names no memory. If the queue is full, this cancel is not sent; the operation
        // then ends by itself, which satisfies the contract of a cancel.
        if unsafe { self.push(&entry) }.is_err() && self.enter(0, None, None).is_ok() {
            // SAFETY: as above.
            let _ = unsafe { self.push(&entry) };
        }
    }

    #[inline]
    pub(crate) fn complete(&mut self, wait: Wait, mut report: impl FnMut(OpKey, i32)) -> io::Result<()> {
        let is_busy = self.routes.is_busy();
        match wait {
            // With completions made by this thread, it does not wait.
            Wait::For { completions, patience, limit, .. } if self.made.is_empty() && !is_busy => {
                self.enter(completions, patience, limit)?;
            }
            // A polled completion sends no wake-up.
            Wait::For { in_flight, .. } if self.made.is_empty() && !self.is_polling() => {
                self.wait_beside(wait, in_flight, &mut report)?;
            }
            _ => self.hand_over()?,
        }
        let mut woken = false;
        for completion in self.ring.completion() {
            match completion.user_data() {
                WAKE_DATA => woken = true,
                CANCEL_DATA => {}
                data => report(OpKey::from_user_data(data), completion.result()),
            }
        }
        for (key, result) in self.made.drain(..) {
            report(key, result);
        }
        if woken {
            self.arm_wake();
        }
        if is_busy {
            self.enters += 1;
            return self.routes.complete(Wait::Poll, report);
        }
        Ok(())
    }

    /// Enters without waiting, if anything is queued or left to do.
    #[inline]
    fn hand_over(&mut self) -> io::Result<()> {
        let must = {
            let queue = self.ring.submission();
            !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
        };
        if must { self.enter(0, None, None) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn has_completions(&mut self) -> bool {
        !self.made.is_empty()
            || !self.ring.completion().is_empty()
            || self.ring.submission().taskrun()
            || (self.routes.is_busy() && self.routes.has_completions())
    }

    /// Makes one `io_uring_enter` call on the first ring.
    fn enter(&mut self, want: u32, patience: Option<Duration>, limit: Option<Duration>) -> io::Result<()> {
        let to_submit = self.ring.submission().len() as u32;
        self.enters += 1;
        self.door.enter(to_submit, want, patience, limit)
    }

    pub(crate) fn wake_handle(&self) -> WakeHandle {
        WakeHandle::Uring(self.wake.clone())
    }

    pub(crate) fn register_file(&mut self, index: u32, fd: RawFd, route: Route) -> FileRegistration {
        let fixed = self.tables.add_file(&self.ring.submitter(), index, fd);
        match route {
            Route::Ordinary => FileRegistration { fixed, route: 0, is_news: false },
            other => self.begin_route(index, fd, other, fixed),
        }
    }

    pub(crate) fn unregister_file(&mut self, index: u32, route: u32) {
        self.tables.remove_file(&self.ring.submitter(), index);
        self.end_route(index, route);
    }

    pub(crate) fn register_region(&mut self, index: u16, start: *mut u8, len: usize) -> io::Result<()> {
        self.tables.add_region(&self.ring.submitter(), &self.keeper, index, start, len)?;
        self.routes.add_region(&self.keeper, index, start, len)
    }

    pub(crate) fn retire(&mut self) {
        self.tables.retire(&self.ring.submitter());
        self.routes.retire();
    }

    /// Returns whether anything is in flight that no interrupt and no other thread will report. Then the
    /// shard must not sleep.
    #[inline]
    pub(crate) fn is_polling(&self) -> bool {
        self.routes.is_polling()
    }

    pub(crate) fn poll_counts(&self) -> PollCounts {
        self.routes.poll_counts()
    }

    pub(crate) fn enters(&self) -> u64 {
        self.enters
    }

    pub(crate) fn degradations(&mut self) -> Vec<Degradation> {
        std::mem::take(&mut self.degraded)
    }
}

impl Drop for UringDriver {
    fn drop(&mut self) {
        // Closing a ring does not wait for requests in flight, so the wake-up's eight bytes are never freed
        // while a read of them may run.
        if let Some(target) = self.wake_read.take() {
            Box::leak(target);
        }
    }
}
