//! `calibrate`: measures a device's figures once, and writes them to a file with which engines start.
//!
//! The loads run in this process, on one shard. They measure the device's figures, which the program's own work changes
//! little.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Args;
use forebay::device::Device;
use forebay::{Calibration, Config, Engine, File, Open, Rates};

use crate::backend::{Lane, Op, locked, on_shards};
use crate::context::{Context, Target};
use crate::latency::Latency;
use crate::pattern::{Pattern, SplitMix};
use crate::progress::Unit;
use crate::scan::parse_seconds;
use crate::test_file::TestFile;
use crate::units::{parse_bytes, show_bytes};
use forebay_report::failure::Failure;

const SMALL_BYTES: u64 = 4 << 10;
/// The size of one request to a contended device.
const PIECE_BYTES: u64 = 64 << 10;
/// Requests in flight where the device may process as many as it can.
const DEPTH_MANY: usize = 128;
const DEPTH_MAX: usize = 256;
/// The share of the best throughput that counts as nearly all of it.
const KNEE_SHARE: f64 = 0.9;
/// The least gain from twice the requests. After two gains in a row below it, more requests bring nothing.
const GAIN_MIN: f64 = 1.05;
const SECONDS: f64 = 1.0;
const SECONDS_QUICK: f64 = 0.2;
const FILE_BYTES: u64 = 2 << 30;
const FILE_BYTES_QUICK: u64 = 256 << 20;
const FILE_BYTES_MIN: u64 = 8 << 20;

/// The settings of a calibration.
#[derive(Debug, Clone, Args)]
pub struct CalibrateOptions {
    /// Seconds of each load, of which there are about 14 [default: 1, with --quick 0.2]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Size of the file that is made for it [default: 2GiB, with --quick 256MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u64>,
}

fn parse_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes >= FILE_BYTES_MIN => Ok(bytes.next_multiple_of(PIECE_BYTES)),
        _ => Err(format!("{text:?} is too small to measure a device: at least 8MiB")),
    }
}

/// Measures the device under a directory.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`]), or the device failed.
pub fn run(options: &CalibrateOptions, context: &Context) -> anyhow::Result<Calibration> {
    if !matches!(context.target, Target::Directory(_)) {
        return Err(Failure::Path(format!(
            "{} is not a directory: `calibrate` writes a file of its own and nothing else; name a directory for it",
            context.target.path().display()
        ))
        .into());
    }
    let quick = context.quick;
    let size = options.size.unwrap_or(if quick { FILE_BYTES_QUICK } else { FILE_BYTES });
    let seconds = options.seconds.unwrap_or(if quick { SECONDS_QUICK } else { SECONDS });
    let test_file = TestFile::prepare(context, size, None)?;
    let mut calibration = Calibration::new(&Device::of_path(&test_file.path)?);
    // One class only, so that nothing is held back and the depth is the one requested.
    let engine = Engine::start(Config::new().shards(1).queue_depth(2 * DEPTH_MAX as u32))?;
    let bench = Bench {
        file: engine.open(&test_file.path, Open::write()).wait()?,
        file_bytes: test_file.bytes,
        length: Duration::from_secs_f64(seconds),
        seed: context.seed,
        engine: engine.clone(),
    };
    measure(&mut calibration, context, |load| bench.run(load))?;
    drop(bench);
    engine.close().wait()?;
    Ok(calibration)
}

/// The requests in flight: their kind, size and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Load {
    writes: bool,
    bytes: u64,
    depth: usize,
}

/// The tally of a load: its operations that completed before its end.
#[derive(Debug)]
struct LoadTally {
    bytes: u64,
    seconds: f64,
    times: Latency,
}

impl LoadTally {
    fn operations_per_second(&self) -> f64 {
        self.times.count() as f64 / self.seconds
    }

    fn bytes_per_second(&self) -> f64 {
        self.operations_per_second() * self.bytes as f64
    }

    fn median_ns(&self) -> u64 {
        self.times.quantile_us(0.5).map_or(0, |us| (us * 1e3).round() as u64)
    }
}

/// The operations that have completed so far, shared by the lanes of a load.
#[derive(Debug)]
struct Progress {
    times: Latency,
    until: Instant,
    /// Minimum number of completions, regardless of the time: on a machine busy with other work nothing may complete within it.
    least: u64,
    last: Instant,
}

impl Progress {
    fn goes_on(&self, now: Instant) -> bool {
        now < self.until || self.times.count() < self.least
    }
}

/// One request in flight after the other.
#[derive(Debug)]
struct Requests {
    load: Load,
    places: u64,
    random: SplitMix,
    pattern: Pattern,
    progress: Arc<Mutex<Progress>>,
}

impl Lane for Requests {
    fn next(&mut self) -> Option<Op> {
        let goes_on = locked(&self.progress).goes_on(Instant::now());
        let offset = self.random.below(self.places) * self.load.bytes;
        goes_on.then(|| Op { is_write: self.load.writes, ..Op::read(offset) })
    }

    fn fill(&mut self, _: &Op, memory: &mut [u8]) {
        // All writes have the same data.
        if !memory.starts_with(&self.pattern.first_word(0).to_le_bytes()) {
            self.pattern.fill(0, memory);
        }
    }

    fn ended(&mut self, _: Op, begun: Instant, _: &[u8]) -> anyhow::Result<()> {
        let (mut progress, now) = (locked(&self.progress), Instant::now());
        // A request still in flight at the end would count as if its duration were zero.
        if progress.goes_on(now) {
            progress.times.record(now - begun);
            progress.last = progress.last.max(now);
        }
        Ok(())
    }
}

/// The engine and the file on which loads run.
struct Bench {
    engine: Engine,
    file: File,
    file_bytes: u64,
    length: Duration,
    seed: u64,
}

impl Bench {
    /// Runs a load.
    ///
    /// # Errors
    /// Fails when a read or write failed.
    fn run(&self, load: Load) -> anyhow::Result<LoadTally> {
        let begun = Instant::now();
        let progress = Arc::new(Mutex::new(Progress {
            times: Latency::new()?,
            until: begun + self.length,
            least: load.depth as u64,
            last: begun,
        }));
        let requests = |lane: u64| Requests {
            load,
            places: self.file_bytes / load.bytes,
            // Each request in flight has its own places, which no other load of this run has.
            random: SplitMix::new(
                SplitMix::new(self.seed ^ (lane << 32 | load.bytes | u64::from(load.writes))).next_u64(),
            ),
            pattern: Pattern::new(self.seed),
            progress: Arc::clone(&progress),
        };
        let lanes = (0..load.depth as u64).map(requests);
        let files = std::slice::from_ref(&self.file);
        on_shards(&self.engine, files, lanes, load.bytes as usize)()?;
        let progress = locked(&progress);
        let seconds = self.length.max(progress.last - begun).as_secs_f64();
        Ok(LoadTally { bytes: load.bytes, seconds, times: progress.times.clone() })
    }
}

/// Runs the loads in turn and draws the conclusions.
fn measure(
    calibration: &mut Calibration,
    context: &Context,
    mut run: impl FnMut(Load) -> anyhow::Result<LoadTally>,
) -> anyhow::Result<()> {
    let depths: Vec<usize> = (0..).map(|power| 1 << power).take_while(|&depth| depth <= DEPTH_MAX).collect();
    let step = context.step("calibrate", depths.len() as u64 + 6, Unit::Count);
    let mut done = 0;
    let mut take = |writes, bytes, depth| {
        let kind = if writes { "writes" } else { "reads" };
        step.message(format!("{kind} of {} KiB, {depth} in flight", bytes >> 10));
        let seen = run(Load { writes, bytes, depth })?;
        done += 1;
        step.set(done);
        anyhow::Ok(seen)
    };
    // A device that slept or was never used reaches its normal speed here.
    take(false, PIECE_BYTES, 4)?;
    let mut rates = Vec::new();
    for depth in depths {
        rates.push((depth, take(false, PIECE_BYTES, depth)?.bytes_per_second()));
        if let [.., (_, a), (_, b), (_, c)] = rates[..]
            && b < a * GAIN_MIN
            && c < b * GAIN_MIN
        {
            break;
        }
    }
    let (knee, read_bytes) = knee(&rates);
    calibration.knee_depth = knee as u32;
    let write_bytes = take(true, PIECE_BYTES, knee)?.bytes_per_second();
    let kinds = [(false, read_bytes, &mut calibration.read), (true, write_bytes, &mut calibration.write)];
    for (writes, bytes_per_second, rates) in kinds {
        let many = take(writes, SMALL_BYTES, DEPTH_MANY)?;
        let one = take(writes, SMALL_BYTES, 1)?;
        *rates = Rates::default();
        rates.bytes_per_second = bytes_per_second.round() as u64;
        rates.operations_per_second = many.operations_per_second().round() as u64;
        rates.latency_ns = one.median_ns();
    }
    let ratio = read_bytes / write_bytes.max(1.0);
    calibration.write_cost = ((ratio * 100.0).round() / 100.0).clamp(0.25, 16.0);
    step.finish(&format!("{knee} requests of 64 KiB in flight are enough"));
    Ok(())
}

/// Returns the least depth with nearly all of the best rate, and its rate.
fn knee(rates: &[(usize, f64)]) -> (usize, f64) {
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    rates.iter().copied().find(|(_, rate)| *rate >= best * KNEE_SHARE).unwrap_or((1, best))
}

/// Formats the figures for people; `written` is the file.
pub fn render(calibration: &Calibration, written: &Path) -> String {
    let Calibration { device, model, device_bytes, read, write, knee_depth, write_cost, .. } = calibration;
    let size = device_bytes.map_or_else(|| "size unknown".to_owned(), show_bytes);
    let mut text = format!("{device} ({}, {size})\n", model.as_deref().unwrap_or("no model"));
    let line = |name: &str, rates: &Rates| {
        format!(
            "  {name:<7} {:>8.0} MB/s in requests of 64 KiB, {:>9} a second of 4 KiB, {:>8.1} us for one\n",
            rates.bytes_per_second as f64 / 1e6,
            rates.operations_per_second,
            rates.latency_ns as f64 / 1e3
        )
    };
    text += &line("reads", read);
    text += &line("writes", write);
    let _ = writeln!(text, "  knee    {knee_depth} requests of 64 KiB in flight have nearly all of that");
    let _ = writeln!(text, "  a write costs {write_cost} of a read's time\n");
    let _ = writeln!(text, "The file: {} (Calibration::load, Config::calibration)", written.display());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;
    use crate::progress::Progress;

    fn context() -> Context {
        Context::new(Target::Directory(std::env::temp_dir()), Progress::Silent, Cleanup::default(), 1)
    }

    /// A device that works on `places` requests in parallel, each for 1 ms as a read and 3 ms as a write.
    fn device(places: usize, ran: &mut Vec<Load>) -> impl FnMut(Load) -> anyhow::Result<LoadTally> {
        move |load| {
            ran.push(load);
            let each_ns = if load.writes { 3_000_000 } else { 1_000_000 };
            let operations = 1_000_000_000 / each_ns * load.depth.min(places) as u64;
            let mut times = Latency::new().expect("memory");
            (0..operations).for_each(|_| times.record(Duration::from_nanos(each_ns)));
            Ok(LoadTally { bytes: load.bytes, seconds: 1.0, times })
        }
    }

    #[test]
    fn the_figures_of_a_device_are_found() {
        for (places, knee) in [(1, 1), (10, 16), (32, 32), (1000, 256)] {
            let mut calibration = Calibration::new(&Device::default());
            let mut ran = Vec::new();
            measure(&mut calibration, &context(), device(places, &mut ran)).expect("nothing fails");
            assert_eq!(calibration.knee_depth, knee, "{places}");
            assert_eq!(calibration.write_cost, 3.0);
            assert_eq!(calibration.read.bytes_per_second, 1_000 * PIECE_BYTES * places.min(256) as u64);
            assert_eq!(calibration.write.operations_per_second, 333 * places.min(DEPTH_MANY) as u64);
            let near = |ns: u64, wanted: u64| ns.abs_diff(wanted) < wanted / 50;
            assert!(near(calibration.read.latency_ns, 1_000_000), "{calibration:?}");
            assert!(near(calibration.write.latency_ns, 3_000_000), "{calibration:?}");
            let deepest =
                ran.iter().filter(|load| !load.writes && load.bytes == PIECE_BYTES).map(|load| load.depth);
            assert!(deepest.max() <= Some((8 * places).min(DEPTH_MAX)), "no more than needed: {ran:?}");
        }
    }

    #[test]
    fn the_knee_is_the_least_depth_with_nearly_all() {
        assert_eq!(knee(&[(1, 10.0), (2, 19.0), (4, 36.0), (8, 40.0), (16, 38.0)]).0, 4);
        assert_eq!(knee(&[(1, 10.0)]).0, 1);
        assert_eq!(knee(&[]).0, 1);
    }

    /// Regression: while other programs ran, no write of 64 KiB completed in its 20 ms, and the file that `calibrate` wrote said
    /// that the device writes 0 bytes a second.
    #[test]
    fn a_load_without_time_goes_on_until_its_requests_completed() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let temp = Cleanup::default().temp_file(directory, "load").expect("writable");
        temp.file().set_len(1 << 20).expect("space");
        let engine = Engine::start(Config::new().shards(1)).expect("an engine");
        let bench = Bench {
            file: engine.open(temp.path(), Open::write()).wait().expect("its own file"),
            file_bytes: 1 << 20,
            length: Duration::ZERO,
            seed: 1,
            engine: engine.clone(),
        };
        for (writes, depth) in [(false, 1), (true, 8)] {
            let seen = bench.run(Load { writes, bytes: 4096, depth }).expect("it runs");
            assert!(seen.times.count() >= depth as u64, "{seen:?}");
            assert!(seen.operations_per_second().is_normal() && seen.median_ns() > 0, "{seen:?}");
        }
    }
}
