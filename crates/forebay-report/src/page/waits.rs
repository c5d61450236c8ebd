//! The presentation of a result of `forebay wait` among experiments.

use std::sync::Arc;

use super::columns::{Definition, SECONDS, column};
use super::view::{Role, View};
use crate::result::{Experiment, metric};
use crate::saved::waited::PROGRAM;
use crate::units::number;

/// Adds view, title and sentence to a result of `forebay wait`.
pub fn present(experiment: &mut Experiment) {
    let mut view = View::of(Role::Waiting, COLUMNS);
    view.charts = vec![metric::WAIT_SHARE.into()];
    experiment.view = Arc::new(view);
    experiment.titled(format!("How long a program waits: {}", short(command(experiment))), "");
    experiment.sentence = sentence(experiment).unwrap_or_default();
}

const COLUMNS: &[Definition] = &[
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
pub fn command(experiment: &Experiment) -> &str {
    experiment.parameters.get("command").and_then(serde_json::Value::as_str).unwrap_or("a program")
}

/// Maximum length of a shown command: it may be a whole script, whose full text is among the parameters.
const SHOWN_MAX: usize = 60;

/// Returns the beginning of a command, for headings and sentences.
pub fn short(command: &str) -> String {
    let more = if command.chars().count() > SHOWN_MAX { " .." } else { "" };
    let shown: String = command.chars().take(SHOWN_MAX).collect();
    shown + more
}

/// Returns the first word of a command, for short sentences.
pub(crate) fn program(command: &str) -> &str {
    command.split_whitespace().next().unwrap_or("the program")
}

fn sentence(experiment: &Experiment) -> Option<String> {
    let share = |name: &str| experiment.row(PROGRAM)?.metrics.get(name).map(|share| number(share * 100.0));
    Some(format!(
        "`{}` was blocked on I/O in {} % of its time, and some thread of it in {} %",
        program(command(experiment)),
        share(metric::FULL_WAIT_SHARE)?,
        share(metric::SOME_WAIT_SHARE)?
    ))
}
