//! Waiting for a ring under valgrind.
//!
//! Valgrind runs one thread at a time, and valgrind 3.19 does not know that io_uring_enter(2) may block: the shard would sleep with
//! all other threads shut out, for ever. The engine makes that call through the C library's `syscall`, which this program therefore
//! defines: a wait becomes several short waits with pauses between them in which other threads run. Callgrind does not count the
//! instructions in [`forebay_ring_enter`], so the way of waiting is in no figure; about ten instructions a system call stay in.

use std::ffi::{CStr, c_long};
use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const GETEVENTS: c_long = 1 << 0;
const EXT_ARG: c_long = 1 << 3;
/// The longest time that one wait blocks the other threads.
const SHORT: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 200_000 };
/// The time that the other threads then have.
const REST: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };

type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;

/// `struct io_uring_getevents_arg` of the kernel's ABI.
#[repr(C)]
#[derive(Clone, Copy)]
struct Argument {
    sigmask: u64,
    sigmask_sz: u32,
    min_wait_usec: u32,
    ts: u64,
}

/// Returns the C library's own function.
fn real() -> Syscall {
    static REAL: OnceLock<Syscall> = OnceLock::new();
    *REAL.get_or_init(|| {
        const NAME: &CStr = c"syscall";
        // SAFETY: the C library exports a function of this name and type.
        unsafe {
            let found = libc::dlsym(libc::RTLD_NEXT, NAME.as_ptr());
            std::mem::transmute::<*mut libc::c_void, Syscall>(found)
        }
    })
}

/// Replaces the C library's variadic function. Integers are passed in the same way on the platforms of io_uring. Missing arguments
/// have arbitrary values, which the kernel does not read.
///
/// # Safety
/// As syscall(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: the caller's promise is passed on unchanged.
    unsafe {
        if number == libc::SYS_io_uring_enter && c > 0 {
            return forebay_ring_enter(a, b, c, d, e, f);
        }
        real()(number, a, b, c, d, e, f)
    }
}

/// Enters the ring, with a wait that is cut into short waits.
///
/// # Safety
/// As io_uring_enter(2).
#[inline(never)]
unsafe fn forebay_ring_enter(
    ring: c_long,
    submit: c_long,
    want: c_long,
    flags: c_long,
    argument: c_long,
    argument_bytes: c_long,
) -> c_long {
    let enter = |submit: c_long, want: c_long, flags: c_long, argument: *const Argument| {
        let bytes = if argument.is_null() { 0 } else { size_of::<Argument>() };
        // SAFETY: the caller's promise; `argument` is null or points to the structure that `flags` name.
        unsafe { real()(libc::SYS_io_uring_enter, ring, submit, want, flags, argument, bytes) }
    };
    let mut short = Argument { sigmask: 0, sigmask_sz: 0, min_wait_usec: 0, ts: 0 };
    let mut limit = Duration::MAX;
    if flags & EXT_ARG != 0 {
        debug_assert_eq!(argument_bytes as usize, size_of::<Argument>());
        // SAFETY: with this flag the caller passes such an argument, and its time is null or a time.
        unsafe {
            short = *(argument as *const Argument);
            if let Some(ts) = (short.ts as *const libc::timespec).as_ref() {
                limit = Duration::new(ts.tv_sec as u64, ts.tv_nsec as u32);
            }
        }
    }
    let submitted = enter(submit, 0, (flags & !EXT_ARG) | GETEVENTS, ptr::null());
    if submitted < 0 {
        return submitted;
    }
    short.ts = ptr::from_ref(&SHORT) as u64;
    let began = Instant::now();
    loop {
        let waited = enter(0, want, flags | EXT_ARG, &raw const short);
        if waited >= 0 {
            return submitted;
        }
        // SAFETY: the C library's place for this thread's error; the time is a valid one.
        unsafe {
            if *libc::__errno_location() != libc::ETIME || began.elapsed() >= limit {
                return if submitted > 0 { submitted } else { waited };
            }
            libc::nanosleep(&REST, ptr::null_mut());
        }
    }
}
