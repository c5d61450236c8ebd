//! Opening a table, and pinning the parts of it that fit into the cache.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use forebay::{Class, FilePlace};

use super::file::{Files, TableFile};
use super::footer::NO_KEYSPACE;
use super::pinned::{PartReader, PinnedParts};
use super::{Table, TableMeta};
use crate::cache::{Cache, FilterOwner, Pin, PinPurpose};
use crate::error::Result;
use crate::node::UNIT;
use crate::wait::all;

/// Parameters for opening a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenHow {
    /// The I/O class of the reads.
    pub(crate) class: Class,
    /// Whether the filter is pinned, if it fits, before the lowest inner level: for tables that seldom have a requested key.
    pub(crate) pin_filter: bool,
}

impl Default for OpenHow {
    fn default() -> OpenHow {
        OpenHow { class: Class::DEFAULT, pin_filter: true }
    }
}

impl Table {
    /// Opens the table that the manifest describes as `meta`, with the other files that have its values. Pins the parts that fit
    /// into the cache: the upper levels from the root down, the filter, then the lowest inner level.
    ///
    /// # Errors
    /// `MissingTable` if a file is not there or has another length; `Corruption`, `Version`, `MissingFeature` and
    /// `Foreign`; the system's.
    pub(crate) async fn open(files: &mut Files, meta: &TableMeta, how: OpenHow) -> Result<Arc<Table>> {
        let own = Own::open(files, meta, how).await?;
        files.add([&own.file]);
        open_values(files, &[(meta, how)]).await?;
        Ok(own.table(files, meta))
    }

    /// Opens tables as [`open`](Self::open) does, several concurrently. Returns them in their order.
    pub(crate) async fn open_all(
        files: &mut Files,
        tables: &[(&TableMeta, OpenHow)],
    ) -> Result<Vec<Arc<Table>>> {
        let mut opened = Vec::with_capacity(tables.len());
        for some in tables.chunks(files.at_once()) {
            let known: &Files = files;
            let opens: Vec<_> =
                some.iter().map(|(meta, how)| Box::pin(Own::open(known, meta, *how))).collect();
            for ((meta, how), own) in some.iter().zip(all(opens).await) {
                opened.push(match own {
                    // Memory and descriptors suffice for one.
                    Err(error) if error.is_crowded() => Own::open(files, meta, *how).await?,
                    own => own?,
                });
            }
        }
        files.add(opened.iter().map(|own| &own.file));
        open_values(files, tables).await?;
        Ok(tables.iter().zip(opened).map(|((meta, _), own)| own.table(files, meta)).collect())
    }

    /// Reads the filter of a table of the last level and keeps it, if such filters may use that much memory, until the memory is
    /// needed for something else. Only one such call for a table may be under way.
    ///
    /// A filter that cannot be read is not kept: gets do without it, and a verification reports the damage.
    pub(crate) async fn keep_filter(self: &Arc<Self>, class: Class) {
        if self.pinned.has_filter() {
            return;
        }
        let Some(pin) = self.cache.pin(PinPurpose::LastFilters, self.filter_bytes()) else { return };
        let Ok(file) = self.opened(&FilePlace::NONE).await else { return };
        let reader = PartReader { file: &file, footer: &self.footer, class };
        if let Ok(Some(bytes)) = self.pinned.keep_filter(&reader, pin).await {
            let owner: Weak<Table> = Arc::downgrade(self);
            if !self.cache.keep_last_filter(owner, bytes) {
                self.give_back();
            }
        }
    }

    fn filter_bytes(&self) -> u64 {
        u64::from(self.footer.filter_partitions) * UNIT as u64
    }

    /// Returns the bytes of the filter if it is not in memory, and 0 if it is.
    pub(crate) fn filter_bytes_left_out(&self) -> u64 {
        if self.pinned.has_filter() { 0 } else { self.filter_bytes() }
    }
}

/// A table whose values may lie in files that are not open yet.
struct Own {
    file: Arc<TableFile>,
    pinned: PinnedParts,
    known: Pin,
}

impl Own {
    async fn open(files: &Files, meta: &TableMeta, how: OpenHow) -> Result<Own> {
        let own = files.open(meta.id, meta.number, Some(meta.bytes), how).await?;
        let footer = &own.footer;
        let keyspace = if meta.number == meta.id { meta.keyspace } else { NO_KEYSPACE };
        let counts = (footer.keyspace, footer.entries, footer.deleted, footer.expiring);
        if counts != (keyspace, meta.entries, meta.deleted, meta.expiring) {
            let text = "the table's footer and the manifest contradict each other";
            return Err(own.corrupt(meta.bytes - UNIT as u64, text));
        }
        let known = files.cache.must_pin(PinPurpose::Tables, known_bytes(meta));
        let file = own.opened(&FilePlace::NONE).await?;
        let reader = PartReader { file: &file, footer, class: how.class };
        let pinned = pin(&reader, &files.cache, how.pin_filter).await?;
        Ok(Own { file: own, pinned, known })
    }

    /// Returns the table. All files that have its values are known.
    fn table(self, files: &Files, meta: &TableMeta) -> Arc<Table> {
        let far = meta.values.iter().filter(|(id, _)| *id != meta.id);
        let far = far.filter_map(|(id, _)| files.get(*id)).collect();
        Arc::new(Table { meta: meta.clone(), own: self.file, far, pinned: self.pinned, _known: self.known })
    }
}

/// Opens the files that have values of tables, several concurrently, except for the known files.
async fn open_values(files: &mut Files, tables: &[(&TableMeta, OpenHow)]) -> Result<()> {
    let mut missing = BTreeMap::new();
    for (meta, how) in tables {
        let others = meta.values.iter().filter(|(id, _)| files.get(*id).is_none());
        missing.extend(others.map(|(id, _)| (*id, *how)));
    }
    let missing: Vec<(u32, OpenHow)> = missing.into_iter().collect();
    for some in missing.chunks(files.at_once()) {
        let known: &Files = files;
        let opens: Vec<_> = some.iter().map(|(id, how)| Box::pin(known.open(*id, *id, None, *how))).collect();
        for ((id, how), file) in some.iter().zip(all(opens).await) {
            let file = match file {
                Err(error) if error.is_crowded() => files.open(*id, *id, None, *how).await?,
                file => file?,
            };
            files.add([&file]);
        }
    }
    Ok(())
}

impl FilterOwner for Table {
    fn give_back(&self) {
        self.pinned.give_filter_back();
    }
}

/// Bytes of memory of a table's metadata, its keys apart.
pub(crate) const TABLE_MEMORY: u64 = 2048;

/// Returns the bytes of memory of an open table apart from its contents, including its memory in the manifest: its keys in both, an
/// open file, and the structures that hold them.
pub(super) fn known_bytes(meta: &TableMeta) -> u64 {
    // Files that only have values belong to several tables; each counts a part of them.
    2 * (meta.smallest.len() + meta.largest.len()) as u64 + TABLE_MEMORY + 128 * meta.values.len() as u64
}

/// The error text for a table without a file.
pub(crate) const TABLE_GONE: &str = "the manifest names this table; it is gone";

async fn pin(reader: &PartReader<'_>, cache: &Arc<Cache>, pin_filter: bool) -> Result<PinnedParts> {
    let mut pinned = PinnedParts::default();
    pin_parts(&mut pinned, reader, cache, pin_filter).await?;
    if (1..=usize::from(reader.footer.root_level())).any(|level| !pinned.has_level(level)) {
        pinned.note_left_out(cache.must_pin(PinPurpose::LeftOut, 1));
    }
    Ok(pinned)
}

async fn pin_parts(
    pinned: &mut PinnedParts,
    reader: &PartReader<'_>,
    cache: &Arc<Cache>,
    pin_filter: bool,
) -> Result<()> {
    let root_level = reader.footer.root_level();
    let level_bytes = |level| {
        let area = reader.footer.level(level).unwrap_or(0..0);
        (area.end - area.start) * UNIT as u64
    };
    for level in (2..=root_level).rev() {
        let Some(pin) = cache.pin(PinPurpose::TopLevels, level_bytes(level)) else { return Ok(()) };
        pinned.add_level(reader, level, pin).await?;
    }
    let filter_bytes = u64::from(reader.footer.filter_partitions) * UNIT as u64;
    if pin_filter && let Some(pin) = cache.pin(PinPurpose::Filters, filter_bytes) {
        pinned.add_filter(reader, pin).await?;
    }
    if root_level > 0
        && let Some(pin) = cache.pin(PinPurpose::TopLevels, level_bytes(1))
    {
        pinned.add_level(reader, 1, pin).await?;
    }
    Ok(())
}
