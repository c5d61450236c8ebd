//! Limits that `--check` applies to the figures: the project's goals for dependent reads.

use forebay_report::result::{Experiment, Gate, Row, median, metric};

use super::DEPTH;
use super::job::WalkRow;

const IN_FLIGHT: f64 = 64.0;
/// Minimum rate, as a share of the bare loop's.
const RATE_OF_LIMIT: f64 = 0.95;
const CPU_OF_LIMIT: f64 = 1.05;
/// Maximum wakes per lookup: one each; a task that begins while its walk completes at once has none.
const WAKES: f64 = 1.01;
/// Where only the processor limits (zram): minimum CPU of one read at a time, as a multiple of a walk's.
const TIMES_BELOW_TASK: f64 = 1.15;
/// On a disk: maximum CPU, as a share of that of blocking threads.
const CPU_OF_PREAD: f64 = 0.5;
/// From Tokio: minimum rate, as a multiple of that of one `spawn_blocking` for each hop.
const RATE_OF_BLOCKING_DISK: f64 = 1.3;
const RATE_OF_BLOCKING_ZRAM: f64 = 2.0;
const CPU_OF_BLOCKING: f64 = 0.5;
/// Minimum rate with 4 times as many threads as processors, as a share of that with as many as processors.
const RATE_OF_FEW_THREADS: f64 = 0.95;

/// Fills the gates of the tables that have limits: depth 6 with 64 lookups in flight.
pub(super) fn check(experiments: &mut [Experiment], processors: usize) {
    let all = experiments.to_vec();
    for experiment in experiments {
        let threads = experiment.number("threads");
        let is_checked = experiment.number("depth") == Some(DEPTH as f64)
            && experiment.number("in_flight") == Some(IN_FLIGHT);
        if is_checked && threads == Some(1.0) {
            one_thread(experiment);
        }
        if is_checked && threads == Some(4.0 * processors as f64) {
            let few = all.iter().find(|other| {
                let same = |name| other.number(name) == experiment.number(name);
                same("depth")
                    && same("in_flight")
                    && same("node_bytes")
                    && other.number("threads") == Some(processors as f64)
            });
            if let Some(few) = few {
                many_threads(experiment, few);
            }
        }
    }
}

fn one_thread(experiment: &mut Experiment) {
    let is_zram = experiment
        .parameters
        .get("device")
        .and_then(serde_json::Value::as_str)
        .is_some_and(|device| device.starts_with("zram"));
    let (rate, cpu) = (metric::LOOKUPS_PER_S, metric::CPU_US_PER_LOOKUP);
    let mut on_shards = Vec::new();
    let mut from_tokio = Vec::new();
    {
        let against = |row: WalkRow, other: WalkRow, metric: &str| {
            ratio(experiment.row(row.name())?, experiment.row(other.name())?, metric)
        };
        let walk = WalkRow::ForebayWalk;
        if let Some(value) = against(walk, WalkRow::IoUring, rate) {
            on_shards.push(Gate::at_least("lookups: this against io_uring", rate, value, RATE_OF_LIMIT));
        }
        if let Some(value) = against(walk, WalkRow::IoUring, cpu) {
            on_shards.push(Gate::at_most("CPU: this against io_uring", cpu, value, CPU_OF_LIMIT));
        }
        let wakes = metric::WAKES_PER_LOOKUP;
        if let Some(value) = experiment.row(walk.name()).and_then(|row| row.metrics.get(wakes)) {
            on_shards.push(Gate::at_most("wakes of a lookup", wakes, value, WAKES));
        }
        if is_zram && let Some(value) = against(WalkRow::ForebayTask, walk, cpu) {
            on_shards.push(Gate::at_least("CPU: forebay-task against this", cpu, value, TIMES_BELOW_TASK));
        }
        if !is_zram && let Some(value) = against(walk, WalkRow::Pread, cpu) {
            on_shards.push(Gate::at_most("CPU: this against pread", cpu, value, CPU_OF_PREAD));
        }
        let walk = WalkRow::ForebayWalkTokio;
        if let Some(value) = against(walk, WalkRow::BlockingPerHop, rate) {
            let limit = if is_zram { RATE_OF_BLOCKING_ZRAM } else { RATE_OF_BLOCKING_DISK };
            from_tokio.push(Gate::at_least("lookups: this against blocking-per-hop", rate, value, limit));
        }
        let blocking = [WalkRow::BlockingPerHop, WalkRow::BlockingWhole];
        let against_better =
            blocking.into_iter().filter_map(|other| against(walk, other, cpu)).max_by(f64::total_cmp);
        if let Some(value) = against_better {
            let name = "CPU: this against the better blocking row";
            from_tokio.push(Gate::at_most(name, cpu, value, CPU_OF_BLOCKING));
        }
    }
    for (row, gates) in [(WalkRow::ForebayWalk, on_shards), (WalkRow::ForebayWalkTokio, from_tokio)] {
        if let Some(found) = experiment.rows.iter_mut().find(|found| found.name == row.name()) {
            found.gates = gates;
        }
    }
}

fn many_threads(experiment: &mut Experiment, few: &Experiment) {
    for row in [WalkRow::ForebayWalk, WalkRow::ForebayWalkTokio] {
        let Some(found) = experiment.rows.iter_mut().find(|found| found.name == row.name()) else { continue };
        let Some(value) = few.row(row.name()).and_then(|few| ratio(found, few, metric::LOOKUPS_PER_S)) else {
            continue;
        };
        let name = "lookups: 4 times as many threads as processors against as many";
        found.gates.push(Gate::at_least(name, metric::LOOKUPS_PER_S, value, RATE_OF_FEW_THREADS));
    }
}

/// Returns the median of the ratios within a repeat. A slowdown of the whole machine affects both sides.
fn ratio(row: &Row, other: &Row, metric: &str) -> Option<f64> {
    let ratios = row.samples.iter().filter_map(|sample| {
        let same = other.samples.iter().find(|other| other.repeat == sample.repeat)?;
        Some(sample.metrics.get(metric)? / same.metrics.get(metric)?)
    });
    median(ratios.filter(|ratio| ratio.is_finite()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn row(row: WalkRow, rates: &[f64], cpu_us: f64) -> Row {
        let sample = |(repeat, rate): (usize, &f64)| {
            let mut metrics = Metrics::default();
            metrics
                .set(metric::LOOKUPS_PER_S, *rate)
                .set(metric::CPU_US_PER_LOOKUP, cpu_us)
                .set(metric::WAKES_PER_LOOKUP, 1.0);
            Sample { repeat: repeat as u32, metrics }
        };
        Row::from_samples(row.name(), rates.iter().enumerate().map(sample).collect())
    }

    fn experiment(device: &str, threads: u32, rows: Vec<Row>) -> Experiment {
        let mut experiment = Experiment::new("walk", "")
            .parameter("depth", 6)
            .parameter("in_flight", 64)
            .parameter("threads", threads)
            .parameter("node_bytes", 512)
            .parameter("device", device);
        experiment.rows = rows;
        experiment
    }

    fn passed(row: &Row) -> Vec<bool> {
        row.gates.iter().map(|gate| gate.passed).collect()
    }

    #[test]
    fn a_walk_is_held_against_the_limit_and_the_blocking_rows() {
        let rows = || {
            vec![
                row(WalkRow::Pread, &[100.0, 50.0], 50.0),
                row(WalkRow::IoUring, &[100.0, 50.0], 10.0),
                row(WalkRow::ForebayTask, &[90.0, 45.0], 11.4),
                // The second repeat is slow for all rows, through no fault of theirs.
                row(WalkRow::ForebayWalk, &[96.0, 48.0], 10.4),
                row(WalkRow::ForebayWalkTokio, &[90.0, 45.0], 16.0),
                row(WalkRow::BlockingPerHop, &[60.0, 30.0], 60.0),
                row(WalkRow::BlockingWhole, &[80.0, 40.0], 30.0),
            ]
        };
        let mut experiments = [experiment("vda", 1, rows()), experiment("zram3", 1, rows())];
        check(&mut experiments, 2);
        let [disk, zram] = &experiments;
        assert_eq!(passed(&disk.rows[3]), [true, true, true, true], "{:?}", disk.rows[3].gates);
        assert_eq!(passed(&zram.rows[3]), [true, true, true, false], "{:?}", zram.rows[3].gates);
        assert_eq!(passed(&disk.rows[4]), [true, false], "{:?}", disk.rows[4].gates);
        assert_eq!(passed(&zram.rows[4]), [false, false], "{:?}", zram.rows[4].gates);
        assert!(disk.rows[5].gates.is_empty() && disk.rows[0].gates.is_empty());
    }

    #[test]
    fn many_threads_are_held_against_few() {
        let of = |threads, rate| experiment("vda", threads, vec![row(WalkRow::ForebayWalk, &[rate], 9.0)]);
        let mut experiments = [of(2, 100.0), of(8, 96.0), of(5, 1.0)];
        check(&mut experiments, 2);
        let gates: Vec<Vec<bool>> = experiments.iter().map(|found| passed(&found.rows[0])).collect();
        assert_eq!(gates, [vec![], vec![true], vec![]]);
    }

    #[test]
    fn other_depths_have_no_limits() {
        let rows = vec![row(WalkRow::IoUring, &[100.0], 1.0), row(WalkRow::ForebayWalk, &[1.0], 99.0)];
        let mut experiments = [experiment("vda", 1, rows).parameter("depth", 5)];
        check(&mut experiments, 2);
        assert!(experiments[0].rows.iter().all(|row| row.gates.is_empty()));
    }
}
