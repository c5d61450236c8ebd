//! The power cut, which decides the fate of all volatile state, and the orderly restart, which loses nothing
//! that was not lost before.

use super::content::{CutFates, Decisions, Doom, Keep, Location};
use super::disk::{Disk, VolatileWrite, Write};
use super::flight::{End, Flight, IoFlight};
use super::inode::Edit;
use super::{Machine, OpKind};
use crate::fault::Fault;
use crate::history::{Fate, What};
use crate::profile::{Loss, MetadataOrder};
use std::collections::{BTreeMap, BTreeSet};

impl Machine {
    /// Switches the power off. Operations and calls in flight never complete.
    pub(crate) fn power_cut(&mut self, fate: &mut Fate) {
        if !self.on {
            return;
        }
        self.settle_in();
        let in_flight = self.store_in_flight();
        self.counts.power_cuts += 1;
        let mut volatile = 0;
        for (index, disk) in self.disks.iter_mut().enumerate() {
            let own: Vec<VolatileWrite> =
                in_flight.iter().filter(|(at, _)| *at == index).map(|(_, w)| *w).collect();
            volatile += disk.cut(&own, fate);
        }
        fate.history.note(What::PowerCut, &[volatile]);
        self.kill();
        self.on = false;
    }

    /// Switches the machine on. When the power had not failed this is an orderly restart: everything is
    /// written out first.
    pub(crate) fn reboot(&mut self, fate: &mut Fate) {
        if self.on {
            self.settle_in();
            for disk in &mut self.disks {
                if let Some(last) = disk.tree.journal.back().map(|entry| entry.seq) {
                    disk.tree.commit(last);
                }
                for inode in disk.tree.inodes.values_mut() {
                    if !inode.content.is_settled() {
                        inode.content.settle_all();
                    }
                }
                disk.tree.restart();
                disk.forget();
            }
            self.kill();
        }
        fate.history.note(What::Reboot, &[]);
        self.on = true;
    }

    /// Forgets everything in flight, and all open files.
    fn kill(&mut self) {
        self.flights.clear();
        self.events.clear();
        self.handles.clear();
        self.first_handle = self.next_handle;
    }

    /// Stores the writes in flight, which may have arrived. They join those that did arrive, and the cut
    /// decides about them.
    fn store_in_flight(&mut self) -> Vec<(usize, VolatileWrite)> {
        let mut stored = Vec::new();
        for flight in self.flights.values() {
            let Flight::Io(flight) = flight else { continue };
            let IoFlight { io, disk: Some(index), inode, direct, len, .. } = &**flight else { continue };
            let (Some(disk), Some(transfer)) = (self.disks.get_mut(*index), &io.transfer) else { continue };
            if io.kind != OpKind::Write || *len == 0 || matches!(flight.end, End::Refused(_)) {
                continue;
            }
            let struck = &flight.struck;
            let doom =
                Doom { torn: struck.by(Fault::TornWrite), lost: struck.by(Fault::LostWrite), loose: true };
            let (number, len) = (*inode, u64::from(*len));
            let (offset, direct) = (io.offset, *direct);
            let write = Write { inode: number, offset, len, direct, fua: false, doom, now_ns: 0 };
            if !disk.fits(number, io.offset, len) || struck.by(Fault::MisdirectedWrite) {
                continue;
            }
            let seq = disk.seq();
            disk.store_volatile(write, |at, out| transfer.copy_to(at, out));
            disk.grow(number, io.offset + len);
            stored.push((*index, VolatileWrite { seq, inode: number, bytes: len }));
        }
        stored
    }
}

impl Disk {
    /// Decides about all volatile state. Returns the number of writes and of changes of names that it
    /// consisted of.
    fn cut(&mut self, in_flight: &[VolatileWrite], fate: &mut Fate) -> u64 {
        let volatile = self.cache.len() + self.dirty.len() + in_flight.len() + self.tree.journal.len();
        let new: BTreeSet<u64> = in_flight.iter().map(|write| write.seq).collect();
        let decided = self.decide_writes(in_flight, fate);
        let lengths = self.decide_names(fate);
        let (lost, torn, sector) = (self.profile.lost, self.profile.torn, self.sector());
        let journal = self.profile.metadata == MetadataOrder::Journal;
        for (number, inode) in &mut self.tree.inodes {
            let content = &mut inode.content;
            if content.is_settled() && inode.links > 0 {
                continue;
            }
            let mut cut = Cut {
                inode: *number,
                decided: &decided,
                new: &new,
                lengths: journal.then_some(&lengths),
                gone: false,
                lost,
                torn,
                sector,
                fate,
            };
            content.cut(sector, &mut cut);
        }
        self.tree.restart();
        self.forget();
        volatile as u64
    }

    /// Decides which of the writes in the cache and in flight survive.
    fn decide_writes(&mut self, in_flight: &[VolatileWrite], fate: &mut Fate) -> Decisions {
        let mut decided = Decisions::new();
        if self.profile.lost == Loss::Prefix {
            let arrived: Vec<u64> = self.cache.iter().map(|write| write.seq).collect();
            let all: Vec<u64> = arrived.into_iter().chain(in_flight.iter().map(|write| write.seq)).collect();
            let kept = all.len() - fate.source.below(all.len() as u64 + 1) as usize;
            for (at, seq) in all.iter().enumerate() {
                let keep = match at {
                    at if at < kept => Keep::All,
                    at if at == kept && self.profile.torn => Keep::Torn,
                    _ => Keep::Nothing,
                };
                decided.insert(*seq, keep);
            }
        }
        decided
    }

    /// Decides which changes of names survive: those are settled, the others forgotten. For journals it
    /// returns the sequence numbers of the resizes and holes that survive.
    fn decide_names(&mut self, fate: &mut Fate) -> BTreeSet<u64> {
        let entries = self.tree.journal.len();
        if self.profile.metadata == MetadataOrder::Journal {
            let kept = entries - fate.source.below(entries as u64 + 1) as usize;
            let lengths = self
                .tree
                .journal
                .iter()
                .take(kept)
                .filter(|entry| entry.edits.is_empty())
                .map(|entry| entry.seq);
            let lengths = lengths.collect();
            if let Some(last) =
                kept.checked_sub(1).and_then(|at| self.tree.journal.get(at)).map(|entry| entry.seq)
            {
                self.tree.settle_some(|entry, _| entry.seq <= last);
            }
            return lengths;
        }
        // Each directory keeps a prefix of its changes.
        let mut changes: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for entry in &self.tree.journal {
            for Edit { dir, .. } in &entry.edits {
                changes.entry(*dir).or_default().insert(entry.seq);
            }
        }
        let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
        for (dir, seqs) in &changes {
            let kept = seqs.len() - fate.source.below(seqs.len() as u64 + 1) as usize;
            fate.history.note(What::Kept, &[*dir, kept as u64]);
            if let Some(last) = kept.checked_sub(1).and_then(|at| seqs.iter().nth(at)) {
                ends.insert(*dir, *last);
            }
        }
        self.tree.settle_some(|entry, edit| ends.get(&edit.dir).is_some_and(|last| entry.seq <= *last));
        BTreeSet::new()
    }
}

/// Decides about the changes of one file.
struct Cut<'a> {
    inode: u64,
    decided: &'a Decisions,
    new: &'a BTreeSet<u64>,
    /// The resizes that survive, where the journal decided; otherwise they survive in order.
    lengths: Option<&'a BTreeSet<u64>>,
    /// Whether one did not survive.
    gone: bool,
    lost: Loss,
    torn: bool,
    sector: u64,
    fate: &'a mut Fate,
}

impl CutFates for Cut<'_> {
    fn keep(&mut self, seq: u64, place: Location, range: std::ops::Range<u64>, doom: Doom) -> Keep {
        if doom.lost {
            return Keep::Nothing;
        }
        if doom.torn {
            return Keep::Torn;
        }
        let several = range.end - range.start > self.sector;
        // Memory is written back page by page, on any disk. Writes in flight may end in any state.
        let (tears, own) = match (place, self.new.contains(&seq)) {
            (Location::Memory, _) | (_, true) => (several, true),
            _ => (several && self.torn, doom.loose || self.lost == Loss::Subset),
        };
        match self.decided.get(&seq) {
            Some(keep) if !doom.loose || self.new.contains(&seq) => return *keep,
            None if !own => return Keep::All,
            _ => {}
        }
        match self.fate.source.below(2 + u64::from(tears)) {
            0 => Keep::All,
            1 => Keep::Nothing,
            _ => Keep::Torn,
        }
    }

    fn sector(&mut self, _seq: u64, _start: u64) -> bool {
        self.fate.source.below(2) == 0
    }

    fn survives(&mut self, seq: u64) -> bool {
        match self.lengths {
            Some(lengths) => lengths.contains(&seq),
            None => {
                self.gone = self.gone || self.fate.source.below(2) != 0;
                !self.gone
            }
        }
    }

    fn grown(&mut self, _seq: u64, from: u64, to: u64) -> u64 {
        let first = from / self.sector + 1;
        let between = to.div_ceil(self.sector).saturating_sub(first);
        let kept = match self.fate.source.below(2 + u64::from(between > 0)) {
            0 => to,
            1 => from,
            _ => (first + self.fate.source.below(between)) * self.sector,
        };
        self.fate.history.note(What::Kept, &[self.inode, from, to, kept]);
        kept
    }
}
