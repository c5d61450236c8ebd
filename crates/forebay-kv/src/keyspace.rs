//! [`Keyspace`]: a named part of a store with keys of its own.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use crate::compact;
use crate::error::{Error, ErrorKind, Result};
use crate::load::BulkLoad;
use crate::merge::Bounds;
use crate::range::Range;
use crate::record::{self, Change, HEADER_BYTES, Record};
use crate::store::commit::{Ready, Write};
use crate::store::get::{Get, MultiGet, Wanted};
use crate::store::swap::{self, Swapped};
use crate::store::{Handle, Store};
use crate::view::View;
use crate::wait::Answer;

/// A named part of a store with keys of its own; see [`Store::keyspace`].
///
/// A handle that is cheap to clone and, like the store's, works from any thread and any executor. It keeps
/// the store open.
#[derive(Clone)]
pub struct Keyspace {
    handle: Arc<Handle>,
    id: u32,
    name: Arc<str>,
}

impl Keyspace {
    pub(crate) fn new(handle: Arc<Handle>, id: u32, name: Arc<str>) -> Keyspace {
        Keyspace { handle, id, name }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The store that it is a part of.
    pub fn store(&self) -> Store {
        Store::of(self.handle.clone())
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn store_number(&self) -> u64 {
        self.handle.number
    }

    /// An error if it is not of the store with this number.
    pub(crate) fn check_store(&self, number: u64) -> Result<()> {
        if number == self.handle.number { Ok(()) } else { Err(other_store()) }
    }

    /// The value of a key, `None` if there is none: the newest one that is durable.
    ///
    /// What is in memory answers without waiting; otherwise it costs a read for each node on the way that is
    /// not in memory. Nothing is copied.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory(16 << 20)).wait()?;
    /// let users = store.keyspace("users").wait()?;
    /// users.put("anna", "1").wait()?; // durable when it returns
    /// assert_eq!(users.get("anna").wait()?.as_deref(), Some(&b"1"[..]));
    /// assert_eq!(users.get("bert").wait()?, None);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`], with file and offset; [`ErrorKind::MemoryBudget`] when the program keeps
    /// too many values; [`ErrorKind::Closed`]; the system's.
    pub fn get<'a>(&'a self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Get<'a> {
        self.get_at(key.as_ref(), None)
    }

    pub(crate) fn get_at<'a>(&'a self, key: &'a [u8], pinned: Option<(Arc<View>, u64)>) -> Get<'a> {
        match record::check(key, &Change::Delete) {
            Ok(()) => Get::new(&self.handle.shared, Wanted { keyspace: self.id, key, pinned }),
            Err(error) => Get::failed(&self.handle.shared, error),
        }
    }

    pub(crate) fn get_failed(&self, error: Error) -> Get<'_> {
        Get::failed(&self.handle.shared, error)
    }

    pub(crate) fn multi_get_failed(&self, error: Error) -> MultiGet<'_> {
        MultiGet::failed(&self.handle.shared, error)
    }

    /// The values of several keys at one moment, in the order of the keys. Up to 128 are under way at once,
    /// and all that one table is asked for costs one message to its shard and one wake.
    ///
    /// # Errors
    /// As [`get`](Keyspace::get); one that fails fails all.
    pub fn multi_get<'a, K: AsRef<[u8]> + 'a>(
        &'a self,
        keys: impl IntoIterator<Item = &'a K>,
    ) -> MultiGet<'a> {
        self.multi_get_at(keys, None)
    }

    pub(crate) fn multi_get_at<'a, K: AsRef<[u8]> + 'a>(
        &'a self,
        keys: impl IntoIterator<Item = &'a K>,
        pinned: Option<(Arc<View>, u64)>,
    ) -> MultiGet<'a> {
        let keys: Vec<&[u8]> = keys.into_iter().map(AsRef::as_ref).collect();
        let checked = keys.iter().try_for_each(|key| record::check(key, &Change::Delete));
        match checked {
            Ok(()) => MultiGet::new(&self.handle.shared, self.id, keys, pinned),
            Err(error) => MultiGet::failed(&self.handle.shared, error),
        }
    }

    /// The entries between two keys, in order, as they are now; [`Range::rev`] goes the other way. Everything:
    /// [`iter`](Keyspace::iter).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory(16 << 20)).await?;
    /// let fruit = store.default_keyspace();
    /// for name in ["apple", "banana", "cherry"] {
    ///     fruit.put(name, "ripe").await?;
    /// }
    /// let mut found = Vec::new();
    /// let mut range = fruit.range("b"..);
    /// while let Some((key, _value)) = range.next().await.transpose()? {
    ///     found.push(String::from_utf8(key)?);
    /// }
    /// assert_eq!(found, ["banana", "cherry"]);
    /// # drop(range);
    /// # store.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        self.range_at(Bounds::of(&range), None)
    }

    /// The entries whose keys begin so.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.range_at(Bounds::prefix(prefix.as_ref()), None)
    }

    /// All entries.
    pub fn iter(&self) -> Range {
        self.range_at(Bounds::ALL, None)
    }

    pub(crate) fn range_at(&self, bounds: Bounds, pinned: Option<(Arc<View>, u64)>) -> Range {
        Range::new(&self.handle, self.id, bounds, pinned)
    }

    pub(crate) fn range_failed(&self, error: Error) -> Range {
        Range::failed(&self.handle, error)
    }

    /// Begins to load sorted entries straight into tables, past the log: from a stream, or with a view of the
    /// progress. [`bulk_load`](Keyspace::bulk_load) takes an iterator.
    pub fn loader(&self) -> BulkLoad {
        BulkLoad::new(&self.handle, self.id)
    }

    /// Loads entries, in ascending order of their keys, straight into tables, past the log; all of them are there in
    /// one step, and durable, when it answers how many. The iterator runs in the task or thread that awaits or waits.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a key that is not above the one before it; as [`BulkLoad::add`] and
    /// [`BulkLoad::finish`]. After an error nothing has changed.
    pub fn bulk_load<'a, K, V, I>(&'a self, entries: I) -> Answer<'a, u64>
    where
        K: AsRef<[u8]> + Send,
        V: AsRef<[u8]> + Send,
        I: IntoIterator<Item = (K, V)>,
        I::IntoIter: Send + 'a,
    {
        let entries = entries.into_iter();
        Answer::new(&self.handle.shared.engine, async move {
            let mut load = self.loader();
            for (key, value) in entries {
                load.add(key, value).await?;
            }
            let count = load.entries();
            load.finish().await?;
            Ok(count)
        })
    }

    /// Writes what is in memory to tables, and compacts those that have keys in this range to the last level:
    /// nothing of the range that was deleted, overwritten or has expired before takes space then. Begins when it
    /// is first polled, and goes on when its future is dropped.
    ///
    /// # Errors
    /// As [`put`](Keyspace::put).
    pub fn compact<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Answer<'_, ()> {
        let (shared, bounds) = (&self.handle.shared, Bounds::of(&range));
        Answer::new(&shared.engine, compact::range(shared, self.id, bounds))
    }

    /// Sets a key's value; durable when it answers.
    ///
    /// Keys have 1 to 16,384 bytes, values up to 16 MiB or what fits into a memtable. Writers wait when
    /// memory or the log is full, and a little each while compaction is behind.
    ///
    /// # Errors
    /// [`ErrorKind::KeyTooLong`], [`ErrorKind::TooLarge`], [`ErrorKind::InvalidInput`] for the empty key;
    /// [`ErrorKind::NoSpace`] while the disk is full, and nothing was written; [`ErrorKind::ReadOnly`] after a write
    /// that failed, [`ErrorKind::MemoryBudget`], [`ErrorKind::Closed`]. After `ReadOnly` the put may be in the store or not once it is opened again.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Write<'_> {
        self.change(key.as_ref(), &Change::Put { value: value.as_ref(), expires_s: None })
    }

    /// As [`put`](Keyspace::put), with a value that is as good as deleted from a second since 1970 on.
    ///
    /// # Errors
    /// As [`put`](Keyspace::put).
    pub fn put_until(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, expires_s: u64) -> Write<'_> {
        self.change(key.as_ref(), &Change::Put { value: value.as_ref(), expires_s: Some(expires_s) })
    }

    /// Removes a key, if it is there; durable when it answers. Costs what a put does.
    ///
    /// # Errors
    /// As [`put`](Keyspace::put); [`ErrorKind::NoSpace`] only where memory or the log have no room for it either.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Write<'_> {
        self.change(key.as_ref(), &Change::Delete)
    }

    fn change(&self, key: &[u8], change: &Change<'_>) -> Write<'_> {
        let ready = self.single(key, change);
        Write::new(&self.handle.shared, ready)
    }

    fn single(&self, key: &[u8], change: &Change<'_>) -> Result<Ready> {
        record::check(key, change)?;
        let shared = &self.handle.shared;
        let record = Record::single(self.id, key, change);
        let grows = !matches!(change, Change::Delete);
        Ok(Ready::new(shared, record, vec![HEADER_BYTES as u32], grows))
    }

    /// Puts `new`, or deletes if it is `None`, if the key's value is `expected`, where `None` means that
    /// there is none; durable when it answers.
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get) and [`put`](Keyspace::put).
    pub fn compare_and_set<'a>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        expected: Option<&'a [u8]>,
        new: Option<&'a [u8]>,
    ) -> Answer<'a, Swapped> {
        let (shared, key) = (&self.handle.shared, key.as_ref());
        let change = match new {
            Some(value) => Change::Put { value, expires_s: None },
            None => Change::Delete,
        };
        let ready = self.single(key, &change);
        let keyspace = self.id;
        Answer::new(&shared.engine, async move {
            swap::compare_and_set(shared, keyspace, key, expected, ready?).await
        })
    }
}

pub(crate) fn other_store() -> Error {
    Error::new(ErrorKind::InvalidInput, "a keyspace of another store")
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyspace").field("name", &self.name).finish_non_exhaustive()
    }
}
