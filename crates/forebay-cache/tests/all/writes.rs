//! Writes, invalidation, and reads in flight across them.

use crate::common::{self, bytes, cache, device_reads, hold_shard, poll_once, scratch};

const PAGE: u64 = 4096;

#[test]
fn pages_in_memory_have_the_new_bytes_and_others_do_not_come_in() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    data.file.read(0..2 * PAGE).wait().expect("a read");
    data.file.write(PAGE, vec![9; 2 * PAGE as usize]).wait().expect("a write");
    let before = device_reads(&cache);
    let page = data.file.get(PAGE..2 * PAGE).expect("it was in memory, and is");
    assert_eq!(page[..], [9; PAGE as usize]);
    assert_eq!(data.file.get(0..PAGE).expect("untouched"), bytes(0..PAGE));
    assert_eq!(data.file.get(2 * PAGE..3 * PAGE), None);
    assert_eq!(device_reads(&cache), before);
    assert_eq!(data.file.file().read(PAGE..3 * PAGE).wait().expect("a read")[..], [9; 2 * PAGE as usize]);
}

#[test]
fn a_write_changes_its_part_of_a_larger_page() {
    let options = forebay_cache::CacheOptions::new().bytes_max(8 << 20).page_bytes(16 << 10);
    let cache = forebay_cache::Cache::new(&common::engine(), options).expect("a cache");
    let data = scratch(&cache, 1 << 20);
    data.file.read(0..1).wait().expect("a read");
    let block = cache.engine().block_from(&[9; PAGE as usize]).expect("memory").freeze();
    data.file.write_block(PAGE, block).wait().expect("a write");
    let page = data.file.get(0..16 << 10).expect("in memory");
    assert_eq!(page[..PAGE as usize], bytes(0..PAGE));
    assert_eq!(page[PAGE as usize..2 * PAGE as usize], [9; PAGE as usize]);
    assert_eq!(page[2 * PAGE as usize..], bytes(2 * PAGE..16 << 10));
}

#[test]
fn a_read_in_flight_across_a_write_leaves_no_old_bytes() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    for round in 1..50u8 {
        data.file.invalidate(0..PAGE);
        let held = hold_shard(&cache, &data.file);
        let mut before = data.file.read(0..PAGE);
        assert!(poll_once(&mut before).is_pending());
        let mut write = data.file.write(0, vec![round; PAGE as usize]);
        assert!(poll_once(&mut write).is_pending());
        let mut during = data.file.read(0..PAGE);
        assert!(poll_once(&mut during).is_pending());
        drop(held);
        write.wait().expect("a write");
        // Both started before the end of the write, and may have old bytes. They complete last, and are not inserted.
        before.wait().expect("a read");
        during.wait().expect("a read");
        assert_eq!(data.file.get(0..PAGE), None);
        assert_eq!(data.file.read(0..PAGE).wait().expect("a read")[..], [round; PAGE as usize]);
    }
}

#[test]
fn a_read_in_flight_across_an_invalidation_stays_out() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    for range in [0..1, 0..u64::MAX, 100..PAGE * 1_000_000] {
        let mut read = data.file.read(0..4 * PAGE);
        assert!(poll_once(&mut read).is_pending());
        data.file.invalidate(range);
        read.wait().expect("a read");
        assert_eq!(data.file.get(0..PAGE), None);
    }
    data.file.read(0..8 * PAGE).wait().expect("a read");
    data.file.invalidate(PAGE..2 * PAGE);
    let cached = |page| data.file.get(page * PAGE..(page + 1) * PAGE).is_some();
    assert!(cached(0) && !cached(1) && cached(2) && cached(7));
    data.file.invalidate(3 * PAGE..u64::MAX);
    assert!(cached(0) && cached(2) && !cached(3) && !cached(7));
}

#[test]
fn a_write_that_makes_the_file_longer_drops_its_last_page() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 5000);
    assert_eq!(data.file.read_up_to(PAGE..2 * PAGE).wait().expect("a read").len(), 904);
    assert!(data.file.get(PAGE..5000).is_some(), "the short page is in memory");
    data.file.write(3 * PAGE, vec![9; PAGE as usize]).wait().expect("a write");
    let grown = data.file.read_up_to(PAGE..2 * PAGE).wait().expect("a read");
    assert_eq!((grown.len(), &grown[904..]), (PAGE as usize, &[0; 3192][..]));
}

/// A file was cut, its pages were invalidated, and the page at its new end was read. A write behind that page made the file longer, but
/// the page stayed short: a read up to the end of the file missed all that follows.
#[test]
fn the_last_page_of_a_file_that_was_cut_is_dropped_as_well() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 5 * PAGE + 512);
    assert_eq!(data.file.read_up_to(5 * PAGE..6 * PAGE).wait().expect("a read").len(), 512);
    data.file.file().truncate(2 * PAGE + 512).wait().expect("a cut");
    data.file.invalidate(0..u64::MAX);
    assert_eq!(data.file.read_up_to(2 * PAGE..3 * PAGE).wait().expect("a read").len(), 512);
    assert!(data.file.get(2 * PAGE..2 * PAGE + 512).is_some(), "the short page is in memory");
    data.file.write(4 * PAGE, vec![9; PAGE as usize]).wait().expect("a write");
    let grown = data.file.read_up_to(2 * PAGE..6 * PAGE).wait().expect("a read");
    let (old, new) = grown[..].split_at(512);
    assert_eq!((grown.len() as u64, old), (3 * PAGE, &bytes(2 * PAGE..2 * PAGE + 512)[..]));
    assert!(new.iter().take(2 * PAGE as usize - 512).all(|byte| *byte == 0), "a hole");
    assert_eq!(new[2 * PAGE as usize - 512..], [9; PAGE as usize]);
}

/// The page is read while the file ends in it, and inserted after the file has grown.
#[test]
fn a_short_page_in_flight_across_such_a_write_stays_out() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 5000);
    let mut short = data.file.read_up_to(PAGE..2 * PAGE);
    assert!(poll_once(&mut short).is_pending());
    while device_reads(&cache) == 0 {}
    data.file.write(3 * PAGE, vec![9; PAGE as usize]).wait().expect("a write");
    assert_eq!(short.wait().expect("a read").len(), 904);
    assert_eq!(data.file.read_up_to(PAGE..2 * PAGE).wait().expect("a read").len(), PAGE as usize);
}

#[test]
fn a_write_that_fails_takes_its_pages_out_of_memory() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    data.file.read(0..2 * PAGE).wait().expect("a read");
    data.file.write(100, [9; 50]).wait().expect_err("misaligned");
    assert_eq!(data.file.get(0..PAGE), None);
    assert!(data.file.get(PAGE..2 * PAGE).is_some());
    assert_eq!(data.file.read(0..PAGE).wait().expect("a read"), bytes(0..PAGE));
    assert!(data.file.get(0..PAGE).is_some(), "and they are cached again");
}

/// While a write is kept and not polled, its range is read from the device; the rest of the cache works on.
#[test]
fn a_write_that_is_never_polled_again_holds_up_no_read() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    data.file.read(0..2 * PAGE).wait().expect("a read");
    let mut kept = data.file.write(0, vec![9; PAGE as usize]);
    assert!(poll_once(&mut kept).is_pending());
    for _ in 0..3 {
        data.file.read(0..PAGE).wait().expect("a read");
        assert_eq!(data.file.get(0..PAGE), None);
        assert!(data.file.get(PAGE..2 * PAGE).is_some());
    }
    kept.wait().expect("a write");
    data.file.read(0..PAGE).wait().expect("a read");
    assert_eq!(data.file.get(0..PAGE).expect("cached again")[..], [9; PAGE as usize]);
}

/// A dropped write continues, and its range is cached again after its end.
#[test]
fn a_write_that_was_dropped_leaves_no_old_bytes() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    for round in 1..30u8 {
        data.file.read(0..2 * PAGE).wait().expect("a read");
        let mut dropped = data.file.write(0, vec![round; PAGE as usize]);
        assert!(poll_once(&mut dropped).is_pending());
        drop(dropped);
        loop {
            let block = data.file.read(0..PAGE).wait().expect("a read");
            match data.file.get(0..PAGE) {
                Some(cached) => {
                    assert_eq!(cached[..], [round; PAGE as usize]);
                    break;
                }
                None => assert!(block[..] == [round; PAGE as usize] || block[0] != round),
            }
        }
    }
}

#[test]
fn of_two_writes_at_once_neither_stays_in_memory_unread() {
    let cache = cache(8 << 20);
    let data = scratch(&cache, 1 << 20);
    data.file.read(0..PAGE).wait().expect("a read");
    let mut first = data.file.write(0, vec![1; PAGE as usize]);
    let mut second = data.file.write(0, vec![2; PAGE as usize]);
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    second.wait().expect("a write");
    first.wait().expect("a write");
    assert_eq!(data.file.get(0..PAGE), None, "only the device knows which came last");
    let read = data.file.read(0..PAGE).wait().expect("a read");
    assert_eq!(read, data.file.file().read(0..PAGE).wait().expect("a read"));
}
