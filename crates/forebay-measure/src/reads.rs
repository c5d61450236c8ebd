//! Random reads by many readers, in many ways, each reader with one read in flight: the samples of
//! `saturate` and `cpu`.
//!
//! A reader begins its next read as the last one ends (*closed loop*), or takes the next due read at times
//! that were fixed beforehand (*open loop*, [`arrivals`]). [`mod@run`] runs a sample in its own process and
//! sets the phases in which it counts ([`pacer`]). [`threads`], [`ring`], [`runtime`] and [`shards`] are
//! the ways; [`usage`] and [`calls`] measure their cost.

mod arrivals;
mod calls;
mod cells;
mod job;
mod lane;
pub(crate) mod names;
mod pacer;
mod ring;
mod run;
mod runtime;
mod shards;
mod threads;
mod usage;

pub(crate) use arrivals::{minimise_timer_slack, sleep_until};
pub(super) use cells::{Cell, Setting, Shape, build_row, common_metrics, extra_seconds};
#[cfg(test)]
pub(super) use job::Calls;
pub(super) use job::{Pacing, ReadResult, Way};
pub(super) use run::sample;
pub(super) use shards::why_not_polled;
pub(super) use threads::NO_POLLING;
