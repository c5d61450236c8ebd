//! Opening an adaptive file: its descriptors for the device and for the page cache.

use std::os::fd::{AsFd, OwnedFd};

use crate::driver::meta::set_direct;
use crate::io::mode::Mode;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::page_cache::{
    FileLoads, PageCache, PaidWindow, Refusal, Tries, file_identity, open_view, read_ahead_bytes,
};

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
    if let Err(errno) = set_direct(fd.as_fd(), true) {
        shared.report_no_direct(
            Mode::Adaptive,
            &format!("the file system has no direct I/O (O_DIRECT: {errno})"),
        );
    }
    match view {
        Ok((view, tries)) => {
            let file = file_identity(view.as_fd());
            let loading = file.map(|file| FileLoads {
                loads: shared.lock_page_caches().loads(),
                file,
                window: PaidWindow::default(),
            });
            Some(PageCache::new(Some(view), tries, read_ahead_bytes(device), loading, shared))
        }
        Err(Refusal { why, remedy, .. }) => {
            let why = format!("{why}; all reads go to the device");
            shared.degrade_once("adaptive: page cache", &why, remedy);
            None
        }
    }
}

/// Returns the page cache's side of a buffered file: each lone read tries it.
pub(super) fn buffered(shared: &EngineShared) -> PageCache {
    PageCache::new(None, Tries::All, 0, None, shared)
}
