//! A member that continues without the others, which are lost: `--force-new-cluster`.
//!
//! Its log and state stay, with entries that it does not know to be committed: a change that was acknowledged and is here is kept.
//! After them a membership of this member alone is appended, in a later term than that of its vote. The cluster has another id from
//! then on, so returning members are refused, and cannot replace this member's data.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use forebay_raft::RaftLog;
use openraft::alias::{EntryOf, LeaderIdOf, LogIdOf, VoteOf};
use openraft::entry::RaftEntry;
use openraft::storage::{RaftLogReader, RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::vote::{RaftLeaderId, RaftLeaderIdExt, RaftVote};
use openraft::{Membership, StorageHelper};
use tonic::Code;

use super::identity::Identity;
use super::peers::Dialer;
use super::{Directories, bootstrap, owner};
use crate::config::urls::Url;
use crate::mvcc::{Damage, Store};
use crate::start_error::StartError;
use crate::types::{Peer, Types};

fn failed(error: &dyn fmt::Display) -> StartError {
    StartError::new(format!("--force-new-cluster: this member cannot continue alone: {error}"))
}

/// Makes this member the only one of its cluster, before Raft starts. The log is marked for the new cluster last: until then a
/// start resumes this, also without the flag.
///
/// # Errors
/// Another member runs, the directory has no member, or its log or state is damaged.
pub(super) async fn go_on_alone(
    identity: &mut Identity,
    directories: &Directories,
    log: &mut RaftLog<Types>,
    store: &mut Store,
    damage: Option<Damage>,
    dialer: &Dialer,
) -> Result<(), StartError> {
    if let Some(damage) = damage {
        return Err(failed(&format!(
            "its state is damaged, and must come from others or a snapshot: {damage}"
        )));
    }
    let (applied, _) = store.applied_state().await.map_err(|error| failed(&error))?;
    let in_log = log.get_log_state().await.map_err(|error| failed(&error))?.last_log_id;
    if let Some(applied) = applied.filter(|applied| in_log < Some(*applied)) {
        // As Raft does after a snapshot was installed before a crash, and refuses where other entries would stay behind it.
        if in_log.is_some_and(|in_log| in_log.index >= applied.index) {
            return Err(failed(&"its log has other entries than its state: take another member"));
        }
        log.purge(applied).await.map_err(|error| failed(&error))?;
    }
    let memberships = StorageHelper::<'_, Types, _, _>::new(log, store).get_membership().await;
    let memberships = memberships.map_err(|error| failed(&error))?;
    let vote = log.read_vote().await.map_err(|error| failed(&error))?;
    let last = log.get_log_state().await.map_err(|error| failed(&error))?.last_log_id;
    let member = identity.member_id;
    let mut others: BTreeMap<u64, Peer> =
        memberships.effective().nodes().map(|(id, peer)| (*id, peer.clone())).collect();
    let (Some(own), Some(vote), Some(last)) = (others.remove(&member), vote, last) else {
        return Err(failed(
            &"its membership does not have it: it never joined, or was removed; take another member",
        ));
    };
    let is_interrupted = owner::is_interrupted(log, identity);
    if others.is_empty() {
        if !is_interrupted {
            tracing::warn!("--force-new-cluster has no effect: this member is alone already");
        }
        return owner::follow(log, &directories.log, identity).await;
    }
    let cluster_id = identity.former_cluster_id.filter(|_| is_interrupted).unwrap_or(identity.cluster_id);
    for (id, peer) in &others {
        check_ended(cluster_id, *id, peer, dialer).await?;
    }
    if !is_interrupted {
        identity.separate();
        identity.write(&directories.member)?;
    }
    let term = vote.leader_id().term() + 1;
    let id = LogIdOf::<Types>::new(LeaderIdOf::<Types>::new_committed(term, member), last.index + 1);
    let own = Peer { is_voter_soon: false, ..own };
    let alone = Membership::new(vec![BTreeSet::from([member])], BTreeMap::from([(member, own)]));
    let entry = EntryOf::<Types>::new_membership(id, alone.map_err(|error| failed(&error))?);
    let vote = VoteOf::<Types>::from_leader_id(LeaderIdOf::<Types>::new(term, member), true);
    log.save_vote(&vote).await.map_err(|error| failed(&error))?;
    let appended = RaftLogStorageExt::<Types>::blocking_append(log, [entry]).await;
    appended.map_err(|error| failed(&error))?;
    owner::follow(log, &directories.log, identity).await?;
    let removed: Vec<String> = others.keys().map(|id| format!("{id:x}")).collect();
    tracing::warn!(
        cluster = format!("{:x}", identity.cluster_id),
        "this member continues alone, without {}: leave --force-new-cluster out from now on",
        removed.join(", ")
    );
    Ok(())
}

/// Refuses to leave a member behind that runs: it, or a majority with it, may acknowledge changes.
async fn check_ended(cluster_id: u64, id: u64, peer: &Peer, dialer: &Dialer) -> Result<(), StartError> {
    for url in peer.urls.iter().filter_map(|url| Url::parse(url).ok()) {
        let runs = match bootstrap::ask(dialer, &url, false, bootstrap::ASK_FIRST_TIMEOUT).await {
            Ok(reply) => reply.cluster_id == cluster_id,
            // Of another version.
            Err((code, _)) => code == Code::FailedPrecondition,
        };
        if runs {
            let text =
                format!("member {id:x} runs at {url}: end all others first, or remove them with etcdctl");
            return Err(failed(&text));
        }
    }
    Ok(())
}
