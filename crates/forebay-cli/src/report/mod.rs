//! Results for people: a summary for the terminal, one HTML page, sentences computed from the numbers.

pub(crate) mod amplification;
pub(crate) mod appends;
pub(crate) mod columns;
pub(crate) mod html;
pub(crate) mod reads;
mod sections;
pub(crate) mod summary;
mod svg;
pub(crate) mod verdicts;
pub(crate) mod walks;
pub(crate) mod writes;
