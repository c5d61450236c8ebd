//! One sample: runs the lanes of a row, and checks the files that it made.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use forebay::{Config, Engine};
use tokio::runtime::Builder;

use super::super::gauge::{Cost, Gauge};
use super::job::{Call, FilesRow, FilesWork};
use super::lane::{FileQueue, Tally};
use super::{engine, threads, tokio_fs};

/// Runs the sample on the files in `directory`, or creates files there.
///
/// # Errors
/// Fails when a call failed, or a file is not as it should be.
pub(super) fn sample(
    directory: &Path,
    device_stat: Option<&Path>,
    work: &FilesWork,
) -> anyhow::Result<String> {
    let queue = Arc::new(FileQueue::new(directory, work));
    let (tally, cost) = match work.row {
        FilesRow::StdThreads => threads::visit(&queue, device_stat)?,
        FilesRow::TokioFs => from_tokio(&queue, device_stat, None)?,
        FilesRow::Forebay => {
            let engine = Engine::start(Config::default())?;
            let outcome = from_tokio(&queue, device_stat, Some(&engine))?;
            let report = engine.close().wait()?;
            anyhow::ensure!(
                report.leaked_operations == 0 && report.lost_shards == 0,
                "the engine lost {} shards and {} operations as it was closed",
                report.lost_shards,
                report.leaked_operations
            );
            outcome
        }
    };
    if work.call == Call::Create {
        verify(directory, &queue, tally.latency.count())?;
    }
    Ok(serde_json::to_string(&tally.result(cost))?)
}

fn from_tokio(
    queue: &Arc<FileQueue>,
    device_stat: Option<&Path>,
    engine: Option<&Engine>,
) -> anyhow::Result<(Tally, Cost)> {
    let runtime = Builder::new_multi_thread().build()?;
    runtime.block_on(async {
        let gauge = Gauge::start(device_stat)?;
        let deadline = gauge.begun() + Duration::from_secs_f64(queue.work.seconds_max);
        let lanes: Vec<_> = (0..queue.work.at_once)
            .map(|_| {
                let queue = Arc::clone(queue);
                match engine {
                    Some(engine) => tokio::spawn(engine::lane(engine.clone(), queue, deadline)),
                    None => tokio::spawn(tokio_fs::lane(queue, deadline)),
                }
            })
            .collect();
        let mut tally = Tally::new()?;
        for lane in lanes {
            tally.add(&lane.await.context("a task with files panicked")??)?;
        }
        Ok((tally, gauge.stop()?))
    })
}

/// Checks the files made. A row that made fewer files than it counted, or empty ones, would look fast.
fn verify(directory: &Path, queue: &FileQueue, files: u64) -> anyhow::Result<()> {
    let mut found = 0;
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let number = number.with_context(|| format!("{} is not one of these files", path.display()))?;
        queue.check(number, &std::fs::read(path)?)?;
        found += 1;
    }
    anyhow::ensure!(found == files, "{files} files were counted, and {found} are there");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::file_set::{FileSet, Files};
    use super::super::super::scratch_dir::ScratchDir;
    use super::super::job::FilesResult;
    use super::*;
    use crate::cleanup::Cleanup;
    use crate::context::{Context, Target};
    use crate::progress::Progress;

    const FILE_SET: FileSet = FileSet { files: 30, file_bytes: 8192, seed: 3 };

    fn context() -> Context {
        Context::new(
            Target::Directory(env!("CARGO_MANIFEST_DIR").into()),
            Progress::Silent,
            Cleanup::default(),
            1,
        )
    }

    fn work(row: FilesRow, call: Call, at_once: usize) -> FilesWork {
        FilesWork { row, call, file_set: FILE_SET, at_once, seconds_max: 60.0, seed: 5 }
    }

    #[test]
    fn every_row_visits_every_file_once_and_times_its_calls() {
        let context = context();
        let scratch = ScratchDir::find(&context, "files").expect("a directory on a disk");
        let files = Files::make(&scratch, FILE_SET, &context).expect("space for 240 KiB");
        for row in FilesRow::ALL {
            for at_once in [1, 7] {
                for call in [Call::Read, Call::Create] {
                    let new = scratch.temp_directory(&context, "new").expect("writable");
                    let directory = if call == Call::Read { files.directory.path() } else { new.path() };
                    let text = sample(directory, None, &work(row, call, at_once))
                        .unwrap_or_else(|error| panic!("{row:?} {call:?}: {error:#}"));
                    let result: FilesResult = serde_json::from_str(&text).expect("its own text");
                    assert_eq!(result.files, 30, "{row:?} {call:?}");
                    assert!(result.open_s > 0.0 && result.close_s > 0.0, "{row:?} {result:?}");
                    assert_eq!(result.read_s > 0.0, call == Call::Read, "{row:?} {result:?}");
                    let is_made = call == Call::Create;
                    assert_eq!((result.write_s > 0.0, result.sync_s > 0.0), (is_made, is_made), "{row:?}");
                    assert_eq!(result.stat_s, 0.0, "{row:?}");
                }
            }
            let mut stat = work(row, Call::Stat, 3);
            // Also without any time: a machine that stood still for 50 ms once left a row without files.
            for seconds in [0.05, 0.0] {
                stat.seconds_max = seconds;
                let text = sample(files.directory.path(), None, &stat).expect("they are there");
                let result: FilesResult = serde_json::from_str(&text).expect("its own text");
                assert!(result.files >= 3, "one for each of the three: {row:?}, {}", result.files);
                assert!(result.stat_s > 0.0 && result.open_s == 0.0, "{row:?}");
            }
        }
    }

    #[test]
    fn every_row_notices_a_wrong_file() {
        let context = context();
        let scratch = ScratchDir::find(&context, "files").expect("a directory on a disk");
        let files = Files::make(&scratch, FILE_SET, &context).expect("space for 240 KiB");
        for row in FilesRow::ALL {
            let mut work = work(row, Call::Read, 2);
            work.file_set.seed = 4;
            let error = sample(files.directory.path(), None, &work).expect_err("other contents");
            assert!(format!("{error:#}").contains("does not hold the bytes written"), "{row:?}: {error:#}");
            let mut work = self::work(row, Call::Stat, 2);
            work.file_set.file_bytes = 4096;
            let error = sample(files.directory.path(), None, &work).expect_err("another length");
            assert!(format!("{error:#}").contains("8192 bytes long"), "{row:?}: {error:#}");
            // The files exist already.
            assert!(
                sample(files.directory.path(), None, &self::work(row, Call::Create, 2)).is_err(),
                "{row:?}"
            );
        }
    }

    #[test]
    fn a_file_that_was_counted_and_not_made_is_noticed() {
        let context = context();
        let scratch = ScratchDir::find(&context, "files").expect("a directory on a disk");
        let files = Files::make(&scratch, FILE_SET, &context).expect("space for 240 KiB");
        let queue = FileQueue::new(files.directory.path(), &work(FilesRow::Forebay, Call::Create, 1));
        verify(files.directory.path(), &queue, 30).expect("all of them");
        assert!(
            verify(files.directory.path(), &queue, 31).is_err_and(|e| e.to_string().contains("30 are there"))
        );
    }
}
