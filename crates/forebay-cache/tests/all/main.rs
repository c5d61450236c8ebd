//! The tests of the cache, one module a subject.

mod bound;
mod common;
mod flights;
mod reads;
mod simulation;
mod sweep_world;
mod writes;
