//! The disks and the file system of a world: their content, the operations in flight, and the time at which
//! each completes.
//!
//! Nothing here waits or runs by itself. The world submits each operation together with the time of its submission, queries the
//! time of the next event, and handles the events that are due. An operation has its effect on data at that moment.
//!
//! The table of the [crate] lists when data becomes durable and which states a power cut
//! may leave.

mod cache;
mod calls;
mod content;
mod copy;
mod crash;
mod disk;
mod finish;
mod flight;
mod handles;
mod inode;
mod names;
mod pages;
mod ranges;
mod rules;
mod submit;
#[cfg(test)]
mod tests;
mod timing;

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

pub use self::rules::Counts;

use self::content::Doom;
use self::disk::Disk;
use self::flight::{Flight, IoFlight};
use self::rules::{Faults, Rules, Struck, Target};

use forebay::internal::{ErrorExt, MetaReply, OpKind, Transfer};
use forebay::{Alignment, Error, Result};

use crate::fault::Rule;
use crate::history::{Fate, What};
use crate::profile::Profile;

/// The number of an operation or call in flight. The submitter chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IoId(pub(crate) u64);

/// A read, write or sync.
#[derive(Debug)]
pub(crate) struct SimIo {
    pub(crate) id: IoId,
    pub(crate) kind: OpKind,
    /// The open file's number.
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) transfer: Option<Transfer>,
    pub(crate) len: u32,
    /// A write that bypasses the disk's volatile cache.
    pub(crate) fua: bool,
}

/// The completion of an operation or call.
#[derive(Debug)]
pub(crate) enum Completion {
    /// The number of bytes moved, or a negative errno.
    Io { id: IoId, result: i32 },
    /// The reply to `Open`, `OpenDir` and `TempFile`.
    Opened { id: IoId, result: Result<OpenedFile> },
    /// The reply to every other call.
    Meta { id: IoId, result: Result<MetaReply> },
}

/// The result of opening a file: its number, and its disk's properties.
#[derive(Clone, Debug)]
pub(crate) struct OpenedFile {
    pub(crate) number: u32,
    pub(crate) alignment: Alignment,
    pub(crate) disk_name: String,
    pub(crate) disk_number: u64,
}

/// An open file.
#[derive(Clone, Debug)]
struct Handle {
    disk: usize,
    inode: u64,
    path: Rc<Path>,
    read: bool,
    write: bool,
    direct: bool,
}

/// All disks of a world, and everything in flight to or from them.
#[derive(Debug)]
pub(crate) struct Machine {
    disks: Vec<Disk>,
    /// The mount point of each disk, in components.
    mounts: Vec<names::Names>,
    /// The number of mounts whose directories have been made.
    settled: usize,
    handles: BTreeMap<u32, Handle>,
    next_handle: u32,
    /// Smaller numbers were given before the last restart.
    first_handle: u32,
    flights: BTreeMap<IoId, Flight>,
    /// The flights by the time at which each continues; at equal times in the order of submission.
    events: BTreeMap<(u64, u64), IoId>,
    serial: u64,
    injected: Rules,
    counts: Counts,
    violations: Vec<String>,
    on: bool,
    /// Bytes of a read on their way from a file to memory.
    scratch: Vec<u8>,
}

impl Machine {
    /// Returns a machine that is switched on. When it has no disk at `/`, its first use mounts an ideal one
    /// there.
    pub(crate) fn new() -> Machine {
        Machine {
            disks: Vec::new(),
            mounts: Vec::new(),
            settled: 0,
            handles: BTreeMap::new(),
            next_handle: 1,
            first_handle: 1,
            flights: BTreeMap::new(),
            events: BTreeMap::new(),
            serial: 0,
            injected: Rules::default(),
            counts: Counts::default(),
            violations: Vec::new(),
            on: true,
            scratch: Vec::new(),
        }
    }

    /// Adds a disk.
    ///
    /// # Errors
    /// When no disk can have the profile's properties, or when another disk is mounted there.
    pub(crate) fn mount(&mut self, profile: Profile) -> Result<()> {
        profile.check()?;
        let mount = names::components(&profile.mount);
        if self.mounts.contains(&mount) {
            return Err(Error::invalid("mount", "another disk is mounted there").with_path(&profile.mount));
        }
        self.disks.push(Disk::new(self.disks.len(), profile));
        self.mounts.push(mount);
        Ok(())
    }

    /// Returns the time of the next event.
    pub(crate) fn next_event_ns(&self) -> Option<u64> {
        self.events.first_key_value().map(|((time_ns, _), _)| *time_ns)
    }

    /// Handles the events that are due at `now_ns`, earliest first, lets each have its effect, and returns the first completion.
    pub(crate) fn pop_due(&mut self, now_ns: u64, fate: &mut Fate) -> Option<Completion> {
        loop {
            let first = self.events.first_entry().filter(|event| event.key().0 <= now_ns)?;
            let ((time_ns, _), id) = first.remove_entry();
            let done = match self.flights.remove(&id) {
                Some(Flight::Io(flight)) => Some(self.finish(*flight, time_ns, fate)),
                Some(Flight::Meta(flight)) => self.go_on(id, *flight, time_ns, fate),
                None => None,
            };
            if done.is_some() {
                return done;
            }
        }
    }

    /// Closes a file after its last owner.
    pub(crate) fn close(&mut self, file: u32) {
        let in_use = |flight: &Flight| matches!(flight, Flight::Io(flight) if flight.io.file == file);
        if let Some(handle) = self.handles.remove(&file) {
            if self.flights.values().any(in_use) {
                self.violations.push(format!("file {file} was closed with operations in flight"));
            }
            if let Some(disk) = self.disks.get_mut(handle.disk) {
                disk.tree.close(handle.inode, file);
            }
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Returns whether a durable write to a file that ends at `end` is one operation with FUA. One that makes the file longer needs
    /// a flush, and so does one from the page cache.
    pub(crate) fn has_fua(&self, file: u32, end: u64) -> bool {
        let Some(handle) = self.handles.get(&file).filter(|handle| handle.direct) else { return false };
        let disk = self.disks.get(handle.disk).filter(|disk| disk.profile.fua_ns.is_some());
        disk.and_then(|disk| disk.tree.get(handle.inode)).is_some_and(|inode| end <= inode.content.len)
    }

    /// Adds a rule for all disks.
    pub(crate) fn inject(&mut self, rule: Rule) {
        self.injected.add(rule);
    }

    /// Removes all rules, so that no fault strikes from now on. The damage already done stays.
    pub(crate) fn clear_faults(&mut self) {
        self.injected.clear();
        self.disks.iter_mut().for_each(|disk| disk.rules.clear());
    }

    /// Returns the forbidden things that the core did since the last call.
    pub(crate) fn violations(&mut self) -> Vec<String> {
        std::mem::take(&mut self.violations)
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Applies the rules of a disk, and those for all disks, to one operation, and returns the faults that
    /// strike it.
    fn strike(&mut self, disk: usize, target: &Target<'_>, fate: &mut Fate) -> Struck {
        let mut struck = Struck::default();
        if target.possible != Faults::default() {
            if let Some(disk) = self.disks.get_mut(disk) {
                disk.rules.ask(target, fate, &mut self.counts, &mut struck);
            }
            self.injected.ask(target, fate, &mut self.counts, &mut struck);
        }
        struck
    }

    /// Lets a flight continue at a given time.
    fn schedule(&mut self, id: IoId, time_ns: u64, flight: Flight) {
        let event = self.event(id, time_ns);
        let flight = match flight {
            Flight::Io(mut flight) => {
                flight.event = Some(event);
                Flight::Io(flight)
            }
            other => other,
        };
        self.flights.insert(id, flight);
    }

    fn event(&mut self, id: IoId, time_ns: u64) -> (u64, u64) {
        let event = (time_ns, self.serial);
        self.serial += 1;
        self.events.insert(event, id);
        event
    }

    fn note_done(&mut self, flight: &IoFlight, result: i32, time_ns: u64, fate: &mut Fate) {
        let io = &flight.io;
        let result = result as u32;
        fate.history.note(
            What::Done,
            &[
                io.id.0,
                io.kind as u64,
                u64::from(io.file),
                io.offset,
                u64::from(io.len),
                u64::from(result),
                time_ns,
            ],
        );
    }
}
