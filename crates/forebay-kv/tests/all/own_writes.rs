//! A writer reads its own writes. Records are inserted into the memtable outside of the commit section, by the first writer to
//! arrive, so a put may be durable before another thread inserts it.

use crate::common;

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_kv::{Options, Store, SwapOutcome};

const THREADS: u64 = 16;
const PUTS: u64 = 300;

#[test]
fn every_thread_reads_what_it_has_put() -> Result<(), Box<dyn std::error::Error>> {
    let dir = common::dir();
    let engine = common::engine();
    // Small memtables, so that they are sealed with records that still have to be inserted.
    let options = || Options::new().memory_bytes_max(16 << 20).memtable_bytes(64 << 10);
    let store = Store::open(&engine, dir.path(), options()).wait()?;
    let keyspace = store.default_keyspace();
    let missing = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (keyspace, missing) = (&keyspace, &missing);
            scope.spawn(move || {
                for number in 0..PUTS {
                    let key = (thread << 32 | number).to_be_bytes();
                    keyspace.put(key, number.to_string()).wait().expect("the put");
                    let found = keyspace.get(&key).wait().expect("the get");
                    let is_there = found.as_deref() == Some(number.to_string().as_bytes());
                    missing.fetch_add(u64::from(!is_there), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(missing.into_inner(), 0, "puts returned before reads saw them");
    store.close().wait()?;

    let store = Store::open(&engine, dir.path(), options()).wait()?;
    let mut range = store.default_keyspace().range::<&[u8]>(..);
    let mut entries = 0;
    while let Some(entry) = range.next().wait() {
        entry?;
        entries += 1;
    }
    assert_eq!(entries, THREADS * PUTS, "each put is in a table or in the log");
    drop(range);
    store.close().wait()?;
    Ok(())
}

#[test]
fn no_increment_is_lost_beside_puts() -> Result<(), Box<dyn std::error::Error>> {
    const ADDED: u64 = 60;
    let dir = common::dir();
    let engine = common::engine();
    let options = Options::new().memory_bytes_max(16 << 20).memtable_bytes(64 << 10);
    let store = Store::open(&engine, dir.path(), options).wait()?;
    let keyspace = store.default_keyspace();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let keyspace = &keyspace;
            scope.spawn(move || {
                for number in 0..ADDED {
                    if thread % 2 == 0 {
                        keyspace.put((thread << 32 | number).to_be_bytes(), "x").wait().expect("the put");
                        continue;
                    }
                    let mut before: Option<u64> = None;
                    loop {
                        let expected = before.map(u64::to_le_bytes);
                        let next = (before.unwrap_or(0) + 1).to_le_bytes();
                        let expected = expected.as_ref().map(|bytes| &bytes[..]);
                        match keyspace.compare_and_set("sum", expected, Some(&next)).wait().expect("the swap")
                        {
                            SwapOutcome::Done => break,
                            SwapOutcome::Not { current } => {
                                let current = current.expect("the sum only grows");
                                before = Some(u64::from_le_bytes(current[..].try_into().expect("8 bytes")));
                            }
                        }
                    }
                }
            });
        }
    });
    let sum = keyspace.get("sum").wait()?.expect("it was made");
    assert_eq!(u64::from_le_bytes(sum[..].try_into()?), THREADS / 2 * ADDED);
    store.close().wait()?;
    Ok(())
}
