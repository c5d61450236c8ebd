//! The state of a store: the sum of all edits so far.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_wal::End;

use super::edit::Edit;
use super::version::LEVELS;
use crate::table::TableMeta;

/// The tables and keyspaces of a store, and the bounds of its log. Each edit is applied to a copy, which shares names and tables: of
/// both there may be tens of thousands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ManifestState {
    /// Number that distinguishes this store from others; 0 before the first edit.
    pub(crate) store_id: u64,
    pub(crate) next_table: u32,
    /// The first record of the log that is not in tables.
    pub(crate) log_start: u64,
    /// Durable end of the log; `None` before the first edit that records it.
    pub(crate) log_end: Option<End>,
    pub(crate) keyspaces: BTreeMap<u32, Arc<str>>,
    /// The number of the next keyspace: those below it that are not in `keyspaces` were dropped.
    pub(crate) next_keyspace: u32,
    /// Those of `keyspaces` whose entries are not in the log.
    pub(crate) unlogged: BTreeSet<u32>,
    /// Level and metadata of each table, by its number.
    pub(crate) tables: BTreeMap<u32, (u8, Arc<TableMeta>)>,
    /// The lengths of the files that have long values of these tables and no keys any more, by number.
    pub(crate) kept: BTreeMap<u32, u64>,
}

impl ManifestState {
    /// Returns whether nothing was written yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.store_id == 0
    }

    /// Returns whether the store's log was created: its tables are numbered from 1.
    pub(crate) fn has_log(&self) -> bool {
        self.next_table > 0
    }

    /// Applies an edit. After an error the state is unusable.
    pub(crate) fn apply(&mut self, edit: &Edit) -> Result<(), &'static str> {
        if edit.is_whole {
            *self = ManifestState { store_id: edit.store_id, ..ManifestState::default() };
        }
        if self.store_id == 0 {
            return Err("it changes a store that no edit before it created");
        }
        // Of both there may be ten thousand.
        let names: BTreeSet<&str> = edit.keyspaces.iter().map(|(_, name)| &**name).collect();
        let is_taken = names.len() < edit.keyspaces.len()
            || self.keyspaces.values().any(|known| names.contains(&**known));
        for (id, name) in &edit.keyspaces {
            if is_taken || self.keyspaces.contains_key(id) || name.is_empty() {
                return Err("it adds a keyspace that exists, or one without a name");
            }
            self.keyspaces.insert(*id, Arc::from(name.as_str()));
            self.next_keyspace = self.next_keyspace.max(id.saturating_add(1));
        }
        self.next_keyspace = self.next_keyspace.max(edit.next_keyspace);
        let new: BTreeSet<u32> = edit.keyspaces.iter().map(|(id, _)| *id).collect();
        for id in &edit.unlogged {
            if !new.contains(id) {
                return Err("it names an unlogged keyspace that it does not add");
            }
            self.unlogged.insert(*id);
        }
        let mut without_keys: BTreeMap<u32, u64> = edit.kept.clone();
        without_keys.append(&mut self.kept);
        for id in &edit.removed {
            let (_, table) = self.tables.remove(id).ok_or("it removes a table that is not there")?;
            without_keys.insert(*id, table.bytes);
        }
        for id in &edit.dropped {
            self.keyspaces.remove(id).ok_or("it drops a keyspace that is not there")?;
            self.unlogged.remove(id);
            if self.tables.values().any(|(_, table)| table.keyspace == *id) {
                return Err("it drops a keyspace that has tables");
            }
        }
        self.next_table = self.next_table.max(edit.next_table);
        for (level, table) in &edit.added {
            if usize::from(*level) >= LEVELS || !self.keyspaces.contains_key(&table.keyspace) {
                return Err("it adds a table to an unknown level or keyspace");
            }
            if table.smallest > table.largest {
                return Err("it adds a table whose smallest key is above its largest");
            }
            if self.tables.insert(table.id, (*level, Arc::new(table.clone()))).is_some() {
                return Err("it adds a table that exists");
            }
            self.next_table = self.next_table.max(table.id.saturating_add(1));
        }
        self.keep(without_keys)?;
        if let Some(start) = edit.log_start {
            if start < self.log_start {
                return Err("the log's start goes back");
            }
            self.log_start = start;
        }
        debug_assert!(
            self.tables.keys().next_back().is_none_or(|id| *id < self.next_table || *id == u32::MAX),
            "a table's number is never given again"
        );
        // The end decreases only when a salvage accepts a shorter log.
        self.log_end = edit.log_end.or(self.log_end);
        Ok(())
    }

    /// Keeps those of these files, which have no keys, to whose values tables refer.
    fn keep(&mut self, mut files: BTreeMap<u32, u64>) -> Result<(), &'static str> {
        let tables = self.tables.values().map(|(_, table)| table);
        let named: BTreeSet<u32> = tables.flat_map(|table| table.values.iter().map(|(id, _)| *id)).collect();
        files.retain(|id, _| named.contains(id) && !self.tables.contains_key(id));
        self.kept = files;
        let is_there = |id: &u32| self.kept.contains_key(id) || self.tables.contains_key(id);
        if named.iter().all(is_there) {
            Ok(())
        } else {
            Err("a table with values in a file that is not there")
        }
    }

    /// Returns whether a table's file belongs to the store.
    pub(crate) fn names(&self, id: u32) -> bool {
        self.tables.contains_key(&id) || self.kept.contains_key(&id)
    }

    /// Returns the keyspaces of these tables.
    pub(crate) fn keyspaces_of(&self, tables: &[u32]) -> BTreeSet<u32> {
        tables.iter().filter_map(|id| self.tables.get(id)).map(|(_, table)| table.keyspace).collect()
    }

    /// Returns the edit that builds this state from nothing.
    pub(crate) fn to_edit(&self) -> Edit {
        let implied = self.keyspaces.last_key_value().map_or(0, |(last, _)| last.saturating_add(1));
        Edit {
            next_keyspace: if self.next_keyspace > implied { self.next_keyspace } else { 0 },
            dropped: Vec::new(),
            unlogged: self.unlogged.iter().copied().collect(),
            is_whole: true,
            store_id: self.store_id,
            next_table: self.next_table,
            log_start: Some(self.log_start),
            log_end: self.log_end,
            keyspaces: self.keyspaces.iter().map(|(id, name)| (*id, name.to_string())).collect(),
            removed: Vec::new(),
            added: self.tables.values().map(|(level, table)| (*level, TableMeta::clone(table))).collect(),
            kept: self.kept.clone(),
        }
    }

    /// Returns whether a keyspace of this number exists, or existed.
    pub(crate) fn is_known(&self, keyspace: u32) -> bool {
        keyspace < self.next_keyspace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(id: u32, keyspace: u32) -> TableMeta {
        TableMeta {
            id,
            number: id,
            keyspace,
            bytes: 4096,
            entries: 1,
            deleted: 0,
            expiring: 0,
            expires_s: (0, 0),
            smallest: Box::from(&b"a"[..]),
            largest: Box::from(&b"b"[..]),
            values: Box::default(),
        }
    }

    fn begun() -> ManifestState {
        let mut state = ManifestState::default();
        let keyspaces = vec![(0, "default".to_string())];
        let edit = Edit { is_whole: true, store_id: 5, log_start: Some(1), keyspaces, ..Edit::default() };
        state.apply(&edit).unwrap();
        state
    }

    #[test]
    fn a_state_is_its_own_edit() {
        let mut state = begun();
        let added = vec![(0, table(3, 0)), (1, table(4, 0))];
        let log_end = Some(End { lsn: forebay_wal::Lsn(11), epoch: 2 });
        state.apply(&Edit { added, log_start: Some(9), log_end, ..Edit::default() }).unwrap();
        state.apply(&Edit { removed: vec![3], added: vec![(2, table(9, 0))], ..Edit::default() }).unwrap();
        assert_eq!((state.next_table, state.log_start, state.tables.len()), (10, 9, 2));
        assert_eq!(state.log_end, log_end);
        let mut again = ManifestState::default();
        again.apply(&state.to_edit()).unwrap();
        assert_eq!(again, state);
    }

    #[test]
    fn the_number_of_a_dropped_keyspace_is_not_given_again() {
        let mut state = begun();
        let keyspaces = vec![(1, "one".to_string()), (2, "two".to_string())];
        state.apply(&Edit { keyspaces, added: vec![(0, table(3, 2))], ..Edit::default() }).unwrap();
        let full = Edit { dropped: vec![2], ..Edit::default() };
        assert!(state.clone().apply(&full).is_err(), "it has a table");
        state.apply(&Edit { removed: vec![3], ..full }).unwrap();
        assert!(state.clone().apply(&Edit { dropped: vec![2], ..Edit::default() }).is_err());
        let mut again = ManifestState::default();
        again.apply(&state.to_edit()).unwrap();
        assert_eq!((again.next_keyspace, again.keyspaces.len()), (3, 2));
        assert_eq!(again, state);
    }

    #[test]
    fn a_file_with_values_of_a_table_is_kept_until_none_refers_to_it() {
        let mut state = begun();
        let with = |id: u32, values: &[(u32, u64)]| TableMeta { values: values.into(), ..table(id, 0) };
        state.apply(&Edit { added: vec![(0, with(3, &[(3, 100)]))], ..Edit::default() }).unwrap();
        assert!(state.kept.is_empty());
        let edit =
            Edit { removed: vec![3], added: vec![(6, with(4, &[(3, 70), (4, 9)]))], ..Edit::default() };
        state.apply(&edit).unwrap();
        assert_eq!(state.kept, BTreeMap::from([(3, 4096)]));
        assert!(state.names(3) && state.names(4) && !state.names(5));
        let mut again = ManifestState::default();
        again.apply(&Edit::decode(&state.to_edit().encode()).unwrap()).unwrap();
        assert_eq!(again, state);
        let stranger = Edit { added: vec![(5, with(5, &[(2, 1)]))], ..Edit::default() };
        assert!(state.clone().apply(&stranger).is_err(), "file 2 is not there");
        state
            .apply(&Edit { removed: vec![4], added: vec![(6, with(5, &[(5, 70)]))], ..Edit::default() })
            .unwrap();
        assert!(state.kept.is_empty() && !state.names(3));
    }

    #[test]
    fn edits_that_do_not_fit_are_refused() {
        let edits = [
            Edit { removed: vec![1], ..Edit::default() },
            Edit { added: vec![(0, table(1, 4))], ..Edit::default() },
            Edit { added: vec![(7, table(1, 0))], ..Edit::default() },
            Edit { added: vec![(0, table(1, 0)), (1, table(1, 0))], ..Edit::default() },
            Edit { keyspaces: vec![(1, "default".to_string())], ..Edit::default() },
            Edit { keyspaces: vec![(0, "other".to_string())], ..Edit::default() },
            Edit { log_start: Some(0), ..Edit::default() },
        ];
        for edit in edits {
            assert!(begun().apply(&edit).is_err(), "{edit:?}");
        }
        assert!(ManifestState::default().apply(&Edit::default()).is_err());
    }
}
