//! Files and memory that are registered with one ring.

use std::io;
use std::os::fd::RawFd;

use io_uring::{Submitter, types};

use super::memlock::MemlockCharge;
use super::{FIXED_FILES_MAX, Keeper, REGIONS_MAX};
use crate::driver::IoRequest;

/// Files and regions registered with one ring, so that requests need not look them up.
pub(super) struct Tables {
    has_files: bool,
    has_regions: bool,
    /// The regions that are registered with this ring, by index: start address and length, 0 if unregistered.
    regions: Vec<(usize, usize)>,
    /// The share of these regions that this ring pins itself.
    charges: Vec<MemlockCharge>,
}

impl Tables {
    /// Reserves both tables of a ring; `refused` is called with each feature that the kernel refuses, and the
    /// remedy.
    pub(super) fn register(
        submitter: &Submitter<'_>,
        mut refused: impl FnMut(&str, io::Error, &str),
    ) -> Tables {
        let has_files = match submitter.register_files_sparse(FIXED_FILES_MAX) {
            Ok(()) => true,
            Err(error) => {
                let remedy = match error.raw_os_error() {
                    // The table is longer than the process may have files open.
                    Some(libc::EMFILE) => "raise the limit of open files (ulimit -n) to 1,024 or more",
                    Some(libc::ENOMEM) => "raise RLIMIT_MEMLOCK (ulimit -l), or free memory",
                    _ => "use Linux 5.19 or later",
                };
                refused("registered files", error, remedy);
                false
            }
        };
        let has_regions = match submitter.register_buffers_sparse(REGIONS_MAX) {
            Ok(()) => true,
            Err(error) => {
                let remedy = match error.raw_os_error() {
                    Some(libc::ENOMEM) => "raise RLIMIT_MEMLOCK (ulimit -l), or free memory",
                    _ => "use Linux 5.19 or later",
                };
                refused("registered buffers", error, remedy);
                false
            }
        };
        Tables { has_files, has_regions, regions: Vec::new(), charges: Vec::new() }
    }

    /// Returns the index of the registered region that contains a request's memory. Memory of another engine has that engine's
    /// index, so the address decides: memory outside the region is passed by its address, unregistered.
    #[inline]
    pub(super) fn region_of(&self, request: &IoRequest) -> Option<u16> {
        let (index, memory) = (request.region?, request.memory?);
        let (start, len) = *self.regions.get(usize::from(index))?;
        (memory.addr().get().wrapping_sub(start) < len).then_some(index)
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

    /// Clones the region from the keeper, which pins it once for all rings. Does nothing if it is already
    /// registered.
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
        let place = usize::from(index);
        if self.regions.get(place).is_some_and(|(_, len)| *len > 0) {
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
            let charge = MemlockCharge::count(len)?;
            let buffer = libc::iovec { iov_base: start.cast(), iov_len: len };
            // SAFETY: the region stays mapped while any ring may use it: the arena unmaps only after every shard has ended, and the
            // kernel also pins the pages itself.
            unsafe { submitter.register_buffers_update(index.into(), &[buffer], None)? };
            self.charges.push(charge);
        }
        if self.regions.len() <= place {
            self.regions.resize(place + 1, (0, 0));
        }
        self.regions[place] = (start.addr(), len);
        Ok(())
    }

    /// Releases the memory, with nothing in flight any more.
    pub(super) fn retire(&mut self, submitter: &Submitter<'_>) {
        self.regions.clear();
        if std::mem::take(&mut self.has_regions) {
            // A refusal leaves them pinned for as long as the ring lives, nothing else.
            let _ = submitter.unregister_buffers();
            self.charges.clear();
        }
    }
}
