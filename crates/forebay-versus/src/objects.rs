//! `object-store`: stores of objects over local files, as query engines use them from Tokio: batches of ranges, footers and
//! column chunks of many files, whole gets, puts, uploads and lists; cold and warm.

use std::ops::Range;

use bytes::Bytes;
use forebay::{Config, Durability, Engine, Mode};
use forebay_object_store::ForebayStore;
use forebay_report::units::number;
use futures_util::TryStreamExt as _;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Location;
use object_store::{ObjectStore, ObjectStoreExt as _, WriteMultipart};
use opendal::{Operator, services};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::prelude::*;
use crate::ranges;
use crate::run::RESIDENT_PEAK_BYTES;

const MIB: u64 = 1 << 20;
/// The object that batches of ranges are read from.
const LARGE: &str = "large";
/// Objects like files of parquet: a footer at the end, and column chunks.
const FILES: u64 = 100;
const FILE_BYTES: u64 = 8 * MIB;
const FOOTER_BYTES: u64 = 16 << 10;
const CHUNKS: u64 = 8;
/// Puts, and the parts of an upload.
const SMALL_PUT_BYTES: usize = 64 << 10;
const SMALL_PUTS: u64 = 1000;
const LARGE_BYTES: usize = 64 << 20;
const LARGE_PUTS: u64 = 4;
const PART_BYTES: usize = 8 << 20;
/// Directories of the names to list.
const DIRECTORIES: u64 = 100;

/// The workloads, their descriptions, and whether they read objects that may be in the page cache.
const WORKLOADS: [(&str, &str, bool); 9] = [
    ("uniform", "get_ranges: 4 KiB at random multiples of 4 KiB of one object", true),
    ("clustered", "get_ranges: chunks of 50 ranges of 1-16 KiB with gaps below 16 KiB", true),
    ("mixed", "get_ranges: 1-64 KiB at any offset", true),
    (
        "parquet",
        "of each of 100 objects of 8 MiB the footer, then 8 column chunks of 64-512 KiB at once",
        true,
    ),
    ("gets", "100 whole objects of 8 MiB", true),
    ("puts", "1,000 puts of 64 KiB", false),
    ("large-puts", "4 puts of 64 MiB", false),
    ("uploads", "4 uploads of 64 MiB in parts of 8 MiB", false),
    ("list", "a list of all names in 100 directories", false),
];

const LOCAL: &[&str] = &["local"];
const AGAIN: &str = "local-again";

experiment! {
    OBJECT_STORE "object-store", "Stores of objects over local files, from Tokio, cold and warm",
        compared by "total_ms", per |_| "call";
    options {
        word("workloads", "What to measure",
            &["uniform", "clustered", "mixed", "parquet", "gets", "puts", "large-puts", "uploads", "list"])
            .list().or("uniform,clustered,mixed,parquet,gets,puts,large-puts,uploads,list");
        word("caches", "States of the page cache", &["cold", "warm"]).list().or("cold,warm");
        word("tasks", "Tasks that share the work", &["1", "32"]).list().or("1,32");
        count("count", "Ranges of a batch", 1 << 32).or("20000");
        count("names", "Names to list", 1 << 24).or("100000");
        count("repeats", "Interleaved repeats, each with fresh ranges", 1000).or("5");
        count("file-mib", "Size of the object that batches read, in MiB", 1 << 40).or("3072");
    }
    rows {
        cached "local", "LocalFileSystem of object_store 0.14, which does not sync puts" => sample, twin cached;
        cached "local-synced", "the same with its puts synced (`with_fsync`)" => sample;
        cached "opendal", "opendal's service `fs`, which does not sync puts" => sample;
        cached "forebay", "ForebayStore as it comes: adaptive reads, synced puts" => sample;
        direct "forebay-direct", "reads past the page cache" => sample;
        cached "forebay-buffered", "reads through the page cache" => sample;
        cached "forebay-unsynced", "puts without a sync" => sample;
    }
    columns {
        "total_ms" "total ms", "milliseconds from opening the store to the last result checked";
        "times_faster_than_local" "x local", "how many times faster than `local`";
        "cpu_ms" "CPU ms", "processor milliseconds, user and system, all threads";
        "mb_per_s" "MB/s", "bytes of results, or of what was put, in a second";
        "context_switches" "switches", "context switches";
        RESIDENT_PEAK_BYTES;
    }
    ranked by "calls_per_s"
    ratios { "times_faster_than_local" "calls_per_s" Over LOCAL; }
    spreads { "local-again" "total_ms" "a_a_spread"; }
    limits {
        "forebay" "times_faster_than_local" at_least 3.0, when |table| is_cold(table) && matches!(workload(table), "uniform" | "mixed");
        "forebay" "times_faster_than_local" at_least 2.0, when |table| is_cold(table) && workload(table) == "clustered";
        "forebay" "cpu_ms" over LOCAL, within AGAIN, at_most 0.5, when |table| is_cold(table) && is_batch(table);
        "forebay" "total_ms" over LOCAL, within AGAIN, at_most 1.05, when |table| table.text("cache") == "warm";
    }
}

fn is_cold(table: &Table) -> bool {
    table.text("cache") == "cold"
}

fn workload(table: &Table) -> &str {
    table.text("workload")
}

fn is_batch(table: &Table) -> bool {
    matches!(workload(table), "uniform" | "clustered" | "mixed")
}

fn title(table: &Table) -> String {
    let tasks = number(table.number("tasks_max").unwrap_or(0.0));
    let (workload, cache) = (workload(table), table.text("cache"));
    let what = WORKLOADS.iter().find(|(name, ..)| *name == workload).map_or("", |(_, what, _)| what);
    format!("object-store {workload}: {what}; {tasks} tasks, {cache}")
}

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let method = "Each sample is a process of its own, from Tokio; its time runs from opening the store to the last result checked. \
        Rows take turns within a repeat; ratios are those of the same repeat, and figures medians.";
    let (mut run, scratch) = Run::in_directory(context, OBJECT_STORE.spec.name, false, method)?;
    let objects = scratch.temp_directory(context, "objects")?;
    let root = objects.path().to_owned();
    let workloads = options.words("workloads");
    let wants = |names: &[&str]| workloads.iter().any(|workload| names.contains(workload));
    let file_bytes = run::file_bytes(options.count("file-mib"));
    if wants(&["uniform", "clustered", "mixed"]) {
        run::fill(context, &root.join(LARGE), file_bytes)?;
    }
    if wants(&["parquet", "gets"]) {
        std::fs::create_dir_all(root.join("files"))?;
        for number in 0..FILES {
            run::fill(context, &root.join(file(number)), FILE_BYTES)?;
        }
    }
    let names = options.count("names");
    if wants(&["list"]) {
        for directory in 0..DIRECTORIES {
            let directory = root.join("names").join(format!("{directory:03}"));
            std::fs::create_dir_all(&directory)?;
            for name in 0..names / DIRECTORIES {
                std::fs::write(directory.join(format!("object-{name:06}.parquet")), b"")?;
            }
        }
    }
    for (workload, _, is_read) in WORKLOADS {
        if !workloads.contains(&workload) {
            continue;
        }
        for cache in if is_read { options.words("caches") } else { vec!["warm"] } {
            for tasks in options.words("tasks") {
                // A list is one call.
                if workload == "list" && tasks != "1" {
                    continue;
                }
                run.table(json!({
                    "workload": workload, "cache": if is_read { cache } else { "any" }, "tasks_max": tasks.parse::<u64>()?,
                    "ranges": options.count("count"), "file_bytes": file_bytes, "keys": names / DIRECTORIES * DIRECTORIES,
                    "shape": workload, "tokio_workers": cores(),
                }));
            }
        }
    }
    run.has = Box::new(|setting, row| {
        let workload = setting.get("workload").and_then(Value::as_str).unwrap_or_default();
        let is_put = matches!(workload, "puts" | "large-puts" | "uploads");
        match row {
            "local-synced" | "forebay-unsynced" => is_put,
            "forebay-direct" | "forebay-buffered" => {
                WORKLOADS.iter().any(|(name, _, is_read)| *name == workload && *is_read)
            }
            _ => true,
        }
    });
    let drop_caches = rustix::process::geteuid().is_root();
    run.prepare = Box::new(move |turn, job| {
        job.path = objects.path().to_owned();
        let names: Vec<String> = match turn.text("workload") {
            "uniform" | "clustered" | "mixed" => vec![LARGE.to_owned()],
            "parquet" | "gets" => (0..FILES).map(file).collect(),
            _ => vec![],
        };
        for name in names {
            let path = objects.path().join(name);
            if turn.text("cache") == "warm" {
                files::load(&path)?;
            } else {
                files::evict(&path, drop_caches)?;
            }
        }
        if matches!(turn.text("workload"), "puts" | "large-puts" | "uploads") {
            let made = objects.path().join("made");
            if made.exists() {
                std::fs::remove_dir_all(&made)?;
            }
            rustix::fs::sync();
        }
        Ok(None)
    });
    Ok(run)
}

fn file(number: u64) -> String {
    format!("files/part-{number:03}.parquet")
}

/// A store of a row.
#[derive(Clone)]
enum Store {
    Object(Arc<dyn ObjectStore>),
    Opendal(Operator),
}

impl Store {
    async fn open(work: &Work) -> Result<(Self, Option<Engine>)> {
        let local = || LocalFileSystem::new_with_prefix(&work.path);
        let store: Arc<dyn ObjectStore> = match &*work.row {
            "local" => Arc::new(local()?),
            "local-synced" => Arc::new(local()?.with_fsync(true)),
            "opendal" => {
                let root = work.path.to_str().context("the directory's name is not text")?;
                return Ok((Self::Opendal(Operator::new(services::Fs::default().root(root))?), None));
            }
            row => {
                let engine = Engine::start(Config::new())?;
                let mode = match row {
                    "forebay-direct" => Mode::Direct,
                    "forebay-buffered" => Mode::Buffered,
                    _ => Mode::Adaptive,
                };
                let durability = if row == "forebay-unsynced" { Durability::None } else { Durability::Data };
                let store =
                    ForebayStore::builder(&engine, &work.path).read_mode(mode).put_durability(durability);
                return Ok((Self::Object(Arc::new(store.open().await?)), Some(engine)));
            }
        };
        Ok((Self::Object(store), None))
    }

    async fn get_ranges(&self, name: &str, ranges: Vec<Range<u64>>) -> Result<Vec<Bytes>> {
        Ok(match self {
            Self::Object(store) => store.get_ranges(&Location::from(name), &ranges).await?,
            Self::Opendal(store) => {
                let read = store.reader(name).await?.fetch(ranges).await?;
                read.into_iter().map(|buffer| buffer.to_bytes()).collect()
            }
        })
    }

    /// Returns the last `bytes` bytes of an object, and their offset.
    async fn get_end(&self, name: &str, bytes: u64) -> Result<(Bytes, u64)> {
        let size = match self {
            Self::Object(store) => store.head(&Location::from(name)).await?.size,
            Self::Opendal(store) => store.stat(name).await?.content_length(),
        };
        let mut read = self.get_ranges(name, std::iter::once(size - bytes..size).collect()).await?;
        Ok((read.pop().context("no range")?, size - bytes))
    }

    async fn get(&self, name: &str) -> Result<Bytes> {
        Ok(match self {
            Self::Object(store) => store.get(&Location::from(name)).await?.bytes().await?,
            Self::Opendal(store) => store.read(name).await?.to_bytes(),
        })
    }

    async fn put(&self, name: &str, bytes: Bytes) -> Result<()> {
        match self {
            Self::Object(store) => drop(store.put(&Location::from(name), bytes.into()).await?),
            Self::Opendal(store) => drop(store.write(name, bytes).await?),
        }
        Ok(())
    }

    async fn upload(&self, name: &str, bytes: Bytes) -> Result<()> {
        match self {
            Self::Object(store) => {
                let upload = store.put_multipart(&Location::from(name)).await?;
                let mut write = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
                write.put(bytes);
                write.finish().await?;
            }
            Self::Opendal(store) => {
                let mut writer = store.writer_with(name).chunk(PART_BYTES).await?;
                for part in bytes.chunks(PART_BYTES) {
                    writer.write(bytes.slice_ref(part)).await?;
                }
                writer.close().await?;
            }
        }
        Ok(())
    }

    /// Returns the number of objects below a prefix.
    async fn list(&self, prefix: &str) -> Result<u64> {
        match self {
            Self::Object(store) => {
                let names = store.list(Some(&Location::from(prefix)));
                Ok(names.try_fold(0, async |count, _| Ok(count + 1)).await?)
            }
            Self::Opendal(store) => {
                let names = store.lister_with(&format!("{prefix}/")).recursive(true).await?;
                let count =
                    async |count, entry: opendal::Entry| Ok(count + u64::from(entry.metadata().is_file()));
                Ok(names.try_fold(0, count).await?)
            }
        }
    }
}

/// Measures a row: its tasks share the work.
fn sample(work: &Work) -> Result<Outcome> {
    let batch = Arc::new(if matches!(&*work.workload, "uniform" | "clustered" | "mixed") {
        ranges::ranges(work)
    } else {
        Vec::new()
    });
    let mut content = vec![0; LARGE_BYTES];
    files::fill(&mut content, 0);
    let content = Bytes::from(content);
    Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let (used, begun) = (Usage::now(), Instant::now());
        let (store, _engine) = Store::open(work).await?;
        let mut tasks = JoinSet::new();
        for task in 0..work.tasks_max as u64 {
            let (store, work, batch, content) = (store.clone(), work.clone(), batch.clone(), content.clone());
            tasks.spawn(async move { part(&store, &work, task, &batch, &content).await });
        }
        let (mut calls, mut bytes) = (0, 0);
        while let Some(done) = tasks.join_next().await {
            let done = done??;
            (calls, bytes) = (calls + done.0, bytes + done.1);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let used = Usage::now().since(&used);
        Ok(Outcome::lasting(seconds)
            .figure("total_ms", seconds * 1e3)
            .figure("calls_per_s", calls as f64 / seconds)
            .figure("mb_per_s", bytes as f64 / 1e6 / seconds)
            .figure("cpu_ms", used.0[usage::CPU_NS] / 1e6)
            .figure("context_switches", used.0[usage::CONTEXT_SWITCHES]))
    })
}

/// The object of [`one_object`].
pub(crate) const OBJECT: &str = "object";

/// Measures gets of an object from a task, or batches of `ranges` random ranges of `block_bytes` bytes each.
pub(crate) fn one_object(work: &Work) -> Result<Outcome> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let (store, _engine) = runtime.block_on(Store::open(work))?;
    let lanes = std::iter::once((store, work.clone(), work.rng(0)));
    tokio_tasks!(work, runtime, lanes, |(store, work, mut rng)| {
        if work.ranges == 0 {
            ranges::check(&(0..work.file_bytes), &store.get(OBJECT).await?)?;
        } else {
            let length = work.block_bytes as u64;
            let starts = (0..work.ranges).map(|_| rng.below(work.file_bytes - length + 1));
            let ranges: Vec<Range<u64>> = starts.map(|start| start..start + length).collect();
            for (range, read) in ranges.iter().zip(&store.get_ranges(OBJECT, ranges.clone()).await?) {
                ranges::check(range, read)?;
            }
        }
    })
}

/// Does a task's part of the work; returns its calls, or ranges, and bytes.
async fn part(
    store: &Store,
    work: &Work,
    task: u64,
    batch: &[Range<u64>],
    content: &Bytes,
) -> Result<(u64, u64)> {
    let tasks = work.tasks_max as u64;
    let mine = |count: u64| (task..count).step_by(tasks as usize);
    let (mut calls, mut bytes) = (0, 0);
    match &*work.workload {
        "uniform" | "clustered" | "mixed" => {
            let count = batch.len() as u64;
            let part = (task * count / tasks) as usize..((task + 1) * count / tasks) as usize;
            let ranges = batch[part].to_vec();
            let read = store.get_ranges(LARGE, ranges.clone()).await?;
            ensure!(read.len() == ranges.len(), "{} of {} ranges came back", read.len(), ranges.len());
            for (range, read) in ranges.iter().zip(&read) {
                ranges::check(range, read)?;
                (calls, bytes) = (calls + 1, bytes + read.len() as u64);
            }
        }
        "parquet" => {
            for number in mine(FILES) {
                let (footer, offset) = store.get_end(&file(number), FOOTER_BYTES).await?;
                ranges::check(&(offset..offset + FOOTER_BYTES), &footer)?;
                let mut rng = work.rng(number as usize);
                let step = (FILE_BYTES - FOOTER_BYTES) / CHUNKS;
                let chunks = (0..CHUNKS).map(|chunk| {
                    let length = (64 << 10) + rng.below(448 << 10);
                    let start = chunk * step + rng.below(step - length);
                    start..start + length
                });
                let chunks: Vec<_> = chunks.collect();
                for (range, read) in chunks.iter().zip(store.get_ranges(&file(number), chunks.clone()).await?)
                {
                    ranges::check(range, &read)?;
                    bytes += read.len() as u64;
                }
                calls += 1;
            }
        }
        "gets" => {
            for number in mine(FILES) {
                let read = store.get(&file(number)).await?;
                ranges::check(&(0..FILE_BYTES), &read)?;
                (calls, bytes) = (calls + 1, bytes + read.len() as u64);
            }
        }
        "puts" => {
            for number in mine(SMALL_PUTS) {
                let name = format!("made/{:02}/object-{number:04}", number % 16);
                store.put(&name, content.slice(..SMALL_PUT_BYTES)).await?;
                (calls, bytes) = (calls + 1, bytes + SMALL_PUT_BYTES as u64);
            }
        }
        "large-puts" | "uploads" => {
            for number in mine(LARGE_PUTS) {
                let name = format!("made/object-{number:04}");
                match &*work.workload {
                    "uploads" => store.upload(&name, content.clone()).await?,
                    _ => store.put(&name, content.clone()).await?,
                }
                (calls, bytes) = (calls + 1, bytes + LARGE_BYTES as u64);
            }
        }
        "list" => {
            let names = store.list("names").await?;
            ensure!(names == work.keys, "{names} names of {} were listed", work.keys);
            calls = names;
        }
        other => bail!("there is no workload {other} here"),
    }
    Ok((calls, bytes))
}
