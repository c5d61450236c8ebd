//! `measure wal`: durable appends from a Tokio runtime that has nothing else to do, and from one whose workers compute; and
//! `measure blocking`: batches into the log and the store, from tasks that block, that hand the call over, or that await.
//!
//! [`ways`] are the rows, [`sample`] runs one with a load and a schedule, [`verdicts`] has the sentences and the limits.

use std::fs::File;

use crate::backing_device::device_stat;
use crate::extents::Extents;
use crate::gates::processors;
use crate::options::Length;
use crate::preconditions::Preconditions;
use crate::prelude::*;
use crate::test_file::check_space;
use crate::timers;
use crate::units::show_bytes;
use forebay_report::result::columns::Definition;
use forebay_report::result::targets::{Beside, Ratio, Targets};
use sample::{Load, SORTED, TASKS_PER_WORKER, Work, Workload};

mod sample;
mod verdicts;
mod ways;

/// One of the two experiments, with its options, its rows and its numbers.
#[derive(Debug)]
pub(crate) struct Appends(&'static Spec);

/// `measure wal`.
pub(crate) static WAL: Appends = Appends(&WAL_SPEC);

static WAL_SPEC: Spec = Spec {
    name: "wal",
    about: "Make records durable from a Tokio runtime, idle and busy, in several ways",
    quick_seconds: 9,
    full_seconds: 405,
    needs_directory: true,
    options: &[
        LOAD.or("none,cpu,timers").quick("none,cpu"),
        Opt::word(
            "loop",
            "Only appends at fixed times, or only appenders that wait for each append",
            &["open", "closed"],
        )
        .or("open,closed"),
        Opt::count("rate", "Appends a second of the open loop", 100_000).or("500"),
        Opt::count("appenders", "Appenders of the closed loops", 4096).list().or("64,1").quick("64"),
        THREADS,
        RECORD,
        Opt::seconds("2", "0.5"),
        Opt::repeats("3").quick("1"),
        Opt::word("flush", "How the log's rows wait for the device", &["queued", "blocking", "when-alone"])
            .or("when-alone"),
        Opt::flag(
            "as-published",
            "Count as published benchmarks do: each append makes a file of its own and removes it",
        ),
        Opt::flag(
            "check",
            "Compare the figures with the project's limits; the exit code is 1 when one is missed",
        ),
    ],
    ways: &[
        WITHOUT,
        Way::cached(
            "tokio-fs",
            "tokio::fs::File: write_all and flush under a lock, then sync_data beside the others' on a handle of its own",
        ),
        Way::cached("std-in-task", "pwrite and fdatasync in the task itself, whose worker waits meanwhile"),
        Way::cached(
            "std-thread",
            "one std thread that takes what waits in a channel, writes it together, flushes once and replies through oneshots",
        ),
        Way::cached("spawn-blocking", "pwrite and fdatasync in a spawn_blocking of each append"),
        Way::cached("own-runtime", "as tokio-fs, in a second Tokio runtime with as many workers"),
        Way::direct("forebay", "Forebay's log on one shard, default priority"),
        Way::direct(
            "forebay-prompt",
            "Forebay's log, Priority::Prompt, the runtime's workers polite (forebay::polite_worker)",
        ),
        Way::direct("forebay-realtime", "Forebay's log, Priority::RealTime"),
    ],
    columns: COLUMNS,
    compared: metric::DURABLE[1],
    charts: CHARTS,
    axis: AXIS,
    role: Role::Other,
    gains: || {
        vec![Gain::new(
            metric::DURABLE[1],
            false,
            &["tokio-fs", "spawn-blocking"],
            &["std-thread", "own-runtime", "forebay", "forebay-prompt", "forebay-realtime"],
            "µs until 99 of 100 appends are durable",
            "Take durable appends off the runtime",
        )]
    },
};

/// `measure blocking`.
pub(crate) static BLOCKING: Appends = Appends(&BLOCKING_SPEC);

static BLOCKING_SPEC: Spec = Spec {
    name: "blocking",
    about: "Append batches to the log and the store from tasks that block, that use spawn_blocking, or that await",
    quick_seconds: 6,
    full_seconds: 50,
    needs_directory: true,
    options: &[
        LOAD.or("none,cpu").quick("none"),
        Opt::count("callers", "Tasks that append one batch after the other", 256).list().or("1,8").quick("1"),
        THREADS,
        Opt::count("batch", "Records of a batch", 1000).at_least(2).or("100"),
        RECORD,
        Opt::seconds("1", "0.5"),
        Opt::repeats("3").quick("2"),
    ],
    ways: &[
        WITHOUT,
        Way::direct("direct", "append(..).wait() in the task itself, whose worker waits meanwhile"),
        Way::direct("spawn-blocking", "append(..).wait() in a spawn_blocking of each batch"),
        Way::direct("async", "append(..).await in the task"),
        Way::direct(
            "store-direct",
            "the store: write(&batch).wait() in the task itself, whose worker waits meanwhile",
        ),
        Way::direct(
            "store-spawn-blocking",
            "the store: write(&batch).wait() in a spawn_blocking of each batch",
        ),
        Way::direct("store-async", "the store: write(&batch).await in the task"),
    ],
    columns: COLUMNS,
    compared: metric::DURABLE[1],
    charts: CHARTS,
    axis: AXIS,
    role: Role::Other,
    gains: Vec::new,
};

const LOAD: Opt = Opt::word(
    "load",
    "Only with idle workers (none), with workers that compute (cpu), or beside a thousand timer tasks whose lateness is \
     measured (timers)",
    &["none", "cpu", "timers"],
);
const THREADS: Opt = Opt::count("threads", "Threads of the runtime", 1024).list().chosen(
    "one for each processor, and for the most appenders with idle workers also 1 and 4 times as many, unless something \
     else is chosen",
);
const RECORD: Opt = Opt::bytes("record", "Bytes of a record", 8, 65_536).or("256");
const AXIS: Axis = Axis::new("depth", "reads in flight");
/// The baseline for the runtime's other tasks.
const BASE: &str = "no-appends";
const WITHOUT: Way = Way::base(BASE, "no appends: the runtime's other tasks alone");

const CHARTS: &[&str] =
    &[metric::DURABLE[1], metric::SEEN[1], metric::APPENDS_PER_S, metric::WORK_KEPT, metric::TIMERS_LATE[1]];
const COLUMNS: &[Definition] = &[
    columns::APPENDS_PER_S,
    columns::RECORDS_PER_S,
    columns::DURABLE[0],
    columns::DURABLE[1],
    columns::DURABLE[2],
    columns::DURABLE[3],
    columns::SEEN[0],
    columns::SEEN[1],
    columns::SEEN[2],
    columns::SEEN[3],
    columns::LATE_P99_US,
    columns::WORK_PER_S,
    columns::WORK_KEPT,
    columns::TIMERS_LATE[0],
    columns::TIMERS_LATE[1],
    columns::TIMERS_LATE[2],
    columns::TIMERS_CPU_SHARE,
    columns::CPU_US_PER_APPEND,
];

/// Maximum files of a sample: the one that is written through, or the log's segments while it runs.
const FILES_MAX: u64 = 16;

impl Experiment for Appends {
    fn spec(&self) -> &'static Spec {
        self.0
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        if options.given("check") && options.given("as-published") {
            let why = "--check has limits for a log only: leave out --as-published, or --check";
            return Err(Failure::Usage(why.to_owned()).into());
        }
        let scratch = ScratchDir::find(context, self.0.name)?;
        let works = self.works(options);
        check_space(&scratch.directory, self.file_bytes(options), "name a directory with more space")?;
        let device_stat = File::open(&scratch.directory).ok().and_then(|directory| device_stat(&directory));
        let preconditions = Preconditions::of_device(device_stat.as_deref());
        Ok(Box::new(Run { scratch, works, preconditions, context }))
    }

    fn check(&self, tables: &mut [Table]) {
        verdicts::check(tables);
    }

    fn file_bytes(&self, options: &Values) -> u64 {
        self.works(options).first().map_or(0, |work| work.file_bytes * FILES_MAX)
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        sample::sample(job, self.0.way(&job.row)?)
    }

    fn title(&self, table: &Table) -> (String, String) {
        let title = verdicts::title(table);
        (title.clone(), title)
    }

    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        verdicts::verdicts(tables)
    }
}

impl Appends {
    /// Returns the parameters of each table: loops and loads, and other numbers of threads.
    fn works(&self, options: &Values) -> Vec<Work> {
        let (quick, usual) = (options.length == Length::Quick, processors());
        let is_wal = self.0.name == WAL.0.name;
        let appenders = options.counts(if is_wal { "appenders" } else { "callers" });
        let has = |kind: &str| options.words("loop").contains(&kind);
        let work = |workload, load, threads: Option<usize>| Work {
            workload,
            load,
            workers: threads.unwrap_or(usual),
            threads,
            record_bytes: options.count("record") as usize,
            batch_records: options.count("batch").max(1) as usize,
            file_bytes: if quick { 16 << 20 } else { 64 << 20 },
            as_published: options.given("as-published"),
            log_flush: options.words("flush").first().unwrap_or(&"when-alone").to_string(),
        };
        let mut works = Vec::new();
        for word in options.words("load") {
            let load = match word {
                "cpu" => Load::Cpu,
                "timers" => Load::Timers,
                _ => Load::None,
            };
            if is_wal && has("open") {
                let rate_per_s = options.count("rate") as u32;
                works.push(work(Workload::Open { rate_per_s }, load, None));
            }
            // Interference that is only observed needs no second loop, and busy workers need no second loop in a quick report.
            let only_observed = is_wal && load == Load::Timers && !options.given("load");
            let is_long = is_wal && quick && load != Load::None && !options.given("appenders");
            if !is_wal || has("closed") && !only_observed && !is_long {
                let closed = |count: &u64| Workload::Closed { appenders: *count as usize };
                works.extend(appenders.iter().map(|count| work(closed(count), load, None)));
            }
        }
        let chosen = ["load", "loop", "appenders", "callers", "threads", "check"];
        let most = appenders.iter().max().map_or(1, |count| *count as usize);
        if options.length == Length::Full && !chosen.iter().any(|name| options.given(name)) {
            let swept = [1, 4 * usual].into_iter().filter(|threads| *threads != usual);
            works.extend(
                swept.map(|threads| work(Workload::Closed { appenders: most }, Load::None, Some(threads))),
            );
        }
        let threads = options.counts("threads");
        if threads.is_empty() {
            return works;
        }
        let each = |count: &u64| {
            let workers = *count as usize;
            works.iter().map(move |work| Work { workers, threads: Some(workers), ..work.clone() })
        };
        threads.iter().flat_map(each).collect()
    }
}

/// One run: a directory for each sample.
#[derive(Debug)]
struct Run<'a> {
    scratch: ScratchDir,
    works: Vec<Work>,
    preconditions: Preconditions,
    context: &'a Context,
}

impl Plan for Run<'_> {
    fn place(&self) -> Place {
        self.scratch.place_of(&self.preconditions)
    }

    fn settings(&self) -> Vec<Parameters> {
        let of = |work: &Work| {
            let mut all = parameters(json!(work));
            let tasks = match work.load {
                Load::None => return all,
                Load::Cpu => work.workers * TASKS_PER_WORKER,
                Load::Timers => timers::TASKS as usize,
            };
            all.insert("load_tasks".to_owned(), tasks.into());
            if work.load == Load::Cpu {
                all.insert("sorted_numbers".to_owned(), SORTED.into());
            }
            all
        };
        self.works.iter().map(of).collect()
    }

    fn has(&self, setting: &Parameters, way: &Way) -> bool {
        !way.always || setting["load"] != "none"
    }

    /// Files written through, warming up.
    fn extra_seconds(&self) -> f64 {
        0.35
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        let own = self.scratch.temp_directory(self.context, "wal")?;
        job.path = own.path().to_owned();
        // Time enough to write the files through at 20 MB/s, for the slowest disks.
        job.seconds_max += 2.0 * turn.number("file_bytes") / 20e6;
        Ok(Start { held: Some(Box::new(own)), ..job.into() })
    }

    fn ended(&mut self, turn: &Turn<'_>, start: &Start, _: &mut Outcome) -> anyhow::Result<()> {
        // Space that logs and stores of `blocking` prepare ahead is not a fault.
        if !turn.way.always && start.job.experiment == WAL.0.name {
            self.preconditions.set_extents(Extents::of_directory(&start.job.path));
        }
        Ok(())
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        Claim {
            written_bytes: (!turn.way.always).then_some(outcome.bytes),
            busy_on_purpose: turn.text("load") == "cpu",
            ..Claim::default()
        }
    }

    fn cache(&self, setting: &Parameters, way: &Way) -> Option<CacheState> {
        (!way.cached && !setting.contains_key("as_published")).then_some(CacheState::Direct)
    }

    fn method(&self, setting: &Parameters, seconds: f64) -> String {
        let count = |name: &str| setting.get(name).and_then(Value::as_u64).unwrap_or_default();
        let what = match (count("batch_records"), count("record_bytes")) {
            (1, bytes) => format!("a record of {bytes} bytes"),
            (batch, bytes) => format!("a batch of {batch} records of {bytes} bytes"),
        };
        let append = if setting.contains_key("as_published") {
            "as published benchmarks count: a file is made, written, synced (fdatasync) and removed"
                .to_owned()
        } else {
            format!(
                "with fdatasync, to a file or log of {} written through before",
                show_bytes(count("file_bytes"))
            )
        };
        let schedule = if setting["loop"] == "open" {
            let rate = count("rate_per_s");
            format!(
                "{rate} a second are due at fixed times, begun by a thread of its own where the row can; times count from then"
            )
        } else {
            format!("{} task(s) append one after the other; times count from the call", count("appenders"))
        };
        let load = match setting["load"].as_str() {
            Some("cpu") => format!(
                " {} tasks sort; `work kept` is their throughput against the same repeat without appends.",
                count("load_tasks")
            ),
            Some("timers") => format!(" {}", timers::method()),
            _ => String::new(),
        };
        format!(
            "An append is {what}, {append}. {schedule}. `durable` is stamped where the flush ended, `seen` where the \
             task woke.{load} Each sample is a fresh process with {} Tokio workers, {seconds:.2} s after 0.1 s of warming up; \
             its appends are then looked up. Rows take turns; figures are medians of the repeats.",
            count("workers"),
        )
    }

    fn notes(&self, setting: &Parameters) -> Vec<String> {
        let has_peers = setting["batch_records"] == 1 && !setting.contains_key("as_published");
        let reused = "old records are given up as it goes: rows without a log start again at the beginning of their file, \
             and the log reuses its segments";
        has_peers.then(|| reused.to_owned()).into_iter().collect()
    }

    fn finish(&self, setting: &Parameters, table: &mut Table) {
        KEPT.compare(table);
        if setting.contains_key("as_published") {
            for row in table.rows.iter_mut().filter(|row| row.skipped.is_none() && row.name != BASE) {
                row.description = published(&row.name).to_owned();
            }
        }
        table.notes.extend(timers::own_cost(table, BASE));
    }
}

/// Describes a row whose appends make a file each.
fn published(row: &str) -> &'static str {
    match row {
        "std-in-task" => {
            "std's open, write, fdatasync and unlink in the task itself, whose worker waits meanwhile"
        }
        "spawn-blocking" => "the same four calls in a spawn_blocking of each append",
        "std-thread" => "one std thread that makes the same four calls for one append after the other",
        "own-runtime" => "as tokio-fs, in a second Tokio runtime with as many workers",
        "forebay" => "Forebay's open, write, sync, close and remove_file, one shard, default priority",
        "forebay-prompt" => "the same with Priority::Prompt, the runtime's workers polite",
        "forebay-realtime" => "the same with Priority::RealTime",
        _ => "tokio::fs: open, write_all, sync_data and remove_file",
    }
}

/// The share of the runtime's own work that remains, against the row without appends of the same repeat.
const KEPT: Targets = Targets {
    ratios: &[Ratio { name: metric::WORK_KEPT, metric: metric::WORK_PER_S, beside: Beside::Over(&[BASE]) }],
    ..Targets::NONE
};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::lanes::{test_job, test_options, test_row, test_table};
    use super::*;
    use crate::cleanup::Cleanup;

    pub(super) fn work() -> Work {
        Work {
            workload: Workload::Closed { appenders: 3 },
            load: Load::None,
            workers: 2,
            threads: None,
            record_bytes: 256,
            batch_records: 1,
            file_bytes: 1 << 20,
            as_published: false,
            log_flush: "when-alone".to_owned(),
        }
    }

    pub(super) fn job(experiment: &str, row: &str, directory: &Path, work: &Work) -> Job {
        Job { seconds: 0.05, ..test_job(experiment, row, directory, json!(work), 3) }
    }

    /// Runs a sample of every row of both experiments that appends, in both loops.
    fn every_row(seconds: f64, work: &Work, rows: &[&Appends], check: impl Fn(&str, &Outcome)) {
        let cleanup = Cleanup::default();
        for experiment in rows {
            for way in experiment.0.ways.iter().filter(|way| !way.always) {
                for workload in [Workload::Open { rate_per_s: 200 }, Workload::Closed { appenders: 3 }] {
                    let beside = Path::new(env!("CARGO_MANIFEST_DIR"));
                    let directory = cleanup.temp_directory(beside, "run").expect("writable");
                    let batch_records = if experiment.0.name == "blocking" { 10 } else { 1 };
                    let work = Work { workload, batch_records, ..work.clone() };
                    let job = Job { seconds, ..job(experiment.0.name, way.name, directory.path(), &work) };
                    let outcome = experiment
                        .sample(&job)
                        .unwrap_or_else(|error| panic!("{} {workload:?}: {error:#}", way.name));
                    let metrics = outcome.metrics();
                    let value = |name: &str| metrics.get(name).expect("it has times");
                    let [durable, seen] = [metric::DURABLE, metric::SEEN].map(|names| names.map(value));
                    // The task is notified only after a file is removed.
                    assert!(durable[0] > 0.0 && durable[0] <= seen[0] * 1.02, "{} {metrics:?}", way.name);
                    assert!(seen.is_sorted() && outcome.seconds > 0.0, "{} {metrics:?}", way.name);
                    let open = matches!(workload, Workload::Open { .. });
                    let is_late = metrics.get(metric::LATE_P99_US).is_some();
                    assert_eq!((is_late, outcome.found.contains_key("source_priority")), (open, open));
                    check(way.name, &outcome);
                    if work.as_published {
                        let left = std::fs::read_dir(directory.path()).expect("it is there").count();
                        assert_eq!(left, 0, "{} left files", way.name);
                    }
                }
            }
        }
    }

    #[test]
    fn every_row_makes_records_durable_and_finds_them_again() {
        let busy = Work { load: Load::Cpu, ..work() };
        every_row(0.05, &busy, &[&WAL, &BLOCKING], |name, outcome| {
            assert_eq!(outcome.metrics().get(metric::CPU_US_PER_APPEND), None, "{name}: the load is in it");
            assert!(outcome.figures.get(metric::WORK_PER_S).is_some(), "{name}");
        });
    }

    #[test]
    fn every_row_makes_and_removes_a_file_for_each_append_beside_timers() {
        let published = Work { load: Load::Timers, as_published: true, ..work() };
        every_row(0.15, &published, &[&WAL], |name, outcome| {
            let metrics = outcome.metrics();
            let late = metric::TIMERS_LATE.map(|name| metrics.get(name).expect("they were due"));
            assert!(late.is_sorted(), "{name} {late:?}");
        });
    }

    #[test]
    fn the_row_without_appends_has_none() {
        for (load, name) in [(Load::Cpu, metric::WORK_PER_S), (Load::Timers, metric::TIMERS_CPU_SHARE)] {
            let outcome =
                WAL.sample(&job("wal", BASE, Path::new("/"), &Work { load, ..work() })).expect("no file");
            let metrics = outcome.metrics();
            assert!(
                metrics.get(name).is_some() && metrics.get(metric::APPENDS_PER_S).is_none(),
                "{metrics:?}"
            );
            assert_eq!((outcome.operations, metrics.get(metric::DURABLE[0])), (0, None));
        }
    }

    #[test]
    fn processor_time_is_that_of_an_append_without_load_only() {
        let directory = Cleanup::default().temp_directory(&std::env::temp_dir(), "cpu").expect("writable");
        let job = Job { seconds: 0.5, ..job("wal", "std-thread", directory.path(), &work()) };
        let outcome = WAL.sample(&job).expect("a file");
        let metrics = outcome.metrics();
        assert!(metrics.get(metric::CPU_US_PER_APPEND).is_some(), "{metrics:?}");
        assert_eq!(metrics.get(metric::WORK_PER_S), None);
    }

    #[test]
    fn parameters_survive_their_text() {
        for workload in [Workload::Open { rate_per_s: 500 }, Workload::Closed { appenders: 8 }] {
            let work = Work { workload, threads: Some(8), as_published: true, ..work() };
            let mut all = parameters(json!(work));
            all.insert("load_tasks".to_owned(), 4.into());
            assert_eq!(serde_json::from_value::<Work>(all.into()).expect("its own text"), work);
        }
    }

    fn works(experiment: &Appends, length: Length, words: &[&str]) -> Vec<Work> {
        experiment.works(&test_options(experiment.0, length, words))
    }

    #[test]
    fn every_loop_runs_without_and_with_load() {
        assert_eq!(works(&WAL, Length::Report, &[]).len(), 7);
        assert_eq!(works(&WAL, Length::Quick, &[]).len(), 3);
        let swept = works(&WAL, Length::Full, &[]);
        assert!(swept.len() > 7, "1 or 4 times as many threads as processors differ from as many");
        assert!(swept[7..].iter().all(|work| work.threads.is_some() && work.load == Load::None));
        assert_eq!(works(&WAL, Length::Full, &["--check"]).len(), 7, "limits are for the usual number");
        let words = ["--load", "cpu", "--loop", "closed", "--appenders", "7"];
        let only = works(&WAL, Length::Quick, &words);
        let [work] = only.as_slice() else { panic!("{only:?}") };
        assert_eq!((work.workload, work.load), (Workload::Closed { appenders: 7 }, Load::Cpu));
        let threads = works(&WAL, Length::Full, &[&words[..], &["--threads", "1,8"]].concat());
        assert_eq!(threads.iter().map(|work| work.threads).collect::<Vec<_>>(), [Some(1), Some(8)]);
        assert_eq!(works(&BLOCKING, Length::Quick, &[]).len(), 1);
        assert_eq!(works(&BLOCKING, Length::Report, &[]).len(), 4);
        assert!(works(&BLOCKING, Length::Full, &[]).len() > 4);
    }

    #[test]
    fn work_is_compared_within_a_repeat() {
        let row = |name: &str, rates: &[f64]| test_row(name, rates, &[(metric::WORK_PER_S, 1.0)]);
        let rows = vec![row(BASE, &[1000.0, 500.0]), row("forebay", &[900.0, 500.0, 7.0])];
        let mut table = test_table("wal", json!({}), rows);
        KEPT.compare(&mut table);
        let kept = |row: &Row| -> Vec<Option<f64>> {
            row.samples.iter().map(|sample| sample.metrics.get(metric::WORK_KEPT)).collect()
        };
        assert_eq!(kept(&table.rows[0]), [Some(1.0), Some(1.0)]);
        assert_eq!(kept(&table.rows[1]), [Some(0.9), Some(1.0), None]);
        assert_eq!(table.rows[1].metrics.get(metric::WORK_KEPT), Some(0.95));
    }
}
