//! How many files all batches of the process have open together.
//!
//! A batch has a quarter of the files open that may stay open. Batches of several threads and tasks beyond those take turns.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_lock::{Mutex, Semaphore, SemaphoreGuardArc};
use forebay::internal::AbortOnDrop;
use forebay::{Class, Engine};

/// The places of a batch that opens as many files at a time as one batch may; others need a part of them.
const BATCH_PLACES: usize = 64;
/// The places of batches that run where they are polled, and those of batches in turn: two whole batches each.
const PLACES: usize = 2 * BATCH_PLACES;

/// The places of all batches. A batch that waits for its turn is a task of the engine's, as are those that it waits for: a loop that stands
/// still holds up its own batches only.
pub(crate) struct Turns {
    /// Those in use by batches that run where they are polled.
    polled: AtomicUsize,
    in_turn: Arc<Semaphore>,
    /// Held by the batch that takes its places.
    line: Mutex<()>,
    /// The number of batches that took a turn.
    tasks: AtomicUsize,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            polled: AtomicUsize::new(0),
            in_turn: Arc::new(Semaphore::new(PLACES)),
            line: Mutex::new(()),
            tasks: AtomicUsize::new(0),
        }
    }
}

impl Turns {
    /// Runs a batch of this many files, of which it has at most `files_max` open together.
    ///
    /// # Errors
    /// Those of a task.
    pub(crate) async fn run<T: Send + 'static>(
        &'static self,
        engine: &Engine,
        files: usize,
        files_max: usize,
        batch: impl Future<Output = T> + Send + 'static,
    ) -> forebay::Result<T> {
        let places = (files.min(files_max) * BATCH_PLACES / files_max.max(1)).max(1);
        if let Some(_places) = self.polled_places(places) {
            return Ok(batch.await);
        }
        let shard = self.tasks.fetch_add(1, Ordering::Relaxed) % engine.shard_count();
        let task = engine.spawn_on_shard(shard, Class::DEFAULT, move || async move {
            let _places = self.places_in_turn(places).await;
            batch.await
        });
        AbortOnDrop(task).await
    }

    fn polled_places(&self, places: usize) -> Option<PolledPlaces<'_>> {
        let more = |used: usize| Some(used + places).filter(|used| *used <= PLACES);
        self.polled.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(PolledPlaces { turns: self, places })
    }

    async fn places_in_turn(&self, places: usize) -> Vec<SemaphoreGuardArc> {
        let _first = self.line.lock().await;
        let mut taken = Vec::with_capacity(places);
        while taken.len() < places {
            taken.push(self.in_turn.acquire_arc().await);
        }
        taken
    }
}

/// Places of a batch that runs where it is polled.
struct PolledPlaces<'t> {
    turns: &'t Turns,
    places: usize,
}

impl Drop for PolledPlaces<'_> {
    fn drop(&mut self) {
        self.turns.polled.fetch_sub(self.places, Ordering::Relaxed);
    }
}
