//! Directories with all that is in them.

use std::path::{Path, PathBuf};

use forebay::{Engine, FileKind};
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// Number of files that one call looks up.
const LOOKED_UP_TOGETHER: usize = 256;

/// A file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SnapshotFile {
    /// Its path within the snapshot.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Returns the files below a directory, by name, and the directories, each after those that it is in.
pub(crate) async fn walk(engine: &Engine, root: &Path) -> Result<(Vec<SnapshotFile>, Vec<PathBuf>)> {
    let (mut files, mut dirs, mut at) = (Vec::new(), vec![PathBuf::new()], 0);
    while let Some(dir) = dirs.get(at).cloned() {
        at += 1;
        let mut names = Vec::new();
        for entry in engine.read_dir(root.join(&dir)).await? {
            let path = dir.join(entry.name());
            if entry.kind() == FileKind::Dir {
                dirs.push(path);
            } else if let Some(name) = path.to_str() {
                names.push(name.to_owned());
            }
        }
        // A store has a file for each table.
        for some in names.chunks(LOOKED_UP_TOGETHER) {
            let found = engine.metadata_many(some.iter().map(|name| root.join(name))).await?;
            for (name, metadata) in some.iter().zip(found) {
                files.push(SnapshotFile { name: name.clone(), bytes: metadata?.len() });
            }
        }
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok((files, dirs))
}

/// Removes a directory with all that is in it.
pub(crate) async fn remove(engine: &Engine, root: &Path) -> Result<()> {
    let (files, dirs) = walk(engine, root).await?;
    for file in files {
        engine.remove_file(root.join(file.name)).await?;
    }
    for dir in dirs.iter().rev() {
        engine.remove_dir(root.join(dir)).await?;
    }
    Ok(())
}
