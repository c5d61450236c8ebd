//! Stores that are filled, emptied and filled again on a small disk. Regression: on a full disk deletes, the documented remedy,
//! made the store read-only in five of eight runs: the log reached the end of its segment before it knew that the next segment has
//! no space. One store, reopened with little left of its segment, accepted no delete at all.

use std::collections::BTreeMap;

use crate::common::{self, random};
use crate::full::{FILLER, pause, seeds, table_files, take_all_but};
use forebay::Engine;
use forebay_kv::{Batch, Error, ErrorKind, Keyspace, Options, Store};
use forebay_sim::{MetadataOrder, Profile, World};

const DIR: &str = "/disk/store";
/// Bytes of the disk.
const DISK: u64 = 6 << 20;
const ROUNDS: u64 = 20;
/// Refusals of one call, a tenth of a second apart, before the store counts as stuck.
const REFUSALS_MAX: u32 = 600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Plain,
    Separated,
    ThreeKeyspaces,
}

/// A store and its contents.
#[derive(Debug)]
struct Life {
    shape: Shape,
    /// The keys that are there, by number.
    there: Vec<u64>,
    /// The keys of the write under way, and whether it puts them.
    unsure: (Vec<u64>, bool),
    next: u64,
}

impl Life {
    fn new(shape: Shape) -> Life {
        Life { shape, there: Vec::new(), unsure: (Vec::new(), false), next: 0 }
    }

    fn options(&self) -> Options {
        let options = common::options().log_segment_bytes(128 << 10).store_id(9).clock(|| 1_000_000);
        if self.shape == Shape::Separated { options.separation_bytes(1_500) } else { options }
    }

    fn key(number: u64) -> Vec<u8> {
        format!("{:016x}", random(number)).into_bytes()
    }

    fn value(&self, number: u64) -> Vec<u8> {
        let words = if self.shape == Shape::Separated { 300 } else { 100 };
        number.to_le_bytes().repeat(words + (number % 50) as usize)
    }

    async fn open(&self, engine: &Engine) -> (Store, Vec<Keyspace>) {
        let store = Store::open(engine, DIR, self.options()).await;
        let store = store.unwrap_or_else(|error| panic!("the store does not open: {error}"));
        let mut keyspaces = vec![store.default_keyspace()];
        if self.shape == Shape::ThreeKeyspaces {
            for name in ["one", "two"] {
                keyspaces.push(store.keyspace(name).await.expect("it is there, or the disk is empty"));
            }
        }
        (store, keyspaces)
    }

    fn keyspace_of(number: u64, keyspaces: &[Keyspace]) -> &Keyspace {
        &keyspaces[number as usize % keyspaces.len()]
    }

    /// Puts until the store is full, or `most` times. Returns how many keys it put.
    async fn fill(&mut self, store: &Store, keyspaces: &[Keyspace], most: u64) -> usize {
        let before = self.there.len();
        for _ in 0..most {
            let numbers: Vec<u64> = (self.next..self.next + 4).collect();
            self.next += 4;
            let mut batch = Batch::new();
            for number in &numbers {
                batch.put(Life::keyspace_of(*number, keyspaces), Life::key(*number), self.value(*number));
            }
            self.unsure = (numbers, true);
            let written = store.write(&batch).await;
            let (numbers, _) = std::mem::take(&mut self.unsure);
            match written {
                Ok(()) => self.there.extend(numbers),
                Err(error) => {
                    is_full(&error, 0);
                    break;
                }
            }
        }
        self.there.len() - before
    }

    /// Deletes every key, each as soon as the store accepts it.
    async fn empty(&mut self, store: &Store, keyspaces: &[Keyspace], at_once: usize) {
        while !self.there.is_empty() {
            let numbers = self.there.split_off(self.there.len().saturating_sub(at_once));
            let mut batch = Batch::new();
            for number in &numbers {
                batch.delete(Life::keyspace_of(*number, keyspaces), Life::key(*number));
            }
            self.unsure = (numbers, false);
            let mut refusals = 0;
            while let Err(error) = store.write(&batch).await {
                refusals += 1;
                is_full(&error, refusals);
                pause(100).await;
            }
            self.unsure = Default::default();
        }
    }

    /// Waits until nothing is left of the deleted keys, and puts are accepted.
    async fn all_space_is_back(&self, engine: &Engine, store: &Store, keyspaces: &[Keyspace]) {
        let mut refusals = 0;
        while let Err(error) = store.compact().await {
            refusals += 1;
            is_full(&error, refusals);
            pause(100).await;
        }
        while table_files(engine).await > 0 || store.stats().full.is_some() {
            refusals += 1;
            assert!(refusals < REFUSALS_MAX, "{:?}", store.stats());
            pause(100).await;
        }
        for keyspace in keyspaces {
            let left = keyspace.iter().next().await;
            assert!(left.is_none(), "{left:?}");
        }
        assert!(store.stats().failed.is_none(), "{:?}", store.stats());
    }

    /// Compares everything, after learning what became of a write that a power cut struck.
    async fn check(&mut self, keyspaces: &[Keyspace]) {
        let mut found = BTreeMap::new();
        for keyspace in keyspaces {
            let mut entries = keyspace.iter();
            while let Some(entry) = entries.next().await {
                let (key, value) = entry.expect("reads go on");
                found.insert(key, value.to_vec());
            }
        }
        let (unsure, is_put) = std::mem::take(&mut self.unsure);
        let stayed = unsure.iter().filter(|number| found.contains_key(&Life::key(**number))).count();
        assert!(
            stayed == 0 || stayed == unsure.len(),
            "{stayed} of a write of {} keys, puts: {is_put}",
            unsure.len()
        );
        if stayed > 0 {
            self.there.extend(unsure);
        }
        for number in &self.there {
            let value = found.remove(&Life::key(*number));
            assert_eq!(value, Some(self.value(*number)), "key {number}");
        }
        assert!(found.is_empty(), "{} keys came back", found.len());
    }
}

/// Checks that a call was refused because the store is full, and not too often.
fn is_full(error: &Error, refusals: u32) {
    assert!(
        error.kind() == ErrorKind::NoSpace && refusals < REFUSALS_MAX,
        "after {refusals} refusals: {error}"
    );
}

fn world(seed: u64) -> World {
    let order = [MetadataOrder::Journal, MetadataOrder::Posix][(seed % 2) as usize];
    World::new(seed).disk(Profile::nand().at("/disk").capacity(DISK).metadata_order(order))
}

/// Fills the store, in every second round until others have used the rest of the disk, and empties it. Returns how many keys it
/// held.
async fn round(life: &mut Life, engine: &Engine, round: u64) -> usize {
    let (mut store, mut keyspaces) = life.open(engine).await;
    let (is_shared, is_reopened) = (round % 2 == 1, round % 4 >= 2);
    let mut keys = 0;
    if is_shared {
        keys += life.fill(&store, &keyspaces, 100).await;
        take_all_but(engine, (round % 3) * (100 << 10)).await;
    }
    keys += life.fill(&store, &keyspaces, u64::MAX).await;
    assert!(store.stats().failed.is_none(), "{:?}", store.stats());
    if is_reopened {
        store.close().await.expect("a full store closes");
        (store, keyspaces) = life.open(engine).await;
        life.check(&keyspaces).await;
    }
    // One by one as well: each such delete needs a page of the log.
    life.empty(&store, &keyspaces, [8, 1, 16, 3][(round % 4) as usize]).await;
    if is_shared {
        engine.remove_file(FILLER).await.expect("the other process ends");
    }
    life.all_space_is_back(engine, &store, &keyspaces).await;
    store.close().await.expect("an empty store closes");
    keys
}

fn rounds(shape: Shape, seed: u64) {
    let mut world = world(seed);
    let (mut life, mut least, mut most) = (Life::new(shape), usize::MAX, 0);
    for number in 0..ROUNDS {
        let ran = world.run(async |engine| round(&mut life, &engine, number).await);
        let keys = ran.unwrap_or_else(|failure| panic!("{shape:?}, seed {seed}, round {number}: {failure}"));
        if number % 2 == 0 {
            (least, most) = (least.min(keys), most.max(keys));
        }
        world.reboot();
    }
    assert!(least * 2 > most && least > 200, "{shape:?}: a round had {least} keys, another {most}");
}

#[test]
fn a_store_is_filled_and_emptied_again_and_again() {
    seeds(1).for_each(|seed| rounds(Shape::Plain, seed));
}

#[test]
fn a_store_with_separated_values_is_filled_and_emptied_again_and_again() {
    seeds(1).for_each(|seed| rounds(Shape::Separated, 1 + seed));
}

#[test]
fn a_store_of_three_keyspaces_is_filled_and_emptied_again_and_again() {
    seeds(1).for_each(|seed| rounds(Shape::ThreeKeyspaces, 2 + seed));
}

/// Regression: each delete needs a page of the log, which used the space of the reserve for its next segments. The flush of the
/// deletes then had no space, and the store was full forever.
#[test]
fn the_log_of_a_full_store_leaves_space_for_the_flush_of_its_deletes() {
    for (seed, shape) in [(1, Shape::Plain), (7, Shape::Plain), (6, Shape::ThreeKeyspaces)] {
        rounds(shape, seed);
    }
}

/// Story: more was queued for the log than the rest of a short segment and the reserve hold, when the disk had no space for the next segment.
/// The log failed, and the store was read-only.
#[test]
fn what_is_queued_when_the_disk_is_full_is_written() {
    for seed in seeds(4) {
        let ran = world(seed).run(async |engine| {
            let options = common::options().memtable_bytes(512 << 10).log_segment_bytes(64 << 10);
            let options = options.reserve_bytes(0).store_id(9).clock(|| 1_000_000);
            let store = Store::open(&engine, DIR, options).await.expect("a store");
            let (keyspace, mut number) = (store.default_keyspace(), 0);
            let mut put = async || {
                number += 1;
                keyspace.put(Life::key(number), [7_u8; 4000]).relaxed().await
            };
            for _ in 0..25 {
                put().await.expect("there is space");
            }
            // The log makes its next segment and its reserve in the background.
            pause(2_000).await;
            take_all_but(&engine, 0).await;
            let full = loop {
                if let Err(error) = put().await {
                    break error;
                }
            };
            is_full(&full, 0);
            store.sync().await.expect("the log has room for what it took");
            assert!(store.stats().failed.is_none(), "{:?}", store.stats());
            store.close().await.expect("a full store closes");
        });
        ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Regression: with this seed, and with 17 below, a store with separated values stayed full after all of its keys were deleted.
#[test]
fn a_full_store_with_separated_values_comes_back() {
    rounds(Shape::Separated, 12);
}

/// The power fails anywhere in such a round.
#[test]
fn a_full_store_survives_power_cuts_and_is_emptied() {
    // Regression: with seeds 0 and 7 the state ended before a compaction that copied values, and took the space for their deletions.
    let separated = [0, 2, 7, 17].map(|seed| (seed, Shape::Separated));
    let lives = [(1, Shape::Plain), (3, Shape::ThreeKeyspaces)].into_iter().chain(separated);
    let others = seeds(3).skip(3).map(|seed| {
        let shape = [Shape::Plain, Shape::Separated, Shape::ThreeKeyspaces][(seed % 3) as usize];
        (100 + seed, shape)
    });
    for (seed, shape) in lives.chain(others) {
        let mut world = world(seed);
        let mut life = Life::new(shape);
        let mut cuts = 0;
        for number in 0..12 {
            // Every third life ends without a power cut.
            let may_cut = number % 3 != 2;
            if may_cut {
                world.power_cut_at_operation(1 + random(seed * 256 + number) % 2_500);
            }
            let ran = world.run(async |engine| {
                let (store, keyspaces) = life.open(&engine).await;
                life.check(&keyspaces).await;
                if number % 2 == 0 {
                    life.fill(&store, &keyspaces, u64::MAX).await;
                }
                life.empty(&store, &keyspaces, 4).await;
                life.all_space_is_back(&engine, &store, &keyspaces).await;
                store.close().await.expect("an empty store closes");
            });
            match ran {
                Ok(()) => {}
                Err(failure) if may_cut && failure.is_power_cut() => cuts += 1,
                Err(failure) => panic!("{shape:?}, seed {seed}, life {number}: {failure}"),
            }
            world.power_cut();
            world.reboot();
        }
        assert!(cuts > 0, "{shape:?}");
    }
}
