//! fio as an external row: the field's yardstick for a device's rate.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::sample::Sample;

/// Returns whether fio is available. Installs it by apt if this process is root and apt exists. Reports its
/// actions on stderr.
pub(crate) fn available() -> bool {
    if is_here() {
        return true;
    }
    if !rustix::process::geteuid().is_root() || !Path::new("/usr/bin/apt-get").exists() {
        eprintln!(
            "fio is not installed and cannot be installed from here (needs root and apt): its rows are left out"
        );
        return false;
    }
    eprintln!("installing fio with apt-get");
    for arguments in [&["update", "-q"][..], &["install", "-q", "-y", "--no-install-recommends", "fio"]] {
        let output =
            Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive").output();
        match output {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                eprintln!("apt-get {}: {}", arguments[0], String::from_utf8_lossy(&output.stderr).trim())
            }
            Err(error) => eprintln!("apt-get: {error}"),
        }
    }
    if !is_here() {
        eprintln!("fio could not be installed: its rows are left out");
    }
    is_here()
}

fn is_here() -> bool {
    Command::new("fio").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The memory of fio's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffers {
    /// fio's default.
    Ordinary,
    /// Its allocator requests transparent hugepages (glibc's own switch, 2.35 or later).
    Hugepages,
}

/// Runs one fio job that reads `path` and returns the `jobs[0]` part of its JSON output.
///
/// # Errors
/// fio's own message.
pub(crate) fn run(path: &Path, arguments: &[String], buffers: Buffers) -> Result<Value> {
    let mut command = Command::new("fio");
    if buffers == Buffers::Hugepages {
        command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    }
    let output = command
        .args([
            "--name=versus",
            "--readonly",
            "--thread",
            "--direct=1",
            "--output-format=json",
            "--group_reporting",
        ])
        .args(["--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1"])
        .arg(format!("--filename={}", path.display()))
        .args(arguments)
        .output()
        .context("running fio")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr).trim());
    // fio may print notes before the JSON.
    let json = text.find('{').map_or("", |start| &text[start..]);
    let answer: Value = serde_json::from_str(json).context("reading fio's answer")?;
    Ok(answer["jobs"][0].clone())
}

/// Returns the CPU time that a job of fio used, in seconds.
pub(crate) fn cpu_s(job: &Value) -> f64 {
    let share =
        (job["usr_cpu"].as_f64().unwrap_or(f64::NAN) + job["sys_cpu"].as_f64().unwrap_or(f64::NAN)) / 100.0;
    share * job["job_runtime"].as_f64().unwrap_or(f64::NAN) / 1e3
}

/// Returns the sample of a random-read job.
pub(crate) fn random_sample(job: &Value) -> Sample {
    let read = &job["read"];
    let ios = read["total_ios"].as_f64().unwrap_or(f64::NAN);
    let mut sample = Sample::default();
    sample.set("iops", read["iops"].as_f64().unwrap_or(f64::NAN));
    sample.set("ios", ios);
    sample.set("cpu_us_per_io", cpu_s(job) * 1e6 / ios);
    sample.set("context_switches_per_io", job["ctx"].as_f64().unwrap_or(f64::NAN) / ios);
    for (metric, key) in [("p50_us", "50.000000"), ("p99_us", "99.000000")] {
        sample.set(metric, read["lat_ns"]["percentile"][key].as_f64().unwrap_or(f64::NAN) / 1e3);
    }
    sample
}
