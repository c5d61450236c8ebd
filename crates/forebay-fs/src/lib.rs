//! `tokio::fs` by name: change the import, and a program's files need no blocking threads of the runtime, and run in simulated
//! worlds.
//!
//! ```
//! use forebay_fs as fs; // was: use tokio::fs;
//! use tokio::io::AsyncWriteExt;
//!
//! # #[tokio::main]
//! # async fn main() -> std::io::Result<()> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("greeting");
//! let mut file = fs::File::create(&path).await?;
//! file.write_all(b"hello, world!").await?;
//! file.flush().await?;
//! assert_eq!(fs::read_to_string(&path).await?, "hello, world!");
//! # Ok(()) }
//! ```
//!
//! | you want | use |
//! |---|---|
//! | what `tokio::fs` has | the same name |
//! | ranges, without a cursor | [`File::read_exact_at`], [`File::read_vectored_at`], [`File::write_all_at`] |
//! | to read past the page cache, or as far as it has not the bytes | [`OpenOptions::direct`], [`OpenOptions::adaptive`] |
//! | other settings of the engine | [`configure`] |
//! | another engine, or a simulated world | [`enter`] for a thread, [`within`] for a task |
//!
//! # Design
//!
//! A [`File`] is a *handle* with a *buffer* and at most one *operation* in flight, as tokio's. A *descriptor* is an open file of
//! the machine; its cursor is the kernel's, so clones and files of the standard library share it. Calls that wait are made by
//! *threads* of this crate, up to 512, with the standard library's functions: their errors and effects are tokio's. Reads that the
//! page cache can serve are copied on the calling thread (`RWF_NOWAIT`). Further reads of a file that is open to read alone, and
//! all positioned reads and those of `direct` and `adaptive` files, are made by the *engine*: the worker's ring, or a shard. A
//! process has one engine, which never ends; a forked child has its own. An *accepted* write belongs to its thread, not to the file
//! or the runtime, whose end waits for it once all tasks are dropped: at the thread's end, or on a blocking thread of a
//! current-thread runtime. Such a runtime has at most one more, which waits for calls while its paused clock must stand. A *scope*
//! puts another engine in the place of the process's; that of a simulated world has separate names and bytes, and without one calls
//! in a world are refused. What can go wrong: clones move one cursor at a time only where the kernel reads (so the engine does not,
//! once a clone exists); a file that the engine has closes a moment after its handle (so files that may be written stay away from
//! it); a thread may be in a call for ever (a pipe without a peer), and then the runtime's end waits as tokio's does.
//!
//! # Differences
//!
//! - `Runtime::shutdown_timeout` waits for accepted writes without a limit.
//! - Calls work without a runtime and on one that is shut down, where tokio's fail or panic.
//! - A forked child opens direct and adaptive files again; other files of its parent work there as well.
//!
//! [The guide](https://github.com/forebay-rs/forebay/blob/main/docs/porting.md) says what else differs, and what worlds have
//! nothing for.

#![deny(unsafe_code)]
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

mod accept;
mod buffer;
mod descriptor;
mod dir_builder;
mod engines;
mod failure;
mod file;
mod names;
mod options;
mod read_dir;
mod simulated;
mod threads;
mod times;

pub use dir_builder::DirBuilder;
pub use engines::{EngineScope, configure, engine, enter, within};
pub use file::File;
pub use names::{
    canonicalize, copy, create_dir, create_dir_all, hard_link, metadata, read, read_link, read_to_string,
    remove_dir, remove_dir_all, remove_file, rename, set_permissions, symlink, symlink_metadata, try_exists,
    write,
};
pub use options::OpenOptions;
pub use read_dir::{DirEntry, ReadDir, read_dir};
pub use times::FileTimes;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/porting.md")]
struct PortingPage;
