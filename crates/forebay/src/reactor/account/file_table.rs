//! An account's own table of files. An operation that has started holds its file through an entry here. The uses of an entry are
//! counted by its account alone, so no count is shared by all of them.

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::driver::{FileRegistration, Route};
use crate::io::op::OpFailure;
use crate::io::stats::{EndedOp, FileCounts, FileReport};
use crate::reactor::open_file::FileCore;

/// The file index of an operation without a file.
pub(crate) const NO_FILE: u32 = u32::MAX;

/// The files that this account has used and that are still open.
pub(crate) struct FileTable {
    /// The account's number.
    account: usize,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
}

struct Entry {
    core: Arc<FileCore>,
    fd: RawFd,
    fixed: bool,
    /// The file's route through the driver, and whether operations still use it.
    route: u32,
    on_route: bool,
    rw_flags: i32,
    /// Whether reads may find their bytes in the page cache.
    cached: bool,
    /// Whether reads of the device may load it.
    may_load: bool,
    /// The number of operations, and of walks, that name this entry.
    uses: u32,
    /// Set when the last handle is dropped or the file was closed: the entry is removed after its last use.
    closing: bool,
    /// The operations on the file that have ended.
    counts: FileCounts,
}

impl Entry {
    /// Removes one use. Returns true if the entry must be removed now.
    #[inline]
    fn leave(&mut self) -> bool {
        debug_assert!(self.uses > 0);
        self.uses -= 1;
        self.uses == 0 && self.closing
    }
}

/// The reason why a file has no entry.
pub(crate) enum EntryError {
    /// It was closed before.
    Closed,
    /// It was closed while the entry was made. The entry was already counted, and the task that closed the
    /// file may wait for it: [`refuse`](Self::refuse) must be called.
    ClosedMeanwhile,
}

/// The properties of a file that a submission needs.
#[derive(Clone, Copy)]
pub(crate) struct FileTarget {
    pub(crate) fd: RawFd,
    pub(crate) fixed: bool,
    pub(crate) route: u32,
    pub(crate) rw_flags: i32,
    /// A direct read ends off this grain only at the end of the file.
    pub(crate) read_grain: u32,
    pub(crate) is_cached: bool,
    pub(crate) may_load: bool,
    pub(crate) device: u16,
}

impl FileTarget {
    /// Returns the target for operations without a file.
    pub(crate) const fn none() -> FileTarget {
        FileTarget {
            fd: -1,
            fixed: false,
            route: 0,
            rw_flags: 0,
            read_grain: 1,
            is_cached: false,
            may_load: false,
            device: 0,
        }
    }
}

impl EntryError {
    /// Returns the failure of an operation that finds no entry. Nothing may be borrowed: it may wake the task that closed the file.
    pub(crate) fn refuse(self, core: &Arc<FileCore>) -> OpFailure {
        if let EntryError::ClosedMeanwhile = self {
            core.clone().entry_gone();
        }
        OpFailure::FileClosed
    }
}

impl FileTable {
    pub(crate) fn new(account: usize) -> FileTable {
        FileTable { account, entries: Vec::new(), free: Vec::new() }
    }

    /// Adds a use of a file's entry and returns its index. The file's first use creates the entry.
    #[inline]
    pub(crate) fn enter(
        &mut self,
        core: &Arc<FileCore>,
        register: impl FnOnce(u32, RawFd, Route) -> FileRegistration,
    ) -> Result<u32, EntryError> {
        let index = core.table_index(self.account);
        if let Some(Some(entry)) = self.entries.get_mut(index as usize) {
            debug_assert!(Arc::ptr_eq(&entry.core, core), "a file knows the index of its own entry only");
            if core.is_closed() {
                return Err(EntryError::Closed);
            }
            entry.uses += 1;
            return Ok(index);
        }
        self.add(core, register)
    }

    #[cold]
    fn add(
        &mut self,
        core: &Arc<FileCore>,
        register: impl FnOnce(u32, RawFd, Route) -> FileRegistration,
    ) -> Result<u32, EntryError> {
        if core.is_closed() {
            return Err(EntryError::Closed);
        }
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        debug_assert!(
            !matches!(self.entries.get(index as usize), Some(Some(_))),
            "an index is given anew once nothing names it"
        );
        // In this order: a thread that closes the file either sees the index and leaves a notice, or its
        // close is seen here.
        core.set_table_index(self.account, index);
        if core.is_closed() {
            core.clear_table_index(self.account);
            if (index as usize) < self.entries.len() {
                self.free.push(index);
            }
            return Err(EntryError::ClosedMeanwhile);
        }
        let fd = core.raw_fd();
        let registration = register(index, fd, core.route());
        let entry = Entry {
            fd,
            fixed: registration.fixed,
            route: registration.route,
            on_route: true,
            rw_flags: core.rw_flags(),
            cached: core.page_cache().is_some(),
            may_load: core.may_load(),
            uses: 1,
            closing: core.has_no_handle(),
            counts: FileCounts::default(),
            core: core.clone(),
        };
        match self.entries.get_mut(index as usize) {
            Some(place) => *place = Some(entry),
            None => self.entries.push(Some(entry)),
        }
        Ok(index)
    }

    #[inline]
    pub(crate) fn target(&self, index: u32) -> Option<FileTarget> {
        let entry = self.entries.get(index as usize)?.as_ref()?;
        Some(FileTarget {
            fd: entry.fd,
            fixed: entry.fixed,
            route: if entry.on_route { entry.route } else { 0 },
            rw_flags: entry.rw_flags,
            read_grain: entry.core.alignment().read_offset,
            is_cached: entry.cached,
            may_load: entry.may_load,
            device: entry.core.device_index(),
        })
    }

    /// Returns the descriptor by which a read of the device loads the page cache, if it does: see
    /// [`FileCore::loading_view`].
    pub(crate) fn loading_view(&self, index: u32, range: &Range<u64>) -> Option<RawFd> {
        self.entries.get(index as usize)?.as_ref()?.core.loading_view(range)
    }

    /// Adds a read that bypassed the page cache.
    pub(crate) fn note_miss(&self, index: u32, range: &Range<u64>) {
        if let Some(Some(entry)) = self.entries.get(index as usize) {
            entry.core.note_miss(range);
        }
    }

    /// Sends the file's further operations the ordinary way. Those already in progress stay on their route.
    pub(crate) fn leave_route(&mut self, index: u32) {
        if let Some(Some(entry)) = self.entries.get_mut(index as usize) {
            entry.on_route = false;
        }
    }

    /// Adds a use of an entry that is in use.
    #[inline]
    pub(crate) fn enter_again(&mut self, index: u32) {
        if let Some(Some(entry)) = self.entries.get_mut(index as usize) {
            debug_assert!(entry.uses > 0);
            entry.uses += 1;
        }
    }

    pub(crate) fn core(&self, index: u32) -> Option<Arc<FileCore>> {
        Some(self.entries.get(index as usize)?.as_ref()?.core.clone())
    }

    /// Removes one use. Returns true if the entry must be removed now.
    #[inline]
    pub(crate) fn leave(&mut self, index: u32) -> bool {
        self.entry(index).is_some_and(Entry::leave)
    }

    /// As [`leave`](Self::leave), after an operation that has ended.
    #[inline]
    pub(crate) fn leave_after(&mut self, index: u32, op: EndedOp) -> bool {
        self.entry(index).is_some_and(|entry| {
            entry.counts.add(op);
            entry.leave()
        })
    }

    #[inline]
    fn entry(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    /// Returns the uses of all entries.
    pub(crate) fn uses(&self) -> usize {
        self.entries.iter().flatten().map(|entry| entry.uses as usize).sum()
    }

    /// Returns the counters of each file's operations.
    pub(crate) fn report(&self) -> Vec<FileReport> {
        let report = |entry: &Entry| FileReport {
            key: Arc::as_ptr(&entry.core) as usize,
            path: entry.core.path().to_path_buf(),
            device: entry.core.device_index(),
            counts: entry.counts,
        };
        self.entries.iter().flatten().map(report).collect()
    }

    /// Marks a file's entry as closing. Returns true if it must be removed now.
    pub(crate) fn close(&mut self, index: u32) -> bool {
        match self.entries.get_mut(index as usize) {
            Some(Some(entry)) => {
                entry.closing = true;
                entry.uses == 0
            }
            _ => false,
        }
    }

    /// Removes an unused entry, and has `unregister` remove it from the driver's table and from its route if it is there. The caller drops
    /// the returned file outside all borrows.
    pub(crate) fn remove(&mut self, index: u32, unregister: impl FnOnce(u32, u32)) -> Option<Arc<FileCore>> {
        let entry = self.entries.get_mut(index as usize)?.take()?;
        debug_assert_eq!(entry.uses, 0);
        debug_assert!(entry.closing, "an entry stays while its file may be used");
        debug_assert_eq!(entry.core.table_index(self.account), index, "a file knows its entry");
        if entry.fixed || entry.route != 0 {
            unregister(index, entry.route);
        }
        entry.core.clear_table_index(self.account);
        self.free.push(index);
        Some(entry.core)
    }

    /// Removes all entries at a shard's end and returns each file and whether it is still in use. Files not
    /// in use are also removed from the driver, whose own table may outlive the shard: it lives as long as
    /// any thread can wake it.
    pub(crate) fn drain(&mut self, mut unregister: impl FnMut(u32, u32)) -> Vec<(Arc<FileCore>, bool)> {
        let mut drained = Vec::with_capacity(self.entries.len());
        for (index, entry) in self.entries.drain(..).enumerate() {
            let Some(entry) = entry else { continue };
            if (entry.fixed || entry.route != 0) && entry.uses == 0 {
                unregister(index as u32, entry.route);
            }
            entry.core.clear_table_index(self.account);
            drained.push((entry.core, entry.uses > 0));
        }
        self.free.clear();
        drained
    }
}
