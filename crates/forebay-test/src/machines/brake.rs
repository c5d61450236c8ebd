//! Slow disks: a cgroup for each node, with a limit for its device.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::mounts;

/// A disk with a brake makes this many writes a second: less than a node needs for an entry each.
const WRITES_PER_S: u32 = 12;

/// Groups with limits for devices. They are removed with this.
#[derive(Debug)]
pub(super) struct Brakes {
    is_unified: bool,
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    dir: PathBuf,
    /// `major:minor`.
    device: String,
}

impl Brakes {
    /// Makes a group for each device. `None` if this kernel, or this process, has no controller for them.
    pub(super) fn new(name: &str, devices: Vec<String>) -> Option<Brakes> {
        let (root, is_unified) = controller()?;
        let mut brakes = Brakes { is_unified, groups: Vec::new() };
        for (node, device) in devices.into_iter().enumerate() {
            let dir = root.join(format!("{name}n{node}"));
            fs::create_dir(&dir).ok()?;
            brakes.groups.push(Group { dir, device });
            brakes.off(node).ok()?;
        }
        Some(brakes)
    }

    pub(super) fn on(&self, node: usize, process: u32) -> io::Result<()> {
        fs::write(self.groups[node].dir.join("cgroup.procs"), process.to_string())?;
        self.limit(node, Some(WRITES_PER_S))
    }

    pub(super) fn off(&self, node: usize) -> io::Result<()> {
        self.limit(node, None)
    }

    fn limit(&self, node: usize, writes_per_s: Option<u32>) -> io::Result<()> {
        let Group { dir, device } = &self.groups[node];
        if self.is_unified {
            let limit = writes_per_s.map_or("max".to_owned(), |limit| limit.to_string());
            fs::write(dir.join("io.max"), format!("{device} wiops={limit}"))
        } else {
            let line = format!("{device} {}", writes_per_s.unwrap_or(0));
            fs::write(dir.join("blkio.throttle.write_iops_device"), line)
        }
    }

    pub(super) fn writes(&self, node: usize) -> u64 {
        let Group { dir, device } = &self.groups[node];
        let file = if self.is_unified { "io.stat" } else { "blkio.throttle.io_serviced" };
        counted(&fs::read_to_string(dir.join(file)).unwrap_or_default(), device)
    }
}

/// Returns a device's writes in a file of statistics, of either kind.
fn counted(statistics: &str, device: &str) -> u64 {
    let of_device = statistics.lines().filter_map(|line| line.strip_prefix(device));
    let written = of_device.filter_map(|rest| {
        let rest = rest.strip_prefix(' ')?;
        let older = rest.strip_prefix("Write ");
        older.or_else(|| rest.split(' ').find_map(|field| field.strip_prefix("wios=")))?.parse::<u64>().ok()
    });
    written.sum()
}

/// Returns where groups can be made, and whether it is the one hierarchy of cgroup2.
pub(super) fn controller() -> Option<(PathBuf, bool)> {
    let mounts = mounts();
    let older = mounts
        .iter()
        .find(|[_, _, kind, options]| kind == "cgroup" && options.split(',').any(|one| one == "blkio"));
    if let Some([_, dir, ..]) = older {
        return Some((PathBuf::from(dir), false));
    }
    let [_, dir, ..] = mounts.iter().find(|[_, _, kind, _]| kind == "cgroup2")?;
    let dir = Path::new(dir);
    let has_io = |file: &str| {
        let controllers = fs::read_to_string(dir.join(file)).unwrap_or_default();
        controllers.split_whitespace().any(|controller| controller == "io")
    };
    let can = has_io("cgroup.subtree_control")
        || (has_io("cgroup.controllers") && fs::write(dir.join("cgroup.subtree_control"), "+io").is_ok());
    can.then(|| (dir.to_owned(), true))
}

impl Drop for Brakes {
    fn drop(&mut self) {
        for Group { dir, .. } in &self.groups {
            // Its processes have ended, as the disks are unmounted.
            let _ = fs::remove_dir(dir);
        }
    }
}

#[test]
fn writes_are_counted_in_both_kinds_of_statistics() {
    let older = "7:0 Read 3\n7:0 Write 11\n7:0 Sync 14\n7:0 Total 14\n7:10 Write 5\nTotal 14\n";
    assert_eq!((counted(older, "7:0"), counted(older, "7:10"), counted(older, "7:1")), (11, 5, 0));
    let unified =
        "7:0 rbytes=0 wbytes=8192 rios=0 wios=2 dbytes=0 dios=0\n253:0 rbytes=1 wbytes=1 rios=1 wios=9\n";
    assert_eq!((counted(unified, "7:0"), counted(unified, "253:0")), (2, 9));
}
