//! Logs whose calls block: raft-engine and okaywal.

use std::io::Read as _;

use okaywal::{Configuration, LogVoid, WriteAheadLog};
use protobuf::well_known_types::BytesValue;
use raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize};

use super::drive::{EndUpkeep, Log, Writer, check, number, upkeep};
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
        number(entry.get_value())
    }
}

/// raft-engine: each writer is a raft group with entries of its own. Entries that are not needed any more are
/// released now and then, as its users do, so that files are used again.
pub(super) struct Raft {
    engine: Arc<Engine>,
    end_upkeep: EndUpkeep,
}

impl Raft {
    /// Opens a log: one that only grows, with its default configuration, or one whose files are prepared and used again.
    pub(super) fn start(work: &Work, grows: bool) -> Result<Self> {
        let dir = work.path.to_str().context("raft-engine wants a path in UTF-8")?.to_owned();
        if grows {
            let engine = Arc::new(Engine::open(Config { dir, ..Config::default() })?);
            return Ok(Self { engine, end_upkeep: Box::new(|| Ok(())) });
        }
        let purge_threshold = ReadableSize(LOG_BYTES);
        let config = Config { dir, purge_threshold, prefill_for_recycle: true, ..Config::default() };
        let engine = Arc::new(Engine::open(config)?);
        let (log, writers, record_bytes) =
            (Arc::clone(&engine), work.writers as u64, work.record_bytes as u64);
        let mut given_up = 0;
        let end_upkeep = upkeep(LOOK, move || {
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
        Ok(Self { engine, end_upkeep })
    }
}

impl Log for Raft {
    type Writer = RaftGroup;

    fn writer(&self, number: usize) -> RaftGroup {
        RaftGroup {
            engine: Arc::clone(&self.engine),
            region: number as u64 + 1,
            batch: LogBatch::default(),
            entries: vec![BytesValue::new()],
        }
    }

    fn finish(self, work: &Work, outcome: Outcome) -> Result<Outcome> {
        (self.end_upkeep)()?;
        let last = self.engine.last_index(1).context("the first writer's entries are gone")?;
        let entry = self.engine.get_entry::<Entries>(1, last)?.context("the last entry is gone")?;
        check(entry.get_value(), work.record_bytes)?;
        Ok(outcome)
    }
}

/// A writer of raft-engine.
pub(super) struct RaftGroup {
    engine: Arc<Engine>,
    region: u64,
    batch: LogBatch,
    /// One entry, whose memory is kept.
    entries: Vec<BytesValue>,
}

impl RaftGroup {
    fn fill(&mut self, record: &[u8]) -> Result<()> {
        let value = self.entries[0].mut_value();
        value.clear();
        value.extend_from_slice(record);
        self.batch.add_entries::<Entries>(self.region, &self.entries)?;
        Ok(())
    }
}

impl Writer for RaftGroup {
    fn append_and_wait(&mut self, record: &[u8]) -> Result<()> {
        self.fill(record)?;
        self.engine.write(&mut self.batch, true)?;
        Ok(())
    }

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

/// okaywal: checkpoints do nothing, so that only the log is measured; it uses its files again after them.
pub(super) struct Okay(WriteAheadLog);

impl Okay {
    /// Opens a log in the sample's folder.
    pub(super) fn start(work: &Work) -> Result<Self> {
        Ok(Self(Configuration::default_for(&work.path).open(LogVoid)?))
    }
}

impl Log for Okay {
    type Writer = OkayWriter;

    fn writer(&self, _: usize) -> OkayWriter {
        OkayWriter { log: self.0.clone(), is_first: true }
    }

    fn finish(self, _: &Work, outcome: Outcome) -> Result<Outcome> {
        self.0.shutdown()?;
        Ok(outcome)
    }
}

/// A writer of okaywal.
pub(super) struct OkayWriter {
    log: WriteAheadLog,
    is_first: bool,
}

impl Writer for OkayWriter {
    fn append_and_wait(&mut self, record: &[u8]) -> Result<()> {
        let mut entry = self.log.begin_entry()?;
        let chunk = entry.write_chunk(record)?;
        entry.commit()?;
        // Later records may be gone again by the time of a look-up.
        if std::mem::take(&mut self.is_first) {
            let mut found = vec![0; record.len()];
            self.log.read_at(chunk.position)?.read_exact(&mut found)?;
            check(&found, record.len())?;
        }
        Ok(())
    }
}
