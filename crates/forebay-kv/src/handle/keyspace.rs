//! [`Keyspace`]: a named part of a store with its own keys.

use std::ops::RangeBounds;
use std::sync::Arc;

use super::Handle;
use super::batch::Batch;
use super::load::BulkLoad;
use super::range::Range;
use super::store::Store;
use crate::engine::commit::{Ready, Write};
use crate::engine::compact;
use crate::engine::get::{Get, GetParams, MultiGet};
use crate::engine::removal;
use crate::engine::swap::{self, SwapOutcome};
use crate::error::{Error, ErrorKind, Result};
use crate::merge::Bounds;
use crate::record::{self, Change, HEADER_BYTES, Record};
use crate::view::Moment;
use crate::wait::Pending;

/// A named part of a store with its own keys; see [`Store::keyspace`].
///
/// Handles are cheap to clone. Like the store's handles, they work from any thread and any executor. A handle
/// keeps the store open.
#[derive(Clone)]
pub struct Keyspace {
    handle: Arc<Handle>,
    id: u32,
    name: Arc<str>,
    is_unlogged: bool,
}

impl Keyspace {
    pub(crate) fn new(handle: Arc<Handle>, id: u32, name: Arc<str>, is_unlogged: bool) -> Keyspace {
        Keyspace { handle, id, name, is_unlogged }
    }

    /// Returns whether its entries are logged; see [`Store::unlogged_keyspace`].
    pub fn is_logged(&self) -> bool {
        !self.is_unlogged
    }

    /// Returns its number if its entries are not in the log.
    pub(crate) fn unlogged(&self) -> Option<u32> {
        self.is_unlogged.then_some(self.id)
    }

    /// Returns the keyspace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the store that this keyspace belongs to.
    pub fn store(&self) -> Store {
        Store::of(self.handle.clone())
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn store_number(&self) -> u64 {
        self.handle.number
    }

    /// Returns an error if the keyspace does not belong to the store with this number.
    pub(crate) fn check_store(&self, number: u64) -> Result<()> {
        if number == self.handle.number { Ok(()) } else { Err(other_store()) }
    }

    /// Returns the newest durable value of a key, or `None` if it has no value.
    ///
    /// Keys are bytes: look up a number with `get(&7u32.to_be_bytes())`.
    ///
    /// A key found in memory is returned without waiting. Otherwise the get costs one read for each node on
    /// its path that is not in memory. A value from a table usually shares the memory of the read and is not
    /// copied; a value from a memtable is a copy.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
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

    pub(crate) fn get_at<'a>(&'a self, key: &'a [u8], pinned: Option<Moment>) -> Get<'a> {
        match record::check(key, &Change::Delete) {
            Ok(()) => Get::new(&self.handle.shared, GetParams { keyspace: self.id, key, pinned }),
            Err(error) => Get::failed(&self.handle.shared, error),
        }
    }

    pub(crate) fn get_failed(&self, error: Error) -> Get<'_> {
        Get::failed(&self.handle.shared, error)
    }

    pub(crate) fn multi_get_failed(&self, error: Error) -> MultiGet<'_> {
        MultiGet::failed(&self.handle.shared, error)
    }

    /// Returns the values of several keys from one snapshot, in the order of the keys. Up to 128 lookups are in flight. All keys
    /// looked up in one table cost one message to its shard and one wake-up.
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get). If one key fails, the whole call fails.
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
    /// let values = users.multi_get(["anna", "carl", "bert"].iter()).wait()?;
    /// assert_eq!(values.iter().filter(|value| value.is_some()).count(), 2);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn multi_get<'a, K: AsRef<[u8]> + 'a>(
        &'a self,
        keys: impl IntoIterator<Item = &'a K>,
    ) -> MultiGet<'a> {
        self.multi_get_at(keys, None)
    }

    pub(crate) fn multi_get_at<'a, K: AsRef<[u8]> + 'a>(
        &'a self,
        keys: impl IntoIterator<Item = &'a K>,
        pinned: Option<Moment>,
    ) -> MultiGet<'a> {
        let keys: Vec<&[u8]> = keys.into_iter().map(AsRef::as_ref).collect();
        let checked = keys.iter().try_for_each(|key| record::check(key, &Change::Delete));
        match checked {
            Ok(()) => MultiGet::new(&self.handle.shared, self.id, keys, pinned),
            Err(error) => MultiGet::failed(&self.handle.shared, error),
        }
    }

    /// Returns the current entries between two keys, in order. [`Range::rev`] reverses the direction; [`iter`](Keyspace::iter)
    /// returns all entries. It is not an iterator, since the next entry may have to be read: use `while let Some(entry) =
    /// range.next().wait()`, or `.await`.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).await?;
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

    /// Returns the entries whose keys start with this prefix.
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
    /// users.put("anna/mail", "a@example.org").wait()?;
    /// let mut range = users.prefix("anna/");
    /// while let Some(entry) = range.next().wait() {
    ///     let (key, value) = entry?;
    ///     assert_eq!((&key[..], &value[..]), (&b"anna/mail"[..], &b"a@example.org"[..]));
    /// }
    /// # drop(range);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.range_at(Bounds::prefix(prefix.as_ref()), None)
    }

    /// Returns all entries.
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
    /// let mut entries = users.iter();
    /// let mut count = 0;
    /// while let Some(entry) = entries.next().wait() {
    ///     entry?;
    ///     count += 1;
    /// }
    /// assert_eq!(count, 2);
    /// # drop(entries);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn iter(&self) -> Range {
        self.range_at(Bounds::ALL, None)
    }

    pub(crate) fn range_at(&self, bounds: Bounds, pinned: Option<Moment>) -> Range {
        Range::new(&self.handle, self.id, bounds, pinned)
    }

    pub(crate) fn range_failed(&self, error: Error) -> Range {
        Range::failed(&self.handle, error)
    }

    /// Returns a loader of sorted entries, which writes them straight into tables, past the log. Use it to load from a stream or to
    /// follow the progress; [`bulk_load`](Keyspace::bulk_load) accepts an iterator.
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
    /// let mut loader = users.loader();
    /// for number in 0..1000u32 {
    ///     loader.add(number.to_be_bytes(), "value").await?; // ascending keys
    /// }
    /// loader.finish().await?; // durable, and visible in one step
    /// # store.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn loader(&self) -> BulkLoad {
        BulkLoad::new(&self.handle, self.id)
    }

    /// Loads entries, in ascending order of their keys, straight into tables, past the log, and returns their
    /// number once all of them are durable. They become visible in one step. The iterator runs in the task or
    /// thread that awaits or waits.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a key that is not above the previous one; otherwise those of
    /// [`BulkLoad::add`] and [`BulkLoad::finish`]. After an error nothing has changed.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// # let users = store.keyspace("users").wait()?;
    /// let count = users.bulk_load((0..1000u32).map(|number| (number.to_be_bytes(), "value"))).wait()?;
    /// assert_eq!(count, 1000);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn bulk_load<'a, K, V, I>(&'a self, entries: I) -> Pending<'a, u64>
    where
        K: AsRef<[u8]> + Send,
        V: AsRef<[u8]> + Send,
        I: IntoIterator<Item = (K, V)>,
        I::IntoIter: Send + 'a,
    {
        let entries = entries.into_iter();
        Pending::new(&self.handle.shared.engine, async move {
            let mut load = self.loader();
            for (key, value) in entries {
                load.add(key, value).await?;
            }
            let count = load.entries();
            load.finish().await?;
            Ok(count)
        })
    }

    /// Writes the entries in memory to tables, and compacts the tables with keys in this range to the last level. Afterwards,
    /// entries of the range that were deleted, overwritten or expired before the call use no space, and its tables have the
    /// compression of [`Options::compression`](crate::Options::compression). Starts at the first poll, and continues if its future
    /// is dropped.
    ///
    /// # Errors
    /// Those of [`put`](Keyspace::put).
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
    /// users.compact("a".."b").wait()?;
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn compact<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Pending<'_, ()> {
        let (shared, bounds) = (&self.handle.shared, Bounds::of(&range));
        Pending::new(&shared.engine, async move {
            if shared.with_view(|view| view.version.is_dropped(self.id)) {
                return Err(Error::dropped_keyspace());
            }
            compact::range(shared, self.id, bounds).await
        })
    }

    /// Sets a key's value; durable when it returns.
    ///
    /// Keys have 1 to 16,384 bytes, values up to 16 MiB or the size that fits into a memtable. Keys are bytes, in the order of
    /// which ranges return them: for non-negative numbers use `to_be_bytes`, whose order is that of the numbers. Writers wait while
    /// memory or the log is full, and for a short time each while compaction is behind.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`], [`ErrorKind::InvalidInput`] for the empty key;
    /// [`ErrorKind::NoSpace`] while the disk is full, with nothing written; [`ErrorKind::ReadOnly`] after a
    /// write that failed, [`ErrorKind::MemoryBudget`], [`ErrorKind::Closed`]. After `ReadOnly` the put may or
    /// may not be in the store once it is opened again.
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
    /// users.put("anna", "1").await?; // durable
    /// users.put(7u64.to_be_bytes(), vec![1; 100]).await?; // any bytes
    /// # store.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Write<'_> {
        self.change(key.as_ref(), &Change::Put { value: value.as_ref(), expires_s: None })
    }

    /// Sets a value as [`put`](Keyspace::put) does. It expires at `expires_s`, in seconds since 1970, and counts as deleted from
    /// then on.
    ///
    /// # Errors
    /// Those of [`put`](Keyspace::put).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// # use std::time::{SystemTime, UNIX_EPOCH};
    /// # let users = store.keyspace("users").wait()?;
    /// let in_an_hour = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() + 3600;
    /// users.put_until("session", "anna", in_an_hour).wait()?;
    /// assert!(users.get("session").wait()?.is_some());
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn put_until(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, expires_s: u64) -> Write<'_> {
        self.change(key.as_ref(), &Change::Put { value: value.as_ref(), expires_s: Some(expires_s) })
    }

    /// Removes a key if it exists; durable when it returns. Costs the same as a put.
    ///
    /// # Errors
    /// Those of [`put`](Keyspace::put); [`ErrorKind::NoSpace`] only if it does not fit into memory or the log either.
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
    /// assert_eq!(users.get("anna").wait()?, None);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Write<'_> {
        self.change(key.as_ref(), &Change::Delete)
    }

    /// Deletes all entries between two keys that were written before the call, in one step; durable when it completes.
    /// Entries written while it runs may stay.
    ///
    /// Up to 256 entries are deleted by a batch (fewer where memtables have less than 64 KiB, and as many as fit into the log of a
    /// full store). More are removed with their tables: the cost is a flush, a compaction of the tables of level 0 that overlap, and
    /// the rewriting of the tables at both ends of the range, up to 64 MiB in each level; not a write for each key. Such a removal
    /// continues if its future is dropped, and transactions that are open conflict.
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get) and [`put`](Keyspace::put). After an error nothing was removed.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// let days = store.default_keyspace();
    /// for day in ["2025-12-31", "2026-01-01", "2026-01-02"] {
    ///     days.put(day, "x").wait()?;
    /// }
    /// days.delete_range(.."2026").wait()?;
    /// assert!(!days.contains_key("2025-12-31").wait()?);
    /// assert!(days.contains_key("2026-01-01").wait()?);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn delete_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Pending<'_, ()> {
        let (shared, bounds) = (&self.handle.shared, Bounds::of(&range));
        Pending::new(&shared.engine, async move {
            shared.check_writable()?;
            shared.see_committed().await?;
            let mut entries = self.range_at(bounds.clone(), None).keys_only();
            let (mut batch, mut bytes, mut logged) = (Batch::new(), 0, HEADER_BYTES);
            // The batch has to fit into a memtable, and into the log of a full store.
            let most = shared.options.delete_batch_max.min(shared.budget.memtable / 256);
            let bytes_max = shared.budget.memtable / 8;
            let logged_max = if self.is_unlogged { u64::MAX } else { shared.deletes_bytes_max() };
            while let Some(entry) = entries.next().await {
                let (key, _) = entry?;
                bytes += key.len() as u64;
                logged += record::entry_bytes(&key, &Change::Delete);
                if batch.len() as u64 == most || bytes > bytes_max || logged as u64 > logged_max {
                    drop(entries);
                    return removal::range(shared, self.id, bounds).await;
                }
                batch.delete(self, key);
            }
            drop(entries);
            match batch.ready(shared, self.handle.number)? {
                Some(ready) => Write::new(shared, Ok(ready)).await,
                None => shared.check_writable(),
            }
        })
    }

    /// Returns whether a key has a value. A long value that is stored apart from its key is not read.
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get).
    pub fn contains_key<'a>(&'a self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Pending<'a, bool> {
        let (shared, key) = (&self.handle.shared, key.as_ref());
        Pending::new(&shared.engine, async move {
            record::check(key, &Change::Delete)?;
            shared.contains(self.id, key).await
        })
    }

    fn change(&self, key: &[u8], change: &Change<'_>) -> Write<'_> {
        let ready = self.single(key, change);
        Write::new(&self.handle.shared, ready)
    }

    fn single(&self, key: &[u8], change: &Change<'_>) -> Result<Ready> {
        record::check(key, change)?;
        let shared = &self.handle.shared;
        let record = Record::single(self.id, key, change);
        let puts = usize::from(!matches!(change, Change::Delete));
        let ready = Ready::new(shared, record, vec![HEADER_BYTES as u32], puts);
        Ok(ready.without(&self.unlogged().into_iter().collect()))
    }

    /// Puts `new`, or deletes the key if `new` is `None`, if the key's value is `expected`; returns whether
    /// it did, or the current value. An `expected` of `None` means that the key has no value. Durable when it
    /// returns.
    ///
    /// # Errors
    /// Those of [`get`](Keyspace::get) and [`put`](Keyspace::put).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store, SwapOutcome};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// # let users = store.keyspace("users").wait()?;
    /// # users.put("anna", "1").wait()?;
    /// # users.put("bert", "2").wait()?;
    /// let done = users.compare_and_set("anna", Some(b"1"), Some(b"2")).wait()?;
    /// assert_eq!(done, SwapOutcome::Done);
    /// match users.compare_and_set("anna", Some(b"1"), Some(b"3")).wait()? {
    ///     SwapOutcome::Not { current } => assert_eq!(current.as_deref(), Some(&b"2"[..])), // try again with this
    ///     SwapOutcome::Done => return Err("the value is 2".into()),
    /// }
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn compare_and_set<'a>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        expected: Option<&'a [u8]>,
        new: Option<&'a [u8]>,
    ) -> Pending<'a, SwapOutcome> {
        let (shared, key) = (&self.handle.shared, key.as_ref());
        let change = match new {
            Some(value) => Change::Put { value, expires_s: None },
            None => Change::Delete,
        };
        let ready = self.single(key, &change);
        let keyspace = self.id;
        Pending::new(&shared.engine, async move {
            swap::compare_and_set(shared, keyspace, key, expected, ready?).await
        })
    }
}

pub(crate) fn other_store() -> Error {
    Error::new(ErrorKind::InvalidInput, "a keyspace of another store")
}

forebay::_debug_parts!(Keyspace, |keyspace| name: keyspace.name);
