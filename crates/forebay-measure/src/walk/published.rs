//! Lookups counted like the published benchmarks of asynchronous files. Each lookup makes a file, here
//! one with the nodes that it descends, and removes it. Its time includes both.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::{Engine, Open};
use tokio::io::AsyncWriteExt as _;

use super::super::aligned::AlignedBuffer;
use super::blocking::{hop_by_hop, seek_and_read, whole};
use super::engine::read_by_read;
use super::job::{WalkRow, WalkWork};
use super::lane::{Lane, Phase, Tally, count_wakes};
use super::tree::{Lookup, Tree};

/// Returns the index of one lookup: a node for each of its reads.
pub(super) fn tree_of(tree: Tree, depth: u64) -> Tree {
    Tree { levels: depth, nodes: 1, ..tree }
}

/// The files of a sample, one for each lookup.
#[derive(Debug)]
pub(super) struct Files {
    directory: PathBuf,
    /// Contents of every file: the nodes, padded to the needs of a direct read.
    nodes: AlignedBuffer,
    next: AtomicU64,
}

impl Files {
    /// Prepares the files in `directory`, which is empty.
    pub(super) fn new(directory: &Path, work: &WalkWork) -> Self {
        let bytes = work.tree.file_bytes().next_multiple_of(work.unit_bytes.max(1));
        let mut nodes = AlignedBuffer::new(bytes as usize);
        work.tree.fill(0, &mut nodes.bytes_mut()[..work.tree.file_bytes() as usize]);
        Self { directory: directory.to_owned(), nodes, next: AtomicU64::new(0) }
    }

    fn path(&self) -> PathBuf {
        self.directory.join(self.next.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Creates a new file for direct I/O, with its nodes.
    fn make(&self) -> io::Result<(File, PathBuf)> {
        let path = self.path();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT);
        let file = options.open(&path)?;
        file.write_all_at(self.nodes.bytes(), 0)?;
        Ok((file, path))
    }

    /// Checks that all files were removed.
    ///
    /// # Errors
    /// A file is left.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let left = fs::read_dir(&self.directory)?.count();
        anyhow::ensure!(left == 0, "{left} files were not removed");
        Ok(())
    }

    fn descend(
        &self,
        work: &WalkWork,
        buffer: &mut AlignedBuffer,
        root: u64,
        key: u64,
    ) -> anyhow::Result<u64> {
        let (file, path) = self.make()?;
        let value = whole(work, &file, buffer, root, key)?;
        drop(file);
        fs::remove_file(path)?;
        Ok(value)
    }
}

/// `pread`: runs one lane on the calling thread.
///
/// # Errors
/// A call failed, or a result was wrong.
pub(super) fn pread(
    work: &WalkWork,
    files: &Files,
    lane: usize,
    phase: &Arc<Phase>,
) -> anyhow::Result<Tally> {
    let mut lane = Lane::new(work, lane, phase)?;
    let mut buffer = AlignedBuffer::new(work.read_bytes());
    loop {
        let value = files.descend(work, &mut buffer, lane.root(), lane.key())?;
        if !lane.completed(value, 0)? {
            return Ok(lane.end());
        }
    }
}

/// The rows with Forebay: runs one lane, in any task.
///
/// # Errors
/// Errors of [`pread`].
pub(super) async fn forebay(
    work: Arc<WalkWork>,
    files: Arc<Files>,
    (engine, shard): (Engine, usize),
    lane: usize,
    phase: Arc<Phase>,
) -> anyhow::Result<Tally> {
    let mut lane = Lane::new(&work, lane, &phase)?;
    let node_bytes = work.tree.node_bytes;
    loop {
        let (root, key) = (lane.root(), lane.key());
        let lookup = async {
            let path = files.path();
            let file = engine.open(&path, Open::create_new().shard(shard).permissions(0o600)).await?;
            file.write(0, files.nodes.bytes()).await?;
            let value = match work.row {
                WalkRow::ForebayTask => read_by_read(&file, node_bytes, root, key).await?,
                _ => file.walk(root..root + node_bytes, Lookup { key, node_bytes }).await?,
            };
            file.close().await?;
            engine.remove_file(path).await?;
            anyhow::Ok(value)
        };
        let (value, wakes) = count_wakes(lookup).await;
        if !lane.completed(value?, wakes)? {
            return Ok(lane.end());
        }
    }
}

/// The other rows of a Tokio runtime: runs one lane as a task.
///
/// # Errors
/// Errors of [`pread`].
pub(super) async fn from_tokio(
    work: Arc<WalkWork>,
    files: Arc<Files>,
    lane: usize,
    phase: Arc<Phase>,
) -> anyhow::Result<Tally> {
    let mut lane = Lane::new(&work, lane, &phase)?;
    let mut buffer = Some(AlignedBuffer::new(work.read_bytes()));
    loop {
        let (root, key) = (lane.root(), lane.key());
        let lookup = async {
            match work.row {
                WalkRow::BlockingPerHop => per_hop(&work, &files, &mut buffer, root, key).await,
                WalkRow::BlockingWhole => {
                    let (work, files) = (Arc::clone(&work), Arc::clone(&files));
                    let descend = move || {
                        let mut buffer = AlignedBuffer::new(work.read_bytes());
                        files.descend(&work, &mut buffer, root, key)
                    };
                    tokio::task::spawn_blocking(descend).await?
                }
                _ => with_tokio(&work, &files, root, key).await,
            }
        };
        let (value, wakes) = count_wakes(lookup).await;
        if !lane.completed(value?, wakes)? {
            return Ok(lane.end());
        }
    }
}

async fn per_hop(
    work: &Arc<WalkWork>,
    files: &Arc<Files>,
    buffer: &mut Option<AlignedBuffer>,
    root: u64,
    key: u64,
) -> anyhow::Result<u64> {
    let making = Arc::clone(files);
    let (file, path) = tokio::task::spawn_blocking(move || making.make()).await??;
    let value = hop_by_hop(work, &Arc::new(file), buffer, root, key).await?;
    tokio::task::spawn_blocking(move || fs::remove_file(path)).await??;
    Ok(value)
}

async fn with_tokio(work: &WalkWork, files: &Files, root: u64, key: u64) -> anyhow::Result<u64> {
    let path = files.path();
    let mut options = tokio::fs::OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).open(&path).await?;
    // The buffer is as large as the file, so that the file is written at once; a node is read with its
    // own buffer.
    file.set_max_buf_size(files.nodes.bytes().len());
    file.write_all(files.nodes.bytes()).await?;
    file.flush().await?;
    let mut node = vec![0; work.tree.node_bytes as usize];
    let value = seek_and_read(&mut file, &mut node, root, key).await?;
    drop(file);
    tokio::fs::remove_file(path).await?;
    Ok(value)
}
