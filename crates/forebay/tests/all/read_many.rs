//! Shows: a batch of ranges returns for each range the result of a separate read, with fewer requests and bounded memory. How:
//! known bytes, the statistics for requests and bytes, a full arena and a broken loop device for failing merges.

use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::task::{Context, Waker};

use crate::common::{self, bytes_of, dir, engine, write_file};
use forebay::{Block, Class, Engine, ErrorKind, File, Open, ReadMany, Result, shard};

const KIB: u64 = 1 << 10;

/// Returns the reads and bytes of all requests to devices so far.
fn requests(engine: &Engine) -> (u64, u64) {
    let stats = engine.stats().wait().unwrap();
    (stats.flows.iter().map(|flow| flow.reads).sum(), stats.flows.iter().map(|flow| flow.read_bytes).sum())
}

/// Returns the requests and bytes of `batch`, and its results.
fn measured(engine: &Engine, batch: ReadMany) -> ((u64, u64), Vec<Result<Block>>) {
    let before = requests(engine);
    let results = batch.wait().unwrap();
    let after = requests(engine);
    ((after.0 - before.0, after.1 - before.1), results)
}

fn check(ranges: &[Range<u64>], results: &[Result<Block>]) {
    assert_eq!(ranges.len(), results.len());
    for (range, result) in ranges.iter().zip(results) {
        let block = result.as_ref().unwrap_or_else(|error| panic!("{range:?}: {error}"));
        assert_eq!(block.len() as u64, range.end - range.start, "{range:?}");
        assert!(block[..] == bytes_of(range.clone())[..], "{range:?} has other bytes");
    }
}

/// Numbers without a pattern, the same in every run.
struct Mixer(u64);

impl Mixer {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn mixed_ranges(count: usize, file_len: u64, len_max: u64) -> Vec<Range<u64>> {
    let mut mixed = Mixer(7);
    let range = |_| {
        let len = mixed.below(len_max);
        let start = mixed.below(file_len - len);
        start..start + len
    };
    (0..count).map(range).collect()
}

#[test]
fn results_are_in_the_order_of_the_ranges_whatever_their_shape() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    for open in [Open::read(), Open::read().buffered(), Open::read().uncached()] {
        let file = engine.open(&path, open).wait().unwrap();
        let mut ranges = mixed_ranges(2000, 1 << 20, 9000);
        // Equal, contained, overlapping, touching, empty, whole.
        ranges.extend([
            5..5,
            0..1,
            0..1,
            100..5000,
            100..5000,
            200..300,
            4000..9000,
            9000..9001,
            0..0,
            1 << 20..1 << 20,
        ]);
        ranges.extend([(1 << 20) - 1..1 << 20, 0..1 << 20, 0..1 << 20]);
        check(&ranges, &file.read_many(ranges.clone()).wait().unwrap());
        check(
            &ranges,
            &file.read_many(ranges.clone()).gap_bytes_max(0).waste_bytes_max(0).depth(1).wait().unwrap(),
        );
        check(&ranges, &file.read_many(ranges.clone()).request_bytes_max(0).wait().unwrap());
        check(
            &ranges,
            &file.read_many(ranges.clone()).gap_bytes_max(1 << 30).waste_bytes_max(1 << 30).wait().unwrap(),
        );
    }
    let file = engine.open(&path, Open::read()).wait().unwrap();
    assert!(file.read_many([]).wait().unwrap().is_empty());
    assert!(file.read_many([]).stream().next().wait().is_none());
    check(&[7..7, 3..3], &file.read_many([7..7, 3..3]).wait().unwrap());
}

#[test]
fn detached_results_keep_little_beside_their_own_bytes() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 8 << 20);
    // Short and long, alone and merged, whole blocks and parts of them.
    let mut ranges = mixed_ranges(1500, 8 << 20, 9000);
    ranges.extend([0..0, 0..1 << 20, 5..6, 4096..8192, 100..900_000]);
    for open in [Open::read(), Open::read().buffered(), Open::read().adaptive()] {
        let file = engine.open(&path, open).wait().unwrap();
        let batch = || file.read_many(ranges.clone());
        let (attached, results) = (batch().wait().unwrap(), batch().detached().wait().unwrap());
        check(&ranges, &results);
        let most = |len: usize| (len + 4096).max(if len <= 8192 { 4 * len.next_multiple_of(64) } else { 0 });
        let pinned = |block: &Block| block.pinned_bytes() > most(block.len());
        assert!(results.iter().flatten().all(|block| !pinned(block)), "{open:?}");
        assert!(attached.iter().flatten().any(pinned), "{open:?}: otherwise this test shows nothing");
        drop((attached, results));
        let mut stream = batch().detached().stream();
        while let Some((number, result)) = stream.next().wait() {
            let block = result.unwrap();
            assert!(!pinned(&block) && block[..] == bytes_of(ranges[number].clone())[..]);
        }
    }
}

#[test]
fn merging_keeps_to_gap_amplification_and_size() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 4 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    // 64 blocks of 4 KiB, each 4 KiB behind the one before; given backwards.
    let ranges: Vec<_> = (0..64).rev().map(|n| n * 8 * KIB..n * 8 * KIB + 4 * KIB).collect();
    let batch = || file.read_many(ranges.clone());
    let cost = |batch| {
        let (cost, results) = measured(&engine, batch);
        check(&ranges, &results);
        cost
    };
    assert_eq!(cost(batch().gap_bytes_max(0)), (64, 256 * KIB), "gaps are not read");
    assert_eq!(cost(batch().gap_bytes_max(4095)), (64, 256 * KIB), "one byte short of the gap");
    let generous = || batch().gap_bytes_max(4 * KIB).request_bytes_max(1 << 20);
    assert_eq!(cost(generous().waste_bytes_max(1 << 20)), (1, 508 * KIB), "all in one");
    assert_eq!(cost(generous().waste_bytes_max(0)), (64, 256 * KIB), "nothing may be read in vain");
    // Three gaps a request: 16 requests of four ranges.
    assert_eq!(cost(generous().waste_bytes_max(12 * KIB)), (16, 16 * 28 * KIB));
    assert_eq!(
        cost(batch().gap_bytes_max(4 * KIB).request_bytes_max(20 * KIB)),
        (22, 21 * 20 * KIB + 4 * KIB)
    );
    // Ranges that touch or overlap need no allowance.
    let touching: Vec<_> = (0..64).map(|n| n * 4 * KIB..(n + 1) * 4 * KIB).collect();
    let (cost, results) =
        measured(&engine, file.read_many(touching.clone()).gap_bytes_max(0).waste_bytes_max(0));
    check(&touching, &results);
    assert_eq!(cost, (1, 256 * KIB));
}

#[test]
fn ranges_past_the_end_fail_alone() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 100_003);
    for open in [Open::read(), Open::read().buffered()] {
        let file = engine.open(&path, open).wait().unwrap();
        let backwards = Range { start: 9, end: 3 };
        // Together these are one request, except for the distant ranges.
        let ranges = [
            99_000..100_003,
            99_500..100_004,
            100_003..100_003,
            100_003..100_010,
            98_000..99_001,
            backwards.clone(),
            1 << 40..(1 << 40) + 5,
            0..u64::MAX,
            0..(1 << 30) + 8192,
        ];
        let results = file.read_many(ranges.clone()).wait().unwrap();
        let kind =
            |at: usize| results[at].as_ref().map_or_else(|error| error.kind(), |_| panic!("{at} worked"));
        for at in [0, 2, 4] {
            check(&ranges[at..=at], &results[at..=at]);
        }
        assert_eq!(kind(1), ErrorKind::UnexpectedEof { got: 503 });
        assert_eq!(kind(3), ErrorKind::UnexpectedEof { got: 0 });
        assert_eq!(kind(5), ErrorKind::InvalidInput);
        assert_eq!(kind(6), ErrorKind::UnexpectedEof { got: 0 });
        assert_eq!(kind(7), ErrorKind::InvalidInput);
        assert_eq!(kind(8), ErrorKind::UnexpectedEof { got: 100_003 });
        let error = results[1].as_ref().unwrap_err();
        assert_eq!(
            (error.operation(), error.range(), error.path()),
            ("read_many", Some((99_500, 504)), Some(path.as_path()))
        );
    }
}

#[test]
fn a_merged_request_without_memory_is_read_range_by_range() {
    // Only overflow memory, 64 KiB of it: too little for a merged request of 116 KiB, but enough for its ranges of 4 KiB.
    let config = common::config().shards(1).arena_bytes(0).arena_bytes_max(0).overflow_bytes_max(64 << 10);
    let (engine, dir) = (Engine::start(config).unwrap(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    assert!(matches!(file.read(0..116 * KIB).wait().unwrap_err().kind(), ErrorKind::ArenaExhausted { .. }));
    let ranges: Vec<_> = (0..16).map(|n| n * 16 * KIB..n * 16 * KIB + 4 * KIB).collect();
    let results = file.read_many(ranges.clone()).waste_bytes_max(1 << 20).depth(4).wait().unwrap();
    check(&ranges, &results);
    // Single reads hold all memory but 8 KiB: one range after the other gets it.
    let mut held: Vec<_> = std::iter::from_fn(|| file.read(0..4096).wait().ok()).collect();
    held.truncate(held.len() - 2);
    let more: Vec<_> = (0..32).map(|n| n * 16 * KIB..n * 16 * KIB + 4 * KIB).collect();
    check(&more, &file.read_many(more.clone()).wait().unwrap());
    // They hold all of it: each range has its own error, no error is lost.
    held.extend(std::iter::from_fn(|| file.read(0..4096).wait().ok()));
    for answer in file.read_many(more).wait().unwrap() {
        let error = answer.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ArenaExhausted { .. }), "{error}");
    }
    drop((held, results));
    check(&ranges, &file.read_many(ranges.clone()).waste_bytes_max(1 << 20).wait().unwrap());
}

/// A loop device of our own over a file of ours, removed at the end.
struct Loop(String);

impl Loop {
    /// Returns `None`, with the reason on standard error, where loop devices are not available (no root, no
    /// device nodes).
    fn over(path: &std::path::Path) -> Option<Loop> {
        let output = std::process::Command::new("losetup").args(["--find", "--show"]).arg(path).output();
        match output {
            Ok(output) if output.status.success() => {
                Some(Loop(String::from_utf8(output.stdout).unwrap().trim().into()))
            }
            Ok(output) => {
                eprintln!("not shown here: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                eprintln!("not shown here: losetup: {error}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_merged_request_that_the_device_fails_is_read_range_by_range() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("disk");
    write_file(&path, 1 << 20);
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let Some(device) = Loop::over(&path) else { return };
    let file = engine.open(&device.0, Open::read()).wait().unwrap();
    // Half of the disk is removed behind the device's back: reads from there fail with EIO.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(512 * KIB).unwrap();
    let ranges: Vec<_> = (0..64).map(|n| n * 16 * KIB..n * 16 * KIB + 4 * KIB).collect();
    let everything = file
        .read_many(ranges.clone())
        .gap_bytes_max(1 << 20)
        .waste_bytes_max(1 << 30)
        .request_bytes_max(1 << 20);
    let results = everything.wait().unwrap();
    check(&ranges[..32], &results[..32]);
    for (range, result) in ranges.iter().zip(&results).skip(32) {
        let error = result.as_ref().unwrap_err();
        assert_eq!(
            (error.raw_os_error(), error.range()),
            (Some(libc::EIO), Some((range.start, 4 * KIB))),
            "{error}"
        );
    }
    drop(file);
}

#[test]
fn a_million_ranges_of_a_small_file() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 256 * KIB);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let mut mixed = Mixer(3);
    let ranges: Vec<Range<u64>> = (0..1_000_000)
        .map(|_| {
            let start = mixed.below(256 * KIB - 64);
            start..start + 64
        })
        .collect();
    let bytes = bytes_of(0..256 * KIB);
    let right =
        |range: &Range<u64>, block: &Block| block[..] == bytes[range.start as usize..range.end as usize];
    // As a stream: a small result of a large request is copied, so memory stays bounded only if results are
    // released.
    let mut seen = vec![false; ranges.len()];
    let mut stream = file.read_many(ranges.clone()).stream();
    let mut count = 0;
    while let Some((number, result)) = stream.next().wait() {
        assert!(right(&ranges[number], &result.unwrap()), "{:?}", ranges[number]);
        assert!(!std::mem::replace(&mut seen[number], true), "{number} came twice");
        count += 1;
    }
    assert_eq!(count, 1_000_000);
    assert!(stream.next().wait().is_none(), "the end stays the end");
    // As a whole, in order. Regression: each small result was copied into a separate buffer, a page at least, so a million of them
    // filled the whole arena.
    let results = file.read_many(ranges.clone()).wait().unwrap();
    assert!(engine.memory().held_bytes <= 1 << 20, "{:?}", engine.memory());
    assert!(ranges.iter().zip(&results).all(|(range, result)| right(range, result.as_ref().unwrap())));
}

#[test]
fn a_stream_bounds_the_memory_of_results_that_are_not_taken() {
    let config =
        common::config().shards(1).arena_bytes(4 << 20).arena_bytes_max(4 << 20).overflow_bytes_max(0);
    let (engine, dir) = (Engine::start(config).unwrap(), dir());
    let path = dir.path().join("a");
    write_file(&path, 16 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    // 16 MiB through 4 MiB of memory: works only if unconsumed results hold requests back.
    let ranges: Vec<_> = (0..4096).map(|n| n * 4 * KIB..(n + 1) * 4 * KIB).collect();
    let mut stream = file.read_many(ranges.clone()).request_bytes_max(0).depth(32).stream();
    let mut held_max = 0;
    for n in 0..4096 {
        let (number, block) = stream.next().wait().unwrap();
        assert_eq!(&block.unwrap()[..], &bytes_of(ranges[number].clone())[..]);
        if n % 64 == 0 {
            held_max = held_max.max(engine.memory().held_bytes);
        }
    }
    assert!(stream.next().wait().is_none());
    // Depth 32, a queue of 64, and the requests that a turn had in flight when the queue was full.
    assert!(held_max <= 4 * KIB * (32 + 64 + 32), "{held_max} bytes held");
}

#[test]
fn closing_the_file_under_a_stream_answers_every_range() {
    // Regression: when the file was closed while the stream's queue was full, the batch ended with results still waiting, and the
    // consumer got fewer results than ranges.
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 4 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let ranges: Vec<_> = (0..1000).map(|n| n * 4 * KIB..(n + 1) * 4 * KIB).collect();
    let mut stream = file.read_many(ranges.clone()).request_bytes_max(0).depth(2).stream();
    let mut seen = vec![0; 1000];
    let (first, result) = stream.next().wait().unwrap();
    assert_eq!(&result.unwrap()[..], &bytes_of(ranges[first].clone())[..]);
    seen[first] += 1;
    // Until the queue is full, and nothing is in flight because of that.
    while engine.stats().wait().unwrap().shards.iter().any(|shard| shard.slots_used > 0) {}
    file.close().wait().unwrap();
    let mut closed = 0;
    while let Some((number, result)) = stream.next().wait() {
        seen[number] += 1;
        if closed == 0 {
            // By the time of its reply to this query the shard has done all it can for the stream.
            engine.stats().wait().unwrap();
        }
        match result {
            Ok(block) => assert_eq!(&block[..], &bytes_of(ranges[number].clone())[..]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::FileClosed);
                closed += 1;
            }
        }
    }
    assert!(seen.iter().all(|&times| times == 1), "{} of 1000 ranges answered", seen.iter().sum::<i32>());
    assert!(closed > 0);
}

/// Polls `future` a few times without a waker and drops it.
fn poll_and_drop(future: impl IntoFuture, polls: usize) {
    let mut future = Box::pin(future.into_future());
    for _ in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
    }
}

#[test]
fn dropped_midway_it_stops_and_gives_everything_back() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 4 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let ranges: Vec<_> = (0..1000).map(|n| n * 4 * KIB..n * 4 * KIB + 100).collect();
    let batch = || file.read_many(ranges.clone()).request_bytes_max(0);
    for polls in 0..3 {
        for _ in 0..20 {
            poll_and_drop(batch(), polls);
        }
    }
    for taken in [0, 1, 500] {
        let mut stream = batch().depth(8).stream();
        for _ in 0..taken {
            stream.next().wait().unwrap().1.unwrap();
        }
    }
    let inner = file.clone();
    let inner_ranges = ranges.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        for polls in 0..3 {
            poll_and_drop(inner.read_many(inner_ranges.clone()).request_bytes_max(0), polls);
        }
        let mut stream = inner.read_many(inner_ranges.clone()).request_bytes_max(0).stream();
        stream.next().await.unwrap().1.unwrap();
    });
    task.wait().unwrap();
    check(&ranges, &batch().wait().unwrap());
    file.close().wait().unwrap();
    assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
}

/// Checks results of the batch from wherever this is polled.
async fn from_here(file: &File, ranges: &[Range<u64>]) {
    check(ranges, &file.read_many(ranges.iter().cloned()).await.unwrap());
    let mut stream = file.read_many(ranges.iter().cloned()).depth(16).stream();
    let mut seen = vec![false; ranges.len()];
    while let Some((number, result)) = stream.next().await {
        check(&ranges[number..=number], &[result]);
        assert!(!std::mem::replace(&mut seen[number], true));
    }
    assert!(seen.into_iter().all(|seen| seen));
}

#[test]
fn the_same_from_a_thread_a_shard_and_both_kinds_of_tokio() {
    let (engine, dir) = (Engine::start(common::config().shards(2)).unwrap(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let ranges = mixed_ranges(3000, 1 << 20, 5000);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    futures::executor::block_on(from_here(&file, &ranges));
    let single = tokio::runtime::Builder::new_current_thread().build().unwrap();
    single.block_on(from_here(&file, &ranges));
    let multi = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    multi.block_on(async {
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (file, ranges) = (file.clone(), ranges.clone());
                tokio::spawn(async move { from_here(&file, &ranges).await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    // On its home shard and on the other one.
    for number in 0..2 {
        let (file, ranges) = (file.clone(), ranges.clone());
        let task =
            engine.spawn_on_shard(number % engine.shard_count(), Class::BACKGROUND, move || async move {
                assert_eq!(shard::current(), Some(number));
                from_here(&file, &ranges).await;
            });
        task.wait().unwrap();
    }
    let stats = engine.stats().wait().unwrap();
    assert!(
        stats.flows.iter().any(|flow| flow.class == "background" && flow.reads > 0),
        "the task's class is inherited"
    );
}

/// A stream's queue had two places for each request that may be in flight, however few ranges there were: the largest depth ended
/// the process, which has no memory for this many.
#[test]
fn a_stream_may_have_any_depth() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    for open in [Open::read(), Open::read().adaptive()] {
        let file = engine.open(&path, open).wait().unwrap();
        for count in [0, 1, 2, 500_u64] {
            let ranges = (0..count).map(|n| n * 2000..n * 2000 + 100);
            let mut stream = file.read_many(ranges).depth(u32::MAX).stream();
            let mut left = count;
            while let Some((number, result)) = stream.next().wait() {
                let at = number as u64 * 2000;
                assert!(result.unwrap()[..] == bytes_of(at..at + 100)[..], "{at}");
                left -= 1;
            }
            assert_eq!(left, 0, "of {count}");
        }
    }
}

#[cfg(feature = "stream")]
#[test]
fn the_stream_is_a_stream() {
    use futures::StreamExt;
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let ranges = mixed_ranges(500, 1 << 20, 5000);
    let mut results: Vec<_> = futures::executor::block_on(file.read_many(ranges.clone()).stream().collect());
    results.sort_by_key(|(number, _)| *number);
    let results: Vec<_> = results.into_iter().map(|(_, result)| result).collect();
    check(&ranges, &results);
}

#[test]
fn ranges_of_several_files_are_one_batch() {
    let (engine, dir) = (engine(), dir());
    let lens = [1 << 20, 5000, 0, 70_000];
    let open = |(number, len): (usize, u64)| {
        let path = dir.path().join(number.to_string());
        write_file(&path, len);
        let open = if number == 1 { Open::read().buffered() } else { Open::read() };
        engine.open(path, open).wait().unwrap()
    };
    let files: Vec<File> = lens.into_iter().enumerate().map(open).collect();
    let mut mixed = Mixer(3);
    let mut asked = Vec::new();
    for _ in 0..3000 {
        let number = [0, 1, 3][mixed.below(3) as usize];
        let len = mixed.below(3000);
        let start = mixed.below(lens[number] - len + 1);
        asked.push((number, start..start + len));
    }
    asked.push((2, 0..0));
    let batch = || engine.read_many(asked.iter().map(|(number, range)| (&files[*number], range.clone())));
    let plan = batch().plan().unwrap();
    let (measured, results) = measured(&engine, batch());
    let ranges: Vec<_> = asked.iter().map(|(_, range)| range.clone()).collect();
    check(&ranges, &results);
    // The last requests end with their files.
    let ends = plan.read_bytes() - measured.1;
    assert!(measured.0 == plan.requests.len() as u64 && ends < 3 * 4096, "it makes the requests of its plan");
    assert_eq!(plan.wanted_bytes, ranges.iter().map(|range| range.end - range.start).sum::<u64>());
    assert!(
        plan.requests.len() < 300 && plan.requests.iter().map(|request| request.ranges).sum::<usize>() > 2900
    );
    // The same as a stream, and from tasks.
    let mut seen = 0;
    let mut stream = batch().depth(3).stream();
    while let Some((number, result)) = stream.next().wait() {
        assert!(result.unwrap()[..] == bytes_of(ranges[number].clone())[..]);
        seen += 1;
    }
    assert_eq!(seen, ranges.len());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    check(&ranges, &runtime.block_on(runtime.spawn(batch().into_future())).unwrap().unwrap());
}

#[test]
fn a_closed_file_of_several_fails_alone_and_a_foreign_one_all() {
    let (engine, other, dir) = (engine(), engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 100_000);
    let [first, second, third] = [0, 1, 2].map(|_| engine.open(&path, Open::read()).wait().unwrap());
    first.clone().close().wait().unwrap();
    let ranges = [(&first, 0..10), (&second, 7..5000), (&first, 50_000..50_001), (&third, 10..20)];
    let results = engine.read_many(ranges.clone()).wait().unwrap();
    for number in [0, 2] {
        let error = results[number].as_ref().unwrap_err();
        assert_eq!((error.kind(), error.path()), (ErrorKind::FileClosed, Some(path.as_path())));
    }
    assert!(results[1].as_ref().unwrap()[..] == bytes_of(7..5000)[..]);
    assert!(results[3].as_ref().unwrap()[..] == bytes_of(10..20)[..]);

    let foreign = other.open(&path, Open::read()).wait().unwrap();
    let error = engine.read_many([(&second, 0..1), (&foreign, 0..1)]).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("another engine"), "{error}");
    let mut stream = engine.read_many([(&foreign, 0..1)]).stream();
    assert!(stream.next().wait().unwrap().1.is_err() && stream.next().wait().is_none());

    assert!(engine.read_many([]).wait().unwrap().is_empty());
    assert!(engine.read_many([]).stream().next().wait().is_none());
    let nothing = engine.read_many([]).plan().unwrap();
    assert!(nothing.requests.is_empty() && (nothing.amplification() - 1.0).abs() < f64::EPSILON);
}

/// A program asked for the plan of a file "to its end" three times, with the largest end that a range may have: together the ranges
/// have more bytes than a number can say, and the sum overflowed.
#[test]
fn a_plan_of_the_longest_ranges_has_a_sum() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 100);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let end = i64::MAX as u64 - (1 << 20);
    let plan = file.read_many([0..end, 0..end, 0..end]).plan().unwrap();
    assert_eq!((plan.requests.len(), plan.wanted_bytes, plan.read_bytes()), (3, u64::MAX, u64::MAX));
}

/// Reads a stream to its end. Returns the numbers of the ranges that have failed with `kind`, after each number was returned once.
#[track_caller]
fn failed_with(kind: ErrorKind, mut stream: forebay::ReadManyStream, ranges: &[Range<u64>]) -> Vec<usize> {
    let mut seen = vec![false; ranges.len()];
    let mut failed = Vec::new();
    while let Some((number, result)) = stream.next().wait() {
        assert!(!std::mem::replace(&mut seen[number], true), "range {number} comes once");
        match result {
            Ok(block) => assert!(block[..] == bytes_of(ranges[number].clone())[..], "range {number}"),
            Err(error) => {
                assert_eq!((error.kind(), error.operation()), (kind, "read_many"), "{error}");
                failed.push(number);
            }
        }
    }
    assert!(seen.iter().all(|&seen| seen), "each range has its result");
    assert!(stream.next().wait().is_none(), "the end stays");
    failed
}

/// A stream gave the failure of its whole batch as `(0, Err)`: index 0 a second time where it had had its result, and one for a batch
/// without ranges.
#[test]
fn a_batch_that_fails_as_a_whole_fails_each_range_that_is_left() {
    let (engine, other, dir) = (engine(), engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let ranges: Vec<_> = (0..200u64).map(|n| n * 5000..n * 5000 + 100).collect();
    let batch = |file: &File| file.read_many(ranges.clone()).request_bytes_max(0);
    let all: Vec<usize> = (0..200).collect();

    let file = engine.open(&path, Open::read()).wait().unwrap();
    file.clone().close().wait().unwrap();
    assert_eq!(failed_with(ErrorKind::FileClosed, batch(&file).stream(), &ranges), all);
    let (_, result) = batch(&file).stream().next().wait().unwrap();
    assert_eq!(result.unwrap_err().range(), Some((0, 100)));
    assert!(file.read_many([]).stream().next().wait().is_none(), "nothing has failed");

    let foreign = other.open(&path, Open::read()).wait().unwrap();
    let stream = engine.read_many(ranges.iter().map(|range| (&foreign, range.clone()))).stream();
    assert_eq!(failed_with(ErrorKind::InvalidInput, stream, &ranges), all);

    // The engine ends while most of the batch is left; results that are there already are given.
    for open in [Open::read(), Open::read().buffered(), Open::read().adaptive()] {
        let engine = self::engine();
        let file = engine.open(&path, open).wait().unwrap();
        let mut stream = batch(&file).depth(1).stream();
        let (first, result) = stream.next().wait().unwrap();
        result.unwrap();
        engine.close().wait().unwrap();
        let mut left = Vec::new();
        while let Some((number, _)) = stream.next().wait() {
            left.push(number);
        }
        left.push(first);
        left.sort_unstable();
        assert_eq!(left, all, "{open:?}: each once");
    }
}
