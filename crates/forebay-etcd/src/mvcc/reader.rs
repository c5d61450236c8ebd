//! [`Reader`]: the keyspaces as they are, or as a snapshot has them; [`Scan`]: the current keys with the changes of an entry.

use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};

use forebay_kv::{Keyspace, Range, Snapshot, Value};

use super::codec::{self, At, KEY_BYTES_MAX, Now, State, split_version_key};
use super::parallel_reads;
use super::recent::Recent;
use super::walk::{Wait, Walk, is_memory};
use super::{Failure, KEYSPACES};
use crate::proto::mvccpb::event::EventType;
use crate::proto::mvccpb::{Event, KeyValue};

/// The most keys whose values are read ahead together.
const READ_AHEAD_KEYS: usize = 256;
/// Bytes of a key's later versions that are read before the others are passed over: a new range costs about as much.
const LATER_BYTES_MAX: usize = if cfg!(test) { 100 } else { 32 << 10 };

/// A keyspace, by its place in [`KEYSPACES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Now,
    Events,
    Versions,
    Leases,
    LeaseKeys,
    Meta,
}

/// Reads from keyspaces.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    keyspaces: &'a [Keyspace; KEYSPACES.len()],
    snapshot: Option<&'a Snapshot>,
}

impl<'a> Reader<'a> {
    /// Fails for other keyspaces than those of [`KEYSPACES`].
    pub(super) fn new(
        keyspaces: &'a [Keyspace],
        snapshot: Option<&'a Snapshot>,
    ) -> Result<Reader<'a>, Failure> {
        let keyspaces = keyspaces.try_into();
        let keyspaces =
            keyspaces.map_err(|_| Failure::Damaged("the keyspaces are not the state's".into()))?;
        Ok(Reader { keyspaces, snapshot })
    }

    pub(super) fn keyspace(&self, part: Part) -> &'a Keyspace {
        &self.keyspaces[part as usize]
    }

    /// Returns the value of a key. Waits for memory if this reads for an entry.
    pub(super) async fn get(&self, part: Part, key: &[u8]) -> Result<Option<Value>, Failure> {
        let keyspace = self.keyspace(part);
        if let Some(snapshot) = self.snapshot {
            return Ok(snapshot.get(keyspace, key).await?);
        }
        let mut wait = Wait::default();
        loop {
            match keyspace.get(key).await {
                Err(error) if is_memory(&error) => wait.again().await,
                found => return Ok(found?),
            }
        }
    }

    /// Returns whether this reads for an entry, which must be applied.
    pub(super) fn is_for_entry(&self) -> bool {
        self.snapshot.is_none()
    }

    /// Reads the values of several keys, and passes them on in the order of the keys: all together if the memory suffices, else
    /// half as many, and so on: the values themselves may use up the memory. A single value waits for it if this reads for an
    /// entry.
    pub(super) async fn each_value<K: AsRef<[u8]>>(
        &self,
        part: Part,
        keys: &[K],
        mut take: impl FnMut(Option<&[u8]>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let keyspace = self.keyspace(part);
        let (mut rest, mut at_once) = (keys, keys.len());
        while let [first, ..] = rest {
            let (some, others) = rest.split_at(at_once.min(rest.len()));
            let found = match self.snapshot {
                Some(snapshot) => snapshot.multi_get(keyspace, some).await,
                None => keyspace.multi_get(some).await,
            };
            match found {
                Err(error) if is_memory(&error) && some.len() > 1 => {
                    at_once = some.len() / 2;
                    continue;
                }
                Err(error) if is_memory(&error) => take(self.get(part, first.as_ref()).await?.as_deref())?,
                found => found?.iter().try_for_each(|value| take(value.as_deref()))?,
            }
            rest = others;
        }
        Ok(())
    }

    pub(super) fn range(&self, part: Part, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Range {
        let keyspace = self.keyspace(part);
        match self.snapshot {
            Some(snapshot) => snapshot.range::<&[u8]>(keyspace, bounds),
            None => keyspace.range::<&[u8]>(bounds),
        }
    }

    pub(super) fn walk(&self, part: Part, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Walk<'a> {
        Walk::new(*self, part, bounds)
    }

    /// Walks over the entries with this prefix.
    pub(super) fn walk_prefix(&self, part: Part, prefix: &[u8]) -> Walk<'a> {
        self.walk_prefix_from(part, prefix, prefix)
    }

    /// Walks over those of them from one of these keys on.
    pub(super) fn walk_prefix_from(&self, part: Part, prefix: &[u8], from: &[u8]) -> Walk<'a> {
        // The first key after all of them, if it exists.
        let mut end = prefix.to_vec();
        while end.pop_if(|last| *last == u8::MAX).is_some() {}
        let high = match end.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(&end[..])
            }
            None => Bound::Unbounded,
        };
        self.walk(part, (Bound::Included(from), high))
    }

    /// Walks over the events from one revision on, until another.
    pub(super) fn walk_events(&self, from: At, until: At) -> Walk<'a> {
        self.walk(Part::Events, (Bound::Included(&from.key()), Bound::Excluded(&until.key())))
    }

    /// Returns the events from one revision on, until another.
    pub(super) fn events(&self, from: At, until: Option<At>) -> Range {
        let (from, until) = (from.key(), until.map(At::key));
        let until = until.as_ref().map_or(Bound::Unbounded, |until| Bound::Excluded(&until[..]));
        self.range(Part::Events, (Bound::Included(&from), until))
    }

    pub(super) async fn state(&self) -> Result<State, Failure> {
        let found = self.get(Part::Meta, codec::STATE).await?;
        found.map_or(Ok(State::default()), |bytes| State::decode(&bytes))
    }

    /// Returns the format of the state; `None` if nothing was written yet, or only by an earlier build, which wrote no format.
    pub(super) async fn format(&self) -> Result<Option<u64>, Failure> {
        let found = self.get(Part::Meta, codec::FORMAT).await?;
        found.map(|bytes| codec::Bytes::new(&bytes, "the state's format").number()).transpose()
    }

    pub(super) async fn now(&self, key: &[u8]) -> Result<Option<Value>, Failure> {
        if is_no_key(key) { Ok(None) } else { self.get(Part::Now, key).await }
    }

    /// Reads the current values of those keys that `recent` does not know into it, concurrently, but at most as many as it keeps.
    /// Skips values for which the store has no memory now.
    pub(super) async fn read_ahead(
        &self,
        recent: &Mutex<Recent>,
        mut keys: Vec<Vec<u8>>,
    ) -> Result<(), Failure> {
        let recent = || recent.lock().unwrap_or_else(PoisonError::into_inner);
        let limits = {
            let recent = recent();
            keys.retain(|key| !is_no_key(key) && !recent.knows(key));
            recent.ahead()
        };
        keys.sort_unstable();
        keys.dedup();
        keys.truncate(READ_AHEAD_KEYS);
        let keyspace = self.keyspace(Part::Now);
        parallel_reads::read(
            &keys,
            |key| match self.snapshot {
                Some(snapshot) => snapshot.get(keyspace, key),
                None => keyspace.get(key),
            },
            limits,
            |key, value| {
                let value = match value {
                    Ok(value) => value,
                    Err(error) if is_memory(&error) => return Ok(0),
                    Err(error) => return Err(error.into()),
                };
                let bytes = value.as_ref().map_or(0, |value| value.len());
                if bytes <= limits.value_bytes_max {
                    let now = value.as_deref().map(Now::decode).transpose()?;
                    let current = now.map(|now| (now.at, now.key_value(key.to_vec())));
                    recent().insert(key.to_vec().into(), current);
                }
                Ok(bytes)
            },
        )
        .await
    }

    /// Returns the revision of a key's value as of a revision; `None` without a value.
    pub(super) async fn version_at(&self, key: &[u8], revision: i64) -> Result<Option<At>, Failure> {
        if is_no_key(key) {
            return Ok(None);
        }
        let (mut low, mut high) = (Vec::new(), Vec::new());
        codec::version_key(key, At::first(0), &mut low);
        codec::version_key(key, At::last(revision), &mut high);
        let mut found = self.walk(Part::Versions, (Bound::Included(&low), Bound::Included(&high))).rev();
        let Some((found, is_put)) = found.next().await? else { return Ok(None) };
        Ok(if is_put.is_empty() || is_put[0] == 0 { None } else { Some(split_version_key(&found)?.1) })
    }

    /// Returns the keys of a span that had a value as of a revision, with the revisions of these values.
    pub(super) fn versions_at(&self, span: Span<'_>, revision: i64) -> Versions<'a> {
        let walk = span.bounds().map(|(low, high)| {
            let (mut escaped_low, mut escaped_high) = (Vec::new(), Vec::new());
            codec::escape(low, &mut escaped_low);
            let high = high.map_or(Bound::Unbounded, |high| {
                codec::escape(high, &mut escaped_high);
                Bound::Excluded(&escaped_high[..])
            });
            let mut walk = self.walk(Part::Versions, (Bound::Included(&escaped_low[..]), high));
            // Those that are wanted are fetched.
            walk.skip_values();
            walk
        });
        Versions { walk, revision, key: Vec::new(), newest: None, later_bytes: 0 }
    }
}

/// Keys in order, with the revisions that were current for them as of a revision. They are read as they are asked for.
pub(super) struct Versions<'a> {
    /// None after the last one.
    walk: Option<Walk<'a>>,
    revision: i64,
    /// The escaped key, and its newest version so far.
    key: Vec<u8>,
    newest: Option<At>,
    /// The bytes that its later versions have so far, which may have short values.
    later_bytes: usize,
}

impl Versions<'_> {
    pub(super) async fn next(&mut self) -> Result<Option<(Vec<u8>, At)>, Failure> {
        while let Some(walk) = &mut self.walk {
            let Some((mut found, is_put)) = walk.next().await? else {
                self.walk = None;
                break;
            };
            let (escaped, at) = split_version_key(&found)?;
            let mut ended = None;
            if escaped != self.key {
                ended = self.ended();
                self.key.clear();
                self.key.extend_from_slice(escaped);
                self.later_bytes = 0;
            }
            if at.main <= self.revision {
                // One that is left unread has a put's value.
                self.newest = (is_put.first() != Some(&0)).then_some(at);
            } else {
                self.later_bytes += found.len() + is_put.len();
                if self.later_bytes > LATER_BYTES_MAX
                    && let Some(walk) = &mut self.walk
                {
                    found.truncate(found.len() - At::BYTES);
                    found.extend_from_slice(&At::last(i64::MAX).key());
                    walk.skip_to(found);
                }
            }
            if ended.is_some() {
                return Ok(ended);
            }
        }
        Ok(self.ended())
    }

    /// Returns the key whose versions have all been read, if it had a value.
    fn ended(&mut self) -> Option<(Vec<u8>, At)> {
        self.newest.take().map(|at| (codec::unescape(&self.key), at))
    }

    /// Releases the memory of its reads until the next call of `next`.
    pub(super) fn let_go(&mut self) {
        if let Some(walk) = &mut self.walk {
            walk.let_go();
        }
    }
}

/// Returns whether no key can be this.
pub(super) fn is_no_key(key: &[u8]) -> bool {
    key.is_empty() || codec::escaped_bytes(key) > KEY_BYTES_MAX
}

/// Which keys a request means: one, or those from one on until another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    pub(super) key: &'a [u8],
    /// Empty: the key alone. One zero byte: all from the key on.
    pub(super) end: &'a [u8],
}

impl<'a> Span<'a> {
    pub(super) fn new(key: &'a [u8], end: &'a [u8]) -> Span<'a> {
        Span { key, end }
    }

    pub(super) fn is_one(&self) -> bool {
        self.end.is_empty()
    }

    /// Returns the first key, and the one at which the keys end; `None` without any key.
    pub(super) fn bounds(&self) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        match self.end {
            [0] => Some((self.key, None)),
            end => (self.key < end).then_some((self.key, Some(end))),
        }
    }
}

/// The events of an entry so far, and the last one of each key.
#[derive(Default)]
pub(super) struct Own {
    pub(super) events: Vec<Event>,
    pub(super) by_key: BTreeMap<Vec<u8>, usize>,
}

impl Own {
    /// Returns the pair of a key that the entry has changed: `Some(None)` if it was deleted.
    pub(super) fn pair(&self, key: &[u8]) -> Option<Option<&KeyValue>> {
        self.by_key.get(key).map(|at| self.pair_at(*at))
    }

    fn pair_at(&self, at: usize) -> Option<&KeyValue> {
        let event = self.events.get(at)?;
        if event.r#type() == EventType::Put { event.kv.as_ref() } else { None }
    }

    /// Returns where the value of an event was written.
    pub(super) fn place(&self, key: &[u8]) -> Option<u32> {
        self.by_key.get(key).map(|at| *at as u32)
    }
}

type OwnKeys<'a> = Peekable<btree_map::Range<'a, Vec<u8>, usize>>;

/// The current keys of a span in order.
pub(super) struct Scan<'a> {
    base: Option<Walk<'a>>,
    /// The next one of `base`.
    head: Option<(Vec<u8>, Value)>,
    own: Option<(&'a Own, OwnKeys<'a>)>,
}

/// A pair of a [`Scan`].
pub(super) enum ScanPair<'a> {
    Stored(Vec<u8>, Value),
    Own(&'a KeyValue, u32),
}

impl ScanPair<'_> {
    pub(super) fn key_value(self) -> Result<KeyValue, Failure> {
        match self {
            ScanPair::Stored(key, value) => Ok(Now::decode(&value)?.key_value(key)),
            ScanPair::Own(pair, _) => Ok(pair.clone()),
        }
    }
}

impl<'a> Scan<'a> {
    /// `own` are changes above those that the reader sees.
    pub(super) fn new(reader: Reader<'a>, span: Span<'_>, own: Option<&'a Own>) -> Scan<'a> {
        let Some((low, high)) = span.bounds() else { return Scan { base: None, head: None, own: None } };
        let bounds = (Bound::Included(low), high.map_or(Bound::Unbounded, Bound::Excluded));
        let own = own.filter(|own| !own.by_key.is_empty());
        let own = own.map(|own| (own, own.by_key.range::<[u8], _>(bounds).peekable()));
        Scan { base: Some(reader.walk(Part::Now, bounds)), head: None, own }
    }

    /// Reads no values from here on, for a count: pairs of the store have none.
    pub(super) fn skip_values(&mut self) {
        if let Some(base) = &mut self.base {
            base.skip_values();
        }
    }

    pub(super) async fn next(&mut self) -> Result<Option<ScanPair<'a>>, Failure> {
        loop {
            if self.head.is_none()
                && let Some(base) = &mut self.base
            {
                self.head = base.next().await?;
                if self.head.is_none() {
                    self.base = None;
                }
            }
            let own_key = self.own.as_mut().and_then(|(_, keys)| keys.peek().map(|(key, _)| *key));
            let order = match (&self.head, own_key) {
                (_, None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((stored, _)), Some(own)) => stored.cmp(own),
            };
            if order.is_eq() {
                self.head = None;
            }
            if order.is_lt() {
                return Ok(self.head.take().map(|(key, value)| ScanPair::Stored(key, value)));
            }
            if let Some((own, keys)) = &mut self.own
                && let Some((_, at)) = keys.next()
                && let Some(pair) = own.pair_at(*at)
            {
                return Ok(Some(ScanPair::Own(pair, *at as u32)));
            }
        }
    }
}
