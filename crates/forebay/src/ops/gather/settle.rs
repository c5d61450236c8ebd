//! The end of the file at its exact length, and the sync.

use crate::base::class::Class;
use crate::base::error::Result;
use crate::handle::file::File;
use crate::io::op::Durability;

/// How far the file goes, and how far padding of ours has extended it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tail {
    /// Behind the last byte that was written or was there before.
    pub(crate) end: u64,
    /// Where the furthest padding ends, if there is any.
    pub(crate) padded: Option<u64>,
}

impl Tail {
    /// A write that begins at `start` has bytes that count until `valid`; answers how long it must be.
    pub(crate) fn extend(&mut self, start: u64, valid: u64, grain: u64) -> u64 {
        self.end = self.end.max(valid);
        let padded = valid.next_multiple_of(grain);
        if padded > self.end {
            self.padded = Some(self.padded.map_or(padded, |before| before.max(padded)));
        }
        padded - start
    }

    /// Nothing is in flight: takes the padding off, then syncs.
    pub(crate) async fn settle(&mut self, file: &File, class: Class, durability: Durability) -> Result<()> {
        if let Some(padded) = self.padded.take()
            && padded > self.end
            // Another length means that someone else has extended or cut the file: the end is not ours any more.
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

/// The one that promises more.
pub(crate) fn stronger(one: Durability, other: Durability) -> Durability {
    let rank = |durability| match durability {
        Durability::None => 0,
        Durability::Data => 1,
        Durability::All => 2,
    };
    if rank(other) > rank(one) { other } else { one }
}
