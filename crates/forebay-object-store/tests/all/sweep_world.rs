//! The cost for a disk of operations of an object store, at every length and number that a user may choose
//! (forebay-test/SWEEPS.md). A failure prints each point of its axis with its counts.

use std::cell::Cell;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::sync::OnceLock;

use forebay::{Config, Engine, Mode, Open};
use forebay_object_store::ForebayStore;
use forebay_sim as sim;
use forebay_test::sweep::meter::{self, Attempt, count};
use forebay_test::sweep::{Axis, BLOCK, Cost, Points, Sweep};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::common::{self, bytes_of, dir};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const ROOT: &str = "/disk/objects";
/// More is read in parts, this many at a time.
const PART: u64 = MIB;
const PARTS: u64 = 4;
/// Ranges of a batch under way.
const RANGES_AT_ONCE: u64 = 128;

static GET: Axis = Axis {
    name: "object of a get",
    unit: "bytes",
    package: "forebay-object-store",
    range: 0..=9 * MIB,
    crosses: &[("CHUNK_BYTES_MAX", 8 << 20)],
    steps: &[],
    limit: None,
};
static PUT: Axis = Axis {
    name: "object of a put",
    unit: "bytes",
    package: "forebay-object-store",
    range: 0..=9 * MIB,
    crosses: &[("JOINED_BYTES_MAX", 64 << 10), ("RUN_BYTES_MAX", 4 << 20), ("REQUEST_BYTES_MAX", 8 << 20)],
    steps: &[],
    limit: None,
};
static RANGE: Axis = Axis {
    name: "object range",
    unit: "bytes",
    package: "forebay-object-store",
    range: 1..=9 * MIB,
    crosses: &[("BATCHED_BYTES_MAX", 1 << 20), ("PART_BYTES", (1 << 20) - 8192)],
    steps: &[],
    limit: None,
};
static RANGES: Axis = Axis {
    name: "object ranges",
    unit: "ranges",
    package: "forebay-object-store",
    range: 0..=2048,
    crosses: &[],
    steps: &[],
    limit: None,
};
static UPLOAD: Axis = Axis {
    name: "object parts",
    unit: "parts",
    package: "forebay-object-store",
    range: 1..=128,
    crosses: &[],
    steps: &[],
    limit: None,
};
static LIST: Axis = Axis {
    name: "object list",
    unit: "objects of a directory",
    package: "forebay-object-store",
    range: 0..=2048,
    crosses: &[("LOOKED_UP_MAX", 512)],
    steps: &[],
    limit: None,
};
static LINK: Axis = Axis {
    name: "object link",
    unit: "directories between a link and the one above that it leads to",
    package: "forebay-object-store",
    range: 1..=160,
    crosses: &[("ABOVE_MAX", 64)],
    steps: &[],
    limit: None,
};
static DIRECTORIES: Axis = Axis {
    name: "object directories",
    unit: "directories with a put each",
    package: "forebay-object-store",
    range: 4095..=4505,
    crosses: &[("KNOWN_MAX", 4096)],
    steps: &[],
    limit: None,
};

/// Opens the store and waits for its work in the background.
async fn open(engine: &Engine) -> forebay::Result<ForebayStore> {
    engine.create_dir_all(ROOT).await?;
    let store = ForebayStore::builder(engine, ROOT).read_mode(Mode::Direct).open().await?;
    meter::rest().await;
    Ok(store)
}

/// Makes a sparse object of a length.
async fn sparse(engine: &Engine, len: u64) -> forebay::Result<()> {
    let file = engine.open(format!("{ROOT}/sparse"), Open::create()).await?;
    file.truncate(len).await
}

/// Returns the bytes of an object. Made once: test builds are slow at that.
fn content(len: u64) -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    &BYTES.get_or_init(|| bytes_of(0..9 * MIB))[..len as usize]
}

fn check(found: &[u8], len: u64) -> Result<(), String> {
    let is_right = found == content(len);
    if is_right { Ok(()) } else { Err(format!("{} bytes that differ from what was put", found.len())) }
}

async fn get(engine: Engine, at: u64) -> Attempt {
    let (store, location) = (open(&engine).await?, Path::from("object"));
    store.put(&location, content(at).to_vec().into()).await?;
    meter::rest().await;
    let (got, cost) = count(async { store.get(&location).await?.bytes().await }).await;
    check(&got?, at)?;
    Ok(cost)
}

async fn put(engine: Engine, at: u64) -> Attempt {
    let (store, location) = (open(&engine).await?, Path::from("object"));
    let (done, cost) = count(store.put(&location, content(at).to_vec().into())).await;
    done?;
    check(&store.get(&location).await?.bytes().await?, at)?;
    Ok(cost)
}

async fn range(engine: Engine, at: u64) -> Attempt {
    let (store, location) = (open(&engine).await?, Path::from("sparse"));
    sparse(&engine, 10 * MIB).await?;
    meter::rest().await;
    let (got, cost) = count(store.get_range(&location, 1_000..1_000 + at)).await;
    assert_eq!(got?.len() as u64, at);
    Ok(cost)
}

async fn ranges(engine: Engine, at: u64) -> Attempt {
    let (store, location) = (open(&engine).await?, Path::from("sparse"));
    sparse(&engine, 64 * MIB).await?;
    meter::rest().await;
    // Too far apart to be read together.
    let ranges: Vec<Range<u64>> = (0..at).map(|number| number * 24 * KIB..number * 24 * KIB + 100).collect();
    let (got, cost) = count(store.get_ranges(&location, &ranges)).await;
    let got = got?;
    assert!(got.len() as u64 == at && got.iter().all(|bytes| bytes.len() == 100));
    Ok(cost)
}

async fn upload(engine: Engine, at: u64) -> Attempt {
    const LEN: u64 = 64 * KIB;
    let (store, location) = (open(&engine).await?, Path::from("object"));
    let (done, cost) = count(async {
        let mut upload = store.put_multipart(&location).await?;
        let parts: Vec<_> = content(at * LEN)
            .chunks(LEN as usize)
            .map(|part| upload.put_part(part.to_vec().into()))
            .collect();
        try_join_all(parts).await?;
        upload.complete().await
    })
    .await;
    done?;
    check(&store.get(&location).await?.bytes().await?, at * LEN)?;
    Ok(cost)
}

/// Runs sweeps in a separate world with a store, and judges their results.
fn judge(sweeps: impl AsyncFnOnce(&Engine, &ForebayStore) -> Vec<Sweep<'static>>) {
    let ran = meter::world().config(Config::new()).run(async |engine| {
        let store = open(&engine).await.expect("a store");
        sweeps(&engine, &store).await
    });
    Sweep::judge_all(&ran.unwrap_or_else(|failure| panic!("{failure}")));
}

/// Lists a directory that grows from point to point. Its cost are calls of the file system: a list reads no object.
fn lists(points: Points) {
    judge(async |engine, store| {
        let made = Cell::new(0);
        let attempt = async |at: u64| -> Attempt {
            for number in made.get()..at {
                drop(engine.open(format!("{ROOT}/{number}"), Open::create_new()).await?);
            }
            made.set(at);
            meter::rest().await;
            let before = sim::node(0).counts().calls;
            let listed: Vec<_> = store.list(None).try_collect().await?;
            assert_eq!(listed.len() as u64, at);
            Ok(Cost { requests: sim::node(0).counts().calls - before, ..Cost::default() })
        };
        let ideal = |at: u64| Cost { requests: 1 + at.div_ceil(512), ..Cost::default() };
        vec![meter::sweep(&LIST, points, ideal, attempt).await]
    });
}

/// Regression: the loop of a link 65 directories below was seen one turn later, behind everything that it led to.
fn links(points: Points) {
    let root = dir();
    let store = futures::executor::block_on(common::store(root.path()));
    let mut sweep = Sweep::new(&LINK);
    for at in points(&LINK) {
        let prefix = vec!["d"; at as usize].join("/");
        let place = root.path().join(&prefix);
        fs::create_dir_all(&place).expect("directories");
        fs::write(root.path().join("object"), "above").expect("an object");
        symlink(root.path(), place.join("up")).expect("a link");
        let prefix = Path::from(prefix);
        let listed: Vec<_> = futures::executor::block_on(store.list(Some(&prefix)).collect());
        let objects = listed.iter().filter(|entry| entry.is_ok()).count() as u64;
        let outcome = match listed.last() {
            _ if objects > 0 => Err(format!("{objects} objects above the prefix are listed")),
            Some(Err(error)) if error.to_string().contains("in which it lies; remove one of them") => {
                Ok(Cost::default())
            }
            other => Err(format!("the list ends with {other:?}")),
        };
        sweep.add(at, Cost::default(), outcome);
        fs::remove_file(place.join("up")).expect("the link goes");
    }
    Sweep::judge_all(&[sweep]);
}

/// Puts into one directory after the other, round and round.
fn directories(points: Points) {
    judge(async |_, store| {
        let put = async |number: u64| {
            let location = Path::from(format!("d{number}/object"));
            store.put(&location, "x".into()).await.map(drop)
        };
        let made = Cell::new(0);
        let attempt = async |at: u64| -> Attempt {
            for number in made.replace(at)..at {
                put(number).await?;
            }
            let (done, cost) = count(async {
                for number in 0..at {
                    put(number).await?;
                }
                Ok::<_, object_store::Error>(())
            })
            .await;
            done?;
            Ok(cost)
        };
        let ideal = |at: u64| of_put(at, at * BLOCK).with_flushes(3 * at).in_rounds(3 * at);
        vec![meter::sweep(&DIRECTORIES, points, ideal, attempt).await]
    });
}

/// Returns the cost of a durable put in `requests`: writes into the machine's memory, a sync of the object, and those of its name.
fn of_put(requests: u64, bytes: u64) -> Cost {
    Cost::together(requests, bytes).with_flushes(3).in_rounds(3)
}

fn reads(points: Points) {
    let of_object = |at: u64| {
        let parts = at.div_ceil(PART);
        Cost::together(parts, at).in_rounds(parts.div_ceil(PARTS))
    };
    let of_range = |at: u64| {
        let parts = (1_000 + at).div_ceil(PART);
        // Parts do not start at blocks: each reads one more block.
        Cost::together(parts, 1_000 + at + parts * BLOCK).in_rounds(parts.div_ceil(PARTS))
    };
    let of_ranges = |at: u64| Cost::together(at, at * BLOCK).in_rounds(at.div_ceil(RANGES_AT_ONCE));
    let config = Config::new();
    Sweep::judge_all(&[
        meter::sweep_worlds(&GET, points, &config, of_object, get),
        meter::sweep_worlds(&RANGE, points, &config, of_range, range),
        meter::sweep_worlds(&RANGES, points, &config, of_ranges, ranges),
    ]);
}

fn puts(points: Points) {
    let config = Config::new();
    Sweep::judge_all(&[
        meter::sweep_worlds(&PUT, points, &config, |at| of_put(at.div_ceil(8 * MIB), at), put),
        meter::sweep_worlds(&UPLOAD, points, &config, |at| of_put(at, at * 64 * KIB), upload),
    ]);
}

#[test]
fn objects_ranges_and_batches_of_every_length() {
    reads(Axis::points);
}

#[test]
fn puts_of_every_length_and_number_of_parts() {
    puts(Axis::points);
}

#[test]
fn lists_of_every_length_and_links_from_every_depth() {
    lists(Axis::points);
    links(Axis::points);
}

#[test]
#[ignore = "a minute: the points between those of every gate, and some ten thousand puts"]
fn the_points_between() {
    reads(Axis::all_points);
    puts(Axis::all_points);
    lists(Axis::all_points);
    links(Axis::all_points);
    directories(Axis::points);
}
