//! Ways for a member to enter its cluster: as one of the first, by joining, or from its data directory.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use openraft::errors::{InitializeError, RaftError};
use tonic::{Code, Status};

use super::Node;
use super::identity::{Founders, Identity};
use super::peers::{Dialer, causes};
use crate::config::Config;
use crate::config::urls::Url;
use crate::proto::etcdserverpb::Member;
use crate::proto::peer::{MembersReply, MembersRequest};
use crate::start_error::StartError;
use crate::types::Peer;

/// How long a member that joins waits for a reply of each of the others.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that a starting cluster's member waits for replies. Usually no other member runs, or all start at the same time and do
/// not reply. A running member on a slow machine must have replied by then.
pub(super) const ASK_FIRST_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns which member of which cluster this is: from the data directory, or else from the settings and the other members.
///
/// # Errors
/// The data directory is of another one, or the cluster does not know this member.
pub(super) async fn identity(config: &Config, dir: &Path, dialer: &Dialer) -> Result<Identity, StartError> {
    if let Some(identity) = Identity::read(dir)? {
        identity.check(config, dir)?;
        return Ok(identity);
    }
    if config.is_new_cluster_forced {
        return Err(StartError::new(format!(
            "--force-new-cluster continues with a member's data, and {} has none: give its --data-dir, or leave the flag out",
            config.data_dir.display()
        )));
    }
    let identity = if config.is_cluster_existing {
        joined(config, dialer).await?
    } else {
        let identity = Identity::new_cluster(&Founders::of(config))?;
        check_first(config, &identity, dialer).await?;
        identity
    };
    identity.write(dir)?;
    Ok(identity)
}

/// Learns the cluster's id, and this member's, from the members that are there.
async fn joined(config: &Config, dialer: &Dialer) -> Result<Identity, StartError> {
    let own = &config.initial_advertise_peer_urls;
    let others: Vec<&Url> =
        config.initial_cluster.values().flatten().filter(|url| !own.contains(url)).collect();
    if others.is_empty() {
        return Err(StartError::new(
            "--initial-cluster-state=existing needs other members in --initial-cluster: this member is alone there",
        ));
    }
    let mut failures = Vec::new();
    for url in others {
        match ask(dialer, url, true, ASK_TIMEOUT).await {
            Ok(reply) => return found(config, url, &reply),
            Err((_, reason)) => failures.push(format!("{url}: {reason}")),
        }
    }
    Err(StartError::new(format!(
        "no member of the cluster to join replied ({}): check --initial-cluster, and that the cluster runs",
        failures.join("; ")
    )))
}

/// Refuses to start a cluster of which this member has been part: its id would be the same, and it would lack everything that it
/// acknowledged before, though the others rely on it.
///
/// A member publishes its name after its identity is durable. So a member without a name has not been part of the cluster yet, even
/// if it starts late, and a member that was interrupted before does not reach this point again.
async fn check_first(config: &Config, identity: &Identity, dialer: &Dialer) -> Result<(), StartError> {
    let own = &config.initial_advertise_peer_urls;
    let others = config.initial_cluster.values().flatten().filter(|url| !own.contains(url));
    let asked = others.map(|url| async move { (url, ask(dialer, url, false, ASK_FIRST_TIMEOUT).await) });
    for (url, reply) in futures_util::future::join_all(asked).await {
        let reply = match reply {
            Ok(reply) => reply,
            // It runs, and may count on this member.
            Err((Code::FailedPrecondition, reason)) => {
                return Err(StartError::new(format!("the member of {url} refuses this one: {reason}")));
            }
            // Members that do not reply may not have started either.
            Err(_) => continue,
        };
        if reply.cluster_id != identity.cluster_id || reply.members.is_empty() {
            continue;
        }
        let member = reply.members.iter().find(|member| member.id == identity.member_id);
        let is_new = |member: &Member| member.name.is_empty() && member.client_ur_ls.is_empty();
        if member.is_some_and(is_new) {
            continue;
        }
        let (id, dir) = (identity.member_id, config.data_dir.display());
        let what = match member {
            Some(_) => format!(
                "has started before, and its data is not in {dir}: remove it (etcdctl member remove {id:x})"
            ),
            // It was one of the first members.
            None => "was removed from the cluster".to_owned(),
        };
        let urls = own.iter().map(Url::to_string).collect::<Vec<_>>().join(",");
        return Err(StartError::new(format!(
            "member {id:x} with the peer URLs {urls} {what}; add it as a new one (etcdctl member add {} --peer-urls={urls}), and \
             start it with --initial-cluster-state=existing",
            config.name
        )));
    }
    Ok(())
}

/// Returns the members known to another member, or a code and the reason.
pub(super) async fn ask(
    dialer: &Dialer,
    url: &Url,
    is_linearizable: bool,
    limit: Duration,
) -> Result<MembersReply, (Code, String)> {
    let failed = |status: Status| (status.code(), status.message().to_owned());
    let mut client = dialer.stranger(&url.to_string()).map_err(failed)?;
    let request = MembersRequest { is_linearizable };
    match tokio::time::timeout(limit, client.members(request)).await {
        Ok(Ok(reply)) => Ok(reply.into_inner()),
        Ok(Err(status)) if status.code() == Code::FailedPrecondition => Err(failed(status)),
        Ok(Err(status)) => Err((status.code(), causes(&status))),
        Err(_) => Err((Code::DeadlineExceeded, format!("no reply within {} s", limit.as_secs()))),
    }
}

/// Finds this member among those of a reply, by its peer URLs.
fn found(config: &Config, from: &Url, reply: &MembersReply) -> Result<Identity, StartError> {
    if reply.format > config.formats.own {
        return Err(StartError::new(format!(
            "the state of the cluster of {from} has format {}, and this version knows formats {}: start a later version",
            reply.format, config.formats
        )));
    }
    // Those of a member that was added are in the order of texts, and those of settings in that of hosts and ports.
    let sorted = |mut urls: Vec<String>| {
        urls.sort();
        urls
    };
    let own = sorted(config.initial_advertise_peer_urls.iter().map(Url::to_string).collect());
    let member = reply.members.iter().find(|member| sorted(member.peer_ur_ls.clone()) == own);
    let Some(member) = member else {
        return Err(StartError::new(format!(
            "the cluster of {from} has no member with the peer URLs {}: add it first \
             (etcdctl member add {} --peer-urls={})",
            own.join(","),
            config.name,
            own.join(",")
        )));
    };
    if !member.name.is_empty() {
        return Err(StartError::new(format!(
            "member {:x} with the peer URLs {} has started before, and its data is not in {}: remove the member, and \
             add it again",
            member.id,
            own.join(","),
            config.data_dir.display()
        )));
    }
    Ok(Identity::joined(reply.cluster_id, member.id))
}

impl Node {
    /// Starts a new cluster with the same members as all others do. Does nothing in an existing cluster.
    ///
    /// # Errors
    /// Raft's.
    pub(super) async fn begin(&self) -> Result<(), StartError> {
        let failed =
            |error: &dyn std::fmt::Display| StartError::new(format!("the cluster cannot begin: {error}"));
        let inner = &self.inner;
        if inner.raft.is_initialized().await.map_err(|error| failed(&error))? {
            return Ok(());
        }
        // A member that joins hears from the leader.
        let Some(initial) = &inner.identity.initial else { return Ok(()) };
        let peer = |urls: &Vec<String>| Peer { urls: urls.clone(), is_voter_soon: false };
        let members: BTreeMap<u64, Peer> =
            initial.members.iter().map(|(id, urls)| (*id, peer(urls))).collect();
        match inner.raft.initialize(members).await {
            // Another member was faster.
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(failed(&error)),
        }
    }
}

/// Returns why log or state could not be opened.
pub(super) fn not_opened(what: &str, path: &Path, error: &forebay_raft::Error) -> StartError {
    let is_locked = error.log().is_some_and(|error| error.kind() == forebay_wal::ErrorKind::Locked)
        || error.store().is_some_and(|error| error.kind() == forebay_kv::ErrorKind::Locked);
    if is_locked {
        return StartError::new(format!(
            "{what} in {} is in use by another process: end it, or give another --data-dir",
            path.display()
        ));
    }
    StartError::new(format!("{what} in {} cannot be opened: {}", path.display(), causes(error)))
}
