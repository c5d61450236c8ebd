//! The row `tokio-fs`: a task of a Tokio runtime for each file at once.

use std::sync::Arc;
use std::time::Instant;

use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::job::Call;
use super::lane::{FileQueue, Part, Tally};

/// Runs one lane.
///
/// # Errors
/// Fails when a call failed.
pub(super) async fn lane(queue: Arc<FileQueue>, deadline: Instant) -> anyhow::Result<Tally> {
    let mut tally = Tally::new()?;
    let mut memory = vec![0; queue.work.file_set.file_bytes as usize];
    while tally.begin(deadline) {
        let Some((number, path)) = queue.next_file() else { break };
        match queue.work.call {
            Call::Read => {
                tally.resume();
                let mut file = File::open(path).await?;
                tally.made(Part::Open);
                file.read_exact(&mut memory).await?;
                tally.made(Part::Read);
                drop(file);
                tally.made(Part::Close);
                queue.check(number, &memory)?;
            }
            Call::Create => {
                queue.fill(number, &mut memory);
                tally.resume();
                let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).await?;
                tally.made(Part::Open);
                file.write_all(&memory).await?;
                // Bytes that tokio has only taken over are written by the flush.
                file.flush().await?;
                tally.made(Part::Write);
                file.sync_all().await?;
                tally.made(Part::Sync);
                drop(file);
                tally.made(Part::Close);
            }
            Call::Stat => {
                tally.resume();
                let metadata = tokio::fs::metadata(path).await?;
                tally.made(Part::Stat);
                queue.check_length(number, metadata.len())?;
            }
        }
        tally.end();
    }
    Ok(tally)
}
