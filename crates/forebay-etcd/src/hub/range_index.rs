//! [`RangeIndex`]: ranges, found by a key that they contain.

use std::collections::BTreeMap;

use super::{End, Keys};

/// Ranges that share a bucket.
const BUCKET_RANGES_MAX: usize = if cfg!(test) { 8 } else { 128 };

/// Lists of values by ranges. Ranges in the order of their starts share a bucket, which knows the last of their ends. So a key is
/// compared with the ranges of a bucket only if one of them contains it, or if no later bucket starts before it.
#[derive(Debug)]
pub(super) struct RangeIndex<T> {
    /// By the first range that each may have.
    buckets: BTreeMap<Keys, Bucket<T>>,
}

#[derive(Debug)]
struct Bucket<T> {
    /// The last end of its ranges.
    end: End,
    ranges: BTreeMap<Keys, Vec<T>>,
}

impl<T> Default for RangeIndex<T> {
    fn default() -> Self {
        RangeIndex { buckets: BTreeMap::new() }
    }
}

impl<T> Bucket<T> {
    fn of(ranges: BTreeMap<Keys, Vec<T>>) -> Bucket<T> {
        Bucket { end: last_end(&ranges), ranges }
    }

    /// Returns whether a range of it may contain a key.
    fn ends_behind(&self, key: &[u8]) -> bool {
        match &self.end {
            End::Before(end) => key < &**end,
            End::Open => true,
            End::Single | End::Prefix => false,
        }
    }
}

fn last_end<T>(ranges: &BTreeMap<Keys, Vec<T>>) -> End {
    ranges.keys().map(|keys| &keys.end).max().cloned().unwrap_or(End::Single)
}

impl<T> RangeIndex<T> {
    /// Returns the place of the bucket that has a range, or would have it.
    fn bucket_of(&self, keys: &Keys) -> Keys {
        let before = self.buckets.range::<Keys, _>(..=keys).next_back();
        // Before all ranges.
        before.map_or(Keys { start: Vec::new(), end: End::Single }, |(first, _)| first.clone())
    }

    /// Adds a value, and returns its place in the list of the range.
    pub(super) fn insert(&mut self, keys: &Keys, value: T) -> usize {
        let first = self.bucket_of(keys);
        let bucket = self.buckets.entry(first).or_insert_with(|| Bucket::of(BTreeMap::new()));
        if bucket.end < keys.end {
            bucket.end = keys.end.clone();
        }
        let list = bucket.ranges.entry(keys.clone()).or_default();
        list.push(value);
        let place = list.len() - 1;
        if bucket.ranges.len() > BUCKET_RANGES_MAX
            && let Some(middle) = bucket.ranges.keys().nth(BUCKET_RANGES_MAX / 2).cloned()
        {
            let behind = Bucket::of(bucket.ranges.split_off(&middle));
            bucket.end = last_end(&bucket.ranges);
            self.buckets.insert(middle, behind);
        }
        place
    }

    /// Returns the list of a range.
    pub(super) fn get_mut(&mut self, keys: &Keys) -> Option<&mut Vec<T>> {
        let (_, bucket) = self.buckets.range_mut::<Keys, _>(..=keys).next_back()?;
        bucket.ranges.get_mut(keys)
    }

    /// Removes a range with its list.
    pub(super) fn remove(&mut self, keys: &Keys) {
        let first = self.bucket_of(keys);
        let Some(bucket) = self.buckets.get_mut(&first) else { return };
        bucket.ranges.remove(keys);
        if bucket.ranges.is_empty() {
            self.buckets.remove(&first);
        } else if bucket.end == keys.end {
            bucket.end = last_end(&bucket.ranges);
        }
    }

    /// Returns the lists of the ranges that contain a key.
    pub(super) fn of<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = &'a Vec<T>> {
        let buckets = self.buckets.iter().take_while(move |(first, _)| *first.start <= *key);
        buckets.filter(move |(_, bucket)| bucket.ends_behind(key)).flat_map(move |(_, bucket)| {
            let ranges = bucket.ranges.iter().take_while(move |(keys, _)| *keys.start <= *key);
            ranges.filter(move |(keys, _)| keys.contains(key)).map(|(_, list)| list)
        })
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Vec<T>> {
        self.buckets.values().flat_map(|bucket| bucket.ranges.values())
    }
}
