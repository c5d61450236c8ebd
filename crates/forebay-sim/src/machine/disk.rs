//! One disk: its files, its volatile cache, and the effects of writes and syncs on them.

use std::collections::VecDeque;

use super::content::{ChangeKind, Doom, Location};
use super::inode::Tree;
use super::pages::{PAGE, Piece};
use super::rules::Rules;
use super::timing::Timing;
use crate::history::Fate;
use crate::profile::Profile;

/// A file's greatest length: ext4's with blocks of 4096 bytes.
pub(super) const FILE_MAX: u64 = (1 << 44) - PAGE;

/// A write that is not on the medium: the number of its change, its file, and its length.
#[derive(Clone, Copy, Debug)]
pub(super) struct VolatileWrite {
    pub(super) seq: u64,
    pub(super) inode: u64,
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) name: String,
    pub(super) number: u64,
    pub(super) profile: Profile,
    pub(super) rules: Rules,
    pub(super) tree: Tree,
    pub(super) timing: Timing,
    /// The volatile cache, in the order of writes.
    pub(super) cache: VecDeque<VolatileWrite>,
    pub(super) cache_bytes: u64,
    /// Buffered writes in memory, oldest first.
    pub(super) dirty: VecDeque<VolatileWrite>,
    pub(super) dirty_bytes: u64,
    seq: u64,
}

/// One write as the disk sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) inode: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) direct: bool,
    /// Its bytes are on the medium immediately.
    pub(super) fua: bool,
    pub(super) doom: Doom,
    pub(super) now_ns: u64,
}

impl Disk {
    pub(super) fn new(index: usize, profile: Profile) -> Disk {
        Disk {
            name: format!("sim{index}"),
            // Major number 240: for local use.
            number: 240 << 8 | index as u64,
            rules: Rules::new(&profile.rules),
            tree: Tree::new(),
            timing: Timing::new(&profile),
            cache: VecDeque::new(),
            cache_bytes: 0,
            dirty: VecDeque::new(),
            dirty_bytes: 0,
            seq: 1,
            profile,
        }
    }

    pub(super) fn sector(&self) -> u64 {
        u64::from(self.profile.sector)
    }

    /// Returns the unit of a short operation's length, in bytes. The rest must be aligned as well, in the
    /// file and in memory: kernels stop at a block of the file system.
    pub(super) fn short_grain(&self, direct: bool) -> u64 {
        if direct { u64::from(self.profile.offset_alignment.max(self.profile.memory_alignment)) } else { 1 }
    }

    /// Returns the number of the next change. Changes with smaller numbers happened before.
    pub(super) fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq - 1
    }

    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// Returns the number of bytes of a write that fit: all, or those up to a block's end.
    fn room(&self, write: Write) -> u64 {
        if self.fits(write.inode, write.offset, write.len) {
            return write.len;
        }
        let Some(inode) = self.tree.get(write.inode) else { return 0 };
        let mut left = self.free_pages();
        let mut pages = write.offset / PAGE..(write.offset + write.len).div_ceil(PAGE);
        let full = pages.find(|&page| {
            let new = inode.content.blocks.overlap(page..page + 1) == 0;
            let full = new && left == 0;
            left -= u64::from(new && !full);
            full
        });
        full.map_or(write.len, |page| (page * PAGE).saturating_sub(write.offset))
    }

    /// Returns whether a range of a file fits.
    pub(super) fn fits(&self, inode: u64, offset: u64, len: u64) -> bool {
        let pages = offset / PAGE..(offset + len).div_ceil(PAGE);
        self.tree.get(inode).is_some_and(|inode| {
            let known = inode.content.blocks.overlap(pages.clone());
            pages.end - pages.start - known <= self.free_pages()
        })
    }

    fn free_pages(&self) -> u64 {
        self.profile.capacity.saturating_sub(self.tree.used) / PAGE
    }

    /// Allocates space for a range of a file.
    pub(super) fn occupy(&mut self, inode: u64, start: u64, end: u64) {
        if let Some(inode) = self.tree.inodes.get_mut(&inode) {
            self.tree.used += PAGE * inode.content.blocks.insert(start / PAGE..end.div_ceil(PAGE));
        }
    }

    /// Writes, and returns the number of bytes written or a negative errno.
    pub(super) fn write(&mut self, mut write: Write, source: impl FnMut(usize, &mut [u8])) -> i32 {
        let wanted = write.len;
        write.len = self.room(write);
        if write.len < wanted && write.direct {
            write.len -= write.len % u64::from(self.profile.offset_alignment);
        }
        if write.len == 0 && wanted > 0 {
            return -libc::ENOSPC;
        }
        let end = write.offset + write.len;
        self.occupy(write.inode, write.offset, end);
        self.store(write, source);
        self.grow(write.inode, end);
        write.len as i32
    }

    pub(super) fn grow(&mut self, inode: u64, to: u64) {
        let seq = self.next_seq();
        if let Some(inode) = self.tree.get_mut(inode) {
            inode.content.grow(seq, to);
        }
    }

    /// Puts bytes into a file, also beyond its length, which stays as it is.
    pub(super) fn store(&mut self, write: Write, source: impl FnMut(usize, &mut [u8])) {
        if write.direct {
            self.write_back(write.inode, write.offset..write.offset + write.len);
        }
        let (seq, sector) = (self.next_seq(), self.sector());
        let Some(inode) = self.tree.get_mut(write.inode) else { return };
        let content = &mut inode.content;
        inode.modified_ns = write.now_ns;
        content
            .bad
            .remove(write.offset / sector * sector..(write.offset + write.len).next_multiple_of(sector));
        let pieces = content.live.write(write.offset, write.len, sector, source);
        if write.fua {
            // Nothing else becomes durable with them: neither earlier writes nor lengths and names.
            content.push(seq, Location::Medium, ChangeKind::Data { pieces, doom: write.doom });
            content.compact();
            return;
        }
        let place = if write.direct { Location::Cache } else { Location::Memory };
        content.push(seq, place, ChangeKind::Data { pieces, doom: write.doom });
        let volatile = VolatileWrite { seq, inode: write.inode, bytes: write.len };
        if write.direct { self.take_into_cache(volatile) } else { self.take_into_memory(volatile) }
    }

    /// Does the same as [`store`](Disk::store) for a write that the power cut catches in flight. Such a write
    /// is in no cache that could overflow.
    pub(super) fn store_volatile(&mut self, write: Write, source: impl FnMut(usize, &mut [u8])) {
        let (seq, sector) = (self.next_seq(), self.sector());
        let Some(inode) = self.tree.get_mut(write.inode) else { return };
        let pieces = inode.content.live.write(write.offset, write.len, sector, source);
        let place = if write.direct { Location::Cache } else { Location::Memory };
        inode.content.push(seq, place, ChangeKind::Data { pieces, doom: write.doom });
    }

    /// Flips one stored bit of a range. The flip also reaches the medium.
    pub(super) fn rot(&mut self, number: u64, start: u64, end: u64, fate: &mut Fate) {
        let (seq, sector) = (self.next_seq(), self.sector());
        let Some(inode) = self.tree.get_mut(number) else { return };
        let content = &mut inode.content;
        let end = end.min(content.len);
        if start >= end {
            return;
        }
        let bit = fate.source.below((end - start).min(1 << 28) * 8);
        let at = start + bit / 8;
        content.live.flip(at, (bit % 8) as u32);
        let first = at / sector * sector;
        let pieces: Vec<Piece> = content.live.pieces(first..first + sector);
        // The flip shares the fate of the sector's last change, whose bytes it contains: the bytes read now
        // are the bytes that will be stored.
        let last = content.log.iter().rev().find(|change| match &change.kind {
            ChangeKind::Data { pieces, .. } => pieces.iter().any(|piece| piece.range().contains(&at)),
            _ => false,
        });
        let place = last.map_or(Location::Medium, |change| change.place);
        content.push(seq, place, ChangeKind::Data { pieces, doom: Doom::default() });
        content.compact();
        let volatile = VolatileWrite { seq, inode: number, bytes: 0 };
        match place {
            Location::Memory => self.dirty.push_back(volatile),
            Location::Cache => self.cache.push_back(volatile),
            Location::Medium | Location::Gone => {}
        }
    }
}
