//! Who may call what: the one check before all services.
//!
//! [`RULES`] has a row for each call. The guard looks a call up in it, and refuses one that has no row. Rules by the message are
//! asked by the service with [`Context::check`] and [`Context::permit`], which walk all of it; see [`crate::accounts`]. Reads are checked
//! after their barrier, on the view that they read. Writes are checked again when their entry is applied.

mod jwt;
mod password;
mod tokens;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tonic::codegen::http::{Extensions, HeaderMap};
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use self::jwt::Jwt;
use self::password::Passwords;
use self::tokens::Tokens;
use super::Context;
use crate::accounts::{Auth, Check, Token};
use crate::config::{AuthToken, Config};
use crate::listen::Caller;
use crate::proto::peer::Author;
use crate::refusal::Refusal;
use crate::start_error::StartError;

/// Where a call has its token. The second one is that of HTTP.
const TOKEN: [&str; 2] = ["token", "authorization"];
/// A call that a gateway makes for another caller has this, and the gateway's certificate.
const OF_GATEWAY: &str = "grpcgateway-accept";

/// Who may make a call while authentication is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Everybody. A token is not looked at.
    Open,
    /// Everybody. A token must be good.
    Anyone,
    /// Each user.
    User,
    /// Users with the role root.
    Root,
    /// Users, by what the message says: the service asks.
    Message,
    /// The same, and refusals are the service's to report: within its stream, or as those of calls that it makes itself.
    Within,
}

/// All calls.
pub(crate) const RULES: &[(&str, Rule)] = &[
    ("/etcdserverpb.KV/Range", Rule::Message),
    ("/etcdserverpb.KV/RangeStream", Rule::Message),
    ("/etcdserverpb.KV/Put", Rule::Message),
    ("/etcdserverpb.KV/DeleteRange", Rule::Message),
    ("/etcdserverpb.KV/Txn", Rule::Message),
    ("/etcdserverpb.KV/Compact", Rule::Root),
    ("/etcdserverpb.Watch/Watch", Rule::Within),
    ("/etcdserverpb.Lease/LeaseGrant", Rule::User),
    // All keys of the lease, as its entry is applied.
    ("/etcdserverpb.Lease/LeaseRevoke", Rule::Message),
    ("/etcdserverpb.Lease/LeaseKeepAlive", Rule::Within),
    ("/etcdserverpb.Lease/LeaseTimeToLive", Rule::Message),
    ("/etcdserverpb.Lease/LeaseLeases", Rule::Message),
    ("/etcdserverpb.Cluster/MemberAdd", Rule::Root),
    ("/etcdserverpb.Cluster/MemberRemove", Rule::Root),
    ("/etcdserverpb.Cluster/MemberUpdate", Rule::Root),
    ("/etcdserverpb.Cluster/MemberList", Rule::User),
    ("/etcdserverpb.Cluster/MemberPromote", Rule::Root),
    // To see alarms each user, to change them root.
    ("/etcdserverpb.Maintenance/Alarm", Rule::Message),
    ("/etcdserverpb.Maintenance/Status", Rule::User),
    ("/etcdserverpb.Maintenance/Defragment", Rule::Root),
    ("/etcdserverpb.Maintenance/Hash", Rule::Root),
    ("/etcdserverpb.Maintenance/HashKV", Rule::Root),
    ("/etcdserverpb.Maintenance/Snapshot", Rule::Root),
    ("/etcdserverpb.Maintenance/MoveLeader", Rule::Root),
    ("/etcdserverpb.Maintenance/Downgrade", Rule::Root),
    ("/etcdserverpb.Auth/AuthEnable", Rule::Root),
    ("/etcdserverpb.Auth/AuthDisable", Rule::Root),
    ("/etcdserverpb.Auth/AuthStatus", Rule::Anyone),
    ("/etcdserverpb.Auth/Authenticate", Rule::Open),
    ("/etcdserverpb.Auth/UserAdd", Rule::Root),
    // Oneself, or root.
    ("/etcdserverpb.Auth/UserGet", Rule::Message),
    ("/etcdserverpb.Auth/UserList", Rule::Root),
    ("/etcdserverpb.Auth/UserDelete", Rule::Root),
    ("/etcdserverpb.Auth/UserChangePassword", Rule::Root),
    ("/etcdserverpb.Auth/UserGrantRole", Rule::Root),
    ("/etcdserverpb.Auth/UserRevokeRole", Rule::Root),
    ("/etcdserverpb.Auth/RoleAdd", Rule::Root),
    // One's own roles, or root.
    ("/etcdserverpb.Auth/RoleGet", Rule::Message),
    ("/etcdserverpb.Auth/RoleList", Rule::Root),
    ("/etcdserverpb.Auth/RoleDelete", Rule::Root),
    ("/etcdserverpb.Auth/RoleGrantPermission", Rule::Root),
    ("/etcdserverpb.Auth/RoleRevokePermission", Rule::Root),
    // The keys of the queue, in the calls that these make.
    ("/v3lockpb.Lock/Lock", Rule::Within),
    ("/v3lockpb.Lock/Unlock", Rule::Within),
    ("/v3electionpb.Election/Campaign", Rule::Within),
    ("/v3electionpb.Election/Proclaim", Rule::Within),
    ("/v3electionpb.Election/Leader", Rule::Within),
    ("/v3electionpb.Election/Observe", Rule::Within),
    ("/v3electionpb.Election/Resign", Rule::Within),
    ("/grpc.health.v1.Health/Check", Rule::Open),
    ("/grpc.health.v1.Health/List", Rule::Open),
    ("/grpc.health.v1.Health/Watch", Rule::Open),
];

/// How a call shows who makes it.
#[derive(Clone, Copy)]
pub(super) struct Marks<'a> {
    token: Option<&'a str>,
    common_name: Option<&'a str>,
}

impl<'a> Marks<'a> {
    /// Returns those of a call. Over a gateway a certificate is not the caller's.
    pub(super) fn of(headers: &'a HeaderMap, extensions: &'a Extensions) -> Marks<'a> {
        let token = TOKEN.iter().find_map(|name| headers.get(*name));
        // A token that is not text is invalid.
        let token = token.map(|token| token.to_str().unwrap_or_default());
        let caller = extensions.get::<Caller>().filter(|_| !headers.contains_key(OF_GATEWAY));
        Marks {
            token: token.map(|token| token.strip_prefix("Bearer ").unwrap_or(token)),
            common_name: caller.and_then(|caller| caller.common_name.as_deref()),
        }
    }
}

pub(super) fn has_token(headers: &HeaderMap) -> bool {
    TOKEN.iter().any(|name| headers.contains_key(*name))
}

/// The part of a request that has the marks of its caller. They are looked for while authentication is on alone.
#[derive(Clone, Default)]
pub(super) struct Credentials {
    metadata: MetadataMap,
    extensions: Extensions,
}

impl Credentials {
    /// Extracts a request's credentials from its message.
    pub(super) fn split<T>(request: Request<T>) -> (Credentials, T) {
        let (metadata, extensions, message) = request.into_parts();
        (Credentials { metadata, extensions }, message)
    }

    /// Returns a copy of a request's.
    pub(super) fn of<T>(request: &Request<T>) -> Credentials {
        Credentials { metadata: request.metadata().clone(), extensions: request.extensions().clone() }
    }

    /// Returns a copy of a call's.
    pub(super) fn of_call(headers: &HeaderMap, extensions: &Extensions) -> Credentials {
        Credentials { metadata: MetadataMap::from_headers(headers.clone()), extensions: extensions.clone() }
    }

    /// Returns a request of the server to itself, for the same caller.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        Request::from_parts(self.metadata.clone(), self.extensions.clone(), message)
    }

    fn marks(&self) -> Marks<'_> {
        Marks::of(self.metadata.as_ref(), &self.extensions)
    }
}

/// Users and roles as this member has applied them, and the tokens that were given out.
#[derive(Debug, Default)]
pub(crate) struct Users {
    is_on: AtomicBool,
    /// A barrier has shown that authentication is off, and nothing has changed since.
    is_off_confirmed: AtomicBool,
    auth: Mutex<Arc<Auth>>,
    tokens: Mutex<Tokens>,
}

impl Users {
    /// Returns whether authentication is on, as far as this member knows.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    pub(crate) fn now(&self) -> Arc<Auth> {
        self.auth.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn tokens(&self) -> MutexGuard<'_, Tokens> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, auth: Arc<Auth>) {
        let is_on = auth.is_enabled();
        *self.auth.lock().unwrap_or_else(PoisonError::into_inner) = auth;
        self.is_on.store(is_on, Ordering::Release);
        self.is_off_confirmed.store(false, Ordering::Release);
    }

    /// Returns whether a barrier has shown that authentication is off. Until then a call with a token says that it may be on, and not
    /// applied here.
    pub(super) fn is_off_confirmed(&self) -> bool {
        self.is_off_confirmed.load(Ordering::Acquire)
    }

    /// Adopts those of a state. It has no tokens: their users request new ones.
    pub(super) fn opened(&self, auth: Arc<Auth>) {
        self.tokens().retain(|_| false);
        self.set(auth);
    }

    /// Applies a change. Tokens end with the password for which they were issued.
    pub(super) fn changed(&self, auth: Arc<Auth>) {
        let before = self.now();
        let password = |auth: &Auth, user: &str| auth.user(user).map(|user| user.password.clone());
        self.tokens().retain(|user| auth.is_enabled() && password(&before, user) == password(&auth, user));
        self.set(auth);
    }

    /// Sets how long tokens live.
    pub(super) fn set_ttl(&self, authentication: &Authentication) {
        self.tokens().set_ttl(authentication.ttl);
    }

    pub(super) fn given_out(&self, token: Token) {
        self.tokens().insert(token);
    }
}

/// How callers show who they are.
#[derive(Debug)]
pub(crate) struct Authentication {
    /// `None` for simple tokens.
    jwt: Option<Jwt>,
    ttl: Duration,
    /// The common name of a certificate is the user's, in a call without a token.
    is_certificate_user: bool,
    pub(super) passwords: Passwords,
}

impl Authentication {
    /// # Errors
    /// A key that cannot be used.
    pub(crate) fn open(config: &Config) -> Result<Authentication, StartError> {
        let (jwt, ttl) = match &config.auth_token {
            AuthToken::Simple(ttl) => (None, *ttl),
            AuthToken::Jwt(options) => (Some(Jwt::open(options)?), options.ttl),
        };
        let is_certificate_user = config.client_tls.is_client_cert_required;
        Ok(Authentication { jwt, ttl, is_certificate_user, passwords: Passwords::new(config.bcrypt_cost) })
    }

    pub(super) fn jwt(&self) -> Option<&Jwt> {
        self.jwt.as_ref()
    }
}

impl Context {
    /// Returns who makes a call.
    fn author_in(&self, auth: &Auth, by: Marks<'_>) -> Result<Author, Refusal> {
        let author = |user: &str, revision| Author { user: user.to_owned(), revision, is_server: false };
        let now = auth.revision();
        if let Some(token) = by.token {
            let known = match &self.authentication.jwt {
                Some(jwt) => jwt.verified(token).map(|(user, revision)| author(&user, revision)),
                None => self.users.tokens().user(token).map(|user| author(&user, now)),
            };
            return known.ok_or(Refusal::InvalidAuthToken);
        }
        let name = by.common_name.filter(|_| self.authentication.is_certificate_user);
        name.filter(|name| !name.is_empty()).map(|name| author(name, now)).ok_or(Refusal::UserEmpty)
    }

    /// Returns who makes a call; `None` while authentication is off.
    pub(super) fn author(&self, by: &Credentials) -> Result<Option<Author>, Refusal> {
        if !self.users.is_on() {
            return Ok(None);
        }
        self.author_in(&self.users.now(), by.marks()).map(Some)
    }

    /// Returns the author of changes that the server makes by itself; `None` while authentication is off.
    pub(super) fn own_author(&self) -> Option<Author> {
        self.users.is_on().then(|| Author { is_server: true, ..Author::default() })
    }

    /// Refuses a call with a need that its caller has no permission for, as far as this member knows: for reads, after the view is there that
    /// they read. Returns who calls; `None` while authentication is off.
    pub(super) fn check(
        &self,
        by: &Credentials,
        needs: impl FnOnce(&mut Check<'_>) -> Result<(), Refusal>,
    ) -> Result<Option<Author>, Refusal> {
        if !self.users.is_on() {
            return Ok(None);
        }
        let auth = self.users.now();
        let author = self.author_in(&auth, by.marks())?;
        let permit = auth.permit(Some(&author))?;
        needs(&mut |need| permit.check(need))?;
        Ok(Some(author))
    }

    /// The same for writes, which have no barrier: this member may not have applied yet a grant of another one.
    pub(super) async fn permit(
        &self,
        by: &Credentials,
        needs: impl Fn(&mut Check<'_>) -> Result<(), Refusal> + Send + Sync,
    ) -> Result<Option<Author>, Status> {
        match self.check(by, &needs) {
            Ok(author) => return Ok(author),
            Err(Refusal::UserEmpty) => return Err(Refusal::UserEmpty.into()),
            Err(_) => {}
        }
        self.node.read_barrier().await?;
        Ok(self.check(by, &needs)?)
    }

    /// Refuses calls on leases with a key that the caller may not write.
    pub(super) async fn permit_leases(&self, by: &Credentials, ids: &[i64]) -> Result<(), Status> {
        if !self.users.is_on() {
            return Ok(());
        }
        self.node.read_barrier().await?;
        let view = self.node.view().await?;
        let Some((auth, author)) = self.unless_root(by)? else { return Ok(()) };
        match view.check_leases(auth.permit(Some(&author))?, ids).await {
            Ok(()) => Ok(()),
            Err(failure) => Err(self.node.unread_in(&view, failure).await),
        }
    }

    /// Returns users and roles with who makes a call; `None` for root, and while authentication is off.
    pub(super) fn unless_root(&self, by: &Credentials) -> Result<Option<(Arc<Auth>, Author)>, Refusal> {
        if !self.users.is_on() {
            return Ok(None);
        }
        let auth = self.users.now();
        let author = self.author_in(&auth, by.marks())?;
        let is_root = auth.check_root(Some(&author)).is_ok();
        Ok((!is_root).then_some((auth, author)))
    }

    /// Returns why a call may not be made, as far as this member knows; `None` if it may, or if its service reports that.
    pub(super) fn refusal(&self, path: &str, by: Marks<'_>) -> Option<Refusal> {
        if !self.users.is_on() {
            return None;
        }
        match RULES.iter().find(|(of, _)| *of == path) {
            // Without a user its own refusal is the same.
            Some((_, Rule::Within)) => {
                self.asked(Rule::Within, by).err().filter(|of| *of != Refusal::UserEmpty)
            }
            Some((_, rule)) => self.asked(*rule, by).err(),
            None => Some(Refusal::PermissionDenied),
        }
    }

    /// Refuses a call that may not be made, with all applied that was changed before it.
    pub(super) async fn admit(&self, path: &str, by: &Credentials) -> Result<(), Status> {
        self.node.read_barrier().await?;
        if !self.users.is_on() {
            self.users.is_off_confirmed.store(true, Ordering::Release);
        }
        let is_within = RULES.iter().any(|(of, rule)| *of == path && *rule == Rule::Within);
        self.refusal(path, by.marks()).filter(|_| !is_within).map_or(Ok(()), |refusal| Err(refusal.into()))
    }

    /// Refuses a call by a rule, with all applied that was changed before it.
    pub(super) async fn admit_by(&self, rule: Rule, by: &Credentials) -> Result<(), Status> {
        self.node.read_barrier().await?;
        Ok(self.asked(rule, by.marks())?)
    }

    fn asked(&self, rule: Rule, by: Marks<'_>) -> Result<(), Refusal> {
        if !self.users.is_on() || rule == Rule::Open {
            return Ok(());
        }
        let auth = self.users.now();
        match (rule, self.author_in(&auth, by)) {
            (Rule::Anyone, Err(Refusal::UserEmpty)) => Ok(()),
            (Rule::Root, author) => auth.check_root(Some(&author?)),
            (_, author) => author.map(drop),
        }
    }
}

#[cfg(test)]
mod tests;
