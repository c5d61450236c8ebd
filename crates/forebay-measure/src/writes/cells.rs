//! Makes the file, runs the cells of a plan, each in a process of its own, and builds the tables.

use std::fmt;

use anyhow::Context as _;

use super::super::gates::Claim;
use super::super::interleave::{Interleaving, SampleFigures, cells, cut_short, seeds, until};
use super::super::job::Job;
use super::super::residency::evict;
use super::super::sampler::run_child;
use super::super::test_file::TestFile;
use super::super::units::show_bytes;
use super::super::{plan::fit_seconds, scratch_dir::ScratchDir};
use super::job::{BLOCK_BYTES, Pattern, WriteRow, WritesResult, WritesWork};
use crate::context::Context;
use forebay_report::result::{CacheState, Experiment, Metrics, metric};

/// The rows and settings to measure.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) settings: Vec<Setting>,
    pub(super) rows: Vec<WriteRow>,
    pub(super) file_bytes: u64,
    pub(super) operations: u64,
    pub(super) seconds: f64,
    pub(super) repeats: usize,
}

/// Settings that the rows of one table share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) pattern: Pattern,
    pub(super) clients: u32,
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, ", {}, {} client(s)", self.pattern.name(), self.clients)
    }
}

/// Measures all settings and returns one experiment for each.
///
/// # Errors
/// The path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
pub(super) fn measure(plan: &Plan, context: &Context) -> anyhow::Result<Vec<Experiment>> {
    let scratch = ScratchDir::find(context, super::KIND.name)?;
    let test_file = TestFile::prepare(context, plan.file_bytes, None)?;
    let mut cells = cells(&plan.settings, &plan.rows);
    // The bytes written in that time still have to reach the device, in a row that syncs at the end.
    let seconds = fit_seconds(2.0 * plan.seconds, cells.len() * plan.repeats, context.remaining()) / 2.0;
    let interleaving = Interleaving {
        label: format!("measure {}", super::KIND.name),
        repeats: plan.repeats,
        until: until(context),
        place: &scratch.directory,
        context,
    };
    let seeds = seeds(context, plan.repeats);
    let done = interleaving.run(&mut cells, |setting, row, repeat| {
        // No row must find the pages of another one in memory.
        evict(&test_file.handle)?;
        let work = WritesWork {
            row,
            pattern: setting.pattern,
            file_bytes: test_file.bytes,
            clients: setting.clients as usize,
            operations: plan.operations,
            seconds_max: seconds,
            // Each row writes different blocks, so that none is written again while a device still has
            // it in its cache.
            seed: seeds[repeat] ^ ((row as u64) << 3) ^ (u64::from(setting.clients) << 8),
        };
        // Syncing takes as long as the device needs for the bytes written in that time.
        let mut job = Job::new(super::KIND.name, test_file.path.as_path(), &work, 10.0 * seconds)?;
        job.device_stat.clone_from(&test_file.device_stat);
        let text = run_child(&job, None, &context.cleanup)?;
        let result: WritesResult =
            serde_json::from_str(&text).context("the result of the measuring process cannot be read")?;
        let claim = Claim {
            written_bytes: Some(result.operations * BLOCK_BYTES),
            workers: Some(work.clients + usize::from(row.is_forebay())),
            ..Claim::default()
        };
        Ok(SampleFigures { metrics: metrics(row, &result), evidence: result.evidence, claim })
    })?;
    let conditions = test_file.preconditions.conditions();
    let build = |setting: &Setting| {
        let mut experiment = Experiment::new(super::KIND.name, method(setting.pattern, seconds))
            .parameter("pattern", setting.pattern.name())
            .parameter("clients", setting.clients)
            .parameter("operations", plan.operations)
            .parameter("block_bytes", BLOCK_BYTES)
            .parameter("file_bytes", test_file.bytes)
            .parameter("seconds_max", seconds)
            .parameter("repeats", done)
            .parameter("file_system", scratch.filesystem.as_str())
            .parameter("seed", context.seed);
        experiment.notes = notes(done, plan.repeats);
        experiment.conditions.clone_from(&conditions);
        let of_this = cells.extract_if(.., |cell| cell.setting == *setting);
        experiment.rows = of_this
            .map(|cell| {
                let is_direct = cell.way.is_direct();
                let row = cell.into_row();
                if is_direct { row.cache(CacheState::Direct) } else { row }
            })
            .collect();
        experiment
    };
    Ok(plan.settings.iter().map(build).collect())
}

fn metrics(row: WriteRow, result: &WritesResult) -> Metrics {
    let operations = result.operations as f64;
    let mut metrics = Metrics::default();
    metrics
        .set(metric::SECONDS, result.total_s)
        .set(metric::OPEN_MS, result.open_s * 1e3)
        .set(metric::WRITE_MS, result.write_s * 1e3)
        .set(metric::SYNC_MS, result.sync_s * 1e3)
        .set(metric::CLOSE_MS, result.close_s * 1e3)
        .set(metric::TOTAL_MS, result.total_s * 1e3)
        .set(metric::IOPS_ADVERTISED, operations / result.write_s)
        .set(metric::CPU_US_PER_IO, result.cpu_seconds * 1e6 / operations);
    if row.is_durable() {
        metrics.set(metric::IOPS_RELIABLE, operations / result.total_s);
    }
    let bytes = operations * BLOCK_BYTES as f64;
    let optional = [
        (metric::P50_US, result.p50_us),
        (metric::P99_US, result.p99_us),
        (metric::SYNC_LEFT_OUT_MS, result.left_out_s.map(|seconds| seconds * 1e3)),
        (
            metric::DEVICE_BYTES_PER_BYTE,
            result.evidence.counter_deltas.device.map(|moved| moved.written as f64 / bytes),
        ),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            metrics.set(name, value);
        }
    }
    metrics
}

fn method(pattern: Pattern, seconds: f64) -> String {
    let places = match pattern {
        Pattern::Dense => "each block of one range of the file once, in random order",
        Pattern::Sparse => "few blocks of the file, far apart, in random order, none twice",
    };
    format!(
        "The file is written through with data that do not compress before anything is measured, so no write \
         allocates. Each sample is a fresh process whose clients open the file, write blocks of {} ({places}), sync \
         and close as the row says, and begin no more writes after {seconds:.2} s. Open, write, sync and close are \
         the times that a client spent in these calls, averaged over the clients; total is from the beginning until \
         the last client was ready. \"As advertised\" divides the writes by the time in write calls alone; \"you can \
         rely on\" divides them by the total, and is given only of rows that are durable when they end. For the \
         others \"sync left out\" is how long the sync took that they did not make. The last blocks of each client \
         are read back from the device. Rows take turns within a repeat, and a figure is the median of the repeats.",
        show_bytes(BLOCK_BYTES),
    )
}

fn notes(repeats: usize, wanted: usize) -> Vec<String> {
    let mut notes = vec![
        "`naive` and `o-direct` do not wait until their writes are durable: there is nothing in them to rely on".to_owned(),
    ];
    notes.extend(cut_short(repeats, wanted));
    notes
}

/// The writes of one client in each repeat: their number, the time they took, and the time of the sync
/// left out.
#[cfg(test)]
pub(crate) type Simulated = (u32, std::time::Duration, Option<std::time::Duration>);

/// Returns the table of such writes.
#[cfg(test)]
pub(crate) fn simulated(rows: &[(&str, Vec<Simulated>)]) -> Experiment {
    use forebay_report::result::{Row, Sample};
    let mut experiment = Experiment::new(super::KIND.name, "")
        .parameter("pattern", Pattern::Sparse.name())
        .parameter("clients", 1)
        .parameter("block_bytes", BLOCK_BYTES);
    for (name, repeats) in rows {
        let way = WriteRow::ALL.into_iter().find(|way| way.name() == *name).expect("a row");
        let sample = |(writes, time, left_out): &Simulated| {
            let result = WritesResult {
                operations: u64::from(*writes),
                write_s: time.as_secs_f64(),
                total_s: time.as_secs_f64(),
                left_out_s: left_out.map(|time| time.as_secs_f64()),
                ..WritesResult::default()
            };
            Sample { repeat: 0, metrics: metrics(way, &result) }
        };
        experiment.rows.push(Row::from_samples(*name, repeats.iter().map(sample).collect()));
    }
    experiment
}

#[cfg(test)]
mod tests {
    use super::super::super::system_counters::Bytes;
    use super::*;

    #[test]
    fn advertised_features_leave_out_the_reliable_ones() {
        let mut result = WritesResult {
            operations: 1000,
            write_s: 0.01,
            sync_s: 0.4,
            total_s: 0.5,
            ..WritesResult::default()
        };
        result.evidence.counter_deltas.device = Some(Bytes { read: 7, written: 8_192_000 });
        let durable = metrics(WriteRow::SyncClose, &result);
        assert_eq!(durable.get(metric::IOPS_ADVERTISED), Some(100_000.0));
        assert_eq!(durable.get(metric::IOPS_RELIABLE), Some(2_000.0));
        assert_eq!(durable.get(metric::DEVICE_BYTES_PER_BYTE), Some(2.0));
        assert_eq!(
            (durable.get(metric::SYNC_MS), durable.get(metric::SYNC_LEFT_OUT_MS)),
            (Some(400.0), None)
        );
        let naive = metrics(WriteRow::Naive, &WritesResult { left_out_s: Some(0.3), ..result });
        assert_eq!(
            (naive.get(metric::IOPS_RELIABLE), naive.get(metric::SYNC_LEFT_OUT_MS)),
            (None, Some(300.0))
        );
    }
}
