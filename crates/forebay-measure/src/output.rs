//! Standard output and standard error, either of which may be closed.

use std::io::{self, Write};

use forebay_report::units::escaped;

/// The control characters of texts; other control characters are part of names, and would reach the terminal.
const OF_TEXTS: [char; 2] = ['\n', '\t'];

/// Prints to standard output, control characters of names escaped. A closed pipe (`| head`) is not an error.
///
/// # Errors
/// Fails when standard output cannot be written for another reason.
pub fn print(text: &str) -> io::Result<()> {
    print_raw(&escaped(text, &OF_TEXTS))
}

/// Prints a text that controls the terminal, otherwise like [`print()`].
///
/// # Errors
/// As for [`print()`].
pub fn print_raw(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes to standard error, control characters of names escaped. A closed standard error, on which `eprintln!` panics, is
/// ignored: the work matters more than messages about it.
pub fn stderr_text(text: &str) {
    // No other place can report this.
    let _ = io::stderr().lock().write_all(escaped(text, &OF_TEXTS).as_bytes());
}

/// Writes a line to standard error as [`stderr_text`] does, with a newline at its end.
pub fn stderr_line(line: impl std::fmt::Display) {
    stderr_text(&format!("{line}\n"));
}
