//! The plan of a collective write: the pieces of all participants, sorted and cut into runs of whole pages.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::coalesce::Shape;

/// The pieces that each participant gave, by rank.
pub(crate) type Deposits = Arc<Vec<Vec<(u64, Bytes)>>>;

/// The part of a collective write of one aggregator: a range of the file, from front to back.
pub(crate) struct Part {
    deposits: Deposits,
    shape: Shape,
    domain: Range<u64>,
    /// The pieces that have bytes in the domain, by offset.
    pieces: Vec<Piece>,
    /// Index of the first piece behind the planned range.
    next: usize,
    /// Pieces before `next` that continue behind the planned range.
    long: Vec<Piece>,
    /// The end of the planned range.
    at: u64,
    planned: VecDeque<Run>,
}

/// A piece without its bytes. The order of `(rank, number)` is the order in which pieces are laid over each
/// other.
#[derive(Clone, Copy)]
struct Piece {
    offset: u64,
    end: u64,
    rank: u32,
    number: u32,
}

/// A run of pages, with its pieces.
pub(super) struct Run {
    pub(super) range: Range<u64>,
    /// Pages of it that the pieces do not cover whole; adjacent pages are merged.
    pub(super) incomplete: Vec<Range<u64>>,
    /// The offset behind the last byte that a piece has.
    pub(super) end: u64,
    /// Bytes that pieces have, each counted once.
    pub(super) covered: u64,
    pieces: Vec<Piece>,
}

/// Returns the range of the file from the first byte of all pieces to the last; `None` without pieces.
pub(super) fn span(deposits: &Deposits) -> Option<Range<u64>> {
    let pieces = deposits.iter().flatten().filter(|(_, bytes)| !bytes.is_empty());
    pieces
        .map(|(offset, bytes)| *offset..offset + bytes.len() as u64)
        .reduce(|one, other| one.start.min(other.start)..one.end.max(other.end))
}

/// Returns the part of `span` that aggregator `index` of `count` writes. All parts are about equal, and end
/// at multiples of a request.
pub(super) fn domain(span: &Range<u64>, shape: &Shape, index: u64, count: u64) -> Range<u64> {
    let first = span.start / shape.request;
    let requests = span.end.div_ceil(shape.request) - first;
    let bound = |index: u64| {
        // In 128 bits, because sparse files may be as long as offsets allow.
        let requests = u128::from(requests) * u128::from(index) / u128::from(count);
        (first + requests as u64).saturating_mul(shape.request)
    };
    bound(index)..bound(index + 1)
}

impl Part {
    pub(crate) fn new(deposits: Deposits, shape: Shape, domain: Range<u64>) -> Part {
        let mut pieces = Vec::new();
        for (rank, deposit) in deposits.iter().enumerate() {
            for (number, (offset, bytes)) in deposit.iter().enumerate() {
                let (offset, end) = (*offset, offset + bytes.len() as u64);
                if offset.max(domain.start) < end.min(domain.end) {
                    pieces.push(Piece { offset, end, rank: rank as u32, number: number as u32 });
                }
            }
        }
        pieces.sort_unstable_by_key(|piece| piece.offset);
        debug_assert!(domain.start.is_multiple_of(shape.request), "parts of the file share no page");
        let at = domain.start;
        let (long, planned) = (Vec::new(), VecDeque::new());
        Part { deposits, shape, domain, pieces, next: 0, long, at, planned }
    }

    /// Returns the next run, unless all were returned.
    pub(super) fn peek(&mut self) -> Option<&Run> {
        while self.planned.is_empty() && self.plan_window() {}
        self.planned.front()
    }

    pub(super) fn take(&mut self) -> Option<Run> {
        self.planned.pop_front()
    }

    /// Plans the range up to the next multiple of the request's size; returns false at the end.
    fn plan_window(&mut self) -> bool {
        if self.long.is_empty() {
            let Some(first) = self.pieces.get(self.next) else { return false };
            self.at = self.at.max(first.offset / self.shape.page * self.shape.page);
        }
        if self.at >= self.domain.end {
            return false;
        }
        let window = self.shape.first_request(self.at..self.domain.end);
        let mut pieces = std::mem::take(&mut self.long);
        let begins = self.pieces[self.next..].partition_point(|piece| piece.offset < window.end);
        pieces.extend_from_slice(&self.pieces[self.next..self.next + begins]);
        self.next += begins;
        self.long.extend(pieces.iter().filter(|piece| piece.end > window.end));
        self.at = window.end;
        self.plan_runs(&window, &mut pieces);
        true
    }

    /// Cuts a window into runs of pages that have bytes.
    fn plan_runs(&mut self, window: &Range<u64>, pieces: &mut [Piece]) {
        let page = self.shape.page;
        pieces.sort_unstable_by_key(|piece| piece.offset);
        let mut run: Option<Run> = None;
        // The furthest end of the run's pieces so far; holes before it are noted already.
        let mut whole_until = 0;
        for piece in pieces.iter() {
            let (start, end) = (piece.offset.max(window.start), piece.end.min(window.end));
            let pages = start / page * page..end.div_ceil(page) * page;
            match &mut run {
                Some(known) if pages.start <= known.range.end => {
                    if start > whole_until {
                        known.add_incomplete(whole_until, start, page);
                    }
                    known.covered += end.saturating_sub(start.max(whole_until));
                    known.range.end = known.range.end.max(pages.end);
                    known.end = known.end.max(end);
                    known.pieces.push(*piece);
                }
                _ => {
                    self.planned.extend(run.take().map(|known| known.finished(whole_until, page)));
                    let mut new = Run {
                        range: pages,
                        incomplete: Vec::new(),
                        end,
                        covered: end - start,
                        pieces: vec![*piece],
                    };
                    new.add_incomplete(new.range.start, start, page);
                    run = Some(new);
                    whole_until = 0;
                }
            }
            whole_until = whole_until.max(end);
        }
        self.planned.extend(run.map(|known| known.finished(whole_until, page)));
    }

    /// Copies the pieces of a run over the bytes of `into`, which starts at the run's start.
    pub(super) fn lay(&self, run: &Run, into: &mut [u8]) {
        for piece in &run.pieces {
            let bytes = &self.deposits[piece.rank as usize][piece.number as usize].1;
            let (start, end) = (piece.offset.max(run.range.start), piece.end.min(run.range.end));
            let place = (start - run.range.start) as usize..(end - run.range.start) as usize;
            into[place]
                .copy_from_slice(&bytes[(start - piece.offset) as usize..(end - piece.offset) as usize]);
        }
    }
}

impl Run {
    /// Adds the pages between `start` and `end`, bytes that no piece has: they must be read.
    fn add_incomplete(&mut self, start: u64, end: u64, page: u64) {
        if start >= end {
            return;
        }
        let pages = start / page * page..end.div_ceil(page) * page;
        match self.incomplete.last_mut() {
            Some(last) if pages.start <= last.end => last.end = last.end.max(pages.end),
            _ => self.incomplete.push(pages),
        }
    }

    fn finished(mut self, whole_until: u64, page: u64) -> Run {
        self.add_incomplete(whole_until, self.range.end, page);
        // The highest rank is copied last, and of one participant its last piece: so they win.
        self.pieces.sort_unstable_by_key(|piece| (piece.rank, piece.number));
        if forebay::_is_broken!(LowestRankWins) {
            self.pieces.reverse();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape::new(512, 512, 1 << 20, 64 << 10, 8)
    }

    /// Any pieces, cut by any number of aggregators and laid over a file page by page, equal writes made one
    /// by one.
    #[test]
    fn runs_equal_writes_one_by_one() {
        let mut seed = 0x9E37_79B9_7F4A_7C15u64;
        let mut below = |limit: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % limit
        };
        let shape = shape();
        for _ in 0..300 {
            let base = below(3) * 100_000;
            let mut model = vec![0u8; 600_000];
            let mut deposits = Vec::new();
            for rank in 0..1 + below(4) {
                let mut deposit = Vec::new();
                for number in 0..below(12) {
                    let longest = [2, 100, 5_000, 150_000][below(4) as usize];
                    let len = below(longest);
                    let offset = base + below(130_000);
                    let bytes = vec![(1 + rank * 40 + number) as u8; len as usize];
                    model[offset as usize..(offset + len) as usize].copy_from_slice(&bytes);
                    deposit.push((offset, Bytes::from(bytes)));
                }
                deposits.push(deposit);
            }
            let deposits = Arc::new(deposits);
            let Some(span) = span(&deposits) else { continue };
            let (count, mut file) = (1 + below(3), vec![0u8; 600_000]);
            let mut last = 0;
            for index in 0..count {
                let domain = domain(&span, &shape, index, count);
                let mut part = Part::new(deposits.clone(), shape, domain.clone());
                while part.peek().is_some() {
                    let run = part.take().unwrap();
                    assert!(run.range.start >= last && run.range.end <= domain.end, "in order and apart");
                    assert!(run.range.end - run.range.start <= shape.request);
                    last = run.range.end;
                    let mut bytes = vec![0u8; (run.range.end - run.range.start) as usize];
                    part.lay(&run, &mut bytes);
                    let covered = bytes.iter().filter(|byte| **byte != 0).count();
                    assert_eq!(covered as u64, run.covered);
                    for page in run.range.clone().step_by(shape.page as usize) {
                        let at = (page - run.range.start) as usize;
                        let whole = bytes[at..at + shape.page as usize].iter().all(|byte| *byte != 0);
                        let known = run.incomplete.iter().any(|part| part.contains(&page));
                        assert_eq!(known, !whole, "page {page} of {:?}", run.range);
                    }
                    file[run.range.start as usize..run.range.end as usize].copy_from_slice(&bytes);
                }
            }
            assert!(file == model);
        }
    }

    #[test]
    fn domains_cover_the_span_once() {
        let shape = shape();
        for (start, end) in [(0, 1), (5, 70_000), (100_000, 1 << 20), (0, i64::MAX as u64 - 4096)] {
            for count in 1..6 {
                let mut at = start / shape.request * shape.request;
                for index in 0..count {
                    let domain = domain(&(start..end), &shape, index, count);
                    assert_eq!(domain.start, at);
                    at = domain.end;
                }
                assert!(at >= end);
            }
        }
    }
}
