//! The row `forebay`: a task of a Tokio runtime for each file at once.

use std::sync::Arc;
use std::time::Instant;

use forebay::{Durability, Engine, Open};

use super::job::Call;
use super::lane::{FileQueue, Part, Tally};

/// Runs one lane.
///
/// # Errors
/// Fails with the errors of the engine.
pub(super) async fn lane(engine: Engine, queue: Arc<FileQueue>, deadline: Instant) -> anyhow::Result<Tally> {
    let mut tally = Tally::new()?;
    let bytes = queue.work.file_set.file_bytes;
    let mut memory = vec![0; bytes as usize];
    while tally.begin(deadline) {
        let Some((number, path)) = queue.next_file() else { break };
        match queue.work.call {
            Call::Read => {
                tally.resume();
                let file = engine.open(path, Open::read()).await?;
                tally.made(Part::Open);
                let block = file.read(0..bytes).await?;
                tally.made(Part::Read);
                file.close().await?;
                tally.made(Part::Close);
                queue.check(number, &block)?;
            }
            Call::Create => {
                queue.fill(number, &mut memory);
                tally.resume();
                let file = engine.open(path, Open::create_new().permissions(0o600)).await?;
                tally.made(Part::Open);
                file.write(0, &memory).await?;
                tally.made(Part::Write);
                file.sync(Durability::All).await?;
                tally.made(Part::Sync);
                file.close().await?;
                tally.made(Part::Close);
            }
            Call::Stat => {
                tally.resume();
                let metadata = engine.metadata(path).await?;
                tally.made(Part::Stat);
                queue.check_length(number, metadata.len())?;
            }
        }
        tally.end();
    }
    Ok(tally)
}
