//! Creates the file, runs the cells of a plan, one process each, and builds the tables.

use std::fmt;

use anyhow::Context as _;

use super::super::gates::Claim;
use super::super::interleave::{Cell, Interleaving, SampleFigures, cut_short, seeds, until};
use super::super::job::Job;
use super::super::residency::evict;
use super::super::sampler::run_child;
use super::super::scratch_dir::ScratchDir;
use super::super::test_file::TestFile;
use super::super::units::show_bytes;
use super::job::{BLOCK_BYTES, Pattern, PatternRow, PatternsResult, PatternsWork, RECORD_BYTES};
use crate::context::Context;
use forebay_report::result::{CacheState, Experiment, Metrics, metric};

/// The memory that a write combiner needs beside its pages, so that a whole range fits: requests in flight, and
/// pages that stay free.
const BESIDE_BYTES: u64 = 24 << 20;
/// The memory for strided records, which come in the order of the file.
const STRIDED_MEMORY_BYTES: u64 = 64 << 20;
/// The seconds after which a child without a result is given up.
const CHILD_SECONDS: f64 = 120.0;

/// The measurements to be made.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) settings: Vec<Setting>,
    pub(super) rows: Vec<PatternRow>,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) repeats: usize,
}

/// The parameters common to the rows of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setting {
    pattern: Pattern,
    bytes: u64,
    participants: u32,
    memory: u64,
    /// Whether rows without memory of their own belong here, too. They are not measured again for
    /// every size of it.
    is_first: bool,
}

impl Setting {
    /// Returns settings of random pieces with memory for the whole range, divided by each of `parts`.
    pub(super) fn random(bytes: u64, parts: &[u32]) -> Vec<Setting> {
        let setting = |(index, part): (usize, &u32)| Setting {
            pattern: Pattern::Random,
            bytes,
            participants: 1,
            memory: if *part == 1 { bytes + BESIDE_BYTES } else { bytes / u64::from(*part) },
            is_first: index == 0,
        };
        parts.iter().enumerate().map(setting).collect()
    }

    /// Returns settings of strided records, one for each number of participants.
    pub(super) fn strided(bytes: u64, participants: &[u32]) -> Vec<Setting> {
        let setting = |participants: &u32| Setting {
            pattern: Pattern::Strided,
            bytes: bytes / RECORD_BYTES * RECORD_BYTES,
            participants: *participants,
            memory: STRIDED_MEMORY_BYTES,
            is_first: true,
        };
        participants.iter().map(setting).collect()
    }

    fn has(&self, row: PatternRow) -> bool {
        match row {
            PatternRow::Combine => true,
            PatternRow::Collective => self.pattern == Pattern::Strided,
            PatternRow::WriteFsync | PatternRow::ODirect => self.is_first,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, memory) = (self.pattern.name(), show_bytes(self.memory));
        write!(formatter, ", {name}, {} participant(s), {memory}", self.participants)
    }
}

/// Measures and returns one experiment for each setting.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
pub(super) fn measure(plan: &Plan, context: &Context) -> anyhow::Result<Vec<Experiment>> {
    let scratch = ScratchDir::find(context, super::KIND.name)?;
    let test_file = TestFile::prepare(context, plan.bytes, None)?;
    let mut cells: Vec<Cell<Setting, PatternRow>> = plan
        .settings
        .iter()
        .flat_map(|setting| plan.rows.iter().map(|row| (*setting, *row)))
        .filter(|(setting, row)| setting.has(*row))
        .map(|(setting, row)| Cell::new(setting, row))
        .collect();
    let interleaving = Interleaving {
        label: format!("measure {}", super::KIND.name),
        repeats: plan.repeats,
        until: until(context),
        place: &scratch.directory,
        context,
    };
    let seeds = seeds(context, plan.repeats);
    let done = interleaving.run(&mut cells, |setting, row, repeat| {
        // Evicted so that no row finds the pages of another one in memory.
        evict(&test_file.handle)?;
        let work = PatternsWork {
            row,
            pattern: setting.pattern,
            bytes: setting.bytes,
            participants: setting.participants as usize,
            memory: setting.memory,
            seconds_max: plan.seconds,
            seed: seeds[repeat] ^ ((row as u64) << 3) ^ (setting.memory << 8),
        };
        let mut job =
            Job::new(super::KIND.name, test_file.path.as_path(), &work, plan.seconds + CHILD_SECONDS)?;
        job.device_stat.clone_from(&test_file.device_stat);
        let text = run_child(&job, None, &context.cleanup)?;
        let result: PatternsResult =
            serde_json::from_str(&text).context("the result of the measuring process cannot be read")?;
        let claim = Claim {
            written_bytes: Some(result.bytes),
            workers: Some(work.participants + usize::from(row.is_forebay())),
            ..Claim::default()
        };
        Ok(SampleFigures { metrics: metrics(&result), evidence: result.evidence, claim })
    })?;
    let conditions = test_file.preconditions.conditions();
    let build = |setting: &Setting| {
        let mut experiment = Experiment::new(super::KIND.name, method(setting.pattern, plan.seconds))
            .parameter("pattern", setting.pattern.name())
            .parameter("participants", setting.participants)
            .parameter("memory_mib", setting.memory >> 20)
            .parameter("bytes", setting.bytes)
            .parameter("piece_bytes", setting.pattern.piece_bytes())
            .parameter("file_bytes", test_file.bytes)
            .parameter("seconds_max", plan.seconds)
            .parameter("repeats", done)
            .parameter("file_system", scratch.filesystem.as_str())
            .parameter("seed", context.seed);
        experiment.notes = cut_short(done, plan.repeats).into_iter().collect();
        experiment.conditions.clone_from(&conditions);
        let of_this = cells.extract_if(.., |cell| cell.setting == *setting);
        experiment.rows = of_this
            .map(|cell| {
                let is_direct = cell.way != PatternRow::WriteFsync;
                let row = cell.into_row();
                if is_direct { row.cache(CacheState::Direct) } else { row }
            })
            .collect();
        experiment
    };
    let experiments = plan.settings.iter().map(build);
    Ok(experiments.filter(|experiment| !experiment.rows.is_empty()).collect())
}

fn metrics(result: &PatternsResult) -> Metrics {
    let bytes = result.bytes as f64;
    let mut metrics = Metrics::default();
    metrics
        .set(metric::SECONDS, result.seconds)
        .set(metric::TOTAL_MS, result.seconds * 1e3)
        .set(metric::MB_PER_S, bytes / 1e6 / result.seconds)
        .set(metric::CPU_S_PER_GB, result.cpu_seconds * 1e9 / bytes);
    let written = result.evidence.counter_deltas.device.map(|moved| moved.written as f64);
    if let Some(requests) = result.requests {
        metrics.set(metric::DEVICE_REQUESTS, requests as f64);
    }
    if let (Some(written), Some(requests)) = (written, result.requests.filter(|requests| *requests > 0)) {
        metrics.set(metric::REQUEST_BYTES_MEAN, written / requests as f64);
    }
    if let Some(written) = written {
        metrics.set(metric::DEVICE_BYTES_PER_BYTE, written / bytes);
    }
    metrics
}

fn method(pattern: Pattern, seconds: f64) -> String {
    let pieces = match pattern {
        Pattern::Random => format!(
            "blocks of {}, each of the range once, in random order, from one thread",
            show_bytes(BLOCK_BYTES)
        ),
        Pattern::Strided => format!(
            "records of {RECORD_BYTES} bytes that stand one behind the other; each participant is a thread and has every \
             so many-th"
        ),
    };
    format!(
        "The file is written through with data that do not compress before anything is measured, so no write \
         allocates. Each sample is a fresh process that has all bytes in memory and the file open, and gathering \
         rows their memory, before the time begins; it writes {pieces}, and the time ends when all of it is durable. \
         `o-direct` begins no more writes after {seconds:.1} s, so where it could not write all compare MB/s. Device \
         requests and bytes are the block device's own counters, for all processes. Pieces are read back afterwards \
         and compared. Rows take turns within a repeat, and a figure is the median of the repeats."
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::system_counters::Bytes;
    use super::*;

    #[test]
    fn figures_come_from_the_counters_of_the_device() {
        let mut result = PatternsResult {
            bytes: 1_000_000,
            seconds: 0.5,
            cpu_seconds: 0.001,
            requests: Some(10),
            ..PatternsResult::default()
        };
        result.evidence.counter_deltas.device = Some(Bytes { read: 7, written: 2_000_000 });
        let found = metrics(&result);
        assert_eq!(found.get(metric::TOTAL_MS), Some(500.0));
        assert_eq!(found.get(metric::MB_PER_S), Some(2.0));
        assert_eq!(found.get(metric::REQUEST_BYTES_MEAN), Some(200_000.0));
        assert_eq!(found.get(metric::DEVICE_BYTES_PER_BYTE), Some(2.0));
        let unknown = metrics(&PatternsResult { requests: None, ..result });
        assert_eq!(unknown.get(metric::DEVICE_REQUESTS), None);
    }

    #[test]
    fn rows_without_memory_are_measured_once() {
        let settings = Setting::random(1 << 30, &[1, 4]);
        assert!(settings[0].has(PatternRow::ODirect) && !settings[1].has(PatternRow::ODirect));
        assert!(settings[1].has(PatternRow::Combine) && !settings[1].has(PatternRow::Collective));
        assert_eq!(settings[1].memory, 256 << 20);
        let settings = Setting::strided(64 << 20, &[1, 8]);
        assert!(settings.iter().all(|setting| PatternRow::ALL.into_iter().all(|row| setting.has(row))));
    }
}
