//! A whole machine from one seed, or several with a network: virtual time, disks with faults, power cuts.
//!
//! A [`World`] runs a program, and the core under it, on one thread and in its own time. Everything that is
//! undetermined is drawn from its seed: the same seed gives the same run, bit for bit, in every process and
//! on every machine.
//!
//! ```
//! use forebay::{Durability, Open};
//! use forebay_sim::{Profile, World};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut world = World::new(7).disk(Profile::nand());
//! world.run(async |engine| {
//!     let file = engine.open("/log", Open::create()).await?;
//!     file.write(0, vec![1; 4096]).durable(Durability::Data).await?;
//!     file.write(4096, vec![2; 4096]).await?; // not flushed
//!     Ok::<_, forebay::Error>(())
//! })??;
//! world.power_cut();
//! world.reboot();
//! world.run(async |engine| {
//!     let file = engine.open("/log", Open::read()).await?;
//!     assert_eq!(file.read(0..4096).await?[..], [1; 4096]); // what comes behind it is the seed's to say
//!     Ok::<_, forebay::Error>(())
//! })??;
//! println!("{:016x}", world.history_digest());
//! # Ok(()) }
//! ```
//!
//! A world has further machines, its [nodes](Node), when the program names them with [`node`](node()): each has its disks, clock
//! and power supply, and they communicate over [`net`]. The rules below hold for each.
//!
//! A program needs no change for it: an [`Engine`](forebay::Engine) that is started inside a world runs on that world's machine.
//!
//! Inside a world a program awaits everything: `.wait()` is an error, and so are calls from other threads. The manual page [The
//! simulator](https://github.com/forebay-rs/forebay/blob/main/docs/testing.md) follows an example from the first failing seed to
//! its repair.
//!
//! # Which fault may strike where
//!
//! | [`Fault`] | read | write | sync | other calls |
//! |---|---|---|---|---|
//! | `TornWrite` `LostWrite` `Reorder` | | at a power cut | | |
//! | `LyingFlush` | | with FUA: reports success | reports success | |
//! | `ReadError` | `EIO` | | | |
//! | `WriteError` | | direct: `EIO`, a part may be there | buffered: `EIO` | |
//! | `FlushError` | | | `EIO`; [`Dirty`] decides about the bytes | |
//! | `LatentSectorError` | `EIO` until rewritten | | | |
//! | `BitRot` | stored bit changed | stored bit changed | | |
//! | `MisdirectedWrite` | | lands elsewhere | | |
//! | `NoSpace` | | `ENOSPC` | | allocate, write_zeros, making files and directories, copies |
//! | `ShortRead` `ShortWrite` | fewer bytes | fewer bytes | | |
//! | `Stuck` | never ends | never ends | never ends | |
//! | `Slow` | 1,000 times as long | the same | the same | |
//! | `CancelRace` | | | | a cancel that is too late |
//!
//! Each fault strikes by chance or at exactly the n-th operation, for a file, a directory or a range:
//! [`Rule`].
//!
//! # What is durable, and what may be there after a power cut
//!
//! A *direct* write that completed is in the disk's volatile cache, a *buffered* one in the machine's memory. On a disk without a
//! volatile cache ([`Profile::write_cache`] of 0) the direct write is on the medium immediately. A full cache and a full memory (64
//! MiB, or 4,096 writes in either) move their oldest writes on by themselves. When more than 1,024 changes of names have not been
//! synced, the older half becomes durable by itself.
//!
//! | after | is durable |
//! |---|---|
//! | a write with FUA ([`Profile::fua`]) | its own sectors, as far as the file's length is durable |
//! | a sync of any file or directory of the disk | all direct writes on that disk that completed before the sync was submitted |
//! | a data sync of a file | also its buffered writes, its length, its holes; with [`Journal`] also every change of names up to the last change of its length, or its creation |
//! | a full sync of a file | as a data sync; with [`Journal`] also every change of names up to the last one that touched it (rename, link, removal) |
//! | a sync of a directory | with [`Journal`] every change of names and lengths (those by calls) up to the last one in it; with [`Posix`] the changes in this directory and no others |
//! | rename, hard_link | the same as after a sync of the new name's directory, then of the old name's, in separate steps: a power cut may fall between the change and each of the syncs |
//! | an orderly restart | everything except the changes that a failed sync lost |
//!
//! | before that, a power cut leaves | |
//! |---|---|
//! | of a direct write that completed | as [`Loss`] decides: all, all up to a point, or any; with [`Profile::torn`] any sectors of the write at the point, or of each |
//! | of a buffered write | any sectors |
//! | of a write in flight | any sectors |
//! | of a sector that was written several times | any of its versions since the last flush, or the one before |
//! | of a length that writes grew | the old one, the new one, or one between at a sector; apart from all else. Bytes that did not survive are zeros |
//! | of truncate, allocate, write_zeros, punch_hole | with [`Journal`] in order with all changes of names; with [`Posix`] in order for this file. Bytes written where something was cut off are lost when the cut itself is lost |
//! | of names, with [`Journal`] | the changes up to one point: a rename is there or not, also across directories |
//! | of names, with [`Posix`] | of each directory the changes up to one point. A rename within a directory is there or not; a rename across directories may leave the old name, the new name, both or neither. A new file whose name survives may be empty |
//! | of locks and open handles, of files without a name | nothing |
//!
//! [`Journal`]: MetadataOrder::Journal
//! [`Posix`]: MetadataOrder::Posix

#![forbid(unsafe_code)]
// A library neither panics on bad input or failed I/O, nor prints, nor ends the program. Tests may.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::exit
    )
)]

mod clock;
mod explore;
mod failure;
mod fault;
mod history;
mod hub;
mod link;
mod machine;
pub mod net;
mod node;
mod profile;
mod program;
mod rings;
mod run;
mod shards;
mod shrink;
mod source;
mod tasks;
mod world;

pub use explore::{FailedSeed, explore};
pub use failure::{Failure, FailureKind};
pub use fault::{Dirty, Fault, Rule};
pub use machine::Counts;
pub use node::{Node, current_node, node};
pub use profile::{Loss, MetadataOrder, Profile};
pub use program::{
    Interval, Sleep, Task, clear_faults, dropped_after, frozen_after, inject, interval, is_inside, note, now,
    power_cut, random, sleep, sleep_until, spawn, spawn_local, timeout, world_time,
};
pub use shrink::{Schedule, Shrunk, shrink};
pub use world::World;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/testing.md")]
struct Simulator;
