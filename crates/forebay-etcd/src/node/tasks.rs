//! Background tasks of a member.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::{Instant, ServerState};
use tokio::sync::watch;
use tonic::Status;

use super::peers::Purpose;
use super::{EndReason, Leadership, Node};
use crate::proto::peer::{Attributes, Format, MembersRequest, command};

/// The time without a leader, in election timeouts, after which a member asks whether it was removed.
const ELECTIONS_ALONE_MAX: u32 = 4;

impl Node {
    /// Starts the tasks, on Raft's own runtime.
    pub(super) fn start_tasks(&self, leadership: watch::Sender<Leadership>) {
        let runtime = self.runtime();
        let mut tasks = self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push(runtime.spawn(self.clone().follow(leadership)));
        tasks.push(runtime.spawn(self.clone().make_rounds()));
        tasks.push(runtime.spawn(self.clone().publish()));
        tasks.push(runtime.spawn(self.clone().look_after_members()));
        tasks.push(runtime.spawn(self.clone().raise_format()));
        tasks.push(runtime.spawn(self.clone().notice_removal()));
        tasks.push(runtime.spawn(self.clone().notice_failure()));
    }

    /// Keeps `leadership`, and where members are reached, as they are.
    async fn follow(self, sender: watch::Sender<Leadership>) {
        let mut metrics = self.inner.raft.server_metrics();
        let mut tick = tokio::time::interval(self.inner.settings.heartbeat_interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut membership = None;
        let mut last_leader = None;
        let mut term_began = (0, tokio::time::Instant::now());
        let (mut looked, heartbeat) = (term_began.1, self.inner.settings.heartbeat_interval);
        loop {
            // The tasks that send heartbeats run in the same runtime.
            if sender.borrow().is_own && looked.elapsed() > heartbeat * 2 {
                self.inner.counts.late_heartbeats.fetch_add(1, Ordering::Relaxed);
            }
            looked = tokio::time::Instant::now();
            let term = self.inner.raft.metrics().borrow_watched().current_term;
            if term_began.0 != term {
                term_began = (term, tokio::time::Instant::now());
            }
            let now = self.leadership_now(term_began.1);
            #[cfg(test)]
            let now = if self.inner.is_unaware.load(Ordering::SeqCst) { *sender.borrow() } else { now };
            if now.leader.is_some() && now.leader != last_leader {
                if last_leader.is_some() {
                    self.inner.counts.leader_changes.fetch_add(1, Ordering::Relaxed);
                }
                last_leader = now.leader;
                let leader = now.leader.unwrap_or_default();
                tracing::info!(leader = format!("{leader:x}"), term = now.term, "there is a leader");
            }
            sender.send_if_modified(|before| {
                let is_new = *before != now;
                if is_new && now.leader.is_none() && before.leader.is_some() {
                    tracing::warn!(term = now.term, "there is no leader");
                }
                *before = now;
                is_new
            });
            let current = self.membership();
            if membership.as_ref() != Some(current.log_id()) {
                membership = Some(*current.log_id());
                for (id, peer) in current.membership().nodes() {
                    self.inner.peers.set(*id, &peer.urls);
                }
                self.inner.peers.retain(|id| current.membership().get_node(&id).is_some());
                let is_voter = current.membership().voter_ids().any(|id| id == self.id());
                let own = current.membership().get_node(&self.id());
                let is_only_learning = !is_voter && own.is_some_and(|own| !own.is_voter_soon);
                self.inner.is_only_learning.store(is_only_learning, Ordering::Relaxed);
            }
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() { return },
                _ = tick.tick() => {}
            }
        }
    }

    /// Determines the leader. Raft itself keeps naming a leader that is not heard of any more, and a leader continues without
    /// replies of a majority: neither counts here. A new leader has the same time limit from the start of its term as an old leader
    /// has from its last reply.
    fn leadership_now(&self, term_began: tokio::time::Instant) -> Leadership {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let limit = self.inner.settings.election_timeout * 2;
        let term = metrics.current_term;
        let is_own = metrics.state == ServerState::Leader && metrics.current_leader == Some(self.id());
        if is_own {
            let others = metrics.membership_config.membership().voter_ids().any(|id| id != self.id());
            let acked = metrics.last_quorum_acked.as_ref().map(|at| at.elapsed());
            let is_acked = acked.unwrap_or_else(|| term_began.elapsed()) < limit;
            let is_own = is_acked || !others;
            return Leadership { leader: Some(self.id()).filter(|_| is_own), term, is_own };
        }
        let heard = Duration::from_millis(self.inner.heard_ms.load(Ordering::Relaxed));
        let is_heard = !heard.is_zero() && self.inner.began.elapsed().saturating_sub(heard) < limit;
        let leader = metrics.current_leader.filter(|leader| is_heard && *leader != self.id());
        Leadership { leader, term, is_own: false }
    }

    /// Gives the cluster this member's name and client URLs, until it knows them.
    async fn publish(self) {
        let attributes = Attributes {
            member: self.id(),
            name: self.inner.name.clone(),
            client_urls: self.inner.client_urls.clone(),
            format: self.inner.formats.own,
        };
        loop {
            // The same words again change nothing.
            match self.propose(command::Change::Attributes(attributes.clone())).await {
                Ok(_) => break,
                Err(status) => {
                    tracing::warn!("the cluster does not know this member's name yet: {}", status.message())
                }
            }
            tokio::time::sleep(self.inner.settings.heartbeat_interval).await;
        }
        tracing::info!(
            name = self.inner.name,
            "the cluster knows this member: ready to serve client requests"
        );
        self.inner.is_published.send_replace(true);
    }

    /// As the leader: makes voters of those that have caught up.
    async fn look_after_members(self) {
        let mut leadership = self.leadership();
        loop {
            if leadership.wait_for(|now| now.is_own).await.is_err() {
                return;
            }
            self.make_voters().await;
            tokio::time::sleep(self.inner.settings.heartbeat_interval).await;
        }
    }

    /// As the leader: has the state's format raised to the latest one that all members know.
    async fn raise_format(self) {
        let mut leadership = self.leadership();
        loop {
            let leading = leadership.wait_for(|now| now.is_own).await.map(|now| now.term);
            let Ok(term) = leading else { return };
            let mut pause = self.inner.settings.election_timeout;
            if self.format() < self.inner.formats.own {
                // Members of a new cluster are all known soon.
                pause = self.inner.settings.heartbeat_interval;
                if let Err(status) = self.raise_format_in(term).await {
                    tracing::warn!("the format of the state is not raised yet: {}", status.message());
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Looks whether all members know a later format, and proposes that.
    async fn raise_format_in(&self, term: u64) -> Result<(), Status> {
        let (attributes, membership) = (self.attributes().await?, self.membership());
        let known = |id: &u64| attributes.get(id).map_or(0, |attributes| attributes.format);
        let known = membership.membership().nodes().map(|(id, _)| known(id)).min().unwrap_or(0);
        if known > self.format() {
            let raised = command::Change::Format(Format { format: known });
            self.propose_leading(term, None, raised).await?;
            tracing::info!(format = known, "the format of the state is raised");
        }
        Ok(())
    }

    /// Ends this member when it was removed. What it has applied does not show it: a removed member may not have the entry, and a
    /// new one has the entries of before it was added. So the others are asked, and a leader confirms.
    async fn notice_removal(self) {
        let alone = self.inner.settings.election_timeout * ELECTIONS_ALONE_MAX;
        let mut leadership = self.leadership();
        loop {
            if self.is_in_doubt() {
                if self.is_removed().await {
                    tracing::error!("this member was removed from the cluster, and ends");
                    self.end(EndReason::Removed);
                    return;
                }
                tokio::time::sleep(self.inner.settings.election_timeout).await;
                continue;
            }
            if leadership.wait_for(|now| now.leader.is_none()).await.is_err() {
                return;
            }
            let led = tokio::time::timeout(alone, leadership.wait_for(|now| now.leader.is_some()));
            let is_alone = led.await.is_err();
            if is_alone && self.is_removed().await {
                tracing::error!("this member was removed from the cluster, and ends");
                self.end(EndReason::Removed);
                return;
            }
        }
    }

    /// Returns whether the membership known here is without this member, or about to be.
    fn is_in_doubt(&self) -> bool {
        let membership = self.membership();
        let membership = membership.membership();
        // The last configuration of a joint one is the next.
        let next = membership.get_joint_config().last();
        let is_voter_now = membership.voter_ids().any(|id| id == self.id());
        let is_leaving = is_voter_now && next.is_some_and(|next| !next.contains(&self.id()));
        let has_members = membership.nodes().next().is_some();
        has_members && (is_leaving || membership.get_node(&self.id()).is_none())
    }

    /// Asks the others whether this member was removed. `false` if no member knows for certain.
    async fn is_removed(&self) -> bool {
        let others: Vec<u64> = {
            let membership = self.membership();
            membership.membership().nodes().map(|(id, _)| *id).filter(|id| *id != self.id()).collect()
        };
        for id in others {
            let Ok(mut client) = self.inner.peers.client(id, Purpose::Other) else { continue };
            let asked = client.members(MembersRequest { is_linearizable: true });
            let limit = self.inner.settings.election_timeout * 4;
            if let Ok(Ok(reply)) = tokio::time::timeout(limit, asked).await {
                let reply = reply.into_inner();
                let is_known = reply.members.iter().any(|member| member.id == self.id());
                return reply.cluster_id == self.cluster_id() && !is_known;
            }
            self.inner.peers.failed(id);
        }
        false
    }

    /// Ends this member when Raft has stopped, which it does when its log or state fails. It watches figures that rarely change:
    /// the full metrics are published several times an entry, and each time woke a thread in addition to the thread that had the
    /// entry.
    async fn notice_failure(self) {
        let mut server_metrics = self.inner.raft.server_metrics();
        while server_metrics.changed().await.is_ok() {}
        // Raft reports its failure before it ends.
        let failure =
            self.inner.raft.metrics().borrow_watched().running_state.as_ref().err().map(ToString::to_string);
        self.end(EndReason::Failed(failure.unwrap_or_else(|| "Raft has stopped".to_owned())));
    }
}
