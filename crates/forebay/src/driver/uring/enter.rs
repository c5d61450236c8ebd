//! io_uring_enter(2): the one system call of a turn. The io-uring crate has no call with all these arguments.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use io_uring::{IoUring, cqueue, squeue, types};

const GETEVENTS: u32 = 1 << 0;
const EXT_ARG: u32 = 1 << 3;
const REGISTERED_RING: u32 = 1 << 4;
const NO_IOWAIT: u32 = 1 << 7;

/// io_uring_register(2); the io-uring crate does not return the index that the kernel chose.
const REGISTER_RING_FDS: libc::c_uint = 20;

/// The longest wait; if it passes, a shard finds nothing and waits again. The kernel adds the present time to a limit without a check:
/// beyond 292 years the sum is negative, and the wait ends immediately.
const LONG: Duration = Duration::from_secs(3600);
static LONG_SPAN: types::Timespec = types::Timespec::new().sec(LONG.as_secs());

/// `struct io_uring_getevents_arg` of the kernel's ABI.
#[repr(C)]
struct GetEventsArg {
    sigmask: u64,
    sigmask_sz: u32,
    min_wait_usec: u32,
    ts: u64,
}

/// `struct io_uring_rsrc_update` of the kernel's ABI.
#[repr(C)]
struct RsrcUpdate {
    offset: u32,
    resv: u32,
    data: u64,
}

/// The descriptor and flags with which one ring is entered.
pub(super) struct Door {
    /// The registered index, or the descriptor.
    fd: RawFd,
    flags: u32,
    has_min_wait: bool,
    has_ext_arg: bool,
}

impl Door {
    pub(super) fn of<S: squeue::EntryMarker, C: cqueue::EntryMarker>(ring: &IoUring<S, C>) -> Door {
        let params = ring.params();
        Door {
            fd: ring.as_raw_fd(),
            flags: if params.is_feature_no_iowait() { NO_IOWAIT } else { 0 },
            has_min_wait: params.is_feature_min_timeout(),
            has_ext_arg: params.is_feature_ext_arg(),
        }
    }

    /// Registers the ring's descriptor for the calling thread. That saves 55 ns an enter, which pays for the
    /// whole asynchronous path at depth 1.
    pub(super) fn register(&mut self) -> io::Result<()> {
        let mut update = RsrcUpdate { offset: u32::MAX, resv: 0, data: self.fd as u64 };
        // SAFETY: `update` is the one structure the call names, valid for reading and writing while it runs.
        let registered =
            unsafe { libc::syscall(libc::SYS_io_uring_register, self.fd, REGISTER_RING_FDS, &mut update, 1) };
        if registered != 1 {
            return Err(io::Error::last_os_error());
        }
        self.fd = update.offset as RawFd;
        self.flags |= REGISTERED_RING;
        Ok(())
    }

    /// Both submits and reaps. `GETEVENTS` is always set: with DEFER_TASKRUN nothing is posted without it,
    /// and a polled ring checks its device only then.
    pub(super) fn enter(
        &self,
        to_submit: u32,
        want: u32,
        patience: Option<Duration>,
        limit: Option<Duration>,
    ) -> io::Result<()> {
        let mut flags = self.flags | GETEVENTS;
        let span = limit.map(|limit| types::Timespec::from(limit.min(LONG)));
        let mut argument = GetEventsArg { sigmask: 0, sigmask_sz: 0, min_wait_usec: 0, ts: 0 };
        let mut want = want;
        let mut extended = false;
        if want > 0 && self.has_ext_arg {
            if let Some(span) = &span {
                argument.ts = std::ptr::from_ref(span) as u64;
                extended = true;
            }
            if let Some(patience) = patience.filter(|_| want > 1) {
                if self.has_min_wait {
                    argument.min_wait_usec = patience.as_micros() as u32;
                    extended = true;
                    // Without a limit the call would return ETIME if patience ends without a completion, and
                    // a second call would have to wait for the first completion.
                    if argument.ts == 0 {
                        argument.ts = std::ptr::from_ref(&LONG_SPAN) as u64;
                    }
                } else {
                    // Without a bound, a wait for several completions could outlast the last request of a
                    // batch.
                    want = 1;
                }
            }
        } else if want > 1 {
            want = 1;
        }
        let (pointer, size): (*const GetEventsArg, usize) = if extended {
            flags |= EXT_ARG;
            (&argument, size_of::<GetEventsArg>())
        } else {
            (std::ptr::null(), 0)
        };
        // SAFETY: io_uring_enter(2) with this door's ring; `argument` and `span` outlive the call. Queued entries
        // name memory and files that their slots own.
        let entered = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, self.fd, to_submit, want, flags, pointer, size)
        };
        if entered >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // EINTR: a signal; ETIME: the limit passed; EBUSY and EAGAIN: the completion queue must be reaped or memory is short,
            // and the entries not accepted stay queued for the next turn.
            Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        }
    }
}
