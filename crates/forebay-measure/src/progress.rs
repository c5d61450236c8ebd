//! Progress: bars on a terminal, plain lines otherwise. It is always written to standard error, so that standard output has only
//! results.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::stderr_line;
use forebay_report::units::printable;

/// Interval of plain lines within one step: short enough to show life in a log, long enough to read it.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// The form of the progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Bars that redraw themselves.
    Bars,
    /// One line when a step starts, one when it ends, and one every few seconds between.
    Lines,
    /// No output.
    Silent,
}

impl Progress {
    /// Returns bars when standard error is a terminal, lines otherwise, and silence when `quiet`.
    pub fn detect(quiet: bool) -> Self {
        if quiet {
            Self::Silent
        } else if std::io::stderr().is_terminal() {
            Self::Bars
        } else {
            Self::Lines
        }
    }

    /// Prints a separate line ("memory is limited to 256 MiB by a cgroup").
    pub fn print_line(&self, line: &str) {
        if *self != Self::Silent {
            stderr_line(line);
        }
    }

    /// Starts a step that ends at `total`, counted in `unit`.
    pub fn step(&self, label: impl Into<String>, total: u64, unit: Unit) -> Step {
        let label = printable(&label.into()).into_owned();
        let bar = match self {
            Self::Bars => {
                let bar = ProgressBar::new(total);
                if let Ok(style) = ProgressStyle::with_template(unit.template()) {
                    bar.set_style(style.progress_chars("=> "));
                }
                bar.set_prefix(label.clone());
                bar.enable_steady_tick(Duration::from_millis(200));
                Some(bar)
            }
            Self::Lines => {
                stderr_line(format_args!("{label} ..."));
                None
            }
            Self::Silent => None,
        };
        let started = Instant::now();
        Step { mode: *self, label, total, bar, printed_at: Mutex::new(started), started, ends: None }
    }
}

/// The unit of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Items: repeats, cells, files.
    Count,
}

impl Unit {
    fn template(self) -> &'static str {
        match self {
            Self::Bytes => "{prefix:28!} [{bar:24}] {bytes:>10} of {total_bytes} {msg}",
            Self::Count => "{prefix:28!} [{bar:24}] {pos:>4} of {len} {msg}",
        }
    }
}

/// One step in progress, shared between threads by reference. When it is dropped without
/// [`finish`](Step::finish), it disappears without a final line.
#[derive(Debug)]
pub struct Step {
    mode: Progress,
    label: String,
    total: u64,
    bar: Option<ProgressBar>,
    printed_at: Mutex<Instant>,
    started: Instant,
    ends: Option<Instant>,
}

/// Returns `about 2 min left`, or `None` for less than a second.
pub fn time_left(left: Duration) -> Option<String> {
    match left.as_secs() {
        0 => None,
        seconds @ 1..=119 => Some(format!("about {seconds} s left")),
        seconds => Some(format!("about {} min left", seconds.div_ceil(60))),
    }
}

impl Step {
    /// Shows, in addition to the step's own progress, the time left until `ends`, when all steps should have ended.
    pub fn within(mut self, ends: Option<Instant>) -> Self {
        self.ends = ends;
        self
    }

    fn left(&self) -> String {
        let left = self.ends.and_then(|ends| ends.checked_duration_since(Instant::now()));
        left.and_then(time_left).map_or_else(String::new, |left| format!(", {left} in all"))
    }

    /// Sets the position of the step, in its unit.
    pub fn set(&self, position: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        } else if self.mode == Progress::Lines {
            // A thread that holds the lock is writing the same line, so this thread has nothing to add.
            if let Ok(mut printed_at) = self.printed_at.try_lock()
                && printed_at.elapsed() >= PLAIN_INTERVAL
            {
                *printed_at = Instant::now();
                let percent = position.saturating_mul(100).checked_div(self.total).unwrap_or(100);
                stderr_line(format_args!("{}: {}%{}", self.label, percent.min(100), self.left()));
            }
        }
    }

    /// Shows a few words behind the bar, such as the row that is running.
    pub fn message(&self, text: impl Into<String>) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}{}", text.into(), self.left()));
        }
    }

    /// Ends the step with its outcome ("1,540 MB/s").
    pub fn finish(self, outcome: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if self.mode != Progress::Silent {
            let seconds = self.started.elapsed().as_secs_f64();
            stderr_line(format_args!("{}: {outcome} ({seconds:.1} s)", self.label));
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_is_silent() {
        assert_eq!(Progress::detect(true), Progress::Silent);
    }

    #[test]
    fn the_time_left_has_a_readable_unit() {
        let text = |seconds| time_left(Duration::from_secs(seconds));
        assert_eq!(text(0), None);
        assert_eq!(text(119).as_deref(), Some("about 119 s left"));
        assert_eq!(text(121).as_deref(), Some("about 3 min left"));
    }

    #[test]
    fn every_template_is_accepted() {
        for unit in [Unit::Bytes, Unit::Count] {
            assert!(ProgressStyle::with_template(unit.template()).is_ok(), "{unit:?}");
        }
    }

    #[test]
    fn a_silent_step_takes_every_call() {
        let step = Progress::Silent.step("read", 0, Unit::Bytes);
        step.set(10);
        step.message("direct");
        step.finish("done");
    }
}
