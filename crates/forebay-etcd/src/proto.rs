//! The messages and services of etcd's API, as compiled from `proto`.

#![allow(missing_docs, reason = "generated code has no documentation: etcd's own has it")]

/// Keys, values and events.
pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}

/// Users and roles.
pub mod authpb {
    tonic::include_proto!("authpb");
}

/// Requests, responses and services.
pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}

/// Locks.
pub mod v3lockpb {
    tonic::include_proto!("v3lockpb");
}

/// Elections.
pub mod v3electionpb {
    tonic::include_proto!("v3electionpb");
}

/// gRPC's health service.
pub mod health {
    tonic::include_proto!("grpc.health.v1");
}

/// Messages between members, and the entries of their log.
pub mod forebay {
    /// Messages of this server that etcd does not have.
    pub mod etcd {
        tonic::include_proto!("forebay.etcd");
    }
}

pub use forebay::etcd as peer;

/// All of these as descriptors, for those who learn of messages at run time.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
