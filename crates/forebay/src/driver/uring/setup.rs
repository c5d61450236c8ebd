//! Creation of rings with the best settings that the kernel accepts.

use std::io;
use std::mem;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use io_uring::{IoUring, Parameters, cqueue, squeue};

use crate::base::health::Degradation;
use crate::io::config::Polling;

/// `IORING_SETUP_HYBRID_IOPOLL` of linux/io_uring.h, which the io-uring crate does not offer.
const HYBRID_IOPOLL: u32 = 1 << 17;

/// `struct io_uring_params` of the kernel's ABI as 32-bit words, aligned as the structure is. The constants
/// below index its first three.
#[repr(C, align(8))]
struct SetupWords([u32; 30]);
const SQ_ENTRIES: usize = 0;
const CQ_ENTRIES: usize = 1;
const FLAGS: usize = 2;

const _: () = assert!(size_of::<SetupWords>() == size_of::<Parameters>(), "the kernel's ABI");
const _: () = assert!(align_of::<SetupWords>() == align_of::<Parameters>(), "the kernel's ABI");

/// Creates a ring for `depth` requests, for the calling thread; `polled` requests polled completions. The
/// error is the kernel's refusal of the plainest ring.
pub(super) fn build_ring<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    depth: u32,
    polled: bool,
    mut degraded: impl FnMut(Degradation),
) -> io::Result<IoUring<S, C>> {
    let entries = depth.clamp(8, 4096).next_power_of_two();
    let mut level = 0;
    loop {
        let mut builder = IoUring::<S, C>::builder();
        builder.dontfork().setup_clamp().setup_cqsize(entries * 4);
        if polled {
            builder.setup_iopoll();
        }
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
            degraded(Degradation::new(
                "DEFER_TASKRUN",
                format!("the kernel refused it: {refusal}"),
                "use Linux 6.1 or later",
            ));
        }
        // EINVAL means that a flag is unknown; any other error would occur with every ring.
        if level == 3 || refusal.raw_os_error() != Some(libc::EINVAL) {
            return Err(refusal);
        }
        level += 1;
    }
}

/// Creates a ring for `depth` requests that several threads enter, one after the other. The error is the kernel's refusal.
///
/// Without `COOP_TASKRUN`: with it the completions of a thread that computes waited for 2.4 ms (Linux 6.18), without it 0.45 ms.
#[cfg(feature = "tokio")]
pub(super) fn build_shared_ring(depth: u32) -> io::Result<IoUring> {
    let entries = depth.clamp(8, 4096).next_power_of_two();
    let build = |submits_all: bool| {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_cqsize(entries * 4);
        if submits_all {
            builder.setup_submit_all();
        }
        builder.build(entries)
    };
    build(true).or_else(|_| build(false))
}

/// Creates a ring with polled completions, in the given mode. If the kernel cannot sleep before it polls,
/// this is reported, and the ring polls without pause.
pub(super) fn build_polled(
    depth: u32,
    polling: Polling,
    degraded: impl FnOnce(Degradation),
) -> io::Result<IoUring> {
    let ring = build_ring(depth, true, drop)?;
    if polling != Polling::Hybrid {
        return Ok(ring);
    }
    Ok(hybrid_of(&ring).unwrap_or_else(|error| {
        degraded(refused("HYBRID_IOPOLL", &error, "use Linux 6.13 or later"));
        ring
    }))
}

/// Creates a copy of this ring that sleeps before it polls. Unlike the builder's rings, its memory is also in
/// a child of fork(2) until that calls execve(2); the child does not touch it.
fn hybrid_of(ring: &IoUring) -> io::Result<IoUring> {
    // SAFETY: `Parameters` is a transparent wrapper over the kernel's structure, of this size and alignment (asserted
    // above): integers only, without padding.
    let known: SetupWords = unsafe { mem::transmute(ring.params().clone()) };
    let mut words = SetupWords([0; 30]);
    for word in [SQ_ENTRIES, CQ_ENTRIES] {
        words.0[word] = known.0[word];
    }
    words.0[FLAGS] = known.0[FLAGS] | HYBRID_IOPOLL;
    // SAFETY: the words are the structure that the call reads and writes.
    let made = unsafe { libc::syscall(libc::SYS_io_uring_setup, words.0[SQ_ENTRIES], words.0.as_mut_ptr()) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just made this descriptor, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(made as i32) };
    // SAFETY: as above, in the other direction; the kernel has filled the structure in.
    let parameters: Parameters = unsafe { mem::transmute(words) };
    // SAFETY: the descriptor is this new ring's and is owned. The parameters are those that the kernel filled
    // in for it, and the entries have the sizes of the ring whose flags these are.
    unsafe { IoUring::from_fd(fd.into_raw_fd(), parameters) }
}

/// Returns the degradation for a feature that the kernel refused.
pub(super) fn refused(what: &str, why: &io::Error, remedy: &str) -> Degradation {
    Degradation::new(what, format!("the kernel refused it: {why}"), remedy)
}
