//! Changes that run to their end.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use forebay::{Class, Engine};

type Change<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A change of several steps. If its future is dropped after its start it continues as a task on a shard of the engine, so that no
/// staged file is left behind.
pub(crate) struct Finish<T: Send + 'static> {
    engine: Engine,
    change: Option<Change<T>>,
    has_begun: bool,
}

/// Returns `change` as a future that may be dropped or kept unpolled at any point.
pub(crate) fn finish<T: Send + 'static>(
    engine: &Engine,
    change: impl Future<Output = T> + Send + 'static,
) -> Finish<T> {
    Finish { engine: engine.clone(), change: Some(Box::pin(change)), has_begun: false }
}

impl<T: Send + 'static> Future for Finish<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.has_begun = true;
        // Polled again after its end, which no executor does, it stays pending.
        let Some(change) = &mut self.change else { return Poll::Pending };
        let output = std::task::ready!(change.as_mut().poll(context));
        self.change = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        if let Some(change) = self.change.take().filter(|_| self.has_begun) {
            // An engine that has ended accepts no task: then it is as after a crash.
            drop(self.engine.spawn_on_shard(0, Class::DEFAULT, move || change));
        }
    }
}
