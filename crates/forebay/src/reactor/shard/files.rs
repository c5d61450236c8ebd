//! The shard's own table of files: a slot in flight holds its file through an entry here, which only this thread
//! counts, and not through a count that all shards share.

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::driver::{Driver, Known, Route};
use crate::io::mode::Mode;
use crate::io::stats::{FileCounts, FileReport, Moved};
use crate::reactor::open_file::FileCore;

/// Files that this shard has worked with and that are still open.
pub(crate) struct FileTable {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
}

struct Entry {
    core: Arc<FileCore>,
    fd: RawFd,
    fixed: bool,
    /// Its way through the driver, and whether operations still take it.
    route: u32,
    on_route: bool,
    rw_flags: i32,
    /// Reads may find their bytes in the page cache.
    cached: bool,
    /// Slots that name this entry.
    uses: u32,
    /// The last handle is gone, or the file was closed: the entry goes with its last use.
    closing: bool,
    /// What was done with the file from this shard.
    counts: FileCounts,
}

impl Entry {
    /// One use less; true when it must go now.
    #[inline]
    fn leave(&mut self) -> bool {
        debug_assert!(self.uses > 0);
        self.uses -= 1;
        self.uses == 0 && self.closing
    }
}

/// Why a file has no entry.
pub(crate) enum Refused {
    /// It was closed before.
    Closed,
    /// It was closed while the entry was made. The entry was counted already, and whoever closed the file may wait for
    /// it: the caller must say that it is gone, once nothing is borrowed.
    ClosedMeanwhile,
}

/// What a submission needs to know of a file.
#[derive(Clone, Copy)]
pub(crate) struct FileTarget {
    pub(crate) fd: RawFd,
    pub(crate) fixed: bool,
    pub(crate) route: u32,
    pub(crate) rw_flags: i32,
    /// A direct read ends off this grain only at the end of the file.
    pub(crate) read_grain: u32,
    pub(crate) is_cached: bool,
    pub(crate) device: u16,
}

impl FileTarget {
    /// For operations without a file.
    pub(crate) const fn none() -> FileTarget {
        FileTarget { fd: -1, fixed: false, route: 0, rw_flags: 0, read_grain: 1, is_cached: false, device: 0 }
    }
}

impl FileTable {
    pub(crate) fn new() -> FileTable {
        FileTable { entries: Vec::new(), free: Vec::new() }
    }

    /// Counts one more use of a file's entry, which is made on the file's first use here.
    #[inline]
    pub(crate) fn enter(
        &mut self,
        core: &Arc<FileCore>,
        shard: usize,
        register: impl FnOnce(u32, RawFd, Route) -> Known,
    ) -> Result<u32, Refused> {
        let index = core.table_index(shard);
        if let Some(Some(entry)) = self.entries.get_mut(index as usize) {
            if core.is_closed() {
                return Err(Refused::Closed);
            }
            entry.uses += 1;
            return Ok(index);
        }
        self.add(core, shard, register)
    }

    #[cold]
    fn add(
        &mut self,
        core: &Arc<FileCore>,
        shard: usize,
        register: impl FnOnce(u32, RawFd, Route) -> Known,
    ) -> Result<u32, Refused> {
        if core.is_closed() {
            return Err(Refused::Closed);
        }
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        // In this order: whoever closes the file either sees the index and leaves word, or is seen here.
        core.set_table_index(shard, index);
        if core.is_closed() {
            core.clear_table_index(shard);
            if (index as usize) < self.entries.len() {
                self.free.push(index);
            }
            return Err(Refused::ClosedMeanwhile);
        }
        let fd = core.raw_fd();
        let known = register(index, fd, core.route());
        let entry = Entry {
            fd,
            fixed: known.fixed,
            route: known.route,
            on_route: true,
            rw_flags: core.rw_flags(),
            cached: core.mode() == Mode::Buffered,
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
            device: entry.core.device_index(),
        })
    }

    /// Lets the file's further operations go the ordinary way; those that are under way go on where they are.
    pub(crate) fn leave_route(&mut self, index: u32) {
        if let Some(Some(entry)) = self.entries.get_mut(index as usize) {
            entry.on_route = false;
        }
    }

    /// One use more of an entry that is in use.
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

    /// One use less; true when the entry must go now.
    #[inline]
    pub(crate) fn leave(&mut self, index: u32) -> bool {
        self.entry(index).is_some_and(Entry::leave)
    }

    /// As [`leave`](Self::leave), after an operation that is over.
    #[inline]
    pub(crate) fn leave_after(&mut self, index: u32, moved: Moved) -> bool {
        self.entry(index).is_some_and(|entry| {
            entry.counts.add(moved);
            entry.leave()
        })
    }

    #[inline]
    fn entry(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    /// What was done with each file from here.
    pub(crate) fn report(&self) -> Vec<FileReport> {
        let report = |entry: &Entry| FileReport {
            key: Arc::as_ptr(&entry.core) as usize,
            path: entry.core.path().to_path_buf(),
            device: entry.core.device_index(),
            counts: entry.counts,
        };
        self.entries.iter().flatten().map(report).collect()
    }

    /// Marks a file's entry as closing; true when it must go now.
    pub(crate) fn close(&mut self, index: u32) -> bool {
        match self.entries.get_mut(index as usize) {
            Some(Some(entry)) => {
                entry.closing = true;
                entry.uses == 0
            }
            _ => false,
        }
    }

    /// Takes an unused entry out of this table and the driver's; the caller drops the file outside all borrows.
    pub(crate) fn remove(&mut self, index: u32, shard: usize, driver: &mut Driver) -> Option<Arc<FileCore>> {
        let entry = self.entries.get_mut(index as usize)?.take()?;
        debug_assert_eq!(entry.uses, 0);
        if entry.fixed || entry.route != 0 {
            driver.unregister_file(index, entry.route);
        }
        entry.core.clear_table_index(shard);
        self.free.push(index);
        Some(entry.core)
    }

    /// Everything, for the shard's end: (file, still in use). The driver forgets what is not in use, because its own
    /// table may outlive the shard: as long as anyone can wake it.
    pub(crate) fn drain(&mut self, shard: usize, driver: &mut Driver) -> Vec<(Arc<FileCore>, bool)> {
        let mut drained = Vec::with_capacity(self.entries.len());
        for (index, entry) in self.entries.drain(..).enumerate() {
            let Some(entry) = entry else { continue };
            if (entry.fixed || entry.route != 0) && entry.uses == 0 {
                driver.unregister_file(index as u32, entry.route);
            }
            entry.core.clear_table_index(shard);
            drained.push((entry.core, entry.uses > 0));
        }
        self.free.clear();
        drained
    }
}
