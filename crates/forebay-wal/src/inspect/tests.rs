//! Tests of a case that the public API cannot reach: a rewritten log of many segments.

use std::collections::BTreeMap;
use std::path::Path;

use forebay::{Engine, Result as CoreResult};
use forebay_sim::{Profile, World};

use super::rewrite::Rewrite;
use super::{GroupKind, Report, inspect};
use crate::{ErrorKind, Lsn, Options, Wal};

const DIR: &str = "/disk/log";

/// Returns a record, of a length from 0 to half a segment of the test.
fn record(lsn: u64) -> Vec<u8> {
    let length = [0, 1, 200, 3_900, 4_096, 9_000, 33_000][(lsn % 7) as usize];
    (0..length as u64).map(|at| (lsn.wrapping_mul(13) + at) as u8).collect()
}

async fn rewritten(engine: &Engine, lsns: &[u64], first: u64, next: u64) -> CoreResult<Report> {
    engine.create_dir(DIR).await?;
    let mut rewrite = Rewrite::new(engine, Path::new(DIR), 7, first);
    rewrite.segment_bytes = 64 << 10;
    rewrite.begin().await.expect("begun");
    for &lsn in lsns {
        rewrite.push(lsn, &record(lsn)).await.expect("added");
        if lsn % 3 == 0 {
            // End the group, for many small groups.
            rewrite.flush().await.expect("written");
        }
    }
    let behind = rewrite.push(lsns.last().copied().unwrap_or(first - 1), b"again").await;
    assert!(behind.is_err_and(|error| error.kind() == ErrorKind::InvalidInput));
    rewrite.finish(next).await.expect("finished");
    Ok(inspect(engine, DIR).await.expect("a log"))
}

/// Writes a log of these records and reads it as any program would.
fn check(lsns: &[u64], first: u64, next: u64) -> Report {
    let mut world = World::new(lsns.len() as u64).disk(Profile::nand().at("/disk"));
    let report = world.run(async |engine| rewritten(&engine, lsns, first, next).await.expect("no fault"));
    let report = report.expect("the world runs");
    // All data is durable.
    world.power_cut();
    world.reboot();
    let read = world.run(async |engine| {
        let options = Options::new().segment_bytes(64 << 10).create(false);
        let (wal, recovery) = Wal::open(&engine, DIR, options).await.expect("it opens");
        assert_eq!((recovery.truncated_at, recovery.damage, recovery.tail_records), (None, Vec::new(), 0));
        assert_eq!(wal.next_lsn(), Lsn(next));
        let mut records = BTreeMap::new();
        let mut reader = wal.read_from(recovery.first);
        loop {
            match reader.next().await.transpose() {
                Ok(Some(record)) => assert!(records.insert(record.lsn().0, record.to_vec()).is_none()),
                Ok(None) => break,
                Err(error) => {
                    let Some(lost) = error.loss() else { panic!("{error}") };
                    reader = wal.read_from(lost.last.next());
                }
            }
        }
        assert_eq!(wal.append(b"the next").await.expect("an append"), Lsn(next));
        wal.close().await.expect("closing");
        assert!(inspect(&engine, DIR).await.expect("a log").is_whole());
        records
    });
    let expected: BTreeMap<u64, Vec<u8>> = lsns.iter().map(|&lsn| (lsn, record(lsn))).collect();
    assert!(read.expect("the world runs") == expected);
    assert!(report.is_whole(), "{report:?}");
    report
}

fn ranges(report: &Report) -> Vec<(u64, u64)> {
    let recovery = report.recovery.as_ref().expect("it opens");
    recovery.lost.iter().map(|lost| (lost.first.0, lost.last.0)).collect()
}

#[test]
fn records_with_gaps_become_a_log_of_many_segments() {
    let lsns: Vec<u64> = (5..150).filter(|lsn| !matches!(lsn, 9 | 30..=40 | 64 | 66 | 149)).collect();
    let report = check(&lsns, 5, 150);
    assert!(report.segments.len() > 8, "{}", report.segments.len());
    assert_eq!(ranges(&report), [(9, 9), (30, 40), (64, 64), (66, 66), (149, 149)]);
    assert!(report.lost_now.is_empty());
    let groups = report.segments.iter().flat_map(|segment| &segment.groups);
    assert_eq!(groups.filter(|group| matches!(group.kind, GroupKind::Gap(..))).count(), 5);
}

#[test]
fn gaps_at_both_ends_and_logs_without_records() {
    assert_eq!(ranges(&check(&[4, 5], 1, 9)), [(1, 3), (6, 8)]);
    assert_eq!(ranges(&check(&[], 1, 4)), [(1, 3)]);
    assert_eq!(ranges(&check(&[], 77, 77)), []);
    assert_eq!(ranges(&check(&[1 << 60], 1 << 60, (1 << 60) + 1)), []);
}
