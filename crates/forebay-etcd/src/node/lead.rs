//! Proposals that only the leader of one term makes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::type_config::alias::LeaderIdOf;
use openraft::vote::RaftLeaderId;
use tonic::Status;

use super::Node;
use super::leader_call::not_leader;
use crate::operation::Operation;
use crate::proto::peer::{Author, Outcome, command};
use crate::refusal::Refusal;
use crate::types::{Command, Types};

/// Counts something as under way until this is dropped, though its caller may have given it up before its end.
pub(super) struct InFlight<'a>(&'a AtomicU64);

impl InFlight<'_> {
    pub(super) fn begin(count: &AtomicU64) -> InFlight<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        InFlight(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Node {
    /// Proposes a change that follows from this member's knowledge as the leader of this term. It is never forwarded: it is made
    /// while this member leads in that term, or not at all. Raft compares the terms as it accepts the entry, and an entry of a
    /// leader that was replaced without notice precedes all entries of the next leader, or is discarded.
    ///
    /// # Errors
    /// [`Refusal::NotLeader`] if this member does not lead in that term any more: nothing was done. After others the change may
    /// have been made, or may still be made.
    pub(crate) async fn propose_leading(
        &self,
        term: u64,
        author: Option<Author>,
        change: command::Change,
    ) -> Result<Outcome, Status> {
        self.check_format(&change)?;
        let (operation, deadline) = (Operation::of(&change), self.deadline());
        let written =
            tokio::time::timeout_at(deadline, self.write_leading(term, Command::by(author, change)));
        let proposed = async { written.await.unwrap_or_else(|_| Err(Refusal::Timeout.into())) };
        self.counted(operation, proposed).await
    }

    /// Awaits a proposal, and counts it.
    pub(super) async fn counted<T>(
        &self,
        operation: Option<Operation>,
        proposed: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let (counts, begun) = (&self.inner.counts, Instant::now());
        let pending = InFlight::begin(&counts.proposals_pending);
        let proposed = proposed.await;
        drop(pending);
        if proposed.is_err() {
            counts.proposals_failed.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(operation) = operation {
            // A refusal is an outcome too, as in etcd.
            counts.requests.observe(operation, proposed.is_ok(), begun.elapsed());
        }
        proposed
    }

    async fn write_leading(&self, term: u64, command: Command) -> Result<Outcome, Status> {
        self.check_running()?;
        if self.is_healing() {
            return Err(not_leader());
        }
        let stopped = || Status::from(Refusal::Stopped);
        let leader = LeaderIdOf::<Types>::new(term, self.id()).to_committed();
        let (responder, outcome) = ProgressResponder::complete_only();
        let written = self.inner.raft.write(command).with_leader(leader).responder(responder).await;
        written.map_err(|_| stopped())?;
        match outcome.await.map_err(|_| stopped())? {
            Ok(written) => Ok(written.data),
            Err(ClientWriteError::ForwardToLeader(_)) => Err(not_leader()),
            Err(ClientWriteError::LogEntryDiscarded(_)) => Err(Refusal::LeaderChanged.into()),
            Err(error) => Err(Status::internal(error.to_string())),
        }
    }
}
