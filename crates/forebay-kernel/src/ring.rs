//! The ring under the loop: set up for a BPF program, and entered. User space neither writes submissions nor reads
//! completions: the program in the kernel does, so nothing of the ring stays mapped here.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::memory::Memory;
use crate::process::Process;

const SETUP_CQSIZE: u32 = 1 << 3;
const SETUP_SUBMIT_ALL: u32 = 1 << 7;
const SETUP_COOP_TASKRUN: u32 = 1 << 8;
const SETUP_SINGLE_ISSUER: u32 = 1 << 12;
const SETUP_DEFER_TASKRUN: u32 = 1 << 13;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
const SETUP_SQ_REWIND: u32 = 1 << 20;
const REGISTER_BUFFERS: u32 = 0;
const REGISTER_FILES: u32 = 2;
const REGISTER_FILES_UPDATE: u32 = 6;
const REGISTER_IOWQ_MAX_WORKERS: u32 = 19;
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;
const REGISTER_MEM_REGION: u32 = 34;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
const MEM_REGION_TYPE_USER: u32 = 1;
const CQE_BYTES: u32 = 16;
const SQE_BYTES: usize = 64;
const SQE_FLAGS_AT: usize = 1;
const SQE_ASYNC: u8 = 1 << 4;
const SQE_CQE_SKIP_SUCCESS: u8 = 1 << 6;
const OFFSET_SQES: libc::off_t = 0x1000_0000;

thread_local! {
    /// Rings of this thread, and the thread's limits of workers of each kind from before the first. A forked child's thread has neither.
    static LIMITED: Cell<(usize, [u32; 2], Option<Process>)> = const { Cell::new((0, [0; 2], None)) };
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    sq_offsets: [u32; 10],
    cq_offsets: CqOffsets,
}

/// `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Default)]
struct CqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    reserved: u32,
    user_address: u64,
}

const _: () = assert!(size_of::<Params>() == 120, "struct io_uring_params");

/// `struct io_uring_region_desc`.
#[repr(C)]
#[derive(Default)]
struct RegionDescription {
    user_address: u64,
    size: u64,
    flags: u32,
    id: u32,
    mmap_offset: u64,
    reserved: [u64; 4],
}

/// `struct io_uring_mem_region_reg`.
#[repr(C)]
#[derive(Default)]
struct RegionRegistration {
    region: u64,
    flags: u64,
    reserved: [u64; 2],
}

/// `struct io_uring_files_update`.
#[repr(C)]
struct FilesUpdate {
    offset: u32,
    reserved: u32,
    files: u64,
}

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct RingRegistration {
    offset: u32,
    reserved: u32,
    fd: u64,
}

/// A ring that only the thread that made it may enter.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Marks the ring as not sendable: its number among a thread's rings means nothing in another thread.
    _this_thread: PhantomData<*const ()>,
    fd: OwnedFd,
    /// The ring's number among the thread's registered rings, where registering worked.
    registered: Option<u32>,
    /// This ring counts among those that limit the thread's workers.
    is_limiting: bool,
    pub(crate) sq_entries: u32,
    pub(crate) cq_entries: u32,
    pub(crate) cq_head_at: u32,
    pub(crate) cq_tail_at: u32,
    pub(crate) cqes_at: u32,
}

impl Ring {
    /// Sets the ring up, with `entries` submissions.
    ///
    /// # Errors
    /// This kernel has no such rings, or this program may not have one.
    pub(crate) fn new(entries: u32) -> io::Result<Ring> {
        let mut params = Params {
            cq_entries: entries * 2,
            flags: SETUP_CQSIZE
                | SETUP_SUBMIT_ALL
                | SETUP_COOP_TASKRUN
                | SETUP_SINGLE_ISSUER
                | SETUP_DEFER_TASKRUN
                | SETUP_NO_SQARRAY
                | SETUP_SQ_REWIND,
            ..Params::default()
        };
        // SAFETY: the kernel fills the structure, which has the size that it expects.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, &raw mut params) };
        let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let offsets = params.cq_offsets;
        Ok(Ring {
            _this_thread: PhantomData,
            fd,
            registered: None,
            is_limiting: false,
            sq_entries: params.sq_entries,
            cq_entries: params.cq_entries,
            cq_head_at: offsets.head,
            cq_tail_at: offsets.tail,
            cqes_at: offsets.cqes,
        })
    }

    /// Returns the bytes of the ring's own memory that a program may read.
    pub(crate) fn cq_bytes(&self) -> u32 {
        self.cqes_at + self.cq_entries * CQE_BYTES
    }

    /// Makes `memory` the region that the program sees and the buffer that reads land in, and `file` file 0.
    ///
    /// # Errors
    /// The kernel refuses: too much locked memory, mostly.
    pub(crate) fn register(&mut self, memory: &Memory, file: &impl AsFd) -> io::Result<()> {
        let mut region = RegionDescription {
            user_address: memory.address(),
            size: memory.len() as u64,
            flags: MEM_REGION_TYPE_USER,
            ..RegionDescription::default()
        };
        let registration =
            RegionRegistration { region: &raw mut region as u64, ..RegionRegistration::default() };
        self.call(REGISTER_MEM_REGION, (&raw const registration).cast(), 1)?;
        let buffer = libc::iovec { iov_base: memory.address() as *mut libc::c_void, iov_len: memory.len() };
        self.call(REGISTER_BUFFERS, (&raw const buffer).cast(), 1)?;
        let file = file.as_fd().as_raw_fd();
        self.call(REGISTER_FILES, (&raw const file).cast(), 1)?;
        // Saves the lookup of the descriptor in each call; the thread may have too many registered rings
        // already.
        let mut ring = RingRegistration { offset: u32::MAX, reserved: 0, fd: self.fd.as_raw_fd() as u64 };
        if self.call(REGISTER_RING_FDS, (&raw mut ring).cast(), 1).is_ok() {
            self.registered = Some(ring.offset);
        }
        Ok(())
    }

    /// Limits the thread's io_uring workers, and creates one. In the loop's program, io_uring passes a read that may not wait to a
    /// worker thread, and creates a worker at that point if needed. A thread that runs a BPF program must not change processors,
    /// and the kernel (seen with 7.2) lets a new thread inherit that: its scheduler then warns when it moves the new thread. So a
    /// thread with such a ring has at most one worker of a kind, and the worker for files is created here: the last worker lives as
    /// long as the thread.
    ///
    /// # Errors
    /// The kernel refuses, or lacks memory for a mapping or a thread.
    pub(crate) fn limit_workers(&mut self) -> io::Result<()> {
        let mut limits = [1_u32, 1];
        self.call(REGISTER_IOWQ_MAX_WORKERS, limits.as_mut_ptr().cast(), 2)?;
        self.is_limiting = true;
        LIMITED.set(match LIMITED.get() {
            (rings @ 1.., before, Some(process)) if !process.is_elsewhere() => {
                (rings + 1, before, Some(process))
            }
            _ => (1, limits, Some(Process::here())),
        });
        self.make_worker()
    }

    /// Has a worker do a no-op, before a program is attached.
    fn make_worker(&self) -> io::Result<()> {
        let bytes = self.sq_entries as usize * SQE_BYTES;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let entries = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, flags, self.fd.as_raw_fd(), OFFSET_SQES)
        };
        if entries == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the first entry lies in the mapping, which nothing else uses; an entry of zeros is a no-op.
        unsafe {
            entries.cast::<u8>().write_bytes(0, SQE_BYTES);
            entries.cast::<u8>().add(SQE_FLAGS_AT).write(SQE_ASYNC | SQE_CQE_SKIP_SUCCESS);
        }
        let submitted = self.enter(1);
        // SAFETY: the mapping made above, which is no longer in use.
        unsafe { libc::munmap(entries, bytes) };
        submitted
    }

    /// Replaces or removes file 0. Operations in flight continue with the previous file.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn set_file(&self, file: Option<RawFd>) -> io::Result<()> {
        let file = file.unwrap_or(-1);
        let update = FilesUpdate { offset: 0, reserved: 0, files: &raw const file as u64 };
        self.call(REGISTER_FILES_UPDATE, (&raw const update).cast(), 1)
    }

    /// Runs the loop until its program stops it.
    ///
    /// # Errors
    /// A signal ended it ([`Interrupted`](io::ErrorKind::Interrupted): run it again), or the program was detached.
    pub(crate) fn run(&self) -> io::Result<()> {
        self.enter(0)
    }

    fn enter(&self, to_submit: u32) -> io::Result<()> {
        let (fd, flags) = match self.registered {
            Some(number) => (number as RawFd, ENTER_REGISTERED_RING),
            None => (self.fd.as_raw_fd(), 0),
        };
        let nothing = std::ptr::null::<libc::c_void>();
        // SAFETY: the call reads and writes the ring, and the registered memory, which outlives it.
        let answer = unsafe { libc::syscall(libc::SYS_io_uring_enter, fd, to_submit, 0, flags, nothing, 0) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn call(&self, what: u32, argument: *const libc::c_void, count: u32) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        // SAFETY: each caller passes the structure that the operation reads, or writes its result to.
        let answer = unsafe { libc::syscall(libc::SYS_io_uring_register, fd, what, argument, count) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.is_limiting {
            let (rings, mut before, process) = LIMITED.get();
            LIMITED.set((rings.saturating_sub(1), before, process));
            if rings == 1 {
                let _ = self.call(REGISTER_IOWQ_MAX_WORKERS, before.as_mut_ptr().cast(), 2);
            }
        }
        if let Some(number) = self.registered {
            // Without this the thread's table would keep the ring alive.
            let ring = RingRegistration { offset: number, reserved: 0, fd: 0 };
            let _ = self.call(UNREGISTER_RING_FDS, (&raw const ring).cast(), 1);
        }
    }
}
