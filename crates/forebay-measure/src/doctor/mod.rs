//! `forebay doctor`: describes the storage under a path, and reports which of Forebay's
//! mechanisms work there.
//!
//! Each mechanism that can be tried is tried by a real call. Everything else is read from /proc and /sys.

mod block_devices;
pub(crate) mod drive;
mod durable;
mod file_systems;
mod machine;
mod probe_file;
mod probe_uring;

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use forebay::device::Device;
use forebay::{Config, Engine};
use probe_file::{Direct, ProbedFile};

use crate::cgroup::MemoryLimit;
use crate::cleanup::{Cleanup, LEFTOVERS_REMEDY, leftovers};
use crate::context::Target;
use crate::test_file::space as space_of;
use forebay_report::check::{Check, Verdict};
use forebay_report::environment::{EngineInfo, Environment, PathInfo};
use forebay_report::failure::Failure;
use forebay_report::units::bytes;

/// A mechanism that one call tries on a `T`, and the texts of its finding.
struct Probe<T> {
    name: &'static str,
    call: fn(&T) -> ProbeResult,
    /// The observation when the call works; its text replaces `{}`.
    works: &'static str,
    /// The observation when the call is refused; the error replaces `{}`.
    refused: &'static str,
    remedy: &'static str,
}

/// The result of a call that tries a mechanism.
type ProbeResult = Result<String, Refusal>;

/// The reason why a mechanism does not work: an error, or a specific finding.
enum Refusal {
    Error(io::Error),
    Finding(Check),
}

impl<E: Into<io::Error>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

impl<T> Probe<T> {
    fn check(&self, group: &str, subject: &T) -> Check {
        let finding = match (self.call)(subject) {
            Ok(text) => ok(self.works.replace("{}", &text)),
            Err(Refusal::Error(error)) => {
                let remedy = remedy_of_limit(&error).unwrap_or(self.remedy);
                degraded(self.refused.replace("{}", &error.to_string()), remedy)
            }
            Err(Refusal::Finding(finding)) => finding,
        };
        Check { group: group.to_owned(), name: self.name.to_owned(), ..finding }
    }
}

/// The remedy where locked memory runs out, which rings count against, too.
const MORE_LOCKED_MEMORY: &str = "raise the limit on locked memory: ulimit -l, LimitMEMLOCK= in systemd, --ulimit memlock= in \
                                  containers";

/// Returns the remedy for an error by which a limit refused a call, and not a kernel or a file system that lacks it.
fn remedy_of_limit(error: &io::Error) -> Option<&'static str> {
    Some(match error.raw_os_error()? {
        libc::ENOMEM => MORE_LOCKED_MEMORY,
        libc::EMFILE => "raise the limit on open files (ulimit -n)",
        libc::ENFILE => "raise the system's limit on open files (sysctl fs.file-max)",
        libc::ENOSPC => "free space, or name a directory on another file system",
        libc::EDQUOT => "raise the quota, or name a directory on another file system",
        libc::EFBIG => "raise the limit on the length of files (ulimit -f)",
        libc::EROFS => "mount the file system writable, or name another directory",
        _ => return None,
    })
}

/// The remedy where /sys is an empty folder.
const MOUNT_SYSFS: &str = "mount it: mount -t sysfs sysfs /sys";

/// Returns whether the kernel's facts are there: without them nothing is known of devices and settings.
fn is_sysfs(folder: &Path) -> bool {
    folder.join("kernel").is_dir()
}

/// Drops the value of a call that works.
fn done<T, E: Into<io::Error>>(result: Result<T, E>) -> ProbeResult {
    Ok(result.map(|_| String::new())?)
}

/// Returns a finding without a name.
fn ok(why: impl Into<String>) -> Check {
    Check::ok("", "", why)
}

/// Returns a finding without a name.
fn degraded(why: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check::degraded("", "", why, remedy)
}

/// Names the findings of a group.
fn named<N: Into<String>>(group: &str, findings: impl IntoIterator<Item = (N, Check)>) -> Vec<Check> {
    let named = |(name, finding): (N, Check)| Check { group: group.to_owned(), name: name.into(), ..finding };
    findings.into_iter().map(named).collect()
}

/// Examines the machine and `target`, and tries everything there. In a directory it creates three temp
/// files of less than 2 MiB and removes them; a file or a device is only read.
///
/// # Errors
/// [`Failure::Path`] when the path cannot be examined or read.
pub fn examine(target: &Target, cleanup: &Cleanup) -> Result<Environment, Failure> {
    let path = target.path();
    let metadata = fs::metadata(path).map_err(|error| Failure::missing(path, &error))?;
    let limit = MemoryLimit::of_this_process();
    let mut environment = machine::environment(limit.as_ref());
    let info = path_info(path, &metadata)?;

    let mut checks = probe_uring::examine();
    checks.extend(named("memory", machine::examine(limit.as_ref(), &environment)));
    let differs = file_systems::examine(&info).map(|check| ("file_system_type", check));
    let encryption = file_systems::encryption(&info.layers, Path::new("/sys"));
    let below = differs.into_iter().chain(encryption.map(|check| ("encryption", check)));
    checks.extend(named("path", [("file_system", space(&info))].into_iter().chain(below)));
    if let Target::Directory(directory) = target {
        let left = leftovers(directory).map(|why| ("leftovers", degraded(why, LEFTOVERS_REMEDY)));
        checks.extend(named("path", left));
    }
    let tried = try_path(target, &metadata, cleanup)?.1;
    let writable = !tried.iter().any(|check| check.name == "temp_file");
    checks.extend(tried);
    if let Target::Directory(directory) = target
        && writable
    {
        let durable = durable::examine(directory, environment.cpus_allowed, cleanup);
        checks.extend(named("path", [("durable_writes", durable)]));
    }
    checks.extend(named("device", block_devices::examine(&info.layers, info.device.as_ref())));
    checks.extend(named("engine", engine(&mut environment)));

    environment.path = Some(info);
    environment.checks = checks;
    Ok(environment)
}

/// Examines the machine only.
pub fn machine_only() -> Environment {
    machine::environment(MemoryLimit::of_this_process().as_ref())
}

/// Makes sure that direct I/O works at `target` before anything is measured there.
///
/// # Errors
/// [`Failure::Path`] when nothing can be created or read there, [`Failure::Unsuitable`] when the file system has no
/// space or no direct I/O.
pub fn preflight(target: &Target, cleanup: &Cleanup) -> Result<(), Failure> {
    let path = target.path();
    let metadata = fs::metadata(path).map_err(|error| Failure::missing(path, &error))?;
    let (direct, checks) = try_path(target, &metadata, cleanup)?;
    let place = path.display();
    let why = checks.iter().find(|check| decides(check)).map_or("", |check| check.why.as_str());
    Err(match direct {
        Direct::Works => return Ok(()),
        Direct::NoFile(true) => Failure::Unsuitable(format!("{place}: {why}")),
        Direct::NoFile(false) => Failure::Path(format!("{place}: {why}")),
        Direct::Untried => Failure::Unsuitable(format!(
            "{place} is empty, too small to measure: name a larger file, or a directory, where the program writes its own"
        )),
        Direct::Ignored | Direct::Refused => {
            let file_system = path_info(path, &metadata)?.file_system.unwrap_or_else(|| "none".to_owned());
            Failure::Unsuitable(format!(
                "direct I/O does not work at {place} (file system {file_system}): {why}; name a path on a local disk \
                 with ext4, XFS or btrfs"
            ))
        }
    })
}

/// Returns whether Forebay is usable here: whether direct I/O works on a file at the path.
pub fn suitable(environment: &Environment) -> bool {
    !environment.checks.iter().any(|check| check.verdict == Verdict::Unavailable && decides(check))
}

/// Returns whether a finding decides that a path can be used.
fn decides(check: &Check) -> bool {
    matches!(check.name.as_str(), "direct" | "temp_file")
}

fn try_path(
    target: &Target,
    metadata: &Metadata,
    cleanup: &Cleanup,
) -> Result<(Direct, Vec<Check>), Failure> {
    if let Target::Directory(directory) = target {
        let filled = cleanup.temp_file(directory, "doctor").and_then(|temp| {
            probe_file::fill(&mut temp.file())?;
            let (handle, len) = (temp.file().try_clone()?, probe_file::TEMP_BYTES as u64);
            Ok((ProbedFile::new(temp.path(), handle, len, true), temp))
        });
        return Ok(match filled {
            Ok((probed, _temp)) => probe_file::examine(&probed),
            Err(error) => {
                let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge];
                let why = format!("a temp file of 1 MiB cannot be written here: {error}");
                let remedy = remedy_of_limit(&error)
                    .unwrap_or("name a directory that this user may write to, or an existing file");
                let check = Check::unavailable("path", "temp_file", why, remedy);
                (Direct::NoFile(full.contains(&error.kind())), vec![check])
            }
        });
    }
    let path = target.path();
    let file = File::open(path).map_err(|error| Failure::missing(path, &error))?;
    let is_device = metadata.file_type().is_block_device();
    let len = if is_device { u64::MAX } else { metadata.len() };
    Ok(probe_file::examine(&ProbedFile::new(path, file, len, false)))
}

fn path_info(path: &Path, metadata: &Metadata) -> Result<PathInfo, Failure> {
    let device = Device::of_path(path).map_err(|error| Failure::Path(error.to_string()))?;
    let kind = metadata.file_type();
    let mut info = PathInfo {
        path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string(),
        layers: block_devices::layers(&device),
        device: block_devices::figures(&device),
        ..PathInfo::default()
    };
    if kind.is_block_device() {
        info.kind = "block device".to_owned();
        info.size_bytes = device.size_bytes();
        return Ok(info);
    }
    info.kind = if kind.is_dir() { "directory" } else { "file" }.to_owned();
    if let Some(file_system) = device.file_system() {
        info.file_system = Some(file_system.type_name().to_owned());
        info.mount_point = Some(file_system.mount_point().display().to_string());
        info.mount_options = Some(file_system.options().to_owned());
    }
    if let Ok([free, total]) = space_of(path) {
        (info.size_bytes, info.free_bytes) = (Some(total), Some(free));
    }
    Ok(info)
}

/// Returns the finding about the path's file system and its free space.
fn space(info: &PathInfo) -> Check {
    /// The free space that `report --quick` needs for its file, with a margin.
    const WANTED_BYTES: u64 = 4 << 30;
    let name = info.file_system.as_deref().unwrap_or("none");
    let Some(free) = info.free_bytes else { return ok(format!("{}: {name}", info.kind)) };
    let (place, size) = (info.mount_point.as_deref().unwrap_or("?"), info.size_bytes.unwrap_or(0));
    let why = format!("{name} on {place}, {} of {} free", bytes(free), bytes(size));
    if info.kind != "directory" || free >= WANTED_BYTES {
        return ok(why);
    }
    degraded(
        format!("{why}: too little for a file larger than memory"),
        "free space, or name a directory on another file system",
    )
}

/// Starts an engine as a program would, and returns its own findings. This is the only place where the doctor
/// starts the engine for itself.
fn engine(environment: &mut Environment) -> Vec<(String, Check)> {
    let engine = match Engine::start(Config::new()) {
        Ok(engine) => engine,
        Err(error) => {
            let why = format!("the engine does not start: {error}");
            return vec![("start".to_owned(), Check::unavailable("", "", why, "see the findings above"))];
        }
    };
    let health = engine.health();
    let (shards, driver) = (health.shards, health.driver);
    let plural = if shards == 1 { "" } else { "s" };
    let started = format!("started with {shards} shard{plural} on the {driver} driver");
    let start = if driver == "uring" {
        ok(started)
    } else {
        degraded(
            format!("{started}: each operation of a shard costs a hand-over to another thread"),
            "make io_uring available (see the io_uring findings)",
        )
    };
    let mut checks = vec![("start".to_owned(), start)];
    let degradations = health.degraded.iter();
    checks.extend(degradations.map(|one| (one.what.replace(' ', "_"), degraded(&one.why, &one.remedy))));
    environment.engine = Some(EngineInfo {
        driver: driver.to_owned(),
        shards: shards as u64,
        degradations: health.degraded.iter().map(ToString::to_string).collect(),
    });
    if let Err(error) = engine.close().wait() {
        let why = format!("the engine does not close cleanly: {error}");
        let remedy = "report this with the output of `forebay doctor --json`";
        checks.push(("close".to_owned(), degraded(why, remedy)));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with little locked memory the remedy of calls that failed with ENOMEM was a newer kernel.
    #[test]
    fn a_limit_is_not_remedied_by_a_newer_kernel() {
        const PROBE: Probe<i32> = Probe {
            name: "probe",
            call: |errno| Err(Refusal::Error(io::Error::from_raw_os_error(*errno))),
            works: "",
            refused: "refused: {}",
            remedy: "run a newer kernel",
        };
        let remedy = |errno: i32| PROBE.check("group", &errno).remedy.unwrap_or_default();
        for (errno, part) in [
            (libc::ENOMEM, "ulimit -l"),
            (libc::EMFILE, "ulimit -n"),
            (libc::ENFILE, "fs.file-max"),
            (libc::ENOSPC, "free space"),
            (libc::EROFS, "writable"),
            (libc::EINVAL, "newer kernel"),
        ] {
            assert!(remedy(errno).contains(part), "{errno}: {}", remedy(errno));
        }
    }
}
