//! One sample: the runtime with its load, one row, one workload.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::runtime::{Handle, Runtime};

use super::super::gauge::Gauge;
use super::super::interleave::Evidence;
use super::super::latency::Latency;
use super::super::timers::{self, Timers};
use super::appender::Appender;
use super::job::{Load, Times, WalResult, WalRow, WalWork, Workload};
use super::load::{Working, runtime};
use super::source::{Schedule, raise_priority, sleep_until};
use super::{log, peers, published, store};

/// Warm-up, not measured: threads and files are used for the first time.
const WARM: Duration = Duration::from_millis(100);
/// Limit for the last completions of an open loop; a row that needs longer is overloaded.
const COMPLETIONS_WITHIN: Duration = Duration::from_secs(30);

/// Runs the sample with files in `directory` and returns its result.
///
/// # Errors
/// The row failed, lost an acknowledged append, or did not complete in time.
pub(crate) fn sample(
    directory: &Path,
    device_stat: Option<&Path>,
    work: &WalWork,
) -> anyhow::Result<WalResult> {
    // Before the runtime starts: the engine's threads must not inherit the scheduling of the runtime's workers.
    let appender = match (work.row, work.row.way()) {
        (WalRow::NoAppends, _) => None,
        _ if work.as_published => Some(published::open(directory, work)?),
        (row, Some(way)) if row.is_store() => Some(store::open(directory, work, way)?),
        (row, _) if row.is_log() => Some(log::open(directory, work)?),
        _ => Some(peers::open(directory, work)?),
    };
    // Flushes the files that earlier samples removed and this one made. Otherwise the file system
    // would write them in the middle of the sample.
    rustix::fs::syncfs(File::open(directory)?)?;
    let runtime = runtime(work.workers, work.row == WalRow::ForebayPrompt, work.load)?;
    let working = Working::start(runtime.handle(), work.load, work.workers, work.seed);
    let timers = (work.load == Load::Timers).then(|| Timers::start(runtime.handle())).transpose()?;
    let beside = Beside { working: &working, timers: timers.as_ref(), device_stat };
    let (mut result, appends) = match (&appender, work.workload) {
        (None, _) => (nothing(work, &beside)?, 0),
        (Some(appender), Workload::Open { rate }) => open_loop(&runtime, &beside, appender, work, rate)?,
        (Some(appender), Workload::Closed { appenders }) => {
            closed_loop(&runtime, &beside, appender, work, appenders)?
        }
    };
    if let Some(timers) = timers {
        let late = timers.stop(&runtime)?;
        result.timers = Times::of(&late);
        result.evidence.times.insert(timers::NAME.to_owned(), late);
    }
    working.stop(&runtime)?;
    drop(runtime);
    result.workers = work.workers;
    if let Some(appender) = appender {
        result.degraded = appender.degraded();
        appender.close(appends)?;
    }
    Ok(result)
}

/// Measurements beside the appends.
struct Beside<'a> {
    working: &'a Working,
    timers: Option<&'a Timers>,
    device_stat: Option<&'a Path>,
}

impl Beside<'_> {
    /// Counts the timers that are due within the planned window. On a busy machine the measuring thread may wake
    /// when the window is over; counted from then on, no timer was due, and the sample had no lateness.
    fn count_timers(&self, window: (Instant, Instant)) {
        if let Some(timers) = self.timers {
            timers.count_between(window);
        }
    }
}

/// Counters of a period.
struct Window {
    gauge: Gauge,
    work: u64,
}

impl Window {
    fn open(beside: &Beside<'_>) -> std::io::Result<Self> {
        let gauge = Gauge::start(beside.device_stat)?;
        Ok(Self { gauge, work: beside.working.done() })
    }

    /// Restarts the counters now.
    fn begin_again(&mut self, beside: &Beside<'_>) -> std::io::Result<()> {
        self.work = beside.working.done();
        self.gauge.begin_again()
    }

    fn close(self, beside: &Beside<'_>) -> std::io::Result<WalResult> {
        let work = beside.working.done() - self.work;
        let cost = self.gauge.stop()?;
        let evidence = Evidence { counter_deltas: cost.counter_deltas, ..Evidence::default() };
        let (seconds, cpu_seconds) = (cost.seconds, cost.cpu_seconds);
        Ok(WalResult { seconds, cpu_seconds, work, evidence, ..WalResult::default() })
    }
}

fn nothing(work: &WalWork, beside: &Beside<'_>) -> anyhow::Result<WalResult> {
    let begins = Instant::now() + WARM;
    let window = (begins, begins + Duration::from_secs_f64(work.seconds));
    beside.count_timers(window);
    sleep_until(window.0);
    let counted = Window::open(beside)?;
    sleep_until(window.1);
    Ok(counted.close(beside)?)
}

/// Latencies of a group of appends.
struct Tally {
    durable: Latency,
    seen: Latency,
    appends: u64,
    in_time: u64,
}

impl Tally {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { durable: Latency::new()?, seen: Latency::new()?, appends: 0, in_time: 0 })
    }

    /// Adds an append that counts from `from`, if that is within the window.
    fn add(&mut self, from: Instant, durable: Instant, seen: Instant, window: (Instant, Instant)) {
        self.appends += 1;
        if from < window.0 {
            return;
        }
        self.durable.record(durable.saturating_duration_since(from));
        self.seen.record(seen.saturating_duration_since(from));
        self.in_time += u64::from(seen <= window.1);
    }

    fn put(self, result: &mut WalResult) {
        result.appends = self.in_time;
        result.durable = Times::of(&self.durable);
        result.seen = Times::of(&self.seen);
        let times = [("durable", self.durable), ("seen", self.seen)];
        result.evidence.times.extend(times.map(|(name, latency)| (name.to_owned(), latency)));
    }
}

/// Runs the closed loop: each appender is a task of the loaded runtime.
fn closed_loop(
    runtime: &Runtime,
    beside: &Beside<'_>,
    appender: &Arc<dyn Appender>,
    work: &WalWork,
    appenders: usize,
) -> anyhow::Result<(WalResult, u64)> {
    let begins = Instant::now() + WARM;
    let window = (begins, begins + Duration::from_secs_f64(work.seconds));
    beside.count_timers(window);
    let lanes: Vec<_> = (0..appenders)
        .map(|lane| {
            let appender = Arc::clone(appender);
            runtime.spawn(async move {
                let mut tally = Tally::new()?;
                let mut from = Instant::now();
                // An append that takes longer than the whole sample is measured, too.
                while from < window.1 || tally.durable.count() == 0 {
                    let durable = appender.append(lane).await?;
                    let seen = Instant::now();
                    tally.add(from, durable, seen, window);
                    from = seen;
                }
                anyhow::Ok(tally)
            })
        })
        .collect();
    sleep_until(window.0);
    let counted = Window::open(beside)?;
    sleep_until(window.1);
    let mut result = counted.close(beside)?;
    let mut all = Tally::new()?;
    for lane in lanes {
        let part = runtime.block_on(lane).context("an appending task panicked")??;
        all.durable.add(&part.durable)?;
        all.seen.add(&part.seen)?;
        all.appends += part.appends;
        all.in_time += part.in_time;
    }
    let appends = all.appends;
    all.put(&mut result);
    Ok((result, appends))
}

/// The outcome of one append: its number, the time when it was durable, and the time when its task was
/// notified.
type Completion = (u32, anyhow::Result<(Instant, Instant)>);

/// Runs the open loop: a separate thread begins each append at its time, and a task of the loaded
/// runtime awaits it.
fn open_loop(
    runtime: &Runtime,
    beside: &Beside<'_>,
    appender: &Arc<dyn Appender>,
    work: &WalWork,
    rate: u32,
) -> anyhow::Result<(WalResult, u64)> {
    let warm = (WARM.as_secs_f64() * f64::from(rate)).ceil() as u32;
    let total = warm + (work.seconds * f64::from(rate)).ceil().max(1.0) as u32;
    let schedule = Schedule::new(rate);
    let window = (schedule.due(warm), schedule.due(total));
    beside.count_timers(window);
    let (sender, completions) = mpsc::channel();
    let (handle, lanes) = (runtime.handle(), work.workload.lanes());
    let (mut result, late, source) = std::thread::scope(|scope| {
        let source = scope.spawn(move || {
            let source = raise_priority();
            let _runtime = handle.enter();
            let mut late = Latency::new()?;
            let mut counted = None;
            for index in 0..total {
                if index == warm {
                    counted = Some(Window::open(beside)?);
                }
                sleep_until(schedule.due(index));
                if let Some(window) = counted.as_mut().filter(|_| index == warm) {
                    window.begin_again(beside)?;
                }
                let now = Instant::now();
                if index >= warm {
                    late.record(now.saturating_duration_since(schedule.due(index)));
                }
                begin(handle, appender, index, lanes, &sender);
            }
            sleep_until(window.1);
            let result = counted.context("something was measured")?.close(beside)?;
            anyhow::Ok((result, late, source))
        });
        source.join().ok().context("the thread with the appends panicked")?
    })?;
    let mut tally = Tally::new()?;
    let deadline = Instant::now() + COMPLETIONS_WITHIN;
    for _ in 0..total {
        let left = deadline.saturating_duration_since(Instant::now());
        let (index, completion): Completion = completions.recv_timeout(left).with_context(|| {
            format!("not all of {total} appends completed within {} s", COMPLETIONS_WITHIN.as_secs())
        })?;
        let (durable, seen) = completion?;
        tally.add(schedule.due(index), durable, seen, window);
    }
    let appends = tally.appends;
    tally.put(&mut result);
    result.late = Times::of(&late);
    result.evidence.times.insert("late".to_owned(), late);
    result.source = Some(source.to_owned());
    Ok((result, appends))
}

/// Begins an append, on this thread where the row allows it, and passes it to a task.
fn begin(
    handle: &Handle,
    appender: &Arc<dyn Appender>,
    index: u32,
    lanes: usize,
    completions: &mpsc::Sender<Completion>,
) {
    let mut appending = appender.append(index as usize % lanes);
    let mut early = None;
    if appender.begins_anywhere()
        && let Poll::Ready(durable) = appending.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    {
        early = Some(durable);
    }
    let completions = completions.clone();
    handle.spawn(async move {
        let durable = match early {
            Some(durable) => durable,
            None => appending.await,
        };
        // The receiver is gone only after an error, which is reported.
        let _ = completions.send((index, durable.map(|durable| (durable, Instant::now()))));
    });
}

#[cfg(test)]
mod tests {
    use super::super::job::{FlushChoice, Load};
    use super::*;
    use crate::cleanup::Cleanup;

    fn work(row: WalRow, workload: Workload) -> WalWork {
        WalWork {
            row,
            workload,
            load: Load::Cpu,
            workers: 2,
            seconds: 0.05,
            record_bytes: 256,
            batch: if WalRow::BATCHES.contains(&row) { 10 } else { 1 },
            file_bytes: 1 << 20,
            as_published: false,
            flush: FlushChoice::default(),
            seed: 3,
        }
    }

    #[test]
    fn every_row_makes_records_durable_and_finds_them_again() {
        let cleanup = Cleanup::default();
        let workloads = [Workload::Open { rate: 200 }, Workload::Closed { appenders: 3 }];
        for row in WalRow::APPENDS.into_iter().chain(WalRow::BATCHES) {
            for workload in workloads {
                let beside = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
                let directory = cleanup.temp_directory(beside, "run").expect("writable");
                let result = sample(directory.path(), None, &work(row, workload))
                    .unwrap_or_else(|error| panic!("{row:?} {workload:?}: {error:#}"));
                let (durable, seen) = (result.durable.expect("some"), result.seen.expect("some"));
                assert!(durable.p50_us > 0.0 && durable.p50_us <= seen.p50_us * 1.02, "{row:?} {result:?}");
                assert!(seen.p50_us <= seen.p99_us && seen.p99_us <= seen.max_us, "{row:?} {result:?}");
                assert!(result.seconds > 0.0 && result.workers > 0, "{row:?} {result:?}");
                let open = matches!(workload, Workload::Open { .. });
                assert_eq!((result.late.is_some(), result.source.is_some()), (open, open));
            }
        }
    }

    #[test]
    fn the_row_without_appends_has_none() {
        let result = sample(Path::new("/"), None, &work(WalRow::NoAppends, Workload::Open { rate: 9 }))
            .expect("no file");
        assert_eq!((result.appends, result.durable), (0, None));
    }
}
