//! One sample: one row, its lookups in flight, and the period in which they count.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::{Advice, fadvise};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::super::gauge::{Cost, Gauge};
use super::super::interleave::Evidence;
use super::super::latency::Latency;
use super::super::timers::{self, Timers};
use super::super::wal::Times;
use super::index_file::open_direct;
use super::job::{WalkResult, WalkRow, WalkWork};
use super::lane::{Phase, Tally};
use super::published::{self, Files};
use super::{blocking, engine, ring};

/// Warm-up, not measured: threads, rings and files are used for the first time.
const WARM: Duration = Duration::from_millis(100);

/// Runs the sample on the file at `path`, or with files of its own in that directory, and returns its
/// result. `device_stat` is the `stat` file of the device below.
///
/// # Errors
/// The row failed, or returned a wrong result.
pub(crate) fn sample(path: &Path, device_stat: Option<&Path>, work: &WalkWork) -> anyhow::Result<String> {
    let files = work.as_published.then(|| Arc::new(Files::new(path, work)));
    let place = Place { path, device_stat, files: files.as_ref() };
    let (tally, cost, late) = if work.row.is_of_tokio() {
        from_tokio(&place, work)?
    } else {
        // The timers have a runtime of their own, with as many workers as the rows of Tokio have.
        let idle = work.timers.then(|| runtime(work)).transpose()?;
        let timers = idle.as_ref().map(|idle| Timers::start(idle.handle())).transpose()?;
        let (tally, cost) = match work.row {
            WalkRow::NoLookups => {
                (Tally::new()?, gauge(work, &Phase::default(), device_stat, timers.as_ref())?)
            }
            WalkRow::Pread | WalkRow::IoUring => on_threads(&place, work, timers.as_ref())?,
            _ => on_shards(&place, work, timers.as_ref())?,
        };
        (tally, cost, idle.zip(timers).map(|(idle, timers)| timers.stop(&idle)).transpose()?)
    };
    files.map_or(Ok(()), |files| files.check())?;
    let is_task = !matches!(work.row, WalkRow::NoLookups | WalkRow::Pread | WalkRow::IoUring);
    let mut evidence = Evidence { counter_deltas: cost.counter_deltas, ..Evidence::default() };
    let result = WalkResult {
        seconds: cost.seconds,
        cpu_seconds: cost.cpu_seconds,
        context_switches: cost.context_switches,
        in_flight_avg: cost.in_flight_avg,
        lookups: tally.latency.count(),
        p50_us: tally.latency.quantile_us(0.5),
        p99_us: tally.latency.quantile_us(0.99),
        wakes: is_task.then_some(tally.wakes),
        timers: late.as_ref().and_then(Times::of),
        evidence: {
            evidence.times.insert("latency".to_owned(), tally.latency);
            evidence.times.extend(late.map(|late| (timers::NAME.to_owned(), late)));
            evidence
        },
    };
    Ok(serde_json::to_string(&result)?)
}

/// Files that a sample works on.
#[derive(Debug)]
struct Place<'a> {
    path: &'a Path,
    device_stat: Option<&'a Path>,
    /// A file for each lookup, instead of the one at `path`.
    files: Option<&'a Arc<Files>>,
}

/// Builds the runtime for the rows of Tokio, and for the timers.
fn runtime(work: &WalkWork) -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(work.threads());
    if work.timers {
        builder.enable_time();
    }
    builder.build()
}

/// Gauges the sample while other threads work, and ends it.
fn gauge(
    work: &WalkWork,
    phase: &Phase,
    device_stat: Option<&Path>,
    timers: Option<&Timers>,
) -> anyhow::Result<Cost> {
    std::thread::sleep(WARM);
    let gauged = Gauge::start(device_stat).and_then(|gauge| {
        phase.count();
        if let Some(timers) = timers {
            timers.count();
        }
        std::thread::sleep(Duration::from_secs_f64(work.seconds));
        phase.end();
        if let Some(timers) = timers {
            timers.end();
        }
        gauge.stop()
    });
    Ok(gauged?)
}

/// Ends the lanes when the sample ends early, by an error: a thread that joins them would wait forever.
struct Ending<'a>(&'a Phase);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Returns the lanes of thread or shard number `part` of `parts`.
fn lanes_of(work: &WalkWork, part: usize, parts: usize) -> Vec<usize> {
    (part..work.in_flight).step_by(parts).collect()
}

fn sum(parts: impl IntoIterator<Item = anyhow::Result<Tally>>) -> anyhow::Result<Tally> {
    let mut all = Tally::new()?;
    for part in parts {
        all.add(&part?)?;
    }
    Ok(all)
}

fn on_threads(place: &Place<'_>, work: &WalkWork, timers: Option<&Timers>) -> anyhow::Result<(Tally, Cost)> {
    let file = place.files.is_none().then(|| open_direct(place.path, false)).transpose()?;
    let phase = Arc::new(Phase::default());
    let count = if work.row == WalkRow::Pread { work.in_flight } else { work.threads() };
    std::thread::scope(|scope| {
        let (file, files, phase) = (file.as_ref(), place.files, &phase);
        let _ending = Ending(phase);
        let threads = (0..count)
            .map(|number| {
                // A lane needs only a few kilobytes of stack.
                let builder = std::thread::Builder::new().stack_size(256 * 1024);
                builder.spawn_scoped(scope, move || match (file, files, work.row) {
                    (Some(file), _, WalkRow::Pread) => blocking::pread(work, file, number, phase),
                    (Some(file), ..) => ring::descend(work, file, &lanes_of(work, number, count), phase),
                    (None, Some(files), _) => published::pread(work, files, number, phase),
                    (None, None, _) => anyhow::bail!("there is no file"),
                })
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        let cost = gauge(work, phase, place.device_stat, timers)?;
        let joined = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread with lookups panicked")))
        });
        Ok((sum(joined)?, cost))
    })
}

fn on_shards(place: &Place<'_>, work: &WalkWork, timers: Option<&Timers>) -> anyhow::Result<(Tally, Cost)> {
    let (engine, opened) = engine::open(place.files.is_none().then_some(place.path), work)?;
    let phase = Arc::new(Phase::default());
    let shared = Arc::new(work.clone());
    let outcome = std::thread::scope(|scope| {
        let engine = &engine;
        let _ending = Ending(&phase);
        let shards = engine.shard_count();
        let waiting: Vec<_> = (0..shards)
            .map(|shard| {
                let (work, phase) = (Arc::clone(&shared), Arc::clone(&phase));
                let (file, files) = (opened.get(shard).cloned(), place.files.cloned());
                let lanes = lanes_of(&work, shard, shards);
                scope.spawn(move || match (file, files) {
                    (Some(file), _) if work.row == WalkRow::ForebayTask => {
                        engine::on_shard(engine, shard, lanes, move |lane| {
                            engine::task(Arc::clone(&work), file.clone(), lane, Arc::clone(&phase))
                        })
                    }
                    (Some(file), _) => engine::on_shard(engine, shard, lanes, move |lane| {
                        engine::walk(Arc::clone(&work), file.clone(), lane, Arc::clone(&phase))
                    }),
                    (None, Some(files)) => {
                        let own = engine.clone();
                        engine::on_shard(engine, shard, lanes, move |lane| {
                            let (work, files) = (Arc::clone(&work), Arc::clone(&files));
                            published::forebay(work, files, (own.clone(), shard), lane, Arc::clone(&phase))
                        })
                    }
                    (None, None) => anyhow::bail!("there is no file"),
                })
            })
            .collect();
        let cost = gauge(work, &phase, place.device_stat, timers)?;
        let joined = waiting.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the wait for a shard panicked")))
        });
        anyhow::Ok((sum(joined)?, cost))
    })?;
    drop(opened);
    engine::close(engine)?;
    Ok(outcome)
}

fn from_tokio(place: &Place<'_>, work: &WalkWork) -> anyhow::Result<(Tally, Cost, Option<Latency>)> {
    let is_forebay = work.row == WalkRow::ForebayWalkTokio;
    let one_file = place.files.is_none().then_some(place.path);
    let opened = is_forebay.then(|| engine::open(one_file, work)).transpose()?;
    let direct = one_file.map(|path| open_direct(path, false)).transpose()?.map(Arc::new);
    let runtime = runtime(work)?;
    let timers = work.timers.then(|| Timers::start(runtime.handle())).transpose()?;
    let phase = Arc::new(Phase::default());
    let shared = Arc::new(work.clone());
    let _ending = Ending(&phase);
    let lanes = (0..work.in_flight)
        .map(|lane| {
            let (work, phase) = (Arc::clone(&shared), Arc::clone(&phase));
            Ok(match (&opened, place.files, &direct) {
                (Some((engine, _)), Some(files), _) => {
                    let on = (engine.clone(), lane % engine.shard_count());
                    runtime.spawn(published::forebay(work, Arc::clone(files), on, lane, phase))
                }
                (None, Some(files), _) => {
                    runtime.spawn(published::from_tokio(work, Arc::clone(files), lane, phase))
                }
                (Some((_, opened)), None, _) => {
                    let file = opened[lane % opened.len()].clone();
                    runtime.spawn(engine::walk(work, file, lane, phase))
                }
                (None, None, Some(file)) if work.row == WalkRow::BlockingPerHop => {
                    runtime.spawn(blocking::per_hop(work, Arc::clone(file), lane, phase))
                }
                (None, None, Some(file)) if work.row == WalkRow::BlockingWhole => {
                    runtime.spawn(blocking::descent(work, Arc::clone(file), lane, phase))
                }
                _ => runtime.spawn(blocking::tokio_fs(work, open_buffered(place.path)?, lane, phase)),
            })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let cost = gauge(work, &phase, place.device_stat, timers.as_ref())?;
    let tally = sum(lanes.into_iter().map(|lane| end(&runtime, lane)))?;
    let late = timers.map(|timers| timers.stop(&runtime)).transpose()?;
    drop(runtime);
    if let Some((engine, files)) = opened {
        drop(files);
        engine::close(engine)?;
    }
    Ok((tally, cost, late))
}

fn end(runtime: &Runtime, lane: JoinHandle<anyhow::Result<Tally>>) -> anyhow::Result<Tally> {
    runtime.block_on(lane).context("a task with lookups panicked")?
}

/// Opens the file for buffered reads, with read-ahead off: it would load data that no lookup requests.
fn open_buffered(path: &Path) -> anyhow::Result<File> {
    let file = File::open(path)?;
    fadvise(&file, 0, None, Advice::Random)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::super::scratch_dir::ScratchDir;
    use super::super::index_file::IndexFile;
    use super::super::tree::Tree;
    use super::*;
    use crate::cleanup::Cleanup;
    use crate::context::{Context, Target};
    use crate::progress::Progress;

    fn index_file(node_bytes: u64, seed: u64) -> IndexFile {
        let target = Target::Directory(env!("CARGO_MANIFEST_DIR").into());
        let context = Context::new(target, Progress::Silent, Cleanup::default(), 1);
        let scratch = ScratchDir::find(&context, "walk").expect("a directory on a disk");
        let tree = Tree { node_bytes, fan_out: 11, levels: 4, nodes: 100, seed };
        IndexFile::make(&scratch, tree, &context).expect("space for 2 MiB")
    }

    fn work(index_file: &IndexFile, row: WalkRow, depth: u64, in_flight: usize, threads: usize) -> WalkWork {
        let (tree, unit_bytes) = (index_file.tree, index_file.unit_bytes);
        let (as_published, timers) = (false, false);
        let (seconds, seed) = (0.05, 9);
        WalkWork { row, tree, unit_bytes, depth, in_flight, threads, as_published, timers, seconds, seed }
    }

    #[test]
    fn every_row_descends_and_counts() {
        for node_bytes in [512, 4096] {
            let index_file = index_file(node_bytes, 3);
            for row in WalkRow::ALL {
                for (depth, in_flight, threads) in [(1, 1, 1), (4, 19, 3)] {
                    let work = work(&index_file, row, depth, in_flight, threads);
                    let text = sample(index_file.temp.path(), index_file.device_stat.as_deref(), &work)
                        .unwrap_or_else(|error| panic!("{row:?} {node_bytes}: {error:#}"));
                    let result: WalkResult = serde_json::from_str(&text).expect("its own text");
                    assert!(result.seconds >= 0.05, "{row:?} {result:?}");
                    let has_tasks = !matches!(row, WalkRow::Pread | WalkRow::IoUring);
                    assert_eq!(result.wakes.is_some(), has_tasks, "{row:?} {result:?}");
                    assert_eq!(result.p50_us.is_some(), result.lookups > 0, "{row:?} {result:?}");
                }
            }
        }
    }

    /// A row that trusted its reads would look faster than it is.
    #[test]
    fn every_row_notices_wrong_nodes_and_wrong_values() {
        let index_file = index_file(512, 3);
        for row in WalkRow::ALL {
            let mut work = work(&index_file, row, 4, 3, 1);
            // The values of another tree, found in nodes that are whole.
            work.tree.seed = 4;
            let error = sample(index_file.temp.path(), None, &work).expect_err("answers of another tree");
            assert!(format!("{error:#}").contains("gave 0x"), "{row:?}: {error:#}");
        }
        let file = std::fs::OpenOptions::new().write(true).open(index_file.temp.path()).expect("it is ours");
        file.write_all_at(&vec![0; index_file.tree.file_bytes() as usize], 0).expect("it may be written");
        file.sync_all().expect("it can be flushed");
        for row in WalkRow::ALL {
            let error =
                sample(index_file.temp.path(), None, &work(&index_file, row, 4, 3, 1)).expect_err("zeros");
            assert!(format!("{error:#}").contains("not the node that was written"), "{row:?}: {error:#}");
        }
    }
}
