//! The loops of a group of jobs: a thread for each clone, and all begin together.

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

use super::Assignment;
use crate::aligned::Map;
use crate::backend::{Backend, Begin, Lane, Op, Setup, Target, buffer, by_queue, mark_pages, transfer};
use crate::commands::Namespace;
use crate::job_file::{FileJob, IoEngine};
use crate::lanes::on_own_threads;
use crate::pace::Offsets;
use crate::pattern::Checker;
use crate::prelude::*;

/// Operations from which a p99 and a p99.9 are known.
const OF_P99: u64 = 100;
const OF_P99_9: u64 = 1000;

/// Runs the jobs of a group. The figures of each have its number and the kind of its operations before their name.
///
/// # Errors
/// An engine is refused here, or an operation failed or returned other data than those written.
pub(super) fn run(job: &Job, jobs: &[Assignment]) -> anyhow::Result<Outcome> {
    let begin = Begin(Arc::default());
    let (ready, all_ready) = mpsc::channel();
    let mut clones = Vec::new();
    for (index, Assignment { job: own, paths, span_bytes, is_known }) in jobs.iter().enumerate() {
        for path in paths {
            let lane = clones.len();
            clones.push(Worker {
                index,
                path: path.clone(),
                places: [2 * lane, 2 * lane + 1].map(|lane| Places::of(own, *span_bytes, job.seed, lane)),
                mix: SplitMix::new(job.seed ^ ((lane as u64 + 1) << 40)),
                left: operations(own, *span_bytes),
                limit: Duration::from_secs_f64(own.seconds.unwrap_or(f64::MAX).min(job.seconds)),
                ready: Some(ready.clone()),
                begin: Arc::clone(&begin.0),
                began: None,
                last: Instant::now(),
                checker: Checker::new(job.pattern().filter(|_| *is_known)),
                contents: Pattern::new(job.seed ^ lane as u64),
                odd_block: odd_block(own),
                times: [Latency::new()?, Latency::new()?, Latency::new()?],
                job: own.clone(),
            });
        }
    }
    drop(ready);
    let join = on_own_threads(clones.into_iter().map(|clone| async move { clone.run() }))?;
    // An error means that no clone has a sender any more: all of them are ready, or have failed.
    let (begin, _) = (begin, all_ready.recv());
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    _ = begin.0.set(Some(gauge.begun()));
    let ended = join()?;
    outcome(jobs, &ended, gauge.stop()?)
}

/// The offsets of a clone, from the job's offset on.
#[derive(Debug)]
enum Places {
    /// In order, or equally likely.
    Free(Offsets),
    /// At random, all of them once before any comes again, as fio's random map has it.
    Once { seed: u64, next: u64, blocks: u64, block_bytes: u64 },
}

impl Places {
    fn of(job: &FileJob, span_bytes: u64, seed: u64, lane: usize) -> Self {
        let (blocks, block_bytes) = (span_bytes / job.block_bytes, job.block_bytes);
        match (job.is_random, job.repeats_blocks) {
            (false, _) => Self::Free(Offsets::in_order(blocks, block_bytes)),
            (true, true) => Self::Free(Offsets::over(seed, lane, 0, blocks, block_bytes)),
            (true, false) => Self::Once { seed: seed ^ lane as u64, next: 0, blocks, block_bytes },
        }
    }

    fn next_offset(&mut self) -> u64 {
        match self {
            Self::Free(offsets) => offsets.next_offset(),
            Self::Once { seed, next, blocks, block_bytes } => {
                let (pass, place) = (*next / *blocks, *next % *blocks);
                *next += 1;
                permuted(place, *blocks, seed.wrapping_add(pass)) * *block_bytes
            }
        }
    }
}

/// Returns the place to which a permutation of the numbers below `count` brings one: a Feistel network over the bits of `count`, again
/// where it leads beyond.
fn permuted(mut number: u64, count: u64, seed: u64) -> u64 {
    let bits = (u64::BITS - (count - 1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1 << bits) - 1;
    loop {
        let (mut left, mut right) = (number >> bits, number & mask);
        for round in 1..=4 {
            let mut mixed = SplitMix::new(seed ^ (right << 8) ^ round);
            (left, right) = (right, left ^ (mixed.next_u64() & mask));
        }
        number = (left << bits) | right;
        if number < count {
            return number;
        }
    }
}

/// Returns how many operations a clone does, if its time suffices.
fn operations(job: &FileJob, span_bytes: u64) -> u64 {
    let of_bytes = if job.is_timed { u64::MAX } else { job.io_bytes.unwrap_or(span_bytes) / job.block_bytes };
    of_bytes.min(job.operations_max.unwrap_or(u64::MAX))
}

/// Returns data that do not compress for blocks that are not whole pages; none for others.
fn odd_block(job: &FileJob) -> Vec<u8> {
    let bytes = job.block_bytes as usize;
    if bytes.is_multiple_of(PAGE_BYTES) {
        return Vec::new();
    }
    let mut block = vec![0; bytes.next_multiple_of(PAGE_BYTES)];
    Pattern::new(job.block_bytes).fill(0, &mut block);
    block.truncate(bytes);
    block
}

/// A clone of a job.
#[derive(Debug)]
struct Worker {
    index: usize,
    job: FileJob,
    path: PathBuf,
    /// Of reads and of writes. Those at random share the first.
    places: [Places; 2],
    mix: SplitMix,
    /// Operations that it may still begin.
    left: u64,
    limit: Duration,
    /// Dropped when it waits for the begin.
    ready: Option<Sender<Infallible>>,
    begin: Arc<OnceLock<Option<Instant>>>,
    began: Option<Instant>,
    /// The end of the last operation.
    last: Instant,
    checker: Checker,
    contents: Pattern,
    odd_block: Vec<u8>,
    /// Of reads, writes and syncs.
    times: [Latency; 3],
}

impl Lane for Worker {
    #[inline]
    fn next(&mut self) -> Option<Op> {
        let began = match self.began {
            Some(began) => began,
            None => {
                drop(self.ready.take());
                self.last = (*self.begin.wait())?;
                *self.began.insert(self.last)
            }
        };
        if self.left == 0 || self.last.saturating_duration_since(began) >= self.limit {
            return None;
        }
        self.left -= 1;
        let is_write = match self.job.reads_percent {
            0 => true,
            100 => false,
            percent => self.mix.below(100) >= percent,
        };
        let places = &mut self.places[usize::from(is_write && !self.job.is_random)];
        Some(Op { is_write, ..Op::read(self.job.offset + places.next_offset()) })
    }

    fn fill(&mut self, op: &Op, memory: &mut [u8]) {
        if self.odd_block.is_empty() {
            mark_pages(self.contents, op.offset, memory);
        } else {
            memory.copy_from_slice(&self.odd_block);
        }
    }

    #[inline]
    fn ended(&mut self, op: Op, begun: Instant, bytes: &[u8]) -> anyhow::Result<()> {
        self.last = Instant::now();
        self.times[usize::from(op.is_write)].record(self.last - begun);
        if op.is_write {
            Ok(())
        } else {
            self.checker.check(op.offset, &bytes[..bytes.len().min(PAGE_BYTES)])
        }
    }
}

impl Worker {
    /// Does its operations.
    fn run(self) -> anyhow::Result<Self> {
        let (is_direct, is_random) = (self.job.is_direct, self.job.is_random);
        let [_, writes] = self.job.reads_and_writes();
        let flags = if is_direct { libc::O_DIRECT } else { 0 };
        let file = OpenOptions::new().read(true).write(writes).custom_flags(flags).open(&self.path)?;
        if !is_direct {
            // As fio's `fadvise_hint`.
            fadvise(&file, 0, None, if is_random { Advice::Random } else { Advice::Sequential })?;
        }
        let target = Target {
            writes,
            contents: Some(self.contents).filter(|_| self.odd_block.is_empty()),
            ..Target::reads(&self.path, self.job.block_bytes as usize, self.job.depth as usize)
        };
        match self.job.engine {
            IoEngine::Sync | IoEngine::Psync => self.by_calls(&file, &target),
            IoEngine::Mmap => self.by_map(&file),
            IoEngine::Libaio => by_queue(Backend::Aio, self, &file, Namespace::default(), &target),
            IoEngine::IoUring => {
                let (fixed_buffers, fixed_file) = (self.job.fixed_buffers, self.job.fixed_file);
                let setup = Setup { as_fio: true, fixed_buffers, fixed_file, ..Setup::default() };
                by_queue(Backend::Ring(setup), self, &file, Namespace::default(), &target)
            }
        }
    }

    fn by_calls(mut self, mut file: &File, target: &Target) -> anyhow::Result<Self> {
        let (mut memory, mut position, mut unsynced) = (buffer(target), 0, 0);
        while let Some(op) = self.next() {
            if op.is_write {
                self.fill(&op, memory.bytes_mut());
            }
            let begun = self.begins();
            if self.job.engine == IoEngine::Psync {
                transfer(file, op, memory.bytes_mut())?;
            } else {
                if position != op.offset {
                    file.seek(SeekFrom::Start(op.offset))?;
                }
                position = op.offset + self.job.block_bytes;
                if op.is_write {
                    file.write_all(memory.bytes())
                } else {
                    file.read_exact(memory.bytes_mut())
                }?;
            }
            self.ended(op, begun, memory.bytes())?;
            unsynced += u64::from(op.is_write);
            if unsynced > 0 && unsynced == self.job.sync_every {
                unsynced = 0;
                if self.job.syncs_data { file.sync_data() } else { file.sync_all() }?;
                let begun = std::mem::replace(&mut self.last, Instant::now());
                self.times[2].record(self.last - begun);
            }
        }
        Ok(self)
    }

    fn by_map(mut self, file: &File) -> anyhow::Result<Self> {
        use rustix::mm::Advice;
        let advice = if self.job.is_random { Advice::Random } else { Advice::Sequential };
        let map = Map::new(file, file.metadata()?.len(), advice)?;
        let mut memory = vec![0; self.job.block_bytes as usize];
        while let Some(op) = self.next() {
            let begun = self.begins();
            map.copy(op.offset, &mut memory);
            self.ended(op, begun, &memory)?;
        }
        Ok(self)
    }
}

/// Adds up the clones of each job.
fn outcome(jobs: &[Assignment], ended: &[Worker], cost: Cost) -> anyhow::Result<Outcome> {
    let (mut figures, mut operations, mut bytes) = (Metrics::default(), 0, 0);
    for (index, Assignment { job, .. }) in jobs.iter().enumerate() {
        let own = || ended.iter().filter(move |clone| clone.index == index);
        let time = |clone: &Worker| Some(clone.last.saturating_duration_since(clone.began?).as_secs_f64());
        let seconds = own().filter_map(time).fold(0.0, f64::max);
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
            let moved = count * job.block_bytes;
            (operations, bytes) = (operations + count, bytes + moved);
            set(metric::SECONDS, Some(seconds));
            set(metric::IOPS, Some(count as f64 / seconds));
            set(metric::MB_PER_S, Some(moved as f64 / 1e6 / seconds));
            if jobs.len() == 1 && job.reads_and_writes() != [true, true] {
                set(metric::CPU_US_PER_IO, Some(cost.cpu_seconds * 1e6 / count as f64));
                set(metric::CONTEXT_SWITCHES_PER_IO, Some(cost.context_switches as f64 / count as f64));
            }
        }
    }
    let outcome = Outcome::new(cost, operations, bytes, Latency::new()?);
    Ok(Outcome { figures, ..outcome })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_brings_each_number_to_a_place_of_its_own() {
        for count in [1, 2, 3, 17, 64, 1000] {
            let mut places: Vec<u64> = (0..count).map(|number| permuted(number, count, 7)).collect();
            let is_in_order = places.is_sorted();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..count), "{count}");
            assert!(!is_in_order || count < 17, "{count}");
        }
        assert_ne!(permuted(5, 1000, 1), permuted(5, 1000, 2));
    }
}
