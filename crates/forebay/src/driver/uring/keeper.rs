//! The ring that all shards clone their registered memory from.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::IoUring;

use super::REGIONS_MAX;
use super::memlock::MemlockCharge;

/// Pins each arena region once for all shards. It has no SINGLE_ISSUER: cloning from another thread's
/// SINGLE_ISSUER ring is refused with EEXIST.
pub(crate) struct Keeper {
    ring: Mutex<Option<KeeperRing>>,
}

/// The ring that the memory is registered with.
struct KeeperRing {
    ring: IoUring,
    /// One bit per region, set once the region is registered.
    known: [u64; REGIONS_MAX as usize / 64],
    charges: Vec<MemlockCharge>,
}

impl Keeper {
    /// Creates the keeper. `wanted` is false if no shard will have a ring. If the kernel refuses, shards pin
    /// regions themselves.
    pub(crate) fn new(wanted: bool) -> Arc<Keeper> {
        let ring = wanted.then(|| IoUring::builder().dontfork().build(2).ok()).flatten();
        let ring = ring.filter(|ring| ring.submitter().register_buffers_sparse(REGIONS_MAX).is_ok());
        let ring =
            ring.map(|ring| KeeperRing { ring, known: [0; REGIONS_MAX as usize / 64], charges: Vec::new() });
        Arc::new(Keeper { ring: Mutex::new(ring) })
    }

    /// Registers the region with the keeper's ring, and returns that ring to clone from.
    pub(super) fn register(&self, index: u16, start: *mut u8, len: usize) -> io::Result<RawFd> {
        let mut own = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(KeeperRing { ring, known, charges }) = own.as_mut() else {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        };
        let bit = 1 << (index % 64);
        if known[index as usize / 64] & bit == 0 {
            let charge = MemlockCharge::count(len)?;
            let buffer = libc::iovec { iov_base: start.cast(), iov_len: len };
            // SAFETY: as in `UringDriver::register_region`; the keeper is dropped with the last shard.
            unsafe { ring.submitter().register_buffers_update(index.into(), &[buffer], None)? };
            known[index as usize / 64] |= bit;
            charges.push(charge);
        }
        Ok(ring.as_raw_fd())
    }

    /// Stops registering: this kernel cannot clone. Memory that the keeper pinned would count twice, to no
    /// benefit.
    pub(super) fn retire(&self) {
        *self.ring.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
