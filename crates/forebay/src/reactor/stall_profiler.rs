//! The stack of a task that held its shard: back-traces for the stall detector (feature `backtrace`).
//!
//! A thread of the engine's, `forebay-watch`, checks a number that each shard changes before and after every poll. When it has seen
//! one poll for longer than [`Config::stall_after`](crate::Config::stall_after), it requests a sample from that shard's thread by a
//! signal. The handler (`on/signal.rs`) copies registers and stack into a buffer that waits for it (`handover.rs`), and everything
//! else happens on the watcher: unwinding the copy, names, text. The executor adds the text to the name of the task when the poll
//! has ended.
//!
//! Without the feature, and on systems where it is not possible, all of this is empty (`off.rs`).

#[cfg(any(
    all(feature = "backtrace", target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")),
    all(forebay_loom, test)
))]
mod handover;

#[cfg(all(feature = "backtrace", target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod on;
#[cfg(all(
    feature = "backtrace",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
pub(crate) use on::{Beat, StallProfiler};

#[cfg(not(all(
    feature = "backtrace",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
mod off;
#[cfg(not(all(
    feature = "backtrace",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
pub(crate) use off::{Beat, StallProfiler};
