//! [`Changes`]: the writes of a store in the order of its log, for caches, indexes and watchers.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use forebay::Waitable;
use forebay_wal::Lsn;

use super::Handle;
use crate::error::{Error, ErrorKind, Result};
use crate::record;

/// Bytes of records that a feed reads together.
const READ_BYTES: usize = 256 << 10;

/// The changes of one write: of a put, delete, batch or transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangeSet {
    /// The number of its record in the log; later writes have higher numbers.
    pub lsn: Lsn,
    /// The changes in order; the last change of a key applies.
    pub entries: Vec<ChangedEntry>,
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangedEntry {
    /// The name of its keyspace.
    pub keyspace: Arc<str>,
    /// The key.
    pub key: Vec<u8>,
    /// The new value; `None` if the key was deleted.
    pub value: Option<Vec<u8>>,
    /// The expiry in seconds since 1970, if any; from then on the key counts as deleted.
    pub expires_s: Option<u64>,
}

/// The writes of a store in the order in which they became durable; see [`Store::changes`](crate::Store::changes). Use
/// `next().await`, or `next().wait()` on threads.
///
/// A feed keeps the store open. While it is not read, the log keeps the records of up to three flushes for it; its other
/// costs are a few hundred bytes and what it has read, up to 256 KiB or one record.
pub struct Changes {
    handle: Arc<Handle>,
    next: u64,
    loads: u64,
    read: VecDeque<ChangeSet>,
    is_over: bool,
}

impl Changes {
    pub(crate) fn new(handle: &Arc<Handle>, from: Lsn) -> Changes {
        let next = from.0.max(1);
        handle.shared.feeds.enter(next);
        let loads = handle.shared.lock().loads;
        Changes { handle: handle.clone(), next, loads, read: VecDeque::new(), is_over: false }
    }

    /// Returns the number of the next record that will be read.
    pub fn position(&self) -> Lsn {
        Lsn(self.read.front().map_or(self.next, |first| first.lsn.0))
    }

    /// Waits for the next write and returns it. Returns `None` after an error, and when the store was closed. Dropping the future
    /// loses nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Lagged`] if the log no longer has the next record, or the store has changed in a way that is not in the log: by
    /// a bulk load, an [`ingest`](crate::Store::ingest), [`delete_range`](crate::Keyspace::delete_range) or
    /// [`drop_keyspace`](crate::Store::drop_keyspace). Create a new feed, and then a snapshot to read. [`ErrorKind::Corruption`];
    /// the system's.
    #[expect(clippy::should_implement_trait, reason = "the asynchronous `next`, as that of a `Stream`")]
    pub fn next(&mut self) -> Waitable<impl Future<Output = Option<Result<ChangeSet>>>> {
        Waitable::new("changes", async move {
            if self.is_over {
                return None;
            }
            match self.step().await {
                Ok(set) => Some(Ok(set)),
                Err(error) => {
                    self.is_over = true;
                    (error.kind() != ErrorKind::Closed).then_some(Err(error))
                }
            }
        })
    }

    async fn step(&mut self) -> Result<ChangeSet> {
        loop {
            if let Some(set) = self.read.pop_front() {
                return Ok(set);
            }
            let shared = self.handle.shared.clone();
            shared.check_open()?;
            let is_gone = |error: &forebay_wal::Error| {
                matches!(error.kind(), forebay_wal::ErrorKind::OutOfRange { .. })
            };
            let records = match shared.wal.wait_durable(Lsn(self.next)).await {
                Ok(()) => shared.wal.read(Lsn(self.next)..=shared.wal.durable_lsn(), READ_BYTES).await,
                Err(error) => Err(error),
            };
            if shared.lock().loads != self.loads {
                let text = "the store was changed by a bulk load, an ingest or the removal of a range or keyspace, which is \
                            not in its log; begin again with a new feed, and then a snapshot";
                return Err(Error::new(ErrorKind::Lagged, text));
            }
            let records = match records {
                Err(error) if is_gone(&error) => Vec::new(),
                records => records?,
            };
            if records.first().is_none_or(|first| first.lsn().0 != self.next) {
                let text = format!(
                    "the log no longer has record {}, because the feed was not read for several flushes; begin again with \
                     a new feed, and then a snapshot",
                    self.next
                );
                return Err(Error::new(ErrorKind::Lagged, text));
            }
            let (before, mut next) = (self.next, self.next);
            for found in &records {
                next = found.lsn().0 + 1;
                let set = self.change_set(found.lsn(), found)?;
                if !set.entries.is_empty() {
                    self.read.push_back(set);
                }
            }
            // Only now: a feed that ends here with an error leaves the place that it has entered.
            self.next = next;
            shared.feeds.enter(next);
            shared.leave_feed(before);
        }
    }

    /// Returns the changes of a record.
    fn change_set(&self, lsn: Lsn, bytes: &[u8]) -> Result<ChangeSet> {
        let mut entries = Vec::new();
        for at in record::parse(bytes)? {
            let Some((entry, _)) = record::entry_at(bytes, at as usize) else { continue };
            let name = |view: &crate::view::View| {
                view.version.keyspace(entry.keyspace).map(|levels| levels.name.clone())
            };
            let Some(keyspace) = self.handle.shared.with_view(name) else { continue };
            let value = (!entry.deleted).then(|| record::slice(bytes, &entry.value).to_vec());
            let key = record::slice(bytes, &entry.key).to_vec();
            entries.push(ChangedEntry { keyspace, key, value, expires_s: entry.expires_s });
        }
        Ok(ChangeSet { lsn, entries })
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.handle.shared.leave_feed(self.next);
    }
}

forebay::_debug_parts!(Changes, |changes| next: changes.next);
