//! [`count`]: the numbers of a state that follow from its entries.

use std::ops::Bound;

use super::Failure;
use super::change::{entry_bytes, event_bytes};
use super::codec::{At, Record};
use super::reader::{Part, Reader};
use super::sums::Sums;

/// Counts the space that a state takes, and its sums. It reads all entries.
pub(super) async fn count(reader: &Reader<'_>, cleaned: At) -> Result<(u64, Sums), Failure> {
    let (mut bytes, mut sums) = (0, Sums::default());
    for part in [Part::Now, Part::Leases, Part::LeaseKeys, Part::Events] {
        let mut entries = reader.walk(part, (Bound::Unbounded, Bound::Unbounded));
        while let Some((key, value)) = entries.next().await? {
            bytes += if part == Part::Events {
                let record = Record::decode(&value)?;
                event_bytes(record.key, record.put.map_or(0, |put| put.value.len() as u64))
            } else {
                entry_bytes(&key, 0)
            };
            sums.add(part, &key, &value, cleaned)?;
        }
    }
    Ok((bytes, sums))
}
