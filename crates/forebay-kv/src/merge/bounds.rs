//! Bounds of a range of keys.

use std::ops::Bound;

use crate::table::Table;

/// A range of keys.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) low: Bound<Vec<u8>>,
    pub(crate) high: Bound<Vec<u8>>,
}

impl Bounds {
    pub(crate) const ALL: Bounds = Bounds { low: Bound::Unbounded, high: Bound::Unbounded };

    pub(crate) fn of<K: AsRef<[u8]>>(range: &impl std::ops::RangeBounds<K>) -> Bounds {
        let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Bounds { low: own(range.start_bound()), high: own(range.end_bound()) }
    }

    /// Returns the bounds of the keys that begin with this prefix.
    pub(crate) fn prefix(prefix: &[u8]) -> Bounds {
        let kept = prefix.iter().rposition(|byte| *byte != u8::MAX);
        let high = kept.map(|last| {
            let mut high = prefix[..=last].to_vec();
            high[last] += 1;
            high
        });
        let high = high.map_or(Bound::Unbounded, Bound::Excluded);
        Bounds { low: Bound::Included(prefix.to_vec()), high }
    }

    pub(crate) fn is_above_low(&self, key: &[u8]) -> bool {
        match &self.low {
            Bound::Included(low) => key >= &low[..],
            Bound::Excluded(low) => key > &low[..],
            Bound::Unbounded => true,
        }
    }

    pub(crate) fn is_below_high(&self, key: &[u8]) -> bool {
        match &self.high {
            Bound::Included(high) => key <= &high[..],
            Bound::Excluded(high) => key < &high[..],
            Bound::Unbounded => true,
        }
    }

    /// Returns whether a table may have keys within the bounds.
    pub(crate) fn meet(&self, table: &Table) -> bool {
        self.is_above_low(&table.meta().largest) && self.is_below_high(&table.meta().smallest)
    }

    pub(super) fn slices(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (self.low.as_ref().map(Vec::as_slice), self.high.as_ref().map(Vec::as_slice))
    }
}
