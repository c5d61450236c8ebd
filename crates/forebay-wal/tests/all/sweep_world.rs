//! The cost for a disk of operations of a log, at every length and number that a user may choose (forebay-test/SWEEPS.md). A
//! failure prints each point of its axis with its counts.

use forebay::{Config, Engine};
use forebay_test::sweep::meter::{self, Attempt, count};
use forebay_test::sweep::{Axis, BLOCK, Cost, Limit, Points, Sweep, content as record};
use forebay_wal::{Batch, Lsn, Options, Result, Wal};
use futures::future::join_all;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const DIR: &str = "/disk/log";
/// The bytes of a segment where the axis is another one, and the longest record of these logs.
const SEGMENT: u64 = 2 * MIB;
const RECORD_MAX: u64 = 256 * KIB;
/// Bytes of a group in addition to its records, and of a record in addition to its data.
const GROUP: u64 = 256;
const BESIDE: u64 = 4;
/// The bytes that a reader and a recovery read at a time.
const CHUNK: u64 = 256 * KIB;

static RECORD: Axis = Axis {
    name: "log record",
    unit: "bytes",
    package: "forebay-wal",
    range: 0..=2 * RECORD_MAX,
    crosses: &[
        ("FIRST_BYTES", 256),
        ("GRAIN", 4096),
        ("COPY_BYTES_MAX", 16 << 10),
        ("INITIAL_BYTES", 32 << 10),
        ("ALLOCATED_GROUP_BYTES", 32 << 10),
        ("COPY_BYTES", 64 << 10),
        ("UNIT_MAX", 64 << 10),
    ],
    steps: &[],
    limit: Some(Limit { most: RECORD_MAX, words: &["262144", "record_bytes_max"] }),
};
static READ: Axis = Axis {
    name: "log record of a reader",
    unit: "bytes",
    package: "forebay-wal",
    range: 0..=RECORD_MAX,
    crosses: &[("CHUNK_BYTES", 256 << 10)],
    steps: &[],
    limit: None,
};
static APPENDERS: Axis = Axis {
    name: "log appenders",
    unit: "appends at once",
    package: "forebay-wal",
    range: 1..=1024,
    crosses: &[],
    steps: &[],
    limit: None,
};
static BATCH: Axis = Axis {
    name: "log batch",
    unit: "records",
    package: "forebay-wal",
    range: 1..=4096,
    crosses: &[],
    steps: &[],
    limit: None,
};
static SEGMENT_BYTES: Axis = Axis {
    name: "log segment",
    unit: "bytes",
    package: "forebay-wal",
    range: 64 * KIB..=4 * MIB,
    crosses: &[("SEGMENT_BYTES_MIN", 64 << 10), ("STEP_BYTES", 64 << 10), ("ZEROS_BYTES", 256 << 10)],
    steps: &[],
    limit: None,
};
static REOPENED: Axis = Axis {
    name: "log reopened",
    unit: "segments",
    package: "forebay-wal",
    range: 0..=64,
    crosses: &[("READ_DEPTH", 4)],
    steps: &[],
    limit: None,
};
static VALUE: Axis = Axis {
    name: "log value",
    unit: "bytes",
    package: "forebay-wal",
    range: 0..=1100,
    crosses: &[("VALUE_BYTES_MAX", 1024)],
    steps: &[],
    limit: Some(Limit { most: 1024, words: &["1024", "as records"] }),
};
static VALUE_KEY: Axis = Axis {
    name: "log value key",
    unit: "bytes",
    package: "forebay-wal",
    range: 1..=40,
    crosses: &[("KEY_BYTES_MAX", 32)],
    steps: &[],
    limit: Some(Limit { most: 32, words: &["1 to 32", "take another one"] }),
};
static VALUES: Axis = Axis {
    name: "log values",
    unit: "values",
    package: "forebay-wal",
    range: 1..=66,
    crosses: &[("VALUES_MAX", 64)],
    steps: &[],
    limit: Some(Limit { most: 64, words: &["64", "unset one"] }),
};
/// In segments of 64 KiB, a quarter of which is the limit of all values.
static VALUE_TABLE: Axis = Axis {
    name: "log values together",
    unit: "bytes",
    package: "forebay-wal",
    range: KIB..=18 * KIB,
    crosses: &[],
    steps: &[],
    limit: Some(Limit { most: 16 * KIB, words: &["16384", "unset one", "longer segments"] }),
};

fn options() -> Options {
    let options = Options::new().segment_bytes(SEGMENT).record_bytes_max(RECORD_MAX as usize);
    // No record stays in memory: each is read from the disk.
    options.recent_bytes(0).log_id(7)
}

/// Opens the log and waits for its work in the background.
async fn open(engine: &Engine, options: Options) -> Result<Wal> {
    let (wal, _) = Wal::open(engine, DIR, options).await?;
    meter::rest().await;
    Ok(wal)
}

/// Asserts that the log has `count` records from `first` on, by number and length.
async fn check(wal: &Wal, first: Lsn, count: u64, len: u64) -> std::result::Result<(), String> {
    let mut reader = wal.read_from(first);
    for number in 0..count {
        let found = reader.next().await.transpose().map_err(|error| error.to_string())?;
        if found.is_none_or(|found| found[..] != record(number, len)[..]) {
            return Err(format!("record {number} of {len} bytes differs"));
        }
    }
    Ok(())
}

/// Has the log behind its first append, which is not like the others.
async fn begun(engine: &Engine, options: Options) -> Result<Wal> {
    let wal = open(engine, options).await?;
    wal.append(b"first").await?;
    meter::rest().await;
    Ok(wal)
}

async fn append(engine: Engine, at: u64) -> Attempt {
    let wal = begun(&engine, options()).await?;
    let bytes = record(0, at);
    let (appended, cost) = count(wal.append(&bytes)).await;
    check(&wal, appended?, 1, at).await?;
    wal.close().await?;
    Ok(cost)
}

/// Returns how many records a log has that is read.
fn records(len: u64) -> u64 {
    (512 * KIB / (len + BESIDE)).clamp(2, 4096)
}

/// A reader reads one piece after the other; a group that is longer than one is read again, whole.
fn of_read(at: u64) -> Cost {
    let bytes = records(at) * (at + BESIDE) + GROUP;
    let pieces = 2 + 2 * bytes.div_ceil(CHUNK);
    Cost::together(pieces, 2 * bytes + CHUNK).in_rounds(pieces)
}

async fn read(engine: Engine, at: u64) -> Attempt {
    let wal = begun(&engine, options()).await?;
    let records: Vec<Vec<u8>> = (0..records(at)).map(|number| record(number, at)).collect();
    let mut first = None;
    // Groups of up to 64 KiB, or of one record.
    for some in records.chunks((64 * KIB / (at + BESIDE)).max(1) as usize) {
        let slices: Vec<&[u8]> = some.iter().map(Vec::as_slice).collect();
        let lsn = wal.append(&slices[..]).await?;
        first.get_or_insert(lsn);
    }
    meter::rest().await;
    let first = first.ok_or("no record")?;
    let (read, cost) = count(check(&wal, first, records.len() as u64, at)).await;
    read?;
    wal.close().await?;
    Ok(cost)
}

async fn appenders(engine: Engine, at: u64) -> Attempt {
    let wal = begun(&engine, options()).await?;
    let bytes = record(0, 100);
    let (appended, cost) = count(join_all((0..at).map(|_| wal.append(&bytes)))).await;
    let appended = appended.into_iter().collect::<Result<Vec<Lsn>>>()?;
    assert_eq!(appended.len() as u64, at);
    wal.close().await?;
    Ok(cost)
}

async fn batch(engine: Engine, at: u64) -> Attempt {
    let wal = begun(&engine, options()).await?;
    let mut batch = Batch::new();
    for number in 0..at {
        batch.push(record(number, 100));
    }
    let (appended, cost) = count(wal.append(&batch)).await;
    check(&wal, appended?, at, 100).await?;
    wal.close().await?;
    Ok(cost)
}

async fn segment(engine: Engine, at: u64) -> Attempt {
    let wal = begun(&engine, options().segment_bytes(at.next_multiple_of(BLOCK))).await?;
    let bytes = record(0, 100);
    let (appended, cost) = count(wal.append(&bytes)).await;
    check(&wal, appended?, 1, 100).await?;
    wal.close().await?;
    Ok(cost)
}

/// Asserts that the log has these values and no other, also once it was closed and opened again.
async fn check_values(
    engine: &Engine,
    wal: Wal,
    options: Options,
    expected: &[(String, Vec<u8>)],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let found = wal.values();
    wal.close().await?;
    drop(wal);
    let (wal, _) = Wal::open(engine, DIR, options).await?;
    if found != expected || wal.values() != expected {
        return Err("values that differ".into());
    }
    wal.close().await?;
    Ok(())
}

/// Sets a value of `len` bytes with a key of `key` bytes.
async fn set(engine: &Engine, key: u64, len: u64) -> Attempt {
    let wal = begun(engine, options()).await?;
    let (key, value) = ("k".repeat(key as usize), record(0, len));
    let (set, cost) = count(wal.set(&key, &value)).await;
    set?;
    check_values(engine, wal, options(), &[(key, value)]).await?;
    Ok(cost)
}

async fn value(engine: Engine, at: u64) -> Attempt {
    set(&engine, 4, at).await
}

async fn value_key(engine: Engine, at: u64) -> Attempt {
    set(&engine, at, 100).await
}

/// Sets one value more than before.
async fn values(engine: Engine, at: u64) -> Attempt {
    let wal = begun(&engine, options()).await?;
    let entries: Vec<_> = (0..at).map(|number| (format!("{number:03}"), record(number, 100))).collect();
    let Some(((key, value), before)) = entries.split_last() else { return Err("no value".into()) };
    for (key, value) in before {
        wal.set(key, value).await?;
    }
    meter::rest().await;
    let (set, cost) = count(wal.set(key, value)).await;
    set?;
    check_values(&engine, wal, options(), &entries).await?;
    Ok(cost)
}

/// Sets values of this many bytes together, in one batch.
async fn value_table(engine: Engine, at: u64) -> Attempt {
    /// The bytes of a table without entries, and of an entry in addition to its value: their lengths, and a key of three bytes.
    const TABLE: u64 = 2;
    const ENTRY: u64 = 6;
    let options = || options().segment_bytes(64 * KIB);
    let wal = begun(&engine, options()).await?;
    let count_of_entries = (at - TABLE).div_ceil(ENTRY + 1000);
    let len = |number: u64| {
        (at - TABLE) / count_of_entries + u64::from(number < (at - TABLE) % count_of_entries) - ENTRY
    };
    let entries: Vec<_> =
        (0..count_of_entries).map(|number| (format!("{number:03}"), record(number, len(number)))).collect();
    let mut batch = Batch::new();
    for (key, value) in &entries {
        batch.set(key, value)?;
    }
    let (set, cost) = count(wal.append(&batch)).await;
    set?;
    check_values(&engine, wal, options(), &entries).await?;
    Ok(cost)
}

/// The log is read once to its end, a segment after the other. The rest is made new: end, lock, a segment or two.
fn of_reopening(at: u64) -> Cost {
    let segment = 64 * KIB;
    Cost::together(12 + 2 * at, (at + 4) * segment).with_flushes(8).in_rounds(16 + 2 * at)
}

async fn reopen(engine: Engine, at: u64) -> Attempt {
    let options = || options().segment_bytes(64 * KIB);
    let wal = open(&engine, options()).await?;
    let bytes = record(0, 40 * KIB);
    for _ in 0..at {
        wal.append(&bytes).await?;
    }
    wal.close().await?;
    drop(wal);
    meter::rest().await;
    let (opened, cost) = count(Wal::open(&engine, DIR, options())).await;
    let (wal, _) = opened?;
    assert_eq!(wal.next_lsn(), Lsn(at + 1));
    wal.close().await?;
    Ok(cost)
}

fn lengths(points: Points) {
    let config = Config::new();
    Sweep::judge_all(&[
        meter::sweep_worlds(&RECORD, points, &config, |at| Cost::of_group(at + BESIDE), append),
        meter::sweep_worlds(&READ, points, &config, of_read, read),
    ]);
}

fn numbers(points: Points) {
    let config = Config::new();
    // The first append is a group by itself, and all others are the next one.
    let of_appenders = |at: u64| match at {
        1 => Cost::of_group(100 + BESIDE),
        _ => Cost::together(2, at * (100 + BESIDE) + BLOCK).with_flushes(2).in_rounds(4),
    };
    let of_batch = |at: u64| Cost::of_group(at * (100 + BESIDE));
    Sweep::judge_all(&[
        meter::sweep_worlds(&APPENDERS, points, &config, of_appenders, appenders),
        meter::sweep_worlds(&BATCH, points, &config, of_batch, batch),
    ]);
}

fn segments(points: Points) {
    let config = Config::new();
    Sweep::judge_all(&[
        meter::sweep_worlds(&SEGMENT_BYTES, points, &config, |_| Cost::of_group(100 + BESIDE), segment),
        meter::sweep_worlds(&REOPENED, points, &config, of_reopening, reopen),
    ]);
}

fn values_beside_records(points: Points) {
    let config = Config::new();
    let of_values = |number: u64, len: u64| Cost::of_group(2 + number * (6 + len));
    Sweep::judge_all(&[
        meter::sweep_worlds(&VALUE, points, &config, |at| of_values(1, 1 + at), value),
        meter::sweep_worlds(&VALUE_KEY, points, &config, |at| of_values(1, 100 + at), value_key),
        meter::sweep_worlds(&VALUES, points, &config, |at| of_values(at, 100), values),
        meter::sweep_worlds(&VALUE_TABLE, points, &config, Cost::of_group, value_table),
    ]);
}

#[test]
fn records_of_every_length() {
    lengths(Axis::points);
}

#[test]
fn every_number_of_appenders_and_records() {
    numbers(Axis::points);
}

#[test]
fn segments_of_every_length_and_number() {
    segments(Axis::points);
}

#[test]
fn values_of_every_length_and_number() {
    values_beside_records(Axis::points);
}

#[test]
#[ignore = "a minute: the points between those of every gate"]
fn the_points_between() {
    for sweep in [lengths, numbers, segments, values_beside_records] {
        sweep(Axis::all_points);
    }
}
