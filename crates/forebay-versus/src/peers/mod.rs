//! The peers: one file each, all with the same two small functions, `random` and (where it makes sense) `scan`.

pub(crate) mod bare;
pub(crate) mod compio;
pub(crate) mod forebay;
pub(crate) mod glommio;
pub(crate) mod monoio;
pub(crate) mod std_threads;
pub(crate) mod tokio_fs;
pub(crate) mod tokio_spawn_blocking;
pub(crate) mod tokio_uring;
pub(crate) mod worker_ring;

use ::forebay::DriverChoice;
use anyhow::{Result, bail};

use crate::random::RandomJob;
use crate::sample::Sample;

/// Measures one sample of random reads with the row that `job` names.
///
/// # Errors
/// The error of the row, or that there is no such row.
pub(crate) fn random(job: &RandomJob) -> Result<Sample> {
    match job.row.as_str() {
        "bare" | "bare-again" => bare::random(job, bare::Waiting::ForOne),
        "bare-batched" => bare::random(job, bare::Waiting::ForSeveral),
        "bare-worker-ring" | "bare-worker-ring-again" => worker_ring::random(job, true),
        "bare-worker-ring-current" => worker_ring::random(job, false),
        "forebay-shard" => forebay::random_on_shard(job),
        "forebay-tokio" => forebay::random_from_tokio(job, true, DriverChoice::Auto),
        "forebay-tokio-current" => forebay::random_from_tokio(job, false, DriverChoice::Auto),
        "forebay-tokio-aio" => forebay::random_from_tokio(job, true, DriverChoice::Threads),
        "forebay-tokio-aio-current" => forebay::random_from_tokio(job, false, DriverChoice::Threads),
        "forebay-wait" => forebay::random_from_threads(job, ::forebay::Open::read()),
        "forebay-wait-adaptive" => forebay::random_from_threads(job, ::forebay::Open::read().adaptive()),
        "forebay-read-many" => forebay::random_read_many(job),
        "glommio" => glommio::random(job),
        "compio" => compio::random(job),
        "monoio" => monoio::random(job),
        "tokio-uring" => tokio_uring::random(job),
        "tokio-spawn-blocking" => tokio_spawn_blocking::random(job),
        "tokio-fs" => tokio_fs::random(job),
        "pread-threads" | "pread-threads-again" => std_threads::random(job),
        other => bail!("there is no row {other}"),
    }
}
