//! Logs: forebay-wal, raft-engine and okaywal. The calls of the last two block.

use std::io::Read as _;

use forebay::Class;
use forebay_wal::{Options, Stats, Wal};
use okaywal::{Configuration, LogVoid, WriteAheadLog};
use protobuf::well_known_types::BytesValue;
use raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize};

use super::group_commit::SEGMENT_BYTES;
use super::writers::{self, EndUpkeep, Log, Writer, check, number, upkeep};
use crate::peers::forebay::spawn;
use crate::prelude::*;

/// Measures writers that are tasks of the log's shard.
pub(super) fn on_shard(work: &Work) -> Result<Outcome> {
    let log = Forebay::start(work, false)?;
    let (lanes, inner) = (writers::lanes(work, &log), work.clone());
    let task = log.engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let window = inner.window();
        let meter = local_tasks!(window, spawn, lanes, |(wal, mut record)| {
            wal.append(record.next()).await?;
        });
        anyhow::Ok(window.outcome([meter]))
    });
    let outcome = task.wait()??;
    log.finish(work, outcome)
}

/// Segments filled before the measurement; the log then holds as many used segments as it keeps.
const SEGMENTS_FILLED: u64 = 4;
/// A group each, and so short that new segments are written through: in long use all bytes of a segment were written before.
const FILLING_BYTES: usize = 24 << 10;
/// After half a segment of new records, those before are released.
const WAL_KEPT_BYTES: u64 = SEGMENT_BYTES / 2;
/// The interval of that check.
const WAL_LOOK: Duration = Duration::from_millis(10);

/// forebay-wal: its default options, one shard.
pub(super) struct Forebay {
    engine: forebay::Engine,
    wal: Wal,
    before: Stats,
    end_upkeep: EndUpkeep,
}

impl Forebay {
    /// Opens a log. Unless it `grows`, brings it to the state of a log that has been in use for long: records that are not
    /// needed any more are released now and then, and segments are used again.
    pub(super) fn start(work: &Work, grows: bool) -> Result<Self> {
        let engine = forebay::Engine::start(forebay::Config::new().shards(1))?;
        let (wal, _) = Wal::open(&engine, &work.path, Options::default()).wait()?;
        let watch = || async { usage::count_allocations_here() };
        engine.spawn_on_shard(0, Class::DEFAULT, watch).wait()?;
        let end_upkeep = if grows { Box::new(|| Ok(())) } else { Self::use_for_long(work, &wal)? };
        let before = wal.stats();
        Ok(Self { engine, wal, before, end_upkeep })
    }

    fn use_for_long(work: &Work, wal: &Wal) -> Result<EndUpkeep> {
        let filling = vec![7; FILLING_BYTES];
        for _ in 0..SEGMENTS_FILLED * SEGMENT_BYTES / FILLING_BYTES as u64 {
            wal.append(&filling).wait()?;
        }
        wal.truncate_before(wal.next_lsn()).wait()?;
        // Space that a group releases is used again once two groups are behind it.
        wal.append(b"one").wait()?;
        wal.append(b"two").wait()?;

        let framed_bytes = work.record_bytes as u64 + 4;
        // A single writer's groups are one record and its padding.
        let bytes =
            if work.writers == 1 { (192 + framed_bytes).next_multiple_of(4096) } else { framed_bytes };
        let (log, mut given_up) = (wal.clone(), wal.durable_lsn());
        Ok(upkeep(WAL_LOOK, move || {
            let durable = log.durable_lsn();
            if (durable.0 - given_up.0) * bytes >= WAL_KEPT_BYTES {
                log.truncate_before(durable).wait()?;
                given_up = durable;
            }
            Ok(())
        }))
    }
}

impl Log for Forebay {
    type Writer = Wal;

    fn writer(&self, _: usize) -> Wal {
        self.wal.clone()
    }

    /// Ends the log and reads its last record again.
    fn finish(self, work: &Work, outcome: Outcome) -> Result<Outcome> {
        (self.end_upkeep)()?;
        let (stats, before) = (self.wal.stats(), &self.before);
        let last = self.wal.read_from(self.wal.durable_lsn()).next().wait().transpose()?;
        check(&last.context("the last record is gone")?, work.record_bytes)?;
        self.wal.close().wait()?;
        let shards = self.engine.stats().wait()?.shards;
        let (enters, turns) = shards.iter().fold((0, 0), |(e, t), shard| (e + shard.enters, t + shard.turns));
        let since = |of: fn(&Stats) -> u64| (of(&stats) - of(before)) as f64;
        let groups = since(|stats| stats.groups - stats.control_groups);
        Ok(outcome
            .figure("records_per_group", since(|stats| stats.records) / groups)
            .figure("write_bytes_per_group", since(|stats| stats.write_bytes) / groups)
            .figure(
                "written_bytes_per_append",
                since(|stats| stats.written_bytes) / since(|stats| stats.records),
            )
            // These distributions contain the few groups of the preparation, too.
            .figure("flush_p50_us", stats.flush_ns.ns_at(0.5) as f64 / 1e3)
            .figure("flush_p99_us", stats.flush_ns.ns_at(0.99) as f64 / 1e3)
            .figure("queued_p50_us", stats.queued_ns.ns_at(0.5) as f64 / 1e3)
            .figure("segments_made", since(|stats| stats.segments_made))
            .figure("segments_recycled", since(|stats| stats.segments_recycled))
            .figure("segment_waits", since(|stats| stats.segment_waits))
            .figure("enters_per_turn", enters as f64 / turns as f64))
    }
}

impl Writer for Wal {
    fn append_and_wait(&mut self, record: &[u8]) -> Result<()> {
        Wal::append(self, record).wait()?;
        Ok(())
    }

    async fn append(&mut self, record: &[u8]) -> Result<()> {
        Wal::append(self, record).await?;
        Ok(())
    }
}

/// Above this size its collection of old files starts, which writes half as much again of file contents.
const RAFT_BYTES: u64 = 384 << 20;
/// After this much, which is one of its files, old entries are released: more often would only cost it time.
const RAFT_KEPT_BYTES: u64 = 128 << 20;
/// The interval of that check.
const RAFT_LOOK: Duration = Duration::from_millis(20);
/// Entries of a writer that are kept.
const RAFT_KEPT: u64 = 100;

/// Entries of one writer: a message around the record, whose number is the entry's index.
struct Entries;

impl MessageExt for Entries {
    type Entry = BytesValue;

    fn index(entry: &BytesValue) -> u64 {
        number(entry.get_value())
    }
}

/// raft-engine: each writer is a raft group with its own entries. Unneeded entries are released now and then, as its users do, so
/// that files are used again.
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
        let purge_threshold = ReadableSize(RAFT_BYTES);
        let config = Config { dir, purge_threshold, prefill_for_recycle: true, ..Config::default() };
        let engine = Arc::new(Engine::open(config)?);
        let (log, writers, record_bytes) =
            (Arc::clone(&engine), work.writers as u64, work.record_bytes as u64);
        let mut given_up = 0;
        let end_upkeep = upkeep(RAFT_LOOK, move || {
            // All writers are about as far as the first.
            let last = log.last_index(1).unwrap_or(0);
            if last.saturating_sub(given_up) * writers * record_bytes < RAFT_KEPT_BYTES {
                return Ok(());
            }
            given_up = last;
            for region in 1..=writers {
                if let Some(last) = log.last_index(region) {
                    log.compact_to(region, last.saturating_sub(RAFT_KEPT));
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
        // Later records may have been removed by the time of a look-up.
        if std::mem::take(&mut self.is_first) {
            let mut found = vec![0; record.len()];
            self.log.read_at(chunk.position)?.read_exact(&mut found)?;
            check(&found, record.len())?;
        }
        Ok(())
    }
}
