//! Copies the segments with data that salvage drops.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use forebay::{Durability, Open};

use super::{SALVAGED, Scene};
use crate::error::Result;
use crate::recover::Outcome;
use crate::segment::{READ_BYTES, READ_DEPTH};

impl Scene {
    /// Copies each damaged segment as a whole, before anything is changed.
    pub(super) async fn keep_copies(&self, outcome: &Outcome) -> Result<()> {
        let found = &outcome.recovery;
        if outcome.gaps.is_empty() && found.truncated_at.is_none() && found.lost.is_empty() {
            return Ok(());
        }
        let lost = found.lost.iter().map(|lost| &lost.file);
        let damaged = found.damage.iter().map(|damage| &damage.file);
        let cut = found.truncated_at.iter().map(|cut| &cut.file);
        let files: BTreeSet<&PathBuf> = lost.chain(damaged).chain(cut).collect();
        for from in files {
            let Some(name) = from.file_name().and_then(|name| name.to_str()) else { continue };
            // A missing segment has no copy.
            if self.dir.metadata(name).await.is_err() {
                continue;
            }
            let from = self.dir.open(name, Open::read().shard(self.options.shard)).await?;
            let to = self.unused_name(name).await;
            let to = self.dir.open(&to, Open::create_new().buffered().shard(self.options.shard)).await?;
            let mut append = to.append().start();
            let mut blocks = from.scan().request_bytes(READ_BYTES).depth(READ_DEPTH).start();
            while let Some(block) = blocks.next().await.transpose()? {
                append.write(&block).await?;
                self.maker.written_bytes.fetch_add(block.len() as u64, Ordering::Relaxed);
            }
            append.sync(Durability::All).await?;
            append.close().await?;
        }
        self.dir.sync().await?;
        Ok(())
    }

    async fn unused_name(&self, name: &str) -> String {
        let mut unused = format!("{SALVAGED}{name}");
        let mut number = 2;
        while self.dir.metadata(&unused).await.is_ok() {
            unused = format!("{SALVAGED}{number}-{name}");
            number += 1;
        }
        unused
    }
}
