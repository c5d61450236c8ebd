//! `/proc/self/mountinfo`: the file system that a file is in, and its mount point (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The file system that a file is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    type_name: String,
    mount_point: PathBuf,
    source: String,
    options: String,
}

impl FileSystem {
    /// Returns its type as the kernel calls it: `ext4`, `xfs`, `tmpfs`, ...
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Returns the directory on which it is mounted.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Returns the source of the mount: a device's path, a server's export, or just a word.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the file system's own options, separated by commas.
    pub fn options(&self) -> &str {
        &self.options
    }

    /// Returns the file system of a simulated disk.
    #[cfg(feature = "_sim")]
    pub(super) fn simulated(source: &str) -> FileSystem {
        FileSystem {
            type_name: "sim".to_string(),
            mount_point: PathBuf::from("/"),
            source: source.to_string(),
            options: String::new(),
        }
    }

    /// Returns the value of an option such as `upperdir=...`.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.options.split(',').find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }
}

/// The identifiers from which the mount of a file is found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MountKey {
    /// statx(2) `stx_mnt_id`, Linux 5.8. Exact, also where files show another device number than their mount.
    pub(crate) id: Option<u64>,
    pub(crate) device: (u32, u32),
}

/// Finds the mount in the text of a mountinfo file, and returns its file system.
pub(crate) fn find(text: &[u8], key: MountKey) -> Option<FileSystem> {
    let mounts = || text.split(|&byte| byte == b'\n').filter_map(parse);
    key.id
        .and_then(|id| mounts().find(|mount| mount.id == id))
        // The last mount of a device is the one that hides the others.
        .or_else(|| mounts().rfind(|mount| mount.device == key.device))
        .map(|mount| mount.file_system)
}

struct Mount {
    id: u64,
    device: (u32, u32),
    file_system: FileSystem,
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let mut next = || fields.next();
    let id = text(next()?).parse().ok()?;
    let _parent = next()?;
    let device = numbers(&text(next()?))?;
    let _root = next()?;
    let mount_point = PathBuf::from(OsString::from_vec(unescape(next()?)));
    // Any number of optional fields follow the mount's options, up to a single hyphen.
    while next()? != b"-" {}
    let type_name = text(next()?);
    let source = text(next()?);
    let options = next().map(text).unwrap_or_default();
    Some(Mount { id, device, file_system: FileSystem { type_name, mount_point, source, options } })
}

/// Parses a text such as `"254:1"` into its numbers.
pub(crate) fn numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

/// Decodes a field. Space, tab, line feed and backslash are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let octal = after.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        match octal {
            Some(digits) if *first == b'\\' => {
                plain.push(
                    digits
                        .iter()
                        .fold(0, |value: u8, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')),
                );
                rest = &after[3..];
            }
            _ => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
30 27 0:27 / /dev/shm rw shared:5 master:2 - tmpfs tmpfs rw,size=24684084k\n\
31 27 0:27 / /mnt/with\\040space\\134 rw - tmpfs some\\040thing rw\n\
40 27 0:50 /sub /home rw - btrfs /dev/nvme0n1p2 rw,subvol=/sub\n\
41 27 0:60 / /merged rw - overlay overlay rw,lowerdir=/a,upperdir=/b/up,workdir=/w\n\
broken line\n\
42 27 8:1 / /boot rw";

    fn by_device(major: u32, minor: u32) -> Option<FileSystem> {
        find(TEXT, MountKey { id: None, device: (major, minor) })
    }

    #[test]
    fn finds_by_id_then_by_device() {
        let root = by_device(254, 0).unwrap();
        assert_eq!(
            (root.type_name(), root.mount_point(), root.source()),
            ("ext4", Path::new("/"), "/dev/vda")
        );
        let shm = find(TEXT, MountKey { id: Some(30), device: (254, 0) }).unwrap();
        assert_eq!((shm.type_name(), shm.mount_point()), ("tmpfs", Path::new("/dev/shm")));
        // Files of a subvolume have a separate device number; only the id finds the mount.
        assert_eq!(
            find(TEXT, MountKey { id: Some(40), device: (0, 51) }).unwrap().source(),
            "/dev/nvme0n1p2"
        );
        let unknown_id = find(TEXT, MountKey { id: Some(999), device: (254, 0) });
        assert_eq!(unknown_id.unwrap().type_name(), "ext4");
    }

    #[test]
    fn the_last_mount_counts_and_escapes_are_undone() {
        let last = by_device(0, 27).unwrap();
        assert_eq!((last.mount_point(), last.source()), (Path::new("/mnt/with space\\"), "some thing"));
    }

    #[test]
    fn options_have_values() {
        let overlay = by_device(0, 60).unwrap();
        assert_eq!(overlay.option("upperdir"), Some("/b/up"));
        assert_eq!((overlay.option("upper"), overlay.option("none")), (None, None));
    }

    #[test]
    fn broken_lines_are_passed_over() {
        assert_eq!(by_device(8, 1), None);
        assert_eq!(find(b"", MountKey::default()), None);
        assert_eq!((numbers("8:1\n"), numbers("8"), numbers("a:b")), (Some((8, 1)), None, None));
    }
}
