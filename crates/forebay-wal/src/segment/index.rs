//! Index of the positions of records in the segments.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Segment;
use crate::format::{Header, Kind, Position};
use crate::loss::Loss;
use crate::lsn::{End, Lsn};
use crate::recover::Outcome;

/// Live segments, and for each the positions at which runs of consecutive records start.
#[derive(Debug)]
pub(crate) struct Index {
    log_id: u128,
    /// Ordered by generation; the last one is being written.
    segments: Vec<Arc<Segment>>,
    /// Ordered by LSN, without a gap between the end of one run and the start of the next.
    runs: VecDeque<Run>,
    /// Everything below is durable.
    end: Position,
    first_lsn: u64,
    next_lsn: u64,
    /// The epoch at `end`.
    epoch: u64,
    /// Counts the changes that made known places invalid.
    version: u64,
    /// Losses accepted by an earlier salvage.
    holes: Vec<Loss>,
}

/// Adjacent groups within a segment that have consecutive records.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u64,
    /// One past the last record; `u64::MAX` while it grows.
    end: u64,
    start: Position,
}

/// The place to search for a record.
#[derive(Clone, Debug)]
pub(crate) struct SearchStart {
    pub(crate) segment: Arc<Segment>,
    /// Adjacent groups start here; the first record has this place's LSN.
    pub(crate) offset: u64,
    /// Upper bound of the durable part of the segment.
    pub(crate) limit: u64,
    /// The LSN after the last readable record in these groups.
    pub(crate) end: u64,
    pub(crate) version: u64,
    pub(crate) log_id: u128,
}

/// A group that is durable, or was found by recovery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DurableGroup {
    pub(crate) kind: Kind,
    pub(crate) argument: u64,
    pub(crate) first_lsn: u64,
    pub(crate) count: u32,
    pub(crate) epoch: u64,
    pub(crate) start: Position,
    pub(crate) end: Position,
}

impl DurableGroup {
    pub(crate) fn of(header: &Header) -> DurableGroup {
        DurableGroup {
            kind: header.kind,
            argument: header.argument,
            first_lsn: header.first_lsn,
            count: header.record_count,
            epoch: header.epochs.number,
            start: header.position(),
            end: header.end(),
        }
    }
}

/// Removes the losses from `next` on: those records are removed, lost or not.
pub(crate) fn cut_holes(holes: &mut Vec<Loss>, next: u64) {
    for lost in holes.iter_mut() {
        lost.last = lost.last.min(Lsn(next.saturating_sub(1)));
    }
    holes.retain(|lost| lost.first <= lost.last);
}

impl Index {
    /// Returns the index of a log without records, whose first will be `next_lsn`.
    pub(crate) fn new(log_id: u128, next_lsn: u64) -> Index {
        Index {
            log_id,
            segments: Vec::new(),
            runs: VecDeque::new(),
            end: Position::default(),
            first_lsn: next_lsn,
            next_lsn,
            epoch: 0,
            version: 0,
            holes: Vec::new(),
        }
    }

    /// Returns the index of the first `kept` groups found by recovery; the last one ends at `end`, before the
    /// record `next_lsn`.
    pub(crate) fn of(outcome: &Outcome, kept: usize, end: Position, next_lsn: u64) -> Index {
        let mut index = Index::new(outcome.log_id, next_lsn);
        index.first_lsn = outcome.first.min(next_lsn);
        index.holes = outcome.recovery.lost.clone();
        let mut row: Option<Position> = None;
        for group in outcome.groups.iter().take(kept) {
            let (header, live) = (&group.header, &group.live);
            let whole = live.end == header.next_lsn() || header.record_count == 0;
            let in_row = row == Some(header.position())
                && index.runs.back().is_some_and(|run| run.end == header.first_lsn);
            match index.runs.back_mut() {
                _ if live.is_empty() => {}
                Some(last) if in_row => last.end = live.end,
                _ => {
                    let start = header.position();
                    index.runs.push_back(Run { first: header.first_lsn, end: live.end, start });
                }
            }
            let ends = matches!(header.kind, Kind::Truncate | Kind::Reset);
            // A group without records continues a run, but does not start one.
            let rows = in_row || !live.is_empty() || row == Some(header.position());
            row = (whole && !ends && rows).then(|| header.end());
        }
        (index.end, index.epoch) = (end, outcome.recovery.epoch);
        index.begin_run(next_lsn, end);
        index
    }

    /// Returns the loss that a record is in.
    pub(crate) fn hole_at(&self, lsn: u64) -> Loss {
        let found = self.holes.iter().find(|lost| lost.first.0 <= lsn && lsn <= lost.last.0);
        found.cloned().unwrap_or_else(|| Loss {
            first: Lsn(lsn),
            last: Lsn(lsn),
            file: self.segments.last().map(|segment| segment.path.clone()).unwrap_or_default(),
            offset: 0,
        })
    }

    /// Returns the losses accepted by an earlier salvage.
    pub(crate) fn holes(&self) -> &[Loss] {
        &self.holes
    }

    /// Returns the number after the last durable record.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    pub(crate) fn durable_end(&self) -> End {
        End { lsn: Lsn(self.next_lsn.saturating_sub(1)), epoch: self.epoch }
    }

    pub(crate) fn first_lsn(&self) -> u64 {
        self.first_lsn
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Adds the segment that is written from now on.
    pub(crate) fn add_segment(&mut self, segment: Arc<Segment>) {
        debug_assert!(
            self.segments.last().is_none_or(|last| last.generation < segment.generation),
            "segments are in the order of their numbers"
        );
        self.segments.push(segment);
    }

    /// Releases all segments; nothing can be read any more.
    pub(crate) fn release(&mut self) -> Vec<Arc<Segment>> {
        self.version += 1;
        std::mem::take(&mut self.segments)
    }

    pub(crate) fn is_released(&self) -> bool {
        self.segments.is_empty()
    }

    pub(crate) fn add(&mut self, group: DurableGroup) {
        debug_assert!(self.end <= group.start, "groups follow each other in the segments");
        debug_assert_eq!(group.first_lsn, self.next_lsn, "LSNs are dense");
        let continues = self.end == group.start;
        if !continues || self.runs.is_empty() {
            self.begin_run(group.first_lsn, group.start);
        }
        (self.end, self.epoch) = (group.end, group.epoch);
        match group.kind {
            Kind::Truncate => self.cut(group.argument.saturating_add(1)),
            Kind::Reset => {
                self.runs.clear();
                self.holes.clear();
                self.first_lsn = group.argument;
                self.begin_run(group.argument, group.end);
                self.next_lsn = group.argument;
                self.version += 1;
            }
            _ => self.next_lsn = group.first_lsn.saturating_add(u64::from(group.count)),
        }
        debug_assert!(self.is_sound(), "an index out of order: {self:?}");
    }

    /// Returns whether the index is in order: runs sorted and disjoint, and the log's end behind its start.
    fn is_sound(&self) -> bool {
        let mut pairs = self.runs.iter().zip(self.runs.iter().skip(1));
        pairs.all(|(run, next)| run.first <= run.end && run.end <= next.first && run.start <= next.start)
            && self.first_lsn <= self.next_lsn
            && self.holes.iter().all(|lost| lost.first <= lost.last)
    }

    /// Removes the records from `next` on; later records start at the index's end.
    pub(crate) fn cut(&mut self, next: u64) {
        while self.runs.back().is_some_and(|run| run.first >= next) {
            self.runs.pop_back();
        }
        self.begin_run(next, self.end);
        self.first_lsn = self.first_lsn.min(next);
        cut_holes(&mut self.holes, next);
        self.next_lsn = next;
        self.version += 1;
    }

    fn begin_run(&mut self, first: u64, start: Position) {
        while self.runs.back().is_some_and(|run| run.first >= first) {
            self.runs.pop_back();
        }
        if let Some(last) = self.runs.back_mut() {
            last.end = last.end.min(first);
        }
        self.runs.push_back(Run { first, end: u64::MAX, start });
    }

    fn run_of(&self, lsn: u64) -> Option<&Run> {
        let after = self.runs.partition_point(|run| run.first <= lsn);
        self.runs.get(after.checked_sub(1)?).filter(|run| lsn < run.end)
    }

    /// Returns the oldest segment that a log with the first record `first` needs.
    pub(crate) fn start_generation(&self, first: u64, current: u64) -> u64 {
        // If the first record was lost, the next existing one counts.
        let at = self.runs.partition_point(|run| run.end <= first);
        self.runs.get(at).map_or(current, |run| run.start.generation)
    }

    /// Removes the records before `first` for good, and returns the segments before `generation`, which are
    /// no longer part of the index.
    pub(crate) fn retire(&mut self, first: u64, generation: u64) -> Vec<Arc<Segment>> {
        self.first_lsn = self.first_lsn.max(first);
        while self.runs.front().is_some_and(|run| run.end <= first && run.start.generation < generation) {
            self.runs.pop_front();
        }
        debug_assert!(self.is_sound(), "an index out of order: {self:?}");
        let kept = self.segments.partition_point(|segment| segment.generation < generation);
        debug_assert!(kept < self.segments.len() || kept == 0, "the newest segment stays");
        self.segments.drain(..kept).collect()
    }

    /// Returns the place of a durable record; `None` if the log does not have it.
    pub(crate) fn place_of(&self, lsn: u64) -> Option<SearchStart> {
        if lsn < self.first_lsn || lsn >= self.next_lsn {
            return None;
        }
        let run = self.run_of(lsn)?;
        let at = self.segments.partition_point(|segment| segment.generation < run.start.generation);
        let segment = self.segments.get(at).filter(|segment| segment.generation == run.start.generation)?;
        let limit = if segment.generation == self.end.generation { self.end.offset } else { segment.bytes };
        Some(SearchStart {
            segment: segment.clone(),
            offset: run.start.offset,
            limit,
            end: run.end.min(self.next_lsn),
            version: self.version,
            log_id: self.log_id,
        })
    }
}
