//! The file of the rows without a log. It is written through before, so that an append never extends it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::pattern::Pattern;

const WRITE_BYTES: usize = 1 << 20;

/// A file with a fixed number of places for records. After the last place it starts again at the
/// first, which is easier than the life of a log.
#[derive(Debug)]
pub(super) struct PeerFile {
    file: File,
    places: u64,
    record: Vec<u8>,
    next: AtomicU64,
}

impl PeerFile {
    /// Creates the file in `directory` and writes it through.
    ///
    /// # Errors
    /// Errors of the system; records that are too short for their number, or longer than the file.
    pub(super) fn create(
        directory: &Path,
        bytes: u64,
        record_bytes: usize,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let places = bytes / record_bytes as u64;
        anyhow::ensure!(record_bytes >= 8 && places >= 2, "records of {record_bytes} bytes do not fit");
        let path = directory.join("records");
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let pattern = Pattern::new(seed);
        let mut memory = vec![0; WRITE_BYTES];
        let mut offset = 0;
        while offset < bytes {
            pattern.fill(offset, &mut memory);
            file.write_all_at(&memory, offset)?;
            offset += WRITE_BYTES as u64;
        }
        file.sync_all()?;
        let mut record = vec![0; record_bytes.next_multiple_of(4096)];
        pattern.fill(0, &mut record);
        record.truncate(record_bytes);
        Ok(Self { file, places, record, next: AtomicU64::new(0) })
    }

    /// Returns another handle of the file.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Returns the next append's number and advances it.
    pub(super) fn take_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the offset of record `number`.
    pub(super) fn offset(&self, number: u64) -> u64 {
        number % self.places * self.record.len() as u64
    }

    /// Returns record `number`: the number, then incompressible bytes.
    pub(super) fn record(&self, number: u64) -> Vec<u8> {
        let mut record = self.record.clone();
        record[..8].copy_from_slice(&number.to_le_bytes());
        record
    }

    /// Writes one record and flushes the file.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn append(&self) -> io::Result<()> {
        let number = self.take_number();
        self.file.write_all_at(&self.record(number), self.offset(number))?;
        self.file.sync_data()
    }

    /// Writes `count` records together and flushes the file once.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn append_together(&self, count: u64, memory: &mut Vec<u8>) -> io::Result<()> {
        memory.clear();
        let mut offset = None;
        for _ in 0..count {
            let number = self.take_number();
            if number.is_multiple_of(self.places) && !memory.is_empty() {
                self.file.write_all_at(memory, offset.take().unwrap_or(0))?;
                memory.clear();
            }
            offset.get_or_insert(self.offset(number));
            let start = memory.len();
            memory.extend_from_slice(&self.record);
            memory[start..start + 8].copy_from_slice(&number.to_le_bytes());
        }
        self.file.write_all_at(memory, offset.unwrap_or(0))?;
        self.file.sync_data()
    }

    /// Checks that the last records are in the file, as many as it holds.
    ///
    /// # Errors
    /// A record is missing, or fewer than `appends` were written.
    pub(super) fn check(&self, appends: u64) -> anyhow::Result<()> {
        let written = self.next.load(Ordering::Relaxed);
        anyhow::ensure!(written >= appends, "{appends} appends completed and {written} were written");
        let mut found = vec![0; self.record.len()];
        for number in written.saturating_sub(self.places)..written {
            self.file.read_exact_at(&mut found, self.offset(number))?;
            anyhow::ensure!(found == self.record(number), "record {number} is not in the file");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;

    #[test]
    fn records_are_where_they_belong_also_behind_the_end() {
        let cleanup = Cleanup::default();
        let directory = cleanup.temp_directory(&std::env::temp_dir(), "file").expect("writable");
        let file = PeerFile::create(directory.path(), 1 << 20, 4096, 1).expect("space for 1 MiB");
        let mut memory = Vec::new();
        file.append().expect("it can be written");
        file.append_together(254, &mut memory).expect("it can be written");
        // These go to the last place, then to the first ones.
        file.append_together(3, &mut memory).expect("it can be written");
        file.check(258).expect("all are there");
        assert!(file.check(259).is_err());
        file.handle().and_then(|handle| handle.write_all_at(&[0; 8], 8192)).expect("it can be written");
        assert!(file.check(258).is_err_and(|error| error.to_string().contains("record 2 ")));
    }
}
