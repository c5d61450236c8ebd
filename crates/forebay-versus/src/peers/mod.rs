//! The peers of `random` and `scan`. Their functions have these names, or say what they do differently.

pub(crate) mod bare;
pub(crate) mod blocking;
pub(crate) mod forebay;
pub(crate) mod runtimes;
pub(crate) mod worker_ring;
