//! The operations of every other store here: all their calls block.

use std::sync::Arc;

use anyhow::{Result, bail};

use super::KvJob;
use super::data::{Key, Values};

/// Entries of one transaction of a load, where a store loads by transactions.
pub(crate) const LOAD_ENTRIES: u64 = 20_000;

/// A store whose calls block.
pub(crate) trait Peer: Send + Sync {
    /// Loads the keys with the numbers from 0 to `keys` in their order, the fastest way it has; durable when
    /// it returns.
    fn load(&self, keys: u64, values: &Values) -> Result<()>;
    /// Passes the newest value of a key to `see`, in place if the store allows it. A key that is missing is
    /// an error.
    fn get(&self, key: &Key, see: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;
    /// Puts entries, all or nothing; durable when it returns.
    fn put(&self, entries: &[(Key, Vec<u8>)]) -> Result<()>;
}

/// Opens the store of a row, or makes it in an empty folder.
///
/// # Errors
/// Those of the store.
pub(crate) fn open(job: &KvJob) -> Result<Arc<dyn Peer>> {
    Ok(match job.row.as_str() {
        "redb" => Arc::new(super::redb::Redb::open(job)?),
        "fjall" => Arc::new(super::fjall::Fjall::open(job)?),
        "heed" => Arc::new(super::heed::Lmdb::open(job)?),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Arc::new(super::rocksdb::Rocks::open(job)?),
        other => bail!("there is no row {other}"),
    })
}
