//! Dependent reads inside the Linux kernel.
//!
//! A lookup in a tree reads a page, searches it, and only then knows which page is next. With [`forebay::Walk`] a program makes
//! that decision where the read completes. With a [`KernelWalk`] the decision is a small BPF program inside the kernel. A walk of
//! six pages is then one system call instead of six.
//!
//! [`KernelWalk::open`] picks the best engine that works for a file here, and reports which one and why:
//! - [`EngineKind::Module`]: the module `forebay_walk` (kernel 6.12 or later), which starts the next read below the file system.
//!   Accepts files on ext4 and XFS that no process writes to, and pins them. Needs CAP_SYS_ADMIN when it is opened, and the right
//!   to open the module's device.
//! - [`EngineKind::BpfLoop`]: io_uring's own loop (kernel 7.1 or later). Needs CAP_BPF and CAP_PERFMON when
//!   it is opened; reads are ordinary reads of the caller's own file, with its permissions.
//! - [`EngineKind::Reactor`]: Forebay's reactor, everywhere.
//!
//! A [`Program`] has its step in both forms, and its results are the same on each. `docs/kernel-walks.md`
//! lists the possible engines for each environment, their requirements and their limits.
//!
//! The crate links libbpf, which needs libelf and zlib with their headers, `make` and a C compiler. The
//! package contains the BPF objects already built (`scripts/build-kernel-bpf`), so that a build needs no
//! clang.
#![cfg(target_os = "linux")]
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

mod choice;
mod device;
mod engine_failure;
mod error;
mod inside;
mod layout;
mod loader;
mod local;
mod memory;
mod module;
mod on_shard;
mod options;
mod process;
mod program;
mod reactor;
mod rights;
mod ring;
mod session;
mod slot;
mod table;
mod table_count;
mod tree;
mod walk;
mod worker;

pub use error::{Error, Result};
pub use local::{FinishedWalk, LocalWalk, probe};
pub use options::{EngineKind, KernelStats, Options};
pub use program::{Next, Positions, Program, Scratch};
pub use table::{Descent, Leaf, TABLE_DAMAGED, TABLE_KEY_BYTES_MAX, TABLE_LARGER, TableDescent};
pub use table_count::{TABLE_RANGE_KEY_BYTES_MAX, TableCount, TableCountResult, TableRange};
pub use tree::{Count, CountResult, Lookup, TREE_DAMAGED, TreeCount, TreeLookup};
pub use walk::{KernelWalk, PendingWalk, PendingWalks};
