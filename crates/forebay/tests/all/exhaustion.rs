//! Behaviour when something runs out: memory of each kind, descriptors, disk space, threads. Each scene is this test program again
//! (see `child`) and hits a limit. It is checked for four things: an error or a degradation that names the thing and the remedy,
//! nothing lost, no hang, and recovery after the cause is removed.

mod child;
mod disk;
mod files;
mod memory;
mod scenery;
mod threads;
