//! Every sample runs in a process of its own: no runtime leaves threads, rings or memory behind for the next.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::cache::CacheJob;
use crate::kv::KvJob;
use crate::nop::NopJob;
use crate::random::RandomJob;
use crate::ranges::RangesJob;
use crate::sample::Sample;
use crate::scan::ScanJob;
use crate::wal::WalJob;
use crate::{cache, interrupt, kv, nop, peers, ranges, scan, wal};

/// The measurement of one child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Random reads at one depth.
    Random(RandomJob),
    /// One pass over the file.
    Scan(ScanJob),
    /// One batch of ranges.
    Ranges(RangesJob),
    /// Operations that do nothing.
    Nop(NopJob),
    /// Appends to a log.
    Wal(WalJob),
    /// Gets, puts or a load of a store.
    Kv(KvJob),
    /// Cached reads.
    Cache(CacheJob),
}

/// Runs `job` in a new process of this program and returns its sample. With `syscall_event` its system calls
/// are counted.
///
/// # Errors
/// The child's own message when it failed; "interrupted" after Ctrl-C.
pub(crate) fn measure(job: &Job, syscall_event: Option<u64>) -> Result<Sample> {
    interrupt::check()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg("sample").arg(serde_json::to_string(job)?);
    if let Some(event) = syscall_event {
        command.arg("--syscall-event").arg(event.to_string());
    }
    let output = command.stdin(Stdio::null()).output().context("starting a child process")?;
    interrupt::check()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        if text.trim().is_empty() {
            bail!("the child ended without a word ({}); a kill may be the memory limit", output.status);
        }
        bail!("{}", text.trim().trim_start_matches("forebay-versus: "));
    }
    serde_json::from_slice(&output.stdout).context("reading a child's sample")
}

/// Runs the child's side: measures and prints the sample.
///
/// # Errors
/// The error of the row.
pub(crate) fn run(job: &str, syscall_event: Option<u64>) -> Result<()> {
    // SAFETY: a plain request to the kernel: end with the parent, so that no child continues to measure after
    // a kill.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if let Some(event) = syscall_event {
        crate::syscalls::start_counting(event)?;
    }
    let sample = match serde_json::from_str(job).context("reading the job")? {
        Job::Random(job) => peers::random(&job),
        Job::Scan(job) => scan::measure(&job),
        Job::Ranges(job) => ranges::measure(&job),
        Job::Nop(job) => nop::measure(&job),
        Job::Wal(job) => wal::measure(&job),
        Job::Kv(job) => kv::measure(&job),
        Job::Cache(job) => cache::measure(&job),
    }?;
    println!("{}", serde_json::to_string(&sample)?);
    Ok(())
}
