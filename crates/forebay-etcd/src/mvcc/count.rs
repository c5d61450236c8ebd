//! [`count`]: the numbers of a state that follow from its entries.

use std::ops::Bound;

use super::Failure;
use super::change::{entry_bytes, event_bytes};
use super::codec::{self, At, Record};
use super::reader::{Part, Reader};
use super::sums::Sums;
use crate::version::Formats;

/// Counts the space of a state of this format, and its sums. It reads all entries.
pub(super) async fn count(reader: &Reader<'_>, cleaned: At, format: u64) -> Result<(u64, Sums), Failure> {
    let (mut bytes, mut sums) = (0, Sums::default());
    let accounts = (format >= Formats::WITH_ACCOUNTS).then_some(Part::Meta);
    for part in [Part::Now, Part::Leases, Part::LeaseKeys, Part::Events].into_iter().chain(accounts) {
        let mut entries = reader.walk(part, (Bound::Unbounded, Bound::Unbounded));
        while let Some((key, value)) = entries.next().await? {
            bytes += match part {
                Part::Events => {
                    let record = Record::decode(&value)?;
                    event_bytes(record.key, record.value_bytes())
                }
                Part::Meta if !codec::is_account(&key) => 0,
                Part::Meta => entry_bytes(&key, value.len()),
                _ => entry_bytes(&key, 0),
            };
            sums.add(part, &key, &value, cleaned)?;
        }
    }
    Ok((bytes, sums))
}
