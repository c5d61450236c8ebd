//! Results for people: a summary for the terminal, one HTML page, sentences computed from the numbers.

pub(crate) mod appends;
mod buffered;
pub(crate) mod columns;
pub(crate) mod cpu;
#[cfg(test)]
mod devices;
pub(crate) mod gates;
pub(crate) mod html;
mod knee;
mod modes;
pub(crate) mod noise;
mod order;
pub(crate) mod reads;
pub(crate) mod saturate;
mod sections;
pub(crate) mod summary;
mod svg;
pub(crate) mod verdicts;
pub(crate) mod walks;
