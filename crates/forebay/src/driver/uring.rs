//! The io_uring driver: one ring a shard, used by the shard's thread only.
//!
//! Settings are tried, never inferred from a kernel version, and each has a fallback: `SINGLE_ISSUER`,
//! `DEFER_TASKRUN`, `COOP_TASKRUN`, a registered ring descriptor, a sparse table of registered files, registered
//! arena regions (cloned from a keeper ring that pins them once), `min_wait`, `NO_IOWAIT`.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};

use crate::driver::{IoRequest, QueueFull, Wait, WakeHandle};
use crate::health::Degradation;
use crate::op::{Flush, OpKind};
use crate::shard::optable::OpKey;

mod blocking;
mod entry;
mod keeper;
mod setup;
mod wake;

use entry::UseFile;
pub(crate) use keeper::Keeper;
pub(crate) use wake::UringWake;

/// Registered files a ring has room for; 65,536 were refused on a common kernel, 1,024 work everywhere tried.
pub(crate) const FIXED_FILES_MAX: u32 = 1024;
/// Arena regions a ring has room for; later ones go unregistered.
const REGIONS_MAX: u32 = 256;

/// `user_data` of completions that belong to no slot. Slot generations start at one, so no key is this large with
/// an index this large.
const WAKE_DATA: u64 = u64::MAX;
const CANCEL_DATA: u64 = u64::MAX - 1;

// io_uring_enter(2); the io-uring crate has no safe call with these.
const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
const ENTER_NO_IOWAIT: u32 = 1 << 7;

/// Longer than any wait; a shard looks up then, finds nothing and waits on.
static LONG: types::Timespec = types::Timespec::new().sec(3600);

/// `struct io_uring_getevents_arg` of the kernel's ABI.
#[repr(C)]
struct GetEventsArg {
    sigmask: u64,
    sigmask_sz: u32,
    min_wait_usec: u32,
    ts: u64,
}

/// A ring and what was found to work on it.
pub(crate) struct UringDriver {
    ring: IoUring,
    keeper: Arc<Keeper>,
    wake: Arc<UringWake>,
    /// What to pass to io_uring_enter: the registered index, or the descriptor.
    enter_fd: RawFd,
    enter_flags: u32,
    has_min_wait: bool,
    has_ext_arg: bool,
    has_fixed_files: bool,
    has_region_table: bool,
    /// Bit per region: registered with this ring.
    regions: [u64; REGIONS_MAX as usize / 64],
    wake_read: Option<Box<u64>>,
    /// Completions of what the shard's thread did itself.
    made: Vec<(OpKey, i32)>,
    enters: u64,
    degraded: Vec<Degradation>,
}

impl UringDriver {
    /// Makes a ring for `depth` requests on the calling thread, which must be the shard's. The error is the
    /// kernel's refusal of the plainest ring.
    pub(crate) fn new(depth: u32, keeper: Arc<Keeper>) -> io::Result<UringDriver> {
        let mut degraded = Vec::new();
        let ring = setup::build_ring(depth, &mut degraded)?;
        let params = ring.params();
        let mut driver = UringDriver {
            enter_fd: ring.as_raw_fd(),
            enter_flags: if params.is_feature_no_iowait() { ENTER_NO_IOWAIT } else { 0 },
            has_min_wait: params.is_feature_min_timeout(),
            has_ext_arg: params.is_feature_ext_arg(),
            has_fixed_files: false,
            has_region_table: false,
            regions: [0; REGIONS_MAX as usize / 64],
            wake: UringWake::new(ring.as_raw_fd())?,
            wake_read: None,
            made: Vec::new(),
            keeper,
            ring,
            enters: 0,
            degraded,
        };
        driver.register_own_fd();
        driver.register_tables();
        driver.arm_wake();
        Ok(driver)
    }

    /// # Safety
    /// What the entry names must stay valid until its completion.
    #[inline(always)]
    unsafe fn push(&mut self, entry: &Entry) -> Result<(), QueueFull> {
        // SAFETY: the caller keeps what the entry names; `&mut self` makes this the only user of the queue.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| QueueFull)
    }

    /// A sync is not linked to its write: that saved one enter of two and no time (two cores, idle and busy, 1 to 32 at once),
    /// and a kernel short of memory may take only the first half of a pair, whose success then nobody hears of.
    ///
    /// # Safety
    /// As [`Driver::submit`](crate::driver::Driver::submit).
    #[inline]
    pub(crate) unsafe fn submit(&mut self, request: &IoRequest) -> Result<bool, QueueFull> {
        if request.flush == Flush::Blocking && request.sync.is_some() {
            // SAFETY: the caller keeps memory and file until the completion.
            unsafe { self.make(request) };
            return Ok(true);
        }
        let fixed = request.region.filter(|&region| self.is_registered(region));
        // SAFETY: the caller keeps memory and file until the completion.
        unsafe {
            match request.fixed_file {
                Some(index) => self.push_for(request, types::Fixed(index), fixed),
                None => self.push_for(request, types::Fd(request.fd), fixed),
            }
        }
        .map(|()| false)
    }

    /// Each kind is built and pushed in its own arm: an entry that is put together in one place and moved from another
    /// costs 5 ns more, because the processor cannot forward the small stores to the wide loads of the move.
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
            }
        }
    }

    #[inline]
    fn is_registered(&self, region: u16) -> bool {
        let word = self.regions.get(region as usize / 64).copied().unwrap_or(0);
        word & (1 << (region % 64)) != 0
    }

    pub(crate) fn cancel(&mut self, key: OpKey) {
        let entry = opcode::AsyncCancel::new(key.to_user_data()).build().user_data(CANCEL_DATA);
        // SAFETY: the entry names no memory. A full queue means that this cancel is not sent; the operation then
        // ends by itself, which is all that a cancel promises.
        if unsafe { self.push(&entry) }.is_err() && self.enter(0, None, None).is_ok() {
            // SAFETY: as above.
            let _ = unsafe { self.push(&entry) };
        }
    }

    #[inline]
    pub(crate) fn complete(&mut self, wait: Wait, mut report: impl FnMut(OpKey, i32)) -> io::Result<()> {
        match wait {
            // With news of the thread's own there is nothing to wait for.
            Wait::For { completions, patience, limit } if self.made.is_empty() => {
                self.enter(completions, patience, limit)?;
            }
            _ => {
                let (waiting, taskrun) = {
                    let queue = self.ring.submission();
                    (!queue.is_empty(), queue.taskrun() || queue.cq_overflow())
                };
                if waiting || taskrun {
                    self.enter(0, None, None)?;
                }
            }
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
        Ok(())
    }

    #[inline]
    pub(crate) fn has_completions(&mut self) -> bool {
        !self.made.is_empty() || !self.ring.completion().is_empty() || self.ring.submission().taskrun()
    }

    /// One `io_uring_enter` that both submits and reaps. `GETEVENTS` is always set: with DEFER_TASKRUN nothing is
    /// posted without it.
    fn enter(&mut self, want: u32, patience: Option<Duration>, limit: Option<Duration>) -> io::Result<()> {
        let to_submit = self.ring.submission().len() as u32;
        let mut flags = self.enter_flags | ENTER_GETEVENTS;
        let span = limit.map(types::Timespec::from);
        let mut argument = GetEventsArg { sigmask: 0, sigmask_sz: 0, min_wait_usec: 0, ts: 0 };
        let mut want = want;
        let mut extended = false;
        if want > 0 && self.has_ext_arg {
            if let Some(span) = &span {
                argument.ts = std::ptr::from_ref(span) as u64;
                extended = true;
            }
            if let Some(patience) = patience.filter(|_| want > 1) {
                if self.has_min_wait {
                    argument.min_wait_usec = patience.as_micros() as u32;
                    extended = true;
                    // Without a limit of its own the call would answer ETIME when patience ends with nothing there,
                    // and a second one would have to wait for the first completion.
                    if argument.ts == 0 {
                        argument.ts = std::ptr::from_ref(&LONG) as u64;
                    }
                } else {
                    // Without a bound a wait for several could outlast the last request of a batch.
                    want = 1;
                }
            }
        } else if want > 1 {
            want = 1;
        }
        let (pointer, size): (*const GetEventsArg, usize) = match extended {
            true => {
                flags |= ENTER_EXT_ARG;
                (&argument, size_of::<GetEventsArg>())
            }
            false => (std::ptr::null(), 0),
        };
        self.enters += 1;
        // SAFETY: io_uring_enter(2) with this driver's ring; `argument` and `span` outlive the call. Queued entries
        // name memory and files that their slots own.
        let entered = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, self.enter_fd, to_submit, want, flags, pointer, size)
        };
        if entered >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // EINTR: a signal; ETIME: the limit passed; EBUSY and EAGAIN: the completion queue must be reaped or
            // memory is short, and what was not taken stays queued for the next turn.
            Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        }
    }

    pub(crate) fn wake_handle(&self) -> WakeHandle {
        WakeHandle::Uring(self.wake.clone())
    }

    pub(crate) fn register_file(&mut self, index: u32, fd: RawFd) -> bool {
        self.has_fixed_files
            && index < FIXED_FILES_MAX
            && self.ring.submitter().register_files_update(index, &[fd]).is_ok()
    }

    pub(crate) fn unregister_file(&mut self, index: u32) {
        if self.has_fixed_files && index < FIXED_FILES_MAX {
            // A refusal leaves the entry in place: the table keeps the file open, nothing else.
            let _ = self.ring.submitter().register_files_update(index, &[-1]);
        }
    }

    pub(crate) fn register_region(&mut self, index: u16, start: *mut u8, len: usize) -> io::Result<()> {
        if !self.has_region_table || u32::from(index) >= REGIONS_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let cloned = self.keeper.register(index, start, len).and_then(|source| {
            self.ring.submitter().register_buffers_clone_offset(
                source,
                index.into(),
                index.into(),
                1,
                io_uring::types::CloneBuffersFlags::DST_REPLACE,
            )
        });
        if cloned.is_err() {
            // Kernels before 6.13 cannot clone: this ring pins the region itself.
            let buffer = libc::iovec { iov_base: start.cast(), iov_len: len };
            // SAFETY: the region stays mapped while any ring may use it: the arena unmaps only after every shard
            // has ended, and the kernel holds its own pin on the pages beside that.
            unsafe { self.ring.submitter().register_buffers_update(index.into(), &[buffer], None)? };
        }
        self.regions[index as usize / 64] |= 1 << (index % 64);
        Ok(())
    }

    pub(crate) fn retire(&mut self) {
        self.regions = [0; REGIONS_MAX as usize / 64];
        if std::mem::take(&mut self.has_region_table) {
            // A refusal leaves them pinned for as long as the ring lives, nothing else.
            let _ = self.ring.submitter().unregister_buffers();
        }
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
        // Closing a ring does not wait for what is in flight, so the wake-up's eight bytes are never freed while a
        // read of them may run.
        if let Some(target) = self.wake_read.take() {
            Box::leak(target);
        }
    }
}
