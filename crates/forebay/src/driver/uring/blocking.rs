//! Durable writes that the shard's thread makes itself, instead of the ring.

use super::UringDriver;
use crate::driver::IoRequest;
use crate::driver::threads::transfer;

impl UringDriver {
    /// Executes a write and its sync on this thread, the shard's.
    ///
    /// # Safety
    /// As [`Driver::submit`](crate::driver::Driver::submit).
    #[cold]
    pub(super) unsafe fn make(&mut self, request: &IoRequest) {
        // Requests queued before must be with the device meanwhile. A refusal leaves them queued.
        if !self.ring.submission().is_empty() {
            let _ = self.enter(0, None, None);
        }
        // SAFETY: the caller's promise; the descriptor is the file's own, not that of the ring's table.
        let result = unsafe { transfer::run(request) };
        self.made.push((request.key, result));
    }
}
