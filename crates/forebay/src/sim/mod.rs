//! A whole machine from one seed: virtual time, disks with faults, power cuts.

mod explore;
mod failure;
mod fault;
mod history;
mod hub;
mod link;
mod machine;
mod profile;
mod program;
mod run;
mod shards;
mod shrink;
mod source;
mod tasks;
mod world;

pub use explore::{Failing, explore};
pub use failure::{Failure, FailureKind};
pub use fault::{Dirty, Fault, Rule};
pub use machine::Counts;
pub use profile::{Lost, MetadataOrder, Profile};
pub use program::{
    Sleep, Task, clear_faults, dropped_after, inject, is_inside, note, now, power_cut, random, sleep, spawn,
    spawn_local,
};
pub use shrink::{Schedule, Shrunk, shrink};
pub use world::World;

pub(crate) use hub::{Hub, now_ns};
pub(crate) use link::Link;
