//! The registry of experiments: [`ALL`] lists them, and nothing else names one. A new experiment is a module and a line
//! there.

use std::sync::Arc;

use clap::{ArgMatches, Args as _, Command};

use super::amplification::Amplification;
use super::baseline::Baseline;
use super::experiment::{Experiment as Definition, Outcome};
use super::fio;
use super::gauge::peak_resident_bytes;
use super::hosts::HostsArgs;
use super::job::Job;
use super::options::{self, Length, Values};
use super::random::Random;
use super::scan::Scan;
use super::start_barrier;
use super::writes::Writes;
use crate::context::Context;
use forebay_report::page::columns::{self, groups};
use forebay_report::page::view::{Axis, Gain, Role, View};
use forebay_report::result::{Experiment, Report, Row};

/// Every experiment, in the order in which the report runs and shows them.
pub static ALL: &[Entry] = &[
    Entry::New(&Baseline),
    Entry::New(&Scan),
    Entry::New(&Random),
    Entry::Kind(&super::saturate::KIND),
    Entry::Kind(&super::cpu::KIND),
    Entry::Kind(&super::wal::KIND),
    Entry::Kind(&super::blocking::KIND),
    Entry::Kind(&super::walk::KIND),
    Entry::New(&Writes),
    Entry::Kind(&super::patterns::KIND),
    Entry::Kind(&super::sustain::KIND),
    Entry::Kind(&super::fairness::KIND),
    Entry::New(&Amplification),
    Entry::Kind(&super::files::KIND),
];

/// An experiment of the registry.
#[derive(Debug, Clone, Copy)]
#[expect(private_interfaces, reason = "programs use the methods")]
pub enum Entry {
    /// One that runs by itself.
    Kind(&'static Kind),
    /// One that the runner runs.
    New(&'static dyn Definition),
}

impl Entry {
    /// Returns the name on the command line and in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kind(kind) => kind.name,
            Self::New(experiment) => experiment.spec().name,
        }
    }

    /// Returns the experiment's purpose: one sentence without its end.
    pub fn about(self) -> &'static str {
        match self {
            Self::Kind(kind) => kind.about,
            Self::New(experiment) => experiment.spec().about,
        }
    }

    /// Returns the most seconds in `report --quick`, or the approximate ones in a report without it.
    pub fn seconds(self, quick: bool) -> u64 {
        let (quick_seconds, full_seconds) = match self {
            Self::Kind(kind) => (kind.quick_seconds, kind.full_seconds),
            Self::New(experiment) => (experiment.spec().quick_seconds, experiment.spec().full_seconds),
        };
        if quick { quick_seconds } else { full_seconds }
    }

    /// Returns whether it creates its own files and cannot use an existing one.
    pub fn needs_directory(self) -> bool {
        match self {
            Self::Kind(kind) => kind.needs_directory,
            Self::New(experiment) => experiment.spec().needs_directory,
        }
    }

    /// Adds the experiment's options to its command.
    pub fn augment(self, command: Command) -> Command {
        match self {
            Self::Kind(kind) => (kind.options)(command),
            Self::New(experiment) => {
                let spec = experiment.spec();
                let command = options::augment(command, spec.options, spec.ways);
                if experiment.runs_on_hosts() { HostsArgs::augment_args(command) } else { command }
            }
        }
    }

    /// Measures with the given options.
    ///
    /// # Errors
    /// A path or an option that cannot be used: a [`Failure`](forebay_report::failure::Failure); or nothing could be measured.
    pub fn measure(self, matches: &ArgMatches, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
        let mut tables = match self {
            Self::Kind(kind) => (kind.measure)(matches, context)?,
            Self::New(experiment) => {
                let length = if context.quick { Length::Quick } else { Length::Full };
                let values = Values::new(experiment.spec().options, Some(matches), length)?;
                measured(experiment, &values, length, context)?
            }
        };
        self.present(&mut tables);
        Ok(tables)
    }

    /// Measures the part that the report shows, within the budget of the context.
    ///
    /// # Errors
    /// As for [`measure`](Self::measure).
    pub fn report(self, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
        let mut tables = match self {
            Self::Kind(kind) => (kind.report)(context)?,
            Self::New(experiment) => {
                let length = if context.quick { Length::Quick } else { Length::Report };
                let values = Values::new(experiment.spec().options, None, length)?;
                measured(experiment, &values, length, context)?
            }
        };
        self.present(&mut tables);
        Ok(tables)
    }

    /// Runs one sample, in the child process; returns the text of its result.
    pub(super) fn sample(self, job: &Job) -> anyhow::Result<String> {
        match self {
            Self::Kind(kind) => (kind.sample)(job),
            Self::New(experiment) => {
                let outcome = experiment.sample(job)?;
                let (begun_ns, resident_peak_bytes) = (start_barrier::begun_ns(), peak_resident_bytes());
                Ok(serde_json::to_string(&Outcome { begun_ns, resident_peak_bytes, ..outcome })?)
            }
        }
    }

    /// Returns how tables of this experiment are shown.
    fn view(self) -> View {
        let (columns, role, compared, charts, axis, gains) = match self {
            Self::Kind(kind) => (kind.columns, kind.role, kind.compared, kind.charts, &kind.axis, kind.gains),
            Self::New(experiment) => {
                let spec = experiment.spec();
                (spec.columns, spec.role, spec.compared, spec.charts, &spec.axis, spec.gains)
            }
        };
        let mut view = View::of(role, columns);
        view.compared = compared.into();
        view.charts = charts.iter().map(|metric| (*metric).into()).collect();
        view.axis = axis.clone();
        view.gains = gains();
        view
    }

    /// Adds titles, view and sentences to tables of this experiment.
    pub fn present(self, tables: &mut [Experiment]) {
        let view = Arc::new(self.view());
        for table in tables.iter_mut() {
            let (title, heading) = match self {
                Self::Kind(kind) => ((kind.title)(table), (kind.heading)(table)),
                Self::New(experiment) => experiment.title(table),
            };
            table.titled(title, heading);
            table.view = Arc::clone(&view);
        }
        let sentences: Vec<(String, String)> = groups(tables.iter())
            .iter()
            .filter_map(|group| {
                Some((group[0].heading().to_owned(), self.verdicts(group).into_iter().next()?))
            })
            .collect();
        for (heading, sentence) in sentences {
            if let Some(first) = tables.iter_mut().find(|table| table.heading() == heading) {
                first.sentence = sentence;
            }
        }
    }

    /// Returns the sentences on tables of this experiment, without the rows that are disbelieved.
    fn verdicts(self, own: &[&Experiment]) -> Vec<String> {
        let plausible: Vec<Experiment> = own.iter().map(|table| without_implausible(table)).collect();
        let plausible: Vec<&Experiment> = plausible.iter().collect();
        match self {
            Self::Kind(kind) => (kind.verdicts)(&plausible),
            Self::New(experiment) => experiment.verdicts(&plausible),
        }
    }
}

/// Measures with an experiment, and adds the jobs of fio that do the same work.
fn measured(
    experiment: &dyn Definition,
    options: &Values,
    length: Length,
    context: &Context,
) -> anyhow::Result<Vec<Experiment>> {
    let mut tables = experiment.measure(options, length, context)?;
    let path = fio::file(&context.target);
    for table in &mut tables {
        let jobs: Vec<_> = table.rows.iter().map(|row| experiment.fio(table, row, &path)).collect();
        for (row, job) in table.rows.iter_mut().zip(jobs) {
            row.fio = job;
        }
    }
    Ok(tables)
}

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
    pub columns: &'static [columns::Definition],
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
pub fn find(name: &str) -> Option<Entry> {
    ALL.iter().copied().find(|kind| kind.name() == name)
}

/// Adds to a document of schema 1 what later ones contain: titles, views and sentences.
pub fn adopt(report: &mut Report) {
    for kind in ALL {
        let is_own = |experiment: &mut Experiment| experiment.name == kind.name();
        let mut own: Vec<Experiment> = report.experiments.extract_if(.., is_own).collect();
        kind.present(&mut own);
        report.experiments.extend(own);
    }
}

/// Returns the verdicts of all experiments, in the order in which the report shows them.
pub fn verdicts(experiments: &[Experiment]) -> Vec<String> {
    let of_kind = |kind: &Entry| {
        let own: Vec<&Experiment> = experiments.iter().filter(|found| found.name == kind.name()).collect();
        kind.verdicts(&own)
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
pub fn parse_name(text: &str) -> Result<Entry, String> {
    find(text).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|kind| kind.name()).collect();
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
            assert_eq!(
                find(kind.name()).map(Entry::about),
                Some(kind.about()),
                "{} stands twice",
                kind.name()
            );
            assert!(ALL[..index].iter().all(|other| other.about() != kind.about()));
        }
        let wrong = parse_name("scna").expect_err("a typing error");
        assert!(wrong.contains("scan, random, saturate"), "{wrong}");
    }

    #[test]
    fn a_quick_report_of_everything_ends_within_three_minutes() {
        let sum: u64 = ALL.iter().map(|kind| kind.seconds(true)).sum();
        assert!(sum <= QUICK_SECONDS, "{sum} s");
    }

    #[test]
    fn compared_and_drawn_columns_are_shown() {
        for kind in ALL {
            let (view, name) = (kind.view(), kind.name());
            assert!(view.column(&view.compared).is_some(), "{name}: {}", view.compared);
            assert!(
                view.charts.iter().all(|metric| view.column(metric).is_some()),
                "{name}: {:?}",
                view.charts
            );
        }
    }

    #[test]
    fn defaults_of_all_options_are_valid() {
        for entry in ALL {
            let Entry::New(experiment) = entry else { continue };
            for length in [Length::Full, Length::Quick, Length::Report] {
                let values = Values::new(experiment.spec().options, None, length);
                assert!(values.is_ok(), "{}: {values:?}", entry.name());
            }
        }
    }
}
