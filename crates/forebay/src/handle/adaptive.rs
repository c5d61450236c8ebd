//! Opening an adaptive file: its descriptors for the device and for the page cache.

use std::os::fd::{AsFd, OwnedFd};

use crate::driver::meta::set_direct;
use crate::io::mode::Mode;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::page_cache::{
    FileLoads, PageCache, PaidWindow, Refusal, Tries, file_identity, open_view,
};

/// Gives the descriptor `O_DIRECT`, if the file system allows it for this file, and returns whether it does, after the page cache's
/// side of the file.
///
/// `file` is the file's device and inode. What is missing is reported; the file then works without it.
pub(super) fn prepare(shared: &EngineShared, fd: &OwnedFd, file: (u64, u64)) -> (Option<PageCache>, bool) {
    // The view first: it is made of a descriptor that no file system refuses.
    let mut view = open_view(fd.as_fd(), file);
    let mut room = shared.descriptor_room();
    while matches!(&view, Err(refusal) if refusal.lacks_descriptor) && room.may_have_more() {
        room.wait();
        view = open_view(fd.as_fd(), file);
    }
    let direct = set_direct(fd.as_fd(), true);
    if let Err(errno) = direct {
        shared.report_no_direct(
            Mode::Adaptive,
            &format!("the file system has no direct I/O (O_DIRECT: {errno})"),
        );
    }
    let page_cache = match view {
        Ok((view, tries)) => {
            let mut caches = shared.lock_page_caches();
            let (loads, window_bytes) = (caches.loads(), caches.window_bytes(file.0));
            drop(caches);
            let loading = FileLoads { loads, file: file_identity(file), window: PaidWindow::default() };
            Some(PageCache::new(Some(view), tries, window_bytes, Some(loading), shared))
        }
        Err(Refusal { why, remedy, .. }) => {
            let why = format!("{why}; all reads go to the device");
            shared.degrade_once("adaptive: page cache", &why, remedy);
            None
        }
    };
    (page_cache, direct.is_ok())
}

/// Returns the page cache's side of a buffered file: each lone read tries it.
pub(super) fn buffered(shared: &EngineShared) -> PageCache {
    PageCache::new(None, Tries::All, 0, None, shared)
}
