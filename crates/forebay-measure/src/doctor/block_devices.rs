//! The block devices under a path, as the core sees them, and their consequences for Forebay.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use forebay::device::{Device, DeviceKind, WriteCache};
use io_uring::{IoUring, cqueue, squeue};

use super::{MOUNT_SYSFS, degraded, drive, is_sysfs, ok, remedy_of_limit};
use forebay_report::check::Check;
use forebay_report::environment::{DeviceInfo, LayerInfo};
use forebay_report::units::bytes;

/// The largest request that a scan makes by default.
const SCAN_REQUEST_BYTES: u64 = 512 << 10;

/// Returns the devices from top to bottom.
pub(crate) fn layers(device: &Device) -> Vec<LayerInfo> {
    device
        .layers()
        .iter()
        .map(|layer| LayerInfo {
            name: layer.name().to_owned(),
            kind: kind(layer.kind()).to_owned(),
            level: layer.depth() as u64,
        })
        .collect()
}

/// Returns the figures of the topmost device; `None` without a block device.
pub(crate) fn figures(device: &Device) -> Option<DeviceInfo> {
    let top = device.layers().first()?;
    let mut info = DeviceInfo {
        name: top.name().to_owned(),
        model: device.model().map(str::to_owned),
        size_bytes: device.size_bytes(),
        rotational: device.rotational(),
        logical_block_bytes: device.logical_block_bytes(),
        physical_block_bytes: device.physical_block_bytes(),
        request_bytes_max: device.request_bytes_max(),
        queue_depth: device.queue_depth(),
        queues: device.queues(),
        write_cache: device.write_cache().map(|cache| match cache {
            WriteCache::WriteThrough => "write through".to_owned(),
            _ => "write back".to_owned(),
        }),
        fua: device.fua(),
        io_poll: device.io_poll(),
        discard_bytes_max: device.discard_bytes_max(),
        scheduler: device.scheduler().map(str::to_owned),
        numa_node: device.numa_node(),
        ..DeviceInfo::default()
    };
    drive::describe(&mut info, &layers(device), Path::new("/sys"), || device.wear_percent());
    Some(info)
}

fn kind(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Disk => "disk",
        DeviceKind::Partition => "partition",
        DeviceKind::DeviceMapper => "device mapper",
        DeviceKind::Raid => "raid",
        DeviceKind::Loop => "loop",
        DeviceKind::Zram => "zram",
        DeviceKind::Ram => "ram",
        _ => "unknown",
    }
}

/// Derives the findings about the devices. Requests enter the queue of the topmost device.
pub(super) fn examine(layers: &[LayerInfo], top: Option<&DeviceInfo>) -> Vec<(&'static str, Check)> {
    let Some(top) = top else { return vec![("chain", without_device(Path::new("/sys")))] };
    let name = &top.name;
    // The queue's folder in /sys belongs to the disk, not to its partition.
    let disk = layers.iter().find(|layer| layer.kind != "partition").map_or("", |layer| layer.name.as_str());
    let mut findings = vec![
        ("chain", chain_finding(chain(layers, top), layers, Path::new("/sys"))),
        ("drive", drive::finding(top, layers, Path::new("/sys"))),
        ("write_cache", layers.iter().find_map(in_memory).unwrap_or_else(|| write_cache(top))),
        (
            "poll_queues",
            if top.io_poll == Some(true) {
                ok(format!("{name} has poll queues: Config::polling reads and writes without interrupts"))
            } else {
                degraded(
                    format!("{name} has no poll queues: completions arrive by interrupt"),
                    "on NVMe: boot with nvme.poll_queues=2; other devices rarely have them",
                )
            },
        ),
        ("nvme_commands", nvme_commands(layers)),
    ];
    if let Some(max) = top.request_bytes_max {
        let why = format!("{name} takes requests of up to {}", bytes(max));
        findings.push((
            "max_request",
            if max >= SCAN_REQUEST_BYTES {
                ok(why)
            } else {
                degraded(
                    format!("{why}: the kernel splits the {} of a scan", bytes(SCAN_REQUEST_BYTES)),
                    format!("raise /sys/block/{disk}/queue/max_sectors_kb up to max_hw_sectors_kb"),
                )
            },
        ));
    }
    findings.extend([
        ("scheduler", scheduler(top, disk)),
        (
            "discard",
            match top.discard_bytes_max {
                Some(0) | None => degraded(
                    format!("{name} does not discard: freed blocks stay in use on the device"),
                    "none needed unless it is a solid-state device behind a layer that hides it",
                ),
                Some(max) => ok(format!("{name} discards up to {} at once", bytes(max))),
            },
        ),
        (
            "numa_node",
            ok(match top.numa_node {
                Some(node) => {
                    format!("attached to node {node}: a shard pinned there avoids the way between nodes")
                }
                None => "the device names no NUMA node: nothing to gain by placement".to_owned(),
            }),
        ),
    ]);
    findings
}

/// Returns the finding where no device was found.
fn without_device(sysfs: &Path) -> Check {
    if !is_sysfs(sysfs) {
        return degraded("the devices under this path are not known: /sys is not mounted", MOUNT_SYSFS);
    }
    let why = "no block device of this machine is under this path (a network, memory or layered file system)";
    degraded(why, "name a path on a local disk")
}

/// Judges the chain: a loop device without direct I/O has its file in the page cache.
fn chain_finding(chain: String, layers: &[LayerInfo], sysfs: &Path) -> Check {
    let is_cached = |layer: &&LayerInfo| {
        let direct = std::fs::read_to_string(sysfs.join("block").join(&layer.name).join("loop/dio"));
        layer.kind == "loop" && direct.is_ok_and(|direct| direct.trim() == "0")
    };
    let Some(layer) = layers.iter().find(is_cached) else { return ok(chain) };
    degraded(
        format!(
            "{chain}; {} keeps its file in this machine's page cache, which serves direct reads of it, too",
            layer.name
        ),
        format!("losetup --direct-io=on /dev/{}", layer.name),
    )
}

fn chain(layers: &[LayerInfo], top: &DeviceInfo) -> String {
    let mut chain: Vec<String> =
        layers.iter().map(|layer| format!("{} ({})", layer.name, layer.kind)).collect();
    if let (Some(first), Some(size)) = (chain.first_mut(), top.size_bytes) {
        *first += &format!(", {}", bytes(size));
    }
    if let (Some(last), Some(model)) = (chain.last_mut(), &top.model) {
        *last += &format!(", {model}");
    }
    chain.join(" on ")
}

/// Returns the finding about a device that is memory, and reports, truly, that no cache is before that.
fn in_memory(layer: &LayerInfo) -> Option<Check> {
    let why =
        format!("{} keeps its data in memory: no write is durable, and a restart loses all", layer.name);
    ["zram", "ram"].contains(&layer.kind.as_str()).then(|| degraded(why, "name a path on a disk"))
}

fn write_cache(top: &DeviceInfo) -> Check {
    let name = &top.name;
    match (top.write_cache.as_deref(), top.fua == Some(true)) {
        (Some("write through"), _) => {
            ok(format!("{name} has no volatile write cache: a completed write is durable"))
        }
        (Some(cache), true) => ok(format!(
            "{name} has a {cache} cache and FUA: a durable write needs no flush of the whole cache"
        )),
        (Some(cache), false) => degraded(
            format!("{name} has a {cache} cache and no FUA: every durable write flushes the whole cache"),
            "none in software; use Durability::Data for groups of writes, not for each",
        ),
        (None, _) => degraded(
            format!("{name} does not report whether it has a write cache"),
            "request durability explicitly; the kernel flushes when it must",
        ),
    }
}

fn scheduler(top: &DeviceInfo, disk: &str) -> Check {
    match top.scheduler.as_deref() {
        Some("none") => ok("none: requests reach the device at once"),
        Some(name) if top.rotational == Some(false) => degraded(
            format!("{name} sorts and delays requests that a solid-state device does not want sorted"),
            format!("echo none > /sys/block/{disk}/queue/scheduler"),
        ),
        Some(name) => ok(format!(
            "{name}; the device reports that it is rotational (virtual disks often do: then `none` is faster)"
        )),
        None => ok("the device has none of its own"),
    }
}

/// Tests whether NVMe commands can be sent to the device (`Engine::open_nvme`): opens the namespace's character device for reading,
/// and sets up the ring that commands need. It sends no command.
fn nvme_commands(layers: &[LayerInfo]) -> Check {
    let Some((disk, node)) =
        layers.iter().rev().find_map(|layer| Some((&layer.name, nvme_node(&layer.name)?)))
    else {
        return ok("no NVMe device is under this path: there is nothing to send commands to");
    };
    let opened = File::open(&node).map(drop);
    let ring: io::Result<IoUring<squeue::Entry128, cqueue::Entry32>> = IoUring::builder().build(8);
    nvme_finding(disk, &node, opened, ring.map(drop))
}

/// Returns `/dev/ng0n1` for `nvme0n1`, and `None` for other devices and for partitions.
fn nvme_node(disk: &str) -> Option<PathBuf> {
    let rest = disk.strip_prefix("nvme")?;
    let (controller, namespace) = rest.split_once('n')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(controller) && is_number(namespace)).then(|| Path::new("/dev").join(format!("ng{rest}")))
}

fn nvme_finding(disk: &str, node: &Path, opened: io::Result<()>, ring: io::Result<()>) -> Check {
    let node = node.display();
    match (opened, ring) {
        (Err(error), _) => degraded(
            format!("{node}, by which {disk} takes commands, cannot be opened: {error}"),
            match error.kind() {
                io::ErrorKind::NotFound => "use Linux 5.13 or later",
                _ => remedy_of_limit(&error).unwrap_or("run as root, or give this user the right to open it"),
            },
        ),
        (_, Err(error)) => degraded(
            format!("a ring with entries for commands is refused: {error}"),
            remedy_of_limit(&error).unwrap_or("use Linux 6.1 or later with io_uring allowed"),
        ),
        _ => ok(format!(
            "Engine::open_nvme can send commands to {disk} by {node}, while no other program uses it"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::check::Verdict;

    fn device(cache: &str, fua: bool) -> DeviceInfo {
        DeviceInfo {
            name: "x1".to_owned(),
            write_cache: Some(cache.to_owned()),
            fua: Some(fua),
            scheduler: Some("mq-deadline".to_owned()),
            rotational: Some(false),
            ..DeviceInfo::default()
        }
    }

    #[test]
    fn the_write_cache_decides_the_cost_of_durability() {
        assert_eq!(write_cache(&device("write through", false)).verdict, Verdict::Ok);
        assert_eq!(write_cache(&device("write back", true)).verdict, Verdict::Ok);
        assert_eq!(write_cache(&device("write back", false)).verdict, Verdict::Degraded);
    }

    /// Regression: "zram0 has no volatile write cache: a completed write is durable".
    #[test]
    fn no_write_to_a_device_in_memory_is_durable() {
        for kind in ["zram", "ram"] {
            let layer = LayerInfo { name: "x1".to_owned(), kind: kind.to_owned(), level: 0 };
            let checks = examine(&[layer], Some(&device("write through", false)));
            let (_, found) = checks.iter().find(|(name, _)| *name == "write_cache").expect("it has one");
            assert!(found.why.contains("no write is durable"), "{kind}: {}", found.why);
        }
    }

    #[test]
    fn a_path_without_a_device_has_one_finding() {
        let checks = examine(&[], None);
        assert_eq!(checks.len(), 1);
        assert_eq!(checks[0].1.verdict, Verdict::Degraded);
    }

    /// Regression: without /sys, a path on ext4 had no block device of this machine below it.
    #[test]
    fn devices_that_sysfs_does_not_show_are_not_known() {
        let cleanup = crate::cleanup::Cleanup::default();
        let sysfs = cleanup.temp_directory(&std::env::temp_dir(), "sysfs").expect("writable");
        let unknown = without_device(sysfs.path()).why;
        assert!(unknown.contains("not known"), "{unknown}");
        std::fs::create_dir(sysfs.path().join("kernel")).expect("ours");
        let none = without_device(sysfs.path()).why;
        assert!(none.starts_with("no block device"), "{none}");
    }

    #[test]
    fn remedies_name_the_disk_and_not_its_partition() {
        let layer =
            |name: &str, kind: &str, level| LayerInfo { name: name.to_owned(), kind: kind.to_owned(), level };
        let checks =
            examine(&[layer("x1", "partition", 0), layer("x", "disk", 1)], Some(&device("write back", true)));
        assert_eq!(checks[0].1.why, "x1 (partition) on x (disk)");
        let (_, scheduler) = checks.iter().find(|(name, _)| *name == "scheduler").expect("it has one");
        assert!(scheduler.remedy.as_deref().is_some_and(|remedy| remedy.contains("/sys/block/x/queue")));
    }

    #[test]
    fn a_loop_device_without_direct_io_is_a_page_cache() {
        let cleanup = crate::cleanup::Cleanup::default();
        let sysfs = cleanup.temp_directory(&std::env::temp_dir(), "sysfs").expect("writable");
        let folder = sysfs.path().join("block/loop3/loop");
        std::fs::create_dir_all(&folder).expect("ours");
        let layer = LayerInfo { name: "loop3".to_owned(), kind: "loop".to_owned(), level: 0 };
        let of = |direct: &str| {
            std::fs::write(folder.join("dio"), direct).expect("ours");
            chain_finding("loop3 (loop)".to_owned(), std::slice::from_ref(&layer), sysfs.path())
        };
        assert_eq!(of("1\n").verdict, Verdict::Ok);
        let cached = of("0\n");
        assert_eq!(cached.verdict, Verdict::Degraded, "{}", cached.why);
        assert_eq!(cached.remedy.as_deref(), Some("losetup --direct-io=on /dev/loop3"));
    }

    #[test]
    fn only_whole_namespaces_have_a_node() {
        assert_eq!(nvme_node("nvme1n22"), Some(PathBuf::from("/dev/ng1n22")));
        assert_eq!([nvme_node("nvme0n1p1"), nvme_node("sda"), nvme_node("nvme0")], [None, None, None]);
    }

    #[test]
    fn a_missing_feature_is_reported_with_its_remedy() {
        let finding = |opened: io::Result<()>, ring: io::Result<()>| {
            nvme_finding("nvme0n1", Path::new("/dev/ng0n1"), opened, ring)
        };
        assert_eq!(finding(Ok(()), Ok(())).verdict, Verdict::Ok);
        let denied = finding(Err(io::ErrorKind::PermissionDenied.into()), Ok(()));
        assert!(denied.remedy.is_some_and(|remedy| remedy.contains("root")), "{}", denied.why);
        assert_eq!(finding(Ok(()), Err(io::ErrorKind::InvalidInput.into())).verdict, Verdict::Degraded);
        // A limit is not remedied by a newer kernel.
        let short = finding(Ok(()), Err(io::Error::from_raw_os_error(libc::ENOMEM)));
        assert!(short.remedy.is_some_and(|remedy| remedy.contains("ulimit -l")), "{}", short.why);
        let other = LayerInfo { name: "sda".to_owned(), kind: "disk".to_owned(), level: 0 };
        assert_eq!(nvme_commands(&[other]).verdict, Verdict::Ok);
    }
}
