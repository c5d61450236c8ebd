//! `kv`: gets, loads and durable puts of forebay-kv, beside the disk itself and other stores.

mod data;
mod drive;
mod fjall;
mod forebay;
mod gates;
mod groups;
mod heed;
mod peer;
mod raw;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod run;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::cli::Common;
use crate::device_writes;
use crate::memory_limit;
use crate::page_cache;
use crate::sample::Sample;
use crate::usage::{self, Usage};

pub(crate) use run::run;

/// Threads of a store whose calls block, where many gets are in flight at once.
const THREADS: usize = 32;
/// Gets and puts in flight at once where they are tasks, and writers of durable puts.
const IN_FLIGHT: usize = 64;
/// Gets in flight at once beside writers.
const BUSY_GETS: usize = 8;
const BUSY_WRITERS: usize = 2;
/// Entries of one write by these writers.
const BATCH: usize = 100;
/// Bytes of the value of a durable put.
const PUT_BYTES: usize = 256;
/// Smaller files are not checked for cached pages.
const EVICTED_BYTES_MIN: u64 = 1 << 20;

/// Options of `kv`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: Common,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Workload::ALL)]
    workloads: Vec<Workload>,
    /// Keys that are loaded, each with 1,000 bytes.
    #[arg(long, default_value_t = 4_000_000)]
    keys: u64,
    /// Interleaved repeats; the gates want five or more. A load is done once.
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Measured seconds per sample.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Measured seconds of gets beside writers, and as many of the same gets at rest before.
    #[arg(long, default_value_t = 5.0)]
    busy_seconds: f64,
    /// Seconds before that do not count: caches fill, and memory is touched for the first time.
    #[arg(long, default_value_t = 3.0)]
    warm_up_seconds: f64,
    /// Memory that each row may use, page cache included, in MiB (needs root).
    #[arg(long, default_value_t = 1024)]
    memory_mib: u64,
    /// The same for the workload `small`.
    #[arg(long, default_value_t = 40)]
    small_memory_mib: u64,
    /// The most space on the disk, in GB. Rows whose data do not fit at once run one group after the other,
    /// each beside `raw`.
    #[arg(long, default_value_t = 20)]
    disk_gb: u64,
}

/// The workloads of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Workload {
    /// All keys, in their order, the fastest way a store has.
    Load,
    /// Random gets, one at a time.
    One,
    /// Many random gets at once.
    Many,
    /// The same with little memory.
    Small,
    /// Random gets from 64 tasks of Tokio, beside a timer; `raw-ring` is the ring of each worker with nothing above it.
    Tokio,
    /// Random gets at rest, and beside writers that overwrite random keys.
    Busy,
    /// Durable puts by 64 writers into an empty store.
    Puts,
}

impl Workload {
    const ALL: [Self; 7] =
        [Self::Load, Self::One, Self::Many, Self::Small, Self::Tokio, Self::Busy, Self::Puts];

    /// Returns the workload's rows.
    fn rows(self) -> &'static [&'static str] {
        match self {
            Self::Load => &["raw", "forebay", "redb", "fjall", "heed", "rocksdb"],
            Self::One => &["raw", "raw-again", "forebay", "forebay-wait", "redb", "fjall", "heed", "rocksdb"],
            Self::Many => &[
                "raw",
                "raw-again",
                "forebay",
                "forebay-wait",
                "forebay-shard",
                "redb",
                "fjall",
                "heed",
                "rocksdb",
            ],
            Self::Small => &["raw", "raw-again", "forebay", "redb", "fjall", "heed", "rocksdb"],
            Self::Tokio => &[
                "raw-ring",
                "raw-ring-again",
                "forebay-native",
                "forebay",
                "redb",
                "fjall",
                "heed",
                "rocksdb",
            ],
            Self::Busy => &["forebay", "forebay-no-classes", "redb", "fjall", "heed", "rocksdb"],
            Self::Puts => &["forebay", "forebay-threads", "redb", "fjall", "heed", "rocksdb"],
        }
    }

    /// Returns the name of its operations in metrics, and the name of their rate.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Load => ("key", "keys_per_s"),
            Self::Puts => ("put", "puts_per_s"),
            _ => ("get", "gets_per_s"),
        }
    }

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// The measurement of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KvJob {
    row: String,
    workload: Workload,
    /// The folder of the row's store; empty for a load and for puts.
    dir: PathBuf,
    keys: u64,
    /// Memory that the row may use in all.
    memory_bytes: u64,
    /// The cgroup to enter first.
    cgroup: Option<PathBuf>,
    seed: u64,
    warm_up: Duration,
    measure: Duration,
}

/// Measures one sample in this process.
///
/// # Errors
/// The error of the row.
pub(crate) fn measure(job: &KvJob) -> Result<Sample> {
    // The parent has reported it where this cannot be done.
    let _ = device_writes::start_counting(&job.dir);
    evict(&job.dir)?;
    if let Some(cgroup) = &job.cgroup {
        memory_limit::enter(cgroup)?;
    }
    let mut sample = in_words_of(job.workload, &measure_row(job)?);
    sample.set("rss_mb", usage::peak_resident_bytes() / 1e6);
    if let Some(peak) = job.cgroup.as_deref().and_then(memory_limit::peak_bytes) {
        sample.set("memory_mb", peak / 1e6);
    }
    Ok(sample)
}

fn measure_row(job: &KvJob) -> Result<Sample> {
    let is_load = job.workload == Workload::Load;
    if job.row.starts_with("raw") {
        return if is_load { load(job, || raw::load(job)) } else { raw::get(job) };
    }
    if job.row.starts_with("forebay") {
        if is_load {
            return load(job, || {
                let opened = forebay::Opened::open(job)?;
                opened.load(job.keys)?;
                opened.close()
            });
        }
        let opened = forebay::Opened::open(job)?;
        let sample = opened.measure(job)?;
        opened.close()?;
        return Ok(sample);
    }
    if is_load {
        load(job, || peer::open(job)?.load(job.keys, &data::Values::new()))
    } else {
        drive::measure(job, &peer::open(job)?)
    }
}

/// Measures a load as a whole, from opening to closing, and its files on the disk.
fn load(job: &KvJob, load: impl FnOnce() -> Result<()>) -> Result<Sample> {
    rustix::fs::sync();
    let (written, used, begun) = (device_writes::written_bytes(), Usage::now(), Instant::now());
    load()?;
    let (elapsed, used) = (begun.elapsed(), Usage::now().since(&used));
    rustix::fs::sync();
    let data_bytes = (job.keys * data::ENTRY_BYTES) as f64;
    let mut sample = Sample::default();
    sample.set("iops", job.keys as f64 / elapsed.as_secs_f64());
    sample.set("ios", job.keys as f64);
    sample.set_usage(&used, job.keys);
    sample.set("space", data::disk_bytes(&job.dir)? as f64 / data_bytes);
    if let (Some(before), Some(after)) = (written, device_writes::written_bytes()) {
        sample.set("write_amplification", (after - before) as f64 / data_bytes);
    }
    Ok(sample)
}

/// Evicts the pages that an earlier process left in the page cache: no row's memory would be charged for
/// them.
fn evict(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("looking into {}", dir.display()))? {
        let path = entry?.path();
        let metadata = path.metadata()?;
        if metadata.is_dir() {
            evict(&path)?;
        } else if metadata.len() >= EVICTED_BYTES_MIN {
            page_cache::evict(&path, false)?;
        }
    }
    Ok(())
}

/// Renames the metrics. The meter counts I/Os; here one is a get, a put or a key.
fn in_words_of(workload: Workload, sample: &Sample) -> Sample {
    let (word, rate) = workload.words();
    let mut renamed = Sample::default();
    for (metric, value) in sample.metrics() {
        let name = match metric.as_str() {
            "iops" => rate.to_owned(),
            "ios" => format!("{word}s"),
            "device_reads_per_io" => format!("reads_per_{word}"),
            other => other.replace("_per_io", &format!("_per_{word}")),
        };
        renamed.set(&name, *value);
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_of_the_meter_is_a_get_a_put_or_a_key() {
        let mut sample = Sample::default();
        for metric in ["iops", "ios", "cpu_us_per_io", "device_reads_per_io", "p99_us"] {
            sample.set(metric, 1.0);
        }
        let names = |workload| in_words_of(workload, &sample).metrics().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(Workload::One), ["cpu_us_per_get", "gets", "gets_per_s", "p99_us", "reads_per_get"]);
        assert_eq!(
            names(Workload::Puts),
            ["cpu_us_per_put", "p99_us", "puts", "puts_per_s", "reads_per_put"]
        );
    }
}
