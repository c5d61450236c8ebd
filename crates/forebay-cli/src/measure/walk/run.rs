//! One sample: one row, its lookups in flight, the time in which they count.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::{Advice, fadvise};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::super::gauge::{Cost, Gauge};
use super::super::turns::Evidence;
use super::job::{WalkAnswer, WalkRow, WalkWork};
use super::lane::{Phase, Tally};
use super::plant::open_direct;
use super::{blocking, engine, ring};

/// Not measured: threads, rings and files are used for the first time.
const WARM: Duration = Duration::from_millis(100);

/// Runs it on the file at `path`; `device_stat` is the `stat` file of the device below.
///
/// # Errors
/// The row failed, or gave a wrong answer.
pub(in crate::measure) fn sample(
    path: &Path,
    device_stat: Option<&Path>,
    work: &WalkWork,
) -> anyhow::Result<String> {
    let (tally, cost) = match work.row {
        WalkRow::Pread | WalkRow::IoUring => on_threads(path, device_stat, work)?,
        WalkRow::ForebayTask | WalkRow::ForebayWalk => on_shards(path, device_stat, work)?,
        _ => from_tokio(path, device_stat, work)?,
    };
    let is_task = !matches!(work.row, WalkRow::Pread | WalkRow::IoUring);
    let answer = WalkAnswer {
        seconds: cost.seconds,
        cpu_seconds: cost.cpu_seconds,
        context_switches: cost.context_switches,
        in_flight_avg: cost.in_flight_avg,
        lookups: tally.latency.count(),
        p50_us: tally.latency.quantile_us(0.5),
        p99_us: tally.latency.quantile_us(0.99),
        wakes: is_task.then_some(tally.wakes),
        evidence: Evidence { witness: cost.witness, times: [("latency".to_owned(), tally.latency)].into() },
    };
    Ok(serde_json::to_string(&answer)?)
}

/// Gauges the sample while others work, and ends it.
fn gauge(work: &WalkWork, phase: &Phase, device_stat: Option<&Path>) -> anyhow::Result<Cost> {
    std::thread::sleep(WARM);
    let gauged = Gauge::start(device_stat).and_then(|gauge| {
        phase.count();
        std::thread::sleep(Duration::from_secs_f64(work.seconds));
        phase.end();
        gauge.stop()
    });
    Ok(gauged?)
}

/// Ends the lanes when the sample ends early, by an error: whoever joins them would wait for ever.
struct Ending<'a>(&'a Phase);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The lanes of thread or shard number `part` of `parts`.
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

fn on_threads(path: &Path, device_stat: Option<&Path>, work: &WalkWork) -> anyhow::Result<(Tally, Cost)> {
    let file = open_direct(path, false)?;
    let phase = Arc::new(Phase::default());
    let count = if work.row == WalkRow::Pread { work.in_flight } else { work.threads() };
    std::thread::scope(|scope| {
        let (file, phase) = (&file, &phase);
        let _ending = Ending(phase);
        let threads = (0..count)
            .map(|number| {
                // A lane needs few kilobytes.
                let builder = std::thread::Builder::new().stack_size(256 * 1024);
                builder.spawn_scoped(scope, move || match work.row {
                    WalkRow::Pread => blocking::pread(work, file, number, phase),
                    _ => ring::descend(work, file, &lanes_of(work, number, count), phase),
                })
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        let cost = gauge(work, phase, device_stat)?;
        let joined = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread with lookups panicked")))
        });
        Ok((sum(joined)?, cost))
    })
}

fn on_shards(path: &Path, device_stat: Option<&Path>, work: &WalkWork) -> anyhow::Result<(Tally, Cost)> {
    let (engine, files) = engine::open(path, work)?;
    let phase = Arc::new(Phase::default());
    let shared = Arc::new(work.clone());
    let outcome = std::thread::scope(|scope| {
        let engine = &engine;
        let _ending = Ending(&phase);
        let waiting: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(shard, file)| {
                let (file, work, phase) = (file.clone(), Arc::clone(&shared), Arc::clone(&phase));
                let lanes = lanes_of(&work, shard, files.len());
                scope.spawn(move || match work.row {
                    WalkRow::ForebayTask => engine::on_shard(engine, shard, lanes, move |lane| {
                        engine::task(Arc::clone(&work), file.clone(), lane, Arc::clone(&phase))
                    }),
                    _ => engine::on_shard(engine, shard, lanes, move |lane| {
                        engine::walk(Arc::clone(&work), file.clone(), lane, Arc::clone(&phase))
                    }),
                })
            })
            .collect();
        let cost = gauge(work, &phase, device_stat)?;
        let joined = waiting.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the wait for a shard panicked")))
        });
        anyhow::Ok((sum(joined)?, cost))
    })?;
    drop(files);
    engine::close(engine)?;
    Ok(outcome)
}

fn from_tokio(path: &Path, device_stat: Option<&Path>, work: &WalkWork) -> anyhow::Result<(Tally, Cost)> {
    let opened = match work.row {
        WalkRow::ForebayWalkTokio => Some(engine::open(path, work)?),
        _ => None,
    };
    let direct = Arc::new(open_direct(path, false)?);
    let runtime = Builder::new_multi_thread().worker_threads(work.threads()).build()?;
    let phase = Arc::new(Phase::default());
    let shared = Arc::new(work.clone());
    let _ending = Ending(&phase);
    let lanes = (0..work.in_flight)
        .map(|lane| {
            let (work, phase) = (Arc::clone(&shared), Arc::clone(&phase));
            Ok(match (work.row, &opened) {
                (_, Some((_, files))) => {
                    let file = files[lane % files.len()].clone();
                    runtime.spawn(engine::walk(work, file, lane, phase))
                }
                (WalkRow::BlockingPerHop, _) => {
                    runtime.spawn(blocking::per_hop(work, Arc::clone(&direct), lane, phase))
                }
                (WalkRow::BlockingWhole, _) => {
                    runtime.spawn(blocking::descent(work, Arc::clone(&direct), lane, phase))
                }
                _ => runtime.spawn(blocking::tokio_fs(work, open_buffered(path)?, lane, phase)),
            })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let cost = gauge(work, &phase, device_stat)?;
    let tally = sum(lanes.into_iter().map(|lane| end(&runtime, lane)))?;
    drop(runtime);
    if let Some((engine, files)) = opened {
        drop(files);
        engine::close(engine)?;
    }
    Ok((tally, cost))
}

fn end(runtime: &Runtime, lane: JoinHandle<anyhow::Result<Tally>>) -> anyhow::Result<Tally> {
    runtime.block_on(lane).context("a task with lookups panicked")?
}

/// Read-ahead would bring in what no lookup asks for.
fn open_buffered(path: &Path) -> anyhow::Result<File> {
    let file = File::open(path)?;
    fadvise(&file, 0, None, Advice::Random)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::super::home::Home;
    use super::super::plant::Planted;
    use super::super::tree::Tree;
    use super::*;
    use crate::cleanup::Cleanup;
    use crate::context::{Context, Target};
    use crate::progress::Progress;

    fn planted(node_bytes: u64, seed: u64) -> Planted {
        let target = Target::Directory(env!("CARGO_MANIFEST_DIR").into());
        let context = Context::new(target, Progress::Silent, Cleanup::default(), 1);
        let home = Home::find(&context, "walk").expect("a directory on a disk");
        let tree = Tree { node_bytes, fan_out: 11, levels: 4, nodes: 100, seed };
        Planted::make(&home, tree, &context).expect("space for 2 MiB")
    }

    fn work(planted: &Planted, row: WalkRow, depth: u64, in_flight: usize, threads: usize) -> WalkWork {
        let (tree, unit_bytes) = (planted.tree, planted.unit_bytes);
        WalkWork { row, tree, unit_bytes, depth, in_flight, threads, seconds: 0.05, seed: 9 }
    }

    #[test]
    fn every_row_descends_and_counts() {
        for node_bytes in [512, 4096] {
            let planted = planted(node_bytes, 3);
            for row in WalkRow::ALL {
                for (depth, in_flight, threads) in [(1, 1, 1), (4, 19, 3)] {
                    let work = work(&planted, row, depth, in_flight, threads);
                    let text = sample(planted.temp.path(), planted.device_stat.as_deref(), &work)
                        .unwrap_or_else(|error| panic!("{row:?} {node_bytes}: {error:#}"));
                    let answer: WalkAnswer = serde_json::from_str(&text).expect("its own text");
                    assert!(answer.seconds >= 0.05, "{row:?} {answer:?}");
                    let has_tasks = !matches!(row, WalkRow::Pread | WalkRow::IoUring);
                    assert_eq!(answer.wakes.is_some(), has_tasks, "{row:?} {answer:?}");
                    assert_eq!(answer.p50_us.is_some(), answer.lookups > 0, "{row:?} {answer:?}");
                }
            }
        }
    }

    /// A row that believed what it reads would look faster than it is.
    #[test]
    fn every_row_notices_wrong_nodes_and_wrong_answers() {
        let planted = planted(512, 3);
        for row in WalkRow::ALL {
            let mut work = work(&planted, row, 4, 3, 1);
            // Another tree's answers, found in nodes that are whole.
            work.tree.seed = 4;
            let error = sample(planted.temp.path(), None, &work).expect_err("answers of another tree");
            assert!(format!("{error:#}").contains("gave 0x"), "{row:?}: {error:#}");
        }
        let file = std::fs::OpenOptions::new().write(true).open(planted.temp.path()).expect("it is ours");
        file.write_all_at(&vec![0; planted.tree.file_bytes() as usize], 0).expect("it may be written");
        file.sync_all().expect("it can be flushed");
        for row in WalkRow::ALL {
            let error = sample(planted.temp.path(), None, &work(&planted, row, 4, 3, 1)).expect_err("zeros");
            assert!(format!("{error:#}").contains("not the node that was written"), "{row:?}: {error:#}");
        }
    }
}
