//! Opening a sorted file that no store has yet.

use std::path::Path;
use std::sync::Arc;

use forebay::{Class, Engine, File, FileCache};

use super::cursor::{CursorHow, Direction};
use super::file::TableFile;
use super::footer::{Footer, HeaderFound, NO_KEYSPACE, number, read_header};
use super::open_table::known_bytes;
use super::pinned::PinnedParts;
use super::{Table, TableMeta};
use crate::cache::{Cache, PinPurpose};
use crate::error::{Error, ErrorKind, Result};
use crate::node::UNIT;

/// Units of the shortest table: header, a leaf, a filter partition and the footer.
const UNITS_MIN: u64 = 4;

impl Table {
    /// Opens a sorted file as a table of this number and keyspace. Reads its two ends and the way to its first and
    /// last key; pins nothing.
    ///
    /// # Errors
    /// `Foreign` for another kind of file, `Corruption` for one that was not finished, was cut or is damaged; `Version`,
    /// `MissingFeature`; the system's.
    pub(crate) async fn open_sorted(
        engine: &Engine,
        file: &File,
        (id, keyspace): (u32, u32),
        (cache, files): (&Arc<Cache>, &FileCache),
        class: Class,
    ) -> Result<Arc<Table>> {
        let (path, bytes) = (file.path(), file.len().await?);
        check_header(&file.read_up_to(0..UNIT as u64).class(class).await?, bytes, path)?;
        let footer = if bytes % UNIT as u64 != 0 || bytes < UNITS_MIN * UNIT as u64 {
            None
        } else {
            let unit = file.read(bytes - UNIT as u64..bytes).class(class).await?;
            match Footer::read(&unit, number(&unit, id), bytes, path) {
                Err(error) if error.kind() == ErrorKind::Corruption => None,
                footer => Some(footer?),
            }
        };
        let sorted = footer.as_ref().and_then(|footer| footer.sorted.clone());
        let (Some(footer), Some(sorted)) = (footer, sorted) else {
            let text = "this sorted file has no footer at its end: it was not finished, or was cut. Finish it before it is \
                        ingested, or write it again";
            return Err(Error::corrupt(path, bytes.saturating_sub(UNIT as u64), text));
        };
        let meta = TableMeta {
            id,
            number: footer.table,
            keyspace,
            bytes,
            entries: footer.entries,
            deleted: footer.deleted,
            expiring: footer.expiring,
            expires_s: sorted.expires_s,
            smallest: Box::default(),
            largest: Box::default(),
            values: Box::default(),
        };
        let known = cache.must_pin(PinPurpose::Tables, known_bytes(&meta));
        let own = TableFile::new(engine, id, files.holding(file.clone()), footer, cache);
        let (far, pinned) = (Box::default(), PinnedParts::default());
        let table = Arc::new(Table { meta, own, far, pinned, _known: known });
        let smallest = table.end(class, Direction::Forward).await?;
        let largest = table.end(class, Direction::Backward).await?;
        if smallest > largest {
            return Err(table.corrupt(UNIT as u64, "the first key is above the last"));
        }
        let mut table = Arc::into_inner(table).ok_or_else(|| {
            Error::at(ErrorKind::InvalidInput, path, "this sorted file is still being read")
        })?;
        (table.meta.smallest, table.meta.largest) = (smallest, largest);
        Ok(Arc::new(table))
    }

    /// Returns the length in bytes of the longest value of a sorted file; 0 for other tables.
    pub(crate) fn sorted_value_bytes_max(&self) -> u64 {
        self.footer.sorted.as_ref().map_or(0, |sorted| sorted.value_bytes_max.into())
    }

    /// Returns the first key in a direction.
    async fn end(self: &Arc<Self>, class: Class, direction: Direction) -> Result<Box<[u8]>> {
        let how =
            CursorHow { class, direction, reads_max: 1, read_bytes_max: UNIT as u32, ..CursorHow::merge() };
        let mut cursor = self.cursor(how);
        if cursor.next_key().await? {
            Ok(cursor.key().into())
        } else {
            Err(self.corrupt(0, "the sorted file has no entry"))
        }
    }
}

/// Checks that a file starts like a sorted file.
fn check_header(unit: &[u8], bytes: u64, path: &Path) -> Result<()> {
    match read_header(unit, 0) {
        HeaderFound::Ours { keyspace: NO_KEYSPACE, .. } => Ok(()),
        HeaderFound::Version(found) => {
            let text = format!(
                "a sorted file of version {found} of the format, which this program does not read. Write it with the \
                 version of forebay-kv that ingests it, or ingest it with a later one"
            );
            Err(Error::at(ErrorKind::Version { found }, path, text))
        }
        HeaderFound::Empty => {
            let text = format!(
                "{bytes} bytes, none of them written yet: finish the sorted file before it is ingested"
            );
            Err(Error::corrupt(path, 0, text))
        }
        HeaderFound::Ours { .. } | HeaderFound::Foreign => {
            let text = "this does not begin like a sorted file: only files that a `SortedFile` has written are ingested, \
                        not tables of a store";
            Err(Error::at(ErrorKind::Foreign, path, text))
        }
    }
}
