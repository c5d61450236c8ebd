//! The work of [`Store::compact`](crate::Store::compact): jobs until a range of keys lies in the last level.

use std::sync::Arc;

use super::{How, Job, LAST, Shape, expired_bytes};
use crate::manifest::version::Version;
use crate::merge::Bounds;
use crate::table::Table;

/// The descent of a range of keys to the last level. It ends despite concurrent writes: it compacts the tables of level 0 that
/// existed at its start, then passes each level once, in the order of the keys. Data written later is newer.
#[derive(Debug)]
pub(crate) struct Descent {
    keyspace: u32,
    bounds: Bounds,
    /// The number of the first table that is newer than its start.
    upto: u32,
    at: Place,
    /// Where it is once the job that was picked last is done.
    next: Place,
}

/// A level, of which the keys up to the given one were passed. Level 0 is passed where a higher level is set.
#[derive(Clone, Debug, Default)]
struct Place {
    level: usize,
    key: Option<Box<[u8]>>,
}

impl Descent {
    pub(crate) fn new(keyspace: u32, bounds: Bounds, upto: u32) -> Descent {
        Descent { keyspace, bounds, upto, at: Place::default(), next: Place::default() }
    }

    /// Records that the job that was picked last is done.
    pub(crate) fn advance(&mut self) {
        self.at = self.next.clone();
    }

    /// Returns the next job. Among tables to be rewritten without their expired entries or with another codec it considers only old
    /// tables, so that the work ends.
    pub(crate) fn pick(&mut self, version: &Version, how: &How<'_>) -> Option<Job> {
        let Descent { keyspace, upto, .. } = *self;
        let shape = Shape { is_tight: false, ..Shape::of(version.keyspace(keyspace)?, how) };
        let is_old = |table: &Table| table.id() < upto && self.bounds.meet(table);
        self.next = self.at.clone();
        if self.at.level == 0 {
            let level0 = shape.oldest(is_old);
            // All runs of a whole keyspace are merged together, if the space allows it.
            if self.bounds.is_all() && !how.is_full {
                if let Some(job) = shape.merging_runs(keyspace, level0) {
                    let is_taken = |table: &Table| job.uppers().any(|upper| upper.id() == table.id());
                    if shape.levels.level(0).iter().all(|table| !is_old(table) || is_taken(table)) {
                        self.next = Place { level: shape.base, key: None };
                    }
                    return Some(job);
                }
            } else if !level0.is_empty() {
                return shape.level0_job(keyspace, level0);
            }
        }
        let is_ahead = |level: usize, table: &Table| {
            let key = self.at.key.as_ref().filter(|_| level == self.at.level);
            self.bounds.meet(table) && key.is_none_or(|key| table.meta().largest > *key)
        };
        for level in self.at.level.max(1)..LAST {
            let mut tables = shape.levels.level(level).iter();
            if let Some(table) = tables.find(|table| is_ahead(level, table)) {
                self.next = Place { level, key: Some(table.meta().largest.clone()) };
                return shape.table_job(keyspace, level, table.clone());
            }
        }
        self.next = Place { level: LAST, key: None };
        let has_expired = |table: &Table| expired_bytes(table.meta(), how.now_s) > 0;
        let is_stale = |table: &&Arc<Table>| {
            is_old(table) && (table.meta().deleted > 0 || has_expired(table) || table.codec() != how.codec)
        };
        let stale = shape.levels.level(LAST).iter().find(is_stale);
        stale.map(|table| shape.again(keyspace, LAST, table, !how.is_full)).or_else(|| {
            let job = shape.collect(keyspace, true)?;
            let are_old = job.inputs().all(|table| is_old(table));
            are_old.then_some(job)
        })
    }
}
