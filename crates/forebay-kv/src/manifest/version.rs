//! The tables of an open store, by keyspace and level.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use super::work_index::{Needs, WorkIndex};
use crate::cache::{Cache, Pin, PinPurpose};
use crate::options::{FilterPolicy, Options};
use crate::table::{Table, TableFile};

/// Level 0, whose tables overlap, and six levels of one sorted run each.
pub(crate) const LEVELS: usize = 7;
/// Bytes of memory of a keyspace in addition to its name: its levels, and its places in the manifest and in two versions.
const KEYSPACE_MEMORY: u64 = 512;

/// Counts the memory of a keyspace of this name. The manifest and the versions have the name.
pub(crate) fn pin_keyspace(cache: &Arc<Cache>, name: &str) -> Pin {
    cache.must_pin(PinPurpose::Tables, KEYSPACE_MEMORY + 2 * name.len() as u64)
}

/// Returns whether the filters of a level's tables are pinned before their lowest inner level.
pub(crate) fn pins_filter(level: usize, options: &Options) -> bool {
    level + 1 < LEVELS || options.filter_policy == FilterPolicy::Always
}

/// Returns whether the filters of a level's tables are kept while nothing else needs the memory.
pub(crate) fn keeps_filter(level: usize, options: &Options) -> bool {
    level + 1 == LEVELS && options.filter_policy == FilterPolicy::WhereTheyFit
}

/// The tables at one moment. Immutable; an edit makes a new version that shares the unchanged parts.
#[derive(Clone, Default)]
pub(crate) struct Version {
    keyspaces: BTreeMap<u32, Arc<Levels>>,
    /// Whether a keyspace was ever dropped.
    has_dropped: bool,
    /// The work of an earlier version; the keyspaces that have changed since, with the needs that it has of them; and the work of
    /// this version, once it was asked for.
    earlier_work: Arc<WorkIndex>,
    changed: BTreeMap<u32, Option<Needs>>,
    work: OnceLock<Arc<WorkIndex>>,
}

/// The tables of one keyspace.
#[derive(Clone)]
pub(crate) struct Levels {
    pub(crate) name: Arc<str>,
    /// Whether its entries are not in the log.
    pub(crate) is_unlogged: bool,
    /// Level 0 has the newest table first; the other levels are sorted by key.
    levels: [Tables; LEVELS],
    /// Maximum bytes of memory of an unpacked leaf of these tables.
    unpacked_leaf_bytes: u64,
    /// The files with long values of these tables, by number.
    values: BTreeMap<u32, ValueFile>,
    /// Whether values of these tables expire.
    has_expiring: bool,
    /// What compaction has found out about these tables.
    needs: OnceLock<Needs>,
    /// The pin for the memory of the keyspace.
    _known: Arc<Pin>,
}

/// Tables of a level, shared with the ranges that pass them.
pub(crate) type Tables = Arc<Vec<Arc<Table>>>;

/// A file with long values.
#[derive(Clone)]
pub(crate) struct ValueFile {
    pub(crate) file: Arc<TableFile>,
    /// The bytes of its values that tables refer to.
    pub(crate) live_bytes: u64,
    /// Whether the keyspace has the table that wrote it.
    pub(crate) is_table: bool,
}

impl ValueFile {
    /// Returns the bytes of a file without keys that no table needs.
    pub(crate) fn dead_bytes(&self) -> u64 {
        if self.is_table { 0 } else { self.file.bytes().saturating_sub(self.live_bytes) }
    }
}

impl Levels {
    fn new(name: &str, is_unlogged: bool, known: Pin) -> Levels {
        // Most levels of most keyspaces stay empty.
        let empty = Tables::default();
        Levels {
            name: Arc::from(name),
            is_unlogged,
            levels: std::array::from_fn(|_| empty.clone()),
            unpacked_leaf_bytes: 0,
            values: BTreeMap::new(),
            has_expiring: false,
            needs: OnceLock::new(),
            _known: Arc::new(known),
        }
    }

    /// Returns whether the version has no table.
    pub(crate) fn is_empty(&self) -> bool {
        self.levels.iter().all(|tables| tables.is_empty())
    }

    /// Returns the tables of a level: newest first in level 0, in key order in the others.
    pub(crate) fn level(&self, level: usize) -> &[Arc<Table>] {
        self.levels.get(level).map_or(&[], |tables| tables.as_slice())
    }

    /// Returns all tables with their levels.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (usize, &Arc<Table>)> {
        (0..LEVELS).flat_map(move |level| self.level(level).iter().map(move |table| (level, table)))
    }

    /// Returns whether all tables have lower numbers than `upto`.
    pub(crate) fn is_older(&self, upto: u32) -> bool {
        self.tables().all(|(_, table)| table.id() < upto)
    }

    /// Returns the same list, to keep.
    pub(crate) fn list(&self, level: usize) -> Tables {
        self.levels.get(level).cloned().unwrap_or_default()
    }

    /// Returns the maximum bytes of memory of an unpacked leaf of these tables.
    pub(crate) fn unpacked_leaf_bytes(&self) -> u64 {
        self.unpacked_leaf_bytes
    }

    /// Returns the table of a level above 0 that may hold this key.
    pub(crate) fn table_at(&self, level: usize, key: &[u8]) -> Option<&Arc<Table>> {
        let tables = self.level(level);
        let index = tables.partition_point(|table| &*table.meta().largest < key);
        tables.get(index).filter(|table| table.covers(key))
    }

    /// Returns the tables that may hold this key, with their levels. A table precedes the tables that it hides.
    pub(crate) fn candidates<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = (usize, &'a Arc<Table>)> {
        let first = self.level(0).iter().filter(move |table| table.covers(key)).map(|table| (0, table));
        let table_at = move |level| self.table_at(level, key).map(|table| (level, table));
        first.chain((1..LEVELS).filter_map(table_at))
    }

    /// Returns whether any table may hold this key.
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        self.candidates(key).next().is_some()
    }

    /// Returns the files with long values of these tables, by number.
    pub(crate) fn value_files(&self) -> &BTreeMap<u32, ValueFile> {
        &self.values
    }

    /// Returns whether values of these tables expire.
    pub(crate) fn has_expiring(&self) -> bool {
        self.has_expiring
    }

    /// Returns what compaction has to do with these tables; the first call finds it out.
    pub(crate) fn needs(&self, find: impl FnOnce() -> Needs) -> Needs {
        *self.needs.get_or_init(find)
    }

    /// Finds out which files have the long values, and how long the leaves are, after a change of the tables.
    fn note_change(&mut self) {
        let mut files: BTreeMap<u32, ValueFile> = BTreeMap::new();
        let all = || self.levels.iter().flat_map(|tables| tables.iter());
        let tables: BTreeSet<u32> = all().map(|table| table.id()).collect();
        for table in all() {
            for (id, bytes) in &table.meta().values {
                let own = *id == table.id();
                let far = || table.far_files().iter().find(|file| file.id() == *id);
                let Some(file) = (if own { Some(table.own_file()) } else { far() }) else { continue };
                let is_table = tables.contains(id);
                let new = || ValueFile { file: file.clone(), live_bytes: 0, is_table };
                files.entry(*id).or_insert_with(new).live_bytes += bytes;
            }
        }
        self.unpacked_leaf_bytes = all().map(|table| table.unpacked_leaf_bytes()).max().unwrap_or(0);
        self.has_expiring = all().any(|table| table.meta().expiring > 0);
        self.values = files;
        self.needs = OnceLock::new();
    }

    /// Returns the size of the files of a level, in bytes.
    pub(crate) fn bytes(&self, level: usize) -> u64 {
        self.level(level).iter().map(|table| table.meta().bytes).sum()
    }

    /// Returns the bytes that compression saved in the files of a level.
    pub(crate) fn saved_bytes(&self, level: usize) -> u64 {
        self.level(level).iter().map(|table| table.saved_bytes()).sum()
    }

    fn add(&mut self, level: usize, table: Arc<Table>) {
        let Some(tables) = self.levels.get_mut(level) else { return };
        let index = match level {
            0 => tables.partition_point(|known| known.meta().id > table.meta().id),
            _ => tables.partition_point(|known| known.meta().smallest < table.meta().smallest),
        };
        debug_assert!(
            level > 0 || tables.get(index).is_none_or(|known| known.meta().id < table.meta().id),
            "tables of level 0 are sorted, the newest first"
        );
        let (before, behind) = (index.checked_sub(1).map(|index| &tables[index]), tables.get(index));
        debug_assert!(
            level == 0
                || (before.is_none_or(|before| before.meta().largest < table.meta().smallest)
                    && behind.is_none_or(|behind| table.meta().largest < behind.meta().smallest)),
            "tables of a level below the first do not overlap"
        );
        Arc::make_mut(tables).insert(index, table);
    }
}

impl Version {
    /// Returns a keyspace's tables.
    pub(crate) fn keyspace(&self, id: u32) -> Option<&Arc<Levels>> {
        self.keyspaces.get(&id)
    }

    /// Returns all keyspaces, by number.
    pub(crate) fn keyspaces(&self) -> impl Iterator<Item = (u32, &Arc<Levels>)> {
        self.keyspaces.iter().map(|(id, levels)| (*id, levels))
    }

    /// Returns whether a handle may have the number of this keyspace although the keyspace was dropped.
    pub(crate) fn is_dropped(&self, id: u32) -> bool {
        self.has_dropped && !self.keyspaces.contains_key(&id)
    }

    /// Returns whether a keyspace was ever dropped.
    pub(crate) fn has_dropped(&self) -> bool {
        self.has_dropped
    }

    /// Returns whether any keyspace is not logged.
    pub(crate) fn has_unlogged(&self) -> bool {
        self.keyspaces.values().any(|levels| levels.is_unlogged)
    }

    pub(crate) fn keyspace_named(&self, name: &str) -> Option<u32> {
        self.keyspaces().find(|(_, levels)| &*levels.name == name).map(|(id, _)| id)
    }

    /// Returns all tables with their levels.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (usize, &Arc<Table>)> {
        self.keyspaces.values().flat_map(|levels| levels.tables())
    }

    /// Returns the tables whose filters are kept while nothing else needs the memory.
    pub(crate) fn with_kept_filters(&self, options: &Options) -> Vec<Arc<Table>> {
        let is_kept = |(level, _): &(usize, &Arc<Table>)| keeps_filter(*level, options);
        self.tables().filter(is_kept).map(|(_, table)| table.clone()).collect()
    }

    /// Adds a keyspace, which has no tables yet. `known` counts its memory.
    pub(crate) fn add_keyspace(&mut self, id: u32, name: &str, is_unlogged: bool, known: Pin) {
        self.keyspaces.insert(id, Arc::new(Levels::new(name, is_unlogged, known)));
    }

    /// Returns a copy that lacks keyspaces with these numbers.
    pub(crate) fn without_keyspaces(&self, dropped: &[u32]) -> Version {
        let mut next = self.successor();
        for id in dropped {
            next.note_changing(*id);
            next.keyspaces.remove(id);
        }
        next.has_dropped = true;
        next
    }

    /// Returns a copy with the same keyspaces, of which all tables are shared, to be changed.
    fn successor(&self) -> Version {
        let (earlier_work, changed) = match self.work.get() {
            Some(work) => (work.clone(), BTreeMap::new()),
            None => (self.earlier_work.clone(), self.changed.clone()),
        };
        let (keyspaces, has_dropped) = (self.keyspaces.clone(), self.has_dropped);
        Version { keyspaces, has_dropped, earlier_work, changed, work: OnceLock::new() }
    }

    /// Notes that a keyspace is about to change, or to go.
    fn note_changing(&mut self, keyspace: u32) {
        let needs = self.keyspaces.get(&keyspace).and_then(|levels| levels.needs.get().copied());
        self.changed.entry(keyspace).or_insert(needs);
    }

    /// Returns the work of all keyspaces; the first call finds out the needs of those that have changed.
    pub(crate) fn work(&self, find: impl Fn(&Arc<Levels>) -> Needs) -> &WorkIndex {
        self.work.get_or_init(|| {
            let mut work = WorkIndex::clone(&self.earlier_work);
            for (keyspace, before) in &self.changed {
                if let Some(before) = before {
                    work.remove(*keyspace, before);
                }
                if let Some(levels) = self.keyspaces.get(keyspace) {
                    work.add(*keyspace, &levels.needs(|| find(levels)));
                }
            }
            Arc::new(work)
        })
    }

    /// Returns a copy without some tables, which the keyspaces in `losing` have, and with others added, each of which names its
    /// keyspace. It copies the list of keyspaces, and looks at those alone that lose or gain tables.
    pub(crate) fn edited(
        &self,
        removed: &[u32],
        losing: &BTreeSet<u32>,
        added: &[(u8, Arc<Table>)],
    ) -> Version {
        let mut next = self.successor();
        let removed: BTreeSet<u32> = removed.iter().copied().collect();
        let is_removed = |table: &Arc<Table>| removed.contains(&table.meta().id);
        let gaining = added.iter().map(|(_, table)| table.meta().keyspace);
        let changed: BTreeSet<u32> = losing.iter().copied().chain(gaining).collect();
        for keyspace in &changed {
            next.note_changing(*keyspace);
        }
        for keyspace in losing {
            let Some(levels) = next.keyspaces.get_mut(keyspace) else { continue };
            let levels = Arc::make_mut(levels).levels.iter_mut();
            for tables in levels.filter(|tables| tables.iter().any(is_removed)) {
                Arc::make_mut(tables).retain(|table| !is_removed(table));
            }
        }
        for (level, table) in added {
            if let Some(levels) = next.keyspaces.get_mut(&table.meta().keyspace) {
                Arc::make_mut(levels).add(usize::from(*level), table.clone());
            }
        }
        for keyspace in changed {
            if let Some(levels) = next.keyspaces.get_mut(&keyspace) {
                Arc::make_mut(levels).note_change();
            }
        }
        next
    }

    /// Returns whether a table of a keyspace refers to values in the file with this number.
    pub(crate) fn has_values_in(&self, keyspace: u32, file: u32) -> bool {
        self.keyspaces.get(&keyspace).is_some_and(|levels| levels.values.contains_key(&file))
    }

    /// Returns the files without keys that have long values.
    pub(crate) fn kept_files(&self) -> impl Iterator<Item = &ValueFile> {
        self.keyspaces.values().flat_map(|levels| levels.values.values()).filter(|file| !file.is_table)
    }
}

impl std::fmt::Debug for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tables = self.tables().map(|(level, table)| (level, table.meta().id));
        f.debug_list().entries(tables).finish()
    }
}
