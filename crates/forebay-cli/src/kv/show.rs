//! What `forebay kv` shows, as text and as JSON, which crates/forebay-report/SCHEMA.md describes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use forebay_kv::{MemoryStats, Recovery, Stats, VerifyReport};
use serde_json::{Value, json};

use crate::output::{counted, document};

/// Returns the bytes of all tables.
pub(super) fn table_bytes(stats: &Stats) -> u64 {
    stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels).map(|level| level.bytes).sum()
}

pub(super) fn stats(dir: &Path, stats: &Stats) -> String {
    let mut out = format!("store {}\n", dir.display());
    let _ = writeln!(out, "  tables      {} bytes", table_bytes(stats));
    let levels = stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels);
    let saved: u64 = levels.map(|level| level.saved_bytes).sum();
    if saved > 0 {
        let _ = writeln!(out, "  compressed  {saved} bytes less than without");
    }
    let _ = writeln!(out, "  log         {}, in no table yet", counted(stats.replayed, "record"));
    let _ = writeln!(out, "  to compact  {} bytes", stats.pending_bytes);
    if stats.orphans > 0 {
        let _ = writeln!(out, "  removed     {}, left by a crash", counted(stats.orphans, "file"));
    }
    let _ = writeln!(out, "\n  {:<24} {:>14} {:>14}", "memory, bytes", "used", "share");
    let all = ("", "all", Some(stats.memory.used()), Some(stats.memory.budget));
    for (_, name, used, size) in shares(&stats.memory).into_iter().chain([all]) {
        let [used, size] = [used, size].map(|bytes| bytes.map_or("-".to_owned(), |bytes| bytes.to_string()));
        let _ = writeln!(out, "  {name:<24} {used:>14} {size:>14}");
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

pub(super) fn stats_json(dir: &Path, stats: &Stats) -> serde_json::Result<String> {
    let keyspaces = stats.keyspaces.iter().map(|keyspace| {
        let levels = keyspace.levels.iter().enumerate().filter(|(_, level)| level.tables > 0);
        let levels = levels.map(|(number, level)| {
            let (tables, bytes, entries, deleted) = (level.tables, level.bytes, level.entries, level.deleted);
            let saved = level.saved_bytes;
            json!({
                "level": number, "tables": tables, "bytes": bytes, "saved_bytes": saved, "entries": entries,
                "deleted": deleted
            })
        });
        json!({ "name": keyspace.name, "levels": levels.collect::<Value>() })
    });
    let content = json!({
        "dir": dir.to_string_lossy(),
        "table_bytes": table_bytes(stats),
        "records_in_log": stats.replayed,
        "removed_leftovers": stats.orphans,
        "pending_bytes": stats.pending_bytes,
        "memory": memory_json(&stats.memory),
        "keyspaces": keyspaces.collect::<Value>(),
    });
    document("kv", content)
}

/// Returns the shares of the memory budget: name in JSON, label, bytes used and size. Those without a size
/// are parts of the cache.
fn shares(memory: &MemoryStats) -> [(&'static str, &'static str, Option<u64>, Option<u64>); 13] {
    let share = |name, label, used, size| (name, label, Some(used), Some(size));
    let of_cache = |name, label, used| (name, label, Some(used), None);
    [
        share("memtables", "memtables", memory.memtables, memory.memtables_max),
        share("log", "log", memory.log, memory.log_max),
        share("manifest", "manifest", memory.manifest, memory.manifest_max),
        share("tables", "flushes, compactions", memory.tables, memory.tables_max),
        share("gets", "gets under way", memory.gets, memory.gets_max),
        share("held", "held by the program", memory.held, memory.held_max),
        ("spare", "between buffers", None, Some(memory.spare_max)),
        share("cache", "cache", memory.pinned + memory.blocks, memory.cache_max),
        of_cache("top_levels_bytes", "  top levels", memory.top_levels),
        of_cache("filters_bytes", "  filters", memory.filters),
        of_cache("open_tables_bytes", "  open tables", memory.open_tables),
        of_cache("lent_bytes", "  lent to the program", memory.lent),
        of_cache("blocks_bytes", "  blocks", memory.blocks),
    ]
}

fn memory_json(memory: &MemoryStats) -> Value {
    let mut all = json!({ "budget_bytes": memory.budget, "used_bytes": memory.used() });
    for (name, _, used, size) in shares(memory) {
        match (used, size) {
            (Some(used), Some(size)) => all[name] = json!({ "used_bytes": used, "share_bytes": size }),
            (Some(used), None) => all["cache"][name] = used.into(),
            (None, size) => all[name] = json!({ "share_bytes": size }),
        }
    }
    all
}

pub(super) fn verified_json(dir: &Path, verified: &VerifyReport) -> serde_json::Result<String> {
    let findings = verified.findings.iter().map(|finding| {
        json!({
            "file": finding.path().map(|path| path.to_string_lossy()),
            "offset_bytes": finding.offset(),
            "text": finding.to_string(),
        })
    });
    let names = |paths: &[PathBuf]| -> Value { paths.iter().map(|path| path.to_string_lossy()).collect() };
    let content = json!({
        "dir": dir.to_string_lossy(),
        "whole": verified.is_whole(),
        "findings": findings.collect::<Value>(),
        "tables": verified.tables,
        "table_bytes": verified.table_bytes,
        "entries": verified.entries,
        "deleted": verified.deleted,
        "expiring": verified.expiring,
        "values_outside_leaves": verified.blobs,
        "records_in_log": verified.records,
        "cut": verified.cut,
        "kept": names(&verified.kept),
        "leftovers": names(&verified.leftovers),
    });
    document("kv", content)
}

pub(super) fn verified(verified: &VerifyReport) -> String {
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
