//! Tests of `measure writes`.

use super::*;
use crate::cleanup::TempFile;
use crate::lanes::{test_file, test_job, test_row, test_table};
use crate::system_counters::Bytes;

const FILE_BYTES: u64 = 2 << 20;

fn job(temp: &TempFile, row: &str, pattern: &str, clients: usize, operations: u64, seed: u64) -> Job {
    let work = json!({
        "pattern": pattern, "clients": clients, "operations": operations, "file_bytes": FILE_BYTES,
    });
    test_job(SPEC.name, row, temp.path(), work, seed)
}

fn offsets(pattern: &str, operations: u64) -> Vec<u64> {
    let pattern = pattern.to_owned();
    Work { pattern, file_bytes: MIB, clients: 1, operations }.offsets(5)
}

#[test]
fn dense_writes_meet_each_block_of_a_range_once_and_not_in_order() {
    let offsets = offsets("dense", 100);
    let mut sorted = offsets.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..100).map(|block| block * BLOCK_BYTES).collect::<Vec<_>>());
    assert_ne!(offsets, sorted);
}

#[test]
fn sparse_writes_are_spread_over_the_file_and_meet_no_block_twice() {
    let mut offsets = offsets("sparse", 50);
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets.len(), 50);
    assert!(offsets.iter().all(|offset| offset.is_multiple_of(BLOCK_BYTES) && *offset < 1 << 20));
    assert!(offsets[49] > 900 << 10, "the last one is in the last fiftieth: {}", offsets[49]);
}

#[test]
fn every_row_writes_all_of_its_blocks_and_no_other() {
    let (_cleanup, temp) = test_file(1, FILE_BYTES as usize);
    for (seed, way) in (1..).zip(SPEC.ways) {
        for (pattern, clients) in [("dense", 1), ("sparse", 3)] {
            let before = std::fs::read(temp.path()).expect("readable");
            // With the same seed, the block would keep its contents.
            let job = job(&temp, way.name, pattern, clients, 20, 2 * seed + clients as u64 / 2);
            let outcome =
                Writes.sample(&job).unwrap_or_else(|error| panic!("{} {pattern}: {error:#}", way.name));
            assert_eq!(outcome.operations, 20, "{}", way.name);
            let figure = |name: &str| outcome.figures.get(name);
            assert!(figure(metric::WRITE_MS) > Some(0.0), "{}", way.name);
            assert!(figure(metric::TOTAL_MS) >= figure(metric::WRITE_MS), "{}", way.name);
            assert_eq!(figure(LEFT_OUT_MS).is_none(), is_durable(way.name), "{}", way.name);
            let after = std::fs::read(temp.path()).expect("readable");
            let mut changed: Vec<u64> = (0..FILE_BYTES / BLOCK_BYTES)
                .filter(|block| {
                    let at = (block * BLOCK_BYTES) as usize..((block + 1) * BLOCK_BYTES) as usize;
                    before[at.clone()] != after[at]
                })
                .map(|block| block * BLOCK_BYTES)
                .collect();
            changed.sort_unstable();
            let mut expected = job.work::<Work>().expect("its own").offsets(job.seed);
            expected.sort_unstable();
            assert_eq!(changed, expected, "{} {pattern}", way.name);
        }
    }
}

#[test]
fn a_block_that_was_not_written_is_noticed() {
    let (_cleanup, temp) = test_file(1, FILE_BYTES as usize);
    let job = job(&temp, "naive", "dense", 1, 8, 3);
    let (clients, _, _) = write(&job).expect("it can be written");
    verify(&job, &clients).expect("all are there");
    let offset = job.work::<Work>().expect("its own").offsets(job.seed)[5];
    temp.file().write_all_at(&[0; 8], offset).expect("it may be written");
    let error = verify(&job, &clients).expect_err("one is spoilt");
    assert!(error.to_string().contains(&format!("offset {offset} ")), "{error}");
}

#[test]
fn no_write_is_begun_after_the_time_is_over() {
    let (_cleanup, temp) = test_file(1, FILE_BYTES as usize);
    for way in SPEC.ways {
        let mut job = job(&temp, way.name, "dense", 2, 100, 4);
        job.seconds = 0.0;
        let outcome = Writes.sample(&job).expect("it ends");
        assert_eq!(outcome.operations, 2, "each client has begun one: {}", way.name);
    }
}

#[test]
fn advertised_features_leave_out_the_reliable_ones() {
    let times = Times { write: 0.01, sync: 0.4, total: 0.5, left_out: 0.3, ..Times::default() };
    let mut outcome = Outcome { operations: 1000, bytes: 4_096_000, ..Outcome::default() };
    outcome.evidence.counter_deltas.device = Some(Bytes { read: 7, written: 8_192_000 });
    let durable = figures("sync-close", &times, outcome.clone()).metrics();
    assert_eq!(durable.get(ADVERTISED), Some(100_000.0));
    assert_eq!(durable.get(RELIABLE), Some(2_000.0));
    assert_eq!(durable.get(metric::DEVICE_BYTES_PER_BYTE), Some(2.0));
    assert_eq!((durable.get(metric::SYNC_MS), durable.get(LEFT_OUT_MS)), (Some(400.0), None));
    let naive = figures("naive", &times, outcome).metrics();
    assert_eq!((naive.get(RELIABLE), naive.get(LEFT_OUT_MS)), (None, Some(300.0)));
}

fn row(name: &str, advertised: f64, reliable: Option<f64>) -> Row {
    let rates = [Some((ADVERTISED, advertised)), reliable.map(|rate| (RELIABLE, rate))];
    test_row(name, &[0.98, 1.0, 1.02], &rates.into_iter().flatten().collect::<Vec<_>>())
}

fn table(pattern: &str, clients: u32, rows: Vec<Row>) -> Table {
    test_table(SPEC.name, json!({ "pattern": pattern, "clients": clients }), rows)
}

/// A device with a slow flush: the page cache accepts everything immediately, and each flush costs.
#[test]
fn the_ratio_of_a_slow_flush_is_found_for_the_fewest_clients() {
    let rows = || {
        vec![
            row("naive", 400e3, None),
            row("sync-close", 390e3, Some(40e3)),
            row("o-direct-dsync", 2e3, Some(2e3)),
            row("fsync-each", 380e3, Some(1e3)),
        ]
    };
    let sentences = Writes.verdicts(&[&table("sparse", 4, rows()), &table("sparse", 1, rows())]);
    assert_eq!(
        sentences,
        [
            "sparse, 1 client(s): `naive` advertises 400,000 writes/s, 400 times the durable 1,000 (`fsync-each`); \
             best durable: 40,000 (`sync-close`)",
            "sparse, 1 client(s): durable one by one: `o-direct-dsync` is 2 times faster than `fsync-each` \
             (2,000 and 1,000 writes/s)",
        ]
    );
}

#[test]
fn a_device_on_which_all_are_alike_is_not_accused() {
    let rows = vec![
        row("naive", 1.01e3, None),
        row("o-direct-dsync", 1.0e3, Some(1.0e3)),
        row("fsync-each", 1.0e3, Some(0.99e3)),
    ];
    let sentences = Writes.verdicts(&[&table("dense", 1, rows)]);
    assert!(sentences[0].contains("no clear difference"), "{sentences:?}");
    assert!(sentences[1].contains("all ways are about as fast"), "{sentences:?}");
}

/// Regression: on a disk that other machines share, repeats of one row were between 12,000 and 80,000 per second. Their
/// medians differed by half, no row was above all repeats of another, and so they were called "about as fast".
#[test]
fn repeats_that_spread_widely_are_not_called_alike() {
    let rows = |first: [f64; 3]| {
        let wide =
            |name: &str, rates: [f64; 3]| test_row(name, &rates, &[(ADVERTISED, 1.0), (RELIABLE, 1.0)]);
        vec![
            wide("o-direct", first),
            wide("o-direct-dsync", [12e3, 20e3, 75e3]),
            wide("fsync-each", [14e3, 22e3, 60e3]),
        ]
    };
    let sentences = Writes.verdicts(&[&table("dense", 1, rows([15e3, 31e3, 80e3]))]);
    let text = sentences.join("\n");
    assert_eq!(sentences.len(), 3, "{text}");
    assert!(sentences[0].contains("the repeats spread too widely (12,000 to 80,000 writes/s)"), "{text}");
    assert!(sentences[1].contains("the repeats spread too widely (12,000 to 75,000 writes/s)"), "{text}");
    assert!(sentences[2].contains("(12,000 to 80,000 writes/s) to show the cost of a flush"), "{text}");
    assert!(!text.contains("about as fast") && !text.contains("no clear difference"), "{text}");
    // Near medians show no cache where the repeats are that wide.
    let near = Writes.verdicts(&[&table("dense", 1, rows([14e3, 22e3, 80e3]))]);
    assert!(near[2].contains("to show the cost of a flush"), "{near:?}");
    // A row above all others is mentioned, however wide its own spread is.
    let clear = Writes.verdicts(&[&table("dense", 1, rows([150e3, 310e3, 800e3]))]);
    assert!(clear[0].contains("`o-direct` advertises 310,000 writes/s, "), "{clear:?}");
}

#[test]
fn rows_without_figures_have_no_sentence() {
    assert!(Writes.verdicts(&[&table("dense", 1, vec![row("naive", 1e6, None)])]).is_empty());
    assert!(Writes.verdicts(&[&table("dense", 1, vec![Row::skipped("fsync-each", "no")])]).is_empty());
}

/// Returns the sentences on flushes: a write lasts `write_us`, a durable write `durable_us`, and a sync of 1,000 `sync_ms`.
fn flushes(write_us: f64, durable_us: f64, sync_ms: f64) -> Vec<String> {
    let mut plain = row("o-direct", 1e6 / write_us, None);
    for metrics in plain.samples.iter_mut().map(|sample| &mut sample.metrics).chain([&mut plain.metrics]) {
        metrics.set(metric::TOTAL_MS, write_us).set(LEFT_OUT_MS, sync_ms);
    }
    let durable = row("o-direct-dsync", 1e6 / durable_us, Some(1e6 / durable_us));
    flush(&table("dense", 1, vec![plain, durable]))
}

#[test]
fn a_slow_flush_and_a_volatile_cache_are_distinguished() {
    let slow = flushes(100.0, 5_100.0, 5.0);
    assert_eq!(slow.len(), 1, "{slow:?}");
    assert!(slow[0].contains("a flush costs 50 times as much as a write (5,000 and 100 µs)"), "{slow:?}");
    let cache = flushes(20.0, 80.0, 60.0);
    assert_eq!(cache.len(), 1, "{cache:?}");
    assert!(cache[0].contains("from a volatile cache: their sync takes 60 of 80 ms"), "{cache:?}");
    assert_eq!(flushes(20.0, 420.0, 200.0).len(), 2, "both");
    assert!(flushes(100.0, 400.0, 0.5).is_empty(), "neither, and a durable write costs something");
    let none = flushes(100.0, 120.0, 0.1);
    assert!(none.len() == 1 && none[0].contains("no sign of a volatile cache"), "{none:?}");
}
