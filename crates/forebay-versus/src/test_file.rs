//! The file to read: written before, from bytes that do not compress, and removed at the end.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::memory::{PageKind, pieces};
use crate::{content, interrupt};

const CHUNK_BYTES: usize = 4 << 20;

/// A test file; removed when dropped.
#[derive(Debug)]
pub(crate) struct TestFile {
    path: PathBuf,
    bytes: u64,
}

impl TestFile {
    /// Writes a new file of `bytes` bytes (rounded down to 4 MiB) in `dir` and syncs it. Reports this on
    /// stderr.
    ///
    /// # Errors
    /// When the folder has no room or refuses direct I/O, or on Ctrl-C.
    pub(crate) fn create(dir: &Path, bytes: u64) -> Result<Self> {
        Self::create_named(dir, "data", bytes)
    }

    /// Does the same for a second file of this run, whose name ends with `suffix`.
    ///
    /// # Errors
    /// Those of [`create`](Self::create).
    pub(crate) fn create_named(dir: &Path, suffix: &str, bytes: u64) -> Result<Self> {
        let bytes = bytes / CHUNK_BYTES as u64 * CHUNK_BYTES as u64;
        let path = dir.join(format!("forebay-versus-{}.{suffix}", std::process::id()));
        check_room(dir, bytes)?;
        eprint!("writing {} MiB to {} ... ", bytes >> 20, path.display());
        std::io::stderr().flush()?;
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_DIRECT)
            .open(&path)
            .with_context(|| {
                format!(
                    "making {}; the folder's file system must allow O_DIRECT, choose another with --dir",
                    path.display()
                )
            })?;
        // From here on the guard removes the file, whatever happens.
        let this = Self { path, bytes };
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
            .with_context(|| format!("reserving {bytes} bytes for {}", this.path.display()))?;
        let mut memory = pieces(1, CHUNK_BYTES, PageKind::Huge)?;
        let chunk = &mut memory[0];
        for offset in (0..bytes).step_by(CHUNK_BYTES) {
            interrupt::check()?;
            content::fill(chunk, offset);
            file.write_all_at(chunk, offset).with_context(|| format!("writing {}", this.path.display()))?;
        }
        file.sync_all()?;
        eprintln!("done");
        Ok(this)
    }

    /// Returns the file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file's length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn check_room(dir: &Path, bytes: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(dir).with_context(|| format!("looking at {}", dir.display()))?;
    let free = stat.f_bavail * stat.f_frsize;
    ensure!(
        free > bytes + (32 << 20),
        "{} has {} MiB free, the test file needs {} MiB; choose another folder with --dir or a smaller file with --file-mib",
        dir.display(),
        free >> 20,
        bytes >> 20
    );
    Ok(())
}
