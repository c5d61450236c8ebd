//! The same programs timed by the clock, in turn: effects that instructions do not show. A time is comparable only within one run.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::Result;
use crate::callgrind::TEST_FILE;
use crate::rows::Row;

/// Seconds of a whole process: by the clock, and of processors' time.
#[derive(Clone, Copy)]
struct Seconds {
    wall: f64,
    processor: f64,
}

/// Ratios of one row, by the base's time.
#[derive(Default)]
struct Ratios {
    own: [Vec<f64>; 2],
    /// Of the base to itself: a ratio closer to 1 than these is noise.
    again: [Vec<f64>; 2],
}

/// Runs base, own and base again, and the other way round, and prints medians of the ratios.
pub(crate) fn compare(
    own: &Path,
    base: &Path,
    rows: &[&Row],
    repeats: usize,
    factor: u64,
    scratch: &Path,
) -> Result<()> {
    println!(
        "| row | operation | time to base (min to max) | base to base | processor time to base | base to base |"
    );
    println!("|---|---|---|---|---|---|");
    for row in rows {
        let mut ratios = Ratios::default();
        let run = |program| time(program, row, row.operations * factor, scratch);
        for repeat in 0..repeats {
            let (first, middle, last) = (run(base)?, run(own)?, run(base)?);
            let (before, after) = if repeat % 2 == 0 { (first, last) } else { (last, first) };
            ratios.own[0].push(middle.wall / before.wall);
            ratios.own[1].push(middle.processor / before.processor);
            ratios.again[0].push(after.wall / before.wall);
            ratios.again[1].push(after.processor / before.processor);
        }
        let Ratios { own, again } = &ratios;
        let [wall, processor] = [0, 1].map(|kind| format!("{} | {}", cell(&own[kind]), cell(&again[kind])));
        println!("| {} | {} | {wall} | {processor} |", row.name, row.what);
    }
    Ok(())
}

fn time(program: &Path, row: &Row, operations: u64, scratch: &Path) -> Result<Seconds> {
    let (begun, used) = (Instant::now(), processor_of_children());
    let status = Command::new(program)
        .args(["child", row.name, &operations.to_string()])
        .arg(scratch.join(TEST_FILE))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    if !status.success() {
        return Err(format!("{}: {status}", row.name).into());
    }
    Ok(Seconds { wall: begun.elapsed().as_secs_f64(), processor: processor_of_children() - used })
}

/// Returns the processor time of all children that have ended.
fn processor_of_children() -> f64 {
    // SAFETY: plain numbers, all zero is a value of it; the call fills the structure that is passed to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn cell(ratios: &[f64]) -> String {
    let min = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let max = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.3} ({min:.3} to {max:.3})", crate::table::median(ratios))
}
