//! Reads: immediately for pages in memory, by flights for the others.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay::internal::CollectedResults;
use forebay::{Block, Result};

use crate::cache::Core;
use crate::file::{CachedFile, FileState};
use crate::flight::{Claim, Waiter};

/// Number of hits after which a future yields.
const HITS_PER_YIELD: u64 = 64;
/// The most ranges of one batch in flight.
const DEPTH: usize = 128;

/// A read through the cache, which starts when it is first polled; see [`CachedFile::read`](crate::CachedFile::read).
#[must_use = "a read begins only when it is awaited or waited for"]
pub struct Read<'f> {
    file: &'f CachedFile,
    range: Range<u64>,
    exact: bool,
    state: State,
}

enum State {
    New,
    /// Found in memory, and to be returned after a yield.
    Yielded(Option<Block>),
    /// Boxed, so that a hit moves and drops little.
    Asked(Box<Ask>),
}

impl<'f> Read<'f> {
    #[inline]
    pub(crate) fn new(file: &'f CachedFile, range: Range<u64>, exact: bool) -> Read<'f> {
        Read { file, range, exact, state: State::New }
    }

    /// Blocks the calling thread until the bytes are there. The thread reads missing pages itself.
    ///
    /// # Errors
    /// As [`CachedFile::read`](crate::CachedFile::read);
    /// [`ErrorKind::WaitOnShard`](forebay::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(self) -> Result<Block> {
        let engine = &self.file.shared().core().engine;
        engine.block_on_in_turn(self)?
    }

    #[inline]
    fn begin(&mut self, context: &mut Context<'_>) -> Poll<Result<Block>> {
        let shared = self.file.shared();
        let page = Page::of(shared, &self.range);
        let missed = match page {
            None => false,
            Some(page) => {
                let (found, is_due) =
                    shared.core().blocks.get_awaited(shared.id(), page.offset, HITS_PER_YIELD);
                match found.and_then(|found| page.slice(found, self.exact)) {
                    Some(block) if !is_due => return Poll::Ready(Ok(block)),
                    Some(block) => {
                        self.state = State::Yielded(Some(block));
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    None => true,
                }
            }
        };
        self.ask(missed, context)
    }

    #[cold]
    fn ask(&mut self, missed: bool, context: &mut Context<'_>) -> Poll<Result<Block>> {
        let mut ask = Box::new(Ask::new(self.file.shared().clone(), self.range.clone(), self.exact));
        let is_due = ask.begin(None, missed);
        let polled = ask.poll(context);
        self.state = State::Asked(ask);
        match polled {
            Poll::Ready(Ok(block)) if is_due => {
                self.state = State::Yielded(Some(block));
                context.waker().wake_by_ref();
                Poll::Pending
            }
            polled => polled,
        }
    }
}

impl Future for Read<'_> {
    type Output = Result<Block>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Block>> {
        match &mut self.state {
            State::New => self.begin(context),
            State::Asked(ask) => ask.poll(context),
            // `None` after it has completed: a contract error of the caller, which gets no panic.
            State::Yielded(block) => block.take().map_or(Poll::Pending, |block| Poll::Ready(Ok(block))),
        }
    }
}

forebay::_debug_parts!(Read<'_>, |read| file: read.file, range: read.range);

/// A range that lies within one page.
struct Page {
    /// The page's first byte.
    offset: u64,
    /// The range, counted from there.
    range: Range<usize>,
}

impl Page {
    #[inline]
    fn of(shared: &FileState, range: &Range<u64>) -> Option<Page> {
        let mask = shared.page_bytes() - 1;
        let offset = range.start & !mask;
        let is_within = range.start < range.end && (range.end - 1) & !mask == offset;
        is_within.then(|| {
            let start = (range.start - offset) as usize;
            Page { offset, range: start..start + (range.end - range.start) as usize }
        })
    }

    /// Returns the range's part of the page. `None` if the page, at the end of the file, has not all of it and
    /// `exact` asks for that.
    #[inline]
    fn slice(&self, page: Block, exact: bool) -> Option<Block> {
        if self.range.start == 0 && self.range.end == page.len() {
            return Some(page);
        }
        match page.slice(self.range.clone()) {
            None if !exact => {
                let end = self.range.end.min(page.len());
                page.slice(self.range.start.min(end)..end)
            }
            block => block,
        }
    }
}

/// Returns a range of which all pages are in memory.
#[inline]
pub(crate) fn from_memory(shared: &Arc<FileState>, range: Range<u64>) -> Option<Block> {
    let blocks = &shared.core().blocks;
    if let Some(page) = Page::of(shared, &range) {
        return blocks.get(shared.id(), page.offset).and_then(|found| page.slice(found, true));
    }
    if range.end.checked_sub(range.start)? > shared.core().bypass_bytes {
        return None;
    }
    let mut ask = Ask::new(shared.clone(), range, true);
    for page in ask.first..ask.last() + 1 {
        ask.pieces.push(Piece::page(page, shared, blocks.get(shared.id(), page * shared.page_bytes())?));
    }
    match ask.assemble() {
        Assembly::Whole(Ok(block)) => Some(block),
        _ => None,
    }
}

/// A range that is read, at least in part, by flights.
struct Ask {
    file: Arc<FileState>,
    range: Range<u64>,
    /// The range's first page.
    first: u64,
    exact: bool,
    /// In the order of the file.
    pieces: Vec<Piece>,
    /// The read past the cache, of a range that is too long for it or not wholly in the file.
    direct: Option<Direct>,
}

/// A part of a range, whole pages.
struct Piece {
    pages: u64,
    source: Source,
}

enum Source {
    Flight(Waiter),
    /// Bytes of the file from `start` on.
    Memory {
        start: u64,
        block: Block,
    },
}

enum Direct {
    Exact(forebay::Read<'static>),
    UpTo(forebay::ReadUpTo<'static>),
}

enum Assembly {
    Whole(Result<Block>),
    /// The file ended in this page, within the range.
    Short(u64),
}

impl Piece {
    fn page(page: u64, file: &FileState, block: Block) -> Piece {
        Piece { pages: 1, source: Source::Memory { start: page * file.page_bytes(), block } }
    }
}

impl Ask {
    fn new(file: Arc<FileState>, range: Range<u64>, exact: bool) -> Ask {
        let first = range.start / file.page_bytes();
        Ask { file, range, first, exact, pieces: Vec::new(), direct: None }
    }

    /// Returns the range's last page.
    fn last(&self) -> u64 {
        self.range.end.saturating_sub(1) / self.file.page_bytes()
    }

    /// Finds the pages in memory, and claims the others. `last` is the newest read of the same batch. With `missed` the
    /// caller has looked for the one page already. Returns whether the future should yield.
    fn begin(&mut self, last: Option<&Waiter>, missed: bool) -> bool {
        let core = self.file.core().clone();
        let bytes = self.range.end.saturating_sub(self.range.start);
        // Also an empty range, one that ends before it starts, and one past the last offset: the file has the errors.
        if bytes == 0 || bytes > core.bypass_bytes || self.range.end > i64::MAX as u64 - (1 << 20) {
            if bytes > core.bypass_bytes {
                core.count_bypassed(bytes);
            }
            self.read_directly();
            return false;
        }
        self.file.settle();
        let mut is_due = false;
        for page in self.first..=self.last() {
            if !missed {
                let offset = page * core.page_bytes;
                let (found, due) = core.blocks.get_awaited(self.file.id(), offset, HITS_PER_YIELD);
                is_due |= due;
                if let Some(block) = found {
                    self.pieces.push(Piece::page(page, &self.file, block));
                    continue;
                }
            }
            let newest = self.pieces.last_mut();
            let newest = newest.and_then(|piece| match &piece.source {
                Source::Flight(waiter) => Some((&mut piece.pages, waiter)),
                Source::Memory { .. } => None,
            });
            let claim =
                core.flights.claim(&self.file, page, newest.as_ref().map(|(_, waiter)| *waiter).or(last));
            let source = match (claim, newest) {
                (Claim::Cached(block), _) => Source::Memory { start: page * core.page_bytes, block },
                (Claim::Extended, Some((pages, _))) => {
                    *pages += 1;
                    continue;
                }
                (Claim::Joined(waiter), Some((pages, newest))) if waiter.shares_with(newest) => {
                    *pages += 1;
                    core.count_joined();
                    continue;
                }
                (Claim::Joined(waiter), _) => {
                    core.count_joined();
                    Source::Flight(waiter)
                }
                (Claim::New(waiter), _) => Source::Flight(waiter),
                (Claim::Extended, None) => match last {
                    Some(last) => Source::Flight(last.again()),
                    // Cannot happen: only a read that was given is extended.
                    None => continue,
                },
            };
            self.pieces.push(Piece { pages: 1, source });
        }
        is_due
    }

    /// Returns the newest read, for the next range of a batch to extend.
    fn newest(&self) -> Option<&Waiter> {
        match &self.pieces.last()?.source {
            Source::Flight(waiter) => Some(waiter),
            Source::Memory { .. } => None,
        }
    }

    /// Drops what the range has of memory and reads.
    fn release(&mut self) {
        self.pieces = Vec::new();
        self.direct = None;
    }

    fn read_directly(&mut self) {
        self.pieces = Vec::new();
        let (file, range) = (self.file.file(), self.range.clone());
        self.direct = Some(if self.exact {
            Direct::Exact(file.read(range).owned())
        } else {
            Direct::UpTo(file.read_up_to(range).owned())
        });
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Block>> {
        loop {
            let result = match &mut self.direct {
                Some(Direct::Exact(read)) => std::task::ready!(Pin::new(read).poll(context)),
                Some(Direct::UpTo(read)) => std::task::ready!(Pin::new(read).poll(context)),
                None => match std::task::ready!(self.poll_pieces(context)) {
                    Err(error) if self.is_of_others() && !error.is_out_of_memory() => {
                        // The error may be that of a page which this range does not need.
                        self.read_directly();
                        continue;
                    }
                    Err(error) => Err(error),
                    Ok(()) => match self.assemble() {
                        Assembly::Whole(result) => result,
                        Assembly::Short(page) => {
                            // The file may have grown; if it has not, the read has the error.
                            drop(self.file.core().flights.sweep(&self.file, page));
                            self.read_directly();
                            continue;
                        }
                    },
                },
            };
            match result {
                Err(error) if self.file.core().blocks.give_way(&error) => {
                    self.pieces = Vec::new();
                    if self.direct.is_some() {
                        self.read_directly();
                    } else {
                        self.begin(None, false);
                    }
                }
                result => return Poll::Ready(result),
            }
        }
    }

    /// Returns whether a read of this range has pages of others.
    fn is_of_others(&self) -> bool {
        self.pieces.iter().any(|piece| match &piece.source {
            Source::Flight(waiter) => waiter.reaches_beyond(self.first, self.last()),
            Source::Memory { .. } => false,
        })
    }

    /// Polls all reads, so that all are in flight; completes when all are over, or one has failed.
    fn poll_pieces(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut is_over = true;
        for piece in &mut self.pieces {
            let Source::Flight(waiter) = &piece.source else { continue };
            match waiter.poll(context) {
                Poll::Pending => is_over = false,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(block)) => piece.source = Source::Memory { start: waiter.start(), block },
            }
        }
        if is_over { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Puts the pieces together. One piece is sliced; several are copied into a new block.
    fn assemble(&self) -> Assembly {
        let page_bytes = self.file.page_bytes();
        let (mut page, mut end) = (self.first, self.range.start);
        for piece in &self.pieces {
            let Source::Memory { start, block } = &piece.source else { continue };
            let (from, has) = (page * page_bytes, start + block.len() as u64);
            page += piece.pages;
            let wanted = self.range.end.min(page * page_bytes);
            end = end.max(has.min(wanted));
            if has < wanted {
                if self.exact {
                    return Assembly::Short(has.max(from) / page_bytes);
                }
                break;
            }
        }
        let range = self.range.start..end;
        if range.is_empty() {
            return Assembly::Whole(Ok(Block::new()));
        }
        let mut whole = None;
        let mut copied = 0;
        let mut page = self.first;
        for piece in &self.pieces {
            let Source::Memory { start, block } = &piece.source else { continue };
            let at = range.start + copied as u64;
            // The read may have more pages, of which newer bytes are in the next pieces.
            page += piece.pages;
            let until = range.end.min(page * page_bytes).min(start + block.len() as u64);
            let Some(part) = until.checked_sub(at).filter(|bytes| *bytes > 0) else { continue };
            let part = (at - start) as usize..(at - start + part) as usize;
            if part.len() as u64 == range.end - range.start {
                return Assembly::Whole(Ok(block.slice(part).unwrap_or_default()));
            }
            let whole = match &mut whole {
                Some(whole) => whole,
                None => match self.file.core().engine.block((range.end - range.start) as usize) {
                    Ok(block) => whole.insert(block),
                    Err(error) => return Assembly::Whole(Err(error)),
                },
            };
            let bytes = part.len();
            if let (Some(to), Some(from)) = (whole.get_mut(copied..copied + bytes), block.get(part)) {
                to.copy_from_slice(from);
            }
            copied += bytes;
        }
        debug_assert_eq!(copied as u64, range.end - range.start, "the pieces have all bytes of the range");
        Assembly::Whole(Ok(whole.map(|block| block.freeze()).unwrap_or_default()))
    }
}

/// A batch of reads; see [`Cache::read_many`](crate::Cache::read_many). It starts when it is first polled, and borrows nothing.
#[must_use = "a batch begins only when it is awaited or waited for"]
pub struct ReadMany {
    core: Arc<Core>,
    asks: Vec<Ask>,
    results: Vec<Option<Result<Block>>>,
    collected: CollectedResults,
    /// Ranges in flight, and the most at once: fewer after one found no memory.
    active: Vec<usize>,
    depth: usize,
    /// Ranges that found no memory while others were in flight, to be read again.
    again: Vec<usize>,
    next: usize,
    is_due: bool,
}

impl ReadMany {
    pub(crate) fn new(
        core: &Arc<Core>,
        ranges: impl Iterator<Item = (Arc<FileState>, Range<u64>)>,
    ) -> ReadMany {
        let asks: Vec<Ask> = ranges.map(|(file, range)| Ask::new(file, range, true)).collect();
        let results = asks.iter().map(|_| None).collect();
        ReadMany {
            core: core.clone(),
            asks,
            results,
            collected: CollectedResults::new(&core.engine),
            active: Vec::new(),
            depth: DEPTH,
            again: Vec::new(),
            next: 0,
            is_due: false,
        }
    }

    /// Blocks the calling thread until all results are there.
    ///
    /// # Errors
    /// [`ErrorKind::WaitOnShard`](forebay::ErrorKind::WaitOnShard) on a shard's thread; all others are in the
    /// results.
    pub fn wait(self) -> Result<Vec<Result<Block>>> {
        let engine = self.core.engine.clone();
        engine.block_on(self)
    }

    /// Starts ranges until enough are in flight. All are claimed before any is polled, so that neighbours are one read.
    fn begin_more(&mut self) {
        while self.active.len() < self.depth
            && let Some(number) = self.again.pop()
        {
            self.is_due |= self.asks[number].begin(None, false);
            self.active.push(number);
        }
        let begun = self.next;
        while self.active.len() < self.depth && self.next < self.asks.len() {
            let (before, rest) = self.asks.split_at_mut(self.next);
            let newest = if self.next > begun { before.last().and_then(Ask::newest) } else { None };
            if let Some(ask) = rest.first_mut() {
                self.is_due |= ask.begin(newest, false);
            }
            self.active.push(self.next);
            self.next += 1;
        }
    }
}

impl Future for ReadMany {
    type Output = Vec<Result<Block>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Result<Block>>> {
        let this = &mut *self;
        loop {
            this.begin_more();
            let before = this.active.len();
            let (asks, results, collected) = (&mut this.asks, &mut this.results, &mut this.collected);
            let (depth, again) = (&mut this.depth, &mut this.again);
            this.active.retain(|&number| {
                let Poll::Ready(result) = asks[number].poll(context) else { return true };
                match result {
                    // Others have the memory in flight, or in pieces of their ranges.
                    Err(error) if error.is_out_of_memory() && before > 1 => {
                        *depth = (before / 2).min(*depth);
                        again.push(number);
                    }
                    result => results[number] = Some(result.map(|block| collected.keep(block))),
                }
                asks[number].release();
                false
            });
            if this.active.is_empty() && this.again.is_empty() && this.next == this.asks.len() {
                return Poll::Ready(this.results.drain(..).flatten().collect());
            }
            if std::mem::take(&mut this.is_due) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if this.active.len() == before {
                return Poll::Pending;
            }
        }
    }
}

forebay::_debug_parts!(ReadMany, |read_many| ranges: read_many.asks.len());
