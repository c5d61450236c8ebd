//! Opening an adaptive file: its descriptors for the device and for the page cache.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::OFlags;

use crate::reactor::engine_shared::EngineShared;
use crate::reactor::page_cache::{PageCache, Refusal, Tries, open_view, read_ahead_bytes};

/// Gives the descriptor `O_DIRECT`, if the file system allows it for this file, and returns the page cache's side of the file.
///
/// `device` is the number of the file's device. What is missing is reported; the file then works without it.
pub(super) fn prepare(shared: &EngineShared, fd: &OwnedFd, device: u64) -> Option<PageCache> {
    // The view first: it is made of a descriptor that no file system refuses.
    let mut view = open_view(fd.as_fd());
    let mut room = shared.descriptor_room();
    while matches!(&view, Err(refusal) if refusal.lacks_descriptor) && room.may_have_more() {
        room.wait();
        view = open_view(fd.as_fd());
    }
    if let Err(errno) = set_direct(fd, true) {
        let why =
            format!("the file system has no direct I/O (O_DIRECT: {errno}); reads go through the page cache");
        shared.degrade_once(
            "adaptive: direct I/O",
            &why,
            "use ext4, XFS or another file system with direct I/O",
        );
    }
    match view {
        Ok((view, tries)) => Some(PageCache::new(Some(view), tries, read_ahead_bytes(device))),
        Err(Refusal { why, remedy, .. }) => {
            let why = format!("{why}; all reads go to the device");
            shared.degrade_once("adaptive: page cache", &why, remedy);
            None
        }
    }
}

/// Returns the page cache's side of a buffered file: each lone read tries it.
pub(super) fn buffered() -> PageCache {
    PageCache::new(None, Tries::All, 0)
}

/// Sets or clears `O_DIRECT` of an open file: fcntl(2), `F_SETFL`, which refuses what open(2) refuses.
pub(super) fn set_direct(fd: &OwnedFd, direct: bool) -> rustix::io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    if flags.contains(OFlags::DIRECT) == direct {
        return Ok(());
    }
    let mut flags = flags;
    flags.set(OFlags::DIRECT, direct);
    rustix::fs::fcntl_setfl(fd, flags)
}
