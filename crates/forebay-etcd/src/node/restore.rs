//! Makes the data directory of a member of a new cluster of a snapshot.
//!
//! All members that restore the same file start with the same state, which counts as made by one entry of the log: that of the new
//! membership. So they have the same log id and the same vote, and elect a leader as after a restart of all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openraft::Membership;
use openraft::alias::{EntryOf, LeaderIdOf, LogIdOf, VoteOf};
use openraft::entry::RaftEntry;
use openraft::storage::{RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine};
use openraft::vote::{RaftLeaderId, RaftLeaderIdExt, RaftVote};

use super::identity::{self, Founders, Identity};
use super::{Directories, owner};
use crate::config::Restore;
use crate::mvcc::{Failure, Import, ImportSummary, Limits, Machine, Store};
use crate::observer::Nobody;
use crate::snapshot::source::Source;
use crate::start_error::StartError;
use crate::types::{Peer, Types};

/// The term and index of the entry that the restored state counts as made by.
const TERM: u64 = 1;
const INDEX: u64 = 1;

/// The summary of a restore, displayed as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    imported: ImportSummary,
    member: u64,
    cluster: u64,
    data_dir: PathBuf,
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ImportSummary { revision, keys, leases } = self.imported;
        write!(
            f,
            "restored {keys} keys and {leases} leases as of revision {revision} for member {:x} of cluster {:x} in {}",
            self.member,
            self.cluster,
            self.data_dir.display()
        )
    }
}

fn failed(what: &str, error: &dyn fmt::Display) -> StartError {
    StartError::new(format!("the snapshot was not restored: {what}: {error}"))
}

impl Restore {
    /// Makes the data directory. It is complete when this returns, durably; after a failure it is removed, and after a crash a
    /// server refuses it. The snapshot's file is read on the calling thread: this is for a program that does nothing else.
    ///
    /// # Errors
    /// The file is not a snapshot, is damaged, or has something that this server cannot keep; the data directory is in use; or the system
    /// refuses a call. One sentence.
    pub async fn run(&self) -> Result<RestoreReport, StartError> {
        let source = Source::open(&self.file, self.is_sum_checked)
            .map_err(|error| StartError::new(format!("the snapshot cannot be restored: {error}")))?;
        let sum = source.sum();
        let origin = match self.bump_revision {
            0 => sum,
            bump => format!("{sum}+{bump}"),
        };
        let identity = Identity::new_cluster(&Founders {
            token: &self.initial_cluster_token,
            cluster: &self.initial_cluster,
            own: &self.initial_advertise_peer_urls,
            origin: Some(&origin),
        })?;
        let target = Target::make(self)?;
        let made = self.fill(&source, identity.clone(), &target).await;
        let imported = match made.and_then(|imported| target.complete().map(|()| imported)) {
            Ok(imported) => imported,
            Err(error) => {
                target.remove();
                return Err(error);
            }
        };
        let (member, cluster) = (identity.member_id, identity.cluster_id);
        Ok(RestoreReport { imported, member, cluster, data_dir: self.data_dir.clone() })
    }

    async fn fill(
        &self,
        source: &Source,
        mut identity: Identity,
        target: &Target,
    ) -> Result<ImportSummary, StartError> {
        let Directories { member, state, .. } = &target.directories;
        identity.write(member)?;
        let peer = |urls: &Vec<String>| Peer { urls: urls.clone(), is_voter_soon: false };
        let initial = identity.initial.iter().flat_map(|initial| &initial.members);
        let nodes: BTreeMap<u64, Peer> = initial.map(|(id, urls)| (*id, peer(urls))).collect();
        let ids: BTreeSet<u64> = nodes.keys().copied().collect();
        // The same one on all members.
        let first = ids.first().copied().unwrap_or_default();
        let membership = Membership::new(vec![ids], nodes).map_err(|error| failed("the members", &error))?;
        let id = LogIdOf::<Types>::new(LeaderIdOf::<Types>::new_committed(TERM, first), INDEX);
        let engine = super::engine()?;
        let mut store = open(&engine, state).await?;
        let imported = import(source, &store, self.bump_revision).await;
        let closed = store.close().await;
        let imported = imported.map_err(|failure| match failure {
            // It names the file.
            Failure::Damaged(text) => StartError::new(format!("the snapshot cannot be restored: {text}")),
            other => failed("the state", &io::Error::from(other)),
        })?;
        closed.map_err(|error| failed("the state", &error))?;
        // Again, so that the machine has the numbers of the state.
        store = open(&engine, state).await?;
        let entry = EntryOf::<Types>::new_membership(id, membership);
        let filled = async {
            store.apply(futures_util::stream::iter([Ok((entry, None))])).await?;
            // Members that join later are sent it, as the log has nothing before it.
            store.build_snapshot().await.map(drop)
        };
        let filled = filled.await;
        let closed = store.close().await.map_err(io::Error::from);
        filled.and(closed).map_err(|error| failed("the state", &error))?;
        let opened = owner::open(&engine, &target.directories, &mut identity).await;
        let mut log = opened.map_err(|error| failed("the log", &error))?;
        let begun = async {
            log.save_vote(&VoteOf::<Types>::from_leader_id(LeaderIdOf::<Types>::new(TERM, first), true))
                .await?;
            log.purge(id).await?;
            log.save_committed(Some(id)).await
        };
        let begun = begun.await;
        let closed = log.close().await.map_err(io::Error::from);
        begun.and(closed).map_err(|error| failed("the log", &error))?;
        Ok(imported)
    }
}

async fn open(engine: &forebay::Engine, state: &Path) -> Result<Store, StartError> {
    let machine = Machine::new(Arc::new(Nobody), Limits::default());
    let opened = Store::open(engine, state, super::store_options(), machine).await;
    opened.map_err(|error| failed("the state", &error))
}

async fn import(source: &Source, store: &Store, bump: u64) -> Result<ImportSummary, Failure> {
    let keyspaces = store.keyspaces();
    source.import(Import::new(&keyspaces)?, bump).await
}

/// The directories to make.
struct Target {
    data_dir: PathBuf,
    is_data_dir_new: bool,
    /// Of a log elsewhere: its directory.
    log_dir: Option<PathBuf>,
    is_log_dir_new: bool,
    member: PathBuf,
    /// Those of the member under its name for the time being.
    directories: Directories,
}

impl Target {
    /// Checks that nothing is in the way, and makes the directories.
    fn make(restore: &Restore) -> Result<Target, StartError> {
        let (data_dir, log_dir) = (restore.data_dir.clone(), restore.log_dir.clone());
        let member = data_dir.join("member");
        let unfinished = identity::unfinished(&member);
        if member.exists() {
            return Err(StartError::new(format!(
                "{} holds a member already: give another --data-dir",
                data_dir.display()
            )));
        }
        identity::check_unused(&member)?;
        let is_data_dir_new = !data_dir.exists();
        check_empty(&data_dir, "data-dir")?;
        if let Some(log_dir) = &log_dir {
            check_empty(log_dir, "wal-dir")?;
        }
        let is_log_dir_new = log_dir.as_ref().is_some_and(|log_dir| !log_dir.exists());
        let directories = Directories::of(unfinished, log_dir.clone());
        let target = Target { data_dir, is_data_dir_new, log_dir, is_log_dir_new, member, directories };
        for dir in target.log_dir.iter().chain([&target.directories.member]) {
            if let Err(error) = identity::make_dir(dir) {
                target.remove();
                return Err(StartError::at("cannot make", dir, &error));
            }
        }
        Ok(target)
    }

    /// Gives the member its name, durably.
    fn complete(&self) -> Result<(), StartError> {
        let unfinished = &self.directories.member;
        let named = identity::sync_dir(unfinished)
            .and_then(|()| fs::rename(unfinished, &self.member))
            .and_then(|()| identity::sync_dir(&self.data_dir));
        named.map_err(|error| StartError::at("cannot make", &self.member, &error))
    }

    /// Removes what was made. What cannot be removed is refused by servers.
    fn remove(&self) {
        let _ = fs::remove_dir_all(&self.directories.member);
        if let Some(log_dir) = &self.log_dir {
            let _ = if self.is_log_dir_new { fs::remove_dir_all(log_dir) } else { remove_entries(log_dir) };
        }
        if self.is_data_dir_new {
            let _ = fs::remove_dir(&self.data_dir);
        }
    }
}

/// Removes what a directory holds. The directory stays: it may be a mount point, with an owner and a mode.
fn remove_entries(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Refuses a directory that holds something.
fn check_empty(dir: &Path, flag: &str) -> Result<(), StartError> {
    let mut entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| StartError::at("cannot read", dir, &error))?,
    };
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(StartError::new(format!("{} is not empty: give another --{flag}", dir.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_emptied_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("one/two")).unwrap();
        fs::write(dir.path().join("one/two/file"), "text").unwrap();
        fs::write(dir.path().join("file"), "text").unwrap();
        remove_entries(dir.path()).unwrap();
        check_empty(dir.path(), "wal-dir").unwrap();
        assert!(dir.path().exists());
    }
}
