//! Opening a table, and pinning the parts of it that the cache has room for.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay::{Class, Dir, Engine, File, Open, Pending};

use super::footer::Footer;
use super::pinned::{Pinned, Reading};
use super::{Table, TableMeta};
use crate::cache::{Cache, Pinning};
use crate::error::{Error, ErrorKind, Result};
use crate::names::table_name;
use crate::node::UNIT;

/// Parameters for opening a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenHow {
    /// The I/O class of the reads.
    pub(crate) class: Class,
    /// The home shard of the file; any if `None`.
    pub(crate) shard: Option<usize>,
    /// Whether the filter is pinned, if there is room: for tables that seldom have a requested key.
    pub(crate) pin_filter: bool,
}

impl Default for OpenHow {
    fn default() -> OpenHow {
        OpenHow { class: Class::DEFAULT, shard: None, pin_filter: true }
    }
}

impl OpenHow {
    fn open(self) -> Open {
        match self.shard {
            Some(shard) => Open::read().shard(shard),
            None => Open::read(),
        }
    }
}

impl Table {
    /// Opens the table at `path` that the manifest describes as `meta`. Pins the parts that the cache has
    /// room for: the upper levels from the root down, the filter, then the lowest inner level.
    ///
    /// # Errors
    /// `MissingTable` if it is not there or has another length; `Corruption`, `Version`, `MissingFeature` and
    /// `Foreign`; the system's.
    pub(crate) async fn open(
        engine: &Engine,
        path: &Path,
        meta: &TableMeta,
        cache: &Arc<Cache>,
        how: OpenHow,
    ) -> Result<Arc<Table>> {
        Table::opened(engine, engine.open(path, how.open()), path, meta, cache, how).await
    }

    /// As [`open`](Table::open), in the directory of an open store's tables.
    pub(crate) async fn open_in(
        engine: &Engine,
        dir: &Dir,
        meta: &TableMeta,
        cache: &Arc<Cache>,
        how: OpenHow,
    ) -> Result<Arc<Table>> {
        let name = table_name(meta.id);
        let path = dir.path().join(&name);
        Table::opened(engine, dir.open(name, how.open()), &path, meta, cache, how).await
    }

    async fn opened(
        engine: &Engine,
        file: Pending<File>,
        path: &Path,
        meta: &TableMeta,
        cache: &Arc<Cache>,
        how: OpenHow,
    ) -> Result<Arc<Table>> {
        let file = match file.await {
            Err(error) if error.raw_os_error() == Some(ENOENT) => {
                return Err(Error::at(ErrorKind::MissingTable, path, TABLE_GONE));
            }
            other => other?,
        };
        let bytes = file.len().await?;
        if bytes != meta.bytes || bytes % UNIT as u64 != 0 || bytes < 4 * UNIT as u64 {
            let text = format!("this table has {bytes} bytes; the manifest says {}", meta.bytes);
            return Err(Error::at(ErrorKind::MissingTable, path, text));
        }
        let unit = file.read(bytes - UNIT as u64..bytes).class(how.class).await?;
        let footer = Footer::read(&unit, meta.id, bytes, path)?;
        let counts = (footer.keyspace, footer.entries, footer.deleted, footer.expiring);
        if counts != (meta.keyspace, meta.entries, meta.deleted, meta.expiring) {
            let text = "the table's footer and the manifest contradict each other";
            return Err(Error::corrupt(path, bytes - UNIT as u64, text));
        }
        let known = cache.must_pin(Pinning::Tables, known_bytes(meta));
        let reading = Reading { file: &file, footer: &footer, class: how.class };
        let pinned = pin(&reading, cache, how.pin_filter).await?;
        Ok(Arc::new(Table {
            engine: engine.clone(),
            meta: meta.clone(),
            file,
            footer,
            pinned,
            _known: known,
            cache: cache.clone(),
            retired: AtomicBool::new(false),
        }))
    }
}

/// Returns the bytes of memory that an open table takes apart from its contents, those in the manifest
/// included: its keys in both, an open file, and the structures that hold them.
fn known_bytes(meta: &TableMeta) -> u64 {
    2 * (meta.smallest.len() + meta.largest.len()) as u64 + 2048
}

/// The error text for a table without a file.
pub(crate) const TABLE_GONE: &str = "the manifest names this table; it is gone";

/// The error code of open(2) for a file that does not exist.
const ENOENT: i32 = 2;

async fn pin(reading: &Reading<'_>, cache: &Arc<Cache>, pin_filter: bool) -> Result<Pinned> {
    let mut pinned = Pinned::default();
    let root_level = reading.footer.root_level();
    let level_bytes = |level| {
        let area = reading.footer.level(level).unwrap_or(0..0);
        (area.end - area.start) * UNIT as u64
    };
    for level in (2..=root_level).rev() {
        let Some(pin) = cache.pin(Pinning::TopLevels, level_bytes(level)) else { return Ok(pinned) };
        pinned.add_level(reading, level, pin).await?;
    }
    let filter_bytes = u64::from(reading.footer.filter_partitions) * UNIT as u64;
    if pin_filter && let Some(pin) = cache.pin(Pinning::Filters, filter_bytes) {
        pinned.add_filter(reading, pin).await?;
    }
    if root_level > 0
        && let Some(pin) = cache.pin(Pinning::TopLevels, level_bytes(1))
    {
        pinned.add_level(reading, 1, pin).await?;
    }
    Ok(pinned)
}
