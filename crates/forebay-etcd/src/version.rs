//! Versions.

/// The version of etcd's API that clients are served: Kubernetes and others look at it.
pub(crate) const ETCD_VERSION: &str = "3.5.21";
/// The version that all members have at least, as etcd writes it.
pub(crate) const CLUSTER_VERSION: &str = "3.5.0";
/// This server's own version.
pub(crate) const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");
