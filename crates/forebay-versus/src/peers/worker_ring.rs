//! The limit from a Tokio task: a ring for each worker of the runtime, which the tasks fill and reap themselves. Nothing of
//! Forebay is in it.
//!
//! A task that reads locks the ring of the worker on which it runs and pushes the entry. While few reads are in flight, or when
//! enough are gathered, it enters the kernel immediately; else a task of the ring enters for all that are gathered, after the
//! others had their turn. Results that are there after the enter are ready in the first poll. For the others the runtime's own
//! poller watches the ring's descriptor. This file is a ruler: it changes only when it measures something wrong.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::os::fd::RawFd;
use std::task::{Context, Poll, Waker};

use io_uring::IoUring;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::bare;
use crate::prelude::*;

/// With at most this many reads in flight, each is submitted immediately.
const IN_FLIGHT_FEW: usize = 4;
/// This many gathered reads are submitted immediately.
const GATHERED_MAX: usize = 16;

thread_local! {
    /// The worker that this thread is.
    static WORKER: Cell<usize> = const { Cell::new(0) };
    /// Tasks to wake once the ring is unlocked; kept for its memory.
    static WAKE: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// Measures random reads: `depth` tasks of the multi-threaded (one worker per core) or the current-thread runtime, each with
/// one read in flight.
pub(crate) fn random(reads: &Work, multi_thread: bool) -> Result<Outcome> {
    let file = open_direct(&reads.path)?;
    let buffers = pieces(reads.depth, BLOCK_BYTES, PageKind::Huge)?;
    let workers = if multi_thread { cores() } else { 1 };
    let rings: Result<Arc<[_]>> = (0..workers).map(|_| Ring::new(reads.depth, &file, &buffers)).collect();
    let rings = rings?;
    let runtime = if multi_thread {
        let next = AtomicUsize::new(0);
        let numbered = move || WORKER.set(next.fetch_add(1, Ordering::Relaxed) % workers);
        Builder::new_multi_thread().worker_threads(workers).on_thread_start(numbered).enable_all().build()?
    } else {
        Builder::new_current_thread().enable_all().build()?
    };
    let window = reads.window();
    runtime.block_on(async {
        let mut helpers = JoinSet::new();
        for at in 0..workers {
            let (submitting, reaping) = (Arc::clone(&rings), Arc::clone(&rings));
            helpers.spawn(async move { submitting[at].submit_gathered().await });
            helpers.spawn(async move { reaping[at].reap_when_readable().await });
        }
        let mut tasks = JoinSet::new();
        for (i, mut buffer) in buffers.into_iter().enumerate() {
            let (rings, meter, mut offsets) = (Arc::clone(&rings), window.meter(), reads.offsets(i));
            tasks.spawn(async move {
                let mut began = meter.begin();
                loop {
                    let offset = offsets.next();
                    let result = read(&rings, i, &mut buffer, offset).await?;
                    ensure!(result == BLOCK_BYTES as i32, "a read gave {result}");
                    offsets.check(buffer, offset)?;
                    match meter.finish(began) {
                        Some(now) => began = now,
                        None => return anyhow::Ok(meter),
                    }
                    tokio::task::consume_budget().await;
                }
            });
        }
        let meters = tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(window.outcome(meters))
    })
}

/// Reads into the buffer of task `slot` by the ring of the worker that polls first; returns the kernel's result.
async fn read(rings: &[Ring], slot: usize, buffer: &mut Piece, offset: u64) -> Result<i32> {
    let mut used: Option<&Ring> = None;
    poll_fn(|context| match used {
        None => {
            let ring = &rings[WORKER.get()];
            used = Some(ring);
            ring.begin(context, slot, buffer, offset)
        }
        Some(ring) => ring.locked(|state, _| state.take(slot, context)).map(Ok),
    })
    .await
}

/// A worker's ring. Its descriptor is watched by the runtime, its contents are behind a lock.
struct Ring {
    fd: RawFd,
    state: Mutex<State>,
    gathered: Notify,
}

struct State {
    ring: IoUring,
    in_flight: usize,
    unsubmitted: usize,
    /// Whether the task that submits what is gathered has been notified.
    is_submitter_notified: bool,
    slots: Vec<Slot>,
}

/// The read of one task.
#[derive(Default)]
struct Slot {
    result: Option<i32>,
    waker: Option<Waker>,
}

impl Ring {
    fn new(depth: usize, file: &std::fs::File, buffers: &[Piece]) -> Result<Self> {
        let ring = IoUring::new(depth.next_power_of_two().max(2 * GATHERED_MAX) as u32)?;
        bare::register(&ring, file, buffers)?;
        let fd = ring.as_raw_fd();
        let slots = std::iter::repeat_with(Slot::default).take(depth).collect();
        let state = State { ring, in_flight: 0, unsubmitted: 0, is_submitter_notified: false, slots };
        Ok(Self { fd, state: Mutex::new(state), gathered: Notify::new() })
    }

    /// Runs `act` with the ring locked, and wakes the tasks whose results arrived once it is unlocked.
    fn locked<T>(&self, act: impl FnOnce(&mut State, &mut Vec<Waker>) -> T) -> T {
        let mut woken = WAKE.take();
        let result = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            act(&mut state, &mut woken)
        };
        woken.drain(..).for_each(Waker::wake);
        WAKE.set(woken);
        result
    }

    fn begin(
        &self,
        context: &Context<'_>,
        slot: usize,
        buffer: &mut Piece,
        offset: u64,
    ) -> Poll<Result<i32>> {
        let (result, is_first_gathered) = self.locked(|state, woken| {
            if let Err(error) = state.push(slot, buffer, offset) {
                return (Poll::Ready(Err(error)), false);
            }
            let is_due = state.in_flight <= IN_FLIGHT_FEW || state.unsubmitted >= GATHERED_MAX;
            if is_due && let Err(error) = state.enter(woken) {
                return (Poll::Ready(Err(error)), false);
            }
            let result = state.take(slot, context).map(Ok);
            let is_gathered = state.unsubmitted > 0 && !state.is_submitter_notified;
            state.is_submitter_notified |= is_gathered;
            (result, is_gathered)
        });
        if is_first_gathered {
            self.gathered.notify_one();
        }
        result
    }

    async fn submit_gathered(&self) -> Result<()> {
        loop {
            self.gathered.notified().await;
            tokio::task::yield_now().await;
            self.locked(|state, woken| {
                state.is_submitter_notified = false;
                state.enter(woken)
            })?;
        }
    }

    async fn reap_when_readable(&self) -> Result<()> {
        #[allow(deprecated, reason = "its successor came with Tokio 1.53")]
        let watched = AsyncFd::with_interest(self.fd, Interest::READABLE)?;
        loop {
            // Cleared first: what completes from here on makes the descriptor ready again.
            watched.readable().await?.clear_ready();
            self.locked(State::reap);
        }
    }
}

impl State {
    fn push(&mut self, slot: usize, buffer: &mut Piece, offset: u64) -> Result<()> {
        let entry = bare::read(buffer.as_mut_ptr(), buffer.len(), slot, offset);
        // SAFETY: the buffer is never unmapped, and its task waits for this read before it uses the buffer again.
        unsafe { self.ring.submission().push(&entry) }.context("the queue has room for what is gathered")?;
        self.unsubmitted += 1;
        self.in_flight += 1;
        Ok(())
    }

    /// Submits the gathered operations and reaps the completions.
    fn enter(&mut self, woken: &mut Vec<Waker>) -> Result<()> {
        if self.unsubmitted > 0 {
            self.ring.submit()?;
            self.unsubmitted = 0;
        }
        self.reap(woken);
        Ok(())
    }

    fn reap(&mut self, woken: &mut Vec<Waker>) {
        for completion in self.ring.completion() {
            self.in_flight -= 1;
            let slot = &mut self.slots[completion.user_data() as usize];
            slot.result = Some(completion.result());
            woken.extend(slot.waker.take());
        }
    }

    fn take(&mut self, slot: usize, context: &Context<'_>) -> Poll<i32> {
        let slot = &mut self.slots[slot];
        match slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
