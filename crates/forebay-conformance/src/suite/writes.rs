//! Writing one range, and syncing.

use bytes::Bytes;

use forebay::{Class, Durability, ErrorKind, Open, Stats};

use super::check::{Outcome, fails, fails_os, fails_with, holds, same, same_bytes};
use super::tools::{bytes_of, content, fresh, modes, open_all, put};
use crate::Env;

super::group! { "writes":
    every_kind_of_data_is_written_as_it_is,
    part_of_a_block_is_written_though_its_memory_is_not_aligned,
    misaligned_direct_writes_change_nothing,
    buffered_writes_go_anywhere [FileSystem],
    every_durability_writes_and_is_counted,
    places_that_no_file_has_are_refused [FileSystem],
    a_file_opened_to_read_is_not_written,
    all_modes_see_one_file [FileSystem],
    what_is_counted_is_what_was_done,
    pieces_that_touch_are_put_together,
    pieces_that_cannot_be_written_fail_alone,
}

async fn pieces_that_touch_are_put_together(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        let path = env.path(&number.to_string());
        let file = fresh(env, &path, open, 8 << 20).await?;
        // 5 MB of records of 3,000 bytes, from the end to the front; lone pages behind them; a block of the engine's.
        const RECORDS: u64 = 1_728;
        let record = |n: u64| (n * 3_000, bytes_of(n * 3_000..(n + 1) * 3_000));
        let mut pieces: Vec<_> = (0..RECORDS).rev().map(record).collect();
        let end = RECORDS * 3_000;
        holds("the records end within a page", !end.is_multiple_of(4096))?;
        let rest = end.next_multiple_of(4096);
        pieces.push((end, bytes_of(end..rest)));
        pieces.extend(
            (1..9).map(|n| (rest + n * 16_384, bytes_of(rest + n * 16_384..rest + n * 16_384 + 4096))),
        );
        pieces.push((rest + 200_704, Vec::new()));
        // Story: a record was empty. It came behind the record at its offset, which parted the others there: on a direct file both
        // parts failed, as neither had whole blocks.
        pieces.push((6_000, Vec::new()));
        for depth in [1, 32] {
            let before = env.engine().stats().await?;
            let many =
                file.write_many(pieces.clone()).depth(depth).class(Class::LOG).durable(Durability::Data);
            for result in many.await? {
                result?;
            }
            let after = env.engine().stats().await?;
            let of = |stats: &Stats, what: fn(&forebay::FlowStats) -> u64| {
                stats.flows.iter().map(what).sum::<u64>()
            };
            let writes = of(&after, |flow| flow.writes) - of(&before, |flow| flow.writes);
            same("requests: parts of the records, and the lone pages", writes, 5 + 8)?;
            same("syncs", of(&after, |flow| flow.syncs) - of(&before, |flow| flow.syncs), 1)?;
        }
        drop(file);
        let all = content(env, &path).await?;
        same_bytes("the records", &all[..rest as usize], &bytes_of(0..rest))?;
        for n in 1..9 {
            let place = rest + n * 16_384;
            same_bytes(
                "a page",
                &all[place as usize..place as usize + 4096],
                &bytes_of(place..place + 4096),
            )?;
        }
    }
    Ok(())
}

async fn pieces_that_cannot_be_written_fail_alone(env: &Env) -> Outcome {
    let path = put(env, "a", 64 << 10).await?;
    for file in open_all(env, &path, Open::write()).await? {
        let needed = file.alignment().offset;
        let pieces = [
            (0, vec![1; 4096]),
            (u64::MAX - 4095, vec![2; 4096]),
            (8192, vec![3; 100]),
            (16_384, vec![4; 4096]),
        ];
        let results = file.write_many(pieces).durable(Durability::All).await?;
        let kinds: Vec<_> =
            results.iter().map(|result| result.as_ref().err().map(forebay::Error::kind)).collect();
        let odd = (needed > 1).then_some(ErrorKind::Misaligned { needed });
        same("results", kinds, vec![None, Some(ErrorKind::InvalidInput), odd, None])?;
        let error = results[1].as_ref().err();
        same("the range of the error", error.and_then(forebay::Error::range), Some((u64::MAX - 4095, 4096)))?;
        let overlapping = [(4096, vec![9; 4096]), (0, vec![9; 4097])];
        let error = fails_with("overlapping", file.write_many(overlapping).await, ErrorKind::InvalidInput)?;
        holds("it names both", error.to_string().contains("pieces 1 and 0 overlap"))?;
        same(
            "nothing",
            file.write_many(Vec::<(u64, Vec<u8>)>::new()).durable(Durability::Data).await?.len(),
            0,
        )?;
        file.clone().close().await?;
        for result in file.write_many([(0, vec![9; 4096]), (4096, vec![9; 4096])]).await? {
            fails_with("a closed file", result, ErrorKind::FileClosed)?;
        }
    }
    let all = content(env, &path).await?;
    same_bytes(
        "written",
        &[&all[..4096], &all[16_384..20_480]].concat(),
        &[vec![1; 4096], vec![4; 4096]].concat(),
    )?;
    same_bytes("as it was", &all[4096..8192], &bytes_of(4096..8192))
}

async fn every_kind_of_data_is_written_as_it_is(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        let path = env.path(&number.to_string());
        let file = fresh(env, &path, open, 7 * 4096).await?;
        let piece = |n: u64| bytes_of(n * 4096..(n + 1) * 4096);
        let mut owned = env.engine().block(4096)?;
        owned.copy_from_slice(&piece(0));
        file.write(0, owned).await?;
        let shared = env.engine().block_from(&piece(1))?.freeze();
        file.write(4096, shared.clone()).await?;
        same_bytes("the program's own handle of the block", &shared, &piece(1))?;
        file.write(8192, &piece(2)[..]).class(Class::LOG).await?;
        let borrowed = piece(3);
        file.write(12_288, &borrowed).await?;
        file.write(16_384, piece(4)).await?;
        file.write(20_480, Bytes::from(piece(5))).await?;
        let mut array = [0u8; 4096];
        array.copy_from_slice(&piece(6));
        file.write(24_576, &array).await?;
        // An empty write works as well, also with a sync.
        file.write(0, &[]).await?;
        file.write(4096, Vec::new()).durable(Durability::Data).await?;
        file.write(4096, env.engine().block(0)?).durable(Durability::All).await?;
        same_bytes(format_args!("{open:?}"), &content(env, &path).await?, &bytes_of(0..7 * 4096))?;
    }
    Ok(())
}

async fn part_of_a_block_is_written_though_its_memory_is_not_aligned(env: &Env) -> Outcome {
    let path = put(env, "source", 20_000).await?;
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        let source = env.open(&path, Open::read()).await?;
        let whole = source.read(0..20_000).await?;
        let target = fresh(env, env.path(&number.to_string()), open, 7 * 4096).await?;
        for (at, start) in [0usize, 1, 511, 512, 4095, 4096, 4097].into_iter().enumerate() {
            let Some(part) = whole.slice(start..start + 4096) else { continue };
            let place = at as u64 * 4096;
            target.write(place, part).await?;
            let back = target.read(place..place + 4096).await?;
            let expected = bytes_of(start as u64..start as u64 + 4096);
            same_bytes(format_args!("from {start}, {open:?}"), &back, &expected)?;
        }
    }
    Ok(())
}

async fn misaligned_direct_writes_change_nothing(env: &Env) -> Outcome {
    let path = put(env, "a", 8192).await?;
    let file = env.open(&path, Open::write()).await?;
    let needed = file.alignment().offset;
    holds("a direct file needs an alignment", needed > 1)?;
    for (offset, len) in [(1u64, 4096usize), (0, 100), (u64::from(needed) / 2, 4096), (4096, 4097)] {
        let data = vec![0xEEu8; len];
        let results = [
            file.write(offset, &data[..]).await,
            file.write(offset, env.engine().block_from(&data)?).durable(Durability::All).await,
            file.write(offset, env.engine().block_from(&data)?.freeze()).await,
        ];
        for result in results {
            let what = format!("{len} bytes at {offset}");
            let error = fails_with(&what, result, ErrorKind::Misaligned { needed })?;
            same("the range of the error", error.range(), Some((offset, len as u64)))?;
            same("the path of the error", error.path(), Some(file.path()))?;
            holds("the text names the alignment", error.to_string().contains(&needed.to_string()))?;
        }
    }
    same_bytes("the file", &content(env, &path).await?, &bytes_of(0..8192))
}

async fn buffered_writes_go_anywhere(env: &Env) -> Outcome {
    for (number, open) in
        [Open::create_new().buffered(), Open::create_new().uncached()].into_iter().enumerate()
    {
        let path = env.path(&number.to_string());
        let file = env.open(&path, open).await?;
        let mut expected = Vec::new();
        for (at, len) in [(3u64, 1usize), (0, 5), (4095, 2), (10_001, 9_999), (5_000, 70_001), (3, 0)] {
            let data: Vec<u8> = (0..len).map(|n| (n as u64 + at * 31) as u8).collect();
            file.write(at, &data[..]).await?;
            if len > 0 {
                expected.resize(expected.len().max(at as usize + len), 0);
                expected[at as usize..at as usize + len].copy_from_slice(&data);
            }
            same_bytes(format_args!("{len} at {at}"), &content(env, &path).await?, &expected)?;
        }
    }
    Ok(())
}

async fn every_durability_writes_and_is_counted(env: &Env) -> Outcome {
    let all = [Durability::None, Durability::Data, Durability::All];
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        let path = env.path(&number.to_string());
        let file = fresh(env, &path, open, 3 * 4096).await?;
        let before = totals(&env.engine().stats().await?);
        for (at, durability) in all.into_iter().enumerate() {
            let range = at as u64 * 4096..(at as u64 + 1) * 4096;
            file.write(range.start, bytes_of(range)).durable(durability).await?;
            file.sync(durability).class(Class::LOG).await?;
        }
        let after = totals(&env.engine().stats().await?);
        same("writes", after.writes - before.writes, 3)?;
        // Two of the writes and two of the syncs are syncs of the device.
        same("syncs", after.syncs - before.syncs, 4)?;
        same_bytes("the file", &content(env, &path).await?, &bytes_of(0..3 * 4096))?;
    }
    Ok(())
}

async fn places_that_no_file_has_are_refused(env: &Env) -> Outcome {
    let path = put(env, "a", 8192).await?;
    for file in open_all(env, &path, Open::write()).await? {
        for offset in [1 << 63, u64::MAX - 4095, u64::MAX] {
            let result = file.write(offset, &[1u8; 4096]).await;
            let error = fails_with(format_args!("at {offset}"), result, ErrorKind::InvalidInput)?;
            same("the range of the error", error.range(), Some((offset, 4096)))?;
        }
    }
    // The file system decides whether it allows this write; the engine must only report the outcome.
    let far = env.open(env.path("far"), Open::create_new()).await?;
    let offset = (1u64 << 63) - 8192;
    match far.write(offset, &[1u8; 4096]).await {
        Ok(()) => same("the length", far.len().await?, offset + 4096)?,
        Err(error) => {
            holds("the system refused", error.kind().is_system())?;
            same("the length", far.len().await?, 0)?;
        }
    }
    same_bytes("the file", &content(env, &path).await?, &bytes_of(0..8192))
}

async fn a_file_opened_to_read_is_not_written(env: &Env) -> Outcome {
    let path = put(env, "a", 8192).await?;
    for file in open_all(env, &path, Open::read()).await? {
        fails_os("write", file.write(0, &[0u8; 4096]).await, libc::EBADF)?;
        fails("truncate", file.truncate(0).await)?;
        fails("allocate", file.allocate(0..16_384).await)?;
        file.sync(Durability::All).await?;
    }
    same_bytes("the file", &content(env, &path).await?, &bytes_of(0..8192))
}

async fn all_modes_see_one_file(env: &Env) -> Outcome {
    const LEN: u64 = 64 << 10;
    let path = put(env, "a", LEN).await?;
    let direct = env.open(&path, Open::write()).await?;
    for (number, open) in [Open::write().buffered(), Open::write().uncached()].into_iter().enumerate() {
        let cached = env.open(&path, open).await?;
        for round in 0..20u64 {
            let at = round * 4096 % LEN;
            let one = vec![(round * 2 + number as u64) as u8; 4096];
            cached.write(at, &one).await?;
            same_bytes("direct after cached", &direct.read(at..at + 4096).await?, &one)?;
            let two = vec![!one[0]; 4096];
            direct.write(at, &two).await?;
            same_bytes("cached after direct", &cached.read(at..at + 4096).await?, &two)?;
        }
        // Growth and cuts too.
        cached.write(LEN, b"tail").await?;
        same_bytes("what cached added", &direct.read(LEN..LEN + 4).await?, b"tail")?;
        direct.truncate(LEN).await?;
        same("what direct cut", cached.read_up_to(LEN - 1..LEN + 10).await?.len(), 1)?;
        direct.write(LEN, &[9u8; 4096]).await?;
        same_bytes("what direct added", &cached.read(LEN..LEN + 4096).await?, &[9u8; 4096])?;
        direct.truncate(LEN).await?;
    }
    Ok(())
}

async fn what_is_counted_is_what_was_done(env: &Env) -> Outcome {
    let engine = env.restart(|config| config)?;
    let path = put(env, "a", 100_000).await?;
    let file = env.open_on(&engine, &path, Open::write()).await?;
    let class = engine.class("counted", 10)?;
    for n in 0..5 {
        file.read(n * 10_000..n * 10_000 + 100).class(class).await?;
    }
    file.write(0, bytes_of(0..8192)).class(class).await?;
    file.sync(Durability::Data).class(class).await?;
    fails_with(
        "past the end",
        file.read(200_000..200_001).class(class).await,
        ErrorKind::UnexpectedEof { got: 0 },
    )?;
    let reader = env.open_on(&engine, &path, Open::read()).await?;
    fails_os("a write that may not be", reader.write(0, &[0u8; 4096]).class(class).await, libc::EBADF)?;
    let stats = engine.stats().await?;
    let flows: Vec<_> = stats.flows.iter().filter(|flow| flow.class == "counted").collect();
    same("flows of the class", flows.len(), 1)?;
    let flow = flows[0];
    same("reads, writes, syncs", (flow.reads, flow.writes, flow.syncs), (6, 2, 1))?;
    same("failures", flow.failures, 1)?;
    // Bytes that the file does not have count as not requested: amplification is computed from this figure.
    same("bytes asked", flow.read_bytes_asked, 500)?;
    same("bytes written", flow.write_bytes, 8192)?;
    holds("ranges were widened", flow.read_bytes >= 500)?;
    Ok(())
}

#[derive(Default)]
struct Totals {
    writes: u64,
    syncs: u64,
}

fn totals(stats: &Stats) -> Totals {
    stats.flows.iter().fold(Totals::default(), |sum, flow| Totals {
        writes: sum.writes + flow.writes,
        syncs: sum.syncs + flow.syncs,
    })
}
