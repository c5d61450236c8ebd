//! [`SortedFile`]: entries in ascending order, written outside of a store for a later ingest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{Class, Dir, Engine, File, Lock, Open, Waitable};
use forebay_wal::parent_of;

use crate::cache::Cache;
use crate::engine::startup::random_id;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Compression;
use crate::record::{self, Change};
use crate::table::{Entry, NO_KEYSPACE, SORTED_NUMBER, TableMeta, TableSpec, TableWriter};
use crate::wait::Pending;

/// Bytes of one write, and the number of writes in flight.
const BUFFER_BYTES: usize = 128 << 10;
const DEPTH: usize = 2;
/// The longest value that is compressed: every store can compact such values.
const PACKED_VALUE_MAX: usize = 1 << 20;
const EEXIST: i32 = 17;

/// The settings of a [`SortedFile`].
///
/// ```
/// use forebay_kv::{Compression, SortedFileOptions};
///
/// let options = SortedFileOptions::new().compression(Compression::Lz4);
/// ```
#[derive(Clone, Debug)]
#[must_use = "give it to SortedFile::create"]
pub struct SortedFileOptions {
    leaf_bytes: u32,
    compression: Compression,
    class: Class,
    cache: Option<Arc<Cache>>,
}

impl SortedFileOptions {
    /// Returns the default settings.
    pub fn new() -> SortedFileOptions {
        SortedFileOptions {
            leaf_bytes: 4096,
            compression: Compression::None,
            class: Class::BACKGROUND,
            cache: None,
        }
    }

    /// Sets the target size of the file's leaves: a multiple of 4,096 from 4 to 32 KiB. Default: 4 KiB.
    pub fn leaf_bytes(mut self, bytes: u32) -> SortedFileOptions {
        self.leaf_bytes = bytes;
        self
    }

    /// Sets how leaves and values up to 1 MiB are compressed. A store that ingests the file keeps its own setting, and
    /// rewrites the file's entries with that when it compacts them. Default: [`Compression::None`].
    pub fn compression(mut self, compression: Compression) -> SortedFileOptions {
        self.compression = compression;
        self
    }

    /// Sets the I/O class of the writes. Default: [`Class::BACKGROUND`].
    pub fn class(mut self, class: Class) -> SortedFileOptions {
        self.class = class;
        self
    }

    /// Uses memory of a store's cache if the engine has none left.
    pub(crate) fn cache(mut self, cache: &Arc<Cache>) -> SortedFileOptions {
        self.cache = Some(cache.clone());
        self
    }
}

impl Default for SortedFileOptions {
    fn default() -> SortedFileOptions {
        SortedFileOptions::new()
    }
}

/// Checks that entries are added in ascending order, each to its end.
#[derive(Debug, Default)]
pub(crate) struct OrderCheck {
    last: Vec<u8>,
    entries: u64,
    failed: Option<Error>,
}

impl OrderCheck {
    /// Returns the number of entries added.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Makes every further entry fail with this error.
    pub(crate) fn fail(&mut self, error: Option<Error>) {
        self.failed = error;
    }

    /// Returns the error of an earlier entry.
    pub(crate) fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Adds an entry of `whole` by `add`. If one fails, or is dropped unfinished, every further one fails.
    pub(crate) async fn add(
        &mut self,
        whole: &str,
        key: &[u8],
        add: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        self.check()?;
        let text = format!("an entry of this {whole} was not added in full, so it cannot continue");
        self.failed = Some(Error::new(ErrorKind::InvalidInput, text));
        let added = match self.order(whole, key) {
            Ok(()) => add.await,
            Err(error) => Err(error),
        };
        self.failed = added.clone().err();
        added?;
        self.last.clear();
        self.last.extend_from_slice(key);
        self.entries += 1;
        forebay::shard::yield_if_needed().await;
        Ok(())
    }

    fn order(&self, whole: &str, key: &[u8]) -> Result<()> {
        // Keys of a length that is not allowed are refused for that.
        if key > &self.last[..] || !(1..=record::KEY_BYTES_MAX).contains(&key.len()) {
            return Ok(());
        }
        let text = format!(
            "entry {} of the {whole} has a key that is not above the one before it: {:?} after {:?}",
            self.entries,
            String::from_utf8_lossy(&key[..key.len().min(64)]),
            String::from_utf8_lossy(&self.last[..self.last.len().min(64)]),
        );
        Err(Error::new(ErrorKind::InvalidInput, text))
    }
}

/// A file of entries in ascending order of their keys, to be ingested by a store with [`Store::ingest`](crate::Store::ingest).
///
/// It is written outside of any store: in another process, or in the process of an open store, whose log and memory it does not
/// use. It has the format of the store's tables, so that a store ingests it unchanged. An entry is a value, a value that expires,
/// or the deletion of a key that the store may have.
///
/// A file that was not [finished](SortedFile::finish) is refused by the ingest. Dropping a `SortedFile` leaves the unfinished
/// file on disk; [`abandon`](SortedFile::abandon) removes it. While it is written, the file is locked (flock(2)), and an ingest
/// of it fails.
///
/// It holds some 400 KiB of I/O memory, and about 6 bytes of other memory for each key. Files of 64 MiB to 1 GiB suit a
/// store best: compaction rewrites whole files.
///
/// ```
/// use forebay::{Config, Engine};
/// use forebay_kv::{Options, SortedFile, SortedFileOptions, Store};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let (dir, path) = (dir.path().join("store"), dir.path().join("users.sorted"));
/// let engine = Engine::start(Config::new())?;
/// let mut file = SortedFile::create(&engine, &path, SortedFileOptions::new()).await?;
/// file.put("anna", "1").await?; // ascending keys
/// file.delete("bert").await?;
/// file.put("carl", "3").await?;
/// let written = file.finish().await?; // durable
/// assert_eq!(written.entries, 3);
///
/// let store = Store::open(&engine, &dir, Options::new().memory_bytes_max(16 << 20)).await?;
/// let users = store.keyspace("users").await?;
/// users.put("bert", "2").await?;
/// store.ingest([(&users, &path)]).await?;
/// assert_eq!(users.get("anna").await?.as_deref(), Some(&b"1"[..]));
/// assert_eq!(users.get("bert").await?, None);
/// # store.close().await?;
/// # Ok(()) }
/// ```
pub struct SortedFile {
    path: PathBuf,
    dir: Dir,
    writer: TableWriter,
    order: OrderCheck,
    /// Has the lock until the file is finished.
    lock: File,
}

/// A finished [`SortedFile`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SortedFileInfo {
    /// The file.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// The number of its entries, deletions included.
    pub entries: u64,
    /// The number of its deletions.
    pub deleted: u64,
    /// Its first key.
    pub smallest: Vec<u8>,
    /// Its last key.
    pub largest: Vec<u8>,
}

impl SortedFile {
    /// Creates the file, which must not exist, and returns it without entries. The engine need not be a store's.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if the file exists; [`ErrorKind::InvalidInput`] for options out of range; the system's.
    pub fn create(
        engine: &Engine,
        path: impl AsRef<Path>,
        options: SortedFileOptions,
    ) -> Pending<'static, SortedFile> {
        let (owned, path) = (engine.clone(), path.as_ref().to_path_buf());
        Pending::new(engine, async move { SortedFile::created(&owned, path, options).await })
    }

    async fn created(engine: &Engine, path: PathBuf, options: SortedFileOptions) -> Result<SortedFile> {
        let Some(name) = path.file_name().map(|name| name.to_os_string()) else {
            return Err(Error::at(ErrorKind::InvalidInput, &path, "the path does not end in a file name"));
        };
        let number = random_id(engine, &path) as u32 | SORTED_NUMBER;
        let spec = TableSpec {
            leaf_bytes: options.leaf_bytes,
            compression: options.compression,
            packed_value_max: PACKED_VALUE_MAX,
            class: options.class,
            buffer_bytes: BUFFER_BYTES,
            depth: DEPTH,
            cache: options.cache,
            ..TableSpec::new(number, NO_KEYSPACE)
        };
        let dir = engine.open_dir(parent_of(&path)).await?;
        let created = TableWriter::named(engine, &dir, &name, spec).await;
        let writer = created.map_err(|error| match error.raw_os_error() {
            Some(EEXIST) => {
                let text = "a sorted file is a new one, and this name is taken: remove the file, or choose another name";
                Error::at(ErrorKind::AlreadyExists, &path, text)
            }
            _ => error,
        })?;
        let locked = async {
            let lock = dir.open(&name, Open::read().buffered()).await?;
            match lock.try_lock(Lock::Exclusive).await {
                Err(error) if error.kind() == forebay::ErrorKind::Locked => Err(error.into()),
                // A file system without locks does not refuse an ingest too early; the missing end does.
                _ => Ok(lock),
            }
        };
        match locked.await {
            Ok(lock) => Ok(SortedFile { path, dir, writer, order: OrderCheck::default(), lock }),
            Err(error) => {
                let _ = writer.abandon().await;
                Err(error)
            }
        }
    }

    /// Adds a value, whose key is above all keys added before. Waits only for the device.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for the empty key and for a key that is not above the last one;
    /// [`ErrorKind::TooLarge`]; the system's. After an error, or if this future was dropped
    /// unfinished, every further call fails.
    pub fn put(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("sorted file", async move {
            let put = Change::Put { value: value.as_ref(), expires_s: None };
            self.add(key.as_ref(), put).await
        })
    }

    /// Adds a value as [`put`](SortedFile::put) does. It expires at `expires_s`, in seconds since 1970, and counts as deleted
    /// from then on.
    ///
    /// # Errors
    /// Those of [`put`](SortedFile::put).
    pub fn put_until(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires_s: u64,
    ) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("sorted file", async move {
            let put = Change::Put { value: value.as_ref(), expires_s: Some(expires_s) };
            self.add(key.as_ref(), put).await
        })
    }

    /// Adds the deletion of a key, which is above all keys added before. After the ingest the store has no value for that key.
    ///
    /// # Errors
    /// Those of [`put`](SortedFile::put).
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("sorted file", async move { self.add(key.as_ref(), Change::Delete).await })
    }

    async fn add(&mut self, key: &[u8], change: Change<'_>) -> Result<()> {
        let writer = &mut self.writer;
        let add = async {
            record::check(key, &change)?;
            let entry = match change {
                Change::Put { value, expires_s } => Entry::Value { bytes: value, expires_s },
                Change::Delete => Entry::Deleted,
            };
            writer.add(key, entry).await
        };
        self.order.add("sorted file", key, add).await
    }

    /// Returns the number of entries added so far, deletions included.
    pub fn entries(&self) -> u64 {
        self.order.entries()
    }

    /// Returns the length in bytes that the file would have if it was finished now, approximately.
    pub fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    /// Returns the bytes of memory that the writer holds. It grows by about 6 bytes for each key.
    pub fn memory_bytes(&self) -> u64 {
        self.writer.memory_bytes()
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the end of the file. File and name are durable when it returns, and the file can be ingested.
    ///
    /// # Errors
    /// The error of an earlier call; [`ErrorKind::InvalidInput`] for a file without entries; the system's. The file
    /// has no end then, and is removed as far as possible.
    pub fn finish(self) -> Waitable<impl Future<Output = Result<SortedFileInfo>>> {
        Waitable::new("sorted file", async move {
            let SortedFile { path, dir, writer, order, lock } = self;
            let failed = match order.check() {
                Ok(()) if order.entries() > 0 => None,
                Ok(()) => Some(Error::at(ErrorKind::InvalidInput, &path, "a sorted file without entries")),
                Err(error) => Some(error),
            };
            if let Some(error) = failed {
                let _ = writer.abandon().await;
                return Err(error);
            }
            let finished = match writer.finish().await {
                Ok(meta) => dir.sync().await.map(|()| meta).map_err(Error::from),
                Err(error) => Err(error),
            };
            let meta = match finished {
                Ok(meta) => meta,
                Err(error) => {
                    let _ = dir.remove_file(path.file_name().unwrap_or_default()).await;
                    return Err(error);
                }
            };
            // Closed before the call returns, so that an ingest finds it free.
            let _ = lock.close().await;
            let TableMeta { bytes, entries, deleted, smallest, largest, .. } = meta;
            let (smallest, largest) = (smallest.into_vec(), largest.into_vec());
            Ok(SortedFileInfo { path, bytes, entries, deleted, smallest, largest })
        })
    }

    /// Removes the file.
    ///
    /// # Errors
    /// The system's: the file still exists then.
    pub fn abandon(self) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("sorted file", self.writer.abandon())
    }
}

forebay::_debug_parts!(SortedFile, |sorted_file| path: sorted_file.path, entries: sorted_file.entries());
