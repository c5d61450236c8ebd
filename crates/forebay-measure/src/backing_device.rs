//! The layers beneath a file: its file system, and the block device that counts its requests.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::cgroup::unescape;

/// Returns the type of the file system that holds `path` (which is canonical), or `an unknown file system`.
pub fn filesystem_of(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mount_of(&mounts, path).map_or_else(|| "an unknown file system".to_owned(), |(kind, _)| kind)
}

/// Returns type and source of the mount that holds `path`: the deepest mount point above it, and the last
/// one where several are stacked on it.
fn mount_of(mountinfo: &str, path: &Path) -> Option<(String, String)> {
    let mut best = None;
    let mut depth = 0;
    for line in mountinfo.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let Some(point) = before.split(' ').nth(4).map(unescape) else { continue };
        let mut after = after.split(' ');
        let (Some(kind), Some(source)) = (after.next(), after.next()) else { continue };
        let here = Path::new(&point).components().count();
        if path.starts_with(&point) && here >= depth {
            depth = here;
            best = Some((kind.to_owned(), unescape(source)));
        }
    }
    best
}

/// Returns the file in which the kernel counts the requests of the device below `file`. File systems that
/// invent a device number (btrfs, overlayfs) have no such file by number. For them the source of the
/// mount is used.
pub fn device_stat(file: &File) -> Option<PathBuf> {
    let metadata = file.metadata().ok()?;
    let device = if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() };
    stat_of_device(device).or_else(|| {
        let path = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file))).ok()?;
        let (_, source) = mount_of(&fs::read_to_string("/proc/self/mountinfo").ok()?, &path)?;
        let source = fs::metadata(source).ok()?;
        source.file_type().is_block_device().then(|| stat_of_device(source.rdev()))?
    })
}

fn stat_of_device(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    path.exists().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
        23 27 0:22 / /sys rw - sysfs sysfs rw\n\
        60 27 8:1 / /srv/my\\040data rw shared:1 - xfs /dev/sda1 rw\n\
        61 60 0:40 / /srv/my\\040data rw - tmpfs tmpfs rw\n";

    #[test]
    fn the_deepest_and_last_mount_holds_the_path() {
        let kind = |path: &str| mount_of(MOUNTS, Path::new(path)).map(|(kind, _)| kind);
        assert_eq!(kind("/srv/other").as_deref(), Some("ext4"));
        assert_eq!(kind("/srv/my data/file").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/system/file").as_deref(), Some("ext4"));
        assert_eq!(mount_of("", Path::new("/")), None);
    }

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
