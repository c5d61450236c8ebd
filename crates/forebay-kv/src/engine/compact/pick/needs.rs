//! The work that is due in all keyspaces. Each edit of the manifest asks for it, and of thousands of keyspaces it changes a few: for
//! the others the result is kept with their tables, and in the version's index of work.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{EXPIRED, How, Shape, is_crowded, shapes, shapes_of};
use crate::manifest::version::{Levels, Version};
use crate::manifest::work_index::{Needs, WorkIndex};

/// Returns the bytes that compaction has to move out of levels with targets.
pub(crate) fn pending_bytes(version: &Version, how: &How<'_>) -> u64 {
    let work = work(version, how);
    let expiring = shapes_of(version, how, work.expiring()).map(|(_, shape)| shape.pending());
    work.pending_bytes() + expiring.sum::<u64>()
}

/// Returns the largest number of tables in level 0 of a keyspace, and their number in all keyspaces.
pub(crate) fn level0_tables(version: &Version, how: &How<'_>) -> (usize, usize) {
    let work = work(version, how);
    (work.level0_max(), work.level0_tables())
}

/// Returns whether some work does not wait for rest.
pub(crate) fn is_urgent(version: &Version, how: &How<'_>) -> bool {
    let has_work = |(_, shape): (u32, Shape<'_>)| {
        shape.stale(EXPIRED).is_some() || shape.collect(0, false).is_some() || shape.worst().0 > 1.0
    };
    if how.is_full {
        return shapes(version, how).any(has_work);
    }
    let work = work(version, how);
    work.is_urgent(is_crowded(version, how)) || shapes_of(version, how, work.expiring()).any(has_work)
}

/// Returns the keyspaces that may have the level with the highest score, by number: the one with the highest known score, and those
/// whose scores depend on the time; on a full disk all. Without those in `stuck`.
pub(super) fn most_urgent(version: &Version, how: &How<'_>, stuck: &BTreeSet<u32>) -> BTreeSet<u32> {
    let is_free = |keyspace: &u32| !stuck.contains(keyspace);
    if how.is_full {
        return version.keyspaces().map(|(keyspace, _)| keyspace).filter(is_free).collect();
    }
    let work = work(version, how);
    let highest = work.by_score(is_crowded(version, how)).find(is_free);
    debug_assert!(
        highest
            .and_then(|keyspace| version.keyspace(keyspace))
            .is_none_or(|levels| levels.needs(|| find(levels, how)) == find(levels, how)),
        "the needs are those of these tables"
    );
    highest.into_iter().chain(work.expiring().filter(is_free)).collect()
}

/// Returns the index of the work in all keyspaces.
pub(super) fn work<'v>(version: &'v Version, how: &How<'_>) -> &'v WorkIndex {
    version.work(|levels| find(levels, how))
}

/// Returns the needs of a keyspace, as they are while the disk is not full.
fn find(levels: &Arc<Levels>, how: &How<'_>) -> Needs {
    let level0 = levels.level(0).len();
    if levels.has_expiring() {
        return Needs { level0, is_expiring: true, ..Needs::default() };
    }
    let shape = Shape { is_full: false, ..Shape::of(levels, how) };
    let has_waste_at_rest = shape.collect(0, true).is_some();
    let crowded = Shape { is_crowded: true, ..shape };
    Needs {
        level0,
        pending_bytes: shape.pending(),
        score: shape.worst().0,
        score_if_crowded: crowded.worst().0,
        // What is mostly dead is partly dead.
        has_waste: has_waste_at_rest && shape.collect(0, false).is_some(),
        has_waste_at_rest,
        is_restless: shape.restless().is_some(),
        is_expiring: false,
    }
}
