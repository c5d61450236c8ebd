//! Users and roles in `meta`, and the checks of entries.

use std::sync::Arc;

use forebay_kv::Batch;
use prost::Message;

use super::change::Change;
use super::codec::{self, AUTH, Bytes, ROLE, USER, put_number};
use super::reader::{Part, Reader};
use super::{CHANGE_BYTES, CHANGES_BYTES_MAX, Failure};
use crate::accounts::{Auth, Need, Permit, RecordNames, Token, delete_needs, put_needs, txn_needs};
use crate::proto::authpb::{Role, User};
use crate::proto::peer::auth_change::Change as Command;
use crate::proto::peer::command::Change as Entry;
use crate::proto::peer::{AuthChange, Author, Done};
use crate::refusal::Refusal;
use crate::version::Formats;

/// The most bytes of users from which an entry removes a role: an eighth of its limit, as short ones count with [`CHANGE_BYTES`] too.
const USERS_BYTES_MAX: u64 = CHANGES_BYTES_MAX / 8;

/// The longest record of a user or role: a store with little memory has no value of more than 8 MiB.
const RECORD_BYTES_MAX: u64 = CHANGES_BYTES_MAX / 2;

/// The result of a change of users and roles, in addition to the batch.
#[derive(Debug)]
pub(super) enum UsersChange {
    Auth(Arc<Auth>),
    /// A token that is issued: its text continues with the index of the entry.
    Token(Token),
}

/// Reads users and roles.
pub(super) async fn load(reader: &Reader<'_>) -> Result<Auth, Failure> {
    let Some(numbers) = reader.get(Part::Meta, AUTH).await? else { return Ok(Auth::default()) };
    let mut numbers = Bytes::new(&numbers, "the numbers of users and roles");
    let (revision, is_enabled) = (numbers.number()?, numbers.number()? != 0);
    let (mut users, mut roles) = (Vec::new(), Vec::new());
    let mut found = reader.walk_prefix(Part::Meta, USER);
    while let Some((_, bytes)) = found.next().await? {
        users.push(User::decode(&bytes[..]).map_err(|_| Failure::Damaged("a user is not readable".into()))?);
    }
    let mut found = reader.walk_prefix(Part::Meta, ROLE);
    while let Some((_, bytes)) = found.next().await? {
        roles.push(Role::decode(&bytes[..]).map_err(|_| Failure::Damaged("a role is not readable".into()))?);
    }
    Auth::of(is_enabled, revision, users, roles).map_err(Failure::Damaged)
}

/// Returns the entries of `meta` for these users and roles, and for the numbers, which are there once anything was changed.
fn records(auth: &Auth, names: &RecordNames) -> impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)> {
    let user = move |name: &String| (codec::named_key(USER, name), auth.user(name).map(User::encode_to_vec));
    let role = move |name: &String| (codec::named_key(ROLE, name), auth.role(name).map(Role::encode_to_vec));
    let mut numbers = Vec::new();
    put_number(auth.revision(), &mut numbers);
    put_number(auth.is_enabled().into(), &mut numbers);
    let numbers = (!auth.is_untouched()).then_some(numbers);
    names.users.iter().map(user).chain(names.roles.iter().map(role)).chain([(AUTH.to_vec(), numbers)])
}

/// Adds all users and roles to the space and the sums, as an entry raises the format that counts them.
pub(super) fn count(change: &mut Change<'_>, auth: &Auth) {
    for (key, record) in records(auth, &auth.names()) {
        change.replace_record(&key, None, record.as_deref());
    }
}

/// Writes the users and roles that a change has touched. Names are as long as keys at most.
pub(super) fn write(
    reader: &Reader<'_>,
    batch: &mut Batch,
    auth: &Auth,
    touched: &RecordNames,
) -> Result<(), Refusal> {
    let (keyspace, mut bytes) = (reader.keyspace(Part::Meta), 0);
    for name in touched.users.iter().chain(&touched.roles) {
        super::check::check_key(name.as_bytes())?;
    }
    for (key, record) in records(auth, touched) {
        let record_bytes = record.as_ref().map_or(0, Vec::len) as u64;
        // Members of before, which have the same formats, do not count the numbers.
        if key != AUTH {
            bytes += CHANGE_BYTES + key.len() as u64 + record_bytes;
        }
        match record {
            Some(record) => batch.put(keyspace, key, record),
            None => batch.delete(keyspace, key),
        };
        if bytes > CHANGES_BYTES_MAX || record_bytes > RECORD_BYTES_MAX {
            return Err(Refusal::RequestTooLarge);
        }
    }
    Ok(())
}

/// Changes users and roles of a state with this format.
pub(super) fn change(
    change: &mut Change<'_>,
    auth: &Auth,
    format: u64,
    request: AuthChange,
) -> Result<(Option<UsersChange>, Done), Failure> {
    let command = request.change.ok_or(Refusal::NotCapable)?;
    if let Command::AssignToken(request) = command {
        auth.check_token(&request)?;
        let token = Token { user: request.user, text: request.prefix };
        return Ok((Some(UsersChange::Token(token)), Done::default()));
    }
    let mut changed = auth.clone();
    let is_counted = format >= Formats::WITH_ACCOUNTS;
    let touched = changed.change(command, if is_counted { USERS_BYTES_MAX } else { u64::MAX })?;
    if (changed.revision(), changed.is_enabled()) == (auth.revision(), auth.is_enabled()) {
        return Ok((None, Done::default()));
    }
    write(&change.reader, change.batch, &changed, &touched)?;
    if is_counted {
        for ((key, before), (_, after)) in records(auth, &touched).zip(records(&changed, &touched)) {
            change.replace_record(&key, before.as_deref(), after.as_deref());
        }
    }
    let done = Done { is_partial: touched.is_partial };
    Ok((Some(UsersChange::Auth(Arc::new(changed))), done))
}

/// Refuses a command that its author may not give. It was checked before it was proposed, but users and roles may have changed since.
pub(super) async fn check(
    change: &Change<'_>,
    auth: &Auth,
    author: Option<&Author>,
    command: &Entry,
) -> Result<(), Failure> {
    if !auth.is_enabled() {
        return Ok(());
    }
    let (permit, mut leases) = match command {
        // The members' own, and alarms, which are checked before alone.
        Entry::Attributes(_)
        | Entry::Alarm(_)
        | Entry::Clean(_)
        | Entry::Checkpoint(_)
        | Entry::Format(_) => return Ok(()),
        Entry::Auth(AuthChange { change: Some(Command::AssignToken(_)) }) => return Ok(()),
        Entry::Compact(_) | Entry::Auth(_) => return auth.check_root(author).map_err(Failure::from),
        // It has no keys yet.
        Entry::LeaseGrant(_) if author.is_some() => return Ok(()),
        Entry::LeaseGrant(_) => return Err(Refusal::UserEmpty.into()),
        Entry::Put(_) | Entry::DeleteRange(_) | Entry::Txn(_) => (auth.permit(author)?, Vec::new()),
        Entry::LeaseRevoke(request) => (auth.permit(author)?, vec![request.id]),
    };
    let mut needed = |need: Need<'_>| {
        if let Need::Lease(id) = need {
            leases.push(id);
        }
        permit.check(need)
    };
    match command {
        Entry::Put(put) => put_needs(put, &mut needed)?,
        Entry::DeleteRange(delete) => delete_needs(delete, &mut needed)?,
        Entry::Txn(txn) => txn_needs(txn, &mut needed)?,
        _ => {}
    }
    leases.sort_unstable();
    leases.dedup();
    check_leases(&change.reader, permit, &leases).await
}

/// Refuses leases with a key that may not be written. It looks at a key for each span of those that may be, however many a lease has.
pub(super) async fn check_leases(
    reader: &Reader<'_>,
    permit: Permit<'_>,
    leases: &[i64],
) -> Result<(), Failure> {
    if permit.is_all() {
        return Ok(());
    }
    for lease in leases {
        let prefix = codec::lease_key(*lease);
        let mut from = prefix.to_vec();
        while let Some((key, _)) = reader.walk_prefix_from(Part::LeaseKeys, &prefix, &from).next().await? {
            match permit.written_until(&key[prefix.len()..])? {
                Some(end) => from = [&prefix[..], end].concat(),
                None => break,
            }
        }
    }
    Ok(())
}
