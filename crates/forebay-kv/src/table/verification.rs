//! Verification of a table: reads all of it, and checks everything that can be checked.

use std::sync::Arc;

use forebay::{Class, FilePlace, shard};

use super::cursor::{CursorHow, Direction};
use super::footer::{HeaderFound, read_header};
use super::pinned::PartReader;
use super::{Entry, Table};
use crate::error::{Error, ErrorKind, Result};
use crate::node::bloom::{self, Hash};
use crate::node::{Child, FILTER, Node, Payload, UNIT, check};

/// Totals of a table that was found intact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableTotals {
    /// Bytes read: the whole file.
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    pub(crate) deleted: u64,
    pub(crate) expiring: u64,
    /// Values stored outside of their leaf.
    pub(crate) blobs: u64,
}

/// The expected position of the next part of the file.
struct ExpectedPosition {
    /// The end of the last blob or leaf: the byte after it.
    end: u64,
    last: Vec<u8>,
}

impl Table {
    /// Reads the whole table, past the cache: header, every leaf and every blob, every inner node, the
    /// filter. Checks checksums and identities, the order of all keys, that each leaf is where the inner
    /// nodes point, that no byte of the file is unaccounted for, that the filter has every key, and the
    /// counts. Holds the filter and one level of inner nodes in memory.
    ///
    /// # Errors
    /// `Corruption` for the first fault, with file and offset; the system's.
    pub(crate) async fn verify(self: &Arc<Self>, class: Class) -> Result<TableTotals> {
        let header = self.read(0..UNIT as u64, class).await?;
        let footer = &self.footer;
        match read_header(&header, footer.table) {
            HeaderFound::Ours { version, keyspace, leaf_bytes }
                if (version, keyspace, leaf_bytes)
                    == (footer.version(), footer.keyspace, footer.leaf_bytes) => {}
            _ => return Err(self.corrupt(0, "the table's header is damaged")),
        }
        let file = self.opened(&FilePlace::NONE).await?;
        let reader = PartReader { file: &file, footer, class };
        for level in 1..=footer.root_level() {
            self.verify_level(&reader, level).await?;
        }
        let first = u64::from(footer.filter_first);
        let area = first..first + u64::from(footer.filter_partitions);
        let filter = reader.bytes(area).await?;
        reader.check_nodes(&filter, footer.filter_first, FILTER, |_| Ok(())).await?;
        let totals = self.verify_entries(class, &filter).await?;
        if (totals.entries, totals.deleted, totals.expiring)
            != (footer.entries, footer.deleted, footer.expiring)
        {
            return Err(
                self.corrupt(u64::from(footer.position) * UNIT as u64, "the table's counts are wrong")
            );
        }
        Ok(TableTotals { bytes: self.meta.bytes, ..totals })
    }

    /// Checks that every node of an inner level is whole and in order, and that the nodes below are adjacent.
    async fn verify_level(&self, reader: &PartReader<'_>, level: u8) -> Result<()> {
        let Some(area) = self.footer.level(level) else { return Ok(()) };
        let bytes = reader.bytes(area.clone()).await?;
        let below = self.area(level - 1).unwrap_or(0..0);
        let (mut next, mut last) = (below.start, None::<Vec<u8>>);
        let mut key = Vec::new();
        reader
            .check_nodes(&bytes, area.start as u32, level, |node| {
                node.check_records()?;
                for index in 0..node.count() {
                    let child = node.child(index)?;
                    self.check_place(child, level - 1)?;
                    // Between leaves there may be blobs.
                    let in_place = match level {
                        1 => next <= child.position.into(),
                        _ => next == child.position.into(),
                    };
                    if !in_place {
                        return Err("the children of a node are not stored in its order");
                    }
                    next = child.end();
                    node.key(index, &mut key)?;
                    if last.as_ref().is_some_and(|last| *last >= key) {
                        return Err("the separators of a level are not in order");
                    }
                    last.get_or_insert_default().clone_from(&key);
                }
                Ok(())
            })
            .await?;
        if next == below.end {
            Ok(())
        } else {
            Err(self.corrupt(area.start * UNIT as u64, "the nodes below do not reach to their end"))
        }
    }

    async fn verify_entries(self: &Arc<Self>, class: Class, filter: &[u8]) -> Result<TableTotals> {
        let mut totals = TableTotals::default();
        let how = CursorHow { class, direction: Direction::Forward, ..CursorHow::merge() };
        let mut cursor = self.cursor(how);
        let mut place = ExpectedPosition { end: UNIT as u64, last: Vec::new() };
        let mut leaf = None;
        while cursor.next().await? {
            let Some((child, block)) = cursor.leaf() else { break };
            let wrong = |text: &str| Err(self.corrupt(child.offset(), text));
            let key = cursor.key();
            if totals.entries > 0 && *key <= *place.last {
                return wrong("the keys of the table are not in order");
            }
            if totals.entries == 0 && *key != *self.meta.smallest {
                return wrong("the smallest key is not the one that the manifest names");
            }
            let hash = Hash::of(key);
            let partitions = self.footer.filter_partitions;
            let at = hash.partition(partitions) as usize * UNIT;
            if !filter.get(at..at + UNIT).is_some_and(|part| bloom::contains(part, hash, partitions)) {
                return wrong("the filter does not know one of this leaf's keys");
            }
            if leaf != Some(child) {
                leaf = Some(child);
                totals.blobs += self.verify_leaf(child, block, &mut place)?;
            }
            if cursor.is_at_edge() {
                self.verify_way(key, child, class).await?;
            }
            totals.entries += 1;
            match cursor.entry() {
                Some(Entry::Deleted) => totals.deleted += 1,
                Some(Entry::Value { expires_s: Some(_), .. } | Entry::Blob { expires_s: Some(_), .. }) => {
                    totals.expiring += 1
                }
                _ => {}
            }
            place.last.clear();
            place.last.extend_from_slice(key);
            shard::yield_if_needed().await;
        }
        if *place.last != *self.meta.largest {
            let text = "the largest key is not the one that the manifest names";
            return Err(Error::at(ErrorKind::Corruption, self.path(), text));
        }
        if place.end == u64::from(self.footer.leaf_end) * UNIT as u64 {
            Ok(totals)
        } else {
            Err(self.corrupt(place.end, "something stands behind the last leaf"))
        }
    }

    /// Checks that a leaf's records are in place, and that its blobs fill the space before it. Returns the
    /// number of blobs.
    fn verify_leaf(&self, child: Child, block: &[u8], place: &mut ExpectedPosition) -> Result<u64> {
        let wrong = |wrong| self.corrupt(child.offset(), wrong);
        let node = Node::of(block).map_err(wrong)?;
        node.check_records().map_err(wrong)?;
        let mut blobs = 0;
        for index in 0..node.count() {
            if let Payload::Blob(blob) = node.entry(index).map_err(wrong)?.payload {
                blobs += 1;
                if blob.is_far() {
                    continue;
                }
                if blob.offset != place.end {
                    return Err(wrong("a leaf's blobs do not follow each other"));
                }
                place.end += u64::from(blob.len);
            }
        }
        if place.end.next_multiple_of(UNIT as u64) != child.offset() {
            return Err(wrong("a part of the table belongs to nothing"));
        }
        place.end = child.range().end;
        Ok(blobs)
    }

    /// Checks that the inner nodes lead from a key to its leaf.
    async fn verify_way(&self, key: &[u8], leaf: Child, class: Class) -> Result<()> {
        let (mut child, mut level) = (self.footer.root, self.footer.root_level());
        while level > 0 {
            let held;
            let bytes = match self.pinned.node(child, level) {
                Some(bytes) => bytes,
                None => {
                    held = match self.cache.get(self.meta.id, child.offset()) {
                        Some(block) => block,
                        None => {
                            let block = self.read(child.range(), class).await?;
                            check(&block, self.identity(child, level))
                                .map_err(|wrong| self.corrupt(child.offset(), wrong))?;
                            self.cache.insert(self.meta.id, child.offset(), &block);
                            block
                        }
                    };
                    &held[..]
                }
            };
            let next = Node::of(bytes).and_then(|node| node.child(node.search_child(key)?));
            child = next.map_err(|wrong| self.corrupt(child.offset(), wrong))?;
            level -= 1;
        }
        if child == leaf {
            Ok(())
        } else {
            Err(self.corrupt(leaf.offset(), "the inner nodes lead to another leaf than this one"))
        }
    }
}
