//! Reading one range.

use std::future::IntoFuture;
use std::task::Poll;

use forebay::{Class, ErrorKind, Open};

use super::check::{Outcome, fail, fails_with, holds, same, same_bytes};
use super::tools::{all, bytes_of, open_all, poll_now, poll_times, put};
use crate::Env;

super::group! { "reads":
    every_length_is_read_right_on_and_off_its_edges,
    a_large_range_is_read_whole,
    ranges_that_no_file_has_are_refused,
    at_the_last_place_of_all_nothing_is_no_error,
    a_block_goes_in_and_comes_back,
    a_misaligned_read_into_a_block_is_a_read_like_any_other,
    holes_are_zeros [FileSystem],
    many_reads_at_once_are_each_their_own,
    a_read_polled_again_answers_an_error,
}

async fn every_length_is_read_right_on_and_off_its_edges(env: &Env) -> Outcome {
    for len in [0u64, 1, 511, 512, 513, 4095, 4096, 4097, 70_001] {
        let path = put(env, &len.to_string(), len).await?;
        let last = len.saturating_sub(1);
        let edges = [0, 1, 511, 512, 513, 4095, 4096, 4097, last, len, len + 1, len + 5000];
        for file in open_all(env, &path, Open::read()).await? {
            for &start in &edges {
                for &end in edges.iter().filter(|&&end| end >= start) {
                    let expected = bytes_of(start.min(len)..end.min(len));
                    let what = format_args!("{start}..{end} of {len}, {:?}", file.mode()).to_string();
                    same_bytes(&what, &file.read_up_to(start..end).await?, &expected)?;
                    match file.read(start..end).await {
                        Ok(block) if end <= len || start == end => same_bytes(&what, &block, &expected)?,
                        Ok(_) => fail(format_args!("{what}: expected UnexpectedEof, and it worked"))?,
                        Err(error) => {
                            let kind = ErrorKind::UnexpectedEof { got: expected.len() as u64 };
                            same(&what, error.kind(), kind)?;
                            same(&what, error.range(), Some((start, end - start)))?;
                            holds("only a range past the end fails", end > len)?;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

async fn a_large_range_is_read_whole(env: &Env) -> Outcome {
    const LEN: u64 = 1_200_001;
    let path = put(env, "large", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        for range in [0..LEN, 199_999..1_150_003] {
            let block = file.read(range.clone()).class(Class::BACKGROUND).await?;
            same_bytes(format_args!("{range:?}, {:?}", file.mode()), &block, &bytes_of(range.clone()))?;
        }
        same("past the end", file.read_up_to(100..LEN + 100).await?.len() as u64, LEN - 100)?;
    }
    Ok(())
}

async fn ranges_that_no_file_has_are_refused(env: &Env) -> Outcome {
    let path = put(env, "a", 10_000).await?;
    for file in open_all(env, &path, Open::read()).await? {
        let backwards = std::ops::Range { start: 9, end: 3 };
        let error = fails_with("backwards", file.read(backwards.clone()).await, ErrorKind::InvalidInput)?;
        same("the file of the error", error.path(), Some(file.path()))?;
        fails_with("backwards", file.read_up_to(backwards).await, ErrorKind::InvalidInput)?;
        let limit = ErrorKind::TooLarge { limit: 1 << 30 };
        fails_with("above 1 GiB", file.read(0..(1 << 30) + 4096).await, limit)?;
        fails_with("above 1 GiB", file.read_up_to(0..(1 << 30) + 4096).await, limit)?;
        let far = [
            0..u64::MAX,
            (1 << 63) - 1..1 << 63,
            1 << 63..(1 << 63) + 4096,
            u64::MAX - 1..u64::MAX,
            (1 << 63) - 4096..(1 << 63) - 1,
        ];
        for range in far {
            let result = file.read_up_to(range.clone()).await;
            fails_with(format_args!("{range:?}, {:?}", file.mode()), result, ErrorKind::InvalidInput)?;
        }
        for offset in [1 << 63, u64::MAX, u64::MAX - 4096] {
            let (result, block) = file.read_into(offset, env.engine().block(4096)?).await;
            fails_with(format_args!("read_into at {offset}"), result, ErrorKind::InvalidInput)?;
            same("the block comes back", block.len(), 4096)?;
        }
    }
    Ok(())
}

async fn at_the_last_place_of_all_nothing_is_no_error(env: &Env) -> Outcome {
    let path = put(env, "a", 10_000).await?;
    for file in open_all(env, &path, Open::read()).await? {
        let last = (1u64 << 63) - 16_384;
        same("read_up_to", file.read_up_to(last..last + 4096).await?.len(), 0)?;
        let nothing = ErrorKind::UnexpectedEof { got: 0 };
        fails_with("read", file.read(last..last + 4096).await, nothing)?;
        let (result, block) = file.read_into(last, env.engine().block(4096)?).await;
        same("read_into", (result?, block.len()), (0, 4096))?;
    }
    Ok(())
}

async fn a_block_goes_in_and_comes_back(env: &Env) -> Outcome {
    let path = put(env, "a", 10_000).await?;
    for file in open_all(env, &path, Open::read()).await? {
        let (result, block) = file.read_into(4096, env.engine().block(4096)?).class(Class::LOG).await;
        same("bytes read", result?, 4096)?;
        same_bytes("inside", &block, &bytes_of(4096..8192))?;
        let (result, block) = file.read_into(8192, block).await;
        same("bytes read over the end", result?, 10_000 - 8192)?;
        same_bytes("over the end", &block[..10_000 - 8192], &bytes_of(8192..10_000))?;
        let (result, block) = file.read_into(12_288, block).await;
        same("past the end", (result?, block.len()), (0, 4096))?;
        let (result, block) = file.read_into(0, env.engine().block(0)?).await;
        same("nothing", (result?, block.len()), (0, 0))?;
    }
    Ok(())
}

async fn a_misaligned_read_into_a_block_is_a_read_like_any_other(env: &Env) -> Outcome {
    let path = put(env, "a", 10_000).await?;
    for file in open_all(env, &path, Open::read()).await? {
        for (offset, len) in [(1, 100), (0, 100), (1, 4096)] {
            let what = format!("{len} bytes at {offset}, {:?}", file.mode());
            let mut block = env.engine().block(len)?;
            block.fill(7);
            let (result, block) = file.read_into(offset, block).await;
            same(&what, result?, len)?;
            same_bytes(&what, &block, &bytes_of(offset..offset + len as u64))?;
        }
    }
    Ok(())
}

async fn holes_are_zeros(env: &Env) -> Outcome {
    const LEN: u64 = 256 << 10;
    let path = env.path("sparse");
    let writer = env.open(&path, Open::create_new()).await?;
    writer.truncate(LEN).await?;
    writer.write(128 << 10, bytes_of(128 << 10..(128 << 10) + 4096)).await?;
    let mut expected = vec![0; LEN as usize];
    expected[128 << 10..(128 << 10) + 4096].copy_from_slice(&bytes_of(128 << 10..(128 << 10) + 4096));
    for file in open_all(env, &path, Open::read()).await? {
        let end = 128 << 10;
        for range in [0..LEN, 100..5_000, end - 700..end + 5_000, end + 1..end + 4_096, LEN - 9_999..LEN] {
            let came = file.read(range.clone()).await?;
            let part = &expected[range.start as usize..range.end as usize];
            same_bytes(format_args!("{range:?}, {:?}", file.mode()), &came, part)?;
        }
    }
    // Beyond the old end a write leaves a hole too.
    writer.write(2 * LEN, bytes_of(0..4096)).await?;
    same("the length", writer.len().await?, 2 * LEN + 4096)?;
    same_bytes("between", &writer.read(LEN..2 * LEN).await?, &vec![0; LEN as usize])
}

async fn many_reads_at_once_are_each_their_own(env: &Env) -> Outcome {
    const LEN: u64 = 500_000;
    let path = put(env, "a", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        let range = |n: u64| n * 1_999..n * 1_999 + 1 + n * 7;
        let blocks = all((0..200).map(|n| file.read(range(n)).into_future())).await;
        for (n, block) in blocks.into_iter().enumerate() {
            same_bytes(format_args!("read {n}, {:?}", file.mode()), &block?, &bytes_of(range(n as u64)))?;
        }
    }
    Ok(())
}

async fn a_read_polled_again_answers_an_error(env: &Env) -> Outcome {
    let path = put(env, "a", 10_000).await?;
    for file in open_all(env, &path, Open::write()).await? {
        let mut read = file.read(5..500).into_future();
        let first = poll_times(&mut read, u32::MAX).await;
        holds("the read works", first.is_some_and(|read| read.is_ok()))?;
        holds("the read again", matches!(poll_now(&mut read), Poll::Ready(Err(_))))?;
        let mut write = file.write(0, bytes_of(0..4096)).into_future();
        let first = poll_times(&mut write, u32::MAX).await;
        holds("the write works", first.is_some_and(|write| write.is_ok()))?;
        holds("the write again", matches!(poll_now(&mut write), Poll::Ready(Err(_))))?;
        let mut read = file.read_into(0, env.engine().block(4096)?).into_future();
        let first = poll_times(&mut read, u32::MAX).await;
        holds("the read_into works", first.is_some_and(|(read, _)| read.is_ok()))?;
        holds("the read_into again", matches!(poll_now(&mut read), Poll::Ready((Err(_), _))))?;
    }
    let mut length = env.open(&path, Open::read()).await?.len();
    let first = poll_times(&mut length, u32::MAX).await;
    holds("the length comes", first.is_some_and(|length| length.is_ok()))?;
    holds("the length again", matches!(poll_now(&mut length), Poll::Ready(Err(_))))
}
