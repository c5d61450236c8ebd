//! `wal`: durable appends to a log from many writers and from one, beside a bare group commit and other logs.

mod bare;
mod drive;
mod forebay;
mod okaywal;
mod raft_engine;
mod record;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_measure::check_space;
use forebay_report::page::columns::{APPENDS_PER_S, CPU_US_PER_APPEND};

use crate::prelude::*;
use crate::run::RATIO_TO_LIMIT;
use bare::{Flush, Segment};
use drive::{from_threads, from_tokio};

/// The experiment.
pub(crate) static WAL: Versus = Versus { spec: &SPEC, targets: &TARGETS, plan, sample, title };

static SPEC: Spec = spec(
    "wal",
    "Durable appends to a log, beside a bare group commit and other logs",
    &[
        Opt::count("writers", "Appends under way at once", 1024).list().or("64,1"),
        Opt::bytes("record-bytes", "Sizes of a record", record::BYTES_MIN as u64, record::BYTES_MAX as u64)
            .list()
            .or("256,4096"),
        Opt::count("repeats", "Interleaved repeats; the targets want seven or more", 1000).or("7"),
        Opt::seconds("1", "1"),
        Opt::time(
            "warm-up-seconds",
            "Seconds before that do not count, after the segments were prepared",
            0.0,
            86_400.0,
        )
        .or("0.3"),
    ],
    &[
        Way::direct("alone", "a direct write with O_DSYNC on one thread, no queue"),
        Way::direct("alone-again", "the same, for the A-A spread"),
        Way::direct("alone-fdatasync", "a direct write and fdatasync on one thread, no queue"),
        Way::direct("bare", "group commit and nothing else, with O_DSYNC, from tasks of Tokio"),
        Way::direct("bare-again", "the same, for the A-A spread"),
        Way::direct("bare-fdatasync", "the same with fdatasync after a direct write"),
        Way::direct("bare-threads", "bare from threads"),
        Way::direct("bare-growing", "bare into segments that are new"),
        Way::direct("forebay", "forebay-wal from tasks of Tokio"),
        Way::direct("forebay-threads", "forebay-wal from threads"),
        Way::direct("forebay-shard", "forebay-wal from tasks next to the log"),
        Way::direct("forebay-growing", "forebay-wal in a log that only grows"),
        Way::direct("raft-engine", "raft-engine 0.4.2 from threads; each writer is a raft group"),
        Way::direct("raft-engine-blocking", "the same from tasks of Tokio, one spawn_blocking an append"),
        Way::direct("raft-engine-growing", "raft-engine from threads in a log that only grows"),
        Way::direct("okaywal", "okaywal 0.3.1 from threads, with checkpoints that do nothing"),
    ],
    &[
        APPENDS_PER_S,
        RATIO_TO_LIMIT,
        P50_US,
        P99_US,
        CPU_US_PER_APPEND,
        column(
            "device_writes_per_append",
            "dev writes",
            1.0,
            "writes and flushes of the device for one append",
        ),
        column("context_switches_per_append", "switches", 1.0, "context switches for one append"),
        column("allocations_per_append", "allocs", 1.0, "heap allocations on the shard for one append"),
        column("records_per_group", "rec/group", 1.0, "records of one write"),
        column("flush_p50_us", "flush us", 1.0, "median time from a group's submission until it was durable"),
        column(
            "queued_p50_us",
            "queued us",
            1.0,
            "median time from a group's first record to its submission",
        ),
        column("segments_made", "segs made", 1.0, "segments that were made anew"),
    ],
    "ratio_to_limit",
);

/// Rows that only make sense for one writer.
const ROWS_OF_ONE: &[&str] = &["alone", "alone-again", "alone-fdatasync"];
/// Rows that only make sense for several writers.
const ROWS_OF_MANY: &[&str] =
    &["bare-again", "bare-fdatasync", "bare-threads", "forebay-threads", "raft-engine-blocking"];

/// The limit for one writer and for many is the way to flush that has the better median.
const ONE: &[&str] = &["alone", "alone-fdatasync"];
const MANY: &[&str] = &["bare", "bare-fdatasync"];
const RAFT_ENGINE: &[&str] = &["raft-engine", "raft-engine-blocking"];

static TARGETS: Targets = Targets {
    ranked_by: "appends_per_s",
    // Rows of one writer replace the limit of many.
    ratios: &[
        Ratio { name: "ratio_to_limit", metric: "appends_per_s", beside: Beside::Over(MANY) },
        Ratio { name: "ratio_to_limit", metric: "appends_per_s", beside: Beside::Over(ONE) },
        Ratio { name: "p50_us_above_limit", metric: "p50_us", beside: Beside::Above(MANY) },
        Ratio { name: "p50_us_above_limit", metric: "p50_us", beside: Beside::Above(ONE) },
    ],
    spreads: &[
        ("bare-again", "appends_per_s", "a_a_spread"),
        ("bare-again", "p99_us", "a_a_spread_p99"),
        ("alone-again", "appends_per_s", "a_a_spread"),
        ("alone-again", "p99_us", "a_a_spread_p99"),
    ],
    limits: &[
        Target::of("forebay", "appends_per_s").over(MANY).at_least(0.95).within("bare-again").when(is_many),
        Target::of("forebay", "p99_us").over(MANY).at_most(1.15).within("bare-again").when(is_many),
        Target::of("forebay", "appends_per_s")
            .over(RAFT_ENGINE)
            .at_least(1.4)
            .within("bare-again")
            .when(is_many_small),
        Target::of("forebay", "appends_per_s")
            .over(RAFT_ENGINE)
            .at_least(1.9)
            .within("bare-again")
            .when(|table| is_many(table) && table.number("record_bytes") == Some(4096.0)),
        Target::of("forebay", "cpu_us_per_append").at_most(10.0).when(is_many),
        // A change of segment allocates a few dozen times, once in a quarter of a million records of 256 B; nothing else may.
        Target::of("forebay", "allocations_per_append").at_most(0.001).when(is_many_small),
        Target::of("forebay-shard", "allocations_per_append").at_most(0.001).when(is_many_small),
        Target::of("forebay-shard", "p50_us").over(ONE).at_most(1.05).within("alone-again").when(is_one),
        // How much longer an append from Tokio may take than a write and a flush on one thread.
        Target::of("forebay", "p50_us").above(ONE).at_most(25.0).when(is_one),
        // The device's work for an append that is alone: a write and a flush, and rarely a change of segment.
        Target::of("forebay", "device_writes_per_append").at_most(2.1).when(is_one),
        Target::of("forebay-shard", "device_writes_per_append").at_most(2.1).when(is_one),
    ],
};

fn is_one(table: &Table) -> bool {
    table.number("writers") == Some(1.0)
}

fn is_many(table: &Table) -> bool {
    table.number("writers") == Some(64.0)
}

fn is_many_small(table: &Table) -> bool {
    is_many(table) && table.number("record_bytes") == Some(256.0)
}

/// Room that a run needs at once; the peers' logs hold no more, unless they grow.
const ROOM_BYTES: u64 = 2 << 30;
/// Room for each second that a log grows: more than the devices these rows were made on can write.
const ROOM_BYTES_PER_S: f64 = 2e9;

fn title(table: &Table) -> String {
    let number = |name| table.number(name).unwrap_or(0.0);
    format!("Durable appends, {} writers x {} B", number("writers"), number("record_bytes"))
}

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let (scratch, place) = run::scratch(context, SPEC.name, true)?;
    let seconds = |name| options.number(name).unwrap_or(0.0);
    let grows = options.rows.is_empty() || options.rows.iter().any(|row| row.ends_with("-growing"));
    let growing_s = if grows { seconds("seconds") + seconds("warm-up-seconds") } else { 0.0 };
    let room_bytes = ROOM_BYTES + (growing_s * ROOM_BYTES_PER_S) as u64;
    check_space(&scratch.directory, room_bytes, "name another directory with --dir")?;
    if place.device_stat.is_none() {
        context.progress.print_line("writes of the device are not counted: there is no single block device");
    }
    let mut settings = Vec::new();
    for writers in options.counts("writers") {
        settings.extend(options.counts("record-bytes").into_iter().map(|record_bytes| {
            parameters(json!({
                "writers": writers, "record_bytes": record_bytes, "segment_bytes": bare::SEGMENT_BYTES,
                "warm_up_seconds": seconds("warm-up-seconds"), "tokio_workers": cores(),
            }))
        }));
    }
    let method = "Each sample is a process of its own with a log of its own, on segments that were written before (the rows \
        `-growing`: never before). Its time begins after a warm-up. A flush is a device write, too. Rows take turns within \
        a repeat; ratios are those of the same repeat, and figures medians.";
    let mut run = Run::new(context, place, settings, method);
    run.has = Box::new(|setting: &Parameters, row| {
        let is_one = setting.get("writers") == Some(&Value::from(1));
        !if is_one { ROWS_OF_MANY } else { ROWS_OF_ONE }.contains(&row)
    });
    run.prepare = Box::new(move |_, job| {
        let directory = run::directory(context, &scratch.directory, "wal")?;
        job.path = directory.path().to_owned();
        Ok(Some(Box::new(directory)))
    });
    Ok(run)
}

/// The work of a sample.
#[derive(Clone, Debug, Deserialize)]
struct Work {
    /// A folder of this sample's own, empty.
    #[serde(skip)]
    dir: PathBuf,
    #[serde(skip)]
    measure: Duration,
    writers: usize,
    record_bytes: usize,
    warm_up_seconds: f64,
}

impl Work {
    /// Returns the window of time that counts, which begins to warm up now.
    fn window(&self) -> Arc<Window> {
        Window::start(Duration::from_secs_f64(self.warm_up_seconds), self.measure)
    }
}

fn sample(job: &Job) -> Result<Outcome> {
    let work = &Work { dir: job.path.clone(), measure: Duration::from_secs_f64(job.seconds), ..job.work()? };
    let bare = |flush, state| bare::Log::start(work, flush, state);
    let outcome = match without_again(&job.row) {
        "alone" => bare::alone(work, Flush::WithTheWrite),
        "alone-fdatasync" => bare::alone(work, Flush::AfterTheWrite),
        "bare" => from_tokio(work, bare(Flush::WithTheWrite, Segment::Written)?),
        "bare-fdatasync" => from_tokio(work, bare(Flush::AfterTheWrite, Segment::Written)?),
        "bare-threads" => from_threads(work, bare(Flush::WithTheWrite, Segment::Written)?),
        "bare-growing" => from_tokio(work, bare(Flush::WithTheWrite, Segment::New)?),
        "forebay" => from_tokio(work, forebay::Log::start(work)?),
        "forebay-threads" => from_threads(work, forebay::Log::start(work)?),
        "forebay-shard" => forebay::on_shard(work),
        "forebay-growing" => from_tokio(work, forebay::Log::start_growing(work)?),
        "raft-engine" => from_threads(work, raft_engine::Log::start(work)?),
        "raft-engine-blocking" => from_tokio(work, raft_engine::Log::start(work)?),
        "raft-engine-growing" => from_threads(work, raft_engine::Log::start_growing(work)?),
        "okaywal" => from_threads(work, okaywal::Log::start(work)?),
        other => Err(no_row(other)),
    }?;
    Ok(run::in_words(outcome, "append"))
}
