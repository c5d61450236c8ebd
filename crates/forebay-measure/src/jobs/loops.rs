//! The loops of a group of jobs: a thread for each clone, with a common start.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::fs::{Advice, fadvise};

use super::Assignment;
use super::places::{Places, unit};
use crate::aligned::Map;
use crate::backend::{
    Backend, Begin, Lane, Op, Setup, Target, buffer, by_queue, mark_pages, minimise_timer_slack, sleep_until,
    transfer,
};
use crate::commands::Namespace;
use crate::job_file::{Exit, FileJob, IoEngine, Order};
use crate::lanes::{allow_files, on_own_threads};
use crate::pattern::Checker;
use crate::prelude::*;

/// Operations from which a p99 and a p99.9 are known.
const OF_P99: u64 = 100;
const OF_P99_9: u64 = 1000;
/// How long a clone that waits sleeps until it looks whether another job ends it.
const NAP: Duration = Duration::from_millis(10);

/// Runs the jobs of a group. The figures of each have its number and the kind of its operations before their name.
///
/// # Errors
/// An engine is refused here, or an operation failed or returned other data than those written.
pub(super) fn run(job: &Job, jobs: &[Assignment]) -> anyhow::Result<Outcome> {
    let begin = Begin(Arc::default());
    let (ready, all_ready) = mpsc::channel();
    let mut flows: BTreeMap<u64, Arc<Flow>> = BTreeMap::new();
    let stops: Vec<Arc<AtomicBool>> = jobs.iter().map(|_| Arc::default()).collect();
    let may_be_stopped = jobs.iter().any(|own| own.job.exits.is_some());
    // What one verifies may have been written by another.
    let is_verified = jobs.iter().any(|own| own.job.verify_every > 0);
    let mut clones = Vec::new();
    for (index, Assignment { job: own, paths, span_bytes, is_known }) in jobs.iter().enumerate() {
        let ends = |other: &FileJob| match own.exits {
            Some(Exit::Group) => other.report_group == own.report_group,
            exits => exits.is_some(),
        };
        let stopped = jobs.iter().zip(&stops).filter(|(other, _)| ends(&other.job));
        let stopped: Vec<Arc<AtomicBool>> = stopped.map(|(_, stop)| Arc::clone(stop)).collect();
        let align = own.align.unwrap_or_else(|| own.block_bytes_min()).max(1);
        // After a pass over the file at the latest: each write is noted until then.
        let verify_every = own.verify_every.min(span_bytes.div_ceil(own.block_bytes_min().max(1)));
        for (clone, path) in (0..).zip(paths) {
            let lane = clones.len();
            let seeds = [2 * lane, 2 * lane + 1].map(|lane| job.seed ^ (lane as u64).rotate_left(32));
            let weight = own.flow_weight;
            let flow = (weight > 0).then(|| FlowPart::join(flows.entry(own.flow).or_default(), weight));
            let contents = if is_verified { job.seed } else { job.seed ^ lane as u64 };
            let contents = Pattern::new(contents);
            clones.push(Worker {
                index,
                path: path.clone(),
                offset: own.offset_of(clone),
                places: seeds.map(|seed| Places::new(&own.order, *span_bytes, align, seed)),
                mix: SplitMix::new(job.seed ^ ((lane as u64 + 1) << 40)),
                tail: if own.has_end() { own.block_bytes_min() } else { 1 },
                bytes: if own.is_timed { u64::MAX } else { own.io_bytes.unwrap_or(*span_bytes) },
                loops: own.loops,
                left: [0, 0],
                limit: Duration::from_secs_f64(own.seconds.unwrap_or(f64::MAX).min(job.seconds)),
                ready: Some(ready.clone()),
                begin: Arc::clone(&begin.0),
                until: None,
                earliest: None,
                paces: [Instant::now(); 2],
                thought: 0,
                flow,
                stop: Arc::clone(&stops[index]),
                may_be_stopped,
                stops: stopped.clone(),
                in_flight: 0,
                is_draining: false,
                written: Vec::new(),
                verified: None,
                last: Instant::now(),
                from: Instant::now(),
                busy: [Duration::ZERO; 2],
                moved: [0; 2],
                checker: Checker::new(job.pattern().filter(|_| *is_known)),
                verifier: Checker::new(Some(contents)),
                contents,
                odd_block: odd_block(own),
                times: [Latency::new()?, Latency::new()?, Latency::new()?],
                job: FileJob { verify_every, ..own.clone() },
            });
        }
    }
    drop(ready);
    // A file for each clone, and perhaps a ring. A limit below that may suffice; where it does not, a clone names its file.
    _ = allow_files(2 * clones.len() as u64);
    let join = on_own_threads(clones.into_iter().map(|clone| async move { clone.run() }))?;
    // An error means that no clone has a sender any more: all of them are ready, or have failed.
    let (begin, _) = (begin, all_ready.recv());
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    _ = begin.0.set(Some(gauge.begun()));
    let ended = join()?;
    outcome(jobs, &ended, gauge.stop()?)
}

/// Returns data that do not compress for blocks that are not whole pages; empty for others.
fn odd_block(job: &FileJob) -> Vec<u8> {
    if job.is_aligned(PAGE_BYTES as u64) {
        return Vec::new();
    }
    let bytes = job.block_bytes_max() as usize;
    let mut block = vec![0; bytes.next_multiple_of(PAGE_BYTES)];
    Pattern::new(bytes as u64).fill(0, &mut block);
    block.truncate(bytes);
    block
}

/// The clones of a flow together: their operations, and their weights.
#[derive(Debug, Default)]
struct Flow {
    operations: AtomicU64,
    weight: AtomicU64,
}

/// A clone's part of a flow, which ends as it is dropped.
#[derive(Debug)]
struct FlowPart {
    flow: Arc<Flow>,
    operations: u64,
    weight: u64,
}

impl FlowPart {
    fn join(flow: &Arc<Flow>, weight: u64) -> Self {
        flow.weight.fetch_add(weight, Ordering::Relaxed);
        Self { flow: Arc::clone(flow), operations: 0, weight }
    }

    /// Returns whether the clone has had more than its share of the operations.
    fn is_ahead(&self) -> bool {
        let own = u128::from(self.operations) * u128::from(self.flow.weight.load(Ordering::Acquire));
        own > u128::from(self.weight) * u128::from(self.flow.operations.load(Ordering::Acquire))
    }

    fn count(&mut self) {
        self.operations += 1;
        self.flow.operations.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for FlowPart {
    fn drop(&mut self) {
        // The other parts see first that they must end with this part.
        self.flow.operations.fetch_sub(self.operations, Ordering::AcqRel);
        self.flow.weight.fetch_sub(self.weight, Ordering::AcqRel);
    }
}

/// A clone of a job.
#[derive(Debug)]
struct Worker {
    index: usize,
    job: FileJob,
    path: PathBuf,
    offset: u64,
    /// Of reads and of writes. Patterns that use each block once share the first.
    places: [Places; 2],
    mix: SplitMix,
    /// Minimum bytes left in a loop to start another block: the smallest block, or 1 if the loop may exceed its bytes.
    tail: u64,
    /// Bytes of each loop.
    bytes: u64,
    /// Loops that have not started.
    loops: u64,
    /// Bytes and operations that may still start in this loop.
    left: [u64; 2],
    limit: Duration,
    /// Dropped when it waits for the start.
    ready: Option<Sender<Infallible>>,
    begin: Arc<OnceLock<Option<Instant>>>,
    /// The end of its time, once it has started.
    until: Option<Instant>,
    /// When the next operation is due after a pause.
    earliest: Option<Instant>,
    /// When the next read and write of a rate are due.
    paces: [Instant; 2],
    /// Operations since the last pause.
    thought: u64,
    flow: Option<FlowPart>,
    /// Set when another job ends this job, if any of them ends others.
    stop: Arc<AtomicBool>,
    may_be_stopped: bool,
    /// The flags of the jobs that end with this job.
    stops: Vec<Arc<AtomicBool>>,
    in_flight: u64,
    /// The depth was reached; nothing starts before few are in flight.
    is_draining: bool,
    /// Offsets and lengths of writes that are to be verified.
    written: Vec<(u64, u64)>,
    /// The number of these that are already read; `None` while it writes.
    verified: Option<usize>,
    /// The end of the last operation.
    last: Instant,
    /// The start of this phase, of the job's work or of verification.
    from: Instant,
    /// Time of the phases with reads, and with writes.
    busy: [Duration; 2],
    /// Bytes read and written.
    moved: [u64; 2],
    checker: Checker,
    /// Of this job's writes.
    verifier: Checker,
    contents: Pattern,
    odd_block: Vec<u8>,
    /// Of reads, writes and syncs.
    times: [Latency; 3],
}

impl Lane for Worker {
    #[inline]
    fn next(&mut self) -> Option<Op> {
        let until = match self.until {
            Some(until) => until,
            None => self.starts()?,
        };
        self.is_draining &= self.in_flight > self.job.low_depth;
        if self.is_draining || self.is_over(until, self.last) || self.waits_for_flow(until) {
            return None;
        }
        if self.job.think_seconds > 0.0 && self.thought >= self.job.think_every {
            if self.in_flight > 0 {
                return None;
            }
            self.thought = 0;
            self.earliest = Some(self.last + Duration::from_secs_f64(self.job.think_seconds));
        }
        let mut op = self.planned()?;
        op.due = self.due(&op);
        if op.due.is_some_and(|due| due >= until) {
            // Nothing more is due in its time.
            self.last = until;
            return None;
        }
        if op.due.is_some_and(|due| self.is_stopped_before(due)) {
            return None;
        }
        self.thought += 1;
        self.in_flight += 1;
        self.is_draining = self.in_flight >= self.job.depth;
        self.flow.iter_mut().for_each(FlowPart::count);
        Some(op)
    }

    fn gives_up(&mut self, op: &Op) -> bool {
        let is_late = op.due.is_some() && self.stop.load(Ordering::Relaxed);
        self.in_flight -= u64::from(is_late);
        is_late
    }

    #[inline]
    fn bytes_of(&self, op: &Op, _most: usize) -> usize {
        op.tag as usize
    }

    fn fill(&mut self, op: &Op, memory: &mut [u8]) {
        if self.odd_block.is_empty() {
            mark_pages(self.contents, op.offset, memory);
        } else {
            memory.copy_from_slice(&self.odd_block[..memory.len()]);
        }
    }

    #[inline]
    fn ended(&mut self, op: Op, begun: Instant, bytes: &[u8]) -> anyhow::Result<()> {
        self.last = Instant::now();
        self.in_flight -= 1;
        // Those of the ramp are before the phase.
        if begun >= self.from {
            self.times[usize::from(op.is_write)].record(self.last - begun);
            self.moved[usize::from(op.is_write)] += op.tag;
        }
        if op.is_write {
            Ok(())
        } else if self.verified.is_some() {
            self.verifier.check(op.offset, bytes)
        } else {
            self.checker.check(op.offset, &bytes[..bytes.len().min(PAGE_BYTES)])
        }
    }
}

impl Worker {
    /// Waits for the start. Returns the end of its time.
    fn starts(&mut self) -> Option<Instant> {
        drop(self.ready.take());
        let delay = Duration::from_secs_f64(self.job.delay_seconds);
        let began = (*self.begin.wait())? + delay;
        self.earliest = (!delay.is_zero()).then_some(began);
        (self.last, self.paces) = (began, [began; 2]);
        self.from = began + Duration::from_secs_f64(self.job.ramp_seconds);
        Some(*self.until.insert(self.from + self.limit))
    }

    fn is_over(&self, until: Instant, now: Instant) -> bool {
        now >= until || self.stop.load(Ordering::Relaxed)
    }

    /// Waits until the other clones of its flow have done their parts. Returns whether nothing may start until operations in flight
    /// have ended, or at all.
    fn waits_for_flow(&self, until: Instant) -> bool {
        while self.flow.as_ref().is_some_and(FlowPart::is_ahead) {
            if self.in_flight > 0 || self.is_over(until, Instant::now()) {
                return true;
            }
            std::thread::yield_now();
            let sleep = Duration::from_secs_f64(self.job.flow_sleep_seconds);
            std::thread::sleep(sleep.min(until.saturating_duration_since(Instant::now())));
        }
        false
    }

    /// Waits for most of the time until an operation is due, if another job may end this one, and nothing is in flight. Returns whether
    /// it did.
    fn is_stopped_before(&self, due: Instant) -> bool {
        let waits = self.may_be_stopped && self.in_flight == 0;
        while waits && due.saturating_duration_since(Instant::now()) > 2 * NAP {
            if self.stop.load(Ordering::Relaxed) {
                return true;
            }
            std::thread::sleep(NAP);
        }
        false
    }

    /// Returns the next operation of the job; `None` at the end, or before those in flight have ended.
    fn planned(&mut self) -> Option<Op> {
        loop {
            let read = self.verified.and_then(|read| self.written.get(read)).copied();
            if let Some((offset, bytes)) = read {
                self.verified = self.verified.map(|read| read + 1);
                return Some(Op { tag: bytes, ..Op::read(offset) });
            }
            let (every, written) = (self.job.verify_every, self.written.len() as u64);
            let is_done = self.left[0] < self.tail || self.left[1] == 0;
            let is_unverified = every > 0 && (written >= every || is_done && written > 0);
            if self.verified.is_none() && !is_unverified && !is_done {
                return Some(self.work());
            }
            // Neither phases nor loops overlap.
            if self.in_flight > 0 {
                return None;
            }
            if is_unverified {
                self.ends_phase();
                if self.verified.take().is_some() {
                    self.written.clear();
                } else {
                    self.verified = Some(0);
                }
                continue;
            }
            self.loops = self.loops.checked_sub(1)?;
            self.left = [self.bytes, self.job.operations_max.unwrap_or(u64::MAX)];
        }
    }

    /// Returns the next read or write of the job's own.
    fn work(&mut self) -> Op {
        let is_write = match self.job.reads_percent {
            0 => true,
            100 => false,
            percent => self.mix.below(100) >= percent,
        };
        let mut bytes = self.job.blocks[usize::from(is_write)].draw(&mut self.mix);
        if self.tail > 1 && bytes > self.left[0] {
            bytes = self.left[0] / self.tail * self.tail;
        }
        self.left[0] = self.left[0].saturating_sub(bytes);
        self.left[1] -= 1;
        let places = &mut self.places[usize::from(is_write && self.job.order != Order::Once)];
        let offset = self.offset + places.next_offset(bytes);
        if self.job.verify_every > 0 {
            self.written.push((offset, bytes));
        }
        Op { is_write, tag: bytes, ..Op::read(offset) }
    }

    /// Returns when an operation is due after a pause, and by the job's rate.
    fn due(&mut self, op: &Op) -> Option<Instant> {
        let (pause, kind) = (self.earliest.take(), usize::from(op.is_write));
        let mut seconds = match (self.job.rates[kind], self.job.iops[kind]) {
            (0, 0) => return pause,
            (0, iops) => 1.0 / iops as f64,
            (rate, _) => op.tag as f64 / rate as f64,
        };
        if self.verified.is_some() {
            return pause;
        }
        if self.job.is_poisson {
            seconds *= -(1.0 - unit(&mut self.mix)).ln();
        }
        let due = self.paces[kind];
        self.paces[kind] = due + Duration::from_secs_f64(seconds);
        Some(pause.map_or(due, |pause| pause.max(due)))
    }

    /// Adds the time of a phase to that of its kinds of operations.
    fn ends_phase(&mut self) {
        let kinds = if self.verified.is_some() { [true, false] } else { self.job.reads_and_writes() };
        let time = self.last.saturating_duration_since(self.from);
        for (busy, _) in self.busy.iter_mut().zip(kinds).filter(|(_, is_used)| *is_used) {
            *busy += time;
        }
        self.from = self.from.max(self.last);
    }

    /// Does its operations.
    fn run(self) -> anyhow::Result<Self> {
        let [_, writes] = self.job.reads_and_writes();
        let flags = self.job.open_flags | if self.job.is_direct { libc::O_DIRECT } else { 0 };
        let file = OpenOptions::new().read(true).write(writes).custom_flags(flags).open(&self.path);
        let file = file.with_context(|| format!("{} cannot be opened", self.path.display()))?;
        if !self.job.is_direct {
            // As fio's `fadvise_hint`.
            fadvise(&file, 0, None, if self.job.is_random() { Advice::Random } else { Advice::Sequential })?;
        }
        let target = Target {
            writes,
            contents: Some(self.contents).filter(|_| self.odd_block.is_empty()),
            ..Target::reads(&self.path, self.job.block_bytes_max() as usize, self.job.depth as usize)
        };
        let mut ended = match self.job.engine {
            IoEngine::Sync | IoEngine::Psync | IoEngine::Mmap => self.by_calls(&file, &target),
            IoEngine::Libaio => by_queue(Backend::Aio, self, &file, Namespace::default(), &target),
            IoEngine::IoUring => {
                let (fixed_buffers, fixed_file) = (self.job.fixed_buffers, self.job.fixed_file);
                let setup = Setup { as_fio: true, fixed_buffers, fixed_file, ..Setup::default() };
                by_queue(Backend::Ring(setup), self, &file, Namespace::default(), &target)
            }
        }?;
        ended.ends_phase();
        ended.stops.iter().for_each(|stop| stop.store(true, Ordering::Relaxed));
        ended.flow = None;
        Ok(ended)
    }

    fn by_calls(mut self, mut file: &File, target: &Target) -> anyhow::Result<Self> {
        use rustix::mm::Advice;
        minimise_timer_slack();
        let advice = if self.job.is_random() { Advice::Random } else { Advice::Sequential };
        let map = match self.job.engine {
            IoEngine::Mmap => {
                // The metadata of a block device have no length.
                let bytes = file.seek(SeekFrom::End(0))?;
                Some(Map::new(file, bytes, advice)?)
            }
            _ => None,
        };
        let (mut buffer, mut position, mut unsynced) = (buffer(target), 0, 0);
        while let Some(op) = self.next() {
            op.due.into_iter().for_each(sleep_until);
            if self.gives_up(&op) {
                continue;
            }
            let memory = &mut buffer.bytes_mut()[..op.tag as usize];
            if op.is_write {
                self.fill(&op, memory);
            }
            let begun = self.begins();
            match (&map, self.job.engine) {
                (Some(map), _) => map.copy(op.offset, memory),
                (None, IoEngine::Psync) => transfer(file, op, memory)?,
                _ => {
                    if position != op.offset {
                        file.seek(SeekFrom::Start(op.offset))?;
                    }
                    position = op.offset + op.tag;
                    if op.is_write { file.write_all(memory) } else { file.read_exact(memory) }?;
                }
            }
            self.ended(op, begun, memory)?;
            unsynced += u64::from(op.is_write);
            if unsynced > 0 && unsynced == self.job.sync_every {
                unsynced = 0;
                if self.job.syncs_data { file.sync_data() } else { file.sync_all() }?;
                let begun = std::mem::replace(&mut self.last, Instant::now());
                if begun >= self.from {
                    self.times[2].record(self.last - begun);
                }
            }
        }
        Ok(self)
    }
}

/// Adds up the clones of each job.
fn outcome(jobs: &[Assignment], ended: &[Worker], cost: Cost) -> anyhow::Result<Outcome> {
    let (mut figures, mut operations, mut bytes) = (Metrics::default(), 0, 0);
    for (index, Assignment { job, .. }) in jobs.iter().enumerate() {
        let own = || ended.iter().filter(move |clone| clone.index == index);
        for (place, kind) in super::KINDS.iter().enumerate() {
            let mut times = Latency::new()?;
            own().try_for_each(|clone| times.add(&clone.times[place]))?;
            let count = times.count();
            let mut set = |name: &str, value: Option<f64>| {
                figures.set(&format!("{index}:{kind}:{name}"), value.unwrap_or(f64::NAN));
            };
            let of = |least: u64, quantile: f64| times.quantile_us(quantile).filter(|_| count >= least);
            set(metric::P50_US, of(1, 0.5));
            set(metric::P99_US, of(OF_P99, 0.99));
            set(metric::P99_9_US, of(OF_P99_9, 0.999));
            set(metric::MEAN_US, times.mean_us());
            if *kind == "sync" || count == 0 {
                continue;
            }
            let moved: u64 = own().map(|clone| clone.moved[place]).sum();
            let seconds = own().map(|clone| clone.busy[place]).max().unwrap_or_default().as_secs_f64();
            (operations, bytes) = (operations + count, bytes + moved);
            set(metric::SECONDS, Some(seconds));
            set(metric::IOPS, Some(count as f64 / seconds));
            set(metric::MB_PER_S, Some(moved as f64 / 1e6 / seconds));
            // Those of one kind of operations, all of which were counted.
            let is_mixed = job.reads_and_writes() == [true, true] || job.verify_every > 0;
            if jobs.len() == 1 && !is_mixed && job.ramp_seconds <= 0.0 {
                set(metric::CPU_US_PER_IO, Some(cost.cpu_seconds * 1e6 / count as f64));
                set(metric::CONTEXT_SWITCHES_PER_IO, Some(cost.context_switches as f64 / count as f64));
            }
        }
    }
    let outcome = Outcome::new(cost, operations, bytes, Latency::new()?);
    Ok(Outcome { figures, ..outcome })
}
