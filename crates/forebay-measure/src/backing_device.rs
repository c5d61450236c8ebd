//! The layers beneath a file: its file system, and the block device that counts its requests.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay::device::{Device, DeviceKind};

/// Returns the type of the file system that holds `path`, or `an unknown file system`.
pub fn filesystem_of(path: &Path) -> String {
    let device = Device::of_path(path).unwrap_or_default();
    device.file_system().map_or("an unknown file system", |found| found.type_name()).to_owned()
}

/// Returns the file in which the kernel counts the requests of the device below `file`. File systems that invent a device number
/// (btrfs, overlayfs) have no block device of that number; for them the source of the mount is used. Below a loop device the
/// device of its file counts, as the loop device also counts bytes that this machine's page cache served.
pub fn device_stat(file: &File) -> Option<PathBuf> {
    let device = Device::of_fd(file.as_fd()).ok()?;
    let layers: Vec<(DeviceKind, usize)> =
        device.layers().iter().map(|layer| (layer.kind(), layer.depth())).collect();
    if layers.iter().any(|(kind, _)| *kind == DeviceKind::Loop) {
        let layer = &device.layers()[below_loop(&layers)?];
        return stat_of(layer.major(), layer.minor());
    }
    stat_of(device.major(), device.minor()).or_else(|| {
        let source = fs::metadata(device.file_system()?.source()).ok()?;
        let (major, minor) = (rustix::fs::major(source.rdev()), rustix::fs::minor(source.rdev()));
        source.file_type().is_block_device().then(|| stat_of(major, minor))?
    })
}

/// Returns the place of the device that holds the file of the only loop device, in layers of a kind and a depth.
fn below_loop(layers: &[(DeviceKind, usize)]) -> Option<usize> {
    let mut loops = layers.iter().enumerate().filter(|(_, (kind, _))| *kind == DeviceKind::Loop);
    let (place, (_, depth)) = loops.next()?;
    // Several share the work between their files.
    let is_below = loops.next().is_none() && layers.get(place + 1).is_some_and(|(_, below)| below > depth);
    is_below.then_some(place + 1)
}

fn stat_of(major: u32, minor: u32) -> Option<PathBuf> {
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    path.exists().then_some(path)
}

/// Returns a setting of the queue of the device that `stat` counts; for a partition, of its disk.
pub(super) fn queue_setting(stat: &Path, name: &str) -> Option<String> {
    let device = fs::canonicalize(stat.parent()?).ok()?;
    let folders = ["queue", "../queue"].map(|folder| device.join(folder));
    let text = folders.iter().find_map(|folder| fs::read_to_string(folder.join(name)).ok())?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: all gates held on a loop device without direct I/O, whose reads this machine's page cache served: the loop
    /// device's own counters were mistaken for a device's.
    #[test]
    fn below_a_loop_device_the_device_of_its_file_counts() {
        use DeviceKind::{DeviceMapper, Disk, Loop, Partition, Raid};
        assert_eq!(below_loop(&[(Loop, 0), (Partition, 1), (Disk, 2)]), Some(1));
        assert_eq!(below_loop(&[(DeviceMapper, 0), (Loop, 1), (Disk, 2)]), Some(2));
        // A file that is deleted, or in another mount namespace, or on no device.
        assert_eq!(below_loop(&[(Loop, 0)]), None);
        assert_eq!(below_loop(&[(Raid, 0), (Loop, 1), (Disk, 1)]), None);
        assert_eq!(below_loop(&[(Raid, 0), (Loop, 1), (Disk, 2), (Loop, 1), (Disk, 2)]), None);
    }

    #[test]
    fn the_device_of_an_open_file_counts_when_there_is_one() {
        let file = File::open(env!("CARGO_MANIFEST_DIR")).expect("the checkout is there");
        // A checkout on overlayfs or a network file system has no device, which is a valid result too.
        if let Some(stat) = device_stat(&file) {
            let text = fs::read_to_string(stat).expect("the kernel offers it to all");
            assert!(text.split_whitespace().count() >= 11, "{text}");
        }
        assert_ne!(filesystem_of(Path::new(env!("CARGO_MANIFEST_DIR"))), "");
    }
}
