//! The rows with Forebay's key-value store.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay::{Config, Engine};
use forebay_kv::{Batch as Changes, Keyspace, Options, Store};

use super::super::pattern::Pattern;
use super::appender::{Appender, Appending};
use super::batches::{self, Batch};
use super::job::{WalWork, Way};
use super::log::close_engine;

/// An engine with one shard and a store on it.
struct Records {
    store: Store,
    keyspace: Keyspace,
    values: Arc<Vec<u8>>,
    record_bytes: usize,
    batch: u64,
    /// Number of batches begun; each has keys of its own.
    begun: AtomicU64,
    way: Way,
    engine: Mutex<Option<Engine>>,
}

/// Opens a fresh store and returns the row's appender.
///
/// # Errors
/// Errors of the engine and the store.
pub(super) fn open(directory: &Path, work: &WalWork, way: Way) -> anyhow::Result<Arc<dyn Appender>> {
    let engine = Engine::start(Config::default().shards(1))?;
    let store = Store::open(&engine, directory, Options::new().log_segment_bytes(work.file_bytes)).wait()?;
    let length = work.record_bytes * work.batch;
    let mut values = vec![0; length.next_multiple_of(4096)];
    Pattern::new(work.seed).fill(0, &mut values);
    values.truncate(length);
    Ok(Arc::new(Records {
        keyspace: store.default_keyspace(),
        store,
        values: Arc::new(values),
        record_bytes: work.record_bytes,
        batch: work.batch as u64,
        begun: AtomicU64::new(0),
        way,
        engine: Mutex::new(Some(engine)),
    }))
}

/// Returns the key of record `index` in batch `number`. Batches of several tasks are adjacent.
fn key(number: u64, index: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[8..].copy_from_slice(&index.to_be_bytes());
    key
}

struct Puts {
    store: Store,
    changes: Changes,
}

impl Batch for Puts {
    fn wait(self) -> anyhow::Result<()> {
        Ok(self.store.write(&self.changes).wait()?)
    }

    async fn write(self) -> anyhow::Result<()> {
        Ok(self.store.write(&self.changes).await?)
    }
}

impl Appender for Records {
    fn append(&self, _lane: usize) -> Appending {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let mut changes = Changes::new();
        for (index, value) in (0..).zip(self.values.chunks_exact(self.record_bytes)) {
            changes.put(&self.keyspace, key(number, index), value);
        }
        batches::append(self.way, Puts { store: self.store.clone(), changes })
    }

    fn begins_anywhere(&self) -> bool {
        self.way != Way::Direct
    }

    fn close(&self, appends: u64) -> anyhow::Result<()> {
        let mut whole = 0;
        for number in 0..self.begun.load(Ordering::Relaxed) {
            let last = self.keyspace.get(&key(number, self.batch - 1)).wait()?;
            whole += u64::from(last.is_some());
        }
        anyhow::ensure!(whole >= appends, "{appends} batches completed and {whole} are in the store");
        self.store.close().wait()?;
        close_engine(&self.engine)
    }
}
