//! redb: a B+-tree in one file, copied on write, read and written through the page cache beside a cache of
//! its own.

use ::redb::{Database, Durability, ReadableDatabase as _, TableDefinition};
use anyhow::{Context as _, Result};

use super::Work;
use super::data::{self, Key, VALUE_BYTES, Values};
use super::drive::{LOAD_ENTRIES, Peer};

const TABLE: TableDefinition<'_, Key, &[u8]> = TableDefinition::new("bench");

/// An open database.
pub(super) struct Redb {
    database: Database,
}

impl Redb {
    /// Opens the database. Half of the memory is its cache, the rest is left to the page cache.
    pub(super) fn open(work: &Work) -> Result<Self> {
        let cache_bytes = usize::try_from(work.memory_bytes / 2)?;
        let database = Database::builder().set_cache_size(cache_bytes).create(work.dir.join("redb"))?;
        Ok(Self { database })
    }
}

impl Peer for Redb {
    fn load(&self, keys: u64, values: &Values) -> Result<()> {
        let mut value = [0; VALUE_BYTES];
        for first in (0..keys).step_by(LOAD_ENTRIES as usize) {
            let end = (first + LOAD_ENTRIES).min(keys);
            let mut transaction = self.database.begin_write()?;
            if end < keys {
                transaction.set_durability(Durability::None)?;
            }
            {
                let mut table = transaction.open_table(TABLE)?;
                for number in first..end {
                    values.write(number, &mut value);
                    table.insert(&data::key(number), &value[..])?;
                }
            }
            transaction.commit()?;
        }
        Ok(())
    }

    fn get(&self, key: &Key, see: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let table = self.database.begin_read()?.open_table(TABLE)?;
        let value = table.get(key)?.context("a key is missing")?;
        see(value.value())
    }

    fn put(&self, entries: &[(Key, Vec<u8>)]) -> Result<()> {
        let transaction = self.database.begin_write()?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in entries {
                table.insert(key, &value[..])?;
            }
        }
        Ok(transaction.commit()?)
    }
}
