//! The layers from a place in a file system down to the disks: partitions, device mapper, RAID, loop devices.

use std::fs;
use std::path::{Path, PathBuf};

use super::mountinfo::{self, FileSystem, MountKey};
use super::sysfs;

/// The kind of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A whole disk, real or virtual.
    Disk,
    /// A part of a disk.
    Partition,
    /// A device made of others by the device mapper: a logical volume, an encrypted volume, ...
    DeviceMapper,
    /// A device made of others by the kernel's RAID driver (md).
    Raid,
    /// A file that looks like a device.
    Loop,
    /// Compressed memory.
    Zram,
    /// Memory.
    Ram,
    /// No block device: memory (tmpfs), the network (NFS), another process (FUSE), or a pool of the file
    /// system's own (ZFS).
    Anonymous,
    /// Unknown, because the system is not Linux or sysfs is missing.
    Unknown,
}

/// One block device below a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    name: String,
    kind: DeviceKind,
    numbers: (u32, u32),
    depth: usize,
    bottom: bool,
    path: PathBuf,
}

impl Layer {
    /// Returns its name, as under `/dev` or `/sys/block`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its kind.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Returns its major number.
    pub fn major(&self) -> u32 {
        self.numbers.0
    }

    /// Returns its minor number.
    pub fn minor(&self) -> u32 {
        self.numbers.1
    }

    /// Returns how many layers are above it: 0 for the one that the file system is on.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns whether it has no known layers below: it is a physical device.
    pub fn is_physical(&self) -> bool {
        self.bottom
    }

    /// Returns its directory in sysfs; for a partition the disk's, which has the figures.
    pub(crate) fn whole(&self) -> &Path {
        let parent = self.path.parent().filter(|_| self.kind == DeviceKind::Partition);
        parent.unwrap_or(&self.path)
    }

    #[cfg(test)]
    pub(crate) fn for_test(name: &str) -> Layer {
        let kind = DeviceKind::Disk;
        Layer { name: name.to_string(), kind, numbers: (7, 7), depth: 0, bottom: true, path: PathBuf::new() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The result of looking up a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PathTarget {
    /// The path is a block device with these numbers.
    Block((u32, u32)),
    /// The path is in a file system.
    Inside(MountKey),
}

/// The parts of the system that show which device is on top of which; tests provide their own.
pub(crate) struct System<'a> {
    /// sysfs, with all links resolved.
    pub(crate) sys: &'a Path,
    /// The text of `/proc/self/mountinfo`.
    pub(crate) mounts: &'a [u8],
    /// Looks a path up.
    pub(crate) lookup: &'a dyn Fn(&Path) -> Option<PathTarget>,
}

/// The limit for the depth to which stacked devices and file systems on files are followed.
const DEPTH_MAX: usize = 16;

impl System<'_> {
    /// Returns the file system of a place, and all block devices below it from top to bottom, each once.
    pub(crate) fn below(&self, place: PathTarget) -> (Option<FileSystem>, Vec<Layer>) {
        let mut layers = Vec::new();
        self.add_place(place, 0, &mut layers);
        let file_system = match place {
            PathTarget::Inside(key) => mountinfo::find(self.mounts, key),
            PathTarget::Block(_) => None,
        };
        (file_system, layers)
    }

    fn add_place(&self, place: PathTarget, depth: usize, layers: &mut Vec<Layer>) -> bool {
        match place {
            PathTarget::Block(numbers) => self.add_device(numbers, depth, layers),
            PathTarget::Inside(key) => match key.device {
                // A device with a major number of 0 exists in name only: its real devices follow from the
                // file system's source.
                (0, _) => mountinfo::find(self.mounts, key)
                    .is_some_and(|file_system| self.add_below_file_system(&file_system, depth, layers)),
                numbers => self.add_device(numbers, depth, layers),
            },
        }
    }

    /// Adds a device and the layers below it. Returns `false` if it has nothing to add.
    fn add_device(&self, numbers: (u32, u32), depth: usize, layers: &mut Vec<Layer>) -> bool {
        if depth > DEPTH_MAX {
            return false;
        }
        if layers.iter().any(|layer| layer.numbers == numbers) {
            return true;
        }
        let link = self.sys.join(format!("dev/block/{}:{}", numbers.0, numbers.1));
        let Some(path) = sysfs::optional(fs::canonicalize(link)) else { return false };
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let kind = kind(&path, &name);
        let index = layers.len();
        layers.push(Layer { name, kind, numbers, depth, bottom: true, path: path.clone() });
        let below: Vec<PathTarget> = match kind {
            DeviceKind::Partition => {
                path.parent().and_then(sysfs::numbers).map(PathTarget::Block).into_iter().collect()
            }
            DeviceKind::Loop => {
                sysfs::backing_file(&path).and_then(|file| (self.lookup)(&file)).into_iter().collect()
            }
            _ => devices_in(&path.join("slaves")).map(PathTarget::Block).collect(),
        };
        for place in below {
            if self.add_place(place, depth + 1, layers) {
                layers[index].bottom = false;
            }
        }
        true
    }

    fn add_below_file_system(&self, file_system: &FileSystem, depth: usize, layers: &mut Vec<Layer>) -> bool {
        if depth > DEPTH_MAX {
            return false;
        }
        // New files of an overlay are in its upper directory; one without is read-only.
        let lower = || file_system.option("lowerdir").and_then(|dirs| dirs.split(':').next());
        if let Some(dir) = file_system.option("upperdir").or_else(lower) {
            return (self.lookup)(Path::new(dir))
                .is_some_and(|place| self.add_place(place, depth + 1, layers));
        }
        let mut added = false;
        // btrfs, bcachefs: the devices' paths, the latter's separated by colons. A server's export has a colon, too.
        let sources: Vec<&str> = file_system.source().split(':').collect();
        if !sources.iter().all(|source| source.starts_with('/')) {
            return false;
        }
        for source in sources {
            let Some(PathTarget::Block(numbers)) = (self.lookup)(Path::new(source)) else { continue };
            for numbers in self.btrfs_devices(numbers) {
                added |= self.add_device(numbers, depth, layers);
            }
        }
        added
    }

    /// Returns all devices of the btrfs that this one belongs to, or just this one.
    fn btrfs_devices(&self, numbers: (u32, u32)) -> Vec<(u32, u32)> {
        let systems = sysfs::optional(fs::read_dir(self.sys.join("fs/btrfs")));
        let systems = systems.into_iter().flatten().flatten();
        let mut sets = systems.map(|system| devices_in(&system.path().join("devices")).collect::<Vec<_>>());
        sets.find(|devices| devices.contains(&numbers)).unwrap_or_else(|| vec![numbers])
    }
}

/// Returns the numbers of the devices that a directory of sysfs links to, in the order of their names.
fn devices_in(directory: &Path) -> impl Iterator<Item = (u32, u32)> {
    let entries = sysfs::optional(fs::read_dir(directory)).into_iter().flatten().flatten();
    let mut links: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    links.sort();
    links.into_iter().filter_map(|link| sysfs::numbers(&link))
}

fn kind(path: &Path, name: &str) -> DeviceKind {
    let has = |attribute: &str| path.join(attribute).exists();
    let numbered = |prefix: &str| {
        let digits = name.strip_prefix(prefix);
        digits.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if has("partition") {
        DeviceKind::Partition
    } else if has("dm") {
        DeviceKind::DeviceMapper
    } else if has("md") {
        DeviceKind::Raid
    } else if numbered("loop") {
        DeviceKind::Loop
    } else if numbered("zram") {
        DeviceKind::Zram
    } else if numbered("ram") {
        DeviceKind::Ram
    } else {
        DeviceKind::Disk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A sysfs made by the test in a temporary directory.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Tree {
            let tree = Tree(tempfile::tempdir().unwrap());
            fs::create_dir_all(tree.sys().join("dev/block")).unwrap();
            tree
        }

        fn sys(&self) -> PathBuf {
            fs::canonicalize(self.0.path()).unwrap()
        }

        /// A device at `path` below `devices`, made of `slaves`, with empty files called `marks`.
        fn device(&self, path: &str, numbers: &str, marks: &[&str], slaves: &[&str]) {
            let dir = self.sys().join("devices").join(path);
            fs::create_dir_all(dir.join("slaves")).unwrap();
            fs::write(dir.join("dev"), format!("{numbers}\n")).unwrap();
            for mark in marks {
                fs::write(dir.join(mark), "1\n").unwrap();
            }
            for slave in slaves {
                let target = self.sys().join("devices").join(slave);
                symlink(&target, dir.join("slaves").join(target.file_name().unwrap())).unwrap();
            }
            symlink(dir, self.sys().join("dev/block").join(numbers)).unwrap();
        }

        fn below(
            &self,
            place: PathTarget,
            mounts: &str,
            lookup: &dyn Fn(&Path) -> Option<PathTarget>,
        ) -> Vec<String> {
            let sys = self.sys();
            let (_, layers) = System { sys: &sys, mounts: mounts.as_bytes(), lookup }.below(place);
            let line = |layer: &Layer| {
                let end = if layer.is_physical() { "." } else { "" };
                format!("{}{} {:?}{end}", " ".repeat(layer.depth()), layer.name(), layer.kind())
            };
            layers.iter().map(line).collect()
        }
    }

    fn nothing(_: &Path) -> Option<PathTarget> {
        None
    }

    fn inside(major: u32, minor: u32) -> PathTarget {
        PathTarget::Inside(MountKey { id: None, device: (major, minor) })
    }

    /// Returns a sysfs with a logical volume on a RAID of two partitions on two disks.
    fn stacked() -> Tree {
        let tree = Tree::new();
        tree.device("sda", "8:0", &[], &[]);
        tree.device("sda/sda1", "8:1", &["partition"], &[]);
        tree.device("sdb", "8:16", &[], &[]);
        tree.device("sdb/sdb1", "8:17", &["partition"], &[]);
        tree.device("md0", "9:0", &["md"], &["sda/sda1", "sdb/sdb1"]);
        tree.device("dm-0", "253:0", &["dm"], &["md0"]);
        tree
    }

    #[test]
    fn follows_a_stack_to_its_disks() {
        let expected = [
            "dm-0 DeviceMapper",
            " md0 Raid",
            "  sda1 Partition",
            "   sda Disk.",
            "  sdb1 Partition",
            "   sdb Disk.",
        ];
        assert_eq!(stacked().below(inside(253, 0), "", &nothing), expected);
    }

    #[test]
    fn a_loop_device_leads_to_the_device_of_its_file() {
        let tree = stacked();
        tree.device("loop3", "7:3", &[], &[]);
        let backing = tree.sys().join("devices/loop3/loop");
        fs::create_dir_all(&backing).unwrap();
        fs::write(backing.join("backing_file"), "/images/a b.img\n").unwrap();
        let lookup = |path: &Path| (path == Path::new("/images/a b.img")).then_some(inside(8, 1));
        let expected = ["loop3 Loop", " sda1 Partition", "  sda Disk."];
        assert_eq!(tree.below(PathTarget::Block((7, 3)), "", &lookup), expected);
        assert_eq!(tree.below(PathTarget::Block((7, 3)), "", &nothing), ["loop3 Loop."]);
        // A loop device whose file is on the device itself does not make the search endless.
        assert_eq!(tree.below(PathTarget::Block((7, 3)), "", &|_| Some(inside(7, 3))), ["loop3 Loop"]);
    }

    #[test]
    fn file_systems_with_devices_of_their_own_say_where_they_are() {
        let tree = stacked();
        let mounts = "\
            1 0 0:40 /s /b rw - btrfs /dev/sda1 rw\n\
            2 0 0:50 / /m rw - overlay overlay rw,lowerdir=/l,upperdir=/up\n\
            3 0 0:60 / /t rw - tmpfs tmpfs rw\n\
            4 0 0:70 / /n rw - nfs4 server:/dev/sda1 rw\n";
        let lookup = |path: &Path| match path.to_str()? {
            "/dev/sda1" => Some(PathTarget::Block((8, 1))),
            "/up" => Some(PathTarget::Inside(MountKey { id: Some(1), device: (0, 41) })),
            _ => None,
        };
        let btrfs = PathTarget::Inside(MountKey { id: Some(1), device: (0, 41) });
        assert_eq!(tree.below(btrfs, mounts, &lookup), ["sda1 Partition", " sda Disk."]);
        let overlay = tree.below(inside(0, 50), mounts, &lookup);
        assert_eq!(overlay, [" sda1 Partition", "  sda Disk."]);
        assert!(tree.below(inside(0, 60), mounts, &lookup).is_empty());
        // Two devices in one btrfs: sysfs lists them.
        let devices = tree.sys().join("fs/btrfs/some-uuid/devices");
        fs::create_dir_all(&devices).unwrap();
        for (name, path) in [("sda1", "sda/sda1"), ("sdb1", "sdb/sdb1")] {
            symlink(tree.sys().join("devices").join(path), devices.join(name)).unwrap();
        }
        assert_eq!(tree.below(btrfs, mounts, &lookup).len(), 4);
    }

    #[test]
    fn an_export_named_like_a_device_is_not_one() {
        let tree = stacked();
        let mounts = "4 0 0:70 / /n rw - nfs4 server:/dev/sda1 rw\n";
        let lookup = |_: &Path| Some(PathTarget::Block((8, 1)));
        assert!(tree.below(inside(0, 70), mounts, &lookup).is_empty());
    }

    #[test]
    fn unknown_devices_are_nothing() {
        assert!(Tree::new().below(inside(8, 0), "", &nothing).is_empty());
    }
}
