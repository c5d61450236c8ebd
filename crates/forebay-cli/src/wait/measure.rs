//! Measures, and writes the result to the requested places.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_wait::{Error, PauseOutcome, Report};
use serde::Serialize;

use super::signals::Signals;
use super::{WaitArgs, html, known, text};
use crate::output::{Destination, PAGE_MARK, stderr_line, stderr_text};
use forebay_measure::cleanup::Cleanup;
use forebay_report::check::Check;
use forebay_report::failure::Failure;
use forebay_report::page::html::source;

/// The whole JSON document.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Document {
    schema: u32,
    /// The version of this program; it also marks a file of this program.
    forebay: &'static str,
    kind: &'static str,
    time_unix_s: u64,
    pub(super) kernel: String,
    #[serde(flatten)]
    pub(super) report: Report,
}

/// The version of the document's layout.
const SCHEMA: u32 = 1;

impl Document {
    pub(super) fn new(report: Report) -> Self {
        let name = rustix::system::uname();
        Self {
            schema: SCHEMA,
            forebay: env!("CARGO_PKG_VERSION"),
            kind: "wait",
            time_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            kernel: format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
            report,
        }
    }

    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }

    /// Returns the same for the source of a page, in at most `room` bytes. For that, files are left out,
    /// those with the shortest waits first. Also returns the number of files in it, where not all are.
    pub(super) fn to_source(&self, room: usize) -> serde_json::Result<(String, Option<usize>)> {
        let mut part = self.clone();
        loop {
            let text = source(&serde_json::to_string(&part)?);
            let files = part.report.files.len();
            if text.len() <= room || files == 0 {
                return Ok((text, (files < self.report.files.len()).then_some(files)));
            }
            part.report.files.truncate(files / 2);
        }
    }
}

/// Returns the doctor's line.
pub(crate) fn examine() -> Check {
    match forebay_wait::probe() {
        Ok(()) => Check::ok("wait", "tracepoints", "the BPF programs of forebay wait load here"),
        Err(Error::Unavailable { what, remedy, .. }) => Check::degraded("wait", "tracepoints", what, remedy),
        Err(error) => Check::degraded("wait", "tracepoints", error.to_string(), ""),
    }
}

/// Runs the command and returns its exit code.
///
/// # Errors
/// [`Failure::Lacking`] where it cannot be measured.
pub(crate) fn run(args: &WaitArgs) -> anyhow::Result<ExitCode> {
    // Before the measurement: a long run must not end in "permission denied".
    let page = args.html.as_deref().map(|path| Destination::new(path, PAGE_MARK)).transpose()?;
    let json = args.json.destination()?;
    page.as_ref().map_or(Ok(()), |page| json.beside(page))?;
    json.replaces_none_of(&args.report)?;
    let served = args.report.as_deref().map(known::served).transpose()?.unwrap_or_default();
    let signals = Signals::install()?;
    let report = match args.pid {
        Some(pid) => {
            let duration = Duration::from_secs_f64(args.seconds.unwrap_or(1.0));
            let pause =
                |time: Duration| if signals.wait(time) { PauseOutcome::Asked } else { PauseOutcome::Going };
            forebay_wait::watch(pid, duration, pause)
        }
        None => forebay_wait::run(&args.command, |pid| signals.pass_on_to(pid)),
    };
    let mut report = match report {
        Ok(report) => report,
        Err(error) => return failed(error),
    };
    report.advise(&served);
    let code = ending(&report);
    let document = Document::new(report);
    // Signals do not end the program here, so no other code has to undo anything.
    let cleanup = Cleanup::default();
    // A destination that became full, or disappeared, costs none of the others.
    let page_written = match &page {
        Some(page) => page.write(&html::of(&document, args.limit)?, &cleanup),
        None => Ok(()),
    };
    let page_is_shown = page.is_some_and(|page| page.is_stdout());
    let json_written = json.write(|| document.to_json(), &cleanup);
    if *json_written.as_ref().unwrap_or(&true) && !page_is_shown {
        // The command uses standard output, so the report does not.
        stderr_text(&text::render(&document.report, args.limit));
    }
    page_written?;
    json_written?;
    Ok(ExitCode::from(code))
}

fn failed(error: Error) -> anyhow::Result<ExitCode> {
    match error {
        Error::Unavailable { .. } => Err(Failure::Lacking(error.to_string()).into()),
        Error::NoProcess(_) => Err(Failure::Usage(error.to_string()).into()),
        Error::NotStarted { ref source, .. } => {
            // The same codes as in shells.
            let code = if source.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
            stderr_line(format_args!("forebay: {error}"));
            Ok(ExitCode::from(code))
        }
        error => Err(error.into()),
    }
}

/// Returns the command's own code; for one that a signal ended, 128 and its number.
fn ending(report: &Report) -> u8 {
    let code = report.exit_code.or_else(|| report.signal.map(|signal| 128 + signal)).unwrap_or(0);
    u8::try_from(code).unwrap_or(1)
}
