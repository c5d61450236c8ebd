//! The gates of runs in words: those that failed, and those that are unknown.

use crate::result::{Condition, Experiment, Gate, Row};
use crate::units::number;

/// Suffix of the name of a row that failed a gate.
pub(crate) const MARK: &str = " (!)";

/// Returns the name of a row in a table.
pub(crate) fn marked_name(row: &Row) -> String {
    format!("{}{}", row.name, if row.is_marked() { MARK } else { "" })
}

/// Returns one line for each gate that failed, then one with the counts of all gates.
pub(crate) fn lines(group: &[&Experiment]) -> Vec<String> {
    let all = || {
        group.iter().flat_map(|experiment| {
            let whole = experiment.conditions.iter().map(|gate| (None, gate));
            let rows = experiment.rows.iter();
            whole.chain(rows.flat_map(|row| row.conditions.iter().map(move |gate| (Some(row), gate))))
        })
    };
    let mut lines: Vec<String> = Vec::new();
    for line in all().filter(|(_, gate)| gate.failed()).map(|(row, gate)| failed(row, gate)) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let count = |passed| all().filter(|(_, gate)| gate.passed == passed).count();
    if all().next().is_some() {
        lines.push(format!(
            "gates: {} held, {} failed, {} unknown or not applicable (reasons in the JSON)",
            count(Some(true)),
            count(Some(false)),
            count(None)
        ));
    }
    lines
}

/// Describes a gate that failed, in a sentence.
fn failed(row: Option<&Row>, gate: &Condition) -> String {
    let of = row.map_or_else(String::new, |row| format!(" of {}", row.name));
    let repeats = match (row, gate.repeats.len()) {
        (Some(row), failed) if failed < row.samples.len() => {
            format!(", in {failed} of {} repeats", row.samples.len())
        }
        _ => String::new(),
    };
    let seen = gate.value.map_or_else(String::new, |value| {
        let limit = limit(gate.at_least, gate.at_most);
        format!(" is {}, wanted {limit}{repeats}", number(value))
    });
    format!("GATE FAILED: {}{of}{seen}: {}", gate.name, gate.why)
}

/// Describes the finding of a check in words.
pub(crate) fn check(row: &Row, gate: &Gate) -> String {
    let outcome = match (gate.passed, gate.is_met(0.0)) {
        (true, true) => "met".to_owned(),
        (true, false) => format!("met within the tolerance of {}", number(gate.tolerance)),
        (false, _) => "MISSED".to_owned(),
    };
    format!(
        "check {outcome}: {}: {} is {}, wanted {}",
        row.name,
        gate.name,
        gate.value.map_or_else(|| "not measured".to_owned(), number),
        limit(gate.at_least, gate.at_most)
    )
}

fn limit(at_least: Option<f64>, at_most: Option<f64>) -> String {
    match (at_least, at_most) {
        (Some(least), Some(most)) => format!("{} to {}", number(least), number(most)),
        (Some(least), None) => format!("at least {}", number(least)),
        (None, Some(most)) => format!("at most {}", number(most)),
        (None, None) => "no limit".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Sample;

    #[test]
    fn failures_are_listed_and_the_rest_is_counted() {
        let samples = (0..3).map(|repeat| Sample { repeat, ..Sample::default() }).collect();
        let mut row = Row::from_samples("direct", samples);
        row.conditions = vec![
            Condition {
                repeats: vec![1],
                ..Condition::at_least("device_bytes", 0.5, 0.95).with_meaning("a share")
            },
            Condition::at_most("steal", 0.0, 0.02),
            Condition::unknown("throttling", "no cgroup counts it"),
        ];
        assert_eq!(marked_name(&row), "direct (!)");
        let mut experiment = Experiment::new("random", "");
        experiment.conditions.push(Condition::at_most("extents", 0.0, 0.01));
        experiment.rows.push(row);
        assert_eq!(
            lines(&[&experiment]),
            [
                "GATE FAILED: device_bytes of direct is 0.500, wanted at least 0.950, in 1 of 3 repeats: a share",
                "gates: 2 held, 1 failed, 1 unknown or not applicable (reasons in the JSON)",
            ]
        );
        assert!(lines(&[&Experiment::new("random", "")]).is_empty());
    }
}
