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
use crate::scratch_dir::ScratchDir;
use crate::start_barrier;
use crate::test_file::check_space;
use forebay_report::failure::Failure;
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

    /// Returns the maximum seconds in `report --quick`, or their approximate number in a report without it.
    pub fn seconds(self, quick: bool) -> u64 {
        let spec = self.0.spec();
        if quick { spec.quick_seconds } else { spec.full_seconds }
    }

    /// Returns whether it creates its own files. It cannot use an existing one; a whole device only where it is named alone.
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

    /// Returns the options that a command line gives, or those of a report.
    fn options(self, matches: Option<&ArgMatches>, context: &Context) -> Result<Values, Failure> {
        let length = match matches {
            _ if context.quick => Length::Quick,
            Some(_) => Length::Full,
            None => Length::Report,
        };
        Values::new(self.0.spec().options, matches, length)
    }

    /// Checks that the experiment's own files fit at the target.
    ///
    /// # Errors
    /// [`Failure::Unsuitable`]: the space is too small. [`Failure::Path`]: it needs a directory, and the target is something else.
    pub fn check_space(self, matches: Option<&ArgMatches>, context: &Context) -> anyhow::Result<()> {
        let Target::Directory(directory) = &context.target else {
            return if self.needs_directory() {
                ScratchDir::find(context, self.name()).map(drop)
            } else {
                Ok(())
            };
        };
        let options = self.options(matches, context)?;
        let bytes = if options.has("memory") {
            ColdFile::sizes(&options, context)?.file_bytes
        } else {
            self.0.file_bytes(&options)
        };
        check_space(directory, bytes, "name a directory with more space")
    }

    /// Measures with the options of a command line, or, without one, the part that the report shows within the budget of the
    /// context. Adds the jobs of fio that do the same work.
    ///
    /// # Errors
    /// A path or an option that cannot be used: a [`Failure`]; or nothing could be measured.
    pub fn measure(self, matches: Option<&ArgMatches>, context: &Context) -> anyhow::Result<Vec<Experiment>> {
        let options = self.options(matches, context)?;
        let mut tables = self.0.measure(&options, options.length, context)?;
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
