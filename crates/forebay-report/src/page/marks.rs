//! Gates on the page: the limits that show whether a figure can be taken at face value. A row that
//! fails one is marked, not hidden.

use maud::{Markup, html};

use super::columns::groups;
use super::html::prose;
use crate::result::{Condition, Experiment, Gate, Report, Row};
use crate::units::number;

/// A gate of a run, of a row or of an experiment, or a limit that a check applied to a row.
#[derive(Clone, Copy, Debug)]
struct Limit<'a> {
    name: &'a str,
    value: Option<f64>,
    at_least: Option<f64>,
    at_most: Option<f64>,
    passed: Option<bool>,
    why: &'a str,
    /// `None`: applies to all rows.
    row: Option<&'a str>,
}

impl<'a> Limit<'a> {
    fn of_run(gate: &'a Condition, row: Option<&'a str>) -> Self {
        let Condition { name, value, at_least, at_most, passed, why, .. } = gate;
        Self { name, value: *value, at_least: *at_least, at_most: *at_most, passed: *passed, why, row }
    }

    fn of_check(gate: &'a Gate, row: &'a str) -> Self {
        let Gate { name, value, at_least, at_most, passed, .. } = gate;
        let (value, passed) = (*value, Some(*passed));
        Self { name, value, at_least: *at_least, at_most: *at_most, passed, why: "", row: Some(row) }
    }

    fn failed(&self) -> bool {
        self.passed == Some(false)
    }

    fn is_like(&self, other: &Self) -> bool {
        self.name == other.name
    }

    /// Returns the limit in words.
    fn wanted(&self) -> String {
        match (self.at_least, self.at_most) {
            (Some(least), Some(most)) => format!("{} to {}", number(least), number(most)),
            (Some(least), None) => format!("at least {}", number(least)),
            (None, Some(most)) => format!("at most {}", number(most)),
            (None, None) => "none".to_owned(),
        }
    }
}

/// Returns a gate's name in words.
fn readable(name: &str) -> String {
    match name {
        "device_bytes" => "device bytes against claimed bytes".to_owned(),
        "generator" => "processors busy with making the load".to_owned(),
        "other_io" => "others' I/O on the device".to_owned(),
        "steal" => "time taken by the host".to_owned(),
        "extents" => "blocks never written".to_owned(),
        other => other.replace('_', " "),
    }
}

fn of_row(row: &Row) -> impl Iterator<Item = Limit<'_>> {
    let run = row.conditions.iter().map(|gate| Limit::of_run(gate, Some(&row.name)));
    run.chain(row.gates.iter().map(|gate| Limit::of_check(gate, &row.name)))
}

fn of_experiment(experiment: &Experiment) -> impl Iterator<Item = Limit<'_>> {
    let whole = experiment.conditions.iter().map(|gate| Limit::of_run(gate, None));
    whole.chain(experiment.rows.iter().flat_map(of_row))
}

/// Returns whether a row failed a gate.
pub(crate) fn failed(row: &Row) -> bool {
    of_row(row).any(|gate| gate.failed())
}

/// Returns the marks behind a row's name: gates that it failed, and requested settings that it did not get.
pub(crate) fn marks(row: &Row) -> Markup {
    html! {
        @for gate in of_row(row).filter(Limit::failed) { span.mark-failed { "failed: " (readable(gate.name)) } }
        @if let Some(why) = &row.degraded { span.mark-degraded { "not granted: " (why) } }
    }
}

/// Returns the gates of experiments that belong together: how often each held, and where it did not.
pub(crate) fn of(group: &[&Experiment]) -> Markup {
    let gates: Vec<Limit<'_>> = group.iter().flat_map(|experiment| of_experiment(experiment)).collect();
    let mut kinds: Vec<Limit<'_>> = Vec::new();
    for gate in &gates {
        match kinds.iter_mut().find(|known| known.is_like(gate)) {
            // Where the result of a gate is known, its limit is, too.
            Some(known) if known.passed.is_none() && gate.passed.is_some() => *known = *gate,
            Some(_) => {}
            None => kinds.push(*gate),
        }
    }
    if kinds.is_empty() {
        return html! { p { "These rows have no gates." } };
    }
    html! {
        div.scroll tabindex="0" role="region" aria-label="Gates" {
            table {
                caption.unseen { "Gates: figures compared with a limit" }
                thead {
                    tr {
                        @for head in ["gate", "limit"] { th scope="col" { (head) } }
                        th.number scope="col" { "worst value" }
                        @for head in ["result", "meaning"] { th scope="col" { (head) } }
                    }
                }
                tbody {
                    @for kind in kinds {
                        @let all: Vec<&Limit<'_>> = gates.iter().filter(|gate| gate.is_like(&kind)).collect();
                        tr class=[all.iter().any(|gate| gate.failed()).then_some("failed")] {
                            th scope="row" { (readable(kind.name)) }
                            td { (kind.wanted()) }
                            td.number { (worst(&all).map_or_else(|| "-".to_owned(), number)) }
                            td { (result(&all)) }
                            td { (prose(kind.why)) }
                        }
                    }
                }
            }
        }
    }
}

/// Describes how often a gate held, failed, or was unknown.
fn result(all: &[&Limit<'_>]) -> String {
    let count = |passed| all.iter().filter(|gate| gate.passed == passed).count();
    let (held, failed, unknown) = (count(Some(true)), count(Some(false)), count(None));
    let mut parts = Vec::new();
    if failed > 0 {
        let mut names: Vec<&str> = Vec::new();
        for name in all.iter().filter(|gate| gate.failed()).map(|gate| gate.row.unwrap_or("all rows")) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        parts.push(format!("{failed} failed: {}", names.join(", ")));
    }
    if held > 0 {
        parts.push(format!("{held} held"));
    }
    if unknown > 0 {
        parts.push(format!("{unknown} unknown or not applicable"));
    }
    parts.join("; ")
}

/// Returns the value that comes nearest to failing, or fails most.
fn worst(gates: &[&Limit<'_>]) -> Option<f64> {
    let excess = |value: f64| {
        let below = gates.iter().filter_map(|gate| gate.at_least).map(|least| least - value);
        let above = gates.iter().filter_map(|gate| gate.at_most).map(|most| value - most);
        below.chain(above).reduce(f64::max).unwrap_or(value)
    };
    gates.iter().filter_map(|gate| gate.value).max_by(|a, b| excess(*a).total_cmp(&excess(*b)))
}

/// Maximum failures that get a sentence each; above it, a gate has one sentence for all: on a busy
/// machine every row may fail it.
const SEPARATE_MAX: usize = 3;

/// Returns warnings for the reader: every failed gate of a report, as sentences.
pub(crate) fn warnings(report: &Report) -> Vec<String> {
    let mut failures: Vec<(Limit<'_>, Vec<&Experiment>, Vec<Limit<'_>>)> = Vec::new();
    for experiment in groups(&report.experiments).into_iter().flatten() {
        for gate in of_experiment(experiment).filter(Limit::failed) {
            match failures.iter_mut().find(|(kind, ..)| kind.is_like(&gate)) {
                Some((_, experiments, gates)) => {
                    experiments.push(experiment);
                    gates.push(gate);
                }
                None => failures.push((gate, vec![experiment], vec![gate])),
            }
        }
    }
    let mut warnings: Vec<String> = Vec::new();
    for (kind, experiments, gates) in failures {
        if gates.len() > SEPARATE_MAX {
            warnings.push(together(&kind, &experiments, &gates));
            continue;
        }
        for (experiment, gate) in experiments.iter().zip(&gates) {
            let of = gate.row.map_or_else(String::new, |row| format!(", `{row}`"));
            let seen = gate
                .value
                .map_or_else(String::new, |value| format!(" is {}, wanted {}", number(value), gate.wanted()));
            let warning =
                format!("{}{of}: {}{seen}{}", experiment.title(), readable(gate.name), reason(gate.why));
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
    warnings
}

fn reason(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(" ({why})") }
}

/// Returns one sentence for a gate that failed often; the tables mark the rows.
fn together(kind: &Limit<'_>, experiments: &[&Experiment], gates: &[Limit<'_>]) -> String {
    let mut names: Vec<&str> = experiments.iter().map(|experiment| experiment.name.as_str()).collect();
    names.dedup();
    let all: Vec<&Limit<'_>> = gates.iter().collect();
    let worst = worst(&all)
        .map_or_else(String::new, |value| format!(", at worst {}, wanted {}", number(value), kind.wanted()));
    format!(
        "{}: {} rows of {}{worst}{}; they are marked in their tables",
        readable(kind.name),
        gates.len(),
        names.join(", "),
        reason(kind.why)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;

    fn experiment(gates: Vec<Condition>) -> Experiment {
        let row = |gate| Row { name: "buffered".to_owned(), conditions: vec![gate], ..Row::default() };
        let mut experiment = Experiment::new("scan", "");
        experiment.rows = gates.into_iter().map(row).collect();
        experiment
    }

    #[test]
    fn gates_of_a_name_are_reported_once_with_their_worst_value() {
        let experiment = experiment(vec![
            Condition::unknown("device_bytes", "no counters"),
            Condition::at_least("device_bytes", 0.99, 0.95),
            Condition::at_least("device_bytes", 1.0, 0.95),
        ]);
        let page = of(&[&experiment]).into_string();
        assert!(page.contains("2 held; 1 unknown") && page.contains("0.990"), "{page}");
        assert!(page.contains("at least 0.950"), "{page}");
        assert_eq!(page.matches("scope=\"row\"").count(), 1);
    }

    #[test]
    fn failed_gates_are_in_the_table_and_in_a_sentence() {
        let gates = vec![
            Condition::at_least("device_bytes", 0.5, 0.95).with_meaning("a share"),
            Condition::at_least("device_bytes", 1.0, 0.95),
        ];
        let mut experiment = experiment(gates);
        experiment.conditions.push(Condition::at_most("steal", 0.5, 0.02));
        let page = of(&[&experiment]).into_string();
        assert!(page.contains("1 failed: buffered; 1 held") && page.contains("1 failed: all rows"), "{page}");
        assert!(failed(&experiment.rows[0]) && !failed(&experiment.rows[1]));
        let report = Report::new(Environment::default(), vec![experiment]);
        assert_eq!(
            warnings(&report),
            [
                "scan: time taken by the host is 0.500, wanted at most 0.0200",
                "scan, `buffered`: device bytes against claimed bytes is 0.500, wanted at least 0.950 (a share)",
            ]
        );
    }

    /// Regression: the page of a run beside other work began with a sentence for each row of it, four
    /// screens long.
    #[test]
    fn a_gate_that_fails_everywhere_is_reported_once() {
        let gate = |value| Condition::at_most("other_io", value, 0.05).with_meaning("a share");
        let report = |count: u32| {
            let gates = (0..count).map(|index| gate(0.5 + f64::from(index) / 100.0)).collect();
            Report::new(Environment::default(), vec![experiment(gates)])
        };
        assert_eq!(warnings(&report(3)).len(), 3);
        assert_eq!(
            warnings(&report(9)),
            [
                "others' I/O on the device: 9 rows of scan, at worst 0.580, wanted at most 0.0500 (a share); they are marked in \
              their tables"
            ]
        );
    }
}
