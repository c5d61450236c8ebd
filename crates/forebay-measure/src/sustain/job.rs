//! The parameters of one sample of `measure sustain`, and its result.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::interleave::{Evidence, Way};

/// Bytes of one random read or write.
pub(super) const RANDOM_BYTES: u64 = 4096;
/// Bytes of one sequential write, and the number in flight.
pub(super) const SEQUENTIAL_BYTES: u64 = 512 << 10;
pub(super) const SEQUENTIAL_DEPTH: usize = 8;
/// Length of a bin in milliseconds.
pub(super) const BIN_MS: u64 = 100;
/// Length of a bin in seconds.
pub(super) const BIN_SECONDS: f64 = BIN_MS as f64 / 1000.0;

/// Length in milliseconds of a step; operations are counted in steps to find standstills.
pub(super) const STEP_MS: u64 = 10;

/// One run of one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SustainWork {
    pub(super) row: LoadRow,
    /// Size of the file, which has been written through.
    pub(super) file_bytes: u64,
    /// Queue depth of random operations; sequential writes have a depth of their own.
    pub(super) depth: usize,
    pub(super) idle_seconds: f64,
    pub(super) seconds: f64,
    /// Seed of the offsets and the contents.
    pub(super) seed: u64,
}

impl SustainWork {
    pub(super) fn block_bytes(&self) -> u64 {
        if self.row == LoadRow::SequentialWrite { SEQUENTIAL_BYTES } else { RANDOM_BYTES }
    }

    pub(super) fn depth(&self) -> usize {
        if self.row == LoadRow::SequentialWrite { SEQUENTIAL_DEPTH } else { self.depth }
    }
}

/// The loads, one row each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LoadRow {
    RandomRead,
    RandomWrite,
    SequentialWrite,
}

impl LoadRow {
    pub(super) const ALL: [Self; 3] = [Self::RandomRead, Self::RandomWrite, Self::SequentialWrite];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::RandomRead => "random-read",
            Self::RandomWrite => "random-write",
            Self::SequentialWrite => "sequential-write",
        }
    }

    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::RandomRead => "reads of 4 KiB anywhere in the file, Forebay on one shard, O_DIRECT",
            Self::RandomWrite => {
                "writes of 4 KiB anywhere in the file, Forebay on one shard, O_DIRECT, no sync before the end"
            }
            Self::SequentialWrite => {
                "writes of 8 x 512 KiB from the beginning to the end and again, Forebay on one shard, O_DIRECT, no sync \
                 before the end"
            }
        }
    }
}

/// Completed operations over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Ended {
    /// Bytes of the operations that completed in each tenth of a second.
    pub(super) bins: Vec<u64>,
    /// Number of operations that completed in each [`STEP_MS`].
    pub(super) steps: Vec<u32>,
}

impl Ended {
    /// Makes room for `seconds` seconds.
    pub(super) fn new(seconds: f64) -> Self {
        let bins = (seconds / BIN_SECONDS).round() as usize;
        Self { bins: vec![0; bins], steps: vec![0; bins * (BIN_MS / STEP_MS) as usize] }
    }

    /// Counts an operation that completed `since` after the beginning. One after the end is not counted.
    pub(super) fn count(&mut self, since: Duration, bytes: u64) {
        let place = |width_ms: u64| (since.as_millis() / u128::from(width_ms)) as usize;
        if let (Some(sum), Some(count)) =
            (self.bins.get_mut(place(BIN_MS)), self.steps.get_mut(place(STEP_MS)))
        {
            *sum += bytes;
            *count += 1;
        }
    }

    /// Returns the steps from bin number `bin` on.
    pub(super) fn steps_from(&self, bin: usize) -> &[u32] {
        self.steps.get(bin * (BIN_MS / STEP_MS) as usize..).unwrap_or_default()
    }
}

/// The result that the child process prints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SustainResult {
    pub(super) ended: Ended,
    /// Seconds until the last operation completed.
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) operations: u64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    /// Seconds of the sync at the end.
    pub(super) sync_s: f64,
    /// Covers the sync, too.
    pub(super) evidence: Evidence,
}

impl Way for LoadRow {
    fn name(&self) -> &'static str {
        (*self).name()
    }

    fn description(&self) -> &'static str {
        (*self).description()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_belong_to_their_bin_and_their_step() {
        let mut ended = Ended::new(0.3);
        for (milliseconds, bytes) in [(10, 1), (99, 2), (101, 4), (250, 8), (300, 16), (900, 32)] {
            ended.count(Duration::from_millis(milliseconds), bytes);
        }
        assert_eq!((ended.bins.as_slice(), ended.steps.len()), (&[3, 4, 8][..], 30));
        let some: Vec<usize> = (0..30).filter(|step| ended.steps[*step] > 0).collect();
        assert_eq!(some, [1, 9, 10, 25]);
        assert_eq!((ended.steps_from(2).len(), ended.steps_from(9).len()), (10, 0));
    }

    #[test]
    fn names_in_json_are_the_names_in_the_tables() {
        for row in LoadRow::ALL {
            assert_eq!(serde_json::to_value(row).expect("plain"), row.name());
        }
    }
}
