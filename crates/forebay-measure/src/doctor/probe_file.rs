//! The file system's behaviour under the calls that Forebay makes. Each call is really made: on a temp file
//! of the program's own when the path is a directory, and read-only when it is a file or a device.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use io_uring::{IoUring, opcode, types};
use rustix::fs::{Advice, AtFlags, FallocateFlags, Statx, StatxFlags, fallocate, statx};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

use super::pages::Pages;
use crate::residency;
use forebay_report::check::Check;
use forebay_report::units::bytes;

const GROUP: &str = "path";
/// The size of the program's own temp file: several pages, and small enough to cost little.
pub(super) const TEMP_BYTES: usize = 1 << 20;
const RWF_ATOMIC: u32 = 0x40;
const RWF_DONTCACHE: u32 = 0x80;
const STATX_WRITE_ATOMIC: u32 = 0x1_0000;

/// The file under test.
#[derive(Debug)]
pub(crate) struct ProbedFile<'a> {
    /// The file's path.
    pub(crate) path: &'a Path,
    /// An ordinary handle.
    pub(crate) buffered: &'a File,
    /// Whether the program created the file and may write to it.
    pub(crate) own: bool,
    /// The file's length; for a device, the length that may be tried.
    pub(crate) len: u64,
}

/// Whether and how direct I/O is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direct {
    /// A direct read was made past the page cache.
    Works,
    /// Opening and reading work, but the bytes are in the page cache all the same: the file system keeps its
    /// data there, or ignores O_DIRECT.
    Ignored,
    /// Direct I/O is refused.
    Refused,
    /// There was nothing to read.
    Untried,
    /// No file could be created. True means that there was no space for it, false another reason.
    NoFile(bool),
}

/// Fills the program's own temp file with bytes that do not compress and writes them out.
///
/// # Errors
/// Fails when the file system is full or read-only.
pub(crate) fn fill(file: &mut &File) -> io::Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut data = Vec::with_capacity(TEMP_BYTES);
    while data.len() < TEMP_BYTES {
        // xorshift64: good enough to defeat compression, which is its only purpose here.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data.extend_from_slice(&state.to_le_bytes());
    }
    file.write_all(&data)?;
    file.sync_data()
}

/// Opens for direct reading, and for writing too when `write`.
///
/// # Errors
/// EINVAL from a file system without O_DIRECT.
pub(crate) fn open_direct(path: &Path, write: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(write).custom_flags(libc::O_DIRECT).open(path)
}

/// Tries every call on `probed`.
pub(crate) fn examine(probed: &ProbedFile<'_>) -> (Direct, Vec<Check>) {
    let mut checks = Vec::new();
    let status = statx(
        probed.buffered,
        "",
        AtFlags::EMPTY_PATH,
        StatxFlags::DIOALIGN | StatxFlags::from_bits_retain(STATX_WRITE_ATOMIC),
    );
    let alignment = status.as_ref().ok().and_then(alignment);
    let (direct, check) = direct_read(probed, alignment);
    checks.push(check);
    checks.push(match alignment {
        Some((memory, offset)) => Check::ok(
            GROUP,
            "dioalign",
            format!(
                "statx: memory {memory} B, offset and length {offset} B (Forebay never aligns memory below {} B)",
                rustix::param::page_size()
            ),
        ),
        None => Check::degraded(
            GROUP,
            "dioalign",
            "statx states no alignment for direct I/O; Forebay assumes the page size",
            "use a file system that states it (ext4, XFS and block devices since Linux 6.1)",
        ),
    });
    checks.push(dontcache(probed));
    checks.push(nowait(probed));
    checks.push(iopoll(probed, direct));
    if probed.own {
        checks.push(dsync(probed));
        checks.push(atomic(probed, status.as_ref().ok()));
        checks.push(allocate(probed));
        checks.push(punch(probed));
    } else {
        checks.push(Check::ok(
            GROUP,
            "writes",
            "not tried: this file was not created by the program, which only reads it; name a directory to try writes",
        ));
    }
    (direct, checks)
}

/// Returns the alignment of memory and of offsets, when the file system states one.
fn alignment(status: &Statx) -> Option<(u32, u32)> {
    let stated = status.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    (stated && status.stx_dio_mem_align > 0 && status.stx_dio_offset_align > 0)
        .then_some((status.stx_dio_mem_align, status.stx_dio_offset_align))
}

fn direct_read(probed: &ProbedFile<'_>, alignment: Option<(u32, u32)>) -> (Direct, Check) {
    const REMEDY: &str = "use a file system with direct I/O (ext4, XFS), or open files buffered";
    if probed.len == 0 {
        let why = "the file is empty: there is nothing to read";
        return (
            Direct::Untried,
            Check::degraded(GROUP, "direct", why, "name a file that holds data, or a directory"),
        );
    }
    let file = match open_direct(probed.path, false) {
        Ok(file) => file,
        Err(error) => {
            let why = format!("opening with O_DIRECT fails: {error}");
            return (Direct::Refused, Check::unavailable(GROUP, "direct", why, REMEDY));
        }
    };
    let len = alignment.map_or(rustix::param::page_size(), |(_, offset)| offset as usize);
    // btrfs, NFS and FUSE state no alignment, and yet read directly: the page cache shows it.
    let is_cached = || residency::resident_bytes(probed.buffered, len as u64).is_ok_and(|bytes| bytes > 0);
    if alignment.is_none() {
        // Advice only: the pages may stay, and are then found below.
        let _ = rustix::fs::fadvise(probed.buffered, 0, NonZeroU64::new(len as u64), Advice::DontNeed);
    }
    match read_some(&file, len, ReadWriteFlags::empty()) {
        Ok(got) if alignment.is_some() || !is_cached() => {
            (Direct::Works, Check::ok(GROUP, "direct", format!("{got} bytes were read past the page cache")))
        }
        Ok(got) => (
            Direct::Ignored,
            Check::unavailable(
                GROUP,
                "direct",
                format!(
                    "O_DIRECT opens and {got} bytes were read, but the page cache has them: the file system keeps its data in memory or ignores the flag"
                ),
                REMEDY,
            ),
        ),
        Err(error) => (
            Direct::Refused,
            Check::unavailable(
                GROUP,
                "direct",
                format!("O_DIRECT opens, but reading fails: {error}"),
                REMEDY,
            ),
        ),
    }
}

fn read_some(file: &File, len: usize, flags: ReadWriteFlags) -> Result<usize, Errno> {
    let mut pages = Pages::new(len).map_err(|_| Errno::NOMEM)?;
    let part = pages.as_mut().get_mut(..len).unwrap_or_default();
    preadv2(file, &mut [IoSliceMut::new(part)], 0, flags)
}

fn dontcache(probed: &ProbedFile<'_>) -> Check {
    match read_some(probed.buffered, 4096, ReadWriteFlags::from_bits_retain(RWF_DONTCACHE)) {
        Ok(_) => {
            Check::ok(GROUP, "rwf_dontcache", "a read left nothing in the page cache: `uncached` files work")
        }
        Err(error) => Check::degraded(
            GROUP,
            "rwf_dontcache",
            format!("refused: {error}; `uncached` files fall back to buffered reads and fadvise"),
            "use Linux 6.14 or later with ext4, XFS or btrfs",
        ),
    }
}

fn nowait(probed: &ProbedFile<'_>) -> Check {
    match read_some(probed.buffered, 4096, ReadWriteFlags::NOWAIT) {
        Ok(_) => Check::ok(
            GROUP,
            "rwf_nowait",
            "a cached page was read without waiting: buffered hits cost no hop",
        ),
        // The page was not cached: the kernel has the call, and it behaved as it should.
        Err(Errno::AGAIN) => Check::ok(GROUP, "rwf_nowait", "accepted; the page was not cached"),
        Err(error) => Check::degraded(
            GROUP,
            "rwf_nowait",
            format!("refused: {error}; buffered reads always go through the ring"),
            "use a file system that supports it (ext4, XFS, btrfs)",
        ),
    }
}

fn iopoll(probed: &ProbedFile<'_>, direct: Direct) -> Check {
    const REMEDY: &str =
        "a device with poll queues (NVMe: nvme.poll_queues=2) and a file system with direct I/O";
    if direct != Direct::Works {
        return Check::unavailable(GROUP, "iopoll", "polling needs direct I/O", REMEDY);
    }
    let result = open_direct(probed.path, false).and_then(|file| polled_read(&file));
    match result {
        Ok(got) => Check::ok(GROUP, "iopoll", format!("a polled read of {got} bytes completed")),
        Err(error) => Check::degraded(
            GROUP,
            "iopoll",
            format!("a polled read is refused: {error}; completions arrive by interrupt"),
            REMEDY,
        ),
    }
}

fn polled_read(file: &File) -> io::Result<usize> {
    let mut pages = Pages::new(4096)?;
    let mut ring: IoUring = IoUring::builder().setup_iopoll().build(8)?;
    let part = pages.as_mut();
    let len = u32::try_from(part.len()).unwrap_or(4096);
    let read = opcode::Read::new(types::Fd(file.as_raw_fd()), part.as_mut_ptr(), len).build();
    // SAFETY: the memory and the file outlive the completion, which the code below waits for. On an error
    // of the wait the memory is leaked, because the read may still be in flight.
    let pushed = unsafe { ring.submission().push(&read) };
    pushed.map_err(|_| io::Error::other("the submission queue is full"))?;
    let entry = match ring.submit_and_wait(1) {
        Ok(_) => ring.completion().next(),
        Err(error) => {
            std::mem::forget(pages);
            return Err(error);
        }
    };
    match entry.map(|entry| entry.result()) {
        Some(result) => {
            usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()))
        }
        None => {
            std::mem::forget(pages);
            Err(io::Error::other("no completion came"))
        }
    }
}

fn dsync(probed: &ProbedFile<'_>) -> Check {
    match write_some(probed, 4096, ReadWriteFlags::DSYNC) {
        Ok(_) => Check::ok(GROUP, "rwf_dsync", "a direct write was made durable by its own flag"),
        Err(error) => Check::degraded(
            GROUP,
            "rwf_dsync",
            format!("refused: {error}; durable writes use a separate fdatasync"),
            "none needed",
        ),
    }
}

fn atomic(probed: &ProbedFile<'_>, status: Option<&Statx>) -> Check {
    const REMEDY: &str =
        "a device with atomic writes and a file system that passes them on (XFS, ext4 with bigalloc)";
    let max = status
        .filter(|status| status.stx_mask & STATX_WRITE_ATOMIC != 0)
        .map_or(0, |status| status.stx_atomic_write_unit_max);
    let tried = if max == 0 { 4096 } else { max as usize };
    match write_some(probed, tried, ReadWriteFlags::from_bits_retain(RWF_ATOMIC)) {
        Ok(_) => Check::ok(
            GROUP,
            "rwf_atomic",
            format!("a write of {} that cannot tear was made", bytes(tried as u64)),
        ),
        Err(error) => Check::degraded(
            GROUP,
            "rwf_atomic",
            format!(
                "a write of {} is refused: {error} (statx: at most {max} B); a write may tear at power loss",
                bytes(tried as u64)
            ),
            REMEDY,
        ),
    }
}

fn write_some(probed: &ProbedFile<'_>, len: usize, flags: ReadWriteFlags) -> Result<usize, Errno> {
    let file =
        open_direct(probed.path, true).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mut pages = Pages::new(len).map_err(|_| Errno::NOMEM)?;
    let part = pages.as_mut().get(..len).unwrap_or_default();
    pwritev2(&file, &[IoSlice::new(part)], 0, flags)
}

fn allocate(probed: &ProbedFile<'_>) -> Check {
    let end = TEMP_BYTES as u64;
    match fallocate(probed.buffered, FallocateFlags::KEEP_SIZE, end, end) {
        Ok(()) => Check::ok(GROUP, "allocate", "space was set aside before it is written"),
        Err(error) => Check::degraded(
            GROUP,
            "allocate",
            format!("fallocate is refused: {error}; appends may find the disk full late"),
            "use a file system with fallocate (ext4, XFS, btrfs)",
        ),
    }
}

fn punch(probed: &ProbedFile<'_>) -> Check {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(probed.buffered, hole, 0, 64 << 10) {
        Ok(()) => Check::ok(GROUP, "punch_hole", "space inside a file was given back"),
        Err(error) => Check::degraded(
            GROUP,
            "punch_hole",
            format!("refused: {error}; space inside a file cannot be given back"),
            "use a file system that supports it (ext4, XFS, btrfs)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;
    use forebay_report::check::Verdict;

    #[test]
    fn a_temp_file_is_tried_and_every_finding_has_its_own_name() {
        let temp = Cleanup::default()
            .temp_file(&std::env::temp_dir(), "probe")
            .expect("the temp directory is writable");
        fill(&mut temp.file()).expect("it has space");
        let probed =
            ProbedFile { path: temp.path(), buffered: temp.file(), own: true, len: TEMP_BYTES as u64 };
        let (_, checks) = examine(&probed);
        let mut names: Vec<&str> = checks.iter().map(|check| check.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), checks.len());
        assert!(checks.len() >= 9);
    }

    #[test]
    fn an_empty_file_is_not_tried() {
        let temp = Cleanup::default()
            .temp_file(&std::env::temp_dir(), "empty")
            .expect("the temp directory is writable");
        let probed = ProbedFile { path: temp.path(), buffered: temp.file(), own: false, len: 0 };
        let (direct, checks) = examine(&probed);
        assert_eq!(direct, Direct::Untried);
        assert_eq!(checks[0].verdict, Verdict::Degraded);
    }
}
