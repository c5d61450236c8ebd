//! The plan of a call: which aggregator has which windows of the file, and which rank has pieces in which window.

use std::ops::Range;

use bytes::Bytes;
use forebay::internal::SealedMemory;

use super::wire::{Body, Frame, Kind};
use crate::view::View;

/// The plan of a call, the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The file's length before the call.
    pub(super) length: u64,
    /// The range of all ranks' pieces.
    pub(super) start: u64,
    pub(super) end: u64,
    /// The length of a window, a power of two. Windows start at its multiples.
    pub(super) window: u64,
    /// The number of aggregators.
    pub(super) aggregators: u64,
    /// Whether rank 0 has locked the file: there may be holes.
    pub(super) is_locked: bool,
}

impl Plan {
    pub(super) fn frame(&self) -> Frame {
        let mut frame = Frame::new(Kind::Plan);
        for number in
            [self.length, self.start, self.end, self.window, self.aggregators, self.is_locked.into()]
        {
            frame.put(number);
        }
        frame
    }

    /// Reads a plan; `None` if it is malformed.
    pub(super) fn of_body(body: &[u8]) -> Option<Plan> {
        let mut body = Body(body);
        let mut take = || body.take();
        let plan = Plan {
            length: take()?,
            start: take()?,
            end: take()?,
            window: take()?,
            aggregators: take()?,
            is_locked: take()? == 1,
        };
        (plan.start <= plan.end
            && plan.end <= i64::MAX as u64
            && plan.window.is_power_of_two()
            && plan.aggregators > 0)
            .then_some(plan)
    }

    /// Returns the numbers of an aggregator's windows: all aggregators' are about equally many.
    pub(super) fn windows(&self, aggregator: usize) -> Range<u64> {
        let first = self.start / self.window;
        let count = self.end.div_ceil(self.window).saturating_sub(first);
        let bound = |index: u64| {
            // In 128 bits, because sparse files may be as long as offsets allow.
            first + (u128::from(count) * u128::from(index) / u128::from(self.aggregators)) as u64
        };
        bound(aggregator as u64)..bound(aggregator as u64 + 1)
    }

    /// Returns the range of the file that a window has.
    pub(super) fn range(&self, window: u64) -> Range<u64> {
        window * self.window..(window + 1) * self.window
    }

    /// Returns whether pieces may be in this window, or `window` is `None`.
    pub(super) fn allows(&self, window: Option<u64>) -> bool {
        window.is_none_or(|window| window < self.end.div_ceil(self.window))
    }

    /// Returns the longest body of a message about one window: bytes of it, and a series for each second one.
    pub(super) fn body_max(&self) -> usize {
        (self.window as usize).saturating_mul(1 + SERIES_LEN / 2).saturating_add(64)
    }
}

/// The windows in which a view has pieces, in the order in which a rank sends them: the first of each aggregator, the second, and so on.
/// All ranks have this order, and aggregators receive window by window and rank by rank. So the first message in this order that has
/// not arrived is one that its sender sends and its receiver waits for: no circle of ranks waits for each other.
pub(super) struct Turns<'v> {
    plan: Plan,
    view: &'v View,
    /// The next window of each aggregator.
    next: Vec<Option<u64>>,
}

/// One message's place: a window, its aggregator, and the window after it that has pieces.
pub(super) struct Turn {
    pub(super) aggregator: usize,
    pub(super) window: u64,
    pub(super) next: Option<u64>,
}

impl<'v> Turns<'v> {
    pub(super) fn new(plan: Plan, view: &'v View) -> Turns<'v> {
        let first = |aggregator: u64| {
            let windows = plan.windows(aggregator as usize);
            next_window(&plan, view, windows)
        };
        Turns { plan, view, next: (0..plan.aggregators).map(first).collect() }
    }

    /// Returns the first window of an aggregator that has pieces, before any turn.
    pub(super) fn first(&self, aggregator: usize) -> Option<u64> {
        self.next[aggregator]
    }
}

impl Iterator for Turns<'_> {
    type Item = Turn;

    fn next(&mut self) -> Option<Turn> {
        let step = |aggregator: usize, window: u64| window - self.plan.windows(aggregator).start;
        let due = self.next.iter().enumerate().filter_map(|(index, window)| Some((index, (*window)?)));
        let (aggregator, window) = due.min_by_key(|(index, window)| (step(*index, *window), *index))?;
        let rest = window + 1..self.plan.windows(aggregator).end;
        let next = next_window(&self.plan, self.view, rest);
        self.next[aggregator] = next;
        Some(Turn { aggregator, window, next })
    }
}

/// Returns the first of these windows in which the view has pieces.
fn next_window(plan: &Plan, view: &View, windows: Range<u64>) -> Option<u64> {
    if windows.is_empty() {
        return None;
    }
    let range = windows.start * plan.window..windows.end * plan.window;
    view.pieces_in(range).next().map(|piece| piece.start / plan.window)
}

/// The length of a series in a message.
const SERIES_LEN: usize = 32;

/// Pieces of one length at one distance: the flattened form of a view in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Series {
    start: u64,
    len: u64,
    stride: u64,
    count: u64,
}

/// Returns the message about a rank's pieces of a window, without their bytes.
pub(super) fn pieces_frame(plan: &Plan, view: &View, turn: &Turn) -> Frame {
    let mut all: Vec<Series> = Vec::new();
    for piece in view.pieces_in(plan.range(turn.window)) {
        let (start, len) = (piece.start, piece.end - piece.start);
        match all.last_mut() {
            Some(last) if last.len == len && last.count == 1 => {
                (last.stride, last.count) = (start - last.start, 2);
            }
            Some(last) if last.len == len && last.start + last.stride * last.count == start => {
                last.count += 1
            }
            _ => all.push(Series { start, len, stride: 0, count: 1 }),
        }
    }
    let mut frame = first_frame(Some(turn.window));
    frame.put(turn.next.unwrap_or(u64::MAX));
    frame.put(all.len() as u64);
    for series in all {
        for number in [series.start, series.len, series.stride, series.count] {
            frame.put(number);
        }
    }
    frame
}

/// Returns the message that only names the first window.
pub(super) fn first_frame(window: Option<u64>) -> Frame {
    let mut frame = Frame::new(Kind::Pieces);
    frame.put(window.unwrap_or(u64::MAX));
    frame
}

/// Reads the number of a window; the largest number stands for `None`.
pub(super) fn window_of(body: &mut Body<'_>) -> Option<Option<u64>> {
    body.take().map(|window| Some(window).filter(|window| *window != u64::MAX))
}

/// A rank's pieces of a window, as an aggregator gets them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Deposit {
    /// The next window in which the rank has pieces.
    pub(super) next: Option<u64>,
    pub(super) pieces: Vec<Range<u64>>,
    /// The place of their bytes in the message.
    pub(super) bytes_at: usize,
}

impl Deposit {
    /// Reads the message about a window; `None` if it is not a valid message of this window: pieces out of order or outside, more
    /// or fewer bytes than a write's pieces have, or any bytes for a read.
    pub(super) fn of_body(whole: &[u8], plan: &Plan, window: u64, is_write: bool) -> Option<Deposit> {
        let mut body = Body(whole);
        if window_of(&mut body)? != Some(window) {
            return None;
        }
        let next = window_of(&mut body)?;
        let range = plan.range(window);
        let count = body.take()?;
        let (mut pieces, mut at, mut bytes) = (Vec::new(), range.start, 0);
        for _ in 0..count {
            let series =
                Series { start: body.take()?, len: body.take()?, stride: body.take()?, count: body.take()? };
            for number in 0..series.count {
                let start =
                    series.stride.checked_mul(number).and_then(|far| far.checked_add(series.start))?;
                let end = start.checked_add(series.len)?;
                if series.len == 0 || start < at || end > range.end {
                    return None;
                }
                pieces.push(start..end);
                bytes += series.len;
                at = end;
            }
        }
        let is_later = next.is_none_or(|next| next > window) && plan.allows(next);
        let is_whole = body.0.len() as u64 == if is_write { bytes } else { 0 };
        let bytes_at = whole.len() - body.0.len();
        (is_later && is_whole && !pieces.is_empty()).then_some(Deposit { next, pieces, bytes_at })
    }

    /// Reads the message about a window with its bytes, which are the end of the body or memory; `None` as [`of_body`](Self::of_body).
    pub(super) fn of_message(
        body: Vec<u8>,
        memory: Option<SealedMemory>,
        plan: &Plan,
        window: u64,
        is_write: bool,
    ) -> Option<(Deposit, Bytes)> {
        let deposit = Deposit::of_body(&body, plan, window, is_write && memory.is_none())?;
        let Some(memory) = memory else {
            let bytes = Bytes::from(body).slice(deposit.bytes_at..);
            return Some((deposit, bytes));
        };
        let bytes: u64 = deposit.pieces.iter().map(|piece| piece.end - piece.start).sum();
        let is_whole = is_write && memory.bytes().len() as u64 == bytes;
        is_whole.then(|| (deposit, Bytes::from_owner(memory)))
    }

    /// Returns the pieces with their bytes, which are one after the other in `all`.
    pub(super) fn with_bytes(&self, all: &Bytes) -> Vec<(u64, Bytes)> {
        let mut at = 0;
        let cut = |piece: &Range<u64>| {
            let end = at + (piece.end - piece.start) as usize;
            let bytes = all.slice(at..end);
            at = end;
            (piece.start, bytes)
        };
        self.pieces.iter().map(cut).collect()
    }
}

/// Returns two ranks with pieces that overlap, and where, if any.
pub(super) fn overlap(deposits: &[(usize, Deposit)]) -> Option<(usize, usize, u64)> {
    let of_rank = |(rank, deposit): &(usize, Deposit)| {
        let rank = *rank;
        deposit.pieces.iter().map(move |piece| (piece.start, piece.end, rank)).collect::<Vec<_>>()
    };
    let mut pieces: Vec<(u64, u64, usize)> = deposits.iter().flat_map(of_rank).collect();
    // Each rank's are in order, which this sort uses.
    pieces.sort();
    pieces.windows(2).find(|pair| pair[1].0 < pair[0].1).map(|pair| (pair[0].2, pair[1].2, pair[1].0))
}

/// Returns the ranges that the pieces of several ranks cover, in the order of the file.
pub(super) fn union<'p>(pieces: impl Iterator<Item = &'p Range<u64>>) -> Vec<Range<u64>> {
    let mut pieces: Vec<Range<u64>> = pieces.cloned().collect();
    // Each rank's are in order, which this sort uses.
    pieces.sort_by_key(|piece| piece.start);
    pieces.dedup_by(|piece, last| {
        let joins = piece.start <= last.end;
        if joins {
            last.end = last.end.max(piece.end);
        }
        joins
    });
    pieces
}

/// Returns for each piece the index of its range in a union, and its place there.
pub(super) fn places(
    union: &[Range<u64>],
    pieces: &[Range<u64>],
) -> impl Iterator<Item = (usize, Range<usize>)> {
    pieces.iter().map(move |piece| {
        let index = union.partition_point(|range| range.end < piece.end);
        let start = (piece.start - union[index].start) as usize;
        (index, start..start + (piece.end - piece.start) as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(start: u64, end: u64, aggregators: u64) -> Plan {
        Plan { length: 0, start, end, window: 1 << 20, aggregators, is_locked: false }
    }

    /// The body of a frame.
    fn body(frame: Frame) -> Vec<u8> {
        frame.into_bytes().split_off(5)
    }

    #[test]
    fn windows_cover_the_span_once() {
        for (start, end) in [(0, 1), (5, 70_000), (3 << 20, 9 << 20), (0, 1 << 62)] {
            for aggregators in 1..6 {
                let plan = plan(start, end, aggregators);
                assert_eq!(Plan::of_body(&body(plan.frame())), Some(plan));
                let mut at = start >> 20;
                for aggregator in 0..aggregators as usize {
                    let windows = plan.windows(aggregator);
                    assert_eq!(windows.start, at);
                    at = windows.end;
                }
                assert_eq!(at, end.div_ceil(1 << 20));
            }
        }
        assert!(plan(0, 0, 3).windows(1).is_empty());
    }

    /// A sparse view of 2^62 bytes has a message for each window with pieces and no others, and pieces arrive as they were.
    #[test]
    fn messages_carry_the_pieces_of_windows_that_have_some() {
        let far = 1u64 << 61;
        let ranges =
            [5..9, 100..200, 300..400, 500..600, 900..950, (1 << 20) - 3..(1 << 20) + 4, far..far + 10];
        let view = View::pieces(ranges).unwrap();
        let plan = plan(0, far + 10, 2);
        let turns = Turns::new(plan, &view);
        let mut expected = [turns.first(0), turns.first(1)];
        let (mut found, mut windows) = (Vec::new(), Vec::new());
        for turn in turns {
            assert_eq!(expected[turn.aggregator], Some(turn.window));
            let message = body(pieces_frame(&plan, &view, &turn));
            let deposit = Deposit::of_body(&message, &plan, turn.window, false).unwrap();
            assert_eq!(deposit.next, turn.next);
            assert_eq!(Deposit::of_body(&message, &plan, turn.window + 1, false), None);
            let shorter = Plan { end: turn.next.unwrap_or_default() << 20, ..plan };
            assert_eq!(
                Deposit::of_body(&message, &shorter, turn.window, false).is_none(),
                turn.next.is_some()
            );
            assert_eq!(Deposit::of_body(&message, &plan, turn.window, true), None, "its bytes are missing");
            assert_eq!(Deposit::of_body(&message[..message.len() - 1], &plan, turn.window, false), None);
            found.extend(deposit.pieces);
            windows.push((turn.aggregator, turn.window));
            expected[turn.aggregator] = turn.next;
        }
        assert_eq!(windows, [(0, 0), (0, 1), (1, far >> 20)]);
        assert_eq!(View::pieces(found).unwrap().bytes(), view.bytes());
    }

    #[test]
    fn a_vector_is_one_series() {
        let view = View::vector(100, 512, 4096, 200).unwrap();
        let plan = plan(0, 1 << 20, 1);
        let turn = Turns::new(plan, &view).next().unwrap();
        let message = body(pieces_frame(&plan, &view, &turn));
        assert_eq!(message.len(), 3 * 8 + SERIES_LEN);
        assert_eq!(Deposit::of_body(&message, &plan, 0, false).unwrap().pieces.len(), 200);
    }

    /// An aggregator read a range once for each rank that wanted it: its memory grew with the ranks.
    #[test]
    fn a_range_of_several_ranks_is_read_once() {
        let ranks: [&[Range<u64>]; 4] =
            [&[0..10, 20..30], &[5..15, 40..41], &[15..16, 25..28], &[0..10, 20..30]];
        let all = union(ranks.iter().copied().flatten());
        assert_eq!(all, [0..16, 20..30, 40..41]);
        for pieces in ranks {
            for (piece, (index, place)) in pieces.iter().zip(places(&all, pieces)) {
                let found = all[index].start + place.start as u64..all[index].start + place.end as u64;
                assert_eq!(
                    (found, place.end <= (all[index].end - all[index].start) as usize),
                    (piece.clone(), true)
                );
            }
        }
    }

    #[test]
    fn overlaps_are_found_between_ranks() {
        let deposit = |pieces: &[Range<u64>]| Deposit { next: None, pieces: pieces.to_vec(), bytes_at: 0 };
        let apart = [(0, deposit(&[0..5, 10..15])), (3, deposit(&[5..10, 15..20]))];
        assert_eq!(overlap(&apart), None);
        let both = [(0, deposit(&[0..5, 10..15])), (3, deposit(&[5..11, 15..20]))];
        assert_eq!(overlap(&both), Some((3, 0, 10)));
    }
}
