//! fjall: an LSM tree with a journal, read and written through the page cache beside a cache of its own.
//! Values here do not compress, so compression is off.

use ::fjall::config::CompressionPolicy;
use ::fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use anyhow::{Context as _, Result};

use super::Work;
use super::data::{self, Key, VALUE_BYTES, Values};
use super::drive::Peer;

/// An open database.
pub(super) struct Fjall {
    database: Database,
    keyspace: Keyspace,
}

impl Fjall {
    /// Opens the database. Half of the memory is its cache, the rest is for memtables and the page cache.
    pub(super) fn open(work: &Work) -> Result<Self> {
        let database = Database::builder(work.dir.join("fjall")).cache_size(work.memory_bytes / 2).open()?;
        let memtable_bytes = (work.memory_bytes / 8).min(64 << 20);
        let keyspace = database.keyspace("bench", || {
            KeyspaceCreateOptions::default()
                .data_block_compression_policy(CompressionPolicy::disabled())
                .max_memtable_size(memtable_bytes)
        })?;
        Ok(Self { database, keyspace })
    }
}

impl Peer for Fjall {
    fn load(&self, keys: u64, values: &Values) -> Result<()> {
        let mut value = [0; VALUE_BYTES];
        let mut ingestion = self.keyspace.start_ingestion()?;
        for number in 0..keys {
            values.write(number, &mut value);
            ingestion.write(&data::key(number)[..], &value[..])?;
        }
        Ok(ingestion.finish()?)
    }

    fn get(&self, key: &Key, see: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        see(&self.keyspace.get(key)?.context("a key is missing")?)
    }

    fn put(&self, entries: &[(Key, Vec<u8>)]) -> Result<()> {
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
        for (key, value) in entries {
            batch.insert(&self.keyspace, &key[..], &value[..]);
        }
        Ok(batch.commit()?)
    }
}
