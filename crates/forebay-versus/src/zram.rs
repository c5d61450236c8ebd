//! A zram device of this run's own with ext4 on it: a disk whose speed is the CPU's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::scratch::Folder;

const CONTROL: &str = "/sys/class/zram-control";

/// A mounted zram device that this run added. Unmounted, reset and removed when dropped; no other device is ever touched.
#[derive(Debug)]
pub(crate) struct Zram {
    // Dropped in this order: the mount before the device, and the folder last.
    _mount: Mount,
    _device: Device,
    folder: Folder,
}

impl Zram {
    /// Adds a device of `bytes` bytes, makes ext4 on it and mounts it in a new folder of the temporary directory.
    ///
    /// # Errors
    /// Without root, without zram in the kernel, without mkfs.ext4.
    pub(crate) fn add(bytes: u64) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "adding a zram device needs root");
        if !Path::new(CONTROL).exists() {
            // Where zram is a module; where it is built in or missing, the check afterwards shows it.
            _ = Command::new("modprobe").arg("zram").status();
        }
        ensure!(Path::new(CONTROL).exists(), "this kernel has no zram");
        let device = Device::add(bytes)?;
        let node = PathBuf::from(format!("/dev/zram{}", device.number));
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
            .arg(&node)
            .output()
            .context("running mkfs.ext4 (package e2fsprogs)")?;
        ensure!(made.status.success(), "mkfs.ext4 failed: {}", String::from_utf8_lossy(&made.stderr));
        let folder = Folder::in_dir(&std::env::temp_dir(), "forebay-versus-zram")?;
        let mount = Mount::new(&node, folder.path())?;
        Ok(Self { _mount: mount, _device: device, folder })
    }

    /// Returns the mount point.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

#[derive(Debug)]
struct Mount(PathBuf);

impl Mount {
    fn new(node: &Path, at: &Path) -> Result<Self> {
        rustix::mount::mount(node, at, "ext4", rustix::mount::MountFlags::NOATIME, None)
            .with_context(|| format!("mounting {} on {}", node.display(), at.display()))?;
        Ok(Self(at.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let result = retry(|| Ok(rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::empty())?));
        if let Err(error) = result {
            eprintln!("cannot unmount {}: {error}", self.0.display());
        }
    }
}

/// A device that `hot_add` returned to this process: its number is known to be ours, because the kernel made
/// it for this call.
#[derive(Debug)]
struct Device {
    number: u32,
}

impl Device {
    fn add(bytes: u64) -> Result<Self> {
        let text = std::fs::read_to_string(format!("{CONTROL}/hot_add")).context("adding a zram device")?;
        let this = Self { number: text.trim().parse().context("reading the number of the new zram device")? };
        this.set("disksize", &bytes.to_string())?;
        Ok(this)
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        let path = format!("/sys/block/zram{}/{name}", self.number);
        std::fs::write(&path, value).with_context(|| format!("writing {value} to {path}"))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // The kernel refuses both while another process (a probe of udev) has the device open for a moment.
        let result = retry(|| self.set("reset", "1")).and_then(|()| {
            retry(|| Ok(std::fs::write(format!("{CONTROL}/hot_remove"), self.number.to_string())?))
        });
        if let Err(error) = result {
            eprintln!("cannot remove /dev/zram{}: {error:#}", self.number);
        }
    }
}

fn retry(mut step: impl FnMut() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    loop {
        match step() {
            Ok(()) => return Ok(()),
            Err(error) if begun.elapsed() > Duration::from_secs(5) => bail!("{error:#}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
