//! Tables on real files with direct I/O, and in simulated worlds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::{Class, Config, Engine};
use forebay_test::draw::Random;

use super::*;
use crate::cache::Cache;
use crate::error::ErrorKind;
use crate::node::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

mod compressed;
mod cursors;
mod damage;
mod value_reads;
mod writing;

/// A value with its expiry, by key; `None` is a tombstone.
type Model = BTreeMap<Vec<u8>, Option<(Vec<u8>, Option<u64>)>>;

/// All expiries are before this second, or long after it.
const NOW_S: u64 = 1000;

const HOW: GetHow = GetHow { now_s: NOW_S, filter: FilterUse::Read, fill: true };

/// Starts an engine, and creates a directory.
fn scene() -> (Engine, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (Engine::start(Config::new().shards(1)).unwrap(), dir)
}

fn spec(id: u32, leaf_bytes: u32) -> TableSpec {
    TableSpec { leaf_bytes, buffer_bytes: 64 << 10, ..TableSpec::new(id, 3) }
}

async fn write(engine: &Engine, path: &Path, spec: TableSpec, model: &Model) -> Result<TableMeta> {
    let mut writer = TableWriter::create(engine, path, spec).await?;
    for (key, value) in model {
        writer.add(key, entry(value)).await?;
    }
    writer.finish().await
}

fn entry(value: &Option<(Vec<u8>, Option<u64>)>) -> Entry<'_> {
    match value {
        Some((bytes, expires_s)) => Entry::Value { bytes, expires_s: *expires_s },
        None => Entry::Deleted,
    }
}

/// Returns caches that fit everything, half of it, and nothing.
fn caches() -> [Arc<Cache>; 3] {
    [Cache::new(64 << 20, 64 << 20), Cache::new(400 << 10, 20 << 10), Cache::new(0, 0)]
}

async fn open(engine: &Engine, path: &Path, meta: &TableMeta, cache: &Arc<Cache>) -> Result<Arc<Table>> {
    Table::open(&mut Files::at(engine, path, cache).await, meta, OpenHow::default()).await
}

/// Returns random keys, and values of all kinds, up to these lengths.
fn model(random: &mut Random, entries: u64, key_max: u64, value_max: u64) -> Model {
    let mut model = Model::new();
    while (model.len() as u64) < entries {
        // Keys have prefixes in common.
        let group = vec![random.below(4) as u8; random.below(4) as usize];
        let len = random.below(key_max - 3) + 1;
        let key = [group, random.bytes(len)].concat();
        let expires_s = match random.below(10) {
            0 => Some(random.below(NOW_S)),
            1 => Some(NOW_S + 1 + random.below(NOW_S)),
            _ => None,
        };
        let len = if random.below(10) == 0 { random.below(value_max + 1) } else { random.below(100) };
        let value = (random.below(8) > 0).then(|| (random.bytes(len), expires_s));
        model.insert(key, value);
    }
    model
}

fn expected(model: &Model, key: &[u8]) -> Option<Option<Vec<u8>>> {
    let value = model.get(key)?.as_ref();
    Some(
        value
            .filter(|(_, expires_s)| expires_s.is_none_or(|time| time > NOW_S))
            .map(|(bytes, _)| bytes.clone()),
    )
}

fn found(found: Option<Hit>) -> Option<Option<Vec<u8>>> {
    Some(match found? {
        Hit::Value(value) => Some(value.to_vec()),
        Hit::Blob(blob) => panic!("{blob:?} was to be read"),
        Hit::Deleted => None,
    })
}

/// Asserts that lookups of every key, and of absent keys, return the model's entries.
async fn assert_gets(table: &Arc<Table>, model: &Model, random: &mut Random) {
    for key in model.keys() {
        let got = found(table.get(key, HOW).await.unwrap());
        assert!(got == expected(model, key), "{key:?}");
        let near = [&key[..], &[0]].concat();
        let in_memory = GetHow { filter: FilterUse::InMemory, fill: false, ..HOW };
        assert!(found(table.get(&near, in_memory).await.unwrap()) == expected(model, &near), "{near:?}");
        let len = random.below(6) + 1;
        let other = random.bytes(len);
        assert!(found(table.get(&other, HOW).await.unwrap()) == expected(model, &other), "{other:?}");
    }
}

/// Writes a table of a few hundred entries and reads it in all ways.
async fn all_of_it(engine: &Engine, dir: PathBuf, seed: u64, leaf_bytes: u32) -> Result<()> {
    let mut random = Random(seed);
    let model = model(&mut random, 400, 40, 20_000);
    read_in_all_ways(engine, &dir, spec(1, leaf_bytes), &model, &mut random).await?;
    Ok(())
}

/// Writes a table and reads it in all ways.
async fn read_in_all_ways(
    engine: &Engine,
    dir: &Path,
    spec: TableSpec,
    model: &Model,
    random: &mut Random,
) -> Result<TableMeta> {
    let (path, entries) = (dir.join("00000001.fkv"), model.len() as u64);
    let meta = write(engine, &path, spec, model).await?;
    let expiring = model.values().flatten().filter(|(_, expires_s)| expires_s.is_some()).count();
    let deleted = model.values().filter(|value| value.is_none()).count();
    assert_eq!((meta.entries, meta.deleted, meta.expiring), (entries, deleted as u64, expiring as u64));
    assert_eq!(Some(&*meta.smallest), model.keys().next().map(|key| &key[..]));
    assert_eq!(Some(&*meta.largest), model.keys().last().map(|key| &key[..]));
    for cache in caches() {
        let table = open(engine, &path, &meta, &cache).await?;
        let verified = table.verify(Class::BACKGROUND).await?;
        assert_eq!((verified.entries, verified.bytes), (entries, meta.bytes));
        assert!(verified.blobs > 0);
        assert_gets(&table, model, random).await;
        cursors::assert_cursors(&table, model, random).await;
        let stats = cache.stats();
        assert_eq!(stats.pinned.sum(), table.pinned_bytes());
        // The metadata of a table counts even where nothing fits.
        assert!(stats.pinned.sum() + stats.block_bytes <= stats.bytes_max.max(16 << 10), "{stats:?}");
        drop(table);
        assert_eq!((cache.stats().pinned.sum(), cache.held().get()), (0, 0));
    }
    Ok(meta)
}

#[test]
fn a_table_answers_as_a_map_does() {
    let (engine, dir) = scene();
    for (seed, leaf_bytes) in [(1, 4096), (2, 8192), (3, 32768)] {
        let dir = dir.path().join(seed.to_string());
        std::fs::create_dir(&dir).unwrap();
        futures::executor::block_on(all_of_it(&engine, dir, seed, leaf_bytes)).unwrap();
    }
}

#[test]
fn a_table_answers_as_a_map_does_in_simulated_worlds() {
    for seed in 0..4 {
        let mut world = forebay_sim::World::new(seed);
        let leaf_bytes = [4096, 12288][seed as usize % 2];
        world
            .run(async move |engine| {
                engine.create_dir("/kv").await?;
                all_of_it(&engine, PathBuf::from("/kv"), seed, leaf_bytes).await
            })
            .unwrap()
            .unwrap();
    }
}
