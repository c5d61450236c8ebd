//! Values next to the records: durable with them, and present after every change of the log.

use crate::simulation::groups;

use std::fs;
use std::path::Path;

use crate::common::{self, dir, engine, files, open, options, quiet, record, records_wait};
use forebay_wal::inspect::{Verdict, inspect, repair};
use forebay_wal::{Batch, ErrorKind, Lsn, Options, Wal};

fn text(wal: &Wal, key: &str) -> Option<String> {
    wal.value(key).map(|value| String::from_utf8(value).unwrap())
}

/// Overwrites the newest group that counts with zeros.
fn strike_the_last(dir: &Path, skipped: usize) {
    let files = files(dir);
    let live = groups::live(&files);
    let group = &live[live.len() - 1 - skipped];
    let mut bytes = files[&group.file()].clone();
    bytes[group.offset as usize..group.offset as usize + group.len].fill(0);
    fs::write(dir.join(group.file()), bytes).unwrap();
}

#[test]
fn values_survive_every_change_of_the_log() {
    let (engine, dir) = (engine(), dir());
    let (mut wal, _) = open(&engine, &dir);
    assert!(wal.value("vote").is_none() && wal.values().is_empty());
    wal.set("vote", b"0").wait().unwrap();
    for round in 1..=12u64 {
        let vote = round.to_string();
        wal.set("vote", vote.as_bytes()).wait().unwrap();
        // This many that the truncation removes the segment with the value, and it is reused.
        for number in 0..200 {
            wal.append(&record(number)).queued().wait().unwrap();
        }
        wal.sync().wait().unwrap();
        let next = wal.next_lsn();
        match round % 4 {
            0 => wal.truncate_before(next).wait().unwrap(),
            1 => wal.reset_to(Lsn(5)).wait().unwrap(),
            2 => wal.truncate_from(wal.first_lsn().next()).wait().unwrap(),
            _ => wal.truncate_before(Lsn(next.0 - 1)).wait().unwrap(),
        }
        for number in 0..100 {
            wal.append(&record(number)).wait().unwrap();
        }
        assert_eq!(text(&wal, "vote"), Some(vote.clone()));
        if round % 3 == 0 {
            wal.close().wait().unwrap();
            wal = open(&engine, &dir).0;
        }
        assert_eq!(wal.values(), [("vote".to_owned(), vote.into_bytes())]);
    }
    wal.unset("vote").wait().unwrap();
    wal.close().wait().unwrap();
    assert!(open(&engine, &dir).0.values().is_empty());
}

#[test]
fn a_value_takes_no_number_and_is_written_without_its_future() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    wal.append(b"one").wait().unwrap();
    drop(wal.set("vote", b"first"));
    drop(wal.set("vote", b"second"));
    drop(wal.set("applied", b""));
    assert_eq!(wal.append(b"two").wait().unwrap(), Lsn(2));
    // Queued before the record, so durable with it at the latest.
    assert_eq!(text(&wal, "vote").as_deref(), Some("second"));
    assert_eq!(text(&wal, "applied").as_deref(), Some(""));
    wal.close().wait().unwrap();
    let (wal, recovery) = open(&engine, &dir);
    assert_eq!((recovery.last, wal.values().len()), (Lsn(2), 2));
}

#[test]
fn a_batch_has_records_and_values() {
    let (engine, dir) = (engine(), dir());
    // Without marks: groups are counted.
    let (wal, _) = Wal::open(&engine, dir.path(), quiet()).wait().unwrap();
    let mut batch = Batch::new();
    batch.push("one").push(vec![2; 300]).set("applied", b"1").unwrap().set("applied", b"2").unwrap();
    let groups = wal.stats().groups;
    let queued = wal.append(batch.clone()).queued().wait().unwrap();
    assert_eq!((queued.lsn(), wal.next_lsn()), (Lsn(1), Lsn(3)));
    assert_eq!(queued.wait().unwrap(), Lsn(1));
    assert_eq!(wal.stats().groups, groups + 1);
    assert_eq!(wal.values(), [("applied".to_owned(), b"2".to_vec())]);
    let again = wal.try_append(&batch).unwrap().expect("nothing else is queued");
    assert_eq!((again.lsn(), wal.next_lsn()), (Lsn(3), Lsn(5)));
    assert_eq!(again.wait().unwrap(), Lsn(3));
    assert_eq!(records_wait(&wal, 1).unwrap()[2..], [(3, b"one".to_vec()), (4, vec![2; 300])]);
    // Values alone.
    let mut batch = Batch::new();
    assert!(batch.is_empty());
    batch.set("applied", b"3").unwrap();
    let alone = wal.append(batch).queued().wait().unwrap();
    assert_eq!((alone.lsn(), wal.next_lsn()), (Lsn(5), Lsn(5)));
    assert_eq!(alone.wait().unwrap(), Lsn(5));
    assert_eq!(text(&wal, "applied").as_deref(), Some("3"));
    let empty = wal.append(Batch::new()).wait().unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::InvalidInput);
}

#[test]
fn limits_are_refused_with_a_sentence() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    let kind = |key: &str, value: &[u8]| wal.set(key, value).wait().map_err(|error| error.kind());
    assert_eq!(kind("", b""), Err(ErrorKind::InvalidInput));
    assert_eq!(kind(&"k".repeat(33), b""), Err(ErrorKind::InvalidInput));
    assert_eq!(kind("k", &[0; 1025]), Err(ErrorKind::TooLarge { limit: 1024 }));
    for number in 0..64 {
        assert_eq!(kind(&format!("key {number}"), b"value"), Ok(()));
    }
    assert_eq!(kind("one more", b"value"), Err(ErrorKind::InvalidInput));
    wal.unset("key 7").wait().unwrap();
    assert_eq!(kind("one more", b"value"), Ok(()));
    assert_eq!(wal.values().len(), 64);
    // A quarter of a segment, for all values together.
    let long = wal.values().iter().find_map(|(key, _)| kind(key, &[1; 1000]).err());
    assert_eq!(long, Some(ErrorKind::TooLarge { limit: 16 << 10 }));
    // A record leaves space for them in its segment.
    let most = (64 << 10) - 256 - 4 - 2;
    let refused = wal.append(&vec![1; most]).wait().unwrap_err();
    let ErrorKind::TooLarge { limit } = refused.kind() else { panic!("{refused}") };
    wal.append(&vec![2; limit - 4]).wait().unwrap();
    wal.append(&record(1)).wait().unwrap();
    assert_eq!(wal.values().len(), 64);
    for (key, _) in wal.values() {
        wal.unset(&key).wait().unwrap();
    }
    wal.append(&vec![3; most]).wait().unwrap();
    wal.close().wait().unwrap();
    drop(wal);
    assert!(open(&engine, &dir).0.values().is_empty());
}

#[test]
fn segments_that_are_too_short_for_the_values_are_refused() {
    let (engine, dir) = (engine(), dir());
    let long = Options::new().segment_bytes(1 << 20);
    let (wal, _) = Wal::open(&engine, dir.path(), long.clone()).wait().unwrap();
    for number in 0..64 {
        wal.set(&format!("key {number}"), &[number; 1024]).wait().unwrap();
    }
    wal.close().wait().unwrap();
    let refused = Wal::open(&engine, dir.path(), options()).wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    assert!(refused.to_string().contains("segment_bytes"), "{refused}");
    let (wal, _) = Wal::open(&engine, dir.path(), long).wait().unwrap();
    assert_eq!(wal.value("key 63"), Some(vec![63; 1024]));
}

/// Each group that has the newest values is damaged: the log is refused rather than opened with older values.
#[test]
fn lost_values_are_refused_and_salvage_says_so() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = Wal::open(&engine, dir.path(), quiet()).wait().unwrap();
    wal.append(b"one").wait().unwrap();
    wal.set("vote", b"old").wait().unwrap();
    wal.set("vote", b"new").wait().unwrap();
    wal.append(b"two").wait().unwrap();
    wal.close().wait().unwrap();
    drop(wal);
    // Behind it are the last record and the mark.
    strike_the_last(dir.path(), 2);
    let refused = Wal::open(&engine, dir.path(), quiet()).wait().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ValuesLost, "{refused}");
    assert!(refused.path().is_some() && refused.to_string().contains("salvage"), "{refused}");
    let report = inspect(&engine, dir.path()).wait().unwrap();
    assert!(matches!(report.verdict, Verdict::Damaged(_)) && !report.is_whole());
    assert_eq!(report.values, [("vote".to_owned(), b"old".to_vec())]);

    let (wal, recovery) = Wal::open(&engine, dir.path(), quiet().salvage(true)).wait().unwrap();
    assert!(recovery.values_lost.is_some() && recovery.lost.is_empty());
    assert_eq!(text(&wal, "vote").as_deref(), Some("old"));
    assert_eq!(records_wait(&wal, 1).unwrap().len(), 2);
    wal.close().wait().unwrap();
    drop(wal);
    // That is remembered.
    let (wal, recovery) = Wal::open(&engine, dir.path(), quiet()).wait().unwrap();
    assert_eq!((recovery.values_lost, text(&wal, "vote").as_deref()), (None, Some("old")));
}

/// Regression of the design: values in the last group, which nothing proves, are copied at each open, and so are values
/// that were copied.
#[test]
fn unproven_values_are_copied_from_life_to_life() {
    let (running, dir) = (engine(), dir());
    let (wal, _) = Wal::open(&running, dir.path(), quiet()).wait().unwrap();
    wal.append(b"one").wait().unwrap();
    wal.set("vote", b"for 2").wait().unwrap();
    running.close().wait().unwrap();
    drop(wal);
    for life in 0..5 {
        let running = engine();
        let (wal, recovery) = Wal::open(&running, dir.path(), quiet()).wait().unwrap();
        assert_eq!((recovery.last, recovery.truncated_at), (Lsn(1), None), "life {life}");
        assert_eq!(text(&wal, "vote").as_deref(), Some("for 2"), "life {life}");
        running.close().wait().unwrap();
    }
    // The newest copy torn: the one before it was proven by nothing, and is still there.
    strike_the_last(dir.path(), 0);
    let (wal, _) = open(&engine(), &dir);
    assert_eq!(text(&wal, "vote").as_deref(), Some("for 2"));
}

#[test]
fn repair_and_inspect_keep_values() {
    let (engine, dir, out) = (engine(), dir(), common::dir());
    let (wal, _) = Wal::open(&engine, dir.path(), quiet()).wait().unwrap();
    for number in 1..=40 {
        wal.append(&record(number)).wait().unwrap();
    }
    wal.set("vote", b"for 2").wait().unwrap();
    wal.append(&record(41)).wait().unwrap();
    wal.close().wait().unwrap();
    drop(wal);
    let report = inspect(&engine, dir.path()).wait().unwrap();
    assert_eq!(report.values, [("vote".to_owned(), b"for 2".to_vec())]);
    let sets = report.segments.iter().flat_map(|segment| &segment.groups).filter(|group| group.sets_values);
    assert_eq!(sets.map(|group| group.values_bytes).collect::<Vec<_>>(), [2 + 3 + 4 + 5]);
    let out = out.path().join("new");
    let repaired = repair(&engine, dir.path(), &out).wait().unwrap();
    assert_eq!((repaired.records, &repaired.after.values), (41, &report.values));
    let (wal, recovery) = Wal::open(&engine, &out, quiet()).wait().unwrap();
    assert_eq!((recovery.last, text(&wal, "vote").as_deref()), (Lsn(41), Some("for 2")));
    wal.set("vote", b"for 3").wait().unwrap();
    wal.close().wait().unwrap();
    let (wal, _) = Wal::open(&engine, &out, quiet()).wait().unwrap();
    assert_eq!(text(&wal, "vote").as_deref(), Some("for 3"));
}
