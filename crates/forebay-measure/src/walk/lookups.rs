//! One sample: lanes, each of which looks up one key after the other, and the ways to read the nodes of a lookup.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::future::poll_fn;
use std::io::SeekFrom;
use std::mem::take;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay::{Config, Engine, Open};
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

use super::tree::{Descent, Tree, open_direct};
use crate::aligned::AlignedBuffer;
use crate::backend::{self, Backend, Op, Setup, Target};
use crate::experiment::{Outcome, Way};
use crate::gates::processors;
use crate::gauge::Gauge;
use crate::job::Job;
use crate::lanes::{Join, allow_files, in_tasks, on_own_threads, runtime, tasks_on_shards, with_engine};
use crate::latency::Latency;
use crate::pattern::SplitMix;
use crate::timers::Timers;
use forebay_report::result::metric;

/// Warm-up, not measured: threads, rings and files are used for the first time.
pub(super) const WARM: Duration = Duration::from_millis(100);

const CPU: [&str; 2] = [metric::CPU_US_PER_LOOKUP, metric::CONTEXT_SWITCHES_PER_LOOKUP];

/// The parameters of a table and its samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Work {
    #[serde(flatten)]
    pub(super) tree: Tree,
    pub(super) file_bytes: u64,
    /// Bytes of a direct read around a node; its offset is a multiple of them.
    pub(super) read_bytes: usize,
    /// Nodes from root to leaf.
    pub(super) depth: u64,
    /// Number of lookups in flight, all threads together.
    pub(super) in_flight: usize,
    /// Number of threads that make lookups.
    pub(super) threads: usize,
    /// Other work: `timers` or `nothing`.
    pub(super) beside: String,
    /// Each lookup makes a file with its nodes and removes it; its time includes both.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) as_published: bool,
    /// Name of the block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<String>,
}

impl Work {
    pub(super) fn has_timers(&self) -> bool {
        self.beside == "timers"
    }

    /// Returns the number of threads that have something to do.
    pub(super) fn threads(&self) -> usize {
        self.threads.clamp(1, self.in_flight)
    }

    /// Returns the number of shards: at most one for each processor, if the lookups are made by other threads.
    fn shards(&self, way: &Way) -> usize {
        if is_on_shards(way) { self.threads() } else { self.threads().min(processors()) }
    }

    /// Returns the number of threads that do the work, those of the engine included.
    pub(super) fn workers(&self, way: &Way) -> usize {
        match way.name {
            _ if way.always => processors(),
            "pread" => self.in_flight,
            "forebay-walk-tokio" => self.threads() + self.shards(way),
            // The blocking pool has a thread for each read that waits.
            "blocking-per-hop" | "blocking-whole" | "tokio-fs" => self.threads() + self.in_flight,
            _ => self.threads(),
        }
    }

    /// Returns the direct read that covers the node at `position`: the read's offset in the file, and
    /// the node's offset in the read.
    fn around(&self, position: u64) -> (u64, usize) {
        let within = position % self.read_bytes as u64;
        (position - within, within as usize)
    }
}

/// Returns whether the lookups are tasks of Forebay's shards.
fn is_on_shards(way: &Way) -> bool {
    matches!(way.name, "forebay-task" | "forebay-walk")
}

/// Runs the sample of `way` on the file at the path of the job, or with separate files in that directory.
///
/// # Errors
/// The row failed, or returned a wrong result.
pub(super) fn sample(job: &Job, way: &'static Way) -> anyhow::Result<Outcome> {
    let shared = Arc::new(SampleState::open(job)?);
    // Some rows have a file for each lookup in flight.
    _ = allow_files(shared.work.in_flight as u64);
    if !way.name.starts_with("forebay") {
        return run(job, way, &shared, None);
    }
    let shards = shared.work.shards(way);
    with_engine(Config::new().shards(shards), |engine| run(job, way, &shared, Some(engine)))
}

fn run(
    job: &Job,
    way: &'static Way,
    shared: &Arc<SampleState>,
    engine: Option<&Engine>,
) -> anyhow::Result<Outcome> {
    let work = &shared.work;
    // The timers of rows without Tokio have an otherwise idle runtime.
    let runtime = runtime(work.threads(), false)?;
    let timers = work.has_timers().then(|| Timers::start(runtime.handle())).transpose()?;
    let conduct = |join: Join<'_, Tally>| {
        std::thread::sleep(WARM);
        let gauge = Gauge::start(job.device_stat.as_deref())?;
        shared.phase.store(COUNTING, Ordering::Relaxed);
        let (now, lasts) = (Instant::now(), Duration::from_secs_f64(job.seconds));
        timers.as_ref().inspect(|timers| timers.count_between((now, now + lasts)));
        std::thread::sleep(lasts);
        // On a busy machine no lookup may have ended yet. A failed row has no lookups.
        let limit = Instant::now() + FIRST_LOOKUP_MAX;
        let is_wanted =
            || shared.phase.load(Ordering::Relaxed) == COUNTING && !shared.has_ended.load(Ordering::Relaxed);
        while !way.always && is_wanted() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        shared.phase.store(OVER, Ordering::Relaxed);
        anyhow::Ok((gauge.stop()?, join()?))
    };
    let (cost, tallies) = match way.name {
        _ if way.always => conduct(Box::new(|| Ok(Vec::new()))),
        "io_uring" => {
            let ring = Backend::Ring(Setup { waits_for_several: true, ..Setup::full() });
            let (rings, reads) = (work.threads(), Target::reads(&job.path, work.read_bytes, work.in_flight));
            let target = Target { rings, ..reads };
            let lane = |first| Descents::new(shared, (first..work.in_flight).step_by(rings));
            let tallies = |descents: Vec<Descents>| descents.into_iter().flat_map(Descents::end).collect();
            backend::run(ring, &target, lane, |join| conduct(Box::new(|| join().map(tallies))))
        }
        _ => {
            let lanes = lanes(way, shared, engine)?;
            conduct(match engine.filter(|_| is_on_shards(way)) {
                Some(engine) => tasks_on_shards(engine, engine.shard_count(), lanes),
                None if way.name == "pread" => on_own_threads(lanes)?,
                None => in_tasks(&runtime, lanes),
            })
        }
    }?;
    let mut tally = Tally::new()?;
    tallies.iter().try_for_each(|part| tally.add(part))?;
    let late = timers.map(|timers| timers.stop(&runtime)).transpose()?;
    drop(runtime);
    shared.check()?;
    let lookups = tally.latency.count();
    let bytes = lookups * work.depth * work.read_bytes as u64;
    let has_tasks = !matches!(way.name, "pread" | "io_uring") && !way.always;
    let wakes = has_tasks.then_some(tally.wakes as f64 / lookups as f64);
    // A lookup has one read at a time, so the lookups on the device are those whose reads are in flight there.
    let share = cost.in_flight_avg.map(|reads| (reads / work.in_flight as f64).min(1.0));
    let alone = (way.always && late.is_some()).then_some(cost.cpu_seconds / cost.seconds);
    let without: &[&str] = match (way.always, late.is_some()) {
        (true, _) => &[metric::LOOKUPS_PER_S, metric::IN_FLIGHT_AVG, CPU[0], CPU[1]],
        // These would include the timers' own.
        (false, true) => &CPU,
        (false, false) => &[],
    };
    Ok(Outcome::new(cost, lookups, bytes, tally.latency)
        .figure(metric::WAKES_PER_LOOKUP, wakes)
        .figure(metric::DEVICE_SHARE, share.filter(|_| !way.always))
        // Without lookups, the timer tasks show their own cost.
        .figure(metric::TIMERS_CPU_SHARE, alone)
        .without(without)
        .timers(late))
}

/// Returns the lanes of a row, each for its own thread or task.
fn lanes(
    way: &'static Way,
    shared: &Arc<SampleState>,
    engine: Option<&Engine>,
) -> anyhow::Result<Vec<impl Future<Output = anyhow::Result<Tally>> + Send + 'static>> {
    let shards = engine.map_or(1, Engine::shard_count);
    let path = (!shared.work.as_published).then_some(&shared.path);
    let files = (0..shards).filter_map(|shard| Some(engine?.open(path?, Open::read().shard(shard)).wait()));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let lane = |number: usize| {
        let shard = number % shards;
        let engine = engine.map(|engine| (engine.clone(), shard));
        Ok(look_up(Reader::open(way, shared, engine, files.get(shard).cloned())?, Arc::clone(shared), number))
    };
    (0..shared.work.in_flight).map(lane).collect()
}

/// The longest time by which a sample is prolonged until its first lookup has ended.
const FIRST_LOOKUP_MAX: Duration = Duration::from_secs(10);

/// Phases of a sample after the warm-up. They decide whether lookups count, and are set by the thread that reads the gauge,
/// so that the lookups counted are those gauged, however late that thread is scheduled.
const COUNTING: u8 = 1;
/// The same, once a lookup has been counted.
const HAS_COUNTED: u8 = 3;
const OVER: u8 = 2;

/// The state that all lanes of a sample share.
#[derive(Debug)]
struct SampleState {
    work: Work,
    seed: u64,
    phase: AtomicU8,
    /// Whether a lane has ended. Before the sample is over only failures end one.
    has_ended: AtomicBool,
    /// The file with the index, or the directory of files for one lookup each.
    path: PathBuf,
    /// The index, open for direct reads; `None` if each lookup has its own file.
    file: Option<Arc<File>>,
    /// Contents of such files: the nodes, padded to the needs of a direct read.
    nodes: AlignedBuffer,
    made: AtomicU64,
}

impl SampleState {
    fn open(job: &Job) -> anyhow::Result<Self> {
        let work: Work = job.work()?;
        let (mut file, mut nodes) = (None, AlignedBuffer::default());
        if work.as_published {
            let bytes = work.tree.file_bytes() as usize;
            nodes = AlignedBuffer::new(bytes.next_multiple_of(work.read_bytes));
            work.tree.fill(0, &mut nodes.bytes_mut()[..bytes]);
        } else {
            file = Some(Arc::new(open_direct(&job.path)?));
        }
        let (phase, made) = (AtomicU8::new(0), AtomicU64::new(0));
        Ok(Self {
            work,
            seed: job.seed,
            phase,
            has_ended: AtomicBool::new(false),
            path: job.path.clone(),
            file,
            nodes,
            made,
        })
    }

    /// Checks that all files of lookups were removed.
    fn check(&self) -> anyhow::Result<()> {
        let left = if self.work.as_published { fs::read_dir(&self.path)?.count() } else { 0 };
        anyhow::ensure!(left == 0, "{left} files were not removed");
        Ok(())
    }

    fn new_path(&self) -> PathBuf {
        self.path.join(self.made.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Makes a file of one lookup, for direct reads.
    fn make(&self, path: &Path) -> anyhow::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT);
        let file = options.open(path)?;
        file.write_all_at(self.nodes.bytes(), 0)?;
        Ok(file)
    }

    fn hop(
        &self,
        file: &File,
        buffer: &mut AlignedBuffer,
        descent: &mut Descent,
    ) -> anyhow::Result<Option<u64>> {
        let (begin, within) = self.work.around(descent.at);
        file.read_exact_at(buffer.bytes_mut(), begin)?;
        descent.step(&buffer.bytes()[within..within + self.work.tree.node_bytes as usize])
    }

    /// Makes all calls of a lookup on this thread.
    fn descend(&self, buffer: &mut AlignedBuffer, mut descent: Descent) -> anyhow::Result<u64> {
        let mut own = None;
        let file = match &self.file {
            Some(file) => &**file,
            None => {
                let path = self.new_path();
                &own.insert((self.make(&path)?, path)).0
            }
        };
        let value = loop {
            if let Some(value) = self.hop(file, buffer, &mut descent)? {
                break value;
            }
        };
        if let Some((file, path)) = own {
            drop(file);
            fs::remove_file(path)?;
        }
        Ok(value)
    }
}

/// A file that is open for the calls of a row.
#[derive(Debug)]
enum Handle {
    Std(Arc<File>),
    Tokio(tokio::fs::File),
    Forebay(forebay::File),
}

/// The calls, the memory and the file of one lane.
#[derive(Debug)]
struct Reader {
    way: &'static Way,
    /// Engine and shard of Forebay's rows.
    engine: Option<(Engine, usize)>,
    buffer: AlignedBuffer,
    /// The file of all lookups.
    kept: Option<Handle>,
}

impl Reader {
    fn open(
        way: &'static Way,
        shared: &SampleState,
        engine: Option<(Engine, usize)>,
        file: Option<forebay::File>,
    ) -> anyhow::Result<Self> {
        let kept = match way.name {
            "tokio-fs" if !shared.work.as_published => {
                let file = File::open(&shared.path)?;
                // Read-ahead would load data that no lookup requests.
                fadvise(&file, 0, None, Advice::Random)?;
                let mut file = tokio::fs::File::from_std(file);
                // With the default, it reads more than the node.
                file.set_max_buf_size(shared.work.tree.node_bytes as usize);
                Some(Handle::Tokio(file))
            }
            "blocking-per-hop" => shared.file.clone().map(Handle::Std),
            _ => file.map(Handle::Forebay),
        };
        Ok(Self { way, engine, buffer: AlignedBuffer::new(shared.work.read_bytes), kept })
    }

    /// Looks up one key, in a file created for it if no file is shared.
    async fn look_up(&mut self, shared: &Arc<SampleState>, mut descent: Descent) -> anyhow::Result<u64> {
        let Self { way, engine, buffer, kept } = self;
        match way.name {
            "pread" => return shared.descend(buffer, descent),
            "blocking-whole" => {
                return lend(shared, buffer, move |shared, buffer| shared.descend(buffer, descent)).await;
            }
            _ => {}
        }
        let mut own = None;
        let file = match kept {
            Some(file) => file,
            None => {
                let path = shared.new_path();
                let file = make(shared, engine.as_ref(), way, buffer, path.clone()).await?;
                &mut own.insert((file, path)).0
            }
        };
        let value = loop {
            let (node, at) = (descent.node_bytes, descent.at);
            let found = match file {
                Handle::Std(file) => {
                    let (file, mut next) = (Arc::clone(file), descent);
                    let hop = move |shared: &SampleState, buffer: &mut AlignedBuffer| {
                        Ok((shared.hop(&file, buffer, &mut next)?, next))
                    };
                    let found;
                    (found, descent) = lend(shared, buffer, hop).await?;
                    found
                }
                Handle::Tokio(file) => {
                    file.seek(SeekFrom::Start(at)).await?;
                    file.read_exact(&mut buffer.bytes_mut()[..node as usize]).await?;
                    descent.step(&buffer.bytes()[..node as usize])?
                }
                Handle::Forebay(file) if way.name == "forebay-task" => {
                    descent.step(&file.read(at..at + node).await?)?
                }
                Handle::Forebay(file) => Some(file.walk(at..at + node, descent).await?),
            };
            if let Some(value) = found {
                break value;
            }
        };
        match (own, engine) {
            (Some((Handle::Forebay(file), path)), Some((engine, _))) => {
                file.close().await?;
                engine.remove_file(path).await?;
            }
            (Some((Handle::Std(file), path)), _) => {
                drop(file);
                lend(shared, buffer, |_, _| Ok(fs::remove_file(path)?)).await?;
            }
            (Some((file, path)), _) => {
                drop(file);
                tokio::fs::remove_file(path).await?;
            }
            (None, _) => {}
        }
        Ok(value)
    }
}

/// Makes the file of one lookup.
async fn make(
    shared: &Arc<SampleState>,
    engine: Option<&(Engine, usize)>,
    way: &Way,
    buffer: &mut AlignedBuffer,
    path: PathBuf,
) -> anyhow::Result<Handle> {
    let nodes = shared.nodes.bytes();
    Ok(match engine {
        None if way.cached => {
            let mut options = tokio::fs::OpenOptions::new();
            let mut file = options.read(true).write(true).create_new(true).open(&path).await?;
            // The file is written in one call; a node is read with its own buffer.
            file.set_max_buf_size(nodes.len());
            file.write_all(nodes).await?;
            file.flush().await?;
            Handle::Tokio(file)
        }
        Some((engine, shard)) => {
            let file = engine.open(&path, Open::create_new().shard(*shard).permissions(0o600)).await?;
            file.write(0, nodes).await?;
            Handle::Forebay(file)
        }
        None => {
            let make = move |shared: &SampleState, _: &mut AlignedBuffer| shared.make(&path);
            Handle::Std(Arc::new(lend(shared, buffer, make).await?))
        }
    })
}

/// Runs `call` with `spawn_blocking`; the buffer moves to the blocking thread and back.
async fn lend<T: Send + 'static>(
    shared: &Arc<SampleState>,
    buffer: &mut AlignedBuffer,
    call: impl FnOnce(&SampleState, &mut AlignedBuffer) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let (shared, mut lent) = (Arc::clone(shared), take(buffer));
    let called = tokio::task::spawn_blocking(move || (call(&shared, &mut lent), lent));
    let (outcome, back) = called.await.context("a blocking call panicked")?;
    *buffer = back;
    outcome
}

/// Runs one lane until the sample ends.
async fn look_up(mut reader: Reader, shared: Arc<SampleState>, number: usize) -> anyhow::Result<Tally> {
    let mut lane = Lane::new(&shared, number)?;
    loop {
        let (value, wakes) = count_wakes(reader.look_up(&shared, lane.descent())).await;
        if !lane.completed(value?, wakes)? {
            return Ok(lane.tally);
        }
    }
}

/// One lookup in flight: its keys, and the times of its lookups.
#[derive(Debug)]
struct Lane {
    shared: Arc<SampleState>,
    /// Dropped with the lane, which gives its tally away.
    _end: LaneEnd,
    keys: SplitMix,
    begun: Instant,
    key: u64,
    tally: Tally,
}

/// Reports that a lane has ended.
#[derive(Debug)]
struct LaneEnd(Arc<SampleState>);

impl Drop for LaneEnd {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Relaxed);
    }
}

/// Lookups of a lane, or of all lanes, that completed while they counted.
#[derive(Debug)]
struct Tally {
    latency: Latency,
    /// Number of times that the task was polled again.
    wakes: u64,
}

impl Tally {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { latency: Latency::new()?, wakes: 0 })
    }

    fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.wakes += other.wakes;
        self.latency.add(&other.latency)
    }
}

impl Lane {
    /// Returns lane number `lane` of the sample. The lane of this number has the same keys in every row.
    fn new(shared: &Arc<SampleState>, lane: usize) -> anyhow::Result<Self> {
        let mut keys = SplitMix::new(shared.seed ^ SplitMix::new(lane as u64 + 1).next_u64());
        let key = keys.next_u64();
        let _end = LaneEnd(Arc::clone(shared));
        Ok(Self { shared: Arc::clone(shared), _end, keys, begun: Instant::now(), key, tally: Tally::new()? })
    }

    /// Returns the start of the next lookup.
    fn descent(&self) -> Descent {
        let (key, work) = (self.key, &self.shared.work);
        Descent { key, node_bytes: work.tree.node_bytes, at: work.tree.root(work.depth, key) }
    }

    /// Completes the lookup with `value`, after its task was woken `wakes` times. Returns whether another lookup follows.
    ///
    /// # Errors
    /// The value is wrong.
    fn completed(&mut self, value: u64, wakes: u64) -> anyhow::Result<bool> {
        let expected = self.shared.work.tree.expected(self.shared.work.depth, self.key);
        anyhow::ensure!(
            value == expected,
            "the lookup of {:#x} gave {value:#x} and not {expected:#x}: the way it was read is faulty",
            self.key
        );
        let now = Instant::now();
        let phase = self.shared.phase.load(Ordering::Relaxed);
        if phase == COUNTING {
            // Not if it is over meanwhile.
            let _ = self.shared.phase.compare_exchange(
                COUNTING,
                HAS_COUNTED,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
        if matches!(phase, COUNTING | HAS_COUNTED) {
            self.tally.latency.record(now - self.begun);
            self.tally.wakes += wakes;
        }
        self.begun = now;
        self.key = self.keys.next_u64();
        Ok(phase != OVER)
    }
}

/// The lookups of one ring: the next read of each is queued where the last one completed.
#[derive(Debug)]
struct Descents {
    lookups: Vec<(Lane, Descent)>,
    /// Those whose next read is not in flight.
    ready: VecDeque<usize>,
    begun: Instant,
}

impl Descents {
    fn new(shared: &Arc<SampleState>, lanes: impl Iterator<Item = usize>) -> anyhow::Result<Self> {
        let lookups = lanes.map(|lane| {
            let lane = Lane::new(shared, lane)?;
            let descent = lane.descent();
            Ok((lane, descent))
        });
        let lookups = lookups.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { ready: (0..lookups.len()).collect(), lookups, begun: Instant::now() })
    }

    fn end(self) -> impl Iterator<Item = Tally> {
        self.lookups.into_iter().map(|(lane, _)| lane.tally)
    }
}

impl backend::Lane for Descents {
    #[inline(always)]
    fn next(&mut self) -> Option<Op> {
        let number = self.ready.pop_front()?;
        let (lane, descent) = &self.lookups[number];
        Some(Op { tag: number as u64, ..Op::read(lane.shared.work.around(descent.at).0) })
    }

    /// Only whole lookups have a time.
    #[inline(always)]
    fn begins(&self) -> Instant {
        self.begun
    }

    #[inline(always)]
    fn ended(&mut self, op: Op, _: Instant, bytes: &[u8]) -> anyhow::Result<()> {
        let (lane, descent) = &mut self.lookups[op.tag as usize];
        let at = lane.shared.work.around(descent.at).1;
        if let Some(value) = descent.step(&bytes[at..at + descent.node_bytes as usize])? {
            if !lane.completed(value, 0)? {
                return Ok(());
            }
            *descent = lane.descent();
        }
        self.ready.push_back(op.tag as usize);
        Ok(())
    }
}

/// Returns the output of `future`, and how often it was polled again: each time its task was woken, and run.
async fn count_wakes<F: Future>(future: F) -> (F::Output, u64) {
    let mut future = pin!(future);
    let mut wakes = 0;
    poll_fn(move |context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready((output, wakes)),
        Poll::Pending => {
            wakes += 1;
            Poll::Pending
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::super::tests::work;
    use super::*;

    #[test]
    fn only_right_values_of_the_middle_phase_count() {
        let (phase, made) = (AtomicU8::new(0), AtomicU64::new(0));
        let (path, nodes) = (PathBuf::new(), AlignedBuffer::default());
        let shared = Arc::new(SampleState {
            work: work(),
            seed: 3,
            phase,
            has_ended: AtomicBool::new(false),
            path,
            file: None,
            nodes,
            made,
        });
        let mut lane = Lane::new(&shared, 0).expect("a few kilobytes");
        let value = |lane: &Lane| shared.work.tree.expected(shared.work.depth, lane.key);
        let right = |lane: &mut Lane| lane.completed(value(lane), 2).expect("the right value");
        assert!(right(&mut lane), "warming up");
        shared.phase.store(COUNTING, Ordering::Relaxed);
        assert!(right(&mut lane));
        let wrong = value(&lane) ^ 1;
        assert!(lane.completed(wrong, 2).is_err());
        shared.phase.store(OVER, Ordering::Relaxed);
        assert!(!right(&mut lane));
        assert_eq!((lane.tally.latency.count(), lane.tally.wakes), (1, 2));
    }

    #[test]
    fn polls_after_the_first_are_counted() {
        let mut left = 3;
        let waiting = poll_fn(move |_| {
            left -= 1;
            if left == 0 { Poll::Ready(9) } else { Poll::Pending }
        });
        let mut counted = pin!(count_wakes(waiting));
        let mut context = Context::from_waker(Waker::noop());
        let output = loop {
            if let Poll::Ready(output) = counted.as_mut().poll(&mut context) {
                break output;
            }
        };
        assert_eq!(output, (9, 2));
        let mut done = Box::pin(count_wakes(std::future::ready(1)));
        assert_eq!(done.as_mut().poll(&mut context), Poll::Ready((1, 0)));
    }

    #[test]
    fn a_node_is_read_with_the_bytes_around_it() {
        let mut work = work();
        work.read_bytes = 4096;
        assert_eq!(work.around(4096 + 1536), (4096, 1536));
        work.read_bytes = 512;
        assert_eq!(work.around(4096 + 1536), (5632, 0));
        (work.threads, work.in_flight) = (8, 2);
        assert_eq!(work.threads(), 2);
    }
}
