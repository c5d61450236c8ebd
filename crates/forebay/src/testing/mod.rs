//! The duties of every driver of this crate, as cases that anyone can run.
//!
//! [`suite`] holds the cases. [`Env`] is the environment of one of them: an engine and a directory of its
//! own. The cases use the public interface only. So they show whether a program may rely on the
//! documentation: on a new driver, on an untried kernel or file system, and in the simulator.

mod env;
pub mod sequence;
mod storage;
pub mod suite;

#[cfg(feature = "_mutants")]
#[doc(hidden)]
pub use crate::base::mutants;
pub use env::{Env, Operation};

use crate::base::error::Result;
use crate::handle::engine::Engine;
use crate::io::config::Config;
use crate::io::host::Host;

/// Starts an engine as [`Engine::start`] does on a machine of that many processors (at least 1), whatever this one has: with as many
/// shards, places for rings of runtimes and caches of waiting threads. The memory is this machine's.
///
/// # Errors
/// Those of [`Engine::start`].
///
/// ```
/// # fn main() -> forebay::Result<()> {
/// let engine = forebay::testing::start_on_processors(64, forebay::Config::default())?;
/// assert_eq!(engine.shard_count(), 16);
/// # Ok(()) }
/// ```
pub fn start_on_processors(processors: usize, config: Config) -> Result<Engine> {
    Engine::start_on(config, Host { processors: processors.max(1), ..Host::here() })
}
