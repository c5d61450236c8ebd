//! Read-ahead for cursors: leaves that follow each other in the file are read together, and several reads are
//! in flight. `cursor/values.rs` reads values with the same [`PartRead`].

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay::{Block, Class};

use super::{Table, TableFile};
use crate::error::{Error, Result};
use crate::node::Child;

/// Leaves that are read or being read, in the order of the cursor.
pub(super) struct Ahead {
    file: Arc<TableFile>,
    class: Class,
    chunks: VecDeque<Chunk>,
    /// Bytes of leaves, with the bytes that are read before them: of leaves ahead of the cursor, and of leaves that it has passed.
    coming: u64,
    passed: u64,
}

/// One read: some leaves, and the blobs before each.
struct Chunk {
    part: PartRead,
    /// Each with its bytes, and those that are read before it.
    leaves: VecDeque<(Child, u64)>,
    /// Whether the leaf was in the cache: it was checked before.
    checked: bool,
    /// Whether the read leaves out blobs of its leaf, because they are too many.
    is_cut: bool,
}

/// A read of a part of a file, which starts when it is first polled.
pub(super) struct PartRead {
    file: Arc<TableFile>,
    class: Class,
    range: Range<u64>,
    state: State,
}

enum State {
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

impl PartRead {
    pub(super) fn new(file: &Arc<TableFile>, range: Range<u64>, class: Class) -> PartRead {
        PartRead { file: file.clone(), class, range, state: State::Planned }
    }

    pub(super) fn file(&self) -> &Arc<TableFile> {
        &self.file
    }

    pub(super) fn range(&self) -> &Range<u64> {
        &self.range
    }

    pub(super) fn is_planned(&self) -> bool {
        matches!(self.state, State::Planned)
    }

    /// Returns whether the read has ended, be it with an error.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Read(_) | State::Failed(_))
    }

    /// Changes the range of a read that has not started.
    pub(super) fn set_range(&mut self, range: Range<u64>) {
        debug_assert!(self.is_planned(), "a read that has begun keeps its range");
        self.range = range;
    }

    /// Returns the bytes, if the read has succeeded.
    pub(super) fn bytes(&self) -> Option<ChunkBytes> {
        match &self.state {
            State::Read(block) => Some(ChunkBytes { begin: self.range.start, block: block.clone() }),
            _ => None,
        }
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) {
        if self.is_planned() {
            let (file, class, range) = (self.file.clone(), self.class, self.range.clone());
            self.state = State::Reading(Box::pin(async move { file.read(range, class).await }));
        }
        if let State::Reading(future) = &mut self.state
            && let Poll::Ready(read) = future.as_mut().poll(context)
        {
            self.state = match read {
                Ok(block) => State::Read(block),
                Err(error) => State::Failed(error),
            };
        }
    }
}

impl Ahead {
    pub(super) fn new(table: &Arc<Table>, class: Class) -> Ahead {
        Ahead { file: table.own_file().clone(), class, chunks: VecDeque::new(), coming: 0, passed: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        (self.coming, self.passed) = (0, 0);
    }

    /// Counts bytes of other tables as passed.
    pub(super) fn go_on(&mut self, bytes: u64) {
        self.passed += bytes;
    }

    /// Returns the bytes ahead of the cursor, and the bytes that it has passed.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.coming, self.passed)
    }

    /// Returns the number of reads that are planned, in flight or not yet used up.
    pub(super) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Returns whether the last read leaves out blobs of its leaf.
    pub(super) fn ends_cut(&self) -> bool {
        self.chunks.back().is_some_and(|chunk| chunk.is_cut)
    }

    /// Adds a leaf that is in memory already.
    pub(super) fn push_read(&mut self, child: Child, leaf: Block) {
        let mut part = PartRead::new(&self.file, child.range(), self.class);
        part.state = State::Read(leaf);
        self.add(part, child, true, false);
    }

    /// Adds a leaf to the read planned last, if the two are adjacent and have at most `bytes_max` bytes
    /// together. `range` is the leaf with the bytes to read before it. Returns whether the leaf was added.
    pub(super) fn join(&mut self, range: &Range<u64>, child: Child, bytes_max: u64) -> bool {
        let Some(Chunk { part, leaves, is_cut: false, .. }) = self.chunks.back_mut() else { return false };
        let planned = part.range();
        let joined = planned.start.min(range.start)..planned.end.max(range.end);
        let neighbours = planned.end == range.start || range.end == planned.start;
        if !part.is_planned() || !neighbours || joined.end - joined.start > bytes_max {
            return false;
        }
        debug_assert!(
            joined.start <= child.range().start && child.range().end <= joined.end,
            "a read covers its leaves"
        );
        part.set_range(joined);
        leaves.push_back((child, range.end - range.start));
        self.coming += range.end - range.start;
        true
    }

    /// Plans a separate read for a leaf; `is_cut` if the range leaves out blobs before it.
    pub(super) fn push(&mut self, range: Range<u64>, child: Child, is_cut: bool) {
        self.add(PartRead::new(&self.file, range, self.class), child, false, is_cut);
    }

    fn add(&mut self, part: PartRead, child: Child, checked: bool, is_cut: bool) {
        let bytes = part.range.end - part.range.start;
        self.coming += bytes;
        self.chunks.push_back(Chunk { part, leaves: VecDeque::from([(child, bytes)]), checked, is_cut });
    }

    /// Starts all planned reads without waiting for them.
    pub(super) async fn begin(&mut self) {
        poll_fn(|context| {
            let _ = self.poll(context);
            Poll::Ready(())
        })
        .await;
    }

    /// Starts all planned reads and waits for the next leaf; `None` if no leaf is planned.
    pub(super) async fn next(&mut self) -> Option<Result<FetchedLeaf>> {
        poll_fn(|context| self.poll(context)).await?;
        let chunk = self.chunks.front_mut()?;
        let child = chunk.leaves.pop_front().map(|(child, bytes)| {
            self.coming -= bytes;
            self.passed += bytes;
            child
        });
        let answer = match (&chunk.part.state, child) {
            // A cached leaf, which may be longer than in the file.
            (State::Read(block), Some(child)) if chunk.checked => {
                let (leaf, around) = (block.clone(), ChunkBytes::default());
                Some(Ok(FetchedLeaf { child, leaf, checked: true, around }))
            }
            (State::Read(block), Some(child)) => {
                let around = ChunkBytes { begin: chunk.part.range.start, block: block.clone() };
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
            chunk.part.poll(context);
        }
        match self.chunks.front() {
            None => Poll::Ready(None),
            Some(chunk) if chunk.part.is_over() => Poll::Ready(Some(())),
            Some(_) => Poll::Pending,
        }
    }
}

forebay::_debug_parts!(Ahead, |ahead| chunks: ahead.chunks.len());
