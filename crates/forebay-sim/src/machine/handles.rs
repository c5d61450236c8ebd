//! Opening files, and calls on open files: space, length, locks, copies.

use std::path::Path;
use std::rc::Rc;
use std::time::SystemTime;

use forebay::internal::{self, At, ErrorExt, FdOwner, MetaReply, MetaRequest, OpenHow, SimMetadata};
use forebay::{Error, ErrorKind, FileKind, Lock, Metadata, Result};

use super::disk::FILE_MAX;
use super::inode::Inode;
use super::names::Spot;
use super::pages::PAGE;
use super::rules::Target;
use super::{Handle, IoId, Machine, OpenedFile, calls};
use crate::fault::Fault;
use crate::history::Fate;

const DIR: u32 = 0o040_000;
const FILE: u32 = 0o100_000;

impl Machine {
    pub(super) fn open_any(
        &mut self,
        id: IoId,
        request: &MetaRequest,
        now_ns: u64,
        fate: &mut Fate,
    ) -> Result<OpenedFile> {
        if let MetaRequest::Open { path, .. }
        | MetaRequest::OpenDir { path }
        | MetaRequest::TempFile { dir: path, .. } = request
        {
            let target = Target { id: id.0, possible: calls::OPEN, path: path.path(), range: None };
            if self.strike(self.disk_of(request), &target, fate).by(Fault::TooManyFiles) {
                return Err(Error::os(request.operation(), libc::EMFILE).with_path(path.path()));
            }
        }
        match request {
            MetaRequest::Open { path, how } => self.open(id, path, how, now_ns, fate),
            MetaRequest::OpenDir { path } => self.open_dir(path),
            MetaRequest::TempFile { dir, direct } => self.temp_file(id, dir, *direct, now_ns, fate),
            other => Err(Error::new(ErrorKind::Unsupported, other.operation())),
        }
    }

    /// Opens a directory, through which the names in it are reached.
    fn open_dir(&mut self, at: &At) -> Result<OpenedFile> {
        let failed = |errno| Error::os("open_dir", errno).with_path(at.path());
        let spot = self.find_dir(at).map_err(failed)?;
        self.handle(spot, at.path(), (true, false), false).ok_or_else(|| failed(libc::ENOENT))
    }

    fn open(&mut self, id: IoId, at: &At, how: &OpenHow, now_ns: u64, fate: &mut Fate) -> Result<OpenedFile> {
        const OPERATION: &str = "open";
        let path = at.path();
        let invalid = |note: &str| Error::invalid(OPERATION, note).with_path(path);
        if !how.read && !how.write {
            return Err(invalid("a file is opened to read it, to write it, or both"));
        }
        if !how.write && (how.create || how.create_new || how.truncate) {
            return Err(invalid("creating or truncating a file needs it opened for writing"));
        }
        let found = self.find(at);
        if !how.create_new && found.is_ok_and(|spot| self.inode(spot).is_some_and(|inode| inode.is_dir)) {
            return Err(invalid("it is a directory, but only regular files and block devices have offsets"));
        }
        let failed = |errno: i32| {
            let error = Error::os(OPERATION, errno).with_path(path);
            match errno {
                libc::ENAMETOOLONG => error.with_note("a part of the path is too long"),
                _ => error,
            }
        };
        let spot = match found {
            Ok(_) if how.create_new => return Err(failed(libc::EEXIST)),
            Ok(spot) => spot,
            Err(libc::ENOENT) if how.create || how.create_new => {
                let slot = self.slot(at).map_err(failed)?;
                self.room_to_make(id, at, fate).map_err(failed)?;
                // The process's umask is the usual one.
                let inode = Inode::new(false, how.mode & 0o777 & !0o022, now_ns);
                let inode = self.make(&slot, inode, now_ns).map_err(failed)?;
                Spot { disk: slot.disk, inode }
            }
            Err(errno) => return Err(failed(errno)),
        };
        if how.truncate {
            self.resize(spot, 0, now_ns);
        }
        self.handle(spot, path, (how.read, how.write), how.direct).ok_or_else(|| failed(libc::ENOENT))
    }

    fn temp_file(
        &mut self,
        id: IoId,
        at: &At,
        direct: bool,
        now_ns: u64,
        fate: &mut Fate,
    ) -> Result<OpenedFile> {
        let dir = at.path();
        let failed = |errno| Error::os("temp_file", errno).with_path(dir);
        let spot = self.find_dir(at).map_err(failed)?;
        if self.is_removed(spot) {
            return Err(failed(libc::ENOENT));
        }
        let target = Target { id: id.0, possible: calls::MAKE, path: dir, range: None };
        if self.strike(spot.disk, &target, fate).by(Fault::NoSpace) {
            return Err(failed(libc::ENOSPC));
        }
        let disk = self.disks.get_mut(spot.disk).ok_or_else(|| failed(libc::ENOENT))?;
        let inode = disk.tree.add(Inode::new(false, 0o600, now_ns));
        let spot = Spot { disk: spot.disk, inode };
        self.handle(spot, dir, (true, true), direct).ok_or_else(|| failed(libc::ENOENT))
    }

    fn handle(
        &mut self,
        spot: Spot,
        path: &Path,
        (read, write): (bool, bool),
        direct: bool,
    ) -> Option<OpenedFile> {
        let disk = self.disks.get_mut(spot.disk)?;
        disk.tree.open(spot.inode);
        let number = self.next_handle;
        self.next_handle += 1;
        let handle = Handle { disk: spot.disk, inode: spot.inode, path: Rc::from(path), read, write, direct };
        self.handles.insert(number, handle);
        let profile = &disk.profile;
        // The core's alignment is a page at least.
        let alignment = (profile.memory_alignment.max(4096), profile.offset_alignment);
        let alignment = internal::alignment(direct.then_some(alignment));
        Some(OpenedFile { number, alignment, disk_name: disk.name.clone(), disk_number: disk.number })
    }

    pub(super) fn handle_of(&self, file: &FdOwner) -> Result<(u32, Handle), i32> {
        let number = file.descriptor().simulated().map(|file| file.number).ok_or(libc::EBADF)?;
        self.handles.get(&number).map(|handle| (number, handle.clone())).ok_or(libc::EBADF)
    }

    /// Returns whether an open file has lost its last name, or `None` for a file that is not open, as after a
    /// power cut.
    pub(crate) fn has_no_name(&self, file: u32) -> Option<bool> {
        self.handles.get(&file).map(|handle| self.is_removed(spot(handle)))
    }

    pub(super) fn metadata(&self, spot: Spot) -> Result<Metadata, i32> {
        let disk = self.disks.get(spot.disk).ok_or(libc::ENOENT)?;
        let inode = disk.tree.get(spot.inode).ok_or(libc::ENOENT)?;
        let dirs = |names: &Inode| {
            names.names.values().filter(|to| disk.tree.get(**to).is_some_and(|inode| inode.is_dir)).count()
                as u64
        };
        Ok(internal::metadata(SimMetadata {
            kind: if inode.is_dir { FileKind::Dir } else { FileKind::File },
            len: if inode.is_dir { PAGE } else { inode.content.len },
            blocks_bytes: inode.content.blocks.total() * PAGE,
            mode: inode.mode | if inode.is_dir { DIR } else { FILE },
            inode: spot.inode,
            // A directory's own "." and the ".." of each directory in it.
            links: match (inode.is_dir, inode.links) {
                (true, 1..) => 2 + dirs(inode),
                (_, links) => u64::from(links),
            },
            device: disk.number,
            modified_ns: inode.modified_ns,
            created_ns: inode.created_ns,
        }))
    }

    /// Carries out a call that names an open file.
    pub(super) fn act_on_file(
        &mut self,
        id: IoId,
        request: &MetaRequest,
        now_ns: u64,
        fate: &mut Fate,
    ) -> Result<MetaReply> {
        let operation = request.operation();
        let failed = |errno| Error::os(operation, errno);
        match request {
            MetaRequest::FileMetadata { file } => {
                let (_, handle) = self.handle_of(file).map_err(failed)?;
                self.metadata(spot(&handle)).map(MetaReply::Metadata).map_err(failed)
            }
            MetaRequest::Allocate { file, offset, len } => self
                .allocate(id, file, *offset, *len, now_ns, fate)
                .map(|()| MetaReply::Done)
                .map_err(|errno| failed(errno).with_range(*offset, *len)),
            MetaRequest::WriteZeros { file, offset, len } => self
                .write_zeros(id, file, *offset, *len, now_ns, fate)
                .map(|()| MetaReply::Done)
                .map_err(|errno| failed(errno).with_range(*offset, *len)),
            MetaRequest::PunchHole { file, offset, len } => self
                .punch_hole(file, *offset, *len, now_ns)
                .map(|()| MetaReply::Done)
                .map_err(|errno| failed(errno).with_range(*offset, *len)),
            MetaRequest::Truncate { file, len } => {
                let to = |errno| failed(errno).with_note(format!("to {len} bytes"));
                let (_, handle) = self.handle_of(file).map_err(to)?;
                // ftruncate(2): EINVAL for a file that is not open for writing, and for lengths below zero.
                if !handle.write || *len > i64::MAX as u64 {
                    return Err(to(libc::EINVAL));
                }
                if *len > FILE_MAX {
                    return Err(to(libc::EFBIG));
                }
                self.resize(spot(&handle), *len, now_ns);
                Ok(MetaReply::Done)
            }
            MetaRequest::Advise { file, offset, len, .. } => match self.handle_of(file) {
                // Advice has no effect on the page cache of a simulated machine.
                Ok(_) => Ok(MetaReply::Done),
                Err(errno) => Err(failed(errno).with_range(*offset, *len)),
            },
            MetaRequest::CopyRange { from, offset, len, to, to_offset } => self
                .copy_range((from, *offset), *len, (to, *to_offset), now_ns)
                .map(MetaReply::Copied)
                .map_err(|error| error.with_range(*offset, *len)),
            MetaRequest::TryLock { file, lock } => {
                let (number, handle) = self.handle_of(file).map_err(failed)?;
                if self.try_lock(number, &handle, *lock) {
                    Ok(MetaReply::Done)
                } else {
                    Err(Error::new(ErrorKind::Locked, operation))
                }
            }
            MetaRequest::Unlock { file } => {
                let (number, handle) = self.handle_of(file).map_err(failed)?;
                if let Some(inode) = self.inode_mut(spot(&handle)) {
                    inode.locks.retain(|(holder, _)| *holder != number);
                }
                Ok(MetaReply::Done)
            }
            MetaRequest::SetModified { file, modified } => {
                let (_, handle) = self.handle_of(file).map_err(failed)?;
                let since_epoch = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                if let Some(inode) = self.inode_mut(spot(&handle)) {
                    inode.modified_ns = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
                }
                self.metadata(spot(&handle)).map(MetaReply::Metadata).map_err(failed)
            }
            MetaRequest::SetAttribute { file, name, value } => {
                let (_, handle) = self.handle_of(file).map_err(failed)?;
                let Some(inode) = self.inode_mut(spot(&handle)) else { return Err(failed(libc::ENOENT)) };
                // ext4(5): all of them lie in one block.
                let others = inode.attributes.iter().filter(|(other, _)| *other != name);
                let taken: usize = others.map(|(other, value)| other.len() + value.len()).sum();
                if taken + name.len() + value.len() > PAGE as usize {
                    return Err(failed(libc::ENOSPC));
                }
                inode.attributes.insert(name.clone(), value.clone());
                Ok(MetaReply::Done)
            }
            MetaRequest::Attributes { file } => {
                let (_, handle) = self.handle_of(file).map_err(failed)?;
                let found = self.inode_mut(spot(&handle)).map(|inode| inode.attributes.clone());
                Ok(MetaReply::Attributes(found.unwrap_or_default().into_iter().collect()))
            }
            _ => Err(Error::new(ErrorKind::Unsupported, operation)),
        }
    }

    fn inode_mut(&mut self, spot: Spot) -> Option<&mut Inode> {
        self.disks.get_mut(spot.disk)?.tree.get_mut(spot.inode)
    }

    /// Tries to lock as flock(2) does. A change of the kind releases the old lock first, and that lock stays
    /// lost when the new one is refused.
    fn try_lock(&mut self, number: u32, handle: &Handle, lock: Lock) -> bool {
        let Some(inode) = self.inode_mut(spot(handle)) else { return false };
        if inode.locks.contains(&(number, lock)) {
            return true;
        }
        inode.locks.retain(|(holder, _)| *holder != number);
        let free = if lock == Lock::Shared {
            inode.locks.iter().all(|(_, held)| *held == Lock::Shared)
        } else {
            inode.locks.is_empty()
        };
        if free {
            inode.locks.push((number, lock));
        }
        free
    }

    /// Sets a file's length, which is a change of metadata.
    fn resize(&mut self, spot: Spot, to: u64, now_ns: u64) {
        let Some(disk) = self.disks.get_mut(spot.disk) else { return };
        let seq = disk.next_seq();
        let Some(inode) = disk.tree.inodes.get_mut(&spot.inode) else { return };
        // truncate(2): the time changes with the same length too.
        inode.modified_ns = now_ns;
        if inode.content.len == to {
            return;
        }
        inode.content.resize(seq, to);
        disk.tree.used -= PAGE * inode.content.blocks.remove(to.div_ceil(PAGE)..u64::MAX);
        disk.tree.note_length(seq, spot.inode);
        disk.tree.trim();
    }

    /// Does as fallocate(2) with mode 0: allocates the space, and extends the file where the range ends beyond it.
    fn allocate(
        &mut self,
        id: IoId,
        file: &FdOwner,
        offset: u64,
        len: u64,
        now_ns: u64,
        fate: &mut Fate,
    ) -> Result<(), i32> {
        let (_, handle) = self.handle_of(file)?;
        check_range(offset, len, handle.write)?;
        let range = Some(offset..offset + len);
        let target = Target { id: id.0, possible: calls::MAKE, path: &handle.path, range };
        let no_space = self.strike(handle.disk, &target, fate).by(Fault::NoSpace);
        let Some(disk) = self.disks.get_mut(handle.disk) else { return Err(libc::EBADF) };
        if no_space || !disk.fits(handle.inode, offset, len) {
            return Err(libc::ENOSPC);
        }
        disk.occupy(handle.inode, offset, offset + len);
        let grows = disk.tree.get(handle.inode).is_some_and(|inode| inode.content.len < offset + len);
        if grows {
            self.resize(spot(&handle), offset + len, now_ns);
        }
        Ok(())
    }

    /// Does as fallocate(2) with FALLOC_FL_WRITE_ZEROES, where the disk has it: allocates the space as mode 0 does, and the range
    /// reads as zeros.
    fn write_zeros(
        &mut self,
        id: IoId,
        file: &FdOwner,
        offset: u64,
        len: u64,
        now_ns: u64,
        fate: &mut Fate,
    ) -> Result<(), i32> {
        let (_, handle) = self.handle_of(file)?;
        check_range(offset, len, handle.write)?;
        if !self.disks.get(handle.disk).is_some_and(|disk| disk.profile.write_zeros) {
            return Err(libc::EOPNOTSUPP);
        }
        self.allocate(id, file, offset, len, now_ns, fate)?;
        let Some(disk) = self.disks.get_mut(handle.disk) else { return Err(libc::EBADF) };
        let seq = disk.next_seq();
        let Some(inode) = disk.tree.inodes.get_mut(&handle.inode) else { return Err(libc::EBADF) };
        inode.modified_ns = now_ns;
        inode.content.hole(seq, offset..offset + len);
        disk.tree.note_length(seq, handle.inode);
        disk.tree.trim();
        Ok(())
    }

    /// Does as fallocate(2) with FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE.
    fn punch_hole(&mut self, file: &FdOwner, offset: u64, len: u64, now_ns: u64) -> Result<(), i32> {
        let (_, handle) = self.handle_of(file)?;
        check_range(offset, len, handle.write)?;
        let Some(disk) = self.disks.get_mut(handle.disk) else { return Err(libc::EBADF) };
        let seq = disk.next_seq();
        let Some(inode) = disk.tree.inodes.get_mut(&handle.inode) else { return Err(libc::EBADF) };
        inode.modified_ns = now_ns;
        inode.content.hole(seq, offset..offset + len);
        let whole = offset.div_ceil(PAGE)..((offset + len) / PAGE).max(offset.div_ceil(PAGE));
        disk.tree.used -= PAGE * inode.content.blocks.remove(whole);
        disk.tree.note_length(seq, handle.inode);
        disk.tree.trim();
        Ok(())
    }
}

pub(super) fn spot(handle: &Handle) -> Spot {
    Spot { disk: handle.disk, inode: handle.inode }
}

/// Checks a range as fallocate(2) does. It fails with EBADF for a file that is not open for writing, EINVAL
/// for offsets below 0 and empty ranges, and EFBIG beyond the greatest length.
fn check_range(offset: u64, len: u64, write: bool) -> Result<(), i32> {
    if offset > i64::MAX as u64 || len > i64::MAX as u64 || len == 0 {
        return Err(libc::EINVAL);
    }
    if !write {
        return Err(libc::EBADF);
    }
    if offset + len > FILE_MAX { Err(libc::EFBIG) } else { Ok(()) }
}
