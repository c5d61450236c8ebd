//! Writing from front to back.

use forebay::{Class, Durability, ErrorKind, Open};

use super::check::{Outcome, fails_with, holds, same, same_bytes};
use super::tools::{Dice, bytes_of, content, fresh, modes, poll_times, put, same_written};
use crate::Env;

super::group! { "append":
    pieces_of_any_size_become_the_file,
    it_begins_anywhere_and_keeps_what_is_there,
    a_sync_leaves_the_exact_length [FileSystem],
    blocks_go_as_they_are,
    calls_given_up_half_way_lose_nothing,
    dropped_in_flight_it_leaves_file_and_engine_in_order,
    places_that_no_file_has_are_refused [FileSystem],
    a_closed_file_ends_it,
    several_side_by_side [FileSystem],
}

async fn pieces_of_any_size_become_the_file(env: &Env) -> Outcome {
    let mut dice = Dice(7);
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        for len in [0u64, 1, 4096, 4097, 300_007] {
            let path = env.path(&format!("{number}-{len}"));
            let file = fresh(env, &path, open, len).await?;
            let mut append = file.append().request_bytes(16 << 10).depth(3).class(Class::LOG).start();
            let mut at = 0;
            while at < len {
                let end = len.min(at + 1 + dice.roll(20_000));
                append.write(&bytes_of(at..end)).await?;
                at = end;
                same("the position", append.position(), at)?;
            }
            append.write(b"").await?;
            same("the result of close", append.close().await?, len)?;
            let came = content(env, &path).await?;
            same_written(env, format_args!("{len}, {open:?}"), &came, &bytes_of(0..len))?;
        }
    }
    Ok(())
}

async fn it_begins_anywhere_and_keeps_what_is_there(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::write()).into_iter().enumerate() {
        for at in [0u64, 1, 4095, 4096, 9_999, 10_000, 15_001] {
            let path = put(env, &format!("{number}-{at}"), 10_000).await?;
            let file = env.open(&path, open).await?;
            // A part of a namespace does not grow, and its last block is written whole.
            let whole_blocks = 10_000 - 10_000 % u64::from(file.alignment().offset);
            if env.is_namespace() && at + 3_000 > whole_blocks {
                continue;
            }
            let mut append = file.append().at(at).request_bytes(4096).start();
            append.write(&[0xAB; 3_000]).await?;
            same("the result of close", append.close().await?, at + 3_000)?;
            let mut expected = bytes_of(0..10_000);
            expected.resize(expected.len().max(at as usize + 3_000), 0);
            expected[at as usize..at as usize + 3_000].fill(0xAB);
            same_bytes(format_args!("at {at}, {open:?}"), &content(env, &path).await?, &expected)?;
        }
    }
    Ok(())
}

async fn a_sync_leaves_the_exact_length(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        let path = env.path(&number.to_string());
        let file = env.open(&path, open).await?;
        let mut append = file.append().request_bytes(8192).start();
        let mut at = 0;
        for (piece, durability) in [
            (1, Durability::None),
            (4_094, Durability::Data),
            (1, Durability::All),
            (9_000, Durability::Data),
        ] {
            append.write(&bytes_of(at..at + piece)).await?;
            at += piece;
            append.sync(durability).await?;
            same(format_args!("the length after {at}, {open:?}"), file.len().await?, at)?;
            same_bytes("what is in the file", &content(env, &path).await?, &bytes_of(0..at))?;
            same("nothing is in flight", append.in_flight_bytes(), 0)?;
        }
        same("the result of close", append.close().await?, at)?;
    }
    Ok(())
}

async fn blocks_go_as_they_are(env: &Env) -> Outcome {
    let source = put(env, "source", 200_000).await?;
    let source = env.open(&source, Open::read()).await?;
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        let path = env.path(&number.to_string());
        let file = fresh(env, &path, open, 200_000).await?;
        let mut append = file.append().request_bytes(8192).depth(2).start();
        let mut at = 0;
        for len in [4096, 65_536, 1, 10_000, 0, 50_001] {
            append.write_block(source.read(at..at + len).await?).await?;
            at += len;
        }
        holds("what is held is bounded", append.held_bytes() <= 3 * 65_536)?;
        same("the result of close", append.close().await?, at)?;
        same_written(env, format_args!("{open:?}"), &content(env, &path).await?, &bytes_of(0..at))?;
    }
    Ok(())
}

async fn calls_given_up_half_way_lose_nothing(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        let mut dice = Dice(0xDEC0DE + number as u64);
        let path = env.path(&number.to_string());
        let file = fresh(env, &path, open, 60 * 9_000).await?;
        let mut append = file.append().request_bytes(4096).depth(2).start();
        let mut expected: Vec<u8> = Vec::new();
        for round in 0..60u64 {
            let (data, times) = (vec![round as u8 + 1; dice.roll(9_000) as usize], dice.roll(4) as u32);
            let answer = match round % 8 {
                7 => poll_times(&mut Box::pin(append.sync(Durability::Data)), times).await,
                3 => {
                    let block = env.engine().block_from(&data)?.freeze();
                    poll_times(&mut Box::pin(append.write_block(block)), times).await
                }
                _ => poll_times(&mut Box::pin(append.write(&data)), times).await,
            };
            answer.unwrap_or(Ok(()))?;
            // For a dropped call, the position shows how much it had accepted.
            let taken = append.position() as usize - expected.len();
            expected.extend_from_slice(&data[..taken]);
        }
        same("the result of close", append.close().await?, expected.len() as u64)?;
        same_written(env, format_args!("{open:?}"), &content(env, &path).await?, &expected)?;
    }
    Ok(())
}

async fn dropped_in_flight_it_leaves_file_and_engine_in_order(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::create().truncate()).into_iter().enumerate() {
        let path = env.path(&number.to_string());
        let file = fresh(env, &path, open, 120_000).await?;
        for _ in 0..10 {
            let mut append = file.append().request_bytes(8192).depth(16).start();
            append.write(&bytes_of(0..100_000)).await?;
            drop(append);
        }
        // After the close no operation is in flight.
        file.close().await?;
        let (came, data) = (content(env, &path).await?, bytes_of(0..100_000));
        let is_data = |(index, byte): (usize, &u8)| *byte == 0 || data.get(index) == Some(byte);
        holds("each byte is data or was never written", came.iter().enumerate().all(is_data))?;
        let mut append = env.open(&path, open).await?.append().start();
        append.write(b"after").await?;
        same("the result of close", append.close().await?, 5)?;
    }
    Ok(())
}

async fn places_that_no_file_has_are_refused(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        let file = env.open(env.path(&number.to_string()), open).await?;
        for at in [i64::MAX as u64, u64::MAX, u64::MAX - 1, i64::MAX as u64 - 100] {
            let mut append = file.append().at(at).start();
            fails_with(format_args!("at {at}"), append.write(&[0; 200]).await, ErrorKind::InvalidInput)?;
        }
        same("the length", file.len().await?, 0)?;
    }
    Ok(())
}

async fn a_closed_file_ends_it(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        let file = fresh(env, env.path(&number.to_string()), open, 4096).await?;
        let mut append = file.append().start();
        append.write(b"late").await?;
        file.close().await?;
        fails_with("sync", append.sync(Durability::Data).await, ErrorKind::FileClosed)?;
        fails_with("write", append.write(b"later").await, ErrorKind::FileClosed)?;
        fails_with("close", append.close().await, ErrorKind::FileClosed)?;
    }
    Ok(())
}

async fn several_side_by_side(env: &Env) -> Outcome {
    const PART: u64 = 50_000;
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        let path = env.path(&number.to_string());
        let file = env.open(&path, open).await?;
        // Whole units, with the full length set before, as the documentation requires.
        let part = PART.next_multiple_of(u64::from(file.alignment().offset));
        file.truncate(4 * part).await?;
        let writers = (0..4).map(|writer| {
            let file = file.clone();
            async move {
                let mut append = file.append().at(writer * part).request_bytes(8192).depth(2).start();
                for at in (0..part).step_by(7_001) {
                    append.write(&bytes_of(writer * part + at..writer * part + part.min(at + 7_001))).await?;
                }
                append.close().await
            }
        });
        for (writer, end) in super::tools::all(writers).await.into_iter().enumerate() {
            same("the result of close", end?, (writer as u64 + 1) * part)?;
        }
        same_bytes(format_args!("{open:?}"), &content(env, &path).await?, &bytes_of(0..4 * part))?;
    }
    Ok(())
}
