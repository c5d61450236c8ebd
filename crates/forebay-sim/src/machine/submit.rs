//! The submission of operations: immediate refusals, the faults that strike, the time of completion, and the
//! effect of a cancel.

use forebay::internal::OpKind;

use super::flight::{End, Flight, IoFlight};
use super::rules::{Faults, Struck, Target};
use super::{Handle, IoId, Machine, SimIo};
use crate::fault::Fault;
use crate::history::Fate;

use super::disk::FILE_MAX;

const READ: Faults = Faults::of(&[
    Fault::ReadError,
    Fault::LatentSectorError,
    Fault::BitRot,
    Fault::ShortRead,
    Fault::Stuck,
    Fault::Slow,
]);
const WRITE: Faults = Faults::of(&[
    Fault::TornWrite,
    Fault::LostWrite,
    Fault::Reorder,
    Fault::WriteError,
    Fault::BitRot,
    Fault::MisdirectedWrite,
    Fault::NoSpace,
    Fault::ShortWrite,
    Fault::Stuck,
    Fault::Slow,
]);
const SYNC: Faults =
    Faults::of(&[Fault::LyingFlush, Fault::FlushError, Fault::WriteError, Fault::Stuck, Fault::Slow]);
const CANCEL: Faults = Faults::of(&[Fault::CancelRace]);

impl Machine {
    /// Accepts an operation. An operation that is refused completes with the error.
    pub(crate) fn submit(&mut self, io: SimIo, now_ns: u64, fate: &mut Fate) {
        let id = io.id;
        if self.flights.contains_key(&id) {
            self.violations.push(format!("operation {} was submitted again while it was in flight", id.0));
            return;
        }
        self.check_memory(&io);
        let handle = self.handles.get(&io.file).cloned();
        let mut flight = IoFlight {
            disk: None,
            inode: 0,
            direct: false,
            len: io.len,
            start_ns: now_ns,
            barrier: 0,
            end: End::Effect,
            struck: Struck::default(),
            event: None,
            io,
        };
        if flight.io.kind == OpKind::Nop {
            return self.schedule(id, now_ns, Flight::Io(Box::new(flight)));
        }
        let checked = match (&handle, self.on) {
            (_, false) => Err(libc::EIO),
            (Some(handle), true) => self.check(&flight.io, handle),
            (None, true) => {
                if flight.io.file >= self.first_handle || flight.io.file == 0 {
                    self.violations
                        .push(format!("operation {} names the closed file {}", id.0, flight.io.file));
                }
                Err(libc::EBADF)
            }
        };
        match (checked, handle) {
            (Ok(len), Some(handle)) => {
                flight.len = len;
                self.launch(flight, &handle, now_ns, fate);
            }
            (refused, _) => {
                flight.end = End::Refused(refused.err().unwrap_or(libc::EBADF));
                self.schedule(id, now_ns, Flight::Io(Box::new(flight)));
            }
        }
    }

    /// Decides the fate and the time of an operation that passed the checks.
    fn launch(&mut self, mut flight: IoFlight, handle: &Handle, now_ns: u64, fate: &mut Fate) {
        let (id, kind) = (flight.io.id, flight.io.kind);
        let (offset, len) = (flight.io.offset, u64::from(flight.len));
        let Some(disk) = self.disks.get(handle.disk) else { return };
        let grain = disk.short_grain(handle.direct);
        let dirty =
            if matches!(kind, OpKind::Read | OpKind::Write) { 0 } else { disk.dirty_bytes(handle.inode) };
        let possible = match kind {
            OpKind::Read => READ.with(Fault::ShortRead, len > grain),
            OpKind::Write => {
                let write = WRITE.with(Fault::ShortWrite, len > grain).with(Fault::WriteError, handle.direct);
                write.with(Fault::LyingFlush, flight.io.fua)
            }
            _ => SYNC.with(Fault::WriteError, dirty > 0),
        };
        let range = matches!(kind, OpKind::Read | OpKind::Write).then_some(offset..offset + len);
        let target = Target { id: id.0, possible, path: &handle.path, range };
        flight.struck = self.strike(handle.disk, &target, fate);
        let Some(disk) = self.disks.get_mut(handle.disk) else { return };
        (flight.disk, flight.inode) = (Some(handle.disk), handle.inode);
        (flight.direct, flight.barrier) = (handle.direct, disk.seq());
        let profile = &disk.profile;
        let (base_ns, bytes) = match kind {
            OpKind::Read => (profile.read_ns, len),
            OpKind::Write if flight.io.fua => (profile.durable_ns(now_ns).1, len),
            OpKind::Write => (profile.write_ns, len),
            _ => (profile.durable_ns(now_ns).0.saturating_add(disk.drain_ns()), dirty),
        };
        let base_ns = if flight.struck.by(Fault::Slow) { base_ns.saturating_mul(1000) } else { base_ns };
        let requests = match profile.max_request {
            0 => 1,
            most => bytes.div_ceil(u64::from(most)).max(1),
        };
        // A buffered write is a copy in memory.
        let end_ns = if kind == OpKind::Write && !handle.direct {
            now_ns.saturating_add(profile.call_ns)
        } else {
            self.counts.splits += requests - 1;
            let span = disk.timing.take(profile, base_ns, bytes, requests, now_ns, fate);
            flight.start_ns = span.start_ns;
            span.end_ns
        };
        if flight.struck.by(Fault::Stuck) {
            self.flights.insert(id, Flight::Io(Box::new(flight)));
        } else {
            self.schedule(id, end_ns, Flight::Io(Box::new(flight)))
        }
    }

    /// Returns the number of bytes to move, or the errno that Linux returns.
    fn check(&self, io: &SimIo, handle: &Handle) -> Result<u32, i32> {
        let write = io.kind == OpKind::Write;
        if !write && io.kind != OpKind::Read {
            return Ok(0);
        }
        if !(if write { handle.write } else { handle.read }) {
            return Err(libc::EBADF);
        }
        let Some(transfer) = io.transfer.as_ref().filter(|transfer| transfer.len() >= io.len as usize) else {
            return Err(libc::EFAULT);
        };
        // rw_verify_area: offsets are signed.
        let end = io.offset.checked_add(u64::from(io.len));
        if io.offset > i64::MAX as u64 || end.is_none_or(|end| end > i64::MAX as u64) {
            return Err(libc::EINVAL);
        }
        let mut len = u64::from(io.len);
        if write && len > 0 {
            // generic_write_checks: a write that starts below the limit is cut there.
            if io.offset >= FILE_MAX {
                return Err(libc::EFBIG);
            }
            len = len.min(FILE_MAX - io.offset);
        }
        let Some(disk) = self.disks.get(handle.disk) else { return Err(libc::EBADF) };
        let grain = u64::from(disk.profile.offset_alignment);
        let memory = transfer.as_range().start as u64 % u64::from(disk.profile.memory_alignment);
        let aligned = io.offset.is_multiple_of(grain) && len.is_multiple_of(grain) && memory == 0;
        // iomap_dio_rw: a read from the file's end on returns before its alignment is checked.
        let past_end =
            !write && disk.tree.get(handle.inode).is_some_and(|inode| io.offset >= inode.content.len);
        if handle.direct && !aligned && !past_end {
            return Err(libc::EINVAL);
        }
        Ok(len as u32)
    }

    /// Reports a violation when memory that a read fills is in use by another operation at the same time.
    fn check_memory(&mut self, io: &SimIo) {
        let Some(memory) = io.transfer.as_ref().map(|transfer| transfer.as_range()) else { return };
        for (other_id, other) in &self.flights {
            let Flight::Io(other) = other else { continue };
            let Some(range) = other.io.transfer.as_ref().map(|transfer| transfer.as_range()) else {
                continue;
            };
            let shared = memory.start < range.end && range.start < memory.end;
            if shared && (io.kind == OpKind::Read || other.io.kind == OpKind::Read) {
                let text = format!(
                    "operation {} ({:?}) has memory of operation {} ({:?}), which is in flight",
                    io.id.0, io.kind, other_id.0, other.io.kind
                );
                self.violations.push(text);
            }
        }
    }

    /// Requests a cancel. An operation that still waits for the disk ends with `ECANCELED`; an operation that the disk has started
    /// may do so.
    pub(crate) fn cancel(&mut self, id: IoId, now_ns: u64, fate: &mut Fate) {
        let Some(Flight::Io(flight)) = self.flights.get(&id) else { return };
        let (Some(disk), Some(event), End::Effect) = (flight.disk, flight.event, flight.end) else { return };
        let (file, started) = (flight.io.file, flight.start_ns <= now_ns);
        if let Some(path) = self.handles.get(&file).map(|handle| handle.path.clone()) {
            let target = Target { id: id.0, possible: CANCEL, path: &path, range: None };
            if self.strike(disk, &target, fate).by(Fault::CancelRace) {
                return;
            }
        }
        if started && fate.source.below(2) == 0 {
            return;
        }
        self.events.remove(&event);
        if let Some(Flight::Io(mut flight)) = self.flights.remove(&id) {
            flight.end = if started { End::Broken(libc::ECANCELED) } else { End::Refused(libc::ECANCELED) };
            self.schedule(id, now_ns, Flight::Io(flight));
        }
    }
}
