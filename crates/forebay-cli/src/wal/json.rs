//! The output of `forebay wal` in JSON; docs/report-schema.md describes it.

use std::path::Path;

use forebay_wal::inspect::{Group, GroupKind, Place, Repaired, Report, Segment, Verdict};
use forebay_wal::{Lost, Lsn};
use serde_json::{Value, json};

use super::text;
use crate::output::document;

pub(super) fn inspected(report: &Report, groups: bool) -> serde_json::Result<String> {
    document("wal", json!({ "log": log(report, groups) }))
}

pub(super) fn repaired(repaired: &Repaired) -> serde_json::Result<String> {
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
    let cut = recovery.and_then(|recovery| recovery.cut.as_ref());
    json!({
        "dir": name(&report.dir),
        "in_use": report.in_use,
        "id": report.log_id.map(|id| format!("{id:032x}")),
        "verdict": verdict,
        "whole": report.is_whole(),
        "error": error,
        "findings": text::sentences(report),
        "records": text::records(report),
        "first_lsn": recovery.map(|recovery| recovery.first.0),
        "last_lsn": recovery.map(|recovery| recovery.last.0),
        "next_lsn": report.next_lsn.map(|next| next.0),
        "proven_lsn": recovery.map(|recovery| recovery.proven.0),
        "unproven_records": recovery.map(|recovery| recovery.unproven),
        "watermark": report.watermark.map(place),
        "lost": lost.iter().map(|lost| self::lost(lost, !report.lost_now.contains(lost))).collect::<Value>(),
        "cut": cut.map(|cut| json!({ "file": name(&cut.file), "offset_bytes": cut.offset, "why": cut.why })),
        "damage": damage.iter().map(|each| {
            json!({ "file": name(&each.file), "offset_bytes": each.offset })
        }).collect::<Value>(),
        "segments": report.segments.iter().map(|each| segment(each, groups)).collect::<Value>(),
        "strangers": report.strangers.iter().map(|path| name(path)).collect::<Value>(),
    })
}

fn lost(lost: &Lost, accepted: bool) -> Value {
    let last = Some(lost.last).filter(|&last| last != Lsn(u64::MAX)).map(|last| last.0);
    json!({
        "first_lsn": lost.first.0,
        "last_lsn": last,
        "file": name(&lost.file),
        "offset_bytes": lost.offset,
        "accepted": accepted,
    })
}

fn segment(segment: &Segment, groups: bool) -> Value {
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
        value["groups"] = segment.groups.iter().map(group).collect();
    }
    value
}

fn group(group: &Group) -> Value {
    let mut value = json!({
        "offset_bytes": group.offset,
        "bytes": group.bytes,
        "first_lsn": group.lsns.start,
        "records": group.lsns.end - group.lsns.start,
        "live_records": group.live.end - group.live.start,
        "linked": group.linked,
        "epoch": group.epoch,
        "watermark": place(group.watermark),
        "first_retained_lsn": group.first_retained.0,
    });
    let kind = match group.kind {
        GroupKind::Records => "records",
        GroupKind::Reopen => "reopen",
        GroupKind::Mark => "mark",
        GroupKind::Truncate(last) => {
            value["kept_lsn"] = last.0.into();
            "truncate"
        }
        GroupKind::Reset(next) => {
            value["next_lsn"] = next.0.into();
            "reset"
        }
        GroupKind::Gap(from, to) => {
            (value["from"], value["to"]) = (place(from), place(to));
            "gap"
        }
        _ => "unknown",
    };
    value["kind"] = kind.into();
    value
}

fn place(place: Place) -> Value {
    json!({ "generation": place.generation, "offset_bytes": place.offset })
}

fn name(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
