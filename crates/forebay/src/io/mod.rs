//! The types of one operation: its kind and durability, the configuration, where shards run, the statistics and their text.

pub(crate) mod command;
pub(crate) mod config;
pub(crate) mod exposition;
pub(crate) mod host;
pub(crate) mod metadata;
pub(crate) mod mode;
pub(crate) mod op;
pub(crate) mod placement;
pub(crate) mod stats;
