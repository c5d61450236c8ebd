//! The handle of a program: walks on a file, on the best engine that works here.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use forebay::{Engine, File};

use crate::choice::{self, Side};
use crate::engine_failure::EngineFailure;
use crate::error::{Error, Result};
use crate::layout;
use crate::options::{EngineKind, KernelStats, Options};
use crate::program::{Program, Scratch};
use crate::reactor::{self, Start};
use crate::worker::{Outcome, WalkFailure};

/// Walks of one program on one file, inside the kernel where that is possible.
///
/// The engine is chosen once, at the open; [`engine`](Self::engine) returns it, [`why`](Self::why) the reason. Results are the
/// same on all engines. When an engine breaks, walks continue in the reactor, those in flight from their start, and
/// [`stats`](Self::stats) counts them. [`why`](Self::why) and [`Engine::health`] then report the failure.
pub struct KernelWalk<P: Program> {
    program: Arc<P>,
    file: File,
    inside: Option<Side<P>>,
    why: String,
    hops_max: u32,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    walks: AtomicU64,
    fell_back: AtomicU64,
    broken: Arc<EngineFailure>,
}

impl<P: Program> KernelWalk<P> {
    /// Chooses the best engine that works for this file and program here. This lasts some milliseconds, because it tries engines.
    /// Where that is the reactor, [`Engine::health`] has the reason as well, under `"kernel walks"`.
    ///
    /// # Errors
    /// The program's page size or fan-out is invalid, or does not suit the file's direct reads.
    pub fn open(engine: &Engine, file: &File, program: P) -> Result<KernelWalk<P>> {
        KernelWalk::open_with(engine, file, program, Options::new())
    }

    /// Opens walks like `open`, with choices.
    ///
    /// # Errors
    /// As for [`open`](Self::open), or the requested engine does not work here ([`Error::Unavailable`]).
    pub fn open_with(engine: &Engine, file: &File, program: P, options: Options) -> Result<KernelWalk<P>> {
        choice::check(&program, file)?;
        let program = Arc::new(program);
        let hops_max = options.hops_max.clamp(1, layout::HOPS_MAX as u32);
        let counts = Arc::new(Counts::default());
        let (inside, why) = choice::start(engine, &program, file, &options, &counts.broken)?;
        if inside.is_none() && options.only.is_none() {
            engine.add_degradation("kernel walks", &why, choice::REMEDY);
        }
        Ok(KernelWalk { program, file: file.clone(), inside, why, hops_max, counts })
    }

    /// Returns the engine that runs the walks.
    pub fn engine(&self) -> EngineKind {
        match &self.inside {
            Some(inside) if !inside.is_broken() => inside.kind(),
            _ => EngineKind::Reactor,
        }
    }

    /// Returns the reason for the choice of the engine: a sentence without its full stop. It is determined at the open; after an
    /// engine broke, it is the reason for that.
    pub fn why(&self) -> &str {
        self.counts.broken.why().unwrap_or(&self.why)
    }

    /// Returns the counters of walks so far.
    pub fn stats(&self) -> KernelStats {
        let (enters, steps, commands) = self.inside.as_ref().map_or((0, 0, 0), Side::counts);
        KernelStats {
            walks: self.counts.walks.load(Ordering::Relaxed),
            fell_back: self.counts.fell_back.load(Ordering::Relaxed),
            enters,
            steps,
            commands,
        }
    }

    /// Starts one walk: inside the kernel immediately, in the reactor when the future is first polled. If the future is dropped, a
    /// walk inside the kernel still runs to its end, and its result is dropped; a walk of the module that still waits for a slot
    /// never starts.
    pub fn walk(&self, args: &P::Args) -> PendingWalk<P> {
        let start = self.start(args);
        self.counts.walks.fetch_add(1, Ordering::Relaxed);
        match &self.inside {
            Some(inside) => self.pending(start, Some(inside.send(start))),
            None => self.pending(start, None),
        }
    }

    /// Starts many walks with one message; the future resolves with their results in order.
    pub fn walk_many(&self, args: &[P::Args]) -> PendingWalks<P> {
        let starts: Vec<Start> = args.iter().map(|args| self.start(args)).collect();
        self.counts.walks.fetch_add(starts.len() as u64, Ordering::Relaxed);
        let walks: Vec<PendingWalk<P>> = match &self.inside {
            Some(inside) => {
                let outcomes = inside.send_many(&starts);
                starts
                    .iter()
                    .zip(outcomes)
                    .map(|(start, outcome)| self.pending(*start, Some(outcome)))
                    .collect()
            }
            None => starts.iter().map(|start| self.pending(*start, None)).collect(),
        };
        PendingWalks {
            results: walks.iter().map(|_| None).collect(),
            left: walks.len(),
            walks,
            has_begun: false,
        }
    }

    /// Ends the walks, and waits until the kernel has released the file: the module keeps the file unchanged
    /// until then. Walks that have not ended resolve with [`Error::Closed`]. Dropping does the same without
    /// waiting. On a shard this waits for reads in flight only; the program leaves the kernel a little later.
    pub fn close(mut self) {
        if let Some(inside) = self.inside.take() {
            inside.close();
        }
    }

    fn start(&self, args: &P::Args) -> Start {
        let mut scratch = Scratch::new();
        let root = self.program.begin(args, &mut scratch);
        Start { root, scratch, hops_max: self.hops_max }
    }

    fn pending(&self, start: Start, outcome: Option<Outcome<P::Output>>) -> PendingWalk<P> {
        let (file, program) = (self.file.clone(), Arc::clone(&self.program));
        let stage = match outcome {
            Some(outcome) => Stage::Kernel(outcome),
            None => Stage::Reactor(Box::pin(reactor::walk(file.clone(), Arc::clone(&program), start))),
        };
        PendingWalk { stage, file, program, start, counts: Arc::clone(&self.counts) }
    }
}

forebay::_debug_parts!(
    [P: Program] KernelWalk<P>, |kernel_walk|
    program: kernel_walk.program.name(),
    engine: kernel_walk.engine(),
    why: kernel_walk.why()
);

/// A walk in flight; see [`KernelWalk::walk`].
#[must_use = "the result is in the future"]
pub struct PendingWalk<P: Program> {
    stage: Stage<P::Output>,
    file: File,
    program: Arc<P>,
    start: Start,
    counts: Arc<Counts>,
}

enum Stage<T> {
    Kernel(Outcome<T>),
    Reactor(Pin<Box<dyn Future<Output = Result<T>> + Send>>),
}

impl<P: Program> PendingWalk<P> {
    /// Blocks the calling thread until the walk has ended, and returns its result.
    ///
    /// # Errors
    /// As when awaited; [`Error::WaitOnShard`] on a shard's thread.
    pub fn wait(self) -> Result<P::Output> {
        refuse_on_shard()?;
        block_on(self)
    }
}

impl<P: Program> Future for PendingWalk<P> {
    type Output = Result<P::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<P::Output>> {
        // Nothing here is pinned in place: the reactor's walk has its box.
        let walk = Pin::into_inner(self);
        loop {
            match &mut walk.stage {
                Stage::Reactor(walk) => return walk.as_mut().poll(context),
                Stage::Kernel(outcome) => match Pin::new(outcome).poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(output)) => return Poll::Ready(Ok(output)),
                    Poll::Ready(Err(WalkFailure::Failed(error))) => return Poll::Ready(Err(error)),
                    Poll::Ready(Err(WalkFailure::Broken)) => {
                        walk.counts.fell_back.fetch_add(1, Ordering::Relaxed);
                        walk.counts.broken.report(&walk.file);
                        let (file, program) = (walk.file.clone(), Arc::clone(&walk.program));
                        walk.stage = Stage::Reactor(Box::pin(reactor::walk(file, program, walk.start)));
                    }
                },
            }
        }
    }
}

impl<P: Program> Unpin for PendingWalk<P> {}

impl<P: Program> fmt::Debug for PendingWalk<P> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_in_kernel = matches!(self.stage, Stage::Kernel(_));
        formatter.debug_struct("PendingWalk").field("in_kernel", &is_in_kernel).finish_non_exhaustive()
    }
}

/// Walks in flight; see [`KernelWalk::walk_many`].
#[must_use = "the results are in the future"]
pub struct PendingWalks<P: Program> {
    walks: Vec<PendingWalk<P>>,
    /// The result of each walk that a poll found ended.
    results: Vec<Option<Result<P::Output>>>,
    /// All walks from this index on have ended.
    left: usize,
    /// The walks that run in the reactor have started.
    has_begun: bool,
}

impl<P: Program> PendingWalks<P> {
    /// Blocks the calling thread until all walks have ended, and returns their results in order.
    ///
    /// # Errors
    /// [`Error::WaitOnShard`] on a shard's thread; all other errors are in the single results.
    pub fn wait(self) -> Result<Vec<Result<P::Output>>> {
        refuse_on_shard()?;
        Ok(block_on(self))
    }
}

impl<P: Program> Future for PendingWalks<P> {
    type Output = Vec<Result<P::Output>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Result<P::Output>>> {
        let many = Pin::into_inner(self);
        if !std::mem::replace(&mut many.has_begun, true) {
            many.begin_in_reactor(context);
        }
        // From the last to the first, and no further than to a walk that has not ended: the batch is woken for that walk only.
        // Otherwise a thread in the kernel would wake this thread once for each walk.
        while let Some(place) = many.left.checked_sub(1) {
            if let Some(walk) = many.walks.get_mut(place)
                && let Some(result @ None) = many.results.get_mut(place)
            {
                let was_in_kernel = matches!(walk.stage, Stage::Kernel(_));
                match Pin::new(&mut *walk).poll(context) {
                    Poll::Ready(output) => *result = Some(output),
                    Poll::Pending => {
                        if was_in_kernel && matches!(walk.stage, Stage::Reactor(_)) {
                            // The engine broke: the others start in the reactor as well, and not one after the other.
                            many.poll_all(context);
                        }
                        return Poll::Pending;
                    }
                }
            }
            many.left = place;
        }
        let results = std::mem::take(&mut many.results);
        Poll::Ready(results.into_iter().map(|result| result.unwrap_or(Err(Error::Closed))).collect())
    }
}

impl<P: Program> PendingWalks<P> {
    /// Starts the walks in the reactor: a walk there starts at its first poll.
    fn begin_in_reactor(&mut self, context: &mut Context<'_>) {
        if self.walks.iter().any(|walk| matches!(walk.stage, Stage::Reactor(_))) {
            self.poll_all(context);
        }
    }

    fn poll_all(&mut self, context: &mut Context<'_>) {
        for (walk, result) in self.walks.iter_mut().zip(&mut self.results) {
            if result.is_none()
                && let Poll::Ready(output) = Pin::new(walk).poll(context)
            {
                *result = Some(output);
            }
        }
    }
}

impl<P: Program> Unpin for PendingWalks<P> {}

forebay::_debug_parts!([P: Program] PendingWalks<P>, |pending_walks| walks: pending_walks.walks.len());

fn refuse_on_shard() -> Result<()> {
    match forebay::shard::current() {
        Some(_) => Err(Error::WaitOnShard),
        None => Ok(()),
    }
}

fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    struct Parker(Thread);

    impl Wake for Parker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Parker(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match Pin::new(&mut future).poll(&mut context) {
            Poll::Ready(output) => return output,
            // A wake-up between the poll and here leaves a token, so this returns immediately.
            Poll::Pending => thread::park(),
        }
    }
}
