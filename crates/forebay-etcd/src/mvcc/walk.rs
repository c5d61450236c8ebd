//! [`Walk`]: the entries between two keys, one after the other, for an entry of the log too.

use std::ops::Bound;
use std::time::Duration;

use forebay_kv::{ErrorKind, Range, Value};
use openraft::type_config::TypeConfigExt;
use tokio::time::Instant;

use super::Failure;
use super::reader::{Part, Reader};
use crate::types::Types;

/// Until a read is made again for which the store had no memory: at first, and at most.
const AGAIN: Duration = Duration::from_millis(1);
const AGAIN_MAX: Duration = Duration::from_millis(100);
/// A longer wait is logged.
const WAIT_USUAL_MAX: Duration = Duration::from_secs(5);

/// Entries of a keyspace in order.
///
/// A committed entry of the log is applied even if clients' reads use up the store's memory: it waits. Meanwhile it holds nothing,
/// because a range keeps the memtables of its time, whose memory may be the missing memory: once they are in tables, they count as
/// held by the program. So the range is dropped, and another range continues after the last key. Its result is the same, because an
/// entry writes its changes after all its reads, and nothing else writes.
pub(super) struct Walk<'a> {
    reader: Reader<'a>,
    part: Part,
    /// Of the entries that are left.
    bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    is_reversed: bool,
    is_keys_only: bool,
    range: Option<Range>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(reader: Reader<'a>, part: Part, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Walk<'a> {
        let bounds = (bounds.0.map(<[u8]>::to_vec), bounds.1.map(<[u8]>::to_vec));
        Walk { reader, part, bounds, is_reversed: false, is_keys_only: false, range: None }
    }

    /// Walks from the last entry to the first, unless it has started.
    pub(super) fn rev(mut self) -> Walk<'a> {
        self.is_reversed = true;
        self
    }

    /// Returns the next entry. Waits for memory if it reads for an entry of the log.
    pub(super) async fn next(&mut self) -> Result<Option<(Vec<u8>, Value)>, Failure> {
        let mut wait = Wait::default();
        loop {
            let mut range = self.range.take().unwrap_or_else(|| self.left());
            match range.next().await.transpose() {
                Err(error) if self.reader.is_for_entry() && is_memory(&error) => {
                    drop(range);
                    wait.again().await;
                }
                found => {
                    let found = found?;
                    if let Some((key, _)) = &found {
                        self.pass(key);
                    }
                    self.range = Some(range);
                    return Ok(found);
                }
            }
        }
    }

    /// Continues after this key, which must not precede the last entry's key. Not for reversed walks.
    pub(super) fn skip_to(&mut self, key: Vec<u8>) {
        self.bounds.0 = Bound::Excluded(key);
        self.range = None;
    }

    /// Leaves values unread from here on that lie apart from their keys: they are empty.
    pub(super) fn skip_values(&mut self) {
        self.is_keys_only = true;
        self.range = None;
    }

    /// Releases the range until the next call of `next`, so that other reads can wait for memory.
    pub(super) fn let_go(&mut self) {
        self.range = None;
    }

    fn left(&self) -> Range {
        let (low, high) = &self.bounds;
        let range = self
            .reader
            .range(self.part, (low.as_ref().map(|low| &low[..]), high.as_ref().map(|high| &high[..])));
        let range = if self.is_keys_only { range.keys_only() } else { range };
        if self.is_reversed { range.rev() } else { range }
    }

    fn pass(&mut self, key: &[u8]) {
        let end = if self.is_reversed { &mut self.bounds.1 } else { &mut self.bounds.0 };
        if let Bound::Excluded(last) = end {
            last.clear();
            last.extend_from_slice(key);
        } else {
            *end = Bound::Excluded(key.to_vec());
        }
    }
}

/// Returns whether a read failed because clients use up the store's memory.
pub(super) fn is_memory(error: &forebay_kv::Error) -> bool {
    matches!(error.kind(), ErrorKind::MemoryBudget { .. })
}

/// A wait for memory that the program holds elsewhere.
#[derive(Default)]
pub(super) struct Wait {
    begun: Option<Instant>,
    last: Duration,
    is_logged: bool,
}

impl Wait {
    /// Waits until the read can be made again.
    pub(super) async fn again(&mut self) {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        self.last = (self.last * 2).clamp(AGAIN, AGAIN_MAX);
        Types::sleep(self.last).await;
        let waited = begun.elapsed();
        if !self.is_logged && waited > WAIT_USUAL_MAX {
            self.is_logged = true;
            let waited_ms = waited.as_millis() as u64;
            tracing::warn!(
                waited_ms,
                "the state machine waits: reads of clients hold the memory of the store"
            );
        }
    }
}
