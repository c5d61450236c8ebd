//! A memory cgroup of this run's own, so that all rows of the scan may cache equally little.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// A cgroup with a limit; removed when dropped. Supports version 1 and version 2 of the interface.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    path: PathBuf,
}

impl MemoryLimit {
    /// Makes a cgroup that allows `bytes` of memory, page cache included.
    ///
    /// # Errors
    /// When no memory controller is there or it may not be used (needs root).
    pub(crate) fn create(bytes: u64) -> Result<Self> {
        let (root, file) = find_controller()?;
        let path = root.join(format!("forebay-versus-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("making the cgroup {}", path.display()))?;
        let this = Self { path };
        let limit = this.path.join(file);
        std::fs::write(&limit, bytes.to_string()).with_context(|| format!("setting {}", limit.display()))?;
        Ok(this)
    }

    /// Returns the cgroup's folder, for [`enter`].
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Resets the peak of earlier samples, where the kernel can.
    pub(crate) fn reset_peak(&self) {
        for (file, value) in [("memory.max_usage_in_bytes", "0"), ("memory.peak", "reset")] {
            // Older kernels of version 2 cannot; then the peak is the run's, and only the first samples show
            // less.
            _ = std::fs::write(self.path.join(file), value);
        }
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // A cgroup counts as busy until its last process is reaped and its cache is dropped.
        _ = std::fs::write(self.path.join("memory.force_empty"), "0");
        let begun = Instant::now();
        while let Err(error) = std::fs::remove_dir(&self.path) {
            if begun.elapsed() > Duration::from_secs(2) {
                eprintln!("cannot remove the cgroup {}: {error}", self.path.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Moves this process into the cgroup at `path`.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn enter(path: &Path) -> Result<()> {
    std::fs::write(path.join("cgroup.procs"), std::process::id().to_string())
        .with_context(|| format!("entering the cgroup {}", path.display()))
}

/// Returns the most memory that the cgroup at `path` held, page cache included, in bytes.
pub(crate) fn peak_bytes(path: &Path) -> Option<f64> {
    ["memory.max_usage_in_bytes", "memory.peak"].iter().find_map(|file| {
        let text = std::fs::read_to_string(path.join(file)).ok()?;
        text.trim().parse().ok()
    })
}

/// Returns the folder under which cgroups with a memory limit can be made, and the name of the file that sets
/// it.
fn find_controller() -> Result<(PathBuf, &'static str)> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(_), Some(at), Some(kind), Some(options)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let root = PathBuf::from(at);
        if kind == "cgroup" && options.split(',').any(|option| option == "memory") {
            return Ok((root, "memory.limit_in_bytes"));
        }
        if kind == "cgroup2" {
            let has = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            if has.split_whitespace().any(|controller| controller == "memory") {
                // The kernel refuses when it is on already for a reason of the system's; making the cgroup
                // then shows whether it works.
                _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
                return Ok((root, "memory.max"));
            }
        }
    }
    bail!("no cgroup controller for memory is mounted")
}
