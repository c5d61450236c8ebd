//! Work on results that were saved as JSON: `diff`, `assert`, `convert`.

pub mod assertion;
pub mod convert;
pub mod diff;
mod select;
pub mod waited;
