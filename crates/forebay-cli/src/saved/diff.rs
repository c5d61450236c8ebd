//! `forebay diff`: what changed between two results, beyond noise.

use std::fmt::Write as _;

use super::select::{keys, label, same, unlike};
use crate::doctor::units::number;
use crate::exit::Failure;
use crate::measure::kind;
use crate::report::columns::Column;
use crate::report::noise::{Difference, difference};
use crate::result::{Experiment, Report, Row, metric};

/// The text.
///
/// # Errors
/// [`Failure::Usage`] when no experiment is in both, or one is in a result twice.
pub(super) fn render(before: &Report, after: &Report) -> Result<String, Failure> {
    let mut all = Comparison::default();
    let mut names: Vec<&str> = Vec::new();
    for experiment in before.experiments.iter().chain(&after.experiments) {
        if !names.contains(&experiment.name.as_str()) {
            names.push(&experiment.name);
        }
    }
    let mut matched = 0;
    for name in names {
        let keys = keys(&[&before.experiments, &after.experiments], name);
        let of = |report: &'_ Report| -> Vec<Experiment> {
            report.experiments.iter().filter(|found| found.name == name).cloned().collect()
        };
        let (olds, mut news) = (of(before), of(after));
        for old in olds {
            let place = news.iter().position(|new| keys.iter().all(|key| same(&old, new, key)));
            match place {
                Some(place) => {
                    matched += 1;
                    all.compare(&label(&old, &keys), &old, &news.remove(place));
                }
                None => all.lonely.push(format!("only in the first: {}", label(&old, &keys))),
            }
        }
        all.lonely.extend(news.iter().map(|new| format!("only in the second: {}", label(new, &keys))));
    }
    if matched == 0 {
        let names = |report: &Report| {
            let mut names: Vec<&str> = report.experiments.iter().map(|found| found.name.as_str()).collect();
            names.dedup();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        return Err(Failure::Usage(format!(
            "nothing can be compared: no experiment is in both (the first has {}, the second {}){}",
            names(before),
            names(after),
            all.lonely.iter().map(|line| format!("\n  {line}")).collect::<String>()
        )));
    }
    Ok(all.text(before, after))
}

#[derive(Debug, Default)]
struct Comparison {
    changes: String,
    lonely: Vec<String>,
    unlike: Vec<String>,
    compared: usize,
    changed: usize,
}

impl Comparison {
    fn compare(&mut self, label: &str, before: &Experiment, after: &Experiment) {
        let unlike = unlike(before, after);
        if !unlike.is_empty() {
            self.unlike.push(format!("not measured alike: {label}: {}", unlike.join(", ")));
        }
        for old in &before.rows {
            match after.row(&old.name) {
                Some(new) => self.rows(label, after, old, new),
                None => self.lonely.push(format!("only in the first: {label}.{}", old.name)),
            }
        }
        let is_new = |row: &&Row| before.row(&row.name).is_none();
        let new = after.rows.iter().filter(is_new);
        self.lonely.extend(new.map(|row| format!("only in the second: {label}.{}", row.name)));
    }

    fn rows(&mut self, label: &str, experiment: &Experiment, old: &Row, new: &Row) {
        let mut lines = String::new();
        match (&old.skipped, &new.skipped) {
            (None, Some(why)) => lines.push_str(&format!("    no longer measured: {why}\n")),
            (Some(why), None) => lines.push_str(&format!("    was not measured before: {why}\n")),
            _ => {}
        }
        for name in old.metrics.0.keys().filter(|name| name.as_str() != metric::SECONDS) {
            let Some(difference) = difference(new, old, name) else { continue };
            self.compared += 1;
            let words = match difference {
                Difference::Equal => continue,
                Difference::More(times) if times.is_infinite() => "was nothing".to_owned(),
                Difference::Less(times) if times.is_infinite() => "is nothing now".to_owned(),
                Difference::More(times) => format!("{} times more", number(times)),
                Difference::Less(times) => format!("{} times less", number(times)),
            };
            self.changed += 1;
            let heading =
                Column::of(kind::of(experiment), name).map_or(name.as_str(), |column| column.heading);
            let (before, after) = (figure(old, name), figure(new, name));
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "    {name} ({heading}): {before} -> {after}: {words}");
        }
        let doubts: Vec<&str> = [(old, "first"), (new, "second")]
            .iter()
            .filter(|(row, _)| row.is_marked())
            .map(|(_, word)| *word)
            .collect();
        if !lines.is_empty() {
            let doubt = if doubts.is_empty() {
                String::new()
            } else {
                format!("  (!) failed a gate in the {} result", doubts.join(" and the "))
            };
            let _ = write!(self.changes, "  {label}.{}{doubt}\n{lines}", old.name);
        }
    }

    fn text(&self, before: &Report, after: &Report) -> String {
        let mut text = String::new();
        let place = |report: &Report| {
            let path = report.environment.path.as_ref().map_or("no path", |path| path.path.as_str());
            format!("forebay {}, {}, {path}", report.forebay, report.environment.kernel)
        };
        let _ = writeln!(text, "first:  {}\nsecond: {}", place(before), place(after));
        for line in self.unlike.iter().chain(&self.lonely) {
            let _ = writeln!(text, "{line}");
        }
        if self.changed > 0 || !self.changes.is_empty() {
            let _ = write!(text, "\nchanged beyond noise\n{}", self.changes);
        }
        let equal = self.compared - self.changed;
        let _ = writeln!(
            text,
            "\n{} figures compared: {} changed beyond noise, {equal} equal",
            self.compared, self.changed
        );
        text
    }
}

/// A figure with the range of its repeats: `1,000 (900 to 1,100)`.
fn figure(row: &Row, metric: &str) -> String {
    let value = row.metrics.get(metric).map_or_else(|| "-".to_owned(), number);
    match row.spread(metric) {
        Some((low, high)) if row.samples.len() > 1 => {
            format!("{value} ({} to {})", number(low), number(high))
        }
        _ => format!("{value} (once)"),
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

    #[test]
    fn only_what_changed_beyond_noise_is_told() {
        let before =
            report("random", &[(1, &[100.0, 101.0, 99.0]), (8, &[500.0, 505.0, 495.0]), (32, &[1.0])]);
        let after = report("random", &[(1, &[103.0, 99.5, 104.0]), (8, &[1000.0, 1005.0, 995.0])]);
        let text = render(&before, &after).expect("the same experiment");
        assert!(
            text.contains("random[depth=8].direct\n    iops (IOPS): 500 (495 to 505) -> 1,000 (995 to 1,005): 2 times more"),
            "{text}"
        );
        assert!(!text.contains("depth=1]"), "{text}");
        assert!(text.contains("only in the first: random[depth=32]"), "{text}");
        assert!(text.ends_with("2 figures compared: 1 changed beyond noise, 1 equal\n"), "{text}");
        let same = render(&before, &before).expect("the same");
        assert!(!same.contains("changed beyond noise\n ") && same.contains("0 changed"), "{same}");
    }

    #[test]
    fn different_experiments_are_an_error_that_names_them() {
        let error = render(&report("random", &[(1, &[1.0])]), &report("scan", &[(1, &[1.0])]))
            .expect_err("nothing in common");
        assert_eq!(error.code(), 2);
        assert!(error.to_string().contains("the first has random, the second scan"), "{error}");
        let empty = Report::new(Environment::default(), Vec::new());
        assert!(render(&empty, &empty).is_err_and(|error| error.to_string().contains("has none")));
    }
}
