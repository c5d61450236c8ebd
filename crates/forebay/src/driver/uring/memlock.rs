//! The share of a limit on locked memory that this process registers with its rings.
//!
//! Registered memory counts against RLIMIT_MEMLOCK, for all rings of a user together. Other rings need some of it as well: a
//! session of `forebay-kernel` that opened before an engine's first read could not open after it, because the arena had used
//! everything. So half of a limit stays free.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

/// Bytes that the engines of this process have registered under a limit. Memory that rings clone counts once.
static REGISTERED: AtomicU64 = AtomicU64::new(0);

/// Returns the most bytes that this process may register, or `None` if locked memory is not limited.
pub(crate) fn allowance() -> Option<u64> {
    let limit = getrlimit(Resource::Memlock).current?;
    (!exceeds(limit)).then_some(limit / 2)
}

/// Returns whether this process may lock more than `limit`, because of CAP_IPC_LOCK. It tests by locking a
/// mapping, since a capability inside a user namespace does not lift the limit. The mapping has no access
/// rights, so no page of it ever exists.
fn exceeds(limit: u64) -> bool {
    let Some(bytes) = usize::try_from(limit).ok().and_then(|limit| limit.checked_add(1 << 16)) else {
        return false;
    };
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::LOCKED;
    // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists.
    match unsafe { mm::mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags) } {
        Ok(mapping) => {
            // SAFETY: mapped above with this length, and not in use. If the call fails, the addresses stay
            // reserved.
            let _ = unsafe { mm::munmap(mapping, bytes) };
            true
        }
        Err(_) => false,
    }
}

/// Memory that is registered with a ring, counted for as long as this value lives.
#[derive(Debug)]
pub(super) struct MemlockCharge(u64);

impl MemlockCharge {
    /// Adds `bytes` to the count.
    ///
    /// # Errors
    /// Fails if they would exceed this process's share of RLIMIT_MEMLOCK.
    pub(super) fn count(bytes: usize) -> io::Result<MemlockCharge> {
        let bytes = bytes as u64;
        let most = allowance();
        let counted = REGISTERED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            before.checked_add(bytes).filter(|after| most.is_none_or(|most| *after <= most))
        });
        match counted {
            Ok(_) => Ok(MemlockCharge(bytes)),
            Err(before) => {
                let half = most.unwrap_or(0);
                Err(io::Error::other(format!(
                    "RLIMIT_MEMLOCK allows this user {} bytes, of which Forebay registers half at most ({before} of {half} bytes \
                     are registered); the rest is for further rings, such as those of walks inside the kernel",
                    half.saturating_mul(2)
                )))
            }
        }
    }
}

impl Drop for MemlockCharge {
    fn drop(&mut self) {
        REGISTERED.fetch_sub(self.0, Ordering::Relaxed);
    }
}
