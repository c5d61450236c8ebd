use std::os::unix::fs::FileExt;

use super::*;
use crate::node::UNIT;

/// Asserts that lookups return the model's entries or an error that names the file and a place in it.
async fn assert_right_or_error(engine: &Engine, path: &Path, meta: &TableMeta, model: &Model) -> usize {
    let cache = Cache::new(1 << 20, 0);
    let blame = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        assert_eq!(error.path(), Some(path), "{error}");
        assert!(error.offset().is_some(), "{error}");
    };
    let table = match open(engine, path, meta, &cache).await {
        Ok(table) => table,
        Err(error) => {
            blame(error);
            return 1;
        }
    };
    let mut errors = 0;
    for key in model.keys() {
        match table.get(key, HOW).await {
            Ok(got) => assert!(found(got) == expected(model, key), "a wrong answer for {key:?}"),
            Err(error) => {
                blame(error);
                errors += 1;
            }
        }
    }
    let mut cursor = table.cursor(CursorHow::merge());
    let mut expected = model.iter();
    loop {
        match cursor.next().await {
            Ok(true) => {
                let (key, value) = expected.next().unwrap();
                assert_eq!(cursor.key(), &key[..]);
                match (cursor.entry().unwrap(), value) {
                    (Entry::Deleted, None) => {}
                    (Entry::Value { bytes, .. }, Some((expected, _))) => assert!(bytes == expected),
                    _ => panic!("a wrong entry"),
                }
            }
            Ok(false) => {
                assert!(expected.next().is_none());
                break;
            }
            Err(error) => {
                blame(error);
                errors += 1;
                break;
            }
        }
    }
    let verified = table.verify(Class::DEFAULT).await;
    if let Err(error) = verified {
        blame(error);
        errors += 1;
    } else {
        assert_eq!(errors, 0, "verify found nothing, but others did");
    }
    errors
}

/// A table with blobs, three levels and several partitions of the filter would be large: this table has blobs and two levels.
fn small(random: &mut Random) -> Model {
    let mut model = model(random, 90, 20, 300);
    for number in 0..4u8 {
        model.insert(vec![100, number], Some((random.bytes(2000 + 700 * u64::from(number)), None)));
    }
    model
}

/// Damages every page of a table in several ways, one after the other, and asserts that lookups, cursors and
/// a verification notice it. `spec` is the table's.
pub(super) async fn assert_every_page_matters(
    engine: &Engine,
    path: &Path,
    spec: TableSpec,
    model: &Model,
    random: &mut Random,
) {
    let meta = write(engine, path, spec.clone(), model).await.unwrap();
    let mut strange = model.clone();
    for value in strange.values_mut() {
        *value = value.take().map(|(bytes, time)| (bytes.iter().map(|byte| !byte).collect(), time));
    }
    let other = path.with_extension("other");
    write(engine, &other, TableSpec { id: 2, ..spec }, &strange).await.unwrap();
    let (right, wrong) = (std::fs::read(path).unwrap(), std::fs::read(&other).unwrap());
    assert_eq!(assert_right_or_error(engine, path, &meta, model).await, 0);
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let units = right.len() / UNIT;
    assert!(units > 8 && units.abs_diff(wrong.len() / UNIT) < 3);
    for unit in 0..units {
        let at = unit * UNIT;
        let page = right[at..at + UNIT].to_vec();
        let foreign = wrong.get(at..at + UNIT).unwrap_or(&wrong[..UNIT]).to_vec();
        let mut damages = vec![vec![0; UNIT], foreign];
        damages.push(right[(unit + 1) % units * UNIT..][..UNIT].to_vec());
        for _ in 0..12 {
            let mut flipped = page.clone();
            // Mostly within the data.
            let byte = if random.below(2) == 0 { random.below(200) } else { random.below(UNIT as u64) };
            flipped[byte as usize] ^= 1 << random.below(8);
            damages.push(flipped);
        }
        for (number, damaged) in damages.into_iter().enumerate() {
            file.write_all_at(&damaged, at as u64).unwrap();
            let errors = assert_right_or_error(engine, path, &meta, model).await;
            // A bit in the zeros behind a blob belongs to no part.
            assert!(errors > 0 || number > 2, "damage {number} of unit {unit} was not noticed");
            file.write_all_at(&page, at as u64).unwrap();
        }
    }
    assert_eq!(assert_right_or_error(engine, path, &meta, model).await, 0);
}

#[test]
fn damage_is_an_error_that_names_the_place_and_never_a_wrong_value() {
    let (engine, dir) = scene();
    let path = dir.path().join("00000001.fkv");
    let mut random = Random(21);
    let model = small(&mut random);
    let damaged = assert_every_page_matters(&engine, &path, spec(1, 4096), &model, &mut random);
    futures::executor::block_on(damaged);
}

#[test]
fn a_table_that_is_gone_cut_or_of_another_version_is_told_apart() {
    let (engine, dir) = scene();
    let path = dir.path().join("00000001.fkv");
    futures::executor::block_on(async {
        let model = small(&mut Random(3));
        let meta = write(&engine, &path, spec(1, 4096), &model).await.unwrap();
        let right = std::fs::read(&path).unwrap();
        let cache = Cache::new(1 << 20, 1 << 20);
        let open_error = async |meta: &TableMeta| open(&engine, &path, meta, &cache).await.unwrap_err();

        std::fs::remove_file(&path).unwrap();
        assert_eq!(open_error(&meta).await.kind(), ErrorKind::MissingTable);
        for len in [0, 4096, right.len() - 4096, right.len() - 1] {
            std::fs::write(&path, &right[..len]).unwrap();
            let error = open_error(&meta).await;
            assert_eq!((error.kind(), error.path()), (ErrorKind::MissingTable, Some(&*path)));
        }
        let mut newer = right.clone();
        let footer = newer.len() - UNIT;
        newer[footer + 24] = 4;
        let position = (footer / UNIT) as u32;
        let identity = Identity { table: 1, position, level: crate::node::FOOTER };
        crate::node::seal(&mut newer[footer..], identity);
        std::fs::write(&path, &newer).unwrap();
        assert_eq!(open_error(&meta).await.kind(), ErrorKind::Version { found: 4 });

        std::fs::write(&path, &right).unwrap();
        for meta in [
            TableMeta { number: 2, ..meta.clone() },
            TableMeta { keyspace: 4, ..meta.clone() },
            TableMeta { entries: 5, ..meta.clone() },
        ] {
            assert_eq!(open_error(&meta).await.kind(), ErrorKind::Corruption);
        }
        let table = open(&engine, &path, &meta, &cache).await.unwrap();
        // The file is cut while the table is open.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let error = table.get(&meta.smallest, HOW).await.unwrap_err();
        assert_eq!((error.kind(), error.offset().is_some()), (ErrorKind::Corruption, true));
        assert!(error.to_string().contains("00000001.fkv at byte"), "{error}");
    });
}

/// A node that was written wrongly, with a right checksum: its children's places are invalid.
#[test]
fn children_outside_of_their_level_are_not_followed() {
    let (engine, dir) = scene();
    let path = dir.path().join("00000001.fkv");
    futures::executor::block_on(async {
        let model = model(&mut Random(6), 300, 20, 300);
        let meta = write(&engine, &path, spec(1, 4096), &model).await.unwrap();
        let right = std::fs::read(&path).unwrap();
        let cache = Cache::new(0, 0);
        let table = open(&engine, &path, &meta, &cache).await.unwrap();
        assert_eq!(table.footer.levels, 1);
        let root = table.footer.root;
        for position in [0, root.position, root.position + 1, table.footer.position, u32::MAX] {
            let mut builder = crate::node::Builder::default();
            let child = Child { position, units: 1 };
            builder.push(b"", crate::node::build::Content::Child(child));
            let mut node = vec![0; UNIT];
            assert!(builder.finish(&mut node, Identity { table: 1, position: root.position, level: 1 }));
            let mut wrong = right.clone();
            wrong[root.offset() as usize..][..UNIT].copy_from_slice(&node);
            std::fs::write(&path, &wrong).unwrap();
            let error = table.get(&meta.largest, HOW).await.unwrap_err();
            assert_eq!((error.kind(), error.offset()), (ErrorKind::Corruption, Some(root.offset())));
            assert!(table.verify(Class::DEFAULT).await.is_err());
        }
    });
}
