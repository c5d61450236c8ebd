//! [`Import`]: fills an empty state from a snapshot of etcd's format, with the entries that applying all of it would have left.

use std::collections::{BTreeSet, HashMap};

use forebay_kv::{Batch, Keyspace};

use super::change::{entry_bytes, event_bytes, lease_key_bytes};
use super::codec::{self, At, Now, Previous, Put, PutRecord, Record, State, put_number};
use super::reader::{Part, Reader};
use super::records::KeyRecord;
use super::{CHANGES_BYTES_MAX, Failure, LEASE_BYTES, TTL_MAX_S, users};
use crate::accounts::{Auth, RecordNames};
use crate::version::Formats;

/// Records written together.
const RECORDS_MAX: usize = if cfg!(test) { 7 } else { 1_000 };
/// Bytes of records written together. Each is written twice.
const RECORDS_BYTES_MAX: usize = if cfg!(test) { 16 << 10 } else { 2 << 20 };

/// Keys whose current values are looked up together.
const LOOKED_UP_MAX: usize = if cfg!(test) { 3 } else { 32 };

/// Higher revisions and versions are damage: changes count on from the last one.
const REVISIONS_END: i64 = i64::MAX / 2;

/// Fills a state. If a call fails, the state is of no use.
pub(crate) struct Import<'a> {
    reader: Reader<'a>,
    store: forebay_kv::Store,
    state: State,
    last: At,
    records: Vec<KeyRecord>,
    records_bytes: usize,
    keys: u64,
    leases: u64,
}

/// The contents of an imported state, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImportSummary {
    pub(crate) revision: i64,
    pub(crate) keys: u64,
    pub(crate) leases: u64,
}

/// The revisions up to which the history of a snapshot is compacted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompactionRevisions {
    pub(crate) scheduled: Option<i64>,
    /// Up to here the compacted entries are removed.
    pub(crate) finished: Option<i64>,
}

/// The current value of a key, without its bytes.
#[derive(Clone, Copy)]
struct Current {
    at: At,
    lease: i64,
    value_bytes: usize,
}

impl Current {
    fn of(bytes: &[u8]) -> Result<Current, Failure> {
        let now = Now::decode(bytes)?;
        Ok(Current { at: now.at, lease: now.lease, value_bytes: now.value.len() })
    }
}

fn foreign(at: At, text: &str) -> Failure {
    Failure::Damaged(format!("the record of revision {}.{} {text}", at.main, at.sub))
}

impl<'a> Import<'a> {
    /// Starts with empty keyspaces.
    ///
    /// # Errors
    /// Other keyspaces than the state's.
    pub(crate) fn new(keyspaces: &'a [Keyspace]) -> Result<Import<'a>, Failure> {
        let reader = Reader::new(keyspaces, None)?;
        let store = reader.keyspace(Part::Meta).store();
        Ok(Import {
            reader,
            store,
            state: State { sums: None, ..State::default() },
            last: At::default(),
            records: Vec::new(),
            records_bytes: 0,
            keys: 0,
            leases: 0,
        })
    }

    /// Adds a put or delete. They are added in the order of their revisions.
    ///
    /// # Errors
    /// A record that no server writes, or that exceeds this server's limits.
    pub(crate) async fn add(&mut self, record: KeyRecord) -> Result<(), Failure> {
        let at = At { main: record.main, sub: record.sub };
        if at <= self.last || !(1..REVISIONS_END).contains(&at.main) {
            return Err(foreign(at, "comes after a later one, or is none"));
        }
        self.last = at;
        self.state.revision = self.state.revision.max(at.main);
        let pair = &record.pair;
        if pair.key.is_empty() && !record.is_delete && pair.value.is_empty() && pair.version == 0 {
            // etcd's restore writes such a record to raise the revision.
            return Ok(());
        }
        if let Err(refusal) = super::check::check_key(&pair.key) {
            let text = format!("has a key of {} bytes, and is refused: {}", pair.key.len(), refusal.text());
            return Err(foreign(at, &text));
        }
        let is_right = pair.mod_revision == at.main
            && (1..=at.main).contains(&pair.create_revision)
            && pair.version >= 1;
        if !record.is_delete && !is_right {
            return Err(foreign(at, "has other revisions in itself"));
        }
        if !record.is_delete && pair.version >= REVISIONS_END {
            let text = format!("has the version {}, and no key was put so often", pair.version);
            return Err(foreign(at, &text));
        }
        let (key_bytes, value_bytes) = (pair.key.len(), pair.value.len());
        if entry_bytes(&pair.key, value_bytes) + event_bytes(&pair.key, value_bytes as u64)
            > CHANGES_BYTES_MAX
        {
            let text = format!("has a value of {value_bytes} bytes, and is too long for this server");
            return Err(foreign(at, &text));
        }
        let bytes = key_bytes + value_bytes;
        if self.records.len() == RECORDS_MAX || self.records_bytes + bytes > RECORDS_BYTES_MAX {
            self.write_records().await?;
        }
        self.records_bytes += bytes;
        self.records.push(record);
        Ok(())
    }

    async fn write_records(&mut self) -> Result<(), Failure> {
        let records = std::mem::take(&mut self.records);
        self.records_bytes = 0;
        let mut current = self.current(&records).await?;
        let (mut batch, mut scratch) = (Batch::new(), Vec::new());
        for KeyRecord { main, sub, is_delete, pair } in records {
            let at = At { main, sub };
            let (key, value) = (&pair.key[..], &pair.value[..]);
            let before = current.remove(key);
            let previous = before.map(|before| Previous {
                at: before.at,
                value_bytes: before.value_bytes as u64,
                is_short: false,
            });
            if before.is_some() {
                self.state.used_bytes -= entry_bytes(key, 0);
                self.keys -= 1;
            }
            let put = (!is_delete).then_some(PutRecord {
                create: pair.create_revision,
                version: pair.version,
                lease: pair.lease,
                value,
            });
            if let Some(PutRecord { create, version, lease, value }) = put {
                scratch.clear();
                Now { create, at, version, lease, value }.encode(&mut scratch);
                batch.put(self.reader.keyspace(Part::Now), key, &scratch);
                self.state.used_bytes += entry_bytes(key, 0);
                self.keys += 1;
            } else {
                batch.delete(self.reader.keyspace(Part::Now), key);
            }
            scratch.clear();
            Record { key, previous, put: put.map(Put::Whole) }.encode(&mut scratch);
            batch.put(self.reader.keyspace(Part::Events), at.key(), &scratch);
            scratch.clear();
            codec::version_key(key, at, &mut scratch);
            batch.put(self.reader.keyspace(Part::Versions), &scratch, [u8::from(!is_delete)]);
            self.state.used_bytes += event_bytes(key, put.map_or(0, |put| put.value.len() as u64));
            let lease = put.map_or(0, |put| put.lease);
            self.move_lease(&mut batch, key, before.map_or(0, |before| before.lease), lease);
            if !is_delete {
                let now = Current { at, lease, value_bytes: value.len() };
                current.insert(pair.key.to_vec(), now);
            }
        }
        self.store.write(&batch).await?;
        Ok(())
    }

    /// Returns the present values of the keys of records.
    async fn current(&self, records: &[KeyRecord]) -> Result<HashMap<Vec<u8>, Current>, Failure> {
        // In order: neighbours share leaves.
        let keys: BTreeSet<&[u8]> = records.iter().map(|record| &record.pair.key[..]).collect();
        let keys: Vec<&[u8]> = keys.into_iter().collect();
        let mut current = HashMap::new();
        for part in keys.chunks(LOOKED_UP_MAX) {
            let mut of = part.iter();
            let take = |value: Option<&[u8]>| {
                if let (Some(key), Some(value)) = (of.next(), value) {
                    current.insert(key.to_vec(), Current::of(value)?);
                }
                Ok(())
            };
            self.reader.each_value(Part::Now, part, take).await?;
        }
        Ok(current)
    }

    fn move_lease(&mut self, batch: &mut Batch, key: &[u8], from: i64, to: i64) {
        if from == to {
            return;
        }
        let keyspace = self.reader.keyspace(Part::LeaseKeys);
        if from != 0 {
            batch.delete(keyspace, codec::lease_key_key(from, key));
            self.state.used_bytes -= lease_key_bytes(key);
        }
        if to != 0 {
            batch.put(keyspace, codec::lease_key_key(to, key), []);
            self.state.used_bytes += lease_key_bytes(key);
        }
    }

    /// Adds a lease.
    ///
    /// # Errors
    /// A lease that no server grants.
    pub(crate) async fn lease(&mut self, id: i64, granted_s: i64) -> Result<(), Failure> {
        if id == 0 || !(0..=TTL_MAX_S).contains(&granted_s) {
            return Err(Failure::Damaged(format!("the lease {id:x} of {granted_s} s is none")));
        }
        let (mut batch, mut value) = (Batch::new(), Vec::new());
        put_number(granted_s as u64, &mut value);
        batch.put(self.reader.keyspace(Part::Leases), codec::lease_key(id), value);
        self.store.write(&batch).await?;
        self.state.used_bytes += LEASE_BYTES;
        self.leases += 1;
        Ok(())
    }

    /// Adds an alarm that is raised.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn alarm(&mut self, member: u64, alarm: i32) -> Result<(), Failure> {
        let mut batch = Batch::new();
        batch.put(self.reader.keyspace(Part::Meta), codec::alarm_key(member, alarm), []);
        self.store.write(&batch).await?;
        Ok(())
    }

    /// Adds users and roles, and whether authentication is on.
    ///
    /// # Errors
    /// Names or records that are too long, and the store's.
    pub(crate) async fn auth(&mut self, auth: &Auth) -> Result<(), Failure> {
        let users = auth
            .users()
            .map(|(name, _)| RecordNames { users: vec![name.to_owned()], ..RecordNames::default() });
        let roles = auth
            .roles()
            .map(|(name, _)| RecordNames { roles: vec![name.to_owned()], ..RecordNames::default() });
        for touched in users.chain(roles) {
            let mut batch = Batch::new();
            users::write(&self.reader, &mut batch, auth, &touched)
                .map_err(|refusal| Failure::Damaged(format!("{touched:?} is refused: {}", refusal.text())))?;
            self.store.write(&batch).await?;
        }
        let mut batch = Batch::new();
        users::write(&self.reader, &mut batch, auth, &RecordNames::default())?;
        self.store.write(&batch).await?;
        Ok(())
    }

    /// Ends the import: what is compacted counts as such, and the revision is raised by `bump`, with all of history compacted if
    /// that is more than 0.
    ///
    /// # Errors
    /// Revisions out of range, and the store's.
    pub(crate) async fn finish(
        mut self,
        compacted: CompactionRevisions,
        bump: u64,
    ) -> Result<ImportSummary, Failure> {
        self.write_records().await?;
        let CompactionRevisions { scheduled, finished } = compacted;
        let state = &mut self.state;
        if let Some(last) = scheduled.max(finished) {
            state.compacted = last;
            state.revision = state.revision.max(last);
            if finished == Some(last) {
                state.cleaned = At::first(last);
            }
        }
        let too_far = || Failure::Damaged(format!("no revision is {bump} after {}", state.revision));
        let bumped = state.revision.checked_add_unsigned(bump);
        state.revision = bumped.filter(|bumped| *bumped < REVISIONS_END).ok_or_else(too_far)?;
        if bump > 0 {
            state.compacted = state.revision;
        }
        let mut batch = Batch::new();
        let (keyspace, format) = (self.reader.keyspace(Part::Meta), codec::encode_format(Formats::FIRST));
        batch.put(keyspace, codec::STATE, self.state.encode());
        batch.put(keyspace, codec::FORMAT, format);
        self.store.write(&batch).await?;
        Ok(ImportSummary { revision: self.state.revision, keys: self.keys, leases: self.leases })
    }
}
