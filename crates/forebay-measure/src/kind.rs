//! The registry of experiments. A [`Kind`], which the experiment's module calls `KIND`, has all that
//! the program needs about one. [`ALL`] lists them. A new experiment is a module
//! and a line there.

use std::sync::Arc;

use clap::{ArgMatches, Command};

use super::job::Job;
use crate::context::Context;
use forebay_report::page::columns::{Definition, groups};
use forebay_report::page::view::{Axis, Gain, Role, View};
use forebay_report::page::waits;
use forebay_report::result::{Experiment, Report, Row};
use forebay_report::saved::waited;

/// Every experiment, in the order in which the report runs and shows them.
pub static ALL: &[&Kind] = &[
    &super::scan::KIND,
    &super::random::KIND,
    &super::saturate::KIND,
    &super::cpu::KIND,
    &super::wal::KIND,
    &super::blocking::KIND,
    &super::walk::KIND,
    &super::writes::KIND,
    &super::patterns::KIND,
    &super::sustain::KIND,
    &super::fairness::KIND,
    &super::amplification::KIND,
    &super::files::KIND,
];

/// One experiment's description for the program.
#[derive(Debug)]
pub struct Kind {
    /// The name on the command line and in the JSON.
    pub name: &'static str,
    /// The experiment's purpose: one sentence without its end, for the help, the progress and the page.
    pub about: &'static str,
    /// The most seconds in `report --quick`, all files included; a test limits the sum.
    pub quick_seconds: u64,
    /// The approximate seconds in a report without `--quick`. They serve only to show the time left.
    pub full_seconds: u64,
    /// Whether it creates its own files and cannot use an existing one.
    pub needs_directory: bool,
    /// Adds the experiment's options to its command.
    pub options: fn(Command) -> Command,
    /// Measures with the given options.
    pub measure: Measure,
    /// Measures the part that the report shows, within the budget of the context.
    pub report: fn(&mut Context) -> anyhow::Result<Vec<Experiment>>,
    /// Runs one sample, in the child process; returns the text of its result.
    pub(super) sample: fn(&Job) -> anyhow::Result<String>,
    /// The columns of its tables, in this order, where a row has them.
    pub columns: &'static [Definition],
    /// The metric by which rows are compared; a table shows its spread.
    pub compared: &'static str,
    /// The metrics that have a chart.
    pub charts: &'static [&'static str],
    /// The parameter that differs between experiments that belong together.
    pub axis: Axis,
    /// The part that it has in the conclusions of a report.
    pub role: Role,
    /// The comparisons of the usual way with the best one.
    pub gains: fn() -> Vec<Gain>,
    /// Returns an experiment's title for headings.
    pub title: fn(&Experiment) -> String,
    /// Returns the title of several experiments that belong together, from the first of them.
    pub heading: fn(&Experiment) -> String,
    /// Returns sentences computed from all experiments of this kind, the most important first.
    pub verdicts: fn(&[&Experiment]) -> Vec<String>,
}

/// See [`Kind::measure`].
type Measure = fn(&ArgMatches, &mut Context) -> anyhow::Result<Vec<Experiment>>;

/// The most seconds that the experiments of `report --quick` take together. Its three minutes also include
/// the doctor and the page.
#[cfg(test)]
const QUICK_SECONDS: u64 = 165;

/// Returns the experiment called `name`.
pub fn find(name: &str) -> Option<&'static Kind> {
    ALL.iter().copied().find(|kind| kind.name == name)
}

impl Kind {
    /// Returns how experiments of this kind are shown.
    fn view(&self) -> View {
        let mut view = View::new(self.columns);
        view.role = self.role;
        view.compared = self.compared.into();
        view.charts = self.charts.iter().map(|metric| (*metric).into()).collect();
        view.axis = self.axis.clone();
        view.gains = (self.gains)();
        view
    }

    /// Adds titles, view and sentences to experiments of this kind.
    pub fn present(&self, experiments: &mut [Experiment]) {
        let view = Arc::new(self.view());
        for experiment in experiments.iter_mut() {
            let (title, heading) = ((self.title)(experiment), (self.heading)(experiment));
            experiment.titled(title, heading);
            experiment.view = Arc::clone(&view);
        }
        let sentences: Vec<(String, String)> = groups(experiments.iter())
            .iter()
            .filter_map(|group| {
                Some((group[0].heading().to_owned(), self.sentences(group).into_iter().next()?))
            })
            .collect();
        for (heading, sentence) in sentences {
            if let Some(first) = experiments.iter_mut().find(|experiment| experiment.heading() == heading) {
                first.sentence = sentence;
            }
        }
    }

    /// Returns the sentences on experiments of this kind, without the rows that are disbelieved.
    pub fn sentences(&self, own: &[&Experiment]) -> Vec<String> {
        let plausible: Vec<Experiment> =
            own.iter().map(|experiment| without_implausible(experiment)).collect();
        (self.verdicts)(&plausible.iter().collect::<Vec<_>>())
    }
}

/// Adds to a document of schema 1 what later ones contain: titles, views and sentences.
pub fn adopt(report: &mut Report) {
    for kind in ALL {
        let is_own = |experiment: &mut Experiment| experiment.name == kind.name;
        let mut own: Vec<Experiment> = report.experiments.extract_if(.., is_own).collect();
        kind.present(&mut own);
        report.experiments.extend(own);
    }
    report.experiments.iter_mut().filter(|one| one.name == waited::NAME).for_each(waits::present);
}

/// Returns the verdicts of all experiments, in the order in which the report shows them.
pub fn verdicts(experiments: &[Experiment]) -> Vec<String> {
    let of_kind = |kind: &&Kind| {
        let own: Vec<&Experiment> = experiments.iter().filter(|found| found.name == kind.name).collect();
        kind.sentences(&own)
    };
    ALL.iter().flat_map(of_kind).collect()
}

/// Returns the experiment with every row that was measured and is disbelieved turned into a row
/// without figures.
fn without_implausible(experiment: &Experiment) -> Experiment {
    let mut without_implausible = experiment.clone();
    for row in &mut without_implausible.rows {
        if let Some(why) = row.implausible() {
            *row = Row::skipped(row.name.as_str(), why);
        }
    }
    without_implausible
}

/// Parses the name of an experiment.
///
/// # Errors
/// Fails with a sentence that lists the existing names.
pub fn parse_name(text: &str) -> Result<&'static Kind, String> {
    find(text).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|kind| kind.name).collect();
        format!("there is no experiment {text:?}; there are {}", names.join(", "))
    })
}

/// Returns the options of an experiment from its command's matches.
///
/// # Errors
/// Fails when some are missing, which the command line has ruled out.
pub(super) fn parsed<Options: clap::Args>(matches: &ArgMatches) -> anyhow::Result<Options> {
    Ok(Options::from_arg_matches(matches)?)
}

/// The axis of reads in flight.
pub(super) const DEPTH: Axis = Axis::new("depth", "reads in flight");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for (index, kind) in ALL.iter().enumerate() {
            assert!(std::ptr::eq(find(kind.name).expect("it is there"), *kind), "{} stands twice", kind.name);
            assert!(ALL[..index].iter().all(|other| other.about != kind.about));
        }
        let wrong = parse_name("scna").expect_err("a typing error");
        assert!(wrong.contains("scan, random, saturate"), "{wrong}");
    }

    #[test]
    fn a_quick_report_of_everything_ends_within_three_minutes() {
        let sum: u64 = ALL.iter().map(|kind| kind.quick_seconds).sum();
        assert!(sum <= QUICK_SECONDS, "{sum} s");
    }

    #[test]
    fn compared_and_drawn_columns_are_shown() {
        for kind in ALL {
            let shown = |metric: &str| kind.columns.iter().any(|column| column.metric == metric);
            assert!(shown(kind.compared), "{}: {}", kind.name, kind.compared);
            assert!(kind.charts.iter().all(|metric| shown(metric)), "{}: {:?}", kind.name, kind.charts);
        }
    }
}
