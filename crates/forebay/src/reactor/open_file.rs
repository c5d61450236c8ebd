//! State shared by all handles, shards and operations of one open file.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::in_flight::{InFlight, Stay};
#[cfg(target_os = "linux")]
use crate::device::namespace::Namespace;
use crate::device::{Alignment, Device};
use crate::driver::Route;
#[cfg(target_os = "linux")]
use crate::driver::meta::set_direct;
use crate::driver::meta::{Descriptor, DescriptorOwner, release_lock, release_record_lock};
use crate::io::mode::Mode;
use crate::io::op::OpFailure;
use crate::memory::arena::BUFFER_BYTES_MAX;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::page_cache::PageCache;
use crate::reactor::scheduler::DeviceScheduler;
use crate::reactor::shard::remote_list::{NodeKind, RemoteNode};

/// An open file. The descriptor is closed with the last owner: handles, futures, table entries, calls of the pool. Work that the
/// program does not hold is counted in `in_flight`, for which the close waits.
pub(crate) struct FileCore {
    id: u64,
    fd: ManuallyDrop<Descriptor>,
    path: PathBuf,
    engine: Arc<EngineShared>,
    home: usize,
    mode: Mode,
    rw_flags: i32,
    route: Route,
    #[cfg(target_os = "linux")]
    namespace: Option<Arc<Namespace>>,
    alignment: Alignment,
    device: Arc<Device>,
    device_index: u16,
    scheduler: Option<Arc<DeviceScheduler>>,
    /// The file's index in each account's table, `NOWHERE` while it is not in it.
    table: Box<[AtomicU32]>,
    close_nodes: Box<[CloseNode]>,
    /// Number of handles that programs hold.
    handles: AtomicUsize,
    closed: AtomicBool,
    /// Its file system refused direct requests, so its requests use the page cache.
    left_direct: AtomicBool,
    /// A lock was requested, which the file may have.
    may_be_locked: AtomicBool,
    /// The same of an OFD lock.
    may_be_record_locked: AtomicBool,
    in_flight: Arc<InFlight>,
    /// `None` where reads never try the page cache.
    page_cache: Option<PageCache>,
}

const NOWHERE: u32 = u32::MAX;

/// The properties of an opened file that [`FileCore::new`] needs.
pub(crate) struct FileParts {
    pub(crate) fd: Descriptor,
    pub(crate) path: PathBuf,
    pub(crate) mode: Mode,
    pub(crate) rw_flags: i32,
    pub(crate) route: Route,
    /// The file's NVMe namespace, if it is one.
    #[cfg(target_os = "linux")]
    pub(crate) namespace: Option<Arc<Namespace>>,
    pub(crate) alignment: Alignment,
    pub(crate) device: Arc<Device>,
    pub(crate) device_index: u16,
    pub(crate) home: usize,
    /// How reads try the page cache, if they do.
    pub(crate) page_cache: Option<PageCache>,
}

impl FileCore {
    /// Creates a file with one handle, which the caller wraps.
    pub(crate) fn new(engine: Arc<EngineShared>, parts: FileParts) -> Arc<FileCore> {
        let (accounts, shards) = (engine.accounts_max(), engine.shards_max());
        engine.inboxes[parts.home].files.fetch_add(1, Ordering::Relaxed);
        let scheduler = engine.scheduler_of(parts.device_index);
        /// The next number of a file. Nothing orders or hashes by it: it differs between runs of a simulated world.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let core = Arc::new(FileCore {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            fd: ManuallyDrop::new(parts.fd),
            path: parts.path,
            engine,
            home: parts.home,
            mode: parts.mode,
            rw_flags: parts.rw_flags,
            route: parts.route,
            #[cfg(target_os = "linux")]
            namespace: parts.namespace,
            alignment: parts.alignment,
            device: parts.device,
            device_index: parts.device_index,
            scheduler,
            table: (0..accounts).map(|_| AtomicU32::new(NOWHERE)).collect(),
            close_nodes: (0..shards).map(|_| CloseNode::new()).collect(),
            handles: AtomicUsize::new(1),
            closed: AtomicBool::new(false),
            left_direct: AtomicBool::new(false),
            may_be_locked: AtomicBool::new(false),
            may_be_record_locked: AtomicBool::new(false),
            in_flight: Arc::default(),
            page_cache: parts.page_cache,
        });
        if core.page_cache.is_some() {
            core.engine.lock_page_caches().add(&core);
        }
        core
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the number by which requests to the driver name the file.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.raw()
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Arc<EngineShared> {
        &self.engine
    }

    #[inline]
    pub(crate) fn home(&self) -> usize {
        self.home
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    #[inline]
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the page cache's side of the file; `None` where reads never try it.
    #[inline]
    pub(crate) fn page_cache(&self) -> Option<&PageCache> {
        self.page_cache.as_ref()
    }

    #[inline]
    pub(crate) fn rw_flags(&self) -> i32 {
        self.rw_flags
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn namespace(&self) -> Option<&Arc<Namespace>> {
        self.namespace.as_ref()
    }

    /// Returns the size of the NVMe namespace, if the file is one.
    pub(crate) fn namespace_bytes(&self) -> Option<u64> {
        match self.route {
            Route::Nvme(target) => Some(target.bytes),
            _ => None,
        }
    }

    /// Returns whether a namespace was opened for writing; false for other files.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_writable(&self) -> bool {
        matches!(self.route, Route::Nvme(target) if target.writable)
    }

    /// Returns the driver's route of the file's operations.
    pub(crate) fn route(&self) -> Route {
        self.route
    }

    #[inline]
    pub(crate) fn alignment(&self) -> &Alignment {
        &self.alignment
    }

    /// Returns whether the kernel may refuse the file's direct requests although it accepted `O_DIRECT`: it reports no alignment
    /// for them.
    #[cold]
    pub(crate) fn may_refuse_direct(&self) -> bool {
        self.alignment.direct && !self.alignment.reported && !self.engine.is_simulated()
    }

    /// Switches the file's requests to the page cache, because its file system has refused an aligned request. Requests of any
    /// alignment work there; planned requests stay as they are.
    #[cold]
    pub(crate) fn leave_direct(&self) {
        #[cfg(target_os = "linux")]
        if set_direct(self.fd(), false).is_ok() && !self.left_direct.swap(true, Ordering::Relaxed) {
            let why = format!(
                "{}: the file system takes O_DIRECT and refuses direct requests",
                self.path.display()
            );
            self.engine.report_no_direct(self.mode, &why);
        }
    }

    /// Returns whether the file has [left](Self::leave_direct) direct requests.
    pub(crate) fn has_left_direct(&self) -> bool {
        self.left_direct.load(Ordering::Relaxed)
    }

    /// Notes that a lock is requested, so that it is released when the file is closed.
    pub(crate) fn note_lock(&self) {
        self.may_be_locked.store(true, Ordering::Relaxed);
    }

    /// As [`note_lock`](Self::note_lock), for an OFD lock.
    pub(crate) fn note_record_lock(&self) {
        self.may_be_record_locked.store(true, Ordering::Relaxed);
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    #[inline]
    pub(crate) fn device_index(&self) -> u16 {
        self.device_index
    }

    /// Returns the scheduler of the file's device.
    pub(crate) fn scheduler(&self) -> Option<&DeviceScheduler> {
        self.scheduler.as_deref()
    }

    /// Adds this file's path and device to an error.
    pub(crate) fn describe(&self, error: Error) -> Error {
        let error = error.with_path(&self.path);
        match self.device.name() {
            "" => error,
            name => error.with_device(name),
        }
    }

    #[inline]
    pub(crate) fn table_index(&self, account: usize) -> u32 {
        self.table[account].load(Ordering::Relaxed)
    }

    /// Records the entry that the file is about to get in an account's table. SeqCst, so that either the account then sees that the
    /// file is closed or without handles, or the closer sees the entry.
    pub(crate) fn set_table_index(&self, account: usize, index: u32) {
        self.in_flight.add();
        self.table[account].store(index, Ordering::SeqCst);
    }

    /// Clears an account's removed entry; [`entry_gone`](Self::entry_gone) follows when nothing is borrowed.
    pub(crate) fn clear_table_index(&self, account: usize) {
        self.table[account].store(NOWHERE, Ordering::SeqCst);
    }

    /// Removes one table entry from those in flight, after this count of the file.
    pub(crate) fn entry_gone(self: Arc<Self>) {
        let in_flight = self.in_flight.clone();
        drop(self);
        in_flight.remove();
    }

    /// Keeps the close waiting for the file's last traces in a dropped operation that may not have reached a shard yet.
    #[cold]
    pub(crate) fn stay(&self) -> Stay {
        self.in_flight.enter()
    }

    /// As [`entry_gone`](Self::entry_gone), at a shard's end; a file that the device may still use stays
    /// open.
    pub(crate) fn entry_gone_from(self: Arc<Self>, in_use: bool) {
        if in_use {
            std::mem::forget(self.clone());
        }
        self.entry_gone();
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn has_no_handle(&self) -> bool {
        self.handles.load(Ordering::SeqCst) == 0
    }

    pub(crate) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes one handle; the last one has the accounts release the file.
    pub(crate) fn drop_handle(self: &Arc<Self>) {
        let before = self.handles.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "each handle of a file is dropped once");
        if before == 1 {
            self.engine.inboxes[self.home].files.fetch_sub(1, Ordering::Relaxed);
            self.release();
        }
    }

    /// Rejects further operations and has the accounts release the file.
    pub(crate) fn close(self: &Arc<Self>) {
        self.closed.store(true, Ordering::SeqCst);
        self.release();
    }

    /// Completes when nothing of the file is in flight; for the task that closed it.
    pub(crate) fn poll_closed(&self, waker: &Waker) -> Poll<()> {
        self.in_flight.poll_none(waker)
    }

    /// Notifies the accounts with an entry to release the file: shards by a notice, stripes immediately.
    fn release(self: &Arc<Self>) {
        if self.engine.is_forked() {
            return;
        }
        for (account, index) in self.table.iter().enumerate() {
            if index.load(Ordering::SeqCst) == NOWHERE {
                continue;
            }
            let Some(close_node) = self.close_nodes.get(account) else {
                self.engine.calls.close_file(account, self);
                continue;
            };
            let Some(inbox) = self.engine.inbox(account) else { continue };
            if let Some(node) = close_node.give(self) {
                // SAFETY: the node is in no list (its flag says so), lives in this file, and the file is kept
                // by the count that `give` put into it.
                if unsafe { inbox.remote_list.push(node) } {
                    inbox.kick();
                } else {
                    // SAFETY: the node was not pushed, so this is its one taker.
                    drop(unsafe { CloseNode::take(node) });
                }
            }
        }
    }
}

impl Drop for FileCore {
    fn drop(&mut self) {
        // A fork copies the table of descriptors before the memory, so a child's memory may name one that was opened in between and that
        // the child does not have. It must not close another file's, and keeps the few that it does have.
        if !self.engine.is_forked() {
            // close(2) alone leaves the locks to a forked child, which has the descriptor as well.
            if *self.may_be_locked.get_mut() {
                release_lock(&self.fd);
            }
            if *self.may_be_record_locked.get_mut() {
                release_record_lock(&self.fd);
            }
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.fd) }
        } else if let Some(cache) = &mut self.page_cache {
            cache.leave_view();
        }
    }
}

impl OpFailure {
    pub(crate) fn into_error(self, operation: &'static str, file: Option<&FileCore>) -> Error {
        let error = match self {
            OpFailure::Errno(errno) => Error::os(operation, errno),
            OpFailure::NoMemory => match file {
                Some(file) => file.engine().exhausted(operation),
                None => Error::new(ErrorKind::ArenaExhausted { held: 0 }, operation),
            },
            OpFailure::TooLarge => {
                Error::new(ErrorKind::TooLarge { limit: BUFFER_BYTES_MAX as u64 }, operation)
            }
            OpFailure::EngineClosed => Error::new(ErrorKind::EngineClosed, operation),
            OpFailure::FileClosed => Error::new(ErrorKind::FileClosed, operation),
            OpFailure::ShardLost => Error::new(ErrorKind::ShardLost, operation),
            OpFailure::Forked => Error::new(ErrorKind::Forked, operation),
            #[cfg(target_os = "linux")]
            OpFailure::Nvme(status) => crate::device::namespace::status_error(operation, status),
            #[cfg(feature = "_sim")]
            OpFailure::OutsideWorld => Error::new(ErrorKind::OutsideWorld, operation),
        };
        match file {
            Some(file) => file.describe(error),
            None => error,
        }
    }
}

impl DescriptorOwner for FileCore {
    fn descriptor(&self) -> &Descriptor {
        &self.fd
    }

    fn enter(&self, operation: &'static str) -> Result<Option<Stay>> {
        let stay = self.in_flight.enter();
        if self.is_closed() {
            Err(self.describe(Error::new(ErrorKind::FileClosed, operation)))
        } else {
            Ok(Some(stay))
        }
    }
}

/// A notice to one shard to release a file. It lies in the file itself, so that a destructor needs no memory.
#[repr(C)]
pub(crate) struct CloseNode {
    node: RemoteNode,
    queued: AtomicBool,
    /// One count of the file, while the node is in a list.
    file: std::cell::UnsafeCell<Option<Arc<FileCore>>>,
}

// SAFETY: `file` is written by the thread that turned `queued` from false to true, and read by the shard that removed the node from
// the list, whose push and take order the two. The shard turns `queued` back only after that.
unsafe impl Sync for CloseNode {}

impl CloseNode {
    fn new() -> CloseNode {
        CloseNode {
            node: RemoteNode::new(NodeKind::File),
            queued: AtomicBool::new(false),
            file: std::cell::UnsafeCell::new(None),
        }
    }

    /// Returns the node to push, holding a count of `file`; `None` while it is in a list already.
    fn give(&self, file: &Arc<FileCore>) -> Option<NonNull<RemoteNode>> {
        if self.queued.swap(true, Ordering::AcqRel) {
            return None;
        }
        // SAFETY: the flag makes this the only access until the node is removed from the list.
        unsafe { *self.file.get() = Some(file.clone()) };
        Some(NonNull::from(self).cast())
    }

    /// Moves the file out of a node.
    ///
    /// # Safety
    /// `node` must be from `give`, and be passed once.
    pub(crate) unsafe fn take(node: NonNull<RemoteNode>) -> Arc<FileCore> {
        // SAFETY: the node is the first field of a repr(C) CloseNode, which the file that it holds keeps alive, and
        // `give` derived the pointer from the whole.
        let this = unsafe { node.cast::<CloseNode>().as_ref() };
        // SAFETY: the list's take made us the only one; the count moves out before the flag is turned back.
        let file = unsafe { (*this.file.get()).take() };
        this.queued.store(false, Ordering::Release);
        match file {
            Some(file) => file,
            // SAFETY: `give` stored a count before the node could be removed.
            None => unsafe { std::hint::unreachable_unchecked() },
        }
    }
}
