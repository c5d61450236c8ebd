//! What `forebay wal` shows, as text and as JSON, which crates/forebay-report/SCHEMA.md describes.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use forebay_wal::inspect::{Group, GroupKind, Place, RepairReport, Report, Segment, Verdict};
use forebay_wal::{Loss, Lsn, Recovery};
use serde_json::{Value, json};

use crate::output::{counted, document, hex};

pub(super) fn inspected(report: &Report, groups: bool) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "log {}", report.dir.display());
    if report.in_use {
        out += "  IN USE: the log was read while it was being written; its end may look unfinished\n";
    }
    if let Some(id) = report.log_id {
        let _ = writeln!(out, "  id              {id:032x}");
    }
    if let (Some(recovery), Some(next)) = (&report.recovery, report.next_lsn) {
        let _ = writeln!(out, "  records         {}; the next one is {next}", holds(report, recovery));
        let _ = writeln!(out, "  first retained  {}", recovery.first);
        let _ = writeln!(out, "  proven          {}", proven(recovery));
    }
    if let Some(watermark) = report.watermark {
        let _ = writeln!(out, "  watermark       {}", place(watermark));
    }
    for (key, value) in &report.values {
        let _ = writeln!(out, "  value           {key} = {}", shown(value));
    }
    let _ = writeln!(out, "\n  {:<20}  {:>11}  {:>11}  {:>6}  records", "segment", "bytes", "used", "groups");
    for segment in &report.segments {
        segment_line(&mut out, segment);
        if groups {
            segment.groups.iter().for_each(|group| group_line(&mut out, group));
        }
    }
    for unknown in &report.unknown_files {
        let _ = writeln!(out, "  not the log's: {}", unknown.display());
    }
    out.push('\n');
    out + &findings(report)
}

pub(super) fn repaired(repaired: &RepairReport) -> String {
    let mut out = findings(&repaired.before);
    let dir = repaired.after.dir.display();
    let _ = match repaired.records {
        0 => writeln!(out, "saved: no record; {dir} is a new log without any, and was verified"),
        count => writeln!(
            out,
            "saved: {}, {} to {}, into the new log {dir}, which was read back and verified",
            counted(count, "record"),
            repaired.first(),
            repaired.last()
        ),
    };
    out
}

/// Returns one sentence for each finding, the verdict first.
fn sentences(report: &Report) -> Vec<String> {
    let mut all = Vec::new();
    match (&report.verdict, &report.recovery) {
        (Verdict::Opens, Some(recovery)) if report.is_whole() => {
            all.push(format!("whole: {}; {}", holds(report, recovery), proven(recovery)));
        }
        (Verdict::Opens, Some(recovery)) => {
            all.push(format!("opens, but not whole: {}; {}", holds(report, recovery), proven(recovery)));
        }
        (Verdict::Damaged(_), Some(recovery)) => {
            all.push(format!("DAMAGED: an open is refused; repair can save {}", holds(report, recovery)));
        }
        (Verdict::Damaged(error), None) => all.push(format!("DAMAGED: nothing can be saved; {error}")),
        (Verdict::Refused(error), _) => all.push(format!("refused: {error}")),
        _ => all.push("there is no log".to_owned()),
    }
    let Some(recovery) = &report.recovery else { return all };
    let byte = |offset: u64, file: &Path| format!("byte {offset} of {}", file.display());
    for lost in &recovery.lost {
        let byte = byte(lost.offset, &lost.file);
        all.push(if report.lost_now.contains(lost) {
            format!("lost: {}, durable once, from {byte} on", range(lost))
        } else {
            format!("accepted as lost earlier: {} ({byte})", range(lost))
        });
    }
    if let Some(damage) = &recovery.values_lost {
        all.push(format!(
            "lost: the newest values, durable once, from {} on; {}",
            byte(damage.offset, &damage.file),
            if report.values.is_empty() { "none are left" } else { "those shown are older" }
        ));
    }
    for damage in &recovery.damage {
        all.push(format!("damaged, but no record is lost by it: {}", byte(damage.offset, &damage.file)));
    }
    if let Some(cut) = &recovery.truncated_at {
        let (file, offset, why) = (cut.file.display(), cut.offset, &cut.why);
        all.push(format!(
            "cut off: the bytes from {offset} of {file} on ({why}); at most the last group, which may have been \
             acknowledged or not"
        ));
    }
    for (file, Range { start, end }) in report.unreadable() {
        all.push(format!("cannot be read from the drive: bytes {start} to {end} of {}", file.display()));
    }
    all
}

pub(super) fn findings(report: &Report) -> String {
    sentences(report).iter().fold(String::new(), |out, sentence| out + sentence + "\n")
}

/// Returns the number of records in the log.
fn records(report: &Report) -> u64 {
    let groups = report.segments.iter().flat_map(|segment| &segment.groups);
    groups.map(|group| group.live.end - group.live.start).sum()
}

fn holds(report: &Report, recovery: &Recovery) -> String {
    match records(report) {
        0 => "no records".to_owned(),
        count => format!("{}, {} to {}", counted(count, "record"), recovery.first, recovery.last),
    }
}

fn proven(recovery: &Recovery) -> String {
    match recovery.tail_records {
        0 => "all proven durable".to_owned(),
        count => format!("proven durable up to {}, the last {count} intact and kept", recovery.durable_lsn),
    }
}

/// Bytes of a value that are shown.
const SHOWN_BYTES: usize = 64;

/// Returns the start of a value, with escapes for everything but printable ASCII.
fn shown(value: &[u8]) -> String {
    let text = value[..value.len().min(SHOWN_BYTES)].escape_ascii();
    match value.len() {
        ..=SHOWN_BYTES => format!("\"{text}\""),
        bytes => format!("\"{text}\"... ({bytes} bytes)"),
    }
}

fn range(lost: &Loss) -> String {
    match lost.last {
        Lsn(u64::MAX) => format!("the records from {} on", lost.first),
        last if last == lost.first => format!("record {last}"),
        last => format!("records {} to {last}", lost.first),
    }
}

fn segment_line(out: &mut String, segment: &Segment) {
    let name = segment.file.file_name().unwrap_or_default().to_string_lossy();
    let (bytes, used, groups) = (segment.bytes, segment.used_bytes(), segment.groups.len());
    let state = match (segment.needed, groups) {
        (_, 0) => "  (no whole group)",
        (false, _) => "  (not needed any more)",
        (true, _) => "",
    };
    let lsns = lsns(&segment.lsns());
    let _ = writeln!(out, "  {name}  {bytes:>11}  {used:>11}  {groups:>6}  {lsns}{state}");
}

fn group_line(out: &mut String, group: &Group) {
    let mut kind = kind(group.kind).to_owned();
    kind += &match group.kind {
        GroupKind::Truncate(last) => format!(" after {last}"),
        GroupKind::Reset(next) => format!(" to {next}"),
        GroupKind::Gap(from, to) => format!(" from {} to {}", place(from), place(to)),
        _ => String::new(),
    };
    let (offset, bytes, epoch) = (group.offset, group.bytes, group.epoch);
    let watermark = place(group.watermark);
    let state = match (group.linked, group.live == group.lsns) {
        (false, _) => "  (not part of the log)".to_owned(),
        (true, true) => String::new(),
        (true, false) => format!("  (still held: {})", lsns(&group.live)),
    };
    let values = match (group.values_bytes, group.sets_values) {
        (0, _) => String::new(),
        (bytes, true) => format!("  sets values ({bytes} bytes)"),
        (bytes, false) => format!("  repeats values ({bytes} bytes)"),
    };
    let _ = writeln!(
        out,
        "    at {offset:>10}  {bytes:>9} bytes  {kind}  {}  epoch {epoch}  watermark {watermark}{values}{state}",
        lsns(&group.lsns)
    );
}

fn lsns(lsns: &Range<u64>) -> String {
    if lsns.is_empty() { "none".to_owned() } else { format!("{} to {}", lsns.start, lsns.end - 1) }
}

fn place(place: Place) -> String {
    format!("{:x}:{}", place.generation, place.offset)
}

pub(super) fn inspected_json(report: &Report, groups: bool) -> serde_json::Result<String> {
    document("wal", json!({ "log": log(report, groups) }))
}

pub(super) fn repaired_json(repaired: &RepairReport) -> serde_json::Result<String> {
    let saved =
        json!({ "records": repaired.records, "bytes": repaired.bytes, "log": log(&repaired.after, false) });
    document("wal", json!({ "log": log(&repaired.before, false), "saved": saved }))
}

fn log(report: &Report, groups: bool) -> Value {
    let (verdict, error) = match &report.verdict {
        Verdict::Opens => ("opens", None),
        Verdict::Damaged(error) => ("damaged", Some(error.to_string())),
        Verdict::Refused(error) => ("refused", Some(error.to_string())),
        _ => ("none", None),
    };
    let recovery = report.recovery.as_ref();
    let lost = recovery.map_or(&report.lost_now, |recovery| &recovery.lost);
    let damage = recovery.map_or(&[][..], |recovery| &recovery.damage);
    let cut = recovery.and_then(|recovery| recovery.truncated_at.as_ref());
    json!({
        "dir": name(&report.dir),
        "in_use": report.in_use,
        "id": report.log_id.map(|id| format!("{id:032x}")),
        "verdict": verdict,
        "whole": report.is_whole(),
        "error": error,
        "findings": sentences(report),
        "records": records(report),
        "first_lsn": recovery.map(|recovery| recovery.first.0),
        "last_lsn": recovery.map(|recovery| recovery.last.0),
        "next_lsn": report.next_lsn.map(|next| next.0),
        "proven_lsn": recovery.map(|recovery| recovery.durable_lsn.0),
        "unproven_records": recovery.map(|recovery| recovery.tail_records),
        "watermark": report.watermark.map(place_json),
        "values": report.values.iter().map(|(key, value)| {
            json!({ "key": key, "hex": hex(value) })
        }).collect::<Value>(),
        "values_lost": recovery.and_then(|recovery| recovery.values_lost.as_ref()).map(|damage| {
            json!({ "file": name(&damage.file), "offset_bytes": damage.offset })
        }),
        "lost": lost.iter().map(|lost| lost_json(lost, !report.lost_now.contains(lost))).collect::<Value>(),
        "cut": cut.map(|cut| json!({ "file": name(&cut.file), "offset_bytes": cut.offset, "why": cut.why })),
        "damage": damage.iter().map(|each| {
            json!({ "file": name(&each.file), "offset_bytes": each.offset })
        }).collect::<Value>(),
        "segments": report.segments.iter().map(|each| segment_json(each, groups)).collect::<Value>(),
        "strangers": report.unknown_files.iter().map(|path| name(path)).collect::<Value>(),
    })
}

fn lost_json(lost: &Loss, accepted: bool) -> Value {
    let last = Some(lost.last).filter(|&last| last != Lsn(u64::MAX)).map(|last| last.0);
    json!({
        "first_lsn": lost.first.0,
        "last_lsn": last,
        "file": name(&lost.file),
        "offset_bytes": lost.offset,
        "accepted": accepted,
    })
}

fn segment_json(segment: &Segment, groups: bool) -> Value {
    let lsns = segment.lsns();
    let unreadable = segment.unreadable.iter();
    let mut value = json!({
        "generation": segment.generation,
        "file": name(&segment.file),
        "bytes": segment.bytes,
        "used_bytes": segment.used_bytes(),
        "needed": segment.needed,
        "first_lsn": (!lsns.is_empty()).then_some(lsns.start),
        "last_lsn": (!lsns.is_empty()).then(|| lsns.end - 1),
        "group_count": segment.groups.len(),
        "unreadable": unreadable.map(|range| {
            json!({ "offset_bytes": range.start, "bytes": range.end - range.start })
        }).collect::<Value>(),
    });
    if groups {
        value["groups"] = segment.groups.iter().map(group_json).collect();
    }
    value
}

fn group_json(group: &Group) -> Value {
    let mut value = json!({
        "kind": kind(group.kind),
        "offset_bytes": group.offset,
        "bytes": group.bytes,
        "first_lsn": group.lsns.start,
        "records": group.lsns.end - group.lsns.start,
        "live_records": group.live.end - group.live.start,
        "linked": group.linked,
        "epoch": group.epoch,
        "watermark": place_json(group.watermark),
        "first_retained_lsn": group.first_retained.0,
        "values_bytes": group.values_bytes,
        "sets_values": group.sets_values,
    });
    match group.kind {
        GroupKind::Truncate(last) => value["kept_lsn"] = last.0.into(),
        GroupKind::Reset(next) => value["next_lsn"] = next.0.into(),
        GroupKind::Gap(from, to) => (value["from"], value["to"]) = (place_json(from), place_json(to)),
        _ => {}
    }
    value
}

fn kind(kind: GroupKind) -> &'static str {
    match kind {
        GroupKind::Records => "records",
        GroupKind::Reopen => "reopen",
        GroupKind::Mark => "mark",
        GroupKind::Truncate(_) => "truncate",
        GroupKind::Reset(_) => "reset",
        GroupKind::Gap(..) => "gap",
        _ => "unknown",
    }
}

fn place_json(place: Place) -> Value {
    json!({ "generation": place.generation, "offset_bytes": place.offset })
}

fn name(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
