//! The class of the task that runs, and scopes that set one for a future on any executor.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::base::class::Class;
use crate::reactor::shard::with_current;

thread_local! {
    /// Set outside of shards only; on a shard, the class of the running task is set instead.
    static SCOPE: Cell<Option<Class>> = const { Cell::new(None) };
}

/// Returns the class that the innermost scope has set on this thread, which is not a shard's.
#[inline]
pub(crate) fn scoped() -> Option<Class> {
    SCOPE.with(Cell::get)
}

impl Class {
    /// Returns the class itself, or the running task's in place of [`OF_TASK`](Self::OF_TASK).
    #[inline]
    pub(crate) fn or_of_task(self) -> Class {
        if self == Class::OF_TASK { crate::reactor::shard::class() } else { self }
    }

    /// Returns `future` with this class for every operation that it starts without naming one, wherever it is polled: the scope is
    /// set for the time of each poll. Tasks that `future` spawns onto another executor need a separate scope; tasks that it
    /// [`spawn`](crate::shard::spawn)s on its shard inherit the class.
    ///
    /// ```
    /// # async fn example(file: forebay::File) -> forebay::Result<()> {
    /// use forebay::Class;
    /// // On Tokio, say: all reads in here are background reads.
    /// let blocks = Class::BACKGROUND.scope(async move { file.read_many([0..4096, 8192..9000]).await }).await?;
    /// # Ok(()) }
    /// ```
    pub fn scope<F: Future>(self, future: F) -> ClassScope<F> {
        ClassScope { class: self, future: Box::pin(future) }
    }
}

/// The future of [`Class::scope`]. Costs one allocation.
#[must_use = "futures do nothing unless awaited"]
pub struct ClassScope<F> {
    class: Class,
    future: Pin<Box<F>>,
}

/// Restores the class that was set before, also when a poll panics.
enum Leave {
    Shard(Class),
    Elsewhere(Option<Class>),
}

impl Leave {
    fn enter(class: Class) -> Leave {
        let on_shard = with_current(|shard| {
            let before = shard.class();
            shard.set_class(class);
            Leave::Shard(before)
        });
        on_shard.unwrap_or_else(|| Leave::Elsewhere(SCOPE.with(|scope| scope.replace(Some(class)))))
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        match *self {
            Leave::Shard(before) => {
                with_current(|shard| shard.set_class(before));
            }
            Leave::Elsewhere(before) => SCOPE.with(|scope| scope.set(before)),
        }
    }
}

/// Runs `run` with this class for every operation that it starts without naming one.
pub(crate) fn run_as<T>(class: Class, run: impl FnOnce() -> T) -> T {
    let _leave = Leave::enter(class);
    run()
}

impl<F: Future> Future for ClassScope<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _leave = Leave::enter(self.class);
        self.future.as_mut().poll(context)
    }
}

crate::_debug_parts!([F] ClassScope<F>, |class_scope| class: class_scope.class);
