//! Results for people: a summary for the terminal, one HTML page, sentences computed from the numbers.

pub(crate) mod appends;
pub(crate) mod columns;
pub(crate) mod conditions;
pub(crate) mod cpu;
pub(crate) mod html;
mod knee;
pub(crate) mod noise;
mod order;
pub(crate) mod reads;
pub(crate) mod saturate;
mod sections;
pub(crate) mod summary;
mod svg;
pub(crate) mod verdicts;
pub(crate) mod walks;
