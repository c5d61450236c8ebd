//! A file's space, length and attributes, and ranges that change while they are read.

use std::future::IntoFuture;

use forebay::{Advice, Block, Error, ErrorKind, File, FileKind, Open};

use super::check::{Outcome, fail, fails, fails_with, holds, or_skip, same, same_bytes};
use super::tools::{all, bytes_of, content, modes, open_all, poll_now, put};
use crate::Env;

super::group! { "space":
    space_is_given_and_reads_as_zeros [FileSystem],
    holes_are_punched_to_the_byte [FileSystem],
    a_length_is_cut_and_extended [FileSystem],
    impossible_ranges_are_refused_and_change_nothing [FileSystem],
    advice_changes_no_bytes [FileSystem],
    ranges_are_copied_between_all_modes [FileSystem],
    a_copy_onto_itself_is_refused [FileSystem],
    attributes_are_those_of_the_file [FileSystem],
    a_file_cut_while_it_is_read_gives_what_it_has [FileSystem],
    a_scan_of_a_file_that_is_cut_ends_early [FileSystem],
}

const SPACE: u64 = 512 << 10;

async fn space_is_given_and_reads_as_zeros(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        let file = env.engine().open(env.path(&number.to_string()), open).await?;
        or_skip("allocate", file.allocate(0..SPACE).await)?;
        let metadata = file.metadata().await?;
        same("the length", metadata.len(), SPACE)?;
        holds("the space is there", metadata.blocks_bytes() >= SPACE)?;
        same_bytes("new space", &file.read(0..SPACE).await?, &vec![0; SPACE as usize])?;
        // The content stays, and only the end moves.
        file.write(4096, bytes_of(4096..8192)).await?;
        file.allocate(0..8192).await?;
        same("the length", file.len().await?, SPACE)?;
        file.allocate(SPACE - 5..SPACE + 10).await?;
        same("the length", file.len().await?, SPACE + 10)?;
        same_bytes("what was there", &file.read(4096..8192).await?, &bytes_of(4096..8192))?;
    }
    Ok(())
}

async fn holes_are_punched_to_the_byte(env: &Env) -> Outcome {
    const LEN: u64 = 256 << 10;
    for (number, open) in modes(env, Open::write()).into_iter().enumerate() {
        let path = put(env, &number.to_string(), LEN).await?;
        let file = env.engine().open(&path, open).await?;
        let mut expected = bytes_of(0..LEN);
        for range in [64 << 10..128 << 10, 200_001..200_777, LEN - 3..LEN + 100_000, 0..1] {
            or_skip("punch_hole", file.punch_hole(range.clone()).await)?;
            expected[range.start as usize..range.end.min(LEN) as usize].fill(0);
            same_bytes(format_args!("{range:?}, {open:?}"), &file.read(0..LEN).await?, &expected)?;
            same("the length", file.len().await?, LEN)?;
        }
    }
    Ok(())
}

async fn a_length_is_cut_and_extended(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::write()).into_iter().enumerate() {
        let path = put(env, &number.to_string(), 100_000).await?;
        let file = env.engine().open(&path, open).await?;
        file.truncate(70_001).await?;
        same("the length", file.len().await?, 70_001)?;
        fails_with("over the new end", file.read(70_000..70_002).await, ErrorKind::UnexpectedEof { got: 1 })?;
        file.truncate(80_000).await?;
        same_bytes("what was cut is zero", &file.read(70_001..80_000).await?, &[0; 9_999])?;
        same_bytes("what was not cut", &file.read(60_000..70_001).await?, &bytes_of(60_000..70_001))?;
        file.truncate(80_000).await?;
        file.truncate(0).await?;
        same("nothing is left", file.read_up_to(0..100).await?.len(), 0)?;
        same("the length", env.engine().metadata(&path).await?.len(), 0)?;
    }
    Ok(())
}

async fn impossible_ranges_are_refused_and_change_nothing(env: &Env) -> Outcome {
    let path = put(env, "a", 8192).await?;
    let other = env.engine().open(env.path("b"), Open::create_new()).await?;
    for file in open_all(env, &path, Open::write()).await? {
        let backwards = || std::ops::Range { start: 9, end: 3 };
        let results = [
            ("allocate", file.allocate(backwards()).await),
            ("write_zeros", file.write_zeros(backwards()).await),
            ("punch_hole", file.punch_hole(backwards()).await),
            ("advise", file.advise(backwards(), Advice::WillNeed).await),
            ("copy_range", file.copy_range(backwards(), &other, 0).await.map(drop)),
        ];
        for (operation, result) in results {
            let error = fails_with(operation, result, ErrorKind::InvalidInput)?;
            same("the operation of the error", error.operation(), operation)?;
            same("the path of the error", error.path(), Some(path.as_path()))?;
        }
        for range in [0..1 << 63, 1 << 63..(1 << 63) + 1, u64::MAX - 1..u64::MAX, 0..u64::MAX] {
            fails(format_args!("allocate {range:?}"), file.allocate(range.clone()).await)?;
            fails(format_args!("write_zeros {range:?}"), file.write_zeros(range.clone()).await)?;
            fails(format_args!("punch_hole {range:?}"), file.punch_hole(range.clone()).await)?;
            fails(format_args!("copy {range:?}"), file.copy_range(range.clone(), &other, 0).await)?;
            let to = range.start.max(u64::MAX >> 1);
            fails(format_args!("copy to {to}"), file.copy_range(0..4096, &other, to).await)?;
        }
        for len in [u64::MAX, 1 << 63] {
            let error = fails(format_args!("truncate to {len}"), file.truncate(len).await)?;
            same("the path of the error", error.path(), Some(path.as_path()))?;
        }
    }
    same("the other file's length", other.len().await?, 0)?;
    same_bytes("the file", &content(env, &path).await?, &bytes_of(0..8192))
}

async fn advice_changes_no_bytes(env: &Env) -> Outcome {
    let path = put(env, "a", 100_000).await?;
    let all_advice = [
        Advice::Normal,
        Advice::Sequential,
        Advice::Random,
        Advice::WillNeed,
        Advice::DontNeed,
        Advice::NoReuse,
    ];
    for file in open_all(env, &path, Open::read()).await? {
        for advice in all_advice {
            for range in [0..100_000, 5..5, 1..4096, 99_999..200_000, 0..u64::MAX] {
                file.advise(range, advice).await?;
            }
            same_bytes(format_args!("{advice:?}"), &file.read(0..100_000).await?, &bytes_of(0..100_000))?;
        }
    }
    Ok(())
}

async fn ranges_are_copied_between_all_modes(env: &Env) -> Outcome {
    const LEN: u64 = 150_000;
    let path = put(env, "source", LEN).await?;
    for (s, source) in modes(env, Open::read()).into_iter().enumerate() {
        for (t, target) in modes(env, Open::create_new()).into_iter().enumerate() {
            let from = env.engine().open(&path, source).await?;
            let name = env.path(&format!("{s}{t}"));
            let to = env.engine().open(&name, target).await?;
            same("all of it", from.copy_range(0..LEN, &to, 0).await?, LEN)?;
            same("an odd part", from.copy_range(1_001..77_778, &to, 333).await?, 76_777)?;
            let mut expected = bytes_of(0..LEN);
            expected[333..333 + 76_777].copy_from_slice(&bytes_of(1_001..77_778));
            same_bytes(
                format_args!("from {source:?} to {target:?}"),
                &content(env, &name).await?,
                &expected,
            )?;
            // Bytes that the source does not have are not copied; an empty range copies nothing.
            same("over the end", from.copy_range(LEN - 100..2 * LEN, &to, 0).await?, 100)?;
            same("past the end", from.copy_range(2 * LEN..3 * LEN, &to, 0).await?, 0)?;
            // Story: the end of the longest range is beyond all offsets in the target, and the copy was refused.
            same("to the end", from.copy_range(LEN - 100..u64::MAX >> 1, &to, 9).await?, 100)?;
            same("nothing", from.copy_range(5..5, &to, 0).await?, 0)?;
            same("the length", to.len().await?, LEN)?;
        }
    }
    Ok(())
}

async fn a_copy_onto_itself_is_refused(env: &Env) -> Outcome {
    let path = put(env, "a", 16_384).await?;
    for file in open_all(env, &path, Open::write()).await? {
        fails_with("overlapping", file.copy_range(0..8192, &file, 4096).await, ErrorKind::InvalidInput)?;
        same("beside each other", file.copy_range(0..4096, &file, 4096).await?, 4096)?;
        file.write(4096, bytes_of(4096..8192)).await?;
    }
    same_bytes("the file", &content(env, &path).await?, &bytes_of(0..16_384))
}

async fn attributes_are_those_of_the_file(env: &Env) -> Outcome {
    let path = put(env, "a", 10_000).await?;
    let by_name = env.engine().metadata(&path).await?;
    for file in open_all(env, &path, Open::read()).await? {
        let metadata = file.metadata().await?;
        same("the length", (metadata.len(), file.len().await?), (10_000, 10_000))?;
        same("the kind", metadata.kind(), FileKind::File)?;
        holds("it is a file and no directory", metadata.is_file() && !metadata.is_dir())?;
        same("the file by its name", metadata.inode(), by_name.inode())?;
        same("its names", metadata.links(), 1)?;
        same("its file system", metadata.device(), by_name.device())?;
        same("the path", file.path(), path.as_path())?;
    }
    let dir = env.engine().metadata(env.dir()).await?;
    holds("the directory is one", dir.is_dir() && !dir.is_file())
}

/// Returns whether each byte is the file's or zero: while a file is cut, its last unit may be read on either
/// side of the cut.
fn is_of_file(block: &Block, start: u64) -> bool {
    let file = bytes_of(start..start + block.len() as u64);
    block.iter().zip(&file).all(|(came, file)| came == file || *came == 0)
}

async fn a_file_cut_while_it_is_read_gives_what_it_has(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::write()).into_iter().enumerate() {
        for cut in [0u64, 1, 4_096, 100_001] {
            let path = put(env, &format!("{number}-{cut}"), 250_000).await?;
            let file: File = env.engine().open(&path, open).await?;
            let starts: Vec<u64> = (0..50).map(|n| n * 4_899).collect();
            let mut exact: Vec<_> =
                starts.iter().map(|&at| file.read(at..at + 5_000).into_future()).collect();
            let mut polled: Vec<_> = exact.iter_mut().map(poll_now).collect();
            let truncated = file.truncate(cut);
            let upto = all(starts.iter().map(|&at| file.read_up_to(at..at + 5_000).into_future())).await;
            truncated.await?;
            let rest = all(exact.into_iter().zip(polled.drain(..)).map(async |(read, first)| match first {
                std::task::Poll::Ready(result) => result,
                std::task::Poll::Pending => read.await,
            }))
            .await;
            let short = |result: &Result<Block, Error>| {
                result.as_ref().is_err_and(
                    |error| matches!(error.kind(), ErrorKind::UnexpectedEof { got } if got < 5_000),
                )
            };
            for (&at, result) in starts.iter().zip(rest) {
                match result {
                    Ok(block) => {
                        holds("a whole read is the file's", block.len() == 5_000 && is_of_file(&block, at))?
                    }
                    result if short(&result) => {}
                    Err(error) => fail(format_args!("expected bytes or UnexpectedEof, came {error:?}"))?,
                }
            }
            for (&at, result) in starts.iter().zip(upto) {
                holds("a short read is the file's", is_of_file(&result?, at))?;
            }
            same_bytes("after the cut", &content(env, &path).await?, &bytes_of(0..cut))?;
        }
    }
    Ok(())
}

async fn a_scan_of_a_file_that_is_cut_ends_early(env: &Env) -> Outcome {
    const LEN: u64 = 600_000;
    for (number, open) in modes(env, Open::write()).into_iter().enumerate() {
        let path = put(env, &number.to_string(), LEN).await?;
        let file = env.engine().open(&path, open).await?;
        let mut scan = file.scan().request_bytes(64 << 10).depth(4).start();
        let mut at = 0;
        while let Some(block) = scan.next().await.transpose()? {
            holds("in order", is_of_file(&block, at))?;
            at += block.len() as u64;
            if at == 128 << 10 {
                file.truncate(200_001).await?;
            }
        }
        holds(format_args!("between the cut and the old end: {at}"), (200_001..LEN).contains(&at))?;
    }
    Ok(())
}
