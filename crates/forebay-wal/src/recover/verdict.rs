//! The verdict on all segments together.

use std::path::PathBuf;

use super::scan::Scan;
use super::walk::{Gap, Group, Walk, walk, without_dead, without_outdated};
use super::{Damage, Loss, Outcome, RecoveredValues, Recovery};
use crate::end_file::FoundEnd;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{EndRecord, Epochs, Header, Kind, Position, segment_name, unknown_version};
use crate::lsn::Lsn;

/// Judges a log by the scans of its segments, in any order; segments older than the newest group's `start_generation` may be left
/// out. `end` is the record outside of the segments. Returns `None` without segments and a record: the log never existed.
///
/// # Errors
/// `Version`: a segment of another version of the format. `Foreign`: groups of two logs. `Corruption`:
/// acknowledged records are lost; not with `salvage`, unless nothing at all is left. `ValuesLost`: the values are,
/// and no record; not with `salvage`.
pub(crate) fn recover(mut scans: Vec<Scan>, end: &FoundEnd, salvage: bool) -> Result<Option<Outcome>> {
    scans.sort_by_key(|scan| scan.generation);
    let newest = scans.last().map(|scan| scan.generation);
    let log_id = one_log(&scans)?;
    let recorded = end_of(end, log_id, salvage)?;
    let recorded_generation = recorded.map(|record| record.position.generation);
    if scans.is_empty() && recorded.is_none() && !end.damaged {
        return Ok(None);
    }
    let max_generation = newest.max(recorded_generation).unwrap_or(0);
    let with_groups = scans.iter().rfind(|scan| !scan.groups.is_empty()).map(|scan| scan.generation);
    let mut groups: Vec<Header> =
        scans.iter_mut().flat_map(|scan| std::mem::take(&mut scan.groups)).collect();
    if groups.is_empty() {
        return Err(nothing_left(&scans, end));
    }
    if let Some(record) = recorded {
        let at = groups.partition_point(|header| header.position() < record.position);
        groups.insert(at, record.as_group());
    }
    let epoch_max = groups.iter().map(|group| group.epochs.number).max();
    let (mut live, outdated) = without_outdated(without_dead(groups));
    let (Some(log_id), Some(walk)) = (log_id, walk(&live)) else { return Err(nothing_left(&scans, end)) };

    let unproven = unproven(&walk.groups, watermark(&live));
    live.retain(|header| !header.is_end());
    // Only the record proves this end of the log.
    let end_lost = walk.last.is_some_and(|last| last.is_end());
    // An open that ended early has left a segment behind the numbers that it passed over (`leap`), without a whole group.
    let newest = if end_lost { with_groups } else { newest };
    let missing = newest.and_then(|newest| missing_segment(&scans, &walk, log_id, newest));
    let lost = losses(&scans, &walk, missing);
    if let (false, Some((lost, _))) = (salvage, lost.iter().find(|(_, declared)| !declared)) {
        return Err(corruption(lost.clone()));
    }
    let values_lost = values_lost(&scans, &walk);
    if let (false, Some(damage)) = (salvage, &values_lost) {
        let text = format!(
            "the newest values (`Wal::value`) were durable and are damaged or gone, from byte {} on; open the log with \
             salvage to go on with older ones, or without any",
            damage.offset
        );
        return Err(Error::at(ErrorKind::ValuesLost, &damage.file, text));
    }
    let new_loss = values_lost.is_some() || lost.iter().any(|(_, declared)| !declared);
    let behind = live.iter().find(|header| header.position() >= walk.end);
    let cut = cut(&scans, &walk, behind);
    // Salvage leaves everything in its place: its declarations name those places.
    let kept = if new_loss { walk.groups.len() } else { unproven.start };
    let whole = scan_of(&scans, walk.end.generation).is_some_and(|scan| scan.bytes >= walk.end.offset);
    // Only a REOPEN group removes outdated groups for good.
    let outdated = outdated.is_some_and(|header| header.position() >= walk.end);
    let clean = kept == walk.groups.len() && cut.is_none() && !new_loss && whole && !outdated && !end_lost;

    // If nothing is kept, the log starts anew after the loss.
    let first = walk.last.filter(|_| !walk.groups.is_empty());
    let first = first.map_or(walk.next_lsn, |last| last.first_retained);
    let proven = proven(&walk, kept);
    let number = reopen_epoch(&proven, walk.groups.get(kept), epoch_max.unwrap_or(0), max_generation);
    let max_generation =
        if end_lost { max_generation.max(leap(&walk, &proven, number)) } else { max_generation };
    let recovery = Recovery {
        created: false,
        first: Lsn(first),
        last: Lsn(walk.next_lsn.saturating_sub(1)),
        epoch: walk.epochs.number,
        durable_lsn: Lsn(walk.proven_before(unproven.proven).saturating_sub(1)),
        tail_records: walk.groups[unproven.proven..]
            .iter()
            .map(|group| group.live.end - group.live.start)
            .sum(),
        truncated_at: cut,
        damage: walk
            .gaps
            .iter()
            .filter(|gap| gap.lost.is_empty())
            .map(|gap| damage(&scans, gap))
            .chain(end.damaged.then(|| damaged_end(end)))
            .collect(),
        lost: lost.into_iter().map(|(lost, _)| lost).collect(),
        values_lost: values_lost.clone(),
    };
    debug_assert!(
        walk.groups.windows(2).all(|pair| pair[0].header.end() <= pair[1].header.position()),
        "groups are in the order of their places, and none lies within another"
    );
    debug_assert!(kept <= walk.groups.len() && first <= walk.next_lsn, "a log ends behind where it begins");
    debug_assert!(proven.end <= walk.end, "what is kept ends with the log, or before");
    // Older values are better than no values where the newest are lost.
    let older = || walk.groups.iter().rfind(|group| group.header.values_len > 0);
    let table = walk.table().or_else(|| values_lost.as_ref().and_then(|_| older())).cloned();
    let is_kept = |table: &Group| {
        walk.groups[..kept]
            .iter()
            .any(|group| group.header.values_len > 0 && group.header.values == table.header.values)
    };
    let values = RecoveredValues {
        stamp: walk.values,
        is_kept: values_lost.is_none() && table.as_ref().is_none_or(is_kept),
        is_lost: values_lost.is_some(),
        table,
    };
    Ok(Some(Outcome {
        values,
        log_id,
        kept,
        first,
        next_lsn: walk.next_lsn,
        epochs: walk.epochs,
        reopen_epochs: proven.epochs.raised_to(number, proven.first),
        end: walk.end,
        last_crc: walk.last.map_or(0, |last| last.crc),
        proven_end: proven.end,
        watermark: if end_lost { walk.end } else { proven.end },
        proven_crc: proven.crc,
        proven_next: proven.next,
        clean,
        holes: walk.gaps.iter().map(|gap| gap.lost.clone()).filter(|lost| !lost.is_empty()).collect(),
        start_generation: walk.last.map_or(0, |last| last.start_generation),
        gaps: new_gaps(&walk, max_generation),
        groups: walk.groups,
        max_generation,
        recovery,
    }))
}

/// Returns the log's random number, if any group is whole.
fn one_log(scans: &[Scan]) -> Result<Option<u128>> {
    let mut log_id = None;
    for scan in scans {
        if let Some((offset, found)) = scan.version {
            let text = format!("the group at byte {offset} has {}", unknown_version(found));
            return Err(Error::at(ErrorKind::Version { found }, &scan.file, text));
        }
        for group in &scan.groups {
            if *log_id.get_or_insert(group.log_id) != group.log_id {
                let text = format!("the group at byte {} belongs to another log", group.offset);
                return Err(Error::at(ErrorKind::Foreign, &scan.file, text));
            }
        }
    }
    Ok(log_id)
}

/// Returns the newest watermark: everything below was durable.
fn watermark(live: &[Header]) -> Position {
    live.iter().map(|header| header.watermark).max().unwrap_or_default()
}

/// The start of the unproven groups, and of those that an open must copy.
struct Tail {
    proven: usize,
    start: usize,
}

fn unproven(groups: &[Group], watermark: Position) -> Tail {
    let proven = groups.partition_point(|group| group.header.end() <= watermark);
    let tail = &groups[proven..];
    // A group without records stays. The groups after it repeat its effect, so damage to it loses nothing.
    let records = tail.iter().position(|group| group.header.holds());
    let only_records = tail.iter().all(|group| matches!(group.header.kind, Kind::Records | Kind::Mark));
    let start = records.filter(|_| only_records).map_or(groups.len(), |at| proven + at);
    Tail { proven, start }
}

/// The data that a REOPEN group follows.
struct ReopenBase {
    end: Position,
    crc: u32,
    next: u64,
    /// No kept record counts from this number on. Equals `next` unless damage destroyed no record.
    first: u64,
    epochs: Epochs,
}

fn proven(walk: &Walk, kept: usize) -> ReopenBase {
    let last = kept.checked_sub(1).and_then(|last| walk.groups.get(last)).map(|group| group.header);
    if let Some(end) = walk.last.filter(Header::is_end) {
        // All groups are kept; a gap follows them, up to the next group.
        let replaced = walk.gaps.last().map_or(walk.next_lsn, |gap| gap.replaced);
        return ReopenBase {
            end: last.map_or(walk.end, |last| last.end()),
            crc: end.crc,
            next: walk.next_lsn,
            first: replaced.min(walk.next_lsn),
            epochs: walk.epochs,
        };
    }
    let copied = walk.groups.get(kept).map(|group| group.header);
    let gap = copied.and_then(|copied| walk.gaps.iter().find(|gap| gap.resume == copied.position()));
    match (last, copied) {
        (Some(last), None) => {
            let (next, epochs) = (walk.next_lsn, walk.epochs);
            ReopenBase { end: walk.end, crc: last.crc, next, first: next, epochs }
        }
        // Damage between the two that destroyed no record: the REOPEN group replaces it, and that of a copy that did so before.
        (Some(last), Some(copied)) if gap.is_none_or(|gap| gap.lost.is_empty()) => {
            let reopened = copied.flags.reopen().then_some(copied.epochs.firsts[0]);
            let first = gap.map(|gap| gap.replaced).or(reopened).unwrap_or(copied.first_lsn);
            let (next, epochs) = (copied.first_lsn, last.epochs);
            ReopenBase { end: last.end(), crc: last.crc, next, first: first.min(next), epochs }
        }
        // Nothing is kept, or the loss before the copied group is declared: the REOPEN group starts where that group did.
        (_, Some(copied)) => {
            let (end, next) = (copied.position(), copied.first_lsn);
            ReopenBase { end, crc: 0, next, first: next, epochs: copied.epochs }
        }
        (None, None) => {
            let (end, next, epochs) = (walk.end, walk.next_lsn, walk.epochs);
            ReopenBase { end, crc: 0, next, first: next, epochs }
        }
    }
}

/// Returns the number of the segment before the REOPEN group's. It is chosen so that the REOPEN group's epoch can be distinguished
/// from those of the lost end: its own epochs are as many as the segments between it and its `cut`, and one more.
fn leap(walk: &Walk, proven: &ReopenBase, number: u64) -> u64 {
    let kept = walk.groups.last().map_or(number, |group| group.header.epochs.number);
    proven.end.generation.saturating_add(number.saturating_sub(kept)).saturating_sub(2)
}

/// Returns an epoch higher than that of anything ever written after `proven`, whole now or not: each attempt to open used a new
/// segment, and an epoch one higher than the attempt before.
fn reopen_epoch(proven: &ReopenBase, copied: Option<&Group>, epoch_max: u64, max_generation: u64) -> u64 {
    let since = |epoch: u64, generation: u64| {
        epoch.saturating_add(max_generation.saturating_sub(generation)).saturating_add(1)
    };
    let kept = since(proven.epochs.number, proven.end.generation).saturating_add(1);
    // After damage, the copied group's epoch may be higher than the kept one's.
    let copied = copied.map_or(0, |group| {
        let Header { epochs, generation, flags, .. } = group.header;
        since(epochs.number, generation).saturating_add(u64::from(!flags.reopen()))
    });
    kept.max(copied).max(epoch_max.saturating_add(1))
}

/// Returns the place where the newest table of values was, if it is lost: the last damage.
fn values_lost(scans: &[Scan], walk: &Walk) -> Option<Damage> {
    if !walk.values.is_some() || walk.table().is_some() {
        return None;
    }
    let (file, offset) = match walk.gaps.last() {
        Some(gap) => place(scans, gap),
        None => (file_of(scans, walk.end.generation), walk.end.offset),
    };
    Some(Damage { file, offset, why: "the newest values are damaged or gone".to_owned() })
}

/// Returns the losses in the order of the log, each with whether an earlier salvage accepted it.
fn losses(scans: &[Scan], walk: &Walk, missing: Option<Loss>) -> Vec<(Loss, bool)> {
    let gaps = walk.gaps.iter().filter(|gap| !gap.lost.is_empty());
    let lost = gaps.map(|gap| {
        let (file, offset) = place(scans, gap);
        let (first, last) = (Lsn(gap.lost.start), Lsn(gap.lost.end - 1));
        (Loss { first, last, file, offset }, gap.declared)
    });
    lost.chain(missing.map(|lost| (lost, false))).collect()
}

/// Returns the damage of a gap in which no record was lost.
fn damage(scans: &[Scan], gap: &Gap) -> Damage {
    let (file, offset) = place(scans, gap);
    Damage { file, offset, why: "a group that has no record of the log is damaged".to_owned() }
}

/// Returns the damage of the file `wal.end`.
fn damaged_end(end: &FoundEnd) -> Damage {
    Damage { file: end.path.clone(), offset: 0, why: "the record of the log's end is damaged".to_owned() }
}

/// Returns the start of a gap: the place after the last good group, or the next segment if that place is empty.
fn place(scans: &[Scan], gap: &Gap) -> (PathBuf, u64) {
    let Position { mut generation, mut offset } = gap.cut;
    let here = scan_of(scans, generation);
    let full = here.is_some_and(|scan| scan.bytes >= offset && scan.tail(gap.cut, true).is_none());
    if offset > 0 && gap.resume.generation > generation && full {
        // Segments in between that were prepared and never used are empty.
        let between = generation + 1..=gap.resume.generation;
        let begun = |scan: &&Scan| between.contains(&scan.generation) && scan.begun().is_some();
        generation = scans.iter().find(begun).map_or(*between.start(), |scan| scan.generation);
        offset = 0;
    }
    (file_of(scans, generation), offset)
}

/// Returns the loss of a segment that was removed from outside. Segments get consecutive numbers, and a segment is kept while the
/// log may need it. So a number missing between the log's end and the segment `newest` is a removed segment. The same holds for a
/// segment with groups written to it under a later number: the log had continued after it.
fn missing_segment(scans: &[Scan], walk: &Walk, log_id: u128, newest: u64) -> Option<Loss> {
    let mut behind = (walk.end.generation..=newest).skip(1);
    let is_gone = |scan: &Scan| scan.ahead.0 > scan.generation && scan.ahead.1 == log_id;
    let generation = behind.find(|&generation| scan_of(scans, generation).is_none_or(is_gone))?;
    let file = file_of(scans, generation);
    Some(Loss { first: Lsn(walk.next_lsn), last: Lsn(u64::MAX), file, offset: 0 })
}

/// Returns the evidence of an incomplete or damaged group after the log's end.
fn cut(scans: &[Scan], walk: &Walk, behind: Option<&Header>) -> Option<Damage> {
    if let Some(header) = behind {
        let why = "a group stands there to which nothing leads".to_owned();
        return Some(Damage { file: file_of(scans, header.generation), offset: header.offset, why });
    }
    let recycled = walk.groups.last().is_some_and(|group| group.header.flags.recycled());
    let here = scan_of(scans, walk.end.generation)
        .and_then(|scan| scan.tail(walk.end, recycled).map(|why| (scan, walk.end.offset, why)));
    let later = || {
        let later = scans.iter().filter(|scan| scan.generation > walk.end.generation);
        later.filter_map(|scan| scan.begun().map(|why| (scan, 0, why))).next()
    };
    let (scan, offset, why) = here.or_else(later)?;
    Some(Damage { file: scan.file.clone(), offset, why: why.to_owned() })
}

fn scan_of(scans: &[Scan], generation: u64) -> Option<&Scan> {
    let at = scans.binary_search_by_key(&generation, |scan| scan.generation).ok()?;
    scans.get(at)
}

/// Returns the path of a segment, which may be missing.
fn file_of(scans: &[Scan], generation: u64) -> PathBuf {
    match (scan_of(scans, generation), scans.first()) {
        (Some(scan), _) => scan.file.clone(),
        (None, Some(other)) => other.file.with_file_name(segment_name(generation)),
        (None, None) => PathBuf::from(segment_name(generation)),
    }
}

fn corruption(lost: Loss) -> Error {
    let many = match lost.last.0 {
        u64::MAX => format!("records from {} on", lost.first),
        _ => format!("records {} to {}", lost.first, lost.last),
    };
    let text = format!("{many} were durable and are damaged or gone, from byte {} on", lost.offset);
    Error::corruption(Some(lost.file.clone()), lost, text)
}

/// Returns the error for a log without any whole group. A segment gets its name only once its log's first
/// group is durable, so such a log is damaged. The same holds for a log without segments that has a record of
/// its end.
fn nothing_left(scans: &[Scan], end: &FoundEnd) -> Error {
    let generation = scans.first().map_or(1, |scan| scan.generation);
    let recorded = end.record.map(|end| end.first_retained..end.next_lsn).filter(|lost| !lost.is_empty());
    let (first, last) = recorded.map_or((1, u64::MAX), |lost| (lost.start, lost.end - 1));
    let file = if scans.is_empty() {
        end.path.with_file_name(segment_name(generation))
    } else {
        file_of(scans, generation)
    };
    let lost = Loss { first: Lsn(first), last: Lsn(last), file, offset: 0 };
    let text = if scans.is_empty() {
        format!(
            "the log's segments are gone, and {} says that there were some; where that is meant to be, remove that \
             file, too",
            end.path.display()
        )
    } else {
        let text = "the files that are named like segments have not one whole group: they are not a log, or everything is lost";
        text.to_owned()
    };
    Error::corruption(Some(lost.file.clone()), lost, text)
}

/// Returns the record of the log's end, if it belongs to this log.
fn end_of(end: &FoundEnd, log_id: Option<u128>, salvage: bool) -> Result<Option<EndRecord>> {
    match (end.record, log_id) {
        (Some(record), Some(log_id)) if record.log_id != log_id => {
            if salvage {
                // The record is written anew.
                Ok(None)
            } else {
                let text = "this record of a log's end belongs to another log than the segments beside it; where the \
                            segments are the right ones, remove this file";
                Err(Error::at(ErrorKind::Foreign, &end.path, text))
            }
        }
        (record, _) => Ok(record),
    }
}

/// Returns the losses that salvage must declare. A loss at the end extends to the REOPEN group, which is the
/// next group.
fn new_gaps(walk: &Walk, max_generation: u64) -> Vec<Gap> {
    if walk.groups.is_empty() {
        return Vec::new();
    }
    let at_end = |gap: &Gap| gap.resume == walk.end && walk.last.is_some_and(|last| last.is_end());
    let reopen = Position { generation: max_generation.saturating_add(1), offset: 0 };
    let new = walk.gaps.iter().filter(|gap| !gap.declared && !gap.lost.is_empty());
    new.map(|gap| Gap { resume: if at_end(gap) { reopen } else { gap.resume }, ..gap.clone() }).collect()
}

impl Walk {
    /// Returns the next LSN before the group `index`.
    fn proven_before(&self, index: usize) -> u64 {
        // The group's own statement: records before it may have been truncated by a group that is damaged.
        self.groups.get(index).map_or(self.next_lsn, |group| group.header.first_lsn)
    }
}
