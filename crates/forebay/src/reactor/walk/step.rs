//! The return value of a step.

use std::fmt;
use std::ops::Range;

/// The most ranges that one step may request.
const RANGES_MAX: usize = 16;

/// The next action of a [`Walk`](crate::Walk).
///
/// Every variant except [`Wait`](Step::Wait) drops the blocks of an earlier [`ReadEach`](Step::ReadEach) that have not arrived yet:
/// they are cancelled where the device allows it, and no step sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the walk goes on as its step says"]
#[non_exhaustive]
#[allow(
    clippy::large_enum_variant,
    reason = "lives for one return; a box would be an allocation in each step"
)]
pub enum Step<T, E> {
    /// Reads exactly this range, at least one byte of it, and calls [`step`](crate::Walk::step) with the
    /// block.
    Read(Range<u64>),
    /// Reads each of up to 16 ranges, all concurrently, and calls [`step`](crate::Walk::step) with each block as it arrives, in any
    /// order and never two at a time.
    ReadEach(Ranges),
    /// Waits for the next block of an earlier [`ReadEach`](Step::ReadEach). An error without a pending block.
    Wait,
    /// Ends the walk with this result.
    Done(T),
    /// Fails the walk with this error.
    Fail(E),
}

impl<T, E> Step<T, E> {
    /// Returns [`Step::ReadEach`] of the ranges of an iterator; more than 16 fail the walk.
    pub fn read_each(ranges: impl IntoIterator<Item = Range<u64>>) -> Step<T, E> {
        Step::ReadEach(ranges.into_iter().collect())
    }
}

/// Up to 16 ranges of a file, without an allocation. A list that was given more than 16 fails the walk that requests it with
/// [`InvalidInput`](crate::ErrorKind::InvalidInput).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Ranges {
    bounds: [(u64, u64); RANGES_MAX],
    /// `RANGES_MAX + 1`: more were pushed.
    len: u8,
}

impl Ranges {
    /// Returns a list without ranges.
    pub const fn new() -> Ranges {
        Ranges { bounds: [(0, 0); RANGES_MAX], len: 0 }
    }

    /// Adds a range. Returns false if it has 16 already.
    pub fn push(&mut self, range: Range<u64>) -> bool {
        let place = self.bounds.get_mut(usize::from(self.len));
        let fits = place.is_some();
        if let Some(place) = place {
            *place = (range.start, range.end);
        }
        self.len = (self.len + 1).min(RANGES_MAX as u8 + 1);
        fits
    }

    /// Returns the number of ranges, at most 16.
    pub fn len(&self) -> usize {
        usize::from(self.len).min(RANGES_MAX)
    }

    /// Returns whether it has no ranges.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the ranges in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.bounds[..self.len()].iter().map(|&(start, end)| start..end)
    }

    /// Returns whether it was given too many ranges.
    pub(crate) fn is_too_many(&self) -> bool {
        usize::from(self.len) > RANGES_MAX
    }
}

impl FromIterator<Range<u64>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Ranges {
        let mut all = Ranges::new();
        for range in ranges {
            if !all.push(range) {
                break;
            }
        }
        all
    }
}

impl fmt::Debug for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
