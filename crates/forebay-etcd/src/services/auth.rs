//! The Auth service: users and roles are off, and cannot be turned on.

use std::future::ready;

use tonic::{Request, Response};

use super::Context;
use crate::answer::{Answer, forward};
use crate::proto::etcdserverpb::auth_server::Auth;
use crate::proto::etcdserverpb::*;
use crate::refusal::Refusal;

/// The service.
#[derive(Clone)]
pub(crate) struct NoAuth {
    pub(super) context: Context,
}

/// Refuses these calls as etcd does while authentication is off.
macro_rules! not_enabled {
    ($($call:ident($request:ident) -> $response:ident;)*) => {
        impl NoAuth {
            $(fn $call(&self, _: Request<$request>) -> Answer<'_, Response<$response>> {
                Box::pin(ready(Err(Refusal::AuthNotEnabled.into())))
            })*
        }

        impl Auth for NoAuth {
            forward! {
                auth_status(AuthStatusRequest) -> AuthStatusResponse;
                auth_enable(AuthEnableRequest) -> AuthEnableResponse;
                user_list(AuthUserListRequest) -> AuthUserListResponse;
                role_list(AuthRoleListRequest) -> AuthRoleListResponse;
                $($call($request) -> $response;)*
            }
        }
    };
}

impl NoAuth {
    fn header(&self) -> Option<ResponseHeader> {
        Some(self.context.node.header(self.context.hub.revision()))
    }

    fn auth_status(&self, _: Request<AuthStatusRequest>) -> Answer<'_, Response<AuthStatusResponse>> {
        let header = self.header();
        Box::pin(ready(Ok(Response::new(AuthStatusResponse { header, enabled: false, auth_revision: 1 }))))
    }

    /// It needs the user root, and there are no users.
    fn auth_enable(&self, _: Request<AuthEnableRequest>) -> Answer<'_, Response<AuthEnableResponse>> {
        Box::pin(ready(Err(Refusal::RootUserNotExist.into())))
    }

    fn user_list(&self, _: Request<AuthUserListRequest>) -> Answer<'_, Response<AuthUserListResponse>> {
        let header = self.header();
        Box::pin(ready(Ok(Response::new(AuthUserListResponse { header, users: Vec::new() }))))
    }

    fn role_list(&self, _: Request<AuthRoleListRequest>) -> Answer<'_, Response<AuthRoleListResponse>> {
        let header = self.header();
        Box::pin(ready(Ok(Response::new(AuthRoleListResponse { header, roles: Vec::new() }))))
    }
}

not_enabled! {
    auth_disable(AuthDisableRequest) -> AuthDisableResponse;
    authenticate(AuthenticateRequest) -> AuthenticateResponse;
    user_add(AuthUserAddRequest) -> AuthUserAddResponse;
    user_get(AuthUserGetRequest) -> AuthUserGetResponse;
    user_delete(AuthUserDeleteRequest) -> AuthUserDeleteResponse;
    user_change_password(AuthUserChangePasswordRequest) -> AuthUserChangePasswordResponse;
    user_grant_role(AuthUserGrantRoleRequest) -> AuthUserGrantRoleResponse;
    user_revoke_role(AuthUserRevokeRoleRequest) -> AuthUserRevokeRoleResponse;
    role_add(AuthRoleAddRequest) -> AuthRoleAddResponse;
    role_get(AuthRoleGetRequest) -> AuthRoleGetResponse;
    role_delete(AuthRoleDeleteRequest) -> AuthRoleDeleteResponse;
    role_grant_permission(AuthRoleGrantPermissionRequest) -> AuthRoleGrantPermissionResponse;
    role_revoke_permission(AuthRoleRevokePermissionRequest) -> AuthRoleRevokePermissionResponse;
}
