//! The members, as the cluster has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;
use openraft::type_config::alias::StoredMembershipOf;
use tonic::Status;

use super::Node;
use crate::proto::etcdserverpb::Member;
use crate::proto::peer::Attributes;
use crate::types::Types;

pub(super) type Membership = Arc<StoredMembershipOf<Types>>;

impl Node {
    /// Returns the membership that counts now, committed or not.
    pub(super) fn membership(&self) -> Membership {
        self.inner.raft.server_metrics().borrow_watched().membership_config.clone()
    }

    /// Returns the attributes that the members have published.
    pub(super) async fn attributes(&self) -> Result<BTreeMap<u64, Attributes>, Status> {
        let view = self.view().await?;
        let attributes = match view.attributes().await {
            Ok(attributes) => attributes,
            Err(failure) => return Err(self.unread_in(&view, failure).await),
        };
        Ok(attributes.into_iter().map(|attributes| (attributes.member, attributes)).collect())
    }

    /// Returns the members, by id.
    ///
    /// # Errors
    /// Those of [`Node::read_barrier`], and failures of the state.
    pub(crate) async fn members(&self, is_linearizable: bool) -> Result<Vec<Member>, Status> {
        if is_linearizable {
            self.read_barrier().await?;
        }
        let metrics = self.inner.raft.server_metrics();
        let membership = metrics.borrow_watched().committed_membership_config.clone();
        self.members_of(&membership).await
    }

    pub(super) async fn members_of(&self, membership: &Membership) -> Result<Vec<Member>, Status> {
        let mut attributes = self.attributes().await?;
        let voters: Vec<u64> = membership.membership().voter_ids().collect();
        let member = |(id, peer): (&u64, &crate::types::Peer)| {
            let own = attributes.remove(id).unwrap_or_default();
            Member {
                id: *id,
                name: own.name,
                peer_ur_ls: peer.urls.clone(),
                client_ur_ls: own.client_urls,
                // A voter to be counts as a voter: it was added as one.
                is_learner: !voters.contains(id) && !peer.is_voter_soon,
            }
        };
        Ok(membership.membership().nodes().map(member).collect())
    }
}
