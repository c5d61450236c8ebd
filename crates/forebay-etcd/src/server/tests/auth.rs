//! Users and roles by gRPC: who may make which calls, and the checks of entries that are on their way.

use futures_util::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::cluster::{Cluster, Member, made, settled, until, within};
use super::ranges::{fill, unread_streams};
use crate::mvcc::View;
use crate::proto::authpb::permission::Type;
use crate::proto::authpb::{Permission, UserAddOptions};
use crate::proto::etcdserverpb::auth_client::AuthClient;
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::lease_client::LeaseClient;
use crate::proto::etcdserverpb::request_op::Request as Op;
use crate::proto::etcdserverpb::watch_client::WatchClient;
use crate::proto::etcdserverpb::watch_request::RequestUnion;
use crate::proto::etcdserverpb::*;
use crate::proto::peer::Author;
use crate::proto::peer::command::Change;
use crate::proto::peer::outcome::Result as Outcome;
use crate::proto::v3lockpb::LockRequest;
use crate::proto::v3lockpb::lock_client::LockClient;
use crate::refusal::Refusal;
use crate::services::{RULES, Rule};

const CHEAP: &[&str] = &["--bcrypt-cost=4"];
const DENIED: (Code, &str) = (Code::PermissionDenied, "etcdserver: permission denied");
const NOBODY: (Code, &str) = (Code::InvalidArgument, "etcdserver: user name is empty");
const NO_TOKEN: (Code, &str) = (Code::Unauthenticated, "etcdserver: invalid auth token");
const OLD: (Code, &str) = (Code::InvalidArgument, "etcdserver: revision of auth store is old");

/// Makes a call with a token, until its outcome is known.
macro_rules! ask {
    ($client:expr, $call:ident, $token:expr, $message:expr) => {
        settled(async || $client.$call(by($token, $message)).await).await.map(tonic::Response::into_inner)
    };
}

fn channel(member: &Member) -> Channel {
    Endpoint::from_shared(format!("http://{}:2379", member.address)).unwrap().connect_lazy()
}

/// A request with a token, if it is not empty.
fn by<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        request.metadata_mut().insert("token", token.parse().unwrap());
    }
    request
}

fn refusal<T>(refused: Result<T, Status>) -> (Code, String) {
    let status = refused.map(|_| ()).unwrap_err();
    (status.code(), status.message().to_owned())
}

fn is((code, text): (Code, &str)) -> (Code, String) {
    (code, text.to_owned())
}

/// Clients of a member's services.
struct Clients {
    auth: AuthClient<Channel>,
    keys: KvClient<Channel>,
    leases: LeaseClient<Channel>,
    watches: WatchClient<Channel>,
}

impl Clients {
    fn of(member: &Member) -> Clients {
        let channel = channel(member);
        Clients {
            auth: AuthClient::new(channel.clone()),
            keys: KvClient::new(channel.clone()),
            leases: LeaseClient::new(channel.clone()),
            watches: WatchClient::new(channel),
        }
    }

    async fn user(&mut self, token: &str, name: &str, roles: &[&str]) {
        let password = format!("{name}'s");
        let add = AuthUserAddRequest { name: name.into(), password, ..Default::default() };
        made(ask!(self.auth, user_add, token, add.clone()), Refusal::UserExists);
        for role in roles {
            let grant = AuthUserGrantRoleRequest { user: name.into(), role: (*role).into() };
            ask!(self.auth, user_grant_role, token, grant.clone()).unwrap();
        }
    }

    /// Gives a role permissions, and makes it where it is not there.
    async fn role(&mut self, token: &str, name: &str, permissions: &[(Type, &str, &str)]) {
        let add = AuthRoleAddRequest { name: name.into() };
        made(ask!(self.auth, role_add, token, add.clone()), Refusal::RoleExists);
        for (kind, key, range_end) in permissions {
            let perm =
                Permission { perm_type: (*kind).into(), key: (*key).into(), range_end: (*range_end).into() };
            let grant = AuthRoleGrantPermissionRequest { name: name.into(), perm: Some(perm) };
            ask!(self.auth, role_grant_permission, token, grant.clone()).unwrap();
        }
    }

    async fn revoke(&mut self, token: &str, role: &str, key: &str, range_end: &str) {
        let request = AuthRoleRevokePermissionRequest {
            role: role.into(),
            key: key.into(),
            range_end: range_end.into(),
        };
        let revoked = ask!(self.auth, role_revoke_permission, token, request.clone());
        made(revoked, Refusal::PermissionNotGranted);
    }

    async fn token(&mut self, name: &str) -> String {
        self.token_for(name, &format!("{name}'s")).await.unwrap()
    }

    async fn token_for(&mut self, name: &str, password: &str) -> Result<String, Status> {
        let request = AuthenticateRequest { name: name.into(), password: password.into() };
        ask!(self.auth, authenticate, "", request.clone()).map(|response| response.token)
    }

    /// Makes the user root, and turns authentication on. Returns root's token.
    async fn enable(&mut self) -> String {
        self.user("", "root", &["root"]).await;
        // Once it is on, the same again needs a user.
        made(ask!(self.auth, auth_enable, "", AuthEnableRequest {}), Refusal::UserEmpty);
        self.token("root").await
    }

    /// Returns the revision of users and roles.
    async fn auth_revision(&mut self) -> u64 {
        ask!(self.auth, auth_status, "", AuthStatusRequest {}).unwrap().auth_revision
    }

    /// Returns the revision of the keys.
    async fn revision(&mut self, token: &str) -> i64 {
        ask!(self.keys, range, token, get("none", "")).unwrap().header.unwrap().revision
    }

    async fn put(&mut self, token: &str, put: PutRequest) -> Result<PutResponse, Status> {
        ask!(self.keys, put, token, put.clone())
    }

    async fn txn(&mut self, token: &str, operations: Vec<Op>) -> Result<TxnResponse, Status> {
        let success = operations.into_iter().map(|request| RequestOp { request: Some(request) }).collect();
        let request = TxnRequest { success, ..Default::default() };
        ask!(self.keys, txn, token, request.clone())
    }

    /// Reads the first part of a RangeStream.
    async fn range_stream(&mut self, token: &str, key: &str) -> Result<(), Status> {
        settled(async || {
            let mut parts = self.keys.range_stream(by(token, get(key, ""))).await?.into_inner();
            parts.message().await.map(drop)
        })
        .await
    }

    /// Makes a watch, and returns why it was canceled.
    async fn watch(&mut self, token: &str, key: &str, range_end: &[u8]) -> String {
        let create =
            WatchCreateRequest { key: key.into(), range_end: range_end.into(), ..Default::default() };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let response = settled(async || {
            let requests = futures_util::stream::iter([request.clone()]);
            let requests = requests.chain(futures_util::stream::pending());
            let mut responses = self.watches.watch(by(token, requests)).await?.into_inner();
            responses.message().await
        });
        let response = response.await.unwrap().unwrap();
        assert!(response.created && response.canceled != response.cancel_reason.is_empty(), "{response:?}");
        response.cancel_reason
    }

    /// Keeps a lease alive, and returns how long it lives.
    async fn keep_alive(&mut self, token: &str, id: i64) -> Result<i64, Status> {
        let kept = settled(async || {
            let requests = futures_util::stream::iter([LeaseKeepAliveRequest { id }]);
            let mut kept = self.leases.lease_keep_alive(by(token, requests)).await?.into_inner();
            kept.message().await
        });
        Ok(kept.await?.unwrap().ttl)
    }
}

fn put(key: &str) -> PutRequest {
    PutRequest { key: key.into(), value: "value".into(), ..Default::default() }
}

fn get(key: &str, range_end: &str) -> RangeRequest {
    RangeRequest { key: key.into(), range_end: range_end.into(), ..Default::default() }
}

fn delete(key: &str) -> DeleteRangeRequest {
    DeleteRangeRequest { key: key.into(), ..Default::default() }
}

/// Makes any call with an empty message, and returns its first reply. The reply's fields are not looked at.
async fn call(member: &Member, path: &str, token: &str) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel(member));
    let path = path.parse::<axum::http::uri::PathAndQuery>().unwrap();
    settled(async || {
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<AuthEnableRequest, AuthEnableRequest>::default();
        let request = by(token, AuthEnableRequest {});
        let mut replies = client.server_streaming(request, path.clone(), codec).await?.into_inner();
        match replies.message().await {
            // A malformed header is a reply too.
            Err(status) if status.message().contains("decode") => Ok(()),
            replied => replied.map(drop),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_is_open_to_whom_its_rule_says() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let member = &cluster.members[0];
    let mut clients = Clients::of(member);
    let root = clients.enable().await;
    clients.user(&root, "plain", &[]).await;
    let plain = clients.token("plain").await;
    for (path, rule) in RULES {
        let (nobody, wrong, user) = (
            call(member, path, "").await,
            call(member, path, "wrong").await,
            call(member, path, &plain).await,
        );
        match rule {
            // Without a user of that name.
            Rule::Open if path.ends_with("/Authenticate") => {
                let failed = is((
                    Code::InvalidArgument,
                    "etcdserver: authentication failed, invalid user ID or password",
                ));
                assert_eq!((refusal(nobody), refusal(wrong)), (failed.clone(), failed), "{path}");
                continue;
            }
            Rule::Open => {
                for called in [nobody, wrong, user] {
                    called.unwrap();
                }
                continue;
            }
            Rule::Anyone => {
                nobody.unwrap();
                assert_eq!(refusal(wrong), is(NO_TOKEN), "{path}");
                user.unwrap();
                continue;
            }
            // Their refusals are within their streams, or of the calls that they make.
            Rule::Within => continue,
            Rule::User | Rule::Root | Rule::Message => {
                assert_eq!((refusal(nobody), refusal(wrong)), (is(NOBODY), is(NO_TOKEN)), "{path}");
            }
        }
        let is_denied = user.is_err_and(|status| status.code() == Code::PermissionDenied);
        // These ask for a user without a name, which is not oneself.
        let is_of_another = path.ends_with("/UserGet") || path.ends_with("/RoleGet");
        assert_eq!(is_denied, *rule == Rule::Root || is_of_another, "{path}");
        // Empty, these change nothing, but for one.
        if !path.ends_with("/AuthDisable") {
            let status = call(member, path, &root).await.err();
            assert!(status.is_none_or(|status| status.code() != Code::PermissionDenied), "{path}");
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_locks_are_refused_as_etcd_refuses_them() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let member = &cluster.members[0];
    let mut clients = Clients::of(member);
    let root = clients.enable().await;
    clients.role(&root, "r", &[(Type::Readwrite, "lock/", "lock0")]).await;
    clients.user(&root, "u", &["r"]).await;
    let token = clients.token("u").await;
    let denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
    assert_eq!(clients.watch(&token, "other", b"").await, denied);
    assert_eq!(
        clients.watch("", "lock/", b"").await,
        "rpc error: code = InvalidArgument desc = etcdserver: user name is empty"
    );
    assert_eq!(
        clients.watch("wrong", "lock/", b"").await,
        "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"
    );
    assert_eq!(clients.watch(&token, "lock/a", b"").await, "");
    assert_eq!(refusal(clients.range_stream(&token, "other").await), is(DENIED));
    assert_eq!(refusal(clients.range_stream("", "lock/a").await), is(NOBODY));
    clients.range_stream(&token, "lock/a").await.unwrap();
    let mut locks = LockClient::new(channel(member));
    // The same lease again is in the queue already.
    let granted = ask!(clients.leases, lease_grant, &token, LeaseGrantRequest { ttl: 600, id: 0 });
    let lease = granted.unwrap().id;
    let lock = |name: &str| LockRequest { name: name.into(), lease };
    let refused = refusal(ask!(locks, lock, "", lock("lock")));
    assert_eq!(refused, is((Code::Unknown, "etcdserver: user name is empty")));
    let refused = refusal(ask!(locks, lock, &token, lock("other")));
    assert_eq!(refused, is((Code::Unknown, "etcdserver: permission denied")));
    ask!(locks, lock, &token, lock("lock")).unwrap();
    cluster.stop().await;
}

/// Story: a client waited for a lock until its token had ended, and disconnected. Its key was to be removed by that token, so it stayed,
/// and all others waited for it as long as its lease was kept alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_given_up_after_its_token_leaves_no_key() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let member = &cluster.members[0];
    let mut clients = Clients::of(member);
    let root = clients.enable().await;
    clients.role(&root, "r", &[(Type::Readwrite, "lock/", "lock0")]).await;
    clients.user(&root, "u", &["r"]).await;
    let token = clients.token("u").await;
    for id in [7, 8] {
        let granted = ask!(clients.leases, lease_grant, &token, LeaseGrantRequest { ttl: 600, id });
        made(granted, Refusal::LeaseExists);
    }
    let mut locks = LockClient::new(channel(member));
    let lock = |lease: i64| LockRequest { name: "lock".into(), lease };
    ask!(locks, lock, &root, lock(7)).unwrap();
    let (mut waits, request) = (locks.clone(), by(&token, lock(8)));
    let waiting = tokio::spawn(async move { waits.lock(request).await });
    until(async || member.local("lock/8").await.is_some()).await;
    let change =
        AuthUserChangePasswordRequest { name: "u".into(), password: "new".into(), ..Default::default() };
    ask!(clients.auth, user_change_password, &root, change.clone()).unwrap();
    waiting.abort();
    until(async || member.local("lock/8").await.is_none()).await;
    cluster.stop().await;
}

/// Advisory GHSA-xg4h-6gfc-h4m8: a watch from a key on was checked as one of the key alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_with_an_open_end_needs_all_keys_from_its_first_on() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let mut clients = Clients::of(&cluster.members[0]);
    let root = clients.enable().await;
    clients.role(&root, "one", &[(Type::Read, "key", "")]).await;
    clients.role(&root, "open", &[(Type::Read, "key", "\0")]).await;
    clients.user(&root, "one", &["one"]).await;
    clients.user(&root, "open", &["open"]).await;
    let (one, open) = (clients.token("one").await, clients.token("open").await);
    assert_eq!(clients.watch(&one, "key", b"").await, "");
    for (key, range_end) in [("key", &b"\0"[..]), ("key", b"kez"), ("", b"\0"), ("a", b"\0")] {
        assert!(clients.watch(&one, key, range_end).await.contains("permission denied"), "{key}");
    }
    assert_eq!(clients.watch(&open, "key", b"\0").await, "");
    assert!(clients.watch(&open, "", b"\0").await.contains("permission denied"));
    let range = RangeRequest { key: "key".into(), range_end: vec![0], ..Default::default() };
    assert_eq!(refusal(ask!(clients.keys, range, &one, range.clone())), is(DENIED));
    ask!(clients.keys, range, &open, range.clone()).unwrap();
    cluster.stop().await;
}

/// Advisories GHSA-rfx7-8w68-q57q and GHSA-x35m-3gp4-4fh5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_needs_what_is_in_it() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let mut clients = Clients::of(&cluster.members[0]);
    let root = clients.enable().await;
    clients.role(&root, "r", &[(Type::Write, "w", ""), (Type::Read, "r", "")]).await;
    clients.user(&root, "u", &["r"]).await;
    let token = clients.token("u").await;
    let nested = |operation: Op| {
        let failure = vec![RequestOp { request: Some(operation) }];
        Op::RequestTxn(TxnRequest { failure, ..Default::default() })
    };
    let with_previous = PutRequest { prev_kv: true, ..put("w") };
    let delete_previous = DeleteRangeRequest { prev_kv: true, ..delete("w") };
    for (operation, is_permitted) in [
        (Op::RequestPut(put("w")), true),
        (Op::RequestPut(put("r")), false),
        (Op::RequestPut(with_previous), false),
        (Op::RequestRange(get("r", "")), true),
        (Op::RequestRange(get("w", "")), false),
        (Op::RequestRange(get("r", "s")), false),
        (Op::RequestDeleteRange(delete("w")), true),
        (Op::RequestDeleteRange(delete("r")), false),
        (Op::RequestDeleteRange(delete_previous), false),
    ] {
        for operation in [operation.clone(), nested(operation.clone()), nested(nested(operation))] {
            let found = clients.txn(&token, vec![operation.clone()]).await;
            if is_permitted {
                found.unwrap();
            } else {
                assert_eq!(refusal(found), is(DENIED), "{operation:?}");
            }
        }
    }
    // A transaction that only compares shows what is there.
    let compare = |key: &str| TxnRequest {
        compare: vec![Compare { key: key.into(), ..Default::default() }],
        ..Default::default()
    };
    ask!(clients.keys, txn, &token, compare("r")).unwrap();
    assert_eq!(refusal(ask!(clients.keys, txn, &token, compare("w"))), is(DENIED));
    cluster.stop().await;
}

/// A lease is its keys': a user that may not write one of them neither ends it nor attaches a key to it, in a transaction either, nor
/// learns of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_needs_all_its_keys() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let mut clients = Clients::of(&cluster.members[0]);
    let root = clients.enable().await;
    clients.role(&root, "r", &[(Type::Readwrite, "a", "b")]).await;
    clients.user(&root, "u", &["r"]).await;
    let token = clients.token("u").await;
    let grant = |id| LeaseGrantRequest { ttl: 600, id };
    assert_eq!(refusal(ask!(clients.leases, lease_grant, "", grant(1))), is(NOBODY));
    for id in [1, 2] {
        made(ask!(clients.leases, lease_grant, &token, grant(id)), Refusal::LeaseExists);
    }
    let leased = |key: &str, lease| PutRequest { lease, ..put(key) };
    clients.put(&token, leased("a1", 1)).await.unwrap();
    clients.put(&token, leased("a2", 2)).await.unwrap();
    clients.put(&root, leased("other", 2)).await.unwrap();
    assert_eq!(refusal(clients.put(&token, leased("a3", 2)).await), is(DENIED));
    assert_eq!(refusal(clients.txn(&token, vec![Op::RequestPut(leased("a3", 2))]).await), is(DENIED));
    clients.put(&token, leased("a3", 1)).await.unwrap();
    assert_eq!(clients.keep_alive(&token, 1).await.unwrap(), 600);
    for (token, id, expected) in [(&token[..], 2, DENIED), ("", 1, NOBODY), ("wrong", 1, NO_TOKEN)] {
        assert_eq!(refusal(clients.keep_alive(token, id).await), is(expected));
    }
    let time = |id, keys| LeaseTimeToLiveRequest { id, keys };
    let shown = ask!(clients.leases, lease_time_to_live, &token, time(1, true)).unwrap();
    assert_eq!(shown.keys, [b"a1", b"a3"]);
    ask!(clients.leases, lease_time_to_live, &token, time(2, false)).unwrap();
    let refused = refusal(ask!(clients.leases, lease_time_to_live, &token, time(2, true)));
    assert_eq!(refused, is(DENIED));
    let refused = refusal(ask!(clients.leases, lease_leases, &token, LeaseLeasesRequest {}));
    assert_eq!(refused, is(DENIED));
    let revoke = |id| LeaseRevokeRequest { id };
    assert_eq!(refusal(ask!(clients.leases, lease_revoke, &token, revoke(2))), is(DENIED));
    made(ask!(clients.leases, lease_revoke, &token, revoke(1)), Refusal::LeaseNotFound);
    assert_eq!(refusal(ask!(clients.keys, range, &token, get("other", ""))), is(DENIED));
    made(ask!(clients.leases, lease_revoke, &root, revoke(2)), Refusal::LeaseNotFound);
    let left = ask!(clients.leases, lease_leases, &token, LeaseLeasesRequest {}).unwrap();
    assert!(left.leases.is_empty());
    cluster.stop().await;
}

/// The server revokes expired leases without a permission.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_end_while_authentication_is_on() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let member = &cluster.members[0];
    let mut clients = Clients::of(member);
    let root = clients.enable().await;
    loop {
        let granted = ask!(clients.leases, lease_grant, &root, LeaseGrantRequest { ttl: 1, id: 0 });
        let lease = granted.unwrap().id;
        let Err(gone) = clients.put(&root, PutRequest { lease, ..put("key") }).await else { break };
        // It may have ended already, on a busy machine.
        assert_eq!(gone.message(), Refusal::LeaseNotFound.text());
    }
    until(async || member.local("key").await.is_none()).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_see_themselves_and_their_roles() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let mut clients = Clients::of(&cluster.members[0]);
    let root = clients.enable().await;
    clients.role(&root, "mine", &[(Type::Read, "a", "")]).await;
    clients.role(&root, "yours", &[]).await;
    clients.user(&root, "u", &["mine"]).await;
    let token = clients.token("u").await;
    let user = |name: &str| AuthUserGetRequest { name: name.into() };
    let role = |role: &str| AuthRoleGetRequest { role: role.into() };
    assert_eq!(ask!(clients.auth, user_get, &token, user("u")).unwrap().roles, ["mine"]);
    assert_eq!(refusal(ask!(clients.auth, user_get, &token, user("root"))), is(DENIED));
    let shown = ask!(clients.auth, role_get, &token, role("mine")).unwrap();
    assert_eq!((shown.perm.len(), &shown.perm[0].key[..]), (1, &b"a"[..]));
    assert_eq!(refusal(ask!(clients.auth, role_get, &token, role("yours"))), is(DENIED));
    let users = ask!(clients.auth, user_list, &root, AuthUserListRequest {}).unwrap();
    assert_eq!(users.users, ["root", "u"]);
    assert!(ask!(clients.auth, auth_status, "", AuthStatusRequest {}).unwrap().enabled);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_ends_with_its_password_and_its_user() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let mut clients = Clients::of(&cluster.members[0]);
    let root = clients.enable().await;
    clients.role(&root, "r", &[(Type::Readwrite, "a", "")]).await;
    clients.user(&root, "u", &["r"]).await;
    let first = clients.token("u").await;
    clients.put(&first, put("a")).await.unwrap();
    let change =
        AuthUserChangePasswordRequest { name: "u".into(), password: "new".into(), ..Default::default() };
    ask!(clients.auth, user_change_password, &root, change.clone()).unwrap();
    assert_eq!(refusal(clients.put(&first, put("a")).await), is(NO_TOKEN));
    let failed = (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password");
    assert_eq!(refusal(clients.token_for("u", "u's").await), is(failed));
    assert_eq!(refusal(clients.token_for("nobody", "u's").await), is(failed));
    let second = clients.token_for("u", "new").await.unwrap();
    clients.put(&second, put("a")).await.unwrap();
    let no_password = AuthUserAddRequest {
        name: "certified".into(),
        options: Some(UserAddOptions { no_password: true }),
        ..Default::default()
    };
    made(ask!(clients.auth, user_add, &root, no_password.clone()), Refusal::UserExists);
    let text = "auth: authentication failed, password was given for no password user";
    assert_eq!(refusal(clients.token_for("certified", "x").await), is((Code::Unknown, text)));
    let delete = || AuthUserDeleteRequest { name: "u".into() };
    made(ask!(clients.auth, user_delete, &root, delete()), Refusal::UserNotFound);
    assert_eq!(refusal(clients.put(&second, put("a")).await), is(NO_TOKEN));
    // Off, nothing is looked at.
    ask!(clients.auth, auth_disable, &root, AuthDisableRequest {}).unwrap();
    clients.put(&second, put("a")).await.unwrap();
    let off = (Code::FailedPrecondition, "etcdserver: authentication is not enabled");
    assert_eq!(refusal(clients.token_for("root", "root's").await), is(off));
    cluster.stop().await;
}

/// Entries in the log have no password, nor have those of users that are added.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_password_reaches_the_state() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let member = &cluster.members[0];
    let mut clients = Clients::of(member);
    clients.enable().await;
    let auth = View::of(member.node().store()).await.unwrap().auth().await.unwrap();
    let user = auth.user("root").unwrap();
    assert!(user.password.starts_with(b"$2b$04$"));
    let long = AuthUserAddRequest { name: "u".into(), password: "x".repeat(73), ..Default::default() };
    let root = clients.token("root").await;
    let text = "bcrypt: password length exceeds 72 bytes";
    assert_eq!(refusal(ask!(clients.auth, user_add, &root, long.clone())), is((Code::Unknown, text)));
    cluster.stop().await;
    for entry in walk(&cluster.members[0].dir) {
        let bytes = std::fs::read(&entry).unwrap();
        let has = bytes.windows(6).any(|window| window == b"root's");
        assert!(!has, "{}", entry.display());
    }
}

/// Story: an administrator added a user with the hash of its password alone, of which docs say that it is refused. The user was there, with
/// an empty password: everybody had its rights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hash_in_place_of_a_password_is_refused() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let mut clients = Clients::of(&cluster.members[0]);
    let hashed_password = "JDJhJDA0JHh4".to_owned();
    let add = AuthUserAddRequest { name: "u".into(), hashed_password, ..Default::default() };
    let invalid = (Code::InvalidArgument, "etcdserver: invalid auth management");
    assert_eq!(refusal(ask!(clients.auth, user_add, "", add.clone())), is(invalid));
    let root = clients.enable().await;
    let users = ask!(clients.auth, user_list, &root, AuthUserListRequest {}).unwrap().users;
    assert_eq!(users, ["root"]);
    cluster.stop().await;
}

/// A role could not be deleted once the records of its users were more than an entry of the log may change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_of_many_users_is_deleted_by_one_call() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let mut clients = Clients::of(&cluster.members[0]);
    clients.role("", "r", &[]).await;
    let names: Vec<String> = (0..60).map(|number| format!("{number:02000}")).collect();
    for name in &names {
        let options = Some(UserAddOptions { no_password: true });
        let add = AuthUserAddRequest { name: name.clone(), options, ..Default::default() };
        made(ask!(clients.auth, user_add, "", add.clone()), Refusal::UserExists);
        let grant = AuthUserGrantRoleRequest { user: name.clone(), role: "r".into() };
        ask!(clients.auth, user_grant_role, "", grant.clone()).unwrap();
    }
    let before = clients.auth_revision().await;
    let delete = AuthRoleDeleteRequest { role: "r".into() };
    made(ask!(clients.auth, role_delete, "", delete.clone()), Refusal::RoleNotFound);
    assert!(clients.auth_revision().await > before + 1, "it takes several entries");
    for name in &names {
        let of = AuthUserGetRequest { name: name.clone() };
        assert!(ask!(clients.auth, user_get, "", of.clone()).unwrap().roles.is_empty());
    }
    cluster.stop().await;
}

/// All files below a directory.
fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files
}

/// A revocation holds for an entry that was proposed earlier, at any member: it is refused as it is applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_revoked_holds_for_entries_on_their_way() {
    let mut cluster = Cluster::start(3, CHEAP).await;
    let mut clients = Clients::of(&cluster.members[0]);
    let root = clients.enable().await;
    clients.role(&root, "r", &[(Type::Readwrite, "a", "")]).await;
    clients.user(&root, "u", &["r"]).await;
    let propose = async |at: usize, revision: u64| {
        let author = || Some(Author { user: "u".into(), revision, is_server: false });
        let node = cluster.members[at].node();
        let proposed = settled(async || node.propose_by(author(), Change::Put(put("a"))).await).await;
        match proposed.unwrap().0.result {
            Some(Outcome::Refusal(refusal)) => Err((Code::from(refusal.code), refusal.text)),
            _ => Ok(()),
        }
    };
    let revision = clients.auth_revision().await;
    propose(1, revision).await.unwrap();
    clients.revoke(&root, "r", "a", "").await;
    let before = clients.revision(&root).await;
    for at in 0..3 {
        assert_eq!(propose(at, revision).await, Err(is(OLD)));
        assert_eq!(propose(at, u64::MAX).await, Err(is(DENIED)));
    }
    let nobody = cluster.members[2].propose(Change::Put(put("a"))).await.unwrap().0;
    assert!(matches!(nobody.result, Some(Outcome::Refusal(refusal)) if refusal.text == NOBODY.1));
    assert_eq!(clients.revision(&root).await, before, "nothing was put");
    cluster.stop().await;
}

/// Story: a user without any permission asked to delete all keys, and for their values. It waited in the line of long ranges, for up to a
/// minute, and had slow clients of others cut, who have to read faster while somebody waits. It was refused after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_not_permitted_waits_for_no_long_range() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let member = &cluster.members[0];
    fill(member).await;
    let unread = unread_streams(member).await;
    let mut clients = Clients::of(member);
    let root = clients.enable().await;
    clients.user(&root, "u", &[]).await;
    let token = clients.token("u").await;
    let all = DeleteRangeRequest { range_end: "kez".into(), prev_kv: true, ..delete("key") };
    assert_eq!(refusal(ask!(clients.keys, delete_range, &token, all.clone())), is(DENIED));
    let operations = vec![Op::RequestPut(put("key")), Op::RequestRange(get("key", "kez"))];
    assert_eq!(refusal(clients.txn(&token, operations).await), is(DENIED));
    drop(unread);
    cluster.stop().await;
}

/// Grants made at one member hold immediately at every other member, and so do tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_know_of_each_other_what_was_granted() {
    let mut cluster = Cluster::start(3, CHEAP).await;
    let mut all: Vec<Clients> = cluster.members.iter().map(Clients::of).collect();
    let root = all[0].enable().await;
    all[1].role(&root, "r", &[]).await;
    all[2].user(&root, "u", &["r"]).await;
    for (at, key) in ["a", "b", "c"].into_iter().enumerate() {
        let (here, there, third) = (at, (at + 1) % 3, (at + 2) % 3);
        let token = all[here].token("u").await;
        assert_eq!(refusal(all[there].put(&token, put(key)).await), is(DENIED));
        all[here].role(&root, "r", &[(Type::Readwrite, key, "")]).await;
        all[there].put(&token, put(key)).await.unwrap();
        ask!(all[third].keys, range, &token, get(key, "")).unwrap();
        all[there].revoke(&root, "r", key, "").await;
        assert_eq!(refusal(ask!(all[third].keys, range, &token, get(key, ""))), is(DENIED));
        assert_eq!(refusal(all[third].put(&token, put(key)).await), is(DENIED));
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_stay_over_a_restart_and_simple_tokens_do_not() {
    let mut cluster = Cluster::start(1, CHEAP).await;
    let mut clients = Clients::of(&cluster.members[0]);
    let root = clients.enable().await;
    clients.put(&root, put("a")).await.unwrap();
    cluster.members[0].stop().await;
    cluster.members[0].start().await;
    within(cluster.members[0].server.as_ref().unwrap().ready()).await;
    let mut clients = Clients::of(&cluster.members[0]);
    assert_eq!(refusal(clients.put("", put("a")).await), is(NOBODY));
    assert_eq!(refusal(clients.put(&root, put("a")).await), is(NO_TOKEN));
    let root = clients.token("root").await;
    clients.put(&root, put("a")).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signed_tokens_are_of_a_revision() {
    let dir = tempfile::tempdir().unwrap();
    let pair = rcgen::KeyPair::generate().unwrap();
    std::fs::write(dir.path().join("public"), pair.public_key_pem()).unwrap();
    std::fs::write(dir.path().join("private"), pair.serialize_pem()).unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let tokens = format!(
        "--auth-token=jwt,pub-key={},priv-key={},sign-method=ES256,ttl=5m",
        file("public"),
        file("private")
    );
    let mut cluster = Cluster::start(1, &["--bcrypt-cost=4", &tokens]).await;
    let mut clients = Clients::of(&cluster.members[0]);
    let root = clients.enable().await;
    clients.put(&root, put("a")).await.unwrap();
    // It is good over a restart, until users or roles change.
    cluster.members[0].stop().await;
    cluster.members[0].start().await;
    within(cluster.members[0].server.as_ref().unwrap().ready()).await;
    let mut clients = Clients::of(&cluster.members[0]);
    clients.put(&root, put("a")).await.unwrap();
    clients.role(&root, "r", &[]).await;
    assert_eq!(refusal(clients.put(&root, put("a")).await), is(OLD));
    assert_eq!(refusal(ask!(clients.keys, range, &root, get("a", ""))), is(OLD));
    assert_eq!(refusal(clients.range_stream(&root, "a").await), is(OLD));
    assert_eq!(refusal(clients.put(&root[1..], put("a")).await), is(NO_TOKEN));
    let root = clients.token("root").await;
    clients.put(&root, put("a")).await.unwrap();
    cluster.stop().await;
}
