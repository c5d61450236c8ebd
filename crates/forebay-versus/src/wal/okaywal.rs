//! okaywal: its calls block, so the writers are threads. Checkpoints do nothing, so that only the log is
//! measured; it uses its files again after them.

use std::io::Read as _;

use anyhow::Result;
use okaywal::{Configuration, LogVoid, WriteAheadLog};

use super::drive::{self, AppendAndWait};
use super::{WalJob, record};
use crate::sample::Sample;

/// Measures writers that are threads.
pub(crate) fn from_threads(job: &WalJob) -> Result<Sample> {
    let log = Configuration::default_for(&job.dir).open(LogVoid)?;
    let writers = (0..job.writers).map(|_| Writer { log: log.clone(), is_first: true }).collect();
    let sample = drive::from_threads(job, writers)?;
    log.shutdown()?;
    Ok(sample)
}

struct Writer {
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
