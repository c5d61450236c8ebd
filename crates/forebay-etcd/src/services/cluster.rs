//! The Cluster service.

use tonic::{Request, Response, Status};

use super::Context;
use crate::proto::etcdserverpb::cluster_server::Cluster;
use crate::proto::etcdserverpb::{
    MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest,
    MemberUpdateResponse, ResponseHeader,
};
use crate::proto::peer::member_change::Change;

/// The service.
#[derive(Clone)]
pub(crate) struct Members {
    pub(super) context: Context,
}

impl Members {
    fn header(&self) -> Option<ResponseHeader> {
        // etcd's own has no revision here.
        Some(ResponseHeader { revision: 0, ..self.context.node.header(0) })
    }
}

#[tonic::async_trait]
impl Cluster for Members {
    async fn member_add(
        &self,
        request: Request<MemberAddRequest>,
    ) -> Result<Response<MemberAddResponse>, Status> {
        let changed = self.context.node.change_members(Change::Add(request.into_inner())).await?;
        let (member, members) = (changed.member, changed.members);
        Ok(Response::new(MemberAddResponse { header: self.header(), member, members }))
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        let changed = self.context.node.change_members(Change::Remove(request.into_inner())).await?;
        Ok(Response::new(MemberRemoveResponse { header: self.header(), members: changed.members }))
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        let changed = self.context.node.change_members(Change::Update(request.into_inner())).await?;
        Ok(Response::new(MemberUpdateResponse { header: self.header(), members: changed.members }))
    }

    async fn member_list(
        &self,
        request: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        let members = self.context.node.members(request.get_ref().linearizable).await?;
        Ok(Response::new(MemberListResponse { header: self.header(), members }))
    }

    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        let changed = self.context.node.change_members(Change::Promote(request.into_inner())).await?;
        Ok(Response::new(MemberPromoteResponse { header: self.header(), members: changed.members }))
    }
}
