//! [`Records`]: all that a state has of its keys, in the order of revisions, as etcd's files have it.

use forebay_kv::Range;

use super::Failure;
use super::codec::{At, Record};
use super::view::View;
use crate::proto::mvccpb::KeyValue;

/// All puts and deletes that a view has.
pub(crate) struct Records(Range);

/// A put or delete.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyRecord {
    pub(crate) main: i64,
    pub(crate) sub: u32,
    pub(crate) is_delete: bool,
    /// Of a delete: with its key alone.
    pub(crate) pair: KeyValue,
}

impl View {
    /// Returns all puts and deletes, also those that are compacted and not removed yet.
    pub(crate) fn records(&self) -> Result<Records, Failure> {
        Ok(Records(self.reader()?.events(At::default(), None)))
    }
}

impl Records {
    pub(crate) async fn next(&mut self) -> Result<Option<KeyRecord>, Failure> {
        let Some((key, value)) = self.0.next().await.transpose()? else { return Ok(None) };
        let (at, record) = (At::of_key(&key)?, Record::decode(&value)?);
        let key = record.key.to_vec();
        let pair = match &record.put {
            Some(put) => put.key_value(key, at.main),
            None => KeyValue { key: key.into(), ..KeyValue::default() },
        };
        Ok(Some(KeyRecord { main: at.main, sub: at.sub, is_delete: record.put.is_none(), pair }))
    }
}
