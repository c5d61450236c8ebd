//! What all experiments share: the run, which is a plan of forebay-measure's runner, its files and its limit on memory.

use std::any::Any;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use forebay_measure::backing_device::device_stat;
use forebay_measure::cgroup::{Group, Parent};
use forebay_measure::check_space;
use forebay_measure::cleanup::{TempDirectory, TempFile};
use forebay_measure::context::Context;
use forebay_measure::experiment::{Experiment, Outcome, Parameters, Place, Plan, Spec, Start, Turn, Way};
use forebay_measure::job::Job;
use forebay_measure::options::{Opt, Values};
use forebay_measure::progress::Unit;
use forebay_measure::scratch_dir::ScratchDir;
use forebay_report::page::columns::{Definition, column};
use forebay_report::page::view::{Axis, Role};
use forebay_report::result::targets::Targets;
use forebay_report::result::{Experiment as Table, Row};
use serde_json::Value;

use crate::content;
use crate::memory::{PageKind, pieces};
use crate::{page_cache, usage};

/// `--hot-mib`.
pub(crate) const HOT_MIB: Opt = Opt::count(
    "hot-mib",
    "Size of another program's hot file, in MiB, which is in the page cache under the same limit; 0 for none",
    1 << 40,
)
.zero_too()
.or("0");

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
const CHUNK_BYTES: usize = 4 << 20;
/// Parameter of a table whose rows are measured in several groups: the number of the group, and of all.
const GROUP: &str = "group";
const GROUPS: &str = "groups";

/// An experiment.
#[derive(Debug)]
pub(crate) struct Versus {
    pub(crate) spec: &'static Spec,
    pub(crate) targets: &'static Targets,
    /// Checks the options and makes the run.
    pub(crate) plan: for<'c> fn(&Values, &'c Context) -> Result<Run<'c>>,
    /// Takes a sample, in the child process.
    pub(crate) sample: fn(&Job) -> Result<Outcome>,
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
        usage::start_counting(job)?;
        (self.sample)(job)
    }

    fn targets(&self) -> &'static Targets {
        self.targets
    }

    fn title(&self, table: &Table) -> (String, String) {
        let title = (self.title)(table);
        (title.clone(), title)
    }
}

/// Returns the fixed facts of an experiment here.
pub(crate) const fn spec(
    name: &'static str,
    about: &'static str,
    options: &'static [Opt],
    ways: &'static [Way],
    columns: &'static [Definition],
    compared: &'static str,
) -> Spec {
    Spec {
        name,
        about,
        quick_seconds: 0,
        full_seconds: 0,
        needs_directory: true,
        options,
        ways,
        columns,
        compared,
        charts: &[],
        axis: Axis::new("depth", "reads in flight"),
        role: Role::Other,
        gains: Vec::new,
    }
}

/// Makes a sample ready: evicts files, adds to the job what is no parameter. The result lives as long as the sample.
type Prepare<'c> = Box<dyn FnMut(&Turn<'_>, &mut Job) -> Result<Option<Box<dyn Any>>> + 'c>;

/// Returns whether a table has a row.
type Has<'c> = Box<dyn Fn(&Parameters, &str) -> bool + 'c>;

/// A run of any experiment. The table's parameter `memory_limit_bytes`, where it has one, limits the memory of each
/// sample, page cache included.
pub(crate) struct Run<'c> {
    pub(crate) context: &'c Context,
    pub(crate) place: Place,
    pub(crate) settings: Vec<Parameters>,
    /// Returns whether a table has a row.
    pub(crate) has: Has<'c>,
    pub(crate) prepare: Prepare<'c>,
    /// The place of the cgroups that limit memory.
    pub(crate) limit: Option<Parent>,
    /// The kernel's number of the event that counts system calls, where they are counted.
    pub(crate) syscall_event: Option<u64>,
    /// How figures are made.
    pub(crate) method: &'static str,
    samples: u64,
}

impl<'c> Run<'c> {
    /// Returns a run with all rows in every table, whose samples need no preparation.
    pub(crate) fn new(
        context: &'c Context,
        place: Place,
        settings: Vec<Parameters>,
        method: &'static str,
    ) -> Self {
        Self {
            context,
            place,
            settings,
            has: Box::new(|_, _| true),
            prepare: Box::new(|_, _| Ok(None)),
            limit: None,
            syscall_event: None,
            method,
            samples: 0,
        }
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
        if self.syscall_event.is_some() { &["syscalls_per_io"] } else { &[] }
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> Result<Start> {
        // Not the repeat's: the host caches the pages that an earlier sample read, and a shared seed made later rows two to
        // three times faster than they are.
        job.seed = fresh_seed();
        job.seconds_max = SAMPLE_SECONDS_MAX;
        if turn.counts {
            add(&mut job, "syscall_event", self.syscall_event);
        }
        let held = (self.prepare)(turn, &mut job)?;
        self.samples += 1;
        let bytes = turn.parameters.get("memory_limit_bytes").and_then(Value::as_u64);
        let group = match (&self.limit, bytes) {
            (Some(parent), Some(bytes)) => {
                Some(Group::create(parent, bytes, self.samples, &self.context.cleanup)?)
            }
            _ => None,
        };
        Ok(Start { job, group, held })
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

/// Adds a value to a job that is no parameter of its table.
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

/// Returns the directory of the test files, and facts on it. With `counts` samples count the requests of its device.
///
/// # Errors
/// It is none, or of a file system in memory.
pub(crate) fn scratch(context: &Context, name: &str, counts: bool) -> Result<(ScratchDir, Place)> {
    let scratch = ScratchDir::find(context, name)?;
    let directory = File::open(&scratch.directory).ok().filter(|_| counts);
    let stat = directory.and_then(|directory| whole_device(&device_stat(&directory)?));
    let place = scratch.place(stat);
    Ok((scratch, place))
}

/// Returns the `stat` file of the device that has the partition of this one: it alone counts a partition's flushes.
fn whole_device(stat: &Path) -> Option<PathBuf> {
    let folder = stat.canonicalize().ok()?;
    let folder = folder.parent()?;
    let whole = if folder.join("partition").exists() { folder.parent()? } else { folder };
    Some(whole.join("stat"))
}

/// Returns the place where samples can be limited to `bytes` of memory. Without one, a line says so.
pub(crate) fn limit(context: &Context, bytes: u64) -> Option<Parent> {
    let found = Parent::find(bytes, &context.cleanup);
    found
        .inspect_err(|why| {
            context.progress.print_line(&format!(
                "memory is not limited, so the page cache may hold more than it should: {why}"
            ));
        })
        .ok()
}

/// Makes a test file of `bytes` bytes; see [`fill`].
///
/// # Errors
/// The directory has no room, or refuses direct I/O.
pub(crate) fn test_file(context: &Context, directory: &Path, bytes: u64) -> Result<TempFile> {
    check_space(directory, bytes, "name another directory with --dir, or give a smaller size")?;
    let file = context.cleanup.temp_file(directory, "versus")?;
    fill(context, file.path(), bytes)?;
    Ok(file)
}

/// Fills a new file with `bytes` bytes (whole chunks of 4 MiB) that do not compress, past the page cache, and syncs it.
///
/// # Errors
/// Its file system has no room, or refuses direct I/O.
pub(crate) fn fill(context: &Context, path: &Path, bytes: u64) -> Result<()> {
    let direct = File::options().write(true).create(true).custom_flags(libc::O_DIRECT).open(path);
    let direct = direct.with_context(|| {
        format!(
            "opening {} for direct I/O, which its file system must allow; name another directory with --dir",
            path.display()
        )
    })?;
    rustix::fs::fallocate(&direct, rustix::fs::FallocateFlags::empty(), 0, bytes)
        .with_context(|| format!("reserving {bytes} bytes for {}", path.display()))?;
    let step = context.step(format!("write {}", path.display()), bytes, Unit::Bytes);
    let mut memory = pieces(1, CHUNK_BYTES, PageKind::Huge)?;
    for offset in (0..bytes).step_by(CHUNK_BYTES) {
        content::fill(&mut memory[0], offset);
        direct.write_all_at(&memory[0], offset).with_context(|| format!("writing {}", path.display()))?;
        step.set(offset);
    }
    direct.sync_all()?;
    step.finish("written");
    Ok(())
}

/// Writes the hot file, where there is one.
///
/// # Errors
/// Those of [`test_file`].
pub(crate) fn hot_file(context: &Context, directory: &Path, options: &Values) -> Result<Option<TempFile>> {
    let bytes = file_bytes(options.count("hot-mib"));
    (bytes > 0).then(|| test_file(context, directory, bytes)).transpose()
}

/// Evicts the hot file, which the sample then loads: the pages count as its own memory.
///
/// # Errors
/// It stays in the page cache.
pub(crate) fn evict_hot(hot: Option<&TempFile>, job: &mut Job) -> Result<()> {
    let Some(hot) = hot else { return Ok(()) };
    page_cache::evict(hot.path(), false)?;
    add(job, "hot", hot.path().to_string_lossy().into_owned());
    Ok(())
}

/// Returns the bytes of a test file of this many MiB.
pub(crate) fn file_bytes(mib: u64) -> u64 {
    (mib << 20) / CHUNK_BYTES as u64 * CHUNK_BYTES as u64
}

/// Makes a directory that is removed with everything in it.
///
/// # Errors
/// It cannot be made.
pub(crate) fn directory(context: &Context, parent: &Path, label: &str) -> Result<TempDirectory> {
    let made = context.cleanup.temp_directory(parent, label);
    made.map_err(|error| anyhow!("no directory can be made in {}: {error}", parent.display()))
}

/// Returns a row's name without what marks it as its twin.
pub(crate) fn without_again(row: &str) -> &str {
    row.strip_suffix("-again").unwrap_or(row)
}

/// Returns the error for a row that an experiment does not have.
pub(crate) fn no_row(row: &str) -> anyhow::Error {
    anyhow!("there is no row {row}")
}

/// Returns a metric's name in the words of an experiment whose operation is a `word`: the meter counts I/Os.
pub(crate) fn in_words(mut outcome: Outcome, word: &str) -> Outcome {
    let renamed = outcome.figures.0.into_iter().map(|(name, value)| {
        let name = match name.as_str() {
            "iops" => format!("{word}s_per_s"),
            "ios" => format!("{word}s"),
            other => other.replace("_per_io", &format!("_per_{word}")),
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
