//! The work that is due in all keyspaces. Each edit of the manifest asks for it, and of thousands of keyspaces it changes a few: for
//! the others the result is kept with their tables.

use std::sync::Arc;

use super::{EXPIRED, How, Shape, is_crowded};
use crate::manifest::version::{Levels, Needs, Version};

/// Returns the bytes that compaction has to move out of levels with targets.
pub(crate) fn pending_bytes(version: &Version, how: &How<'_>) -> u64 {
    version.keyspaces().map(|(_, levels)| needs(levels, how).pending_bytes).sum()
}

/// Returns whether some work does not wait for rest.
pub(crate) fn is_urgent(version: &Version, how: &How<'_>) -> bool {
    let is_crowded = is_crowded(version, how);
    version.keyspaces().any(|(_, levels)| is_due(levels, how, is_crowded))
}

/// Returns the keyspaces with such work; on a full disk all that have tables.
pub(super) fn urgent<'v>(version: &'v Version, how: &How<'_>) -> impl Iterator<Item = (u32, Shape<'v>)> {
    let is_crowded = is_crowded(version, how);
    let keyspaces = version.keyspaces().filter(move |(_, levels)| {
        if how.is_full { !levels.is_empty() } else { is_due(levels, how, is_crowded) }
    });
    keyspaces.map(move |(keyspace, levels)| (keyspace, Shape { is_crowded, ..Shape::of(levels, how) }))
}

fn is_due(levels: &Arc<Levels>, how: &How<'_>, is_crowded: bool) -> bool {
    let needs = needs(levels, how);
    if is_crowded { needs.is_urgent_if_crowded } else { needs.is_urgent }
}

/// Returns the needs of a keyspace. They follow from its tables, unless the disk is full or time has a part in them.
fn needs(levels: &Arc<Levels>, how: &How<'_>) -> Needs {
    if how.is_full || levels.has_expiring() {
        return find(levels, how);
    }
    let needs = levels.needs(|| find(levels, how));
    debug_assert_eq!(needs, find(levels, how), "the needs are those of these tables");
    needs
}

fn find(levels: &Arc<Levels>, how: &How<'_>) -> Needs {
    let shape = Shape::of(levels, how);
    let pending_bytes = shape.pending();
    let has_waste = shape.stale(EXPIRED).is_some() || shape.collect(0, false).is_some();
    let is_urgent = has_waste || shape.worst().0 > 1.0;
    let crowded = Shape { is_crowded: true, ..shape };
    Needs { pending_bytes, is_urgent, is_urgent_if_crowded: has_waste || crowded.worst().0 > 1.0 }
}
