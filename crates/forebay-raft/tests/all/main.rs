//! The tests of log and state machine, one module a subject.

mod cluster;
mod common;
mod durable_or_error;
mod faults;
mod hooks;
mod kills;
mod log;
mod log_worlds;
mod memory;
mod node_worlds;
mod repairs;
mod snapshots;
mod suite;
mod sweep_world;
mod waiting;
