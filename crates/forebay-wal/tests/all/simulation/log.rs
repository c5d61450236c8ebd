//! The log as the simulated programs see it: the only place that makes its calls.

use std::ops::Range;
use std::time::Duration;

use forebay::Engine;
use forebay_sim::Profile;
use forebay_test::worlds::mix;
use forebay_wal::{
    Batch, Error, ErrorKind, Fill, LogOperation, Lsn, Options, PendingAppend, Recovery, Result, Wal,
};
use futures::FutureExt;

use crate::simulation::records;

pub(crate) const DIR: &str = "/disk/log";

/// The options with which a world's logs are opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) segment_bytes: u64,
    pub(crate) group_bytes_max: usize,
    pub(crate) pending_bytes_max: usize,
    pub(crate) mark_after: Duration,
    pub(crate) shard: usize,
    pub(crate) fill: Fill,
    pub(crate) first_lsn: u64,
    pub(crate) recent_bytes: usize,
    pub(crate) try_every: u32,
    /// The disk has writes with FUA, and the times of these and of flushes change.
    pub(crate) has_fua: bool,
}

impl Shape {
    /// Returns small segments and groups, so that a life uses many of them.
    pub(crate) fn of(seed: u64) -> Shape {
        let draw = |salt: u64, n: u64| mix(seed ^ (salt << 32)) % n;
        Shape {
            segment_bytes: [64 << 10, 64 << 10, 128 << 10, 256 << 10][draw(1, 4) as usize],
            group_bytes_max: [8 << 10, 16 << 10, 32 << 10][draw(2, 3) as usize],
            pending_bytes_max: [32 << 10, 64 << 10, 256 << 10][draw(3, 3) as usize],
            mark_after: Duration::from_micros([200, 2_000, 2_000, 50_000][draw(4, 4) as usize]),
            shard: draw(5, 2) as usize,
            fill: [Fill::ByGroup, Fill::Zeros, Fill::Allocated][draw(6, 3) as usize],
            first_lsn: [0, 1, 1, 900][draw(7, 4) as usize],
            recent_bytes: [0, 8 << 10, 64 << 10, 1 << 20][draw(8, 4) as usize],
            try_every: [1, 3, 20, 1_000][draw(9, 4) as usize],
            has_fua: draw(10, 2) == 0,
        }
    }

    /// Returns the world's disk.
    pub(crate) fn disk(self, disk: Profile) -> Profile {
        let (ms, us) = (Duration::from_millis, Duration::from_micros);
        if !self.has_fua {
            return disk;
        }
        disk.fua(us(20)).durable_from(ms(10), us(30), us(900)).durable_from(ms(20), us(900), us(30))
    }

    fn options(self) -> Options {
        Options::new()
            .segment_bytes(self.segment_bytes)
            .record_bytes_max(records::BYTES_MAX)
            .group_bytes_max(self.group_bytes_max)
            .pending_bytes_max(self.pending_bytes_max)
            .mark_after(self.mark_after)
            .shard(self.shard)
            .fill(self.fill)
            .first_lsn(Lsn(self.first_lsn))
            .recent_bytes(self.recent_bytes)
            .try_every(self.try_every)
            .log_id(0x0f0e_0b0a_0400_1111_2222_3333_4444_5555)
    }
}

#[derive(Clone)]
pub(crate) struct Log(pub(crate) Wal);

/// The contents of a log, read from its first record to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) first: u64,
    pub(crate) next: u64,
    /// LSN and number of each record.
    pub(crate) records: Vec<(u64, u64)>,
}

impl Log {
    pub(crate) async fn open(engine: &Engine, shape: Shape, salvage: bool) -> Result<(Log, Recovery)> {
        engine.create_dir_all(DIR).await?;
        engine.sync_dir("/disk").await?;
        let (wal, recovery) = Wal::open(engine, DIR, shape.options().salvage(salvage)).await?;
        Ok((Log(wal), recovery))
    }

    pub(crate) async fn append(&self, record: u64) -> Result<u64> {
        self.0.append(&records::bytes(record)).await.map(|lsn| lsn.0)
    }

    pub(crate) async fn append_batch(&self, batch: &[u64]) -> Result<Range<u64>> {
        let bytes: Vec<Vec<u8>> = batch.iter().map(|record| records::bytes(*record)).collect();
        let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let first = self.0.append(&slices[..]).await?.0;
        Ok(first..first + batch.len() as u64)
    }

    /// Queues a batch of records with a new value.
    pub(crate) async fn queue_batch(&self, batch: &[u64], key: &str, value: u64) -> Result<PendingAppend> {
        let mut all: Batch<'_> = batch.iter().map(|record| records::bytes(*record)).collect();
        all.set(key, &records::value(value))?;
        self.0.append(all).queued().await
    }

    pub(crate) fn set(&self, key: &str, value: u64) -> LogOperation {
        self.0.set(key, &records::value(value))
    }

    /// Returns the number of a durable value.
    pub(crate) fn value(&self, key: &str) -> Result<Option<u64>, String> {
        let found = self.0.value(key).map(|value| {
            records::value_number(&value).ok_or_else(|| format!("{key} is {value:x?}, which was never set"))
        });
        found.transpose()
    }

    /// Reads records of a range, durable or queued.
    pub(crate) async fn read_range(
        &self,
        range: Range<u64>,
        bytes: usize,
    ) -> Result<Result<Vec<(u64, u64)>, String>> {
        let mut found = Vec::new();
        for record in self.0.read(Lsn(range.start)..Lsn(range.end), bytes).await? {
            match records::number(&record) {
                Some(number) => found.push((record.lsn().0, number)),
                None => return Ok(Err(format!("record {} is none that was ever written", record.lsn()))),
            }
        }
        Ok(Ok(found))
    }

    /// Queues a record. The log writes it soon, or every other one with what follows.
    pub(crate) async fn append_unsynced(&self, record: u64) -> Result<u64> {
        let bytes = records::bytes(record);
        if record.is_multiple_of(2)
            && let Some(deferred) = self.0.try_append_deferred(&bytes)?
        {
            return Ok(deferred.lsn().0);
        }
        self.0.append(&bytes).queued().await.map(|append| append.lsn().0)
    }

    pub(crate) async fn sync(&self) -> Result<()> {
        self.0.sync().await
    }

    pub(crate) async fn truncate_before(&self, lsn: u64) -> Result<()> {
        self.0.truncate_before(Lsn(lsn)).await
    }

    pub(crate) async fn truncate_from(&self, lsn: u64) -> Result<()> {
        self.0.truncate_from(Lsn(lsn)).await
    }

    pub(crate) async fn reset_to(&self, next: u64) -> Result<()> {
        self.0.reset_to(Lsn(next)).await
    }

    pub(crate) async fn close(&self) -> Result<()> {
        self.0.close().await
    }

    pub(crate) fn first(&self) -> u64 {
        self.0.first_lsn().0
    }

    pub(crate) fn next(&self) -> u64 {
        self.0.next_lsn().0
    }

    /// Returns the number after the last durable record.
    pub(crate) fn durable_next(&self) -> u64 {
        let last = self.0.durable_lsn().0;
        // In a log whose first LSN is 0, that is 0 without a record, too.
        let is_none = last == 0
            && self.first() == 0
            && !matches!(self.0.wait_durable(Lsn(0)).now_or_never(), Some(Ok(())));
        if is_none { 0 } else { last + 1 }
    }

    /// Reads at most `most` durable records from `lsn` on. Each must be one that some program wrote, byte for
    /// byte. Skips lost records.
    pub(crate) async fn read(&self, lsn: u64, most: usize) -> Result<Result<Vec<(u64, u64)>, String>> {
        let mut reader = self.0.read_from(Lsn(lsn));
        let mut found = Vec::new();
        while found.len() < most {
            let record = match reader.next().await.transpose() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(error) => match error.loss() {
                    Some(lost) if lost.last >= reader.position() => {
                        reader = self.0.read_from(lost.last.next());
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            match records::number(&record) {
                Some(number) => found.push((record.lsn().0, number)),
                None => return Ok(Err(format!("record {} is none that was ever written", record.lsn()))),
            }
        }
        Ok(Ok(found))
    }

    /// Returns all durable records.
    pub(crate) async fn content(&self) -> Result<Result<Content, String>> {
        let (first, next) = (self.first(), self.next());
        if first == next {
            return Ok(Ok(Content { first, next, records: Vec::new() }));
        }
        Ok(self.read(first, usize::MAX).await?.map(|records| Content { first, next, records }))
    }
}

/// Returns whether a call may fail with `error` after a failure of the system under the log.
pub(crate) fn is_failure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Poisoned)
}
