//! Many files created by an experiment, of one length and with contents that a reader can check.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::aligned::AlignedBuffer;
use crate::backing_device::device_stat;
use crate::cleanup::TempDirectory;
use crate::context::Context;
use crate::experiment::{Parameters, parameters};
use crate::pattern::{Pattern, SplitMix};
use crate::preconditions::Preconditions;
use crate::progress::Unit;
use crate::residency::{evict, resident_bytes};
use crate::scratch_dir::ScratchDir;
use crate::test_file::{by_several, check_space, no_space};
use crate::units::show_bytes;
use forebay_report::failure::Failure;

const WRITE_BYTES: u64 = 1 << 20;
/// The largest share of the files in memory at which they count as cold.
const COLD_SHARE: f64 = 0.01;

/// Files of equal length with known contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileSet {
    pub(super) files: u32,
    /// Bytes of each file; whole pages.
    pub(super) file_bytes: u64,
    #[serde(rename = "file_seed")]
    pub(super) seed: u64,
}

impl FileSet {
    pub(super) fn path(directory: &Path, file: u32) -> PathBuf {
        directory.join(format!("{file:05}"))
    }

    /// Returns the parameters of a table that describe it.
    pub(super) fn parameters(&self) -> Parameters {
        parameters(json!(self))
    }

    pub(super) fn contents(&self, file: u32) -> Pattern {
        Pattern::new(SplitMix::new(self.seed ^ u64::from(file)).next_u64())
    }
}

/// Files created by the experiment; they are removed when this value is dropped.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) directory: TempDirectory,
    pub(super) file_set: FileSet,
    /// The preconditions of the files; the first file stands for all.
    pub(super) preconditions: Preconditions,
}

impl Files {
    /// Creates the files with writes past the page cache.
    ///
    /// # Errors
    /// Fails with a [`Failure`] each: no space, no direct I/O.
    pub(super) fn make(scratch: &ScratchDir, file_set: FileSet, context: &Context) -> anyhow::Result<Self> {
        let bytes = u64::from(file_set.files) * file_set.file_bytes;
        check_space(&scratch.directory, bytes, "give a smaller --size, or name a directory with more space")?;
        let directory = scratch.temp_directory(context, "files")?;
        let label = format!("write {} in {} file(s)", show_bytes(bytes), file_set.files);
        let step = context.step(label, u64::from(file_set.files), Unit::Count);
        let written = by_several(u64::from(file_set.files), WRITE_BYTES as usize, |number, buffer| {
            one(&FileSet::path(directory.path(), number as u32), file_set, number as u32, buffer)?;
            step.set(number + 1);
            Ok(())
        });
        written.map_err(|error| refused(scratch, file_set.file_bytes, &error))?;
        step.finish("on the device");
        let first = File::open(FileSet::path(directory.path(), 0))?;
        let device_stat = device_stat(&first);
        let preconditions = Preconditions::of_file(&first, file_set.file_bytes, device_stat.as_deref());
        Ok(Self { directory, file_set, preconditions })
    }

    /// Evicts all files from the page cache. Returns whether they are evicted, as far as the kernel reports it.
    ///
    /// # Errors
    /// Fails when a file can no longer be opened.
    pub(super) fn evict(&self) -> anyhow::Result<bool> {
        let mut resident = 0;
        for file in 0..self.file_set.files {
            let path = FileSet::path(self.directory.path(), file);
            let file = File::open(&path).with_context(|| path.display().to_string())?;
            evict(&file)?;
            resident += resident_bytes(&file, self.file_set.file_bytes)?;
        }
        let all = f64::from(self.file_set.files) * self.file_set.file_bytes as f64;
        Ok(resident as f64 <= all * COLD_SHARE)
    }
}

fn refused(scratch: &ScratchDir, bytes: u64, error: &io::Error) -> anyhow::Error {
    if error.kind() != io::ErrorKind::InvalidInput {
        return no_space(&scratch.directory, bytes, error);
    }
    let (directory, filesystem) = (scratch.directory.display(), &scratch.filesystem);
    Failure::Unsuitable(format!(
        "files in {directory} cannot be written with direct I/O on {filesystem}: {error}; name a directory on another file system"
    ))
    .into()
}

fn one(path: &Path, file_set: FileSet, number: u32, buffer: &mut AlignedBuffer) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_DIRECT).open(path)?;
    let contents = file_set.contents(number);
    let mut offset = 0;
    while offset < file_set.file_bytes {
        let memory = &mut buffer.bytes_mut()[..WRITE_BYTES.min(file_set.file_bytes - offset) as usize];
        contents.fill(offset, memory);
        file.write_all_at(memory, offset)?;
        offset += memory.len() as u64;
    }
    file.sync_all()
}
