//! The limit of a file's length that a process may have (RLIMIT_FSIZE), and its signal.

use rustix::process::{Resource, getrlimit};

/// Returns whether a write that ends there stays within the limit. Beyond it the kernel sends SIGXFSZ to the thread that submits.
#[inline]
pub(crate) fn is_within_size_limit(end: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|limit| end <= limit)
}

/// Blocks SIGXFSZ on the calling thread, one of the engine's.
///
/// The kernel sends it to the thread whose write or truncation crosses RLIMIT_FSIZE, and by default it ends
/// the process. Blocked, it stays pending without effect, and the operation fails with EFBIG. Every other
/// signal stays as the program has set it, because profilers and other tools rely on that.
pub(crate) fn shield_thread() {
    // SAFETY: sigemptyset(3) makes `set` a set before it is used; pthread_sigmask(3) changes this thread's mask only.
    unsafe {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}
