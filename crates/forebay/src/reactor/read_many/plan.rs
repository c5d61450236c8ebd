//! Planning of the requests for a batch of ranges. It runs on the caller's thread, so that sorting a million
//! ranges delays no other task.

use std::ops::Range;

use crate::base::error::Error;
use crate::reactor::ranges::{PART_BYTES, check_range};

/// Limits of merging; see [`ReadMany`](crate::ReadMany).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) gap_bytes_max: u64,
    pub(crate) waste_bytes_max: u64,
    pub(crate) request_bytes_max: u64,
    /// Longer ranges are read in parts of this length, and merge with no other.
    pub(crate) part_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            gap_bytes_max: 16 << 10,
            waste_bytes_max: 64 << 10,
            request_bytes_max: 256 << 10,
            part_bytes: PART_BYTES,
        }
    }
}

/// The ranges of a batch, and their files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    list: Vec<Range<u64>>,
    /// The number of each range's file; empty when all are of file 0.
    files: Vec<u32>,
}

impl Ranges {
    /// Returns ranges of one file.
    pub(crate) fn of_one(list: Vec<Range<u64>>) -> Ranges {
        Ranges { list, files: Vec::new() }
    }

    /// Adds a range of the file with this number.
    pub(crate) fn push(&mut self, file: u32, range: Range<u64>) {
        if file != 0 && self.files.is_empty() {
            self.files = vec![0; self.list.len()];
        }
        if file != 0 || !self.files.is_empty() {
            self.files.push(file);
        }
        self.list.push(range);
    }

    /// Returns some of the ranges, in the order of their `numbers`.
    pub(crate) fn pick(&self, numbers: &[u32]) -> Ranges {
        Ranges {
            list: numbers.iter().map(|&number| self.get(number).clone()).collect(),
            files: if self.files.is_empty() {
                Vec::new()
            } else {
                numbers.iter().map(|&number| self.file(number)).collect()
            },
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> &Range<u64> {
        &self.list[number as usize]
    }

    #[inline]
    pub(crate) fn file(&self, number: u32) -> u32 {
        self.files.get(number as usize).copied().unwrap_or(0)
    }
}

/// One request, or one range that is read in parts: a section of a file, and the ranges whose bytes lie in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The piece's ranges are `order[first..first + count]`.
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// The requests of a batch in order of file and offset.
pub(crate) struct Plan {
    pub(crate) ranges: Ranges,
    /// Numbers of the ranges that are read, in order of file and offset.
    pub(crate) order: Vec<u32>,
    pub(crate) pieces: Vec<Piece>,
    /// Empty ranges, which need no read.
    pub(crate) empty: Vec<u32>,
    /// Ranges that cannot be read, with the reasons.
    pub(crate) faulty: Vec<(u32, Error)>,
    /// The alignment of reads of each file.
    pub(crate) grains: Box<[u32]>,
    pub(crate) part_bytes: u64,
}

impl Plan {
    pub(crate) fn new(ranges: Ranges, limits: &Limits, grains: Box<[u32]>) -> Plan {
        let mut plan = Plan {
            order: Vec::with_capacity(ranges.len()),
            pieces: Vec::new(),
            empty: Vec::new(),
            faulty: Vec::new(),
            ranges,
            grains,
            part_bytes: limits.part_bytes,
        };
        // Piece numbers share a word with two mark bits, which bounds the number of ranges in one batch.
        let most = (u32::MAX >> 2) as usize;
        for (number, range) in plan.ranges.list.iter().enumerate().take(most) {
            let file = plan.ranges.file(number as u32);
            match check_range("read", range, plan.grains[file as usize].max(1)) {
                Err(error) => plan.faulty.push((number as u32, error)),
                Ok(()) if range.is_empty() => plan.empty.push(number as u32),
                Ok(()) => plan.order.push(number as u32),
            }
        }
        let (ranges, files) = (&plan.ranges.list, &plan.ranges.files);
        if files.is_empty() {
            plan.order.sort_unstable_by_key(|&number| ranges[number as usize].start);
        } else {
            plan.order
                .sort_unstable_by_key(|&number| (files[number as usize], ranges[number as usize].start));
        }
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
            let number = self.order[at as usize];
            let (range, file) = (self.ranges.get(number).clone(), self.ranges.file(number));
            if let Some(piece) = open.as_mut()
                && piece.takes(file, &range, limits)
            {
                continue;
            }
            debug_assert!(
                self.pieces.last().is_none_or(|last| (last.file, last.offset) <= (file, range.start)),
                "requests are planned in the order of the files"
            );
            let grain = self.grains[file as usize];
            if let Some(piece) = open.replace(Open::new(file, &range, at, grain)) {
                self.pieces.push(piece.close());
            }
            if open.as_ref().is_some_and(|piece| piece.end - piece.start > limits.part_bytes) {
                self.pieces.extend(open.take().map(Open::close));
            }
        }
        self.pieces.extend(open.map(Open::close));
    }

    /// Returns whether a piece is one range that is read in parts.
    pub(crate) fn is_long(&self, piece: &Piece) -> bool {
        piece.count == 1 && piece.len > self.part_bytes
    }

    /// Returns the bytes of the ranges that are read.
    pub(crate) fn wanted_bytes(&self) -> u64 {
        let ranges = self.order.iter().map(|&number| self.ranges.get(number));
        ranges.map(|range| range.end - range.start).fold(0, u64::saturating_add)
    }
}

/// A request that may still grow.
struct Open {
    file: u32,
    grain: u32,
    start: u64,
    end: u64,
    waste: u64,
    first: u32,
    count: u32,
}

impl Open {
    fn new(file: u32, range: &Range<u64>, first: u32, grain: u32) -> Open {
        let start = range.start - range.start % u64::from(grain.max(1));
        Open { file, grain, start, end: range.end, waste: 0, first, count: 1 }
    }

    /// Adds a range that starts at or behind the start of every range so far. Returns false if the limits do
    /// not allow it.
    fn takes(&mut self, file: u32, range: &Range<u64>, limits: &Limits) -> bool {
        if file != self.file {
            return false;
        }
        let inside = range.end <= self.end;
        // Bytes of the same device block are read anyway, regardless of the limits.
        let touched = self.end.next_multiple_of(u64::from(self.grain.max(1)));
        let gap = range.start.saturating_sub(touched);
        let fits = range.end - self.start <= limits.request_bytes_max.min(limits.part_bytes)
            && gap <= limits.gap_bytes_max
            && self.waste + gap <= limits.waste_bytes_max;
        if inside || fits {
            self.waste += gap;
            self.end = self.end.max(range.end);
            self.count += 1;
        }
        inside || fits
    }

    /// Returns the finished request.
    fn close(self) -> Piece {
        let grain = u64::from(self.grain.max(1));
        let offset = self.start / grain * grain;
        let len = self.end.next_multiple_of(grain) - offset;
        Piece { file: self.file, offset, len, first: self.first, count: self.count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(ranges: &[Range<u64>], limits: Limits) -> Vec<(u64, u64, u32)> {
        let plan = Plan::new(Ranges::of_one(ranges.to_vec()), &limits, Box::new([512]));
        plan.pieces.iter().map(|piece| (piece.offset, piece.len, piece.count)).collect()
    }

    #[test]
    fn merges_what_lies_close_and_keeps_the_rest_apart() {
        let limits = Limits {
            gap_bytes_max: 4096,
            waste_bytes_max: 8192,
            request_bytes_max: 65536,
            ..Limits::default()
        };
        assert_eq!(pieces(&[0..100, 4000..4100, 100_000..100_001], limits), [(0, 4608, 2), (99_840, 512, 1)]);
        assert_eq!(pieces(&[100_000..100_001, 4000..4100, 0..100], limits), [(0, 4608, 2), (99_840, 512, 1)]);
    }

    #[test]
    fn equal_overlapping_and_contained_ranges_share_a_request_whatever_the_limits() {
        let none = Limits { gap_bytes_max: 0, waste_bytes_max: 0, request_bytes_max: 0, ..Limits::default() };
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
        let limits = Limits {
            gap_bytes_max: 1024,
            waste_bytes_max: 1024,
            request_bytes_max: 1 << 20,
            ..Limits::default()
        };
        assert_eq!(pieces(&[0..512, 1536..2048, 3072..3584], limits), [(0, 2048, 2), (3072, 512, 1)]);
    }

    #[test]
    fn a_long_range_is_a_piece_of_its_own_whatever_the_limits() {
        let limits = Limits {
            gap_bytes_max: 1 << 40,
            waste_bytes_max: 1 << 40,
            request_bytes_max: u64::MAX,
            part_bytes: 64 << 10,
        };
        let plan =
            |ranges: &[Range<u64>]| Plan::new(Ranges::of_one(ranges.to_vec()), &limits, Box::new([512]));
        let long = plan(&[0..10, 700..5 << 30, 8192..9000, 60_000..70_000, 7 << 30..(7 << 30) + 65_537]);
        let pieces: Vec<_> = long.pieces.iter().map(|piece| (piece.offset, piece.len, piece.count)).collect();
        assert_eq!(
            pieces,
            [(0, 512, 1), (512, (5 << 30) - 512, 1), (8192, 61_952, 2), (7 << 30, 66_048, 1)],
            "what lies in it is read beside it, and merges with its like"
        );
        assert_eq!(
            long.pieces.iter().map(|piece| long.is_long(piece)).collect::<Vec<_>>(),
            [false, true, false, true]
        );
    }

    #[test]
    fn empty_and_impossible_ranges_are_kept_apart() {
        let backwards = Range { start: 9, end: 3 };
        let ranges = Ranges::of_one(vec![5..5, backwards, 0..u64::MAX, 0..1]);
        let plan = Plan::new(ranges, &Limits::default(), Box::new([512]));
        assert_eq!(plan.empty, [0]);
        assert_eq!(plan.faulty.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(plan.order, [3]);
    }

    #[test]
    fn ranges_of_several_files_merge_within_their_file_only() {
        let mut ranges = Ranges::default();
        for (file, range) in [(1, 0..100), (0, 5000..5100), (1, 4096..4196), (0, 100..200), (2, 7..8)] {
            ranges.push(file, range);
        }
        let plan = Plan::new(ranges, &Limits::default(), Box::new([4096, 512, 1]));
        let pieces: Vec<_> = plan.pieces.iter().map(|piece| (piece.file, piece.offset, piece.len)).collect();
        assert_eq!(pieces, [(0, 0, 8192), (1, 0, 4608), (2, 7, 1)], "each with its file's alignment");
        assert_eq!(plan.order, [3, 1, 0, 2, 4]);
        assert_eq!(plan.wanted_bytes(), 401);
    }
}
