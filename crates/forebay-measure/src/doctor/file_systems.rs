//! How file systems differ for direct I/O, logs and stores.

use std::path::Path;

use super::{degraded, ok};
use forebay_report::check::Check;
use forebay_report::environment::{LayerInfo, PathInfo};

/// Fully supported file systems.
const FULLY_SUPPORTED: [&str; 2] = ["ext4", "xfs"];

/// The other file systems: the types in `/proc/self/mountinfo`, or with a dot at its end the prefix of one (`fuse.`); what such a
/// file system does differently; the remedy.
const OTHERS: [(&[&str], &str, &str); 5] = [
    (
        &["btrfs"],
        "data is written to a new place and has checksums: files that are overwritten fragment, and a write of part of a \
         block reads the rest first",
        "for logs and stores: `chattr +C` on the empty directory (without checksums), or ext4 or XFS",
    ),
    (
        &["tmpfs", "ramfs"],
        "data is in memory only: a sync does nothing, a restart loses everything, and there is no cache to bypass",
        "name a directory on a disk",
    ),
    (
        &["overlay"],
        "a container's layer above another file system: the first write to a file of the image copies all of it, and \
         polled reads are refused",
        "keep data on a volume or a bind mount, which is the file system below",
    ),
    (
        &["nfs", "nfs4"],
        "files are on another machine: each sync is a round trip, other clients see a write after close and open, polled \
         reads and fallocate are refused by some servers",
        "keep logs and stores on a local disk; for reads set `read_ahead` and the queue depth higher",
    ),
    (
        &["fuse", "fuseblk", "fuse."],
        "a program serves it: every call is a round trip to that program, and direct I/O, syncs and locks are what it \
         makes of them",
        "keep logs and stores on the file system below it",
    ),
];

/// Returns the finding about the type of the path's file system; `None` for a block device.
pub(super) fn examine(info: &PathInfo) -> Option<Check> {
    let name = info.file_system.as_deref()?;
    let named = |one: &&str| *one == name || (one.ends_with('.') && name.starts_with(*one));
    if let Some((_, why, remedy)) = OTHERS.iter().find(|(types, ..)| types.iter().any(named)) {
        return Some(degraded(format!("{name}: {why}"), *remedy));
    }
    Some(ok(if FULLY_SUPPORTED.contains(&name) {
        format!("{name} serves everything that Forebay does with files")
    } else {
        format!("Forebay is not tested on {name}; the lines below are what it did here")
    }))
}

/// Returns the finding about encryption by dm-crypt below the path; `None` without encryption.
pub(super) fn encryption(layers: &[LayerInfo], sysfs: &Path) -> Option<Check> {
    let encrypted = layers.iter().find(|layer| {
        let uuid = std::fs::read_to_string(sysfs.join("block").join(&layer.name).join("dm/uuid"));
        uuid.is_ok_and(|uuid| uuid.starts_with("CRYPT-"))
    })?;
    let why = format!(
        "{} is encrypted by dm-crypt: each request passes through threads of the kernel, and cannot be polled",
        encrypted.name
    );
    let remedy = "`cryptsetup refresh --perf-no_read_workqueue --perf-no_write_workqueue` saves the threads on a fast disk";
    Some(degraded(why, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;
    use forebay_report::check::Verdict;

    fn found(name: &str) -> Check {
        examine(&PathInfo { file_system: Some(name.to_owned()), ..PathInfo::default() })
            .expect("a file system")
    }

    #[test]
    fn each_file_system_has_its_own_finding() {
        for (name, words) in [
            ("btrfs", "checksums"),
            ("tmpfs", "tmpfs: data is in memory"),
            ("ramfs", "in memory"),
            ("overlay", "container"),
            ("nfs", "another machine"),
            ("nfs4", "another machine"),
            ("fuse", "a program serves it"),
            ("fuseblk", "a program serves it"),
            ("fuse.sshfs", "a program serves it"),
        ] {
            let check = found(name);
            assert_eq!(check.verdict, Verdict::Degraded, "{name}");
            assert!(check.why.contains(words) && check.remedy.is_some(), "{name}: {check:?}");
        }
        for name in FULLY_SUPPORTED {
            assert_eq!(found(name).verdict, Verdict::Ok);
        }
        // A type that only shares a prefix with another is not that type.
        assert!(found("fusectl").why.contains("not tested on fusectl"));
        assert!(examine(&PathInfo::default()).is_none());
    }

    #[test]
    fn encryption_is_found_by_the_mapping_s_uuid() {
        let cleanup = Cleanup::default();
        let sysfs = cleanup.temp_directory(&std::env::temp_dir(), "sysfs").expect("a directory");
        for (name, uuid) in [("dm-0", "LVM-abc"), ("dm-1", "CRYPT-LUKS2-abc")] {
            let folder = sysfs.path().join("block").join(name).join("dm");
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join("uuid"), uuid).expect("a file");
        }
        let layer = |name: &str| LayerInfo { name: name.to_owned(), ..LayerInfo::default() };
        assert!(encryption(&[layer("dm-0"), layer("sda")], sysfs.path()).is_none());
        let check = encryption(&[layer("dm-0"), layer("dm-1")], sysfs.path()).expect("dm-1 is encrypted");
        assert!(check.why.starts_with("dm-1 is encrypted"), "{check:?}");
    }
}
