//! Linearizable reads: one round with the leader for all that wait.

use std::sync::atomic::Ordering;

use openraft::ReadPolicy;
use openraft::errors::{LinearizableReadError, RaftError};
use openraft::vote::RaftLeaderId;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use super::leader_call::{LeaderCall, not_leader};
use super::{Client, Node, Purpose};
use crate::proto::peer::ReadIndexRequest;
use crate::refusal::Refusal;

type Waiter = oneshot::Sender<Result<Option<u64>, Status>>;

/// Up to which entry a read must have applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadIndex {
    pub(super) index: u64,
    /// The term in which this member said so as the leader; `None` from another member.
    own_term: Option<u64>,
}

/// Those that wait for the next round.
#[derive(Debug)]
pub(crate) struct Barrier {
    waiting: mpsc::UnboundedSender<Waiter>,
    /// Moved to the task that makes the rounds.
    arrivals: std::sync::Mutex<Option<mpsc::UnboundedReceiver<Waiter>>>,
}

impl Barrier {
    pub(crate) fn new() -> Barrier {
        let (waiting, arrivals) = mpsc::unbounded_channel();
        Barrier { waiting, arrivals: std::sync::Mutex::new(Some(arrivals)) }
    }

    fn take(&self) -> Option<mpsc::UnboundedReceiver<Waiter>> {
        self.arrivals.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}

impl Node {
    /// Waits until reads of this member's state are linearizable: they have all changes that were acknowledged before the
    /// call.
    ///
    /// # Errors
    /// [`Refusal::Timeout`] if no leader confirms it in time.
    pub(crate) async fn read_barrier(&self) -> Result<(), Status> {
        self.pass_barrier().await.map(drop)
    }

    /// The same at the leader. Returns a term in which this member has led since the call: all entries of former terms are applied.
    ///
    /// # Errors
    /// Those of [`read_barrier`](Node::read_barrier), and [`Refusal::NotLeader`] if another one leads.
    pub(crate) async fn read_barrier_leading(&self) -> Result<u64, Status> {
        self.pass_barrier().await?.ok_or_else(not_leader)
    }

    async fn pass_barrier(&self) -> Result<Option<u64>, Status> {
        self.check_running()?;
        self.inner.counts.reads.fetch_add(1, Ordering::Relaxed);
        let (done, outcome) = oneshot::channel();
        let stopped = || Status::from(Refusal::Stopped);
        self.inner.barrier.waiting.send(done).map_err(|_| stopped())?;
        let own_term = match tokio::time::timeout_at(self.deadline(), outcome).await {
            Ok(outcome) => outcome.map_err(|_| stopped())??,
            Err(_) => return Err(Refusal::Timeout.into()),
        };
        self.check_whole()?;
        Ok(own_term)
    }

    /// Makes round after round, as long as somebody waits.
    pub(super) async fn make_rounds(self) {
        let Some(mut arrivals) = self.inner.barrier.take() else { return };
        while let Some(first) = arrivals.recv().await {
            // Later calls wait for the next round: this round may have started before them.
            let mut waiting = vec![first];
            while let Ok(next) = arrivals.try_recv() {
                waiting.push(next);
            }
            self.inner.counts.read_rounds.fetch_add(1, Ordering::Relaxed);
            let outcome = self.round().await;
            if let Err(status) = &outcome {
                let counts = &self.inner.counts;
                let texts = [Refusal::Timeout.text(), Refusal::TimeoutLeaderFailure.text()];
                let is_slow = texts.contains(&status.message());
                let count = if is_slow { &counts.read_rounds_slow } else { &counts.read_rounds_failed };
                count.fetch_add(1, Ordering::Relaxed);
            }
            for waiting in waiting {
                // Some may not wait any more.
                let _ = waiting.send(outcome.clone());
            }
        }
    }

    /// Learns from the leader up to which entry a read must have applied, and applies it. A round changes nothing, so it is
    /// tried again at will. Returns the term of this member if it is the leader.
    async fn round(&self) -> Result<Option<u64>, Status> {
        let deadline = self.deadline();
        // A leader that has just stopped is noticed by the next heartbeats: a long wait for its reply is of no use.
        let limit = Some(self.inner.settings.election_timeout * 2);
        let how = LeaderCall { purpose: Purpose::Raft, limit, ..LeaderCall::REPEATABLE };
        let there = |mut leader: Client| async move {
            let reply = leader.read_index(ReadIndexRequest {}).await?;
            Ok(ReadIndex { index: reply.into_inner().index, own_term: None })
        };
        let read = self.call_leader(how, deadline, || self.read_index_here(), there).await?;
        self.wait_applied(read.index, deadline).await?;
        Ok(read.own_term)
    }

    /// Returns the index of the last entry that may have been acknowledged, as the leader, confirmed by a majority: no clock
    /// is trusted.
    pub(super) async fn read_index_here(&self) -> Result<ReadIndex, Status> {
        match self.inner.raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
            Ok(linearizer) => {
                // It is not before the first entry of the leader's term.
                let read = linearizer.read_log_id();
                Ok(ReadIndex { index: read.index(), own_term: Some(read.committed_leader_id().term()) })
            }
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => Err(not_leader()),
            // The majority may be back with the next heartbeat.
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => Err(not_leader()),
            Err(RaftError::Fatal(_)) => Err(Refusal::Stopped.into()),
        }
    }
}
