//! The tests of Raft in worlds, one module a subject.

mod cluster;
mod common;
mod runtime;
mod store_cluster;
