//! okaywal: its calls block, so the writers are threads. Checkpoints do nothing, so that only the log is
//! measured; it uses its files again after them.

use std::io::Read as _;

use anyhow::Result;
use forebay_measure::experiment::Outcome;
use okaywal::{Configuration, LogVoid, WriteAheadLog};

use super::drive::{self, AppendAndWait};
use super::{Work, record};

/// An open log.
pub(super) struct Log(WriteAheadLog);

impl Log {
    /// Opens a log in the sample's folder.
    pub(super) fn start(work: &Work) -> Result<Self> {
        Ok(Self(Configuration::default_for(&work.dir).open(LogVoid)?))
    }
}

impl drive::Log for Log {
    type Writer = Writer;

    fn writer(&self, _: usize) -> Writer {
        Writer { log: self.0.clone(), is_first: true }
    }

    fn finish(self, _: &Work, outcome: Outcome) -> Result<Outcome> {
        self.0.shutdown()?;
        Ok(outcome)
    }
}

/// A writer of the log.
pub(super) struct Writer {
    log: WriteAheadLog,
    is_first: bool,
}

impl AppendAndWait for Writer {
    fn append_and_wait(&mut self, record: &[u8]) -> Result<()> {
        let mut entry = self.log.begin_entry()?;
        let chunk = entry.write_chunk(record)?;
        entry.commit()?;
        // Later records may be gone again by the time of a look-up.
        if std::mem::take(&mut self.is_first) {
            let mut found = vec![0; record.len()];
            self.log.read_at(chunk.position)?.read_exact(&mut found)?;
            record::check(&found, record.len())?;
        }
        Ok(())
    }
}
