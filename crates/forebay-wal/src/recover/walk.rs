//! The live groups in order, and the places where the order is broken.

use std::ops::Range;

use crate::format::{Epochs, Header, Kind, Position};
use crate::values::Stamp;

/// A live group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) header: Header,
    /// LSNs of its records that are live: neither truncated nor before the log's first.
    pub(crate) live: Range<u64>,
}

impl Group {
    /// Returns the range of the group's records in its segment, in bytes.
    pub(crate) fn payload(&self) -> Range<u64> {
        self.place(self.header.payload_range())
    }

    /// Returns the range of the group's table of values in its segment, in bytes.
    pub(crate) fn values(&self) -> Range<u64> {
        self.place(self.header.values_range())
    }

    fn place(&self, range: Range<usize>) -> Range<u64> {
        self.header.offset + range.start as u64..self.header.offset + range.end as u64
    }
}

/// A place where the order of the live groups is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The end of the good groups.
    pub(crate) cut: Position,
    /// Position of the next good group.
    pub(crate) resume: Position,
    /// The records that were there and would be live; may be empty.
    pub(crate) lost: Range<u64>,
    /// No record from before the gap counts from this number on.
    pub(super) replaced: u64,
    /// An earlier salvage accepted it.
    pub(crate) declared: bool,
}

/// The good groups from the start on.
#[derive(Debug)]
pub(super) struct Walk {
    pub(super) groups: Vec<Group>,
    /// The last group, or the record of the log's end if that counts instead.
    pub(super) last: Option<Header>,
    pub(super) gaps: Vec<Gap>,
    /// The end of the last group.
    pub(super) end: Position,
    pub(super) next_lsn: u64,
    pub(super) epochs: Epochs,
    /// The table of values that is in effect, according to the last group.
    pub(super) values: Stamp,
}

/// Removes the groups that are older than the groups before them: the epoch never decreases from one group to the next, and a
/// reopened log has a higher epoch than anything before it. `groups` are sorted by position. Also returns the last one removed.
///
/// An honest drive leaves no such groups. One that lied about a flush may forget the renaming of a segment
/// and keep the groups written to it since. If the segment is reused under the same number, it then has
/// groups of a time that was undone.
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

/// Removes the groups that a REOPEN or a Gap group declares dead. `groups` are sorted by position.
pub(super) fn without_dead(groups: Vec<Header>) -> Vec<Header> {
    let mut dead: Vec<(Range<Position>, u64)> = Vec::new();
    let mut live = Vec::with_capacity(groups.len());
    // From the newest on: a dead group declares no other dead.
    for header in groups.into_iter().rev() {
        let (place, epoch) = (header.position(), header.epochs.number);
        // A group with a higher epoch than the declaring group was written later, wherever it is.
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

/// Follows `live`, sorted by position, from the start that its last group names. Skips a gap only if a
/// watermark proves that a group was there. Otherwise the walk ends there and does not include the groups
/// after it.
pub(super) fn walk(mut live: &[Header]) -> Option<Walk> {
    let watermark = live.iter().map(|header| header.watermark).max()?;
    let watermark = if forebay::_is_broken!(WatermarkIgnored) { Position::default() } else { watermark };
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
            values: newest.values,
        };
        let mut reached = from;
        for header in &live[from..] {
            if !walk.links(header) {
                // A record of a time of which nothing is left, not even the place where its last group ended.
                if header.is_end() && header.position() < walk.end {
                    reached += 1;
                    continue;
                }
                if watermark <= walk.end && walk.last.is_some() && !header.is_end() {
                    break;
                }
                walk.step_over(header, &declared);
            } else if header.flags.reopen() && header.epochs.firsts[0] < walk.next_lsn {
                // It was written after damage: see `absorbs`.
                walk.forget_from(header.epochs.firsts[0]);
            }
            reached += 1;
            walk.take(header);
        }
        if reached == live.len() {
            walk.forget_before(newest.first_retained);
            // A reset may have started lower than the numbers at the start of its segment.
            walk.gaps.retain(|gap| !gap.lost.is_empty() || (gap.cut, gap.resume) != (start, start));
            walk.join_gaps();
            return Some(walk);
        }
        // An unreachable group does not determine the start of the log.
        live = &live[..reached];
    }
}

/// Returns the lowest LSN whose record may differ since the epoch `older`; `None` if that epoch is too old to
/// have an entry.
///
/// A REOPEN group's own epochs all start at one number. They are at least as many as the segments since its `cut`, and one more.
/// Only the epochs above these started before the cut.
fn replaced_since(header: &Header, older: u64) -> Option<u64> {
    let Epochs { number, firsts } = header.epochs;
    let own = header.generation.saturating_sub(header.cut.generation).saturating_add(1);
    match number.checked_sub(older)? {
        jumps if jumps > 0 && jumps <= own && header.flags.reopen() => Some(firsts[0]),
        _ => header.epochs.lowest_since(older),
    }
}

impl Walk {
    /// Returns whether `header` is the group that was written directly after the last one.
    fn links(&self, header: &Header) -> bool {
        let place = header.position();
        // A log may start within an accepted loss, once the records before it are truncated.
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
            && self.continues_values(header)
            && (!header.flags.reopen() || header.cut == self.end)
    }

    /// Returns whether the table of values of `header` is the one after that of the last group, or the same.
    fn continues_values(&self, header: &Header) -> bool {
        if header.flags.reopen() {
            // It may repeat a table of groups that are dead since.
            return header.values >= self.values;
        }
        let next = if header.flags.sets() { self.values.next(header.epochs.number) } else { self.values };
        header.values == next
    }

    /// Returns the group with the table of values that is in effect; `None` if there never was a value, or if
    /// that table is lost.
    pub(super) fn table(&self) -> Option<&Group> {
        let is_it = |group: &&Group| group.header.values_len > 0 && group.header.values == self.values;
        self.groups.iter().rfind(is_it)
    }

    /// Returns whether `header` was written because of damage after the last group that destroyed no record. Then the LSNs may
    /// jump, and the records that no longer count start with its epoch's first.
    fn absorbs(&self, header: &Header) -> bool {
        header.flags.reopen() && header.epochs.firsts[0] <= self.next_lsn.min(header.first_lsn)
    }

    /// Notes the gap before `header`, and forgets the records that may have been replaced within it.
    fn step_over(&mut self, header: &Header, declared: &[&Header]) {
        let (cut, resume, lost) = (self.end, header.position(), self.lost_before(header));
        let replaced = lost.start;
        self.forget_from(replaced);
        // The log may start within the declared loss, once the records before it are truncated.
        let declared = declared.iter().any(|gap| gap.cut <= cut && resume <= gap.resume);
        self.gaps.push(Gap { cut, resume, lost, replaced, declared });
    }

    /// Returns the records that may have been between the last good group and `header`, which does not link
    /// to it: those missing in the numbering, and those that an unseen truncation or reopening may have
    /// replaced.
    fn lost_before(&self, header: &Header) -> Range<u64> {
        let Some(last) = self.last else {
            return self.next_lsn..header.first_lsn.max(self.next_lsn);
        };
        let replaced = replaced_since(header, self.epochs.number).unwrap_or(0);
        let mut lost = self.next_lsn.min(replaced)..header.first_lsn;
        if header.position() == self.end {
            // No group can have been between the two: the last group is not the one that this one followed.
            lost.start = lost.start.min(last.first_lsn);
        }
        if lost.end < self.next_lsn && replaced >= self.next_lsn {
            // The LSNs decrease, and no epoch explains it.
            lost = lost.start.min(lost.end)..self.next_lsn;
        }
        lost.start..lost.end.max(lost.start)
    }

    /// Adds a group and applies its effect.
    fn take(&mut self, header: &Header) {
        if header.is_end() && self.links(header) {
            // It repeats the last group's state.
            return;
        }
        self.last = Some(*header);
        if header.is_end() {
            (self.end, self.next_lsn, self.epochs) = (header.end(), header.next_lsn(), header.epochs);
            self.values = header.values;
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
        (self.epochs, self.values) = (header.epochs, header.values);
    }

    /// Marks the records from `lsn` on as no longer live.
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

    /// Joins gaps that touch, and extends each to the next group. Only the record of an earlier end is before that group, and that
    /// record is removed once a later one is written.
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

    /// Marks the records before `lsn` as no longer live.
    fn forget_before(&mut self, lsn: u64) {
        for live in self.groups.iter_mut().map(|group| &mut group.live) {
            live.start = live.start.max(lsn.min(live.end));
        }
        for lost in self.gaps.iter_mut().map(|gap| &mut gap.lost) {
            lost.start = lost.start.max(lsn.min(lost.end));
        }
    }
}
