//! Text output of `forebay kv`.

use std::fmt::Write as _;
use std::path::Path;

use forebay_kv::{MemoryStats, Recovery, Stats, Verified};

/// Returns the bytes of all tables.
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
    out += &memory(&stats.memory);
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

/// Formats the shares of the memory budget: the size of each, with the bytes used.
fn memory(memory: &MemoryStats) -> String {
    let mut out = format!("\n  {:<24} {:>14} {:>14}\n", "memory, bytes", "used", "share");
    let mut row = |name: &str, used: Option<u64>, share: Option<u64>| {
        let cell = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
        let _ = writeln!(out, "  {name:<24} {:>14} {:>14}", cell(used), cell(share));
    };
    row("memtables", Some(memory.memtables), Some(memory.memtables_max));
    row("log", Some(memory.log), Some(memory.log_max));
    row("manifest", Some(memory.manifest), Some(memory.manifest_max));
    row("flushes, compactions", Some(memory.tables), Some(memory.tables_max));
    row("gets under way", Some(memory.gets), Some(memory.gets_max));
    row("held by the program", Some(memory.held), Some(memory.held_max));
    row("between buffers", None, Some(memory.spare_max));
    row("cache", Some(memory.pinned + memory.blocks), Some(memory.cache_max));
    row("  top levels", Some(memory.top_levels), None);
    row("  filters", Some(memory.filters), None);
    row("  open tables", Some(memory.open_tables), None);
    row("  lent to the program", Some(memory.lent), None);
    row("  blocks", Some(memory.blocks), None);
    row("all", Some(memory.used()), Some(memory.budget));
    out
}

pub(super) fn verified(verified: &Verified) -> String {
    let mut out = if verified.is_whole() {
        "whole: ".to_owned()
    } else {
        format!("DAMAGED: {}; ", counted(verified.findings.len() as u64, "finding"))
    };
    let (tables, bytes) = (counted(verified.tables, "table"), verified.table_bytes);
    let (entries, deleted) = (counted(verified.entries, "entry"), verified.deleted);
    let _ = write!(out, "{tables} of {bytes} bytes with {entries}, {deleted} of them deletions; ");
    let _ = writeln!(out, "{} in the log", counted(verified.records, "record"));
    for finding in &verified.findings {
        let _ = writeln!(out, "{finding}");
    }
    if verified.cut {
        out += "the log ends with an unfinished write, as after a crash; an open cuts it off\n";
    }
    for kept in &verified.kept {
        let _ =
            writeln!(out, "kept: the manifest does not name {}; it may hold missing records", kept.display());
    }
    for leftover in &verified.leftovers {
        let _ = writeln!(out, "not needed, an open removes it: {}", leftover.display());
    }
    out
}

/// Formats the findings of a salvage.
pub(super) fn recovered(recovery: &Recovery) -> String {
    let mut out = String::new();
    for lost in recovery.log.lost.iter().chain(&recovery.manifest.lost) {
        let (file, first, last) = (lost.file.display(), lost.first, lost.last);
        let _ = writeln!(out, "{file} at byte {}: records {first} to {last} are lost", lost.offset);
    }
    if let Some(error) = &recovery.refused {
        let _ = writeln!(out, "{error}");
    }
    for kept in &recovery.kept {
        let _ = writeln!(out, "kept: no manifest names {}; it may hold missing records", kept.display());
    }
    if out.is_empty() {
        out += "nothing was missing\n";
    }
    let _ = writeln!(out, "{} of the log read back", counted(recovery.replayed, "record"));
    out
}

fn counted(count: u64, what: &str) -> String {
    match (count, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (count, Some(stem)) => format!("{count} {stem}ies"),
        (count, None) => format!("{count} {what}s"),
    }
}
