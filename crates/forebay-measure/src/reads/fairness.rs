//! `measure fairness`: one small random reader together with programs that read or write as much as they can.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use forebay::device::Device;
use forebay::{Block, Class, Config, Engine, File, Open};

use crate::cgroup::{Group, Parent};
use crate::cleanup::Cleanup;
use crate::output::print;
use crate::prelude::*;
use crate::sampler::{command, pass_job};

#[derive(Debug)]
pub(crate) struct Fairness;

/// Bytes of the reader's reads.
const READ_BYTES: u64 = 4096;
/// Bytes of a hog's requests; the next constant is the number of them in flight.
const HOG_BYTES: u64 = 1 << 20;
const HOG_DEPTH: u64 = 64;
/// The hogs' weight, against the default of 100. The ratio is that of `Class::BACKGROUND` to `Class::DEFAULT`.
const HOGS_WEIGHT: &str = "25";

static SPEC: Spec = Spec {
    name: "fairness",
    about: "Read 4 KiB at random, one at a time, beside programs that saturate the same device",
    quick_seconds: 6,
    full_seconds: 120,
    needs_directory: true,
    options: &[
        Opt::seconds("5", "0.5"),
        Opt::count("hogs", "Hogs beside the reader, each with 64 requests of 1 MiB in flight", 64)
            .list()
            .or("1,16"),
        Opt::flag("writes", "The hogs write instead of reading"),
        Opt::bytes("size", "Bytes of the file", 8 << 20, u64::MAX).or("2GiB").quick("256MiB"),
        Opt::repeats("3").quick("1"),
    ],
    ways: &[
        Way::direct("reader-alone", "the reader without hogs, Forebay on one shard, O_DIRECT"),
        Way::direct("hogs-alone", "the hogs without the reader, Forebay on one shard, O_DIRECT"),
        Way::direct("no-classes", "both on one shard of Forebay in one class, O_DIRECT"),
        Way::direct("classes", "both on one shard of Forebay, the hogs in the background class, O_DIRECT"),
        Way::direct(
            "ionice",
            "two engines, the hogs' shard in the kernel's idle class (ionice -c 3), O_DIRECT",
        ),
        Way::direct(
            "cgroup-io",
            "two processes, the hogs' in a cgroup with a quarter of the weight, O_DIRECT",
        ),
    ],
    columns: &[
        columns::P50_US,
        columns::P99_US,
        columns::P99_9_US,
        columns::IOPS,
        column(metric::HOG_MB_PER_S, "hog MB/s", 1.0, "throughput of all hogs together"),
    ],
    compared: metric::P99_US,
    charts: &[metric::P99_US, metric::HOG_MB_PER_S],
    axis: Axis::new("hogs", "hogs"),
    role: Role::Sharing,
    gains: Vec::new,
};

impl Experiment for Fairness {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        ScratchDir::find(context, SPEC.name)?;
        let file = TestFile::prepare(context, options.count("size").next_multiple_of(HOG_BYTES), None)?;
        let does = if options.given("writes") { "write" } else { "read" };
        let of = |hogs| {
            parameters(json!({
                "hogs": hogs, "hog_does": does, "hog_bytes": HOG_BYTES, "hog_depth": HOG_DEPTH,
                "block_bytes": READ_BYTES, "file_bytes": file.bytes,
            }))
        };
        let settings = options.counts("hogs").into_iter().map(of).collect();
        Ok(Box::new(Run { file, settings, groups: 0, cleanup: &context.cleanup }))
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        let shared = shared::<Work>(job)?;
        let row = job.row.as_str();
        if let ("hogs-alone", Some(procs)) = (row, &shared.1.hogs_procs) {
            // Before the engine starts its threads.
            std::fs::write(procs, "0")
                .with_context(|| format!("the hogs may not enter {}", procs.display()))?;
        }
        let others = (row == "cgroup-io").then(|| OtherHogs::start(&shared)).transpose()?;
        let config = || Config::new().shards(1);
        with_engine(config(), |engine| match row {
            "classes" => run(&shared, engine, (engine, Class::BACKGROUND), others),
            "ionice" => with_engine(config(), |apart| {
                let thread = apart.spawn_on_shard(0, Class::DEFAULT, || async { rustix::thread::gettid() });
                make_idle(thread.wait()?.as_raw_nonzero().get())?;
                run(&shared, engine, (apart, Class::DEFAULT), others)
            }),
            _ => run(&shared, engine, (engine, Class::DEFAULT), others),
        })
    }

    fn title(&self, table: &Table) -> (String, String) {
        let title = match (shown(table, "hogs"), shown(table, "hog_does")) {
            (one, does) if one == "1" => format!("A small reader beside 1 hog that {does}s"),
            (hogs, does) => format!("A small reader beside {hogs} hogs that {does}"),
        };
        (title, format!("A small reader beside hogs that {}", shown(table, "hog_does")))
    }

    /// Returns the reader's gain by classes, and the hogs' loss, for each number of hogs.
    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        tables.iter().flat_map(|table| [reader_gain(table), hog_loss(table)]).flatten().collect()
    }
}

/// One run: a file, and a table for each number of hogs.
#[derive(Debug)]
struct Run<'a> {
    file: TestFile,
    settings: Vec<Parameters>,
    /// Groups made so far; each has its number in its name.
    groups: u64,
    cleanup: &'a Cleanup,
}

impl Plan for Run<'_> {
    fn place(&self) -> Place {
        self.file.place()
    }

    fn settings(&self) -> Vec<Parameters> {
        self.settings.clone()
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        job.seconds_max = 2.0 * turn.seconds;
        if turn.way.name != "cgroup-io" {
            return Ok(job.into());
        }
        self.groups += 1;
        let group = hog_group(&self.file.path, self.groups, self.cleanup)?;
        job.work["hogs_procs"] = json!(group.procs_path());
        Ok(Start { held: Some(Box::new(group)), ..job.into() })
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        let (small, writes) = (outcome.operations * READ_BYTES, turn.text("hog_does") == "write");
        Claim {
            read_bytes: Some(if writes { small } else { outcome.bytes }).filter(|bytes| *bytes > 0),
            written_bytes: (writes && turn.way.name != "reader-alone").then_some(outcome.bytes - small),
            workers: Some(1),
            ..Claim::default()
        }
    }

    fn method(&self, setting: &Parameters, seconds: f64) -> String {
        format!(
            "The file is written through with data that do not compress. Each row is a fresh process that runs for \
             {seconds:.1} s: a reader that reads 4 KiB anywhere in the file, one at a time, past the page cache, and hogs \
             of which each has 64 {}s of 1 MiB anywhere in the same file in flight. Percentiles are the reader's; the hogs' \
             bytes are those of requests that ended within the time.",
            text(setting, "hog_does"),
        )
    }
}

/// The parameters that a sample needs.
#[derive(Debug, Deserialize)]
struct Work {
    hogs: u64,
    hog_does: String,
    file_bytes: u64,
    /// The file through which the hogs' process enters its control group.
    hogs_procs: Option<PathBuf>,
}

/// A sample's job and parameters.
type SharedJob = Arc<(Job, Work)>;

/// Runs the reader on `engine` and the hogs on their own engine, unless they are in another process.
fn run(
    shared: &SharedJob,
    engine: &Engine,
    (hog_engine, hog_class): (&Engine, Class),
    others: Option<OtherHogs>,
) -> anyhow::Result<Outcome> {
    let (job, work) = &**shared;
    let (has_reader, has_hogs) = (job.row != "hogs-alone", job.row != "reader-alone");
    let small = engine.open(&job.path, Open::read()).wait()?;
    let open = if work.hog_does == "write" { Open::write() } else { Open::read() };
    let large = hog_engine.open(&job.path, open).wait()?;
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    if !has_reader && work.hogs_procs.is_some() {
        // The reader, in the other process, starts now.
        print("begun\n")?;
    }
    let begun = gauge.begun();
    let end = begun + Duration::from_secs_f64(job.seconds);
    let hogs = {
        let (shared, engine) = (Arc::clone(shared), hog_engine.clone());
        let hogs = if has_hogs && others.is_none() { work.hogs } else { 0 };
        hog_engine.spawn_on_shard(0, hog_class, move || run_hogs(hogs, large, shared, end, engine))
    };
    let shared = Arc::clone(shared);
    let reader = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let mut latency = Latency::new()?;
        if has_reader {
            let record = |_, time| latency.record(time);
            lane(&small, shared.1.file_bytes, shared.0.seed, READ_BYTES, None, end, record).await?;
        }
        anyhow::Ok(latency)
    });
    let (latency, mut hog_bytes) = (reader.wait()??, hogs.wait()??);
    if let Some(others) = others {
        hog_bytes = others.finish()?;
    }
    let reads = latency.count();
    let outcome = Outcome::new(gauge.stop()?, reads, reads * READ_BYTES + hog_bytes, latency);
    let rate = has_hogs.then_some(hog_bytes as f64 / 1e6 / job.seconds);
    let outcome = Outcome { seconds: job.seconds, ..outcome }.figure(metric::HOG_MB_PER_S, rate);
    // Without a reader the rate is absent, not 0.
    Ok(if has_reader { outcome } else { outcome.without(&[metric::IOPS]) })
}

/// Puts a thread into the kernel's idle class: ionice(1).
fn make_idle(thread: i32) -> anyhow::Result<()> {
    let ran = Command::new("ionice").args(["-c", "3", "-p", &thread.to_string()]).output();
    let output = ran.context("ionice is not there (package util-linux)")?;
    ensure!(output.status.success(), "ionice: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Reads `bytes` bytes, or writes `block`, at random places until the time is over, but at least once: a busy machine may start
/// late. Calls `ended` with the end and the time of each operation.
async fn lane(
    file: &File,
    file_bytes: u64,
    seed: u64,
    bytes: u64,
    block: Option<Block>,
    until: Instant,
    mut ended: impl FnMut(Instant, Duration),
) -> anyhow::Result<()> {
    let mut random = SplitMix::new(seed);
    let mut before = Instant::now();
    loop {
        let offset = random.below(file_bytes / bytes) * bytes;
        match &block {
            Some(block) => file.write(offset, block.clone()).await?,
            None => drop(file.read(offset..offset + bytes).await?),
        }
        let now = Instant::now();
        ended(now, now - before);
        if now >= until {
            return Ok(());
        }
        before = now;
    }
}

/// Runs `hogs` hogs, and returns the bytes of the operations that completed in time.
async fn run_hogs(
    hogs: u64,
    file: File,
    shared: SharedJob,
    until: Instant,
    engine: Engine,
) -> anyhow::Result<u64> {
    let (seed, work) = (shared.0.seed, &shared.1);
    let moved = Rc::new(Cell::new(0));
    let mut tasks = Vec::new();
    for hog in 0..hogs {
        // One block for each hog, at any number of requests in flight: memory is not the subject of the measurement.
        let mut bytes = vec![0; HOG_BYTES as usize];
        Pattern::new(seed ^ hog).fill(0, &mut bytes);
        let block = (work.hog_does == "write").then_some(engine.block_from(&bytes)?.freeze());
        for number in 0..HOG_DEPTH {
            let seed = SplitMix::new(seed ^ (hog << 32 | number) << 1).next_u64();
            let (file, block, moved) = (file.clone(), block.clone(), Rc::clone(&moved));
            let file_bytes = work.file_bytes;
            tasks.push(forebay::shard::spawn(async move {
                let count = |now, _| moved.set(moved.get() + if now < until { HOG_BYTES } else { 0 });
                lane(&file, file_bytes, seed, HOG_BYTES, block, until, count).await
            })?);
        }
    }
    for task in tasks {
        task.await??;
    }
    Ok(moved.get())
}

/// Hogs in a separate process, because control groups divide between processes; it is killed when dropped.
#[derive(Debug)]
struct OtherHogs {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl OtherHogs {
    /// Starts the process, and returns when its hogs start.
    ///
    /// # Errors
    /// The group does not exist, the process cannot be started, or may not enter its group; it has reported the reason on standard
    /// error.
    fn start(shared: &SharedJob) -> anyhow::Result<Self> {
        ensure!(shared.1.hogs_procs.is_some(), "no cgroup was made for the hogs");
        let job = Job { row: "hogs-alone".to_owned(), ..shared.0.clone() };
        let spawned = command()?.stderr(Stdio::inherit()).spawn();
        let mut child = spawned.context("the process of the hogs could not be started")?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (mut stdin, stdout) = pipes.context("the hogs' process has no input or output")?;
        let mut others = Self { child, out: BufReader::new(stdout) };
        pass_job(&mut stdin, &job)?;
        let mut line = String::new();
        others.out.read_line(&mut line)?;
        ensure!(line == "begun\n", "the hogs could not begin in their cgroup");
        Ok(others)
    }

    /// Waits for the process, and returns the bytes that the hogs moved in their time.
    fn finish(mut self) -> anyhow::Result<u64> {
        let mut text = String::new();
        self.out.read_to_string(&mut text)?;
        ensure!(self.child.wait()?.success(), "the hogs failed");
        let read = serde_json::from_str(&text).map(|outcome: Outcome| outcome.bytes);
        read.context("the result of the hogs' process cannot be read")
    }
}

impl Drop for OtherHogs {
    fn drop(&mut self) {
        // The process has ended, or its result is no longer needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a control group (cgroup v2, the io controller) in which the kernel gives the hogs a quarter of the share of the
/// device below `path` that others get.
///
/// # Errors
/// The kernel does not divide this device by weights, or this user may not make groups.
fn hog_group(path: &Path, number: u64, cleanup: &Cleanup) -> anyhow::Result<Group> {
    let device = Device::of_path(path)?;
    let parents = Parent::of_io();
    let Some(top) = parents.last() else { bail!("no cgroup v2 is mounted") };
    let file = weight_file(&device, &top.text("io.cost.qos"))?;
    let mut refused = None;
    // The nearest parent is tried first. A group that holds processes itself gives its children no controller.
    for parent in &parents {
        match Group::create_with(parent, (file, HOGS_WEIGHT), number, cleanup) {
            Ok(group) => return Ok(group),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or_else(|| std::io::ErrorKind::NotFound.into()))
        .context("no cgroup could be made for the hogs")
}

/// Returns the file of weights that the kernel applies to this device: with its scheduler bfq, or where `io.cost` is on
/// (`qos` is the text of the hierarchy's `io.cost.qos`).
fn weight_file(device: &Device, qos: &str) -> anyhow::Result<&'static str> {
    if device.scheduler() == Some("bfq") {
        return Ok("io.bfq.weight");
    }
    if device.physical().any(|disk| is_costed(qos, disk.major(), disk.minor())) {
        return Ok("io.weight");
    }
    bail!(
        "no cgroup divides {}: its scheduler is {}, not bfq, and io.cost is not on for it (io.cost.qos)",
        device.name(),
        device.scheduler().unwrap_or("unknown")
    )
}

/// Returns whether io.cost is on for the device of these numbers. Lines are `8:0 enable=1 ctrl=auto ...`.
fn is_costed(qos: &str, major: u32, minor: u32) -> bool {
    let numbers = format!("{major}:{minor}");
    qos.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some(numbers.as_str()) && words.any(|word| word == "enable=1")
    })
}

/// Describes the hogs of a table: `16 writing hogs`.
fn subject(table: &Table) -> String {
    let does = if shown(table, "hog_does") == "write" { "writing" } else { "reading" };
    let hogs = shown(table, "hogs");
    format!("{hogs} {does} hog{}", if hogs == "1" { "" } else { "s" })
}

fn reader_gain(table: &Table) -> Option<String> {
    let (with, without) = (table.row("classes")?, table.row("no-classes")?);
    let (metric, called, unit, found) = OF_THE_READER.iter().find_map(|(metric, called, unit)| {
        Some((*metric, *called, *unit, difference(with, without, metric)?))
    })?;
    let figure = |row: &Row| Some(format!("{} {unit}", number(row.metrics.get(metric)?.round())));
    let compared = match found {
        Difference::Equal => "equal to `no-classes`".to_owned(),
        _ => format!("{} with `no-classes`", figure(without)?),
    };
    let alone = table.row("reader-alone").and_then(figure);
    let alone = alone.map_or_else(String::new, |alone| format!(", {alone} with `reader-alone`"));
    Some(format!(
        "{}: reader {called} is {} with `classes`, {compared}{alone}{}",
        subject(table),
        figure(with)?,
        once(&[with])
    ))
}

/// The reader's figures, the most telling first, each with its name and unit. A reader with few reads has no p99.
const OF_THE_READER: [(&str, &str, &str); 3] =
    [(metric::P99_US, "p99", "µs"), (metric::P50_US, "p50", "µs"), (metric::IOPS, "rate", "IOPS")];

fn hog_loss(table: &Table) -> Option<String> {
    let (with, alone) = (table.row("classes")?, table.row("hogs-alone")?);
    let left = match difference(with, alone, metric::HOG_MB_PER_S)? {
        Difference::Less(times) if times.is_finite() => format!("{} %", number((100.0 / times).round())),
        // No request of a hog ended in the time.
        Difference::Less(_) => return None,
        _ => "all".to_owned(),
    };
    let (hogs, hint) = (subject(table), once(&[with]));
    Some(format!("{hogs}: `classes` leaves the hogs {left} of the throughput of `hogs-alone`{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::TempFile;
    use crate::lanes::{sparse_file, test_job, test_row, test_table};

    /// Runs a sample of a row for this many seconds in a sparse file, which stays until its handle is dropped.
    fn sample_of(row: &str, hogs: u64, does: &str, seconds: f64) -> (TempFile, anyhow::Result<Outcome>) {
        let temp = sparse_file(8 << 20);
        let all = json!({ "hogs": hogs, "hog_does": does, "file_bytes": 8 << 20 });
        let job = Job { seconds, ..test_job(SPEC.name, row, temp.path(), all, 3) };
        let outcome = Fairness.sample(&job);
        (temp, outcome)
    }

    /// On a busy machine the reader started after the end of a sample of a tenth of a second. Its row had a rate of zero.
    #[test]
    fn a_sample_that_is_over_when_its_reader_begins_has_a_read() {
        let (_temp, outcome) = sample_of("reader-alone", 1, "read", 1e-9);
        assert_eq!(outcome.expect("a read").operations, 1);
    }

    #[test]
    fn every_row_has_its_participants() {
        for (way, does) in SPEC.ways.iter().flat_map(|way| [(way, "read"), (way, "write")]) {
            let name = way.name;
            let (temp, outcome) = sample_of(name, 2, does, 0.5);
            let outcome = match outcome {
                // This row needs another program.
                Err(error) if name == "ionice" => {
                    assert!(format!("{error:#}").contains("ionice"), "{error:#}");
                    continue;
                }
                // This row needs another process, which a test is not.
                Err(error) if name == "cgroup-io" => {
                    assert!(format!("{error:#}").contains("no cgroup"), "{error:#}");
                    continue;
                }
                outcome => outcome.unwrap_or_else(|error| panic!("{name}: {error:#}")),
            };
            let (has_reader, has_hogs) = (name != "hogs-alone", name != "reader-alone");
            assert_eq!(outcome.operations > 0, has_reader, "{name} {outcome:?}");
            let found = outcome.metrics();
            assert_eq!(found.get(metric::IOPS).is_some(), has_reader, "{name} {found:?}");
            assert_eq!(
                found.get(metric::P99_US).is_some_and(|time| time > 0.0),
                has_reader,
                "{name} {found:?}"
            );
            assert_eq!(found.get(metric::HOG_MB_PER_S).is_some(), has_hogs, "{name} {found:?}");
            let hog_bytes = outcome.bytes - outcome.operations * READ_BYTES;
            assert!(hog_bytes.is_multiple_of(HOG_BYTES), "{name} {outcome:?}");
            let rate = hog_bytes as f64 / 0.5e6;
            assert_eq!(found.get(metric::HOG_MB_PER_S).unwrap_or_default(), rate, "{name} {found:?}");
            let found = std::fs::read(temp.path()).expect("readable");
            assert_eq!(found.iter().any(|byte| *byte != 0), does == "write" && has_hogs, "{name}");
        }
    }

    #[test]
    fn io_cost_counts_for_the_devices_it_is_on_for() {
        let qos = "8:0 enable=1 ctrl=auto rpct=95.00\n8:16 enable=0 ctrl=auto\n254:0 ctrl=auto enable=1\n";
        assert!(is_costed(qos, 8, 0) && is_costed(qos, 254, 0));
        assert!(!is_costed(qos, 8, 16) && !is_costed(qos, 8, 1) && !is_costed("", 8, 0));
    }

    #[test]
    fn missing_permissions_are_reported() {
        // The result depends on this machine; both ways nothing is left.
        match hog_group(Path::new(env!("CARGO_MANIFEST_DIR")), 0, &Cleanup::default()) {
            Ok(group) => {
                let procs = group.procs_path();
                assert!(procs.exists());
                drop(group);
                assert!(!procs.exists());
            }
            Err(error) => assert!(format!("{error:#}").contains("cgroup"), "{error:#}"),
        }
    }

    fn row(name: &str, p99: Option<f64>, hogs: Option<f64>) -> Row {
        let all = [(metric::P99_US, p99), (metric::HOG_MB_PER_S, hogs), (metric::IOPS, Some(0.0))];
        let known: Vec<_> = all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        test_row(name, &[1.0, 1.0], &known)
    }

    fn table(with_us: f64) -> Table {
        let rows = vec![
            row("reader-alone", Some(80.0), None),
            row("hogs-alone", None, Some(1000.0)),
            row("no-classes", Some(9000.4), Some(990.0)),
            row("classes", Some(with_us), Some(900.0)),
        ];
        test_table(SPEC.name, json!({ "hogs": 1, "hog_does": "read" }), rows)
    }

    #[test]
    fn the_gain_of_classes_is_reported() {
        let mut table = table(200.0);
        assert_eq!(
            Fairness.verdicts(&[&table]),
            [
                "1 reading hog: reader p99 is 200 µs with `classes`, 9,000 µs with `no-classes`, 80 µs with `reader-alone`",
                "1 reading hog: `classes` leaves the hogs 90 % of the throughput of `hogs-alone`",
            ]
        );
        // Regression: of a reader with too few reads for a p99 nothing was said.
        for (row, iops) in table.rows.iter_mut().zip([10_000.0, 0.0, 14.0, 4000.0]) {
            let samples = row.samples.iter_mut().map(|sample| &mut sample.metrics);
            for metrics in samples.chain([&mut row.metrics]) {
                metrics.0.remove(metric::P99_US);
                metrics.set(metric::IOPS, iops);
            }
        }
        assert_eq!(
            Fairness.verdicts(&[&table])[0],
            "1 reading hog: reader rate is 4,000 IOPS with `classes`, 14 IOPS with `no-classes`, 10,000 IOPS with \
             `reader-alone`"
        );
        table.rows.pop();
        assert!(Fairness.verdicts(&[&table]).is_empty());
        assert_eq!(
            Fairness.title(&table),
            (
                "A small reader beside 1 hog that reads".to_owned(),
                "A small reader beside hogs that read".to_owned()
            )
        );
    }

    #[test]
    fn classes_that_change_nothing_are_called_so() {
        let mut table = table(8990.0);
        table.rows[3] = row("classes", Some(8990.0), Some(1001.0));
        let sentences = Fairness.verdicts(&[&table]);
        assert!(
            sentences[0].contains("is 8,990 µs with `classes`, equal to `no-classes`, 80 µs"),
            "{sentences:?}"
        );
        assert!(sentences[1].contains("leaves the hogs all of"), "{sentences:?}");
    }
}
