//! The file that an experiment reads: one created here, or an existing one that is only read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;

use crate::aligned::AlignedBuffer;
use crate::backing_device::{device_stat, filesystem_of};
use crate::cleanup::TempFile;
use crate::context::{Context, Target};
use crate::experiment::Place;
use crate::io_limit::IoLimit;
use crate::pattern::{PAGE_BYTES, Pattern};
use crate::preconditions::Preconditions;
use crate::progress::{Step, Unit};
use crate::units::show_bytes;
use forebay_report::failure::Failure;

const WRITE_BYTES: usize = 1 << 20;
/// Writes in flight while the file is written; more gained nothing on the disks tried.
const WRITERS: usize = 4;
const KEEP_FREE_BYTES: u64 = 1 << 30;

/// The file to be read, and its known properties.
#[derive(Debug)]
pub(super) struct TestFile {
    /// Absolute, so that a child process finds it.
    pub(super) path: PathBuf,
    /// The length of the file's prefix that the experiment may read; a multiple of [`PAGE_BYTES`].
    pub(super) bytes: u64,
    /// The contents of the file, when this program wrote them.
    pub(super) pattern: Option<Pattern>,
    /// The `stat` file of the block device below, if any.
    pub(super) device_stat: Option<PathBuf>,
    /// The limit on its reads, in addition to the device.
    pub(super) io_limit: Option<IoLimit>,
    /// The extents of the file and the device's write cache.
    pub(super) preconditions: Preconditions,
    /// The file system's type: `ext4`, `xfs`, ...
    pub(super) filesystem: String,
    /// Open buffered for reading: to evict its pages and to count them.
    pub(super) handle: File,
    #[allow(dead_code, reason = "held for its Drop, which removes the file")]
    temp: Option<TempFile>,
}

impl TestFile {
    /// Returns the facts on the place.
    pub(super) fn place(&self) -> Place {
        self.preconditions.place(&self.path, &self.filesystem)
    }

    /// Creates or opens the target of `context`. A created file has `bytes` bytes and is on the device when
    /// this returns; of an existing one at most `limit` bytes are used.
    ///
    /// # Errors
    /// A missing path, too little space, a file system without O_DIRECT, an empty file: each as a
    /// [`Failure`].
    pub(super) fn prepare(context: &Context, bytes: u64, limit: Option<u64>) -> anyhow::Result<Self> {
        match &context.target {
            Target::Directory(directory) => Self::create(context, directory, bytes),
            Target::Existing(path) => Self::existing(path, limit.unwrap_or(u64::MAX), None),
            Target::Overwritten(path) => {
                let pattern = Pattern::new(context.seed);
                let test_file = Self::existing(path, limit.unwrap_or(bytes), Some(pattern))?;
                test_file.overwrite(path, pattern, context)?;
                Ok(test_file)
            }
        }
    }

    fn create(context: &Context, directory: &Path, bytes: u64) -> anyhow::Result<Self> {
        let directory = fs::canonicalize(directory).map_err(|error| Failure::missing(directory, &error))?;
        let filesystem = filesystem_of(&directory);
        refuse_memory_filesystem(&directory, &filesystem)?;
        check_space(
            &directory,
            bytes,
            "give a smaller --size (and --memory, where there is one), or name a directory with more space",
        )?;
        let temp = context.cleanup.temp_file(&directory, "measure").map_err(|error| {
            Failure::Path(format!(
                "no file can be made in {}: {error}; name a directory that this user may write to",
                directory.display()
            ))
        })?;
        require_direct(temp.path(), &filesystem)?;
        let pattern = Pattern::new(context.seed);
        let step = context.step(format!("write {} of test data", show_bytes(bytes)), bytes, Unit::Bytes);
        // Allocates the space first, so that a lack of it is reported before the writing.
        rustix::fs::fallocate(temp.file(), rustix::fs::FallocateFlags::empty(), 0, bytes)
            .or_else(|error| if error == rustix::io::Errno::OPNOTSUPP { Ok(()) } else { Err(error) })
            .map_err(|error| no_space(&directory, bytes, &error.into()))?;
        let path = temp.path().to_owned();
        write_direct(&path, bytes, |at, memory| pattern.fill(at, memory), &step)
            .map_err(|error| no_space(&directory, bytes, &error))?;
        step.finish("on the device");
        let handle = open_to_read(&path)?;
        Ok(Self { temp: Some(temp), ..Self::opened(path, filesystem, handle, bytes, Some(pattern)) })
    }

    /// Opens an existing file or device, of which at most `limit` bytes are used. `pattern` is what it holds.
    ///
    /// # Errors
    /// As for [`prepare`](Self::prepare).
    pub(super) fn existing(path: &Path, limit: u64, pattern: Option<Pattern>) -> anyhow::Result<Self> {
        let path = fs::canonicalize(path).map_err(|error| Failure::missing(path, &error))?;
        let filesystem = filesystem_of(&path);
        let handle = open_to_read(&path)?;
        if handle.metadata()?.file_type().is_file() {
            refuse_memory_filesystem(&path, &filesystem)?;
        }
        // A block device has a length of zero in its metadata; a seek to its end returns the length.
        let length = (&handle).seek(io::SeekFrom::End(0)).with_context(|| path.display().to_string())?;
        let bytes = length.min(limit) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        if bytes == 0 {
            return Err(Failure::Unsuitable(format!(
                "{} holds {} and is too small to measure; name a larger file, or a directory in which one may be made",
                path.display(),
                show_bytes(length)
            ))
            .into());
        }
        require_direct(&path, &filesystem)?;
        Ok(Self::opened(path, filesystem, handle, bytes, pattern))
    }

    /// Replaces its contents, wherever its path leads by now. `name` is for sentences.
    fn overwrite(&self, name: &Path, pattern: Pattern, context: &Context) -> anyhow::Result<()> {
        let path = by_descriptor(&self.handle);
        // What is mounted, or part of another device, is not overwritten.
        let is_device = self.handle.metadata()?.file_type().is_block_device();
        let _claim = is_device.then(|| claim(&path, name)).transpose()?;
        let step = context.step(format!("overwrite {}", name.display()), self.bytes, Unit::Bytes);
        write_direct(&path, self.bytes, |at, memory| pattern.fill(at, memory), &step)?;
        step.finish(&show_bytes(self.bytes));
        Ok(())
    }

    fn opened(path: PathBuf, filesystem: String, handle: File, bytes: u64, pattern: Option<Pattern>) -> Self {
        let device_stat = device_stat(&handle);
        let preconditions = Preconditions::of_file(&handle, bytes, device_stat.as_deref());
        let io_limit = IoLimit::of_device(device_stat.as_deref());
        Self { path, bytes, pattern, device_stat, io_limit, preconditions, filesystem, handle, temp: None }
    }
}

fn open_to_read(path: &Path) -> anyhow::Result<File> {
    Ok(File::open(path).map_err(|error| Failure::missing(path, &error))?)
}

/// Returns a path of this process that leads to an open file, even if other paths change.
pub(super) fn by_descriptor(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Opens a device so that no file system or other device on it, or on a part of it, can be in use. `name` is for sentences.
///
/// # Errors
/// [`Failure::Path`]: one is in use, or the device cannot be opened.
pub(super) fn claim(path: &Path, name: &Path) -> Result<File, Failure> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => {
            Failure::Path(format!("{} is in use: unmount it, and what lies on it", name.display()))
        }
        _ => Failure::missing(name, &error),
    })
}

/// Checks that `bytes` fit below `directory` and leave space for other users.
///
/// # Errors
/// Fails when they do not, with a sentence that ends with `remedy`, or when the file system does not report
/// its free space.
pub fn check_space(directory: &Path, bytes: u64, remedy: &str) -> anyhow::Result<()> {
    let [free, total] = space(directory)
        .with_context(|| format!("the free space of {} could not be read", directory.display()))?;
    let keep = kept_free(total);
    if bytes.saturating_add(keep) > free {
        return Err(Failure::Unsuitable(format!(
            "{} has {} free: files of {} would leave less than the {} that stay free for others; {remedy}",
            directory.display(),
            show_bytes(free),
            show_bytes(bytes),
            show_bytes(keep)
        ))
        .into());
    }
    Ok(())
}

/// Returns the free space of a file system for this user, and its whole space.
///
/// # Errors
/// Errors of the system.
pub(super) fn space(path: &Path) -> io::Result<[u64; 2]> {
    let found = rustix::fs::statvfs(path)?;
    Ok(in_bytes([found.f_bavail, found.f_blocks], found.f_frsize))
}

/// Returns the bytes of blocks. Programs that serve a file system without a limit name more blocks than there are numbers of bytes.
fn in_bytes(blocks: [u64; 2], block_bytes: u64) -> [u64; 2] {
    blocks.map(|count| count.saturating_mul(block_bytes))
}

/// Returns the space that stays free: 1 GiB, on small file systems 5 %.
fn kept_free(total: u64) -> u64 {
    KEEP_FREE_BYTES.min(total / 20)
}

/// Returns the failure of a file of `bytes` that could not be made or written.
pub(super) fn no_space(directory: &Path, bytes: u64, error: &io::Error) -> anyhow::Error {
    let text =
        format!("a file of {} could not be written in {}: {error}", show_bytes(bytes), directory.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Failure::Unsuitable(format!(
                "{text}; give a smaller --size (and --memory, where there is one), or name another directory"
            ))
            .into()
        }
        _ => anyhow::anyhow!(text),
    }
}

/// Writes the first `bytes` bytes past the page cache, and flushes them. `fill` writes the bytes of an offset into a buffer.
///
/// # Errors
/// Errors of the system.
pub fn write_direct(
    path: &Path,
    bytes: u64,
    fill: impl Fn(u64, &mut [u8]) + Sync,
    step: &Step,
) -> io::Result<()> {
    write_pieces(WRITE_BYTES, path, bytes, fill, step)
}

/// Does the same by requests of `request` bytes.
///
/// # Errors
/// Errors of the system.
pub(super) fn write_pieces(
    request: usize,
    path: &Path,
    bytes: u64,
    fill: impl Fn(u64, &mut [u8]) + Sync,
    step: &Step,
) -> io::Result<()> {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path)?;
    let written = AtomicU64::new(0);
    by_several(bytes.div_ceil(request as u64), request, |number, buffer| {
        let offset = number * request as u64;
        let length = (request as u64).min(bytes - offset) as usize;
        let memory = &mut buffer.bytes_mut()[..length];
        fill(offset, memory);
        file.write_all_at(memory, offset)?;
        step.set(written.fetch_add(length as u64, Ordering::Relaxed) + length as u64);
        Ok(())
    })?;
    file.sync_all()
}

/// Does the work of each number below `count`, on several threads with a buffer each, until one fails.
///
/// # Errors
/// Fails as the work does.
pub(super) fn by_several(
    count: u64,
    buffer_bytes: usize,
    work: impl Fn(u64, &mut AlignedBuffer) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let next = AtomicU64::new(0);
    let writer = || {
        let mut buffer = AlignedBuffer::new(buffer_bytes);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            if let Err(error) = work(number, &mut buffer) {
                // The others need not go on.
                next.store(count, Ordering::Relaxed);
                return Err(error);
            }
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(writer)).collect();
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        ended.into_iter().try_for_each(|end| -> io::Result<()> {
            end.map_err(|_| io::Error::other("a writing thread panicked"))?
        })
    })
}

/// Rejects file systems in memory. Their files have no device to measure, although some kernels let them be
/// opened with O_DIRECT.
///
/// # Errors
/// Fails when the file system is one of them.
pub(super) fn refuse_memory_filesystem(path: &Path, filesystem: &str) -> Result<(), Failure> {
    if matches!(filesystem, "tmpfs" | "ramfs" | "hugetlbfs" | "devtmpfs") {
        return Err(Failure::Unsuitable(format!(
            "{} is on {filesystem}, which keeps its files in memory and has no O_DIRECT to a device: name a path on a disk",
            path.display()
        )));
    }
    Ok(())
}

/// Opens `path` with O_DIRECT once, which is the only reliable test.
///
/// # Errors
/// Fails with a [`Failure`]: the file system does not support it, or the file cannot be opened.
pub(super) fn require_direct(path: &Path, filesystem: &str) -> anyhow::Result<()> {
    match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(Failure::Unsuitable(format!(
            "{} is on {filesystem}, which has no O_DIRECT here: direct reads cannot be measured; name a path on another file system",
            path.display()
        ))
        .into()),
        Err(error) => Err(Failure::missing(path, &error).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;
    use crate::progress::Progress;

    #[test]
    fn free_space_that_stays() {
        assert_eq!(kept_free(100 << 30), 1 << 30);
        assert_eq!(kept_free(10 << 30), 512 << 20);
        // A bucket of an object store, mounted by FUSE, had 0 B free: its 2^52 blocks of 4 KiB are more bytes than a number has.
        assert_eq!(in_bytes([1 << 52, u64::MAX], 4096), [u64::MAX; 2]);
        assert_eq!(in_bytes([3, 5], 4096), [12_288, 20_480]);
    }

    #[test]
    fn a_file_that_cannot_fit_is_refused_with_the_remedy() {
        let error = check_space(&std::env::temp_dir(), 1 << 60, "give a smaller --size")
            .expect_err("no disk is that large");
        assert_eq!(error.downcast_ref::<Failure>().map(Failure::code), Some(4));
        assert!(error.to_string().contains("--size"), "{error}");
    }

    #[test]
    fn memory_file_systems_are_refused_by_name() {
        let error = refuse_memory_filesystem(Path::new("/dev/shm"), "tmpfs").expect_err("it is in memory");
        assert!(error.to_string().contains("/dev/shm is on tmpfs"), "{error}");
        assert!(refuse_memory_filesystem(Path::new("/"), "ext4").is_ok());
    }

    #[test]
    fn an_existing_file_is_used_in_whole_pages_up_to_the_limit() {
        let cleanup = Cleanup::default();
        // Next to the crate rather than in the temp directory, which is often in memory.
        let temp = cleanup.temp_file(Path::new(env!("CARGO_MANIFEST_DIR")), "subject").expect("writable");
        let path = temp.path().to_owned();
        let context = Context::new(Target::Existing(path.clone()), Progress::Silent, cleanup.clone(), 1);
        let error = TestFile::prepare(&context, 0, None).expect_err("it is empty");
        assert_eq!(error.downcast_ref::<Failure>().map(Failure::code), Some(4), "{error}");

        temp.file().write_all_at(&[7; 10_000], 0).expect("space for 10 kB");
        match TestFile::prepare(&context, 0, None) {
            Ok(test_file) => assert_eq!((test_file.bytes, test_file.pattern), (8192, None)),
            // The checkout may be on a file system without O_DIRECT; the error must then report that.
            Err(error) => assert!(error.to_string().contains("O_DIRECT"), "{error}"),
        }
        if let Ok(test_file) = TestFile::prepare(&context, 0, Some(5000)) {
            assert_eq!(test_file.bytes, 4096);
        }
        let mut still = [0; 10_000];
        temp.file().read_exact_at(&mut still, 0).expect("it has that many");
        assert_eq!(still, [7; 10_000]);
    }

    #[test]
    fn an_overwritten_file_keeps_its_length_and_is_written_up_to_the_limit() {
        let cleanup = Cleanup::default();
        let temp = cleanup.temp_file(Path::new(env!("CARGO_MANIFEST_DIR")), "overwrite").expect("writable");
        temp.file().write_all_at(&[7; 50_000], 0).expect("space for 50 kB");
        temp.file().sync_all().expect("it can be flushed");
        let target = Target::Overwritten(temp.path().to_owned());
        let context = Context::new(target, Progress::Silent, cleanup.clone(), 9);
        let test_file = match TestFile::prepare(&context, 1 << 20, Some(40_000)) {
            Ok(test_file) => test_file,
            Err(error) => return assert!(error.to_string().contains("O_DIRECT"), "{error}"),
        };
        assert_eq!(test_file.bytes, 36_864);
        let mut memory = vec![0; 50_000];
        test_file.handle.read_exact_at(&mut memory, 0).expect("it is as long as before");
        assert_eq!(test_file.handle.metadata().expect("it is open").len(), 50_000);
        let (written, kept) = memory.split_at(36_864);
        super::super::pattern::Checker::new(test_file.pattern)
            .check(0, written)
            .expect("all pages are right");
        assert!(kept.iter().all(|byte| *byte == 7));
    }

    /// Regression: a file that took the place of the named one, after that was opened, was overwritten.
    #[test]
    fn only_the_file_that_was_opened_is_overwritten() {
        let cleanup = Cleanup::default();
        let folder = cleanup.temp_directory(Path::new(env!("CARGO_MANIFEST_DIR")), "swap").expect("writable");
        let [path, moved] = ["named", "moved"].map(|name| folder.path().join(name));
        fs::write(&path, [7_u8; 8192]).expect("space for 8 kB");
        let test_file = match TestFile::existing(&path, u64::MAX, None) {
            Ok(test_file) => test_file,
            Err(error) => return assert!(error.to_string().contains("O_DIRECT"), "{error}"),
        };
        fs::rename(&path, &moved).expect("it is ours");
        fs::write(&path, [8_u8; 8192]).expect("space for 8 kB");
        let context = Context::new(Target::Overwritten(path.clone()), Progress::Silent, cleanup.clone(), 9);
        test_file.overwrite(&path, Pattern::new(9), &context).expect("it may be written");
        assert!(fs::read(&path).expect("it is there").iter().all(|byte| *byte == 8));
        assert!(fs::read(&moved).expect("it is there") != [7_u8; 8192]);
    }

    #[test]
    fn a_file_of_our_own_holds_the_pattern_and_goes_away() {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let context = Context::new(Target::Directory(directory), Progress::Silent, Cleanup::default(), 5);
        let bytes = 3 * WRITE_BYTES as u64 + 8192;
        match TestFile::prepare(&context, bytes, None) {
            Ok(test_file) => {
                let mut memory = vec![0; bytes as usize];
                test_file.handle.read_exact_at(&mut memory, 0).expect("it is that long");
                let pattern = test_file.pattern.expect("it was written here");
                super::super::pattern::Checker::new(Some(pattern))
                    .check(0, &memory)
                    .expect("all pages are right");
                let path = test_file.path.clone();
                drop(test_file);
                assert!(!path.exists());
            }
            Err(error) => assert!(error.to_string().contains("O_DIRECT"), "{error}"),
        }
    }
}
