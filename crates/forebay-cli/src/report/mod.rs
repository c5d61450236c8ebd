//! Results for people: a summary for the terminal, one HTML page, sentences computed from the numbers.

pub(crate) mod amplification;
pub(crate) mod appends;
pub(crate) mod columns;
pub(crate) mod files;
pub(crate) mod gates;
pub(crate) mod html;
pub(crate) mod noise;
pub(crate) mod reads;
mod sections;
pub(crate) mod summary;
pub(crate) mod sustain;
mod svg;
pub(crate) mod verdicts;
pub(crate) mod walks;
pub(crate) mod writes;
