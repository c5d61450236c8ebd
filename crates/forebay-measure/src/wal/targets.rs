//! Limits that `--check` applies to the figures: the project's goals for a log beside busy processors.

use forebay_report::result::{Experiment, Gate, Row, metric};

use super::job::WalRow;

/// Maximum p99 until durable under load, as a multiple of p99 without load.
const CALM: [(WalRow, f64); 2] = [(WalRow::ForebayRealtime, 1.3), (WalRow::ForebayPrompt, 1.5)];
/// Rows whose p99 until durable under load is compared with the log's.
const OTHERS: [WalRow; 2] = [WalRow::TokioFs, WalRow::SpawnBlocking];
const TIMES_BELOW_OTHERS: f64 = 5.0;
const WORK_KEPT: f64 = 0.95;
/// Minimum appends per second of 64 appenders, without load.
const APPENDS_PER_S: f64 = 120_000.0;
const DURABLE_P99_US: f64 = 300.0;

/// Fills the gates. A row that did not get its requested priority has none, nor has a row without figures.
pub(super) fn check(experiments: &mut [Experiment]) {
    let idle = experiments.iter().find(|other| is(other, "open", "none")).cloned();
    for experiment in experiments {
        if is(experiment, "open", "cpu") {
            open_loop(experiment, idle.as_ref());
        } else if is(experiment, "closed", "none") && experiment.number("appenders") == Some(64.0) {
            closed_loop(experiment);
        }
    }
}

fn is(experiment: &Experiment, kind: &str, load: &str) -> bool {
    let has = |name: &str, value: &str| {
        experiment.parameters.get(name).and_then(serde_json::Value::as_str) == Some(value)
    };
    has("loop", kind) && has("load", load) && !experiment.parameters.contains_key("threads")
}

fn open_loop(experiment: &mut Experiment, idle: Option<&Experiment>) {
    let p99 = metric::DURABLE[1];
    let others: Vec<(&str, f64)> = OTHERS
        .iter()
        .filter_map(|row| Some((row.name(), experiment.row(row.name())?.metrics.get(p99)?)))
        .collect();
    for (row, times) in CALM {
        let Some(found) = counted(experiment, row) else { continue };
        let Some(own) = found.metrics.get(p99) else { continue };
        if let Some(without) = idle.and_then(|idle| idle.row(row.name())?.metrics.get(p99)) {
            found.gates.push(Gate::at_most(
                "p99 until durable: load against no load",
                p99,
                own / without,
                times,
            ));
        }
        for (other, theirs) in &others {
            let name = format!("p99 until durable: {other} against this");
            found.gates.push(Gate::at_least(&name, p99, theirs / own, TIMES_BELOW_OTHERS));
        }
        if let Some(kept) = found.metrics.get(metric::WORK_KEPT) {
            found.gates.push(Gate::at_least(
                "work that the runtime keeps",
                metric::WORK_KEPT,
                kept,
                WORK_KEPT,
            ));
        }
    }
}

fn closed_loop(experiment: &mut Experiment) {
    for row in [WalRow::Forebay, WalRow::ForebayPrompt, WalRow::ForebayRealtime] {
        let Some(found) = counted(experiment, row) else { continue };
        if let Some(rate) = found.metrics.get(metric::APPENDS_PER_S) {
            let gate = Gate::at_least("appends of 64 appenders", metric::APPENDS_PER_S, rate, APPENDS_PER_S);
            found.gates.push(gate);
        }
        let p99 = metric::DURABLE[1];
        if let Some(time) = found.metrics.get(p99) {
            found.gates.push(Gate::at_most("p99 until durable of 64 appenders", p99, time, DURABLE_P99_US));
        }
    }
}

/// Returns the row, when its figures count.
fn counted(experiment: &mut Experiment, row: WalRow) -> Option<&mut Row> {
    experiment.rows.iter_mut().find(|found| found.name == row.name() && found.degraded.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn row(row: WalRow, p99_us: f64, kept: f64) -> Row {
        let mut metrics = Metrics::default();
        metrics.set(metric::DURABLE[1], p99_us).set(metric::WORK_KEPT, kept);
        Row::from_samples(row.name(), vec![Sample { repeat: 0, metrics }])
    }

    fn open(load: &str, rows: Vec<Row>) -> Experiment {
        let mut experiment = Experiment::new("wal", "").parameter("loop", "open").parameter("load", load);
        experiment.rows = rows;
        experiment
    }

    #[test]
    fn a_row_is_held_against_itself_and_the_others() {
        let mut experiments = [
            open("none", vec![row(WalRow::ForebayRealtime, 300.0, 1.0)]),
            open("cpu", vec![row(WalRow::TokioFs, 2000.0, 1.0), row(WalRow::ForebayRealtime, 330.0, 0.9)]),
        ];
        check(&mut experiments);
        assert!(experiments[0].rows[0].gates.is_empty() && experiments[1].rows[0].gates.is_empty());
        let passed: Vec<bool> = experiments[1].rows[1].gates.iter().map(|gate| gate.passed).collect();
        assert_eq!(passed, [true, true, false], "{:?}", experiments[1].rows[1].gates);
    }

    #[test]
    fn a_row_without_its_priority_does_not_count() {
        let mut refused = row(WalRow::ForebayRealtime, 9000.0, 0.1);
        refused.degraded = Some("no privilege".to_owned());
        let mut experiments = [open("cpu", vec![row(WalRow::TokioFs, 2000.0, 1.0), refused])];
        check(&mut experiments);
        assert!(experiments[0].rows.iter().all(|row| row.gates.is_empty()));
    }
}
