//! The run: loads the stores that fit on the disk at once, samples every workload's rows in turn, removes
//! them, and continues with the next ones.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::groups::{bytes_of, check_room, passes, store_of};
use super::{BATCH, BUSY_GETS, BUSY_WRITERS, IN_FLIGHT, KvJob, Options, PUT_BYTES, THREADS, Workload, gates};
use crate::cell::{Cell, RowSamples};
use crate::child::{self, Job};
use crate::device_writes;
use crate::environment::cores;
use crate::memory_limit::MemoryLimit;
use crate::report::{Document, Experiment};
use crate::rng::fresh_seed;
use crate::scratch::Tree;

/// The number of keys that the targets were set with; fewer fit into memory, or nearly.
const KEYS_FULL: u64 = 4_000_000;

/// All rows.
pub(super) const ROWS: &[&str] = &[
    "raw",
    "raw-again",
    "raw-ring",
    "raw-ring-again",
    "forebay",
    "forebay-wait",
    "forebay-shard",
    "forebay-native",
    "forebay-threads",
    "forebay-no-classes",
    "redb",
    "fjall",
    "heed",
    "rocksdb",
];

const COLUMNS: &[(&str, &str, usize)] = &[
    ("gets_per_s", "gets/s", 0),
    ("keys_per_s", "keys/s", 0),
    ("puts_per_s", "puts/s", 0),
    ("ratio_to_raw", "to raw", 3),
    ("ratio_to_raw_min", "min", 3),
    ("ratio_to_raw_max", "max", 3),
    ("ratio_to_native", "to native", 3),
    ("p50_us", "p50 us", 0),
    ("p99_us", "p99 us", 0),
    ("idle_p99_us", "idle p99", 0),
    ("p99_to_idle", "to idle", 2),
    ("idle_gets_per_s", "idle gets/s", 0),
    ("timer_late_p99_us", "timer us", 0),
    ("timer_idle_late_p99_us", "timer idle", 0),
    ("cpu_us_per_get", "CPU us", 2),
    ("cpu_us_per_key", "CPU us", 2),
    ("cpu_us_per_put", "CPU us", 2),
    ("reads_per_get", "dev reads", 3),
    ("device_writes_per_put", "dev writes", 3),
    ("context_switches_per_get", "switches", 3),
    ("write_amplification", "written", 3),
    ("space", "space", 3),
    ("compacted_bytes", "compacted MiB", 0),
    ("rss_mb", "rss MB", 0),
    ("memory_mb", "with cache", 0),
];

/// Runs the experiment.
///
/// # Errors
/// When the folder cannot be made or has no room, for an option out of range, or when interrupted.
pub(crate) fn run(options: &Options) -> Result<usize> {
    let mut rows = options.common.choose(ROWS)?;
    if !cfg!(feature = "rocksdb") && rows.contains(&"rocksdb") {
        eprintln!("built without the feature rocksdb: its row is left out");
        rows.retain(|row| *row != "rocksdb");
    }
    ensure!((10_000..=1 << 32).contains(&options.keys), "--keys goes from 10,000 to 4,294,967,296");
    ensure!(
        options.memory_mib >= 64 && options.small_memory_mib >= 32,
        "--memory-mib is at least 64, --small-memory-mib 32"
    );
    let passes = passes(options, &rows)?;
    let dir = options.common.dir()?;
    check_room(&dir, passes.iter().map(|pass| bytes_of(pass, options.keys)).max().unwrap_or(0))?;
    if let Err(error) = device_writes::start_counting(&dir) {
        eprintln!("reads and writes of the device are not counted: {error:#}");
    }
    let tree = Tree::in_dir(&dir, "forebay-versus-kv")?;
    let mut run = Run { options, dir: tree.path(), found: Vec::new() };
    let mut document = Document::new();
    for (number, stores) in passes.iter().enumerate() {
        if passes.len() > 1 {
            eprintln!("group {} of {}: {}", number + 1, passes.len(), stores.join(", "));
        }
        run.pass(&rows, stores, |workload, found| {
            if number + 1 < passes.len() {
                return Ok(());
            }
            document.push(report(options, workload, Cell::of(found), passes.len()));
            options.common.write_json(&document)
        })?;
    }
    document.summarise()
}

struct Run<'r> {
    options: &'r Options,
    dir: &'r Path,
    /// The samples of earlier groups.
    found: Vec<(Workload, Vec<RowSamples>)>,
}

impl Run<'_> {
    fn pass(
        &mut self,
        rows: &[&'static str],
        stores: &[&'static str],
        mut done: impl FnMut(Workload, Vec<RowSamples>) -> Result<()>,
    ) -> Result<()> {
        let trees = stores.iter().map(|store| Ok((*store, Tree::in_dir(self.dir, store)?)));
        let mut trees = trees.collect::<Result<Vec<_>>>()?;
        // Puts need no data.
        if self.options.workloads.iter().any(|workload| *workload != Workload::Puts) {
            let cell = self.cell(Workload::Load, stores, 1, &trees)?;
            trees.retain(|(store, _)| {
                cell.rows().iter().any(|row| row.name == *store && row.samples.iter().any(Option::is_some))
            });
            if self.options.workloads.contains(&Workload::Load) {
                done(Workload::Load, self.add(Workload::Load, cell))?;
            }
        }
        for &workload in self.options.workloads.iter().filter(|workload| **workload != Workload::Load) {
            let is_ready = |row: &str| trees.iter().any(|(store, _)| *store == store_of(row));
            let mine: Vec<&str> =
                workload.rows().iter().copied().filter(|row| rows.contains(row) && is_ready(row)).collect();
            if !mine.is_empty() {
                let cell = self.cell(workload, &mine, self.options.repeats, &trees)?;
                done(workload, self.add(workload, cell))?;
            }
        }
        Ok(())
    }

    fn cell(
        &self,
        workload: Workload,
        rows: &[&str],
        repeats: usize,
        trees: &[(&'static str, Tree)],
    ) -> Result<Cell> {
        let options = self.options;
        let mib = if workload == Workload::Small { options.small_memory_mib } else { options.memory_mib };
        let limit = MemoryLimit::create(mib << 20)
            .map_err(|error| eprintln!("no memory limit, so the page cache is not limited: {error:#}"))
            .ok();
        let label = format!("kv, {}", workload.name());
        Cell::run(&label, rows, repeats, |row| {
            let data = trees.iter().find(|(store, _)| *store == store_of(row));
            let empty = (workload == Workload::Puts).then(|| Tree::in_dir(self.dir, "puts")).transpose()?;
            let tree = empty.as_ref().or(data.map(|(_, tree)| tree)).context("its data were not loaded")?;
            if let Some(limit) = &limit {
                limit.reset_peak();
            }
            let seconds = if workload == Workload::Busy { options.busy_seconds } else { options.seconds };
            let job = KvJob {
                row: row.to_owned(),
                workload,
                dir: tree.path().to_owned(),
                keys: options.keys,
                memory_bytes: mib << 20,
                cgroup: limit.as_ref().map(|limit| limit.path().to_owned()),
                seed: fresh_seed(),
                warm_up: Duration::from_secs_f64(options.warm_up_seconds),
                measure: Duration::from_secs_f64(seconds),
            };
            child::measure(&Job::Kv(job), None)
        })
    }

    /// Adds a group's samples, with their ratio to the disk's rate in the same repeat; returns all there are.
    fn add(&mut self, workload: Workload, cell: Cell) -> Vec<RowSamples> {
        let (_, rate) = workload.words();
        let raw = cell.values("raw", rate);
        let mut rows = cell.into_rows();
        for (repeat, raw) in raw.iter().enumerate() {
            for sample in rows.iter_mut().filter_map(|row| row.samples[repeat].as_mut()) {
                if let (Some(value), Some(raw)) = (sample.get(rate), raw) {
                    sample.set("ratio_to_raw", value / raw);
                }
            }
        }
        let place = match self.found.iter().position(|(other, _)| *other == workload) {
            Some(place) => place,
            None => {
                self.found.push((workload, Vec::new()));
                self.found.len() - 1
            }
        };
        let all = &mut self.found[place].1;
        // The disk is in every group; its first samples stand for it.
        rows.retain(|row| all.iter().all(|other| other.name != row.name));
        all.extend(rows);
        all.sort_by_key(|row| ROWS.iter().position(|name| *name == row.name));
        all.iter()
            .map(|row| RowSamples {
                name: row.name.clone(),
                samples: row.samples.clone(),
                failure: row.failure.clone(),
            })
            .collect()
    }
}

fn report(options: &Options, workload: Workload, cell: Cell, groups: usize) -> Experiment {
    let is_small = workload == Workload::Small;
    let mib = if is_small { options.small_memory_mib } else { options.memory_mib };
    let (is_load, is_busy) = (workload == Workload::Load, workload == Workload::Busy);
    let repeats = if is_load { 1 } else { options.repeats };
    let seconds = if is_busy { options.busy_seconds } else { options.seconds };
    let parameters = json!({
        "workload": workload.name(),
        "keys": options.keys,
        "memory_bytes": mib << 20,
        "repeats": repeats,
        "seconds": seconds,
        "warm_up_seconds": options.warm_up_seconds,
        "groups": groups,
        "tokio_workers": cores(),
    });
    let parameters = parameters.as_object().cloned().unwrap_or_default();
    let mut experiment = Experiment::new("kv", parameters, cell.rows());
    gates::judge(&mut experiment, &cell, workload);
    let is_short = options.keys < KEYS_FULL && workload != Workload::Puts;
    let note = if is_short { "; FEWER KEYS than the 4 M of the targets" } else { "" };
    let what = match workload {
        Workload::Load => "sorted load, once".to_owned(),
        Workload::One => "random gets, one at a time".to_owned(),
        Workload::Many | Workload::Small => {
            format!("random gets, {IN_FLIGHT} tasks on at most 2 threads or {THREADS} threads")
        }
        Workload::Tokio => format!("random gets from {IN_FLIGHT} tasks of Tokio beside a timer of 1 ms"),
        Workload::Busy => format!(
            "{BUSY_GETS} random gets at a time beside {BUSY_WRITERS} writers of batches of {BATCH} keys"
        ),
        Workload::Puts => format!("durable puts, {IN_FLIGHT} writers x {PUT_BYTES} B, into an empty store"),
    };
    let data = match workload {
        Workload::Puts => String::new(),
        _ => format!("{:.1} M keys x 1000 B, ", options.keys as f64 / 1e6),
    };
    let times = if is_load { String::new() } else { format!("; medians of {repeats} x {seconds} s") };
    let groups =
        if groups > 1 { format!("; {groups} groups of rows, each beside raw") } else { String::new() };
    let title = format!("kv {}: {what}; {data}{mib} MiB of memory{times}{groups}{note}", workload.name());
    experiment.print(&title, COLUMNS);
    experiment
}
