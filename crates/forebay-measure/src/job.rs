//! The work of one sample: the JSON text that is passed to the fresh child process in which every sample runs.

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::pattern::Pattern;

/// The input of the hidden subcommand that runs one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The experiment, which can make a sample; empty for a child that only
    /// shows that it can be run.
    pub experiment: String,
    /// The file or directory.
    pub path: PathBuf,
    /// The name of the row.
    #[serde(default)]
    pub row: String,
    /// The seed of everything random in the sample.
    #[serde(default)]
    pub seed: u64,
    /// The seconds after which the sample starts no operation.
    #[serde(default)]
    pub seconds: f64,
    /// The seed of the file's contents, when this program wrote them.
    pub pattern_seed: Option<u64>,
    /// The block device's `stat` file.
    pub device_stat: Option<PathBuf>,
    /// The namespace's character device, for rows that send commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<PathBuf>,
    /// The maximum duration of the sample in seconds; a child that runs a minute longer hangs.
    pub seconds_max: f64,
    /// The work to be done, in the experiment's own format.
    pub work: serde_json::Value,
}

impl Job {
    /// Returns a sample of `experiment` with the file or directory at `path`, for `seconds_max` at most.
    ///
    /// # Errors
    /// Fails when `work` has no JSON.
    pub fn new(
        experiment: &str,
        path: impl Into<PathBuf>,
        work: &impl Serialize,
        seconds_max: f64,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            experiment: experiment.to_owned(),
            path: path.into(),
            row: String::new(),
            seed: 0,
            seconds: seconds_max,
            pattern_seed: None,
            device_stat: None,
            namespace: None,
            seconds_max,
            work: serde_json::to_value(work)?,
        })
    }

    /// Returns the work of the experiment.
    ///
    /// # Errors
    /// Fails when it belongs to another experiment.
    pub fn work<Work: DeserializeOwned>(&self) -> anyhow::Result<Work> {
        Ok(Work::deserialize(&self.work)?)
    }

    pub(super) fn pattern(&self) -> Option<Pattern> {
        self.pattern_seed.map(Pattern::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_survives_its_text() {
        let mut job =
            Job::new("random", "/data/a file", &serde_json::json!({ "depth": 32 }), 0.1).expect("plain");
        (job.pattern_seed, job.seed) = (Some(u64::MAX), u64::MAX);
        let text = serde_json::to_string(&job).expect("plain");
        let back: Job = serde_json::from_str(&text).expect("its own text");
        assert_eq!(back, job);
    }
}
