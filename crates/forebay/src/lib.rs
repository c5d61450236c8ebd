//! Storage I/O at the speed of the device.
//!
//! A forebay is the basin right in front of the turbine: the last water before the work. This crate is that basin between
//! a storage device and a program: it keeps the device busy, keeps the program off the I/O path, and copies nothing.
//!
//! ```
//! use forebay::{Config, Engine, Open};
//!
//! # fn main() -> forebay::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("points.bin");
//! let engine = Engine::start(Config::default())?;
//! let file = engine.open(&path, Open::create()).wait()?;
//! file.write(0, vec![7u8; 8192]).wait()?; // .await in a task, .wait() on a plain thread
//! let block = file.read(1_003..1_103).wait()?;
//! assert_eq!(&block[..], &[7u8; 100]);
//! # Ok(()) }
//! ```
//!
//! - [`Engine`]: started once; owns the shards (threads with a ring each) and the I/O memory.
//! - [`File`]: `Clone + Send + Sync`; read, write, [`read_many`](File::read_many), [`scan`](File::scan),
//!   [`append`](File::append), [`combine`](File::combine), [`collective`](File::collective), sync and the rest, from Tokio, from any executor, from plain threads, from shards.
//! - [`Walk`]: dependent reads, decided inside completion handling.
//! - [`Block`] and [`BlockMut`]: the memory that I/O happens in; a read copies nothing.
//! - [`Class`]: who is asking.
//! - [`shard`]: what code that runs next to the device may call.
//! - [`Device`](device::Device): what is below a file.
//!
//! # Features
//! - `tokio`: `AsyncRead` for scans, `AsyncWrite` for appends.
//! - `stream`: `futures_core::Stream` for scans and `read_many`.
//! - `tracing`: events for degradations, and for tasks that hold their shard.
//! - `backtrace`: where such tasks stood, in [`Stall::back_trace`]; Linux on x86_64 and aarch64.
//! - `sim`: a simulated machine, for tests of what is built on this crate.
//! - `testing`: the conformance suite that every driver passes.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod append;
mod arena;
mod block;
mod calibration;
mod class;
mod collective;
mod combine;
mod config;
pub mod device;
mod dir;
mod driver;
mod engine;
mod error;
mod file;
mod fork;
mod gather;
mod health;
mod nop;
mod nvme;
mod op;
mod open;
mod pending;
mod priority;
mod read;
mod read_many;
mod scan;
mod scheduler;
pub mod shard;
mod signals;
#[cfg(feature = "sim")]
pub mod sim;
mod stats;
mod stats_server;
mod submit;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod wait;
mod walk;
mod watch;
mod write;

pub use append::{Append, AppendBuilder};
pub use block::{Block, BlockMut};
pub use calibration::{Calibration, Rates};
pub use class::{Class, ClassScope, ClassSpec, Tenant};
pub use collective::{Collective, CollectiveBuilder};
pub use combine::{Combine, CombineBuilder};
pub use config::{Config, DriverChoice, Polling};
pub use device::Alignment;
pub use dir::{Dir, DirEntry, FileKind, Metadata};
pub use driver::meta::{Advice, Lock};
pub use engine::{CloseReport, Engine, MemoryReservation};
pub use error::{Error, ErrorKind, Result};
pub use file::File;
pub use gather::GatherStats;
pub use health::{Degradation, Health};
pub use nop::Nop;
pub use nvme::OpenNvme;
pub use op::{Durability, Flush};
pub use open::{Mode, Open};
pub use pending::Pending;
pub use priority::{Priority, polite_worker};
pub use read::{Read, ReadInto, ReadUpTo};
pub use read_many::{ReadMany, ReadManyStream};
#[cfg(feature = "tokio")]
pub use scan::ScanReader;
pub use scan::{Scan, ScanBuilder};
pub use stats::{
    ClassStats, DeviceStats, FileStats, FlowStats, Latency, MemoryStats, ShardStats, SlowStep, Stall, Stats,
    WalkStats,
};
pub use stats_server::StatsServer;
pub use wait::{FromError, Waitable};
pub use walk::{Ranges, Step, Walk, WalkMany, WalkOne};
pub use write::{Sync, Write, WriteData};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/getting-started.md")]
struct GettingStarted;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/porting.md")]
struct Porting;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/walks.md")]
struct Walks;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/polling.md")]
struct PollingPage;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/gathering.md")]
struct Gathering;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/classes.md")]
struct Classes;
#[cfg(all(doctest, feature = "calibration"))]
#[doc = include_str!("../../../docs/calibration.md")]
struct CalibrationPage;
#[cfg(all(doctest, feature = "sim"))]
#[doc = include_str!("../../../docs/simulator.md")]
struct Simulator;
