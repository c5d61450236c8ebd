//! Calls about names and open files: the time at which they act, the syncs that follow as separate steps, and their errors, which
//! are those of the operating system's calls (`driver/meta`).

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use forebay::internal::{At, ErrorExt, MetaReply, MetaRequest, dir_entry};
use forebay::{DirEntry, Error, FileKind, Result};

use super::flight::{DirSync, Flight, MetaFlight};
use super::handles::spot;
use super::names::{Spot, components};
use super::rules::{Faults, Struck, Target};
use super::{Completion, IoId, Machine};
use crate::fault::Fault;
use crate::history::{Fate, What};

/// The wording of the real calls.
const CHANGED: &str =
    "the name was changed, but its directory could not be synced, so the change may be lost";
const SYNC: Faults = Faults::of(&[Fault::LyingFlush, Fault::FlushError, Fault::Slow]);
pub(super) const OPEN: Faults = Faults::of(&[Fault::TooManyFiles]);
pub(super) const MAKE: Faults = Faults::of(&[Fault::NoSpace]);

impl Machine {
    /// Accepts a call and schedules its first step.
    pub(crate) fn ask(&mut self, id: IoId, request: MetaRequest, now_ns: u64, _fate: &mut Fate) {
        if self.flights.contains_key(&id) {
            self.violations.push(format!("call {} was made again while it was under way", id.0));
            return;
        }
        self.settle_in();
        let call_ns = if self.on {
            self.disks.get(self.disk_of(&request)).map_or(0, |disk| disk.profile.call_ns)
        } else {
            0
        };
        let flight = MetaFlight {
            request,
            acted: false,
            syncs: VecDeque::new(),
            barrier: 0,
            struck: Struck::default(),
        };
        self.schedule(id, now_ns.saturating_add(call_ns), Flight::Meta(Box::new(flight)));
    }

    /// Withdraws a call and returns its request, unless it has acted, or a thread has started it by fate.
    pub(crate) fn withdraw(&mut self, id: IoId, fate: &mut Fate) -> Option<MetaRequest> {
        let waits = matches!(self.flights.get(&id), Some(Flight::Meta(flight)) if !flight.acted);
        if waits && fate.source.below(2) == 0 { self.forget(id) } else { None }
    }

    /// Lets a call continue at this time, behind others.
    #[cfg(feature = "_mutants")]
    pub(crate) fn put_off(&mut self, id: IoId, time_ns: u64) {
        self.events.retain(|_, of| *of != id);
        self.event(id, time_ns);
    }

    /// Removes a call and returns its request.
    pub(crate) fn forget(&mut self, id: IoId) -> Option<MetaRequest> {
        match self.flights.remove(&id) {
            Some(Flight::Meta(flight)) => {
                self.events.retain(|_, of| *of != id);
                Some(flight.request)
            }
            other => {
                self.flights.extend(other.map(|flight| (id, flight)));
                None
            }
        }
    }

    /// Returns the first disk of a call.
    pub(super) fn disk_of(&self, request: &MetaRequest) -> usize {
        let disk_at = |path: &At| match path.dir() {
            Some(dir) => self.handle_of(dir).map_or(0, |(_, handle)| handle.disk),
            None => self.mounted(&components(path.path())).map_or(0, |(disk, _)| disk),
        };
        match request {
            MetaRequest::Open { path, .. }
            | MetaRequest::OpenDir { path }
            | MetaRequest::TempFile { dir: path, .. }
            | MetaRequest::Rename { from: path, .. }
            | MetaRequest::HardLink { from: path, .. }
            | MetaRequest::RenameUnsynced { from: path, .. }
            | MetaRequest::HardLinkUnsynced { from: path, .. }
            | MetaRequest::RemoveFile { path }
            | MetaRequest::RemoveDir { path }
            | MetaRequest::CreateDir { path }
            | MetaRequest::CreateDirAll { path }
            | MetaRequest::SyncDir { path }
            | MetaRequest::ReadDir { path }
            | MetaRequest::Metadata { path }
            | MetaRequest::SymlinkMetadata { path } => disk_at(path),
            MetaRequest::MetadataMany { paths } => paths.first().map_or(0, disk_at),
            MetaRequest::FileMetadata { file }
            | MetaRequest::Allocate { file, .. }
            | MetaRequest::WriteZeros { file, .. }
            | MetaRequest::PunchHole { file, .. }
            | MetaRequest::Truncate { file, .. }
            | MetaRequest::Advise { file, .. }
            | MetaRequest::CopyRange { from: file, .. }
            | MetaRequest::TryLock { file, .. }
            | MetaRequest::Unlock { file }
            | MetaRequest::RecordLock { file, .. }
            | MetaRequest::SetModified { file, .. }
            | MetaRequest::SetAttribute { file, .. }
            | MetaRequest::Attributes { file } => self.handle_of(file).map_or(0, |(_, handle)| handle.disk),
        }
    }

    /// Carries out the next step of a call. Returns the completion if that step was the last.
    pub(super) fn go_on(
        &mut self,
        id: IoId,
        mut flight: MetaFlight,
        now_ns: u64,
        fate: &mut Fate,
    ) -> Option<Completion> {
        let operation = flight.request.operation();
        if !self.on {
            let refused = Err(Error::os(operation, libc::EIO).with_note("the machine is switched off"));
            return Some(self.answer(id, &flight.request, refused, now_ns, fate));
        }
        if flight.acted {
            if let Some(sync) = flight.syncs.pop_front()
                && let Err(error) = self.sync_dir(operation, &sync, &flight, fate)
            {
                return Some(self.answer(id, &flight.request, Err(error), now_ns, fate));
            }
        } else {
            if flight.request.opens() {
                let result = self.open_any(id, &flight.request, now_ns, fate);
                self.counts.calls += 1;
                let errno = result.as_ref().err().map_or(0, errno_of);
                fate.history.note(What::Meta, &[id.0, operation_number(&flight.request), errno, now_ns]);
                return Some(Completion::Opened { id, result });
            }
            flight.acted = true;
            let effect = self.act(id, &flight.request, now_ns, fate);
            match effect {
                Err(error) => return Some(self.answer(id, &flight.request, Err(error), now_ns, fate)),
                Ok(Effect::Done(reply)) => {
                    return Some(self.answer(id, &flight.request, Ok(reply), now_ns, fate));
                }
                Ok(Effect::Syncs(syncs)) => flight.syncs = syncs,
            }
        }
        let Some(sync) = flight.syncs.front() else {
            return Some(self.answer(id, &flight.request, Ok(MetaReply::Done), now_ns, fate));
        };
        let target = Target { id: id.0, possible: SYNC, path: &sync.at, range: None };
        let struck = self.strike(sync.disk, &target, fate);
        let disk = self.disks.get_mut(sync.disk)?;
        let base_ns = disk.profile.durable_ns(now_ns).0;
        let base_ns = if struck.by(Fault::Slow) { base_ns.saturating_mul(1000) } else { base_ns };
        let span = disk.timing.take(&disk.profile, base_ns, 0, 1, now_ns, fate);
        flight.barrier = disk.seq();
        flight.struck = struck;
        self.schedule(id, span.end_ns, Flight::Meta(Box::new(flight)));
        None
    }

    fn sync_dir(
        &mut self,
        operation: &'static str,
        sync: &DirSync,
        flight: &MetaFlight,
        fate: &mut Fate,
    ) -> Result<()> {
        let Some(disk) = self.disks.get_mut(sync.disk) else { return Ok(()) };
        self.counts.flushes += 1;
        match disk.sync(sync.dir, false, flight.barrier, &flight.struck, fate) {
            0 => Ok(()),
            errno => {
                let error = Error::os(operation, -errno).with_path(&sync.path);
                Err(if sync.changed { error.with_note(CHANGED) } else { error })
            }
        }
    }

    fn answer(
        &mut self,
        id: IoId,
        request: &MetaRequest,
        result: Result<MetaReply>,
        now_ns: u64,
        fate: &mut Fate,
    ) -> Completion {
        self.counts.calls += 1;
        let errno = result.as_ref().err().map_or(0, errno_of);
        fate.history.note(What::Meta, &[id.0, operation_number(request), errno, now_ns]);
        match &result {
            Ok(MetaReply::Entries(entries)) => {
                for entry in entries {
                    fate.history.bytes(entry.name().as_encoded_bytes());
                }
            }
            Ok(MetaReply::Metadata(found)) => {
                fate.history
                    .note(What::Meta, &[found.inode(), found.len(), found.links(), found.blocks_bytes()]);
            }
            Ok(MetaReply::MetadataMany(all)) => {
                for found in all {
                    let (inode, len) = found.as_ref().map_or((0, 0), |found| (found.inode(), found.len()));
                    fate.history.note(What::Meta, &[inode, len]);
                }
            }
            Ok(MetaReply::Copied(bytes)) => fate.history.note(What::Meta, &[*bytes]),
            _ => {}
        }
        match result {
            Err(error) if request.opens() => Completion::Opened { id, result: Err(error) },
            result => Completion::Meta { id, result },
        }
    }

    /// Carries out a call. Returns its reply, or the directories to be synced before it completes.
    fn act(&mut self, id: IoId, request: &MetaRequest, now_ns: u64, fate: &mut Fate) -> Result<Effect> {
        let operation = request.operation();
        let at = |path: &At, result: Result<(), i32>| match result {
            Ok(()) => Ok(Effect::Done(MetaReply::Done)),
            Err(errno) => Err(Error::os(operation, errno).with_path(path.path())),
        };
        let both = |errno, from: &At, word, to: &At| {
            Error::os(operation, errno)
                .with_path(from.path())
                .with_note(format!("{word} {}", to.path().display()))
        };
        match request {
            MetaRequest::Rename { from, to } => {
                let (from_dir, to_dir) = (self.parent(operation, from)?, self.parent(operation, to)?);
                self.rename(from, to, now_ns).map_err(|errno| both(errno, from, "to", to))?;
                // The new name first: when power fails between the two syncs the file should have both names.
                let mut syncs = VecDeque::from([dir_sync(&to_dir, to.path(), true)]);
                if from_dir.0 != to_dir.0 {
                    syncs.push_back(dir_sync(&from_dir, from.path(), true));
                }
                Ok(Effect::Syncs(syncs))
            }
            MetaRequest::HardLink { from, to } => {
                let to_dir = self.parent(operation, to)?;
                self.hard_link(from, to, now_ns).map_err(|errno| both(errno, from, "as", to))?;
                Ok(Effect::Syncs(VecDeque::from([dir_sync(&to_dir, to.path(), true)])))
            }
            MetaRequest::RenameUnsynced { from, to } => {
                self.rename(from, to, now_ns).map_err(|errno| both(errno, from, "to", to))?;
                Ok(Effect::Done(MetaReply::Done))
            }
            MetaRequest::HardLinkUnsynced { from, to } => {
                self.hard_link(from, to, now_ns).map_err(|errno| both(errno, from, "as", to))?;
                Ok(Effect::Done(MetaReply::Done))
            }
            MetaRequest::SyncDir { path } => {
                let (spot, path) = (self.find_dir(path), path.path());
                let spot = spot.map_err(|errno| Error::os(operation, errno).with_path(path))?;
                Ok(Effect::Syncs(VecDeque::from([dir_sync(&(spot, path.to_path_buf()), path, false)])))
            }
            MetaRequest::RemoveFile { path } => at(path, self.remove_file(path, now_ns)),
            MetaRequest::RemoveDir { path } => at(path, self.remove_dir(path, now_ns)),
            MetaRequest::CreateDir { path } => {
                let room = self.room_to_make(id, path, fate);
                at(path, room.and_then(|()| self.create_dir(path, now_ns)))
            }
            MetaRequest::CreateDirAll { path } => {
                let room = match self.find(path) {
                    Ok(_) => Ok(()),
                    Err(_) => self.room_to_make(id, path, fate),
                };
                at(path, room.and_then(|()| self.create_dir_all(path.path(), now_ns)))
            }
            MetaRequest::ReadDir { path } => match self.find_dir(path) {
                Ok(spot) => Ok(Effect::Done(MetaReply::Entries(self.entries(spot)))),
                Err(errno) => at(path, Err(errno)),
            },
            // Symbolic links are not simulated.
            MetaRequest::Metadata { path } | MetaRequest::SymlinkMetadata { path } => {
                match self.find(path).and_then(|spot| self.metadata(spot)) {
                    Ok(found) => Ok(Effect::Done(MetaReply::Metadata(found))),
                    Err(errno) => at(path, Err(errno)),
                }
            }
            MetaRequest::MetadataMany { paths } => {
                let found = paths.iter().map(|path| {
                    let found = self.find(path).and_then(|spot| self.metadata(spot));
                    found.map_err(|errno| Error::os(operation, errno).with_path(path.path()))
                });
                Ok(Effect::Done(MetaReply::MetadataMany(found.collect())))
            }
            other => self.act_on_file(id, other, now_ns, fate).map(Effect::Done),
        }
    }

    /// Returns the directory of a path, which the real calls open first.
    fn parent(&self, operation: &'static str, at: &At) -> Result<(Spot, PathBuf)> {
        let path = at.path();
        let (Some(dir), Some(_)) = (path.parent(), path.file_name()) else {
            return Err(Error::invalid(operation, "this path does not end in a name").with_path(path));
        };
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let found = match at.dir() {
            Some(handle) => self.handle_of(handle).map(|(_, handle)| spot(&handle)),
            None => self.find_dir(&dir.into()),
        };
        match found {
            Ok(spot) => Ok((spot, dir.to_path_buf())),
            Err(errno) => Err(Error::os(operation, errno)
                .with_path(path)
                .with_note(format!("cannot open the directory {}", dir.display()))),
        }
    }

    /// Fails with `ENOSPC` when a rule denies space for a new file.
    pub(super) fn room_to_make(&mut self, id: IoId, path: &At, fate: &mut Fate) -> Result<(), i32> {
        let Ok(slot) = self.slot(path) else { return Ok(()) };
        if slot.inode.is_some() {
            return Ok(());
        }
        let target = Target { id: id.0, possible: MAKE, path: path.path(), range: None };
        if self.strike(slot.disk, &target, fate).by(Fault::NoSpace) { Err(libc::ENOSPC) } else { Ok(()) }
    }

    fn entries(&self, spot: Spot) -> Vec<DirEntry> {
        let Some(dir) = self.inode(spot) else { return Vec::new() };
        let kind = |inode| {
            if self.inode(Spot { disk: spot.disk, inode }).is_some_and(|inode| inode.is_dir) {
                FileKind::Dir
            } else {
                FileKind::File
            }
        };
        // The map is in order of names, as the real call sorts them.
        dir.names.iter().map(|(name, inode)| dir_entry(name.clone(), kind(*inode))).collect()
    }
}

/// The effect of a call: its reply, or the directories that have to be synced before it.
enum Effect {
    Done(MetaReply),
    Syncs(VecDeque<DirSync>),
}

fn dir_sync((spot, at): &(Spot, PathBuf), path: &Path, changed: bool) -> DirSync {
    DirSync { disk: spot.disk, dir: spot.inode, path: path.to_path_buf(), at: at.clone(), changed }
}

fn errno_of(error: &Error) -> u64 {
    // Errors that are not the system's get a number outside of errno.
    error.raw_os_error().map_or(u64::from(u32::MAX), |errno| errno as u64)
}

/// Returns the number of a call's kind in histories. The numbers never change.
fn operation_number(request: &MetaRequest) -> u64 {
    match request {
        MetaRequest::Open { .. } => 1,
        MetaRequest::TempFile { .. } => 2,
        MetaRequest::Rename { .. } => 3,
        MetaRequest::HardLink { .. } => 4,
        MetaRequest::RemoveFile { .. } => 5,
        MetaRequest::RemoveDir { .. } => 6,
        MetaRequest::CreateDir { .. } => 7,
        MetaRequest::CreateDirAll { .. } => 8,
        MetaRequest::SyncDir { .. } => 9,
        MetaRequest::ReadDir { .. } => 10,
        MetaRequest::Metadata { .. } => 11,
        MetaRequest::FileMetadata { .. } => 12,
        MetaRequest::Allocate { .. } => 13,
        MetaRequest::PunchHole { .. } => 14,
        MetaRequest::Truncate { .. } => 15,
        MetaRequest::Advise { .. } => 16,
        MetaRequest::CopyRange { .. } => 17,
        MetaRequest::TryLock { .. } => 18,
        MetaRequest::Unlock { .. } => 19,
        MetaRequest::OpenDir { .. } => 20,
        MetaRequest::RenameUnsynced { .. } => 21,
        MetaRequest::HardLinkUnsynced { .. } => 22,
        MetaRequest::MetadataMany { .. } => 23,
        MetaRequest::SymlinkMetadata { .. } => 24,
        MetaRequest::WriteZeros { .. } => 25,
        MetaRequest::SetModified { .. } => 26,
        MetaRequest::SetAttribute { .. } => 27,
        MetaRequest::Attributes { .. } => 28,
        MetaRequest::RecordLock { .. } => 29,
    }
}
