//! Titles of experiments, and sentences computed from their numbers.

pub(crate) mod appends;
mod buffered;
#[cfg(test)]
mod devices;
pub(crate) mod interference;
pub(crate) mod reads;
pub(crate) mod titles;
pub(crate) mod walks;
