//! The registry of experiments. All that the program must know of one stands in its [`Kind`], which its module
//! calls `KIND`; [`ALL`] names them, and nothing else does. A new experiment is a module and a line there.

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

/// One experiment.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Its name on the command line and in the JSON.
    pub(crate) name: &'static str,
    /// What it does: one sentence without its end, for the help, the progress and the page.
    pub(crate) about: &'static str,
    /// How long it may take in `report --quick`, all its files included; a test limits the sum.
    pub(crate) quick_seconds: u64,
    /// How long it takes about in a report without `--quick`: only the time left is told by it.
    pub(crate) full_seconds: u64,
    /// It makes files of its own and cannot do with one that exists.
    pub(crate) needs_directory: bool,
    /// Adds its options to its command.
    pub(crate) options: fn(Command) -> Command,
    /// Measures with the options that were given.
    pub(crate) measure: Measure,
    /// Measures what the report shows, within the budget of the context.
    pub(crate) report: fn(&mut Context) -> anyhow::Result<Vec<Experiment>>,
    /// One sample, in the child process; returns the answer's text.
    pub(super) sample: fn(&Job) -> anyhow::Result<String>,
    /// What its tables show, in this order, where a row has it.
    pub(crate) columns: &'static [Column],
    /// The metric that rows are compared by, whose spread a table tells.
    pub(crate) compared: &'static str,
    /// The metrics that have a chart.
    pub(crate) charts: &'static [&'static str],
    /// What differs between experiments that belong together.
    pub(crate) axis: Axis,
    /// What an experiment is called in headings.
    pub(crate) title: fn(&Experiment) -> String,
    /// What several that belong together are called; it is given the first.
    pub(crate) heading: fn(&Experiment) -> String,
    /// Whether two belong into one table, and into charts over the axis.
    pub(crate) together: fn(&Experiment, &Experiment) -> bool,
    /// Sentences computed from all experiments of this kind, the most important first.
    pub(crate) verdicts: fn(&[&Experiment]) -> Vec<String>,
}

/// See [`Kind::measure`].
type Measure = fn(&ArgMatches, &mut Context) -> anyhow::Result<Vec<Experiment>>;

/// A parameter over which experiments are swept.
#[derive(Debug)]
pub(crate) struct Axis {
    /// Its name in [`Experiment::parameters`], a number; it is a table's column, too.
    pub(crate) parameter: &'static str,
    /// What a chart writes below it.
    pub(crate) label: &'static str,
}

/// What the experiments of `report --quick` may take together; its three minutes have the doctor and the page, too.
#[cfg(test)]
const QUICK_SECONDS: u64 = 165;

/// The experiment called `name`.
pub(crate) fn find(name: &str) -> Option<&'static Kind> {
    ALL.iter().copied().find(|kind| kind.name == name)
}

/// How `experiment` is shown: `forebay wait` and other programs have experiments of their own in the same schema.
pub(crate) fn of(experiment: &Experiment) -> &'static Kind {
    let other = if experiment.name == waited::NAME { &waits::KIND } else { &OTHER };
    find(&experiment.name).unwrap_or(other)
}

/// Reads the name of an experiment.
///
/// # Errors
/// A sentence that names those that exist.
pub(crate) fn parse_name(text: &str) -> Result<&'static Kind, String> {
    find(text).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|kind| kind.name).collect();
        format!("there is no experiment {text:?}; there are {}", names.join(", "))
    })
}

/// The options of an experiment out of its command's matches.
///
/// # Errors
/// They are not all there, which the command line has made sure of.
pub(super) fn parsed<Options: clap::Args>(matches: &ArgMatches) -> anyhow::Result<Options> {
    Ok(Options::from_arg_matches(matches)?)
}

/// What another command measured, and only this program's tables and pages show.
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

/// An experiment of another program: only shown.
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

/// Reads in flight.
pub(super) const DEPTH: Axis = Axis { parameter: "depth", label: "reads in flight" };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_found() {
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
    fn what_is_compared_and_drawn_is_shown() {
        for kind in ALL {
            let shown = |metric: &str| kind.columns.iter().any(|column| column.metric == metric);
            assert!(shown(kind.compared), "{}: {}", kind.name, kind.compared);
            assert!(kind.charts.iter().all(|metric| shown(metric)), "{}: {:?}", kind.name, kind.charts);
        }
    }
}
