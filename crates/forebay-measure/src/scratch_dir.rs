//! The directory of an experiment that writes: it creates its own files there and touches nothing else.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::backing_device::filesystem_of;
use crate::cleanup::{TempDirectory, TempFile};
use crate::context::{Context, Target};
use crate::experiment::Place;
use crate::preconditions::Preconditions;
use crate::test_file::refuse_memory_filesystem;
use forebay_report::failure::Failure;

/// A directory in which files can be created.
#[derive(Debug)]
pub struct ScratchDir {
    /// Absolute, so that a child process finds it.
    pub directory: PathBuf,
    /// The file system's type: `ext4`, `xfs`, ...
    pub filesystem: String,
}

impl ScratchDir {
    /// Returns the directory named on the command line; `experiment` is the word after `measure`.
    ///
    /// # Errors
    /// Fails with a [`Failure`] when it is not a directory, or lies on a file system in memory.
    pub fn find(context: &Context, experiment: &str) -> anyhow::Result<Self> {
        let Target::Directory(directory) = &context.target else {
            return Err(Failure::Path(format!(
                "{} is not a directory: `measure {experiment}` writes files of its own and nothing else; name a \
                 directory for them",
                context.target.path().display(),
            ))
            .into());
        };
        let directory = fs::canonicalize(directory).map_err(|error| Failure::missing(directory, &error))?;
        let filesystem = filesystem_of(&directory);
        refuse_memory_filesystem(&directory, &filesystem)?;
        Ok(Self { directory, filesystem })
    }

    /// Returns the facts on the place, with the device's `stat` file.
    pub fn place(&self, device_stat: Option<PathBuf>) -> Place {
        let (path, file_system) = (self.directory.clone(), self.filesystem.clone());
        Place { path, file_system, device_stat, conditions: Vec::new() }
    }

    /// Returns the facts on the place of files with these preconditions.
    pub(super) fn place_of<'p>(&self, preconditions: impl Into<Option<&'p Preconditions>>) -> Place {
        let preconditions = preconditions.into();
        preconditions.map_or_else(|| self.place(None), |known| known.place(&self.directory, &self.filesystem))
    }

    /// Creates a new directory there.
    ///
    /// # Errors
    /// Fails with [`Failure::Path`].
    pub fn temp_directory(&self, context: &Context, label: &str) -> anyhow::Result<TempDirectory> {
        let made = context.cleanup.temp_directory(&self.directory, label);
        Ok(made.map_err(|error| self.refused("directory", &error))?)
    }

    /// Creates a new file there.
    ///
    /// # Errors
    /// Fails with [`Failure::Path`].
    pub(super) fn temp_file(&self, context: &Context, label: &str) -> anyhow::Result<TempFile> {
        let made = context.cleanup.temp_file(&self.directory, label);
        Ok(made.map_err(|error| self.refused("file", &error))?)
    }

    fn refused(&self, what: &str, error: &io::Error) -> Failure {
        Failure::Path(format!(
            "no {what} can be made in {}: {error}; name a directory that this user may write to",
            self.directory.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;
    use crate::progress::Progress;

    #[test]
    fn only_a_directory_will_do() {
        let context =
            Context::new(Target::Existing("/proc/self/exe".into()), Progress::Silent, Cleanup::default(), 1);
        let error = ScratchDir::find(&context, "writes").expect_err("a file");
        assert!(error.to_string().contains("measure writes"), "{error}");
        assert_eq!(error.downcast_ref::<Failure>().map(Failure::code), Some(3));
    }

    #[test]
    fn a_directory_that_takes_nothing_is_named() {
        let scratch = ScratchDir { directory: "/proc".into(), filesystem: "proc".to_owned() };
        let target = Target::Directory("/proc".into());
        let context = Context::new(target, Progress::Silent, Cleanup::default(), 1);
        let error = scratch.temp_directory(&context, "x").expect_err("no directory can be made there");
        assert!(error.to_string().contains("/proc"), "{error}");
        assert_eq!(error.downcast_ref::<Failure>().map(Failure::code), Some(3));
    }
}
