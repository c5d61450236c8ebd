//! Planning of the requests for a batch of ranges. It runs on the caller's thread, so that sorting a million
//! ranges delays no other task.

use std::ops::Range;

use crate::base::error::Error;
use crate::reactor::ranges::Widened;

/// Limits of merging; see [`ReadMany`](crate::ReadMany).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) gap_bytes_max: u64,
    pub(crate) waste_bytes_max: u64,
    pub(crate) request_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { gap_bytes_max: 16 << 10, waste_bytes_max: 64 << 10, request_bytes_max: 256 << 10 }
    }
}

/// One request: a section of the file, and the ranges whose bytes lie in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// The piece's ranges are `order[first..first + count]`.
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// The requests of a batch in order of offset.
pub(crate) struct Plan {
    pub(crate) ranges: Vec<Range<u64>>,
    /// Numbers of the ranges that are read, in order of offset.
    pub(crate) order: Vec<u32>,
    pub(crate) pieces: Vec<Piece>,
    /// Ranges that need no read: empty ones.
    pub(crate) empty: Vec<u32>,
    /// Ranges that cannot be read, with the reasons.
    pub(crate) faulty: Vec<(u32, Error)>,
    pub(crate) grain: u32,
}

impl Plan {
    pub(crate) fn new(ranges: Vec<Range<u64>>, limits: &Limits, grain: u32) -> Plan {
        let mut plan = Plan {
            order: Vec::with_capacity(ranges.len()),
            pieces: Vec::new(),
            empty: Vec::new(),
            faulty: Vec::new(),
            ranges,
            grain,
        };
        // Piece numbers share a word with a mark bit, which bounds the number of ranges in one batch.
        let most = (u32::MAX >> 1) as usize;
        for (number, range) in plan.ranges.iter().enumerate().take(most) {
            match Widened::of(range, grain) {
                Err(error) => plan.faulty.push((number as u32, error)),
                Ok(_) if range.is_empty() => plan.empty.push(number as u32),
                Ok(_) => plan.order.push(number as u32),
            }
        }
        plan.order.sort_unstable_by_key(|&number| plan.ranges[number as usize].start);
        plan.merge(limits);
        debug_assert_eq!(
            plan.order.len() + plan.empty.len() + plan.faulty.len(),
            plan.ranges.len().min(most),
            "every range is read, empty or faulty"
        );
        debug_assert_eq!(
            plan.pieces.iter().map(|piece| piece.count as usize).sum::<usize>(),
            plan.order.len(),
            "every range that is read belongs to one request"
        );
        plan
    }

    fn merge(&mut self, limits: &Limits) {
        let mut open: Option<Open> = None;
        for at in 0..self.order.len() as u32 {
            let range = self.ranges[self.order[at as usize] as usize].clone();
            if let Some(piece) = open.as_mut()
                && piece.takes(&range, limits, self.grain)
            {
                continue;
            }
            debug_assert!(
                self.pieces.last().is_none_or(|last| last.offset <= range.start),
                "requests are planned in the order of the file"
            );
            if let Some(piece) = open.replace(Open::new(&range, at, self.grain)) {
                self.pieces.extend(piece.close(self.grain));
            }
        }
        if let Some(piece) = open {
            self.pieces.extend(piece.close(self.grain));
        }
    }
}

/// A request that may still grow.
struct Open {
    start: u64,
    end: u64,
    waste: u64,
    first: u32,
    count: u32,
}

impl Open {
    fn new(range: &Range<u64>, first: u32, grain: u32) -> Open {
        let start = range.start - range.start % u64::from(grain.max(1));
        Open { start, end: range.end, waste: 0, first, count: 1 }
    }

    /// Adds a range that starts at or behind the start of every range so far. Returns false if the limits do
    /// not allow it.
    fn takes(&mut self, range: &Range<u64>, limits: &Limits, grain: u32) -> bool {
        let inside = range.end <= self.end;
        // Bytes of the same device block are read anyway, whatever the limits.
        let touched = self.end.next_multiple_of(u64::from(grain.max(1)));
        let gap = range.start.saturating_sub(touched);
        let fits = range.end - self.start <= limits.request_bytes_max
            && gap <= limits.gap_bytes_max
            && self.waste + gap <= limits.waste_bytes_max;
        if inside || fits {
            self.waste += gap;
            self.end = self.end.max(range.end);
            self.count += 1;
        }
        inside || fits
    }

    /// Returns the finished request. `None` never happens: a piece is as long as its longest range, or within
    /// the limits.
    fn close(self, grain: u32) -> Option<Piece> {
        let widened = Widened::of(&(self.start..self.end), grain).ok()?;
        Some(Piece { offset: widened.offset, len: widened.len, first: self.first, count: self.count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(ranges: &[Range<u64>], limits: Limits) -> Vec<(u64, u32, u32)> {
        let plan = Plan::new(ranges.to_vec(), &limits, 512);
        plan.pieces.iter().map(|piece| (piece.offset, piece.len, piece.count)).collect()
    }

    #[test]
    fn merges_what_lies_close_and_keeps_the_rest_apart() {
        let limits = Limits { gap_bytes_max: 4096, waste_bytes_max: 8192, request_bytes_max: 65536 };
        assert_eq!(pieces(&[0..100, 4000..4100, 100_000..100_001], limits), [(0, 4608, 2), (99_840, 512, 1)]);
        assert_eq!(pieces(&[100_000..100_001, 4000..4100, 0..100], limits), [(0, 4608, 2), (99_840, 512, 1)]);
    }

    #[test]
    fn equal_overlapping_and_contained_ranges_share_a_request_whatever_the_limits() {
        let none = Limits { gap_bytes_max: 0, waste_bytes_max: 0, request_bytes_max: 0 };
        assert_eq!(pieces(&[0..4096, 0..4096, 512..1024], none), [(0, 4096, 3)]);
        assert_eq!(
            pieces(&[0..10, 20..30], none),
            [(0, 512, 1), (0, 512, 1)],
            "not inside, and nothing allowed"
        );
        let touching = Limits { request_bytes_max: 1 << 20, ..none };
        assert_eq!(pieces(&[0..10, 20..30, 512..600], touching), [(0, 1024, 3)]);
    }

    #[test]
    fn a_request_wastes_no_more_than_allowed() {
        let limits = Limits { gap_bytes_max: 1024, waste_bytes_max: 1024, request_bytes_max: 1 << 20 };
        assert_eq!(pieces(&[0..512, 1536..2048, 3072..3584], limits), [(0, 2048, 2), (3072, 512, 1)]);
    }

    #[test]
    fn empty_and_impossible_ranges_are_told_apart() {
        let backwards = Range { start: 9, end: 3 };
        let plan = Plan::new(vec![5..5, backwards, 0..u64::MAX, 0..1], &Limits::default(), 512);
        assert_eq!(plan.empty, [0]);
        assert_eq!(plan.faulty.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(plan.order, [3]);
    }
}
