//! The presentation of a result of `forebay wait` among experiments.

use super::columns::{Column, SECONDS, column};
use crate::doctor::units::number;
use crate::measure::kind::{Kind, only_shown};
use crate::result::{Experiment, metric};
use crate::saved::waited::{NAME, PROGRAM};

/// Entry of an experiment that is only shown; a command of its own measures it.
pub(crate) static KIND: Kind = only_shown(NAME, COLUMNS, &[metric::WAIT_SHARE], title, verdicts);

const COLUMNS: &[Column] = &[
    column(
        metric::FULL_WAIT_SHARE,
        "full wait %",
        0.01,
        "share of the time in which a thread stood still for I/O and none ran",
    ),
    column(
        metric::SOME_WAIT_SHARE,
        "some wait %",
        0.01,
        "share of the time in which a thread stood still for I/O",
    ),
    column(
        metric::FULL_IOWAIT_SHARE,
        "full iowait %",
        0.01,
        "full wait, as far as the kernel calls it iowait",
    ),
    column(metric::WAIT_SHARE, "of all waits %", 0.01, "a file's share of the waits of all threads"),
    column(metric::WAIT_S, "wait s", 1.0, "waits of all threads, in seconds"),
    SECONDS,
];

/// Returns the measured program.
pub(crate) fn command(experiment: &Experiment) -> &str {
    experiment.parameters.get("command").and_then(serde_json::Value::as_str).unwrap_or("a program")
}

/// Maximum length of a shown command: it may be a whole script, whose full text is among the parameters.
const SHOWN_MAX: usize = 60;

/// Returns the beginning of a command, for headings and sentences.
pub(crate) fn short(command: &str) -> String {
    let more = if command.chars().count() > SHOWN_MAX { " .." } else { "" };
    let shown: String = command.chars().take(SHOWN_MAX).collect();
    shown + more
}

fn title(experiment: &Experiment) -> String {
    format!("How long a program waits: {}", short(command(experiment)))
}

fn verdicts(experiments: &[&Experiment]) -> Vec<String> {
    let sentence_of = |experiment: &&Experiment| {
        let share =
            |name: &str| experiment.row(PROGRAM)?.metrics.get(name).map(|share| number(share * 100.0));
        Some(format!(
            "`{}` stood still for I/O in {} % of its time, and some thread of it in {} %",
            short(command(experiment)),
            share(metric::FULL_WAIT_SHARE)?,
            share(metric::SOME_WAIT_SHARE)?
        ))
    };
    experiments.iter().filter_map(sentence_of).collect()
}
