//! forebay-etcd compared with etcd, one module for each subject. No test needs a separate process: servers and clients are
//! processes, with separate directories, ports and networks.

#[path = "../common/mod.rs"]
mod common;

mod clients;
mod etcdctl;
#[cfg(target_os = "linux")]
mod faults;
mod gateway;
mod kubeadm;
mod kubernetes;
mod locks;
mod restarts;
mod snapshots;
