//! The checkpoints of this member and of the others.

use tonic::Status;

use super::Node;
use super::peers::Purpose;
use crate::proto::peer::{CheckpointsReply, CheckpointsRequest, StateSum};
use crate::refusal::Refusal;
use crate::types::Peer;

impl Node {
    /// Returns the sums at this member's checkpoints.
    pub(crate) async fn state_sums(&self) -> Result<Vec<StateSum>, Status> {
        let view = self.view().await?;
        match view.checkpoints().await {
            Ok(checkpoints) => Ok(checkpoints.into_iter().map(StateSum::from).collect()),
            Err(failure) => Err(self.unread_in(&view, failure).await),
        }
    }

    /// Asks all other members for their checkpoints, as of an entry or later. One that is not reached in time has a failure for its reply.
    pub(crate) async fn checkpoints_of_others(
        &self,
        index: u64,
    ) -> Vec<(u64, Result<CheckpointsReply, Status>)> {
        let others: Vec<(u64, Peer)> = {
            let membership = self.membership();
            let members = membership.membership().nodes().map(|(id, peer)| (*id, peer.clone()));
            members.filter(|(id, _)| *id != self.id()).collect()
        };
        let asked = others.into_iter().map(|(id, peer)| async move {
            // After a start they may not be known yet.
            self.inner.peers.set(id, &peer.urls);
            (id, self.checkpoints_of(id, index).await)
        });
        futures_util::future::join_all(asked).await
    }

    async fn checkpoints_of(&self, id: u64, index: u64) -> Result<CheckpointsReply, Status> {
        let mut client = self.inner.peers.client(id, Purpose::Other)?;
        let asked = client.checkpoints(CheckpointsRequest { index });
        match tokio::time::timeout_at(self.deadline(), asked).await {
            Ok(reply) => Ok(reply?.into_inner()),
            Err(_) => Err(Refusal::Timeout.into()),
        }
    }
}
