//! The inputs of an experiment: its target, its time budget and the channel for its progress.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cleanup::Cleanup;
use crate::kind::Entry;
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
    /// The time that this experiment may take in all, writing its file included. `None` sets no limit.
    pub budget: Option<Duration>,
    /// The seed of everything random: offsets and file contents.
    pub seed: u64,
    /// The instant when the experiment was started.
    pub started: Instant,
    /// The instant when this experiment and those after it should be done; set only in a report.
    ends: Option<Instant>,
}

impl Context {
    /// Returns a context without a budget that starts now.
    pub fn new(target: Target, progress: Progress, cleanup: Cleanup, seed: u64) -> Self {
        let started = Instant::now();
        Self { target, progress, cleanup, quick: false, budget: None, seed, started, ends: None }
    }

    /// Starts the clock of the first of `kinds`. Its budget is its own quick time when the run is quick.
    pub fn restart(&mut self, kinds: &[Entry]) {
        let quick = self.quick;
        let all = kinds.iter().map(|kind| kind.seconds(quick)).sum();
        self.started = Instant::now();
        self.budget = kinds.first().filter(|_| quick).map(|kind| Duration::from_secs(kind.seconds(true)));
        self.ends = self.started.checked_add(Duration::from_secs(all));
    }

    /// Returns the approximate time for this and the following experiments of a report, in words. `None`
    /// when there are no others, or when that time has passed.
    pub fn left(&self) -> Option<String> {
        time_left(self.ends?.checked_duration_since(Instant::now())?)
    }

    /// Starts a step of the experiment; see [`Progress::step`]. In a report the step also shows the
    /// remaining time of all experiments.
    pub fn step(&self, label: impl Into<String>, total: u64, unit: Unit) -> Step {
        self.progress.step(label, total, unit).within(self.ends)
    }

    /// Returns the rest of the budget; `None` when there is no budget.
    pub fn remaining(&self) -> Option<Duration> {
        self.budget.map(|budget| budget.saturating_sub(self.started.elapsed()))
    }
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
    fn a_character_device_is_refused() {
        let error = Target::resolve(Path::new("/dev/null"), false, false).expect_err("not a file");
        assert!(error.to_string().contains("/dev/null"));
    }
}
