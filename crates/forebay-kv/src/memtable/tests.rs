use std::collections::BTreeMap;

use forebay::Config;

use super::*;
use crate::record::{Change, HEADER_BYTES, entry_bytes, header_bytes, put_entry};

fn engine() -> Engine {
    Engine::start(Config::new().shards(1)).unwrap()
}

fn put(memtables: &Memtables, keyspace: u32, key: &[u8], value: &[u8], lsn: u64) {
    let record = Record::single(keyspace, key, &Change::Put { value, expires_s: None });
    memtables.add(&record, &[HEADER_BYTES as u32], lsn);
}

#[test]
fn every_version_is_found_at_its_time() {
    let memtables = Memtables::new(&engine(), Arc::default());
    for lsn in (10..=100).step_by(10) {
        put(&memtables, 1, b"k", &[lsn as u8], lsn);
    }
    for lsn in 0..120 {
        let found = memtables.get(1, b"k", lsn).map(|found| found.value()[0]);
        let newest = lsn.min(100) / 10 * 10;
        assert_eq!(found, (newest > 0).then_some(newest as u8), "at {lsn}");
    }
    assert!(memtables.get(2, b"k", 100).is_none() && memtables.get(1, b"", 100).is_none());
    assert_eq!(memtables.last_lsn(), 100);
}

#[test]
fn batches_go_both_ways_and_leave_out_what_is_not_there_yet() {
    let memtables = Memtables::new(&engine(), Arc::default());
    for key in 0..20u8 {
        put(&memtables, 7, &[key], &[key], u64::from(key) + 1);
    }
    let keys = |range, backwards, lsn, count| -> Vec<u8> {
        let batch = memtables.batch(7, range, backwards, lsn, count);
        batch.found.iter().map(|found| found.key()[0]).collect()
    };
    let (three, six) = (&[3u8][..], &[6u8][..]);
    assert_eq!(keys((Bound::Included(three), Bound::Excluded(six)), false, 99, 9), [3, 4, 5]);
    assert_eq!(keys((Bound::Excluded(three), Bound::Included(six)), true, 99, 2), [6, 5]);
    assert_eq!(keys((Bound::Unbounded, Bound::Unbounded), false, 3, 99), [0, 1, 2]);
    assert!(keys((Bound::Included(six), Bound::Included(three)), false, 99, 9).is_empty());
    assert!(keys((Bound::Excluded(six), Bound::Excluded(six)), false, 99, 9).is_empty());
}

#[test]
fn what_is_held_is_counted_until_it_goes() {
    let held = Arc::new(AtomicU64::new(0));
    let memtables = Arc::new(Memtables::new(&engine(), held.clone()));
    put(&memtables, 0, b"key", &[0; 1000], 1);
    assert!(memtables.bytes() > 1000 && held.load(Ordering::Relaxed) == 0);
    memtables.hold();
    memtables.hold();
    assert_eq!(held.load(Ordering::Relaxed), memtables.bytes());
    drop(memtables);
    assert_eq!(held.load(Ordering::Relaxed), 0);
}

/// A record's number, and the value unless the version is a deletion.
type Version = (u64, Option<Vec<u8>>);

/// Checks tens of thousands of entries against a map: random keys, keys in order, and keys that are written
/// again and again. Gets at any moment, and walks in both directions between any bounds, in pieces.
#[test]
fn it_answers_as_a_map_does() {
    let (engine, mut random) = (engine(), 1_u64);
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    for (keys, ordered, turns) in
        [(30_000, false, 40_000_u64), (u64::MAX >> 33, true, 20_000), (7, false, 5_000)]
    {
        let memtables = Memtables::new(&engine, Arc::default());
        let mut model: BTreeMap<(u32, Vec<u8>), Vec<Version>> = BTreeMap::new();
        for lsn in 1..=turns {
            let number = if ordered { lsn } else { next(keys) };
            let keyspace = next(3) as u32 * 5;
            // Some are longer than a page.
            let tail = if number.is_multiple_of(61) { 5000 } else { 0 };
            let key = [&number.to_be_bytes()[..], &vec![7; tail]].concat();
            let value =
                (!next(8).eq(&0)).then(|| vec![lsn as u8; next(200) as usize * (1 + next(20) as usize)]);
            let change = value.as_deref().map_or(Change::Delete, |value| Change::Put {
                value,
                expires_s: lsn.is_multiple_of(3).then_some(lsn),
            });
            let before = memtables.used();
            let record = Record::single(keyspace, &key, &change);
            memtables.add(&record, &[HEADER_BYTES as u32], lsn);
            let cost = cost(record.len(), 1);
            // An insert may split a node at each level.
            assert!(memtables.used() <= before + cost + 2048 && memtables.used() <= memtables.bytes());
            model.entry((keyspace, key)).or_default().push((lsn, value));
        }
        assert_eq!(memtables.keyspaces(), [0, 5, 10]);
        for (keyspace, tally) in memtables.tallies() {
            let mut expected = Tally::default();
            let of_keyspace = model.range((keyspace, Vec::<u8>::new())..(keyspace + 1, Vec::new()));
            for ((_, key), versions) in of_keyspace {
                expected.longest_key = expected.longest_key.max(key.len());
                match versions.last() {
                    Some((_, Some(value))) => expected.add(false, key.len() + value.len()),
                    _ => expected.add(true, key.len()),
                }
            }
            assert_eq!(tally, expected, "keyspace {keyspace}: of each key the newest version counts");
        }
        let at = |versions: &[Version], lsn| versions.iter().rev().find(|one| one.0 <= lsn).cloned();
        for _ in 0..300 {
            let (keyspace, lsn) = (next(3) as u32 * 5, next(turns + 10));
            let mut bound = || match next(5) {
                0 => Bound::Unbounded,
                kind => {
                    let key = next(if ordered { turns } else { keys }).to_be_bytes().to_vec();
                    if kind < 3 { Bound::Included(key) } else { Bound::Excluded(key) }
                }
            };
            let (mut low, mut high) = (bound(), bound());
            let backwards = next(2) == 0;
            let is_in = |key: &Vec<u8>| {
                (match &low {
                    Bound::Unbounded => true,
                    Bound::Included(low) => key >= low,
                    Bound::Excluded(low) => key > low,
                }) && match &high {
                    Bound::Unbounded => true,
                    Bound::Included(high) => key <= high,
                    Bound::Excluded(high) => key < high,
                }
            };
            let of_keyspace = model.range((keyspace, Vec::<u8>::new())..(keyspace + 1, Vec::new()));
            let inside = of_keyspace.filter(|((_, key), _)| is_in(key));
            let visible = |((_, key), versions): (&(u32, Vec<u8>), &Vec<Version>)| {
                Some((key.clone(), at(versions, lsn)?))
            };
            let expected: Vec<_> = if backwards {
                inside.rev().filter_map(visible).take(2000).collect()
            } else {
                inside.filter_map(visible).take(2000).collect()
            };
            let mut seen = Vec::new();
            while seen.len() < expected.len() + 1 {
                let slice = |bound: &Bound<Vec<u8>>| bound.clone();
                let (from, to) = (slice(&low), slice(&high));
                let range = (from.as_ref().map(|key| &key[..]), to.as_ref().map(|key| &key[..]));
                let batch = memtables.batch(keyspace, range, backwards, lsn, 100);
                for found in &batch.found {
                    let value = (!found.deleted).then(|| found.value().to_vec());
                    let expires_s = (found.lsn.is_multiple_of(3) && !found.deleted).then_some(found.lsn);
                    assert_eq!(found.expires_s, expires_s);
                    seen.push((found.key().to_vec(), (found.lsn, value)));
                }
                let Some((last, _)) = seen.last().filter(|_| !batch.is_last) else { break };
                let end = if backwards { &mut high } else { &mut low };
                *end = Bound::Excluded(last.clone());
            }
            seen.truncate(expected.len());
            assert!(seen == expected, "{} entries and {}", seen.len(), expected.len());
            for (key, expected) in expected.iter().take(20) {
                let found = memtables.get(keyspace, key, lsn).unwrap();
                assert_eq!((found.lsn, (!found.deleted).then(|| found.value().to_vec())), expected.clone());
                assert!(found.key().is_empty());
            }
        }
    }
}

/// Long values, with an expiry and without, among short values; the last change of a key in a batch counts.
#[test]
fn long_values_of_a_batch_are_found() {
    let engine = engine();
    let long = vec![9; 100_000];
    let puts: [(&[u8], &[u8], Option<u64>); 4] = [
        (b"a", &long, Some(77)),
        (b"b", &long[..100], None),
        (b"c", &long, None),
        (b"a", &long[1..], Some(78)),
    ];
    let changes = puts.map(|(key, value, expires_s)| (key, Change::Put { value, expires_s }));
    let len = HEADER_BYTES + changes.iter().map(|(key, change)| entry_bytes(key, change)).sum::<usize>();
    let mut places = Vec::new();
    let record = Record::new(len, |bytes| {
        bytes[..HEADER_BYTES].copy_from_slice(&header_bytes(4));
        let mut at = HEADER_BYTES;
        for (key, change) in &changes {
            places.push(at as u32);
            at += put_entry(&mut bytes[at..], 3, key, change);
        }
    });
    let memtables = Memtables::new(&engine, Arc::default());
    memtables.add(&record, &places, 5);
    let put_bytes = 3 + 99_999 + 100 + 100_000;
    assert_eq!(memtables.tallies(), [(3, Tally { deletions: 0, puts: 3, put_bytes, longest_key: 1 })]);
    let found = |key: &[u8]| memtables.get(3, key, 5).unwrap();
    assert_eq!((found(b"a").value(), found(b"a").expires_s), (&long[1..], Some(78)));
    assert_eq!((found(b"b").value(), found(b"b").expires_s), (&long[..100], None));
    assert_eq!((found(b"c").value(), found(b"c").expires_s), (&long[..], None));
    let (value, keeps) = found(b"c").to_value();
    assert_eq!((&value[..], keeps), (&long[..], 100_000_u64.next_multiple_of(4096)));
    assert!(memtables.bytes() > record.len() as u64);
}
