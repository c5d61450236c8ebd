//! The ring that all shards clone their registered memory from.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::IoUring;

use super::REGIONS_MAX;

/// Pins each arena region once for all shards. It has no SINGLE_ISSUER: cloning from another thread's
/// SINGLE_ISSUER ring is refused with EEXIST.
pub(crate) struct Keeper {
    ring: Mutex<Option<(IoUring, [u64; REGIONS_MAX as usize / 64])>>,
}

impl Keeper {
    /// `wanted` is false when no shard will have a ring; a refusal means that shards pin regions themselves.
    pub(crate) fn new(wanted: bool) -> Arc<Keeper> {
        let ring = wanted.then(|| IoUring::builder().dontfork().build(2).ok()).flatten();
        let ring = ring.filter(|ring| ring.submitter().register_buffers_sparse(REGIONS_MAX).is_ok());
        Arc::new(Keeper { ring: Mutex::new(ring.map(|ring| (ring, [0; REGIONS_MAX as usize / 64]))) })
    }

    /// The ring to clone from, after the region is registered with it.
    pub(super) fn register(&self, index: u16, start: *mut u8, len: usize) -> io::Result<RawFd> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((ring, known)) = ring.as_mut() else {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        };
        let bit = 1 << (index % 64);
        if known[index as usize / 64] & bit == 0 {
            let buffer = libc::iovec { iov_base: start.cast(), iov_len: len };
            // SAFETY: as in `UringDriver::register_region`; the keeper goes with the last shard.
            unsafe { ring.submitter().register_buffers_update(index.into(), &[buffer], None)? };
            known[index as usize / 64] |= bit;
        }
        Ok(ring.as_raw_fd())
    }
}
