//! The tests of the log that share a process, one module a subject.

mod agree;
mod basic;
#[path = "../common/mod.rs"]
mod common;
mod damage;
mod deferred;
mod durable_or_error;
mod end;
mod forgotten;
mod frozen;
mod frozen_calls;
mod full;
mod growing;
mod in_wait;
mod inspect;
mod kills;
mod limits;
mod moved;
mod nth_call;
mod old_format;
mod poison;
mod ranges;
mod reader;
mod shutdown;
mod simulation;
mod sweep_world;
mod truncate;
mod try_append;
mod values;
mod way_world;
