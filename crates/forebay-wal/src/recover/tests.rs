//! Tests of recovery, on segments in memory.

mod damage;
mod exhaustive;
mod life;
pub(crate) mod log;
mod pieces;
mod random;
