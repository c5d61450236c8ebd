//! Interference with other tasks: a thousand timer tasks on a runtime, the lateness of each of their wake-ups, and sentences on
//! the rows that cause it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;

use crate::backend::locked;
use crate::experiment::{Outcome, once};
use crate::latency::Latency;
use forebay_report::page::noise::{Difference, difference};
use forebay_report::result::{Experiment, Row, metric};
use forebay_report::units::{number, time};

/// Number of tasks; each waits for its next due time, again and again.
pub(super) const TASKS: u32 = 1_000;
/// Interval between two due times of a task. The due times of all tasks are spread evenly: ten in each
/// millisecond. A thousand tasks that each wake every millisecond would need a processor for themselves.
pub(super) const PERIOD: Duration = Duration::from_millis(100);
/// Number of histograms; with several, workers seldom write to the same one.
const SHARES: usize = 16;

/// Describes the method in words.
pub(super) fn method() -> String {
    format!(
        "Beside it {TASKS} tasks sleep, {} due each millisecond; lateness is how much later each wakes. Tokio's grain is 1 ms: \
         the row without other work is the baseline.",
        u128::from(TASKS) / PERIOD.as_millis()
    )
}

/// Running timer tasks; the runtime needs its time driver.
#[derive(Debug)]
pub(super) struct Timers {
    shared: Arc<LatenessTally>,
    tasks: Vec<JoinHandle<()>>,
}

/// The tally of the lateness, which all tasks share.
#[derive(Debug)]
struct LatenessTally {
    base: Instant,
    /// Due times before this time do not count; nanoseconds after `base`.
    from_ns: AtomicU64,
    /// Due times from this time on do not count either, and the tasks end.
    until_ns: AtomicU64,
    late: Vec<Mutex<Latency>>,
}

impl Timers {
    /// Starts the tasks. Nothing counts before [`count_between`](Self::count_between).
    ///
    /// # Errors
    /// Memory for the counters is missing.
    pub(super) fn start(runtime: &Handle) -> anyhow::Result<Self> {
        let late = (0..SHARES).map(|_| Ok(Mutex::new(Latency::new()?))).collect::<anyhow::Result<_>>()?;
        let (from_ns, until_ns) = (AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX));
        let shared = Arc::new(LatenessTally { base: Instant::now(), from_ns, until_ns, late });
        let tasks = (0..TASKS).map(|task| runtime.spawn(wait_again(task, Arc::clone(&shared)))).collect();
        Ok(Self { shared, tasks })
    }

    /// Counts the due times between these two, regardless of when a thread gets its turn to start or stop.
    pub(super) fn count_between(&self, (from, until): (Instant, Instant)) {
        let after_base = |at: Instant| at.saturating_duration_since(self.shared.base).as_nanos() as u64;
        self.shared.until_ns.store(after_base(until), Ordering::Relaxed);
        self.shared.from_ns.store(after_base(from), Ordering::Relaxed);
    }

    /// Returns the lateness of all due times. Waits for the tasks, at most a period unless they are
    /// later than that.
    ///
    /// # Errors
    /// A task panicked.
    pub(super) fn stop(self, runtime: &Runtime) -> anyhow::Result<Latency> {
        let now_ns = self.shared.base.elapsed().as_nanos() as u64;
        self.shared.until_ns.fetch_min(now_ns, Ordering::Relaxed);
        for task in self.tasks {
            runtime.block_on(task).context("a timer task panicked")?;
        }
        let mut all = Latency::new()?;
        for share in &self.shared.late {
            all.add(&locked(share))?;
        }
        Ok(all)
    }
}

/// Waits for the due times of a task. A missed one does not move those after it, and each counts
/// with its own lateness.
async fn wait_again(task: u32, shared: Arc<LatenessTally>) {
    let period_ns = PERIOD.as_nanos() as u64;
    let mut due_ns = period_ns * u64::from(task) / u64::from(TASKS);
    while due_ns < shared.until_ns.load(Ordering::Relaxed) {
        let due = shared.base + Duration::from_nanos(due_ns);
        tokio::time::sleep_until(due.into()).await;
        let now = Instant::now();
        let counts = shared.from_ns.load(Ordering::Relaxed) <= due_ns
            && due_ns < shared.until_ns.load(Ordering::Relaxed);
        if counts {
            let share = &shared.late[task as usize % SHARES];
            locked(share).record(now.saturating_duration_since(due));
        }
        due_ns += period_ns;
    }
}

impl Outcome {
    /// Adds the lateness of the timer tasks.
    pub(super) fn timers(mut self, late: Option<Latency>) -> Self {
        let Some(late) = late else { return self };
        let p99_9 = late.quantile_us(0.999);
        self.times("timers_late", late);
        // The only one of the percentiles without a column.
        self.figure(metric::TIMERS_LATE[2], p99_9)
    }
}

const P99: &str = metric::TIMERS_LATE[1];

/// Returns a note on the cost of the timer tasks themselves, from the row without any other work. It
/// is a note, because all rows alike pay for their processor time.
pub(super) fn own_cost(table: &Experiment, alone: &str) -> Option<String> {
    let row = table.row(alone)?;
    let share = row.metrics.get(metric::TIMERS_CPU_SHARE)?;
    Some(format!(
        "the timer tasks take {} % of one processor by themselves, beside all rows alike; their p99 lateness is then {} \
         (`{alone}`)",
        number(share * 100.0),
        time(row.metrics.get(P99)?)
    ))
}

/// Returns sentences on the rows of a table that delay the timers beyond noise, and on those that do not. `load` names the
/// concurrent work.
pub(super) fn verdicts(table: &Experiment, alone: &str, load: &str) -> Vec<String> {
    let Some(base) = table.row(alone).filter(|row| row.skipped.is_none()) else { return Vec::new() };
    let Some(calm) = base.metrics.get(P99) else { return Vec::new() };
    let (mut later, mut same) = (Vec::new(), Vec::new());
    for row in table.rows.iter().filter(|row| row.name != alone && row.skipped.is_none()) {
        match difference(row, base, P99) {
            Some(Difference::More(times)) => later.push((times, row)),
            Some(_) => same.push(row),
            None => {}
        }
    }
    later.sort_by(|a, b| b.0.total_cmp(&a.0));
    let names = |rows: &[&Row]| {
        let names: Vec<String> = rows.iter().map(|row| format!("`{}`", row.name)).collect();
        names.join(", ")
    };
    let mut sentences = Vec::new();
    if let [(times, worst), rest @ ..] = later.as_slice() {
        let late = worst.metrics.get(P99).map_or_else(String::new, time);
        sentences.push(format!(
            "{load}: `{}` wakes timers {} times later, p99 {late} against {} alone{}",
            worst.name,
            number(*times),
            time(calm),
            once(&[base])
        ));
        let rest: Vec<&Row> = rest.iter().map(|(_, row)| *row).collect();
        if !rest.is_empty() {
            sentences.push(format!("{load}: timers wake later beside {}, too", names(&rest)));
        }
    }
    if !same.is_empty() {
        let alone = if later.is_empty() { format!(" (p99 {})", time(calm)) } else { String::new() };
        sentences.push(format!("{load}: timers wake no later beside {}{alone}", names(&same)));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::runtime::Builder;

    use super::*;
    use crate::lanes::test_row;

    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a thread")
    }

    /// Keeps the only worker busy until the sender is dropped. A window that starts and is set meanwhile has all of its times, even
    /// if the test's thread sets it late.
    fn held(runtime: &Runtime) -> mpsc::Sender<()> {
        let ((release, released), (begins, begun)) = (mpsc::channel::<()>(), mpsc::channel());
        runtime.spawn(async move {
            begins.send(()).expect("the test waits");
            // It fails once the sender is dropped.
            let _ = released.recv();
        });
        begun.recv().expect("the worker has its turn");
        release
    }

    #[test]
    fn each_time_within_the_window_counts_once() {
        let runtime = runtime();
        let timers = Timers::start(runtime.handle()).expect("some kilobytes");
        let held = held(&runtime);
        let now = Instant::now();
        timers.count_between((now, now + Duration::from_millis(150)));
        drop(held);
        std::thread::sleep(Duration::from_millis(150));
        let window = [&timers.shared.from_ns, &timers.shared.until_ns].map(|at| at.load(Ordering::Relaxed));
        let late = timers.stop(&runtime).expect("no task panicked");
        // Each such interval has one due time, for any schedule of the machine.
        let apart_ns = PERIOD.as_nanos() as u64 / u64::from(TASKS);
        let expected = window[1].div_ceil(apart_ns) - window[0].div_ceil(apart_ns);
        assert_eq!(late.count(), expected);
    }

    /// Regression: the measuring thread set the window's start when it woke. On a busy machine that was after the window's end, no
    /// time counted, and the sample's lateness was missing.
    #[test]
    fn a_planned_window_counts_although_the_measuring_thread_wakes_after_it() {
        let runtime = runtime();
        let timers = Timers::start(runtime.handle()).expect("some kilobytes");
        let held = held(&runtime);
        let begins = Instant::now() + Duration::from_millis(20);
        timers.count_between((begins, begins + Duration::from_millis(50)));
        drop(held);
        // The measuring thread resumes after the end.
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(150)).await });
        let late = timers.stop(&runtime).expect("no task panicked");
        assert_eq!(late.count(), 500);
    }

    /// The purpose of the experiment: a task that blocks a worker delays the others, and all of them show it.
    #[test]
    fn a_worker_that_is_blocked_is_seen_in_the_times_of_the_others() {
        let runtime = runtime();
        let timers = Timers::start(runtime.handle()).expect("some kilobytes");
        let blocked = held(&runtime);
        let now = Instant::now();
        timers.count_between((now, now + Duration::from_millis(300)));
        std::thread::sleep(Duration::from_millis(300));
        drop(blocked);
        let late = timers.stop(&runtime).expect("no task panicked");
        let half = late.quantile_us(0.5).expect("some were due");
        assert!(half > 50_000.0, "half were up to {half} us late");
        assert!(late.count() > 1_000, "a task's time that is missed counts, too: {}", late.count());
    }

    #[test]
    fn uncounted_times_are_none() {
        let runtime = runtime();
        let timers = Timers::start(runtime.handle()).expect("some kilobytes");
        let late = timers.stop(&runtime).expect("no task panicked");
        assert_eq!(late.count(), 0);
    }

    fn row(name: &str, p99_us: f64) -> Row {
        test_row(name, &[0.99, 1.0, 1.01], &[(P99, p99_us)])
    }

    fn of(rows: Vec<Row>) -> Vec<String> {
        verdicts(&Experiment::new("wal", "").with_rows(rows), "nothing", "500 appends/s")
    }

    #[test]
    fn interference_is_reported_of_the_rows_that_cause_it_only() {
        let rows = vec![row("nothing", 1100.0), row("calm", 1105.0), row("loud", 4400.0), row("bad", 2200.0)];
        assert_eq!(
            of(rows),
            [
                "500 appends/s: `loud` wakes timers 4 times later, p99 4.40 ms against 1.10 ms alone",
                "500 appends/s: timers wake later beside `bad`, too",
                "500 appends/s: timers wake no later beside `calm`",
            ]
        );
        let calm = of(vec![row("nothing", 1100.0), row("calm", 1105.0)]);
        assert_eq!(calm, ["500 appends/s: timers wake no later beside `calm` (p99 1.10 ms)"]);
        // Without the baseline row no claim is made.
        assert!(of(vec![row("loud", 4400.0)]).is_empty() && of(vec![row("nothing", 1100.0)]).is_empty());
    }

    #[test]
    fn the_cost_of_the_timers_is_reported_where_it_was_measured() {
        let mut alone = row("nothing", 1100.0);
        alone.metrics.set(metric::TIMERS_CPU_SHARE, 0.025);
        let table = Experiment::new("wal", "").with_rows([alone]);
        let note = own_cost(&table, "nothing").expect("measured");
        assert!(note.contains("2.50 % of one processor") && note.contains("is then 1.10 ms"), "{note}");
        assert_eq!(own_cost(&table, "other"), None);
    }
}
