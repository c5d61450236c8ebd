//! The Cluster service.

use tonic::{Request, Response};

use super::Context;
use crate::answer::{Answer, forward};
use crate::proto::etcdserverpb::cluster_server::Cluster;
use crate::proto::etcdserverpb::{
    MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest,
    MemberUpdateResponse, ResponseHeader,
};
use crate::proto::peer::member_change::Change;

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

impl Members {
    fn member_add(&self, request: Request<MemberAddRequest>) -> Answer<'_, Response<MemberAddResponse>> {
        Box::pin(async move {
            let changed = self.context.node.change_members(Change::Add(request.into_inner())).await?;
            let (member, members) = (changed.member, changed.members);
            Ok(Response::new(MemberAddResponse { header: self.header(), member, members }))
        })
    }

    fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Answer<'_, Response<MemberRemoveResponse>> {
        Box::pin(async move {
            let changed = self.context.node.change_members(Change::Remove(request.into_inner())).await?;
            Ok(Response::new(MemberRemoveResponse { header: self.header(), members: changed.members }))
        })
    }

    fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Answer<'_, Response<MemberUpdateResponse>> {
        Box::pin(async move {
            let changed = self.context.node.change_members(Change::Update(request.into_inner())).await?;
            Ok(Response::new(MemberUpdateResponse { header: self.header(), members: changed.members }))
        })
    }

    fn member_list(&self, request: Request<MemberListRequest>) -> Answer<'_, Response<MemberListResponse>> {
        Box::pin(async move {
            let members = self.context.node.members(request.get_ref().linearizable).await?;
            Ok(Response::new(MemberListResponse { header: self.header(), members }))
        })
    }

    fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Answer<'_, Response<MemberPromoteResponse>> {
        Box::pin(async move {
            let changed = self.context.node.change_members(Change::Promote(request.into_inner())).await?;
            Ok(Response::new(MemberPromoteResponse { header: self.header(), members: changed.members }))
        })
    }
}

impl Cluster for Members {
    forward! {
        member_add(MemberAddRequest) -> MemberAddResponse;
        member_remove(MemberRemoveRequest) -> MemberRemoveResponse;
        member_update(MemberUpdateRequest) -> MemberUpdateResponse;
        member_list(MemberListRequest) -> MemberListResponse;
        member_promote(MemberPromoteRequest) -> MemberPromoteResponse;
    }
}
