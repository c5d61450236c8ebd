//! The record of recent changes, with which transactions that are open compare what they have read and written.
//!
//! Memtables are compared themselves. A flush leaves the keys that it removes from memory here, each with its newest record, if an
//! older transaction is open: tables do not know the records of their entries. So a transaction may span any number of flushes.
//! Loads, ingests and removals, which change tables past the log, leave the ranges of keys that they touched.
//!
//! Changes are kept by keyspace, as long as a transaction needs them and memory allows. Beyond that, the keyspace with the most
//! changes forgets its oldest part: older transactions that have to compare something in this keyspace conflict. No change is
//! missed. The keys of a flush count from the moment at which it leaves them here.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::is_broken;
use crate::merge::Bounds;
use crate::value::{HeldBytes, HeldShare};

/// Keys from one that is written in full to the next.
const RESTART: usize = 16;

/// Bytes of the place that a range, or the keys of a flush, have in the record.
const PLACE_BYTES: u64 = 128;

/// Two bounds of keys.
pub(crate) type KeyRange<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

/// The start of a transaction, as far as changes are compared with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Start {
    /// The newest record that it sees.
    pub(crate) lsn: u64,
    /// The loads, ingests and removals before it.
    pub(crate) loads: u64,
}

/// A reason why a transaction must not commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// A key was changed since its start.
    Changed,
    /// A load, an ingest or a removal has touched a key since its start.
    Loaded,
    /// It is not known any more whether something was.
    Forgotten,
}

/// The record of a store.
#[derive(Debug)]
pub(crate) struct RecentChanges {
    /// The open transactions, counted by their start.
    open: BTreeMap<Start, usize>,
    keyspaces: BTreeMap<u32, KeyspaceChanges>,
    /// Records up to this one that are not in memtables are forgotten.
    forgotten: u64,
    /// Counts its memory as held by the program, whose transactions need it.
    held: Arc<HeldBytes>,
    /// Those of all keyspaces.
    bytes: u64,
    bytes_max: u64,
}

#[derive(Debug, Default)]
struct KeyspaceChanges {
    /// Oldest first, one for each flush that found entries of the keyspace.
    keys: VecDeque<ChangedKeys>,
    /// Oldest first, each with the number of its load, ingest or removal.
    ranges: VecDeque<(u64, Bounds, HeldShare)>,
    /// What was before is not known any more.
    forgotten: Start,
}

/// The parts of the record that nothing needs, to be dropped outside of the commit section.
#[must_use = "it is dropped outside of the commit section"]
#[derive(Debug, Default)]
pub(crate) struct Surplus(Vec<ChangedKeys>);

/// The keys that a flush has removed from memory, in their order, each with its newest record.
#[derive(Debug)]
pub(crate) struct ChangedKeys {
    /// For each key: how many bytes it shares with the one before, how many follow, its record as the distance from
    /// `since`, and the bytes that follow.
    text: Vec<u8>,
    /// Start of each sixteenth key, which shares no prefix.
    restarts: Vec<usize>,
    count: usize,
    newest_key: Vec<u8>,
    /// Records up to this number are left out.
    since: u64,
    /// The newest record of the flush.
    last: u64,
    /// The keys are not known any more.
    is_forgotten: bool,
    held: HeldShare,
}

/// The keys that a flush has left so far, by keyspace.
#[derive(Debug)]
pub(super) struct FlushedKeys {
    since: u64,
    last: u64,
    keyspaces: Vec<(u32, ChangedKeys)>,
    /// Those of all keyspaces.
    bytes: u64,
}

impl RecentChanges {
    /// Returns a record of at most `bytes_max` bytes, which knows nothing up to `forgotten`.
    pub(super) fn new(forgotten: u64, held: Arc<HeldBytes>, bytes_max: u64) -> RecentChanges {
        let (open, keyspaces) = (BTreeMap::new(), BTreeMap::new());
        RecentChanges { open, keyspaces, forgotten, held, bytes: 0, bytes_max }
    }

    /// Counts a new transaction.
    pub(crate) fn begin(&mut self, start: Start) {
        *self.open.entry(start).or_default() += 1;
    }

    /// Ends a transaction.
    pub(crate) fn end(&mut self, start: Start) -> Surplus {
        let Some(count) = self.open.get_mut(&start) else { return Surplus::default() };
        *count -= 1;
        if *count > 0 {
            return Surplus::default();
        }
        self.open.remove(&start);
        self.prune()
    }

    /// Returns the record from which on a flush up to `last` has to leave its keys here; `None` if no transaction needs any.
    pub(super) fn needed(&self, last: u64) -> Option<u64> {
        self.open.first_key_value().map(|(first, _)| first.lsn).filter(|first| *first < last)
    }

    /// Frees memory for the keys that a flush has left so far: forgets the oldest parts first, then the flush's own keys of the
    /// largest keyspace.
    pub(super) fn limit_flush(&mut self, flushed: &mut FlushedKeys) -> Surplus {
        let mut surplus = Surplus::default();
        self.limit(flushed.bytes, &mut surplus);
        while self.bytes + flushed.bytes > self.bytes_max
            && let Some(keys) = flushed.forget_largest()
        {
            surplus.0.push(keys);
        }
        surplus
    }

    /// Adds the keys of a flush up to `last`; `None` if it has left no keys.
    pub(super) fn add_flush(&mut self, last: u64, changed: Option<FlushedKeys>) -> Surplus {
        let Some(changed) = changed else {
            self.forgotten = last;
            return self.prune();
        };
        let mut older = Vec::new();
        for (keyspace, keys) in changed.keyspaces {
            if keys.is_forgotten {
                let changes = self.keyspaces.entry(keyspace).or_default();
                self.bytes -= changes.keys.iter().map(|keys| keys.held.bytes()).sum::<u64>();
                older.extend(changes.keys.drain(..));
                changes.forgotten.lsn = last;
                continue;
            }
            if keys.count == 0 {
                continue;
            }
            debug_assert!(
                keys.last == last && self.needed(last).is_none_or(|first| keys.since <= first),
                "the keys are those of the flush, and all that a transaction needs"
            );
            self.bytes += keys.held.bytes();
            self.keyspaces.entry(keyspace).or_default().keys.push_back(keys);
        }
        let mut surplus = self.prune();
        surplus.0.append(&mut older);
        self.limit(0, &mut surplus);
        surplus
    }

    /// Adds a range of keys that the load, ingest or removal with this number has touched.
    pub(super) fn add_range(&mut self, keyspace: u32, number: u64, bounds: Bounds) -> Surplus {
        let mut surplus = Surplus::default();
        if self.open.is_empty() {
            return surplus;
        }
        let bytes = |bound: &Bound<Vec<u8>>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.len() as u64,
            Bound::Unbounded => 0,
        };
        let held = HeldShare::new(Some(&self.held), PLACE_BYTES + bytes(&bounds.low) + bytes(&bounds.high));
        self.bytes += held.bytes();
        self.keyspaces.entry(keyspace).or_default().ranges.push_back((number, bounds, held));
        self.limit(0, &mut surplus);
        surplus
    }

    /// Forgets the oldest part of the keyspace that has most. Returns false if no part is left.
    pub(super) fn forget(&mut self, surplus: &mut Surplus) -> bool {
        let largest = self.keyspaces.iter().max_by_key(|(_, changes)| changes.bytes());
        let largest = largest.map(|(keyspace, _)| *keyspace);
        largest.is_some_and(|keyspace| self.forget_oldest(keyspace, surplus).is_some())
    }

    /// Forgets the oldest part of a keyspace. Returns the bytes of the rest; `None` if no part was left.
    fn forget_oldest(&mut self, keyspace: u32, surplus: &mut Surplus) -> Option<u64> {
        let changes = self.keyspaces.get_mut(&keyspace)?;
        if let Some(oldest) = changes.keys.pop_front() {
            self.bytes -= oldest.held.bytes();
            changes.forgotten.lsn = oldest.last;
            surplus.0.push(oldest);
        } else {
            let (number, _, held) = changes.ranges.pop_front()?;
            self.bytes -= held.bytes();
            changes.forgotten.loads = number;
        }
        Some(changes.bytes())
    }

    /// Forgets changes until the rest fits in addition to `others` bytes.
    fn limit(&mut self, others: u64, surplus: &mut Surplus) {
        let most = self.bytes_max.saturating_sub(others);
        if self.bytes <= most {
            return;
        }
        // Of many keyspaces each may have to forget something.
        let sizes = self.keyspaces.iter().map(|(keyspace, changes)| (changes.bytes(), *keyspace));
        let mut largest: BinaryHeap<(u64, u32)> = sizes.collect();
        while self.bytes > most
            && let Some((_, keyspace)) = largest.pop()
        {
            let left = self.forget_oldest(keyspace, surplus);
            largest.extend(left.map(|bytes| (bytes, keyspace)));
        }
    }

    /// Drops what no open transaction needs.
    fn prune(&mut self) -> Surplus {
        let mut surplus = Surplus::default();
        if self.keyspaces.is_empty() {
            return surplus;
        }
        let lsn = self.open.first_key_value().map_or(u64::MAX, |(first, _)| first.lsn);
        let loads = self.open.keys().map(|start| start.loads).min().unwrap_or(u64::MAX);
        let (forgotten, bytes) = (&mut self.forgotten, &mut self.bytes);
        self.keyspaces.retain(|_, changes| {
            let keys = changes.keys.iter().take_while(|keys| keys.last <= lsn).count();
            for oldest in changes.keys.drain(..keys) {
                *bytes -= oldest.held.bytes();
                changes.forgotten.lsn = oldest.last;
                surplus.0.push(oldest);
            }
            let ranges = changes.ranges.iter().take_while(|(number, ..)| *number <= loads).count();
            *bytes -= changes.ranges.drain(..ranges).map(|(.., held)| held.bytes()).sum::<u64>();
            let is_needed = !(changes.keys.is_empty() && changes.ranges.is_empty())
                || changes.forgotten.lsn > lsn
                || changes.forgotten.loads > loads;
            if !is_needed {
                *forgotten = changes.forgotten.lsn.max(*forgotten);
            }
            is_needed
        });
        surplus
    }

    /// Returns whether a key of a range was changed after the start of a transaction, as far as the change is not in memtables.
    pub(crate) fn find(&self, keyspace: u32, range: KeyRange<'_>, start: Start) -> Option<Finding> {
        if start.lsn < self.forgotten {
            return Some(Finding::Forgotten);
        }
        let changes = self.keyspaces.get(&keyspace)?;
        let is_loaded = |(number, bounds, _): &(u64, Bounds, HeldShare)| {
            *number > start.loads && meet(range, bounds.slices())
        };
        let is_changed = |keys: &ChangedKeys| keys.last > start.lsn && keys.has_newer(range, start.lsn);
        let is_found = changes.keys.iter().any(is_changed) && !is_broken!(ConflictForgotten);
        if is_found {
            return Some(Finding::Changed);
        }
        if changes.ranges.iter().any(is_loaded) {
            return Some(Finding::Loaded);
        }
        let is_forgotten = start.lsn < changes.forgotten.lsn || start.loads < changes.forgotten.loads;
        is_forgotten.then_some(Finding::Forgotten)
    }
}

impl KeyspaceChanges {
    fn bytes(&self) -> u64 {
        let keys = self.keys.iter().map(|keys| keys.held.bytes());
        keys.chain(self.ranges.iter().map(|(.., held)| held.bytes())).sum()
    }
}

impl FlushedKeys {
    /// Returns the keys of a flush up to the record `last`, without those whose newest record is not after `since`.
    pub(super) fn new(since: u64, last: u64) -> FlushedKeys {
        FlushedKeys { since, last, keyspaces: Vec::new(), bytes: 0 }
    }

    pub(super) fn begin(&mut self, keyspace: u32) {
        self.keyspaces.push((keyspace, ChangedKeys::new(self.since, self.last)));
    }

    /// Adds the next key of the keyspace.
    pub(super) fn add(&mut self, key: &[u8], lsn: u64) {
        if let Some((_, keys)) = self.keyspaces.last_mut() {
            keys.add(key, lsn);
        }
    }

    /// Counts the keyspace's memory as held by the program; with the last key it gives up the unused rest.
    pub(super) fn count_bytes(&mut self, held: &Arc<HeldBytes>, is_last: bool) {
        if let Some((_, keys)) = self.keyspaces.last_mut() {
            self.bytes -= keys.held.bytes();
            keys.count_bytes(held, is_last);
            self.bytes += keys.held.bytes();
        }
    }

    /// Forgets the keys of the largest keyspace, and leaves out its further keys. Returns `None` if no keys remain.
    fn forget_largest(&mut self) -> Option<ChangedKeys> {
        let (_, largest) = self.keyspaces.iter_mut().max_by_key(|(_, keys)| keys.held.bytes())?;
        let bytes = largest.held.bytes();
        if bytes == 0 {
            return None;
        }
        self.bytes -= bytes;
        let forgotten = ChangedKeys { is_forgotten: true, ..ChangedKeys::new(self.since, self.last) };
        Some(std::mem::replace(largest, forgotten))
    }
}

impl ChangedKeys {
    /// Returns the keys of a flush up to the record `last`, without those whose newest record is not after `since`.
    fn new(since: u64, last: u64) -> ChangedKeys {
        let held = HeldShare::new(None, 0);
        let (text, restarts, newest_key) = (Vec::new(), Vec::new(), Vec::new());
        ChangedKeys { text, restarts, count: 0, newest_key, since, last, is_forgotten: false, held }
    }

    /// Adds the next key.
    fn add(&mut self, key: &[u8], lsn: u64) {
        if lsn <= self.since || self.is_forgotten {
            return;
        }
        debug_assert!(self.count == 0 || key > &self.newest_key[..], "keys come in their order");
        let mut shared = 0;
        if self.count.is_multiple_of(RESTART) {
            self.restarts.push(self.text.len());
        } else {
            shared = key.iter().zip(&self.newest_key).take_while(|(one, other)| one == other).count();
        }
        let rest = &key[shared..];
        for number in [shared as u64, rest.len() as u64, lsn - self.since] {
            put_number(&mut self.text, number);
        }
        self.text.extend_from_slice(rest);
        self.newest_key.truncate(shared);
        self.newest_key.extend_from_slice(rest);
        self.count += 1;
    }

    /// Counts its memory as held by the program; with the last key it gives up the unused rest.
    fn count_bytes(&mut self, held: &Arc<HeldBytes>, is_last: bool) {
        if self.is_forgotten {
            return;
        }
        if is_last {
            self.text.shrink_to_fit();
            self.restarts.shrink_to_fit();
            self.newest_key = Vec::new();
        }
        let bytes = self.text.capacity() + self.restarts.capacity() * size_of::<usize>();
        let bytes = PLACE_BYTES + bytes as u64;
        if self.held.bytes() != bytes {
            self.held = HeldShare::new(Some(held), bytes);
        }
    }

    /// Returns whether a key within a range has a record newer than `lsn`.
    fn has_newer(&self, (low, high): KeyRange<'_>, lsn: u64) -> bool {
        let begin = match low {
            Bound::Unbounded => 0,
            Bound::Included(low) | Bound::Excluded(low) => {
                let after = self.restarts.partition_point(|at| {
                    let mut at = *at;
                    let [_, rest, _] = numbers(&self.text, &mut at);
                    &self.text[at..at + rest as usize] <= low
                });
                self.restarts.get(after.saturating_sub(1)).copied().unwrap_or(0)
            }
        };
        let (mut at, mut key) = (begin, Vec::new());
        while at < self.text.len() {
            let [shared, rest, distance] = numbers(&self.text, &mut at);
            key.truncate(shared as usize);
            key.extend_from_slice(&self.text[at..at + rest as usize]);
            at += rest as usize;
            if !is_before(Bound::Included(&key[..]), high) {
                return false;
            }
            if self.since + distance > lsn && is_before(low, Bound::Included(&key[..])) {
                return true;
            }
        }
        false
    }
}

/// Returns whether a lower bound is at or before an upper one, so that there may be keys between them.
fn is_before(low: Bound<&[u8]>, high: Bound<&[u8]>) -> bool {
    match (low, high) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => true,
        (Bound::Included(low), Bound::Included(high)) => low <= high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low < high
        }
    }
}

/// Returns whether two ranges may have keys in common.
fn meet(one: KeyRange<'_>, other: KeyRange<'_>) -> bool {
    is_before(one.0, other.1) && is_before(other.0, one.1)
}

/// Writes a number in groups of seven bits, the lowest first; all but the last have the eighth bit.
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads the three numbers of a key.
fn numbers(text: &[u8], at: &mut usize) -> [u64; 3] {
    [(); 3].map(|()| {
        let (mut number, mut shift) = (0, 0_u32);
        loop {
            let byte = text[*at];
            *at += 1;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return number;
            }
            shift += 7;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> Arc<HeldBytes> {
        Arc::default()
    }

    fn changed(since: u64, last: u64, keys: &BTreeMap<Vec<u8>, u64>, held: &Arc<HeldBytes>) -> ChangedKeys {
        let mut changed = ChangedKeys::new(since, last);
        keys.iter().for_each(|(key, lsn)| changed.add(key, *lsn));
        changed.count_bytes(held, true);
        changed
    }

    /// Every range and every key is judged as by a map, from all records.
    #[test]
    fn keys_are_found_as_in_a_map() {
        for count in [0, 1, 15, 16, 17, 48, 300] {
            let key = |number: u64| {
                let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
                format!("{}{}", "k".repeat((hash % 4) as usize), hash % 1000).into_bytes()
            };
            let keys: BTreeMap<Vec<u8>, u64> =
                (0..count).map(|number| (key(number), 100 + number * 7)).collect();
            let found = changed(150, 5000, &keys, &held());
            let newest = |range: KeyRange<'_>| {
                let in_range = keys.range::<[u8], _>(range).map(|(_, lsn)| *lsn);
                in_range.filter(|lsn| *lsn > 150).max().unwrap_or(0)
            };
            for number in 0..400 {
                let (low, high) = (key(number), key(number * 31 + 5));
                let (low, high) = if low < high { (low, high) } else { (high, low) };
                let (low, high) = (&low[..], &high[..]);
                let mut ranges = vec![
                    (Bound::Included(low), Bound::Included(low)),
                    (Bound::Included(low), Bound::Included(high)),
                    (Bound::Excluded(low), Bound::Included(high)),
                    (Bound::Included(low), Bound::Excluded(high)),
                    (Bound::Unbounded, Bound::Excluded(high)),
                    (Bound::Excluded(low), Bound::Unbounded),
                ];
                if low < high {
                    ranges.push((Bound::Excluded(low), Bound::Excluded(high)));
                }
                for range in ranges {
                    let newest = newest(range);
                    for lsn in [150, newest.saturating_sub(1).max(150), newest.max(150)] {
                        assert_eq!(
                            found.has_newer(range, lsn),
                            newest > lsn,
                            "{count} keys, {range:?}, {lsn}"
                        );
                    }
                }
            }
        }
    }

    const POINT: KeyRange<'static> = (Bound::Included(b"b".as_slice()), Bound::Included(b"b".as_slice()));

    fn keys(names: &[&str], lsn: u64) -> BTreeMap<Vec<u8>, u64> {
        names.iter().map(|name| (name.as_bytes().to_vec(), lsn)).collect()
    }

    /// The largest keyspace forgets first, and only transactions older than its oldest part that compare keys there fail.
    #[test]
    fn without_memory_the_oldest_of_the_largest_keyspace_is_forgotten() {
        let held = held();
        let many: Vec<String> = (0..100).map(|number| format!("key {number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let one = changed(10, 15, &keys(&many, 15), &held).held.bytes();
        let bytes_max = 2 * one + one / 2;
        let mut record = RecentChanges::new(0, held.clone(), bytes_max);
        let starts = [10, 20, 30].map(|lsn| Start { lsn, loads: 0 });
        starts.into_iter().for_each(|start| record.begin(start));
        for last in [15, 25, 35] {
            assert_eq!(record.needed(last), Some(10));
            let busy = changed(10, last, &keys(&many, last), &held);
            let quiet = if last == 15 { keys(&["b"], last) } else { BTreeMap::new() };
            let quiet = changed(10, last, &quiet, &held);
            let keyspaces = vec![(1, busy), (2, quiet)];
            drop(record.add_flush(last, Some(FlushedKeys { keyspaces, ..FlushedKeys::new(10, last) })));
        }
        assert!(held.get() <= bytes_max, "{} bytes of {bytes_max}", held.get());
        let busy = starts.map(|start| record.find(1, POINT, start));
        assert_eq!(busy, [Some(Finding::Forgotten), None, None]);
        let quiet = starts.map(|start| record.find(2, POINT, start));
        assert_eq!(quiet, [Some(Finding::Changed), None, None]);
        assert_eq!(record.find(3, POINT, starts[0]), None);
        starts.into_iter().for_each(|start| drop(record.end(start)));
        assert_eq!(held.get(), 0, "nothing is kept without transactions");
    }

    /// Story: the record was limited at the end of each flush, so before that the keys of a large memtable used any amount of
    /// memory. Now the flush forgets as it proceeds, only keys of the largest keyspace.
    #[test]
    fn a_flush_of_more_keys_than_the_record_may_have_forgets_as_it_goes_on() {
        let (held, bytes_max) = (held(), 4000);
        let mut record = RecentChanges::new(0, held.clone(), bytes_max);
        let starts = [10, 20].map(|lsn| Start { lsn, loads: 0 });
        starts.into_iter().for_each(|start| record.begin(start));
        let keyspaces = vec![(2, changed(10, 15, &keys(&["b"], 15), &held))];
        drop(record.add_flush(15, Some(FlushedKeys { keyspaces, ..FlushedKeys::new(10, 15) })));
        let mut flushed = FlushedKeys::new(10, 40);
        for (keyspace, count) in [(1, 1), (2, 20_000), (3, 40)] {
            flushed.begin(keyspace);
            for number in 1..=count {
                flushed.add(format!("b{number:06}").as_bytes(), 30);
                if number % 32 == 0 || number == count {
                    flushed.count_bytes(&held, number == count);
                    drop(record.limit_flush(&mut flushed));
                    assert!(held.get() <= bytes_max, "{} bytes at key {number} of {keyspace}", held.get());
                }
            }
        }
        drop(record.add_flush(40, Some(flushed)));
        let all: KeyRange<'_> = (Bound::Unbounded, Bound::Unbounded);
        for start in starts {
            let found = [1, 2, 3, 4].map(|keyspace| record.find(keyspace, all, start));
            assert_eq!(
                found,
                [Some(Finding::Changed), Some(Finding::Forgotten), Some(Finding::Changed), None]
            );
        }
        let after = Start { lsn: 40, loads: 0 };
        assert_eq!([1, 2, 3].map(|keyspace| record.find(keyspace, all, after)), [None; 3]);
        starts.into_iter().for_each(|start| drop(record.end(start)));
        assert_eq!((held.get(), record.bytes), (0, 0), "nothing is kept without transactions");
    }

    /// A load counts by its number: a transaction that starts after it may see fewer records than existed at that time.
    #[test]
    fn loads_conflict_with_transactions_that_began_before_them_and_meet_their_range() {
        let mut record = RecentChanges::new(0, held(), 2000);
        let (before, after) = (Start { lsn: 10, loads: 0 }, Start { lsn: 9, loads: 1 });
        record.begin(before);
        let range = Bounds { low: Bound::Included(b"a".to_vec()), high: Bound::Included(b"b".to_vec()) };
        drop(record.add_range(1, 1, range));
        record.begin(after);
        assert_eq!(record.find(1, POINT, before), Some(Finding::Loaded));
        assert_eq!(record.find(1, POINT, after), None);
        let beside: KeyRange<'_> = (Bound::Excluded(&b"b"[..]), Bound::Unbounded);
        assert_eq!((record.find(1, beside, before), record.find(2, POINT, before)), (None, None));
        drop(record.end(before));
        assert_eq!(record.find(1, POINT, Start { lsn: 10, loads: 0 }), None, "it is not kept any more");
    }
}
