//! `measure --fio`: the jobs of a file of fio, with the rows that a result of fio has after its conversion.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use serde::Serialize;

use crate::backing_device::{device_stat, filesystem_of};
use crate::cleanup::TempDirectory;
use crate::job_file::{self, FileJob, Order, is_without_effect};
use crate::options::Length;
use crate::plan::check_memory;
use crate::preconditions::Preconditions;
use crate::prelude::*;
use crate::progress::Unit;
use crate::residency::{evict, resident_bytes};
use crate::runner;
use crate::test_file::{check_space, refuse_memory_filesystem, require_direct, write_direct};
use crate::units::show_bytes;
use forebay_report::result::Sample;
use forebay_report::saved::convert::number_or_text;

mod loops;
mod places;

#[derive(Debug)]
pub(crate) struct Jobs;

static SPEC: Spec = Spec {
    name: "fio",
    about: "Run the jobs of a job file of fio",
    quick_seconds: 60,
    full_seconds: 600,
    needs_directory: true,
    options: &[
        Opt::path("job", "The job file").operand(),
        Opt::time(
            "seconds",
            "Seconds of work after which a job ends, whatever its file says",
            0.01,
            86_400.0,
        )
        .or("60")
        .quick("2"),
        Opt::repeats("3"),
    ],
    ways: &[Way::cached("jobs", "the jobs of a group, all at the same time")],
    columns: &[
        columns::MB_PER_S,
        columns::IOPS,
        columns::MEAN_US,
        columns::P50_US,
        columns::P99_US,
        columns::P99_9_US,
        columns::CPU_US_PER_IO,
        columns::CONTEXT_SWITCHES_PER_IO,
    ],
    compared: metric::IOPS,
    charts: &[metric::IOPS, metric::P99_US],
    axis: Axis::new("group", "group"),
    role: Role::Other,
    gains: Vec::new,
};

/// The rows of a job.
const KINDS: [&str; 3] = ["read", "write", "sync"];
/// The share of a file in memory from which on it is not cold.
const COLD_SHARE: f64 = 0.01;

impl Experiment for Jobs {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        let scratch = ScratchDir::find(context, SPEC.name)?;
        let words = options.words("job");
        let path = Path::new(words.first().copied().unwrap_or_default());
        let text = job_file::read(path).map_err(|error| Failure::missing(path, &error))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let groups = job_file::parse(&text, folder, &|name| std::env::var(name).ok())
            .map_err(|why| Failure::Usage(format!("{} cannot be run: {why}", path.display())))?;
        Ok(Box::new(Run::new(&scratch.directory, groups, context)?))
    }

    fn measure(&self, options: &Values, length: Length, context: &Context) -> anyhow::Result<Vec<Table>> {
        let mut plan = self.plan(options, context)?;
        let tables = runner::run(&SPEC, options, length, context, plan.as_mut())?;
        Ok(tables.iter().flat_map(tables_of).collect())
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        loops::run(job, &job.work::<Work>()?.jobs)
    }

    fn title(&self, table: &Table) -> (String, String) {
        (format!("Job {} of fio", shown(table, "job")), "Jobs of fio".to_owned())
    }
}

/// The parameters that a sample needs.
#[derive(Debug, Deserialize)]
struct Work {
    jobs: Vec<Assignment>,
}

/// A job with its files.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Assignment {
    job: FileJob,
    /// The file of each clone.
    paths: Vec<PathBuf>,
    /// The bytes of its files that it uses, from its offset on.
    span_bytes: u64,
    /// Its files have the pattern of the sample, and no job writes there.
    is_known: bool,
}

/// A file that jobs use.
#[derive(Debug, Default)]
struct FileUse {
    /// A job that uses it, for sentences.
    job: String,
    /// The bytes that all jobs need, if they say so.
    bytes: u64,
    has_no_size: bool,
    must_exist: bool,
    is_written: bool,
    is_direct: bool,
    /// It is written before it is measured.
    is_laid_out: bool,
    allocates: bool,
}

impl FileUse {
    fn add(&mut self, job: &FileJob) {
        let [reads, writes] = job.reads_and_writes();
        self.job.clone_from(&job.name);
        let last = job.offset_of(job.clones - 1);
        self.bytes = self.bytes.max(last.saturating_add(job.size_bytes.unwrap_or(0)));
        self.has_no_size |= job.size_bytes.is_none();
        self.must_exist |= !job.creates;
        self.is_written |= writes;
        self.is_direct |= job.is_direct;
        self.is_laid_out |= reads || job.overwrites;
        self.allocates |= job.allocates;
    }
}

/// A file as it is measured.
#[derive(Debug)]
struct Subject {
    path: PathBuf,
    bytes: u64,
    /// It was made here, and is made again for each sample.
    is_fresh: bool,
    allocates: bool,
    is_known: bool,
}

/// One run: the files, and the groups of jobs, each a table before these are divided by job.
#[derive(Debug)]
struct Run {
    directory: PathBuf,
    file_system: String,
    preconditions: Preconditions,
    groups: Vec<Vec<Assignment>>,
    subjects: BTreeMap<PathBuf, Subject>,
    pattern: Pattern,
    is_cold: Cell<bool>,
    #[allow(dead_code, reason = "held for their Drop, which removes the files")]
    made: Vec<TempDirectory>,
}

impl Run {
    fn new(directory: &Path, groups: Vec<Vec<FileJob>>, context: &Context) -> anyhow::Result<Self> {
        let mut uses: BTreeMap<PathBuf, FileUse> = BTreeMap::new();
        for job in groups.iter().flatten() {
            paths_of(directory, job).for_each(|path| uses.entry(path).or_default().add(job));
        }
        let (pattern, mut subjects) = (Pattern::new(context.seed), BTreeMap::new());
        let mut missing: BTreeMap<PathBuf, Vec<(PathBuf, FileUse)>> = BTreeMap::new();
        for (path, own) in uses {
            if let Some(subject) = existing(&path, &own)? {
                subjects.insert(path, subject);
                continue;
            }
            let parent = path.parent().filter(|parent| parent.is_dir()).map(Path::to_owned);
            let Some(parent) = parent.filter(|_| !own.has_no_size && !own.must_exist) else {
                let why = if own.must_exist {
                    "allow_file_create=0"
                } else if own.has_no_size {
                    "there is no size for it"
                } else {
                    "nor does its directory"
                };
                return Err(Failure::Path(format!(
                    "[{}] {} does not exist, and {why}",
                    own.job,
                    path.display()
                ))
                .into());
            };
            missing.entry(parent).or_default().push((path, own));
        }
        groups.iter().try_for_each(|group| check_jobs(group))?;
        let mut made = Vec::new();
        for (parent, files) in missing {
            refuse_memory_filesystem(&parent, &filesystem_of(&parent))?;
            check_space(
                &parent,
                files.iter().map(|(_, own)| own.bytes).fold(0, u64::saturating_add),
                "give the jobs a smaller size",
            )?;
            let refused = |error: io::Error| {
                Failure::Path(format!(
                    "no files can be made in {}: {error}; name another directory",
                    parent.display()
                ))
            };
            let folder = context.cleanup.temp_directory(&parent, "fio").map_err(refused)?;
            for (path, own) in files {
                let name = path.file_name().unwrap_or_default();
                let subject = Subject {
                    path: folder.path().join(name),
                    bytes: own.bytes.next_multiple_of(PAGE_BYTES as u64),
                    is_fresh: !own.is_laid_out,
                    allocates: own.allocates,
                    is_known: own.is_laid_out && !own.is_written,
                };
                make(&subject, own.is_direct, pattern, context)?;
                subjects.insert(path, subject);
            }
            made.push(folder);
        }
        let place = |job: FileJob| {
            let own: Vec<&Subject> =
                paths_of(directory, &job).filter_map(|path| subjects.get(&path)).collect();
            let least = own.iter().map(|subject| subject.bytes).min().unwrap_or(0);
            let span_bytes = least.saturating_sub(job.offset_of(job.clones - 1));
            let span_bytes = job.size_bytes.unwrap_or(span_bytes);
            if span_bytes < job.block_bytes_max() {
                let why = format!(
                    "[{}] its file has no block of {} bytes behind the offset",
                    job.name,
                    job.block_bytes_max()
                );
                return Err(Failure::Unsuitable(why));
            }
            let is_known = own.iter().all(|subject| subject.is_known);
            let paths = own.into_iter().map(|subject| subject.path.clone()).collect();
            Ok(Assignment { job, paths, span_bytes, is_known })
        };
        let place_all = |group: Vec<FileJob>| group.into_iter().map(place).collect::<Result<Vec<_>, _>>();
        let groups = groups.into_iter().map(place_all).collect::<Result<Vec<_>, _>>()?;
        let first = subjects.values().next().map(|subject| subject.path.clone()).unwrap_or_default();
        let device = File::open(&first).ok().and_then(|file| device_stat(&file));
        Ok(Self {
            directory: directory.to_owned(),
            file_system: filesystem_of(&first),
            preconditions: Preconditions::of_device(device.as_deref()),
            groups,
            subjects,
            pattern,
            is_cold: Cell::new(true),
            made,
        })
    }
}

/// Refuses jobs at the same time whose operations in flight need more memory than there is.
fn check_jobs(jobs: &[FileJob]) -> Result<(), Failure> {
    let needed = jobs.iter().map(FileJob::memory_bytes).fold(0, u64::saturating_add);
    let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    let what = format!("[{}]: operations in flight", names.join("], ["));
    check_memory(&what, needed, "give a smaller bs, iodepth or numjobs")
}

/// Returns the file of each clone of a job.
fn paths_of(directory: &Path, job: &FileJob) -> impl Iterator<Item = PathBuf> {
    let directory = job.directory.as_ref().map_or_else(|| directory.to_owned(), |own| directory.join(own));
    let (shared, name) = (job.filename.clone(), job.name.replace('/', "_"));
    (0..job.clones).map(move |clone| match &shared {
        Some(shared) => directory.join(shared),
        None => directory.join(format!("{name}.{clone}.0")),
    })
}

/// Returns a file that exists. It is only read.
fn existing(path: &Path, own: &FileUse) -> anyhow::Result<Option<Subject>> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::missing(path, &error).into()),
    };
    let (name, kind) = (path.display(), found.file_type());
    let refused = |why: String| Failure::Path(format!("[{}] {name} {why}", own.job));
    if own.is_written {
        return Err(refused(
            "exists and would be written: what this program did not make is only read; name a new file"
                .to_owned(),
        )
        .into());
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Err(refused("is neither a regular file nor a block device".to_owned()).into());
    }
    let mut file = File::open(path).map_err(|error| Failure::missing(path, &error))?;
    // A block device has a length of zero in its metadata.
    let bytes = file.seek(SeekFrom::End(0))?;
    if bytes < own.bytes {
        return Err(refused(format!("has {bytes} bytes, of which the job wants {}", own.bytes)).into());
    }
    if kind.is_file() {
        refuse_memory_filesystem(path, &filesystem_of(path))?;
    }
    if own.is_direct {
        require_direct(path, &filesystem_of(path))?;
    }
    Ok(Some(Subject { path: path.to_owned(), bytes, is_fresh: false, allocates: false, is_known: false }))
}

/// Makes a file, and writes it unless each sample makes it again.
fn make(subject: &Subject, is_direct: bool, pattern: Pattern, context: &Context) -> anyhow::Result<()> {
    let Subject { path, bytes, .. } = subject;
    let refused = |error: io::Error| {
        Failure::Unsuitable(format!("{} of {} cannot be made: {error}", path.display(), show_bytes(*bytes)))
    };
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(refused)?;
    if is_direct {
        require_direct(path, &filesystem_of(path))?;
    }
    if !subject.is_fresh {
        let step = context.step(format!("write {} of test data", show_bytes(*bytes)), *bytes, Unit::Bytes);
        write_direct(path, *bytes, |at, memory| pattern.fill(at, memory), &step).map_err(refused)?;
        step.finish("on the device");
    }
    Ok(())
}

impl Subject {
    /// Brings it into the state in which samples start. Returns whether it is evicted from memory.
    fn reset(&self) -> anyhow::Result<bool> {
        if !self.is_fresh {
            let file = File::open(&self.path)?;
            evict(&file)?;
            let is_file = file.metadata()?.is_file();
            return Ok(
                !is_file || resident_bytes(&file, self.bytes)? as f64 <= self.bytes as f64 * COLD_SHARE
            );
        }
        let file = OpenOptions::new().write(true).open(&self.path)?;
        file.set_len(0)?;
        if self.allocates {
            let made = fallocate(&file, FallocateFlags::empty(), 0, self.bytes);
            made.or_else(|error| if error == rustix::io::Errno::OPNOTSUPP { Ok(()) } else { Err(error) })?;
        }
        Ok(true)
    }
}

impl Plan for Run {
    fn place(&self) -> Place {
        self.preconditions.place(&self.directory, &self.file_system)
    }

    fn settings(&self) -> Vec<Parameters> {
        let of =
            |(number, jobs): (u64, &Vec<Assignment>)| parameters(json!({ "group": number, "jobs": jobs }));
        (1..).zip(&self.groups).map(of).collect()
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        let paths = || self.groups[turn.setting].iter().flat_map(|placed| &placed.paths);
        for subject in self.subjects.values().filter(|subject| paths().any(|path| *path == subject.path)) {
            self.is_cold.set(self.is_cold.get() & subject.reset()?);
        }
        job.pattern_seed = Some(self.pattern.seed());
        let before = |placed: &Assignment| placed.job.delay_seconds + placed.job.ramp_seconds;
        job.seconds_max += self.groups[turn.setting].iter().map(before).fold(0.0, f64::max);
        Ok(job.into())
    }

    fn claim(&self, turn: &Turn<'_>, _: &Outcome) -> Claim {
        let threads: u64 = self.groups[turn.setting].iter().map(|placed| placed.job.clones).sum();
        Claim { workers: Some(threads as usize), ..Claim::default() }
    }

    fn cache(&self, _: &Parameters, _: &Way) -> Option<CacheState> {
        None
    }

    fn method(&self, _: &Parameters, seconds: f64) -> String {
        format!(
            "The jobs between two stonewalls of the job file run at the same time, in a process of their own for each repeat, each clone \
             on a thread. Times are from the submission of an operation to its completion, as fio's with --lat_percentiles=1; syncs have \
             times of their own. Files that are read were written before, with data that do not compress, and evicted. Files that are \
             only written have their space and are made anew for each repeat, as fio makes them: the first write of a block also \
             changes the file system's map, and one of a block that was written before (overwrite=1) does not. A job ends {seconds:.2} s after its startdelay and ramp_time, if not before. Figures are medians of the repeats."
        )
    }

    fn notes(&self, setting: &Parameters) -> Vec<String> {
        let jobs = setting
            .get("group")
            .and_then(Value::as_u64)
            .and_then(|group| self.groups.get(group as usize - 1));
        let mut notes = Vec::new();
        for Assignment { job, .. } in jobs.into_iter().flatten() {
            let names = job.options.keys().map(String::as_str);
            let names: Vec<&str> = names.filter(|name| is_without_effect(name)).collect();
            if !names.is_empty() {
                notes.push(format!("[{}] options without an effect here: {}", job.name, names.join(", ")));
            }
            if job.verify_every > 0 {
                let how = "a word of each page is compared with the one written, without fio's checksums";
                notes.push(format!("[{}] verify: {how}", job.name));
            }
            if job.order == Order::Uniform && job.has_lengths() {
                let how = "a block may come again before all were there, as with norandommap";
                notes.push(format!("[{}] blocks of several lengths: {how}", job.name));
            }
        }
        notes.extend((!self.is_cold.get()).then(|| PARTLY_WARM.to_owned()));
        notes
    }
}

/// Returns a table for each job of a group.
fn tables_of(group: &Table) -> Vec<Table> {
    let jobs = group.parameters.get("jobs").cloned().unwrap_or_default();
    let placed: Vec<Assignment> = serde_json::from_value(jobs).unwrap_or_default();
    let Some(row) = group.rows.first() else { return Vec::new() };
    let is_cold = !group.notes.iter().any(|note| note == PARTLY_WARM);
    let table = |(index, Assignment { job, .. }): (usize, Assignment)| {
        let mut own = group.clone();
        own.rows = KINDS.iter().filter_map(|kind| row_of(row, index, kind, &job, is_cold)).collect();
        own.parameters.retain(|name, _| !["jobs", "group"].contains(&name.as_str()));
        let named = |name: &str| !["name", "stonewall"].contains(&name);
        // Those without a value are not in fio's result.
        let options = job.options.iter().filter(|(name, value)| named(name) && !value.is_empty());
        let options = options.map(|(name, value)| (name.clone(), number_or_text(&value.as_str().into())));
        own.parameters.extend(options);
        own.parameters.insert("job".to_owned(), job.name.as_str().into());
        let depth = own.parameters.get("iodepth").cloned();
        own.parameters.extend(depth.map(|depth| ("depth".to_owned(), depth)));
        own
    };
    placed.into_iter().enumerate().map(table).collect()
}

/// Returns a row of a job: the figures that its group's row has under its number.
fn row_of(group: &Row, index: usize, kind: &str, job: &FileJob, is_cold: bool) -> Option<Row> {
    let [reads, writes] = job.reads_and_writes();
    if let Some(why) = &group.skipped {
        let is_done = kind == "read" && reads || kind == "write" && writes;
        return is_done.then(|| Row::skipped(kind, why.as_str()));
    }
    let prefix = format!("{index}:{kind}:");
    let sample = |sample: &Sample| {
        let own = sample.metrics.0.iter();
        let own = own.filter_map(|(name, value)| Some((name.strip_prefix(&prefix)?.to_owned(), *value)));
        let metrics = Metrics(own.collect());
        (!metrics.0.is_empty()).then_some(Sample { repeat: sample.repeat, metrics })
    };
    let samples: Vec<Sample> = group.samples.iter().filter_map(sample).collect();
    if samples.is_empty() {
        return None;
    }
    let mut row = Row::from_samples(kind, samples).describe("as fio calls it");
    row.conditions.clone_from(&group.conditions);
    Some(row.cache(match (job.is_direct, is_cold) {
        (true, _) => CacheState::Direct,
        (false, true) => CacheState::Evicted,
        (false, false) => CacheState::Warm,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::lanes::{test_context, test_options};
    use super::*;

    /// Runs the samples of a job file in this process, one of each group.
    fn run(text: &str, seconds: f64) -> anyhow::Result<Vec<Outcome>> {
        let context = test_context();
        let groups = job_file::parse(text, Path::new(""), &|_| None).map_err(anyhow::Error::msg)?;
        let crate::context::Target::Directory(directory) = &context.target else { panic!("a directory") };
        let mut plan = Run::new(directory, groups, &context)?;
        let settings = plan.settings();
        let samples = settings.iter().enumerate().map(|(setting, parameters)| {
            let way = &SPEC.ways[0];
            let turn = Turn { setting, parameters, way, repeat: 0, seed: 7, seconds, counts: false };
            let mut job = Job::new(SPEC.name, "", parameters, 60.0)?;
            (job.seed, job.seconds) = (7, seconds);
            let start = plan.start(&turn, job)?;
            Jobs.sample(&start.job)
        });
        samples.collect()
    }

    fn figure(outcome: &Outcome, name: &str) -> f64 {
        outcome.figures.get(name).unwrap_or_else(|| panic!("no {name}: {:?}", outcome.figures))
    }

    #[test]
    fn every_engine_does_the_operations_of_its_jobs() {
        for engine in ["sync", "psync", "libaio", "io_uring", "mmap"] {
            let kinds: &[&str] = if engine == "mmap" { &["read"] } else { &["read", "write", "rw"] };
            for kind in kinds {
                for (random, direct) in [("", 0), ("rand", 0), ("rand", 1)] {
                    if engine == "mmap" && direct == 1 {
                        continue;
                    }
                    let text = format!(
                        "[a]\nioengine={engine}\nrw={random}{kind}\ndirect={direct}\nsize=256k\nnumjobs=2\niodepth=4\n"
                    );
                    let outcomes = match run(&text, 60.0) {
                        Err(error) if format!("{error:#}").contains("the kernel refuses") => continue,
                        other => other.unwrap_or_else(|error| panic!("{text}: {error:#}")),
                    };
                    let [outcome] = &outcomes[..] else { panic!("{outcomes:?}") };
                    // Two clones, each with the size of its file.
                    assert_eq!((outcome.operations, outcome.bytes), (128, 512 << 10), "{text}");
                    if *kind != "write" {
                        assert!(
                            figure(outcome, "0:read:iops") > 0.0 && figure(outcome, "0:read:p50_us") >= 0.0
                        );
                    }
                    assert_eq!(outcome.figures.get("0:write:iops").is_some(), *kind != "read", "{text}");
                }
            }
        }
    }

    #[test]
    fn groups_run_one_after_the_other_and_syncs_have_times_of_their_own() {
        let text = "[global]\nsize=64k\nbs=2300\n[log]\nrw=write\nioengine=sync\nfdatasync=1\n[beside]\nrw=randread\nbs=4k\n\
            [later]\nstonewall\nrw=write\nfsync=7\nio_size=69000\n";
        let outcomes = run(text, 60.0).expect("they are run");
        let [first, later] = &outcomes[..] else { panic!("{outcomes:?}") };
        assert_eq!(first.operations, 28 + 16);
        for name in ["0:write:iops", "0:write:p50_us", "0:sync:p50_us", "1:read:mb_per_s"] {
            assert!(figure(first, name) > 0.0, "{name}");
        }
        assert_eq!(later.operations, 30);
        assert!(later.figures.get("0:sync:p50_us").is_some() && later.figures.get("1:read:iops").is_none());
    }

    /// Options with the operations and bytes of a job of 64 KiB that has them, as fio 3.33 does them.
    const COUNTED: [(&str, std::ops::RangeInclusive<u64>, u64); 30] = [
        ("", 16..=16, 64 << 10),
        ("loops=3", 48..=48, 192 << 10),
        ("loops=3 rw=write io_size=20k", 15..=15, 60 << 10),
        ("rw=read:-8k", 16..=16, 64 << 10),
        ("rw=write:12k", 16..=16, 64 << 10),
        ("rw=read zonemode=strided zonesize=8k zoneskip=8k", 16..=16, 64 << 10),
        ("offset=8k offset_increment=16k size=32k numjobs=3 filename=f rw=randwrite", 24..=24, 96 << 10),
        ("bs=4k,8k rw=randwrite", 8..=8, 64 << 10),
        ("bsrange=4k-16k rw=read", 4..=16, 64 << 10),
        ("bssplit=512/10:1k/20:4k/ rw=write", 16..=128, 64 << 10),
        ("bs=12k rw=read", 5..=5, 60 << 10),
        ("bs=12k io_size=30k", 3..=3, 36 << 10),
        ("bs=12k norandommap", 6..=6, 72 << 10),
        ("bssplit=512/50:4k/50 blockalign=4k rw=randrw", 16..=128, 64 << 10),
        ("random_distribution=zipf:1.2", 16..=16, 64 << 10),
        ("random_distribution=pareto:0.3 rw=randrw", 16..=16, 64 << 10),
        ("random_distribution=normal:20", 16..=16, 64 << 10),
        ("random_distribution=zoned:50/5:30/15:20/", 16..=16, 64 << 10),
        ("rw=randwrite verify=crc32c", 32..=32, 128 << 10),
        ("rw=write verify=md5 verify_backlog=3 loops=2", 64..=64, 256 << 10),
        ("rw=write:8k verify=md5 do_verify=0", 16..=16, 64 << 10),
        ("rw=write sync=dsync", 16..=16, 64 << 10),
        ("rate_iops=10000 rate_process=poisson rw=randrw", 16..=16, 64 << 10),
        // The second is due after an hour.
        ("rate=1", 1..=1, 4096),
        ("thinktime=1h thinktime_blocks=3", 3..=3, 12 << 10),
        ("thinktime=1us startdelay=1ms", 16..=16, 64 << 10),
        ("iodepth=8 iodepth_batch_complete_min=4 iodepth_low=2", 16..=16, 64 << 10),
        ("number_ios=5 exitall flow=1 flow_id=7", 5..=5, 20 << 10),
        // All is done before it is measured.
        ("ramp_time=1h", 0..=0, 0),
        ("runtime=1h ramp_time=0 startdelay=0 norandommap", 16..=16, 64 << 10),
    ];

    #[test]
    fn jobs_do_the_operations_of_their_options() {
        for engine in ["psync", "sync", "libaio", "io_uring"] {
            for (options, operations, bytes) in COUNTED {
                let own = options.replace(' ', "\n");
                let text = format!("[a]\nioengine={engine}\nrw=randread\niodepth=4\nsize=64k\n{own}\n");
                let outcomes = match run(&text, 60.0) {
                    Err(error) if format!("{error:#}").contains("the kernel refuses") => continue,
                    other => other.unwrap_or_else(|error| panic!("{text}: {error:#}")),
                };
                let [outcome] = &outcomes[..] else { panic!("{outcomes:?}") };
                assert!(operations.contains(&outcome.operations), "{text}: {}", outcome.operations);
                // The last block may be beyond them.
                assert!((bytes..bytes + 4096).contains(&outcome.bytes), "{text}: {}", outcome.bytes);
                let is_verified = options.contains("verify=") && !options.contains("do_verify=0");
                assert!(!is_verified || figure(outcome, "0:read:iops") > 0.0, "{text}");
            }
        }
    }

    /// The first job ends the second, which until then has three operations for each operation of the first.
    #[test]
    fn a_flow_has_the_shares_of_its_weights_and_one_job_ends_the_other() {
        for engine in ["psync", "libaio"] {
            let text = format!(
                "[global]\nsize=64k\nioengine={engine}\n[a]\nflow=1\nnumber_ios=200\ntime_based\nruntime=1h\nexitall\n\
                [b]\nflow=3\ntime_based\nruntime=1h\n"
            );
            let outcomes = run(&text, 3600.0).unwrap_or_else(|error| panic!("{text}: {error:#}"));
            // Started operations exceed the share by at most one, plus one since the last check.
            assert!((200 + 597..=200 + 602).contains(&outcomes[0].operations), "{}", outcomes[0].operations);
        }
    }

    /// Regression: it was waited for until it had begun.
    #[test]
    fn a_job_ends_another_that_has_not_begun() {
        for engine in ["psync", "libaio"] {
            let text = format!("[global]\nsize=64k\nioengine={engine}\n[a]\nexitall\n[b]\nstartdelay=1h\n");
            let outcomes = run(&text, 60.0).unwrap_or_else(|error| panic!("{text}: {error:#}"));
            assert_eq!(outcomes[0].operations, 16, "{text}");
        }
    }

    /// Regression: a job without another end kept the places of all its writes, and never read them.
    #[test]
    fn a_job_that_works_for_a_time_reads_its_writes_after_each_pass() {
        let text = "[a]\nrw=randwrite\nsize=64k\nverify=md5\ntime_based\nruntime=1h\nnumber_ios=40\n";
        // Two passes of 16 blocks, and the rest.
        let outcomes = run(text, 60.0).expect("it is run");
        assert_eq!(outcomes[0].operations, 80);
        assert!(figure(&outcomes[0], "0:read:mb_per_s") > 0.0);
    }

    #[test]
    fn more_memory_than_there_is_is_refused() {
        let text = "[a]\nioengine=libaio\nsize=1g\nbs=1g\niodepth=4096\nnumjobs=1024\nfilename=f\n";
        let error = run(text, 60.0).expect_err("4 EiB");
        assert!(error.to_string().contains("a smaller bs, iodepth or numjobs"), "{error}");
    }

    #[test]
    fn a_job_waits_for_another_and_reads_its_file() {
        let text = "[global]\nfilename=f\nsize=64k\n[a]\nrw=write\n[b]\nwait_for=a\nrw=randread\n";
        let outcomes = run(text, 60.0).expect("they are run");
        assert_eq!(outcomes.iter().map(|outcome| outcome.operations).collect::<Vec<_>>(), [16, 16]);
        let error = run("[a]\nallow_file_create=0\nsize=64k\n", 60.0).expect_err("it does not exist");
        assert!(error.to_string().contains("allow_file_create=0"), "{error}");
    }

    /// A job that has its time, and no other end, ends by it.
    #[test]
    fn a_job_ends_after_its_time() {
        let timed = run("[a]\nrw=randread\nsize=64k\ntime_based\nruntime=3600\n", 0.05).expect("it is run");
        assert!(timed[0].operations > 0 && timed[0].seconds < 3600.0);
        let few = run("[a]\nrw=randread\nsize=64k\nnumber_ios=5\ntime_based=0\n", 60.0).expect("it is run");
        assert_eq!(few[0].operations, 5);
    }

    #[test]
    fn existing_files_are_only_read() {
        let (cleanup, temp) = super::super::lanes::test_file(3, 64 << 10);
        let name = temp.path().display();
        let outcomes = run(&format!("[a]\nfilename={name}\nrw=read\n"), 60.0).expect("it may be read");
        assert_eq!(outcomes[0].bytes, 64 << 10);
        for kind in ["write", "randwrite", "rw"] {
            let error =
                run(&format!("[a]\nfilename={name}\nrw={kind}\n"), 60.0).expect_err("it may not be written");
            assert!(error.to_string().contains("would be written"), "{error}");
        }
        let error = run(&format!("[a]\nfilename={name}\nsize=1m\n"), 60.0).expect_err("it is shorter");
        assert!(error.to_string().contains("has 65536 bytes"), "{error}");
        let error = run("[a]\nfilename=no-such-directory/f\nsize=1m\n", 60.0).expect_err("no directory");
        assert!(error.to_string().contains("nor does its directory"), "{error}");
        let error = run("[a]\nrw=write\n", 60.0).expect_err("no size");
        assert!(error.to_string().contains("no size"), "{error}");
        // Regression: a name that leads nowhere counted as one that does not exist, and another file was measured.
        let folder = cleanup.temp_directory(&std::env::temp_dir(), "link").expect("writable");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&link, &link).expect("it is ours");
        let error = run(&format!("[a]\nfilename={}\nsize=64k\nrw=read\n", link.display()), 60.0)
            .expect_err("it leads to itself");
        assert!(error.to_string().contains("cannot be used"), "{error}");
    }

    #[test]
    fn tables_are_those_of_a_converted_result() {
        let text = "[global]\nbs=4k\nname=x\nthread\n[a]\nrw=randrw\niodepth=8\nioengine=libaio\nbuffered=0\nsize=64k\n";
        let context = test_context();
        let groups = job_file::parse(text, Path::new(""), &|_| None).expect("valid");
        let crate::context::Target::Directory(directory) = &context.target else { panic!("a directory") };
        let plan = Run::new(directory, groups, &context).expect("room for 64 KiB");
        let mut group = Table::new(SPEC.name, "");
        group.parameters.extend(plan.settings().remove(0));
        let figures = [("0:read:iops", 5.0), ("0:write:p50_us", 7.0), ("iops", 12.0)];
        group.rows = vec![super::super::lanes::test_row("jobs", &[1.0, 2.0, 3.0], &figures)];
        let tables = tables_of(&group);
        let [table] = &tables[..] else { panic!("{tables:?}") };
        let names: Vec<&str> = table.parameters.keys().map(String::as_str).collect();
        assert_eq!(names, ["bs", "buffered", "depth", "iodepth", "ioengine", "job", "rw", "size"]);
        assert_eq!((table.number("depth"), table.text("job"), table.text("bs")), (Some(8.0), "a", "4k"));
        let rows: Vec<&str> = table.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(rows, ["read", "write"]);
        assert_eq!((table.rows[0].get(metric::IOPS), table.rows[0].samples.len()), (Some(10.0), 3));
        assert_eq!(
            (table.rows[0].cache, table.rows[1].get(metric::P50_US)),
            (Some(CacheState::Direct), Some(14.0))
        );
        group.rows = vec![Row::skipped("jobs", "refused")];
        assert_eq!(tables_of(&group)[0].rows.len(), 2, "a read and a write that were not measured");
    }

    #[test]
    fn the_job_file_is_an_operand() {
        let options = test_options(&SPEC, Length::Quick, &["a.fio", "--repeats", "2"]);
        assert_eq!((options.words("job"), options.number("seconds")), (vec!["a.fio"], Some(2.0)));
    }
}
