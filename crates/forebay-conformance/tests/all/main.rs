//! The sequences as one program, a module for each subject. The suite is a separate program.

#[path = "../../../forebay/tests/common/mod.rs"]
mod common;
#[path = "../../../forebay/tests/all/tree.rs"]
mod tree;

#[cfg(feature = "_mutants")]
mod mutants;
mod sequence;
mod sequence_fuzz;
