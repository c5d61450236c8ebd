//! The environment in which the numbers were measured: kernel, processor, memory, the path and the devices
//! below it, and the findings of `doctor`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::check::Check;

/// The environment of a result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Environment {
    /// Seconds since 1970 at the program's start.
    pub time_unix_s: u64,
    /// The kernel, such as `Linux 6.18.5`.
    pub kernel: String,
    /// The machine's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The architecture: `x86_64`, `aarch64`, ...
    pub architecture: String,
    /// The distribution's name for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<String>,
    /// The processor's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// Processors that this process may run on.
    pub cpus_allowed: u64,
    /// Processors of the machine that are switched on.
    pub cpus_online: u64,
    /// Whether the processor reports that it is a virtual one: the host may cache the data that
    /// the guest reads.
    pub virtual_machine: bool,
    /// The machine's total memory.
    pub memory_total_bytes: u64,
    /// The kernel's estimate of the memory available without swapping.
    pub memory_available_bytes: u64,
    /// The smallest cgroup limit on this process, page cache included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// The cgroup that sets the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_by: Option<String>,
    /// The kernel's mitigation of each flaw of the processor, by flaw. Each one has a cost at every system
    /// call or switch.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mitigations: BTreeMap<String, String>,
    /// Whether the program was built with optimisation. Figures of an unoptimised build have little value.
    pub optimized_build: bool,
    /// The description of the named path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathInfo>,
    /// The engine's report of its state after it started here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineInfo>,
    /// The findings of `doctor`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}

/// The file system and devices under a path.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PathInfo {
    /// The absolute path.
    pub path: String,
    /// `directory`, `file` or `block device`.
    pub kind: String,
    /// The file system's type: `ext4`, `xfs`, ...; absent for a block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_system: Option<String>,
    /// The directory where the file system is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_point: Option<String>,
    /// The mount options of the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_options: Option<String>,
    /// The size of the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The space that this user may still write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// The block devices below, from top to bottom, each followed by its components; empty without block devices.
    pub layers: Vec<LayerInfo>,
    /// The figures of the topmost block device (of a partition: of its disk).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceInfo>,
}

/// One block device below a path.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LayerInfo {
    /// The device's name under /dev.
    pub name: String,
    /// `disk`, `partition`, `device mapper`, `raid`, `loop`, `zram` or `ram`.
    pub kind: String,
    /// The number of levels above the device.
    pub level: u64,
}

/// A block device's own description; properties that it does not report are absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceInfo {
    /// The device's name under /dev.
    pub name: String,
    /// The maker's model name of the first disk below the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The revision of the drive's firmware. Like wear and temperature, only of a single local drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// The share of its rated writes that the drive has used, in percent; it can exceed 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wear_percent: Option<u8>,
    /// The drive's temperature in degrees Celsius when it was examined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<i32>,
    /// The device's size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Whether seeking costs time, according to the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// The device's smallest addressable unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logical_block_bytes: Option<u32>,
    /// The unit that the device writes without reading first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_block_bytes: Option<u32>,
    /// The largest request that the kernel sends to the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_bytes_max: Option<u64>,
    /// The depth of each of its queues, in requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u32>,
    /// The number of hardware queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u32>,
    /// `write back` or `write through`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_cache: Option<String>,
    /// Whether one write can be made durable without a flush of the whole cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fua: Option<bool>,
    /// Whether polling for completions is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_poll: Option<bool>,
    /// The largest range of one discard; 0 if the device does not discard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discard_bytes_max: Option<u64>,
    /// The active I/O scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// The NUMA node of the first disk below the device, when the machine reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
}

/// The engine's report of its state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EngineInfo {
    /// The driver: `uring` or `threads`.
    pub driver: String,
    /// The number of shards started.
    pub shards: u64,
    /// The mechanisms that the engine does without, with the reasons.
    pub degradations: Vec<String>,
}
