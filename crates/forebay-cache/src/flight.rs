//! Reads that several tasks share.
//!
//! One read serves all that miss a page while it is in flight. No task owns it: it continues in the engine, and the first waiter
//! that is polled completes it. So a waiter that is dropped or never polled again does not block others.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use forebay::{Block, ReadUpTo, Result};

use crate::blocks::{At, Mix};
use crate::file::FileState;

/// The most bytes of one read of neighbouring pages.
const RUN_BYTES_MAX: u64 = 256 << 10;
/// Number of tables of flights, each with its lock.
const PARTS: usize = 64;

/// A read of neighbouring pages of one file. The engine keeps it as a waker, for a moment longer than the read lasts; so
/// it does not keep the file, which its waiters have.
pub(crate) struct Flight {
    /// The number of the file in the cache.
    file: u64,
    first: u64,
    state: Mutex<State>,
}

struct State {
    /// Number of pages. Grows until the read starts.
    pages: u64,
    begun: bool,
    /// The read; `None` before its start, while a thread polls it, and after its end.
    read: Option<ReadUpTo<'static>>,
    /// The file's count of writes at the start of the read.
    epoch: u64,
    /// Whether a thread polls the read.
    is_polled: bool,
    /// Whether a waiter was added while a thread polled.
    again: bool,
    output: Option<Result<Block>>,
    waiters: u32,
    next_waiter: u32,
    /// The wakers of waiters; the first is stored inline, without an allocation. Of ten thousand no waiter looks at the others.
    first_waker: Option<(u32, Waker)>,
    wakers: BTreeMap<u32, Waker>,
}

/// One waiter of a flight.
pub(crate) struct Waiter {
    flight: Arc<Flight>,
    file: Arc<FileState>,
    id: u32,
}

impl Flight {
    fn new(file: u64, first: u64) -> Flight {
        let state = State {
            pages: 1,
            begun: false,
            read: None,
            epoch: 0,
            is_polled: false,
            again: false,
            output: None,
            waiters: 0,
            next_waiter: 0,
            first_waker: None,
            wakers: BTreeMap::new(),
        };
        Flight { file, first, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a page at the end, if it is the next one and the read has not started.
    fn extend(&self, file: &FileState, page: u64) -> bool {
        if self.file != file.id() {
            return false;
        }
        let mut state = self.lock();
        let fits = (state.pages + 1) * file.page_bytes() <= RUN_BYTES_MAX;
        let extends = !state.begun && fits && self.first + state.pages == page;
        state.pages += u64::from(extends);
        extends
    }

    /// Adds a waiter.
    fn join(self: &Arc<Self>, file: &Arc<FileState>) -> Waiter {
        let mut state = self.lock();
        state.waiters += 1;
        let id = state.next_waiter;
        state.next_waiter += 1;
        Waiter { flight: self.clone(), file: file.clone(), id }
    }

    /// Inserts the read bytes into the cache, page by page, and removes the flight from the table. A page whose place in the table
    /// is another's, or empty, was written or invalidated meanwhile: it is not inserted.
    fn land(self: &Arc<Self>, file: &FileState, pages: u64, epoch: u64, output: &Result<Block>) {
        let flights = &file.core().flights;
        let page_bytes = file.page_bytes();
        for index in 0..pages {
            let page = self.first + index;
            // A page of a longer read is copied, or it would pin the whole read's buffer.
            let block = output.as_ref().ok().and_then(|run| {
                let start = usize::try_from(index * page_bytes).ok()?;
                let end = run.len().min(start + page_bytes as usize);
                match pages {
                    1 => Some(run.clone()),
                    _ => Some(file.core().engine.block_from(run.get(start..end)?).ok()?.freeze()),
                }
            });
            let landed = {
                let mut table = flights.part(file, page);
                if !table.get(&file.at(page)).is_some_and(|flight| Arc::ptr_eq(flight, self)) {
                    continue;
                }
                if let Some(block) = block.filter(|block| !block.is_empty()) {
                    file.admit(page, &block, epoch);
                }
                table.remove(&file.at(page))
            };
            drop(landed);
        }
    }

    /// Removes a waiter. The last one removes the flight from the table, and drops its read.
    fn leave(self: &Arc<Self>, file: &FileState, id: u32) {
        let (pages, waker) = {
            let mut state = self.lock();
            debug_assert!(state.waiters > 0, "each waiter leaves once");
            state.waiters -= 1;
            let waker = state.forget(id);
            let is_last = state.waiters == 0 && state.output.is_none();
            (if is_last { state.pages } else { 0 }, waker)
        };
        drop(waker);
        for page in self.first..self.first + pages {
            let gone = {
                let mut table = file.core().flights.part(file, page);
                let is_ours = table.get(&file.at(page)).is_some_and(|flight| Arc::ptr_eq(flight, self));
                // A reader joins under the table's lock; another may have joined through a different page.
                if is_ours && self.lock().waiters == 0 { table.remove(&file.at(page)) } else { None }
            };
            drop(gone);
        }
        if pages > 0 {
            let mut state = self.lock();
            let read = if state.waiters == 0 { state.read.take() } else { None };
            drop(state);
            drop(read);
        }
    }
}

impl State {
    /// Registers a waiter's waker and returns the one before, to be dropped without the lock: it may own a task
    /// that holds a waiter of this flight.
    fn remember(&mut self, id: u32, waker: Waker) -> Option<Waker> {
        let before = self.forget(id);
        match &mut self.first_waker {
            place @ None => *place = Some((id, waker)),
            Some(_) => drop(self.wakers.insert(id, waker)),
        }
        before
    }

    fn forget(&mut self, id: u32) -> Option<Waker> {
        if let Some((_, waker)) = self.first_waker.take_if(|(held, _)| *held == id) {
            return Some(waker);
        }
        self.wakers.remove(&id)
    }

    /// Takes all wakers, to be woken without the lock.
    fn take_wakers(&mut self) -> Wakers {
        Wakers(self.first_waker.take(), std::mem::take(&mut self.wakers))
    }
}

/// Wakers of a flight, to be woken.
struct Wakers(Option<(u32, Waker)>, BTreeMap<u32, Waker>);

impl Wakers {
    /// Wakes all but the waiter `except`.
    fn wake(self, except: Option<u32>) {
        for (id, waker) in self.0.into_iter().chain(self.1) {
            if except != Some(id) {
                // One that panics must not keep the others waiting.
                let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
        }
    }
}

/// The engine wakes a flight; the flight wakes all its waiters, because any of them may be one that nothing polls.
impl Wake for Flight {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let wakers = self.lock().take_wakers();
        wakers.wake(None);
    }
}

impl Waiter {
    /// Returns whether both wait for the same read.
    pub(crate) fn shares_with(&self, other: &Waiter) -> bool {
        Arc::ptr_eq(&self.flight, &other.flight)
    }

    /// Returns another waiter of the same read.
    pub(crate) fn again(&self) -> Waiter {
        self.flight.join(&self.file)
    }

    /// Returns the place of the read's first byte.
    pub(crate) fn start(&self) -> u64 {
        self.flight.first * self.file.page_bytes()
    }

    /// Returns whether the read has pages outside of `first..=last`.
    pub(crate) fn reaches_beyond(&self, first: u64, last: u64) -> bool {
        self.flight.first < first || self.flight.first + self.flight.lock().pages - 1 > last
    }

    /// Polls the read, or registers for its end while another thread polls it.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Result<Block>> {
        let flight = &self.flight;
        // Neither cloned nor dropped under the lock: both may run code of the program.
        let waker = context.waker().clone();
        let _before;
        let mut state = flight.lock();
        if let Some(output) = &state.output {
            return Poll::Ready(output.clone());
        }
        _before = state.remember(self.id, waker);
        if state.is_polled {
            state.again = true;
            return Poll::Pending;
        }
        state.is_polled = true;
        let mut read = match state.read.take() {
            Some(read) => read,
            None => {
                debug_assert!(!state.begun, "a read that has begun is here, polled or over");
                state.begun = true;
                state.epoch = self.file.epoch();
                self.file.core().count_read(state.pages * self.file.page_bytes());
                let start = self.start();
                let end = start + state.pages * self.file.page_bytes();
                self.file.file().read_up_to(start..end).owned()
            }
        };
        let (pages, epoch) = (state.pages, state.epoch);
        drop(state);
        // Without the lock: a thread in `.wait()` may make the system call in here.
        let waker = Waker::from(flight.clone());
        match Pin::new(&mut read).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                let mut state = flight.lock();
                state.read = Some(read);
                state.is_polled = false;
                if std::mem::take(&mut state.again) {
                    // Waiters that were added meanwhile may have missed the engine's wake-up.
                    let wakers = state.take_wakers();
                    drop(state);
                    wakers.wake(None);
                }
                Poll::Pending
            }
            Poll::Ready(output) => {
                drop(read);
                flight.land(&self.file, pages, epoch, &output);
                let mut state = flight.lock();
                state.output = Some(output.clone());
                state.is_polled = false;
                let wakers = state.take_wakers();
                drop(state);
                wakers.wake(Some(self.id));
                Poll::Ready(output)
            }
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.flight.leave(&self.file, self.id);
    }
}

/// The flights of all files by page.
pub(crate) struct Flights {
    parts: Box<[Part]>,
}

type Table = HashMap<At, Arc<Flight>, Mix>;

#[derive(Default)]
#[repr(align(128))]
struct Part(Mutex<Table>);

/// The outcome of [`Flights::claim`].
pub(crate) enum Claim {
    /// The page is cached.
    Cached(Block),
    /// A read that another reader started is reading the page.
    Joined(Waiter),
    /// The page will be read by a new read.
    New(Waiter),
    /// The page was added to the read `last`.
    Extended,
}

impl Flights {
    pub(crate) fn new() -> Flights {
        Flights { parts: (0..PARTS).map(|_| Part::default()).collect() }
    }

    /// Locks the table that has a page. Order of locks: a table, then a flight or a file's writes.
    pub(crate) fn part(&self, file: &FileState, page: u64) -> MutexGuard<'_, Table> {
        let part = &self.parts[(file.id().wrapping_mul(31).wrapping_add(page)) as usize % PARTS];
        part.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds or makes the read of a page that the cache did not have. `last` is the caller's newest read, which is extended by the
    /// page if it follows.
    pub(crate) fn claim(&self, file: &Arc<FileState>, page: u64, last: Option<&Waiter>) -> Claim {
        let mut table = self.part(file, page);
        if let Some(flight) = table.get(&file.at(page)) {
            return Claim::Joined(flight.join(file));
        }
        // A flight puts its pages into the cache before it leaves the table.
        if let Some(block) = file.core().blocks.peek(file.id(), page * file.page_bytes()) {
            return Claim::Cached(block);
        }
        if let Some(last) = last
            && last.flight.extend(file, page)
        {
            table.insert(file.at(page), last.flight.clone());
            return Claim::Extended;
        }
        let flight = Arc::new(Flight::new(file.id(), page));
        let waiter = flight.join(file);
        table.insert(file.at(page), flight);
        Claim::New(waiter)
    }

    /// Removes a page from the table and the cache: a read in flight will not insert it. Its waiters still get the read's bytes.
    pub(crate) fn sweep(&self, file: &FileState, page: u64) -> Option<Block> {
        let (flight, block) = {
            let mut table = self.part(file, page);
            let block = file.core().blocks.remove(file.id(), page * file.page_bytes());
            (table.remove(&file.at(page)), block)
        };
        drop(flight);
        block
    }

    /// As [`sweep`](Self::sweep), for all pages of a file whose offsets are in a range; in a pass over all flights.
    pub(crate) fn sweep_range(&self, file: &FileState, offsets: Range<u64>) {
        for part in &self.parts {
            let flights: Vec<_> = {
                let mut table = part.0.lock().unwrap_or_else(PoisonError::into_inner);
                table.extract_if(|at, _| at.owner == file.id() && offsets.contains(&at.offset)).collect()
            };
            drop(flights);
        }
        file.core().blocks.remove_range(file.id(), offsets);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use forebay::{Config, Engine, Open};

    use super::*;
    use crate::{Cache, CacheOptions};

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The engine may wake while a thread polls: a waiter that polls then finds the read taken, and would wait for a thread that
    /// may never poll again.
    #[test]
    fn a_waiter_that_came_while_a_thread_polled_is_woken_after_it() {
        let engine = Engine::start(Config::new().shards(1)).unwrap();
        let cache = Cache::new(&engine, CacheOptions::new().bytes_max(1 << 20)).unwrap();
        let file = cache.open("Cargo.toml", Open::read()).wait().unwrap();
        let flights = &file.shared().core().flights;
        let Claim::New(first) = flights.claim(file.shared(), 0, None) else { panic!("nothing is cached") };
        let Claim::Joined(second) = flights.claim(file.shared(), 0, None) else {
            panic!("the read is there")
        };
        let count = Arc::<Count>::default();
        let waker = Waker::from(count.clone());
        first.flight.lock().is_polled = true;
        assert!(second.poll(&mut Context::from_waker(&waker)).is_pending());
        first.flight.lock().is_polled = false;
        assert!(first.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(count.0.load(Ordering::SeqCst) > 0);
    }
}
