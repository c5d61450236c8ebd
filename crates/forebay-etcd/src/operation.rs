//! [`Operation`]: the kinds of changes and reads, as etcd's metrics name them.

use std::time::Duration;

use crate::histogram::{DoublingHistogram, Histogram};
use crate::proto::peer::auth_change::Change as AuthChange;
use crate::proto::peer::command::Change;

macro_rules! operations {
    ($($name:ident,)*) => {
        /// A kind of changes or reads, by its name in etcd's metrics.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Operation { $($name,)* }

        impl Operation {
            /// All of them, in their order.
            const ALL: &[Operation] = &[$(Operation::$name,)*];
        }
    };
}

operations! {
    Put,
    DeleteRange,
    Txn,
    Compaction,
    LeaseGrant,
    LeaseRevoke,
    ClusterMemberAttrSet,
    ClusterVersionSet,
    Alarm,
    Authenticate,
    AuthEnable,
    AuthDisable,
    AuthUserAdd,
    AuthUserDelete,
    AuthUserChangePassword,
    AuthUserGrantRole,
    AuthUserRevokeRole,
    AuthRoleAdd,
    AuthRoleDelete,
    AuthRoleGrantPermission,
    AuthRoleRevokePermission,
    Range,
    ReadonlyTxn,
}

impl Operation {
    /// Returns that of a change; `None` if etcd has nothing like it.
    pub(crate) fn of(change: &Change) -> Option<Operation> {
        Some(match change {
            Change::Put(_) => Operation::Put,
            Change::DeleteRange(_) => Operation::DeleteRange,
            Change::Txn(_) => Operation::Txn,
            Change::Compact(_) => Operation::Compaction,
            Change::LeaseGrant(_) => Operation::LeaseGrant,
            Change::LeaseRevoke(_) => Operation::LeaseRevoke,
            Change::Attributes(_) => Operation::ClusterMemberAttrSet,
            Change::Format(_) => Operation::ClusterVersionSet,
            Change::Alarm(_) => Operation::Alarm,
            Change::Clean(_) | Change::Checkpoint(_) => return None,
            Change::Auth(auth) => match auth.change.as_ref()? {
                AuthChange::AssignToken(_) => Operation::Authenticate,
                AuthChange::Enable(_) => Operation::AuthEnable,
                AuthChange::Disable(_) => Operation::AuthDisable,
                AuthChange::AddUser(_) => Operation::AuthUserAdd,
                AuthChange::DeleteUser(_) => Operation::AuthUserDelete,
                AuthChange::ChangePassword(_) => Operation::AuthUserChangePassword,
                AuthChange::GrantRole(_) => Operation::AuthUserGrantRole,
                AuthChange::RevokeRole(_) => Operation::AuthUserRevokeRole,
                AuthChange::AddRole(_) => Operation::AuthRoleAdd,
                AuthChange::DeleteRole(_) => Operation::AuthRoleDelete,
                AuthChange::GrantPermission(_) => Operation::AuthRoleGrantPermission,
                AuthChange::RevokePermission(_) => Operation::AuthRoleRevokePermission,
            },
        })
    }
}

/// The durations of operations, in buckets with these bounds: failed, and successful.
#[derive(Debug)]
pub(crate) struct OperationTimes<const FIRST: u64, const COUNT: u32>(
    Vec<[DoublingHistogram<FIRST, COUNT>; 2]>,
);

impl<const FIRST: u64, const COUNT: u32> Default for OperationTimes<FIRST, COUNT> {
    fn default() -> Self {
        OperationTimes(Operation::ALL.iter().map(|_| Default::default()).collect())
    }
}

impl<const FIRST: u64, const COUNT: u32> OperationTimes<FIRST, COUNT> {
    pub(crate) fn observe(&self, operation: Operation, is_success: bool, time: Duration) {
        if let Some(times) = self.0.get(operation as usize) {
            times[usize::from(is_success)].observe_time(time);
        }
    }

    /// Returns the times of each operation, and whether they are of those that succeeded.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Operation, bool, &Histogram)> {
        Operation::ALL.iter().zip(&self.0).flat_map(|(operation, [failure, success])| {
            [(*operation, false, &**failure), (*operation, true, &**success)]
        })
    }
}
