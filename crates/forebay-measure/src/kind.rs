//! The registry of experiments: [`ALL`] lists them, and nothing else names one. A new experiment is a module and a line
//! there.

use std::sync::Arc;

use clap::{ArgMatches, Args as _, Command};

use super::amplification::Amplification;
use super::baseline::Baseline;
use super::collective::Collective;
use super::cpu::Cpu;
use super::experiment::{Experiment as Definition, Outcome};
use super::fairness::Fairness;
use super::files::Files;
use super::fio;
use super::gauge::peak_resident_bytes;
use super::hosts::HostsArgs;
use super::job::Job;
use super::options::{self, Length, Values};
use super::patterns::Patterns;
use super::random::Random;
use super::samples::Samples;
use super::saturate::Saturate;
use super::scan::Scan;
use super::start_barrier;
use super::sustain::Sustain;
use super::writes::Writes;
use crate::context::Context;
use forebay_report::result::columns::groups;
use forebay_report::result::view::View;
use forebay_report::result::{Experiment, Report, Row};
use forebay_report::saved::waited;

/// Every experiment, in the order in which the report runs and shows them.
pub static ALL: &[Entry] = &[
    Entry(&Baseline),
    Entry(&Scan),
    Entry(&Random),
    Entry(&Saturate),
    Entry(&Cpu),
    Entry(&super::wal::WAL),
    Entry(&super::wal::BLOCKING),
    Entry(&super::walk::Walk),
    Entry(&Writes),
    Entry(&Patterns),
    Entry(&Sustain),
    Entry(&Fairness),
    Entry(&Amplification),
    Entry(&Files),
    Entry(&Samples),
    Entry(&Collective),
];

/// An experiment of the registry.
#[derive(Debug, Clone, Copy)]
pub struct Entry(pub &'static dyn Definition);

impl Entry {
    /// Returns the name on the command line and in the JSON.
    pub fn name(self) -> &'static str {
        self.0.spec().name
    }

    /// Returns the experiment's purpose: one sentence without its end.
    pub fn about(self) -> &'static str {
        self.0.spec().about
    }

    /// Returns the most seconds in `report --quick`, or the approximate ones in a report without it.
    pub fn seconds(self, quick: bool) -> u64 {
        let spec = self.0.spec();
        if quick { spec.quick_seconds } else { spec.full_seconds }
    }

    /// Returns whether it creates its own files and cannot use an existing one.
    pub fn needs_directory(self) -> bool {
        self.0.spec().needs_directory
    }

    /// Adds the experiment's options to its command.
    pub fn augment(self, command: Command) -> Command {
        let spec = self.0.spec();
        let command = options::augment(command, spec.options, spec.ways);
        if self.0.runs_on_hosts() { HostsArgs::augment_args(command) } else { command }
    }

    /// Measures with the given options.
    ///
    /// # Errors
    /// A path or an option that cannot be used: a [`Failure`](forebay_report::failure::Failure); or nothing could be measured.
    pub fn measure(self, matches: &ArgMatches, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
        let length = if context.quick { Length::Quick } else { Length::Full };
        self.run(Some(matches), length, context)
    }

    /// Measures the part that the report shows, within the budget of the context.
    ///
    /// # Errors
    /// As for [`measure`](Self::measure).
    pub fn report(self, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
        let length = if context.quick { Length::Quick } else { Length::Report };
        self.run(None, length, context)
    }

    /// Measures, and adds the jobs of fio that do the same work.
    fn run(
        self,
        matches: Option<&ArgMatches>,
        length: Length,
        context: &Context,
    ) -> anyhow::Result<Vec<Experiment>> {
        let options = Values::new(self.0.spec().options, matches, length)?;
        let mut tables = self.0.measure(&options, length, context)?;
        let path = fio::file(&context.target);
        for table in &mut tables {
            let jobs: Vec<_> = table.rows.iter().map(|row| self.0.fio(table, row, &path)).collect();
            for (row, job) in table.rows.iter_mut().zip(jobs) {
                row.fio = job;
            }
        }
        self.present(&mut tables);
        Ok(tables)
    }

    /// Runs one sample, in the child process; returns the text of its result.
    pub(super) fn sample(self, job: &Job) -> anyhow::Result<String> {
        let outcome = self.0.sample(job)?;
        let (begun_ns, resident_peak_bytes) = (start_barrier::begun_ns(), peak_resident_bytes());
        Ok(serde_json::to_string(&Outcome { begun_ns, resident_peak_bytes, ..outcome })?)
    }

    /// Returns how tables of this experiment are shown.
    fn view(self) -> View {
        let spec = self.0.spec();
        let mut view = View::of(spec.role, spec.columns);
        view.compared = spec.compared.into();
        view.charts = spec.charts.iter().map(|metric| (*metric).into()).collect();
        view.axis = spec.axis.clone();
        view.gains = (spec.gains)();
        view
    }

    /// Adds titles, view and sentences to tables of this experiment.
    pub fn present(self, tables: &mut [Experiment]) {
        let view = Arc::new(self.view());
        for table in tables.iter_mut() {
            let (title, heading) = self.0.title(table);
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
        self.0.verdicts(&plausible.iter().collect::<Vec<_>>())
    }
}

/// The most seconds that the experiments of `report --quick` take together. Its 110 seconds also include the doctor and the
/// page.
#[cfg(test)]
const QUICK_SECONDS: u64 = 106;

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
    report.experiments.iter_mut().filter(|one| one.name == waited::NAME).for_each(waited::present);
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
pub(super) fn without_implausible(experiment: &Experiment) -> Experiment {
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
    fn a_quick_report_of_everything_ends_within_110_seconds() {
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
            for length in [Length::Full, Length::Quick, Length::Report] {
                let values = Values::new(entry.0.spec().options, None, length);
                assert!(values.is_ok(), "{}: {values:?}", entry.name());
            }
        }
    }

    /// Regression: the wait of a program in a document of schema 1 lost its part in the conclusions.
    #[test]
    fn a_program_that_waits_keeps_its_role_in_old_documents() {
        let environment = forebay_report::environment::Environment::default();
        let mut report = Report::new(environment, vec![Experiment::new(waited::NAME, "")]);
        adopt(&mut report);
        assert_eq!(report.experiments[0].view.role, forebay_report::result::view::Role::Waiting);
    }

    /// A new experiment is one module and one line of [`ALL`]: neither the report nor the program nor the shared parts
    /// of this crate may name one.
    #[test]
    fn no_other_place_names_an_experiment() {
        // The key of another document, the beginning of metrics, and a check of the doctor.
        const OTHER_MEANINGS: [&str; 3] =
            ["wal in wal/show.rs", "cpu in diff/noise.rs", "writes in doctor/probe_file.rs"];
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let shared = [
            "runner.rs",
            "experiment.rs",
            "options.rs",
            "context.rs",
            "hosts",
            "doctor",
            "fio.rs",
            "gates.rs",
        ];
        let mut places: Vec<std::path::PathBuf> =
            shared.iter().map(|name| crates.join("forebay-measure/src").join(name)).collect();
        places.extend(["forebay-report/src", "forebay-cli/src"].map(|name| crates.join(name)));
        let (mut read, mut found) = (0, Vec::new());
        while let Some(place) = places.pop() {
            if place.is_dir() {
                let entries = std::fs::read_dir(&place).expect("a folder of the workspace");
                places.extend(entries.map(|entry| entry.expect("readable").path()));
                continue;
            }
            // Files of tests alone may name any.
            if place.to_string_lossy().ends_with("tests.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&place).unwrap_or_default();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            read += usize::from(place.extension().is_some_and(|end| end == "rs"));
            let named = ALL.iter().filter(|entry| code.contains(&format!("\"{}\"", entry.name())));
            let parts: Vec<_> = place.iter().rev().take(2).map(|part| part.to_string_lossy()).collect();
            found.extend(named.map(|entry| format!("{} in {}/{}", entry.name(), parts[1], parts[0])));
        }
        assert!(read > 60, "only {read} files; this test looks in the wrong place");
        found.retain(|name| !OTHER_MEANINGS.contains(&name.as_str()));
        assert!(found.is_empty(), "{found:#?}");
    }
}
