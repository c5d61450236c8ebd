//! The paths of the gateway, which are etcd's, and the calls behind them.

use std::collections::HashMap;

use axum::http::uri::PathAndQuery;
use prost_reflect::{DescriptorPool, MethodDescriptor};

/// A call that a path stands for.
pub(super) struct Call {
    pub(super) path: PathAndQuery,
    pub(super) method: MethodDescriptor,
}

const KV: &str = "etcdserverpb.KV";
const WATCH: &str = "etcdserverpb.Watch";
const LEASE: &str = "etcdserverpb.Lease";
const CLUSTER: &str = "etcdserverpb.Cluster";
const MAINTENANCE: &str = "etcdserverpb.Maintenance";
const AUTH: &str = "etcdserverpb.Auth";
const LOCK: &str = "v3lockpb.Lock";
const ELECTION: &str = "v3electionpb.Election";

/// Paths behind `/v3/`, with service and method.
const ROUTES: &[(&str, &str, &str)] = &[
    ("kv/range", KV, "Range"),
    ("kv/put", KV, "Put"),
    ("kv/deleterange", KV, "DeleteRange"),
    ("kv/txn", KV, "Txn"),
    ("kv/compaction", KV, "Compact"),
    ("watch", WATCH, "Watch"),
    ("lease/grant", LEASE, "LeaseGrant"),
    ("lease/revoke", LEASE, "LeaseRevoke"),
    ("kv/lease/revoke", LEASE, "LeaseRevoke"),
    ("lease/keepalive", LEASE, "LeaseKeepAlive"),
    ("lease/timetolive", LEASE, "LeaseTimeToLive"),
    ("kv/lease/timetolive", LEASE, "LeaseTimeToLive"),
    ("lease/leases", LEASE, "LeaseLeases"),
    ("kv/lease/leases", LEASE, "LeaseLeases"),
    ("cluster/member/add", CLUSTER, "MemberAdd"),
    ("cluster/member/remove", CLUSTER, "MemberRemove"),
    ("cluster/member/update", CLUSTER, "MemberUpdate"),
    ("cluster/member/list", CLUSTER, "MemberList"),
    ("cluster/member/promote", CLUSTER, "MemberPromote"),
    ("maintenance/alarm", MAINTENANCE, "Alarm"),
    ("maintenance/status", MAINTENANCE, "Status"),
    ("maintenance/defragment", MAINTENANCE, "Defragment"),
    ("maintenance/hash", MAINTENANCE, "Hash"),
    ("maintenance/hashkv", MAINTENANCE, "HashKV"),
    ("maintenance/snapshot", MAINTENANCE, "Snapshot"),
    ("maintenance/transfer-leadership", MAINTENANCE, "MoveLeader"),
    ("maintenance/downgrade", MAINTENANCE, "Downgrade"),
    ("auth/enable", AUTH, "AuthEnable"),
    ("auth/disable", AUTH, "AuthDisable"),
    ("auth/status", AUTH, "AuthStatus"),
    ("auth/authenticate", AUTH, "Authenticate"),
    ("auth/user/add", AUTH, "UserAdd"),
    ("auth/user/get", AUTH, "UserGet"),
    ("auth/user/list", AUTH, "UserList"),
    ("auth/user/delete", AUTH, "UserDelete"),
    ("auth/user/changepw", AUTH, "UserChangePassword"),
    ("auth/user/grant", AUTH, "UserGrantRole"),
    ("auth/user/revoke", AUTH, "UserRevokeRole"),
    ("auth/role/add", AUTH, "RoleAdd"),
    ("auth/role/get", AUTH, "RoleGet"),
    ("auth/role/list", AUTH, "RoleList"),
    ("auth/role/delete", AUTH, "RoleDelete"),
    ("auth/role/grant", AUTH, "RoleGrantPermission"),
    ("auth/role/revoke", AUTH, "RoleRevokePermission"),
    ("lock/lock", LOCK, "Lock"),
    ("lock/unlock", LOCK, "Unlock"),
    ("election/campaign", ELECTION, "Campaign"),
    ("election/proclaim", ELECTION, "Proclaim"),
    ("election/leader", ELECTION, "Leader"),
    ("election/observe", ELECTION, "Observe"),
    ("election/resign", ELECTION, "Resign"),
];

/// Returns the calls by their paths.
pub(super) fn calls() -> HashMap<&'static str, Call> {
    // The bytes are of this build, and name all of them: a test has them.
    let pool = DescriptorPool::decode(crate::proto::DESCRIPTORS).unwrap_or_default();
    let call = |(path, service, name): &(&'static str, &str, &str)| {
        let service = pool.get_service_by_name(service)?;
        let method = service.methods().find(|method| method.name() == *name)?;
        let call = format!("/{}/{name}", service.full_name()).parse().ok()?;
        Some((*path, Call { path: call, method }))
    };
    ROUTES.iter().filter_map(call).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_call() {
        assert_eq!(calls().len(), ROUTES.len());
    }
}
