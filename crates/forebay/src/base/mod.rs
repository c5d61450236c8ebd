//! Names that every layer uses: errors, classes, priorities, processors, health, one-shot channels, waiting, and the
//! switch to model checking. Imports no other layer.

pub(crate) mod affinity;
mod broken;
pub(crate) mod class;
mod debug_parts;
pub(crate) mod error;
pub(crate) mod fork;
pub(crate) mod health;
pub(crate) mod here;
pub(crate) mod in_flight;
#[cfg(feature = "_mutants")]
pub mod mutants;
pub(crate) mod paused_clock;
pub(crate) mod pending;
pub(crate) mod priority;
pub(crate) mod size_limit;
pub(crate) mod sync;
#[cfg(any(
    feature = "_sim",
    all(feature = "tokio", target_os = "linux", not(forebay_no_uring)),
    all(test, forebay_loom)
))]
pub(crate) mod try_lock;
pub(crate) mod wait;
pub(crate) mod wakes;
#[cfg(any(
    feature = "_sim",
    all(feature = "tokio", target_os = "linux", not(forebay_no_uring)),
    all(test, forebay_loom)
))]
pub(crate) mod watch_flag;
