//! Many ranges of one file, and files from front to back.

use std::future::IntoFuture;

use forebay::{Class, ErrorKind, Open, Scan};

use super::check::{Outcome, fail, fails_with, holds, same, same_bytes};
use super::tools::{all, bytes_of, open_all, put};
use crate::Env;

super::group! { "many":
    ranges_of_every_kind_come_back_in_order,
    however_ranges_are_merged_each_is_right,
    single_ranges_fail_alone,
    a_stream_gives_each_range_once,
    batches_beside_each_other,
    a_scan_gives_the_file_in_order,
    a_scan_of_a_range_gives_that_range,
    a_scan_of_nothing_is_over_at_once,
    scans_beside_each_other,
}

const LEN: u64 = 300_007;

async fn ranges_of_every_kind_come_back_in_order(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    let mut ranges = vec![500..600, 0..1, 500..600, 550..9_000, 7..7, LEN - 1..LEN, 4096..8192, 0..LEN, 1..2];
    ranges.extend((0..200).map(|n| n * 1_499..n * 1_499 + n));
    for file in open_all(env, &path, Open::read()).await? {
        for count in [0, 1, 2, 9, ranges.len()] {
            let ranges = &ranges[..count];
            let results = file.read_many(ranges.iter().cloned()).class(Class::BACKGROUND).await?;
            same("number of results", results.len(), count)?;
            for (range, result) in ranges.iter().zip(results) {
                let what = format!("{range:?} of {count}, {:?}", file.mode());
                same_bytes(what, &result?, &bytes_of(range.clone()))?;
            }
        }
    }
    Ok(())
}

async fn however_ranges_are_merged_each_is_right(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    let ranges: Vec<_> =
        (0..300u64).map(|n| n * 3_001 % (LEN - 900)..n * 3_001 % (LEN - 900) + 900).collect();
    for file in open_all(env, &path, Open::read()).await? {
        for (gap, waste, request, depth) in [
            (0, 0, 4096, 1),
            (0, 0, u64::MAX, 3),
            (u64::MAX, u64::MAX, u64::MAX, 128),
            (4096, 8192, 65_536, 0),
        ] {
            let many = file.read_many(ranges.clone()).gap_bytes_max(gap).waste_bytes_max(waste);
            let results = many.request_bytes_max(request).depth(depth).await?;
            for (range, result) in ranges.iter().zip(results) {
                let what = format!("{range:?}, gap {gap}, request {request}, {:?}", file.mode());
                same_bytes(what, &result?, &bytes_of(range.clone()))?;
            }
        }
    }
    Ok(())
}

async fn single_ranges_fail_alone(env: &Env) -> Outcome {
    let path = put(env, "a", 10_000).await?;
    for file in open_all(env, &path, Open::read()).await? {
        let backwards = std::ops::Range { start: 9, end: 3 };
        let far = u64::MAX - 9..u64::MAX;
        let ranges = [
            0..10,
            backwards,
            9_990..10_010,
            20_000..20_001,
            far,
            0..(1 << 30) + 4096,
            1 << 62..(1 << 62) + 1,
            5..6,
        ];
        let results = file.read_many(ranges.clone()).await?;
        same("number of results", results.len(), ranges.len())?;
        let expected = [
            None,
            Some(ErrorKind::InvalidInput),
            Some(ErrorKind::UnexpectedEof { got: 10 }),
            Some(ErrorKind::UnexpectedEof { got: 0 }),
            Some(ErrorKind::InvalidInput),
            Some(ErrorKind::UnexpectedEof { got: 10_000 }),
            Some(ErrorKind::UnexpectedEof { got: 0 }),
            None,
        ];
        for ((range, result), expected) in ranges.iter().zip(results).zip(expected) {
            let what = format!("{range:?}, {:?}", file.mode());
            match (result, expected) {
                (Ok(block), None) => same_bytes(what, &block, &bytes_of(range.clone()))?,
                (Err(error), Some(kind)) => same(what, error.kind(), kind)?,
                (result, expected) => fail(format_args!("{what}: expected {expected:?}, came {result:?}"))?,
            }
        }
    }
    Ok(())
}

async fn a_stream_gives_each_range_once(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    let range = |n: u64| n * 1_000..n * 1_000 + n;
    for file in open_all(env, &path, Open::read()).await? {
        for depth in [1, 4, 1000] {
            let mut stream = file.read_many((0..300).map(range)).depth(depth).stream();
            let mut seen = vec![false; 300];
            while let Some((number, result)) = stream.next().await {
                let first = seen.get_mut(number).is_some_and(|seen| !std::mem::replace(seen, true));
                holds(format_args!("range {number} comes once"), first)?;
                same_bytes(format_args!("range {number}"), &result?, &bytes_of(range(number as u64)))?;
            }
            holds("every range came", seen.iter().all(|&seen| seen))?;
            holds("after the end it stays over", stream.next().await.is_none())?;
        }
        let mut stream = file.read_many([]).stream();
        holds("nothing of nothing", stream.next().await.is_none())?;
    }
    Ok(())
}

async fn batches_beside_each_other(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        let ranges = |batch: u64| (0..50).map(move |n| (batch * 50 + n) * 590..(batch * 50 + n) * 590 + 33);
        let batches = all((0..10).map(|batch| file.read_many(ranges(batch)).into_future())).await;
        for (batch, results) in batches.into_iter().enumerate() {
            for (range, result) in ranges(batch as u64).zip(results?) {
                same_bytes(format_args!("{range:?}"), &result?, &bytes_of(range.clone()))?;
            }
        }
    }
    Ok(())
}

/// Returns the output of a scan in one piece.
async fn drained(mut scan: Scan) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(block) = scan.next().await.transpose()? {
        holds("no block is empty", !block.is_empty())?;
        bytes.extend_from_slice(&block);
    }
    holds("after the end it stays over", scan.next().await.transpose()?.is_none())?;
    Ok(bytes)
}

async fn a_scan_gives_the_file_in_order(env: &Env) -> Outcome {
    for len in [0, 1, 4096, LEN] {
        let path = put(env, &len.to_string(), len).await?;
        for file in open_all(env, &path, Open::read()).await? {
            let what = format!("{len} bytes, {:?}", file.mode());
            same_bytes(&what, &drained(file.scan().start()).await?, &bytes_of(0..len))?;
            for (buffer, depth) in [(4096, 1), (16 << 10, 7), (1 << 20, 2)] {
                let scan = file.scan().request_bytes(buffer).depth(depth).class(Class::BACKGROUND).start();
                same_bytes(&what, &drained(scan).await?, &bytes_of(0..len))?;
            }
        }
    }
    Ok(())
}

async fn a_scan_of_a_range_gives_that_range(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        for range in [0..1, 1..4096, 4_097..70_001, LEN - 5..LEN, LEN - 5..u64::MAX, 100_001..250_002] {
            let scan = file.scan().range(range.clone()).request_bytes(32 << 10).start();
            let expected = bytes_of(range.start..range.end.min(LEN));
            same_bytes(format_args!("{range:?}, {:?}", file.mode()), &drained(scan).await?, &expected)?;
        }
    }
    Ok(())
}

async fn a_scan_of_nothing_is_over_at_once(env: &Env) -> Outcome {
    let path = put(env, "a", 10_000).await?;
    for file in open_all(env, &path, Open::read()).await? {
        for range in [5..5, 10_000..20_000, 10_001..10_002, 1 << 63..u64::MAX, u64::MAX..u64::MAX] {
            let mut scan = file.scan().range(range.clone()).start();
            holds(format_args!("{range:?} is over"), scan.next().await.transpose()?.is_none())?;
        }
        let mut scan = file.scan().range(std::ops::Range { start: 9, end: 3 }).start();
        fails_with("backwards", scan.next().await.transpose(), ErrorKind::InvalidInput)?;
        holds("after the error it is over", scan.next().await.transpose()?.is_none())?;
    }
    Ok(())
}

async fn scans_beside_each_other(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    let files = open_all(env, &path, Open::read()).await?;
    let scans = files.iter().map(|file| drained(file.scan().request_bytes(16 << 10).depth(3).start()));
    for bytes in all(scans).await {
        same_bytes("each scan has all of the file", &bytes?, &bytes_of(0..LEN))?;
    }
    Ok(())
}
