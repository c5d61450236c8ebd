//! [`Snapshot`]: a store as it was at one moment.

use std::ops::RangeBounds;
use std::sync::Arc;

use forebay_wal::Lsn;

use super::Handle;
use super::keyspace::Keyspace;
use super::range::Range;
use crate::engine::get::{Get, MultiGet};
use crate::merge::Bounds;
use crate::view::Moment;

/// A store as it was at one moment, with everything durable at that time; see
/// [`Store::snapshot`](crate::Store::snapshot).
///
/// A value that had not expired at that time stays visible while the snapshot lives.
///
/// A snapshot keeps the memtables and the files of that moment. Memtables that only snapshots need count as
/// held by the program.
#[derive(Clone)]
pub struct Snapshot {
    handle: Arc<Handle>,
    moment: Moment,
}

impl Snapshot {
    pub(crate) fn new(handle: Arc<Handle>, moment: Moment) -> Snapshot {
        Snapshot { handle, moment }
    }

    /// Returns the number of the log's last record in the snapshot.
    pub fn lsn(&self) -> Lsn {
        Lsn(self.moment.lsn)
    }

    /// Returns the value that a key had.
    ///
    /// # Errors
    /// Those of [`Keyspace::get`]; [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a keyspace
    /// of another store.
    pub fn get<'a>(&self, keyspace: &'a Keyspace, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Get<'a> {
        match keyspace.check_store(self.handle.number) {
            Ok(()) => keyspace.get_at(key.as_ref(), Some(self.moment.clone())),
            Err(error) => keyspace.get_failed(error),
        }
    }

    /// Returns the values that several keys had, in the order of the keys.
    ///
    /// # Errors
    /// Those of [`get`](Snapshot::get). If one key fails, the whole call fails.
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
    /// let before = store.snapshot();
    /// let values = before.multi_get(&users, ["anna", "bert"].iter()).wait()?;
    /// assert!(values.iter().all(Option::is_some));
    /// # drop((values, before));
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn multi_get<'a, K: AsRef<[u8]> + 'a>(
        &self,
        keyspace: &'a Keyspace,
        keys: impl IntoIterator<Item = &'a K>,
    ) -> MultiGet<'a> {
        match keyspace.check_store(self.handle.number) {
            Ok(()) => keyspace.multi_get_at(keys, Some(self.moment.clone())),
            Err(error) => keyspace.multi_get_failed(error),
        }
    }

    /// Returns the entries that were between two keys, in order.
    ///
    /// For a keyspace of another store, the range's first result is an error.
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
    /// let before = store.snapshot();
    /// users.delete("anna").wait()?;
    /// let mut range = before.range(&users, "a"..);
    /// let (key, _) = range.next().wait().ok_or("no entry")??;
    /// assert_eq!(key, b"anna"); // as it was
    /// # drop((range, before));
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, range: impl RangeBounds<K>) -> Range {
        self.range_of(keyspace, Bounds::of(&range))
    }

    /// Returns the entries whose keys start with this prefix.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        self.range_of(keyspace, Bounds::prefix(prefix.as_ref()))
    }

    /// Returns all entries that were in a keyspace.
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        self.range_of(keyspace, Bounds::ALL)
    }

    fn range_of(&self, keyspace: &Keyspace, bounds: Bounds) -> Range {
        match keyspace.check_store(self.handle.number) {
            Ok(()) => keyspace.range_at(bounds, Some(self.moment.clone())),
            Err(error) => keyspace.range_failed(error),
        }
    }
}

forebay::_debug_parts!(Snapshot, |snapshot| lsn: snapshot.moment.lsn);
