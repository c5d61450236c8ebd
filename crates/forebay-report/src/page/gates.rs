//! Gates in words: limits that show whether a figure can be taken at face value. A row that fails a gate is marked, not hidden;
//! failures of all rows together are reasons to distrust a report.

use maud::{Markup, html};

use super::facts::{self, WIDE, measured};
use super::html::{listing, prose, sentence};
use crate::result::columns::{groups, once, together};
use crate::result::{Condition, DEVICE_BYTES, Experiment, FAILED_GATE_MARK, Gate, Report, Row};
use crate::units::{number, percent, printable};

/// Names of gates, each in words, with the phrase on rows that failed it.
const WORDS: [(&str, &str, &str); 5] = [
    ("device_bytes", "device bytes against claimed bytes", "the device moved other bytes than they count"),
    ("generator", "processors busy with making the load", "a processor was the limit, not the device"),
    ("other_io", "others' I/O on the device", "another program used the device"),
    ("steal", "time taken by the host", "the host took processor time away"),
    ("extents", "blocks never written", "parts of the file were never written"),
];

/// A reason to doubt a row besides gates, in words, and the rows to which it applies.
type Reason = (String, fn(&Experiment, &Row) -> bool);

/// The reason to doubt rows past the page cache on FUSE and on network file systems.
const UNCOUNTED: &str =
    "no device here counts their bytes, which memory of a program or of another machine may have served";

/// A gate of a run, or a limit that a check applied, with its row; `None`: it applies to all rows.
type Limit<'a> = (Condition, Option<&'a Row>);

/// Returns a gate's name in words, and the phrase on rows that failed it.
fn words(gate: &Condition) -> [String; 2] {
    match WORDS.iter().find(|(name, ..)| *name == gate.name) {
        Some((_, readable, phrase)) => [(*readable).to_owned(), (*phrase).to_owned()],
        None => [String::new(), "failed: ".to_owned()].map(|start| start + &gate.name.replace('_', " ")),
    }
}

/// Describes the failures of a gate on a terminal.
fn failures(kind: &[Limit<'_>]) -> String {
    let names = once(kind.iter().filter_map(|(_, row)| Some(row.as_ref()?.name.as_str())));
    let of = if names.is_empty() { String::new() } else { format!(" of {}", names.join(", ")) };
    let (is, repeats) = match kind {
        [(gate, Some(row))] if gate.repeats.len() < row.samples.len() => {
            ("is", format!(", in {} of {} repeats", gate.repeats.len(), row.samples.len()))
        }
        [_] => ("is", String::new()),
        _ => ("is at worst", String::new()),
    };
    let (first, _) = &kind[0];
    let seen = worst(kind).map_or_else(String::new, |value| {
        format!(" {is} {}, wanted {}{repeats}", number(value), first.wanted())
    });
    format!("GATE FAILED: {}{of}{seen}: {}", first.name, first.why)
}

fn of_row(row: &Row) -> impl Iterator<Item = Limit<'_>> {
    let checks = row.gates.iter().map(Condition::from);
    row.conditions.iter().cloned().chain(checks).map(move |gate| (gate, Some(row)))
}

fn of_experiment(experiment: &Experiment) -> impl Iterator<Item = Limit<'_>> {
    let whole = experiment.conditions.iter().map(|gate| (gate.clone(), None));
    whole.chain(experiment.rows.iter().flat_map(of_row))
}

fn failed_of(row: &Row) -> impl Iterator<Item = Condition> {
    of_row(row).map(|(gate, _)| gate).filter(Condition::failed)
}

pub(crate) fn failed(row: &Row) -> bool {
    failed_of(row).next().is_some()
}

/// Returns the phrase on the first gate that a row failed.
pub(crate) fn first_failed(row: &Row) -> Option<String> {
    failed_of(row).next().map(|gate| words(&gate)[1].clone())
}

/// Returns the phrase on a row past the page cache of which no device counted the bytes.
pub(crate) fn uncounted(row: &Row) -> Option<String> {
    row.conditions.iter().any(is_uncounted).then(|| "no device here counted its bytes".to_owned())
}

/// Returns the name of a row in a table of a terminal.
pub(crate) fn marked_name(row: &Row) -> String {
    format!("{}{}", printable(&row.name), if row.is_marked() { FAILED_GATE_MARK } else { "" })
}

/// Returns the marks behind a row's name: gates that it failed, and requested settings that it did not get.
pub(crate) fn marks(row: &Row) -> Markup {
    html! {
        @for gate in failed_of(row) { span.mark-failed { "failed: " (words(&gate)[0]) } }
        @if let Some(why) = &row.degraded { span.mark-degraded { "not granted: " (why) } }
    }
}

/// Returns the lines below a table of a terminal: limits of a check, gates that failed, and the counts of all gates.
pub(crate) fn lines(group: &[&Experiment]) -> Vec<String> {
    let rows = group.iter().flat_map(|experiment| &experiment.rows);
    let checks = rows.flat_map(|row| row.gates.iter().map(move |gate| check(row, gate)));
    let mut lines: Vec<String> = checks.collect();
    let is_check = |(gate, row): &Limit<'_>| {
        row.is_some_and(|row| row.gates.iter().any(|check| check.name == gate.name))
    };
    let mut gates: Vec<Limit<'_>> = group.iter().flat_map(|experiment| of_experiment(experiment)).collect();
    gates.retain(|gate| !is_check(gate));
    let failed = gates.iter().filter(|(gate, _)| gate.failed()).cloned();
    lines.extend(together(failed, is_alike).iter().map(|kind| failures(kind)));
    if !gates.is_empty() {
        let [held, failed, unknown] = counts(&gates);
        lines.push(format!(
            "gates: {held} held, {failed} failed, {unknown} unknown or not applicable (reasons in the JSON)"
        ));
    }
    lines
}

/// Returns the numbers of gates that held, that failed, and whose result is unknown.
fn counts(gates: &[Limit<'_>]) -> [usize; 3] {
    [Some(true), Some(false), None]
        .map(|passed| gates.iter().filter(|(gate, _)| gate.passed == passed).count())
}

/// Describes the finding of a check in words.
fn check(row: &Row, gate: &Gate) -> String {
    let outcome = match (gate.passed, gate.is_met(0.0)) {
        (true, true) => "met".to_owned(),
        (true, false) => format!("met within the tolerance of {}", number(gate.tolerance)),
        (false, _) => "MISSED".to_owned(),
    };
    let value = gate.value.map_or_else(|| "not measured".to_owned(), number);
    let wanted = Condition::from(gate).wanted();
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
        let (kind, _) = all.iter().find(|(gate, _)| gate.passed.is_some()).unwrap_or(&all[0]);
        let mark = all.iter().any(|(gate, _)| gate.failed()).then_some("mark-failed");
        vec![
            html! { span class=[mark] { (words(kind)[0]) } },
            html! { (kind.wanted()) },
            html! { (worst(all).map_or_else(|| "-".to_owned(), number)) },
            html! { (result(all)) },
            html! { (prose(&kind.why)) },
        ]
    });
    let heads = ["gate", "limit", "worst value", "result", "meaning"];
    listing("gates", "Gates: figures compared with a limit", &heads, rows)
}

fn row_name<'a>((_, row): &Limit<'a>) -> &'a str {
    row.map_or("all rows", |row| &row.name)
}

/// Describes how often a gate held, failed, or was unknown.
fn result(all: &[Limit<'_>]) -> String {
    let names = once(all.iter().filter(|(gate, _)| gate.failed()).map(row_name)).join(", ");
    let [held, failed, unknown] = counts(all);
    let parts = [
        (failed, format!("failed: {names}")),
        (held, "held".to_owned()),
        (unknown, "unknown or not applicable".to_owned()),
    ];
    let known = parts.iter().filter(|(count, _)| *count > 0);
    known.map(|(count, text)| format!("{count} {text}")).collect::<Vec<_>>().join("; ")
}

fn is_alike((one, _): &Limit<'_>, (other, _): &Limit<'_>) -> bool {
    one.name == other.name
}

/// Returns the value that is closest to failing, or fails most.
fn worst(gates: &[Limit<'_>]) -> Option<f64> {
    let known = gates.iter().filter_map(|(gate, _)| Some((gate.excess().or(gate.value)?, gate.value?)));
    known.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, value)| value)
}

/// A reason to distrust some figures, or all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Doubt {
    /// The reason, for all rows that it concerns.
    pub text: String,
    /// Figures and rows.
    pub detail: String,
}

impl Doubt {
    fn of_all(text: impl Into<String>) -> Self {
        Self { text: text.into(), detail: String::new() }
    }
}

/// Returns the reasons to distrust a report: first those that concern all of it, then gates, the most frequent first.
pub(crate) fn doubts(report: &Report) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    if !report.environment.optimized_build {
        doubts.push(Doubt::of_all("Measured with an unoptimised build: the figures are not representative"));
    }
    let left_out = report.left_out.iter().map(|(name, why)| format!("`{name}` was left out: {why}"));
    doubts.extend(left_out.map(Doubt::of_all));
    if let Some(curve) = facts::curve(report) {
        let limit = curve.limit().map(|limit| format!("{limit} bounds the reads, not the device"));
        doubts.extend(limit.map(Doubt::of_all));
        if !curve.proven {
            doubts.push(Doubt::of_all("No counter of a device proves that the random reads came from it"));
        }
    }
    let experiments = groups(&report.experiments).into_iter().flatten();
    let failed = experiments.flat_map(|experiment| {
        of_experiment(experiment).filter(|(gate, _)| gate.failed()).map(move |gate| (experiment, gate))
    });
    let mut kinds = together(failed, |one, other| is_alike(&one.1, &other.1));
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.len()));
    for kind in kinds {
        let places = places(kind.iter().map(|(experiment, gate)| (*experiment, row_name(gate))));
        let gates: Vec<Limit<'_>> = kind.into_iter().map(|(_, gate)| gate).collect();
        let (first, _) = &gates[0];
        let worst = worst(&gates).map_or_else(String::new, |value| {
            format!(" at worst {}, wanted {}", number(value), first.wanted())
        });
        let why = if first.why.is_empty() { String::new() } else { format!(" ({})", first.why) };
        let rows = if gates.iter().all(|(_, row)| row.is_none()) { "experiment" } else { "row" };
        let [readable, phrase] = words(first);
        doubts.push(Doubt {
            text: format!("{}: {phrase}", counted(gates.len(), rows)),
            detail: format!("{readable}{worst}{why}: {places}"),
        });
    }
    let reasons: [Reason; 4] = [
        (UNCOUNTED.to_owned(), |_, row| row.conditions.iter().any(is_uncounted)),
        ("a requested setting was not granted".to_owned(), |_, row| row.degraded.is_some()),
        (format!("repeats differ by more than {}", percent(WIDE)), |experiment, row| {
            facts::spread(row, &experiment.view.compared) > Some(WIDE)
        }),
        ("measured once, so their spread is unknown".to_owned(), |_, row| row.samples.len() == 1),
    ];
    for (text, applies) in reasons {
        let rows = measured(report).filter(|(_, experiment, row)| applies(experiment, row));
        let rows: Vec<(&Experiment, &str)> =
            rows.map(|(_, experiment, row)| (experiment, row.name.as_str())).collect();
        if !rows.is_empty() {
            let text = format!("{}: {text}", counted(rows.len(), "row"));
            doubts.push(Doubt { text, detail: places(rows) });
        }
    }
    if report.environment.virtual_machine {
        doubts.push(Doubt::of_all("Virtual machine: the host may serve reads from its own memory"));
    }
    doubts
}

/// Returns the names of rows, those of an experiment behind its title.
fn places<'a>(rows: impl IntoIterator<Item = (&'a Experiment, &'a str)>) -> String {
    let places = together(rows, |(one, _), (other, _)| one.title() == other.title());
    let place = |rows: &Vec<(&Experiment, &str)>| {
        let names: Vec<&str> = rows.iter().map(|(_, name)| *name).collect();
        format!("{} (`{}`)", rows[0].0.title(), names.join("`, `"))
    };
    places.iter().map(place).collect::<Vec<_>>().join("; ")
}

/// Returns whether a gate lacked a device whose bytes it could compare; a gate that does not apply needs no device.
fn is_uncounted(gate: &Condition) -> bool {
    gate.name == DEVICE_BYTES && gate.passed.is_none() && !gate.why.starts_with("does not apply")
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Number of reasons that are shown without their rows.
const DOUBTS_SHOWN: usize = 4;

/// Returns the reasons as lines: the first reasons, and the number of the others.
pub(crate) fn doubt_lines(doubts: &[Doubt], room: usize) -> Vec<String> {
    let mut lines: Vec<String> = doubts.iter().map(|doubt| doubt.text.clone()).collect();
    let shown = room.clamp(1, DOUBTS_SHOWN);
    if lines.len() > shown {
        let more = lines.split_off(shown - 1);
        lines.push(format!("{}; and {} more on the page", more[0], more.len() - 1));
    }
    lines
}

/// Returns the reasons on the page, all of their rows folded.
pub(crate) fn distrust(report: &Report) -> Markup {
    let doubts = doubts(report);
    let detailed: Vec<&Doubt> = doubts.iter().filter(|doubt| !doubt.detail.is_empty()).collect();
    html! {
        @if !doubts.is_empty() {
            section aria-labelledby="distrust" {
                h2 id="distrust" { "What to distrust" }
                ul.warnings { @for doubt in &doubts { li { (sentence(&doubt.text)) } } }
                @if !detailed.is_empty() {
                    details {
                        summary { "Failed gates and other reasons, row by row" }
                        ul { @for doubt in detailed { li { (sentence(&doubt.detail)) } } }
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
        Experiment::new("scan", "").with_rows(gates.into_iter().map(row))
    }

    fn texts(experiments: Vec<Experiment>) -> Vec<String> {
        let environment = Environment { optimized_build: true, ..Environment::default() };
        doubts(&Report::new(environment, experiments)).into_iter().map(|doubt| doubt.text).collect()
    }

    /// Regression: on a full disk a report of sixteen experiments ended in the middle without the earlier experiments.
    #[test]
    fn an_experiment_that_was_left_out_is_named_with_its_reason() {
        let mut report = Report::new(Environment::default(), Vec::new());
        report.left_out.insert("files".to_owned(), "/data has 1 GiB free".to_owned());
        let texts: Vec<String> = doubts(&report).into_iter().map(|doubt| doubt.text).collect();
        assert!(texts.contains(&"`files` was left out: /data has 1 GiB free".to_owned()), "{texts:?}");
    }

    #[test]
    fn direct_reads_that_no_device_counts_are_doubted() {
        let of = |gate: Condition| {
            let texts = texts(vec![experiment(vec![gate])]);
            texts.into_iter().any(|text| text.starts_with("1 row: no device here counts their bytes"))
        };
        assert!(of(Condition::unknown(DEVICE_BYTES, "there is no block device that counts its bytes")));
        assert!(!of(Condition::unknown(DEVICE_BYTES, "does not apply: memory may serve this row")));
        assert!(!of(Condition::within(DEVICE_BYTES, 1.0, 0.95, 1.02)));
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

    /// Regression: the page of a run with other load started with a sentence for each of its rows, four screens long.
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
    fn rows_of_an_experiment_are_named_together() {
        let [scan, random] = ["scan", "random"].map(|name| Experiment::new(name, ""));
        let rows = [(&scan, "mmap"), (&random, "direct"), (&scan, "buffered")];
        assert_eq!(places(rows), "scan (`mmap`, `buffered`); random (`direct`)");
    }

    #[test]
    fn many_reasons_are_four_lines() {
        let doubt = |text: &str| Doubt { text: text.to_owned(), detail: String::new() };
        let all: Vec<Doubt> = ["a", "b", "c", "d", "e", "f"].map(doubt).into();
        assert_eq!(doubt_lines(&all, 9), ["a", "b", "c", "d; and 2 more on the page"]);
        assert_eq!(doubt_lines(&all[..4], 4), ["a", "b", "c", "d"]);
        assert_eq!(doubt_lines(&all[..4], 2), ["a", "b; and 2 more on the page"]);
    }
}
