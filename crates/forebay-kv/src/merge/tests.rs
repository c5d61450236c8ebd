//! Merges of memtables; the store's tests cover those of tables.

use std::ops::Bound;

use super::*;
use crate::record::{Change, HEADER_BYTES, Record};
use forebay::{Config, Engine};

/// Contents of a memtable: keys, each with a value or a deletion.
type Entries<'a> = &'a [(&'a [u8], Option<u8>)];

fn memory(entries: Entries<'_>, bounds: &Bounds, direction: Direction) -> Source {
    let engine = Engine::start(Config::new().shards(1)).unwrap();
    let memtables = Memtables::new(&engine, Arc::default());
    for (lsn, (key, value)) in (1..).zip(entries) {
        let value = value.as_ref().map(std::slice::from_ref);
        let change = value.map_or(Change::Delete, |value| Change::Put { value, expires_s: None });
        memtables.add(&Record::single(0, key, &change), &[HEADER_BYTES as u32], lsn);
    }
    Source::Memory(Memory::new(Arc::new(memtables), 0, u64::MAX, &Arc::new(bounds.clone()), direction))
}

fn merged(sources: &[Entries<'_>], bounds: &Bounds, direction: Direction) -> Vec<(Vec<u8>, Option<u8>)> {
    let sources = sources.iter().map(|entries| memory(entries, bounds, direction)).collect();
    let mut merge = Merge::new(sources, direction);
    let mut all = Vec::new();
    futures::executor::block_on(async {
        while merge.next().await.unwrap() {
            let value = match merge.entry().unwrap() {
                Entry::Deleted => None,
                Entry::Value { bytes, .. } => Some(bytes[0]),
                Entry::Blob { .. } => panic!("nothing is left in its file"),
            };
            all.push((merge.key().to_vec(), value));
        }
    });
    all
}

#[test]
fn the_newest_of_equal_keys_wins_both_ways() {
    let sources: [Entries<'_>; 3] = [
        &[(b"b", Some(1)), (b"d", None)],
        &[(b"a", Some(2)), (b"b", Some(2)), (b"d", Some(2)), (b"e", Some(2))],
        &[(b"a", Some(3)), (b"c", Some(3)), (b"d", Some(3)), (b"f", None)],
    ];
    let expected =
        [(b"a", Some(2)), (b"b", Some(1)), (b"c", Some(3)), (b"d", None), (b"e", Some(2)), (b"f", None)];
    let mut expected: Vec<_> = expected.into_iter().map(|(key, value)| (key.to_vec(), value)).collect();
    assert_eq!(merged(&sources, &Bounds::ALL, Direction::Forward), expected);
    expected.reverse();
    assert_eq!(merged(&sources, &Bounds::ALL, Direction::Backward), expected);
}

#[test]
fn batches_follow_each_other_within_bounds() {
    let keys: Vec<[u8; 2]> = (0..700u16).map(u16::to_be_bytes).collect();
    let entries: Vec<(&[u8], Option<u8>)> = keys.iter().map(|key| (&key[..], Some(key[1]))).collect();
    let bounds = Bounds { low: Bound::Excluded(keys[9].to_vec()), high: Bound::Included(keys[600].to_vec()) };
    for direction in [Direction::Forward, Direction::Backward] {
        let mut found = merged(&[&entries], &bounds, direction);
        if direction == Direction::Backward {
            found.reverse();
        }
        assert!(found.iter().map(|(key, _)| &key[..]).eq(keys[10..=600].iter().map(|key| &key[..])));
    }
}

#[test]
fn prefixes_end_where_the_next_one_begins() {
    let high = |prefix: &[u8]| Bounds::prefix(prefix).high;
    assert_eq!(high(b"ab"), Bound::Excluded(b"ac".to_vec()));
    assert_eq!(high(b"a\xff\xff"), Bound::Excluded(b"b".to_vec()));
    assert_eq!(high(b"\xff"), Bound::Unbounded);
    assert_eq!(high(b""), Bound::Unbounded);
}
