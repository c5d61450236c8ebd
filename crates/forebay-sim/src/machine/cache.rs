//! The two caches above the medium, the disk's volatile cache and the machine's memory, and the syncs that
//! empty them.

use std::ops::Range;

use super::content::Location;
use super::disk::{Disk, VolatileWrite};
use super::rules::Struck;
use crate::fault::{Dirty, Fault};
use crate::history::Fate;
use crate::profile::MetadataOrder;

/// Bytes of buffered writes that a disk's files may have in memory before the oldest are written back.
const DIRTY_MAX: u64 = 64 << 20;

/// The most writes that each of the two caches holds, however small they are. Real caches move writes on at any time too, and the
/// record of each write uses up to a page of the test's memory.
const WAITING_MAX: usize = 4096;

impl Disk {
    /// Adds a buffered write to memory. When memory then holds too much, the oldest writes are written back.
    pub(super) fn take_into_memory(&mut self, write: VolatileWrite) {
        self.dirty.push_back(write);
        self.dirty_bytes += write.bytes;
        while self.dirty_bytes > DIRTY_MAX || self.dirty.len() > WAITING_MAX {
            let Some(oldest) = self.dirty.pop_front() else { break };
            self.dirty_bytes -= oldest.bytes;
            self.place(oldest, Location::Cache);
            self.take_into_cache(oldest);
        }
    }

    /// Writes back the part of the page cache that lies in the range of a direct operation, before that
    /// operation.
    pub(super) fn write_back(&mut self, inode: u64, range: Range<u64>) {
        if !self.dirty.iter().any(|write| write.inode == inode) {
            return;
        }
        let Some(found) = self.tree.get_mut(inode) else { return };
        let moved = found.content.move_data(Location::Memory, Location::Cache, |_, other| {
            other.start < range.end && range.start < other.end
        });
        self.forget_dirty(|write| write.inode == inode && moved.iter().any(|(seq, _)| *seq == write.seq));
        for (seq, bytes) in moved {
            self.take_into_cache(VolatileWrite { seq, inode, bytes });
        }
    }

    fn forget_dirty(&mut self, mut gone: impl FnMut(&VolatileWrite) -> bool) {
        let bytes = &mut self.dirty_bytes;
        self.dirty.retain(|write| {
            let gone = gone(write);
            *bytes -= if gone { write.bytes } else { 0 };
            !gone
        });
    }

    /// Returns the number of bytes of a file that a sync would have to write.
    pub(super) fn dirty_bytes(&self, inode: u64) -> u64 {
        self.dirty.iter().filter(|write| write.inode == inode).map(|write| write.bytes).sum()
    }

    /// Returns the duration of a flush of the disk's present cache content.
    pub(super) fn drain_ns(&self) -> u64 {
        match self.profile.drain_bytes_per_second {
            0 => 0,
            rate => {
                let nanoseconds = u128::from(self.cache_bytes) * 1_000_000_000 / u128::from(rate);
                u64::try_from(nanoseconds).unwrap_or(u64::MAX)
            }
        }
    }

    fn place(&mut self, write: VolatileWrite, place: Location) {
        if let Some(inode) = self.tree.get_mut(write.inode) {
            inode.content.place(write.seq, place);
        }
    }

    /// Adds a write to the disk's cache. A full cache writes its oldest content to the medium.
    pub(super) fn take_into_cache(&mut self, write: VolatileWrite) {
        self.cache.push_back(write);
        self.cache_bytes += write.bytes;
        while self.cache_bytes > self.profile.write_cache || self.cache.len() > WAITING_MAX {
            let Some(oldest) = self.cache.pop_front() else { break };
            self.cache_bytes -= oldest.bytes;
            self.place(oldest, Location::Medium);
        }
    }

    /// Moves the writes that entered the cache before `barrier`, of one file or of all, to the place that
    /// `to` returns.
    fn flush(&mut self, file: Option<u64>, barrier: u64, mut to: impl FnMut() -> Location) {
        for write in std::mem::take(&mut self.cache) {
            if write.seq < barrier && file.is_none_or(|file| file == write.inode) {
                self.cache_bytes -= write.bytes;
                self.place(write, to());
            } else {
                self.cache.push_back(write);
            }
        }
    }

    /// Moves a file's own buffered writes from before `barrier` to the place that `to` returns.
    fn flush_file(&mut self, inode: u64, barrier: u64, mut to: impl FnMut() -> Location) {
        if self.dirty.is_empty() {
            return;
        }
        let mut written = Vec::new();
        self.forget_dirty(|write| {
            let gone = write.inode == inode && write.seq < barrier;
            if gone {
                written.push(*write);
            }
            gone
        });
        for write in written {
            let place = to();
            self.place(write, place);
            if place == Location::Cache {
                self.take_into_cache(write);
            }
        }
    }

    /// Syncs a file or directory, covering the changes from before `barrier`. Returns 0 or a negative errno.
    pub(super) fn sync(
        &mut self,
        inode: u64,
        data_only: bool,
        barrier: u64,
        struck: &Struck,
        fate: &mut Fate,
    ) -> i32 {
        if struck.by(Fault::WriteError) {
            self.flush_file(inode, barrier, || Location::Gone);
            return -libc::EIO;
        }
        if struck.by(Fault::FlushError) {
            // Other files' writes stay in the disk's cache: their own sync decides about them.
            if struck.dirty == Dirty::Lost {
                let mut either = || if fate.source.below(2) == 0 { Location::Medium } else { Location::Gone };
                self.flush_file(inode, barrier, &mut either);
                self.flush(Some(inode), barrier, either);
            }
            return -libc::EIO;
        }
        if struck.by(Fault::LyingFlush) {
            self.flush_file(inode, barrier, || Location::Cache);
            return 0;
        }
        self.flush_file(inode, barrier, || Location::Medium);
        self.flush(None, barrier, || Location::Medium);
        let Some(found) = self.tree.get_mut(inode) else { return 0 };
        let last_length = found.content.last_length(barrier);
        found.content.settle_growth(barrier);
        found.content.compact();
        if !data_only {
            found.durable_attributes.clone_from(&found.attributes);
        }
        match self.profile.metadata {
            MetadataOrder::Journal => {
                let last = last_length.max(self.tree.last_touch(inode, barrier, data_only));
                if let Some(last) = last {
                    self.tree.commit(last);
                }
            }
            MetadataOrder::Posix => {
                self.tree.settle_lengths(inode, barrier);
                self.tree.settle_dir(inode, barrier);
            }
        }
        0
    }

    /// Forgets all volatile state except the files' logs.
    pub(super) fn forget(&mut self) {
        self.cache.clear();
        self.dirty.clear();
        (self.cache_bytes, self.dirty_bytes) = (0, 0);
        self.timing.reset();
    }
}
