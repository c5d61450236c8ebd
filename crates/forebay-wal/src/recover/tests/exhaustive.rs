//! Damages every unit of a log in turn, and every pair of units, in several ways. Recovery must return exactly the undamaged
//! records and name exactly the damaged records.

use std::collections::{BTreeMap, BTreeSet};

use super::log::{Log, Records, old_segment, read, recover_segments, values};
use crate::error::ErrorKind;
use crate::format::{Kind, Position};
use crate::recover::Outcome;
use crate::values::Values;

pub(super) const UNIT: usize = 4096;
pub(super) const SEGMENT: usize = 16 * UNIT;

pub(super) type Segments = BTreeMap<u64, Vec<u8>>;

/// The log's contents when its last undamaged group was durable.
struct Truth {
    records: Records,
    /// The LSNs whose group is damaged.
    gone: BTreeSet<u64>,
    values: Values,
    /// Every group with these values is damaged.
    values_gone: bool,
}

fn truth(log: &Log, damaged: &dyn Fn(Position, usize) -> bool) -> Option<Truth> {
    let hurt = |at: usize| {
        let (header, _) = &log.written[at];
        // Padding carries no information.
        damaged(header.position(), header.values_range().end)
    };
    let last = (0..log.written.len()).rev().find(|&at| !hurt(at))?;
    let truth = log.written[last].1.clone();
    let holder = |lsn: u64| {
        (0..=last).rev().find(|&at| {
            let (header, _) = &log.written[at];
            header.kind == Kind::Records && header.first_lsn <= lsn && lsn < header.next_lsn()
        })
    };
    let gone = truth.keys().copied().filter(|&lsn| holder(lsn).is_none_or(hurt)).collect();
    let newest = log.written[last].0;
    let has_values = |at: usize| {
        let (header, _) = &log.written[at];
        header.values_len > 0
            && header.values == newest.values
            && header.generation >= newest.start_generation
    };
    let values_gone = newest.values.is_some() && !(0..=last).any(|at| has_values(at) && !hurt(at));
    Some(Truth { records: truth, gone, values: log.values_at[&newest.position()].clone(), values_gone })
}

fn lost_lsns(outcome: &Outcome) -> BTreeSet<u64> {
    outcome.recovery.lost.iter().flat_map(|lost| lost.first.0..=lost.last.0).collect()
}

/// Compares the results of recovery for `segments`, a damaged copy of the log, with the truth.
pub(super) fn judge(log: &Log, segments: &Segments, what: &str) {
    let damaged = |place: Position, bytes: usize| {
        let range = place.offset as usize..place.offset as usize + bytes;
        let now = segments.get(&place.generation).and_then(|now| now.get(range.clone()));
        now != log.segments[&place.generation].get(range)
    };
    let strict = recover_segments(segments, false);
    let Some(Truth { records: truth, gone, values: table, values_gone }) = truth(log, &damaged) else {
        assert!(strict.is_err(), "{what}");
        return;
    };
    let salvaged = recover_segments(segments, true).expect("something is left");
    let lost = lost_lsns(&salvaged);
    let records = read(segments, &salvaged);
    assert_eq!(lost, gone, "{what}: the lost records\n{:?}", salvaged.recovery);
    let left: Records = truth.into_iter().filter(|(lsn, _)| !gone.contains(lsn)).collect();
    assert_eq!(records.keys().collect::<Vec<_>>(), left.keys().collect::<Vec<_>>(), "{what}");
    assert!(records == left, "{what}");
    assert_eq!(salvaged.values.is_lost, values_gone, "{what}: the values\n{:?}", salvaged.recovery);
    assert!(values_gone || values(segments, &salvaged) == table, "{what}: other values");
    match strict {
        Ok(outcome) => {
            assert!(gone.is_empty() && read(segments, &outcome) == left, "{what}");
            assert!(!values_gone && values(segments, &outcome) == table, "{what}: other values");
        }
        Err(error) if gone.is_empty() => {
            assert!(values_gone && error.kind() == ErrorKind::ValuesLost, "{what}: {error}");
        }
        Err(error) => {
            let Some(lost) = error.loss() else { panic!("{what}: {error}") };
            assert_eq!(Some(&lost.first.0), gone.first(), "{what}: {error}");
        }
    }
    // An open turns the damaged log into one that a later open accepts unchanged.
    let mut opened = log.clone();
    opened.segments = segments.clone();
    opened.open(true).expect("salvage");
    assert!(opened.records == left, "{what}");
    opened.append(1, 100);
    opened.mark();
    let again = opened.recover(false).unwrap_or_else(|error| panic!("{what}: opened again: {error}"));
    assert!(read(&opened.segments, &again) == opened.records, "{what}: opened again");
    assert!(values(&opened.segments, &again) == opened.values, "{what}: values opened again");
    assert!(again.clean && again.recovery.truncated_at.is_none(), "{what}: {:?}", again.recovery);
}

/// Damages a unit in one of several ways; the last way restores the old bytes of a recycled segment.
pub(super) fn damage(segments: &mut Segments, (generation, unit): (u64, usize), way: usize, old: &[u8]) {
    let segment = segments.get_mut(&generation).expect("a segment of the log");
    let range = unit * UNIT..(unit + 1) * UNIT;
    match way {
        0 => segment[range].fill(0),
        1 => segment[range.start + (unit * 977 + 5) % 200] ^= 0x10,
        2 => segment[range.start..range.start + 512].fill(0xc3),
        _ => segment[range.clone()].copy_from_slice(&old[range]),
    }
}

pub(super) fn units(log: &Log) -> Vec<(u64, usize)> {
    let used = |generation: &u64| {
        let last = log.written.iter().rev().find(|(header, _)| header.generation == *generation);
        last.map_or(0, |(header, _)| header.end().offset as usize / UNIT)
    };
    log.segments
        .keys()
        .flat_map(|&generation| (0..used(&generation)).map(move |unit| (generation, unit)))
        .collect()
}

fn each_unit(log: &Log) {
    let old = old_segment(SEGMENT);
    judge(log, &log.segments, "nothing");
    for unit in units(log) {
        for way in 0..4 {
            let mut segments = log.segments.clone();
            damage(&mut segments, unit, way, &old);
            judge(log, &segments, &format!("unit {unit:?} way {way}"));
        }
    }
}

fn each_pair(log: &Log) {
    let old = old_segment(SEGMENT);
    let units = units(log);
    for (at, &one) in units.iter().enumerate() {
        for (step, &other) in units[at + 1..].iter().enumerate() {
            let mut segments = log.segments.clone();
            damage(&mut segments, one, (at + step) % 4, &old);
            damage(&mut segments, other, (at + step / 4) % 4, &old);
            judge(log, &segments, &format!("units {one:?} and {other:?}"));
        }
    }
}

/// A log of twenty groups of one or three units over three segments.
fn plain(mark: bool) -> Log {
    let mut log = Log::new(SEGMENT);
    for group in 0..20 {
        log.append(1 + group % 3, if group % 4 == 1 { 9000 / (1 + group as usize % 3) } else { 150 });
    }
    if mark {
        log.mark();
    }
    assert_eq!(log.segments.len(), 3);
    log
}

/// A log with truncations at both ends, marks, and a second life after a group that was not known to be
/// durable.
fn eventful() -> Log {
    let mut log = Log::new(SEGMENT);
    (0..6).for_each(|_| _ = log.append(2, 100));
    log.truncate_after(7);
    (0..3).for_each(|_| _ = log.append(1, 3000));
    log.mark();
    log.truncate_before(4);
    log.append(1, 9000);
    log.truncate_after(9);
    log.append(3, 50);
    log.append(2, 50);
    let outcome = log.open(false).expect("an intact log");
    assert!(!outcome.clean && outcome.kept + 1 == outcome.groups.len());
    (0..3).for_each(|_| _ = log.append(2, 100));
    log.truncate_after(12);
    log.append(1, 100);
    log.mark();
    log
}

/// A log with a reset to a higher and one to a lower number, and recycled segments.
fn reset(next: u64) -> Log {
    let mut log = Log::new(SEGMENT);
    (0..12).for_each(|_| _ = log.append(2, 100));
    log.begin_recycled(old_segment(SEGMENT));
    log.append(2, 100);
    log.reset_to(next);
    (0..4).for_each(|_| _ = log.append(1, 5000));
    log.truncate_after(next);
    log.append(2, 100);
    log
}

/// A log with values: alone and with records, over several segments, with truncations, a reset, opens after groups that were not
/// known to be durable, and a truncated front.
fn valued(resets: bool) -> Log {
    let mut log = Log::from(SEGMENT, 0);
    log.set("vote", 2);
    (0..3).for_each(|_| _ = log.append(2, 100));
    log.set("applied", 0);
    log.append(1, 9000);
    log.truncate_after(4);
    log.append(1, 20_000);
    log.set("vote", 1);
    let outcome = log.open(false).expect("an intact log");
    assert!(!outcome.clean && outcome.kept + 1 == outcome.groups.len() && !outcome.values.is_kept);
    log.append(2, 100);
    log.set("applied", 0);
    let outcome = log.open(false).expect("an intact log");
    assert!(!outcome.clean && outcome.recovery.tail_records == 0 && !outcome.values.is_kept);
    log.append(1, 3000);
    log.mark();
    if resets {
        log.reset_to(0);
        log.append(2, 100);
    } else {
        log.truncate_before(3);
        log.append(1, 100);
    }
    log.begin_recycled(old_segment(SEGMENT));
    (0..3).for_each(|_| _ = log.append(1, 3000));
    log.set("vote", 1);
    log.append(1, 100);
    log.truncate_after(log.next - 2);
    log.append(1, 100);
    log.mark();
    log
}

/// Damage never returns values that are older than those of a group which a later one proves.
#[test]
fn each_unit_and_pair_of_a_log_with_values() {
    for log in [valued(false), valued(true)] {
        each_unit(&log);
        each_pair(&log);
    }
}

/// A log that links over damage: a group without records was damaged, the unproven group after it was copied,
/// and then the copy was copied.
fn absorbed(rots: impl Fn(&mut Log) -> Position) -> Log {
    let mut log = Log::new(SEGMENT);
    (0..4).for_each(|_| _ = log.append(2, 100));
    let rots = rots(&mut log);
    log.append(2, 100);
    damage(&mut log.segments, (rots.generation, rots.offset as usize / UNIT), 2, &[]);
    for _ in 0..2 {
        let outcome = log.open(false).expect("no record was in the damaged group");
        assert_eq!(outcome.proven_end, rots);
    }
    (0..2).for_each(|_| _ = log.append(1, 5000));
    log.truncate_after(log.next - 2);
    log.append(1, 100);
    log.mark();
    assert!(log.recover(false).expect("an intact log").recovery.damage.is_empty());
    log
}

/// The damaged group itself is left out: it is dead.
#[test]
fn each_unit_and_pair_behind_absorbed_damage() {
    let truncated = |log: &mut Log| {
        log.truncate_before(4);
        log.mark()
    };
    let logs = [
        absorbed(Log::mark),
        absorbed(|log| log.truncate_after(5)),
        absorbed(truncated),
        absorbed(|log| log.reset_to(3)),
        absorbed(|log| log.reset_to(1000)),
    ];
    for log in logs {
        each_unit(&log);
        each_pair(&log);
    }
}

#[test]
fn each_unit_of_a_plain_log() {
    each_unit(&plain(true));
    each_unit(&plain(false));
}

#[test]
fn each_unit_of_an_eventful_log() {
    each_unit(&eventful());
    each_unit(&reset(1000));
    each_unit(&reset(5));
}

#[test]
fn each_pair_of_units() {
    each_pair(&plain(true));
    each_pair(&eventful());
    each_pair(&reset(1000));
    each_pair(&reset(5));
}

/// A segment is missing. The loss of a middle segment is proven and named; the loss of the last one cannot be.
#[test]
fn each_segment_missing() {
    for log in [plain(true), plain(false), eventful(), reset(5), valued(false), valued(true)] {
        for generation in log.segments.keys() {
            let mut segments = log.segments.clone();
            segments.remove(generation);
            judge(&log, &segments, &format!("segment {generation} missing"));
        }
    }
}

/// The segment after the last one had been prepared, so the last one had been in use.
#[test]
fn the_last_segment_missing_before_a_prepared_one() {
    let mut log = plain(true);
    log.segments.insert(4, vec![0; SEGMENT]);
    log.segments.remove(&3);
    let error = log.recover(false).map(|outcome| outcome.recovery).expect_err("a segment is missing");
    let Some(lost) = error.loss() else { panic!("{error}") };
    assert_eq!((lost.last.0, lost.offset), (u64::MAX, 0));
    assert_eq!(lost.file.to_str(), Some("0000000000000003.wal"));
    let outcome = log.open(true).expect("salvage");
    assert_eq!(outcome.recovery.lost.len(), 1);
    log.append(1, 10);
    assert_eq!(read(&log.segments, &log.recover(false).expect("salvage is remembered")), log.records);
}
