//! Reads return the bytes of the file, from memory where they are there.

use crate::common::{self, byte, bytes, cache, device_reads, mix, poll_once, scratch};
use forebay::ErrorKind;
use forebay_cache::CacheOptions;

#[test]
fn a_hit_begins_no_operation_of_the_engine() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    data.file.read(0..4096).wait().expect("a read");
    data.file.read(5000..5100).wait().expect("a read");
    let before = device_reads(&cache);
    assert_eq!(before, 2);
    for round in 0..1000 {
        let from = round % 4000;
        assert_eq!(data.file.read(from..from + 90).wait().expect("a hit"), bytes(from..from + 90));
        assert_eq!(data.file.get(5000..5001).expect("in memory")[..], [byte(5000)]);
    }
    assert_eq!(device_reads(&cache), before);
    let stats = cache.stats();
    assert_eq!((stats.pages.hits, stats.pages.misses, stats.reads), (2000, 2, 2));
}

/// A future that finds all in memory yields now and then, so that its thread serves others.
#[test]
fn a_task_that_only_hits_yields_now_and_then() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 4096);
    data.file.read(0..1).wait().expect("a read");
    let mut pending = 0;
    for _ in 0..6400 {
        let mut read = data.file.read(0..1);
        if poll_once(&mut read).is_pending() {
            pending += 1;
            assert!(poll_once(&mut read).is_ready(), "it yields once");
        }
    }
    assert_eq!(pending, 100);
}

#[test]
fn blocks_within_a_page_share_its_memory_and_longer_ones_are_copies() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    let first = data.file.read(100..200).wait().expect("a read");
    let again = data.file.read(100..200).wait().expect("a hit");
    assert_eq!(first.as_ptr(), again.as_ptr());
    assert_eq!(data.file.get(100..4097), None, "the second page is not there");
    data.file.read(4096..4097).wait().expect("a read");
    let over = data.file.get(4000..4200).expect("both pages are there");
    assert_eq!((&over[..], over.len()), (&bytes(4000..4200)[..], 200));
}

/// Random ranges of any length, compared with the file's bytes; with both kinds of pages.
#[test]
fn any_offset_and_length_is_the_bytes_of_the_file() {
    let len = 1_000_003;
    for page_bytes in [4096, 16 << 10] {
        let options = CacheOptions::new().bytes_max(512 << 10).page_bytes(page_bytes).bypass_above(200_000);
        let cache = forebay_cache::Cache::new(&common::engine(), options).expect("a cache");
        let data = scratch(&cache, len);
        let whole = bytes(0..len);
        for round in 0..2000u64 {
            let start = mix(round) % len;
            let longest = [50, 5_000, 70_000, 300_000][(mix(round + 77) % 4) as usize];
            let end = start + mix(round + 1_000_000) % longest;
            let block = match round % 3 {
                0 => data.file.read_up_to(start..end).wait().expect("a read"),
                1 => data.file.read(start..end.min(len)).wait().expect("a read"),
                _ => match data.file.get(start..end.min(len)) {
                    Some(block) => block,
                    None => continue,
                },
            };
            assert!(block[..] == whole[start as usize..end.min(len) as usize], "{start}..{end}");
        }
        let stats = cache.stats();
        assert!(
            stats.pages.hits > 100 && stats.pages.evictions > 100 && stats.bypassed_bytes > 0,
            "{stats:?}"
        );
    }
}

#[test]
fn the_last_page_may_be_short() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 10_000);
    for _ in 0..2 {
        assert_eq!(data.file.read(9_000..10_000).wait().expect("a read"), bytes(9_000..10_000));
        assert_eq!(data.file.read_up_to(9_500..20_000).wait().expect("a read"), bytes(9_500..10_000));
        assert_eq!(data.file.read_up_to(30_000..40_000).wait().expect("a read").len(), 0);
        let error = data.file.read(9_999..10_001).wait().expect_err("beyond the end");
        assert!(matches!(error.kind(), ErrorKind::UnexpectedEof { .. }), "{error}");
        assert_eq!(data.file.get(9_999..10_001), None);
        assert_eq!(data.file.read(5_000..5_000).wait().expect("an empty range").len(), 0);
    }
    let backwards = std::ops::Range { start: 9, end: 5 };
    assert_eq!(data.file.get(backwards.clone()), None);
    let error = data.file.read(backwards).wait().expect_err("an error of the file");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn neighbouring_missing_pages_are_one_read() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    data.file.read(8 * 4096..8 * 4096 + 1).wait().expect("a read");
    assert_eq!(data.file.read(100..16 * 4096).wait().expect("a read"), bytes(100..16 * 4096));
    assert_eq!(cache.stats().reads, 3, "the page in the middle was there: one read before it, one behind");
    let before = device_reads(&cache);
    for page in 0..16 {
        assert!(data.file.get(page * 4096..(page + 1) * 4096).is_some());
    }
    let many =
        data.file.read_many((16..80).map(|page| page * 4096 + 5..page * 4096 + 9)).wait().expect("a batch");
    for (number, block) in many.into_iter().enumerate() {
        let at = (16 + number as u64) * 4096 + 5;
        assert_eq!(block.expect("a range"), bytes(at..at + 4));
    }
    assert_eq!(device_reads(&cache), before + 1, "64 ranges in pages that follow each other");
}

#[test]
fn a_batch_has_a_result_for_each_range_of_each_file() {
    let cache = cache(8 << 20);
    let (one, two) = (scratch(&cache, 100_000), scratch(&cache, 50_000));
    let ranges = (0..500u64).map(|number| {
        let at = mix(number) % 60_000;
        (if number % 2 == 0 { &one.file } else { &two.file }, at..at + 100)
    });
    let blocks = cache.read_many(ranges.clone()).wait().expect("a batch");
    assert_eq!(blocks.len(), 500);
    for ((file, range), block) in ranges.zip(blocks) {
        let is_inside = file.file().path() == one.path || range.end <= 50_000;
        match block {
            Ok(block) => assert!(is_inside && block == bytes(range)),
            Err(error) => assert!(!is_inside && matches!(error.kind(), ErrorKind::UnexpectedEof { .. })),
        }
    }
}

#[test]
fn handles_of_one_opened_file_share_pages_and_the_last_takes_them_along() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 100_000);
    let other = cache.file(data.file.file().clone());
    data.file.read(0..100_000).wait().expect("a read");
    assert!(other.get(50_000..50_001).is_some());
    let reopened = cache.open(&data.path, forebay::Open::read()).wait().expect("opens");
    assert_eq!(reopened.get(50_000..50_001), None, "opened again: another file");
    assert!(cache.stats().pages.blocks >= 25);
    drop(other);
    assert!(cache.stats().pages.blocks >= 25);
    drop(data);
    assert_eq!(cache.stats().pages.blocks, 0);
}

#[tokio::test]
async fn tasks_of_a_runtime_and_of_a_shard_read_the_same_pages() {
    let cache = cache(8 << 20);
    let data = tokio::task::spawn_blocking({
        let cache = cache.clone();
        move || scratch(&cache, 100_000)
    });
    let data = data.await.expect("a file");
    let file = data.file.clone();
    let task = tokio::spawn(async move { file.read(100..200).await });
    assert_eq!(task.await.expect("a task").expect("a read"), bytes(100..200));
    let (file, shard) = (data.file.clone(), data.file.file().home_shard());
    let on_shard = move || async move { (file.read(100..200).await, file.read(50_000..60_000).await) };
    let (hit, miss) =
        cache.engine().spawn_on_shard(shard, forebay::Class::DEFAULT, on_shard).await.expect("a task");
    assert_eq!(
        (hit.expect("a hit"), miss.expect("a read")),
        (data.file.get(100..200).expect("there"), data.file.get(50_000..60_000).expect("there"))
    );
}
