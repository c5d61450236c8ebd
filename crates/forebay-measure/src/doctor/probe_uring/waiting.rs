//! Ways to wait for a ring, and to wake a waiter.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};

use super::{ENTRIES, GROUP, newer_kernel, push};
use forebay_report::check::Check;

// Kernel constants that the crate does not export.
const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_NO_IOWAIT: u32 = 1 << 7;
const REGISTER_SEND_MSG_RING: libc::c_long = 31;

/// `struct io_uring_getevents_arg` of the kernel.
#[repr(C)]
struct GetEventsArg {
    sigmask: u64,
    sigmask_sz: u32,
    min_wait_usec: u32,
    ts: u64,
}

/// `struct __kernel_timespec` of the kernel.
#[repr(C)]
struct KernelTimespec {
    tv_sec: i64,
    tv_nsec: i64,
}

pub(super) fn min_wait() -> Check {
    // Waits for two completions, of which only one comes: without min_wait the call would last until the timeout.
    let timeout = KernelTimespec { tv_sec: 1, tv_nsec: 0 };
    let argument = GetEventsArg {
        sigmask: 0,
        sigmask_sz: 0,
        min_wait_usec: 100,
        ts: std::ptr::from_ref(&timeout).addr() as u64,
    };
    let result = IoUring::new(ENTRIES).and_then(|mut ring| {
        push(&mut ring.submission(), &opcode::Nop::new().build())?;
        let started = Instant::now();
        // SAFETY: one entry is queued; the argument and the time it points to live until the call returns.
        unsafe {
            ring.submitter().enter(1, 2, ENTER_GETEVENTS | ENTER_EXT_ARG, Some(&argument))?;
        }
        Ok(started.elapsed())
    });
    match result {
        Ok(elapsed) if elapsed < Duration::from_millis(500) => Check::ok(
            GROUP,
            "min_wait",
            "a wait for two completions ended early with one: batching costs no latency at the end",
        ),
        Ok(_) => Check::degraded(GROUP, "min_wait", "accepted, but it had no effect", newer_kernel("6.12")),
        Err(error) => Check::degraded(
            GROUP,
            "min_wait",
            format!(
                "refused: {error}; the shard waits for one completion at a time (about 10 % at depth 32)"
            ),
            newer_kernel("6.12"),
        ),
    }
}

pub(super) fn no_iowait() -> Check {
    let result = IoUring::new(ENTRIES).and_then(|mut ring| {
        push(&mut ring.submission(), &opcode::Nop::new().build())?;
        // SAFETY: one entry is queued; no argument is passed.
        unsafe { ring.submitter().enter::<libc::sigset_t>(1, 1, ENTER_GETEVENTS | ENTER_NO_IOWAIT, None) }
    });
    match result {
        Ok(_) => Check::ok(GROUP, "no_iowait", "accepted: waiting for I/O is not shown as iowait of the CPU"),
        Err(error) => Check::degraded(
            GROUP,
            "no_iowait",
            format!("refused: {error}; waiting shards count as iowait and raise the CPU's frequency"),
            newer_kernel("6.15"),
        ),
    }
}

pub(super) fn msg_ring() -> Check {
    let result = IoUring::new(ENTRIES).and_then(|mut sender| {
        let mut receiver = IoUring::new(ENTRIES)?;
        let message = opcode::MsgRingData::new(types::Fd(receiver.as_raw_fd()), 7, 1, None).build();
        push(&mut sender.submission(), &message)?;
        sender.submit_and_wait(1)?;
        arrived(&mut receiver)
    });
    match result {
        Ok(()) => Check::ok(GROUP, "msg_ring", "one ring sent a message to another"),
        Err(error) => Check::degraded(
            GROUP,
            "msg_ring",
            format!("refused: {error}; shards wake each other through an eventfd"),
            newer_kernel("5.18"),
        ),
    }
}

pub(super) fn msg_ring_without_ring() -> Check {
    let result = IoUring::new(ENTRIES).and_then(|mut receiver| {
        let message = opcode::MsgRingData::new(types::Fd(receiver.as_raw_fd()), 7, 1, None).build();
        // SAFETY: with a descriptor of -1 this call takes one submission entry, which `message` is and which lives until
        // the call returns.
        let returned = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                -1 as libc::c_long,
                REGISTER_SEND_MSG_RING,
                std::ptr::from_ref(&message),
                1 as libc::c_long,
            )
        };
        if returned < 0 {
            return Err(io::Error::last_os_error());
        }
        arrived(&mut receiver)
    });
    match result {
        Ok(()) => Check::ok(
            GROUP,
            "msg_ring_from_any_thread",
            "a thread without a ring sent a message to one: the cheapest way to wake a shard",
        ),
        Err(error) => Check::degraded(
            GROUP,
            "msg_ring_from_any_thread",
            format!("refused: {error}; other threads wake a shard through an eventfd (about 12 us more)"),
            newer_kernel("6.13"),
        ),
    }
}

fn arrived(ring: &mut IoUring) -> io::Result<()> {
    match ring.completion().next() {
        Some(entry) if entry.user_data() == 1 && entry.result() == 7 => Ok(()),
        Some(entry) => Err(io::Error::from_raw_os_error(entry.result().saturating_neg())),
        None => Err(io::Error::other("the message did not arrive")),
    }
}
