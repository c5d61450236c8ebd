//! Requests to the kernel's scheduler, for the calling thread only.

use std::cell::Cell;
use std::io;

/// The shortest slice that the kernel grants.
const SLICE_NS: u64 = 100_000;

/// The remaining properties of a thread that got a short slice.
pub(super) struct PromptThread {
    /// The nice value, where it is higher than the process's and could not be lowered.
    pub(super) heavier: Option<i32>,
}

/// `struct sched_attr` of the kernel's ABI, in its first version; sched_setattr(2).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// The slice of an ordinary thread. 0 where the kernel has no slices, and for the kernel's own choice.
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

impl Attributes {
    fn of_thread() -> io::Result<Attributes> {
        let mut attributes = Attributes::default();
        let size = size_of::<Attributes>();
        // SAFETY: the structure is valid for writes of the `size` that is passed; 0 names the calling thread.
        match unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &mut attributes, size, 0) } {
            0 => Ok(attributes),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn set_for_thread(mut self) -> io::Result<()> {
        self.size = size_of::<Attributes>() as u32;
        // SAFETY: the structure is valid for reads of the size in its own field; 0 names the calling thread.
        match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &self, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn is_real_time(&self) -> bool {
        [libc::SCHED_FIFO, libc::SCHED_RR].contains(&(self.policy as i32))
    }
}

thread_local! {
    static BEFORE: Cell<Option<Attributes>> = const { Cell::new(None) };
}

/// The scheduling attributes of a thread before it became urgent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before(Attributes);

impl Before {
    /// Returns the calling thread's earlier attributes, if it is an urgent one.
    pub(crate) fn of_thread() -> Option<Before> {
        BEFORE.get().map(Before)
    }

    /// Gives the calling thread these attributes. Lowering is always allowed; where it fails, the thread
    /// stays urgent.
    pub(crate) fn restore(self) {
        let _ = Attributes { flags: 0, ..self.0 }.set_for_thread();
    }
}

/// Sets `SCHED_FIFO` with priority 1, unless the thread inherited a real-time policy from the program.
pub(super) fn real_time() -> io::Result<()> {
    let before = Attributes::of_thread()?;
    if before.is_real_time() {
        return Ok(());
    }
    Attributes { policy: libc::SCHED_FIFO as u32, priority: 1, ..Attributes::default() }.set_for_thread()?;
    // Some sandboxes accept the call and do nothing.
    if !Attributes::of_thread()?.is_real_time() {
        return Err(io::Error::other("it had no effect"));
    }
    BEFORE.set(Some(before));
    Ok(())
}

/// Sets the short slice and the nice value of the process, unless the program made the thread a real-time
/// one.
pub(super) fn prompt() -> io::Result<PromptThread> {
    let before = Attributes::of_thread()?;
    if before.is_real_time() {
        return Ok(PromptThread { heavier: None });
    }
    let process = rustix::process::getpriority_process(Some(rustix::process::getpid()));
    let nice = process.map_or(before.nice, |process| process.min(before.nice));
    let wanted =
        Attributes { policy: libc::SCHED_OTHER as u32, nice, runtime_ns: SLICE_NS, ..Attributes::default() };
    let mut heavier = None;
    if let Err(refusal) = wanted.set_for_thread() {
        if nice == before.nice {
            return Err(refusal);
        }
        Attributes { nice: before.nice, ..wanted }.set_for_thread()?;
        heavier = Some(before.nice);
    }
    // A kernel without slices accepts the call and ignores the number.
    match Attributes::of_thread()?.runtime_ns {
        1..=SLICE_NS => {
            BEFORE.set(Some(before));
            Ok(PromptThread { heavier })
        }
        0 => Err(io::Error::other("it knows no slices")),
        slice_ns => Err(io::Error::other(format!("the slice is still {slice_ns} ns"))),
    }
}

/// Raises the nice value of the calling thread to `nice`, that is, lowers its weight.
pub(super) fn lower_nice(nice: i32) {
    // On Linux this system call takes a thread id; `None` is the calling thread.
    if rustix::process::getpriority_process(None).is_ok_and(|now| now < nice) {
        let _ = rustix::process::setpriority_process(None, nice);
    }
}
