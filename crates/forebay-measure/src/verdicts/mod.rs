//! Titles of experiments, and sentences computed from their numbers.

pub(crate) mod appends;
pub(crate) mod cpu;
#[cfg(test)]
mod devices;
pub(crate) mod fairness;
pub(crate) mod files;
pub(crate) mod interference;
pub(crate) mod patterns;
pub(crate) mod saturate;
pub(crate) mod sustain;
pub(crate) mod walks;
