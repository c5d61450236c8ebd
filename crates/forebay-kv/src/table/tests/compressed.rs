use super::*;
use crate::node::packed::is_packed;
use crate::node::{UNIT, check};
use crate::options::Compression;

/// Returns every compression that this build has.
fn compressions() -> Vec<Compression> {
    vec![
        Compression::Lz4,
        #[cfg(feature = "zstd")]
        Compression::Zstd(3),
    ]
}

fn spec_of(compression: Compression, leaf_bytes: u32) -> TableSpec {
    TableSpec { compression, ..spec(1, leaf_bytes) }
}

/// Returns bytes that compress to about one in `ratio`; 1 means not at all.
fn text(random: &mut Random, len: u64, ratio: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len as usize {
        let word = random.bytes(32);
        (0..ratio).for_each(|_| bytes.extend_from_slice(&word));
    }
    bytes.truncate(len as usize);
    bytes
}

/// Returns entries of all kinds. How well values compress changes now and then, from one entry to the next,
/// so that leaves are planned too long and too short.
fn mixed(random: &mut Random, entries: u64) -> Model {
    let mut model = Model::new();
    let mut ratio = 1;
    for number in 0..entries {
        if random.below(30) == 0 {
            ratio = [1, 2, 4, 16, 100][random.below(5) as usize];
        }
        let key = format!("{:06}/{}", number, ["a", "some key", ""][number as usize % 3]).into_bytes();
        let expires_s = match random.below(10) {
            0 => Some(random.below(NOW_S)),
            1 => Some(NOW_S + 1 + random.below(NOW_S)),
            _ => None,
        };
        let len = match random.below(40) {
            0 => random.below(90_000),
            1..5 => random.below(5_000),
            _ => random.below(400),
        };
        let value = (random.below(9) > 0).then(|| (text(random, len, ratio), expires_s));
        model.insert(key, value);
    }
    model
}

#[test]
fn a_compressed_table_answers_as_a_map_does() {
    let (engine, dir) = scene();
    let mut all_bytes = (0, 0);
    for (seed, leaf_bytes) in [(1, 4096), (2, 8192), (3, 12288), (4, 32768)] {
        for (number, compression) in compressions().into_iter().enumerate() {
            let dir = dir.path().join(format!("{seed} {number}"));
            std::fs::create_dir(&dir).unwrap();
            let mut random = Random(seed);
            let model = mixed(&mut random, 500);
            let spec = spec_of(compression, leaf_bytes);
            let all = read_in_all_ways(&engine, &dir, spec, &model, &mut random);
            let meta = futures::executor::block_on(all).unwrap();
            let plain = dir.join("00000002.fkv");
            let plain = write(&engine, &plain, spec_of(Compression::None, leaf_bytes), &model);
            let plain = futures::executor::block_on(plain).unwrap();
            assert!(meta.bytes <= plain.bytes, "{} of {} bytes", meta.bytes, plain.bytes);
            all_bytes = (all_bytes.0 + meta.bytes, all_bytes.1 + plain.bytes);
        }
    }
    assert!(all_bytes.0 < all_bytes.1 / 4 * 3, "{all_bytes:?}");
}

#[test]
fn a_compressed_table_answers_as_a_map_does_in_simulated_worlds() {
    for seed in 0..4 {
        let mut world = forebay_sim::World::new(seed);
        let leaf_bytes = [4096, 16384][seed as usize % 2];
        let run = world.run(async move |engine| {
            engine.create_dir("/kv").await?;
            let mut random = Random(seed);
            let model = mixed(&mut random, 300);
            let spec = spec_of(Compression::Lz4, leaf_bytes);
            read_in_all_ways(&engine, Path::new("/kv"), spec, &model, &mut random).await
        });
        run.unwrap().unwrap();
    }
}

/// Returns how many of a table's leaves are packed, and how many are plain, and the most units of one.
fn leaves(path: &Path, table: &Table) -> (usize, usize, u8) {
    let bytes = std::fs::read(path).unwrap();
    let (mut packed, mut plain, mut units, mut at) = (0, 0, 0, 1);
    while at < table.footer.leaf_end {
        let begin = at as usize * UNIT;
        let len = bytes[begin + 13].clamp(1, 9);
        let node = &bytes[begin..begin + usize::from(len) * UNIT];
        at += match check(node, Identity { table: 1, position: at, level: LEAF }) {
            Ok(()) => {
                *(if is_packed(node) { &mut packed } else { &mut plain }) += 1;
                units = units.max(len);
                u32::from(len)
            }
            // A blob.
            Err(_) => 1,
        };
    }
    (packed, plain, units)
}

async fn table_of(
    engine: &Engine,
    path: &Path,
    spec: TableSpec,
    ratio: u64,
    entries: u64,
) -> (TableMeta, Arc<Table>) {
    let mut random = Random(ratio);
    let model: Model = (0..entries)
        .map(|number| (format!("user{number:06}").into_bytes(), Some((text(&mut random, 200, ratio), None))))
        .collect();
    let meta = write(engine, path, spec, &model).await.unwrap();
    let table = open(engine, path, &meta, &Cache::new(64 << 20, 64 << 20)).await.unwrap();
    (meta, table)
}

#[test]
fn leaves_are_as_full_as_their_compression_allows_and_bytes_that_do_not_gain_stay_as_they_are() {
    let (engine, dir) = scene();
    futures::executor::block_on(async {
        let path = |number: u32| dir.path().join(format!("{number:08}.fkv"));
        let plain = table_of(&engine, &path(100), spec(1, 4096), 1, 5000).await.0;
        for (ratio, part) in [(1, 100), (2, 65), (4, 50), (25, 35)] {
            let at = path(ratio as u32);
            let (meta, table) = table_of(&engine, &at, spec_of(Compression::Lz4, 4096), ratio, 5000).await;
            let (packed, others, units) = leaves(&at, &table);
            let all = packed + others;
            let hundredths = meta.bytes * 100 / plain.bytes;
            println!("ratio {ratio}: {hundredths} % of the bytes, {packed} of {all} leaves are packed");
            assert!(hundredths <= part, "ratio {ratio}: {hundredths} % of the bytes");
            assert_eq!(units, 1);
            assert_eq!(table.footer.packing.as_ref().unwrap().codec, Codec::Lz4);
            match ratio {
                // Where the table ends, a leaf may be shorter than others.
                1 => assert_eq!((packed, table.saved_bytes(), table.unpacked_leaf_bytes()), (0, 0, 1)),
                _ => assert!(packed * 100 >= all * 98, "{packed} of {all}"),
            }
            if ratio > 1 {
                assert!((8192..=16384).contains(&table.unpacked_leaf_bytes()));
                let expanded = meta.bytes + table.saved_bytes();
                assert!(expanded.abs_diff(plain.bytes) < plain.bytes / 8, "{expanded} of {}", plain.bytes);
            }
        }
    });
}

#[test]
fn long_leaves_have_fewer_pages() {
    let (engine, dir) = scene();
    futures::executor::block_on(async {
        let path = dir.path().join("00000001.fkv");
        let spec = spec_of(Compression::Lz4, 32 << 10);
        let (_, table) = table_of(&engine, &path, spec, 4, 5000).await;
        let (packed, plain, units) = leaves(&path, &table);
        assert!(plain <= 1 && units <= 4, "{packed} packed, {plain} plain, {units} units");
        assert_eq!(table.unpacked_leaf_bytes(), 32 << 10);
    });
}

/// A leaf that turns out too long must not be split before the record of a blob, because blobs lie right
/// before their leaf. The verification of a table checks that.
#[test]
fn blobs_stay_before_their_leaves_where_leaves_are_planned_too_long() {
    let (engine, dir) = scene();
    for seed in (0..30).step_by(forebay_test::one_in_daily(3)) {
        let mut random = Random(seed);
        let mut model = Model::new();
        for number in 0..400u64 {
            let is_text = number / 90 % 2 == 0;
            let len = if random.below(6) == 0 { 1100 + random.below(3000) } else { 30 + random.below(300) };
            let value = text(&mut random, len, if is_text { 50 } else { 1 });
            model.insert(number.to_be_bytes().to_vec(), Some((value, None)));
        }
        let dir = dir.path().join(seed.to_string());
        std::fs::create_dir(&dir).unwrap();
        let spec = spec_of(Compression::Lz4, [4096, 8192][seed as usize % 2]);
        futures::executor::block_on(read_in_all_ways(&engine, &dir, spec, &model, &mut random)).unwrap();
    }
}

#[test]
fn a_get_reads_one_leaf_and_the_cache_keeps_it_unpacked() {
    let (engine, dir) = scene();
    futures::executor::block_on(async {
        let path = dir.path().join("00000001.fkv");
        let (_, table) = table_of(&engine, &path, spec_of(Compression::Lz4, 4096), 4, 3000).await;
        let reads = || -> u64 { engine.stats().wait().unwrap().flows.iter().map(|flow| flow.reads).sum() };
        let before = reads();
        assert!(table.get(b"user001000", HOW).await.unwrap().is_some());
        assert_eq!(reads() - before, 1);
        // A leaf that was read once is offered, and not worth its memory yet.
        let stats = table.cache.stats();
        assert_eq!((stats.insertions, stats.refusals), (0, 1));
        assert!(table.get(b"user001002", HOW).await.unwrap().is_some());
        assert!(reads() - before <= 2);
        // Its neighbour is in the same leaf.
        assert!(matches!(table.get_cached(b"user001001", HOW), Ok(Probe::Done(Some(Hit::Value(_))))));
        assert!(table.cache.stats().block_bytes >= 8192);
        // A pass over all of it keeps nothing of what it unpacks.
        let bytes = table.cache.stats().block_bytes;
        let mut cursor = table.cursor(CursorHow { ramp: false, ..CursorHow::range(Direction::Forward) });
        while cursor.next().await.unwrap() {}
        assert!(table.cache.stats().block_bytes <= bytes + (64 << 10));
    });
}

#[test]
fn a_value_that_is_too_long_for_its_memory_is_stored_as_it_is() {
    let (engine, dir) = scene();
    futures::executor::block_on(async {
        let path = dir.path().join("00000001.fkv");
        let model = Model::from([
            (b"long".to_vec(), Some((vec![7; 300_000], None))),
            (b"longer".to_vec(), Some((vec![7; 300_001], None))),
        ]);
        let spec = TableSpec { packed_value_max: 300_000, ..spec_of(Compression::Lz4, 4096) };
        let meta = write(&engine, &path, spec, &model).await.unwrap();
        assert!((300_000..330_000).contains(&meta.bytes), "{}", meta.bytes);
        let table = open(&engine, &path, &meta, &Cache::new(1 << 20, 0)).await.unwrap();
        table.verify(Class::DEFAULT).await.unwrap();
        assert_gets(&table, &model, &mut Random(1)).await;
    });
}

/// Every page of a compressed table is damaged in several ways, one after the other: a read returns what was
/// written, or an error that names the place.
#[test]
fn damage_of_a_compressed_table_is_no_wrong_value() {
    let (engine, dir) = scene();
    for compression in compressions() {
        let path = dir.path().join(format!("{compression:?}.fkv"));
        let mut random = Random(23);
        let mut model = mixed(&mut random, 110);
        for (bytes, _) in model.values_mut().flatten() {
            bytes.truncate(3_000);
        }
        let spec = spec_of(compression, 4096);
        let damaged = damage::assert_every_page_matters(&engine, &path, spec, &model, &mut random);
        futures::executor::block_on(damaged);
    }
}

#[test]
fn a_table_with_an_unknown_codec_or_one_that_this_build_lacks_is_refused() {
    let (engine, dir) = scene();
    let path = dir.path().join("00000001.fkv");
    futures::executor::block_on(async {
        let spec = spec_of(Compression::Lz4, 4096);
        let (meta, table) = table_of(&engine, &path, spec, 4, 100).await;
        drop(table);
        let right = std::fs::read(&path).unwrap();
        let (footer, codec_at) = (right.len() - UNIT, 18 + 64 + 4 * 31);
        assert_eq!(right[footer + codec_at], 1);
        let cache = Cache::new(1 << 20, 0);
        for (codec, leaf_bytes_max) in [(3, 8192), (0, 8192), (255, 8192), (1, 1 << 20), (2, 8192)] {
            let mut other = right.clone();
            other[footer + codec_at] = codec;
            other[footer + codec_at + 4..][..4].copy_from_slice(&u32::to_le_bytes(leaf_bytes_max));
            let position = (footer / UNIT) as u32;
            let identity = Identity { table: 1, position, level: crate::node::FOOTER };
            crate::node::seal(&mut other[footer..], identity);
            std::fs::write(&path, &other).unwrap();
            let opened = open(&engine, &path, &meta, &cache).await;
            match (codec, cfg!(feature = "zstd")) {
                (2, false) => {
                    let error = opened.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::MissingFeature { feature: "zstd" });
                    assert!(error.to_string().contains("its feature `zstd`"), "{error}");
                    assert_eq!(error.path(), Some(&*path));
                }
                // The leaves name the other codec.
                (2, true) => {
                    let error = opened.unwrap().get(&meta.smallest, HOW).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Corruption);
                }
                _ => assert_eq!(opened.unwrap_err().kind(), ErrorKind::Corruption),
            }
        }
    });
}
