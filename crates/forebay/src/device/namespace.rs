//! An NVMe namespace behind its character device (`/dev/ngXnY`): its properties, and its other users.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::base::error::{Error, ErrorKind, Result};
use crate::device::{Device, NvmeCommand};

/// `_IO('N', 0x40)` of linux/nvme_ioctl.h: returns the namespace's number.
const NVME_IOCTL_ID: u64 = 0x4E40;
/// `_IOWR('N', 0x41, struct nvme_admin_cmd)` and `_IOWR('N', 0x43, struct nvme_passthru_cmd)`.
const NVME_IOCTL_ADMIN_CMD: u64 = 0xC048_4E41;
const NVME_IOCTL_IO_CMD: u64 = 0xC048_4E43;

// NVM Express: the admin commands Identify, with the structures that it returns, and Get Log Page, with the log of the
// device's health and its length; the command Write Zeroes, and its bit for deallocating the blocks.
const IDENTIFY: u8 = 0x06;
const OF_NAMESPACE: u32 = 0;
const OF_CONTROLLER: u32 = 1;
const GET_LOG_PAGE: u8 = 0x02;
const HEALTH: u32 = 0x02;
const HEALTH_BYTES: u32 = 512;
const WRITE_ZEROES: u8 = 0x08;
const DEALLOCATE: u32 = 1 << 25;
/// The limit for blocks of one command. Commands count blocks in 16 bits, from zero.
const BLOCKS_MAX: u64 = 1 << 16;

#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) id: u32,
    pub(crate) block_shift: u8,
    /// The open part of it, in bytes. Starts at a block.
    pub(crate) part: Range<u64>,
    /// The limit for bytes of one command.
    pub(crate) bytes_max: u32,
    /// Whether the device can make blocks zero without being sent zeros.
    writes_zeroes: bool,
    /// The block device, held so that no other process mounts it in the meantime.
    _claim: Option<OwnedFd>,
}

/// An opened namespace, and what is known of its device.
pub(crate) struct OpenedNamespace {
    pub(crate) fd: OwnedFd,
    pub(crate) namespace: Namespace,
    pub(crate) device: Device,
    /// The character device's number.
    pub(crate) number: u64,
}

/// Opens the namespace at `path`, or a part of it. With `in_use` other processes may use it at the same time.
pub(crate) fn open(
    path: &Path,
    writable: bool,
    in_use: bool,
    part: Option<Range<u64>>,
) -> Result<OpenedNamespace> {
    const OPERATION: &str = "open_nvme";
    let failed = |cause| Error::io(OPERATION, cause).with_path(path);
    let refused = |note: String| Error::invalid(OPERATION, note).with_path(path);
    let file = OpenOptions::new()
        .read(true)
        .write(writable)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let name = found.file_type().is_char_device().then(|| char_device_name(found.rdev())).flatten();
    let Some(block_name) = name.as_deref().and_then(block_name) else {
        return Err(refused("not an NVMe namespace's character device, such as /dev/ng0n1".to_string()));
    };
    let block = Path::new("/dev").join(&block_name);
    let has_block = Path::new("/sys/class/block").join(&block_name).exists();
    let claim = if in_use || !has_block {
        None
    } else {
        Some(claim(&block).map_err(|cause| not_claimed(path, &block, &block_name, cause))?)
    };
    let device = if has_block { Device::of_path(&block)? } else { Device::default() };
    let mut namespace =
        identify(&file, &device, claim).map_err(|error| error.of(OPERATION).with_path(path))?;
    if let Some(part) = part {
        let (bytes, block) = (namespace.part.end, 1u64 << namespace.block_shift);
        if !is_part(&part, bytes, block) {
            return Err(refused(format!(
                "bytes {} to {} are not part of a namespace of {bytes} bytes in blocks of {block}",
                part.start, part.end
            )));
        }
        namespace.part = part;
    }
    Ok(OpenedNamespace { fd: file.into(), namespace, device, number: found.rdev() })
}

/// Returns whether the part lies within the namespace and starts at a block.
fn is_part(part: &Range<u64>, bytes: u64, block: u64) -> bool {
    part.start <= part.end && part.end <= bytes && part.start.is_multiple_of(block)
}

/// Returns the name, such as `ng0n1`, of the character device with this number.
fn char_device_name(number: u64) -> Option<String> {
    let (major, minor) = super::numbers(number);
    let place = std::fs::read_link(format!("/sys/dev/char/{major}:{minor}")).ok()?;
    Some(place.file_name()?.to_str()?.to_string())
}

/// Returns the name of the same namespace's block device: `nvme0n1` for `ng0n1`.
fn block_name(name: &str) -> Option<String> {
    let rest = name.strip_prefix("ng")?;
    let (controller, namespace) = rest.split_once('n')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(controller) && is_number(namespace)).then(|| format!("nvme{rest}"))
}

/// Opens the block device exclusively. The kernel refuses this while the device, or a partition of it, is mounted, swapped to, or
/// part of another device. While it is held so, these uses cannot start.
fn claim(block: &Path) -> io::Result<OwnedFd> {
    let open = OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(block)?;
    Ok(open.into())
}

/// Returns the error for a namespace that is not opened because its block device is in use, or cannot be
/// checked.
fn not_claimed(path: &Path, block: &Path, block_name: &str, cause: io::Error) -> Error {
    const OPERATION: &str = "open_nvme";
    match cause.raw_os_error() {
        Some(libc::EBUSY) => Error::invalid(
            OPERATION,
            format!(
                "{block_name} is in use ({}); what is written past a file system destroys it, and what is read may be \
                 old. OpenNvme::even_in_use opens it all the same",
                users(block_name)
            ),
        )
        .with_path(path),
        _ => Error::io(OPERATION, cause).with_path(path).with_note(format!(
            "the block device of this namespace, {}, cannot be opened for reading, which shows whether the namespace is in use; \
             give this user the right to read both devices, or use OpenNvme::even_in_use",
            block.display()
        )),
    }
}

/// Describes the users of a block device and of its partitions, in words.
fn users(block: &str) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let ours = |source: &str| {
        let rest = source.strip_prefix("/dev/").and_then(|name| name.strip_prefix(block));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('p'))
    };
    let mut users = Vec::new();
    for line in mounts.lines() {
        let mut words = line.split_whitespace();
        if let (Some(source), Some(place)) = (words.next(), words.next())
            && ours(source)
        {
            users.push(format!("mounted at {place}"));
        }
    }
    if swaps.lines().filter_map(|line| line.split_whitespace().next()).any(ours) {
        users.push("swap space".to_string());
    }
    let holders = std::fs::read_dir(PathBuf::from("/sys/class/block").join(block).join("holders"));
    for holder in holders.into_iter().flatten().flatten() {
        users.push(format!("part of {}", holder.file_name().to_string_lossy()));
    }
    if users.is_empty() { "held by another program or device".to_string() } else { users.join(", ") }
}

/// Reads the namespace's properties from the device.
fn identify(file: &File, device: &Device, claim: Option<OwnedFd>) -> Result<Namespace> {
    let unsupported = |note: String| Error::new(ErrorKind::Unsupported, "open_nvme").with_note(note);
    // SAFETY: this ioctl has no pointer arguments.
    let id = match unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ID as _) } {
        id if id > 0 => id as u32,
        _ => return Err(Error::io("open_nvme", io::Error::last_os_error())),
    };
    let namespace = identify_data(file, id, OF_NAMESPACE)?;
    let controller = identify_data(file, 0, OF_CONTROLLER)?;
    let format = format_of(&namespace).map_err(unsupported)?;
    let blocks = u64::from_le_bytes(std::array::from_fn(|at| namespace[at]));
    let bytes = blocks.checked_mul(1 << format).filter(|&bytes| bytes > 0 && bytes <= i64::MAX as u64);
    let Some(bytes) = bytes else {
        return Err(unsupported(format!("a namespace of {blocks} blocks")));
    };
    let bytes_max = command_bytes_max(
        controller[77],
        format,
        device.hw_request_bytes_max().or(device.request_bytes_max()),
        device.segments_max(),
    );
    let writes_zeroes = controller[520] & 1 << 3 != 0;
    Ok(Namespace { id, block_shift: format, part: 0..bytes, bytes_max, writes_zeroes, _claim: claim })
}

/// Returns the block size of the namespace's format as a power of two.
fn format_of(identified: &[u8; 4096]) -> std::result::Result<u8, String> {
    // FLBAS: the format's number in bits 3..0, and its upper part in bits 6..5.
    let number = usize::from(identified[26] & 0xf) | usize::from(identified[26] >> 5 & 3) << 4;
    let format = &identified[128 + 4 * number..][..4];
    let (metadata, shift) = (u16::from_le_bytes([format[0], format[1]]), format[2]);
    match (metadata, shift) {
        (0, 9..=16) => Ok(shift),
        (0, other) => Err(format!("blocks of 2^{other} bytes")),
        (bytes, _) => Err(format!("blocks with {bytes} bytes of metadata each; format it without")),
    }
}

/// Returns the most bytes of one command. The limits are the controller's (MDTS, in pages of 4 KiB; 0 for unlimited), and those of
/// the memory that the kernel maps for one command, for any pages of the memory.
fn command_bytes_max(mdts: u8, block_shift: u8, request: Option<u64>, segments: Option<u32>) -> u32 {
    let by_controller = if mdts == 0 { u64::MAX } else { 4096 << mdts.min(20) };
    // One more segment if the memory starts inside of a page.
    let by_segments = segments.map_or(u64::MAX, |segments| u64::from(segments.max(2) - 1) * 4096);
    let most = by_controller.min(by_segments).min(request.unwrap_or(128 << 10)).min(1 << 20) as u32;
    let grain = 4096u32.max(1 << block_shift);
    (most - most % grain).max(1 << block_shift)
}

fn identify_data(file: &File, nsid: u32, what: u32) -> Result<Box<[u8; 4096]>> {
    let command =
        NvmeCommand { opcode: IDENTIFY, nsid, data_len: 4096, cdw10: what, ..NvmeCommand::default() };
    returned_data(file, command)
}

/// Returns the share of its rated writes that an NVMe device has used, in percent. `block` is the name of its block device.
pub(crate) fn wear_percent(block: &str) -> Option<u8> {
    // Other drivers may give the same number of an ioctl another meaning.
    block.strip_prefix("nvme")?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(Path::new("/dev").join(block))
        .ok()?;
    let command = NvmeCommand {
        opcode: GET_LOG_PAGE,
        nsid: u32::MAX,
        data_len: HEALTH_BYTES,
        // The length in words of four bytes, from zero.
        cdw10: HEALTH | (HEALTH_BYTES / 4 - 1) << 16,
        ..NvmeCommand::default()
    };
    Some(returned_data(&file, command).ok()?[5])
}

/// Sends an admin command that returns at most 4,096 bytes.
fn returned_data(file: &File, mut command: NvmeCommand) -> Result<Box<[u8; 4096]>> {
    let mut data = Box::new([0u8; 4096]);
    command.addr = data.as_mut_ptr() as u64;
    command.data_len = command.data_len.min(4096);
    // SAFETY: the command names at most 4,096 writable bytes, which outlive the call.
    unsafe { send(file.as_fd(), NVME_IOCTL_ADMIN_CMD, &mut command)? };
    Ok(data)
}

/// # Safety
/// The command's memory, if it names any, has the length that it states, is writable, and is used by no other
/// code during the call.
unsafe fn send(file: BorrowedFd<'_>, ioctl: u64, command: &mut NvmeCommand) -> Result<()> {
    // SAFETY: `command` is the structure that the call names; the rest is the caller's promise.
    match unsafe { libc::ioctl(file.as_raw_fd(), ioctl as _, std::ptr::from_mut(command)) } {
        0 => Ok(()),
        status if status > 0 => Err(status_error("nvme", status as u16)),
        _ => Err(Error::io("nvme", io::Error::last_os_error())),
    }
}

impl Namespace {
    /// Deallocates the range, so that it reads as zeros. Blocks until the device is done.
    pub(crate) fn punch(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
        const OPERATION: &str = "punch_hole";
        let grain = (1u64 << self.block_shift) - 1;
        let bytes = self.part.end - self.part.start;
        let error = match offset.checked_add(len) {
            _ if !self.writes_zeroes => Some(
                Error::new(ErrorKind::Unsupported, OPERATION).with_note("the device has no Write Zeroes"),
            ),
            Some(end) if end <= bytes && (offset | len) & grain == 0 => None,
            Some(end) if end <= bytes => {
                Some(Error::invalid(OPERATION, format!("not in whole blocks of {} bytes", grain + 1)))
            }
            _ => Some(Error::invalid(
                OPERATION,
                format!("the namespace, or what is open of it, ends at {bytes}"),
            )),
        };
        if let Some(error) = error {
            return Err(error.with_range(offset, len));
        }
        let offset_there = self.part.start + offset;
        let (mut block, end) = (offset_there >> self.block_shift, (offset_there + len) >> self.block_shift);
        while block < end {
            let blocks = (end - block).min(BLOCKS_MAX);
            let mut command = NvmeCommand {
                opcode: WRITE_ZEROES,
                nsid: self.id,
                cdw10: block as u32,
                cdw11: (block >> 32) as u32,
                cdw12: (blocks - 1) as u32 | DEALLOCATE,
                ..NvmeCommand::default()
            };
            // SAFETY: the command names no memory.
            unsafe { send(file, NVME_IOCTL_IO_CMD, &mut command) }
                .map_err(|error| error.of(OPERATION).with_range(offset, len))?;
            block += blocks;
        }
        Ok(())
    }
}

/// Returns the error of a command that the device did not carry out.
pub(crate) fn status_error(operation: &'static str, status: u16) -> Error {
    let (errno, words) = status_words(status);
    let code = status & 0x7ff;
    Error::os(operation, errno).with_note(format!("the NVMe device says: {words} (status {code:#05x})"))
}

/// Returns errno and text of a status: status code type and status code, without the bits for more and
/// do-not-retry (NVM Express, completion queue entry).
fn status_words(status: u16) -> (i32, &'static str) {
    match status & 0x7ff {
        0x001 => (libc::EOPNOTSUPP, "it does not know the command"),
        0x002 => (libc::EINVAL, "a field of the command is invalid"),
        0x004 => (libc::EIO, "the transfer of the data failed"),
        0x005 => (libc::EIO, "power is being lost"),
        0x006 => (libc::EIO, "an internal error"),
        0x007 | 0x008 => (libc::EIO, "the command was aborted"),
        0x00b => (libc::ENODEV, "there is no such namespace, or not in this format"),
        0x013 => (libc::EINVAL, "the memory's address is invalid"),
        0x015 => (libc::EACCES, "the operation is denied"),
        0x020 => (libc::EROFS, "the namespace is write-protected"),
        0x080 => (libc::ENOSPC, "the range ends past the end of the namespace, or of what is open of it"),
        0x081 => (libc::ENOSPC, "the device has no space left"),
        0x082 => (libc::EAGAIN, "the namespace is not ready"),
        0x083 => (libc::EBUSY, "another host has reserved the namespace"),
        0x084 => (libc::EBUSY, "the namespace is being formatted"),
        0x182 => (libc::EROFS, "the range is read-only"),
        0x280 => (libc::EIO, "a write fault"),
        0x281 => (libc::EIO, "the block cannot be read (an unrecovered read error)"),
        0x282..=0x284 => (libc::EIO, "an end-to-end check of the data failed"),
        0x285 => (libc::EIO, "a compare found a difference"),
        0x286 => (libc::EACCES, "access is denied"),
        0x287 => (libc::EIO, "the block was never written, or was given back"),
        0x300..=0x3ff => (libc::EIO, "an error on the path to the device"),
        _ => (libc::EIO, "the command failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_namespaces_have_a_block_device() {
        assert_eq!(block_name("ng0n1").as_deref(), Some("nvme0n1"));
        assert_eq!(block_name("ng12n345").as_deref(), Some("nvme12n345"));
        for other in ["nvme0", "ng0", "ng0n", "ngn1", "ng0n1p1", "null", ""] {
            assert_eq!(block_name(other), None, "{other}");
        }
    }

    #[test]
    fn other_devices_have_no_known_wear() {
        for other in ["sda", "null", "nvme", "nvme99999n1"] {
            assert_eq!(wear_percent(other), None, "{other}");
        }
    }

    #[test]
    fn parts_begin_with_a_block_and_lie_inside() {
        for part in [0..0, 0..1, 512..1000, 1024..1024, 0..4096] {
            assert!(is_part(&part, 4096, 512), "{part:?}");
        }
        for part in [1..512, 0..4097, Range { start: 1024, end: 512 }, 4608..5000, 0..u64::MAX] {
            assert!(!is_part(&part, 4096, 512), "{part:?}");
        }
    }

    #[test]
    fn the_format_is_the_one_that_is_in_use() {
        let mut identified = Box::new([0u8; 4096]);
        identified[26] = 2;
        identified[128 + 8..][..4].copy_from_slice(&[0, 0, 12, 0]);
        assert_eq!(format_of(&identified), Ok(12));
        identified[128 + 8..][..4].copy_from_slice(&[8, 0, 9, 0]);
        assert!(format_of(&identified).is_err_and(|why| why.contains("8 bytes of metadata")));
        // The upper part of the format's number.
        identified[26] = 1 << 5 | 1;
        identified[128 + 4 * 17..][..4].copy_from_slice(&[0, 0, 9, 0]);
        assert_eq!(format_of(&identified), Ok(9));
    }

    #[test]
    fn a_command_is_one_that_controller_and_kernel_take() {
        assert_eq!(command_bytes_max(7, 9, Some(4 << 20), Some(4096)), 512 << 10, "MDTS");
        assert_eq!(command_bytes_max(0, 9, Some(128 << 10), None), 128 << 10);
        assert_eq!(command_bytes_max(0, 9, Some(4 << 20), Some(33)), 32 * 4096);
        assert_eq!(command_bytes_max(0, 9, None, None), 128 << 10);
        assert_eq!(command_bytes_max(0, 9, Some(4 << 20), None), 1 << 20);
    }

    #[test]
    fn a_status_becomes_a_sentence() {
        // With the do-not-retry bit.
        let error = status_error("read", 0x4281);
        let text = error.to_string();
        assert!(text.contains("unrecovered read error") && text.contains("0x281"), "{text}");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert_eq!(status_error("write", 0x80).raw_os_error(), Some(libc::ENOSPC));
        assert!(status_error("read", 0x7ff).to_string().contains("0x7ff"));
    }

    #[test]
    fn what_is_no_namespace_is_refused() {
        for path in ["/dev/null", "/proc/self/status"] {
            let Err(error) = open(Path::new(path), false, false, None) else {
                panic!("{path} is not a namespace")
            };
            assert!(error.to_string().contains("not an NVMe namespace"), "{error}");
        }
    }

    /// Regression: a user who may use /dev/ng0n1 and not read /dev/nvme0n1 got an error that named the block
    /// device. The program had never named that device, and the error did not state why it was opened.
    #[test]
    fn a_block_device_that_cannot_be_read_is_named_with_the_remedy() {
        let cause = io::Error::from_raw_os_error(libc::EACCES);
        let error = not_claimed(Path::new("/dev/ng0n1"), Path::new("/dev/nvme0n1"), "nvme0n1", cause);
        assert_eq!(error.raw_os_error(), Some(libc::EACCES));
        let text = error.to_string();
        for part in [
            "open_nvme /dev/ng0n1",
            "/dev/nvme0n1, cannot be opened for reading",
            "right to read both",
            "even_in_use",
        ] {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
    }
}
