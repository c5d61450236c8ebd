//! The rows that block: `pread` on threads, and the ways of a Tokio program, `spawn_blocking` and
//! `tokio::fs`.

use std::fs::File;
use std::io::SeekFrom;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::super::aligned::AlignedBuffer;
use super::job::WalkWork;
use super::lane::{Lane, Phase, Tally, count_wakes};
use super::tree::{LookupError, Next, search};

/// Reads a node into `buffer` and searches it.
fn hop(work: &WalkWork, file: &File, buffer: &mut AlignedBuffer, at: u64, key: u64) -> anyhow::Result<Next> {
    let (begin, within) = work.around(at);
    file.read_exact_at(buffer.bytes_mut(), begin)?;
    let node = &buffer.bytes()[within..within + work.tree.node_bytes as usize];
    Ok(search(node, at, key).ok_or(LookupError::Damaged { position: at })?)
}

/// Descends on the calling thread and returns the result.
///
/// # Errors
/// Errors of [`pread`].
pub(super) fn whole(
    work: &WalkWork,
    file: &File,
    buffer: &mut AlignedBuffer,
    root: u64,
    key: u64,
) -> anyhow::Result<u64> {
    let mut at = root;
    loop {
        match hop(work, file, buffer, at, key)? {
            Next::Child(child) => at = child,
            Next::Found(value) => return Ok(value),
        }
    }
}

/// `pread`: runs one lane on the calling thread.
///
/// # Errors
/// A read failed, or a result was wrong.
pub(super) fn pread(work: &WalkWork, file: &File, lane: usize, phase: &Arc<Phase>) -> anyhow::Result<Tally> {
    let mut lane = Lane::new(work, lane, phase)?;
    let mut buffer = AlignedBuffer::new(work.read_bytes());
    loop {
        let value = whole(work, file, &mut buffer, lane.root(), lane.key())?;
        if !lane.completed(value, 0)? {
            return Ok(lane.end());
        }
    }
}

/// Descends with a `spawn_blocking` for each node; the buffer moves to the blocking thread and back.
///
/// # Errors
/// Errors of [`pread`].
pub(super) async fn hop_by_hop(
    work: &Arc<WalkWork>,
    file: &Arc<File>,
    buffer: &mut Option<AlignedBuffer>,
    root: u64,
    key: u64,
) -> anyhow::Result<u64> {
    let mut at = root;
    loop {
        let (work, file) = (Arc::clone(work), Arc::clone(file));
        let mut lent = buffer.take().context("it came back")?;
        let hopped = tokio::task::spawn_blocking(move || {
            let next = hop(&work, &file, &mut lent, at, key);
            (next, lent)
        });
        let (next, back) = hopped.await?;
        *buffer = Some(back);
        match next? {
            Next::Child(child) => at = child,
            Next::Found(value) => return Ok(value),
        }
    }
}

/// `blocking-per-hop`: runs one lane as a task.
///
/// # Errors
/// Errors of [`pread`].
pub(super) async fn per_hop(
    work: Arc<WalkWork>,
    file: Arc<File>,
    lane: usize,
    phase: Arc<Phase>,
) -> anyhow::Result<Tally> {
    let mut lane = Lane::new(&work, lane, &phase)?;
    let mut buffer = Some(AlignedBuffer::new(work.read_bytes()));
    loop {
        let descent = hop_by_hop(&work, &file, &mut buffer, lane.root(), lane.key());
        let (value, wakes) = count_wakes(descent).await;
        if !lane.completed(value?, wakes)? {
            return Ok(lane.end());
        }
    }
}

/// `blocking-whole`: runs one lane as a task.
///
/// # Errors
/// Errors of [`pread`].
pub(super) async fn descent(
    work: Arc<WalkWork>,
    file: Arc<File>,
    lane: usize,
    phase: Arc<Phase>,
) -> anyhow::Result<Tally> {
    let mut lane = Lane::new(&work, lane, &phase)?;
    let mut buffer = Some(AlignedBuffer::new(work.read_bytes()));
    loop {
        let (root, key) = (lane.root(), lane.key());
        let (work, file) = (Arc::clone(&work), Arc::clone(&file));
        let mut lent = buffer.take().context("it came back")?;
        let descended = tokio::task::spawn_blocking(move || {
            let value = whole(&work, &file, &mut lent, root, key);
            (value, lent)
        });
        let (outcome, wakes) = count_wakes(descended).await;
        let (value, back) = outcome.context("a descent panicked")?;
        buffer = Some(back);
        if !lane.completed(value?, wakes)? {
            return Ok(lane.end());
        }
    }
}

/// Descends with `seek` and `read_exact` for each node.
///
/// # Errors
/// Errors of [`pread`].
pub(super) async fn seek_and_read(
    file: &mut tokio::fs::File,
    node: &mut [u8],
    root: u64,
    key: u64,
) -> anyhow::Result<u64> {
    let mut at = root;
    loop {
        file.seek(SeekFrom::Start(at)).await?;
        file.read_exact(node).await?;
        match search(node, at, key).ok_or(LookupError::Damaged { position: at })? {
            Next::Child(child) => at = child,
            Next::Found(value) => return Ok(value),
        }
    }
}

/// `tokio-fs`: runs one lane as a task, with a file of its own.
///
/// # Errors
/// Errors of [`pread`].
pub(super) async fn tokio_fs(
    work: Arc<WalkWork>,
    file: File,
    lane: usize,
    phase: Arc<Phase>,
) -> anyhow::Result<Tally> {
    let mut lane = Lane::new(&work, lane, &phase)?;
    let mut file = tokio::fs::File::from_std(file);
    // With the default, it reads more than the node.
    file.set_max_buf_size(work.tree.node_bytes as usize);
    let mut node = vec![0; work.tree.node_bytes as usize];
    loop {
        let (value, wakes) = count_wakes(seek_and_read(&mut file, &mut node, lane.root(), lane.key())).await;
        if !lane.completed(value?, wakes)? {
            return Ok(lane.end());
        }
    }
}
