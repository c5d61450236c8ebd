use super::*;

type Value = Option<(Vec<u8>, Option<u64>)>;

fn assert_at(cursor: &Cursor, key: &[u8], value: &Value) {
    assert_eq!(cursor.key(), key);
    match (cursor.entry().unwrap(), value) {
        (Entry::Deleted, None) => assert!(cursor.value().is_none()),
        (Entry::Value { bytes, expires_s }, Some((expected, time))) => {
            assert!(bytes == expected && expires_s == *time);
            assert!(cursor.value().unwrap() == expected[..]);
        }
        (entry, _) => panic!("{entry:?} at {key:?}"),
    }
}

async fn assert_rest<'m>(cursor: &mut Cursor, rest: impl Iterator<Item = (&'m Vec<u8>, &'m Value)>) {
    for (key, value) in rest {
        assert!(cursor.next().await.unwrap(), "nothing where {key:?} should be");
        assert_at(cursor, key, value);
    }
    assert!(!cursor.next().await.unwrap() && !cursor.next().await.unwrap());
    assert!(cursor.key().is_empty() && cursor.entry().is_none());
}

/// Asserts that cursors of all kinds, and seeks from everywhere, return the model's entries.
pub(super) async fn assert_cursors(table: &Arc<Table>, model: &Model, random: &mut Random) {
    for how in [
        CursorHow::merge(),
        CursorHow::range(Direction::Forward),
        CursorHow { read_bytes_max: 16 << 10, reads_max: 5, ..CursorHow::range(Direction::Forward) },
    ] {
        let mut cursor = table.cursor(how);
        assert!(cursor.entry().is_none());
        assert_rest(&mut cursor, model.iter()).await;
    }
    let mut forward = table.cursor(CursorHow::range(Direction::Forward));
    let mut backward = table.cursor(CursorHow::range(Direction::Backward));
    assert_rest(&mut backward, model.iter().rev()).await;
    for round in 0..60 {
        let mut key = match random.below(2) {
            0 => model.keys().nth(random.below(model.len() as u64) as usize).unwrap().clone(),
            _ => random.bytes(2),
        };
        match random.below(4) {
            0 => key.push(0),
            1 => key.truncate(1),
            _ => {}
        }
        let many = if round % 20 == 0 { usize::MAX } else { 4 };
        forward.seek(&key).await.unwrap();
        for (key, value) in model.range(key.clone()..).take(many) {
            assert!(forward.next().await.unwrap());
            assert_at(&forward, key, value);
        }
        backward.seek(&key).await.unwrap();
        for (key, value) in model.range(..=key.clone()).rev().take(many) {
            assert!(backward.next().await.unwrap());
            assert_at(&backward, key, value);
        }
    }
    forward.seek(&[255; 50]).await.unwrap();
    assert_rest(&mut forward, std::iter::empty()).await;
    backward.seek(b"").await.unwrap();
    assert_rest(&mut backward, std::iter::empty()).await;
}

/// Dropping a future of `next` at any point leaves the cursor at its entry.
#[test]
fn a_dropped_next_moves_nothing() {
    let mut world = forebay_sim::World::new(11);
    let program = async |engine: Engine| {
        let model = model(&mut Random(5), 1500, 20, 9000);
        let meta = write(&engine, Path::new("/00000001.fkv"), spec(1, 4096), &model).await?;
        let table = open(&engine, Path::new("/00000001.fkv"), &meta, &Cache::new(0, 0)).await?;
        for direction in [Direction::Forward, Direction::Backward] {
            let how = CursorHow { read_bytes_max: 4096, cache: false, ..CursorHow::range(direction) };
            let mut cursor = table.cursor(how);
            let mut keys: Vec<_> = model.keys().collect();
            if direction == Direction::Backward {
                keys.reverse();
            }
            let mut dropped = 0;
            for (index, key) in keys.into_iter().enumerate() {
                while forebay_sim::dropped_after(1 + (index + dropped) % 3, cursor.next()).await.is_none() {
                    dropped += 1;
                }
                assert_eq!(cursor.key(), &key[..]);
            }
            assert!(dropped > 20, "only {dropped} were dropped");
        }
        Ok::<_, Error>(())
    };
    world.run(program).unwrap().unwrap();
}

/// Long separators make a high tree of few leaves, with inner nodes of several units.
#[test]
fn a_high_tree_is_gone_through_both_ways() {
    let (engine, dir) = scene();
    let path = dir.path().join("00000001.fkv");
    futures::executor::block_on(async {
        let mut random = Random(31);
        let mut model = Model::new();
        for number in 0..120u64 {
            let stem = [random.bytes(4), vec![5; 1500 + 40 * number as usize]].concat();
            for last in 0..4 {
                model.insert([&stem[..], &[last]].concat(), Some((random.bytes(700), None)));
            }
        }
        let meta = write(&engine, &path, spec(1, 4096), &model).await.unwrap();
        for cache in caches() {
            let table = open(&engine, &path, &meta, &cache).await.unwrap();
            assert!(table.footer.levels >= 3, "{} levels", table.footer.levels);
            table.verify(Class::DEFAULT).await.unwrap();
            assert_gets(&table, &model, &mut random).await;
            assert_cursors(&table, &model, &mut random).await;
        }
    });
}
