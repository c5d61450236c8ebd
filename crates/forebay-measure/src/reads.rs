//! `measure reads`: random reads at a depth ([`random`]), by more and more readers ([`saturate`]), by their processor time
//! ([`cpu`]), and while other programs run ([`fairness`]).
//!
//! Here are the plan and the samples of `saturate` and `cpu`: many readers, each with one read in flight. A reader starts its next
//! read as the last one ends (*closed loop*), or starts reads at times that were fixed beforehand (*open loop*).
//! [`backend`](crate::backend) has the ways; a [`reader`] counts in the phases of a sample.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use forebay::Polling;

use crate::backend::{self, Backend, Calls, Setup, Target};
use crate::backing_device::queue_setting;
use crate::commands;
use crate::context;
use crate::fio::FioJob;
use crate::gates::processors;
use crate::io_limit::IoLimit;
use crate::plan::check_memory;
use crate::prelude::*;
use crate::residency::evict;
use crate::units::show_bytes;
use forebay_report::result::columns::Definition;

mod cpu;
mod fairness;
mod random;
mod reader;
mod saturate;
mod system_calls;

pub(crate) use cpu::Cpu;
pub(crate) use fairness::Fairness;
pub(crate) use random::Random;
pub(crate) use saturate::{Saturate, past_saturation};

use reader::{CALLS, Pacer, Phase, Reader, Tally, WARM};
pub use system_calls::CallCounter;

/// The rows of both experiments.
pub(super) const PREAD: Way = Way::direct("pread", "a std thread for each reader, pread with O_DIRECT");
pub(super) const DEFER_TASKRUN: Way = Way::direct(
    "io_uring-defer-taskrun",
    "one thread with a bare ring, registered memory and file, SINGLE_ISSUER and DEFER_TASKRUN",
);
pub(super) const FOREBAY_TOKIO: Way =
    Way::direct("forebay-tokio", "Forebay from tasks of a Tokio runtime, one shard, O_DIRECT");

/// The options of both.
pub(super) const BLOCK: Opt =
    Opt::bytes("block", "Bytes of one read", 4096, 1 << 20).multiple_of(4096).or("4KiB");
pub(super) const SIZE: Opt =
    Opt::bytes("size", "Size of the file, or the part read of an existing one", 1, u64::MAX)
        .or("1GiB")
        .quick("256MiB");

/// The column of [`metric::CPU_SHARE`].
pub(super) const SHARE: Definition = column(
    metric::CPU_SHARE,
    "CPU busy %",
    0.01,
    "processor time as a share of the processors that this way can use: one, or all",
);

/// Returns the back end of a row, if the row exists.
fn backend_of(row: &str) -> Option<Backend> {
    Some(way_of(row)?.0)
}

/// Returns the same with fio's engine and options for the same work, where fio can do it.
fn way_of(row: &str) -> Option<(Backend, &'static str)> {
    let (plain, full) = (Setup::default(), Setup::full());
    Some(match row {
        "buffered" => (Backend::Threads(Calls::Cached), "psync"),
        "pread" | "direct-pread" => (Backend::Threads(Calls::Direct), "psync"),
        "preadv2-hipri" => (Backend::Threads(Calls::Polled), "pvsync2 --hipri"),
        "io_submit" => (Backend::Aio, "libaio"),
        "io_uring" => (Backend::Ring(plain), ""),
        "io_uring-fixed-buffers" => (Backend::Ring(Setup { fixed_buffers: true, ..plain }), ""),
        "io_uring-fixed-files" => (Backend::Ring(Setup { defer_taskrun: false, ..full }), ""),
        // Since 3.33 fio sets up its rings so.
        "io_uring-defer-taskrun" => (Backend::Ring(full), "io_uring --fixedbufs --registerfiles"),
        "io_uring-sqpoll" => (
            Backend::Ring(Setup { defer_taskrun: false, sqpoll: true, ..full }),
            "io_uring --fixedbufs --registerfiles --sqthread_poll",
        ),
        "io_uring-iopoll" => {
            (Backend::Ring(Setup { iopoll: true, ..full }), "io_uring --fixedbufs --registerfiles --hipri")
        }
        "io_uring-commands" => (Backend::Ring(Setup { iopoll: true, commands: true, ..full }), ""),
        "tokio-fs" => (Backend::TokioFs, ""),
        "spawn-blocking" => (Backend::SpawnBlocking, ""),
        "forebay-shard" => (Backend::Shards(Polling::Off), ""),
        "forebay-polled" => (Backend::Shards(Polling::On), ""),
        "forebay-commands" | "direct-commands" => (Backend::Commands, ""),
        "forebay-tokio" => (Backend::Tokio, ""),
        "direct" => (Backend::Shards(Polling::Off), "io_uring"),
        "direct-polled" => (Backend::Shards(Polling::On), "io_uring --hipri"),
        "direct-tokio" => (Backend::Tokio, "io_uring"),
        _ => return None,
    })
}

/// Returns whether all of the program's part runs on one thread, so that it can use only one processor.
fn is_one_thread(backend: Backend) -> bool {
    match backend {
        Backend::Ring(setup) => !setup.sqpoll,
        Backend::Aio | Backend::Shards(_) | Backend::Commands => true,
        _ => false,
    }
}

/// Prepares the file for random reads.
///
/// # Errors
/// Fails with a [`Failure`] when the path cannot be used, or the file is too small.
fn prepare(options: &Values, context: &Context) -> anyhow::Result<TestFile> {
    const BLOCKS_MIN: u64 = 64;
    let most = options.counts("readers").into_iter().max().unwrap_or(1);
    check_memory("reads in flight", most * options.count("block"), "give a smaller --block or --readers")?;
    let (block_bytes, bytes) = (options.count("block"), options.count("size").next_multiple_of(4096));
    let too_small = |bytes: u64| {
        Failure::Unsuitable(format!(
            "{} is too small for random reads of {block_bytes} bytes: it must hold at least {BLOCKS_MIN} of them; give a \
             larger --size, or a larger file",
            show_bytes(bytes)
        ))
    };
    if bytes < BLOCKS_MIN * block_bytes {
        return Err(too_small(bytes).into());
    }
    let is_whole = matches!(context.target, context::Target::Existing(_)) && !options.given("size");
    let test_file = TestFile::prepare(context, bytes, (!is_whole).then_some(bytes))?;
    if test_file.bytes < BLOCKS_MIN * block_bytes {
        return Err(too_small(test_file.bytes).into());
    }
    Ok(test_file)
}

/// Returns ` of 4 KiB`, the block of a table, for titles.
pub(super) fn of_block(table: &Table) -> String {
    table.number("block_bytes").map_or_else(String::new, |block| format!(" of {}", bytes(block as u64)))
}

/// Describes the method of a table: its parameters, the block, and the seconds of a sample.
type Method = fn(&Parameters, &str, f64) -> String;

/// One run.
#[derive(Debug)]
pub(super) struct Run {
    test_file: TestFile,
    /// The namespace, for the rows that send commands.
    pub(super) namespace: Option<PathBuf>,
    seeds: SplitMix,
    /// The parameters of all tables, and the others of each.
    common: Parameters,
    pub(super) tables: Vec<Parameters>,
    /// Open loop: the reads a second of the full load, by row. Other rows are left out.
    pub(super) full_loads: BTreeMap<String, f64>,
    method: Method,
    pub(super) notes: Vec<String>,
}

impl Run {
    /// Makes the file, and returns a run without tables.
    ///
    /// # Errors
    /// Fails with a [`Failure`] when the path cannot be used, or the file is too small.
    pub(super) fn new(options: &Values, context: &Context, method: Method) -> anyhow::Result<Self> {
        let test_file = prepare(options, context)?;
        let mut common = parameters(json!({
            "block_bytes": options.count("block"),
            "file_bytes": test_file.bytes,
            "workers": processors(),
            "own_file": test_file.pattern.is_some(),
        }));
        common.extend(IoLimit::note(test_file.io_limit.as_ref(), Table::new("", "")).parameters);
        let notes = test_file.pattern.is_none().then(|| {
            "the file existed before and was only read: holes, which no device reads, are not known"
                .to_owned()
        });
        Ok(Self {
            test_file,
            namespace: None,
            seeds: SplitMix::new(context.seed),
            common,
            tables: Vec::new(),
            full_loads: BTreeMap::new(),
            method,
            notes: notes.into_iter().collect(),
        })
    }
}

impl Plan for Run {
    fn place(&self) -> Place {
        self.test_file.place()
    }

    fn settings(&self) -> Vec<Parameters> {
        let with_common = |own: &Parameters| {
            own.iter().chain(&self.common).map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        self.tables.iter().map(with_common).collect()
    }

    fn has(&self, setting: &Parameters, way: &Way) -> bool {
        let is_possible =
            self.namespace.is_some() || !backend_of(way.name).is_some_and(Backend::sends_commands);
        is_possible && (!setting.contains_key("load_percent") || self.full_loads.contains_key(way.name))
    }

    fn extra_seconds(&self) -> f64 {
        let counts_calls = self.tables.iter().any(|own| own.contains_key("system_calls_by"));
        (WARM + if counts_calls { CALLS } else { Duration::ZERO }).as_secs_f64()
    }

    fn is_shuffled(&self) -> bool {
        true
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        if turn.way.cached {
            evict(&self.test_file.handle).context("evicting the file from memory")?;
        }
        // A sample of another load must not find the blocks in the memory of a drive.
        job.seed = self.seeds.next_u64();
        job.pattern_seed = self.test_file.pattern.map(Pattern::seed);
        job.namespace.clone_from(&self.namespace);
        if let Some(full_load) = self.full_loads.get(turn.way.name) {
            job.work["per_second"] = json!(full_load * turn.number("load_percent") / 100.0);
        }
        Ok(job.into())
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        let is = |fact: fn(Backend) -> bool| backend_of(turn.way.name).is_some_and(fact);
        Claim {
            // A page cache that fills during the sample reduces the requests to the device, and commands are not counted.
            read_bytes: (!turn.way.cached && !is(Backend::sends_commands)).then_some(outcome.bytes),
            workers: is(is_one_thread).then_some(1),
            busy_on_purpose: turn.parameters.contains_key("system_calls_by"),
            exact: true,
            blocking: is(Backend::is_blocking),
            ..Claim::default()
        }
    }

    fn cache(&self, _: &Parameters, way: &Way) -> Option<CacheState> {
        Some(cache_of(way, true))
    }

    fn method(&self, setting: &Parameters, seconds: f64) -> String {
        let block = setting.get("block_bytes").and_then(serde_json::Value::as_u64).unwrap_or(0);
        (self.method)(setting, &show_bytes(block), seconds)
    }

    fn notes(&self, _: &Parameters) -> Vec<String> {
        self.notes.clone()
    }

    fn finish(&self, _: &Parameters, table: &mut Table) {
        if let Some(repeats) = table.number("repeats").filter(|repeats| *repeats < 3.0) {
            table.notes.push(format!("only {repeats} repeat(s): take small differences for chance"));
        }
        let polls = self.test_file.device_stat.as_deref().and_then(has_poll_queues);
        table.rows.iter_mut().for_each(|row| mark_unpolled(row, polls));
    }
}

/// Marks a polling row as degraded when the device has no poll queues. Some kernels accept the flag for
/// polling and still wait for the interrupt.
fn mark_unpolled(row: &mut Row, polls: Option<bool>) {
    let wants_polling = ["preadv2-hipri", "io_uring-iopoll"].contains(&&*row.name);
    if wants_polling && row.skipped.is_none() && polls == Some(false) {
        row.degraded =
            Some("the device has no poll queues: completions come by interrupt all the same".to_owned());
    }
}

/// Returns whether the device of a `stat` file has poll queues; a partition uses the queue of its disk.
fn has_poll_queues(stat: &Path) -> Option<bool> {
    Some(queue_setting(stat, "io_poll")? == "1")
}

/// Returns who counts system calls: the kernel, if it lets this user, or else the rows.
pub(super) fn system_calls_by() -> &'static str {
    if CallCounter::start().is_ok() { "kernel" } else { "row" }
}

/// The parameters that a sample needs.
#[derive(Debug, Deserialize)]
struct Work {
    block_bytes: u64,
    file_bytes: u64,
    /// The most reads in flight.
    #[serde(alias = "readers_max")]
    readers: usize,
    /// Worker threads of a Tokio runtime.
    workers: usize,
    /// The rate of an open loop.
    per_second: Option<f64>,
    /// Who counts system calls after the measured time, if they are counted.
    system_calls_by: Option<String>,
}

/// Returns the job of fio that does the work of a row with a fixed number of reads in flight, where fio can.
pub(super) fn fio(table: &Table, row: &Row, path: &Path) -> Option<String> {
    let words = if row.name == "mmap" { "mmap" } else { way_of(&row.name)?.1 };
    let (engine, mode) = words.split_once(' ').unwrap_or((words, ""));
    let size = if table.number("span_bytes").is_some() { "span_bytes" } else { "file_bytes" };
    let more = format!("--time_based --lat_percentiles=1 {mode}");
    let job = FioJob {
        rw: "randread",
        block_bytes: table.number("block_bytes")?,
        depth: table.number("depth").or_else(|| table.number("readers"))?,
        engine: Some(engine).filter(|engine| !engine.is_empty())?,
        is_direct: !["buffered", "mmap"].contains(&&*row.name),
        more: more.trim_end(),
        ..FioJob::of(table, row, path, size)?
    };
    Some(job.command())
}

/// Runs one sample.
///
/// # Errors
/// The row is refused here, or a read failed or returned data other than those written.
pub(super) fn sample(job: &Job) -> anyhow::Result<Outcome> {
    let backend =
        backend_of(&job.row).with_context(|| format!("there is no row {:?} of random reads", job.row))?;
    let (mut job, mut work) = (job.clone(), job.work::<Work>()?);
    if backend.sends_commands() {
        (job, work.file_bytes) = commands::of_namespace(&job, work.file_bytes, work.block_bytes)?;
    }
    let pacer = Arc::new(Pacer::new(job.seconds, work.per_second, job.seed));
    let target = Target {
        workers: work.workers,
        is_open: pacer.is_open(),
        ..Target::reads(&job.path, work.block_bytes as usize, work.readers)
    };
    let conductor = Conductor(Arc::clone(&pacer));
    let reader = |lane| Reader::new(&job, &work, lane, &pacer);
    let (readers, cost, calls) = backend::run(backend, &target, reader, |join| {
        let (cost, calls) = conductor.conduct(&job, &work)?;
        let readers = join()?;
        drop(conductor);
        Ok((readers, cost, calls))
    })?;
    let mut tally = Tally::new()?;
    for reader in readers {
        tally.add(&reader.end())?;
    }
    Ok(outcome(backend, &work, cost, calls, tally))
}

fn outcome(backend: Backend, work: &Work, cost: Cost, calls: Option<u64>, tally: Tally) -> Outcome {
    let operations = tally.operations as f64;
    let workers = if is_one_thread(backend) { 1.0 } else { work.workers as f64 };
    let (cpu, user, forced) = (cost.cpu_seconds, cost.user_seconds, cost.involuntary_switches as f64);
    let own = Some(tally.own_calls).filter(|own| *own > 0 && work.system_calls_by.as_deref() == Some("row"));
    let calls = calls.or(own).filter(|_| tally.operations_of_calls > 0);
    let of_all = [
        (metric::CPU_SHARE, Some(cpu / cost.seconds / workers)),
        (metric::OFFERED_PER_S, work.per_second),
        (metric::UNANSWERED, work.per_second.map(|_| tally.unanswered as f64)),
    ];
    let of_cpu = [
        (metric::CPU_USER_NS_PER_IO, Some(user * 1e9 / operations)),
        (metric::CPU_SYSTEM_NS_PER_IO, Some((cpu - user) * 1e9 / operations)),
        (metric::IOPS_PER_CORE, Some(operations / cpu)),
        (metric::VOLUNTARY_SWITCHES_PER_IO, Some((cost.context_switches as f64 - forced) / operations)),
        (metric::INVOLUNTARY_SWITCHES_PER_IO, Some(forced / operations)),
        (metric::SYSTEM_CALLS_PER_IO, calls.map(|calls| calls as f64 / tally.operations_of_calls as f64)),
    ];
    let bytes = tally.operations * work.block_bytes;
    let mut outcome = Outcome::new(cost, tally.operations, bytes, tally.latency);
    outcome.folded = tally.folded;
    outcome.times("late", tally.late);
    let of_cpu = of_cpu.iter().filter(|_| work.system_calls_by.is_some());
    for (name, value) in of_all.iter().chain(of_cpu) {
        if let Some(value) = *value {
            outcome.figures.set(name, value);
        }
    }
    outcome
}

/// Moves a sample through its phases. Its end, also by an error, lets the readers end: a join of them would wait forever.
struct Conductor(Arc<Pacer>);

impl Conductor {
    /// Gauges the sample; returns its cost, and the number of system calls where the kernel counts them.
    fn conduct(&self, job: &Job, work: &Work) -> anyhow::Result<(Cost, Option<u64>)> {
        let pacer = &self.0;
        pacer.warm();
        let mut gauge = Gauge::start(job.device_stat.as_deref())?;
        pacer.warmed();
        gauge.begin_again()?;
        pacer.enter(Phase::Counting);
        pacer.wait_for_phase(Duration::from_secs_f64(job.seconds));
        pacer.enter(Phase::Draining);
        let cost = gauge.stop()?;
        if pacer.is_open() {
            return Ok((cost, None));
        }
        let mut calls = None;
        if let Some(counted_by) = &work.system_calls_by {
            let counter = if counted_by == "kernel" { CallCounter::start().ok() } else { None };
            pacer.enter(Phase::Calls);
            pacer.wait_for_phase(CALLS);
            // The count is read when the phase has ended. It includes every call of reads that start and end in the phase.
            pacer.enter(Phase::Draining);
            calls = counter.and_then(|mut counter| counter.count().ok());
        }
        pacer.enter(Phase::Over);
        Ok((cost, calls))
    }
}

impl Drop for Conductor {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::super::lanes::{test_file, test_job};
    use super::*;
    use crate::cleanup::TempFile;

    const BYTES: u64 = 2 << 20;

    fn job(temp: &TempFile, pattern_seed: u64, row: &str, seconds: f64, loads: Value) -> Job {
        let mut work = parameters(json!({ "block_bytes": 4096, "file_bytes": BYTES, "workers": 2 }));
        work.extend(parameters(loads));
        let job = test_job("cpu", row, temp.path(), work.into(), 3);
        Job { pattern_seed: Some(pattern_seed), seconds, ..job }
    }

    fn sample_of(temp: &TempFile, pattern_seed: u64, row: &str) -> anyhow::Result<Metrics> {
        let loads = json!({ "readers": 4, "system_calls_by": system_calls_by() });
        let outcome = sample(&job(temp, pattern_seed, row, 0.05, loads))?;
        assert!(outcome.seconds >= 0.05 && outcome.operations > 0, "{outcome:?}");
        assert_eq!(outcome.bytes, outcome.operations * 4096);
        Ok(outcome.metrics())
    }

    fn counts_no_calls(row: &str) -> bool {
        system_calls_by() == "row" && ["tokio", "spawn", "forebay"].iter().any(|name| row.starts_with(name))
    }

    /// Returns whether the error is a refusal by this kernel or device, which names the missing part.
    fn refused(row: &str, error: &anyhow::Error) -> bool {
        let known = format!("{error:#}").contains("the kernel refuses");
        known && !["pread", "tokio-fs", "spawn-blocking", "forebay-shard"].contains(&row)
    }

    #[test]
    fn every_row_reads_checks_and_counts() {
        let (_cleanup, temp) = test_file(5, BYTES as usize);
        // Rows of commands need a namespace: `vm/tests/polled` has one.
        for row in Cpu.spec().ways.iter().map(|way| way.name).filter(|name| !name.ends_with("commands")) {
            let metrics = match sample_of(&temp, 5, row) {
                Ok(metrics) => metrics,
                Err(error) if refused(row, &error) => continue,
                Err(error) => panic!("{row}: {error:#}"),
            };
            let of = |name| metrics.get(name).unwrap_or_else(|| panic!("{row}: {name}: {metrics:?}"));
            assert!(of(metric::IOPS) > 0.0 && of(metric::MEAN_US) > 0.0, "{row}: {metrics:?}");
            assert!(
                of(metric::CPU_USER_NS_PER_IO) + of(metric::CPU_SYSTEM_NS_PER_IO) > 0.0,
                "{row}: {metrics:?}"
            );
            assert!(of(metric::P50_US) <= of(metric::P99_US), "{row}: {metrics:?}");
            assert!(of(metric::P99_US) <= of(metric::P99_9_US), "{row}: {metrics:?}");
            for open in [metric::OFFERED_PER_S, metric::UNANSWERED, metric::LATE_P99_US] {
                assert_eq!(metrics.get(open), None, "{row}");
            }
            match metrics.get(metric::SYSTEM_CALLS_PER_IO) {
                None => assert!(counts_no_calls(row), "{row}"),
                Some(calls) if row == "pread" => assert!(calls >= 0.5, "{calls}"),
                // No thread of this program makes a system call for each read there.
                Some(_) if row.contains("poll") => {}
                Some(calls) => assert!(calls > 0.0, "{row}: {calls}"),
            }
            let error = sample_of(&temp, 6, row).expect_err(row);
            assert!(format!("{error:#}").contains("are not the data written there"), "{row}: {error:#}");
        }
    }

    #[test]
    fn an_open_loop_reads_at_its_rate() {
        let (_cleanup, temp) = test_file(5, BYTES as usize);
        for row in ["pread", "io_submit", "io_uring-defer-taskrun", "forebay-tokio"] {
            let loads = json!({ "readers_max": 4, "per_second": 400.0 });
            let outcome = match sample(&job(&temp, 5, row, 0.05, loads)) {
                Ok(outcome) => outcome,
                Err(error) if refused(row, &error) => continue,
                Err(error) => panic!("{row}: {error:#}"),
            };
            let metrics = outcome.metrics();
            assert!(outcome.operations < 400, "the rate is not what the device could do: {row}: {outcome:?}");
            assert_eq!(metrics.get(metric::OFFERED_PER_S), Some(400.0), "{row}");
            assert!(metrics.get(metric::UNANSWERED).is_some(), "{row}: {metrics:?}");
            assert_eq!(metrics.get(metric::SYSTEM_CALLS_PER_IO), None, "{row}");
            assert!(metrics.get(metric::LATE_P99_US).is_some(), "{row}: {metrics:?}");
            assert!(metrics.get(metric::P50_US) <= metrics.get(metric::P99_9_US), "{row}: {metrics:?}");
        }
    }

    #[test]
    fn a_polled_row_without_poll_queues_is_degraded() {
        let is_degraded = |mut row: Row, polls| {
            mark_unpolled(&mut row, polls);
            row.degraded.is_some()
        };
        let row = |name: &str| Row::from_samples(name, Vec::new());
        assert!(is_degraded(row("preadv2-hipri"), Some(false)));
        assert!(!is_degraded(row("preadv2-hipri"), Some(true)));
        assert!(!is_degraded(row("pread"), Some(false)));
        assert!(!is_degraded(Row::skipped("io_uring-iopoll", "refused"), Some(false)));
        assert_eq!(has_poll_queues(Path::new("/nowhere/stat")), None);
    }

    #[test]
    fn each_ring_adds_a_feature_to_the_rings_before_it() {
        let setup = |fixed_buffers, fixed_file, defer_taskrun, sqpoll, iopoll, commands| {
            let plain = Setup::default();
            Backend::Ring(Setup {
                fixed_buffers,
                fixed_file,
                defer_taskrun,
                sqpoll,
                iopoll,
                commands,
                ..plain
            })
        };
        for (row, expected) in [
            ("", setup(false, false, false, false, false, false)),
            ("-fixed-buffers", setup(true, false, false, false, false, false)),
            ("-fixed-files", setup(true, true, false, false, false, false)),
            ("-defer-taskrun", setup(true, true, true, false, false, false)),
            ("-sqpoll", setup(true, true, false, true, false, false)),
            ("-iopoll", setup(true, true, true, false, true, false)),
            ("-commands", setup(true, true, true, false, true, true)),
        ] {
            assert_eq!(backend_of(&format!("io_uring{row}")), Some(expected), "{row}");
        }
        assert!(Cpu.spec().ways.iter().all(|way| backend_of(way.name).is_some()));
        assert_eq!(backend_of("mmap"), None);
    }

    #[test]
    fn figures_are_divided_by_the_reads_and_by_the_usable_processors() {
        let work = |counted_by: Option<&str>, per_second| Work {
            block_bytes: 4096,
            file_bytes: BYTES,
            readers: 4,
            workers: 4,
            per_second,
            system_calls_by: counted_by.map(str::to_owned),
        };
        let found = |backend, work: &Work, calls, own_calls| {
            let cost = Cost {
                seconds: 0.5,
                cpu_seconds: 0.2,
                user_seconds: 0.05,
                context_switches: 400,
                involuntary_switches: 100,
                in_flight_avg: None,
                counter_deltas: Default::default(),
            };
            let mut tally = Tally::new().expect("a few kilobytes");
            (tally.operations, tally.operations_of_calls, tally.unanswered) = (400, 100, 7);
            tally.own_calls = own_calls;
            outcome(backend, work, cost, calls, tally).metrics()
        };
        let open = found(Backend::Threads(Calls::Direct), &work(None, Some(900.0)), None, 0);
        for (name, value) in [
            (metric::IOPS, Some(800.0)),
            (metric::CPU_US_PER_IO, Some(500.0)),
            (metric::CONTEXT_SWITCHES_PER_IO, Some(1.0)),
            (metric::CPU_SHARE, Some(0.1)),
            (metric::OFFERED_PER_S, Some(900.0)),
            (metric::UNANSWERED, Some(7.0)),
            (metric::P99_US, None),
            (metric::CPU_USER_NS_PER_IO, None),
            (metric::SYSTEM_CALLS_PER_IO, None),
        ] {
            let near = |found: f64| value.is_some_and(|value: f64| (found / value - 1.0).abs() < 1e-9);
            assert!(open.get(name).map_or(value.is_none(), near), "{name}: {:?}", open.get(name));
        }
        let ring = found(Backend::Ring(Setup::full()), &work(Some("row"), None), None, 25);
        let kernel = found(Backend::Threads(Calls::Direct), &work(Some("kernel"), None), Some(150), 25);
        for (metrics, name, value) in [
            (&ring, metric::CPU_SHARE, 0.4),
            (&ring, metric::SYSTEM_CALLS_PER_IO, 0.25),
            (&kernel, metric::SYSTEM_CALLS_PER_IO, 1.5),
            (&kernel, metric::CPU_USER_NS_PER_IO, 125e3),
            (&kernel, metric::CPU_SYSTEM_NS_PER_IO, 375e3),
            (&kernel, metric::IOPS_PER_CORE, 2000.0),
            (&kernel, metric::VOLUNTARY_SWITCHES_PER_IO, 0.75),
            (&kernel, metric::INVOLUNTARY_SWITCHES_PER_IO, 0.25),
        ] {
            let found = metrics.get(name).unwrap_or(f64::NAN);
            assert!((found / value - 1.0).abs() < 1e-9, "{name}: {found}");
        }
        let silent = found(Backend::Tokio, &work(Some("row"), None), None, 0);
        assert_eq!(silent.get(metric::SYSTEM_CALLS_PER_IO), None);
    }
}
