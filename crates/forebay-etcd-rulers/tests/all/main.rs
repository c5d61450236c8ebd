//! forebay-etcd beside etcd, one module for each subject. None needs a process of its own: servers and clients are processes, and have
//! directories, ports and networks of their own.

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
