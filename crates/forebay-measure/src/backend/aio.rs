//! Linux AIO: io_submit(2) and io_getevents(2), the interface before io_uring.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr;
use std::time::Instant;

use anyhow::Context as _;

use super::queue::{Memory, Queue, drive};
use super::{Lane, Op, Target};

/// Operations of `aio_lio_opcode`.
const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;

/// `struct iocb` of linux/aio_abi.h, which the kernel copies as it is submitted.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct ControlBlock {
    data: u64,
    /// `aio_key` and `aio_rw_flags`, in an order that depends on the machine's; both are 0.
    key_and_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    file: u32,
    memory: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `struct io_event` of linux/aio_abi.h: one completion.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Event {
    data: u64,
    block: u64,
    result: i64,
    second_result: i64,
}

const _: () = assert!(size_of::<ControlBlock>() == 64 && size_of::<Event>() == 32, "the kernel's ABI");

/// Does the operations of a lane.
///
/// # Errors
/// The kernel refuses a context, and the errors of [`drive`].
pub(super) fn lane<L: Lane>(lane: L, file: &File, target: &Target) -> anyhow::Result<L> {
    let mut memory = Memory::new(target)?;
    let context = Context::new(file, target)?;
    drive(lane, context, &mut memory)
}

/// A context of the kernel.
#[derive(Debug)]
struct Context {
    id: libc::c_ulong,
    file: u32,
    queued: Vec<ControlBlock>,
    /// Completions, of which those from `taken` to `found` were not returned yet.
    events: Vec<Event>,
    taken: usize,
    found: usize,
}

impl Context {
    fn new(file: &File, target: &Target) -> anyhow::Result<Self> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number into `id`, which is zero before, as it demands.
        called(unsafe { libc::syscall(libc::SYS_io_setup, target.depth as libc::c_uint, &raw mut id) })
            .context(
                "the kernel refuses a context of Linux AIO (the sysctl fs.aio-max-nr, or a seccomp filter)",
            )?;
        Ok(Self {
            id,
            file: file.as_raw_fd() as u32,
            queued: Vec::with_capacity(target.depth),
            events: vec![Event::default(); target.depth],
            taken: 0,
            found: 0,
        })
    }

    /// Submits all queued blocks; the kernel may accept only some of them at a time.
    fn submit(&mut self) -> anyhow::Result<u64> {
        let mut blocks: Vec<*mut ControlBlock> = self.queued.iter_mut().map(ptr::from_mut).collect();
        let mut calls = 0;
        while !blocks.is_empty() {
            // SAFETY: the pointers are to blocks of `queued`, which stay until the call returns. The memory that they name stays
            // until the completion, or forever (see `push`), and the file outlives the context.
            let taken = called(unsafe {
                libc::syscall(libc::SYS_io_submit, self.id, blocks.len() as libc::c_long, blocks.as_ptr())
            });
            blocks.drain(..taken.context("io_submit failed")?);
            calls += 1;
        }
        self.queued.clear();
        Ok(calls)
    }
}

impl Queue for Context {
    unsafe fn push(&mut self, slot: usize, op: Op, memory: *mut u8, bytes: usize) -> anyhow::Result<()> {
        self.queued.push(ControlBlock {
            data: slot as u64,
            opcode: if op.is_write { IOCB_CMD_PWRITE } else { IOCB_CMD_PREAD },
            file: self.file,
            memory: memory.expose_provenance() as u64,
            bytes: bytes as u64,
            offset: op.offset as i64,
            ..ControlBlock::default()
        });
        Ok(())
    }

    fn wait(&mut self, due: Option<Instant>, _in_flight: usize) -> anyhow::Result<u64> {
        let calls = self.submit()?;
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let limit = left.map(|left| libc::timespec {
            tv_sec: left.as_secs() as libc::time_t,
            tv_nsec: left.subsec_nanos() as libc::c_long,
        });
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        let (one, room) = (1 as libc::c_long, self.events.len() as libc::c_long);
        // SAFETY: the kernel writes at most `room` events, for which `events` has space, and reads the time, if any.
        let found = called(unsafe {
            libc::syscall(libc::SYS_io_getevents, self.id, one, room, self.events.as_mut_ptr(), limit)
        });
        (self.taken, self.found) = match found {
            Ok(found) => (0, found),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => (0, 0),
            Err(error) => return Err(error).context("io_getevents failed"),
        };
        Ok(calls + 1)
    }

    fn completed(&mut self) -> Option<(usize, i64)> {
        let event = self.events[..self.found].get(self.taken)?;
        self.taken += 1;
        Some((event.data as usize, event.result))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the number is of this context, which nothing uses any more. The call waits for operations in flight, and
        // `lane` drops the memory after it.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

fn called(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
