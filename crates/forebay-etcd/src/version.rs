//! Versions.

/// The version of etcd's API that clients are served: Kubernetes and others look at it, and kubeadm has a least one.
pub(crate) const ETCD_VERSION: &str = "3.7.3";
/// The version that all members have at least, and that of the state, as etcd writes them.
pub(crate) const CLUSTER_VERSION: &str = "3.7.0";
/// The cluster's version in the file of a snapshot: etcd does not start with one of a newer cluster, and nothing in the file is newer.
pub(crate) const SNAPSHOT_CLUSTER_VERSION: &str = "3.5.0";
/// This server's own version.
pub(crate) const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");
