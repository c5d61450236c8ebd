//! Runs cells of random reads, each sample in a process of its own, in an order that is shuffled anew
//! for each repeat.

use std::fmt;
use std::path::Path;

use anyhow::Context as _;

use super::super::gates::Claim;
use super::super::interleave::{self, Interleaving, SampleFigures, until};
use super::super::job::Job;
use super::super::pattern::{Pattern, SplitMix};
use super::super::residency::evict;
use super::super::sampler::run_child;
use super::super::test_file::TestFile;
use super::job::{Pacing, ReadResult, ReadWork, Way};
use super::names;
use super::pacer::{CALLS, WARM};
use crate::context::Context;
use forebay_report::result::{CacheState, Metrics, Row, metric};

/// One way with one number of readers.
pub(crate) type Cell = interleave::Cell<Setting, Way>;

/// The parameters of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Setting {
    pub(crate) readers: usize,
    pub(crate) pacing: Pacing,
    /// The index of the cell's experiment; cells of one experiment have the same.
    pub(crate) experiment: usize,
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pacing {
            Pacing::Closed => write!(formatter, ", {} readers", self.readers),
            Pacing::Open { per_second } => write!(formatter, ", {per_second:.0} a second"),
        }
    }
}

/// The parameters common to all cells.
#[derive(Debug)]
pub(crate) struct Shape<'a> {
    /// The name of the experiment.
    pub(crate) experiment: &'static str,
    pub(crate) test_file: &'a TestFile,
    pub(crate) context: &'a Context,
    /// The namespace, for the ways that send commands.
    pub(crate) namespace: Option<&'a Path>,
    pub(crate) block_bytes: u64,
    pub(crate) workers: usize,
    pub(crate) seconds: f64,
    /// Whether system calls are counted, which also means that processor time is the subject of
    /// the measurement.
    pub(crate) count_calls: bool,
}

/// Returns the seconds that a sample takes beside those measured.
pub(crate) fn extra_seconds(count_calls: bool) -> f64 {
    let calls = if count_calls { CALLS.as_secs_f64() } else { 0.0 };
    WARM.as_secs_f64() + calls
}

impl Shape<'_> {
    /// Takes samples of all cells, again and again; `metrics` computes the figures of one. Returns the
    /// number of repeats.
    ///
    /// # Errors
    /// Fails when no cell could be measured.
    pub(crate) fn run(
        &self,
        cells: &mut [Cell],
        repeats: usize,
        seeds: &mut SplitMix,
        metrics: impl Fn(Way, &Setting, &ReadResult) -> Metrics,
    ) -> anyhow::Result<usize> {
        let interleaving = Interleaving {
            label: format!("measure {}", self.experiment),
            repeats,
            until: until(self.context),
            place: &self.test_file.path,
            context: self.context,
        };
        let mut orders = SplitMix::new(seeds.next_u64());
        let order = |_, count| shuffled(count, &mut orders);
        interleaving.run_in_order(cells, order, |setting, way, _| {
            let result = self.one(setting, way, seeds.next_u64())?;
            let claim = Claim {
                // A page cache that fills during the sample reduces the requests to the device, and
                // commands are not counted.
                read_bytes: (!way.uses_page_cache() && !way.sends_commands())
                    .then(|| result.operations * self.block_bytes),
                workers: way.is_one_thread().then_some(1),
                busy_on_purpose: self.count_calls,
                exact: true,
                blocking: way.is_blocking(),
                ..Claim::default()
            };
            Ok(SampleFigures { metrics: metrics(way, setting, &result), evidence: result.evidence, claim })
        })
    }

    /// Takes one sample in a process of its own.
    fn one(&self, setting: &Setting, way: Way, seed: u64) -> anyhow::Result<ReadResult> {
        if way.uses_page_cache() {
            evict(&self.test_file.handle).context("evicting the file from memory")?;
        }
        let work = ReadWork {
            way,
            span_bytes: self.test_file.bytes,
            block_bytes: self.block_bytes,
            readers: setting.readers,
            workers: self.workers,
            pacing: setting.pacing,
            seconds: self.seconds,
            seed,
            count_calls: self.count_calls,
        };
        let mut job = Job::new(self.experiment, &self.test_file.path, &work, work.seconds)?;
        job.pattern_seed = self.test_file.pattern.map(Pattern::seed);
        job.device_stat.clone_from(&self.test_file.device_stat);
        job.namespace = self.namespace.map(Path::to_owned);
        let text = run_child(&job, None, &self.context.cleanup)?;
        serde_json::from_str(&text).context("the result of the measuring process cannot be read")
    }
}

/// Returns the numbers below `count` in random order (Fisher and Yates), so that no cell always follows the
/// same one, and no drift looks like a slope.
fn shuffled(count: usize, seeds: &mut SplitMix) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, seeds.below(last as u64 + 1) as usize);
    }
    order
}

/// Returns the row of a cell.
pub(crate) fn build_row(cell: Cell) -> Row {
    let cache = if cell.way.uses_page_cache() { CacheState::Evicted } else { CacheState::Direct };
    cell.into_row().cache(cache)
}

/// Returns the figures that every sample has. `workers` are the processors that ways of several
/// threads may use.
pub(crate) fn common_metrics(way: Way, setting: &Setting, result: &ReadResult, workers: usize) -> Metrics {
    let operations = result.operations as f64;
    let cpu_ns = (result.user_ns + result.system_ns) as f64;
    let switches = (result.voluntary_switches + result.involuntary_switches) as f64;
    let processors = if way.is_one_thread() { 1.0 } else { workers as f64 };
    let mut metrics = Metrics::default();
    metrics
        .set(metric::SECONDS, result.seconds)
        .set(metric::IOPS, operations / result.seconds)
        .set(metric::CPU_US_PER_IO, cpu_ns / 1e3 / operations)
        .set(metric::CONTEXT_SWITCHES_PER_IO, switches / operations)
        .set(names::CPU_SHARE, cpu_ns / 1e9 / result.seconds / processors);
    if let Pacing::Open { per_second } = setting.pacing {
        metrics.set(names::OFFERED_PER_S, per_second).set(names::UNANSWERED, result.unanswered as f64);
    }
    let optional = [
        (names::MEAN_US, result.mean_us),
        (metric::P50_US, result.p50_us),
        (metric::P99_US, result.p99_us),
        (metric::P99_9_US, result.p99_9_us),
        (metric::LATE_P99_US, result.late_p99_us),
        (metric::IN_FLIGHT_AVG, result.in_flight_avg),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            metrics.set(name, value);
        }
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffled_order_has_every_cell_once_and_differs_from_repeat_to_repeat() {
        let mut seeds = SplitMix::new(1);
        let orders: Vec<Vec<usize>> = (0..20).map(|_| shuffled(27, &mut seeds)).collect();
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..27).collect::<Vec<_>>());
        }
        assert!(orders.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(shuffled(0, &mut seeds).is_empty());
    }

    #[test]
    fn figures_are_divided_by_the_reads_and_by_the_usable_processors() {
        let setting = Setting { readers: 4, pacing: Pacing::Open { per_second: 900.0 }, experiment: 0 };
        assert_eq!(setting.to_string(), ", 900 a second");
        let result = ReadResult {
            seconds: 0.5,
            operations: 400,
            user_ns: 100_000_000,
            system_ns: 100_000_000,
            voluntary_switches: 300,
            involuntary_switches: 100,
            unanswered: 7,
            mean_us: Some(12.0),
            ..ReadResult::default()
        };
        let found = common_metrics(Way::Pread, &setting, &result, 4);
        let of_row = |name| found.get(name);
        assert_eq!((of_row(metric::IOPS), of_row(metric::CPU_US_PER_IO)), (Some(800.0), Some(500.0)));
        assert_eq!(
            (of_row(metric::CONTEXT_SWITCHES_PER_IO), of_row(names::CPU_SHARE)),
            (Some(1.0), Some(0.1))
        );
        assert_eq!((of_row(names::OFFERED_PER_S), of_row(names::UNANSWERED)), (Some(900.0), Some(7.0)));
        assert_eq!((of_row(names::MEAN_US), of_row(metric::P99_US)), (Some(12.0), None));
        let alone = common_metrics(Way::Uring, &setting, &result, 4);
        assert_eq!(alone.get(names::CPU_SHARE), Some(0.4));
    }
}
