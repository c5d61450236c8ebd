//! The next segment, made before it is needed.

use std::sync::Arc;

use forebay::Class;
use forebay::shard::JoinHandle;

use crate::error::Result;
use crate::queue::Shared;
use crate::segment::{Maker, Segment};

type Making = JoinHandle<Result<Arc<Segment>>>;

/// The segment after the one that is written.
pub(crate) struct Next {
    making: Option<Making>,
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

/// Segments kept to be used again; further ones are removed.
const USED_MAX: usize = 2;

impl Next {
    pub(crate) fn new(generation: u64) -> Next {
        Next {
            making: None,
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
        if self.making.is_some() {
            return;
        }
        let found = self.found;
        let free = if found { None } else { self.free() };
        let used = free.map(|at| self.used.remove(at));
        self.recycled = used.is_some() || found;
        let (maker, shared, generation) = (maker.clone(), shared.clone(), self.generation);
        let task = maker.engine.clone().spawn_on_shard(maker.shard, Class::BACKGROUND, move || async move {
            match found {
                true => maker.adopt(generation).await,
                false => maker.make(generation, used, Some(&shared)).await,
            }
        });
        self.making = Some(task);
    }

    /// Whether it can be had without waiting long.
    pub(crate) fn is_ready(&self) -> bool {
        self.making.is_some()
    }

    /// The segment, and whether it is a used one. What fails is tried once more: space may have come back
    /// since.
    pub(crate) async fn take(&mut self, maker: &Maker, shared: &Arc<Shared>) -> Result<(Arc<Segment>, bool)> {
        let mut tries = 0;
        loop {
            self.begin(maker, shared);
            let Some(making) = self.making.take() else { continue };
            tries += 1;
            match making.await? {
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
        let Some(making) = self.making.take() else { return };
        if let Ok(Ok(segment)) = making.await {
            let _ = segment.file.unlock().await;
        }
    }
}
