//! Folders of this run's own, removed at its end.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A new folder that only this process uses; removed when dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes the folder `NAME-PID` in `dir`.
    ///
    /// # Errors
    /// When it cannot be made or is there already.
    pub(crate) fn in_dir(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("making the folder {}", path.display()))?;
        Ok(Self { path })
    }

    /// Returns the folder's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Only if empty: a folder that still has a file system mounted on it must never be emptied.
        if let Err(error) = std::fs::remove_dir(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// A new folder that only this run writes to; removed with everything in it when dropped.
#[derive(Debug)]
pub(crate) struct Tree {
    path: PathBuf,
}

impl Tree {
    /// Makes the folder `NAME-PID` in `dir`.
    ///
    /// # Errors
    /// When it cannot be made or is there already: its content then is not this run's.
    pub(crate) fn in_dir(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("making the folder {}", path.display()))?;
        Ok(Self { path })
    }

    /// Returns the folder's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}
