//! Random numbers: a small generator for offsets and fresh seeds from the kernel.

use crate::content::PAGE_BYTES;

/// xorshift64*: two nanoseconds a number, good enough to spread offsets.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// Returns a generator for `stream` (a task or slot) of the sample with this `seed`.
    pub(crate) fn new(seed: u64, stream: usize) -> Self {
        // Through the content's mixing function, so that neighbouring streams do not start alike.
        Self(crate::content::word(seed ^ (stream as u64).rotate_left(40)) | 1)
    }

    /// Returns the next 64 random bits.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a number below `limit`.
    #[inline]
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns the offset of a page of a file of `file_bytes` bytes.
    #[inline]
    pub(crate) fn page_offset(&mut self, file_bytes: u64) -> u64 {
        self.below(file_bytes / PAGE_BYTES) * PAGE_BYTES
    }
}

/// Returns a seed that no earlier sample had. The host caches the pages that an earlier sample read, and a
/// shared seed made later rows two to three times faster than they are.
pub(crate) fn fresh_seed() -> u64 {
    let mut bytes = [0_u8; 8];
    // SAFETY: `bytes` is eight writable bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 {
        return u64::from_le_bytes(bytes);
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(32)
}
