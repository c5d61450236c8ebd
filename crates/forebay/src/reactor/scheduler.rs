//! Dispatch order: one queue for each physical device, shared by all shards of an engine.
//!
//! - **A quiet device** (one class on one shard at a time, and no other within 100 ms) costs one comparison
//!   per operation: it passes, and nothing is counted. Only requests above 64 KiB are counted, so that no more
//!   than 8 MiB of them are with the device when another class or shard arrives.
//! - **A contended device** has a budget of bytes in flight: the least that keeps its throughput (`DepthController`). Shards hold
//!   leases of it. Operations beyond the budget wait in the slots of the op table, linked per class. The class that has had the
//!   least of its share is dispatched next (start-time fair queueing: Goyal, Vin and Cheng 1996), piece by piece: a request larger
//!   than a piece is divided.
//! - The cost of a write relative to a read is measured meanwhile ([`WriteCost`](write_cost::WriteCost)), so
//!   that shares are of the device's time.
//! - A class that has had less than its share is admitted immediately with one request, even if the budget is spent.
//! - An operation that a waiting thread carries out itself (`calls.rs`) is admitted and charged as on a shard, but it has no queue:
//!   in competition with other classes a read is admitted as long as nothing waits and it fits into the budget, and everything else
//!   is sent to a shard.
//!
//! Nothing here allocates, locks or arms a timer for an operation. Shared memory is touched by operations of
//! contended devices and of capped classes only, and once a turn to check whether the device is still quiet.

mod cost;
mod depth_controller;
mod device;
mod device_queue;
mod device_queues;
mod queue;
mod write_cost;

pub(crate) use cost::PIECE_BYTES;
pub(crate) use device::DeviceScheduler;
pub(crate) use device_queue::{Counts, Request};
pub(crate) use device_queues::{Admission, DeviceQueues};
