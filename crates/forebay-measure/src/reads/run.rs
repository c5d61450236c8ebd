//! One sample: one way, its readers, the time in which they count.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::super::commands::{self, Namespace};
use super::super::gauge::{Cost, Gauge};
use super::super::interleave::Evidence;
use super::super::job::Job;
use super::calls::CallCounter;
use super::job::{Calls, ReadResult, ReadWork, Way};
use super::lane::Tally;
use super::pacer::{CALLS, Pacer, Phase};
use super::runtime::{self, Readers, Shared};
use super::usage::Usage;
use super::{ring, shards, threads};

/// Runs the sample, and returns the text of its result.
///
/// # Errors
/// Fails when the way is refused here, or a read failed or returned data other than those written.
pub(crate) fn sample(job: &Job) -> anyhow::Result<String> {
    Ok(serde_json::to_string(&run(job, &job.work()?)?)?)
}

fn run(job: &Job, work: &ReadWork) -> anyhow::Result<ReadResult> {
    if work.way.sends_commands() {
        return run_commands(job, work);
    }
    run_on(job, work)
}

/// Does the same on the namespace, within the length of the file.
fn run_commands(job: &Job, work: &ReadWork) -> anyhow::Result<ReadResult> {
    let job = commands::of_namespace(job)?;
    let mut work = work.clone();
    work.span_bytes = work.span_bytes.min(Namespace::open(&job.path)?.bytes);
    anyhow::ensure!(work.span_bytes >= work.block_bytes, "the namespace is shorter than a block");
    run_on(&job, &work)
}

fn run_on(job: &Job, work: &ReadWork) -> anyhow::Result<ReadResult> {
    let shared: Shared = Arc::new((job.clone(), work.clone()));
    let (tally, gauged) = match work.way {
        Way::Pread | Way::PreadHipri => on_threads(job, work)?,
        Way::TokioFs | Way::SpawnBlocking => {
            let pacer = Arc::new(Pacer::new(work));
            from_tokio(&shared, None, &pacer)?
        }
        Way::ForebayShard | Way::ForebayPolled | Way::ForebayCommands | Way::ForebayTokio => {
            with_forebay(&shared)?
        }
        _ => on_a_ring(job, work)?,
    };
    Ok(result(tally, gauged))
}

/// The cost of the sample while it counted.
#[derive(Debug)]
struct Gauged {
    cost: Cost,
    usage: Usage,
    /// The number of system calls. `None` means not requested, or refused.
    calls: Option<u64>,
    calls_wanted: bool,
}

fn result(tally: Tally, gauged: Gauged) -> ReadResult {
    let operations = tally.operations_of_calls;
    let calls = match gauged.calls {
        Some(count) => Some(Calls { count, operations, by_kernel: true }),
        None if gauged.calls_wanted && tally.own_calls > 0 => {
            Some(Calls { count: tally.own_calls, operations, by_kernel: false })
        }
        None => None,
    };
    let percentile = |quantile| tally.latency.quantile_us(quantile);
    let (mean_us, p50_us) = (tally.latency.mean_us(), percentile(0.5));
    let (p99_us, p99_9_us, late_p99_us) = (percentile(0.99), percentile(0.999), tally.late.quantile_us(0.99));
    let mut times = BTreeMap::from([("latency".to_owned(), tally.latency)]);
    if tally.late.count() > 0 {
        times.insert("late".to_owned(), tally.late);
    }
    ReadResult {
        seconds: gauged.cost.seconds,
        operations: tally.operations,
        unanswered: tally.unanswered,
        mean_us,
        p50_us,
        p99_us,
        p99_9_us,
        late_p99_us,
        user_ns: gauged.usage.user_ns,
        system_ns: gauged.usage.system_ns,
        voluntary_switches: gauged.usage.voluntary_switches,
        involuntary_switches: gauged.usage.involuntary_switches,
        calls: calls.filter(|calls| calls.operations > 0),
        in_flight_avg: gauged.cost.in_flight_avg,
        folded: tally.folded,
        evidence: Evidence { counter_deltas: gauged.cost.counter_deltas, times },
    }
}

/// Moves the sample through its phases while others read.
fn gauge(job: &Job, work: &ReadWork, pacer: &Pacer) -> anyhow::Result<Gauged> {
    pacer.warm();
    let mut gauge = Gauge::start(job.device_stat.as_deref())?;
    pacer.warmed();
    gauge.begin_again()?;
    let before = Usage::now()?;
    pacer.enter(Phase::Counting);
    std::thread::sleep(Duration::from_secs_f64(work.seconds));
    pacer.enter(Phase::Draining);
    let usage = Usage::now()?.since(&before);
    let cost = gauge.stop()?;
    let mut calls = None;
    if work.count_calls && !pacer.is_open() {
        let counter = CallCounter::start();
        pacer.enter(Phase::Calls);
        std::thread::sleep(CALLS);
        // The count is read when the phase has ended. It includes every call of reads that begin and
        // end in the phase.
        pacer.enter(Phase::Draining);
        // Where it is refused, the ways count for themselves.
        calls = counter.and_then(|mut counter| counter.count()).ok();
    }
    if !pacer.is_open() {
        pacer.enter(Phase::Over);
    }
    Ok(Gauged { cost, usage, calls, calls_wanted: work.count_calls })
}

/// Ends the readers when the sample ends early, by an error. Otherwise a join of them would wait for ever.
struct Ending<'a>(&'a Pacer);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn on_threads(job: &Job, work: &ReadWork) -> anyhow::Result<(Tally, Gauged)> {
    let file = threads::open_direct(&job.path)?;
    let pacer = Arc::new(Pacer::new(work));
    std::thread::scope(|scope| {
        let (file, pacer) = (&file, &pacer);
        let ending = Ending(pacer);
        let readers = (0..work.readers)
            .map(|lane| {
                // A reader needs few kilobytes.
                let builder = std::thread::Builder::new().stack_size(128 * 1024);
                builder.spawn_scoped(scope, move || threads::read(job, work, file, lane, pacer))
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        let gauged = gauge(job, work, pacer)?;
        let joined = readers.into_iter().map(|reader| {
            reader.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a reading thread panicked")))
        });
        let tally = Tally::sum(joined)?;
        drop(ending);
        Ok((tally, gauged))
    })
}

fn on_a_ring(job: &Job, work: &ReadWork) -> anyhow::Result<(Tally, Gauged)> {
    let pacer = Arc::new(Pacer::new(work));
    if work.way == Way::UringCommands {
        let (namespace, file) = (Namespace::open(&job.path)?, File::open(&job.path)?);
        return beside(job, work, &pacer, || ring::commands(job, work, &file, namespace, &pacer));
    }
    let file = threads::open_direct(&job.path)?;
    beside(job, work, &pacer, || ring::read(job, work, &file, &pacer))
}

/// Runs `reading` on a thread of its own while this one gauges.
fn beside(
    job: &Job,
    work: &ReadWork,
    pacer: &Arc<Pacer>,
    reading: impl FnOnce() -> anyhow::Result<Tally> + Send,
) -> anyhow::Result<(Tally, Gauged)> {
    std::thread::scope(|scope| {
        let ending = Ending(pacer);
        let reader = scope.spawn(reading);
        let gauged = gauge(job, work, pacer)?;
        let tally = reader.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the reading thread panicked")))?;
        drop(ending);
        Ok((tally, gauged))
    })
}

fn from_tokio(
    shared: &Shared,
    file: Option<&forebay::File>,
    pacer: &Arc<Pacer>,
) -> anyhow::Result<(Tally, Gauged)> {
    let ending = Ending(pacer);
    let readers = Readers::start(shared, file, pacer)?;
    let gauged = gauge(&shared.0, &shared.1, pacer)?;
    let tally = readers.join()?;
    drop(ending);
    Ok((tally, gauged))
}

fn with_forebay(shared: &Shared) -> anyhow::Result<(Tally, Gauged)> {
    let (job, work) = &**shared;
    let (engine, file) = shards::open(&job.path, work.way)?;
    let pacer = Arc::new(Pacer::new(work));
    let outcome = match work.way {
        Way::ForebayShard | Way::ForebayPolled | Way::ForebayCommands => {
            beside(job, work, &pacer, || shards::read_on_shard(&engine, &file, shared, &pacer))
        }
        _ if pacer.is_open() => beside(job, work, &pacer, || runtime::serve(shared, &file, &pacer)),
        _ => from_tokio(shared, Some(&file), &pacer),
    }?;
    shards::close(engine, file)?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::super::pattern::Pattern;
    use super::super::job::Pacing;
    use super::*;
    use crate::cleanup::{Cleanup, TempFile};

    const BYTES: u64 = 2 << 20;

    fn prepared_file(cleanup: &Cleanup) -> TempFile {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let temp = cleanup.temp_file(directory, "reads").expect("writable");
        let mut memory = vec![0; BYTES as usize];
        Pattern::new(5).fill(0, &mut memory);
        temp.file().write_all_at(&memory, 0).expect("space for 2 MiB");
        temp.file().sync_all().expect("it can be flushed");
        temp
    }

    fn job(temp: &TempFile, seed: u64, way: Way, pacing: Pacing) -> (Job, ReadWork) {
        let work = ReadWork {
            way,
            span_bytes: BYTES,
            block_bytes: 4096,
            readers: 4,
            workers: 2,
            pacing,
            seconds: 0.05,
            seed: 3,
            count_calls: true,
        };
        let mut job = Job::new("cpu", temp.path(), &work, 1.0).expect("plain");
        job.pattern_seed = Some(seed);
        (job, work)
    }

    /// Runs a sample, and a longer one when a busy machine let no read complete in the time, which would
    /// prove nothing.
    fn run_long_enough(temp: &TempFile, seed: u64, way: Way) -> anyhow::Result<ReadResult> {
        let mut seconds = 0.05;
        loop {
            let (job, mut work) = job(temp, seed, way, Pacing::Closed);
            work.seconds = seconds;
            let result = run(&job, &work)?;
            let counted = result.calls.as_ref().is_none_or(|calls| calls.operations > 0);
            if (result.operations > 0 && counted) || seconds > 10.0 {
                return Ok(result);
            }
            seconds *= 4.0;
        }
    }

    /// Returns whether the error is a refusal by this kernel or device, which names the missing part.
    fn refused(way: Way, error: &anyhow::Error) -> bool {
        let known = format!("{error:#}").contains("the kernel refuses");
        known && !matches!(way, Way::Pread | Way::TokioFs | Way::SpawnBlocking | Way::ForebayShard)
    }

    #[test]
    fn every_way_reads_checks_and_counts() {
        let cleanup = Cleanup::default();
        let temp = prepared_file(&cleanup);
        // There is no namespace here: `vm/tests/polled` has one.
        for way in Way::ALL.into_iter().filter(|way| !way.sends_commands()) {
            let result = match run_long_enough(&temp, 5, way) {
                Ok(result) => result,
                Err(error) if refused(way, &error) => continue,
                Err(error) => panic!("{}: {error:#}", way.name()),
            };
            let name = way.name();
            assert!(result.operations > 0 && result.seconds >= 0.05, "{name}: {result:?}");
            assert!(result.user_ns + result.system_ns > 0, "{name}: {result:?}");
            assert!(result.p50_us <= result.p99_us && result.mean_us > Some(0.0), "{name}: {result:?}");
            assert_eq!((result.unanswered, result.late_p99_us), (0, None), "{name}");
            match (&result.calls, way) {
                // No thread of this program makes a system call for each read there.
                (Some(calls), Way::UringSqpoll | Way::UringIopoll | Way::ForebayPolled) => {
                    assert!(calls.operations > 0)
                }
                (Some(calls), Way::Pread) => assert!(calls.count >= calls.operations / 2, "{calls:?}"),
                (Some(calls), _) => assert!(calls.count > 0 && calls.operations > 0, "{name}: {calls:?}"),
                (None, _) => {
                    let silent = [
                        Way::TokioFs,
                        Way::SpawnBlocking,
                        Way::ForebayShard,
                        Way::ForebayPolled,
                        Way::ForebayTokio,
                    ];
                    assert!(silent.contains(&way), "{name}");
                }
            }
            let error = run_long_enough(&temp, 6, way).expect_err(name);
            assert!(format!("{error:#}").contains("are not the data written there"), "{name}: {error:#}");
        }
    }

    #[test]
    fn an_open_loop_reads_at_its_rate() {
        let cleanup = Cleanup::default();
        let temp = prepared_file(&cleanup);
        for way in [Way::Pread, Way::UringDeferTaskrun, Way::ForebayTokio] {
            let (job, work) = job(&temp, 5, way, Pacing::Open { per_second: 400.0 });
            let result = match run(&job, &work) {
                Ok(result) => result,
                Err(error) if refused(way, &error) => continue,
                Err(error) => panic!("{}: {error:#}", way.name()),
            };
            let name = way.name();
            assert!(result.operations < 400, "the rate is not what the device could do: {name}: {result:?}");
            assert!(result.late_p99_us.is_some() && result.calls.is_none(), "{name}: {result:?}");
            assert!(result.p50_us <= result.p99_9_us, "{name}: {result:?}");
        }
    }
}
