//! The Auth service: users and roles.
//!
//! Changes are entries of the log, and hold hashes of passwords alone. They are proposed once all members know such entries. A user has a
//! token for its password: a simple one is an entry too, with the revision of users and roles as of which the password was right, and
//! refused if they have changed since.

use prost::Message;
use ring::rand::{SecureRandom, SystemRandom};
use tonic::{Request, Response, Status};

use super::Context;
use super::rights::{Credentials, Rule};
use crate::accounts::has_no_password;
use crate::answer::{Answer, forward};
use crate::proto::authpb::User;
use crate::proto::etcdserverpb::auth_server::Auth;
use crate::proto::etcdserverpb::*;
use crate::proto::peer::auth_change::Change;
use crate::proto::peer::{AuthChange, TokenRequest, command};
use crate::refusal::Refusal;

/// Letters of a token, before the index of its entry.
const LETTERS: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
const TOKEN_LETTERS: usize = 22;

#[derive(Clone)]
pub(crate) struct Accounts {
    pub(super) context: Context,
}

/// Returns the prefix of a token, which cannot be guessed.
fn token_prefix() -> Result<String, Status> {
    let mut bytes = [0; TOKEN_LETTERS];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Status::internal("the system gives no random bytes for a token"))?;
    Ok(bytes.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect())
}

/// Returns an estimate of the space of a change, as of a put: 0 for a change that adds nothing.
fn cost_bytes(change: &Change) -> u64 {
    let bytes = match change {
        Change::AddUser(user) => user.encoded_len(),
        Change::GrantRole(request) => request.encoded_len(),
        Change::AddRole(request) => request.encoded_len(),
        Change::GrantPermission(request) => request.encoded_len(),
        _ => return 0,
    };
    256 + bytes as u64
}

impl Accounts {
    fn header(&self) -> Option<ResponseHeader> {
        Some(self.context.node.header(self.context.hub.revision()))
    }

    /// Has a change of users and roles applied.
    async fn change(&self, by: &Credentials, change: Change) -> Result<Option<ResponseHeader>, Status> {
        let (context, author) = (&self.context, self.context.author(by)?);
        context.check_room(cost_bytes(&change)).await?;
        let change = command::Change::Auth(AuthChange { change: Some(change) });
        let revision = context.change_in_steps(author, change, Refusal::RoleNotFound).await?;
        Ok(Some(context.node.header(revision)))
    }

    /// Waits for what was changed before, and asks once more for the role root.
    async fn root_reads<T>(&self, request: Request<T>) -> Result<(), Status> {
        let (by, _) = Credentials::split(request);
        self.context.admit_by(Rule::Root, &by).await
    }

    async fn token(&self, name: String, password: String) -> Result<String, Status> {
        let context = &self.context;
        context.node.read_barrier().await?;
        loop {
            let auth = context.users.now();
            if !auth.is_enabled() {
                return Err(Refusal::AuthNotEnabled.into());
            }
            let user = auth.user(&name).ok_or(Refusal::AuthFailed)?;
            if has_no_password(user) {
                return Err(Refusal::NoPasswordUser.into());
            }
            if !context.authentication.passwords.is_of(user.password.clone(), password.clone()).await? {
                return Err(Refusal::AuthFailed.into());
            }
            let revision = auth.revision();
            if let Some(jwt) = context.authentication.jwt() {
                return Ok(jwt.sign(&name, revision)?);
            }
            let prefix = token_prefix()?;
            let request = TokenRequest { user: name.clone(), prefix: prefix.clone(), revision };
            let change = Change::AssignToken(request);
            let change = command::Change::Auth(AuthChange { change: Some(change) });
            let (outcome, index) = context.node.propose(change).await?;
            match super::result_of(outcome) {
                Ok(_) => return Ok(format!("{prefix}.{index}")),
                // Users and roles have changed since the password was compared, and are known here by now.
                Err(status) if status.message() == Refusal::AuthOldRevision.text() => {}
                Err(status) => return Err(status),
            }
        }
    }
}

/// Calls whose message is a change as it is.
macro_rules! changes {
    ($($call:ident($request:ident) -> $response:ident = $change:ident;)*) => {
        impl Accounts {
            $(fn $call(&self, request: Request<$request>) -> Answer<'_, Response<$response>> {
                Box::pin(async move {
                    let (by, request) = Credentials::split(request);
                    let header = self.change(&by, Change::$change(request)).await?;
                    Ok(Response::new($response { header }))
                })
            })*
        }
    };
}

changes! {
    auth_enable(AuthEnableRequest) -> AuthEnableResponse = Enable;
    auth_disable(AuthDisableRequest) -> AuthDisableResponse = Disable;
    user_delete(AuthUserDeleteRequest) -> AuthUserDeleteResponse = DeleteUser;
    user_grant_role(AuthUserGrantRoleRequest) -> AuthUserGrantRoleResponse = GrantRole;
    user_revoke_role(AuthUserRevokeRoleRequest) -> AuthUserRevokeRoleResponse = RevokeRole;
    role_add(AuthRoleAddRequest) -> AuthRoleAddResponse = AddRole;
    role_delete(AuthRoleDeleteRequest) -> AuthRoleDeleteResponse = DeleteRole;
    role_grant_permission(AuthRoleGrantPermissionRequest) -> AuthRoleGrantPermissionResponse = GrantPermission;
    role_revoke_permission(AuthRoleRevokePermissionRequest) -> AuthRoleRevokePermissionResponse = RevokePermission;
}

impl Accounts {
    fn auth_status(&self, _: Request<AuthStatusRequest>) -> Answer<'_, Response<AuthStatusResponse>> {
        Box::pin(async move {
            self.context.node.read_barrier().await?;
            let auth = self.context.users.now();
            let (enabled, auth_revision) = (auth.is_enabled(), auth.revision());
            Ok(Response::new(AuthStatusResponse { header: self.header(), enabled, auth_revision }))
        })
    }

    fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Answer<'_, Response<AuthenticateResponse>> {
        Box::pin(async move {
            let AuthenticateRequest { name, password } = request.into_inner();
            let token = self.token(name, password).await?;
            Ok(Response::new(AuthenticateResponse { header: self.header(), token }))
        })
    }

    fn user_add(&self, request: Request<AuthUserAddRequest>) -> Answer<'_, Response<AuthUserAddResponse>> {
        Box::pin(async move {
            let (by, request) = Credentials::split(request);
            let AuthUserAddRequest { name, password, options, hashed_password } = request;
            let hashes = options.as_ref().is_none_or(|options| !options.no_password);
            if hashes && !hashed_password.is_empty() {
                return Err(Refusal::InvalidAuthMgmt.into());
            }
            let password =
                if hashes { self.context.authentication.passwords.hash(password).await? } else { Vec::new() };
            let user = User { name: name.into_bytes(), password, roles: Vec::new(), options };
            let header = self.change(&by, Change::AddUser(user)).await?;
            Ok(Response::new(AuthUserAddResponse { header }))
        })
    }

    fn user_change_password(
        &self,
        request: Request<AuthUserChangePasswordRequest>,
    ) -> Answer<'_, Response<AuthUserChangePasswordResponse>> {
        Box::pin(async move {
            let (by, request) = Credentials::split(request);
            let AuthUserChangePasswordRequest { name, password, hashed_password } = request;
            if !hashed_password.is_empty() {
                return Err(Refusal::InvalidAuthMgmt.into());
            }
            // An empty password belongs to no user.
            let password = if password.is_empty() {
                Vec::new()
            } else {
                self.context.authentication.passwords.hash(password).await?
            };
            let user = User { name: name.into_bytes(), password, ..User::default() };
            let header = self.change(&by, Change::ChangePassword(user)).await?;
            Ok(Response::new(AuthUserChangePasswordResponse { header }))
        })
    }

    fn user_get(&self, request: Request<AuthUserGetRequest>) -> Answer<'_, Response<AuthUserGetResponse>> {
        Box::pin(async move {
            self.context.node.read_barrier().await?;
            let (by, AuthUserGetRequest { name }) = Credentials::split(request);
            if let Some((auth, author)) = self.context.unless_root(&by)?
                && author.user != name
            {
                auth.check_root(Some(&author))?;
            }
            let auth = self.context.users.now();
            let roles = auth.user(&name).ok_or(Refusal::UserNotFound)?.roles.clone();
            Ok(Response::new(AuthUserGetResponse { header: self.header(), roles }))
        })
    }

    fn user_list(&self, request: Request<AuthUserListRequest>) -> Answer<'_, Response<AuthUserListResponse>> {
        Box::pin(async move {
            self.root_reads(request).await?;
            let users = self.context.users.now().users().map(|(name, _)| name.to_owned()).collect();
            Ok(Response::new(AuthUserListResponse { header: self.header(), users }))
        })
    }

    fn role_get(&self, request: Request<AuthRoleGetRequest>) -> Answer<'_, Response<AuthRoleGetResponse>> {
        Box::pin(async move {
            self.context.node.read_barrier().await?;
            let (by, AuthRoleGetRequest { role }) = Credentials::split(request);
            if let Some((auth, author)) = self.context.unless_root(&by)?
                && !auth.has_role(&author, &role)
            {
                auth.check_root(Some(&author))?;
            }
            let perm = self.context.users.now().permissions(&role)?;
            Ok(Response::new(AuthRoleGetResponse { header: self.header(), perm }))
        })
    }

    fn role_list(&self, request: Request<AuthRoleListRequest>) -> Answer<'_, Response<AuthRoleListResponse>> {
        Box::pin(async move {
            self.root_reads(request).await?;
            let roles = self.context.users.now().roles().map(|(name, _)| name.to_owned()).collect();
            Ok(Response::new(AuthRoleListResponse { header: self.header(), roles }))
        })
    }
}

impl Auth for Accounts {
    forward! {
        auth_enable(AuthEnableRequest) -> AuthEnableResponse;
        auth_disable(AuthDisableRequest) -> AuthDisableResponse;
        auth_status(AuthStatusRequest) -> AuthStatusResponse;
        authenticate(AuthenticateRequest) -> AuthenticateResponse;
        user_add(AuthUserAddRequest) -> AuthUserAddResponse;
        user_get(AuthUserGetRequest) -> AuthUserGetResponse;
        user_list(AuthUserListRequest) -> AuthUserListResponse;
        user_delete(AuthUserDeleteRequest) -> AuthUserDeleteResponse;
        user_change_password(AuthUserChangePasswordRequest) -> AuthUserChangePasswordResponse;
        user_grant_role(AuthUserGrantRoleRequest) -> AuthUserGrantRoleResponse;
        user_revoke_role(AuthUserRevokeRoleRequest) -> AuthUserRevokeRoleResponse;
        role_add(AuthRoleAddRequest) -> AuthRoleAddResponse;
        role_get(AuthRoleGetRequest) -> AuthRoleGetResponse;
        role_list(AuthRoleListRequest) -> AuthRoleListResponse;
        role_delete(AuthRoleDeleteRequest) -> AuthRoleDeleteResponse;
        role_grant_permission(AuthRoleGrantPermissionRequest) -> AuthRoleGrantPermissionResponse;
        role_revoke_permission(AuthRoleRevokePermissionRequest) -> AuthRoleRevokePermissionResponse;
    }
}
