//! `wal`: durable appends to a log from many writers and from one, beside a bare group commit and other logs.

mod bare;
mod block_on;
mod drive;
mod forebay;
mod gates;
mod okaywal;
mod raft_engine;
mod record;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cell::Cell;
use crate::child::{self, Job};
use crate::cli::Common;
use crate::device_writes;
use crate::environment::cores;
use crate::report::{Document, Experiment};
use crate::sample::Sample;
use crate::scratch::Tree;

/// All rows, in the order of the table.
const ROWS: &[&str] = &[
    "alone",
    "alone-again",
    "alone-fdatasync",
    "bare",
    "bare-again",
    "bare-fdatasync",
    "bare-threads",
    "bare-growing",
    "forebay",
    "forebay-threads",
    "forebay-shard",
    "forebay-growing",
    "raft-engine",
    "raft-engine-blocking",
    "raft-engine-growing",
    "okaywal",
];

/// Rows that only make sense for one writer.
const ROWS_OF_ONE: &[&str] = &["alone", "alone-again", "alone-fdatasync"];
/// Rows that only make sense for several writers.
const ROWS_OF_MANY: &[&str] =
    &["bare-again", "bare-fdatasync", "bare-threads", "forebay-threads", "raft-engine-blocking"];
/// Rows of a log that only grows: no segment was written before, and no record is released.
const ROWS_GROWING: &[&str] = &["bare-growing", "forebay-growing", "raft-engine-growing"];

const COLUMNS: &[(&str, &str, usize)] = &[
    ("appends_per_s", "appends/s", 0),
    ("ratio_to_limit", "to limit", 3),
    ("ratio_to_limit_min", "min", 3),
    ("ratio_to_limit_max", "max", 3),
    ("p50_us", "p50 us", 1),
    ("p99_us", "p99 us", 1),
    ("cpu_us_per_append", "CPU us", 2),
    ("device_writes_per_append", "dev writes", 3),
    ("context_switches_per_append", "switches", 3),
    ("allocations_per_append", "allocs", 4),
    ("records_per_group", "rec/group", 1),
    ("flush_p50_us", "flush us", 1),
    ("queued_p50_us", "queued us", 1),
    ("segments_made", "segs made", 0),
];

/// Room that a run needs at once; the peers' logs hold no more, unless they grow.
const ROOM_BYTES: u64 = 2 << 30;
/// Room for each second that a log grows: more than the devices these rows were made on can write.
const ROOM_BYTES_PER_S: f64 = 2e9;

/// Options of `wal`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Writers: appends under way at once.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1])]
    writers: Vec<usize>,
    /// Sizes of a record, in bytes (at least 16).
    #[arg(long, value_delimiter = ',', default_values_t = [256, 4096])]
    record_bytes: Vec<usize>,
    /// Interleaved repeats; the gates want seven or more.
    #[arg(long, default_value_t = 7)]
    repeats: usize,
    /// Measured seconds per sample.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Seconds before that do not count, after the segments were prepared.
    #[arg(long, default_value_t = 0.3)]
    warm_up_seconds: f64,
}

/// The measurement of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WalJob {
    row: String,
    /// A folder of this sample's own, empty.
    dir: PathBuf,
    writers: usize,
    record_bytes: usize,
    warm_up: Duration,
    measure: Duration,
}

/// Runs the experiment.
///
/// # Errors
/// When the folder cannot be made or has no room, for a size out of range, or when interrupted.
pub(crate) fn run(options: &Options) -> Result<usize> {
    let rows = options.common.choose(ROWS)?;
    ensure!(
        options.record_bytes.iter().all(|bytes| (record::BYTES_MIN..=record::BYTES_MAX).contains(bytes)),
        "--record-bytes goes from {} to {}",
        record::BYTES_MIN,
        record::BYTES_MAX
    );
    ensure!(options.writers.iter().all(|count| (1..=1024).contains(count)), "--writers goes from 1 to 1024");
    let dir = options.common.dir()?;
    let growing_s = if rows.iter().any(|row| ROWS_GROWING.contains(row)) {
        options.seconds + options.warm_up_seconds
    } else {
        0.0
    };
    check_room(&dir, ROOM_BYTES + (growing_s * ROOM_BYTES_PER_S) as u64)?;
    if let Err(error) = device_writes::start_counting(&dir) {
        eprintln!("writes of the device are not counted: {error:#}");
    }
    let tree = Tree::in_dir(&dir, "forebay-versus-wal")?;
    let mut document = Document::new();
    for &writers in &options.writers {
        for &record_bytes in &options.record_bytes {
            let left_out = if writers == 1 { ROWS_OF_MANY } else { ROWS_OF_ONE };
            let rows: Vec<&str> = rows.iter().copied().filter(|row| !left_out.contains(row)).collect();
            if rows.is_empty() {
                eprintln!("none of these rows is one for {writers} writers");
                continue;
            }
            document.push(measure_cell(options, tree.path(), &rows, writers, record_bytes)?);
            options.common.write_json(&document)?;
        }
    }
    document.summarise()
}

fn measure_cell(
    options: &Options,
    dir: &Path,
    rows: &[&str],
    writers: usize,
    record_bytes: usize,
) -> Result<Experiment> {
    let label = format!("wal, {writers} writers x {record_bytes} B");
    let cell = Cell::run(&label, rows, options.repeats, |row| {
        let tree = Tree::in_dir(dir, row)?;
        let job = WalJob {
            row: row.to_owned(),
            dir: tree.path().to_owned(),
            writers,
            record_bytes,
            warm_up: Duration::from_secs_f64(options.warm_up_seconds),
            measure: Duration::from_secs_f64(options.seconds),
        };
        child::measure(&Job::Wal(job), None)
    })?;
    let parameters = json!({
        "writers": writers,
        "record_bytes": record_bytes,
        "repeats": options.repeats,
        "seconds": options.seconds,
        "warm_up_seconds": options.warm_up_seconds,
        "segment_bytes": bare::SEGMENT_BYTES,
        "tokio_workers": cores(),
    });
    let parameters = parameters.as_object().cloned().unwrap_or_default();
    let mut experiment = Experiment::new("wal", parameters, cell.rows());
    gates::judge(&mut experiment, &cell, writers, record_bytes);
    let title = format!(
        "durable appends, {writers} writers x {record_bytes} B: medians of {} x {} s on segments that were written \
         before (the rows `-growing`: never before), after {} s of warm-up; Tokio with {} workers; a flush is a device \
         write, too",
        options.repeats,
        options.seconds,
        options.warm_up_seconds,
        cores()
    );
    experiment.print(&title, COLUMNS);
    Ok(experiment)
}

fn check_room(dir: &Path, needed: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(dir).with_context(|| format!("looking at {}", dir.display()))?;
    let free = stat.f_bavail * stat.f_frsize;
    ensure!(
        free > needed,
        "{} has {} MiB free, the logs need {} MiB; choose another folder with --dir",
        dir.display(),
        free >> 20,
        needed >> 20
    );
    Ok(())
}

/// Measures one sample in this process.
///
/// # Errors
/// The error of the row.
pub(crate) fn measure(job: &WalJob) -> Result<Sample> {
    // The parent has reported it where this cannot be done.
    let _ = device_writes::start_counting(&job.dir);
    let sample = match job.row.as_str() {
        "alone" | "alone-again" => bare::alone(job, bare::Flush::WithTheWrite),
        "alone-fdatasync" => bare::alone(job, bare::Flush::AfterTheWrite),
        "bare" | "bare-again" => bare::from_tokio(job, bare::Flush::WithTheWrite),
        "bare-fdatasync" => bare::from_tokio(job, bare::Flush::AfterTheWrite),
        "bare-threads" => bare::from_threads(job, bare::Flush::WithTheWrite),
        "bare-growing" => bare::growing(job),
        "forebay" => forebay::from_tokio(job),
        "forebay-threads" => forebay::from_threads(job),
        "forebay-shard" => forebay::on_shard(job),
        "forebay-growing" => forebay::growing(job),
        "raft-engine" => raft_engine::from_threads(job),
        "raft-engine-blocking" => raft_engine::from_tokio(job),
        "raft-engine-growing" => raft_engine::growing(job),
        "okaywal" => okaywal::from_threads(job),
        other => bail!("there is no row {other}"),
    }?;
    Ok(in_words_of_logs(&sample))
}

/// Renames the metrics. The meter counts I/Os; here one is an append.
fn in_words_of_logs(sample: &Sample) -> Sample {
    let mut renamed = Sample::default();
    for (metric, value) in sample.metrics() {
        let name = match metric.as_str() {
            "iops" => "appends_per_s".to_owned(),
            "ios" => "appends".to_owned(),
            other => other.replace("_per_io", "_per_append"),
        };
        renamed.set(&name, *value);
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_append_is_what_the_meter_calls_an_io() {
        let mut sample = Sample::default();
        for metric in ["iops", "ios", "cpu_us_per_io", "p99_us"] {
            sample.set(metric, 1.0);
        }
        let names: Vec<_> = in_words_of_logs(&sample).metrics().keys().cloned().collect();
        assert_eq!(names, ["appends", "appends_per_s", "cpu_us_per_append", "p99_us"]);
    }
}
