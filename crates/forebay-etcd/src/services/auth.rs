//! The Auth service: users and roles are off, and cannot be turned on.

use tonic::{Request, Response, Status};

use super::Context;
use crate::proto::etcdserverpb::auth_server::Auth;
use crate::proto::etcdserverpb::*;
use crate::refusal::Refusal;

/// The service.
#[derive(Clone)]
pub(crate) struct NoAuth {
    pub(super) context: Context,
}

/// Refuses a call as etcd does while authentication is off.
macro_rules! not_enabled {
    ($($call:ident($request:ident) -> $response:ident;)*) => {
        #[tonic::async_trait]
        impl Auth for NoAuth {
            async fn auth_status(
                &self,
                _: Request<AuthStatusRequest>,
            ) -> Result<Response<AuthStatusResponse>, Status> {
                let header = Some(self.context.node.header(self.context.hub.revision()));
                Ok(Response::new(AuthStatusResponse { header, enabled: false, auth_revision: 1 }))
            }

            /// It needs the user root, and there are no users.
            async fn auth_enable(
                &self,
                _: Request<AuthEnableRequest>,
            ) -> Result<Response<AuthEnableResponse>, Status> {
                Err(Refusal::RootUserNotExist.into())
            }

            async fn user_list(
                &self,
                _: Request<AuthUserListRequest>,
            ) -> Result<Response<AuthUserListResponse>, Status> {
                let header = Some(self.context.node.header(self.context.hub.revision()));
                Ok(Response::new(AuthUserListResponse { header, users: Vec::new() }))
            }

            async fn role_list(
                &self,
                _: Request<AuthRoleListRequest>,
            ) -> Result<Response<AuthRoleListResponse>, Status> {
                let header = Some(self.context.node.header(self.context.hub.revision()));
                Ok(Response::new(AuthRoleListResponse { header, roles: Vec::new() }))
            }

            $(async fn $call(&self, _: Request<$request>) -> Result<Response<$response>, Status> {
                Err(Refusal::AuthNotEnabled.into())
            })*
        }
    };
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
