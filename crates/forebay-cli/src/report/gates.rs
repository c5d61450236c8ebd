//! Gates: the limits that show whether a figure means what it seems to mean. A row that fails one is marked, not hidden.

use maud::{Markup, html};

use super::columns::{groups, title};
use crate::doctor::units::number;
use crate::result::{Experiment, Gate, Report, Row};

/// Whether a row failed a gate.
pub(crate) fn failed(row: &Row) -> bool {
    row.gates.iter().any(|gate| !gate.passed)
}

/// What stands behind a row's name: gates that it failed, and what it asked for without getting it.
pub(crate) fn marks(row: &Row) -> Markup {
    html! {
        @for gate in row.gates.iter().filter(|gate| !gate.passed) { span.mark-failed { "failed: " (gate.name) } }
        @if let Some(why) = &row.degraded { span.mark-degraded { "not granted: " (why) } }
    }
}

/// The gates of experiments that belong together: how often each was passed, and where it was not.
pub(crate) fn of(group: &[&Experiment]) -> Markup {
    let gates = || group.iter().flat_map(|experiment| &experiment.rows).flat_map(|row| &row.gates);
    let mut kinds: Vec<&Gate> = Vec::new();
    for gate in gates() {
        if !kinds.iter().any(|known| same(known, gate)) {
            kinds.push(gate);
        }
    }
    if kinds.is_empty() {
        return html! { p { "No gate was held against these rows." } };
    }
    html! {
        div.scroll tabindex="0" role="region" aria-label="Gates" {
            table {
                caption.unseen { "Gates: what was held against a limit" }
                thead { tr { th scope="col" { "gate" } th scope="col" { "limit" } th.number scope="col" { "worst value" } th scope="col" { "rows" } } }
                tbody {
                    @for kind in kinds {
                        @let all: Vec<&Gate> = gates().filter(|gate| same(gate, kind)).collect();
                        @let passed = all.iter().filter(|gate| gate.passed).count();
                        tr class=[(passed < all.len()).then_some("failed")] {
                            th scope="row" { (kind.name) }
                            td { (limit(kind)) }
                            td.number { (worst(&all).map_or_else(String::new, number)) }
                            td { @if passed == all.len() { "all " (passed) " passed" } @else { (all.len() - passed) " of " (all.len()) " failed: " (where_failed(group, kind)) } }
                        }
                    }
                }
            }
        }
    }
}

/// What a reader should distrust: every failed gate of a report, as sentences.
pub(crate) fn warnings(report: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    for group in groups(&report.experiments) {
        for experiment in &group {
            for row in &experiment.rows {
                for gate in row.gates.iter().filter(|gate| !gate.passed) {
                    warnings.push(format!(
                        "{}, {}: {} is {}, wanted {}",
                        title(experiment),
                        row.name,
                        gate.name,
                        number(gate.value),
                        limit(gate)
                    ));
                }
            }
        }
    }
    warnings
}

fn same(one: &Gate, other: &Gate) -> bool {
    one.name == other.name && one.at_least == other.at_least && one.at_most == other.at_most
}

fn limit(gate: &Gate) -> String {
    match (gate.at_least, gate.at_most) {
        (Some(least), Some(most)) => format!("{} to {}", number(least), number(most)),
        (Some(least), None) => format!("at least {}", number(least)),
        (None, Some(most)) => format!("at most {}", number(most)),
        (None, None) => "none: for information".to_owned(),
    }
}

/// The value that comes nearest to failing, or fails most.
fn worst(gates: &[&Gate]) -> Option<f64> {
    let values = gates.iter().map(|gate| gate.value);
    let at_least = gates.first()?.at_least.is_some();
    if at_least { values.min_by(f64::total_cmp) } else { values.max_by(f64::total_cmp) }
}

fn where_failed(group: &[&Experiment], kind: &Gate) -> String {
    let mut names = Vec::new();
    for row in group.iter().flat_map(|experiment| &experiment.rows) {
        if !names.contains(&row.name) && row.gates.iter().any(|gate| same(gate, kind) && !gate.passed) {
            names.push(row.name.clone());
        }
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;

    fn gate(value: f64, passed: bool) -> Gate {
        Gate {
            name: "device bytes".to_owned(),
            metric: "device_share".to_owned(),
            value,
            at_least: Some(0.95),
            at_most: None,
            passed,
        }
    }

    fn experiment(gates: Vec<Gate>) -> Experiment {
        let mut experiment = Experiment::new("scan", "");
        experiment.rows = gates
            .into_iter()
            .map(|gate| Row { name: "buffered".to_owned(), gates: vec![gate], ..Row::default() })
            .collect();
        experiment
    }

    #[test]
    fn gates_of_a_name_are_told_once_with_their_worst_value() {
        let experiment = experiment(vec![gate(0.99, true), gate(1.0, true)]);
        let page = of(&[&experiment]).into_string();
        assert!(page.contains("all 2 passed") && page.contains("0.990"), "{page}");
        assert_eq!(page.matches("scope=\"row\"").count(), 1);
    }

    #[test]
    fn what_failed_is_named_in_the_table_and_in_a_sentence() {
        let experiment = experiment(vec![gate(0.5, false), gate(1.0, true)]);
        assert!(of(&[&experiment]).into_string().contains("1 of 2 failed: buffered"));
        let report = Report::new(Environment::default(), vec![experiment]);
        assert_eq!(
            warnings(&report),
            ["Sequential read, buffered: device bytes is 0.500, wanted at least 0.950"]
        );
    }
}
