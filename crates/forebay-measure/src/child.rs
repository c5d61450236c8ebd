//! The child process in which one sample runs, so that no row inherits another one's memory, threads
//! or page tables.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::Context as _;

use super::job::{Job, RandomRow, RandomWork, Reading, ScanRow, ScanWork};
use super::{forebay_rows, kind, start_barrier, std_rows};

/// Runs one sample and returns the line to print on standard output. With `start_line` it begins at the
/// instant that it reads on standard input.
///
/// # Errors
/// Fails when the text is not one that this program wrote, or the sample failed.
pub(super) fn run(job: &str, start_line: bool, registry: &[kind::Entry]) -> anyhow::Result<String> {
    let job: Job = serde_json::from_str(job)
        .context("this subcommand is for the program itself; use `forebay measure` instead")?;
    // A child must not continue to read after the program was killed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    if job.experiment.is_empty() {
        return Ok("{}".to_owned());
    }
    if start_line {
        start_barrier::arm();
    }
    let mut own = registry.iter().filter(|entry| entry.name() == job.experiment);
    let kind = own.next().context("a sample of an experiment that is not known")?;
    kind.sample(&job)
}

/// Runs a sample of `measure scan`.
///
/// # Errors
/// Fails when the row failed, or found data that are not the file's.
pub(super) fn scan_sample(job: &Job) -> anyhow::Result<String> {
    start_barrier::result(scan(job, &job.work()?)?)
}

/// Runs a sample of `measure random`.
///
/// # Errors
/// As for [`scan_sample`].
pub(super) fn random_sample(job: &Job) -> anyhow::Result<String> {
    start_barrier::result(random(job, &job.work()?)?)
}

fn scan(job: &Job, work: &ScanWork) -> anyhow::Result<Reading> {
    match work.row {
        ScanRow::Buffered => std_rows::scan_buffered(job, work),
        ScanRow::Mmap => std_rows::scan_mmap(job, work),
        ScanRow::Direct4k => forebay_rows::scan_one_at_a_time(job, work),
        ScanRow::DirectReadAhead => forebay_rows::scan_async_read(job, work),
        ScanRow::DirectNoCopy | ScanRow::DirectLarge | ScanRow::Default | ScanRow::Uncached => {
            forebay_rows::scan_blocks(job, work)
        }
    }
}

fn random(job: &Job, work: &RandomWork) -> anyhow::Result<Reading> {
    warm(job, work)?;
    match work.row {
        RandomRow::Buffered => std_rows::random_pread(job, work, false),
        RandomRow::DirectPread => std_rows::random_pread(job, work, true),
        RandomRow::Mmap => std_rows::random_mmap(job, work),
        RandomRow::ReadMany | RandomRow::ReadManyWide => forebay_rows::random_read_many(job, work),
        RandomRow::Direct | RandomRow::DirectPolled => forebay_rows::random_on_shards(job, work),
        RandomRow::DirectCommands => forebay_rows::random_by_commands(job, work),
        RandomRow::DirectTokio => forebay_rows::random_from_tokio(job, work),
    }
}

/// Reads the first part of the span into the cache, in order. Random reads are equally likely everywhere,
/// so the share of hits is the same for any cached part. Reading in order takes a second where random reads
/// would take minutes.
fn warm(job: &Job, work: &RandomWork) -> anyhow::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let file = File::open(&job.path)?;
    let mut done = 0;
    while done < work.warm_bytes {
        let length = (work.warm_bytes - done).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..length], work.span_start + done)?;
        done += length as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::pattern::{PAGE_BYTES, Pattern};
    use super::super::reads::NO_POLLING;
    use super::*;
    use crate::cleanup::{Cleanup, TempFile};

    const BYTES: u64 = 4 << 20;

    fn file_with_pattern(seed: u64) -> (Cleanup, TempFile) {
        let cleanup = Cleanup::default();
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let temp = cleanup.temp_file(directory, "child").expect("writable");
        let mut memory = vec![0; BYTES as usize];
        Pattern::new(seed).fill(0, &mut memory);
        temp.file().write_all_at(&memory, 0).expect("space for 4 MiB");
        temp.file().sync_all().expect("it can be flushed");
        (cleanup, temp)
    }

    fn job(temp: &TempFile, pattern_seed: u64) -> Job {
        let job = Job::new("", temp.path(), &(), 60.0).expect("plain");
        Job { pattern_seed: Some(pattern_seed), ..job }
    }

    fn scan_work(row: ScanRow) -> ScanWork {
        ScanWork { row, bytes: BYTES, seconds_max: 60.0, depth: None }
    }

    fn fold(seed: u64) -> u64 {
        (0..BYTES / PAGE_BYTES as u64).fold(0, |folded, page| folded ^ Pattern::new(seed).first_word(page))
    }

    #[test]
    fn every_scan_row_sees_every_page_once() {
        let (_cleanup, temp) = file_with_pattern(11);
        for row in ScanRow::ALL {
            let reading = scan(&job(&temp, 11), &scan_work(row))
                .unwrap_or_else(|error| panic!("{}: {error:#}", row.name()));
            assert_eq!(reading.bytes, BYTES, "{}", row.name());
            assert_eq!(reading.folded, fold(11), "{}", row.name());
        }
    }

    #[test]
    fn every_row_notices_wrong_data() {
        let (_cleanup, temp) = file_with_pattern(11);
        temp.file().write_all_at(&[0; 8], 2 << 20).expect("it may be written");
        temp.file().sync_all().expect("it can be flushed");
        for row in ScanRow::ALL {
            let error = scan(&job(&temp, 11), &scan_work(row)).expect_err(row.name());
            assert!(format!("{error:#}").contains("offset 2097152"), "{}: {error:#}", row.name());
        }
    }

    #[test]
    fn every_random_row_reads_for_its_time_and_checks_the_contents() {
        let (_cleanup, temp) = file_with_pattern(12);
        for row in RandomRow::ALL.into_iter().filter(|row| *row != RandomRow::DirectCommands) {
            for (depth, threads) in [(1, 1), (5, 2)] {
                let work = RandomWork {
                    row,
                    span_start: 1 << 20,
                    span_bytes: 2 << 20,
                    block_bytes: 4096,
                    depth,
                    threads,
                    seconds: 0.02,
                    seed: 3,
                    warm_bytes: 2 << 20,
                };
                let job = job(&temp, 12);
                let reading = match random(&job, &work) {
                    // This machine's device need not have poll queues; the row then reports it.
                    Err(error) if row == RandomRow::DirectPolled => {
                        assert!(format!("{error:#}").contains(NO_POLLING), "{error:#}");
                        continue;
                    }
                    other => other.unwrap_or_else(|error| panic!("{}: {error:#}", row.name())),
                };
                assert!(reading.operations > 0, "{}", row.name());
                assert_eq!(reading.bytes, reading.operations * 4096);
                assert!(reading.cost.seconds >= 0.02);
                assert_eq!(reading.latency.map(|latency| latency.count()), Some(reading.operations));
                assert!(random(&Job { pattern_seed: Some(13), ..job }, &work).is_err(), "{}", row.name());
            }
        }
    }

    #[test]
    fn a_foreign_text_is_refused() {
        assert!(run("{}", false, kind::ALL).is_err());
        assert!(run("not JSON", false, kind::ALL).is_err());
    }
}
