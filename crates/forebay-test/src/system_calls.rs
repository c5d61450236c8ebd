//! System calls of one thread: refused, or counted. A filter of seccomp(2) does it; it stays until the thread ends, and
//! threads and processes that this one starts inherit it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// The calls with which a thread ends, and those of a signal's handler.
const ENDING: [libc::c_long; 8] = [
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_set_robust_list,
];

/// The calls of io_uring.
pub const IO_URING: [libc::c_long; 3] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

static COUNT: AtomicU64 = AtomicU64::new(0);

/// A filter in the kernel's classic BPF.
#[derive(Clone, Debug)]
pub struct Filter(Vec<libc::sock_filter>);

impl Filter {
    /// Returns a filter that makes these calls fail with `errno`.
    pub fn refusing(calls: &[libc::c_long], errno: i32) -> Filter {
        Filter::new(calls, libc::SECCOMP_RET_ERRNO | errno as u32, libc::SECCOMP_RET_ALLOW)
    }

    /// `of_these` is the action for these calls, `of_others` that for all others.
    fn new(calls: &[libc::c_long], of_these: u32, of_others: u32) -> Filter {
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        // The first word of struct seccomp_data is the call's number.
        let mut steps = vec![step(LOAD_WORD, 0, 0, 0)];
        for (index, call) in calls.iter().enumerate() {
            steps.push(step(JUMP_IF_EQUAL, (calls.len() - index) as u8, 0, *call as u32));
        }
        steps.push(step(RETURN, 0, 0, of_others));
        steps.push(step(RETURN, 0, 0, of_these));
        Filter(steps)
    }

    /// Installs it for the calling thread. It makes system calls alone, and allocates nothing.
    ///
    /// # Errors
    /// The system has no such filters, or refuses them.
    pub fn install(&self) -> io::Result<()> {
        let program = libc::sock_fprog { len: self.0.len() as u16, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: prctl(2) reads the program and its steps, which outlive the call. Without new privileges any user may set a
        // filter; it binds this thread and those that it starts.
        unsafe {
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program, 0, 0) != 0
            {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

/// Makes these calls of the calling thread fail with `errno` from now on.
///
/// # Errors
/// The system has no such filters, or refuses them.
pub fn refuse(calls: &[libc::c_long], errno: i32) -> io::Result<()> {
    Filter::refusing(calls, errno).install()
}

/// Counts the calls of the calling thread from now on, and makes all of them fail with ENOSYS, except those with which a
/// thread ends. One thread of the process may do so at a time, and has to end soon after.
///
/// # Errors
/// The system has no such filters, or refuses them.
pub fn count_from_now_on() -> io::Result<()> {
    extern "C" fn counted(_: libc::c_int) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
    COUNT.store(0, Ordering::Relaxed);
    // SAFETY: an empty structure of this kind is valid, and the handler does nothing but count, which is allowed in one.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = counted as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut())
    };
    if installed != 0 {
        return Err(io::Error::last_os_error());
    }
    Filter::new(&ENDING, libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_TRAP).install()
}

/// Returns the calls counted.
pub fn counted() -> u64 {
    COUNT.load(Ordering::Relaxed)
}
