//! The physical part of compactions, in steps of the entries that follow them. The leader proposes entries for that alone until it is
//! done.

use forebay_kv::Batch;

use super::Failure;
use super::change::event_bytes;
use super::codec::{self, At, Record, State};
use super::reader::{Part, Reader};

/// How much is looked at by one entry. All members have the same numbers: a change of them needs a command that says from
/// when on.
pub(super) struct Step {
    pub(super) events: u64,
    /// Bytes that are read, and roughly those of the batch. The batch has space for them in addition to the entry's own changes.
    pub(super) bytes: u64,
}

/// Of any entry. Few in tests, whose states have few events.
pub(super) const SMALL: Step = Step { events: if cfg!(test) { 2 } else { 32 }, bytes: 256 << 10 };
/// Of an entry that is there for that alone.
pub(super) const MIDDLE: Step = Step { events: if cfg!(test) { 5 } else { 1024 }, bytes: 1 << 20 };
/// Of a compaction.
pub(super) const LARGE: Step = Step { events: if cfg!(test) { 7 } else { 4096 }, bytes: 2 << 20 };

/// Looks at the next events before the compacted revision, and removes those that no read can reach. Returns how many these are.
pub(super) async fn clean(
    reader: &Reader<'_>,
    state: &mut State,
    batch: &mut Batch,
    step: &Step,
) -> Result<u64, Failure> {
    if !state.is_cleaning() {
        return Ok(0);
    }
    let until = At::first(state.compacted);
    let mut events = reader.walk_events(state.cleaned, until);
    let (mut count, mut bytes) = (0, 0);
    let (mut removed, mut freed, mut scratch) = (0, 0, Vec::new());
    while count < step.events && bytes < step.bytes {
        let Some((key, value)) = events.next().await? else {
            state.cleaned = until;
            break;
        };
        let (at, record) = (At::of_key(&key)?, Record::decode(&value)?);
        if let Some(sums) = &mut state.sums {
            sums.clean(at, &record);
        }
        let mut remove = |at: At, value_bytes: u64, is_short: bool| {
            scratch.clear();
            codec::version_key(record.key, at, &mut scratch);
            let events = reader.keyspace(Part::Events);
            if is_short {
                batch.delete(events, at.short_key())
            } else {
                batch.delete(events, at.key())
            };
            batch.delete(reader.keyspace(Part::Versions), &scratch);
            freed += event_bytes(record.key, value_bytes);
            removed += 1;
        };
        if let Some(previous) = record.previous {
            remove(previous.at, previous.value_bytes, previous.is_short);
        }
        if record.put.is_none() {
            remove(at, 0, false);
        }
        state.cleaned = at.next();
        count += 1;
        bytes += (value.len() + 4 * record.key.len()) as u64;
    }
    state.used_bytes = state.used_bytes.saturating_sub(freed);
    Ok(removed)
}
