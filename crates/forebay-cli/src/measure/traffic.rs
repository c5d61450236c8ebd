//! Bytes that really moved: by the block device's own counters, and by the kernel's account of this process.

use std::fs;
use std::path::{Path, PathBuf};

/// A sector of the counters, whatever the device's own are.
const SECTOR_BYTES: u64 = 512;

/// Counting; ends with [`stop`](Traffic::stop).
#[derive(Debug)]
pub(super) struct Traffic {
    device: Option<(PathBuf, Bytes)>,
    process: Option<Bytes>,
}

/// Bytes read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) read: u64,
    pub(super) written: u64,
}

/// What [`Traffic::stop`] found; what is not counted here is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moved {
    /// By the device's counters: everyone's.
    pub(super) device: Option<Bytes>,
    /// By the kernel's account of this process: what it made the device do, pages written back later included.
    pub(super) process: Option<Bytes>,
}

impl Traffic {
    /// Starts to count. `device` is a block device's `stat` file.
    pub(super) fn start(device: Option<&Path>) -> Self {
        let device = device.and_then(|path| Some((path.to_owned(), of_device(path)?)));
        Self { device, process: of_process() }
    }

    /// Ends the span.
    pub(super) fn stop(self) -> Moved {
        let device = self.device.and_then(|(path, before)| of_device(&path)?.since(before));
        let process = self.process.and_then(|before| of_process()?.since(before));
        Moved { device, process }
    }
}

impl Bytes {
    fn since(self, before: Self) -> Option<Self> {
        let read = self.read.checked_sub(before.read)?;
        Some(Self { read, written: self.written.checked_sub(before.written)? })
    }
}

fn of_device(stat: &Path) -> Option<Bytes> {
    parse_stat(&fs::read_to_string(stat).ok()?)
}

/// Fields 3 and 7 of a block device's `stat`.
fn parse_stat(stat: &str) -> Option<Bytes> {
    let mut fields = stat.split_whitespace().map(str::parse::<u64>);
    let read = fields.nth(2)?.ok()?;
    let written = fields.nth(3)?.ok()?;
    Some(Bytes { read: read.checked_mul(SECTOR_BYTES)?, written: written.checked_mul(SECTOR_BYTES)? })
}

fn of_process() -> Option<Bytes> {
    parse_io(&fs::read_to_string("/proc/self/io").ok()?)
}

fn parse_io(io: &str) -> Option<Bytes> {
    let field = |name: &str| {
        io.lines().find_map(|line| line.strip_prefix(name))?.trim_start_matches(':').trim().parse().ok()
    };
    Some(Bytes { read: field("read_bytes")?, written: field("write_bytes")? })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::cleanup::Cleanup;

    #[test]
    fn the_fields_of_the_kernel_files_are_found() {
        let stat =
            "   28513     6028  3510642    15001     6076    12993   915360     1748  0  8028  16920\n";
        assert_eq!(parse_stat(stat), Some(Bytes { read: 3_510_642 * 512, written: 915_360 * 512 }));
        assert_eq!(parse_stat("1 2 3 4"), None);
        let io =
            "rchar: 9\nwchar: 8\nsyscr: 7\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 1\n";
        assert_eq!(parse_io(io), Some(Bytes { read: 4096, written: 8192 }));
        assert_eq!(parse_io("rchar: 9\n"), None);
    }

    #[test]
    fn what_this_process_writes_is_counted_where_the_kernel_counts() {
        let traffic = Traffic::start(Some(Path::new("/no/such/device/stat")));
        let cleanup = Cleanup::default();
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let temp = cleanup.temp_file(directory, "traffic").expect("writable");
        temp.file().write_all_at(&[1; 1 << 20], 0).expect("space for 1 MiB");
        temp.file().sync_all().expect("it can be flushed");
        let moved = traffic.stop();
        assert_eq!(moved.device, None);
        // Other tests write meanwhile, so that only the least is known; file systems in memory count nothing.
        if let Some(process) = moved.process.filter(|process| process.written > 0) {
            assert!(process.written >= 1 << 20, "{process:?}");
        }
    }
}
