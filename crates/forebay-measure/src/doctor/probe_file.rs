//! The file system's behaviour under the calls that Forebay makes. Each call is really made: on a temp file
//! of the program's own when the path is a directory, and read-only when it is a file or a device.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use io_uring::{IoUring, opcode, types};
use rustix::fs::{Access, Advice, AtFlags, FallocateFlags, Statx, StatxFlags, access, fallocate, statx};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

use super::{Probe, ProbeResult, degraded, done, named, ok, remedy_of_limit};
use crate::aligned::AlignedBuffer;
use crate::pattern::Pattern;
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
pub(super) struct ProbedFile {
    path: PathBuf,
    /// An ordinary handle.
    buffered: File,
    /// Whether the program created the file and may write to it.
    own: bool,
    /// The file's length; for a device, the length that may be tried.
    len: u64,
    status: Option<Statx>,
}

impl ProbedFile {
    /// Returns a file with its properties; the program writes only to its `own`.
    pub(super) fn new(path: &Path, buffered: File, len: u64, own: bool) -> Self {
        let wanted = StatxFlags::DIOALIGN | StatxFlags::from_bits_retain(STATX_WRITE_ATOMIC);
        let status = statx(&buffered, "", AtFlags::EMPTY_PATH, wanted).ok();
        Self { path: path.to_owned(), buffered, own, len, status }
    }

    /// Returns the alignment of memory and of offsets, when the file system states one.
    fn alignment(&self) -> Option<(u32, u32)> {
        let status =
            self.status.as_ref().filter(|status| status.stx_mask & StatxFlags::DIOALIGN.bits() != 0)?;
        let (memory, offset) = (status.stx_dio_mem_align, status.stx_dio_offset_align);
        (memory > 0 && offset > 0).then_some((memory, offset))
    }

    /// Returns whether the kernel shows which pages of it are cached: only to its owner, and to those who may write it. To others
    /// all count as cached.
    fn shows_pages(&self) -> bool {
        let user = rustix::process::geteuid();
        let is_owner = |found: Metadata| found.uid() == user.as_raw();
        user.is_root()
            || self.buffered.metadata().is_ok_and(is_owner)
            || access(self.path.as_path(), Access::WRITE_OK).is_ok()
    }

    /// Opens it for direct reading, and for writing too when `write`.
    fn open_direct(&self, write: bool) -> io::Result<File> {
        OpenOptions::new().read(true).write(write).custom_flags(libc::O_DIRECT).open(&self.path)
    }

    fn write_directly(&self, len: usize, flags: ReadWriteFlags) -> io::Result<usize> {
        let data = AlignedBuffer::new(len);
        Ok(pwritev2(&self.open_direct(true)?, &[IoSlice::new(data.bytes())], 0, flags)?)
    }
}

fn read(file: &File, len: usize, flags: ReadWriteFlags) -> Result<usize, Errno> {
    preadv2(file, &mut [IoSliceMut::new(AlignedBuffer::new(len).bytes_mut())], 0, flags)
}

/// Whether and how direct I/O is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direct {
    /// A direct read was made past the page cache.
    Works,
    /// Opening and reading work, but the bytes are in the page cache all the same: the file system keeps its
    /// data there, or ignores O_DIRECT.
    Ignored,
    /// Direct I/O is refused.
    Refused,
    /// The file was empty.
    Untried,
    /// No file could be created. True means a lack of space, false another reason.
    NoFile(bool),
}

/// Fills the program's own temp file with bytes that do not compress and writes them out.
///
/// # Errors
/// Fails when the file system is full or read-only.
pub(super) fn fill(file: &mut &File) -> io::Result<()> {
    let mut data = vec![0; TEMP_BYTES];
    Pattern::new(1).fill(0, &mut data);
    file.write_all(&data)?;
    file.sync_data()
}

/// Reads past and through the page cache.
const READS: [Probe<ProbedFile>; 2] = [
    Probe {
        name: "rwf_dontcache",
        call: |file| done(read(&file.buffered, 4096, ReadWriteFlags::from_bits_retain(RWF_DONTCACHE))),
        works: "a read left nothing in the page cache: `uncached` files work",
        refused: "refused: {}; `uncached` files fall back to buffered reads and fadvise",
        remedy: "use Linux 6.14 or later with ext4, XFS or btrfs",
    },
    Probe {
        name: "rwf_nowait",
        call: |file| match read(&file.buffered, 4096, ReadWriteFlags::NOWAIT) {
            // The page was not cached: the kernel has the call, and it behaved as it should.
            Err(Errno::AGAIN) => Ok("accepted; the page was not cached".to_owned()),
            Ok(_) => Ok("a cached page was read without waiting: buffered hits cost no hop".to_owned()),
            Err(error) => Err(error.into()),
        },
        works: "{}",
        refused: "refused: {}; buffered reads always go through the ring",
        remedy: "use a file system that supports it (ext4, XFS, btrfs)",
    },
];

const IOPOLL: Probe<ProbedFile> = Probe {
    name: "iopoll",
    call: polled_read,
    works: "a polled read of {} bytes completed",
    refused: "a polled read is refused: {}; completions arrive by interrupt",
    remedy: "a device with poll queues (NVMe: nvme.poll_queues=2) and a file system with direct I/O",
};

/// Calls that change the file.
const WRITES: [Probe<ProbedFile>; 4] = [
    Probe {
        name: "rwf_dsync",
        call: |file| done(file.write_directly(4096, ReadWriteFlags::DSYNC)),
        works: "a direct write was made durable by its own flag",
        refused: "refused: {}; durable writes use a separate fdatasync",
        remedy: "none needed",
    },
    Probe {
        name: "rwf_atomic",
        call: atomic_write,
        works: "a write of {} that cannot tear was made",
        refused: "{}; a write may tear at power loss",
        remedy: "a device with atomic writes and a file system that passes them on (XFS, ext4 with bigalloc)",
    },
    Probe {
        name: "allocate",
        call: |file| {
            let end = TEMP_BYTES as u64;
            done(fallocate(&file.buffered, FallocateFlags::KEEP_SIZE, end, end))
        },
        works: "space was set aside before it is written",
        refused: "fallocate is refused: {}; appends may find the disk full late",
        remedy: "use a file system with fallocate (ext4, XFS, btrfs)",
    },
    Probe {
        name: "punch_hole",
        call: |file| {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            done(fallocate(&file.buffered, hole, 0, 64 << 10))
        },
        works: "space inside a file was given back",
        refused: "refused: {}; space inside a file cannot be given back",
        remedy: "use a file system that supports it (ext4, XFS, btrfs)",
    },
];

/// Tries every call on `file`.
pub(super) fn examine(file: &ProbedFile) -> (Direct, Vec<Check>) {
    let (direct, finding) = direct_read(file);
    let alignment = match file.alignment() {
        Some((memory, offset)) => ok(format!(
            "statx: memory {memory} B, offset and length {offset} B (Forebay never aligns memory below {} B)",
            rustix::param::page_size()
        )),
        None => degraded(
            "statx states no alignment for direct I/O; Forebay assumes the page size",
            "use a file system that states it (ext4, XFS and block devices since Linux 6.1)",
        ),
    };
    let mut checks = named(GROUP, [("direct", finding), ("dioalign", alignment)]);
    checks.extend(READS.iter().map(|probe| probe.check(GROUP, file)));
    checks.push(if direct == Direct::Works {
        IOPOLL.check(GROUP, file)
    } else {
        Check::unavailable(GROUP, IOPOLL.name, "polling needs direct I/O", IOPOLL.remedy)
    });
    if file.own {
        checks.extend(WRITES.iter().map(|probe| probe.check(GROUP, file)));
    } else {
        let why = "not tried: this file was not created by the program, which only reads it; name a directory to try \
                   writes";
        checks.push(Check::ok(GROUP, "writes", why));
    }
    (direct, checks)
}

fn direct_read(probed: &ProbedFile) -> (Direct, Check) {
    const REMEDY: &str = "use a file system with direct I/O (ext4, XFS), or open files buffered";
    let fails = |direct, why: String, remedy: &str| (direct, Check::unavailable("", "", why, remedy));
    let refused = |why: &str, error: io::Error| {
        let remedy = remedy_of_limit(&error).unwrap_or(REMEDY);
        fails(Direct::Refused, format!("{why}: {error}"), remedy)
    };
    if probed.len == 0 {
        let why = "the file is empty: there is nothing to read";
        return (Direct::Untried, degraded(why, "name a file that holds data, or a directory"));
    }
    let file = match probed.open_direct(false) {
        Ok(file) => file,
        Err(error) => return refused("opening with O_DIRECT fails", error),
    };
    let alignment = probed.alignment();
    let len = alignment.map_or(rustix::param::page_size(), |(_, offset)| offset as usize);
    // btrfs, NFS and FUSE state no alignment, and yet read directly: the page cache shows it.
    let is_cached = || residency::resident_bytes(&probed.buffered, len as u64).is_ok_and(|bytes| bytes > 0);
    if alignment.is_none() {
        // Advice only: the pages may stay, and are then found below.
        let _ = rustix::fs::fadvise(&probed.buffered, 0, NonZeroU64::new(len as u64), Advice::DontNeed);
    }
    match read(&file, len, ReadWriteFlags::empty()) {
        Ok(got) if alignment.is_none() && !probed.shows_pages() => {
            let why = "only the owner of the file is shown whether the page cache has them";
            (Direct::Works, ok(format!("{got} bytes were read with O_DIRECT; {why}")))
        }
        Ok(got) if alignment.is_some() || !is_cached() => {
            (Direct::Works, ok(format!("{got} bytes were read past the page cache")))
        }
        Ok(got) => fails(
            Direct::Ignored,
            format!(
                "O_DIRECT opens and {got} bytes were read, but the page cache has them: the file system keeps its data in \
                 memory or ignores the flag"
            ),
            REMEDY,
        ),
        Err(error) => refused("O_DIRECT opens, but reading fails", error.into()),
    }
}

fn polled_read(probed: &ProbedFile) -> ProbeResult {
    let (file, mut memory) = (probed.open_direct(false)?, AlignedBuffer::new(4096));
    let mut ring: IoUring = IoUring::builder().setup_iopoll().build(8)?;
    let read = opcode::Read::new(types::Fd(file.as_raw_fd()), memory.bytes_mut().as_mut_ptr(), 4096).build();
    // SAFETY: the memory and the file outlive the completion, which the code below waits for. Without a completion
    // the memory is leaked, because the read may still be in flight.
    let pushed = unsafe { ring.submission().push(&read) };
    pushed.map_err(|_| io::Error::other("the submission queue is full"))?;
    let waited = ring.submit_and_wait(1);
    let Some(entry) = ring.completion().next() else {
        std::mem::forget(memory);
        waited?;
        return Err(io::Error::other("no completion came").into());
    };
    match usize::try_from(entry.result()) {
        Ok(got) => Ok(got.to_string()),
        Err(_) => Err(io::Error::from_raw_os_error(entry.result().saturating_neg()).into()),
    }
}

fn atomic_write(file: &ProbedFile) -> ProbeResult {
    let status = file.status.as_ref().filter(|status| status.stx_mask & STATX_WRITE_ATOMIC != 0);
    let max = status.map_or(0, |status| status.stx_atomic_write_unit_max);
    let tried = if max == 0 { 4096 } else { max };
    let size = bytes(tried.into());
    let written = file.write_directly(tried as usize, ReadWriteFlags::from_bits_retain(RWF_ATOMIC));
    let refused =
        |error| io::Error::other(format!("a write of {size} is refused: {error} (statx: at most {max} B)"));
    written.map_err(refused)?;
    Ok(size)
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
        let handle = temp.file().try_clone().expect("a descriptor");
        let probed = ProbedFile::new(temp.path(), handle, TEMP_BYTES as u64, true);
        let (_, checks) = examine(&probed);
        let mut names: Vec<&str> = checks.iter().map(|check| check.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), checks.len());
        assert!(checks.len() >= 9);
    }

    /// Regression: direct reads of another user's file were said to be in the page cache, on file systems that state no alignment.
    #[test]
    fn pages_are_shown_to_owners_and_writers() {
        let shown = |path: &Path| {
            let file = File::open(path).expect("readable by all");
            ProbedFile::new(path, file, 1, false).shows_pages()
        };
        let temp = Cleanup::default().temp_file(&std::env::temp_dir(), "pages").expect("writable");
        assert!(shown(temp.path()));
        assert_eq!(shown(Path::new("/proc/version")), rustix::process::geteuid().is_root());
    }

    #[test]
    fn an_empty_file_is_not_tried() {
        let temp = Cleanup::default()
            .temp_file(&std::env::temp_dir(), "empty")
            .expect("the temp directory is writable");
        let handle = temp.file().try_clone().expect("a descriptor");
        let (direct, checks) = examine(&ProbedFile::new(temp.path(), handle, 0, false));
        assert_eq!(direct, Direct::Untried);
        assert_eq!(checks[0].verdict, Verdict::Degraded);
    }
}
