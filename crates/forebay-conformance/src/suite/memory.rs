//! I/O memory: blocks, their holders, and the case that the program holds all of them.

use std::future::IntoFuture;
use std::task::Poll;

use forebay::{Block, Class, Config, Engine, Error, ErrorKind, File, Open};

use super::check::{Outcome, fail, fails_with, holds, same, same_bytes};
use super::tools::{all, at_rest, bytes_of, fresh_on, open_all, poll_now, put, same_written, some};
use crate::Env;

super::group! { "memory":
    new_memory_is_zero_whatever_was_in_it,
    memory_of_any_length_is_had_or_refused,
    blocks_share_and_outlive,
    held_memory_is_counted_and_comes_back,
    a_program_that_holds_everything_is_told_and_recovers,
    the_same_on_a_shard,
    batches_and_scans_without_memory_are_told_and_recover,
    a_batch_may_keep_more_than_there_is_io_memory,
    read_ahead_takes_no_more_memory_than_there_is,
    an_append_without_memory_is_told_and_goes_on,
    reads_wait_for_memory_that_comes_back_by_itself,
    blocks_dropped_elsewhere_while_the_inbox_is_full,
    blocks_outlive_file_and_engine_and_end_anywhere,
}

async fn new_memory_is_zero_whatever_was_in_it(env: &Env) -> Outcome {
    let path = put(env, "a", 300_000).await?;
    for file in open_all(env, &path, Open::read()).await? {
        for len in [1usize, 4096, 5_000, 65_536, 150_000] {
            // Leaves bytes of the file behind in memory of that size.
            drop(all((0..8).map(|n| file.read(n * 100..n * 100 + len as u64).into_future())).await);
            let blocks: Result<Vec<_>, Error> = (0..8).map(|_| env.engine().block(len)).collect();
            for block in blocks? {
                same("the length", block.len(), len)?;
                same_bytes("new memory", &block, &vec![0; len])?;
            }
        }
    }
    Ok(())
}

async fn memory_of_any_length_is_had_or_refused(env: &Env) -> Outcome {
    for len in [0usize, 1, 4095, 4096, 4097, 1 << 20] {
        let block = env.engine().block(len)?;
        same("the length", (block.len(), block.is_empty()), (len, len == 0))?;
        holds("memory is aligned", len == 0 || block.as_ptr().addr().is_multiple_of(4096))?;
        same_bytes("copied", &env.engine().block_from(&bytes_of(0..len as u64))?, &bytes_of(0..len as u64))?;
    }
    let limit = ErrorKind::TooLarge { limit: 1 << 30 };
    fails_with("above 1 GiB", env.engine().block((1 << 30) + 1), limit)?;
    fails_with("far above", env.engine().block(usize::MAX), limit).map(drop)
}

async fn blocks_share_and_outlive(env: &Env) -> Outcome {
    let path = put(env, "a", 100_000).await?;
    let file = env.open(&path, Open::read()).await?;
    let block = file.read(1_000..60_000).await?;
    let held = env.engine().memory().held_bytes;
    let Some((front, back)) = block.split_at(500) else {
        return fail("a block of 59,000 bytes has a place 500");
    };
    holds("past the end there is no part", block.slice(59_000..59_001).is_none())?;
    same("parts hold no further memory", env.engine().memory().held_bytes, held)?;
    drop(block);
    file.close().await?;
    same_bytes("the front", &front, &bytes_of(1_000..1_500))?;
    same_bytes("the back", &back, &bytes_of(1_500..60_000))?;
    let Err(back) = back.try_into_mut() else { return fail("a shared block must not become writable") };
    drop(front);
    let Ok(mut alone) = back.try_into_mut() else { return fail("a block of one's own becomes writable") };
    same_bytes("writable", &alone, &bytes_of(1_500..60_000))?;
    alone[0] ^= 1;
    let shared: bytes::Bytes = alone.freeze().into();
    same("written", shared[0], bytes_of(1_500..1_501)[0] ^ 1)
}

async fn held_memory_is_counted_and_comes_back(env: &Env) -> Outcome {
    let path = put(env, "a", 1 << 20).await?;
    let file = env.open(&path, Open::read()).await?;
    at_rest(env, env.engine()).await?;
    let blocks = all((0..10).map(|n| file.read(n * 65_536..(n + 1) * 65_536).into_future())).await;
    let blocks: Result<Vec<Block>, Error> = blocks.into_iter().collect();
    let blocks = blocks?;
    let memory = env.engine().memory();
    let pinned: usize = blocks.iter().map(Block::pinned_bytes).sum();
    holds("blocks pin their bytes at least", pinned >= 655_360)?;
    holds(format_args!("{pinned} bytes are held: {memory:?}"), memory.held_bytes >= pinned as u64)?;
    holds("within the limit", memory.arena_bytes <= memory.arena_bytes_max)?;
    // Half of them end elsewhere.
    let mut blocks = blocks;
    let half = blocks.split_off(5);
    env.elsewhere(async move { drop(half) }).await?;
    drop(blocks);
    at_rest(env, env.engine()).await
}

/// Limits an engine to 1 MiB and a little ordinary memory.
fn small(config: Config) -> Config {
    config.shards(1).arena_bytes(1 << 20).arena_bytes_max(1 << 20).overflow_bytes_max(256 << 10)
}

/// Reads 64 KiB after 64 KiB and keeps all blocks, until a read is refused.
async fn hold_all(file: &File) -> (Vec<Block>, Error) {
    let mut held = Vec::new();
    loop {
        let start = held.len() as u64 % 16 * 65_536;
        match file.read(start..start + 65_536).await {
            Ok(block) => held.push(block),
            Err(error) => return (held, error),
        }
    }
}

/// Checks the result of [`hold_all`] on an engine with [`small`] memory.
fn check_held(held: &[Block], error: &Error) -> Outcome {
    holds(
        format_args!("1.25 MiB has room for {} blocks of 64 KiB", held.len()),
        (17..=20).contains(&held.len()),
    )?;
    match error.kind() {
        ErrorKind::ArenaExhausted { held } => holds("the error tells what is held", held >= 1 << 20),
        _ => fail(format_args!("expected ArenaExhausted, came {error:?}")),
    }
}

async fn a_program_that_holds_everything_is_told_and_recovers(env: &Env) -> Outcome {
    let engine = env.restart(small)?;
    let file = env.open_on(&engine, put(env, "a", 1 << 20).await?, Open::read()).await?;
    for _ in 0..2 {
        let (held, error) = hold_all(&file).await;
        check_held(&held, &error)?;
        holds("ordinary memory is counted", engine.memory().overflow_allocations > 0)?;
        holds("no read gets any", file.read(0..65_536).await.is_err())?;
        drop(held);
        same("a read again", file.read(0..65_536).await?.len(), 65_536)?;
        at_rest(env, &engine).await?;
    }
    Ok(())
}

async fn the_same_on_a_shard(env: &Env) -> Outcome {
    let engine = env.restart(small)?;
    let file = env.open_on(&engine, put(env, "a", 1 << 20).await?, Open::read()).await?;
    for _ in 0..2 {
        let inner = file.clone();
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let (held, error) = hold_all(&inner).await;
            (held, error, inner.read(0..65_536).await.is_err())
        });
        let (held, error, refused) = task.await?;
        check_held(&held, &error)?;
        holds("no read gets any", refused)?;
        drop(held);
        let inner = file.clone();
        let task =
            engine.spawn_on_shard(0, Class::DEFAULT, move || async move { inner.read(0..65_536).await });
        same("a read again", task.await??.len(), 65_536)?;
        at_rest(env, &engine).await?;
    }
    Ok(())
}

async fn batches_and_scans_without_memory_are_told_and_recover(env: &Env) -> Outcome {
    let engine = env.restart(small)?;
    let file = env.open_on(&engine, put(env, "a", 1 << 20).await?, Open::read()).await?;
    let (held, _) = hold_all(&file).await;
    for result in file.read_many((0..10).map(|n| n * 100_000..n * 100_000 + 65_536)).await? {
        let error = fails_exhausted("a range of a batch", result)?;
        holds("the error has its range", error.range().is_some())?;
    }
    let mut scan = file.scan().start();
    fails_exhausted("a scan", scan.next().await.transpose())?;
    holds("after the error it is over", scan.next().await.transpose()?.is_none())?;
    drop((held, scan));
    at_rest(env, &engine).await?;
    for result in file.read_many((0..10).map(|n| n * 100_000..n * 100_000 + 10)).await? {
        result?;
    }
    let (mut scan, mut bytes) = (file.scan().request_bytes(4096).depth(2).start(), 0);
    while let Some(block) = scan.next().await.transpose()? {
        bytes += block.len();
    }
    same("a scan again", bytes, 1 << 20)
}

/// Regression: a program that held the results of a batch found an error in the place of those that did not fit into I/O memory.
async fn a_batch_may_keep_more_than_there_is_io_memory(env: &Env) -> Outcome {
    let engine = env.restart(|config| small(config).overflow_bytes_max(0))?;
    let path = put(env, "a", 1 << 20).await?;
    let length = |n: u64| [1, 700, 3_072, 4_096, 40_000, 65_536, 262_144][n as usize % 7];
    let ranges: Vec<_> = (0..400).map(|n| n * 1_777..n * 1_777 + length(n)).collect();
    for open in [Open::read(), Open::read().buffered()] {
        let file = env.open_on(&engine, path.clone(), open).await?;
        for gap in [0, 16 << 10] {
            let results = file.read_many(ranges.iter().cloned()).gap_bytes_max(gap).await?;
            holds("results lie in ordinary memory", engine.memory().result_bytes > 1 << 20)?;
            let first = file.read(0..65_536).await?;
            for (range, result) in ranges.iter().zip(results) {
                same_bytes(format!("{range:?}"), &result?, &bytes_of(range.clone()))?;
            }
            same_bytes("and a read beside them", &first, &bytes_of(0..65_536))?;
            drop(first);
            same("ordinary memory afterwards", engine.memory().result_bytes, 0)?;
            at_rest(env, &engine).await?;
        }
    }
    Ok(())
}

/// Regression: a scan whose read-ahead needed more than the available memory failed, although the program held nothing.
async fn read_ahead_takes_no_more_memory_than_there_is(env: &Env) -> Outcome {
    let engine = env.restart(|config| small(config).overflow_bytes_max(0))?;
    let file = env.open_on(&engine, put(env, "a", 5 << 19).await?, Open::read()).await?;
    for on_shard in [false, true] {
        for (buffer, depth) in [(None, None), (Some(128 << 10), Some(32))].into_iter().skip(on_shard.into()) {
            let mut scan = file.scan();
            if let (Some(buffer), Some(depth)) = (buffer, depth) {
                scan = scan.request_bytes(buffer).depth(depth);
            }
            let mut scan = scan.start();
            let bytes = async move {
                let mut bytes = Vec::new();
                while let Some(block) = scan.next().await.transpose()? {
                    bytes.extend_from_slice(&block);
                }
                Ok::<_, Error>(bytes)
            };
            let bytes = if on_shard {
                engine.spawn_on_shard(0, Class::DEFAULT, || bytes).await??
            } else {
                bytes.await?
            };
            same_bytes(format_args!("{buffer:?} x {depth:?}"), &bytes, &bytes_of(0..5 << 19))?;
        }
    }
    at_rest(env, &engine).await
}

async fn an_append_without_memory_is_told_and_goes_on(env: &Env) -> Outcome {
    let engine = env.restart(small)?;
    let file = env.open_on(&engine, put(env, "a", 1 << 20).await?, Open::read()).await?;
    let target = fresh_on(env, &engine, env.path("target"), Open::create_new(), 12 << 20).await?;
    let mut append = target.append().request_bytes(65_536).depth(4).start();
    append.write(&bytes_of(0..65_536)).await?;
    append.sync(forebay::Durability::None).await?;
    let (held, _) = hold_all(&file).await;
    let mut at = 65_536;
    let error = loop {
        match append.write(&bytes_of(at..at + 32_768)).await {
            Ok(()) => at += 32_768,
            Err(error) => break error,
        }
        holds("memory ends at last", at < 10 << 20)?;
    };
    fails_exhausted::<()>("the append", Err(error))?;
    drop(held);
    let position = append.position();
    append.write(&bytes_of(position..1_500_000)).await?;
    same("the result of close", append.close().await?, 1_500_000)?;
    let came = super::tools::content(env, env.path("target")).await?;
    same_written(env, "the file", &came, &bytes_of(0..1_500_000))
}

fn fails_exhausted<T>(what: &str, result: Result<T, Error>) -> Outcome<Error> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::ArenaExhausted { .. }) => Ok(error),
        Err(error) => fail(format_args!("{what}: expected ArenaExhausted, came {error:?}")),
        Ok(_) => fail(format_args!("{what}: expected ArenaExhausted, and it worked")),
    }
}

async fn reads_wait_for_memory_that_comes_back_by_itself(env: &Env) -> Outcome {
    let engine = env.restart(|config| small(config).overflow_bytes_max(0))?;
    let path = put(env, "a", 1 << 20).await?;
    let file = env.open_on(&engine, &path, Open::write()).await?;
    // Memory that writes in flight hold is released, so reads behind them wait instead of failing.
    let data = bytes_of(0..65_536);
    let mut writes = Vec::new();
    while let Ok(block) = engine.block_from(&data) {
        writes.push(file.write(0, block).into_future());
    }
    holds("writes hold all memory", writes.len() >= 8)?;
    let count = writes.len();
    let mut first: Vec<_> = writes.iter_mut().map(poll_now).collect();
    let reads = all((0..count as u64 / 2).map(|n| file.read(n * 4_000..n * 4_000 + 60_000).into_future()));
    let (writes, reads) = (
        all(writes.into_iter().zip(first.drain(..)).map(async |(write, first)| match first {
            Poll::Ready(result) => result,
            Poll::Pending => write.await,
        })),
        reads,
    );
    enum Either {
        Writes(Vec<Result<(), Error>>),
        Reads(Vec<Result<Block, Error>>),
    }
    type Both<'a> = std::pin::Pin<Box<dyn Future<Output = Either> + 'a>>;
    let both: [Both<'_>; 2] =
        [Box::pin(async { Either::Reads(reads.await) }), Box::pin(async { Either::Writes(writes.await) })];
    for done in all(both).await {
        match done {
            Either::Writes(results) => results.into_iter().collect::<Result<Vec<()>, Error>>().map(drop)?,
            Either::Reads(results) => {
                for (n, block) in results.into_iter().enumerate() {
                    let at = n as u64 * 4_000;
                    match block {
                        Ok(block) => same_bytes("a read", &block, &bytes_of(at..at + 60_000))?,
                        // All writes had ended already, and the blocks of reads before it hold the rest.
                        Err(error) => fails_exhausted::<()>("a read", Err(error)).map(drop)?,
                    }
                }
            }
        }
    }
    at_rest(env, &engine).await
}

async fn blocks_dropped_elsewhere_while_the_inbox_is_full(env: &Env) -> Outcome {
    let engine = env.restart(|config| small(config).inbox_depth(1).queue_depth(2))?;
    let file = env.open_on(&engine, put(env, "a", 1 << 20).await?, Open::read()).await?;
    for _ in some(env, 8) {
        let (held, _) = hold_all(&file).await;
        // They wait for room in the inbox, and later for memory, or are refused.
        let mut reads: Vec<_> = (0..50).map(|n| file.read(n * 100..n * 100 + 9_000).into_future()).collect();
        let first: Vec<_> = reads.iter_mut().map(poll_now).collect();
        env.elsewhere(async move { drop(held) }).await?;
        drop(reads.split_off(25));
        let reads = all(reads.into_iter().zip(first).map(async |(read, first)| match first {
            Poll::Ready(result) => result,
            Poll::Pending => read.await,
        }));
        for (n, read) in reads.await.into_iter().enumerate() {
            let at = n as u64 * 100;
            match read {
                Ok(block) => same_bytes("a read", &block, &bytes_of(at..at + 9_000))?,
                Err(error) => fails_exhausted::<()>("a read", Err(error)).map(drop)?,
            }
        }
        at_rest(env, &engine).await?;
        same("a read again", file.read(0..65_536).await?.len(), 65_536)?;
    }
    Ok(())
}

fn range(n: u64) -> std::ops::Range<u64> {
    n * 5_000..n * 5_000 + 4_000
}

async fn blocks_outlive_file_and_engine_and_end_anywhere(env: &Env) -> Outcome {
    let engine: Engine = env.restart(|config| config.inbox_depth(1))?;
    let file = env.open_on(&engine, put(env, "a", 1 << 20).await?, Open::read()).await?;
    let mut blocks = Vec::new();
    for n in 0..40 {
        blocks.push(file.read(range(n)).await?);
    }
    let writable = engine.block_from(&bytes_of(0..5_000))?;
    drop(file);
    engine.close().await?;
    let there: Vec<_> = blocks.split_off(20);
    let check = |blocks: Vec<Block>, first: u64| -> Outcome {
        for (n, block) in (first..).zip(blocks) {
            same_bytes("after the end", &block, &bytes_of(range(n)))?;
            let half = block.slice(..2_000).unwrap_or_default();
            drop(block);
            same_bytes("a part", &half, &bytes_of(range(n))[..2_000])?;
        }
        Ok(())
    };
    let outcome = env.elsewhere(async move {
        check(there, 20)?;
        same_bytes("writable", &writable, &bytes_of(0..5_000))
    });
    outcome.await??;
    check(blocks, 0)
}
