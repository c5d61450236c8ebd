//! Storage I/O at the speed of the device: direct I/O over io_uring with registered buffers, from Tokio, from
//! any other executor, from plain threads, or next to the device.
//!
//! ```
//! use forebay::{Config, Engine, Open};
//!
//! # fn main() -> forebay::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("points.bin");
//! let engine = Engine::start(Config::new())?;
//! let file = engine.open(&path, Open::create()).wait()?; // .await in a task, .wait() on a plain thread
//! file.write(0, vec![7u8; 8192]).wait()?;
//! let block = file.read(1_003..1_103).wait()?; // any offset, any length; no copy
//! assert_eq!(&block[..], &[7u8; 100]);
//! # Ok(()) }
//! ```
//!
//! For programs that keep their runtime and need more of their disk: databases, logs, caches, indexes, query
//! engines. An [`Engine`] owns *shards* (threads with a ring each) and the I/O memory. A [`File`] is a handle that
//! works from Tokio, any other executor, plain threads and tasks on shards. A read returns a [`Block`] of the
//! engine's memory, without a copy.
//!
//! | you want | use |
//! |---|---|
//! | one range of a file | [`File::read`] |
//! | thousands of ranges in one batch | [`File::read_many`] |
//! | a file from front to back, with read-ahead | [`File::scan`] |
//! | a chain of reads: a tree, a list | [`File::walk`] |
//! | to write a range, durably if wanted | [`File::write`], [`Write::durable`] |
//! | to write from front to back, any sizes | [`File::append`] |
//! | small writes at any offsets merged into large writes, or one file written by many tasks | the crate `forebay-collective` |
//! | code next to the device, without hand-over between threads | [`Engine::spawn_on_shard`], [`shard`] |
//! | one class of work before another, or a limit for it | [`Class`], [`ClassSpec`] |
//! | files created, renamed and removed durably | [`Engine::rename`], [`Engine::sync_dir`], [`Dir`] |
//! | an NVMe namespace without a file system | [`Engine::open_nvme`] |
//! | to know how it runs, and why it is slow | [`Engine::health`], [`Engine::stats`], [`StatsServer`], [`Exposition`] |
//! | the devices below a file | [`Device`](device::Device) |
//! | to test your code with faults and power cuts | the crate `forebay-sim` |
//!
//! # Features
//!
//! All are off by default.
//!
//! | feature | adds | needs |
//! |---|---|---|
//! | `tokio` | rings for the workers of a Tokio runtime ([`Config::worker_rings`]); `tokio::io::AsyncRead` for scans, `AsyncWrite` for appends | the crate tokio with `net` and `rt` |
//! | `stream` | `futures_core::Stream` for scans and `read_many` | the crate futures-core |
//! | `calibration` | `Calibration::load`, `from_toml`, `to_toml` | the crate toml |
//! | `backtrace` | `Stall::back_trace`: the place of a task that held its shard; Linux on x86_64 and aarch64 | the crates framehop and backtrace, a thread an engine, and SIGURG |
//! | `tracing` | an event for each degradation, and for each task that held its shard | the crate tracing |
//!
//! # Guides
//!
//! - [Getting started](https://github.com/forebay-rs/forebay/blob/main/docs/getting-started.md): from Tokio, from threads, on shards
//! - [Modes and paths](https://github.com/forebay-rs/forebay/blob/main/docs/modes.md): direct, buffered or adaptive; rings and threads; blocking, containers
//! - [Porting](https://github.com/forebay-rs/forebay/blob/main/docs/porting.md): from `std::fs`, `tokio::fs` and other runtimes
//! - [Tuning](https://github.com/forebay-rs/forebay/blob/main/docs/tuning.md): memory of reads, classes and tenants, calibration, polling, NVMe commands
//! - [Gathering](https://github.com/forebay-rs/forebay/blob/main/docs/collective.md): small writes merged into large writes
//! - [Walks](https://github.com/forebay-rs/forebay/blob/main/docs/walks.md): dependent reads
//! - [The simulator](https://github.com/forebay-rs/forebay/blob/main/docs/testing.md): tests with faults and power cuts
//!
//! A write-ahead log and a key-value store on this crate are `forebay-wal` and `forebay-kv`; `forebay-sim` is a simulated machine for
//! tests, and `forebay-conformance` has the promises of every driver as cases.
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
// With `_sim`, `internal` shows more of the modules.
#![cfg_attr(not(feature = "_sim"), allow(unreachable_pub, reason = "public for `internal`"))]

// Before the others, so that rustdoc, which follows this order, starts the page of `File` with reads and writes.
mod ops;

mod base;
pub mod device;
mod driver;
mod handle;
#[doc(hidden)]
pub mod internal;
mod io;
mod memory;
mod reactor;

pub use base::class::{Class, ClassSpec, Tenant};
pub use base::error::{Error, ErrorKind, Result};
pub use base::health::{Degradation, Health};
#[cfg(feature = "_mutants")]
#[doc(hidden)]
pub use base::mutants;
pub use base::pending::Pending;
pub use base::priority::{Priority, polite_worker};
#[doc(hidden)]
pub use base::wait::FromError;
pub use base::wait::{Waitable, thread_waker};
pub use device::Alignment;
pub use device::calibration::{Calibration, Rates};
pub use driver::meta::{Advice, Lock};
#[doc(hidden)]
pub use handle::engine::EngineThread;
pub use handle::engine::{CloseReport, Engine, MemoryReservation};
pub use handle::file::File;
pub use handle::open::Open;
#[doc(hidden)]
pub use io::command::{CommandEntry, Commands};
pub use io::config::{Config, DriverChoice, Polling, WorkerRings};
pub use io::exposition::{Exposition, Family, MetricKind};
pub use io::metadata::{DirEntry, FileKind, Metadata};
pub use io::mode::Mode;
pub use io::op::{Durability, Flush};
pub use io::placement::Placement;
pub use io::stats::{
    ClassStats, DeviceStats, FileStats, FlowStats, Latency, MemoryStats, ShardStats, SlowStep, Stall, Stats,
    WalkStats,
};
pub use memory::block::{Block, BlockMut};
pub use memory::lent::IoMemory;
pub use ops::append::{Append, AppendBuilder};
#[doc(hidden)]
pub use ops::command_shard::{CommandRing, CommandShard};
pub use ops::dir::Dir;
#[doc(hidden)]
pub use ops::file_cache::{FileCache, FileCount, FileEntry, FilePlace, FileUse};
pub use ops::nop::Nop;
pub use ops::nvme::OpenNvme;
pub use ops::read::{Read, ReadInto, ReadUpTo};
pub use ops::read_many::{PlannedRequest, ReadMany, ReadManyInto, ReadManyStream, ReadPlan};
#[cfg(feature = "tokio")]
pub use ops::scan::ScanReader;
pub use ops::scan::{Scan, ScanBuilder};
pub use ops::stats_server::StatsServer;
pub use ops::walk::{Ranges, Step, Walk, WalkMany, WalkOne};
pub use ops::write::{Sync, Write, WriteData, WriteFrom};
pub use ops::write_many::WriteMany;
pub use reactor::class_scope::ClassScope;
pub use reactor::shard;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/getting-started.md")]
struct GettingStarted;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/modes.md")]
struct ModesPage;
#[cfg(all(doctest, feature = "calibration"))]
#[doc = include_str!("../../../docs/tuning.md")]
struct TuningPage;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/walks.md")]
struct Walks;
