//! [`Store`]: the handle of an open store.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use forebay::Engine;

use crate::batch::Batch;
use crate::checkpoint;
use crate::compact;
use crate::keyspace::Keyspace;
use crate::merge::Bounds;
use crate::options::Options;
use crate::snapshot::Snapshot;
use crate::verify::{self, Verified};
use crate::wait::Answer;

pub(crate) mod commit;
pub(crate) mod flush;
pub(crate) mod gate;
pub(crate) mod get;
pub(crate) mod holder;
pub(crate) mod open;
mod recover;
pub(crate) mod rules;
pub(crate) mod shared;
pub(crate) mod space;
mod stats;
pub(crate) mod swap;
mod tasks;
mod throttle;

pub use commit::Write;
pub use get::{Get, MultiGet};
pub use open::Opening;
pub use recover::Recovery;
pub use stats::{KeyspaceStats, LevelStats, MemoryStats, Stats};
pub use swap::Swapped;

use shared::Shared;

/// The keyspace that every store has.
pub(crate) const DEFAULT: &str = "default";
/// Keyspaces that a store may have.
const KEYSPACES_MAX: usize = 1024;

/// An open store: a handle that is cheap to clone and works from any thread and any executor, on shards, and
/// in a simulated world.
///
/// What is written goes to a log and answers when it is durable there; reads see what is durable. From
/// memory it is written to tables in the background, which no reader ever waits for. A store has a hard
/// budget of memory ([`Options::memory`]), and its files are read and written past the page cache.
///
/// Its operations are futures that also have `.wait()`; they begin when they are first polled. **Dropping the
/// future of a write does not take it back**: once polled, it may be in the store, or may come to be.
///
/// A write, a flush or a table that fails makes the store *read-only*: every later write answers
/// [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly) with that first failure as its source; reads go on.
/// Opening the store again recovers. Where it is space that is missing the store is *full* instead: puts return
/// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) until there is some, deletes are taken and give some back.
///
/// When the last handle is dropped what is queued is still written, in the background;
/// [`close`](Store::close) tells when that is done. The engine lives as long as the store.
///
/// ```
/// use forebay::{Config, Engine};
/// use forebay_kv::{Batch, Options, Store};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
/// # let dir = dir.path();
/// let engine = Engine::start(Config::default())?;
/// let options = Options::new().memory(16 << 20);
/// let store = Store::open(&engine, dir, options.clone()).wait()?; // in a task: .await
/// let users = store.keyspace("users").wait()?;
///
/// users.put("anna", "1").wait()?; // durable when it answers
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
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Store {
    handle: Arc<Handle>,
}

/// Shared by all clones, keyspaces and snapshots; with it goes the store.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    /// Tells the store from others.
    pub(crate) number: u64,
    recovery: Recovery,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

impl Store {
    pub(crate) fn new(shared: Arc<Shared>, recovery: Recovery) -> Store {
        let number = shared.manifest.with(|state| state.store_id);
        Store { handle: Arc::new(Handle { shared, number, recovery }) }
    }

    pub(crate) fn of(handle: Arc<Handle>) -> Store {
        Store { handle }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// Opens the store in a directory; one that does not exist or is empty gets a new store, unless
    /// [`Options::create`] says otherwise.
    ///
    /// Reads the manifest, the tables' ends and top levels, and the log from the last flush on, which is at
    /// most what memtables may have. The work begins with the call; dropping the answer closes the store
    /// again.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`](crate::ErrorKind::Locked) while it is open elsewhere; a store of this process whose last
    /// handle is gone is waited for. [`ErrorKind::Foreign`](crate::ErrorKind::Foreign) for a directory with other files,
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) for a store that is damaged or lost its end,
    /// unless [`Options::salvage`] is set and enough is left,
    /// [`ErrorKind::MissingTable`](crate::ErrorKind::MissingTable),
    /// [`ErrorKind::Version`](crate::ErrorKind::Version),
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound),
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for options out of range, and the
    /// system's. After an error the store holds what it held.
    pub fn open(engine: &Engine, dir: impl AsRef<Path>, options: Options) -> Opening {
        Opening::new(engine, dir.as_ref(), options)
    }

    /// Returns how this open found the store: what its logs held, what was read back, and what was removed or kept.
    pub fn recovery(&self) -> &Recovery {
        &self.handle.recovery
    }

    /// The keyspace that every store has, which is called `default`.
    pub fn default_keyspace(&self) -> Keyspace {
        Keyspace::new(self.handle.clone(), 0, Arc::from(DEFAULT))
    }

    /// The keyspace of this name, which is made if there is none; durable when it answers. Names have 1 to
    /// 255 bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a name that cannot be and for more
    /// than 1,024 keyspaces; as [`Keyspace::put`].
    pub fn keyspace<'a>(&'a self, name: &'a str) -> Answer<'a, Keyspace> {
        let handle = &self.handle;
        Answer::new(&handle.shared.engine, async move {
            let id = tasks::keyspace(&handle.shared, name, KEYSPACES_MAX).await?;
            Ok(Keyspace::new(handle.clone(), id, Arc::from(name)))
        })
    }

    /// The names of all keyspaces, in the order in which they were made.
    pub fn keyspaces(&self) -> Vec<String> {
        self.shared()
            .with_view(|view| view.version.keyspaces().map(|(_, levels)| levels.name.to_string()).collect())
    }

    /// Writes a batch, all at once or not at all, also after a crash; durable when it answers. An empty one
    /// does nothing.
    ///
    /// # Errors
    /// As [`Keyspace::put`]; what was wrong with a change of the batch.
    pub fn write(&self, batch: &Batch) -> Write<'_> {
        match batch.ready(self.shared(), self.handle.number).transpose() {
            Some(ready) => Write::new(self.shared(), ready),
            None => Write::nothing(self.shared()),
        }
    }

    /// The store as it is now, with everything that is durable. Costs an allocation.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Batch, Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory(16 << 20)).wait()?;
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
        let (view, lsn) = self.shared().pin();
        Snapshot::new(self.handle.clone(), view, lsn)
    }

    /// Writes what is in memory to tables; answers when everything that was durable before is in tables and
    /// the log has given it up.
    ///
    /// # Errors
    /// As [`Keyspace::put`]; [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) only if it was tried and found none.
    pub fn flush(&self) -> Answer<'_, ()> {
        Answer::new(&self.shared().engine, flush::everything(self.shared()))
    }

    /// Writes what is in memory to tables and compacts everything to the last level, so that nothing that was
    /// deleted, overwritten or has expired before takes space; see [`Keyspace::compact`].
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn compact(&self) -> Answer<'_, ()> {
        let shared = self.shared();
        Answer::new(&shared.engine, async move {
            let ids: Vec<u32> = shared.with_view(|view| view.version.keyspaces().map(|(id, _)| id).collect());
            for id in ids {
                compact::range(shared, id, Bounds::ALL).await?;
            }
            Ok(())
        })
    }

    /// Answers when compaction has nothing left to do: what it would do once the store was not written to for
    /// a second it does now. What is in memory stays there.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn settle(&self) -> Answer<'_, ()> {
        Answer::new(&self.shared().engine, compact::settle(self.shared()))
    }

    /// Makes a copy of the store in a new directory, which opens as a store of its own; durable when it
    /// answers. It has everything that was durable when this began.
    ///
    /// What is in memory is written to tables first. Their files are not copied: they get a second name (hard
    /// links), so it costs a flush, one flush of a directory for each table, little space at first, and up to
    /// 1 MiB of memory, which counts as held by the program. Either store may change and go away: a file goes
    /// with its last name. The files of both lie on the same device all the same: to be safe from its loss,
    /// copy the checkpoint elsewhere.
    ///
    /// It is made under the name `dir` with `.unfinished` added, and goes on when its future is dropped.
    /// After a crash in the middle `dir` does not exist; what is left under the other name is refused by
    /// every open ([`ErrorKind::Unfinished`](crate::ErrorKind::Unfinished)) and may be removed.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`](crate::ErrorKind::Exists) if there is something of that name;
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the directory above does not exist;
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) within the store's own directory and on
    /// another file system, to where files cannot be linked; as [`Keyspace::put`]; the system's. This store
    /// is as it was, and what was made is removed again, unless it was whole already and only its new name is
    /// in doubt.
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Answer<'_, ()> {
        let (shared, dir) = (self.shared(), dir.as_ref().to_path_buf());
        Answer::new(&shared.engine, async move { checkpoint::checkpoint(shared, &dir).await })
    }

    /// Reads and checks everything that the store has on disk now: all tables, what is durable of the log,
    /// the manifest; past the cache, in the background class. What is wrong is in the answer, with file and
    /// place; it changes nothing, and the store goes on meanwhile. Takes up to 1 MiB of memory, which counts
    /// as held by the program, and ends soon after its future was dropped. A store that is not open:
    /// [`verify`](crate::verify()).
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed),
    /// [`ErrorKind::MemoryBudget`](crate::ErrorKind::MemoryBudget); the system's, but for those of reading a
    /// table.
    pub fn verify(&self) -> Answer<'_, Verified> {
        Answer::new(&self.shared().engine, verify::open_store(self.shared()))
    }

    /// What the store has and does.
    pub fn stats(&self) -> Stats {
        stats::stats(self.shared())
    }

    /// Closes the store for all handles: what is queued is written, later calls answer
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed), and when this answers the store can be opened again.
    /// The end begins with the call, also when the answer is never awaited.
    ///
    /// # Errors
    /// The failure that made the store read-only. It is closed all the same.
    pub fn close(&self) -> Answer<'_, ()> {
        self.shared().begin_close();
        Answer::new(&self.shared().engine, tasks::closed(self.shared()))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("dir", &self.shared().dir).finish_non_exhaustive()
    }
}
