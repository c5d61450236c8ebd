//! The live groups in their order, and where the order is broken.

use std::ops::Range;

use crate::format::{Epochs, HEADER_BYTES, Header, Kind, Position};

/// A live group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Its header.
    pub(crate) header: Header,
    /// Those of its records that are live: neither truncated nor before the log's first.
    pub(crate) live: Range<u64>,
}

impl Group {
    /// Where its records lie in its segment, in bytes.
    pub(crate) fn payload(&self) -> Range<u64> {
        let start = self.header.offset + HEADER_BYTES as u64;
        start..start + u64::from(self.header.payload_len)
    }
}

/// A place where the order of the live groups is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Where the good groups end.
    pub(crate) cut: Position,
    /// The next good group.
    pub(crate) resume: Position,
    /// The records that were there and would be live; may be empty.
    pub(crate) lost: Range<u64>,
    /// From this number on nothing counts that was there before the gap.
    pub(super) replaced: u64,
    /// An earlier salvage accepted it.
    pub(crate) declared: bool,
}

/// The good groups from the start on.
#[derive(Debug)]
pub(super) struct Walk {
    pub(super) groups: Vec<Group>,
    /// The last group, or the record of the log's end where that counts instead.
    pub(super) last: Option<Header>,
    pub(super) gaps: Vec<Gap>,
    /// Where the last group ends.
    pub(super) end: Position,
    pub(super) next_lsn: u64,
    pub(super) epochs: Epochs,
}

/// Takes away the groups that are older than what stands before them: the epoch never goes back from one
/// group to the next, and what begins anew is of a higher one than anything before it. `groups` are sorted
/// by position. Answers the last one taken away as well.
///
/// An honest drive leaves none. One that lied about a flush may forget the renaming of a segment and keep
/// what was written to it since; used again under the same number, the segment then holds groups of a time
/// that was undone.
pub(super) fn without_outdated(mut groups: Vec<Header>) -> (Vec<Header>, Option<Header>) {
    let (mut epoch, mut last) = (0, None);
    groups.retain(|header| {
        let outdated = header.epochs.number < epoch;
        epoch = epoch.max(header.epochs.number);
        if outdated {
            last = Some(*header);
        }
        !outdated
    });
    (groups, last)
}

/// Takes away the groups that a REOPEN or a Gap group declares dead. `groups` are sorted by position.
pub(super) fn without_dead(groups: Vec<Header>) -> Vec<Header> {
    let mut dead: Vec<(Range<Position>, u64)> = Vec::new();
    let mut live = Vec::with_capacity(groups.len());
    // From the newest on: a group that is dead itself kills nothing.
    for header in groups.into_iter().rev() {
        let (place, epoch) = (header.position(), header.epochs.number);
        // What is of a higher epoch than the group that ends it came later, wherever it stands.
        if dead.iter().any(|(range, ended)| range.contains(&place) && epoch <= *ended) {
            continue;
        }
        match header.kind {
            Kind::Gap => dead.push((header.cut..header.resume, epoch)),
            _ if header.flags.reopen() => dead.push((header.cut..place, epoch)),
            _ => {}
        }
        live.push(header);
    }
    live.reverse();
    live
}

/// Follows `live`, sorted by position, from the start that its last group names. Steps over a gap only where
/// a watermark proves that there was something; otherwise it ends there, and the groups behind are not part
/// of it.
pub(super) fn walk(mut live: &[Header]) -> Option<Walk> {
    let watermark = live.iter().map(|header| header.watermark).max()?;
    #[cfg(feature = "_breakage")]
    let watermark =
        if crate::breakage::Breakage::WatermarkIgnored.is_on() { Position::default() } else { watermark };
    let declared: Vec<_> = live.iter().filter(|header| header.kind == Kind::Gap).collect();
    loop {
        let newest = live.last()?;
        let start = Position { generation: newest.start_generation, offset: 0 };
        let from = live.partition_point(|header| header.position() < start);
        let mut walk = Walk {
            groups: Vec::with_capacity(live.len() - from),
            last: None,
            gaps: Vec::new(),
            end: start,
            next_lsn: newest.first_retained,
            epochs: newest.epochs,
        };
        let mut reached = from;
        for header in &live[from..] {
            if !walk.links(header) {
                // Of a time that nothing is left of, not even the place where its last group ended.
                if header.is_end() && header.position() < walk.end {
                    reached += 1;
                    continue;
                }
                if watermark <= walk.end && walk.last.is_some() && !header.is_end() {
                    break;
                }
                walk.step_over(header, &declared);
            } else if header.flags.reopen() && header.epochs.firsts[0] < walk.next_lsn {
                // It was written behind damage: see `absorbs`.
                walk.forget_from(header.epochs.firsts[0]);
            }
            reached += 1;
            walk.take(header);
        }
        if reached == live.len() {
            walk.forget_before(newest.first_retained);
            // A reset may have begun lower than the numbers at the start of its segment.
            walk.gaps.retain(|gap| !gap.lost.is_empty() || (gap.cut, gap.resume) != (start, start));
            walk.join_gaps();
            return Some(walk);
        }
        // What an unreachable group says about the beginning of the log does not count.
        live = &live[..reached];
    }
}

/// The lowest number that may be another record's since the epoch `older`; `None`: too long ago to know.
///
/// A REOPEN group's own epochs begin all at one number, and they are at least as many as the segments since
/// its `cut` and one more; only what is above these began before the cut.
fn replaced_since(header: &Header, older: u64) -> Option<u64> {
    let Epochs { number, firsts } = header.epochs;
    let own = header.generation.saturating_sub(header.cut.generation).saturating_add(1);
    match number.checked_sub(older)? {
        jumps if jumps > 0 && jumps <= own && header.flags.reopen() => Some(firsts[0]),
        _ => header.epochs.lowest_since(older),
    }
}

impl Walk {
    /// Whether `header` is the group that was written behind the last one, with nothing between.
    fn links(&self, header: &Header) -> bool {
        let place = header.position();
        // A log may begin within an accepted loss, once what was before it is truncated.
        let Some(last) = self.last else { return place == self.end && header.first_lsn <= self.next_lsn };
        let next_segment = place.offset == 0 && place.generation > self.end.generation;
        let Epochs { number, firsts } = header.epochs;
        let epochs = match header.kind {
            _ if header.flags.reopen() => self.epochs.raised_to(number, firsts[0]),
            Kind::Truncate | Kind::Reset => self.epochs.raised(firsts[0]),
            _ => self.epochs,
        };
        (place == self.end || next_segment)
            && header.previous == last.crc
            && (header.first_lsn == self.next_lsn || self.absorbs(header))
            && header.epochs == epochs
            && (!header.flags.reopen() || header.cut == self.end)
    }

    /// Whether `header` was written for damage behind the last group that took no record: the numbers may
    /// leap, and what counts no longer begins with its epoch's first.
    fn absorbs(&self, header: &Header) -> bool {
        header.flags.reopen() && header.epochs.firsts[0] <= self.next_lsn.min(header.first_lsn)
    }

    /// Notes the gap before `header`, and forgets the records that may have been replaced within it.
    fn step_over(&mut self, header: &Header, declared: &[&Header]) {
        let (cut, resume, lost) = (self.end, header.position(), self.lost_before(header));
        let replaced = lost.start;
        self.forget_from(replaced);
        // The log may begin within what was declared, once what was before it is truncated.
        let declared = declared.iter().any(|gap| gap.cut <= cut && resume <= gap.resume);
        self.gaps.push(Gap { cut, resume, lost, replaced, declared });
    }

    /// The records that may have been between the last good group and `header`, which does not link to it:
    /// the ones that are missing in the numbering, and the ones that an unseen truncation or reopening may
    /// have replaced.
    fn lost_before(&self, header: &Header) -> Range<u64> {
        let Some(last) = self.last else {
            return self.next_lsn..header.first_lsn.max(self.next_lsn);
        };
        let replaced = replaced_since(header, self.epochs.number).unwrap_or(0);
        let mut lost = self.next_lsn.min(replaced)..header.first_lsn;
        if header.position() == self.end {
            // Nothing can have been between the two: the last group is not the one that this one followed.
            lost.start = lost.start.min(last.first_lsn);
        }
        if lost.end < self.next_lsn && replaced >= self.next_lsn {
            // The numbers go back, and no epoch says why.
            lost = lost.start.min(lost.end)..self.next_lsn;
        }
        lost.start..lost.end.max(lost.start)
    }

    /// Adds a group and does what it says.
    fn take(&mut self, header: &Header) {
        if header.is_end() && self.links(header) {
            // It repeats what the last group says.
            return;
        }
        self.last = Some(*header);
        if header.is_end() {
            (self.end, self.next_lsn, self.epochs) = (header.end(), header.next_lsn(), header.epochs);
            return;
        }
        match header.kind {
            Kind::Truncate => self.forget_from(header.argument.saturating_add(1)),
            Kind::Reset => self.forget_from(0),
            _ => {}
        }
        let live = header.first_lsn..header.first_lsn + u64::from(header.record_count);
        self.groups.push(Group { header: *header, live });
        self.end = header.end();
        self.next_lsn = header.next_lsn();
        self.epochs = header.epochs;
    }

    /// The records from `lsn` on are no longer live.
    fn forget_from(&mut self, lsn: u64) {
        for group in self.groups.iter_mut().rev() {
            if !group.live.is_empty() && group.live.end <= lsn {
                break;
            }
            group.live.end = group.live.end.min(lsn.max(group.live.start));
        }
        for gap in &mut self.gaps {
            gap.lost.end = gap.lost.end.min(lsn.max(gap.lost.start));
        }
    }

    /// Makes one of gaps that touch, and lets each end at a group: only the record of an earlier end stands before that
    /// one, and it is gone once a later one is written.
    fn join_gaps(&mut self) {
        let mut joined: Vec<Gap> = Vec::with_capacity(self.gaps.len());
        for gap in self.gaps.drain(..) {
            match joined.last_mut().filter(|last| last.resume == gap.cut) {
                Some(last) => {
                    last.lost = match (last.lost.is_empty(), gap.lost.is_empty()) {
                        (_, true) => last.lost.clone(),
                        (true, _) => gap.lost.clone(),
                        _ => last.lost.start.min(gap.lost.start)..last.lost.end.max(gap.lost.end),
                    };
                    last.resume = gap.resume;
                    last.replaced = last.replaced.min(gap.replaced);
                    last.declared &= gap.declared;
                }
                None => joined.push(gap),
            }
        }
        for gap in &mut joined {
            let next = self.groups.partition_point(|group| group.header.position() < gap.resume);
            gap.resume = self.groups.get(next).map_or(gap.resume, |group| group.header.position());
        }
        self.gaps = joined;
    }

    /// The records before `lsn` are no longer live.
    fn forget_before(&mut self, lsn: u64) {
        for live in self.groups.iter_mut().map(|group| &mut group.live) {
            live.start = live.start.max(lsn.min(live.end));
        }
        for lost in self.gaps.iter_mut().map(|gap| &mut gap.lost) {
            lost.start = lost.start.max(lsn.min(lost.end));
        }
    }
}
