//! Wake-ups of a shard that waits in its ring.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};

use io_uring::{opcode, types};

use super::{UringDriver, WAKE_DATA};

/// io_uring_register(2); the io-uring crate has no call for this operation that works without a ring.
const REGISTER_SEND_MSG_RING: libc::c_uint = 31;

/// Ends a wait of one ring from any thread.
#[derive(Debug)]
pub(crate) struct UringWake {
    /// A duplicate of the ring's descriptor, so that it means this ring even after the shard has closed its
    /// own.
    ring: OwnedFd,
    /// Present if the kernel cannot post to a ring from a thread without a ring (before 6.13).
    pub(super) event: Option<OwnedFd>,
    /// The event descriptor of a second ring in which the shard may sleep, if any.
    also: OnceLock<OwnedFd>,
}

impl UringWake {
    pub(super) fn new(ring: RawFd) -> io::Result<Arc<UringWake>> {
        // SAFETY: the ring's descriptor is open; the result is checked before it is owned.
        let ring = match unsafe { libc::fcntl(ring, libc::F_DUPFD_CLOEXEC, 3) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: a fresh descriptor without another owner.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        let mut wake = UringWake { ring, event: None, also: OnceLock::new() };
        // Probed by calling: the message ends up in the ring's queue and is skipped there.
        if wake.post().is_err() {
            wake.event = Some(event_descriptor()?);
        }
        Ok(Arc::new(wake))
    }

    /// Returns the descriptor that every wake-up writes to from now on, for a second ring.
    pub(super) fn also(&self) -> io::Result<&OwnedFd> {
        if self.also.get().is_none() {
            let event = event_descriptor()?;
            // Only the shard's thread gets here.
            let _ = self.also.set(event);
        }
        self.also.get().ok_or_else(|| io::Error::from(io::ErrorKind::Other))
    }

    pub(crate) fn wake(&self) {
        match &self.event {
            None => {
                let _ = self.post();
            }
            Some(event) => signal(event),
        }
        // The shard may sleep in either of the two rings.
        if let Some(also) = self.also.get() {
            signal(also);
        }
    }

    /// Posts a completion without a ring of one's own (`IORING_REGISTER_SEND_MSG_RING`, Linux 6.13). From
    /// wake to run it takes 24 us, where an event descriptor takes 36.
    fn post(&self) -> io::Result<()> {
        let entry = opcode::MsgRingData::new(types::Fd(self.ring.as_raw_fd()), 0, WAKE_DATA, None).build();
        // SAFETY: `entry` is one submission entry, which the call reads before it returns.
        let posted = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                -1,
                REGISTER_SEND_MSG_RING,
                std::ptr::from_ref(&entry),
                1,
            )
        };
        if posted < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn event_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: eventfd(2) has no pointer arguments; the result is checked before it is owned.
    match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: a fresh descriptor without another owner.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn signal(event: &OwnedFd) {
    let one = 1u64;
    // SAFETY: eight readable bytes, as eventfd(2) requires. It fails only if the counter is full, and then a
    // wake-up is pending anyway.
    let _ = unsafe { libc::write(event.as_raw_fd(), std::ptr::from_ref(&one).cast(), 8) };
}

impl UringDriver {
    /// Keeps a read of the event descriptor in flight without MSG_RING, so that a write to it ends a wait.
    pub(super) fn arm_wake(&mut self) {
        let Some(event) = &self.wake.event else { return };
        let target = self.wake_read.get_or_insert_with(|| Box::new(0));
        let entry =
            opcode::Read::new(types::Fd(event.as_raw_fd()), std::ptr::from_mut(&mut **target).cast(), 8)
                .build()
                .user_data(WAKE_DATA);
        // SAFETY: the descriptor and the eight bytes live as long as the driver; a driver that is dropped
        // with the read in flight leaks the bytes (see Drop).
        let _ = unsafe { self.push(&entry) };
    }
}
