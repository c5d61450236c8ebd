//! Several puts and deletes that are applied together.

use std::collections::BTreeSet;

use super::keyspace::{Keyspace, other_store};
use crate::engine::commit::Ready;
use crate::engine::shared::StoreCore;
use crate::error::{Error, Result};
use crate::record::{self, Change, Record};

/// Puts and deletes, of any keyspaces of one store, that are applied atomically; see [`Store::write`](crate::Store::write).
///
/// Of several changes of one key the last one counts. A batch uses the memory of its keys and values, once, and as much again while
/// it is written. It is never divided; [`Store::batch_bytes_max`](crate::Store::batch_bytes_max) is its maximum length.
///
/// ```
/// # use forebay::{Config, Engine};
/// # use forebay_kv::{Batch, Options, Store};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let engine = Engine::start(Config::new())?;
/// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
/// # let (users, counts) = (store.keyspace("users").wait()?, store.keyspace("counts").wait()?);
/// let mut batch = Batch::new();
/// batch.put(&users, "anna", "1").put(&counts, "users", "1");
/// store.write(&batch).wait()?;
/// batch.clear(); // keeps its memory for the next
/// # store.close().wait()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch {
    record: Vec<u8>,
    places: Vec<u32>,
    /// Number of changes other than deletions.
    puts: usize,
    /// The number of the store that its keyspaces belong to.
    store: Option<u64>,
    /// Keyspaces that are not logged.
    unlogged: BTreeSet<u32>,
    failed: Option<Error>,
}

impl Batch {
    /// Returns a batch without changes.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Sets a key's value.
    ///
    /// A key or value outside of the limits is reported as an error when the batch is written.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Batch {
        let put = Change::Put { value: value.as_ref(), expires_s: None };
        self.add(keyspace, key.as_ref(), &put)
    }

    /// Sets a key's value with an expiry: from `expires_s` on, in seconds since 1970, the key counts as deleted.
    pub fn put_until(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires_s: u64,
    ) -> &mut Batch {
        let put = Change::Put { value: value.as_ref(), expires_s: Some(expires_s) };
        self.add(keyspace, key.as_ref(), &put)
    }

    /// Removes a key, if it exists.
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> &mut Batch {
        self.add(keyspace, key.as_ref(), &Change::Delete)
    }

    /// Returns the number of changes so far.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether the batch has no changes.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.failed.is_none()
    }

    /// Removes all changes, so that the batch can be filled again.
    pub fn clear(&mut self) {
        self.record.clear();
        self.places.clear();
        (self.puts, self.store, self.failed) = (0, None, None);
        self.unlogged.clear();
    }

    fn add(&mut self, keyspace: &Keyspace, key: &[u8], change: &Change<'_>) -> &mut Batch {
        if self.failed.is_none()
            && let Err(error) = self.try_add(keyspace, key, change)
        {
            self.failed = Some(error);
        }
        self
    }

    fn try_add(&mut self, keyspace: &Keyspace, key: &[u8], change: &Change<'_>) -> Result<()> {
        record::check(key, change)?;
        keyspace.check_store(*self.store.get_or_insert(keyspace.store_number()))?;
        self.note_unlogged(keyspace.unlogged());
        self.push(keyspace.id(), key, change)
    }

    /// Notes a keyspace that is not logged.
    pub(crate) fn note_unlogged(&mut self, keyspace: Option<u32>) {
        self.unlogged.extend(keyspace);
    }

    /// Adds a change that was checked.
    pub(crate) fn push(&mut self, keyspace: u32, key: &[u8], change: &Change<'_>) -> Result<()> {
        if self.record.is_empty() {
            self.record.extend_from_slice(&record::header_bytes(0));
        }
        let (at, bytes) = (self.record.len(), record::entry_bytes(key, change));
        let limit = u32::MAX as usize / 2;
        if at + bytes > limit {
            let kind = crate::error::ErrorKind::TooLarge { limit };
            return Err(Error::new(kind, "a batch of more than 2 GiB"));
        }
        self.record.resize(at + bytes, 0);
        record::put_entry(&mut self.record[at..], keyspace, key, change);
        self.places.push(at as u32);
        self.puts += usize::from(!matches!(change, Change::Delete));
        Ok(())
    }

    /// Returns the record for the log, or `None` for an empty batch.
    pub(crate) fn ready(&self, shared: &StoreCore, store: u64) -> Result<Option<Ready>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.places.is_empty() {
            return Ok(None);
        }
        if self.store.is_some_and(|own| own != store) {
            return Err(other_store());
        }
        let record = Record::new(self.record.len(), |bytes| {
            bytes.copy_from_slice(&self.record);
            bytes[..record::HEADER_BYTES].copy_from_slice(&record::header_bytes(self.places.len() as u32));
        });
        Ok(Some(Ready::new(shared, record, self.places.clone(), self.puts).without(&self.unlogged)))
    }
}
