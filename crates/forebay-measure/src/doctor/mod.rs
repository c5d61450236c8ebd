//! `forebay doctor`: describes the storage under a path, and reports which of Forebay's
//! mechanisms work there.
//!
//! Each mechanism that can be tried is tried by a real call. Everything else is read from /proc and /sys.

pub mod cgroup;
mod devices;
mod durable;
mod engine;
mod file_systems;
mod machine;
mod nvme;
mod pages;
mod probe_file;
mod probe_memory;
mod probe_uring;

use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use forebay::device::Device;
use probe_file::{Direct, ProbedFile};

use crate::cleanup::Cleanup;
use crate::context::Target;
use forebay_report::check::{Check, Verdict};
use forebay_report::environment::{Environment, PathInfo};
use forebay_report::failure::Failure;

/// Examines the machine and `target`, and tries everything there. In a directory it creates three temp
/// files of less than 2 MiB and removes them; a file or a device is only read.
///
/// # Errors
/// [`Failure::Path`] when the path cannot be examined or read.
pub fn examine(target: &Target, cleanup: &Cleanup) -> Result<Environment, Failure> {
    let path = target.path();
    let metadata = fs::metadata(path).map_err(|error| Failure::missing(path, &error))?;
    let limit = cgroup::MemoryLimit::of_this_process();
    let mut environment = machine::environment(limit.as_ref());
    let info = path_info(path, &metadata)?;

    let mut checks = probe_uring::examine();
    checks.extend(probe_memory::examine(limit.as_ref(), environment.cpus_allowed, environment.cpus_online));
    checks.push(file_system(&info));
    checks.extend(file_systems::examine(&info));
    checks.extend(file_systems::encryption(&info.layers, Path::new("/sys")));
    let tried = try_path(target, &metadata, cleanup)?.1;
    let writable = !tried.iter().any(|check| check.name == "temp_file");
    checks.extend(tried);
    if let Target::Directory(directory) = target
        && writable
    {
        checks.push(durable::examine(directory, environment.cpus_allowed, cleanup));
    }
    checks.extend(devices::examine(&info.layers, info.device.as_ref()));
    let (engine, engine_checks) = engine::examine();
    environment.engine = engine;
    checks.extend(engine_checks);

    environment.path = Some(info);
    environment.checks = checks;
    Ok(environment)
}

/// Examines the machine only.
pub fn machine_only() -> Environment {
    machine::environment(cgroup::MemoryLimit::of_this_process().as_ref())
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
    let found = |name: &str| checks.iter().find(|check| check.name == name);
    match direct {
        Direct::NoFile(full) => {
            let why = found("temp_file").map_or("", |check| check.why.as_str());
            let text = format!("{}: {why}", path.display());
            Err(if full { Failure::Unsuitable(text) } else { Failure::Path(text) })
        }
        Direct::Works => Ok(()),
        Direct::Untried => Err(Failure::Unsuitable(format!(
            "{} is empty, too small to measure: name a larger file, or a directory, where the program writes its own",
            path.display()
        ))),
        Direct::Ignored | Direct::Refused => {
            let file_system = path_info(path, &metadata)?.file_system.unwrap_or_else(|| "none".to_owned());
            let why = found("direct").map_or("", |check| check.why.as_str());
            Err(Failure::Unsuitable(format!(
                "direct I/O does not work at {} (file system {file_system}): {why}; name a path on a local disk with ext4, XFS or btrfs",
                path.display()
            )))
        }
    }
}

/// Returns whether Forebay can serve its purpose here at all: direct I/O through a file of the path.
pub fn suitable(environment: &Environment) -> bool {
    !environment.checks.iter().any(|check| {
        check.verdict == Verdict::Unavailable && matches!(check.name.as_str(), "direct" | "temp_file")
    })
}

fn try_path(
    target: &Target,
    metadata: &Metadata,
    cleanup: &Cleanup,
) -> Result<(Direct, Vec<Check>), Failure> {
    let path = target.path();
    if let Target::Directory(directory) = target {
        let filled = cleanup.temp_file(directory, "doctor").and_then(|temp| {
            probe_file::fill(&mut temp.file())?;
            Ok(temp)
        });
        return Ok(match filled {
            Ok(temp) => probe_file::examine(&ProbedFile {
                path: temp.path(),
                buffered: temp.file(),
                own: true,
                len: probe_file::TEMP_BYTES as u64,
            }),
            Err(error) => (
                Direct::NoFile(matches!(
                    error.kind(),
                    ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
                )),
                vec![Check::unavailable(
                    "path",
                    "temp_file",
                    format!("a temp file of 1 MiB cannot be written here: {error}"),
                    "name a directory that this user may write to and that has space, or an existing file",
                )],
            ),
        });
    }
    let file = File::open(path).map_err(|error| Failure::missing(path, &error))?;
    let device = metadata.file_type().is_block_device();
    Ok(probe_file::examine(&ProbedFile {
        path,
        buffered: &file,
        own: false,
        len: if device { u64::MAX } else { metadata.len() },
    }))
}

fn path_info(path: &Path, metadata: &Metadata) -> Result<PathInfo, Failure> {
    let device = Device::of_path(path).map_err(|error| Failure::Path(error.to_string()))?;
    let kind = metadata.file_type();
    let mut info = PathInfo {
        path: path.display().to_string(),
        layers: devices::layers(&device),
        device: devices::figures(&device),
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
    if let Ok(status) = rustix::fs::statvfs(path) {
        info.size_bytes = Some(status.f_blocks.saturating_mul(status.f_frsize));
        info.free_bytes = Some(status.f_bavail.saturating_mul(status.f_frsize));
    }
    Ok(info)
}

fn file_system(info: &PathInfo) -> Check {
    /// The free space that `report --quick` needs for its file, with a margin.
    const WANTED_BYTES: u64 = 4 << 30;
    let name = info.file_system.as_deref().unwrap_or("none");
    let Some(free) = info.free_bytes else {
        return Check::ok("path", "file_system", format!("{}: {name}", info.kind));
    };
    let why = format!(
        "{name} on {}, {} of {} free",
        info.mount_point.as_deref().unwrap_or("?"),
        forebay_report::units::bytes(free),
        forebay_report::units::bytes(info.size_bytes.unwrap_or(0))
    );
    if info.kind == "directory" && free < WANTED_BYTES {
        Check::degraded(
            "path",
            "file_system",
            format!("{why}: too little for a file larger than memory"),
            "free space, or name a directory on another file system",
        )
    } else {
        Check::ok("path", "file_system", why)
    }
}
