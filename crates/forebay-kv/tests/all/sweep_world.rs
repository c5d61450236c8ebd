//! The cost for a disk of operations of a store, at every length and number that a user may choose (forebay-test/SWEEPS.md). A
//! failure prints each point of its axis with its counts.

use forebay::{Config, Engine};
use forebay_kv::{Batch, ErrorKind, Options, Result, Store};
use forebay_test::sweep::meter::{self, Attempt, count};
use forebay_test::sweep::{Axis, BLOCK, Cost, Limit, Points, Step, Sweep, content as value};
use futures::future::join_all;

use crate::common::{batch_of, key};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const DIR: &str = "/disk/store";
/// The budget of these stores, and the bytes of a segment of their logs.
const MEMORY: u64 = 128 * MIB;
const SEGMENT: u64 = MIB;
/// The longest value that lies in its leaf: a quarter of that.
const INLINE: u64 = 1 << 10;
/// Bytes of an entry in addition to its value: its key, and its overhead in leaf or record.
pub(crate) const BESIDE: u64 = 32;
/// A range reads ahead twice this much; a batch of gets has this many under way.
const AHEAD: u64 = 64 * KIB;
const GETS: u64 = 128;
/// The number of concurrent gets on the axis of their values.
const FEW: u64 = 8;

static GET_VALUE: Axis = Axis {
    name: "store value of a get",
    unit: "bytes",
    package: "forebay-kv",
    range: 0..=512 * KIB,
    crosses: &[("WALKED_BYTES_MAX", 64 << 10), ("UNIT", 4096)],
    steps: &[],
    limit: None,
};
static FITTING_VALUE: Axis = Axis {
    name: "store value of gets of what fits",
    unit: "bytes",
    package: "forebay-kv",
    range: 16..=64 * KIB,
    crosses: &[],
    steps: &[],
    limit: None,
};
static JUST_FITTING_VALUE: Axis = Axis {
    name: "store value of gets of what just fits",
    unit: "bytes",
    package: "forebay-kv",
    range: INLINE + 1..=80 * KIB,
    crosses: &[("VALUE_BYTES_MIN", 64 << 10)],
    steps: &[],
    limit: None,
};
static PUT_VALUE: Axis = Axis {
    name: "store value of a put",
    unit: "bytes",
    package: "forebay-kv",
    range: 0..=512 * KIB,
    crosses: &[("SHORT_BYTES_MAX", 64 << 10)],
    steps: &[],
    limit: None,
};
static LOAD_VALUE: Axis = Axis {
    name: "store value of a load",
    unit: "bytes",
    package: "forebay-kv",
    range: 0..=128 * KIB,
    crosses: &[("SLICE_BYTES", 16 << 10), ("BATCH_BYTES", 32 << 10), ("LONG_BYTES", 64 << 10)],
    steps: &[Step {
        range: 0..=128 * KIB,
        percent: 150,
        neighbours: 400,
        reason: "flushes and compactions are of whole tables, and a log that is a quarter full makes its next segment of zeros",
    }],
    limit: None,
};
static SCAN_VALUE: Axis = Axis {
    name: "store value of a range of ten",
    unit: "bytes",
    package: "forebay-kv",
    range: 0..=64 * KIB,
    crosses: &[("AHEAD_BYTES", 32 << 10), ("RANGE_BYTES_MIN", 8 << 10), ("GAP_BYTES_MAX", 4 << 10)],
    steps: &[
        Step {
            range: 0..=INLINE,
            percent: 150,
            neighbours: 200,
            reason: "a range that needs a leaf more reads as much ahead as it has passed, in whole leaves",
        },
        Step {
            range: INLINE + 1..=64 * KIB,
            percent: 150,
            neighbours: 150,
            reason: "one value more or less fits into a read of 128 KiB",
        },
    ],
    limit: None,
};
static LONGEST_VALUE: Axis = Axis {
    name: "store longest value",
    unit: "bytes",
    package: "forebay-kv",
    range: (16 << 20) - 1..=(16 << 20) + 1,
    crosses: &[("VALUE_BYTES_MAX", 16 << 20)],
    steps: &[],
    limit: Some(Limit { most: 16 << 20, words: &["16777216", "parts"] }),
};
static KEY: Axis = Axis {
    name: "store key",
    unit: "bytes",
    package: "forebay-kv",
    range: 1..=(16 << 10) + 1,
    crosses: &[("KEY_BYTES_MAX", 16 << 10), ("SHORT", 38)],
    steps: &[],
    limit: Some(Limit { most: 16 << 10, words: &["16384", "hash"] }),
};
static BATCH: Axis = Axis {
    name: "store batch",
    unit: "operations",
    package: "forebay-kv",
    range: 1..=10_000,
    crosses: &[],
    steps: &[],
    limit: None,
};
static BATCH_BYTES: [(u64, Axis); 3] = [
    (16 * MIB, batch_bytes_axis("store bytes of a batch, 16 MiB", 699_050)),
    (64 * MIB, batch_bytes_axis("store bytes of a batch, 64 MiB", 3_844_778)),
    (704 * MIB, batch_bytes_axis("store bytes of a batch, 704 MiB", 22_369_620)),
];
static RANGE: Axis = Axis {
    name: "store range",
    unit: "entries",
    package: "forebay-kv",
    range: 1..=4096,
    crosses: &[("AHEAD_MAX", 32)],
    steps: &[Step {
        range: 1..=1200,
        percent: 150,
        neighbours: 200,
        reason: "a range that needs a leaf more reads as much ahead as it has passed, up to 128 KiB",
    }],
    limit: None,
};
static GETS_AT_ONCE: Axis = Axis {
    name: "store gets at once",
    unit: "keys",
    package: "forebay-kv",
    range: 1..=1024,
    crosses: &[("AT_ONCE", 128)],
    steps: &[],
    limit: None,
};
static GETS_OF_VALUES: Axis = Axis {
    name: "store value of gets at once",
    unit: "bytes",
    package: "forebay-kv",
    range: 0..=128 * KIB,
    crosses: &[("WALKED_BYTES_MAX", 64 << 10)],
    steps: &[Step {
        range: INLINE + 1..=64 * KIB,
        percent: 150,
        neighbours: 150,
        reason: "a value that is no multiple of 4,096 bytes touches a page more",
    }],
    limit: None,
};
static ABSENT: Axis = Axis {
    name: "store absent keys",
    unit: "percent",
    package: "forebay-kv",
    range: 0..=100,
    crosses: &[],
    steps: &[],
    limit: None,
};
static SNAPSHOTS: Axis = Axis {
    name: "store snapshots",
    unit: "open snapshots",
    package: "forebay-kv",
    range: 0..=512,
    crosses: &[],
    steps: &[],
    limit: None,
};
static KEYSPACES: Axis = Axis {
    name: "store keyspaces",
    unit: "keyspaces",
    package: "forebay-kv",
    range: 1..=300,
    crosses: &[("EDITS_MAX", 256)],
    steps: &[],
    limit: None,
};
static MANY_KEYSPACES: Axis = Axis {
    name: "store thousands of keyspaces",
    unit: "keyspaces",
    package: "forebay-kv",
    range: 512..=4_096,
    // With this many of them the manifest's state has these bytes.
    crosses: &[("PART_BYTES", 32 << 10), ("MANIFEST_BYTES", 256 << 10)],
    steps: &[],
    limit: None,
};
static MOST_KEYSPACES: Axis = Axis {
    name: "store most keyspaces",
    unit: "keyspaces",
    package: "forebay-kv",
    range: 9_999..=10_001,
    crosses: &[("KEYSPACES_MAX", 10_000)],
    steps: &[],
    limit: Some(Limit { most: 10_000, words: &["10000", "prefix"] }),
};
static LEAST_KEYSPACES: Axis = Axis {
    name: "store keyspaces of the least memory",
    unit: "keyspaces",
    package: "forebay-kv",
    range: 1_023..=1_025,
    // 16 MiB have this many of them.
    crosses: &[("KEYSPACE_BYTES", 16 << 10)],
    steps: &[],
    limit: Some(Limit { most: 1_024, words: &["1024", "memory_bytes_max", "prefix"] }),
};
static LEAST_TABLES: Axis = Axis {
    name: "store tables of the least memory",
    unit: "tables",
    package: "forebay-kv",
    range: 1_024..=4_096,
    // Some 1,100 tables of level 0 use a quarter of the cache.
    crosses: &[("CROWDED_PART", 4)],
    steps: &[],
    limit: None,
};
static WRITERS: Axis = Axis {
    name: "store writers",
    unit: "puts at once",
    package: "forebay-kv",
    range: 1..=512,
    crosses: &[],
    steps: &[],
    limit: None,
};

/// Returns the axis of a memory with which a batch may have `most` bytes.
const fn batch_bytes_axis(name: &'static str, most: u64) -> Axis {
    Axis {
        name,
        unit: "bytes",
        package: "forebay-kv",
        range: most / 10 * 9..=most / 10 * 11,
        crosses: &[],
        steps: &[],
        limit: Some(Limit { most, words: &["smaller batches", "memory_bytes_max"] }),
    }
}

pub(crate) fn options() -> Options {
    let options = Options::new().memory_bytes_max(MEMORY).log_segment_bytes(SEGMENT);
    options.reserve_bytes(0).store_id(7).clock(|| 1_000)
}

pub(crate) fn config() -> Config {
    Config::new().arena_bytes_max(2 * MEMORY as usize)
}

pub(crate) fn entries(count: u64, len: u64) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + Send {
    (0..count).map(move |number| (key(number), value(number, len)))
}

async fn open(engine: &Engine) -> Result<Store> {
    open_with(engine, options()).await
}

/// Opens the store and waits for its work in the background.
pub(crate) async fn open_with(engine: &Engine, options: Options) -> Result<Store> {
    let store = Store::open(engine, DIR, options).await?;
    meter::rest().await;
    Ok(store)
}

async fn cold(engine: &Engine, entries: impl Iterator<Item = (Vec<u8>, Vec<u8>)> + Send) -> Result<Store> {
    cold_with(engine, options(), entries).await
}

/// Makes a store of entries in tables, and opens it again: of the tables it has the inner levels in memory.
pub(crate) async fn cold_with(
    engine: &Engine,
    options: Options,
    entries: impl Iterator<Item = (Vec<u8>, Vec<u8>)> + Send,
) -> Result<Store> {
    let store = open_with(engine, options.clone()).await?;
    store.default_keyspace().bulk_load(entries).await?;
    store.close().await?;
    drop(store);
    open_with(engine, options).await
}

pub(crate) fn check(found: Option<&[u8]>, number: u64, len: u64) -> std::result::Result<(), String> {
    let is_right = found == Some(&value(number, len)[..]);
    if is_right {
        Ok(())
    } else {
        Err(format!("key {number} has {:?} bytes, which differ", found.map(<[u8]>::len)))
    }
}

/// Returns the cost of reading a value with its leaf.
pub(crate) fn of_get(len: u64) -> Cost {
    if len <= INLINE { Cost::together(1, BLOCK) } else { Cost::together(2, BLOCK + len).in_rounds(2) }
}

/// Returns the cost of a range that ends after `bytes`. It reads as much ahead as it has passed, up to twice [`AHEAD`] in two requests:
/// so its bytes double with each round.
pub(crate) fn of_range(bytes: u64) -> Cost {
    let ahead = bytes.min(2 * AHEAD);
    let doublings = u64::from((ahead / BLOCK + 1).ilog2());
    let requests = 1 + 2 * doublings + bytes / AHEAD;
    Cost::together(requests, bytes + ahead + BLOCK).in_rounds(1 + doublings + bytes / (2 * AHEAD))
}

async fn get_value(engine: Engine, at: u64) -> Attempt {
    let store = cold(&engine, entries((256 * KIB / (at + 1)).clamp(3, 16), at)).await?;
    let keys = store.default_keyspace();
    let (found, cost) = count(keys.get(&key(1))).await;
    check(found?.as_deref(), 1, at)?;
    store.close().await?;
    Ok(cost)
}

/// Story: right after a load, values of 2 KiB were got at a tenth of the rate of 1 KiB although all of them fit into memory: each
/// was read from the device by its first get, and those a little shorter than a power of two by every get.
///
/// Writes tables that overlap, and gets all keys once they are at rest, one by one and by a range; then twice more with a cache that was
/// empty, of which the first pass does not count.
async fn gets_of_what_fits(engine: Engine, at: u64) -> Attempt {
    let store = open(&engine).await?;
    let (keys, count_of) = (store.default_keyspace(), (128 * KIB / (at + BESIDE)).clamp(6, 300));
    for part in 0..3 {
        for number in (0..count_of).filter(|number| number % 3 != part) {
            keys.put(key(number), value(number, at)).relaxed().await?;
        }
        store.flush().await?;
    }
    store.settle().await?;
    meter::rest().await;
    let (got, loaded) = count(get_all(&store, count_of, at)).await;
    got?;
    store.close().await?;
    drop((keys, store));
    let store = open(&engine).await?;
    get_all(&store, count_of, at).await?;
    meter::rest().await;
    let (got, read) = count(get_all(&store, count_of, at)).await;
    got?;
    store.close().await?;
    Ok(loaded + read)
}

/// More than half of the cache of the smallest store.
const JUST_FITTING: u64 = 6 * MIB;

/// Story: a value a little longer than a power of two kept a buffer of twice its length in the cache, and one above 64 KiB was not cached.
///
/// Gets all keys again and again, until nothing is read any more.
async fn gets_of_what_just_fits(engine: Engine, at: u64) -> Attempt {
    let count_of = JUST_FITTING / (at + BESIDE);
    let options = options().memory_bytes_max(Options::MEMORY_BYTES_MIN).memtable_bytes(256 << 10);
    let store = cold_with(&engine, options, entries(count_of, at)).await?;
    let keys = store.default_keyspace();
    let pass = async || {
        for number in 0..count_of {
            check(keys.get(&key(number)).await?.as_deref(), number, at)?;
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    for _ in 0..4 {
        pass().await?;
    }
    let (got, cost) = count(pass()).await;
    got?;
    store.close().await?;
    Ok(cost)
}

/// Gets all keys, and reads them with a range.
async fn get_all(store: &Store, count: u64, len: u64) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let keys = store.default_keyspace();
    for number in 0..count {
        check(keys.get(&key(number)).await?.as_deref(), number, len)?;
    }
    let mut range = keys.iter();
    for number in 0..count {
        let (_, found) = range.next().await.ok_or("the range ends too soon")??;
        check(Some(&found[..]), number, len)?;
    }
    Ok(())
}

async fn put_value(engine: Engine, at: u64) -> Attempt {
    let store = open(&engine).await?;
    let keys = store.default_keyspace();
    keys.put(key(0), value(0, 100)).await?;
    meter::rest().await;
    let (put, cost) = count(keys.put(key(1), value(1, at))).await;
    put?;
    check(keys.get(&key(1)).await?.as_deref(), 1, at)?;
    store.close().await?;
    Ok(cost)
}

/// Returns how many entries a load has.
fn loaded(len: u64) -> u64 {
    (256 * KIB / (len + BESIDE)).clamp(2, 2048)
}

/// Every byte is in the log, in level 0, and perhaps in one level more. The rest is written once: manifest, footers, names, and the
/// zeros of a segment.
fn of_load(at: u64) -> Cost {
    let bytes = loaded(at) * (at + BESIDE);
    let zeros = if bytes > SEGMENT / 8 { SEGMENT } else { 0 };
    let requests = 16 + 3 * bytes / AHEAD;
    Cost::together(requests, 3 * bytes + 192 * KIB + zeros).with_flushes(12).in_rounds(16 + bytes / AHEAD)
}

async fn load_value(engine: Engine, at: u64) -> Attempt {
    let store = open(&engine).await?;
    let keys = store.default_keyspace();
    let count_of = loaded(at);
    let (done, cost) = count(async {
        // In an order that is not that of the keys: each number once, as 7,919 is prime.
        for number in (0..count_of).map(|number| number * 7_919 % count_of) {
            keys.put(key(number), value(number, at)).relaxed().await?;
        }
        store.flush().await?;
        store.settle().await
    })
    .await;
    done?;
    check(keys.get(&key(1)).await?.as_deref(), 1, at)?;
    store.close().await?;
    Ok(cost)
}

async fn scan_value(engine: Engine, at: u64) -> Attempt {
    let store = cold(&engine, entries(40, at)).await?;
    let keys = store.default_keyspace();
    let (found, cost) = count(async {
        let (mut range, mut found) = (keys.range(key(20)..), Vec::new());
        while found.len() < 10
            && let Some(entry) = range.next().await
        {
            found.push(entry?);
        }
        Ok::<_, forebay_kv::Error>(found)
    })
    .await;
    let found = found?;
    for (number, (name, value)) in (20..30).zip(&found) {
        assert_eq!(*name, key(number));
        check(Some(&value[..]), number, at)?;
    }
    assert_eq!(found.len(), 10);
    drop(found);
    store.close().await?;
    Ok(cost)
}

async fn longest_value(engine: Engine, at: u64) -> Attempt {
    let options = options().memory_bytes_max(1 << 30).log_segment_bytes(32 * MIB);
    let store = open_with(&engine, options).await?;
    let keys = store.default_keyspace();
    let bytes = value(1, at);
    let (put, cost) = count(keys.put(key(1), &bytes)).await;
    put?;
    store.flush().await?;
    check(keys.get(&key(1)).await?.as_deref(), 1, at)?;
    store.close().await?;
    Ok(cost)
}

async fn get_key(engine: Engine, at: u64) -> Attempt {
    let long = |number: u8| [vec![b'k'; at as usize - 1], vec![number]].concat();
    let store = open(&engine).await?;
    for number in 0..16 {
        store.default_keyspace().put(long(number), value(number.into(), 100)).relaxed().await?;
    }
    store.flush().await?;
    store.close().await?;
    drop(store);
    let store = open(&engine).await?;
    let keys = store.default_keyspace();
    let (found, cost) = count(keys.get(&long(1))).await;
    check(found?.as_deref(), 1, 100)?;
    store.close().await?;
    Ok(cost)
}

async fn batch(engine: Engine, at: u64) -> Attempt {
    let store = open(&engine).await?;
    let keys = store.default_keyspace();
    keys.put(key(0), value(0, 100)).await?;
    meter::rest().await;
    let mut batch = Batch::new();
    for number in 0..at {
        batch.put(&keys, key(number), value(number, 20));
    }
    let (written, cost) = count(store.write(&batch)).await;
    written?;
    check(keys.get(&key(at - 1)).await?.as_deref(), at - 1, 20)?;
    store.close().await?;
    Ok(cost)
}

async fn batch_bytes(engine: Engine, memory: u64, most: u64, at: u64) -> Attempt {
    let options = Options::new().memory_bytes_max(memory).reserve_bytes(0).store_id(7).clock(|| 1_000);
    let store = open_with(&engine, options).await?;
    assert_eq!(store.batch_bytes_max() as u64, most);
    let keys = store.default_keyspace();
    keys.put(key(0), value(0, 100)).await?;
    meter::rest().await;
    let (batch, lens) = batch_of(&keys, at);
    let (written, cost) = count(store.write(&batch)).await;
    if let Err(error) = &written {
        assert_eq!(error.kind(), ErrorKind::TooLarge { limit: most as usize });
        assert!(keys.get(&key(1)).await?.is_none(), "a part of the batch is there");
    }
    written?;
    for (number, len) in (1..).zip(lens) {
        check(keys.get(&key(number)).await?.as_deref(), number, len)?;
    }
    store.close().await?;
    Ok(cost)
}

async fn range(engine: Engine, at: u64) -> Attempt {
    let store = cold(&engine, entries(4200, 100)).await?;
    let keys = store.default_keyspace();
    let (found, cost) = count(async {
        let (mut range, mut found) = (keys.iter(), 0);
        while found < at
            && let Some(entry) = range.next().await
        {
            let (_, value) = entry?;
            check(Some(&value[..]), found, 100)?;
            found += 1;
        }
        Ok::<_, Box<dyn std::error::Error>>(found)
    })
    .await;
    assert_eq!(found?, at);
    store.close().await?;
    Ok(cost)
}

async fn gets_at_once(engine: Engine, at: u64) -> Attempt {
    // Four entries fill a leaf.
    let store = cold(&engine, entries(4 * at + 4, 1_000)).await?;
    let keys = store.default_keyspace();
    let names: Vec<Vec<u8>> = (0..at).map(|number| key(4 * number)).collect();
    let (found, cost) = count(keys.multi_get(&names)).await;
    let found = found?;
    assert_eq!(found.len() as u64, at);
    for (number, found) in (0..at).zip(&found) {
        check(found.as_deref(), 4 * number, 1_000)?;
    }
    drop(found);
    store.close().await?;
    Ok(cost)
}

async fn gets_of_values(engine: Engine, at: u64) -> Attempt {
    let store = cold(&engine, entries(FEW, at)).await?;
    let keys = store.default_keyspace();
    let names: Vec<Vec<u8>> = (0..FEW).map(key).collect();
    let (found, cost) = count(keys.multi_get(&names)).await;
    let found = found?;
    for (number, found) in (0..FEW).zip(&found) {
        check(found.as_deref(), number, at)?;
    }
    drop(found);
    store.close().await?;
    Ok(cost)
}

async fn absent(engine: Engine, at: u64) -> Attempt {
    const ASKED: u64 = 64;
    let store = cold(&engine, entries(4 * ASKED, 1_000)).await?;
    let keys = store.default_keyspace();
    let is_absent = |number: u64| number * 100 < at * ASKED;
    let names = (0..ASKED).map(|number| {
        let mut name = key(4 * number);
        name.extend(is_absent(number).then_some(b'x'));
        name
    });
    let names: Vec<Vec<u8>> = names.collect();
    let (found, cost) = count(keys.multi_get(&names)).await;
    let found = found?;
    for (number, found) in (0..ASKED).zip(&found) {
        assert_eq!(found.is_none(), is_absent(number), "key {number}");
    }
    drop(found);
    store.close().await?;
    Ok(cost)
}

async fn snapshots(engine: Engine, at: u64) -> Attempt {
    let store = cold(&engine, entries(64, 1_000)).await?;
    let keys = store.default_keyspace();
    let mut held = Vec::new();
    for number in 0..at {
        keys.put(key(0), value(number, 20)).relaxed().await?;
        held.push(store.snapshot());
    }
    store.sync().await?;
    meter::rest().await;
    let (found, cost) = count(keys.get(&key(40))).await;
    check(found?.as_deref(), 40, 1_000)?;
    for (number, snapshot) in (0..at).zip(&held) {
        check(snapshot.get(&keys, &key(0)).await?.as_deref(), number, 20)?;
    }
    drop(held);
    store.close().await?;
    Ok(cost)
}

async fn keyspaces(engine: Engine, at: u64) -> Attempt {
    let store = open(&engine).await?;
    for number in 0..at {
        let keys = store.keyspace(&format!("keyspace {number}")).await?;
        keys.put(key(1), value(number, 100)).relaxed().await?;
    }
    store.flush().await?;
    store.close().await?;
    drop(store);
    let store = open(&engine).await?;
    let keys = store.keyspace(&format!("keyspace {}", at - 1)).await?;
    let (found, cost) = count(keys.get(&key(1))).await;
    check(found?.as_deref(), at - 1, 100)?;
    store.close().await?;
    Ok(cost)
}

/// Checks that a store keeps its memory.
pub(crate) fn keeps_its_memory(store: &Store) {
    let memory = store.stats().memory;
    assert!(memory.used() <= memory.budget, "{} bytes of {memory:?}", memory.used());
}

async fn keyspaces_with(engine: Engine, memory: u64, at: u64) -> Attempt {
    let store = open_with(&engine, options().memory_bytes_max(memory)).await?;
    // The default one counts.
    for number in 1..at {
        store.keyspace(&number.to_string()).await?;
    }
    keeps_its_memory(&store);
    store.close().await?;
    Ok(Cost::default())
}

async fn most_keyspaces(engine: Engine, at: u64) -> Attempt {
    keyspaces_with(engine, MEMORY / 2 * 3, at).await
}

async fn least_keyspaces(engine: Engine, at: u64) -> Attempt {
    keyspaces_with(engine, 16 * MIB, at).await
}

/// Regression: 6,000 keyspaces used 20.3 of 16 MiB. Each flush adds a table to each keyspace, and tables have metadata in memory.
async fn least_tables(engine: Engine, at: u64) -> Attempt {
    let options = options().memory_bytes_max(16 * MIB);
    let store = open_with(&engine, options.clone()).await?;
    let mut keyspaces = Vec::new();
    for number in 1..1_024 {
        keyspaces.push(store.keyspace(&format!("keyspace {number}")).await?);
    }
    let all: Vec<u64> = (0..at).collect();
    for round in all.chunks(keyspaces.len()) {
        for (keys, number) in keyspaces.iter().zip(round) {
            keys.put(key(*number), value(*number, 100)).relaxed().await?;
        }
        store.flush().await?;
        keeps_its_memory(&store);
    }
    store.settle().await?;
    keeps_its_memory(&store);
    store.close().await?;
    drop((keyspaces, store));
    let store = open_with(&engine, options).await?;
    keeps_its_memory(&store);
    let keys = store.keyspace("keyspace 1").await?;
    check(keys.get(&key(0)).await?.as_deref(), 0, 100)?;
    store.close().await?;
    Ok(Cost::default())
}

async fn writers(engine: Engine, at: u64) -> Attempt {
    let store = open(&engine).await?;
    let keys = store.default_keyspace();
    keys.put(key(0), value(0, 100)).await?;
    meter::rest().await;
    let (puts, cost) = count(join_all((0..at).map(|number| keys.put(key(number), value(number, 100))))).await;
    puts.into_iter().collect::<Result<()>>()?;
    store.close().await?;
    Ok(cost)
}

fn values(points: Points) {
    Sweep::judge_all(&[
        meter::sweep_worlds(&GET_VALUE, points, &config(), of_get, get_value),
        meter::sweep_worlds(&PUT_VALUE, points, &config(), |at| Cost::of_group(at + BESIDE), put_value),
    ]);
}

fn loads(points: Points) {
    let free = |_: u64| Cost::default();
    Sweep::judge_all(&[
        meter::sweep_worlds(&LOAD_VALUE, points, &config(), of_load, load_value),
        meter::sweep_worlds(&FITTING_VALUE, points, &config(), free, gets_of_what_fits),
        meter::sweep_worlds(&JUST_FITTING_VALUE, points, &config(), free, gets_of_what_just_fits),
    ]);
}

fn ranges(points: Points) {
    let ten = |at: u64| {
        let cost = of_range(10 * (at + BESIDE));
        // Values outside of their leaf are read together, with more and more of them ahead.
        let apart = Cost {
            requests: cost.requests + 2,
            bytes: cost.bytes + 10 * BLOCK,
            rounds: cost.rounds + 2,
            ..cost
        };
        if at > INLINE { apart } else { cost }
    };
    Sweep::judge_all(&[
        meter::sweep_worlds(&SCAN_VALUE, points, &config(), ten, scan_value),
        meter::sweep_worlds(&RANGE, points, &config(), |at| of_range(at * (100 + BESIDE)), range),
    ]);
}

fn keys(points: Points) {
    // A leaf has two entries at least.
    let of_key = |at: u64| Cost::together(1, BLOCK + 2 * at);
    let of_gets = |at: u64| Cost::together(at, at * BLOCK).in_rounds(at.div_ceil(GETS));
    let of_few = |at: u64| {
        let cost = of_get(at);
        Cost { requests: FEW * cost.requests, bytes: FEW * cost.bytes, ..cost }
    };
    // An absent key costs as much as an existing one, at most.
    let of_absent = |_: u64| Cost::together(64, 64 * BLOCK);
    Sweep::judge_all(&[
        meter::sweep_worlds(&KEY, points, &config(), of_key, get_key),
        meter::sweep_worlds(&GETS_AT_ONCE, points, &config(), of_gets, gets_at_once),
        meter::sweep_worlds(&GETS_OF_VALUES, points, &config(), of_few, gets_of_values),
        meter::sweep_worlds(&ABSENT, points, &config(), of_absent, absent),
    ]);
}

fn batches_and_writers(points: Points) {
    let of_batch = |at: u64| Cost::of_group(at * (20 + BESIDE));
    // The first writer's record is a group alone, and all others share the next group.
    let of_writers = |at: u64| match at {
        1 => Cost::of_group(100 + BESIDE),
        _ => Cost::together(2, at * (100 + BESIDE) + BLOCK).with_flushes(2).in_rounds(4),
    };
    Sweep::judge_all(&[
        meter::sweep_worlds(&BATCH, points, &config(), of_batch, batch),
        meter::sweep_worlds(&WRITERS, points, &config(), of_writers, writers),
    ]);
}

fn batches_of_bytes(points: Points) {
    // Its bytes, and zeros of the log's next segment, which is up to three times as long.
    let of_batch = |at: u64| {
        let requests = 16 + 4 * at / AHEAD;
        Cost::together(requests, 4 * at).with_flushes(4).in_rounds(requests)
    };
    for (memory, axis) in &BATCH_BYTES {
        let config = Config::new().arena_bytes_max(2 * *memory as usize);
        let most = axis.limit.expect("it has one").most;
        let attempt = async |engine: Engine, at: u64| batch_bytes(engine, *memory, most, at).await;
        Sweep::judge_all(&[meter::sweep_worlds(axis, points, &config, of_batch, attempt)]);
    }
}

fn snapshots_and_keyspaces(points: Points) {
    let ideal = |_: u64| of_get(100);
    let free = |_: u64| Cost::default();
    Sweep::judge_all(&[
        meter::sweep_worlds(&SNAPSHOTS, points, &config(), ideal, snapshots),
        meter::sweep_worlds(&KEYSPACES, points, &config(), ideal, keyspaces),
        meter::sweep_worlds(&LEAST_KEYSPACES, points, &config(), free, least_keyspaces),
    ]);
}

#[test]
fn gets_and_puts_of_values_of_every_length() {
    values(Axis::points);
}

#[test]
fn loads_of_values_of_every_length() {
    loads(Axis::points);
}

#[test]
fn ranges_of_every_length() {
    ranges(Axis::points);
}

#[test]
fn keys_of_every_length_number_and_share() {
    keys(Axis::points);
}

#[test]
fn every_number_of_operations_and_writers() {
    batches_and_writers(Axis::points);
}

#[test]
fn batches_as_long_as_the_memory_allows() {
    batches_of_bytes(Axis::points);
}

#[test]
fn every_number_of_snapshots_and_keyspaces() {
    snapshots_and_keyspaces(Axis::points);
}

#[test]
#[ignore = "minutes: the points between those of every gate, and what takes hundreds of megabytes"]
fn the_points_between() {
    for sweep in [values, loads, ranges, keys, batches_and_writers, batches_of_bytes, snapshots_and_keyspaces]
    {
        sweep(Axis::all_points);
    }
    let wide = Config::new().arena_bytes_max(2 << 30);
    let longest = |at: u64| Cost::of_group(at + BESIDE);
    let free = |_: u64| Cost::default();
    let of_keyspace = |_: u64| of_get(100);
    Sweep::judge_all(&[
        meter::sweep_worlds(&LONGEST_VALUE, Axis::points, &wide, longest, longest_value),
        meter::sweep_worlds(&MANY_KEYSPACES, Axis::points, &config(), of_keyspace, keyspaces),
        meter::sweep_worlds(&MOST_KEYSPACES, Axis::points, &config(), free, most_keyspaces),
        meter::sweep_worlds(&LEAST_TABLES, Axis::points, &config(), free, least_tables),
    ]);
}
