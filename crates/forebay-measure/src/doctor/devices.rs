//! The block devices under a path, as the core sees them, and their consequences for Forebay.

use forebay::device::{Device, DeviceKind, WriteCache};

use forebay_report::check::Check;
use forebay_report::environment::{DeviceInfo, LayerInfo};
use forebay_report::units::bytes;

const GROUP: &str = "device";
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

/// Returns the figures of the topmost device; `None` when there is no block device.
pub(crate) fn figures(device: &Device) -> Option<DeviceInfo> {
    let top = device.layers().first()?;
    Some(DeviceInfo {
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
    })
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
pub(crate) fn examine(layers: &[LayerInfo], top: Option<&DeviceInfo>) -> Vec<Check> {
    let Some(top) = top else {
        return vec![Check::degraded(
            GROUP,
            "chain",
            "no block device of this machine is under this path (a network, memory or layered file system)",
            "name a path on a local disk",
        )];
    };
    let mut chain: Vec<String> =
        layers.iter().map(|layer| format!("{} ({})", layer.name, layer.kind)).collect();
    if let Some(first) = chain.first_mut() {
        first.push_str(&top.size_bytes.map_or_else(String::new, |size| format!(", {}", bytes(size))));
    }
    if let (Some(last), Some(model)) = (chain.last_mut(), &top.model) {
        last.push_str(&format!(", {model}"));
    }
    let mut checks = vec![Check::ok(GROUP, "chain", chain.join(" on "))];
    checks.push(write_cache(top));
    checks.push(match top.io_poll {
        Some(true) => Check::ok(
            GROUP,
            "poll_queues",
            format!("{} has poll queues: Config::polling reads and writes without interrupts", top.name),
        ),
        _ => Check::degraded(
            GROUP,
            "poll_queues",
            format!("{} has no poll queues: completions arrive by interrupt", top.name),
            "on NVMe: boot with nvme.poll_queues=2; other devices rarely have them",
        ),
    });
    checks.push(super::nvme::examine(layers));
    if let Some(max) = top.request_bytes_max {
        let why = format!("{} takes requests of up to {}", top.name, bytes(max));
        checks.push(if max >= SCAN_REQUEST_BYTES {
            Check::ok(GROUP, "max_request", why)
        } else {
            Check::degraded(
                GROUP,
                "max_request",
                format!("{why}: the kernel splits the {} of a scan", bytes(SCAN_REQUEST_BYTES)),
                format!(
                    "raise /sys/block/{}/queue/max_sectors_kb up to max_hw_sectors_kb",
                    disk_name(layers)
                ),
            )
        });
    }
    checks.push(scheduler(top, disk_name(layers)));
    checks.push(match top.discard_bytes_max {
        Some(0) | None => Check::degraded(
            GROUP,
            "discard",
            format!("{} does not discard: freed blocks stay in use on the device", top.name),
            "none needed unless it is a solid-state device behind a layer that hides it",
        ),
        Some(max) => {
            Check::ok(GROUP, "discard", format!("{} discards up to {} at once", top.name, bytes(max)))
        }
    });
    checks.push(Check::ok(
        GROUP,
        "numa_node",
        match top.numa_node {
            Some(node) => {
                format!("attached to node {node}: a shard pinned there avoids the way between nodes")
            }
            None => "the device names no NUMA node: nothing to gain by placement".to_owned(),
        },
    ));
    checks
}

/// Returns the disk's name. The queue's folder in /sys belongs to the disk, not to its partition.
fn disk_name(layers: &[LayerInfo]) -> &str {
    layers.iter().find(|layer| layer.kind != "partition").map_or("", |layer| layer.name.as_str())
}

fn write_cache(top: &DeviceInfo) -> Check {
    let fua = top.fua == Some(true);
    match top.write_cache.as_deref() {
        Some("write through") => Check::ok(
            GROUP,
            "write_cache",
            format!("{} has no volatile write cache: a completed write is durable", top.name),
        ),
        Some(cache) if fua => Check::ok(
            GROUP,
            "write_cache",
            format!(
                "{} has a {cache} cache and FUA: a durable write needs no flush of the whole cache",
                top.name
            ),
        ),
        Some(cache) => Check::degraded(
            GROUP,
            "write_cache",
            format!(
                "{} has a {cache} cache and no FUA: every durable write flushes the whole cache",
                top.name
            ),
            "none in software; use Durability::Data for groups of writes, not for each",
        ),
        None => Check::degraded(
            GROUP,
            "write_cache",
            format!("{} does not report whether it has a write cache", top.name),
            "request durability explicitly; the kernel flushes when it must",
        ),
    }
}

fn scheduler(top: &DeviceInfo, disk: &str) -> Check {
    match top.scheduler.as_deref() {
        Some("none") => Check::ok(GROUP, "scheduler", "none: requests reach the device at once"),
        Some(name) if top.rotational == Some(false) => Check::degraded(
            GROUP,
            "scheduler",
            format!("{name} sorts and delays requests that a solid-state device does not want sorted"),
            format!("echo none > /sys/block/{disk}/queue/scheduler"),
        ),
        Some(name) => Check::ok(
            GROUP,
            "scheduler",
            format!(
                "{name}; the device reports that it is rotational (virtual disks often do: then `none` is faster)"
            ),
        ),
        None => Check::ok(GROUP, "scheduler", "the device has none of its own"),
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

    #[test]
    fn a_path_without_a_device_has_one_finding() {
        let checks = examine(&[], None);
        assert_eq!(checks.len(), 1);
        assert_eq!(checks[0].verdict, Verdict::Degraded);
    }

    #[test]
    fn remedies_name_the_disk_and_not_its_partition() {
        let layer =
            |name: &str, kind: &str, level| LayerInfo { name: name.to_owned(), kind: kind.to_owned(), level };
        let checks =
            examine(&[layer("x1", "partition", 0), layer("x", "disk", 1)], Some(&device("write back", true)));
        assert_eq!(checks[0].why, "x1 (partition) on x (disk)");
        let scheduler = checks.iter().find(|check| check.name == "scheduler").expect("it has one");
        assert!(scheduler.remedy.as_deref().is_some_and(|remedy| remedy.contains("/sys/block/x/queue")));
    }
}
