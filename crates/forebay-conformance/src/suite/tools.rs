//! Tools that cases share: known bytes, files in every mode, polling by hand, and a check that everything was released.

use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use forebay::{Engine, File, Open};

use super::check::{Outcome, fail, same_bytes};
use crate::Env;

/// A future that may move to other threads.
pub(super) type SendFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Returns the bytes of a range of every file of known bytes: no two pages of a file are equal.
pub(super) fn bytes_of(range: Range<u64>) -> Vec<u8> {
    // By whole words in memory of its length: it is a third of what the suite computes.
    let (first, end) = (range.start / 8, range.end.max(range.start).div_ceil(8));
    let mut bytes = vec![0; (end - first) as usize * 8];
    for (word, at) in bytes.chunks_exact_mut(8).zip(first..) {
        word.copy_from_slice(&at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    }
    bytes.truncate((range.end.max(range.start) - first * 8) as usize);
    bytes.drain(..(range.start % 8) as usize);
    bytes
}

/// Small numbers that look random and are the same in every run.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below.max(1)
    }
}

/// Returns all numbers below `count`; in a simulated world, as worlds are many, two that its seed decides.
pub(super) fn some(env: &Env, count: u64) -> Vec<u64> {
    if env.is_simulated() {
        (0..count.min(2)).map(|_| forebay_sim::random(count)).collect()
    } else {
        (0..count).collect()
    }
}

/// Returns the ways a file can be opened; a namespace is always direct.
pub(super) fn modes(env: &Env, open: Open) -> Vec<Open> {
    if env.is_namespace() {
        vec![open.direct()]
    } else {
        vec![open.direct(), open.buffered(), open.uncached(), open.adaptive()]
    }
}

/// Makes a file of `len` known bytes.
pub(super) async fn put(env: &Env, name: &str, len: u64) -> Outcome<PathBuf> {
    put_bytes(env, name, &bytes_of(0..len)).await
}

pub(super) async fn put_bytes(env: &Env, name: &str, bytes: &[u8]) -> Outcome<PathBuf> {
    Ok(env.storage().put(env.engine(), name, bytes).await?)
}

/// Makes a new file to be written with the options of `open`, and never more than `room` bytes of it.
pub(super) async fn fresh(env: &Env, path: impl AsRef<Path>, open: Open, room: u64) -> Outcome<File> {
    fresh_on(env, env.engine(), path, open, room).await
}

/// Does the same as [`fresh`] with an engine of [`Env::restart`].
pub(super) async fn fresh_on(
    env: &Env,
    engine: &Engine,
    path: impl AsRef<Path>,
    open: Open,
    room: u64,
) -> Outcome<File> {
    Ok(env.storage().fresh(engine, path.as_ref(), open, room).await?)
}

/// Checks the bytes of a [`fresh`] file: all of them, or in a namespace, where a part has a fixed length, the
/// first.
#[track_caller]
pub(super) fn same_written(env: &Env, what: impl Display, came: &[u8], expected: &[u8]) -> Outcome {
    let came = if env.is_namespace() { came.get(..expected.len()).unwrap_or(came) } else { came };
    same_bytes(what, came, expected)
}

/// Returns all bytes of the file at `path`, by the simplest means.
pub(super) async fn content(env: &Env, path: impl AsRef<Path>) -> Outcome<Vec<u8>> {
    let file = env.open(path, Open::read().buffered()).await?;
    let (mut bytes, len) = (Vec::new(), file.len().await?);
    while (bytes.len() as u64) < len {
        let at = bytes.len() as u64;
        bytes.extend_from_slice(&file.read(at..len.min(at + (256 << 10))).await?);
    }
    file.close().await?;
    Ok(bytes)
}

/// Opens the file at `path` in all its modes.
pub(super) async fn open_all(env: &Env, path: impl AsRef<Path>, open: Open) -> Outcome<Vec<File>> {
    let mut files = Vec::new();
    for open in modes(env, open) {
        files.push(env.open(&path, open).await?);
    }
    Ok(files)
}

/// Polls once, with a waker that does nothing.
pub(super) fn poll_now<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls up to `times` times, once per wake-up after the first. Returns the output if it is ready by then.
pub(super) async fn poll_times<F: Future + Unpin>(future: &mut F, times: u32) -> Option<F::Output> {
    let mut polls = 0;
    poll_fn(|context| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        Pin::new(&mut *future).poll(context).map(Some)
    })
    .await
}

/// Awaits all futures concurrently, and returns their outputs in order.
pub(super) async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut outputs: Vec<Option<F::Output>> = waiting.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut pending = false;
        for (slot, output) in waiting.iter_mut().zip(&mut outputs) {
            let Some(future) = slot else { continue };
            match future.as_mut().poll(context) {
                Poll::Ready(value) => {
                    *output = Some(value);
                    *slot = None;
                }
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// Does the same as [`all`], but polls a future only when it was woken itself: one whose wake-up is lost
/// never continues.
pub(super) async fn each<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    struct Woken {
        is_woken: AtomicBool,
        outer: Mutex<Option<Waker>>,
    }
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.is_woken.store(true, Ordering::SeqCst);
            let outer = self.outer.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(waker) = outer {
                waker.wake();
            }
        }
    }
    let begin = |future| {
        let woken = Arc::new(Woken { is_woken: AtomicBool::new(true), outer: Mutex::new(None) });
        (Box::pin(future), woken)
    };
    let mut waiting: Vec<_> = futures.into_iter().map(|future| Some(begin(future))).collect();
    let mut outputs: Vec<Option<F::Output>> = waiting.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut pending = false;
        for (slot, output) in waiting.iter_mut().zip(&mut outputs) {
            let Some((future, woken)) = slot else { continue };
            *woken.outer.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
            if woken.is_woken.swap(false, Ordering::SeqCst)
                && let Poll::Ready(value) =
                    future.as_mut().poll(&mut Context::from_waker(&woken.clone().into()))
            {
                *output = Some(value);
                *slot = None;
                continue;
            }
            pending = true;
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// After this long, in real time or in a world's time, something hangs.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// The rounds of checking after which anything still missing counts as leaked; with real devices [`LIMIT`] has passed as well.
const ROUNDS_MAX: u32 = 200_000;

/// Checks that all memory, slots and tasks were released. Each round makes the shards run a turn.
pub(super) async fn at_rest(env: &Env, engine: &Engine) -> Outcome {
    let mut last = None;
    let began = (!env.is_simulated()).then(Instant::now);
    let may_go_on = |rounds: u32| rounds < ROUNDS_MAX || began.is_some_and(|began| began.elapsed() < LIMIT);
    let mut rounds = 0;
    while may_go_on(rounds) {
        rounds = rounds.saturating_add(1);
        let stats = engine.stats().await?;
        if let Some(shard) = stats.shards.iter().find(|shard| shard.stray_completions > 0) {
            return fail(format_args!("completions came that named no slot: {shard:?}"));
        }
        let idle = stats.shards.iter().all(|shard| shard.slots_used == 0 && shard.tasks == 0);
        if idle && stats.memory.held_bytes == 0 && stats.memory.overflow_bytes == 0 {
            return Ok(());
        }
        last = Some((stats.shards, stats.memory));
        env.pause().await;
    }
    fail(format_args!("expected all memory, slots and tasks to come back: {last:?}"))
}
