//! The conformance suite: one contract for all drivers.
//!
//! Each [`Case`] is one promise of this crate's documentation, shown on a real engine in a fresh directory. A case passes, is
//! skipped with the reason (it [needs](Need) something that is missing), or fails with a text of the expected and the actual
//! result. It never panics. After each case the runner checks that all memory and all slots of the engine were released. No clock
//! decides the outcome of a case, except that a hang fails after a minute.
//!
//! In a task of any executor, and in the program of a simulated world, [`run`] accepts an [`Env`].
//!
//! The behaviour of handles in a forked child is not a case: code that does not know a program's threads cannot soundly fork the
//! program in their midst. `tests/fork.rs` of the core does it in a separate process.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use forebay::internal::ErrorExt;
use forebay::{Config, Error, Waitable};

use crate::env::{Env, LocalFuture};

mod append;
mod check;
mod drops;
mod ending;
mod engine;
mod files;
mod freezes;
mod hike;
mod lent;
mod lives;
mod many;
mod memory;
mod names;
mod operations;
mod reads;
mod space;
mod tasks;
mod threads;
mod tools;
mod walk;
mod writes;

use check::{Outcome, Stop};

/// The requirements of a case beyond an engine and a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Need {
    /// Threads that run at the same time and may block: `.wait()`, and crossings between real threads.
    Threads,
    /// The operating system's own view of the files: descriptors, and `std::fs` in parallel to the engine.
    Process,
    /// Files that are made and removed by name, change their length, and can be in the page cache. An NVMe namespace lacks all of
    /// this.
    FileSystem,
}

/// One promise; made by [`cases`], run by [`run`] and [`run_at`].
#[derive(Clone, Copy)]
pub struct Case {
    name: &'static str,
    needs: &'static [Need],
    body: for<'e> fn(&'e Env) -> LocalFuture<'e, Outcome>,
}

impl Case {
    /// Returns `"group::what_is_promised"`, which never changes.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns its requirements; without them the case is skipped.
    pub fn needs(&self) -> &'static [Need] {
        self.needs
    }
}

forebay::_debug_parts!(Case, |case| name: case.name, needs: case.needs);

/// Makes the list of a group's cases: names of async functions, and in brackets their requirements.
macro_rules! group {
    ($group:literal: $($case:ident $([$($need:ident),*])?),* $(,)?) => {
        pub(super) fn cases() -> Vec<$crate::suite::Case> {
            vec![$($crate::suite::Case {
                name: concat!($group, "::", stringify!($case)),
                needs: &[$($($crate::suite::Need::$need),*)?],
                body: |env| Box::pin($case(env)),
            }),*]
        }
    };
}
use group;

/// Returns all cases, in a fixed order.
pub fn cases() -> Vec<Case> {
    let groups = [
        reads::cases(),
        writes::cases(),
        many::cases(),
        lent::cases(),
        walk::cases(),
        append::cases(),
        space::cases(),
        names::cases(),
        files::cases(),
        lives::cases(),
        memory::cases(),
        tasks::cases(),
        engine::cases(),
        drops::cases(),
        freezes::cases(),
        ending::cases(),
        threads::cases(),
    ];
    groups.into_iter().flatten().collect()
}

/// The result of a case that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Everything is as promised.
    Passed,
    /// It could not be tried here; the reason.
    Skipped(String),
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    case: &'static str,
    reason: String,
}

impl Failure {
    /// Returns the case's name.
    pub fn case(&self) -> &'static str {
        self.case
    }

    /// Returns the expected and the actual result.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.reason)
    }
}

impl std::error::Error for Failure {}

/// Runs a case and returns its verdict. The directory of `env` should be the case's own, and empty.
///
/// A case may block its thread for the time of a few hundred operations, and those that need [`Need::Threads`] start threads; so
/// does [`Env::elsewhere`].
///
/// # Errors
/// The promise that was not kept; a panic of the case counts as one.
pub async fn run(case: &Case, env: &Env) -> Result<Verdict, Failure> {
    if let Some(lacks) = case.needs.iter().find_map(|need| lack(*need, env)) {
        return Ok(Verdict::Skipped(lacks.to_string()));
    }
    let body = guarded((case.body)(env));
    match body.await {
        Ok(()) => {}
        Err(Stop::Skipped(why)) => return Ok(Verdict::Skipped(why)),
        Err(Stop::Failed(reason)) => return Err(Failure { case: case.name, reason }),
    }
    // Dropped operations may still be in flight; nothing of them may stay.
    match guarded(tools::at_rest(env, env.engine())).await {
        Ok(()) => Ok(Verdict::Passed),
        Err(Stop::Failed(reason) | Stop::Skipped(reason)) => {
            Err(Failure { case: case.name, reason: format!("after the case: {reason}") })
        }
    }
}

/// Returns the reason why the environment lacks a requirement.
fn lack(need: Need, env: &Env) -> Option<&'static str> {
    match need {
        Need::Threads if env.is_simulated() => {
            Some("a simulated world has one thread, which nothing may block")
        }
        Need::Process if env.is_simulated() => {
            Some("the operating system knows nothing of a simulated world's files")
        }
        Need::FileSystem if env.is_namespace() => {
            Some("a namespace has one length, no names and no page cache")
        }
        _ => None,
    }
}

/// Runs a case on this thread, with an engine of these settings and a new directory in `base`, which is
/// removed afterwards, and returns its verdict. Then the engine is closed; the case also requires that no
/// operation was leaked and no shard lost.
///
/// `base` should be on the file system in question; memory file systems do not support direct I/O on older
/// kernels.
///
/// # Errors
/// The promise that was not kept; on a shard's thread, an error because a case cannot run there.
///
/// ```
/// # use forebay::Config;
/// # use forebay_conformance::suite::{self, Verdict};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let base = tempfile::tempdir()?;
/// let case = suite::cases().into_iter().find(|case| case.name().starts_with("reads::")).ok_or("no case")?;
/// assert_eq!(suite::run_at(&case, &Config::new(), base.path())?, Verdict::Passed);
/// # Ok(()) }
/// ```
pub fn run_at(case: &Case, config: &Config, base: &Path) -> Result<Verdict, Failure> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = base.join(format!("forebay-suite-{}-{number}", std::process::id()));
    let run = async { Ok::<_, Error>(run_in(case, Env::start(config.clone(), &dir).await).await) };
    let outcome = Waitable::new("suite", run).wait();
    let _ = std::fs::remove_dir_all(&dir);
    outcome.unwrap_or_else(|error| Err(failed(case, "to begin", &error)))
}

/// Does the same as [`run_at`] on an NVMe namespace, **which is overwritten** ([`Env::start_on_namespace`]).
///
/// # Errors
/// Those of [`run_at`].
pub fn run_on_namespace(case: &Case, config: &Config, namespace: &Path) -> Result<Verdict, Failure> {
    let run = async {
        Ok::<_, Error>(run_in(case, Env::start_on_namespace(config.clone(), namespace).await).await)
    };
    let outcome = Waitable::new("suite", run).wait();
    outcome.unwrap_or_else(|error| Err(failed(case, "to begin", &error)))
}

async fn run_in(case: &Case, env: Result<Env, Error>) -> Result<Verdict, Failure> {
    let env = env.map_err(|error| failed(case, "to begin", &error))?;
    let verdict = run(case, &env).await?;
    let report = env.engine().clone().close().await.map_err(|error| failed(case, "to close", &error))?;
    if (report.leaked_operations, report.lost_shards, report.calls_left.len()) != (0, 0, 0) {
        return Err(Failure {
            case: case.name,
            reason: format!("at the end nothing may be lost: {report:?}"),
        });
    }
    Ok(verdict)
}

fn failed(case: &Case, what: &str, error: &Error) -> Failure {
    Failure { case: case.name, reason: format!("the engine of the case failed {what}: {error}") }
}

/// Returns the future's outcome, with a panic as a failure.
async fn guarded(future: impl Future<Output = Outcome>) -> Outcome {
    let mut future: LocalFuture<'_, Outcome> = Box::pin(future);
    std::future::poll_fn(move |context| {
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut future).poll(context)));
        polled.unwrap_or_else(|panic| {
            Poll::Ready(Err(Stop::Failed(Error::panicked("case", panic.as_ref()).to_string())))
        })
    })
    .await
}
