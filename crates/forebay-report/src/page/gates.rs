//! Gates in words: limits that show whether a figure can be taken at face value. A row that fails one is marked, not
//! hidden; failures of all rows together are reasons to distrust a report.

use std::borrow::Cow;

use maud::{Markup, html};

use super::columns::{groups, once, together};
use super::facts;
use super::headline::{WIDE, percent};
use super::html::{listing, prose, sentence};
use crate::result::{Condition, Experiment, Gate, Report, Row};
use crate::units::number;

/// Suffix of the name of a row that failed a gate.
pub(crate) const MARK: &str = " (!)";

/// Names of gates, each in words, with the phrase on rows that failed it.
const WORDS: [(&str, &str, &str); 5] = [
    ("device_bytes", "device bytes against claimed bytes", "the device moved other bytes than they count"),
    ("generator", "processors busy with making the load", "a processor was the limit, not the device"),
    ("other_io", "others' I/O on the device", "another program used the device"),
    ("steal", "time taken by the host", "the host took processor time away"),
    ("extents", "blocks never written", "parts of the file were never written"),
];

/// A gate of a run, of a row or of an experiment, or a limit that a check applied to a row.
#[derive(Clone, Debug)]
struct Limit<'a> {
    gate: Cow<'a, Condition>,
    /// `None`: applies to all rows.
    row: Option<&'a Row>,
}

impl<'a> Limit<'a> {
    fn of_check(check: &Gate, row: &'a Row) -> Self {
        let Gate { name, value, at_least, at_most, passed, .. } = check.clone();
        let passed = Some(passed);
        let gate = Condition { name, value, at_least, at_most, passed, ..Condition::default() };
        Self { gate: Cow::Owned(gate), row: Some(row) }
    }

    fn failed(&self) -> bool {
        self.gate.failed()
    }

    fn row_name(&self) -> &'a str {
        self.row.map_or("all rows", |row| &row.name)
    }

    fn words(&self) -> Option<&'static (&'static str, &'static str, &'static str)> {
        WORDS.iter().find(|(name, ..)| *name == self.gate.name)
    }

    /// Returns the gate's name in words.
    fn readable(&self) -> String {
        self.words()
            .map_or_else(|| self.gate.name.replace('_', " "), |(_, readable, _)| (*readable).to_owned())
    }

    /// Returns the limit in words.
    fn wanted(&self) -> String {
        match (self.gate.at_least, self.gate.at_most) {
            (Some(least), Some(most)) => format!("{} to {}", number(least), number(most)),
            (Some(least), None) => format!("at least {}", number(least)),
            (None, Some(most)) => format!("at most {}", number(most)),
            (None, None) => "no limit".to_owned(),
        }
    }
}

/// Describes the failures of a gate on a terminal.
fn failures(kind: &[Limit<'_>]) -> String {
    let names = once(kind.iter().filter_map(|limit| limit.row).map(|row| row.name.as_str()));
    let of = if names.is_empty() { String::new() } else { format!(" of {}", names.join(", ")) };
    let (is, repeats) = match kind {
        [Limit { row: Some(row), gate }] if gate.repeats.len() < row.samples.len() => {
            ("is", format!(", in {} of {} repeats", gate.repeats.len(), row.samples.len()))
        }
        [_] => ("is", String::new()),
        _ => ("is at worst", String::new()),
    };
    let first = &kind[0];
    let seen = worst(kind).map_or_else(String::new, |value| {
        format!(" {is} {}, wanted {}{repeats}", number(value), first.wanted())
    });
    format!("GATE FAILED: {}{of}{seen}: {}", first.gate.name, first.gate.why)
}

fn of_row(row: &Row) -> impl Iterator<Item = Limit<'_>> {
    let run = row.conditions.iter().map(|gate| Limit { gate: Cow::Borrowed(gate), row: Some(row) });
    run.chain(row.gates.iter().map(|gate| Limit::of_check(gate, row)))
}

fn of_experiment(experiment: &Experiment) -> impl Iterator<Item = Limit<'_>> {
    let whole = experiment.conditions.iter().map(|gate| Limit { gate: Cow::Borrowed(gate), row: None });
    whole.chain(experiment.rows.iter().flat_map(of_row))
}

/// Returns whether a row failed a gate.
pub(crate) fn failed(row: &Row) -> bool {
    of_row(row).any(|gate| gate.failed())
}

/// Returns the phrase on the first gate that a row failed.
pub(crate) fn first_failed(row: &Row) -> Option<String> {
    of_row(row).find(Limit::failed).map(|gate| phrase(&gate))
}

fn phrase(gate: &Limit<'_>) -> String {
    gate.words().map_or_else(|| format!("failed: {}", gate.readable()), |(_, _, phrase)| (*phrase).to_owned())
}

/// Returns the name of a row in a table of a terminal.
pub(crate) fn marked_name(row: &Row) -> String {
    format!("{}{}", row.name, if row.is_marked() { MARK } else { "" })
}

/// Returns the marks behind a row's name: gates that it failed, and requested settings that it did not get.
pub(crate) fn marks(row: &Row) -> Markup {
    html! {
        @for gate in of_row(row).filter(Limit::failed) { span.mark-failed { "failed: " (gate.readable()) } }
        @if let Some(why) = &row.degraded { span.mark-degraded { "not granted: " (why) } }
    }
}

/// Returns the lines below a table of a terminal: limits of a check, gates that failed, and the counts of all gates.
pub(crate) fn lines(group: &[&Experiment]) -> Vec<String> {
    let rows = group.iter().flat_map(|experiment| &experiment.rows);
    let mut lines: Vec<String> =
        rows.flat_map(|row| row.gates.iter().map(move |gate| check(row, gate))).collect();
    let of_check =
        |gate: &Limit<'_>| gate.row.is_some_and(|row| row.gates.iter().any(|own| own.name == gate.gate.name));
    let mut gates: Vec<Limit<'_>> = group.iter().flat_map(|experiment| of_experiment(experiment)).collect();
    gates.retain(|gate| !of_check(gate));
    let failed = gates.iter().filter(|gate| gate.failed()).cloned();
    lines.extend(together(failed, is_alike).iter().map(|kind| failures(kind)));
    let count = |passed| gates.iter().filter(|gate| gate.gate.passed == passed).count();
    if !gates.is_empty() {
        lines.push(format!(
            "gates: {} held, {} failed, {} unknown or not applicable (reasons in the JSON)",
            count(Some(true)),
            count(Some(false)),
            count(None)
        ));
    }
    lines
}

/// Describes the finding of a check in words.
fn check(row: &Row, gate: &Gate) -> String {
    let outcome = match (gate.passed, gate.is_met(0.0)) {
        (true, true) => "met".to_owned(),
        (true, false) => format!("met within the tolerance of {}", number(gate.tolerance)),
        (false, _) => "MISSED".to_owned(),
    };
    let wanted = Limit::of_check(gate, row).wanted();
    let value = gate.value.map_or_else(|| "not measured".to_owned(), number);
    format!("check {outcome}: {}: {} is {value}, wanted {wanted}", row.name, gate.name)
}

/// Returns the gates of experiments that belong together as a table: how often each held, and where it did not.
pub(crate) fn table(group: &[&Experiment]) -> Markup {
    let kinds = together(group.iter().flat_map(|experiment| of_experiment(experiment)), is_alike);
    if kinds.is_empty() {
        return html! { p { "These rows have no gates." } };
    }
    let rows = kinds.iter().map(|all| {
        // Where the result of a gate is known, its limit is, too.
        let kind = all.iter().find(|gate| gate.gate.passed.is_some()).unwrap_or(&all[0]);
        let mark = all.iter().any(Limit::failed).then_some("mark-failed");
        let worst = worst(all).map_or_else(|| "-".to_owned(), number);
        vec![
            html! { span class=[mark] { (kind.readable()) } },
            html! { (kind.wanted()) },
            html! { (worst) },
            html! { (result(all)) },
            html! { (prose(&kind.gate.why)) },
        ]
    });
    let heads = ["gate", "limit", "worst value", "result", "meaning"];
    listing("gates", "Gates: figures compared with a limit", &heads, rows)
}

/// Describes how often a gate held, failed, or was unknown.
fn result(all: &[Limit<'_>]) -> String {
    let count = |passed| all.iter().filter(|gate| gate.gate.passed == passed).count();
    let names = once(all.iter().filter(|gate| gate.failed()).map(Limit::row_name));
    let failed = format!("failed: {}", names.join(", "));
    let parts =
        [(false, failed), (true, "held".to_owned())].map(|(passed, text)| (count(Some(passed)), text));
    let unknown = (count(None), "unknown or not applicable".to_owned());
    let parts = parts.into_iter().chain([unknown]).filter(|(count, _)| *count > 0);
    parts.map(|(count, text)| format!("{count} {text}")).collect::<Vec<_>>().join("; ")
}

fn is_alike(one: &Limit<'_>, other: &Limit<'_>) -> bool {
    one.gate.name == other.gate.name
}

/// Returns the value that comes nearest to failing, or fails most.
fn worst(gates: &[Limit<'_>]) -> Option<f64> {
    let excess = |limit: &&Limit<'_>| limit.gate.excess().or(limit.gate.value).unwrap_or(f64::NEG_INFINITY);
    let known = gates.iter().filter(|limit| limit.gate.value.is_some());
    known.max_by(|a, b| excess(a).total_cmp(&excess(b)))?.gate.value
}

/// A reason to distrust some figures, or all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Doubt {
    /// The reason, for all rows that it concerns.
    pub text: String,
    /// Figures and rows.
    pub detail: String,
}

/// Returns the reasons to distrust a report: first those that concern all of it, then gates, the most frequent first.
pub(crate) fn doubts(report: &Report) -> Vec<Doubt> {
    let mut doubts: Vec<Doubt> =
        whole(report).into_iter().map(|text| Doubt { text, detail: String::new() }).collect();
    let groups = groups(&report.experiments);
    let experiments = || groups.iter().flatten().copied();
    let failed = experiments().flat_map(|experiment| {
        of_experiment(experiment).filter(Limit::failed).map(move |gate| (experiment, gate))
    });
    let mut kinds = together(failed, |one, other| is_alike(&one.1, &other.1));
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.len()));
    for kind in kinds {
        let places = together(&kind, |one, other| one.0.title() == other.0.title());
        let place = |rows: &Vec<&(&Experiment, Limit<'_>)>| {
            let names: Vec<&str> = rows.iter().map(|(_, gate)| gate.row_name()).collect();
            format!("{} (`{}`)", rows[0].0.title(), names.join("`, `"))
        };
        let places: Vec<String> = places.iter().map(place).collect();
        let gates: Vec<Limit<'_>> = kind.iter().map(|(_, gate)| gate.clone()).collect();
        let first = &gates[0];
        let worst = worst(&gates).map_or_else(String::new, |value| {
            format!(" at worst {}, wanted {}", number(value), first.wanted())
        });
        let why = if first.gate.why.is_empty() { String::new() } else { format!(" ({})", first.gate.why) };
        let rows = if gates.iter().all(|gate| gate.row.is_none()) { "experiment" } else { "row" };
        doubts.push(Doubt {
            text: format!("{}: {}", counted(gates.len(), rows), phrase(first)),
            detail: format!("{}{worst}{why}: {}", first.readable(), places.join("; ")),
        });
    }
    let rows = experiments().flat_map(|experiment| {
        experiment.rows.iter().filter(|row| row.skipped.is_none()).map(move |row| (experiment, row))
    });
    let (mut wide, mut once, mut degraded) = (Vec::new(), Vec::new(), Vec::new());
    for (experiment, row) in rows {
        let name = || format!("{} (`{}`)", experiment.title(), row.name);
        let spread = row.spread(&experiment.view.compared).zip(row.metrics.get(&experiment.view.compared));
        match row.samples.len() {
            0 => {}
            1 => once.push(name()),
            _ if spread.is_some_and(|((low, high), median)| high - low > WIDE * median) => wide.push(name()),
            _ => {}
        }
        if row.degraded.is_some() {
            degraded.push(name());
        }
    }
    for (rows, text) in [
        (degraded, "a requested setting was not granted".to_owned()),
        (wide, format!("repeats differ by more than {}", percent(WIDE))),
        (once, "measured once, so their spread is unknown".to_owned()),
    ] {
        if !rows.is_empty() {
            let text = format!("{}: {text}", counted(rows.len(), "row"));
            doubts.push(Doubt { text, detail: rows.join("; ") });
        }
    }
    if report.environment.virtual_machine {
        let text = "Virtual machine: the host may serve reads from its own memory".to_owned();
        doubts.push(Doubt { text, detail: String::new() });
    }
    doubts
}

/// Returns the reasons to distrust all figures.
fn whole(report: &Report) -> Vec<String> {
    let mut doubts = Vec::new();
    if !report.environment.optimized_build {
        doubts.push("Measured with an unoptimised build: the figures are not representative".to_owned());
    }
    if let Some(curve) = facts::curve(report) {
        doubts.extend(curve.limit().map(|limit| format!("{limit} bounds the reads, not the device")));
        if !curve.proven {
            doubts.push("No counter of a device proves that the random reads came from it".to_owned());
        }
    }
    doubts
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Number of reasons that are shown without their rows.
pub(crate) const DOUBTS_SHOWN: usize = 4;

/// Returns the reasons as lines: the first ones, and how many there are besides.
pub(crate) fn doubt_lines(doubts: &[Doubt]) -> Vec<String> {
    let mut lines: Vec<String> = doubts.iter().map(|doubt| doubt.text.clone()).collect();
    if lines.len() > DOUBTS_SHOWN {
        let more = lines.split_off(DOUBTS_SHOWN - 1);
        lines.push(format!("{}; and {} more on the page", more[0], more.len() - 1));
    }
    lines
}

/// Returns the reasons on the page, all of their rows folded.
pub(crate) fn distrust(report: &Report) -> Markup {
    let doubts = doubts(report);
    html! {
        @if !doubts.is_empty() {
            section aria-labelledby="distrust" {
                h2 id="distrust" { "What to distrust" }
                ul.warnings { @for doubt in &doubts { li { (sentence(&doubt.text)) } } }
                @if doubts.iter().any(|doubt| !doubt.detail.is_empty()) {
                    details {
                        summary { "Failed gates and other reasons, row by row" }
                        ul { @for doubt in doubts.iter().filter(|doubt| !doubt.detail.is_empty()) { li { (sentence(&doubt.detail)) } } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::result::Sample;

    fn experiment(gates: Vec<Condition>) -> Experiment {
        let row = |gate| Row { name: "buffered".to_owned(), conditions: vec![gate], ..Row::default() };
        let mut experiment = Experiment::new("scan", "");
        experiment.rows = gates.into_iter().map(row).collect();
        experiment
    }

    fn texts(experiments: Vec<Experiment>) -> Vec<String> {
        let environment = Environment { optimized_build: true, ..Environment::default() };
        doubts(&Report::new(environment, experiments)).into_iter().map(|doubt| doubt.text).collect()
    }

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
        let gates = [0.5, 0.9].map(|share| Condition::at_most("steal", share, 0.02).with_meaning("a share"));
        let mut both = self::experiment(gates.into());
        both.rows[1].name = "direct".to_owned();
        let failed =
            "GATE FAILED: steal of buffered, direct is at worst 0.900, wanted at most 0.0200: a share";
        assert_eq!(lines(&[&both])[0], failed);
    }

    #[test]
    fn gates_of_a_name_are_reported_once_with_their_worst_value() {
        let experiment = experiment(vec![
            Condition::unknown("device_bytes", "no counters"),
            Condition::at_least("device_bytes", 0.99, 0.95),
            Condition::at_least("device_bytes", 1.0, 0.95),
        ]);
        let page = table(&[&experiment]).into_string();
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
        let page = table(&[&experiment]).into_string();
        assert!(page.contains("1 failed: buffered; 1 held") && page.contains("1 failed: all rows"), "{page}");
        assert!(failed(&experiment.rows[0]) && !failed(&experiment.rows[1]));
        let report = Report::new(Environment::default(), vec![experiment]);
        let details: Vec<String> = doubts(&report).into_iter().map(|doubt| doubt.detail).collect();
        assert_eq!(
            details[1..],
            [
                "time taken by the host at worst 0.500, wanted at most 0.0200: scan (`all rows`)",
                "device bytes against claimed bytes at worst 0.500, wanted at least 0.950 (a share): scan (`buffered`)",
            ]
        );
    }

    /// Regression: the page of a run beside other work began with a sentence for each row of it, four
    /// screens long.
    #[test]
    fn a_gate_that_fails_everywhere_is_reported_once() {
        let gate = |value| Condition::at_most("other_io", value, 0.05).with_meaning("a share");
        let gates = (0..9).map(|index| gate(0.5 + f64::from(index) / 100.0)).collect();
        let mut other = experiment(vec![Condition::at_most("steal", 0.5, 0.02)]);
        other.rows[0].samples = vec![Sample::default()];
        assert_eq!(
            texts(vec![experiment(gates), other]),
            [
                "9 rows: another program used the device",
                "1 row: the host took processor time away",
                "1 row: measured once, so their spread is unknown",
            ]
        );
        assert!(texts(Vec::new()).is_empty());
    }

    #[test]
    fn many_reasons_are_four_lines() {
        let doubt = |text: &str| Doubt { text: text.to_owned(), detail: String::new() };
        let all: Vec<Doubt> = ["a", "b", "c", "d", "e", "f"].map(doubt).into();
        assert_eq!(doubt_lines(&all), ["a", "b", "c", "d; and 2 more on the page"]);
        assert_eq!(doubt_lines(&all[..4]), ["a", "b", "c", "d"]);
    }
}
