//! `wal`: durable appends to a log from many writers and from one, compared with a bare group commit and other logs.

mod group_commit;
mod logs;
mod writers;

use forebay_measure::check_space;
use forebay_report::result::columns::{APPENDS_PER_S, CPU_US_PER_APPEND};

use crate::prelude::*;
use crate::run::RATIO_TO_LIMIT;
use group_commit::{Log as Bare, Segment};
use logs::{Forebay, Okay, Raft};
use writers::{from_threads, from_tokio};

/// Rows that only make sense for one writer.
const ROWS_OF_ONE: &[&str] = &["alone", "alone-again", "alone-fdatasync"];
/// Rows that only make sense for several writers.
const ROWS_OF_MANY: &[&str] =
    &["bare-again", "bare-fdatasync", "bare-threads", "forebay-threads", "raft-engine-blocking"];

/// The limit for one writer and for many is the way to flush that has the better median.
const ONE: &[&str] = &["alone", "alone-fdatasync"];
const MANY: &[&str] = &["bare", "bare-fdatasync"];
const RAFT_ENGINE: &[&str] = &["raft-engine", "raft-engine-blocking"];

experiment! {
    WAL "wal", "Durable appends to a log, beside a bare group commit and other logs",
        compared by "ratio_to_limit", per |_| "append";
    options {
        count("writers", "Appends under way at once", 1024).list().or("64,1");
        bytes("record-bytes", "Sizes of a record", writers::BYTES_MIN as u64, writers::BYTES_MAX as u64)
            .list().or("256,4096");
        count("repeats", "Interleaved repeats; the targets want seven or more", 1000).or("7");
        seconds("1", "1");
        time("warm-up-seconds", "Seconds before that do not count, after the segments were prepared", 0.0, 86_400.0)
            .or("0.3");
    }
    rows {
        direct "alone", "a direct write with O_DSYNC on one thread, no queue"
            => |work| group_commit::alone(work, libc::O_DSYNC), twin direct;
        direct "alone-fdatasync", "a direct write and fdatasync on one thread, no queue"
            => |work| group_commit::alone(work, 0);
        direct "bare", "group commit and nothing else, with O_DSYNC, from tasks of Tokio"
            => |work| from_tokio(work, Bare::start(work, libc::O_DSYNC, Segment::Written)?), twin direct;
        direct "bare-fdatasync", "the same with fdatasync after a direct write"
            => |work| from_tokio(work, Bare::start(work, 0, Segment::Written)?);
        direct "bare-threads", "bare from threads"
            => |work| from_threads(work, Bare::start(work, libc::O_DSYNC, Segment::Written)?);
        direct "bare-growing", "bare into segments that are new"
            => |work| from_tokio(work, Bare::start(work, libc::O_DSYNC, Segment::New)?);
        direct "forebay", "forebay-wal from tasks of Tokio" => |work| from_tokio(work, Forebay::start(work, false)?);
        direct "forebay-threads", "forebay-wal from threads" => |work| from_threads(work, Forebay::start(work, false)?);
        direct "forebay-shard", "forebay-wal from tasks next to the log" => logs::on_shard;
        direct "forebay-growing", "forebay-wal in a log that only grows" => forebay_growing;
        direct "raft-engine", "raft-engine 0.4.2 from threads; each writer is a raft group"
            => |work| from_threads(work, Raft::start(work, false)?);
        direct "raft-engine-blocking", "the same from tasks of Tokio, one spawn_blocking an append"
            => |work| from_tokio(work, Raft::start(work, false)?);
        direct "raft-engine-growing", "raft-engine from threads in a log that only grows" => raft_engine_growing;
        direct "okaywal", "okaywal 0.3.1 from threads, with checkpoints that do nothing"
            => |work| from_threads(work, Okay::start(work)?);
    }
    columns {
        APPENDS_PER_S;
        RATIO_TO_LIMIT;
        P50_US;
        P99_US;
        CPU_US_PER_APPEND;
        "device_writes_per_append" "dev writes", "writes and flushes of the device for one append";
        "context_switches_per_append" "switches", "context switches for one append";
        "allocations_per_append" "allocs", "heap allocations on the shard for one append";
        "records_per_group" "rec/group", "records of one write";
        "flush_p50_us" "flush us", "median time from a group's submission until it was durable";
        "queued_p50_us" "queued us", "median time from a group's first record to its submission";
        "segments_made" "segs made", "segments that were made anew";
    }
    ranked by "appends_per_s"
    // Rows of one writer replace the limit of many.
    ratios {
        "ratio_to_limit" "appends_per_s" Over MANY;
        "ratio_to_limit" "appends_per_s" Over ONE;
        "p50_us_above_limit" "p50_us" Above MANY;
        "p50_us_above_limit" "p50_us" Above ONE;
    }
    spreads {
        "bare-again" "appends_per_s" "a_a_spread";
        "bare-again" "p99_us" "a_a_spread_p99";
        "alone-again" "appends_per_s" "a_a_spread";
        "alone-again" "p99_us" "a_a_spread_p99";
    }
    limits {
        "forebay" "appends_per_s" over MANY, at_least 0.95, within "bare-again", when is_many;
        "forebay" "p99_us" over MANY, at_most 1.15, within "bare-again", when is_many;
        "forebay" "appends_per_s" over RAFT_ENGINE, at_least 1.4, within "bare-again", when is_many_small;
        "forebay" "appends_per_s" over RAFT_ENGINE, at_least 1.9, within "bare-again",
            when |table| is_many(table) && table.number("record_bytes") == Some(4096.0);
        "forebay" "cpu_us_per_append" at_most 10.0, when is_many;
        // A change of segment allocates a few dozen times, once in a quarter of a million records of 256 B; nothing else may.
        "forebay" "allocations_per_append" at_most 0.001, when is_many_small;
        "forebay-shard" "allocations_per_append" at_most 0.001, when is_many_small;
        "forebay-shard" "p50_us" over ONE, at_most 1.05, within "alone-again", when is_one;
        // The limit of an append from Tokio relative to a write and a flush on one thread.
        "forebay" "p50_us" above ONE, at_most 25.0, when is_one;
        // The device's work for an append that is alone: a write and a flush, and rarely a change of segment.
        "forebay" "device_writes_per_append" at_most 2.1, when is_one;
        "forebay-shard" "device_writes_per_append" at_most 2.1, when is_one;
    }
}

/// Measures appends to a new log of forebay-wal.
pub(crate) fn forebay_growing(work: &Work) -> Result<Outcome> {
    from_tokio(work, Forebay::start(work, true)?)
}

/// Measures appends to a new log of raft-engine.
pub(crate) fn raft_engine_growing(work: &Work) -> Result<Outcome> {
    from_threads(work, Raft::start(work, true)?)
}

fn is_one(table: &Table) -> bool {
    table.number("writers") == Some(1.0)
}

fn is_many(table: &Table) -> bool {
    table.number("writers") == Some(64.0)
}

fn is_many_small(table: &Table) -> bool {
    is_many(table) && table.number("record_bytes") == Some(256.0)
}

/// Space that a run needs at a time; the peers' logs hold no more, unless they grow.
pub(crate) const ROOM_BYTES: u64 = 2 << 30;
/// Space for each second that a log grows: more than the devices of these rows can write.
pub(crate) const ROOM_BYTES_PER_S: f64 = 2e9;

fn title(table: &Table) -> String {
    let number = |name| table.number(name).unwrap_or(0.0);
    format!("Durable appends, {} writers x {} B", number("writers"), number("record_bytes"))
}

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let method = "Each sample is a process of its own with a log of its own, on segments that were written before (the rows \
        `-growing`: never before). Its time begins after a warm-up. A flush is a device write, too. Rows take turns within \
        a repeat; ratios are those of the same repeat, and figures medians.";
    let (mut run, scratch) = Run::in_directory(context, WAL.spec.name, true, method)?;
    let seconds = |name| options.number(name).unwrap_or(0.0);
    let grows = options.rows.is_empty() || options.rows.iter().any(|row| row.ends_with("-growing"));
    let growing_s = if grows { seconds("seconds") + seconds("warm-up-seconds") } else { 0.0 };
    let room_bytes = ROOM_BYTES + (growing_s * ROOM_BYTES_PER_S) as u64;
    check_space(&scratch.directory, room_bytes, "name another directory with --dir")?;
    for writers in options.counts("writers") {
        for record_bytes in options.counts("record-bytes") {
            run.table(json!({
                "writers": writers, "record_bytes": record_bytes, "segment_bytes": group_commit::SEGMENT_BYTES,
                "warm_up_seconds": seconds("warm-up-seconds"), "tokio_workers": cores(),
            }));
        }
    }
    run.has = Box::new(|setting, row| {
        let is_one = setting.get("writers") == Some(&Value::from(1));
        !if is_one { ROWS_OF_MANY } else { ROWS_OF_ONE }.contains(&row)
    });
    run.prepare = Box::new(move |_, job| {
        let directory = scratch.temp_directory(context, "wal")?;
        job.path = directory.path().to_owned();
        Ok(Some(Box::new(directory)))
    });
    Ok(run)
}
