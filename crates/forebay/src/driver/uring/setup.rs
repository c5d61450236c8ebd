//! Making a ring with the best settings that the kernel takes, and registering with it what it takes.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::IoUring;

use super::{ENTER_REGISTERED_RING, FIXED_FILES_MAX, REGIONS_MAX, UringDriver};
use crate::health::Degradation;

/// io_uring_register(2); the io-uring crate does not tell the index that the kernel chose.
const REGISTER_RING_FDS: libc::c_uint = 20;

/// `struct io_uring_rsrc_update` of the kernel's ABI.
#[repr(C)]
struct RsrcUpdate {
    offset: u32,
    resv: u32,
    data: u64,
}

/// A ring for `depth` requests, for the calling thread. The error is the kernel's refusal of the plainest ring.
pub(super) fn build_ring(depth: u32, degraded: &mut Vec<Degradation>) -> io::Result<IoUring> {
    let entries = depth.clamp(8, 4096).next_power_of_two();
    let mut level = 0;
    loop {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_cqsize(entries * 4);
        if level < 3 {
            builder.setup_submit_all();
        }
        match level {
            0 => builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag(),
            1 => builder.setup_coop_taskrun().setup_taskrun_flag().setup_single_issuer(),
            2 => builder.setup_coop_taskrun(),
            _ => &mut builder,
        };
        let refusal = match builder.build(entries) {
            Ok(ring) => return Ok(ring),
            Err(refusal) => refusal,
        };
        if level == 0 {
            degraded.push(Degradation::new(
                "DEFER_TASKRUN",
                format!("the kernel refused it: {refusal}"),
                "use Linux 6.1 or later",
            ));
        }
        // EINVAL says that a flag is unknown; anything else would be said of every ring.
        if level == 3 || refusal.raw_os_error() != Some(libc::EINVAL) {
            return Err(refusal);
        }
        level += 1;
    }
}

impl UringDriver {
    /// A registered ring descriptor saves 55 ns an enter, which pays for the whole asynchronous path at depth 1.
    pub(super) fn register_own_fd(&mut self) {
        let mut update = RsrcUpdate { offset: u32::MAX, resv: 0, data: self.ring.as_raw_fd() as u64 };
        // SAFETY: `update` is the one structure the call names, valid for reading and writing while it runs.
        let registered = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.ring.as_raw_fd(),
                REGISTER_RING_FDS,
                &mut update,
                1,
            )
        };
        if registered == 1 {
            self.enter_fd = update.offset as RawFd;
            self.enter_flags |= ENTER_REGISTERED_RING;
        } else {
            self.degrade("registered ring descriptor", io::Error::last_os_error(), "use Linux 5.18 or later");
        }
    }

    pub(super) fn register_tables(&mut self) {
        match self.ring.submitter().register_files_sparse(FIXED_FILES_MAX) {
            Ok(()) => self.has_fixed_files = true,
            Err(error) => {
                self.degrade(
                    "registered files",
                    error,
                    "raise RLIMIT_NOFILE above 1,024, or use Linux 5.19 or later",
                );
            }
        }
        match self.ring.submitter().register_buffers_sparse(REGIONS_MAX) {
            Ok(()) => self.has_region_table = true,
            Err(error) => {
                self.degrade("registered buffers", error, "use Linux 5.19 or later, or raise RLIMIT_MEMLOCK");
            }
        }
    }

    fn degrade(&mut self, what: &str, why: io::Error, remedy: &str) {
        self.degraded.push(Degradation::new(what, format!("the kernel refused it: {why}"), remedy));
    }
}
