//! Titles of experiments, and sentences computed from their numbers.

mod buffered;
pub(crate) mod cpu;
#[cfg(test)]
mod devices;
pub(crate) mod fairness;
pub(crate) mod files;
pub(crate) mod patterns;
pub(crate) mod reads;
pub(crate) mod saturate;
pub(crate) mod sustain;
pub(crate) mod titles;
pub(crate) mod writes;
