//! The layers below a file: the file system, the block devices down to the disks, and their capabilities.

mod alignment;
pub(crate) mod calibration;
mod layers;
mod mountinfo;
#[cfg(target_os = "linux")]
pub(crate) mod namespace;
#[cfg(target_os = "linux")]
mod nvme_command;
mod sysfs;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::base::error::{Error, Result};

pub use alignment::Alignment;
pub use layers::{DeviceKind, Layer};
use layers::{PathTarget, System};
pub use mountinfo::FileSystem;
#[cfg(target_os = "linux")]
pub(crate) use nvme_command::NvmeCommand;
pub use sysfs::WriteCache;

/// The layers below a file, as of the call that returned this value; see
/// [`File::device`](crate::File::device).
///
/// Everything beyond the device's name may be unknown: then it is `None`. The default value has no facts at
/// all. The figures are those of the topmost block device (for a partition, of its disk). On stacked devices
/// the kernel has combined the figures of the layers below into them.
///
/// ```
/// use forebay::device::Device;
/// # fn main() -> forebay::Result<()> {
/// let device = Device::of_path(".")?;
/// println!("{device}"); // for example: ext4 on nvme0n1p2 (Partition) on nvme0n1 (Disk)
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Device {
    numbers: (u32, u32),
    file_system: Option<FileSystem>,
    layers: Vec<Layer>,
    limits: sysfs::Limits,
    size_bytes: Option<u64>,
    model: Option<String>,
    /// Of each physical device.
    numa_nodes: Vec<Option<u32>>,
    /// The size of the one disk at the bottom.
    disk_bytes: Option<u64>,
}

impl Device {
    /// Returns the layers below `path`: a file, a directory, or a block device itself. Symbolic links are
    /// followed.
    ///
    /// Reads a few dozen small files of sysfs. This blocks for some hundred microseconds.
    ///
    /// # Errors
    /// Those of looking the path up (statx(2)), and the lack of a descriptor to read with.
    pub fn of_path(path: impl AsRef<Path>) -> Result<Device> {
        let path = path.as_ref();
        let found = place_of_path(path).and_then(Device::of_place);
        found.map_err(|cause| Error::io("device", cause).with_path(path))
    }

    /// Returns the layers below an open file, or of an open block device; otherwise as
    /// [`of_path`](Device::of_path).
    ///
    /// # Errors
    /// As [`of_path`](Device::of_path).
    pub fn of_fd(fd: BorrowedFd<'_>) -> Result<Device> {
        place_of_fd(fd).and_then(Device::of_place).map_err(|cause| Error::io("device", cause))
    }

    /// Returns a simulated disk of that name.
    #[cfg(feature = "_sim")]
    pub(crate) fn simulated(name: &str) -> Device {
        Device { file_system: Some(FileSystem::simulated(name)), ..Device::default() }
    }

    /// Returns name, model and size of the unit that a scheduler treats as one device. That is the disk at the bottom, or the whole
    /// device with several disks or without a visible one.
    pub(crate) fn scheduled(&self) -> (&str, Option<&str>, Option<u64>) {
        let mut disks = self.physical();
        match (disks.next(), disks.next()) {
            (Some(disk), None) => (disk.name(), self.model(), self.disk_bytes),
            _ => (self.name(), self.model(), self.size_bytes),
        }
    }

    /// Returns the layers of a block device in a sysfs that a test made.
    #[cfg(test)]
    pub(crate) fn in_sysfs(sys: &Path, numbers: (u32, u32)) -> Device {
        let system = System { sys, mounts: b"", lookup: &|_| None };
        Device::in_system(&system, PathTarget::Block(numbers))
    }

    #[cfg(test)]
    pub(crate) fn for_test(name: &str, model: Option<&str>, bytes: Option<u64>) -> Device {
        Device {
            layers: vec![Layer::for_test(name)],
            model: model.map(str::to_string),
            size_bytes: bytes,
            disk_bytes: bytes,
            ..Device::default()
        }
    }

    fn of_place(place: PathTarget) -> io::Result<Device> {
        let sys = std::fs::canonicalize("/sys").unwrap_or_else(|_| "/sys".into());
        sysfs::complete(|| {
            let mounts = sysfs::optional(std::fs::read("/proc/self/mountinfo")).unwrap_or_default();
            let system = System { sys: &sys, mounts: &mounts, lookup: &|path| place_of_path(path).ok() };
            Device::in_system(&system, place)
        })
    }

    fn in_system(system: &System<'_>, place: PathTarget) -> Device {
        let (file_system, layers) = system.below(place);
        let numbers = match place {
            PathTarget::Block(numbers) => numbers,
            PathTarget::Inside(key) => key.device,
        };
        let limits =
            layers.first().map(|top| sysfs::Limits::read(system.sys, top.whole())).unwrap_or_default();
        let size_bytes = layers.first().and_then(|top| sysfs::size_bytes(top.path()));
        let disks = layers.iter().filter(|layer| layer.is_physical());
        let disk_bytes = disks.clone().next().and_then(|disk| sysfs::size_bytes(disk.path()));
        let model = disks.clone().find_map(|disk| sysfs::model(disk.path()));
        let numa_nodes = disks.map(|disk| sysfs::numa_node(system.sys, disk.path())).collect();
        Device { numbers, file_system, layers, limits, size_bytes, model, numa_nodes, disk_bytes }
    }

    /// Returns the topmost block device's name as under `/dev`. Without a block device it returns the source
    /// of the mount (`tmpfs`, `server:/export`), or `unknown`.
    pub fn name(&self) -> &str {
        match (self.layers.first(), &self.file_system) {
            (Some(top), _) => top.name(),
            (None, Some(file_system)) => file_system.source(),
            (None, None) => "unknown",
        }
    }

    /// Returns the topmost block device's kind; [`DeviceKind::Anonymous`] for a file system without a block device.
    pub fn kind(&self) -> DeviceKind {
        match self.layers.first() {
            Some(top) => top.kind(),
            None if cfg!(target_os = "linux") && self.numbers.0 == 0 && self.numbers.1 != 0 => {
                DeviceKind::Anonymous
            }
            None => DeviceKind::Unknown,
        }
    }

    /// Returns the file system that the file is in; `None` when the file is a block device.
    pub fn file_system(&self) -> Option<&FileSystem> {
        self.file_system.as_ref()
    }

    /// Returns all block devices below the file, from top to bottom, each followed by the devices that it is
    /// made of ([`Layer::depth`] has the level of each).
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Returns the physical devices at the bottom of the stack.
    pub fn physical(&self) -> impl Iterator<Item = &Layer> {
        self.layers.iter().filter(|layer| layer.is_physical())
    }

    /// Returns the major number of the device that the file system (or the device file) names; 0 for anonymous devices.
    pub fn major(&self) -> u32 {
        self.numbers.0
    }

    /// Returns the minor number of the device that [`major`](Device::major) refers to.
    pub fn minor(&self) -> u32 {
        self.numbers.1
    }

    /// Returns the smallest unit that the device can address, in bytes.
    pub fn logical_block_bytes(&self) -> Option<u32> {
        self.limits.logical_block_bytes
    }

    /// Returns the smallest unit that the device writes without reading first, in bytes.
    pub fn physical_block_bytes(&self) -> Option<u32> {
        self.limits.physical_block_bytes
    }

    /// Returns the most bytes of one request; the kernel splits larger requests (`max_sectors_kb`).
    pub fn request_bytes_max(&self) -> Option<u64> {
        self.limits.request_bytes_max
    }

    /// Returns the most bytes of one request that the hardware supports (`max_hw_sectors_kb`).
    pub fn hw_request_bytes_max(&self) -> Option<u64> {
        self.limits.hw_request_bytes_max
    }

    /// Returns the most separate pieces of memory in one request.
    pub fn segments_max(&self) -> Option<u32> {
        self.limits.segments_max
    }

    /// Returns the number of requests of each of the device's queues (`nr_requests`).
    pub fn queue_depth(&self) -> Option<u32> {
        self.limits.queue_depth
    }

    /// Returns the number of hardware queues.
    pub fn queues(&self) -> Option<u32> {
        self.limits.queues
    }

    /// Returns whether a write may be acknowledged before it is durable.
    pub fn write_cache(&self) -> Option<WriteCache> {
        self.limits.write_cache
    }

    /// Returns whether the device can make a single write durable (force unit access), without a flush of
    /// everything.
    pub fn fua(&self) -> Option<bool> {
        self.limits.fua
    }

    /// Returns whether completions can be polled for instead of waiting for an interrupt
    /// (`IORING_SETUP_IOPOLL`).
    pub fn io_poll(&self) -> Option<bool> {
        self.limits.io_poll
    }

    /// Returns how many queues for polling were requested from the driver; 0 when the device cannot be
    /// polled.
    pub fn poll_queues(&self) -> Option<u32> {
        self.limits.poll_queues
    }

    /// Returns whether seeking costs time.
    pub fn rotational(&self) -> Option<bool> {
        self.limits.rotational
    }

    /// Returns the most bytes that one discard may name; 0 for a device without discard.
    pub fn discard_bytes_max(&self) -> Option<u64> {
        self.limits.discard_bytes_max
    }

    /// Returns the kernel's I/O scheduler for this device: `none`, `mq-deadline`, ...
    pub fn scheduler(&self) -> Option<&str> {
        self.limits.scheduler.as_deref()
    }

    /// Returns the memory node of the first [`physical`](Device::physical) device that is attached to one.
    pub fn numa_node(&self) -> Option<u32> {
        self.numa_nodes().flatten().next()
    }

    /// Returns the memory node of each of the [`physical`](Device::physical) devices.
    pub(crate) fn numa_nodes(&self) -> impl Iterator<Item = Option<u32>> {
        self.numa_nodes.iter().copied()
    }

    /// Returns the model name of the first [`physical`](Device::physical) device that has one.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Returns the share of its rated writes that the device has used, in percent, as its health log says; it can exceed
    /// 100. `None` unless the only [`physical`](Device::physical) device is an NVMe device, and this process may send it commands
    ///      (as root).
    ///
    /// Queries the device at each call, and blocks for its reply.
    pub fn wear_percent(&self) -> Option<u8> {
        let mut disks = self.physical();
        match (disks.next(), disks.next()) {
            #[cfg(target_os = "linux")]
            (Some(disk), None) => namespace::wear_percent(disk.name()),
            _ => None,
        }
    }

    /// Returns the topmost block device's size in bytes.
    pub fn size_bytes(&self) -> Option<u64> {
        self.size_bytes
    }
}

/// Writes the chain in words: `ext4 on nvme0n1p2 (Partition) on nvme0n1 (Disk)`.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file_system = self.file_system.as_ref();
        if let Some(file_system) = file_system {
            f.write_str(file_system.type_name())?;
        }
        let mut above = file_system.map(|_| 0);
        for layer in &self.layers {
            match above {
                Some(depth) if layer.depth() < depth => f.write_str(" and ")?,
                Some(_) => f.write_str(" on ")?,
                None => {}
            }
            write!(f, "{} ({:?})", layer.name(), layer.kind())?;
            above = Some(layer.depth() + 1);
        }
        if self.layers.is_empty() {
            let before = if file_system.is_some() { " on " } else { "" };
            write!(f, "{before}{} ({:?})", self.name(), self.kind())?;
        }
        Ok(())
    }
}

/// Splits a device number of stat(2) into major and minor.
pub(crate) fn numbers(device: u64) -> (u32, u32) {
    let device = device as rustix::fs::Dev;
    (rustix::fs::major(device) as u32, rustix::fs::minor(device) as u32)
}

#[cfg(target_os = "linux")]
fn place_of_path(path: &Path) -> io::Result<PathTarget> {
    place_of(rustix::fs::CWD, path, rustix::fs::AtFlags::empty())
}

#[cfg(target_os = "linux")]
fn place_of_fd(fd: BorrowedFd<'_>) -> io::Result<PathTarget> {
    place_of(fd, Path::new(""), rustix::fs::AtFlags::EMPTY_PATH)
}

#[cfg(target_os = "linux")]
fn place_of(dir: BorrowedFd<'_>, path: &Path, flags: rustix::fs::AtFlags) -> io::Result<PathTarget> {
    use rustix::fs::{FileType, StatxFlags, statx};
    let found = statx(dir, path, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    if FileType::from_raw_mode(found.stx_mode.into()) == FileType::BlockDevice {
        return Ok(PathTarget::Block((found.stx_rdev_major, found.stx_rdev_minor)));
    }
    let id = (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id);
    Ok(PathTarget::Inside(mountinfo::MountKey { id, device: (found.stx_dev_major, found.stx_dev_minor) }))
}

#[cfg(not(target_os = "linux"))]
fn place_of_path(path: &Path) -> io::Result<PathTarget> {
    Ok(place_of(&rustix::fs::stat(path)?))
}

#[cfg(not(target_os = "linux"))]
fn place_of_fd(fd: BorrowedFd<'_>) -> io::Result<PathTarget> {
    Ok(place_of(&rustix::fs::fstat(fd)?))
}

#[cfg(not(target_os = "linux"))]
fn place_of(found: &rustix::fs::Stat) -> PathTarget {
    PathTarget::Inside(mountinfo::MountKey { id: None, device: numbers(found.st_dev as u64) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_partition_has_the_figures_of_its_disk_and_its_own_size() {
        let root = tempfile::tempdir().unwrap();
        let sys = fs::canonicalize(root.path()).unwrap();
        let disk = sys.join("devices/virtio0/vda");
        let part = disk.join("vda2");
        for (path, content) in [
            (disk.join("dev"), "254:0\n"),
            (disk.join("size"), "1000\n"),
            (disk.join("queue/nr_requests"), "256\n"),
            (disk.join("queue/write_cache"), "write through\n"),
            (disk.join("device/model"), "A Disk\n"),
            (sys.join("devices/virtio0/numa_node"), "0\n"),
            (part.join("dev"), "254:2\n"),
            (part.join("size"), "10\n"),
            (part.join("partition"), "2\n"),
        ] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        for (numbers, path) in [("254:0", &disk), ("254:2", &part)] {
            symlink(path, sys.join("dev/block").join(numbers)).unwrap();
        }
        let mounts = b"1 0 254:2 / / rw - ext4 /dev/vda2 rw\n";
        let system = System { sys: &sys, mounts, lookup: &|_| None };
        let device = Device::in_system(
            &system,
            PathTarget::Inside(mountinfo::MountKey { id: None, device: (254, 2) }),
        );
        assert_eq!(
            (device.name(), device.kind(), device.size_bytes()),
            ("vda2", DeviceKind::Partition, Some(5120))
        );
        assert_eq!((device.queue_depth(), device.write_cache()), (Some(256), Some(WriteCache::WriteThrough)));
        assert_eq!((device.model(), device.numa_node(), device.fua()), (Some("A Disk"), Some(0), None));
        assert_eq!(device.physical().map(Layer::name).collect::<Vec<_>>(), ["vda"]);
        assert_eq!(device.to_string(), "ext4 on vda2 (Partition) on vda (Disk)");
    }

    #[test]
    fn without_a_block_device_the_mount_gives_the_name() {
        let mounts = b"1 0 0:5 / /net rw - nfs4 server:/export rw\n";
        let system = System { sys: Path::new("/nonexistent"), mounts, lookup: &|_| None };
        let device =
            Device::in_system(&system, PathTarget::Inside(mountinfo::MountKey { id: None, device: (0, 5) }));
        assert_eq!(device.to_string(), "nfs4 on server:/export (Anonymous)");
        assert_eq!(device.logical_block_bytes(), None);
        let unknown = Device::in_system(&system, PathTarget::Block((8, 0)));
        assert_eq!((unknown.name(), unknown.kind()), ("unknown", DeviceKind::Unknown));
        assert_eq!(Device::default().to_string(), "unknown (Unknown)");
    }
}
