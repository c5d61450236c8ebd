//! An experiment in a registry: its options, runs, samples and view.

use std::sync::Arc;

use clap::{ArgMatches, Command};

use crate::cold::ColdFile;
use crate::context::{Context, Target};
use crate::experiment::{Experiment as Definition, Outcome};
use crate::fio;
use crate::gauge::peak_resident_bytes;
use crate::job::Job;
use crate::options::{self, Length, Part, Values};
use crate::start_barrier;
use crate::test_file::check_space;
use forebay_report::result::Experiment;
use forebay_report::result::columns::groups;
use forebay_report::result::view::View;

/// An experiment of a registry.
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
        options::augment(command, &[self.part()])
    }

    /// Returns the names of its options and rows.
    pub(crate) fn part(self) -> Part {
        let spec = self.0.spec();
        (spec.name, spec.options, spec.ways)
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

    /// Checks that its own files, in a report, have room at the target.
    ///
    /// # Errors
    /// [`Failure::Unsuitable`](forebay_report::failure::Failure::Unsuitable): there is too little space.
    pub fn check_space(self, context: &Context) -> anyhow::Result<()> {
        let Target::Directory(directory) = &context.target else { return Ok(()) };
        let length = if context.quick { Length::Quick } else { Length::Report };
        let options = Values::new(self.0.spec().options, None, length)?;
        let bytes = if options.has("memory") {
            ColdFile::sizes(&options, context)?.file_bytes
        } else {
            self.0.file_bytes(&options)
        };
        check_space(directory, bytes, "name a directory with more space")
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
    pub(crate) fn sample(self, job: &Job) -> anyhow::Result<String> {
        let outcome = self.0.sample(job)?;
        let (begun_ns, resident_peak_bytes) = (start_barrier::begun_ns(), peak_resident_bytes());
        Ok(serde_json::to_string(&Outcome { begun_ns, resident_peak_bytes, ..outcome })?)
    }

    /// Returns how tables of this experiment are shown.
    pub(crate) fn view(self) -> View {
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
    pub(crate) fn verdicts(self, own: &[&Experiment]) -> Vec<String> {
        let plausible: Vec<Experiment> = own.iter().map(|table| table.without_implausible()).collect();
        self.0.verdicts(&plausible.iter().collect::<Vec<_>>())
    }
}
