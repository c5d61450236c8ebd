//! The choice between the kernel's AIO and threads for each request.
//!
//! io_submit(2) is asynchronous for direct reads, and for direct writes over bytes that exist; on everything else it blocks. The
//! kernel refuses with EAGAIN, because requests have RWF_NOWAIT, where the driver cannot see that it would wait: for a hole in the file, for a held lock.

use std::os::fd::{BorrowedFd, RawFd};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};

use crate::base::size_limit::is_within_size_limit;
use crate::driver::IoRequest;
use crate::io::op::OpKind;

/// After this many refusals in a row requests are passed to threads.
///
/// Several are usual: a write that would have to set the file's time is refused, once in each tick of the kernel's clock, and so are
/// those that were submitted with it.
const REFUSALS_MAX: u16 = 64;
/// Requests passed to threads before AIO is tried again. Counted, not timed: a file with few requests loses little by threads.
const PAUSE: u32 = 1024;
/// After a pause this many refusals are enough for the next one.
const TRIALS: u16 = 8;
/// Addresses, offsets and lengths that are not a multiple of this are never direct.
const GRAIN: u64 = 512;

/// Requests of one kind on one file: how the kernel has received them.
#[derive(Clone, Copy, Debug, Default)]
struct Reception {
    refusals: u16,
    pause: u32,
}

impl Reception {
    /// Returns whether the next request may be tried.
    #[inline]
    fn admits(&mut self) -> bool {
        if self.pause == 0 {
            return true;
        }
        self.pause -= 1;
        false
    }

    fn refused(&mut self) {
        self.refusals += 1;
        if self.refusals >= REFUSALS_MAX {
            *self = Reception { refusals: REFUSALS_MAX - TRIALS, pause: PAUSE };
        }
    }
}

/// An open file, as far as AIO is concerned.
#[derive(Clone, Copy, Debug)]
struct KnownFile {
    /// It is open for direct I/O, and the kernel has not refused to serve it in this way.
    suits: bool,
    /// The size when it was last looked at. Bytes below it are overwritten, which is asynchronous.
    bytes: u64,
    reads: Reception,
    writes: Reception,
}

impl KnownFile {
    fn of(&mut self, kind: OpKind) -> &mut Reception {
        if kind == OpKind::Write { &mut self.writes } else { &mut self.reads }
    }
}

/// The files of a driver, by their entry in the shard's table.
#[derive(Debug, Default)]
pub(super) struct Files {
    list: Vec<Option<KnownFile>>,
}

impl Files {
    pub(super) fn add(&mut self, index: u32, fd: RawFd) {
        let index = index as usize;
        if self.list.len() <= index {
            self.list.resize(index + 1, None);
        }
        // SAFETY: the caller adds a file that it keeps open, and the borrow ends here.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let suits = fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
        let bytes = size(fd);
        self.list[index] =
            Some(KnownFile { suits, bytes, reads: Reception::default(), writes: Reception::default() });
    }

    pub(super) fn remove(&mut self, index: u32) {
        if let Some(place) = self.list.get_mut(index as usize) {
            *place = None;
        }
    }

    #[inline]
    fn get(&mut self, request: &IoRequest) -> Option<&mut KnownFile> {
        self.list.get_mut(request.fixed_file? as usize)?.as_mut()
    }

    /// Returns whether a request is passed to the kernel's AIO.
    #[inline]
    pub(super) fn admits(&mut self, request: &IoRequest) -> bool {
        let Some(file) = self.get(request) else { return false };
        if !file.suits || request.sync.is_some() || request.rw_flags != 0 || !is_aligned(request) {
            return false;
        }
        match request.kind {
            OpKind::Read => file.reads.admits(),
            OpKind::Write => {
                let end = request.offset.saturating_add(request.len.into());
                overwrites(file, request.fd, end) && is_within_size_limit(end) && file.writes.admits()
            }
            OpKind::Nop | OpKind::Command | OpKind::SyncData | OpKind::SyncAll => false,
        }
    }

    /// Notes that the kernel served a request.
    #[inline]
    pub(super) fn served(&mut self, request: &IoRequest) {
        if let Some(file) = self.get(request) {
            file.of(request.kind).refusals = 0;
        }
    }

    /// Notes that the kernel would have had to wait for a request.
    #[cold]
    pub(super) fn refused(&mut self, request: &IoRequest) {
        if let Some(file) = self.get(request) {
            file.of(request.kind).refused();
        }
    }

    /// Notes that the kernel does not serve the file in this way, and never will.
    #[cold]
    pub(super) fn unsuited(&mut self, request: &IoRequest) {
        if let Some(file) = self.get(request) {
            file.suits = false;
        }
    }
}

#[inline]
fn is_aligned(request: &IoRequest) -> bool {
    let address = request.memory.map_or(1, |memory| memory.as_ptr().addr() as u64);
    request.len > 0 && (address | request.offset | u64::from(request.len)).is_multiple_of(GRAIN)
}

/// Returns whether a write that ends there lies inside of the file.
#[inline]
fn overwrites(file: &mut KnownFile, fd: RawFd, end: u64) -> bool {
    if end > file.bytes {
        // SAFETY: the request's slot keeps the file open.
        file.bytes = size(unsafe { BorrowedFd::borrow_raw(fd) });
    }
    end <= file.bytes
}

/// Returns the size below which writes change bytes only. A device has no other writes.
fn size(fd: BorrowedFd<'_>) -> u64 {
    match fstat(fd) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice => u64::MAX,
        Ok(found) => u64::try_from(found.st_size).unwrap_or(0),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_refusals_in_a_row_pause_requests_for_a_while() {
        let mut reception = Reception::default();
        for _ in 1..REFUSALS_MAX {
            reception.refused();
            assert!(reception.admits());
        }
        reception.refused();
        let paused = (0..2 * PAUSE).take_while(|_| !reception.admits()).count();
        assert_eq!(paused, PAUSE as usize);
        for _ in 0..TRIALS {
            assert!(reception.admits(), "it is tried again");
            reception.refused();
        }
        assert!(!reception.admits(), "a file that still refuses pauses soon");
    }
}
