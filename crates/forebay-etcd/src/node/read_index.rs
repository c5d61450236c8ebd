//! Linearizable reads: one round with the leader for all that wait.

use std::sync::atomic::Ordering;

use openraft::ReadPolicy;
use openraft::errors::{LinearizableReadError, RaftError};
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use super::leader_call::{LeaderCall, not_leader};
use super::{Client, Node, Purpose};
use crate::proto::peer::ReadIndexRequest;
use crate::refusal::Refusal;

type Waiter = oneshot::Sender<Result<(), Status>>;

/// Those that wait for the next round.
#[derive(Debug)]
pub(crate) struct Barrier {
    waiting: mpsc::UnboundedSender<Waiter>,
    /// Taken by the task that makes the rounds.
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
        self.check_running()?;
        self.inner.counts.reads.fetch_add(1, Ordering::Relaxed);
        let (done, outcome) = oneshot::channel();
        let stopped = || Status::from(Refusal::Stopped);
        self.inner.barrier.waiting.send(done).map_err(|_| stopped())?;
        match tokio::time::timeout_at(self.deadline(), outcome).await {
            Ok(outcome) => outcome.map_err(|_| stopped())??,
            Err(_) => return Err(Refusal::Timeout.into()),
        }
        self.check_whole()
    }

    /// Makes round after round, as long as somebody waits.
    pub(super) async fn make_rounds(self) {
        let Some(mut arrivals) = self.inner.barrier.take() else { return };
        while let Some(first) = arrivals.recv().await {
            // Those that come from now on wait for the next round: this one may have begun before their call.
            let mut waiting = vec![first];
            while let Ok(next) = arrivals.try_recv() {
                waiting.push(next);
            }
            self.inner.counts.read_rounds.fetch_add(1, Ordering::Relaxed);
            let outcome = self.round().await;
            let failed = u64::from(outcome.is_err());
            self.inner.counts.read_rounds_failed.fetch_add(failed, Ordering::Relaxed);
            for waiting in waiting {
                // Some may not wait any more.
                let _ = waiting.send(outcome.clone());
            }
        }
    }

    /// Learns from the leader up to which entry a read must have applied, and applies it. A round changes nothing, so it is
    /// tried again at will.
    async fn round(&self) -> Result<(), Status> {
        let deadline = self.deadline();
        // A leader that has just gone is noticed by the next heartbeats: a long wait for its reply is of no use.
        let limit = Some(self.inner.settings.election_timeout * 2);
        let how = LeaderCall { purpose: Purpose::Raft, limit, ..LeaderCall::REPEATABLE };
        let there = |mut leader: Client| async move {
            leader.read_index(ReadIndexRequest {}).await.map(|reply| reply.into_inner().index)
        };
        let index = self.call_leader(how, deadline, || self.read_index_here(), there).await?;
        self.wait_applied(index, deadline).await
    }

    /// Returns the index of the last entry that may have been acknowledged, as the leader, confirmed by a majority: no clock
    /// is trusted.
    pub(super) async fn read_index_here(&self) -> Result<u64, Status> {
        match self.inner.raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
            Ok(linearizer) => Ok(linearizer.read_log_id().index()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => Err(not_leader()),
            // The majority may be back with the next heartbeat.
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => Err(not_leader()),
            Err(RaftError::Fatal(_)) => Err(Refusal::Stopped.into()),
        }
    }
}
