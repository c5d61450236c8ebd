//! `forebay diff`: the changes between two results, beyond noise.
//!
//! [`compare`] finds them by the rule in `noise`; [`Comparison::to_text`] is for human readers, and
//! [`Comparison::to_json`] for programs.

use std::fmt;

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

/// Rows that a line names; of more it has the number.
const NAMED: usize = 8;
/// Bytes of a gibibyte.
const GIB: f64 = 1_073_741_824.0;
/// The part of its memory by which a machine may differ from itself: a kernel keeps some for itself, and another one more.
const MEMORY_PART: u64 = 50;

/// The figures that two results have in common, and those that only one has.
#[derive(Debug, Default, Serialize)]
pub struct Comparison {
    first: Origin,
    second: Origin,
    /// Facts by which the results are of two machines. Then no figure is compared.
    machines: Vec<String>,
    /// Nothing says whether they are.
    #[serde(skip)]
    is_machine_unknown: bool,
    /// Number of figures that both have.
    compared: usize,
    /// Number of them that changed beyond noise.
    changed: usize,
    /// Number of them that did not change; a noteworthy change would have been detected.
    alike: usize,
    /// Number of undecided figures: they have too few repeats for their variance.
    unclear: usize,
    /// Number of repeats of both that would suffice for half of the undecided figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    repeats_needed: Option<usize>,
    /// Rows with a change.
    pub(crate) rows: Vec<ChangedRow>,
    /// Experiments and rows, named as in an expression of `assert`.
    only_in_first: Vec<String>,
    only_in_second: Vec<String>,
    /// Experiments that match but were not measured alike.
    unlike: Vec<Unlike>,
    /// Experiments and rows that match, but in another size, state of the page cache or load. Their figures are not compared.
    incomparable: Vec<Unlike>,
    /// Rows that a result has without repeats, so that nothing is known of their noise.
    once: Vec<String>,
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
pub(crate) struct ChangedRow {
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
    let (first, second, machines) = (origin(before), origin(after), machines(before, after));
    let is_machine_unknown = [before, after].iter().any(|report| report.environment.cpus_online == 0);
    let mut all = Comparison { first, second, machines, is_machine_unknown, ..Comparison::default() };
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

/// Returns the figures of two rows that are compared: empty if samples started with different page caches.
fn figures<'a>((first, second): (&'a Row, &'a Row)) -> impl Iterator<Item = Pair<'a>> {
    let names = first.metrics.0.keys().map(String::as_str).filter(move |_| caches(first, second).is_none());
    let both = names.filter(|name| *name != metric::SECONDS && second.metrics.get(name).is_some());
    both.map(move |metric| Pair { metric, first, second })
}

/// Returns the states of the page cache in which samples started, if they differ.
fn caches(first: &Row, second: &Row) -> Option<String> {
    let (old, new) = first.cache.zip(second.cache).filter(|(old, new)| old != new)?;
    Some(format!("page cache {} -> {}", old.label(), new.label()))
}

/// Returns the facts that differ because the results are of two machines; unknown facts do not count.
fn machines(before: &Report, after: &Report) -> Vec<String> {
    let facts = |report: &Report| {
        let known = &report.environment;
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        [
            known.host.clone(),
            text(&known.architecture),
            known.cpu_model.clone(),
            Some(known.cpus_online).filter(|count| *count > 0).map(|count| count.to_string()),
        ]
    };
    let names = ["host", "architecture", "processor", "processors"];
    let both = names.into_iter().zip(facts(before).into_iter().zip(facts(after)));
    let differ = both.filter_map(|(name, (old, new))| {
        let (old, new) = old.zip(new).filter(|(old, new)| old != new)?;
        Some(format!("{name} {old} -> {new}"))
    });
    let [old, new] = [before, after].map(|report| report.environment.memory_total_bytes);
    let is_known = old.min(new) > 0;
    let memory = (is_known && old.abs_diff(new) > old.max(new) / MEMORY_PART).then(|| {
        let [old, new] = [old, new].map(|bytes| number(bytes as f64 / GIB));
        format!("memory {old} GiB -> {new} GiB")
    });
    differ.chain(memory).collect()
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
        let comparable = matched
            .iter()
            .filter(|(_, before, after)| self.machines.is_empty() && unlike(before, after, false).is_empty());
        let pairs: Vec<Pair<'_>> = comparable.flat_map(common).flat_map(figures).collect();
        let mut judged = pairs.iter().zip(significance::judge(&pairs));
        let mut needed = Vec::new();
        for both @ (label, before, after) in matched {
            let [alike, others] = [true, false].map(|comparable| unlike(before, after, comparable));
            let is_compared = self.machines.is_empty() && others.is_empty();
            for (list, parameters) in [(&mut self.unlike, alike), (&mut self.incomparable, others)] {
                if !parameters.is_empty() {
                    list.push(Unlike { experiment: label.clone(), parameters });
                }
            }
            let missing = |row: &Row, from: &Experiment| {
                from.row(&row.name).is_none().then(|| format!("{label}.{}", row.name))
            };
            self.only_in_first.extend(before.rows.iter().filter_map(|row| missing(row, after)));
            self.only_in_second.extend(after.rows.iter().filter_map(|row| missing(row, before)));
            for (old, new) in common(both) {
                let name = format!("{label}.{}", old.name);
                let mut changes = Vec::new();
                let compared = if is_compared { figures((old, new)).count() } else { 0 };
                if compared > 0 && old.samples.len().min(new.samples.len()) < 2 {
                    self.once.push(name.clone());
                }
                if let Some(caches) = caches(old, new).filter(|_| is_compared) {
                    self.incomparable.push(Unlike { experiment: name, parameters: vec![caches] });
                }
                for (pair, outcome) in judged.by_ref().take(compared) {
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
                let sides = [(old, before, "first"), (new, after, "second")].into_iter();
                let marked = sides.filter(|(row, of, _)| of.is_marked(row)).map(|(.., word)| word);
                self.rows.push(ChangedRow {
                    experiment: label.clone(),
                    row: old.name.clone(),
                    marked_in: marked.collect(),
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
        self.excluded().iter().for_each(|line| text += &format!("{line}\n"));
        if !self.rows.is_empty() {
            text.push_str("\nchanged beyond noise\n");
        }
        for row in &self.rows {
            text += &format!("  {}\n", row.name());
            row.lines().iter().for_each(|line| text += &format!("    {line}\n"));
        }
        format!("{text}\n{}\n", self.counts())
    }

    /// Returns a line on how many figures were compared, and with which outcome.
    pub(crate) fn counts(&self) -> String {
        let Self { compared, changed, alike, unclear, .. } = self;
        let needed = match (unclear, self.repeats_needed) {
            (0, _) => String::new(),
            (_, Some(repeats)) => {
                format!(": {repeats} repeats of both are needed (--repeats {repeats}), for half of these")
            }
            (_, None) => ": they vary too much from run to run".to_owned(),
        };
        let counts = format!("{changed} changed beyond noise, {alike} alike, {unclear} unclear");
        format!("{compared} figures compared: {counts}{needed}")
    }

    /// Returns lines on what is not, or not strictly, compared, each with the reason.
    pub(crate) fn excluded(&self) -> Vec<String> {
        let machines =
            Some(format!("another machine, so no figure is compared: {}", self.machines.join(", ")));
        let machines = machines.filter(|_| !self.machines.is_empty());
        let unknown =
            self.is_machine_unknown.then(|| "not known: whether both are of one machine".to_owned());
        let machines = machines.or(unknown);
        let of = |words: &'static str| {
            move |Unlike { experiment, parameters }: &Unlike| {
                format!("{words}: {experiment}: {}", parameters.join(", "))
            }
        };
        let incomparable = self.incomparable.iter().map(of("not compared"));
        let unlike = self.unlike.iter().map(of("not measured alike"));
        let once = match self.once.len() {
            0 => None,
            rows if rows > NAMED => Some(format!("without repeats: {rows} rows")),
            _ => Some(format!("without repeats: {}", listed(&self.once))),
        };
        machines.into_iter().chain(incomparable).chain(unlike).chain(self.unpaired()).chain(once).collect()
    }

    /// Returns the parts that only one of the two results has.
    fn unpaired(&self) -> impl Iterator<Item = String> {
        let line = |side: &'static str| move |label: &String| format!("only in the {side}: {label}");
        let first = self.only_in_first.iter().map(line("first"));
        first.chain(self.only_in_second.iter().map(line("second")))
    }
}

impl ChangedRow {
    /// Returns the row's name, with a mark where it failed a gate.
    pub(crate) fn name(&self) -> String {
        let marked = self.marked_in.join(" and the ");
        let mark = Some(format!("  (!) failed a gate in the {marked} result"));
        let mark = mark.filter(|_| !marked.is_empty()).unwrap_or_default();
        format!("{}.{}{mark}", self.experiment, self.row)
    }

    /// Returns a line for each change.
    pub(crate) fn lines(&self) -> Vec<String> {
        let reasons = [
            ("no longer measured", &self.no_longer_measured),
            ("was not measured before", &self.not_measured_before),
        ];
        let reasons =
            reasons.into_iter().filter_map(|(words, why)| Some(format!("{words}: {}", why.as_ref()?)));
        let changes = self.changes.iter().map(|Change { metric, heading, first, second, change, times }| {
            let change = match times {
                Some(times) => format!("{} times {change}", number(*times)),
                None if *change == "more" => "was nothing".to_owned(),
                None => "is 0 now".to_owned(),
            };
            format!("{metric} ({heading}): {first} -> {second}: {change}")
        });
        reasons.chain(changes).collect()
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
    use crate::result::CacheState;

    fn report(name: &str, figures: &[(u32, &[f64])]) -> Report {
        let experiments = figures.iter().map(|(depth, values)| {
            let repeats = values.iter().map(|value| [(metric::IOPS, *value), (metric::SECONDS, *value)]);
            let row = Row::of_repeats("direct", repeats);
            Experiment::new(name, "").parameter("depth", *depth).with_rows([row])
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
        assert!(text.contains("repeats of both are needed"), "{text}");
        assert!(text.contains("without repeats: random[depth=16].direct\n"), "{text}");
        assert!(!text.contains("  random[depth=16]"), "{text}");
        let same = render(&before, &before);
        assert!(!same.contains("changed beyond noise\n ") && same.contains("0 changed"), "{same}");
    }

    /// Regression: a file of half the size, or another machine, made a device "2 times" as fast. Then the same machine counted as another
    /// one when its memory, without the kernel's own, was 16.01 GiB after 15.99.
    #[test]
    fn nothing_is_said_to_differ_where_size_cache_or_machine_do() {
        let steady = [500.0, 505.0, 495.0, 502.0, 499.0];
        let pair =
            || [report("scan", &[(1, &steady)]), report("scan", &[(1, &steady.map(|value| 2.0 * value))])];
        let [before, after] = pair();
        assert!(render(&before, &after).contains("1 changed beyond noise"));
        let check = |change: &dyn Fn(&mut Report, u32), words: &str| {
            let [mut before, mut after] = pair();
            change(&mut before, 0);
            change(&mut after, 1);
            let text = render(&before, &after);
            assert!(
                text.contains(words) && text.contains("0 figures compared: 0 changed"),
                "{words}: {text}"
            );
        };
        let size = |report: &mut Report, place: u32| {
            let parameters = &mut report.experiments[0].parameters;
            parameters.insert("file_bytes".to_owned(), (10 << place).into());
        };
        check(&size, "not compared: scan: file_bytes 10 -> 20");
        let cache = |report: &mut Report, place: u32| {
            let state = if place == 0 { CacheState::Direct } else { CacheState::Warm };
            report.experiments[0].rows[0].cache = Some(state);
        };
        check(&cache, "not compared: scan.direct: page cache direct -> warm");
        let machine =
            |report: &mut Report, place: u32| report.environment.host = Some(format!("node{place}"));
        check(&machine, "another machine, so no figure is compared: host node0 -> node1");
        let memory =
            |report: &mut Report, place: u32| report.environment.memory_total_bytes = 16 << (30 + place);
        check(&memory, "another machine, so no figure is compared: memory 16 GiB -> 32 GiB");
        let named = |report: &mut Report, place: u32| {
            let hundredths = if place == 0 { 1599 } else { 1601 };
            report.environment.memory_total_bytes = (hundredths << 30) / 100;
            report.experiments[0].parameters.insert("seconds".to_owned(), place.into());
        };
        let [mut before, mut after] = pair();
        named(&mut before, 0);
        named(&mut after, 1);
        let text = render(&before, &after);
        assert!(text.contains("1 changed beyond noise") && text.contains("seconds 0 -> 1"), "{text}");
        let once = report("scan", &[(1, &[500.0])]);
        assert!(render(&once, &after).contains("without repeats: scan.direct\n"));
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
