//! Ctrl-C and SIGTERM: noted, so that everything this program added is removed on the way out.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Has SIGINT, SIGTERM and SIGHUP noted from now on, instead of ending the process.
pub(crate) fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: an all-zero sigaction is a valid value of a plain C struct.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        // SAFETY: the handler only stores to an atomic, which is allowed in a signal handler.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Fails when a signal was noted.
///
/// # Errors
/// "interrupted", for the caller to pass on so that guards clean up.
pub(crate) fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted; the test files and devices of this run are removed");
    }
    Ok(())
}
