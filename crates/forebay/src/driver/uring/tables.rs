//! Files and memory that are registered with one ring.

use std::io;
use std::os::fd::RawFd;

use io_uring::{Submitter, types};

use super::memlock::Registered;
use super::{FIXED_FILES_MAX, Keeper, REGIONS_MAX};

/// What one ring has registered, so that requests need not look it up.
pub(super) struct Tables {
    has_files: bool,
    has_regions: bool,
    /// Bit per region: registered with this ring.
    regions: [u64; REGIONS_MAX as usize / 64],
    /// Of these, what this ring pins itself.
    counted: Vec<Registered>,
}

impl Tables {
    /// Makes room for both with a ring; `refused` is told what the kernel does not take, and the remedy.
    pub(super) fn register(
        submitter: &Submitter<'_>,
        mut refused: impl FnMut(&str, io::Error, &str),
    ) -> Tables {
        let has_files = match submitter.register_files_sparse(FIXED_FILES_MAX) {
            Ok(()) => true,
            Err(error) => {
                let remedy = "raise RLIMIT_NOFILE above 1,024, or use Linux 5.19 or later";
                refused("registered files", error, remedy);
                false
            }
        };
        let has_regions = match submitter.register_buffers_sparse(REGIONS_MAX) {
            Ok(()) => true,
            Err(error) => {
                let remedy = "use Linux 5.19 or later, or raise RLIMIT_MEMLOCK";
                refused("registered buffers", error, remedy);
                false
            }
        };
        Tables { has_files, has_regions, regions: [0; REGIONS_MAX as usize / 64], counted: Vec::new() }
    }

    #[inline]
    pub(super) fn has_region(&self, region: u16) -> bool {
        let word = self.regions.get(region as usize / 64).copied().unwrap_or(0);
        word & (1 << (region % 64)) != 0
    }

    pub(super) fn add_file(&self, submitter: &Submitter<'_>, index: u32, fd: RawFd) -> bool {
        self.has_files && index < FIXED_FILES_MAX && submitter.register_files_update(index, &[fd]).is_ok()
    }

    pub(super) fn remove_file(&self, submitter: &Submitter<'_>, index: u32) {
        if self.has_files && index < FIXED_FILES_MAX {
            // A refusal leaves the entry in place: the table keeps the file open, nothing else.
            let _ = submitter.register_files_update(index, &[-1]);
        }
    }

    /// Clones the region from the keeper, which pins it once for all rings. Nothing to do for one that is known.
    pub(super) fn add_region(
        &mut self,
        submitter: &Submitter<'_>,
        keeper: &Keeper,
        index: u16,
        start: *mut u8,
        len: usize,
    ) -> io::Result<()> {
        if !self.has_regions || u32::from(index) >= REGIONS_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        if self.has_region(index) {
            return Ok(());
        }
        let cloned = keeper.register(index, start, len).and_then(|source| {
            submitter.register_buffers_clone_offset(
                source,
                index.into(),
                index.into(),
                1,
                types::CloneBuffersFlags::DST_REPLACE,
            )
        });
        if let Err(error) = cloned {
            // Kernels before 6.13 cannot clone: this ring pins the region itself.
            if error.raw_os_error() == Some(libc::EINVAL) {
                keeper.retire();
            }
            let registered = Registered::count(len)?;
            let buffer = libc::iovec { iov_base: start.cast(), iov_len: len };
            // SAFETY: the region stays mapped while any ring may use it: the arena unmaps only after every shard
            // has ended, and the kernel holds its own pin on the pages beside that.
            unsafe { submitter.register_buffers_update(index.into(), &[buffer], None)? };
            self.counted.push(registered);
        }
        self.regions[index as usize / 64] |= 1 << (index % 64);
        Ok(())
    }

    /// Lets go of the memory, with nothing in flight any more.
    pub(super) fn retire(&mut self, submitter: &Submitter<'_>) {
        self.regions = [0; REGIONS_MAX as usize / 64];
        if std::mem::take(&mut self.has_regions) {
            // A refusal leaves them pinned for as long as the ring lives, nothing else.
            let _ = submitter.unregister_buffers();
            self.counted.clear();
        }
    }
}
