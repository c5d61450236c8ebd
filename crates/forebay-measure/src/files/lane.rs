//! A lane: one file after the other, each call with its time.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::super::gauge::Cost;
use super::super::interleave::Evidence;
use super::super::latency::Latency;
use super::job::{Call, FilesResult, FilesWork};

/// The state common to all lanes.
#[derive(Debug)]
pub(super) struct FileQueue {
    pub(super) work: FilesWork,
    directory: PathBuf,
    order: Vec<u32>,
    next: AtomicU64,
}

/// The calls whose times are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Open,
    Read,
    Write,
    Sync,
    Close,
    Stat,
}

/// The calls of one lane, or of all lanes.
#[derive(Debug)]
pub(super) struct Tally {
    parts: [Duration; 6],
    /// Times of all calls with one file.
    pub(super) latency: Latency,
    begun: Instant,
    last: Instant,
}

impl FileQueue {
    pub(super) fn new(directory: &Path, work: &FilesWork) -> Self {
        let (work, directory) = (work.clone(), directory.to_owned());
        Self { order: work.order(), work, directory, next: AtomicU64::new(0) }
    }

    /// Returns the next file; no other lane gets it in this turn. Stat begins again after the last file:
    /// its data are in memory in any case.
    pub(super) fn next_file(&self) -> Option<(u32, PathBuf)> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.order.len() as u64;
        let place = if self.work.call == Call::Stat { turn % count } else { turn };
        let file = *self.order.get(usize::try_from(place).ok()?)?;
        Some((file, FilesWork::path(&self.directory, file)))
    }

    /// Fills `memory` with the contents of file number `file`.
    pub(super) fn fill(&self, file: u32, memory: &mut [u8]) {
        self.work.file_set.contents(file).fill(0, memory);
    }

    /// Checks that `found` is file number `file`: its length and its first bytes.
    ///
    /// # Errors
    /// Fails when it is not.
    pub(super) fn check(&self, file: u32, found: &[u8]) -> anyhow::Result<()> {
        let word = self.work.file_set.contents(file).first_word(0).to_le_bytes();
        anyhow::ensure!(
            found.len() as u64 == self.work.file_set.file_bytes && found.starts_with(&word),
            "file {file} does not hold the bytes written there; the storage below it or the way it was read is faulty"
        );
        Ok(())
    }

    /// Checks that a file has the length that it should have.
    ///
    /// # Errors
    /// Fails when it has not.
    pub(super) fn check_length(&self, file: u32, length: u64) -> anyhow::Result<()> {
        anyhow::ensure!(
            length == self.work.file_set.file_bytes,
            "file {file} is {length} bytes long and should have {}",
            self.work.file_set.file_bytes
        );
        Ok(())
    }
}

impl Tally {
    pub(super) fn new() -> anyhow::Result<Self> {
        let now = Instant::now();
        Ok(Self { parts: [Duration::ZERO; 6], latency: Latency::new()?, begun: now, last: now })
    }

    /// Starts the time of a file, before its first call. Returns `false` when no time is left. The first
    /// file always has time: otherwise a short sample on a busy machine would have nothing to report.
    pub(super) fn begin(&mut self, deadline: Instant) -> bool {
        self.begun = Instant::now();
        self.last = self.begun;
        self.begun < deadline || self.latency.count() == 0
    }

    /// Adds the time of the call that has ended; the next one begins.
    pub(super) fn made(&mut self, part: Part) {
        let now = Instant::now();
        self.parts[part as usize] += now - self.last;
        self.last = now;
    }

    /// Excludes the time since the last call from the file's time: it is the program's own.
    pub(super) fn resume(&mut self) {
        let now = Instant::now();
        self.begun += now - self.last;
        self.last = now;
    }

    /// Records the time of a file whose last call has ended.
    pub(super) fn end(&mut self) {
        self.latency.record(self.last - self.begun);
    }

    pub(super) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        for (sum, part) in self.parts.iter_mut().zip(other.parts) {
            *sum += part;
        }
        self.latency.add(&other.latency)
    }

    pub(super) fn result(self, cost: Cost) -> FilesResult {
        let of = |part: Part| self.parts[part as usize].as_secs_f64();
        FilesResult {
            seconds: cost.seconds,
            cpu_seconds: cost.cpu_seconds,
            files: self.latency.count(),
            open_s: of(Part::Open),
            read_s: of(Part::Read),
            write_s: of(Part::Write),
            sync_s: of(Part::Sync),
            close_s: of(Part::Close),
            stat_s: of(Part::Stat),
            p50_us: self.latency.quantile_us(0.5),
            p99_us: self.latency.quantile_us(0.99),
            evidence: Evidence {
                counter_deltas: cost.counter_deltas,
                times: [("latency".to_owned(), self.latency)].into(),
            },
        }
    }
}
