//! Calls that are started and then not polled any more, and calls that must complete meanwhile.
//!
//! A [`Scene`] has one call of each kind. They are kept unpolled at each of their awaits while one of each kind completes; then the
//! kept calls are polled again on another thread, or dropped.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_sim as sim;
use futures::StreamExt as _;
use futures::executor::block_on;
use futures::stream::FuturesUnordered;

/// A call with a check of its result.
pub type Call = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;
/// A call and the name of its kind.
pub type NamedCall = (&'static str, Call);

/// More polls than most calls need.
pub const POLLS: usize = 6;
/// Time after which a round counts as hanging.
const LIMIT: Duration = Duration::from_secs(60);

/// An object whose calls are kept unpolled.
pub trait Scene: Clone + Send + Sync + 'static {
    /// Returns one call of each kind. The first is the one whose share is easiest to fill.
    fn calls(&self) -> Vec<NamedCall>;

    /// Returns the number of calls of this kind that exceed their share.
    fn many(&self, name: &str) -> usize;

    /// Returns whether a call of this name may be kept together with these.
    fn may_keep(&self, _name: &str, _kept: &[NamedCall]) -> bool {
        true
    }

    /// Checks the object after a round.
    fn check(&self) -> impl Future<Output = Result<(), String>> + Send {
        async { Ok(()) }
    }
}

/// Polls each call once, so that none has been woken yet. Returns those that have not completed.
///
/// # Errors
/// A call that completed failed.
pub fn begin(calls: Vec<NamedCall>) -> Result<Vec<NamedCall>, String> {
    let mut kept = Vec::new();
    for (name, mut call) in calls {
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result.map_err(|wrong| format!("{name}: {wrong}"))?,
            Poll::Pending => kept.push((name, call)),
        }
    }
    Ok(kept)
}

/// Polls each call `polls` times. Returns those that have not completed.
///
/// # Errors
/// A call that completed failed.
pub async fn freeze(calls: Vec<NamedCall>, polls: usize) -> Result<Vec<NamedCall>, String> {
    let mut kept = Vec::new();
    for (name, call) in calls {
        match sim::frozen_after(polls, call).await {
            Ok(result) => result.map_err(|wrong| format!("{name}: {wrong}"))?,
            Err(call) => kept.push((name, *Pin::into_inner(call))),
        }
    }
    Ok(kept)
}

/// Completes all calls concurrently, each polled only when it was woken itself.
///
/// # Errors
/// A call failed.
pub async fn resume(calls: Vec<NamedCall>) -> Result<(), String> {
    let named =
        calls.into_iter().map(async |(name, call)| call.await.map_err(|wrong| format!("{name}: {wrong}")));
    let mut going: FuturesUnordered<_> = named.collect();
    while let Some(result) = going.next().await {
        result?;
    }
    Ok(())
}

async fn one_of_each(scene: &impl Scene, polls: usize) -> Result<Vec<NamedCall>, String> {
    let kept = freeze(scene.calls(), polls).await?;
    resume(scene.calls()).await?;
    Ok(kept)
}

async fn many_of_one(scene: &impl Scene, kind: usize, polls: usize) -> Result<Vec<NamedCall>, String> {
    let count = scene.many(scene.calls()[kind].0);
    let many = (0..count).map(|_| scene.calls().swap_remove(kind)).collect();
    let kept = if polls == 0 { begin(many)? } else { freeze(many, polls).await? };
    resume(scene.calls()).await?;
    Ok(kept)
}

/// Runs `body` on a separate thread, which must end within a minute.
///
/// # Panics
/// If it failed or hangs.
pub fn in_time(name: &str, body: impl FnOnce() -> Result<(), String> + Send + 'static) {
    let (ended, has_ended) = mpsc::channel();
    let thread = std::thread::spawn(move || ended.send(body()));
    let result = has_ended.recv_timeout(LIMIT).unwrap_or_else(|_| Err("it hangs".to_string()));
    result.unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
    thread.join().unwrap().unwrap();
}

/// Runs a round on a real engine; the kept calls complete on another thread, or are dropped.
fn round<S: Scene>(
    scene: &S,
    name: String,
    is_dropped: bool,
    freeze: impl AsyncFnOnce(S) -> Result<Vec<NamedCall>, String> + Send + 'static,
) {
    let scene = scene.clone();
    in_time(&name, move || {
        let kept = block_on(freeze(scene.clone()))?;
        if !is_dropped {
            let thread = std::thread::spawn(move || block_on(resume(kept)));
            thread.join().map_err(|_| "a panic".to_string())??;
        }
        block_on(scene.check())
    });
}

/// Runs a round for each number of polls with one call of each kind.
///
/// # Panics
/// If a round failed or hangs.
pub fn rounds_of_each(scene: &impl Scene) {
    for polls in 1..POLLS {
        let name = format!("one of each kind, kept after {polls} polls");
        round(scene, name, polls % 2 == 0, async move |scene| one_of_each(&scene, polls).await);
    }
}

/// Runs a round with many calls of one kind, an index into the scene's calls, each kept after `polls` polls.
///
/// # Panics
/// If the round failed or hangs.
pub fn round_of_many(scene: &impl Scene, kind: usize, polls: usize, is_dropped: bool) {
    let name = format!("{} many times, kept after {polls} polls", scene.calls()[kind].0);
    round(scene, name, is_dropped, async move |scene| many_of_one(&scene, kind, polls).await);
}

/// Makes calls in random order and leaves some of them unpolled; each task may continue calls that others left.
async fn among_others(scene: impl Scene, left: Arc<Mutex<Vec<NamedCall>>>) -> Result<(), String> {
    let lock = || left.lock().unwrap_or_else(PoisonError::into_inner);
    let mut calls = scene.calls();
    while !calls.is_empty() {
        let (name, call) = calls.swap_remove(sim::random(calls.len() as u64) as usize);
        if sim::random(3) == 0 {
            let polls = sim::random(POLLS as u64) as usize;
            let may_keep = scene.may_keep(name, &lock());
            let kept = freeze(vec![(name, call)], if may_keep { polls } else { usize::MAX }).await?;
            lock().extend(kept);
        } else {
            resume(vec![(name, call)]).await?;
        }
        if sim::random(5) == 0 {
            let taken = {
                let mut left = lock();
                let count = left.len() as u64;
                (count > 0).then(|| left.swap_remove(sim::random(count) as usize))
            };
            if sim::random(2) == 0 {
                resume(taken.into_iter().collect()).await?;
            }
        }
    }
    Ok(())
}

async fn round_in_world(scene: impl Scene, seed: u64, tasks: usize) -> Result<(), String> {
    let kinds = scene.calls().len() as u64;
    let kept = match seed % 3 {
        // More calls of the first kind than fit.
        0 => many_of_one(&scene, 0, 0).await?,
        1 => one_of_each(&scene, sim::random(POLLS as u64) as usize).await?,
        _ => many_of_one(&scene, sim::random(kinds) as usize, sim::random(3) as usize).await?,
    };
    let left = Arc::new(Mutex::new(kept));
    let tasks: Vec<_> = (0..tasks).map(|_| sim::spawn(among_others(scene.clone(), left.clone()))).collect();
    for task in tasks {
        task.await.map_err(|error| format!("{error:?}"))??;
    }
    let left = std::mem::take(&mut *left.lock().unwrap_or_else(PoisonError::into_inner));
    sim::spawn(resume(left)).await.map_err(|error| format!("{error:?}"))??;
    scene.check().await
}

/// Runs a round in the world that this is called in: its seed decides which calls are kept, and this many tasks
/// make calls and leave some.
///
/// # Errors
/// A call failed, or the round has not ended after a minute of the world's time.
pub async fn in_world<S: Scene>(
    scene: impl Future<Output = Result<S, String>>,
    seed: u64,
    tasks: usize,
) -> Result<(), String> {
    let limit = std::pin::pin!(sim::sleep(LIMIT));
    let round = std::pin::pin!(async { round_in_world(scene.await?, seed, tasks).await });
    match futures::future::select(round, limit).await {
        futures::future::Either::Left((result, _)) => result,
        futures::future::Either::Right(_) => Err("it hangs".to_string()),
    }
}
