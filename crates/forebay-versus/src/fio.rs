//! fio as an external row: the field's yardstick for a device's rate.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::prelude::*;

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

/// Measures random reads. With `batched` it submits and reaps a quarter of the depth together.
pub(crate) fn random(reads: &Work, batched: bool) -> Result<Outcome> {
    let (depth, batch) = (reads.depth, (reads.depth / 4).max(1));
    let mut arguments = vec![
        "--rw=randread".to_owned(),
        format!("--bs={BLOCK_BYTES}"),
        format!("--iodepth={depth}"),
        "--norandommap".to_owned(),
        format!("--randseed={}", reads.seed >> 22),
        "--time_based".to_owned(),
        "--lat_percentiles=1".to_owned(),
        "--clat_percentiles=0".to_owned(),
        format!("--runtime={}ms", (reads.seconds * 1e3).round()),
        format!("--ramp_time={}ms", (reads.warm_up_seconds * 1e3).round()),
    ];
    if batched {
        arguments.push(format!("--iodepth_batch_submit={batch}"));
        arguments.push(format!("--iodepth_batch_complete_min={batch}"));
        arguments.push(format!("--iodepth_batch_complete_max={depth}"));
    }
    let job = run(reads, &arguments, false)?;
    let ios = job("/read/total_ios");
    Ok(Outcome::lasting(job("/job_runtime") / 1e3)
        .figure("iops", job("/read/iops"))
        .figure("ios", ios)
        .figure("cpu_us_per_io", cpu_s(&job) * 1e6 / ios)
        .figure("context_switches_per_io", job("/ctx") / ios)
        .figure("p50_us", job("/read/lat_ns/percentile/50.000000") / 1e3)
        .figure("p99_us", job("/read/lat_ns/percentile/99.000000") / 1e3))
}

/// Measures the scan, 512 KiB x 8.
pub(crate) fn scan(scan: &Work, hugepages: bool) -> Result<Outcome> {
    let depth = 8;
    let arguments =
        ["--rw=read".to_owned(), format!("--bs={BLOCK_LARGE_BYTES}"), format!("--iodepth={depth}")];
    let job = run(scan, &arguments, hugepages)?;
    Ok(Outcome::lasting(job("/job_runtime") / 1e3)
        .figure("mb_per_s", job("/read/bw_bytes") / 1e6)
        .figure("cpu_s_per_gb", cpu_s(&job) * 1e9 / scan.file_bytes as f64)
        .figure("buffers_peak_bytes", (depth * BLOCK_LARGE_BYTES) as f64))
}

/// Runs one fio job that reads the test file. With `hugepages` its allocator requests transparent huge pages for its buffers
/// (glibc's own switch, 2.35 or later). Returns a function from a path such as `/read/iops` to the job's number there.
fn run(work: &Work, arguments: &[String], hugepages: bool) -> Result<impl Fn(&str) -> f64> {
    let mut command = Command::new("fio");
    if hugepages {
        command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    }
    let end_with_parent = || {
        let signal = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(signal).map_err(std::io::Error::from)
    };
    // SAFETY: between fork and exec the closure makes one system call; it allocates nothing and acquires no lock.
    unsafe { command.pre_exec(end_with_parent) };
    let output = command
        .args(["--name=versus", "--readonly", "--thread", "--direct=1", "--output-format=json"])
        .args(["--group_reporting", "--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1"])
        .arg(format!("--filename={}", work.path.display()))
        .args(arguments)
        .output()
        .context("running fio")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr).trim());
    // fio may print notes before the JSON.
    let json = text.find('{').map_or("", |start| &text[start..]);
    let result: Value = serde_json::from_str(json).context("reading the output of fio")?;
    Ok(move |pointer: &str| {
        let value = result["jobs"][0].pointer(pointer).and_then(Value::as_f64);
        value.unwrap_or(f64::NAN)
    })
}

/// Returns the CPU time that a job used, in seconds.
fn cpu_s(job: impl Fn(&str) -> f64) -> f64 {
    (job("/usr_cpu") + job("/sys_cpu")) / 100.0 * job("/job_runtime") / 1e3
}
