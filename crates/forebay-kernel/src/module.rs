//! A session of the module engine: its device, its ring, the program in the kernel, and the slots of walks.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use crate::device::{Device, Shape};
use crate::layout as at;
use crate::loader::{self, AttachedProgram};
use crate::memory::Memory;
use crate::options::Options;
use crate::program::{Program, Scratch};
use crate::rights;
use crate::session::{empty, event, page};
use crate::slot::{self, WalkEnd};

/// User data of the watched descriptor's completion; walks use their slots' numbers.
const POKE: u64 = u64::MAX;

/// A session of the module on a file, with its program and its memory, and no ring yet.
#[derive(Debug)]
pub(crate) struct Bound {
    // In the order in which they must be dropped: the program, the file, the memory.
    _loaded: AttachedProgram,
    pub(crate) device: Device,
    pub(crate) memory: Memory,
    pub(crate) shape: Shape,
    is_pollable: bool,
}

impl Bound {
    /// Opens a session and binds it to `file`. The thread that walks spins for up to `spin` for each read.
    ///
    /// # Errors
    /// Why this engine is not possible here, as a sentence without its full stop.
    pub(crate) fn open<P: Program>(
        program: &P,
        file: &impl AsFd,
        depth: u32,
        spin: Duration,
    ) -> Result<Bound, String> {
        let device = Device::open()?;
        let shape = Shape {
            page_bytes: program.page_bytes() as usize,
            slots: (depth as usize).clamp(1, at::SLOTS_MAX).next_power_of_two(),
            reads_each: (program.fan_out() as usize).clamp(1, at::READS_MAX),
        };
        let is_pollable = device.bind(file, shape, spin)?;
        let pages = shape.slots * shape.reads_each * shape.page_bytes;
        let bytes = (at::PAGES_AT + pages + at::PAGES_PAD).next_multiple_of(page());
        let memory = Memory::of_device(&device, bytes)
            .map_err(|error| format!("the module's memory cannot be mapped ({error})"))?;
        let loaded = load(program, &device)?;
        Ok(Bound { _loaded: loaded, device, memory, shape, is_pollable })
    }

    /// Returns the end of a walk, given the result of its command, with the last page that its step read.
    ///
    /// # Safety
    /// The command has ended, and no walk starts in this slot while the page is in use.
    pub(crate) unsafe fn ended(&self, number: u32, result: i32) -> (WalkEnd, &[u8]) {
        let ended = match result {
            0 => slot::ended(&self.memory, number),
            refused => slot::refused(&self.memory, number, -refused),
        };
        let seen = self.memory.u32(slot::place(number) + at::SLOT_PLACE) as usize % self.shape.reads_each;
        let page = at::PAGES_AT + (number as usize * self.shape.reads_each + seen) * self.shape.page_bytes;
        // SAFETY: as this function's.
        (ended, unsafe { self.memory.page_of_ended(page, self.shape.page_bytes) })
    }
}

/// Returns the command that walks from a slot: its part of a submission. `is_last` if the thread enters the kernel with it
/// and waits for walks alone: the module may then spin.
pub(crate) fn command(number: u32, is_last: bool) -> [u8; 16] {
    let mut command = [0; 16];
    command[..4].copy_from_slice(&number.to_ne_bytes());
    command[4..8].copy_from_slice(&u32::from(is_last).to_ne_bytes());
    command
}

/// Walks that the module runs, for one thread.
pub(crate) struct ModuleSession {
    /// Only the thread that made the ring may enter it.
    _this_thread: PhantomData<*const ()>,
    // Dropped before the ring.
    bound: Bound,
    ring: IoUring,
    poke: OwnedFd,
    /// Completions removed from the ring: a slot, and the result of its command.
    taken: Vec<(u32, i32)>,
    is_poked: bool,
    is_polled: bool,
    free: Vec<u32>,
    /// The slot that was filled last, whose command is not queued yet.
    last: Option<u32>,
    under_way: u32,
    /// Calls into the kernel.
    pub(crate) enters: u64,
}

impl ModuleSession {
    /// Opens a session of the module on `file`.
    ///
    /// # Errors
    /// Why this engine is not possible here, as a sentence without its full stop.
    pub(crate) fn open<P: Program>(
        program: &P,
        file: &impl AsFd,
        options: &Options,
    ) -> Result<ModuleSession, String> {
        let bound = Bound::open(program, file, options.depth, options.spin)?;
        let (is_polled, slots) = (bound.is_pollable && options.polled, bound.shape.slots);
        // One command for each slot, and the watch.
        let ring = ring(slots as u32 + 1, is_polled, &bound.device)
            .map_err(|error| format!("there is no ring for the module ({error})"))?;
        let poke =
            event().map_err(|error| format!("there is no descriptor to wake the ring up with ({error})"))?;
        Ok(ModuleSession {
            _this_thread: PhantomData,
            bound,
            ring,
            poke,
            taken: Vec::with_capacity(slots),
            is_poked: false,
            is_polled,
            free: (0..slots as u32).rev().collect(),
            last: None,
            under_way: 0,
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

    /// Has the descriptor watched from the next run on. A ring that polls cannot wait for it; such a run
    /// returns by itself, as soon as a walk has ended.
    pub(crate) fn watch(&mut self) {
        if !self.is_polled {
            let fd = types::Fd(self.poke.as_raw_fd());
            let watch = opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(POKE);
            // SAFETY: the operation touches no memory. It fits: the queue has one entry more than slots.
            let _ = unsafe { self.ring.submission().push(&watch) };
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn under_way(&self) -> u32 {
        self.under_way
    }

    pub(crate) fn slots(&self) -> usize {
        self.bound.shape.slots
    }

    /// Puts a walk into a free slot, to be started by the next [`run`](Self::run). Returns `None` if no slot is free.
    pub(crate) fn begin(&mut self, root: u64, scratch: &Scratch, hops_max: u32) -> Option<u32> {
        let number = *self.free.last()?;
        slot::fill(&self.bound.memory, number, root, scratch, hops_max);
        self.free.pop();
        self.under_way += 1;
        if let Some(before) = self.last.replace(number) {
            self.push(before, false);
        }
        Some(number)
    }

    /// Queues the command of a slot.
    fn push(&mut self, number: u32, is_last: bool) {
        let walk = opcode::UringCmd16::new(types::Fixed(0), at::MODULE_WALK as u32)
            .cmd(command(number, is_last))
            .build()
            .user_data(number.into());
        // SAFETY: the command works on the session's memory, which belongs to the module. It fits: the queue has one entry more
        // than slots.
        let _ = unsafe { self.ring.submission().push(&walk) };
    }

    /// Runs walks until `stop_after` of them have ended, or the descriptor was written to.
    ///
    /// # Errors
    /// The reason why the session is no longer usable.
    pub(crate) fn run(&mut self, stop_after: u32) -> Result<(), String> {
        let wanted = stop_after.clamp(1, self.under_way.max(1)) as usize;
        if let Some(last) = self.last.take() {
            self.push(last, true);
        }
        while self.taken.len() < wanted && !self.is_poked {
            self.enters += 1;
            // A hint: the task work that serves the walks completes this many before this thread checks.
            self.bound.memory.set_u32(at::CONTROL_STOP_AFTER, (wanted - self.taken.len()) as u32);
            match self.ring.submit_and_wait(wanted - self.taken.len()) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("the module's ring has ended ({error})")),
            }
            for entry in self.ring.completion() {
                match entry.user_data() {
                    POKE => self.is_poked = true,
                    number => self.taken.push((number as u32, entry.result())),
                }
            }
        }
        Ok(())
    }

    /// Returns whether the descriptor was written to. If so, empties it, and has it watched again from the
    /// next run on.
    pub(crate) fn take_poke(&mut self) -> bool {
        if !self.is_poked {
            return false;
        }
        empty(&self.poke);
        self.is_poked = false;
        self.watch();
        true
    }

    /// Passes each ended walk to `each`, with the last page that its step read.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(WalkEnd, &[u8])) {
        for (number, result) in self.taken.drain(..) {
            // SAFETY: its completion was removed from the ring, and the slot is free only after this.
            let (ended, page) = unsafe { self.bound.ended(number, result) };
            each(ended, page);
            self.free.push(number);
            self.under_way -= 1;
        }
    }
}

forebay::_debug_parts!(
    ModuleSession, |module_session|
    shape: module_session.bound.shape,
    under_way: module_session.under_way
);

fn ring(entries: u32, is_polled: bool, device: &Device) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_coop_taskrun();
    if is_polled {
        builder.setup_iopoll();
    }
    let ring = builder.build(entries)?;
    ring.submitter().register_files(&[device.as_raw_fd()])?;
    Ok(ring)
}

/// Checks whether the module is loaded and accepts programs, by trying both, which lasts some milliseconds.
///
/// # Errors
/// The missing requirement, as a sentence without its full stop.
pub(crate) fn probe(program: &impl Program) -> Result<(), String> {
    load(program, &Device::open()?).map(|_| ())
}

/// Loads the program, and attaches it to the session.
fn load(program: &impl Program, device: &Device) -> Result<AttachedProgram, String> {
    let Some(object) = program.module_object() else {
        return Err(format!("the program {} has no form for the module", program.name()));
    };
    let settings = [program.page_bytes() + at::PAGES_PAD as u32, program.page_bytes()];
    loader::load(object, &settings.map(u32::to_ne_bytes).concat(), device).map_err(rights::with_missing_admin)
}
