//! What `forebay kv` says in lines.

use std::fmt::Write as _;
use std::path::Path;

use forebay_kv::{Stats, Verified};

/// Bytes of all tables.
pub(super) fn table_bytes(stats: &Stats) -> u64 {
    stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels).map(|level| level.bytes).sum()
}

pub(super) fn stats(dir: &Path, stats: &Stats) -> String {
    let mut out = format!("store {}\n", dir.display());
    let _ = writeln!(out, "  tables      {} bytes", table_bytes(stats));
    let _ = writeln!(out, "  log         {}, in no table yet", counted(stats.replayed, "record"));
    let _ = writeln!(out, "  to compact  {} bytes", stats.pending_bytes);
    if stats.orphans > 0 {
        let _ = writeln!(out, "  removed     {}, left by a crash", counted(stats.orphans, "file"));
    }
    let _ = writeln!(
        out,
        "\n  {:<24} {:>5} {:>7} {:>14} {:>12} {:>10}",
        "keyspace", "level", "tables", "bytes", "entries", "deletions"
    );
    for keyspace in &stats.keyspaces {
        let mut name = &*keyspace.name;
        for (number, level) in keyspace.levels.iter().enumerate().filter(|(_, level)| level.tables > 0) {
            let (tables, bytes, entries, deleted) = (level.tables, level.bytes, level.entries, level.deleted);
            let _ =
                writeln!(out, "  {name:<24} {number:>5} {tables:>7} {bytes:>14} {entries:>12} {deleted:>10}");
            name = "";
        }
        if !name.is_empty() {
            let _ = writeln!(out, "  {name:<24}     -       0");
        }
    }
    out
}

pub(super) fn verified(verified: &Verified) -> String {
    let mut out = match verified.is_whole() {
        true => "whole: ".to_owned(),
        false => format!("DAMAGED: {}; ", counted(verified.findings.len() as u64, "finding")),
    };
    let (tables, bytes) = (counted(verified.tables, "table"), verified.table_bytes);
    let (entries, deleted) = (counted(verified.entries, "entry"), verified.deleted);
    let _ = write!(out, "{tables} of {bytes} bytes with {entries}, {deleted} of them deletions; ");
    let _ = writeln!(out, "{} in the log", counted(verified.records, "record"));
    for finding in &verified.findings {
        let _ = writeln!(out, "{finding}");
    }
    if verified.cut {
        out +=
            "something unfinished stands at the end of the log, which an open cuts off: a crash in a write\n";
    }
    for leftover in &verified.leftovers {
        let _ = writeln!(out, "not needed, an open removes it: {}", leftover.display());
    }
    out
}

fn counted(count: u64, what: &str) -> String {
    match (count, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (count, Some(stem)) => format!("{count} {stem}ies"),
        (count, None) => format!("{count} {what}s"),
    }
}
