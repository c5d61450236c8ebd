//! Read-ahead for cursors: leaves that follow each other in the file are read together, and several reads are
//! in flight.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay::{Block, Class};

use super::Table;
use crate::error::{Error, Result};
use crate::node::Child;

/// Leaves that are read or being read, in the order of the cursor.
pub(super) struct Ahead {
    table: Arc<Table>,
    class: Class,
    chunks: VecDeque<Chunk>,
}

/// One read: some leaves, and the blobs before each.
struct Chunk {
    range: Range<u64>,
    leaves: VecDeque<Child>,
    state: State,
    /// Whether the leaf comes from the cache: it was checked before.
    checked: bool,
}

enum State {
    /// The read starts when the next leaf is waited for.
    Planned,
    Reading(Pin<Box<dyn Future<Output = Result<Block>> + Send>>),
    Read(Block),
    Failed(Error),
}

/// A leaf that was read, and the bytes read with it.
#[derive(Debug)]
pub(super) struct FetchedLeaf {
    pub(super) child: Child,
    pub(super) leaf: Block,
    /// Whether the leaf was checked before.
    pub(super) checked: bool,
    pub(super) around: ChunkBytes,
}

/// The bytes of one read, with their place in the file.
#[derive(Clone, Debug, Default)]
pub(super) struct ChunkBytes {
    begin: u64,
    block: Block,
}

impl ChunkBytes {
    /// Returns the bytes of a range of the file, if the read covered it.
    pub(super) fn part(&self, range: Range<u64>) -> Option<Block> {
        let begin = usize::try_from(range.start.checked_sub(self.begin)?).ok()?;
        let end = usize::try_from(range.end.checked_sub(self.begin)?).ok()?;
        self.block.slice(begin..end)
    }
}

impl Ahead {
    pub(super) fn new(table: &Arc<Table>, class: Class) -> Ahead {
        Ahead { table: table.clone(), class, chunks: VecDeque::new() }
    }

    pub(super) fn clear(&mut self) {
        self.chunks.clear();
    }

    /// Returns the number of reads that are planned, in flight or not yet used up.
    pub(super) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Adds a leaf that is in memory already.
    pub(super) fn push_read(&mut self, child: Child, leaf: Block) {
        let (range, leaves) = (child.range(), VecDeque::from([child]));
        self.chunks.push_back(Chunk { range, leaves, state: State::Read(leaf), checked: true });
    }

    /// Adds a leaf to the read planned last, if the two are adjacent and have at most `bytes_max` bytes
    /// together. `range` is the leaf with the bytes to read before it. Returns whether the leaf was added.
    pub(super) fn join(&mut self, range: &Range<u64>, child: Child, bytes_max: u64) -> bool {
        let Some(Chunk { range: planned, leaves, state: State::Planned, .. }) = self.chunks.back_mut() else {
            return false;
        };
        let joined = planned.start.min(range.start)..planned.end.max(range.end);
        let neighbours = planned.end == range.start || range.end == planned.start;
        if !neighbours || joined.end - joined.start > bytes_max {
            return false;
        }
        debug_assert!(
            joined.start <= child.range().start && child.range().end <= joined.end,
            "a read covers its leaves"
        );
        *planned = joined;
        leaves.push_back(child);
        true
    }

    /// Plans a separate read for a leaf.
    pub(super) fn push(&mut self, range: Range<u64>, child: Child) {
        let leaves = VecDeque::from([child]);
        self.chunks.push_back(Chunk { range, leaves, state: State::Planned, checked: false });
    }

    /// Starts all planned reads without waiting for them.
    pub(super) async fn begin(&mut self) {
        poll_fn(|context| {
            let _ = self.poll(context);
            Poll::Ready(())
        })
        .await;
    }

    /// Starts all planned reads and waits for the next leaf; `None` if there is none to wait for.
    pub(super) async fn next(&mut self) -> Option<Result<FetchedLeaf>> {
        poll_fn(|context| self.poll(context)).await?;
        let chunk = self.chunks.front_mut()?;
        let answer = match (&chunk.state, chunk.leaves.pop_front()) {
            // A cached leaf, which may be longer than in the file.
            (State::Read(block), Some(child)) if chunk.checked => {
                let (leaf, around) = (block.clone(), ChunkBytes::default());
                Some(Ok(FetchedLeaf { child, leaf, checked: true, around }))
            }
            (State::Read(block), Some(child)) => {
                let around = ChunkBytes { begin: chunk.range.start, block: block.clone() };
                let leaf = around.part(child.range());
                leaf.map(|leaf| Ok(FetchedLeaf { child, leaf, checked: false, around }))
            }
            (State::Failed(error), _) => Some(Err(error.clone())),
            _ => None,
        };
        if chunk.leaves.is_empty() {
            self.chunks.pop_front();
        }
        answer
    }

    /// Starts planned reads and polls those in flight; ready when the first read has completed.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<()>> {
        for chunk in &mut self.chunks {
            if let State::Planned = chunk.state {
                let (table, class, range) = (self.table.clone(), self.class, chunk.range.clone());
                chunk.state = State::Reading(Box::pin(async move { table.read(range, class).await }));
            }
            if let State::Reading(future) = &mut chunk.state
                && let Poll::Ready(read) = future.as_mut().poll(context)
            {
                chunk.state = match read {
                    Ok(block) => State::Read(block),
                    Err(error) => State::Failed(error),
                };
            }
        }
        match self.chunks.front() {
            None => Poll::Ready(None),
            Some(Chunk { state: State::Read(_) | State::Failed(_), .. }) => Poll::Ready(Some(())),
            Some(_) => Poll::Pending,
        }
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead").field("chunks", &self.chunks.len()).finish_non_exhaustive()
    }
}
