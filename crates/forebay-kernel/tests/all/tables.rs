//! Descents in tables as `forebay-kv` writes them: every key's leaf is found, and damaged nodes give the same
//! failure on every engine.

use std::path::{Path, PathBuf};

use crate::common::{engine, engines, mix, told};
use forebay::{Engine, Open};
use forebay_kernel::{
    Descent, Error, Options, TABLE_DAMAGED, TABLE_LARGER, TableCount, TableDescent, TableRange,
};
use forebay_kv::Store;

const UNIT: usize = 4096;

/// Fields of a table's footer.
struct Table {
    bytes: Vec<u8>,
    table: u32,
    root: u32,
    levels: u8,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

impl Table {
    fn of(path: &Path) -> Table {
        let bytes = std::fs::read(path).expect("a table");
        let footer = &bytes[bytes.len() - UNIT..];
        assert_eq!(&footer[18..24], b"FBYKVT", "the footer is where FORMAT.md of forebay-kv says");
        let (table, root) = (u32_at(footer, 4), u32_at(footer, 34));
        let levels = footer[78];
        Table { bytes, table, root, levels }
    }

    fn descent(&self, key: &[u8]) -> Descent {
        Descent { table: self.table, position: self.root, level: self.levels, key: key.to_vec() }
    }

    fn range(&self, low: &[u8], high: &[u8]) -> TableRange {
        let (low, high) = (low.to_vec(), high.to_vec());
        TableRange { table: self.table, position: self.root, level: self.levels, low, high }
    }

    /// Returns the keys of a leaf, in order.
    fn keys(leaf: &[u8]) -> Vec<Vec<u8>> {
        let short = |at: usize| usize::from(u16::from_le_bytes([leaf[at], leaf[at + 1]]));
        let (count, first) = (short(14), short(18));
        let prefix = &leaf[18 + 4 * count..first];
        let key = |record: usize| {
            let (begin, len) = (short(18 + 4 * record), short(20 + 4 * record) & 0x7fff);
            [prefix, &leaf[begin..begin + len]].concat()
        };
        (0..count).map(key).collect()
    }
}

/// Loads keys into a store, and returns its largest table.
fn table(engine: &Engine, dir: &Path, keys: &[Vec<u8>]) -> PathBuf {
    let store = Store::open(engine, dir, forebay_kv::Options::new().memory_bytes_max(16 << 20))
        .wait()
        .expect("a store");
    let entries: Vec<_> = keys.iter().map(|key| (key.clone(), vec![7_u8; 100])).collect();
    store.default_keyspace().bulk_load(entries).wait().expect("the keys are in order");
    store.close().wait().expect("all is written");
    let mut tables = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the store") {
            let path = entry.expect("a name").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "fkv") {
                tables.push(path);
            }
        }
    }
    let len = |path: &PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    tables.into_iter().max_by_key(len).expect("a table")
}

fn number_keys(count: u64) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = (0..count).map(|n| format!("user{:016x}", mix(n)).into_bytes()).collect();
    keys.sort();
    keys
}

/// Returns keys of many lengths, some of which are prefixes of others.
fn mixed_keys() -> Vec<Vec<u8>> {
    let mut mixed: Vec<Vec<u8>> = (0..6000_u64)
        .map(|n| {
            let len = mix(n) % 60 + 1;
            (0..len).map(|at| (mix(n * 100 + at) % 3) as u8 + 250 * u8::from(at % 7 == 3) % 255).collect()
        })
        .collect();
    mixed.sort();
    mixed.dedup();
    mixed
}

#[test]
fn every_key_leads_to_its_leaf() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    for (name, keys) in [("numbers", number_keys(20_000)), ("mixed", mixed_keys())] {
        let path = table(&engine, &dir.path().join(name), &keys);
        let of_file = Table::of(&path);
        assert!(of_file.levels >= 1, "{name} has inner nodes");
        let file = engine.open(&path, Open::read()).wait().expect("a table");
        for (kind, walk) in engines(&engine, &file, || TableDescent, Options::new()) {
            let asked: Vec<Descent> = keys.iter().step_by(7).map(|key| of_file.descent(key)).collect();
            for (descent, leaf) in asked.iter().zip(walk.walk_many(&asked).wait().expect("not on a shard")) {
                let leaf = leaf.unwrap_or_else(|error| panic!("{kind}, {name}, {:?}: {error}", descent.key));
                assert!(Table::keys(&leaf.bytes).contains(&descent.key), "{kind}, {name}, {:?}", descent.key);
            }
            // Absent keys lead to the leaf where they would be.
            for key in [&b"\0"[..], b"user", b"user8", b"userzzzz", b"zzz", b"user80000000000000001", b""] {
                let leaf = walk.walk(&of_file.descent(key)).wait().expect("a leaf").bytes;
                let (first, last) = (keys.first().expect("a key"), keys.last().expect("a key"));
                let of_leaf = Table::keys(&leaf);
                if key >= &first[..] && key <= &last[..] {
                    let before = keys.iter().rev().find(|other| &other[..] <= key).expect("the first");
                    let after = keys.iter().find(|other| &other[..] >= key).expect("the last");
                    assert!(of_leaf.contains(before) || of_leaf.contains(after), "{kind}, {name}, {key:?}");
                }
            }
            let long = of_file.descent(&[1; 129]);
            assert!(
                matches!(walk.walk(&long).wait(), Err(Error::Failed { code: TABLE_DAMAGED, .. })),
                "{kind}"
            );
        }
    }
}

/// Returns a bound for a range: a key that exists, or one next to it.
fn bound(key: &[u8], luck: u64) -> Vec<u8> {
    let mut key = key.to_vec();
    match luck % 5 {
        0 => key.push(0),
        1 => key.truncate(key.len() / 2),
        2 => key.last_mut().map_or((), |byte| *byte = byte.wrapping_add(1)),
        _ => {}
    }
    key
}

#[test]
fn ranges_are_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    for (name, keys) in [("numbers", number_keys(8_000)), ("mixed", mixed_keys())] {
        let path = table(&engine, &dir.path().join(name), &keys);
        let of_file = Table::of(&path);
        let file = engine.open(&path, Open::read()).wait().expect("a table");
        let mut ranges: Vec<(Vec<u8>, Vec<u8>)> = vec![
            (vec![], vec![]),
            (vec![], vec![255; 64]),
            (vec![255; 64], vec![255; 64]),
            (keys[10].clone(), keys[10].clone()),
            (keys[100].clone(), keys[10].clone()),
            (vec![], keys[0].clone()),
            (keys[keys.len() - 1].clone(), vec![255; 64]),
        ];
        for round in 0..100 {
            // From a few records to more than 16 leaves have.
            let low = mix(round) as usize % keys.len();
            let high = (low + (mix(round + 1000) % (1 << (round % 12))) as usize).min(keys.len() - 1);
            ranges.push((bound(&keys[low], mix(round)), bound(&keys[high], mix(round * 7))));
        }
        let asked: Vec<TableRange> = ranges.iter().map(|(low, high)| of_file.range(low, high)).collect();
        for (kind, walk) in engines(&engine, &file, || TableCount, Options::new()) {
            let (mut whole, mut cut) = (0, 0);
            for (range, counted) in asked.iter().zip(walk.walk_many(&asked).wait().expect("not on a shard")) {
                let counted = counted.unwrap_or_else(|error| panic!("{kind}, {name}, {range:?}: {error}"));
                let wanted =
                    keys.iter().filter(|key| **key >= range.low && **key < range.high).count() as u64;
                if counted.is_whole {
                    assert_eq!(counted.found, wanted, "{kind}, {name}, {range:?}, {counted:?}")
                } else {
                    assert!(counted.found <= wanted, "{kind}, {name}, {range:?}, {counted:?}")
                }
                assert!(counted.leaves <= 16, "{kind}, {name}, {counted:?}");
                if counted.is_whole && wanted > 0 {
                    whole += 1
                } else if wanted > 0 {
                    cut += 1
                }
            }
            assert!(whole > 50 && cut > 2, "{kind}, {name}: {whole} whole, {cut} cut");
            let long = of_file.range(&[1; 65], &[2; 3]);
            let told = walk.walk(&long).wait();
            assert!(matches!(told, Err(Error::Failed { code: TABLE_DAMAGED, .. })), "{kind}");
        }
    }
}

#[test]
fn damaged_nodes_are_told_alike_and_harm_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let keys = number_keys(20_000);
    let path = table(&engine, &dir.path().join("store"), &keys);
    let whole = Table::of(&path);
    let root = whole.root as usize * UNIT;
    // Many roots in one file, each damaged in its own way and with its own place in its header.
    let mut bytes = whole.bytes.clone();
    let damaged = bytes.len() / UNIT;
    for round in 0..400_u64 {
        let mut node = whole.bytes[root..root + UNIT].to_vec();
        node[8..12].copy_from_slice(&((damaged as u64 + round) as u32).to_le_bytes());
        for change in 0..mix(round) % 3 + 1 {
            let luck = mix(round * 10 + change);
            let at = if luck.is_multiple_of(2) { 12 + luck / 2 % 30 } else { 12 + luck / 2 % 4000 };
            node[at as usize] = (luck >> 40) as u8;
        }
        bytes.extend(node);
    }
    let larger = bytes.len() / UNIT;
    let mut node = whole.bytes[root..root + UNIT].to_vec();
    node[8..12].copy_from_slice(&(larger as u32).to_le_bytes());
    let short = |at: usize| usize::from(u16::from_le_bytes([node[at], node[at + 1]]));
    let places: Vec<usize> =
        (0..short(14)).map(|record| short(18 + 4 * record) + (short(20 + 4 * record) & 0x7fff)).collect();
    for place in places {
        node[place + 7] = 3;
    }
    bytes.extend(node);
    let path = dir.path().join("damaged");
    std::fs::write(&path, &bytes).expect("the directory takes files");
    let file = engine.open(&path, Open::read()).wait().expect("a file that was just written");
    let mut answers: Vec<Vec<String>> = Vec::new();
    for (kind, walk) in engines(&engine, &file, || TableDescent, Options::new()) {
        let asked: Vec<Descent> = (0..400)
            .map(|round| Descent { position: (damaged + round) as u32, ..whole.descent(&keys[round * 40]) })
            .collect();
        let told: Vec<String> =
            walk.walk_many(&asked).wait().expect("not on a shard").into_iter().map(told).collect();
        answers.push(told);
        let descent = Descent { position: larger as u32, ..whole.descent(&keys[5]) };
        assert!(
            matches!(walk.walk(&descent).wait(), Err(Error::Failed { code: TABLE_LARGER, .. })),
            "{kind}"
        );
        let other = Descent { table: whole.table + 1, ..whole.descent(&keys[5]) };
        assert!(matches!(walk.walk(&other).wait(), Err(Error::Failed { code: TABLE_DAMAGED, .. })), "{kind}");
    }
    // Chance decides which of several bad leaves completes first, so of a failure only the reason is compared.
    let mut counts: Vec<Vec<String>> = Vec::new();
    for (kind, walk) in engines(&engine, &file, || TableCount, Options::new()) {
        let asked: Vec<TableRange> = (0..200)
            .map(|round| TableRange {
                position: (damaged + round) as u32,
                ..whole.range(&keys[round * 40], &keys[round * 40 + 300])
            })
            .collect();
        let told =
            walk.walk_many(&asked).wait().expect("not on a shard").into_iter().map(|told| match told {
                Err(Error::Failed { code, .. }) => format!("failed: {code}"),
                Err(_) => "another failure".to_owned(),
                Ok(counted) => format!("{counted:?}"),
            });
        counts.push(told.collect());
        let range = TableRange { position: larger as u32, ..whole.range(&keys[5], &keys[9]) };
        let told = walk.walk(&range).wait();
        assert!(matches!(told, Err(Error::Failed { code: TABLE_LARGER, .. })), "{kind}");
    }
    let failed = counts[0].iter().filter(|answer| answer.contains("fail")).count();
    assert!((25..200).contains(&failed), "{failed} of 200 counts failed");
    for other in &counts[1..] {
        assert_eq!(&counts[0], other);
    }
    let failed = answers[0].iter().filter(|answer| answer.starts_with("Failed")).count();
    assert!((50..400).contains(&failed), "{failed} of 400 failed");
    for other in &answers[1..] {
        for (round, (one, other)) in answers[0].iter().zip(other).enumerate() {
            assert_eq!(one, other, "round {round}");
        }
    }
}
