//! The rows with Forebay's log.

use std::future::Future as _;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

use anyhow::Context as _;
use forebay::{Config, Engine, Health, Priority};
use forebay_wal::{Options, Wal};

use super::super::pattern::Pattern;
use super::appender::{Appender, Appending};
use super::batches::{self, Batch};
use super::job::{WalRow, WalWork, Way};
use super::stamp::stamped;

/// An engine with one shard and a log on it.
struct Log {
    wal: Wal,
    /// Records in the log before the sample.
    aged: u64,
    appends: AtomicU64,
    /// Number of appends that write about [`GIVE_UP_BYTES`].
    give_up_every: u64,
    row: WalRow,
    records: Arc<Records>,
    engine: Mutex<Option<Engine>>,
    degraded: Option<String>,
}

/// The records that one append writes.
struct Records {
    bytes: Vec<u8>,
    record_bytes: usize,
    batch: u64,
}

impl Records {
    fn slices(&self) -> Vec<&[u8]> {
        self.bytes.chunks_exact(self.record_bytes).collect()
    }
}

/// Opens a fresh log and returns the row's appender.
///
/// # Errors
/// Errors of the engine and the log.
pub(super) fn open(directory: &Path, work: &WalWork) -> anyhow::Result<Arc<dyn Appender>> {
    let (engine, degraded) = start_engine(work.row)?;
    let options = Options::new().segment_bytes(work.file_bytes).flush(work.flush.flush());
    let (wal, _) = Wal::open(&engine, directory, options).wait()?;
    let aged = age(&wal)?;
    let length = work.record_bytes * work.batch;
    let mut bytes = vec![0; length.next_multiple_of(4096)];
    Pattern::new(work.seed).fill(0, &mut bytes);
    bytes.truncate(length);
    let records = Arc::new(Records { bytes, record_bytes: work.record_bytes, batch: work.batch as u64 });
    Ok(Arc::new(Log {
        wal,
        aged,
        appends: AtomicU64::new(0),
        give_up_every: (GIVE_UP_BYTES / length).max(1) as u64,
        row: work.row,
        records,
        engine: Mutex::new(Some(engine)),
        degraded,
    }))
}

/// Length of the records that age a log.
const LONG_BYTES: usize = 64 << 10;
/// Bytes after which a log gives up its durable records.
const GIVE_UP_BYTES: usize = 1 << 20;

/// Fills the log until it reuses segments. A log that runs for long makes no new ones if it gives up
/// records on the way. Returns the number of records in it.
fn age(wal: &Wal) -> anyhow::Result<u64> {
    let record = vec![1; LONG_BYTES];
    let batch = [&record[..]; 8];
    while wal.stats().segments_recycled == 0 {
        wal.append_batch(&batch).wait()?;
        wal.truncate_before(wal.durable_lsn()).wait()?;
    }
    Ok(wal.stats().records)
}

impl Log {
    /// Gives up the durable records from time to time, without waiting: this is written with the next group.
    fn give_up(&self) {
        if self.appends.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.give_up_every) {
            let given_up = pin!(self.wal.truncate_before(self.wal.durable_lsn()));
            let _ = given_up.poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

/// Starts an engine with one shard and the row's priority. Returns it and the reason for a lower priority.
///
/// # Errors
/// Errors of the engine.
pub(super) fn start_engine(row: WalRow) -> anyhow::Result<(Engine, Option<String>)> {
    let priority = priority(row);
    let engine = Engine::start(Config::default().shards(1).priority(priority))?;
    let degraded = refusal(&engine.health(), priority);
    Ok((engine, degraded))
}

/// Returns the priority that the row requests.
fn priority(row: WalRow) -> Priority {
    match row {
        WalRow::ForebayPrompt => Priority::Prompt,
        WalRow::ForebayRealtime => Priority::RealTime,
        _ => Priority::Default,
    }
}

/// Returns the reason why the engine has less than requested.
fn refusal(health: &Health, requested: Priority) -> Option<String> {
    let concerned = |text: &String| ["priority", "slice", "nice"].iter().any(|word| text.contains(word));
    let whys: Vec<String> = health.degraded.iter().map(ToString::to_string).filter(concerned).collect();
    if health.priority >= requested && (whys.is_empty() || requested == Priority::Default) {
        return None;
    }
    Some(format!("priority {requested} was requested and {} granted: {}", health.priority, whys.join("; ")))
}

struct Append {
    wal: Wal,
    records: Arc<Records>,
}

impl Batch for Append {
    fn wait(self) -> anyhow::Result<()> {
        self.wal.append_batch(&self.records.slices()).wait()?;
        Ok(())
    }

    async fn write(self) -> anyhow::Result<()> {
        self.wal.append_batch(&self.records.slices()).await?;
        Ok(())
    }
}

impl Appender for Log {
    fn append(&self, _lane: usize) -> Appending {
        self.give_up();
        let (wal, records) = (self.wal.clone(), Arc::clone(&self.records));
        match self.row.way() {
            Some(way) => batches::append(way, Append { wal, records }),
            None => Box::pin(async move {
                let (appended, at) = stamped(wal.append(&records.bytes)).await;
                appended?;
                Ok(at)
            }),
        }
    }

    fn begins_anywhere(&self) -> bool {
        self.row.way() != Some(Way::Direct)
    }

    fn degraded(&self) -> Option<String> {
        self.degraded.clone()
    }

    fn close(&self, appends: u64) -> anyhow::Result<()> {
        self.wal.close().wait()?;
        let durable = self.wal.stats().records.saturating_sub(self.aged);
        anyhow::ensure!(
            durable >= appends * self.records.batch,
            "{appends} appends of {} completed and {durable} records are durable",
            self.records.batch
        );
        close_engine(&self.engine)
    }
}

/// Shuts down the engine of a row.
///
/// # Errors
/// The engine was shut down before, cannot be closed, or lost something.
pub(super) fn close_engine(engine: &Mutex<Option<Engine>>) -> anyhow::Result<()> {
    let engine = engine.lock().unwrap_or_else(PoisonError::into_inner).take();
    let report = engine.context("the row was closed before")?.close().wait()?;
    anyhow::ensure!(
        report.leaked_operations == 0 && report.lost_shards == 0,
        "the engine lost {} shards and {} operations as it was closed",
        report.lost_shards,
        report.leaked_operations
    );
    Ok(())
}
