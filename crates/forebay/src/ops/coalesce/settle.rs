//! The end of the file at its exact length, and the sync.

use crate::base::class::Class;
use crate::base::error::Result;
use crate::handle::file::File;
use crate::io::op::Durability;

/// The file's end, and the end of our padding behind it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tail {
    /// Behind the last byte that was written or was there before.
    pub(crate) end: u64,
    /// The end of the furthest padding, if there is any.
    pub(crate) padded: Option<u64>,
}

impl Tail {
    /// Notes a write that begins at `start` and has valid bytes until `valid`; returns the length that it
    /// must have.
    pub(crate) fn extend(&mut self, start: u64, valid: u64, grain: u64) -> u64 {
        self.end = self.end.max(valid);
        let padded = valid.next_multiple_of(grain);
        if padded > self.end {
            self.padded = Some(self.padded.map_or(padded, |before| before.max(padded)));
        }
        padded - start
    }

    /// Takes the padding off, then syncs. Nothing may be in flight.
    pub(crate) async fn settle(&mut self, file: &File, class: Class, durability: Durability) -> Result<()> {
        if let Some(padded) = self.padded.take()
            && padded > self.end
            // Another length means that another writer has extended or cut the file: the end is not ours any
            // more.
            && file.len().await? == padded
        {
            file.truncate(self.end).await?;
        }
        match durability {
            Durability::None => Ok(()),
            durability => file.sync(durability).class(class).await,
        }
    }
}

/// Returns the stronger of two durabilities.
pub(crate) fn stronger(one: Durability, other: Durability) -> Durability {
    let rank = |durability| match durability {
        Durability::None => 0,
        Durability::Data => 1,
        Durability::All => 2,
    };
    if rank(other) > rank(one) { other } else { one }
}
