//! The registry of experiments: [`ALL`] lists them, and nothing else names one. A new experiment is a module and a line
//! there.

use crate::amplification::Amplification;
use crate::baseline::Baseline;
use crate::collective::Collective;
use crate::cpu::Cpu;
use crate::fairness::Fairness;
use crate::files::Files;
use crate::patterns::Patterns;
use crate::random::Random;
use crate::samples::Samples;
use crate::saturate::Saturate;
use crate::scan::Scan;
use crate::sustain::Sustain;
use crate::writes::Writes;
use forebay_report::result::{Experiment, Report};
use forebay_report::saved::waited;

pub use crate::entry::Entry;

/// Every experiment, in the order in which the report runs and shows them.
pub static ALL: &[Entry] = &[
    Entry(&Baseline),
    Entry(&Scan),
    Entry(&Random),
    Entry(&Saturate),
    Entry(&Cpu),
    Entry(&crate::wal::WAL),
    Entry(&crate::wal::BLOCKING),
    Entry(&crate::walk::Walk),
    Entry(&Writes),
    Entry(&Patterns),
    Entry(&Sustain),
    Entry(&Fairness),
    Entry(&Amplification),
    Entry(&Files),
    Entry(&Samples),
    Entry(&Collective),
];

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
    use crate::options::{Length, Values};

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
    fn changes_lead_from_ways_of_their_experiment_to_others_of_it() {
        for kind in ALL {
            let (spec, view) = (kind.0.spec(), kind.view());
            for gain in &view.gains {
                let is_way = |name: &str| spec.ways.iter().any(|way| way.name == name);
                assert!(!gain.to.is_empty() && gain.to.iter().all(|name| is_way(name)), "{gain:?}");
                assert!(gain.usual.iter().all(|name| is_way(name) && !gain.to.contains(name)), "{gain:?}");
            }
        }
    }

    /// A report leaves an experiment out before the first one begins where its files have no room, so each knows their size.
    #[test]
    fn every_experiment_knows_about_how_large_its_files_are() {
        for entry in ALL {
            let values = Values::new(entry.0.spec().options, None, Length::Quick).expect("defaults");
            let bytes = entry.0.file_bytes(&values);
            assert!(values.has("memory") || (1 << 20..4 << 30).contains(&bytes), "{}: {bytes}", entry.name());
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
        // Keys of other documents, the beginning of metrics, and a check of the doctor.
        const OTHER_MEANINGS: [&str; 6] = [
            "wal in wal/inspection.rs",
            "files in top/exposition.rs",
            "files in top/view.rs",
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
            let named = ALL.iter().filter(|entry| code.contains(&format!("\"{}\"", entry.name())));
            let parts: Vec<_> = place.iter().rev().take(2).map(|part| part.to_string_lossy()).collect();
            found.extend(named.map(|entry| format!("{} in {}/{}", entry.name(), parts[1], parts[0])));
        }
        assert!(read > 60, "only {read} files; this test looks in the wrong place");
        found.retain(|name| !OTHER_MEANINGS.contains(&name.as_str()));
        assert!(found.is_empty(), "{found:#?}");
    }
}
