//! Every numeric option of a store, with 0, with 1 and with the largest value. The store opens and works, or
//! the open is refused with a full sentence.

use crate::common::{dir, engine};
use forebay_kv::{ErrorKind, Options, Store};

#[test]
fn every_number_of_the_options_works_or_is_refused_with_a_sentence() {
    type Set = fn(Options, u64) -> Options;
    let settings: [(&str, Set); 9] = [
        ("memory_bytes_max", |options, n| options.memory_bytes_max(n)),
        ("pinned_bytes", |options, n| options.pinned_bytes(n)),
        ("memtable_bytes", |options, n| options.memtable_bytes(n)),
        ("log_segment_bytes", |options, n| options.log_segment_bytes(n)),
        ("reserve_bytes", |options, n| options.reserve_bytes(n)),
        ("leaf_bytes", |options, n| options.leaf_bytes(u32::try_from(n).unwrap_or(u32::MAX))),
        ("separation_bytes", |options, n| options.separation_bytes(u32::try_from(n).unwrap_or(u32::MAX))),
        ("shard", |options, n| options.shard(n as usize)),
        ("store_id", |options, n| options.store_id(n)),
    ];
    let engine = engine();
    for (name, set) in settings {
        for number in [0, 1, u64::MAX] {
            let dir = dir();
            let options = set(Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN), number);
            match Store::open(&engine, dir.path(), options).wait() {
                Ok(store) => {
                    let keyspace = store.default_keyspace();
                    keyspace.put("a", "1").wait().unwrap();
                    store.flush().wait().unwrap();
                    assert_eq!(
                        keyspace.get("a").wait().unwrap().as_deref(),
                        Some(&b"1"[..]),
                        "{name}({number})"
                    );
                    store.close().wait().unwrap();
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}({number}): {error}");
                    let text = error.to_string();
                    assert!(text.contains(name.split('_').next().unwrap()), "{name}({number}): {text}");
                }
            }
        }
    }
}
