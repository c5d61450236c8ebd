//! The presentation of a result of `forebay wait` among experiments.

use std::sync::Arc;

use super::columns::{self, Definition};
use super::view::{Role, View};
use crate::result::{Experiment, metric};
use crate::saved::waited::PROGRAM;
use crate::units::number;

/// Adds view, title and sentence to a result of `forebay wait`.
pub fn present(experiment: &mut Experiment) {
    let mut view = View::of(Role::Waiting, COLUMNS);
    view.charts = vec![metric::WAIT_SHARE.into()];
    experiment.view = Arc::new(view);
    experiment.titled(format!("Time blocked on I/O: {}", short(command(experiment))), "");
    experiment.sentence = sentence(experiment).unwrap_or_default();
}

const COLUMNS: &[Definition] = &[
    columns::FULL_WAIT_SHARE,
    columns::SOME_WAIT_SHARE,
    columns::FULL_IOWAIT_SHARE,
    columns::WAIT_SHARE,
    columns::WAIT_S,
    columns::SECONDS,
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
