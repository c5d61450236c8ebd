//! The layers beneath a file: its file system, and the block device that counts its requests.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay::device::Device;

/// Returns the type of the file system that holds `path`, or `an unknown file system`.
pub fn filesystem_of(path: &Path) -> String {
    let device = Device::of_path(path).unwrap_or_default();
    device.file_system().map_or("an unknown file system", |found| found.type_name()).to_owned()
}

/// Returns the file in which the kernel counts the requests of the device below `file`. File systems that
/// invent a device number (btrfs, overlayfs) have no such file by number. For them the source of the
/// mount is used.
pub fn device_stat(file: &File) -> Option<PathBuf> {
    let device = Device::of_fd(file.as_fd()).ok()?;
    stat_of(device.major(), device.minor()).or_else(|| {
        let source = fs::metadata(device.file_system()?.source()).ok()?;
        let (major, minor) = (rustix::fs::major(source.rdev()), rustix::fs::minor(source.rdev()));
        source.file_type().is_block_device().then(|| stat_of(major, minor))?
    })
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

    #[test]
    fn the_device_of_an_open_file_counts_when_there_is_one() {
        let file = File::open(env!("CARGO_MANIFEST_DIR")).expect("the checkout is there");
        // Where the checkout is on overlayfs or a network file system there is none, which is a
        // valid result too.
        if let Some(stat) = device_stat(&file) {
            let text = fs::read_to_string(stat).expect("the kernel offers it to all");
            assert!(text.split_whitespace().count() >= 11, "{text}");
        }
        assert_ne!(filesystem_of(Path::new(env!("CARGO_MANIFEST_DIR"))), "");
    }
}
