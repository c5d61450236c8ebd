//! The rows with Forebay: clients are tasks of a Tokio runtime.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay::{Config, Durability, Engine, Open};

use super::super::aligned::AlignedBuffer;
use super::client::{Client, Contents, part};
use super::job::{BLOCK_BYTES, WriteRow, WritesWork};

/// Memory that write combining keeps free and in flight beside the waiting pages.
const COMBINE_SPARE_BYTES: usize = 16 << 20;

/// Runs one task for each client. Returns the time when they began, and their results.
///
/// # Errors
/// Errors of the engine.
pub(super) fn write(
    path: &Path,
    work: &WritesWork,
    offsets: &[u64],
) -> anyhow::Result<(Instant, Vec<Client>)> {
    let engine = Engine::start(Config::default().shards(1))?;
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(work.clients);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).build()?;
    let shared = Arc::new((path.to_owned(), work.clone()));
    let parts: Vec<Vec<u64>> = (0..work.clients).map(|client| part(work, offsets, client)).collect();
    let outcome = runtime.block_on(async {
        let begun = Instant::now();
        let tasks: Vec<_> = parts
            .into_iter()
            .map(|mine| {
                let (engine, shared) = (engine.clone(), Arc::clone(&shared));
                tokio::spawn(async move { one(&engine, &shared.0, &shared.1, mine, begun).await })
            })
            .collect();
        let mut clients = Vec::with_capacity(work.clients);
        for task in tasks {
            clients.push(task.await.context("a writing task panicked")??);
        }
        anyhow::Ok((begun, clients))
    })?;
    drop(runtime);
    let report = engine.close().wait()?;
    anyhow::ensure!(
        report.leaked_operations == 0 && report.lost_shards == 0,
        "the engine lost {} shards and {} operations as it was closed",
        report.lost_shards,
        report.leaked_operations
    );
    Ok(outcome)
}

async fn one(
    engine: &Engine,
    path: &Path,
    work: &WritesWork,
    offsets: Vec<u64>,
    begun: Instant,
) -> anyhow::Result<Client> {
    let contents = Contents::new(work);
    let durability = match work.row {
        WriteRow::ForebayDurable => Durability::Data,
        _ => Durability::None,
    };
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES as usize);
    contents.fill(buffer.bytes_mut());
    let mut client = Client::new()?;
    let deadline = begun + Duration::from_secs_f64(work.seconds_max);

    let file = engine.open(path, Open::write()).await?;
    let mut now = Instant::now();
    client.open = now - begun;
    let combine = (work.row == WriteRow::ForebayCombine).then(|| {
        let bytes = offsets.len() * BLOCK_BYTES as usize + COMBINE_SPARE_BYTES;
        file.write_combiner().memory(bytes).start()
    });
    for offset in offsets {
        contents.stamp(offset, buffer.bytes_mut());
        let before = now;
        match &combine {
            Some(combine) => combine.write(offset, buffer.bytes()).await?,
            None => file.write(offset, buffer.bytes()).durable(durability).await?,
        }
        now = Instant::now();
        client.write += now - before;
        client.latency.record(now - before);
        if now >= deadline {
            break;
        }
    }
    if matches!(work.row, WriteRow::Forebay | WriteRow::ForebayCombine) {
        match &combine {
            Some(combine) => combine.flush(Durability::Data).await?,
            None => file.sync(Durability::Data).await?,
        }
        let written = now;
        now = Instant::now();
        client.sync = now - written;
    }
    drop(combine);
    file.close().await?;
    client.ended = Instant::now();
    client.close = client.ended - now;
    Ok(client)
}
