//! The inputs of an experiment: its target, its time budget and the channel for its progress.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cleanup::Cleanup;
use crate::progress::{Progress, Step, Unit, time_left};
use forebay_report::failure::Failure;

/// Everything that an experiment shares with the program.
#[derive(Debug)]
pub struct Context {
    /// The path where the experiment works, with its permissions to write.
    pub target: Target,
    /// The sink for reports of progress.
    pub progress: Progress,
    /// The registry of undo actions.
    pub cleanup: Cleanup,
    /// Selects smaller files and fewer repeats.
    pub quick: bool,
    /// The total time limit of this experiment, writing its file included. `None` sets no limit.
    pub budget: Option<Duration>,
    /// The seed of everything random: offsets and file contents.
    pub seed: u64,
    /// The instant when the experiment was started.
    pub started: Instant,
    /// The instant when the first experiment of a report was started.
    first_began: Option<Instant>,
    /// The instant when this experiment and those after it should be done; set only in a report.
    ends: Option<Instant>,
}

impl Context {
    /// Returns a context without a budget that starts now.
    pub fn new(target: Target, progress: Progress, cleanup: Cleanup, seed: u64) -> Self {
        let started = Instant::now();
        let (budget, first_began, ends) = (None, None, None);
        Self { target, progress, cleanup, quick: false, budget, seed, started, first_began, ends }
    }

    /// Starts the clock of the experiment after the first `done` experiments; `seconds` are the estimates of all. In a quick run
    /// its budget is its share of the remaining quick time.
    pub fn begin(&mut self, seconds: &[u64], done: usize) {
        self.started = Instant::now();
        let first_began = *self.first_began.get_or_insert(self.started);
        let (before, after) = seconds.split_at(done.min(seconds.len()));
        let own = after.first().map(|own| *own as f64);
        let [before, after] = [before, after].map(|part| part.iter().sum::<u64>() as f64);
        let spent = first_began.elapsed().as_secs_f64();
        self.budget = own.filter(|_| self.quick).map(|own| share(own, before, after, spent));
        self.ends = self.started.checked_add(left(before, after, spent));
    }

    /// Returns the approximate time for this and the following experiments of a report, in words. `None` for the last experiment,
    /// or when that time has passed.
    pub fn left(&self) -> Option<String> {
        time_left(self.ends?.checked_duration_since(Instant::now())?)
    }

    /// Starts a step of the experiment; see [`Progress::step`]. In a report the step also shows the
    /// remaining time of all experiments.
    pub fn step(&self, label: impl Into<String>, total: u64, unit: Unit) -> Step {
        self.progress.step(label, total, unit).within(self.ends)
    }

    /// Returns the rest of the budget; `None` without a budget.
    pub fn remaining(&self) -> Option<Duration> {
        self.budget.map(|budget| budget.saturating_sub(self.started.elapsed()))
    }
}

/// Returns the budget of an experiment with an estimate of `own` seconds: its share of the time that the experiments before it,
/// estimated at `before` seconds, left of the whole. So a slow experiment shortens those after it. A budget grows by at most a
/// quarter, because fast experiments before it do not justify a longer run.
fn share(own: f64, before: f64, after: f64, spent: f64) -> Duration {
    let factor = (before + after - spent) / after.max(1.0);
    Duration::from_secs_f64(own * factor.clamp(0.25, 1.25))
}

/// Returns the time that experiments estimated at `after` seconds will need, at the pace of earlier experiments. The first
/// experiments say little about the pace, so a fifth of the whole counts as having met the estimate.
fn left(before: f64, after: f64, spent: f64) -> Duration {
    let prior = (before + after) / 5.0;
    Duration::from_secs_f64(after * (spent + prior) / (before + prior).max(1.0))
}

/// The file, directory or device that an experiment works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A directory: the experiment creates its own file there ([`Cleanup::temp_file`]) and
    /// writes nothing else.
    Directory(PathBuf),
    /// An existing file or block device, which is only read.
    Existing(PathBuf),
    /// An existing file or block device whose *contents are replaced* by incompressible data before they
    /// are read. Only [`Target::resolve`] creates this variant, and only with both permissions. The length
    /// does not change.
    Overwritten(PathBuf),
}

impl Target {
    /// Resolves `path` to a directory, a file or a device.
    ///
    /// `overwrite` and `destroy_data` are the two separate permissions to replace the contents of something
    /// that this program did not create. One of them alone is rejected.
    ///
    /// # Errors
    /// [`Failure::Path`] when the path is missing, is neither a directory, a regular file nor a block
    /// device, or when only one of the permissions was given; [`Failure::Usage`] when a permission was
    /// given for a directory.
    pub fn resolve(path: &Path, overwrite: bool, destroy_data: bool) -> Result<Self, Failure> {
        let metadata = fs::metadata(path).map_err(|error| Failure::missing(path, &error))?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            if overwrite || destroy_data {
                return Err(Failure::Usage(format!(
                    "{} is a directory, where the program only writes files of its own: leave out --overwrite and --destroy-data",
                    path.display()
                )));
            }
            return Ok(Self::Directory(path.to_owned()));
        }
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Failure::Path(format!(
                "{} is neither a directory, a regular file nor a block device: name one of these",
                path.display()
            )));
        }
        match (overwrite, destroy_data) {
            (false, false) => Ok(Self::Existing(path.to_owned())),
            (true, true) => Ok(Self::Overwritten(path.to_owned())),
            _ => Err(Failure::Usage(format!(
                "replacing the contents of {} needs both --overwrite and --destroy-data; without them it is only read",
                path.display()
            ))),
        }
    }

    /// Returns the path named on the command line.
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory(path) | Self::Existing(path) | Self::Overwritten(path) => path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_takes_no_permission_to_destroy() {
        let directory = std::env::temp_dir();
        assert_eq!(
            Target::resolve(&directory, false, false).ok(),
            Some(Target::Directory(directory.clone()))
        );
        assert!(Target::resolve(&directory, true, true).is_err());
    }

    #[test]
    fn one_permission_alone_is_refused() {
        let cleanup = Cleanup::default();
        let temp =
            cleanup.temp_file(&std::env::temp_dir(), "target").expect("the temp directory is writable");
        let path = temp.path();
        assert!(Target::resolve(path, true, false).is_err());
        assert!(Target::resolve(path, false, true).is_err());
        assert_eq!(Target::resolve(path, false, false).ok(), Some(Target::Existing(path.to_owned())));
        assert_eq!(Target::resolve(path, true, true).ok(), Some(Target::Overwritten(path.to_owned())));
    }

    #[test]
    fn a_slow_experiment_is_paid_for_by_those_after_it() {
        let seconds = |own, before, after, spent| share(own, before, after, spent).as_secs_f64();
        assert_eq!(seconds(10.0, 0.0, 100.0, 0.0), 10.0);
        assert_eq!(seconds(10.0, 20.0, 80.0, 20.0), 10.0);
        assert_eq!(seconds(10.0, 20.0, 80.0, 60.0), 5.0);
        assert_eq!(seconds(10.0, 20.0, 80.0, 0.0), 12.5);
        assert_eq!(seconds(10.0, 20.0, 80.0, 500.0), 2.5);
    }

    #[test]
    fn the_time_left_follows_the_pace() {
        let seconds = |before, after, spent| left(before, after, spent).as_secs_f64();
        assert_eq!(seconds(0.0, 100.0, 0.0), 100.0);
        assert_eq!(seconds(50.0, 50.0, 50.0), 50.0);
        // Twice the estimate so far: the rest needs almost twice as long.
        assert!((85.0..90.0).contains(&seconds(50.0, 50.0, 100.0)), "{}", seconds(50.0, 50.0, 100.0));
        assert_eq!(seconds(100.0, 0.0, 80.0), 0.0);
    }

    #[test]
    fn a_character_device_is_refused() {
        let error = Target::resolve(Path::new("/dev/null"), false, false).expect_err("not a file");
        assert!(error.to_string().contains("/dev/null"));
    }
}
