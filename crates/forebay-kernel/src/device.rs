//! The module's device: a session is an open descriptor of it, bound to a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use crate::layout as at;

/// Path of the module's device.
const DEVICE: &str = "/dev/forebay_walk";

/// A session of the module. Dropping it frees the file that it is bound to.
#[derive(Debug)]
pub(crate) struct Device(File);

/// Sizes that a session is bound with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) page_bytes: usize,
    pub(crate) slots: usize,
    pub(crate) reads_each: usize,
}

impl Device {
    /// Opens the module's device.
    ///
    /// # Errors
    /// Why it cannot be opened, as a sentence without its full stop.
    pub(crate) fn open() -> Result<Device, String> {
        let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
        opened.map(Device).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!("the module forebay_walk is not loaded: there is no {DEVICE}"),
            _ => {
                format!("{DEVICE} cannot be opened ({error}); it is root's unless a udev rule says otherwise")
            }
        })
    }

    /// Binds the session to `file`, and returns whether the file's device can be polled. The task that walks spins for
    /// up to `spin` for each read.
    ///
    /// # Errors
    /// Why the module refuses, as a sentence without its full stop.
    pub(crate) fn bind(&self, file: &impl AsFd, shape: Shape, spin: Duration) -> Result<bool, String> {
        let mut words = [0_u32; at::BIND_BYTES / 4];
        words[at::BIND_LAYOUT / 4] = at::MODULE_LAYOUT as u32;
        words[at::BIND_FD / 4] = file.as_fd().as_raw_fd() as u32;
        words[at::BIND_PAGE_BYTES / 4] = shape.page_bytes as u32;
        words[at::BIND_SLOTS / 4] = shape.slots as u32;
        words[at::BIND_READS_EACH / 4] = shape.reads_each as u32;
        words[at::BIND_SPIN_NS / 4] = spin.as_nanos().min(at::SPIN_NS_MAX as u128) as u32;
        match self.call(at::MODULE_BIND, words.as_mut_ptr()) {
            Ok(()) => Ok(words[at::BIND_POLLED / 4] != 0),
            Err(error) => Err(match refusal(words[at::BIND_REFUSED / 4] as usize) {
                Some(why) => format!("the module does not take the file: {why} ({error})"),
                None => format!("the module cannot bind the file ({error})"),
            }),
        }
    }

    /// Frees the file: waits until no read is in flight. Walks that have not ended end where they would read again.
    pub(crate) fn unbind(&self) {
        // A failure, which does not occur, could not be handled.
        let _ = self.call(at::MODULE_UNBIND, std::ptr::null_mut());
    }

    fn call(&self, what: usize, argument: *mut u32) -> io::Result<()> {
        // SAFETY: the module reads and writes no more words than `argument` has, and none for a null pointer.
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), what as libc::c_ulong as _, argument) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Rings and mappings keep the descriptor for a while; the file must not wait for them.
        self.unbind();
    }
}

/// Returns the text of one of the module's refusal numbers.
fn refusal(number: usize) -> Option<&'static str> {
    Some(match number {
        at::REFUSED_LAYOUT => "it is of another version than this program",
        at::REFUSED_NUMBERS => "it takes no such pages",
        at::REFUSED_BOUND => "the session is bound already",
        at::REFUSED_KIND => "it is neither a regular file nor a block device",
        at::REFUSED_MODE => "it was not opened for reading",
        at::REFUSED_OWNER => "it is another user's; pinning it takes its owner or CAP_FOWNER",
        at::REFUSED_FILE_SYSTEM => "its file system has no stable extents; ext2, ext3, ext4 and XFS have",
        at::REFUSED_ENCRYPTED => "it is encrypted by its file system",
        at::REFUSED_VERITY => "fs-verity protects it, and a walk would not check that",
        at::REFUSED_DAX => "it lies in memory (DAX)",
        at::REFUSED_INLINE => "its data lies in its inode",
        at::REFUSED_HOLES => {
            "it has holes, unwritten extents or shared ones (reflinks), or is a realtime file"
        }
        at::REFUSED_SWAP => "it is in use as swap",
        at::REFUSED_MAPPED => "it is mapped for shared writing",
        at::REFUSED_BLOCK => "the pages are smaller than its device's blocks",
        at::REFUSED_EXTENTS => "it lies in too many pieces",
        _ => return None,
    })
}
