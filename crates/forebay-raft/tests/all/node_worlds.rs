//! Shows: after any crash a node's state machine is as after one of its entries, with the log id of that entry; snapshots are whole, and an
//! installed one is there whole or not at all; with the log's committed entries the state is that before the crash; nothing is left over.
//! How: simulated worlds with log and store of one node (`forebay_test::raft_worlds`), with a state machine that keeps the texts of its entries.

use std::collections::BTreeMap;
use std::io;

use crate::common::{WorldTypes, entry};
use forebay_kv::{Batch, Keyspace};
use forebay_raft::{Apply, RaftStore};
use forebay_test::raft_worlds::{Finding, Subject, explore};
use forebay_test::worlds::{self, Trouble};
use openraft::alias::{EntryOf, LogIdOf};
use openraft::entry::RaftEntry;

type C = WorldTypes;

/// Keeps the text of each entry by its index modulo 7, and the number of entries in another keyspace.
struct Keeper;

impl Apply<C> for Keeper {
    fn keyspaces(&self) -> Vec<String> {
        vec!["texts".into(), "counts".into()]
    }

    async fn apply(
        &self,
        entry: EntryOf<C>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<String> {
        let count = keyspaces[1].get("entries").await.map_err(io::Error::other)?;
        let count = count.map_or(0, |bytes| u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")));
        let text = entry.to_string() + &"x".repeat((worlds::mix(count) % 900) as usize);
        batch.put(&keyspaces[0], (entry.log_id().index % 7).to_be_bytes(), text);
        batch.put(&keyspaces[1], "entries", (count + 1).to_le_bytes());
        Ok(count.to_string())
    }
}

fn nth(index: u64) -> EntryOf<C> {
    entry::<C>(1, index, index.to_string())
}

/// Returns the keyspace of texts after the entries before `count`.
fn expected(count: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let of = |index: u64| nth(index).to_string() + &"x".repeat((worlds::mix(index) % 900) as usize);
    let newest = count.saturating_sub(7)..count;
    newest.map(|index| ((index % 7).to_be_bytes().to_vec(), of(index).into_bytes())).collect()
}

#[derive(Clone)]
struct Texts;

impl Subject for Texts {
    type Types = C;
    type Machine = Keeper;

    fn machine(&self) -> Keeper {
        Keeper
    }

    fn entry(&self, id: LogIdOf<C>) -> EntryOf<C> {
        nth(id.index)
    }

    async fn check(&self, store: &RaftStore<C, Keeper>, applied: u64) -> Result<(), Finding> {
        let text = |error: forebay_kv::Error| Finding::Unread(error.to_string());
        let keyspaces = store.keyspaces();
        let count = keyspaces[1].get("entries").await.map_err(text)?;
        let count = count.map_or(0, |bytes| u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")));
        let (mut texts, mut found) = (keyspaces[0].iter(), BTreeMap::new());
        while let Some(entry) = texts.next().await {
            let (key, value) = entry.map_err(text)?;
            found.insert(key, value.to_vec());
        }
        if count != applied {
            let why = format!("the log id says {applied} entries, the data say {count}");
            return Err(Finding::Wrong(why));
        }
        if found != expected(count) {
            return Err(Finding::Wrong(format!("after {count} entries there is {found:?}")));
        }
        Ok(())
    }
}

#[test]
fn a_crash_leaves_one_state_and_whole_snapshots() {
    explore(Trouble::Crashes, 30, |_| Texts);
}

#[test]
fn the_same_on_disks_that_fail() {
    explore(Trouble::Errors, 30, |_| Texts);
}

/// Test of the oracle: a store with a deliberate fault is caught in the worlds that CI runs, and the correct store passes the same
/// worlds.
#[cfg(feature = "_mutants")]
mod broken {
    use std::rc::Rc;

    use forebay_raft::mutants::{self, Mutant};
    use forebay_sim::World;
    use forebay_test::raft_worlds::attempt;

    use super::*;

    fn is_caught(mutant: Mutant) {
        let attempt = |world: &mut World| attempt(world, &Texts, Trouble::Crashes, &Rc::default());
        worlds::is_caught(mutant, 30, |run| mutants::with(mutant, run), attempt);
    }

    #[test]
    fn an_applied_log_id_behind_its_data_is_caught() {
        is_caught(Mutant::AppliedBehindData);
    }

    #[test]
    fn a_snapshot_that_is_half_installed_is_caught() {
        is_caught(Mutant::HalfInstalled);
    }

    #[test]
    fn a_purge_that_is_not_synced_is_caught() {
        is_caught(Mutant::PurgeNotSynced);
    }
}
