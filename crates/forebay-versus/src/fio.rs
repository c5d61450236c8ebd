//! fio as an external row: the field's yardstick for a device's rate.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use forebay_measure::experiment::Outcome;
use forebay_measure::options::Values;
use serde_json::Value;

/// Returns whether the rows of fio can run, if any is chosen.
pub(crate) fn is_available(options: &Values) -> bool {
    let is_chosen = options.rows.is_empty() || options.rows.iter().any(|row| row.starts_with("fio"));
    let is_here =
        || Command::new("fio").arg("--version").output().is_ok_and(|output| output.status.success());
    let is_available = is_chosen && is_here();
    if is_chosen && !is_available {
        eprintln!("fio is not installed: its rows are left out");
    }
    is_available
}

/// The answer of one job.
#[derive(Debug)]
pub(crate) struct Answer(Value);

/// Runs one fio job that reads `path`. With `hugepages` its allocator requests transparent ones for its buffers (glibc's
/// own switch, 2.35 or later).
///
/// # Errors
/// fio's own message.
pub(crate) fn run(path: &Path, arguments: &[String], hugepages: bool) -> Result<Answer> {
    let mut command = Command::new("fio");
    if hugepages {
        command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    }
    let end_with_parent = || {
        let signal = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(signal).map_err(std::io::Error::from)
    };
    // SAFETY: between fork and exec the closure makes one system call; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(end_with_parent) };
    let output = command
        .args(["--name=versus", "--readonly", "--thread", "--direct=1", "--output-format=json"])
        .args(["--group_reporting", "--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1"])
        .arg(format!("--filename={}", path.display()))
        .args(arguments)
        .output()
        .context("running fio")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr).trim());
    // fio may print notes before the JSON.
    let json = text.find('{').map_or("", |start| &text[start..]);
    let answer: Value = serde_json::from_str(json).context("reading fio's answer")?;
    Ok(Answer(answer["jobs"][0].clone()))
}

impl Answer {
    /// Returns a number at a path such as `/read/iops`.
    pub(crate) fn number(&self, pointer: &str) -> f64 {
        self.0.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN)
    }

    /// Returns the CPU time that the job used, in seconds.
    pub(crate) fn cpu_s(&self) -> f64 {
        let percent = self.number("/usr_cpu") + self.number("/sys_cpu");
        percent / 100.0 * self.number("/job_runtime") / 1e3
    }

    /// Returns the outcome of a job of random reads.
    pub(crate) fn random(&self) -> Outcome {
        let ios = self.number("/read/total_ios");
        let mut outcome = Outcome::lasting(self.number("/job_runtime") / 1e3);
        outcome
            .figures
            .set("iops", self.number("/read/iops"))
            .set("ios", ios)
            .set("cpu_us_per_io", self.cpu_s() * 1e6 / ios)
            .set("context_switches_per_io", self.number("/ctx") / ios)
            .set("p50_us", self.number("/read/lat_ns/percentile/50.000000") / 1e3)
            .set("p99_us", self.number("/read/lat_ns/percentile/99.000000") / 1e3);
        outcome
    }
}
