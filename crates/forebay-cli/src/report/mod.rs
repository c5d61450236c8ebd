//! Human-readable results: a summary for the terminal, one HTML page, sentences computed from the numbers.

mod advice;
pub(crate) mod amplification;
pub(crate) mod appends;
mod buffered;
mod chart;
mod charts;
pub(crate) mod columns;
pub(crate) mod conditions;
pub(crate) mod cpu;
#[cfg(test)]
mod devices;
pub(crate) mod embed;
pub(crate) mod facts;
pub(crate) mod fairness;
pub(crate) mod files;
mod histogram;
pub(crate) mod html;
pub(crate) mod interference;
mod knee;
mod marks;
mod modes;
pub(crate) mod noise;
mod order;
pub(crate) mod patterns;
mod place;
mod questions;
pub(crate) mod reads;
pub(crate) mod saturate;
mod sections;
pub(crate) mod summary;
pub(crate) mod sustain;
mod svg;
pub(crate) mod verdicts;
pub(crate) mod view;
pub(crate) mod waits;
pub(crate) mod walks;
pub(crate) mod writes;
