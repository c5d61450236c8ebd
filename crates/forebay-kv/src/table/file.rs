//! The file of a table. Other tables may refer to the long values in it, so it can outlast its keys.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay::{Block, Class, Dir, Engine, FileCache, FileEntry, FilePlace, FileUse};

use super::footer::Footer;
use super::open_table::{OpenHow, TABLE_GONE};
use crate::cache::Cache;
use crate::error::{Error, ErrorKind, Result};
use crate::names::table_name;
use crate::node::packed::unpack_blob;
use crate::node::{BlobAt, UNIT, Wrong, checksum};

/// The error code of open(2) for a file that does not exist.
const ENOENT: i32 = 2;

/// Maximum tables that are opened concurrently: each has up to four reads of 64 KiB in flight, of memory that it keeps.
const OPENED_AT_ONCE: usize = 32;

pub(super) const NO_CODEC: Wrong = "a compressed part in a table without compression";

/// A table's file. It stays as long as it has a holder, and is open at times: while it is read, and as long as no other table needs its
/// descriptor.
pub(crate) struct TableFile {
    /// Has the memory of unpacked leaves and values.
    engine: Engine,
    id: u32,
    bytes: u64,
    entry: FileEntry,
    pub(super) footer: Footer,
    pub(super) cache: Arc<Cache>,
    retired: AtomicBool,
}

/// Where a store's tables are, and which of their files are known.
pub(crate) struct Files {
    pub(super) engine: Engine,
    pub(super) dir: Dir,
    pub(super) cache: Arc<Cache>,
    files: FileCache,
    known: BTreeMap<u32, Arc<TableFile>>,
    /// The lengths of files that have values only.
    kept: BTreeMap<u32, u64>,
    /// A name that a test chose.
    #[cfg(test)]
    name: std::sync::Mutex<Option<String>>,
}

/// Returns how many files of tables one call opens concurrently.
pub(crate) fn opened_at_once(files: &FileCache) -> usize {
    OPENED_AT_ONCE.min(files.batch_files_max())
}

impl Files {
    /// Returns the files in the directory of a store's tables, initially empty.
    pub(crate) fn new(engine: &Engine, dir: &Dir, cache: &Arc<Cache>, files: &FileCache) -> Files {
        let (engine, dir, cache, files) = (engine.clone(), dir.clone(), cache.clone(), files.clone());
        Files {
            engine,
            dir,
            cache,
            files,
            known: BTreeMap::new(),
            kept: BTreeMap::new(),
            #[cfg(test)]
            name: std::sync::Mutex::default(),
        }
    }

    /// Returns the files in a directory, for a table of any name.
    #[cfg(test)]
    pub(super) async fn at(engine: &Engine, path: &Path, cache: &Arc<Cache>) -> Files {
        let dir = engine.open_dir(path.parent().unwrap()).await.unwrap();
        let name = std::sync::Mutex::new(Some(path.file_name().unwrap().to_str().unwrap().to_string()));
        let files = FileCache::new(engine, forebay::Open::read(), None);
        Files { name, ..Files::new(engine, &dir, cache, &files) }
    }

    /// Sets the lengths that files with values only have, by number.
    pub(crate) fn kept(mut self, bytes: &BTreeMap<u32, u64>) -> Files {
        self.kept = bytes.clone();
        self
    }

    /// Adds files whose footers need not be read again.
    pub(crate) fn add<'f>(&mut self, files: impl IntoIterator<Item = &'f Arc<TableFile>>) {
        self.known.extend(files.into_iter().map(|file| (file.id, file.clone())));
    }

    /// Returns a file that is known.
    pub(super) fn get(&self, id: u32) -> Option<Arc<TableFile>> {
        self.known.get(&id).cloned()
    }

    /// Returns how many files are opened concurrently.
    pub(super) fn at_once(&self) -> usize {
        opened_at_once(&self.files)
    }

    /// Returns the file of a table; `number` is the one that its nodes have. The caller [adds](Self::add) it before the next call
    /// for it.
    ///
    /// # Errors
    /// `MissingTable` if it is not there or has another length; `Corruption`, `Version`, `MissingFeature`
    /// and `Foreign` from its footer; the system's.
    pub(super) async fn open(
        &self,
        id: u32,
        number: u32,
        bytes: Option<u64>,
        how: OpenHow,
    ) -> Result<Arc<TableFile>> {
        if let Some(known) = self.get(id) {
            return Ok(known);
        }
        let name = table_name(id);
        #[cfg(test)]
        let name = self.name.lock().ok().and_then(|mut chosen| chosen.take()).unwrap_or(name);
        let entry = self.files.file_in(&self.dir, name)?;
        let path = entry.path().to_path_buf();
        let file = open(&entry, &FilePlace::NONE).await?;
        let found = file.len().await?;
        let expected = bytes.or_else(|| self.kept.get(&id).copied()).unwrap_or(found);
        if found != expected || found % UNIT as u64 != 0 || found < 4 * UNIT as u64 {
            let text = format!("this table has {found} bytes; the manifest says {expected}");
            return Err(Error::at(ErrorKind::MissingTable, &path, text));
        }
        let unit = file.read(found - UNIT as u64..found).class(how.class).await?;
        let footer = Footer::read(&unit, number, found, &path)?;
        Ok(TableFile::new(&self.engine, id, entry, footer, &self.cache))
    }
}

/// Opens a table's file, unless it is open.
async fn open(entry: &FileEntry, place: &FilePlace) -> Result<FileUse> {
    match entry.open(place).await {
        Err(error) if error.raw_os_error() == Some(ENOENT) => {
            Err(Error::at(ErrorKind::MissingTable, entry.path(), TABLE_GONE))
        }
        other => Ok(other?),
    }
}

impl TableFile {
    /// Returns a file with its footer.
    pub(super) fn new(
        engine: &Engine,
        id: u32,
        entry: FileEntry,
        footer: Footer,
        cache: &Arc<Cache>,
    ) -> Arc<TableFile> {
        let bytes = (u64::from(footer.position) + 1) * UNIT as u64;
        let (engine, cache, retired) = (engine.clone(), cache.clone(), AtomicBool::new(false));
        Arc::new(TableFile { engine, id, bytes, entry, footer, cache, retired })
    }

    /// Returns the number of the table that wrote it.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns its length.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn path(&self) -> &Path {
        self.entry.path()
    }

    /// Returns the file if it is open.
    pub(crate) fn if_open(&self) -> Option<FileUse> {
        self.entry.get()
    }

    /// Returns the file, which is opened if it is not open. `place` is the caller's, if it has one.
    ///
    /// # Errors
    /// `MissingTable` if it is not there any more; the system's.
    pub(crate) async fn opened(&self, place: &FilePlace) -> Result<FileUse> {
        open(&self.entry, place).await
    }

    /// Marks the file for removal: no table refers to it any more. When its last holder drops it, its path is added to
    /// [`Cache::removals`].
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    pub(super) fn corrupt(&self, offset: u64, text: impl Into<String>) -> Error {
        Error::corrupt(self.path(), offset, text)
    }

    /// Converts an error of a read; reports a table that is shorter than it was.
    fn read_error(&self, error: forebay::Error, offset: u64) -> Error {
        match error.kind() {
            forebay::ErrorKind::UnexpectedEof { .. } => self.too_short(offset),
            _ => error.into(),
        }
    }

    fn too_short(&self, offset: u64) -> Error {
        self.corrupt(offset, "the table ends too soon: it was cut after it was written")
    }

    /// Converts an error of a walk; reports a table that is shorter than it was.
    pub(super) fn walk_error(&self, error: Error) -> Error {
        let cause = error.cause();
        let is_short =
            cause.is_some_and(|cause| matches!(cause.kind(), forebay::ErrorKind::UnexpectedEof { .. }));
        match cause.and_then(forebay::Error::range).filter(|_| is_short) {
            Some((offset, _)) => self.too_short(offset),
            None => error,
        }
    }

    pub(super) async fn read(&self, range: Range<u64>, class: Class) -> Result<Block> {
        let offset = range.start;
        let file = self.opened(&FilePlace::NONE).await?;
        loop {
            let read = file.read(range.clone()).class(class).await;
            match read.map_err(|error| self.read_error(error, offset)) {
                Err(error) if self.cache.gives_way(&error) => {}
                read => return read,
            }
        }
    }

    /// Checks that a blob can lie in this file.
    pub(super) fn check_blob_place(&self, blob: BlobAt) -> Result<(), Wrong> {
        let (begin, end) = (UNIT as u64, u64::from(self.footer.leaf_end) * UNIT as u64);
        let fits = blob.offset >= begin && blob.offset + u64::from(blob.len) <= end;
        if fits { Ok(()) } else { Err("a value's place is outside of the table") }
    }

    /// Checks the length and the checksum of a blob of this file.
    pub(super) fn check_blob(&self, blob: BlobAt, bytes: &[u8]) -> Result<()> {
        if bytes.len() == blob.len as usize && checksum(bytes) == blob.crc {
            Ok(())
        } else {
            Err(self.corrupt(blob.offset, "a value's checksum is wrong"))
        }
    }

    /// Offers a checked leaf or value of this file to the cache.
    pub(super) fn offer(&self, offset: u64, block: &Block) {
        self.cache.offer(&self.engine, self.id, offset, block);
    }

    /// Returns a value from its checked blob in this file.
    pub(super) fn unpacked_blob(&self, blob: BlobAt, stored: Block) -> Result<Block> {
        if !blob.is_packed() {
            return Ok(stored);
        }
        let wrong = |wrong| self.corrupt(blob.offset, wrong);
        let packing = self.footer.packing.as_ref().ok_or_else(|| wrong(NO_CODEC))?;
        self.filled(blob.value_len as usize, |bytes| {
            unpack_blob(&stored, packing.codec, bytes).map_err(wrong)
        })
    }

    /// Returns I/O memory of `len` bytes that `fill` has filled.
    pub(super) fn filled(&self, len: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Block> {
        let mut block = loop {
            match self.engine.block(len).map_err(Error::from) {
                Err(error) if self.cache.gives_way(&error) => {}
                block => break block?,
            }
        };
        fill(&mut block)?;
        Ok(block.freeze())
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        if *self.retired.get_mut() {
            self.cache.removals().push(self.path().to_path_buf());
        }
    }
}

forebay::_debug_parts!(TableFile, |table_file| path: table_file.path());
