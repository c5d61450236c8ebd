//! The output of `forebay wal` as text.

use std::fmt::Write as _;
use std::ops::Range;

use forebay_wal::inspect::{Group, GroupKind, Place, Repaired, Report, Segment, Verdict};
use forebay_wal::{Lost, Lsn, Recovery};

use crate::output::counted;

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
    let _ = writeln!(out, "\n  {:<20}  {:>11}  {:>11}  {:>6}  records", "segment", "bytes", "used", "groups");
    for segment in &report.segments {
        segment_line(&mut out, segment);
        if groups {
            segment.groups.iter().for_each(|group| group_line(&mut out, group));
        }
    }
    for stranger in &report.strangers {
        let _ = writeln!(out, "  not the log's: {}", stranger.display());
    }
    out.push('\n');
    out + &findings(report)
}

pub(super) fn verified(report: &Report) -> String {
    findings(report)
}

pub(super) fn repaired(repaired: &Repaired) -> String {
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
pub(super) fn sentences(report: &Report) -> Vec<String> {
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
    for lost in &recovery.lost {
        let (file, offset) = (lost.file.display(), lost.offset);
        all.push(if report.lost_now.contains(lost) {
            format!("lost: {}, durable once, from byte {offset} of {file} on", range(lost))
        } else {
            format!("accepted as lost earlier: {} (byte {offset} of {file})", range(lost))
        });
    }
    for damage in &recovery.damage {
        let (file, offset) = (damage.file.display(), damage.offset);
        all.push(format!("damaged, but no record is lost by it: byte {offset} of {file}"));
    }
    if let Some(cut) = &recovery.cut {
        let (file, offset, why) = (cut.file.display(), cut.offset, &cut.why);
        all.push(format!(
            "cut off: the bytes from {offset} of {file} on ({why}); at most the last group, which may have been \
             acknowledged or not"
        ));
    }
    for (file, bytes) in report.unreadable() {
        let (start, end) = (bytes.start, bytes.end);
        all.push(format!("cannot be read from the drive: bytes {start} to {end} of {}", file.display()));
    }
    all
}

fn findings(report: &Report) -> String {
    sentences(report).iter().fold(String::new(), |out, sentence| out + sentence + "\n")
}

/// Returns the number of records in the log.
pub(super) fn records(report: &Report) -> u64 {
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
    match recovery.unproven {
        0 => "all proven durable".to_owned(),
        count => format!("proven durable up to {}, the last {count} intact and kept", recovery.proven),
    }
}

fn range(lost: &Lost) -> String {
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
    let kind = match group.kind {
        GroupKind::Records => "records".to_owned(),
        GroupKind::Reopen => "reopen".to_owned(),
        GroupKind::Mark => "mark".to_owned(),
        GroupKind::Truncate(last) => format!("truncate after {last}"),
        GroupKind::Reset(next) => format!("reset to {next}"),
        GroupKind::Gap(from, to) => format!("gap from {} to {}", place(from), place(to)),
        _ => "unknown".to_owned(),
    };
    let (offset, bytes, epoch) = (group.offset, group.bytes, group.epoch);
    let watermark = place(group.watermark);
    let state = match (group.linked, group.live == group.lsns) {
        (false, _) => "  (not part of the log)".to_owned(),
        (true, true) => String::new(),
        (true, false) => format!("  (still held: {})", lsns(&group.live)),
    };
    let _ = writeln!(
        out,
        "    at {offset:>10}  {bytes:>9} bytes  {kind}  {}  epoch {epoch}  watermark {watermark}{state}",
        lsns(&group.lsns)
    );
}

fn lsns(lsns: &Range<u64>) -> String {
    if lsns.is_empty() { "none".to_owned() } else { format!("{} to {}", lsns.start, lsns.end - 1) }
}

fn place(place: Place) -> String {
    format!("{:x}:{}", place.generation, place.offset)
}
