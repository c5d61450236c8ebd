//! Path resolution. Without symbolic links and permissions; relative paths are relative to `/`.

use std::ffi::OsString;
use std::path::{Component, Path};

use forebay::internal::At;

use super::Machine;
use super::disk::Disk;
use super::handles::spot;
use super::inode::{Edit, Inode, ROOT};
use crate::profile::Profile;

/// A path, as names from the root.
pub(super) type Names = Vec<OsString>;

/// The greatest length of a name; a longer one gives ENAMETOOLONG.
const NAME_MAX: usize = 255;

pub(super) fn components(path: &Path) -> Names {
    let mut names = Names::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name.to_os_string()),
            Component::ParentDir => {
                names.pop();
            }
            _ => {}
        }
    }
    names
}

/// A file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) disk: usize,
    pub(super) inode: u64,
}

/// A name in a directory, which may not exist.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) disk: usize,
    pub(super) dir: u64,
    pub(super) name: OsString,
    /// The file or directory that the name leads to.
    pub(super) inode: Option<u64>,
}

impl Machine {
    /// Mounts a disk at `/` if it has no mount, and makes the mount points of the others.
    pub(super) fn settle_in(&mut self) {
        if self.settled == self.mounts.len() && self.settled > 0 {
            return;
        }
        if !self.mounts.iter().any(Names::is_empty) {
            self.disks.push(Disk::new(self.disks.len(), Profile::ideal()));
            self.mounts.push(Names::new());
        }
        let mut mounts = self.mounts.clone();
        mounts.sort_by_key(Vec::len);
        for mount in mounts.iter().filter(|mount| !mount.is_empty()) {
            for end in 1..=mount.len() {
                self.mount_point(&mount[..end]);
            }
        }
        self.settled = self.mounts.len();
    }

    /// Makes a directory that counts as having always existed.
    fn mount_point(&mut self, names: &[OsString]) {
        let Some((name, above)) = names.split_last() else { return };
        let Ok(above) = self.find_names(above) else { return };
        let Some(tree) = self.disks.get_mut(above.disk).map(|disk| &mut disk.tree) else { return };
        let taken = tree.get(above.inode).is_none_or(|dir| !dir.is_dir || dir.names.contains_key(name));
        if !taken {
            let inode = tree.add(Inode { links: 1, durable_links: 1, ..Inode::new(true, 0o755, 0) });
            if let Some(dir) = tree.get_mut(above.inode) {
                dir.names.insert(name.clone(), inode);
                dir.durable_names.insert(name.clone(), inode);
            }
        }
    }

    /// Returns the file or directory at a path, or the errno of path_resolution(7).
    pub(super) fn find(&self, at: &At) -> Result<Spot, i32> {
        match at.dir() {
            Some(_) if at.name() == Path::new(".") => Ok(self.dir_of(at)?.0),
            Some(_) => {
                let slot = match self.slot(at) {
                    Err(libc::EBUSY) => return self.find_names(&self.names_of(at).ok_or(libc::ENOENT)?),
                    other => other?,
                };
                Ok(Spot { disk: slot.disk, inode: slot.inode.ok_or(libc::ENOENT)? })
            }
            None if at.path().as_os_str().is_empty() => Err(libc::ENOENT),
            None => self.find_names(&components(at.path())),
        }
    }

    /// Returns the open directory that a name is in, and the path it had when it was opened.
    fn dir_of(&self, at: &At) -> Result<(Spot, Names), i32> {
        let (_, handle) = self.handle_of(at.dir().ok_or(libc::EBADF)?)?;
        Ok((spot(&handle), components(&handle.path)))
    }

    /// Returns the names of a path from the root, or `None` when its directory was moved after it was opened.
    /// The directories in which or below which disks are mounted cannot be moved.
    fn names_of(&self, at: &At) -> Option<Names> {
        if at.dir().is_none() {
            return Some(components(at.path()));
        }
        let (dir, mut names) = self.dir_of(at).ok()?;
        if self.find_names(&names) != Ok(dir) {
            return None;
        }
        names.push(at.name().as_os_str().to_os_string());
        Some(names)
    }

    /// Returns whether a directory that is still open has lost its last name.
    pub(super) fn is_removed(&self, spot: Spot) -> bool {
        self.inode(spot).is_none_or(|inode| inode.links == 0)
    }

    /// Returns the disk that a path is on, and how many names of the path lead there.
    pub(super) fn mounted(&self, names: &[OsString]) -> Option<(usize, usize)> {
        let mounts = self.mounts.iter().enumerate().filter(|(_, mount)| names.starts_with(mount));
        mounts.map(|(disk, mount)| (disk, mount.len())).max_by_key(|(_, len)| *len)
    }

    fn find_names(&self, names: &[OsString]) -> Result<Spot, i32> {
        let (disk, depth) = self.mounted(names).ok_or(libc::ENOENT)?;
        let tree = &self.disks.get(disk).ok_or(libc::ENOENT)?.tree;
        let mut inode = ROOT;
        for name in &names[depth..] {
            if name.len() > NAME_MAX {
                return Err(libc::ENAMETOOLONG);
            }
            let dir = tree.get(inode).ok_or(libc::ENOENT)?;
            if !dir.is_dir {
                return Err(libc::ENOTDIR);
            }
            inode = *dir.names.get(name).ok_or(libc::ENOENT)?;
        }
        Ok(Spot { disk, inode })
    }

    /// Returns the directory at a path.
    pub(super) fn find_dir(&self, at: &At) -> Result<Spot, i32> {
        let spot = self.find(at)?;
        if self.inode(spot).is_some_and(|inode| inode.is_dir) { Ok(spot) } else { Err(libc::ENOTDIR) }
    }

    /// Returns the last name of a path, and the directory that it is or would be in. Fails with `EBUSY` for a
    /// mount point.
    pub(super) fn slot(&self, at: &At) -> Result<Slot, i32> {
        if at.path().as_os_str().is_empty() {
            return Err(libc::ENOENT);
        }
        let names = self.names_of(at);
        if names.as_ref().is_some_and(|names| self.mounts.contains(names)) {
            return Err(libc::EBUSY);
        }
        let (above, name) = match at.dir() {
            Some(_) => (self.dir_of(at)?.0, at.name().as_os_str().to_os_string()),
            None => {
                let names = names.unwrap_or_default();
                let (name, above) = names.split_last().ok_or(libc::EBUSY)?;
                (self.find_names(above)?, name.clone())
            }
        };
        let dir = self.inode(above).filter(|dir| dir.is_dir).ok_or(libc::ENOTDIR)?;
        if name.len() > NAME_MAX {
            return Err(libc::ENAMETOOLONG);
        }
        // An open directory that was removed is empty, and stays so.
        if dir.links == 0 {
            return Err(libc::ENOENT);
        }
        let inode = dir.names.get(&name).copied();
        Ok(Slot { disk: above.disk, dir: above.inode, name, inode })
    }

    pub(super) fn inode(&self, spot: Spot) -> Option<&Inode> {
        self.disks.get(spot.disk)?.tree.get(spot.inode)
    }

    /// Makes a file or directory in an empty slot. A file without a name has a separate kind of slot.
    pub(super) fn make(&mut self, slot: &Slot, inode: Inode, now_ns: u64) -> Result<u64, i32> {
        let disk = self.disks.get_mut(slot.disk).ok_or(libc::ENOENT)?;
        let number = disk.tree.add(inode);
        let edit = Edit { dir: slot.dir, name: slot.name.clone(), to: Some(number) };
        let seq = disk.next_seq();
        disk.tree.edit(seq, number, true, vec![edit], now_ns);
        disk.tree.trim();
        Ok(number)
    }

    pub(super) fn unlink(&mut self, slot: &Slot, inode: u64, now_ns: u64) {
        if let Some(disk) = self.disks.get_mut(slot.disk) {
            let seq = disk.next_seq();
            let edit = Edit { dir: slot.dir, name: slot.name.clone(), to: None };
            disk.tree.edit(seq, inode, false, vec![edit], now_ns);
            disk.tree.trim();
        }
    }

    pub(super) fn remove_file(&mut self, path: &At, now_ns: u64) -> Result<(), i32> {
        let slot = match self.slot(path) {
            Err(libc::EBUSY) => return Err(libc::EISDIR),
            other => other?,
        };
        let inode = slot.inode.ok_or(libc::ENOENT)?;
        if self.inode(Spot { disk: slot.disk, inode }).is_some_and(|inode| inode.is_dir) {
            return Err(libc::EISDIR);
        }
        self.unlink(&slot, inode, now_ns);
        Ok(())
    }

    pub(super) fn remove_dir(&mut self, path: &At, now_ns: u64) -> Result<(), i32> {
        let slot = self.slot(path)?;
        let inode = slot.inode.ok_or(libc::ENOENT)?;
        self.empty_dir(slot.disk, inode)?;
        if self.has_mount_below(path) {
            return Err(libc::EBUSY);
        }
        self.unlink(&slot, inode, now_ns);
        Ok(())
    }

    fn has_mount_below(&self, at: &At) -> bool {
        let Some(names) = self.names_of(at) else { return false };
        self.mounts.iter().any(|mount| mount.len() > names.len() && mount.starts_with(&names))
    }

    fn empty_dir(&self, disk: usize, inode: u64) -> Result<(), i32> {
        let found = self.inode(Spot { disk, inode }).ok_or(libc::ENOENT)?;
        if !found.is_dir {
            Err(libc::ENOTDIR)
        } else if !found.names.is_empty() {
            Err(libc::ENOTEMPTY)
        } else {
            Ok(())
        }
    }

    /// Returns whether the directory `dir` is `above` or somewhere below it.
    fn is_within(&self, disk: usize, dir: u64, above: u64) -> bool {
        let mut todo = vec![above];
        while let Some(next) = todo.pop() {
            if next == dir {
                return true;
            }
            let found = self.inode(Spot { disk, inode: next }).filter(|inode| inode.is_dir);
            todo.extend(found.into_iter().flat_map(|inode| inode.names.values().copied()));
        }
        false
    }

    /// Renames as rename(2) does, without any sync.
    pub(super) fn rename(&mut self, from: &At, to: &At, now_ns: u64) -> Result<(), i32> {
        let (old, new) = (self.slot(from)?, self.slot(to)?);
        let inode = old.inode.ok_or(libc::ENOENT)?;
        if old.disk != new.disk {
            return Err(libc::EXDEV);
        }
        let is_dir = self.inode(Spot { disk: old.disk, inode }).is_some_and(|inode| inode.is_dir);
        if is_dir && self.is_within(old.disk, new.dir, inode) {
            return Err(libc::EINVAL);
        }
        if new.inode.is_some_and(|target| self.is_within(new.disk, old.dir, target)) {
            return Err(libc::ENOTEMPTY);
        }
        if is_dir && self.has_mount_below(from) {
            return Err(libc::EBUSY);
        }
        if let Some(target) = new.inode {
            if target == inode {
                return Ok(());
            }
            let target_is_dir =
                self.inode(Spot { disk: new.disk, inode: target }).is_some_and(|inode| inode.is_dir);
            match (is_dir, target_is_dir) {
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                (true, true) => self.empty_dir(new.disk, target)?,
                (false, false) => {}
            }
        }
        let Some(disk) = self.disks.get_mut(old.disk) else { return Err(libc::ENOENT) };
        let seq = disk.next_seq();
        // The new name first: the count of names must not pass through zero.
        let edits = vec![
            Edit { dir: new.dir, name: new.name, to: Some(inode) },
            Edit { dir: old.dir, name: old.name, to: None },
        ];
        disk.tree.edit(seq, inode, false, edits, now_ns);
        disk.tree.trim();
        Ok(())
    }

    /// Adds a name as link(2) does, without any sync.
    pub(super) fn hard_link(&mut self, from: &At, to: &At, now_ns: u64) -> Result<(), i32> {
        let spot = self.find(from)?;
        let slot = match self.slot(to) {
            Err(libc::EBUSY) => return Err(libc::EEXIST),
            other => other?,
        };
        if slot.inode.is_some() {
            return Err(libc::EEXIST);
        }
        if spot.disk != slot.disk {
            return Err(libc::EXDEV);
        }
        if self.inode(spot).is_some_and(|inode| inode.is_dir) {
            return Err(libc::EPERM);
        }
        let Some(disk) = self.disks.get_mut(slot.disk) else { return Err(libc::ENOENT) };
        let seq = disk.next_seq();
        let edit = Edit { dir: slot.dir, name: slot.name, to: Some(spot.inode) };
        disk.tree.edit(seq, spot.inode, false, vec![edit], now_ns);
        disk.tree.trim();
        Ok(())
    }

    pub(super) fn create_dir(&mut self, path: &At, now_ns: u64) -> Result<(), i32> {
        let slot = match self.slot(path) {
            Err(libc::EBUSY) => return Err(libc::EEXIST),
            other => other?,
        };
        if slot.inode.is_some() {
            return Err(libc::EEXIST);
        }
        self.make(&slot, Inode::new(true, 0o755, now_ns), now_ns).map(drop)
    }

    /// Makes the missing directories from the top, as std does.
    pub(super) fn create_dir_all(&mut self, path: &Path, now_ns: u64) -> Result<(), i32> {
        let names = components(path);
        for end in 1..=names.len() {
            let part = At::from(names[..end].iter().collect::<std::path::PathBuf>());
            match self.create_dir(&part, now_ns) {
                Err(libc::EEXIST) if self.find_dir(&part).is_ok() => {}
                // A file in the way fails the names below it with ENOTDIR; only as the last name it gives
                // EEXIST.
                Err(libc::EEXIST) if end < names.len() => return Err(libc::ENOTDIR),
                other => other?,
            }
        }
        Ok(())
    }
}
