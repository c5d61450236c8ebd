//! Ways to read and write blocks of one size at a queue depth, behind one interface: `pread` and `pwrite` on threads,
//! io_uring, Linux AIO, Tokio, and Forebay from its own tasks and from Tokio's.
//!
//! An experiment has a [`Lane`]: it returns one operation after the other and receives their results. [`run`] opens the file of a
//! [`Target`], starts the lanes in the way of a [`Backend`], and calls the experiment with a function that waits for them. So the
//! experiment decides when its gauge starts and ends; in [`until_deadline`] lanes end at a deadline. A lane has ended when
//! [`Lane::next`] returned `None` and its operations in flight have a result.
//!
//! | back end | lanes | operations of a lane in flight |
//! |---|---|---|
//! | threads, tasks | as many as the depth | 1 |
//! | io_uring, Linux AIO | 1, or one for each ring, each on its own thread | the depth |
//! | Forebay from Tokio, open loop | 8, shared by a task for each operation | any number |
//!
//! Open loop: an [`Op`] has the instant when it is due. The back end starts it then, or later when the depth is reached, and asks
//! [`Lane::gives_up`] before.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Context as _;
use forebay::{Block, BlockMut, Config, Engine, Open, Polling};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use crate::aligned::AlignedBuffer;
use crate::commands::{self, Namespace};
use crate::lanes::{Join, allow_files, close, in_tasks, joined, on_own_threads, tasks_on_shards};
use crate::pattern::Pattern;

mod aio;
mod closed;
mod queue;
mod ring;

pub(crate) use closed::{Begin, LoopTally, mark_pages, until_deadline};
pub(crate) use ring::Setup;

/// The message for a refusal of polled reads.
pub(crate) const NO_POLLING: &str =
    "the kernel refuses polled reads here; they need a device with poll queues (NVMe: nvme.poll_queues=2)";

/// One operation on a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) is_write: bool,
    pub(crate) offset: u64,
    /// Open loop: the instant when it is due.
    pub(crate) due: Option<Instant>,
    /// A value of the lane's own.
    pub(crate) tag: u64,
}

impl Op {
    /// Returns a read of a closed loop.
    pub(crate) const fn read(offset: u64) -> Self {
        Self { is_write: false, offset, due: None, tag: 0 }
    }
}

/// A sequence of operations, and the use of their results.
pub(crate) trait Lane: Debug + Send + 'static {
    /// Returns the next operation; in an open loop it may be due later. `None`: no operation is possible before one in flight has
    /// ended, and the lane has ended when nothing is in flight.
    fn next(&mut self) -> Option<Op>;

    /// Returns the start time of an operation that starts now. A lane that counts from the end of the last operation saves a read
    /// of the clock.
    fn begins(&self) -> Instant {
        Instant::now()
    }

    /// Returns whether a due operation is given up before its start.
    fn gives_up(&mut self, _op: &Op) -> bool {
        false
    }

    /// Returns the bytes of an operation, up to the `most` that fit its memory.
    #[inline(always)]
    fn bytes_of(&self, _op: &Op, most: usize) -> usize {
        most
    }

    /// Writes the data of a write into `memory`, which holds those of an earlier write, or those that the memory had first.
    fn fill(&mut self, _op: &Op, _memory: &mut [u8]) {}

    /// Receives the result of an operation that started at `begun` and has just ended: the bytes of a read. Those of a write are
    /// undefined.
    ///
    /// # Errors
    /// The bytes are wrong. This ends the sample.
    fn ended(&mut self, op: Op, begun: Instant, bytes: &[u8]) -> anyhow::Result<()>;

    /// Counts system calls that the back end made for the lane, where it knows them.
    fn called(&mut self, _calls: u64) {}
}

/// A way to do operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    /// A std thread for each operation in flight.
    Threads(Calls),
    /// A bare ring, or a ring of commands to an NVMe namespace, which the path then names.
    Ring(Setup),
    /// `io_submit` and `io_getevents`.
    Aio,
    /// `tokio::fs`, through the page cache.
    TokioFs,
    /// `pread` and `pwrite` with O_DIRECT in `spawn_blocking`.
    SpawnBlocking,
    /// Tasks on Forebay's shards.
    Shards(Polling),
    /// The same with polled commands to an NVMe namespace, which the path names; one shard, and only reads.
    Commands,
    /// Forebay from tasks of a Tokio runtime.
    Tokio,
}

/// The calls of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    /// `pread` and `pwrite` with O_DIRECT.
    Direct,
    /// `preadv2` with RWF_HIPRI and O_DIRECT; only reads.
    Polled,
    /// `pread` and `pwrite` through the page cache.
    Cached,
    /// The same, and after each `pwrite` an `fdatasync`.
    Durable,
}

impl Backend {
    /// Returns whether each operation is a system call of the thread that wants it, or of one that waits in its stead.
    pub(crate) fn is_blocking(self) -> bool {
        matches!(self, Self::Threads(_) | Self::TokioFs | Self::SpawnBlocking)
    }

    /// Returns whether it sends commands to a namespace, which the block layer does not see.
    pub(crate) fn sends_commands(self) -> bool {
        matches!(self, Self::Commands) || matches!(self, Self::Ring(setup) if setup.commands)
    }

    /// Returns whether each lane has its own thread.
    fn has_threads(self) -> bool {
        matches!(self, Self::Threads(_) | Self::Ring(_) | Self::Aio)
    }
}

/// The file, and the load on it.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) path: PathBuf,
    /// The bytes of each operation.
    pub(crate) bytes: usize,
    /// The most operations in flight.
    pub(crate) depth: usize,
    pub(crate) rings: usize,
    /// Threads of a Tokio runtime.
    pub(crate) workers: usize,
    pub(crate) shards: usize,
    pub(crate) writes: bool,
    /// Whether operations have an instant when they are due.
    pub(crate) is_open: bool,
    /// The data that the memory of threads and rings holds first.
    pub(crate) contents: Option<Pattern>,
    /// Whether the memory of a ring is in huge pages.
    pub(crate) is_huge: bool,
}

impl Target {
    /// Returns the load of a closed loop of reads, with one of everything.
    pub(crate) fn reads(path: &Path, bytes: usize, depth: usize) -> Self {
        Self {
            path: path.to_owned(),
            bytes,
            depth,
            rings: 1,
            workers: 1,
            shards: 1,
            writes: false,
            is_open: false,
            contents: None,
            is_huge: false,
        }
    }

    fn open(&self, flags: i32) -> io::Result<File> {
        OpenOptions::new().read(true).write(self.writes).custom_flags(flags).open(&self.path)
    }

    fn runtime(&self) -> io::Result<Runtime> {
        let mut builder = Builder::new_multi_thread();
        // As `#[tokio::main]` makes it: workers without an I/O driver get no rings.
        builder.worker_threads(self.workers).max_blocking_threads(self.depth + 1).enable_all().build()
    }
}

/// Starts the lanes, each made by `lane` from its number, and calls `conduct`. If they cannot be started, or `conduct` fails,
/// it is dropped: its fields must let the lanes end then.
///
/// # Errors
/// The back end is refused here, and the errors of `lane` and `conduct`.
pub(crate) fn run<L: Lane, T>(
    backend: Backend,
    target: &Target,
    lane: impl Fn(usize) -> anyhow::Result<L>,
    conduct: impl FnOnce(Join<'_, L>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (bytes, lanes) = (
        target.bytes,
        match backend {
            Backend::Ring(_) | Backend::Aio => target.rings,
            Backend::Tokio if target.is_open => LANES,
            _ => target.depth,
        },
    );
    let lanes = (0..lanes).map(lane).collect::<anyhow::Result<Vec<L>>>()?.into_iter();
    match backend {
        Backend::Threads(calls) => {
            let is_cached = matches!(calls, Calls::Cached | Calls::Durable);
            let file = Arc::new(target.open(if is_cached { 0 } else { libc::O_DIRECT })?);
            conduct(on_own_threads(lanes.map(|lane| {
                let (file, memory) = (Arc::clone(&file), buffer(target));
                async move { one_by_one(lane, &file, memory, calls) }
            }))?)
        }
        Backend::Ring(_) | Backend::Aio => {
            let is_namespace = backend.sends_commands();
            let file = Arc::new(target.open(if is_namespace { 0 } else { libc::O_DIRECT })?);
            let namespace = if is_namespace { Namespace::open(&target.path)? } else { Namespace::default() };
            conduct(on_own_threads(lanes.map(|lane| {
                let (file, target) = (Arc::clone(&file), target.clone());
                async move { by_queue(backend, lane, &file, namespace, &target) }
            }))?)
        }
        Backend::TokioFs | Backend::SpawnBlocking => {
            let is_tokio = backend == Backend::TokioFs;
            if is_tokio {
                // A file for each caller.
                _ = allow_files(target.depth as u64);
            }
            let shared = Arc::new(target.open(if is_tokio { 0 } else { libc::O_DIRECT })?);
            let caller = || -> anyhow::Result<Caller> {
                if !is_tokio {
                    return Ok(Caller::Blocking { file: Arc::clone(&shared), memory: None });
                }
                let mut file = tokio::fs::File::from_std(target.open(0)?);
                // Otherwise it reads more than the block, or a larger block in pieces.
                file.set_max_buf_size(bytes);
                Ok(Caller::TokioFs { file, memory: vec![0; bytes] })
            };
            let runtime = target.runtime()?;
            let callers = lanes.map(|lane| Ok(caller()?.calls(lane, bytes)));
            conduct(in_tasks(&runtime, callers.collect::<anyhow::Result<Vec<_>>>()?))
        }
        Backend::Shards(_) | Backend::Commands | Backend::Tokio => {
            let (engine, files) = open_forebay(backend, target)?;
            let caller = || Caller::forebay(&engine, &files[0]);
            let outcome = match backend {
                Backend::Tokio if target.is_open => {
                    let (runtime, depth, callers) = (target.runtime()?, target.depth, caller());
                    let served = async move { dispatch(lanes.collect(), runtime, depth, bytes, &callers) };
                    let join = on_own_threads([served])?;
                    conduct(Box::new(|| Ok(join()?.into_iter().flatten().collect())))
                }
                Backend::Tokio => {
                    let runtime = target.runtime()?;
                    conduct(in_tasks(&runtime, lanes.map(|lane| caller().calls(lane, bytes))))
                }
                _ => conduct(on_shards(&engine, &files, lanes, bytes)),
            }?;
            drop(files);
            close(engine)?;
            Ok(outcome)
        }
    }
}

/// Does the operations of a lane by a ring or by Linux AIO, on the calling thread.
///
/// # Errors
/// The kernel refuses the queue, and the errors of the lane.
pub(crate) fn by_queue<L: Lane>(
    backend: Backend,
    lane: L,
    file: &File,
    namespace: Namespace,
    target: &Target,
) -> anyhow::Result<L> {
    match backend {
        Backend::Ring(setup) => ring::lane(lane, setup, file, namespace, target),
        _ => aio::lane(lane, file, target),
    }
}

/// Returns memory for an operation.
pub(crate) fn buffer(target: &Target) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(target.bytes);
    target.contents.into_iter().for_each(|contents| contents.fill(0, buffer.bytes_mut()));
    buffer
}

/// Does the operations of a lane on the calling thread.
fn one_by_one<L: Lane>(
    mut lane: L,
    file: &File,
    mut memory: AlignedBuffer,
    calls: Calls,
) -> anyhow::Result<L> {
    minimise_timer_slack();
    while let Some(op) = lane.next() {
        op.due.into_iter().for_each(sleep_until);
        if lane.gives_up(&op) {
            continue;
        }
        if op.is_write {
            lane.fill(&op, memory.bytes_mut());
        }
        let begun = lane.begins();
        if calls == Calls::Polled {
            read_polled(file, op, memory.bytes_mut())?;
        } else {
            transfer(file, op, memory.bytes_mut())?;
        }
        if op.is_write && calls == Calls::Durable {
            file.sync_data()?;
        }
        lane.called(1);
        lane.ended(op, begun, memory.bytes())?;
    }
    Ok(lane)
}

#[inline]
pub(crate) fn transfer(file: &File, op: Op, memory: &mut [u8]) -> io::Result<()> {
    if op.is_write { file.write_all_at(memory, op.offset) } else { file.read_exact_at(memory, op.offset) }
}

fn read_polled(file: &File, op: Op, memory: &mut [u8]) -> anyhow::Result<()> {
    anyhow::ensure!(!op.is_write, "this back end only reads");
    let wanted = memory.len();
    let got = loop {
        match preadv2(file, &mut [IoSliceMut::new(memory)], op.offset, ReadWriteFlags::HIPRI) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP) => return Err(Errno::OPNOTSUPP).context(NO_POLLING),
            other => break other?,
        }
    };
    anyhow::ensure!(got == wanted, "a read of {wanted} bytes returned {got}");
    Ok(())
}

/// Lets sleeps of the calling thread end on time, and not up to 50 us later.
pub(crate) fn minimise_timer_slack() {
    // SAFETY: the call has no pointers; it changes the calling thread's timer slack only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

/// Sleeps until `time`; not at all when it has passed.
pub(crate) fn sleep_until(time: Instant) {
    while let Some(left) = time.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left);
    }
}

/// The state of a task that does one operation after the other.
#[derive(Debug)]
enum Caller {
    TokioFs {
        file: tokio::fs::File,
        memory: Vec<u8>,
    },
    /// The buffer moves to the blocking thread and back.
    Blocking {
        file: Arc<File>,
        memory: Option<AlignedBuffer>,
    },
    Forebay {
        engine: Engine,
        file: forebay::File,
        found: Option<Block>,
        written: Option<BlockMut>,
    },
}

impl Caller {
    fn forebay(engine: &Engine, file: &forebay::File) -> Self {
        Self::Forebay { engine: engine.clone(), file: file.clone(), found: None, written: None }
    }

    /// Does an operation; returns its start, and the bytes of a read. `begin` gets the memory of a write and returns the start.
    async fn call(
        &mut self,
        op: Op,
        bytes: usize,
        begin: impl FnOnce(&mut [u8]) -> Instant + Send,
    ) -> anyhow::Result<(Instant, &[u8])> {
        match self {
            Self::TokioFs { file, memory } => {
                let begun = begin(memory);
                file.seek(SeekFrom::Start(op.offset)).await?;
                if op.is_write {
                    file.write_all(memory).await?;
                    file.flush().await?;
                } else {
                    file.read_exact(memory).await?;
                }
                Ok((begun, memory))
            }
            Self::Blocking { file, memory } => {
                let mut buffer = memory.take().unwrap_or_else(|| AlignedBuffer::new(bytes));
                let (begun, file) = (begin(buffer.bytes_mut()), Arc::clone(file));
                let called =
                    tokio::task::spawn_blocking(move || (transfer(&file, op, buffer.bytes_mut()), buffer));
                let (result, buffer) = called.await.context("an operation panicked")?;
                result?;
                Ok((begun, memory.insert(buffer).bytes()))
            }
            Self::Forebay { engine, file, written, .. } if op.is_write => {
                let mut block = written.take().map_or_else(|| engine.block(bytes), Ok)?;
                let (begun, block) = (begin(&mut block), block.freeze());
                file.write(op.offset, block.clone()).await?;
                *written = block.try_into_mut().ok();
                Ok((begun, &[]))
            }
            Self::Forebay { file, found, .. } => {
                drop(found.take());
                let begun = begin(&mut []);
                let block = file.read(op.offset..op.offset + bytes as u64).await?;
                Ok((begun, found.insert(block)))
            }
        }
    }

    /// Does the operations of a lane.
    async fn calls<L: Lane>(mut self, mut lane: L, bytes: usize) -> anyhow::Result<L> {
        while let Some(op) = lane.next() {
            let begin = |memory: &mut [u8]| {
                if op.is_write {
                    lane.fill(&op, memory);
                }
                lane.begins()
            };
            let (begun, found) = self.call(op, bytes, begin).await?;
            lane.ended(op, begun, found)?;
        }
        Ok(lane)
    }
}

/// Lanes of an open loop; more of them make a lock rarely contended.
const LANES: usize = 8;

/// Starts a task for each operation when it is due, on a thread that plays the network. No more than the depth are in flight; the
/// others wait for their turn in FIFO order.
fn dispatch<L: Lane>(
    lanes: Vec<L>,
    runtime: Runtime,
    depth: usize,
    bytes: usize,
    callers: &Caller,
) -> anyhow::Result<Vec<L>> {
    let lanes: Arc<Vec<Mutex<L>>> = Arc::new(lanes.into_iter().map(Mutex::new).collect());
    let (permits, mut tasks) = (Arc::new(Semaphore::new(depth)), Vec::new());
    minimise_timer_slack();
    loop {
        let number = tasks.len() % lanes.len();
        let Some(op) = locked(&lanes[number]).next() else { break };
        op.due.into_iter().for_each(sleep_until);
        let (lanes, permits) = (Arc::clone(&lanes), Arc::clone(&permits));
        let Caller::Forebay { engine, file, .. } = callers else { break };
        let mut caller = Caller::forebay(engine, file);
        tasks.push(runtime.spawn(async move {
            let _permit = permits.acquire().await?;
            let lane = &lanes[number];
            if !locked(lane).gives_up(&op) {
                let begin = |memory: &mut [u8]| {
                    if op.is_write {
                        locked(lane).fill(&op, memory);
                    }
                    Instant::now()
                };
                let (begun, found) = caller.call(op, bytes, begin).await?;
                locked(lane).ended(op, begun, found)?;
            }
            anyhow::Ok(())
        }));
    }
    runtime.block_on(joined(tasks))?;
    drop(runtime);
    let lanes = Arc::try_unwrap(lanes).map_err(|_| anyhow::anyhow!("a task outlived its runtime"))?;
    Ok(lanes.into_iter().map(|lane| lane.into_inner().unwrap_or_else(PoisonError::into_inner)).collect())
}

/// Locks, also after a panic elsewhere.
pub(crate) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the lanes in tasks on the shards of an engine, in turn. Each shard has its own file.
pub(crate) fn on_shards<L: Lane>(
    engine: &Engine,
    files: &[forebay::File],
    lanes: impl IntoIterator<Item = L>,
    bytes: usize,
) -> Join<'static, L> {
    let calls = |(lane, file): (L, &forebay::File)| Caller::forebay(engine, file).calls(lane, bytes);
    tasks_on_shards(engine, files.len(), lanes.into_iter().zip(files.iter().cycle()).map(calls))
}

/// Starts an engine, and opens the file on each of its shards.
fn open_forebay(backend: Backend, target: &Target) -> anyhow::Result<(Engine, Vec<forebay::File>)> {
    let (engine, files) = match backend {
        Backend::Commands => {
            let (engine, file) = commands::open(&target.path)?;
            (engine, vec![file])
        }
        _ => {
            let polling = if let Backend::Shards(polling) = backend { polling } else { Polling::Off };
            let engine = Engine::start(Config::new().shards(target.shards).polling(polling))?;
            let open = |shard| {
                let options = if target.writes { Open::write() } else { Open::read() };
                let file = engine.open(&target.path, options.shard(shard)).wait()?;
                // The first read sets up the ring, and shows whether the file system accepts polled reads.
                file.read_up_to(0..1).wait()?;
                Ok(file)
            };
            let files = (0..target.shards).map(open).collect::<anyhow::Result<_>>()?;
            (engine, files)
        }
    };
    match why_not_polled(&engine) {
        Some(why) => Err(anyhow::anyhow!(why).context(NO_POLLING)),
        None => Ok((engine, files)),
    }
}

/// Returns why an engine that was to poll does not, if so.
pub(crate) fn why_not_polled(engine: &Engine) -> Option<String> {
    let degraded = engine.health().degraded.into_iter().find(|degraded| degraded.what == "polled I/O");
    degraded.map(|degraded| degraded.why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;

    const BLOCKS: u64 = 24;
    const BYTES: usize = 8192;

    /// Writes blocks with their number, or reads and checks them.
    #[derive(Debug)]
    struct Blocks {
        is_write: bool,
        left: std::ops::Range<u64>,
        ended: u64,
    }

    impl Lane for Blocks {
        fn next(&mut self) -> Option<Op> {
            let block = self.left.next()?;
            // The last blocks are an open loop.
            let due = (block > BLOCKS - 3).then(Instant::now);
            Some(Op { is_write: self.is_write, offset: block * BYTES as u64, due, tag: block })
        }

        fn fill(&mut self, op: &Op, memory: &mut [u8]) {
            memory.fill(op.tag as u8 + 1);
        }

        fn ended(&mut self, op: Op, begun: Instant, bytes: &[u8]) -> anyhow::Result<()> {
            assert!(begun <= Instant::now() && op.offset == op.tag * BYTES as u64);
            let is_right = bytes.len() == BYTES && bytes.iter().all(|byte| *byte == op.tag as u8 + 1);
            anyhow::ensure!(self.is_write || is_right, "block {} is wrong", op.tag);
            self.ended += 1;
            Ok(())
        }
    }

    fn blocks(backend: Backend, target: &Target, depth: usize) -> anyhow::Result<u64> {
        let lane = |number: usize| {
            // A queue has one lane for all, and a dispatcher serves as many as it likes.
            let lanes = match backend {
                Backend::Ring(_) | Backend::Aio => 1,
                Backend::Tokio if target.is_open => LANES as u64,
                _ => depth as u64,
            };
            let each = BLOCKS / lanes;
            let left = number as u64 * each..(number as u64 + 1) * each;
            Ok(Blocks { is_write: target.writes, left, ended: 0 })
        };
        run(backend, target, lane, |join| Ok(join()?.iter().map(|lane| lane.ended).sum()))
    }

    #[test]
    fn every_back_end_writes_and_reads_back() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let temp = Cleanup::default().temp_file(directory, "backend").expect("writable");
        let all = [
            Backend::Threads(Calls::Direct),
            Backend::Threads(Calls::Cached),
            Backend::Threads(Calls::Durable),
            Backend::Ring(Setup::default()),
            Backend::Ring(Setup { as_fio: true, ..Setup::default() }),
            Backend::Ring(Setup { waits_for_several: true, ..Setup::full() }),
            Backend::Ring(Setup { fixed_buffers: true, ..Setup::default() }),
            Backend::Ring(Setup::full()),
            Backend::Ring(Setup { defer_taskrun: false, sqpoll: true, ..Setup::full() }),
            Backend::Aio,
            Backend::TokioFs,
            Backend::SpawnBlocking,
            Backend::Shards(Polling::Off),
            Backend::Tokio,
        ];
        for backend in all {
            for (depth, shards, is_open) in [(1, 1, false), (6, 2, false), (6, 1, true)] {
                temp.file().set_len(0).expect("it is ours");
                temp.file().set_len(BLOCKS * BYTES as u64).expect("it is ours");
                let reads = Target::reads(temp.path(), BYTES, depth);
                let mut target = Target { workers: 2, shards, is_open, ..reads };
                let error = match blocks(backend, &target, depth) {
                    Err(error) if format!("{error:#}").contains("the kernel refuses") => continue,
                    other => other.expect_err("nothing was written"),
                };
                assert!(format!("{error:#}").contains(" is wrong"), "{backend:?}: {error:#}");
                target.writes = true;
                for writes in [true, false] {
                    target.writes = writes;
                    let ended = blocks(backend, &target, depth)
                        .unwrap_or_else(|error| panic!("{backend:?} {writes}: {error:#}"));
                    assert_eq!(ended, BLOCKS, "{backend:?} {writes}");
                }
            }
        }
    }

    #[test]
    fn an_experiment_that_fails_ends_its_lanes() {
        #[derive(Debug)]
        struct Endless(Arc<Mutex<bool>>);

        impl Lane for Endless {
            fn next(&mut self) -> Option<Op> {
                (!*locked(&self.0)).then(|| Op::read(0))
            }

            fn ended(&mut self, _: Op, _: Instant, _: &[u8]) -> anyhow::Result<()> {
                Ok(())
            }
        }

        struct EndGuard(Arc<Mutex<bool>>);

        impl Drop for EndGuard {
            fn drop(&mut self) {
                *locked(&self.0) = true;
            }
        }

        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let temp = Cleanup::default().temp_file(directory, "endless").expect("writable");
        temp.file().set_len(BYTES as u64).expect("it is ours");
        let threads = Backend::Threads(Calls::Direct);
        for backend in [threads, Backend::Aio, Backend::SpawnBlocking, Backend::Shards(Polling::Off)] {
            let target = Target::reads(temp.path(), BYTES, 2);
            let is_over = Arc::new(Mutex::new(false));
            let ending = EndGuard(Arc::clone(&is_over));
            let outcome: anyhow::Result<()> = run(
                backend,
                &target,
                |_| Ok(Endless(Arc::clone(&is_over))),
                |_| {
                    let _ending = ending;
                    anyhow::bail!("the gauge failed")
                },
            );
            assert_eq!(outcome.expect_err("it failed").to_string(), "the gauge failed", "{backend:?}");
        }
    }
}
