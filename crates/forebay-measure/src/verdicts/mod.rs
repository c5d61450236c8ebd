//! Titles of experiments, and sentences computed from their numbers.

mod buffered;
#[cfg(test)]
mod devices;
pub(crate) mod reads;
pub(crate) mod titles;
