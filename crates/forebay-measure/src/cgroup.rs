//! The cgroups of this process with their limits, and memory cgroups that this program creates for one child process each:
//! cgroup v1 and v2.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cleanup::{Cleanup, Guard, has_exited};
use crate::sampler;

/// The names that a new group tries.
const NAMES_MAX: u32 = 1_000;

/// A cgroup above this process: a directory in which other cgroups may be possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    version: Version,
    directory: PathBuf,
    /// The name of the group in its mount, such as `/user.slice`.
    name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// Files of the memory controller, by version.
const LIMIT: [&str; 2] = ["memory.limit_in_bytes", "memory.max"];
const PEAK: [&str; 2] = ["memory.max_usage_in_bytes", "memory.peak"];
/// The amount of swap or the inclination to it, which becomes 0.
const SWAP: [&str; 2] = ["memory.swappiness", "memory.swap.max"];

/// The smallest memory limit that applies to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    /// The limit in bytes, page cache included.
    pub(crate) bytes: u64,
    /// The cgroup that sets the limit.
    pub(crate) cgroup: String,
    /// `v1` or `v2`.
    pub(crate) version: &'static str,
}

impl MemoryLimit {
    /// Reads the limits of the process's own cgroup and of all above it, and returns the smallest. `None` without a limit, or when
    /// no limit can be read.
    pub(crate) fn of_this_process() -> Option<Self> {
        Self::smallest(Parent::candidates())
    }

    fn smallest(groups: Vec<Parent>) -> Option<Self> {
        let limit = |group: Parent| {
            let bytes = parse_limit(&group.text(LIMIT[group.version as usize]))?;
            Some(Self { bytes, version: group.version(), cgroup: group.name })
        };
        groups.into_iter().filter_map(limit).min_by_key(|limit| limit.bytes)
    }
}

impl Parent {
    /// Returns the best place where a child can be run in a group with this limit, by a real attempt.
    ///
    /// # Errors
    /// The reason why no group can be used.
    pub fn find(limit_bytes: u64, cleanup: &Cleanup) -> Result<Self, String> {
        let mut refusal = None;
        for parent in Self::candidates() {
            sweep(&parent);
            let group = Group::create(&parent, limit_bytes, 0, cleanup).map_err(|error| error.to_string());
            let tried =
                group.and_then(|group| sampler::probe(&group, cleanup).map_err(|error| format!("{error:#}")));
            match tried {
                Ok(()) => return Ok(parent),
                // The first refusal concerns the best place and explains most.
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        Err(refusal.unwrap_or_else(|| "no memory cgroup hierarchy is mounted".to_owned()))
    }

    /// Returns the places where this process may try, the best first: below its own cgroup, then below
    /// each ancestor (cgroup v2 gives a memory controller only to children of groups that hold no
    /// process themselves).
    pub(super) fn candidates() -> Vec<Self> {
        Self::of("memory")
    }

    /// Returns the places for groups of the io controller, which is there in cgroup v2 only.
    pub(super) fn of_io() -> Vec<Self> {
        Self::of("io").into_iter().filter(|parent| parent.version == Version::V2).collect()
    }

    fn of(controller: &str) -> Vec<Self> {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        candidates_from(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"), controller)
    }

    /// Returns the text of one of its files; empty if the file does not exist.
    pub(super) fn text(&self, file: &str) -> String {
        fs::read_to_string(self.directory.join(file)).unwrap_or_default()
    }

    /// Returns the version of the group's hierarchy: `v1` or `v2`.
    pub const fn version(&self) -> &'static str {
        match self.version {
            Version::V1 => "v1",
            Version::V2 => "v2",
        }
    }
}

/// Returns the files in which the groups of this process, its own first, count the processor time that
/// they withheld.
pub(super) fn cpu_stats() -> Vec<PathBuf> {
    Parent::of("cpu").into_iter().map(|group| group.directory.join("cpu.stat")).collect()
}

/// The marks of the limits in a file: of reads a second, and of bytes a second.
pub(super) type IoMarks = [Option<&'static str>; 2];

/// The files with limits on reads: `8:0 rbps=max wbps=max riops=5000 wiops=max` in cgroup v2, `8:0 5000` in v1.
pub(super) const IO_LIMITS: [(&str, IoMarks); 3] = [
    ("io.max", [Some("riops="), Some("rbps=")]),
    ("blkio.throttle.read_iops_device", [Some(""), None]),
    ("blkio.throttle.read_bps_device", [None, Some("")]),
];

/// Returns the files with limits on reads of this process: those of its groups and of all above them.
pub(super) fn io_limit_files() -> Vec<(PathBuf, IoMarks)> {
    let groups = ["io", "blkio"].into_iter().flat_map(Parent::of);
    let files = |group: Parent| {
        let own = if group.version == Version::V2 { &IO_LIMITS[..1] } else { &IO_LIMITS[1..] };
        own.iter().map(move |(file, marks)| (group.directory.join(file), *marks))
    };
    groups.flat_map(files).collect()
}

/// One cgroup; it is removed when dropped, and when a signal ends the program.
#[derive(Debug)]
pub struct Group {
    version: Version,
    directory: PathBuf,
    #[allow(dead_code, reason = "held for its Drop")]
    guard: Guard,
}

impl Group {
    /// Creates a cgroup that may use `limit_bytes` of memory, page cache included, and no swap.
    ///
    /// # Errors
    /// Fails when the user may not create cgroups here, or the memory controller does not reach this place.
    pub fn create(parent: &Parent, limit_bytes: u64, number: u64, cleanup: &Cleanup) -> io::Result<Self> {
        let limit = (LIMIT[parent.version as usize], limit_bytes.to_string());
        let group = Self::create_with(parent, (limit.0, &limit.1), number, cleanup)?;
        // Neither file exists everywhere (no swap accounting), and without swap both have no effect.
        let _ = group.write(SWAP[group.version as usize], "0");
        Ok(group)
    }

    /// Creates a cgroup of which one file has this text.
    ///
    /// # Errors
    /// Fails when the user may not create cgroups here, or the controller of the file does not reach this place.
    pub(super) fn create_with(
        parent: &Parent,
        (file, text): (&str, &str),
        number: u64,
        cleanup: &Cleanup,
    ) -> io::Result<Self> {
        let name = format!("forebay-{}-{number}", std::process::id());
        let mut directory = parent.directory.join(&name);
        // Each container numbers its processes: one that was killed may have left a group of this name, and one that runs may have it.
        let mut others = 2..NAMES_MAX;
        let guard = loop {
            let doomed = directory.clone();
            let created = cleanup.create(|| fs::create_dir(&directory), move || remove(&doomed));
            match (created, others.next()) {
                (Err(error), Some(other)) if error.kind() == io::ErrorKind::AlreadyExists => {
                    directory = parent.directory.join(format!("{name}-{other}"));
                }
                (created, _) => break created?.1,
            }
        };
        let group = Self { version: parent.version, directory, guard };
        group.write(file, text)?;
        Ok(group)
    }

    /// Returns the path of the file into which a process writes `0` to move itself into the group.
    pub(super) fn procs_path(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// Opens that file.
    ///
    /// # Errors
    /// Fails when the user may not move processes here.
    pub(super) fn procs_file(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.procs_path())
    }

    /// Returns the most memory that the group ever held, page cache and kernel memory included. `None`
    /// before Linux 5.19 on cgroup v2.
    pub fn peak_bytes(&self) -> Option<u64> {
        parse_limit(&fs::read_to_string(self.directory.join(PEAK[self.version as usize])).ok()?)
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        let path = self.directory.join(file);
        // Not fs::write, which would create the file where the controller does not offer it.
        overwrite(&path, text).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(
                error.kind(),
                format!("the controller of {file} is not enabled for {}", self.directory.display()),
            ),
            kind => io::Error::new(kind, format!("{}: {error}", path.display())),
        })
    }
}

/// Removes the groups that killed runs of this program left below `parent`: those named after a process that has exited.
pub(super) fn sweep(parent: &Parent) {
    let Ok(entries) = fs::read_dir(&parent.directory) else { return };
    for entry in entries.flatten() {
        if let Some(pid) = owner(&entry.file_name().to_string_lossy())
            && has_exited(pid)
        {
            // rmdir refuses a group in which a process still lives, so nothing in use can be lost.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn owner(name: &str) -> Option<u32> {
    name.strip_prefix("forebay-")?.split_once('-')?.0.parse().ok()
}

/// Removes a group that is, or soon will be, empty.
fn remove(directory: &Path) {
    // Release the page cache now, rather than leave it charged to a group that no longer has a name.
    let _ = overwrite(&directory.join("memory.force_empty"), "0");
    // A process that has just ended may still be counted for a moment.
    let deadline = Instant::now() + Duration::from_secs(2);
    while fs::remove_dir(directory).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
        && Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn overwrite(file: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
}

/// Parses a limit. `max`, and the huge number that cgroup v1 shows for "no limit", are `None`.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 60)
}

fn candidates_from(mountinfo: &str, own: &str, controller: &str) -> Vec<Parent> {
    let has = |names: &str| names.split(',').any(|name| name == controller);
    let mut found = Vec::new();
    // A v1 memory hierarchy claims the controller, which v2 then lacks, so v1 is checked first.
    for version in [Version::V1, Version::V2] {
        let own_path = |line| {
            let [number, controllers, path] = fields(line, ':')?;
            let is_own = match version {
                Version::V1 => has(controllers),
                Version::V2 => number == "0" && controllers.is_empty(),
            };
            is_own.then(|| path.trim_start_matches('/'))
        };
        let mount = |line: &str| {
            let (before, after) = line.split_once(" - ")?;
            let ([_, _, _, root, point], [kind, _, options]) = (fields(before, ' ')?, fields(after, ' ')?);
            let is_own = match version {
                Version::V1 => kind == "cgroup" && has(options),
                Version::V2 => kind == "cgroup2",
            };
            let point = point.split(' ').next().map(unescape)?;
            is_own.then(|| (root.trim_start_matches('/').to_owned(), PathBuf::from(point)))
        };
        let Some(path) = own.lines().find_map(own_path) else { continue };
        for (root, top) in mountinfo.lines().filter_map(mount) {
            // Where the process's group lies outside the mounted part (no cgroup namespace), the mount's
            // top is the nearest group that can be named.
            let inside = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
            for name in inside.ancestors() {
                // Joining an empty path would still add a slash.
                let directory = if name.as_os_str().is_empty() { top.clone() } else { top.join(name) };
                let parent = Parent { version, directory, name: format!("/{}", name.display()) };
                if !found.contains(&parent) {
                    found.push(parent);
                }
            }
        }
    }
    found
}

/// Splits a line; the last field holds the rest.
fn fields<const N: usize>(line: &str, separator: char) -> Option<[&str; N]> {
    line.splitn(N, separator).collect::<Vec<_>>().try_into().ok()
}

/// Decodes the blanks and backslashes that mountinfo writes as three octal digits.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1_MOUNTS: &str = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const V1_OWN: &str = "9:name=systemd:/\n4:memory:/jobs/17\n3:cpuset,cpu:/\n0::/\n";
    const V2_MOUNTS: &str = "29 22 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V2_OWN: &str = "0::/user.slice/user-1000.slice/session-2.scope\n";

    fn directories(parents: &[Parent]) -> Vec<(&'static str, &str)> {
        parents
            .iter()
            .map(|parent| (parent.version(), parent.directory.to_str().expect("plain names")))
            .collect()
    }

    #[test]
    fn a_v1_hierarchy_is_read_before_the_empty_v2_one() {
        assert_eq!(
            directories(&candidates_from(V1_MOUNTS, V1_OWN, "memory")),
            [
                ("v1", "/sys/fs/cgroup/memory/jobs/17"),
                ("v1", "/sys/fs/cgroup/memory/jobs"),
                ("v1", "/sys/fs/cgroup/memory"),
                ("v2", "/sys/fs/cgroup/unified"),
            ]
        );
    }

    #[test]
    fn controllers_may_have_places_of_their_own() {
        let found = candidates_from(V1_MOUNTS, V1_OWN, "cpu");
        assert_eq!(directories(&found), [("v1", "/sys/fs/cgroup/cpu"), ("v2", "/sys/fs/cgroup/unified")]);
    }

    #[test]
    fn v2_goes_up_to_the_top_of_the_mount() {
        assert_eq!(
            directories(&candidates_from(V2_MOUNTS, V2_OWN, "memory")),
            [
                ("v2", "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope"),
                ("v2", "/sys/fs/cgroup/user.slice/user-1000.slice"),
                ("v2", "/sys/fs/cgroup/user.slice"),
                ("v2", "/sys/fs/cgroup"),
            ]
        );
    }

    #[test]
    fn a_container_that_sees_its_group_as_the_mount_root_stays_inside() {
        let mounts = "40 30 0:32 /docker/ab12 /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n";
        let own = "5:memory:/docker/ab12\n";
        assert_eq!(directories(&candidates_from(mounts, own, "memory")), [("v1", "/sys/fs/cgroup/memory")]);
        // Regression: `doctor` looked for a limit of a group below that root at the group's path outside.
        let found = candidates_from(mounts, "5:memory:/docker/ab12/sub\n", "memory");
        let names: Vec<&str> = found.iter().map(|parent| parent.name.as_str()).collect();
        assert_eq!(names, ["/sub", "/"]);
    }

    #[test]
    fn nothing_mounted_is_nothing_found() {
        assert!(candidates_from("", V2_OWN, "memory").is_empty());
        assert!(candidates_from(V2_MOUNTS, "", "memory").is_empty());
    }

    #[test]
    fn limits_are_read_and_no_limit_is_recognised() {
        assert_eq!(parse_limit("268435456\n"), Some(268_435_456));
        assert_eq!(parse_limit("max\n"), None);
        assert_eq!(parse_limit("9223372036854771712\n"), None);
    }

    #[test]
    fn only_names_with_a_process_number_are_swept() {
        assert_eq!(owner("forebay-123-4"), Some(123));
        assert_eq!(owner("forebay-x-4"), None);
        assert_eq!(owner("forebay-123"), None);
        assert_eq!(owner("session-2.scope"), None);
    }

    #[test]
    fn a_directory_without_the_controller_is_an_error_and_leaves_nothing() {
        let top = std::env::temp_dir().join(format!("forebay-cgroup-test-{}", std::process::id()));
        fs::create_dir(&top).expect("the temp directory is writable");
        let parent = Parent { version: Version::V2, directory: top.clone(), name: "/".to_owned() };
        let cleanup = Cleanup::default();
        let error = Group::create(&parent, 1 << 20, 0, &cleanup).expect_err("there is no memory.max");
        assert!(error.to_string().contains("not enabled"), "{error}");
        assert_eq!(fs::read_dir(&top).expect("it exists").count(), 0);
        fs::remove_dir(&top).expect("it is empty");
    }

    /// Story: the program was killed in a container. In the next one it had the same number, and said that no limit of memory was possible.
    #[test]
    fn a_group_of_the_same_number_is_passed_over() {
        let cleanup = Cleanup::default();
        let top = cleanup.temp_directory(&std::env::temp_dir(), "groups").expect("writable");
        let parent =
            Parent { version: Version::V2, directory: top.path().to_path_buf(), name: "/".to_owned() };
        let left = top.path().join(format!("forebay-{}-7", std::process::id()));
        fs::create_dir(&left).expect("writable");
        let error = Group::create(&parent, 1 << 20, 7, &cleanup).expect_err("there is no memory.max");
        assert!(error.to_string().contains("-7-2") && error.to_string().contains("not enabled"), "{error}");
        assert!(left.exists(), "the group is another process's");
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_wins() {
        let cleanup = Cleanup::default();
        let root = cleanup.temp_directory(&std::env::temp_dir(), "limits").expect("writable");
        let inner = root.path().join("a/b");
        fs::create_dir_all(&inner).expect("writable");
        fs::write(inner.join("memory.max"), "max\n").expect("write");
        fs::write(root.path().join("a/memory.max"), "1048576\n").expect("write");
        fs::write(root.path().join("memory.max"), "2097152\n").expect("write");
        let mounts = format!("29 22 0:26 / {} rw - cgroup2 cgroup2 rw\n", root.path().display());
        let limit = MemoryLimit::smallest(candidates_from(&mounts, "0::/a/b\n", "memory"));
        let expected = MemoryLimit { bytes: 1 << 20, cgroup: "/a".to_owned(), version: "v2" };
        assert_eq!(limit, Some(expected));
    }

    #[test]
    fn the_mounts_of_both_versions_have_their_groups() {
        let found = candidates_from(V1_MOUNTS, "4:memory:/a/b\n3:cpuset:/\n0::/c\n", "memory");
        let names: Vec<_> = found.iter().map(|parent| (parent.version(), parent.name.as_str())).collect();
        assert_eq!(names, [("v1", "/a/b"), ("v1", "/a"), ("v1", "/"), ("v2", "/c"), ("v2", "/")]);
    }
}
