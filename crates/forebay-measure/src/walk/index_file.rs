//! Writes the file with the index, and determines the smallest direct read of it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use rustix::fs::{Advice, fadvise};

use super::super::aligned::AlignedBuffer;
use super::super::backing_device::device_stat;
use super::super::preconditions::Preconditions;
use super::super::scratch_dir::ScratchDir;
use super::super::test_file::check_space;
use super::super::units::show_bytes;
use super::tree::Tree;
use crate::cleanup::TempFile;
use crate::context::Context;
use crate::progress::{Step, Unit};
use forebay_report::failure::Failure;

const WRITE_BYTES: u64 = 1 << 20;
const WRITERS: usize = 4;

/// A file with an index.
#[derive(Debug)]
pub(super) struct IndexFile {
    pub(super) temp: TempFile,
    pub(super) tree: Tree,
    /// Alignment of a direct read.
    pub(super) unit_bytes: u64,
    /// The `stat` file of the block device below, when there is one.
    pub(super) device_stat: Option<PathBuf>,
    /// The storage beneath the file.
    pub(super) preconditions: Preconditions,
    /// Name of that device: `vda`, `zram0`.
    pub(super) device: Option<String>,
}

impl IndexFile {
    /// Writes the file, past the page cache and through to the device.
    ///
    /// # Errors
    /// No space, no direct I/O: each a [`Failure`].
    pub(super) fn make(scratch: &ScratchDir, tree: Tree, context: &Context) -> anyhow::Result<Self> {
        let bytes = tree.file_bytes().next_multiple_of(WRITE_BYTES);
        check_space(&scratch.directory, bytes, "give a smaller --size, or name a directory with more space")?;
        let temp = context.cleanup.temp_file(&scratch.directory, "walk").map_err(|error| {
            Failure::Path(format!(
                "no file can be made in {}: {error}; name a directory that this user may write to",
                scratch.directory.display()
            ))
        })?;
        let direct = open_direct(temp.path(), true).map_err(|error| {
            Failure::Unsuitable(format!(
                "{} cannot be opened for direct I/O on {}: {error}; name a directory on another file system",
                temp.path().display(),
                scratch.filesystem
            ))
        })?;
        let label = format!("write {} of nodes", show_bytes(bytes));
        let step = context.step(label, bytes, Unit::Bytes);
        write(&direct, tree, bytes, &step).with_context(|| format!("writing {}", temp.path().display()))?;
        step.finish("on the device");
        let unit_bytes = direct_unit(&direct)?;
        let device_stat = device_stat(temp.file());
        let device = device_stat.as_deref().and_then(device_name);
        let preconditions = Preconditions::of_file(temp.file(), bytes, device_stat.as_deref());
        Ok(Self { temp, tree, unit_bytes, device_stat, preconditions, device })
    }

    /// Drops the file from the page cache, so that no sample finds pages that another one left there.
    /// # Errors
    /// fadvise failed.
    pub(super) fn evict(&self) -> io::Result<()> {
        Ok(fadvise(self.temp.file(), 0, None, Advice::DontNeed)?)
    }
}

/// Opens a file for direct I/O.
///
/// # Errors
/// Errors of open.
pub(super) fn open_direct(path: &Path, write: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(write).custom_flags(libc::O_DIRECT).open(path)
}

fn write(file: &File, tree: Tree, bytes: u64, step: &Step) -> io::Result<()> {
    file.set_len(bytes)?;
    let (next, written) = (AtomicU64::new(0), AtomicU64::new(0));
    let outcomes = std::thread::scope(|scope| {
        let writers: Vec<_> =
            (0..WRITERS).map(|_| scope.spawn(|| writer(file, tree, bytes, &next, &written, step))).collect();
        writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    for outcome in outcomes {
        outcome.map_err(|_| io::Error::other("a writing thread panicked"))??;
    }
    file.sync_all()
}

fn writer(
    file: &File,
    tree: Tree,
    bytes: u64,
    next: &AtomicU64,
    written: &AtomicU64,
    step: &Step,
) -> io::Result<()> {
    let mut buffer = AlignedBuffer::new(WRITE_BYTES as usize);
    loop {
        let offset = next.fetch_add(WRITE_BYTES, Ordering::Relaxed);
        if offset >= bytes {
            return Ok(());
        }
        // The last piece may hold nodes after the last one; no lookup requests them.
        tree.fill(offset, buffer.bytes_mut());
        if let Err(error) = file.write_all_at(buffer.bytes(), offset) {
            // The other threads end, too.
            next.store(bytes, Ordering::Relaxed);
            return Err(error);
        }
        step.set(written.fetch_add(WRITE_BYTES, Ordering::Relaxed) + WRITE_BYTES);
    }
}

/// Returns the smallest unit in which the file can be read directly, found by trying.
fn direct_unit(file: &File) -> anyhow::Result<u64> {
    let mut buffer = AlignedBuffer::new(4096);
    for unit in [512, 1024, 2048, 4096] {
        match file.read_exact_at(&mut buffer.bytes_mut()[..unit], unit as u64) {
            Ok(()) => return Ok(unit as u64),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Failure::Unsuitable(
        "direct reads here need more than 4 KiB at a time; name another directory".to_owned(),
    )
    .into())
}

/// Returns the name of the disk of a `stat` file, also where that is of a partition.
fn device_name(stat: &Path) -> Option<String> {
    let device = fs::canonicalize(stat.parent()?).ok()?;
    let disk = if device.join("partition").exists() { device.parent()? } else { &device };
    Some(disk.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Target;
    use crate::progress::Progress;

    #[test]
    fn the_file_contains_the_tree() {
        let target = Target::Directory(env!("CARGO_MANIFEST_DIR").into());
        let context = Context::new(target, Progress::Silent, crate::cleanup::Cleanup::default(), 1);
        let scratch = ScratchDir::find(&context, "walk").expect("a directory on a disk");
        let tree = Tree { node_bytes: 512, fan_out: 9, levels: 3, nodes: 1000, seed: 5 };
        let index_file = IndexFile::make(&scratch, tree, &context).expect("space for 2 MiB");
        assert!([512, 1024, 2048, 4096].contains(&index_file.unit_bytes), "{index_file:?}");
        index_file.evict().expect("our own file");
        let mut expected = vec![0; tree.file_bytes() as usize];
        tree.fill(0, &mut expected);
        let found = fs::read(index_file.temp.path()).expect("it can be read buffered");
        assert_eq!(found.len(), 2 << 20);
        assert!(found.starts_with(&expected));
    }

    #[test]
    fn only_a_directory_will_do() {
        let target = Target::Existing("/proc/self/exe".into());
        let context = Context::new(target, Progress::Silent, crate::cleanup::Cleanup::default(), 1);
        assert!(ScratchDir::find(&context, "walk").expect_err("a file").to_string().contains("no directory"));
    }
}
