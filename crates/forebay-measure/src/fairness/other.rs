//! Hogs in a process of their own, for kernel mechanisms that work only between processes.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, ensure};

use super::super::CHILD_SUBCOMMAND;
use super::super::job::Job;
use super::job::{FairRow, FairWork, FairnessResult};

/// The process; it is killed when dropped.
pub(super) struct OtherHogs {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl OtherHogs {
    /// Starts the process, and returns when its hogs begin.
    ///
    /// # Errors
    /// Fails when it cannot be started, or may not enter its group; it has reported the reason on
    /// standard error.
    pub(super) fn start(path: &Path, work: &FairWork) -> anyhow::Result<Self> {
        let work = FairWork { row: FairRow::HogsAlone, ..work.clone() };
        let job = Job::new(super::KIND.name, path, &work, work.seconds * 2.0)?;
        let program = std::env::current_exe().context("the path of this program's file is not known")?;
        let mut child = Command::new(program)
            .args([CHILD_SUBCOMMAND, &serde_json::to_string(&job)?])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("the process of the hogs could not be started")?;
        let out = BufReader::new(child.stdout.take().context("the hogs' process has no output")?);
        let mut others = Self { child, out };
        let mut line = String::new();
        others.out.read_line(&mut line)?;
        ensure!(line == "begun\n", "the hogs could not begin in their cgroup");
        Ok(others)
    }

    /// Waits for the process, and returns the bytes that the hogs moved in their time.
    ///
    /// # Errors
    /// Fails when a read or a write failed.
    pub(super) fn finish(mut self) -> anyhow::Result<u64> {
        let mut text = String::new();
        self.out.read_to_string(&mut text)?;
        ensure!(self.child.wait()?.success(), "the hogs failed");
        let result: FairnessResult =
            serde_json::from_str(&text).context("the result of the hogs' process cannot be read")?;
        Ok(result.hog_bytes)
    }
}

impl Drop for OtherHogs {
    fn drop(&mut self) {
        // The process has ended, or its result is no longer needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
