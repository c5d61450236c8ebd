//! What all experiments share: their rows, the run, which is a plan of forebay-measure's runner, the work of a sample, and
//! test files.

use std::any::Any;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use forebay_measure::backing_device::device_stat;
use forebay_measure::cgroup::{Group, Parent};
use forebay_measure::cleanup::TempFile;
use forebay_measure::context::Context;
use forebay_measure::experiment::{
    Experiment, Outcome, Parameters, Place, Plan, Spec, Start, Turn, Way, parameters,
};
use forebay_measure::job::Job;
use forebay_measure::options::Values;
use forebay_measure::progress::Unit;
use forebay_measure::scratch_dir::ScratchDir;
use forebay_measure::{CallCounter, SplitMix, check_space, peak_resident_bytes, write_direct};
use forebay_report::result::columns::{Definition, column};
use forebay_report::result::targets::Targets;
use forebay_report::result::{Experiment as Table, Row};
use serde::Deserialize;
use serde_json::Value;

use crate::meter::Window;
use crate::random::BLOCK_BYTES;
use crate::{files, usage};

/// The help of `--hot-mib`.
pub(crate) const HOT_MIB: &str =
    "Size of another program's hot file, in MiB, which is in the page cache under the same limit; 0 for none";

// Columns of several experiments.
pub(crate) const RATIO_TO_LIMIT: Definition =
    column("ratio_to_limit", "to limit", 1.0, "the rate against that of the limit in the same repeat");
pub(crate) const RESIDENT_PEAK_BYTES: Definition = column(
    "resident_peak_bytes",
    "resident MiB",
    1_048_576.0,
    "the most memory of the process; mapped pages of files count",
);
pub(crate) const LOADED_SHARE: Definition =
    column("loaded_share", "loaded", 1.0, "the share of the file that the row brought into the page cache");
pub(crate) const HOT_KEPT_SHARE: Definition =
    column("hot_kept_share", "hot set kept", 1.0, "the share of the hot file that stayed in the page cache");

/// A load average above this is other work.
pub(crate) const LOAD_AT_REST: f64 = 0.7;
/// The most seconds of a sample: a load of a slow store.
const SAMPLE_SECONDS_MAX: f64 = 7200.0;
/// Parameter of a table whose rows are measured in several groups: the number of the group, and of all.
const GROUP: &str = "group";
const GROUPS: &str = "groups";

/// Runs a sample of a row, in the child process.
pub(crate) type Sample = fn(&Work) -> Result<Outcome>;

/// Defines an experiment: a static of this name, with the functions `plan` and `title` of its module.
///
/// - An option is a call of [`Opt`] with its methods. A column is a constant, or name, heading and meaning.
/// - A row has the state of the page cache, name, description and sample. `twin` adds a row with the same sample, for the
///   A-A spread.
/// - A ratio has its name, the metric and the rows to compare with; a spread the row, the metric and its name.
/// - A limit has row and metric, and calls of [`Target`](forebay_report::result::targets::Target)'s methods.
macro_rules! experiment {
    (
        $experiment:ident $name:literal, $about:literal, compared by $compared:literal, per $operation:expr;
        options { $($option:ident($($argument:expr),*)$(.$set:ident($($to:expr)?))*;)* }
        rows { $($kind:ident $row:literal, $what:literal => $sample:expr $(, twin $twin:ident)?;)* }
        columns { $($($column:ident)? $($figure:literal $heading:literal, $meaning:literal)?;)* }
        ranked by $rank:literal
        ratios { $($ratio:literal $compares:literal $beside:ident $others:expr;)* }
        spreads { $($again:literal $spreads:literal $spread:literal;)* }
        limits { $($limited:literal $metric:literal $($limit:ident $by:expr),*;)* }
    ) => {
        /// The experiment.
        pub(crate) static $experiment: Versus = Versus {
            spec: &Spec {
                name: $name,
                about: $about,
                quick_seconds: 0,
                full_seconds: 0,
                needs_directory: true,
                options: &[$(Opt::$option($($argument),*)$(.$set($($to)?))*),*],
                ways: &[$(
                    Way::$kind($row, $what),
                    $(Way::$twin(concat!($row, "-again"), "the same, for the A-A spread"),)?
                )*],
                columns: &[$($($column,)? $(column($figure, $heading, 1.0, $meaning),)?)*],
                compared: $compared,
                charts: &[],
                axis: Axis::new("depth", "reads in flight"),
                role: Role::Other,
                gains: Vec::new,
            },
            samples: &[$(($row, $sample)),*],
            targets: &Targets {
                ranked_by: $rank,
                ratios: &[$(Ratio { name: $ratio, metric: $compares, beside: Beside::$beside($others) }),*],
                spreads: &[$(($again, $spreads, $spread)),*],
                limits: &[$(Target::of($limited, $metric)$(.$limit($by))*),*],
            },
            plan,
            operation: $operation,
            title,
        };
    };
}
pub(crate) use experiment;

/// An experiment.
#[derive(Debug)]
pub(crate) struct Versus {
    pub(crate) spec: &'static Spec,
    /// The samples of its rows, twins left out.
    pub(crate) samples: &'static [(&'static str, Sample)],
    pub(crate) targets: &'static Targets,
    /// Checks the options and makes the run.
    pub(crate) plan: for<'c> fn(&Values, &'c Context) -> Result<Run<'c>>,
    /// Returns the word for an operation, in the names of metrics.
    pub(crate) operation: fn(&Work) -> &'static str,
    /// Returns a table's title.
    pub(crate) title: fn(&Table) -> String,
}

impl Experiment for Versus {
    fn spec(&self) -> &'static Spec {
        self.spec
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> Result<Box<dyn Plan + 'a>> {
        Ok(Box::new((self.plan)(options, context)?))
    }

    fn sample(&self, job: &Job) -> Result<Outcome> {
        let work = Work::of(job)?;
        let found = self.samples.iter().find(|(row, _)| *row == work.row);
        let (_, sample) = found.with_context(|| format!("there is no row {}", work.row))?;
        let has = |metric| self.spec.columns.iter().any(|column| column.metric == metric);
        let loaded = || has("loaded_share").then(|| files::share(&work.path)).transpose();
        usage::count_requests(job.device_stat.as_deref());
        if work.counts_syscalls {
            usage::count_syscalls()?;
        }
        if let Some(hot) = &work.hot {
            files::load(hot)?;
        }
        let loaded_before = loaded()?;
        let mut outcome = in_words(sample(&work)?, (self.operation)(&work));
        if let (Some(before), Some(after)) = (loaded_before, loaded()?) {
            outcome.figures.set("loaded_share", after - before);
        }
        if let Some(hot) = &work.hot {
            outcome.figures.set("hot_kept_share", files::share(hot)?);
        }
        // The memory of fio is that of another process.
        if has("resident_peak_bytes") && !work.row.starts_with("fio") {
            let peak = peak_resident_bytes().map_or(f64::NAN, |bytes| bytes as f64);
            outcome.figures.set("resident_peak_bytes", peak);
        }
        Ok(outcome)
    }

    fn targets(&self) -> &'static Targets {
        self.targets
    }

    fn title(&self, table: &Table) -> (String, String) {
        let title = (self.title)(table);
        (title.clone(), title)
    }
}

/// The work of a sample: facts of its job, and the parameters of its table, each of which some experiments have.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Work {
    /// The row; a twin has the name of its original.
    pub(crate) row: String,
    /// The test file, or the directory of the sample.
    pub(crate) path: PathBuf,
    pub(crate) seed: u64,
    /// The time that counts.
    pub(crate) seconds: f64,
    pub(crate) warm_up_seconds: f64,
    pub(crate) counts_syscalls: bool,
    /// Another program's file, which is in the page cache at the start.
    pub(crate) hot: Option<PathBuf>,
    pub(crate) file_bytes: u64,
    /// Operations in flight.
    pub(crate) depth: usize,
    /// Bytes of an operation, where they are not always the same.
    #[serde(default = "block_bytes")]
    pub(crate) block_bytes: usize,
    pub(crate) operations: u64,
    pub(crate) shape: String,
    pub(crate) ranges: usize,
    /// Maximum tasks at work.
    pub(crate) tasks_max: usize,
    pub(crate) writers: usize,
    pub(crate) record_bytes: usize,
    pub(crate) workload: String,
    pub(crate) keys: u64,
    /// Memory that the row may use in all.
    pub(crate) memory_bytes: u64,
    pub(crate) threads: usize,
    pub(crate) cache_bytes: u64,
    /// Reads of each thread.
    pub(crate) reads: u64,
    /// Nodes of a Raft cluster.
    pub(crate) nodes: usize,
    /// Seconds that a busy task computes between two yields.
    pub(crate) computes_s: f64,
    /// The programs of a sample of etcd: etcd, forebay-etcd, and the client that starts them.
    pub(crate) etcd: PathBuf,
    pub(crate) own_etcd: PathBuf,
    pub(crate) etcd_client: PathBuf,
}

fn block_bytes() -> usize {
    BLOCK_BYTES
}

impl Work {
    fn of(job: &Job) -> Result<Self> {
        let (path, seed, seconds) = (job.path.clone(), job.seed, job.seconds);
        let row = job.row.strip_suffix("-again").unwrap_or(&job.row).to_owned();
        Ok(Self { row, path, seed, seconds, ..job.work()? })
    }

    /// Returns the window of time that counts, whose warm-up starts now.
    pub(crate) fn window(&self) -> Arc<Window> {
        Window::start(self)
    }

    /// Returns the random numbers of a task, thread or slot.
    pub(crate) fn rng(&self, stream: usize) -> SplitMix {
        // Through the content's mixing function, so that neighbouring streams do not start alike.
        SplitMix::new(files::word(self.seed ^ (stream as u64).rotate_left(40)))
    }
}

/// Makes a sample ready: evicts files, adds values to the job that are not parameters. The result lives as long as the sample.
type Prepare<'c> = Box<dyn FnMut(&Turn<'_>, &mut Job) -> Result<Option<Box<dyn Any>>> + 'c>;

/// Returns whether a table has a row.
type Has<'c> = Box<dyn Fn(&Parameters, &str) -> bool + 'c>;

/// A run of any experiment. The table's parameter `memory_limit_bytes`, where it has one, limits the memory of each
/// sample, page cache included.
pub(crate) struct Run<'c> {
    context: &'c Context,
    pub(crate) place: Place,
    /// How figures are made.
    method: &'static str,
    settings: Vec<Parameters>,
    /// Returns whether a table has a row; all have by default.
    pub(crate) has: Has<'c>,
    /// The test file of all samples, if they share one.
    file: Option<TempFile>,
    /// The hot file. Samples load it: its pages count as their own memory.
    hot: Option<TempFile>,
    pub(crate) prepare: Prepare<'c>,
    /// The place of the cgroups that limit memory.
    limit: Option<Parent>,
    counts_syscalls: bool,
    samples: u64,
}

impl<'c> Run<'c> {
    /// Returns a run without tables, whose samples need no preparation.
    pub(crate) fn new(context: &'c Context, place: Place, method: &'static str) -> Self {
        Self {
            context,
            place,
            method,
            settings: Vec::new(),
            has: Box::new(|_, _| true),
            file: None,
            hot: None,
            prepare: Box::new(|_, _| Ok(None)),
            limit: None,
            counts_syscalls: false,
            samples: 0,
        }
    }

    /// Returns a run in the directory of the test files, and that. With `counts` samples count the requests of its device.
    pub(crate) fn in_directory(
        context: &'c Context,
        name: &str,
        counts: bool,
        method: &'static str,
    ) -> Result<(Self, ScratchDir)> {
        let scratch = ScratchDir::find(context, name)?;
        let directory = File::open(&scratch.directory).ok().filter(|_| counts);
        let stat = directory.and_then(|directory| whole_device(&device_stat(&directory)?));
        if counts && stat.is_none() {
            context
                .progress
                .print_line("requests of the device are not counted: there is no single block device");
        }
        let place = scratch.place(stat);
        Ok((Self::new(context, place, method), scratch))
    }

    /// Makes the test file, and the hot file, if any; returns the bytes of the test file.
    pub(crate) fn make_files(&mut self, scratch: &ScratchDir, options: &Values) -> Result<u64> {
        let [file_bytes, hot_bytes] = ["file-mib", "hot-mib"].map(|mib| file_bytes(options.count(mib)));
        self.file = Some(test_file(self.context, scratch, file_bytes)?);
        if hot_bytes > 0 {
            self.hot = Some(test_file(self.context, scratch, hot_bytes)?);
        }
        Ok(file_bytes)
    }

    /// Limits the memory of samples, at `bytes` at least, if that is possible here. Otherwise a line says so.
    pub(crate) fn limit_memory(&mut self, bytes: u64) -> bool {
        let found = Parent::find(bytes, &self.context.cleanup);
        let found = found.inspect_err(|why| {
            self.context.progress.print_line(&format!(
                "memory is not limited, so the page cache may hold more than it should: {why}"
            ));
        });
        self.limit = found.ok();
        self.limit.is_some()
    }

    /// Adds a table with these parameters.
    pub(crate) fn table(&mut self, setting: Value) {
        self.settings.push(parameters(setting));
    }

    /// Counts system calls in one more sample of each row.
    pub(crate) fn count_syscalls(&mut self) -> Result<()> {
        CallCounter::start().context("counting system calls needs root")?;
        self.counts_syscalls = true;
        Ok(())
    }
}

impl Plan for Run<'_> {
    fn place(&self) -> Place {
        self.place.clone()
    }

    fn settings(&self) -> Vec<Parameters> {
        self.settings.clone()
    }

    fn has(&self, setting: &Parameters, way: &Way) -> bool {
        (self.has)(setting, way.name)
    }

    fn retries(&self) -> usize {
        1
    }

    fn counted(&self) -> &'static [&'static str] {
        if self.counts_syscalls { &["syscalls_per_io"] } else { &[] }
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> Result<Start> {
        // Not the repeat's: the host caches the pages that an earlier sample read, and a shared seed made later rows two to
        // three times faster than they are.
        job.seed = fresh_seed();
        job.seconds_max = SAMPLE_SECONDS_MAX;
        if turn.counts {
            add(&mut job, "counts_syscalls", true);
        }
        if let Some(file) = &self.file {
            job.path = file.path().to_owned();
        }
        let held = (self.prepare)(turn, &mut job)?;
        if let Some(hot) = &self.hot {
            files::evict(hot.path(), false)?;
            add(&mut job, "hot", hot.path().to_string_lossy().into_owned());
        }
        self.samples += 1;
        let bytes = turn.parameters.get("memory_limit_bytes").and_then(Value::as_u64);
        let limit = self.limit.as_ref().zip(bytes);
        let group =
            limit.map(|(parent, bytes)| Group::create(parent, bytes, self.samples, &self.context.cleanup));
        Ok(Start { job, group: group.transpose()?, held })
    }

    fn ended(&mut self, _: &Turn<'_>, start: &Start, outcome: &mut Outcome) -> Result<()> {
        if let Some(peak) = start.group.as_ref().and_then(Group::peak_bytes) {
            outcome.figures.set("memory_peak_bytes", peak as f64);
        }
        Ok(())
    }

    fn method(&self, _: &Parameters, _: f64) -> String {
        self.method.to_owned()
    }

    fn notes(&self, _: &Parameters) -> Vec<String> {
        let busy = load_average().filter(|load| *load > LOAD_AT_REST);
        busy.map(|load| format!("the load average was {load}")).into_iter().collect()
    }
}

/// Adds a value to a job that is not a parameter of its table.
pub(crate) fn add(job: &mut Job, name: &str, value: impl Into<Value>) {
    if let Value::Object(work) = &mut job.work {
        work.insert(name.to_owned(), value.into());
    }
}

/// Adds a table to those before. Parts of one table, whose rows were measured in groups, are joined: of a row that several
/// groups have, the first samples stand. Returns the table, and whether it has all its parts.
pub(crate) fn join(
    tables: &mut Vec<Table>,
    mut part: Table,
    order: impl Fn(&Row) -> Option<usize>,
) -> (&mut Table, bool) {
    let group = part.parameters.remove(GROUP);
    let is_whole = group.as_ref() == part.parameters.get(GROUPS);
    let same = tables.iter().position(|table| table.parameters == part.parameters);
    let place = same.filter(|_| group.is_some()).unwrap_or(tables.len());
    let mut rows = std::mem::take(&mut part.rows);
    if place == tables.len() {
        tables.push(part);
    }
    let table = &mut tables[place];
    rows.retain(|row| table.row(&row.name).is_none());
    table.rows.append(&mut rows);
    table.rows.sort_by_key(order);
    (table, is_whole)
}

/// Returns the `stat` file of the device that contains this partition: only that file counts a partition's flushes.
fn whole_device(stat: &Path) -> Option<PathBuf> {
    let folder = stat.canonicalize().ok()?;
    let folder = folder.parent()?;
    let whole = if folder.join("partition").exists() { folder.parent()? } else { folder };
    Some(whole.join("stat"))
}

/// Makes a test file; see [`fill`].
pub(crate) fn test_file(context: &Context, scratch: &ScratchDir, bytes: u64) -> Result<TempFile> {
    check_space(&scratch.directory, bytes, "name another directory with --dir, or give a smaller size")?;
    let file = context.cleanup.temp_file(&scratch.directory, "versus")?;
    fill(context, file.path(), bytes)?;
    Ok(file)
}

/// Fills a file with `bytes` bytes that do not compress, past the page cache, and syncs it.
pub(crate) fn fill(context: &Context, path: &Path, bytes: u64) -> Result<()> {
    let show = path.display();
    let direct = File::options().write(true).create(true).custom_flags(libc::O_DIRECT).open(path);
    let direct = direct.with_context(|| {
        format!("opening {show} for direct I/O, which its file system must allow; name another directory with --dir")
    })?;
    rustix::fs::fallocate(&direct, rustix::fs::FallocateFlags::empty(), 0, bytes)
        .with_context(|| format!("reserving {bytes} bytes for {show}"))?;
    let step = context.step(format!("write {show}"), bytes, Unit::Bytes);
    write_direct(path, bytes, |offset, memory| files::fill(memory, offset), &step)
        .with_context(|| format!("writing {show}"))?;
    step.finish("written");
    Ok(())
}

/// Returns the bytes of a test file of this many MiB: whole chunks of 4 MiB.
pub(crate) fn file_bytes(mib: u64) -> u64 {
    mib / 4 * (4 << 20)
}

/// Appends lines of a file of docs/results, each a row with its figure, unit and spread, to the file that `scripts/bench --record`
/// names in the environment.
pub(crate) fn record(file: &str, rows: impl IntoIterator<Item = [String; 4]>) -> Result<()> {
    let Some(path) = std::env::var_os("FOREBAY_BENCH_ROWS") else { return Ok(()) };
    let lines: String = rows.into_iter().map(|row| format!("{file}\t{}\n", row.join("\t"))).collect();
    File::options().append(true).create(true).open(path)?.write_all(lines.as_bytes())?;
    Ok(())
}

/// Renames metrics for an experiment whose operation is a `word`: the meter counts I/Os.
fn in_words(mut outcome: Outcome, word: &str) -> Outcome {
    let renamed = outcome.figures.0.into_iter().map(|(name, value)| {
        let name = match name.as_str() {
            "iops" if word != "io" => format!("{word}s_per_s"),
            "ios" => format!("{word}s"),
            _ => name.replace("_per_io", &format!("_per_{word}")),
        };
        (name, value)
    });
    outcome.figures.0 = renamed.collect();
    outcome
}

/// Returns the number of cores that this process may use; the multi-threaded Tokio rows have that many workers.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the system's load average over one minute: other work on the machine makes every figure worthless.
pub(crate) fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Returns a seed that nothing had before: the standard library's hasher has a random key.
pub(crate) fn fresh_seed() -> u64 {
    // JSON keeps 53 bits of a number everywhere.
    RandomState::new().hash_one(std::time::Instant::now()) >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_of_the_meter_is_a_get_an_append_or_a_key() {
        let names = |word| {
            let mut outcome = Outcome::default();
            for metric in ["iops", "ios", "cpu_us_per_io", "device_reads_per_io", "p99_us"] {
                outcome.figures.set(metric, 1.0);
            }
            in_words(outcome, word).figures.0.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(
            names("append"),
            ["appends", "appends_per_s", "cpu_us_per_append", "device_reads_per_append", "p99_us"]
        );
        assert_eq!(names("get")[..2], ["cpu_us_per_get", "device_reads_per_get"]);
    }

    #[test]
    fn parts_of_a_table_are_joined_in_the_order_of_the_rows_and_others_are_not() {
        let part = |group: u32, rows: &[&str]| {
            let mut table =
                Table::new("kv", "").parameter("keys", 1).parameter(GROUPS, 2).parameter(GROUP, group);
            table.rows = rows.iter().map(|name| Row::from_samples(*name, Vec::new())).collect();
            table
        };
        let order = |row: &Row| ["raw", "a", "b", "c"].iter().position(|name| *name == row.name);
        let mut tables = Vec::new();
        assert!(!join(&mut tables, part(1, &["raw", "b"]), order).1);
        let (table, is_whole) = join(&mut tables, part(2, &["raw", "a", "c"]), order);
        let names: Vec<&str> = table.rows.iter().map(|row| &*row.name).collect();
        assert_eq!((names, is_whole), (vec!["raw", "a", "b", "c"], true));
        let apart = || Table::new("kv", "").parameter("keys", 1);
        assert!(join(&mut tables, apart(), order).1 && join(&mut tables, apart(), order).1);
        assert_eq!(tables.len(), 3, "tables without groups stay apart");
    }
}
