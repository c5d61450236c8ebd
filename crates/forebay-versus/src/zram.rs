//! A zram device of this run's own with ext4 on it: a disk whose speed is the CPU's.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use forebay_measure::cleanup::{Cleanup, Guard, TempDirectory};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const CONTROL: &str = "/sys/class/zram-control";

/// A mounted zram device that this run added. Unmounted, reset and removed when dropped or when a signal ends the program;
/// no other device is ever touched.
pub(crate) struct Zram {
    // Dropped in this order: the mount before the device, and the folder last.
    _mount: Guard,
    _device: Guard,
    folder: TempDirectory,
}

/// Checks that a device can be added.
pub(crate) fn check() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "adding a zram device needs root");
    if !Path::new(CONTROL).exists() {
        // Where zram is a module; where it is built in or missing, the check afterwards shows it.
        _ = Command::new("modprobe").arg("zram").status();
    }
    ensure!(Path::new(CONTROL).exists(), "this kernel has no zram");
    Ok(())
}

impl Zram {
    /// Adds a device of `bytes` bytes, makes ext4 on it and mounts it in a new folder of the temporary directory.
    pub(crate) fn add(bytes: u64, cleanup: &Cleanup) -> Result<Self> {
        check()?;
        let folder = cleanup.temp_directory(&std::env::temp_dir(), "zram")?;
        // The number of a device that `hot_add` returned is known to be ours: the kernel made it for this call.
        let number = Arc::new(AtomicU32::new(0));
        let doomed = Arc::clone(&number);
        let add = || {
            let text = std::fs::read_to_string(format!("{CONTROL}/hot_add"))?;
            let found: u32 = text.trim().parse().map_err(io::Error::other)?;
            number.store(found, Ordering::Relaxed);
            Ok(found)
        };
        let remove = move || remove_device(doomed.load(Ordering::Relaxed));
        let (device, guard) = cleanup.create(add, remove).context("adding a zram device")?;
        let size = format!("/sys/block/zram{device}/disksize");
        std::fs::write(&size, bytes.to_string()).with_context(|| format!("writing {bytes} to {size}"))?;
        let node = PathBuf::from(format!("/dev/zram{device}"));
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
            .arg(&node)
            .output()
            .context("running mkfs.ext4 (package e2fsprogs)")?;
        ensure!(made.status.success(), "mkfs.ext4 failed: {}", String::from_utf8_lossy(&made.stderr));
        let (at, mounted) = (folder.path().to_owned(), folder.path().to_owned());
        let ((), mount) = cleanup
            .create(
                || Ok(mount(&node, &at, "ext4", MountFlags::NOATIME, None)?),
                move || retry(&mounted.display(), || Ok(unmount(&mounted, UnmountFlags::empty())?)),
            )
            .with_context(|| format!("mounting {} on {}", node.display(), at.display()))?;
        Ok(Self { _mount: mount, _device: guard, folder })
    }

    /// Returns the mount point.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Resets and removes a device. The kernel refuses both while another process (a probe of udev) has the device open for a
/// moment.
fn remove_device(number: u32) {
    let name = format!("/dev/zram{number}");
    retry(&name, || std::fs::write(format!("/sys/block/zram{number}/reset"), "1"));
    retry(&name, || std::fs::write(format!("{CONTROL}/hot_remove"), number.to_string()));
}

/// Tries to remove `what` for a while, and reports when that fails: this runs where an error has no caller.
fn retry(what: &dyn std::fmt::Display, mut step: impl FnMut() -> io::Result<()>) {
    let begun = Instant::now();
    while let Err(error) = step() {
        if begun.elapsed() > Duration::from_secs(5) {
            eprintln!("cannot remove {what}: {error}");
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
