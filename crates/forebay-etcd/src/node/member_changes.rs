//! Changes of the members, which the leader makes one at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use openraft::ChangeMembers;
use openraft::Instant as _;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use tokio::time::Instant;
use tonic::{Response, Status};

use super::leader_call::{LeaderCall, not_leader};
use super::{Client, Node, identity};
use crate::config::urls::Url;
use crate::proto::etcdserverpb::{Member, MemberAddRequest, MemberUpdateRequest};
use crate::proto::peer::{MemberChange, MemberChanged, member_change::Change};
use crate::refusal::Refusal;
use crate::types::{Peer, Types};

/// Entries that a member may be behind and still count as caught up.
const BEHIND_MAX: u64 = 100;
/// The most bytes of a member's URLs: those of all members are one value of the store.
const URLS_BYTES_MAX: usize = 64 << 10;

type Changes = ChangeMembers<u64, Peer>;
type ChangeError = RaftError<Types, ClientWriteError<Types>>;

fn checked_urls(urls: &[String]) -> Result<Vec<String>, Status> {
    if urls.iter().map(String::len).sum::<usize>() > URLS_BYTES_MAX {
        return Err(Refusal::RequestTooLarge.into());
    }
    let mut checked = Vec::new();
    for url in urls {
        checked.push(Url::parse(url).map_err(|_| Status::from(Refusal::MemberBadUrls))?.to_string());
    }
    checked.sort();
    checked.dedup();
    if checked.is_empty() { Err(Refusal::MemberBadUrls.into()) } else { Ok(checked) }
}

impl Node {
    /// Changes the members, here or at the leader.
    ///
    /// # Errors
    /// etcd's refusals. After a timeout the change may have been made.
    pub(crate) async fn change_members(&self, change: Change) -> Result<MemberChanged, Status> {
        let deadline = self.deadline();
        let here = || self.change_members_here(change.clone(), deadline);
        let there = |mut leader: Client| {
            let request = MemberChange { change: Some(change.clone()) };
            async move { leader.change_members(request).await.map(Response::into_inner) }
        };
        self.call_leader(LeaderCall::ONCE, deadline, here, there).await
    }

    /// Changes the members as the leader.
    pub(super) async fn change_members_here(
        &self,
        change: Change,
        deadline: Instant,
    ) -> Result<MemberChanged, Status> {
        if let Change::MoveLeader(request) = &change {
            self.move_leader(request.target_id).await?;
            return Ok(MemberChanged::default());
        }
        let changing = tokio::time::timeout_at(deadline, self.inner.changing.lock()).await;
        let _changing = changing.map_err(|_| Status::from(Refusal::Timeout))?;
        let added = match change {
            Change::Add(request) => Some(self.add(request, deadline).await?),
            Change::Remove(request) => {
                self.remove(request.id, deadline).await?;
                None
            }
            Change::Update(request) => {
                self.update(request, deadline).await?;
                None
            }
            Change::Promote(request) => {
                self.promote(request.id, deadline).await?;
                None
            }
            Change::MoveLeader(_) => None,
        };
        let members = self.members_of(&self.membership()).await?;
        let member = added.and_then(|id| members.iter().find(|member| member.id == id).cloned());
        Ok(MemberChanged { member, members })
    }

    async fn add(&self, request: MemberAddRequest, deadline: Instant) -> Result<u64, Status> {
        let urls = checked_urls(&request.peer_ur_ls)?;
        let members = self.members_of(&self.membership()).await?;
        if members.iter().any(|member| member.peer_ur_ls.iter().any(|url| urls.contains(url))) {
            return Err(Refusal::PeerUrlExists.into());
        }
        let learners = members.iter().filter(|member| member.is_learner).count();
        if request.is_learner && learners >= self.inner.settings.max_learners {
            return Err(Refusal::TooManyLearners.into());
        }
        if self.inner.settings.is_reconfig_check_strict {
            let (voters, started) = voters_and_started(&members, None);
            let is_first = started == 1 && voters == 1;
            if !request.is_learner && !is_first && started < voters.div_ceil(2) + 1 {
                return Err(Refusal::MemberNotEnoughStarted.into());
            }
            // As if the new member were unreachable, but counted: its first messages may take long.
            if !is_first && !self.reaches(&members, None, voters.div_ceil(2) + 1).await {
                return Err(Refusal::Unhealthy.into());
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nonce = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let id = identity::added_id(self.cluster_id(), &urls, nonce);
        if members.iter().any(|member| member.id == id) {
            return Err(Refusal::MemberExists.into());
        }
        // A voter without entries could cost the quorum: it follows until it has caught up.
        let peer = Peer { urls, is_voter_soon: !request.is_learner };
        self.change(ChangeMembers::AddNodes(BTreeMap::from([(id, peer)])), true, deadline).await?;
        Ok(id)
    }

    async fn remove(&self, id: u64, deadline: Instant) -> Result<(), Status> {
        let membership = self.membership();
        let members = self.members_of(&membership).await?;
        let Some(member) = members.iter().find(|member| member.id == id) else {
            return Err(Refusal::MemberNotFound.into());
        };
        let is_voter = membership.membership().voter_ids().any(|voter| voter == id);
        if !is_voter {
            return self.change(ChangeMembers::RemoveNodes(BTreeSet::from([id])), false, deadline).await;
        }
        let (others, started) = voters_and_started(&members, Some(id));
        if others == 0 {
            return Err(Refusal::MemberNotEnoughStarted.into());
        }
        if self.inner.settings.is_reconfig_check_strict && !member.is_learner {
            if started < others / 2 + 1 {
                return Err(Refusal::MemberNotEnoughStarted.into());
            }
            if !self.reaches(&members, Some(id), others / 2 + 1).await {
                return Err(Refusal::Unhealthy.into());
            }
        }
        if id == self.id() {
            // The next leader removes this member.
            if self.hand_over(0).await {
                return Err(not_leader());
            }
            return Err(Refusal::Timeout.into());
        }
        self.change(ChangeMembers::RemoveVoters(BTreeSet::from([id])), false, deadline).await
    }

    async fn update(&self, request: MemberUpdateRequest, deadline: Instant) -> Result<(), Status> {
        let urls = checked_urls(&request.peer_ur_ls)?;
        let membership = self.membership();
        let Some(peer) = membership.membership().get_node(&request.id).cloned() else {
            return Err(Refusal::MemberNotFound.into());
        };
        let mut others = membership.membership().nodes().filter(|(id, _)| **id != request.id);
        if others.any(|(_, other)| other.urls.iter().any(|url| urls.contains(url))) {
            return Err(Refusal::PeerUrlExists.into());
        }
        let peer = Peer { urls, ..peer };
        self.change(ChangeMembers::SetNodes(BTreeMap::from([(request.id, peer)])), true, deadline).await
    }

    async fn promote(&self, id: u64, deadline: Instant) -> Result<(), Status> {
        let membership = self.membership();
        let members = self.members_of(&membership).await?;
        let Some(member) = members.iter().find(|member| member.id == id) else {
            return Err(Refusal::MemberNotFound.into());
        };
        if !member.is_learner {
            return Err(Refusal::MemberNotLearner.into());
        }
        if !self.is_caught_up(id) {
            return Err(Refusal::LearnerNotReady.into());
        }
        if self.inner.settings.is_reconfig_check_strict {
            let (voters, started) = voters_and_started(&members, None);
            if started + 1 < voters.div_ceil(2) + 1 {
                return Err(Refusal::MemberNotEnoughStarted.into());
            }
        }
        self.make_voter(id, deadline).await?;
        self.inner.counts.promoted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Makes a voter of a member that follows.
    pub(super) async fn make_voter(&self, id: u64, deadline: Instant) -> Result<(), Status> {
        let membership = self.membership();
        let Some(peer) = membership.membership().get_node(&id).cloned() else {
            return Err(Refusal::MemberNotFound.into());
        };
        let peer = Peer { is_voter_soon: false, ..peer };
        let changes = ChangeMembers::Batch(vec![
            ChangeMembers::SetNodes(BTreeMap::from([(id, peer)])),
            ChangeMembers::AddVoterIds(BTreeSet::from([id])),
        ]);
        self.change(changes, true, deadline).await
    }

    /// Makes voters of the members that were added as such, once they have caught up.
    pub(super) async fn make_voters(&self) {
        let membership = self.membership();
        let soon = membership.membership().nodes().filter(|(_, peer)| peer.is_voter_soon);
        for id in soon.map(|(id, _)| *id).collect::<Vec<_>>() {
            if !self.is_leader() || !self.is_caught_up(id) {
                continue;
            }
            // Another change may be under way, for which the next look waits.
            let Ok(_changing) = self.inner.changing.try_lock() else { return };
            match self.make_voter(id, self.deadline()).await {
                Ok(()) => tracing::info!(member = format!("{id:x}"), "a member has caught up, and votes now"),
                Err(status) => {
                    tracing::warn!(member = format!("{id:x}"), "no vote for it yet: {}", status.message());
                }
            }
        }
    }

    /// Returns whether a member has almost all entries of the leader.
    fn is_caught_up(&self, id: u64) -> bool {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let last = metrics.last_log_index.unwrap_or(0);
        let matching = metrics.replication.as_ref().and_then(|replication| replication.get(&id).cloned());
        matching.flatten().is_some_and(|matching| matching.index + BEHIND_MAX >= last)
    }

    /// Returns how many voters, this leader among them, have been heard of within the time of two elections.
    fn reached_voters(&self, members: &[Member], except: Option<u64>) -> usize {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let limit = self.inner.settings.election_timeout * 2;
        let voters: Vec<u64> = metrics.membership_config.membership().voter_ids().collect();
        let is_reached = |id: u64| {
            let heard = metrics.heartbeat.as_ref().and_then(|heartbeat| heartbeat.get(&id).cloned());
            id == self.id() || heard.flatten().is_some_and(|at| at.elapsed() < limit)
        };
        let ids = members.iter().map(|member| member.id).filter(|id| Some(*id) != except);
        ids.filter(|id| voters.contains(id) && is_reached(*id)).count()
    }

    /// Returns whether this leader reaches as many voters, itself included. A new leader may not have heard of the others yet: it
    /// waits for the time of an election. A member that has just started does not know yet whether they stay, as in etcd.
    async fn reaches(&self, members: &[Member], except: Option<u64>, needed: usize) -> bool {
        if self.inner.began.elapsed() < self.inner.settings.health_interval {
            return false;
        }
        let deadline = Instant::now() + self.inner.settings.election_timeout;
        loop {
            if self.reached_voters(members, except) >= needed {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(self.inner.settings.heartbeat_interval).await;
        }
    }

    /// Waits until this leader does not reach one of the voters.
    #[cfg(test)]
    pub(crate) async fn unreached(&self) {
        loop {
            let members = self.members(false).await.unwrap();
            if self.reached_voters(&members, None)
                < members.iter().filter(|member| !member.is_learner).count()
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Writes a change, and returns when it is committed. A change that Raft cannot start yet is retried.
    async fn change(&self, changes: Changes, is_retained: bool, deadline: Instant) -> Result<(), Status> {
        loop {
            let changed = self.inner.raft.change_membership(changes.clone(), is_retained);
            let changed = tokio::time::timeout_at(deadline, changed).await;
            let error = match changed {
                Ok(Ok(changed)) => {
                    self.shown(changed.log_id.index, deadline).await;
                    return Ok(());
                }
                Ok(Err(error)) => error,
                Err(_) => return Err(Refusal::Timeout.into()),
            };
            if !is_early(&error) {
                return Err(refusal_of(error));
            }
            let pause = Instant::now() + self.inner.settings.heartbeat_interval / 2;
            tokio::time::sleep_until(pause.min(deadline)).await;
            if Instant::now() >= deadline {
                return Err(Refusal::Timeout.into());
            }
        }
    }

    /// Waits until lists of the members have a change that was made: Raft responds before its metrics, from which they
    /// are made, show it.
    async fn shown(&self, index: u64, deadline: Instant) {
        let mut metrics = self.inner.raft.server_metrics();
        loop {
            let is_shown = {
                let now = metrics.borrow_watched();
                let committed = now.committed_membership_config.log_id().as_ref().map(|id| id.index);
                committed.is_some_and(|committed| committed >= index)
            };
            // It is made, whether it is shown in time or not.
            if is_shown || !matches!(tokio::time::timeout_at(deadline, metrics.changed()).await, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Moves the lead to another voter.
    async fn move_leader(&self, to: u64) -> Result<(), Status> {
        if !self.is_leader() {
            return Err(not_leader());
        }
        if !self.membership().membership().voter_ids().any(|id| id == to) {
            return Err(Refusal::BadLeaderTransferee.into());
        }
        if to == self.id() {
            return Ok(());
        }
        let is_moved = self.transfer(to, self.inner.settings.request_timeout).await;
        if is_moved { Ok(()) } else { Err(Refusal::Timeout.into()) }
    }

    /// Asks a member to lead, repeatedly, until this member no longer leads.
    async fn transfer(&self, to: u64, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut leadership = self.leadership();
        while Instant::now() < deadline {
            if self.inner.raft.trigger().transfer_leader(to).await.is_err() {
                return false;
            }
            let again = (Instant::now() + self.inner.settings.election_timeout).min(deadline);
            let moved = leadership.wait_for(|now| !now.is_own && now.leader.is_some());
            if let Ok(moved) = tokio::time::timeout_at(again, moved).await {
                return moved.is_ok();
            }
        }
        false
    }

    /// Moves the lead to the voter with the most entries, if this member leads others, or the next time to the next one. Returns whether it
    /// leads no more.
    pub(super) async fn hand_over(&self, time: usize) -> bool {
        if !self.is_leader() {
            return false;
        }
        let heir = {
            let metrics = self.inner.raft.metrics();
            let metrics = metrics.borrow_watched();
            let voters = metrics.membership_config.membership().voter_ids().filter(|id| *id != self.id());
            let matching = |id: &u64| {
                let replication = metrics.replication.as_ref();
                replication.and_then(|replication| replication.get(id).cloned().flatten()).map(|id| id.index)
            };
            // One that is not heard of would be waited for in vain.
            let limit = self.inner.settings.election_timeout;
            let heartbeat = metrics.heartbeat.as_ref();
            let is_heard = |id: &u64| {
                let heard = heartbeat.and_then(|heartbeat| heartbeat.get(id).cloned());
                heard.flatten().is_some_and(|at| at.elapsed() < limit)
            };
            let heirs = voters.filter(is_heard).filter_map(|id| Some((matching(&id)?, id)));
            let mut heirs: Vec<_> = heirs.collect();
            heirs.sort_unstable();
            let at = time.checked_rem(heirs.len());
            at.and_then(|at| heirs.iter().rev().nth(at)).map(|(_, id)| *id)
        };
        match heir {
            Some(heir) => self.transfer(heir, self.inner.settings.election_timeout * 3).await,
            None => false,
        }
    }
}

/// Returns the number of voters, and of those that have started, excluding one of them.
fn voters_and_started(members: &[Member], except: Option<u64>) -> (usize, usize) {
    let voters = || members.iter().filter(|member| !member.is_learner && Some(member.id) != except);
    (voters().count(), voters().filter(|member| !member.name.is_empty()).count())
}

/// Returns whether Raft has to finish something first.
fn is_early(error: &ChangeError) -> bool {
    use ChangeMembershipError::{InProgress, UncommittedLeaderLog};
    let RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) = error else { return false };
    matches!(error, InProgress(_) | UncommittedLeaderLog(_))
}

fn refusal_of(error: ChangeError) -> Status {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => not_leader(),
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => Refusal::LeaderChanged.into(),
        RaftError::APIError(error) => Status::internal(error.to_string()),
        RaftError::Fatal(_) => Refusal::Stopped.into(),
    }
}
