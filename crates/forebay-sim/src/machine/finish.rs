//! The completion of a read, write or sync: its effect on data, and the faults that struck it.

use forebay::internal::OpKind;

use super::disk::{Disk, Write};
use super::flight::{End, IoFlight};
use super::{Completion, Doom, Machine};
use crate::fault::Fault;
use crate::history::Fate;

impl Machine {
    pub(super) fn finish(&mut self, mut flight: IoFlight, time_ns: u64, fate: &mut Fate) -> Completion {
        let result = match (flight.end, flight.disk) {
            (End::Refused(errno), _) => -errno,
            (_, None) => 0,
            (_, Some(disk)) => match self.disks.get_mut(disk) {
                None => -libc::EIO,
                Some(disk) => match flight.io.kind {
                    OpKind::Nop | OpKind::Command => 0,
                    OpKind::Read => read(disk, &mut flight, &mut self.scratch, fate),
                    OpKind::Write => write(disk, &mut flight, time_ns, fate),
                    kind => match flight.end {
                        End::Broken(errno) => -errno,
                        _ => {
                            let data_only = kind == OpKind::SyncData;
                            disk.sync(flight.inode, data_only, flight.barrier, &flight.struck, fate)
                        }
                    },
                },
            },
        };
        let moved = u64::try_from(result).unwrap_or(0);
        // All of it, and durable: as a driver reports a write with its sync.
        let is_whole = i64::from(result) == i64::from(flight.io.len);
        let result = if flight.io.fua && is_whole { 0 } else { result };
        match flight.io.kind {
            OpKind::Read => {
                self.counts.reads += 1;
                self.counts.read_bytes += moved;
            }
            OpKind::Write => {
                self.counts.writes += 1;
                self.counts.written_bytes += moved;
            }
            OpKind::SyncData | OpKind::SyncAll => self.counts.flushes += 1,
            OpKind::Nop | OpKind::Command => {}
        }
        self.note_done(&flight, result, time_ns, fate);
        if flight.io.kind == OpKind::Read {
            fate.history.bytes(&self.scratch[..moved as usize]);
        }
        Completion::Io { id: flight.io.id, result }
    }
}

fn read(disk: &mut Disk, flight: &mut IoFlight, scratch: &mut Vec<u8>, fate: &mut Fate) -> i32 {
    if let End::Broken(errno) = flight.end {
        return -errno;
    }
    let (number, offset) = (flight.inode, flight.io.offset);
    let sector = disk.sector();
    let Some(inode) = disk.tree.get(number) else { return -libc::EIO };
    let mut len = u64::from(flight.len).min(inode.content.len.saturating_sub(offset));
    if flight.struck.by(Fault::ReadError) {
        return -libc::EIO;
    }
    if flight.struck.by(Fault::LatentSectorError) && len > 0 {
        let zone = flight.struck.zone.clone().unwrap_or(0..u64::MAX);
        let (start, end) = (offset.max(zone.start), (offset + len).min(zone.end));
        if start < end {
            let (first, last) = (start / sector, end.div_ceil(sector));
            let bad = (first + fate.source.below(last - first)) * sector;
            if let Some(inode) = disk.tree.get_mut(number) {
                inode.content.bad.insert(bad..bad + sector);
            }
        }
    }
    if flight.struck.by(Fault::ShortRead) {
        len = shorter(disk, flight, len, fate);
    }
    if flight.struck.by(Fault::BitRot) {
        disk.rot(number, offset, offset + len, fate);
    }
    let Some(inode) = disk.tree.get(number) else { return -libc::EIO };
    let touched = offset / sector * sector..(offset + len).next_multiple_of(sector);
    if len > 0 && inode.content.bad.overlap(touched) > 0 {
        return -libc::EIO;
    }
    // It stays as long as the longest read was: a short read after a long one would otherwise shrink it, and the next one clear it
    // again.
    scratch.resize(scratch.len().max(len as usize), 0);
    let bytes = &mut scratch[..len as usize];
    inode.content.live.read(offset, bytes);
    if let Some(transfer) = &mut flight.io.transfer {
        transfer.fill(0, bytes);
    }
    len as i32
}

/// Returns the length that a short operation moves: at least one sector or byte, and less than `len`.
fn shorter(disk: &Disk, flight: &IoFlight, len: u64, fate: &mut Fate) -> u64 {
    let grain = disk.short_grain(flight.direct);
    let steps = len.div_ceil(grain);
    if steps <= 1 {
        return len;
    }
    (steps - 1 - fate.source.below(steps - 1)) * grain
}

fn write(disk: &mut Disk, flight: &mut IoFlight, now_ns: u64, fate: &mut Fate) -> i32 {
    let struck = &flight.struck;
    let Some(inode) = disk.tree.get(flight.inode) else { return -libc::EIO };
    let file_len = inode.content.len;
    let doom = Doom {
        torn: struck.by(Fault::TornWrite),
        lost: struck.by(Fault::LostWrite),
        loose: struck.by(Fault::Reorder),
    };
    let (offset, direct) = (flight.io.offset, flight.direct);
    let (inode, len) = (flight.inode, u64::from(flight.len));
    let mut write = Write { inode, offset, len, direct, fua: false, doom, now_ns };
    let Some(transfer) = flight.io.transfer.as_ref() else { return -libc::EFAULT };
    let source = |at: usize, out: &mut [u8]| transfer.copy_to(at, out);
    let broken = match flight.end {
        End::Broken(errno) => Some(errno),
        _ if struck.by(Fault::WriteError) => Some(libc::EIO),
        _ => None,
    };
    if let Some(errno) = broken {
        // A failed write stores nothing, a part from its front, or all of the part that overwrites. It never
        // makes the file longer.
        let sector = disk.sector();
        let most = write.len.min(file_len.saturating_sub(offset)) / sector;
        write.len = match fate.source.below(3) {
            0 => 0,
            1 => fate.source.below(most + 1) * sector,
            _ => most * sector,
        };
        if write.len > 0 && disk.fits(write.inode, offset, write.len) {
            disk.occupy(write.inode, offset, offset + write.len);
            disk.store(write, source);
        }
        return -errno;
    }
    if struck.by(Fault::NoSpace) {
        return -libc::ENOSPC;
    }
    if struck.by(Fault::ShortWrite) {
        write.len = shorter(disk, flight, write.len, fate);
    }
    if flight.struck.by(Fault::MisdirectedWrite)
        && let Some(elsewhere) = elsewhere(disk, write, fate)
    {
        disk.store(elsewhere, source);
        disk.occupy(elsewhere.inode, elsewhere.offset, elsewhere.offset + elsewhere.len);
        disk.occupy(write.inode, offset, offset + write.len);
        disk.grow(write.inode, offset + write.len);
        return write.len as i32;
    }
    write.fua = flight.io.fua && !flight.struck.by(Fault::LyingFlush);
    let result = disk.write(write, source);
    if flight.struck.by(Fault::BitRot) && result > 0 {
        disk.rot(write.inode, offset, offset + result as u64, fate);
    }
    result
}

/// Returns the same write at another place within the files of the disk.
fn elsewhere(disk: &Disk, write: Write, fate: &mut Fate) -> Option<Write> {
    let sector = disk.sector();
    let fits = |(number, len): (u64, u64)| (len / sector * sector > 0).then_some((number, len / sector));
    let files: Vec<(u64, u64)> = disk
        .tree
        .inodes
        .iter()
        .filter(|(_, inode)| !inode.is_dir && (inode.links > 0 || inode.handles > 0))
        .filter_map(|(number, inode)| fits((*number, inode.content.len)))
        .collect();
    let (inode, sectors) = *files.get(fate.source.below(files.len() as u64) as usize)?;
    let moved = (write.len / sector).min(sectors);
    if moved == 0 {
        return None;
    }
    let mut place = fate.source.below(sectors - moved + 1);
    if inode == write.inode && place * sector == write.offset {
        // The intended place does not count as another place.
        place = if place + moved < sectors { place + 1 } else { place.checked_sub(1)? };
    }
    Some(Write { inode, offset: place * sector, len: moved * sector, ..write })
}
