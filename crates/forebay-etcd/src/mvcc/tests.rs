//! Shows: the state is etcd's, for each kind of request and for thousands of random requests. How: entries are applied to a real
//! store by its Raft interface, and a naive model of etcd predicts the result.

mod ages;
mod audits;
mod checks;
mod cost;
mod counted_users;
mod edges;
mod harness;
mod hashes;
mod import;
mod installs;
mod memory;
mod model;
mod power;
mod random;
mod real;
mod sums;
mod sweep_world;

pub(crate) use real::Real;
