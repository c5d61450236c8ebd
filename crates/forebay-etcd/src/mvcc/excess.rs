//! [`View::excess_bytes`]: how much a state of an earlier build counts too many.

use std::ops::Bound;

use tokio::time::{Instant, sleep};

use super::Failure;
use super::change::{entry_bytes, event_bytes};
use super::codec::Record;
use super::reader::Part;
use super::view::View;

/// Entries between two pauses, each of which is as long as they took.
const TURN: u64 = 4096;

impl View {
    /// Returns the bytes that the state counts and does not have. Those of earlier builds count a current value a second time, and keep it
    /// counted when it is replaced, so the excess stays the same while changes are made. It reads all entries, with pauses.
    pub(crate) async fn excess_bytes(&self) -> Result<u64, Failure> {
        let reader = self.reader()?;
        let (mut bytes, mut count, mut begun) = (0, 0_u64, Instant::now());
        for part in [Part::Now, Part::Leases, Part::LeaseKeys, Part::Events] {
            let mut entries = reader.walk(part, (Bound::Unbounded, Bound::Unbounded));
            while let Some((key, value)) = entries.next().await? {
                bytes += if part == Part::Events {
                    let record = Record::decode(&value)?;
                    event_bytes(record.key, record.put.map_or(0, |put| put.value.len() as u64))
                } else {
                    entry_bytes(&key, 0)
                };
                count += 1;
                if count.is_multiple_of(TURN) {
                    entries.let_go();
                    sleep(begun.elapsed()).await;
                    begun = Instant::now();
                }
            }
        }
        Ok(self.used_bytes().saturating_sub(bytes))
    }
}
