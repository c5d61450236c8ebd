//! The limit: group commit and nothing else. No framing, no checksum, no recovery; segments that were written
//! through once and are used in turn; one thread that writes the records that have arrived.

use std::future::poll_fn;
use std::sync::{Condvar, MutexGuard};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};

use futures_executor::block_on;

use super::writers::{self, BYTES_MAX, Record, check};
use crate::prelude::*;

/// The length of a segment; forebay-wal's default.
pub(super) const SEGMENT_BYTES: u64 = 64 << 20;
/// Segments that are used in turn.
const SEGMENTS: u64 = 4;
/// Places and lengths of writes are multiples of this.
const UNIT_BYTES: usize = 4096;
/// The most that can arrive while a group is written: a record of each of 1,024 writers.
const GROUP_BYTES_MAX: usize = 1024 * BYTES_MAX;

/// The content of the segments before the first group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Segment {
    /// They were written through once, and are used in turn.
    Written,
    /// Space was allocated for each when it was needed; nothing was written there before.
    New,
}

/// The files and the next place in them.
struct Segments {
    files: Vec<File>,
    dir: PathBuf,
    state: Segment,
    /// `O_DSYNC`: a write call returns when the group is durable; 0: fdatasync after the write.
    flags: i32,
    at: usize,
    offset: u64,
    groups: u64,
    bytes_written: u64,
}

impl Segments {
    /// Makes the segments of a sample: all of them, written through, or the first.
    fn make(work: &Work, flags: i32, state: Segment) -> Result<Self> {
        let (files, dir) = (Vec::new(), work.path.clone());
        let mut made = Self { files, dir, state, flags, at: 0, offset: 0, groups: 0, bytes_written: 0 };
        for _ in 0..if state == Segment::Written { SEGMENTS } else { 1 } {
            made.add()?;
        }
        Ok(made)
    }

    fn path(&self, number: usize) -> PathBuf {
        self.dir.join(format!("{number}.bare"))
    }

    fn add(&mut self) -> Result<()> {
        let path = self.path(self.files.len());
        let open =
            |flags| File::options().write(true).create(true).custom_flags(libc::O_DIRECT | flags).open(&path);
        let file = open(0)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, SEGMENT_BYTES)?;
        if self.state == Segment::Written {
            let memory = &pieces(1, 1 << 20, PageKind::Huge)?[0];
            for offset in (0..SEGMENT_BYTES).step_by(memory.len()) {
                file.write_all_at(memory, offset)?;
            }
        }
        file.sync_all()?;
        self.files.push(open(self.flags)?);
        Ok(())
    }

    /// Makes whole units durable, behind the earlier writes.
    fn write(&mut self, units: &[u8]) -> Result<()> {
        if self.offset + units.len() as u64 > SEGMENT_BYTES {
            if self.state == Segment::New {
                self.add()?;
            }
            self.at = (self.at + 1) % self.files.len();
            self.offset = 0;
        }
        let file = &self.files[self.at];
        file.write_all_at(units, self.offset)?;
        if self.flags == 0 {
            file.sync_data()?;
        }
        self.offset += units.len() as u64;
        self.groups += 1;
        self.bytes_written += units.len() as u64;
        Ok(())
    }

    /// Checks that the last written group, of `units` bytes, starts with a record.
    fn check_last(&self, units: u64, record_bytes: usize) -> Result<()> {
        let mut found = vec![0; record_bytes];
        File::open(self.path(self.at))?.read_exact_at(&mut found, self.offset - units)?;
        check(&found, record_bytes)
    }
}

/// Measures one writer on one thread, without a queue: a direct write and its flush.
pub(super) fn alone(work: &Work, flags: i32) -> Result<Outcome> {
    ensure!(work.writers == 1, "one writer is alone");
    let memory = pieces(1, work.record_bytes.next_multiple_of(UNIT_BYTES), PageKind::Small)?.remove(0);
    let mut segments = Segments::make(work, flags, Segment::Written)?;
    let mut record = Record::of(0, work.record_bytes);
    let append = move || {
        let record = record.next();
        memory[..record.len()].copy_from_slice(record);
        segments.write(memory)?;
        if segments.groups == 1 {
            segments.check_last(memory.len() as u64, record.len())?;
        }
        Ok(())
    };
    threads(work, std::iter::once(append))
}

/// State that the writers and the log's thread share.
#[derive(Default)]
pub(super) struct CommitQueue {
    /// The newest group that is durable; [`FAILED`] once a write failed, and the thread has ended.
    done: AtomicU64,
    state: Mutex<State>,
    arrived: Condvar,
}

const FAILED: u64 = u64::MAX;

#[derive(Default)]
struct State {
    /// The group that fills, its length so far, its waiters, and its number from 1.
    memory: Piece,
    len: usize,
    waiting: Vec<Waker>,
    group: u64,
    /// The waiters for the group that is being written.
    flying: Vec<Waker>,
    records: u64,
    asleep: bool,
    closing: bool,
}

impl CommitQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Group commit: one thread writes the records that have arrived.
pub(super) struct Log {
    shared: Arc<CommitQueue>,
    thread: JoinHandle<Result<(Segments, u64)>>,
}

impl Log {
    /// Makes the segments and starts the thread.
    pub(super) fn start(work: &Work, flags: i32, state: Segment) -> Result<Self> {
        let segments = Segments::make(work, flags, state)?;
        let bytes = (work.writers * work.record_bytes).next_multiple_of(UNIT_BYTES).min(GROUP_BYTES_MAX);
        let mut memory = pieces(2, bytes, PageKind::Huge)?;
        let (one, other) = (memory.remove(0), memory.remove(0));
        let state = State { memory: one, group: 1, ..State::default() };
        let shared = Arc::new(CommitQueue { state: Mutex::new(state), ..CommitQueue::default() });
        let inner = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let outcome = serve(&inner, segments, other);
            if outcome.is_err() {
                inner.done.store(FAILED, Ordering::Release);
                let wakers = {
                    let state = &mut *inner.lock();
                    state.flying.append(&mut state.waiting);
                    std::mem::take(&mut state.flying)
                };
                wakers.into_iter().for_each(Waker::wake);
            }
            outcome
        });
        Ok(Self { shared, thread })
    }
}

impl writers::Log for Log {
    type Writer = Arc<CommitQueue>;

    fn writer(&self, _: usize) -> Arc<CommitQueue> {
        Arc::clone(&self.shared)
    }

    /// Ends the thread and checks its last write.
    fn finish(self, work: &Work, outcome: Outcome) -> Result<Outcome> {
        self.shared.lock().closing = true;
        self.shared.arrived.notify_one();
        let (segments, last_bytes) =
            self.thread.join().map_err(|_| anyhow!("the log's thread panicked"))??;
        segments.check_last(last_bytes, work.record_bytes)?;
        let groups = segments.groups as f64;
        Ok(outcome
            .figure("records_per_group", self.shared.lock().records as f64 / groups)
            .figure("write_bytes_per_group", segments.bytes_written as f64 / groups))
    }
}

/// Runs the log's thread: collects the records that have arrived, pads them, writes them, wakes their waiters.
fn serve(shared: &CommitQueue, mut segments: Segments, mut memory: Piece) -> Result<(Segments, u64)> {
    let (mut woken, mut last_bytes) = (Vec::new(), 0);
    loop {
        let (len, group) = {
            let mut state = shared.lock();
            while state.len == 0 {
                if state.closing {
                    return Ok((segments, last_bytes));
                }
                state.asleep = true;
                state = shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.asleep = false;
            }
            let state = &mut *state;
            std::mem::swap(&mut state.memory, &mut memory);
            std::mem::swap(&mut state.waiting, &mut state.flying);
            let taken = (std::mem::take(&mut state.len), state.group);
            state.group += 1;
            taken
        };
        let padded = len.next_multiple_of(UNIT_BYTES);
        memory[len..padded].fill(0);
        segments.write(&memory[..padded])?;
        last_bytes = padded as u64;
        {
            let mut state = shared.lock();
            shared.done.store(group, Ordering::Release);
            std::mem::swap(&mut state.flying, &mut woken);
        }
        woken.drain(..).for_each(Waker::wake);
    }
}

impl CommitQueue {
    /// Puts the record into the group that fills; returns the group's number and the waker's place in its
    /// list.
    fn push(&self, record: &[u8], waker: &Waker) -> Result<(u64, usize)> {
        let (place, asleep) = {
            let state = &mut *self.lock();
            let end = state.len + record.len();
            ensure!(end <= state.memory.len(), "a writer has more than one record under way");
            state.memory[state.len..end].copy_from_slice(record);
            state.len = end;
            state.records += 1;
            state.waiting.push(waker.clone());
            ((state.group, state.waiting.len() - 1), std::mem::take(&mut state.asleep))
        };
        if asleep {
            self.arrived.notify_one();
        }
        Ok(place)
    }

    fn poll_done(&self, (group, slot): (u64, usize), waker: &Waker) -> Poll<Result<()>> {
        let poll = || match self.done.load(Ordering::Acquire) {
            FAILED => Poll::Ready(Err(anyhow!("a write of the log failed"))),
            done if done >= group => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        };
        if let Poll::Ready(outcome) = poll() {
            return Poll::Ready(outcome);
        }
        let state = &mut *self.lock();
        let outcome = poll();
        let list = if group == state.group { &mut state.waiting } else { &mut state.flying };
        if let (Poll::Pending, Some(known)) = (&outcome, list.get_mut(slot)) {
            known.clone_from(waker);
        }
        outcome
    }
}

impl writers::Writer for Arc<CommitQueue> {
    fn append_and_wait(&mut self, record: &[u8]) -> Result<()> {
        block_on(self.append(record))
    }

    async fn append(&mut self, record: &[u8]) -> Result<()> {
        let mut place = None;
        poll_fn(|context| match place {
            Some(place) => self.poll_done(place, context.waker()),
            None => {
                place = Some(self.push(record, context.waker())?);
                Poll::Pending
            }
        })
        .await
    }
}
