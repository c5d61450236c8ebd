//! Files for results, which are replaced only when this program wrote them.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Display, Path, PathBuf};

use serde_json::{Value, json};

use forebay_measure::cleanup::Cleanup;
use forebay_report::failure::Failure;
use forebay_report::result::SCHEMA;

#[cfg(feature = "wait")]
pub(crate) use forebay_measure::output::stderr_text;
pub(crate) use forebay_measure::output::{print, print_raw, stderr_line};
pub(crate) use forebay_report::page::PAGE_MARK;

/// Formats bytes as two hexadecimal digits each.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |digit: u8| char::from_digit(u32::from(digit), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The option `--json`, the same for every command that has JSON.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct JsonArgs {
    /// Print JSON on standard output instead of text; --json=FILE writes it to FILE, beside the text.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = STDOUT)]
    json: Option<PathBuf>,
}

impl JsonArgs {
    /// Checks the destination: a minute of measuring must not end in "permission denied".
    ///
    /// # Errors
    /// As for [`Destination::new`].
    pub(crate) fn destination(&self) -> Result<Json, Failure> {
        Ok(Json(self.json.as_deref().map(|path| Destination::new(path, JSON_MARK)).transpose()?))
    }

    /// Returns whether standard output has JSON and no text.
    pub(crate) fn is_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new(STDOUT))
    }

    /// Checks the file for JSON in lines, if any: [`create`](Destination::create) makes it, or empties an existing file with
    /// `mark`. Without a mark the file must be new.
    ///
    /// # Errors
    /// As for [`Destination::new`].
    pub(crate) fn lines(&self, mark: Option<&str>) -> Result<Option<Destination>, Failure> {
        let Some(path) = self.json.as_deref().filter(|_| !self.is_stdout()) else { return Ok(None) };
        if mark.is_none() && path.symlink_metadata().is_ok() {
            return Err(Failure::Path(format!("{} exists: name a new file or remove it", path.display())));
        }
        Destination::named(path, mark.unwrap_or_default()).map(Some)
    }
}

/// The checked destination of a command's JSON, if it has one.
#[derive(Debug)]
pub(crate) struct Json(Option<Destination>);

impl Json {
    /// Writes the JSON where it is wanted. Returns whether the command also prints its text.
    ///
    /// # Errors
    /// Fails with the error of `json`, or when the destination cannot be written.
    pub(crate) fn write(
        &self,
        json: impl FnOnce() -> serde_json::Result<String>,
        cleanup: &Cleanup,
    ) -> anyhow::Result<bool> {
        let Some(destination) = &self.0 else { return Ok(true) };
        destination.write(&json()?, cleanup)?;
        Ok(!destination.is_stdout())
    }

    /// Writes the JSON, and prints the text where standard output has no JSON. A destination that became full, or disappeared, does
    /// not affect the text.
    ///
    /// # Errors
    /// As for [`write`](Self::write), or standard output cannot be written.
    pub(crate) fn write_beside(
        &self,
        json: impl FnOnce() -> serde_json::Result<String>,
        text: impl FnOnce() -> String,
        cleanup: &Cleanup,
    ) -> anyhow::Result<()> {
        let written = self.write(json, cleanup);
        if *written.as_ref().unwrap_or(&true) {
            print_fitted(&text())?;
        }
        written.map(drop)
    }

    /// Returns the destination that is a file.
    pub(crate) fn file(&self) -> Option<&Destination> {
        self.0.as_ref().filter(|destination| !destination.is_stdout())
    }

    /// Fails when the page of the same command has the same destination.
    ///
    /// # Errors
    /// [`Failure::Usage`].
    pub(crate) fn beside(&self, page: &Destination) -> Result<(), Failure> {
        match &self.0 {
            Some(json) if json.is_at(page) => {
                let name = page.name();
                Err(Failure::Usage(format!("the JSON and the page would both go to {name}: name two files")))
            }
            _ => Ok(()),
        }
    }

    /// Fails when the JSON would replace a file that the same command reads.
    ///
    /// # Errors
    /// [`Failure::Usage`].
    pub(crate) fn replaces_none_of<'p>(
        &self,
        inputs: impl IntoIterator<Item = &'p PathBuf>,
    ) -> Result<(), Failure> {
        let Some(own) = self.file().and_then(|file| fs::canonicalize(&file.path).ok()) else { return Ok(()) };
        let is_own = |input: &&PathBuf| fs::canonicalize(input).is_ok_and(|input| input == own);
        inputs.into_iter().find(is_own).map_or(Ok(()), |input| {
            let name = input.display();
            Err(Failure::Usage(format!("the JSON would replace {name}, which is read: name another file")))
        })
    }
}

/// Returns the JSON document of a command that is not about measurements, with `content` under `name`.
///
/// # Errors
/// A number is not finite.
pub(crate) fn document(name: &str, content: Value) -> serde_json::Result<String> {
    let document = json!({ "schema": SCHEMA, "forebay": env!("CARGO_PKG_VERSION"), name: content });
    serde_json::to_string_pretty(&document).map(|text| text + "\n")
}

/// Prints a text whose lines a terminal may be too narrow for: they are broken between words then.
///
/// # Errors
/// As for [`print()`].
pub(crate) fn print_fitted(text: &str) -> io::Result<()> {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => print(&fitted(text, size.ws_col.into())),
        _ => print(text),
    }
}

/// Breaks lines that are wider than the columns between words; the rest of a line has its indentation.
fn fitted(text: &str, columns: usize) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let mut rest = line.to_owned();
        while rest.chars().count() > columns {
            let blanks =
                rest.char_indices().take(columns + 1).filter(|(at, letter)| *letter == ' ' && *at > indent);
            let Some((end, _)) = blanks.last() else { break };
            lines.push(rest[..end].trim_end().to_owned());
            rest = format!("{:indent$}{}", "", rest[end..].trim_start());
        }
        lines.push(rest);
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Formats a count with its noun: `1 record`, `2 records`, `3 entries`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    match (count, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
        (_, None) => format!("{count} {noun}s"),
    }
}

/// The path that stands for standard output.
const STDOUT: &str = "-";
/// Mark by which it recognizes its own calibrations.
pub(crate) const CALIBRATION_MARK: &str = "forebay_calibration =";
/// Mark by which it recognizes its own results, in two lines: the name of the program alone is also that of a dependency.
const JSON_MARK: &str = "\"forebay\":\n\"schema\":";
/// Bytes at each end of an existing file that are searched for its mark.
const MARK_WITHIN_BYTES: u64 = 1024;

/// A checked destination of a result: standard output or a file.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
}

impl Destination {
    /// Returns the destination `path`, which is `-` (standard output), a new file, or one with `mark`, which
    /// this program wrote. The directory takes new files: that is tried.
    ///
    /// # Errors
    /// [`Failure::Path`] when the directory is missing or takes none, or the file is not from this program.
    pub(crate) fn new(path: &Path, mark: &str) -> Result<Self, Failure> {
        let destination = Self::named(path, mark)?;
        if !destination.is_stdout() {
            let tried = Cleanup::default().temp_file(destination.directory(), "result");
            tried.map_err(|error| destination.failed(&error))?;
        }
        Ok(destination)
    }

    /// Returns the same without an attempt.
    fn named(path: &Path, mark: &str) -> Result<Self, Failure> {
        let destination = Self { path: path.to_owned() };
        let (name, directory) = (path.display(), destination.directory());
        // `Path` has no trailing slash.
        let written = path.as_os_str().as_encoded_bytes();
        let fault = if destination.is_stdout() {
            return Ok(destination);
        } else if path.file_name().is_none() || path.is_dir() {
            format!("{name} is a directory: name a file to write")
        } else if written.ends_with(b"/") || written.ends_with(b"/.") {
            format!("{name} names a directory: name a file to write")
        } else if !directory.is_dir() {
            let directory = directory.display();
            format!("the directory {directory} does not exist: create it or name another file")
        } else {
            match path.symlink_metadata() {
                // A result in its place would replace a link, and not what it leads to.
                Ok(found) if !found.is_file() => format!(
                    "{name} is not a regular file but a link, a device, a pipe or a socket: name another file, or \
                     `{STDOUT}` for standard output"
                ),
                Ok(_) if has_mark(path, mark) => return Ok(destination),
                Ok(_) => {
                    let remedy = "name another file or remove it";
                    format!("{name} exists and was not written by this program: {remedy}")
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(destination),
                // Such as a name that is too long.
                Err(error) => return Err(destination.failed(&error)),
            }
        };
        Err(Failure::Path(fault))
    }

    /// Returns whether this is standard output, which then has no text.
    pub(crate) fn is_stdout(&self) -> bool {
        self.path == Path::new(STDOUT)
    }

    /// Returns whether both are one place, by whatever path.
    pub(crate) fn is_at(&self, other: &Self) -> bool {
        let place = |one: &Self| {
            (fs::canonicalize(one.directory()).ok(), one.path.file_name().map(ToOwned::to_owned))
        };
        self.is_stdout() == other.is_stdout() && place(self) == place(other)
    }

    fn directory(&self) -> &Path {
        self.path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::Path(format!("{} cannot be written: {error}", self.name()))
    }

    fn name(&self) -> Display<'_> {
        if self.is_stdout() { Path::new("standard output") } else { &self.path }.display()
    }

    /// Opens an empty file for lines; called when there is a line for it.
    ///
    /// # Errors
    /// [`Failure::Path`] when the file cannot be created.
    pub(crate) fn create(&self) -> Result<File, Failure> {
        File::create(&self.path).map_err(|error| self.failed(&error))
    }

    /// Writes the text. A file is first written as a temp file in the same directory, so that a full disk
    /// leaves the old file unchanged.
    ///
    /// # Errors
    /// [`Failure::Path`] when the directory cannot be written or is full.
    pub(crate) fn write(&self, text: &str, cleanup: &Cleanup) -> Result<(), Failure> {
        let write = || {
            if self.is_stdout() {
                // A document escapes in its own way.
                return print_raw(text);
            }
            let temp = cleanup.temp_file(self.directory(), "result")?;
            let mut file: &File = temp.file();
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            set_readable(file)?;
            fs::rename(temp.path(), &self.path)
        };
        write().map_err(|error| self.failed(&error))
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

/// Searches both ends for each line of the mark: the names of a document may be sorted, and the mark then follows its content.
fn has_mark(path: &Path, mark: &str) -> bool {
    let search = || {
        let (mut file, mut ends) = (File::open(path)?, Vec::new());
        (&file).take(MARK_WITHIN_BYTES).read_to_end(&mut ends)?;
        let from = file.metadata()?.len().saturating_sub(MARK_WITHIN_BYTES);
        file.seek(SeekFrom::Start(from))?;
        file.take(MARK_WITHIN_BYTES).read_to_end(&mut ends)?;
        let ends = String::from_utf8_lossy(&ends);
        Ok::<_, io::Error>(mark.lines().all(|line| ends.contains(line)))
    };
    search().unwrap_or(false)
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
        let first = Destination::new(&path, PAGE_MARK).and_then(|page| page.write(&text, &cleanup));
        let again = Destination::new(&path, PAGE_MARK).and_then(|page| page.write(&text, &cleanup));
        fs::write(&path, "a diary").expect("it is our directory");
        let refused = Destination::new(&path, PAGE_MARK);
        let left = fs::read_dir(&directory).expect("readable").count();
        fs::remove_dir_all(&directory).expect("it is our own");
        assert_eq!(first, Ok(()));
        assert_eq!(again, Ok(()));
        assert!(refused.is_err_and(|error| error.to_string().contains("not written by this program")));
        assert_eq!(left, 1);
    }

    /// The names of a JSON document may be sorted, so that its mark is behind all its content.
    #[test]
    fn a_mark_at_the_end_of_a_long_file_is_found() {
        let cleanup = Cleanup::default();
        let directory = cleanup.temp_directory(&std::env::temp_dir(), "mark").expect("writable");
        let path = directory.path().join("diff.json");
        fs::write(&path, format!("{{\"diff\":\"{}\",\"forebay\":1,\"schema\":2}}", "x".repeat(5000)))
            .expect("ours");
        let json = Json(Some(Destination::new(&path, JSON_MARK).expect("the mark is at the end")));
        assert!(json.write(|| Ok("{}".to_owned()), &cleanup).is_ok_and(|text_too| text_too));
        assert_eq!(fs::read_to_string(&path).expect("it was written"), "{}");
        assert!(Destination::new(&path, JSON_MARK).is_err());
        assert!(json.beside(&Destination { path }).is_err());
    }

    /// Regression: `--json=package.json` replaced a list of dependencies in which the program was one.
    #[test]
    fn a_file_that_names_the_program_is_not_one_of_its_own() {
        let cleanup = Cleanup::default();
        let directory = cleanup.temp_directory(&std::env::temp_dir(), "names").expect("writable");
        let path = directory.path().join("package.json");
        fs::write(&path, "{\"dependencies\": {\"forebay\": \"0.1\"}}").expect("ours");
        assert!(Destination::new(&path, JSON_MARK).is_err());
    }

    /// Regression: a summary was 100 columns wide on every terminal.
    #[test]
    fn lines_fit_the_terminal() {
        let text = "Yes       Is the device saturated?\n          `direct` gets 80,000 IOPS there\n\na/path/of/no/blanks\n";
        assert_eq!(fitted(text, 100), text);
        assert_eq!(
            fitted(text, 24),
            "Yes       Is the device\nsaturated?\n          `direct` gets\n          80,000 IOPS\n          there\n\n\
             a/path/of/no/blanks\n"
        );
        for columns in 0..40 {
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&fitted(text, columns)), words(text), "{columns}");
        }
    }

    /// Regression: a directory that takes no files was noticed after the measurement.
    #[test]
    fn a_missing_directory_or_one_that_takes_nothing_fails_before_measuring() {
        let path = std::env::temp_dir().join("forebay-no-such-directory/page.html");
        assert!(Destination::new(&path, PAGE_MARK).is_err());
        let error = Destination::new(Path::new("/proc/page.html"), PAGE_MARK).expect_err("it takes no files");
        assert!(error.to_string().contains("/proc/page.html cannot be written"), "{error}");
    }
}
