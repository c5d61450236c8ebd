//! A session of the loop engine: its memory, its ring, the program in the kernel, and the slots of walks.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::layout as at;
use crate::loader::{self, AttachedProgram};
use crate::memory::Memory;
use crate::program::{Program, Scratch};
use crate::rights;
use crate::ring::Ring;
use crate::slot::{self, WalkEnd};

/// Walks that io_uring's own loop runs, for one thread.
#[derive(Debug)]
pub(crate) struct Session {
    // In the order in which they must be dropped: the program, the ring, the memory that the ring uses.
    _loaded: AttachedProgram,
    ring: Ring,
    memory: Memory,
    poke: OwnedFd,
    free: Vec<u32>,
    under_way: u32,
    page_bytes: usize,
    reads_each: usize,
    slots: usize,
    /// Why the session can no longer run.
    broken: Option<String>,
    /// Calls into the kernel.
    pub(crate) enters: u64,
}

/// Settings that the program is loaded with.
#[derive(Clone, Copy, Debug)]
struct Settings {
    memory_bytes: u32,
    page_bytes: u32,
    reads_each: u32,
    reads: u32,
    poke_fd: u32,
    pages_address: u64,
}

impl Settings {
    fn bytes(&self, ring: &Ring) -> Vec<u8> {
        let words = [
            self.memory_bytes,
            self.page_bytes,
            self.reads_each,
            self.reads_each.trailing_zeros(),
            self.reads,
            ring.sq_entries,
            ring.cq_entries,
            ring.cq_bytes(),
            ring.cq_head_at,
            ring.cq_tail_at,
            ring.cqes_at,
            self.poke_fd,
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(self.pages_address.to_ne_bytes());
        bytes
    }
}

impl Session {
    /// Opens a session of the loop engine on `file`.
    ///
    /// # Errors
    /// Why this engine is not possible here, as a sentence without its full stop.
    pub(crate) fn open<P: Program>(program: &P, file: &impl AsFd, depth: u32) -> Result<Session, String> {
        let Some(object) = program.object() else {
            return Err(format!("the program {} has no form for io_uring's loop", program.name()));
        };
        let page_bytes = program.page_bytes() as usize;
        let reads_each = (program.fan_out() as usize).clamp(1, at::READS_MAX).next_power_of_two();
        let slots = (depth as usize).clamp(1, at::SLOTS_MAX).next_power_of_two();
        let reads = slots * reads_each;
        let memory =
            Memory::new((at::PAGES_AT + reads * page_bytes + at::PAGES_PAD).next_multiple_of(page()))
                .map_err(|error| format!("there is no memory for the pages ({error})"))?;
        // One submission for each page, one for the watch, and one walk's reads in addition.
        let entries = (reads + at::READS_MAX + 1).next_power_of_two();
        let mut ring =
            Ring::new(entries as u32).map_err(|error| rights::of_ring(&error, 2 * memory.len()))?;
        // The memory counts twice against the limit: as memory of the program, and as the buffer of reads.
        ring.register(&memory, file)
            .map_err(|error| rights::with_missing(rights::of_locked_memory(&error, 2 * memory.len())))?;
        ring.limit_workers().map_err(|error| {
            format!(
                "io_uring's worker threads cannot be limited ({error}), and none may be made by a program"
            )
        })?;
        if let Some(why) = unreadable(file, &memory, page_bytes) {
            return Err(why.to_owned());
        }
        let poke =
            event().map_err(|error| format!("there is no descriptor to wake the loop up with ({error})"))?;
        let settings = Settings {
            memory_bytes: memory.len() as u32,
            page_bytes: page_bytes as u32,
            reads_each: reads_each as u32,
            reads: reads as u32,
            poke_fd: poke.as_raw_fd() as u32,
            pages_address: memory.address() + at::PAGES_AT as u64,
        };
        let loaded = loader::load(object, &settings.bytes(&ring), &ring)?;
        Ok(Session {
            _loaded: loaded,
            ring,
            memory,
            poke,
            free: (0..slots as u32).rev().collect(),
            under_way: 0,
            page_bytes,
            reads_each,
            slots,
            broken: None,
            enters: 0,
        })
    }

    /// Returns a copy of the wake-up descriptor. Writing 1 to it ends a [`run`](Self::run) of a session that
    /// watches it.
    ///
    /// # Errors
    /// Too many descriptors.
    pub(crate) fn poker(&self) -> io::Result<OwnedFd> {
        self.poke.try_clone()
    }

    /// Has the descriptor watched from the next run on.
    pub(crate) fn watch(&mut self) {
        self.memory.set_u32(at::CONTROL_ARM_POKE, 1);
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn under_way(&self) -> u32 {
        self.under_way
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the runs of the program so far: for tests and figures.
    pub(crate) fn steps(&self) -> u64 {
        self.memory.u64(at::CONTROL_STEPS)
    }

    /// Directs new walks to this file, or to no file. Returns `false` if walks are in flight, or the kernel refuses.
    pub(crate) fn turn_to(&mut self, file: Option<&impl AsFd>) -> bool {
        let fd = file.map(|file| file.as_fd().as_raw_fd());
        self.under_way == 0 && self.ring.set_file(fd).is_ok()
    }

    /// Puts a walk into a free slot, to be started by the next [`run`](Self::run), on the session's file or on another file. The
    /// other file's descriptor must stay open until the walk has ended, or until a run has failed: each read looks it up. Returns
    /// `None` if no slot is free.
    pub(crate) fn begin(
        &mut self,
        file: Option<BorrowedFd<'_>>,
        root: u64,
        scratch: &Scratch,
        hops_max: u32,
    ) -> Option<u32> {
        let number = self.free.pop()?;
        slot::fill(&self.memory, number, root, scratch, hops_max);
        let slot = slot::place(number);
        // Descriptors are not negative.
        let file = file.map_or(0, |file| file.as_raw_fd() as u32 + 1);
        self.memory.set_u32(slot + at::SLOT_FILE, file);
        self.memory.set_u32(slot + at::SLOT_STATE, at::STATE_WALKING as u32);
        self.memory.set_u32(slot + at::SLOT_HOPS, 1);
        self.memory.set_u32(slot + at::SLOT_COMING, 1);
        self.memory.set_u32(slot + at::SLOT_CODE, 0);
        self.memory.set_u32(slot + at::SLOT_PLACE, 0);
        let fresh = self.memory.u32(at::CONTROL_NEW_COUNT);
        self.memory.set_u32(at::CONTROL_NEW + fresh as usize * 4, number);
        self.memory.set_u32(at::CONTROL_NEW_COUNT, fresh + 1);
        self.under_way += 1;
        Some(number)
    }

    /// Runs walks until `stop_after` of them have ended, or the descriptor was written to.
    ///
    /// # Errors
    /// The reason why the session is no longer usable. No later run enters the kernel.
    pub(crate) fn run(&mut self, stop_after: u32) -> Result<(), String> {
        match self.broken.clone() {
            Some(why) => Err(why),
            None => self.enter(stop_after).inspect_err(|why| self.broken = Some(why.clone())),
        }
    }

    fn enter(&mut self, stop_after: u32) -> Result<(), String> {
        self.memory.set_u32(at::CONTROL_STOP_AFTER, stop_after.max(1));
        let steps = self.steps();
        loop {
            self.enters += 1;
            match self.ring.run() {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("io_uring's loop has ended ({error})")),
            }
        }
        match self.memory.u32(at::CONTROL_BROKEN) as usize {
            // A ring without its program returns immediately, and without an error.
            0 if self.steps() == steps => Err("the program was detached from its ring".to_owned()),
            0 => Ok(()),
            at::BROKEN_MEMORY => Err("the ring's memory is smaller than its settings say".to_owned()),
            at::BROKEN_SUBMIT => Err("the kernel did not take a walk's reads".to_owned()),
            _ => Err("a completion came that belongs to no walk".to_owned()),
        }
    }

    /// Returns whether the descriptor was written to. If so, empties it, and has it watched again from the
    /// next run on.
    pub(crate) fn take_poke(&mut self) -> bool {
        if self.memory.u32(at::CONTROL_POKED) == 0 {
            return false;
        }
        empty(&self.poke);
        self.memory.set_u32(at::CONTROL_POKED, 0);
        self.watch();
        true
    }

    /// Passes each ended walk to `each`, with the last page that its step read.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(WalkEnd, &[u8])) {
        let over = self.memory.u32(at::CONTROL_DONE_COUNT).min(at::SLOTS_MAX as u32);
        for index in 0..over as usize {
            let number = self.memory.u32(at::CONTROL_DONE + index * 4);
            if number as usize >= self.slots || self.free.contains(&number) {
                continue;
            }
            let ended = slot::ended(&self.memory, number);
            let seen = self.memory.u32(slot::place(number) + at::SLOT_PLACE) as usize % self.reads_each;
            let page = at::PAGES_AT + (number as usize * self.reads_each + seen) * self.page_bytes;
            each(ended, self.memory.page(page, self.page_bytes));
            self.memory.set_u32(slot::place(number) + at::SLOT_STATE, at::STATE_FREE as u32);
            self.free.push(number);
            self.under_way -= 1;
        }
        self.memory.set_u32(at::CONTROL_DONE_COUNT, 0);
    }
}

/// Returns why the loop cannot read a file, after a read that may report that it would have to wait. io_uring reads files
/// without such reads by a worker thread, and a thread with a loop has one such worker ([`Ring`]).
fn unreadable(file: &impl AsFd, memory: &Memory, page_bytes: usize) -> Option<&'static str> {
    let page = libc::iovec {
        iov_base: (memory.address() + at::PAGES_AT as u64) as *mut libc::c_void,
        iov_len: page_bytes.min(memory.len() - at::PAGES_AT),
    };
    // SAFETY: the kernel writes at most a page, to our memory, which is long enough and which nothing reads yet.
    let answer = unsafe { libc::preadv2(file.as_fd().as_raw_fd(), &raw const page, 1, 0, libc::RWF_NOWAIT) };
    if answer >= 0 {
        return None;
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EBADF) => Some("the file was not opened for reading"),
        Some(libc::EOPNOTSUPP) => Some(
            "reads of this file or device cannot be told not to wait (RWF_NOWAIT), so that each of them would be a worker \
             thread's",
        ),
        _ => None,
    }
}

pub(crate) fn page() -> usize {
    // SAFETY: sysconf only looks a number up.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(4096)
}

pub(crate) fn event() -> io::Result<OwnedFd> {
    // SAFETY: the call makes a new descriptor and touches no memory.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Ends the run of a session that watches the descriptor.
pub(crate) fn poke(fd: &impl AsFd) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: the kernel reads eight bytes of a buffer of eight. A full counter (2^64 - 1 writes) would be readable anyway.
    unsafe { libc::write(fd.as_fd().as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Empties a descriptor that is readable.
pub(crate) fn empty(fd: &OwnedFd) {
    let mut count = [0_u8; 8];
    // SAFETY: the kernel writes eight bytes to a buffer of eight. The descriptor was reported as readable, so
    // this does not wait.
    unsafe { libc::read(fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
}
