//! forebay-wal: its default options, one shard; the writers are tasks of Tokio, threads, or tasks next to the log.

use forebay::{Class, Config, Engine};
use forebay_wal::{Options, Stats, Wal};

use super::bare::SEGMENT_BYTES;
use super::drive::{self, EndUpkeep, Log as _, Writer, check, upkeep};
use crate::peers::forebay::spawn;
use crate::prelude::*;

/// Measures writers that are tasks of the log's shard.
pub(super) fn on_shard(work: &Work) -> Result<Outcome> {
    let log = Log::start(work, false)?;
    let (lanes, inner) = (drive::lanes(work, &log), work.clone());
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
const FILLING_BYTES: usize = 512 << 10;
/// After half a segment of new records, those before are released.
const KEPT_BYTES: u64 = SEGMENT_BYTES / 2;
/// The interval of that check.
const LOOK: Duration = Duration::from_millis(10);

/// An open log.
pub(super) struct Log {
    engine: Engine,
    wal: Wal,
    before: Stats,
    end_upkeep: EndUpkeep,
}

impl Log {
    /// Opens a log. Unless it `grows`, brings it to the state of a log that has been in use for long: records that are not
    /// needed any more are released now and then, and segments are used again.
    pub(super) fn start(work: &Work, grows: bool) -> Result<Self> {
        let engine = Engine::start(Config::default().shards(1))?;
        let (wal, _) = Wal::open(&engine, &work.path, Options::default()).wait()?;
        let watch = || async { usage::count_allocations_here() };
        engine.spawn_on_shard(0, Class::DEFAULT, watch).wait()?;
        if grows {
            let before = wal.stats();
            return Ok(Self { engine, wal, before, end_upkeep: Box::new(|| Ok(())) });
        }
        let filling = vec![7; FILLING_BYTES];
        for _ in 0..SEGMENTS_FILLED * SEGMENT_BYTES / FILLING_BYTES as u64 {
            wal.append_unsynced(&filling).wait()?;
        }
        wal.sync().wait()?;
        wal.truncate_before(wal.next_lsn()).wait()?;
        // Space that a group releases is used again once two groups are behind it.
        wal.append(b"one").wait()?;
        wal.append(b"two").wait()?;

        let framed_bytes = work.record_bytes as u64 + 4;
        // A single writer's groups are one record and its padding.
        let bytes =
            if work.writers == 1 { (192 + framed_bytes).next_multiple_of(4096) } else { framed_bytes };
        let (log, mut given_up) = (wal.clone(), wal.durable_lsn());
        let end_upkeep = upkeep(LOOK, move || {
            let durable = log.durable_lsn();
            if (durable.0 - given_up.0) * bytes >= KEPT_BYTES {
                log.truncate_before(durable).wait()?;
                given_up = durable;
            }
            Ok(())
        });
        let before = wal.stats();
        Ok(Self { engine, wal, before, end_upkeep })
    }
}

impl drive::Log for Log {
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
            // These distributions contain the few groups of the preparation, too.
            .figure("flush_p50_us", stats.flush_ns.at(0.5) as f64 / 1e3)
            .figure("flush_p99_us", stats.flush_ns.at(0.99) as f64 / 1e3)
            .figure("queued_p50_us", stats.queued_ns.at(0.5) as f64 / 1e3)
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
