//! [`used_bytes`]: the space that a state takes, by its entries.

use std::ops::Bound;

use super::Failure;
use super::change::{entry_bytes, event_bytes};
use super::codec::Record;
use super::reader::{Part, Reader};

/// Counts the space that a state takes, as its numbers have it. It reads all entries.
pub(super) async fn used_bytes(reader: &Reader<'_>) -> Result<u64, Failure> {
    let mut bytes = 0;
    for part in [Part::Now, Part::Leases, Part::LeaseKeys, Part::Events] {
        let mut entries = reader.walk(part, (Bound::Unbounded, Bound::Unbounded));
        while let Some((key, value)) = entries.next().await? {
            bytes += if part == Part::Events {
                let record = Record::decode(&value)?;
                event_bytes(record.key, record.put.map_or(0, |put| put.value.len() as u64))
            } else {
                entry_bytes(&key, 0)
            };
        }
    }
    Ok(bytes)
}
