//! A hash of the state up to a revision, which is alike on members with the same entries, however far their cleaning is.

use std::collections::HashSet;

use super::Failure;
use super::codec::{At, Record};
use super::range::Place;
use super::records::Records;
use crate::proto::mvccpb::KeyValue;

/// The most replaced events that are in memory. With more of them, the version of its key says whether an event is replaced.
const REPLACED_MAX: usize = if cfg!(test) { 8 } else { 1 << 18 };

/// The FNV-1a hash of 64 bits, and its halves at the end.
struct Hasher(u64);

impl Hasher {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// Adds bytes so that they and what follows cannot be read in another way.
    fn add_part(&mut self, bytes: &[u8]) {
        self.add(&(bytes.len() as u64).to_le_bytes());
        self.add(bytes);
    }

    fn finish(&self) -> u32 {
        (self.0 ^ (self.0 >> 32)) as u32
    }
}

/// Hashes all events up to a revision that a read at a revision of the compacted one or later depends on.
pub(super) async fn hash(place: &Place<'_>, revision: i64) -> Result<u32, Failure> {
    let (reader, state) = (place.reader, place.state);
    // What was replaced up to the compacted revision, and is not removed yet.
    let mut replaced = HashSet::new();
    let mut events = reader.events(state.cleaned, Some(At::first(state.compacted + 1)));
    while replaced.len() <= REPLACED_MAX
        && let Some((_, value)) = events.next().await.transpose()?
    {
        replaced.extend(Record::decode(&value)?.previous.map(|previous| previous.at));
    }
    // The versions may need its memory.
    drop(events);
    let mut hasher = Hasher(0xcbf2_9ce4_8422_2325);
    let mut records = Records::new(reader, revision + 1);
    while let Some(record) = records.next().await? {
        let at = At { main: record.main, sub: record.sub };
        if at.main <= state.compacted {
            let is_over = if record.is_delete || replaced.len() <= REPLACED_MAX {
                record.is_delete || replaced.contains(&at)
            } else {
                reader.version_at(&record.pair.key, state.compacted).await? != Some(at)
            };
            if is_over {
                continue;
            }
        }
        let KeyValue { key, create_revision, version, lease, value, .. } = record.pair;
        hasher.add(&at.key());
        hasher.add_part(&key);
        if !record.is_delete {
            for number in [create_revision, version, lease] {
                hasher.add(&number.to_le_bytes());
            }
            hasher.add_part(&value);
        }
    }
    Ok(hasher.finish())
}
