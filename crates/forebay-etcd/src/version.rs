//! Versions.

use std::fmt;

/// The version of etcd's API that clients are served: Kubernetes and others look at it, and kubeadm has a least one.
pub(crate) const ETCD_VERSION: &str = "3.7.3";
/// The version that all members have at least, and that of the state, as etcd writes them.
pub(crate) const CLUSTER_VERSION: &str = "3.7.0";
/// The same without the last part, as metrics have it.
pub(crate) const CLUSTER_MINOR: &str = "3.7";
/// The cluster's version in the file of a snapshot: etcd does not start with one of a newer cluster, and nothing in the file is newer.
pub(crate) const SNAPSHOT_CLUSTER_VERSION: &str = "3.5.0";
/// This server's own version.
pub(crate) const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Formats of the state, of the log's entries and of messages between members, by their numbers. The state has one of them, which all members
/// know: a new kind of change, or field of one, is for a later format, and is proposed when the state has that.
///
/// | format | changes |
/// |---|---|
/// | none | members do not name formats; a current value counts twice in the space of the state |
/// | 1 | it counts once; the state has sums, and checkpoints; users and roles, and the authors of changes |
/// | 2 | users and roles are in the space and in the sums; a role of many users is deleted in several entries |
/// | 3 | values are in one place, except the latest |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Formats {
    /// The earliest with which this version works.
    pub(crate) least: u64,
    /// The latest, which it has the state raised to.
    pub(crate) own: u64,
}

impl Formats {
    /// Those of this version.
    pub(crate) const OWN: Formats = Formats { least: 1, own: 3 };
    /// The format of a new state.
    pub(crate) const FIRST: u64 = 1;
    /// The first one that counts users and roles.
    pub(crate) const WITH_ACCOUNTS: u64 = 2;
    /// The first one in which values are in one place.
    pub(crate) const VALUES_ONCE: u64 = 3;

    /// Returns whether both know a common format.
    pub(crate) fn meet(self, other: Formats) -> bool {
        self.least <= other.own && other.least <= self.own
    }
}

impl fmt::Display for Formats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.least, self.own)
    }
}
