//! Merges sources of entries in the order of the keys; of entries with the same key, the newest counts.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::error::Result;
use crate::manifest::version::Tables;
use crate::memtable::{KeyVersion, Memtables};
use crate::table::{Cursor, CursorHow, Direction, Entry, Leave, Table};
use crate::wait::all;

/// A range of keys.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) low: Bound<Vec<u8>>,
    pub(crate) high: Bound<Vec<u8>>,
}

impl Bounds {
    pub(crate) const ALL: Bounds = Bounds { low: Bound::Unbounded, high: Bound::Unbounded };

    /// Returns whether every key lies within the bounds.
    pub(crate) fn is_all(&self) -> bool {
        matches!((&self.low, &self.high), (Bound::Unbounded, Bound::Unbounded))
    }

    pub(crate) fn of<K: AsRef<[u8]>>(range: &impl std::ops::RangeBounds<K>) -> Bounds {
        let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Bounds { low: own(range.start_bound()), high: own(range.end_bound()) }
    }

    /// Returns the bounds of the keys that start with this prefix.
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

    pub(crate) fn slices(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (self.low.as_ref().map(Vec::as_slice), self.high.as_ref().map(Vec::as_slice))
    }
}

#[cfg(test)]
mod tests;

/// Number of entries copied out of a memtable at a time: first this many, later up to the maximum.
const BATCH_MIN: usize = 8;
const BATCH_MAX: usize = 128;

/// A sorted source of entries.
pub(crate) enum Source {
    Memory(Memory),
    Run(Box<Run>),
}

/// The entries of a keyspace in a memtable, as they were at a record.
pub(crate) struct Memory {
    memtables: Arc<Memtables>,
    keyspace: u32,
    lsn: u64,
    bounds: Arc<Bounds>,
    /// The key returned last, once there is one.
    last: Option<Vec<u8>>,
    direction: Direction,
    batch: VecDeque<KeyVersion>,
    /// Maximum entries of the next batch; 0 at the end.
    count: usize,
}

/// Tables one after the other; no two have a key in common.
pub(crate) struct Run {
    tables: Tables,
    /// Those ahead.
    left: Range<usize>,
    how: CursorHow,
    bounds: Arc<Bounds>,
    cursor: Option<Cursor>,
    /// The values that are not read, if any.
    leave: Option<Arc<Leave>>,
    /// Whether the first table's cursor was made.
    has_begun: bool,
    /// Bytes that the cursors of earlier tables have passed.
    passed: u64,
}

impl Memory {
    pub(crate) fn new(
        memtables: Arc<Memtables>,
        keyspace: u32,
        lsn: u64,
        bounds: &Arc<Bounds>,
        direction: Direction,
    ) -> Memory {
        let (bounds, batch) = (bounds.clone(), VecDeque::new());
        Memory { memtables, keyspace, lsn, bounds, last: None, direction, batch, count: BATCH_MIN }
    }

    fn advance(&mut self) -> bool {
        let last = self.batch.pop_front();
        if !self.batch.is_empty() || self.count == 0 {
            return !self.batch.is_empty();
        }
        let backwards = self.direction == Direction::Backward;
        if let Some(last) = last {
            self.last = Some(last.key().to_vec());
        }
        let (mut low, mut high) = self.bounds.slices();
        if let Some(last) = &self.last {
            *(if backwards { &mut high } else { &mut low }) = Bound::Excluded(last);
        }
        let range = (low, high);
        let batch = self.memtables.batch(self.keyspace, range, backwards, self.lsn, self.count);
        self.batch = batch.found.into();
        self.count = if batch.is_last { 0 } else { BATCH_MAX };
        !self.batch.is_empty()
    }
}

impl Run {
    /// Creates a run of tables of a list, in the order of their keys: of those among `at` that meet the bounds.
    pub(crate) fn new(tables: &Tables, at: Range<usize>, bounds: &Arc<Bounds>, how: CursorHow) -> Run {
        let among = &tables[at.clone()];
        let first = among.partition_point(|table| !bounds.is_above_low(&table.meta().largest));
        let end = among.partition_point(|table| bounds.is_below_high(&table.meta().smallest));
        let left = at.start + first..at.start + end.max(first);
        debug_assert!(
            tables[left.clone()].windows(2).all(|pair| pair[0].meta().largest < pair[1].meta().smallest),
            "the tables of a run are sorted and do not overlap"
        );
        let (tables, bounds) = (tables.clone(), bounds.clone());
        Run { tables, left, how, bounds, cursor: None, leave: None, has_begun: false, passed: 0 }
    }

    /// Leaves long values where they are.
    pub(crate) fn leaving(mut self, leave: &Arc<Leave>) -> Run {
        self.leave = Some(leave.clone());
        self
    }

    /// Changes how the tables are read; before the first move, and not the direction.
    pub(crate) fn set_how(&mut self, how: CursorHow) {
        debug_assert!(self.cursor.is_none() && how.direction == self.how.direction, "a run has not begun");
        self.how = how;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left.is_empty() && self.cursor.is_none()
    }

    async fn advance(&mut self) -> Result<bool> {
        loop {
            let Some(cursor) = &mut self.cursor else {
                let Some(mut cursor) = self.next_cursor() else { return Ok(false) };
                if let Some(key) = self.begin(cursor.table()) {
                    cursor.seek(key).await?;
                }
                self.set_out(&mut cursor);
                self.cursor = Some(cursor);
                continue;
            };
            if !cursor.next_key().await? {
                self.passed = cursor.passed();
                self.cursor = None;
                continue;
            }
            if let Some(is_within) = self.arrive() {
                return Ok(is_within);
            }
        }
    }

    /// Moves to the first entry if the leaf that has it is in memory. `None` if it is not: then [`advance`](Self::advance) moves
    /// there.
    fn begin_now(&mut self) -> Result<Option<bool>> {
        let before = self.left.clone();
        let Some(mut cursor) = self.next_cursor() else { return Ok(Some(false)) };
        self.set_out(&mut cursor);
        if cursor.seek_now(self.begin(cursor.table()))? {
            self.cursor = Some(cursor);
            return self.advance_now();
        }
        (self.left, self.has_begun) = (before, false);
        Ok(None)
    }

    /// Returns a cursor before the entries of the next table, which is no longer ahead.
    fn next_cursor(&mut self) -> Option<Cursor> {
        let index = match self.how.direction {
            Direction::Forward => self.left.next(),
            Direction::Backward => self.left.next_back(),
        }?;
        let mut cursor = self.tables.get(index)?.cursor(self.how);
        if let Some(leave) = &self.leave {
            cursor.leave_values(leave);
        }
        Some(cursor)
    }

    /// Has a cursor that was not moved yet continue the walk.
    fn set_out(&mut self, cursor: &mut Cursor) {
        // A walk that has passed a table boundary is long.
        if !std::mem::replace(&mut self.has_begun, true) {
            cursor.offer_blocks();
        }
        cursor.go_on(self.passed);
    }

    /// As [`advance`](Self::advance), within leaves that are in memory; `None` if it is at their end.
    fn advance_now(&mut self) -> Result<Option<bool>> {
        while let Some(cursor) = &mut self.cursor {
            if !cursor.has_next() && !cursor.next_leaf_now()? {
                return Ok(None);
            }
            cursor.next_key_now()?;
            if let Some(is_within) = self.arrive() {
                return Ok(Some(is_within));
            }
        }
        Ok(None)
    }

    /// Returns whether the entry at the cursor is within the bounds: not behind them, where the run ends. `None` before them.
    fn arrive(&mut self) -> Option<bool> {
        let key = self.cursor.as_ref().map_or(&[][..], Cursor::key);
        let (above, below) = (self.bounds.is_above_low(key), self.bounds.is_below_high(key));
        let (is_begun, is_over) = match self.how.direction {
            Direction::Forward => (above, !below),
            Direction::Backward => (below, !above),
        };
        if is_over {
            self.left = 0..0;
            self.cursor = None;
            return Some(false);
        }
        is_begun.then_some(true)
    }

    /// Returns the key to seek to within a table, unless the walk starts at the table's end.
    fn begin(&self, table: &Table) -> Option<&[u8]> {
        let (bound, is_within): (_, fn(&[u8], &Table) -> bool) = match self.how.direction {
            Direction::Forward => (&self.bounds.low, |key, table| key > &table.meta().smallest[..]),
            Direction::Backward => (&self.bounds.high, |key, table| key < &table.meta().largest[..]),
        };
        match bound {
            Bound::Included(key) | Bound::Excluded(key) => Some(&key[..]).filter(|key| is_within(key, table)),
            Bound::Unbounded => None,
        }
    }
}

impl Source {
    async fn advance(&mut self) -> Result<bool> {
        match self {
            Source::Memory(memory) => Ok(memory.advance()),
            Source::Run(run) => run.advance().await,
        }
    }

    /// As the first [`advance`](Self::advance), without a wait; `None` if that is not possible.
    fn begin_now(&mut self) -> Result<Option<bool>> {
        match self {
            Source::Memory(memory) => Ok(Some(memory.advance())),
            Source::Run(run) => run.begin_now(),
        }
    }

    /// As [`advance`](Self::advance), without a wait; `None` if that is not possible.
    fn advance_now(&mut self) -> Result<Option<bool>> {
        match self {
            Source::Memory(memory) => Ok(Some(memory.advance())),
            Source::Run(run) => run.advance_now(),
        }
    }

    /// Returns whether the value at the source has to be read.
    fn is_unloaded(&self) -> bool {
        matches!(self, Source::Run(run) if run.cursor.as_ref().is_some_and(Cursor::is_unloaded))
    }

    async fn load(&mut self) -> Result<()> {
        match self {
            Source::Run(run) => match &mut run.cursor {
                Some(cursor) => cursor.load().await,
                None => Ok(()),
            },
            Source::Memory(_) => Ok(()),
        }
    }

    fn key(&self) -> &[u8] {
        match self {
            Source::Memory(memory) => memory.batch.front().map_or(&[], KeyVersion::key),
            Source::Run(run) => run.cursor.as_ref().map_or(&[], Cursor::key),
        }
    }
}

/// Several sources merged into one.
pub(crate) struct Merge {
    /// The newest first.
    sources: Vec<Source>,
    direction: Direction,
    /// Sources at an entry that was not returned yet: a binary heap with the next entry's source on top.
    heap: Vec<usize>,
    /// Sources at the key returned last, the newest first.
    given: Vec<usize>,
    /// Sources that are not yet at their first entries, once the others are.
    waiting: Option<Vec<usize>>,
    is_unloaded: bool,
}

impl Merge {
    /// Creates a merge of sources, the newest first, all in this direction.
    pub(crate) fn new(sources: Vec<Source>, direction: Direction) -> Merge {
        Merge { sources, direction, heap: Vec::new(), given: Vec::new(), waiting: None, is_unloaded: false }
    }

    /// Moves to the next key. Returns `false` behind the last. After an error, or if this future was dropped unfinished, the merge
    /// is unusable.
    ///
    /// # Errors
    /// Those of tables' cursors.
    pub(crate) async fn next(&mut self) -> Result<bool> {
        if !self.begin_now()? {
            self.begin().await?;
        }
        if let (true, Some(first)) = (std::mem::take(&mut self.is_unloaded), self.given.first()) {
            self.sources[*first].load().await?;
            return Ok(true);
        }
        if let ([index], true) = (&self.given[..], self.heap.is_empty()) {
            // One source is left: its next entry is the next one.
            let index = *index;
            if !self.sources[index].advance().await? {
                self.given.clear();
                return Ok(false);
            }
            self.sources[index].load().await?;
            return Ok(true);
        }
        while let Some(index) = self.given.pop() {
            if self.sources[index].advance().await? {
                self.push(index);
            }
        }
        let Some(first) = self.give() else { return Ok(false) };
        // Loaded only now that the newest source is known: long values are read one at a time.
        self.sources[first].load().await?;
        Ok(true)
    }

    /// As [`next`](Self::next), if that needs no wait. Otherwise returns `None`: then [`next`](Self::next) moves there.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub(crate) fn next_now(&mut self) -> Result<Option<bool>> {
        if self.is_unloaded || !self.begin_now()? {
            return Ok(None);
        }
        if let ([index], true) = (&self.given[..], self.heap.is_empty()) {
            match self.sources[*index].advance_now()? {
                Some(true) => self.is_unloaded = self.sources[*index].is_unloaded(),
                Some(false) => {
                    self.given.clear();
                    return Ok(Some(false));
                }
                None => return Ok(None),
            }
            return Ok((!self.is_unloaded).then_some(true));
        }
        while let Some(&index) = self.given.last() {
            let Some(is_there) = self.sources[index].advance_now()? else { return Ok(None) };
            self.given.pop();
            if is_there {
                self.push(index);
            }
        }
        let Some(first) = self.give() else { return Ok(Some(false)) };
        self.is_unloaded = self.sources[first].is_unloaded();
        Ok((!self.is_unloaded).then_some(true))
    }

    /// Returns whether [`next_now`](Self::next_now) has moved to a key whose value [`next`](Self::next) is to read.
    pub(crate) fn is_unloaded(&self) -> bool {
        self.is_unloaded
    }

    /// Moves all sources at the next key from the heap to those that are given. Returns the newest.
    fn give(&mut self) -> Option<usize> {
        let first = self.pop()?;
        self.given.push(first);
        while let Some(&next) = self.heap.first()
            && self.sources[next].key() == self.sources[first].key()
        {
            self.pop();
            self.given.push(next);
        }
        debug_assert!(
            self.given.is_sorted() && !self.heap.iter().any(|index| self.given.contains(index)),
            "of the sources with this key the newest comes first, and each comes once"
        );
        Some(first)
    }

    /// Returns whether [`next`](Self::next) needs no further leaf.
    pub(crate) fn has_next(&self) -> bool {
        self.given.iter().all(|index| match &self.sources[*index] {
            Source::Run(run) => run.cursor().is_some_and(Cursor::has_next),
            Source::Memory(_) => true,
        })
    }

    /// Returns the current key.
    pub(crate) fn key(&self) -> &[u8] {
        self.at().map_or(&[], Source::key)
    }

    /// Returns the newest entry of the current key.
    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        match self.at()? {
            Source::Run(run) => run.cursor.as_ref()?.entry(),
            Source::Memory(memory) => memory.batch.front().map(|found| {
                if found.deleted {
                    Entry::Deleted
                } else {
                    Entry::Value { bytes: found.value(), expires_s: found.expires_s }
                }
            }),
        }
    }

    /// Returns the source that has the newest entry of the current key.
    pub(crate) fn at(&self) -> Option<&Source> {
        self.sources.get(*self.given.first()?)
    }

    /// Returns how many sources have an entry of the current key.
    pub(crate) fn versions(&self) -> usize {
        self.given.len()
    }

    /// Returns whether the sources that need no wait are at their first entries.
    pub(crate) fn has_begun(&self) -> bool {
        self.waiting.is_some()
    }

    /// Moves the sources to their first entries where that needs no wait. Returns whether all are there.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub(crate) fn begin_now(&mut self) -> Result<bool> {
        if let Some(waiting) = &self.waiting {
            return Ok(waiting.is_empty());
        }
        let mut waiting = Vec::new();
        for index in 0..self.sources.len() {
            match self.sources[index].begin_now()? {
                Some(true) => self.push(index),
                Some(false) => {}
                None => waiting.push(index),
            }
        }
        Ok(self.waiting.insert(waiting).is_empty())
    }

    /// Moves the remaining sources to their first entries, concurrently, as each may have to read.
    async fn begin(&mut self) -> Result<()> {
        let waiting = self.waiting.replace(Vec::new()).unwrap_or_default();
        if let [index] = waiting[..] {
            if self.sources[index].advance().await? {
                self.push(index);
            }
            return Ok(());
        }
        let sources = self.sources.iter_mut().enumerate().filter(|(index, _)| waiting.contains(index));
        let starting: Vec<_> = sources.map(|(_, source)| Box::pin(source.advance())).collect();
        let answers = all(starting).await;
        for (index, answer) in waiting.into_iter().zip(answers) {
            if answer? {
                self.push(index);
            }
        }
        Ok(())
    }

    /// Returns whether one source's entry precedes another's; of equal keys, the newer source's is first.
    fn is_before(&self, one: usize, other: usize) -> bool {
        let order = self.sources[one].key().cmp(self.sources[other].key());
        match (order, self.direction) {
            (Ordering::Equal, _) => one < other,
            (order, Direction::Forward) => order.is_lt(),
            (order, Direction::Backward) => order.is_gt(),
        }
    }

    fn push(&mut self, index: usize) {
        let mut at = self.heap.len();
        self.heap.push(index);
        while at > 0 && self.is_before(self.heap[at], self.heap[(at - 1) / 2]) {
            self.heap.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn pop(&mut self) -> Option<usize> {
        let last = self.heap.len().checked_sub(1)?;
        self.heap.swap(0, last);
        let first = self.heap.pop();
        let mut at = 0;
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.is_before(self.heap[child], self.heap[least]) {
                    least = child;
                }
            }
            if least == at {
                return first;
            }
            self.heap.swap(at, least);
            at = least;
        }
    }
}

impl Memory {
    /// Returns the current entry.
    pub(crate) fn found(&self) -> Option<&KeyVersion> {
        self.batch.front()
    }
}

impl Run {
    /// Returns the cursor of the current table.
    pub(crate) fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }
}

forebay::_debug_parts!(Merge, |merge| sources: merge.sources.len());
