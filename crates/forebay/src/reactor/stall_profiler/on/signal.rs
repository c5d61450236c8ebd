//! The signal that requests a sample from a shard's thread, and its handler.
//!
//! SIGURG is ignored by default and has a meaning only to programs that request it (urgent data of a socket with an owner). So it
//! is used if no other code handles it. The handler stays after the last engine's end. It does nothing unless a sample of a shard's
//! thread was requested, and removing it could remove a handler that the program has installed meanwhile.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;

use super::Pulse;
use super::sample::Registers;

const SIGNAL: libc::c_int = libc::SIGURG;

thread_local! {
    /// The shard whose thread this is. Without a destructor and initialised by the linker: a handler may read
    /// it.
    static SEAT: Cell<*const Pulse> = const { Cell::new(ptr::null()) };
}

/// Sets the shard whose thread this is; null at its end. The pulse stays valid until the next call.
pub(super) fn set_seat(pulse: *const Pulse) {
    SEAT.set(pulse);
}

pub(super) fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Returns whether the signal is blocked on the calling thread.
pub(super) fn is_blocked() -> bool {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: with no new mask the call only fills the set, which is read if it did.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), set.as_mut_ptr()) == 0
            && libc::sigismember(set.as_ptr(), SIGNAL) == 1
    }
}

/// Sends the signal to the thread. The caller knows that the thread has not ended.
pub(super) fn ask(thread: i32) {
    // SAFETY: tgkill(2) has no pointer arguments. The process is this one, the thread one of its shards, and the handler was ours a
    // moment ago; had the program replaced it since, its own handler would run.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
}

/// Installs the handler unless other code has one; the error's sentence names the present handler.
pub(super) fn claim() -> Result<(), String> {
    let known = disposition()?;
    if known == own() {
        return Ok(());
    }
    if known != libc::SIG_DFL {
        return Err(taken(known));
    }
    let mut action = empty();
    action.sa_sigaction = own();
    // An interrupted call of the program's is restarted; a full stack does not matter.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    let mut before = empty();
    // SAFETY: both are whole; the handler has the signature that SA_SIGINFO requires and calls nothing that a
    // handler must not call.
    if unsafe { libc::sigaction(SIGNAL, &action, &mut before) } != 0 {
        return Err(format!("sigaction: {}", std::io::Error::last_os_error()));
    }
    let before_handler = before.sa_sigaction;
    if before_handler != libc::SIG_DFL && before_handler != own() {
        // Another thread or library installed a handler in between.
        // SAFETY: the action just read is put back.
        unsafe { libc::sigaction(SIGNAL, &before, ptr::null_mut()) };
        return Err(taken(before_handler));
    }
    Ok(())
}

/// Returns whether the signal is still ours.
pub(super) fn is_ours() -> bool {
    disposition() == Ok(own())
}

fn own() -> libc::sighandler_t {
    on_signal as *const () as libc::sighandler_t
}

fn taken(by: libc::sighandler_t) -> String {
    let by =
        if by == libc::SIG_IGN { "the program ignores SIGURG" } else { "the program handles SIGURG itself" };
    by.to_owned()
}

fn empty() -> libc::sigaction {
    // SAFETY: plain numbers, a set and an optional function: all zero is a value of it, an empty set with
    // this kernel.
    unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() }
}

fn disposition() -> Result<libc::sighandler_t, String> {
    let mut known = empty();
    // SAFETY: without a new action the call only fills the old one.
    match unsafe { libc::sigaction(SIGNAL, ptr::null(), &mut known) } {
        0 => Ok(known.sa_sigaction),
        _ => Err(format!("sigaction: {}", std::io::Error::last_os_error())),
    }
}

/// The handler. It is async-signal-safe: it reads a thread-local word, some atomics and the stack, and writes into a prepared
/// buffer. It does not allocate, takes no lock, makes no system call (so errno stays) and cannot panic. The signal may arrive
/// without a request, late, or from another process: then it does nothing.
extern "C" fn on_signal(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Ok(seat) = SEAT.try_with(Cell::get) else { return };
    if seat.is_null() || context.is_null() {
        return;
    }
    // SAFETY: with SA_SIGINFO the context is a ucontext_t that lives until the handler returns. The seat's
    // pointer is this thread's own. The thread keeps its target until it has set the pointer to null, and
    // does neither while its handler runs. The registers are this thread's.
    unsafe { (*seat).take(registers(&*context.cast())) };
}

#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let [sp, fp, pc] = [libc::REG_RSP, libc::REG_RBP, libc::REG_RIP]
        .map(|register| context.uc_mcontext.gregs.get(register as usize).copied().unwrap_or(0) as u64);
    Registers { pc, sp, fp }
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let context = &context.uc_mcontext;
    let [fp, lr] = [29, 30].map(|register| context.regs.get(register).copied().unwrap_or(0));
    Registers { pc: context.pc, sp: context.sp, fp, lr }
}
