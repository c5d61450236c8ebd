//! Files for results, which are replaced only when this program wrote them.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use forebay_measure::cleanup::Cleanup;
use forebay_report::failure::Failure;

#[cfg(feature = "wait")]
pub(crate) use forebay_measure::output::stderr_text;
pub(crate) use forebay_measure::output::{print, stderr_line};
use forebay_report::page::PAGE_MARK;

/// A file for a result.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    directory: PathBuf,
}

/// Mark by which it recognizes its own results.
const JSON_MARK: &str = "\"forebay\":";
/// Mark by which it recognizes its own calibrations.
const CALIBRATION_MARK: &str = "forebay_calibration =";
/// Bytes of an existing file that are searched for its mark.
const MARK_WITHIN_BYTES: u64 = 1024;

impl Destination {
    /// Returns the destination of a page: a new file, or a page that this program wrote.
    ///
    /// # Errors
    /// [`Failure::Path`] when the directory is missing or the file is not from this program.
    pub(crate) fn page(path: &Path) -> Result<Self, Failure> {
        Self::new(path, PAGE_MARK)
    }

    /// Returns the destination of a JSON result: a new file, or a result that this program wrote.
    ///
    /// # Errors
    /// As for [`Destination::page`].
    pub(crate) fn json(path: &Path) -> Result<Self, Failure> {
        Self::new(path, JSON_MARK)
    }

    /// Returns the destination of a calibration: a new file, or a calibration that this program wrote.
    ///
    /// # Errors
    /// As for [`Destination::page`].
    pub(crate) fn calibration(path: &Path) -> Result<Self, Failure> {
        Self::new(path, CALIBRATION_MARK)
    }

    fn new(path: &Path, mark: &str) -> Result<Self, Failure> {
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        if path.file_name().is_none() || path.is_dir() {
            return Err(Failure::Path(format!("{} is a directory: name a file to write", path.display())));
        }
        if !directory.is_dir() {
            return Err(Failure::Path(format!(
                "the directory {} does not exist: create it or name another file",
                directory.display()
            )));
        }
        if path.symlink_metadata().is_ok() && !has_mark(path, mark) {
            return Err(Failure::Path(format!(
                "{} exists and was not written by this program: name another file or remove it",
                path.display()
            )));
        }
        Ok(Self { path: path.to_owned(), directory })
    }

    /// Writes the text, first into a temp file in the same directory, so that a full disk leaves the
    /// old file unchanged.
    ///
    /// # Errors
    /// [`Failure::Path`] when the directory cannot be written or is full.
    pub(crate) fn write(&self, text: &str, cleanup: &Cleanup) -> Result<(), Failure> {
        let failed =
            |error: io::Error| Failure::Path(format!("{} cannot be written: {error}", self.path.display()));
        let temp = cleanup.temp_file(&self.directory, "result").map_err(failed)?;
        let mut file: &File = temp.file();
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        set_readable(file).map_err(failed)?;
        fs::rename(temp.path(), &self.path).map_err(failed)
    }
}

/// Makes a result as readable as any file that its user creates; temp files are private.
fn set_readable(file: &File) -> io::Result<()> {
    use rustix::fs::Mode;
    let mask = rustix::process::umask(Mode::empty());
    rustix::process::umask(mask);
    rustix::fs::fchmod(file, Mode::from_raw_mode(0o666) & !mask)?;
    Ok(())
}

fn has_mark(path: &Path, mark: &str) -> bool {
    let mut start = Vec::new();
    let regular = path.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
    regular
        && File::open(path).and_then(|file| file.take(MARK_WITHIN_BYTES).read_to_end(&mut start)).is_ok()
        && String::from_utf8_lossy(&start).contains(mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_of_the_programs_own_is_replaced() {
        let cleanup = Cleanup::default();
        let directory = std::env::temp_dir().join(format!("forebay-output-{}", std::process::id()));
        fs::create_dir(&directory).expect("the temp directory is writable");
        let path = directory.join("page.html");
        let text = format!("<!DOCTYPE html>{PAGE_MARK}");
        let first = Destination::page(&path).and_then(|page| page.write(&text, &cleanup));
        let again = Destination::page(&path).and_then(|page| page.write(&text, &cleanup));
        fs::write(&path, "a diary").expect("it is our directory");
        let refused = Destination::page(&path);
        let left = fs::read_dir(&directory).expect("readable").count();
        fs::remove_dir_all(&directory).expect("it is our own");
        assert_eq!(first, Ok(()));
        assert_eq!(again, Ok(()));
        assert!(refused.is_err_and(|error| error.to_string().contains("not written by this program")));
        assert_eq!(left, 1);
    }

    #[test]
    fn a_missing_directory_fails_before_measuring() {
        let path = std::env::temp_dir().join("forebay-no-such-directory/page.html");
        assert!(Destination::page(&path).is_err());
    }
}
