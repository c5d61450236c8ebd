//! JSON output of `forebay kv`; docs/report-schema.md describes it.

use std::path::Path;

use forebay_kv::{MemoryStats, Stats, Verified};
use serde_json::{Map, Value, json};

use super::bytes::hex;
use super::text;

/// Formats an entry as one line in the format that `kv load` takes.
pub(super) fn entry(key: &[u8], value: Option<&[u8]>) -> serde_json::Result<String> {
    let mut line = Map::new();
    for (name, bytes) in [("key", Some(key)), ("value", value)] {
        let Some(bytes) = bytes else { continue };
        match std::str::from_utf8(bytes) {
            Ok(text) => line.insert(name.to_owned(), text.into()),
            Err(_) => line.insert(format!("{name}_hex"), hex(bytes).into()),
        };
    }
    serde_json::to_string(&line).map(|text| text + "\n")
}

pub(super) fn stats(dir: &Path, stats: &Stats) -> serde_json::Result<String> {
    let keyspaces: Vec<Value> = stats
        .keyspaces
        .iter()
        .map(|keyspace| {
            let levels = keyspace.levels.iter().enumerate().filter(|(_, level)| level.tables > 0);
            let levels = levels.map(|(number, level)| {
                json!({
                    "level": number,
                    "tables": level.tables,
                    "bytes": level.bytes,
                    "entries": level.entries,
                    "deleted": level.deleted,
                })
            });
            json!({ "name": keyspace.name, "levels": levels.collect::<Vec<_>>() })
        })
        .collect();
    document(json!({
        "dir": dir.to_string_lossy(),
        "table_bytes": text::table_bytes(stats),
        "records_in_log": stats.replayed,
        "removed_leftovers": stats.orphans,
        "pending_bytes": stats.pending_bytes,
        "memory": memory(&stats.memory),
        "keyspaces": keyspaces,
    }))
}

/// Returns the shares of the memory budget, in bytes.
fn memory(memory: &MemoryStats) -> Value {
    json!({
        "budget_bytes": memory.budget,
        "used_bytes": memory.used(),
        "memtables": { "used_bytes": memory.memtables, "share_bytes": memory.memtables_max },
        "log": { "used_bytes": memory.log, "share_bytes": memory.log_max },
        "manifest": { "used_bytes": memory.manifest, "share_bytes": memory.manifest_max },
        "tables": { "used_bytes": memory.tables, "share_bytes": memory.tables_max },
        "gets": { "used_bytes": memory.gets, "share_bytes": memory.gets_max },
        "held": { "used_bytes": memory.held, "share_bytes": memory.held_max },
        "spare": { "share_bytes": memory.spare_max },
        "cache": {
            "used_bytes": memory.pinned + memory.blocks,
            "share_bytes": memory.cache_max,
            "top_levels_bytes": memory.top_levels,
            "filters_bytes": memory.filters,
            "open_tables_bytes": memory.open_tables,
            "lent_bytes": memory.lent,
            "blocks_bytes": memory.blocks,
        },
    })
}

pub(super) fn verified(dir: &Path, verified: &Verified) -> serde_json::Result<String> {
    let findings = verified.findings.iter().map(|finding| {
        json!({
            "file": finding.path().map(|path| path.to_string_lossy()),
            "offset_bytes": finding.offset(),
            "text": finding.to_string(),
        })
    });
    document(json!({
        "dir": dir.to_string_lossy(),
        "whole": verified.is_whole(),
        "findings": findings.collect::<Vec<_>>(),
        "tables": verified.tables,
        "table_bytes": verified.table_bytes,
        "entries": verified.entries,
        "deleted": verified.deleted,
        "expiring": verified.expiring,
        "values_outside_leaves": verified.blobs,
        "records_in_log": verified.records,
        "cut": verified.cut,
        "kept": verified.kept.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
        "leftovers": verified.leftovers.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
    }))
}

fn document(kv: Value) -> serde_json::Result<String> {
    let document = json!({ "schema": 1, "forebay": env!("CARGO_PKG_VERSION"), "kv": kv });
    serde_json::to_string_pretty(&document).map(|text| text + "\n")
}
