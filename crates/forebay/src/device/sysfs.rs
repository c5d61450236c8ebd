//! The attributes of one block device in sysfs (sysfs-block in the kernel's ABI documentation). A missing or
//! unreadable attribute is `None`: kernels and kinds of devices differ, and no attribute is needed for
//! correct I/O.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::mountinfo;

thread_local! {
    /// The errno of a read that lacked a descriptor, since [`complete`] began.
    static LACK: Cell<Option<i32>> = const { Cell::new(None) };
}

/// Runs `look`, whose reads go through [`optional`] on this thread.
///
/// # Errors
/// A read lacked a descriptor: the result would pass for that of a device of which less is known.
pub(super) fn complete<T>(look: impl FnOnce() -> T) -> io::Result<T> {
    LACK.set(None);
    let result = look();
    LACK.take().map_or(Ok(result), |errno| Err(io::Error::from_raw_os_error(errno)))
}

/// Returns the value of a read that may fail. The lack of a descriptor counts for [`complete`].
pub(super) fn optional<T>(read: io::Result<T>) -> Option<T> {
    if let Err(cause) = &read
        && matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
    {
        LACK.set(cause.raw_os_error());
    }
    read.ok()
}

/// Whether a device may lose acknowledged writes when power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WriteCache {
    /// A write may be acknowledged before it is durable; a flush (a sync) makes it so.
    WriteBack,
    /// An acknowledged write is durable; a flush costs next to nothing.
    WriteThrough,
}

/// The figures of a device's `queue` directory. For stacked devices the kernel has already combined those below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) logical_block_bytes: Option<u32>,
    pub(crate) physical_block_bytes: Option<u32>,
    pub(crate) request_bytes_max: Option<u64>,
    pub(crate) hw_request_bytes_max: Option<u64>,
    pub(crate) segments_max: Option<u32>,
    pub(crate) queue_depth: Option<u32>,
    pub(crate) queues: Option<u32>,
    pub(crate) write_cache: Option<WriteCache>,
    pub(crate) fua: Option<bool>,
    pub(crate) io_poll: Option<bool>,
    pub(crate) poll_queues: Option<u32>,
    pub(crate) rotational: Option<bool>,
    pub(crate) discard_bytes_max: Option<u64>,
    pub(crate) scheduler: Option<String>,
}

impl Limits {
    /// Reads them from a whole device's directory (partitions have no such files).
    pub(crate) fn read(sys: &Path, device: &Path) -> Limits {
        let queue = device.join("queue");
        let io_poll = flag(&queue.join("io_poll"));
        Limits {
            logical_block_bytes: number(&queue.join("logical_block_size")),
            physical_block_bytes: number(&queue.join("physical_block_size")),
            request_bytes_max: number::<u64>(&queue.join("max_sectors_kb")).map(|kib| kib << 10),
            hw_request_bytes_max: number::<u64>(&queue.join("max_hw_sectors_kb")).map(|kib| kib << 10),
            segments_max: number(&queue.join("max_segments")),
            queue_depth: number(&queue.join("nr_requests")),
            // One directory for each hardware queue; devices without queues (zram, most stacked devices) have no such directory.
            queues: optional(fs::read_dir(device.join("mq"))).map(|queues| queues.flatten().count() as u32),
            write_cache: text(&queue.join("write_cache")).and_then(|text| parse_write_cache(&text)),
            fua: flag(&queue.join("fua")),
            io_poll,
            poll_queues: match io_poll {
                Some(true) => poll_queues(sys, device),
                Some(false) => Some(0),
                None => None,
            },
            rotational: flag(&queue.join("rotational")),
            discard_bytes_max: number(&queue.join("discard_max_bytes")),
            scheduler: text(&queue.join("scheduler")).and_then(|text| parse_scheduler(&text)),
        }
    }
}

/// Returns how many poll queues were requested from the device's driver. The driver may have set up fewer; `io_poll` is 0 without
/// any.
fn poll_queues(sys: &Path, device: &Path) -> Option<u32> {
    let name = device.file_name()?.to_str()?;
    let module = [("nvme", "nvme"), ("vd", "virtio_blk"), ("nullb", "null_blk")]
        .into_iter()
        .find_map(|(prefix, module)| name.starts_with(prefix).then_some(module))?;
    number(&sys.join("module").join(module).join("parameters/poll_queues"))
}

/// Parses `"write back"` or `"write through"`.
fn parse_write_cache(text: &str) -> Option<WriteCache> {
    match text {
        "write back" => Some(WriteCache::WriteBack),
        "write through" => Some(WriteCache::WriteThrough),
        _ => None,
    }
}

/// Returns the name in brackets of `"none [mq-deadline] kyber"`; a list of one may have no brackets.
fn parse_scheduler(text: &str) -> Option<String> {
    let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    chosen
        .or_else(|| (!text.contains(char::is_whitespace)).then_some(text))
        .filter(|name| !name.is_empty())
        .map(str::to_string)
}

/// Returns the device's size. sysfs counts sectors of 512 bytes, regardless of the device's sector size.
pub(crate) fn size_bytes(device: &Path) -> Option<u64> {
    number::<u64>(&device.join("size")).and_then(|sectors| sectors.checked_mul(512))
}

/// Returns major and minor number.
pub(crate) fn numbers(device: &Path) -> Option<(u32, u32)> {
    mountinfo::numbers(&text(&device.join("dev"))?)
}

/// Returns the maker's name for the device.
pub(crate) fn model(device: &Path) -> Option<String> {
    text(&device.join("device/model")).filter(|model| !model.is_empty())
}

/// Returns the file behind a loop device.
pub(crate) fn backing_file(device: &Path) -> Option<PathBuf> {
    let mut path = optional(fs::read(device.join("loop/backing_file")))?;
    if path.last() == Some(&b'\n') {
        path.pop();
    }
    Some(PathBuf::from(OsString::from_vec(path)))
}

/// Returns the memory node next to the device: that of the nearest bus device above it which names one.
pub(crate) fn numa_node(sys: &Path, device: &Path) -> Option<u32> {
    let places = device.ancestors().take_while(|place| place.starts_with(sys) && *place != sys);
    // -1 means no node in particular.
    places.filter_map(|place| text(&place.join("numa_node"))).next()?.parse().ok()
}

fn text(path: &Path) -> Option<String> {
    optional(fs::read_to_string(path)).map(|text| text.trim().to_string())
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

fn flag(path: &Path) -> Option<bool> {
    number::<u32>(path).map(|value| value != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }

    #[test]
    fn reads_what_is_there() {
        let sys = tempfile::tempdir().unwrap();
        let device = sys.path().join("devices/pci0/nvme/nvme0/nvme0n1");
        write(
            &device,
            &[
                ("queue/logical_block_size", "512\n"),
                ("queue/physical_block_size", "4096\n"),
                ("queue/max_sectors_kb", "1280\n"),
                ("queue/max_hw_sectors_kb", "2147483647\n"),
                ("queue/max_segments", "127\n"),
                ("queue/nr_requests", "1023\n"),
                ("queue/write_cache", "write back\n"),
                ("queue/fua", "1\n"),
                ("queue/io_poll", "1\n"),
                ("queue/rotational", "0\n"),
                ("queue/discard_max_bytes", "2199023255040\n"),
                ("queue/scheduler", "[none] mq-deadline\n"),
                ("mq/0/cpu_list", "0\n"),
                ("mq/1/cpu_list", "1\n"),
                ("size", "8\n"),
                ("device/model", "Fast One   \n"),
            ],
        );
        write(
            sys.path(),
            &[("module/nvme/parameters/poll_queues", "2\n"), ("devices/pci0/numa_node", "1\n")],
        );
        let limits = Limits::read(sys.path(), &device);
        let expected = Limits {
            logical_block_bytes: Some(512),
            physical_block_bytes: Some(4096),
            request_bytes_max: Some(1280 << 10),
            hw_request_bytes_max: Some(2147483647 << 10),
            segments_max: Some(127),
            queue_depth: Some(1023),
            queues: Some(2),
            write_cache: Some(WriteCache::WriteBack),
            fua: Some(true),
            io_poll: Some(true),
            poll_queues: Some(2),
            rotational: Some(false),
            discard_bytes_max: Some(2199023255040),
            scheduler: Some("none".to_string()),
        };
        assert_eq!(limits, expected);
        assert_eq!((size_bytes(&device), model(&device).as_deref()), (Some(4096), Some("Fast One")));
        assert_eq!(numa_node(sys.path(), &device), Some(1));
        // Without poll queues in use the module's parameter does not count.
        write(&device, &[("queue/io_poll", "0\n")]);
        assert_eq!(Limits::read(sys.path(), &device).poll_queues, Some(0));
    }

    #[test]
    fn what_is_missing_or_odd_is_none() {
        let sys = tempfile::tempdir().unwrap();
        let device = sys.path().join("devices/odd0");
        assert_eq!(Limits::read(sys.path(), &device), Limits::default());
        assert_eq!((size_bytes(&device), numbers(&device), model(&device)), (None, None, None));
        write(
            &device,
            &[("queue/fua", "\n"), ("queue/write_cache", "none\n"), ("size", "x"), ("numa_node", "-1\n")],
        );
        assert_eq!(Limits::read(sys.path(), &device), Limits::default());
        assert_eq!((size_bytes(&device), numa_node(sys.path(), &device)), (None, None));
    }

    #[test]
    fn schedulers() {
        let parsed = ["none [mq-deadline] kyber", "none", "[bfq]", "a b", ""].map(parse_scheduler);
        assert_eq!(
            parsed.each_ref().map(|name| name.as_deref()),
            [Some("mq-deadline"), Some("none"), Some("bfq"), None, None]
        );
    }
}
