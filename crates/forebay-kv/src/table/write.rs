//! Writing a table, from its smallest key to its largest.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
#[cfg(test)]
use std::path::Path;

use crc_fast::{CrcAlgorithm, Digest};
use forebay::{Dir, Durability, Engine, Open, shard};

use super::blob::WALKED_BYTES_MAX;
use super::footer::{Footer, HeaderFound, NO_KEYSPACE, SortedFooter, read_header, version_of, write_header};
use super::{Entry, TableMeta, TableSpec, check_key};
use crate::error::{Error, ErrorKind, Result};
use crate::is_broken;
use crate::names::table_name;
use crate::node::bloom::{self, Hash};
use crate::node::build::{Content, separator};
use crate::node::codec::PIECE_BYTES_MAX;
use crate::node::packed::pack_piece;
use crate::node::{
    BlobAt, Builder, Child, FILTER, INLINE_BYTES_MAX, Identity, LEAF, LEAF_BYTES, LEVELS_MAX, UNIT,
    VALUE_BYTES_MAX, checksum, seal,
};

mod inner;
mod out;
mod packer;

use inner::Level;
use out::Out;
use packer::{Packer, Verdict};

/// Writes a table. After an error, or if one of its futures was dropped unfinished, the only valid call is
/// [`abandon`](TableWriter::abandon). A writer that is dropped otherwise leaves an unfinished file.
pub(crate) struct TableWriter {
    spec: TableSpec,
    engine: Engine,
    dir: Dir,
    name: OsString,
    out: Out,
    leaf: Builder,
    /// Maximum bytes of the leaf being built, before compression.
    capacity: usize,
    /// Records of the leaf up to the last one whose value is a blob: blobs lie right before their leaf.
    fixed: usize,
    packer: Option<Packer>,
    /// The separator before the leaf being built.
    separator: Vec<u8>,
    /// The last key of the last leaf.
    last: Vec<u8>,
    first_leaf: Option<Child>,
    inner: Level,
    hashes: Hashes,
    smallest: Box<[u8]>,
    deleted: u64,
    expiring: u64,
    expires_s: (u64, u64),
    /// The bytes of the long values, by the file that has them.
    values: BTreeMap<u32, u64>,
    value_bytes_max: usize,
}

impl TableWriter {
    /// Creates the file, which must not exist.
    ///
    /// # Errors
    /// The system's; `InvalidInput` for a leaf size that is not allowed.
    pub(crate) async fn create_in(engine: &Engine, dir: &Dir, spec: TableSpec) -> Result<TableWriter> {
        let name = table_name(spec.id);
        TableWriter::named(engine, dir, name.as_ref(), spec).await
    }

    /// Creates the file at a path.
    #[cfg(test)]
    pub(crate) async fn create(engine: &Engine, path: &Path, spec: TableSpec) -> Result<TableWriter> {
        let dir = engine.open_dir(path.parent().unwrap()).await?;
        TableWriter::named(engine, &dir, path.file_name().unwrap(), spec).await
    }

    /// As [`create_in`](TableWriter::create_in), under another name.
    pub(crate) async fn named(
        engine: &Engine,
        dir: &Dir,
        name: &OsStr,
        spec: TableSpec,
    ) -> Result<TableWriter> {
        if !LEAF_BYTES.contains(&spec.leaf_bytes) || !spec.leaf_bytes.is_multiple_of(UNIT as u32) {
            let text =
                format!("leaves of {} bytes; they may have 4 to 32 KiB, in steps of 4", spec.leaf_bytes);
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let packer = Packer::new(&spec)?;
        let mut open = Open::create_new();
        if let Some(shard) = spec.shard {
            open = open.shard(shard);
        }
        let file = dir.open(name, open).await?;
        let mut out = Out::new(engine, &file, &spec);
        let version = version_of(packer.is_some(), spec.links, spec.keyspace);
        let unit = match out.node(UNIT).await {
            Ok(unit) => unit,
            Err(error) => {
                // Its name is free for another attempt.
                let _ = dir.remove_file(name).await;
                return Err(error);
            }
        };
        write_header(unit, spec.id, spec.keyspace, spec.leaf_bytes, version);
        debug_assert_eq!(
            read_header(unit, spec.id),
            HeaderFound::Ours { version, keyspace: spec.keyspace, leaf_bytes: spec.leaf_bytes },
            "a header is read back as it was written"
        );
        if let Some(cache) = spec.cache.as_deref().filter(|_| spec.fill) {
            cache.look_for_room();
        }
        Ok(TableWriter {
            engine: engine.clone(),
            dir: dir.clone(),
            name: name.to_owned(),
            out,
            leaf: Builder::default(),
            capacity: 0,
            fixed: 0,
            packer,
            separator: Vec::new(),
            last: Vec::new(),
            first_leaf: None,
            inner: Level::new(1),
            hashes: Hashes::default(),
            smallest: Box::default(),
            deleted: 0,
            expiring: 0,
            expires_s: (0, 0),
            values: BTreeMap::new(),
            value_bytes_max: 0,
            spec,
        })
    }

    /// Adds an entry, whose key must be above all before it. Waits only if the maximum number of writes is in
    /// flight.
    ///
    /// # Errors
    /// The system's, also of a write of earlier entries; `InvalidInput` for an empty key or one that is not
    /// above the last; `TooLarge`.
    pub(crate) async fn add(&mut self, key: &[u8], entry: Entry<'_>) -> Result<()> {
        check_key(key)?;
        let last = if self.leaf.is_empty() { &*self.last } else { self.leaf.last_key() };
        if key <= last {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a table's keys must be added in ascending order",
            ));
        }
        let (content, blob) = self.content(entry)?;
        let mut needs = self.leaf.len_with(key, content.len());
        while needs > self.capacity && !self.leaf.is_empty() {
            self.make_room(Some(needs)).await?;
            needs = self.leaf.len_with(key, content.len());
        }
        if self.leaf.is_empty() {
            self.capacity = needs.next_multiple_of(UNIT).max(self.target());
            self.separator.clear();
            match self.first_leaf {
                Some(_) => self.separator.extend_from_slice(separator(&self.last, key)),
                None => self.smallest = key.into(),
            }
        }
        match blob {
            Some((bytes, expires_s)) => {
                let at = self.write_blob(bytes).await?;
                if at.value_len <= WALKED_BYTES_MAX {
                    fill(&self.engine, &self.spec, at.offset, bytes);
                }
                debug_assert!(at.range().end <= self.out.position(), "a long value lies before its leaf");
                self.leaf.push(key, Content::Blob { at, expires_s });
                self.fixed = self.leaf.count();
                if at.value_len >= self.spec.separation_bytes {
                    self.note_value(self.spec.id, at);
                }
            }
            None => {
                self.leaf.push(key, content);
                if let Content::Blob { at, .. } = content {
                    self.note_value(at.file, at);
                }
            }
        }
        self.hashes.push(Hash::of(key));
        if let Entry::Value { bytes, .. } = entry {
            self.value_bytes_max = self.value_bytes_max.max(bytes.len());
        }
        match entry {
            Entry::Deleted => self.deleted += 1,
            Entry::Value { expires_s: Some(at), .. } | Entry::Blob { expires_s: Some(at), .. } => {
                let (first, last) = if self.expiring == 0 { (at, at) } else { self.expires_s };
                self.expires_s = (first.min(at), last.max(at));
                self.expiring += 1;
            }
            Entry::Value { .. } | Entry::Blob { .. } => {}
        }
        Ok(())
    }

    fn note_value(&mut self, file: u32, at: BlobAt) {
        *self.values.entry(file).or_default() += u64::from(at.len);
    }

    /// Returns the approximate length of the table in bytes if it was finished now.
    pub(crate) fn bytes(&self) -> u64 {
        let filter = u64::from(bloom::partitions(self.hashes.len)) * UNIT as u64;
        self.out.position() + (self.leaf.len() + self.inner.len()) as u64 + filter + UNIT as u64
    }

    /// Returns the number of entries added.
    pub(crate) fn entries(&self) -> u64 {
        self.hashes.len
    }

    /// Returns the bytes of memory that the writer holds: buffers, the leaf and the inner nodes being built,
    /// and 4 bytes a key for the filter.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let keys = self.separator.capacity() + self.last.capacity() + self.smallest.len();
        let nodes = self.leaf.memory_bytes() + self.inner.memory_bytes() + self.hashes.memory_bytes();
        self.out.memory_bytes() + (keys + nodes) as u64
    }

    /// Writes the rest of the table, and makes the file durable. The caller makes its name so, which one sync of the directory does
    /// for several tables.
    ///
    /// # Errors
    /// The system's; `InvalidInput` if no entry was added.
    pub(crate) async fn finish(mut self) -> Result<TableMeta> {
        if self.entries() == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "a table without entries"));
        }
        while !self.leaf.is_empty() {
            self.make_room(None).await?;
        }
        let leaf_end = self.out.unit()?;
        let mut level_first = [0; LEVELS_MAX as usize];
        let (root, levels) = self.write_inner(&mut level_first).await?;
        let filter_first = self.out.unit()?;
        let filter_partitions = self.write_filter().await?;
        let footer = Footer {
            table: self.spec.id,
            keyspace: self.spec.keyspace,
            leaf_bytes: self.spec.leaf_bytes,
            root,
            entries: self.entries(),
            deleted: self.deleted,
            expiring: self.expiring,
            leaf_end,
            filter_first,
            filter_partitions,
            levels,
            level_first,
            position: self.out.unit()?,
            packing: self.packer.as_ref().map(Packer::packing),
            links: self.spec.links,
            sorted: (self.spec.keyspace == NO_KEYSPACE).then_some(SortedFooter {
                expires_s: self.expires_s,
                value_bytes_max: self.value_bytes_max as u32,
            }),
        };
        debug_assert!(footer.fits_together(), "an open would refuse the table: {footer:?}");
        debug_assert!(*self.smallest <= *self.last, "a table's keys are sorted");
        let unit = self.out.node(UNIT).await?;
        footer.write(unit);
        let end = (u64::from(footer.position) + 1) * UNIT as u64;
        if Footer::read(unit, footer.table, end, self.name.as_ref()).ok().as_ref() != Some(&footer) {
            let text = "a table's footer would not be read back as it was written: please report this";
            return Err(Error::new(ErrorKind::Corruption, text));
        }
        let durability = if is_broken!(TableNotSynced) { Durability::None } else { Durability::Data };
        let bytes = self.out.finish(durability).await?;
        Ok(TableMeta {
            id: self.spec.id,
            number: self.spec.id,
            keyspace: self.spec.keyspace,
            bytes,
            entries: footer.entries,
            deleted: footer.deleted,
            expiring: footer.expiring,
            expires_s: self.expires_s,
            smallest: self.smallest,
            largest: self.last.into(),
            values: self.values.into_iter().collect(),
        })
    }

    /// Abandons the table and removes its file.
    ///
    /// # Errors
    /// The system's: the file still exists then.
    pub(crate) async fn abandon(self) -> Result<()> {
        let TableWriter { dir, name, out, .. } = self;
        drop(out);
        Ok(dir.remove_file(name).await?)
    }

    /// Returns the content of the leaf for an entry, and the value if it is stored outside.
    fn content<'a>(&self, entry: Entry<'a>) -> Result<(Content<'a>, Option<Blob<'a>>)> {
        let (bytes, expires_s) = match entry {
            Entry::Value { bytes, expires_s } => (bytes, expires_s),
            Entry::Blob { at, expires_s } => {
                debug_assert!(self.spec.links && at.is_far() && at.file != self.spec.id);
                return Ok((Content::Blob { at, expires_s }, None));
            }
            Entry::Deleted => return Ok((Content::Deleted, None)),
        };
        if bytes.len() > VALUE_BYTES_MAX {
            let text = format!("a value of {} bytes; values may have {VALUE_BYTES_MAX} at most", bytes.len());
            return Err(Error::new(ErrorKind::TooLarge { limit: VALUE_BYTES_MAX }, text));
        }
        if bytes.len() <= (self.spec.leaf_bytes as usize / 4).min(INLINE_BYTES_MAX) {
            return Ok((Content::Inline { bytes, expires_s }, None));
        }
        // A placeholder, as long as the blob's place can be.
        let value_len = u32::from(self.packer.is_some());
        let at = BlobAt { file: 0, offset: 0, len: 0, crc: 0, value_len };
        Ok((Content::Blob { at, expires_s }, Some((bytes, expires_s))))
    }

    /// Returns the planned length of a leaf, before compression.
    fn target(&self) -> usize {
        self.packer.as_ref().map_or(self.spec.leaf_bytes as usize, Packer::target)
    }

    /// Handles a record with which the leaf would have `needs` bytes: writes all or the first of its records, or lets it grow.
    /// Without `needs` it writes.
    async fn make_room(&mut self, needs: Option<usize>) -> Result<()> {
        let verdict = match &mut self.packer {
            Some(packer) => packer.judge(&self.leaf, needs, self.fixed),
            None => Verdict::Write { count: self.leaf.count(), is_packed: false },
        };
        match verdict {
            Verdict::Fill(bytes) => {
                debug_assert!(needs.is_some_and(|needs| needs <= bytes), "a leaf grows for the next record");
                self.capacity = bytes;
                Ok(())
            }
            Verdict::Write { count, is_packed } => self.write_leaf(count, is_packed).await,
        }
    }

    /// Writes the first `count` records as a leaf.
    async fn write_leaf(&mut self, count: usize, is_packed: bool) -> Result<()> {
        self.last.clear();
        self.last.extend_from_slice(self.leaf.key_at(count - 1));
        self.out.pad();
        let packer = self.packer.as_mut();
        let len = match (&packer, is_packed) {
            (Some(packer), true) => packer.packed_len(),
            _ => self.leaf.len_of_first(count),
        };
        let len = len.next_multiple_of(UNIT);
        let position = self.out.unit()?;
        let node = self.out.node(len).await?;
        let identity = Identity { table: self.spec.id, position, level: LEAF };
        let child = Child { position, units: (len / UNIT) as u8 };
        let fits = match packer {
            Some(packer) if is_packed => {
                self.leaf.remove_first(count);
                packer.pack(node, identity)
            }
            _ => self.leaf.finish_first(count, node, identity),
        };
        if !fits {
            return Err(Error::new(ErrorKind::InvalidInput, "a leaf with more than a node can have"));
        }
        // The cache has unpacked leaves.
        if !is_packed {
            fill(&self.engine, &self.spec, child.offset(), node);
        }
        self.first_leaf.get_or_insert(child);
        self.inner.push(&self.separator, child, self.spec.id);
        self.fixed = self.fixed.saturating_sub(count);
        if !self.leaf.is_empty() {
            self.separator.clear();
            self.separator.extend_from_slice(separator(&self.last, self.leaf.first_key()));
        }
        if let Some(packer) = &mut self.packer {
            packer.begin();
            self.capacity = packer.target();
        }
        shard::yield_if_needed().await;
        Ok(())
    }

    /// Writes a value that lies before its leaf, packed if that makes it shorter.
    async fn write_blob(&mut self, bytes: &[u8]) -> Result<BlobAt> {
        let packer = self.packer.as_mut().filter(|_| bytes.len() <= self.spec.packed_value_max);
        let Some(packer) = packer else { return self.out.blob(bytes).await };
        if !packer.blobs.is_due() {
            return self.out.blob(bytes).await;
        }
        let offset = self.out.position();
        let (mut crc, mut len) = (Digest::new(CrcAlgorithm::Crc32Iscsi), 0);
        for (index, piece) in bytes.chunks(PIECE_BYTES_MAX).enumerate() {
            let stored = pack_piece(&mut packer.encoder, piece);
            if index == 0 {
                let has_gained = stored.len() <= piece.len() / 8 * 7;
                packer.blobs.note(has_gained);
                if !has_gained {
                    return self.out.blob(bytes).await;
                }
            }
            crc.update(stored);
            len += stored.len();
            self.out.bytes(stored).await?;
        }
        debug_assert!(len < bytes.len(), "a packed value is shorter");
        packer.add_saved(bytes.len() - len);
        let (crc, value_len) = (crc.finalize() as u32, bytes.len() as u32);
        Ok(BlobAt { file: 0, offset, len: len as u32, crc, value_len })
    }

    /// Writes the inner levels; returns the root and the number of levels.
    async fn write_inner(&mut self, level_first: &mut [u32]) -> Result<(Child, u32)> {
        let mut level = std::mem::replace(&mut self.inner, Level::new(1));
        if let (1, Some(root)) = (level.children(), self.first_leaf) {
            return Ok((root, 0));
        }
        for first in level_first.iter_mut() {
            *first = self.out.unit()?;
            let number = level.number();
            let mut above = Level::new(number + 1);
            let nodes = level.finish(self.spec.id);
            let mut root = Child { position: *first, units: 1 };
            for (separator, bytes) in nodes.iter() {
                let position = self.out.unit()?;
                let node = self.out.node(bytes.len()).await?;
                node.copy_from_slice(bytes);
                seal(node, Identity { table: self.spec.id, position, level: number });
                root = Child { position, units: (bytes.len() / UNIT) as u8 };
                above.push(separator, root, self.spec.id);
                shard::yield_if_needed().await;
            }
            debug_assert!(
                nodes.len() as u64 == above.children(),
                "each node has an entry in the level above"
            );
            if nodes.len() == 1 {
                return Ok((root, number.into()));
            }
            level = above;
        }
        Err(Error::new(
            ErrorKind::InvalidInput,
            "the table has more levels than the format allows: write fewer entries into it",
        ))
    }

    async fn write_filter(&mut self) -> Result<u32> {
        let partitions = bloom::partitions(self.hashes.len);
        let mut filter = vec![0; partitions as usize * UNIT];
        for part in &self.hashes.parts {
            for &hash in part {
                let at = hash.partition(partitions) as usize * UNIT;
                bloom::insert(&mut filter[at..at + UNIT], hash, partitions);
            }
            shard::yield_if_needed().await;
        }
        for partition in filter.chunks_exact(UNIT) {
            let position = self.out.unit()?;
            let node = self.out.node(UNIT).await?;
            node.copy_from_slice(partition);
            seal(node, Identity { table: self.spec.id, position, level: FILTER });
            shard::yield_if_needed().await;
        }
        Ok(partitions)
    }
}

forebay::_debug_parts!(
    TableWriter, |table_writer|
    path: table_writer.dir.path().join(&table_writer.name),
    bytes: table_writer.bytes()
);

/// Inserts a part of a table into free memory of the cache, in the form in which gets look for it.
fn fill(engine: &Engine, spec: &TableSpec, offset: u64, bytes: &[u8]) {
    if let Some(cache) = spec.cache.as_ref().filter(|_| spec.fill) {
        cache.fill(engine, spec.id, offset, bytes);
    }
}

/// A value that is written before its leaf, with its expiry.
type Blob<'a> = (&'a [u8], Option<u64>);

/// The keys' hashes, in chunks, so that growing copies nothing.
#[derive(Debug, Default)]
struct Hashes {
    parts: Vec<Vec<Hash>>,
    len: u64,
}

impl Hashes {
    const PART: usize = 2048;

    fn push(&mut self, hash: Hash) {
        match self.parts.last_mut() {
            Some(part) if part.len() < Self::PART => part.push(hash),
            _ => {
                let mut part = Vec::with_capacity(Self::PART);
                part.push(hash);
                self.parts.push(part);
            }
        }
        self.len += 1;
    }

    fn memory_bytes(&self) -> usize {
        self.parts.len() * Self::PART * size_of::<Hash>()
    }
}

/// Returns a blob's place, with its length and checksum.
fn blob_at(offset: u64, bytes: &[u8]) -> BlobAt {
    // Values have 16 MiB at most.
    let len = bytes.len() as u32;
    BlobAt { file: 0, offset, len, crc: checksum(bytes), value_len: len }
}
