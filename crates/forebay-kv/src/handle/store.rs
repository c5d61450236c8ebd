//! [`Store`]: the handle of an open store.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay::{Class, Engine, Waitable};
use forebay_wal::Lsn;

use super::Handle;
use super::batch::Batch;
use super::changes::Changes;
use super::checkpoint;
use super::ingest::Ingest;
use super::keyspace::Keyspace;
use super::open::OpenFuture;
use super::snapshot::Snapshot;
use super::sorted_file::{SortedFile, SortedFileOptions};
use super::transaction::{Isolation, Transaction};
use super::verify::{self, VerifyReport};
use crate::engine::commit::Write;
use crate::engine::compact;
use crate::engine::flush;
use crate::engine::recover::Recovery;
use crate::engine::removal;
use crate::engine::shared::StoreCore;
use crate::engine::stats::{self, Stats};
use crate::engine::tasks;
use crate::engine::turns::Turn;
use crate::error::{Error, ErrorKind, Result};
use crate::is_broken;
use crate::merge::Bounds;
use crate::names::DEFAULT;
use crate::options::Options;
use crate::value::Value;
use crate::wait::Pending;

/// The time after which [`Store::transact`] returns a conflict.
const TRANSACT_LIMIT: Duration = Duration::from_secs(60);

/// An open store: a handle that is cheap to clone and works from any thread and any executor, on shards, and
/// in a simulated world.
///
/// A write is appended to the log and completes when it is durable there; reads see only durable data. Memtables are written to
/// tables in the background, and no reader ever waits for that. A store has a hard memory budget ([`Options::memory_bytes_max`]),
/// and its file I/O bypasses the page cache.
///
/// The store's operations are futures that also have `.wait()`; they start when they are first polled. **Dropping the future of a
/// write does not cancel the write**: once the future has been polled, the write may be in the store or may still reach it.
///
/// A write, a flush or a table that fails makes the store *read-only*. Every later write then fails with
/// [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly), whose source is that first failure; reads still work. Opening the store
/// again recovers. If the failure is a lack of space, the store is *full* instead. Puts then fail with
/// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) until space is free; deletes are accepted and free space. The same holds when
/// the process cannot open another file, but the kind of the error is [`ErrorKind::Io`](crate::ErrorKind::Io) then, and
/// [`Error::is_out_of_descriptors`](crate::Error::is_out_of_descriptors) holds; and when the program holds all I/O memory.
///
/// Tables are opened when they are read, and those that were read last stay open: as many as
/// [`Config::descriptors_max`](forebay::Config::descriptors_max) says. So a store may have more tables than the process may have open
/// files.
///
/// When the last handle is dropped, queued writes are still written in the background;
/// [`close`](Store::close) completes when that is done. The engine lives as long as the store.
///
/// ```
/// use forebay::{Config, Engine};
/// use forebay_kv::{Batch, Options, Store};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path();
/// let engine = Engine::start(Config::new())?;
/// let options = Options::new().memory_bytes_max(16 << 20);
/// let store = Store::open(&engine, dir, options.clone()).wait()?; // in a task: .await
/// let users = store.keyspace("users").wait()?;
///
/// users.put("anna", "1").wait()?; // resolves once it is durable
/// let before = store.snapshot();
/// let mut batch = Batch::new();
/// batch.put(&users, "anna", "2").put(&store.default_keyspace(), "count", "1");
/// store.write(&batch).wait()?;
///
/// assert_eq!(users.get("anna").wait()?.as_deref(), Some(&b"2"[..]));
/// assert_eq!(before.get(&users, "anna").wait()?.as_deref(), Some(&b"1"[..]));
/// store.close().wait()?;
///
/// let store = Store::open(&engine, dir, options).wait()?;
/// assert_eq!(store.default_keyspace().get("count").wait()?.as_deref(), Some(&b"1"[..]));
/// # store.close().wait()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Store {
    handle: Arc<Handle>,
}

impl Store {
    pub(crate) fn new(shared: Arc<StoreCore>, recovery: Recovery) -> Store {
        let number = shared.manifest.with(|state| state.store_id);
        Store { handle: Arc::new(Handle { shared, number, recovery }) }
    }

    pub(crate) fn of(handle: Arc<Handle>) -> Store {
        Store { handle }
    }

    fn shared(&self) -> &Arc<StoreCore> {
        &self.handle.shared
    }

    /// Opens the store in a directory and returns it. A directory that does not exist or is empty gets a new
    /// store, unless [`Options::create`] forbids that.
    ///
    /// Reads the manifest, the tables' ends and top levels, and the log from the last flush on; that part of the log is at most as
    /// long as the memtables may be. The work starts with the call; dropping the returned future closes the store again.
    ///
    /// # Errors
    /// - [`ErrorKind::Locked`](crate::ErrorKind::Locked) while the store is open elsewhere; readers ([`Options::read_only`]) are
    ///   refused only by a writer. If it is open in this process but its last handle was dropped, the call waits for it to close.
    /// - [`ErrorKind::Foreign`](crate::ErrorKind::Foreign) for a directory with other files.
    /// - [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) for a store that is damaged or lost its end,
    ///   unless [`Options::salvage`] is set and enough is left.
    /// - [`ErrorKind::MissingTable`](crate::ErrorKind::MissingTable),
    ///   [`ErrorKind::Version`](crate::ErrorKind::Version),
    ///   [`ErrorKind::MissingFeature`](crate::ErrorKind::MissingFeature) and
    ///   [`ErrorKind::NotFound`](crate::ErrorKind::NotFound).
    /// - [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for options out of range.
    /// - [`ErrorKind::MemoryBudget`](crate::ErrorKind::MemoryBudget) if an open that only reads cannot hold the log.
    /// - The system's errors.
    ///
    /// After an error the store's contents are unchanged.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(64 << 20)).await?;
    /// let recovery = store.recovery();
    /// println!("{recovery:?}");
    /// store.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn open(engine: &Engine, dir: impl AsRef<Path>, options: Options) -> OpenFuture {
        OpenFuture::new(engine, dir.as_ref(), options)
    }

    /// Returns the state in which this open found the store: the contents of its logs, the records read back,
    /// and the files removed or kept.
    pub fn recovery(&self) -> &Recovery {
        &self.handle.recovery
    }

    /// Returns the keyspace that every store has, named `default`.
    pub fn default_keyspace(&self) -> Keyspace {
        Keyspace::new(self.handle.clone(), 0, Arc::from(DEFAULT), false)
    }

    /// Resolves with the keyspace of this name, which is created and made durable if it does not exist. Names have 1 to 255 bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a name that is not allowed and for more keyspaces than the
    /// store's memory allows, one for each 16 KiB of it and 10,000 at most; as [`Keyspace::put`].
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// let users = store.keyspace("users").wait()?; // created the first time
    /// users.put("anna", "1").wait()?;
    /// assert_eq!(store.keyspaces(), ["default", "users"]);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn keyspace<'a>(&'a self, name: &'a str) -> Pending<'a, Keyspace> {
        Pending::new(&self.shared().engine, self.keyspace_of(name, false))
    }

    async fn keyspace_of(&self, name: &str, is_unlogged: bool) -> Result<Keyspace> {
        let id = tasks::keyspace(self.shared(), name, is_unlogged).await?;
        let found = self.shared().with_view(|view| Some(view.version.keyspace(id)?.is_unlogged));
        let is_unlogged = found.ok_or_else(Error::dropped_keyspace)?;
        Ok(Keyspace::new(self.handle.clone(), id, Arc::from(name), is_unlogged))
    }

    /// As [`keyspace`](Store::keyspace), for a keyspace whose entries are not in the log. Its writes do not wait for the device,
    /// and cause no device writes: each has a number, a few bytes that are added to the log with the next logged write, with a
    /// flush, or once they fill a group of the log. They are durable when a flush has written them to tables:
    /// [`flush`](Store::flush), [`close`](Store::close), or the next flush in the background. For data that can be rebuilt from
    /// another source, as the state machine of a replicated log can.
    ///
    /// A crash that loses writes also frees their numbers for later writes: a [`Snapshot::lsn`] is permanent only after a flush or
    /// [`sync`](Store::sync). While a feed of [`changes`](Store::changes) waits for the next write, each number is written
    /// immediately.
    ///
    /// After a crash each such keyspace is as of the last flush, the same flush for all of them: a key with the applied index,
    /// written in the same batch as what was applied, gives the position to continue from. Other keyspaces may be newer. Of a batch
    /// over both kinds only the logged part is all or nothing across a crash.
    ///
    /// # Errors
    /// Those of [`keyspace`](Store::keyspace); [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists) if a logged keyspace
    /// has this name.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Batch, Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// let state = store.unlogged_keyspace("state").wait()?;
    /// let mut batch = Batch::new();
    /// batch.put(&state, "user/anna", "1").put(&state, "applied", 17u64.to_le_bytes());
    /// store.write(&batch).wait()?; // at once
    /// store.flush().wait()?; // durable now
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn unlogged_keyspace<'a>(&'a self, name: &'a str) -> Pending<'a, Keyspace> {
        Pending::new(&self.shared().engine, async move {
            let found = self.keyspace_of(name, true).await?;
            if found.is_logged() {
                let text = format!("the keyspace {name:?} exists, and is logged");
                return Err(Error::new(ErrorKind::AlreadyExists, text));
            }
            Ok(found)
        })
    }

    /// Completes when all earlier writes are durable: that is, [relaxed](Write::relaxed) writes, since others are durable when they
    /// complete. Entries of keyspaces that are not logged need a [`flush`](Store::flush); their writes' numbers are durable, and
    /// never reused.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn sync(&self) -> Pending<'_, ()> {
        Pending::new(&self.shared().engine, self.shared().sync_committed())
    }

    /// Drops the keyspace of this name with all its entries, in one step; durable when it completes. Its tables are
    /// removed as soon as no snapshot or range needs them, and nothing is written for its entries. A keyspace of
    /// the same name may be made again; it is empty. Continues if its future is dropped.
    ///
    /// Calls on handles of the dropped keyspace fail with [`ErrorKind::NotFound`](crate::ErrorKind::NotFound), except
    /// reads of snapshots made before. Writes in progress may succeed and be dropped with it. Costs a flush and an
    /// edit of the manifest. Transactions that are open conflict.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if no keyspace has this name;
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for `default`; as [`flush`](Store::flush).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// let users = store.keyspace("users").wait()?;
    /// users.put("anna", "1").wait()?;
    /// store.drop_keyspace("users").wait()?;
    /// assert!(users.get("anna").wait().is_err());
    /// assert_eq!(store.keyspaces(), ["default"]);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn drop_keyspace<'a>(&'a self, name: &'a str) -> Pending<'a, ()> {
        Pending::new(&self.shared().engine, removal::keyspace(self.shared(), name))
    }

    /// Returns the names of all keyspaces, in the order of their creation.
    pub fn keyspaces(&self) -> Vec<String> {
        self.shared()
            .with_view(|view| view.version.keyspaces().map(|(_, levels)| levels.name.to_string()).collect())
    }

    /// Writes a batch atomically, also across a crash; durable when the future completes. An empty batch does
    /// nothing. A batch is one record of the log and is never divided: [`batch_bytes_max`](Store::batch_bytes_max) says how long it
    /// may be.
    ///
    /// # Errors
    /// As [`Keyspace::put`]; the error of a change that the batch rejected; [`ErrorKind::TooLarge`] with the limit for a batch
    /// that is too long.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Batch, Options, Store};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).await?;
    /// # let users = store.keyspace("users").await?;
    /// let mut batch = Batch::new();
    /// batch.put(&users, "anna", "1").put(&users, "bert", "2").delete(&users, "carl");
    /// store.write(&batch).await?; // all of it, durable
    /// # store.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn write(&self, batch: &Batch) -> Write<'_> {
        match batch.ready(self.shared(), self.handle.number).transpose() {
            Some(ready) => Write::new(self.shared(), ready),
            None => Write::nothing(self.shared()),
        }
    }

    /// Returns the most bytes that a [batch](Store::write), a transaction or a put may have: its keys and values, with 11 bytes for
    /// each change, 8 more for one that expires, and 6 for all.
    ///
    /// It is two thirds of the log's share of the memory or fifteen sixteenths of a memtable, the smaller of the two (682 KiB with
    /// 16 MiB of memory, 3.6 MiB with 64, 21 MiB from 276 on), within a segment of the log. A memtable also has 52 bytes for each
    /// change, so that many short changes reach its limit first; the error of such a batch states how many bytes fit. A batch whose
    /// keyspaces are all [not logged](Store::unlogged_keyspace) may have the memory of nearly three memtables.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Batch, ErrorKind, Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// let (users, limit) = (store.default_keyspace(), store.batch_bytes_max());
    /// let mut batch = Batch::new();
    /// for number in 0..10_u64 {
    ///     batch.put(&users, number.to_be_bytes(), vec![7; limit / 10]);
    /// }
    /// let refused = store.write(&batch).wait().unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::TooLarge { limit }); // nothing of it was written
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn batch_bytes_max(&self) -> usize {
        self.shared().budget.record
    }

    /// Ingests sorted files, which were written with [`SortedFile`] outside of the store's log and memory. The ingest is atomic
    /// over all files and keyspaces, also across a crash, and durable when the future completes. Their entries are newer than all
    /// entries of the store at that moment, and become visible in one step.
    ///
    /// A file is placed in the lowest level where nothing overlaps its keys, there and above, or in level 0 if no level qualifies.
    /// Nothing is rewritten: on the store's file system a file is renamed (a hard link, and its first name is removed at the end,
    /// unless [`keep_files`](Ingest::keep_files) is called). From another file system it is copied. The files are read once to be
    /// [verified](Ingest::unverified). Files of one keyspace must not overlap. Each has a descriptor until the call completes.
    ///
    /// The call waits for a compaction in progress, and flushes memtables that have keys within the files' ranges. Writers of such
    /// keys wait during the last part of it, usually for milliseconds; all others continue. Snapshots and ranges made before do not
    /// have the entries. Open transactions conflict, and feeds of [`changes`](Store::changes) end with
    /// [`Lagged`](crate::ErrorKind::Lagged), since the entries are not in the log.
    ///
    /// Continues if its future is dropped. If a crash ends it, the files are in the store, or are left under their names
    /// to be ingested again; they may be in both places after a crash at the very end.
    ///
    /// # Errors
    /// Each names the file and the remedy, and the store and all files are as before.
    /// - [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) for a file that was not finished, was cut or is damaged.
    /// - [`ErrorKind::Locked`](crate::ErrorKind::Locked) for a file that is still being written or ingested elsewhere.
    /// - [`ErrorKind::Version`](crate::ErrorKind::Version), [`ErrorKind::MissingFeature`](crate::ErrorKind::MissingFeature)
    ///   and [`ErrorKind::Foreign`](crate::ErrorKind::Foreign) for one of another format.
    /// - [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) for one with a longer value than this store can compact.
    /// - [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for files of one keyspace that overlap, and for a
    ///   keyspace of another store.
    /// - [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for a missing file, or a keyspace that was dropped.
    /// - As [`Keyspace::put`]; the system's errors. After [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly) the store has either
    ///   all files or no file once it is opened again.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, SortedFile, SortedFileOptions, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path().join("store"), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// # let (new_users, new_counts) = (dir.path().join("users.sorted"), dir.path().join("counts.sorted"));
    /// let (users, counts) = (store.keyspace("users").wait()?, store.keyspace("counts").wait()?);
    /// let mut file = SortedFile::create(&engine, &new_users, SortedFileOptions::new()).wait()?;
    /// file.put("anna", "1").wait()?;
    /// file.put("bert", "2").wait()?;
    /// file.finish().wait()?;
    /// let mut file = SortedFile::create(&engine, &new_counts, SortedFileOptions::new()).wait()?;
    /// file.put("users", "2").wait()?;
    /// file.finish().wait()?;
    ///
    /// let ingested = store.ingest([(&users, &new_users), (&counts, &new_counts)]).wait()?;
    /// assert_eq!(ingested.files[0].level, 6); // nothing was below it
    /// assert_eq!(counts.get("users").wait()?.as_deref(), Some(&b"2"[..]));
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn ingest<'a, P: AsRef<Path>>(
        &'a self,
        files: impl IntoIterator<Item = (&'a Keyspace, P)>,
    ) -> Ingest<'a> {
        Ingest::new(self.shared(), self.handle.number, files)
    }

    /// Creates a sorted file as [`SortedFile::create`] does, with the leaf size, the compression and the background class
    /// of this store. The file must not lie in the store's directory. Used by tests alone.
    ///
    /// # Errors
    /// Those of [`SortedFile::create`].
    #[doc(hidden)]
    pub fn sorted_file(&self, path: impl AsRef<Path>) -> Pending<'static, SortedFile> {
        let (shared, options) = (self.shared(), &self.shared().options);
        let settings = SortedFileOptions::new()
            .leaf_bytes(options.leaf_bytes)
            .compression(options.compression.unwrap_or_default())
            .class(options.background)
            .cache(&shared.cache);
        SortedFile::create(&shared.engine, path, settings)
    }

    /// Returns a snapshot of the store as it is now, with all data that is durable. Costs one allocation.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Batch, Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// let accounts = store.default_keyspace();
    /// let mut batch = Batch::new(); // all of it or nothing, also after a crash
    /// batch.put(&accounts, "anna", "10").put(&accounts, "bert", "20");
    /// store.write(&batch).wait()?;
    ///
    /// let before = store.snapshot();
    /// batch.clear();
    /// batch.put(&accounts, "anna", "5").put(&accounts, "bert", "25");
    /// store.write(&batch).wait()?;
    /// assert_eq!(before.get(&accounts, "anna").wait()?.as_deref(), Some(&b"10"[..]));
    /// assert_eq!(accounts.get("anna").wait()?.as_deref(), Some(&b"5"[..]));
    /// # drop(before);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.handle.clone(), self.shared().pin())
    }

    /// Returns a feed of all writes from a record of the log on, in their order: puts, deletes, batches and transactions
    /// that are durable. For caches, indexes and watchers in step with the store.
    ///
    /// Create the feed first, at `store.snapshot().lsn().next()`, and then the snapshot with the initial state: the feed repeats
    /// writes that are in this snapshot already. In the opposite order it would not see a bulk load or ingest that ended between
    /// the two. Writes of keyspaces that are not logged are not in it. Bulk loads, ingests and removals of ranges and keyspaces end
    /// a feed, unless they ended before the store was opened; see [`Changes::next`]. While a feed is not read, the log keeps the
    /// records of up to three flushes for it.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).await?;
    /// let users = store.keyspace("users").await?;
    /// let mut changes = store.changes(store.snapshot().lsn().next());
    /// let snapshot = store.snapshot(); // the state to begin with
    /// users.put("anna", "1").await?;
    /// let changed = changes.next().await.ok_or("the store was closed")??;
    /// assert_eq!((&*changed.entries[0].keyspace, &changed.entries[0].key[..]), ("users", &b"anna"[..]));
    /// # drop((snapshot, changes));
    /// # store.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn changes(&self, from: Lsn) -> Changes {
        Changes::new(&self.handle, from)
    }

    /// Starts a transaction: reads as of now, and changes that are applied atomically by [`commit`](Transaction::commit), unless
    /// another write conflicts at the level of [`Isolation`].
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{ErrorKind, Isolation, Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// # let users = store.keyspace("users").wait()?;
    /// users.put("anna", "1").wait()?;
    /// let mut transaction = store.transaction(Isolation::Serializable);
    /// assert!(transaction.get(&users, "anna").wait()?.is_some());
    /// transaction.put(&users, "bert", "2")?;
    ///
    /// users.put("anna", "3").wait()?; // another writer is faster
    /// let lost = transaction.commit().wait().unwrap_err();
    /// assert_eq!(lost.kind(), ErrorKind::Conflict); // run it again
    /// assert_eq!(users.get("bert").wait()?, None);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn transaction(&self, isolation: Isolation) -> Transaction {
        Transaction::begin(&self.handle, isolation)
    }

    /// Runs a transaction until it commits, and returns the result of `body`, which is called again after each
    /// [`Conflict`](crate::ErrorKind::Conflict). `body` returns the transaction to have it committed; an error from `body` ends the
    /// call, and nothing is written.
    ///
    /// The tries after a conflict see all that was committed before, also what is not durable yet, so that tasks that change the same
    /// key share flushes of the log. The call returns, also with an error, only when all that `body` has read is durable, as far
    /// as it is logged; what `body` sends elsewhere before that may be lost in a crash.
    ///
    /// Calls that conflict wait for each other in the order of their conflicts, each until its predecessor has committed, and later
    /// calls let them run first. So each usually commits at its second try. Others wait at most 50 ms for a call that is not polled
    /// or whose body takes long, and dropping the future gives up its place. A conflict after a minute is returned;
    /// [`transact_within`](Store::transact_within) has another limit.
    ///
    /// # Errors
    /// Those of `body` and of [`Transaction::commit`].
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Isolation, Options, Store};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).await?;
    /// # let users = store.keyspace("users").await?;
    /// let count = store
    ///     .transact(Isolation::Serializable, async |mut transaction| {
    ///         let before = transaction.get(&users, "count").await?;
    ///         let count = before.map_or(0, |count| count[0]) + 1;
    ///         transaction.put(&users, "count", [count])?;
    ///         Ok((transaction, count))
    ///     })
    ///     .await?;
    /// assert_eq!(count, 1);
    /// # store.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn transact<T, F>(
        &self,
        isolation: Isolation,
        body: impl FnMut(Transaction) -> F,
    ) -> Waitable<impl Future<Output = Result<T>>>
    where
        F: Future<Output = Result<(Transaction, T)>>,
    {
        self.transact_within(TRANSACT_LIMIT, isolation, body)
    }

    /// As [`transact`](Store::transact); a conflict after this time is returned. The time cuts neither a run of `body` short
    /// nor a commit.
    ///
    /// # Errors
    /// Those of [`transact`](Store::transact).
    pub fn transact_within<T, F>(
        &self,
        limit: Duration,
        isolation: Isolation,
        body: impl FnMut(Transaction) -> F,
    ) -> Waitable<impl Future<Output = Result<T>>>
    where
        F: Future<Output = Result<(Transaction, T)>>,
    {
        Waitable::new("transaction", async move {
            let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
            let limit_ns = self.shared().engine.now_ns().saturating_add(limit_ns);
            let mut seen = None;
            let ended = self.run_again(limit_ns, isolation, body, &mut seen).await;
            if let Some(lsn) = seen
                && !is_broken!(AnsweredBeforeDurable)
            {
                // No caller may learn of a value that a crash could still undo.
                self.shared().see_durable(lsn.0).await?;
            }
            ended
        })
    }

    /// Runs a transaction until it commits. `seen` becomes the newest record that a try has seen although it may not be durable.
    async fn run_again<T, F>(
        &self,
        limit_ns: u64,
        isolation: Isolation,
        mut body: impl FnMut(Transaction) -> F,
        seen: &mut Option<Lsn>,
    ) -> Result<T>
    where
        F: Future<Output = Result<(Transaction, T)>>,
    {
        let (shared, mut turn) = (self.shared(), None);
        let mut transaction = self.transaction(isolation);
        loop {
            let (changed, output) = body(transaction).await?;
            let Some(conflict) = changed.apply(Some(&mut turn)).await? else { return Ok(output) };
            let mut is_late = shared.engine.now_ns() >= limit_ns;
            if !is_late && let Some(line) = conflict.line {
                let before = turn.take();
                is_late = !turn.insert(Turn::join(before, shared, line, limit_ns)).wait().await?;
            }
            if is_late {
                return Err(conflict.into_error());
            }
            forebay::shard::yield_if_needed().await;
            transaction = Transaction::begin_early(&self.handle, isolation);
            *seen = Some(transaction.lsn());
        }
    }

    /// Flushes the memtables to tables. Completes when all data that was durable before the call is in tables
    /// and the log has released it.
    ///
    /// # Errors
    /// As [`Keyspace::put`]; [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) only if a flush was tried and
    /// found no space.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// # let users = store.keyspace("users").wait()?;
    /// users.put("anna", "1").wait()?;
    /// store.flush().wait()?; // in a table; the log is short
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn flush(&self) -> Pending<'_, ()> {
        Pending::new(&self.shared().engine, flush::everything(self.shared()))
    }

    /// Flushes the memtables to tables and compacts everything to the last level. Entries that were deleted, overwritten or expired
    /// before the call then use no space, and all tables have the compression of
    /// [`Options::compression`](crate::Options::compression); see [`Keyspace::compact`].
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// # let users = store.keyspace("users").wait()?;
    /// # users.put("anna", "1").wait()?;
    /// # users.put("bert", "2").wait()?;
    /// users.delete("anna").wait()?;
    /// store.compact().wait()?; // neither the entry nor its deletion takes space now
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn compact(&self) -> Pending<'_, ()> {
        let shared = self.shared();
        Pending::new(&shared.engine, async move {
            let ids: Vec<u32> = shared.with_view(|view| view.version.keyspaces().map(|(id, _)| id).collect());
            for id in ids {
                compact::range(shared, id, Bounds::ALL).await?;
            }
            Ok(())
        })
    }

    /// Flushes the memtables, as [`flush`](Store::flush) does, and completes when compaction is idle. Work that a store otherwise
    /// does only after a second without writes is done now. Files of unused tables are removed by then; files that snapshots,
    /// ranges or reads keep stay.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// store.settle().wait()?; // before a measurement, say: nothing runs in the background
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn settle(&self) -> Pending<'_, ()> {
        Pending::new(&self.shared().engine, compact::settle(self.shared()))
    }

    /// Creates a checkpoint: a copy of the store in a new directory, which opens as an independent store. It is durable when the
    /// future completes and has all data that was durable at the time of the call.
    ///
    /// The memtables are flushed to tables first. The tables' files are hard-linked, not copied. So a checkpoint costs one flush,
    /// one directory sync for each table, little space at first, and up to 1 MiB of memory, which counts as held by the program.
    /// Either store may change or be removed: a file is freed with its last name. The files of both still lie on the same device:
    /// to be safe from its loss, copy the checkpoint elsewhere.
    ///
    /// The checkpoint is made under the name `dir` with `.unfinished` added, in place of what a name has beyond 244 bytes, and
    /// continues when its future is dropped. After a crash in the middle, `dir` does not exist. Every open refuses the directory left
    /// under the other name ([`ErrorKind::Unfinished`](crate::ErrorKind::Unfinished)), and it may be removed.
    ///
    /// # Errors
    /// - [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists) if `dir` exists already.
    /// - [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if its parent directory does not exist.
    /// - [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if it is within the store's own
    ///   directory, or on another file system, to which files cannot be linked.
    /// - As [`Keyspace::put`]; the system's errors.
    ///
    /// After an error this store is as it was. The unfinished copy is removed again, unless it was complete
    /// already and only its new name is in doubt.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let options = Options::new().memory_bytes_max(16 << 20);
    /// # let store = Store::open(&engine, dir.path().join("store"), options.clone()).wait()?;
    /// # let users = store.keyspace("users").wait()?;
    /// users.put("anna", "1").wait()?;
    /// let monday = dir.path().join("store-monday");
    /// store.checkpoint(&monday).wait()?;
    ///
    /// let copy = Store::open(&engine, &monday, options).wait()?;
    /// assert_eq!(copy.keyspace("users").wait()?.get("anna").wait()?.as_deref(), Some(&b"1"[..]));
    /// # copy.close().wait()?;
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Pending<'_, ()> {
        let (shared, dir) = (self.shared(), dir.as_ref().to_path_buf());
        Pending::new(&shared.engine, async move {
            checkpoint::checkpoint(shared, &dir, 0, Vec::new()).await.map(drop)
        })
    }

    /// Creates a checkpoint as [`checkpoint`](Store::checkpoint) does, and returns the values of `keys` in it, in their order.
    ///
    /// For programs that store a position with their data, such as the index of the last applied change: they may write meanwhile,
    /// and know the position of the copy without opening it.
    ///
    /// # Errors
    /// Those of [`checkpoint`](Store::checkpoint) and [`Keyspace::get`];
    /// [`ErrorKind::InvalidInput`] for a keyspace of another store. An error of a get leaves no checkpoint.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path().join("store"), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// let state = store.unlogged_keyspace("state").wait()?;
    /// state.put("applied", 17u64.to_le_bytes()).wait()?;
    /// let values = store.checkpoint_and_get(dir.path().join("copy"), &state, ["applied"]).wait()?;
    /// assert_eq!(values[0].as_deref(), Some(&17u64.to_le_bytes()[..]));
    /// # drop(values);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn checkpoint_and_get<'a, K: AsRef<[u8]>>(
        &'a self,
        dir: impl AsRef<Path>,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Pending<'a, Vec<Option<Value>>> {
        let (shared, dir) = (self.shared(), dir.as_ref().to_path_buf());
        let keys = keys.into_iter().map(|key| key.as_ref().to_vec()).collect();
        let (id, is_own) = (keyspace.id(), keyspace.check_store(self.handle.number));
        Pending::new(&shared.engine, async move {
            is_own?;
            checkpoint::checkpoint(shared, &dir, id, keys).await
        })
    }

    /// Reads and checks everything that the store has on disk now (all tables, the durable part of the log, and the manifest), and
    /// returns the faults found. It bypasses the cache and reads in the background class. The result lists each fault with file and
    /// position. Verification changes nothing, and the store remains usable meanwhile. It uses up to 1 MiB of memory, which counts
    /// as held by the program, and ends soon after its future is dropped. For a store that is not open use
    /// [`verify`](crate::verify()).
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed),
    /// [`ErrorKind::MemoryBudget`](crate::ErrorKind::MemoryBudget); the system's errors, except those of
    /// reading a table.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// # let users = store.keyspace("users").wait()?;
    /// # users.put("anna", "1").wait()?;
    /// # users.put("bert", "2").wait()?;
    /// let verified = store.verify().wait()?;
    /// for finding in &verified.findings {
    ///     eprintln!("{finding}"); // names file and offset
    /// }
    /// assert!(verified.is_whole());
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn verify(&self) -> Pending<'_, VerifyReport> {
        self.verify_in(self.shared().options.background)
    }

    /// Verifies the store as [`verify`](Store::verify) does, in another class: such as one with a
    /// [limit](forebay::ClassSpec::read_bytes_per_second_max) of the bytes read in a second.
    ///
    /// # Errors
    /// Those of [`verify`](Store::verify).
    pub fn verify_in(&self, class: Class) -> Pending<'_, VerifyReport> {
        Pending::new(&self.shared().engine, verify::open_store(self.shared(), class))
    }

    /// Returns the store's counters, its memory use and the state of its levels.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// # let users = store.keyspace("users").wait()?;
    /// # users.put("anna", "1").wait()?;
    /// # users.put("bert", "2").wait()?;
    /// let stats = store.stats();
    /// println!("{} of {} bytes of memory", stats.memory.used(), stats.memory.budget);
    /// println!("write amplification {:.1}", stats.write_amplification());
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn stats(&self) -> Stats {
        stats::stats(self.shared())
    }

    /// Closes the store for all handles: queued writes are written, and later calls fail with
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed). When the future completes the store can be opened again. Closing starts
    /// with the call, even if the future is never awaited.
    ///
    /// # Errors
    /// The failure that made the store read-only. It is closed all the same.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).await?;
    /// # let users = store.keyspace("users").await?;
    /// users.put("anna", "1").await?;
    /// store.close().await?; // from here on the store can be opened again
    /// assert!(users.put("bert", "2").await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn close(&self) -> Pending<'_, ()> {
        self.shared().begin_close();
        Pending::new(&self.shared().engine, tasks::closed(self.shared()))
    }
}

forebay::_debug_parts!(Store, |store| dir: store.shared().dir);
