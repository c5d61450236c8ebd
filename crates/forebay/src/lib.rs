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

// Before the others, so that rustdoc, which follows this order, begins the page of `File` with reads and writes.
mod ops;

mod base;
pub mod device;
mod driver;
mod handle;
mod io;
mod memory;
mod reactor;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "testing")]
pub mod testing;

pub use base::class::{Class, ClassSpec, Tenant};
pub use base::error::{Error, ErrorKind, Result};
pub use base::health::{Degradation, Health};
pub use base::pending::Pending;
pub use base::priority::{Priority, polite_worker};
pub use base::wait::{FromError, Waitable};
pub use device::Alignment;
pub use device::calibration::{Calibration, Rates};
pub use driver::meta::{Advice, Lock};
pub use handle::engine::{CloseReport, Engine, MemoryReservation};
pub use handle::file::File;
pub use handle::open::Open;
pub use io::config::{Config, DriverChoice, Polling};
pub use io::metadata::{DirEntry, FileKind, Metadata};
pub use io::mode::Mode;
pub use io::op::{Durability, Flush};
pub use io::stats::{
    ClassStats, DeviceStats, FileStats, FlowStats, Latency, MemoryStats, ShardStats, SlowStep, Stall, Stats,
    WalkStats,
};
pub use memory::block::{Block, BlockMut};
pub use ops::append::{Append, AppendBuilder};
pub use ops::collective::{Collective, CollectiveBuilder};
pub use ops::combine::{Combine, CombineBuilder};
pub use ops::dir::Dir;
pub use ops::gather::GatherStats;
pub use ops::nop::Nop;
pub use ops::nvme::OpenNvme;
pub use ops::read::{Read, ReadInto, ReadUpTo};
pub use ops::read_many::{ReadMany, ReadManyStream};
#[cfg(feature = "tokio")]
pub use ops::scan::ScanReader;
pub use ops::scan::{Scan, ScanBuilder};
pub use ops::stats_server::StatsServer;
pub use ops::walk::{Ranges, Step, Walk, WalkMany, WalkOne};
pub use ops::write::{Sync, Write, WriteData};
pub use reactor::class_scope::ClassScope;
pub use reactor::shard;

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
