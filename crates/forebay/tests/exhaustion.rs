//! Behaviour when something runs out: memory of each kind, descriptors, disk space, threads. Each scene is
//! this test program again (see `child`) and runs into a limit. It is checked for four things: an error or a
//! degradation that names the thing and the remedy, nothing lost, no hang, and recovery once the cause is
//! gone.
#![cfg(target_os = "linux")]

mod common;

#[path = "exhaustion/child.rs"]
mod child;
#[path = "exhaustion/disk.rs"]
mod disk;
#[path = "exhaustion/files.rs"]
mod files;
#[path = "exhaustion/memory.rs"]
mod memory;
#[path = "exhaustion/scenery.rs"]
mod scenery;
#[path = "exhaustion/threads.rs"]
mod threads;
