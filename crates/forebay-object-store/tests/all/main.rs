//! The tests of the store, one module a subject.

mod common;
mod descriptors;
mod differential;
mod durable_or_error;
mod frozen;
mod integration;
mod large;
mod paths;
mod puts;
mod reads;
mod refused;
mod simulation;
mod sweep_world;
mod updates;
