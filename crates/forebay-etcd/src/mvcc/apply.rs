//! How each command changes the state.

use std::collections::BTreeSet;
use std::sync::Mutex;

use forebay_kv::Batch;
use prost::Message;

use super::change::Change;
use super::codec::{self, At, State, put_number};
use super::counts::Operations;
use super::reader::{Part, Reader};
use super::recent::Recent;
use super::users::{self, UsersChange};
use super::{Failure, LEASE_BYTES, TTL_MAX_S, txn, txn_cost_bytes};
use crate::accounts::Auth;
use crate::proto::etcdserverpb::request_op::Request;
use crate::proto::etcdserverpb::{AlarmType, DeleteRangeRequest, LeaseGrantRequest, TxnRequest};
use crate::proto::mvccpb::Event;
use crate::proto::peer::command::Change as Command;
use crate::proto::peer::outcome::Result as Response;
use crate::proto::peer::{Alarm, Attributes, Author, Done};
use crate::refusal::Refusal;
use crate::version::Formats;

/// Keys of a lease that are listed before they are deleted.
const LEASE_KEYS_AT_ONCE: usize = if cfg!(test) { 3 } else { 256 };

/// The effects of an entry, in addition to the batch.
#[derive(Debug)]
pub(super) struct Effects {
    pub(super) state: State,
    pub(super) result: Response,
    pub(super) events: Vec<Event>,
    /// Earlier events that were replaced, and stay whole.
    pub(super) replaced: Vec<At>,
    pub(super) granted: Option<(i64, i64)>,
    pub(super) revoked: Option<i64>,
    pub(super) compacted: Option<i64>,
    /// Whether the entry is there for the steps of compactions alone.
    pub(super) is_clean: bool,
    /// Whether the entry asks for a checkpoint.
    pub(super) is_checkpoint: bool,
    /// An alarm that is now raised, or not any more.
    pub(super) alarm: Option<((u64, i32), bool)>,
    /// The format that the state is raised to, unless it has a later one.
    pub(super) format: Option<u64>,
    pub(super) users: Option<UsersChange>,
    pub(super) operations: Operations,
}

impl Default for Effects {
    fn default() -> Effects {
        Effects {
            state: State::default(),
            result: Response::Done(Done::default()),
            events: Vec::new(),
            replaced: Vec::new(),
            granted: None,
            revoked: None,
            compacted: None,
            is_clean: false,
            is_checkpoint: false,
            alarm: None,
            format: None,
            users: None,
            operations: Operations::default(),
        }
    }
}

/// Adds the keys that a command may read, write or delete one by one.
pub(super) fn keys_named(command: &Command, keys: &mut Vec<Vec<u8>>) {
    match command {
        Command::Put(put) => keys.push(put.key.clone()),
        Command::DeleteRange(delete) => keys.extend(key_deleted(delete)),
        Command::Txn(request) => keys_named_by_txn(request, keys),
        _ => {}
    }
}

/// Adds those of a transaction.
pub(super) fn keys_named_by_txn(request: &TxnRequest, keys: &mut Vec<Vec<u8>>) {
    let compared = request.compare.iter().filter(|compare| compare.range_end.is_empty());
    keys.extend(compared.map(|compare| compare.key.clone()));
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(Request::RequestPut(put)) => keys.push(put.key.clone()),
            Some(Request::RequestDeleteRange(delete)) => keys.extend(key_deleted(delete)),
            Some(Request::RequestTxn(inner)) => keys_named_by_txn(inner, keys),
            Some(Request::RequestRange(range)) if range.range_end.is_empty() && range.revision == 0 => {
                keys.push(range.key.clone());
            }
            Some(Request::RequestRange(_)) | None => {}
        }
    }
}

fn key_deleted(delete: &DeleteRangeRequest) -> Option<Vec<u8>> {
    delete.range_end.is_empty().then(|| delete.key.clone())
}

/// The part of the state that is in memory, as it is before an entry.
pub(super) struct Basis<'a> {
    pub(super) state: State,
    /// Members and types.
    pub(super) alarms: &'a BTreeSet<(u64, i32)>,
    pub(super) auth: &'a Auth,
    /// The state's format; see [`Formats`].
    pub(super) format: u64,
}

/// Carries a command of an author out, or refuses it with the batch empty. `None` is a command that this version does not know.
pub(super) async fn apply(
    reader: Reader<'_>,
    recent: &Mutex<Recent>,
    batch: &mut Batch,
    basis: &Basis<'_>,
    command: Option<(Command, Option<Author>)>,
) -> Result<Effects, Failure> {
    let before = basis.state;
    let carried_out = match command {
        Some((command, author)) => {
            carry_out(Change::new(reader, recent, batch, before), basis, command, author.as_ref()).await
        }
        None => Err(Refusal::NotCapable.into()),
    };
    match carried_out {
        Err(Failure::Refused(refusal)) => {
            batch.clear();
            Ok(Effects { state: before, result: Response::Refusal(refusal.into()), ..Effects::default() })
        }
        other => other,
    }
}

async fn carry_out(
    mut change: Change<'_>,
    basis: &Basis<'_>,
    command: Command,
    author: Option<&Author>,
) -> Result<Effects, Failure> {
    let Basis { alarms, auth, format, .. } = *basis;
    check_alarms(alarms, &command)?;
    users::check(&change, auth, author, &command).await?;
    let mut effects = Effects::default();
    match command {
        Command::Put(put) => {
            change.check_lease(&put).await?;
            change.check_before(&put).await?;
            effects.result = Response::Put(change.put(put).await?);
        }
        Command::DeleteRange(delete) => {
            super::check_delete(&delete)?;
            effects.result = Response::DeleteRange(change.delete_range(&delete).await?);
        }
        Command::Txn(request) => effects.result = Response::Txn(carry_out_txn(&mut change, request).await?),
        Command::Compact(request) => {
            let state = &mut change.state;
            if request.revision <= state.compacted {
                return Err(Refusal::Compacted.into());
            }
            if request.revision > state.revision {
                return Err(Refusal::FutureRevision.into());
            }
            state.compacted = request.revision;
            effects.compacted = Some(request.revision);
        }
        Command::LeaseGrant(request) => effects.granted = Some(grant(&mut change, &request).await?),
        Command::LeaseRevoke(request) => {
            let id = request.id;
            let key = codec::lease_key(id);
            let granted = change.reader.get(Part::Leases, &key).await?;
            // Decoded immediately: the value holds memory that the deletes may wait for.
            let ttl_s = granted.map(|bytes| codec::Bytes::new(&bytes, "a lease").signed()).transpose()?;
            let ttl_s = ttl_s.ok_or(Refusal::LeaseNotFound)?;
            if delete_keys(&mut change, id).await? {
                change.sum_revoked(id, ttl_s);
                change.batch.delete(change.reader.keyspace(Part::Leases), key);
                change.take_bytes(LEASE_BYTES);
                effects.revoked = Some(id);
            } else {
                effects.result = Response::Done(Done { is_partial: true });
            }
        }
        Command::Attributes(attributes) => set_attributes(&mut change, &attributes),
        Command::Alarm(alarm) => effects.alarm = set_alarm(&mut change, alarms, &alarm),
        Command::Clean(_) => effects.is_clean = true,
        Command::Checkpoint(_) => effects.is_checkpoint = true,
        Command::Format(raised) => {
            if (format + 1..=raised.format).contains(&Formats::WITH_ACCOUNTS) {
                users::count(&mut change, auth);
            }
            effects.format = Some(raised.format);
        }
        Command::Auth(request) => {
            let (users, done) = users::change(&mut change, auth, format, request)?;
            (effects.users, effects.result) = (users, Response::Done(done));
        }
    }
    effects.state = change.state;
    effects.state.revision = change.revision();
    effects.operations = change.operations;
    (effects.events, effects.replaced) = (change.own.events, change.replaced);
    Ok(effects)
}

/// Refuses commands that an alarm forbids.
fn check_alarms(alarms: &BTreeSet<(u64, i32)>, command: &Command) -> Result<(), Refusal> {
    let is_raised = |alarm: AlarmType| alarms.iter().any(|(_, raised)| *raised == i32::from(alarm));
    let is_exempt = matches!(
        command,
        Command::Attributes(_)
            | Command::Alarm(_)
            | Command::Checkpoint(_)
            | Command::Format(_)
            | Command::Auth(_)
    );
    if alarms.is_empty() || is_exempt {
        return Ok(());
    }
    if is_raised(AlarmType::Corrupt) {
        return Err(Refusal::Corrupt);
    }
    let grows = match command {
        Command::Put(_) | Command::LeaseGrant(_) => true,
        Command::Txn(txn) => txn_cost_bytes(txn) > 0,
        _ => false,
    };
    if grows && is_raised(AlarmType::Nospace) { Err(Refusal::NoSpace) } else { Ok(()) }
}

async fn carry_out_txn(
    change: &mut Change<'_>,
    request: TxnRequest,
) -> Result<crate::proto::etcdserverpb::TxnResponse, Failure> {
    let branch = txn::branch(&change.place(), &request).await?;
    txn::check(change, &request, &branch).await?;
    change.keep_keys();
    txn::carry_out(change, request, &branch).await
}

/// Deletes keys of a lease, as many as an entry may change. Returns whether these are all.
async fn delete_keys(change: &mut Change<'_>, lease: i64) -> Result<bool, Failure> {
    let prefix = codec::lease_key(lease);
    let mut keys = change.reader.walk_prefix(Part::LeaseKeys, &prefix);
    loop {
        let mut some = Vec::new();
        while some.len() < LEASE_KEYS_AT_ONCE
            && let Some((key, _)) = keys.next().await?
        {
            some.push(key[prefix.len()..].to_vec());
        }
        let is_last = some.len() < LEASE_KEYS_AT_ONCE;
        // Deletes read the values, and may wait for memory.
        keys.let_go();
        change.read_ahead(some.clone()).await?;
        for key in some {
            if !change.has_room_to_delete(&key) {
                return Ok(false);
            }
            change.delete(&key).await?;
        }
        if is_last {
            return Ok(true);
        }
    }
}

async fn grant(change: &mut Change<'_>, request: &LeaseGrantRequest) -> Result<(i64, i64), Failure> {
    let (id, ttl_s) = (request.id, request.ttl);
    if id == 0 {
        return Err(Refusal::LeaseNotFound.into());
    }
    if ttl_s > TTL_MAX_S {
        return Err(Refusal::LeaseTtlTooLarge.into());
    }
    let key = codec::lease_key(id);
    if change.reader.get(Part::Leases, &key).await?.is_some() {
        return Err(Refusal::LeaseExists.into());
    }
    let mut value = Vec::new();
    put_number(ttl_s as u64, &mut value);
    change.batch.put(change.reader.keyspace(Part::Leases), key, value);
    change.state.used_bytes += LEASE_BYTES;
    change.sum_granted(id, ttl_s);
    Ok((id, ttl_s))
}

fn set_attributes(change: &mut Change<'_>, attributes: &Attributes) {
    let key = codec::member_key(attributes.member);
    change.batch.put(change.reader.keyspace(Part::Meta), key, attributes.encode_to_vec());
}

fn set_alarm(
    change: &mut Change<'_>,
    alarms: &BTreeSet<(u64, i32)>,
    alarm: &Alarm,
) -> Option<((u64, i32), bool)> {
    let named = (alarm.member, alarm.r#type);
    if alarm.r#type == i32::from(AlarmType::None) || alarms.contains(&named) == alarm.is_raised {
        return None;
    }
    let (keyspace, key) = (change.reader.keyspace(Part::Meta), codec::alarm_key(named.0, named.1));
    if alarm.is_raised {
        change.batch.put(keyspace, key, []);
    } else {
        change.batch.delete(keyspace, key);
    }
    Some((named, alarm.is_raised))
}
