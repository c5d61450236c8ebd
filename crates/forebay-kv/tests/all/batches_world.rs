//! Batches as long as the memory allows, through power cuts: each is there whole or not at all.

use forebay::{Config, Engine};
use forebay_kv::{Options, Store};
use forebay_sim::{self as sim, Profile, World};

use crate::common::{batch_of, key};

const MIB: u64 = 1 << 20;

async fn open(engine: &Engine, memory: u64) -> Store {
    let options = Options::new().memory_bytes_max(memory).reserve_bytes(0).store_id(7).clock(|| 1_000);
    Store::open(engine, "/disk/store", options).await.expect("the store opens")
}

/// Cuts the power at the n-th operation of the batch, or after it. Returns whether the batch is there, and whether it was cut.
fn cut_in_batch(memory: u64, seed: u64, n: u64) -> (bool, bool) {
    let disk = Profile::nand().at("/disk");
    let mut world = World::new(seed).config(Config::new().arena_bytes_max(2 * memory as usize)).disk(disk);
    let mut is_acknowledged = false;
    let ran = world.run(async |engine| {
        let store = open(&engine, memory).await;
        let keyspace = store.default_keyspace();
        keyspace.put("before", "1").await.expect("a put");
        let (batch, _) = batch_of(&keyspace, store.batch_bytes_max() as u64);
        sim::node(0).power_cut_at_operation(n);
        store.write(&batch).await.expect("a batch");
        is_acknowledged = true;
    });
    let was_cut = ran.is_err();
    if let Err(failure) = ran {
        assert!(failure.is_power_cut(), "operation {n}: {failure}");
    }
    world.power_cut();
    world.reboot();
    let ran = world.run(async |engine| {
        let store = open(&engine, memory).await;
        let keyspace = store.default_keyspace();
        assert!(keyspace.contains_key("before").await.expect("a get"));
        let (_, lens) = batch_of(&keyspace, store.batch_bytes_max() as u64);
        let mut found = 0;
        for (number, len) in (1..).zip(&lens) {
            let value = keyspace.get(&key(number)).await.expect("a get");
            let is_right = |value: &[u8]| value == forebay_test::sweep::content(number, *len);
            assert!(value.as_deref().is_none_or(is_right), "key {number}");
            found += usize::from(value.is_some());
        }
        assert!(found == 0 || found == lens.len(), "{found} of {} changes", lens.len());
        assert!(found > 0 || !is_acknowledged, "it was acknowledged");
        store.close().await.expect("an end");
        found > 0
    });
    (ran.unwrap_or_else(|failure| panic!("{memory} bytes, operation {n}: {failure}")), was_cut)
}

#[test]
fn the_longest_batch_is_there_whole_or_not_at_all() {
    for memory in [16 * MIB, 64 * MIB] {
        let cuts = (0..4).flat_map(|seed| (1..=6).map(move |n| cut_in_batch(memory, seed, n)));
        let cuts: Vec<(bool, bool)> = cuts.collect();
        assert!(cuts.contains(&(false, true)), "no batch was cut away: {cuts:?}");
        assert!(cuts.iter().any(|(is_there, _)| *is_there), "no batch came through: {cuts:?}");
    }
}
