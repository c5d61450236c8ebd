//! One sample: runs the threads of a row, counts the device's requests, and checks the
//! contents of the file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;

use super::super::gauge::Gauge;
use super::super::interleave::Evidence;
use super::super::pattern::Pattern as Contents;
use super::super::residency::evict;
use super::job::{PatternsResult, PatternsWork};
use super::{blocking, engine};

/// Pieces of each participant that are checked afterwards, evenly spread.
const CHECKED_MAX: usize = 1024;

/// Runs the sample on the file at `path`; `device_stat` is the `stat` file of the device below.
///
/// # Errors
/// Fails when a call failed, or the data written are not in the file.
pub(super) fn sample(path: &Path, device_stat: Option<&Path>, work: &PatternsWork) -> anyhow::Result<String> {
    let mut data = vec![0; work.bytes.next_multiple_of(4096) as usize];
    // The data differ from the earlier contents of the file, which were made from the seed of
    // the run itself.
    Contents::new(work.seed ^ 0x5eed_0f77_0000_0002).fill(0, &mut data);
    let data = Bytes::from(data);
    let requests = || device_stat.and_then(|stat| parse_requests(&std::fs::read_to_string(stat).ok()?));
    let before = requests();
    let gauge = Gauge::start(device_stat)?;
    let (time, done) = if work.row.is_forebay() {
        engine::write(path, work, &data)?
    } else {
        blocking::write(path, work, &data)?
    };
    let cost = gauge.stop()?;
    let requests = before.zip(requests()).map(|(before, after)| after.saturating_sub(before));
    let pieces = done.iter().sum::<usize>() as u64;
    verify(path, work, &data, &done)?;
    let result = PatternsResult {
        bytes: pieces * work.pattern.piece_bytes(),
        seconds: time.as_secs_f64(),
        cpu_seconds: cost.cpu_seconds,
        requests,
        evidence: Evidence { counter_deltas: cost.counter_deltas, ..Evidence::default() },
    };
    Ok(serde_json::to_string(&result)?)
}

/// Returns field 5 of a block device's `stat`: writes completed.
fn parse_requests(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(4)?.parse().ok()
}

/// Reads pieces back from the device and checks them. A row that did not write would look fast.
fn verify(path: &Path, work: &PatternsWork, data: &Bytes, done: &[usize]) -> anyhow::Result<()> {
    let file: File = OpenOptions::new().read(true).open(path)?;
    evict(&file)?;
    let mut found = vec![0; work.pattern.piece_bytes() as usize];
    for (participant, done) in done.iter().enumerate() {
        let mut pieces = work.pieces(participant);
        pieces.truncate(*done);
        for piece in pieces.iter().step_by((done / CHECKED_MAX).max(1)) {
            file.read_exact_at(&mut found, piece.start)?;
            anyhow::ensure!(
                found == blocking::bytes(piece, data),
                "the piece at offset {} is not the one that was written there; the storage below the file or the way it \
                 was written is faulty",
                piece.start
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::job::{Pattern, PatternRow};
    use super::*;
    use crate::cleanup::Cleanup;

    const BYTES: u64 = 4 << 20;

    #[test]
    fn every_row_writes_all_of_its_pieces() {
        let cleanup = Cleanup::default();
        let temp = cleanup.temp_file(Path::new(env!("CARGO_MANIFEST_DIR")), "patterns").expect("writable");
        temp.file().write_all_at(&vec![7; BYTES as usize], 0).expect("space for 4 MiB");
        temp.file().sync_all().expect("it can be flushed");
        let mut seed = 0;
        for pattern in Pattern::ALL {
            for row in PatternRow::ALL {
                for participants in [1, 3] {
                    seed += 1;
                    let (memory, seconds_max) = (1 << 20, 60.0);
                    let work =
                        PatternsWork { row, pattern, bytes: BYTES, participants, memory, seconds_max, seed };
                    let text = sample(temp.path(), None, &work)
                        .unwrap_or_else(|error| panic!("{row:?} {pattern:?} {participants}: {error:#}"));
                    let result: PatternsResult = serde_json::from_str(&text).expect("its own text");
                    let whole = BYTES / pattern.piece_bytes() * pattern.piece_bytes();
                    assert_eq!(result.bytes, whole, "{row:?} {pattern:?}");
                    assert!(result.seconds > 0.0);
                    // All pieces are checked, not only those that a sample checks, and nothing
                    // may follow them.
                    let found = std::fs::read(temp.path()).expect("readable");
                    let mut expected = vec![0; BYTES as usize];
                    Contents::new(seed ^ 0x5eed_0f77_0000_0002).fill(0, &mut expected);
                    assert!(found[..whole as usize] == expected[..whole as usize], "{row:?} {pattern:?}");
                    assert_eq!(found.len() as u64, BYTES);
                }
            }
        }
    }

    #[test]
    fn a_piece_that_was_not_written_is_noticed() {
        let cleanup = Cleanup::default();
        let temp =
            cleanup.temp_file(Path::new(env!("CARGO_MANIFEST_DIR")), "patterns-look").expect("writable");
        temp.file().write_all_at(&vec![7; BYTES as usize], 0).expect("space for 4 MiB");
        let work = PatternsWork {
            row: PatternRow::WriteFsync,
            pattern: Pattern::Random,
            bytes: 1 << 20,
            participants: 1,
            memory: 1 << 20,
            seconds_max: 1.0,
            seed: 3,
        };
        let data = Bytes::from(vec![7; 1 << 20]);
        verify(temp.path(), &work, &data, &[256]).expect("all are there");
        temp.file().write_all_at(&[0; 8], 8192).expect("it may be written");
        let error = verify(temp.path(), &work, &data, &[256]).expect_err("one is spoilt");
        assert!(error.to_string().contains("offset 8192 "), "{error}");
    }

    #[test]
    fn the_field_of_the_kernels_file_is_found() {
        let stat =
            "   28513     6028  3510642    15001     6076    12993   915360     1748        0     8028";
        assert_eq!(parse_requests(stat), Some(6_076));
        assert_eq!(parse_requests("1 2 3"), None);
    }
}
