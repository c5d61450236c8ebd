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
pub use env::Env;
