//! `forebay wait`: the time that a program stands still for I/O. The crate `forebay-wait` measures it,
//! with the feature `wait`.

#[cfg(feature = "wait")]
mod html;
#[cfg(feature = "wait")]
mod known;
#[cfg(feature = "wait")]
mod measure;
#[cfg(feature = "wait")]
mod signals;
#[cfg(feature = "wait")]
mod text;
#[cfg(any(test, not(feature = "wait")))]
mod without;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::output::JsonArgs;

/// Options of `wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Observe a running process, and the processes that it starts, instead of starting a command.
    #[arg(long, value_name = "PID", requires = "seconds", conflicts_with = "command")]
    pub(crate) pid: Option<u32>,
    /// Seconds to observe it.
    #[arg(long, value_name = "SECONDS", requires = "pid", conflicts_with = "command", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
    /// The file for a self-contained HTML page; `-` prints it instead of the text.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// A result of `measure saturate --json`, or of `report --json`, from the device that the command uses: the
    /// advice then includes the gain from several reads at once.
    #[arg(long, value_name = "FILE.json")]
    pub(crate) report: Option<PathBuf>,
    /// The most files in the text and on the page, the longest wait first.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub(crate) limit: usize,
    /// The command and its arguments, behind `--`.
    #[arg(last = true, required_unless_present = "pid")]
    pub(crate) command: Vec<OsString>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        Ok(_) => Err("more than 0 and at most 86400 (a day)".to_owned()),
        Err(_) => Err("a number of seconds, such as 10 or 0.5".to_owned()),
    }
}

#[cfg(feature = "wait")]
pub(crate) use measure::{examine, run};
#[cfg(not(feature = "wait"))]
pub(crate) use without::{examine, run};
