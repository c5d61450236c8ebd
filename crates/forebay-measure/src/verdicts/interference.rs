//! Harm to other tasks during the work: a thousand timers of a Tokio runtime, and their lateness.

use forebay_report::page::noise::{Difference, difference};
use forebay_report::result::{Experiment, Row, metric};
use forebay_report::units::number;

const P99: &str = metric::TIMERS_LATE[1];
const LONGEST: &str = metric::TIMERS_LATE[3];

/// Returns a note on the cost of the timer tasks themselves, from the row without any other work. It
/// is a note, because all rows alike pay for their processor time.
pub(crate) fn own_cost(experiment: &Experiment, alone: &str) -> Option<String> {
    let row = experiment.row(alone)?;
    let share = row.metrics.get(metric::TIMERS_CPU_SHARE)?;
    let late = row.metrics.get(P99)?;
    Some(format!(
        "the timer tasks and their runtime take {} % of one processor by themselves, beside all rows alike, and with nothing \
         else to do 99 of 100 of their times are noticed up to {} late (`{alone}`)",
        number(share * 100.0),
        time(late)
    ))
}

/// Returns a sentence on which rows make the other tasks late, beyond noise, and which do not.
pub(crate) fn sentence(experiment: &Experiment, alone: &str, title: &str) -> Option<String> {
    let base = experiment.row(alone).filter(|row| row.skipped.is_none())?;
    let calm = base.metrics.get(P99)?;
    let (mut later, mut same) = (Vec::new(), Vec::new());
    for row in experiment.rows.iter().filter(|row| row.name != alone && row.skipped.is_none()) {
        match difference(row, base, P99) {
            Some(Difference::More(times)) => later.push((times, row)),
            Some(_) => same.push(format!("`{}`", row.name)),
            None => {}
        }
    }
    if later.is_empty() && same.is_empty() {
        return None;
    }
    later.sort_by(|a, b| b.0.total_cmp(&a.0));
    let late: Vec<String> = later.iter().filter_map(|(times, row)| delayed(*times, row)).collect();
    let interference = match (late.is_empty(), same.is_empty()) {
        (true, _) => format!("no way makes them later: {}", same.join(", ")),
        (false, true) => format!("all ways make them later: {}", late.join(", ")),
        (false, false) => format!("later beside {}; no later beside {}", late.join(", "), same.join(", ")),
    };
    let hint = if base.samples.len() < 2 { "; measured once, so take it as a hint" } else { "" };
    Some(format!(
        "{title}: of a thousand other tasks that wait for a time, 99 of 100 times are noticed within {} when nothing else is \
         done; {interference}{hint}",
        time(calm)
    ))
}

fn delayed(times: f64, row: &Row) -> Option<String> {
    let (p99, longest) = (row.metrics.get(P99)?, row.metrics.get(LONGEST)?);
    Some(format!("`{}` ({}, {} times; at most {})", row.name, time(p99), number(times), time(longest)))
}

fn time(us: f64) -> String {
    if us < 1000.0 { format!("{} µs", number(us)) } else { format!("{} ms", number(us / 1000.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn row(name: &str, p99_us: f64) -> Row {
        let samples = [0.99, 1.0, 1.01].iter().map(|factor| {
            let mut metrics = Metrics::default();
            metrics.set(P99, p99_us * factor).set(LONGEST, p99_us * 3.0);
            Sample { repeat: 0, metrics }
        });
        Row::from_samples(name, samples.collect())
    }

    fn late(rows: Vec<Row>) -> String {
        let mut experiment = Experiment::new("wal", "");
        experiment.rows = rows;
        sentence(&experiment, "nothing", "Appends").unwrap_or_default()
    }

    #[test]
    fn interference_is_reported_of_the_rows_that_cause_it_only() {
        let text = late(vec![row("nothing", 1100.0), row("calm", 1105.0), row("loud", 4400.0)]);
        assert!(text.contains("99 of 100 times are noticed within 1.10 ms"), "{text}");
        assert!(text.contains("later beside `loud` (4.40 ms, 4 times; at most 13.2 ms)"), "{text}");
        assert!(text.ends_with("no later beside `calm`"), "{text}");
        let text = late(vec![row("nothing", 1100.0), row("calm", 1105.0)]);
        assert!(text.ends_with("no way makes them later: `calm`"), "{text}");
        // Without the baseline row there is no claim.
        assert_eq!(late(vec![row("loud", 4400.0)]), "");
        assert_eq!(late(vec![row("nothing", 1100.0)]), "");
    }

    #[test]
    fn the_cost_of_the_timers_is_reported_where_it_was_measured() {
        let mut experiment = Experiment::new("wal", "");
        let mut alone = row("nothing", 1100.0);
        alone.metrics.set(metric::TIMERS_CPU_SHARE, 0.025);
        experiment.rows = vec![alone];
        let note = own_cost(&experiment, "nothing").expect("measured");
        assert!(note.contains("2.50 % of one processor") && note.contains("up to 1.10 ms late"), "{note}");
        assert_eq!(own_cost(&experiment, "other"), None);
    }
}
