//! [`BulkLoad`]: sorted entries that are written directly to tables.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay::Waitable;

use super::Handle;
use super::sorted_file::OrderCheck;
use crate::engine::compact::Output;
use crate::engine::install::{WriteOrder, install};
use crate::engine::shared::in_task;
use crate::error::Result;
use crate::manifest::version::LEVELS;
use crate::record::{self, Change};
use crate::table::Entry;
use crate::value::HeldShare;

/// Maximum memory of one load, in bytes.
const MEMORY_MAX: u64 = 2 << 20;

/// A loader of sorted entries into a keyspace; see [`Keyspace::loader`](crate::Keyspace::loader).
///
/// The entries are written to tables directly, bypassing the log and the memtables. No reader sees any of them until
/// [`finish`](BulkLoad::finish) publishes them in one step. Dropping the load before that changes nothing. A load uses up to 2 MiB
/// of memory, or half of the memory that the program may hold if that is less; it counts as held by the program.
pub struct BulkLoad {
    handle: Arc<Handle>,
    output: Output,
    order: OrderCheck,
    /// Bytes of the keys and values added.
    put_bytes: u64,
    _held: HeldShare,
}

impl BulkLoad {
    pub(crate) fn new(handle: &Arc<Handle>, keyspace: u32) -> BulkLoad {
        let shared = &handle.shared;
        let memory = (shared.budget.held / 2).min(MEMORY_MAX);
        let held = HeldShare::new(Some(shared.cache.held()), memory);
        let mut order = OrderCheck::default();
        order.fail(shared.check_held().err());
        BulkLoad {
            handle: handle.clone(),
            output: Output::new(shared, keyspace, LEVELS - 1, memory),
            order,
            put_bytes: 0,
            _held: held,
        }
    }

    /// Adds an entry, whose key is above all keys added before. Waits only for the device.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for the empty key and for a key that is not above the last one;
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge), [`ErrorKind::MemoryBudget`](crate::ErrorKind::MemoryBudget),
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace), [`ErrorKind::Closed`](crate::ErrorKind::Closed),
    /// [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly); the system's. After an error, or if this future was dropped unfinished,
    /// every further call fails and nothing of the load will be in the store.
    pub fn add(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("load", async move { self.put(key.as_ref(), value.as_ref(), None).await })
    }

    /// Adds an entry as [`add`](BulkLoad::add) does. It expires at `expires_s`, in seconds since 1970, and counts as deleted from
    /// then on. Used by tests alone.
    ///
    /// # Errors
    /// Those of [`add`](BulkLoad::add).
    #[doc(hidden)]
    pub fn add_until(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires_s: u64,
    ) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("load", async move { self.put(key.as_ref(), value.as_ref(), Some(expires_s)).await })
    }

    /// Returns the number of entries added so far.
    pub fn entries(&self) -> u64 {
        self.order.entries()
    }

    async fn put(&mut self, key: &[u8], value: &[u8], expires_s: Option<u64>) -> Result<()> {
        let (shared, output) = (&self.handle.shared, &mut self.output);
        let add = async {
            shared.check_writable()?;
            shared.full.check_growth()?;
            record::check(key, &Change::Put { value, expires_s })?;
            // Compaction needs the memory to rewrite the value.
            shared.budget.check_value(value.len())?;
            output.add(key, Entry::Value { bytes: value, expires_s }).await
        };
        self.order.add("load", key, add).await?;
        let expiry_bytes = if expires_s.is_some() { 8 } else { 0 };
        self.put_bytes += (key.len() + value.len()) as u64 + expiry_bytes;
        Ok(())
    }

    /// Makes all added entries visible in one step; durable when it returns. Entries written before this call
    /// are older than the load, also where they have the same keys. Entries written while it is in progress
    /// may be older or newer. Continues if its future is dropped.
    ///
    /// Each table is placed in the lowest level where it hides nothing newer. Where the load overlaps recently written entries,
    /// those are compacted first.
    ///
    /// # Errors
    /// Those of [`add`](BulkLoad::add); then nothing of the load is in the store. After
    /// [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly) the store has all or nothing of it once it is opened again.
    pub fn finish(self) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("load", self.commit())
    }

    async fn commit(self) -> Result<()> {
        let BulkLoad { handle, mut output, order, put_bytes, _held } = self;
        if let Err(error) = order.check() {
            output.abandon().await;
            return Err(error);
        }
        in_task(&handle.shared, move |shared| async move {
            let _held = _held;
            let written = output.finish().await.map(|_| ());
            if let Err(error) = written {
                output.abandon().await;
                return Err(error);
            }
            let metas = output.keep();
            let bytes: u64 = metas.iter().map(|meta| meta.bytes).sum();
            install(&shared, metas, WriteOrder::Loose).await?;
            shared.counters.loaded.fetch_add(bytes, Ordering::Relaxed);
            shared.counters.put.fetch_add(put_bytes, Ordering::Relaxed);
            Ok(())
        })
        .await
    }
}

forebay::_debug_parts!(BulkLoad, |bulk_load| entries: bulk_load.entries());
