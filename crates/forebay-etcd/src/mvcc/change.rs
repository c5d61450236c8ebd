//! [`Change`]: the changes of one entry, as they are made.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use forebay_kv::Batch;

use super::codec::{self, At, Now, Previous, Put, PutRecord, Record, State};
use super::counts::Operations;
use super::range::{self, Place};
use super::reader::{Own, Part, Reader, Scan, ScanPair, Span};
use super::recent::Recent;
use super::sums::{add, event_hash, lease_hash, now_hash, record_hash};
use super::{
    BATCH_BYTES_MAX, CHANGE_BYTES, CHANGES_BYTES_MAX, ENTRY_BYTES, Failure, PREVIOUS_BYTES_MAX,
    RETURNED_BYTES_MAX,
};
use crate::proto::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
};
use crate::proto::mvccpb::event::EventType;
use crate::proto::mvccpb::{Event, KeyValue};
use crate::refusal::Refusal;

/// A batch that is filled with the changes of one entry. If it fails half-way, the batch is of no use.
pub(super) struct Change<'a> {
    pub(super) reader: Reader<'a>,
    recent: &'a Mutex<Recent>,
    pub(super) batch: &'a mut Batch,
    /// The state with the changes so far, but with the revision from before.
    pub(super) state: State,
    /// The events so far. Its keys are kept only if the entry reads its own changes.
    pub(super) own: Own,
    /// Events that were replaced, and stay whole.
    pub(super) replaced: Vec<At>,
    /// Its operations so far.
    pub(super) operations: Operations,
    keeps_keys: bool,
    bytes: u64,
    /// Those of keys that `bytes` leaves out: of moved values, and the bytes by which zeros are escaped.
    more_key_bytes: u64,
    /// Bytes of values that the entry has deleted or replaced: its events have them.
    previous_bytes: u64,
    /// Bytes of pairs that its ranges return.
    returned_bytes: u64,
    scratch: Vec<u8>,
}

/// The value of a key before a change, with its place in `events`.
pub(super) struct Before {
    pair: KeyValue,
    at: At,
}

impl<'a> Change<'a> {
    pub(super) fn new(
        reader: Reader<'a>,
        recent: &'a Mutex<Recent>,
        batch: &'a mut Batch,
        state: State,
    ) -> Change<'a> {
        let (own, replaced, scratch) = (Own::default(), Vec::new(), Vec::new());
        let (operations, keeps_keys, bytes, previous_bytes) = (Operations::default(), false, 0, 0);
        Change {
            reader,
            recent,
            batch,
            state,
            own,
            replaced,
            operations,
            keeps_keys,
            bytes,
            more_key_bytes: 0,
            previous_bytes,
            returned_bytes: 0,
            scratch,
        }
    }

    /// Lets later operations of the entry see earlier operations.
    pub(super) fn keep_keys(&mut self) {
        self.keeps_keys = true;
    }

    /// Returns the revision that the changes have, or would have.
    pub(super) fn next_revision(&self) -> i64 {
        self.state.revision + 1
    }

    /// Returns the revision that reads see now.
    pub(super) fn revision(&self) -> i64 {
        self.state.revision + i64::from(!self.own.events.is_empty())
    }

    /// Returns where reads of the entry look: at what was there, and at its own changes.
    pub(super) fn place(&self) -> Place<'_> {
        Place {
            reader: self.reader,
            state: self.state,
            revision: self.revision(),
            own: (!self.own.events.is_empty()).then_some(&self.own),
            recent: Some(self.recent),
        }
    }

    pub(super) async fn range(&mut self, request: &RangeRequest) -> Result<RangeResponse, Failure> {
        self.operations.ranges += 1;
        let mut returned_bytes = self.returned_bytes;
        let returned = Some((&mut returned_bytes, RETURNED_BYTES_MAX));
        let response = range::range(&self.place(), request, returned).await?;
        self.returned_bytes = returned_bytes;
        Ok(response)
    }

    /// Checks that a put's lease is there.
    pub(super) async fn check_lease(&self, request: &PutRequest) -> Result<(), Failure> {
        if request.lease != 0
            && self.reader.get(Part::Leases, &codec::lease_key(request.lease)).await?.is_none()
        {
            return Err(Refusal::LeaseNotFound.into());
        }
        Ok(())
    }

    /// Checks that a put's key was there before the entry, if it keeps something of it.
    pub(super) async fn check_before(&self, request: &PutRequest) -> Result<(), Failure> {
        super::check::check_key(&request.key)?;
        if (request.ignore_value || request.ignore_lease) && self.stored(&request.key).await?.is_none() {
            return Err(Refusal::KeyNotFound.into());
        }
        Ok(())
    }

    /// Puts a value, after both checks above.
    pub(super) async fn put(&mut self, request: PutRequest) -> Result<PutResponse, Failure> {
        let before = self.before(&request.key).await?;
        let PutRequest { key, value, mut lease, prev_kv, ignore_value, ignore_lease } = request;
        let mut value = Bytes::from(value);
        if ignore_value || ignore_lease {
            let Some(before) = &before else { return Err(Refusal::KeyNotFound.into()) };
            if ignore_value {
                value = before.pair.value.clone();
            }
            if ignore_lease {
                lease = before.pair.lease;
            }
        }
        let prev_kv = before.as_ref().filter(|_| prev_kv).map(|before| before.pair.clone());
        self.operations.puts += 1;
        self.operations.put_bytes += (key.len() + value.len()) as u64;
        self.write_put(key.into(), value, lease, before)?;
        Ok(PutResponse { header: None, prev_kv })
    }

    /// Reads the values of keys that are deleted next, concurrently.
    pub(super) async fn read_ahead(&self, keys: Vec<Vec<u8>>) -> Result<(), Failure> {
        self.reader.read_ahead(self.recent, keys).await
    }

    async fn before(&self, key: &[u8]) -> Result<Option<Before>, Failure> {
        if self.keeps_keys
            && let Some(own) = self.own.pair(key)
        {
            let at = At { main: self.next_revision(), sub: self.own.place(key).unwrap_or_default() };
            return Ok(own.map(|pair| Before { pair: pair.clone(), at }));
        }
        self.stored(key).await
    }

    /// Returns the value of a key before the entry.
    async fn stored(&self, key: &[u8]) -> Result<Option<Before>, Failure> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner).get(key);
        if let Some(current) = recent {
            return Ok(current.map(|(at, pair)| Before { pair, at }));
        }
        let Some(found) = self.reader.now(key).await? else { return Ok(None) };
        let now = Now::decode(&found)?;
        Ok(Some(Before { at: now.at, pair: now.key_value(key.to_vec()) }))
    }

    fn write_put(
        &mut self,
        key: Bytes,
        value: Bytes,
        lease: i64,
        before: Option<Before>,
    ) -> Result<(), Failure> {
        if entry_bytes(&key, value.len()) + event_bytes(&key, value.len() as u64) > CHANGES_BYTES_MAX {
            return Err(Refusal::RequestTooLarge.into());
        }
        let at = self.next_place();
        let (create, version) = before
            .as_ref()
            .map_or((at.main, 1), |before| (before.pair.create_revision, before.pair.version + 1));
        let previous = before.as_ref().map(|before| before.previous(&self.state));
        self.scratch.clear();
        Now { create, at, version, lease, value: &value }.encode(&mut self.scratch);
        self.batch.put(self.reader.keyspace(Part::Now), &key, &self.scratch);
        let put = Some(Put::Whole(PutRecord { create, version, lease, value: &value }));
        self.write_event(at, &Record { key: &key, previous, put });
        if let Some(before) = &before {
            self.replace(before);
        }
        self.bytes += entry_bytes(&key, value.len());
        let lease_before = before.as_ref().map_or(0, |before| before.pair.lease);
        if before.is_none() {
            self.state.used_bytes += entry_bytes(&key, 0);
        }
        self.move_lease(&key, lease_before, lease);
        let pair = KeyValue { key, create_revision: create, mod_revision: at.main, version, value, lease };
        self.push(Event {
            r#type: EventType::Put.into(),
            kv: Some(pair),
            prev_kv: before.map(|before| before.pair),
        })
    }

    pub(super) async fn delete_range(
        &mut self,
        request: &DeleteRangeRequest,
    ) -> Result<DeleteRangeResponse, Failure> {
        self.operations.deletes += 1;
        let span = Span::new(&request.key, &request.range_end);
        let mut found = Vec::new();
        if span.is_one() {
            found.extend(self.before(span.key).await?);
        } else {
            let mut scan = Scan::new(self.reader, span, Some(&self.own));
            let (mut bytes, mut previous_bytes) = (0, self.previous_bytes);
            while let Some(next) = scan.next().await? {
                let before = match next {
                    ScanPair::Own(pair, sub) => {
                        Before { pair: pair.clone(), at: At { main: self.next_revision(), sub } }
                    }
                    ScanPair::Stored(key, value) => {
                        let now = Now::decode(&value)?;
                        Before { at: now.at, pair: now.key_value(key) }
                    }
                };
                // So that a delete of all of a large state is refused before it is in memory.
                bytes += 3 * entry_bytes(&before.pair.key, 0);
                previous_bytes += before.pair.value.len() as u64;
                if self.state.is_short(before.at, before.pair.value.len()) {
                    bytes += before.pair.value.len() as u64;
                }
                let changes = 3 * (found.len() as u64 + 1);
                if !self.has_room(bytes, changes) || previous_bytes > PREVIOUS_BYTES_MAX {
                    return Err(Refusal::RequestTooLarge.into());
                }
                found.push(before);
            }
        }
        let deleted = found.len() as i64;
        let mut prev_kvs = Vec::new();
        for before in found {
            if request.prev_kv {
                prev_kvs.push(before.pair.clone());
            }
            self.write_delete(before)?;
        }
        Ok(DeleteRangeResponse { header: None, deleted, prev_kvs })
    }

    /// Returns whether the entry may delete this key of a lease as well.
    pub(super) fn has_room_to_delete(&self, key: &[u8]) -> bool {
        // The version is written, and perhaps that of a moved value.
        let version_bytes = 2 * codec::escaped_bytes(key) as u64;
        let bytes = entry_bytes(key, 0) + event_bytes(key, 0) + lease_key_bytes(key) + version_bytes;
        // A value that must be written again uses up to half of an entry.
        let moved_bytes = if self.state.ages.is_some() && self.bytes > 0 { CHANGES_BYTES_MAX / 2 } else { 0 };
        // With the mark of a replaced event.
        self.has_room(bytes + moved_bytes, 5) && self.previous_bytes < PREVIOUS_BYTES_MAX / 16
    }

    /// Deletes a key if it is there.
    pub(super) async fn delete(&mut self, key: &[u8]) -> Result<(), Failure> {
        self.operations.deletes += 1;
        match self.before(key).await? {
            Some(before) => self.write_delete(before),
            None => Ok(()),
        }
    }

    fn write_delete(&mut self, before: Before) -> Result<(), Failure> {
        let at = self.next_place();
        let previous = Some(before.previous(&self.state));
        let key = &before.pair.key;
        self.batch.delete(self.reader.keyspace(Part::Now), key);
        self.write_event(at, &Record { key, previous, put: None });
        self.replace(&before);
        self.bytes += entry_bytes(key, 0);
        self.take_bytes(entry_bytes(key, 0));
        self.move_lease(key, before.pair.lease, 0);
        let pair = KeyValue { key: key.clone(), mod_revision: at.main, ..KeyValue::default() };
        self.push(Event { r#type: EventType::Delete.into(), kv: Some(pair), prev_kv: Some(before.pair) })
    }

    fn next_place(&self) -> At {
        At { main: self.next_revision(), sub: self.own.events.len() as u32 }
    }

    /// Writes an event, and the version that it makes.
    fn write_event(&mut self, at: At, record: &Record<'_>) {
        let (hash, value_bytes) = (event_hash(at, record), record.value_bytes());
        let is_short = record.put.is_some() && self.state.is_short(at, value_bytes as usize);
        let put = if is_short { Some(Put::Short { value_bytes, hash }) } else { record.put };
        self.scratch.clear();
        Record { put, ..*record }.encode(&mut self.scratch);
        let events = self.reader.keyspace(Part::Events);
        match put {
            Some(Put::Short { .. }) => self.batch.put(events, at.short_key(), &self.scratch),
            _ => self.batch.put(events, at.key(), &self.scratch),
        };
        self.scratch.clear();
        codec::version_key(record.key, at, &mut self.scratch);
        let is_put = [u8::from(record.put.is_some())];
        self.batch.put(self.reader.keyspace(Part::Versions), &self.scratch, is_put);
        self.state.used_bytes += event_bytes(record.key, value_bytes);
        self.bytes += event_bytes(record.key, if is_short { 0 } else { value_bytes });
        self.more_key_bytes += (codec::escaped_bytes(record.key) - record.key.len()) as u64;
        if let Some(sums) = &mut self.state.sums {
            add(&mut sums.events, hash);
            if record.put.is_some() {
                add(&mut sums.current, hash);
            }
        }
    }

    /// Removes a replaced value from the sums. Keeps it for older revisions, if no event has it, or else marks its event.
    fn replace(&mut self, before: &Before) {
        if let Some(sums) = &mut self.state.sums {
            sums.current = sums.current.wrapping_sub(before.hash());
        }
        if self.state.ages.is_none() {
            return;
        }
        let KeyValue { key, create_revision, version, value, lease, .. } = &before.pair;
        if self.state.is_short(before.at, value.len()) {
            self.scratch.clear();
            codec::version_key(key, before.at, &mut self.scratch);
            let (create, version, lease) = (*create_revision, *version, *lease);
            let mut moved = Vec::with_capacity(value.len() + 32);
            codec::encode_moved(&PutRecord { create, version, lease, value }, &mut moved);
            self.batch.put(self.reader.keyspace(Part::Versions), &self.scratch, moved);
            self.bytes += value.len() as u64;
            self.more_key_bytes += self.scratch.len() as u64;
        } else {
            let mark = codec::replaced_key(before.at);
            self.bytes += entry_bytes(&mark, 0);
            self.batch.put(self.reader.keyspace(Part::Meta), mark, []);
            self.replaced.push(before.at);
        }
    }

    /// Adds a lease to the sums.
    pub(super) fn sum_granted(&mut self, id: i64, ttl_s: i64) {
        if let Some(sums) = &mut self.state.sums {
            add(&mut sums.current, lease_hash(id, ttl_s));
        }
    }

    /// Removes a lease from the sums.
    pub(super) fn sum_revoked(&mut self, id: i64, ttl_s: i64) {
        if let Some(sums) = &mut self.state.sums {
            sums.current = sums.current.wrapping_sub(lease_hash(id, ttl_s));
        }
    }

    /// Counts a record of users and roles in `meta` instead of another one.
    pub(super) fn replace_record(&mut self, key: &[u8], before: Option<&[u8]>, after: Option<&[u8]>) {
        if let Some(before) = before {
            self.take_bytes(entry_bytes(key, before.len()));
        }
        self.state.used_bytes += after.map_or(0, |after| entry_bytes(key, after.len()));
        if let Some(sums) = &mut self.state.sums {
            let hash = |record: Option<&[u8]>| record.map_or(0, |record| record_hash(key, record));
            sums.current = sums.current.wrapping_sub(hash(before)).wrapping_add(hash(after));
        }
    }

    /// Returns whether the batch fits the store with this many bytes more, in this many changes.
    fn has_room(&self, bytes: u64, changes: u64) -> bool {
        let bytes = self.bytes + bytes;
        let around_bytes = self.more_key_bytes + CHANGE_BYTES * (self.batch.len() as u64 + changes);
        bytes <= CHANGES_BYTES_MAX && bytes + around_bytes <= BATCH_BYTES_MAX
    }

    fn push(&mut self, event: Event) -> Result<(), Failure> {
        self.previous_bytes += event.prev_kv.as_ref().map_or(0, |pair| pair.value.len() as u64);
        if !self.has_room(0, 0) || self.previous_bytes > PREVIOUS_BYTES_MAX {
            return Err(Refusal::RequestTooLarge.into());
        }
        if self.keeps_keys
            && let Some(pair) = &event.kv
        {
            self.own.by_key.insert(pair.key.to_vec(), self.own.events.len());
        }
        self.own.events.push(event);
        Ok(())
    }

    /// Detaches a key from one lease, and attaches it to another.
    fn move_lease(&mut self, key: &[u8], from: i64, to: i64) {
        if from == to {
            return;
        }
        let keyspace = self.reader.keyspace(Part::LeaseKeys);
        let bytes = lease_key_bytes(key);
        if from != 0 {
            self.batch.delete(keyspace, codec::lease_key_key(from, key));
            self.take_bytes(bytes);
        }
        if to != 0 {
            self.batch.put(keyspace, codec::lease_key_key(to, key), []);
            self.state.used_bytes += bytes;
        }
        self.bytes += bytes;
    }

    /// Counts bytes that are used no more.
    pub(super) fn take_bytes(&mut self, bytes: u64) {
        self.state.used_bytes = self.state.used_bytes.saturating_sub(bytes);
    }
}

impl Before {
    fn previous(&self, state: &State) -> Previous {
        let value_bytes = self.pair.value.len();
        let is_short = state.is_short(self.at, value_bytes);
        Previous { at: self.at, value_bytes: value_bytes as u64, is_short }
    }

    fn hash(&self) -> u128 {
        let KeyValue { key, create_revision, version, value, lease, .. } = &self.pair;
        let (create, version, lease) = (*create_revision, *version, *lease);
        now_hash(key, &Now { create, at: self.at, version, lease, value })
    }
}

/// Returns the bytes that an entry of `now` has. In `used_bytes` it counts without its value, which its event has too.
pub(super) fn entry_bytes(key: &[u8], value_bytes: usize) -> u64 {
    ENTRY_BYTES + (key.len() + value_bytes) as u64
}

/// Returns the bytes that a key of a lease counts.
pub(super) fn lease_key_bytes(key: &[u8]) -> u64 {
    ENTRY_BYTES + 8 + key.len() as u64
}

/// Returns the bytes that an event with its version counts.
pub(super) fn event_bytes(key: &[u8], value_bytes: u64) -> u64 {
    2 * (ENTRY_BYTES + At::BYTES as u64 + key.len() as u64) + value_bytes
}
