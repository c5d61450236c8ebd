//! Keys and values of the keyspaces, as bytes. The module above has the layout.

use super::Failure;
use super::ages::Ages;
use super::sums::Sums;
use crate::proto::mvccpb::KeyValue;

/// The longest key, so that it fits into the store's keys together with the parts around it.
pub(super) const KEY_BYTES_MAX: usize = 16_384 - TERMINATOR.len() - At::BYTES;

/// Ends a key in `versions`. Any byte that continues the key sorts above it: a zero in a key is followed by [`ESCAPED`].
const TERMINATOR: [u8; 2] = [0, 1];
const ESCAPED: u8 = 0xff;
/// Ends the key of a short event.
const SHORT: u8 = 1;

/// A revision with the number of the event in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct At {
    pub(super) main: i64,
    pub(super) sub: u32,
}

impl At {
    pub(super) const BYTES: usize = 12;

    pub(super) fn first(main: i64) -> At {
        At { main, sub: 0 }
    }

    pub(super) fn last(main: i64) -> At {
        At { main, sub: u32::MAX }
    }

    pub(super) fn next(self) -> At {
        match self.sub.checked_add(1) {
            Some(sub) => At { main: self.main, sub },
            None => At::first(self.main + 1),
        }
    }

    pub(super) fn key(self) -> [u8; At::BYTES] {
        let mut key = [0; At::BYTES];
        key[..8].copy_from_slice(&(self.main.max(0) as u64).to_be_bytes());
        key[8..].copy_from_slice(&self.sub.to_be_bytes());
        key
    }

    /// Returns the key of a short event: right behind that of the whole one, which is deleted. The store has a deletion count for the
    /// bytes that it frees, and a shorter value for its own.
    pub(super) fn short_key(self) -> [u8; At::BYTES + 1] {
        let mut key = [SHORT; At::BYTES + 1];
        key[..At::BYTES].copy_from_slice(&self.key());
        key
    }

    /// Returns the revision of an event, whole or short.
    pub(super) fn of_key(key: &[u8]) -> Result<At, Failure> {
        let damaged = || Failure::damaged("a revision", key);
        let whole = key.strip_suffix(&[SHORT]).filter(|whole| whole.len() == At::BYTES).unwrap_or(key);
        let (main, sub) = whole.split_at_checked(8).ok_or_else(damaged)?;
        let main = u64::from_be_bytes(main.try_into().map_err(|_| damaged())?);
        let sub = u32::from_be_bytes(sub.try_into().map_err(|_| damaged())?);
        Ok(At { main: i64::try_from(main).map_err(|_| damaged())?, sub })
    }
}

/// Appends a key so that the order of keys is kept, and no key with something behind it looks like another one.
pub(super) fn escape(key: &[u8], to: &mut Vec<u8>) {
    for part in key.split_inclusive(|byte| *byte == 0) {
        to.extend_from_slice(part);
        if part.ends_with(&[0]) {
            to.push(ESCAPED);
        }
    }
}

pub(super) fn escaped_bytes(key: &[u8]) -> usize {
    key.len() + key.iter().filter(|byte| **byte == 0).count()
}

pub(super) fn version_key(key: &[u8], at: At, to: &mut Vec<u8>) {
    escape(key, to);
    to.extend_from_slice(&TERMINATOR);
    to.extend_from_slice(&at.key());
}

/// Splits the key of a version into the escaped key and the revision.
pub(super) fn split_version_key(bytes: &[u8]) -> Result<(&[u8], At), Failure> {
    let damaged = || Failure::damaged("a version's key", bytes);
    let split = bytes.len().checked_sub(At::BYTES).ok_or_else(damaged)?;
    let (key, at) = bytes.split_at(split);
    Ok((key.strip_suffix(&TERMINATOR).ok_or_else(damaged)?, At::of_key(at)?))
}

/// Appends the value of a put's version that has the put itself; others are one byte.
pub(super) fn encode_moved(put: &PutRecord<'_>, to: &mut Vec<u8>) {
    to.push(1);
    put.encode(to);
}

/// Returns the put that a version has, if it has it.
pub(super) fn moved(version: &[u8]) -> Result<Option<PutRecord<'_>>, Failure> {
    match version {
        [1, put @ ..] if !put.is_empty() => {
            Ok(Some(PutRecord::decode(&mut Bytes::new(put, "a version with a value"))?))
        }
        _ => Ok(None),
    }
}

/// Returns the key that was escaped.
pub(super) fn unescape(bytes: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(bytes.len());
    let mut is_after_zero = false;
    for byte in bytes {
        if !is_after_zero {
            key.push(*byte);
        }
        is_after_zero = *byte == 0 && !is_after_zero;
    }
    key
}

pub(super) fn lease_key(id: i64) -> [u8; 8] {
    (id as u64).to_be_bytes()
}

pub(super) fn lease_id(key: &[u8]) -> Result<i64, Failure> {
    let id = key.get(..8).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
    id.map(|id| id as i64).ok_or_else(|| Failure::damaged("a lease's id", key))
}

pub(super) fn lease_key_key(id: i64, key: &[u8]) -> Vec<u8> {
    [&lease_key(id), key].concat()
}

/// Appends a number in groups of seven bits.
pub(super) fn put_number(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// The rest of some encoded bytes.
pub(super) struct Bytes<'a> {
    pub(super) rest: &'a [u8],
    what: &'static str,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(rest: &'a [u8], what: &'static str) -> Bytes<'a> {
        Bytes { rest, what }
    }

    pub(super) fn number(&mut self) -> Result<u64, Failure> {
        let mut number = 0;
        for (at, byte) in self.rest.iter().enumerate().take(10) {
            number |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[at + 1..];
                return Ok(number);
            }
        }
        Err(Failure::damaged(self.what, self.rest))
    }

    pub(super) fn signed(&mut self) -> Result<i64, Failure> {
        Ok(self.number()? as i64)
    }

    /// Returns a hash, or a sum of them.
    pub(super) fn hash(&mut self) -> Result<u128, Failure> {
        let found = self.part(16)?;
        found.try_into().map(u128::from_le_bytes).map_err(|_| Failure::damaged(self.what, found))
    }

    pub(super) fn part(&mut self, bytes: u64) -> Result<&'a [u8], Failure> {
        let split = usize::try_from(bytes).ok().and_then(|bytes| self.rest.split_at_checked(bytes));
        let (part, rest) = split.ok_or_else(|| Failure::damaged(self.what, self.rest))?;
        self.rest = rest;
        Ok(part)
    }
}

/// The value of a key in `now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Now<'a> {
    pub(super) create: i64,
    pub(super) at: At,
    pub(super) version: i64,
    pub(super) lease: i64,
    pub(super) value: &'a [u8],
}

impl<'a> Now<'a> {
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        let start = to.len();
        put_number(self.create as u64, to);
        put_number(self.at.main as u64, to);
        put_number(u64::from(self.at.sub), to);
        put_number(self.version as u64, to);
        put_number(self.lease as u64, to);
        to.extend_from_slice(self.value);
        debug_assert_eq!(
            Now::decode(&to[start..]).ok(),
            Some(*self),
            "a value is read back as it was written"
        );
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Now<'a>, Failure> {
        let mut bytes = Bytes::new(bytes, "a current value");
        let (create, main, sub) = (bytes.signed()?, bytes.signed()?, bytes.number()? as u32);
        let (version, lease) = (bytes.signed()?, bytes.signed()?);
        Ok(Now { create, at: At { main, sub }, version, lease, value: bytes.rest })
    }

    pub(super) fn key_value(&self, key: Vec<u8>) -> KeyValue {
        KeyValue {
            key: key.into(),
            create_revision: self.create,
            mod_revision: self.at.main,
            version: self.version,
            value: self.value.to_vec().into(),
            lease: self.lease,
        }
    }
}

/// The value that an event replaced or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Previous {
    pub(super) at: At,
    pub(super) value_bytes: u64,
    /// Whether its event is short, for good.
    pub(super) is_short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) key: &'a [u8],
    pub(super) previous: Option<Previous>,
    /// `None`: the key was deleted.
    pub(super) put: Option<Put<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put<'a> {
    Whole(PutRecord<'a>),
    /// Its value is elsewhere: see [`ages`](super::ages). The hash is that of the whole event.
    Short {
        value_bytes: u64,
        hash: u128,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PutRecord<'a> {
    pub(super) create: i64,
    pub(super) version: i64,
    pub(super) lease: i64,
    pub(super) value: &'a [u8],
}

const IS_PUT: u8 = 1;
const HAS_PREVIOUS: u8 = 2;
const IS_SHORT: u8 = 4;
const PREVIOUS_IS_SHORT: u8 = 8;

impl<'a> Record<'a> {
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        let start = to.len();
        let has_previous = match &self.previous {
            Some(previous) if previous.is_short => HAS_PREVIOUS | PREVIOUS_IS_SHORT,
            Some(_) => HAS_PREVIOUS,
            None => 0,
        };
        let is_short = if matches!(self.put, Some(Put::Short { .. })) { IS_SHORT } else { 0 };
        to.push(has_previous | is_short | u8::from(self.put.is_some()));
        put_number(self.key.len() as u64, to);
        to.extend_from_slice(self.key);
        if let Some(previous) = &self.previous {
            put_number(previous.at.main as u64, to);
            put_number(u64::from(previous.at.sub), to);
            put_number(previous.value_bytes, to);
        }
        match &self.put {
            Some(Put::Whole(put)) => put.encode(to),
            Some(Put::Short { value_bytes, hash }) => {
                put_number(*value_bytes, to);
                to.extend_from_slice(&hash.to_le_bytes());
            }
            None => {}
        }
        debug_assert_eq!(
            Record::decode(&to[start..]).ok(),
            Some(*self),
            "an event is read back as it was written"
        );
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Record<'a>, Failure> {
        let Some((flags, rest)) = bytes.split_first() else {
            return Err(Failure::damaged("an event", bytes));
        };
        let known = IS_PUT | HAS_PREVIOUS | IS_SHORT | PREVIOUS_IS_SHORT;
        if flags & !known != 0 || flags & (IS_PUT | IS_SHORT) == IS_SHORT {
            return Err(Failure::damaged("an event", bytes));
        }
        let mut bytes = Bytes::new(rest, "an event");
        let key_bytes = bytes.number()?;
        let key = bytes.part(key_bytes)?;
        let mut previous = None;
        if flags & HAS_PREVIOUS != 0 {
            let at = At { main: bytes.signed()?, sub: bytes.number()? as u32 };
            let is_short = flags & PREVIOUS_IS_SHORT != 0;
            previous = Some(Previous { at, value_bytes: bytes.number()?, is_short });
        }
        let mut put = None;
        if flags & IS_SHORT != 0 {
            put = Some(Put::Short { value_bytes: bytes.number()?, hash: bytes.hash()? });
        } else if flags & IS_PUT != 0 {
            put = Some(Put::Whole(PutRecord::decode(&mut bytes)?));
        }
        Ok(Record { key, previous, put })
    }

    /// Returns the length of the value that it wrote, wherever that is; 0 of a delete.
    pub(super) fn value_bytes(&self) -> u64 {
        match &self.put {
            Some(Put::Whole(put)) => put.value.len() as u64,
            Some(Put::Short { value_bytes, .. }) => *value_bytes,
            None => 0,
        }
    }
}

impl<'a> PutRecord<'a> {
    fn encode(&self, to: &mut Vec<u8>) {
        put_number(self.create as u64, to);
        put_number(self.version as u64, to);
        put_number(self.lease as u64, to);
        to.extend_from_slice(self.value);
    }

    fn decode(bytes: &mut Bytes<'a>) -> Result<PutRecord<'a>, Failure> {
        let (create, version, lease) = (bytes.signed()?, bytes.signed()?, bytes.signed()?);
        Ok(PutRecord { create, version, lease, value: bytes.rest })
    }

    pub(super) fn key_value(&self, key: Vec<u8>, main: i64) -> KeyValue {
        KeyValue {
            key: key.into(),
            create_revision: self.create,
            mod_revision: main,
            version: self.version,
            value: self.value.to_vec().into(),
            lease: self.lease,
        }
    }
}

/// The numbers of a state: the value of [`STATE`] in `meta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) revision: i64,
    /// -1 before the first compaction.
    pub(super) compacted: i64,
    /// The first event that no compaction has looked at.
    pub(super) cleaned: At,
    pub(super) used_bytes: u64,
    /// None of an earlier build, and of a snapshot that was restored, until the state is opened.
    pub(super) sums: Option<Sums>,
    /// None before format 3. A state of it has sums.
    pub(super) ages: Option<Ages>,
}

impl Default for State {
    fn default() -> State {
        let sums = Some(Sums::default());
        State { revision: 1, compacted: -1, cleaned: At::default(), used_bytes: 0, sums, ages: None }
    }
}

impl State {
    /// Returns whether events before the compacted revision wait for [`clean`](super::clean).
    pub(super) fn is_cleaning(&self) -> bool {
        self.cleaned.main < self.compacted
    }

    /// Returns whether the steps made in addition to changes lag, so that entries are proposed only for them.
    pub(super) fn is_unfinished(&self) -> bool {
        self.is_cleaning() || self.ages.is_some_and(|ages| ages.is_late(self.revision))
    }

    /// Returns whether a current value of this place and length is in `now` alone.
    pub(super) fn is_short(&self, at: At, value_bytes: usize) -> bool {
        self.ages.is_some_and(|ages| ages.is_short(at, value_bytes as u64))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(80);
        put_number(self.revision as u64, &mut bytes);
        put_number((self.compacted + 1) as u64, &mut bytes);
        put_number(self.cleaned.main as u64, &mut bytes);
        put_number(u64::from(self.cleaned.sub), &mut bytes);
        put_number(self.used_bytes, &mut bytes);
        if let Some(sums) = &self.sums {
            sums.encode(&mut bytes);
        }
        if let Some(ages) = &self.ages {
            ages.encode(&mut bytes);
        }
        debug_assert_eq!(
            State::decode(&bytes).ok(),
            Some(*self),
            "the numbers are read back as they were written"
        );
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<State, Failure> {
        let mut bytes = Bytes::new(bytes, "the state's numbers");
        Ok(State {
            revision: bytes.signed()?,
            compacted: bytes.signed()? - 1,
            cleaned: At { main: bytes.signed()?, sub: bytes.number()? as u32 },
            used_bytes: bytes.number()?,
            sums: if bytes.rest.is_empty() { None } else { Some(Sums::decode(&mut bytes)?) },
            ages: if bytes.rest.is_empty() { None } else { Some(Ages::decode(&mut bytes)?) },
        })
    }
}

/// The key of the state's format in `meta`.
pub(super) const FORMAT: &[u8] = b"format";

pub(super) fn encode_format(format: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_number(format, &mut bytes);
    bytes
}

/// The key of the state's numbers in `meta`.
pub(super) const STATE: &[u8] = b"state";
/// The prefix in `meta` of the marks of replaced events.
const REPLACED: &[u8] = b"replaced/";
/// The prefix of checkpoints in `meta`.
pub(super) const CHECKPOINT: &[u8] = b"checkpoint/";
/// The prefix of members' attributes in `meta`.
pub(super) const MEMBER: &[u8] = b"member/";
/// The prefix of alarms in `meta`.
pub(super) const ALARM: &[u8] = b"alarm/";

/// The key in `meta` of whether authentication is on, and of the revision of users and roles.
pub(super) const AUTH: &[u8] = b"auth";
/// The prefixes of users and of roles in `meta`. They are shorter than the suffix of a key in `versions`.
pub(super) const USER: &[u8] = b"user/";
pub(super) const ROLE: &[u8] = b"role/";

/// Returns whether a key of `meta` is one of users and roles.
pub(super) fn is_account(key: &[u8]) -> bool {
    key == AUTH || key.starts_with(USER) || key.starts_with(ROLE)
}

/// Returns the key of a user or role.
pub(super) fn named_key(prefix: &[u8], name: &str) -> Vec<u8> {
    [prefix, name.as_bytes()].concat()
}

pub(super) fn replaced_key(at: At) -> Vec<u8> {
    [REPLACED, &at.key()].concat()
}

pub(super) fn replaced_at(key: &[u8]) -> Result<At, Failure> {
    At::of_key(key.strip_prefix(REPLACED).ok_or_else(|| Failure::damaged("a mark", key))?)
}

pub(super) fn checkpoint_key(index: u64) -> Vec<u8> {
    [CHECKPOINT, &index.to_be_bytes()].concat()
}

pub(super) fn checkpoint_index(key: &[u8]) -> Result<u64, Failure> {
    let index = key.strip_prefix(CHECKPOINT).and_then(|index| index.try_into().ok());
    index.map(u64::from_be_bytes).ok_or_else(|| Failure::damaged("a checkpoint", key))
}

pub(super) fn member_key(id: u64) -> Vec<u8> {
    [MEMBER, &id.to_be_bytes()].concat()
}

pub(super) fn alarm_key(member: u64, alarm: i32) -> Vec<u8> {
    [ALARM, &member.to_be_bytes(), &alarm.to_be_bytes()].concat()
}

pub(super) fn alarm_of_key(key: &[u8]) -> Result<(u64, i32), Failure> {
    let parts = key.strip_prefix(ALARM).and_then(|key| key.split_at_checked(8));
    let parts = parts.and_then(|(member, alarm)| Some((member.try_into().ok()?, alarm.try_into().ok()?)));
    let (member, alarm) = parts.ok_or_else(|| Failure::damaged("an alarm", key))?;
    Ok((u64::from_be_bytes(member), i32::from_be_bytes(alarm)))
}
