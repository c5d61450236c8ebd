//! One context of Linux native AIO: the system calls, and the ring in which completions arrive. All that is unsafe about them is here.
//!
//! Rules of the kernel that the rest relies on:
//! - io_submit(2) copies each control block before it returns. The memory that a block names is the kernel's until its completion.
//! - io_destroy(2) waits for requests in flight, and for a grace period of RCU: 32 ms were seen.
//! - A forked child has no context, but it inherits the mapping of the ring. It must not touch it.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::driver::IoRequest;
use crate::io::op::OpKind;

/// Operations of `aio_lio_opcode`.
const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;
/// `aio_resfd` is an event descriptor that each completion signals.
const IOCB_FLAG_RESFD: u32 = 1;
/// preadv2(2): fail with EAGAIN where the call would wait for a lock, for an allocation on disk or for memory.
const RWF_NOWAIT: i32 = 0x8;
/// The first words of a ring in the layout that this file knows.
const RING_MAGIC: u32 = 0xa10a_10a1;
/// Completions of one io_getevents(2).
const BATCH: usize = 64;

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ControlBlock {
    data: u64,
    #[cfg(target_endian = "little")]
    key: u32,
    rw_flags: i32,
    #[cfg(target_endian = "big")]
    key: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `struct io_event` of linux/aio_abi.h: one completion.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    /// The request's `data`.
    pub(super) data: u64,
    /// The address of the request's control block.
    pub(super) block: u64,
    /// Bytes, or a negative errno.
    pub(super) result: i64,
    second_result: i64,
}

/// The words at the start of `struct aio_ring`, which fs/aio.c maps into the process.
#[repr(C)]
struct RingHeader {
    id: AtomicU32,
    entries: AtomicU32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: AtomicU32,
    compatible: AtomicU32,
    incompatible: AtomicU32,
    header_bytes: AtomicU32,
}

const _: () = assert!(size_of::<ControlBlock>() == 64, "the kernel's ABI");
const _: () = assert!(size_of::<Event>() == 32, "the kernel's ABI");
const _: () = assert!(size_of::<RingHeader>() == 32, "the kernel's ABI");

impl ControlBlock {
    /// A block that names no request.
    pub(super) const EMPTY: ControlBlock = ControlBlock {
        data: 0,
        key: 0,
        rw_flags: 0,
        opcode: IOCB_CMD_PREAD,
        priority: 0,
        fd: 0,
        buffer: 0,
        bytes: 0,
        offset: 0,
        reserved: 0,
        flags: 0,
        event_fd: 0,
    };

    /// Returns the block of a read or a write that never waits, and whose completion signals `event_fd`.
    #[inline]
    pub(super) fn of(request: &IoRequest, event_fd: i32) -> ControlBlock {
        debug_assert!(matches!(request.kind, OpKind::Read | OpKind::Write), "only these have a block");
        let opcode = if request.kind == OpKind::Write { IOCB_CMD_PWRITE } else { IOCB_CMD_PREAD };
        ControlBlock {
            data: request.key.to_user_data(),
            rw_flags: RWF_NOWAIT,
            opcode,
            fd: request.fd as u32,
            buffer: request.memory.map_or(0, |memory| memory.as_ptr().expose_provenance() as u64),
            bytes: request.len.into(),
            offset: request.offset as i64,
            flags: IOCB_FLAG_RESFD,
            event_fd: event_fd as u32,
            ..ControlBlock::EMPTY
        }
    }
}

/// The system's refusal of a context, and the call that failed.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) call: &'static str,
    pub(crate) error: io::Error,
}

/// A context. Dropping it leaves it in the kernel; [`destroy`](Self::destroy) ends it.
#[derive(Debug)]
pub(super) struct Context {
    id: libc::c_ulong,
    /// The ring, if it can be read without a system call.
    ring: Option<NonNull<RingHeader>>,
}

impl Context {
    /// Makes a context for `requests` requests in flight. All its calls are tried, as a filter of system calls may allow some of them.
    ///
    /// # Errors
    /// The call that the system refused.
    pub(super) fn new(requests: u32) -> Result<Context, Refusal> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: io_setup(2) writes the context's number into `id`, which is zero before as it demands.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, requests, &raw mut id) };
        if made < 0 {
            return Err(Refusal { call: "io_setup", error: io::Error::last_os_error() });
        }
        let mut context = Context { id, ring: None };
        context.ring = context.find_ring();
        // SAFETY: no control block is named.
        let submits = unsafe { context.submit(&[]) };
        let refusal = match submits {
            Err(error) => Some(Refusal { call: "io_submit", error }),
            Ok(_) if context.ring.is_some() => None,
            Ok(_) => context.get_events(&mut []).err().map(|error| Refusal { call: "io_getevents", error }),
        };
        match refusal {
            None => Ok(context),
            Some(refusal) => {
                context.destroy();
                Err(refusal)
            }
        }
    }

    /// Returns the ring at the context's address, if one is mapped there in the layout that this file knows.
    fn find_ring(&self) -> Option<NonNull<RingHeader>> {
        let start: *mut RingHeader = ptr::with_exposed_provenance_mut(self.id as usize);
        let page = rustix::param::page_size();
        if !(start as usize).is_multiple_of(page) {
            return None;
        }
        let mut resident = 0u8;
        // SAFETY: mincore(2) reads nothing at the address and writes one byte for one page. It fails where nothing is mapped, as the
        // number need not be an address.
        if unsafe { libc::mincore(start.cast(), page, &raw mut resident) } != 0 {
            return None;
        }
        let start = NonNull::new(start)?;
        // SAFETY: a page is mapped there, which is larger than the header, and stays until `destroy`. The kernel changes its words, so
        // they are atomic.
        let header = unsafe { start.as_ref() };
        let is_known = header.magic.load(Ordering::Acquire) == RING_MAGIC
            && header.incompatible.load(Ordering::Relaxed) == 0
            && header.header_bytes.load(Ordering::Relaxed) as usize == size_of::<RingHeader>()
            && header.entries.load(Ordering::Relaxed) > 0;
        if !is_known {
            return None;
        }
        // The child of a fork would find the parent's completions there.
        let entries = header.entries.load(Ordering::Relaxed) as usize;
        let bytes = (size_of::<RingHeader>() + entries * size_of::<Event>()).next_multiple_of(page);
        // SAFETY: advice about the mapping, which is the context's; it changes nothing in this process.
        let _ = unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTFORK) };
        Some(start)
    }

    /// Submits requests and returns how many the kernel accepted, from the first on.
    ///
    /// # Errors
    /// The reason for which the first one was refused.
    ///
    /// # Safety
    /// Each pointer must be to a valid block that is not used elsewhere during the call. Memory and file that it names must stay
    /// until the request's completion was returned, or for ever.
    pub(super) unsafe fn submit(&self, blocks: &[*mut ControlBlock]) -> io::Result<usize> {
        // SAFETY: the caller's blocks; the kernel reads the pointers and the blocks, and writes each block's `key`.
        let taken = unsafe {
            libc::syscall(libc::SYS_io_submit, self.id, blocks.len() as libc::c_long, blocks.as_ptr())
        };
        usize::try_from(taken).map_err(|_| io::Error::last_os_error())
    }

    /// Returns whether a completion is there; always true where only a system call could find out.
    #[inline]
    pub(super) fn has_events(&self) -> bool {
        self.header()
            .is_none_or(|header| header.head.load(Ordering::Relaxed) != header.tail.load(Ordering::Acquire))
    }

    #[inline]
    fn header(&self) -> Option<&RingHeader> {
        // SAFETY: mapped until `destroy`, which takes the context; see `find_ring`.
        self.ring.map(|ring| unsafe { ring.as_ref() })
    }

    /// Removes the available completions. Returns the number of system calls.
    #[inline]
    pub(super) fn take(&mut self, each: impl FnMut(Event)) -> u64 {
        match self.ring {
            Some(ring) => {
                self.take_mapped(ring, each);
                0
            }
            None => self.take_by_calls(each),
        }
    }

    /// Removes completions from the mapped ring. `&mut self` makes this the only reader.
    #[inline]
    fn take_mapped(&mut self, ring: NonNull<RingHeader>, mut each: impl FnMut(Event)) {
        // SAFETY: as in `header`.
        let header = unsafe { ring.as_ref() };
        let entries = header.entries.load(Ordering::Relaxed);
        let mut head = header.head.load(Ordering::Relaxed);
        // Acquire: the kernel writes an entry before it moves the tail over it.
        let tail = header.tail.load(Ordering::Acquire);
        debug_assert!(head < entries && tail < entries, "both stay inside of the ring");
        if head >= entries || tail >= entries {
            return;
        }
        while head != tail {
            // SAFETY: the header is followed by `entries` entries, and `head` is below that. The kernel has written this one and does
            // not write it again before the head has passed it.
            let event = unsafe { ring.add(1).cast::<Event>().add(head as usize).read() };
            head = if head + 1 == entries { 0 } else { head + 1 };
            // Release: the entry was read. Immediately, as `each` may panic.
            header.head.store(head, Ordering::Release);
            each(event);
        }
    }

    #[cold]
    fn take_by_calls(&mut self, mut each: impl FnMut(Event)) -> u64 {
        let mut calls = 0;
        loop {
            let mut events = [const { MaybeUninit::<Event>::uninit() }; BATCH];
            calls += 1;
            // An interrupted call has removed nothing, and the next visit makes another one.
            let Ok(count) = self.get_events(&mut events) else { return calls };
            for event in &events[..count] {
                // SAFETY: the kernel has written this many.
                each(unsafe { event.assume_init() });
            }
            if count < BATCH {
                return calls;
            }
        }
    }

    /// Makes one io_getevents(2) that does not wait. Returns the number of completions that it wrote.
    fn get_events(&self, events: &mut [MaybeUninit<Event>]) -> io::Result<usize> {
        // Large enough for every `struct timespec`; all zero means not to wait.
        let no_time = [0u64; 2];
        let room = events.len() as libc::c_long;
        // SAFETY: the kernel writes at most `room` events, and reads the time.
        let count = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.id,
                0 as libc::c_long,
                room,
                events.as_mut_ptr(),
                no_time.as_ptr(),
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Ends the context on a separate thread, as that takes tens of milliseconds. It must not have requests in flight: the call
    /// would wait for the device.
    pub(super) fn destroy(self) {
        #[cfg(test)]
        ENDED.set(ENDED.get() + 1);
        let id = self.id;
        let end = move || {
            crate::base::size_limit::shield_thread();
            destroy(id);
        };
        // Without a thread the call is made here: a context that stays counts against fs.aio-max-nr.
        if thread::Builder::new().name("forebay-aio-end".to_string()).spawn(end).is_err() {
            destroy(id);
        }
    }

    /// Reads completions by system calls from now on.
    #[cfg(test)]
    pub(super) fn forget_ring(&mut self) {
        self.ring = None;
    }

    #[cfg(test)]
    pub(super) fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    #[cfg(test)]
    pub(super) fn id(&self) -> libc::c_ulong {
        self.id
    }
}

fn destroy(id: libc::c_ulong) {
    // SAFETY: the number is of a context whose owner was consumed by `Context::destroy`, so its ring is not read any more.
    unsafe { libc::syscall(libc::SYS_io_destroy, id) };
}

#[cfg(test)]
thread_local! {
    /// Contexts that this thread has ended.
    pub(super) static ENDED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Returns whether a context of this number exists.
#[cfg(test)]
pub(super) fn exists(id: libc::c_ulong) -> bool {
    let probe = std::mem::ManuallyDrop::new(Context { id, ring: None });
    probe.get_events(&mut []).is_ok()
}
