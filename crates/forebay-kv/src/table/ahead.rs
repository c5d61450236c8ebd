//! Read-ahead for cursors: leaves that follow each other in the file come in one read, and several reads
//! are in flight.

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

/// Leaves that are read or being read, in the order in which a cursor wants them.
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
    /// It comes from the cache.
    checked: bool,
}

enum State {
    /// To be begun when the next leaf is waited for.
    Planned,
    Reading(Pin<Box<dyn Future<Output = Result<Block>> + Send>>),
    Read(Block),
    Failed(Error),
}

/// A leaf that has arrived, and what was read with it.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) child: Child,
    pub(super) leaf: Block,
    /// Whether the leaf was checked before.
    pub(super) checked: bool,
    pub(super) around: Around,
}

/// Part of the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Around {
    begin: u64,
    block: Block,
}

impl Around {
    /// The bytes of a part, if they are here.
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

    /// Reads that are planned, in flight or not yet used up.
    pub(super) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// A leaf that is in memory already.
    pub(super) fn push_read(&mut self, child: Child, leaf: Block) {
        let (range, leaves) = (child.range(), VecDeque::from([child]));
        self.chunks.push_back(Chunk { range, leaves, state: State::Read(leaf), checked: true });
    }

    /// Reads a leaf with the read that was planned last, if they are neighbours and together have at most
    /// `bytes_max` bytes. `range` is the leaf with what is read before it.
    pub(super) fn join(&mut self, range: &Range<u64>, child: Child, bytes_max: u64) -> bool {
        let Some(Chunk { range: planned, leaves, state: State::Planned, .. }) = self.chunks.back_mut() else {
            return false;
        };
        let joined = planned.start.min(range.start)..planned.end.max(range.end);
        let neighbours = planned.end == range.start || range.end == planned.start;
        if !neighbours || joined.end - joined.start > bytes_max {
            return false;
        }
        *planned = joined;
        leaves.push_back(child);
        true
    }

    /// Plans a read of its own for a leaf.
    pub(super) fn push(&mut self, range: Range<u64>, child: Child) {
        let leaves = VecDeque::from([child]);
        self.chunks.push_back(Chunk { range, leaves, state: State::Planned, checked: false });
    }

    /// Begins what is planned, and does not wait.
    pub(super) async fn begin(&mut self) {
        poll_fn(|context| {
            let _ = self.poll(context);
            Poll::Ready(())
        })
        .await;
    }

    /// Begins what is planned, and waits for the next leaf; `None` if there is none to wait for.
    pub(super) async fn next(&mut self) -> Option<Result<Arrived>> {
        poll_fn(|context| self.poll(context)).await?;
        let chunk = self.chunks.front_mut()?;
        let answer = match (&chunk.state, chunk.leaves.pop_front()) {
            (State::Read(block), Some(child)) => {
                let around = Around { begin: chunk.range.start, block: block.clone() };
                let checked = chunk.checked;
                around.part(child.range()).map(|leaf| Ok(Arrived { child, leaf, checked, around }))
            }
            (State::Failed(error), _) => Some(Err(error.clone())),
            _ => None,
        };
        if chunk.leaves.is_empty() {
            self.chunks.pop_front();
        }
        answer
    }

    /// Ready when the first read is over.
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
