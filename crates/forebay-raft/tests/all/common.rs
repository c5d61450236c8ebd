//! Helpers shared by the tests.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::fmt::Debug;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay::sim;
use openraft::RaftTypeConfig;
use openraft::alias::{AsyncRuntimeOf, LogIdOf};
use openraft::async_runtime::AsyncRuntime;
use openraft::entry::RaftEntry;
use openraft::vote::RaftLeaderIdExt;

openraft::declare_raft_types!(
    /// On Tokio.
    pub(crate) Types: D = String, R = String
);
openraft::declare_raft_types!(
    /// In a simulated world.
    pub(crate) WorldTypes: D = String, R = String, AsyncRuntime = WorldRuntime
);

type Tokio = AsyncRuntimeOf<Types>;

/// openraft's runtime in a simulated world: its tasks and its time. Channels are Tokio's, which need no runtime.
#[derive(Debug)]
pub(crate) struct WorldRuntime;

/// The world's time since its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorldInstant(Duration);

impl openraft::Instant for WorldInstant {
    fn now() -> WorldInstant {
        WorldInstant(sim::now())
    }
}

impl Add<Duration> for WorldInstant {
    type Output = WorldInstant;
    fn add(self, duration: Duration) -> WorldInstant {
        WorldInstant(self.0 + duration)
    }
}

impl AddAssign<Duration> for WorldInstant {
    fn add_assign(&mut self, duration: Duration) {
        self.0 += duration;
    }
}

impl Sub<Duration> for WorldInstant {
    type Output = WorldInstant;
    fn sub(self, duration: Duration) -> WorldInstant {
        WorldInstant(self.0.saturating_sub(duration))
    }
}

impl Sub<WorldInstant> for WorldInstant {
    type Output = Duration;
    fn sub(self, earlier: WorldInstant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl SubAssign<Duration> for WorldInstant {
    fn sub_assign(&mut self, duration: Duration) {
        self.0 = self.0.saturating_sub(duration);
    }
}

/// A future with a limit of the world's time.
pub(crate) struct WorldTimeout<F> {
    future: Pin<Box<F>>,
    sleep: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<F: Future> Future for WorldTimeout<F> {
    type Output = Result<F::Output, &'static str>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        self.sleep.as_mut().poll(context).map(|()| Err("the time is over"))
    }
}

impl AsyncRuntime for WorldRuntime {
    type JoinError = tokio::sync::oneshot::error::RecvError;
    type JoinHandle<T: Send + 'static> = tokio::sync::oneshot::Receiver<T>;
    type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;
    type Instant = WorldInstant;
    type TimeoutError = &'static str;
    type Timeout<R, T: Future<Output = R> + Send> = WorldTimeout<T>;
    type ThreadLocalRng = <Tokio as AsyncRuntime>::ThreadLocalRng;
    type Mpsc = <Tokio as AsyncRuntime>::Mpsc;
    type Watch = <Tokio as AsyncRuntime>::Watch;
    type Oneshot = <Tokio as AsyncRuntime>::Oneshot;
    type Mutex<T: Send + 'static> = <Tokio as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + Send + 'static,
        T::Output: Send + 'static,
    {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        drop(sim::spawn(async move { drop(sender.send(future.await)) }));
        receiver
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Box::pin(async move { drop(sim::sleep(duration).await) })
    }

    fn sleep_until(deadline: WorldInstant) -> Self::Sleep {
        Self::sleep(deadline.0.saturating_sub(sim::now()))
    }

    fn timeout<R, F: Future<Output = R> + Send>(duration: Duration, future: F) -> WorldTimeout<F> {
        WorldTimeout { future: Box::pin(future), sleep: Self::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R> + Send>(deadline: WorldInstant, future: F) -> WorldTimeout<F> {
        WorldTimeout { future: Box::pin(future), sleep: Self::sleep_until(deadline) }
    }

    fn is_panic(_: &Self::JoinError) -> bool {
        false
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        <Tokio as AsyncRuntime>::thread_rng()
    }

    fn new(_: usize) -> WorldRuntime {
        WorldRuntime
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, _: F) -> T {
        panic!("a world is not waited for")
    }
}

/// Returns a directory on a real file system beside the build, where O_DIRECT works; `/tmp` is often memory.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("forebay-raft-test-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a directory")
}

/// Returns a log id of node 1.
pub(crate) fn log_id<C: RaftTypeConfig<Term = u64, NodeId = u64>>(term: u64, index: u64) -> LogIdOf<C> {
    LogIdOf::<C>::new(C::LeaderId::new_committed(term, 1), index)
}

/// Returns an entry of the program.
pub(crate) fn entry<C>(term: u64, index: u64, data: impl Into<String>) -> C::Entry
where
    C: RaftTypeConfig<Term = u64, NodeId = u64, D = String>,
{
    C::Entry::new_normal(log_id::<C>(term, index), data.into())
}
