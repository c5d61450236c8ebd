//! Cursors: traversal of a table in the order of its keys, forward or backward.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay::{Block, Class};
use path::Path;
use values::{ValueAt, Values};

use super::ahead::{Ahead, ChunkBytes, FetchedLeaf};
use super::{Entry, Table, TableFile};
use crate::error::{Error, Result};
use crate::node::{BlobAt, Child, LEAF, Node, Payload, check};
use crate::table::blob::memory_bytes;
use crate::value::{HeldShare, Value};

mod path;
mod values;

/// Number of leaves of a range that are offered to the cache, and of values: those of a short one, which may be wanted again.
const OFFERS_MAX: u32 = 16;

/// The direction of a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// Parameters of a cursor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CursorHow {
    pub(crate) direction: Direction,
    /// The I/O class of the reads.
    pub(crate) class: Class,
    /// Whether the cursor looks blocks up in the cache, and may offer it some.
    pub(crate) cache: bool,
    /// Whether it nevertheless reads leaves and values from the device, for checks of its bytes.
    pub(crate) is_fresh: bool,
    /// Whether the cache drops what the cursor passes, for tables that are being replaced: values as they are loaded, leaves as
    /// they are left, so that their memory is free for the blocks written in their place.
    pub(crate) gives_up: bool,
    /// Maximum bytes of one read; a longer leaf is read whole.
    pub(crate) read_bytes_max: u32,
    /// Maximum number of reads in flight or not used up. With that of its current leaf, the cursor holds one
    /// more.
    pub(crate) reads_max: u32,
    /// Whether no more is read ahead than was passed: for ranges, which may end soon.
    pub(crate) ramp: bool,
}

impl CursorHow {
    /// Returns the parameters for ranges.
    pub(crate) fn range(direction: Direction) -> CursorHow {
        let (read_bytes_max, reads_max) = (64 << 10, 2);
        CursorHow {
            direction,
            class: Class::DEFAULT,
            cache: true,
            is_fresh: false,
            gives_up: false,
            read_bytes_max,
            reads_max,
            ramp: true,
        }
    }

    /// Returns the parameters for reading all of a table once, in the background.
    pub(crate) fn merge() -> CursorHow {
        let (read_bytes_max, reads_max) = (128 << 10, 2);
        let (direction, class) = (Direction::Forward, Class::BACKGROUND);
        CursorHow {
            direction,
            class,
            cache: false,
            ramp: false,
            read_bytes_max,
            reads_max,
            ..CursorHow::range(direction)
        }
    }

    /// Returns whether the cursor uses leaves and values of the cache.
    fn looks_up(&self) -> bool {
        self.cache && !self.is_fresh
    }

    /// Returns the most bytes of blocks that such a cursor holds, apart from long leaves, unpacked leaves, values
    /// that are longer than a read, and what a range has read ahead of values.
    pub(crate) fn memory_bytes(&self) -> u64 {
        u64::from(self.read_bytes_max) * (u64::from(self.reads_max) + 1)
    }

    /// Limits the reads to this many bytes of memory, or to one leaf if that is longer.
    pub(crate) fn within(self, bytes: u64, leaf_bytes: u64) -> CursorHow {
        let reads_max = if bytes < 4 * leaf_bytes { 1 } else { self.reads_max };
        let read = bytes / (u64::from(reads_max) + 1) / 4096 * 4096;
        let read_bytes_max = read.clamp(leaf_bytes, u64::from(self.read_bytes_max).max(leaf_bytes)) as u32;
        CursorHow { reads_max, read_bytes_max, ..self }
    }
}

/// A position in a table: before the first entry, at an entry, or behind the last.
pub(crate) struct Cursor {
    table: Arc<Table>,
    how: CursorHow,
    /// `None` until the first seek or move.
    path: Option<Path>,
    /// The leaf to read next, removed from the path already.
    upcoming: Option<NextLeaf>,
    ahead: Ahead,
    /// Maximum bytes of the next read.
    window: u64,
    /// Number of leaves ahead that the cursor may offer to the cache.
    offers: u32,
    /// The same of values, that at the cursor included.
    value_offers: u32,
    /// Number of values that the cursor still looks up in the cache, reset by a hit: a long range caches none of its values.
    value_looks: u32,
    /// The values that are not read, if any.
    leave: Option<Arc<Leave>>,
    values: Values,
    /// The key to start at in the first leaf.
    seek: Option<Vec<u8>>,
    leaf: Option<Leaf>,
    key: Vec<u8>,
    current: Current,
    /// The place of the value at the cursor, until the cache gives it up.
    replaced: Option<BlobAt>,
    failed: Option<Error>,
}

/// A leaf, and the range to read for it, which may leave out blobs of it.
struct NextLeaf {
    child: Child,
    range: Range<u64>,
    is_cut: bool,
}

struct Leaf {
    child: Child,
    block: Block,
    around: ChunkBytes,
    count: usize,
    /// Number of entries passed, in the cursor's direction.
    passed: usize,
    /// Whether no leaf behind it is planned yet.
    is_last: bool,
}

enum Current {
    None,
    Deleted,
    /// A value that was not read yet.
    Blob(BlobAt, Option<u64>),
    /// A value that is not read, with its file's number.
    Left(BlobAt, Option<u64>),
    /// A value in the leaf.
    Inline(Range<usize>, Option<u64>),
    Value {
        block: Block,
        expires_s: Option<u64>,
    },
}

/// Which values outside of leaves a cursor leaves unread: compaction those that it does not write again, a range of keys all.
#[derive(Debug)]
pub(crate) struct Leave {
    /// Shorter values are written again.
    pub(crate) bytes_min: u32,
    /// Whether shorter values stay, too.
    pub(crate) keeps_short: bool,
    /// The files that keep their values. None: all of them.
    pub(crate) kept: Option<BTreeSet<u32>>,
}

impl Leave {
    /// Returns whether any value of a table may stay where it is.
    pub(crate) fn is_for(&self, table: &Table) -> bool {
        let Some(kept) = &self.kept else { return true };
        table.meta().values.iter().any(|(file, _)| kept.contains(file))
    }

    fn leaves(&self, at: BlobAt) -> bool {
        let is_kept = self.kept.as_ref().is_none_or(|kept| kept.contains(&at.file));
        is_kept && (self.keeps_short || at.value_len >= self.bytes_min)
    }
}

impl Table {
    /// Returns a cursor before the first entry in its direction. Costs nothing until it is moved.
    pub(crate) fn cursor(self: &Arc<Self>, how: CursorHow) -> Cursor {
        Cursor {
            table: self.clone(),
            how,
            path: None,
            upcoming: None,
            ahead: Ahead::new(self, how.class),
            window: 0,
            offers: 0,
            value_offers: 0,
            value_looks: OFFERS_MAX,
            leave: None,
            values: Values::default(),
            seek: None,
            leaf: None,
            key: Vec::new(),
            current: Current::None,
            replaced: None,
            failed: None,
        }
    }
}

impl Cursor {
    /// Moves the cursor so that [`next`](Self::next) moves to the first entry at or behind `key` in the cursor's direction: at or
    /// above it forward, at or below it backward. May read inner nodes, but no leaf.
    ///
    /// # Errors
    /// `Corruption`, with file and offset; the system's.
    pub(crate) async fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.restart();
        self.seek = Some(key.to_vec());
        self.path = Some(Path::to(&self.table, &self.how, Some(key)).await?);
        Ok(())
    }

    /// As [`seek`](Self::seek), or moves before the first entry in the cursor's direction, if the cache has the leaf and the nodes
    /// above it. Otherwise returns `false`, and the cursor has not moved. Before it is moved.
    ///
    /// # Errors
    /// `Corruption`, with file and offset.
    pub(crate) fn seek_now(&mut self, key: Option<&[u8]>) -> Result<bool> {
        debug_assert!(self.path.is_none() && self.leaf.is_none(), "a cursor that was not moved");
        if !self.how.looks_up() {
            return Ok(false);
        }
        let leaf = Path::leaf_now(&self.table, self.how.direction, key)?;
        leaf.map_or(Ok(false), |(child, leaf)| self.enter_cached(child, leaf, key).map(|()| true))
    }

    /// Moves before the first entry of the next leaf, if the cache has it and nothing was read ahead. Otherwise returns `false`, and
    /// the cursor has not moved.
    ///
    /// # Errors
    /// `Corruption`, with file and offset.
    pub(crate) fn next_leaf_now(&mut self) -> Result<bool> {
        // Without a path nothing is planned.
        let Some(leaf) = self.leaf.as_ref().filter(|_| self.path.is_none() && self.how.looks_up()) else {
            return Ok(false);
        };
        let next = Path::leaf_behind_now(&self.table, self.how.direction, &leaf.block)?;
        self.values.begin_leaf();
        next.map_or(Ok(false), |(child, leaf)| self.enter_cached(child, leaf, None).map(|()| true))
    }

    fn enter_cached(&mut self, child: Child, leaf: Block, key: Option<&[u8]>) -> Result<()> {
        self.ahead.go_on(child.range().end - child.offset());
        self.offers = self.offers.saturating_sub(1);
        self.enter(FetchedLeaf { child, leaf, checked: true, around: ChunkBytes::default() }, key)
    }

    /// Returns the cursor's table.
    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Has the cursor offer the leaves and values that it reads next to the cache, as many as a short range has.
    pub(crate) fn offer_blocks(&mut self) {
        // Each value is counted before it is offered.
        (self.offers, self.value_offers) = (OFFERS_MAX, OFFERS_MAX + 1);
    }

    /// Has the cursor read ahead as one that has passed `bytes` bytes of other tables; before it is moved.
    pub(crate) fn go_on(&mut self, bytes: u64) {
        self.ahead.go_on(bytes);
    }

    /// Returns the bytes that the cursor has passed.
    pub(crate) fn passed(&self) -> u64 {
        self.ahead.bytes().1 + self.values.passed()
    }

    /// Moves to the next entry, and reads its value if that is a blob. Returns `false` behind the last entry.
    /// If this future is dropped unfinished, the cursor has not moved.
    ///
    /// # Errors
    /// `Corruption`, with file and offset; the system's. Every further call returns the same error, until a
    /// seek.
    pub(crate) async fn next(&mut self) -> Result<bool> {
        // An earlier call may have been dropped while it read the value.
        let moved = matches!(self.current, Current::Blob(..)) || self.next_key().await?;
        self.load().await?;
        Ok(moved)
    }

    /// As [`next`](Self::next), but leaves a value that was not read with its leaf to [`load`](Self::load).
    /// This many cursors that wait for their turn do not each hold a long value.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub(crate) async fn next_key(&mut self) -> Result<bool> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let moved = self.advance().await;
        self.note(moved)
    }

    /// As [`next_key`](Self::next_key), while [`has_next`](Self::has_next).
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub(crate) fn next_key_now(&mut self) -> Result<bool> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let moved = self.take();
        self.note(moved)
    }

    /// Returns whether the value at the cursor is left to [`load`](Self::load).
    pub(crate) fn is_unloaded(&self) -> bool {
        matches!(self.current, Current::Blob(..))
    }

    /// Returns the key at the cursor; empty if it is at no entry.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the entry at the cursor; `None` before the first and behind the last entry, and while the
    /// value is not read.
    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        match &self.current {
            Current::None | Current::Blob(..) => None,
            Current::Deleted => Some(Entry::Deleted),
            Current::Left(at, expires_s) => Some(Entry::Blob { at: *at, expires_s: *expires_s }),
            Current::Inline(range, expires_s) => {
                let bytes =
                    self.leaf.as_ref().and_then(|leaf| leaf.block.get(range.clone())).unwrap_or_default();
                Some(Entry::Value { bytes, expires_s: *expires_s })
            }
            Current::Value { block, expires_s } => Some(Entry::Value { bytes: block, expires_s: *expires_s }),
        }
    }

    /// Returns the value at the cursor, to keep. It is copied only if it would otherwise keep twice its memory or
    /// more: values that were read together share a block.
    pub(crate) fn value(&self) -> Option<Value> {
        let (block, range) = match &self.current {
            Current::Inline(range, _) => (&self.leaf.as_ref()?.block, range.clone()),
            Current::Value { block, .. } => (block, 0..block.len()),
            _ => return None,
        };
        let held = self.table.cache.held();
        if range.len() <= block.pinned_bytes() / 2 {
            // Ordinary memory of this length costs less than a block.
            let len = range.len() as u64;
            return Some(Value::of_bytes(Bytes::copy_from_slice(block.get(range)?), len, held));
        }
        Some(Value::of_block(block.slice(range)?, held))
    }

    /// Returns the leaf at the cursor: its place and its bytes, which were checked.
    pub(super) fn leaf(&self) -> Option<(Child, &Block)> {
        self.leaf.as_ref().map(|leaf| (leaf.child, &leaf.block))
    }

    /// Returns whether the next entry is in the leaf at the cursor.
    pub(crate) fn has_next(&self) -> bool {
        self.leaf.as_ref().is_some_and(|leaf| leaf.passed < leaf.count)
    }

    /// Returns whether the cursor is at the first or the last entry of its leaf.
    pub(super) fn is_at_edge(&self) -> bool {
        self.leaf.as_ref().is_some_and(|leaf| leaf.passed == 1 || leaf.passed == leaf.count)
    }

    /// Has the cursor leave long values where they are; before it is moved.
    pub(crate) fn leave_values(&mut self, leave: &Arc<Leave>) {
        self.leave = leave.is_for(&self.table).then(|| leave.clone());
    }

    fn restart(&mut self) {
        self.ahead.clear();
        self.values = Values::default();
        (self.path, self.upcoming, self.leaf, self.failed) = (None, None, None, None);
        (self.window, self.offers, self.value_offers, self.value_looks) = (0, 0, 0, OFFERS_MAX);
        self.key.clear();
        self.current = Current::None;
    }

    async fn advance(&mut self) -> Result<bool> {
        loop {
            if self.has_next() {
                return self.take();
            }
            if !self.next_leaf().await? {
                self.key.clear();
                self.current = Current::None;
                return Ok(false);
            }
        }
    }

    /// Moves to the next entry of the leaf; returns whether it has a leaf.
    fn take(&mut self) -> Result<bool> {
        let Some(leaf) = &mut self.leaf else { return Ok(false) };
        let (table, offset) = (&self.table, leaf.child.offset());
        let mut replaced = None;
        let index = match self.how.direction {
            Direction::Forward => leaf.passed,
            Direction::Backward => leaf.count - 1 - leaf.passed,
        };
        let node = Node::of(&leaf.block).map_err(|wrong| table.corrupt(offset, wrong))?;
        let entry = node.entry(index).map_err(|wrong| table.corrupt(offset, wrong))?;
        let current = match entry.payload {
            Payload::Deleted => Current::Deleted,
            Payload::Inline(range) => Current::Inline(range, entry.expires_s),
            Payload::Blob(blob) => {
                let file = table.file_of(blob).map_err(|wrong| table.corrupt(offset, wrong))?;
                let named = BlobAt { file: file.id(), ..blob };
                let is_left = self.leave.as_ref().is_some_and(|leave| leave.leaves(named));
                if self.how.gives_up && !is_left {
                    replaced = Some(named);
                }
                // A value that is long when it is unpacked needs memory that is counted.
                let is_short = !blob.is_packed() || blob.value_len <= self.how.read_bytes_max;
                self.value_offers = self.value_offers.saturating_sub(1);
                match leaf.around.part(blob.range()).filter(|_| is_short && !blob.is_far()) {
                    _ if is_left => Current::Left(named, entry.expires_s),
                    None => match cached(file, blob, &self.how, self.value_looks) {
                        Some(block) => {
                            self.value_looks = OFFERS_MAX;
                            self.values.pass(blob);
                            Current::Value { block, expires_s: entry.expires_s }
                        }
                        None => {
                            self.value_looks = self.value_looks.saturating_sub(1);
                            Current::Blob(blob, entry.expires_s)
                        }
                    },
                    Some(block) => {
                        table.check_blob(blob, &block)?;
                        let block = table.unpacked_blob(blob, block)?;
                        if self.value_offers > 0 && may_cache(file, blob, &self.how) {
                            file.offer(blob.offset, &block);
                        }
                        Current::Value { block, expires_s: entry.expires_s }
                    }
                }
            }
        };
        node.key(index, &mut self.key).map_err(|wrong| table.corrupt(offset, wrong))?;
        self.current = current;
        leaf.passed += 1;
        // One that was never loaded, as a newer one has its key.
        if let Some(old) = std::mem::replace(&mut self.replaced, replaced) {
            table.cache.give_up(old.file, old.offset);
        }
        Ok(true)
    }

    async fn next_leaf(&mut self) -> Result<bool> {
        if let Some(leaf) = self.leaf.as_ref().filter(|_| self.how.gives_up) {
            self.table.cache.give_up(self.table.meta.id, leaf.child.offset());
        }
        self.values.begin_leaf();
        self.plan().await?;
        let Some(fetched) = self.ahead.next().await else {
            self.leaf = None;
            return Ok(false);
        };
        let mut fetched = fetched?;
        let wrong = |wrong| self.table.corrupt(fetched.child.offset(), wrong);
        // Leaves that are in the cache already count: else a long range would bring in more of itself each time.
        let is_offered = self.offers > 0;
        self.offers = self.offers.saturating_sub(1);
        if !fetched.checked {
            check(&fetched.leaf, self.table.identity(fetched.child, LEAF)).map_err(wrong)?;
            fetched.leaf = self.table.unpacked_leaf(fetched.child, fetched.leaf)?;
            if self.how.looks_up() && is_offered {
                // A leaf of a longer read would keep all of it.
                let leaf = fetched.leaf.detach();
                self.table.offer(fetched.child.offset(), &leaf);
            }
        }
        let key = self.seek.take();
        self.enter(fetched, key.as_deref())?;
        Ok(true)
    }

    /// Moves before the first entry of a leaf, or before that at or behind a key.
    fn enter(&mut self, fetched: FetchedLeaf, key: Option<&[u8]>) -> Result<()> {
        let wrong = |wrong| self.table.corrupt(fetched.child.offset(), wrong);
        let node = Node::of(&fetched.leaf).map_err(wrong)?;
        let mut passed = 0;
        if let Some(key) = key {
            let found = node.search(key).map_err(wrong)?;
            passed = match (self.how.direction, found) {
                (Direction::Forward, Ok(index) | Err(index)) => index,
                (Direction::Backward, Ok(index)) => node.count() - 1 - index,
                (Direction::Backward, Err(index)) => node.count() - index,
            };
        }
        let (child, count, around) = (fetched.child, node.count(), fetched.around);
        debug_assert!(passed <= count, "a cursor stands before an entry, or behind the last");
        let is_last = self.ahead.chunks() == 0;
        self.leaf = Some(Leaf { child, block: fetched.leaf, around, count, passed, is_last });
        Ok(())
    }

    /// Plans as many reads of leaves as are allowed in addition to reads of values.
    async fn plan(&mut self) -> Result<()> {
        let (most, leaf) = (u64::from(self.how.read_bytes_max), u64::from(self.table.leaf_bytes()));
        let reads_max = self.how.reads_max.max(1) as usize;
        let of_values = if self.how.cache { 0 } else { self.values.reads() };
        // The values that a cut read leaves out are read before the next leaf.
        while !self.ahead.ends_cut() {
            let room = self.room(leaf);
            if self.ahead.chunks() > 0 && room < leaf {
                return Ok(());
            }
            self.window = room.max(leaf).min(most);
            if self.upcoming.is_none() {
                self.upcoming = self.next_child().await?;
            }
            let Some(NextLeaf { child, range, is_cut }) = &self.upcoming else { return Ok(()) };
            if *is_cut || !self.ahead.join(range, *child, most) {
                if self.ahead.chunks() + of_values >= reads_max {
                    return Ok(());
                }
                let cached = if self.how.looks_up() {
                    self.table.cache.get(self.table.meta.id, child.offset())
                } else {
                    None
                };
                match cached {
                    Some(leaf) => self.ahead.push_read(*child, leaf),
                    None => self.ahead.push(range.clone(), *child, *is_cut),
                }
            }
            self.upcoming = None;
        }
        Ok(())
    }

    /// Returns how many bytes more may be read ahead. A range, which may end soon, has no more ahead than it has passed, and a leaf.
    fn room(&self, leaf: u64) -> u64 {
        if !self.how.ramp {
            return u64::MAX;
        }
        (self.passed() + leaf).saturating_sub(self.ahead.bytes().0 + self.values.coming())
    }

    /// Returns the next leaf with the range to read for it. The range includes the leaf's blobs, or the last of
    /// them if they are too long together.
    async fn next_child(&mut self) -> Result<Option<NextLeaf>> {
        if self.path.is_none() {
            self.path = Some(match &self.leaf {
                None => Path::to(&self.table, &self.how, None).await?,
                Some(leaf) => Path::behind(&self.table, &self.how, &leaf.block, leaf.child).await?,
            });
        }
        let Some(path) = &mut self.path else { return Ok(None) };
        if path.must_read(&self.table) {
            self.ahead.begin().await;
        }
        let Some((child, begin)) = path.next(&self.table, &self.how).await? else { return Ok(None) };
        let (offset, end) = (child.offset(), child.range().end);
        let begin = begin.min(offset);
        if self.leave.as_ref().is_some_and(|leave| offset - begin >= u64::from(leave.bytes_min)) {
            return Ok(Some(NextLeaf { child, range: child.range(), is_cut: false }));
        }
        let from = begin.max(offset.min(end.saturating_sub(self.window)));
        Ok(Some(NextLeaf { child, range: from..end, is_cut: from > begin }))
    }

    /// Starts the read of the leaf behind the present one, once all values of the present leaf are read or being read.
    async fn begin_behind(&mut self) {
        let Some(leaf) = &mut self.leaf else { return };
        let has_room = self.how.cache || self.values.reads() < self.how.reads_max as usize;
        if leaf.is_last && has_room && self.values.are_planned() {
            leaf.is_last = false;
            // The error recurs when the cursor gets there.
            if self.plan().await.is_ok() {
                self.ahead.begin().await;
            }
        }
    }
}

/// Returns whether the cache may have a value that a cursor passes.
fn may_cache(file: &TableFile, blob: BlobAt, how: &CursorHow) -> bool {
    how.looks_up() && blob.value_len <= file.cache.value_bytes_max()
}

/// Returns a value of a file that is in the cache, if the cursor still looks there.
fn cached(file: &TableFile, blob: BlobAt, how: &CursorHow, looks: u32) -> Option<Block> {
    let found =
        if looks > 0 && may_cache(file, blob, how) { file.cache.peek(file.id(), blob.offset) } else { None };
    found.filter(|block| block.len() == blob.value_len as usize)
}

/// Returns the values of a leaf, from an entry on in the cursor's direction, that are to be read and were not
/// read with the leaf.
fn unread<'c>(
    table: &'c Table,
    leaf: &'c Leaf,
    direction: Direction,
    leave: Option<&'c Leave>,
    from: usize,
) -> impl Iterator<Item = ValueAt> + 'c {
    let node = Node::of(&leaf.block).ok();
    (from..leaf.count).filter_map(move |entry| {
        let index = if direction == Direction::Forward { entry } else { leaf.count - 1 - entry };
        let Payload::Blob(blob) = node?.entry(index).ok()?.payload else { return None };
        if !blob.is_far() && leaf.around.part(blob.range()).is_some() {
            return None;
        }
        let file = table.file_of(blob).ok()?;
        let is_left = leave.is_some_and(|leave| leave.leaves(BlobAt { file: file.id(), ..blob }));
        (!is_left).then(|| ValueAt { entry, file: file.clone(), blob })
    })
}

forebay::_debug_parts!(Cursor, |cursor| table: cursor.table.meta.id, how: cursor.how);

impl Cursor {
    /// Reads the value at the cursor, if it was not read yet.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub(crate) async fn load(&mut self) -> Result<()> {
        // Not before: the next block written uses its memory.
        if let Some(old) = self.replaced.take() {
            self.table.cache.give_up(old.file, old.offset);
        }
        let Current::Blob(blob, expires_s) = self.current else { return Ok(()) };
        let file = self.table.file_of(blob).map(Arc::clone).map_err(|wrong| self.table.corrupt(0, wrong));
        let file = self.note(file)?;
        let entry = self.leaf.as_ref().map_or(0, |leaf| leaf.passed.saturating_sub(1));
        if let Some(leaf) = &self.leaf {
            let (table, direction, leave) = (&self.table, self.how.direction, self.leave.as_deref());
            let (how, looks) = (&self.how, self.value_looks);
            let wanted = |from| {
                unread(table, leaf, direction, leave, from)
                    .filter(move |value| cached(&value.file, value.blob, how, looks).is_none())
            };
            self.values.plan((entry, blob), &self.how, self.ahead.chunks(), wanted);
        }
        self.values.begin(&self.how).await;
        self.begin_behind().await;
        let stored = match self.values.take(&file, (entry, blob)).await {
            Some(stored) => Ok(stored),
            // It was not planned, or its read failed, of which others may be the cause.
            None => {
                let held = self.how.cache.then(|| file.cache.held());
                let _held = HeldShare::new(held, memory_bytes(blob));
                file.read(blob.range(), self.how.class).await
            }
        };
        let block = stored.and_then(|stored| {
            file.check_blob(blob, &stored)?;
            file.unpacked_blob(blob, stored)
        });
        let block = self.note(block)?;
        self.values.pass(blob);
        if self.value_offers > 0 && may_cache(&file, blob, &self.how) {
            file.offer(blob.offset, &block);
        }
        self.current = Current::Value { block, expires_s };
        Ok(())
    }

    fn note<T>(&mut self, answer: Result<T>) -> Result<T> {
        if let Err(error) = &answer {
            self.failed = Some(error.clone());
            self.current = Current::None;
        }
        answer
    }
}
