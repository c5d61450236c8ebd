//! Where the numbers were made: kernel, processor, memory, the path and what is below it, and what `doctor` found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::doctor::Check;

/// The environment of a result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Environment {
    /// Seconds since 1970 when the program started.
    pub(crate) time_unix_s: u64,
    /// `Linux 6.18.5`.
    pub(crate) kernel: String,
    /// `x86_64`, `aarch64`, ...
    pub(crate) architecture: String,
    /// The name the distribution gives itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) distribution: Option<String>,
    /// The processor's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_model: Option<String>,
    /// Processors this process may run on.
    pub(crate) cpus_allowed: u64,
    /// Processors of the machine that are switched on.
    pub(crate) cpus_online: u64,
    /// Whether the processor says that it is a virtual one: the host may cache what the guest reads.
    pub(crate) virtual_machine: bool,
    /// All memory of the machine.
    pub(crate) memory_total_bytes: u64,
    /// What the kernel thinks can be had without swapping.
    pub(crate) memory_available_bytes: u64,
    /// The smallest cgroup limit on this process, page cache included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory_limit_bytes: Option<u64>,
    /// The cgroup that sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory_limit_by: Option<String>,
    /// What the kernel does about the processor's flaws, by flaw; each costs at every system call or switch.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mitigations: BTreeMap<String, String>,
    /// Whether the program was built with optimisation; figures of an unoptimised build are not worth much.
    pub(crate) optimized_build: bool,
    /// What is under the path that was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<PathInfo>,
    /// What the engine says about itself after it started here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) engine: Option<EngineInfo>,
    /// What `doctor` tried and found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) checks: Vec<Check>,
}

/// What is under a path.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PathInfo {
    /// The path as it was named.
    pub(crate) path: String,
    /// `directory`, `file` or `block device`.
    pub(crate) kind: String,
    /// `ext4`, `xfs`, ...; of a block device: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file_system: Option<String>,
    /// Where the file system is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mount_point: Option<String>,
    /// Options of the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mount_options: Option<String>,
    /// The size of the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) size_bytes: Option<u64>,
    /// What this user may still write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) free_bytes: Option<u64>,
    /// The block devices below, from top to bottom, each followed by what it is made of; empty when there are none.
    pub(crate) layers: Vec<LayerInfo>,
    /// The figures of the topmost block device (of a partition: of its disk).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<DeviceInfo>,
}

/// One block device below a path.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LayerInfo {
    /// Its name as under /dev.
    pub(crate) name: String,
    /// `disk`, `partition`, `device mapper`, `raid`, `loop`, `zram` or `ram`.
    pub(crate) kind: String,
    /// How many devices are above it.
    pub(crate) level: u64,
}

/// What a block device says about itself; what it does not say is absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DeviceInfo {
    /// Its name as under /dev.
    pub(crate) name: String,
    /// The maker's name of the first disk below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// Its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) size_bytes: Option<u64>,
    /// Whether seeking costs time, as it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rotational: Option<bool>,
    /// Its smallest addressable unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) logical_block_bytes: Option<u32>,
    /// The unit it writes without reading first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) physical_block_bytes: Option<u32>,
    /// The largest request the kernel sends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) request_bytes_max: Option<u64>,
    /// How many requests each of its queues takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue_depth: Option<u32>,
    /// How many hardware queues it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queues: Option<u32>,
    /// `write back` or `write through`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) write_cache: Option<String>,
    /// Whether one write can be made durable without a flush of the whole cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fua: Option<bool>,
    /// Whether completions can be polled for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) io_poll: Option<bool>,
    /// The largest range it discards at once; 0 when it does not discard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) discard_bytes_max: Option<u64>,
    /// The I/O scheduler that is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scheduler: Option<String>,
    /// The NUMA node of the first disk below it, when the machine tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) numa_node: Option<u32>,
}

/// What the engine says about itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct EngineInfo {
    /// `uring` or `threads`.
    pub(crate) driver: String,
    /// How many shards it started.
    pub(crate) shards: u64,
    /// What it does without, and why.
    pub(crate) degradations: Vec<String>,
}
