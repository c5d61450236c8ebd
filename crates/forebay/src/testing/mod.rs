//! What every driver of this crate must do, as cases that anyone can run.
//!
//! [`suite`] holds the cases; [`Env`] is where one of them runs: an engine and a directory of its own. The cases use the
//! public interface only, so they tell of a new driver, of a kernel or a file system that nobody has tried yet, and of
//! the simulator, whether a program may rely on what the documentation says.

mod env;
pub mod sequence;
mod storage;
pub mod suite;

#[cfg(feature = "_breakage")]
#[doc(hidden)]
pub use crate::base::breakage;
pub use env::Env;
