//! The work of one sample and its result: the two JSON texts between the program and the fresh child
//! process in which every sample runs.

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::gauge::Cost;
use super::interleave::{Evidence, Way};
use super::latency::Latency;
use super::pattern::Pattern;

/// The argument of the hidden subcommand that runs one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The experiment, whose [`Kind`](super::kind::Kind) can make a sample; empty for a child that only
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
    /// The seconds after which the sample begins nothing more.
    #[serde(default)]
    pub seconds: f64,
    /// The seed of the file's contents, when this program wrote them.
    pub pattern_seed: Option<u64>,
    /// The block device's `stat` file.
    pub device_stat: Option<PathBuf>,
    /// The namespace's character device, for rows that send commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<PathBuf>,
    /// The most seconds that the sample should take; a child that takes a minute more hangs.
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScanWork {
    pub(super) row: ScanRow,
    /// Bytes to read from the beginning of the file.
    pub(super) bytes: u64,
    /// The time after which the sample ends even when the file does not.
    pub(super) seconds_max: f64,
    /// Requests in flight of `direct-large`, where that is not its usual number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) depth: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RandomWork {
    pub(super) row: RandomRow,
    /// The first byte that may be read; a multiple of the block.
    pub(super) span_start: u64,
    /// The number of bytes from there that may be read; at least one block.
    pub(super) span_bytes: u64,
    pub(super) block_bytes: u64,
    /// Reads in flight of all threads together.
    pub(super) depth: usize,
    /// Shards, or worker threads of the Tokio runtime. Rows that wait in `pread` have one thread for each read in flight.
    pub(super) threads: usize,
    pub(super) seconds: f64,
    /// The seed of the offsets; each sample has another one.
    pub(super) seed: u64,
    /// Bytes read in order before the measurement, so that a cache is as full as it would be
    /// after a long run.
    pub(super) warm_bytes: u64,
}

impl RandomWork {
    pub(super) fn blocks(&self) -> u64 {
        self.span_bytes / self.block_bytes
    }
}

/// Ways to read a file from the beginning to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ScanRow {
    Buffered,
    Mmap,
    #[serde(rename = "direct-4k")]
    Direct4k,
    DirectReadAhead,
    DirectNoCopy,
    DirectLarge,
    Default,
    Uncached,
}

impl ScanRow {
    pub(super) const ALL: [Self; 8] = [
        Self::Buffered,
        Self::Mmap,
        Self::Direct4k,
        Self::DirectReadAhead,
        Self::DirectNoCopy,
        Self::DirectLarge,
        Self::Default,
        Self::Uncached,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Buffered => "buffered",
            Self::Mmap => "mmap",
            Self::Direct4k => "direct-4k",
            Self::DirectReadAhead => "direct-read-ahead",
            Self::DirectNoCopy => "direct-no-copy",
            Self::DirectLarge => "direct-large",
            Self::Default => "default",
            Self::Uncached => "uncached",
        }
    }

    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::Buffered => "std::fs::File, 128 KiB a read, through the page cache",
            Self::Mmap => "a memory map with madvise(SEQUENTIAL), touched page by page",
            Self::Direct4k => "Forebay's File::read, O_DIRECT, 4 KiB at a time, one in flight",
            Self::DirectReadAhead => {
                "Forebay's scan through AsyncRead, O_DIRECT, 50 x 4 KiB in flight, each copied to the reader"
            }
            Self::DirectNoCopy => {
                "Forebay's scan, O_DIRECT, 50 x 4 KiB in flight, blocks handed over without a copy"
            }
            Self::DirectLarge => "Forebay's scan, O_DIRECT, 5 x 512 KiB in flight, no copy",
            Self::Default => "Forebay's scan as it is without options, O_DIRECT, no copy",
            Self::Uncached => "Forebay's scan of a file opened uncached (RWF_DONTCACHE), 1 MiB at a time",
        }
    }

    /// Returns whether the page cache can have a part in the figure.
    pub(super) const fn uses_page_cache(self) -> bool {
        matches!(self, Self::Buffered | Self::Mmap | Self::Uncached)
    }
}

/// Ways to read blocks at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RandomRow {
    Buffered,
    Mmap,
    Direct,
    DirectPolled,
    DirectCommands,
    DirectTokio,
    DirectPread,
    ReadMany,
    ReadManyWide,
}

impl RandomRow {
    pub(super) const ALL: [Self; 9] = [
        Self::Buffered,
        Self::Mmap,
        Self::Direct,
        Self::DirectPolled,
        Self::DirectCommands,
        Self::DirectTokio,
        Self::DirectPread,
        Self::ReadMany,
        Self::ReadManyWide,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Buffered => "buffered",
            Self::Mmap => "mmap",
            Self::Direct => "direct",
            Self::DirectPolled => "direct-polled",
            Self::DirectCommands => "direct-commands",
            Self::DirectTokio => "direct-tokio",
            Self::DirectPread => "direct-pread",
            Self::ReadMany => "read-many",
            Self::ReadManyWide => "read-many-wide",
        }
    }

    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::Buffered => "one std thread for each read in flight, pread through the page cache",
            Self::Direct => "Forebay from tasks on its own shards, O_DIRECT",
            Self::DirectPolled => {
                "Forebay from tasks on its own shards, O_DIRECT, and completions that are polled for"
            }
            Self::DirectCommands => {
                "Forebay from tasks on one shard, reads as commands to the NVMe namespace, and completions that are polled for"
            }
            Self::DirectTokio => "Forebay from tasks of a Tokio runtime, O_DIRECT",
            Self::DirectPread => "one std thread for each read in flight, pread with O_DIRECT",
            Self::Mmap => {
                "one std thread for each read in flight, a memory map with madvise(RANDOM), each page touched once"
            }
            Self::ReadMany => {
                "Forebay's read_many: as many blocks at a time as there are reads in flight, O_DIRECT, merged within its own limits"
            }
            Self::ReadManyWide => {
                "the same, blocks up to 128 KiB apart read with one request of up to 1 MiB, half of it in vain"
            }
        }
    }

    pub(super) const fn uses_page_cache(self) -> bool {
        matches!(self, Self::Buffered | Self::Mmap)
    }
}

impl Way for ScanRow {
    fn name(&self) -> &'static str {
        (*self).name()
    }

    fn description(&self) -> &'static str {
        (*self).description()
    }
}

impl Way for RandomRow {
    fn name(&self) -> &'static str {
        (*self).name()
    }

    fn description(&self) -> &'static str {
        (*self).description()
    }
}

/// The result of a row's code.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) cost: Cost,
    pub(super) bytes: u64,
    pub(super) operations: u64,
    /// Latencies; only of random rows.
    pub(super) latency: Option<Latency>,
    /// The most buffer memory held at once, where the row records it.
    pub(super) buffers_peak_bytes: Option<u64>,
    /// A value that depends on every page checked.
    pub(super) folded: u64,
}

/// The result that the child prints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SampleResult {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) context_switches: u64,
    pub(super) in_flight_avg: Option<f64>,
    pub(super) bytes: u64,
    pub(super) operations: u64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) p99_9_us: Option<f64>,
    pub(super) buffers_peak_bytes: Option<u64>,
    pub(super) resident_peak_bytes: Option<u64>,
    pub(super) folded: u64,
    pub(super) evidence: Evidence,
}

impl SampleResult {
    pub(super) fn of(reading: Reading) -> Self {
        let percentile =
            |quantile| reading.latency.as_ref().and_then(|latency| latency.quantile_us(quantile));
        Self {
            seconds: reading.cost.seconds,
            cpu_seconds: reading.cost.cpu_seconds,
            context_switches: reading.cost.context_switches,
            in_flight_avg: reading.cost.in_flight_avg,
            bytes: reading.bytes,
            operations: reading.operations,
            p50_us: percentile(0.5),
            p99_us: percentile(0.99),
            p99_9_us: percentile(0.999),
            buffers_peak_bytes: reading.buffers_peak_bytes,
            resident_peak_bytes: super::gauge::peak_resident_bytes(),
            folded: reading.folded,
            evidence: Evidence {
                counter_deltas: reading.cost.counter_deltas,
                times: reading.latency.map(|latency| ("latency".to_owned(), latency)).into_iter().collect(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_json_are_the_names_in_the_tables() {
        for row in ScanRow::ALL {
            assert_eq!(serde_json::to_value(row).expect("plain"), row.name());
        }
        for row in RandomRow::ALL {
            assert_eq!(serde_json::to_value(row).expect("plain"), row.name());
        }
    }

    #[test]
    fn a_job_survives_its_text() {
        let work = RandomWork {
            row: RandomRow::DirectTokio,
            span_start: 4096,
            span_bytes: 1 << 20,
            block_bytes: 4096,
            depth: 32,
            threads: 2,
            seconds: 0.1,
            seed: u64::MAX,
            warm_bytes: 0,
        };
        let mut job = Job::new("random", "/data/a file", &work, 0.1).expect("plain");
        job.pattern_seed = Some(u64::MAX);
        let text = serde_json::to_string(&job).expect("plain");
        let back: Job = serde_json::from_str(&text).expect("its own text");
        assert_eq!(back, job);
        assert_eq!(back.work::<RandomWork>().expect("its own work"), work);
        assert!(back.work::<ScanWork>().is_err());
    }
}
