//! A whole machine from one seed: virtual time, disks with faults, power cuts.
//!
//! A [`World`] runs a program, and the core under it, on one thread and in its own time. Everything undetermined is drawn
//! from its seed: the same seed gives the same run, bit for bit, in every process and on every machine.
//!
//! ```
//! use forebay::sim::{Profile, World};
//! use forebay::{Durability, Open};
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
//! Inside of a world a program awaits everything: `.wait()` is an error, and so is what comes from other threads. The manual
//! page [The simulator](https://github.com/forebay-rs/forebay/blob/main/docs/simulator.md) goes through an example from the first
//! failing seed to its repair.
//!
//! # Which fault may strike where
//!
//! | [`Fault`] | read | write | sync | what else |
//! |---|---|---|---|---|
//! | `TornWrite` `LostWrite` `Reorder` | | at a power cut | | |
//! | `LyingFlush` | | | answers success | |
//! | `ReadError` | `EIO` | | | |
//! | `WriteError` | | direct: `EIO`, a part may be there | buffered: `EIO` | |
//! | `FlushError` | | | `EIO`, and [`Dirty`] says what becomes of the bytes | |
//! | `LatentSectorError` | `EIO` until rewritten | | | |
//! | `BitRot` | stored bit changed | stored bit changed | | |
//! | `MisdirectedWrite` | | lands elsewhere | | |
//! | `NoSpace` | | `ENOSPC` | | allocate, making files and directories, copies |
//! | `ShortRead` `ShortWrite` | fewer bytes | fewer bytes | | |
//! | `Stuck` | never ends | never ends | never ends | |
//! | `Slow` | 1,000 times as long | the same | the same | |
//! | `CancelRace` | | | | a cancel that comes too late |
//!
//! Each by chance or at exactly the n-th operation, for a file, a directory or a range: [`Rule`].
//!
//! # What is durable, and what may be there after a power cut
//!
//! A *direct* write that completed is in the disk's volatile cache, a *buffered* one in the machine's memory. A disk without a
//! volatile cache ([`Profile::write_cache`] of 0) has it on the medium at once. A full cache, and too much in memory (64 MiB, or
//! 4,096 writes in either), move their oldest writes on by themselves; of more than 1,024 changes of names that were not synced
//! the older half becomes durable by itself.
//!
//! | after | is durable |
//! |---|---|
//! | a sync of any file or directory of the disk | all direct writes on that disk that completed before the sync was submitted |
//! | a data sync of a file | also its buffered writes, its length, its holes; with [`Journal`] also every change of names up to the last change of its length, or its creation |
//! | a full sync of a file | as a data sync; with [`Journal`] also every change of names up to the last one that touched it (rename, link, removal) |
//! | a sync of a directory | with [`Journal`] every change of names and lengths (those by calls) up to the last one in it; with [`Posix`] the changes in this directory and no others |
//! | rename, hard_link | what a sync of the new name's directory gives, then of the old one's, in steps of their own: the power may go between the change and each of the syncs |
//! | an orderly restart | everything but what a failed sync lost |
//!
//! | before that, a power cut leaves | |
//! |---|---|
//! | of a direct write that completed | what [`Lost`] says: all, all up to a point, or any; with [`Profile::torn`] any sectors of the write at the point, or of each |
//! | of a buffered write | any sectors |
//! | of a write in flight | any sectors |
//! | of a sector that was written several times | any of its versions since the last flush, or the one before |
//! | of a length that writes grew | the old one, the new one, or one between at a sector; apart from all else. Bytes that did not survive are zeros |
//! | of truncate, allocate, punch_hole | with [`Journal`] in order with all changes of names; with [`Posix`] in order for this file. What was written into the place of something that was cut off is gone if the cut is |
//! | of names, with [`Journal`] | the changes up to one point, none after it: a rename is there or not, also across directories |
//! | of names, with [`Posix`] | of each directory's own changes those up to one point. A rename within a directory is there or not; one across directories may leave the old name, the new one, both or none. A new file whose name survives may be empty |
//! | of locks and open handles, of files without a name | nothing |
//!
//! [`Journal`]: MetadataOrder::Journal
//! [`Posix`]: MetadataOrder::Posix

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
    Sleep, Task, clear_faults, dropped_after, frozen_after, inject, is_inside, note, now, power_cut, random,
    sleep, spawn, spawn_local,
};
pub use shrink::{Schedule, Shrunk, shrink};
pub use world::World;

pub(crate) use link::Link;
