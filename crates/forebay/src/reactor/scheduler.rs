//! Who goes first: one queue for each physical device, shared by all shards of an engine.
//!
//! - **A quiet device** (one class on one shard after the other, nobody else within 100 ms) costs a comparison an
//!   operation: it passes, and nothing is counted. Only requests above 64 KiB are, so that no more than 8 MiB of them
//!   are with the device when somebody else comes along.
//! - **A contended device** has a budget of bytes in flight: the least that keeps its throughput ([`Knee`]). Shards hold
//!   leases of it. What finds no room waits in the slots of the op table, linked per class, and the class that has had
//!   the least of its share goes next (start-time fair queueing: Goyal, Vin and Cheng 1996), piece by piece: a
//!   request larger than a piece goes to the device as several.
//! - What a write costs beside a read is found meanwhile ([`WriteCost`](write_cost::WriteCost)), so that shares are of the
//!   device's time.
//! - A class that has had less than its share is let in at once with one request, even when the budget is spent.
//!
//! Nothing here allocates, locks or arms a timer for an operation. Shared memory is touched by operations of contended
//! devices and of capped classes only, and once a turn for a look at whether the device is still quiet.

mod cost;
mod device;
mod knee;
mod lane;
mod lanes;
mod queue;
mod write_cost;

pub(crate) use device::DeviceScheduler;
pub(crate) use lane::Counts;
pub(crate) use lanes::{Admission, Here, Lanes};
