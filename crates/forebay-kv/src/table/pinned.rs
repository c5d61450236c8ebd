//! The parts of a table that stay in memory: levels from the top down, and the filter.

use std::ops::Range;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use forebay::{Block, Class, File, shard};

use super::footer::Footer;
use crate::cache::Pin;
use crate::error::{Error, Result};
use crate::node::{Child, FILTER, Identity, Node, UNIT, check};
use crate::wait::all;

/// The parts of a table that are always in memory, checked when they were read.
#[derive(Debug, Default)]
pub(super) struct PinnedParts {
    /// The inner levels, the lowest first; `None` for one that is not pinned.
    levels: Vec<Option<Part>>,
    filter: Option<Part>,
    /// The filter of a table of the last level, which gives way when its memory is needed.
    last_filter: ArcSwapOption<Part>,
    /// Says that an inner level is not pinned.
    _left_out: Option<Pin>,
}

#[derive(Debug)]
struct Part {
    chunks: Vec<Chunk>,
    pin: Pin,
}

/// Whole nodes, in the I/O memory that they were read into. Pinned parts share their memory with the blocks of the cache, so one
/// can grow as the other shrinks.
#[derive(Debug)]
struct Chunk {
    /// The number of its first unit.
    first: u32,
    block: Block,
}

/// Units of a chunk, unless a single node has more. A power of two, as I/O memory has such sizes.
const CHUNK_UNITS: u64 = 16;
/// Bytes of one read where a whole area is read once.
const READ_BYTES: usize = 64 << 10;
/// The number of reads in flight.
const READS: usize = 4;
/// The offset of a node's length in units.
const UNITS_AT: usize = 13;

impl PinnedParts {
    /// Returns a node of an inner level, if that level is pinned.
    #[inline]
    pub(super) fn node(&self, child: Child, level: u8) -> Option<&[u8]> {
        let part = self.levels.get(usize::from(level).checked_sub(1)?)?.as_ref()?;
        part.node(child.position, child.len())
    }

    /// Returns whether this inner level is pinned.
    pub(super) fn has_level(&self, level: usize) -> bool {
        matches!(level.checked_sub(1).and_then(|index| self.levels.get(index)), Some(Some(_)))
    }

    /// Looks into the partition of the filter at a unit, if the filter is in memory.
    #[inline]
    pub(super) fn look_into_filter<T>(&self, position: u32, look: impl FnOnce(&[u8]) -> T) -> Option<T> {
        if let Some(filter) = &self.filter {
            return filter.node(position, UNIT).map(look);
        }
        let filter = self.last_filter.load();
        let Some(part) = &*filter else { return None };
        part.node(position, UNIT).map(look)
    }

    /// Returns whether the filter is in memory.
    pub(super) fn has_filter(&self) -> bool {
        self.filter.is_some() || self.last_filter.load().is_some()
    }

    /// Returns the bytes of memory of the pinned parts.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.levels.iter().flatten().chain(&self.filter).map(Part::bytes).sum()
    }

    /// Reads, checks and pins an inner level. Nodes of many units may need more memory than their length: if the cache does not
    /// grant it, the level is not pinned.
    pub(super) async fn add_level(&mut self, reader: &PartReader<'_>, level: u8, pin: Pin) -> Result<()> {
        let Some(area) = reader.footer.level(level) else { return Ok(()) };
        let Some(part) = reader.read(area, level, pin).await? else { return Ok(()) };
        self.levels.resize_with(self.levels.len().max(level.into()), || None);
        if let Some(place) = self.levels.get_mut(usize::from(level) - 1) {
            *place = Some(part);
        }
        Ok(())
    }

    /// Reads, checks and pins the filter.
    pub(super) async fn add_filter(&mut self, reader: &PartReader<'_>, pin: Pin) -> Result<()> {
        self.filter = reader.filter(pin).await?;
        Ok(())
    }

    /// Notes that an inner level is not pinned.
    pub(super) fn note_left_out(&mut self, pin: Pin) {
        self._left_out = Some(pin);
    }

    /// Reads and checks the filter, and keeps it until [`give_filter_back`](Self::give_filter_back). Returns its bytes, unless the
    /// cache does not grant them.
    pub(super) async fn keep_filter(&self, reader: &PartReader<'_>, pin: Pin) -> Result<Option<u64>> {
        let Some(part) = reader.filter(pin).await? else { return Ok(None) };
        let bytes = part.pin.bytes();
        self.last_filter.store(Some(Arc::new(part)));
        Ok(Some(bytes))
    }

    pub(super) fn give_filter_back(&self) {
        self.last_filter.store(None);
    }
}

impl Part {
    #[inline]
    fn node(&self, position: u32, len: usize) -> Option<&[u8]> {
        let behind = self.chunks.partition_point(|chunk| chunk.first <= position);
        let chunk = self.chunks.get(behind.checked_sub(1)?)?;
        let begin = ((position - chunk.first) as usize).checked_mul(UNIT)?;
        chunk.block.get(begin..begin.checked_add(len)?)
    }

    #[cfg(test)]
    fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.block.pinned_bytes() as u64).sum()
    }
}

/// The source of the parts to read.
pub(super) struct PartReader<'t> {
    pub(super) file: &'t File,
    pub(super) footer: &'t Footer,
    pub(super) class: Class,
}

impl PartReader<'_> {
    /// Reads and checks the filter; returns `None` as [`read`](Self::read) does.
    async fn filter(&self, pin: Pin) -> Result<Option<Part>> {
        let first = u64::from(self.footer.filter_first);
        self.read(first..first + u64::from(self.footer.filter_partitions), FILTER, pin).await
    }

    /// Reads and checks nodes to pin; returns `None` if the cache does not grant their memory.
    async fn read(&self, area: Range<u64>, level: u8, mut pin: Pin) -> Result<Option<Part>> {
        let mut chunks = Vec::new();
        let (mut at, mut least, mut reads) = (area.start, 1, READS);
        while at < area.end {
            let planned = planned(at..area.end, least, reads);
            let blocks = planned.iter().map(|units| {
                let bytes = units.start * UNIT as u64..units.end * UNIT as u64;
                Box::pin(self.file.read(bytes).class(self.class))
            });
            let blocks = all(blocks.collect()).await;
            for (units, block) in planned.into_iter().zip(blocks) {
                let block = block?;
                let whole = whole_units(&block);
                if whole == 0 && units.end < area.end {
                    // The node alone is longer than the read.
                    (least, reads) = (units_of(&block, 0), 1);
                    break;
                }
                let whole = if whole == 0 { units.end - at } else { whole };
                least = 1;
                let nodes = block.get(..whole as usize * UNIT).unwrap_or(&block);
                self.check_nodes(nodes, at as u32, level, |_| Ok(())).await?;
                let waste = (block.pinned_bytes() as u64).saturating_sub(whole * UNIT as u64);
                if waste > 0 && !pin.grow(waste) {
                    return Ok(None);
                }
                debug_assert!(
                    whole > 0 && at + whole <= area.end,
                    "chunks follow each other within their area"
                );
                chunks.push(Chunk { first: at as u32, block });
                at += whole;
                if at < units.end {
                    // A node extends beyond the read, so the next reads start elsewhere.
                    reads = 1;
                    break;
                }
            }
        }
        Ok(Some(Part { chunks, pin }))
    }

    /// Returns the bytes of a range of units.
    pub(super) async fn bytes(&self, area: Range<u64>) -> Result<Box<[u8]>> {
        let range = area.start * UNIT as u64..area.end * UNIT as u64;
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        let offset = range.start;
        let mut scan =
            self.file.scan().range(range).request_bytes(READ_BYTES).depth(READS).class(self.class).start();
        while let Some(block) = scan.next().await.transpose()? {
            bytes.extend_from_slice(&block);
        }
        if bytes.len() != bytes.capacity() {
            let end = offset + bytes.len() as u64;
            return Err(Error::corrupt(self.file.path(), end, "the table ends too soon"));
        }
        Ok(bytes.into_boxed_slice())
    }

    /// Checks adjacent nodes of one level.
    pub(super) async fn check_nodes(
        &self,
        bytes: &[u8],
        first: u32,
        level: u8,
        mut also: impl FnMut(Node<'_>) -> Result<(), &'static str>,
    ) -> Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            let position = first + (at / UNIT) as u32;
            let len = units_of(bytes, at) as usize * UNIT;
            let identity = Identity { table: self.footer.table, position, level };
            let node = bytes.get(at..at + len).ok_or("the node's length is invalid");
            let checked = node.and_then(|node| {
                check(node, identity)?;
                if level == FILTER { Ok(()) } else { also(Node::of(node)?) }
            });
            checked.map_err(|wrong| {
                Error::corrupt(self.file.path(), u64::from(position) * UNIT as u64, wrong)
            })?;
            at += len;
            shard::yield_if_needed().await;
        }
        Ok(())
    }
}

/// Returns the units of the next chunks of an area, the first of which has at least `least`.
fn planned(mut area: Range<u64>, mut least: u64, chunks: usize) -> Vec<Range<u64>> {
    let mut planned = Vec::with_capacity(chunks);
    while !area.is_empty() && planned.len() < chunks {
        let rest = area.end - area.start;
        // The largest power of two that fits into the rest.
        let units = least.max(1 << CHUNK_UNITS.min(rest).ilog2()).min(rest);
        planned.push(area.start..area.start + units);
        (area.start, least) = (area.start + units, 1);
    }
    planned
}

/// Returns the number of units of the node at `at`, from its own length field.
fn units_of(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at + UNITS_AT).map_or(1, |units| u64::from(*units).max(1))
}

/// Returns the units of the nodes that are complete in `bytes`.
fn whole_units(bytes: &[u8]) -> u64 {
    let (mut whole, all) = (0, (bytes.len() / UNIT) as u64);
    while whole < all {
        let units = units_of(bytes, whole as usize * UNIT);
        if whole + units > all {
            break;
        }
        whole += units;
    }
    whole
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use forebay::{Config, Engine};

    use crate::cache::Cache;
    use crate::node::{FILTER, UNIT};
    use crate::table::{
        Entry, Files, FilterUse, GetHow, Hit, OpenHow, Probe, Table, TableMeta, TableSpec, TableWriter,
    };

    fn scene() -> (Engine, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        (Engine::start(Config::new().shards(1)).unwrap(), dir)
    }

    async fn write(engine: &Engine, path: &Path, keys: impl Iterator<Item = Vec<u8>>) -> TableMeta {
        let mut writer = TableWriter::create(engine, path, TableSpec::new(1, 0)).await.unwrap();
        for key in keys {
            writer.add(&key, Entry::Value { bytes: &[7; 100], expires_s: None }).await.unwrap();
        }
        writer.finish().await.unwrap()
    }

    fn how(filter: FilterUse) -> GetHow {
        GetHow { now_s: 0, filter, fill: true }
    }

    fn reads(engine: &Engine) -> u64 {
        engine.stats().wait().unwrap().flows.iter().map(|flow| flow.reads).sum()
    }

    /// Returns the number of reads of lookups of absent keys.
    async fn misses(engine: &Engine, table: &Arc<Table>, filter: FilterUse, keys: u32) -> u64 {
        let before = reads(engine);
        for number in 0..keys {
            let key = (number * 50 + 1).to_be_bytes();
            assert_eq!(table.get(&key, how(filter)).await.unwrap(), None);
        }
        reads(engine) - before
    }

    #[test]
    fn a_filter_is_read_part_by_part_and_the_last_one_only_where_it_is_in_memory() {
        futures::executor::block_on(async {
            let ((engine, dir), keys) = (scene(), 20_000);
            let path = dir.path().join("1.fkv");
            let meta = write(&engine, &path, (0..keys).map(|key| (key * 2_u32).to_be_bytes().into())).await;
            let open = async |cache: &Arc<Cache>| {
                let mut files = Files::at(&engine, &path, cache).await;
                Table::open(&mut files, &meta, OpenHow::default()).await.unwrap()
            };
            let (pinned, free) = (Cache::new(64 << 20, 64 << 20), Cache::new(64 << 20, 0));
            let table = open(&pinned).await;
            let wrong = misses(&engine, &table, FilterUse::Read, 400).await;
            assert!(wrong < 16, "{wrong} reads for 400 keys that are not there, with a filter in memory");

            // Nothing is pinned: of the filter only the parts for the requested keys are read.
            let table = open(&free).await;
            let parts = u64::from(table.footer.filter_partitions);
            assert!(parts >= 6, "{parts}");
            let before = reads(&engine);
            assert_eq!(table.get(&1_u32.to_be_bytes(), how(FilterUse::Read)).await.unwrap(), None);
            assert!((1..=3).contains(&(reads(&engine) - before)));
            let first = misses(&engine, &table, FilterUse::Read, 400).await;
            assert!((parts - 1..parts + 24).contains(&first), "{first} reads, of {parts} parts and 16 nodes");
            // The parts are in memory now, and lookups that would not read them use them.
            let wrong = misses(&engine, &table, FilterUse::InMemory, 400).await;
            assert!(wrong < 16, "{wrong} reads with a filter in the cache");

            // A lookup that does not read the filter reads a leaf for each key, and no part of the filter.
            let none = Cache::new(64 << 20, 0);
            let table = open(&none).await;
            let leaves = misses(&engine, &table, FilterUse::InMemory, 400).await;
            assert!(leaves > 200, "{leaves} reads without a filter");
            let area = table.area(FILTER).unwrap();
            assert!(area.clone().all(|unit| none.peek(1, unit * UNIT as u64).is_none()));
        });
    }

    #[test]
    fn what_is_pinned_counts_with_the_memory_that_it_takes() {
        futures::executor::block_on(async {
            let (engine, dir) = scene();
            // Inner nodes of one unit, of several, and of more than a chunk.
            for (number, key_bytes) in [4, 3000, (16 << 10) - 4].into_iter().enumerate() {
                let path = dir.path().join(format!("{number}.fkv"));
                let key = |number: u32| {
                    // The keys differ in the first bytes and in the last, so that separators are long.
                    let mut key = vec![(number / 2) as u8; key_bytes];
                    key[..4].copy_from_slice(&(number / 2).to_be_bytes());
                    key.extend((number % 2).to_be_bytes());
                    key
                };
                let meta = write(&engine, &path, (0..300).map(key)).await;
                let cache = Cache::new(64 << 20, 64 << 20);
                let mut files = Files::at(&engine, &path, &cache).await;
                let table = Table::open(&mut files, &meta, OpenHow::default()).await.unwrap();
                let known = cache.stats().pinned.sum() - table.pinned.bytes();
                assert!(known >= (meta.smallest.len() + meta.largest.len()) as u64 * 2);
                let before = reads(&engine);
                for number in 0..300 {
                    let found = match table.get_cached(&key(number), how(FilterUse::Read)).unwrap() {
                        Probe::Done(found) => found,
                        Probe::NeedsRead(_) => table.get(&key(number), how(FilterUse::Read)).await.unwrap(),
                    };
                    assert!(matches!(found, Some(Hit::Value(value)) if *value == [7; 100]));
                }
                let leaves = u64::from(table.footer.leaf_end);
                assert!(reads(&engine) - before <= leaves, "only leaves are read");
                let size = table.footer.level(1).map_or(0, |area| area.end - area.start) * UNIT as u64;
                assert!(table.pinned.bytes() >= size);
                drop(table);
                assert_eq!(cache.stats().pinned.sum(), 0);
            }
        });
    }
}
