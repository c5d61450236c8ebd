//! The registry of experiments. A [`Kind`], which the experiment's module calls `KIND`, has all that
//! the program needs about one. [`ALL`] lists them. A new experiment is a module
//! and a line there.

use clap::{ArgMatches, Command};

use super::job::Job;
use crate::context::Context;
use crate::report::columns::{self, Column};
use crate::report::waits;
use crate::result::{Experiment, metric};
use crate::saved::waited;

/// Every experiment, in the order in which the report runs and shows them.
pub(crate) static ALL: &[&Kind] = &[
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
pub(crate) struct Kind {
    /// The name on the command line and in the JSON.
    pub(crate) name: &'static str,
    /// The experiment's purpose: one sentence without its end, for the help, the progress and the page.
    pub(crate) about: &'static str,
    /// The most seconds in `report --quick`, all files included; a test limits the sum.
    pub(crate) quick_seconds: u64,
    /// The approximate seconds in a report without `--quick`. They serve only to show the time left.
    pub(crate) full_seconds: u64,
    /// Whether it creates its own files and cannot use an existing one.
    pub(crate) needs_directory: bool,
    /// Adds the experiment's options to its command.
    pub(crate) options: fn(Command) -> Command,
    /// Measures with the given options.
    pub(crate) measure: Measure,
    /// Measures the part that the report shows, within the budget of the context.
    pub(crate) report: fn(&mut Context) -> anyhow::Result<Vec<Experiment>>,
    /// Runs one sample, in the child process; returns the text of its result.
    pub(super) sample: fn(&Job) -> anyhow::Result<String>,
    /// The columns of its tables, in this order, where a row has them.
    pub(crate) columns: &'static [Column],
    /// The metric by which rows are compared; a table shows its spread.
    pub(crate) compared: &'static str,
    /// The metrics that have a chart.
    pub(crate) charts: &'static [&'static str],
    /// The parameter that differs between experiments that belong together.
    pub(crate) axis: Axis,
    /// Returns an experiment's title for headings.
    pub(crate) title: fn(&Experiment) -> String,
    /// Returns the title of several experiments that belong together, from the first of them.
    pub(crate) heading: fn(&Experiment) -> String,
    /// Returns whether two experiments belong in one table, and in charts over the axis.
    pub(crate) together: fn(&Experiment, &Experiment) -> bool,
    /// Returns sentences computed from all experiments of this kind, the most important first.
    pub(crate) verdicts: fn(&[&Experiment]) -> Vec<String>,
}

/// See [`Kind::measure`].
type Measure = fn(&ArgMatches, &mut Context) -> anyhow::Result<Vec<Experiment>>;

/// A parameter over which experiments are swept.
#[derive(Debug)]
pub(crate) struct Axis {
    /// The name in [`Experiment::parameters`], a number; it is also a table's column.
    pub(crate) parameter: &'static str,
    /// The label that a chart writes below the axis.
    pub(crate) label: &'static str,
}

/// The most seconds that the experiments of `report --quick` take together. Its three minutes also include
/// the doctor and the page.
#[cfg(test)]
const QUICK_SECONDS: u64 = 165;

/// Returns the experiment called `name`.
pub(crate) fn find(name: &str) -> Option<&'static Kind> {
    ALL.iter().copied().find(|kind| kind.name == name)
}

/// Returns how `experiment` is shown. `forebay wait` and other programs have experiments of their own in
/// the same schema.
pub(crate) fn of(experiment: &Experiment) -> &'static Kind {
    let other = if experiment.name == waited::NAME { &waits::KIND } else { &OTHER };
    find(&experiment.name).unwrap_or(other)
}

/// Parses the name of an experiment.
///
/// # Errors
/// Fails with a sentence that lists the existing names.
pub(crate) fn parse_name(text: &str) -> Result<&'static Kind, String> {
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

/// Returns the kind of a measurement of another command, which only this program's tables and pages show.
pub(crate) const fn only_shown(
    name: &'static str,
    columns: &'static [Column],
    charts: &'static [&'static str],
    title: fn(&Experiment) -> String,
    verdicts: fn(&[&Experiment]) -> Vec<String>,
) -> Kind {
    let compared = columns[0].metric;
    Kind { name, columns, compared, charts, title, heading: title, verdicts, ..OTHER_KIND }
}

/// The kind of an experiment of another program, which is only shown.
static OTHER: Kind = OTHER_KIND;

const OTHER_KIND: Kind = Kind {
    name: "other",
    about: "",
    quick_seconds: 0,
    full_seconds: 0,
    needs_directory: false,
    options: |command| command,
    measure: |_, _| Ok(Vec::new()),
    report: |_| Ok(Vec::new()),
    sample: |_| anyhow::bail!("nothing of this name is measured here"),
    columns: columns::SHARED,
    compared: metric::IOPS,
    charts: &[metric::MB_PER_S, metric::IOPS, metric::P99_US],
    axis: DEPTH,
    title: |experiment| experiment.name.clone(),
    heading: |experiment| experiment.name.clone(),
    together: |_, _| false,
    verdicts: |_| Vec::new(),
};

/// The axis of reads in flight.
pub(super) const DEPTH: Axis = Axis { parameter: "depth", label: "reads in flight" };

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
        assert_eq!(of(&Experiment::new("kv-get", "")).name, "other");
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
