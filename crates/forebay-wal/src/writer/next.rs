//! The next segment, made before it is needed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay::Class;
use forebay::shard::JoinHandle;

use crate::error::{ErrorKind, Result};
use crate::queue::Shared;
use crate::segment::{Maker, Segment};

type Making = JoinHandle<Made>;

/// What became of a segment.
struct Made {
    segment: Result<Arc<Segment>>,
    /// The log's reserve is made behind it.
    reserving: Option<JoinHandle<()>>,
}

/// The segment after the one that is written.
pub(crate) struct Next {
    making: Option<Making>,
    /// What became of it, once that was looked at.
    made: Option<Result<Arc<Segment>>>,
    /// The log's reserve is being made.
    reserving: Option<JoinHandle<()>>,
    /// When its making began, on the engine's clock.
    began_ns: u64,
    /// The one being made is a used one.
    recycled: bool,
    /// It is there already.
    found: bool,
    /// Its generation. Numbers have no gaps, so one that could not be made is tried again.
    generation: u64,
    /// Segments that the log does not need any more, to be used again, oldest first.
    used: Vec<Arc<Segment>>,
    /// Segments that the newest group says are not needed. Should that group rot, recovery looks for them
    /// again, so they stay until a group behind it is durable.
    leaving: Vec<Arc<Segment>>,
}

/// How long after one that found no space another try is made, unless a segment was freed since.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// Segments kept to be used again; further ones are removed.
const USED_MAX: usize = 2;

impl Next {
    pub(crate) fn new(generation: u64) -> Next {
        Next {
            making: None,
            made: None,
            reserving: None,
            began_ns: 0,
            recycled: false,
            found: false,
            generation,
            used: Vec::new(),
            leaving: Vec::new(),
        }
    }

    /// One was found when the log was opened: prepared, and never used.
    pub(crate) fn found(generation: u64) -> Next {
        Next { found: true, ..Next::new(generation) }
    }

    /// Has it made in the background, unless it is.
    pub(crate) fn begin(&mut self, maker: &Maker, shared: &Arc<Shared>) {
        if self.is_ready() {
            return;
        }
        self.began_ns = shared.engine.now_ns();
        let found = self.found;
        let free = if found { None } else { self.free() };
        let used = free.map(|at| self.used.remove(at));
        self.recycled = used.is_some() || found;
        let (maker, shared, generation) = (maker.clone(), shared.clone(), self.generation);
        let task = maker.engine.clone().spawn_on_shard(maker.shard, Class::BACKGROUND, move || async move {
            let segment = match found {
                true => maker.adopt(generation).await,
                false => maker.make(generation, used, Some(&shared.stop)).await,
            };
            shared.note_space(&segment);
            let reserving = if segment.is_ok() { reserve(&maker, &shared) } else { None };
            Made { segment, reserving }
        });
        self.making = Some(task);
    }

    /// Has it made again, if there was no space for it and a segment was freed or some time has passed since.
    pub(crate) fn try_again(&mut self, maker: &Maker, shared: &Arc<Shared>) {
        if let Some(making) = &mut self.making
            && let Poll::Ready(made) = Pin::new(making).poll(&mut Context::from_waker(Waker::noop()))
        {
            self.keep(made);
        }
        let no_space =
            matches!(&self.made, Some(Err(error)) if *error.kind() == ErrorKind::NoSpace && !self.found);
        let is_due = || {
            let since_ns = shared.engine.now_ns().saturating_sub(self.began_ns);
            self.free().is_some() || u128::from(since_ns) >= RETRY.as_nanos()
        };
        if no_space && is_due() {
            self.made = None;
            self.begin(maker, shared);
        }
    }

    /// Whether it can be had without waiting long.
    pub(crate) fn is_ready(&self) -> bool {
        self.making.is_some() || self.made.is_some()
    }

    /// Waits until its making is over; returns whether it is there then.
    pub(crate) async fn is_made(&mut self) -> bool {
        if let Some(making) = &mut self.making {
            let made = making.await;
            self.keep(made);
        }
        matches!(self.made, Some(Ok(_)))
    }

    /// Its making is over.
    fn keep(&mut self, made: forebay::Result<Made>) {
        self.making = None;
        match made {
            Ok(Made { segment, reserving }) => {
                self.reserving = reserving.or(self.reserving.take());
                self.made = Some(segment);
            }
            Err(error) => self.made = Some(Err(error.into())),
        }
    }

    /// Whether segments are given up that a further durable group frees.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The segment, and whether it is a used one. What fails is tried once more: space may have come back
    /// since.
    pub(crate) async fn take(&mut self, maker: &Maker, shared: &Arc<Shared>) -> Result<(Arc<Segment>, bool)> {
        let mut tries = 0;
        loop {
            self.begin(maker, shared);
            self.is_made().await;
            let Some(made) = self.made.take() else { continue };
            tries += 1;
            match made {
                Ok(segment) => {
                    self.generation += 1;
                    self.found = false;
                    return Ok((segment, self.recycled));
                }
                Err(error) if tries == 2 => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// The oldest used segment, if nobody reads it.
    fn free(&self) -> Option<usize> {
        let oldest = self.used.first()?;
        (Arc::strong_count(oldest) == 1).then_some(0)
    }

    /// Takes over segments that the log does not need any more, as its newest group says.
    pub(crate) fn retire(&mut self, retired: Vec<Arc<Segment>>) {
        self.leaving.extend(retired);
    }

    /// A group is durable: what the ones before it gave up can go. Called before what this one gives up is
    /// [retired](Self::retire).
    pub(crate) fn settle(&mut self, maker: &Maker) {
        for segment in std::mem::take(&mut self.leaving) {
            match segment.bytes == maker.bytes {
                true => self.used.push(segment),
                false => maker.remove(segment.generation),
            }
        }
        // They go oldest first: a drive that lied about a flush and forgets the newer ones has forgotten
        // the older ones as well, and what had been cut off the end of those does not come back.
        self.used.sort_by_key(|used| used.generation);
        let surplus = self.used.len().saturating_sub(USED_MAX);
        for segment in self.used.drain(..surplus) {
            maker.remove(segment.generation);
        }
    }

    /// Waits until nothing is being made any more, and gives the lock of what was made back.
    pub(crate) async fn end(&mut self) {
        if self.is_made().await
            && let Some(Ok(segment)) = self.made.take()
        {
            let _ = segment.file.unlock().await;
        }
        if let Some(reserving) = self.reserving.take() {
            let _ = reserving.await;
        }
    }
}

/// Has the log's reserve made in the background, unless it is there; without space another try comes with the next segment.
fn reserve(maker: &Maker, shared: &Arc<Shared>) -> Option<JoinHandle<()>> {
    if shared.reserved.swap(true, Ordering::AcqRel) {
        return None;
    }
    let (maker, shared) = (maker.clone(), shared.clone());
    Some(maker.engine.clone().spawn_on_shard(maker.shard, Class::BACKGROUND, move || async move {
        if maker.make_reserve(&shared.stop).await.is_err() {
            shared.reserved.store(false, Ordering::Release);
        }
    }))
}
