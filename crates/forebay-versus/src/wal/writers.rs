//! Records, and the writers: each appends one record after the other, and waits until it is durable, for as long as the
//! window is open.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

use tokio::runtime::Builder;

use crate::files::word;
use crate::prelude::*;

/// A log.
pub(super) trait Log: Sized {
    /// One writer's access to it.
    type Writer: Writer;

    /// Returns the writer of this number.
    fn writer(&self, number: usize) -> Self::Writer;

    /// Ends the log, when its writers have ended, and adds its counts.
    fn finish(self, work: &Work, outcome: Outcome) -> Result<Outcome>;
}

/// A writer, which is a thread or a task.
pub(super) trait Writer: Send + 'static {
    /// Returns when the record is durable.
    fn append_and_wait(&mut self, record: &[u8]) -> Result<()>;

    /// Completes when the record is durable. By default it blocks the thread.
    fn append(&mut self, record: &[u8]) -> impl Future<Output = Result<()>> + Send {
        async { self.append_and_wait(record) }
    }
}

/// Measures writers that are tasks of the multi-threaded Tokio runtime, which has a worker per core.
pub(super) fn from_tokio<L: Log>(work: &Work, log: L) -> Result<Outcome> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let outcome = tokio_tasks!(work, runtime, lanes(work, &log), |(mut writer, mut record)| {
        writer.append(record.next()).await?;
    });
    log.finish(work, outcome?)
}

/// Measures writers that are plain threads.
pub(super) fn from_threads<L: Log>(work: &Work, log: L) -> Result<Outcome> {
    let lanes = lanes(work, &log);
    let outcome =
        threads(work, lanes.map(|(mut writer, mut record)| move || writer.append_and_wait(record.next())))?;
    log.finish(work, outcome)
}

/// Returns the writers, each with its records.
pub(super) fn lanes<L: Log>(work: &Work, log: &L) -> impl Iterator<Item = (L::Writer, Record)> + use<L> {
    let lanes: Vec<_> =
        (0..work.writers).map(|number| (log.writer(number), Record::of(number, work.record_bytes))).collect();
    lanes.into_iter()
}

/// Ends the upkeep of a log, and returns its error.
pub(super) type EndUpkeep = Box<dyn FnOnce() -> Result<()>>;

/// Does `work` every `pause` on a separate thread.
pub(super) fn upkeep(pause: Duration, mut work: impl FnMut() -> Result<()> + Send + 'static) -> EndUpkeep {
    let (end, ended) = channel::<()>();
    let thread = thread::spawn(move || {
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            work()?;
        }
        Ok(())
    });
    Box::new(move || {
        drop(end);
        thread.join().map_err(|_| anyhow!("the upkeep of a log panicked"))?
    })
}

/// The shortest record: its number and its writer's.
pub(super) const BYTES_MIN: usize = 16;
/// The longest record that every row accepts.
pub(super) const BYTES_MAX: usize = 16 << 10;

/// A writer's record: its number (from 1), the writer, and filling that follows from the writer. One buffer
/// for all records of a writer: making a record costs a store.
pub(super) struct Record {
    bytes: Vec<u8>,
    number: u64,
}

impl Record {
    /// Returns the records of `writer`, with `bytes` bytes each.
    pub(super) fn of(writer: usize, bytes: usize) -> Self {
        Self { bytes: content(writer as u64, bytes), number: 0 }
    }

    /// Returns the next record.
    #[inline]
    pub(super) fn next(&mut self) -> &[u8] {
        self.number += 1;
        self.bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        &self.bytes
    }
}

/// Returns the number of a record.
pub(super) fn number(record: &[u8]) -> u64 {
    u64_at(record, 0)
}

/// Checks that the bytes a log returned are one of the records.
pub(super) fn check(found: &[u8], bytes: usize) -> Result<()> {
    ensure!(found.len() == bytes, "the log returned {} bytes, not {bytes}", found.len());
    let same = content(u64_at(found, 8), bytes)[8..] == found[8..];
    ensure!(same && number(found) > 0, "the log returned other bytes than were appended");
    Ok(())
}

fn content(writer: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64).map(|at| match at {
        0 => 0,
        1 => writer,
        at => word((writer << 32) + at),
    });
    let mut content: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    content.truncate(bytes);
    content
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_known_again_and_a_damaged_one_is_not() {
        let mut records = Record::of(7, 100);
        records.next();
        let mut second = records.next().to_vec();
        check(&second, 100).unwrap();
        assert_eq!(number(&second), 2);
        check(&second, 99).unwrap_err();
        second[99] ^= 1;
        check(&second, 100).unwrap_err();
        check(&[0; 100], 100).unwrap_err();
    }
}
