//! The output of `forebay wait --json` as an experiment, which serves the report's fifth question, and its presentation.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::environment::Environment;
use crate::result::columns::{self, Definition};
use crate::result::view::{Role, View};
use crate::result::{Experiment, Report, Row, metric};
use crate::units::{number, printable};

/// Name of the experiment.
pub const NAME: &str = "wait";
/// The row of the whole program; the others are files.
pub const PROGRAM: &str = "program";
/// Number of files with a row, those with the longest wait first: the page of `forebay wait` itself
/// has them all.
const FILES: usize = 10;

/// Fields of such a document that are shown here.
#[derive(Debug, Deserialize)]
struct WaitDocument {
    time_unix_s: u64,
    kernel: String,
    command: Vec<String>,
    pid: u32,
    method: String,
    wall_ns: u64,
    full_wait_share: f64,
    // Earlier versions did not report it.
    #[serde(default)]
    maybe_full_wait_share: Option<f64>,
    #[serde(default)]
    unseen: Vec<String>,
    some_wait_share: f64,
    wait_sum_ns: u64,
    iowait: Pressure,
    files: Vec<File>,
    advice: Vec<String>,
    notes: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Pressure {
    full_share: f64,
}

#[derive(Debug, Deserialize)]
struct File {
    path: String,
    wait_ns: u64,
    wait_share: f64,
}

/// Returns the report with that single experiment; `None` when the document is not from `forebay wait`.
///
/// # Errors
/// A field is missing or has another type.
pub fn report(document: &Value) -> Option<serde_json::Result<Report>> {
    (document.get("kind").and_then(Value::as_str) == Some(NAME))
        .then(|| WaitDocument::deserialize(document).map(of))
}

fn of(waited: WaitDocument) -> Report {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let command = waited.command.join(" ");
    let command = if command.is_empty() { format!("process {}", waited.pid) } else { command };
    let is_pressure = waited.method == "pressure";
    let from =
        if is_pressure { "the `io.pressure` of a cgroup of its own" } else { "the kernel's tracepoints" };
    let method = format!(
        "`forebay wait` followed the program and all that it started, by {from}. Full wait is the share of its time \
         in which at least one thread stood still for I/O and none ran; some wait the share in which at least one \
         did. It is one run, so the spread between runs is unknown. A file's share is that of the waits of all \
         threads."
    );
    let mut experiment = Experiment::new(NAME, method)
        .parameter("command", command.as_str())
        .parameter("method", waited.method);
    let of_program = [
        (metric::FULL_WAIT_SHARE, waited.full_wait_share),
        (metric::SOME_WAIT_SHARE, waited.some_wait_share),
        (metric::FULL_IOWAIT_SHARE, waited.iowait.full_share),
        (metric::WAIT_S, seconds(waited.wait_sum_ns)),
        (metric::SECONDS, seconds(waited.wall_ns)),
    ];
    let maybe = waited.maybe_full_wait_share.map(|share| (metric::MAYBE_WAIT_SHARE, share));
    let program = Row::of_repeats(PROGRAM, [of_program.into_iter().chain(maybe)])
        .describe(format!("{command}, with all that it started"));
    let files = waited.files.iter().filter(|file| file.wait_ns > 0).take(FILES).map(|file| {
        let figures = [(metric::WAIT_SHARE, file.wait_share), (metric::WAIT_S, seconds(file.wait_ns))];
        Row::of_repeats(printable(&file.path), [figures])
    });
    experiment.rows = std::iter::once(program).chain(files).collect();
    let unseen = waited.unseen.into_iter().map(|what| format!("it may have waited for more, as {what}"));
    experiment.notes = waited.notes.into_iter().chain(unseen).collect();
    // The build is unknown, and no figure depends on it.
    let environment = Environment {
        time_unix_s: waited.time_unix_s,
        kernel: waited.kernel,
        optimized_build: true,
        ..Environment::default()
    };
    present(&mut experiment);
    let mut report = Report::new(environment, vec![experiment]);
    let command = short(&command);
    let sentence = |sentence: String| format!("`{command}`: {}", printable(&sentence));
    report.verdicts = waited.advice.into_iter().map(sentence).collect();
    report
}

/// Adds view, title and sentence to a result of `forebay wait`.
pub fn present(experiment: &mut Experiment) {
    let mut view = View::of(Role::Waiting, COLUMNS);
    view.charts = vec![metric::WAIT_SHARE.into()];
    experiment.view = Arc::new(view);
    experiment.titled(format!("Time blocked on I/O: {}", short(command(experiment))), "");
    let whole: &Experiment = experiment;
    let sentence = whole.row(PROGRAM).and_then(|row| sentence(whole, row));
    experiment.sentence = sentence.unwrap_or_default();
}

const COLUMNS: &[Definition] = &[
    columns::FULL_WAIT_SHARE,
    columns::MAYBE_WAIT_SHARE,
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

/// Returns the start of a command, for headings and sentences.
pub fn short(command: &str) -> String {
    let more = if command.chars().count() > SHOWN_MAX { " .." } else { "" };
    let shown: String = command.chars().take(SHOWN_MAX).collect();
    printable(&shown).into_owned() + more
}

/// Returns the first word of a command, for short sentences.
fn program(command: &str) -> &str {
    command.split_whitespace().next().unwrap_or("the program")
}

/// Returns the share of its time for which a program was blocked, in percent: a range where part of it may be no wait.
pub(crate) fn blocked_percent(row: &Row) -> Option<String> {
    let percent = |share: f64| number(share * 100.0);
    let full = row.get(metric::FULL_WAIT_SHARE)?;
    let maybe = row.get(metric::MAYBE_WAIT_SHARE).filter(|maybe| *maybe >= 0.01);
    let most = maybe.map_or_else(String::new, |maybe| format!(" to {}", percent(full + maybe)));
    Some(format!("{}{most}", percent(full)))
}

/// Returns the sentence on the row of a whole program.
pub(crate) fn sentence(experiment: &Experiment, row: &Row) -> Option<String> {
    let some = row.get(metric::SOME_WAIT_SHARE).map(|share| number(share * 100.0));
    let some = some.map_or_else(String::new, |some| format!(", some thread of it for {some} %"));
    let (name, share) = (program(command(experiment)), blocked_percent(row)?);
    Some(format!("`{name}` was blocked for {share} % of its time{some}"))
}
