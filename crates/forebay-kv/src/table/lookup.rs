//! Lookup of a key: on the caller's thread as far as memory suffices, and from there read by read.

use std::ops::Range;
use std::sync::Arc;

use forebay::Block;

use super::blob::{Blob, WALKED_BYTES_MAX};
use super::unpack::{PackedAt, Part};
use super::{FilterUse, GetHow, Hit, Probe, Table};
use crate::admission::Permit;
use crate::error::Result;
use crate::node::bloom::{self, Hash};
use crate::node::packed::is_packed;
use crate::node::{BlobAt, Child, FILTER, LEAF, Node, Payload, UNIT, Wrong, check, is};
use crate::value::Value;

#[cfg(all(feature = "kernel", target_os = "linux"))]
pub(super) mod descent;

/// A lookup that needs reads. The caller reads [`range`](Lookup::range) and passes the block to
/// [`look_into`](Lookup::look_into), until that returns a result.
pub(crate) struct Lookup {
    table: Arc<Table>,
    key: Key,
    hash: Hash,
    now_s: u64,
    at: At,
    fill: bool,
    /// The permit of the read in flight.
    pub(super) permit: Option<Permit>,
    /// Whether this is a repetition, because the value found before was evicted.
    pub(crate) is_again: bool,
}

/// The part of the table to inspect next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// The partition of the filter at this unit.
    Filter(u32),
    Node(Child, u8),
    Blob(BlobAt),
}

/// How far a lookup got without reading.
pub(super) enum Progress {
    Done(Option<Hit>),
    /// A long value, to be read once memory is free for it.
    Blob(BlobAt),
    Needs(At),
}

/// How far a lookup got with a block that was read.
pub(super) enum LookupStep {
    Found(Option<Hit>),
    /// More must be read.
    Reads,
    /// The block must be unpacked first, which is not done where reads complete.
    Packed(PackedAt),
}

impl Progress {
    /// Returns the result, or else the value to be read.
    pub(super) fn blob(self) -> Result<Option<Hit>, Option<BlobAt>> {
        match self {
            Progress::Done(found) => Ok(found),
            Progress::Blob(blob) | Progress::Needs(At::Blob(blob)) => Err(Some(blob)),
            Progress::Needs(_) => Err(None),
        }
    }
}

/// The key of a lookup; short keys need no allocation.
enum Key {
    Short(u8, [u8; Key::SHORT]),
    Long(Box<[u8]>),
}

impl Table {
    /// Looks a key up; reads blocks that are not in memory, and claims no memory for a long value.
    ///
    /// # Errors
    /// `Corruption`, with file and offset; the system's.
    #[cfg(test)]
    pub(crate) async fn get(self: &Arc<Self>, key: &[u8], how: GetHow) -> Result<Option<Hit>> {
        let found = match self.get_cached(key, how)? {
            Probe::Done(found) => found,
            Probe::NeedsRead(lookup) => {
                let file = self.opened(&forebay::FilePlace::NONE).await?;
                lookup.walk(&file, forebay::Class::DEFAULT).await?.take(self, key)?.flatten()
            }
        };
        match found {
            Some(Hit::Blob(Blob { file, blob, .. })) => {
                let block = file.read(blob.range(), forebay::Class::DEFAULT).await?;
                file.check_blob(blob, &block)?;
                Ok(Some(self.value(file.unpacked_blob(blob, block)?)))
            }
            found => Ok(found),
        }
    }

    /// Looks a key up without reads. Allocates nothing if that gives the result, and otherwise nothing for a key of up to 38 bytes.
    ///
    /// # Errors
    /// `Corruption`, with file and offset.
    pub(crate) fn get_cached(self: &Arc<Self>, key: &[u8], how: GetHow) -> Result<Probe> {
        if !self.covers(key) {
            return Ok(Probe::Done(None));
        }
        let hash = Hash::of(key);
        let partition = self.footer.filter_first + hash.partition(self.footer.filter_partitions);
        let at = match (self.filter_says(hash, partition), how.filter) {
            (Some(false), _) => return Ok(Probe::Done(None)),
            (Some(true), _) | (None, FilterUse::InMemory) => self.root(),
            (None, FilterUse::Read) => At::Filter(partition),
        };
        let progress = match at {
            At::Filter(_) => Progress::Needs(at),
            at => self.advance(key, how.now_s, at)?,
        };
        Ok(match progress {
            Progress::Done(found) => Probe::Done(found),
            Progress::Blob(blob) => Probe::Done(Some(Hit::Blob(self.blob(blob, how.fill)?))),
            Progress::Needs(at) => Probe::NeedsRead(Lookup {
                table: self.clone(),
                key: Key::new(key),
                hash,
                now_s: how.now_s,
                at,
                fill: how.fill,
                permit: None,
                is_again: false,
            }),
        })
    }

    fn root(&self) -> At {
        At::Node(self.footer.root, self.footer.root_level())
    }

    /// Returns the filter's verdict on a key, if the partition at that unit is in memory.
    fn filter_says(&self, hash: Hash, partition: u32) -> Option<bool> {
        let partitions = self.footer.filter_partitions;
        let says = |bytes: &[u8]| bloom::contains(bytes, hash, partitions);
        self.pinned.look_into_filter(partition, says).or_else(|| {
            let block = self.cache.peek(self.meta.id, u64::from(partition) * UNIT as u64)?;
            Some(says(&block))
        })
    }

    /// Descends as long as the nodes are in memory.
    pub(super) fn advance(&self, key: &[u8], now_s: u64, mut at: At) -> Result<Progress> {
        loop {
            at = match at {
                At::Node(child, level) => {
                    if let Some(bytes) = self.pinned.node(child, level) {
                        let below = self.child_of(Node::of(bytes), key, level);
                        below.map_err(|wrong| self.corrupt(child.offset(), wrong))?
                    } else if let Some(block) = self.cache.get(self.meta.id, child.offset()) {
                        match self.visit(&block, child, level, key, now_s)? {
                            Progress::Needs(next) => next,
                            done => return Ok(done),
                        }
                    } else {
                        return Ok(Progress::Needs(at));
                    }
                }
                At::Blob(blob) => {
                    if blob.value_len > self.cache.value_bytes_max() {
                        return Ok(Progress::Blob(blob));
                    }
                    let file = if blob.is_far() { blob.file } else { self.meta.id };
                    let block = self.cache.get(file, blob.offset);
                    return Ok(match block.filter(|block| block.len() == blob.value_len as usize) {
                        Some(block) => Progress::Done(Some(self.value(block))),
                        // A walk stays in one file.
                        None if blob.is_far() || blob.value_len > WALKED_BYTES_MAX => Progress::Blob(blob),
                        None => Progress::Needs(at),
                    });
                }
                At::Filter(_) => return Ok(Progress::Needs(at)),
            }
        }
    }

    /// Searches a checked node for a key.
    pub(super) fn visit(
        &self,
        block: &Block,
        child: Child,
        level: u8,
        key: &[u8],
        now_s: u64,
    ) -> Result<Progress> {
        let wrong = |wrong| self.corrupt(child.offset(), wrong);
        if !is(block, self.identity(child, level)) {
            return Err(wrong("another node than this was kept in memory"));
        }
        let node = Node::of(block);
        if level != LEAF {
            return Ok(Progress::Needs(self.child_of(node, key, level).map_err(wrong)?));
        }
        let node = node.map_err(wrong)?;
        let Ok(index) = node.search(key).map_err(wrong)? else { return Ok(Progress::Done(None)) };
        let entry = node.entry(index).map_err(wrong)?;
        if entry.expires_s.is_some_and(|time| time <= now_s) {
            return Ok(Progress::Done(Some(Hit::Deleted)));
        }
        Ok(match entry.payload {
            Payload::Deleted => Progress::Done(Some(Hit::Deleted)),
            Payload::Inline(range) => {
                let value = block.slice(range).ok_or_else(|| wrong("a value that is not in its node"))?;
                Progress::Done(Some(self.value(value)))
            }
            Payload::Blob(blob) => {
                self.file_of(blob).map_err(wrong)?;
                Progress::Needs(At::Blob(blob))
            }
        })
    }

    /// Returns the child of an inner node to descend to.
    fn child_of(&self, node: Result<Node<'_>, Wrong>, key: &[u8], level: u8) -> Result<At, Wrong> {
        let node = node?;
        let child = node.child(node.search_child(key)?)?;
        self.check_place(child, level - 1)?;
        Ok(At::Node(child, level - 1))
    }

    pub(super) fn value(&self, block: Block) -> Hit {
        Hit::Value(Value::of_block(block, self.cache.held()))
    }

    /// Returns the place of a value that must still be read.
    pub(super) fn blob(&self, blob: BlobAt, fill: bool) -> Result<Blob> {
        let file = self.file_of(blob).map_err(|wrong| self.corrupt(0, wrong))?;
        Ok(Blob { file: file.clone(), blob, fill })
    }
}

impl Lookup {
    /// Returns the range of the file to read next.
    pub(crate) fn range(&self) -> Range<u64> {
        match self.at {
            At::Filter(position) => {
                let begin = u64::from(position) * UNIT as u64;
                begin..begin + UNIT as u64
            }
            At::Node(child, _) => child.range(),
            At::Blob(blob) => blob.range(),
        }
    }

    /// Sets the permit for the lookup's reads. `is_again`: it has read before, and the value found was
    /// evicted.
    pub(crate) fn admit(&mut self, permit: Permit, is_again: bool) {
        (self.permit, self.is_again) = (Some(permit), is_again);
    }

    /// Returns the table that is searched.
    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Continues with the block read at `at`, without further reads. If more must be read, [`range`](Lookup::range) has it. Costs a
    /// checksum over the block, and a search.
    pub(super) fn look_into(&mut self, block: &Block, at: Range<u64>) -> Result<LookupStep> {
        if at != self.range() || block.len() as u64 != at.end - at.start {
            return Err(self
                .table
                .corrupt(at.start, "another part of the table was read than was asked for"));
        }
        if let Some(part) = self.check(block)? {
            return Ok(LookupStep::Packed(PackedAt { part, now_s: self.now_s, fill: self.fill }));
        }
        Ok(match self.take(block)? {
            Progress::Done(found) => LookupStep::Found(found),
            Progress::Blob(blob) => LookupStep::Found(Some(Hit::Blob(self.table.blob(blob, self.fill)?))),
            Progress::Needs(at) => {
                self.at = at;
                LookupStep::Reads
            }
        })
    }

    /// Checks the block that was read. Returns what it is if it is packed.
    fn check(&self, block: &Block) -> Result<Option<Part>> {
        let table = &self.table;
        let (child, level) = match self.at {
            At::Filter(position) => (Child { position, units: 1 }, FILTER),
            At::Node(child, level) => (child, level),
            At::Blob(blob) => {
                table.check_blob(blob, block)?;
                return Ok(blob.is_packed().then_some(Part::Blob(blob)));
            }
        };
        check(block, table.identity(child, level)).map_err(|wrong| table.corrupt(child.offset(), wrong))?;
        Ok((level == LEAF && is_packed(block)).then_some(Part::Leaf(child)))
    }

    /// Continues with a block that was checked and is plain.
    fn take(&self, block: &Block) -> Result<Progress> {
        let table = &self.table;
        self.keep(self.range().start, block);
        let next = match self.at {
            At::Filter(_) if !bloom::contains(block, self.hash, table.footer.filter_partitions) => {
                return Ok(Progress::Done(None));
            }
            At::Filter(_) => table.root(),
            At::Node(child, level) => {
                match table.visit(block, child, level, self.key.bytes(), self.now_s)? {
                    Progress::Needs(next) => next,
                    done => return Ok(done),
                }
            }
            At::Blob(_) => return Ok(Progress::Done(Some(table.value(block.clone())))),
        };
        table.advance(self.key.bytes(), self.now_s, next)
    }

    /// Has the cache keep a checked block. Filters and inner nodes serve many keys; a leaf or a value proves its worth
    /// by a second read.
    fn keep(&self, offset: u64, block: &Block) {
        let (cache, table) = (&self.table.cache, self.table.meta.id);
        match self.at {
            _ if !self.fill => {}
            At::Node(_, LEAF) | At::Blob(_) => self.table.offer(offset, block),
            At::Filter(_) | At::Node(..) => cache.insert(table, offset, block),
        }
    }
}

forebay::_debug_parts!(Lookup, |lookup| table: lookup.table.meta.id, at: lookup.at);

impl Key {
    const SHORT: usize = 38;

    fn new(key: &[u8]) -> Key {
        let mut short = [0; Key::SHORT];
        match short.get_mut(..key.len()) {
            Some(front) => {
                front.copy_from_slice(key);
                Key::Short(key.len() as u8, short)
            }
            None => Key::Long(key.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Key::Short(len, bytes) => &bytes[..usize::from(*len)],
            Key::Long(bytes) => bytes,
        }
    }
}

/// The state of a lookup must fit into a slot of the core, without an allocation.
const _: () = assert!(size_of::<Lookup>() <= 128);
