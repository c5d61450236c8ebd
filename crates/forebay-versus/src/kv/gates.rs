//! The ratios and the gates of the stores. Rates are judged as ratios to the disk's in the same repeat, as
//! they were when the targets were set: figures move with the machine.

use super::Workload;
use crate::cell::Cell;
use crate::gate::{Bound, Gate};
use crate::report::Experiment;
use crate::statistics::median;

const PEERS: [&str; 4] = ["redb", "fjall", "heed", "rocksdb"];

/// 17.5 thousand gets a second where the disk's rate was 18.7.
const ONE_TO_RAW: f64 = 17.5 / 18.7;
/// 75 thousand where the disk's rate with 32 threads was 73.6.
const MANY_TO_RAW: f64 = 75.0 / 73.6;
const MANY_CPU_US: f64 = 10.0;
const MANY_P99_US: f64 = 1000.0;
/// 55 thousand with little memory, where the disk's rate was 73.6 and the best other store's 39.
const SMALL_TO_RAW: f64 = 55.0 / 73.6;
const SMALL_TO_PEER: f64 = 55.0 / 39.0;
const SMALL_READS: f64 = 1.35;
const BUSY_TO_IDLE: f64 = 3.0;
/// 500 thousand keys a second where LMDB loaded 774.
const LOAD_TO_LMDB: f64 = 500.0 / 774.0;
const LOAD_KEYS_PER_S: f64 = 500_000.0;
const LOAD_AMPLIFICATION: f64 = 1.05;
/// 120 thousand puts a second where RocksDB took 45.
const PUTS_TO_ROCKSDB: f64 = 120.0 / 45.0;
const PUTS_PER_S: f64 = 120_000.0;
const PUTS_P99_US: f64 = 1500.0;
const TOKIO_TO_NATIVE: f64 = 0.95;
const TOKIO_TO_RING: f64 = 0.95;
const TIMER_LATE_US: f64 = 1000.0;

/// Sets the ratios of every row and the gates of Forebay's.
pub(crate) fn judge(experiment: &mut Experiment, cell: &Cell, workload: Workload) {
    let (_, rate) = workload.words();
    for row in cell.rows().iter().map(|row| row.name.as_str()) {
        let ratios: Vec<f64> = cell.values(row, "ratio_to_raw").into_iter().flatten().collect();
        experiment.set_ratio(row, "ratio_to_raw", &ratios);
        experiment.set_ratio(row, "ratio_to_native", &cell.ratios(row, "forebay-native", rate));
    }
    let again = [("raw", "raw-again"), ("raw-ring", "raw-ring-again")]
        .into_iter()
        .find(|(row, again)| cell.has(&[*row, *again]));
    let spread = |metric| again.map_or(0.0, |(row, again)| cell.spread(row, again, metric));
    if let Some((_, again)) = again {
        experiment.set(again, "a_a_spread", spread(rate));
    }
    if !cell.has(&["forebay"]) {
        return;
    }
    let mut judge = Judge { experiment, cell, name: workload.name(), spread: spread(rate) };
    match workload {
        Workload::Load => {
            judge.ratio("heed", rate, LOAD_TO_LMDB);
            judge.figure("keys_per_s", Bound::AtLeast, LOAD_KEYS_PER_S);
            judge.figure("write_amplification", Bound::AtMost, LOAD_AMPLIFICATION);
            judge.figure("space", Bound::AtMost, LOAD_AMPLIFICATION);
        }
        Workload::One => judge.ratio("raw", rate, ONE_TO_RAW),
        Workload::Many => {
            judge.ratio("raw", rate, MANY_TO_RAW);
            judge.figure("cpu_us_per_get", Bound::AtMost, MANY_CPU_US);
            judge.figure("p99_us", Bound::AtMost, MANY_P99_US);
        }
        Workload::Small => {
            judge.ratio("raw", rate, SMALL_TO_RAW);
            // Through the disk: the peers may have run in another group.
            let rank = |row: &&str| judge.experiment.get(row, "ratio_to_raw");
            let best = PEERS.into_iter().filter(|row| rank(row).is_finite());
            if let Some(best) = best.max_by(|a, b| rank(a).total_cmp(&rank(b))) {
                judge.ratio(best, "ratio_to_raw", SMALL_TO_PEER);
            }
            judge.figure("reads_per_get", Bound::AtMost, SMALL_READS);
        }
        Workload::Tokio => {
            judge.ratio("forebay-native", rate, TOKIO_TO_NATIVE);
            judge.ratio("raw-ring", rate, TOKIO_TO_RING);
            // Tokio's timer has a grain of a millisecond itself, so the figure is how much later than at rest
            // it is.
            let late = cell.values("forebay", "timer_late_p99_us");
            let idle = cell.values("forebay", "timer_idle_late_p99_us");
            let more: Vec<f64> = late.iter().zip(&idle).filter_map(|(a, b)| Some((*a)? - (*b)?)).collect();
            judge.experiment.set("forebay", "timer_later_p99_us", median(&more));
            judge.figure("timer_later_p99_us", Bound::AtMost, TIMER_LATE_US);
        }
        Workload::Busy => judge.figure("p99_to_idle", Bound::AtMost, BUSY_TO_IDLE),
        Workload::Puts => {
            judge.ratio("rocksdb", rate, PUTS_TO_ROCKSDB);
            judge.figure("puts_per_s", Bound::AtLeast, PUTS_PER_S);
            judge.figure("p99_us", Bound::AtMost, PUTS_P99_US);
        }
    }
}

struct Judge<'j> {
    experiment: &'j mut Experiment,
    cell: &'j Cell,
    name: String,
    spread: f64,
}

impl Judge<'_> {
    /// Sets a gate on Forebay's share of another row's figure, if that row was measured.
    fn ratio(&mut self, to: &str, metric: &str, target: f64) {
        let ratios = self.cell.ratios("forebay", to, metric);
        if self.cell.has(&[to]) {
            let name = format!("{}: forebay / {to}", self.name);
            self.add(Gate::new(name, Bound::AtLeast, target, median(&ratios), self.spread));
        }
    }

    /// Sets a gate on a figure of Forebay's.
    fn figure(&mut self, metric: &str, bound: Bound, target: f64) {
        let measured = self.experiment.get("forebay", metric);
        self.add(Gate::new(format!("{}: {metric} of forebay", self.name), bound, target, measured, 0.0));
    }

    fn add(&mut self, gate: Gate) {
        self.experiment.add_gate("forebay", gate);
    }
}
