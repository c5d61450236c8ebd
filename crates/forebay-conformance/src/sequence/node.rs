//! One file of the model: the content that it may hold now, and the content that it may hold after a power
//! cut.

use std::collections::BTreeMap;
use std::ops::Range;

mod comparison;

use super::Length;
use super::sector::{Patch, SECTOR, Sector};
pub(super) use comparison::Wrong;

/// A file, independent of its names.
#[derive(Clone, Debug)]
pub(super) struct Node {
    sectors: Vec<State>,
    len: Length,
    durable_len: Length,
    /// Set when a sync failed while the length was not durable: a later good sync proves nothing about that
    /// length.
    len_suspect: bool,
    /// Writes that may happen at any moment: those of futures that were dropped, and of a group that runs.
    pending: Vec<Pending>,
    /// The file system's number for it, once it was seen.
    pub(super) inode: Option<u64>,
}

#[derive(Clone, Debug)]
struct State {
    live: Sector,
    /// Everything that a power cut may leave.
    durable: Sector,
    /// Set when a sync failed while this sector was not durable (fsync(2): the pages may have been marked
    /// clean).
    suspect: bool,
}

#[derive(Clone, Debug)]
struct Pending {
    owner: u64,
    patch: Patch,
    cached: bool,
}

/// A write of a group, and its result.
#[derive(Clone, Debug)]
pub(super) struct WriteResult {
    pub(super) patch: Patch,
    pub(super) ok: bool,
    /// Whether the write included its own sync.
    pub(super) durable: bool,
    /// Whether it used the page cache.
    pub(super) cached: bool,
}

/// The state, before a group, of the sectors that the group writes to.
#[derive(Clone, Debug)]
pub(super) struct Base {
    sectors: BTreeMap<u64, Sector>,
    len: Length,
}

static NOTHING: State = State { live: Sector::ZERO, durable: Sector::ZERO, suspect: false };

impl Node {
    pub(super) fn new() -> Node {
        Node {
            sectors: Vec::new(),
            len: Length::exactly(0),
            durable_len: Length::exactly(0),
            len_suspect: false,
            pending: Vec::new(),
            inode: None,
        }
    }

    pub(super) fn len(&self) -> Length {
        self.len
    }

    /// Returns the owners of the writes in flight that use the other path (through the page cache, or past it).
    pub(super) fn racing_owners(&self, cached: bool) -> Vec<u64> {
        self.pending.iter().filter(|pending| pending.cached != cached).map(|pending| pending.owner).collect()
    }

    pub(super) fn owners(&self) -> Vec<u64> {
        self.pending.iter().map(|pending| pending.owner).collect()
    }

    fn state(&mut self, index: u64) -> &mut State {
        let index = index as usize;
        if index >= self.sectors.len() {
            self.sectors.resize(index + 1, NOTHING.clone());
        }
        &mut self.sectors[index]
    }

    fn live(&self, index: u64) -> &Sector {
        self.sectors.get(index as usize).map_or(&NOTHING.live, |state| &state.live)
    }

    fn is_racing(&self, index: u64) -> bool {
        self.pending.iter().any(|pending| pending.patch.touches(index))
    }

    /// Returns everything that `sector` may become while these patches may happen in any order.
    fn closed<'p>(
        mut sector: Sector,
        index: u64,
        patches: impl Iterator<Item = (&'p Patch, bool)> + Clone,
    ) -> Sector {
        let touching = patches.clone().filter(|(patch, _)| patch.touches(index)).count();
        for _ in 0..touching {
            for (patch, cached) in patches.clone().filter(|(patch, _)| patch.touches(index)) {
                let after = sector.after(patch, index);
                sector.or(&after);
                if cached {
                    sector.set_mixed();
                }
            }
        }
        sector
    }

    fn set_live(&mut self, index: u64, sector: Sector) {
        let pending = std::mem::take(&mut self.pending);
        let patches = pending.iter().map(|pending| (&pending.patch, pending.cached));
        let live = Node::closed(sector, index, patches);
        let state = self.state(index);
        state.durable.or(&live);
        state.live = live;
        self.pending = pending;
    }

    fn note_len(&mut self, len: Length) {
        self.len = self.pending.iter().fold(len, |len, pending| len.perhaps(pending.patch.end()));
        self.durable_len = self.durable_len.or(self.len);
    }

    /// Records that this write may happen at any moment from now on, until [`over`](Self::over).
    pub(super) fn may_happen(&mut self, owner: u64, patch: Patch, cached: bool) {
        if patch.is_empty() {
            return;
        }
        let sectors = patch.sectors();
        self.pending.push(Pending { owner, patch, cached });
        for index in sectors {
            let live = self.live(index).clone();
            self.set_live(index, live);
        }
        self.note_len(self.len);
    }

    /// Records that no write of this owner is under way any more.
    pub(super) fn over(&mut self, owner: u64) {
        self.pending.retain(|pending| pending.owner != owner);
    }

    /// Records that the write happened.
    pub(super) fn put(&mut self, patch: &Patch) {
        for index in patch.sectors() {
            let after = self.live(index).after(patch, index);
            self.set_live(index, after);
            if patch.covers(index) {
                self.state(index).suspect = false;
            }
        }
    }

    /// Records that any part of the write may have happened.
    pub(super) fn may_put(&mut self, patch: &Patch, cached: bool) {
        for index in patch.sectors() {
            let sector = Node::closed(self.live(index).clone(), index, std::iter::once((patch, cached)));
            self.set_live(index, sector);
        }
    }

    /// Records that the range may hold anything.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        for index in Patch::zeros(range).sectors() {
            let mut sector = Sector::ZERO;
            sector.forget();
            self.set_live(index, sector);
        }
    }

    pub(super) fn grow(&mut self, end: u64) {
        self.note_len(self.len.at_least(end));
    }

    pub(super) fn may_grow(&mut self, end: u64) {
        self.note_len(self.len.perhaps(end));
    }

    /// Records that the file had this length for a moment, so that a power cut may find it.
    pub(super) fn may_lie_after_a_cut(&mut self, len: u64) {
        self.durable_len = self.durable_len.perhaps(len);
    }

    pub(super) fn truncate(&mut self, len: u64) {
        self.put(&Patch::zeros(len..(self.sectors.len() * SECTOR) as u64));
        self.note_len(Length::exactly(len));
    }

    pub(super) fn may_truncate(&mut self, len: u64) {
        self.may_put(&Patch::zeros(len..(self.sectors.len() * SECTOR) as u64), true);
        self.note_len(self.len.or(Length::exactly(len)));
    }

    pub(super) fn base(&self, writes: &[&Patch]) -> Base {
        let indices = writes.iter().flat_map(|patch| patch.sectors());
        Base { sectors: indices.map(|index| (index, self.live(index).clone())).collect(), len: self.len }
    }

    /// Records the end of a group of writes, which started when the file was `base`. `synced`: a sync that was among them has ended
    /// as well.
    pub(super) fn finish(&mut self, base: &Base, writes: &[WriteResult], synced: bool) {
        if synced {
            // The sectors that the group wrote to are treated one by one below.
            for (index, state) in self.sectors.iter_mut().enumerate() {
                if !base.sectors.contains_key(&(index as u64)) {
                    state.sync();
                }
            }
        }
        for (&index, before) in &base.sectors {
            self.finish_sector(index, before, writes, synced);
        }
        let done = |len: Length| {
            let ok = writes.iter().filter(|write| write.ok && !write.patch.is_empty());
            ok.fold(len, |len, write| len.at_least(write.patch.end()))
        };
        let tried = writes.iter().filter(|write| !write.patch.is_empty());
        let len = tried.fold(done(base.len), |len, write| len.perhaps(write.patch.end()));
        let old = self.durable_len;
        self.note_len(len);
        self.durable_len = self.durable_len.or(base.len);
        if synced && !self.len_suspect {
            let sure = writes.iter().all(|write| write.ok && write.durable);
            self.durable_len = if sure { self.len } else { self.len.or(base.len) };
        } else {
            self.durable_len = self.durable_len.or(old);
        }
    }

    fn finish_sector(&mut self, index: u64, before: &Sector, writes: &[WriteResult], synced: bool) {
        let touching: Vec<&WriteResult> = writes.iter().filter(|write| write.patch.touches(index)).collect();
        let (ok, failed): (Vec<&WriteResult>, Vec<&WriteResult>) =
            touching.iter().partition(|write| write.ok);
        let mut after = in_all_orders(before, index, &ok);
        if touching.len() > 1 && touching.iter().any(|write| write.cached) {
            after.set_mixed();
        }
        let after = Node::closed(after, index, failed.iter().map(|write| (&write.patch, write.cached)));
        let on_the_way = touching.iter().map(|write| (&write.patch, write.cached));
        let on_the_way = Node::closed(before.clone(), index, on_the_way);
        let sure = failed.is_empty() && ok.iter().all(|write| write.durable);
        let covered = ok.iter().any(|write| write.patch.covers(index));
        let state = self.state(index);
        // A write of the group that replaces sectors left in doubt by a failed sync ends the doubt for later syncs. The group's own
        // sync may have started before that write, and covers it only where it is part of it: otherwise the durable content may be
        // as old as it was.
        if synced && (!state.suspect || (covered && sure)) {
            state.durable = if sure { after.clone() } else { on_the_way.clone() };
        } else {
            state.durable.or(&on_the_way);
        }
        state.suspect &= !covered;
        self.set_live(index, after);
    }

    /// Records the success of a sync that started in the current state.
    pub(super) fn sync(&mut self) {
        self.sectors.iter_mut().for_each(State::sync);
        self.durable_len = if self.len_suspect { self.durable_len.or(self.len) } else { self.len };
    }

    /// Records that a sync failed: data that was not durable may be lost, even if a later sync succeeds.
    pub(super) fn doubt(&mut self) {
        for state in &mut self.sectors {
            if !(state.durable.is_settled() && state.live.is_settled()) {
                state.suspect = true;
                let durable = state.durable.clone();
                state.live.or(&durable);
            }
        }
        if !(self.len.is_exact() && self.durable_len.is_exact()) {
            self.len_suspect = true;
            self.len = self.len.or(self.durable_len);
        }
    }

    /// Records a power cut and the restart after it.
    pub(super) fn power_cut(&mut self) {
        self.pending.clear();
        for state in &mut self.sectors {
            state.live = state.durable.clone();
            state.suspect = false;
        }
        self.len = self.durable_len;
        self.len_suspect = false;
    }

    /// Records an orderly shutdown of the machine: everything reached the disk except the data that a failed
    /// sync lost.
    pub(super) fn restart(&mut self) {
        self.pending.clear();
        for state in &mut self.sectors {
            if std::mem::take(&mut state.suspect) {
                let durable = state.durable.clone();
                state.live.or(&durable);
            }
        }
        if std::mem::take(&mut self.len_suspect) {
            self.len = self.len.or(self.durable_len);
        }
        self.rest();
    }

    /// Records that the live content is the disk's content: nothing was written since the restart.
    pub(super) fn rest(&mut self) {
        for state in &mut self.sectors {
            state.durable = state.live.clone();
        }
        self.durable_len = self.len;
    }
}

impl State {
    fn sync(&mut self) {
        if self.live.is_zero() && self.durable.is_zero() {
            return;
        }
        if self.suspect { self.durable.or(&self.live.clone()) } else { self.durable = self.live.clone() }
    }
}

/// Returns the sector after all of these writes, in whichever order.
fn in_all_orders(before: &Sector, index: u64, writes: &[&WriteResult]) -> Sector {
    let mut after: Option<Sector> = None;
    for (at, write) in writes.iter().enumerate() {
        let rest: Vec<&WriteResult> =
            writes.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, write)| *write).collect();
        // The last write decides most, so the recursion starts at the end.
        let ended = in_all_orders(before, index, &rest).after(&write.patch, index);
        match &mut after {
            Some(after) => after.or(&ended),
            None => after = Some(ended),
        }
    }
    after.unwrap_or_else(|| before.clone())
}
