//! The open store: its state, its tasks, and the work that they and its handles do.

pub(crate) mod commit;
pub(crate) mod compact;
mod feeds;
pub(crate) mod flush;
mod gate;
pub(crate) mod get;
pub(crate) mod holder;
mod idle;
mod insertion;
pub(crate) mod install;
#[cfg_attr(not(all(feature = "kernel", target_os = "linux")), path = "engine/kernel/absent.rs")]
pub(crate) mod kernel;
mod loan;
pub(crate) mod range_lock;
pub(crate) mod recent_changes;
pub(crate) mod recover;
pub(crate) mod removal;
pub(crate) mod rules;
pub(crate) mod shared;
pub(crate) mod space;
pub(crate) mod startup;
pub(crate) mod stats;
pub(crate) mod swap;
pub(crate) mod tasks;
pub(crate) mod turns;
mod write_stall;
