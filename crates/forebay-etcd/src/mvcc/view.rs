//! [`View`]: one state, for reads.

use std::sync::Arc;

use forebay_kv::{ErrorKind, Keyspace, Snapshot};
use forebay_raft::{Apply, RaftStore};
use prost::Message;

use super::codec::{self, ALARM, At, CHECKPOINT, MEMBER, Put, Record, State};
use super::pairs::Pairs;
use super::range::{self, Place};
use super::reader::{Part, Reader};
use super::sums::Checkpoint;
use super::{Failure, hash, txn, users};
use crate::accounts::{Auth, Permit};
use crate::proto::etcdserverpb::{AlarmMember, RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use crate::proto::mvccpb::event::EventType;
use crate::proto::mvccpb::{Event, KeyValue};
use crate::proto::peer::Attributes;
use crate::refusal::Refusal;
use crate::types::Types;

/// A read also scans unwanted events, and ends when all of them together have this many times the bytes that it may collect.
const READ_FACTOR: usize = 4;

/// One state: a snapshot of the store. It keeps files and memory of the store while it lives.
pub(crate) struct View {
    keyspaces: Arc<[Keyspace]>,
    snapshot: Snapshot,
    state: State,
}

impl View {
    /// Returns the state with all entries that have been applied. Waits while a snapshot of another member is installed.
    pub(crate) async fn of<A: Apply<Types>>(store: &RaftStore<Types, A>) -> Result<View, Failure> {
        loop {
            let keyspaces = store.keyspaces();
            match View::of_keyspaces(keyspaces.clone()).await {
                Err(failure) if is_of_former(&failure) && store.is_replaced(&keyspaces).await => {}
                view => return view,
            }
        }
    }

    /// Returns whether a read failed because an installed snapshot has replaced this state, or met damage of the replaced state. It
    /// can be repeated with a new view.
    pub(crate) async fn is_replaced<A: Apply<Types>>(
        &self,
        store: &RaftStore<Types, A>,
        failure: &Failure,
    ) -> bool {
        is_of_former(failure) && store.is_replaced(&self.keyspaces).await
    }

    pub(crate) async fn of_keyspaces(keyspaces: Arc<[Keyspace]>) -> Result<View, Failure> {
        let Some(first) = keyspaces.first() else {
            return Err(Failure::Damaged("a state without keyspaces".into()));
        };
        let snapshot = first.store().snapshot();
        let state = Reader::new(&keyspaces, Some(&snapshot))?.state().await?;
        Ok(View { keyspaces, snapshot, state })
    }

    pub(super) fn reader(&self) -> Result<Reader<'_>, Failure> {
        Reader::new(&self.keyspaces, Some(&self.snapshot))
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    fn place(&self) -> Result<Place<'_>, Failure> {
        Ok(Place::of(self.reader()?, self.state))
    }

    /// Returns the revision of the last change.
    pub(crate) fn revision(&self) -> i64 {
        self.state.revision
    }

    /// Returns the revision up to which history is compacted; -1 before the first compaction.
    pub(crate) fn compacted(&self) -> i64 {
        self.state.compacted
    }

    /// Returns the space of the state; see [`super`].
    pub(crate) fn used_bytes(&self) -> u64 {
        self.state.used_bytes
    }

    /// Returns whether compacted entries wait to be removed, by entries that follow.
    pub(crate) fn is_cleaning(&self) -> bool {
        self.state.is_cleaning()
    }

    /// Returns whether no entries are proposed any more only for steps, in a state of the latest format.
    #[cfg(test)]
    pub(crate) fn is_finished(&self) -> bool {
        self.state.ages.is_some() && !self.state.is_unfinished()
    }

    /// Carries out a range. The response has no header.
    pub(crate) async fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Failure> {
        range::range(&self.place()?, request, None).await
    }

    /// Carries out a range whose pairs have these bytes in memory at most; `None` if they have more.
    pub(crate) async fn range_within(
        &self,
        request: &RangeRequest,
        bytes_max: u64,
    ) -> Result<Option<RangeResponse>, Failure> {
        let mut bytes = 0;
        let read = range::range(&self.place()?, request, Some((&mut bytes, bytes_max))).await;
        if bytes > bytes_max { Ok(None) } else { read.map(Some) }
    }

    /// Returns the pairs of a range in the order of their keys, for any order of the request, as they are read.
    pub(crate) async fn pairs(&self, request: &RangeRequest) -> Result<Pairs<'_>, Failure> {
        Pairs::in_key_order(&self.place()?, request).await
    }

    /// Carries out a transaction that [only reads](super::is_read_only), however many bytes it returns.
    #[cfg(test)]
    pub(crate) async fn txn(&self, request: &TxnRequest) -> Result<TxnResponse, Failure> {
        Ok(self.txn_within(request, u64::MAX).await?.unwrap())
    }

    /// Carries out a transaction that [only reads](super::is_read_only). The response has no header. `None` if its pairs have more bytes
    /// than these.
    pub(crate) async fn txn_within(
        &self,
        request: &TxnRequest,
        bytes_max: u64,
    ) -> Result<Option<TxnResponse>, Failure> {
        txn::read(&self.place()?, request, bytes_max).await
    }

    /// Returns events from a revision on, whole revisions until about `bytes_max` are collected, or [`READ_FACTOR`] times as many
    /// were read, and the revision to continue from. Previous values are included unless they were compacted. `wanted` selects
    /// events by their keys.
    pub(crate) async fn events(
        &self,
        from: i64,
        wanted: impl Fn(&[u8]) -> bool,
        bytes_max: usize,
    ) -> Result<(Vec<Event>, i64), Failure> {
        if from < self.state.compacted {
            return Err(Refusal::Compacted.into());
        }
        let reader = self.reader()?;
        let read_bytes_max = bytes_max.saturating_mul(READ_FACTOR);
        let (mut events, mut places): (Vec<Event>, Vec<At>) = (Vec::new(), Vec::new());
        // Events whose previous value is not that of another event here, by their numbers, and these values.
        let (mut lone, mut versions): (Vec<usize>, Vec<(Vec<u8>, At)>) = (Vec::new(), Vec::new());
        // Those without their own value.
        let (mut short, mut short_versions): (Vec<usize>, Vec<(Vec<u8>, At)>) = (Vec::new(), Vec::new());
        let (mut bytes, mut read_bytes, mut last) = (0, 0, from);
        let mut next = from.max(self.state.revision + 1);
        let mut found = reader.events(At::first(from), None);
        while let Some((key, value)) = found.next().await.transpose()? {
            let at = At::of_key(&key)?;
            if at.main != last && (bytes >= bytes_max || read_bytes >= read_bytes_max) {
                next = at.main;
                break;
            }
            last = at.main;
            read_bytes += key.len() + value.len();
            let record = Record::decode(&value)?;
            if !wanted(record.key) {
                continue;
            }
            bytes += key.len() + value.len();
            if let Some(Put::Short { value_bytes, .. }) = record.put {
                bytes += value_bytes as usize;
                short.push(events.len());
                short_versions.push((record.key.to_vec(), at));
            }
            let mut event = event(at, &record);
            // What was current before the compacted revision cannot be read any more.
            if let Some(previous) = record.previous.filter(|_| at.main > self.state.compacted) {
                bytes += record.key.len() + previous.value_bytes as usize;
                let own = places.binary_search(&previous.at).ok().and_then(|own| events.get(own));
                event.prev_kv =
                    own.filter(|own| own.r#type() == EventType::Put).and_then(|own| own.kv.clone());
                if event.prev_kv.is_none() {
                    lone.push(events.len());
                    versions.push((record.key.to_vec(), previous.at));
                }
            }
            places.push(at);
            events.push(event);
        }
        // The range holds memory that the values may need.
        drop(found);
        let pairs = range::puts_at(reader, &short_versions, range::OF_SHORT).await?;
        for (number, pair) in short.into_iter().zip(pairs) {
            if let Some(event) = events.get_mut(number) {
                event.kv = Some(pair);
            }
        }
        let pairs = range::puts_at(reader, &versions, range::OF_REPLACED).await?;
        for (number, pair) in lone.into_iter().zip(pairs) {
            if let Some(event) = events.get_mut(number) {
                event.prev_kv = Some(pair);
            }
        }
        Ok((events, next))
    }

    /// Returns the time that a lease was granted for, in seconds; `None` if the lease does not exist.
    #[cfg(test)]
    pub(crate) async fn lease(&self, id: i64) -> Result<Option<i64>, Failure> {
        let found = self.reader()?.get(Part::Leases, &codec::lease_key(id)).await?;
        found.map(|bytes| codec::Bytes::new(&bytes, "a lease").signed()).transpose()
    }

    /// Returns the keys that are attached to a lease, in order.
    pub(crate) async fn lease_keys(&self, id: i64) -> Result<Vec<Vec<u8>>, Failure> {
        lease_keys(&self.reader()?, id).await
    }

    /// Returns all leases: ids, and the times that they were granted for, in seconds.
    pub(crate) async fn leases(&self) -> Result<Vec<(i64, i64)>, Failure> {
        leases(&self.reader()?).await
    }

    /// Refuses leases with a key that may not be written.
    pub(crate) async fn check_leases(&self, permit: Permit<'_>, ids: &[i64]) -> Result<(), Failure> {
        users::check_leases(&self.reader()?, permit, ids).await
    }

    /// Returns users and roles.
    pub(crate) async fn auth(&self) -> Result<Auth, Failure> {
        users::load(&self.reader()?).await
    }

    /// Returns what members have said of themselves.
    pub(crate) async fn attributes(&self) -> Result<Vec<Attributes>, Failure> {
        let (mut all, mut found) = (Vec::new(), self.reader()?.walk_prefix(Part::Meta, MEMBER));
        while let Some((_, bytes)) = found.next().await? {
            let decoded = Attributes::decode(&bytes[..]);
            all.push(decoded.map_err(|_| Failure::damaged("a member's attributes", &bytes))?);
        }
        Ok(all)
    }

    pub(crate) async fn alarms(&self) -> Result<Vec<AlarmMember>, Failure> {
        let found = alarms(&self.reader()?).await?;
        Ok(found.into_iter().map(|(member_id, alarm)| AlarmMember { member_id, alarm }).collect())
    }

    /// Returns the sums at the last checkpoints, from the first to the last.
    pub(crate) async fn checkpoints(&self) -> Result<Vec<Checkpoint>, Failure> {
        checkpoints(&self.reader()?).await
    }

    /// Returns a hash of all readable data of revisions up to `revision` (0: the current revision), with the compacted revision,
    /// which is part of it, and the revision of the hash. It reads all events. Members with the same entries have the same hashes
    /// of a revision while their compacted revisions are equal.
    pub(crate) async fn hash(&self, revision: i64) -> Result<(u32, i64, i64), Failure> {
        let State { revision: current, compacted, .. } = self.state;
        if revision > current {
            return Err(Refusal::FutureRevision.into());
        }
        if revision > 0 && revision < compacted {
            return Err(Refusal::Compacted.into());
        }
        let revision = if revision > 0 { revision } else { current };
        Ok((hash::hash(&self.place()?, revision).await?, compacted, revision))
    }
}

/// Returns an event without the previous value; a short one without a pair too.
fn event(at: At, record: &Record<'_>) -> Event {
    let key = record.key.to_vec();
    let (r#type, kv) = match &record.put {
        Some(Put::Whole(put)) => (EventType::Put, Some(put.key_value(key, at.main))),
        Some(Put::Short { .. }) => (EventType::Put, None),
        None => {
            let deleted = KeyValue { key: key.into(), mod_revision: at.main, ..KeyValue::default() };
            (EventType::Delete, Some(deleted))
        }
    };
    Event { r#type: r#type.into(), kv, prev_kv: None }
}

pub(super) async fn leases(reader: &Reader<'_>) -> Result<Vec<(i64, i64)>, Failure> {
    let (mut all, mut found) = (Vec::new(), reader.walk_prefix(Part::Leases, &[]));
    while let Some((id, bytes)) = found.next().await? {
        all.push((codec::lease_id(&id)?, codec::Bytes::new(&bytes, "a lease").signed()?));
    }
    Ok(all)
}

pub(super) async fn lease_keys(reader: &Reader<'_>, id: i64) -> Result<Vec<Vec<u8>>, Failure> {
    let (mut keys, prefix) = (Vec::new(), codec::lease_key(id));
    let mut found = reader.walk_prefix(Part::LeaseKeys, &prefix);
    while let Some((key, _)) = found.next().await? {
        keys.push(key[prefix.len()..].to_vec());
    }
    Ok(keys)
}

/// Returns whether a read that fails so fails no more once its state is replaced.
fn is_of_former(failure: &Failure) -> bool {
    let is_closed = matches!(failure, Failure::Store(error) if error.kind() == ErrorKind::Closed);
    is_closed || failure.damage().is_some()
}

pub(super) async fn checkpoints(reader: &Reader<'_>) -> Result<Vec<Checkpoint>, Failure> {
    let (mut all, mut found) = (Vec::new(), reader.walk_prefix(Part::Meta, CHECKPOINT));
    while let Some((key, bytes)) = found.next().await? {
        all.push(Checkpoint::decode(&key, &bytes)?);
    }
    Ok(all)
}

pub(super) async fn alarms(reader: &Reader<'_>) -> Result<Vec<(u64, i32)>, Failure> {
    let (mut all, mut found) = (Vec::new(), reader.walk_prefix(Part::Meta, ALARM));
    while let Some((key, _)) = found.next().await? {
        all.push(codec::alarm_of_key(&key)?);
    }
    Ok(all)
}
