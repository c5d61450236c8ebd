//! A control group for the hogs. In it the kernel gives them a quarter of the device share that others get
//! (cgroup v2, the io controller).

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use forebay::device::{Device, Layer};

use super::super::cgroup::{io_directories, remove};
use crate::cleanup::{Cleanup, Guard};

/// The hogs' weight, against the default of 100. The ratio is that of `Class::BACKGROUND` to
/// `Class::DEFAULT`.
const HOGS_WEIGHT: u32 = 25;

/// The group; it is removed when dropped, and when a signal ends the program.
#[derive(Debug)]
pub(super) struct HogGroup {
    directory: PathBuf,
    #[allow(dead_code, reason = "held for its Drop")]
    guard: Guard,
}

impl HogGroup {
    /// Creates a group whose weight applies to the device below `path`.
    ///
    /// # Errors
    /// Fails with the reason why there is none: the kernel does not divide this device by weights, or this
    /// user may not create groups.
    pub(super) fn create(path: &Path, number: u64, cleanup: &Cleanup) -> anyhow::Result<Self> {
        let device = Device::of_path(path)?;
        let directories = io_directories();
        let Some(top) = directories.last() else { bail!("no cgroup v2 is mounted") };
        let file = weight_file(&device, &fs::read_to_string(top.join("io.cost.qos")).unwrap_or_default())?;
        let mut refused = None;
        // The nearest place comes first. A group that holds processes itself gives its children
        // no controller.
        for parent in directories {
            match Self::create_in(&parent, file, number, cleanup) {
                Ok(group) => return Ok(group),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
            .context("no cgroup could be made for the hogs")
    }

    fn create_in(parent: &Path, file: &str, number: u64, cleanup: &Cleanup) -> io::Result<Self> {
        let directory = parent.join(format!("forebay-{}-io-{number}", std::process::id()));
        let doomed = directory.clone();
        let ((), guard) = cleanup.create(|| fs::create_dir(&directory), move || remove(&doomed))?;
        let group = Self { directory, guard };
        let path = group.directory.join(file);
        // Not fs::write, which would create the file where the controller does not offer it.
        let written =
            OpenOptions::new().write(true).open(&path).and_then(|mut file| write!(file, "{HOGS_WEIGHT}"));
        written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Ok(group)
    }

    /// Returns the file into which a process writes `0` to move itself into the group.
    pub(super) fn procs_file(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }
}

/// Returns the file of weights that the kernel applies to this device: with its scheduler bfq, or where
/// `io.cost` is on (`qos` is the text of the hierarchy's `io.cost.qos`).
///
/// # Errors
/// Fails when the kernel applies neither.
fn weight_file(device: &Device, qos: &str) -> anyhow::Result<&'static str> {
    if device.scheduler() == Some("bfq") {
        return Ok("io.bfq.weight");
    }
    if device.physical().any(|disk| is_costed(disk, qos)) {
        return Ok("io.weight");
    }
    bail!(
        "no cgroup divides {}: its scheduler is {}, not bfq, and io.cost is not on for it (io.cost.qos)",
        device.name(),
        device.scheduler().unwrap_or("unknown")
    )
}

fn is_costed(disk: &Layer, qos: &str) -> bool {
    is_on(qos, disk.major(), disk.minor())
}

/// Returns whether io.cost is on for the device of these numbers. Lines are `8:0 enable=1 ctrl=auto ...`.
fn is_on(qos: &str, major: u32, minor: u32) -> bool {
    let numbers = format!("{major}:{minor}");
    qos.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some(numbers.as_str()) && words.any(|word| word == "enable=1")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_cost_counts_for_the_devices_it_is_on_for() {
        let qos = "8:0 enable=1 ctrl=auto rpct=95.00\n8:16 enable=0 ctrl=auto\n254:0 ctrl=auto enable=1\n";
        assert!(is_on(qos, 8, 0) && is_on(qos, 254, 0));
        assert!(!is_on(qos, 8, 16) && !is_on(qos, 8, 1) && !is_on("", 8, 0));
    }

    #[test]
    fn missing_permissions_are_reported_and_nothing_is_left() {
        // The result depends on this machine; both ways the registry is empty afterwards.
        let cleanup = Cleanup::default();
        match HogGroup::create(Path::new(env!("CARGO_MANIFEST_DIR")), 0, &cleanup) {
            Ok(group) => {
                let directory = group.directory.clone();
                assert!(group.procs_file().exists());
                drop(group);
                assert!(!directory.exists());
            }
            Err(error) => assert!(format!("{error:#}").contains("cgroup"), "{error:#}"),
        }
        let file = "no.such.weight";
        let error =
            HogGroup::create_in(&std::env::temp_dir(), file, 1, &cleanup).expect_err("it has no such file");
        assert!(error.to_string().contains(file), "{error}");
        assert!(!std::env::temp_dir().join(format!("forebay-{}-io-1", std::process::id())).exists());
    }
}
