//! Reads of up to four times the I/O memory end in worlds, as on real drivers (`long_reads.rs` of the core).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use forebay::{Class, Config, Engine, ErrorKind, File, Open, WorkerRings};
use forebay_sim::{self as sim, World};

use crate::common::bytes_of;

const MIB: u64 = 1 << 20;
/// The I/O memory of these engines.
const ARENA: u64 = MIB;
const LEN: u64 = 6 * MIB;

/// Returns a part of the file's bytes. Made once: test builds are slow at that.
fn part(range: Range<u64>) -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    &BYTES.get_or_init(|| bytes_of(0..LEN))[range.start as usize..range.end as usize]
}

fn check(file: &File, range: Range<u64>, result: forebay::Result<forebay::Block>) {
    let what = format!("{range:?} of {:?}", file.mode());
    let block = result.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(block[..] == *part(range), "{what}: {} bytes, which differ", block.len());
}

/// Makes the file of these worlds.
async fn content(engine: &Engine) -> forebay::Result<File> {
    let file = engine.open("file", Open::create()).await?;
    let mut append = file.append().request_bytes(64 << 10).depth(2).start();
    append.write(part(0..LEN)).await?;
    append.close().await?;
    Ok(file)
}

/// Worlds of tasks that read half to four times the I/O memory: outside of shards, on shards and through rings of workers, with
/// concurrent batches and writes, and dropped futures. A read that waits in vain is the world's deadlock.
#[test]
fn reads_of_up_to_four_times_io_memory_end_in_every_world() {
    let waits = Arc::new(AtomicU64::new(0));
    for seed in 0..30 {
        let rings = if seed % 3 == 0 { WorkerRings::Off } else { WorkerRings::Always };
        let overflow = [0, 256 << 10][seed as usize % 2];
        let config = Config::new()
            .shards(1 + seed as usize % 2)
            .arena_bytes_max(ARENA as usize)
            .overflow_bytes_max(overflow)
            .worker_rings(rings);
        let mut world = World::new(seed).config(config);
        let counted = waits.clone();
        let ended = world.run(async move |engine| {
            let file = content(&engine).await?;
            let outside: Vec<_> = (0..6).map(|_| sim::spawn(some_reads(file.clone()))).collect();
            let inside: Vec<_> = (0..4)
                .map(|number| {
                    let file = file.clone();
                    engine.spawn_on_shard(number as usize % engine.shard_count(), Class::DEFAULT, move || {
                        some_reads(file)
                    })
                })
                .collect();
            for task in outside {
                task.await.expect("a task ends");
            }
            for task in inside {
                task.await?;
            }
            let stats = engine.stats().await?;
            let shards = stats.shards.iter().chain(&stats.worker_rings);
            counted.fetch_add(shards.map(|shard| shard.memory_waits).sum(), Ordering::Relaxed);
            Ok::<_, forebay::Error>(())
        });
        ended.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).unwrap();
    }
    assert!(waits.load(Ordering::Relaxed) > 100, "reads had to wait: {waits:?}");
}

async fn some_reads(file: File) {
    for _ in 0..3 {
        let len = 1 + sim::random(4 * ARENA);
        let start = sim::random(LEN - len);
        let range = start..start + len;
        match sim::random(6) {
            0 => drop(sim::dropped_after(1 + sim::random(3) as usize, file.read(range)).await),
            1 => {
                for result in file.read_many([range.clone(), 0..9]).await.unwrap().into_iter().take(1) {
                    check(&file, range.clone(), result);
                }
            }
            2 => {
                let (read, bytes) = file.read_into(start, vec![0; len as usize]).await;
                assert_eq!(read.unwrap() as u64, len);
                assert!(bytes == part(range));
            }
            3 => {
                // The same bytes as before.
                let at = start - start % 4096;
                let bytes = part(at..at + 65_536.min(LEN - at) / 4096 * 4096);
                match file.write(at, bytes).await {
                    Ok(()) => {}
                    Err(error) => {
                        assert!(matches!(error.kind(), ErrorKind::ArenaExhausted { .. }), "{error}")
                    }
                }
            }
            _ => {
                // Not short: a short one has no memory where others hold all of it.
                let range = start.min(2 * MIB)..start.min(2 * MIB) + len.max(ARENA / 2);
                check(&file, range.clone(), file.read(range).await);
            }
        }
    }
}
