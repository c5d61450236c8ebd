//! Which of the two ways to make a write durable is faster here, also while the processors have other work: what a log
//! wants to know.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use forebay::{Class, Config, Durability, Engine, File, Flush, Open};

use super::check::Check;
use crate::cleanup::{Cleanup, TempFile};

const GROUP: &str = "path";
const NAME: &str = "durable_writes";
const WRITE_BYTES: usize = 4096;
/// Writes of each way, idle and again beside busy processors.
const WRITES: usize = 200;
/// The ways take turns, so that a disk that changes its mood does so for both.
const WRITES_A_TURN: usize = 25;
/// Neither half lasts longer, whatever the disk; then there are fewer writes.
const LONGEST: Duration = Duration::from_secs(1);

/// Times of one way's writes in nanoseconds.
#[derive(Debug, Default)]
struct Times {
    queued: Vec<u64>,
    blocking: Vec<u64>,
}

/// Measures both ways in files of its own in `directory`, and removes them.
pub(super) fn examine(directory: &Path, cpus: u64, cleanup: &Cleanup) -> Check {
    match measure(directory, cpus, cleanup) {
        Ok((mut idle, mut busy)) if idle.is_whole() && busy.is_whole() => {
            let (idle, busy) = (idle.figures(), busy.figures());
            let advice = match better(&busy) {
                Flush::Blocking => "for a log with a shard of its own choose Options::flush(Flush::Blocking)",
                _ => "for a log keep the default, Flush::Queued",
            };
            let why = format!(
                "p50/p90/p99 of 4 KiB until durable: {}; with all processors busy {}; {advice}",
                text(&idle),
                text(&busy)
            );
            Check::ok(GROUP, NAME, why)
        }
        Ok(_) => Check::degraded(
            GROUP,
            NAME,
            "the disk makes too few writes durable in a second to compare the two ways",
            "keep a log's default, Flush::Queued",
        ),
        Err(error) => Check::degraded(
            GROUP,
            NAME,
            format!("the two ways could not be compared: {error:#}"),
            "see the findings above",
        ),
    }
}

fn measure(directory: &Path, cpus: u64, cleanup: &Cleanup) -> anyhow::Result<(Times, Times)> {
    let engine = Engine::start(Config::default().shards(1)).context("the engine does not start")?;
    let temps = [prepared(directory, cleanup)?, prepared(directory, cleanup)?];
    let open = |temp: &TempFile| engine.open(temp.path(), Open::write()).wait();
    let files = [open(&temps[0])?, open(&temps[1])?];
    let idle = take_turns(&engine, &files, 0)?;
    let stop = Arc::new(AtomicBool::new(false));
    let hogs: Vec<_> = (0..cpus.max(1))
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let busy = take_turns(&engine, &files, WRITES);
    stop.store(true, Ordering::Relaxed);
    for hog in hogs {
        // It cannot have panicked.
        let _ = hog.join();
    }
    drop(files);
    engine.close().wait()?;
    Ok((idle, busy?))
}

/// A file that was written through once, as a log's segment is: nothing is allocated in the writes that are timed.
fn prepared(directory: &Path, cleanup: &Cleanup) -> anyhow::Result<TempFile> {
    let temp = cleanup.temp_file(directory, "doctor").context("no temp file")?;
    let mut file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(temp.path())?;
    file.write_all(&vec![0; 2 * WRITES * WRITE_BYTES]).and_then(|()| file.sync_all()).context("no space")?;
    Ok(temp)
}

/// Both ways in turn, from the given write's place on, until there are enough or time is up.
fn take_turns(engine: &Engine, files: &[File; 2], first: usize) -> anyhow::Result<Times> {
    let mut times = Times::default();
    let began = Instant::now();
    for turn in 0..WRITES / WRITES_A_TURN {
        let at = first + turn * WRITES_A_TURN;
        times.queued.extend(turn_of(engine, &files[0], Flush::Queued, at, began)?);
        times.blocking.extend(turn_of(engine, &files[1], Flush::Blocking, at, began)?);
    }
    Ok(times)
}

fn turn_of(
    engine: &Engine,
    file: &File,
    flush: Flush,
    at: usize,
    began: Instant,
) -> anyhow::Result<Vec<u64>> {
    let (file, maker) = (file.clone(), engine.clone());
    let task = engine.spawn_on_shard(0, Class::LOG, move || async move {
        let mut memory = maker.block(WRITE_BYTES)?;
        memory.resize(WRITE_BYTES)?;
        let block = memory.freeze();
        let mut times = Vec::with_capacity(WRITES_A_TURN);
        for write in at..at + WRITES_A_TURN {
            if began.elapsed() > LONGEST {
                break;
            }
            let start = Instant::now();
            let write = file.write((write * WRITE_BYTES) as u64, block.clone());
            write.durable(Durability::Data).flush(flush).await?;
            times.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        Ok::<_, forebay::Error>(times)
    });
    Ok(task.wait()??)
}

/// Percentiles 50, 90 and 99 in microseconds: queued, blocking.
type Figures = [[f64; 3]; 2];

impl Times {
    /// Is there enough to say something about a tail?
    fn is_whole(&self) -> bool {
        self.queued.len().min(self.blocking.len()) >= WRITES_A_TURN
    }

    fn figures(&mut self) -> Figures {
        [&mut self.queued, &mut self.blocking].map(|times| {
            times.sort_unstable();
            let at = |share: f64| {
                let place = ((times.len().saturating_sub(1)) as f64 * share) as usize;
                times.get(place).copied().unwrap_or(0) as f64 / 1000.0
            };
            [at(0.5), at(0.9), at(0.99)]
        })
    }
}

/// What a log should use, by the figures beside busy processors. A difference below a tenth is none, and then the way that
/// lets the shard go on is the better one. The last hundredth has too few writes to go by.
fn better(busy: &Figures) -> Flush {
    let [queued, blocking] = busy;
    let (half, most) = (blocking[0] / queued[0].max(0.001), blocking[1] / queued[1].max(0.001));
    match half.min(most) < 0.9 && half.max(most) < 1.1 {
        true => Flush::Blocking,
        false => Flush::Queued,
    }
}

fn text([queued, blocking]: &Figures) -> String {
    let of = |[half, most, tail]: &[f64; 3]| format!("{half:.0}/{most:.0}/{tail:.0} us");
    format!("queued {}, blocking {}", of(queued), of(blocking))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shard_blocks_only_where_that_is_clearly_faster() {
        for (queued, blocking, expected) in [
            ([100.0, 1000.0, 0.0], [85.0, 200.0, 0.0], Flush::Blocking),
            ([100.0, 1000.0, 0.0], [105.0, 200.0, 0.0], Flush::Blocking),
            // No difference to speak of, or one that the other figure pays for.
            ([100.0, 200.0, 9000.0], [95.0, 190.0, 0.0], Flush::Queued),
            ([100.0, 1000.0, 0.0], [150.0, 200.0, 0.0], Flush::Queued),
            ([100.0, 200.0, 0.0], [80.0, 400.0, 0.0], Flush::Queued),
        ] {
            assert_eq!(better(&[queued, blocking]), expected, "{queued:?} {blocking:?}");
        }
    }
}
