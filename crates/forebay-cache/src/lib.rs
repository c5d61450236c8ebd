//! A bounded cache of file pages in the program's own memory, over direct I/O.
//!
//! ```
//! use forebay::{Config, Engine, Open};
//! use forebay_cache::{Cache, CacheOptions};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("records");
//! # std::fs::write(&path, vec![7; 1 << 20])?;
//! let engine = Engine::start(Config::new())?;
//! let cache = Cache::new(&engine, CacheOptions::new().bytes_max(256 << 20))?;
//! let file = cache.open(&path, Open::read()).await?; // direct I/O, past the page cache
//! let record = file.read(10_000..10_200).await?; // from the device
//! let again = file.read(10_000..10_200).await?; // from memory: no system call, no copy
//! assert_eq!(record, again);
//! assert_eq!(cache.stats().pages.hits, 1);
//! # Ok(()) }
//! ```
//!
//! For programs that read with direct I/O and find some of their data again: the kernel's page cache is not there to
//! keep it. The cache has a fixed size, a scan does not flush it, tasks that miss the same page share one read, and a
//! hit costs a tenth of a microsecond on the caller's thread.
//!
//! | you want | use |
//! |---|---|
//! | a cache | [`Cache::new`], [`CacheOptions`] |
//! | a file with it | [`Cache::open`], [`Cache::file`] |
//! | a range | [`CachedFile::read`], [`CachedFile::read_up_to`] |
//! | a range only if it is in memory, without a future | [`CachedFile::get`] |
//! | many ranges, of several files | [`Cache::read_many`] |
//! | to write | [`CachedFile::write`], [`CachedFile::write_block`] |
//! | to forget pages after other changes | [`CachedFile::invalidate`] |
//! | figures | [`Cache::stats`] |
//! | a cache for blocks that you read yourself | [`BlockCache`] |
//!
//! A read that a task started continues when nothing polls that task any more, and the first waiter that is polled completes it: a
//! future that is kept and not polled does not block others.
//!
//! [The guide](https://github.com/forebay-rs/forebay/blob/main/docs/cache.md) says when the page cache is the better
//! one, and what each part costs.

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

mod blocks;
mod cache;
mod doorkeeper;
mod file;
mod flight;
mod read;
mod window;
mod write;

pub use blocks::{BlockCache, BlockStats};
pub use cache::{Cache, CacheOptions, CacheStats};
#[doc(hidden)]
pub use doorkeeper::Doorkeeper;
pub use file::CachedFile;
pub use read::{Read, ReadMany};
pub use write::Write;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/cache.md")]
struct Guide;
