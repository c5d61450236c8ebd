use std::sync::atomic::Ordering;

use super::*;

/// Runs a future, as `futures::executor` does.
fn run<T>(future: impl Future<Output = T>) -> T {
    futures::executor::block_on(future)
}

#[test]
fn what_cannot_be_a_table_is_refused_and_leaves_nothing() {
    let (engine, dir) = scene();
    let path = dir.path().join("00000001.fkv");
    run(async {
        for leaf_bytes in [0, 512, 4097, 36864] {
            let refused = TableWriter::create(&engine, &path, spec(1, leaf_bytes)).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
            assert!(!path.exists());
        }
        let empty = TableWriter::create(&engine, &path, spec(1, 4096)).await.unwrap();
        assert_eq!(empty.finish().await.unwrap_err().kind(), ErrorKind::InvalidInput);
        std::fs::remove_file(&path).unwrap();

        let mut writer = TableWriter::create(&engine, &path, spec(1, 4096)).await.unwrap();
        let value = Entry::Value { bytes: b"1", expires_s: None };
        writer.add(b"b", value).await.unwrap();
        let long = vec![9; KEY_BYTES_MAX + 1];
        for (key, kind) in [
            (&b""[..], ErrorKind::InvalidInput),
            (b"a", ErrorKind::InvalidInput),
            (b"b", ErrorKind::InvalidInput),
            (&long, ErrorKind::TooLarge { limit: KEY_BYTES_MAX }),
        ] {
            assert_eq!(writer.add(key, value).await.unwrap_err().kind(), kind);
        }
        let bytes = vec![0; VALUE_BYTES_MAX + 1];
        let refused = writer.add(b"c", Entry::Value { bytes: &bytes, expires_s: None }).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge { limit: VALUE_BYTES_MAX });
        let second = TableWriter::create(&engine, &path, spec(1, 4096)).await;
        assert!(second.is_err() && path.exists());
        writer.abandon().await.unwrap();
        assert!(!path.exists());
    });
}

#[test]
fn one_entry_is_a_table() {
    let (engine, dir) = scene();
    let path = dir.path().join("00000001.fkv");
    run(async {
        let mut model = Model::new();
        model.insert(b"key".to_vec(), Some((Vec::new(), None)));
        let meta = write(&engine, &path, spec(1, 4096), &model).await.unwrap();
        assert_eq!((meta.bytes, &*meta.smallest, &*meta.largest), (4 * 4096, &b"key"[..], &b"key"[..]));
        for cache in caches() {
            let table = open(&engine, &path, &meta, &cache).await.unwrap();
            table.verify(Class::DEFAULT).await.unwrap();
            assert_gets(&table, &model, &mut Random(1)).await;
            cursors::assert_cursors(&table, &model, &mut Random(1)).await;
        }
        let unit = engine.open(&path, forebay::Open::read()).await.unwrap().read(0..4096).await.unwrap();
        assert_eq!(read_header(&unit, 1), HeaderFound::Ours { version: 1, keyspace: 3, leaf_bytes: 4096 });
        assert_eq!(read_header(&unit, 2), HeaderFound::Foreign);
        assert_eq!(read_header(&unit[..100], 1), HeaderFound::Foreign);
        assert_eq!(read_header(&[], 1), HeaderFound::Empty);
    });
}

#[test]
fn a_hundred_thousand_entries_take_two_percent_more_than_they_have() {
    let (engine, dir) = scene();
    for (id, random_keys) in [(1, false), (2, true)] {
        let path = dir.path().join(format!("{id:08}.fkv"));
        run(async {
            let mut random = Random(8);
            let mut keys: Vec<[u8; 16]> = (0..100_000u64)
                .map(|number| {
                    let first = if random_keys { random.word() } else { number };
                    std::array::from_fn(
                        |index| if index < 8 { first.to_be_bytes()[index] } else { index as u8 },
                    )
                })
                .collect();
            keys.sort();
            let value = random.bytes(1000);
            let mut writer = TableWriter::create(&engine, &path, TableSpec::new(id, 3)).await.unwrap();
            for key in &keys {
                writer.add(key, Entry::Value { bytes: &value, expires_s: None }).await.unwrap();
            }
            let expected = writer.bytes();
            assert!(writer.memory_bytes() < 4 << 20, "{} bytes of memory", writer.memory_bytes());
            let meta = writer.finish().await.unwrap();
            assert!(meta.bytes.abs_diff(expected) < 64 << 10, "{expected} expected, {} written", meta.bytes);
            let ratio = meta.bytes as f64 / (keys.len() * 1016) as f64;
            assert!(ratio <= if random_keys { 1.03 } else { 1.02 }, "{ratio}");
            let cache = Cache::new(4 << 20, 2 << 20);
            let table = open(&engine, &path, &meta, &cache).await.unwrap();
            for key in keys.iter().step_by(997) {
                assert_eq!(found(table.get(key, HOW).await.unwrap()), Some(Some(value.clone())));
                // The blocks read before are in memory now.
                assert!(matches!(table.get_cached(key, HOW), Ok(Probe::Done(Some(Hit::Value(_))))));
                let absent = [&key[..], b"x"].concat();
                assert_eq!(table.get(&absent, HOW).await.unwrap(), None);
            }
            assert_eq!(table.verify(Class::DEFAULT).await.unwrap().entries, 100_000);
        });
    }
}

#[test]
fn long_keys_and_long_values_are_kept() {
    let (engine, dir) = scene();
    run(async {
        let mut random = Random(77);
        let mut model = Model::new();
        let stem = random.bytes(KEY_BYTES_MAX as u64);
        for number in 0..60u64 {
            // Keys that differ early, late, and at the very end, alone and with a long common prefix.
            let mut key = stem.clone();
            key[[0, 5, 8000, KEY_BYTES_MAX - 1][number as usize % 4]] ^= number as u8 + 1;
            key.truncate([KEY_BYTES_MAX, 16_000, 9000][number as usize % 3]);
            let len = [0, 1, 1023, 1024, 1025, 4096, 8192, 8193, 70_000, 300_000][number as usize % 10];
            model.insert(key, Some((random.bytes(len), (number % 7 == 0).then_some(NOW_S + 1))));
        }
        model.insert(b"long".to_vec(), Some((random.bytes(VALUE_BYTES_MAX as u64), None)));
        model.insert(b"longer".to_vec(), Some((random.bytes(VALUE_BYTES_MAX as u64 - 1), None)));
        for leaf_bytes in [4096, 32768] {
            let path = dir.path().join(format!("{leaf_bytes:08}.fkv"));
            let meta = write(&engine, &path, spec(leaf_bytes, leaf_bytes), &model).await.unwrap();
            for cache in caches() {
                let table = open(&engine, &path, &meta, &cache).await.unwrap();
                table.verify(Class::DEFAULT).await.unwrap();
                assert_gets(&table, &model, &mut random).await;
                let mut cursor = table.cursor(CursorHow::merge());
                for key in model.keys() {
                    assert!(cursor.next().await.unwrap());
                    assert!(cursor.key() == &key[..]);
                }
            }
        }
    });
}

#[test]
fn a_retired_table_is_put_up_for_removal_when_its_last_holder_is_gone() {
    let (engine, dir) = scene();
    let path = dir.path().join("00000001.fkv");
    run(async {
        let model = model(&mut Random(4), 10, 10, 10);
        let meta = write(&engine, &path, spec(1, 4096), &model).await.unwrap();
        let cache = Cache::new(1 << 20, 1 << 20);
        let rung = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let bell = rung.clone();
        cache.removals().on_push(move || {
            bell.fetch_add(1, Ordering::SeqCst);
        });
        drop(open(&engine, &path, &meta, &cache).await.unwrap());
        let table = open(&engine, &path, &meta, &cache).await.unwrap();
        let cursor = table.cursor(CursorHow::merge());
        table.retire();
        drop(table);
        assert!(cache.removals().take().is_empty() && rung.load(Ordering::SeqCst) == 0);
        drop(cursor);
        assert_eq!((cache.removals().take(), rung.load(Ordering::SeqCst)), (vec![path.clone()], 1));
        assert!(cache.removals().take().is_empty());
    });
}

#[test]
fn values_count_as_held_while_they_are_kept() {
    let (engine, dir) = scene();
    let path = dir.path().join("00000001.fkv");
    run(async {
        let mut model = Model::new();
        model.insert(b"a".to_vec(), Some((vec![1; 900], None)));
        model.insert(b"b".to_vec(), Some((vec![2; 5000], None)));
        let meta = write(&engine, &path, spec(1, 4096), &model).await.unwrap();
        let cache = Cache::new(1 << 20, 1 << 20);
        let table = open(&engine, &path, &meta, &cache).await.unwrap();
        let Some(Hit::Value(value)) = table.get(b"a", HOW).await.unwrap() else { panic!("not found") };
        assert_eq!((value.held_bytes(), cache.held().get()), (4096, 4096));
        let again = value.clone();
        assert_eq!(cache.held().get(), 8192);
        let bytes = bytes::Bytes::from(value);
        assert_eq!((&bytes[..], cache.held().get()), (&[1; 900][..], 8192));
        drop((bytes, again));
        assert_eq!(cache.held().get(), 0);
        let Some(Hit::Value(value)) = table.get(b"b", HOW).await.unwrap() else { panic!("not found") };
        assert!(value.held_bytes() >= 8192 && value == [2; 5000]);
    });
}
