//! `forebay diff`: the changes between two results, beyond noise.
//!
//! [`compare`] finds them by the rule in `noise`; `text` is for human readers, and
//! [`Comparison::to_json`] for programs.

use serde::Serialize;

use super::select::{keys, label, same, unlike};
use crate::failure::Failure;
use crate::result::{Experiment, Report, Row, SCHEMA, median, metric};
use noise::{Outcome, Pair};

mod noise;
#[cfg(test)]
mod simulated;
mod text;

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
    rows: Vec<Changed>,
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
struct Changed {
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
    change: Direction,
    /// Factor of the change; `None` where one of the two is 0.
    times: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Direction {
    More,
    Less,
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
    let mut names: Vec<&str> = Vec::new();
    for experiment in before.experiments.iter().chain(&after.experiments) {
        if !names.contains(&experiment.name.as_str()) {
            names.push(&experiment.name);
        }
    }
    let mut matched: Vec<Matched> = Vec::new();
    for name in names {
        let keys = keys(&[&before.experiments, &after.experiments], name);
        let of = |report: &'_ Report| -> Vec<Experiment> {
            report.experiments.iter().filter(|found| found.name == name).cloned().collect()
        };
        let (olds, mut news) = (of(before), of(after));
        for old in olds {
            let place = news.iter().position(|new| keys.iter().all(|key| same(&old, new, key)));
            match place {
                Some(place) => matched.push((label(&old, &keys), old, news.remove(place))),
                None => all.only_in_first.push(label(&old, &keys)),
            }
        }
        all.only_in_second.extend(news.iter().map(|new| label(new, &keys)));
    }
    if matched.is_empty() {
        let names = |report: &Report| {
            let mut names: Vec<&str> = report.experiments.iter().map(|found| found.name.as_str()).collect();
            names.dedup();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        return Err(Failure::Usage(format!(
            "nothing can be compared: no experiment is in both (the first has {}, the second {}){}",
            names(before),
            names(after),
            all.unpaired().iter().map(|line| format!("\n  {line}")).collect::<String>()
        )));
    }
    all.fill(&matched);
    Ok(all)
}

/// An experiment that is in both results, with its label.
type Matched = (String, Experiment, Experiment);

/// Returns the figures of two rows that are compared.
fn figures<'a>(first: &'a Row, second: &'a Row) -> impl Iterator<Item = Pair<'a>> {
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

    fn fill(&mut self, matched: &[Matched]) {
        let rows = |(_, before, after): &'_ Matched| -> Vec<(Row, Row)> {
            let both =
                before.rows.iter().filter_map(|old| Some((old.clone(), after.row(&old.name)?.clone())));
            both.collect()
        };
        let rows: Vec<Vec<(Row, Row)>> = matched.iter().map(rows).collect();
        let pairs: Vec<Pair<'_>> = rows.iter().flatten().flat_map(|(old, new)| figures(old, new)).collect();
        let mut outcomes = noise::judge(&pairs).into_iter();
        let mut needed = Vec::new();
        for ((label, before, after), rows) in matched.iter().zip(&rows) {
            let unlike = unlike(before, after);
            if !unlike.is_empty() {
                self.unlike.push(Unlike { experiment: label.clone(), parameters: unlike });
            }
            let missing = |row: &Row, from: &Experiment| {
                from.row(&row.name).is_none().then(|| format!("{label}.{}", row.name))
            };
            self.only_in_first.extend(before.rows.iter().filter_map(|row| missing(row, after)));
            self.only_in_second.extend(after.rows.iter().filter_map(|row| missing(row, before)));
            for (old, new) in rows {
                self.rows(label, after, old, new, &mut outcomes, &mut needed);
            }
        }
        self.repeats_needed = median(needed).map(|repeats| repeats.ceil() as usize);
    }

    fn rows(
        &mut self,
        label: &str,
        experiment: &Experiment,
        old: &Row,
        new: &Row,
        outcomes: &mut impl Iterator<Item = Outcome>,
        needed: &mut Vec<f64>,
    ) {
        let mut changes = Vec::new();
        for (Pair { metric: name, .. }, outcome) in figures(old, new).zip(outcomes) {
            self.compared += 1;
            let times = match outcome {
                Outcome::Changed(times) => times,
                Outcome::Alike => {
                    self.alike += 1;
                    continue;
                }
                Outcome::Unclear(repeats) => {
                    self.unclear += 1;
                    needed.extend(repeats.map(|repeats| repeats as f64));
                    continue;
                }
            };
            let (change, times) =
                if times > 1.0 { (Direction::More, times) } else { (Direction::Less, 1.0 / times) };
            let (Some(first), Some(second)) = (figure(old, name), figure(new, name)) else { continue };
            self.changed += 1;
            let heading = experiment.view.column(name).map_or(name, |column| &*column.heading);
            changes.push(Change {
                metric: name.to_owned(),
                heading: heading.to_owned(),
                first,
                second,
                change,
                times: times.is_finite().then_some(times),
            });
        }
        let (no_longer_measured, not_measured_before) = match (&old.skipped, &new.skipped) {
            (None, Some(why)) => (Some(why.clone()), None),
            (Some(why), None) => (None, Some(why.clone())),
            _ => (None, None),
        };
        if changes.is_empty() && no_longer_measured.is_none() && not_measured_before.is_none() {
            return;
        }
        let marked = [(old, "first"), (new, "second")].into_iter().filter(|(row, _)| row.is_marked());
        self.rows.push(Changed {
            experiment: label.to_owned(),
            row: old.name.clone(),
            marked_in: marked.map(|(_, word)| word).collect(),
            no_longer_measured,
            not_measured_before,
            changes,
        });
    }
}

fn figure(row: &Row, metric: &str) -> Option<Figure> {
    let median = row.metrics.get(metric)?;
    let (smallest, largest) = row.spread(metric).unwrap_or((median, median));
    Some(Figure { median, smallest, largest, repeats: row.samples.len() })
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

    fn render(before: &Report, after: &Report) -> String {
        compare(before, after).expect("they have an experiment in common").to_text()
    }

    #[test]
    fn differences_are_in_the_json_too() {
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
