//! A lookup service that runs next to the device: Tokio tasks send keys through a channel, and tasks on the
//! storage thread search the file and reply. A search is a chain of dependent reads, so the cost of a hop is
//! paid ten times over where the chain runs far from the device. The last line shows the same search from
//! Tokio.
//!
//! Run with `cargo run --release -p forebay --example shard_service`; it writes 4 MiB into the current folder
//! and removes them again.

use std::error::Error;
use std::time::Instant;

use forebay::{Class, Config, Durability, Engine, File, Open, Result, shard};
use tokio::sync::oneshot;

type AnyError = Box<dyn Error + Send + Sync>;

const PAGE: u64 = 4096;
const PAGES: u64 = 1024;
/// A record is a key and its value, eight bytes each.
const RECORDS_A_PAGE: u64 = PAGE / 16;
const LOOKUPS: u64 = 2048;
const WORKERS: usize = 4;

struct Request {
    key: u64,
    answer: oneshot::Sender<Result<Option<u64>>>,
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let engine = Engine::start(Config::new())?;
    let file = engine.temp_file(".", Open::create()).await?;
    write_records(&engine, &file).await?;

    // The service: as many workers as searches may run concurrently, all on the file's own shard. The channel is bounded, so
    // callers wait when the service is busy.
    let (requests, inbox) = async_channel::bounded::<Request>(256);
    let table = file.clone();
    let service = engine.spawn_on_shard(file.home_shard(), Class::DEFAULT, move || async move {
        let mut workers = Vec::new();
        for _ in 0..WORKERS {
            let (table, inbox) = (table.clone(), inbox.clone());
            workers.push(shard::spawn(async move {
                let mut served = 0u64;
                while let Ok(Request { key, answer }) = inbox.recv().await {
                    // A caller that has been dropped is not an error here.
                    let _ = answer.send(lookup(&table, key).await);
                    served += 1;
                }
                served
            })?);
        }
        let mut served = 0;
        for worker in workers {
            served += worker.await?;
        }
        Result::<u64>::Ok(served)
    });

    let begun = Instant::now();
    in_tasks(move |key| {
        let requests = requests.clone();
        async move {
            let (answer, reply) = oneshot::channel();
            requests.send(Request { key, answer }).await?;
            Ok(reply.await??)
        }
    })
    .await?;
    report("searched on the shard", begun);

    // The last sender was dropped with the closure: the workers find the channel closed and end.
    println!("the service answered {} requests", service.await??);

    let begun = Instant::now();
    let table = file.clone();
    in_tasks(move |key| {
        let table = table.clone();
        async move { Ok(lookup(&table, key).await?) }
    })
    .await?;
    report("the same code, searched from Tokio", begun);

    engine.close().await?;
    Ok(())
}

/// Looks a key up, with the same function on a shard and in a Tokio task: binary search over the pages, then
/// within one.
async fn lookup(table: &File, key: u64) -> Result<Option<u64>> {
    let (mut low, mut high) = (0, PAGES);
    while low < high {
        let middle = low + (high - low) / 2;
        let page = table.read(middle * PAGE..(middle + 1) * PAGE).await?;
        match (key < word(&page, 0), key > word(&page, 2 * (RECORDS_A_PAGE as usize - 1))) {
            (true, _) => high = middle,
            (_, true) => low = middle + 1,
            _ => {
                let found = (0..RECORDS_A_PAGE as usize).find(|record| word(&page, 2 * record) == key);
                return Ok(found.map(|record| word(&page, 2 * record + 1)));
            }
        }
    }
    Ok(None)
}

fn word(page: &[u8], index: usize) -> u64 {
    page[index * 8..index * 8 + 8].try_into().map_or(0, u64::from_le_bytes)
}

/// Looks keys up from as many Tokio tasks as workers, and checks every reply. Even keys exist.
async fn in_tasks<F, Fut>(ask: F) -> Result<(), AnyError>
where
    F: Fn(u64) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<Option<u64>, AnyError>> + Send,
{
    let mut tasks = Vec::new();
    for task in 0..WORKERS as u64 {
        let ask = ask.clone();
        tasks.push(tokio::spawn(async move {
            for turn in 0..LOOKUPS / WORKERS as u64 {
                let key = (task * 7919 + turn * 104_729) % (2 * PAGES * RECORDS_A_PAGE);
                let expected = key.is_multiple_of(2).then_some(key * 3);
                assert_eq!(ask(key).await?, expected);
            }
            Result::<(), AnyError>::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn write_records(engine: &Engine, file: &File) -> Result<()> {
    let mut table = engine.block((PAGES * PAGE) as usize)?;
    for (record, bytes) in (0u64..).zip(table.chunks_exact_mut(16)) {
        bytes[..8].copy_from_slice(&(2 * record).to_le_bytes());
        bytes[8..].copy_from_slice(&(6 * record).to_le_bytes());
    }
    file.write(0, table).durable(Durability::Data).await
}

fn report(what: &str, begun: Instant) {
    let seconds = begun.elapsed().as_secs_f64();
    println!("{what}: {LOOKUPS} lookups, {:.0} a second", LOOKUPS as f64 / seconds);
}
