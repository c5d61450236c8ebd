//! Writes through the cache: to the device first, and then to the pages in memory.
//!
//! From its start to its end a write is in its file's list. Meanwhile no page of its range is inserted: the bytes that a read
//! returns may be older or newer than the write.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use forebay::{Block, Error, Result};

use crate::file::FileState;

/// A write through the cache, which starts when it is first polled; see [`CachedFile::write`](crate::CachedFile::write). It borrows
/// nothing.
#[must_use = "a write begins only when it is awaited or waited for"]
pub struct Write {
    file: Arc<FileState>,
    offset: u64,
    data: Block,
    state: State,
}

enum State {
    New,
    /// The buffer could not be allocated.
    Failed(Error),
    Begun(ActiveWrite),
    Over,
}

/// A write that is in its file's list.
struct ActiveWrite {
    id: u64,
    write: forebay::Write<'static>,
    /// The pages that were in memory, with the new bytes.
    pages: Vec<(u64, Block)>,
}

impl Write {
    pub(crate) fn new(file: &Arc<FileState>, offset: u64, data: Result<Block>) -> Write {
        let (data, state) = match data {
            Ok(data) => (data, State::New),
            Err(error) => (Block::new(), State::Failed(error)),
        };
        Write { file: file.clone(), offset, data, state }
    }

    pub(crate) fn copied(file: &Arc<FileState>, offset: u64, data: &[u8]) -> Write {
        let core = file.core();
        let block = loop {
            match core.engine.block_from(data) {
                Err(error) if core.blocks.give_way(&error) => {}
                block => break block.map(|block| block.freeze()),
            }
        };
        Write::new(file, offset, block)
    }

    /// Blocks the calling thread until the bytes are on the device.
    ///
    /// # Errors
    /// As [`CachedFile::write`](crate::CachedFile::write);
    /// [`ErrorKind::WaitOnShard`](forebay::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(self) -> Result<()> {
        let engine = self.file.core().engine.clone();
        engine.block_on_in_turn(self)?
    }

    fn begin(&mut self) -> ActiveWrite {
        let (first, last) = self.file.pages_of(self.offset, self.data.len() as u64);
        let id = self.file.writes.begin(first, last);
        let mut pages = Vec::new();
        for page in first..=last {
            if let Some(old) = self.file.core().flights.sweep(&self.file, page)
                && let Some(new) = self.overlaid(page, &old)
            {
                pages.push((page, new));
            }
        }
        self.file.sweep_short_page();
        let write = self.file.file().write(self.offset, self.data.clone()).owned();
        ActiveWrite { id, write, pages }
    }

    /// Returns a page with the new bytes. A page at the end of the file is left out: where the file ends is not known
    /// once the write is over.
    fn overlaid(&self, page: u64, old: &Block) -> Option<Block> {
        let (start, page_bytes) = (page * self.file.page_bytes(), self.file.page_bytes());
        let from = self.offset.max(start);
        let to = (self.offset + self.data.len() as u64).min(start + page_bytes);
        let new = self.data.get((from - self.offset) as usize..(to - self.offset) as usize)?;
        if new.len() as u64 == page_bytes {
            return self.file.core().engine.block_from(new).ok().map(|block| block.freeze());
        }
        if (old.len() as u64) < page_bytes {
            return None;
        }
        let mut block = self.file.core().engine.block_from(old).ok()?;
        block.get_mut((from - start) as usize..(to - start) as usize)?.copy_from_slice(new);
        Some(block.freeze())
    }
}

impl Future for Write {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if matches!(self.state, State::New) {
            self.state = State::Begun(self.begin());
        }
        match &mut self.state {
            State::Begun(begun) => {
                let result = std::task::ready!(Pin::new(&mut begun.write).poll(context));
                if let State::Begun(begun) = std::mem::replace(&mut self.state, State::Over) {
                    let pages = if result.is_ok() { begun.pages } else { Vec::new() };
                    self.file.end_write(begun.id, pages);
                }
                Poll::Ready(result)
            }
            _ => match std::mem::replace(&mut self.state, State::Over) {
                State::Failed(error) => Poll::Ready(Err(error)),
                // Polled again after it had completed: a contract error of the caller, which gets no panic.
                _ => Poll::Pending,
            },
        }
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        // Cancelling it might stop it or not, and might do so after the next read.
        if let State::Begun(begun) = std::mem::replace(&mut self.state, State::Over) {
            self.file.writes.abandon(begun.id, begun.write);
        }
    }
}

forebay::_debug_parts!(Write, |write| offset: write.offset, bytes: write.data.len());

/// The writes of a file that are in flight.
#[derive(Default)]
pub(crate) struct Writes {
    list: Mutex<List>,
    /// Length of the list, to look at without its lock.
    active: AtomicU64,
    /// Number of starts and ends.
    epoch: AtomicU64,
    /// Number of writes in the list whose futures were dropped.
    abandoned: AtomicU64,
}

#[derive(Default)]
struct List {
    next: u64,
    writes: Vec<WriteEntry>,
}

struct WriteEntry {
    id: u64,
    first: u64,
    last: u64,
    /// Whether another write or an invalidation of the range overlapped it, so that the contents of its pages are unknown.
    doubtful: bool,
    abandoned: Option<forebay::Write<'static>>,
}

impl Writes {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Returns whether a page is within the range of a write in flight. The caller holds the lock of the page's table: a write that
    /// starts after the check takes that lock, and removes the page.
    pub(crate) fn is_writing(&self, page: u64) -> bool {
        self.active.load(Ordering::SeqCst) > 0
            && self.lock().writes.iter().any(|write| (write.first..=write.last).contains(&page))
    }

    /// Returns whether no write is in flight, and none started since `epoch`.
    pub(crate) fn is_quiet_since(&self, epoch: u64) -> bool {
        self.active.load(Ordering::SeqCst) == 0 && self.epoch() == epoch
    }

    /// Marks the writes in flight of a range: their pages stay out of the cache.
    pub(crate) fn doubt(&self, first: u64, last: u64) {
        if self.active.load(Ordering::SeqCst) > 0 {
            self.lock().doubt(first, last);
        }
    }

    fn begin(&self, first: u64, last: u64) -> u64 {
        self.active.fetch_add(1, Ordering::SeqCst);
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let mut list = self.lock();
        let doubtful = list.doubt(first, last);
        let id = list.next;
        list.next += 1;
        list.writes.push(WriteEntry { id, first, last, doubtful, abandoned: None });
        id
    }

    fn abandon(&self, id: u64, write: forebay::Write<'static>) {
        let mut list = self.lock();
        if let Some(entry) = list.writes.iter_mut().find(|entry| entry.id == id) {
            entry.doubtful = true;
            entry.abandoned = Some(write);
            self.abandoned.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Takes the abandoned writes out, to be polled without the lock.
    fn take_abandoned(&self) -> Vec<(u64, forebay::Write<'static>)> {
        let mut list = self.lock();
        list.writes.iter_mut().filter_map(|entry| Some((entry.id, entry.abandoned.take()?))).collect()
    }
}

impl List {
    fn doubt(&mut self, first: u64, last: u64) -> bool {
        let overlapping = self.writes.iter_mut().filter(|write| write.first <= last && first <= write.last);
        overlapping.map(|write| write.doubtful = true).count() > 0
    }
}

impl FileState {
    /// Returns the first and the last page of a range.
    fn pages_of(&self, offset: u64, bytes: u64) -> (u64, u64) {
        let last = offset.saturating_add(bytes.max(1) - 1) / self.page_bytes();
        (offset / self.page_bytes(), last)
    }

    /// Ends a write: its range is cached again, with `pages` at first.
    fn end_write(&self, id: u64, pages: Vec<(u64, Block)>) {
        let list = self.writes.lock();
        let range = list.writes.iter().find(|write| write.id == id).map(|write| (write.first, write.last));
        drop(list);
        let Some((first, last)) = range else { return };
        self.writes.epoch.fetch_add(1, Ordering::SeqCst);
        // Reads that started before this may have seen the old bytes, and later readers must not join them.
        (first..=last).for_each(|page| drop(self.core().flights.sweep(self, page)));
        self.sweep_short_page();
        for (page, block) in pages {
            // Under the page's lock: a write that starts now first marks this one, then removes the page.
            let table = self.core().flights.part(self, page);
            let list = self.writes.lock();
            let is_known = list.writes.iter().any(|write| write.id == id && !write.doubtful);
            if is_known {
                self.put(page, &block);
            }
            drop((list, table));
        }
        let mut list = self.writes.lock();
        list.writes.retain(|write| write.id != id);
        drop(list);
        self.writes.active.fetch_sub(1, Ordering::SeqCst);
    }

    /// Looks whether writes whose futures were dropped have ended. Reads that miss call it; a file without such writes
    /// is known by one load.
    #[inline]
    pub(crate) fn settle(&self) {
        if self.writes.abandoned.load(Ordering::SeqCst) > 0 {
            self.settle_abandoned();
        }
    }

    #[cold]
    fn settle_abandoned(&self) {
        for (id, mut write) in self.writes.take_abandoned() {
            let polled = Pin::new(&mut write).poll(&mut Context::from_waker(Waker::noop()));
            self.writes.abandoned.fetch_sub(1, Ordering::SeqCst);
            match polled {
                Poll::Pending => self.writes.abandon(id, write),
                Poll::Ready(_) => self.end_write(id, Vec::new()),
            }
        }
    }
}
