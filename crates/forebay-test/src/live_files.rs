//! Files of a directory in which a log or a store may be at work.
//!
//! An open log makes, renames and removes files on its own: the next segment, its reserve. Reads after a listing may find names
//! removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Contents by names.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;
type Names = BTreeSet<PathBuf>;

/// More attempts than a log renames files in a test.
const ATTEMPTS: u32 = 1_000;

/// Returns the files below a directory with their contents; the names are relative to it. No file was added or removed while they
/// were read. With concurrent writes, contents may be of different moments.
///
/// # Panics
/// If the directory cannot be read, or its names change each time.
pub fn files(dir: &Path) -> Files {
    snapshot(dir).0
}

fn snapshot(dir: &Path) -> (Files, Names) {
    for _ in 0..ATTEMPTS {
        match attempt(dir) {
            Ok(Some(found)) => return found,
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && dir.exists() => {}
            Err(error) => panic!("cannot read the files of {}: {error}", dir.display()),
        }
    }
    panic!("the names in {} changed {ATTEMPTS} times", dir.display());
}

/// Copies the directories and files below a directory, as [`files`] finds them, into one that it makes if it is missing.
///
/// # Panics
/// As [`files`], or if a copy cannot be written.
pub fn copy(from: &Path, to: &Path) {
    let (files, dirs) = snapshot(from);
    let made = dirs.iter().map(|name| fs::create_dir_all(to.join(name)));
    let written = files.iter().map(|(name, bytes)| fs::write(to.join(name), bytes));
    let result: io::Result<()> = made.chain(written).collect();
    result.unwrap_or_else(|error| panic!("cannot copy {} to {}: {error}", from.display(), to.display()));
}

/// Returns the files and directories, or `None` if a name was added or removed meanwhile.
fn attempt(dir: &Path) -> io::Result<Option<(Files, Names)>> {
    let before = names(dir)?;
    let mut found = BTreeMap::new();
    for name in &before.0 {
        found.insert(name.clone(), fs::read(dir.join(name))?);
    }
    Ok((names(dir)? == before).then_some((found, before.1)))
}

/// Returns the names of the files, and those of the directories, the first of which is empty.
fn names(dir: &Path) -> io::Result<(Names, Names)> {
    let (mut names, mut dirs, mut below) = (BTreeSet::new(), BTreeSet::new(), vec![PathBuf::new()]);
    while let Some(at) = below.pop() {
        dirs.insert(at.clone());
        for entry in fs::read_dir(dir.join(&at))? {
            let entry = entry?;
            let name = at.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                below.push(name);
            } else {
                names.insert(name);
            }
        }
    }
    Ok((names, dirs))
}
