//! One sample: a Tokio runtime with its other work, one way to make records durable, and a schedule of appends.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay::{Config, Health, Priority};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::ways::Appender;
use crate::backend::{minimise_timer_slack, sleep_until};
use crate::experiment::{Outcome, Way};
use crate::gauge::Gauge;
use crate::job::Job;
use crate::lanes::{runtime, with_engine};
use crate::latency::Latency;
use crate::pattern::SplitMix;
use crate::timers::Timers;
use forebay_report::result::metric;

/// Warm-up, not measured: threads and files are used for the first time.
const WARM: Duration = Duration::from_millis(100);
/// Numbers sorted in one poll of a task, in some hundreds of microseconds.
pub(super) const SORTED: usize = 16_384;
/// Tasks for each worker: one that runs and one that waits, so that any other task that becomes ready
/// must queue.
pub(super) const TASKS_PER_WORKER: usize = 2;

/// The parameters of a table and its samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Work {
    #[serde(flatten)]
    pub(super) workload: Workload,
    pub(super) load: Load,
    /// Threads of the runtime.
    pub(super) workers: usize,
    /// The same, where their number was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) threads: Option<usize>,
    pub(super) record_bytes: usize,
    /// Records in one append.
    pub(super) batch_records: usize,
    /// Size of the file that is written through before, and of a segment of the log.
    pub(super) file_bytes: u64,
    /// Each append creates a separate file and removes it; its time includes both.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) as_published: bool,
    /// [`forebay::Flush`] of the log by name; other rows ignore it.
    pub(super) log_flush: String,
}

/// The schedule of the appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "loop", rename_all = "lowercase")]
pub(super) enum Workload {
    /// At fixed times, even if earlier appends have not completed.
    Open { rate_per_s: u32 },
    /// Each of these tasks waits until its append completes before the next one.
    Closed { appenders: usize },
}

impl Workload {
    /// Returns the maximum number of appends that have a separate handle.
    pub(super) fn lanes(self) -> usize {
        match self {
            Self::Open { .. } => 64,
            Self::Closed { appenders } => appenders,
        }
    }
}

/// Other work of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Load {
    None,
    /// Tasks that sort, two for each worker.
    Cpu,
    /// Tasks that only wait for a time, and whose lateness is measured.
    Timers,
}

/// The start and the end of the measured time.
type Window = (Instant, Instant);

/// Runs the sample of `way` with files in the directory of the job.
///
/// # Errors
/// The row failed, or lost an append that had succeeded.
pub(super) fn sample(job: &Job, way: &Way) -> anyhow::Result<Outcome> {
    let work: Work = job.work()?;
    if way.always {
        return run(job, &work, None, false);
    }
    if way.cached {
        return run(job, &work, Some(Appender::open(job, &work, way, None)?), false);
    }
    let priority = match way.name {
        "forebay-prompt" => Priority::Prompt,
        "forebay-realtime" => Priority::RealTime,
        _ => Priority::Default,
    };
    // Before the runtime starts: the engine's threads must not inherit the scheduling of the runtime's workers.
    with_engine(Config::new().shards(1).priority(priority), |engine| {
        let degraded = refusal(&engine.health(), priority);
        let appender = Appender::open(job, &work, way, Some(engine))?;
        let outcome = run(job, &work, Some(appender), priority == Priority::Prompt)?;
        Ok(Outcome { degraded, ..outcome })
    })
}

/// Returns the reason why the engine has less than requested.
fn refusal(health: &Health, requested: Priority) -> Option<String> {
    let concerned = |text: &String| ["priority", "slice", "nice"].iter().any(|word| text.contains(word));
    let whys: Vec<String> = health.degraded.iter().map(ToString::to_string).filter(concerned).collect();
    if health.priority >= requested && (whys.is_empty() || requested == Priority::Default) {
        return None;
    }
    Some(format!("priority {requested} was requested and {} granted: {}", health.priority, whys.join("; ")))
}

fn run(job: &Job, work: &Work, appender: Option<Appender>, is_polite: bool) -> anyhow::Result<Outcome> {
    // Flushes the files that earlier samples removed and this sample created. Otherwise the file system would write them in the
    // middle of the sample.
    rustix::fs::syncfs(File::open(&job.path)?)?;
    let runtime = runtime(work.workers, is_polite)?;
    let sorting = sort(runtime.handle(), work, job.seed);
    let timers = (work.load == Load::Timers).then(|| Timers::start(runtime.handle())).transpose()?;
    let schedule = Schedule::new(work.workload, job.seconds);
    let window = schedule.window();
    timers.as_ref().inspect(|timers| timers.count_between(window));
    let appender = appender.map(Arc::new);
    let lanes: Vec<_> = match (&appender, work.workload) {
        (Some(appender), Workload::Closed { appenders }) => (0..appenders)
            .map(|lane| runtime.spawn(append_again(Arc::clone(appender), lane, window)))
            .collect(),
        _ => Vec::new(),
    };
    let (cost, sorted, begun) = std::thread::scope(|scope| {
        let is_open = matches!(work.workload, Workload::Open { .. });
        let network = appender.as_deref().filter(|_| is_open);
        let network =
            network.map(|appender| scope.spawn(|| schedule.run(runtime.handle(), appender, work.workload)));
        sleep_until(window.0);
        let (gauge, before) = (Gauge::start(job.device_stat.as_deref())?, sorting.load(Ordering::Relaxed));
        sleep_until(window.1);
        let (sorted, cost) = (sorting.load(Ordering::Relaxed) - before, gauge.stop()?);
        let begun =
            network.map(|thread| thread.join().ok().context("the thread with the appends panicked")?);
        anyhow::Ok((cost, sorted, begun.transpose()?))
    })?;
    let mut tally = Tally::new()?;
    for lane in lanes {
        tally.merge(&runtime.block_on(lane).context("an appending task panicked")??)?;
    }
    let (appends, late, priority) = begun.unwrap_or((Vec::new(), Latency::new()?, None));
    for (index, append) in (0..).zip(appends) {
        let (durable, seen) = runtime.block_on(append).context("an append panicked")??;
        tally.add(schedule.due(index), durable, seen, window);
    }
    let timers_late = timers.map(|timers| timers.stop(&runtime)).transpose()?;
    drop(runtime);
    let is_base = appender.is_none();
    if let Some(appender) = appender {
        Arc::into_inner(appender).context("an append is still running")?.close(tally.appends)?;
    }
    let (seconds, cpu_seconds) = (cost.seconds, cost.cpu_seconds);
    let records = tally.in_time * work.batch_records as u64;
    let figure = |is_known: bool, value: f64| is_known.then_some(value / seconds);
    let without: &[&str] = match (is_base, work.load) {
        (true, _) => &[metric::APPENDS_PER_S, metric::CPU_US_PER_APPEND],
        (_, Load::None) => &[],
        // This would include the load's own time.
        _ => &[metric::CPU_US_PER_APPEND],
    };
    let mut outcome = Outcome::new(cost, tally.in_time, records * work.record_bytes as u64, Latency::new()?)
        .figure(metric::RECORDS_PER_S, figure(work.batch_records > 1 && !is_base, records as f64))
        .figure(metric::WORK_PER_S, figure(work.load == Load::Cpu, sorted as f64))
        // Without appends, the timer tasks show their own cost.
        .figure(metric::TIMERS_CPU_SHARE, figure(is_base && timers_late.is_some(), cpu_seconds))
        .without(without)
        .timers(timers_late);
    for (name, times) in [("durable", tally.durable), ("seen", tally.seen), ("late", late)] {
        outcome.times(name, times);
    }
    outcome.found.extend(priority.map(|priority| ("source_priority".to_owned(), priority.into())));
    Ok(outcome)
}

/// Latencies of a group of appends.
struct Tally {
    durable: Latency,
    seen: Latency,
    appends: u64,
    /// Appends that started and ended within the window.
    in_time: u64,
}

impl Tally {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { durable: Latency::new()?, seen: Latency::new()?, appends: 0, in_time: 0 })
    }

    /// Adds an append that counts from `from`, if that is within the window.
    fn add(&mut self, from: Instant, durable: Instant, seen: Instant, window: Window) {
        self.appends += 1;
        if from < window.0 {
            return;
        }
        self.durable.record(durable.saturating_duration_since(from));
        self.seen.record(seen.saturating_duration_since(from));
        self.in_time += u64::from(seen <= window.1);
    }

    fn merge(&mut self, part: &Self) -> anyhow::Result<()> {
        self.appends += part.appends;
        self.in_time += part.in_time;
        self.durable.add(&part.durable)?;
        self.seen.add(&part.seen)
    }
}

/// Runs a task of the closed loop.
async fn append_again(appender: Arc<Appender>, lane: usize, window: Window) -> anyhow::Result<Tally> {
    let mut tally = Tally::new()?;
    let mut from = Instant::now();
    // An append that lasts longer than the whole sample is measured, too.
    while from < window.1 || tally.durable.count() == 0 {
        let durable = appender.append(lane).await?;
        let seen = Instant::now();
        tally.add(from, durable, seen, window);
        from = seen;
    }
    Ok(tally)
}

/// The due times of an open loop: those of the warm-up, then the measured times. A closed loop has one measured period.
#[derive(Debug, Clone, Copy)]
struct Schedule {
    begins: Instant,
    period: Duration,
    warm: u32,
    total: u32,
}

/// An append in a task; its result is when the records were durable, and when the task was notified.
type Append = JoinHandle<anyhow::Result<(Instant, Instant)>>;

impl Schedule {
    fn new(workload: Workload, seconds: f64) -> Self {
        let now = Instant::now();
        let Workload::Open { rate_per_s } = workload else {
            return Self { begins: now + WARM, period: Duration::from_secs_f64(seconds), warm: 0, total: 1 };
        };
        let of = |seconds: f64| (seconds * f64::from(rate_per_s)).ceil().max(1.0) as u32;
        let warm = of(WARM.as_secs_f64());
        let begins = now + Duration::from_millis(5);
        Self { begins, period: Duration::from_secs(1) / rate_per_s.max(1), warm, total: warm + of(seconds) }
    }

    /// Returns the due time of number `index`, independent of earlier delays.
    fn due(&self, index: u32) -> Instant {
        self.begins + self.period * index
    }

    fn window(&self) -> Window {
        (self.due(self.warm), self.due(self.total))
    }

    /// Starts each append at its time, and passes it to a task. The calling thread plays the network, whose packets arrive even if
    /// the processors are busy. Returns also how late appends were started, and the thread's priority.
    fn run(
        &self,
        runtime: &Handle,
        appender: &Appender,
        workload: Workload,
    ) -> anyhow::Result<(Vec<Append>, Latency, Option<&'static str>)> {
        let priority = raise_priority();
        let _runtime = runtime.enter();
        let (mut appends, mut late) = (Vec::with_capacity(self.total as usize), Latency::new()?);
        for index in 0..self.total {
            sleep_until(self.due(index));
            if index >= self.warm {
                late.record(self.due(index).elapsed());
            }
            let mut appending = appender.append(index as usize % workload.lanes());
            let mut early = None;
            if appender.begins_anywhere()
                && let Poll::Ready(durable) = appending.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                early = Some(durable);
            }
            appends.push(runtime.spawn(async move {
                let durable = match early {
                    Some(durable) => durable?,
                    None => appending.await?,
                };
                Ok((durable, Instant::now()))
            }));
        }
        Ok((appends, late, Some(priority)))
    }
}

/// Raises the calling thread to the highest scheduling priority allowed, and returns a description of it. Threads that it starts,
/// such as a runtime's blocking threads, have the default priority.
fn raise_priority() -> &'static str {
    if set_scheduling(libc::SCHED_FIFO, 1, 0).is_ok() {
        return "SCHED_FIFO 1";
    }
    // Real-time threads have no such slack.
    minimise_timer_slack();
    if set_scheduling(libc::SCHED_OTHER, 0, 100_000).is_ok() {
        return "a time slice of 100 us";
    }
    "default"
}

fn set_scheduling(policy: libc::c_int, priority: u32, slice_ns: u64) -> io::Result<()> {
    const RESET_ON_FORK: u64 = 1;
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy as u32,
        sched_flags: RESET_ON_FORK,
        sched_nice: 0,
        sched_priority: priority,
        sched_runtime: slice_ns,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads `size` bytes of a struct that lives until the call returns; 0 is the calling
    // thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Starts the tasks of the load `cpu`, which sort until their runtime ends, and returns the number of vectors sorted so far.
fn sort(runtime: &Handle, work: &Work, seed: u64) -> Arc<AtomicU64> {
    let sorted = Arc::new(AtomicU64::new(0));
    let tasks = if work.load == Load::Cpu { work.workers * TASKS_PER_WORKER } else { 0 };
    for task in 0..tasks as u64 {
        let (mut words, sorted) = (SplitMix::new(seed ^ task), Arc::clone(&sorted));
        runtime.spawn(async move {
            let unsorted: Vec<u64> = (0..SORTED).map(|_| words.next_u64()).collect();
            let mut vector = unsorted.clone();
            loop {
                vector.copy_from_slice(&unsorted);
                vector.sort_unstable();
                black_box(&vector);
                sorted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::super::tests::work;
    use super::*;

    #[test]
    fn sorting_is_counted_and_ends() {
        let runtime = runtime(3, true).expect("threads can be started");
        let busy = Work { workers: 3, load: Load::Cpu, ..work() };
        let sorting = sort(runtime.handle(), &busy, 1);
        while sorting.load(Ordering::Relaxed) < 10 {
            std::thread::yield_now();
        }
        drop(runtime);
        assert_eq!(Arc::strong_count(&sorting), 1, "a task still sorts");
    }

    #[test]
    fn due_times_do_not_depend_on_late_appends() {
        let schedule = Schedule::new(Workload::Open { rate_per_s: 500 }, 1.0);
        assert_eq!(schedule.due(500) - schedule.due(0), Duration::from_secs(1));
        assert_eq!(schedule.window().1 - schedule.window().0, Duration::from_secs(1));
        sleep_until(schedule.due(2));
        assert!(Instant::now() >= schedule.due(2));
    }

    #[test]
    fn a_thread_started_by_a_punctual_one_is_an_ordinary_one() {
        let policy = || {
            // SAFETY: 0 is the calling thread; the call has no pointers.
            unsafe { libc::sched_getscheduler(0) }
        };
        let ordinary = policy();
        let inherited = std::thread::spawn(move || {
            let how = raise_priority();
            assert!(how == "default" || policy() != ordinary || how.contains("slice"), "{how}");
            std::thread::spawn(policy).join().expect("it does not panic")
        });
        assert_eq!(inherited.join().expect("it does not panic"), libc::SCHED_OTHER);
    }
}
