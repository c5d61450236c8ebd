//! One sample: reads the pieces of all lanes, and counts the bytes moved for them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::super::file_set::FileSet;
use super::super::gauge::Gauge;
use super::super::interleave::Evidence;
use super::super::latency::Latency;
use super::engine;
use super::job::{AmplificationResult, AmplificationWork, ContentChecker, Pieces, ReadRow};

/// The reads of one lane, or of all lanes.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) latency: Latency,
    /// Bytes of the pieces.
    pub(super) bytes: u64,
}

impl Tally {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self { latency: Latency::new()?, bytes: 0 })
    }

    pub(super) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.bytes += other.bytes;
        self.latency.add(&other.latency)
    }
}

/// Returns the most pieces that lane number `lane` reads.
pub(super) fn share(work: &AmplificationWork, lane: usize) -> u64 {
    let lanes = work.in_flight as u64;
    work.reads / lanes + u64::from((lane as u64) < work.reads % lanes)
}

/// Returns the instant after which no read begins.
pub(super) fn deadline(gauge: &Gauge, work: &AmplificationWork) -> Instant {
    gauge.begun() + Duration::from_secs_f64(work.seconds_max)
}

/// Stops the gauge as the reading ends, and returns the result of the sample.
pub(super) fn result(gauge: Gauge, tally: Tally) -> anyhow::Result<AmplificationResult> {
    let cost = gauge.stop()?;
    Ok(AmplificationResult {
        seconds: cost.seconds,
        cpu_seconds: cost.cpu_seconds,
        reads: tally.latency.count(),
        bytes: tally.bytes,
        p50_us: tally.latency.quantile_us(0.5),
        p99_us: tally.latency.quantile_us(0.99),
        evidence: Evidence {
            counter_deltas: cost.counter_deltas,
            times: [("latency".to_owned(), tally.latency)].into(),
        },
    })
}

/// Runs the sample on the files in `directory`; `device_stat` is the `stat` file of the device below.
///
/// # Errors
/// Fails when a read failed, or returned data other than those written.
pub(super) fn sample(
    directory: &Path,
    device_stat: Option<&Path>,
    work: &AmplificationWork,
) -> anyhow::Result<String> {
    allow_files(work.file_set.files)?;
    let result = match work.row {
        ReadRow::Buffered | ReadRow::BufferedRandomAdvice => buffered(directory, device_stat, work)?,
        ReadRow::Direct => engine::direct(directory, device_stat, work)?,
        ReadRow::ReadMany => engine::read_many(directory, device_stat, work)?,
    };
    Ok(serde_json::to_string(&result)?)
}

/// Lets this process have `files` files open, and some for itself.
fn allow_files(files: u32) -> anyhow::Result<()> {
    let wanted = u64::from(files) + 256;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        anyhow::ensure!(
            limit.maximum.is_none_or(|maximum| maximum >= wanted),
            "{wanted} files cannot be open at once here (ulimit -n -H): give fewer --files, or raise the limit"
        );
        limit.current = Some(wanted);
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(())
}

fn buffered(
    directory: &Path,
    device_stat: Option<&Path>,
    work: &AmplificationWork,
) -> anyhow::Result<AmplificationResult> {
    let files = (0..work.file_set.files)
        .map(|file| {
            let file = File::open(FileSet::path(directory, file))?;
            if work.row == ReadRow::BufferedRandomAdvice {
                fadvise(&file, 0, None, Advice::Random)?;
            }
            Ok(file)
        })
        .collect::<anyhow::Result<Vec<File>>>()?;
    // Held until all threads exist; then it passes them the deadline. If a thread cannot be created, the
    // lock opens without a deadline, and the others end at once.
    let gate = RwLock::new(None);
    std::thread::scope(|scope| {
        let mut closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut lanes = Vec::with_capacity(work.in_flight);
        for lane in 0..work.in_flight {
            let builder = std::thread::Builder::new().stack_size(256 * 1024);
            let (files, gate) = (&files, &gate);
            lanes.push(builder.spawn_scoped(scope, move || pread_lane(files, work, lane, gate))?);
        }
        let gauge = Gauge::start(device_stat)?;
        *closed = Some(deadline(&gauge, work));
        drop(closed);
        let outcomes: Vec<_> = lanes.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        let mut tally = Tally::new()?;
        for outcome in outcomes {
            tally.add(&outcome.map_err(|_| anyhow::anyhow!("a reading thread panicked"))??)?;
        }
        result(gauge, tally)
    })
}

fn pread_lane(
    files: &[File],
    work: &AmplificationWork,
    lane: usize,
    gate: &RwLock<Option<Instant>>,
) -> anyhow::Result<Tally> {
    let (mut pieces, mut checker) = (Pieces::new(work, lane), ContentChecker::new(work.file_set));
    let mut tally = Tally::new()?;
    let mut buffer = vec![0; work.most as usize];
    let deadline = *gate.read().unwrap_or_else(PoisonError::into_inner);
    let Some(deadline) = deadline else { return Ok(tally) };
    for _ in 0..share(work, lane) {
        let piece = pieces.next_piece();
        let begun = Instant::now();
        if begun >= deadline {
            break;
        }
        let memory = &mut buffer[..piece.bytes as usize];
        files[piece.file as usize].read_exact_at(memory, piece.offset)?;
        tally.latency.record(begun.elapsed());
        tally.bytes += piece.bytes;
        checker.check(piece, memory)?;
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::super::super::file_set::Files;
    use super::super::super::scratch_dir::ScratchDir;
    use super::*;
    use crate::cleanup::Cleanup;
    use crate::context::{Context, Target};
    use crate::progress::Progress;

    fn file_set(files: u32) -> Files {
        let target = Target::Directory(env!("CARGO_MANIFEST_DIR").into());
        let context = Context::new(target, Progress::Silent, Cleanup::default(), 1);
        let scratch = ScratchDir::find(&context, "amplification").expect("a directory on a disk");
        let file_set = FileSet { files, file_bytes: 64 << 10, seed: 3 };
        Files::make(&scratch, file_set, &context).expect("space for 640 KiB")
    }

    fn work(files: &Files, row: ReadRow, in_flight: usize) -> AmplificationWork {
        let file_set = files.file_set;
        let (least, most, reads, seconds_max, seed) = (512, 4096, 101, 60.0, 5);
        AmplificationWork { row, file_set, least, most, reads, in_flight, seconds_max, seed }
    }

    fn read(files: &Files, work: &AmplificationWork) -> anyhow::Result<AmplificationResult> {
        let text = sample(files.directory.path(), files.device_stat.as_deref(), work)?;
        Ok(serde_json::from_str(&text)?)
    }

    #[test]
    fn every_row_reads_the_same_pieces() {
        for count in [1, 10] {
            let files = file_set(count);
            for in_flight in [1, 7] {
                let bytes: Vec<u64> = ReadRow::ALL
                    .into_iter()
                    .map(|row| {
                        let result = read(&files, &work(&files, row, in_flight))
                            .unwrap_or_else(|error| panic!("{row:?} {count}: {error:#}"));
                        assert_eq!(result.reads, 101, "{row:?}");
                        assert!(result.p50_us.is_some() && result.seconds > 0.0, "{row:?} {result:?}");
                        result.bytes
                    })
                    .collect();
                assert!(bytes.iter().all(|one| *one == bytes[0] && *one >= 101 * 512), "{bytes:?}");
            }
        }
    }

    #[test]
    fn every_row_notices_wrong_bytes_and_ends_in_time() {
        let files = file_set(2);
        for row in ReadRow::ALL {
            let mut late = work(&files, row, 2);
            late.seconds_max = 0.0;
            assert_eq!(read(&files, &late).expect("nothing to do").reads, 0, "{row:?}");
            let mut wrong = work(&files, row, 3);
            wrong.file_set.seed = 4;
            let error = read(&files, &wrong).expect_err("other contents");
            assert!(format!("{error:#}").contains("not those that were written"), "{row:?}: {error:#}");
        }
    }

    #[test]
    fn the_parts_of_the_lanes_make_the_whole() {
        let files = file_set(1);
        let work = work(&files, ReadRow::Direct, 7);
        assert_eq!((0..7).map(|lane| share(&work, lane)).sum::<u64>(), 101);
    }
}
