//! Runs [openraft] in Forebay's simulated worlds: whole clusters on one thread, in virtual time, from one seed.
//!
//! [`SimRuntime`] is openraft's runtime, [`SimNetwork`] and [`serve`] its network on [`forebay_sim::net`]. A Raft node runs in
//! a task of a [node](forebay_sim::Node): its timers follow that node's clock, and it ends with that node's power.
//!
//! [openraft]: https://docs.rs/openraft

mod instant;
mod network;
mod watch;

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_sim::{self as sim, World};
use openraft_rt::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::{TokioMpsc, TokioMutex, TokioOneshot};
use rand::TryRng;

pub use instant::SimInstant;
pub use network::{Connection, InMemory, SimNetwork, Transfer, serve};
pub use watch::{SimWatch, WatchReceiver, WatchRef, WatchSender};

/// openraft's runtime in a simulated world.
///
/// Its functions work in the tasks of any world that runs on the thread; a value of this type is needed for
/// [`block_on`](AsyncRuntime::block_on) alone, which runs a future as the program of a separate world (seed 0).
pub struct SimRuntime {
    world: World,
}

forebay::_debug_parts!(SimRuntime);

/// A future that waits in a world's time. Outside of a world it is ready immediately.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep(sim::Sleep);

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context).map(drop)
    }
}

/// The error of a future that did not end in time.
#[derive(Debug)]
pub struct TimeoutError;

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time limit has passed")
    }
}

/// A future with a time limit.
#[must_use = "futures do nothing unless awaited"]
pub struct Timeout<F> {
    future: Option<Pin<Box<F>>>,
    sleep: Sleep,
}

forebay::_debug_parts!([F] Timeout<F>, |timeout| sleep: timeout.sleep);

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimeoutError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(future) = &mut self.future
            && let Poll::Ready(output) = future.as_mut().poll(context)
        {
            self.future = None;
            return Poll::Ready(Ok(output));
        }
        let elapsed = Pin::new(&mut self.sleep).poll(context);
        elapsed.map(|()| {
            self.future = None;
            Err(TimeoutError)
        })
    }
}

/// Random numbers that the world's seed decides.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimRng;

impl TryRng for SimRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(sim::random(1 << 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(sim::random(1 << 32) << 32 | sim::random(1 << 32))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        bytes.fill_with(|| sim::random(256) as u8);
        Ok(())
    }
}

impl AsyncRuntime for SimRuntime {
    type JoinError = forebay::Error;
    type JoinHandle<T: OptionalSend + 'static> = sim::Task<T>;
    type Sleep = Sleep;
    type Instant = SimInstant;
    type TimeoutError = TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = SimRng;
    type Mpsc = TokioMpsc;
    type Watch = SimWatch;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        sim::spawn(future)
    }

    fn sleep(duration: Duration) -> Sleep {
        Sleep(sim::sleep(duration))
    }

    fn sleep_until(deadline: SimInstant) -> Sleep {
        Sleep(sim::sleep_until(deadline.on_clock()))
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        Timeout { future: Some(Box::pin(future)), sleep: Self::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: SimInstant, future: F) -> Timeout<F> {
        Timeout { future: Some(Box::pin(future)), sleep: Self::sleep_until(deadline) }
    }

    /// A panic of a task ends the run of its world, so no handle ever returns one.
    fn is_panic(_: &forebay::Error) -> bool {
        false
    }

    fn thread_rng() -> SimRng {
        SimRng
    }

    fn new(_threads: usize) -> SimRuntime {
        SimRuntime { world: World::new(0) }
    }

    /// # Panics
    /// If the run of the world failed: the program or a task panicked, or nothing could happen any more.
    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        let result = self.world.run(async move |_| future.await);
        result.unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Runs `f` on the world's thread, which is the only one.
    async fn spawn_blocking<F, T>(f: F) -> Result<T, io::Error>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        Ok(f())
    }
}
