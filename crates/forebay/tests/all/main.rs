//! The tests of the core's public API as one program, a module for each subject: one is linked instead of fifty. Tests that need a
//! separate process are separate programs, and their first line says why; tests of a process which lacks something run this program
//! again as a child.

#[path = "../common/mod.rs"]
mod common;
mod stuck_file;
mod tree;

#[cfg(target_os = "linux")]
mod adaptive;
mod append;
mod basic;
mod classes;
#[cfg(target_os = "linux")]
mod commands;
mod device;
mod directories;
#[cfg(target_os = "linux")]
mod durable;
mod error_texts;
mod executors;
#[cfg(target_os = "linux")]
mod exhaustion;
mod exposition;
mod file_cache;
mod file_lifetime;
mod file_space;
mod foreign;
mod futures;
mod lent;
mod limits;
mod long_reads;
#[cfg(target_os = "linux")]
mod no_direct;
mod operations;
mod other_engines;
mod ownership;
#[cfg(target_os = "linux")]
mod placement;
#[cfg(target_os = "linux")]
mod priority;
mod read_many;
#[cfg(target_os = "linux")]
mod refused;
mod regressions;
mod scan;
mod shutdown;
mod stats;
mod stats_server;
#[cfg(target_os = "linux")]
mod sweep_files;
mod tasks;
#[cfg(target_os = "linux")]
mod teardown;
#[cfg(feature = "tokio")]
mod wait_calls;
mod waiting;
mod walk;
mod walk_endings;
#[cfg(feature = "tokio")]
mod worker_rings;
