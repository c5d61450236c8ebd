//! Servers of etcd's kind. The example `compare` of forebay-etcd-rulers starts them, and has their client.

use std::process::{Command, Stdio};

use super::OURS;
use crate::prelude::*;

/// Measures puts of values of `record_bytes` from 100 clients to one member.
pub(super) fn puts(work: &Work) -> Result<Outcome> {
    let result = work.path.join("result.json");
    let server = if work.row == OURS { "forebay-etcd" } else { "etcd" };
    let (seconds, bytes) = (work.seconds.to_string(), work.record_bytes.to_string());
    let output = Command::new(&work.etcd_client)
        .args(["--rows", "puts-100", "--nodes", "1", "--repeats", "1", "--server", server])
        .args(["--seconds", &*seconds, "--value-bytes", &*bytes])
        .arg("--etcd")
        .arg(&work.etcd)
        .arg("--own")
        .arg(&work.own_etcd)
        .arg("--json")
        .arg(&result)
        // The directories of the servers.
        .env("TMPDIR", &work.path)
        // The point is recorded, not the sample.
        .env_remove("FOREBAY_BENCH_ROWS")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {}", work.etcd_client.display()))?;
    ensure!(output.status.success(), "{server}: {}", String::from_utf8_lossy(&output.stderr).trim());
    let samples: Value = serde_json::from_slice(&std::fs::read(result)?)?;
    let per_s = samples[0]["figures"]["per_s"].as_f64();
    Ok(Outcome::lasting(work.seconds).figure("iops", per_s.context("a sample without a figure")?))
}
