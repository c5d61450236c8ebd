//! The program of the example `hash_chain`, for a layout that the crate itself does not know: the same results on every engine, for
//! whole and damaged tables.

#[path = "../../examples/hash_chain/planted.rs"]
mod planted;
#[path = "../../examples/hash_chain/table.rs"]
mod table;

use crate::common::{engine, engines, told};
use forebay::Open;
use forebay_kernel::{EngineKind, Options};
use planted::table_of;
use table::{HashChain, bucket_of};

const BUCKETS: u64 = 4;
/// Three pages for each bucket.
const KEYS: u64 = 2_500;

/// Returns the result of each key's lookup in this file on each engine that is possible here, as text.
fn results(bytes: &[u8], keys: &[u64]) -> Vec<(EngineKind, Vec<String>)> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("table");
    std::fs::write(&path, bytes).expect("the directory takes files");
    std::fs::File::open(&path).and_then(|file| file.sync_all()).expect("and writes them out");
    let engine = engine();
    let file = engine.open(&path, Open::read()).wait().expect("a file that was just written");
    let program = || HashChain { buckets: BUCKETS };
    let all = engines(&engine, &file, program, Options::new());
    let told = all.into_iter().map(|(kind, walk)| {
        let results = walk.walk_many(keys).wait().expect("this is a plain thread");
        assert_eq!(walk.stats().fell_back, 0, "{kind} gave walks to the reactor");
        walk.close();
        (kind, results.into_iter().map(told).collect())
    });
    told.collect()
}

/// Returns a whole table; a key's value is its number turned around.
fn whole() -> Vec<u8> {
    table_of((0..KEYS).map(|key| (key, !key)), BUCKETS)
}

/// Asserts that a lookup in this file has the expected result on each engine.
fn expect(bytes: &[u8], key: u64, expected: &str) {
    for (kind, results) in results(bytes, &[key]) {
        assert_eq!(results, [expected], "{kind}");
    }
}

/// Returns a key of bucket 0 that the table does not have: its lookup reads the whole chain.
fn absent() -> u64 {
    (KEYS..).find(|key| bucket_of(*key, BUCKETS) == 0).expect("every fourth or so")
}

#[test]
fn every_key_has_its_value_and_others_have_none() {
    let keys: Vec<u64> = (0..KEYS + 500).chain([u64::MAX, 1 << 63]).collect();
    for (kind, results) in results(&whole(), &keys) {
        assert_eq!(results.len(), keys.len());
        for (key, result) in keys.iter().zip(&results) {
            let expected = if *key < KEYS { format!("Some({})", !key) } else { "None".to_owned() };
            assert_eq!(*result, expected, "key {key} on {kind}");
        }
    }
}

#[test]
fn an_empty_bucket_is_one_page() {
    let bytes = table_of(std::iter::empty(), BUCKETS);
    assert_eq!(bytes.len() as u64, BUCKETS * 4096);
    expect(&bytes, 7, "None");
}

#[test]
fn a_page_of_another_bucket_fails_the_walk() {
    let mut bytes = whole();
    bytes[8] = 1;
    expect(&bytes, absent(), "Failed { offset: 0, code: 1 }");
}

#[test]
fn too_many_records_fail_the_walk() {
    let mut bytes = whole();
    bytes[12..16].copy_from_slice(&256_u32.to_le_bytes());
    expect(&bytes, absent(), "Failed { offset: 0, code: 1 }");
}

#[test]
fn a_chain_in_a_circle_ends_after_its_hops() {
    let mut bytes = whole();
    let second = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    bytes[second..second + 8].copy_from_slice(&(second as u64).to_le_bytes());
    expect(&bytes, absent(), "TooManyHops { limit: 64 }");
}

#[test]
fn a_chain_that_leaves_the_file_is_an_error() {
    let mut bytes = whole();
    let end = bytes.len() as u64;
    bytes[..8].copy_from_slice(&end.to_le_bytes());
    expect(&bytes, absent(), &format!("UnexpectedEof {{ offset: {end}, got: 0 }}"));
}
