//! Logs that are opened repeatedly.

use super::log::{LOG_ID, Log, old_segment, read, recover_segments};
use crate::error::ErrorKind;
use crate::format::{GRAIN, Header, Kind, Position, seal};
use crate::recover::{Outcome, recover, scan};

const SEGMENT: usize = 64 << 10;

/// Overwrites a place with zeros.
fn zero(log: &mut Log, place: Position, bytes: usize) {
    let segment = log.segments.get_mut(&place.generation).expect("a segment of the log");
    segment[place.offset as usize..][..bytes].fill(0);
}

/// A process that dies after each group recovers everything, each time, and the groups of earlier lives stay
/// dead.
#[test]
fn one_group_a_life() {
    let mut log = Log::new(SEGMENT);
    for life in 1..40 {
        log.append(1, 100);
        let before = log.records.clone();
        let outcome = log.open(false).expect("an intact log");
        assert_eq!((outcome.next_lsn, outcome.recovery.tail_records, outcome.clean), (life + 1, 1, false));
        assert_eq!(log.records, before);
    }
}

/// The log is opened, not used and opened again: the copied records are copied once more, from the one live
/// REOPEN group.
#[test]
fn a_reopening_that_nothing_follows() {
    let mut log = Log::new(SEGMENT);
    log.append(3, 100);
    let before = log.records.clone();
    for _ in 0..5 {
        let outcome = log.open(false).expect("an intact log");
        assert_eq!(outcome.proven_end, Position { generation: 1, offset: u64::from(GRAIN) });
        assert_eq!(log.records, before);
    }
    log.mark();
    assert!(log.recover(false).expect("an intact log").clean);
}

/// The REOPEN group was incomplete when the process died: nothing was acknowledged in that life, and the
/// group that it was to copy is still there.
#[test]
fn a_reopening_that_was_cut_off() {
    let mut log = Log::new(SEGMENT);
    log.append(1, 100);
    log.append(3, 2000);
    let before = log.records.clone();
    log.open(false).expect("an intact log");
    zero(&mut log, Position { generation: 2, offset: 4096 }, 4096);
    let outcome = log.open(false).expect("the cut-off group was never needed");
    assert_eq!(
        outcome.recovery.truncated_at.as_ref().map(|cut| cut.file.to_str()),
        Some(Some("0000000000000002.wal"))
    );
    assert_eq!((outcome.max_generation, outcome.next_lsn), (2, 5));
    assert_eq!(log.records, before);
    log.mark();
    assert!(log.recover(false).expect("an intact log").clean);
}

/// A group was cut off as damaged and its number given to another record; then the group becomes readable
/// again.
#[test]
fn a_cut_group_stays_dead() {
    let mut log = Log::new(SEGMENT);
    log.append(1, 100);
    log.mark();
    let place = log.append(1, 100);
    let whole = log.segments[&1].clone();
    // Zero its first half only. If all of it were zeros, no damage would be visible, and the log would
    // continue in its place.
    zero(&mut log, place, 100);
    let outcome = log.open(false).expect("only the last group is damaged");
    assert_eq!((outcome.next_lsn, outcome.clean), (2, false));
    log.append(1, 100);
    log.segments.insert(1, whole);
    assert_eq!(read(&log.segments, &log.recover(false).expect("an intact log")), log.records);
    log.mark();
    // The group that declares it dead is damaged as well. The two records under the same number are not
    // confused.
    zero(&mut log, Position { generation: 2, offset: 0 }, 4096);
    let outcome = log.recover(false).expect("no record was in the damaged group");
    assert_eq!(read(&log.segments, &outcome), log.records);
    assert_eq!(outcome.recovery.damage.len(), 1);
}

/// The same, but nothing was appended since: only the REOPEN group shows that the number is free.
#[test]
fn a_cut_group_stays_dead_below_the_last_group() {
    let mut log = Log::new(SEGMENT);
    log.append(1, 100);
    log.mark();
    let place = log.append(1, 100);
    let whole = log.segments[&1].clone();
    zero(&mut log, place, 100);
    log.open(false).expect("only the last group is damaged");
    log.segments.insert(1, whole);
    let outcome = log.recover(false).expect("an intact log");
    assert_eq!((outcome.next_lsn, outcome.recovery.truncated_at), (2, None));
}

/// Regression: a mark was damaged, and no group proved that the intact group after it was durable. That group was copied at each
/// open, and each process was killed, some before the copy was whole. No copy linked to the groups before the mark, and soon the
/// epochs between were more than a header stores: all records counted as lost, though all were intact.
#[test]
fn copied_again_and_again_behind_a_rotten_mark() {
    for case in 0..128 {
        let (torn_opens, truncated) = (case >> 1, case & 1 == 1);
        let mut log = Log::new(SEGMENT);
        (0..3).for_each(|_| _ = log.append(2, 100));
        let rots = if truncated { log.truncate_after(4) } else { log.mark() };
        log.append(2, 100);
        let intact = log.records.clone();
        zero(&mut log, rots, 4096);
        for open in 0..8 {
            let outcome = log.open(false).unwrap_or_else(|error| panic!("{case}, open {open}: {error}"));
            assert!(log.records == intact && outcome.recovery.lost.is_empty());
            if torn_opens >> open & 1 == 1 {
                zero(&mut log, Position { generation: outcome.max_generation + 1, offset: 0 }, 4096);
            }
        }
        log.append(1, 100);
        log.mark();
        let outcome = log.recover(false).expect("an intact log");
        assert!(read(&log.segments, &outcome) == log.records && outcome.clean);
    }
}

/// The same with a mark that is damaged later: it is before a group whose epoch is five higher, because four earlier opens used a
/// segment and were killed.
#[test]
fn a_mark_that_rots_before_a_late_reopening() {
    let mut log = Log::new(SEGMENT);
    log.append(3, 100);
    let mark = log.mark();
    log.append(1, 100);
    for generation in 2..6 {
        log.open(false).expect("an intact log");
        zero(&mut log, Position { generation, offset: 0 }, 4096);
    }
    log.open(false).expect("an intact log");
    log.append(1, 100);
    zero(&mut log, mark, 4096);
    let outcome = log.recover(false).expect("a mark holds no record");
    assert!(read(&log.segments, &outcome) == log.records);
    assert_eq!((outcome.recovery.damage.len(), outcome.recovery.lost.len()), (1, 0));
}

/// Records that salvage gave up become readable again. They stay lost, as the program was informed of their
/// loss.
#[test]
fn a_salvaged_loss_stays_lost() {
    let mut log = Log::new(SEGMENT);
    let places: Vec<_> = (0..4).map(|_| log.append(1, 100)).collect();
    let whole = log.segments[&1].clone();
    zero(&mut log, places[1], 4096);
    log.open(true).expect("salvage");
    log.segments.insert(1, whole);
    let outcome = log.recover(false).expect("salvage is remembered");
    assert_eq!(read(&log.segments, &outcome).into_keys().collect::<Vec<_>>(), [1, 3, 4]);
    assert_eq!(outcome.recovery.lost.len(), 1);
}

/// A whole group with the right number in the right place, but not the one that the next group followed: for
/// instance from a copy of the segment from another history of the same log.
#[test]
fn a_group_of_another_history() {
    let mut log = Log::new(SEGMENT);
    log.append(1, 100);
    let mut other = log.clone();
    other.life += 1;
    let place = log.append(1, 100).offset as usize;
    other.append(1, 100);
    log.append(1, 100);
    log.append(1, 100);
    let strange = other.segments[&1][place..place + 4096].to_vec();
    log.segments.get_mut(&1).expect("a segment")[place..place + 4096].copy_from_slice(&strange);
    let error = log.recover(false).map(drop).expect_err("one of the two is wrong");
    let Some(lost) = error.loss() else { panic!("{error}") };
    assert_eq!((lost.first.0, lost.last.0), (2, 2));
}

/// A group after the end that is not proven and not linked (a writer with two groups in flight would leave it): its statement about
/// the log's start does not count.
#[test]
fn a_group_that_nothing_leads_to() {
    let mut log = Log::new(SEGMENT);
    (0..3).for_each(|_| _ = log.append(1, 100));
    let last = log.written.last().expect("a group").0;
    let stray = Header {
        offset: last.end().offset + 4096,
        watermark: last.end(),
        kind: Kind::Mark,
        record_count: 0,
        payload_len: 0,
        first_lsn: 5,
        first_retained: 5,
        ..last
    };
    let at = stray.offset as usize;
    seal(&stray, &mut log.segments.get_mut(&1).expect("a segment")[at..at + 4096]);
    let outcome = log.recover(false).expect("an intact log");
    assert_eq!(read(&log.segments, &outcome), log.records);
    assert_eq!((outcome.first, outcome.next_lsn, outcome.clean), (1, 4, false));
    assert!(outcome.recovery.truncated_at.is_some());
    log.open(false).expect("an intact log");
    assert_eq!(log.recover(false).expect("an intact log").recovery.truncated_at, None);
}

/// The end at which a clean log continues lies in a segment, and a group appended there needs no REOPEN
/// group. If the mark before it turns out not to be durable after all, nothing is lost.
#[test]
fn going_on_behind_a_mark_that_vanishes() {
    let mut log = Log::new(SEGMENT);
    log.append(1, 100);
    let mark = log.mark();
    assert!(log.open(false).expect("an intact log").clean);
    log.append(1, 100);
    zero(&mut log, mark, 4096);
    let outcome = log.recover(false).expect("a mark holds no record");
    assert_eq!(read(&log.segments, &outcome), log.records);
    assert_eq!((outcome.recovery.damage.len(), outcome.recovery.lost.len()), (1, 0));
}

/// Damage to records that were truncated later is not an error.
#[test]
fn damage_before_the_first_retained_record() {
    let mut log = Log::new(SEGMENT);
    let place = log.append(1, 100);
    log.append(1, 100);
    log.truncate_before(2);
    log.append(1, 100);
    zero(&mut log, place, 4096);
    let outcome = log.recover(false).expect("the record was truncated");
    assert_eq!(read(&log.segments, &outcome), log.records);
    assert_eq!((outcome.first, outcome.recovery.first.0, outcome.next_lsn), (2, 2, 4));
}

/// Five truncations within one damaged stretch: the numbers that they replaced are unknown, so no earlier
/// record counts.
#[test]
fn more_truncations_lost_than_a_header_remembers() {
    let mut log = Log::new(SEGMENT);
    log.append(8, 10);
    let from = log.end;
    for last in [6, 5, 4, 3, 2] {
        log.truncate_after(last);
        log.append(2, 10);
    }
    let stretch = (log.end.offset - from.offset) as usize;
    zero(&mut log, from, stretch);
    log.append(1, 10);
    let outcome = log.recover(true).expect("salvage");
    assert_eq!(read(&log.segments, &outcome).into_keys().collect::<Vec<_>>(), [5]);
    assert_eq!(
        outcome.recovery.lost.iter().map(|lost| (lost.first.0, lost.last.0)).collect::<Vec<_>>(),
        [(1, 4)]
    );
    assert_eq!(log.recover(false).expect_err("lost").kind(), ErrorKind::Corruption);
}

/// Damage that salvage accepted, and later more damage next to it.
#[test]
fn damage_beside_salvaged_damage() {
    let mut log = Log::new(SEGMENT);
    let places: Vec<_> = (0..6).map(|_| log.append(1, 100)).collect();
    zero(&mut log, places[2], 4096);
    let hole = |outcome: &Outcome| outcome.holes.len() == 1 && outcome.holes[0] == (3..4);
    assert!(hole(&log.open(true).expect("salvage")));
    log.append(1, 100);
    log.mark();
    let outcome = log.recover(false).expect("salvage is remembered");
    assert!(outcome.clean && outcome.gaps.is_empty());
    assert!(hole(&outcome) && outcome.recovery.lost.len() == 1);
    zero(&mut log, places[3], 4096);
    let error = log.recover(false).map(drop).expect_err("more is lost");
    let Some(lost) = error.loss() else { panic!("{error}") };
    assert_eq!((lost.first.0, lost.last.0), (3, 4));
}

#[test]
fn nothing_at_all() {
    assert!(recover(Vec::new(), &super::log::no_end(), false).expect("no log").is_none());
    let zeros = scan("0000000000000001.wal".into(), 1, &[0; 8192]);
    for salvage in [false, true] {
        let error = recover(vec![zeros.clone()], &super::log::no_end(), salvage)
            .map(drop)
            .expect_err("a segment without a group");
        assert_eq!(error.kind(), ErrorKind::Corruption);
    }
}

#[test]
fn two_logs() {
    let mut log = Log::new(SEGMENT);
    log.append(1, 100);
    let mut other = Log::new(SEGMENT);
    other.log_id = LOG_ID + 1;
    other.mark();
    let place = Position { generation: 1, offset: 3 * 4096 };
    other.end = place;
    other.append(1, 100);
    let stray = other.segments[&1][place.offset as usize..][..4096].to_vec();
    log.segments.get_mut(&1).expect("a segment")[place.offset as usize..][..4096].copy_from_slice(&stray);
    let error = recover_segments(&log.segments, true).map(drop).expect_err("two logs");
    assert_eq!(error.kind(), ErrorKind::Foreign);
}

/// Regression: a drive lied about a flush, and at a power cut a segment lost its third number, but not the groups written to it
/// under that number. When opened again, the log gave it the same number once more, and its first new group was followed by old
/// groups at their exact places. Their watermarks proved a loss that had not happened.
#[test]
fn groups_of_a_time_that_was_undone() {
    let mut log = Log::new(SEGMENT);
    (0..3).for_each(|_| _ = log.append(1, 100));
    let mut undone = log.clone();
    undone.begin_recycled(old_segment(SEGMENT));
    undone.append(1, 100);
    undone.begin_recycled(old_segment(SEGMENT));
    (0..6).for_each(|_| _ = undone.append(2, 100));
    let third = undone.segments[&3].clone();

    log.open(false).expect("an intact log");
    (0..3).for_each(|_| _ = log.append(1, 100));
    log.segments.insert(3, third.clone());
    // Prepared, and not used: its contents do not belong to the log.
    let outcome = log.recover(false).expect("an intact log");
    assert_eq!(read(&log.segments, &outcome), log.records);
    assert!(!outcome.clean);
    let before = log;
    for groups in 1..8 {
        let mut log = before.clone();
        log.begin_recycled(third.clone());
        (0..groups).for_each(|_| _ = log.append(1, 100));
        let outcome = log.recover(false).unwrap_or_else(|error| panic!("{groups} groups: {error}"));
        assert_eq!(read(&log.segments, &outcome), log.records);
        assert!(outcome.recovery.lost.is_empty() && outcome.recovery.damage.is_empty());
        let mut opened = log.clone();
        opened.open(false).expect("an intact log");
        opened.append(1, 100);
        opened.mark();
        let outcome = opened.recover(false).expect("an intact log");
        assert!(read(&opened.segments, &outcome) == opened.records && outcome.clean);
    }
}
