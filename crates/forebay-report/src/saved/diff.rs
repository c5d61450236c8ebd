//! `forebay diff`: the changes between two results, beyond noise.
//!
//! [`compare`] finds them by the rule in `noise`; [`Comparison::to_text`] is for human readers, and
//! [`Comparison::to_json`] for programs.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::{called, keys, label, listed, names, same, unlike};
use crate::failure::Failure;
use crate::result::columns::once;
use crate::result::{Experiment, Report, Row, SCHEMA, median, metric};
use crate::units::number;
use significance::{Outcome, Pair};

mod significance;
#[cfg(test)]
mod simulated_tests;

/// The figures that two results have in common, and those that only one has.
#[derive(Debug, Default, Serialize)]
pub struct Comparison {
    first: Origin,
    second: Origin,
    /// Number of figures that both have.
    compared: usize,
    /// Number of them that changed beyond noise.
    changed: usize,
    /// Number of them that did not change; a noteworthy change would have been detected.
    alike: usize,
    /// Number of undecided ones: they have too few repeats for their variance.
    unclear: usize,
    /// Number of repeats of both that would suffice for half of the undecided ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    repeats_needed: Option<usize>,
    /// Rows with a change.
    rows: Vec<ChangedRow>,
    /// Experiments and rows, named as in an expression of `assert`.
    only_in_first: Vec<String>,
    only_in_second: Vec<String>,
    /// Experiments that match but were not measured alike.
    unlike: Vec<Unlike>,
}

/// The origin of a result.
#[derive(Debug, Default, Serialize)]
struct Origin {
    forebay: String,
    kernel: String,
    path: Option<String>,
}

/// A row with a change.
#[derive(Debug, Serialize)]
struct ChangedRow {
    /// With the parameters that distinguish it: `random[depth=8]`.
    experiment: String,
    row: String,
    /// Results in which the row failed a gate.
    marked_in: Vec<&'static str>,
    /// The reason why it has figures in one result only.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_longer_measured: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_measured_before: Option<String>,
    changes: Vec<Change>,
}

/// A figure that changed beyond noise.
#[derive(Debug, Serialize)]
struct Change {
    metric: String,
    #[serde(skip)]
    heading: String,
    first: Figure,
    second: Figure,
    /// `more` or `less`.
    change: &'static str,
    /// Factor of the change; `None` where one of the two is 0.
    times: Option<f64>,
}

/// A figure with the range of its repeats.
#[derive(Debug, Serialize)]
struct Figure {
    median: f64,
    smallest: f64,
    largest: f64,
    repeats: usize,
}

#[derive(Debug, Serialize)]
struct Unlike {
    experiment: String,
    parameters: Vec<String>,
}

/// Compares two results and returns the comparison.
///
/// # Errors
/// [`Failure::Usage`] when no experiment is in both.
pub fn compare(before: &Report, after: &Report) -> Result<Comparison, Failure> {
    let mut all = Comparison { first: origin(before), second: origin(after), ..Comparison::default() };
    let both = before.experiments.iter().chain(&after.experiments);
    let mut matched: Vec<ExperimentPair<'_>> = Vec::new();
    for name in once(both.map(|experiment| experiment.name.as_str())) {
        let keys = keys(&[&before.experiments, &after.experiments], name);
        let mut news = called(&after.experiments, name);
        for old in called(&before.experiments, name) {
            let label = label(old, &keys);
            match news.iter().position(|new| keys.iter().all(|key| same(old, new, key))) {
                Some(place) => matched.push((label, old, news.remove(place))),
                None => all.only_in_first.push(label),
            }
        }
        all.only_in_second.extend(news.iter().map(|new| label(new, &keys)));
    }
    if matched.is_empty() {
        return Err(Failure::Usage(format!(
            "nothing can be compared: no experiment is in both (the first has {}, the second {}){}",
            listed(&names(before)),
            listed(&names(after)),
            all.unpaired().map(|line| format!("\n  {line}")).collect::<String>()
        )));
    }
    all.fill(&matched);
    Ok(all)
}

/// An experiment that is in both results, with its label.
type ExperimentPair<'a> = (String, &'a Experiment, &'a Experiment);

/// Returns the rows of an experiment that both results have.
fn common<'a>((_, before, after): &ExperimentPair<'a>) -> impl Iterator<Item = (&'a Row, &'a Row)> {
    let (before, after) = (*before, *after);
    before.rows.iter().filter_map(|old| Some((old, after.row(&old.name)?)))
}

/// Returns the figures of two rows that are compared.
fn figures<'a>((first, second): (&'a Row, &'a Row)) -> impl Iterator<Item = Pair<'a>> {
    let names = first.metrics.0.keys().map(String::as_str);
    let both = names.filter(|name| *name != metric::SECONDS && second.metrics.get(name).is_some());
    both.map(move |metric| Pair { metric, first, second })
}

fn origin(report: &Report) -> Origin {
    Origin {
        forebay: report.forebay.clone(),
        kernel: report.environment.kernel.clone(),
        path: report.environment.path.as_ref().map(|path| path.path.clone()),
    }
}

impl Comparison {
    /// Returns the document as indented JSON with a final newline.
    ///
    /// # Errors
    /// None: figures are finite numbers.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let document =
            serde_json::json!({ "schema": SCHEMA, "forebay": env!("CARGO_PKG_VERSION"), "diff": self });
        Ok(format!("{}\n", serde_json::to_string_pretty(&document)?))
    }

    fn fill(&mut self, matched: &[ExperimentPair<'_>]) {
        let pairs: Vec<Pair<'_>> = matched.iter().flat_map(common).flat_map(figures).collect();
        let mut judged = pairs.iter().zip(significance::judge(&pairs));
        let mut needed = Vec::new();
        for both @ (label, before, after) in matched {
            let parameters = unlike(before, after);
            if !parameters.is_empty() {
                self.unlike.push(Unlike { experiment: label.clone(), parameters });
            }
            let missing = |row: &Row, from: &Experiment| {
                from.row(&row.name).is_none().then(|| format!("{label}.{}", row.name))
            };
            self.only_in_first.extend(before.rows.iter().filter_map(|row| missing(row, after)));
            self.only_in_second.extend(after.rows.iter().filter_map(|row| missing(row, before)));
            for (old, new) in common(both) {
                let mut changes = Vec::new();
                for (pair, outcome) in judged.by_ref().take(figures((old, new)).count()) {
                    self.compared += 1;
                    match outcome {
                        Outcome::Changed(times) => changes.extend(change(pair, times, after)),
                        Outcome::Alike => self.alike += 1,
                        Outcome::Unclear(repeats) => {
                            self.unclear += 1;
                            needed.extend(repeats.map(|repeats| repeats as f64));
                        }
                    }
                }
                self.changed += changes.len();
                let newly = |one: &Row, other: &Row| other.skipped.clone().filter(|_| one.skipped.is_none());
                let (no_longer_measured, not_measured_before) = (newly(old, new), newly(new, old));
                if changes.is_empty() && no_longer_measured.is_none() && not_measured_before.is_none() {
                    continue;
                }
                let sides = [(old, "first"), (new, "second")].into_iter();
                self.rows.push(ChangedRow {
                    experiment: label.clone(),
                    row: old.name.clone(),
                    marked_in: sides.filter(|(row, _)| row.is_marked()).map(|(_, word)| word).collect(),
                    no_longer_measured,
                    not_measured_before,
                    changes,
                });
            }
        }
        self.repeats_needed = median(needed).map(|repeats| repeats.ceil() as usize);
    }

    /// Formats the comparison for human readers.
    pub fn to_text(&self) -> String {
        let [first, second] = [&self.first, &self.second].map(|Origin { forebay, kernel, path }| {
            format!("forebay {forebay}, {kernel}, {}", path.as_deref().unwrap_or("no path"))
        });
        let mut text = format!("first:  {first}\nsecond: {second}\n");
        let unlike = self.unlike.iter().map(|Unlike { experiment, parameters }| {
            format!("not measured alike: {experiment}: {}", parameters.join(", "))
        });
        unlike.chain(self.unpaired()).for_each(|line| text += &format!("{line}\n"));
        if !self.rows.is_empty() {
            text.push_str("\nchanged beyond noise\n");
        }
        // Writing to a String cannot fail.
        for row in &self.rows {
            let _ = write!(text, "  {}.{}", row.experiment, row.row);
            if !row.marked_in.is_empty() {
                let _ = write!(text, "  (!) failed a gate in the {} result", row.marked_in.join(" and the "));
            }
            text.push('\n');
            let reasons = [
                ("no longer measured", &row.no_longer_measured),
                ("was not measured before", &row.not_measured_before),
            ];
            for (words, why) in reasons.iter().filter_map(|(words, why)| Some((words, why.as_ref()?))) {
                let _ = writeln!(text, "    {words}: {why}");
            }
            for Change { metric, heading, first, second, change, times } in &row.changes {
                let change = match times {
                    Some(times) => format!("{} times {change}", number(*times)),
                    None if *change == "more" => "was nothing".to_owned(),
                    None => "is 0 now".to_owned(),
                };
                let _ = writeln!(text, "    {metric} ({heading}): {first} -> {second}: {change}");
            }
        }
        let Self { compared, changed, alike, unclear, .. } = self;
        let needed = match (unclear, self.repeats_needed) {
            (0, _) => String::new(),
            (_, Some(repeats)) => {
                format!(": {repeats} repeats of both are needed (--repeats {repeats}), for half of these")
            }
            (_, None) => ": they vary too much from run to run".to_owned(),
        };
        let counts = format!("{changed} changed beyond noise, {alike} alike, {unclear} unclear");
        format!("{text}\n{compared} figures compared: {counts}{needed}\n")
    }

    /// Returns the parts that only one of the two results has.
    fn unpaired(&self) -> impl Iterator<Item = String> {
        let line = |side: &'static str| move |label: &String| format!("only in the {side}: {label}");
        let first = self.only_in_first.iter().map(line("first"));
        first.chain(self.only_in_second.iter().map(line("second")))
    }
}

/// Returns a change by the factor `times`; `None` where a row lacks the figure.
fn change(pair: &Pair<'_>, times: f64, experiment: &Experiment) -> Option<Change> {
    let of = |row: &Row| {
        let median = row.metrics.get(pair.metric)?;
        let (smallest, largest) = row.spread(pair.metric).unwrap_or((median, median));
        Some(Figure { median, smallest, largest, repeats: row.samples.len() })
    };
    let heading = experiment.view.column(pair.metric).map_or(pair.metric, |column| &*column.heading);
    let (change, times) = if times > 1.0 { ("more", times) } else { ("less", 1.0 / times) };
    Some(Change {
        metric: pair.metric.to_owned(),
        heading: heading.to_owned(),
        first: of(pair.first)?,
        second: of(pair.second)?,
        change,
        times: times.is_finite().then_some(times),
    })
}

impl fmt::Display for Figure {
    /// Formats a figure with the range of its repeats: `1,000 (900 to 1,100)`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, smallest, largest] = [self.median, self.smallest, self.largest].map(number);
        match self.repeats {
            0 | 1 => write!(formatter, "{median} (once)"),
            _ => write!(formatter, "{median} ({smallest} to {largest})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::result::{Metrics, Sample};

    fn report(name: &str, figures: &[(u32, &[f64])]) -> Report {
        let experiments = figures.iter().map(|(depth, values)| {
            let samples = values.iter().enumerate().map(|(repeat, value)| {
                let mut metrics = Metrics::default();
                metrics.set(metric::IOPS, *value).set(metric::SECONDS, *value);
                Sample { repeat: repeat as u32, metrics }
            });
            let mut experiment = Experiment::new(name, "").parameter("depth", *depth);
            experiment.rows.push(Row::from_samples("direct", samples.collect()));
            experiment
        });
        Report::new(Environment::default(), experiments.collect())
    }

    /// One depth is alike, one has changed, one was sampled once, and one is in the first only.
    fn two_reports() -> [Report; 2] {
        let steady = [500.0, 505.0, 495.0, 502.0, 499.0];
        let before = report(
            "random",
            &[(1, &[100.0, 101.0, 99.0, 100.5, 99.5]), (8, &steady), (16, &[100.0]), (32, &[1.0])],
        );
        let after = report(
            "random",
            &[
                (1, &[103.0, 99.5, 104.0, 100.0, 101.0]),
                (8, &steady.map(|value| 2.0 * value)),
                (16, &[300.0]),
            ],
        );
        [before, after]
    }

    fn render(before: &Report, after: &Report) -> String {
        compare(before, after).expect("they have an experiment in common").to_text()
    }

    #[test]
    fn differences_are_in_the_json_too() {
        let [before, after] = two_reports();
        let text = compare(&before, &after).expect("the same experiment").to_json().expect("finite");
        let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (&found["schema"], &found["forebay"]),
            (&SCHEMA.into(), &env!("CARGO_PKG_VERSION").into())
        );
        let diff = &found["diff"];
        let counts = ["compared", "changed", "alike", "unclear"].map(|name| diff[name].as_u64());
        assert_eq!(counts, [3, 1, 1, 1].map(Some), "{diff}");
        assert!(diff["repeats_needed"].as_u64().is_some_and(|repeats| (2..=10).contains(&repeats)), "{diff}");
        assert_eq!(diff["only_in_first"], serde_json::json!(["random[depth=32]"]));
        let row = &diff["rows"][0];
        assert_eq!((&row["experiment"], &row["row"]), (&"random[depth=8]".into(), &"direct".into()));
        let change = &row["changes"][0];
        assert_eq!((&change["metric"], &change["change"]), (&"iops".into(), &"more".into()), "{change}");
        assert_eq!(
            (change["times"].as_f64(), change["second"]["largest"].as_f64()),
            (Some(2.0), Some(1010.0))
        );
        assert_eq!(diff["rows"].as_array().map(Vec::len), Some(1));
        let nothing = report("random", &[(1, &[0.0, 0.0, 0.0])]);
        let some = report("random", &[(1, &[5.0, 5.0, 5.0])]);
        let text = compare(&nothing, &some).expect("the same").to_json().expect("finite");
        assert!(text.contains("\"times\": null"), "{text}");
    }

    #[test]
    fn only_changes_beyond_noise_are_reported() {
        let [before, after] = two_reports();
        let text = render(&before, &after);
        assert!(
            text.contains("random[depth=8].direct\n    iops (IOPS): 500 (495 to 505) -> 1,000 (990 to 1,010): 2 times more"),
            "{text}"
        );
        assert!(!text.contains("depth=1]"), "{text}");
        assert!(text.contains("only in the first: random[depth=32]"), "{text}");
        assert!(text.contains("3 figures compared: 1 changed beyond noise, 1 alike, 1 unclear"), "{text}");
        assert!(text.contains("repeats of both are needed") && !text.contains("depth=16"), "{text}");
        let same = render(&before, &before);
        assert!(!same.contains("changed beyond noise\n ") && same.contains("0 changed"), "{same}");
    }

    #[test]
    fn different_experiments_are_an_error_that_names_them() {
        let error = compare(&report("random", &[(1, &[1.0])]), &report("scan", &[(1, &[1.0])]))
            .expect_err("nothing in common");
        assert_eq!(error.code(), 2);
        assert!(error.to_string().contains("the first has random, the second scan"), "{error}");
        let empty = Report::new(Environment::default(), Vec::new());
        assert!(compare(&empty, &empty).is_err_and(|error| error.to_string().contains("has none")));
    }
}
