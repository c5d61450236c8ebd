//! A test's own program as a second process, to be killed.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::process::{Child, Command, Stdio};

use crate::children::end_with_parent;

/// Starts this program's ignored test `name` with these variables. Its standard output is piped to the caller, and it ends with the
/// thread that calls this.
///
/// # Errors
/// The program's path is unknown, or the process cannot be started.
pub fn start<V: AsRef<OsStr>>(name: &str, variables: &[(&str, V)]) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args([name, "--exact", "--ignored", "--nocapture"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    end_with_parent(&mut command).spawn()
}

/// Writes one line to standard output in one call: a kill leaves none of it or all.
///
/// # Errors
/// The reader is gone.
pub fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())?;
    out.flush()
}
