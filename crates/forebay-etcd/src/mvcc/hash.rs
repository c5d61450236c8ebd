//! A hash of the state up to a revision, which is alike on members with the same entries, however far their cleaning is.

use std::collections::HashSet;

use super::Failure;
use super::codec::{At, Record};
use super::range::Place;

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
    while let Some((_, value)) = events.next().await.transpose()? {
        replaced.extend(Record::decode(&value)?.previous.map(|previous| previous.at));
    }
    let mut hasher = Hasher(0xcbf2_9ce4_8422_2325);
    let mut events = reader.events(At::default(), Some(At::first(revision + 1)));
    while let Some((key, value)) = events.next().await.transpose()? {
        let (at, record) = (At::of_key(&key)?, Record::decode(&value)?);
        let is_over = record.put.is_none() || replaced.contains(&at);
        if at.main <= state.compacted && is_over {
            continue;
        }
        hasher.add(&key);
        hasher.add_part(record.key);
        if let Some(put) = record.put {
            for number in [put.create, put.version, put.lease] {
                hasher.add(&number.to_le_bytes());
            }
            hasher.add_part(put.value);
        }
    }
    Ok(hasher.finish())
}
