//! The damage table: 100 acknowledged records of 200 bytes, one per group, and one change to the file. Each
//! row states the expected result with the trailing mark and without it.

use super::log::{Log, old_segment, read};
use crate::format::{HEADER_BYTES, Position};
use crate::loss::Loss;
use crate::recover::Outcome;

/// The expected result of a row.
#[derive(Debug, PartialEq)]
enum End {
    /// All 100 records; `cut`: the report names data that was cut.
    All { cut: bool },
    /// Records 1 to 99; the report names the cut: at most the last group.
    CutLast,
    /// Refused: exactly this record is lost.
    Lost(u64),
}

/// Returns the log, with the position of each record's group.
fn hundred(mark: bool) -> (Log, Vec<Position>) {
    let mut log = Log::new(1 << 20);
    let places = (0..100).map(|_| log.append(1, 200)).collect();
    if mark {
        log.mark();
    }
    // The file ends at the log's end, so a cut of 40 bytes cuts the last group.
    let end = log.end.offset as usize;
    log.segments.get_mut(&1).expect("the only segment").truncate(end);
    (log, places)
}

fn outcome_of(log: &Log) -> End {
    match log.recover(false) {
        Ok(outcome) => {
            let records = read(&log.segments, &outcome);
            assert!(records.iter().all(|(lsn, record)| log.records[lsn] == *record), "a wrong record");
            assert_eq!(outcome.recovery.last.0, records.len() as u64);
            let cut = outcome.recovery.truncated_at.is_some();
            match records.len() {
                100 => End::All { cut },
                99 if cut => End::CutLast,
                other => panic!("{other} records, {:?}", outcome.recovery),
            }
        }
        Err(error) => {
            let Some(Loss { first, last, .. }) = error.loss() else { panic!("{error}") };
            assert_eq!(first, last, "{error}");
            End::Lost(first.0)
        }
    }
}

/// Runs one row: `damage` gets the segment's bytes and the offset of each record's group.
fn row(mark: bool, damage: impl Fn(&mut Vec<u8>, &dyn Fn(usize) -> usize)) -> End {
    let (mut log, places) = hundred(mark);
    let place = |record: usize| places[record - 1].offset as usize;
    let mut bytes = log.segments.remove(&1).expect("the only segment");
    damage(&mut bytes, &place);
    log.segments.insert(1, bytes);
    let end = outcome_of(&log);
    salvaged(log, &end);
    end
}

/// Checks that salvage opens every row's log, and that the next open finds nothing new.
fn salvaged(mut log: Log, end: &End) {
    let outcome = log.open(true).expect("salvage");
    let lost: Vec<_> = outcome.recovery.lost.iter().map(|lost| (lost.first.0, lost.last.0)).collect();
    match end {
        End::Lost(record) => assert_eq!(lost, [(*record, *record)]),
        _ => assert!(lost.is_empty()),
    }
    let kept = log.records.clone();
    log.append(1, 300);
    let again = log.recover(false).expect("salvage is remembered");
    let mut records = read(&log.segments, &again);
    assert_eq!(records.remove(&outcome.next_lsn).map(|record| record.len()), Some(300));
    assert_eq!(records, kept);
    assert_eq!(again.recovery.lost.len(), lost.len());
}

#[test]
fn nothing_is_wrong() {
    assert_eq!(row(true, |_, _| {}), End::All { cut: false });
    assert_eq!(row(false, |_, _| {}), End::All { cut: false });
    let proven = |mark| {
        let Outcome { recovery, clean, .. } = hundred(mark).0.recover(false).expect("an intact log");
        (recovery.durable_lsn.0, recovery.tail_records, clean)
    };
    assert_eq!(proven(true), (100, 0, true));
    assert_eq!(proven(false), (99, 1, false));
}

/// The last 40 bytes are padding: zeros already.
#[test]
fn last_40_bytes_zero() {
    let damage = |bytes: &mut Vec<u8>, _: &dyn Fn(usize) -> usize| {
        let end = bytes.len();
        bytes[end - 40..].fill(0);
    };
    assert_eq!(row(true, damage), End::All { cut: false });
    assert_eq!(row(false, damage), End::All { cut: false });
}

/// The last 40 bytes of the last record are zeros, as an interrupted write leaves them.
#[test]
fn last_40_bytes_of_the_last_record_zero() {
    let damage = |bytes: &mut Vec<u8>, place: &dyn Fn(usize) -> usize| {
        let end = place(100) + HEADER_BYTES + 4 + 200;
        bytes[end - 40..end].fill(0);
    };
    assert_eq!(row(true, damage), End::Lost(100));
    assert_eq!(row(false, damage), End::CutLast);
}

/// Bytes past a file's end count as zeros, and the padding is zeros.
#[test]
fn cut_40_bytes_short() {
    let damage = |bytes: &mut Vec<u8>, _: &dyn Fn(usize) -> usize| bytes.truncate(bytes.len() - 40);
    assert_eq!(row(true, damage), End::All { cut: false });
    assert_eq!(row(false, damage), End::All { cut: false });
}

/// The file ends within the last record.
#[test]
fn cut_within_the_last_record() {
    let damage = |bytes: &mut Vec<u8>, place: &dyn Fn(usize) -> usize| bytes.truncate(place(100) + 300);
    // The mark is cut off as well, so no group proves the record any more.
    assert_eq!(row(true, damage), End::CutLast);
    assert_eq!(row(false, damage), End::CutLast);
}

#[test]
fn bit_flip_in_the_payload_of_record_50() {
    let damage =
        |bytes: &mut Vec<u8>, place: &dyn Fn(usize) -> usize| bytes[place(50) + HEADER_BYTES + 4 + 100] ^= 4;
    assert_eq!(row(true, damage), End::Lost(50));
    assert_eq!(row(false, damage), End::Lost(50));
}

#[test]
fn bit_flip_in_the_header_of_record_50() {
    for byte in 0..HEADER_BYTES {
        let damage = |bytes: &mut Vec<u8>, place: &dyn Fn(usize) -> usize| bytes[place(50) + byte] ^= 1;
        assert_eq!(row(byte % 2 == 0, damage), End::Lost(50), "byte {byte}");
    }
}

#[test]
fn bit_flip_in_the_first_record() {
    let damage =
        |bytes: &mut Vec<u8>, place: &dyn Fn(usize) -> usize| bytes[place(1) + HEADER_BYTES + 4 + 100] ^= 4;
    assert_eq!(row(true, damage), End::Lost(1));
    assert_eq!(row(false, damage), End::Lost(1));
}

/// The group before the first record has no records, so its loss is harmless.
#[test]
fn bit_flip_in_the_first_group() {
    let damage = |bytes: &mut Vec<u8>, _: &dyn Fn(usize) -> usize| bytes[100] ^= 4;
    assert_eq!(row(true, damage), End::All { cut: false });
    assert_eq!(row(false, damage), End::All { cut: false });
}

#[test]
fn four_kib_of_zeros_in_the_middle() {
    let damage = |bytes: &mut Vec<u8>, place: &dyn Fn(usize) -> usize| {
        let at = place(50);
        bytes[at..at + 4096].fill(0);
    };
    assert_eq!(row(true, damage), End::Lost(50));
    assert_eq!(row(false, damage), End::Lost(50));
}

/// Bytes that look like the start of a write are reported, although nothing is missing.
#[test]
fn garbage_behind_the_end() {
    let damage = |bytes: &mut Vec<u8>, _: &dyn Fn(usize) -> usize| bytes.extend([0xa5; 64]);
    assert_eq!(row(true, damage), End::All { cut: true });
    assert_eq!(row(false, damage), End::All { cut: true });
}

/// The next segment was prepared from an old one, whose groups are whole and name another place.
#[test]
fn a_stale_recycled_segment() {
    for mark in [true, false] {
        let (mut log, _) = hundred(mark);
        log.segments.insert(2, log.segments[&1].clone());
        assert_eq!(outcome_of(&log), End::All { cut: false });
        assert_eq!(log.recover(false).expect("an intact log").clean, mark);
        salvaged(log, &End::All { cut: false });
    }
}

/// The log's own segment is a recycled one, with old groups after the end.
#[test]
fn stale_groups_behind_the_end() {
    for mark in [true, false] {
        let mut log = Log::new(8192);
        log.mark();
        log.begin_recycled(old_segment(1 << 20));
        (0..50).for_each(|_| _ = log.append(1, 200));
        if mark {
            log.mark();
        }
        let outcome = log.recover(false).expect("an intact log");
        assert_eq!(read(&log.segments, &outcome), log.records);
        assert_eq!((outcome.next_lsn, outcome.recovery.truncated_at), (51, None));
        assert_eq!(outcome.clean, mark);
    }
}
