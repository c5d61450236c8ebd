//! Completion times, taken by the thread that did the work, not by the task that waits for it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

/// A waker that records the time on the thread that wakes, then wakes the task.
#[derive(Debug)]
struct Stamp {
    state: Mutex<(Option<Instant>, Waker)>,
}

impl Stamp {
    /// Wakes `waker` from now on. Returns the time of the last wake-up, if there was one.
    fn follow(&self, waker: &Waker) -> Option<Instant> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1.clone_from(waker);
        state.0.take()
    }
}

impl Wake for Stamp {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let now = Instant::now();
        let waker = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 = Some(now);
            state.1.clone()
        };
        waker.wake();
    }
}

/// Returns the output of `future` and the time when its waker was called for it: on the log's shard,
/// or on the thread that made the blocking call. For a future that is ready without a wake-up, this is
/// the time at which it returned.
pub(super) async fn stamped<F: Future>(future: F) -> (F::Output, Instant) {
    let stamp = Arc::new(Stamp { state: Mutex::new((None, Waker::noop().clone())) });
    let waker = Waker::from(Arc::clone(&stamp));
    let mut future = pin!(future);
    poll_fn(move |context| {
        // Before the poll: a wake-up after it finds the task.
        let woken = stamp.follow(context.waker());
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Poll::Ready((output, woken.unwrap_or_else(Instant::now))),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_the_wakers_not_the_polls() {
        let (sender, receiver) = tokio::sync::oneshot::channel::<Instant>();
        let mut waiting = Box::pin(stamped(receiver));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        let before = Instant::now();
        sender.send(before).expect("it is waited for");
        let after = Instant::now();
        while after.elapsed().as_micros() < 500 {
            std::hint::spin_loop();
        }
        let Poll::Ready((output, at)) = waiting.as_mut().poll(&mut context) else { panic!("it was sent") };
        assert_eq!(output, Ok(before));
        assert!(before <= at && at <= after, "stamped when it was polled");
    }

    #[test]
    fn a_future_that_is_ready_at_once_is_stamped_with_now() {
        let before = Instant::now();
        let mut ready = Box::pin(stamped(std::future::ready(7)));
        let Poll::Ready((output, at)) = ready.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("it is ready")
        };
        assert_eq!(output, 7);
        assert!(at >= before);
    }
}
