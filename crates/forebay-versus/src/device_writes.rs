//! I/O at the block device below a folder, counted by the kernel: the reads and writes that the device
//! completed, from all sources. A flush of the device's cache counts as a write, so a direct write and its
//! flush are two.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result};

static STATISTICS: OnceLock<PathBuf> = OnceLock::new();

/// The fields of a device's `stat` file that are used, from 0. (Another one counts flushes again, for devices
/// only.)
const READS_FIELD: usize = 0;
const WRITES_FIELD: usize = 4;
const WRITTEN_SECTORS_FIELD: usize = 6;
/// The kernel's unit called a sector, for every device.
const SECTOR_BYTES: u64 = 512;

/// Starts to count for the device below `path`, for the rest of this process. Only the whole device counts a
/// partition's flushes, so that device is used.
///
/// # Errors
/// When there is no single block device below `path` (as with overlay, tmpfs or btrfs).
pub(crate) fn start_counting(path: &Path) -> Result<()> {
    let device = std::fs::metadata(path)?.dev();
    let name = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let folder = Path::new("/sys/dev/block").join(&name);
    let folder = folder.canonicalize().with_context(|| format!("{} has no block device", path.display()))?;
    let whole = if folder.join("partition").exists() { folder.parent() } else { Some(&*folder) };
    let statistics = whole.context("a partition without a device")?.join("stat");
    read(&statistics, WRITES_FIELD).with_context(|| format!("{} counts no writes", statistics.display()))?;
    STATISTICS.get_or_init(|| statistics);
    Ok(())
}

/// Returns the writes of the device so far, when they are counted.
pub(crate) fn count() -> Option<u64> {
    read(STATISTICS.get()?, WRITES_FIELD)
}

/// Returns the reads of the device so far, when they are counted.
pub(crate) fn reads() -> Option<u64> {
    read(STATISTICS.get()?, READS_FIELD)
}

/// Returns the bytes that the device wrote so far, when they are counted.
pub(crate) fn written_bytes() -> Option<u64> {
    Some(read(STATISTICS.get()?, WRITTEN_SECTORS_FIELD)? * SECTOR_BYTES)
}

fn read(statistics: &Path, field: usize) -> Option<u64> {
    let text = std::fs::read_to_string(statistics).ok()?;
    text.split_whitespace().nth(field)?.parse().ok()
}
