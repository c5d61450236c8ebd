//! The operation-sequence test: any sequence of steps, followed on an engine and on a model at once.
//!
//! A [`Step`] is something that a program may do with a few files: open them in all modes, read and write
//! them from the sequence's own task and from shards, run several operations at once, drop futures half way,
//! use streams, names, lengths. A [`Session`] follows steps on an engine, computes the result that each must
//! have, and reports the first wrong one: a [`Mismatch`]. Blocks returned by reads are kept for a while and
//! checked again, so memory that is released too early shows.
//!
//! Where more than one outcome is right (a write whose future was dropped, or that failed, or that another
//! one overlaps), the model keeps all of them for each sector of 512 bytes until a later read decides. It
//! also keeps the states that a power cut may leave: the data acknowledged as durable, and old or new of
//! everything else.
//!
//! [`simulate`] does this in simulated worlds with faults and power cuts; the same on real drivers is
//! [`run`]. [`generate`] makes sequences out of any source of numbers, [`shrink`] makes a failing one short,
//! and a step's text can be read back.
//!
//! ```
//! use forebay::testing::sequence::{self, Step};
//! # use forebay::{Config, Engine};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let engine = Engine::start(Config::default())?;
//! let steps = ["open h0 a create buffered", "write h0 0+4096 p7 data", "read h0 100..200"];
//! let steps = steps.iter().map(|line| line.parse()).collect::<Result<Vec<Step>, _>>()?;
//! let report = sequence::run(&engine, dir.path(), &steps).await?;
//! assert_eq!(report.steps, 3);
//! # Ok(()) }
//! ```

mod cut;
mod flight;
mod generate;
mod group;
mod length;
mod names;
mod node;
mod outcome;
mod sector;
mod session;
mod shrink;
mod simulated;
mod space;
mod step;
mod text;

use std::path::Path;

use crate::handle::engine::Engine;

pub use generate::generate;
pub use outcome::{Mismatch, Report};
pub use session::Session;
pub use shrink::shrink;
pub use simulated::{Broken, seeded, simulate};
pub use step::{Access, HANDLES, NAMES, Op, Place, Step};
pub use text::ParseStepError;

/// Follows `steps` on `engine` in the empty directory `dir`, checks everything once more, and returns the
/// counts.
///
/// Runs in a task of any executor and on a shard.
///
/// # Errors
/// The first result that must not occur.
pub async fn run(engine: &Engine, dir: &Path, steps: &[Step]) -> Result<Report, Mismatch> {
    let mut session = Session::new(dir);
    session.run(engine, steps, 0).await?;
    session.verify(engine).await?;
    Ok(session.report())
}

#[cfg(test)]
mod tests;
