//! What to compact next.
//!
//! Levels have targets from the last one up: the last has what it has, each above a tenth of the one below,
//! and those whose target would be less than a few memtables have nothing: level 0 is compacted past them. So
//! what lies above the last level is at most an eighth of it at rest. A deletion counts with what it deletes.

use std::ops::Bound;
use std::sync::Arc;

use crate::budget::Budget;
use crate::manifest::version::{LEVELS, Levels, Version};
use crate::merge::Bounds;
use crate::table::{Table, TableMeta};

/// Tables of level 0 of a keyspace that are compacted.
pub(crate) const LEVEL0: usize = 4;
/// Tables of level 0 that are compacted at once: each is read on its own, with memory of its own.
const LEVEL0_MAX: usize = 12;
/// How much larger a level is than the one above.
const GROWTH: u64 = 10;
/// At rest at most this part of the last level lies above it, and at most this part of a table has expired.
const REST: u64 = 8;
/// A table of which so much has expired is rewritten also when the store is busy.
const EXPIRED: u64 = 2;
const LAST: usize = LEVELS - 1;

/// Tables that become others.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) keyspace: u32,
    pub(crate) level: usize,
    pub(crate) target: usize,
    /// Of level 0 the newest first, of others by key.
    pub(crate) upper: Vec<Arc<Table>>,
    /// Of the target, by key: what overlaps.
    pub(crate) lower: Vec<Arc<Table>>,
    /// The keyspace when the job was picked.
    pub(crate) levels: Arc<Levels>,
}

/// A part of a job: the keys within bounds.
pub(crate) struct Piece {
    pub(crate) keyspace: u32,
    level: usize,
    target: usize,
    upper: Vec<Arc<Table>>,
    lower: Arc<Table>,
    pub(crate) bounds: Bounds,
    pub(crate) is_last: bool,
}

impl Piece {
    /// As a job of the keyspace's levels as they are now.
    pub(crate) fn into_job(self, levels: Arc<Levels>) -> Job {
        let Piece { keyspace, level, target, upper, lower, .. } = self;
        Job { keyspace, level, target, upper, lower: vec![lower], levels }
    }
}

/// A keyspace's levels as they are and as they should be.
struct Shape<'l> {
    levels: &'l Arc<Levels>,
    /// What level 0 is compacted to, if nothing lies above it.
    base: usize,
    targets: [u64; LEVELS],
    /// Bytes of an entry of the last level.
    entry_bytes: u64,
    now_s: u64,
    /// Bytes of level 0 that are compacted at once.
    level0_bytes_max: u64,
}

impl<'l> Shape<'l> {
    fn of(levels: &'l Arc<Levels>, how: &How<'_>) -> Shape<'l> {
        let least = how.budget.memtable * LEVEL0 as u64;
        let (mut targets, mut base, mut target) = ([0; LEVELS], LAST, levels.bytes(LAST));
        targets[LAST] = u64::MAX;
        while base > 1 && target / GROWTH >= least {
            base -= 1;
            target /= GROWTH;
            targets[base] = target;
        }
        let deepest = (1..LEVELS).rev().find(|level| !levels.level(*level).is_empty());
        let entry_bytes = deepest.map_or(0, |level| {
            let entries: u64 = levels.level(level).iter().map(|table| table.meta().entries).sum();
            levels.bytes(level) / entries.max(1)
        });
        let level0_bytes_max = if how.is_full { how.budget.memtable } else { u64::MAX };
        Shape { levels, base, targets, entry_bytes, now_s: how.now_s, level0_bytes_max }
    }

    /// A table's bytes, and those that it deletes.
    fn weight(&self, table: &Table) -> u64 {
        let meta = table.meta();
        meta.bytes + meta.deleted.saturating_mul(self.entry_bytes) + expired_bytes(meta, self.now_s)
    }

    /// The table of the last level of which most has expired, if that is more than a part of it.
    fn stale(&self, part: u64) -> Option<&Arc<Table>> {
        let expired = |table: &Arc<Table>| expired_bytes(table.meta(), self.now_s);
        let tables = self.levels.level(LAST).iter().map(|table| (expired(table), table));
        let is_stale = |(expired, table): &(u64, &Arc<Table>)| *expired > table.meta().bytes / part;
        let worst = tables.filter(is_stale).reduce(|worst, next| if next.0 > worst.0 { next } else { worst });
        worst.map(|(_, table)| table)
    }

    /// A table of the last level is written again without what has expired.
    fn again(&self, keyspace: u32, table: &Arc<Table>) -> Job {
        let (upper, levels) = (vec![table.clone()], self.levels.clone());
        Job { keyspace, level: LAST, target: LAST, upper, lower: Vec::new(), levels }
    }

    fn level_weight(&self, level: usize) -> u64 {
        self.levels.level(level).iter().map(|table| self.weight(table)).sum()
    }

    /// How much too large a level is: compacted above 1.
    fn score(&self, level: usize) -> f64 {
        let tables = self.levels.level(level).len();
        match level {
            0 => tables as f64 / (LEVEL0 as f64 - 0.5),
            LAST => 0.0,
            _ if tables == 0 => 0.0,
            // Nothing should be there.
            _ if level < self.base => 1.5,
            _ => self.level_weight(level) as f64 / self.targets[level].max(1) as f64,
        }
    }

    fn worst(&self) -> (f64, usize) {
        let scores = (0..LEVELS).map(|level| (self.score(level), level));
        scores.fold((0.0, 0), |worst, next| if next.0 > worst.0 { next } else { worst })
    }

    /// Where a level's tables go.
    fn target(&self, level: usize) -> usize {
        let is_target = |below: &usize| *below >= self.base || !self.levels.level(*below).is_empty();
        (level + 1..LEVELS).find(is_target).unwrap_or(LAST)
    }

    /// The level that has to shrink for less space to be taken at rest.
    fn restless(&self) -> Option<usize> {
        let above: u64 = (0..LAST).map(|level| self.level_weight(level)).sum();
        let is_restless = above > self.levels.bytes(LAST) / REST;
        (0..LAST).find(|level| is_restless && !self.levels.level(*level).is_empty())
    }

    /// The first level above the last that has deletions.
    fn deleting(&self) -> Option<usize> {
        (0..LAST).find(|level| self.levels.level(*level).iter().any(|table| table.meta().deleted > 0))
    }

    /// Bytes that compaction has to rewrite.
    fn pending(&self) -> u64 {
        let over = (1..LAST).map(|level| self.level_weight(level).saturating_sub(self.targets[level]));
        let level0 = if self.levels.level(0).len() >= LEVEL0 { self.levels.bytes(0) } else { 0 };
        level0 + over.sum::<u64>()
    }

    fn job(&self, keyspace: u32, level: usize, upper: Vec<Arc<Table>>) -> Option<Job> {
        let target = self.target(level);
        let smallest = upper.iter().map(|table| &table.meta().smallest).min()?;
        let largest = upper.iter().map(|table| &table.meta().largest).max()?;
        let lower = overlap(self.levels, target, smallest, largest).to_vec();
        Some(Job { keyspace, level, target, lower, upper, levels: self.levels.clone() })
    }

    /// The tables of level 0 that were there first, the newest of them first.
    fn oldest(&self, is_meant: impl Fn(&Table) -> bool) -> Vec<Arc<Table>> {
        let level0 = self.levels.level(0);
        // Those from the newest that is meant on: none may stay behind what is newer.
        let first = level0.iter().position(|table| is_meant(table)).unwrap_or(level0.len());
        let meant = &level0[first.max(level0.len().saturating_sub(LEVEL0_MAX))..];
        let mut bytes = 0;
        let fits = |table: &&Arc<Table>| {
            bytes += table.meta().bytes;
            bytes <= self.level0_bytes_max
        };
        let count = meant.iter().rev().take_while(fits).count().max(1).min(meant.len());
        meant[meant.len() - count..].to_vec()
    }

    /// The table of a level whose move frees most for what it costs.
    fn cheapest(&self, level: usize) -> Option<Arc<Table>> {
        let target = self.target(level);
        let gain = |table: &Arc<Table>| {
            let meta = table.meta();
            let below = overlap(self.levels, target, &meta.smallest, &meta.largest);
            let bytes: u64 = below.iter().map(|table| table.meta().bytes).sum();
            self.weight(table) as f64 / (bytes + meta.bytes) as f64
        };
        let tables = self.levels.level(level).iter().map(|table| (gain(table), table));
        let best = tables.reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map(|(_, table)| table.clone())
    }

    fn pick(&self, keyspace: u32, level: usize) -> Option<Job> {
        let upper = match level {
            0 => self.oldest(|_| true),
            _ => vec![self.cheapest(level)?],
        };
        self.job(keyspace, level, upper)
    }
}

/// The tables of a level above 0 that have keys from `smallest` to `largest`.
fn overlap<'l>(levels: &'l Levels, level: usize, smallest: &[u8], largest: &[u8]) -> &'l [Arc<Table>] {
    let tables = levels.level(level);
    let begin = tables.partition_point(|table| *table.meta().largest < *smallest);
    let end = tables.partition_point(|table| *table.meta().smallest <= *largest);
    tables.get(begin..end).unwrap_or_default()
}

/// What picking depends on besides the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How<'b> {
    pub(crate) budget: &'b Budget,
    /// The seconds since 1970, now.
    pub(crate) now_s: u64,
    /// There is no space on disk: as little at once as can be.
    pub(crate) is_full: bool,
}

/// Bytes of a table's values that have expired, about: as if expiries came one after the other at even
/// distances.
fn expired_bytes(meta: &TableMeta, now_s: u64) -> u64 {
    let (first, last) = meta.expires_s;
    if meta.expiring == 0 || now_s < first {
        return 0;
    }
    let bytes = meta.bytes as f64 * meta.expiring as f64 / meta.entries.max(1) as f64;
    let passed = (now_s - first + 1) as f64 / (last.saturating_sub(first) + 1) as f64;
    (bytes * passed.min(1.0)) as u64
}

fn shapes<'v>(version: &'v Version, how: &How<'_>) -> impl Iterator<Item = (u32, Shape<'v>)> {
    version.keyspaces().map(move |(keyspace, levels)| (keyspace, Shape::of(levels, how)))
}

/// The most urgent job; `is_resting` also those that only save space, and where there is none on disk all that have
/// deletions.
pub(crate) fn next(version: &Version, how: &How<'_>, is_resting: bool) -> Option<Job> {
    let worst = shapes(version, how).map(|(keyspace, shape)| (shape.worst(), keyspace, shape));
    let worst = worst.reduce(|worst, next| if next.0.0 > worst.0.0 { next } else { worst });
    if let Some(((score, level), keyspace, shape)) = worst
        && score > 1.0
    {
        return shape.pick(keyspace, level);
    }
    let part = if is_resting { REST } else { EXPIRED };
    let stale = |(keyspace, shape): (u32, Shape<'_>)| Some(shape.again(keyspace, shape.stale(part)?));
    let deleting = |(keyspace, shape): (u32, Shape<'_>)| shape.pick(keyspace, shape.deleting()?);
    let restless = |(keyspace, shape): (u32, Shape<'_>)| shape.pick(keyspace, shape.restless()?);
    shapes(version, how)
        .find_map(stale)
        .or_else(|| shapes(version, how).filter(|_| is_resting).find_map(restless))
        .or_else(|| shapes(version, how).filter(|_| how.is_full).find_map(deleting))
}

/// Whether there is work that does not wait for rest.
pub(crate) fn is_urgent(version: &Version, how: &How<'_>) -> bool {
    shapes(version, how).any(|(_, shape)| shape.worst().0 > 1.0 || shape.stale(EXPIRED).is_some())
}

/// The second from which on something will have expired that is not worth a compaction yet; `None` if nothing
/// will.
pub(crate) fn expires_s(version: &Version, now_s: u64) -> Option<u64> {
    let metas = version.tables().map(|(_, table)| table.meta()).filter(|meta| meta.expiring > 0);
    let due = metas.map(|meta| {
        let (first, last) = meta.expires_s;
        first.max(now_s) + last.saturating_sub(first.max(now_s)) / REST
    });
    due.min()
}

/// Bytes that compaction has to rewrite.
pub(crate) fn pending_bytes(version: &Version, how: &How<'_>) -> u64 {
    shapes(version, how).map(|(_, shape)| shape.pending()).sum()
}

/// The next job on the way of a keyspace's keys to the last level. Of level 0, and of what is rewritten to
/// drop what has expired, only tables below a number, so that this ends.
pub(crate) fn asked(
    version: &Version,
    how: &How<'_>,
    keyspace: u32,
    bounds: &Bounds,
    upto: u32,
) -> Option<Job> {
    let shape = Shape::of(version.keyspace(keyspace)?, how);
    let is_old = |table: &Table| table.id() < upto && bounds.meet(table);
    let level0 = shape.oldest(is_old);
    if !level0.is_empty() {
        return shape.job(keyspace, 0, level0);
    }
    let mut levels = 1..LAST;
    let found = levels.find_map(|level| {
        let table = shape.levels.level(level).iter().find(|table| bounds.meet(table))?;
        Some((level, table.clone()))
    });
    if let Some((level, table)) = found {
        return shape.job(keyspace, level, vec![table]);
    }
    let has_expired = |table: &Table| expired_bytes(table.meta(), how.now_s) > 0;
    let is_stale = |table: &&Arc<Table>| is_old(table) && (table.meta().deleted > 0 || has_expired(table));
    Some(shape.again(keyspace, shape.levels.level(LAST).iter().find(is_stale)?))
}

/// The next job that takes a keyspace's keys out of the first two levels.
pub(crate) fn clearing(version: &Version, how: &How<'_>, keyspace: u32, bounds: &Bounds) -> Option<Job> {
    let shape = Shape::of(version.keyspace(keyspace)?, how);
    let level0 = shape.oldest(|table| bounds.meet(table));
    if !level0.is_empty() {
        return shape.job(keyspace, 0, level0);
    }
    let table = shape.levels.level(1).iter().find(|table| bounds.meet(table))?.clone();
    shape.job(keyspace, 1, vec![table])
}

/// The lowest level where a table may go that is newer than all that is there; `None` if it has to be
/// compacted first.
pub(crate) fn place(levels: &Levels, smallest: &[u8], largest: &[u8]) -> Option<usize> {
    let meets = |table: &Arc<Table>| *table.meta().largest >= *smallest && *table.meta().smallest <= *largest;
    if levels.level(0).iter().any(meets) {
        return None;
    }
    (1..LEVELS).take_while(|level| overlap(levels, *level, smallest, largest).is_empty()).last()
}

impl Job {
    /// The same in pieces, each of which takes space for one table of the target: the keys up to the end of each of those.
    /// The upper tables stay until the last piece; what they have in common with the pieces before is the same.
    pub(crate) fn into_pieces(self) -> impl Iterator<Item = Piece> {
        let Job { keyspace, level, target, upper, lower, .. } = self;
        let mut low = Bound::Unbounded;
        let last = lower.len().saturating_sub(1);
        // One table is not held until the next piece, so that its space is free by then.
        lower.into_iter().enumerate().map(move |(index, table)| {
            let end = table.meta().largest.to_vec();
            let is_last = index == last;
            let high = if is_last { Bound::Unbounded } else { Bound::Included(end.clone()) };
            let bounds = Bounds { low: std::mem::replace(&mut low, Bound::Excluded(end)), high };
            Piece { keyspace, level, target, upper: upper.clone(), lower: table, bounds, is_last }
        })
    }

    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.upper.iter().chain(&self.lower)
    }

    /// Whether the upper tables can simply belong to the target from now on.
    pub(crate) fn is_move(&self) -> bool {
        if !self.lower.is_empty() || self.level == self.target {
            return false;
        }
        let mut keys: Vec<_> =
            self.upper.iter().map(|table| (&table.meta().smallest, &table.meta().largest)).collect();
        keys.sort_unstable();
        // A deletion without anything to delete must not stay.
        let is_needed = |table: &Arc<Table>| {
            let (smallest, largest) = (&table.meta().smallest, &table.meta().largest);
            let is_below = |level| !overlap(&self.levels, level, smallest, largest).is_empty();
            table.meta().deleted == 0 || (self.target + 1..LEVELS).any(is_below)
        };
        keys.windows(2).all(|pair| pair[0].1 < pair[1].0) && self.upper.iter().all(is_needed)
    }

    /// Whether a table that stays may have something older of a key.
    pub(crate) fn is_below(&self, key: &[u8]) -> bool {
        if is_forgetful() {
            return false;
        }
        (self.target + 1..LEVELS).any(|level| self.levels.table_at(level, key).is_some())
    }
}

/// Whether this store was broken on purpose and drops deletions too soon.
fn is_forgetful() -> bool {
    #[cfg(feature = "_breakage")]
    return crate::breakage::Breakage::DeletionDroppedTooSoon.is_on();
    #[cfg(not(feature = "_breakage"))]
    false
}
