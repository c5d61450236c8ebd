//! Sets of ranges, such as the blocks of a file or the bad sectors of a disk.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that neither overlap nor touch, as a map from start to end.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range and returns how much of it is new.
    pub(super) fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let (mut start, mut end, mut known) = (range.start, range.end, 0);
        // From the back: the last range that starts at or before our end may touch us, and so may those before it.
        while let Some((&other_start, &other_end)) = self.0.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            known += other_end.min(range.end).saturating_sub(other_start.max(range.start));
            start = start.min(other_start);
            end = end.max(other_end);
            self.0.remove(&other_start);
        }
        self.0.insert(start, end);
        range.end - range.start - known
    }

    /// Removes a range and returns how much of it was in the set.
    pub(super) fn remove(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let mut removed = 0;
        while let Some((&start, &end)) = self.0.range(..range.end).next_back() {
            if end <= range.start {
                break;
            }
            self.0.remove(&start);
            removed += end.min(range.end) - start.max(range.start);
            if end > range.end {
                self.0.insert(range.end, end);
            }
            if start < range.start {
                self.0.insert(start, range.start);
            }
        }
        removed
    }

    /// Returns how much of a range is in the set.
    pub(super) fn overlap(&self, range: Range<u64>) -> u64 {
        let mut found = 0;
        for (&start, &end) in self.0.range(..range.end).rev() {
            if end <= range.start {
                break;
            }
            found += end.min(range.end) - start.max(range.start);
        }
        found
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the sum of all ranges' lengths.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(&start, &end)| start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_set_of_numbers() {
        let mut random = crate::source::Source::new(5);
        let (mut ranges, mut model) = (Ranges::default(), std::collections::BTreeSet::new());
        for _ in 0..2_000 {
            let start = random.below(60);
            let range = start..start + random.below(12);
            let inside = range.clone().filter(|at| model.contains(at)).count() as u64;
            assert_eq!(ranges.overlap(range.clone()), inside);
            if random.below(2) == 0 {
                assert_eq!(ranges.insert(range.clone()), range.end - range.start - inside);
                model.extend(range);
            } else {
                assert_eq!(ranges.remove(range.clone()), inside);
                model.retain(|at| !range.contains(at));
            }
            assert_eq!(ranges.total(), model.len() as u64);
            assert_eq!(
                ranges.iter().flatten().collect::<Vec<_>>(),
                model.iter().copied().collect::<Vec<_>>()
            );
            let mut ends = ranges.iter();
            let first = ends.next();
            ends.try_fold(first, |last, next| {
                last.is_none_or(|last| last.end < next.start).then_some(Some(next))
            })
            .expect("ranges are apart");
        }
    }
}
