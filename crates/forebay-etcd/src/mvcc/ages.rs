//! [`Ages`]: values that are in two places at first, and in one from when they are [`WINDOW`] revisions old.
//!
//! From format 3 of the state on, a put writes its value to `now`, where lists read it in the order of keys, and to `events`, where
//! watches read it in the order of revisions. Entries walk over the events that leave the window, in their order, a few per entry.
//! An event whose value is still current becomes *short*, under a key next to its own: it has the length of its value, which from
//! then on only `now` holds, and its hash. An event that was replaced within the window stays whole. A value above
//! [`WHOLE_BYTES_MAX`] is short from the start, because a lookup of it is cheap compared with its bytes. So at most the last
//! 131,072 values have a second copy, and long values never do.
//!
//! - *Replaced.* When a current value is replaced or deleted whose event is short, the entry writes it to its version (`versions`, after
//!   the byte), which a compaction removes with the event. Else the entry leaves a mark (`meta`, `replaced/`), by which the walk leaves
//!   the event as it is: neither reads anything. The walk removes the marks that it has passed.
//! - *Reads.* A current value is in `now`. An older value is in its version, or in its event. The value of a short event is in
//!   `now` if that is of the event's revision, else in its version. So a list at an older revision reads `now` and `versions` in
//!   the order of keys, and `events` only for the rest. It also reads earlier versions of its keys, and a few later versions, with
//!   the short values in them.
//! - *Sums, hashes, snapshots, audits, space* use whole events: a short event has the hash that sums need, so compactions read no
//!   more than before. Snapshots and hashes fetch values of 128 short events concurrently. `used_bytes` counts each value once, in
//!   either place.
//! - *Earlier directories.* All events of a state that is raised to format 3 are whole. First a walk over them marks the events
//!   that they have replaced, then the walk above follows. Both are steps of entries, written with the numbers of the state, so
//!   that a kill at any point changes nothing. The leader proposes entries for it. Members without format 3 are refused by the
//!   number of the format.
//!
//! Compared with other layouts, for values of 3 KiB of keys at random: reads of 128 KiB in order, and of a leaf and a value
//! elsewhere:
//!
//! | | two copies | by key, older values moved when replaced | by revision | here |
//! |---|---|---|---|---|
//! | list, reads of a page of 500 | 12 (128 KiB each) | 12 | 1,000 | 12; at an older revision also short moved values of other versions |
//! | watch, reads of 100,000 events | 2,400 | 200,000 | 2,400 | 2,400 |
//! | update, reads | 2 | 2 | 2 | 2, and 0.03 of the walk |
//! | update, values written | 2 | 2 | 1 | 2 within the window, 3 of older values |
//! | delete | nothing | the value | nothing | the value, if it is older |
//!
//! A history by key and revision in one keyspace writes a value once, and reads a page of all older values. It needs the newest
//! revision of a key for each get, one more read; and its watches cost as much as in the second column.

use std::ops::Bound;

use forebay_kv::Batch;

use super::Failure;
use super::clean::Step;
use super::codec::{self, At, Bytes, Put, Record, State, put_number};
use super::reader::{Part, Reader};
use super::sums::event_hash;

/// Minimum number of revisions during which an event stays whole: watches that start within them read only `events`.
const WINDOW: i64 = if cfg!(test) { 6 } else { 131_072 };
/// The longest value of a whole event.
const WHOLE_BYTES_MAX: u64 = if cfg!(test) { 1000 } else { 8 << 10 };
/// Revisions that the walk lags behind the window before it continues, so that few entries read for it; and the lag that counts as
/// late.
const STRIDE: i64 = if cfg!(test) { 2 } else { 64 };
const LATE: i64 = 16 * STRIDE;

/// How far the walk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ages {
    /// The last revision of an earlier format: its events, and those before, are whole however long they are.
    raised: i64,
    /// Events before it have marked those that they replaced; so have all events later than `raised`.
    marked: At,
    /// The first event that the walk has not passed.
    aged: At,
}

impl Ages {
    /// Starts in a state of an earlier format, at its revision.
    pub(super) fn new(raised: i64) -> Ages {
        Ages { raised, marked: At::default(), aged: At::default() }
    }

    /// Returns whether a current value of this place and length is in `now` alone.
    pub(super) fn is_short(&self, at: At, value_bytes: u64) -> bool {
        at < self.aged || (at.main > self.raised && value_bytes > WHOLE_BYTES_MAX)
    }

    /// Returns whether the walk is so late that entries are proposed for it.
    pub(super) fn is_late(&self, revision: i64) -> bool {
        self.is_marking() || self.aged.main + WINDOW + LATE <= revision
    }

    fn is_marking(&self) -> bool {
        self.marked.main <= self.raised
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        put_number(self.raised as u64, to);
        for at in [self.marked, self.aged] {
            put_number(at.main as u64, to);
            put_number(u64::from(at.sub), to);
        }
    }

    pub(super) fn decode(bytes: &mut Bytes<'_>) -> Result<Ages, Failure> {
        let raised = bytes.signed()?;
        let mut at = || Ok::<_, Failure>(At { main: bytes.signed()?, sub: bytes.number()? as u32 });
        Ok(Ages { raised, marked: at()?, aged: at()? })
    }
}

/// Makes the walk's next step, after the changes of an entry, which have `replaced` these events. The step does not see them in the
/// keyspaces.
pub(super) async fn age(
    reader: &Reader<'_>,
    state: &mut State,
    batch: &mut Batch,
    step: &Step,
    replaced: &[At],
) -> Result<(), Failure> {
    let until = state.revision.saturating_sub(WINDOW);
    let Some(ages) = &mut state.ages else { return Ok(()) };
    if ages.is_marking() {
        return mark(reader, ages, batch, step).await;
    }
    if ages.aged.main + STRIDE > until {
        return Ok(());
    }
    let (mut marks, mut until) = (Vec::new(), At::first(until));
    let (low, high) = (codec::replaced_key(ages.aged), codec::replaced_key(until));
    let mut found = reader.walk(Part::Meta, (Bound::Included(&low), Bound::Excluded(&high)));
    while let Some((key, _)) = found.next().await? {
        let at = codec::replaced_at(&key)?;
        if marks.len() as u64 == step.events {
            until = at;
            break;
        }
        marks.push(at);
    }
    // The events may need the memory.
    drop(found);
    let mut events = reader.walk_events(ages.aged, until);
    let (mut count, mut bytes, mut scratch) = (0, 0, Vec::new());
    while let Some((key, value)) = events.next().await? {
        let (at, record) = (At::of_key(&key)?, Record::decode(&value)?);
        if count == step.events || bytes >= step.bytes {
            until = at;
            break;
        }
        let is_whole = matches!(record.put, Some(Put::Whole(_)));
        let is_replaced = marks.binary_search(&at).is_ok() || replaced.contains(&at);
        if is_whole && !is_replaced {
            let put = Put::Short { value_bytes: record.value_bytes(), hash: event_hash(at, &record) };
            scratch.clear();
            Record { put: Some(put), ..record }.encode(&mut scratch);
            batch.delete(reader.keyspace(Part::Events), key);
            batch.put(reader.keyspace(Part::Events), at.short_key(), &scratch);
        }
        count += 1;
        bytes += (value.len() + 4 * record.key.len()) as u64;
    }
    for at in marks.iter().chain(replaced).filter(|at| **at < until) {
        batch.delete(reader.keyspace(Part::Meta), codec::replaced_key(*at));
    }
    ages.aged = until;
    Ok(())
}

/// Marks the events of an earlier format that later events have replaced.
async fn mark(reader: &Reader<'_>, ages: &mut Ages, batch: &mut Batch, step: &Step) -> Result<(), Failure> {
    let until = At::first(ages.raised + 1);
    let mut events = reader.walk_events(ages.marked, until);
    let (mut count, mut bytes) = (0, 0);
    while count < step.events && bytes < step.bytes {
        let Some((key, value)) = events.next().await? else {
            ages.marked = until;
            break;
        };
        let record = Record::decode(&value)?;
        if let Some(previous) = record.previous {
            batch.put(reader.keyspace(Part::Meta), codec::replaced_key(previous.at), []);
        }
        ages.marked = At::of_key(&key)?.next();
        count += 1;
        bytes += value.len() as u64;
    }
    Ok(())
}
