//! The statistics of an engine, as far as `top` shows them.

use anyhow::Context as _;
use serde::Deserialize;

use forebay_report::failure::Failure;

/// Mark by which a file of statistics is recognized.
pub(super) const MARK: &str = "\"forebay_stats\":";
/// The version that this program understands.
const VERSION: u32 = 1;

/// One response of the engine.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Snapshot {
    forebay_stats: u32,
    pub(super) pid: u32,
    pub(super) at_ns: u64,
    pub(super) driver: String,
    pub(super) shards: Vec<Shard>,
    /// Rings of a runtime's workers; older programs have none.
    pub(super) worker_rings: Vec<Shard>,
    pub(super) devices: Vec<Device>,
    pub(super) classes: Vec<Class>,
    pub(super) flows: Vec<Flow>,
    pub(super) files: Vec<File>,
    pub(super) files_left_out: u64,
    pub(super) stalls: Vec<Stall>,
    pub(super) memory: Memory,
    pub(super) wait_calls: u64,
    pub(super) page_cache_reads: u64,
    pub(super) page_cache_bytes: u64,
    pub(super) page_cache_misses: u64,
    pub(super) page_cache_skips: u64,
    pub(super) degraded: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Shard {
    pub(super) in_flight: u64,
    pub(super) tasks: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Device {
    pub(super) device: String,
    pub(super) budget_bytes: u64,
    pub(super) write_cost: f64,
    pub(super) calibrated: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Class {
    pub(super) class: String,
    pub(super) device: String,
    pub(super) queued: u64,
    pub(super) received: u64,
    pub(super) due: u64,
    pub(super) starved_ns: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Flow {
    pub(super) class: String,
    pub(super) device: String,
    #[serde(flatten)]
    pub(super) counts: Counts,
    pub(super) failures: u64,
    pub(super) queued_p99_ns: u64,
    pub(super) device_p99_ns: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct File {
    pub(super) path: String,
    pub(super) device: String,
    #[serde(flatten)]
    pub(super) counts: Counts,
}

/// Counts of a flow or a file since the beginning.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Counts {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) syncs: u64,
    pub(super) read_bytes: u64,
    pub(super) write_bytes: u64,
}

impl Counts {
    /// Returns the difference to `before`; all of it where `before` is of a file that was closed meanwhile.
    pub(super) fn since(self, before: Counts) -> Counts {
        let less = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Counts {
            reads: less(self.reads, before.reads),
            writes: less(self.writes, before.writes),
            syncs: less(self.syncs, before.syncs),
            read_bytes: less(self.read_bytes, before.read_bytes),
            write_bytes: less(self.write_bytes, before.write_bytes),
        }
    }

    pub(super) fn operations(self) -> u64 {
        self.reads + self.writes + self.syncs
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Stall {
    pub(super) task: String,
    pub(super) polls: u64,
    pub(super) longest_ns: u64,
    /// Back-trace, one line per frame; only from an engine with the feature.
    pub(super) back_trace: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Memory {
    pub(super) arena_bytes: u64,
    pub(super) held_bytes: u64,
    pub(super) overflow_bytes: u64,
}

impl Snapshot {
    /// Parses a line.
    ///
    /// # Errors
    /// The line is not JSON, or has another version than this program understands.
    pub(super) fn parse(line: &str) -> anyhow::Result<Self> {
        let snapshot: Self = serde_json::from_str(line).context("the reply is not an engine's statistics")?;
        if snapshot.forebay_stats != VERSION {
            let version = snapshot.forebay_stats;
            return Err(Failure::Unsuitable(format!(
                "the engine has version {version} of the statistics, this program reads version {VERSION}: use the \
                 program of the engine's release"
            ))
            .into());
        }
        Ok(snapshot)
    }
}
