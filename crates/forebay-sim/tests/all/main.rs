//! The tests of the simulated machine, and of the core in its worlds, as one program, a module for each subject.

#[path = "../../../forebay/tests/common/mod.rs"]
mod common;
#[path = "../../../forebay/tests/all/tree.rs"]
mod tree;

mod calibration_world;
mod classes_world;
mod cluster_world;
mod file_cache_world;
mod long_reads_world;
mod rings_world;
mod scale_world;
mod simulator;
mod sweep_world;
mod walk_world;
mod world;
