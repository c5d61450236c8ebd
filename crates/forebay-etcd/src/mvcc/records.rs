//! [`Records`]: all that a state has of its keys, in the order of revisions, as etcd's files have it.

use std::vec::IntoIter;

use super::Failure;
use super::codec::{At, Put, Record};
use super::range::{self, FETCH};
use super::reader::Reader;
use super::view::View;
use super::walk::Walk;
use crate::proto::mvccpb::KeyValue;

/// Bytes of values after which no more short events are read to fetch theirs.
const FETCH_BYTES_MAX: u64 = 1 << 20;

/// Puts and deletes of a view.
pub(crate) struct Records<'a> {
    reader: Reader<'a>,
    events: Walk<'a>,
    read: IntoIter<KeyRecord>,
}

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
    pub(crate) fn records(&self) -> Result<Records<'_>, Failure> {
        Ok(Records::new(self.reader()?, i64::MAX))
    }
}

impl<'a> Records<'a> {
    /// Starts with the first record, and ends before a revision.
    pub(super) fn new(reader: Reader<'a>, until: i64) -> Records<'a> {
        let events = reader.walk_events(At::default(), At::first(until));
        Records { reader, events, read: Vec::new().into_iter() }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<KeyRecord>, Failure> {
        if let Some(record) = self.read.next() {
            return Ok(Some(record));
        }
        let (mut read, mut bytes) = (Vec::new(), 0);
        let (mut short, mut versions) = (Vec::new(), Vec::new());
        while let Some((key, value)) = self.events.next().await? {
            let (at, record) = (At::of_key(&key)?, Record::decode(&value)?);
            let key = record.key.to_vec();
            let pair = match &record.put {
                Some(Put::Whole(put)) => put.key_value(key, at.main),
                Some(Put::Short { .. }) => {
                    short.push(read.len());
                    versions.push((key, at));
                    KeyValue::default()
                }
                None => KeyValue { key: key.into(), ..KeyValue::default() },
            };
            bytes += record.value_bytes();
            read.push(KeyRecord { main: at.main, sub: at.sub, is_delete: record.put.is_none(), pair });
            if short.is_empty() || read.len() >= FETCH || bytes >= FETCH_BYTES_MAX {
                break;
            }
        }
        if !short.is_empty() {
            // The values may need the memory.
            self.events.let_go();
            let pairs = range::puts_at(self.reader, &versions, range::OF_SHORT).await?;
            for (number, pair) in short.into_iter().zip(pairs) {
                read[number].pair = pair;
            }
        }
        self.read = read.into_iter();
        Ok(self.read.next())
    }
}
