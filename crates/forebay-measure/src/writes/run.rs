//! One sample: the clients of a row, the sync that it may have left out, and a check of the file's contents.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::super::aligned::AlignedBuffer;
use super::super::gauge::Gauge;
use super::super::interleave::Evidence;
use super::super::latency::Latency;
use super::client::{Client, Contents, part};
use super::job::{BLOCK_BYTES, WritesResult, WritesWork};
use super::{blocking, engine};

/// Number of blocks of each client that are checked afterwards, the last ones that it wrote.
const CHECKED_MAX: usize = 64;

/// Runs the sample on the file at `path` and returns its result; `device_stat` is the `stat` file of
/// the device below.
///
/// # Errors
/// A call failed, or written data are not in the file.
pub(super) fn sample(path: &Path, device_stat: Option<&Path>, work: &WritesWork) -> anyhow::Result<String> {
    let offsets = work.offsets();
    let gauge = Gauge::start(device_stat)?;
    let (begun, clients) = if work.row.is_forebay() {
        engine::write(path, work, &offsets)?
    } else {
        blocking::write(path, work, &offsets)?
    };
    // Also where the row has made a sync: its bytes on the device belong to it, and the next sample
    // begins clean.
    let left_out = Instant::now();
    OpenOptions::new().write(true).open(path)?.sync_all()?;
    let left_out = left_out.elapsed();
    let cost = gauge.stop()?;
    verify(path, work, &offsets, &clients)?;

    let mut latency = Latency::new()?;
    for client in &clients {
        latency.add(&client.latency)?;
    }
    let average = |of: fn(&Client) -> Duration| {
        clients.iter().map(|client| of(client).as_secs_f64()).sum::<f64>() / clients.len().max(1) as f64
    };
    let ended = clients.iter().map(|client| client.ended).max().unwrap_or(begun);
    let result = WritesResult {
        operations: latency.count(),
        open_s: average(|client| client.open),
        write_s: average(|client| client.write),
        sync_s: average(|client| client.sync),
        close_s: average(|client| client.close),
        total_s: (ended - begun).as_secs_f64(),
        left_out_s: (!work.row.is_durable()).then_some(left_out.as_secs_f64()),
        cpu_seconds: cost.cpu_seconds,
        p50_us: latency.quantile_us(0.5),
        p99_us: latency.quantile_us(0.99),
        evidence: Evidence {
            counter_deltas: cost.counter_deltas,
            times: [("latency".to_owned(), latency)].into(),
        },
    };
    Ok(serde_json::to_string(&result)?)
}

/// Reads the last blocks of each client back, past the page cache: a row that did not write would look fast.
fn verify(path: &Path, work: &WritesWork, offsets: &[u64], clients: &[Client]) -> anyhow::Result<()> {
    let file: File = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES as usize);
    let contents = Contents::new(work);
    for (number, client) in clients.iter().enumerate() {
        let written = client.latency.count() as usize;
        let mine = part(work, offsets, number);
        for offset in mine.iter().take(written).skip(written.saturating_sub(CHECKED_MAX)) {
            file.read_exact_at(buffer.bytes_mut(), *offset)?;
            let mut word = [0; 8];
            word.copy_from_slice(&buffer.bytes()[..8]);
            anyhow::ensure!(
                u64::from_le_bytes(word) == contents.word(*offset),
                "the block at offset {offset} is not the one that was written there; the storage below the file or \
                 the way it was written is faulty"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::pattern::Pattern as Filling;
    use super::super::job::{Pattern, WriteRow};
    use super::*;
    use crate::cleanup::{Cleanup, TempFile};

    const BYTES: u64 = 2 << 20;

    fn prefilled(cleanup: &Cleanup) -> TempFile {
        let temp = cleanup.temp_file(Path::new(env!("CARGO_MANIFEST_DIR")), "writes").expect("writable");
        let mut memory = vec![0; BYTES as usize];
        Filling::new(1).fill(0, &mut memory);
        temp.file().write_all_at(&memory, 0).expect("space for 2 MiB");
        temp.file().sync_all().expect("it can be flushed");
        temp
    }

    fn work(row: WriteRow, pattern: Pattern, clients: usize, operations: u64, seed: u64) -> WritesWork {
        WritesWork { row, pattern, file_bytes: BYTES, clients, operations, seconds_max: 60.0, seed }
    }

    #[test]
    fn every_row_writes_all_of_its_blocks_and_no_other() {
        let cleanup = Cleanup::default();
        let temp = prefilled(&cleanup);
        for (seed, row) in (1..).zip(WriteRow::ALL) {
            for (pattern, clients) in [(Pattern::Dense, 1), (Pattern::Sparse, 3)] {
                let before = std::fs::read(temp.path()).expect("readable");
                // With the same seed, the block would keep its contents.
                let work = work(row, pattern, clients, 20, 2 * seed + clients as u64 / 2);
                let text = sample(temp.path(), None, &work)
                    .unwrap_or_else(|error| panic!("{row:?} {pattern:?}: {error:#}"));
                let result: WritesResult = serde_json::from_str(&text).expect("its own text");
                assert_eq!(result.operations, 20, "{row:?}");
                assert!(result.total_s >= result.write_s && result.write_s > 0.0, "{row:?} {result:?}");
                assert_eq!(result.left_out_s.is_none(), row.is_durable(), "{row:?}");
                let after = std::fs::read(temp.path()).expect("readable");
                let mut changed: Vec<u64> = (0..BYTES / BLOCK_BYTES)
                    .filter(|block| {
                        let at = (block * BLOCK_BYTES) as usize..((block + 1) * BLOCK_BYTES) as usize;
                        before[at.clone()] != after[at]
                    })
                    .map(|block| block * BLOCK_BYTES)
                    .collect();
                changed.sort_unstable();
                let mut expected = work.offsets();
                expected.sort_unstable();
                assert_eq!(changed, expected, "{row:?} {pattern:?}");
            }
        }
    }

    #[test]
    fn a_block_that_was_not_written_is_noticed() {
        let cleanup = Cleanup::default();
        let temp = prefilled(&cleanup);
        let work = work(WriteRow::Naive, Pattern::Dense, 1, 8, 3);
        let offsets = work.offsets();
        let (_, clients) = blocking::write(temp.path(), &work, &offsets).expect("it can be written");
        verify(temp.path(), &work, &offsets, &clients).expect("all are there");
        temp.file().write_all_at(&[0; 8], offsets[5]).expect("it may be written");
        let error = verify(temp.path(), &work, &offsets, &clients).expect_err("one is spoilt");
        assert!(error.to_string().contains(&format!("offset {} ", offsets[5])), "{error}");
    }

    #[test]
    fn no_write_is_begun_after_the_time_is_over() {
        let cleanup = Cleanup::default();
        let temp = prefilled(&cleanup);
        for row in WriteRow::ALL {
            let mut work = work(row, Pattern::Dense, 2, 100, 4);
            work.seconds_max = 0.0;
            let text = sample(temp.path(), None, &work).expect("it ends");
            let result: WritesResult = serde_json::from_str(&text).expect("its own text");
            assert_eq!(result.operations, 2, "each client has begun one: {row:?}");
        }
    }
}
