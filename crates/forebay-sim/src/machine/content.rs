//! The bytes and the length of one file: the live content that reads return, the durable content on the
//! medium, and the log of changes between the two.
//!
//! Always: the durable content, with the log applied in order, is the live content. A change leaves the log
//! at its front only, when it is settled, so that older content never lands on newer. A power cut walks
//! through the log once and applies the changes that survive.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::pages::{PAGE, Pages, Piece};
use super::ranges::Ranges;

/// The place of a change's bytes; for a change of length, whether it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// In the machine's memory: the page cache, or a change of metadata that no journal holds yet.
    Memory,
    /// In the disk's volatile cache.
    Cache,
    /// On the medium.
    Medium,
    /// Nowhere: a sync failed, and the changes that it covered count as written.
    Gone,
}

/// The part of a write that survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    All,
    Nothing,
    /// Each sector is kept or lost on its own.
    Torn,
}

/// The effects that rules have on this write's fate in a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Doom {
    pub(super) torn: bool,
    pub(super) lost: bool,
    pub(super) loose: bool,
}

#[derive(Clone, Debug)]
pub(super) enum ChangeKind {
    Data {
        pieces: Vec<Piece>,
        doom: Doom,
    },
    /// A truncation or allocation, which is a change of metadata.
    Resize {
        to: u64,
    },
    /// A punched hole, which is a change of metadata.
    Hole {
        range: Range<u64>,
    },
}

/// One change that is not durable yet.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) seq: u64,
    pub(super) place: Location,
    pub(super) kind: ChangeKind,
}

/// A growth of the file caused by a write. Growth is kept apart from the log: bytes do not wait for lengths.
#[derive(Clone, Copy, Debug)]
struct Growth {
    seq: u64,
    to: u64,
    settled: bool,
}

#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) live: Pages,
    pub(super) len: u64,
    pub(super) durable: Pages,
    pub(super) durable_len: u64,
    /// The changes, in the order of `seq`.
    pub(super) log: VecDeque<Change>,
    /// Growth that is not durable yet, in the order of `seq`.
    growth: VecDeque<Growth>,
    /// The resizes in the log. Growth behind a resize waits for it.
    resizes: VecDeque<u64>,
    /// Allocated pages.
    pub(super) blocks: Ranges,
    /// Byte ranges of sectors that cannot be read.
    pub(super) bad: Ranges,
    /// Whether live bytes are at [`Location::Gone`]. A restart forgets them.
    pub(super) stale: bool,
}

impl Content {
    pub(super) fn push(&mut self, seq: u64, place: Location, kind: ChangeKind) {
        self.log.push_back(Change { seq, place, kind });
    }

    /// Makes the file longer when a write ends beyond its length.
    pub(super) fn grow(&mut self, seq: u64, to: u64) {
        if to > self.len {
            self.len = to;
            self.growth.push_back(Growth { seq, to, settled: false });
        }
    }

    /// Returns whether the live content and the medium's content are the same.
    pub(super) fn is_settled(&self) -> bool {
        self.log.is_empty() && self.growth.is_empty() && !self.stale
    }

    /// Sets the live length. Bytes beyond it read as zeros when the file grows again.
    pub(super) fn resize(&mut self, seq: u64, to: u64) {
        if to < self.len {
            self.live.zero(to..self.len.next_multiple_of(PAGE));
            self.bad.remove(to..u64::MAX);
        }
        self.len = to;
        self.resizes.push_back(seq);
        self.push(seq, Location::Memory, ChangeKind::Resize { to });
    }

    pub(super) fn hole(&mut self, seq: u64, range: Range<u64>) {
        self.live.zero(range.clone());
        self.bad.remove(range.clone());
        self.push(seq, Location::Memory, ChangeKind::Hole { range });
    }

    /// Moves one change to another place.
    pub(super) fn place(&mut self, seq: u64, place: Location) {
        let at = self.log.partition_point(|change| change.seq < seq);
        if let Some(change) = self.log.get_mut(at).filter(|change| change.seq == seq) {
            change.place = place;
        }
        self.compact();
    }

    /// Moves the data that `chosen` accepts from one place to another. Returns the sequence number and the
    /// bytes of each change moved.
    pub(super) fn move_data(
        &mut self,
        from: Location,
        to: Location,
        mut chosen: impl FnMut(u64, Range<u64>) -> bool,
    ) -> Vec<(u64, u64)> {
        let mut moved = Vec::new();
        for change in self.log.iter_mut().filter(|change| change.place == from) {
            let ChangeKind::Data { pieces, .. } = &change.kind else { continue };
            let range = span(pieces);
            if chosen(change.seq, range.clone()) {
                change.place = to;
                moved.push((change.seq, range.end - range.start));
            }
        }
        moved
    }

    /// Settles the growth caused by writes before `barrier`.
    pub(super) fn settle_growth(&mut self, barrier: u64) {
        for growth in self.growth.iter_mut().take_while(|growth| growth.seq < barrier) {
            growth.settled = true;
        }
    }

    /// Returns the last unsettled change of the length or of holes before `barrier`.
    pub(super) fn last_length(&self, barrier: u64) -> Option<u64> {
        let grown = self.growth.iter().rev().find(|growth| growth.seq < barrier && !growth.settled);
        let unsettled = |change: &&Change| {
            change.seq < barrier
                && change.place == Location::Memory
                && !matches!(change.kind, ChangeKind::Data { .. })
        };
        let resized = self.log.iter().rev().find(unsettled).map(|change| change.seq);
        resized.max(grown.map(|growth| growth.seq))
    }

    /// Removes settled changes from the log's front.
    pub(super) fn compact(&mut self) {
        while self.log.front().is_some_and(|front| matches!(front.place, Location::Medium | Location::Gone)) {
            let Some(front) = self.log.pop_front() else { break };
            match (front.place, &front.kind) {
                (Location::Gone, _) => self.stale = true,
                (_, ChangeKind::Data { pieces, .. }) => {
                    pieces.iter().for_each(|piece| self.durable.put(piece))
                }
                (_, ChangeKind::Resize { to }) => {
                    self.resizes.pop_front();
                    while self.growth_before(front.seq).is_some() {}
                    self.resize_durable(*to);
                }
                (_, ChangeKind::Hole { range }) => self.durable.zero(range.clone()),
            }
        }
        let end = self.resizes.front().copied().unwrap_or(u64::MAX);
        while self.growth.front().is_some_and(|growth| growth.settled) {
            let Some(growth) = self.growth_before(end) else { break };
            self.durable_len = self.durable_len.max(growth.to);
        }
    }

    fn growth_before(&mut self, seq: u64) -> Option<Growth> {
        let first = self.growth.front().is_some_and(|growth| growth.seq < seq);
        if first { self.growth.pop_front() } else { None }
    }

    fn resize_durable(&mut self, to: u64) {
        // Bytes beyond a length that is not durable may be on the medium already.
        let end = self.durable.numbers().next_back().map_or(0, |last| (last + 1) * PAGE);
        if to < end {
            self.durable.zero(to..end);
        }
        self.durable_len = to;
    }

    /// Treats every surviving change as written, as before an orderly restart.
    pub(super) fn settle_all(&mut self) {
        for change in self.log.iter_mut().filter(|change| change.place != Location::Gone) {
            change.place = Location::Medium;
        }
        self.settle_growth(u64::MAX);
        self.compact();
        self.restart();
    }

    /// Applies a power cut. `keep` decides about data by sequence number, place and range, and `sector` about
    /// one sector of a torn write. `survives` decides about resizes and holes. `grown` returns the length
    /// after the cut for a growth from one length to another that a write caused.
    pub(super) fn cut(&mut self, sector: u64, fates: &mut dyn CutFates) {
        let mut frozen = Ranges::default();
        // Whether lengths still follow the changes of length in the log.
        let mut follows = true;
        for change in std::mem::take(&mut self.log) {
            match change.kind {
                ChangeKind::Data { pieces, doom } => {
                    let keep = match change.place {
                        Location::Medium => Keep::All,
                        Location::Gone => Keep::Nothing,
                        place => fates.keep(change.seq, place, span(&pieces), doom),
                    };
                    for piece in pieces.iter().filter(|_| keep != Keep::Nothing) {
                        if keep == Keep::All && frozen.is_empty() {
                            self.durable.put(piece);
                            continue;
                        }
                        let range = piece.range();
                        for start in range.step_by(sector as usize) {
                            let one = start..start + sector;
                            let kept = keep == Keep::All || fates.sector(change.seq, start);
                            if kept && frozen.overlap(one.clone()) == 0 {
                                piece.cut(one).iter().for_each(|part| self.durable.put(part));
                            }
                        }
                    }
                }
                ChangeKind::Resize { to } => {
                    self.cut_growth(change.seq, follows, fates);
                    follows = change.place == Location::Medium || fates.survives(change.seq);
                    if follows {
                        self.resize_durable(to);
                    } else {
                        // The blocks behind the cut stayed the file's; later writes there used new blocks.
                        frozen.insert(to..u64::MAX);
                    }
                }
                ChangeKind::Hole { range } => {
                    if change.place == Location::Medium || fates.survives(change.seq) {
                        self.durable.zero(range)
                    } else {
                        frozen.insert(range);
                    }
                }
            }
        }
        self.cut_growth(u64::MAX, follows, fates);
        let len = self.durable_len;
        self.resize_durable(len);
        self.restart();
    }

    /// Applies a power cut to the growth before `seq`. Nothing survives behind a growth that did not survive
    /// in full. When `follows` is false nothing survives at all, because a resize before it was lost.
    fn cut_growth(&mut self, seq: u64, mut follows: bool, fates: &mut dyn CutFates) {
        while let Some(growth) = self.growth_before(seq) {
            if follows {
                let from = self.durable_len;
                let len = if growth.settled { growth.to } else { fates.grown(growth.seq, from, growth.to) };
                self.durable_len = from.max(len);
                follows = self.durable_len >= growth.to;
            }
        }
    }

    /// Makes the live content equal to the content of the medium.
    fn restart(&mut self) {
        self.log.clear();
        self.growth.clear();
        self.resizes.clear();
        self.live = self.durable.clone();
        self.len = self.durable_len;
        self.stale = false;
        self.blocks.remove(self.len.div_ceil(PAGE)..u64::MAX);
        for page in self.durable.numbers() {
            self.blocks.insert(page..page + 1);
        }
    }
}

/// The decisions about which changes survive a power cut.
pub(super) trait CutFates {
    fn keep(&mut self, seq: u64, place: Location, range: Range<u64>, doom: Doom) -> Keep;
    fn sector(&mut self, seq: u64, start: u64) -> bool;
    fn survives(&mut self, seq: u64) -> bool;
    fn grown(&mut self, seq: u64, from: u64, to: u64) -> u64;
}

/// Returns the range from the first to the last byte of a write.
pub(super) fn span(pieces: &[Piece]) -> Range<u64> {
    match (pieces.first(), pieces.last()) {
        (Some(first), Some(last)) => first.range().start..last.range().end,
        _ => 0..0,
    }
}

/// Fates decided ahead, by sequence number.
pub(super) type Decisions = BTreeMap<u64, Keep>;
