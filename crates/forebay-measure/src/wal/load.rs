//! The load: tasks of the same runtime that compute, and the work they completed.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use super::super::pattern::SplitMix;
use super::job::Load;

/// Numbers sorted in one poll of a task; this takes some hundreds of microseconds.
pub(super) const SORTED: usize = 16_384;
/// Tasks for each worker: one that runs and one that waits, so that any other task that becomes ready
/// must queue.
pub(super) const TASKS_PER_WORKER: usize = 2;

/// Returns the default number of workers of the runtime: one for each processor that this process may use.
pub(crate) fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the runtime that has the load and awaits the appends.
pub(super) fn runtime(workers: usize, polite: bool, load: Load) -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(workers);
    if load == Load::Timers {
        builder.enable_time();
    }
    if polite {
        builder.on_thread_start(forebay::polite_worker);
    }
    builder.build()
}

/// Tasks that compute until they are stopped.
#[derive(Debug)]
pub(super) struct Working {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<()>>,
}

impl Working {
    pub(super) fn start(handle: &Handle, load: Load, workers: usize, seed: u64) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let count = match load {
            Load::None | Load::Timers => 0,
            Load::Cpu => workers * TASKS_PER_WORKER,
        };
        let tasks = (0..count as u64)
            .map(|task| handle.spawn(sort(seed ^ task, Arc::clone(&stop), Arc::clone(&done))))
            .collect();
        Self { stop, done, tasks }
    }

    /// Returns the number of vectors sorted so far.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Stops the tasks and waits for them.
    ///
    /// # Errors
    /// One of them panicked.
    pub(super) fn stop(self, runtime: &Runtime) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            runtime.block_on(task)?;
        }
        Ok(())
    }
}

async fn sort(seed: u64, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    let mut words = SplitMix::new(seed);
    let unsorted: Vec<u64> = (0..SORTED).map(|_| words.next_u64()).collect();
    let mut vector = unsorted.clone();
    while !stop.load(Ordering::Relaxed) {
        vector.copy_from_slice(&unsorted);
        vector.sort_unstable();
        black_box(&vector);
        done.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_and_ends() {
        let runtime = runtime(3, true, Load::Cpu).expect("threads can be started");
        let working = Working::start(runtime.handle(), Load::Cpu, 3, 1);
        while working.done() < 10 {
            std::thread::yield_now();
        }
        working.stop(&runtime).expect("no task panicked");
        let idle = Working::start(runtime.handle(), Load::None, 3, 1);
        assert_eq!(idle.done(), 0);
        idle.stop(&runtime).expect("there is no task");
    }
}
