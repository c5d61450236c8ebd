//! raft-engine: each writer is a raft group with entries of its own. Entries that are not needed any more are
//! released now and then, as its users do, so that files are used again. Its calls block.

use std::sync::Arc;
use std::time::Duration;

use protobuf::well_known_types::BytesValue;
use raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize};

use super::drive::{self, Append, AppendAndWait, Upkeep};
use super::{Work, record};
use crate::prelude::*;

/// Above this much its own collection of old files begins. It makes half as much again of written files when it starts.
const LOG_BYTES: u64 = 384 << 20;
/// After this much, which is one of its files, old entries are released: more often would only cost it time.
const KEPT_BYTES: u64 = 128 << 20;
/// The interval of that check.
const LOOK: Duration = Duration::from_millis(20);
/// Entries of a writer that are kept.
const KEPT: u64 = 100;

/// Entries of one writer: a message around the record, whose number is the entry's index.
struct Entries;

impl MessageExt for Entries {
    type Entry = BytesValue;

    fn index(entry: &BytesValue) -> u64 {
        record::number(entry.get_value())
    }
}

/// An open log.
pub(super) struct Log {
    engine: Arc<Engine>,
    upkeep: Upkeep,
}

impl Log {
    /// Opens a log whose files are prepared and used again.
    pub(super) fn start(work: &Work) -> Result<Self> {
        let engine = open(
            work,
            Config {
                purge_threshold: ReadableSize(LOG_BYTES),
                prefill_for_recycle: true,
                ..Config::default()
            },
        )?;
        let (log, writers, record_bytes) =
            (Arc::clone(&engine), work.writers as u64, work.record_bytes as u64);
        let mut given_up = 0;
        let upkeep = Upkeep::every(LOOK, move || {
            // All writers are about as far as the first.
            let last = log.last_index(1).unwrap_or(0);
            if last.saturating_sub(given_up) * writers * record_bytes < KEPT_BYTES {
                return Ok(());
            }
            given_up = last;
            for region in 1..=writers {
                if let Some(last) = log.last_index(region) {
                    log.compact_to(region, last.saturating_sub(KEPT));
                }
            }
            log.purge_expired_files()?;
            Ok(())
        });
        Ok(Self { engine, upkeep })
    }

    /// Opens a log that only grows, with its default configuration.
    pub(super) fn start_growing(work: &Work) -> Result<Self> {
        Ok(Self { engine: open(work, Config::default())?, upkeep: Upkeep::none() })
    }
}

fn open(work: &Work, config: Config) -> Result<Arc<Engine>> {
    let dir = work.dir.to_str().context("raft-engine wants a path in UTF-8")?.to_owned();
    Ok(Arc::new(Engine::open(Config { dir, ..config })?))
}

impl drive::Log for Log {
    type Writer = Writer;

    fn writer(&self, number: usize) -> Writer {
        Writer {
            engine: Arc::clone(&self.engine),
            region: number as u64 + 1,
            batch: LogBatch::default(),
            entries: vec![BytesValue::new()],
        }
    }

    fn finish(self, work: &Work, outcome: Outcome) -> Result<Outcome> {
        self.upkeep.finish()?;
        let last = self.engine.last_index(1).context("the first writer's entries are gone")?;
        let entry = self.engine.get_entry::<Entries>(1, last)?.context("the last entry is gone")?;
        record::check(entry.get_value(), work.record_bytes)?;
        Ok(outcome)
    }
}

/// A writer of the log.
pub(super) struct Writer {
    engine: Arc<Engine>,
    region: u64,
    batch: LogBatch,
    /// One entry, whose memory is kept.
    entries: Vec<BytesValue>,
}

impl Writer {
    fn fill(&mut self, record: &[u8]) -> Result<()> {
        let value = self.entries[0].mut_value();
        value.clear();
        value.extend_from_slice(record);
        self.batch.add_entries::<Entries>(self.region, &self.entries)?;
        Ok(())
    }
}

impl AppendAndWait for Writer {
    fn append_and_wait(&mut self, record: &[u8]) -> Result<()> {
        self.fill(record)?;
        self.engine.write(&mut self.batch, true)?;
        Ok(())
    }
}

impl Append for Writer {
    async fn append(&mut self, record: &[u8]) -> Result<()> {
        self.fill(record)?;
        let (engine, mut batch) = (Arc::clone(&self.engine), std::mem::take(&mut self.batch));
        let written = tokio::task::spawn_blocking(move || {
            engine.write(&mut batch, true)?;
            raft_engine::Result::Ok(batch)
        });
        self.batch = written.await??;
        Ok(())
    }
}
