//! Picks the next compaction.
//!
//! Levels have targets, set from the last level up. The last level's target is its size, and the targets of the levels above fall
//! by one ratio from level to level, down to [`TOP_MEMTABLES`]. An entry is written about once for each level, times that ratio; so
//! there are as many levels as keep the ratio at 4 to 16, and data of up to 160 memtables have no level between. The highest level
//! with a target is the base. At rest the levels above the last hold at most an eighth of it. A deletion counts together with the
//! bytes that it deletes.
//!
//! While the store is written to, the levels above the base are filled lazily: the tables of a full level 0 become one sorted run,
//! in the lowest of these levels that is free and has nothing older above it. All runs are merged into the base together, once they
//! weigh as much as it, so that half of the bytes written are new, or when no level is free. So an entry is written once to level
//! 0, mostly once to a run, and once or twice to the base. A get searches up to five runs more, with filters that are in memory. At
//! rest, and where a range is compacted, no runs are made. A full disk has no space to merge the runs together: there each table
//! moves down alone.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use crate::budget::Budget;
use crate::is_broken;
use crate::manifest::version::{LEVELS, Levels, ValueFile, Version};
use crate::memtable::Tally;
use crate::merge::Bounds;
use crate::node::codec::Codec;
use crate::table::{Leave, TABLE_MEMORY, Table, TableMeta};

mod needs;
mod range_descent;

pub(crate) use needs::{is_urgent, level0_tables, pending_bytes};
pub(crate) use range_descent::Descent;

/// The length above which values are long for compaction, which reads them one by one.
const LONG_BYTES: u32 = 64 << 10;
/// The length of a table with few keys: a leaf, an inner node, a filter and a footer.
pub(crate) const SHORT_BYTES: u64 = 16 << 10;
/// Number of a keyspace's tables in level 0 from which on they are compacted if what lies above the base weighs
/// [`OUTWEIGHS`] times as much as it. `DESIGN.md` has this number and the next.
const LEVEL0: usize = 4;
/// Number of tables in level 0 from which on they are compacted in any case. The write stall's `LEVEL0_SLOW`
/// must stay above it.
pub(crate) const LEVEL0_FULL: usize = 20;
/// The limit for tables of level 0 in one compaction: each is read as its own run, with its own memory.
pub(crate) const LEVEL0_MAX: usize = 26;
/// How much heavier than the base the levels above it become before level 0 is full. A larger factor costs space in small stores,
/// and a smaller factor rewrites their few bytes more often.
const OUTWEIGHS: u64 = 2;
/// The memtables that the target of a level above the base would have.
const TOP_MEMTABLES: u64 = 10;
/// If the metadata of all tables in level 0 need more than `1/CROWDED_PART` of the cache, a keyspace is compacted from this number
/// of tables on: each flush adds a table to each of many keyspaces.
const LEVEL0_CROWDED: usize = 2;
const CROWDED_PART: u64 = 4;
/// The least ratio of a level's target to that of the level above.
const GROWTH_MIN: f64 = 4.0;
/// At rest at most `1/REST` of the last level's size lies above it, and at most `1/REST` of a table has
/// expired.
const REST: u64 = 8;
/// A file without keys of which less than `1/SPARSE` is live is emptied even when the store is busy. With a higher share
/// more is written again, and soon some of that is dead too. At rest it is emptied if more than `1/SPARSE_AT_REST` is dead.
const SPARSE: u64 = 3;
const SPARSE_AT_REST: u64 = 4;
/// Number of files of a keyspace that are about as long as a memtable, above which compaction joins them.
const SHORT_FILES_MAX: usize = 128;
/// A table of which more than `1/EXPIRED` has expired is rewritten even when the store is busy.
const EXPIRED: u64 = 2;
/// Entries are short if they are on average less than `1/SHORTER` as long as those of the last level.
const SHORTER: u64 = 2;
/// Deletions of less than `1/DEAD_PART` of a memtable wait until it is full: the log and the reserve are longer than a memtable, so
/// that a flush would make the store little smaller.
const DEAD_PART: u64 = 8;
const LAST: usize = LEVELS - 1;

/// A compaction: tables that are replaced by others.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) keyspace: u32,
    pub(crate) level: usize,
    pub(crate) target: usize,
    /// The sorted runs to move down, the newest first: each table of level 0, and of other levels tables by key.
    pub(crate) upper: Vec<Vec<Arc<Table>>>,
    /// The tables of the target that overlap them, by key.
    pub(crate) lower: Vec<Arc<Table>>,
    /// The keyspace's levels when the job was picked.
    pub(crate) levels: Arc<Levels>,
    /// The long values that stay where they are.
    pub(crate) leave: Arc<Leave>,
}

/// A part of a job: the keys within bounds.
pub(crate) struct Piece {
    pub(crate) keyspace: u32,
    level: usize,
    target: usize,
    upper: Vec<Vec<Arc<Table>>>,
    lower: Vec<Arc<Table>>,
    pub(crate) bounds: Bounds,
    /// The upper tables that no later piece needs.
    pub(crate) passed: Vec<u32>,
    pub(crate) is_last: bool,
    leave: Arc<Leave>,
}

/// A job of which some pieces are done.
#[derive(Debug)]
pub(crate) struct Progress {
    keyspace: u32,
    level: usize,
    target: usize,
    /// The upper tables that are left, as in [`Job`].
    upper: Vec<Vec<u32>>,
    /// The last key of the finished pieces.
    end: Vec<u8>,
    /// Whether its next piece found no space, so that another job may run first.
    is_stuck: bool,
}

impl Progress {
    /// Returns it after its next piece found no space.
    pub(crate) fn stuck(self) -> Progress {
        Progress { is_stuck: true, ..self }
    }
}

impl Piece {
    /// Returns the job as it is once this piece is done, if it is not the last.
    pub(crate) fn progress(&self) -> Option<Progress> {
        let Bound::Included(end) = &self.bounds.high else { return None };
        let left = |run: &Vec<Arc<Table>>| -> Vec<u32> {
            ids(run).into_iter().filter(|id| !self.passed.contains(id)).collect()
        };
        let upper = self.upper.iter().map(left).filter(|run| !run.is_empty()).collect();
        let Piece { keyspace, level, target, .. } = *self;
        Some(Progress { keyspace, level, target, upper, end: end.clone(), is_stuck: false })
    }

    /// Returns the piece as a job of the keyspace's present levels.
    pub(crate) fn into_job(self, levels: Arc<Levels>) -> Job {
        let Piece { keyspace, level, target, upper, lower, leave, .. } = self;
        Job { keyspace, level, target, upper, lower, levels, leave }
    }
}

/// The sizes and targets of a keyspace's levels.
struct Shape<'l> {
    levels: &'l Arc<Levels>,
    /// The highest level with a target. Those above have runs that wait to be merged into it.
    base: usize,
    targets: [u64; LEVELS],
    /// Entries of the last level, and the bytes of one.
    entries: u64,
    entry_bytes: u64,
    now_s: u64,
    /// Whether the disk is full.
    is_full: bool,
    /// Runs are merged without level 0.
    is_tight: bool,
    /// The tables of a full level 0.
    level0_full: usize,
    memtable_bytes: u64,
    separation_bytes: u32,
    /// Whether the tables of level 0 of all keyspaces use much memory.
    is_crowded: bool,
}

impl<'l> Shape<'l> {
    fn of(levels: &'l Arc<Levels>, how: &How<'_>) -> Shape<'l> {
        let last = levels.bytes(LAST) as f64;
        // Memtables are not compressed: a level is worth its tables if these would be without compression.
        let plain = last + levels.saved_bytes(LAST) as f64;
        let times = plain / top_bytes(how.budget) as f64;
        let growth = |levels: usize| times.powf(1.0 / levels as f64);
        let count = (2..LEVELS).rev().find(|count| growth(*count) >= GROWTH_MIN).unwrap_or(1);
        let (base, mut targets) = (LEVELS - count, [0; LEVELS]);
        targets[LAST] = u64::MAX;
        for (level, target) in targets.iter_mut().enumerate().take(LAST).skip(base) {
            *target = (last / growth(count).powi((LAST - level) as i32)) as u64;
        }
        let deepest = (0..LEVELS).rev().find(|level| !levels.level(*level).is_empty());
        let of_deepest = |level| levels.level(level).iter().map(|table| table.meta().entries).sum::<u64>();
        let entries = deepest.map_or(0, of_deepest);
        let entry_bytes = deepest.map_or(0, |level| levels.bytes(level) / entries.max(1));
        let (memtable_bytes, separation_bytes) = (how.budget.memtable, how.separation_bytes);
        let How { now_s, is_full, is_tight, level0_full, .. } = *how;
        Shape {
            levels,
            base,
            targets,
            entries,
            entry_bytes,
            now_s,
            is_full,
            is_tight,
            level0_full,
            memtable_bytes,
            separation_bytes,
            is_crowded: false,
        }
    }

    /// Returns a table's bytes plus the bytes that it deletes and the bytes that have expired.
    fn weight(&self, table: &Table) -> u64 {
        let meta = table.meta();
        meta.bytes + meta.deleted.saturating_mul(self.entry_bytes) + expired_bytes(meta, self.now_s)
    }

    /// As [`weight`](Self::weight), at rest: an entry that is short beside those of the last level may replace a longer one.
    fn weight_at_rest(&self, table: &Table, whole_bytes: u64) -> u64 {
        let meta = table.meta();
        let values: u64 = meta.values.iter().map(|(_, bytes)| bytes).sum();
        let (puts, bytes) = (meta.entries.saturating_sub(meta.deleted), meta.key_bytes() + values);
        self.weight(table) + self.replaced(puts, bytes, whole_bytes)
    }

    /// Returns the bytes of this many entries of the last level, which entries of `bytes` bytes may replace, if these are short
    /// beside entries of `whole_bytes`.
    fn replaced(&self, entries: u64, bytes: u64, whole_bytes: u64) -> u64 {
        let is_short = bytes < entries.saturating_mul(whole_bytes) / SHORTER;
        if is_short { entries.saturating_mul(self.entry_bytes) } else { 0 }
    }

    /// Returns the bytes of an entry of the last level with its value, wherever that is.
    fn whole_bytes(&self) -> u64 {
        self.entry_bytes + self.apart() / self.entries.max(1)
    }

    /// Returns the bytes of values in files without keys.
    fn apart(&self) -> u64 {
        self.levels.value_files().values().filter(|file| !file.is_table).map(|file| file.live_bytes).sum()
    }

    /// Returns the table of the last level of which most has expired, if that is more than `1/part` of it.
    fn stale(&self, part: u64) -> Option<&Arc<Table>> {
        let expired = |table: &Arc<Table>| expired_bytes(table.meta(), self.now_s);
        let tables = self.levels.level(LAST).iter().map(|table| (expired(table), table));
        let is_stale = |(expired, table): &(u64, &Arc<Table>)| *expired > table.meta().bytes / part;
        let worst = tables.filter(is_stale).reduce(|worst, next| if next.0 > worst.0 { next } else { worst });
        worst.map(|(_, table)| table)
    }

    /// Returns a job that rewrites a table of a level below the first without its expired entries, and with the values of
    /// files that are sparse, by the rule for a store at rest or by the other.
    fn again(&self, keyspace: u32, level: usize, table: &Arc<Table>, is_resting: bool) -> Job {
        let (upper, levels) = (vec![vec![table.clone()]], self.levels.clone());
        let leave = self.leave(is_resting);
        Job { keyspace, level, target: level, upper, lower: Vec::new(), levels, leave }
    }

    /// Returns the values that stay where they are when tables are rewritten.
    fn leave(&self, is_resting: bool) -> Arc<Leave> {
        leave(self.levels, self.memtable_bytes, self.separation_bytes, is_resting, self.is_full)
    }

    /// Returns a job that empties sparse files: it rewrites the table that has most of their values. Tables of level 0 are
    /// compacted soon, and the order of their numbers counts.
    fn collect(&self, keyspace: u32, is_resting: bool) -> Option<Job> {
        let sparse = sparse_files(self.levels, is_resting, self.is_full);
        if sparse.is_empty() {
            return None;
        }
        let bytes_in = |table: &Table| -> u64 {
            let files = table.meta().values.iter().filter(|(file, _)| sparse.contains(file));
            files.map(|(_, bytes)| bytes).sum()
        };
        let tables =
            (1..LEVELS).flat_map(|level| self.levels.level(level).iter().map(move |table| (level, table)));
        let (_, level, table) = tables
            .map(|(level, table)| (bytes_in(table), level, table))
            .filter(|(bytes, ..)| *bytes > 0)
            .reduce(|most, next| if next.0 > most.0 { next } else { most })?;
        Some(self.again(keyspace, level, table, is_resting))
    }

    fn level_weight(&self, level: usize) -> u64 {
        self.levels.level(level).iter().map(|table| self.weight(table)).sum()
    }

    /// Returns whether the levels above the base weigh this many times as much as it.
    fn outweighs(&self, times: u64) -> bool {
        let above: u64 = (0..self.base).map(|level| self.level_weight(level)).sum();
        above >= self.levels.bytes(self.base) * times
    }

    /// Returns the ratio of a level's size to its target. Levels above 1 are compacted.
    fn score(&self, level: usize) -> f64 {
        match level {
            0 => {
                let early = if self.outweighs(OUTWEIGHS) { LEVEL0 } else { self.level0_full };
                let full = if self.is_crowded { LEVEL0_CROWDED } else { early.min(self.level0_full) };
                self.levels.level(0).len() as f64 / (full as f64 - 0.5)
            }
            LAST => 0.0,
            // Its run waits for level 0.
            _ if level < self.base => 0.0,
            _ => {
                let ratio = self.level_weight(level) as f64 / self.targets[level].max(1) as f64;
                // Runs are merged into the base together. Writers wait for level 0, which does not wait for this merge.
                if ratio > 1.0 { 1.0 + (ratio - 1.0) / 16.0 } else { ratio }
            }
        }
    }

    fn worst(&self) -> (f64, usize) {
        let levels = (0..LEVELS).filter(|level| self.may_shrink(*level));
        let scores = levels.map(|level| (self.score(level), level));
        scores.fold((0.0, 0), |worst, next| if next.0 > worst.0 { next } else { worst })
    }

    /// Returns the level to which a level's tables are compacted by themselves.
    fn target(&self, level: usize) -> usize {
        let is_target = |below: &usize| *below >= self.base || !self.levels.level(*below).is_empty();
        (level + 1..LEVELS).find(is_target).unwrap_or(LAST)
    }

    /// Returns whether the levels above the last are too heavy for a store at rest if they weigh `more`.
    fn is_restless(&self, more: u64) -> bool {
        let whole_bytes = self.whole_bytes();
        let tables = (0..LAST).flat_map(|level| self.levels.level(level));
        let above: u64 = tables.map(|table| self.weight_at_rest(table, whole_bytes)).sum();
        above.saturating_add(more) > self.levels.bytes(LAST) / REST
    }

    /// Returns the level that must shrink so that the store uses less space at rest.
    fn restless(&self) -> Option<usize> {
        let is_restless = self.is_restless(0);
        let has_work = |level: &usize| !self.levels.level(*level).is_empty() && self.may_shrink(*level);
        (0..LAST).find(|level| is_restless && has_work(level))
    }

    /// Returns the bytes that the changes in a memtable may free, if they are worth a flush: in tables they would give compaction at
    /// rest work. While the store is written to, the deletions have to weigh more than `1/REST` of the keyspace's tables.
    fn worth(&self, tally: &Tally, is_resting: bool) -> Option<u64> {
        let bytes: u64 = (0..LEVELS).map(|level| self.levels.bytes(level)).sum();
        let replaced = || self.replaced(tally.puts, tally.put_bytes, self.whole_bytes());
        let replaced = if is_resting { replaced() } else { 0 };
        let weight = tally.deletions.saturating_mul(self.entry_bytes).saturating_add(replaced).min(bytes);
        let is_worth = if is_resting { self.is_restless(weight) } else { weight > bytes / REST };
        is_worth.then(|| weight + (self.apart() as f64 * (weight as f64 / bytes.max(1) as f64)) as u64)
    }

    /// Returns the first level above the last that has deletions.
    fn deleting(&self) -> Option<usize> {
        (0..LAST).find(|level| self.levels.level(*level).iter().any(|table| table.meta().deleted > 0))
    }

    /// Returns the bytes that compaction has to move out of levels with targets. Runs wait for level 0, whose tables are counted.
    fn pending(&self) -> u64 {
        (self.base..LAST).map(|level| self.level_weight(level).saturating_sub(self.targets[level])).sum()
    }

    /// Returns a job that moves runs from `level` down to another level.
    fn job(&self, keyspace: u32, level: usize, upper: Vec<Vec<Arc<Table>>>, target: usize) -> Option<Job> {
        let tables = || upper.iter().flatten().map(|table| table.meta());
        let smallest = tables().map(|meta| &meta.smallest).min()?;
        let largest = tables().map(|meta| &meta.largest).max()?;
        let lower = overlap(self.levels, target, smallest, largest).to_vec();
        debug_assert!(level < target && target < LEVELS, "entries go down");
        // What is copied is there twice until the last piece.
        let has_no_space = self.is_full || self.is_tight;
        let leave = leave(self.levels, self.memtable_bytes, self.separation_bytes, false, has_no_space);
        Some(Job { keyspace, level, target, lower, upper, levels: self.levels.clone(), leave })
    }

    /// Returns a job that moves tables of level 0 to the first non-empty level below.
    fn level0_job(&self, keyspace: u32, tables: Vec<Arc<Table>>) -> Option<Job> {
        self.job(keyspace, 0, runs_of(tables), self.target(0))
    }

    /// Returns a job that moves a table of a level below the first to the next level.
    fn table_job(&self, keyspace: u32, level: usize, table: Arc<Table>) -> Option<Job> {
        self.job(keyspace, level, vec![vec![table]], self.target(level))
    }

    /// Returns a job that merges tables of level 0, and all runs, into the base. Where space is tight the runs are merged first,
    /// whose tables free space during the job: tables of level 0 have keys of each piece, and stay until the last piece.
    fn merging_runs(&self, keyspace: u32, level0: Vec<Arc<Table>>) -> Option<Job> {
        let has_runs = (1..self.base).any(|level| !self.levels.level(level).is_empty());
        let highest = usize::from(self.is_tight && has_runs);
        let mut upper = if highest > 0 { Vec::new() } else { runs_of(level0) };
        let first = (highest..self.base).find(|level| !self.levels.level(*level).is_empty())?;
        let runs = (1..self.base).map(|level| self.levels.level(level).to_vec());
        upper.extend(runs.filter(|run| !run.is_empty()));
        self.job(keyspace, first, upper, self.base)
    }

    /// Returns a job that empties level 0: its tables become a run, or are merged into the base with all runs.
    fn emptying_level0(&self, keyspace: u32) -> Option<Job> {
        let level0 = self.oldest(|_| true);
        let highest = (1..self.base).find(|level| !self.levels.level(*level).is_empty());
        let free = highest.unwrap_or(self.base) - 1;
        if free == 0 || self.is_crowded || self.outweighs(1) || is_broken!(RunsNotMade) {
            return self.merging_runs(keyspace, level0);
        }
        self.job(keyspace, 0, runs_of(level0), free)
    }

    /// Returns the oldest tables of level 0, the newest of them first.
    fn oldest(&self, is_meant: impl Fn(&Table) -> bool) -> Vec<Arc<Table>> {
        let level0 = self.levels.level(0);
        // All tables from the newest selected table on: no selected table may stay behind newer tables.
        let first = level0.iter().position(|table| is_meant(table)).unwrap_or(level0.len());
        let meant = &level0[first.max(level0.len().saturating_sub(LEVEL0_MAX))..];
        let mut bytes = 0;
        let fits = |table: &&Arc<Table>| {
            let (added, is_first) = (added_bytes(table), bytes == 0);
            bytes += added;
            !self.is_full || is_first || added == 0 || bytes <= self.memtable_bytes
        };
        let count = meant.iter().rev().take_while(fits).count();
        debug_assert!(
            meant.last().is_none_or(|last| level0.iter().all(|table| table.id() >= last.id())),
            "no older table stays behind above"
        );
        meant[meant.len() - count..].to_vec()
    }

    /// Returns whether a full disk has space for the rest of a job, of which keys up to `end` are done: as much as for a job that is
    /// picked then.
    fn fits(&self, job: &Job, end: &[u8]) -> bool {
        let is_staying =
            |table: &&Arc<Table>| self.levels.level(0).iter().any(|known| Arc::ptr_eq(known, table));
        let staying: Vec<&Arc<Table>> = job.uppers().filter(is_staying).collect();
        let bytes = |tables: &[Arc<Table>]| tables.iter().map(|table| table.meta().bytes).sum::<u64>();
        let left = &job.lower[job.lower.partition_point(|table| *table.meta().largest <= *end)..];
        let part = bytes(left) as f64 / bytes(&job.lower).max(1) as f64;
        let added: u64 = staying.iter().map(|table| added_bytes(table)).sum();
        staying.len() < 2
            || added as f64 * part <= self.memtable_bytes as f64
            || is_broken!(LargeJobContinued)
    }

    /// Returns whether a full disk may have more space once a table has moved down. If its long values stay in place, so does its
    /// file, and the target is rewritten: without a deletion that costs space, which the flush of the next deletions needs.
    fn shrinks(&self, table: &Table) -> bool {
        let meta = table.meta();
        meta.values.is_empty() || meta.deleted > 0 || expired_bytes(meta, self.now_s) > 0
    }

    /// Returns whether tables of a level are worth a job. In level 0 those with the deletions may follow older ones, which go first.
    fn may_shrink(&self, level: usize) -> bool {
        !self.is_full || self.levels.level(level).iter().any(|table| self.shrinks(table))
    }

    /// Returns the last job of a full disk, and the free bytes that it needs: it moves down tables that shrink nothing by themselves,
    /// since an overwritten value is dead only once both of its key's entries have met. The lowest such level goes first.
    fn overwriting(&self, keyspace: u32) -> Option<(Job, u64)> {
        let is_stuck = |level: &usize| !self.levels.level(*level).is_empty() && !self.may_shrink(*level);
        let job = match (0..LAST).rev().find(is_stuck)? {
            0 => self.level0_job(keyspace, self.oldest(|_| true)),
            level => self.table_job(keyspace, level, self.levels.level(level).first()?.clone()),
        }?;
        let key_bytes = |table: &Arc<Table>| table.meta().key_bytes();
        // Of a short table only the leaf. The job for the next deletions writes these keys once more.
        let upper: u64 = job.uppers().map(|table| key_bytes(table).saturating_sub(SHORT_BYTES / 4 * 3)).sum();
        // A piece rewrites one table of the target, whose file stays if it has values.
        let has_values = |table: &&Arc<Table>| key_bytes(table) < table.meta().bytes;
        let staying: u64 = job.lower.iter().filter(has_values).map(key_bytes).sum();
        let longest = job.lower.iter().map(key_bytes).max().unwrap_or(SHORT_BYTES);
        Some((job, 2 * upper + staying + longest))
    }

    /// Returns the table of a level whose move frees most in relation to its cost.
    fn cheapest(&self, level: usize) -> Option<Arc<Table>> {
        let target = self.target(level);
        let gain = |table: &Arc<Table>| {
            let meta = table.meta();
            let below = overlap(self.levels, target, &meta.smallest, &meta.largest);
            let bytes: u64 = below.iter().map(|table| table.meta().bytes).sum();
            self.weight(table) as f64 / (bytes + meta.bytes) as f64
        };
        let tables = self.levels.level(level).iter().filter(|table| !self.is_full || self.shrinks(table));
        let tables = tables.map(|table| (gain(table), table));
        let best = tables.reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map(|(_, table)| table.clone())
    }

    /// Returns a job that makes a level smaller while the store is written to, or the disk is full.
    fn pick(&self, keyspace: u32, level: usize) -> Option<Job> {
        match level {
            0 if self.is_full => self.level0_job(keyspace, self.oldest(|_| true)),
            0 => self.emptying_level0(keyspace),
            _ => self.table_job(keyspace, level, self.cheapest(level)?),
        }
    }

    /// Returns a job that shrinks a level at rest: all levels above the base are merged into it together.
    fn pick_at_rest(&self, keyspace: u32, level: usize) -> Option<Job> {
        if self.is_full || level >= self.base {
            return self.pick(keyspace, level);
        }
        self.merging_runs(keyspace, self.oldest(|_| true))
    }
}

fn ids(run: &[Arc<Table>]) -> Vec<u32> {
    run.iter().map(|table| table.id()).collect()
}

/// Removes the tables from a job's runs that it no longer needs once the keys up to `end`, or all, are done, and returns their
/// numbers. A newer table stays for as long as it hides an older table that stays.
fn take_passed(upper: &mut Vec<Vec<Arc<Table>>>, end: Option<&[u8]>) -> Vec<u32> {
    let mut passed = Vec::new();
    let mut older: Option<Box<[u8]>> = None;
    for run in upper.iter_mut().rev() {
        let is_passed = |table: &&Arc<Table>| {
            let largest = &*table.meta().largest;
            end.is_none_or(|end| *largest <= *end) && older.as_ref().is_none_or(|older| *largest < **older)
        };
        let count = run.iter().take_while(is_passed).count();
        passed.extend(run.drain(..count).map(|table| table.id()));
        let first = run.first().map(|table| table.meta().smallest.clone());
        older = older.into_iter().chain(first).min();
    }
    upper.retain(|run| !run.is_empty());
    passed
}

/// Returns the bytes that a table of level 0 adds to the target. Deletions add nothing, and keys whose values stay add little: the
/// more of them are merged together, the fewer bytes are written. Values that do not stay are written again.
fn added_bytes(table: &Table) -> u64 {
    let (meta, rest) = (table.meta(), table.meta().key_bytes());
    let stay = meta.bytes - rest;
    let is_little = stay > 0 && rest < stay + SHORT_BYTES;
    let each = if is_little { 0 } else { rest / meta.entries.max(1) };
    each * meta.entries.saturating_sub(meta.deleted)
}

/// Returns tables of level 0 as runs, each on its own.
fn runs_of(level0: Vec<Arc<Table>>) -> Vec<Vec<Arc<Table>>> {
    level0.into_iter().map(|table| vec![table]).collect()
}

/// Returns whether a file of values is emptied, of which this many bytes are dead.
fn is_sparse(dead: u64, bytes: u64, is_resting: bool) -> bool {
    dead > if is_resting { bytes / SPARSE_AT_REST } else { bytes - bytes / SPARSE }
}

/// Returns the files without keys that are emptied. On a full disk that is one: its values are there twice until all tables that refer
/// to them were rewritten.
fn sparse_files(levels: &Levels, is_resting: bool, is_full: bool) -> BTreeSet<u32> {
    let is_met = |file: &&ValueFile| is_sparse(file.dead_bytes(), file.file.bytes(), is_resting);
    let mut files: Vec<&ValueFile> = levels.value_files().values().filter(is_met).collect();
    if is_full {
        files.sort_unstable_by_key(|file| file.live_bytes);
        files.truncate(1);
    }
    files.into_iter().map(|file| file.file.id()).collect()
}

/// Returns the tables of a level above 0 that have keys from `smallest` to `largest`.
fn overlap<'l>(levels: &'l Levels, level: usize, smallest: &[u8], largest: &[u8]) -> &'l [Arc<Table>] {
    let tables = levels.level(level);
    let begin = tables.partition_point(|table| *table.meta().largest < *smallest);
    let end = tables.partition_point(|table| *table.meta().smallest <= *largest);
    debug_assert!(begin <= end, "tables of level {level} are sorted and do not overlap");
    tables.get(begin..end).unwrap_or_default()
}

/// The inputs for picking besides the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How<'b> {
    pub(crate) budget: &'b Budget,
    /// The seconds since 1970, now.
    pub(crate) now_s: u64,
    /// Whether the disk is full, so that jobs have to be as small as possible.
    pub(crate) is_full: bool,
    /// As [`Compaction::is_tight`](super::Compaction::is_tight) returns it.
    pub(crate) is_tight: bool,
    /// The tables of a full level 0.
    pub(crate) level0_full: usize,
    /// The codec of new tables.
    pub(crate) codec: Option<Codec>,
    /// The length from which on values stay where they are.
    pub(crate) separation_bytes: u32,
    /// As [`Space::spare_bytes`](crate::engine::space::Space::spare_bytes) returns them.
    pub(crate) spare_bytes: u64,
}

/// Returns the values that stay where they are when tables of a keyspace are rewritten. On a full disk these are all values of the
/// files: each of them was perhaps separated when `separation_bytes` was smaller, and counts as such.
pub(crate) fn leave(
    levels: &Levels,
    memtable_bytes: u64,
    separation_bytes: u32,
    is_resting: bool,
    is_full: bool,
) -> Arc<Leave> {
    let kept = Some(kept(levels, memtable_bytes, is_resting, is_full));
    Arc::new(Leave { bytes_min: separation_bytes, keeps_short: is_full, kept })
}

/// Returns the files that keep their values when tables that refer to them are rewritten. A file with keys is emptied if more than
/// a quarter of it is dead once its keys are, as it would be at rest. If many files are as short as those of flushes, short files
/// are emptied: each is an open file. A full disk has no space to copy values in addition to the keys: one file without keys is
/// emptied at a time, when no other work is left, together with the rewritten table's own file if that would become sparse.
fn kept(levels: &Levels, memtable_bytes: u64, is_resting: bool, is_full: bool) -> BTreeSet<u32> {
    let files = || levels.value_files().values();
    let short_bytes = memtable_bytes / 2 * 3;
    let has_many = files().filter(|file| file.file.bytes() < short_bytes).count() > SHORT_FILES_MAX;
    let bytes_min = if has_many { short_bytes } else { memtable_bytes / 4 };
    let emptied = if is_full && is_resting { sparse_files(levels, true, true) } else { BTreeSet::new() };
    let is_kept = |file: &&ValueFile| {
        let bytes = file.file.bytes();
        let dead = bytes - file.live_bytes.min(bytes);
        let is_sparse = is_sparse(dead, bytes, is_resting || file.is_table);
        if is_full {
            // Without its keys the table's own file would be emptied next, by a table with the same fate, and so on.
            let becomes_sparse = is_resting && file.is_table && is_sparse;
            return !becomes_sparse && !emptied.contains(&file.file.id());
        }
        !is_sparse && bytes >= bytes_min
    };
    files().filter(is_kept).map(|file| file.file.id()).collect()
}

/// Returns the approximate bytes of a table's values that have expired. It assumes that expiries are evenly
/// spaced.
fn expired_bytes(meta: &TableMeta, now_s: u64) -> u64 {
    let (first, last) = meta.expires_s;
    if meta.expiring == 0 || now_s < first {
        return 0;
    }
    let bytes = meta.bytes as f64 * meta.expiring as f64 / meta.entries.max(1) as f64;
    // The seconds of all times together are one more than the highest number.
    let passed = ((now_s - first) as f64 + 1.0) / (last.saturating_sub(first) as f64 + 1.0);
    (bytes * passed.min(1.0)) as u64
}

/// Returns whether the tables of level 0 of all keyspaces use much memory.
fn is_crowded(version: &Version, how: &How<'_>) -> bool {
    level0_tables(version, how).1 as u64 * TABLE_MEMORY > how.budget.cache / CROWDED_PART
}

/// Returns the keyspaces with tables; of many there may be few.
fn shapes<'v>(version: &'v Version, how: &How<'_>) -> impl Iterator<Item = (u32, Shape<'v>)> {
    let keyspaces = version.keyspaces().filter(|(_, levels)| !levels.is_empty());
    shapes_of(version, how, keyspaces.map(|(keyspace, _)| keyspace))
}

/// Returns the keyspaces with these numbers.
fn shapes_of<'v>(
    version: &'v Version,
    how: &How<'_>,
    keyspaces: impl Iterator<Item = u32>,
) -> impl Iterator<Item = (u32, Shape<'v>)> {
    let is_crowded = is_crowded(version, how);
    let keyspaces = keyspaces.filter_map(move |keyspace| Some((keyspace, version.keyspace(keyspace)?)));
    keyspaces.map(move |(keyspace, levels)| (keyspace, Shape { is_crowded, ..Shape::of(levels, how) }))
}

/// Returns the most urgent job. In keyspaces whose tables are at rest, with numbers below `resting`, it also considers jobs that
/// only save space. On a full disk it also considers all levels that have deletions, and these before sparse files: a deletion may
/// leave a file without live values, which is then removed, while emptying a file needs space first. If nothing else is left it moves
/// overwritten values down, within the spare bytes. The keyspaces in `stuck` have no job.
pub(crate) fn next(version: &Version, how: &How<'_>, resting: u32, stuck: &BTreeSet<u32>) -> Option<Job> {
    let shapes = || shapes(version, how).filter(|(keyspace, _)| !stuck.contains(keyspace));
    let (work, is_free) = (needs::work(version, how), |keyspace: &u32| !stuck.contains(keyspace));
    let urgent = shapes_of(version, how, needs::most_urgent(version, how, stuck).into_iter());
    let worst = urgent.map(|(keyspace, shape)| (shape.worst(), keyspace, shape));
    let worst = worst.reduce(|worst, next| if next.0.0 > worst.0.0 { next } else { worst });
    if let Some(((score, level), keyspace, shape)) = worst
        && score > 1.0
    {
        return shape.pick(keyspace, level);
    }
    let stale = |(keyspace, shape): (u32, Shape<'_>)| {
        let is_resting = shape.levels.is_older(resting);
        let part = if is_resting { REST } else { EXPIRED };
        let empties = is_resting && !how.is_full;
        let stale = shape.stale(part).map(|table| shape.again(keyspace, LAST, table, empties));
        stale.or_else(|| if how.is_full { None } else { shape.collect(keyspace, is_resting) })
    };
    let sparse = |(keyspace, shape): (u32, Shape<'_>)| shape.collect(keyspace, true);
    let deleting = |(keyspace, shape): (u32, Shape<'_>)| shape.pick(keyspace, shape.deleting()?);
    let restless = |(keyspace, shape): (u32, Shape<'_>)| shape.pick_at_rest(keyspace, shape.restless()?);
    let overwriting = || shapes().filter_map(|(keyspace, shape)| shape.overwriting(keyspace));
    let rests = |keyspace: &u32| {
        is_free(keyspace) && version.keyspace(*keyspace).is_some_and(|levels| levels.is_older(resting))
    };
    shapes_of(version, how, work.wasteful().filter(is_free))
        .find_map(stale)
        .or_else(|| shapes_of(version, how, work.restless().filter(rests)).find_map(restless))
        .or_else(|| shapes().filter(|_| how.is_full).find_map(deleting))
        .or_else(|| shapes().filter(|_| how.is_full).find_map(sparse))
        .or_else(|| overwriting().find(|(_, bytes)| *bytes <= how.spare_bytes).map(|(job, _)| job))
}

/// Returns the bytes that have to be spare for a full store to move overwritten values down, if it has such tables.
pub(crate) fn spare_bytes_wanted(version: &Version, how: &How<'_>) -> Option<u64> {
    shapes(version, how).filter_map(|(keyspace, shape)| Some(shape.overwriting(keyspace)?.1)).min()
}

/// Returns the rest of a job of which some pieces are done, unless its next piece found no space, or a table was removed. The
/// output of its finished pieces is duplicated until the job is whole. On a full disk the rest must add little: the space of the
/// reserve is for smaller jobs.
pub(crate) fn begun(version: &Version, how: &How<'_>, begun: &Progress) -> Option<Job> {
    if begun.is_stuck {
        return None;
    }
    let shape = Shape::of(version.keyspace(begun.keyspace)?, how);
    let table = |id: &u32| {
        let mut tables = (0..begun.target).flat_map(|level| shape.levels.level(level));
        tables.find(|table| table.id() == *id).cloned()
    };
    let upper = begun.upper.iter().map(|run| run.iter().map(table).collect::<Option<Vec<_>>>());
    let job = shape.job(begun.keyspace, begun.level, upper.collect::<Option<Vec<_>>>()?, begun.target)?;
    (!how.is_full || shape.fits(&job, &begun.end)).then_some(job)
}

/// Returns whether tables above the last level have deletions.
pub(crate) fn is_deleting(version: &Version, how: &How<'_>) -> bool {
    shapes(version, how).any(|(_, shape)| shape.deleting().is_some())
}

/// Returns whether the changes in a memtable, counted for each keyspace, are worth a flush before it is full.
pub(crate) fn changes_pay(
    version: &Version,
    how: &How<'_>,
    tallies: &[(u32, Tally)],
    is_resting: bool,
) -> bool {
    let worth = |(keyspace, tally): &(u32, Tally)| {
        Shape::of(version.keyspace(*keyspace)?, how).worth(tally, is_resting)
    };
    let counts = |(_, tally): &&(u32, Tally)| is_resting || tally.deletions > 0;
    let worth: u64 = tallies.iter().filter(counts).filter_map(worth).sum();
    worth > how.budget.memtable / DEAD_PART
}

/// Returns the second from which on expired entries may be worth a compaction that they are not worth yet,
/// or `None` if nothing will expire.
pub(crate) fn expires_s(version: &Version, now_s: u64) -> Option<u64> {
    let metas = version.tables().map(|(_, table)| table.meta()).filter(|meta| meta.expiring > 0);
    let due = metas.map(|meta| {
        let (first, last) = meta.expires_s;
        first.max(now_s) + last.saturating_sub(first.max(now_s)) / REST
    });
    due.min()
}

/// Returns the bytes from which the targets of levels grow.
pub(crate) fn top_bytes(budget: &Budget) -> u64 {
    budget.memtable * TOP_MEMTABLES
}

/// Returns the next job that moves a keyspace's keys out of level 0.
pub(crate) fn clearing_level0(
    version: &Version,
    how: &How<'_>,
    keyspace: u32,
    bounds: &Bounds,
) -> Option<Job> {
    let shape = Shape::of(version.keyspace(keyspace)?, how);
    let level0 = shape.oldest(|table| bounds.meet(table));
    shape.level0_job(keyspace, level0)
}

/// Returns the next job that moves a keyspace's keys out of the first two levels.
pub(crate) fn clearing(version: &Version, how: &How<'_>, keyspace: u32, bounds: &Bounds) -> Option<Job> {
    let shape = Shape::of(version.keyspace(keyspace)?, how);
    let level0 = shape.oldest(|table| bounds.meet(table));
    if !level0.is_empty() {
        return shape.level0_job(keyspace, level0);
    }
    let table = shape.levels.level(1).iter().find(|table| bounds.meet(table))?.clone();
    shape.table_job(keyspace, 1, table)
}

/// Returns the lowest level for a table that is newer than all tables there, or `None` if overlapping
/// tables have to be compacted first.
pub(crate) fn place(levels: &Levels, smallest: &[u8], largest: &[u8]) -> Option<usize> {
    let meets = |table: &Arc<Table>| *table.meta().largest >= *smallest && *table.meta().smallest <= *largest;
    if levels.level(0).iter().any(meets) {
        return None;
    }
    (1..LEVELS).take_while(|level| overlap(levels, *level, smallest, largest).is_empty()).last()
}

impl Job {
    /// Splits the job, of which keys up to `low` are done, into pieces, each of which needs space for about `bytes` of the target,
    /// at least for one table: a piece has the keys up to the end of these tables. An upper table is part of the piece that has its
    /// last key, or later if it hides something older; its keys in common with earlier pieces have the same entries there.
    pub(crate) fn into_pieces(self, mut low: Bound<Vec<u8>>, bytes: u64) -> impl Iterator<Item = Piece> {
        let Job { keyspace, level, target, mut upper, lower, leave, .. } = self;
        let mut left = lower.into_iter().peekable();
        // A piece's tables are not held until the next piece, so that their space is free by then.
        std::iter::from_fn(move || {
            let mut lower = vec![left.next()?];
            let mut taken = lower[0].meta().bytes;
            while let Some(table) = left.next_if(|_| taken < bytes) {
                taken += table.meta().bytes;
                lower.push(table);
            }
            let is_last = left.peek().is_none();
            let end = lower.last()?.meta().largest.to_vec();
            let high = if is_last { Bound::Unbounded } else { Bound::Included(end.clone()) };
            let (upper_now, leave) = (upper.clone(), leave.clone());
            let passed = take_passed(&mut upper, (!is_last).then_some(&end[..]));
            let bounds = Bounds { low: std::mem::replace(&mut low, Bound::Excluded(end)), high };
            Some(Piece { keyspace, level, target, upper: upper_now, lower, bounds, passed, is_last, leave })
        })
    }

    /// Returns the key up to which the job is done, if it continues `begun`. The finished part is removed from the job.
    pub(crate) fn skip_done(&mut self, begun: &Progress) -> Option<Vec<u8>> {
        let is_same = (begun.keyspace, begun.target) == (self.keyspace, self.target)
            && self.upper.iter().map(|run| ids(run)).eq(begun.upper.iter().cloned());
        let done = self.lower.partition_point(|table| *table.meta().largest <= *begun.end);
        // Tables that were ingested since may lie on both sides.
        let is_cut = self.lower.get(done).is_some_and(|table| *table.meta().smallest > *begun.end);
        (is_same && is_cut).then(|| {
            self.lower.drain(..done);
            begun.end.clone()
        })
    }

    /// Returns up to `count` ranges of keys that are about equally long in the target and together cover the keys within `bounds`;
    /// empty if the job is too small for two ranges: each has at least two tables of `table_bytes`. A job with long values stays
    /// whole: each range would hold the longest in memory.
    pub(crate) fn ranges(&self, bounds: &Bounds, count: usize, table_bytes: u64) -> Vec<Bounds> {
        let has_values =
            self.leave.bytes_min > LONG_BYTES || self.inputs().any(|table| !table.meta().values.is_empty());
        let bytes: u64 = self.lower.iter().map(|table| table.meta().bytes).sum();
        let count = (count as u64).min(bytes / (2 * table_bytes)).min(self.lower.len() as u64);
        if has_values || count < 2 {
            return Vec::new();
        }
        let (mut low, mut ranges, mut passed) = (bounds.low.clone(), Vec::new(), 0);
        for table in &self.lower {
            let part = bytes * (ranges.len() as u64 + 1) / count;
            passed += table.meta().bytes;
            if passed >= part && (ranges.len() as u64) + 1 < count {
                let end = table.meta().largest.to_vec();
                let low = std::mem::replace(&mut low, Bound::Excluded(end.clone()));
                ranges.push(Bounds { low, high: Bound::Included(end) });
            }
        }
        ranges.push(Bounds { low, high: bounds.high.clone() });
        ranges
    }

    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.uppers().chain(&self.lower)
    }

    /// Returns the tables to move down.
    pub(crate) fn uppers(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.upper.iter().flatten()
    }

    /// Returns whether the upper tables can become the target's without being rewritten.
    pub(crate) fn is_move(&self) -> bool {
        if !self.lower.is_empty() || self.level == self.target {
            return false;
        }
        let mut keys: Vec<_> =
            self.uppers().map(|table| (&table.meta().smallest, &table.meta().largest)).collect();
        keys.sort_unstable();
        // A deletion with nothing left to delete must not stay.
        let is_needed = |table: &Arc<Table>| {
            let (smallest, largest) = (&table.meta().smallest, &table.meta().largest);
            let is_below = |level| !overlap(&self.levels, level, smallest, largest).is_empty();
            table.meta().deleted == 0 || (self.target + 1..LEVELS).any(is_below)
        };
        keys.windows(2).all(|pair| pair[0].1 < pair[1].0) && self.uppers().all(is_needed)
    }

    /// Returns whether a table below the target may have something older of a key.
    pub(crate) fn is_below(&self, key: &[u8]) -> bool {
        if is_broken!(DeletionDroppedTooSoon) {
            return false;
        }
        (self.target + 1..LEVELS).any(|level| self.levels.table_at(level, key).is_some())
    }
}
