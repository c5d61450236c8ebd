//! The registry of experiments: [`ALL`] lists them, and nothing else names one. A new experiment is a module and a line
//! there.

use clap::{ArgMatches, Args as _, Command};
use forebay_report::failure::Failure;
use forebay_report::result::{Experiment, Report};
use forebay_report::saved::waited;

use crate::amplification::Amplification;
use crate::baseline::Baseline;
use crate::collective::Collective;
use crate::files::Files;
use crate::hosts::HostsArgs;
use crate::jobs::Jobs;
use crate::options::{self, Part};
use crate::reads::{Cpu, Fairness, Random, Saturate};
use crate::samples::Samples;
use crate::scan::Scan;
use crate::writes::sustain::Sustain;
use crate::writes::{Patterns, Writes};

pub use crate::entry::Entry;

/// An experiment: one command. Its parts are measured one after the other, and tables have the name of their part.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Name and purpose, where it has several parts.
    merged: Option<(&'static str, &'static str)>,
    parts: &'static [Entry],
}

/// Every experiment, in the order in which the report runs and shows them.
pub static ALL: &[Kind] = &[
    alone(&[Entry(&Baseline)]),
    alone(&[Entry(&Scan)]),
    Kind {
        merged: Some((
            "reads",
            "Read blocks at random: at a depth, by more readers, by processor time, beside others",
        )),
        parts: &[Entry(&Random), Entry(&Saturate), Entry(&Cpu), Entry(&Fairness)],
    },
    alone(&[Entry(&crate::wal::WAL)]),
    alone(&[Entry(&crate::wal::BLOCKING)]),
    alone(&[Entry(&crate::walk::Walk)]),
    Kind {
        merged: Some((
            "writes",
            "Write at random until all is durable, gathered in memory, and for a minute or longer",
        )),
        parts: &[Entry(&Writes), Entry(&Patterns), Entry(&Sustain)],
    },
    alone(&[Entry(&Amplification)]),
    alone(&[Entry(&Files)]),
    alone(&[Entry(&Samples)]),
    alone(&[Entry(&Collective)]),
];

/// Jobs of a fio job file; reports do not run them.
pub static JOBS: Kind = alone(&[Entry(&Jobs)]);

const fn alone(parts: &'static [Entry]) -> Kind {
    Kind { merged: None, parts }
}

/// The total seconds of the experiments of `report --quick`. Its 110 seconds also include the doctor and the page.
#[cfg(test)]
const QUICK_SECONDS: u64 = 106;

impl Kind {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        self.merged.map_or_else(|| self.parts[0].name(), |(name, _)| name)
    }

    /// Returns the experiment's purpose: one sentence without its end.
    pub fn about(self) -> &'static str {
        self.merged.map_or_else(|| self.parts[0].about(), |(_, about)| about)
    }

    /// Returns its parts, at least one.
    pub fn parts(self) -> &'static [Entry] {
        self.parts
    }

    /// Returns whether a part of this name belongs to it.
    pub fn has(self, name: &str) -> bool {
        self.parts.iter().any(|part| part.name() == name)
    }

    fn runs_on_hosts(self) -> bool {
        self.parts.iter().any(|part| part.0.runs_on_hosts())
    }

    /// Adds the options of all parts to the experiment's command.
    pub fn augment(self, command: Command) -> Command {
        let parts: Vec<Part> = self.parts.iter().map(|part| part.part()).collect();
        let command = options::augment(command, &parts);
        if self.runs_on_hosts() { HostsArgs::augment_args(command) } else { command }
    }

    /// Returns the parts that accept all options of a command line.
    ///
    /// # Errors
    /// [`Failure::Usage`]: no part does; with the parts that accept each option.
    pub fn chosen(self, matches: &ArgMatches) -> Result<Vec<Entry>, Failure> {
        let parts: Vec<Part> = self.parts.iter().map(|part| part.part()).collect();
        let mut takers = options::takers(&parts, matches);
        if self.runs_on_hosts() && matches.contains_id(HostsArgs::REMOTE) {
            let remote = self.parts.iter().filter(|part| part.0.runs_on_hosts());
            takers.push(("hosts", remote.map(|part| part.name()).collect()));
        }
        let is_chosen = |part: &&Entry| takers.iter().all(|(_, names)| names.contains(&part.name()));
        let chosen: Vec<Entry> = self.parts.iter().filter(is_chosen).copied().collect();
        if chosen.is_empty() {
            let taken = takers.iter().map(|(option, names)| format!("--{option} ({})", names.join(", ")));
            let taken = taken.collect::<Vec<_>>().join(", ");
            return Err(Failure::Usage(format!("no part of `{}` takes all of {taken}", self.name())));
        }
        Ok(chosen)
    }
}

/// Returns the parts of all experiments, in the order in which the report runs and shows them.
pub fn parts() -> impl Iterator<Item = &'static Entry> {
    ALL.iter().flat_map(|kind| kind.parts)
}

/// Returns the part called `name`, which is the name of its tables.
pub fn part(name: &str) -> Option<Entry> {
    parts().find(|part| part.name() == name).copied()
}

/// Returns the parts whose name differs from their experiment's. Each can also be run as an experiment that no list shows, as in
/// earlier versions.
pub fn unlisted() -> impl Iterator<Item = Kind> {
    let is_listed = |part: &Entry| ALL.iter().any(|kind| kind.name() == part.name());
    parts().filter(move |part| !is_listed(part)).map(|part| alone(std::slice::from_ref(part)))
}

/// Returns the experiment called `name`, or the jobs of fio.
pub fn find(name: &str) -> Option<Kind> {
    ALL.iter().copied().chain(unlisted()).chain([JOBS]).find(|kind| kind.name() == name)
}

/// Adds to a document of schema 1 the contents of later schemas: titles, views and sentences.
pub fn adopt(report: &mut Report) {
    for part in parts() {
        let is_own = |experiment: &mut Experiment| experiment.name == part.name();
        let mut own: Vec<Experiment> = report.experiments.extract_if(.., is_own).collect();
        part.present(&mut own);
        report.experiments.extend(own);
    }
    report.experiments.iter_mut().filter(|one| one.name == waited::NAME).for_each(waited::present);
}

/// Returns the verdicts of all experiments, in the order in which the report shows them.
pub fn verdicts(experiments: &[Experiment]) -> Vec<String> {
    let of_part = |part: &Entry| {
        let own: Vec<&Experiment> = experiments.iter().filter(|found| found.name == part.name()).collect();
        part.verdicts(&own)
    };
    parts().flat_map(of_part).collect()
}

/// Parses the name of an experiment.
///
/// # Errors
/// Fails with a sentence that lists the existing names.
pub fn parse_name(text: &str) -> Result<Kind, String> {
    find(text).filter(|kind| kind.name() != JOBS.name()).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|kind| kind.name()).collect();
        format!("there is no experiment {text:?}; there are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;
    use crate::context::{Context, Target};
    use crate::options::{Length, Values};
    use crate::progress::Progress;

    #[test]
    fn names_are_unique_and_found() {
        for kind in ALL.iter().copied().chain(unlisted()) {
            let name = kind.name();
            assert_eq!(find(name).map(Kind::about), Some(kind.about()), "{name} stands twice");
            let same = ALL.iter().copied().chain(unlisted()).filter(|other| other.about() == kind.about());
            assert_eq!(same.count(), 1, "{name}");
        }
        for entry in parts() {
            assert_eq!(
                part(entry.name()).map(Entry::about),
                Some(entry.about()),
                "{} stands twice",
                entry.name()
            );
        }
        assert_eq!((ALL.len(), unlisted().count()), (11, 6));
        let wrong = parse_name("scna").expect_err("a typing error");
        assert!(wrong.contains("scan, reads, wal"), "{wrong}");
    }

    /// Returns the names of the parts that a command line of `measure` chooses.
    fn chosen(name: &str, words: &[&str]) -> Result<Vec<&'static str>, String> {
        let kind = find(name).expect("an experiment");
        let matches = matches(kind, words).map_err(|error| error.to_string())?;
        let parts = kind.chosen(&matches).map_err(|error| error.to_string())?;
        Ok(parts.iter().map(|part| part.name()).collect())
    }

    fn matches(kind: Kind, words: &[&str]) -> Result<ArgMatches, clap::Error> {
        kind.augment(Command::new("measure").no_binary_name(true)).try_get_matches_from(words)
    }

    #[test]
    fn options_and_rows_choose_the_parts_that_take_them() {
        for (name, words, parts) in [
            ("reads", &[][..], &["random", "saturate", "cpu", "fairness"][..]),
            ("reads", &["--seconds", "1", "--size", "1GiB"], &["random", "saturate", "cpu", "fairness"]),
            ("reads", &["--depth", "8"], &["random"]),
            ("reads", &["--readers", "1,8"], &["saturate", "cpu"]),
            ("reads", &["--readers", "1,8", "--load", "0"], &["saturate"]),
            ("reads", &["--rows", "tokio-fs,classes"], &["cpu", "fairness"]),
            ("reads", &["--writes"], &["fairness"]),
            ("reads", &["--hosts", "a,b"], &["random"]),
            ("writes", &["--pattern", "dense,sparse"], &["writes"]),
            ("writes", &["--pattern", "random"], &["patterns"]),
            ("writes", &["--pattern", "dense,strided"], &["writes", "patterns"]),
            ("writes", &["--rows", "o-direct"], &["writes", "patterns"]),
            ("writes", &["--size", "2MiB"], &["writes"]),
            ("sustain", &["--idle", "1"], &["sustain"]),
        ] {
            assert_eq!(chosen(name, words).as_deref(), Ok(parts), "{name} {words:?}");
        }
        let writes = find("writes").expect("an experiment");
        let both = matches(writes, &["--pattern", "dense,strided"]).expect("each part takes one");
        for (part, word) in writes.parts().iter().zip(["dense", "strided"]) {
            let values = Values::new(part.0.spec().options, Some(&both), Length::Full).expect("its own");
            assert_eq!(values.words("pattern"), [word], "{}", part.name());
        }
        let none = chosen("reads", &["--depth", "8", "--hogs", "1"]).expect_err("no part has both");
        assert!(
            none.contains("no part of `reads` takes all of --depth (random), --hogs (fairness)"),
            "{none}"
        );
        let wrong = chosen("writes", &["--pattern", "striped"]).expect_err("a typing error");
        assert!(
            wrong.contains("there are dense, sparse; ") && wrong.contains("there are random, strided"),
            "{wrong}"
        );
    }

    /// Regression: in an experiment of several parts a lack of space was found only at the turn of each part.
    #[test]
    fn space_is_checked_with_the_options_of_the_command_line() {
        let reads = find("reads").expect("an experiment");
        let options = matches(reads, &["--size", "1000000TiB"]).expect("it parses");
        let target = Target::Directory(std::env::temp_dir());
        let context = Context::new(target, Progress::Silent, Cleanup::default(), 1);
        for part in reads.parts() {
            let error = part.check_space(Some(&options), &context).expect_err("no disk has it");
            assert_eq!(
                error.downcast_ref::<Failure>().map(Failure::code),
                Some(4),
                "{}: {error}",
                part.name()
            );
        }
    }

    /// Regression: `measure writes` on a device refused two of its parts, and the third purged the device.
    #[test]
    fn parts_with_files_of_their_own_take_a_directory_only() {
        let target = Target::Overwritten("/dev/null".into());
        let context = Context::new(target, Progress::Silent, Cleanup::default(), 1);
        let writes = find("writes").expect("an experiment");
        let options = matches(writes, &[]).expect("it parses");
        for part in writes.parts() {
            let error = part.check_space(Some(&options), &context).expect_err("a device");
            assert_eq!(error.downcast_ref::<Failure>().map(Failure::code), Some(3), "{}", part.name());
        }
    }

    #[test]
    fn a_quick_report_of_everything_ends_within_110_seconds() {
        let sum: u64 = parts().map(|part| part.seconds(true)).sum();
        assert!(sum <= QUICK_SECONDS, "{sum} s");
    }

    #[test]
    fn compared_and_drawn_columns_are_shown() {
        for part in parts() {
            let (view, name) = (part.view(), part.name());
            assert!(view.column(&view.compared).is_some(), "{name}: {}", view.compared);
            assert!(
                view.charts.iter().all(|metric| view.column(metric).is_some()),
                "{name}: {:?}",
                view.charts
            );
        }
    }

    #[test]
    fn changes_lead_from_ways_of_their_experiment_to_others_of_it() {
        for part in parts() {
            let (spec, view) = (part.0.spec(), part.view());
            for gain in &view.gains {
                let is_way = |name: &str| spec.ways.iter().any(|way| way.name == name);
                assert!(!gain.to.is_empty() && gain.to.iter().all(|name| is_way(name)), "{gain:?}");
                assert!(gain.usual.iter().all(|name| is_way(name) && !gain.to.contains(name)), "{gain:?}");
            }
        }
    }

    /// A report leaves an experiment out before the first one starts if its files do not fit, so each knows their size.
    #[test]
    fn every_experiment_knows_about_how_large_its_files_are() {
        for entry in parts() {
            let values = Values::new(entry.0.spec().options, None, Length::Quick).expect("defaults");
            let bytes = entry.0.file_bytes(&values);
            assert!(values.has("memory") || (1 << 20..4 << 30).contains(&bytes), "{}: {bytes}", entry.name());
        }
    }

    #[test]
    fn defaults_of_all_options_are_valid() {
        for entry in parts() {
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
        // Keys of other documents, the prefix of metrics, and a check of the doctor.
        const OTHER_MEANINGS: [&str; 7] = [
            "wal in wal/inspection.rs",
            "files in top/exposition.rs",
            "files in top/view.rs",
            "reads in top/view.rs",
            "writes in top/view.rs",
            "cpu in diff/significance.rs",
            "writes in doctor/probe_file.rs",
        ];
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
            let all = ALL.iter().copied().chain(unlisted()).map(Kind::name);
            let named = all.filter(|name| code.contains(&format!("\"{name}\"")));
            let parts: Vec<_> = place.iter().rev().take(2).map(|part| part.to_string_lossy()).collect();
            found.extend(named.map(|name| format!("{name} in {}/{}", parts[1], parts[0])));
        }
        assert!(read > 60, "only {read} files; this test looks in the wrong place");
        found.retain(|name| !OTHER_MEANINGS.contains(&name.as_str()));
        assert!(found.is_empty(), "{found:#?}");
    }
}
